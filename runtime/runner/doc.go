// Package runner knows how the steps of one job run, and how they are told to
// the service. It is the inside of the program that stands in every job's
// environment, so it stays small; it will never know how that environment was
// made, nor what the scripts are for.
//
// # Order
//
// A step is told as running before its first line, and as succeeded or failed
// after its last line was accepted; nothing is told of it afterwards. The first
// step that fails ends the job. Step 0 is set-up: the agent has begun its log,
// the runner ends it, and its script is run only when it is the only step.
//
// # Output
//
//	pipe -> redactor -> splitter -> journal -> service
//
// Secrets are marked in the stream, before it is cut into lines, so that no
// border of a read or of a line hides one. The journal is bounded: a service
// that is slow slows the step down, and one that does not answer for
// [stallLimit] costs the oldest lines, never the job.
//
// A step has ended when its shell has. What it left in the background may hold
// the pipe: the runner listens until it is silent for [quiet], but for no more
// than [lingerTime] or [lingerBytes], and from then on throws away what comes, so
// that nobody dies of a broken pipe.
//
// # Surroundings
//
// An image was made for some user and for some certificates, and the job may have
// others. What its user cannot write to is replaced by folders of the job's own
// (the root, HOME, PULUMI_HOME), and what it must trust besides stands in a
// bundle there that the usual variables name. What the job sets itself is left
// alone, and all of it ends with the job.
//
// # Ends
//
// The step's process group gets a TERM and, a grace later, a KILL: when a time
// limit passes, when the agent asks to stop, and when the service no longer has
// the job, which package cloud believes only of a repeated or confirmed answer. In
// the last case nothing more is reported. Heartbeats go on until the end, also when
// they are refused. A success and a failure that could not be reported have exit
// codes of their own, so that the agent can report the true outcome.
//
// A runner that is asked to end cannot know who asks. Where the agent may know, as in a
// cluster that evicts Pods, the runner reports that it has ended the step and waits a
// moment before it reports the failure, and the agent adds the reason to the log.
//
// Whatever may not end is bounded: a status is repeated for [statusPatience], the
// lines of an ended step for [flushPatience] without progress, and everything
// after the agent's request to stop for the grace and [farewellTime]. Progress is
// written by a goroutine of its own, for which the end waits [progressFlush].
package runner
