// Package schema holds the JSON Schemas of quirkcheck's formats, the closed
// vocabulary of settings, and the check of a document against a schema.
//
// A published schema file never changes: a new version is a new file. The
// quirk and configuration schemas are closed, so that a misspelt key is an
// error and never a wider match; the report schema is open, so that fields can
// be added. Both kinds are checked here, and only here, with a JSON Schema
// library; callers see Violations in the words of whoever wrote the document.
//
// Reading a text costs nothing until it is asked for, and a schema is compiled
// at most once, when something is first validated with it.
package schema

import (
	"cmp"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
)

//go:embed *.json knobs.yaml
var files embed.FS

// Names lists the texts held here, sorted: each schema with its version, and
// "knobs", the vocabulary of settings.
func Names() []string {
	var names []string
	for _, f := range fileNames() {
		names = append(names, strings.TrimSuffix(f, path.Ext(f)))
	}
	slices.Sort(names)
	return names
}

// Text returns the file called name, as published. A name without its version
// ("quirk") means the newest one. The error is fs.ErrNotExist for a name that
// is not known.
func Text(name string) ([]byte, error) {
	full, ok := resolve(name)
	if !ok {
		return nil, fmt.Errorf("schema %q: known are %s: %w", name, strings.Join(Names(), ", "), fs.ErrNotExist)
	}
	for _, f := range fileNames() {
		if strings.TrimSuffix(f, path.Ext(f)) == full {
			return files.ReadFile(f)
		}
	}
	return nil, fmt.Errorf("schema %q: %w", name, fs.ErrNotExist)
}

// fileNames lists the embedded files. The root of an embed.FS is always
// readable.
func fileNames() []string {
	entries, _ := fs.ReadDir(files, ".")
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// resolve turns a name, with or without its version, into one of Names.
func resolve(name string) (full string, ok bool) {
	for _, n := range Names() {
		if n == name {
			return n, true
		}
		base, _, versioned := strings.Cut(n, ".v")
		if versioned && base == name && (full == "" || newer(n, full)) {
			full = n
		}
	}
	return full, full != ""
}

// newer compares two versioned names of one schema, number by number: v1.10 is
// newer than v1.9.
func newer(a, b string) bool {
	return slices.CompareFunc(version(a), version(b), cmp.Compare[int]) > 0
}

func version(name string) []int {
	_, v, _ := strings.Cut(name, ".v")
	var numbers []int
	for part := range strings.SplitSeq(v, ".") {
		n, _ := strconv.Atoi(part)
		numbers = append(numbers, n)
	}
	return numbers
}
