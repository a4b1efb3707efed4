package checker

import (
	"cmp"
	"slices"
	"strings"

	"github.com/quirkcheck/quirkcheck/quirks"
)

// NearMiss is an entry that does not match and came close.
type NearMiss struct {
	Match  quirks.Match
	Failed []quirks.Predicate // those that answered false, at least one
}

// nearSame is how many characters a name must share from its start with one
// that an entry asks for, to be worth telling: fewer are a maker's prefix.
const nearSame = 6

// Near returns the entries that nearly match: the disk's or the adapter's own
// name fits and something else does not, or the name differs only at its end.
// Nearest first, then by id.
func Near(sub *quirks.Subject, db *quirks.Set) []NearMiss {
	var out []NearMiss
	for _, e := range db.Entries() {
		m := e.Match(sub)
		if m.Truth != quirks.False {
			continue
		}
		n := NearMiss{Match: m}
		named, alike := false, false
		for _, p := range m.Predicates {
			name := slices.Contains([]string{"device.model", "device.product", "usb.id", "adapter.pci"}, p.Key)
			switch {
			case p.Truth == quirks.False:
				n.Failed = append(n.Failed, p)
				alike = alike || name && startsAlike(p.Got, p.Want)
			case p.Truth == quirks.True && name:
				named = true
			}
		}
		// An alike name is near only where the rest fits: else it is another disk.
		if named || alike && len(n.Failed) == 1 {
			out = append(out, n)
		}
	}
	slices.SortStableFunc(out, func(a, b NearMiss) int {
		return cmp.Or(cmp.Compare(len(a.Failed), len(b.Failed)), strings.Compare(a.Match.Entry.ID, b.Match.Entry.ID))
	})
	return out
}

// startsAlike compares a name with the patterns of a predicate's Want, up to
// their first wildcard.
func startsAlike(got, want string) bool {
	got = strings.TrimSuffix(got, "...")
	for pattern := range strings.SplitSeq(want, " | ") {
		if i := strings.IndexAny(pattern, "*?["); i >= 0 {
			pattern = pattern[:i]
		}
		n := 0
		for n < len(got) && n < len(pattern) && got[n] == pattern[n] {
			n++
		}
		if n >= nearSame {
			return true
		}
	}
	return false
}

// JudgeCheck runs one built-in check on a subject; ok is false where it has
// nothing to say.
func JudgeCheck(sub *quirks.Subject, db *quirks.Set, p Policy, id string) (f Finding, ok bool) {
	j := Judge(sub, db, p)
	i := slices.IndexFunc(j.Findings, func(f Finding) bool { return f.Quirk == id })
	if i < 0 {
		return Finding{}, false
	}
	return j.Findings[i], true
}

// Explain is what one entry says about a subject, with every predicate, also
// where it does not match.
func Explain(sub *quirks.Subject, e *quirks.Entry, p Policy) (quirks.Match, Finding) {
	m := e.Match(sub)
	if m.Truth == quirks.False {
		return m, Finding{Quirk: e.ID, Verdict: NotAffected, Severity: e.Severity, Effect: e.Effect, Title: e.Title, Why: whys(sub, m.Predicates)}
	}
	f := finding(sub, m)
	p.suppress(sub, &f)
	return m, f
}
