package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"reflect"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/quirkcheck/quirkcheck/internal/vm/wire"
)

const (
	sectorBytes   = 512
	hugePageBytes = 2 << 20
	maxMismatches = 64
	maxBlockBytes = 32 << 20
)

// fill writes the pattern of the sectors that start at byte off: the seed and
// the sector number, over and over, so that a misplaced sector names itself.
func fill(p []byte, off int64, seed uint64) {
	for at := 0; at+16 <= len(p); at += 16 {
		sector := uint64(off+int64(at)) / sectorBytes
		binary.BigEndian.PutUint64(p[at:], seed)
		binary.BigEndian.PutUint64(p[at+8:], sector)
	}
}

// hugeBuffer returns n bytes in huge pages. Only memory in few pieces reaches
// a driver as one large request; ordinary pages would be split at the
// controller's number of segments.
func hugeBuffer(n int) (p []byte, free func(), err error) {
	// The kernel switches huge pages off on machines below 512 MiB
	// (mm/huge_memory.c, hugepage_init).
	const enabled = "/sys/kernel/mm/transparent_hugepage/enabled"
	if b, err := os.ReadFile(enabled); err == nil && bytes.Contains(b, []byte("[never]")) {
		if err := os.WriteFile(enabled, []byte("madvise"), 0); err != nil {
			return nil, nil, err
		}
	}
	n = (n + hugePageBytes - 1) / hugePageBytes * hugePageBytes
	m, err := unix.Mmap(-1, 0, n+hugePageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, nil, fmt.Errorf("mmap: %w", err)
	}
	skip := -int(reflect.ValueOf(m).Pointer()) & (hugePageBytes - 1)
	p = m[skip : skip+n]
	if err := unix.Madvise(p, unix.MADV_HUGEPAGE); err != nil {
		_ = unix.Munmap(m)
		return nil, nil, fmt.Errorf("madvise: %w", err)
	}
	for at := 0; at < n; at += 4096 {
		p[at] = 1 // fault it in
	}
	return p, func() { _ = unix.Munmap(m) }, nil
}

// direct writes the pattern, or reads it and compares, with O_DIRECT.
func direct(d wire.Direct) wire.Reply {
	if d.BlockBytes <= 0 || d.BlockBytes > maxBlockBytes || d.BlockBytes%sectorBytes != 0 ||
		d.Offset%sectorBytes != 0 || d.Bytes%sectorBytes != 0 {
		return failed(fmt.Errorf("direct %s: bad sizes", d.Path))
	}
	mode := os.O_WRONLY
	if d.Verify {
		mode = os.O_RDONLY
	}
	f, err := os.OpenFile(d.Path, mode|syscall.O_DIRECT, 0)
	if err != nil {
		return failed(err)
	}
	defer f.Close()
	buf, free, err := hugeBuffer(d.BlockBytes)
	if err != nil {
		return failed(err)
	}
	defer free()
	want := make([]byte, d.BlockBytes)
	var rep wire.Reply
	for at := int64(0); at < d.Bytes; at += int64(d.BlockBytes) {
		p := buf[:min(int64(d.BlockBytes), d.Bytes-at)]
		off := d.Offset + at
		if !d.Verify {
			fill(p, off, d.Seed)
			if _, err := f.WriteAt(p, off); err != nil {
				return failed(err)
			}
			continue
		}
		if _, err := f.ReadAt(p, off); err != nil {
			return failed(err)
		}
		fill(want[:len(p)], off, d.Seed)
		if bytes.Equal(p, want[:len(p)]) {
			continue
		}
		for i, w := range want[:len(p)] {
			if p[i] != w {
				rep.Mismatched++
				if len(rep.Mismatches) < maxMismatches {
					rep.Mismatches = append(rep.Mismatches, wire.Mismatch{Offset: off + int64(i), Want: w, Got: p[i]})
				}
			}
		}
	}
	return rep
}
