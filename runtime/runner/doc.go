// Package runner runs the steps of one job and reports them to the service. It is the
// core of the program that runs in the instance of every job, so it stays small. It does
// not depend on how the instance was created, or on the purpose of the scripts.
//
// # Order
//
// The runner reports a step as running before the first line of its log, and as
// succeeded or failed after the service has accepted the last line. It reports nothing
// of the step afterwards. The first step that fails ends the job. Step 0 is set-up: the
// agent begins its log, and the runner ends it. Its script runs only if the job has no
// other step.
//
// # Output
//
//	pipe -> redactor -> splitter -> log queue -> service
//
// Secrets are redacted in the stream before it is split into lines, so that a secret is
// found across the borders of reads and lines. The log queue is bounded: a slow service
// slows the step down. If the service does not respond for [stallLimit], the oldest lines
// are dropped, and the job continues.
//
// A step ends when its shell ends. Processes that it left in the background may keep the
// pipe open: the runner reads on until the pipe is silent for [quietTime], and at most
// for [maxLingerTime] or [maxLingerBytes]. After that it discards the output, so that
// no process gets SIGPIPE.
//
// # User and certificates
//
// The job may run as another user, and with other certificates, than its image was
// built for. Directories that the user cannot write to (the root, HOME, PULUMI_HOME) are
// replaced by directories of the job. The agent passes the job with its tokens and settings in
// the handoff. If the handoff has certificates, the job gets a bundle with them, and the
// usual variables name it. Variables that the job sets stay unchanged.
// The directories and the bundle are removed when the job ends.
//
// # End of a job
//
// A step is stopped in three cases: a time limit passes, the agent requests a stop, or the
// service no longer has the job. Package cloud reports the third case only after a repeated
// or confirmed response. The runner then sends no status and no heartbeat, and sends the log
// as far as the service accepts it. In the other cases, heartbeats continue until the end of
// the job, even if the service rejects them.
//
// A step is stopped in stages, so that pulumi releases the lock of its stack:
//
//	SIGINT   to pulumi, once; otherwise to the programs that handle it (see interrupter)
//	SIGTERM  to the process group, after the handoff's cancel grace period (usually minutes)
//	SIGKILL  to the process group, after the handoff's grace period (seconds)
//
// Without a terminal, there is no foreground process group that could get the SIGINT.
// Therefore the runner finds pulumi by its name among the descendants of the shell. The
// shell of a step gets no SIGINT: its traps for SIGTERM are executed when pulumi has ended. If no process
// handles SIGINT, SIGTERM follows at once.
//
// The program that calls [Run] translates signals of the agent to these stages. SIGINT starts
// the first stage, which lasts until the agent sends SIGTERM, so a new value of
// cancel_grace_period affects a running job. A first SIGTERM, which a container engine or a
// kubelet sends, starts the first stage too. The stage then lasts as long as the handoff
// allows. Each further SIGTERM ends a stage.
//
// The runner cannot know who requests a stop. It therefore reports to the agent that it has
// stopped the step, and waits a moment before it reports the failure, so that the agent can
// add the reason to the log: its own reason, or why the cluster evicts the Pod.
//
// A success and a failure that the runner could not report have their own exit codes, so
// that the agent can report the true outcome.
//
// Every wait is bounded: a status is retried for [statusTimeout], and the lines of an ended
// step until none was accepted for [flushTimeout]. After a stop request, calls are made until
// the step has ended, within the two grace periods, and then for [finalReportTimeout]. A
// separate goroutine writes the progress of the job to the agent, and the runner waits
// [progressFlush] for it at the end.
package runner
