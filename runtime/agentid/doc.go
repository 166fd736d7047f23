// Package agentid keeps the random id of an agent in a state folder, so that a
// restarted agent finds the instances that it made before, and no other agent
// adopts them. It will never know what an instance is, or where a configuration
// comes from.
//
// # Layout
//
// The state folder has a folder for each configuration file, and that has a
// numbered folder for each agent that runs with this file:
//
//	<state folder>/
//	  agent.yaml-1f0c…/    name and digest of the file's absolute path; no-file without one
//	    lock               held while an agent chooses its number
//	    1/
//	      lock             held by the agent with this number, for as long as its process lives
//	      id               32 hexadecimal digits
//	      instances        exists while the agent has jobs in flight
//	      target-docker    exists when the agent has used this target
//
// Two processes never have one id: the kernel grants the lock of a number to one
// process, and releases it when the process ends, however it ends. A restarted
// agent takes the first free number whose last agent ended with jobs in flight,
// otherwise the first free one. An image of a machine or container must not
// contain a state folder that was in use, or its copies share an id. Nor may two
// machines share one on a file system whose locks are of one machine alone.
//
// Nothing else is kept here. Which instances exist, and of which pool they are,
// is recorded in their labels alone.
//
// # Why a package
//
// The folder may be damaged, read-only, shared or hostile, and two agents choose
// at the same time: that needs tests without whole programs, and cmd/cmwa has no
// logic that needs a unit test.
package agentid
