package ioctl

import (
	"errors"
	"io/fs"
	"os"
	"testing"
	"unsafe"
)

// TestMemoryShapes counts physical segments, where pagemap shows them.
func TestMemoryShapes(t *testing.T) {
	page := os.Getpagesize()
	for _, tt := range []struct {
		name  string
		make  func(int) (*Memory, error)
		bytes int
		align int
		least int
	}{
		{"fragmented, one page", Fragmented, page, page, 1},
		{"fragmented, 1 MiB", Fragmented, 1 << 20, page, 1 << 20 / page},
		{"fragmented, 32 MiB", Fragmented, 32 << 20, page, 32 << 20 / page},
		{"contiguous, 64 KiB", Contiguous, 64 << 10, hugePage, 1},
		{"contiguous, 4 MiB and a sector", Contiguous, 4<<20 + 512, hugePage, 1},
	} {
		m, err := tt.make(tt.bytes)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		b := m.Bytes()
		if len(b) != tt.bytes {
			t.Errorf("%s: %d bytes", tt.name, len(b))
		}
		if at := uintptr(unsafe.Pointer(unsafe.SliceData(b))); at%uintptr(tt.align) != 0 {
			t.Errorf("%s: at %#x, not aligned to %d", tt.name, at, tt.align)
		}
		for i, c := range b {
			if c != 0 {
				t.Errorf("%s: byte %d is %#x", tt.name, i, c)
				break
			}
		}
		n, err := m.Segments()
		switch {
		case errors.Is(err, fs.ErrPermission):
			t.Logf("%s: segments not known: %v", tt.name, err)
		case err != nil:
			t.Errorf("%s: %v", tt.name, err)
		case n < tt.least:
			t.Errorf("%s: %d segments, want at least %d", tt.name, n, tt.least)
		default:
			t.Logf("%s: %d segments", tt.name, n)
		}
		if err := m.Free(); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if err := m.Free(); err != nil {
			t.Errorf("%s: free again: %v", tt.name, err)
		}
	}
	for _, n := range []int{-1, 0, 1<<30 + 1} {
		if _, err := Contiguous(n); err == nil {
			t.Errorf("contiguous memory of %d bytes: no error", n)
		}
		if _, err := Fragmented(n); err == nil {
			t.Errorf("fragmented memory of %d bytes: no error", n)
		}
	}
}
