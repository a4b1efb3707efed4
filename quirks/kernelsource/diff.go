package kernelsource

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// State is how a row stands to the database.
type State string

// States, in the order they are shown.
const (
	New      State = "new"      // a row without an entry
	Changed  State = "changed"  // the entries of the row say something else
	Vanished State = "vanished" // entries say that the release has the row, and it is not there
	Excepted State = "excepted" // a row without an entry that needs none
)

// Difference is one row that is not as the database has it.
type Difference struct {
	State   State    `json:"state"`
	Family  Family   `json:"family"`
	Key     string   `json:"key"`
	File    string   `json:"file,omitempty"`
	Line    int      `json:"line,omitempty"`
	Tree    []string `json:"tree"`     // flags of the source tree
	Entries []string `json:"entries"`  // ids of the entries about the row
	Have    []string `json:"database"` // flags that they give this release
	Why     []string `json:"why,omitempty"`

	row Row
}

// Count sums up one family.
type Count struct {
	Family   Family `json:"family"`
	Rows     int    `json:"rows"`
	Same     int    `json:"same"`
	New      int    `json:"new"`
	Changed  int    `json:"changed"`
	Vanished int    `json:"vanished"`
	Excepted int    `json:"excepted"`
}

// Diff is a source tree against the database.
type Diff struct {
	SchemaVersion string       `json:"schema_version"`
	Release       string       `json:"release"`
	Database      string       `json:"database"`
	Counts        []Count      `json:"families"`
	Differences   []Difference `json:"differences"`
	Faults        []Fault      `json:"faults"`
	NotCompared   []Count      `json:"not_compared"` // families that were not asked for, and the limits of drivers
	Limits        []Limit      `json:"limits,omitempty"`
}

// Differs reports whether anything is to be reviewed.
func (d *Diff) Differs() bool {
	return len(d.Faults) > 0 || slices.ContainsFunc(d.Differences, func(x Difference) bool { return x.State != Excepted })
}

// rule is what one entry says about one row.
type rule struct {
	entry    *quirks.Entry
	model    quirks.Pattern // libata
	firmware string
	vendor   string // scsi
	product  string
}

// prefixes are how the flags of a family begin.
var prefixes = map[Family][]string{Libata: {"ATA_QUIRK_", "ATA_HORKAGE_"}, SCSI: {"BLIST_"}, SPI: {"SPI_BLIST_"}, USB: {"US_FL_"}, UAS: {"US_FL_"}, NVMeCore: {"NVME_QUIRK_"}, NVMePCI: {"NVME_QUIRK_"}}

func (f Family) owns(flag string) bool {
	return slices.ContainsFunc(prefixes[f], func(p string) bool { return strings.HasPrefix(flag, p) })
}

// Compared lists the families whose rows are entries, or are to be.
func Compared() []Family { return []Family{Libata, SCSI, SPI} }

// Compare compares the rows of some families with the entries. A row is the
// same when entries name exactly what it names, give the release of the tree
// exactly its flags, and take away the rows before it that overlap. [Limits] are
// listed where they are asked for, and not compared.
func Compare(t *Tree, db *quirks.Set, families []Family) *Diff {
	d := &Diff{SchemaVersion: "1.0", Release: t.Release.Upstream(), Database: db.Version.Version, Counts: []Count{}, Differences: []Difference{}, Faults: orEmpty(t.Faults), NotCompared: []Count{}}
	entries := db.Entries()
	for _, f := range Families() {
		rows := t.Of(f)
		if !slices.Contains(families, f) {
			d.NotCompared = append(d.NotCompared, Count{Family: f, Rows: len(rows)})
			continue
		}
		c := Count{Family: f, Rows: len(rows)}
		var found []Difference
		if len(rows) > 0 { // a tree without the file says nothing about it
			found = compareFamily(f, rows, rulesOf(f, entries), t.Release)
		}
		for _, x := range found {
			switch x.State {
			case New:
				c.New++
			case Changed:
				c.Changed++
			case Vanished:
				c.Vanished++
			case Excepted:
				c.Excepted++
			}
		}
		c.Same = c.Rows - c.New - c.Changed - c.Excepted
		d.Counts = append(d.Counts, c)
		d.Differences = append(d.Differences, found...)
	}
	d.NotCompared = append(d.NotCompared, Count{Family: Limits, Rows: len(t.Limits)})
	if slices.Contains(families, Limits) {
		d.Limits = t.Limits
	}
	order := []State{New, Changed, Vanished, Excepted}
	slices.SortStableFunc(d.Differences, func(a, b Difference) int {
		return cmp.Or(cmp.Compare(slices.Index(Families(), a.Family), slices.Index(Families(), b.Family)),
			cmp.Compare(slices.Index(order, a.State), slices.Index(order, b.State)), cmp.Compare(a.Line, b.Line), strings.Compare(a.Key, b.Key))
	})
	return d
}

func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// rulesOf lists, by key, what entries say about rows of the family.
func rulesOf(f Family, entries []*quirks.Entry) map[string][]rule {
	rules := map[string][]rule{}
	for _, e := range entries {
		if e.Withdrawn != "" || e.Kernel == nil || !slices.ContainsFunc(e.Kernel.Mitigated, func(m quirks.Mitigated) bool {
			return slices.ContainsFunc(m.Flag, func(x quirks.Flag) bool { return f.owns(x.Name) })
		}) {
			continue
		}
		for i := range e.Where.Any {
			for _, r := range armRules(f, e, &e.Where.Any[i]) {
				rules[r.key(f)] = append(rules[r.key(f)], r)
			}
		}
	}
	return rules
}

// armRules are the rows that an arm stands for.
func armRules(f Family, e *quirks.Entry, a *quirks.Arm) []rule {
	d := a.Device
	var out []rule
	switch {
	case d == nil:
	case f == Libata && d.Space == "ata":
		fws := []string{""}
		if len(d.Firmware.Patterns) > 0 {
			fws = nil
			for _, p := range d.Firmware.Patterns {
				fws = append(fws, p.String())
			}
		}
		for _, m := range d.Model {
			for _, fw := range fws {
				out = append(out, rule{entry: e, model: m, firmware: fw})
			}
		}
	case (f == SCSI || f == SPI) && d.Space == "scsi" && d.Revision.IsZero() && (d.ProductIs == "prefix" || len(d.Product) == 0):
		products := []string{""}
		if len(d.Product) > 0 {
			products = nil
			for _, p := range d.Product {
				products = append(products, p.String())
			}
		}
		for _, v := range d.Vendor {
			for _, p := range products {
				out = append(out, rule{entry: e, vendor: v.String(), product: p})
			}
		}
	}
	return out
}

func (r rule) key(f Family) string {
	return Row{Family: f, Model: r.model.String(), Firmware: r.firmware, Vendor: r.vendor, Product: r.product}.Key()
}

// plain is a row with blanks off the ends of its strings, as entries have them:
// strings are compared trimmed.
func plain(r Row) Row {
	r.Model, r.Firmware, r.Vendor, r.Product = strings.Trim(r.Model, " "), strings.Trim(r.Firmware, " "), strings.Trim(r.Vendor, " "), strings.Trim(r.Product, " ")
	return r
}

func compareFamily(f Family, rows []Row, rules map[string][]rule, release kernel.Release) []Difference {
	var out []Difference
	here := map[string]bool{}
	m := newMatcher(f, rows)
	for i, row := range rows {
		key := plain(row).Key()
		if here[key] {
			continue // the same row again: the first one counts
		}
		here[key] = true
		x := Difference{Family: f, Key: key, File: row.File, Line: row.Line, Tree: sorted(row.Flags), Entries: []string{}, Have: []string{}, row: row}
		rs := rules[key]
		if len(rs) == 0 {
			x.State = New
			if j := slices.IndexFunc(Exceptions(), func(e Exception) bool { return e.Family == f && e.Key == key }); j >= 0 {
				x.State, x.Why = Excepted, []string{Exceptions()[j].Why}
			} else if len(row.Flags) == 0 {
				if len(m.shadowed(i, rules)) == 0 {
					continue // a row without a flag stands in match.none of the others
				}
				x.Why = []string{"the row has no flag and belongs into match.none of later ones: " + strings.Join(m.shadowed(i, rules), ", ")}
			}
			out = append(out, x)
			continue
		}
		limits := map[uint32]bool{}
		unsure := false
		for _, r := range rs {
			flags, known := r.entry.ListedFlags(release)
			unsure = unsure || !known
			x.Entries = append(x.Entries, r.entry.ID)
			for _, fl := range flags {
				if f.owns(fl) {
					x.Have = append(x.Have, fl)
				}
			}
			for _, mit := range r.entry.Kernel.Mitigated {
				if mit.Limits != nil {
					limits[mit.Limits.MaxSectors] = true
				}
			}
			for _, e := range m.earlier(i) {
				if !takesAway(f, r.entry, rows[e]) {
					x.Why = append(x.Why, fmt.Sprintf("%s does not take away the earlier row %s", r.entry.ID, plain(rows[e]).Key()))
				}
			}
		}
		x.Have, x.Entries = sorted(x.Have), sorted(x.Entries)
		if !slices.Equal(x.Have, x.Tree) {
			why := "flags differ"
			if unsure {
				why = "flags differ, and an entry does not know this release"
			}
			x.Why = append(x.Why, why)
		}
		if row.MaxSectors > 0 && !limits[row.MaxSectors] {
			x.Why = append(x.Why, fmt.Sprintf("the tree's limit of %d sectors is in no entry", row.MaxSectors))
		}
		if len(x.Why) > 0 {
			x.State = Changed
			out = append(out, x)
		}
	}
	for key, rs := range rules {
		if here[key] {
			continue
		}
		x := Difference{State: Vanished, Family: f, Key: key, Tree: []string{}, Entries: []string{}, Have: []string{}}
		for _, r := range rs {
			flags, _ := r.entry.ListedFlags(release)
			flags = slices.DeleteFunc(flags, func(fl string) bool { return !f.owns(fl) })
			// What a wider row of the tree gives is not gone.
			if row, ok := m.covering(r); ok {
				flags = slices.DeleteFunc(flags, func(fl string) bool { return slices.Contains(row.Flags, fl) })
			}
			if len(flags) > 0 {
				x.Entries, x.Have = append(x.Entries, r.entry.ID), append(x.Have, flags...)
			}
		}
		if x.Have, x.Entries = sorted(x.Have), sorted(x.Entries); len(x.Have) > 0 {
			out = append(out, x)
		}
	}
	return out
}

func sorted(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return orEmpty(slices.Compact(list))
}

// matcher compares rows of one table with each other.
type matcher struct {
	f      Family
	rows   []Row
	models []quirks.Pattern // libata
	fws    []quirks.Pattern
}

func newMatcher(f Family, rows []Row) *matcher {
	m := &matcher{f: f, rows: rows, models: make([]quirks.Pattern, len(rows)), fws: make([]quirks.Pattern, len(rows))}
	if f == Libata {
		for i, r := range rows {
			r = plain(r)
			m.models[i], _ = quirks.CompilePattern(r.Model)
			m.fws[i], _ = quirks.CompilePattern(cmp.Or(r.Firmware, "*"))
		}
	}
	return m
}

// matchesNothing tells a libata row whose literal revision is longer than the
// field it is compared with.
func (m *matcher) matchesNothing(i int) bool {
	lit, ok := m.fws[i].Literal()
	return ok && len(lit) > 8
}

// earlier lists the rows before i that overlap with it.
func (m *matcher) earlier(i int) []int {
	var out []int
	row := plain(m.rows[i])
	for j := range i {
		e := plain(m.rows[j])
		if e.Key() == row.Key() {
			continue
		}
		switch m.f {
		case Libata:
			if !m.matchesNothing(j) && m.models[j].Overlaps(m.models[i]) && m.fws[j].Overlaps(m.fws[i]) {
				out = append(out, j)
			}
		case SCSI, SPI:
			if e.Vendor == row.Vendor && (strings.HasPrefix(e.Product, row.Product) || strings.HasPrefix(row.Product, e.Product)) {
				out = append(out, j)
			}
		}
	}
	return out
}

// shadowed lists the entries of later rows that do not take row i away.
func (m *matcher) shadowed(i int, rules map[string][]rule) []string {
	var out []string
	for j := i + 1; j < len(m.rows); j++ {
		if !slices.Contains(m.earlier(j), i) {
			continue
		}
		for _, r := range rules[plain(m.rows[j]).Key()] {
			if !takesAway(m.f, r.entry, m.rows[i]) {
				out = append(out, r.entry.ID)
			}
		}
	}
	return sorted(out)
}

// covering returns the first row of the tree that takes everything a rule is
// about.
func (m *matcher) covering(r rule) (Row, bool) {
	fw, err := quirks.CompilePattern(cmp.Or(r.firmware, "*"))
	if err != nil {
		return Row{}, false
	}
	for i, row := range m.rows {
		p := plain(row)
		switch m.f {
		case Libata:
			if m.models[i].Covers(r.model) && m.fws[i].Covers(fw) {
				return row, true
			}
		case SCSI, SPI:
			if p.Vendor == r.vendor && strings.HasPrefix(r.product, p.Product) {
				return row, true
			}
		}
	}
	return Row{}, false
}

// takesAway reports whether match.none of an entry names a row.
func takesAway(f Family, e *quirks.Entry, row Row) bool {
	key := plain(row).Key()
	for i := range e.Where.None {
		if slices.ContainsFunc(armRules(f, e, &e.Where.None[i]), func(r rule) bool { return r.key(f) == key }) {
			return true
		}
	}
	return false
}
