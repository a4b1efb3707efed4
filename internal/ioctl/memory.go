package ioctl

import (
	"encoding/binary"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is the size of a page-table leaf of two levels on amd64 and, with
// 4 KiB pages, on arm64.
const hugePage = 2 << 20

// Memory is memory outside the Go heap, for transfers whose number of physical
// segments matters. It is aligned to a page, and begins zeroed.
type Memory struct {
	data    []byte
	mapping []byte // the whole mapping, which data is a part of
	huge    bool
}

// Bytes is the memory, of the length that was asked for.
func (m *Memory) Bytes() []byte { return m.data }

// Free unmaps the memory; Bytes must not be used any more. It must not run
// while a transfer from or to the memory does.
func (m *Memory) Free() error {
	if m.mapping == nil {
		return nil
	}
	mapping := m.mapping
	m.data, m.mapping = nil, nil
	return os.NewSyscallError("munmap", unix.Munmap(mapping))
}

// Contiguous returns memory in as few physical segments as can be had without
// changing settings of the system: anonymous memory aligned to 2 MiB with
// MADV_HUGEPAGE, touched, then MADV_COLLAPSE (Linux 6.1). Where that did not
// give 2 MiB pages it takes hugetlb pages, if some are free. What was got,
// Segments tells; needs no privilege.
func Contiguous(bytes int) (*Memory, error) {
	size, err := roundUp(bytes, hugePage)
	if err != nil {
		return nil, err
	}
	mapping, err := anonymous(size+hugePage, 0)
	if err != nil {
		return nil, err
	}
	at := 0
	if off := int(uintptr(unsafe.Pointer(unsafe.SliceData(mapping))) % hugePage); off != 0 {
		at = hugePage - off
	}
	whole := mapping[at : at+size : at+size]
	m := &Memory{data: whole[:bytes:bytes], mapping: mapping}
	// Neither has to succeed: kernels may be built without, and COLLAPSE gives up
	// where memory is in pieces.
	_ = unix.Madvise(whole, unix.MADV_HUGEPAGE)
	touch(whole)
	_ = unix.Madvise(whole, unix.MADV_COLLAPSE)
	if n, err := segments(whole); err != nil || n <= size/hugePage {
		return m, nil
	}
	h, err := anonymous(size, unix.MAP_HUGETLB|21<<unix.MAP_HUGE_SHIFT)
	if err != nil {
		return m, nil
	}
	touch(h)
	if err := m.Free(); err != nil {
		_ = unix.Munmap(h)
		return nil, err
	}
	return &Memory{data: h[:bytes:bytes], mapping: h, huge: true}, nil
}

// Fragmented returns memory in which no two neighbouring pages are neighbours
// in physical memory, so that a transfer has one segment a page. Where
// /proc/self/pagemap may be read (CAP_SYS_ADMIN) this is checked and mended;
// otherwise it holds by the order in which the pages were touched, and Segments
// returns an error.
func Fragmented(bytes int) (*Memory, error) {
	page := os.Getpagesize()
	size, err := roundUp(bytes, page)
	if err != nil {
		return nil, err
	}
	mapping, err := anonymous(size, 0)
	if err != nil {
		return nil, err
	}
	_ = unix.Madvise(mapping, unix.MADV_NOHUGEPAGE)
	// The page allocator hands out neighbours one after the other. So the even
	// pages are touched first, from the end, and the odd ones then in a mixed
	// order: neighbours are far apart in time.
	n := size / page
	for i := (n - 1) &^ 1; i >= 0; i -= 2 {
		mapping[i*page] = 0
	}
	for _, i := range rand.Perm(n / 2) {
		mapping[(2*i+1)*page] = 0
	}
	m := &Memory{data: mapping[:bytes:bytes], mapping: mapping}
	spread(mapping, page)
	return m, nil
}

// spread gives pages that follow their neighbour in physical memory another
// place, as far as pagemap can be read.
func spread(mapping []byte, page int) {
	for range 16 {
		frames, err := pageFrames(mapping)
		if err != nil {
			return
		}
		var again []int
		for i := 1; i < len(frames); i++ {
			if frames[i] == frames[i-1]+1 {
				again = append(again, i)
			}
		}
		if len(again) == 0 {
			return
		}
		// A page given back is the first to be handed out again, so others are held
		// until the new ones are there.
		held, err := anonymous((len(again)+64)*page, 0)
		if err != nil {
			return
		}
		_ = unix.Madvise(held, unix.MADV_NOHUGEPAGE)
		for _, i := range again {
			_ = unix.Madvise(mapping[i*page:(i+1)*page], unix.MADV_DONTNEED)
		}
		touch(held)
		rand.Shuffle(len(again), func(a, b int) { again[a], again[b] = again[b], again[a] })
		for _, i := range again {
			mapping[i*page] = 0
		}
		_ = unix.Munmap(held)
	}
}

// Segments counts the runs of pages that are contiguous in physical memory. The
// error wraps fs.ErrPermission where /proc/self/pagemap shows no page frame
// numbers: they need CAP_SYS_ADMIN (Documentation/admin-guide/mm/pagemap.rst).
// The kernel may move pages later, so it is true for now.
func (m *Memory) Segments() (int, error) {
	if m.huge {
		return (len(m.data) + hugePage - 1) / hugePage, nil
	}
	return segments(m.data)
}

func segments(b []byte) (int, error) {
	frames, err := pageFrames(b)
	if err != nil {
		return 0, err
	}
	n := 0
	for i, f := range frames {
		if i == 0 || f != frames[i-1]+1 {
			n++
		}
	}
	return n, nil
}

// Bits of an entry of /proc/self/pagemap.
const (
	pagemapPresent = 1 << 63
	pagemapFrame   = 1<<55 - 1
)

// pageFrames reads the page frame numbers of touched memory that begins at a
// page.
func pageFrames(b []byte) ([]uint64, error) {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	page := os.Getpagesize()
	raw := make([]byte, (len(b)+page-1)/page*8)
	at := int64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) / int64(page) * 8
	if _, err := f.ReadAt(raw, at); err != nil {
		return nil, fmt.Errorf("read /proc/self/pagemap: %w", err)
	}
	frames := make([]uint64, len(raw)/8)
	for i := range frames {
		e := binary.NativeEndian.Uint64(raw[i*8:])
		if e&pagemapPresent == 0 {
			return nil, fmt.Errorf("read /proc/self/pagemap: page %d is not in memory", i)
		}
		if frames[i] = e & pagemapFrame; frames[i] == 0 {
			return nil, fmt.Errorf("read /proc/self/pagemap: page frame numbers: %w", fs.ErrPermission)
		}
	}
	return frames, nil
}

func anonymous(size, flags int) ([]byte, error) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|flags)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return b, nil
}

// touch writes to each page, so that it is there and is no shared zero page.
func touch(b []byte) {
	for i := 0; i < len(b); i += os.Getpagesize() {
		b[i] = 0
	}
}

func roundUp(bytes, unit int) (int, error) {
	if bytes <= 0 || bytes > 1<<30 {
		return 0, fmt.Errorf("%d bytes of memory: want 1 to %d", bytes, 1<<30)
	}
	return (bytes + unit - 1) / unit * unit, nil
}
