package capture_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/internal/recorded"
	"github.com/quirkcheck/quirkcheck/internal/sysfstree"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/probe/capture"
	"github.com/quirkcheck/quirkcheck/quirks"
	"github.com/quirkcheck/quirkcheck/schema"
)

var now = time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)

// report is what scan says of a machine, as JSON.
func report(t testing.TB, sys fs.FS) string {
	t.Helper()
	db, _ := quirks.Builtin()
	inv, err := probe.Read(t.Context(), sys, probe.Options{Avoid: checker.AvoidFrom(db)})
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.MarshalIndent(checker.Check(inv, db, checker.Policy{Now: now}), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func take(t testing.TB, sys fs.FS, o capture.Options) ([]byte, *capture.Capture, capture.Summary) {
	t.Helper()
	o.Now = now
	c, sum, err := capture.Take(t.Context(), sys, o)
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b, c, sum
}

func readBack(t testing.TB, b []byte) *capture.Capture {
	t.Helper()
	c, err := capture.Read(bytes.NewReader(b))
	if err != nil {
		t.Fatalf("%v\n%.2000s", err, b)
	}
	return c
}

// openRoot opens a tree on disk.
func openRoot(t testing.TB, dir string) *probe.Root {
	t.Helper()
	root, err := probe.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

// machines are all recorded trees in memory, two of them on disk too, and a
// made-up one.
func machines(t *testing.T) map[string]fs.FS {
	all := map[string]fs.FS{}
	for _, name := range recorded.Trees(t) {
		all[name+" in memory"] = recorded.FS(t, name)
		if name == "fedora41_k617_sata_nvme_scsidebug" || name == "power_nvme_multipath" { // unpacking is what takes long
			all[name+" on disk"] = openRoot(t, recorded.Tree(t, name))
		}
	}
	dir := t.TempDir()
	if err := sysfstree.Write(dir, sysfstree.Options{Disks: 60, Adapters: 3}); err != nil {
		t.Fatal(err)
	}
	all["60 disks"] = openRoot(t, dir)
	return all
}

func TestReplayGivesTheSameReport(t *testing.T) {
	for name, sys := range machines(t) {
		t.Run(name, func(t *testing.T) {
			want := report(t, sys)
			for _, include := range []bool{true, false} {
				b, c, _ := take(t, sys, capture.Options{IncludeSerials: include})
				again := readBack(t, b)
				if got := report(t, again.FS()); got != want {
					t.Errorf("serials included: %v: (-live +replayed)\n%s", include, cmp.Diff(want, got))
				}
				if diff := cmp.Diff(c.Files, again.Files); diff != "" {
					t.Errorf("files (-written +read)\n%s", diff)
				}
				if cmp.Diff(c.Links, again.Links) != "" || cmp.Diff(c.Directories, again.Directories) != "" ||
					cmp.Diff(c.Absent, again.Absent) != "" || cmp.Diff(c.Errors, again.Errors) != "" || c.Host != again.Host && c.Host.ID != again.Host.ID {
					t.Error("what was read is not what was written")
				}
				// A capture of a replay is the capture.
				b2, _, _ := take(t, again.FS(), capture.Options{IncludeSerials: true})
				c2 := readBack(t, b2)
				if diff := cmp.Diff(again.Files, c2.Files); diff != "" {
					t.Errorf("a capture of the capture (-first +second)\n%s", diff)
				}
				var doc any
				if err := json.Unmarshal(b, &doc); err != nil {
					t.Fatal(err)
				}
				for _, v := range schema.Validate("capture", doc) {
					t.Errorf("schema: %v", v)
				}
			}
		})
	}
}

// TestReplayIsDeterministic: two captures of one machine are equal but for the
// random id.
func TestReplayIsDeterministic(t *testing.T) {
	sys := recorded.FS(t, "fedora41_k617_sata_nvme_scsidebug")
	key := bytes.Repeat([]byte{1}, 32)
	a, ca, _ := take(t, sys, capture.Options{Key: key})
	b, _, _ := take(t, sys, capture.Options{Key: key, Probe: probe.Options{Workers: 1}})
	if diff := cmp.Diff(string(a), string(b)); diff != "" {
		t.Errorf("two captures of one machine differ:\n%s", diff)
	}
	if !ca.Host.IDStable || len(ca.Host.ID) != 32 {
		t.Errorf("host %+v", ca.Host)
	}
	_, other, _ := take(t, sys, capture.Options{Key: bytes.Repeat([]byte{2}, 32)})
	_, none, _ := take(t, sys, capture.Options{})
	_, again, _ := take(t, sys, capture.Options{})
	if other.Host.ID == ca.Host.ID || none.Host.ID == again.Host.ID || none.Host.IDStable {
		t.Errorf("ids: %s with another key, %s, %s without one", other.Host.ID, none.Host.ID, again.Host.ID)
	}
	machine := recorded.FS(t, "fedora41_k617_sata_nvme_scsidebug")
	machine["etc/machine-id"] = &fstest.MapFile{Data: []byte("0123456789abcdef0123456789abcdef\n"), Mode: 0o444}
	b, c, _ := take(t, machine, capture.Options{Key: key})
	if c.Host.ID == ca.Host.ID || bytes.Contains(b, []byte("0123456789abcdef")) {
		t.Errorf("the machine-id does not make the id, or is in the capture")
	}
}

// TestErrorsAreReplayed: what a machine refuses stays refused, in the same
// words, and what is odd stays odd.
func TestErrorsAreReplayed(t *testing.T) {
	dir := t.TempDir()
	if err := sysfstree.Write(dir, sysfstree.Options{Disks: 6, Adapters: 1}); err != nil {
		t.Fatal(err)
	}
	block := func(name string) string {
		p, err := filepath.EvalSymlinks(filepath.Join(dir, "sys/block", name))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	limit := block("sda") + "/queue/max_sectors_kb"
	must(os.Remove(limit))
	must(unix.Mkfifo(limit, 0o644))
	must(os.WriteFile(block("sdb")+"/queue/max_sectors_kb", bytes.Repeat([]byte("9"), 100_000), 0o644))
	must(os.Remove(block("sdc") + "/queue/max_sectors_kb"))
	must(os.Symlink("scheduler", block("sdc")+"/queue/max_sectors_kb"))
	must(os.RemoveAll(block("sdd") + "/queue"))
	must(os.WriteFile(block("sdd")+"/queue", nil, 0o644))
	must(os.Remove(filepath.Join(dir, "sys/block/sde")))
	must(os.Symlink("../devices/nowhere", filepath.Join(dir, "sys/block/sde")))
	must(os.WriteFile(filepath.Join(block("sdf"), "device", "vpd_pgb0"), []byte{0, 0xb0}, 0o644))
	root := openRoot(t, dir)
	want := report(t, root)
	for _, say := range []string{"not a regular file", "longer than", "too many levels of symbolic links", "not a directory", "vanished"} {
		if !strings.Contains(want, say) {
			t.Errorf("the report does not say %q", say)
		}
	}
	b, _, _ := take(t, root, capture.Options{})
	if got := report(t, readBack(t, b).FS()); got != want {
		t.Errorf("(-live +replayed)\n%s", cmp.Diff(want, got))
	}
}

// refusing is a machine with a file nobody may read.
type refusing struct {
	fstest.MapFS
	name string
}

func (r refusing) Open(name string) (fs.File, error) {
	if strings.HasSuffix(name, r.name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: unix.EACCES}
	}
	return r.MapFS.Open(name)
}

func TestPermissionIsReplayed(t *testing.T) {
	sys := refusing{recorded.FS(t, "7.3.4-debian13-backports"), "/vpd_pg83"}
	b, _, _ := take(t, sys, capture.Options{})
	c := readBack(t, b)
	if got, want := report(t, c.FS()), report(t, sys); got != want {
		t.Errorf("(-live +replayed)\n%s", cmp.Diff(want, got))
	}
	n := 0
	for name := range c.Errors {
		if _, err := fs.ReadFile(c.FS(), name); errors.Is(err, fs.ErrPermission) {
			n++
		}
	}
	if n == 0 {
		t.Error("no permission is refused in the replay")
	}
}

// TestNotRecordedIsNotAsked: a capture that says nothing of a file makes no
// claim that it was absent.
func TestNotRecordedIsNotAsked(t *testing.T) {
	b, c, _ := take(t, recorded.FS(t, "7.3.4-debian13-backports"), capture.Options{})
	absent, gone := 0, ""
	for dir, names := range c.Absent {
		absent += len(names)
		if strings.HasSuffix(dir, "sda/queue") {
			t.Logf("%s: %v", dir, names)
		}
	}
	if absent == 0 {
		t.Fatal("nothing was absent")
	}
	old := readBack(t, b)
	for name := range old.Files {
		if strings.HasSuffix(name, "/sda/queue/max_segments") {
			gone = name
			delete(old.Files, name)
		}
	}
	inv, err := probe.Read(t.Context(), old.FS(), probe.Options{Only: []string{"sda"}})
	if err != nil || gone == "" {
		t.Fatal(gone, err)
	}
	if v := inv.Devices[0].Attr("queue/max_segments"); v.State != probe.NotAsked {
		t.Errorf("max_segments is %v, want not asked", v.State)
	}
	if v := inv.Devices[0].Attr("queue/atomic_write_max_bytes"); v.State == probe.NotAsked {
		t.Errorf("atomic_write_max_bytes is %v though it was looked for", v.State)
	}
}

// TestNamesAreReplayed: every way to name a device works on a capture.
func TestNamesAreReplayed(t *testing.T) {
	sys := recorded.FS(t, "7.3.4-debian13-backports")
	sys["dev/sda"] = &fstest.MapFile{Mode: 0o644}
	sys["dev/disk/by-id/wwn-0x5000c50012345678"] = &fstest.MapFile{Data: []byte("../../sda"), Mode: fs.ModeSymlink | 0o777}
	sys["dev/disk/by-id/ata-ST380013AS_5JV1ABCD-part1"] = &fstest.MapFile{Data: []byte("../../sda"), Mode: fs.ModeSymlink | 0o777}
	b, _, _ := take(t, sys, capture.Options{IncludeSerials: true})
	f := readBack(t, b).FS()
	tried := 0
	for _, dev := range []string{"sda", "/dev/sda", "/dev/disk/by-id/wwn-0x5000c50012345678", "/dev/nowhere", "sdzz", "nvme0n1", "/dev/disk/by-id/none"} {
		want, wantErr := probe.ResolveName(sys, dev)
		got, err := probe.ResolveName(f, dev)
		if got != want || (err == nil) != (wantErr == nil) {
			t.Errorf("%s: %q %v, live %q %v", dev, got, err, want, wantErr)
		}
		if wantErr == nil {
			tried++
		}
	}
	partitions, _ := fs.Glob(sys, "sys/class/block/*")
	for _, p := range partitions {
		want, _ := probe.ResolveName(sys, filepath.Base(p))
		if got, err := probe.ResolveName(f, filepath.Base(p)); got != want {
			t.Errorf("%s: %q, live %q, %v", p, got, want, err)
		}
		tried++
	}
	if tried < 10 {
		t.Errorf("only %d names", tried)
	}
	b, _, _ = take(t, sys, capture.Options{})
	c := readBack(t, b)
	renamed := 0
	for name := range c.Links {
		if strings.HasPrefix(name, "dev/disk/by-id/") {
			renamed++
			if dev, err := probe.ResolveName(c.FS(), "/"+name); dev != "sda" {
				t.Errorf("%s: %q, %v", name, dev, err)
			}
		}
	}
	if renamed != 2 {
		t.Errorf("%d links in by-id, want 2", renamed)
	}
}

func TestGzipAndPipes(t *testing.T) {
	b, c, _ := take(t, recorded.FS(t, "xeon_sata_micron"), capture.Options{})
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write(b); err != nil || w.Close() != nil {
		t.Fatal(err)
	}
	for name, in := range map[string][]byte{"plain": b, "gzip": z.Bytes()} {
		got, err := capture.Read(struct{ *strings.Reader }{strings.NewReader(string(in))})
		if err != nil || cmp.Diff(c.Files, got.Files) != "" {
			t.Errorf("%s: %v", name, err)
		}
		// What cannot seek.
		got, err = capture.Read(onlyReader{bytes.NewReader(in)})
		if err != nil || cmp.Diff(c.Files, got.Files) != "" {
			t.Errorf("%s through a pipe: %v", name, err)
		}
	}
	// More than is kept in memory.
	big := append([]byte(strings.Repeat(" ", 6<<20)), b...)
	got, err := capture.Read(onlyReader{bytes.NewReader(big)})
	if err != nil || cmp.Diff(c.Files, got.Files) != "" {
		t.Errorf("a long one through a pipe: %v", err)
	}
}

type onlyReader struct{ r *bytes.Reader }

func (o onlyReader) Read(p []byte) (int, error) { return o.r.Read(p) }

// TestCancelled: a capture that is interrupted is none.
func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := capture.Take(ctx, recorded.FS(t, "xeon_sata_micron"), capture.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}
