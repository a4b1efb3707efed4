// Package store keeps what enforcement did to this machine: which value stood
// in an attribute before, in which boot, on which device, and for which entry.
// It is what lets revert undo, lets the next run finish after a kill, and lets
// unpersist know a rule file as ours. It is one SQLite file, by custom
// /var/lib/quirkcheck/state.db.
//
// The order is plan, write to the device, done:
//
//	id, err := s.Plan(ctx, w) // on the disk when it returns
//	... write the attribute, read it back ...
//	err = s.Done(ctx, id, store.Written, readBack)
//
// So a process killed at any point leaves a row that is Planned or Written, and
// Pending finds it. A Planned row says that the write may have happened; the
// attribute's present value tells. What another boot left is never pending: a
// limit in sysfs does not outlive its boot.
//
// # Durability
//
// The file has a rollback journal, in SQLite's PERSIST mode with
// synchronous=FULL, and no write-ahead log:
//   - the database is one file that is whole between transactions, so a copy
//     taken by a rescue system or a backup lacks nothing, and it opens on a
//     read-only mount, where a write-ahead log needs an index file it cannot make;
//   - it needs no memory shared between processes, which NFS roots do not give;
//   - PERSIST overwrites the journal's header where DELETE unlinks the file.
//     The commit is that overwrite, followed by a sync of the file. (DELETE with
//     FULL does not sync the folder, so a power cut can take back a commit that
//     was reported.) And the journal's blocks stay allocated: a disk that fills
//     up after Plan does not stop Done, as the row too keeps its size (see room
//     in schema.go).
//
// The price is five syncs a transaction instead of one (journal twice, folder,
// database, journal), and that readers wait for a writer. PlanAll pays it once
// for a whole run.
//
// After a power cut SQLite rolls the unfinished transaction back when the file
// is next opened. OpenReadOnly does that on a copy.
//
// # Damage
//
// A damaged file is reported as *CorruptError and left alone, never deleted nor
// overwritten. SQLite finds damage to its structure; each row carries a checksum
// of its own, since a value with a flipped digit would be written to a device.
package store
