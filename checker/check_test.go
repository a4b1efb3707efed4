package checker_test

import (
	"context"
	"encoding/json"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/internal/recorded"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/quirks"
	"github.com/quirkcheck/quirkcheck/schema"
)

// now is a fixed day: nothing may hang on the clock.
var now = time.Date(2026, 12, 10, 12, 0, 0, 0, time.UTC)

func builtin(t testing.TB) *quirks.Set {
	t.Helper()
	db, faults := quirks.Builtin()
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	return db
}

func scan(t testing.TB, sys fs.FS, p checker.Policy) *checker.Report {
	t.Helper()
	db := builtin(t)
	inv, err := probe.Read(context.Background(), sys, probe.Options{Avoid: checker.AvoidFrom(db)})
	if err != nil {
		t.Fatal(err)
	}
	if p.Now.IsZero() {
		p.Now = now
	}
	return checker.Check(inv, db, p)
}

// byName finds a device by its identity, since disk names change between boots.
func find(t *testing.T, r *checker.Report, driver, name string) *checker.Device {
	t.Helper()
	for _, d := range r.Devices {
		if d.Adapter == nil || d.Adapter.Driver == nil || *d.Adapter.Driver != driver {
			continue
		}
		if d.Identity.ATA != nil && strings.HasPrefix(*d.Identity.ATA.Model, name) ||
			d.Identity.SCSI != nil && strings.HasPrefix(*d.Identity.SCSI.Product, name) {
			return d
		}
	}
	t.Fatalf("no %s on %s", name, driver)
	return nil
}

func findings(r *checker.Report, device string) map[string]checker.Finding {
	out := map[string]checker.Finding{}
	for _, f := range r.Findings {
		if f.Device != nil && *f.Device == device {
			out[f.Quirk] = f
		}
	}
	return out
}

func TestRecordedKernels(t *testing.T) {
	for _, kernel := range []struct {
		tree string
		kib  uint64 // the default of that kernel on an uncapped disk
	}{{"6.1.190-debian12", 1280}, {"7.3.4-debian13-backports", 4096}} {
		t.Run(kernel.tree, func(t *testing.T) {
			r := scan(t, recorded.FS(t, kernel.tree), checker.Policy{})

			exposed := find(t, r, "virtio_scsi", "ST380013AS")
			f := findings(r, exposed.Name)["ata-seagate-st380013as-silent-corruption"]
			if exposed.Verdict != checker.Affected || f.Verdict != checker.Affected || f.Severity != quirks.Critical {
				t.Errorf("ST380013AS on virtio-scsi: device %s, finding %s %s; want affected, critical", exposed.Verdict, f.Verdict, f.Severity)
			}
			if got := deref(exposed.Safe.MaxSectors); got != 1024 {
				t.Errorf("safe.max_sectors = %d, want 1024", got)
			}
			if got := deref(exposed.Recommended.MaxSectorsKB); got != 512 {
				t.Errorf("recommended.max_sectors_kb = %d, want 512", got)
			}
			if got := deref(exposed.Limits.MaxSectorsKB); got != kernel.kib {
				t.Errorf("max_sectors_kb = %d, want %d", got, kernel.kib)
			}
			if !f.Inferred {
				t.Error("a firmware taken from the revision is not marked as inferred")
			}

			held := find(t, r, "ahci", "ST380013AS")
			f = findings(r, held.Name)["ata-seagate-st380013as-silent-corruption"]
			if held.Verdict != checker.Mitigated || f.MitigatedBy == nil || f.MitigatedBy.Kind != "limit" {
				t.Errorf("ST380013AS on AHCI: %s by %+v; want mitigated by the present limit", held.Verdict, f.MitigatedBy)
			}

			quiet := find(t, r, "virtio_scsi", "ST900MM0006")
			note := slices.IndexFunc(quiet.Notes, func(n checker.Note) bool {
				return n.What == "vpd" && n.State == "not-asked" && strings.Contains(n.Why, "SKIP_VPD_PAGES")
			})
			if note < 0 {
				t.Errorf("ST900MM0006: no note why VPD was not asked: %+v", quiet.Notes)
			}
			if quiet.Limits.VPDMaxTransferBlocks != nil || quiet.Verdict != checker.Mitigated {
				t.Errorf("ST900MM0006: verdict %s, maximum %v", quiet.Verdict, quiet.Limits.VPDMaxTransferBlocks)
			}

			hgst := find(t, r, "virtio_scsi", "HUS726060AL5210")
			if got := deref(hgst.Safe.MaxSectors); got != 4096 || hgst.Safe.Bounds[0].Source != "VPD page B0h" {
				t.Errorf("HUS726060AL5210: safe %d from %+v, want 4096 from VPD", got, hgst.Safe.Bounds)
			}
			if r.Summary.Affected != 1 || !r.Fails(checker.Policy{}) {
				t.Errorf("summary %+v", r.Summary)
			}
		})
	}
}

func TestReportFollowsItsSchema(t *testing.T) {
	trees := append(slices.Clone(recorded.Names()), "")
	n := 0
	for _, name := range trees {
		if name == "" {
			continue
		}
		r := scan(t, recorded.FS(t, name), checker.Policy{})
		r.Tool.Version, r.GeneratedAt = "test", now.Format(time.RFC3339)
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var doc any
		if err := json.Unmarshal(b, &doc); err != nil {
			t.Fatal(err)
		}
		for _, v := range schema.Validate("report.v1.0", doc) {
			t.Errorf("%s: %s", name, v)
		}
		n += len(r.Devices)
	}
	if n == 0 {
		t.Fatal("no device was reported")
	}
}

func TestCheckIsDeterministic(t *testing.T) {
	dir := recorded.FS(t, "7.3.4-debian13-backports")
	want := scan(t, dir, checker.Policy{})
	for range 5 {
		if diff := cmp.Diff(want, scan(t, dir, checker.Policy{})); diff != "" {
			t.Fatalf("(-first +again)\n%s", diff)
		}
	}
}

// TestKernelFaultsOfAnUnknownKernel has an entry that every disk meets under
// one kernel, and cannot decide under another: the host is told once.
func TestKernelFaultsOfAnUnknownKernel(t *testing.T) {
	const id = "kernel-acme-hang"
	db, faults := quirks.Load(fstest.MapFS{"kernel/" + id + ".yaml": {Data: []byte(`schema: 0
id: ` + id + `
title: Kernels of that time hang on every disk
effect: hang
severity: high
confidence: confirmed
match: {any: [{path: [libata, scsi, sat-firmware]}]}
kernel: {range: [{tree: mainline, introduced: "7.0", fixed: "7.5"}, {tree: stable-7.3, introduced: "7.3.1", fixed: "7.3.5"}]}
mitigations: [{type: kernel, tree: mainline, since: "7.5"}]
references: [{type: source, url: "https://example.org/"}]
examples:
  match: [{subject: {path: libata, kernel: "7.4"}, source: "made up"}]
  no_match: [{subject: {path: libata, kernel: "7.5"}, fails: kernel.range, why: "fixed"}]
`)}})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	inv, err := probe.Read(context.Background(), recorded.FS(t, "7.3.4-debian13-backports"), probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		release string
		found   checker.Verdict // of each disk, "" for no finding
		noted   bool
	}{
		{"7.3.4", checker.Affected, false},
		{"7.3.5", "", false},
		{"7.4.2", "", true}, // the fix may have come
		{"7.3.0-45-generic", "", true},
		{"6.8.0-45-generic", "", true},
		{"7.3.0-1-amd64", "", true}, // hides its point
		{"", "", true},
	} {
		inv.Kernel.State = probe.Known
		if inv.Kernel.V, err = kernel.Parse(c.release); err != nil {
			inv.Kernel.State, inv.Kernel.V = probe.Absent, kernel.Release{}
		}
		r := checker.Check(inv, db, checker.Policy{Now: now})
		verdicts := map[checker.Verdict]int{}
		for _, f := range r.Findings {
			if f.Quirk == id {
				verdicts[f.Verdict]++
			}
		}
		if c.found == "" && len(verdicts) > 0 || c.found != "" && (len(verdicts) != 1 || verdicts[c.found] < 2) {
			t.Errorf("%q: findings %v, want %q on each disk", c.release, verdicts, c.found)
		}
		notes := slices.DeleteFunc(slices.Clone(r.Notes), func(n checker.Note) bool { return !strings.Contains(n.Why, id) })
		if c.noted != (len(notes) == 1) || len(notes) > 1 {
			t.Errorf("%q: notes %v, want one: %v", c.release, notes, c.noted)
		}
	}
}

// TestAQuestionIsPutOnceAHost has a fault of the kernel that hangs on a person's
// answer, for each disk, and one that hangs on a fact that this recording lacks.
func TestAQuestionIsPutOnceAHost(t *testing.T) {
	entry := func(id, condition string) *fstest.MapFile {
		return &fstest.MapFile{Data: []byte(`schema: 0
id: ` + id + `
title: Kernels of that time hang where ` + id + `
effect: hang
severity: critical
confidence: confirmed
match: {any: [{path: [libata, scsi, sat-firmware]}]}
kernel: {range: [{tree: mainline, introduced: "7.0"}]}
conditions: [` + condition + `]
mitigations: [{type: config, text: "wait"}]
references: [{type: source, url: "https://example.org/"}]
examples:
  match: [{subject: {path: libata, kernel: "7.4", settings: {iommu: translated}}, expect: unknown, source: "made up"}]
  no_match: [{subject: {path: libata, kernel: "6.5", settings: {iommu: translated}}, fails: kernel.range, why: "before it"}]
`)}
	}
	db, faults := quirks.Load(fstest.MapFS{
		"kernel/kernel-asked-hang.yaml":  entry("kernel-asked-hang", `{ask: "Is it used?", id: used}`),
		"kernel/kernel-unread-hang.yaml": entry("kernel-unread-hang", `{key: power_on_hours, op: ">", value: 3}, {ask: "Is it used?", id: used}`),
	})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	inv, err := probe.Read(context.Background(), recorded.FS(t, "7.3.4-debian13-backports"), probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := checker.Check(inv, db, checker.Policy{Now: now})
	var of []checker.Finding
	for _, f := range r.Findings {
		if strings.HasPrefix(f.Quirk, "kernel-") {
			of = append(of, f)
		}
	}
	if len(of) != 1 || of[0].Quirk != "kernel-asked-hang" || of[0].Device != nil || of[0].Verdict != checker.Unknown ||
		of[0].Observed == nil || !strings.HasPrefix(*of[0].Observed, "concerns sda, sdb") || len(of[0].Advice) != 1 || !strings.Contains(of[0].Advice[0], "only you can answer this") {
		t.Errorf("findings %+v, want one of the host that names the disks", of)
	}
	for _, d := range r.Devices {
		if d.Verdict == checker.Unknown {
			t.Errorf("%s is unknown for want of an answer about the host", d.Name)
		}
	}
	if !slices.ContainsFunc(r.Notes, func(n checker.Note) bool { return strings.Contains(n.Why, "kernel-unread-hang") }) {
		t.Errorf("notes %v, want one about what could not be decided", r.Notes)
	}
}

func TestDeviceWithoutANameIsUnknown(t *testing.T) {
	r := scan(t, recorded.FS(t, "ghw_s390x"), checker.Policy{})
	for _, d := range r.Devices {
		if d.Kind == "disk" && d.Verdict != checker.Unknown {
			t.Errorf("%s: %s, want unknown: nothing of it could be read", d.Name, d.Verdict)
		}
		if d.Limits.MaxSectorsKB != nil || d.Recommended.MaxSectorsKB != nil {
			t.Errorf("%s: a limit out of nothing", d.Name)
		}
	}
	if len(r.Findings) != 0 {
		t.Errorf("%d findings on disks that show nothing", len(r.Findings))
	}
	if r.Summary.Unknown == 0 {
		t.Error("no device is unknown")
	}
}

func TestSuppression(t *testing.T) {
	dir := recorded.FS(t, "7.3.4-debian13-backports")
	rule := checker.Suppression{Quirk: "ata-seagate-st380013as-silent-corruption", Reason: "scratch disk", Until: now}
	for _, c := range []struct {
		name string
		edit func(*checker.Suppression)
		want checker.Verdict
	}{
		{"on its last day it holds", func(*checker.Suppression) {}, checker.Suppressed},
		{"a day later it does not", func(s *checker.Suppression) { s.Until = now.AddDate(0, 0, -1) }, checker.Affected},
		{"for this model it holds", func(s *checker.Suppression) { s.Model = "ST3800*" }, checker.Suppressed},
		{"for another model it does not", func(s *checker.Suppression) { s.Model = "ST900*" }, checker.Affected},
		{"for another quirk it does not", func(s *checker.Suppression) { s.Quirk = "limit-above-vpd-max" }, checker.Affected},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := rule
			c.edit(&s)
			r := scan(t, dir, checker.Policy{Suppress: []checker.Suppression{s}})
			if got := find(t, r, "virtio_scsi", "ST380013AS").Verdict; got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

func TestFails(t *testing.T) {
	r := &checker.Report{Findings: []checker.Finding{
		{Verdict: checker.Affected, Severity: quirks.Low}, {Verdict: checker.Mitigated, Severity: quirks.Critical}, {Verdict: checker.Unknown, Severity: quirks.Critical},
	}}
	for at, want := range map[quirks.Severity]bool{"": false, "info": true, "low": true, "medium": false, "none": false} {
		if got := r.Fails(checker.Policy{FailOn: at}); got != want {
			t.Errorf("fail on %q: %v, want %v", at, got, want)
		}
	}
}

func deref(n *uint64) uint64 {
	if n == nil {
		return 0
	}
	return *n
}

// A device without hardware meets no fault of an adapter's driver; of a disk
// whose adapter was not read that is not known.
func TestDevicesWithoutAnAdapter(t *testing.T) {
	driver := func(kind string) (string, bool) {
		d := &probe.Device{Name: kind + "0", Kind: kind, Path: "other"}
		name, known := checker.SubjectOf(&probe.Inventory{Devices: []*probe.Device{d}}, d).Adapter["driver"]
		return name, known
	}
	for _, kind := range []string{"loop", "ram", "dm", "md"} {
		if name, known := driver(kind); name != "" || !known {
			t.Errorf("%s: driver %q, known %v; want known to be none", kind, name, known)
		}
	}
	if _, known := driver("disk"); known {
		t.Error("a disk whose adapter was not read has a driver")
	}
}
