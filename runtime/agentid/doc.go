// Package agentid keeps the random id of an agent in a state directory, so that a
// restarted agent finds the instances that it created before, and no other agent adopts
// them. The package does not depend on executors, or on the content of a configuration.
//
// # Layout
//
//	<state directory>/
//	  lock             locked by the agent until its process ends; names the process
//	  id               32 hexadecimal digits
//	  target-docker    exists if an agent with this id has used this target
//	  records          the journal of runtime/journal
//	  control, paused  socket and paused pools of cmd/cmwa/control
//
// A state directory belongs to one agent: the kernel grants the lock to one process, and
// releases it when the process ends or is killed. So a restarted agent has the same id, and
// two processes never have the same id. An image of a machine or container must not contain
// a state directory that was in use, because its copies would have the same id. Two machines
// must not share a state directory on a file system whose locks are local to a machine.
//
// The package stores nothing else, and does not read records, control and paused. The labels
// of an instance contain its pool.
//
// # Why a package
//
// The directory may be damaged, read-only, shared or hostile. This needs unit tests, and
// cmd/cmwa has no logic that needs unit tests.
package agentid
