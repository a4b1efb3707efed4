package ioctl

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFiemapCoversAFile writes a file with holes, more extents than one call
// returns.
func TestFiemapCoversAFile(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const parts, step, size = 300, 128 << 10, 64 << 10
	block := make([]byte, size)
	for i := range parts {
		for j := range block {
			block[j] = byte(i + 1)
		}
		if _, err := f.WriteAt(block, int64(i)*step); err != nil {
			t.Fatal(err)
		}
	}
	extents, err := Fiemap(int(f.Fd()), 10000)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOTTY) {
		t.Skipf("the file system of the temporary folder has no FIEMAP: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(extents) < parts {
		t.Errorf("got %d extents, want at least %d", len(extents), parts)
	}
	var bytes, last uint64
	for i, e := range extents {
		if e.Logical < last {
			t.Fatalf("extent %d at %d overlaps the one before, which ends at %d", i, e.Logical, last)
		}
		last, bytes = e.Logical+e.Bytes, bytes+e.Bytes
		if e.Flags&ExtentDelalloc != 0 {
			t.Errorf("extent %d is not allocated after a sync", i)
		}
	}
	if bytes < parts*size || bytes >= parts*step {
		t.Errorf("extents of %d bytes, want %d", bytes, parts*size)
	}
	if _, err := Fiemap(int(f.Fd()), 5); !errors.Is(err, ErrTooManyExtents) {
		t.Errorf("at most 5 extents: %v", err)
	}
	if flags, err := FileFlags(int(f.Fd())); err != nil {
		t.Errorf("FileFlags: %v", err)
	} else if flags&(FlagCompressed|FlagEncrypted|FlagImmutable|FlagAppend) != 0 {
		t.Errorf("flags of a plain file: %#x", flags)
	}
}

func TestLockIsExclusive(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	var files [2]*os.File
	for i := range files {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[i] = f
	}
	if err := Lock(int(files[0].Fd())); err != nil {
		t.Fatal(err)
	}
	if err := Lock(int(files[1].Fd())); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("second lock: got %v, want EWOULDBLOCK", err)
	}
	files[0].Close()
	if err := Lock(int(files[1].Fd())); err != nil {
		t.Errorf("after the first was closed: %v", err)
	}
}
