package quirks

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
)

// Set is an indexed collection of entries. It is safe for concurrent use.
type Set struct {
	Version Version
	slots   []slot // sorted by id
	byID    map[string]int
	index   map[string]*bucket // by identity space
	gates   []gated            // of arms that name no device
	picksMu sync.RWMutex       // guards picks
	picks   map[pickKey][]int
	mu      sync.Mutex // guards slots[i].entry and faults
	faults  []Fault
}

// slot is an entry, or a file of which only the index rows are known yet.
type slot struct {
	id    string
	entry *Entry
	tried bool // parsing it was tried
	fsys  fs.FS
	file  string
}

// bucket holds the index rows of one identity space: those that name one whole
// string, and those with a wildcard by the literal text before it. For a name
// of which only the start is known both are kept by their first bytes.
type bucket struct {
	whole map[string][]indexKey
	lead  map[string][]indexKey
	leads []int // the lengths of the keys of lead
	by    map[string][]indexKey
}

// byLen bytes part the disks of one maker well enough, and a cut name has more.
const byLen = 4

// keys calls f for every row.
func (b *bucket) keys(f func(indexKey)) {
	for _, keys := range b.by {
		for _, k := range keys {
			f(k)
		}
	}
}

type indexKey struct {
	slot    int
	pattern Pattern
}

// Version is the database's version and serial, which only grows.
type Version struct {
	Version string // YYYY.MM.DD.N
	Serial  int
}

// Len returns the number of entries.
func (s *Set) Len() int { return len(s.slots) }

// IDs returns all ids, sorted.
func (s *Set) IDs() []string {
	ids := make([]string, len(s.slots))
	for i := range s.slots {
		ids[i] = s.slots[i].id
	}
	return ids
}

// Entry returns the entry of that id, or by one of its former names.
func (s *Set) Entry(id string) (*Entry, bool) {
	if i, ok := s.byID[id]; ok {
		e := s.load(i)
		return e, e != nil
	}
	for i := range s.slots {
		if e := s.load(i); e != nil && slices.Contains(e.Aliases, id) {
			return e, true
		}
	}
	return nil, false
}

// Entries returns all entries by id; files that do not parse are left out and
// are among Faults.
func (s *Set) Entries() []*Entry {
	entries := make([]*Entry, 0, len(s.slots))
	for i := range s.slots {
		if e := s.load(i); e != nil {
			entries = append(entries, e)
		}
	}
	return entries
}

// Faults returns what could not be loaded, at load or since.
func (s *Set) Faults() []Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.faults)
}

// load parses a slot on first use.
func (s *Set) load(i int) *Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	sl := &s.slots[i]
	if sl.entry == nil && !sl.tried {
		e, faults := parseFile(sl.fsys, sl.file)
		sl.entry, sl.tried = e, true
		s.faults = append(s.faults, faults...)
	}
	return sl.entry
}

// Match returns the entries that apply to the subject or may, by id; those
// that do not are left out.
func (s *Set) Match(sub *Subject) []Match { return s.match(sub, allGates) }

// MatchAvoid is Match as far as it concerns commands that must not be sent: an
// entry that names no device and no such command is not among the answers.
func (s *Set) MatchAvoid(sub *Subject) []Match { return s.match(sub, avoidGates) }

func (s *Set) match(sub *Subject, gates whichGates) []Match {
	var out []Match
	list := s.candidates(sub, gates)
	for n, i := range list {
		e := s.load(i)
		if e == nil || e.deniedBy(sub) {
			continue
		}
		if m := e.Match(sub); m.Truth != False {
			if out == nil {
				out = make([]Match, 0, len(list)-n)
			}
			out = append(out, m)
		}
	}
	return out
}

// Named returns the entries whose device predicates alone hold for the subject,
// by id.
func (s *Set) Named(sub *Subject) []*Entry {
	var out []*Entry
	for _, i := range s.candidates(sub, noGates) {
		if e := s.load(i); e != nil && e.NamesDevice(sub) == True {
			out = append(out, e)
		}
	}
	return out
}

// whichGates says which entries are asked for beside those that name the device.
type whichGates int

const (
	allGates whichGates = iota
	avoidGates
	noGates
)

// candidates returns the slots whose index rows do not rule the subject out,
// in order.
func (s *Set) candidates(sub *Subject, gates whichGates) []int {
	var hit []int
	// ask looks among the rows that name can satisfy: the whole of a device's
	// string, or the start of one where cut is set.
	ask := func(space, name string, cut bool, truth func(Pattern) Truth) {
		b := s.index[space]
		if b == nil {
			return
		}
		test := func(k indexKey) {
			if truth(k.pattern) != False {
				hit = append(hit, k.slot)
			}
		}
		switch {
		case cut && len(name) < byLen:
			b.keys(test)
		case cut:
			for n := range byLen + 1 {
				for _, k := range b.by[name[:n]] {
					test(k)
				}
			}
		default:
			for _, k := range b.whole[name] {
				test(k)
			}
			for _, n := range b.leads {
				if n > len(name) {
					break
				}
				for _, k := range b.lead[name[:n]] {
					test(k)
				}
			}
		}
	}
	always := func(Pattern) Truth { return Unknown }
	if v := sub.ataView(); v.space != False {
		switch {
		case v.wholeModel.Known:
			ask("ata", v.wholeModel.trimmed(), v.blanks > 0, v.modelTruth)
		case v.modelCut:
			ask("ata", v.product.trimmed(), true, v.modelTruth)
		default:
			ask("ata", "", true, always)
		}
	}
	if id := sub.scsiView(); id.Vendor.Known {
		v := id.Vendor.trimmed()
		ask("scsi", v, false, func(p Pattern) Truth { return truthOf(p.Match(v)) })
	} else if t, _, _ := sub.spaceTruth("scsi", id.Product.Known); t != False {
		ask("scsi", "", true, always)
	}
	if sub.Device.Space == "nvme" && sub.Device.Model.Known {
		m := sub.Device.Model.trimmed()
		ask("nvme", m, false, func(p Pattern) Truth { return truthOf(p.Match(m)) })
	} else if t, _, _ := sub.spaceTruth("nvme", sub.Device.Space == "nvme"); t != False {
		ask("nvme", "", true, always)
	}
	if gates != noGates {
		hit = append(hit, s.picked(sub, gates == avoidGates)...)
	}
	slices.Sort(hit)
	return slices.Compact(hit)
}

// spaceAny is the space of arms that name no device: the pattern is a gate.
const spaceAny = "any"

// indexRow is one line of index.tsv: an entry can concern only subjects whose
// name in the space the pattern does not rule out.
type indexRow struct {
	Space, Pattern string
}

// indexRows derives an entry's rows from its arms.
func (e *Entry) indexRows() []indexRow {
	var rows []indexRow
	add := func(space string, p Patterns) {
		if len(p) == 0 {
			rows = append(rows, indexRow{space, "*"})
		}
		for _, pat := range p {
			rows = append(rows, indexRow{space, pat.text})
		}
	}
	for i := range e.Where.Any {
		arm := &e.Where.Any[i]
		switch d := arm.Device; {
		case d == nil:
			rows = append(rows, indexRow{spaceAny, gateOf(e, arm).String()})
		case d.Space == "scsi":
			add("scsi", d.Vendor)
		case d.Space == "ata" || d.Space == "nvme":
			add(d.Space, d.Model)
		default:
			rows = append(rows, indexRow{spaceAny, gate{avoid: len(e.Avoid) > 0}.String()})
		}
	}
	slices.SortFunc(rows, func(a, b indexRow) int {
		if c := strings.Compare(a.Space, b.Space); c != 0 {
			return c
		}
		return strings.Compare(a.Pattern, b.Pattern)
	})
	return slices.Compact(rows)
}

// newSet indexes slots; rows gives each slot's index rows.
func newSet(slots []slot, rows map[string][]indexRow) (*Set, error) {
	slices.SortFunc(slots, func(a, b slot) int { return strings.Compare(a.id, b.id) })
	s := &Set{slots: slots, byID: make(map[string]int, len(slots)), index: map[string]*bucket{}}
	for i, sl := range slots {
		if _, dup := s.byID[sl.id]; dup {
			return nil, fmt.Errorf("id %s appears twice", sl.id)
		}
		s.byID[sl.id] = i
		for _, r := range rows[sl.id] {
			if r.Space == spaceAny {
				g, err := parseGate(r.Pattern)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", sl.id, err)
				}
				s.gates = append(s.gates, gated{i, r.Pattern, g})
				continue
			}
			b := s.index[r.Space]
			if b == nil {
				b = &bucket{whole: map[string][]indexKey{}, lead: map[string][]indexKey{}, by: map[string][]indexKey{}}
				s.index[r.Space] = b
			}
			p, err := CompilePattern(r.Pattern)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", sl.id, err)
			}
			key := indexKey{i, p}
			text, isLit := p.Literal()
			if isLit {
				b.whole[text] = append(b.whole[text], key)
			} else {
				text = p.lead
				b.lead[text] = append(b.lead[text], key)
				if !slices.Contains(b.leads, len(text)) {
					b.leads = append(b.leads, len(text))
				}
			}
			by := text[:min(len(text), byLen)]
			b.by[by] = append(b.by[by], key)
		}
	}
	for _, b := range s.index {
		slices.Sort(b.leads)
	}
	return s, nil
}

// Merge returns the set with over's entries added; an entry of the same id
// replaces the one below it. Both stay as they are.
func (s *Set) Merge(over *Set) (*Set, error) {
	rows := map[string][]indexRow{}
	var slots []slot
	take := func(from *Set, skip map[string]int) {
		from.mu.Lock()
		defer from.mu.Unlock()
		patterns := make([][]indexRow, len(from.slots))
		for space, b := range from.index {
			b.keys(func(k indexKey) { patterns[k.slot] = append(patterns[k.slot], indexRow{space, k.pattern.text}) })
		}
		for _, g := range from.gates {
			patterns[g.slot] = append(patterns[g.slot], indexRow{spaceAny, g.text})
		}
		for i, sl := range from.slots {
			if _, replaced := skip[sl.id]; replaced {
				continue
			}
			rows[sl.id] = patterns[i]
			slots = append(slots, sl)
		}
	}
	take(s, over.byID)
	take(over, nil)
	out, err := newSet(slots, rows)
	if err != nil {
		return nil, err
	}
	out.Version = s.Version
	out.faults = append(s.Faults(), over.Faults()...)
	return out, nil
}

// Text returns the file of an entry as it was written.
func (s *Set) Text(id string) ([]byte, error) {
	e, ok := s.Entry(id)
	if !ok {
		return nil, fmt.Errorf("no entry %q", id)
	}
	i := s.byID[e.ID]
	return readBounded(s.slots[i].fsys, s.slots[i].file)
}
