package quirks

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "rewrite the expected faults of testdata/lint")

const wantFile = "want" // of a case: its faults, one a line

func lintCases(t *testing.T) []string {
	t.Helper()
	cases, err := filepath.Glob("testdata/lint/*.txtar")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no case in testdata/lint: %v", err)
	}
	return cases
}

// TestLintCases runs every archive of testdata/lint: entry files, those of
// against/ as the set to match against, and the faults expected. The comment
// may hold lines "pad FILE BYTES", which make a file longer than is good to
// store.
func TestLintCases(t *testing.T) {
	for _, file := range lintCases(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			ar, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			tree, below := fstest.MapFS{}, fstest.MapFS{}
			want := -1
			for i, f := range ar.Files {
				if name, ok := strings.CutPrefix(f.Name, "against/"); ok {
					below[name] = &fstest.MapFile{Data: f.Data}
				} else if f.Name == wantFile {
					want = i
				} else {
					tree[f.Name] = &fstest.MapFile{Data: f.Data}
				}
			}
			for line := range strings.Lines(string(ar.Comment)) {
				if f := strings.Fields(line); len(f) == 3 && f[0] == "pad" {
					n, err := strconv.Atoi(f[2])
					if err != nil || tree[f[1]] == nil {
						t.Fatalf("%s: %s", file, line)
					}
					tree[f[1]].Data = fmt.Appendf(tree[f[1]].Data, "#%s\n", strings.Repeat("x", n))
				}
			}
			if len(tree) == 0 || want < 0 {
				t.Fatalf("%s: want entry files and a file %s", file, wantFile)
			}
			var against *Set
			if len(below) > 0 {
				var faults []Fault
				if against, faults = Load(below); len(faults) > 0 {
					t.Fatalf("%s: against: %v", file, faults)
				}
			}
			var b strings.Builder
			for _, f := range Lint(tree, against) {
				b.WriteString(f.String() + "\n")
			}
			if *update {
				ar.Files[want].Data = []byte(b.String())
				if err := os.WriteFile(file, txtar.Format(ar), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(ar.Files[want].Data), b.String()); diff != "" {
				t.Errorf("%s: faults (-want +got):\n%s", file, diff)
			}
		})
	}
}

// TestLintCodesAreCovered: each code that LintCodes documents is shown by a
// case, and no case shows another. The checker gives example-verdict.
func TestLintCodesAreCovered(t *testing.T) {
	shown := map[string]int{}
	for _, file := range lintCases(t) {
		ar, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range ar.Files {
			if f.Name != wantFile {
				continue
			}
			for line := range strings.Lines(string(f.Data)) {
				line = strings.TrimSpace(line)
				shown[line[strings.LastIndex(line, "[")+1:len(line)-1]]++
			}
		}
	}
	codes := LintCodes()
	if len(codes) < 20 || !slices.IsSortedFunc(codes, func(a, b [2]string) int { return strings.Compare(a[0], b[0]) }) {
		t.Errorf("LintCodes() = %v, want all, sorted", codes)
	}
	for _, c := range codes {
		if c[1] == "" {
			t.Errorf("code %s has no meaning", c[0])
		}
		if shown[c[0]] == 0 && c[0] != "example-verdict" {
			t.Errorf("no case shows code %s", c[0])
		}
		delete(shown, c[0])
	}
	for c := range shown {
		t.Errorf("code %s is shown and not among LintCodes", c)
	}
}

func TestEmbeddedDatabaseLints(t *testing.T) {
	for _, f := range Lint(Embedded(), nil) {
		t.Error(f)
	}
	if files, _ := entryFiles(Embedded()); len(files) == 0 {
		t.Error("no entry files")
	}
	// An entry against the set it is in is not a duplicate of itself.
	for _, f := range Lint(Embedded(), builtin(t)) {
		t.Error(f)
	}
}

func TestLintOrderOfFilesDoesNotMatter(t *testing.T) {
	bad := func(id string) *fstest.MapFile {
		f := file(id, "M")
		f.Data = []byte(strings.Replace(string(f.Data), "hang", "bang", 1))
		return f
	}
	tree := fstest.MapFS{"scsi/scsi-a.yaml": bad("scsi-a"), "ata/ata-b.yaml": bad("ata-b"), "ata/ata-a.yaml": file("ata-a", "A")}
	first := Lint(tree, nil)
	if len(first) == 0 {
		t.Fatal("no faults")
	}
	for range 20 {
		if diff := cmp.Diff(first, Lint(tree, nil)); diff != "" {
			t.Fatalf("faults change (-first +again):\n%s", diff)
		}
	}
	if !slices.IsSortedFunc(first, func(a, b Fault) int { return strings.Compare(a.File, b.File) }) {
		t.Errorf("faults are not in the order of files: %v", first)
	}
}

func TestFaultString(t *testing.T) {
	for _, tt := range []struct {
		fault Fault
		want  string
	}{
		{Fault{"ata/a.yaml", 3, "match.any[0]", "is wrong", "pattern"}, "ata/a.yaml:3: match.any[0]: is wrong [pattern]"},
		{Fault{"ata/a.yaml", 0, "", "is wrong", "read"}, "ata/a.yaml: is wrong [read]"},
		{Fault{"ata/a.yaml", 3, "", "is wrong", "yaml"}, "ata/a.yaml:3: is wrong [yaml]"},
	} {
		if got := tt.fault.String(); got != tt.want {
			t.Errorf("%+v: got %q, want %q", tt.fault, got, tt.want)
		}
	}
}
