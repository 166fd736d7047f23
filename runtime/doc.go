// Package runtime knows a job's life and a pool's loop: wait, claim, start,
// follow, finish, and claim again. It declares what it asks of a service
// ([Cloud]) and of a place to run ([Executor]); it will never know which
// service or which engine answers, and never reads a configuration file.
//
// A [Pool] owns its loop and its jobs; a job owns three children (its output,
// the question whether it is still wanted, its end). Nobody else starts a
// goroutine here.
//
// Two failures are kept apart. A job's failure is told to the service and the
// pool goes on. A pool's failure ends [Pool.Run], and whoever wants the pool
// starts it again.
package runtime
