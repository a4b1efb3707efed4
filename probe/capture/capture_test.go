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
	"regexp"
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

// TestCountersAreReplayed: what a scan with a log reads is in every capture,
// redacted or not; of an older one without, nobody knows.
func TestCountersAreReplayed(t *testing.T) {
	m := sysfstree.NewSmall("6.12.90-test")
	m.SCSI("pci0000:00/0000:00:03.0/host0", "0:0:0:0", "sda", map[string]string{"iodone_cnt": "0xffffffffdeadbeef", "ioerr_cnt": "0xc1", "iotmo_cnt": "S64ENX0R123456"}, nil)
	m.SCSI("pci0000:00/0000:00:03.0/host0", "0:0:1:0", "sdb", map[string]string{"iodone_cnt": "0x1a2b3c4d", "ioerr_cnt": "0x0"}, nil)
	m.Virtual("md0", map[string]string{"md/level": "raid1", "md/dev-sda1/errors": "12345678901", "md/dev-sdb1/errors": "0"})
	type of struct {
		Counters []probe.Counter
		Notes    []probe.Note
	}
	read := func(sys fs.FS) map[string]of {
		inv, err := probe.Read(t.Context(), sys, probe.Options{Counters: true})
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]of{}
		for _, d := range inv.Devices {
			one := of{Counters: d.Counters}
			for _, n := range d.Notes {
				if strings.HasSuffix(n.What, "_cnt") || n.What == probe.CountersNote {
					one.Notes = append(one.Notes, n)
				}
			}
			all[d.Name] = one
		}
		return all
	}
	want := read(m)
	if len(want["sda"].Counters) != 2 || len(want["sda"].Notes) != 1 || len(want["sdb"].Counters) != 2 || len(want["md0"].Counters) != 2 {
		t.Fatalf("of the machine: %+v", want)
	}
	for _, include := range []bool{true, false} {
		b, c, _ := take(t, m, capture.Options{IncludeSerials: include})
		got := read(readBack(t, b).FS())
		if !include { // what is no number is no counter, and may be anything
			if strings.Contains(string(b), "S64ENX0R") {
				t.Error("the capture holds a serial number in a counter's place")
			}
			got["sda"].Notes[0].Why = want["sda"].Notes[0].Why
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("serials included: %v (-live +replayed)\n%s", include, diff)
		}
		for name := range c.Files {
			if strings.HasSuffix(name, "_cnt") || strings.HasSuffix(name, "/errors") {
				delete(c.Files, name)
			}
		}
		for _, all := range []map[string][]string{c.Directories, c.Absent} {
			for name := range all {
				if strings.HasSuffix(name, "/0:0:1:0") || strings.HasSuffix(name, "/md") {
					delete(all, name)
				}
			}
		}
		old := read(c.FS())
		for _, name := range []string{"sda", "sdb", "md0"} {
			if d := old[name]; len(d.Counters) != 0 || len(d.Notes) != 1 || d.Notes[0].What != probe.CountersNote || d.Notes[0].State != probe.NotAsked {
				t.Errorf("%s of a capture without counters: %+v", name, d)
			}
		}
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

// stacked are machines made by hand with one of every stack and of every kind.
func stacked() map[string]*sysfstree.Small {
	return map[string]*sysfstree.Small{"stacks": sysfstree.Stacks(), "kinds": sysfstree.Kinds()}
}

// TestReplayOfStacks: with serial numbers included the report is the same; with
// none it is but for what names a target or an owner's volume, findings and all.
func TestReplayOfStacks(t *testing.T) {
	for name, m := range stacked() {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := m.Write(dir); err != nil {
				t.Fatal(err)
			}
			var first []byte
			for _, sys := range []fs.FS{m, openRoot(t, dir)} {
				want := report(t, sys)
				b, _, _ := take(t, sys, capture.Options{IncludeSerials: true})
				if got := report(t, readBack(t, b).FS()); got != want {
					t.Errorf("serials included: (-live +replayed)\n%s", cmp.Diff(want, got))
				}
				b, _, _ = take(t, sys, capture.Options{Key: []byte("one key for all")})
				if got := report(t, readBack(t, b).FS()); unnamed(got) != unnamed(want) {
					t.Errorf("redacted: (-live +replayed)\n%s", cmp.Diff(unnamed(want), unnamed(got)))
				} else if findings(t, got) != findings(t, want) {
					t.Errorf("findings of the redacted capture: (-live +replayed)\n%s", cmp.Diff(findings(t, want), findings(t, got)))
				}
				if first == nil {
					first = b
				} else if !bytes.Equal(first, b) {
					t.Errorf("captures in memory and on disk differ:\n%s", cmp.Diff(string(first), string(b)))
				}
				b2, _, _ := take(t, readBack(t, b).FS(), capture.Options{IncludeSerials: true})
				if diff := cmp.Diff(readBack(t, b).Files, readBack(t, b2).Files); diff != "" {
					t.Errorf("a capture of the capture (-first +second)\n%s", diff)
				}
			}
		})
	}
}

var reNamed = regexp.MustCompile(`(?m)^( *)"(target|stack)": \{[^{}]*\}|^ *"name": "(?:betelgeuse|name1)"`)

// unnamed is a report without its targets and the names of its maps.
func unnamed(report string) string { return reNamed.ReplaceAllString(report, `$1"$2": NAMES`) }

// findings are those of a report, as JSON.
func findings(t *testing.T, report string) string {
	t.Helper()
	var r struct{ Findings, Summary json.RawMessage }
	if err := json.Unmarshal([]byte(report), &r); err != nil || len(r.Findings) < 10 {
		t.Fatalf("findings %s: %v", r.Findings, err)
	}
	return string(r.Findings) + string(r.Summary)
}

// TestNamesInRedactedKinds: what a redacted capture tells of targets, volumes
// and cards. Pseudonyms parse as what they stand for, and one target or address
// has one.
func TestNamesInRedactedKinds(t *testing.T) {
	b, _, _ := take(t, sysfstree.Kinds(), capture.Options{})
	inv, err := probe.Read(t.Context(), readBack(t, b).FS(), probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, d := range inv.Devices {
		text := ""
		if d.Target != nil {
			text = strings.Join([]string{d.Target.Name, d.Target.Portal, d.Target.HostPort}, " ")
		}
		if d.Volume.Ok() {
			text += "level " + d.Volume.V
		}
		if d.MMC != nil {
			text += d.MMC["name"] + " " + d.MMC["manfid"] + " " + d.MMC["oemid"] + " " + d.MMC["fwrev"]
		}
		if d.Serial.Ok() {
			text += " serial " + d.Serial.V
		}
		for _, p := range d.Paths {
			text += " " + strings.Join([]string{p.Name, p.Controller, p.State, p.Transport, p.ANAState}, " ")
		}
		if s, ok := d.Text("md/raid_disks"); ok {
			text += "disks " + s
		}
		got[d.Name] = strings.Join(strings.Fields(text), " ")
	}
	want := map[string]string{
		"sda":       "iqn.2000-01.redacted:target1 [2001:db8::2]:3260",
		"sdb":       "iqn.2000-01.redacted:target1 198.18.0.3:3260",
		"sdc":       "0x500a098000000002 0x2100000000000001",
		"sdd":       "level RAID 1(+0)ADM",
		"sde":       "level RAID-1(Triple)",
		"sdf":       "level PSEUDO R4",
		"sdg":       "level raid1e",
		"sdh":       "serial BAD_CTX REDA0001",
		"sdi":       "serial REDACTED0000000002",
		"mmcblk0":   "DG4016 0x000045 0x0100 0x3630303030353035",
		"dm-0":      "",
		"md1":       "disks 5 (4)",
		"nvme3n1":   "nqn.2000-01.redacted:target2 nvme3c3n1 nvme3 live tcp non-optimized nvme3c4n1 nvme4 live tcp inaccessible",
		"nvme3c3n1": "nqn.2000-01.redacted:target2 traddr=198.18.0.3,trsvcid=4420,host_traddr=198.18.0.4,host_iface=enp3s0f1,src_addr=198.18.0.4 serial redacted000000000003",
		"nvme3c4n1": "nqn.2000-01.redacted:target2 traddr=198.18.0.5,trsvcid=4420,host_traddr=198.18.0.4,host_iface=enp3s0f1,src_addr=198.18.0.4 serial redacted000000000003",
		"nvme5n1":   "nqn.1992-08.com.netapp:sn.00000000000000000000000000000005:redacted0000000005 traddr=nn-0x2001400000000003:pn-0x500a098000000002,host_traddr=nn-0x2000000000000004:pn-0x2100000000000001 serial REDACTED0000004",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestPartsOfReplayedStacks: of any device alone, with what stands above and
// below it, a capture says what the machine says.
func TestPartsOfReplayedStacks(t *testing.T) {
	db, _ := quirks.Builtin()
	n := 0
	for name, m := range stacked() {
		b, _, _ := take(t, m, capture.Options{IncludeSerials: true})
		replay := readBack(t, b).FS()
		whole, err := probe.Read(t.Context(), m, probe.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range whole.Devices {
			of := func(sys fs.FS) string {
				inv, err := probe.Read(t.Context(), sys, probe.Options{Only: []string{d.Name}, Related: true, Avoid: checker.AvoidFrom(db)})
				if err != nil {
					t.Fatal(err)
				}
				above, below := checker.Tree(inv, d.Name)
				out, err := json.MarshalIndent([]any{checker.Check(inv, db, checker.Policy{Now: now}), above, below, len(inv.Peers)}, "", " ")
				if err != nil {
					t.Fatal(err)
				}
				n += len(inv.Peers)
				return string(out)
			}
			if want, got := of(m), of(replay); got != want {
				t.Errorf("%s, %s: (-live +replayed)\n%s", name, d.Name, cmp.Diff(want, got))
			}
		}
	}
	if n < 20 {
		t.Errorf("only %d devices above and below", n)
	}
}
