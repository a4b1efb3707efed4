package main

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/checker/audit"
)

// auditWidth is how wide the table and the text below it may be.
const auditWidth = 100

// canaryShown bounds the list of hosts in the table.
const canaryShown = 40

// auditText writes a machine for people, as a table or as markdown.
func (a *app) auditText(w io.Writer, one *audited, o auditFlags) error {
	p := &auditPrinter{errWriter: errWriter{w: w}, color: a.color(), markdown: o.format == "markdown", all: o.show == "all"}
	if one.matrix != nil {
		p.matrix(one.matrix)
		return p.err
	}
	for i, r := range one.reports {
		if i > 0 {
			p.line("")
		}
		p.report(r)
	}
	return p.err
}

type auditPrinter struct {
	errWriter
	color    colorer
	markdown bool
	all      bool
}

// cell is a text of a table; paint colours it after it was measured.
type cell struct {
	text  string
	paint func(string) string
}

// table writes rows under heads; of all columns the one called shrink gives way
// where the line gets too wide, down to a few characters.
func (p *auditPrinter) table(heads []string, shrink int, rows [][]cell) {
	if p.markdown {
		p.line("| %s |", strings.Join(heads, " | "))
		p.line("|%s", strings.Repeat(" --- |", len(heads)))
		for _, r := range rows {
			var parts []string
			for _, c := range r {
				parts = append(parts, markdown(c.text))
			}
			p.line("| %s |", strings.Join(parts, " | "))
		}
		return
	}
	width := make([]int, len(heads))
	for i, h := range heads {
		width[i] = len(h)
		for _, r := range rows {
			width[i] = max(width[i], utf8.RuneCountInString(r[i].text))
		}
	}
	total := 2 * (len(heads) - 1)
	for _, n := range width {
		total += n
	}
	if over := total - auditWidth; over > 0 && shrink >= 0 {
		width[shrink] = max(12, width[shrink]-over)
	}
	write := func(r []cell) {
		var b strings.Builder
		for i, c := range r {
			text := cutText(c.text, width[i])
			pad := width[i] - utf8.RuneCountInString(text) + 2
			if c.paint != nil {
				text = c.paint(text)
			}
			b.WriteString(text)
			if i < len(r)-1 {
				b.WriteString(strings.Repeat(" ", pad))
			}
		}
		p.line("%s", strings.TrimRight(b.String(), " "))
	}
	head := make([]cell, len(heads))
	for i, h := range heads {
		head[i].text = h
	}
	write(head)
	for _, r := range rows {
		write(r)
	}
}

// cutText shortens a text to n runes, and shows that it did.
func cutText(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-2]) + ".."
}

// markdown keeps a text inside its cell or line.
func markdown(s string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", ">", "&gt;", "*", `\*`, "_", `\_`, "`", "\\`", "[", `\[`).Replace(s)
}

func (p *auditPrinter) heading(text string) {
	p.line("")
	if p.markdown {
		p.line("## %s\n", markdown(text))
		return
	}
	p.line("%s", text)
}

// item writes a text under its name, wrapped and indented.
func (p *auditPrinter) item(name, text string) {
	if p.markdown {
		if name != "" {
			name = "**" + markdown(name) + "**: "
		}
		p.line("- %s%s", name, markdown(text))
		return
	}
	if name != "" {
		text = name + ": " + text
	}
	p.line("  %s", strings.ReplaceAll(wrap(text, auditWidth-4), "\n", "\n    "))
}

func kernelText(k audit.Kernel) string {
	if k.Release == nil {
		return "a kernel that is not known"
	}
	text := "Linux " + *k.Release
	if *k.Upstream != *k.Release {
		text += " (" + *k.Upstream + ")"
	}
	return clean(text)
}

func (p *auditPrinter) report(r *audit.Report) {
	title := "From " + kernelText(r.From) + " to " + kernelText(r.Target)
	if p.markdown {
		p.line("## %s\n", markdown(title))
	} else {
		p.line("%s", title)
	}
	if len(r.Devices) == 0 {
		p.line("No block device found.")
		for _, n := range r.Notes {
			p.line("%s", clean(n.What+": "+n.Why))
		}
		return
	}
	var rows [][]cell
	hidden := 0
	for _, d := range r.Devices {
		if !p.all && (d.Kind == "loop" || d.Kind == "ram") && d.SizeBytes != nil && *d.SizeBytes == 0 {
			hidden++
			continue
		}
		rows = append(rows, []cell{{text: clean(d.Name)}, {text: clean(identityText(d.Device))}, {text: kib(d.Change.FromKB)},
			{text: thenText(d.Predicted.MaxSectorsKB, d.Predicted.Certainty)}, {text: factorText(d.Change.Factor)}, p.verdicts(&d.Change), p.class(&d.Change)})
	}
	p.table([]string{"DEVICE", "MODEL", "NOW", "THEN", "FACTOR", "VERDICT", "CLASS"}, 1, rows)
	p.summary(r, hidden)
	p.reasons(r)
	p.regressions(r)
	p.deploy(r)
	if len(r.Questions) > 0 {
		p.heading("Questions that only you can answer")
		for _, q := range r.Questions {
			p.item("", clean(q.Text+" ("+strings.Join(q.Quirks, ", ")+")"))
		}
	}
}

// thenText is a predicted limit; ~ where it is not certain.
func thenText(n *uint64, certainty string) string {
	if n != nil && certainty == "low" {
		return "~" + kib(n)
	}
	return kib(n)
}

func factorText(f *float64) string {
	switch {
	case f == nil:
		return "-"
	case *f < 0.1:
		return fmt.Sprintf("x%.3f", *f)
	case *f == float64(int64(*f)):
		return fmt.Sprintf("x%d", int64(*f))
	}
	return fmt.Sprintf("x%.1f", *f)
}

func verdictWord(v checker.Verdict) string {
	switch v {
	case checker.Affected:
		return "AFFECTED"
	case checker.NoKnownQuirk:
		return "no known quirk"
	}
	return string(v)
}

func (p *auditPrinter) verdicts(c *audit.Change) cell {
	out := cell{text: verdictWord(c.VerdictNow)}
	if c.VerdictThen != c.VerdictNow {
		out.text += " -> " + verdictWord(c.VerdictThen)
	}
	switch c.VerdictThen {
	case checker.Affected:
		out.paint = p.color.red
	case checker.Unknown:
		out.paint = p.color.yellow
	}
	return out
}

func (p *auditPrinter) class(c *audit.Change) cell {
	out := cell{text: string(c.Class)}
	if len(c.Warnings) > 0 {
		out.text += " (warn)"
		out.paint = p.color.yellow
	}
	switch c.Class {
	case audit.NewRisk:
		out.paint = p.color.red
	case audit.Unknown:
		out.paint = p.color.yellow
	}
	return out
}

func (p *auditPrinter) summary(r *audit.Report, hidden int) {
	o := r.Outcome
	if p.markdown {
		p.line("")
	}
	p.line("%s: %d at new risk, %d fixed by the upgrade, %d unchanged, %d unknown; %d with a warning.",
		plural(uint64(len(r.Devices)), "device"), o.NewRisk, o.FixedByUpgrade, o.Unchanged, o.Unknown, o.Warned)
	if hidden > 0 {
		p.line("%d empty loop and ram devices not listed; --show all lists them.", hidden)
	}
	if r.Target.Beyond {
		p.line("%s is newer than the newest kernel that is known: it is predicted with the newest rules.", kernelText(r.Target))
	}
	for _, n := range groupNotes(r.Notes) {
		p.line("%s", strings.ReplaceAll(wrap("note: "+clean(n), auditWidth), "\n", "\n  "))
	}
}

// reasons tells why, of devices that change or have a warning; devices of one
// reason stand together.
func (p *auditPrinter) reasons(r *audit.Report) {
	type reason struct {
		names []string
		text  string
		rank  int
	}
	var list []*reason
	at := map[string]*reason{}
	for _, d := range r.Devices {
		c := &d.Change
		moves := c.Class != audit.Unchanged || len(c.Warnings) > 0 || c.VerdictNow != c.VerdictThen ||
			c.FromKB != nil && c.ToKB != nil && *c.FromKB != *c.ToKB || c.UserValueKB != nil
		if !moves && !p.all {
			continue
		}
		text := c.Reason
		for _, w := range c.Warnings {
			text += "\x00warning: " + w
		}
		if at[text] == nil {
			rank := slices.Index([]audit.Class{audit.NewRisk, audit.Unknown, audit.FixedByUpgrade, audit.Unchanged}, c.Class)
			at[text] = &reason{text: text, rank: rank}
			list = append(list, at[text])
		}
		at[text].names = append(at[text].names, d.Name)
	}
	if len(list) == 0 {
		return
	}
	slices.SortStableFunc(list, func(a, b *reason) int { return cmp.Compare(a.rank, b.rank) })
	p.heading("Why")
	for _, x := range list {
		parts := strings.Split(x.text, "\x00")
		p.item(namesText(x.names), clean(parts[0]))
		for _, w := range parts[1:] {
			if p.markdown {
				p.line("  - %s", markdown(clean(w)))
				continue
			}
			p.line("    %s", strings.ReplaceAll(wrap(clean(w), auditWidth-6), "\n", "\n      "))
		}
	}
}

// namesText names a few devices and counts the rest.
func namesText(names []string) string {
	const most = 8
	if len(names) <= most {
		return clean(strings.Join(names, ", "))
	}
	return clean(strings.Join(names[:most], ", ")) + fmt.Sprintf(" and %d more", len(names)-most)
}

func (p *auditPrinter) regressions(r *audit.Report) {
	for _, s := range []struct {
		direction audit.Direction
		title     string
	}{{audit.Enters, "Faults and changes of the kernel that come with it"}, {audit.Stays, "Faults of the kernel that stay"}, {audit.Leaves, "Faults and changes of the kernel that go"}} {
		first := true
		for _, g := range r.Regressions {
			if g.Direction != s.direction || s.direction == audit.Stays && g.Verdict.Rank() < checker.Unknown.Rank() && !p.all {
				continue
			}
			if first {
				p.heading(s.title)
				first = false
			}
			word := verdictWord(g.Verdict)
			if g.Change {
				word = "change"
				if g.Verdict == checker.Unknown {
					word = "change, it depends"
				}
			}
			names := namesText(g.Devices)
			if len(g.Possible) > 0 {
				names += "; perhaps " + namesText(g.Possible)
			}
			text := fmt.Sprintf("%s (%s), %s (%s)", g.Title, names, word, g.Severity)
			if len(g.Questions) > 0 {
				text += "; " + strings.Join(g.Questions, " ")
			}
			p.item(clean(g.Quirk), clean(text))
		}
	}
}

func (p *auditPrinter) deploy(r *audit.Report) {
	for _, optional := range []bool{false, true} {
		first := true
		for _, s := range r.Deploy {
			if s.Optional != optional {
				continue
			}
			if first {
				if optional {
					p.heading("If need be")
				} else {
					p.heading("Deploy first")
				}
				first = false
			}
			text := s.Text
			if s.Quirk != "" {
				text += " (" + s.Quirk + ")"
			}
			p.item(namesText(s.Devices), clean(text))
			switch {
			case s.Command == "":
			case p.markdown:
				p.line("  `%s`", clean(s.Command))
			default:
				p.line("    %s", clean(s.Command))
			}
		}
	}
}

func (p *auditPrinter) matrix(m *audit.Matrix) {
	title := "From " + kernelText(m.From)
	if p.markdown {
		p.line("## %s\n", markdown(title))
	} else {
		p.line("%s", title)
	}
	if len(m.Matrix) == 0 {
		p.line("No block device found.")
		return
	}
	heads := []string{"DEVICE", "MODEL"}
	for _, k := range m.Kernels {
		heads = append(heads, clean(*k.Release))
	}
	var rows [][]cell
	uncertain := false
	for i, d := range m.Devices {
		if !p.all && (d.Kind == "loop" || d.Kind == "ram") && d.SizeBytes != nil && *d.SizeBytes == 0 {
			continue
		}
		row := []cell{{text: clean(d.Name)}, {text: clean(identityText(d))}}
		for _, c := range m.Matrix[i].Cells {
			x := cell{text: thenText(c.MaxSectorsKB, c.Certainty)}
			uncertain = uncertain || strings.HasPrefix(x.text, "~")
			switch c.Verdict {
			case checker.NoKnownQuirk:
			case checker.Affected:
				x.text += " AFFECTED"
				x.paint = p.color.red
			default:
				x.text += " " + string(c.Verdict)
			}
			row = append(row, x)
		}
		rows = append(rows, row)
	}
	p.table(heads, 1, rows)
	if p.markdown {
		p.line("")
	}
	p.line("max_sectors_kb and verdict; no word: no known quirk.")
	if uncertain {
		p.line("~: not certain; quirkcheck audit --to-kernel says why.")
	}
	if slices.ContainsFunc(m.Kernels, func(k audit.Kernel) bool { return strings.Count(*k.Release, ".") == 1 && *k.Release == *k.Upstream }) {
		p.line("A version without a point stands for its first release; 6.1.190 names a later one.")
	}
	for _, k := range m.Kernels {
		if k.Beyond {
			p.line("%s is newer than the newest kernel that is known: it is predicted with the newest rules.", kernelText(k))
		}
	}
}

// canaryText writes the order in which hosts should go.
func canaryText(w io.Writer, order []audit.Canary, o auditFlags) error {
	p := &auditPrinter{errWriter: errWriter{w: w}, markdown: o.format == "markdown"}
	p.heading("Order of the hosts")
	shown := order
	if o.show != "all" {
		shown = order[:min(len(order), canaryShown)]
	}
	for _, c := range shown {
		name := clean(c.Input)
		if c.Label != "" {
			name += " (" + clean(c.Label) + ")"
		}
		p.item(fmt.Sprintf("%d. %s", c.Order, name), clean(c.Why))
	}
	if n := len(order) - len(shown); n > 0 {
		p.line("and %d more; --show all lists them, and --format json", n)
	}
	return p.err
}
