package audit

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

// change compares a device now and then.
func (h *Host) change(d *device, t *then, to kernel.Release) Change {
	seen := d.inputs.Observed.MaxSectorsKB
	c := Change{FromKB: ptr(seen), ToKB: ptr(t.predict.MaxSectorsKB), DefaultFromKB: ptr(d.from.DefaultKB), DefaultToKB: ptr(t.predict.DefaultKB),
		UserValueKB: ptr(d.user.kib), VerdictNow: d.report.Verdict, VerdictThen: t.verdict, Warnings: []string{},
		ReadAheadFromKB: ptr(d.readAhead.seen), ReadAheadToKB: ptr(t.ahead)}
	if seen.Known && seen.V > 0 && t.predict.MaxSectorsKB.Known {
		f := math.Round(float64(t.predict.MaxSectorsKB.V)/float64(seen.V)*1000) / 1000
		c.Factor = &f
	}
	worse, open, further := h.quirkChanges(d, t, &c)
	switch {
	case worse:
		c.Class = NewRisk
	case !seen.Known || !t.predict.MaxSectorsKB.Known || open:
		c.Class = Unknown
	case t.verdict.Rank() < d.report.Verdict.Rank() && h.from.Known(): // else it is no other kernel that decides, but that there is one
		c.Class = FixedByUpgrade
	default:
		c.Class = Unchanged
	}
	c.Reason = sentence(limitReason(d, t, to), aheadReason(d, t), verdictReason(&c, further))
	h.warn(d, t, to, &c)
	return c
}

// quirkChanges fills in the findings that differ, and those affected then.
// worse: one is affected then and is not now, or its limit rises further above
// its bound (further); open: one is undecided then and is not now.
func (h *Host) quirkChanges(d *device, t *then, c *Change) (worse, open bool, further []string) {
	c.Quirks = []QuirkChange{}
	bounds := map[string]uint64{}
	for _, b := range slices.Concat(t.judged.Safe.Bounds, d.report.Safe.Bounds) {
		if b.Quirk != "" {
			bounds[b.Quirk] = b.MaxSectors
		}
	}
	add := func(f checker.Finding, now, after checker.Verdict) {
		if now == after && after != checker.Affected {
			return
		}
		q := QuirkChange{Quirk: f.Quirk, Title: f.Title, Severity: f.Severity, Effect: f.Effect, Now: now, Then: after}
		bound, sized := bounds[f.Quirk]
		if sized {
			q.SafeMaxSectors = &bound
		}
		risk := false
		switch {
		case after == checker.Affected && now != checker.Affected:
			risk = true
		case after == checker.Affected && sized && c.FromKB != nil && c.ToKB != nil && *c.ToKB > *c.FromKB && *c.ToKB > bound/2:
			risk = true
			q.Why = fmt.Sprintf("%d KiB is further above its bound of %d sectors", *c.ToKB, bound)
			further = append(further, f.Quirk)
		case after == checker.Unknown && now != checker.Unknown:
			open = true
		}
		if after == checker.Unknown && len(f.Advice) > 0 {
			q.Why = f.Advice[0]
		}
		if risk {
			worse = true
			if f.Severity.Rank() > c.Severity.Rank() {
				c.Severity = f.Severity
			}
		}
		c.Quirks = append(c.Quirks, q)
	}
	for _, f := range t.findings {
		now := checker.NotAffected
		if i := slices.IndexFunc(d.findings, func(o checker.Finding) bool { return o.Quirk == f.Quirk }); i >= 0 {
			now = d.findings[i].Verdict
		}
		add(f, now, f.Verdict)
	}
	for _, f := range d.findings {
		if !slices.ContainsFunc(t.findings, func(o checker.Finding) bool { return o.Quirk == f.Quirk }) {
			add(f, f.Verdict, checker.NotAffected)
		}
	}
	slices.SortFunc(c.Quirks, func(a, b QuirkChange) int { return strings.Compare(a.Quirk, b.Quirk) })
	return worse, open, further
}

// limitReason says what becomes of the limit, and why.
func limitReason(d *device, t *then, to kernel.Release) string {
	p, seen := t.predict, d.inputs.Observed.MaxSectorsKB
	because := strings.Join(p.Because, ", ")
	with := func(text string) string {
		if because != "" {
			text += ": " + because
		}
		return text
	}
	switch {
	case !p.MaxSectorsKB.Known:
		text := "the limit under " + to.Upstream() + " is not known"
		for i, m := range p.Missing {
			text += []string{", for want of ", ", "}[min(i, 1)] + m.Input
		}
		return sentence(text, d.user.why)
	case !seen.Known:
		return with(fmt.Sprintf("%d KiB then; the present limit is not known", p.MaxSectorsKB.V))
	case d.user.kib.Known && p.MaxSectorsKB == d.user.kib:
		text := d.user.why
		if p.DefaultKB.Known && p.DefaultKB != p.MaxSectorsKB {
			text += fmt.Sprintf("; by itself %s would choose %d", to.Upstream(), p.DefaultKB.V)
		}
		return text
	case d.user.kib.Known:
		return with(d.user.why + fmt.Sprintf("; %s makes %d KiB of it", to.Upstream(), p.MaxSectorsKB.V))
	case p.MaxSectorsKB == seen:
		return sentence(with(fmt.Sprintf("stays at %d KiB", seen.V)), d.user.why)
	}
	was, is := told(d.from.Because, p.Because)
	return sentence(fmt.Sprintf("from %d KiB%s to %d KiB%s", seen.V, was, p.MaxSectorsKB.V, is), d.user.why)
}

// told puts what two predictions rest on in brackets, without what both do
// where that leaves the later one anything.
func told(was, is []string) (string, string) {
	brackets := func(list []string) string {
		if len(list) == 0 {
			return ""
		}
		return " (" + strings.Join(list, ", ") + ")"
	}
	less := func(a, b []string) []string {
		return slices.DeleteFunc(slices.Clone(a), func(s string) bool { return slices.Contains(b, s) })
	}
	if only := less(is, was); len(only) > 0 {
		return brackets(less(was, is)), brackets(only)
	}
	return "", brackets(is)
}

// aheadReason tells of read-ahead that changes with the limit.
func aheadReason(d *device, t *then) string {
	if a := d.readAhead.seen; a.Known && t.ahead.Known && a != t.ahead {
		return fmt.Sprintf("read_ahead_kb from %d to %d", a.V, t.ahead.V)
	}
	return ""
}

// verdictReason says which findings make the class.
func verdictReason(c *Change, further []string) string {
	var parts []string
	for _, q := range c.Quirks {
		switch {
		case slices.Contains(further, q.Quirk):
			parts = append(parts, fmt.Sprintf("%s: affected, and the limit rises further above its %d sectors", q.Quirk, *q.SafeMaxSectors))
		case q.Now == q.Then: // affected, as before
		case q.Then == checker.NotAffected:
			parts = append(parts, fmt.Sprintf("%s: %s now, no longer then", q.Quirk, q.Now))
		case q.Now == checker.NotAffected:
			parts = append(parts, fmt.Sprintf("%s: %s then", q.Quirk, q.Then))
		default:
			parts = append(parts, fmt.Sprintf("%s: %s now, %s then", q.Quirk, q.Now, q.Then))
		}
	}
	return sentence(parts...)
}

// warn adds what is no finding and should be known all the same.
func (h *Host) warn(d *device, t *then, to kernel.Release, c *Change) {
	p, seen := t.predict, d.inputs.Observed.MaxSectorsKB
	add := func(format string, a ...any) { c.Warnings = append(c.Warnings, fmt.Sprintf(format, a...)) }
	ever := seen // the most it ever ran with, as far as this machine shows
	if d.from.DefaultKB.Known && d.from.DefaultKB.V > ever.V {
		ever = d.from.DefaultKB
	}
	if hardware(d.report) && p.MaxSectorsKB.Known && seen.Known && p.MaxSectorsKB.V > ever.V && !sized(c) {
		c.rises = true
		add("its limit rises from %d to %d KiB, past what this disk ever ran with by default; nothing is known against it, and nothing for it", seen.V, p.MaxSectorsKB.V)
	}
	if p.MaxSectorsKB.Known && p.Certainty == kernel.Low {
		text := "the prediction is not certain"
		for i, m := range p.Missing {
			text += []string{", for want of ", "; of "}[min(i, 1)] + m.Input + " (could change " + m.Could + ")"
		}
		add("%s", text)
	}
	if p.Beyond {
		add("%s is newer than the newest kernel that is known; it is predicted with the newest rules", to.Upstream())
	}
	if u := d.user.kib; u.Known {
		if after, ok := readAheadAfterWrite(d, t, to, p.MaxSectorsKB); ok {
			add("from 6.18 on the write that sets %d KiB raises read_ahead_kb too, here to %d: set read_ahead_kb after it", u.V, after)
		}
	}
	if d.user.differs && !d.user.kib.Known {
		add("%s", d.user.why)
	}
}

// hardware tells a disk from what is made of disks or of memory.
func hardware(d *checker.Device) bool { return d.Kind == "disk" && d.Stack == nil }

// sized reports whether a finding that bounds the size speaks of the device
// then: its limit is judged by that.
func sized(c *Change) bool {
	return slices.ContainsFunc(c.Quirks, func(q QuirkChange) bool { return q.SafeMaxSectors != nil && q.Then == checker.Affected })
}
