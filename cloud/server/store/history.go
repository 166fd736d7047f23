package store

import "time"

// History returns updates of a stack that have started and are no dry runs, the newest first. Total is the number of
// all.
func (t *Tx) History(stack string, limit, offset int64) (updates []Update, total int64, err error) {
	const condition = `WHERE stack = ? AND version IS NOT NULL`
	if _, err := t.get([]any{&total}, `SELECT count(*) FROM updates `+condition, stack); err != nil {
		return nil, 0, err
	}
	updates, err = rows(t, scanUpdate, selectUpdates+condition+` ORDER BY version DESC LIMIT ? OFFSET ?`,
		stack, limit, offset)
	return updates, total, err
}

// UpdateOfVersion returns the update that made a version of a stack.
func (t *Tx) UpdateOfVersion(stack string, version int64) (Update, bool, error) {
	return one(t, scanUpdate, selectUpdates+`WHERE stack = ? AND version = ?`, stack, version)
}

// Preview returns a dry run of a stack.
func (t *Tx) Preview(stack, id string) (Update, bool, error) {
	return one(t, scanUpdate, selectUpdates+`WHERE id = ? AND stack = ? AND dry_run = 1`, id, stack)
}

// Previews returns dry runs of a stack that were made since a time. Total is the number of all.
func (t *Tx) Previews(
	stack string, since time.Time, oldestFirst bool, limit, offset int64,
) (updates []Update, total int64, err error) {
	const condition = `WHERE stack = ? AND created > ? AND dry_run = 1`
	if _, err := t.get([]any{&total}, `SELECT count(*) FROM updates `+condition, stack, ToNanos(since)); err != nil {
		return nil, 0, err
	}
	if oldestFirst {
		updates, err = rows(t, scanUpdate, selectUpdates+condition+` ORDER BY created LIMIT ? OFFSET ?`,
			stack, ToNanos(since), limit, offset)
	} else {
		updates, err = rows(t, scanUpdate, selectUpdates+condition+` ORDER BY created DESC LIMIT ? OFFSET ?`,
			stack, ToNanos(since), limit, offset)
	}
	return updates, total, err
}
