package main

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/quirkcheck/quirkcheck/internal/vm/wire"
)

func TestPatternNamesItsSector(t *testing.T) {
	const seed = 0x1122334455667788
	p := make([]byte, 4096)
	fill(p, 512*100, seed)
	for i := range 8 {
		for at := 0; at < sectorBytes; at += 16 {
			s := p[i*sectorBytes+at:]
			if binary.BigEndian.Uint64(s) != seed || binary.BigEndian.Uint64(s[8:]) != uint64(100+i) {
				t.Fatalf("sector %d holds %x at %d", 100+i, s[:16], at)
			}
		}
	}
}

func TestParameters(t *testing.T) {
	got := parameters([]string{"num_tgts=2", "inq_product=iSCSI Storage", "flag"})
	if want := `num_tgts=2 inq_product="iSCSI Storage" flag`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestBootParameters(t *testing.T) {
	const line = `console=ttyS0 a.b=libata.force=1 libata.force=80c usb-storage.quirks=1:2:u scsi_mod.dev_flags="A:B C:0x1" libata.noacpi` + "\n"
	for module, want := range map[string]string{
		"libata": "force=80c noacpi", "usb_storage": "quirks=1:2:u", "scsi_mod": `dev_flags="A:B C:0x1"`, "sd_mod": "", "ttyS0": "",
	} {
		if got := bootParameters(line, module); got != want {
			t.Errorf("%s: %q, want %q", module, got, want)
		}
	}
}

func TestTreeKeepsWhatItCannotRead(t *testing.T) {
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "a/empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "a/f"), []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../nowhere", filepath.Join(dir, "a/l")); err != nil {
		t.Fatal(err)
	}
	b, err := tree([]string{dir})
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]byte{}
	r := tar.NewReader(bytes.NewReader(b))
	for h, err := r.Next(); err == nil; h, err = r.Next() {
		kinds[strings.TrimPrefix("/"+h.Name, dir)] = h.Typeflag
	}
	for name, kind := range map[string]byte{"/a/": tar.TypeDir, "/a/empty/": tar.TypeDir, "/a/f": tar.TypeReg, "/a/l": tar.TypeSymlink} {
		if kinds[name] != kind {
			t.Errorf("%s is of type %q, want %q", name, kinds[name], kind)
		}
	}
	if _, err := tree([]string{filepath.Join(dir, "nowhere")}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a root that is not there: %v, want fs.ErrNotExist", err)
	}
}

func TestPutNeedsTheAttribute(t *testing.T) {
	attr := filepath.Join(t.TempDir(), "attr")
	rq := wire.Request{Path: attr, Parts: [][]byte{[]byte("512")}}
	if err := put(rq); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an attribute that is not there: %v, want fs.ErrNotExist", err)
	}
	rq.Mode = 0o640
	if err := put(rq); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(attr); err != nil || st.Mode().Perm() != 0o640 || st.Size() != 3 {
		t.Errorf("wrote %v, %v", st, err)
	}
}

func TestDirectRefusesOddSizes(t *testing.T) {
	for _, d := range []wire.Direct{
		{BlockBytes: 0, Bytes: 512}, {BlockBytes: 100, Bytes: 512}, {BlockBytes: 64 << 20, Bytes: 512},
		{BlockBytes: 512, Bytes: 100}, {BlockBytes: 512, Bytes: 512, Offset: 1},
	} {
		if rep := direct(d); !strings.Contains(rep.Error, "bad sizes") {
			t.Errorf("%+v: %q, want it refused", d, rep.Error)
		}
	}
}

func TestTCMUDiskThatIsNotThere(t *testing.T) {
	var ts targets
	for _, op := range []string{wire.OpTCMUSet, wire.OpTCMUCommands, wire.OpTCMURelease, wire.OpTCMURemove} {
		rep := ts.do(wire.Request{Op: op, Path: "x", Parts: [][]byte{[]byte("{}")}}, nil)
		if rep.Errno != int(syscall.ENOENT) || !strings.Contains(rep.Error, "TCMU disk x") {
			t.Errorf("%s: %q, error number %d, want ENOENT", op, rep.Error, rep.Errno)
		}
	}
	if rep := ts.do(wire.Request{Op: wire.OpTCMUAdd, Parts: [][]byte{[]byte("{")}}, nil); !strings.Contains(rep.Error, "decode TCMU disk") {
		t.Errorf("half a description: %q", rep.Error)
	}
	ts.releaseAll()
}
