package target

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/quirkcheck/quirkcheck/internal/ioctl"
)

func TestPlaced(t *testing.T) {
	const kib = 1024
	disk := Target{First: 2048, Sectors: 1 << 20}
	for _, c := range []struct {
		name    string
		raw     []ioctl.FileExtent
		sectors uint64
		want    []FileExtent
		says    string // of the refusal
	}{
		{name: "one extent, moved by the partition's start", sectors: 128,
			raw:  []ioctl.FileExtent{{Logical: 0, Physical: 64 * kib, Bytes: 64 * kib, Flags: ioctl.ExtentLast}},
			want: []FileExtent{{0, 2048 + 128, 128}}},
		{name: "extents that go on are one", sectors: 256,
			raw: []ioctl.FileExtent{
				{Logical: 0, Physical: 64 * kib, Bytes: 64 * kib, Flags: ioctl.ExtentMerged},
				{Logical: 64 * kib, Physical: 128 * kib, Bytes: 64 * kib, Flags: ioctl.ExtentLast}},
			want: []FileExtent{{0, 2048 + 128, 256}}},
		{name: "extents apart are two", sectors: 256,
			raw: []ioctl.FileExtent{
				{Logical: 0, Physical: 64 * kib, Bytes: 64 * kib},
				{Logical: 64 * kib, Physical: 256 * kib, Bytes: 64 * kib}},
			want: []FileExtent{{0, 2048 + 128, 128}, {128, 2048 + 512, 128}}},
		{name: "space behind the end is not the file's", sectors: 128,
			raw: []ioctl.FileExtent{
				{Logical: 0, Physical: 64 * kib, Bytes: 128 * kib},
				{Logical: 128 * kib, Physical: 512 * kib, Bytes: 64 * kib}},
			want: []FileExtent{{0, 2048 + 128, 128}}},
		{name: "shared", sectors: 128, raw: []ioctl.FileExtent{{Physical: 64 * kib, Bytes: 64 * kib, Flags: ioctl.ExtentShared}}, says: "copied on write"},
		{name: "inline", sectors: 128, raw: []ioctl.FileExtent{{Physical: 64 * kib, Bytes: 64 * kib, Flags: ioctl.ExtentDataInline}}, says: "metadata"},
		{name: "packed tail", sectors: 128, raw: []ioctl.FileExtent{{Physical: 64 * kib, Bytes: 64 * kib, Flags: ioctl.ExtentDataTail}}, says: "ends"},
		{name: "not aligned", sectors: 128, raw: []ioctl.FileExtent{{Physical: 64 * kib, Bytes: 64 * kib, Flags: ioctl.ExtentNotAligned}}, says: "not aligned"},
		{name: "compressed", sectors: 128, raw: []ioctl.FileExtent{{Physical: 64 * kib, Bytes: 64 * kib, Flags: ioctl.ExtentEncoded}}, says: "compressed"},
		{name: "encrypted", sectors: 128, raw: []ioctl.FileExtent{{Physical: 64 * kib, Bytes: 64 * kib, Flags: ioctl.ExtentDataEncrypted}}, says: "encrypted"},
		{name: "unwritten", sectors: 128, raw: []ioctl.FileExtent{{Physical: 64 * kib, Bytes: 64 * kib, Flags: ioctl.ExtentUnwritten}}, says: "not written"},
		{name: "not allocated", sectors: 128, raw: []ioctl.FileExtent{{Physical: 64 * kib, Bytes: 64 * kib, Flags: ioctl.ExtentDelalloc}}, says: "not allocated"},
		{name: "place unknown", sectors: 128, raw: []ioctl.FileExtent{{Physical: 64 * kib, Bytes: 64 * kib, Flags: ioctl.ExtentUnknown}}, says: "no known place"},
		{name: "of a kind to come", sectors: 128, raw: []ioctl.FileExtent{{Physical: 64 * kib, Bytes: 64 * kib, Flags: 0x40000}}, says: "not known here"},
		{name: "the second is bad", sectors: 256, raw: []ioctl.FileExtent{
			{Logical: 0, Physical: 64 * kib, Bytes: 64 * kib},
			{Logical: 64 * kib, Physical: 128 * kib, Bytes: 64 * kib, Flags: ioctl.ExtentShared}}, says: "byte 65536"},
		{name: "a hole at the start", sectors: 128, raw: []ioctl.FileExtent{{Logical: 4096, Physical: 64 * kib, Bytes: 60 * kib}}, says: "between sectors 0 and 8"},
		{name: "a hole in the middle", sectors: 256, raw: []ioctl.FileExtent{
			{Logical: 0, Physical: 64 * kib, Bytes: 32 * kib},
			{Logical: 64 * kib, Physical: 128 * kib, Bytes: 64 * kib}}, says: "between sectors 64 and 128"},
		{name: "a hole at the end", sectors: 256, raw: []ioctl.FileExtent{{Logical: 0, Physical: 64 * kib, Bytes: 64 * kib}}, says: "behind sector 128"},
		{name: "nothing", sectors: 128, says: "behind sector 0"},
		{name: "at sector 0", sectors: 128, raw: []ioctl.FileExtent{{Bytes: 64 * kib}}, says: "outside"},
		{name: "behind the device", sectors: 128, raw: []ioctl.FileExtent{{Physical: 1<<29 - 32*kib, Bytes: 64 * kib}}, says: "outside"},
		{name: "so far behind that it wraps", sectors: 128, raw: []ioctl.FileExtent{{Physical: ^uint64(511), Bytes: 64 * kib}}, says: "outside"},
		{name: "not in whole sectors", sectors: 128, raw: []ioctl.FileExtent{{Physical: 64*kib + 1, Bytes: 64 * kib}}, says: "not aligned"},
	} {
		got, err := placed(c.raw, c.sectors, disk)
		if c.says != "" {
			if !errors.Is(err, ErrNotInPlace) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: got %v, %v; want ErrNotInPlace with %q", c.name, got, err, c.says)
			}
			continue
		}
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", c.name, err, diff)
		}
	}
}

func TestPlace(t *testing.T) {
	for _, c := range []struct {
		name   string
		dev    DevNo
		line   string // of the mount with id 50
		change func(k *made)
		says   string
	}{
		{name: "ext4 on a partition", dev: DevNo{8, 1}, line: "8:1 / /f rw - ext4 /dev/sda1 rw"},
		{name: "xfs", dev: DevNo{8, 1}, line: "8:1 / /f rw - xfs /dev/sda1 rw,noquota"},
		{name: "ext4 in a loop device, which is the disk then", dev: DevNo{7, 0}, line: "7:0 / /f rw - ext4 /dev/loop0 rw", change: func(k *made) {
			k.put(k.disk("loop0", DevNo{7, 0}, "virtual", 4096)+"/loop/backing_file", "/srv/j\n")
		}},
		{name: "btrfs", dev: DevNo{0, 99}, line: "0:44 / /f rw - btrfs /dev/sda1 rw", says: "its addresses are its own"},
		{name: "f2fs", dev: DevNo{8, 1}, line: "8:1 / /f rw - f2fs /dev/sda1 rw", says: "writes copies"},
		{name: "zfs", dev: DevNo{0, 44}, line: "0:44 / /f rw - zfs pool/x rw", says: "writes copies"},
		{name: "tmpfs", dev: DevNo{0, 44}, line: "0:44 / /f rw - tmpfs tmpfs rw", says: "memory"},
		{name: "overlay", dev: DevNo{0, 44}, line: "0:44 / /f rw - overlay overlay rw,lowerdir=/x", says: "another file system's files"},
		{name: "nfs", dev: DevNo{0, 44}, line: "0:44 / /f rw - nfs4 host:/x rw", says: "another machine"},
		{name: "fuse", dev: DevNo{0, 44}, line: "0:44 / /f rw - fuse.sshfs host:/x rw", says: "a program stands between"},
		{name: "fuse with a device", dev: DevNo{8, 1}, line: "8:1 / /f rw - fuseblk /dev/sda1 rw", says: "a program stands between"},
		{name: "a file system nobody tried", dev: DevNo{8, 1}, line: "8:1 / /f rw - newfs /dev/sda1 rw", says: "not known to overwrite in place"},
		{name: "ext4 that journals data", dev: DevNo{8, 1}, line: "8:1 / /f rw - ext4 /dev/sda1 rw,data=journal", says: "data=journal"},
		{name: "xfs with a realtime device", dev: DevNo{8, 1}, line: "8:1 / /f rw - xfs /dev/sda1 rw,rtdev=/dev/sdb", says: "second device"},
		{name: "dax", dev: DevNo{8, 1}, line: "8:1 / /f rw - xfs /dev/sda1 rw,dax=always", says: "dax"},
		{name: "device-mapper between", dev: DevNo{253, 0}, line: "253:0 / /f rw - ext4 /dev/mapper/vg-lv rw", change: func(k *made) {
			k.dm("dm-0", DevNo{253, 0}, "vg-lv", "LVM-1", "sdb")
		}, says: "dm-0 vg-lv (logical volume), which is made of sdb"},
		{name: "md between", dev: DevNo{9, 0}, line: "9:0 / /f rw - ext4 /dev/md0 rw", change: func(k *made) {
			k.put(k.stacked("md0", DevNo{9, 0}, "sdb")+"/md/level", "raid1\n")
		}, says: "md0 raid1, which is made of sdb"},
		{name: "a number that is not the mount's", dev: DevNo{8, 16}, line: "8:1 / /f rw - ext4 /dev/sda1 rw", says: "no block device"},
		{name: "no such mount", dev: DevNo{8, 1}, says: "no mount"},
	} {
		k := newMade(t)
		if c.change != nil {
			c.change(k)
		}
		if c.line != "" {
			k.mount("50 27 " + c.line)
		}
		k.stats["/f"] = FileStat{Mode: unix.S_IFDIR, Dev: c.dev, MountID: 50}
		got, _, err := place(k.machine(), "/f")
		if c.says != "" {
			if !errors.Is(err, ErrNotInPlace) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: got %v, want ErrNotInPlace with %q", c.name, err, c.says)
			}
			continue
		}
		if err != nil || got.DevNo != c.dev || got.Node == "" {
			t.Errorf("%s: got %+v, %v; want device %s with its node", c.name, got, err, c.dev)
		}
	}
}

func TestRoom(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		name               string
		bytes, free, total uint64
		ok                 bool
	}{
		{"a large file system keeps 1 GiB", gib, 2 * gib, 100 * gib, true},
		{"a large file system keeps 1 GiB, to the byte", gib + 1, 2 * gib, 100 * gib, false},
		{"a small one keeps 5 %", 95 << 20, 100 << 20, 100 << 20, true},
		{"a small one keeps 5 %, to the byte", 95<<20 + 1, 100 << 20, 100 << 20, false},
		{"a full one", 1, 0, 100 << 20, false},
		{"more than there is", 1 << 49, gib, 100 * gib, false},
	} {
		if err := enough("/f", c.bytes, c.free, c.total); (err == nil) != c.ok {
			t.Errorf("%s: enough(%d, %d, %d) = %v", c.name, c.bytes, c.free, c.total, err)
		}
	}
}

// testDir is a folder whose files can be tested here, or the test is skipped.
func testDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if _, _, err := place(Live(), dir); err != nil {
		t.Skipf("files in %s cannot be tested: %v", dir, err)
	}
	return dir
}

func TestCreateFile(t *testing.T) {
	name := filepath.Join(testDir(t), "f")
	var told []uint64
	f, err := CreateFile(context.Background(), Live(), name, FileOptions{Bytes: 8<<20 - 1, Progress: func(n uint64) { told = append(told, n) }})
	if errors.Is(err, ErrNotInPlace) {
		t.Skipf("no file can be tested here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Sectors != 16384 || len(told) != 128 || told[127] != 8<<20 {
		t.Errorf("%d sectors, told %v; want 16384 sectors in 128 steps", f.Sectors, told)
	}
	next := uint64(0)
	for _, e := range f.Extents {
		if e.Offset != next || e.Sectors == 0 || e.Physical < f.Target.First || e.Physical+e.Sectors > f.Target.First+f.Target.Sectors {
			t.Errorf("extent %+v after sector %d of %+v", e, next, f.Target)
		}
		next += e.Sectors
	}
	if next != f.Sectors {
		t.Errorf("extents end at sector %d, want %d", next, f.Sectors)
	}
	if err := f.Unmoved(); err != nil {
		t.Errorf("just made: %v", err)
	}
	largest := uint64(0)
	for _, e := range f.Extents {
		largest = max(largest, e.Sectors)
	}
	if got, err := f.Pick(largest); err != nil || len(got) == 0 {
		t.Errorf("Pick(%d) = %v, %v", largest, got, err)
	}
	if got, err := f.Pick(largest + 1); err == nil {
		t.Errorf("Pick(%d) = %v of %v", largest+1, got, f.Extents)
	}
	checkPlace(t, f)
	if b, err := os.ReadFile(name); err != nil || len(b) != 8<<20 {
		t.Errorf("read back: %d bytes, %v", len(b), err)
	} else {
		// Nothing below may save space on it.
		seen := map[string]bool{strings.Repeat("\x00", 8): true}
		for i := 0; i < len(b); i += 8 {
			if word := string(b[i : i+8]); seen[word] {
				t.Fatalf("the word at byte %d, %x, is zero or was there before", i, word)
			} else {
				seen[word] = true
			}
		}
	}
	// Another run, and anyone else, finds the name taken.
	if _, err := CreateFile(context.Background(), Live(), name, FileOptions{Bytes: 1}); err == nil {
		t.Error("a file in use was made again")
	}
	moved := *f
	moved.Extents = append([]FileExtent{{0, 1, 1}}, f.Extents...)
	if err := moved.Unmoved(); !errors.Is(err, ErrChanged) {
		t.Errorf("moved: got %v, want ErrChanged", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	if _, err := os.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Close: %v, want no file", err)
	}
}

// checkPlace reads the first extent from the disk itself, where that may be
// done, and compares it with the file.
func checkPlace(t *testing.T, f *File) {
	t.Helper()
	disk, err := targetOf(Live(), f.Target.DiskDev)
	if err != nil || disk.Node == "" {
		t.Logf("the place on the disk was not checked: no node of %s: %v", f.Target.Disk, err)
		return
	}
	r, err := Live().Open(disk.Node, disk.DevNo)
	if err != nil {
		t.Logf("the place on the disk was not checked: %v", err)
		return
	}
	defer r.Close()
	for _, e := range f.Extents {
		b := make([]byte, min(e.Sectors, 8)*sysSectorBytes)
		if _, err := r.ReadAt(b, int64(e.Physical)*sysSectorBytes); err != nil {
			t.Errorf("sector %d of %s: %v", e.Physical, f.Target.Disk, err)
			continue
		}
		plain, err := os.Open(f.Path)
		if err != nil {
			t.Fatal(err)
		}
		want := make([]byte, len(b))
		if _, err := plain.ReadAt(want, int64(e.Offset)*sysSectorBytes); err != nil {
			t.Error(err)
		}
		plain.Close()
		if string(b) != string(want) {
			t.Errorf("extent %+v: the disk has other bytes there than the file", e)
		}
	}
}

func TestCreateFileRefusesAndLeavesNothing(t *testing.T) {
	dir := testDir(t)
	torn := errors.New("torn")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	good := func(int, int) ([]ioctl.FileExtent, error) {
		return []ioctl.FileExtent{{Physical: 1 << 20, Bytes: 1 << 20, Flags: ioctl.ExtentLast}}, nil
	}
	flags := func(n uint32, err error) func(int) (uint32, error) {
		return func(int) (uint32, error) { return n, err }
	}
	for _, c := range []struct {
		name string
		o    FileOptions
		ctx  context.Context
		is   error
	}{
		{name: "good", o: FileOptions{Fiemap: good}},
		{name: "good, of extents", o: FileOptions{Fiemap: good, Flags: flags(0x80000, nil)}},
		{name: "a file system without flags", o: FileOptions{Fiemap: good, Flags: flags(0, unix.ENOTTY)}},
		{name: "compressed", o: FileOptions{Fiemap: good, Flags: flags(ioctl.FlagCompressed, nil)}, is: ErrNotInPlace},
		{name: "encrypted", o: FileOptions{Fiemap: good, Flags: flags(ioctl.FlagEncrypted, nil)}, is: ErrNotInPlace},
		{name: "journaled", o: FileOptions{Fiemap: good, Flags: flags(journalData, nil)}, is: ErrNotInPlace},
		{name: "unreadable flags", o: FileOptions{Fiemap: good, Flags: flags(0, torn)}, is: torn},
		{name: "no map", o: FileOptions{Fiemap: func(int, int) ([]ioctl.FileExtent, error) { return nil, unix.EOPNOTSUPP }}, is: ErrNotInPlace},
		{name: "a torn map", o: FileOptions{Fiemap: func(int, int) ([]ioctl.FileExtent, error) { return nil, torn }}, is: torn},
		{name: "shared", o: FileOptions{Fiemap: func(int, int) ([]ioctl.FileExtent, error) {
			return []ioctl.FileExtent{{Physical: 1 << 20, Bytes: 1 << 20, Flags: ioctl.ExtentShared}}, nil
		}}, is: ErrNotInPlace},
		{name: "cancelled", o: FileOptions{Fiemap: good, Progress: func(n uint64) {
			if n >= 128<<10 {
				cancel()
			}
		}}, ctx: ctx, is: context.Canceled},
	} {
		name := filepath.Join(dir, strings.ReplaceAll(c.name, " ", "-"))
		c.o.Bytes = 1 << 20
		if c.ctx == nil {
			c.ctx = context.Background()
		}
		f, err := CreateFile(c.ctx, Live(), name, c.o)
		if !errors.Is(err, c.is) || (err == nil) != (c.is == nil) {
			t.Errorf("%s: got %v, want %v", c.name, err, c.is)
		}
		if err == nil {
			f.Close()
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	for _, bytes := range []uint64{0, 1 << 60, 1 << 50} {
		if f, err := CreateFile(context.Background(), Live(), filepath.Join(dir, "large"), FileOptions{Bytes: bytes}); err == nil {
			t.Errorf("a file of %d bytes was made", bytes)
			f.Close()
		}
	}
}

func TestCreateFileKeepsWhatIsNotOurs(t *testing.T) {
	dir := testDir(t)
	write := func(name, mark string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte("dear data"), 0o600); err != nil {
			t.Fatal(err)
		}
		if mark != "" {
			if err := unix.Setxattr(name, fileMark, []byte(mark), 0); err != nil {
				t.Skipf("no extended attributes here: %v", err)
			}
		}
		return name
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("target-of-link", link); err != nil {
		t.Fatal(err)
	}
	dangling := filepath.Join(dir, "dangling")
	if err := os.Symlink("nowhere", dangling); err != nil {
		t.Fatal(err)
	}
	twice := write("twice", "1")
	if err := os.Link(twice, twice+"-too"); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ what, name string }{
		{"somebody's file", write("plain", "")},
		{"a file with another mark", write("other", "2")},
		{"a marked file with two names", twice},
		{"a link to a marked file", func() string { write("target-of-link", "1"); return link }()},
		{"a link to nothing", dangling},
		{"a pipe", fifo},
		{"a folder", dir},
	} {
		before, _ := os.Lstat(c.name)
		f, err := CreateFile(context.Background(), Live(), c.name, FileOptions{Bytes: 1 << 20})
		if !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: got %v, want %v", c.what, err, fs.ErrExist)
		}
		if err == nil {
			f.Close()
		}
		if after, err := os.Lstat(c.name); err != nil || !os.SameFile(before, after) {
			t.Errorf("%s is gone: %v", c.what, err)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "plain")); string(b) != "dear data" {
		t.Errorf("somebody's file has %q now (%v)", b, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "nowhere")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link was followed: %v", err)
	}

	// What a killed run left is ours to remove.
	left := write("left", "1")
	f, err := CreateFile(context.Background(), Live(), left, FileOptions{Bytes: 1 << 20})
	if err != nil {
		t.Fatalf("a file left behind: %v", err)
	}
	// Another file under the name in the meantime stays.
	if err := os.Remove(left); err != nil {
		t.Fatal(err)
	}
	write("left", "")
	if err := f.Close(); err == nil || !strings.Contains(err.Error(), "another file") {
		t.Errorf("Close over another file: %v", err)
	}
	if b, err := os.ReadFile(left); string(b) != "dear data" {
		t.Errorf("another file under the name has %q now (%v)", b, err)
	}
}

// TestFileOnPartition makes a file on a file system on a partition and finds
// its bytes on the whole disk.
func TestFileOnPartition(t *testing.T) {
	name := loopDisk(t, 128<<20)
	tool(t, "addpart", "/dev/"+name, "1", "2056", "258048")
	node := "/dev/" + name + "p1"
	for range 100 { // udev makes it, or devtmpfs
		if _, err := os.Stat(node); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := os.Stat(node); err != nil {
		t.Skipf("no node for the partition: %v", err)
	}
	tool(t, "mkfs.ext4", "-q", "-F", node)
	dir := t.TempDir()
	tool(t, "mount", node, dir)
	defer tool(t, "umount", dir)
	f, err := CreateFile(context.Background(), Live(), filepath.Join(dir, "f"), FileOptions{Bytes: 32 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Target.First != 2056 || f.Target.Disk != name || f.Target.Node != node {
		t.Errorf("target %+v, want %s at 2056", f.Target, node)
	}
	checkPlace(t, f)
	if got, err := f.Pick(8 << 11); err != nil || len(got) == 0 {
		t.Errorf("Pick(8 MiB) = %v, %v of %v", got, err, f.Extents)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	free := st.Bavail * uint64(st.Bsize)
	if g, err := CreateFile(context.Background(), Live(), filepath.Join(dir, "g"), FileOptions{Bytes: free}); err == nil {
		t.Errorf("a file of all %d free bytes was made", free)
		g.Close()
	}
}
