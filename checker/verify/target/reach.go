package target

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/quirkcheck/quirkcheck/checker/verify"
	"github.com/quirkcheck/quirkcheck/internal/ioctl"
	"github.com/quirkcheck/quirkcheck/probe/scsi"
)

// queueLimits are what sysfs says of a disk's queue, read anew each time, as
// limits change at run time.
type queueLimits struct {
	maxSectorsKiB, maxHWSectorsKiB uint64
	maxSegments, maxSegmentBytes   uint64
	chunkSectors                   uint64 // 0: none
	nomerges                       uint64
	vpdBlocks                      uint64 // MAXIMUM TRANSFER LENGTH in logical blocks; 0: no limit reported
}

// readQueueLimits reads the queue folder and VPD page B0h of a disk. The limits
// that every queue has must be readable.
func readQueueLimits(dir string) (queueLimits, error) {
	var l queueLimits
	for _, a := range []struct {
		name string
		to   *uint64
		must bool
	}{
		{"queue/max_sectors_kb", &l.maxSectorsKiB, true},
		{"queue/max_hw_sectors_kb", &l.maxHWSectorsKiB, true},
		{"queue/max_segments", &l.maxSegments, true},
		{"queue/max_segment_size", &l.maxSegmentBytes, true},
		{"queue/chunk_sectors", &l.chunkSectors, false},
		{"queue/nomerges", &l.nomerges, false},
	} {
		n, err := readUint(filepath.Join(dir, a.name))
		if err != nil && (a.must || !errors.Is(err, fs.ErrNotExist)) {
			return l, err
		}
		*a.to = n
	}
	page, err := readBinary(filepath.Join(dir, "device/vpd_pgb0"))
	if err == nil {
		// A page that does not parse sets no limit: the device says what it does.
		if b, err := scsi.ParseBlockLimits(page); err == nil {
			if n, ok := b.MaxTransferBlocks(); ok {
				l.vpdBlocks = uint64(n)
			}
		}
	}
	return l, nil
}

func readBinary(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b := make([]byte, 4096)
	n, err := f.Read(b)
	if err != nil {
		return nil, err
	}
	return b[:n], nil
}

// maxCacheSectors bounds a read or write of the page cache, which itself takes
// any size: 32 MiB.
const maxCacheSectors = 32 << 20 / verify.SectorBytes

// Reach implements verify.Device. It is the smallest of the limits that sysfs
// shows, read at each call, and the bound that Why names: no promise. What can
// really be sent depends on how memory lies and on the kernel, and a command
// beyond it ends with KindNotSent or without proof.
func (d *Disk) Reach(path verify.Path, shape verify.Shape) verify.Reach {
	switch path {
	case verify.PathCache:
		return verify.Reach{Sectors: maxCacheSectors, Why: "the page cache takes any size; this program's own bound"}
	case verify.PathCommand:
		if d.file {
			return verify.Reach{Why: "a file takes no pass-through commands"}
		}
		if d.o.PassThrough == NoPassThrough {
			return verify.Reach{Why: "the device takes no pass-through commands"}
		}
	case verify.PathBlock:
	default:
		return verify.Reach{Why: fmt.Sprintf("unknown path %q", path)}
	}
	if d.o.SysBlock == "" {
		return verify.Reach{Why: "there is no single disk whose limits could be read"}
	}
	l, err := readQueueLimits(d.o.SysBlock)
	if err != nil {
		return verify.Reach{Why: err.Error()}
	}
	return l.reach(path, shape, d.o.PassThrough, d.info.LogicalBlock, d.info.PhysicalBlock)
}

// reach is the smallest bound, in sectors. The blocks are in sectors too.
func (l queueLimits) reach(path verify.Path, shape verify.Shape, pass PassThrough, logical, physical int) verify.Reach {
	const page = 4096 / verify.SectorBytes
	best := uint64(1 << 40)
	why := ""
	bound := func(sectors uint64, format string, args ...any) {
		if sectors < best {
			best, why = sectors, fmt.Sprintf(format, args...)
		}
	}
	unit := uint64(logical)
	if path == verify.PathBlock {
		// The block layer rounds the end of a piece down to the physical block.
		unit = uint64(max(physical, 1))
		bound(2*l.maxSectorsKiB, "max_sectors_kb is %d", l.maxSectorsKiB)
		if l.chunkSectors != 0 {
			bound(l.chunkSectors, "chunk_sectors is %d", l.chunkSectors)
		}
		if shape == verify.Fragmented && l.nomerges != 0 {
			bound(256*page, "a bio holds 256 pages, and nomerges is %d", l.nomerges)
		}
	} else {
		// Pass-through is neither split nor subject to max_sectors_kb.
		if pass == NVMePassThrough {
			bound(ioctl.MaxNVMeBlocks*uint64(logical), "an NVMe command counts %d blocks", ioctl.MaxNVMeBlocks)
		}
	}
	bound(2*l.maxHWSectorsKiB, "max_hw_sectors_kb is %d", l.maxHWSectorsKiB)
	if l.vpdBlocks != 0 {
		bound(l.vpdBlocks*uint64(logical), "VPD page B0h: MAXIMUM TRANSFER LENGTH is %d blocks", l.vpdBlocks)
	}
	if shape == verify.Fragmented {
		bound(l.maxSegments*page, "max_segments is %d, of 4 KiB", l.maxSegments)
	} else {
		// Both are 32-bit in the kernel: no overflow.
		bound(min(l.maxSegments, 1<<20)*min(l.maxSegmentBytes, 1<<32)/verify.SectorBytes,
			"max_segments is %d, of %d bytes", l.maxSegments, l.maxSegmentBytes)
	}
	const maxBytes = 1 << 30 // what Buffer gives
	bound(maxBytes/verify.SectorBytes, "this program's own bound")
	if unit > 1 {
		best -= best % unit
	}
	if best == 0 {
		return verify.Reach{Why: why}
	}
	return verify.Reach{Sectors: int(best), Why: why}
}
