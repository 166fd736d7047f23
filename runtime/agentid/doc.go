// Package agentid keeps the random id of an agent in a state folder, so that a
// restarted agent finds the instances that it created before, and no other agent adopts
// them. The package does not depend on executors, or on the content of a configuration.
//
// # Layout
//
// The state folder has a folder for each configuration file. That folder has a numbered
// folder for each agent that runs with the file:
//
//	<state folder>/
//	  agent.yaml-1f0c…/    name and digest of the file's absolute path, or no-file
//	    lock               locked while an agent chooses its number
//	    1/
//	      lock             locked by the agent with this number until its process ends
//	      id               32 hexadecimal digits
//	      instances        exists while this agent, or an earlier one, may have jobs in flight
//	      target-docker    exists if an agent with this number has used this target
//	      claims           the journal of runtime/journal
//	      control, paused  socket and paused pools of cmd/cmwa/control
//
// Two processes never have the same id: the kernel grants the lock of a number to one
// process, and releases it when the process ends or is killed. A restarted agent takes
// the first free number whose last agent ended with jobs in flight, otherwise the first
// free number. An image of a machine or container must not contain a state folder that
// was in use, because its copies would have the same id. Two machines must not share a
// state folder on a file system whose locks are local to a machine.
//
// The package stores nothing else, and does not read claims, control and paused. The labels of
// an instance contain its pool.
//
// # Why a package
//
// The folder may be damaged, read-only, shared or hostile, and two agents may choose a
// number at the same time. This needs unit tests, and cmd/cmwa has no logic that needs
// unit tests.
package agentid
