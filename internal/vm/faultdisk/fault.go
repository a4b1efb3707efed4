package faultdisk

import (
	"io/fs"
	"math/rand/v2"
	"slices"
	"syscall"
	"time"
)

// A Fault does Do to every request for which When holds. A nil When always
// holds.
type Fault struct {
	Name string
	When When
	Do   Action
}

// When decides on the request alone. rng is the disk's seeded generator, for
// conditions that are random.
type When func(r Request, rng *rand.Rand) bool

// Is holds for requests of one of the given kinds.
func Is(ops ...Op) When {
	return func(r Request, _ *rand.Rand) bool { return slices.Contains(ops, r.Op) }
}

// LongerThan holds for requests of more than n bytes.
func LongerThan(n int) When {
	return func(r Request, _ *rand.Rand) bool { return r.Length > n }
}

// Exactly holds for requests of n bytes.
func Exactly(n int) When {
	return func(r Request, _ *rand.Rand) bool { return r.Length == n }
}

// Unaligned holds for requests that do not start and end on a multiple of n
// bytes.
func Unaligned(n int) When {
	return func(r Request, _ *rand.Rand) bool { return r.Offset%int64(n) != 0 || r.Length%n != 0 }
}

// Touches holds for requests that share a byte with [off, off+n).
func Touches(off, n int64) When {
	return func(r Request, _ *rand.Rand) bool { return r.Offset < off+n && off < r.Offset+int64(r.Length) }
}

// Nth holds for the nth request of its kind, counted from 1.
func Nth(n int) When {
	return func(r Request, _ *rand.Rand) bool { return r.Nth == n }
}

// Every holds for each nth request of its kind.
func Every(n int) When {
	return func(r Request, _ *rand.Rand) bool { return r.Nth%n == 0 }
}

// Probability holds with probability p.
func Probability(p float64) When {
	return func(_ Request, rng *rand.Rand) bool { return rng.Float64() < p }
}

// All holds when every one of ws does. They are asked in order and the first
// that does not hold ends it, so put Probability last.
func All(ws ...When) When {
	return func(r Request, rng *rand.Rand) bool {
		for _, w := range ws {
			if !w(r, rng) {
				return false
			}
		}
		return true
	}
}

// Not holds when w does not.
func Not(w When) When {
	return func(r Request, rng *rand.Rand) bool { return !w(r, rng) }
}

// A Transfer is a request on its way to the store, for an Action to change.
type Transfer struct {
	Request
	// At is where the data really goes to or comes from; it starts as Offset.
	At int64
	// Data is what a write will store: a copy of the caller's, free to be
	// changed or replaced. For a read it is the caller's buffer, still
	// unfilled; see AfterRead.
	Data []byte
	// Dropped acknowledges the request and does nothing. A dropped read
	// returns zeros.
	Dropped bool

	disk  *Disk
	place func() // replaces the plain copy between Data and the store
	after []func(p []byte)
}

// AfterRead has f change the data of a read once it is there.
func (t *Transfer) AfterRead(f func(p []byte)) { t.after = append(t.after, f) }

// wait returns false when the disk was closed meanwhile.
func (t *Transfer) wait(long time.Duration, release <-chan struct{}) bool {
	timer := time.NewTimer(long)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-release:
	case <-t.disk.done:
		return false
	}
	return true
}

// perform is called with the disk locked.
func (t *Transfer) perform() {
	d := t.disk
	switch {
	case t.Op == Flush:
		if !t.Dropped {
			d.flush()
		}
	case t.Op == Trim || t.Op == WriteZeroes:
		if !t.Dropped {
			d.put(make([]byte, t.Length), t.At)
		}
	case t.Op == Read:
		switch {
		case t.Dropped:
			clear(t.Data)
		case t.place != nil:
			t.place()
		default:
			d.get(t.Data, t.At)
		}
		for _, f := range t.after {
			f(t.Data)
		}
	case t.Dropped:
	case t.place != nil:
		t.place()
	default:
		d.put(t.Data, t.At)
	}
}

// An Action damages one request. An error it returns is the request's answer,
// and nothing is then transferred.
type Action func(t *Transfer) error

// damage applies f to a write's data before, and a read's data after, the
// transfer.
func damage(f func(p []byte)) Action {
	return func(t *Transfer) error {
		switch t.Op {
		case Write:
			f(t.Data)
		case Read:
			t.AfterRead(f)
		}
		return nil
	}
}

// Flip inverts one bit of the byte at the given place in the transfer. A
// shorter transfer is left alone.
func Flip(at int) Action {
	return damage(func(p []byte) {
		if at < len(p) {
			p[at] ^= 0x01
		}
	})
}

// ZeroTail replaces all from the given place on with zeros.
func ZeroTail(from int) Action {
	return damage(func(p []byte) { clear(p[min(from, len(p)):]) })
}

// Drop acknowledges the request and forgets it: a lost write, a flush that
// flushes nothing, a read that leaves the buffer empty.
func Drop() Action {
	return func(t *Transfer) error { t.Dropped = true; return nil }
}

// Truncate transfers the first n bytes only. Behind them the old data stays on
// the disk, or, for a read, zeros in the buffer.
func Truncate(n int) Action {
	return func(t *Transfer) error {
		switch t.Op {
		case Write:
			t.Data = t.Data[:min(n, len(t.Data))]
		case Read:
			t.AfterRead(func(p []byte) { clear(p[min(n, len(p)):]) })
		}
		return nil
	}
}

// Misplace moves the transfer by delta bytes. What would fall outside the
// disk is lost.
func Misplace(delta int64) Action {
	return func(t *Transfer) error {
		t.At += delta
		if t.Op == Read {
			t.At = min(max(t.At, 0), t.disk.size-int64(t.Length))
		}
		return nil
	}
}

// Stale answers a read with what was there before the last write of each
// sector (Options.KeepPrevious), and a write by keeping the old data.
func Stale() Action {
	return func(t *Transfer) error {
		switch t.Op {
		case Write:
			t.Dropped = true
		case Read:
			t.place = func() { t.disk.previous(t.Data, t.At) }
		}
		return nil
	}
}

// A Part is a piece of a write and where it goes, in bytes.
type Part struct {
	Data []byte
	At   int64
}

// Split has a write store the parts in place of its data, in order. It is
// for faults that a test makes up.
func Split(t *Transfer, parts []Part) error {
	t.place = func() {
		for _, p := range parts {
			t.disk.put(p.Data, p.At)
		}
	}
	return nil
}

// Torn writes some units of a request and leaves the others as they were, as
// a drive may that loses power: it owes no order within a request. Which ones
// is random; of two or more units at least one lands and one does not.
func Torn(unit int) Action {
	return func(t *Transfer) error {
		if t.Op != Write {
			return nil
		}
		units := (len(t.Data) + unit - 1) / unit
		if units < 2 {
			return nil
		}
		t.place = func() { // the disk is locked here, which rng needs
			lands := make([]bool, units)
			for i := range lands {
				lands[i] = t.disk.rng.IntN(2) == 0
			}
			in, out := t.disk.rng.IntN(units), t.disk.rng.IntN(units-1)
			if out >= in {
				out++
			}
			lands[in], lands[out] = true, false
			for i, ok := range lands {
				if ok {
					t.disk.put(t.Data[i*unit:min((i+1)*unit, len(t.Data))], t.At+int64(i*unit))
				}
			}
		}
		return nil
	}
}

// Wrap makes sector i of a transfer use the place of sector i mod n, as a
// device does whose address counter is too narrow; 256 is that of 28-bit ATA.
func Wrap(sectors int) Action {
	n := sectors * SectorBytes
	return func(t *Transfer) error {
		if len(t.Data) <= n {
			return nil
		}
		t.place = func() {
			for at := 0; at < len(t.Data); at += n {
				p := t.Data[at:min(at+n, len(t.Data))]
				if t.Op == Read {
					t.disk.get(p, t.At)
				} else {
					t.disk.put(p, t.At)
				}
			}
		}
		return nil
	}
}

// Hang holds the request until release is closed, but no longer than long,
// and then lets it through. It is finite on purpose: a request that QEMU never
// gets answered can stop the whole guest. release may be nil.
func Hang(long time.Duration, release <-chan struct{}) Action {
	return func(t *Transfer) error {
		if !t.wait(long, release) {
			return fs.ErrClosed
		}
		return nil
	}
}

// Delay makes the request take that much longer.
func Delay(by time.Duration) Action { return Hang(by, nil) }

// Fail answers with an error number: EIO for a medium error, ENOSPC for a
// backend that is full.
func Fail(errno syscall.Errno) Action {
	return func(*Transfer) error { return errno }
}
