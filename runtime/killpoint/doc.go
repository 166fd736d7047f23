// Package killpoint names the points of a job at which the tests kill the agent.
//
// The code that runs jobs calls [Hit] when it reaches a point. In a usual build Hit is an
// empty function, and the compiler removes the call. In a build with the tag killpoints,
// the environment variable CMWA_KILL_AT=NAME, or NAME:N, ends the process with SIGKILL at
// the first, or the n-th, Hit of that point, so that nothing is cleaned up.
//
// The table of the points in cmd/cmwa/killpoints.md describes what has happened at each, and how
// the job ends if the agent is killed there and started again. TestKillPoints checks each row.
package killpoint
