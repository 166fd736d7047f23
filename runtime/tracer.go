package runtime

// Tracer exports one trace for each job. Its methods do not block and are safe for concurrent use.
type Tracer interface {
	// Parent returns the value of TRACEPARENT for the steps of a job, so that what they trace belongs to the trace of
	// the job: see https://www.w3.org/TR/trace-context/#traceparent-header. It does not depend on the run of the agent.
	Parent(job *Job) string
	// Trace exports what a pool knows of a job that it no longer has. The steps are those of the runner, in order; an
	// adopted job has none. Outcome is empty if the job goes on, and a later agent exports the rest of the trace.
	Trace(job *Job, state JobState, steps []StepTime, outcome Outcome)
}
