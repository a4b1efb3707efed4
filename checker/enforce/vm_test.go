package enforce_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quirkcheck/quirkcheck/checker/enforce"
	"github.com/quirkcheck/quirkcheck/internal/vm"
	"github.com/quirkcheck/quirkcheck/internal/vm/faultdisk"
)

// bad is the identity of the disk of 2015 behind an adapter on which the
// kernel's own table does not apply.
func bad(serial string, image *vm.Image) vm.Disk {
	return vm.Disk{Serial: serial, Bus: vm.VirtioSCSI, Image: image, Vendor: "ATA", Product: "ST380013AS", Revision: "3.20"}
}

// story is what the steps of TestVMStory share.
type story struct {
	t *testing.T
	m *vm.Machine
}

// enforce runs quirkcheck enforce in the guest and decodes its JSON.
type enforced struct {
	Plan   enforce.Plan
	Result *enforce.Result
	exit   int
	text   string
}

func (s *story) enforce(ctx context.Context, args ...string) (e enforced, err error) {
	r, err := s.m.Run(ctx, append([]string{"quirkcheck", "enforce", "--format", "json"}, args...)...)
	if err != nil {
		return e, err
	}
	e.exit, e.text = r.Exit, string(r.Stdout)+string(r.Stderr)
	if err := json.Unmarshal(r.Stdout, &e); err != nil {
		return e, fmt.Errorf("enforce %s: status %d: %w\n%s", strings.Join(args, " "), r.Exit, err, e.text)
	}
	return e, nil
}

// status runs a command that must end with a status.
func (s *story) status(ctx context.Context, want int, args ...string) (string, error) {
	r, err := s.m.Run(ctx, args...)
	if err != nil {
		return "", err
	}
	if r.Exit != want {
		return "", fmt.Errorf("%s: status %d, want %d\n%s%s", strings.Join(args, " "), r.Exit, want, r.Stdout, r.Stderr)
	}
	return string(r.Stdout) + string(r.Stderr), nil
}

func (s *story) limit(ctx context.Context, serial string) (string, error) {
	d, err := s.m.Disk(ctx, serial)
	if err != nil {
		return "", err
	}
	return s.m.ReadAttr(ctx, d.Sysfs("queue/max_sectors_kb"))
}

func (s *story) wantLimit(ctx context.Context, when, serial, want string) error {
	got, err := s.limit(ctx, serial)
	if err != nil {
		return fmt.Errorf("%s: %w", when, err)
	}
	if got != want {
		return fmt.Errorf("%s: max_sectors_kb of %s is %s, want %s", when, serial, got, want)
	}
	s.t.Logf("%s: max_sectors_kb of %s is %s", when, serial, got)
	return nil
}

// write writes 4 MiB at a time, reads back in small pieces and returns how
// many bytes differ.
func (s *story) write(ctx context.Context, dev string, at int64, seed uint64) (int64, error) {
	d := vm.Direct{Path: dev, Offset: at, Bytes: 16 << 20, BlockBytes: 4 << 20, Seed: seed}
	if err := s.m.DirectWrite(ctx, d); err != nil {
		return 0, err
	}
	d.BlockBytes = 256 << 10
	c, err := s.m.DirectCompare(ctx, d)
	return int64(c.Mismatched), err
}

// TestVMStory is the story of 2015 from the fault to its cure and back, then
// live stacks on such disks. One boot, and one for the reboot.
func TestVMStory(t *testing.T) {
	vm.Require(t, slices.Concat(vm.Peers, vm.Stackers)...)
	binary := filepath.Join(t.TempDir(), "quirkcheck")
	if err := vm.BuildStatic(t.Context(), "github.com/quirkcheck/quirkcheck/cmd/quirkcheck", binary); err != nil {
		t.Fatal(err)
	}
	faulty := faultdisk.New(128<<20, faultdisk.Options{Seed: 1, Faults: []faultdisk.Fault{{
		Name: "one byte past 512 KiB", When: faultdisk.All(faultdisk.Is(faultdisk.Write), faultdisk.LongerThan(512<<10)), Do: faultdisk.Flip(600 << 10),
	}}})
	shared := faultdisk.New(128<<20, faultdisk.Options{Seed: 2})
	twoPaths := vm.ServeNBD(t, shared)
	path := func(id string) vm.Disk {
		d := bad("MP1", twoPaths)
		d.ID, d.Controller, d.Shared, d.WWN = id, id, true, 0x5000c50015ea71ab
		return d
	}
	disks := []vm.Disk{
		bad("BAD1", vm.ServeNBD(t, faulty)),
		{Serial: "GOOD1", Bus: vm.VirtioSCSI, Image: vm.TestImage(t, 64<<20), Vendor: "HGST", Product: "HUS726060AL5210", Revision: "A519"},
		path("mpa"), path("mpb"),
	}
	for _, serial := range []string{"LIN1", "CRY1", "R1A", "R1B", "R5A", "R5B", "R5C"} {
		disks = append(disks, bad(serial, vm.TestImage(t, 64<<20)))
	}
	kernel := vm.Stock(t)
	var rule, state []byte
	vm.Test(t, vm.Config{Kernel: kernel, Binary: binary, Tools: slices.Concat(vm.Peers, vm.Stackers), Udev: true, Disks: disks, MemoryMiB: 448}, func(ctx context.Context, m *vm.Machine) error {
		s := &story{t, m}
		step := func(name string, f func(ctx context.Context) error) {
			t.Run(name, func(t *testing.T) {
				s.t = t
				if err := f(ctx); err != nil {
					t.Error(err)
				}
			})
		}
		step("multipath", s.multipath(shared))
		step("stacks on top", s.stacks)
		step("fault and cure", func(ctx context.Context) (err error) {
			rule, state, err = s.cure(ctx, faulty)
			return err
		})
		step("state file in trouble", s.trouble)
		return nil
	})
	if t.Failed() || rule == nil {
		return
	}
	t.Run("reboot", func(t *testing.T) {
		one := []vm.Disk{bad("BAD1", vm.TestImage(t, 64<<20))}
		vm.Test(t, vm.Config{Kernel: kernel, Binary: binary, Udev: true, Disks: one, Rules: map[string]string{enforce.RuleFile: string(rule)}}, func(ctx context.Context, m *vm.Machine) error {
			s := &story{t, m}
			if err := s.wantLimit(ctx, "after a reboot", "BAD1", "512"); err != nil {
				return err
			}
			if err := m.WriteFile(ctx, "/var/lib/quirkcheck/state.db", state, 0o600); err != nil {
				return err
			}
			if _, err := s.status(ctx, 5, "quirkcheck", "revert", "--all"); err != nil {
				return fmt.Errorf("of the old boot nothing is written back: %w", err)
			}
			if out, err := s.status(ctx, 0, "quirkcheck", "history"); err != nil || !strings.Contains(out, "ata-seagate-st380013as") {
				return fmt.Errorf("history after the reboot: %v\n%s", err, out)
			}
			return s.wantLimit(ctx, "after a revert in the new boot", "BAD1", "512")
		})
	})
}

// cure is the story itself. It returns the rule and the journal it leaves.
func (s *story) cure(ctx context.Context, faulty *faultdisk.Disk) (rule, state []byte, err error) {
	m := s.m
	d, err := m.Disk(ctx, "BAD1")
	if err != nil {
		return nil, nil, err
	}
	before, err := s.limit(ctx, "BAD1")
	if err != nil {
		return nil, nil, err
	}
	wrong, err := s.write(ctx, d.Dev(), 0, 1)
	if err != nil {
		return nil, nil, err
	}
	if wrong == 0 {
		return nil, nil, fmt.Errorf("at %s KiB the disk did no damage; the test shows nothing", before)
	}
	s.t.Logf("at %s KiB: %d bytes silently wrong", before, wrong)
	if _, err := s.status(ctx, 1, "quirkcheck", "scan", d.Dev()); err != nil {
		return nil, nil, err
	}

	e, err := s.enforce(ctx, d.Name)
	if err != nil {
		return nil, nil, err
	}
	if e.exit != 0 || len(e.Plan.Steps) != 1 || e.Plan.Steps[0].To != "512" || e.Result != nil {
		return nil, nil, fmt.Errorf("plan: status %d\n%s", e.exit, e.text)
	}
	if err := s.wantLimit(ctx, "after a plan", "BAD1", before); err != nil {
		return nil, nil, err
	}

	// Set it, take it back, set it again for good.
	if e, err = s.enforce(ctx, d.Name, "--apply"); err != nil || e.exit != 0 {
		return nil, nil, fmt.Errorf("apply: status %d %v\n%s", e.exit, err, e.text)
	}
	if err := s.wantLimit(ctx, "after apply", "BAD1", "512"); err != nil {
		return nil, nil, err
	}
	if _, err := s.status(ctx, 0, "quirkcheck", "revert", d.Dev()); err != nil {
		return nil, nil, err
	}
	if err := s.wantLimit(ctx, "after revert", "BAD1", before); err != nil {
		return nil, nil, err
	}
	if e, err = s.enforce(ctx, "--apply", "--persist", d.Name); err != nil || e.exit != 0 {
		return nil, nil, fmt.Errorf("persist: status %d %v\n%s", e.exit, err, e.text)
	}
	if err := s.wantLimit(ctx, "after apply and persist", "BAD1", "512"); err != nil {
		return nil, nil, err
	}
	if e, err = s.enforce(ctx, "--apply", d.Name); err != nil || e.exit != 0 || len(e.Plan.Steps) != 0 || len(e.Plan.Satisfied) != 1 {
		return nil, nil, fmt.Errorf("a second apply: status %d %v\n%s", e.exit, err, e.text)
	}
	if e, err = s.enforce(ctx, "--check", d.Name); err != nil || e.exit != 0 {
		return nil, nil, fmt.Errorf("check: status %d %v\n%s", e.exit, err, e.text)
	}

	faulty.ResetLog()
	if wrong, err = s.write(ctx, d.Dev(), 32<<20, 2); err != nil || wrong != 0 {
		return nil, nil, fmt.Errorf("at 512 KiB %d bytes are wrong, %v", wrong, err)
	}
	largest, n := faulty.Largest(faultdisk.Write)
	if largest > 512<<10 || n == 0 {
		return nil, nil, fmt.Errorf("the disk saw %d writes, the largest of %d KiB", n, largest>>10)
	}
	s.t.Logf("the same write is right; the disk saw %d writes, the largest of %d KiB", n, largest>>10)
	if _, err := s.status(ctx, 0, "quirkcheck", "scan", d.Dev()); err != nil {
		return nil, nil, err
	}

	if err := m.Unplug(ctx, "BAD1"); err != nil {
		return nil, nil, err
	}
	if d, err = m.Plug(ctx, "BAD1"); err != nil {
		return nil, nil, err
	}
	if _, err := m.Output(ctx, "udevadm", "settle", "--timeout=30"); err != nil {
		return nil, nil, err
	}
	if err := s.wantLimit(ctx, "plugged in again", "BAD1", "512"); err != nil {
		return nil, nil, err
	}
	if err := m.WriteAttr(ctx, d.Sysfs("device/rescan"), "1"); err != nil {
		return nil, nil, err
	}
	if err := s.wantLimit(ctx, "after a rescan", "BAD1", "512"); err != nil {
		return nil, nil, err
	}
	if rule, err = m.ReadFile(ctx, "/etc/udev/rules.d/"+enforce.RuleFile); err != nil {
		return nil, nil, err
	}
	if state, err = m.ReadFile(ctx, "/var/lib/quirkcheck/state.db"); err != nil {
		return nil, nil, err
	}
	if out, err := s.status(ctx, 0, "quirkcheck", "unpersist"); err != nil || !strings.Contains(out, enforce.RuleFile) {
		return nil, nil, fmt.Errorf("unpersist: %v\n%s", err, out)
	}
	if err := m.Unplug(ctx, "BAD1"); err != nil {
		return nil, nil, err
	}
	if _, err = m.Plug(ctx, "BAD1"); err != nil {
		return nil, nil, err
	}
	if _, err := m.Output(ctx, "udevadm", "settle", "--timeout=30"); err != nil {
		return nil, nil, err
	}
	return rule, state, s.wantLimit(ctx, "plugged in without the rule", "BAD1", before)
}

// load writes and compares in a loop until stop is closed.
func (s *story) load(ctx context.Context, dev string, size int64) (stop func() (rounds int, err error)) {
	quit, done := make(chan struct{}), make(chan error, 1)
	rounds := 0
	go func() {
		for seed := uint64(100); ; seed++ {
			select {
			case <-quit:
				done <- nil
				return
			default:
			}
			wrong, err := s.write(ctx, dev, int64(seed%2)*(size/2), seed)
			if err == nil && wrong > 0 {
				err = fmt.Errorf("%d bytes differ", wrong)
			}
			if err != nil {
				done <- fmt.Errorf("load on %s: %w", dev, err)
				return
			}
			rounds++
		}
	}()
	return func() (int, error) {
		close(quit)
		err := <-done
		return rounds, err
	}
}

// multipath: two paths to one disk under a request-based map.
func (s *story) multipath(disk *faultdisk.Disk) func(context.Context) error {
	return func(ctx context.Context) error {
		m := s.m
		paths, err := m.Paths(ctx, "MP1", 2)
		if err != nil {
			return err
		}
		top, err := m.DMMultipath(ctx, "mp", "mq", paths...)
		if err != nil {
			return err
		}
		names := []string{paths[0].Name, paths[1].Name}
		e, err := s.enforce(ctx, append([]string{"--apply"}, names...)...)
		if err != nil {
			return err
		}
		if e.exit != 6 || len(e.Plan.Refused) != 2 || len(e.Plan.Steps) != 0 || !strings.Contains(e.text, "dmsetup suspend mp") {
			return fmt.Errorf("want a refusal with the sequence, status %d\n%s", e.exit, e.text)
		}
		stop := s.load(ctx, top.Dev(), 128<<20)
		e, err = s.enforce(ctx, append([]string{"--apply", "--allow-stacked"}, names...)...)
		if err == nil && e.exit != 0 {
			err = fmt.Errorf("the sequence: status %d\n%s", e.exit, e.text)
		}
		disk.ResetLog()
		if err == nil {
			_, err = s.write(ctx, top.Dev(), 96<<20, 999)
		}
		rounds, loadErr := stop()
		if err != nil || loadErr != nil {
			return fmt.Errorf("%v; %v\n%s", err, loadErr, m.KernelLog())
		}
		for _, f := range append(slices.Clone(paths), top) {
			if got, err := m.ReadAttr(ctx, f.Sysfs("queue/max_sectors_kb")); err != nil || got != "512" {
				return fmt.Errorf("%s: max_sectors_kb %s %v, want 512", f.Name, got, err)
			}
		}
		if largest, n := disk.Largest(faultdisk.Write); largest > 512<<10 || n == 0 {
			return fmt.Errorf("after the sequence the disk saw %d writes, the largest of %d KiB", n, largest>>10)
		}
		if log := m.KernelLog(); strings.Contains(log, "over max size") || strings.Contains(log, "Failing path") {
			return fmt.Errorf("the kernel complains:\n%s", log)
		}
		s.t.Logf("sequence carried out under load (%d rounds of 16 MiB written and compared), no path failed", rounds)

		// The naive way, which the refusal prevents: one path alone.
		if err := m.WriteAttr(ctx, paths[0].Sysfs("queue/max_sectors_kb"), "128"); err != nil {
			return err
		}
		if _, err := s.write(ctx, top.Dev(), 0, 1000); err != nil {
			s.t.Logf("naive way: %v", err)
		}
		status, err := m.Output(ctx, "dmsetup", "status", "mp")
		if err != nil {
			return err
		}
		log := m.KernelLog()
		if !strings.Contains(log, "over max size") && !strings.Contains(status, " F ") {
			return fmt.Errorf("the naive way did no harm; the test shows nothing: %s", status)
		}
		s.t.Logf("the naive way fails a path: %s", strings.TrimSpace(status))
		return m.DMRemove(ctx, "mp")
	}
}

// stacks: bio-based devices on top, enforced under load with verification.
func (s *story) stacks(ctx context.Context) error {
	m := s.m
	found := map[string]vm.Found{}
	for _, serial := range []string{"LIN1", "CRY1", "R1A", "R1B", "R5A", "R5B", "R5C"} {
		d, err := m.Disk(ctx, serial)
		if err != nil {
			return err
		}
		found[serial] = d
	}
	if err := m.RequestSizes(ctx); err != nil {
		return err
	}
	for _, c := range []struct {
		name    string
		members []string
		make    func() (vm.Found, error)
		drop    func() error
	}{
		{"dm-linear", []string{"LIN1"}, func() (vm.Found, error) { return m.DMLinear(ctx, "lin", found["LIN1"]) }, func() error { return m.DMRemove(ctx, "lin") }},
		{"dm-crypt", []string{"CRY1"}, func() (vm.Found, error) { return m.DMCrypt(ctx, "cry", found["CRY1"]) }, func() error { return m.DMRemove(ctx, "cry") }},
		{"raid1", []string{"R1A", "R1B"}, func() (vm.Found, error) { return m.MDCreate(ctx, "md1", 1, found["R1A"], found["R1B"]) }, func() error { return m.MDStop(ctx, "md1", found["R1A"], found["R1B"]) }},
		{"raid5", []string{"R5A", "R5B", "R5C"}, func() (vm.Found, error) { return m.MDCreate(ctx, "md5", 5, found["R5A"], found["R5B"], found["R5C"]) }, func() error { return m.MDStop(ctx, "md5", found["R5A"], found["R5B"], found["R5C"]) }},
	} {
		top, err := c.make()
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		args := []string{"--apply"}
		for _, serial := range c.members {
			args = append(args, found[serial].Name)
		}
		stop := s.load(ctx, top.Dev(), 32<<20) // the first 32 MiB; the rest is ours
		e, err := s.enforce(ctx, args...)
		if err == nil && (e.exit != 0 || len(e.Plan.Steps) != len(c.members)) {
			err = fmt.Errorf("status %d, %d steps\n%s", e.exit, len(e.Plan.Steps), e.text)
		}
		if err == nil { // what was in flight is gone after one more round
			_, err = s.write(ctx, top.Dev(), 40<<20, 77)
		}
		if err == nil { // forget what was before
			_, err = m.TakeRequestSizes(ctx)
		}
		if err == nil {
			_, err = s.write(ctx, top.Dev(), 40<<20, 78)
		}
		rounds, loadErr := stop()
		if err != nil || loadErr != nil {
			return fmt.Errorf("%s: %v; %v\n%s", c.name, err, loadErr, m.KernelLog())
		}
		sizes, err := m.TakeRequestSizes(ctx)
		if err != nil {
			return err
		}
		largest, seen := s.largest(ctx, sizes, c.members, found)
		if largest > 1024 || seen == 0 {
			return fmt.Errorf("%s: %d kinds of requests to the members, the largest of %d sectors: %v", c.name, seen, largest, sizes)
		}
		s.t.Logf("%s: enforced under load, %d rounds without an error, members' largest request %d sectors", c.name, rounds, largest)
		if err := c.drop(); err != nil {
			return err
		}
	}
	if log := m.KernelLog(); strings.Contains(log, "I/O error") {
		return fmt.Errorf("the kernel noticed:\n%s", log)
	}
	return nil
}

// largest is the largest request to the members, in sectors.
func (s *story) largest(ctx context.Context, sizes []vm.RequestSize, members []string, found map[string]vm.Found) (largest, seen int) {
	for _, serial := range members {
		dev, err := s.m.ReadAttr(ctx, found[serial].Sysfs("dev"))
		if err != nil {
			return 0, 0
		}
		for _, r := range sizes {
			if r.Dev == dev {
				seen++
				largest = max(largest, r.Sectors)
			}
		}
	}
	return largest, seen
}

// trouble: a journal that cannot be kept keeps enforce from writing.
func (s *story) trouble(ctx context.Context) error {
	m := s.m
	d, err := m.Disk(ctx, "BAD1")
	if err != nil {
		return err
	}
	before, err := s.limit(ctx, "BAD1")
	if err != nil {
		return err
	}
	if err := m.WriteFile(ctx, "/tmp/corrupt.db", []byte(strings.Repeat("no database ", 1000)), 0o600); err != nil {
		return err
	}
	for _, c := range []struct{ name, prepare, state, says string }{
		{"a corrupt state file", "true", "/tmp/corrupt.db", "/tmp/corrupt.db"},
		{"a full disk", "mkdir -p /full && mount -t tmpfs -o size=16k tmpfs /full && (cat /dev/zero > /full/fill; true)", "/full/state.db", "/full"},
		{"a read-only folder", "mkdir -p /ro && mount -t tmpfs -o ro tmpfs /ro", "/ro/state.db", "/ro"},
	} {
		if _, err := m.Output(ctx, "sh", "-c", c.prepare); err != nil {
			return err
		}
		out, err := s.status(ctx, 8, "quirkcheck", "enforce", "--apply", "--state", c.state, d.Name)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		if !strings.Contains(out, c.says) {
			return fmt.Errorf("%s: the error does not name it:\n%s", c.name, out)
		}
		if err := s.wantLimit(ctx, c.name, "BAD1", before); err != nil {
			return err
		}
	}
	if _, err := m.Output(ctx, "mount", "-o", "remount,ro", "/sys"); err != nil {
		return err
	}
	e, err := s.enforce(ctx, "--apply", d.Name)
	if err != nil || e.exit != 6 || !strings.Contains(e.text, "read-only") {
		return fmt.Errorf("read-only sysfs: status %d %v\n%s", e.exit, err, e.text)
	}
	_, err = m.Output(ctx, "mount", "-o", "remount,rw", "/sys")
	return err
}

// TestVMManyDisks: 500 disks are written once each, and a second run writes
// nothing. The journal counts.
func TestVMManyDisks(t *testing.T) {
	vm.Require(t, vm.Peers...)
	binary := filepath.Join(t.TempDir(), "quirkcheck")
	if err := vm.BuildStatic(t.Context(), "github.com/quirkcheck/quirkcheck/cmd/quirkcheck", binary); err != nil {
		t.Fatal(err)
	}
	const disks = 500
	vm.Test(t, vm.Config{Kernel: vm.Stock(t), Binary: binary, MemoryMiB: 640}, func(ctx context.Context, m *vm.Machine) error {
		s := &story{t, m}
		// An optimal size of 1 MiB is the default limit of these disks.
		if _, err := m.ScsiDebug(ctx, fmt.Sprintf("num_tgts=%d", disks), "max_luns=1", "dev_size_mb=4", "fake_rw=1", "delay=0", "opt_blks=2048",
			// Padded, or the rest of the driver's own names shows behind. No ATA
			// name: VPD page 89h of scsi_debug holds an IDENTIFY of its own.
			"inq_vendor=Areca   ", "inq_product=ARC-5020-VOL#00 ", "inq_rev=R001"); err != nil {
			return err
		}
		count := func() (int, error) {
			out, err := s.status(ctx, 0, "quirkcheck", "history", "--limit", "0", "--format", "json")
			return strings.Count(out, `"state": "written"`), err
		}
		e, err := s.enforce(ctx, "--apply", "--include", "suspected")
		if err != nil || e.exit != 0 || len(e.Plan.Steps) != disks {
			look, _ := m.Run(ctx, "sh", "-c", "quirkcheck scan | head -3; cd /sys/block/sda && od -c device/vendor && od -c device/model && cat queue/max_sectors_kb")
			return fmt.Errorf("first run: status %d, %d steps, %v\n%.1000s\n%s", e.exit, len(e.Plan.Steps), err, e.text, look.Stdout)
		}
		first, err := count()
		if err != nil || first != disks {
			return fmt.Errorf("first run: %d writes in the journal, %v", first, err)
		}
		e, err = s.enforce(ctx, "--apply", "--include", "suspected")
		if err != nil || e.exit != 0 || len(e.Plan.Steps) != 0 || len(e.Plan.Satisfied) != disks {
			return fmt.Errorf("second run: status %d, %d steps, %d satisfied, %v", e.exit, len(e.Plan.Steps), len(e.Plan.Satisfied), err)
		}
		second, err := count()
		if err != nil || second != disks {
			return fmt.Errorf("second run: %d writes in the journal, want %d still, %v", second, disks, err)
		}
		t.Logf("%d disks: %d writes by the first run, %d by the second", disks, first, second-first)
		return nil
	})
}

// TestVMPowerCutInApply cuts the power while apply and persist run in a loop
// on a file system of their own, and looks at what is left.
func TestVMPowerCutInApply(t *testing.T) {
	vm.Require(t, append([]string{"mkfs.ext4"}, vm.Peers...)...)
	binary := filepath.Join(t.TempDir(), "quirkcheck")
	if err := vm.BuildStatic(t.Context(), "github.com/quirkcheck/quirkcheck/cmd/quirkcheck", binary); err != nil {
		t.Fatal(err)
	}
	store := vm.TestImage(t, 64<<20)
	cfg := vm.Config{Kernel: vm.Stock(t), Binary: binary, Tools: []string{"mkfs.ext4"}, Udev: true, Disks: []vm.Disk{
		bad("BAD1", vm.TestImage(t, 64<<20)), {Serial: "STORE1", Bus: vm.VirtioBlk, Image: store},
	}}
	const mount = `modprobe ext4; mkdir -p /p && mount -t ext4 %s /p && mkdir -p /p/rules /p/state && mkdir -p /etc/udev && rm -rf /etc/udev/rules.d && ln -s /p/rules /etc/udev/rules.d`
	var rule []byte
	vm.Test(t, cfg, func(ctx context.Context, m *vm.Machine) error {
		s := &story{t, m}
		d, err := m.Disk(ctx, "STORE1")
		if err != nil {
			return err
		}
		if _, err := m.Output(ctx, "mkfs.ext4", "-q", "-F", d.Dev()); err != nil {
			return err
		}
		if err := m.Modprobe(ctx, "ext4"); err != nil {
			return err
		}
		if _, err := m.Output(ctx, "sh", "-c", fmt.Sprintf(mount, d.Dev())); err != nil {
			return err
		}
		// One whole round, for the rule as it must be; then rounds until the cut.
		if _, err := s.status(ctx, 0, "quirkcheck", "enforce", "--apply", "--persist", "--state", "/p/state/s.db"); err != nil {
			return err
		}
		if rule, err = m.ReadFile(ctx, "/p/rules/"+enforce.RuleFile); err != nil {
			return err
		}
		go m.Run(ctx, "sh", "-c", "while true; do quirkcheck revert --all --state /p/state/s.db; quirkcheck unpersist; quirkcheck enforce --apply --persist --state /p/state/s.db; done")
		select {
		case <-time.After(4 * time.Second):
		case <-ctx.Done():
		}
		m.PowerCut()
		return nil
	})
	if t.Failed() {
		return
	}
	vm.Test(t, cfg, func(ctx context.Context, m *vm.Machine) error {
		s := &story{t, m}
		d, err := m.Disk(ctx, "STORE1")
		if err != nil {
			return err
		}
		if err := m.Modprobe(ctx, "ext4"); err != nil {
			return err
		}
		if _, err := m.Output(ctx, "sh", "-c", fmt.Sprintf(mount, d.Dev())); err != nil {
			return err
		}
		before, err := s.limit(ctx, "BAD1")
		if err != nil {
			return err
		}
		out, err := s.status(ctx, 0, "quirkcheck", "history", "--state", "/p/state/s.db", "--limit", "0")
		if err != nil {
			return fmt.Errorf("the journal does not open after a power cut: %w", err)
		}
		got, err := m.ReadFile(ctx, "/p/rules/"+enforce.RuleFile)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			t.Log("the rule is absent")
		case err != nil:
			return err
		case string(got) != string(rule):
			return fmt.Errorf("the rule is neither whole nor absent: %q", got)
		default:
			t.Log("the rule is whole")
		}
		if _, err := s.status(ctx, 5, "quirkcheck", "revert", "--all", "--state", "/p/state/s.db"); err != nil {
			return fmt.Errorf("something of the old boot was written back: %w", err)
		}
		t.Logf("the journal opens, with %d lines", strings.Count(out, "\n"))
		return s.wantLimit(ctx, "after the power cut", "BAD1", before)
	})
}
