package kernel

import (
	"fmt"
	"strconv"
	"strings"
)

// Truth is a three-valued answer. The order matters: the minimum of several is
// their conjunction, the maximum their disjunction.
type Truth int8

// The three answers.
const (
	False Truth = iota
	Unknown
	True
)

func (t Truth) String() string {
	switch t {
	case False:
		return "false"
	case True:
		return "true"
	}
	return "unknown"
}

func truthOf(b bool) Truth {
	if b {
		return True
	}
	return False
}

// Not negates; unknown stays unknown.
func (t Truth) Not() Truth { return True - t }

// Row says when one tree carries a change. Empty fields are not stated.
// Since and Until are exact; After and By bracket the release that brought
// the change, between them nobody looked; AbsentThrough says it was looked for
// and not there, Through that it was there, later points are unknown.
type Row struct {
	Tree          string // mainline, stable-X.Y, or a vendor tag such as rhel
	Since         string // first release with it
	Until         string // first release without it again
	After         string // last release seen without it
	By            string // first release seen with it
	AbsentThrough string
	Through       string
	Never         bool // never in this tree
	// StartUnknown says that nobody looked for the start: up to Until (and
	// past After, where that is stated) the answer is unknown.
	StartUnknown bool
	// Fault marks a fault, which differs from a protection in what a mainline
	// row says about stable branches without a row of their own: one that began
	// before the fault does not have it, since rows name the stable trees a
	// fault went to, and one that began between the fault and its fix may have
	// taken the fix.
	Fault bool
}

// Answer is what the rows say about one release.
type Answer struct {
	Truth Truth
	// Low marks mainline's answer taken for a vendor kernel that picks its own
	// patches.
	Low bool
	Own bool   // decided by a row of the release's own tree
	Why string // the row that decided, in words
}

// Hole is a stretch of releases that list a quirk and do not apply it.
type Hole struct {
	Tree      string
	After, By string // the bracket of its start
	To        string // first release that applies it again, "" while open
	Why       string
}

func (h Hole) row() Row { return Row{Tree: h.Tree, After: h.After, By: h.By, Until: h.To} }

// Check reports the first fault of a hole, for lint.
func (h Hole) Check() error {
	if h.After == "" && h.By == "" {
		return fmt.Errorf("hole in %s: want after, by or both", h.Tree)
	}
	return h.row().Check()
}

// Applies answers whether release r carries the change and applies it. A hole
// beats a row; where only mainline says that a hole may have begun, a row of
// the release's own tree stands.
func Applies(rows []Row, holes []Hole, r Release) Answer {
	a := Carries(rows, r)
	if len(holes) == 0 || a.Truth == False {
		return a
	}
	holeRows := make([]Row, len(holes))
	for i, h := range holes {
		holeRows[i] = h.row()
	}
	in := Carries(holeRows, r)
	switch in.Truth {
	case True:
		why := "listed but not applied"
		for _, h := range holes {
			if h.Why != "" {
				why += ": " + h.Why
				break
			}
		}
		return Answer{Truth: False, Low: a.Low || in.Low, Own: in.Own, Why: why}
	case Unknown:
		if a.Own && !in.Own {
			return a
		}
		a.Truth, a.Why = min(a.Truth, Unknown), "listed, but whether it is applied is not known: "+in.Why
	}
	return a
}

// Check reports the first fault of a row, for lint.
func (w Row) Check() error {
	if w.Tree != "mainline" && !strings.HasPrefix(w.Tree, "stable-") && !vendorTrees[w.Tree] {
		return fmt.Errorf("tree %q: want mainline, stable-X.Y or one of %s", w.Tree, strings.Join(vendorTreeNames, ", "))
	}
	if v, ok := strings.CutPrefix(w.Tree, "stable-"); ok {
		b, err := ParseBound(v)
		if err != nil || b.hasPoint || b.RC > 0 {
			return fmt.Errorf("tree %q: want stable-X.Y", w.Tree)
		}
	}
	some := w.Never || w.StartUnknown && w.Tree != "mainline" // a series that may have it
	for _, f := range w.fields() {
		if f.text == "" {
			continue
		}
		some = true
		if _, err := ParseBound(f.text); err != nil {
			return fmt.Errorf("%s: %w", f.name, err)
		}
	}
	if !some {
		return fmt.Errorf("tree %s: says nothing (want since, until, after, by or absent_through)", w.Tree)
	}
	for _, p := range [][2]string{{w.Since, w.Until}, {w.After, w.By}, {w.By, w.Until}} {
		if p[0] == "" || p[1] == "" {
			continue
		}
		lo, _ := ParseBound(p[0])
		hi, _ := ParseBound(p[1])
		if c, ok := Compare(lo.Release, hi.Release); ok && c >= 0 {
			return fmt.Errorf("tree %s: empty range, %s is not before %s", w.Tree, p[0], p[1])
		}
	}
	return nil
}

var vendorTreeNames = []string{"amazon", "oracle", "proxmox", "raspberrypi", "rhel", "sles", "ubuntu"}

var vendorTrees = func() map[string]bool {
	m := map[string]bool{}
	for _, n := range vendorTreeNames {
		m[n] = true
	}
	return m
}()

type field struct{ name, text string }

func (w Row) fields() [6]field {
	return [...]field{{"since", w.Since}, {"until", w.Until}, {"after", w.After}, {"by", w.By}, {"absent_through", w.AbsentThrough}, {"through", w.Through}}
}

// in answers for a release that the row's tree speaks for. own says that the
// release belongs to this very tree, so a "not yet" is a no; for a mainline
// row and a release of a stable branch a backport may exist, and a "not yet"
// is unknown.
func (w Row) in(r Release, own bool) Truth {
	if w.Never {
		return False
	}
	no := False
	if !own && !w.Fault {
		no = Unknown
	}
	yes := True
	if !own && w.Fault && w.Until != "" {
		yes = Unknown
	}
	at := func(text string) Truth {
		if text == "" {
			return Unknown
		}
		b, err := ParseBound(text)
		if err != nil {
			return Unknown
		}
		return b.reaches(r)
	}
	if w.Until != "" {
		switch at(w.Until) {
		case True:
			return False
		case Unknown:
			return Unknown
		}
	}
	if w.Through != "" {
		b, err := ParseBound(w.Through)
		if err != nil {
			return Unknown
		}
		if c, ok := b.compare(r); !ok || c > 0 {
			return Unknown
		}
	}
	if w.AbsentThrough != "" {
		// At the stated point itself it is still absent.
		b, err := ParseBound(w.AbsentThrough)
		if err != nil {
			return Unknown
		}
		if c, ok := b.compare(r); ok && c <= 0 {
			return no
		}
		return Unknown
	}
	if w.Since != "" {
		switch at(w.Since) {
		case True:
			return yes
		case False:
			return no
		}
		return Unknown
	}
	if w.By != "" && at(w.By) == True {
		return yes
	}
	if w.After != "" {
		b, err := ParseBound(w.After)
		if err != nil {
			return Unknown
		}
		if c, ok := b.compare(r); ok && c <= 0 {
			return no
		}
		return Unknown
	}
	if w.By != "" || w.Until == "" || w.StartUnknown {
		return Unknown
	}
	return yes // only Until, and r is before it
}

// Carries answers whether release r carries the change the rows describe. The
// rows of the release's own tree decide where there are any (a vendor's row,
// then stable-X.Y), else mainline's.
func Carries(rows []Row, r Release) Answer {
	if !r.Known() {
		return Answer{Truth: Unknown, Why: "kernel release unknown"}
	}
	if len(rows) == 0 {
		return Answer{Truth: Unknown, Why: "no tree is stated"}
	}
	stable := "stable-" + strconv.Itoa(r.Major) + "." + strconv.Itoa(r.Minor)
	pick := func(tree string, own bool) (Answer, bool) {
		a, by, found := Answer{Truth: False}, Row{}, false
		for _, w := range rows {
			if w.Tree != tree {
				continue
			}
			if t := w.in(r, own); !found || t > a.Truth {
				a.Truth, by = t, w
			}
			found = true
		}
		if found {
			a.Why = by.String()
		}
		return a, found
	}
	if r.Vendor != "" {
		if a, ok := pick(r.Vendor, true); ok {
			a.Own = true
			return a
		}
	}
	if r.FollowsStable() {
		if a, ok := pick(stable, true); ok {
			a.Own = true
			return a
		}
	}
	// A release with point 0 and no vendor is a mainline release.
	mainline := r.Vendor == "" && r.PointK && r.Point == 0
	low := !r.FollowsStable()
	a, ok := pick("mainline", mainline || low)
	if !ok {
		return Answer{Truth: Unknown, Why: "no row for " + stable + " or mainline"}
	}
	a.Low, a.Own = low, mainline
	return a
}

func (w Row) String() string {
	var b strings.Builder
	b.WriteString(w.Tree)
	if w.Never {
		b.WriteString(" never")
	}
	if w.StartUnknown {
		b.WriteString(" start unknown")
	}
	for _, f := range w.fields() {
		if f.text != "" {
			b.WriteString(" " + strings.ReplaceAll(f.name, "_", " ") + " " + f.text)
		}
	}
	return b.String()
}
