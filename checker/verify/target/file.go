package target

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quirkcheck/quirkcheck/internal/ioctl"
)

// ErrNotInPlace marks a file whose blocks are not overwritten where they lie, or
// lie nowhere on a disk: nothing written to it tests one size on one disk.
var ErrNotInPlace = errors.New("its blocks cannot be tested")

// FileOptions is what CreateFile makes.
type FileOptions struct {
	Bytes uint64 // rounded up to 64 KiB
	// Progress, where not nil, is told the bytes written so far.
	Progress func(written uint64)
	// Fiemap and Flags are ioctl.Fiemap and ioctl.FileFlags where nil.
	Fiemap func(fd, limit int) ([]ioctl.FileExtent, error)
	Flags  func(fd int) (uint32, error)
}

// FileExtent is a run of a file's sectors that lie one behind the other on the
// disk; 512 bytes each.
type FileExtent struct {
	Offset   uint64 // in the file
	Physical uint64 // on the whole disk
	Sectors  uint64
}

// File is a file of ours to test through: allocated, written, and known by its
// place on the disk. Close removes it.
type File struct {
	Path string
	// Target is the device with the file system.
	Target  Target
	FSType  string
	Sectors uint64
	// Extents are in the order of the file, as long as they can be.
	Extents []FileExtent

	f      *os.File
	id     fileID
	fiemap func(fd, limit int) ([]ioctl.FileExtent, error)
}

// fileID tells one file from another.
type fileID struct{ dev, ino uint64 }

const (
	// fileChunk is the size of the commands that write the file at first: small
	// enough for every known quirk.
	fileChunk = 64 << 10
	// maxExtents bounds what a file may be made of. One of so many has none
	// that is large.
	maxExtents = 100_000
	// fileMark is an extended attribute that says whose the file is: one left
	// behind by a killed run may be removed.
	fileMark = "user.quirkcheck.verify"
)

// inPlace are the file systems known to overwrite a file's blocks where they
// lie, unless the extents say otherwise, and whose FIEMAP gives places on the
// device.
var inPlace = []string{"ext2", "ext3", "ext4", "xfs"}

// notInPlace says why others are not used.
var notInPlace = map[string]string{
	"btrfs":    "it writes copies, and its addresses are its own, not the disk's",
	"bcachefs": "it writes copies",
	"zfs":      "it writes copies",
	"f2fs":     "it writes copies",
	"nilfs2":   "it writes copies",
	"tmpfs":    "it lies in memory",
	"ramfs":    "it lies in memory",
	"overlay":  "it shows another file system's files; give a path on that one",
	"nfs":      "its disk is another machine's",
	"nfs4":     "its disk is another machine's",
	"cifs":     "its disk is another machine's",
	"smb3":     "its disk is another machine's",
	"ceph":     "its disks are other machines'",
	"9p":       "its disk is another machine's",
	"virtiofs": "its disk is another machine's",
	"fuse":     "a program stands between it and the disk",
	"fuseblk":  "a program stands between it and the disk",
	"gfs2":     "other hosts write to it",
	"ocfs2":    "other hosts write to it",
}

// place finds the device under a folder and says whether a file there can be
// tested.
func place(m Machine, folder string) (Target, mount, error) {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%s: %w: %s", clean(folder), ErrNotInPlace, fmt.Sprintf(format, args...))
	}
	mnts, err := m.mountinfo("self")
	if err != nil {
		return Target{}, mount{}, fmt.Errorf("%s: %w", clean(folder), err)
	}
	st, err := m.Stat(folder)
	if err != nil {
		return Target{}, mount{}, err
	}
	real, err := m.Real(folder)
	if err != nil {
		return Target{}, mount{}, err
	}
	mnt, ok := mountOf(st, real, mnts)
	if !ok {
		return Target{}, mnt, refuse("no mount of it is listed")
	}
	kind, _, _ := strings.Cut(mnt.fstype, ".") // fuse.sshfs
	if why := notInPlace[kind]; why != "" {
		return Target{}, mnt, refuse("the file system is %s: %s", clean(mnt.fstype), why)
	}
	if !slices.Contains(inPlace, mnt.fstype) {
		return Target{}, mnt, refuse("the file system is %s, which is not known to overwrite in place; known are %s", clean(mnt.fstype), strings.Join(inPlace, ", "))
	}
	if st.Dev.anonymous() || st.Dev != mnt.dev {
		return Target{}, mnt, refuse("no block device carries it")
	}
	for option := range strings.SplitSeq(mnt.super, ",") {
		switch {
		case option == "data=journal":
			return Target{}, mnt, refuse("mounted with data=journal, so data is written elsewhere first")
		case option == "dax" || option == "dax=always":
			return Target{}, mnt, refuse("mounted with dax, so no commands are sent")
		case strings.HasPrefix(option, "rtdev="):
			return Target{}, mnt, refuse("the file system has a second device for data (%s)", clean(option))
		}
	}
	t, err := targetOf(m, st.Dev)
	if err != nil {
		return t, mnt, fmt.Errorf("%s: %w", clean(folder), err)
	}
	g := gatherer{m: m, mnts: mnts, f: Facts{Target: t}}
	if err := g.members(); err != nil {
		return t, mnt, fmt.Errorf("%s: %w", clean(folder), err)
	}
	if g.f.Kind != "" {
		l := Layer{Name: t.Disk, Kind: g.f.Kind, dir: t.DiskDir}
		if err := m.describe(&l); err != nil {
			return t, mnt, err
		}
		return t, mnt, refuse("the file system lies on %s, which is made of %s: where its blocks lie on the disks, and how large a command gets there, cannot be told (nor is it for a linear map)",
			strings.TrimSpace(l.Name+" "+l.Detail), list(g.f.Members))
	}
	return t, mnt, nil
}

// CreateFile makes a new file, writes every block of it once with small commands
// and finds out where it lies. It refuses (ErrNotInPlace) what does not lie
// still on one disk: copy-on-write, compression, encryption, shared or inline
// extents, device-mapper and md below, and file systems without a disk. A file
// that is there already is an error (fs.ErrExist) unless an earlier run left
// it behind. On error nothing remains. No privilege is needed beyond writing in the
// folder.
func CreateFile(ctx context.Context, m Machine, name string, o FileOptions) (*File, error) {
	if o.Fiemap == nil {
		o.Fiemap = ioctl.Fiemap
	}
	if o.Flags == nil {
		o.Flags = ioctl.FileFlags
	}
	if o.Bytes == 0 || o.Bytes > 1<<50 {
		return nil, fmt.Errorf("%s: cannot make a file of %d bytes", clean(name), o.Bytes)
	}
	bytes := (o.Bytes + fileChunk - 1) / fileChunk * fileChunk
	abs, err := filepath.Abs(name)
	if err != nil {
		return nil, err
	}
	t, mnt, err := place(m, filepath.Dir(abs))
	if err != nil {
		return nil, err
	}
	if err := removeLeftBehind(abs); err != nil {
		return nil, err
	}
	if err := room(filepath.Dir(abs), bytes); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(abs, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_DIRECT|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		// ext4 and XFS know O_DIRECT on every block size; with the file made
		// and then refused, the kernel leaves it there.
		if errors.Is(err, unix.EINVAL) {
			err = errors.Join(err, removeEmpty(abs))
		}
		return nil, fmt.Errorf("create: %w", err)
	}
	file := &File{Path: abs, Target: t, FSType: mnt.fstype, Sectors: bytes / sysSectorBytes, f: f, fiemap: o.Fiemap}
	if err := file.make(ctx, mnt, bytes, o); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func (f *File) make(ctx context.Context, mnt mount, bytes uint64, o FileOptions) error {
	var st unix.Stat_t
	if err := unix.Fstat(f.Fd(), &st); err != nil {
		return fmt.Errorf("stat %s: %w", clean(f.Path), err)
	}
	f.id = fileID{st.Dev, st.Ino}
	if dev := (DevNo{unix.Major(st.Dev), unix.Minor(st.Dev)}); dev != mnt.dev {
		return fmt.Errorf("%s: %w: it came to lie on device %s, not %s", clean(f.Path), ErrNotInPlace, dev, mnt.dev)
	}
	// removeLeftBehind must not take it for one while this run lives: the lock
	// comes before the mark.
	if err := ioctl.Lock(f.Fd()); err != nil {
		return fmt.Errorf("lock %s: %w", clean(f.Path), err)
	}
	// Without the mark, on a file system without attributes, a file left behind
	// is only harder to get rid of.
	_ = unix.Fsetxattr(f.Fd(), fileMark, []byte("1"), 0)
	if err := f.checkFlags(o.Flags); err != nil {
		return err
	}
	// ext2 and ext3 have no fallocate; writing in order serves there.
	if err := unix.Fallocate(f.Fd(), 0, 0, int64(bytes)); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("allocate %d bytes for %s: %w", bytes, clean(f.Path), err)
	}
	if err := f.write(ctx, bytes, o.Progress); err != nil {
		return err
	}
	if err := f.f.Sync(); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	extents, err := f.mapped()
	if err != nil {
		return err
	}
	f.Extents = extents
	return nil
}

// journalData is FS_JOURNAL_DATA_FL of <linux/fs.h>.
const journalData = 0x4000

// badFlags are inode flags of files that are not overwritten in place.
var badFlags = []struct {
	flag uint32
	name string
}{
	{ioctl.FlagCompressed, "compressed"},
	{ioctl.FlagEncrypted, "encrypted"},
	{ioctl.FlagInline, "kept in its inode"},
	{ioctl.FlagImmutable, "immutable"},
	{ioctl.FlagAppend, "append-only"},
	{journalData, "journaled with its data"},
}

func (f *File) checkFlags(flags func(fd int) (uint32, error)) error {
	n, err := flags(f.Fd())
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil // no flags here
	}
	if err != nil {
		return fmt.Errorf("flags of %s: %w", clean(f.Path), err)
	}
	for _, bad := range badFlags {
		// With inline data enabled ext4 marks an empty file; it grows out of it,
		// and its extents will tell.
		if n&bad.flag != 0 && bad.flag != ioctl.FlagInline {
			return fmt.Errorf("%s: %w: the file is %s", clean(f.Path), ErrNotInPlace, bad.name)
		}
	}
	return nil
}

// write fills the file with bytes that are neither zero nor alike, so that no
// layer below keeps less than was written.
func (f *File) write(ctx context.Context, bytes uint64, progress func(uint64)) error {
	buf, err := unix.Mmap(-1, 0, fileChunk, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("memory to write %s: %w", clean(f.Path), err)
	}
	defer unix.Munmap(buf)
	for off := uint64(0); off < bytes; off += fileChunk {
		if err := ctx.Err(); err != nil {
			return err
		}
		for i := uint64(0); i < fileChunk; i += 8 {
			// An odd factor keeps every word different from every other.
			binary.LittleEndian.PutUint64(buf[i:], (off+i+1)*0x9e3779b97f4a7c15)
		}
		if _, err := f.f.WriteAt(buf, int64(off)); err != nil {
			return err // names operation and path
		}
		if progress != nil {
			progress(off + fileChunk)
		}
	}
	return nil
}

// badExtents are FIEMAP flags of extents that have no place of their own on the
// disk, or may be moved from it by the next write.
var badExtents = []struct {
	flag ioctl.ExtentFlags
	name string
}{
	{ioctl.ExtentUnknown, "at no known place"},
	{ioctl.ExtentDelalloc, "not allocated yet"},
	{ioctl.ExtentEncoded, "encoded or compressed"},
	{ioctl.ExtentDataEncrypted, "encrypted"},
	{ioctl.ExtentNotAligned, "not aligned"},
	{ioctl.ExtentDataInline, "kept among metadata"},
	{ioctl.ExtentDataTail, "packed with other files' ends"},
	{ioctl.ExtentUnwritten, "allocated but not written"},
	{ioctl.ExtentShared, "shared with another file, so copied on write"},
}

const goodExtents = ioctl.ExtentLast | ioctl.ExtentMerged

// mapped asks where the file lies.
func (f *File) mapped() ([]FileExtent, error) {
	raw, err := f.fiemap(f.Fd(), maxExtents)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOTTY) {
		return nil, fmt.Errorf("%s: %w: %s does not tell where files lie (FIEMAP)", clean(f.Path), ErrNotInPlace, f.FSType)
	}
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", clean(f.Path), err)
	}
	extents, err := placed(raw, f.Sectors, f.Target)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", clean(f.Path), err)
	}
	return extents, nil
}

// placed checks a file's extents and puts together those that go on.
func placed(raw []ioctl.FileExtent, sectors uint64, t Target) ([]FileExtent, error) {
	var out []FileExtent
	next := uint64(0)
	for _, e := range raw {
		at := fmt.Sprintf("the extent at byte %d is", e.Logical)
		for _, bad := range badExtents {
			if e.Flags&bad.flag != 0 {
				return nil, fmt.Errorf("%w: %s %s", ErrNotInPlace, at, bad.name)
			}
		}
		if e.Flags&^goodExtents != 0 {
			return nil, fmt.Errorf("%w: %s of a kind not known here (flags %#x)", ErrNotInPlace, at, uint32(e.Flags))
		}
		if e.Logical%sysSectorBytes != 0 || e.Physical%sysSectorBytes != 0 || e.Bytes%sysSectorBytes != 0 {
			return nil, fmt.Errorf("%w: %s not aligned", ErrNotInPlace, at)
		}
		x := FileExtent{Offset: e.Logical / sysSectorBytes, Physical: e.Physical / sysSectorBytes, Sectors: e.Bytes / sysSectorBytes}
		if x.Offset != next {
			return nil, fmt.Errorf("%w: nothing lies between sectors %d and %d of the file", ErrNotInPlace, next, x.Offset)
		}
		// Sector 0 has a superblock or a boot sector: no file lies there.
		if x.Physical == 0 || x.Sectors > t.Sectors || x.Physical > t.Sectors-x.Sectors {
			return nil, fmt.Errorf("%w: %s outside the device (sectors %d and on)", ErrNotInPlace, at, x.Physical)
		}
		next += x.Sectors
		// Preallocation reaches beyond the end of the file.
		if x.Offset >= sectors {
			break
		}
		x.Sectors = min(x.Sectors, sectors-x.Offset)
		x.Physical += t.First
		if n := len(out); n > 0 && out[n-1].Physical+out[n-1].Sectors == x.Physical {
			out[n-1].Sectors += x.Sectors
			continue
		}
		out = append(out, x)
	}
	if next < sectors {
		return nil, fmt.Errorf("%w: nothing lies behind sector %d of the file", ErrNotInPlace, next)
	}
	return out, nil
}

// Fd is the open file, with O_DIRECT.
func (f *File) Fd() int { return int(f.f.Fd()) }

// Pick returns the extents of at least so many sectors, at best twice the
// largest command with its guards. Without any the error says how large the
// largest is.
func (f *File) Pick(sectors uint64) ([]FileExtent, error) {
	var out []FileExtent
	largest := uint64(0)
	for _, e := range f.Extents {
		largest = max(largest, e.Sectors)
		if e.Sectors >= sectors {
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: the file system gave no piece of %d KiB, the largest has %d KiB: make the file larger, or test smaller sizes", clean(f.Path), sectors/2, largest/2)
	}
	return out, nil
}

// Unmoved asks again where the file lies. ErrChanged means that it was moved
// meanwhile (defragmented, shared): what was found is not about the sectors that
// were noted.
func (f *File) Unmoved() error {
	now, err := f.mapped()
	if errors.Is(err, ErrNotInPlace) {
		return fmt.Errorf("%w: %w", ErrChanged, err)
	}
	if err != nil {
		return err
	}
	if !slices.Equal(now, f.Extents) {
		return fmt.Errorf("%s: %w: the file system moved its blocks", clean(f.Path), ErrChanged)
	}
	return nil
}

// Close closes and removes the file, unless another lies under its name now. It
// may be called more than once.
func (f *File) Close() error {
	if f.f == nil {
		return nil
	}
	var st unix.Stat_t
	err := unix.Lstat(f.Path, &st)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	case err != nil:
		err = fmt.Errorf("remove %s: %w", clean(f.Path), err)
	case f.id != (fileID{}) && f.id != fileID{st.Dev, st.Ino}:
		err = fmt.Errorf("remove %s: another file lies there now", clean(f.Path))
	default:
		err = os.Remove(f.Path)
	}
	err = errors.Join(err, f.f.Close())
	f.f = nil
	return err
}

// removeLeftBehind removes a file of an earlier run.
func removeLeftBehind(name string) error {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	exists := &fs.PathError{Op: "create", Path: name, Err: fs.ErrExist}
	if err != nil {
		return exists // O_EXCL would say so: a link, or what may not be read
	}
	defer unix.Close(fd)
	var open, there unix.Stat_t
	mark := make([]byte, 8)
	if unix.Fstat(fd, &open) != nil || open.Mode&unix.S_IFMT != unix.S_IFREG || open.Nlink != 1 || open.Uid != uint32(os.Geteuid()) {
		return exists
	}
	if n, err := unix.Fgetxattr(fd, fileMark, mark); err != nil || string(mark[:n]) != "1" {
		return exists
	}
	// A run that still uses it holds it open, and a lock on it.
	if err := ioctl.Lock(fd); err != nil {
		return fmt.Errorf("%s: another run uses it", clean(name))
	}
	if unix.Lstat(name, &there) != nil || there.Dev != open.Dev || there.Ino != open.Ino {
		return exists
	}
	return os.Remove(name)
}

// removeEmpty removes what a refused open left.
func removeEmpty(name string) error {
	info, err := os.Lstat(name)
	if err != nil || !info.Mode().IsRegular() || info.Size() != 0 {
		return nil
	}
	return os.Remove(name)
}

// room makes sure that the file system keeps 5 % of its size, or 1 GiB where
// that is less.
func room(folder string, bytes uint64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(folder, &st); err != nil {
		return &fs.PathError{Op: "statfs", Path: folder, Err: err}
	}
	unit := uint64(st.Bsize)
	if st.Frsize > 0 {
		unit = uint64(st.Frsize)
	}
	return enough(folder, bytes, st.Bavail*unit, st.Blocks*unit)
}

func enough(folder string, bytes, free, total uint64) error {
	keep := min(total/20, 1<<30)
	if free < keep || free-keep < bytes {
		return fmt.Errorf("%s has %d MiB free: a file of %d MiB would leave less than %d MiB", clean(folder), free>>20, bytes>>20, keep>>20)
	}
	return nil
}
