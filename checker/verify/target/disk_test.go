package target

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quirkcheck/quirkcheck/checker/verify"
	"github.com/quirkcheck/quirkcheck/internal/ioctl"
)

// lackDisk ends a test for lack of something that CI has.
func lackDisk(t *testing.T, what string) {
	t.Helper()
	if ci := os.Getenv("CI"); ci != "" && ci != "false" && ci != "0" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// tool runs a program and returns what it printed.
func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		lackDisk(t, name+" is not installed")
	}
	out, err := exec.Command(path, args...).CombinedOutput()
	if err != nil {
		t.Skipf("%s %s: %v: %s", name, strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// loopDisk makes a loop device of a temporary file and returns its name.
func loopDisk(t *testing.T, bytes int64) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, for a loop device")
	}
	image := filepath.Join(t.TempDir(), "image")
	f, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(bytes); err != nil {
		t.Fatal(err)
	}
	node := tool(t, "losetup", "--partscan", "--find", "--show", image)
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", node).CombinedOutput(); err != nil {
			t.Errorf("losetup --detach %s: %v: %s", node, err, out)
		}
	})
	return filepath.Base(node)
}

func openNode(t *testing.T, name string) *os.File {
	t.Helper()
	f, err := os.OpenFile("/dev/"+name, os.O_RDWR|unix.O_EXCL, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func newDisk(t *testing.T, f *os.File, o DiskOptions) *Disk {
	t.Helper()
	d, err := NewDisk(f, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := d.Close(); err != nil {
			t.Errorf("close again: %v", err)
		}
	})
	return d
}

func buffer(t *testing.T, d *Disk, role string, sectors int, shape verify.Shape, fill byte) []byte {
	t.Helper()
	b, err := d.Buffer(role, sectors, shape)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range b {
		if c != 0 {
			t.Fatalf("byte %d of a buffer is %#x", i, c)
		}
	}
	if fill != 0 {
		for i := range b {
			b[i] = fill + byte(i/verify.SectorBytes)
		}
	}
	return b
}

func wantKind(t *testing.T, what string, err error, want verify.Kind) {
	t.Helper()
	var f *verify.Failure
	if !errors.As(err, &f) || f.Kind != want {
		t.Errorf("%s: got %v, want a failure of kind %s", what, err, want)
	}
}

func TestDiskOnLoop(t *testing.T) {
	name := loopDisk(t, 64<<20)
	for _, shared := range []bool{false, true} {
		t.Run(fmt.Sprintf("shared=%t", shared), func(t *testing.T) {
			d := newDisk(t, openNode(t, name), DiskOptions{
				Name: name, SysBlock: "/sys/block/" + name, Shared: shared,
				Usable: []verify.Extent{{Sector: 2048, Sectors: 4096}, {Sector: 6144, Sectors: 61440}},
			})
			t.Log("proof by", d.ProofSource())
			proof := verify.ProofStat
			if shared {
				if d.prover.traceErr != nil {
					t.Skipf("no trace events: %v", d.prover.traceErr)
				}
				proof = verify.ProofTrace
			}
			if got := d.Info(); got.Sectors != 131072 || got.LogicalBlock != 1 || got.Shared != shared {
				t.Errorf("info: %+v", got)
			}
			testBlockPath(t, d, proof)
			// After a batch that stat did not explain, the trace goes on where there is
			// one.
			testDepth(t, d)
			testRefusals(t, d)
			if err := d.Flush(t.Context()); err != nil {
				t.Errorf("flush: %v", err)
			}
			if err := d.Recover(t.Context()); err != nil {
				t.Errorf("recover: %v", err)
			}
			if r := d.Reach(verify.PathCommand, verify.Contiguous); r.Sectors != 0 || r.Why == "" {
				t.Errorf("reach of the command path: %+v", r)
			}
		})
	}
}

// testBlockPath sends what fits one request, and what does not.
func testBlockPath(t *testing.T, d *Disk, proof verify.Proof) {
	for _, shape := range []verify.Shape{verify.Contiguous, verify.Fragmented} {
		reach := d.Reach(verify.PathBlock, shape)
		if reach.Sectors < 8 {
			t.Fatalf("%s: reach %+v", shape, reach)
		}
		t.Logf("%s: reach %d sectors, as %s", shape, reach.Sectors, reach.Why)
		for _, n := range []int{8, reach.Sectors, 2 * reach.Sectors} {
			write := verify.Command{Op: verify.Write, Sector: 2048, Data: buffer(t, d, "w", n, shape, byte(n)+3), Path: verify.PathBlock}
			read := write
			read.Op, read.Data = verify.Read, buffer(t, d, "r", n, shape, 0)
			for _, c := range []verify.Command{write, read} {
				done := d.Do(t.Context(), []verify.Command{c})[0]
				if done.Err != nil {
					t.Fatalf("%s: %s of %d sectors: %v", shape, c.Op, n, done.Err)
				}
				if n <= reach.Sectors {
					if done.Proof != proof || done.Requests != 1 || done.Largest != n {
						t.Errorf("%s: %s of %d sectors: got %+v, want one request by %s", shape, c.Op, n, done, proof)
					}
				} else {
					if done.Proof != "" || done.Requests < 2 {
						t.Errorf("%s: %s of %d sectors: got %+v, want no proof and more than one request", shape, c.Op, n, done)
					}
					if d.prover.trace != nil {
						proof = verify.ProofTrace
					}
				}
				if done.Latency <= 0 {
					t.Errorf("latency %v", done.Latency)
				}
			}
			if !bytes.Equal(write.Data, read.Data) {
				t.Errorf("%s: %d sectors came back otherwise", shape, n)
			}
			cached := read
			cached.Path, cached.Data = verify.PathCache, buffer(t, d, "c", n, shape, 0)
			if done := d.Do(t.Context(), []verify.Command{cached})[0]; done.Err != nil || done.Proof != "" {
				t.Errorf("by the page cache: %+v", done)
			}
			if !bytes.Equal(write.Data, cached.Data) {
				t.Errorf("%s: %d sectors by the page cache came back otherwise", shape, n)
			}
		}
	}
}

// testDepth sends 32 commands at once.
func testDepth(t *testing.T, d *Disk) {
	var cmds []verify.Command
	for i := range 32 {
		cmds = append(cmds, verify.Command{
			Op: verify.Op(i % 2), Sector: 6144 + uint64(i)*256, Path: verify.PathBlock,
			Data: buffer(t, d, fmt.Sprint("depth", i), 128, verify.Contiguous, 0),
		})
	}
	proven := 0
	for i, done := range d.Do(t.Context(), cmds) {
		if done.Err != nil {
			t.Errorf("command %d: %v", i, done.Err)
		}
		if done.Proof != "" {
			proven++
		}
	}
	if proven != len(cmds) {
		t.Errorf("%d of %d commands proven", proven, len(cmds))
	}
}

func testRefusals(t *testing.T, d *Disk) {
	b := buffer(t, d, "refused", 16, verify.Contiguous, 0)
	size := d.Info().Sectors
	for _, tt := range []struct {
		name string
		c    verify.Command
	}{
		{"write before the usable extents", verify.Command{Op: verify.Write, Sector: 2040, Data: b, Path: verify.PathBlock}},
		{"write behind the usable extents", verify.Command{Op: verify.Write, Sector: 67576, Data: b, Path: verify.PathBlock}},
		{"read across the end", verify.Command{Sector: size - 8, Data: b, Path: verify.PathBlock}},
		{"sector that overflows", verify.Command{Sector: ^uint64(0) - 7, Data: b, Path: verify.PathBlock}},
		{"part of a sector", verify.Command{Sector: 0, Data: b[:100], Path: verify.PathBlock}},
		{"nothing", verify.Command{Sector: 0, Path: verify.PathBlock}},
		{"command path", verify.Command{Sector: 0, Data: b, Path: verify.PathCommand}},
		{"unknown path", verify.Command{Sector: 0, Data: b, Path: "tape"}},
		{"unknown operation", verify.Command{Op: 7, Sector: 2048, Data: b, Path: verify.PathBlock}},
	} {
		wantKind(t, tt.name, d.Do(t.Context(), []verify.Command{tt.c})[0].Err, verify.KindInternal)
	}
	across := verify.Command{Op: verify.Write, Sector: 6144 - 8, Data: b, Path: verify.PathBlock}
	if done := d.Do(t.Context(), []verify.Command{across})[0]; done.Err != nil {
		t.Errorf("write across two adjacent extents: %v", done.Err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if done := d.Do(ctx, []verify.Command{across})[0]; !errors.Is(done.Err, context.Canceled) {
		t.Errorf("cancelled: %v", done.Err)
	}
	if err := d.Flush(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled flush: %v", err)
	}
}

func TestDiskReadOnly(t *testing.T) {
	name := loopDisk(t, 4<<20)
	f, err := os.Open("/dev/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d := newDisk(t, f, DiskOptions{Name: name, SysBlock: "/sys/block/" + name, ReadOnly: true, Deadline: time.Nanosecond})
	b := buffer(t, d, "w", 8, verify.Contiguous, 0)
	wantKind(t, "write", d.Do(t.Context(), []verify.Command{{Op: verify.Write, Data: b, Path: verify.PathBlock}})[0].Err, verify.KindInternal)
	// A deadline that nothing can meet.
	wantKind(t, "read", d.Do(t.Context(), []verify.Command{{Op: verify.Read, Data: b, Path: verify.PathBlock}})[0].Err, verify.KindTimeout)
}

// TestDiskOnPartition proves requests by their place on the whole disk.
func TestDiskOnPartition(t *testing.T) {
	name := loopDisk(t, 16<<20)
	tool(t, "addpart", "/dev/"+name, "1", "2056", "16384")
	part := name + "p1"
	node := "/dev/" + part
	for range 100 {
		if _, err := os.Stat(node); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := os.Stat(node); err != nil {
		t.Skipf("no node for a partition: %v", err)
	}
	f := openNode(t, part)
	for _, shared := range []bool{false, true} {
		d := newDisk(t, f, DiskOptions{Name: part, SysBlock: "/sys/block/" + name, First: 2056, Sectors: 16384, Shared: shared})
		if shared && d.prover.traceErr != nil {
			t.Logf("no trace events: %v", d.prover.traceErr)
			break
		}
		c := verify.Command{Op: verify.Write, Sector: 16, Data: buffer(t, d, "w", 64, verify.Contiguous, 5), Path: verify.PathBlock}
		if done := d.Do(t.Context(), []verify.Command{c})[0]; done.Err != nil || done.Proof == "" {
			t.Errorf("shared=%t: %+v", shared, done)
		}
		whole, err := os.Open("/dev/" + name)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(c.Data))
		_, err = whole.ReadAt(got, (2056+16)*verify.SectorBytes)
		whole.Close()
		if err != nil || !bytes.Equal(got, c.Data) {
			t.Errorf("shared=%t: the whole disk has other data at sector 2072: %v", shared, err)
		}
	}
	for _, o := range []DiskOptions{
		{Name: "wrong start", SysBlock: "/sys/block/" + name, First: 2048},
		{Name: "start of a whole disk", SysBlock: "/sys/block/" + name},
		{Name: "wrong size", SysBlock: "/sys/block/" + name, First: 2056, Sectors: 16385},
		{Name: "extent outside", SysBlock: "/sys/block/" + name, First: 2056, Usable: []verify.Extent{{Sector: 16380, Sectors: 8}}},
		{Name: "extents out of order", SysBlock: "/sys/block/" + name, First: 2056, Usable: []verify.Extent{{Sector: 8, Sectors: 8}, {Sector: 0, Sectors: 8}}},
		{Name: "no NVMe namespace", SysBlock: "/sys/block/" + name, First: 2056, PassThrough: NVMePassThrough},
	} {
		if d, err := NewDisk(f, o); err == nil {
			d.Close()
			t.Errorf("%s: no error", o.Name)
		}
	}
}

// TestDiskOnFile tests a file of the temporary folder's file system, by the disk
// below where that is one.
func TestDiskOnFile(t *testing.T) {
	dir := t.TempDir()
	f, err := os.OpenFile(filepath.Join(dir, "file"), os.O_RDWR|os.O_CREATE|unix.O_DIRECT, 0o600)
	if err != nil {
		t.Skipf("the temporary folder's file system has no O_DIRECT: %v", err)
	}
	defer f.Close()
	const size = 8 << 20
	if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
		t.Skipf("the temporary folder's file system cannot allocate: %v", err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		t.Fatal(err)
	}
	o := DiskOptions{Name: "file", Shared: true}
	sys := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	if _, err := os.Stat(sys + "/queue"); err == nil { // a whole disk
		o.SysBlock = sys
	}
	// Written first, since unwritten extents are converted in pieces.
	if m, err := ioctl.Contiguous(1 << 20); err != nil {
		t.Fatal(err)
	} else {
		for at := int64(0); at < size; at += 1 << 20 {
			if _, err := f.WriteAt(m.Bytes(), at); err != nil {
				t.Fatal(err)
			}
		}
		m.Free()
	}
	extents, err := ioctl.Fiemap(int(f.Fd()), 1000)
	if err != nil {
		t.Skipf("no FIEMAP: %v", err)
	}
	o.Physical = func(sector uint64) (uint64, bool) {
		at := sector * verify.SectorBytes
		for _, e := range extents {
			if e.Logical <= at && at < e.Logical+e.Bytes {
				return (e.Physical + at - e.Logical) / verify.SectorBytes, true
			}
		}
		return 0, false
	}
	d := newDisk(t, f, o)
	t.Log("proof by", d.ProofSource())
	e := extents[0]
	n := int(min(e.Bytes, 512<<10) / verify.SectorBytes)
	write := verify.Command{Op: verify.Write, Sector: e.Logical / verify.SectorBytes, Path: verify.PathBlock, Data: buffer(t, d, "w", n, verify.Contiguous, 9)}
	read := write
	read.Op, read.Data = verify.Read, buffer(t, d, "r", n, verify.Contiguous, 0)
	for _, c := range []verify.Command{write, read} {
		done := d.Do(t.Context(), []verify.Command{c})[0]
		if done.Err != nil {
			t.Fatalf("%s: %v", c.Op, done.Err)
		}
		t.Logf("%s of %d sectors: proof %q, %d requests, largest %d", c.Op, n, done.Proof, done.Requests, done.Largest)
		if d.prover.trace != nil && d.Reach(verify.PathBlock, verify.Contiguous).Sectors >= n && done.Proof != verify.ProofTrace {
			t.Errorf("%s of %d sectors: %+v, want proof by trace", c.Op, n, done)
		}
	}
	if !bytes.Equal(write.Data, read.Data) {
		t.Error("the data came back otherwise")
	}
	if err := d.Flush(t.Context()); err != nil {
		t.Error(err)
	}
	if err := d.Recover(t.Context()); err != nil {
		t.Error(err)
	}
	if err := f.Truncate(size / 2); err != nil {
		t.Fatal(err)
	}
	wantKind(t, "after truncation", d.Recover(t.Context()), verify.KindNotOurs)
	if _, err := NewDisk(f, DiskOptions{Name: "file", PassThrough: SCSIPassThrough}); err == nil {
		t.Error("pass-through to a file: no error")
	}
}

// TestDiskEvents says something about a disk to the kernel log.
func TestDiskEvents(t *testing.T) {
	name := loopDisk(t, 1<<20)
	d := newDisk(t, openNode(t, name), DiskOptions{Name: name, SysBlock: "/sys/block/" + name})
	if d.log.fd < 0 {
		t.Skip("the kernel log cannot be read")
	}
	if got := d.Events(); len(got) != 0 {
		t.Errorf("before anything happened: %v", got)
	}
	line := "quirkcheck test: I/O error, dev " + name + ", sector 8"
	f, err := os.OpenFile("/dev/kmsg", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("the kernel log cannot be written: %v", err)
	}
	defer f.Close()
	for _, text := range []string{line, "quirkcheck test: I/O error, dev " + name + "9x, sector 8", "quirkcheck test: nothing happened to " + name} {
		if _, err := f.WriteString(text + "\n"); err != nil {
			t.Fatal(err)
		}
	}
	got := d.Events()
	if len(got) != 1 || got[0].Kind != verify.KindIOError || got[0].Text != line {
		t.Errorf("got %v, want the one line", got)
	}
	if got := d.Events(); len(got) != 0 {
		t.Errorf("once more: %v", got)
	}
	for range maxEvents + 10 {
		if _, err := f.WriteString(line + "\n"); err != nil {
			t.Skipf("the kernel holds log lines back: %v", err)
		}
	}
	if got := d.Events(); len(got) > maxEvents+1 {
		t.Errorf("%d events, want at most %d", len(got), maxEvents+1)
	}
}
