package reconcile

import (
	"time"

	"github.com/cmwa-project/cmwa/runtime"
)

// Status is how far we got: the only source for health, metrics and logs.
type Status struct {
	Desired   uint64 // generation that is wanted
	Applied   uint64 // last generation that was reached in full
	AppliedAt time.Time
	Pools     []runtime.PoolState // by name
	Problems  map[string]string   // by pool key: why it cannot be built now
	Claiming  bool                // every pool that is wanted is there and past its start
	Stopping  bool                // nothing new is claimed any more
	Process   ProcessSpec
}

// Healthy reports whether every pool has made progress within the threshold, or
// waits on purpose.
func (s Status) Healthy(now time.Time) bool {
	return now.Sub(s.LastProgress()) <= s.Process.HealthThreshold
}

// Stuck reports whether a pool has made no progress within the threshold, although
// it has some to make.
func (s Status) Stuck(pool runtime.PoolState, now time.Time) bool {
	over := pool.Finished && pool.Phase == runtime.PoolStopped
	return !over && now.Sub(pool.Progress) > s.Process.HealthThreshold
}

// LastProgress returns the last progress of the pool that has waited longest
// for one. A single run that is over has none to make. It is zero when there is no
// pool.
func (s Status) LastProgress() time.Time {
	var oldest time.Time
	for _, pool := range s.Pools {
		if pool.Finished && pool.Phase == runtime.PoolStopped {
			continue
		}
		if oldest.IsZero() || pool.Progress.Before(oldest) {
			oldest = pool.Progress
		}
	}
	return oldest
}

// Ready reports whether jobs are being claimed: what is wanted was reached in full,
// and still is.
func (s Status) Ready() bool {
	return !s.Stopping && s.Desired > 0 && s.Applied == s.Desired && s.Claiming && len(s.Problems) == 0
}
