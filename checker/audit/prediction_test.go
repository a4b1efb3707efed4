package audit

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/probe/capture"
	"github.com/quirkcheck/quirkcheck/quirks"
)

var update = flag.Bool("update", false, "rewrite the tables of docs/prediction.md")

// matrixDir holds a capture of each kernel of the matrix; see its README.
const matrixDir = "testdata/matrix"

// A shot is one boot of the matrix.
type shot struct {
	release string // as the file's name has it
	boot    string // 80c, plain
	host    *Host
	devices map[string]*device // by key
}

func shots(t *testing.T) []shot {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(matrixDir, "*.json.gz"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no captures in %s: %v", matrixDir, err)
	}
	db, faults := quirks.Builtin()
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	var all []shot
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		c, err := capture.Read(bytes.NewReader(b))
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		machine := c.FS()
		inv, err := probe.Read(context.Background(), machine, probe.Options{})
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		s := shot{devices: map[string]*device{}, host: New(inv, db, checker.Policy{}, Options{Predict: kernel.Predict})}
		s.release, s.boot, _ = strings.Cut(strings.TrimSuffix(filepath.Base(f), ".json.gz"), "-")
		if got := inv.Kernel.V.Upstream(); got != s.release {
			t.Errorf("%s is of Linux %s", f, got)
		}
		links, err := fs.ReadDir(machine, "dev/disk/by-id")
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		for _, l := range links {
			key, ok := strings.CutPrefix(l.Name(), "matrix-")
			if !ok {
				continue
			}
			name, err := probe.ResolveName(machine, "/dev/disk/by-id/"+l.Name())
			if err != nil {
				t.Fatalf("%s: %s: %v", f, key, err)
			}
			d := s.host.byName[name]
			if d == nil {
				t.Fatalf("%s: %s leads to %s, which is not read", f, key, name)
			}
			s.devices[key] = d
		}
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b shot) int {
		c, _ := kernel.Compare(a.host.From(), b.host.From())
		return cmpOr(c, strings.Compare(a.boot, b.boot))
	})
	return all
}

func cmpOr(a, b int) int {
	if a != 0 {
		return a
	}
	return b
}

// tally counts comparisons.
type tally struct{ equal, apart, apartEqual int }

// hides tells a value that somebody set and that cannot be told from the
// kernel's own: they are equal.
func hides(key string, d *device) bool {
	return strings.HasPrefix(key, "USER") && !d.user.differs
}

// TestPredictionMatrix predicts from the capture of each kernel what each other
// kernel then showed of the same devices, for three values. Where the capture
// has all that the rules ask, nothing may differ; where something is missing
// the prediction says so, and is counted apart.
func TestPredictionMatrix(t *testing.T) {
	all := shots(t)
	if len(all) < 12 {
		t.Errorf("%d captures, want two of each of six kernels", len(all))
	}
	counts := map[[2]string]*tally{}
	missing, exercised, keys := map[string]int{}, map[string]int{}, map[string]bool{}
	hidden := map[string]bool{}
	for _, a := range all {
		for _, b := range all {
			if a.boot != b.boot {
				continue
			}
			n := counts[[2]string{a.release, b.release}]
			if n == nil {
				n = &tally{}
				counts[[2]string{a.release, b.release}] = n
			}
			then := a.host.at(b.host.From())
			for key, d := range a.devices {
				other := b.devices[key]
				if other == nil {
					continue // this kernel has no driver for it
				}
				keys[key] = true
				p, seen := then[d.name].predict, other.inputs.Observed
				certain := p.Certainty == kernel.High || p.Certainty == kernel.SourceOnly
				if certain && hides(key, d) {
					hidden[key] = true
					continue
				}
				if certain {
					for _, r := range p.Rules {
						exercised[r]++
					}
				}
				for _, m := range p.Missing {
					missing[m.Input]++
				}
				for _, v := range []struct {
					what      string
					got, want kernel.Num
				}{
					{"max_sectors_kb", p.MaxSectorsKB, seen.MaxSectorsKB}, {"max_hw_sectors_kb", p.MaxHWSectorsKB, seen.MaxHWSectorsKB}, {"optimal_io_size", p.OptimalIOSize, seen.OptimalIOSize},
				} {
					same := v.got == v.want
					switch {
					case !certain && len(p.Missing) == 0:
						t.Errorf("%s from %s to %s: certainty %s, and nothing is said to be missing", key, a.release, b.release, p.Certainty)
					case !certain:
						n.apart++
						if same {
							n.apartEqual++
						}
					case same:
						n.equal++
					default:
						t.Errorf("%s (%s, %s): %s from %s to %s: predicted %s by %s (%s), shown %s", key, d.name, a.boot, v.what, a.release, b.release,
							shown(v.got), p.Rule, p.Certainty, shown(v.want))
					}
				}
			}
		}
	}
	if len(keys) < 20 {
		t.Errorf("%d devices, want at least 20", len(keys))
	}
	for _, r := range kernel.Rules() {
		if booted := exercised[r.ID] > 0; booted != r.Booted {
			t.Errorf("rule %s: marked booted %v, and a certain prediction of the matrix used it %d times", r.ID, r.Booted, exercised[r.ID])
		}
	}
	var releases []string
	for _, s := range all {
		if !slices.Contains(releases, s.release) {
			releases = append(releases, s.release)
		}
	}
	compareDoc(t, "matrix", matrixTable(releases, counts, keys, hidden))
	compareDoc(t, "missing", missingTable(missing))
	compareDoc(t, "rules", rulesTable(exercised))
}

func shown(n kernel.Num) string {
	if !n.Known {
		return "unknown"
	}
	return fmt.Sprint(n.V)
}

func matrixTable(releases []string, counts map[[2]string]*tally, keys, hidden map[string]bool) string {
	var b strings.Builder
	sum := tally{}
	fmt.Fprintf(&b, "| capture of | %s |\n|%s\n", strings.Join(releases, " | "), strings.Repeat(" --- |", len(releases)+1))
	for _, from := range releases {
		fmt.Fprintf(&b, "| %s |", from)
		for _, to := range releases {
			n := counts[[2]string{from, to}]
			if n == nil {
				fmt.Fprint(&b, " |")
				continue
			}
			fmt.Fprintf(&b, " %d", n.equal)
			if n.apart > 0 {
				fmt.Fprintf(&b, " (%d of %d)", n.apartEqual, n.apart)
			}
			fmt.Fprint(&b, " |")
			sum.equal, sum.apart, sum.apartEqual = sum.equal+n.equal, sum.apart+n.apart, sum.apartEqual+n.apartEqual
		}
		fmt.Fprintln(&b)
	}
	fmt.Fprintf(&b, "\n%d devices; %d values compared with nothing missing, 0 differ; %d with an input missing, of which %d are equal all the same.\n",
		len(keys), sum.equal, sum.apart, sum.apartEqual)
	if len(hidden) > 0 {
		fmt.Fprintf(&b, "Not compared from a kernel under which the value that somebody set is the kernel's own: %s.\n", strings.Join(slices.Sorted(maps.Keys(hidden)), ", "))
	}
	return b.String()
}

func missingTable(missing map[string]int) string {
	var b strings.Builder
	fmt.Fprint(&b, "| missing | predictions |\n| --- | --- |\n")
	for _, m := range slices.Sorted(maps.Keys(missing)) {
		fmt.Fprintf(&b, "| %s | %d |\n", m, missing[m])
	}
	return b.String()
}

func rulesTable(exercised map[string]int) string {
	var b strings.Builder
	fmt.Fprint(&b, "| rule | releases | what it does | read in | booted |\n| --- | --- | --- | --- | --- |\n")
	for _, r := range kernel.Rules() {
		booted := "source only"
		if r.Booted {
			booted = fmt.Sprintf("%d predictions", exercised[r.ID])
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s |\n", r.ID, r.Releases, r.Does, r.Source, booted)
	}
	return b.String()
}

// compareDoc holds a generated part of docs/prediction.md, between two comments
// of its name, against what the test found.
func compareDoc(t *testing.T, name, want string) {
	t.Helper()
	const file = "../../docs/prediction.md"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	re := regexp.MustCompile(`(?s)(<!-- generated: ` + name + ` -->\n)(.*?)(<!-- end -->)`)
	m := re.FindSubmatch(text)
	if m == nil {
		t.Fatalf("%s has no part %q", file, name)
	}
	if *update {
		out := re.ReplaceAllFunc(text, func([]byte) []byte { return slices.Concat(m[1], []byte(want), m[3]) })
		if err := os.WriteFile(file, out, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want, string(m[2])); diff != "" {
		t.Errorf("%s, part %s, is not what the test finds (go test ./checker/audit -run TestPredictionMatrix -update writes it) (-want +got):\n%s", file, name, diff)
	}
}
