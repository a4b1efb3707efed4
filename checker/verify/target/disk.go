package target

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quirkcheck/quirkcheck/checker/verify"
	"github.com/quirkcheck/quirkcheck/internal/ioctl"
)

// PassThrough is the kind of commands that a disk's block node takes.
type PassThrough string

// The kinds.
const (
	NoPassThrough   PassThrough = ""
	SCSIPassThrough PassThrough = "scsi" // SG_IO: SCSI disks and those of libata
	NVMePassThrough PassThrough = "nvme"
)

// DiskOptions says what NewDisk cannot or must not find out by itself.
type DiskOptions struct {
	Name string // for people
	// SysBlock is the sysfs folder of the whole disk, "/sys/block/sda": for a
	// partition that of its disk, for a file that of the disk below its file
	// system. Empty where there is no single one: no size can be proven then.
	SysBlock string
	// First is the sector where the target begins on the whole disk (a
	// partition; 0 for a disk or a file).
	First uint64
	// Sectors is the size the target is known to have; 0 takes the device's or
	// file's own word. Another size than that is an error.
	Sectors uint64
	// Usable are the extents that may be written, ascending and not overlapping.
	// Empty is the whole target.
	Usable []verify.Extent
	// Shared says that others may use the disk.
	Shared bool
	// PassThrough is the kind of commands; a file takes none.
	PassThrough PassThrough
	// Physical maps a sector of a file to the sector of the whole disk, false
	// where there is none. Nil adds First.
	Physical func(sector uint64) (uint64, bool)
	// ReadOnly refuses writes, and opens nothing for writing.
	ReadOnly bool
	// Deadline is how long a command may take before it counts as a timeout; 0 is
	// the kernel's own for the device, or 30 s where it has none. It stops no
	// command.
	Deadline time.Duration
	// CacheMiB is the drive's own cache where known.
	CacheMiB int
}

// Disk is a block device or a file of one, and implements verify.Device. Its
// methods are for one goroutine, as those of that interface are.
type Disk struct {
	o    DiskOptions
	info verify.Info
	node *os.File // the caller's, held for its claim
	// direct is the same node or file opened with O_DIRECT, cached without.
	direct, cached *os.File
	file           bool
	logicalBytes   int
	namespace      uint32 // NVMe
	deadline       time.Duration
	commandTimeout time.Duration // the kernel's, for pass-through commands

	buffers map[bufferKey]*ioctl.Memory
	old     []*ioctl.Memory // outgrown, valid until Close
	prover  prover
	log     *kernelLog
	counts  map[string]uint64
	who     identity
	// stuck says that a read of Recover has not come back: what it uses stays.
	stuck bool
}

var _ verify.Device = (*Disk)(nil)

type bufferKey struct {
	role  string
	shape verify.Shape
}

// NewDisk makes a Disk of an open block node or regular file. The file stays
// the caller's: it is not closed, must stay open until Close, and for a block
// node it holds the claim (O_EXCL) and lock under which the run is safe, as
// nothing here checks who else uses the disk. Page-cached and O_DIRECT I/O go
// through descriptors of their own, which a close of the node's last writer
// would tell udev about (Close does, unless ReadOnly).
//
// It is an error when the size or the start of the target are not those given,
// and when O_DIRECT is not to be had (tmpfs). What only serves proof, events
// and limits may be missing: the trace events and the kernel log need root.
//
// Privilege: that of opening the node again; CAP_SYS_RAWIO for SCSI and
// CAP_SYS_ADMIN for NVMe pass-through.
func NewDisk(node *os.File, o DiskOptions) (_ *Disk, err error) {
	d := &Disk{o: o, node: node, buffers: map[bufferKey]*ioctl.Memory{}}
	defer func() {
		if err != nil {
			d.Close()
		}
	}()
	var st unix.Stat_t
	if err := unix.Fstat(int(node.Fd()), &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: node.Name(), Err: err}
	}
	var sectors uint64
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		d.file = true
		sectors = uint64(st.Size) / verify.SectorBytes
	case unix.S_IFBLK:
		if err := d.checkStart(st.Rdev); err != nil {
			return nil, err
		}
		n, err := ioctl.DeviceBytes(int(node.Fd()))
		if err != nil {
			return nil, fmt.Errorf("size of %s: %w", o.Name, err)
		}
		sectors = n / verify.SectorBytes
	default:
		return nil, fmt.Errorf("%s is neither a block device nor a file", node.Name())
	}
	if o.Sectors != 0 && o.Sectors != sectors {
		return nil, fmt.Errorf("%s has %d sectors now, not %d", o.Name, sectors, o.Sectors)
	}
	if o.SysBlock != "" && !d.file {
		whole, err := readUint(filepath.Join(o.SysBlock, "size"))
		if err != nil {
			return nil, err
		}
		if o.First > whole || sectors > whole-o.First {
			return nil, fmt.Errorf("%s of %d sectors at %d is not within a disk of %d", o.Name, sectors, o.First, whole)
		}
	}
	if err := d.open(); err != nil {
		return nil, err
	}
	logical, physical, err := d.blockSizes()
	if err != nil {
		return nil, err
	}
	d.logicalBytes = logical
	d.info = verify.Info{
		Name:          o.Name,
		Sectors:       sectors,
		First:         o.First,
		LogicalBlock:  logical / verify.SectorBytes,
		PhysicalBlock: max(physical, logical) / verify.SectorBytes,
		Usable:        o.Usable,
		Shared:        o.Shared,
		CacheMiB:      o.CacheMiB,
	}
	if len(o.Usable) == 0 {
		d.info.Usable = []verify.Extent{{Sectors: sectors}}
	}
	last := uint64(0)
	for _, e := range d.info.Usable {
		if e.Sector < last || e.End() < e.Sector || e.End() > sectors {
			return nil, fmt.Errorf("%s: the extent of %d sectors at %d is out of order or outside", o.Name, e.Sectors, e.Sector)
		}
		last = e.End()
	}
	if d.file && o.PassThrough != NoPassThrough {
		return nil, fmt.Errorf("%s is a file, which takes no commands", o.Name)
	}
	switch o.PassThrough {
	case NoPassThrough, SCSIPassThrough:
	case NVMePassThrough:
		if d.namespace, err = ioctl.NVMeNamespace(int(node.Fd())); err != nil {
			return nil, fmt.Errorf("namespace of %s: %w", o.Name, err)
		}
	default:
		return nil, fmt.Errorf("%s: unknown pass-through %q", o.Name, o.PassThrough)
	}
	d.deadline = o.Deadline
	device := d.deviceTimeout()
	if d.deadline <= 0 {
		d.deadline = device
	}
	// Long, since when it expires the kernel may reset the port; the deadline is
	// ours and only reported.
	d.commandTimeout = max(time.Minute, device, 2*d.deadline)
	d.prover = newProver(o.SysBlock, o.Shared)
	d.log = openKernelLog(o.SysBlock)
	d.counts = d.readCounts()
	d.who = d.identify()
	return d, nil
}

// checkStart compares the start of a partition's node with what was given: a
// pass-through command to a wrong start hits another's data.
func (d *Disk) checkStart(rdev uint64) error {
	dir := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(rdev), unix.Minor(rdev))
	start, err := readUint(filepath.Join(dir, "start"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		start = 0 // a whole disk
		if d.o.SysBlock == "" {
			break
		}
		if dev, err := readAttr(filepath.Join(d.o.SysBlock, "dev")); err != nil {
			return err
		} else if want := fmt.Sprintf("%d:%d", unix.Major(rdev), unix.Minor(rdev)); dev != want {
			return fmt.Errorf("%s is device %s, and %s is %s", d.o.Name, want, d.o.SysBlock, dev)
		}
	case err != nil:
		return err
	}
	if start != d.o.First {
		return fmt.Errorf("%s starts at sector %d, not %d", d.o.Name, start, d.o.First)
	}
	return nil
}

// open opens the node again, by its descriptor, so that no name is looked up.
func (d *Disk) open() error {
	mode := os.O_RDWR
	if d.o.ReadOnly {
		mode = os.O_RDONLY
	}
	self := fmt.Sprintf("/proc/self/fd/%d", d.node.Fd())
	var err error
	if d.direct, err = os.OpenFile(self, mode|unix.O_DIRECT, 0); err != nil {
		return fmt.Errorf("open %s with O_DIRECT: %w", d.o.Name, err)
	}
	if d.cached, err = os.OpenFile(self, mode, 0); err != nil {
		return fmt.Errorf("open %s: %w", d.o.Name, err)
	}
	return nil
}

// blockSizes are those of the device in bytes; for a file those of the disk
// below, and no less than the file system wants for O_DIRECT.
func (d *Disk) blockSizes() (logical, physical int, err error) {
	if !d.file {
		if logical, err = ioctl.LogicalBlockBytes(int(d.node.Fd())); err != nil {
			return 0, 0, fmt.Errorf("logical block size of %s: %w", d.o.Name, err)
		}
		if physical, err = ioctl.PhysicalBlockBytes(int(d.node.Fd())); err != nil {
			return 0, 0, fmt.Errorf("physical block size of %s: %w", d.o.Name, err)
		}
	} else {
		logical, physical = verify.SectorBytes, 4096
		if d.o.SysBlock != "" {
			l, err := readUint(filepath.Join(d.o.SysBlock, "queue/logical_block_size"))
			if err != nil {
				return 0, 0, err
			}
			p, err := readUint(filepath.Join(d.o.SysBlock, "queue/physical_block_size"))
			if err != nil {
				return 0, 0, err
			}
			logical, physical = int(min(l, 1<<20)), int(min(p, 1<<30))
		}
		var stx unix.Statx_t
		const statxDIOAlign = 0x2000 // STATX_DIOALIGN, Linux 6.1
		if unix.Statx(int(d.direct.Fd()), "", unix.AT_EMPTY_PATH, statxDIOAlign, &stx) == nil && stx.Mask&statxDIOAlign != 0 {
			logical = max(logical, int(min(stx.Dio_offset_align, 1<<20)))
		}
	}
	if logical < verify.SectorBytes || logical%verify.SectorBytes != 0 || physical%verify.SectorBytes != 0 {
		return 0, 0, fmt.Errorf("%s has logical blocks of %d bytes and physical ones of %d", d.o.Name, logical, physical)
	}
	return logical, physical, nil
}

// deviceTimeout is the kernel's time for a command of this device: device/timeout
// in seconds (SCSI), or queue/io_timeout in milliseconds.
func (d *Disk) deviceTimeout() time.Duration {
	if d.o.SysBlock != "" {
		if s, err := readUint(filepath.Join(d.o.SysBlock, "device/timeout")); err == nil && s > 0 && s < 86400 {
			return time.Duration(s) * time.Second
		}
		if ms, err := readUint(filepath.Join(d.o.SysBlock, "queue/io_timeout")); err == nil && ms > 0 && ms < 86400_000 {
			return time.Duration(ms) * time.Millisecond
		}
	}
	return 30 * time.Second
}

// Info implements verify.Device.
func (d *Disk) Info() verify.Info { return d.info }

// Buffer implements verify.Device. Memory that got too small stays valid, and a
// larger one is taken in powers of two, so that a sweep holds at most twice
// what its largest command needs.
func (d *Disk) Buffer(role string, sectors int, shape verify.Shape) ([]byte, error) {
	if sectors <= 0 || sectors > 1<<21 {
		return nil, fmt.Errorf("buffer %s: %d sectors", role, sectors)
	}
	bytes := sectors * verify.SectorBytes
	key := bufferKey{role, shape}
	m := d.buffers[key]
	if m == nil || len(m.Bytes()) < bytes {
		size := os.Getpagesize()
		if shape == verify.Contiguous {
			size = 2 << 20 // what it takes anyway
		}
		for size < bytes {
			size *= 2
		}
		var fresh *ioctl.Memory
		var err error
		switch shape {
		case verify.Contiguous:
			fresh, err = ioctl.Contiguous(size)
		case verify.Fragmented:
			fresh, err = ioctl.Fragmented(size)
		default:
			return nil, fmt.Errorf("buffer %s: unknown shape %q", role, shape)
		}
		if err != nil {
			return nil, fmt.Errorf("buffer %s: %w", role, err)
		}
		if m != nil {
			d.old = append(d.old, m)
		}
		d.buffers[key], m = fresh, fresh
	}
	b := m.Bytes()[:bytes:bytes]
	clear(b)
	return b, nil
}

// BufferSegments counts the physical segments of the whole memory behind
// Buffer for a role and shape; ok is false where the kernel does not tell
// (CAP_SYS_ADMIN) or there is no such buffer.
func (d *Disk) BufferSegments(role string, shape verify.Shape) (n int, ok bool) {
	m := d.buffers[bufferKey{role, shape}]
	if m == nil {
		return 0, false
	}
	n, err := m.Segments()
	return n, err == nil
}

// Flush implements verify.Device: fsync, which for a block node makes the kernel
// send a cache flush where the device has a volatile cache.
func (d *Disk) Flush(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	begin := time.Now()
	err := fsync(d.cached)
	if err != nil {
		return ioFailure("flush", err)
	}
	if took := time.Since(begin); took > d.deadline {
		return late("flush", took, d.deadline)
	}
	return nil
}

// Close frees the memory and what was set up in tracefs, and closes what NewDisk
// opened, all of it also after an error. The node stays open.
func (d *Disk) Close() error {
	var errs []error
	errs = append(errs, d.prover.close(), d.log.close())
	for _, m := range d.buffers {
		errs = append(errs, m.Free())
	}
	for _, m := range d.old {
		errs = append(errs, m.Free())
	}
	d.buffers, d.old = map[bufferKey]*ioctl.Memory{}, nil
	if d.stuck {
		return errors.Join(errs...) // a read still uses the descriptors
	}
	for _, f := range []*os.File{d.direct, d.cached} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	d.direct, d.cached = nil, nil
	return errors.Join(errs...)
}

// maxAttr bounds what is read of a sysfs attribute.
const maxAttr = 64 << 10

// readAttr reads a sysfs attribute without the blanks around it.
func readAttr(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b := make([]byte, 4096)
	n := 0
	for n < maxAttr {
		if n == len(b) {
			b = append(b, make([]byte, len(b))...)
		}
		m, err := f.Read(b[n:])
		n += m
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
	}
	return strings.TrimSpace(string(b[:n])), nil
}

// readUint reads a number from sysfs, decimal or with 0x.
func readUint(name string) (uint64, error) {
	s, err := readAttr(name)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %.40q is not a number", name, s)
	}
	return n, nil
}
