// Package quirks is the database: one YAML file per quirk under ata/ scsi/
// nvme/ usb/ adapter/ stack/ kernel/ (the first word of the id), embedded in
// the binary with an index, index.tsv, so that a scan parses only the files
// that may concern a device it sees.
//
// An [Entry] answers a [Subject] with a [Match]: true, false or unknown, and
// every predicate with what was wanted and what was found. Nothing here does
// I/O beyond the fs.FS an entry is loaded from; whether a match is a finding
// is package checker's to decide.
//
// A new or changed entry needs the index made again: go generate ./quirks. A
// stale index costs time and never a miss, since a file whose hash it does not
// list is parsed at once.
package quirks

import (
	"embed"
	"io/fs"
	"sync"
)

//go:generate go run ./mkindex .

//go:embed VERSION index.tsv
//go:embed ata/*.yaml scsi/*.yaml adapter/*.yaml kernel/*.yaml
var embedded embed.FS

// Embedded returns the file system of the database built into the binary.
func Embedded() fs.FS { return embedded }

// Builtin returns the embedded database; it is indexed once per process.
var Builtin = sync.OnceValues(func() (*Set, []Fault) { return load(embedded, readIndex(embedded)) })

// BuiltinVersion returns the version of the embedded database without loading
// it.
func BuiltinVersion() Version { return readVersion(embedded) }
