// Package process knows how a job is a process group: how it is made, found,
// followed and removed on a machine where no engine can be had. It isolates
// nothing: a job does whatever the agent's user may do. It will never know what
// a job is for, and it ignores images.
//
// # One folder is one environment
//
// All that is known of a job stands in one folder of its own (mode 0700), named
// by a digest of agent, pool and job, so that a job cannot be started twice and
// a hostile id never becomes a path:
//
//	job.json     the labels; in place, whole, before the folder has its name
//	leader.json  process id and start of the supervisor
//	progress     the runner's standard output
//	messages     the runner's standard error
//	exit         the runner's exit code, once it has ended
//	root/        what stands for "/" in the job's world
//	home/, tmp/  HOME, PULUMI_HOME and TMPDIR
//
// Only files are between agent and job, so a job survives the death of its
// agent, and the next agent reads the same files. The handover is the
// exception: it goes through a pipe and stands in no file.
//
// # The supervisor
//
// The runner is started by a shell of a dozen words that waits for it and
// writes its exit code down. Without it the code of a job would be lost with
// the agent that is its parent. The price is one idle shell for each job; the
// gain is that own and adopted jobs need no different code: Wait never asks the
// kernel for a code, it reads the file. When the supervisor is gone and has
// left no code (it was killed, or the machine went down), the code is unknown
// and Wait says so.
//
// The supervisor leads a session, in which runner and steps live. A TERM goes to
// its process group: it shrugs, the runner passes it on to the step.
//
// # Who is who
//
// A process id alone proves nothing, since ids come back. The supervisor is
// known by id and start time, and no signal is sent before both were compared.
// An agent reaps the supervisors that are its own children in Remove and not
// earlier, which keeps their ids from coming back.
//
// To the job belongs what lives in the supervisor's session, as far as that is
// proved to be ours (see leads), and whatever carries the job's folder in the variable
// CMWA_JOB_FOLDER, wherever it has hidden. A process that leaves the session and
// clears its environment escapes; only an engine prevents that.
//
// # Looking again
//
// Ends and new progress are noticed by looking at files every 20 ms. That costs
// a job a few cheap system calls per look and needs no file-system events, whose
// portable form would cost more than it saves. Nothing looks when no job runs.
package process
