package quirks

import (
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

const mitigated = `match: {any: [{path: [libata, scsi]}]}
kernel:
  mitigated:
    - path: [libata]
      flag: [{name: OLD, until: "6.12"}, {name: MID, since: "6.12", until: "7.0"}, {name: NEW, since: "7.0"}]
      limits: {max_sectors: 1024}
      trees: [{tree: mainline, after: "3.19.8", by: "4.2.8"}, {tree: stable-4.1, absent_through: "4.1.9"}]
    - path: [usb-storage]
      flag: [{name: LISTED}]
      trees: [{tree: mainline, since: "4.9"}]
      holes: [{tree: mainline, after: "6.7", by: "6.12", to: null, why: "vendor of 8 characters"}]`

func TestProtects(t *testing.T) {
	for _, body := range []string{mitigated, reversed(mitigated)} {
		e := entryOf(t, body)
		for _, tt := range []struct {
			name, path, kernel string
			truth              Truth
			flag               string
			sectors            uint32
			why                string
		}{
			{"protected under its newest name", "libata", "7.3.4", True, "NEW", 1024, "mainline"},
			{"under the name between", "libata", "6.18.2", True, "MID", 1024, "mainline"},
			{"under its first name", "libata", "6.1.190", True, "OLD", 1024, "mainline"},
			{"before", "libata", "3.19", False, "OLD", 1024, "mainline"},
			{"between, where nobody looked", "libata", "4.0", Unknown, "OLD", 1024, "mainline"},
			{"its own tree, looked at and absent", "libata", "4.1.9", False, "OLD", 1024, "stable-4.1"},
			{"its own tree, later", "libata", "4.1.10", Unknown, "OLD", 1024, "stable-4.1"},
			{"another path", "scsi", "6.1.190", False, "", 0, "the kernel protects on"},
			{"listed and applied", "usb-storage", "6.1", True, "LISTED", 0, "mainline"},
			{"listed and not applied", "usb-storage", "6.12", False, "LISTED", 0, "listed but not applied: vendor of 8 characters"},
			{"kernel not known", "libata", "", Unknown, "OLD", 1024, "kernel release unknown"},
		} {
			sub := &Subject{Path: tt.path}
			if tt.kernel != "" {
				sub.Kernel = releaseOf(t, tt.kernel)
			}
			p := e.Protects(sub)
			if p.Truth != tt.truth || p.Flag != tt.flag || p.MaxSectors != tt.sectors || !strings.Contains(p.Why, tt.why) {
				t.Errorf("%s: path %s, kernel %q: got %+v, want %+v", tt.name, tt.path, tt.kernel, p, tt)
			}
		}
		if p := e.Protects(&Subject{Kernel: releaseOf(t, "6.1")}); p.Truth != Unknown || p.Why != "path not known" {
			t.Errorf("path not known: got %+v, want unknown", p)
		}
		if p := e.Protects(&Subject{Path: "libata", Kernel: releaseOf(t, "5.14.0-503.11.1.el9_5.x86_64")}); !p.Low {
			t.Errorf("a vendor's kernel: got %+v, want low certainty", p)
		}
	}
	if p := entryOf(t, "match: {any: [{path: [libata]}]}").Protects(&Subject{Path: "libata"}); p.Truth != False || p.Why == "" {
		t.Errorf("no protection stated: got %+v, want false", p)
	}
}

// reversed puts the last item of mitigated first.
func reversed(body string) string {
	head, items, _ := strings.Cut(body, "    - path: [libata]")
	first, second, _ := strings.Cut(items, "    - path: [usb-storage]")
	return head + "    - path: [usb-storage]" + second + "\n    - path: [libata]" + strings.TrimRight(first, "\n")
}

func releaseOf(t *testing.T, text string) kernel.Release {
	t.Helper()
	r, err := kernel.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestKernelFlags(t *testing.T) {
	e := entryOf(t, mitigated)
	for release, want := range map[string][]string{
		"3.19": nil, "6.1": {"OLD", "LISTED"}, "6.12": {"MID"}, "7.0": {"NEW"}, "4.0": nil, "7.3.4": {"NEW"},
	} {
		if got := e.KernelFlags(releaseOf(t, release)); !slices.Equal(got, want) {
			t.Errorf("kernel %s: flags %q, want %q", release, got, want)
		}
	}
	if got := e.KernelFlags(kernel.Release{}); len(got) > 0 {
		t.Errorf("kernel not known: flags %q, want none", got)
	}
	if got := entryOf(t, "match: {any: [{path: [libata]}]}").KernelFlags(releaseOf(t, "6.1")); len(got) > 0 {
		t.Errorf("no protection stated: flags %q, want none", got)
	}
}

func TestMaxSectors(t *testing.T) {
	for _, tt := range []struct {
		body string
		n    uint32
		ok   bool
	}{
		{"limits: {max_sectors: 8191}", 8191, true},
		{"want: [{knob: link_power, equal: max_performance}, {knob: max_sectors, at_most: 1024}]", 1024, true},
		{"limits: {max_sectors: 15}\nwant: [{knob: max_sectors, at_most: 1024}]", 15, true},
		{"want: [{knob: max_sectors, at_least: 1024}]", 0, false},
		{"want: [{knob: max_sectors, at_most: 4294967295}]", 1<<32 - 1, true},
		{"want: [{knob: max_sectors, at_most: 4294967296}]", 0, false},
		{"want: [{knob: max_sectors, at_most: 0}]", 0, false},
		{"want: [{knob: queue_depth, at_most: 1}]", 0, false},
		{"details: none", 0, false},
	} {
		n, ok := entryOf(t, "match: {any: [{path: [libata]}]}\n"+tt.body).MaxSectors()
		if n != tt.n || ok != tt.ok {
			t.Errorf("%s: MaxSectors() = %d, %t; want %d, %t", tt.body, n, ok, tt.n, tt.ok)
		}
	}
}

func TestSeverityRank(t *testing.T) {
	order := []Severity{"", Info, Low, Medium, High, Critical}
	for i, s := range order {
		if s.Rank() != i {
			t.Errorf("rank of %q is %d, want %d", s, s.Rank(), i)
		}
	}
}

func TestPatternsRoundTripThroughYAML(t *testing.T) {
	for _, text := range []string{`"0104"`, `["1E10", "a: b", "*"]`, `"A\\B\"C"`} {
		var p, again Patterns
		if err := yaml.Unmarshal([]byte(text), &p); err != nil {
			t.Fatal(err)
		}
		out, err := yaml.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(out, &again); err != nil || again.String() != p.String() {
			t.Errorf("%s: written as %s, read as %s, %v", text, out, again, err)
		}
	}
}

func TestScalarKeepsItsText(t *testing.T) {
	for text, want := range map[string]string{"0104": "0104", "1E10": "1E10", "true": "true", `"x y"`: "x y", "65536": "65536"} {
		var s Scalar
		if err := yaml.Unmarshal([]byte(text), &s); err != nil || s.String() != want {
			t.Errorf("%s: got %q, %v; want %q", text, s, err, want)
		}
	}
	if err := yaml.Unmarshal([]byte("[1]"), new(Scalar)); err == nil {
		t.Error("a list is taken for a scalar")
	}
}
