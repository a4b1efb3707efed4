package quirks

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Fault is something wrong with one entry file.
type Fault struct {
	File    string
	Line    int    // 0 where none applies
	Field   string // match.any[0].device.model
	Message string
	Code    string // stable, for tools
}

func (f Fault) String() string {
	var b strings.Builder
	b.WriteString(f.File)
	if f.Line > 0 {
		fmt.Fprintf(&b, ":%d", f.Line)
	}
	b.WriteString(": ")
	if f.Field != "" {
		b.WriteString(f.Field + ": ")
	}
	fmt.Fprintf(&b, "%s [%s]", f.Message, f.Code)
	return b.String()
}

// Bounds on hostile input.
const (
	maxFileBytes = 256 << 10
	maxFiles     = 100_000
)

// Load reads every *.yaml under the root and one folder down. A broken file
// disables itself alone and is among the faults.
func Load(fsys fs.FS) (*Set, []Fault) { return load(fsys, nil) }

// load leaves files that the index lists by hash for their first use and
// parses all others. Only the embedded index is trusted so far: a wrong one
// would hide entries.
func load(fsys fs.FS, index map[string][]indexRow) (*Set, []Fault) {
	files, faults := entryFiles(fsys)
	rows := map[string][]indexRow{}
	var slots []slot
	seen := map[string]string{}
	for _, file := range files {
		text, err := readBounded(fsys, file)
		if err != nil {
			faults = append(faults, Fault{File: file, Message: err.Error(), Code: "read"})
			continue
		}
		id := strings.TrimSuffix(path.Base(file), ".yaml")
		if prev, dup := seen[id]; dup {
			faults = append(faults, Fault{File: file, Field: "id", Message: "same id as " + prev, Code: "duplicate-id"})
			continue
		}
		if r, ok := index[id+"\t"+hashOf(text)]; ok {
			seen[id] = file
			rows[id] = r
			slots = append(slots, slot{id: id, fsys: fsys, file: file})
			continue
		}
		e, fs := parseSound(file, text)
		faults = append(faults, fs...)
		if e == nil {
			continue
		}
		seen[id] = file
		rows[id] = e.indexRows()
		slots = append(slots, slot{id: id, entry: e, fsys: fsys, file: file})
	}
	s, err := newSet(slots, rows)
	if err != nil { // an index row that does not compile: do without the index
		s, faults = load(fsys, nil)
		faults = append(faults, Fault{File: "index.tsv", Message: err.Error(), Code: "index"})
	}
	s.Version = readVersion(fsys)
	s.faults = faults
	return s, slices.Clone(faults)
}

// entryFiles lists the *.yaml files of a tree, in lexical order.
func entryFiles(fsys fs.FS) ([]string, []Fault) {
	var files []string
	var faults []Fault
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil && p == ".":
			return err
		case err != nil:
			faults = append(faults, Fault{File: p, Message: err.Error(), Code: "read"})
			return nil
		case d.IsDir() && (strings.Count(p, "/") >= 1 || p != "." && strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || path.Ext(p) != ".yaml":
			return nil
		}
		if len(files) >= maxFiles {
			return fmt.Errorf("more than %d files", maxFiles)
		}
		files = append(files, p)
		return nil
	})
	if err != nil {
		faults = append(faults, Fault{File: ".", Message: err.Error(), Code: "read"})
	}
	return files, faults
}

func readBounded(fsys fs.FS, file string) ([]byte, error) {
	// Looked at before it is opened: opening a FIFO waits for its writer.
	if info, err := fs.Stat(fsys, file); err != nil {
		return nil, err
	} else if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	f, err := fsys.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxFileBytes {
		return nil, fmt.Errorf("longer than %d bytes", maxFileBytes)
	}
	return text, nil
}

func parseFile(fsys fs.FS, file string) (*Entry, []Fault) {
	text, err := readBounded(fsys, file)
	if err != nil {
		return nil, []Fault{{File: file, Message: err.Error(), Code: "read"}}
	}
	return parseSound(file, text)
}

// parseSound is parse for an entry that is going to be used.
func parseSound(file string, text []byte) (*Entry, []Fault) {
	e, faults := parse(file, text)
	if e == nil {
		return nil, faults
	}
	if more := e.unsound(); len(more) > 0 {
		return nil, append(faults, more...)
	}
	return e, faults
}

// parse decodes one file strictly and checks what the checker relies on. The
// schema and the finer rules are Lint's.
func parse(file string, text []byte) (*Entry, []Fault) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	e := &Entry{file: file}
	g := &guarded{entry: e}
	switch err := dec.Decode(g); {
	case errors.Is(err, io.EOF), err == nil && !g.some:
		return nil, []Fault{{File: file, Message: "no YAML document", Code: "yaml"}}
	case err != nil:
		return nil, yamlFaults(file, err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, []Fault{{File: file, Message: "more than one YAML document", Code: "yaml"}}
	}
	var faults []Fault
	fail := func(field, msg, code string) {
		faults = append(faults, Fault{File: file, Field: field, Message: msg, Code: code})
	}
	if f, bad := idFault(file, e.ID); bad {
		faults = append(faults, f)
	}
	if e.Schema != 0 {
		fail("schema", fmt.Sprintf("version %d: this tool reads 0", e.Schema), "schema-version")
	}
	if len(e.Where.Any) == 0 {
		fail("match.any", "no arm: the entry would match nothing", "match-empty")
	}
	for i := range e.Where.Any {
		if e.Where.Any[i].empty() {
			fail(fmt.Sprintf("match.any[%d]", i), "empty arm would match every device", "match-too-wide")
		}
	}
	if e.Severity.Rank() == 0 {
		fail("severity", fmt.Sprintf("%q: want critical, high, medium, low or info", e.Severity), "schema")
	}
	if len(faults) > 0 {
		return nil, faults
	}
	e.prepare()
	return e, nil
}

// guarded looks at the shape of a document before the entry in it is decoded.
type guarded struct {
	entry *Entry
	some  bool // there is a document, and it is not null
}

// UnmarshalYAML has the older of the library's two forms, the one whose
// decoder stays strict.
func (g *guarded) UnmarshalYAML(unmarshal func(any) error) error {
	g.some = true
	if err := unmarshal(new(shape)); err != nil {
		return err
	}
	return unmarshal(g.entry)
}

type shape struct{}

// UnmarshalYAML decodes nothing.
func (*shape) UnmarshalYAML(n *yaml.Node) error { return checkShape(n, false) }

// checkShape refuses what an entry never needs and the library takes badly.
// Aliases can blow a document up. Of a key that stands n times it makes n²/2
// messages. A null it takes for a key that is absent, and an absent key of a
// match asks nothing, so an unfinished "firmware:" would match every one; in a
// subject (nullOK) it says unknown, which is meant.
func checkShape(n *yaml.Node, nullOK bool) error {
	if n.Kind == yaml.AliasNode {
		return fmt.Errorf("line %d: aliases (*%.40s) are not read", n.Line, n.Value)
	}
	if n.Kind == yaml.MappingNode {
		type key struct {
			kind  yaml.Kind
			value string
		}
		seen := make(map[key]int, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			k, v := n.Content[i], n.Content[i+1]
			if line, dup := seen[key{k.Kind, k.Value}]; dup {
				return fmt.Errorf("line %d: key %q is there already on line %d", k.Line, k.Value, line)
			}
			seen[key{k.Kind, k.Value}] = k.Line
			never := k.Value == "introduced" || k.Value == "fixed" || k.Value == "to" // or not yet
			if v.Kind == yaml.ScalarNode && v.Tag == "!!null" && !nullOK && !never {
				return fmt.Errorf("line %d: key %q has no value", k.Line, k.Value)
			}
			if err := checkShape(k, nullOK); err != nil {
				return err
			}
			if err := checkShape(v, nullOK || k.Value == "subject"); err != nil {
				return err
			}
		}
		return nil
	}
	for _, c := range n.Content {
		if n.Kind == yaml.SequenceNode && c.Tag == "!!null" && !nullOK {
			return fmt.Errorf("line %d: list item has no value", c.Line)
		}
		if err := checkShape(c, nullOK); err != nil {
			return err
		}
	}
	return nil
}

// idFault compares an id with the name of its file.
func idFault(file, id string) (Fault, bool) {
	want := strings.TrimSuffix(path.Base(file), ".yaml")
	return Fault{File: file, Field: "id", Message: fmt.Sprintf("%q is not the file name %q", id, want), Code: "id-file"}, id != want
}

func yamlFaults(file string, err error) []Fault {
	var te *yaml.TypeError
	msgs := []string{err.Error()}
	if errors.As(err, &te) {
		msgs = te.Errors
	}
	faults := make([]Fault, 0, len(msgs))
	for _, m := range msgs {
		m = strings.TrimPrefix(m, "yaml: ")
		f := Fault{File: file, Message: m, Code: "yaml"}
		if rest, ok := strings.CutPrefix(m, "line "); ok {
			if num, msg, ok := strings.Cut(rest, ": "); ok {
				if n, err := strconv.Atoi(num); err == nil {
					f.Line, f.Message = n, msg
				}
			}
		}
		if name, ok := strings.CutPrefix(f.Message, "field "); ok && strings.Contains(name, " not found in") {
			key, _, _ := strings.Cut(name, " ")
			f.Message, f.Code = fmt.Sprintf("unknown key %q", key), "unknown-key"
		}
		faults = append(faults, f)
	}
	return faults
}

// hashOf is the hash index.tsv lists: the first 16 bytes of SHA-256.
func hashOf(text []byte) string {
	h := sha256.Sum256(text)
	return hex.EncodeToString(h[:16])
}

// readIndex returns the rows by "id\thash"; a missing or broken index is an
// empty one.
func readIndex(fsys fs.FS) map[string][]indexRow {
	text, err := fs.ReadFile(fsys, "index.tsv")
	if err != nil || len(text) > 64<<20 {
		return nil
	}
	index := map[string][]indexRow{}
	sc := bufio.NewScanner(bytes.NewReader(text))
	for sc.Scan() {
		line := sc.Text()
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Split(line, "\t")
		if len(f) != 4 {
			return nil
		}
		key := f[0] + "\t" + f[1]
		index[key] = append(index[key], indexRow{f[2], f[3]})
	}
	if sc.Err() != nil { // the rest is missing, perhaps rows of the last entry
		return nil
	}
	return index
}

// WriteIndex writes index.tsv for a tree of entries: id, hash, space, pattern,
// one row for each name an entry may concern. It fails on a tree with faults.
func WriteIndex(w io.Writer, fsys fs.FS) error {
	files, faults := entryFiles(fsys)
	var b strings.Builder
	b.WriteString("# id\thash\tspace\tpattern; made by go generate ./quirks\n")
	type line struct{ id, text string }
	var lines []line
	for _, file := range files {
		text, err := readBounded(fsys, file)
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		e, fs := parseSound(file, text)
		faults = append(faults, fs...)
		if e == nil {
			continue
		}
		for _, r := range e.indexRows() {
			if strings.ContainsAny(r.Pattern, "\t\n") {
				return fmt.Errorf("%s: control character in pattern %q", file, r.Pattern)
			}
			lines = append(lines, line{e.ID, strings.Join([]string{e.ID, hashOf(text), r.Space, r.Pattern}, "\t")})
		}
	}
	if len(faults) > 0 {
		return fmt.Errorf("%s", faults[0])
	}
	slices.SortStableFunc(lines, func(a, b line) int { return strings.Compare(a.id, b.id) })
	for _, l := range lines {
		b.WriteString(l.text + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// readVersion reads VERSION: "YYYY.MM.DD.N SERIAL".
func readVersion(fsys fs.FS) (v Version) {
	text, err := fs.ReadFile(fsys, "VERSION")
	if err != nil {
		return v
	}
	f := strings.Fields(string(text))
	if len(f) == 2 {
		v.Version = f[0]
		v.Serial, _ = strconv.Atoi(f[1])
	}
	return v
}
