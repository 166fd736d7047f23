// Package journal keeps the records of claimed jobs in files of the agent's directory, so that
// a restarted agent finishes or reports each job. It does not know what a service or an
// instance is, or to which agent a directory belongs. The caller must have locked the directory.
//
// # Files
//
// Each job has one file. It contains the record as JSON with the job's tokens, which no other
// file contains. Only the agent's user can read the files:
//
//	<directory of the agent>/records/
//	  5feceb66ffc86f38.json          a record; the name is a digest of the job's id
//	  5feceb66ffc86f38.json.new      an interrupted change, which the next Open removes
//	  5feceb66ffc86f38.json.damaged  a file that could not be read, kept for a day
//	  reserve                        space for records while the disk is full
//
// A change writes a new file and renames it to the name of the old one. So a file contains the
// old or the new record, but never a part of one.
//
// # Damage
//
// A file that cannot be decoded is renamed and logged, and so is anything that this package
// does not write: a link, a huge file, a file of another user, a record of another version.
// Open fails only if the directory cannot be used at all.
//
// # Durability
//
// Add and a change of the stage to handed off are synced, with the directory: they survive a
// crash of the machine. Other changes survive a crash of the agent, except the number of lines
// in the last second. After a crash of the machine, the journal may have an earlier state of the
// record, but never the stage claimed after the stage handed off. Some file systems, such as XFS,
// may then also leave an empty file for a change that was not synced, which is damaged: the job
// ends by its own runner, or by the service. The journal may also have a record that was removed
// before the crash. The job of such a record has ended, and the service knows the outcome.
//
// A job costs four syncs, two of files and two of the directory.
package journal
