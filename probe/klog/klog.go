// Package klog reads a kernel log and says what it tells of block devices:
// commands that timed out or failed, with their size and place, resets, failed
// links, requests above a path's limit, and quirks that the kernel applied.
//
// The text is what dmesg, /dev/kmsg, journalctl or a syslog file hold; what
// stands before the kernel's own words is cut off and only its time is kept.
// Every pattern is one that a kernel prints: the comments name the function,
// with the file as it is in Linux 6.1 or 6.12.
//
// A log names devices as the kernel did at that time. Names are not the same
// after a restart, so each symptom keeps what the log of its own boot says of
// the name: SCSI address, INQUIRY strings, ATA model and firmware, PCI address,
// USB ids. Which device of a machine that is, is for the caller to find out.
//
// A log is read once, line by line. What is kept is bounded, whatever the
// length of the log and of its lines: symptoms are counted, not collected.
package klog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Kind is what a symptom is.
type Kind string

// The kinds of symptoms.
const (
	Timeout     Kind = "timeout"       // a command was not answered in time
	Reset       Kind = "reset"         // of a link, device, controller or adapter
	IOError     Kind = "io-error"      // a command failed and the log does not say more
	MediumError Kind = "medium-error"  // the device could not read its medium
	LinkError   Kind = "link-error"    // on the way: CRC, handshake, bus error
	Refused     Kind = "refused"       // the device does not accept the command
	OverMaxSize Kind = "over-max-size" // a multipath map sent more than its path takes
	PathFailed  Kind = "path-failed"   // a multipath map gave up a path
	Gone        Kind = "gone"          // the device was given up or went away
	Quirk       Kind = "quirk"         // the kernel applied a quirk of its own tables; no fault
	Message     Kind = "message"       // an adapter's own code, of which nothing else is known
)

// Space tells what kind of name a Subject has.
type Space string

// The kinds of names.
const (
	SpaceATA   Space = "ata"   // ata1.00 or, of the whole port, ata1
	SpaceDisk  Space = "disk"  // sda, nvme0n1, dm-0, or H:C:T:L where no disk name is known
	SpaceNVMe  Space = "nvme"  // controller: nvme0
	SpaceUSB   Space = "usb"   // 2-1.3
	SpaceDevno Space = "devno" // 8:16
	SpaceHost  Space = "host"  // SCSI host: host6
	SpacePCI   Space = "pci"   // 0000:01:00.0
	SpaceNone  Space = ""      // the line names no device
)

// Subject is what a line speaks of, with what the log of that boot says of it.
// Empty fields are not known.
type Subject struct {
	Space Space
	Name  string
	HCTL  string // SCSI address
	PCI   string // address of an NVMe controller
	// INQUIRY strings as the kernel prints them, trimmed.
	Vendor, Product, Revision string
	// ATA IDENTIFY DEVICE strings, trimmed.
	Model, Firmware string
	// USB ids; Storage says that a storage driver took the device.
	VID, PID string
	Storage  bool
	// Map is the device number of the multipath map that failed the path.
	Map string
}

// Identity is the subject's model as one text, "" where the log has none.
func (s Subject) Identity() string {
	switch {
	case s.Model != "":
		return strings.TrimSpace(s.Model + " " + s.Firmware)
	case s.Product != "" || s.Vendor != "":
		return strings.Join(strings.Fields(s.Vendor+" "+s.Product+" "+s.Revision), " ")
	case s.VID != "":
		return s.VID + ":" + s.PID
	}
	return ""
}

// Size is how large commands were, and how many were so. The size is in bytes,
// or, where the log does not tell the size of a block, in logical blocks.
type Size struct {
	Bytes, Blocks uint64 // one of them is 0
	Count         uint64
}

// Position is a place in a log.
type Position struct {
	Line uint64 // from 1
	Time string // as the log writes it, "" where it does not
}

// Symptom is what happened to one subject, counted.
type Symptom struct {
	Kind    Kind
	Layer   string // libata, scsi, block, nvme, usb, uas, mpt3sas, ...: who says so
	Op      string // read, write, flush, discard, ...; "" unknown
	Subject Subject
	Count   uint64
	// Sizes of the commands, largest first; Unlisted counts those of
	// further sizes, where there are very many.
	Sizes             []Size
	Unlisted          uint64
	Largest, Smallest Size // without a count; of Unlisted too
	// Incidents are the largest command of each incident, counted. When one of
	// several queued commands hangs, libata reports all of them as failed, and
	// only the largest tells about the size. Elsewhere an incident is a command.
	Incidents []Size
	LBA       uint64 // of the largest command, in logical blocks (of block: 512-byte sectors)
	HasLBA    bool
	Limit     uint64 // OverMaxSize: what the path takes, 512-byte sectors
	Detail    string // Quirk: which, as the kernel names them
	First     Position
	Last      Position
	Sample    string // the kernel's words of the largest command, or of the first
	open      *incident
}

// ATADevice is a device of libata as the log of one boot found it, with the
// quirks that libata's own table has for it.
type ATADevice struct {
	Name            string // ata1.00
	Model, Firmware string // IDENTIFY DEVICE strings, trimmed
	// Kernel is the line by which that boot started, "" where the log does not
	// have it; Boot counts from 1.
	Kernel string
	Boot   int
	// Found: the line is there that says what the device is. Kernels that tell
	// quirks (6.12 and later) tell them before it.
	Found bool
	// Listed: a line tells the quirks; Quirks are the kernel's words for them
	// (drivers/ata/libata-core.c, ata_quirk_names). Cut: the line was too long.
	Listed, Cut bool
	Quirks      []string
	At          Position // of the line that tells them, else of the one that found the device
	Sample      string
	// Alone: no other device was on its port, whose line could stand for it.
	Alone bool
}

// Log is what was read.
type Log struct {
	Lines    uint64
	Known    uint64 // lines that this package understands
	Boots    int    // starts of a kernel seen in it, at least 1
	Symptoms []Symptom
	// ATA are the devices that libata found, boot by boot; Kernel is the line by
	// which the last boot started, "" where the log does not have it.
	ATA    []ATADevice
	Kernel string
	// Twins counts, by Subject.Identity, at how many addresses of one boot the
	// log has seen it, where that is more than one.
	Twins map[string]int
	// Dropped counts lines that were understood and not kept, since there are
	// too many different symptoms.
	Dropped uint64
	Cut     uint64 // lines of which only the start was read
}

// Bounds of what is kept.
const (
	maxLine     = 8 << 10 // CONSOLE_EXT_LOG_MAX, kernel/printk
	maxSample   = 320
	maxSymptoms = 4096
	maxNames    = 32768
	maxName     = 64
	maxSizes    = 1024  // different sizes of one symptom,
	maxAllSizes = 65536 // and of all
	maxPending  = 256
	maxDevices  = 8192 // of libata, in all boots
	maxBanner   = 512
	staleLines  = 64 // lines after which a command's other lines do not come any more
)

// ErrCompressed is the error for a log that is compressed.
var ErrCompressed = errors.New("the log is compressed")

// Read reads a log to its end. Its error is that of r, or ErrCompressed; what
// was read before is returned with it.
func Read(r io.Reader) (*Log, error) {
	p := newParser()
	br := bufio.NewReaderSize(r, 64<<10)
	if head, _ := br.Peek(6); compressed(head) {
		return &p.log, ErrCompressed
	}
	var err error
	for {
		var line []byte
		line, err = br.ReadSlice('\n')
		long := errors.Is(err, bufio.ErrBufferFull)
		if len(line) > 0 {
			p.line(line)
		}
		for errors.Is(err, bufio.ErrBufferFull) { // skip what is left of it
			_, err = br.ReadSlice('\n')
		}
		if long && (err == nil || errors.Is(err, io.EOF)) {
			p.log.Cut++
		}
		if err != nil {
			break
		}
	}
	p.finish()
	if !errors.Is(err, io.EOF) {
		return &p.log, fmt.Errorf("line %d: %w", p.log.Lines+1, err)
	}
	return &p.log, nil
}

func compressed(head []byte) bool {
	for _, magic := range []string{"\x1f\x8b", "\x28\xb5\x2f\xfd", "\xfd7zXZ\x00", "BZh"} {
		if bytes.HasPrefix(head, []byte(magic)) {
			return true
		}
	}
	return false
}
