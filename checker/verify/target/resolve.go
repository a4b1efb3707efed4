// Package target turns what the user named into a device to test: it finds out
// which disk is meant, whether it may be touched, and sends commands to it.
//
// A target is found by device number, never by name: a by-id link, a partition,
// and a node in another folder all end at the same folder below
// /sys/dev/block, and what was opened is compared with it again. What stands
// against a test is gathered as Facts first and decided by Decide, which does no
// I/O: a fact that could not be read is not a fact that is absent, and refuses a
// destructive run. The kernel's own word comes last: the disk is opened with
// O_EXCL, and the facts are gathered again under that claim (Recheck).
//
// In file mode the target is a file of ours on a file system in use, written in
// place and through O_DIRECT (CreateFile).
package target

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/quirkcheck/quirkcheck/internal/ioctl"
)

// sysSectorBytes is the unit of sysfs size and start, whatever the logical
// block size (sysfs-block ABI).
const sysSectorBytes = 512

// DevNo is a device number.
type DevNo struct{ Major, Minor uint32 }

func (d DevNo) String() string { return fmt.Sprintf("%d:%d", d.Major, d.Minor) }

// anonymous tells a file system without a block device of its own: btrfs,
// overlay, NFS, tmpfs (kernel, get_anon_bdev).
func (d DevNo) anonymous() bool { return d.Major == 0 }

func parseDevNo(s string) (DevNo, error) {
	major, minor, ok := strings.Cut(strings.TrimSpace(s), ":")
	a, err1 := strconv.ParseUint(major, 10, 32)
	b, err2 := strconv.ParseUint(minor, 10, 32)
	if !ok || err1 != nil || err2 != nil {
		return DevNo{}, fmt.Errorf("%.40q is not a device number", s)
	}
	return DevNo{uint32(a), uint32(b)}, nil
}

// FileStat is what statx says of a file, links followed.
type FileStat struct {
	Mode uint32 // S_IFMT and permissions
	Dev  DevNo  // of the file system
	Rdev DevNo  // of a device node
	// MountID is the first field of its line in mountinfo; 0 where the kernel
	// does not tell (before 5.8).
	MountID uint64
}

func (s FileStat) block() bool { return s.Mode&unix.S_IFMT == unix.S_IFBLK }

// Blocks is an open device for reading.
type Blocks interface {
	io.ReaderAt
	io.Closer
}

// Machine is the machine as this package reads it. Live is the one it runs on.
type Machine struct {
	// FS holds sys, proc and run, with links by fs.ReadLinkFS.
	FS fs.FS
	// Stat describes a file by absolute path. Links are followed.
	Stat func(name string) (FileStat, error)
	// Real resolves all links of an absolute path.
	Real func(name string) (string, error)
	// Open opens a device for reading past the page cache; the device number
	// of what it opened is compared with want.
	Open func(node string, want DevNo) (Blocks, error)
}

// Live returns the machine this program runs on.
func Live() Machine {
	return Machine{FS: os.DirFS("/"), Stat: statx, Real: filepath.EvalSymlinks, Open: openBlocks}
}

func statx(name string) (FileStat, error) {
	var st unix.Statx_t
	// A file on a dead network file system must not be asked for anew: the
	// type and the numbers never change.
	err := unix.Statx(unix.AT_FDCWD, name, unix.AT_STATX_DONT_SYNC, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID, &st)
	if err != nil {
		return FileStat{}, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	s := FileStat{
		Mode: uint32(st.Mode),
		Dev:  DevNo{st.Dev_major, st.Dev_minor},
		Rdev: DevNo{st.Rdev_major, st.Rdev_minor},
	}
	if st.Mask&unix.STATX_MNT_ID != 0 {
		s.MountID = st.Mnt_id
	}
	return s, nil
}

// directBytes is the unit of openBlocks' reads: a multiple of every logical
// block size that Linux allows (64 KiB since 6.15).
const directBytes = 64 << 10

// directBlocks reads whole aligned pieces, as O_DIRECT demands.
type directBlocks struct {
	fd  int
	buf []byte // page aligned
}

func openBlocks(node string, want DevNo) (Blocks, error) {
	fd, err := unix.Open(node, unix.O_RDONLY|unix.O_DIRECT|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: node, Err: err}
	}
	if err := sameDevice(fd, want); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open %s: %w", node, err)
	}
	buf, err := unix.Mmap(-1, 0, directBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open %s: %w", node, err)
	}
	return &directBlocks{fd: fd, buf: buf}, nil
}

func (d *directBlocks) Close() error {
	return errors.Join(unix.Munmap(d.buf), unix.Close(d.fd))
}

func (d *directBlocks) ReadAt(p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		at := off + int64(done)
		start := at &^ (directBytes - 1)
		skip := int(at - start)
		n, err := unix.Pread(d.fd, d.buf, start)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return done, err
		}
		if n <= skip {
			return done, io.EOF
		}
		done += copy(p[done:], d.buf[skip:n])
	}
	return done, nil
}

// sameDevice compares an open file with a device number.
func sameDevice(fd int, want DevNo) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	got := DevNo{unix.Major(st.Rdev), unix.Minor(st.Rdev)}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || got != want {
		return fmt.Errorf("%w: opened %s, expected block device %s", ErrChanged, got, want)
	}
	return nil
}

// Errors of Resolve and Same.
var (
	// ErrNotBlock marks an argument that is no block device. Its text names what
	// to give instead.
	ErrNotBlock = errors.New("not a block device")
	// ErrChanged marks a target that is no longer what was resolved.
	ErrChanged = errors.New("the device is not the one that was resolved")
)

// Target is the block device the user named.
type Target struct {
	Arg  string // as the user gave it
	Node string // device node, no links
	DevNo
	Name string // sysfs name of the node
	Disk string // sysfs name of the whole disk; Name itself where it is one
	// DiskDev is the whole disk's device number.
	DiskDev DevNo
	// First is where the node starts on the disk, Sectors its size; 512-byte
	// sectors both.
	First, Sectors uint64
	Partition      bool
	// SysDir and DiskDir are the sysfs folders of node and disk, relative to
	// the root, no links.
	SysDir, DiskDir string
	// DiskSeq changes with every new disk under the same name; 0 where the
	// kernel does not tell (sysfs-block ABI, diskseq; since 5.15).
	DiskSeq uint64
}

// Resolve finds the block device that arg means: a path to a node, a link to
// one, or a name without a slash, which is taken below /dev. It needs no
// privilege.
func Resolve(m Machine, arg string) (Target, error) {
	t := Target{Arg: arg}
	name := arg
	switch {
	case arg == "":
		return t, errors.New("no device given")
	case !strings.Contains(arg, "/"):
		name = "/dev/" + strings.ReplaceAll(arg, "!", "/") // cciss!c0d0 is /dev/cciss/c0d0
	case !path.IsAbs(arg):
		abs, err := filepath.Abs(arg)
		if err != nil {
			return t, fmt.Errorf("resolve %s: %w", clean(arg), err)
		}
		name = abs
	}
	st, err := m.Stat(name)
	if err != nil {
		return t, fmt.Errorf("resolve %s: %w", clean(arg), err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
	case unix.S_IFREG:
		return t, fmt.Errorf("%s: %w but a plain file; to test the disk under a file system give --file PATH of a new file there", clean(arg), ErrNotBlock)
	case unix.S_IFDIR:
		return t, fmt.Errorf("%s: %w but a folder; to test the disk under it give --file %s", clean(arg), ErrNotBlock, clean(path.Join(arg, "quirkcheck.tmp")))
	case unix.S_IFCHR:
		return t, fmt.Errorf("%s: %w but a character device; give the disk's block node (/dev/sda, /dev/nvme0n1)", clean(arg), ErrNotBlock)
	default:
		return t, fmt.Errorf("%s: %w", clean(arg), ErrNotBlock)
	}
	t.DevNo = st.Rdev
	if t.Node, err = m.Real(name); err != nil {
		return t, fmt.Errorf("resolve %s: %w", clean(arg), err)
	}
	if err := t.fill(m); err != nil {
		return t, fmt.Errorf("resolve %s: %w", clean(arg), err)
	}
	return t, nil
}

// String is the node: the device number's own would be promoted.
func (t Target) String() string { return t.Node }

// targetOf finds a device by its number, with the node that udev gave it.
func targetOf(m Machine, dev DevNo) (Target, error) {
	t := Target{DevNo: dev}
	if err := t.fill(m); err != nil {
		return t, err
	}
	t.Arg = t.Name
	uevent, _, err := m.text(t.SysDir, "uevent")
	if err != nil {
		return t, err
	}
	for line := range strings.Lines(uevent) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "DEVNAME="); ok {
			t.Node = "/dev/" + name
		}
	}
	if st, err := m.Stat(t.Node); t.Node == "" || err != nil || !st.block() || st.Rdev != dev {
		t.Node = "" // another folder, or a container without nodes
	} else {
		t.Arg = t.Node
	}
	return t, nil
}

// fill reads everything that follows from the device number.
func (t *Target) fill(m Machine) error {
	var err error
	if t.SysDir, err = m.devDir(t.DevNo); err != nil {
		return err
	}
	t.Name = path.Base(t.SysDir)
	t.DiskDir = t.SysDir
	t.Partition = m.exists(t.SysDir + "/partition")
	if t.Partition {
		t.DiskDir = path.Dir(t.SysDir)
		if t.First, err = m.needNumber(t.SysDir, "start"); err != nil {
			return err
		}
	}
	t.Disk = path.Base(t.DiskDir)
	if t.Sectors, err = m.needNumber(t.SysDir, "size"); err != nil {
		return err
	}
	dev, _, err := m.text(t.DiskDir, "dev")
	if err != nil {
		return err
	}
	if t.DiskDev, err = parseDevNo(dev); err != nil {
		return fmt.Errorf("read %s/dev: %w", t.DiskDir, err)
	}
	if t.DiskSeq, _, err = m.number(t.DiskDir, "diskseq"); err != nil {
		return err
	}
	return nil
}

// Same makes sure that the open file fd is this device and as large as it was.
// It returns ErrChanged where it is not.
func (t Target) Same(fd int) error {
	if err := sameDevice(fd, t.DevNo); err != nil {
		return fmt.Errorf("%s: %w", t.Node, err)
	}
	n, err := ioctl.DeviceBytes(fd)
	if err != nil {
		return fmt.Errorf("size of %s: %w", t.Node, err)
	}
	if n != t.Sectors*sysSectorBytes {
		return fmt.Errorf("%s: %w: %d bytes now, %d before", t.Node, ErrChanged, n, t.Sectors*sysSectorBytes)
	}
	return nil
}

// Serial returns what the user must type to have the target overwritten: the
// disk's serial number; of a loop device the base name of its file; else
// its name and size in bytes ("sdb:1073741824"). source is the file it came from,
// relative to the root.
func Serial(m Machine, t Target) (serial, source string) {
	usable := func(s string) string {
		s = strings.Trim(s, " \x00\n\t")
		if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) ||
			strings.Trim(s, "0") == "" { // some bridges give nothing but zeros
			return ""
		}
		return s
	}
	// SPC-6, Unit Serial Number VPD page: PAGE LENGTH in bytes 2 and 3.
	const lengthAt, serialAt = 2, 4
	if b, err := fs.ReadFile(m.FS, t.DiskDir+"/device/vpd_pg80"); err == nil && len(b) > serialAt {
		n := min(int(b[lengthAt])<<8|int(b[lengthAt+1]), len(b)-serialAt)
		if s := usable(string(b[serialAt : serialAt+n])); s != "" {
			return s, t.DiskDir + "/device/vpd_pg80"
		}
	}
	// NVMe and MMC below device, virtio_blk beside the disk's own attributes.
	for _, name := range []string{"device/serial", "serial"} {
		if s, _, err := m.text(t.DiskDir, name); err == nil && usable(s) != "" {
			return usable(s), t.DiskDir + "/" + name
		}
	}
	udev := "run/udev/data/b" + t.DiskDev.String()
	if b, err := fs.ReadFile(m.FS, udev); err == nil {
		for line := range strings.Lines(string(b)) {
			if s, ok := strings.CutPrefix(line, "E:ID_SERIAL_SHORT="); ok && usable(s) != "" {
				return usable(s), udev
			}
		}
	}
	if s, ok, err := m.text(t.DiskDir, "loop/backing_file"); err == nil && ok && usable(path.Base(s)) != "" {
		return usable(path.Base(s)), t.DiskDir + "/loop/backing_file"
	}
	return fmt.Sprintf("%s:%d", t.Name, t.Sectors*sysSectorBytes), t.SysDir + "/size"
}

// CheckSerial compares what the user typed with Serial, blanks at the ends
// aside. Nothing else stands for it.
func CheckSerial(typed, want string) error {
	typed = strings.TrimSpace(typed)
	switch {
	case want == "":
		return errors.New("the device's serial number is not known")
	case typed == want:
		return nil
	case typed == "":
		return fmt.Errorf("nothing will be overwritten before the device's serial number is typed: %s", clean(want))
	case strings.EqualFold(typed, want):
		return fmt.Errorf("serial number %s differs from %s in upper and lower case", clean(typed), clean(want))
	case strings.HasPrefix(typed, "/dev/"):
		return fmt.Errorf("%s is a device name, which can mean another disk after a restart; type its serial number: %s", clean(typed), clean(want))
	case len(typed) >= 4 && (strings.HasPrefix(want, typed) || strings.HasSuffix(want, typed)):
		return fmt.Errorf("%s is only a part of the serial number %s; type it whole", clean(typed), clean(want))
	}
	return fmt.Errorf("serial number %s is not that of this device, which is %s: is it the right one?", clean(typed), clean(want))
}

// clean makes a string from outside fit for a terminal.
func clean(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return strconv.Quote(s)
	}
	return s
}

// devDir returns the sysfs folder of a device number, without links.
func (m Machine) devDir(dev DevNo) (string, error) {
	const folder = "sys/dev/block"
	to, err := fs.ReadLink(m.FS, folder+"/"+dev.String())
	if err != nil {
		return "", fmt.Errorf("the kernel has no block device %s: %w", dev, err)
	}
	return linked(folder, to)
}

// linked resolves the one link of a sysfs folder lexically: the folders on the
// way are none themselves.
func linked(folder, to string) (string, error) {
	p := path.Join(folder, to)
	if path.IsAbs(to) || !strings.HasPrefix(p, "sys/") {
		return "", fmt.Errorf("link in %s to %s leaves sysfs", folder, clean(to))
	}
	return p, nil
}

func (m Machine) exists(name string) bool {
	_, err := fs.Lstat(m.FS, name)
	return err == nil
}

// text reads an attribute; ok is false where there is none.
func (m Machine) text(folder, name string) (s string, ok bool, err error) {
	b, err := fs.ReadFile(m.FS, folder+"/"+name)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return "", false, nil
	case err != nil:
		return "", false, fmt.Errorf("read %s/%s: %w", folder, name, err)
	}
	return strings.TrimRight(string(b), "\n"), true, nil
}

func (m Machine) number(folder, name string) (n uint64, ok bool, err error) {
	s, ok, err := m.text(folder, name)
	if err != nil || !ok {
		return 0, false, err
	}
	n, err = strconv.ParseUint(strings.TrimSpace(s), 10, 64)
	if err != nil {
		return 0, false, fmt.Errorf("read %s/%s: %.40q is not a whole number", folder, name, s)
	}
	return n, true, nil
}

func (m Machine) needNumber(folder, name string) (uint64, error) {
	n, ok, err := m.number(folder, name)
	if err == nil && !ok {
		err = fmt.Errorf("read %s/%s: %w", folder, name, fs.ErrNotExist)
	}
	return n, err
}

// names lists a folder in order; none where there is no folder.
func (m Machine) names(folder string) ([]string, error) {
	entries, err := fs.ReadDir(m.FS, folder)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
			return nil, nil
		}
		return nil, fmt.Errorf("list %s: %w", folder, err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names, nil
}

// links lists what the links of a sysfs folder point at: holders, slaves.
func (m Machine) links(folder string) ([]string, error) {
	names, err := m.names(folder)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, name := range names {
		to, err := fs.ReadLink(m.FS, folder+"/"+name)
		if errors.Is(err, fs.ErrNotExist) {
			continue // gone since the listing
		}
		if err != nil {
			return nil, fmt.Errorf("read %s/%s: %w", folder, name, err)
		}
		dir, err := linked(folder, to)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, dir)
	}
	return dirs, nil
}
