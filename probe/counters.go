package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Counter is a number that the kernel counts for a device since it was found.
type Counter struct {
	Name   string // file, relative to the block device's folder: device/ioerr_cnt
	Member string // of an md array: the member it is about
	V      uint64
	Source string
}

// scsiCounters are those of a SCSI device (drivers/scsi/scsi_sysfs.c,
// show_sdev_iostat): 32 bits, in hex. ioerr_cnt also counts commands that the
// device refuses, also those that other programs send; 6.1 has all three.
var scsiCounters = []string{"iodone_cnt", "ioerr_cnt", "iotmo_cnt"}

// CountersNote is what a note is about that says of all counters of a device
// that nobody asked for them.
const CountersNote = "counters"

// maxMembers bounds the members of an md array that are asked for their errors.
const maxMembers = 512

// readCounters fills d.Counters. A recording by a version that did not ask for
// them has none, which is one note.
func (d *Device) readCounters(block, below dir) {
	recorded := true
	failed := func(what string, err error, source string) {
		if !errors.Is(err, ErrNotRecorded) {
			d.note(what, Unreadable, err.Error(), source)
		} else if recorded {
			recorded = false
			d.note(CountersNote, NotAsked, "the recording was made without the devices' counts of errors", source)
		}
	}
	read := func(at dir, file, source string, parse func(string) (uint64, error)) (uint64, bool) {
		b, err := at.readFile(file)
		if errors.Is(err, fs.ErrNotExist) && !errors.Is(err, ErrNotRecorded) {
			return 0, false
		}
		var n uint64
		if err == nil {
			n, err = parse(strings.TrimSpace(string(b)))
		}
		if err != nil {
			failed(file, err, source)
		}
		return n, err == nil
	}
	if below != nil && reHCTL.MatchString(path.Base(d.devPath)) {
		for _, name := range scsiCounters {
			source := d.devPath + "/" + name
			if n, ok := read(below, name, source, parseCounter); ok {
				d.Counters = append(d.Counters, Counter{Name: "device/" + name, V: n, Source: source})
			}
		}
	}
	if d.Kind != "md" {
		return
	}
	// Read errors of the member that were corrected (Documentation/admin-guide/md.rst,
	// md/dev-XXX/errors).
	names, err := block.list("md")
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrNotRecorded) {
			failed("md", err, d.SysPath+"/md")
		}
		return
	}
	slices.SortFunc(names, compareNames)
	for _, name := range names {
		member, ok := strings.CutPrefix(name, "dev-")
		if !ok || len(d.Counters) >= maxMembers {
			continue
		}
		file := "md/" + name + "/errors"
		if n, ok := read(block, file, d.SysPath+"/"+file, parseUint); ok {
			d.Counters = append(d.Counters, Counter{Name: file, Member: member, V: n, Source: d.SysPath + "/" + file})
		}
	}
}

// parseCounter reads 0x1a2b. The kernel widens 32 bits with their sign.
func parseCounter(text string) (uint64, error) {
	digits, ok := strings.CutPrefix(text, "0x")
	n, err := strconv.ParseUint(digits, 16, 64)
	if err != nil || !ok {
		return 0, fmt.Errorf("%.40q is not a counter", text)
	}
	return n & (1<<32 - 1), nil
}
