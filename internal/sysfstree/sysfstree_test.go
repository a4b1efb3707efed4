package sysfstree

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, o Options) string {
	t.Helper()
	dir := t.TempDir()
	if err := Write(dir, o); err != nil {
		t.Fatalf("Write(%+v): %v", o, err)
	}
	return dir
}

func TestDiskNameAndNumber(t *testing.T) {
	for _, c := range []struct {
		index        int
		name, number string
	}{
		{0, "sda", "8:0"}, {15, "sdp", "8:240"}, {16, "sdq", "65:0"}, {25, "sdz", "65:144"}, {26, "sdaa", "65:160"},
		{128, "sddy", "128:0"}, {255, "sdiv", "135:240"}, {256, "sdiw", "8:256"}, {701, "sdzz", "131:720"},
		{702, "sdaaa", "131:736"},
	} {
		if got := diskName(c.index); got != c.name {
			t.Errorf("diskName(%d) = %q, want %q", c.index, got, c.name)
		}
		if got := devNumber(c.index); got != c.number {
			t.Errorf("devNumber(%d) = %q, want %q", c.index, got, c.number)
		}
	}
}

func TestDiskListSpreadsDisks(t *testing.T) {
	for _, o := range []Options{{Disks: 50, Adapters: 3}, {Disks: 1000, Adapters: 42}, {Disks: 2, Adapters: 5}, {Disks: 7, Adapters: 1}} {
		perAdapter := make([]int, o.Adapters)
		for _, d := range DiskList(o) {
			if d.Target != perAdapter[d.Adapter] {
				t.Errorf("%+v: %s is target %d of adapter %d, want %d", o, d.Name, d.Target, d.Adapter, perAdapter[d.Adapter])
			}
			perAdapter[d.Adapter]++
		}
		for i, n := range perAdapter {
			if n < o.Disks/o.Adapters || n > o.Disks/o.Adapters+1 {
				t.Errorf("%+v: adapter %d has %d disks", o, i, n)
			}
		}
	}
}

func TestAffectedDisks(t *testing.T) {
	count := func(o Options) (n int) {
		for _, d := range DiskList(o) {
			if d.Affected {
				n++
			}
		}
		return n
	}
	o := Options{Disks: 1000, Adapters: 42}
	if got := count(o); got != 10 {
		t.Errorf("%d of 1000 disks are affected, want 10", got)
	}
	o.Healthy = true
	if got := count(o); got != 0 {
		t.Errorf("%d of 1000 disks are affected with Healthy, want 0", got)
	}
}

func TestTree(t *testing.T) {
	o := Options{Disks: 50, Adapters: 5, Share: true}
	dir := write(t, o)
	t.Run("links resolve inside the tree", func(t *testing.T) { testLinks(t, dir, o) })
	t.Run("lsblk lists the disks", func(t *testing.T) { testLsblk(t, dir, o) })
	t.Run("lsscsi lists the disks", func(t *testing.T) { testLsscsi(t, dir, o) })
}

func testLinks(t *testing.T, dir string, o Options) {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	links := 0
	err = filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type() != fs.ModeSymlink {
			return err
		}
		links++
		to, err := filepath.EvalSymlinks(path)
		if err != nil {
			t.Errorf("link does not resolve: %v", err)
		} else if !strings.HasPrefix(to, root+"/sys/") {
			t.Errorf("link %s leads out of the tree, to %s", path, to)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if links < o.Disks*10 {
		t.Fatalf("found %d links, want at least ten a disk", links)
	}

	for _, d := range DiskList(o) {
		byBlock, _ := filepath.EvalSymlinks(filepath.Join(root, "sys/block", d.Name, "device"))
		byHCTL, _ := filepath.EvalSymlinks(filepath.Join(root, "sys/bus/scsi/devices", d.HCTL()))
		byNumber, _ := filepath.EvalSymlinks(filepath.Join(root, "sys/dev/block", devNumber(d.index), "device"))
		if byBlock == "" || byBlock != byHCTL || byBlock != byNumber {
			t.Errorf("%s: device is %q by name, %q by address, %q by number", d.Name, byBlock, byHCTL, byNumber)
		}
	}
}

func testLsblk(t *testing.T, dir string, o Options) {
	out := peer(t, "lsblk", "-O", "-J", "-b", "--sysroot", dir)
	var answer struct {
		Blockdevices []struct {
			Name, Vendor, Model, Rev, HCTL, Tran string
			Size                                 int64
			PhySec                               int   `json:"phy-sec"`
			OptIO                                int64 `json:"opt-io"`
		}
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		t.Fatalf("lsblk: %v", err)
	}
	got := map[string]string{}
	for _, b := range answer.Blockdevices {
		got[b.Name] = fmt.Sprintf("%s %s %s hctl %s tran %s size %d block %d optimal %d", strings.TrimSpace(b.Vendor),
			strings.TrimSpace(b.Model), strings.TrimSpace(b.Rev), b.HCTL, b.Tran, b.Size, b.PhySec, b.OptIO)
	}
	if len(got) != o.Disks {
		t.Errorf("lsblk lists %d disks, want %d", len(got), o.Disks)
	}
	for _, d := range DiskList(o) {
		want := fmt.Sprintf("%s %s %s hctl %s tran sas size %d block %d optimal %d", d.Vendor, d.Model, d.Revision,
			d.HCTL(), d.Sectors*512, d.PhysicalBlock, d.optimalBlocks*512)
		if got[d.Name] != want {
			t.Errorf("lsblk on %s\n got %s\nwant %s", d.Name, got[d.Name], want)
		}
	}
}

func testLsscsi(t *testing.T, dir string, o Options) {
	lines := strings.Split(strings.TrimSpace(string(peer(t, "lsscsi", "--sysfsroot", dir+"/sys"))), "\n")
	if len(lines) != o.Disks {
		t.Fatalf("lsscsi lists %d devices, want %d", len(lines), o.Disks)
	}
	for i, d := range DiskList(o) {
		// The node is looked up in /dev of the running system: not compared.
		want := fmt.Sprintf("[%s] disk %s %s %s", d.HCTL(), d.Vendor, d.Model, d.Revision)
		if got := strings.Join(strings.Fields(lines[i]), " "); !strings.HasPrefix(got, want) {
			t.Errorf("lsscsi line %d = %q, want prefix %q", i, got, want)
		}
	}
}

// The attributes of queue/ are those of the recorded Linux 7.3.4 host: a tree
// that lacked some would be cheaper to read than a real one.
func TestQueueHasEveryAttribute(t *testing.T) {
	dir := write(t, Options{Disks: 1, Adapters: 1})
	entries, err := os.ReadDir(filepath.Join(dir, "sys/block/sda/queue"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	const want = "add_random async_depth atomic_write_boundary_bytes atomic_write_max_bytes atomic_write_unit_max_bytes " +
		"atomic_write_unit_min_bytes chunk_sectors dax discard_granularity discard_max_bytes discard_max_hw_bytes " +
		"discard_zeroes_data dma_alignment fua hw_sector_size io_poll io_poll_delay io_timeout iostats " +
		"iostats_passthrough logical_block_size max_discard_segments max_hw_sectors_kb max_integrity_segments " +
		"max_sectors_kb max_segment_size max_segments max_write_streams minimum_io_size nomerges nr_requests nr_zones " +
		"optimal_io_size physical_block_size read_ahead_kb rotational rq_affinity scheduler stable_writes " +
		"virt_boundary_mask wbt_lat_usec write_cache write_same_max_bytes write_stream_granularity " +
		"write_zeroes_max_bytes write_zeroes_unmap_max_bytes write_zeroes_unmap_max_hw_bytes zone_append_max_bytes " +
		"zone_write_granularity zoned"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("queue attributes\n got %s\nwant %s", s, want)
	}
}

func TestPages(t *testing.T) {
	for _, d := range DiskList(Options{Disks: 3, Adapters: 1}) {
		for _, p := range d.pages() {
			if p.name == "inquiry" {
				if want := fmt.Sprintf("%-8s%-16s%-4s", d.Vendor, d.Model, d.Revision); string(p.data[8:36]) != want {
					t.Errorf("%s: inquiry holds %q, want %q", d.Name, p.data[8:36], want)
				}
				continue
			}
			if got := int(p.data[2])<<8 | int(p.data[3]); got != len(p.data)-4 {
				t.Errorf("%s: %s says %d bytes and has %d", d.Name, p.name, got, len(p.data)-4)
			}
			if p.name == "vpd_pg89" {
				var sum byte
				for _, b := range p.data[60:] {
					sum += b
				}
				if sum != 0 {
					t.Errorf("%s: checksum of IDENTIFY DEVICE is %#x, want 0", d.Name, sum)
				}
				// Words hold two characters, the first in the high byte.
				if got, want := string(p.data[60+2*27:60+2*31]), "TS830031"; got != want {
					t.Errorf("%s: model in IDENTIFY DEVICE starts with %q, want %q", d.Name, got, want)
				}
			}
		}
	}
}

func TestSharedTreeHasTheSameContent(t *testing.T) {
	o := Options{Disks: 6, Adapters: 2}
	plain := write(t, o)
	o.Share = true
	shared := write(t, o)
	files := 0
	err := filepath.WalkDir(plain, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		files++
		rel, _ := filepath.Rel(plain, path)
		want, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if got, err := os.ReadFile(filepath.Join(shared, rel)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s = %q (%v), want %q", rel, got, err, want)
		}
		return nil
	})
	if err != nil || files < 6*60 {
		t.Fatalf("compared %d files: %v", files, err)
	}
	a, _ := os.Stat(filepath.Join(shared, "sys/block/sda/queue/nomerges"))
	b, _ := os.Stat(filepath.Join(shared, "sys/block/sda/queue/nr_zones"))
	if a == nil || b == nil || !os.SameFile(a, b) {
		t.Errorf("files of equal content are not links of one another")
	}
	a, _ = os.Stat(filepath.Join(plain, "sys/block/sda/queue/nomerges"))
	b, _ = os.Stat(filepath.Join(plain, "sys/block/sda/queue/nr_zones"))
	if a == nil || b == nil || os.SameFile(a, b) {
		t.Errorf("files of equal content are links of one another without Share")
	}
}

func TestWriteRefuses(t *testing.T) {
	if err := Write(t.TempDir(), Options{Disks: 1}); err == nil {
		t.Error("Write made a disk without an adapter")
	}
	dir := write(t, Options{Disks: 1, Adapters: 1})
	if err := Write(dir, Options{Disks: 1, Adapters: 1}); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Write over a tree returned %v, want %v", err, fs.ErrExist)
	}
}

// peer returns the output of another program, and skips the test where the
// program is missing, unless that is an error.
func peer(t *testing.T, name string, args ...string) []byte {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is not installed, and CI=true", name)
		}
		t.Skipf("%s is not installed", name)
	}
	out, err := exec.Command(path, args...).Output()
	if err != nil {
		t.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return out
}

func TestSgVpdReadsThePages(t *testing.T) {
	dir := write(t, Options{Disks: 2, Adapters: 1})
	for _, c := range []struct{ disk, page, want string }{
		{"sda", "b0", "Maximum transfer length: 4096 blocks"},
		{"sda", "b0", "Optimal transfer length: 2048 blocks"},
		{"sda", "b1", "Nominal rotation rate: 7200 rpm"},
		{"sda", "83", "0x5000cca200000000"},
		{"sdb", "83", "vendor specific: ST380013AS"},
		{"sdb", "89", "model: ST380013AS"},
		{"sdb", "89", "firmware revision: 3.20"},
	} {
		file := filepath.Join(dir, "sys/block", c.disk, "device/vpd_pg"+c.page)
		out := peer(t, "sg_vpd", "--raw", "--inhex="+file)
		if !strings.Contains(string(out), c.want) {
			t.Errorf("sg_vpd on %s page %s does not say %q:\n%s", c.disk, c.page, c.want, out)
		}
	}
}
