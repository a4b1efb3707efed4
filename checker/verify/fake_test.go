package verify

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"

	"github.com/quirkcheck/quirkcheck/internal/vm/faultdisk"
)

// errHang is what a fault of fakeDevice answers to have the command time out.
var errHang = errors.New("no answer")

// fakeDevice is a Device on a faultdisk.Disk. It knows what a disk behind NBD
// cannot: how many commands were sent together, and from what memory.
type fakeDevice struct {
	disk           *faultdisk.Disk
	info           Info
	command, block int // reach in sectors, contiguous
	fragmented     int
	events         []Event
	recovered      int
	buffers        map[string][]byte
	now            time.Time
	afterHang      error // what Recover answers
	depth          int   // commands of the batch under way
	shape          Shape // memory of the command under way
	largestSent    int
	commandsOf     map[int]int // sizes sent on the command path
	stop           func(n int) // called with the number of each batch
	batches        int
}

func newFake(disk *faultdisk.Disk) *fakeDevice {
	return &fakeDevice{
		disk: disk, buffers: map[string][]byte{}, commandsOf: map[int]int{},
		info: Info{Name: "fake", Sectors: uint64(disk.Size()) / SectorBytes, LogicalBlock: 1, PhysicalBlock: 8,
			Usable: []Extent{{0, uint64(disk.Size()) / SectorBytes}}},
		command: 2560, block: 2048, fragmented: 1344, now: time.Unix(1e9, 0),
	}
}

func (f *fakeDevice) Info() Info { return f.info }

func (f *fakeDevice) Reach(p Path, s Shape) Reach {
	n := map[Path]int{PathCommand: f.command, PathBlock: f.block, PathCache: f.block}[p]
	if s == Fragmented {
		return Reach{min(n, f.fragmented), "max_segments"}
	}
	return Reach{n, "max_hw_sectors_kb"}
}

func (f *fakeDevice) Buffer(role string, sectors int, shape Shape) ([]byte, error) {
	k := role + string(shape)
	if len(f.buffers[k]) < sectors*SectorBytes {
		f.buffers[k] = make([]byte, sectors*SectorBytes)
	}
	return f.buffers[k], nil
}

func (f *fakeDevice) shapeOf(p []byte) Shape {
	for k, b := range f.buffers {
		if off := cap(b) - cap(p); off >= 0 && off < len(b) && &b[off] == &p[0] && len(k) > len(Fragmented) && k[len(k)-len(Fragmented):] == string(Fragmented) {
			return Fragmented
		}
	}
	return Contiguous
}

func (f *fakeDevice) Do(ctx context.Context, cmds []Command) []Completion {
	out := make([]Completion, len(cmds))
	f.batches++
	if f.stop != nil {
		f.stop(f.batches)
	}
	for i, c := range cmds {
		f.depth, f.shape = len(cmds), f.shapeOf(c.Data)
		out[i] = f.one(c)
		f.now = f.now.Add(out[i].Latency)
	}
	return out
}

func (f *fakeDevice) one(c Command) Completion {
	o := Completion{Latency: 200 * time.Microsecond, Requests: 1, Largest: c.Sectors()}
	limit := f.Reach(c.Path, f.shape).Sectors
	if c.Path == PathCommand {
		if c.Sectors() > limit {
			o.Err = &Failure{KindNotSent, "EINVAL"}
			return o
		}
		f.commandsOf[c.Sectors()]++
		o.Proof = ProofCommand
	}
	f.largestSent = max(f.largestSent, min(c.Sectors(), limit))
	if c.Path == PathBlock {
		o.Proof = ProofStat
		if c.Sectors() > limit {
			o.Proof, o.Requests, o.Largest = "", (c.Sectors()+limit-1)/limit, limit
		}
	}
	for at := 0; at < len(c.Data); at += limit * SectorBytes {
		p := c.Data[at:min(len(c.Data), at+limit*SectorBytes)]
		off := int64(c.Sector)*SectorBytes + int64(at)
		var err error
		if c.Op == Write {
			_, err = f.disk.WriteAt(p, off)
		} else {
			_, err = f.disk.ReadAt(p, off)
		}
		switch {
		case errors.Is(err, errHang):
			o.Latency = 30 * time.Second
			o.Err = &Failure{KindTimeout, "30 s"}
		case errors.Is(err, syscall.EIO):
			o.Err = &Failure{KindIOError, "MEDIUM ERROR"}
		case err != nil:
			o.Err = &Failure{KindInternal, fmt.Sprintf("%s at %d: %v", c.Op, off, err)}
		}
		if o.Err != nil {
			o.Proof = ""
			return o
		}
	}
	return o
}

func (f *fakeDevice) Flush(context.Context) error { return f.disk.Flush() }

func (f *fakeDevice) Events() []Event {
	e := f.events
	f.events = nil
	return e
}

func (f *fakeDevice) Recover(context.Context) error { f.recovered++; return f.afterHang }

func (f *fakeDevice) clock() time.Time { return f.now }

// hang has the command time out.
func hang(*faultdisk.Transfer) error { return errHang }

// longer holds for reads or writes of more than n sectors.
func longer(op faultdisk.Op, n int) faultdisk.When {
	return faultdisk.All(faultdisk.Is(op), faultdisk.LongerThan(n*SectorBytes))
}

// and adds a condition of the fake's own.
func and(w faultdisk.When, also func() bool) faultdisk.When {
	return func(r faultdisk.Request, rng *rand.Rand) bool { return w(r, rng) && also() }
}
