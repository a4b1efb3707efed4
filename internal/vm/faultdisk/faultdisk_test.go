package faultdisk

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
)

const size = 4 << 20

// pattern is n bytes in which every sector holds tag and its own number.
func pattern(off int64, n int, tag byte) []byte {
	p := make([]byte, n)
	for at := 0; at < n; at += SectorBytes {
		binary.BigEndian.PutUint64(p[at:], uint64(off+int64(at))/SectorBytes)
		p[at+8] = tag
		p[at+SectorBytes-1] = tag
	}
	return p
}

func mustWrite(t *testing.T, d *Disk, off int64, p []byte) {
	t.Helper()
	kept := slices.Clone(p)
	if n, err := d.WriteAt(p, off); err != nil || n != len(p) {
		t.Fatalf("WriteAt(%d bytes, %d) = %d, %v", len(p), off, n, err)
	}
	if !bytes.Equal(p, kept) {
		t.Error("WriteAt changed the caller's buffer")
	}
}

func mustRead(t *testing.T, d *Disk, off int64, n int) []byte {
	t.Helper()
	p := bytes.Repeat([]byte{0xee}, n)
	if got, err := d.ReadAt(p, off); err != nil || got != n {
		t.Fatalf("ReadAt(%d bytes, %d) = %d, %v", n, off, got, err)
	}
	return p
}

// differing returns the places of the bytes that differ.
func differing(a, b []byte) []int {
	var out []int
	for i := range a {
		if a[i] != b[i] {
			out = append(out, i)
		}
	}
	return out
}

func TestSoundDisk(t *testing.T) {
	d := New(size, Options{})
	if d.Size() != size {
		t.Errorf("Size() = %d, want %d", d.Size(), size)
	}
	if got := mustRead(t, d, 0, 1<<20); !bytes.Equal(got, make([]byte, 1<<20)) {
		t.Error("a new disk does not read as zeros")
	}
	// Across chunks, and not aligned to anything.
	want := pattern(0, 300<<10, 'a')
	mustWrite(t, d, 100_001, want)
	if got := mustRead(t, d, 100_001, len(want)); !bytes.Equal(got, want) {
		t.Errorf("bytes %v differ", differing(got, want)[:1])
	}
	if err := d.Trim(100_001, 1000); err != nil {
		t.Fatal(err)
	}
	if err := d.WriteZeroes(110_001, 1000); err != nil {
		t.Fatal(err)
	}
	clear(want[:1000])
	clear(want[10_000:11_000])
	if got := mustRead(t, d, 100_001, len(want)); !bytes.Equal(got, want) {
		t.Error("trim or write zeroes left data, or took too much")
	}
	if _, err := d.ReadAt(make([]byte, 2), size-1); !errors.Is(err, io.EOF) {
		t.Errorf("reading past the end: %v, want io.EOF", err)
	}
	if _, err := d.WriteAt(make([]byte, 2), size-1); !errors.Is(err, ErrRange) {
		t.Errorf("writing past the end: %v, want ErrRange", err)
	}
	if _, err := d.WriteAt(nil, -1); !errors.Is(err, ErrRange) {
		t.Errorf("writing before the start: %v, want ErrRange", err)
	}
}

func TestFaultsOnWrite(t *testing.T) {
	const off, n = 1 << 20, 512 << 10
	before, after := pattern(off, n, 'b'), pattern(off, n, 'a')
	for _, c := range []struct {
		name string
		do   Action
		want func() []byte
	}{
		{"flip", Flip(4097), func() []byte { p := slices.Clone(after); p[4097] ^= 1; return p }},
		{"flip past the end", Flip(n), func() []byte { return after }},
		{"drop", Drop(), func() []byte { return before }},
		{"stale", Stale(), func() []byte { return before }},
		{"truncate", Truncate(1000), func() []byte { return append(slices.Clone(after[:1000]), before[1000:]...) }},
		{"truncate past the end", Truncate(n + 1), func() []byte { return after }},
		{"zero tail", ZeroTail(1000), func() []byte { return append(slices.Clone(after[:1000]), make([]byte, n-1000)...) }},
		{"misplace", Misplace(512), func() []byte { return append(slices.Clone(before[:512]), after[:n-512]...) }},
		{"wrap at 256 sectors", Wrap(256), func() []byte {
			// The last 128 KiB of four landed over the first.
			return append(slices.Clone(after[n-128<<10:]), before[128<<10:]...)
		}},
		{"delay", Delay(time.Millisecond), func() []byte { return after }},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := New(size, Options{})
			mustWrite(t, d, off, before)
			d.SetFaults(Fault{Name: c.name, When: Is(Write), Do: c.do})
			mustWrite(t, d, off, after)
			d.SetFaults()
			want := c.want()
			if got := mustRead(t, d, off, n); !bytes.Equal(got, want) {
				t.Errorf("%d bytes differ from what the fault leaves, the first at %d", len(differing(got, want)), differing(got, want)[0])
			}
			log := d.Log()
			if r := log[1]; !slices.Equal(r.Fired, []string{c.name}) || r.Op != Write || r.Offset != off || r.Length != n {
				t.Errorf("log says %v, want the write as it was sent, and the fault", r)
			}
		})
	}
}

func TestFaultsOnRead(t *testing.T) {
	const off, n = 1 << 20, 512 << 10
	older, data := pattern(off, n, 'o'), pattern(off, n, 'd')
	for _, c := range []struct {
		name string
		do   Action
		want func() []byte
	}{
		{"flip", Flip(4097), func() []byte { p := slices.Clone(data); p[4097] ^= 1; return p }},
		{"drop", Drop(), func() []byte { return make([]byte, n) }},
		{"stale", Stale(), func() []byte { return older }},
		{"truncate", Truncate(1000), func() []byte { return append(slices.Clone(data[:1000]), make([]byte, n-1000)...) }},
		{"zero tail", ZeroTail(1000), func() []byte { return append(slices.Clone(data[:1000]), make([]byte, n-1000)...) }},
		{"misplace", Misplace(512), func() []byte { return append(slices.Clone(data[512:]), make([]byte, 512)...) }},
		{"misplace before the start", Misplace(-size), func() []byte { return make([]byte, n) }},
		{"wrap at 256 sectors", Wrap(256), func() []byte { return bytes.Repeat(data[:128<<10], 4) }},
		{"torn is for writes", Torn(512), func() []byte { return data }},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := New(size, Options{KeepPrevious: true})
			mustWrite(t, d, off, older)
			mustWrite(t, d, off, data)
			d.SetFaults(Fault{Name: c.name, When: Is(Read), Do: c.do})
			want := c.want()
			if got := mustRead(t, d, off, n); !bytes.Equal(got, want) {
				t.Errorf("%d bytes differ from what the fault gives, the first at %d", len(differing(got, want)), differing(got, want)[0])
			}
			d.SetFaults()
			if got := mustRead(t, d, off, n); !bytes.Equal(got, data) {
				t.Error("a fault on a read changed the disk")
			}
		})
	}
}

func TestMisplaceOffTheDisk(t *testing.T) {
	for _, delta := range []int64{-size, size, -256, size - 256} {
		d := New(size, Options{Faults: []Fault{{Name: "misplace", When: Is(Write), Do: Misplace(delta)}}})
		mustWrite(t, d, 0, pattern(0, 1024, 'a')) // must not panic
	}
}

func TestTornWrite(t *testing.T) {
	const n = 64 * SectorBytes
	before, after := pattern(0, n, 'b'), pattern(0, n, 'a')
	torn := func(seed uint64) []byte {
		d := New(size, Options{Seed: seed})
		mustWrite(t, d, 0, before)
		d.SetFaults(Fault{Name: "torn", Do: Torn(SectorBytes)})
		mustWrite(t, d, 0, after)
		d.SetFaults()
		return mustRead(t, d, 0, n)
	}
	for seed := uint64(1); seed < 50; seed++ {
		got := torn(seed)
		landed, kept := 0, 0
		for at := 0; at < n; at += SectorBytes {
			switch s := got[at : at+SectorBytes]; {
			case bytes.Equal(s, after[at:at+SectorBytes]):
				landed++
			case bytes.Equal(s, before[at:at+SectorBytes]):
				kept++
			default:
				t.Fatalf("seed %d: sector %d is neither old nor new", seed, at/SectorBytes)
			}
		}
		if landed == 0 || kept == 0 {
			t.Errorf("seed %d: %d sectors new and %d old, want some of both", seed, landed, kept)
		}
	}
	if !bytes.Equal(torn(7), torn(7)) {
		t.Error("one seed tore in two ways")
	}
	if bytes.Equal(torn(7), torn(8)) {
		t.Error("two seeds tore in one way")
	}
}

func TestConditions(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	w := Request{Op: Write, Offset: 4096, Length: 8192, Nth: 6}
	for _, c := range []struct {
		name string
		when When
		want bool
	}{
		{"Is", Is(Read, Write), true},
		{"Is another", Is(Read), false},
		{"LongerThan less", LongerThan(8191), true},
		{"LongerThan the same", LongerThan(8192), false},
		{"Exactly", Exactly(8192), true},
		{"Exactly another", Exactly(4096), false},
		{"Unaligned to 4096", Unaligned(4096), false},
		{"Unaligned to 8192", Unaligned(8192), true},
		{"Touches the last byte", Touches(12287, 1), true},
		{"Touches behind", Touches(12288, 10), false},
		{"Touches before", Touches(0, 4096), false},
		{"Touches the first byte", Touches(0, 4097), true},
		{"Nth", Nth(6), true},
		{"Nth another", Nth(5), false},
		{"Every third", Every(3), true},
		{"Every fourth", Every(4), false},
		{"All", All(Is(Write), Nth(6)), true},
		{"All but one", All(Is(Write), Nth(5)), false},
		{"Not", Not(Nth(5)), true},
		{"Probability 0", Probability(0), false},
		{"Probability 1", Probability(1), true},
	} {
		if got := c.when(w, rng); got != c.want {
			t.Errorf("%s of %v: %v, want %v", c.name, w, got, c.want)
		}
	}
}

func TestSeedRepeats(t *testing.T) {
	fired := func(seed uint64) []int {
		d := New(size, Options{Seed: seed, Faults: []Fault{{Name: "p", When: Probability(0.2), Do: Drop()}}})
		for i := range 200 {
			mustWrite(t, d, int64(i)*512, make([]byte, 512))
		}
		var out []int
		for _, r := range d.Log() {
			if len(r.Fired) > 0 {
				out = append(out, r.Seq)
			}
		}
		return out
	}
	one, same, other := fired(42), fired(42), fired(43)
	if !slices.Equal(one, same) {
		t.Errorf("seed 42 fired at %v and at %v", one, same)
	}
	if slices.Equal(one, other) {
		t.Error("seeds 42 and 43 fired at the same requests")
	}
	if len(one) < 20 || len(one) > 70 {
		t.Errorf("probability 0.2 fired %d of 200 times", len(one))
	}
	if New(size, Options{}).Seed() == 0 {
		t.Error("a disk without a seed given has seed 0, which cannot be repeated")
	}
}

func TestErrorsAndCounts(t *testing.T) {
	d := New(size, Options{Faults: []Fault{
		{Name: "second write", When: All(Is(Write), Nth(2)), Do: Fail(syscall.ENOSPC)},
		{Name: "lost flush", When: Is(Flush), Do: Drop()},
	}})
	mustWrite(t, d, 0, make([]byte, 512))
	mustRead(t, d, 0, 512)
	if _, err := d.WriteAt(bytes.Repeat([]byte{1}, 512), 0); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("second write: %v, want ENOSPC", err)
	}
	if got := mustRead(t, d, 0, 512); got[0] != 0 {
		t.Error("a write that failed has written")
	}
	if err := d.Flush(); err != nil {
		t.Error(err)
	}
	log := d.Log()
	if len(log) != 5 {
		t.Fatalf("%d requests in the log, want 5: %v", len(log), log)
	}
	if r := log[2]; r.Seq != 3 || r.Nth != 2 || !errors.Is(r.Err, syscall.ENOSPC) {
		t.Errorf("log of the second write: %+v", r)
	}
	if bytes, count := d.Largest(Write); bytes != 512 || count != 2 {
		t.Errorf("Largest(Write) = %d, %d; want 512, 2", bytes, count)
	}
	d.ResetLog()
	if len(d.Log()) != 0 {
		t.Error("log not empty after ResetLog")
	}
}

func TestHangIsFinite(t *testing.T) {
	release := make(chan struct{})
	d := New(size, Options{Faults: []Fault{{Name: "hang", When: Touches(0, 512), Do: Hang(time.Hour, release)}}})
	done := make(chan error, 1)
	go func() {
		_, err := d.WriteAt(make([]byte, 512), 0)
		done <- err
	}()
	mustWrite(t, d, 4096, make([]byte, 512)) // others go on
	select {
	case err := <-done:
		t.Fatalf("the write that hangs came back: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	close(release)
	if err := <-done; err != nil {
		t.Errorf("released: %v", err)
	}
	d.SetFaults(Fault{Name: "short", Do: Hang(time.Millisecond, nil)})
	mustWrite(t, d, 0, make([]byte, 512))

	// Closing the disk ends every wait.
	d.SetFaults(Fault{Name: "hang", Do: Hang(time.Hour, nil)})
	go func() {
		_, err := d.ReadAt(make([]byte, 512), 0)
		done <- err
	}()
	time.Sleep(5 * time.Millisecond)
	d.Close()
	d.Close()
	if err := <-done; !errors.Is(err, fs.ErrClosed) {
		t.Errorf("closed while hanging: %v, want fs.ErrClosed", err)
	}
	if _, err := d.ReadAt(make([]byte, 512), 0); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("after Close: %v, want fs.ErrClosed", err)
	}
}

func TestVMPowerCut(t *testing.T) {
	for _, cache := range []bool{false, true} {
		d := New(size, Options{VolatileCache: cache})
		flushed, late := pattern(0, 4096, 'f'), pattern(0, 4096, 'l')
		mustWrite(t, d, 100, flushed)
		if err := d.Flush(); err != nil {
			t.Fatal(err)
		}
		mustWrite(t, d, 2000, late)
		want := append(slices.Clone(flushed[:1900]), late...)
		if got := mustRead(t, d, 100, len(want)); !bytes.Equal(got, want) {
			t.Errorf("cache %v: what was written does not read back before the cut", cache)
		}
		d.PowerCut()
		if cache {
			want = append(slices.Clone(flushed), make([]byte, 1900)...)
		}
		if got := mustRead(t, d, 100, len(want)); !bytes.Equal(got, want) {
			t.Errorf("cache %v: after the cut, the first difference is at %d", cache, differing(got, want)[0])
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	d := New(size, Options{KeepPrevious: true, VolatileCache: true, Faults: []Fault{{Name: "p", When: Probability(0.1), Do: Torn(512)}}})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			p := make([]byte, 4096)
			for j := range 50 {
				_, _ = d.WriteAt(p, int64((i*50+j)%64)*4096)
				_, _ = d.ReadAt(p, int64(j%64)*4096)
				_ = d.Flush()
				d.Largest(Write)
			}
		}()
	}
	wg.Wait()
	seen := map[int]bool{}
	for _, r := range d.Log() {
		if seen[r.Seq] {
			t.Fatalf("request %d is twice in the log", r.Seq)
		}
		seen[r.Seq] = true
	}
	if len(seen) != 8*50*3 {
		t.Errorf("%d requests in the log, want %d", len(seen), 8*50*3)
	}
}
