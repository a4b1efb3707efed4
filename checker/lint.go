package checker

import (
	"fmt"

	"github.com/quirkcheck/quirkcheck/quirks"
)

// LintExamples executes the verdicts that examples expect, each against its
// own entry; quirks.Lint has executed their truth.
func LintExamples(entries []*quirks.Entry) []quirks.Fault {
	var faults []quirks.Fault
	for _, e := range entries {
		check := func(kind string, list []quirks.Example) {
			for i := range list {
				ex := &list[i]
				if ex.Expect == "" {
					continue
				}
				if got := VerdictOf(&ex.Subject, e); string(got) != ex.Expect {
					faults = append(faults, quirks.Fault{File: e.File(), Line: 0, Field: fmt.Sprintf("examples.%s[%d].expect", kind, i),
						Message: fmt.Sprintf("want %s, got %s", ex.Expect, got), Code: "example-verdict"})
				}
			}
		}
		check("match", e.Examples.Match)
		check("no_match", e.Examples.NoMatch)
	}
	return faults
}

// VerdictOf is the verdict of one entry on one subject, NotAffected where it
// does not match.
func VerdictOf(sub *quirks.Subject, e *quirks.Entry) Verdict {
	m := e.Match(sub)
	if m.Truth == quirks.False {
		return NotAffected
	}
	return finding(sub, m).Verdict
}
