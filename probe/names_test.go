package probe_test

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/quirkcheck/quirkcheck/internal/recorded"
	"github.com/quirkcheck/quirkcheck/probe"
)

func TestResolveName(t *testing.T) {
	m := newMachine()
	file(m, "dev/sda", "")
	file(m, "dev/sda1", "")
	link(m, "dev/disk/by-id/ata-ACME_1", "../../sda")
	link(m, "dev/disk/by-id/ata-ACME_1-part1", "../../sda1")
	link(m, "dev/disk/by-id/dangling", "../../sdz")
	link(m, "dev/disk/by-id/sdb", "../../nowhere")
	link(m, "dev/disk/by-id/absolute", "/dev/sda")
	link(m, "dev/disk/by-id/out", "../../../../etc/passwd")
	link(m, "dev/disk/by-id/loop", "loop")
	link(m, "dev/out", "../sys/block/sda")
	link(m, "dev/chain", "disk/by-id/ata-ACME_1-part1")
	disk := func(name, part string) {
		file(m, "sys/devices/x/block/"+name+"/size", "1\n")
		file(m, "sys/devices/x/block/"+name+"/"+part+"/partition", "1\n")
		link(m, "sys/block/"+name, "../devices/x/block/"+name)
	}
	disk("nvme0n1", "nvme0n1p2")
	disk("cciss!c0d0", "cciss!c0d0p1")
	disk("mmcblk0", "mmcblk0p1")
	disk("nvme0n1p", "nvme0n1p9") // a name that ends like a partition's
	disk("md127", "md127p1")
	for name, sys := range map[string]fs.FS{"MapFS": m, "Root": openRoot(t, onDisk(t, m))} {
		t.Run(name, func(t *testing.T) {
			for _, c := range []struct{ name, dev, want string }{
				{"sysfs name", "sda", "sda"},
				{"path of a node", "/dev/sda", "sda"},
				{"path that is not clean", "/dev//./disk/../sda", "sda"},
				{"path of a node that the tree lacks", "/dev/sdb", "sdb"},
				{"by-id link", "/dev/disk/by-id/ata-ACME_1", "sda"},
				{"by-id link of a partition", "/dev/disk/by-id/ata-ACME_1-part1", "sda"},
				{"link to a link", "/dev/chain", "sda"},
				{"partition", "sda1", "sda"},
				{"path of a partition", "/dev/sda1", "sda"},
				{"partition with a p", "nvme0n1p2", "nvme0n1"},
				{"path of a partition with a p", "/dev/nvme0n1p2", "nvme0n1"},
				{"partition of a card", "/dev/mmcblk0p1", "mmcblk0"},
				{"partition of an array", "md127p1", "md127"},
				{"node in a folder", "/dev/cciss/c0d0", "cciss!c0d0"},
				{"partition in a folder", "/dev/cciss/c0d0p1", "cciss!c0d0"},
				{"sysfs name of a node in a folder", "cciss!c0d0", "cciss!c0d0"},
			} {
				if got, err := probe.ResolveName(sys, c.dev); got != c.want || err != nil {
					t.Errorf("%s: ResolveName(%q) = %q, %v, want %q", c.name, c.dev, got, err, c.want)
				}
			}
			for _, dev := range []string{
				"", ".", "..", "/", "/dev", "/dev/", "sdz", "/dev/sdz", "sda9", "nvme0n1p7", "/sys/block/sda", "dev", "sda/", "sda/../sdb",
				"/dev/../etc/passwd", "../sda", "/dev/disk/by-id/dangling", "/dev/disk/by-id/sdb", "/dev/nofolder/sda", "/dev/disk/by-id/absolute",
				"/dev/disk/by-id/out", "/dev/disk/by-id/loop", "/dev/out", "sd\x00a", "sd\xff", "sda\n", " sda", "block", "1", "p1", strings.Repeat("s", 5000),
			} {
				if got, err := probe.ResolveName(sys, dev); !errors.Is(err, probe.ErrNoDevice) || got != "" {
					t.Errorf("ResolveName(%.60q) = %q, %v, want ErrNoDevice", dev, got, err)
				}
			}
		})
	}
}

func TestResolveNameOnRecordedTrees(t *testing.T) {
	n := 0
	for _, tree := range recorded.Trees(t) {
		m := recorded.FS(t, tree)
		for name, f := range m {
			dev, ok := strings.CutPrefix(name, "dev/")
			if !ok || f.Mode.IsDir() || strings.HasPrefix(dev, "loop") {
				continue
			}
			want := dev // a disk, or a partition below it
			if m["sys/block/"+dev] == nil {
				disk, err := probe.ResolveName(m, "/dev/"+dev)
				if err != nil {
					if m["sys/class/block/"+dev] != nil {
						t.Errorf("%s: %s: %v", tree, dev, err)
					}
					continue
				}
				if !strings.HasPrefix(dev, disk) || disk == dev {
					t.Errorf("%s: %s is taken for a part of %s", tree, dev, disk)
				}
				n++
				continue
			}
			if got, err := probe.ResolveName(m, "/dev/"+dev); got != want || err != nil {
				t.Errorf("%s: ResolveName(/dev/%s) = %q, %v", tree, dev, got, err)
			}
			n++
		}
	}
	if n == 0 {
		t.Error("no name was resolved")
	}
	t.Logf("%d names", n)
}

func TestDevicesComeInNaturalOrder(t *testing.T) {
	want := []string{"cciss!c0d2", "cciss!c0d10", "cciss!c1d1", "dasda", "dasdz", "dasdaa", "dm-2", "dm-10", "loop0", "loop9", "loop10", "md9", "md127",
		"mmcblk0", "mmcblk0boot0", "nvme0n1", "nvme0n2", "nvme0n10", "nvme2n1", "nvme2n12", "nvme10n1", "sda", "sdb", "sdz", "sdaa", "sdab", "sdba", "sdaaa",
		"sr0", "sr1", "sr10", "vda", "vdz", "vdaa", "xvda", "xvdaa", "zram0"}
	m := fstest.MapFS{}
	file(m, "sys/class/x", "")
	for _, name := range want {
		file(m, "sys/block/"+name+"/size", "1\n")
	}
	inv, err := read(t, m, probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range inv.Devices {
		got = append(got, d.Name)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	for name, kind := range map[string]string{"sda": "disk", "nvme0n1": "disk", "vda": "disk", "mmcblk0": "disk", "dasda": "disk", "xvda": "disk",
		"sr0": "optical", "loop0": "loop", "zram0": "ram", "dm-2": "dm", "md9": "md", "cciss!c0d2": "other"} {
		if d, _ := inv.Device(name); d.Kind != kind {
			t.Errorf("%s is of kind %q, want %q", name, d.Kind, kind)
		}
	}
}

// What slaves and holders list has the same order, whatever the file system's.
func TestMembersAndHolders(t *testing.T) {
	m := newMachine()
	names := []string{"sda", "sdb", "sdaa"}
	for _, i := range rand.Perm(len(names)) {
		link(m, "sys/devices/virtual/block/dm-0/slaves/"+names[i], "../x")
	}
	file(m, "sys/devices/virtual/block/dm-0/size", "1\n")
	link(m, "sys/block/dm-0", "../devices/virtual/block/dm-0")
	link(m, sdaBlock+"/holders/dm-0", "../x")
	for name, sys := range map[string]fs.FS{"MapFS": m, "Root": openRoot(t, onDisk(t, m))} {
		inv, err := read(t, sys, probe.Options{})
		if err != nil {
			t.Fatal(err)
		}
		d, _ := inv.Device("dm-0")
		a, _ := inv.Device("sda")
		if !slices.Equal(d.Members, names) || !slices.Equal(a.Holders, []string{"dm-0"}) || d.Holders != nil || d.Path != "other" || d.Adapter.Known {
			t.Errorf("%s: dm-0 %+v, sda's holders %v", name, d, a.Holders)
		}
	}
}

func TestUdevRecords(t *testing.T) {
	const enc = `ACME\x20DISK\x209000\x20LONG\x20NAME\x20\x20\x20\x20`
	for _, c := range []struct {
		name, record    string
		vendor          string
		model, firmware string // "" for none
		note            string
	}{
		{"full strings", "S:disk/by-id/x\nE:ID_ATA=1\nE:ID_MODEL=ACME_DISK_9000_LONG_NAME\nE:ID_MODEL_ENC=" + enc + "\nE:ID_REVISION=FW1.0\n", "ATA     ", "ACME DISK 9000 LONG NAME", "FW1.0", ""},
		{"behind a bridge", "E:ID_ATA=1\nE:ID_MODEL_ENC=" + enc + "\nE:ID_REVISION=FW1.0", "BRIDGE  ", "ACME DISK 9000 LONG NAME", "FW1.0", ""},
		{"hexadecimal in capitals", "E:ID_ATA=1\nE:ID_MODEL_ENC=ACME\\x20DISK\\x209000\\x2F\\x2f\n", "ATA     ", "ACME DISK 9000//", "", ""},
		{"no escape but looks like one", "E:ID_ATA=1\nE:ID_MODEL_ENC=ACME\\x20DISK\\x209000\\x2\n", "ATA     ", `ACME DISK 9000\x2`, "", ""},
		{"escape of other digits", "E:ID_ATA=1\nE:ID_MODEL_ENC=ACME\\x20DISK\\x209000\\xzz\\x\x10\x11\n", "ATA     ", "ACME DISK 9000\\xzz\\x\x10\x11", "", ""},
		{"value with an equals sign", "E:ID_ATA=1\nE:ID_MODEL_ENC=ACME\\x20DISK\\x209000=\n", "ATA     ", "ACME DISK 9000=", "", ""},
		{"only the form without blanks, which is one word", "E:ID_ATA=1\nE:ID_MODEL=WHOLE\n", "BRIDGE  ", "WHOLE", "", ""},
		{"only the form without blanks", "E:ID_ATA=1\nE:ID_MODEL=ACME_DISK_9000_LONG_NAME\nE:ID_REVISION=FW1.0\n", "ATA     ", "", "", ""},
		{"not from ata_id", "E:ID_ATA=0\nE:ID_MODEL_ENC=" + enc + "\n", "ATA     ", "", "", ""},
		{"not a property", "ID_ATA=1\nX:ID_ATA=1\nE:ID_ATA\n", "ATA     ", "", "", ""},
		{"another disk's", "E:ID_ATA=1\nE:ID_MODEL_ENC=OTHER\\x20DISK\n", "ATA     ", "", "", "udev names the disk OTHER DISK, sysfs ACME DISK 9000"},
		{"no text", "\xff\xfe\x00\n\n=\nE:=\n", "ATA     ", "", "", ""},
		{"endless", "E:ID_ATA=1\nE:ID_MODEL_ENC=" + strings.Repeat("x", 1<<17), "ATA     ", "", "", "longer than"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine()
			file(m, sdbSCSI+"/vendor", c.vendor+"\n")
			file(m, "run/udev/data/b8:16", c.record)
			inv, err := read(t, m, probe.Options{})
			if err != nil {
				t.Fatal(err)
			}
			d, _ := inv.Device("sdb")
			if d.ATAModel.V != c.model || d.ATAModel.Ok() != (c.model != "") || d.ATAFirmware.V != c.firmware {
				t.Errorf("record %.100q: model %+v, firmware %+v, want %q, %q", c.record, d.ATAModel, d.ATAFirmware, c.model, c.firmware)
			}
			said := slices.ContainsFunc(d.Notes, func(n probe.Note) bool {
				return n.Source == "run/udev/data/b8:16" && strings.Contains(n.Why, c.note)
			})
			if said != (c.note != "") {
				t.Errorf("record %.100q: notes %+v, want %q", c.record, d.Notes, c.note)
			}
			if d.ATAModel.Ok() && d.ATAModel.Source != "run/udev/data/b8:16" {
				t.Errorf("source %q", d.ATAModel.Source)
			}
		})
	}
}

// The disk's own word stands, and a record that says the same in udev's form
// is no contradiction.
func TestUdevNeverBeatsTheDisk(t *testing.T) {
	for record, contradicts := range map[string]bool{
		`E:ID_MODEL_ENC=ACME\x20DISK\x209000\x20\x20`: false,
		`E:ID_MODEL=ACME`:      true,
		`E:ID_MODEL_ENC=OTHER`: true,
	} {
		m := newMachine()
		file(m, "run/udev/data/b8:0", "E:ID_ATA=1\nE:ID_REVISION=OLD\n"+record+"\n")
		inv, err := read(t, m, probe.Options{})
		if err != nil {
			t.Fatal(err)
		}
		d, _ := inv.Device("sda")
		if d.ATAModel.V != "ACME DISK 9000" || d.ATAFirmware.V != "FW 1.0" || noted(d.Notes, "identity.ata", "udev's record is not used") != contradicts {
			t.Errorf("%s: model %q, firmware %q, notes %+v", record, d.ATAModel.V, d.ATAFirmware.V, d.Notes)
		}
	}
}

func TestEveryKindOfTreeGivesTheSame(t *testing.T) {
	opts := cmp.Options{
		cmp.Exporter(func(reflect.Type) bool { return true }),
		cmp.Comparer(func(a, b error) bool { return (a == nil) == (b == nil) }),
	}
	for _, name := range []string{"6.1.190-debian12", "fedora41_k617_sata_nvme_scsidebug", "ghw_accel_virtio", "power_nvme_multipath"} {
		t.Run(name, func(t *testing.T) {
			dir := recorded.Tree(t, name)
			want, err := read(t, openRoot(t, dir), probe.Options{})
			if err != nil || len(want.Devices) == 0 {
				t.Fatalf("%+v, %v", want, err)
			}
			for kind, sys := range map[string]fs.FS{"os.DirFS": os.DirFS(dir), "MapFS": recorded.FS(t, name)} {
				for _, workers := range []int{1, 7} {
					got, err := read(t, sys, probe.Options{Workers: workers})
					if err != nil {
						t.Fatalf("%s: %v", kind, err)
					}
					if diff := cmp.Diff(want, got, opts); diff != "" {
						t.Errorf("%s, %d workers (-Root +%s):\n%s", kind, workers, kind, diff)
					}
				}
			}
		})
	}
}

func TestRootIsAFileSystem(t *testing.T) {
	m := newMachine()
	dir := onDisk(t, m)
	outside := t.TempDir()
	if err := os.WriteFile(outside+"/secret", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, dir+"/out"); err != nil {
		t.Fatal(err)
	}
	root := openRoot(t, dir)
	if b, err := fs.ReadFile(root, "proc/cmdline"); string(b) != "quiet\n" || err != nil {
		t.Errorf("ReadFile: %q, %v", b, err)
	}
	if s, err := fs.ReadLink(root, sdaBlock+"/device"); s != "../../../0:0:0:0" || err != nil {
		t.Errorf("ReadLink: %q, %v", s, err)
	}
	if info, err := fs.Lstat(root, "out"); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		t.Errorf("Lstat of a link: %v, %v", info, err)
	}
	if info, err := fs.Lstat(root, "proc/cmdline"); err != nil || !info.Mode().IsRegular() || info.Size() != 6 || info.Name() != "cmdline" {
		t.Errorf("Lstat of a file: %v, %v", info, err)
	}
	for _, name := range []string{"out/secret", "../x", "/etc/passwd", "proc/../../x", ""} {
		if f, err := root.Open(name); err == nil {
			f.Close()
			t.Errorf("Open(%q) left the tree", name)
		}
		if info, err := root.Lstat(name); err == nil {
			t.Errorf("Lstat(%q) left the tree: %v", name, info)
		}
	}
	if f, err := root.Open("out"); err == nil {
		f.Close()
		t.Error("Open followed a link out of the tree")
	}
	if _, err := root.Open("nothing"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open of nothing: %v", err)
	}
}

func TestStateNames(t *testing.T) {
	for s, want := range map[probe.State]string{probe.NotAsked: "not-asked", probe.Absent: "absent", probe.Unreadable: "unreadable", probe.Known: "known"} {
		if got := fmt.Sprint(s); got != want {
			t.Errorf("state %d prints %q, want %q", s, got, want)
		}
	}
	if v := (&probe.Device{}).Attr("no/such"); v.State != probe.NotAsked {
		t.Errorf("attribute nobody reads: %+v, want not asked", v)
	}
}

func TestUdevFirmwareOfAnotherTimeIsNotBelieved(t *testing.T) {
	for revision, used := range map[string]bool{"3.20": true, "3.99": false} {
		sys := recorded.FS(t, "7.3.4-debian13-backports")
		// sde is ATA ST380013AS 3.20 behind virtio-scsi, 8:64.
		sys["run/udev/data/b8:64"] = &fstest.MapFile{Data: []byte("E:ID_ATA=1\nE:ID_MODEL=ST380013AS\nE:ID_REVISION=" + revision + "\n")}
		inv, err := probe.Read(t.Context(), sys, probe.Options{Only: []string{"sde"}})
		if err != nil || len(inv.Devices) != 1 {
			t.Fatal(err)
		}
		d := inv.Devices[0]
		if d.ATAModel.Ok() != used {
			t.Errorf("udev says firmware %s, sysfs 3.20: record used %v, want %v", revision, d.ATAModel.Ok(), used)
		}
		noted := slices.ContainsFunc(d.Notes, func(n probe.Note) bool { return strings.Contains(n.Why, "udev gives the disk firmware") })
		if noted == used {
			t.Errorf("firmware %s: contradiction noted %v", revision, noted)
		}
	}
}

func TestOnlyATADisksOfLibsasAreLibatas(t *testing.T) {
	sys := recorded.FS(t, "7.3.4-debian13-backports")
	for name, f := range sys { // virtio1 becomes a pm80xx
		if strings.HasSuffix(name, "/virtio1/driver") {
			f.Data = []byte("../../../../bus/virtio/drivers/pm80xx")
		}
	}
	inv, err := probe.Read(t.Context(), sys, probe.Options{Only: []string{"sde", "sdg"}})
	if err != nil || len(inv.Devices) != 2 {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"sde": "libata", "sdg": "scsi"} {
		if d, _ := inv.Device(name); d.Path != want {
			t.Errorf("%s (%s): path %s, want %s", name, d.Vendor.V, d.Path, want)
		}
	}
}
