package ioctl

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// blkGetZoneSz is BLKGETZONESZ of <linux/blkzoned.h>: _IOR(0x12, 132, __u32).
const blkGetZoneSz = 0x80041284

// DeviceBytes returns the size of a block device in bytes (BLKGETSIZE64). On a
// partition's node it is the partition's.
func DeviceBytes(fd int) (uint64, error) {
	n := new(uint64)
	if err := call(fd, unix.BLKGETSIZE64, unsafe.Pointer(n)); err != nil {
		return 0, os.NewSyscallError("BLKGETSIZE64", err)
	}
	return *n, nil
}

// LogicalBlockBytes returns the logical block size of a block device in bytes
// (BLKSSZGET).
func LogicalBlockBytes(fd int) (int, error) { return getInt(fd, unix.BLKSSZGET, "BLKSSZGET") }

// PhysicalBlockBytes returns the physical block size of a block device in
// bytes (BLKPBSZGET).
func PhysicalBlockBytes(fd int) (int, error) { return getInt(fd, unix.BLKPBSZGET, "BLKPBSZGET") }

// ReadOnly says whether a block device is set read-only (BLKROGET).
func ReadOnly(fd int) (bool, error) {
	n, err := getInt(fd, unix.BLKROGET, "BLKROGET")
	return n != 0, err
}

// ZoneSectors returns the zone size of a block device in 512-byte sectors, 0
// for a device that is not zoned (BLKGETZONESZ, Linux 4.20).
func ZoneSectors(fd int) (int, error) { return getInt(fd, blkGetZoneSz, "BLKGETZONESZ") }

// FlushBuffers writes back and drops a block device's page cache (BLKFLSBUF). It
// does not flush the cache of the device. Privilege: CAP_SYS_ADMIN.
func FlushBuffers(fd int) error {
	return os.NewSyscallError("BLKFLSBUF", unix.IoctlSetInt(fd, unix.BLKFLSBUF, 0))
}

// FileFlags returns a file's inode flags, FS_*_FL of <linux/fs.h>
// (FS_IOC_GETFLAGS). The error is ENOTTY where the file system has none.
func FileFlags(fd int) (uint32, error) {
	n, err := getInt(fd, unix.FS_IOC_GETFLAGS, "FS_IOC_GETFLAGS")
	return uint32(n), err
}

// Inode flags of <linux/fs.h> that matter to whoever wants a file's blocks.
const (
	FlagCompressed = 0x00000004 // FS_COMPR_FL
	FlagImmutable  = 0x00000010 // FS_IMMUTABLE_FL
	FlagAppend     = 0x00000020 // FS_APPEND_FL
	FlagEncrypted  = 0x00000800 // FS_ENCRYPT_FL
	FlagNoCOW      = 0x00800000 // FS_NOCOW_FL
	FlagInline     = 0x10000000 // FS_INLINE_DATA_FL
)

// getInt reads a C int. The kernel writes four bytes, whatever the machine's
// word.
func getInt(fd int, request uint, name string) (int, error) {
	n := new(int32)
	if err := call(fd, request, unsafe.Pointer(n)); err != nil {
		return 0, os.NewSyscallError(name, err)
	}
	return int(*n), nil
}

// Lock takes an exclusive BSD lock without waiting (flock), which on a whole
// disk's node makes udev leave the device alone (systemd, Locking Block Device
// Access). It is released when the file is closed. The error wraps EWOULDBLOCK
// when another holds one.
func Lock(fd int) error {
	for {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err != unix.EINTR {
			return os.NewSyscallError("flock", err)
		}
	}
}

// fiemapRequest is _IOWR('f', 11, struct fiemap), FS_IOC_FIEMAP of <linux/fs.h>.
const fiemapRequest = 0xc020660b

// fiemapHeader is struct fiemap of <linux/fiemap.h>, without the extents.
type fiemapHeader struct {
	start         uint64
	length        uint64
	flags         uint32
	mappedExtents uint32
	extentCount   uint32
	reserved      uint32
}

// fiemapExtent is struct fiemap_extent of <linux/fiemap.h>.
type fiemapExtent struct {
	logical    uint64
	physical   uint64
	length     uint64
	reserved64 [2]uint64
	flags      uint32
	reserved   [3]uint32
}

// fiemapPage is how many extents one call asks for.
const fiemapPage = 128

type fiemap struct {
	fiemapHeader
	extents [fiemapPage]fiemapExtent
}

const fiemapSync = 0x1 // FIEMAP_FLAG_SYNC: sync the file before mapping

// FileExtent is an extent of a file, in bytes.
type FileExtent struct {
	Logical  uint64 // in the file
	Physical uint64 // on the file system's device
	Bytes    uint64
	Flags    ExtentFlags
}

// ExtentFlags are the FIEMAP_EXTENT_* flags of <linux/fiemap.h>.
type ExtentFlags uint32

// The flags.
const (
	ExtentLast          ExtentFlags = 0x0001
	ExtentUnknown       ExtentFlags = 0x0002 // no physical place known
	ExtentDelalloc      ExtentFlags = 0x0004 // not allocated yet
	ExtentEncoded       ExtentFlags = 0x0008 // compressed, for one
	ExtentDataEncrypted ExtentFlags = 0x0080
	ExtentNotAligned    ExtentFlags = 0x0100
	ExtentDataInline    ExtentFlags = 0x0200
	ExtentDataTail      ExtentFlags = 0x0400
	ExtentUnwritten     ExtentFlags = 0x0800 // allocated, reads as zeros
	ExtentMerged        ExtentFlags = 0x1000 // put together from several
	ExtentShared        ExtentFlags = 0x2000 // with another file
)

// ErrTooManyExtents means that a file has more extents than were asked for.
var ErrTooManyExtents = errors.New("too many extents")

// Fiemap syncs a file and returns its extents in order, at most limit of
// them; with more the error is ErrTooManyExtents. A file system without
// FIEMAP gives EOPNOTSUPP (Documentation/filesystems/fiemap.rst). Needs no
// privilege.
func Fiemap(fd, limit int) ([]FileExtent, error) {
	var all []FileExtent
	m := new(fiemap)
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(m)
	for start := uint64(0); ; {
		m.fiemapHeader = fiemapHeader{start: start, length: ^uint64(0) - start, flags: fiemapSync, extentCount: fiemapPage}
		if err := call(fd, fiemapRequest, unsafe.Pointer(m)); err != nil {
			return nil, os.NewSyscallError("FS_IOC_FIEMAP", err)
		}
		n := min(int(m.mappedExtents), fiemapPage)
		if n == 0 {
			return all, nil
		}
		for _, e := range m.extents[:n] {
			end := e.logical + e.length
			if end <= start || end < e.logical {
				return nil, fmt.Errorf("FS_IOC_FIEMAP: an extent of %d bytes at %d does not go on from %d", e.length, e.logical, start)
			}
			if len(all) >= limit {
				return nil, fmt.Errorf("FS_IOC_FIEMAP: %w: over %d", ErrTooManyExtents, limit)
			}
			f := ExtentFlags(e.flags)
			all = append(all, FileExtent{Logical: e.logical, Physical: e.physical, Bytes: e.length, Flags: f})
			start = end
			if f&ExtentLast != 0 {
				return all, nil
			}
		}
	}
}
