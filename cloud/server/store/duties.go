package store

import "time"

// Background is the name of the duty of the regular work of the service, such as the end of expired leases.
const Background = "background"

// Duty is work that one instance of the service does at a time.
type Duty struct {
	Holder  string    // id of the instance; empty before the first
	Since   time.Time // since when instances have done it without a gap that is longer than a lease
	Expires time.Time // of the lease of the holder
}

// Claim returns the duty with a lease of an instance from now on. Held is false if another instance holds the duty. If
// most of the lease is left, Claim returns the same duty.
func (d Duty) Claim(instance string, now time.Time, lease time.Duration) (next Duty, held bool) {
	left := d.Expires.Sub(now)
	if d.Holder != instance && left > 0 {
		return d, false
	}
	if left < -lease {
		d.Since = now
	}
	if d.Holder != instance || left < lease*2/3 {
		d.Holder, d.Expires = instance, now.Add(lease)
	}
	return d, true
}

// Duty returns a duty, which must exist.
func (t *Tx) Duty(name string) (d Duty, err error) {
	var since, expires int64
	_, err = t.get([]any{&d.Holder, &since, &expires}, `SELECT holder, since, expires FROM duties WHERE name = ?`, name)
	d.Since, d.Expires = FromNanos(since), FromNanos(expires)
	return d, err
}

// SetDuty replaces a duty. Changed is false if another instance has changed it meanwhile.
func (t *Tx) SetDuty(name string, from, to Duty) (changed bool, err error) {
	count, err := t.exec(`UPDATE duties SET holder = ?, since = ?, expires = ?
		WHERE name = ? AND holder = ? AND expires = ?`,
		to.Holder, ToNanos(to.Since), ToNanos(to.Expires), name, from.Holder, ToNanos(from.Expires))
	return count == 1, err
}
