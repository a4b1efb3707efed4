package audit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// crossing is an entry about kernels that concerns one device now or then.
type crossing struct {
	entry     *quirks.Entry
	device    string
	direction Direction
	match     quirks.Match // then; now where it leaves
	verdict   checker.Verdict
}

// aboutKernels tells the entries whose fault is the kernel's own.
func aboutKernels(e *quirks.Entry) bool {
	return e.Folder() == "kernel" || e.Kernel != nil && (e.Kernel.Change || len(e.Kernel.Range) > 0)
}

// crossings are the entries about kernels that the upgrade meets on a device.
// undecided are those of which nobody can tell whether the release has the
// fault: for every device like it, so that the machine is told once.
func (h *Host) crossings(d *device, t *then) (out []crossing, undecided []string) {
	now, after := aboutKernelsOf(h.db.Match(d.sub)), aboutKernelsOf(t.judged.Matches)
	at := func(list []quirks.Match, e *quirks.Entry) int {
		return slices.IndexFunc(list, func(o quirks.Match) bool { return o.Entry == e })
	}
	for _, m := range after {
		i := at(now, m.Entry)
		if m.Truth == quirks.Unknown && m.Entry.OpenAbout(t.sub.Kernel) && (i < 0 || now[i].Truth == quirks.Unknown) {
			undecided = append(undecided, m.Entry.ID)
			continue
		}
		c := crossing{entry: m.Entry, device: d.name, direction: Enters, match: m, verdict: verdictOf(m, t.findings)}
		if i >= 0 && inRange(now[i]) >= inRange(m) {
			c.direction = Stays
		}
		out = append(out, c)
	}
	for _, m := range now {
		if at(after, m.Entry) < 0 && !(m.Truth == quirks.Unknown && m.Entry.OpenAbout(d.sub.Kernel)) {
			out = append(out, crossing{entry: m.Entry, device: d.name, direction: Leaves, match: m, verdict: verdictOf(m, d.findings)})
		}
	}
	// A change of behaviour matters to who crosses it.
	return slices.DeleteFunc(out, func(c crossing) bool { return c.entry.Change() && c.direction == Stays }), undecided
}

func aboutKernelsOf(list []quirks.Match) []quirks.Match {
	var out []quirks.Match
	for _, m := range list {
		if aboutKernels(m.Entry) && m.Entry.Effect != quirks.EffectCapability && !(m.Truth == quirks.Unknown && checker.Nameless(m)) {
			out = append(out, m)
		}
	}
	return out
}

// inRange is what the release alone answers: True where nothing asks it.
func inRange(m quirks.Match) kernel.Truth {
	t := kernel.True
	for _, p := range m.Predicates {
		if p.Key == "kernel" || p.Key == "kernel.range" {
			t = min(t, p.Truth)
		}
	}
	return t
}

// verdictOf is the finding's, and for a change of behaviour, which is none, what
// the match says.
func verdictOf(m quirks.Match, findings []checker.Finding) checker.Verdict {
	if i := slices.IndexFunc(findings, func(f checker.Finding) bool { return f.Quirk == m.Entry.ID }); i >= 0 {
		return findings[i].Verdict
	}
	if m.Truth == quirks.True {
		return checker.Affected
	}
	return checker.Unknown
}

// regressions gathers what the devices meet: one for an entry and a direction,
// and each question once.
func regressions(found []crossing) ([]Regression, []Question) {
	type key struct {
		id        string
		direction Direction
	}
	list := []Regression{}
	at := map[key]int{}
	questions := []Question{}
	for _, c := range found {
		e := c.entry
		k := key{e.ID, c.direction}
		i, ok := at[k]
		if !ok {
			i = len(list)
			at[k] = i
			g := Regression{Quirk: e.ID, Title: e.Title, Direction: c.direction, Severity: e.Severity, Effect: e.Effect, Change: e.Change(),
				Verdict: c.verdict, Devices: []string{}, Possible: []string{}, Why: []string{}, Questions: []string{}, Mitigations: []string{}, References: e.References}
			if g.References == nil {
				g.References = []quirks.Reference{}
			}
			for _, m := range e.Mitigations {
				if text := mitigationText(e, m, kernel.Release{}); text != "" {
					g.Mitigations = append(g.Mitigations, text)
				}
			}
			list = append(list, g)
		}
		g := &list[i]
		switch { // Devices are those of the worst verdict
		case c.verdict.Rank() > g.Verdict.Rank():
			g.Verdict, g.Possible, g.Devices = c.verdict, append(g.Possible, g.Devices...), []string{c.device}
		case c.verdict.Rank() < g.Verdict.Rank():
			g.Possible = append(g.Possible, c.device)
		default:
			g.Devices = append(g.Devices, c.device)
		}
		for _, p := range c.match.Predicates {
			if q, ok := question(e, p); ok {
				g.Questions = appendNew(g.Questions, q)
			} else if s, ok := spoken(p); ok {
				g.Why = appendNew(g.Why, s)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b Regression) int {
		order := func(d Direction) int { return slices.Index([]Direction{Enters, Stays, Leaves}, d) }
		return cmp.Or(cmp.Compare(order(a.Direction), order(b.Direction)), cmp.Compare(b.Verdict.Rank(), a.Verdict.Rank()),
			cmp.Compare(b.Severity.Rank(), a.Severity.Rank()), strings.Compare(a.Quirk, b.Quirk))
	})
	for _, g := range list {
		if g.Direction == Leaves {
			continue
		}
		for _, text := range g.Questions {
			i := slices.IndexFunc(questions, func(q Question) bool { return q.Text == text })
			if i < 0 {
				i = len(questions)
				questions = append(questions, Question{Text: text})
			}
			questions[i].Quirks = append(questions[i].Quirks, g.Quirk)
		}
	}
	return list, questions
}

func appendNew(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// question is what a person has to find out about an open predicate: one that
// only a person can answer, or a fact that was not read and how to read it.
func question(e *quirks.Entry, p quirks.Predicate) (string, bool) {
	key, isCondition := strings.CutPrefix(p.Key, "condition.")
	if !isCondition || p.Truth != quirks.Unknown {
		return "", false
	}
	for _, c := range e.Conditions {
		switch {
		case c.Ask != "" && c.ID == key && c.Ask == p.Want:
			return c.Ask, true
		case c.Ask == "" && c.Key == key && c.How != "":
			return fmt.Sprintf("Is %s %s? (%s)", strings.ReplaceAll(key, "_", " "), p.Want, c.How), true
		}
	}
	return "", false
}

// spoken puts a predicate into words, where it says why the entry concerns the
// machine.
func spoken(p quirks.Predicate) (string, bool) {
	switch {
	case p.Key == "device.space", p.Key == "path" && p.Truth == quirks.True:
		return "", false
	case p.Truth == quirks.Unknown:
		return strings.TrimPrefix(p.Key, "condition.") + " is not known: " + cmp.Or(p.Why, "not read"), true
	case p.Key == "kernel" || p.Key == "kernel.range":
		return "kernels with it: " + p.Want, true
	case p.Got == "":
		return "", false
	case strings.HasPrefix(p.Key, "condition."):
		return strings.TrimPrefix(p.Key, "condition.") + " is " + p.Got + " (" + p.Want + ")", true
	}
	return p.Key + " is " + p.Got, true
}
