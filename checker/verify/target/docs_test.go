package target

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"testing"
)

// TestDocumentedCodes: docs/verify.md has a row for each refusal, and for no
// others, and names each question.
func TestDocumentedCodes(t *testing.T) {
	doc, err := os.ReadFile("../../../docs/verify.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("interlock.go")
	if err != nil {
		t.Fatal(err)
	}
	find := func(re string, b []byte) (out []string) {
		for _, m := range regexp.MustCompile(re).FindAllSubmatch(b, -1) {
			out = append(out, string(m[1]))
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	_, decide, ok := bytes.Cut(source, []byte("\nfunc Decide("))
	if !ok {
		t.Fatal("no Decide")
	}
	decide, _, _ = bytes.Cut(decide, []byte("\n// Class sorts signatures"))
	codes := find(`(?:\tadd\(|Code: )"([a-z-]+[a-z])"`, decide)
	if len(codes) < 20 {
		t.Fatalf("found the codes %v", codes)
	}
	_, table, _ := bytes.Cut(doc, []byte("\n## What is refused\n"))
	table, _, _ = bytes.Cut(table, []byte("\n## "))
	if got := find("(?m)^\\| `([a-z-]+[a-z])` \\|", table); !slices.Equal(got, codes) {
		t.Errorf("documented %v\nin the code %v", got, codes)
	}
	for _, w := range whether {
		if !regexp.MustCompile(`\b` + regexp.QuoteMeta(string(w.q)) + `\b`).Match(table) {
			t.Errorf("the question %s is not named", w.q)
		}
	}
}
