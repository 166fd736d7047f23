// Package process runs each job as a process group of this machine, for machines without
// a container engine. It creates, finds, follows and removes these process groups. It
// isolates nothing: a job can do everything that the agent's user can do. It does not
// depend on the purpose of a job, and it ignores images.
//
// # A directory for each job
//
// All data about a job is in one directory (mode 0700). Its name is a digest of agent, pool
// and job, so that a job cannot be started twice and a hostile id never becomes a path:
//
//	job.json     the labels; complete before the directory gets its name
//	leader.json  process id and start time of the supervisor
//	progress     standard output of the runner
//	messages     standard error of the runner
//	exit         exit code of the runner, after its end
//	root/        the root directory of the job
//	home/, tmp/  HOME, PULUMI_HOME and TMPDIR
//
// Agent and job communicate only through files, so a job continues when its agent ends, and
// the next agent reads the same files. The exception is the handoff: it goes through a pipe
// and is never written to a file.
//
// # The supervisor
//
// A short shell script starts the runner, waits for it and writes its exit code to a
// file. Without the script, the agent would be the parent process of the runner, and the
// exit code would be lost if the agent ended. The script costs one idle shell for each job.
// In return, the same code handles jobs of this agent and adopted jobs: Wait always reads
// the exit code from the file. If the supervisor has ended without writing an exit code (it
// was killed, or the machine went down), the code is unknown, and Wait reports that.
//
// The supervisor leads a session, in which the runner and the steps run. SIGINT and SIGTERM
// go to its process group: the supervisor continues, because its shell has a trap for them,
// and the runner stops the step (see package runner).
//
// # Identity of processes
//
// A process id alone proves nothing, because the kernel reuses ids. A supervisor is
// identified by process id and start time, and both are compared before any signal is
// sent. The agent reaps supervisors that are its children in Remove and not earlier, so
// that their ids are not reused before.
//
// A process belongs to a job if it is in the session of the supervisor, as far as that
// can be proved (see owns), or if it has the directory of the job in the variable
// CMWA_JOB_DIRECTORY. A process that leaves the session and clears its environment is not
// found; only a container engine prevents that.
//
// # Polling
//
// The executor polls the files every 20 ms for the end and the progress of a job. This
// costs a few cheap system calls per poll. A portable use of file system notifications
// would cost more than it saves. Without running jobs, nothing is polled.
package process
