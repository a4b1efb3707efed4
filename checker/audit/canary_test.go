package audit_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/checker/audit"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// fleetReport is a host with one disk.
func fleetReport(model string, class audit.Class, severity quirks.Severity, warnings ...string) *audit.Report {
	d := &audit.Device{Device: &checker.Device{Name: "sda", Kind: "disk", Identity: checker.Identity{ATA: &checker.ModelFirmware{Model: &model}}}}
	d.Change.Class, d.Change.Severity, d.Change.Warnings = class, severity, warnings
	r := &audit.Report{Report: &checker.Report{}, Devices: []*audit.Device{d}}
	o := &r.Outcome
	for class, n := range map[audit.Class]*int{audit.NewRisk: &o.NewRisk, audit.FixedByUpgrade: &o.FixedByUpgrade, audit.Unchanged: &o.Unchanged, audit.Unknown: &o.Unknown} {
		if d.Change.Class == class {
			*n = 1
		}
	}
	if len(warnings) > 0 {
		o.Warned = 1
	}
	return r
}

func TestCanaryOrder(t *testing.T) {
	var f audit.Fleet
	add := func(name string, r *audit.Report) { f.Add(audit.Canary{Input: name}, r) }
	add("risk-critical", fleetReport("A", audit.NewRisk, quirks.Critical))
	add("unknown", fleetReport("B", audit.Unknown, ""))
	add("risk-medium", fleetReport("C", audit.NewRisk, quirks.Medium))
	add("lone", fleetReport("D", audit.Unchanged, ""))
	for i := range 3 {
		add(fmt.Sprint("many", i), fleetReport("E", audit.Unchanged, ""))
	}
	add("warned", fleetReport("F", audit.Unchanged, "", "rises"))
	add("fixed", fleetReport("G", audit.FixedByUpgrade, ""))
	bites := fleetReport("H", audit.Unchanged, "")
	bites.Regressions = []audit.Regression{{Direction: audit.Enters, Verdict: checker.Affected, Severity: quirks.Low}}
	add("bites", bites)
	asks := fleetReport("I", audit.Unchanged, "")
	asks.Regressions = []audit.Regression{{Direction: audit.Enters, Verdict: checker.Unknown, Severity: quirks.High}, {Direction: audit.Leaves, Verdict: checker.Affected, Severity: quirks.High},
		{Direction: audit.Enters, Verdict: checker.Affected, Severity: quirks.High, Change: true}}
	add("zasks", asks)
	var got []string
	for i, c := range f.Order() {
		if c.Order != i+1 || c.Why == "" {
			t.Errorf("%+v", c)
		}
		got = append(got, fmt.Sprintf("%s %s %d", c.Input, c.Wave, c.Alike))
	}
	want := []string{
		"many0 unchanged 3", "lone unchanged 1", "many1 unchanged 3", "many2 unchanged 3", "zasks unchanged 1", // a change of behaviour concerns it
		"fixed fixed-by-upgrade 1", "warned warned 1", "unknown unknown 1",
		"bites new-risk 1", "risk-medium new-risk 1", "risk-critical new-risk 1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	order := f.Order()
	if !strings.Contains(order[0].Why, "it speaks for 3 hosts") || !strings.Contains(order[3].Why, "a host with the same disks goes before it") {
		t.Errorf("why: %q, %q", order[0].Why, order[3].Why)
	}
}

// Of several targets the worst counts.
func TestCanaryOfSeveralTargets(t *testing.T) {
	var f audit.Fleet
	for _, class := range []audit.Class{audit.Unchanged, audit.NewRisk, audit.Unknown} {
		f.Add(audit.Canary{Input: "a"}, fleetReport("A", class, map[audit.Class]quirks.Severity{audit.NewRisk: quirks.High}[class]))
		f.Add(audit.Canary{Input: "b"}, fleetReport("A", audit.Unchanged, ""))
	}
	order := f.Order()
	if len(order) != 2 || order[0].Input != "b" || order[1].Wave != audit.WaveRisk || !strings.Contains(order[1].Why, "high") {
		t.Errorf("%+v", order)
	}
}
