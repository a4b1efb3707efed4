package enforce

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

func u(n uint64) *uint64   { return &n }
func str(s string) *string { return &s }
func yes(b bool) *bool     { return &b }

func release(t *testing.T, text string) kernel.Release {
	t.Helper()
	r, err := kernel.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// disk is an affected disk with one bound.
func disk(name string, kib, bound uint64) *checker.Device {
	return &checker.Device{Name: name, Kind: "disk", Identity: checker.Identity{SCSI: &checker.SCSIIdentity{Vendor: str("ATA"), Product: str("ST380013AS"), Revision: str("3.20")}},
		Limits:  checker.Limits{MaxSectorsKB: u(kib), MaxHWSectorsKB: u(32767), LogicalBlockSize: u(512), DiskSeq: u(7), ReadAheadKB: u(128)},
		Safe:    checker.Safe{MaxSectors: u(bound), Bounds: []checker.Bound{{MaxSectors: bound, Reason: "damages data", Source: "q", Quirk: "q"}, {MaxSectors: 65534, Reason: "hardware", Source: "hw"}}},
		Verdict: checker.Affected}
}

func finding(d *checker.Device, confidence string) checker.Finding {
	return checker.Finding{Device: &d.Name, Quirk: "q", Verdict: checker.Affected, Severity: "critical", Confidence: confidence}
}

func report(confidence string, ds ...*checker.Device) *checker.Report {
	r := &checker.Report{Devices: ds}
	for _, d := range ds {
		if len(d.Safe.Bounds) > 0 {
			r.Findings = append(r.Findings, finding(d, confidence))
		}
	}
	return r
}

// brief is a plan in words.
func brief(p Plan) []string {
	out := []string{}
	for _, s := range p.Steps {
		switch s.Op {
		case OpWrite:
			out = append(out, s.Group+": "+s.Attr+" "+s.From+" -> "+s.To)
		default:
			out = append(out, s.Group+": "+string(s.Op)+" "+s.Map)
		}
	}
	for _, s := range p.Satisfied {
		out = append(out, "satisfied "+s.Device)
	}
	for _, r := range p.Refused {
		out = append(out, "refused "+r.Device)
	}
	return out
}

func TestMakePlan(t *testing.T) {
	edit := func(d *checker.Device, f func(*checker.Device)) *checker.Device { f(d); return d }
	mpath := func(kib uint64, request *bool) *checker.Device {
		return &checker.Device{Name: "dm-0", Kind: "dm", Limits: checker.Limits{MaxSectorsKB: u(kib)}, Members: []string{"sda", "sdb"},
			Stack: &checker.Stack{Kind: "dm", Name: str("mp"), RequestBased: request}}
	}
	member := func(name string, kib uint64) *checker.Device {
		d := disk(name, kib, 1024)
		d.Safe.Bounds, d.Holders = nil, []string{"dm-0"}
		return d
	}
	path := func(name string) *checker.Device {
		return edit(disk(name, 1280, 1024), func(d *checker.Device) { d.Holders = []string{"dm-0"} })
	}
	for _, c := range []struct {
		name   string
		report *checker.Report
		o      Options
		want   []string
	}{
		{"an affected disk is lowered", report("confirmed", disk("sda", 4096, 1024)), Options{}, []string{"sda: sys/block/sda/queue/max_sectors_kb 4096 -> 512"}},
		{"8191 sectors become 4095 KiB", report("confirmed", disk("sda", 32767, 8191)), Options{}, []string{"sda: sys/block/sda/queue/max_sectors_kb 32767 -> 4095"}},
		{"an odd bound within the same KiB satisfies", report("confirmed", disk("sda", 4095, 8191)), Options{}, []string{"satisfied sda"}},
		{"a lower value is left alone", report("confirmed", disk("sda", 128, 1024)), Options{}, []string{"satisfied sda"}},
		{"and raised when asked", report("confirmed", disk("sda", 128, 1024)), Options{AllowRaise: true}, []string{"sda: sys/block/sda/queue/max_sectors_kb 128 -> 512"}},
		{"suspected is not enforced unasked", report("suspected", disk("sda", 4096, 1024)), Options{}, []string{}},
		{"suspected is enforced when asked", report("suspected", disk("sda", 4096, 1024)), Options{Include: []string{"suspected"}}, []string{"sda: sys/block/sda/queue/max_sectors_kb 4096 -> 512"}},
		{"other devices are left out", report("confirmed", disk("sda", 4096, 1024), disk("sdb", 4096, 1024)), Options{Only: []string{"sdb"}}, []string{"sdb: sys/block/sdb/queue/max_sectors_kb 4096 -> 512"}},
		{"never below a page of 64 KiB", report("confirmed", disk("sda", 4096, 15)), Options{PageKiB: 64, Kernel: kernel.Release{Raw: "6.12", Major: 6, Minor: 12, PointK: true}}, []string{"refused sda"}},
		{"rounded to the logical block", report("confirmed", edit(disk("sda", 4096, 8191), func(d *checker.Device) { d.Limits.LogicalBlockSize = u(4096) })), Options{}, []string{"sda: sys/block/sda/queue/max_sectors_kb 4096 -> 4092"}},
		{"a shared LUN is refused", report("confirmed", edit(disk("sda", 4096, 1024), func(d *checker.Device) { d.Transport = str("iscsi") })), Options{}, []string{"refused sda"}},
		{"unless said to be", report("confirmed", edit(disk("sda", 4096, 1024), func(d *checker.Device) { d.Transport = str("fc") })), Options{Shared: true}, []string{"sda: sys/block/sda/queue/max_sectors_kb 4096 -> 512"}},
		{"no present value", report("confirmed", edit(disk("sda", 1, 1024), func(d *checker.Device) { d.Limits.MaxSectorsKB = nil })), Options{}, []string{"refused sda"}},
		{"below a bio-based map it is safe", report("confirmed", path("sda"), mpath(1280, yes(false))), Options{}, []string{"sda: sys/block/sda/queue/max_sectors_kb 1280 -> 512"}},
		{"below md it is safe", report("confirmed", edit(disk("sda", 1280, 1024), func(d *checker.Device) { d.Holders = []string{"md0"} })), Options{}, []string{"sda: sys/block/sda/queue/max_sectors_kb 1280 -> 512"}},
		{"a path of a request-based map is refused", report("confirmed", path("sda"), path("sdb"), mpath(1280, yes(true))), Options{}, []string{"refused sda", "refused sdb"}},
		{"a map of which that could not be read, too", report("confirmed", path("sda"), mpath(1280, nil)), Options{}, []string{"refused sda"}},
		{"the sequence when asked", report("confirmed", path("sda"), path("sdb"), mpath(1280, yes(true))), Options{AllowStacked: true}, []string{
			"dm-0: sys/block/dm-0/queue/max_sectors_kb 1280 -> 512", "dm-0: suspend mp",
			"dm-0: sys/block/sda/queue/max_sectors_kb 1280 -> 512", "dm-0: sys/block/sdb/queue/max_sectors_kb 1280 -> 512", "dm-0: resume mp"}},
		{"a map above its lowest path", report("confirmed", member("sda", 512), member("sdb", 1280), mpath(1280, yes(true))), Options{}, []string{"refused dm-0"}},
		{"is lowered when asked", report("confirmed", member("sda", 512), member("sdb", 1280), mpath(1280, yes(true))), Options{AllowStacked: true}, []string{
			"dm-0: sys/block/dm-0/queue/max_sectors_kb 1280 -> 512", "dm-0: suspend mp", "dm-0: resume mp"}},
		{"a path that is lower already counts", report("confirmed", path("sda"), member("sdb", 256), mpath(1280, yes(true))), Options{AllowStacked: true}, []string{
			"dm-0: sys/block/dm-0/queue/max_sectors_kb 1280 -> 256", "dm-0: suspend mp", "dm-0: sys/block/sda/queue/max_sectors_kb 1280 -> 256", "dm-0: resume mp"}},
		{"raised no higher than what is not enforced", report("confirmed", edit(disk("sda", 64, 1024), func(d *checker.Device) {
			d.Safe.Bounds = append([]checker.Bound{{MaxSectors: 256, Reason: "suspected", Source: "s", Quirk: "s"}}, d.Safe.Bounds...)
		})), Options{AllowRaise: true}, []string{"sda: sys/block/sda/queue/max_sectors_kb 64 -> 128"}},
		{"a map that is low already is not written", report("confirmed", path("sda"), mpath(256, yes(true))), Options{AllowStacked: true}, []string{
			"dm-0: suspend mp", "dm-0: sys/block/sda/queue/max_sectors_kb 1280 -> 512", "dm-0: resume mp"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := MakePlan(c.report, c.o)
			if diff := cmp.Diff(c.want, brief(p), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			for _, s := range p.Steps {
				if len(s.Because) == 0 {
					t.Errorf("%s: no reason", s.Attr)
				}
			}
			for _, r := range p.Refused {
				if r.Why == "" || len(r.Instead) == 0 {
					t.Errorf("%s: refused without a reason or a way out", r.Device)
				}
			}
		})
	}
}

func TestPlanNamesTheKernelsHazards(t *testing.T) {
	for text, want := range map[string]struct{ serial, side bool }{
		"6.1.190": {false, false}, "6.8.5": {false, false}, "6.9.1": {true, false}, "6.12.95": {true, false}, "6.12.96": {false, false},
		"6.12.117": {false, false}, "6.13.2": {true, false}, "6.14": {false, false}, "6.18.15": {false, true}, "7.3.4": {false, true},
	} {
		p := MakePlan(report("confirmed", disk("sda", 4096, 1024)), Options{Kernel: release(t, text)})
		if p.Serial != want.serial {
			t.Errorf("%s: serial %v, want %v", text, p.Serial, want.serial)
		}
		if got := strings.Contains(strings.Join(p.Warnings, " "), "CVE-2025-21807"); got != want.serial {
			t.Errorf("%s: warned of the deadlock %v, want %v", text, got, want.serial)
		}
		if got := strings.Contains(p.Steps[0].Risk, "read_ahead_kb"); got != want.side {
			t.Errorf("%s: side effect on read-ahead planned %v, want %v", text, got, want.side)
		}
	}
}

func TestSequenceQuotesTheMapsName(t *testing.T) {
	d := disk("sda", 1280, 1024)
	d.Holders = []string{"dm-0"}
	m := &checker.Device{Name: "dm-0", Kind: "dm", Limits: checker.Limits{MaxSectorsKB: u(1280)}, Stack: &checker.Stack{Kind: "dm", Name: str("a b;$(reboot)'"), RequestBased: yes(true)}}
	p := MakePlan(report("confirmed", d, m), Options{})
	found := false
	for _, l := range p.Refused[0].Instead {
		if strings.HasPrefix(l, "dmsetup suspend ") {
			found = true
			if want := `dmsetup suspend 'a b;$(reboot)'\'''`; l != want {
				t.Errorf("%s, want %s", l, want)
			}
		}
	}
	if !found {
		t.Errorf("no suspend in %q", p.Refused[0].Instead)
	}
}

func TestDefaults(t *testing.T) {
	for _, c := range []struct {
		kernel string
		kib    uint64
		opt    uint64
		want   bool
	}{{"6.1.190", 1280, 0, false}, {"6.8", 1280, 0, true}, {"6.12.117", 1280, 0, true}, {"6.12.117", 512, 0, false}, {"6.18.15", 4096, 0, true}, {"6.18.15", 1280, 0, false},
		{"6.12.117", 8192, 8 << 20, true}, {"6.8", 8192, 8 << 20, false}} {
		d := disk("sda", c.kib, 1024)
		d.Limits.OptimalIOSize = u(c.opt)
		if got := isDefault(d, c.kib, release(t, c.kernel)); got != c.want {
			t.Errorf("%s, %d KiB, io_opt %d: %v, want %v", c.kernel, c.kib, c.opt, got, c.want)
		}
	}
}

func mapDevice() *checker.Device {
	return &checker.Device{Name: "dm-0", Kind: "dm", Limits: checker.Limits{MaxSectorsKB: u(1280)}, Stack: &checker.Stack{Kind: "dm", Name: str("mp"), RequestBased: yes(true)}}
}

func TestPlanSettings(t *testing.T) {
	setting := func(edit func(*checker.Setting)) *checker.Report {
		d := disk("sda", 512, 1024)
		d.Safe.Bounds = nil
		s := checker.Setting{Knob: "link_power", Wanted: "link_power max_performance", Observed: str("min_power"), Attr: "sys/class/scsi_host/host0/link_power_management_policy", To: "max_performance"}
		edit(&s)
		f := finding(d, "confirmed")
		f.Settings = []checker.Setting{s}
		return &checker.Report{Devices: []*checker.Device{d}, Findings: []checker.Finding{f}}
	}
	for _, c := range []struct {
		name  string
		edit  func(*checker.Setting)
		o     Options
		want  []string
		warns bool
	}{
		{"set", func(*checker.Setting) {}, Options{}, []string{"sys/class/scsi_host/host0/link_power_management_policy: sys/class/scsi_host/host0/link_power_management_policy min_power -> max_performance"}, false},
		{"satisfied", func(s *checker.Setting) { s.Satisfied = true }, Options{}, nil, false},
		{"not settable here", func(s *checker.Setting) { s.Attr = "" }, Options{}, nil, true},
		{"permanent is refused", func(s *checker.Setting) { s.Permanent = true }, Options{}, []string{"refused sda"}, false},
		{"unless asked for", func(s *checker.Setting) { s.Permanent = true }, Options{Permanent: true}, []string{"sys/class/scsi_host/host0/link_power_management_policy: sys/class/scsi_host/host0/link_power_management_policy min_power -> max_performance"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.o.Kernel = release(t, "6.1.190")
			p := MakePlan(setting(c.edit), c.o)
			if diff := cmp.Diff(c.want, brief(p), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if (len(p.Warnings) > 0) != c.warns {
				t.Errorf("warnings %q", p.Warnings)
			}
		})
	}
}

func TestSettingsOfSeveralEntriesMeet(t *testing.T) {
	for _, c := range []struct {
		name    string
		a, b    [2]string // wanted, to
		want    []string
		refused int
	}{
		{"the strictest bound", [2]string{"queue_depth at most 9", "9"}, [2]string{"queue_depth at most 2", "2"}, []string{"31 -> 2"}, 0},
		{"the same value once", [2]string{"queue_depth 1", "1"}, [2]string{"queue_depth 1", "1"}, []string{"31 -> 1"}, 0},
		{"two values are neither", [2]string{"queue_depth 1", "1"}, [2]string{"queue_depth 8", "8"}, nil, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := disk("sda", 4096, 1024)
			r := report("confirmed", d)
			for i, w := range [][2]string{c.a, c.b} {
				f := finding(d, "confirmed")
				f.Quirk = fmt.Sprintf("k%d", i)
				f.Settings = []checker.Setting{{Knob: "queue_depth", Wanted: w[0], To: w[1], Observed: str("31"), Attr: "sys/block/sda/device/queue_depth"}}
				r.Findings = append(r.Findings, f)
			}
			p := MakePlan(r, Options{})
			if p.Steps[0].Attr != attrOf("sda") || p.Steps[0].Group != "sda" {
				t.Errorf("the size is not first: %v", brief(p))
			}
			var got []string
			for _, s := range p.Steps[1:] {
				got = append(got, s.From+" -> "+s.To)
				if s.Group == "sda" {
					t.Error("a setting shares the group of the size")
				}
			}
			if diff := cmp.Diff(c.want, got); diff != "" || len(p.Refused) != c.refused {
				t.Errorf("refused %v (-want +got)\n%s", p.Refused, diff)
			}
		})
	}
}
