// Package runtime declares what the parts that run jobs agree on: the interfaces to a service
// ([Cloud]), an engine ([Executor]), the records of claimed jobs ([Journal]) and metrics
// ([Metrics]), and the values that they exchange, such as [Job], [PoolSpec], [Handoff] and
// [PoolState]. It starts no goroutine and makes no call. The one exception is [Setup], the log of
// step 0, because an executor writes it and the agent sends it.
//
// Package pool claims and runs jobs with these interfaces, so that executors, clients and fakes do
// not import it.
package runtime
