// Package killpoint names the points of a job at which the tests kill the agent.
//
// The code that runs jobs calls [Hit] when it reaches a point. In a usual build Hit is an
// empty function, and the compiler removes the call. In a build with the tag killpoints,
// the environment variable CMWA_KILL_AT=NAME, or NAME:N, ends the process with SIGKILL at
// the first, or the n-th, Hit of that point, so that nothing is cleaned up.
//
// [Points] is the table of all points: what has happened, and how the job ends if the agent
// is killed there and started again. The table in cmd/cmwa/killpoints.md is generated from
// it, and TestKillPoints in cmd/cmwa checks each row.
package killpoint
