package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/internal/vm/faultdisk"
)

// menu is one disk on each bus, with all that can be set on it.
func menu(t testing.TB) []Disk {
	scsi := func(bus Bus, serial string) Disk {
		return Disk{
			Serial: serial, Bus: bus, Image: TestImage(t, 64<<20),
			Vendor: "ACME", Product: "DISK " + serial, Revision: "R1.0",
			MaxIOBytes: 1 << 20, OptIOBytes: 256 << 10, RotationRate: 7200,
		}
	}
	return []Disk{
		{
			Serial: "SATA1", Bus: AHCI, Image: TestImage(t, 64<<20),
			Model: "ST380013AS", Firmware: "3.20", RotationRate: 7200,
		},
		{Serial: "DELL1", Bus: AHCI, Image: TestImage(t, 64<<20), Model: "DELLBOSS VD", Firmware: "MV.R00-0"},
		{
			Serial: "SYNO1", Bus: VirtioSCSI, Image: TestImage(t, 64<<20),
			Vendor: "SYNOLOGY", Product: "iSCSI Storage", Revision: "4.0",
		},
		scsi(VirtioSCSI, "VIRTIO1"),
		scsi(MegaSAS, "MEGA1"),
		scsi(MPTSAS, "MPT1"),
		scsi(PVSCSI, "PV1"),
		scsi(UAS, "UAS1"),
		scsi(USBStorage, "BOT1"),
		{Serial: "NVME1", Bus: NVMe, Image: TestImage(t, 64<<20), MDTS: 4, Hotplug: true},
		{
			Serial: "VBLK1", Bus: VirtioBlk, Image: TestImage(t, 64<<20),
			LogicalBlockBytes: 4096, PhysicalBlockBytes: 4096,
		},
	}
}

// menuParameters lift the limit that QEMU's SATA disks have as "bridged" ones,
// and leave the kernel's table of quirks in force.
var menuParameters = []string{"libata.force=80c"}

// wantLimits are the max_sectors_kb of the disks that some kernels protect, by
// series. The others are not compared.
var wantLimits = map[string]map[string]string{
	"5.10.": {"DELL1": "1280", "SYNO1": "512"},
	"6.1.":  {"DELL1": "1280", "SYNO1": "512"},
	"6.12.": {"DELL1": "1280", "SYNO1": "1280"},
	"6.16.": {"DELL1": "1280", "SYNO1": "1280"},
	"6.18.": {"DELL1": "4096", "SYNO1": "4096"},
	"7.3.":  {"DELL1": "4095", "SYNO1": "4096"},
}

// wantMenu is what sysfs shows of menu: the path below /sys/block/NAME, and
// its content without white space at the ends.
//
// The Block Limits page counts in logical blocks, which are 512 bytes here:
// 2048 and 512.
func wantMenu() map[string]map[string]string {
	const b0 = " max 2048 opt 512"
	scsi := func(serial string) map[string]string {
		return map[string]string{
			"device/vendor": "ACME", "device/model": "DISK " + serial, "device/rev": "R1.0",
			"queue/rotational": "1", "vpd b0": b0, "size": "131072",
		}
	}
	want := map[string]map[string]string{
		"SATA1": {
			"device/vendor": "ATA", "device/model": "ST380013AS", "device/rev": "3.20", "queue/rotational": "1", "size": "131072",
			"queue/max_sectors_kb": "512", // by libata's own quirk
		},
		"DELL1": {"device/model": "DELLBOSS VD", "device/rev": "00-0"},
		"SYNO1": {"device/vendor": "SYNOLOGY", "device/model": "iSCSI Storage", "device/rev": "4.0"},
		"NVME1": {
			// 2^4 pages of 4 KiB.
			"device/model": "QEMU NVMe Ctrl", "queue/max_hw_sectors_kb": "64", "queue/rotational": "0",
		},
		"VBLK1": {"queue/logical_block_size": "4096", "queue/physical_block_size": "4096", "size": "131072"},
	}
	for _, s := range []string{"VIRTIO1", "MEGA1", "MPT1", "PV1", "UAS1", "BOT1"} {
		want[s] = scsi(s)
	}
	// The kernel never asks a bulk-only bridge for VPD pages.
	delete(want["BOT1"], "vpd b0")
	delete(want["BOT1"], "queue/rotational")
	return want
}

var wantDriver = map[string]string{
	"SATA1": "ahci", "DELL1": "ahci", "SYNO1": "virtio_scsi", "VIRTIO1": "virtio_scsi", "MEGA1": "megaraid_sas", "MPT1": "mptsas", "PV1": "vmw_pvscsi",
	"UAS1": "uas", "BOT1": "usb-storage", "NVME1": "nvme", "VBLK1": "virtio_blk",
}

// checkMenu compares the guest's sysfs with the menu and logs both.
func checkMenu(ctx context.Context, t *testing.T, m *Machine) error {
	disks, err := m.AllDisks(ctx)
	if err != nil {
		return err
	}
	names := map[string]Found{}
	for _, d := range disks {
		names[d.Serial] = d
	}
	files, err := m.Glob(ctx, "/sys/block/*/device/*", "/sys/block/*/queue/*", "/sys/block/*/size")
	if err != nil {
		return err
	}
	content := map[string]string{}
	for _, f := range files {
		content[f.Path] = string(f.Content)
	}
	want := wantMenu()
	for series, limits := range wantLimits {
		for serial, kib := range limits {
			if strings.HasPrefix(m.Release(), series) {
				want[serial]["queue/max_sectors_kb"] = kib
			}
		}
	}
	for _, serial := range slices.Sorted(maps.Keys(want)) {
		d, ok := names[serial]
		if !ok {
			t.Errorf("%s: not in the guest", serial)
			continue
		}
		if d.Driver != wantDriver[serial] {
			t.Errorf("%s: driver %q, want %q", serial, d.Driver, wantDriver[serial])
		}
		got := map[string]string{}
		for attr := range want[serial] {
			if attr == "vpd b0" {
				got[attr] = blockLimits([]byte(content[d.Sysfs("device/vpd_pgb0")]))
				continue
			}
			got[attr] = strings.TrimSpace(content[d.Sysfs(attr)])
		}
		if strings.HasPrefix(m.Release(), "5.") { // which has no such file
			delete(want[serial], "vpd b0")
			delete(got, "vpd b0")
		}
		if diff := cmp.Diff(want[serial], got); diff != "" {
			t.Errorf("%s (%s): sysfs (-want +got):\n%s", serial, d.Name, diff)
		}
		t.Logf("%-8s %-8s %-12s max_sectors_kb %s max_hw_sectors_kb %s max_segments %s", serial, d.Name, d.Driver,
			strings.TrimSpace(content[d.Sysfs("queue/max_sectors_kb")]), strings.TrimSpace(content[d.Sysfs("queue/max_hw_sectors_kb")]),
			strings.TrimSpace(content[d.Sysfs("queue/max_segments")]))
	}
	return nil
}

// blockLimits reads MAXIMUM and OPTIMAL TRANSFER LENGTH (SBC-4, Block Limits
// VPD page).
func blockLimits(p []byte) string {
	if len(p) < 16 {
		return ""
	}
	be := func(b []byte) uint32 { return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3]) }
	return fmt.Sprintf(" max %d opt %d", be(p[8:]), be(p[12:]))
}

// corrupter damages what the ST380013AS of 2015 damaged: one byte behind the
// first 512 KiB of each larger write.
func corrupter() faultdisk.Fault {
	return faultdisk.Fault{
		Name: "one byte past 512 KiB",
		When: faultdisk.All(faultdisk.Is(faultdisk.Write), faultdisk.LongerThan(512<<10)),
		Do:   faultdisk.Flip(600 << 10),
	}
}

// TestVMBench boots one machine with the whole menu and a faulty disk, and shows
// that what the bench promises is so.
func TestVMBench(t *testing.T) {
	Require(t, slices.Concat(Peers, Stackers)...)
	bad := faultdisk.New(256<<20, faultdisk.Options{Faults: []faultdisk.Fault{corrupter()}, Seed: 1})
	two := TestImage(t, 64<<20)
	path := func(id string) Disk {
		return Disk{
			ID: id, Serial: "MP1", Bus: VirtioSCSI, Controller: id, Image: two, Shared: true, WWN: 0x5000c50015ea71aa,
		}
	}
	disks := append(menu(t),
		Disk{Serial: "BAD1", Bus: VirtioSCSI, Image: ServeNBD(t, bad), Vendor: "ATA", Product: "ST380013AS", Revision: "3.20"},
		Disk{Serial: "LATE1", Bus: VirtioSCSI, Image: TestImage(t, 64<<20), Later: true},
		path("mpa"), path("mpb"),
		Disk{Serial: "M1", Bus: VirtioSCSI, Image: TestImage(t, 64<<20)},
		Disk{Serial: "M2", Bus: VirtioSCSI, Image: TestImage(t, 64<<20)},
		Disk{Serial: "M3", Bus: VirtioSCSI, Image: TestImage(t, 64<<20)},
	)
	begin := time.Now()
	Test(t, Config{
		Kernel: Stock(t), Binary: buildQuirkcheck(t), Tools: slices.Concat(Peers, Stackers), Disks: disks, MemoryMiB: 416, Append: menuParameters,
	}, func(ctx context.Context, m *Machine) error {
		t.Logf("Linux %s up after %s s, disks there after %.1f s", m.Release(), m.BootSeconds(), time.Since(begin).Seconds())
		step := func(name string, f func(ctx context.Context, t *testing.T, m *Machine) error) {
			t.Run(name, func(t *testing.T) {
				if err := f(ctx, t, m); err != nil {
					t.Error(err)
				}
			})
		}
		step("identity and limits", checkMenu)
		step("scan agrees with its peers", scanAgrees)
		step("scan says what the kernel protects", scanVerdicts)
		step("disks that lie", tcmuDisks)
		step("corruption of 2015", func(ctx context.Context, t *testing.T, m *Machine) error { return corruption(ctx, t, m, bad) })
		step("peers run", peers)
		step("agent", agent)
		step("hot plug", hotplug)
		step("stacks", stacks)
		step("scsi_debug", scsiDebug)
		return nil
	})
}

// corruption writes 4 MiB at once to the faulty disk. Below 512 KiB its data
// comes back as written; above it does not, and nobody said a word.
func corruption(ctx context.Context, t *testing.T, m *Machine, bad *faultdisk.Disk) error {
	d, err := m.Disk(ctx, "BAD1")
	if err != nil {
		return err
	}
	t.Logf("faults seeded with %d", bad.Seed())
	standard, err := m.ReadAttr(ctx, d.Sysfs("queue/max_sectors_kb"))
	if err != nil {
		return err
	}
	hw, err := m.ReadAttr(ctx, d.Sysfs("queue/max_hw_sectors_kb"))
	if err != nil {
		return err
	}
	const total = 32 << 20
	for i, c := range []struct {
		name, kib string
		damaged   bool
		largest   int // bytes; 0 is not compared
	}{
		{"512", "512", false, 512 << 10},
		{"1280", "1280", true, 1280 << 10},
		{"the default", standard, true, 0},
		{"the hardware's", hw, true, 4 << 20},
		{"512 again", "512", false, 512 << 10},
	} {
		if err := m.WriteAttr(ctx, d.Sysfs("queue/max_sectors_kb"), c.kib); err != nil {
			return err
		}
		bad.ResetLog()
		work := Direct{Path: d.Dev(), Offset: int64(i) * total, Bytes: total, BlockBytes: 4 << 20, Seed: uint64(i + 1)}
		if err := m.DirectWrite(ctx, work); err != nil {
			return fmt.Errorf("at max_sectors_kb %s: %w", c.kib, err)
		}
		// Read in small pieces: this disk damages writes.
		work.BlockBytes = 256 << 10
		got, err := m.DirectCompare(ctx, work)
		if err != nil {
			return err
		}
		largest, count := bad.Largest(faultdisk.Write)
		t.Logf("max_sectors_kb %s (%s): %d of %d bytes differ; the disk saw %d writes, the largest of %d sectors",
			c.name, c.kib, got.Mismatched, total, count, largest/faultdisk.SectorBytes)
		if (got.Mismatched > 0) != c.damaged {
			t.Errorf("max_sectors_kb %s: %d bytes differ, want damage %v", c.kib, got.Mismatched, c.damaged)
		}
		if c.largest != 0 && largest != c.largest {
			t.Errorf("max_sectors_kb %s: largest write has %d bytes, want %d", c.kib, largest, c.largest)
		}
		if got.Mismatched > 0 && got.First[0].Want^got.First[0].Got != 1 {
			t.Errorf("max_sectors_kb %s: byte %+v differs by more than the bit flipped", c.kib, got.First[0])
		}
	}
	if log := m.KernelLog(); strings.Contains(log, "I/O error") {
		t.Errorf("the kernel noticed:\n%s", log)
	}
	return nil
}

// peers shows that the programs tests compare with run in the guest, libraries
// and all, and see what the menu set.
func peers(ctx context.Context, t *testing.T, m *Machine) error {
	virtio, err := m.Disk(ctx, "VIRTIO1")
	if err != nil {
		return err
	}
	sata, err := m.Disk(ctx, "SATA1")
	if err != nil {
		return err
	}
	nvme, err := m.Disk(ctx, "NVME1")
	if err != nil {
		return err
	}
	for _, c := range []struct{ command, want string }{
		{"lsblk --version", "lsblk from util-linux"},
		{"lsblk -dno NAME,MODEL " + virtio.Dev(), "DISK VIRTIO1"},
		{"lsscsi", "DISK VIRTIO1"},
		{"sg_inq " + virtio.Dev(), "Product identification: DISK VIRTIO1"},
		{"sg_vpd -p bl " + virtio.Dev(), "Maximum transfer length: 2048 blocks"},
		{"sg_readcap -16 " + virtio.Dev(), "Logical block length=512 bytes"},
		{"sg_turs -v " + virtio.Dev(), ""},
		{"sg_raw -R -r 36 " + virtio.Dev() + " 12 00 00 00 24 00", "SCSI Status: Good"},
		{"hdparm -I " + sata.Dev(), "ST380013AS"},
		{"nvme list", "QEMU NVMe Ctrl"},
		{"nvme id-ctrl " + nvme.Dev(), "mdts      : 4"},
		{"blkid --version", "blkid from util-linux"},
		{"dmsetup version", "Driver version"},
		{"cryptsetup --version", "cryptsetup 2"},
		{"mdadm --version", "mdadm - v4"},
		{"multipath -h", "multipath-tools v"},
	} {
		r, err := m.Run(ctx, strings.Fields(c.command)...)
		if err != nil {
			return err
		}
		out := string(r.Stdout) + string(r.Stderr)
		if !strings.Contains(out, c.want) || r.Exit != 0 && !strings.HasPrefix(c.command, "multipath") {
			t.Errorf("%s: %v, want %q in\n%s", c.command, r.Err(), c.want, out)
		}
	}
	return nil
}

// agent shows what commands and files give back.
func agent(ctx context.Context, t *testing.T, m *Machine) error {
	r, err := m.RunCmd(ctx, Cmd{Args: []string{"sh", "-c", "cat; echo oops >&2; id -u; exit 3"}, Stdin: []byte("in\n"), UID: 65534, GID: 65534})
	if err != nil {
		return err
	}
	if string(r.Stdout) != "in\n65534\n" || string(r.Stderr) != "oops\n" || r.Exit != 3 {
		t.Errorf("got %q %q exit %d, want in, 65534; oops; 3", r.Stdout, r.Stderr, r.Exit)
	}
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), "exit status 3: oops") {
		t.Errorf("Err is %v, want the status and what was said", err)
	}
	if r, err = m.RunCmd(ctx, Cmd{Args: []string{"sh", "-c", "sleep 100 & sleep 100"}, Timeout: time.Second}); err != nil || !r.TimedOut || r.Signal != syscall.SIGKILL {
		t.Errorf("a command that never ends: %+v %v, want it killed", r, err)
	}
	if _, err = m.Run(ctx, "no-such-program"); err == nil {
		t.Error("a program that is not there: no error")
	}
	if r, err = m.Run(ctx, "sh", "-c", "kill -SEGV $$"); err != nil || r.Exit != 139 {
		t.Errorf("a program that dies: %+v %v, want 139", r, err)
	}
	// What init inherits it collects, sooner or later after another command.
	if _, err = m.Output(ctx, "sh", "-c", "sleep 0.1 >/dev/null 2>&1 &"); err != nil {
		return err
	}
	err = m.Poll(ctx, "an orphan to be collected", func() (bool, error) {
		out, err := m.Output(ctx, "sh", "-c", "grep -l '^[0-9]* (sleep)' /proc/[0-9]*/stat 2>/dev/null; true")
		return out == "", err
	})
	if err != nil {
		return err
	}
	want := []byte(strings.Repeat("\x00\x01\n{", 1<<18))
	if err := m.WriteFile(ctx, "/tmp/d/f", want, 0o600); err != nil {
		return err
	}
	got, err := m.ReadFile(ctx, "/tmp/d/f")
	if err != nil || string(got) != string(want) {
		t.Errorf("1 MiB came back as %d bytes, %v", len(got), err)
	}
	if _, err := m.ReadFile(ctx, "/nowhere"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading what is not there: %v, want fs.ErrNotExist", err)
	}
	if err := m.WriteAttr(ctx, "/tmp/d/none", "x"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("writing an attribute that is not there: %v, want fs.ErrNotExist", err)
	}
	d, err := m.Disk(ctx, "VIRTIO1")
	if err != nil {
		return err
	}
	if err := m.WriteAttr(ctx, d.Sysfs("queue/max_sectors_kb"), "1"); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("1 in max_sectors_kb: %v, want EINVAL", err)
	}
	begin := time.Now()
	archive, err := m.Tree(ctx, d.Path, "/sys/class/block")
	if err != nil {
		return err
	}
	files, err := untar(archive)
	if err != nil {
		return err
	}
	t.Logf("copied %d entries of sysfs, %d bytes, in %.1f s", len(files), len(archive), time.Since(begin).Seconds())
	dir := strings.TrimPrefix(d.Path, "/")
	if got := files[dir+"/queue/rotational"].content; got != "1\n" {
		t.Errorf("queue/rotational in the archive is %q, want 1", got)
	}
	if got := files["sys/class/block/"+d.Name].link; !strings.HasSuffix(got, "/block/"+d.Name) {
		t.Errorf("link of the class is %q", got)
	}
	unreadable := 0
	for _, f := range files {
		if f.errno != "" {
			unreadable++
		}
	}
	if unreadable == 0 {
		t.Error("no file of the archive is marked unreadable; trigger files of sysfs are")
	}
	// Requests do not wait for each other.
	slow := make(chan error, 1)
	go func() {
		_, err := m.Output(ctx, "sleep", "2")
		slow <- err
	}()
	if _, err := m.Output(ctx, "true"); err != nil {
		return err
	}
	select {
	case <-slow:
		t.Error("a second command waited for the first")
	default:
	}
	return <-slow
}

func hotplug(ctx context.Context, t *testing.T, m *Machine) error {
	if _, err := m.QMP(ctx, "no-such-command", nil); err == nil {
		t.Error("QMP accepted nonsense")
	} else if e := (*QMPError)(nil); !errors.As(err, &e) {
		t.Errorf("QMP refused nonsense with %T, want *QMPError", err)
	}
	late, err := m.Plug(ctx, "LATE1")
	if err != nil {
		return err
	}
	t.Logf("LATE1 is %s", late.Name)
	for _, id := range []string{"LATE1", "NVME1"} {
		if err := m.Unplug(ctx, id); err != nil {
			return err
		}
		err := m.Poll(ctx, id+" to go", func() (bool, error) {
			all, err := m.AllDisks(ctx)
			return !slices.ContainsFunc(all, func(d Found) bool { return d.Serial == id }), err
		})
		if err != nil {
			return err
		}
		if _, err := m.Plug(ctx, id); err != nil {
			return err
		}
	}
	return nil
}

func stacks(ctx context.Context, t *testing.T, m *Machine) error {
	var d []Found
	for _, s := range []string{"M1", "M2", "M3"} {
		f, err := m.Disk(ctx, s)
		if err != nil {
			return err
		}
		d = append(d, f)
	}
	both, err := m.Paths(ctx, "MP1", 2)
	if err != nil {
		return err
	}
	slaves := func(f Found) []string {
		out, err := m.Output(ctx, "ls", f.Sysfs("slaves"))
		if err != nil {
			t.Error(err)
		}
		return strings.Fields(out)
	}
	// usable writes through the stack and reads back.
	usable := func(what string, f Found, err error, members ...Found) {
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		var want []string
		for _, m := range members {
			want = append(want, m.Name)
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, slaves(f)); diff != "" {
			t.Errorf("%s: members (-want +got):\n%s", what, diff)
		}
		work := Direct{Path: f.Dev(), Bytes: 8 << 20, BlockBytes: 1 << 20, Seed: 7}
		if err := m.DirectWrite(ctx, work); err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		if got, err := m.DirectCompare(ctx, work); err != nil || got.Mismatched != 0 {
			t.Errorf("%s: %d bytes differ, %v", what, got.Mismatched, err)
		}
		limit, _ := m.ReadAttr(ctx, f.Sysfs("queue/max_sectors_kb"))
		t.Logf("%-10s %s over %v, max_sectors_kb %s", what, f.Name, want, limit)
	}
	// told is what scan says of one stacked device, and its findings by id.
	told := func(f Found) (*checker.Device, map[string]checker.Verdict) {
		r, _, err := scanMachine(ctx, m, Cmd{Args: []string{"quirkcheck", "scan", "--format", "json", f.Name}})
		if err != nil || len(r.Devices) != 1 || r.Devices[0].Stack == nil {
			t.Errorf("scan %s: %+v, %v", f.Name, r, err)
			return nil, nil
		}
		found := map[string]checker.Verdict{}
		for _, f := range r.Findings {
			found[f.Quirk] = f.Verdict
		}
		return r.Devices[0], found
	}
	remove := func(name string) {
		if err := m.DMRemove(ctx, name); err != nil {
			t.Error(err)
		}
	}
	f, err := m.DMLinear(ctx, "lin", d[0])
	usable("linear", f, err, d[0])
	remove("lin")
	f, err = m.DMStriped(ctx, "str", 128, d[0], d[1])
	usable("striped", f, err, d[0], d[1])
	if s, _ := told(f); s != nil && (str(s.Stack.Target) != "striped" || num(s.Stack.ChunkBytes) != "65536" || s.Stack.Disks == nil || *s.Stack.Disks != 2 || len(s.Below) != 2) {
		t.Errorf("scan takes the stripe for %+v over %+v", s.Stack, s.Below)
	}
	remove("str")
	f, err = m.DMCrypt(ctx, "cry", d[0])
	usable("crypt", f, err, d[0])
	remove("cry")
	f, err = m.DMMultipath(ctx, "mp", "mq", both...)
	usable("multipath", f, err, both...)
	if s, found := told(f); s != nil && (str(s.Stack.Target) != "multipath" || len(found) != 0) {
		t.Errorf("scan takes the map for %+v, findings %v", s.Stack, found)
	}
	if err := oneLowPath(ctx, t, m, f, both[0], told); err != nil {
		t.Error(err)
	}
	remove("mp")
	for _, level := range []int{0, 1, 5} {
		name := "md" + strconv.Itoa(level)
		f, err := m.MDCreate(ctx, name, level, d...)
		usable("raid"+strconv.Itoa(level), f, err, d...)
		if s, _ := told(f); s != nil && (str(s.Stack.Level) != "raid"+strconv.Itoa(level) || s.Stack.Disks == nil || *s.Stack.Disks != 3 || (level != 1) != (s.Stack.ChunkBytes != nil)) {
			t.Errorf("scan takes %s for %+v", name, s.Stack)
		}
		if err := m.MDStop(ctx, name, d...); err != nil {
			t.Error(err)
		}
	}
	return nil
}

// oneLowPath lowers one path of an idle map, which is the fault that scan is to
// tell, and raises it again.
func oneLowPath(ctx context.Context, t *testing.T, m *Machine, mp, low Found, told func(Found) (*checker.Device, map[string]checker.Verdict)) error {
	attr := low.Sysfs("queue/max_sectors_kb")
	before, err := m.ReadAttr(ctx, attr)
	if err != nil {
		return err
	}
	if err := m.WriteAttr(ctx, attr, "256"); err != nil {
		return err
	}
	s, found := told(mp)
	if s != nil && (found["stack-exceeds-member"] != checker.Affected || found["multipath-paths-differ"] != checker.Affected || num(s.Recommended.MaxSectorsKB) != "256") {
		t.Errorf("a path at 256 KiB below a map at %s: findings %v, advised %s", num(s.Limits.MaxSectorsKB), found, num(s.Recommended.MaxSectorsKB))
	}
	return m.WriteAttr(ctx, attr, before)
}

func scsiDebug(ctx context.Context, t *testing.T, m *Machine) error {
	ds, err := m.ScsiDebug(ctx, "num_tgts=2", "dev_size_mb=8", "delay=0", "inq_vendor=SYNOLOGY", "inq_product=iSCSI Storage")
	if err != nil {
		return err
	}
	if len(ds) != 2 {
		t.Errorf("%d disks, want 2", len(ds))
	}
	model, err := m.ReadAttr(ctx, ds[0].Sysfs("device/model"))
	if err != nil {
		return err
	}
	if !strings.HasPrefix(model, "iSCSI Storage") {
		t.Errorf("model %q, want iSCSI Storage", model)
	}
	if err := m.CountCommands(ctx); err != nil {
		return err
	}
	if _, err := m.Output(ctx, "sg_inq", ds[0].Dev()); err != nil {
		return err
	}
	cmds, err := m.Commands(ctx)
	if err != nil {
		return err
	}
	n := 0
	for _, c := range cmds {
		if c.Name == "INQUIRY" {
			n++
		}
	}
	t.Logf("sg_inq sent %v", cmds)
	if n == 0 {
		t.Errorf("no INQUIRY among %v", cmds)
	}
	if err := m.RequestSizes(ctx); err != nil {
		return err
	}
	if err := m.DirectWrite(ctx, Direct{Path: ds[0].Dev(), Bytes: 1 << 20, BlockBytes: 1 << 20, Seed: 3}); err != nil {
		return err
	}
	sizes, err := m.TakeRequestSizes(ctx)
	if err != nil {
		return err
	}
	sectors := 0
	for _, s := range sizes {
		sectors += s.Sectors * s.Count
	}
	if sectors != 2048 {
		t.Errorf("requests %v add up to %d sectors, want 2048", sizes, sectors)
	}
	// A disk that no longer answers: its reader is stuck, and the agent is not.
	for _, f := range []string{"timeout", "eh_timeout"} {
		if err := m.WriteAttr(ctx, ds[1].Sysfs("device", f), "1"); err != nil {
			return err
		}
	}
	if err := m.ScsiDebugEvery(ctx, 1, ScsiDebugTimeout); err != nil {
		return err
	}
	r, err := m.RunCmd(ctx, Cmd{Args: []string{"dd", "if=" + ds[1].Dev(), "of=/dev/null", "bs=4k", "count=1", "iflag=direct"}, Timeout: time.Second})
	if err != nil {
		return err
	}
	t.Logf("reading a hanging disk: %v", r.Err())
	if !r.TimedOut {
		t.Errorf("reading a hanging disk: %v, want a timeout", r.Err())
	}
	if err := m.ScsiDebugEvery(ctx, 0, 0); err != nil {
		return err
	}
	err = m.ScsiDebugRules(ctx, ds[0], "0 -1 0x12")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	t.Logf("rules of scsi_debug: %v", err)
	return nil
}

// TestVMEnds has guests end in every way that is no success. Each must say so,
// readably and in time.
func TestVMEnds(t *testing.T) {
	Require(t)
	kern := Stock(t)
	bad := faultdisk.New(64<<20, faultdisk.Options{})
	busybox, err := findTool("busybox")
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(t.TempDir(), "busybox-under-test")
	if b, err := os.ReadFile(busybox); err != nil {
		t.Fatal(err)
	} else if err := os.WriteFile(binary, b, 0o755); err != nil {
		t.Fatal(err)
	}
	cfg := Config{Kernel: kern, Binary: binary, Files: map[string][]byte{"/opt/x/hello": []byte("#!/bin/sh\necho hello\n")}, Disks: []Disk{
		{Serial: "BAD1", Bus: VirtioSCSI, Image: ServeNBD(t, bad)},
		{Serial: "GONE1", Bus: VirtioSCSI, Image: TestImage(t, 64<<20)},
	}}
	Test(t, cfg, func(ctx context.Context, m *Machine) error {
		t.Run("what was brought along", func(t *testing.T) {
			for _, args := range [][]string{{"busybox-under-test", "echo", "hello"}, {"/opt/x/hello"}} {
				if out, err := m.Output(ctx, args...); err != nil || out != "hello" {
					t.Errorf("%q says %q, %v; want hello", args, out, err)
				}
			}
		})
		t.Run("full disk", func(t *testing.T) {
			r, err := m.RunCmd(ctx, Cmd{Args: []string{"sh", "-c", "mount -t tmpfs -o size=1m none /mnt && dd if=/dev/zero of=/mnt/f bs=1M count=4"}, Timeout: 10 * time.Second})
			wantError(t, cmpErr(err, r.Err()), "No space left on device")
			// The backend full: the command fails, and the machine goes on.
			d, err := m.Disk(ctx, "BAD1")
			if err != nil {
				t.Fatal(err)
			}
			bad.SetFaults(faultdisk.Fault{Name: "full", When: faultdisk.Is(faultdisk.Write), Do: faultdisk.Fail(syscall.ENOSPC)})
			defer bad.SetFaults()
			err = m.DirectWrite(ctx, Direct{Path: d.Dev(), Bytes: 1 << 20, BlockBytes: 1 << 20})
			if err == nil {
				t.Error("writing to a full backend: no error")
			}
			t.Log(err)
		})
		t.Run("disk that fails", func(t *testing.T) {
			d, err := m.Disk(ctx, "BAD1")
			if err != nil {
				t.Fatal(err)
			}
			bad.SetFaults(faultdisk.Fault{Name: "EIO", Do: faultdisk.Fail(syscall.EIO)})
			defer bad.SetFaults()
			_, err = m.DirectCompare(ctx, Direct{Path: d.Dev(), Bytes: 1 << 20, BlockBytes: 1 << 20})
			if !errors.Is(err, syscall.EIO) {
				t.Errorf("got %v, want EIO", err)
			}
		})
		t.Run("disk that hangs for a while", func(t *testing.T) {
			d, err := m.Disk(ctx, "BAD1")
			if err != nil {
				t.Fatal(err)
			}
			release := make(chan struct{})
			bad.SetFaults(faultdisk.Fault{Name: "hang", When: faultdisk.Is(faultdisk.Read), Do: faultdisk.Hang(20*time.Second, release)})
			defer bad.SetFaults()
			r, err := m.RunCmd(ctx, Cmd{Args: []string{"dd", "if=" + d.Dev(), "of=/dev/null", "bs=4k", "count=1", "skip=4000", "iflag=direct"}, Timeout: time.Second})
			wantError(t, cmpErr(err, r.Err()), "hangs in the guest's kernel")
			close(release)
		})
		t.Run("disk that goes away", func(t *testing.T) {
			d, err := m.Disk(ctx, "GONE1")
			if err != nil {
				t.Fatal(err)
			}
			if err := m.Unplug(ctx, "GONE1"); err != nil {
				t.Fatal(err)
			}
			err = m.Poll(ctx, "GONE1 to go", func() (bool, error) {
				f, err := m.Glob(ctx, d.Sysfs("size"))
				return len(f) == 0, err
			})
			if err != nil {
				t.Fatal(err)
			}
			_, err = m.ReadAttr(ctx, d.Sysfs("queue/max_sectors_kb"))
			if !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("attribute of a disk that left: %v, want fs.ErrNotExist", err)
			}
			wantError(t, err, "no such file or directory")
		})
		t.Run("guest that stands still", func(t *testing.T) {
			if _, err := m.QMP(ctx, "stop", nil); err != nil {
				t.Fatal(err)
			}
			short, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			_, err := m.Run(short, "true")
			var timeout *TimeoutError
			if !errors.As(err, &timeout) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v, want a *TimeoutError", err)
			}
			wantError(t, err, "run true: no answer from the guest after 2")
			if _, err := m.QMP(ctx, "cont", nil); err != nil {
				t.Fatal(err)
			}
			if _, err := m.Output(ctx, "true"); err != nil {
				t.Errorf("after it went on: %v", err)
			}
		})
		t.Run("guest that panics", func(t *testing.T) {
			begin := time.Now()
			_, err := m.Run(ctx, "sh", "-c", "echo c >/proc/sysrq-trigger; sleep 60")
			var pan *PanicError
			if !errors.As(err, &pan) {
				t.Errorf("got %T: %v, want a *PanicError", err, err)
			}
			wantError(t, err, "Kernel panic - not syncing: sysrq triggered crash")
			if d := time.Since(begin); d > 20*time.Second {
				t.Errorf("it took %s to notice", d)
			}
			if _, err := m.Run(ctx, "true"); !errors.As(err, &pan) {
				t.Errorf("the next command says %v, want the panic again", err)
			}
		})
		return nil
	})
}

// TestVMNoBoot has machines that never come up.
func TestVMNoBoot(t *testing.T) {
	Require(t)
	kern := Stock(t)
	t.Run("too little time", func(t *testing.T) {
		retries := 0
		_, err := Start(t.Context(), Config{Kernel: kern, Hello: time.Second, Logf: func(string, ...any) { retries++ }})
		var timeout *TimeoutError
		if !errors.As(err, &timeout) {
			t.Errorf("got %T: %v, want a *TimeoutError", err, err)
		}
		if retries != 1 {
			t.Errorf("%d repeated boots logged, want 1", retries)
		}
	})
	t.Run("no init", func(t *testing.T) {
		// The initramfs is there, and its init cannot run.
		_, err := boot(t.Context(), Config{Kernel: kern, Append: []string{"rdinit=/nowhere"}})
		var pan *PanicError
		if !errors.As(err, &pan) {
			t.Fatalf("got %T: %v, want a *PanicError", err, err)
		}
		wantError(t, err, "Kernel panic")
	})
	t.Run("QEMU refuses", func(t *testing.T) {
		_, err := Start(t.Context(), Config{Kernel: kern, QEMU: []string{"-device", "no-such-device"}})
		var gone *GoneError
		if !errors.As(err, &gone) {
			t.Fatalf("got %T: %v, want a *GoneError", err, err)
		}
		wantError(t, err, "no-such-device")
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		begin := time.Now()
		_, err := Start(ctx, Config{Kernel: kern})
		if err == nil || time.Since(begin) > 5*time.Second {
			t.Errorf("got %v after %s, want an error at once", err, time.Since(begin))
		}
	})
}

// TestVMPowerCut shows what outlives a power cut: with a volatile cache in the
// drive, only what was flushed.
func TestVMPowerCut(t *testing.T) {
	Require(t)
	kern := Stock(t)
	drive := faultdisk.New(64<<20, faultdisk.Options{VolatileCache: true})
	plain := TestImage(t, 64<<20)
	cfg := Config{Kernel: kern, Reboots: true, Udev: true, Disks: []Disk{
		{Serial: "DRIVE1", Bus: VirtioSCSI, Image: ServeNBD(t, drive), Vendor: "ATA", Product: "ST380013AS", Revision: "3.20"},
		{Serial: "FILE1", Bus: VirtioSCSI, Image: plain},
	}, Rules: map[string]string{
		"70-quirk.rules": `ACTION=="add|change", SUBSYSTEM=="block", ENV{DEVTYPE}=="disk", ATTRS{model}=="ST380013AS*", ATTR{queue/max_sectors_kb}="512"` + "\n",
	}}
	const mib = 1 << 20
	Test(t, cfg, func(ctx context.Context, m *Machine) error {
		d, err := m.Disk(ctx, "DRIVE1")
		if err != nil {
			return err
		}
		if got, err := m.ReadAttr(ctx, d.Sysfs("queue/max_sectors_kb")); err != nil || got != "512" {
			t.Errorf("max_sectors_kb under the udev rule is %s, %v; want 512", got, err)
		}
		f, err := m.Disk(ctx, "FILE1")
		if err != nil {
			return err
		}
		if err := m.DirectWrite(ctx, Direct{Path: f.Dev(), Bytes: mib, BlockBytes: mib, Seed: 1}); err != nil {
			return err
		}
		if err := m.DirectWrite(ctx, Direct{Path: d.Dev(), Bytes: mib, BlockBytes: mib, Seed: 1}); err != nil {
			return err
		}
		if _, err := m.Output(ctx, "sync", d.Dev()); err != nil {
			return err
		}
		if _, n := drive.Largest(faultdisk.Flush); n == 0 {
			t.Error("sync made no flush reach the drive")
		}
		if err := m.DirectWrite(ctx, Direct{Path: d.Dev(), Offset: mib, Bytes: mib, BlockBytes: mib, Seed: 1}); err != nil {
			return err
		}
		drive.PowerCut()
		if err := m.Reset(ctx); err != nil {
			return err
		}
		// Names may have changed.
		if d, err = m.Disk(ctx, "DRIVE1"); err != nil {
			return err
		}
		if f, err = m.Disk(ctx, "FILE1"); err != nil {
			return err
		}
		for _, c := range []struct {
			what string
			at   Direct
			lost bool
		}{
			{"written to a file", Direct{Path: f.Dev()}, false},
			{"flushed", Direct{Path: d.Dev()}, false},
			{"not flushed", Direct{Path: d.Dev(), Offset: mib}, true},
		} {
			c.at.Bytes, c.at.BlockBytes, c.at.Seed = mib, mib, 1
			got, err := m.DirectCompare(ctx, c.at)
			if err != nil {
				return err
			}
			if (got.Mismatched > 0) != c.lost {
				t.Errorf("%s: %d bytes differ, want loss %v", c.what, got.Mismatched, c.lost)
			}
		}
		// A panic that reboots ends what waits, at once and with the reason.
		_, err = m.Run(ctx, "sh", "-c", "echo c >/proc/sysrq-trigger; sleep 60")
		var pan *PanicError
		if !errors.As(err, &pan) {
			t.Errorf("a panic that reboots: %v, want a *PanicError", err)
		}
		if _, err := m.Output(ctx, "true"); err != nil {
			t.Errorf("after the reboot: %v", err)
		}
		m.PowerCut()
		var gone *GoneError
		if _, err := m.Run(ctx, "true"); !errors.As(err, &gone) {
			t.Errorf("after the power cut: %v, want a *GoneError", err)
		}
		return nil
	})
}

// TestVMParentDeath has the process that started a machine die without a chance
// to clean up.
func TestVMParentDeath(t *testing.T) {
	Require(t)
	if os.Getenv("QUIRKCHECK_VM_CHILD") == "1" {
		_, err := Start(t.Context(), Config{Kernel: Stock(t)})
		t.Log(err)
		select {} // until killed
	}
	Stock(t) // fetched here, not there
	tmp := t.TempDir()
	self := exec.Command(os.Args[0], "-test.run=^TestVMParentDeath$")
	self.Env = append(os.Environ(), "QUIRKCHECK_VM_CHILD=1", "TMPDIR="+tmp)
	if err := self.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = self.Process.Kill(); _ = self.Wait() }()
	var qemu string
	for end := time.Now().Add(20 * time.Second); qemu == "" && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		stats, _ := filepath.Glob("/proc/[0-9]*/stat")
		for _, s := range stats {
			b, _ := os.ReadFile(s)
			if strings.Contains(string(b), "(qemu-system") && strings.Contains(string(b), fmt.Sprintf(") S %d ", self.Process.Pid)) {
				qemu = filepath.Dir(s)
			}
		}
	}
	if qemu == "" {
		t.Fatal("QEMU was not started")
	}
	if err := self.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = self.Wait()
	gone := func() bool {
		b, err := os.ReadFile(qemu + "/stat")
		return err != nil || strings.Contains(string(b), ") Z ")
	}
	for end := time.Now().Add(5 * time.Second); !gone() && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
	}
	if !gone() {
		t.Errorf("QEMU (%s) outlives the process that started it", qemu)
	}
	if left, err := filepath.Glob(tmp + "/*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func cmpErr(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

func wantError(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want %q", text)
		return
	}
	if !strings.Contains(err.Error(), text) {
		t.Errorf("error %q, want %q in it", err, text)
	}
	t.Log(err)
}
