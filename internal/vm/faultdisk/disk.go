// Package faultdisk is a disk in memory that damages data on purpose.
//
// A Disk is an io.ReaderAt and io.WriterAt over a sparse store, with the
// other requests a block device knows: flush, trim and write zeroes. Each
// request passes a list of faults. A Fault pairs a condition (When) with a
// damage (Do); both are plain functions over the request, so a test can
// write its own:
//
//	d := faultdisk.New(1<<30, faultdisk.Options{Faults: []faultdisk.Fault{{
//		Name: "one byte past 512 KiB",
//		When: faultdisk.All(faultdisk.Is(faultdisk.Write), faultdisk.LongerThan(512<<10)),
//		Do:   faultdisk.Flip(512 << 10),
//	}}})
//
// Every request is kept in a log, with the faults that fired, so a test can
// prove what reached the device. What is random comes from Options.Seed.
//
// Package nbd serves a Disk to a virtual machine; in a fast test it stands in
// for a device by itself.
package faultdisk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// SectorBytes is the unit of sectors throughout this package, whatever block
// size the device in front of the disk claims.
const SectorBytes = 512

// Op is the kind of a request.
type Op uint8

// The requests of a block device.
const (
	Read Op = iota
	Write
	Flush
	Trim
	WriteZeroes
)

func (op Op) String() string {
	names := [...]string{"read", "write", "flush", "trim", "write-zeroes"}
	if int(op) < len(names) {
		return names[op]
	}
	return fmt.Sprintf("op(%d)", uint8(op))
}

// A Request is one request as it arrived, before any fault changed it.
type Request struct {
	Op     Op
	Offset int64 // bytes
	Length int   // bytes
	// Seq counts all requests of the disk and Nth those of this Op, both
	// from 1 in order of arrival.
	Seq, Nth int
	// Fired names the faults that acted, in order, and Err is what the
	// request was answered with. Both are set only in the log.
	Fired []string
	Err   error
}

func (r Request) String() string {
	s := fmt.Sprintf("%s %d+%d", r.Op, r.Offset, r.Length)
	if len(r.Fired) > 0 {
		s += fmt.Sprintf(" %q", r.Fired)
	}
	if r.Err != nil {
		s += ": " + r.Err.Error()
	}
	return s
}

// Options are what a Disk starts with.
type Options struct {
	Faults []Fault
	// Seed feeds Probability and Torn. 0 takes a seed from the clock; a test
	// that fails must print Seed() to be repeatable.
	Seed uint64
	// VolatileCache holds writes back until a Flush, as a drive with a write
	// cache does. PowerCut then loses them.
	VolatileCache bool
	// KeepPrevious keeps, for each sector, the content before the last write
	// to it. The Stale fault on a read needs it.
	KeepPrevious bool
}

// A Disk is safe for concurrent use.
type Disk struct {
	size  int64
	seed  uint64
	cache bool
	prev  bool

	mu     sync.Mutex // guards all below
	stable store
	dirty  map[int64][]byte // sector -> content not yet flushed
	old    map[int64][]byte // sector -> content before its last write
	faults []Fault
	log    []Request
	noLog  bool
	seq    int
	nth    [WriteZeroes + 1]int
	rng    *rand.Rand
	done   chan struct{}
	closed bool
}

// New returns an empty disk of size bytes, which reads as zeros.
func New(size int64, o Options) *Disk {
	seed := o.Seed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	return &Disk{
		size: size, seed: seed, cache: o.VolatileCache, prev: o.KeepPrevious,
		stable: store{}, dirty: map[int64][]byte{}, old: map[int64][]byte{},
		faults: slices.Clone(o.Faults),
		rng:    rand.New(rand.NewPCG(seed, seed)),
		done:   make(chan struct{}),
	}
}

// Size returns the capacity in bytes.
func (d *Disk) Size() int64 { return d.size }

// Seed returns the seed in use, to be logged by the test.
func (d *Disk) Seed() uint64 { return d.seed }

// SetFaults replaces the faults. Requests already waiting in one stay there.
func (d *Disk) SetFaults(f ...Fault) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults = slices.Clone(f)
}

// Log returns the requests that were answered, in order of completion. A
// request that still hangs is not in it.
func (d *Disk) Log() []Request {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.log)
}

// KeepNoLog ends the log, for tests with more requests than they look at.
func (d *Disk) KeepNoLog() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.noLog, d.log = true, nil
}

// ResetLog empties the log; the counts behind Seq and Nth go on.
func (d *Disk) ResetLog() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.log = nil
}

// Largest returns the length in bytes of the longest request of kind op in
// the log, and how many there were of that kind.
func (d *Disk) Largest(op Op) (bytes, count int) {
	for _, r := range d.Log() {
		if r.Op == op {
			bytes = max(bytes, r.Length)
			count++
		}
	}
	return bytes, count
}

// Close ends every wait of a Hang or Delay; their requests, and all later
// ones, fail with fs.ErrClosed.
func (d *Disk) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.closed = true
		close(d.done)
	}
	return nil
}

// PowerCut drops what a volatile cache still holds.
func (d *Disk) PowerCut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dirty = map[int64][]byte{}
}

// ReadAt implements io.ReaderAt. A request reaching past the end is refused
// whole with io.EOF.
func (d *Disk) ReadAt(p []byte, off int64) (int, error) {
	if err := d.do(Read, off, len(p), p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// WriteAt implements io.WriterAt. p is not kept and not changed.
func (d *Disk) WriteAt(p []byte, off int64) (int, error) {
	if err := d.do(Write, off, len(p), p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush makes what was written survive a PowerCut.
func (d *Disk) Flush() error { return d.do(Flush, 0, 0, nil) }

// Trim discards a range, which reads as zeros afterwards.
func (d *Disk) Trim(off int64, n int) error { return d.do(Trim, off, n, nil) }

// WriteZeroes zeroes a range without data.
func (d *Disk) WriteZeroes(off int64, n int) error { return d.do(WriteZeroes, off, n, nil) }

// ErrRange is the answer to a request that is not within the disk.
var ErrRange = errors.New("request reaches past the end of the disk")

func (d *Disk) do(op Op, off int64, n int, data []byte) error {
	if off < 0 || int64(n) > d.size-off {
		if op == Read {
			return io.EOF
		}
		return ErrRange
	}
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return fs.ErrClosed
	}
	d.seq++
	d.nth[op]++
	t := &Transfer{
		Request: Request{Op: op, Offset: off, Length: n, Seq: d.seq, Nth: d.nth[op]},
		At:      off, Data: data, disk: d,
	}
	// Conditions are evaluated here, in order of arrival and under the lock,
	// so that Nth and Probability give the same answers for the same seed.
	var act []Fault
	for _, f := range d.faults {
		if f.When == nil || f.When(t.Request, d.rng) {
			act = append(act, f)
		}
	}
	d.mu.Unlock()

	if op == Write && len(act) > 0 {
		t.Data = slices.Clone(data) // the caller's stays as it is
	}
	var err error
	for _, f := range act {
		t.Fired = append(t.Fired, f.Name)
		if err = f.Do(t); err != nil {
			break
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil && d.closed {
		err = fs.ErrClosed
	}
	if err == nil {
		t.perform()
	}
	r := t.Request
	r.Err = err
	if !d.noLog {
		d.log = append(d.log, r)
	}
	return err
}

// get and put work on the disk as its user sees it, cache included.
func (d *Disk) get(p []byte, off int64) {
	d.stable.readAt(p, off)
	if len(d.dirty) == 0 {
		return
	}
	d.sectors(off, len(p), func(sector int64, in, at, n int) {
		if c, ok := d.dirty[sector]; ok {
			copy(p[at:at+n], c[in:])
		}
	})
}

func (d *Disk) put(p []byte, off int64) {
	off, p = d.clamp(off, p)
	if d.prev {
		d.sectors(off, len(p), func(sector int64, _, _, _ int) {
			c := make([]byte, SectorBytes)
			d.get(c, sector*SectorBytes)
			d.old[sector] = c
		})
	}
	if !d.cache {
		d.stable.writeAt(p, off)
		return
	}
	d.sectors(off, len(p), func(sector int64, in, at, n int) {
		c, ok := d.dirty[sector]
		if !ok {
			c = make([]byte, SectorBytes)
			d.stable.readAt(c, sector*SectorBytes)
			d.dirty[sector] = c
		}
		copy(c[in:], p[at:at+n])
	})
}

// previous fills p with the content before the last write of each sector.
func (d *Disk) previous(p []byte, off int64) {
	d.get(p, off)
	d.sectors(off, len(p), func(sector int64, in, at, n int) {
		if c, ok := d.old[sector]; ok {
			copy(p[at:at+n], c[in:])
		}
	})
}

// clamp cuts what a misplaced write would put outside the disk.
func (d *Disk) clamp(off int64, p []byte) (int64, []byte) {
	if off < 0 {
		p, off = p[min(int64(len(p)), -off):], 0
	}
	if room := max(0, d.size-off); int64(len(p)) > room {
		p = p[:room]
	}
	return off, p
}

// sectors calls f for each sector that [off, off+n) touches: in is the offset
// in the sector, at the offset in the request.
func (d *Disk) sectors(off int64, n int, f func(sector int64, in, at, n int)) {
	for at := 0; at < n; {
		pos := off + int64(at)
		in := int(pos % SectorBytes)
		step := min(SectorBytes-in, n-at)
		f(pos/SectorBytes, in, at, step)
		at += step
	}
}

func (d *Disk) flush() {
	for sector, c := range d.dirty {
		d.stable.writeAt(c, sector*SectorBytes)
	}
	d.dirty = map[int64][]byte{}
}

// store is sparse memory: chunks appear when something is written to them.
type store map[int64][]byte

const chunkBytes = 64 << 10

func (s store) readAt(p []byte, off int64) {
	for len(p) > 0 {
		in := off % chunkBytes
		n := min(int64(len(p)), chunkBytes-in)
		if c, ok := s[off/chunkBytes]; ok {
			copy(p[:n], c[in:])
		} else {
			clear(p[:n])
		}
		p, off = p[n:], off+n
	}
}

func (s store) writeAt(p []byte, off int64) {
	for len(p) > 0 {
		in := off % chunkBytes
		n := min(int64(len(p)), chunkBytes-in)
		c, ok := s[off/chunkBytes]
		if !ok {
			c = make([]byte, chunkBytes)
			s[off/chunkBytes] = c
		}
		copy(c[in:], p[:n])
		p, off = p[n:], off+n
	}
}
