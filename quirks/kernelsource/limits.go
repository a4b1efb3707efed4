package kernelsource

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Limits is the family of what drivers say about the size of a transfer. Its
// rows are [Tree.Limits]; the database has no entries of them.
const Limits Family = "limits"

// Limit is one place where a driver says how long a transfer may be. A value of
// the host template can be replaced by an assignment, and an assignment can hang
// on a condition: the rows say what stands where, not what counts in the end.
type Limit struct {
	Driver   string  `json:"driver"` // the module, or the name of the file where the Makefiles do not say one
	Field    string  `json:"field"`  // as the kernel names it: max_sectors, sg_tablesize, ...
	Expr     string  `json:"expr"`   // as written, shortened where it is long
	Value    *uint64 `json:"value"`  // null where the driver computes it
	Computed bool    `json:"computed,omitempty"`
	Kind     string  `json:"kind"`         // template, assignment, call
	Of       string  `json:"of"`           // host, limits (of a queue), device (of libata), controller (NVMe)
	In       string  `json:"in,omitempty"` // the template or the function
	File     string  `json:"file"`
	Line     int     `json:"line"`
	If       string  `json:"if,omitempty"` // the #if lines around it
}

// Bounds: a whole tree has 1,100 files here, 30 MB, and about 700 limits.
const (
	maxLimits      = 20000
	maxLimitFiles  = 5000
	maxLimitBytes  = 128 << 20
	maxHeaderBytes = 32 << 20
	maxLookups     = 1 << 20
	maxTemplate    = 8192 // tokens of a template, its macros replaced
	maxExprTokens  = 256
	maxExprText    = 160
	maxUnread      = 16 // places of one file: it is no driver
	maxHeaders     = 64 // of one file
	maxHeaderFiles = 5000
)

// limitPlaces are the files and folders that are read; a folder with what is
// below it.
var limitPlaces = []string{"drivers/ata", "drivers/scsi", "drivers/usb/storage", "drivers/nvme/host",
	"drivers/block/virtio_blk.c", "drivers/block/nbd.c", "drivers/block/loop.c", "drivers/firewire/sbp2.c"}

// limitFields are the fields that limit a transfer, with their width in bits, 0
// for a long of the machine.
var limitFields = map[string]int{"max_sectors": 32, "max_hw_sectors": 32, "sg_tablesize": 16, "max_segments": 16, "max_segment_size": 32,
	"dma_boundary": 0, "seg_boundary_mask": 0, "virt_boundary_mask": 0}

// limitStructs are the structures whose fields they are, and what a row calls
// the structure.
var limitStructs = map[string]string{"scsi_host_template": "host", "Scsi_Host": "host", "queue_limits": "limits", "ata_device": "device", "nvme_ctrl": "controller"}

// limitNames are what drivers call such a structure that another file declares.
var limitNames = map[string]string{"shost": "Scsi_Host", "host": "Scsi_Host", "hostt": "scsi_host_template", "sht": "scsi_host_template", "lim": "queue_limits", "limits": "queue_limits"}

// limitCalls are the functions of older kernels that set a field of the queue.
var limitCalls = map[string]string{"blk_queue_max_hw_sectors": "max_hw_sectors", "blk_queue_max_sectors": "max_hw_sectors", "blk_queue_max_segments": "max_segments",
	"blk_queue_max_hw_segments": "max_segments", "blk_queue_max_phys_segments": "max_segments", "blk_queue_max_segment_size": "max_segment_size",
	"blk_queue_segment_boundary": "seg_boundary_mask", "blk_queue_virt_boundary": "virt_boundary_mask"}

// limitConsts are constants of the kernel that are the same everywhere.
var limitConsts = map[string]int64{"UINT_MAX": 1<<32 - 1, "U32_MAX": 1<<32 - 1, "INT_MAX": 1<<31 - 1, "USHRT_MAX": 65535, "U16_MAX": 65535, "U8_MAX": 255,
	"SECTOR_SHIFT": 9, "SECTOR_SIZE": 512, "SZ_4K": 4 << 10, "SZ_8K": 8 << 10, "SZ_16K": 16 << 10, "SZ_32K": 32 << 10, "SZ_64K": 64 << 10,
	"SZ_128K": 128 << 10, "SZ_256K": 256 << 10, "SZ_512K": 512 << 10, "SZ_1M": 1 << 20, "SZ_2M": 2 << 20, "SZ_4M": 4 << 20}

// limitReader reads the limits of a tree.
type limitReader struct {
	t       *Tree
	tree    fs.FS
	headers map[string]*header // by path; nil for one that is not there

	makefiles map[string]map[string]string // by folder: the module of an object

	files   int
	bytes   int
	inc     int // bytes of headers, whose macros are kept
	lookups int
	full    bool
}

// header is what one file gives to those that include it.
type header struct {
	defines  map[string][]token
	macros   map[string][]token
	twice    map[string]bool
	includes []string
	types    map[string]string // of pointers, variables and members, by name
}

func (t *Tree) limits(tree fs.FS) {
	r := &limitReader{t: t, tree: tree, headers: map[string]*header{}, makefiles: map[string]map[string]string{}}
	for _, p := range limitPlaces {
		err := fs.WalkDir(tree, p, func(name string, d fs.DirEntry, err error) error {
			switch {
			case err != nil && (errors.Is(err, fs.ErrNotExist) || name == p):
				if !slices.Contains(t.Absent, p) {
					t.Absent = append(t.Absent, p)
				}
				return nil
			case err != nil:
				t.fault(name, 0, "%v", err)
				return nil
			case r.full || strings.Count(name, "/") > maxDepth:
				return fs.SkipDir
			case d.Type().IsRegular() && (path.Ext(name) == ".c" || path.Ext(name) == ".h"):
				r.file(name)
			}
			return nil
		})
		if err != nil && !errors.Is(err, fs.SkipDir) {
			t.fault(p, 0, "%v", err)
		}
	}
}

// take reads the text of a file, within the bounds.
func (r *limitReader) take(name string) (string, bool) {
	if r.files >= maxLimitFiles+maxHeaderFiles || r.bytes > maxLimitBytes {
		if !r.full {
			r.t.fault(name, 0, "more drivers than a kernel has: the limits from here on are not read")
		}
		r.full = true
		return "", false
	}
	absent := len(r.t.Absent)
	text, ok := r.t.open(r.tree, name)
	r.t.Absent = r.t.Absent[:absent] // a header that is not there is no table
	r.files++
	r.bytes += len(text)
	return text, ok
}

// file reads the limits of one file.
func (r *limitReader) file(name string) {
	text, ok := r.take(name)
	if !ok || !mentionsLimit(text) {
		return
	}
	s, err := scanC(text)
	if err != nil {
		r.t.fault(name, 0, "%v", err)
		return
	}
	s.enums()
	f := &limitFile{r: r, s: s, name: name, types: map[string]string{}}
	if f.driver = r.module(name); f.driver == "" {
		f.driver = strings.TrimSuffix(strings.TrimSuffix(path.Base(name), ".c"), ".h")
	}
	f.read()
}

// mentionsLimit says whether a file is worth a closer look.
func mentionsLimit(text string) bool {
	for f := range limitFields {
		if strings.Contains(text, f) {
			return true
		}
	}
	return strings.Contains(text, "scsi_host_template") || strings.Contains(text, "blk_queue_")
}

// limitFile is a file while it is read.
type limitFile struct {
	r      *limitReader
	s      *source
	name   string
	driver string
	types  map[string]string // what the last declaration of a name says
	scope  []*header         // the file's headers, read when first asked for
	scoped bool
	unread int // templates and calls without an end
}

func (f *limitFile) read() {
	toks := f.s.toks
	is := func(i int, text string) bool {
		return i < len(toks) && toks[i].kind != tokString && toks[i].text == text
	}
	depth, caller, function := 0, "", ""
	for i := 0; i < len(toks) && len(f.r.t.Limits) < maxLimits; i++ {
		t := toks[i]
		switch {
		case t.kind == tokPunct && t.text == "{":
			if depth == 0 {
				function = caller
			}
			depth++
		case t.kind == tokPunct && t.text == "}":
			if depth--; depth <= 0 || t.bol { // both branches of an #if can open a brace
				depth, caller, function = 0, "", ""
			}
		case t.kind != tokIdent:
		case t.text == "struct":
			typ, v, next := declared(toks, i)
			if v == "" {
				continue
			}
			f.types[v] = typ
			if of := limitStructs[typ]; of == "host" || of == "limits" {
				for n := 0; n < 6 && !is(next, "=") && (is(next, "[") || is(next, "]") || next < len(toks) && toks[next].kind == tokIdent); n++ {
					next++ // __ro_after_init
				}
				if is(next, "=") && is(next+1, "{") {
					if end := f.template(next+1, v, of); end > next {
						i = end
						continue
					}
				}
			}
		case is(i+1, "("):
			if depth == 0 && caller == "" {
				caller = t.text
			}
			if field := limitCalls[t.text]; field != "" && depth > 0 && f.unread < maxUnread {
				args, _, err := splitArgs(toks[:min(len(toks), i+maxExprTokens)], i+1)
				if err != nil {
					f.unread++
					f.r.t.fault(f.name, t.line, "%s: %v", t.text, err)
				} else if len(args) == 2 && len(args[1].toks) > 0 {
					f.add(Limit{Field: field, Kind: "call", Of: "limits", In: function, Line: t.line, If: t.cond}, args[1].toks)
				}
			}
		case depth > 0 && is(i+1, "=") && !is(i+2, "=") && limitField(t.text):
			owner := ""
			switch {
			case i >= 2 && is(i-1, ".") && toks[i-2].kind == tokIdent:
				owner = toks[i-2].text
			case i >= 3 && is(i-1, ">") && is(i-2, "-") && toks[i-3].kind == tokIdent:
				owner = toks[i-3].text
			}
			if of := limitStructs[f.typeOf(owner)]; of != "" {
				f.add(Limit{Field: t.text, Kind: "assignment", Of: of, In: function, Line: t.line, If: t.cond}, expression(toks, i+2))
			}
		}
		if depth == 0 && t.kind == tokPunct && (t.text == ";" || t.text == "=") {
			caller = ""
		}
	}
	if len(f.r.t.Limits) >= maxLimits && !f.r.full {
		f.r.full = true
		f.r.t.fault(f.name, 0, "more limits than a kernel has: those from here on are not read")
	}
}

func limitField(name string) bool {
	_, ok := limitFields[name]
	return ok
}

// declared reads "struct TYPE *NAME" at toks[i].
func declared(toks []token, i int) (typ, name string, next int) {
	if i+2 >= len(toks) || toks[i+1].kind != tokIdent {
		return "", "", i
	}
	typ = toks[i+1].text
	for i += 2; i < len(toks) && toks[i].kind != tokString && (toks[i].text == "*" || toks[i].text == "const"); i++ {
	}
	if i >= len(toks) || toks[i].kind != tokIdent {
		return "", "", i
	}
	return typ, toks[i].text, i + 1
}

// expression returns the tokens up to the end of the expression.
func expression(toks []token, i int) []token {
	parens, start := 0, i
	for ; i < len(toks) && i-start <= maxExprTokens; i++ {
		if toks[i].kind != tokPunct {
			continue
		}
		switch toks[i].text {
		case "(", "[":
			parens++
		case ")", "]":
			if parens--; parens < 0 {
				return toks[start:i]
			}
		case ",":
			if parens == 0 {
				return toks[start:i]
			}
		case ";", "{", "}":
			return toks[start:i]
		}
	}
	return toks[start:i]
}

// typeOf says what structure a name stands for: the file's last declaration of
// it, one of its headers, or what drivers call it.
func (f *limitFile) typeOf(name string) string {
	if name == "" {
		return ""
	}
	if t := f.types[name]; t != "" {
		return t
	}
	for _, h := range f.headers() {
		if t := h.types[name]; t != "" {
			return t
		}
	}
	return limitNames[name]
}

// template reads the initialiser that opens at toks[i], and returns where it
// closes, 0 for one that cannot be read.
func (f *limitFile) template(i int, name, of string) int {
	if f.unread >= maxUnread {
		return 0
	}
	line, end, braces := f.s.toks[i].line, 0, 0
	for j := i; j < len(f.s.toks) && j-i < maxTemplate && end == 0; j++ {
		if t := f.s.toks[j]; t.kind == tokPunct && t.text == "{" {
			braces++
		} else if t.kind == tokPunct && t.text == "}" {
			if braces--; braces == 0 {
				end = j
			}
		}
	}
	var inner []token
	if end > 0 {
		inner = f.replaced(f.s.toks[i:end+1], 0)
	}
	if inner == nil {
		f.unread++
		f.r.t.fault(f.name, line, "%s: an initialiser that is too long or never closes", name)
		return 0
	}
	c, _, err := (&source{toks: inner}).braces(0, 0)
	if err != nil {
		f.unread++
		f.r.t.fault(f.name, line, "%s: %v", name, err)
		return 0
	}
	var cells []cell
	for _, e := range c.list {
		if !limitField(e.field) || e.brace {
			continue
		}
		// As in C the last one counts, unless an #if decides between them.
		cells = slices.DeleteFunc(cells, func(o cell) bool { return o.field == e.field && (o.cond == e.cond || e.cond == "") })
		cells = append(cells, e)
	}
	for _, e := range cells {
		f.add(Limit{Field: e.field, Kind: "template", Of: of, In: name, Line: e.line, If: e.cond}, e.toks)
	}
	return end
}

// replaced returns the tokens of a list in braces, with the macros replaced
// that stand for fields, as AHCI_SHT does; nil where there is no end to it.
func (f *limitFile) replaced(toks []token, depth int) []token {
	var out []token
	for i := 0; i < len(toks); i++ {
		t := toks[i]
		atStart := i == 0 || toks[i-1].kind == tokPunct && (toks[i-1].text == "{" || toks[i-1].text == ",")
		if t.kind != tokIdent || !atStart || depth >= 8 {
			out = append(out, t)
			continue
		}
		body, ok := f.lookup(t.text, true)
		next := i
		if ok && i+1 < len(toks) && toks[i+1].text == "(" {
			if _, end, err := splitArgs(toks, i+1); err == nil {
				next = end - 1
			}
		}
		if !ok {
			body, ok = f.lookup(t.text, false)
		}
		if !ok || len(body) == 0 {
			out = append(out, t)
			continue
		}
		inner := f.replaced(body, depth+1)
		if inner == nil || len(out)+len(inner) > maxTemplate {
			return nil
		}
		for _, b := range inner {
			b.line, b.cond = t.line, t.cond
			out = append(out, b)
		}
		i = next
	}
	return out
}

// headers are those the file includes, and what they include.
func (f *limitFile) headers() []*header {
	if f.scoped {
		return f.scope
	}
	f.scoped = true
	seen := map[string]bool{f.name: true}
	type include struct{ from, what string }
	var todo []include
	push := func(from string, list []string) {
		for _, w := range list {
			todo = append(todo, include{from, w})
		}
	}
	push(f.name, f.s.includes)
	for len(todo) > 0 && len(f.scope) < maxHeaders {
		in := todo[0]
		todo = todo[1:]
		name := includePath(in.from, in.what)
		if name == "" || seen[name] {
			continue
		}
		seen[name] = true
		if h := f.r.header(name); h != nil {
			f.scope = append(f.scope, h)
			push(name, h.includes)
		}
	}
	return f.scope
}

// includePath is where an included file lies: beside the one that includes it,
// or among the few headers of the kernel that have to do with limits.
func includePath(from, what string) string {
	if len(what) < 3 {
		return ""
	}
	name := what[1:]
	end := strings.IndexAny(name, `">`)
	if end < 0 {
		return ""
	}
	name = name[:end]
	switch {
	case what[0] == '"':
		name = path.Join(path.Dir(from), name)
	case what[0] == '<' && (strings.HasPrefix(name, "scsi/") || slices.Contains([]string{"linux/ata.h", "linux/libata.h", "linux/blkdev.h", "linux/scatterlist.h", "linux/nvme.h"}, name)):
		name = path.Join("include", name)
	default:
		return ""
	}
	if !fs.ValidPath(name) || len(name) > 256 {
		return ""
	}
	return name
}

func (r *limitReader) header(name string) *header {
	if h, ok := r.headers[name]; ok {
		return h
	}
	r.headers[name] = nil
	if r.inc > maxHeaderBytes {
		return nil
	}
	text, ok := r.take(name)
	r.inc += len(text)
	if !ok {
		return nil
	}
	s, err := scanC(text)
	if err != nil {
		return nil // its constants stay names
	}
	s.enums()
	h := &header{defines: s.defines, macros: s.macros, twice: s.twice, includes: s.includes, types: map[string]string{}}
	for i := range s.toks {
		if s.toks[i].kind == tokIdent && s.toks[i].text == "struct" {
			if typ, v, _ := declared(s.toks, i); v != "" {
				if old := h.types[v]; old != "" && old != typ {
					typ = "?" // two structures: the name says nothing
				}
				h.types[v] = typ
			}
		}
	}
	r.headers[name] = h
	return h
}

// enums adds the constants of enumerations that have a value written down.
func (s *source) enums() {
	for i := 0; i+2 < len(s.toks); i++ {
		if s.toks[i].kind != tokIdent || s.toks[i].text != "enum" {
			continue
		}
		j := i + 1
		if s.toks[j].kind == tokIdent {
			j++
		}
		if j >= len(s.toks) || s.toks[j].kind != tokPunct || s.toks[j].text != "{" {
			continue
		}
		for j++; j < len(s.toks) && s.toks[j].kind == tokIdent; {
			name := s.toks[j].text
			j++
			if j < len(s.toks) && s.toks[j].kind == tokPunct && s.toks[j].text == "=" {
				body := expression(s.toks, j+1)
				j += 1 + len(body)
				wrapped := append(append([]token{{kind: tokPunct, text: "("}}, body...), token{kind: tokPunct, text: ")"})
				if old, ok := s.defines[name]; ok && !sameText(old, wrapped) {
					s.twice[name] = true
				}
				if len(wrapped) <= maxExpand {
					s.defines[name] = wrapped
				}
			}
			if j < len(s.toks) && s.toks[j].kind == tokPunct && s.toks[j].text == "," {
				j++
			}
		}
		i = j - 1
	}
}

// lookup finds the one body of a macro. A name with two of them has none: which
// counts is a matter of the build.
func (f *limitFile) lookup(name string, args bool) ([]token, bool) {
	var body []token
	found := false
	one := func(defines, macros map[string][]token, twice map[string]bool) bool {
		from := defines
		if args {
			from = macros
		}
		if twice[name] {
			return false
		}
		if b, ok := from[name]; ok {
			if found && !sameText(body, b) {
				return false
			}
			body, found = b, true
		}
		return true
	}
	if f.r.lookups++; f.r.lookups > maxLookups || !one(f.s.defines, f.s.macros, f.s.twice) {
		return nil, false
	}
	for _, h := range f.headers() {
		if !one(h.defines, h.macros, h.twice) {
			return nil, false
		}
	}
	return body, found
}

// add keeps a limit, with its value where that is a constant.
func (f *limitFile) add(l Limit, toks []token) {
	if len(toks) == 0 {
		return
	}
	l.Driver, l.File, l.Expr = f.driver, f.name, exprText(toks)
	if v, ok := f.value(toks, limitFields[l.Field]); ok {
		l.Value = &v
	} else {
		l.Computed = true
	}
	f.r.t.Limits = append(f.r.t.Limits, l)
}

// value works out a constant expression for a field of so many bits. What hangs
// on the machine or on the build has none.
func (f *limitFile) value(toks []token, bits int) (uint64, bool) {
	if len(toks) > maxExprTokens {
		return 0, false
	}
	for round := 0; ; round++ {
		var out []token
		changed := false
		for _, t := range toks {
			_, known := limitConsts[t.text]
			if t.kind != tokIdent || known {
				out = append(out, t)
				continue
			}
			body, ok := f.lookup(t.text, false)
			if !ok {
				return 0, false
			}
			out = append(out, body...)
			changed = true
			if len(out) > 4*maxExprTokens {
				return 0, false
			}
		}
		toks = out
		if !changed {
			break
		}
		if round >= maxDepth {
			return 0, false
		}
	}
	c := calc{toks: toks}
	v := c.binary(0, 0)
	switch {
	case c.bad || c.i != len(toks):
		return 0, false
	case v >= 0 && (bits == 0 || v < 1<<bits):
		return uint64(v), true
	case v < 0 && bits == 32 && v >= -1<<31: // -1U is the largest
		return uint64(v) & (1<<32 - 1), true
	}
	return 0, false
}

// calc works out whole numbers. A negative one may be added, and nothing else:
// what C makes of it hangs on its type.
type calc struct {
	toks []token
	i    int
	bad  bool
}

var calcLevels = [][]string{{"|"}, {"^"}, {"&"}, {"<<", ">>"}, {"+", "-"}, {"*", "/", "%"}}

func (c *calc) fail() int64 {
	c.bad = true
	return 0
}

func (c *calc) binary(level, depth int) int64 {
	if depth > maxDepth {
		return c.fail()
	}
	if level == len(calcLevels) {
		return c.unary(depth + 1)
	}
	v := c.binary(level+1, depth)
	for !c.bad && c.i < len(c.toks) && c.toks[c.i].kind == tokPunct && slices.Contains(calcLevels[level], c.toks[c.i].text) {
		op := c.toks[c.i].text
		c.i++
		w := c.binary(level+1, depth)
		const most = 1 << 62
		if v > most || w > most || v < -most || w < -most || op != "+" && op != "-" && (v < 0 || w < 0) {
			return c.fail()
		}
		switch op {
		case "|":
			v |= w
		case "^":
			v ^= w
		case "&":
			v &= w
		case "+":
			v += w
		case "-":
			v -= w
		case "<<":
			if w > 40 || v > most>>w {
				return c.fail()
			}
			v <<= w
		case ">>":
			if w > 62 {
				return c.fail()
			}
			v >>= w
		case "*":
			if w != 0 && v > most/w {
				return c.fail()
			}
			v *= w
		default:
			if w == 0 {
				return c.fail()
			}
			if op == "/" {
				v /= w
			} else {
				v %= w
			}
		}
	}
	return v
}

func (c *calc) unary(depth int) int64 {
	if c.bad || depth > maxDepth || c.i >= len(c.toks) {
		return c.fail()
	}
	t := c.toks[c.i]
	c.i++
	switch {
	case t.kind == tokNumber:
		n, err := strconv.ParseInt(strings.TrimRight(t.text, "uUlL"), 0, 64)
		if err != nil || strings.Contains(t.text, "_") {
			return c.fail()
		}
		return n
	case t.kind == tokIdent:
		n, ok := limitConsts[t.text]
		if !ok {
			return c.fail()
		}
		return n
	case t.kind != tokPunct:
	case t.text == "-":
		return -c.unary(depth + 1)
	case t.text == "~":
		return ^c.unary(depth + 1)
	case t.text == "(":
		v := c.binary(0, depth+1)
		if c.i >= len(c.toks) || c.toks[c.i].kind != tokPunct || c.toks[c.i].text != ")" {
			return c.fail()
		}
		c.i++
		return v
	}
	return c.fail()
}

// exprText writes an expression in the kernel's way.
func exprText(toks []token) string {
	var b strings.Builder
	tight := true
	for i, t := range toks {
		text := t.text
		if t.kind == tokString {
			text = strconv.Quote(text)
		}
		arrow := t.kind == tokPunct && (text == "-" && i+1 < len(toks) && toks[i+1].text == ">" || text == ">" && i > 0 && toks[i-1].text == "-")
		call := text == "(" && i > 0 && toks[i-1].kind == tokIdent
		if !tight && !arrow && !call && !(t.kind == tokPunct && strings.Contains(".,)]["+";", text)) {
			b.WriteByte(' ')
		}
		b.WriteString(text)
		sign := strings.Contains("-&*", text) && t.kind == tokPunct && (i == 0 || toks[i-1].kind == tokPunct && !strings.Contains(")]", toks[i-1].text))
		tight = arrow || t.kind == tokPunct && (sign || strings.Contains("([.!~", text))
		if b.Len() > maxExprText {
			return strings.ToValidUTF8(b.String()[:maxExprText], "?") + "..."
		}
	}
	return strings.ToValidUTF8(b.String(), "?")
}
