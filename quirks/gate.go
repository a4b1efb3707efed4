package quirks

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

// gate is what an arm without a device asks, as far as a subject can be turned
// away by it before the entry is parsed. It stands in index.tsv as the pattern
// of space any: "path=libata|scsi kind=md driver=mpt3sas
// fault=mainline>=6.17<7.0;stable-6.1! avoid", "*" where it asks nothing; kernel
// stands for fault where an arm names releases that are no range of a fault.
type gate struct {
	paths, kinds Strings
	drivers      Patterns
	rows         []kernel.Row // the kernels that have the fault; none: every one
	avoid        bool         // the entry names commands that must not be sent
}

// gateOf derives the gate of one arm of an entry.
func gateOf(e *Entry, a *Arm) gate {
	g := gate{paths: a.Path, avoid: len(e.Avoid) > 0}
	if a.Stack != nil {
		g.kinds = a.Stack.Kind
	}
	if a.Adapter != nil && !slices.ContainsFunc(a.Adapter.Driver, func(p Pattern) bool { return strings.ContainsAny(p.text, "| \t\n") }) {
		g.drivers = a.Adapter.Driver
	}
	switch {
	case e.Kernel != nil && len(e.Kernel.Range) > 0:
		g.rows = rangeRows(e.Kernel.Range)
	case a.Kernel != nil:
		g.rows = a.Kernel.rows()
	}
	// What lint refuses turns nobody away.
	if slices.ContainsFunc(g.rows, func(w kernel.Row) bool { return w.Check() != nil }) {
		g.rows = nil
	}
	return g
}

// open reports whether the subject may satisfy what the gate asks.
func (g *gate) open(sub *Subject) bool {
	if g.paths.matchPath(sub.Path) == False || kindTruth(g.kinds, sub) == False {
		return false
	}
	if driver := mapText(sub.Adapter, "driver"); len(g.drivers) > 0 && driver.Known && g.drivers.match(driver.trimmed()) == False {
		return false
	}
	if len(g.rows) == 0 {
		return true
	}
	a := kernel.Carries(g.rows, sub.Kernel)
	return a.Truth != False || a.Low
}

// rowSigns write the fields of a kernel.Row in a gate.
var rowSigns = []struct {
	sign  string
	field func(*kernel.Row) *string
}{
	{">=", func(w *kernel.Row) *string { return &w.Since }},
	{"<", func(w *kernel.Row) *string { return &w.Until }},
	{">", func(w *kernel.Row) *string { return &w.After }},
	{"^", func(w *kernel.Row) *string { return &w.By }},
	{"~", func(w *kernel.Row) *string { return &w.Through }},
	{"!", func(*kernel.Row) *string { return nil }}, // never
	{"?", func(*kernel.Row) *string { return nil }}, // start unknown
}

func (g gate) String() string {
	var parts []string
	list := func(key string, values []string) {
		if len(values) > 0 {
			parts = append(parts, key+"="+strings.Join(values, "|"))
		}
	}
	list("path", g.paths)
	list("kind", g.kinds)
	drivers := make([]string, len(g.drivers))
	for i, p := range g.drivers {
		drivers[i] = p.text
	}
	list("driver", drivers)
	if len(g.rows) > 0 {
		rows := make([]string, len(g.rows))
		for i := range g.rows {
			w := g.rows[i]
			rows[i] = w.Tree
			if w.Never {
				rows[i] += "!"
			}
			if w.StartUnknown {
				rows[i] += "?"
			}
			for _, s := range rowSigns {
				if v := s.field(&w); v != nil && *v != "" {
					rows[i] += s.sign + *v
				}
			}
		}
		key := "kernel="
		if g.rows[0].Fault { // all are or none
			key = "fault="
		}
		parts = append(parts, key+strings.Join(rows, ";"))
	}
	if g.avoid {
		parts = append(parts, "avoid")
	}
	if len(parts) == 0 {
		return "*"
	}
	return strings.Join(parts, " ")
}

func parseGate(text string) (gate, error) {
	var g gate
	if text == "*" {
		return g, nil
	}
	for _, part := range strings.Split(text, " ") {
		key, value, _ := strings.Cut(part, "=")
		switch {
		case part == "avoid":
			g.avoid = true
		case value == "":
			return gate{}, fmt.Errorf("gate %q: %q says nothing", text, part)
		case key == "path":
			g.paths = strings.Split(value, "|")
		case key == "kind":
			g.kinds = strings.Split(value, "|")
		case key == "driver":
			for _, d := range strings.Split(value, "|") {
				p, err := CompilePattern(d)
				if err != nil {
					return gate{}, fmt.Errorf("gate %q: %w", text, err)
				}
				g.drivers = append(g.drivers, p)
			}
		case key == "kernel" || key == "fault":
			for _, r := range strings.Split(value, ";") {
				w, err := parseGateRow(r)
				w.Fault = key == "fault"
				if err != nil {
					return gate{}, fmt.Errorf("gate %q: %w", text, err)
				}
				g.rows = append(g.rows, w)
			}
		default:
			return gate{}, fmt.Errorf("gate %q: unknown %q", text, key)
		}
	}
	return g, nil
}

func parseGateRow(text string) (kernel.Row, error) {
	var w kernel.Row
	const signs = "<>^~!?="
	end := strings.IndexAny(text, signs)
	if end <= 0 {
		return w, fmt.Errorf("row %q: want a tree and what it says", text)
	}
	w.Tree = text[:end]
	for rest := text[end:]; rest != ""; {
		i := slices.IndexFunc(rowSigns, func(s struct {
			sign  string
			field func(*kernel.Row) *string
		}) bool {
			return strings.HasPrefix(rest, s.sign)
		})
		if i < 0 {
			return w, fmt.Errorf("row %q: unknown sign at %q", text, rest)
		}
		rest = rest[len(rowSigns[i].sign):]
		end := strings.IndexAny(rest, signs)
		if end < 0 {
			end = len(rest)
		}
		switch v := rowSigns[i].field(&w); {
		case v != nil:
			*v = rest[:end]
		case rowSigns[i].sign == "?":
			w.StartUnknown = true
		default:
			w.Never = true
		}
		rest = rest[end:]
	}
	return w, w.Check()
}

// pickKey is all of a subject that a gate looks at. A machine has few of them,
// so the answers are kept.
type pickKey struct {
	release       kernel.Release
	path          string
	kind, driver  string
	stacked       Truth // unknown: the kind is not known
	adapter       bool  // the driver is known
	onlyWithAvoid bool
}

// maxPicks bounds what is kept: lines of db match may name any release.
const maxPicks = 512

// gated is a gate of a slot.
type gated struct {
	slot int
	text string
	gate
}

// picked returns the slots whose gates the subject passes; the caller keeps its
// hands off the slice.
func (s *Set) picked(sub *Subject, onlyWithAvoid bool) []int {
	if len(s.gates) == 0 {
		return nil
	}
	driver := mapText(sub.Adapter, "driver")
	key := pickKey{release: sub.Kernel, path: sub.Path, kind: sub.Stack.Kind, driver: driver.S,
		stacked: sub.isStacked(), adapter: driver.Known, onlyWithAvoid: onlyWithAvoid}
	s.picksMu.RLock()
	slots, ok := s.picks[key]
	s.picksMu.RUnlock()
	if ok {
		return slots
	}
	for i := range s.gates {
		if g := &s.gates[i]; (g.avoid || !onlyWithAvoid) && g.open(sub) {
			slots = append(slots, g.slot)
		}
	}
	s.picksMu.Lock()
	defer s.picksMu.Unlock()
	if s.picks == nil || len(s.picks) >= maxPicks {
		s.picks = map[pickKey][]int{}
	}
	s.picks[key] = slots
	return slots
}
