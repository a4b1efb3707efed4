package recorded

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestEveryTreeUnpacks(t *testing.T) {
	names := Trees(t)
	if len(names) != 13 {
		t.Errorf("%d machines, want 13: %v", len(names), names)
	}
	peers := 0
	for _, name := range names {
		machine := FS(t, name)
		entries, err := machine.ReadDir("sys/block")
		if err != nil || len(entries) == 0 {
			t.Errorf("%s: sys/block has %d entries, %v", name, len(entries), err)
		}
		disks := 0
		for _, e := range entries { // two machines kept the links of their loop devices alone
			if _, err := machine.ReadFile("sys/block/" + e.Name() + "/size"); err == nil {
				disks++
			}
		}
		if disks == 0 {
			t.Errorf("%s: no device has a size", name)
		}
		p, ok := Expected(t, name)
		if !ok {
			continue
		}
		peers++
		if p.Source == "" || p.License == "" || len(p.SysfsOnly) == 0 || len(p.Attributes) == 0 {
			t.Errorf("%s: expected.json lacks a source, licence, lsblk or attributes", name)
		}
	}
	if peers != 11 {
		t.Errorf("%d machines have peers' answers, want 11", peers)
	}
}

// Two archives stand for all: one with a top folder, one without.
func TestTreeAndFSHoldTheSame(t *testing.T) {
	for _, name := range []string{"qemu_virtio_pcidomain32", "6.1.190-debian12"} {
		root, machine := Tree(t, name), FS(t, name)
		files := 0
		err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err != nil || p == root {
				return err
			}
			files++
			rel, _ := filepath.Rel(root, p)
			f := machine[rel]
			if f == nil || f.Mode.Type() != d.Type() {
				t.Errorf("%s: %s is %v in memory, %v on disk", name, rel, f, d.Type())
				return nil
			}
			var want string
			switch d.Type() {
			case fs.ModeSymlink:
				want, err = os.Readlink(p)
			case 0:
				var b []byte
				b, err = os.ReadFile(p)
				want = string(b)
			}
			if string(f.Data) != want {
				t.Errorf("%s: %s holds %q in memory, %q on disk", name, rel, f.Data, want)
			}
			return err
		})
		if err != nil || files != len(machine) || files == 0 {
			t.Errorf("%s: %d entries on disk, %d in memory, %v", name, files, len(machine), err)
		}
	}
}

func TestChecksDecode(t *testing.T) {
	checks := Checks(t)
	if len(checks) != 138 {
		t.Errorf("%d checks, want 138", len(checks))
	}
	seen := map[string]bool{}
	for _, c := range checks {
		if c.ID == "" || c.Title == "" || c.Expect.Verdict == "" || c.Needs == "" || len(c.Subject) == 0 {
			t.Errorf("%q: lacks a field: %+v", c.ID, c)
		}
		if seen[c.ID] {
			t.Errorf("%s comes twice", c.ID)
		}
		seen[c.ID] = true
	}
}

func TestDecodeChecksNamesTheLine(t *testing.T) {
	if _, err := decodeChecks([]byte("{\"id\": \"a\"}\n{\"unknown\": 1}\n")); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("got %v, want an error about line 2", err)
	}
}

func TestUnpackRefuses(t *testing.T) {
	outside := t.TempDir()
	for name, headers := range map[string][]tar.Header{
		"a name that climbs out": {{Name: "../x", Typeflag: tar.TypeReg}},
		"an absolute name":       {{Name: "/tmp/x", Typeflag: tar.TypeReg}},
		"a climb inside a name":  {{Name: "a/../../x", Typeflag: tar.TypeReg}},
		"a device node":          {{Name: "x", Typeflag: tar.TypeChar}},
		"a FIFO":                 {{Name: "x", Typeflag: tar.TypeFifo}},
		"a hard link":            {{Name: "x", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}},
		"a file where a link is": {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: outside}, {Name: "l/x", Typeflag: tar.TypeReg}},
		"the same file twice":    {{Name: "x", Typeflag: tar.TypeReg}, {Name: "x", Typeflag: tar.TypeReg}},
	} {
		t.Run(name, func(t *testing.T) {
			var buf, again bytes.Buffer
			z := gzip.NewWriter(io.MultiWriter(&buf, &again))
			w := tar.NewWriter(z)
			for _, h := range headers {
				if err := w.WriteHeader(&h); err != nil {
					t.Fatal(err)
				}
			}
			if w.Close() != nil || z.Close() != nil {
				t.Fatal("write the archive")
			}
			if err := unpack(folder(t.TempDir()), &buf); err == nil {
				t.Error("unpack to disk took it")
			}
			if err := unpack(memory{}, &again); err == nil {
				t.Error("unpack to memory took it")
			}
			if _, err := os.Lstat(filepath.Join(outside, "x")); err == nil {
				t.Error("a file was written outside")
			}
		})
	}
}
