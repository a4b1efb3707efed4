package quirks

import (
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/schema"
)

// Lint checks every entry file of a tree: schema, then meaning, then the
// examples, each against its own entry and against every other one. against
// adds the entries of another set to that cross-match (nil: none). All faults
// come at once, by file and line. The verdicts of examples are the checker's
// to lint.
func Lint(fsys fs.FS, against *Set) []Fault {
	files, faults := entryFiles(fsys)
	l := linter{ids: map[string]string{}, titles: map[string]string{}}
	for _, file := range files {
		l.file(fsys, file)
	}
	l.cross(against)
	faults = append(faults, l.faults...)
	slices.SortStableFunc(faults, func(a, b Fault) int {
		if c := strings.Compare(a.File, b.File); c != 0 {
			return c
		}
		return a.Line - b.Line
	})
	return slices.Compact(faults)
}

type linter struct {
	faults []Fault
	docs   []lintDoc
	ids    map[string]string // id or alias to file
	titles map[string]string
}

type lintDoc struct {
	entry *Entry
	lines map[string]int // field path to line
}

// lintRules is every code Lint can give, for documentation and its test.
var lintRules = map[string]string{
	"read":            "the file cannot be read",
	"yaml":            "the file is no YAML document of this shape",
	"unknown-key":     "a key the schema does not know",
	"schema":          "a value the schema does not allow",
	"schema-version":  "written for another version of the schema",
	"id-file":         "the id is not the file name",
	"id-folder":       "the folder is not the first word of the id",
	"duplicate-id":    "an id or alias is taken already",
	"duplicate-title": "a title is taken already",
	"match-empty":     "the entry matches nothing",
	"match-too-wide":  "an arm would match every device of its space",
	"space-field":     "a field that its identity space does not have",
	"pattern":         "a pattern that cannot match what it names",
	"kernel-tree":     "a statement about a kernel tree that makes no sense",
	"reference":       "a reference that is no link",
	"related":         "a related entry that does not exist",
	"effect-needs":    "the effect needs limits, want, avoid or mitigations",
	"example":         "an example that the entry does not answer as it says",
	"example-fails":   "the predicate that an example names does not fail",
	"example-cross":   "an example that another entry matches without being related",
	"example-missing": "no example that matches, or no near miss",
	"example-verdict": "an example whose expected verdict is not the one given",
	"unfinished":      "a CHANGE-ME is left",
}

// LintCodes lists the stable codes of Lint with what they mean, sorted.
func LintCodes() [][2]string {
	out := make([][2]string, 0, len(lintRules))
	for _, c := range slices.Sorted(maps.Keys(lintRules)) {
		out = append(out, [2]string{c, lintRules[c]})
	}
	return out
}

func (l *linter) file(fsys fs.FS, file string) {
	text, err := readBounded(fsys, file)
	if err != nil {
		l.faults = append(l.faults, Fault{File: file, Message: err.Error(), Code: "read"})
		return
	}
	var node yaml.Node
	if err := yaml.Unmarshal(text, &node); err != nil {
		l.faults = append(l.faults, yamlFaults(file, err)...)
		return
	}
	if err := checkShape(&node, false); err != nil {
		l.faults = append(l.faults, yamlFaults(file, err)...)
		return
	}
	lines := map[string]int{}
	nodeLines(&node, "", lines, 0)
	for i, line := range strings.Split(string(text), "\n") {
		if strings.Contains(line, "CHANGE-ME") {
			l.faults = append(l.faults, Fault{File: file, Line: i + 1, Message: "CHANGE-ME is left: " + strings.TrimSpace(line), Code: "unfinished"})
		}
	}
	broken := false
	var doc any
	if err := node.Decode(&doc); err != nil {
		l.faults = append(l.faults, yamlFaults(file, err)...)
		return
	}
	for _, v := range schema.Validate("quirk.v0", doc) {
		code := "schema"
		if strings.HasPrefix(v.Message, "unknown key") {
			code = "unknown-key"
		}
		l.faults = append(l.faults, Fault{File: file, Line: lineOf(lines, v.Path), Field: v.Path, Message: v.Message, Code: code})
		broken = true
	}
	e, faults := parse(file, text)
	for _, f := range faults {
		if broken && (f.Code == "yaml" || f.Code == "unknown-key" || f.Code == "schema") {
			continue // the schema said it, with the field
		}
		if f.Line == 0 {
			f.Line = lineOf(lines, f.Field)
		}
		l.faults = append(l.faults, f)
	}
	if e == nil {
		// What does not decode keeps its other faults to itself, but for the
		// one that needs no more than the name.
		m, _ := doc.(map[string]any)
		id, isText := m["id"].(string)
		named := slices.ContainsFunc(faults, func(f Fault) bool { return f.Code == "id-file" })
		if f, bad := idFault(file, id); isText && bad && !named {
			f.Line = lineOf(lines, "id")
			l.faults = append(l.faults, f)
		}
		return
	}
	l.docs = append(l.docs, lintDoc{e, lines})
	l.entry(e, lines)
}

// nodeLines records the line of every field by its dotted path.
func nodeLines(n *yaml.Node, at string, lines map[string]int, depth int) {
	if depth > 40 {
		return
	}
	if _, ok := lines[at]; !ok {
		lines[at] = n.Line
	}
	switch n.Kind {
	case yaml.DocumentNode:
		for _, c := range n.Content {
			nodeLines(c, at, lines, depth+1)
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			p := n.Content[i].Value
			if len(p) > 200 {
				continue // no key of ours, and each path below would repeat it
			}
			if at != "" {
				p = at + "." + p
			}
			lines[p] = n.Content[i].Line
			nodeLines(n.Content[i+1], p, lines, depth+1)
		}
	case yaml.SequenceNode:
		for i, c := range n.Content {
			nodeLines(c, fmt.Sprintf("%s[%d]", at, i), lines, depth+1)
		}
	}
}

// lineOf finds the line of a field or of the nearest one around it.
func lineOf(lines map[string]int, field string) int {
	for {
		if n, ok := lines[field]; ok {
			return n
		}
		i := strings.LastIndexAny(field, ".[")
		if i < 0 {
			return 1
		}
		field = field[:i]
	}
}

func (l *linter) entry(e *Entry, lines map[string]int) {
	fail := func(field, code, format string, a ...any) {
		l.faults = append(l.faults, Fault{File: e.file, Line: lineOf(lines, field), Field: field, Message: fmt.Sprintf(format, a...), Code: code})
	}
	if dir := path.Base(path.Dir(e.file)); dir != "." && dir != e.Folder() {
		fail("id", "id-folder", "belongs in folder %s/, found in %s/", e.Folder(), dir)
	}
	for _, id := range append([]string{e.ID}, e.Aliases...) {
		if prev, dup := l.ids[id]; dup {
			fail("id", "duplicate-id", "%s is taken by %s", id, prev)
			continue
		}
		l.ids[id] = e.file
	}
	if prev, dup := l.titles[e.Title]; dup {
		fail("title", "duplicate-title", "the same title as %s", prev)
	}
	l.titles[e.Title] = e.file
	e.lintMeaning(fail)
	for i, r := range e.References {
		if u, err := url.Parse(r.URL); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
			fail(fmt.Sprintf("references[%d].url", i), "reference", "%q is no link", r.URL)
		}
	}
	if e.Effect != EffectCapability && e.Effect != "misreport" && e.Limits == nil && len(e.Want) == 0 && len(e.Avoid) == 0 && len(e.Mitigations) == 0 {
		fail("effect", "effect-needs", "%s needs limits, want, avoid or mitigations", e.Effect)
	}
	l.examples(e, fail)
}

// lintMeaning finds what makes an entry answer wrongly: Load refuses such an
// entry too.
func (e *Entry) lintMeaning(fail failFunc) {
	for _, side := range []struct {
		name string
		arms []Arm
	}{{"match.any", e.Where.Any}, {"match.none", e.Where.None}} {
		for i := range side.arms {
			lintArm(&side.arms[i], fmt.Sprintf("%s[%d]", side.name, i), fail)
		}
	}
	for i, c := range e.Conditions {
		if c.Key != "cmdline" || c.Value == nil {
			continue
		}
		at := fmt.Sprintf("conditions[%d]", i)
		if _, err := CompilePattern(c.Value.Text); err != nil {
			fail(at+".value", "pattern", "%v", err)
		}
		if c.Op != "==" && c.Op != "!=" {
			fail(at+".op", "pattern", "%s: a pattern over the command line fits (==) or does not (!=)", c.Op)
		}
	}
	if e.Kernel == nil {
		return
	}
	for i := range e.Kernel.Mitigated {
		m := &e.Kernel.Mitigated[i]
		lintRows(fail, fmt.Sprintf("kernel.mitigated[%d].trees", i), m.rows())
		for j, h := range m.holeRows() {
			if err := h.Check(); err != nil {
				fail(fmt.Sprintf("kernel.mitigated[%d].holes[%d]", i, j), "kernel-tree", "%v", err)
			}
		}
		for j, p := range m.Path {
			if !slices.Contains(Paths, p) {
				fail(fmt.Sprintf("kernel.mitigated[%d].path[%d]", i, j), "pattern", "path %q: want one of %s", p, strings.Join(Paths, ", "))
			}
		}
	}
	lintRows(fail, "kernel.range", rangeRows(e.Kernel.Range))
}

// Effects lists the closed set of effects.
func Effects() []string {
	return []string{"silent-corruption", "data-loss", "device-death", "io-timeout", "link-reset", "io-error", "hang", "performance", "misreport", "capability"}
}

// unsound is what keeps a decoded entry from being used.
func (e *Entry) unsound() []Fault {
	var faults []Fault
	fail := func(field, code, format string, a ...any) {
		faults = append(faults, Fault{File: e.file, Field: field, Message: fmt.Sprintf(format, a...), Code: code})
	}
	if !slices.Contains(Effects(), string(e.Effect)) {
		fail("effect", "schema", "%q: want one of %s", e.Effect, strings.Join(Effects(), ", "))
	}
	if !slices.Contains([]string{"confirmed", "probable", "suspected"}, e.Confidence) {
		fail("confidence", "schema", "%q: want confirmed, probable or suspected", e.Confidence)
	}
	if e.Limits != nil && e.Limits.MaxSectors == 0 {
		fail("limits.max_sectors", "schema", "0 bounds nothing")
	}
	e.lintMeaning(fail)
	return faults
}

var (
	rePCIPattern = regexp.MustCompile(`^([0-9a-f]{4}|\*)(:([0-9a-f]{4}|\*)){1,3}$`)
	reUSBID      = regexp.MustCompile(`^[0-9a-f]{4}:([0-9a-f]{4}|\*)$`)
)

type failFunc func(field, code, format string, a ...any)

func lintArm(a *Arm, at string, fail failFunc) {
	if d := a.Device; d != nil {
		ataLike := len(d.Model) > 0 || !d.Firmware.IsZero()
		scsiLike := len(d.Vendor) > 0 || len(d.Product) > 0 || !d.Revision.IsZero()
		switch d.Space {
		case "ata", "nvme":
			if scsiLike {
				fail(at+".device", "space-field", "space %s has model and firmware, not vendor, product or revision", d.Space)
			}
			if !ataLike && d.VID == "" && d.SSVID == "" && a.Adapter == nil && a.Kernel == nil {
				fail(at+".device", "match-too-wide", "would match every %s device", d.Space)
			}
			lengths(at+".device.model", d.Model, 40, fail)
			if d.Space == "ata" {
				lengths(at+".device.firmware", d.Firmware.Patterns, 8, fail)
				lengths(at+".device.firmware", d.Firmware.Fixed, 8, fail)
			}
		case "scsi":
			if ataLike {
				fail(at+".device", "space-field", "space scsi has vendor, product and revision, not model or firmware")
			}
			if !scsiLike && a.Adapter == nil && a.Kernel == nil {
				fail(at+".device", "match-too-wide", "would match every SCSI device")
			}
			lengths(at+".device.vendor", d.Vendor, 8, fail)
			lengths(at+".device.product", d.Product, 16, fail)
			lengths(at+".device.revision", d.Revision.Patterns, 4, fail)
		}
		for _, p := range slices.Concat(d.Model, d.Vendor, d.Product, d.Firmware.Patterns, d.Revision.Patterns) {
			if lit, ok := p.Literal(); ok && lit != strings.Trim(lit, " \x00") {
				fail(at+".device", "pattern", "%q has blanks at an end; strings are compared trimmed", lit)
			}
		}
	}
	if a.Adapter != nil {
		for i, p := range a.Adapter.PCI {
			if !rePCIPattern.MatchString(p) {
				fail(fmt.Sprintf("%s.adapter.pci[%d]", at, i), "pattern", "%q: want vvvv:dddd[:ssss[:ssss]], lower-case hex or *", p)
			}
		}
	}
	if a.USB != nil {
		for i, p := range a.USB.ID {
			if !reUSBID.MatchString(p) {
				fail(fmt.Sprintf("%s.usb.id[%d]", at, i), "pattern", "%q: want vvvv:pppp, lower-case hex", p)
			}
		}
		if a.USB.BCD != "" {
			if _, _, err := parseBCDRange(a.USB.BCD); err != nil {
				fail(at+".usb.bcd", "pattern", "%v", err)
			}
		}
	}
	for i, p := range a.Path {
		if !slices.Contains(Paths, p) {
			fail(fmt.Sprintf("%s.path[%d]", at, i), "pattern", "path %q: want one of %s", p, strings.Join(Paths, ", "))
		}
	}
	if a.Kernel != nil {
		for _, row := range a.Kernel.rows() {
			if err := row.Check(); err != nil {
				fail(at+".kernel", "kernel-tree", "%v", err)
			}
		}
	}
}

func lintRows(fail failFunc, at string, rows []kernel.Row) {
	for i, row := range rows {
		if err := row.Check(); err != nil {
			fail(fmt.Sprintf("%s[%d]", at, i), "kernel-tree", "%v", err)
		}
	}
}

// lengths finds literals longer than the field they are compared with.
func lengths(field string, ps Patterns, n int, fail failFunc) {
	for _, p := range ps {
		if lit, ok := p.Literal(); ok && len(lit) > n {
			fail(field, "pattern", "%q has %d characters, the field has %d", lit, len(lit), n)
		}
	}
}

func (l *linter) examples(e *Entry, fail failFunc) {
	if len(e.Examples.Match) == 0 {
		fail("examples.match", "example-missing", "want at least one identity that matches")
	}
	if len(e.Examples.NoMatch) == 0 {
		fail("examples.no_match", "example-missing", "want at least one near miss")
	}
	if e.Withdrawn != "" {
		return
	}
	for i := range e.Examples.Match {
		ex := &e.Examples.Match[i]
		at := fmt.Sprintf("examples.match[%d]", i)
		m := e.Match(&ex.Subject)
		switch {
		case m.Truth == False:
			fail(at, "example", "does not match: %s", failing(m))
		case m.Truth == Unknown && ex.Expect != "unknown":
			fail(at, "example", "is unknown: %s", whyOf(m.Predicates))
		}
	}
	for i := range e.Examples.NoMatch {
		ex := &e.Examples.NoMatch[i]
		at := fmt.Sprintf("examples.no_match[%d]", i)
		m := e.Match(&ex.Subject)
		if m.Truth == True {
			fail(at, "example", "matches, and should not")
			continue
		}
		if ex.Fails != "" && !l.failsWith(e, &ex.Subject, ex.Fails) {
			fail(at+".fails", "example-fails", "predicate %s does not fail; failing: %s", ex.Fails, failing(m))
		}
	}
}

// failsWith reports whether the predicate key is false in every arm that asks
// it, and in one at least. The key "none" is any arm of match.none.
func (l *linter) failsWith(e *Entry, sub *Subject, key string) bool {
	some := false
	for i := range e.Where.Any {
		for _, p := range e.Where.Any[i].predicates(sub) {
			if p.Key == key {
				some = true
				if p.Truth != False {
					return false
				}
			}
		}
	}
	for _, p := range e.Match(sub).Predicates {
		switch {
		case key == "none" && strings.HasPrefix(p.Key, "none["):
			some = some || p.Truth == False
		case p.Key == key:
			some = true
			if p.Truth != False {
				return false
			}
		}
	}
	return some
}

func failing(m Match) string {
	var keys []string
	for _, p := range m.Predicates {
		if p.Truth == False {
			keys = append(keys, fmt.Sprintf("%s wants %s, got %q", p.Key, p.Want, p.Got))
		}
	}
	if len(keys) == 0 {
		return "nothing"
	}
	return strings.Join(keys, "; ")
}

// cross runs every example against every other entry: a match that is not
// declared in related is too wide or a duplicate.
func (l *linter) cross(against *Set) {
	others := map[string]*Entry{}
	if against != nil {
		for _, e := range against.Entries() {
			others[e.ID] = e
		}
	}
	for _, d := range l.docs {
		others[d.entry.ID] = d.entry
	}
	ids := slices.Sorted(maps.Keys(others))
	for _, d := range l.docs {
		e := d.entry
		for i, id := range e.Related {
			if _, ok := others[id]; !ok {
				field := fmt.Sprintf("related[%d]", i)
				l.faults = append(l.faults, Fault{File: e.file, Line: lineOf(d.lines, field), Field: field, Message: "no entry " + id, Code: "related"})
			}
		}
		check := func(field string, sub *Subject) {
			for _, id := range ids {
				o := others[id]
				if o.Change() { // concerns every host of its kind, and is never a finding
					continue
				}
				if id == e.ID || slices.Contains(e.Related, id) || slices.Contains(o.Related, e.ID) {
					continue
				}
				if o.Match(sub).Truth == True {
					l.faults = append(l.faults, Fault{File: e.file, Line: lineOf(d.lines, field), Field: field,
						Message: "also matches " + id + "; one of the two is too wide, or name it under related", Code: "example-cross"})
				}
			}
		}
		for i := range e.Examples.Match {
			check(fmt.Sprintf("examples.match[%d]", i), &e.Examples.Match[i].Subject)
		}
		for i := range e.Examples.NoMatch {
			check(fmt.Sprintf("examples.no_match[%d]", i), &e.Examples.NoMatch[i].Subject)
		}
	}
}
