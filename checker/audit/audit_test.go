package audit_test

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
	"github.com/quirkcheck/quirkcheck/checker/audit"
	"github.com/quirkcheck/quirkcheck/checker/enforce"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/internal/recorded"
	"github.com/quirkcheck/quirkcheck/internal/sysfstree"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/quirks"
	"github.com/quirkcheck/quirkcheck/schema"
)

const (
	st380013as = "ata-seagate-st380013as-silent-corruption"
	dellboss   = "ata-dellboss-vd-io-timeout"
)

func builtin(t testing.TB) *quirks.Set {
	t.Helper()
	db, faults := quirks.Builtin()
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	return db
}

// only is a database of these entries alone.
func only(t testing.TB, texts ...string) *quirks.Set {
	t.Helper()
	files := fstest.MapFS{}
	for _, text := range texts {
		_, rest, _ := strings.Cut(text, "id: ")
		id, _, _ := strings.Cut(rest, "\n")
		files[id+".yaml"] = &fstest.MapFile{Data: []byte(text)}
	}
	db, faults := quirks.Load(files)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	return db
}

func inventory(t testing.TB, sys fs.FS) *probe.Inventory {
	t.Helper()
	inv, err := probe.Read(context.Background(), sys, probe.Options{Avoid: checker.AvoidFrom(builtin(t))})
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

func host(t testing.TB, sys fs.FS, o audit.Options) *audit.Host {
	t.Helper()
	if o.Predict == nil {
		o.Predict = kernel.Predict
	}
	return audit.New(inventory(t, sys), builtin(t), checker.Policy{}, o)
}

func release(t testing.TB, text string) kernel.Release {
	t.Helper()
	r, err := audit.ParseTarget(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// find returns the device of a driver whose identity starts with a name.
func find(t testing.TB, r *audit.Report, driver, name string) *audit.Device {
	t.Helper()
	for _, d := range r.Devices {
		if d.Adapter == nil || d.Adapter.Driver == nil || *d.Adapter.Driver != driver {
			continue
		}
		if d.Identity.ATA != nil && strings.HasPrefix(*d.Identity.ATA.Model, name) || d.Identity.SCSI != nil && strings.HasPrefix(*d.Identity.SCSI.Product, name) {
			return d
		}
	}
	t.Fatalf("no %s on %s", name, driver)
	return nil
}

func device(t testing.TB, r *audit.Report, name string) *audit.Device {
	t.Helper()
	i := slices.IndexFunc(r.Devices, func(d *audit.Device) bool { return d.Name == name })
	if i < 0 {
		t.Fatalf("no device %s", name)
	}
	return r.Devices[i]
}

func deref(n *uint64) uint64 {
	if n == nil {
		return 1<<64 - 1
	}
	return *n
}

func limits(t testing.TB, d *audit.Device, from, to uint64) {
	t.Helper()
	if deref(d.Change.FromKB) != from || deref(d.Change.ToKB) != to {
		t.Errorf("%s: from %s to %s KiB, want %d to %d (%s)", d.Name, str(d.Change.FromKB), str(d.Change.ToKB), from, to, d.Change.Reason)
	}
}

func TestRecordedMachineToTheNextLongTermKernel(t *testing.T) {
	r := host(t, recorded.FS(t, "6.1.190-debian12"), audit.Options{}).To(release(t, "6.18.15"))

	bad := find(t, r, "virtio_scsi", "ST380013AS")
	limits(t, bad, 1280, 4096)
	if c := bad.Change; c.Class != audit.NewRisk || c.Severity != quirks.Critical || c.VerdictNow != checker.Affected || c.VerdictThen != checker.Affected {
		t.Errorf("ST380013AS: %+v", c)
	}
	if q := bad.Change.Quirks; len(q) != 1 || q[0].Quirk != st380013as || deref(q[0].SafeMaxSectors) != 1024 {
		t.Errorf("ST380013AS: %+v", q)
	}
	if deref(bad.Predicted.ReadAheadKB) != 8192 {
		t.Errorf("read-ahead %s, want 8192 as on 7.3.4", str(bad.Predicted.ReadAheadKB))
	}

	hgst := find(t, r, "virtio_scsi", "HUS726060AL5210")
	limits(t, hgst, 1024, 2048)
	if c := hgst.Change; c.Class != audit.Unchanged || len(c.Warnings) != 1 || !strings.Contains(c.Warnings[0], "past what this disk ever ran with") ||
		!strings.Contains(c.Reason, "OPTIMAL TRANSFER LENGTH") || !strings.Contains(c.Reason, "MAXIMUM TRANSFER LENGTH") || *c.Factor != 2 {
		t.Errorf("HUS726060AL5210: %+v", c)
	}
	held := find(t, r, "ahci", "ST380013AS") // taken for a bridged disk
	limits(t, held, 128, 128)
	if held.Change.Class != audit.Unchanged || len(held.Change.Warnings) > 0 {
		t.Errorf("held disk: %+v", held.Change)
	}
	if want := (audit.Outcome{NewRisk: 1, Unchanged: 12, Warned: 6}); r.Outcome != want {
		t.Errorf("outcome %+v, want %+v", r.Outcome, want)
	}
	for _, d := range r.Devices {
		if d.Predicted.Rule == nil || d.Predicted.MaxSectorsKB == nil || d.Change.Reason == "" {
			t.Errorf("%s: predicted %+v, change %+v", d.Name, d.Predicted, d.Change)
		}
	}

	// What to do about it.
	if len(r.Deploy) < 2 {
		t.Fatalf("deploy %+v", r.Deploy)
	}
	if s := r.Deploy[0]; s.Do != "udev" || s.Optional || !slices.Equal(s.Devices, []string{bad.Name}) ||
		s.Command != "quirkcheck recommend --emit udev > /etc/udev/rules.d/90-quirkcheck.rules" {
		t.Errorf("%+v", s)
	}
	if s := r.Deploy[1]; s.Do != "pin" || !s.Optional || slices.Contains(s.Devices, bad.Name) || !slices.Contains(s.Devices, hgst.Name) || !strings.Contains(s.Command, "--pin-present") {
		t.Errorf("%+v", s)
	}
	for at, want := range map[quirks.Severity]bool{"none": false, "": false, "critical": true, "high": true, "info": true} {
		if r.Inhibits(at) != want {
			t.Errorf("inhibits on %q: %v", at, !want)
		}
	}
}

// TestTwoKernelsOfOneMachine predicts from one of the two recorded trees what
// the other shows. Where a prediction is certain it must be right.
func TestTwoKernelsOfOneMachine(t *testing.T) {
	trees := []string{"6.1.190-debian12", "7.3.4-debian13-backports"}
	for i, from := range trees {
		there := host(t, recorded.FS(t, trees[1-i]), audit.Options{})
		want := map[string]*audit.Device{}
		for _, d := range there.To(there.From()).Devices {
			want[identity(d)] = d
		}
		certain := 0
		for _, d := range host(t, recorded.FS(t, from), audit.Options{}).To(there.From()).Devices {
			w := want[identity(d)]
			if w == nil {
				t.Errorf("%s: %s is not in the other tree", from, identity(d))
				continue
			}
			if d.Predicted.Certainty == "low" || d.Predicted.Certainty == "unknown" {
				continue
			}
			certain++
			for name, v := range map[string][2]*uint64{"max_sectors_kb": {d.Predicted.MaxSectorsKB, w.Limits.MaxSectorsKB}, "max_hw_sectors_kb": {d.Predicted.MaxHWSectorsKB, w.Limits.MaxHWSectorsKB},
				"optimal_io_size": {d.Predicted.OptimalIOSize, w.Limits.OptimalIOSize}, "read_ahead_kb": {d.Predicted.ReadAheadKB, w.Limits.ReadAheadKB}} {
				if deref(v[0]) != deref(v[1]) {
					t.Errorf("%s to %s: %s: %s %s, is %s (%s)", from, there.From(), identity(d), name, str(v[0]), str(v[1]), d.Change.Reason)
				}
			}
		}
		if certain < 8 {
			t.Errorf("%s: only %d certain predictions", from, certain)
		}
	}
}

func identity(d *audit.Device) string {
	text := d.Kind
	if d.Adapter != nil && d.Adapter.Driver != nil {
		text = *d.Adapter.Driver + " " + *d.Path
	}
	for _, id := range []*checker.ModelFirmware{d.Identity.ATA, d.Identity.NVMe} {
		if id != nil {
			text += " " + *id.Model
		}
	}
	if d.Identity.SCSI != nil {
		text += " " + *d.Identity.SCSI.Product
	}
	return text
}

func subject(t testing.TB, m map[string]any) *quirks.Subject {
	t.Helper()
	sub, ignored, err := quirks.DecodeSubject(m)
	if err != nil || len(ignored) > 0 {
		t.Fatalf("subject: %v, ignored %v", err, ignored)
	}
	return &sub
}

type obj = map[string]any

func boss(release string, limit, hw int) obj {
	return obj{"device": obj{"space": "ata", "model": "DELLBOSS VD", "firmware": "MV.R00-0"}, "adapter": obj{"driver": "ahci"}, "path": "libata", "kernel": release,
		"limits": obj{"max_sectors_kb": limit, "max_hw_sectors_kb": hw, "optimal_io_size": 0, "logical_block_size": 512, "physical_block_size": 512}}
}

func TestDellBOSS(t *testing.T) {
	db := builtin(t)
	for _, c := range []struct {
		from, to  string
		limit, hw int
		want      uint64
		class     audit.Class
		then      checker.Verdict
	}{
		{"6.1.190", "6.12.117", 1280, 32767, 1280, audit.Unchanged, checker.Mitigated}, // only by the default
		{"6.1.190", "6.18.15", 1280, 32767, 4096, audit.NewRisk, checker.Affected},
		{"6.1.190", "7.3", 1280, 32767, 4095, audit.Unchanged, checker.Mitigated}, // by a row of the kernel's own
		{"6.18.15", "7.3", 4096, 32767, 4095, audit.FixedByUpgrade, checker.Mitigated},
		{"7.3.4", "6.18.15", 4095, 4095, 4096, audit.NewRisk, checker.Affected},
	} {
		h := audit.OfSubject(subject(t, boss(c.from, c.limit, c.hw)), db, checker.Policy{}, audit.Options{Predict: kernel.Predict})
		d := h.To(release(t, c.to)).Devices[0]
		if deref(d.Change.ToKB) != c.want || d.Change.Class != c.class || d.Change.VerdictThen != c.then {
			t.Errorf("%s to %s: %s KiB, %s, %s; want %d, %s, %s (%s)", c.from, c.to, str(d.Change.ToKB), d.Change.Class, d.Change.VerdictThen, c.want, c.class, c.then, d.Change.Reason)
		}
	}
	r := audit.OfSubject(subject(t, boss("6.1.190", 1280, 32767)), db, checker.Policy{}, audit.Options{Predict: kernel.Predict}).To(release(t, "6.18.15"))
	var did []string
	for _, s := range r.Deploy {
		if s.Quirk == dellboss {
			did = append(did, s.Do+": "+s.Text)
		}
	}
	want := []string{"firmware: update the firmware of the member to XC31DL6R", "wait: wait for Linux 6.19", "boot: boot with libata.force=PORT:max_sec_1024 (known since 5.19)"}
	if diff := cmp.Diff(want, did[max(0, len(did)-3):]); diff != "" {
		t.Errorf("deploy (-want +got)\n%s", diff)
	}
}

// machine is two plain SCSI disks on Linux 6.12 whose limits a test sets.
func machine(release string, a, b map[string]string) *sysfstree.Small {
	m := sysfstree.NewSmall(release)
	for i, attrs := range []map[string]string{a, b} {
		attrs["queue/rotational"] = "0"
		host := "pci0000:00/0000:00:0" + string(rune('5'+i)) + ".0/virtio" + string(rune('0'+i)) + "/host" + string(rune('0'+i))
		m.SCSI(host, string(rune('0'+i))+":0:0:0", "sd"+string(rune('a'+i)), nil, attrs)
	}
	return m
}

func fixed(certainty kernel.Certainty, from, to uint64) func(kernel.Release, kernel.Inputs) kernel.Prediction {
	return func(r kernel.Release, in kernel.Inputs) kernel.Prediction {
		n := from
		if r != in.From {
			n = to
		}
		p := kernel.Prediction{To: r, Certainty: certainty, Rule: "fixed", Because: []string{"it is so"}, DefaultKB: kernel.N(n), MaxSectorsKB: kernel.N(n), MaxSectors: kernel.N(2 * n),
			MaxHWSectorsKB: kernel.N(32767), MaxHWSectors: kernel.N(65535), OptimalIOSize: kernel.N(0)}
		if u := in.UserMaxSectorsKB; u.Known {
			p.MaxSectorsKB, p.MaxSectors, p.Rule = u, kernel.N(u.V*2), "user"
		}
		if certainty == kernel.Low {
			p.Missing = []kernel.Missing{{Input: "the moon", Could: "the tide"}}
		}
		return p
	}
}

func TestWhatSomebodySetIsCarriedOver(t *testing.T) {
	rule := []enforce.Setter{{File: "/etc/udev/rules.d/99-x.rules", Line: 3, Text: `ACTION=="add", ATTR{queue/max_sectors_kb}="500"`}}
	for _, c := range []struct {
		name      string
		seen      string
		certainty kernel.Certainty
		setters   []enforce.Setter
		user      bool
		want      uint64
		reason    string
	}{
		{"the kernel's own", "1280", kernel.High, nil, false, 4096, "from 1280 KiB"},
		{"lower, and the prediction is sure", "512", kernel.High, nil, true, 512, "set by an administrator or a rule"},
		{"an odd one, and the prediction is sure", "500", kernel.High, nil, true, 500, "the running kernel chooses 1280"},
		{"raised", "8192", kernel.High, nil, true, 8192, "carried over"},
		{"a plausible one, and the rule was only read", "512", kernel.SourceOnly, nil, true, 512, "carried over"},
		{"an odd one, and the rule was only read", "500", kernel.SourceOnly, nil, false, 4096, "not certain"},
		{"the prediction is not sure", "512", kernel.Low, nil, false, 4096, "not certain (not known: the moon)"},
		{"not sure, but a rule sets it", "500", kernel.Low, rule, true, 500, "/etc/udev/rules.d/99-x.rules:3"},
		{"a rule for another value", "512", kernel.Low, rule, false, 4096, "not taken for somebody's choice"},
	} {
		m := machine("6.12.90-test", obj2("queue/max_sectors_kb", c.seen), obj2())
		r := host(t, m, audit.Options{Predict: fixed(c.certainty, 1280, 4096), Setters: c.setters}).To(release(t, "6.18.15"))
		d := device(t, r, "sda")
		if got := d.Change.UserValueKB != nil; got != c.user || deref(d.Change.ToKB) != c.want || !strings.Contains(d.Change.Reason, c.reason) {
			t.Errorf("%s: user %v, to %s: %s; want %v, %d, %q", c.name, got, str(d.Change.ToKB), d.Change.Reason, c.user, c.want, c.reason)
		}
		if deref(d.Change.DefaultToKB) != 4096 || deref(d.Change.DefaultFromKB) != 1280 {
			t.Errorf("%s: defaults %s and %s", c.name, str(d.Change.DefaultFromKB), str(d.Change.DefaultToKB))
		}
	}
}

// obj2 makes attributes of names and values.
func obj2(pairs ...string) map[string]string {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return m
}

// A value that no IOMMU mode explains is somebody's, one that a mode does is not.
func TestWhatAnUnknownModeExplains(t *testing.T) {
	for seen, user := range map[string]bool{"128": false, "64": true, "1280": false} {
		predict := func(r kernel.Release, in kernel.Inputs) kernel.Prediction {
			n, c := uint64(1280), kernel.High
			switch in.IOMMU {
			case "":
				c = kernel.Low
			case "translated":
				n = 128
			}
			return fixed(c, n, 4096)(r, in)
		}
		r := host(t, machine("6.1.190", obj2("queue/max_sectors_kb", seen), obj2()), audit.Options{Predict: predict}).To(release(t, "6.18.15"))
		if d := device(t, r, "sda"); (d.Change.UserValueKB != nil) != user {
			t.Errorf("%s KiB: user value %s, want %v (%s)", seen, str(d.Change.UserValueKB), user, d.Change.Reason)
		}
	}
}

// What cannot be predicted leaves the findings that hang on it undecided, also
// those of built-in checks, which are silent where a limit is not known.
func TestUnknownStaysUnknown(t *testing.T) {
	nothing := func(r kernel.Release, in kernel.Inputs) kernel.Prediction {
		if r == in.From {
			return fixed(kernel.High, 4096, 4096)(r, in)
		}
		return kernel.Prediction{To: r, Certainty: kernel.NoAnswer, Missing: []kernel.Missing{{Input: "the sun", Could: "all"}}}
	}
	m := sysfstree.NewSmall("6.18.15-test")
	vpd := "\x00\xb0\x00\x3c" + strings.Repeat("\x00", 4) + "\x00\x00\x04\x00" + strings.Repeat("\x00", 52) // MAXIMUM TRANSFER LENGTH of 1024 blocks
	for i, model := range []string{"ST380013AS      ", "OTHER           "} {
		m.SCSI("pci0000:00/0000:00:05.0/host0", "0:0:"+string(rune('0'+i))+":0", "sd"+string(rune('a'+i)),
			map[string]string{"vendor": "ATA     ", "model": model, "rev": "3.20"}, obj2("queue/max_sectors_kb", "4096"))
	}
	m.File("sys/devices/pci0000:00/0000:00:05.0/host0/target0:0:1/0:0:1:0/vpd_pgb0", vpd)
	r := host(t, m, audit.Options{Predict: nothing}).To(release(t, "7.3"))
	for name, quirk := range map[string]string{"sda": st380013as, "sdb": "limit-above-vpd-max"} {
		d := device(t, r, name)
		if d.Change.Class != audit.Unknown || d.Change.VerdictNow != checker.Affected || d.Change.VerdictThen != checker.Unknown {
			t.Errorf("%s: %s, %s now, %s then; want unknown, affected, unknown", name, d.Change.Class, d.Change.VerdictNow, d.Change.VerdictThen)
		}
		if !slices.ContainsFunc(d.Change.Quirks, func(q audit.QuirkChange) bool { return q.Quirk == quirk && q.Then == checker.Unknown }) {
			t.Errorf("%s: %+v", name, d.Change.Quirks)
		}
		if p := d.Predicted; p.MaxSectorsKB != nil || p.Rule != nil || p.Certainty != "unknown" || d.Change.ToKB != nil || d.Change.Factor != nil {
			t.Errorf("%s: predicted %+v", name, p)
		}
		if !strings.Contains(d.Change.Reason, "for want of the sun") {
			t.Errorf("%s: %s", name, d.Change.Reason)
		}
	}
	if r.Inhibits("info") {
		t.Error("what is not known is no risk that is known")
	}
}

// A tree without /proc, and none of the two kernels named.
func TestUnknownRunningKernel(t *testing.T) {
	m := machine("", obj2("queue/max_sectors_kb", "512"), obj2())
	d := device(t, host(t, m, audit.Options{}).To(release(t, "6.18.15")), "sda")
	if d.Change.UserValueKB != nil || d.Change.DefaultFromKB != nil || d.Predicted.MaxSectorsKB == nil || d.Predicted.Certainty != "low" {
		t.Errorf("%+v %+v", d.Change, d.Predicted)
	}
	r := host(t, m, audit.Options{From: release(t, "6.1.190")}).To(release(t, "6.18.15"))
	if got := *r.From.Release; got != "6.1.190" || *r.Host.Kernel.Release != "6.1.190" {
		t.Errorf("from %s", got)
	}
	if d := device(t, r, "sda"); d.Change.DefaultFromKB == nil {
		t.Errorf("%+v", d.Change)
	}
}

// A map is judged by the predicted limits of its paths, not by today's.
func TestStackIsJudgedByPredictedPeers(t *testing.T) {
	m := sysfstree.Stacks()
	low := func(r kernel.Release, in kernel.Inputs) kernel.Prediction {
		p := fixed(kernel.High, in.Observed.MaxSectorsKB.V, 512)(r, in)
		if in.Kind == "dm" && r != in.From {
			p.MaxSectorsKB, p.DefaultKB, p.MaxSectors = kernel.N(4096), kernel.N(4096), kernel.N(8192)
			if len(in.Members) == 0 {
				t.Error("a map without members")
			}
			for _, m := range in.Members {
				if m.To != r || m.MaxSectorsKB.V != 512 && m.MaxSectorsKB.V != 4096 {
					t.Errorf("member %+v", m)
				}
			}
		}
		return p
	}
	r := host(t, m, audit.Options{Predict: low}).To(release(t, "6.18.15"))
	d := device(t, r, "dm-2") // at the limit of its paths today
	if d.Change.VerdictNow != checker.NoKnownQuirk || d.Change.VerdictThen != checker.Affected || d.Change.Class != audit.NewRisk {
		t.Errorf("dm-2: %s now, %s then, %s", d.Change.VerdictNow, d.Change.VerdictThen, d.Change.Class)
	}
	i := slices.IndexFunc(d.Change.Quirks, func(q audit.QuirkChange) bool { return q.Quirk == "stack-exceeds-member" })
	if i < 0 {
		t.Errorf("dm-2: %+v", d.Change.Quirks)
	}
	equal := host(t, m, audit.Options{Predict: fixed(kernel.High, 1280, 4096)}).To(release(t, "6.18.15"))
	if d := device(t, equal, "dm-1"); d.Change.VerdictNow != checker.Affected {
		t.Errorf("dm-1: %s now", d.Change.VerdictNow)
	}
}

// A damaged tree may say that two devices are made of each other.
func TestCircleOfMembersEnds(t *testing.T) {
	m := sysfstree.NewSmall("6.12.90-test")
	m.Virtual("dm-0", map[string]string{"dm/name": "a", "dm/uuid": "LVM-a"})
	m.Virtual("dm-1", map[string]string{"dm/name": "b", "dm/uuid": "LVM-b"})
	m.Over("dm-0", "dm-1")
	m.Over("dm-1", "dm-0")
	if r := host(t, m, audit.Options{}).To(release(t, "6.18.15")); len(r.Devices) != 2 {
		t.Errorf("%d devices", len(r.Devices))
	}
}

func TestReadAhead(t *testing.T) {
	for _, c := range []struct {
		name, release, limit, ahead, rotational, optimal string
		to                                               string
		want                                             uint64 // 0: not known
		warn                                             string
	}{
		{"rotational", "6.1.190", "1280", "128", "1", "0", "6.18.15", 8192, ""},
		{"solid state", "6.1.190", "1280", "128", "0", "0", "6.18.15", 128, ""},
		{"a stable tree before it", "6.1.190", "1280", "128", "1", "0", "6.12.117", 128, ""},
		{"twice the optimal size", "6.1.190", "1280", "2048", "1", "1048576", "6.18.15", 2048, ""},
		{"somebody set it", "6.1.190", "1280", "256", "1", "0", "6.18.15", 256, ""},
		{"a limit that somebody set raises it", "6.1.190", "512", "256", "1", "0", "6.18.15", 256, "here to 1024: set read_ahead_kb after it"},
		{"of the first limit, which a write does not lower", "6.1.190", "512", "128", "1", "0", "6.18.15", 8192, ""},
		{"back to an older kernel", "6.18.15", "4096", "8192", "1", "0", "6.12.117", 128, ""},
		{"a vendor's kernel", "6.1.190", "1280", "128", "1", "0", "6.18.0-1.el11", 0, ""},
	} {
		m := machine(c.release, obj2("queue/max_sectors_kb", c.limit, "queue/read_ahead_kb", c.ahead, "queue/optimal_io_size", c.optimal), obj2())
		m.File("sys/devices/pci0000:00/0000:00:05.0/virtio0/host0/target0:0:0/0:0:0:0/block/sda/queue/rotational", c.rotational+"\n")
		predict := func(r kernel.Release, in kernel.Inputs) kernel.Prediction {
			from, to := uint64(1280), uint64(4096)
			if c.release == "6.18.15" {
				from, to = to, from
			}
			p := fixed(kernel.High, from, to)(r, in)
			p.OptimalIOSize = in.Observed.OptimalIOSize
			return p
		}
		d := device(t, host(t, m, audit.Options{Predict: predict}).To(release(t, c.to)), "sda")
		switch got := d.Predicted.ReadAheadKB; {
		case c.want == 0 && got != nil, c.want != 0 && deref(got) != c.want:
			t.Errorf("%s: read-ahead %s, want %d", c.name, str(got), c.want)
		}
		if c.warn != "" && !strings.Contains(strings.Join(d.Change.Warnings, "\n"), c.warn) {
			t.Errorf("%s: warnings %q", c.name, d.Change.Warnings)
		}
	}
}

func TestLimitOfWhatIsNotListedInTheTarget(t *testing.T) {
	// 6.1 holds it, 6.12 and later list it and do not: what is there is worth a rule.
	m := sysfstree.NewSmall("6.1.190")
	m.SCSI("platform/host0/session1", "0:0:0:0", "sda", map[string]string{"vendor": "SYNOLOGY", "model": "iSCSI Storage   ", "rev": "4.0 ", "blacklist": "MAX_1024"},
		obj2("queue/max_sectors_kb", "512", "queue/max_hw_sectors_kb", "512"))
	r := host(t, m, audit.Options{}).To(release(t, "6.18.15"))
	d := device(t, r, "sda")
	if d.Change.Class != audit.NewRisk || d.Change.VerdictNow != checker.Mitigated || d.Change.VerdictThen != checker.Affected {
		t.Fatalf("%+v", d.Change)
	}
	i := slices.IndexFunc(r.Deploy, func(s audit.Step) bool { return s.Do == "pin" && !s.Optional })
	if i < 0 || r.Deploy[i].Command != "quirkcheck recommend --pin-present sda > /etc/udev/rules.d/89-quirkcheck-pin.rules" {
		t.Errorf("deploy %+v", r.Deploy)
	}
	listed := func(r *audit.Report) audit.Regression {
		for _, g := range r.Regressions {
			if g.Quirk == "kernel-scsi-devinfo-8char-vendor-misreport" {
				return g
			}
		}
		return audit.Regression{}
	}
	if g := listed(r); g.Direction != audit.Enters || g.Verdict != checker.Affected {
		t.Errorf("regressions %+v", r.Regressions)
	}
	back := host(t, m, audit.Options{From: release(t, "6.12.90")}).To(release(t, "6.1.192"))
	if g := listed(back); g.Direction != audit.Leaves {
		t.Errorf("regressions %+v", back.Regressions)
	}
}

const entryHead = "schema: 0\nseverity: high\nconfidence: confirmed\n"

func kernelEntry(id, rest string) string {
	return entryHead + "id: " + id + "\ntitle: Test of " + id + "\n" + rest + "references: [{type: report, url: \"https://example.org/\"}]\nexamples: {match: [], no_match: []}\n"
}

func TestRegressions(t *testing.T) {
	scsi := "effect: hang\nmatch: {any: [{path: [scsi, sat-firmware]}]}\n"
	db := only(t,
		kernelEntry("kernel-a-enters-hang", scsi+"kernel: {range: [{tree: mainline, introduced: \"6.17\", fixed: \"7.1\"}, {tree: stable-6.18, introduced: \"6.18.0\"}]}\nmitigations: [{type: kernel, tree: mainline, since: \"7.1\"}, {type: param, text: \"x=1\"}, {type: param, text: \"y=1\", since: \"7.2\"}]\n"),
		kernelEntry("kernel-b-leaves-hang", scsi+"kernel: {range: [{tree: mainline, introduced: \"5.0\", fixed: \"6.13\"}, {tree: stable-6.12, introduced: \"6.12.0\"}]}\n"),
		kernelEntry("kernel-c-stays-hang", scsi+"kernel: {range: [{tree: mainline, introduced: \"5.0\"}, {tree: stable-6.12, introduced: \"6.12.0\"}, {tree: stable-6.18, introduced: \"6.18.0\"}]}\n"),
		kernelEntry("kernel-d-change-misreport", "effect: misreport\nmatch: {any: [{path: [scsi]}]}\nkernel: {change: true, range: [{tree: mainline, introduced: \"6.17\"}]}\n"),
		kernelEntry("kernel-e-old-change-misreport", "effect: misreport\nmatch: {any: [{path: [scsi]}]}\nkernel: {change: true, range: [{tree: mainline, introduced: \"5.0\"}, {tree: stable-6.12, introduced: \"6.12.0\"}]}\n"),
		kernelEntry("kernel-f-asks-hang", scsi+"kernel: {range: [{tree: mainline, introduced: \"6.17\"}]}\nconditions: [{ask: \"Is the moon full?\", id: moon}]\n"),
		kernelEntry("kernel-g-asks-hang", scsi+"kernel: {range: [{tree: mainline, introduced: \"6.17\"}]}\nconditions: [{ask: \"Is the moon full?\", id: moon}]\n"),
		kernelEntry("kernel-h-over-hang", scsi+"kernel: {range: [{tree: mainline, introduced: \"6.14\", fixed: \"6.15\"}]}\n"),
		kernelEntry("kernel-i-larger-hang", scsi+"kernel: {range: [{tree: mainline, introduced: \"6.17\"}]}\nconditions: [{key: max_sectors_kb, op: \">\", value: 2048}]\n"),
		kernelEntry("kernel-j-smaller-hang", scsi+"kernel: {range: [{tree: mainline, introduced: \"6.17\"}]}\nconditions: [{key: max_sectors_kb, op: \">\", value: 9000}]\n"),
		kernelEntry("scsi-k-never-here-hang", "effect: hang\nmatch: {any: [{device: {space: scsi, vendor: \"NOBODY\"}}]}\nkernel: {range: [{tree: mainline, introduced: \"6.17\"}]}\n"),
	)
	m := machine("6.12.90-test", obj2(), obj2())
	h := audit.New(inventory(t, m), db, checker.Policy{}, audit.Options{Predict: fixed(kernel.High, 1280, 4096)})
	r := h.To(release(t, "6.18.15"))
	var got []string
	for _, g := range r.Regressions {
		got = append(got, strings.Join([]string{g.Quirk, string(g.Direction), string(g.Verdict), strings.Join(g.Devices, "+"), strings.Join(g.Questions, " ")}, " "))
		if g.Change != strings.Contains(g.Quirk, "change") || len(g.References) != 1 {
			t.Errorf("%+v", g)
		}
	}
	want := []string{
		"kernel-a-enters-hang enters affected sda+sdb ",
		"kernel-d-change-misreport enters affected sda+sdb ",
		"kernel-i-larger-hang enters affected sda+sdb ", // by the predicted limit
		"kernel-f-asks-hang enters unknown sda+sdb Is the moon full?",
		"kernel-g-asks-hang enters unknown sda+sdb Is the moon full?",
		"kernel-c-stays-hang stays affected sda+sdb ",
		"kernel-b-leaves-hang leaves affected sda+sdb ",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("regressions (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]audit.Question{{Text: "Is the moon full?", Quirks: []string{"kernel-f-asks-hang", "kernel-g-asks-hang"}}}, r.Questions); diff != "" {
		t.Errorf("questions (-want +got)\n%s", diff)
	}
	d := device(t, r, "sda")
	if d.Change.Class != audit.NewRisk || d.Change.Severity != quirks.High {
		t.Errorf("%+v", d.Change)
	}
	// A change is no finding.
	if slices.ContainsFunc(d.Change.Quirks, func(q audit.QuirkChange) bool { return strings.Contains(q.Quirk, "change") }) {
		t.Errorf("%+v", d.Change.Quirks)
	}
	var did []string
	for _, s := range r.Deploy {
		did = append(did, s.Do+" "+s.Text+" "+strings.Join(s.Devices, "+"))
	}
	if diff := cmp.Diff([]string{"wait wait for Linux 7.1 sda+sdb", "boot boot with x=1 sda+sdb"}, did[:min(2, len(did))]); diff != "" {
		t.Errorf("deploy (-want +got)\n%s", diff)
	}
	if !r.Inhibits("high") || r.Inhibits("critical") {
		t.Error("a fault of severity high enters")
	}
	// A vendor's kernel answers for nothing that has no row of its own: what
	// bites now is undecided then, and the rest is told once.
	vendor := h.To(release(t, "6.18.0-1.el11.x86_64"))
	got = nil
	for _, g := range vendor.Regressions {
		got = append(got, g.Quirk+" "+string(g.Direction)+" "+string(g.Verdict))
	}
	if diff := cmp.Diff([]string{"kernel-b-leaves-hang stays unknown", "kernel-c-stays-hang stays unknown"}, got); diff != "" {
		t.Errorf("vendor (-want +got)\n%s", diff)
	}
	if d := device(t, vendor, "sda"); d.Change.Class == audit.FixedByUpgrade || d.Change.VerdictThen != checker.Unknown {
		t.Errorf("vendor: %+v", d.Change)
	}
	var notes []string
	for _, n := range vendor.Notes {
		if n.What == "target" {
			notes = append(notes, n.Why)
		}
	}
	if len(notes) != 2 || !strings.Contains(notes[1], "kernel-a-enters-hang, kernel-d-change-misreport, kernel-f-asks-hang") {
		t.Errorf("vendor: notes %q", notes)
	}
	if slices.ContainsFunc(r.Notes, func(n checker.Note) bool { return n.What == "target" }) {
		t.Error("a note of another target")
	}
}

func TestOutputFollowsItsSchemas(t *testing.T) {
	n := 0
	for _, name := range recorded.Trees(t) {
		h := host(t, recorded.FS(t, name), audit.Options{})
		for _, to := range []string{"4.2", "6.18.15", "7.3", "9.1", "6.8.0-45-generic"} {
			r := h.To(release(t, to))
			r.Tool.Version, r.GeneratedAt = "test", time.Unix(0, 0).UTC().Format(time.RFC3339)
			validate(t, name+" to "+to, r, "report.v1.0", "audit.v1.0")
			n += len(r.Devices)
			if beyond := to == "9.1"; len(r.Devices) > 0 && r.Target.Beyond != beyond {
				t.Errorf("%s to %s: beyond %v", name, to, r.Target.Beyond)
			}
			for _, d := range r.Devices {
				if d.Change.Class == audit.NewRisk && d.Change.Severity == "" {
					t.Errorf("%s to %s: %s: a risk without severity", name, to, d.Name)
				}
			}
		}
		m := h.Matrix([]kernel.Release{release(t, "6.1"), release(t, "6.18")})
		m.Tool.Version, m.GeneratedAt = "test", time.Unix(0, 0).UTC().Format(time.RFC3339)
		validate(t, name+" matrix", m, "report.v1.0", "audit.v1.0")
	}
	if n < 100 {
		t.Fatalf("%d devices", n)
	}
}

func validate(t *testing.T, name string, v any, schemas ...string) {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var doc any
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	for _, s := range schemas {
		for _, v := range schema.Validate(s, doc) {
			t.Errorf("%s: %s: %s", name, s, v)
		}
	}
}

func TestAuditIsDeterministic(t *testing.T) {
	sys, to := recorded.FS(t, "6.1.190-debian12"), release(t, "6.18.15")
	want := mustJSON(t, host(t, sys, audit.Options{}).To(to))
	h := host(t, sys, audit.Options{})
	for range 5 {
		h.To(release(t, "7.3")) // one target must not touch the next
		if got := mustJSON(t, h.To(to)); got != want {
			t.Fatal(cmp.Diff(want, got))
		}
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// The same kernel changes nothing.
func TestSameKernelChangesNothing(t *testing.T) {
	for _, name := range recorded.Trees(t) {
		h := host(t, recorded.FS(t, name), audit.Options{})
		if !h.From().Known() {
			continue
		}
		r := h.To(h.From())
		for _, d := range r.Devices {
			if d.Change.Class == audit.NewRisk || d.Change.Class == audit.FixedByUpgrade || d.Predicted.Certainty == "high" && deref(d.Change.ToKB) != deref(d.Change.FromKB) {
				t.Errorf("%s: %s: %+v", name, d.Name, d.Change)
			}
		}
		for _, g := range r.Regressions {
			if g.Direction != audit.Stays {
				t.Errorf("%s: %+v", name, g)
			}
		}
	}
}

func TestParseTarget(t *testing.T) {
	for _, good := range []string{"6.18.15", "6.1.0-54-amd64", "6.17.10-100.fc41.x86_64", "7.3", "2.6.32", "9.1", "6.19-rc1", "5.14.0-503.el9"} {
		if _, err := audit.ParseTarget(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"", "six", "6", "6.20", "4.21.3", "3.99", "2.4.37", "0.1", "1.2.13", "5.99", "6.18.15.2.x6", "-6.1", "6.18.15\x1b[31m"} {
		if _, err := audit.ParseTarget(bad); bad != "6.18.15.2.x6" && bad != "6.18.15\x1b[31m" && (err == nil || !strings.Contains(err.Error(), "examples: 6.18.15")) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func str(n *uint64) string {
	if n == nil {
		return "?"
	}
	return cmpText(*n)
}

func cmpText(n uint64) string { b, _ := json.Marshal(n); return string(b) }

// What the running kernel's own quirk or default set says nothing of another
// kernel, and what the other sets by itself needs no setting.
func TestSettingsThatTheKernelMakes(t *testing.T) {
	db := builtin(t)
	for _, c := range []struct {
		name, from, to, policy string
		now, then              checker.Verdict
		class                  audit.Class
	}{
		{"the row comes", "6.12.70", "6.12.78", "med_power_with_dipm", checker.Affected, checker.Mitigated, audit.FixedByUpgrade},
		{"the row goes, and with it the policy that it sets", "6.12.78", "6.19.9", "max_performance", checker.Mitigated, checker.Affected, audit.NewRisk},
		{"set by somebody, and neither kernel has the row", "6.1.150", "6.1.190", "max_performance", checker.Mitigated, checker.Mitigated, audit.Unchanged},
		{"6.9 brings another default", "6.1.190", "6.19.9", "max_performance", checker.Mitigated, checker.Affected, audit.NewRisk},
		{"whether the row is there is not known", "6.1.190", "6.18.15", "max_performance", checker.Mitigated, checker.Unknown, audit.Unknown},
	} {
		sub := subject(t, obj{"device": obj{"space": "ata", "model": "ADATA SU680", "firmware": "X1"}, "adapter": obj{"driver": "ahci"}, "path": "libata", "kernel": c.from,
			"limits":   obj{"max_sectors_kb": 1280, "max_hw_sectors_kb": 32767, "optimal_io_size": 0, "logical_block_size": 512, "physical_block_size": 512},
			"settings": obj{"link_power_management_policy": c.policy}})
		d := audit.OfSubject(sub, db, checker.Policy{}, audit.Options{Predict: kernel.Predict}).To(release(t, c.to)).Devices[0]
		if d.Change.VerdictNow != c.now || d.Change.VerdictThen != c.then || d.Change.Class != c.class {
			t.Errorf("%s: %s now, %s then, %s; want %s, %s, %s (%s)", c.name, d.Change.VerdictNow, d.Change.VerdictThen, d.Change.Class, c.now, c.then, c.class, d.Change.Reason)
		}
	}
}

// The paths of a multipath head may be hidden; it is a disk all the same.
func TestHeadOfHiddenPaths(t *testing.T) {
	h := host(t, recorded.FS(t, "power_nvme_multipath"), audit.Options{From: release(t, "6.12.90")})
	for _, d := range h.To(release(t, "6.18.15")).Devices {
		if d.Predicted.MaxSectorsKB == nil {
			t.Errorf("%s: %s", d.Name, d.Change.Reason)
		}
	}
}

// Without a limit today nothing can be compared, and without a kernel today
// nothing is cured.
func TestNothingToCompareWith(t *testing.T) {
	for name, want := range map[string]audit.Class{"ghw_ryzen1600": audit.Unknown, "qemu_virtio_pcidomain32": audit.Unchanged} {
		for _, d := range host(t, recorded.FS(t, name), audit.Options{}).To(release(t, "6.18.15")).Devices {
			if d.Change.Class != want {
				t.Errorf("%s: %s: %s (%s)", name, d.Name, d.Change.Class, d.Change.Reason)
			}
		}
	}
}
