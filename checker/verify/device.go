package verify

import (
	"context"
	"fmt"
	"time"
)

// SectorBytes is the unit of sectors, LBAs and sizes throughout this package,
// whatever the logical block size of the device.
const SectorBytes = 512

// Op is what a command does.
type Op uint8

// The operations.
const (
	Read Op = iota
	Write
)

func (op Op) String() string {
	if op == Write {
		return "write"
	}
	return "read"
}

// Path is how a command gets to the device.
type Path string

// The paths.
const (
	// PathCommand is one SCSI or NVMe pass-through command, which the kernel
	// neither splits nor merges: exact to the logical block.
	PathCommand Path = "command"
	// PathBlock is one O_DIRECT read or write, which the block layer may
	// split.
	PathBlock Path = "block"
	// PathCache goes through the page cache: a write is followed by a sync, and a
	// read by readahead. It proves no size.
	PathCache Path = "page-cache"
)

// Shape is how the memory of a command lies.
type Shape string

// The shapes.
const (
	Contiguous Shape = "contiguous" // as few segments as can be had: 2 MiB pages
	Fragmented Shape = "fragmented" // one segment a page, in mixed order
)

// A Command is one read or write.
type Command struct {
	Op     Op
	Sector uint64 // from the start of the target
	Data   []byte // from Device.Buffer; whole logical blocks
	Path   Path
	// Unproved says that the size is not under test: no proof is looked for,
	// which costs milliseconds where the stat file is the proof.
	Unproved bool
	// FUA asks the device for the medium, not for its cache (PathCommand
	// only).
	FUA bool
}

// Sectors is the command's size.
func (c Command) Sectors() int { return len(c.Data) / SectorBytes }

// Proof says how it is known what reached the device.
type Proof string

// The proofs, best first. The empty proof is none.
const (
	ProofCommand Proof = "command" // one pass-through command, completed with no residual
	ProofTrace   Proof = "trace"   // the block_rq_issue trace event: one request of that sector and size
	ProofStat    Proof = "stat"    // the device's stat file: as many requests and sectors more as were sent
)

// A Completion is what became of a command.
type Completion struct {
	Latency time.Duration
	// Proof is empty when the command was not shown to have reached the
	// device as exactly one request of its size. Such a size is not reached,
	// whatever the data says.
	Proof Proof
	// Requests and Largest tell what was sent instead, where known.
	Requests int
	Largest  int // sectors
	Err      error
}

// Kind sorts failures and events.
type Kind string

// The kinds of failure.
const (
	// KindNotSent: the host refused the command before the device saw it (too
	// long, too many segments). It says nothing about the device.
	KindNotSent  Kind = "not-sent"
	KindIOError  Kind = "io-error" // the device, or the transport, reported an error
	KindTimeout  Kind = "timeout"  // no answer within the command's time
	KindReset    Kind = "reset"    // answered only after the kernel reset the device or link
	KindShort    Kind = "short"    // completed with a residual
	KindGone     Kind = "gone"     // the device is no longer there
	KindNotOurs  Kind = "not-ours" // another device answers now
	KindInternal Kind = "internal" // this program's own doing
	KindCounter  Kind = "counter"  // Event only: a counter moved that others move too
)

// A Failure is a command's error.
type Failure struct {
	Kind   Kind
	Detail string // sense data, errno: for people
}

func (f *Failure) Error() string { return fmt.Sprintf("%s: %s", f.Kind, f.Detail) }

// An Event is something the kernel or the device's own counters said while
// commands ran.
type Event struct {
	Kind Kind   // KindIOError, KindTimeout, KindReset, KindGone, KindCounter
	Text string // the kernel's line, or the counter with its step
}

// An Extent is a run of sectors of the target.
type Extent struct {
	Sector  uint64 `json:"sector"`
	Sectors uint64 `json:"sectors"`
}

// End is the first sector behind the extent.
func (e Extent) End() uint64 { return e.Sector + e.Sectors }

// Reach is the largest command that can be sent one way.
type Reach struct {
	Sectors int    // 0: this way cannot be used
	Why     string // the bound, or why the way cannot be used
}

// Info is what the engine must know of a device.
type Info struct {
	Name string // for people
	// Sectors is the size of the target, and First the absolute sector where
	// it starts on the whole disk (a partition; 0 for a disk or a file).
	Sectors, First uint64
	// LogicalBlock and PhysicalBlock are in sectors. Commands on PathCommand
	// are exact to the first, on PathBlock to the second.
	LogicalBlock, PhysicalBlock int
	// Usable are the extents the run may write (or, reading only, read), in
	// ascending order, not overlapping.
	Usable []Extent
	// Shared says that others may use the device during the run: a mounted
	// disk, a file's disk.
	Shared bool
	// CacheMiB is the drive's own cache where known, 0 where not.
	CacheMiB int
}

// A Device executes commands. Its methods are called from one goroutine.
type Device interface {
	Info() Info
	// Reach says how large a command may be.
	Reach(path Path, shape Shape) Reach
	// Buffer returns zeroed, page aligned memory that stays valid until Close. The
	// same memory may be returned again for the same role and shape when it is
	// large enough.
	Buffer(role string, sectors int, shape Shape) ([]byte, error)
	// Do sends all commands at once and waits for all. The ranges do not
	// overlap. A cancelled context sends nothing more; commands that are on
	// their way are waited for.
	Do(ctx context.Context, cmds []Command) []Completion
	// Flush empties the device's volatile cache onto the medium.
	Flush(ctx context.Context) error
	// Events returns what was said since the last call.
	Events() []Event
	// Recover waits until the device answers again after a timeout or reset,
	// and makes sure that it is the same one: serial and size.
	Recover(ctx context.Context) error
}
