package target

import (
	"bytes"
	"context"
	"encoding/binary"
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
	"github.com/quirkcheck/quirkcheck/internal/vm"
)

// guestDisk names the disk that TestGuestDisk destroys, in the guest of
// TestVMDisk: "scsi sda".
const guestDisk = "QUIRKCHECK_GUEST_DISK"

// TestVMDisk runs this package's test binary in a guest, on disks that take
// commands.
func TestVMDisk(t *testing.T) {
	vm.Require(t)
	binary := filepath.Join(t.TempDir(), "target.test")
	// Static, with the C of SQLite, as vm.BuildStatic does for a program.
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-tags", "netgo,osusergo,sqlite_omit_load_extension",
		"-ldflags", "-s -w -linkmode external -extldflags -static", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cfg := vm.Config{
		Kernel: vm.Stock(t), Binary: binary, MemoryMiB: 768,
		// Switching a trace event on patches code, which the emulator does not
		// always survive with two processors (vm.EmulatorError).
		CPUs:   1,
		Append: []string{"libata.force=80c"}, // no bridge limits
		Disks: []vm.Disk{
			{Serial: "SCSI1", Bus: vm.VirtioSCSI, Image: vm.TestImage(t, 128<<20)},
			{Serial: "SATA1", Bus: vm.AHCI, Image: vm.TestImage(t, 128<<20), PhysicalBlockBytes: 4096},
			{Serial: "NVME1", Bus: vm.NVMe, Image: vm.TestImage(t, 128<<20)},
			{Serial: "SCSI4K", Bus: vm.VirtioSCSI, Image: vm.TestImage(t, 128<<20), LogicalBlockBytes: 4096, PhysicalBlockBytes: 4096},
		},
	}
	vm.Test(t, cfg, func(ctx context.Context, m *vm.Machine) error {
		if _, err := m.Run(ctx, "busybox", "mount", "-t", "tracefs", "nodev", "/sys/kernel/tracing"); err != nil {
			return err
		}
		for _, d := range cfg.Disks {
			found, err := m.Disk(ctx, d.Serial)
			if err != nil {
				return err
			}
			kind := SCSIPassThrough
			if d.Bus == vm.NVMe {
				kind = NVMePassThrough
			}
			r, err := m.RunCmd(ctx, vm.Cmd{
				Args:    []string{"/usr/bin/target.test", "-test.v", "-test.run", "^TestGuestDisk$"},
				Env:     []string{guestDisk + "=" + string(kind) + " " + found.Name},
				Timeout: 3 * time.Minute,
			})
			if err != nil {
				return err
			}
			t.Logf("%s on %s, Linux %s\n%s", d.Serial, d.Bus, m.Release(), r.Stdout)
			if r.Exit != 0 || !bytes.Contains(r.Stdout, []byte("--- PASS: TestGuestDisk")) {
				t.Errorf("%s: %v", d.Serial, r.Err())
			}
		}
		return nil
	})
}

// TestGuestDisk is the guest's part of TestVMDisk.
func TestGuestDisk(t *testing.T) {
	what := os.Getenv(guestDisk)
	if what == "" {
		t.Skip(guestDisk + " is not set: this is a part of TestVMDisk")
	}
	kind, name, _ := strings.Cut(what, " ")
	sys := "/sys/block/" + name
	f, err := os.OpenFile("/dev/"+name, os.O_RDWR|unix.O_EXCL, 0)
	if err != nil {
		t.Fatal(err)
	}
	open := func(f *os.File, o DiskOptions) *Disk {
		t.Helper()
		o.Name, o.SysBlock, o.PassThrough = f.Name(), sys, PassThrough(kind)
		d, err := NewDisk(f, o)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(d.Info().Name, "proof by", d.ProofSource())
		return d
	}
	d := open(f, DiskOptions{})
	testCommands(t, d)
	testBlocks(t, d, verify.ProofStat)
	if err := d.Flush(t.Context()); err != nil {
		t.Errorf("flush: %v", err)
	}
	if err := d.Recover(t.Context()); err != nil {
		t.Errorf("recover: %v", err)
	}
	t.Logf("identity: %q %q", d.who.attrs, d.who.serial)
	for _, e := range d.Events() {
		t.Errorf("event: %s: %s", e.Kind, e.Text)
	}
	shared := open(f, DiskOptions{Shared: true})
	testBlocks(t, shared, verify.ProofTrace)

	// A partition table with one partition, from sector 4096 on.
	unit := uint64(d.Info().LogicalBlock)
	mbr := buffer(t, d, "mbr", int(unit), verify.Contiguous, 0)
	mbr[446+4] = 0x83
	binary.LittleEndian.PutUint32(mbr[446+8:], uint32(4096/unit))
	binary.LittleEndian.PutUint32(mbr[446+12:], uint32(65536/unit))
	mbr[510], mbr[511] = 0x55, 0xaa
	if done := d.Do(t.Context(), []verify.Command{{Op: verify.Write, Data: mbr, Path: verify.PathBlock}})[0]; done.Err != nil {
		t.Fatal(done.Err)
	}
	for _, d := range []*Disk{d, shared} {
		if err := d.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if left, _ := filepath.Glob("/sys/kernel/tracing/instances/quirkcheck*"); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	f.Close()
	if f, err = os.Open("/dev/" + name); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetInt(int(f.Fd()), unix.BLKRRPART, 0); err != nil {
		t.Fatalf("BLKRRPART: %v", err)
	}
	f.Close()
	part := name + "1"
	if kind == string(NVMePassThrough) {
		part = name + "p1"
	}
	if f, err = os.OpenFile("/dev/"+part, os.O_RDWR|unix.O_EXCL, 0); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := open(f, DiskOptions{First: 4096, Sectors: 65536})
	defer p.Close()
	testCommands(t, p)
	testBlocks(t, p, verify.ProofStat)
	// The end of the partition is not crossed though the disk goes on.
	b := buffer(t, p, "end", 16, verify.Contiguous, 0)
	wantKind(t, "write across the end", p.Do(t.Context(), []verify.Command{{Op: verify.Write, Sector: 65536 - 8, Data: b, Path: verify.PathCommand}})[0].Err, verify.KindInternal)
}

// testCommands sends pass-through commands and checks their data by the block
// path.
func testCommands(t *testing.T, d *Disk) {
	info := d.Info()
	reach := d.Reach(verify.PathCommand, verify.Contiguous)
	t.Logf("command path, contiguous: %d sectors, as %s", reach.Sectors, reach.Why)
	unit := info.LogicalBlock
	sizes := []int{unit, 7 * unit, 128, 1024}
	for _, n := range []int{1025, 2048, 8191, 8192, 21504} {
		if n <= reach.Sectors && n%unit == 0 {
			sizes = append(sizes, n)
		}
	}
	for i, n := range sizes {
		at := uint64(16*unit + i%2*unit)
		write := verify.Command{Op: verify.Write, Sector: at, Data: buffer(t, d, "cw", n, verify.Contiguous, byte(n)+1), Path: verify.PathCommand, FUA: i%2 == 1}
		read := write
		read.Op, read.Data = verify.Read, buffer(t, d, "cr", n, verify.Contiguous, 0)
		for _, c := range []verify.Command{write, read} {
			done := d.Do(t.Context(), []verify.Command{c})[0]
			var not *verify.Failure
			if n > 8192 && done.Err != nil && asKind(done.Err, &not) == verify.KindNotSent {
				t.Logf("%s of %d sectors was not sent: %v", c.Op, n, done.Err) // luck of the memory
				continue
			}
			if done.Err != nil || done.Proof != verify.ProofCommand || done.Requests != 1 || done.Largest != n {
				t.Errorf("%s of %d sectors: %+v", c.Op, n, done)
			}
		}
		back := verify.Command{Op: verify.Read, Sector: at, Data: buffer(t, d, "cb", n, verify.Contiguous, 0), Path: verify.PathBlock}
		if done := d.Do(t.Context(), []verify.Command{back})[0]; done.Err != nil {
			t.Errorf("read back of %d sectors: %v", n, done.Err)
		}
		if n <= 8192 && (!bytes.Equal(write.Data, read.Data) || !bytes.Equal(write.Data, back.Data)) {
			t.Errorf("%d sectors came back otherwise", n)
		}
	}
	var l queueLimits
	var err error
	if l, err = readQueueLimits(d.o.SysBlock); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		n     uint64
		shape verify.Shape
	}{
		{"over max_hw_sectors_kb", 2*l.maxHWSectorsKiB + 8, verify.Contiguous},
		{"over max_segments", (l.maxSegments + 8) * 8, verify.Fragmented},
	} {
		if tt.n > info.Sectors {
			continue
		}
		b := buffer(t, d, "over", int(tt.n), tt.shape, 0)
		if got, ok := d.BufferSegments("over", tt.shape); !ok || tt.shape == verify.Fragmented && uint64(got) < tt.n/8 {
			t.Errorf("%s: %d segments, %t", tt.name, got, ok)
		}
		done := d.Do(t.Context(), []verify.Command{{Op: verify.Read, Sector: 0, Data: b, Path: verify.PathCommand}})[0]
		wantKind(t, fmt.Sprintf("read of %d sectors, %s", tt.n, tt.name), done.Err, verify.KindNotSent)
	}
	// 32 at once.
	var cmds []verify.Command
	for i := range 32 {
		cmds = append(cmds, verify.Command{Op: verify.Op(i % 2), Sector: 2048 + uint64(i)*256, Path: verify.PathCommand, Data: buffer(t, d, fmt.Sprint("deep", i), 128, verify.Contiguous, 0)})
	}
	for i, done := range d.Do(t.Context(), cmds) {
		if done.Err != nil || done.Proof != verify.ProofCommand {
			t.Errorf("command %d of 32: %+v", i, done)
		}
	}
	if d.o.PassThrough != SCSIPassThrough {
		return
	}
	// What the device refuses, by the leaf, as Do sends no such thing. A read behind
	// the end of a SATA disk would start the kernel's error handling.
	refused := func(what string, r ioctl.SCSIResult, err error, asc uint8) {
		t.Helper()
		s, serr := ioctl.DecodeSense(r.Sense)
		if err != nil || serr != nil || s.Key != ioctl.KeyIllegalRequest || s.ASC != asc || r.Outcome() != ioctl.OutcomeError {
			t.Errorf("%s: %v, %v, %v; want ILLEGAL REQUEST with %02Xh", what, r, err, serr, asc)
		}
	}
	fd := int(d.node.Fd())
	if path, err := filepath.EvalSymlinks(d.o.SysBlock); err != nil || !strings.Contains(path, "/ata") {
		r, err := ioctl.SCSI(fd, ioctl.Read16(1<<30, 1, 0), ioctl.FromDevice, make([]byte, d.logicalBytes), time.Minute)
		refused("read behind the end", r, err, 0x21)
	}
	keys, r, err := ioctl.ReservationKeys(fd, time.Minute)
	if len(keys) != 0 {
		t.Errorf("reservation keys: %x", keys)
	}
	refused("READ KEYS", r, err, 0x20) // neither QEMU nor libata has it
	d.counts = d.readCounts()          // ioerr_cnt has counted them
}

func asKind(err error, f **verify.Failure) verify.Kind {
	if g, ok := err.(*verify.Failure); ok {
		*f = g
		return g.Kind
	}
	return ""
}

// testBlocks sends requests of sizes that fit.
func testBlocks(t *testing.T, d *Disk, proof verify.Proof) {
	for _, shape := range []verify.Shape{verify.Contiguous, verify.Fragmented} {
		reach := d.Reach(verify.PathBlock, shape)
		t.Logf("block path, %s: %d sectors, as %s", shape, reach.Sectors, reach.Why)
		for _, n := range []int{8, 128, 1024, min(reach.Sectors, 8192)} {
			if n > reach.Sectors {
				continue
			}
			for op := verify.Read; op <= verify.Write; op++ {
				c := verify.Command{Op: op, Sector: 8192, Data: buffer(t, d, "b", n, shape, 0), Path: verify.PathBlock}
				if done := d.Do(t.Context(), []verify.Command{c})[0]; done.Err != nil || done.Proof != proof && done.Proof != verify.ProofTrace {
					t.Errorf("%s: %s of %d sectors: %+v, want proof by %s", shape, op, n, done, proof)
				}
			}
		}
	}
}
