package kernel_test

import (
	"strings"
	"testing"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

func TestTruth(t *testing.T) {
	for truth, want := range map[kernel.Truth]struct {
		text string
		not  kernel.Truth
	}{
		kernel.False:   {"false", kernel.True},
		kernel.Unknown: {"unknown", kernel.Unknown},
		kernel.True:    {"true", kernel.False},
	} {
		if truth.String() != want.text || truth.Not() != want.not {
			t.Errorf("%d: String %q, Not %v, want %q, %v", truth, truth, truth.Not(), want.text, want.not)
		}
	}
	if !(kernel.False < kernel.Unknown && kernel.Unknown < kernel.True) {
		t.Error("the order of the answers does not make minimum a conjunction")
	}
}

func TestRowCheck(t *testing.T) {
	for _, c := range []struct {
		name string
		row  kernel.Row
		want string // part of the error, "" for none
	}{
		{"mainline since", kernel.Row{Tree: "mainline", Since: "6.19"}, ""},
		{"stable absent through", kernel.Row{Tree: "stable-6.18", AbsentThrough: "6.18.44"}, ""},
		{"bracket", kernel.Row{Tree: "mainline", After: "4.4", By: "4.9"}, ""},
		{"vendor tree", kernel.Row{Tree: "rhel", Since: "5.14"}, ""},
		{"never needs nothing else", kernel.Row{Tree: "stable-6.1", Never: true}, ""},
		{"range within a branch", kernel.Row{Tree: "stable-6.1", Since: "6.1", Until: "6.1.5"}, ""},
		{"range with a bracket backwards", kernel.Row{Tree: "mainline", By: "6.12", Until: "6.12"}, "empty range"},
		{"through is no version", kernel.Row{Tree: "mainline", Since: "6.1", Through: "x"}, "through: "},
		{"tree that nobody has", kernel.Row{Tree: "linus", Since: "6.1"}, `tree "linus"`},
		{"empty tree", kernel.Row{Since: "6.1"}, `tree ""`},
		{"tree of a point release", kernel.Row{Tree: "stable-6.1.5", Since: "6.1"}, "want stable-X.Y"},
		{"tree of a candidate", kernel.Row{Tree: "stable-6.1-rc1", Since: "6.1"}, "want stable-X.Y"},
		{"tree without number", kernel.Row{Tree: "stable-", Since: "6.1"}, "want stable-X.Y"},
		{"vendor's own spelling as tree is none", kernel.Row{Tree: "debian", Since: "6.1"}, `tree "debian"`},
		{"says nothing", kernel.Row{Tree: "mainline"}, "says nothing"},
		{"a series that may have it", kernel.Row{Tree: "stable-5.6", StartUnknown: true}, ""},
		{"neither start nor end", kernel.Row{Tree: "mainline", StartUnknown: true}, "says nothing"},
		{"since is no version", kernel.Row{Tree: "mainline", Since: "soon"}, "since: "},
		{"until is no version", kernel.Row{Tree: "mainline", Since: "6.1", Until: "x"}, "until: "},
		{"after is no version", kernel.Row{Tree: "mainline", After: "x"}, "after: "},
		{"by is no version", kernel.Row{Tree: "mainline", By: "x"}, "by: "},
		{"absent_through is no version", kernel.Row{Tree: "mainline", AbsentThrough: "6.1-foo"}, "absent_through: "},
		{"range backwards", kernel.Row{Tree: "mainline", Since: "6.2", Until: "6.1"}, "empty range"},
		{"range of nothing", kernel.Row{Tree: "mainline", Since: "6.2", Until: "6.2"}, "empty range"},
		{"bracket backwards", kernel.Row{Tree: "mainline", After: "6.12", By: "6.7"}, "empty range"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.row.Check()
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%+v.Check() = %v, want %q", c.row, err, c.want)
			}
		})
	}
}

func TestHoleCheck(t *testing.T) {
	for _, c := range []struct {
		name string
		hole kernel.Hole
		want string
	}{
		{"bracketed and open", kernel.Hole{Tree: "mainline", After: "6.7", By: "6.12"}, ""},
		{"closed", kernel.Hole{Tree: "stable-6.12", By: "6.12", To: "6.12.40"}, ""},
		{"without a start", kernel.Hole{Tree: "mainline", To: "6.12"}, "want after, by or both"},
		{"start is no version", kernel.Hole{Tree: "mainline", By: "x"}, "by: "},
		{"bracket backwards", kernel.Hole{Tree: "mainline", After: "6.12", By: "6.7"}, "empty range"},
	} {
		err := c.hole.Check()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: Check() = %v, want %q", c.name, err, c.want)
		}
	}
}

func TestCarries(t *testing.T) {
	const f, u, y = kernel.False, kernel.Unknown, kernel.True
	mainline := []kernel.Row{{Tree: "mainline", Since: "6.19"}}
	backported := []kernel.Row{{Tree: "mainline", Since: "6.19"}, {Tree: "stable-6.18", Since: "6.18.20"}, {Tree: "stable-6.12", Never: true}}
	looked := []kernel.Row{{Tree: "mainline", Since: "6.19"}, {Tree: "stable-6.18", AbsentThrough: "6.18.44"}}
	bracket := []kernel.Row{{Tree: "mainline", After: "4.4", By: "4.9"}}
	removed := []kernel.Row{{Tree: "mainline", Since: "4.0", Until: "6.2"}}
	onlyUntil := []kernel.Row{{Tree: "mainline", Until: "6.2"}}
	onlyBy := []kernel.Row{{Tree: "mainline", By: "6.2"}}
	onlyAfter := []kernel.Row{{Tree: "mainline", After: "6.2"}}
	vendor := []kernel.Row{{Tree: "mainline", Since: "6.19"}, {Tree: "rhel", Since: "5.14"}}
	through := []kernel.Row{{Tree: "mainline", Since: "6.2", Until: "6.9"}, {Tree: "stable-6.6", Since: "6.6", Through: "6.6.30"}}
	gap := []kernel.Row{{Tree: "stable-6.1", Since: "6.1.10", Until: "6.1.50"}, {Tree: "stable-6.1", Since: "6.1.80"}}
	fault := []kernel.Row{{Tree: "mainline", Since: "6.9", Until: "6.12", Fault: true}, {Tree: "stable-6.1", Since: "6.1.53", Until: "6.1.69", Fault: true}}
	bracketed := []kernel.Row{{Tree: "mainline", After: "6.7", By: "6.12", Until: "7.2", Fault: true}}
	openFault := []kernel.Row{{Tree: "mainline", Since: "6.9", Fault: true}}
	noStart := []kernel.Row{{Tree: "mainline", StartUnknown: true, Until: "6.8", Fault: true}}
	noStartAfter := []kernel.Row{{Tree: "mainline", StartUnknown: true, After: "5.4", Until: "6.8", Fault: true}}
	for _, c := range []struct {
		name    string
		rows    []kernel.Row
		release string
		want    kernel.Truth
		low     bool
		own     bool
	}{
		{"mainline has it at the release itself", mainline, "6.19", y, false, true},
		{"mainline has it later", mainline, "7.1", y, false, true},
		{"mainline before it", mainline, "6.18", f, false, true},
		{"candidate of the release is before it", mainline, "6.19-rc5", f, false, true},
		{"stable branch that began after it", mainline, "7.0.3", y, false, false},
		{"stable point of the release's branch", mainline, "6.19.4", y, false, false},
		{"older stable branch may have a backport", mainline, "6.18.15", u, false, false},
		{"Debian follows stable", mainline, "6.12.94+deb13-amd64", u, false, false},
		{"backport reached", backported, "6.18.20", y, false, true},
		{"backport not reached", backported, "6.18.19", f, false, true},
		{"backport never came", backported, "6.12.117", f, false, true},
		{"mainline release between does not ask the stable tree", backported, "6.17", f, false, true},
		{"looked for and absent", looked, "6.18.44", f, false, true},
		{"nobody looked later", looked, "6.18.45", u, false, true},
		{"bracket: before", bracket, "4.4", f, false, true},
		{"bracket: between", bracket, "4.6", u, false, true},
		{"bracket: after", bracket, "4.9", y, false, true},
		{"removed: before", removed, "6.1", y, false, true},
		{"removed: at the release", removed, "6.2", f, false, true},
		{"removed: not there yet", removed, "3.19", f, false, true},
		{"only the end is known", onlyUntil, "6.1", y, false, true},
		{"only a sighting: before it", onlyBy, "6.1", u, false, true},
		{"only a sighting: at it", onlyBy, "6.2", y, false, true},
		{"only an absence: at it", onlyAfter, "6.2", f, false, true},
		{"only an absence: later", onlyAfter, "6.3", u, false, true},
		{"seen in this one", through, "6.6.30", y, false, true},
		{"nobody looked at a later one", through, "6.6.31", u, false, true},
		{"hidden point release, perhaps a later one", through, "6.6.0-5-amd64", u, false, true},
		{"two stretches: in the first", gap, "6.1.10", y, false, true},
		{"two stretches: between", gap, "6.1.60", f, false, true},
		{"two stretches: in the second", gap, "6.1.80", y, false, true},
		{"two stretches: hidden point release", gap, "6.1.0-54-amd64", u, false, true},
		{"vendor row decides", vendor, "5.14.0-427.13.1.el9_4.x86_64", y, false, true},
		{"vendor without a row: mainline, low", vendor, "6.8.0-45-generic", f, true, false},
		{"vendor without a row, newer: mainline, low", vendor, "6.19.0-5-generic", y, true, false},
		{"vendor that picks does not ask the stable tree", backported, "6.18.20-1-default", f, true, false},
		{"no row for this branch or mainline", []kernel.Row{{Tree: "stable-6.1", Since: "6.1"}}, "6.6.5", u, false, false},
		{"no rows at all", nil, "6.6.5", u, false, false},
		{"fault: mainline before it", fault, "6.8", f, false, true},
		{"fault: mainline with it", fault, "6.11", y, false, true},
		{"fault: mainline with the fix", fault, "6.12", f, false, true},
		{"fault: a stable branch that began before it", fault, "6.6.50", f, false, false},
		{"fault: a stable branch that began with it may have the fix", fault, "6.10.3", u, false, false},
		{"fault: a stable branch that began with the fix", fault, "6.12.40", f, false, false},
		{"fault: brought by a backport", fault, "6.1.60", y, false, true},
		{"fault: the backport was fixed", fault, "6.1.69", f, false, true},
		{"fault: a vendor's kernel is mainline's, low", fault, "6.11.0-45-generic", y, true, false},
		{"fault in a bracket: a stable branch before it", bracketed, "6.6.50", f, false, false},
		{"fault in a bracket: a stable branch within", bracketed, "6.8.3", u, false, false},
		{"fault in a bracket: a stable branch after it may have the fix", bracketed, "6.12.3", u, false, false},
		{"fault without a fix: a stable branch that began after it", openFault, "6.12.40", y, false, false},
		{"start unknown: before the fix", noStart, "6.7", u, false, true},
		{"start unknown: with the fix", noStart, "6.8", f, false, true},
		{"start unknown: older stable branch", noStart, "5.15.20", u, false, false},
		{"start unknown after a release: at it", noStartAfter, "5.4", f, false, true},
		{"start unknown after a release: later", noStartAfter, "5.5", u, false, true},
		{"row that does not parse", []kernel.Row{{Tree: "mainline", Since: "x"}}, "6.6", u, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := kernel.Carries(c.rows, mustParse(t, c.release))
			if got.Truth != c.want || got.Low != c.low || got.Own != c.own || got.Why == "" {
				t.Errorf("Carries(%v, %s) = %+v, want %v, low %v, own %v and a reason", c.rows, c.release, got, c.want, c.low, c.own)
			}
		})
	}
	if got := kernel.Carries(mainline, kernel.Release{}); got.Truth != u || got.Why == "" {
		t.Errorf("Carries of an unknown release = %+v, want unknown with a reason", got)
	}
}

// The rows of quirks/scsi/scsi-synology-iscsi-storage-misreport.yaml: the
// kernel's own list names the target, and stopped to find it.
func TestAppliesWithAHole(t *testing.T) {
	rows := []kernel.Row{
		{Tree: "mainline", After: "4.4", By: "4.9"},
		{Tree: "stable-6.1", Since: "6.1"},
		{Tree: "stable-5.10", Since: "5.10"},
	}
	holes := []kernel.Hole{{Tree: "mainline", After: "6.7", By: "6.12", Why: "scsi-devinfo-8char-vendor"}}
	for _, c := range []struct {
		name    string
		release string
		want    kernel.Truth
		low     bool
		why     string
	}{
		{"booted and protected", "6.1.190", kernel.True, false, "stable-6.1"},
		{"Debian 12, point hidden, all of the branch is protected", "6.1.0-54-amd64", kernel.True, false, "stable-6.1"},
		{"booted and protected on 5.10", "5.10.223", kernel.True, false, "stable-5.10"},
		{"booted and not protected", "6.12.117", kernel.False, false, "scsi-devinfo-8char-vendor"},
		{"booted and not protected on 7.3", "7.3.4", kernel.False, false, "scsi-devinfo-8char-vendor"},
		{"mainline before the hole", "6.7", kernel.True, false, "mainline"},
		{"mainline in the bracket", "6.9", kernel.Unknown, false, "not known"},
		{"stable branch before the hole, backport possible", "6.6.60", kernel.Unknown, false, "not known"},
		{"stable branch in the bracket", "6.11.3", kernel.Unknown, false, "not known"},
		{"before the list had it", "4.4", kernel.False, false, "mainline"},
		{"vendor kernel: mainline's answer, low", "5.14.0-427.13.1.el9_4.x86_64", kernel.True, true, "mainline"},
		{"vendor kernel in the hole, low", "6.14.0-32-generic", kernel.False, true, "scsi-devinfo-8char-vendor"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := kernel.Applies(rows, holes, mustParse(t, c.release))
			if got.Truth != c.want || got.Low != c.low || !strings.Contains(got.Why, c.why) {
				t.Errorf("Applies(%s) = %+v, want %v, low %v, because of %q", c.release, got, c.want, c.low, c.why)
			}
		})
	}
}

func TestAppliesClosedHole(t *testing.T) {
	rows := []kernel.Row{{Tree: "mainline", Since: "4.9"}}
	holes := []kernel.Hole{{Tree: "stable-6.12", By: "6.12", To: "6.12.40"}, {Tree: "mainline", After: "6.9", By: "6.10", To: "6.16"}}
	for release, want := range map[string]kernel.Truth{
		"6.9": kernel.True, "6.10": kernel.False, "6.12.39": kernel.False, "6.12.40": kernel.True, "6.16": kernel.True,
		"4.8": kernel.False, "6.12.0-5-amd64": kernel.Unknown,
	} {
		if got := kernel.Applies(rows, holes, mustParse(t, release)); got.Truth != want {
			t.Errorf("Applies(%s) = %+v, want %v", release, got, want)
		}
	}
	if got, want := kernel.Applies(rows, nil, mustParse(t, "6.10")), kernel.True; got.Truth != want {
		t.Errorf("Applies without holes = %+v, want %v", got, want)
	}
}

func TestRowString(t *testing.T) {
	for want, row := range map[string]kernel.Row{
		"mainline since 6.19":                {Tree: "mainline", Since: "6.19"},
		"stable-6.18 absent through 6.18.44": {Tree: "stable-6.18", AbsentThrough: "6.18.44"},
		"stable-6.12 never":                  {Tree: "stable-6.12", Never: true},
		"stable-6.6 since 6.6 through 6.6.9": {Tree: "stable-6.6", Since: "6.6", Through: "6.6.9"},
		"mainline after 4.4 by 4.9":          {Tree: "mainline", After: "4.4", By: "4.9"},
	} {
		if got := row.String(); got != want {
			t.Errorf("%+v.String() = %q, want %q", row, got, want)
		}
	}
}
