// Package capture keeps what the probe read of a machine as one JSON object,
// without what would name the machine or its disks, and answers the probe from
// it later.
//
// [Take] reads a machine through the probe and takes down every question and
// answer: contents of files, targets of links, names in folders, what was not
// there and what could not be read. Nothing else is in a capture, so it is as
// complete as the probe and no more curious. [Capture.FS] is that machine as an
// fs.FS; the probe reads it by the same code as a live one and the report is
// the same byte for byte. A question that was never asked is answered with
// probe.ErrNotRecorded, and the fact is then not asked rather than absent.
//
// Redaction works by an allow-list: what is known to be an identity of a kind
// (INQUIRY strings, model, firmware), a number or one of the kernel's own words
// stays; anything else is replaced, in text and in binary alike, by a pseudonym
// of the same length where the length is fixed. One secret has one pseudonym in
// a capture, however it is spelt: padded, word-swapped, in hex, with a prefix.
//
// [Read] takes captures from strangers: it bounds size, count, depth and
// length before it keeps anything and names the fault by its place.
package capture

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/quirkcheck/quirkcheck/probe"
)

// SchemaVersion is the version of the JSON; within 1 it only grows.
const SchemaVersion = "1.0"

// Bounds of a capture.
const (
	MaxBytes    = 64 << 20 // decoded
	maxEntries  = 500_000  // keys and list items in all
	maxName     = 1024     // bytes of a name or of a link's target
	maxElements = 64       // of a name
	maxDepth    = 32       // of JSON
	maxText     = 4096     // bytes of what is neither a name nor a content
)

// Capture is one recorded machine.
type Capture struct {
	SchemaVersion string    `json:"schema_version"`
	Tool          Tool      `json:"tool"`
	GeneratedAt   string    `json:"generated_at"` // RFC 3339
	Host          Host      `json:"host"`
	Redaction     Redaction `json:"redaction"`
	// Files by name: text, or {"base64": ...}, or null for what is there and was
	// not read. Names are as in fs.FS, relative to the machine's root.
	Files map[string]Content `json:"files"`
	// Links by name, each with its target as it stands there.
	Links map[string]string `json:"links"`
	// Directories that were listed, with their names, or null for one that was
	// only seen. One that has an entry elsewhere is not repeated here.
	Directories map[string][]string `json:"directories"`
	// Absent holds, by directory, the names that were looked for and not there.
	Absent map[string][]string `json:"absent"`
	// Errors holds, by name and by what was tried (read, list, link, open), the
	// error's text.
	Errors map[string]map[string]string `json:"errors"`
	// Commands are those sent to devices, keyed by the bytes sent. None is today.
	Commands []Command `json:"commands"`
	// Setters are lines of the machine's configuration that set transfer
	// limits; nil where nobody looked.
	Setters []Setter `json:"setters"`
}

// Tool names the program that made the capture.
type Tool struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Host is what is known of the machine beside its files.
type Host struct {
	// ID tells captures of one machine from those of others and says nothing
	// else: an HMAC with a key that stays on the machine. Where there is no such
	// key, IDStable is false and the ID is of this capture alone.
	ID       string `json:"id"`
	IDStable bool   `json:"id_stable"`
	Label    string `json:"label,omitempty"` // given by the user
	Kernel   Kernel `json:"kernel"`
}

// Kernel is what the running kernel says of itself; nil for a copied tree.
type Kernel struct {
	Release  *string `json:"release"`
	Machine  *string `json:"machine"` // x86_64
	PageSize *int    `json:"page_size"`
}

// Redaction says what was replaced.
type Redaction struct {
	Serials string         `json:"serials"` // replaced, included
	Counts  map[string]int `json:"counts"`  // distinct secrets by kind
	Note    string         `json:"note"`
}

// Setter is a line outside the kernel that sets a limit.
type Setter struct {
	File  string `json:"file"`
	Line  int    `json:"line"`
	Text  string `json:"text"`
	After bool   `json:"after"` // comes after quirkcheck's own rule
}

// Command is one command sent to a device and its answer: reserved.
type Command struct {
	Device string `json:"device"`
	Sent   string `json:"sent"` // hex
	Data   []byte `json:"data"`
}

// Content is what a file holds; nil was not read.
type Content []byte

// MarshalJSON writes text as it is and anything else in base64.
func (c Content) MarshalJSON() ([]byte, error) {
	switch {
	case c == nil:
		return []byte("null"), nil
	case isText(c):
		return plainJSON(string(c))
	}
	return []byte(`{"base64":"` + base64.StdEncoding.EncodeToString(c) + `"}`), nil
}

// isText: nothing in it that a terminal could take for a command.
func isText(b []byte) bool {
	if !utf8.Valid(b) {
		return false
	}
	return !bytes.ContainsFunc(b, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsPrint(r) })
}

func plainJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// Encode returns the JSON of a capture, with a final newline. A machine that
// does not fit into MaxBytes is an error.
func (c *Capture) Encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", " ")
	if err := e.Encode(c); err != nil {
		return nil, fmt.Errorf("encode the capture: %w", err)
	}
	if b.Len() > MaxBytes {
		return nil, fmt.Errorf("encode the capture: %d MiB, of which %d can be read back", b.Len()>>20, MaxBytes>>20)
	}
	return b.Bytes(), nil
}

// FS is the recorded machine. It implements what probe.Read and
// probe.ResolveName ask for: files, links without following them, and the
// folders that were listed.
type FS struct {
	c *Capture
	// there are the folders that something recorded lies in.
	there  map[string]bool
	absent map[string]bool
}

// FS returns the machine of a capture, which must not change any more.
func (c *Capture) FS() *FS {
	f := &FS{c: c, there: map[string]bool{".": true}, absent: map[string]bool{}}
	for name := range c.Files {
		f.above(name)
	}
	for name := range c.Links {
		f.above(name)
	}
	for name := range c.Directories {
		f.above(name)
		f.there[name] = true
	}
	for dir, names := range c.Absent {
		for _, n := range names {
			f.absent[path.Join(dir, n)] = true
		}
	}
	return f
}

func (f *FS) above(name string) {
	for d := path.Dir(name); !f.there[d]; d = path.Dir(d) {
		f.there[d] = true
	}
}

// replayed is an error as it was recorded.
type replayed string

func (e replayed) Error() string { return string(e) }
func (e replayed) Is(target error) bool {
	return target == fs.ErrPermission && (e == "permission denied" || e == "operation not permitted")
}

// find says what is known of a name; what was tried decides which error is
// the right one.
func (f *FS) find(op, tried, name string) (fs.FileMode, error) {
	fail := func(err error) (fs.FileMode, error) { return 0, &fs.PathError{Op: op, Path: name, Err: err} }
	if !fs.ValidPath(name) {
		return fail(fs.ErrInvalid)
	}
	if text, ok := f.c.Errors[name][tried]; ok {
		return fail(replayed(text))
	}
	if content, ok := f.c.Files[name]; ok {
		if content == nil && tried == "read" {
			return fail(probe.ErrNotRecorded)
		}
		return 0o444, nil
	}
	if _, ok := f.c.Links[name]; ok {
		return fs.ModeSymlink | 0o777, nil
	}
	if f.there[name] {
		return fs.ModeDir | 0o555, nil
	}
	if f.absent[name] {
		return fail(fs.ErrNotExist)
	}
	if names, listed := f.c.Directories[path.Dir(name)]; listed && names != nil && !slices.Contains(names, path.Base(name)) {
		return fail(fs.ErrNotExist)
	}
	return fail(probe.ErrNotRecorded)
}

// Lstat describes a file; a link is not followed.
func (f *FS) Lstat(name string) (fs.FileInfo, error) {
	mode, err := f.find("lstat", "read", name)
	if err != nil {
		return nil, err
	}
	return f.info(name, mode), nil
}

// Stat describes a folder or file. Links are not followed: the probe has
// resolved them before it asks.
func (f *FS) Stat(name string) (fs.FileInfo, error) {
	mode, err := f.find("stat", "open", name)
	if err != nil {
		return nil, err
	}
	return f.info(name, mode), nil
}

// ReadLink returns the target of a link.
func (f *FS) ReadLink(name string) (string, error) {
	if _, err := f.find("readlink", "link", name); err != nil {
		return "", err
	}
	target, ok := f.c.Links[name]
	if !ok {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
	}
	return target, nil
}

// ReadDir lists a folder that was listed when the capture was made.
func (f *FS) ReadDir(name string) ([]fs.DirEntry, error) {
	mode, err := f.find("readdir", "list", name)
	if err != nil {
		return nil, err
	}
	fail := func(err error) ([]fs.DirEntry, error) {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: err}
	}
	if !mode.IsDir() {
		return fail(replayed("not a directory"))
	}
	names := f.c.Directories[name]
	if names == nil {
		return fail(probe.ErrNotRecorded)
	}
	entries := make([]fs.DirEntry, len(names))
	for i, n := range names {
		full := path.Join(name, n)
		mode, err := f.find("lstat", "", full)
		if err != nil {
			mode = fs.ModeIrregular // it is there, and nobody looked what it is
		}
		entries[i] = fs.FileInfoToDirEntry(f.info(full, mode))
	}
	return entries, nil
}

// Open opens a file or a folder that was listed.
func (f *FS) Open(name string) (fs.File, error) {
	mode, err := f.find("open", "read", name)
	if err != nil {
		return nil, err
	}
	o := &opened{info: f.info(name, mode)}
	switch {
	case mode.IsDir():
		if o.entries, err = f.ReadDir(name); err != nil {
			return nil, err
		}
	case mode&fs.ModeSymlink != 0:
		return nil, &fs.PathError{Op: "open", Path: name, Err: replayed("too many levels of symbolic links")}
	default:
		o.Reader = *bytes.NewReader(f.c.Files[name])
	}
	return o, nil
}

func (f *FS) info(name string, mode fs.FileMode) info {
	return info{path.Base(name), int64(len(f.c.Files[name])), mode}
}

type info struct {
	name string
	size int64
	mode fs.FileMode
}

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.size }
func (i info) Mode() fs.FileMode  { return i.mode }
func (i info) ModTime() time.Time { return time.Time{} }
func (i info) IsDir() bool        { return i.mode.IsDir() }
func (i info) Sys() any           { return nil }

// opened is an open file, or an open folder.
type opened struct {
	bytes.Reader
	info    info
	entries []fs.DirEntry
}

func (o *opened) Stat() (fs.FileInfo, error) { return o.info, nil }
func (o *opened) Close() error               { return nil }

func (o *opened) Read(p []byte) (int, error) {
	if o.info.IsDir() {
		return 0, &fs.PathError{Op: "read", Path: o.info.name, Err: replayed("is a directory")}
	}
	return o.Reader.Read(p)
}

func (o *opened) ReadDir(n int) ([]fs.DirEntry, error) {
	if !o.info.IsDir() {
		return nil, &fs.PathError{Op: "readdir", Path: o.info.name, Err: replayed("not a directory")}
	}
	return readSome(&o.entries, n)
}

func (c *Capture) names() []string { return slices.Sorted(maps.Keys(c.Files)) }

// below reports whether a link's target, taken from the link's folder, stays
// in the tree.
func below(name, target string) bool {
	if target == "" || path.IsAbs(target) {
		return false
	}
	p := path.Join(path.Dir(name), target)
	return p != ".." && !strings.HasPrefix(p, "../")
}
