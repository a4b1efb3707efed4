package target

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// made is a made-up machine. Its disk sda, on AHCI, has the root file system on
// sda1 and swap on sda2; sdb, beside it, is blank and what tests name.
type made struct {
	t     *testing.T
	tree  fstest.MapFS
	stats map[string]FileStat
	bytes map[DevNo][]byte
	deny  map[string]error // path below the root: what opening it says
}

const blankSectors = 16384 // 8 MiB

func newMade(t *testing.T) *made {
	k := &made{t: t, tree: fstest.MapFS{}, stats: map[string]FileStat{}, bytes: map[DevNo][]byte{}, deny: map[string]error{}}
	k.disk("sda", DevNo{8, 0}, "pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0", 1<<21)
	k.partition("sda", "sda1", DevNo{8, 1}, 2048, 1<<20)
	k.partition("sda", "sda2", DevNo{8, 2}, 2048+1<<20, 1<<18)
	k.disk("sdb", DevNo{8, 16}, "pci0000:00/0000:00:1f.2/ata2/host1/target1:0:0/1:0:0:0", blankSectors)
	k.put("proc/self/mountinfo", "22 27 0:21 / /proc rw,relatime - proc proc rw\n"+
		"27 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n"+
		"30 27 0:25 / /tmp rw - tmpfs tmpfs rw\n")
	k.put("proc/mounts", "")
	k.put("proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n/dev/sda2                               partition\t131068\t\t0\t\t-2\n")
	k.link("proc/self/ns/mnt", "mnt:[4026531841]")
	k.link("proc/self/ns/pid", initPIDNamespace)
	k.process(1, "systemd")
	k.process(os.Getpid(), "quirkcheck")
	k.put("proc/1/mountinfo", string(k.tree["proc/self/mountinfo"].Data))
	k.put("sys/power/resume", "8:2\n")
	k.put("sys/class/power_supply/AC/type", "Mains\n")
	k.put("sys/class/power_supply/AC/online", "1\n")
	k.put("sys/class/power_supply/BAT0/type", "Battery\n")
	k.put("sys/class/power_supply/BAT0/status", "Charging\n")
	k.stats["/"] = FileStat{Mode: unix.S_IFDIR, Dev: DevNo{8, 1}, MountID: 27}
	k.stats["/tmp"] = FileStat{Mode: unix.S_IFDIR, Dev: DevNo{0, 25}, MountID: 30}
	return k
}

func (k *made) put(name, content string) { k.tree[name] = &fstest.MapFile{Data: []byte(content)} }

func (k *made) link(name, to string) {
	k.tree[name] = &fstest.MapFile{Data: []byte(to), Mode: fs.ModeSymlink}
}

// up leads from a folder to the root.
func up(folder string) string { return strings.Repeat("../", strings.Count(folder, "/")+1) }

func (k *made) dir(name string) string {
	k.t.Helper()
	to, ok := k.tree["sys/class/block/"+name]
	if !ok {
		k.t.Fatalf("no device %s", name)
	}
	return path.Join("sys/class/block", string(to.Data))
}

// device adds a block device at a folder below sys/devices.
func (k *made) device(name string, dev DevNo, folder string, sectors uint64) string {
	dir := "sys/devices/" + folder + "/" + name
	k.put(dir+"/dev", dev.String()+"\n")
	k.put(dir+"/size", fmt.Sprintf("%d\n", sectors))
	k.put(dir+"/ro", "0\n")
	k.put(dir+"/uevent", "MAJOR=8\nDEVNAME="+name+"\nDEVTYPE=disk\n")
	for _, at := range []string{"sys/dev/block/" + dev.String(), "sys/class/block/" + name} {
		k.link(at, up(path.Dir(at))+dir)
	}
	k.stats["/dev/"+name] = FileStat{Mode: unix.S_IFBLK, Dev: DevNo{0, 6}, Rdev: dev}
	return dir
}

func (k *made) disk(name string, dev DevNo, folder string, sectors uint64) string {
	dir := k.device(name, dev, folder+"/block", sectors)
	k.link("sys/block/"+name, up("sys/block")+dir)
	k.put(dir+"/removable", "0\n")
	k.put(dir+"/diskseq", "7\n")
	k.put(dir+"/queue/zoned", "none\n")
	k.put(dir+"/queue/logical_block_size", "512\n")
	return dir
}

func (k *made) partition(disk, name string, dev DevNo, start, sectors uint64) {
	dir := k.device(name, dev, strings.TrimPrefix(k.dir(disk), "sys/devices/"), sectors)
	k.put(dir+"/partition", "1\n")
	k.put(dir+"/start", fmt.Sprintf("%d\n", start))
}

// stacked adds a device made of others.
func (k *made) stacked(name string, dev DevNo, on ...string) string {
	dir := k.disk(name, dev, "virtual", 4096)
	for _, below := range on {
		k.link(dir+"/slaves/"+below, up(dir+"/slaves")+k.dir(below))
		k.link(k.dir(below)+"/holders/"+name, up(k.dir(below)+"/holders")+dir)
	}
	return dir
}

func (k *made) dm(name string, dev DevNo, dmName, uuid string, on ...string) {
	dir := k.stacked(name, dev, on...)
	k.put(dir+"/dm/name", dmName+"\n")
	k.put(dir+"/dm/uuid", uuid+"\n")
}

func (k *made) process(pid int, comm string, open ...string) {
	dir := fmt.Sprintf("proc/%d", pid)
	k.put(dir+"/comm", comm+"\n")
	k.link(dir+"/ns/mnt", "mnt:[4026531841]")
	k.link(dir+"/fd/0", "socket:[123]")
	for i, name := range open {
		fd := fmt.Sprintf("%s/fd/%d", dir, i+3)
		k.link(fd, name)
		k.stats["/"+fd] = k.stats[name]
	}
}

func (k *made) mount(line string) {
	for _, name := range []string{"proc/self/mountinfo", "proc/1/mountinfo"} {
		k.put(name, string(k.tree[name].Data)+line+"\n")
	}
}

func (k *made) machine() Machine {
	return Machine{
		FS: denied{k.tree, k.deny},
		Stat: func(name string) (FileStat, error) {
			if err := k.deny[strings.TrimPrefix(name, "/")]; err != nil {
				return FileStat{}, &fs.PathError{Op: "stat", Path: name, Err: err}
			}
			st, ok := k.stats[name]
			if !ok {
				return st, &fs.PathError{Op: "stat", Path: name, Err: fs.ErrNotExist}
			}
			return st, nil
		},
		Real: func(name string) (string, error) {
			st := k.stats[name]
			for other, s := range k.stats {
				if st.block() && s.block() && s.Rdev == st.Rdev && strings.Count(other, "/") == 2 {
					return other, nil
				}
			}
			return name, nil
		},
		Open: func(_ string, want DevNo) (Blocks, error) {
			if b, ok := k.bytes[want]; ok {
				return closing{strings.NewReader(string(b))}, nil
			}
			return closing{zeros{}}, nil
		},
	}
}

func (k *made) resolve(name string) Target {
	k.t.Helper()
	t, err := Resolve(k.machine(), name)
	if err != nil {
		k.t.Fatal(err)
	}
	return t
}

// denied is a tree some files of which cannot be read.
type denied struct {
	tree fstest.MapFS
	deny map[string]error
}

func (d denied) refuse(op, name string) error {
	if err := d.deny[name]; err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	return nil
}

func (d denied) Open(name string) (fs.File, error) {
	if err := d.refuse("open", name); err != nil {
		return nil, err
	}
	return d.tree.Open(name)
}

func (d denied) ReadLink(name string) (string, error) {
	if err := d.refuse("readlink", name); err != nil {
		return "", err
	}
	return d.tree.ReadLink(name)
}

func (d denied) Lstat(name string) (fs.FileInfo, error) { return d.tree.Lstat(name) }

type closing struct {
	r interface {
		ReadAt([]byte, int64) (int, error)
	}
}

func (c closing) ReadAt(p []byte, off int64) (int, error) { return c.r.ReadAt(p, off) }
func (closing) Close() error                              { return nil }

type zeros struct{}

func (zeros) ReadAt(p []byte, _ int64) (int, error) {
	clear(p)
	return len(p), nil
}

func TestResolve(t *testing.T) {
	k := newMade(t)
	k.stats["/dev/disk/by-id/ata-X_123-part1"] = k.stats["/dev/sda1"]
	k.stats["/srv/odd/node"] = k.stats["/dev/sdb"]
	k.disk("cciss!c0d0", DevNo{104, 0}, "pci0000:00/0000:05:00.0/host9", 4096)
	k.stats["/dev/cciss/c0d0"] = k.stats["/dev/cciss!c0d0"]
	delete(k.stats, "/dev/cciss!c0d0")
	sda1 := Target{
		Node: "/dev/sda1", DevNo: DevNo{8, 1}, Name: "sda1", Disk: "sda", DiskDev: DevNo{8, 0},
		First: 2048, Sectors: 1 << 20, Partition: true, SysDir: k.dir("sda1"), DiskDir: k.dir("sda"), DiskSeq: 7,
	}
	sdb := Target{
		Node: "/dev/sdb", DevNo: DevNo{8, 16}, Name: "sdb", Disk: "sdb", DiskDev: DevNo{8, 16},
		Sectors: blankSectors, SysDir: k.dir("sdb"), DiskDir: k.dir("sdb"), DiskSeq: 7,
	}
	for _, c := range []struct {
		name, arg string
		want      Target
	}{
		{"a partition is part of its disk", "/dev/sda1", sda1},
		{"a by-id link ends at the same partition", "/dev/disk/by-id/ata-X_123-part1", sda1},
		{"a whole disk starts at 0", "/dev/sdb", sdb},
		{"a bare name is taken below /dev", "sdb", sdb},
		{"a node in another folder is the same disk", "/srv/odd/node", sdb},
	} {
		got, err := Resolve(k.machine(), c.arg)
		if err != nil {
			t.Errorf("%s: Resolve(%q): %v", c.name, c.arg, err)
			continue
		}
		c.want.Arg = c.arg
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: Resolve(%q) (-want +got):\n%s", c.name, c.arg, diff)
		}
	}
	if got, err := Resolve(k.machine(), "cciss!c0d0"); err != nil || got.Disk != "cciss!c0d0" {
		t.Errorf("a name with ! is a path with /: got %+v, %v", got, err)
	}
}

func TestResolveRefuses(t *testing.T) {
	k := newMade(t)
	k.stats["/srv/file"] = FileStat{Mode: unix.S_IFREG}
	k.stats["/srv"] = FileStat{Mode: unix.S_IFDIR}
	k.stats["/dev/sg0"] = FileStat{Mode: unix.S_IFCHR, Rdev: DevNo{21, 0}}
	k.stats["/dev/stale"] = FileStat{Mode: unix.S_IFBLK, Rdev: DevNo{9, 99}}
	k.disk("sdx", DevNo{8, 112}, "x", 8)
	delete(k.tree, k.dir("sdx")+"/size")
	k.disk("sdy", DevNo{8, 128}, "y", 8)
	k.link("sys/dev/block/8:128", "../../../../etc")
	for _, c := range []struct {
		name, arg, text string
		is              error
	}{
		{"a plain file", "/srv/file", "--file", ErrNotBlock},
		{"a folder", "/srv", "--file /srv/quirkcheck.tmp", ErrNotBlock},
		{"a character device", "/dev/sg0", "block node", ErrNotBlock},
		{"nothing there", "/dev/nope", "no", fs.ErrNotExist},
		{"a node without a device", "/dev/stale", "9:99", fs.ErrNotExist},
		{"no argument", "", "no device", nil},
		{"a device without a size", "/dev/sdx", "size", fs.ErrNotExist},
		{"a link out of sysfs", "/dev/sdy", "leaves sysfs", nil},
	} {
		_, err := Resolve(k.machine(), c.arg)
		if err == nil || !strings.Contains(err.Error(), c.text) || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("%s: Resolve(%q): got %v, want %v with %q", c.name, c.arg, err, c.is, c.text)
		}
	}
}

func TestSameRefusesAnotherFile(t *testing.T) {
	f, err := os.Create(t.TempDir() + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := (Target{DevNo: DevNo{8, 0}}).Same(int(f.Fd())); !errors.Is(err, ErrChanged) {
		t.Errorf("a plain file in place of 8:0: got %v, want ErrChanged", err)
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if err := (Target{DevNo: DevNo{1, 3}}).Same(int(null.Fd())); !errors.Is(err, ErrChanged) {
		t.Errorf("a character device with the number of the block device: got %v, want ErrChanged", err)
	}
}

// TestLive resolves a block device of this machine and opens it.
func TestLive(t *testing.T) {
	m := Live()
	names, err := m.names("sys/class/block")
	if err != nil || len(names) == 0 {
		t.Skipf("no block device here: %v", err)
	}
	opened := 0
	for _, name := range names {
		if _, err := m.Stat("/dev/" + name); err != nil {
			continue // a container without device nodes
		}
		got, err := Resolve(m, name)
		if err != nil {
			t.Errorf("Resolve(%q): %v", name, err)
			continue
		}
		if got.Name != name {
			t.Errorf("Resolve(%q) is %s", name, got.Name)
		}
		f, err := os.Open(got.Node)
		if err != nil {
			continue
		}
		opened++
		if err := got.Same(int(f.Fd())); err != nil {
			t.Errorf("Same(%s): %v", name, err)
		}
		other := got
		other.Minor++
		if err := other.Same(int(f.Fd())); !errors.Is(err, ErrChanged) {
			t.Errorf("Same(%s) as device %s: got %v, want ErrChanged", name, other.DevNo, err)
		}
		other = got
		other.Sectors += 8
		if err := other.Same(int(f.Fd())); !errors.Is(err, ErrChanged) {
			t.Errorf("Same(%s) with another size: got %v, want ErrChanged", name, err)
		}
		f.Close()
		if got.Sectors == 0 {
			continue
		}
		r, err := m.Open(got.Node, got.DevNo)
		if err != nil {
			t.Errorf("Open(%s): %v", name, err)
			continue
		}
		b := make([]byte, 100)
		for _, off := range []int64{0, 511, directBytes - 7, int64(got.Sectors)*sysSectorBytes - 100} {
			if n, err := r.ReadAt(b, off); n != len(b) || err != nil {
				t.Errorf("%s: ReadAt(100 bytes, %d) = %d, %v", name, off, n, err)
			}
		}
		r.Close()
		if _, err := m.Open(got.Node, other.DevNo); err != nil {
			t.Errorf("Open(%s): %v", name, err)
		}
		if _, err := m.Open(got.Node, DevNo{1, 1}); !errors.Is(err, ErrChanged) {
			t.Errorf("Open(%s) as 1:1: got %v, want ErrChanged", name, err)
		}
	}
	if opened == 0 {
		t.Skip("no block device may be opened here: not root?")
	}
}

func TestSerial(t *testing.T) {
	for _, c := range []struct {
		name, target string
		change       func(k *made)
		want         string
	}{
		{"page 80h", "sdb", func(k *made) {
			k.put(k.dir("sdb")+"/device/vpd_pg80", "\x00\x80\x00\x0c    WD-123AB")
			k.put("run/udev/data/b8:16", "E:ID_SERIAL_SHORT=UDEV1\n")
		}, "WD-123AB"},
		{"page 80h that is longer than it says", "sdb", func(k *made) {
			k.put(k.dir("sdb")+"/device/vpd_pg80", "\x00\x80\x00\x04ABCDEFGH")
		}, "ABCD"},
		{"page 80h that says more than it holds", "sdb", func(k *made) {
			k.put(k.dir("sdb")+"/device/vpd_pg80", "\x00\x80\xff\xffABCD")
		}, "ABCD"},
		{"a blank page 80h gives way to udev", "sdb", func(k *made) {
			k.put(k.dir("sdb")+"/device/vpd_pg80", "\x00\x80\x00\x08        ")
			k.put("run/udev/data/b8:16", "S:disk/x\nE:ID_SERIAL=WDC_X_UDEV1\nE:ID_SERIAL_SHORT=UDEV1\n")
		}, "UDEV1"},
		{"control characters are no serial number", "sdb", func(k *made) {
			k.put(k.dir("sdb")+"/device/vpd_pg80", "\x00\x80\x00\x04A\x1b[B")
		}, "sdb:8388608"},
		{"zeros are no serial number", "sdb", func(k *made) {
			k.put(k.dir("sdb")+"/device/serial", "00000000\n")
		}, "sdb:8388608"},
		{"nvme", "sdb", func(k *made) { k.put(k.dir("sdb")+"/device/serial", "S4EV 12   \n") }, "S4EV 12"},
		{"virtio", "sdb", func(k *made) { k.put(k.dir("sdb")+"/serial", "vdisk-1") }, "vdisk-1"},
		{"a loop device has its file's name", "sdb", func(k *made) {
			k.put(k.dir("sdb")+"/loop/backing_file", "/srv/images/scratch.img\n")
		}, "scratch.img"},
		{"nothing", "sdb", func(*made) {}, "sdb:8388608"},
		{"a partition without serial has its own name", "sda1", func(*made) {}, "sda1:536870912"},
		{"a partition has its disk's", "sda1", func(k *made) { k.put(k.dir("sda")+"/device/serial", "DISK1") }, "DISK1"},
	} {
		k := newMade(t)
		c.change(k)
		if got, source := Serial(k.machine(), k.resolve(c.target)); got != c.want || !k.machine().exists(source) {
			t.Errorf("%s: got %q from %s, want %q", c.name, got, source, c.want)
		}
	}
}

func TestCheckSerial(t *testing.T) {
	for _, c := range []struct{ name, typed, want, text string }{
		{"right", "WD-123", "WD-123", ""},
		{"blanks around", " WD-123\n", "WD-123", ""},
		{"nothing typed", "", "WD-123", "nothing will be overwritten"},
		{"another disk's", "WD-124", "WD-123", "is not that of this device"},
		{"yes is not a serial number", "yes", "WD-123", "is not that of this device"},
		{"case counts", "wd-123", "WD-123", "upper and lower case"},
		{"a device name", "/dev/sdb", "WD-123", "device name"},
		{"a part", "WD-1", "WD-123", "only a part"},
		{"the disk has none", "", "", "not known"},
		{"the disk has none, and something typed", "x", "", "not known"},
		{"control characters are shown, not sent", "\x1b[2J", "WD-123", `"\x1b[2J"`},
	} {
		err := CheckSerial(c.typed, c.want)
		if (err == nil) != (c.text == "") || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: CheckSerial(%q, %q) = %v, want %q", c.name, c.typed, c.want, err, c.text)
		}
	}
}
