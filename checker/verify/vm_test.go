package verify_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quirkcheck/quirkcheck/checker/verify"
	"github.com/quirkcheck/quirkcheck/internal/vm"
	"github.com/quirkcheck/quirkcheck/internal/vm/faultdisk"
)

// A vmKind is a fault as a disk behind a real kernel has it.
type vmKind struct {
	name     string
	at       int // sectors that still pass
	when     faultdisk.When
	do       faultdisk.Action
	op       string
	class    verify.Class
	args     []string // in place of those that make a run short
	cond     string   // what it takes, as the finding says it
	bad      []verify.Range
	patience string // device/timeout in seconds
}

func larger(op faultdisk.Op, sectors int) faultdisk.When {
	return faultdisk.All(faultdisk.Is(op), faultdisk.LongerThan(sectors*512))
}

// vmKinds is each kind once. Those that take the host's memory or several
// commands at a time, which a disk cannot see, are tested in process.
func vmKinds() []vmKind {
	const w, r = faultdisk.Write, faultdisk.Read
	shifted := func(t *faultdisk.Transfer) error {
		const n = 700 * 512
		return faultdisk.Split(t, []faultdisk.Part{{Data: t.Data[:n], At: t.Offset}, {Data: t.Data[n:], At: t.Offset + n + 512}})
	}
	large := 0
	unaligned := func(q faultdisk.Request, _ *rand.Rand) bool {
		return q.Op == w && q.Length > 900*512 && q.Offset%4096 != 0
	}
	return []vmKind{
		{name: "tail dropped", at: 1024, when: larger(w, 1024), do: faultdisk.Truncate(1024 * 512), op: "write", class: verify.ClassTruncated},
		{name: "tail zeroed", at: 777, when: larger(w, 777), do: faultdisk.ZeroTail(777 * 512), op: "write", class: verify.ClassZeroed},
		{name: "wrapped at 256", at: 256, when: larger(w, 256), do: faultdisk.Wrap(256), op: "write", class: verify.ClassWrapped},
		{name: "misplaced", at: 1344, when: larger(w, 1344), do: faultdisk.Misplace(3 * 512), op: "write", class: verify.ClassMisplaced},
		{name: "lost", at: 900, when: larger(w, 900), do: faultdisk.Drop(), op: "write", class: verify.ClassLost},
		{name: "torn", at: 1025, when: larger(w, 1025), do: faultdisk.Torn(128 * 512), op: "write", class: verify.ClassTorn},
		{name: "flipped in writes", at: 1300, when: larger(w, 1300), do: faultdisk.Flip(600 << 10), op: "write", class: verify.ClassFlipped},
		{name: "flipped in reads", at: 1344, when: larger(r, 1344), do: faultdisk.Flip(1000), op: "read", class: verify.ClassFlipped},
		{name: "stale reads", at: 600, when: larger(r, 600), do: faultdisk.Stale(), op: "read", class: verify.ClassStale},
		{name: "error", at: 1500, when: larger(w, 1500), do: faultdisk.Fail(syscall.EIO), op: "write", class: verify.ClassError},
		{name: "sometimes", at: 1100, when: faultdisk.All(larger(w, 1100), faultdisk.Probability(0.3)), do: faultdisk.Truncate(1100 * 512), op: "write", class: verify.ClassTruncated},
		{name: "tail shifted", at: 700, when: larger(w, 700), do: shifted, op: "write", class: verify.ClassShifted},
		{name: "after the 20th", at: 1200, when: func(q faultdisk.Request, _ *rand.Rand) bool {
			if q.Op == w && q.Length > 1200*512 {
				large++
			}
			return q.Op == w && q.Length > 1200*512 && large > 20
		}, do: faultdisk.Truncate(512 * 512), op: "write", class: verify.ClassTruncated},
		{name: "only unaligned", at: 900, when: unaligned, do: faultdisk.Truncate(512 * 512), op: "write", class: verify.ClassTruncated, cond: "inside a physical block",
			args: []string{"--sizes", "512,896,1000,1024", "--region", "8M", "--path", "command"}},
		{name: "hang at exactly 2000", at: 1999, when: faultdisk.All(faultdisk.Is(w), faultdisk.Exactly(2000*512)), do: faultdisk.Delay(5 * time.Second), op: "write", class: verify.ClassTimeout,
			args: []string{"--sizes", "1024,1999,2000,2001", "--region", "8M", "--plain"}, bad: []verify.Range{{From: 2000, To: 2000}}, patience: "2"},
		{name: "a set of sizes", at: 1023, when: func(q faultdisk.Request, _ *rand.Rand) bool {
			n := q.Length / 512
			return q.Op == w && (n == 1024 || n >= 1344 && n < 1500)
		}, do: faultdisk.Truncate(512 * 512), op: "write", class: verify.ClassTruncated},
	}
}

// verifyIn runs verify in the guest and decodes its report.
func verifyIn(ctx context.Context, m *vm.Machine, args ...string) (*verify.Report, vm.Result, error) {
	res, err := m.RunCmd(ctx, vm.Cmd{Args: append([]string{"quirkcheck", "verify", "--format", "json"}, args...), Timeout: 5 * time.Minute})
	if err != nil {
		return nil, res, err
	}
	var r verify.Report
	if len(res.Stdout) > 0 {
		if err := json.Unmarshal(res.Stdout, &r); err != nil {
			return nil, res, fmt.Errorf("verify %s: status %d: %w\n%s%s", strings.Join(args, " "), res.Exit, err, res.Stdout, res.Stderr)
		}
	}
	return &r, res, nil
}

// quickly are the flags of a run that is short in an emulated machine.
func quickly(serial string, more ...string) []string {
	return append([]string{"--destroy", "--serial", serial, "--quick", "--region", "16M"}, more...)
}

func TestVMVerify(t *testing.T) {
	vm.Require(t, slices.Concat(vm.Peers, vm.Stackers)...)
	binary := filepath.Join(t.TempDir(), "quirkcheck")
	if err := vm.BuildStatic(t.Context(), "github.com/quirkcheck/quirkcheck/cmd/quirkcheck", binary); err != nil {
		t.Fatal(err)
	}
	kinds := vmKinds()
	faulty := map[string]*faultdisk.Disk{}
	var disks []vm.Disk
	for i, k := range kinds {
		serial := fmt.Sprintf("KIND%d", i)
		faulty[serial] = faultdisk.New(48<<20, faultdisk.Options{Seed: uint64(i + 1), KeepPrevious: k.class == verify.ClassStale, Faults: []faultdisk.Fault{{Name: k.name, When: k.when, Do: k.do}}})
		faulty[serial].KeepNoLog()
		disks = append(disks, vm.Disk{Serial: serial, Bus: vm.VirtioSCSI, Image: vm.ServeNBD(t, faulty[serial]), Vendor: "QC", Product: "FAULTY", Revision: "1"})
	}
	story := faultdisk.New(64<<20, faultdisk.Options{Seed: 99, Faults: []faultdisk.Fault{{Name: "2015", When: larger(faultdisk.Write, 1024), Do: faultdisk.Truncate(1024 * 512)}}})
	disks = append(disks,
		vm.Disk{Serial: "STORY", Bus: vm.VirtioSCSI, Image: vm.ServeNBD(t, story), Vendor: "ATA", Product: "ST380013AS", Revision: "3.20"},
		vm.Disk{Serial: "SATA", Bus: vm.AHCI, Image: vm.TestImage(t, 64<<20), Model: "ACME SATA DISK", Firmware: "1.0"},
		vm.Disk{Serial: "VSCSI", Bus: vm.VirtioSCSI, Image: vm.TestImage(t, 64<<20), Vendor: "ACME", Product: "DISK", PhysicalBlockBytes: 4096},
		vm.Disk{Serial: "NVME", Bus: vm.NVMe, Image: vm.TestImage(t, 64<<20)},
		vm.Disk{Serial: "UAS", Bus: vm.UAS, Image: vm.TestImage(t, 64<<20), Vendor: "ACME", Product: "BRIDGE"},
		vm.Disk{Serial: "VBLK", Bus: vm.VirtioBlk, Image: vm.TestImage(t, 64<<20)},
		vm.Disk{Serial: "BUSY", Bus: vm.VirtioSCSI, Image: vm.TestImage(t, 128<<20), Vendor: "ACME", Product: "BUSY"},
		vm.Disk{Serial: "HELD", Bus: vm.VirtioSCSI, Image: vm.TestImage(t, 64<<20), Vendor: "ACME", Product: "HELD"},
	)
	vm.Test(t, vm.Config{Kernel: vm.Stock(t), Binary: binary, Tools: slices.Concat(vm.Peers, vm.Stackers), Disks: disks, MemoryMiB: 768, Append: []string{"libata.force=80c"}}, func(ctx context.Context, m *vm.Machine) error {
		step := func(name string, f func(ctx context.Context, t *testing.T, m *vm.Machine) error) {
			t.Run(name, func(t *testing.T) {
				begin := time.Now()
				if err := f(ctx, t, m); err != nil {
					t.Error(err)
				}
				t.Logf("%.1f s", time.Since(begin).Seconds())
			})
		}
		for i, k := range kinds {
			step(k.name, func(ctx context.Context, t *testing.T, m *vm.Machine) error {
				return k.check(ctx, t, m, fmt.Sprintf("KIND%d", i))
			})
		}
		for _, serial := range []string{"SATA", "VSCSI", "NVME", "UAS", "VBLK"} {
			step("healthy "+serial, func(ctx context.Context, t *testing.T, m *vm.Machine) error { return healthy(ctx, t, m, serial) })
		}
		step("interlocks", interlocks)
		step("story", func(ctx context.Context, t *testing.T, m *vm.Machine) error {
			return fromFaultToEntry(ctx, t, m, story)
		})
		return nil
	})
}

func (k vmKind) check(ctx context.Context, t *testing.T, m *vm.Machine, serial string) error {
	d, err := m.Disk(ctx, serial)
	if err != nil {
		return err
	}
	if k.patience != "" {
		if err := m.WriteAttr(ctx, d.Sysfs("device/timeout"), k.patience); err != nil {
			return err
		}
	}
	args := k.args
	if args == nil {
		args = []string{"--largest", "1M", "--plain", "--path", "command", "--region", "8M"}
	}
	r, res, err := verifyIn(ctx, m, append(quickly(serial, args...), d.Dev())...)
	if err != nil {
		return err
	}
	t.Logf("%s (%d commands, %.1f s)\n%s", r.Sentence, r.Commands, r.ElapsedSeconds, res.Stderr)
	if res.Exit != 7 || r.Verdict != verify.VerdictFaulty || len(r.Findings) == 0 {
		return fmt.Errorf("status %d, %s: %s", res.Exit, r.Verdict, r.Sentence)
	}
	f := r.Findings[0]
	if f.Op != k.op || f.Class != k.class || f.Good != k.at || !f.Exact {
		return fmt.Errorf("%s %s above %d (exact %v), want %s %s above %d: %s", f.Op, f.Class, f.Good, f.Exact, k.op, k.class, k.at, r.Sentence)
	}
	if !strings.Contains(f.When, k.cond) || k.bad != nil && !slices.Equal(f.Bad, k.bad) {
		return fmt.Errorf("bad %v, only %q: want %v, %q", f.Bad, f.When, k.bad, k.cond)
	}
	if f.Failure == "" && (len(f.Examples) == 0 || !f.Proved) {
		return fmt.Errorf("no example, or no proof of the size")
	}
	return nil
}

// healthy: no alarm, and exact sector counts where commands can be sent.
func healthy(ctx context.Context, t *testing.T, m *vm.Machine, serial string) error {
	d, err := m.Disk(ctx, serial)
	if err != nil {
		return err
	}
	r, res, err := verifyIn(ctx, m, append(quickly(serial, "--sizes", "128,255,1000,1023,1024,1025,2560,8191,8192"), d.Dev())...)
	if err != nil {
		return err
	}
	t.Logf("%s\n%s%+v", r.Sentence, res.Stderr, r.Reach)
	if res.Exit != 0 || r.Verdict != verify.VerdictClean || len(r.Findings) > 0 {
		return fmt.Errorf("status %d, %s: %s\n%+v", res.Exit, r.Verdict, r.Sentence, r.Findings)
	}
	if r.SafeMaxSectors == nil || *r.SafeMaxSectors < 1000 {
		return fmt.Errorf("safe_max_sectors %v", r.SafeMaxSectors)
	}
	if r.Confirmed == nil || r.Confirmed.Commands == 0 {
		return fmt.Errorf("not confirmed")
	}
	if serial == "VBLK" {
		return raised(ctx, t, m, d)
	}
	for _, s := range r.Sizes {
		if s.Sectors == 1023 && s.Setup.Path == verify.PathCommand && s.Clean() {
			return nil
		}
	}
	return fmt.Errorf("1023 sectors were not sent as one command: %+v", r.Reach)
}

// raised: without pass-through, --raise lifts the limit for the run and puts it
// back, also when the run is killed.
func raised(ctx context.Context, t *testing.T, m *vm.Machine, d vm.Found) error {
	limit := d.Sysfs("queue/max_sectors_kb")
	before, err := m.ReadAttr(ctx, limit)
	if err != nil {
		return err
	}
	if err := m.WriteAttr(ctx, limit, "256"); err != nil {
		return err
	}
	r, res, err := verifyIn(ctx, m, append(quickly("VBLK", "--raise", "--largest", "600K"), d.Dev())...)
	if err != nil {
		return err
	}
	if res.Exit != 0 || r.SafeMaxSectors == nil || *r.SafeMaxSectors <= 512 {
		return fmt.Errorf("raised: status %d: %s\n%s", res.Exit, r.Sentence, res.Stderr)
	}
	if now, err := m.ReadAttr(ctx, limit); err != nil || now != "256" {
		return fmt.Errorf("after the run the limit is %s, %v", now, err)
	}
	// SIGINT: drained, put back, 130.
	kill := func(signal string) (vm.Result, error) {
		return m.RunCmd(ctx, vm.Cmd{Args: []string{"timeout", "-s", signal, "6", "quirkcheck", "verify", "--destroy", "--serial", "VBLK", "--thorough", "--raise", d.Dev()}, Timeout: time.Minute})
	}
	if res, err = kill("INT"); err != nil {
		return err
	}
	if now, err := m.ReadAttr(ctx, limit); err != nil || now != "256" {
		return fmt.Errorf("interrupted: the limit is %s, %v\n%s", now, err, res.Stderr)
	}
	if !strings.Contains(string(res.Stdout)+string(res.Stderr), "interrupted") {
		return fmt.Errorf("interrupted: %s%s", res.Stdout, res.Stderr)
	}
	// It goes on where it was.
	if res, err = m.RunCmd(ctx, vm.Cmd{Args: []string{"timeout", "-s", "INT", "4", "quirkcheck", "verify", "--destroy", "--serial", "VBLK", "--thorough", "--raise", "--resume", d.Dev()}, Timeout: time.Minute}); err != nil {
		return err
	}
	if out := string(res.Stdout) + string(res.Stderr); strings.Contains(out, "no interrupted run") {
		return fmt.Errorf("resume: %s", out)
	}
	// SIGKILL: the next run puts it back.
	if res, err = kill("KILL"); err != nil {
		return err
	}
	if now, err := m.ReadAttr(ctx, limit); err != nil || now == "256" {
		return fmt.Errorf("killed: the limit is %s (%v), so the test shows nothing\n%s", now, err, res.Stderr)
	}
	if _, res, err = verifyIn(ctx, m, append(quickly("VBLK", "--sizes", "256"), d.Dev())...); err != nil {
		return err
	}
	if now, err := m.ReadAttr(ctx, limit); err != nil || now != "256" {
		return fmt.Errorf("after a killed run and another the limit is %s, %v\n%s", now, err, res.Stderr)
	}
	return m.WriteAttr(ctx, limit, before)
}

// interlocks: what is in use is refused, by every name it has.
func interlocks(ctx context.Context, t *testing.T, m *vm.Machine) error {
	busy, err := m.Disk(ctx, "BUSY")
	if err != nil {
		return err
	}
	held, err := m.Disk(ctx, "HELD")
	if err != nil {
		return err
	}
	vscsi, err := m.Disk(ctx, "VSCSI")
	if err != nil {
		return err
	}
	run := func(script string) error {
		_, err := m.Output(ctx, "sh", "-ec", script)
		return err
	}
	refused := func(what, code string, args ...string) {
		res, err := m.RunCmd(ctx, vm.Cmd{Args: append([]string{"quirkcheck", "verify", "--destroy", "--quick"}, args...), Timeout: time.Minute})
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		if res.Exit != 6 || code != "" && !strings.Contains(string(res.Stderr), "["+code) {
			t.Errorf("%s: status %d, want 6 and %q\n%s%s", what, res.Exit, code, res.Stdout, res.Stderr)
			return
		}
		t.Logf("%s: %s", what, firstLine(res.Stderr))
	}
	// A file system of our own making on a partition, mounted.
	if err := m.Modprobe(ctx, "ext4"); err != nil {
		return err
	}
	// Two partitions of 32 MiB each by hand: DOS table, type 83h.
	table := `printf '\000\000\000\000\203\000\000\000\000\010\000\000\000\000\001\000\000\000\000\000\203\000\000\000\000\010\001\000\000\000\001\000' | dd of=%[1]s bs=1 seek=446 conv=notrunc 2>/dev/null
printf '\125\252' | dd of=%[1]s bs=1 seek=510 conv=notrunc 2>/dev/null; sync; blockdev --rereadpt %[1]s; for p in /sys/block/%[2]s/%[2]s?; do n=${p##*/}; rm -f /dev/$n; mknod /dev/$n b $(tr : ' ' < $p/dev); done; ls %[1]s1 %[1]s2`
	if err := run(fmt.Sprintf(table, busy.Dev(), busy.Name)); err != nil {
		return err
	}
	if err := run(fmt.Sprintf("mkdir -p /mnt/busy /dev/disk/by-id; mkfs.ext4 -q %[1]s1 || mke2fs %[1]s1; mount -t ext4 %[1]s1 /mnt/busy; ln -sf ../../%[2]s /dev/disk/by-id/scsi-BUSY; ln -sf ../../%[2]s2 /dev/disk/by-id/scsi-BUSY-part2", busy.Dev(), busy.Name)); err != nil {
		return err
	}
	refused("a disk with a mounted partition", "mounted", "--serial", "BUSY", busy.Dev())
	refused("the same by its by-id link", "mounted", "--serial", "BUSY", "/dev/disk/by-id/scsi-BUSY")
	refused("the mounted partition", "mounted", "--serial", "BUSY", busy.Dev()+"1")
	refused("without a serial number", "", busy.Dev())
	// The file on it can be tested, and the file system is as it was.
	r, res, err := verifyIn(ctx, m, "--file", "/mnt/busy/test", "--file-size", "16M", "--quick", "--sizes", "512,1024")
	if err != nil {
		return err
	}
	if res.Exit != 0 || r.Verdict != verify.VerdictClean {
		t.Errorf("file: status %d: %s\n%s", res.Exit, r.Sentence, res.Stderr)
	}
	t.Logf("file: %s", r.Sentence)
	if err := run("test ! -e /mnt/busy/test"); err != nil {
		t.Error("the file was left behind")
	}
	// Reading a mounted disk is allowed.
	if r, res, err = verifyIn(ctx, m, "--quick", "--sizes", "512,1024", busy.Dev()); err != nil {
		return err
	}
	if res.Exit != 0 {
		t.Errorf("reading a mounted disk: status %d: %s\n%s", res.Exit, r.Sentence, res.Stderr)
	}
	// A loop device on the mounted file system is a disk of its own.
	if err := m.Modprobe(ctx, "loop"); err != nil {
		return err
	}
	if err := run("dd if=/dev/zero of=/mnt/busy/loopfile bs=1M count=16 2>/dev/null; losetup /dev/loop0 /mnt/busy/loopfile"); err != nil {
		return err
	}
	if r, res, err = verifyIn(ctx, m, append(quickly("loopfile", "--sizes", "512,1024"), "/dev/loop0")...); err != nil {
		return err
	}
	if res.Exit != 0 || r.Verdict != verify.VerdictClean {
		t.Errorf("loop: status %d: %s\n%s", res.Exit, r.Sentence, res.Stderr)
	}
	t.Logf("loop: %s", r.Sentence)
	if err := run("losetup -d /dev/loop0; umount /mnt/busy"); err != nil {
		return err
	}
	// The second partition alone: the first is not touched, though SG_IO on a
	// partition's node addresses the whole disk.
	sum := fmt.Sprintf("dd if=%s1 bs=1M 2>/dev/null | md5sum", busy.Dev())
	before, err := m.Output(ctx, "sh", "-c", sum)
	if err != nil {
		return err
	}
	if r, res, err = verifyIn(ctx, m, append(quickly("BUSY", "--sizes", "512,1024"), busy.Dev()+"2")...); err != nil {
		return err
	}
	if res.Exit != 0 || r.Target.FirstSector == 0 {
		t.Errorf("partition: status %d, first sector %d: %s\n%s", res.Exit, r.Target.FirstSector, r.Sentence, res.Stderr)
	}
	if after, err := m.Output(ctx, "sh", "-c", sum); err != nil || after != before {
		t.Errorf("verifying the second partition changed the first (%v)", err)
	}

	if err := run(fmt.Sprintf("mkswap %[1]s2 >/dev/null && swapon %[1]s2", busy.Dev())); err != nil {
		t.Logf("no swap in this guest: %v", err)
	} else {
		refused("a disk with swap", "swap", "--serial", "BUSY", busy.Dev())
		if err := run(fmt.Sprintf("swapoff %s2", busy.Dev())); err != nil {
			return err
		}
	}
	top, err := m.DMLinear(ctx, "held", held)
	if err != nil {
		return err
	}
	refused("a disk below a map", "holder", "--serial", "HELD", held.Dev())
	refused("the map itself", "", "--serial", "x", top.Dev())
	if err := m.DMRemove(ctx, "held"); err != nil {
		return err
	}
	if err := run(fmt.Sprintf("sleep 60 < %s & echo $! > /tmp/opener; sleep 0.2", held.Dev())); err != nil {
		return err
	}
	refused("a disk that another process has open", "open", "--serial", "HELD", held.Dev())
	if err := run("kill $(cat /tmp/opener); sleep 0.2"); err != nil {
		return err
	}
	if err := run(fmt.Sprintf("blockdev --setro %s", held.Dev())); err != nil {
		return err
	}
	refused("a read-only disk", "read-only", "--serial", "HELD", held.Dev())
	if err := run(fmt.Sprintf("blockdev --setrw %s", held.Dev())); err != nil {
		return err
	}
	md, err := m.MDCreate(ctx, "md7", 1, held, vscsi)
	if err != nil {
		return err
	}
	refused("a member of an array", "", "--serial", "HELD", held.Dev())
	if err := m.MDStop(ctx, md.Name, held, vscsi); err != nil {
		return err
	}
	refused("the wrong serial number", "", "--serial", "HELD2", held.Dev())
	if err := run(fmt.Sprintf("printf 'LABELONE' | dd of=%[1]s bs=1 seek=512 conv=notrunc 2>/dev/null; printf 'LVM2 001' | dd of=%[1]s bs=1 seek=536 conv=notrunc 2>/dev/null", held.Dev())); err != nil {
		return err
	}
	// A member of an array that is stopped shows by its superblock, as this
	// does by its label.
	refused("a physical volume that nothing uses now", "", "--serial", "HELD", held.Dev())
	return nil
}

func firstLine(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\n")
	return s
}

// fromFaultToEntry: verify finds the disk of 2015, its draft passes lint, scan
// with it recommends 512 KiB, enforce sets that, and verify through the block
// layer is content, while the disk sees nothing larger.
func fromFaultToEntry(ctx context.Context, t *testing.T, m *vm.Machine, story *faultdisk.Disk) error {
	d, err := m.Disk(ctx, "STORY")
	if err != nil {
		return err
	}
	status := func(want int, args ...string) (string, error) {
		res, err := m.RunCmd(ctx, vm.Cmd{Args: args, Timeout: 3 * time.Minute})
		if err != nil {
			return "", err
		}
		if res.Exit != want {
			return "", fmt.Errorf("%s: status %d, want %d\n%s%s", strings.Join(args, " "), res.Exit, want, res.Stdout, res.Stderr)
		}
		return string(res.Stdout), nil
	}
	r, res, err := verifyIn(ctx, m, append(quickly("STORY", "--largest", "1M", "--plain", "--output", "/tmp/story.json"), d.Dev())...)
	if err != nil {
		return err
	}
	if res.Exit != 7 || r.SafeMaxSectors == nil || *r.SafeMaxSectors != 1024 || r.RecommendedMaxSectorsKB == nil || *r.RecommendedMaxSectorsKB != 512 {
		return fmt.Errorf("status %d: %s\n%s", res.Exit, r.Sentence, res.Stderr)
	}
	t.Log(r.Sentence)
	if !strings.Contains(r.Sentence, "keeps old data") || !strings.Contains(r.Sentence, "set max_sectors_kb=512") {
		t.Errorf("the sentence does not say it: %s", r.Sentence)
	}
	out, err := status(0, "quirkcheck", "db", "new", "--from-verify", "/tmp/story.json", "--reference", "https://example.org/report", "--dir", "/tmp/entries")
	if err != nil {
		return err
	}
	t.Log(out)
	if _, err := status(0, "quirkcheck", "db", "lint", "/tmp/entries"); err != nil {
		return err
	}
	out, err = status(1, "quirkcheck", "scan", "--overlay", "/tmp/entries", "--format", "json", d.Dev())
	if err != nil {
		return err
	}
	var scan struct {
		Devices []struct {
			Recommended struct {
				MaxSectorsKB int `json:"max_sectors_kb"`
			}
		}
		Findings []struct{ Quirk, Verdict string }
	}
	if err := json.Unmarshal([]byte(out), &scan); err != nil {
		return err
	}
	const draft = "ata-st380013as-silent-corruption"
	if len(scan.Devices) != 1 || scan.Devices[0].Recommended.MaxSectorsKB != 512 || !slices.Contains(scan.Findings, struct{ Quirk, Verdict string }{draft, "affected"}) {
		return fmt.Errorf("scan with the draft: %s", out)
	}
	if _, err := status(0, "quirkcheck", "enforce", "--apply", "--overlay", "/tmp/entries", "--include", "suspected", d.Dev()); err != nil {
		return err
	}
	if now, err := m.ReadAttr(ctx, d.Sysfs("queue/max_sectors_kb")); err != nil || now != "512" {
		return fmt.Errorf("max_sectors_kb is %s, %v", now, err)
	}
	story.ResetLog()
	if r, res, err = verifyIn(ctx, m, append(quickly("STORY", "--path", "block"), d.Dev())...); err != nil {
		return err
	}
	t.Log(r.Sentence)
	if res.Exit != 0 || r.Verdict != verify.VerdictClean || *r.SafeMaxSectors != 1024 {
		return fmt.Errorf("after enforce: status %d: %s\n%s", res.Exit, r.Sentence, res.Stderr)
	}
	largest, n := story.Largest(faultdisk.Write)
	if largest != 512<<10 || n == 0 {
		return fmt.Errorf("after enforce the disk saw %d writes, the largest of %d sectors", n, largest/512)
	}
	t.Logf("the disk saw %d writes, the largest of %d sectors", n, largest/512)
	_, err = status(0, "quirkcheck", "revert", d.Dev())
	return err
}
