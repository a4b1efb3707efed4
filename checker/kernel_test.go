package checker_test

import (
	"os"
	"strings"
	"testing"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// TestEveryKnownKernelFaultIsCovered holds the list of faults and changes of
// kernels that were collected against the database: each is an entry's alias, or
// the list says what speaks of it instead.
func TestEveryKnownKernelFaultIsCovered(t *testing.T) {
	text, err := os.ReadFile("testdata/kernel_faults.tsv")
	if err != nil {
		t.Fatal(err)
	}
	db := builtin(t)
	seen := map[string]bool{}
	for _, line := range strings.Split(strings.TrimRight(string(text), "\n"), "\n") {
		id, where, ok := strings.Cut(line, "\t")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		if seen[id] {
			t.Errorf("%s is listed twice", id)
		}
		seen[id] = true
		e, has := db.Entry(id)
		how, names, _ := strings.Cut(where, " ")
		switch {
		case has && where != "":
			t.Errorf("%s is a name of %s, and the list says %q", id, e.ID, where)
		case has:
		case how == "check":
			if _, ok := checker.BuiltinOf(names); !ok {
				t.Errorf("%s: no built-in check %q", id, names)
			}
		case how == "entry":
			for _, name := range strings.Fields(names) {
				if e, ok := db.Entry(name); !ok || e.ID != name {
					t.Errorf("%s: no entry %s", id, name)
				}
			}
		case how == "none" && names != "":
		default:
			t.Errorf("%s: no entry has it as an alias, and the list says %q", id, where)
		}
	}
	if len(seen) != 78 {
		t.Errorf("%d faults listed, want 78", len(seen))
	}
}

// TestEveryKernelEntryHasHosts wants of each entry about kernels a host that
// meets the fault and one that does not, both with their release.
func TestEveryKernelEntryHasHosts(t *testing.T) {
	n := 0
	for _, e := range builtin(t).Entries() {
		if e.Folder() != "kernel" || e.Withdrawn != "" {
			continue
		}
		n++
		if e.Kernel == nil || len(e.Kernel.Range) == 0 {
			t.Errorf("%s: no kernel.range", e.ID)
		}
		with, without := 0, 0
		for i := range e.Examples.Match {
			if sub := &e.Examples.Match[i].Subject; sub.Kernel.Known() && e.Match(sub).Truth != quirks.False {
				with++
			}
		}
		for i := range e.Examples.NoMatch {
			if sub := &e.Examples.NoMatch[i].Subject; sub.Kernel.Known() && e.Match(sub).Truth == quirks.False {
				without++
			}
		}
		if with == 0 || without == 0 {
			t.Errorf("%s: %d hosts with the fault, %d without, of a known release", e.ID, with, without)
		}
	}
	if n < 30 {
		t.Fatalf("only %d entries about kernels", n)
	}
}
