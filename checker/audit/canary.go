package audit

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// Wave is how early a host may be upgraded, by what it risks.
type Wave string

// The waves, first to last.
const (
	WaveUnchanged Wave = "unchanged"
	WaveFixed     Wave = "fixed-by-upgrade"
	WaveWarned    Wave = "warned"
	WaveUnknown   Wave = "unknown"
	WaveRisk      Wave = "new-risk"
)

var waves = []Wave{WaveUnchanged, WaveFixed, WaveWarned, WaveUnknown, WaveRisk}

// Canary is a host's place in the order of a fleet's upgrade.
type Canary struct {
	Order  int    `json:"order"` // from 1
	Input  string `json:"input"`
	HostID string `json:"host_id,omitempty"`
	Label  string `json:"label,omitempty"`
	Wave   Wave   `json:"wave"`
	// Alike is how many hosts of the fleet have the same disks with the same
	// change, this one with them.
	Alike int    `json:"alike"`
	Why   string `json:"why"`
}

// Fleet gathers the order in which hosts go. It keeps a few words of each.
type Fleet struct {
	hosts []member
	at    map[string]int
}

type member struct {
	Canary
	severity quirks.Severity
	counts   Outcome
	alike    uint64 // the same for hosts with the same disks and changes
}

// Add takes a host's report; a host of several targets is added with each, and
// the worst counts.
func (f *Fleet) Add(c Canary, r *Report) {
	m := member{Canary: c, counts: r.Outcome}
	o := r.Outcome
	bites := false // a regression that enters
	for _, g := range r.Regressions {
		if g.Direction == Enters {
			bites = bites || g.Verdict == checker.Affected && !g.Change
			if g.Verdict == checker.Affected && g.Severity.Rank() > m.severity.Rank() {
				m.severity = g.Severity
			}
		}
	}
	for _, d := range r.Devices {
		if d.Change.Severity.Rank() > m.severity.Rank() {
			m.severity = d.Change.Severity
		}
	}
	switch {
	case o.NewRisk > 0 || bites:
		m.Wave = WaveRisk
	case o.Unknown > 0:
		m.Wave = WaveUnknown
	case o.Warned > 0:
		m.Wave = WaveWarned
	case o.FixedByUpgrade > 0:
		m.Wave = WaveFixed
	default:
		m.Wave = WaveUnchanged
	}
	m.alike = signature(r)
	if f.at == nil {
		f.at = map[string]int{}
	}
	i, again := f.at[c.Input]
	if !again {
		f.at[c.Input] = len(f.hosts)
		f.hosts = append(f.hosts, m)
		return
	}
	old := &f.hosts[i]
	m.alike = old.alike*31 + m.alike
	if slices.Index(waves, m.Wave) < slices.Index(waves, old.Wave) {
		old.alike = m.alike
		return
	}
	if old.severity.Rank() > m.severity.Rank() {
		m.severity = old.severity
	}
	*old = m
}

// signature is the same for two hosts whose disks have the same names, ways and
// changes.
func signature(r *Report) uint64 {
	lines := make([]string, 0, len(r.Devices))
	for _, d := range r.Devices {
		if empty(d.Device) {
			continue
		}
		text := func(s *string) string {
			if s == nil {
				return "?"
			}
			return *s
		}
		n := func(v *uint64) uint64 {
			if v == nil {
				return 0
			}
			return *v
		}
		id := d.Identity
		name := d.Kind
		switch {
		case id.ATA != nil:
			name = text(id.ATA.Model) + "|" + text(id.ATA.Firmware)
		case id.NVMe != nil:
			name = text(id.NVMe.Model) + "|" + text(id.NVMe.Firmware)
		case id.SCSI != nil:
			name = text(id.SCSI.Vendor) + "|" + text(id.SCSI.Product) + "|" + text(id.SCSI.Revision)
		}
		lines = append(lines, fmt.Sprintf("%s|%s|%d|%d|%s", name, text(d.Path), n(d.Change.FromKB), n(d.Change.ToKB), d.Change.Class))
	}
	slices.Sort(lines)
	hash := fnv.New64a()
	hash.Write([]byte(strings.Join(slices.Compact(lines), "\n")))
	return hash.Sum64()
}

// Order is who goes first: hosts on which nothing changes, then those that only
// gain, then those with a warning, then those of which something is not known,
// and last those at risk, the least severe before the others. Within a wave one
// host of each kind goes before the rest of its kind, the commonest kind first,
// since it speaks for the most others.
func (f *Fleet) Order() []Canary {
	type kind struct {
		wave  Wave
		alike uint64
	}
	count := map[kind]int{}
	for _, m := range f.hosts {
		count[kind{m.Wave, m.alike}]++
	}
	hosts := slices.Clone(f.hosts)
	seen := map[kind]bool{}
	first := make(map[string]bool, len(count))
	slices.SortStableFunc(hosts, func(a, b member) int { return strings.Compare(a.Input, b.Input) })
	for _, m := range hosts {
		k := kind{m.Wave, m.alike}
		if !seen[k] {
			seen[k], first[m.Input] = true, true
		}
	}
	lead := func(m member) int {
		if first[m.Input] {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(hosts, func(a, b member) int {
		return cmp.Or(cmp.Compare(slices.Index(waves, a.Wave), slices.Index(waves, b.Wave)), cmp.Compare(a.severity.Rank(), b.severity.Rank()),
			cmp.Compare(lead(a), lead(b)), cmp.Compare(count[kind{b.Wave, b.alike}], count[kind{a.Wave, a.alike}]))
	})
	out := make([]Canary, len(hosts))
	for i, m := range hosts {
		c := m.Canary
		c.Order, c.Alike, c.Why = i+1, count[kind{m.Wave, m.alike}], m.why()
		switch {
		case c.Alike > 1 && first[m.Input]:
			c.Why += fmt.Sprintf("; it speaks for %d hosts with the same disks", c.Alike)
		case c.Alike > 1:
			c.Why += "; a host with the same disks goes before it"
		}
		out[i] = c
	}
	return out
}

func (m member) why() string {
	devices := func(n int) string {
		if n == 1 {
			return "1 device"
		}
		return fmt.Sprintf("%d devices", n)
	}
	switch m.Wave {
	case WaveUnchanged:
		return "nothing changes on it"
	case WaveFixed:
		return "the upgrade cures " + devices(m.counts.FixedByUpgrade) + " and harms none"
	case WaveWarned:
		return devices(m.counts.Warned) + " with a warning, and no known fault"
	case WaveUnknown:
		return "what becomes of " + devices(m.counts.Unknown) + " is not known"
	}
	if m.counts.NewRisk == 0 {
		return fmt.Sprintf("a fault of that kernel concerns it (%s): deploy first", m.severity)
	}
	return fmt.Sprintf("%s at new risk (%s): deploy first", devices(m.counts.NewRisk), m.severity)
}
