// Package journal keeps the records of claimed jobs in files of the agent's folder, so that
// a restarted agent finishes or reports each job. It does not know what a service or an
// instance is, or to which agent a folder belongs. The caller must have locked the folder.
//
// # Files
//
// Each job in flight has one file. Files are reused. A record that fits into an existing file
// needs no further disk space, and costs one write and one sync. The files are:
//
//	<folder of the agent>/claims/
//	  1          a record: one slot and one line
//	  2          zeros: a free file
//	  3.damaged  a file that could not be read, kept for a day
//
// The first 512 bytes are the slot: the stage and the progress of the job, as JSON with a
// checksum. The slot is a single sector of a disk, and is overwritten in place. The line after
// the slot has the other data as JSON with a checksum. It includes the job's tokens, which no
// other file contains. Only the agent's user can read the files. A record that is removed is
// overwritten with zeros.
//
// # Damage
//
// A record whose slot is damaged counts as handed off: its job may have run. A file with a
// damaged line is renamed and logged, and so is anything that this package does not write: a
// link, a huge file, a file of another user, a record of another version. Open fails only if
// the folder cannot be used at all.
//
// # Durability
//
// Add and a change of the stage to handed off are synced: they survive a crash of the machine.
// Other changes survive a crash of the agent. After a crash of the machine, the journal may
// again have a record that was removed before the crash. Its job has ended, and the service
// knows the outcome.
//
// A job costs two syncs of a file that has its final size, each 0.6 to 1.1 ms on a virtual
// disk with ext4. With a new file for each job, a job would cost 2.8 to 3.7 ms, because the
// creation and the removal of the file also change the folder.
package journal
