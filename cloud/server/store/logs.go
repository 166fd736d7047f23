package store

import "time"

// Batch is one row of the log of a step: some lines, or the lines that are not stored.
type Batch struct {
	Start  int    // index of the first line
	Count  int    // of lines
	Bytes  int    // size of the text of the lines
	Cut    string // why the lines are not stored; empty for stored lines
	Packed []byte // the lines; one empty line with the time of the last cut if they are not stored
}

// BatchOverhead is the approximate size of a batch in the database without its lines.
const BatchOverhead = 64

// Size returns the size of a batch in the database, in bytes. Batches that are not stored do not count.
func (b Batch) Size() int64 {
	if b.Cut != "" {
		return 0
	}
	return int64(len(b.Packed) + BatchOverhead)
}

// BatchAt returns the last batch of a step that starts at this line or before it.
func (t *Tx) BatchAt(j JobKey, step, line int) (b Batch, found bool, err error) {
	found, err = t.get([]any{&b.Start, &b.Count, &b.Bytes, &b.Cut, &b.Packed}, j.Kind.sql(`SELECT start, count, bytes,
			cut, packed FROM {batches} WHERE {owner} = ? AND step = ? AND start <= ? ORDER BY start DESC LIMIT 1`),
		j.Seq, step, line)
	return b, found, err
}

// LastCut returns the last batch of a step that is not stored for this reason.
func (t *Tx) LastCut(j JobKey, step int, reason string) (b Batch, found bool, err error) {
	found, err = t.get([]any{&b.Start, &b.Count, &b.Bytes, &b.Cut, &b.Packed}, j.Kind.sql(`SELECT start, count, bytes,
			cut, packed FROM {batches} WHERE {owner} = ? AND step = ? AND cut = ? ORDER BY start DESC LIMIT 1`),
		j.Seq, step, reason)
	return b, found, err
}

// EndOfHead returns the first line of the first batch of a step that does not fit into size bytes together with those
// before it. Found is false if all batches fit.
func (t *Tx) EndOfHead(j JobKey, step int, size int64) (line int, found bool, err error) {
	var at *int
	_, err = t.get([]any{&at}, j.Kind.sql(`SELECT min(start) FROM (
		SELECT start, sum(CASE cut WHEN '' THEN length(packed) + ? ELSE 0 END) OVER (ORDER BY start) AS total
			FROM {batches} WHERE {owner} = ? AND step = ?) AS totals WHERE total > ?`),
		BatchOverhead, j.Seq, step, size)
	if err != nil || at == nil {
		return 0, false, err
	}
	return *at, true, nil
}

// AddBatch stores a batch. The error is ErrDuplicate if a batch has the same start.
func (t *Tx) AddBatch(j JobKey, step int, b Batch) error {
	_, err := t.exec(j.Kind.sql(`INSERT INTO {batches} ({owner}, step, start, count, bytes, cut, packed)
		VALUES (?, ?, ?, ?, ?, ?, ?)`), j.Seq, step, b.Start, b.Count, b.Bytes, b.Cut, b.Packed)
	return err
}

// DropBatch deletes the batch with this start, if there is one.
func (t *Tx) DropBatch(j JobKey, step, start int) error {
	_, err := t.exec(j.Kind.sql(`DELETE FROM {batches} WHERE {owner} = ? AND step = ? AND start = ?`),
		j.Seq, step, start)
	return err
}

// SetLog changes the number of lines of a log, and its size in the database in bytes.
func (t *Tx) SetLog(j JobKey, step, lines int, stored int64, now time.Time) error {
	_, err := t.exec(j.Kind.sql(`UPDATE {steps} SET line_count = ?, stored_bytes = ?, modified = ?
		WHERE {owner} = ? AND number = ?`), lines, stored, ToNanos(now), j.Seq, step)
	return err
}
