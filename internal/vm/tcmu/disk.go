// Package tcmu serves SCSI disks whose every answer can be chosen: INQUIRY and
// VPD pages that lie, IDENTIFY DEVICE, sense data, delays.
//
// The kernel's target_core_user module hands the commands of a target device to
// a process, over a ring in shared memory; its tcm_loop module makes that
// device a SCSI disk of the same machine (Linux, Documentation/target/
// tcmu-design.rst). Create sets both up through configfs and serves the ring. It
// runs in the guest, in the agent; the test describes the disk with a Disk, as
// JSON.
//
// The target core keeps REPORT LUNS, reservations and the unit attentions of a
// new disk to itself; all else is answered here. Byte 1 of most CDBs comes
// without its upper three bits, which the core clears.
package tcmu

import (
	"errors"
	"fmt"
	"regexp"
	"time"
)

// MaxHang is how long an answer may take. A command that is never answered
// could not be given up: the target core waits for it, uninterruptibly.
const MaxHang = 20 * time.Second

// A Disk describes a disk and how it answers. What is not said here is answered
// as by a plain SPC-4, SBC-3 disk with no faults, no write cache and no UNMAP.
type Disk struct {
	// Name is the disk's name in the requests about it, of letters, digits
	// and hyphens.
	Name string
	// SizeBytes is the capacity, 64 MiB when 0. The content is kept in
	// memory, where it was written.
	SizeBytes int64
	// BlockBytes is the size of a logical block, 512 when 0.
	BlockBytes int
	// Inquiry is the standard INQUIRY data, as they are; see Inquiry. None
	// are those of "QUIRK", "TCMU disk", "0001".
	Inquiry []byte
	// Serial fills VPD pages 80h and 83h, unless these are in VPD.
	Serial string
	// VPD are vital product data pages as they are sent, with their headers,
	// and whatever these claim. A page that is nil is not there. Page 00h
	// lists those that are there, unless it is given.
	VPD map[byte][]byte
	// Identify are the 512 bytes of IDENTIFY DEVICE for ATA PASS-THROUGH. They
	// also make VPD page 89h, unless it is given. Without them the commands
	// are not known.
	Identify []byte
	// Rules change the answer to some commands. The first that matches counts.
	Rules []Rule
}

// A Rule changes the answer to the commands that begin with Prefix.
type Rule struct {
	Prefix []byte
	// Times is how often it holds; 0 is always.
	Times int
	// Delay is waited before answering.
	Delay time.Duration
	// Hang does not answer until the disk is told to release what hangs, or
	// for MaxHang.
	Hang bool
	// Status is the SCSI status, and Sense goes with it.
	Status byte
	Sense  []byte
	// Data is sent instead of the disk's own data, whatever the allocation
	// length in the command says, as far as the buffer of the command takes
	// it. With nil and a Status of 0 the command is carried out.
	Data []byte
}

var nameOK = regexp.MustCompile(`^[A-Za-z0-9-]{1,32}$`)

const (
	defaultSizeBytes  = 64 << 20
	defaultBlockBytes = 512
	identifyBytes     = 512
	maxSenseBytes     = 96 // TCMU_SENSE_BUFFERSIZE
)

// complete checks a description and fills in what it leaves open.
func (d Disk) complete() (Disk, error) {
	if d.SizeBytes == 0 {
		d.SizeBytes = defaultSizeBytes
	}
	if d.BlockBytes == 0 {
		d.BlockBytes = defaultBlockBytes
	}
	if d.Inquiry == nil {
		d.Inquiry = Inquiry("QUIRK", "TCMU disk", "0001")
	}
	var errs []error
	fault := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("disk %q: "+format, append([]any{d.Name}, args...)...))
	}
	if !nameOK.MatchString(d.Name) {
		fault("a name has letters, digits and hyphens, at most 32")
	}
	if d.BlockBytes < 512 || d.BlockBytes > 4096 || d.BlockBytes&(d.BlockBytes-1) != 0 {
		fault("blocks of %d bytes", d.BlockBytes)
	} else if d.SizeBytes < int64(d.BlockBytes) || d.SizeBytes%int64(d.BlockBytes) != 0 {
		fault("%d bytes are not whole blocks", d.SizeBytes)
	}
	if d.Identify != nil && len(d.Identify) != identifyBytes {
		fault("IDENTIFY DEVICE data of %d bytes", len(d.Identify))
	}
	for i, r := range d.Rules {
		if len(r.Prefix) == 0 {
			fault("rule %d matches everything, LOG SENSE to WRITE", i)
		}
		if r.Delay < 0 || r.Delay > MaxHang {
			fault("rule %d delays by %s", i, r.Delay)
		}
		if len(r.Sense) > maxSenseBytes || len(r.Sense) > 0 && r.Status != CheckCondition {
			fault("rule %d has %d bytes of sense data for status %02xh", i, len(r.Sense), r.Status)
		}
	}
	return d, errors.Join(errs...)
}
