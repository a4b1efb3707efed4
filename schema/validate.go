package schema

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/santhosh-tekuri/jsonschema/v5"
)

// Violation is one fault of a document, at the level its author can mend.
type Violation struct {
	// Path names the field from the top of the document, for example
	// match.any[0].device.model; a key that is no plain word is quoted in
	// brackets. It is empty for the document itself. For a missing key it names
	// the key that should be there, so the nearest parent is what exists.
	Path    string
	Message string
}

func (v Violation) String() string {
	if v.Path == "" {
		return v.Message
	}
	return v.Path + ": " + v.Message
}

const (
	maxDepth      = 64  // nesting of a document; the deepest schema needs 10
	maxViolations = 200 // of one document; a hostile one could have one per byte
	maxShown      = 60  // characters of a value in a message
)

// Validate checks doc against the schema called name (as for Text) and returns
// every violation, sorted by path; nil means the document is valid. doc is what
// a YAML or JSON decoder makes when it decodes into any: maps, slices, strings,
// numbers (json.Number too), booleans and nil. It is not changed.
//
// Validate reads nothing but doc and the embedded schemas, and is safe for
// concurrent use. A name that is no schema is itself returned as a violation.
func Validate(name string, doc any) []Violation {
	full, ok := resolve(name)
	if !ok || full == "knobs" {
		return []Violation{{Message: fmt.Sprintf("no schema is called %s", show(name))}}
	}
	doc, bad := plain(doc, "", 0)
	var found []Violation
	c := compiled(full)
	err := c.schema.Validate(doc)
	var invalid *jsonschema.ValidationError
	switch {
	case err == nil:
	case errors.As(err, &invalid):
		found = c.explain(invalid, doc)
	default:
		found = []Violation{{Message: err.Error()}}
	}
	// What is no document at all was replaced by null, whose faults say nothing.
	found = slices.DeleteFunc(found, func(v Violation) bool {
		return slices.ContainsFunc(bad, func(b Violation) bool { return within(v.Path, b.Path) })
	})
	return tidy(append(found, bad...))
}

// within tells whether path is at or below top.
func within(path, top string) bool {
	rest, ok := strings.CutPrefix(path, top)
	return ok && (top == "" || rest == "" || rest[0] == '.' || rest[0] == '[')
}

// tidy sorts, drops what is said twice, and does not call an unknown key a
// misplaced one as well. nil in, nil out.
func tidy(found []Violation) []Violation {
	slices.SortFunc(found, func(a, b Violation) int {
		return cmp.Or(comparePaths(a.Path, b.Path), strings.Compare(a.Message, b.Message))
	})
	found = slices.Compact(found)
	unknown := map[string]bool{}
	for _, v := range found {
		if strings.HasPrefix(v.Message, unknownKey) {
			unknown[v.Path] = true
		}
	}
	found = slices.DeleteFunc(found, func(v Violation) bool {
		return unknown[v.Path] && strings.HasPrefix(v.Message, misplacedKey)
	})
	if more := len(found) - maxViolations; more > 0 {
		found = append(found[:maxViolations:maxViolations], Violation{Message: fmt.Sprintf("%d more faults", more)})
	}
	return found
}

// comparePaths orders any[2] before any[10].
func comparePaths(a, b string) int {
	for a != "" && b != "" {
		x, restA := leadingNumber(a)
		y, restB := leadingNumber(b)
		if x >= 0 && y >= 0 && x != y {
			return x - y
		}
		if x >= 0 && y >= 0 {
			a, b = restA, restB
			continue
		}
		if a[0] != b[0] {
			return int(a[0]) - int(b[0])
		}
		a, b = a[1:], b[1:]
	}
	return len(a) - len(b)
}

// leadingNumber cuts a short decimal number off the front of s; n is -1 when
// there is none.
func leadingNumber(s string) (n int, rest string) {
	end := 0
	for end < len(s) && end < 9 && s[end] >= '0' && s[end] <= '9' {
		end++
	}
	if end == 0 {
		return -1, s
	}
	n, _ = strconv.Atoi(s[:end])
	return n, s[end:]
}

// A compilation is a schema ready for use, beside its own text, in which the
// faults are looked up to word them.
type compilation struct {
	schema *jsonschema.Schema
	text   any
}

var compilations = func() map[string]func() compilation {
	m := map[string]func() compilation{}
	for _, name := range Names() {
		m[name] = sync.OnceValue(func() compilation { return compile(name) })
	}
	return m
}()

func compiled(name string) compilation { return compilations[name]() }

// compile panics on a broken schema: it is part of the program, and the tests
// compile each.
func compile(name string) compilation {
	text, err := Text(name)
	if err != nil {
		panic(err)
	}
	var c compilation
	if err := json.Unmarshal(text, &c.text); err != nil {
		panic(fmt.Sprintf("schema %s: %v", name, err))
	}
	compiler := jsonschema.NewCompiler()
	compiler.LoadURL = func(u string) (io.ReadCloser, error) {
		return nil, fmt.Errorf("schema %s refers to %s, which is not embedded", name, u)
	}
	id, _ := c.text.(map[string]any)["$id"].(string)
	if err := compiler.AddResource(id, bytes.NewReader(text)); err != nil {
		panic(fmt.Sprintf("schema %s: %v", name, err))
	}
	c.schema, err = compiler.Compile(id)
	if err != nil {
		panic(fmt.Sprintf("schema %s: %#v", name, err))
	}
	return c
}

const (
	unknownKey   = "unknown key "
	misplacedKey = "key not allowed here"
)

// explain turns the library's tree of causes into violations. Inner nodes only
// say that something below them failed; an alternative (anyOf, oneOf) is told
// as a whole, since each of its branches is a fault only beside the others.
func (c compilation) explain(e *jsonschema.ValidationError, doc any) []Violation {
	keyword := tokens(e.AbsoluteKeywordLocation)
	last := ""
	if len(keyword) > 0 {
		last = keyword[len(keyword)-1]
	}
	if len(e.Causes) > 0 && last != "anyOf" && last != "oneOf" {
		var all []Violation
		for _, cause := range e.Causes {
			all = append(all, c.explain(cause, doc)...)
		}
		return all
	}
	f := fault{c: c, keyword: keyword, doc: doc, at: tokens("#" + e.InstanceLocation), library: e.Message}
	return f.word()
}

// fault is one failed keyword: where it stands in the schema and in the document.
type fault struct {
	c       compilation
	keyword []string // of the schema's text
	doc     any
	at      []string // of the document
	library string   // the library's own words, for keywords not worded here
}

func (f fault) word() []Violation {
	path, value := locate(f.doc, f.at)
	one := func(format string, args ...any) []Violation {
		return []Violation{{Path: path, Message: fmt.Sprintf(format, args...)}}
	}
	n := len(f.keyword)
	if n == 0 {
		return one("%s", f.library)
	}
	node := f.node(n - 1)
	rule := node[f.keyword[n-1]]
	if n > 1 && f.keyword[n-2] == "propertyNames" {
		return f.wordKey(node, f.keyword[n-1])
	}
	if n > 2 && f.keyword[n-3] == "dependentRequired" {
		needed, _ := f.node(n - 3)["dependentRequired"].(map[string]any)
		var missing []Violation
		for _, k := range stringsOf(needed[f.keyword[n-2]]) {
			if _, there := mapOf(value)[k]; !there {
				missing = append(missing, Violation{join(path, k), fmt.Sprintf("missing, needed beside %s", f.keyword[n-2])})
			}
		}
		return missing
	}
	switch f.keyword[n-1] {
	case "required":
		var missing []Violation
		for _, k := range stringsOf(rule) {
			if _, there := mapOf(value)[k]; !there {
				missing = append(missing, Violation{join(path, k), "missing"})
			}
		}
		return missing
	case "additionalProperties":
		known := sortedKeys(mapOf(node["properties"]))
		var unknown []Violation
		for _, k := range sortedKeys(mapOf(value)) {
			if !slices.Contains(known, k) {
				unknown = append(unknown, Violation{join(path, k), fmt.Sprintf(unknownKey+"%s; known: %s", show(k), strings.Join(known, ", "))})
			}
		}
		return unknown
	case "type":
		want := kinds(rule)
		message := fmt.Sprintf("must be %s, not %s", want, kindOf(value))
		if _, isNumber := number(value); (isNumber || isBool(value)) && strings.Contains(want, "text") {
			message += "; put it in quotes"
		}
		return one("%s", message)
	case "enum":
		return one("%s is not one of %s", show(value), strings.Join(stringsOf(rule), ", "))
	case "const":
		return one("must be %s, not %s", show(rule), show(value))
	case "pattern":
		if about, ok := node["description"].(string); ok {
			return one("%s does not fit: %s", show(value), about)
		}
		return one("%s: %s", show(value), f.library)
	case "minLength":
		return one("must have at least %v characters", rule)
	case "maxLength":
		text, _ := value.(string)
		return one("has %d characters, at most %v are allowed", utf8.RuneCountInString(text), rule)
	case "minimum", "exclusiveMinimum":
		return one("%s is below the smallest value, %s", show(value), show(rule))
	case "maximum", "exclusiveMaximum":
		return one("%s is above the largest value, %s", show(value), show(rule))
	case "minItems":
		return one("needs at least %v items", rule)
	case "maxItems":
		return one("has more than %v items", rule)
	case "uniqueItems":
		return one("names an item twice")
	case "minProperties":
		// Of identities only `space` is required, so the rest is what lacks.
		var lacking []string
		for _, k := range sortedKeys(mapOf(node["properties"])) {
			if _, there := mapOf(value)[k]; !there {
				lacking = append(lacking, k)
			}
		}
		return one("says too little; add one of %s", strings.Join(lacking, ", "))
	case "maxProperties":
		return one("has more than %v keys", rule)
	case "anyOf", "oneOf":
		if text := alternatives(map[string]any{f.keyword[n-1]: rule}); text != "" {
			return one("needs %s", text)
		}
	}
	return one("%s", f.library)
}

// wordKey words the failure of a key itself, under propertyNames.
func (f fault) wordKey(names map[string]any, keyword string) []Violation {
	key := f.at[len(f.at)-1]
	parent, _ := locate(f.doc, f.at[:len(f.at)-1])
	if keyword != "enum" {
		return []Violation{{join(parent, key), fmt.Sprintf("%s is no good key: %s", show(key), f.library)}}
	}
	message := misplacedKey
	// The rule mostly stands in the `then` of an `if` that names a value.
	if i := len(f.keyword) - 3; i >= 0 && f.keyword[i] == "then" {
		condition, _ := f.node(i)["if"].(map[string]any)
		for k, is := range mapOf(condition["properties"]) {
			message += fmt.Sprintf(" with %s %v", k, mapOf(is)["const"])
		}
	}
	return []Violation{{join(parent, key), message + "; allowed: " + strings.Join(stringsOf(names["enum"]), ", ")}}
}

// node returns the object at the first n tokens of the keyword's place.
func (f fault) node(n int) map[string]any {
	_, v := locate(f.c.text, f.keyword[:n])
	return mapOf(v)
}

// alternatives words a rule made of required keys: "one of a, b" or "exactly
// one of a, b". It is empty for a rule made of anything else.
func alternatives(rule map[string]any) string {
	if required, ok := rule["required"]; ok {
		return strings.Join(stringsOf(required), " with ")
	}
	how, list := "one of ", rule["anyOf"]
	if list == nil {
		how, list = "exactly one of ", rule["oneOf"]
	}
	branches, _ := list.([]any)
	var parts []string
	for _, b := range branches {
		part := alternatives(mapOf(b))
		if part == "" {
			return ""
		}
		// A group inside a list reads as "a, or one of b, c".
		if strings.Contains(part, " of ") {
			part = "or " + part
		}
		parts = append(parts, part)
	}
	if len(parts) == 0 {
		return ""
	}
	return how + strings.Join(parts, ", ")
}

// tokens splits the fragment of a location into its parts, undoing the
// library's escapes: JSON Pointer's inside, percent signs outside.
func tokens(location string) []string {
	_, pointer, _ := strings.Cut(location, "#")
	pointer = strings.TrimPrefix(pointer, "/")
	if pointer == "" {
		return nil
	}
	parts := strings.Split(pointer, "/")
	for i, p := range parts {
		if u, err := url.PathUnescape(p); err == nil {
			p = u
		}
		parts[i] = strings.ReplaceAll(strings.ReplaceAll(p, "~1", "/"), "~0", "~")
	}
	return parts
}

// locate follows tokens into doc and returns the value there with its path in
// dotted form. A value that is not there is nil.
func locate(doc any, at []string) (path string, value any) {
	value = doc
	for _, token := range at {
		switch v := value.(type) {
		case []any:
			path += "[" + token + "]"
			i, err := strconv.Atoi(token)
			if err != nil || i < 0 || i >= len(v) {
				value = nil
				continue
			}
			value = v[i]
		default:
			path = join(path, token)
			value = mapOf(v)[token]
		}
	}
	return path, value
}

// join adds a key to a dotted path. A key that is not made of word characters
// is quoted, so that nothing in a document can forge a path or reach a terminal
// unescaped.
func join(path, key string) string {
	wordy := key != "" && len(key) <= maxShown
	for _, r := range key {
		wordy = wordy && (r == '_' || r == '-' || r == '$' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z')
	}
	if !wordy {
		return path + "[" + show(key) + "]"
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// show writes a value of the document for a person: quoted, escaped and cut.
func show(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		if r := []rune(v); len(r) > maxShown {
			v = string(r[:maxShown]) + "..."
		}
		return strconv.Quote(v)
	case map[string]any:
		return "a map"
	case []any:
		return "a list"
	case float64:
		// Whole numbers without an exponent: 4294967295, not 4.294967295e+09.
		if v == math.Trunc(v) && math.Abs(v) < 1e19 {
			return strconv.FormatFloat(v, 'f', 0, 64)
		}
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	return fmt.Sprint(v)
}

// kinds words the schema's type keyword, kindOf the type of a value.
func kinds(rule any) string {
	words := map[string]string{"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false", "array": "a list", "object": "a map", "null": "null"}
	list := stringsOf(rule)
	if len(list) == 0 {
		list = stringsOf([]any{rule})
	}
	var named []string
	for _, t := range list {
		named = append(named, words[t])
	}
	return strings.Join(named, " or ")
}

func kindOf(v any) string {
	if _, ok := number(v); ok {
		return "the number " + show(v)
	}
	switch v := v.(type) {
	case bool:
		return strconv.FormatBool(v)
	case string:
		return "the text " + show(v)
	}
	return show(v)
}

func number(v any) (float64, bool) {
	switch v := v.(type) {
	case int64:
		return float64(v), true
	case uint64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

func isBool(v any) bool {
	_, ok := v.(bool)
	return ok
}

func mapOf(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}

func stringsOf(v any) []string {
	list, _ := v.([]any)
	var out []string
	for _, x := range list {
		if s, ok := x.(string); ok {
			out = append(out, s)
		} else {
			out = append(out, show(x))
		}
	}
	return out
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// plain copies doc, which stands at path, into the types the library takes:
// map[string]any, []any, string, bool, nil, int64, uint64 and finite float64.
// What has no such form becomes nil and a violation.
func plain(doc any, path string, depth int) (any, []Violation) {
	fail := func(format string, args ...any) (any, []Violation) {
		return nil, []Violation{{path, fmt.Sprintf(format, args...)}}
	}
	if depth > maxDepth {
		return fail("nested deeper than %d levels", maxDepth)
	}
	switch v := doc.(type) {
	case nil:
		return nil, nil
	case json.Number:
		// The library would keep any exponent and compute with it.
		if i, err := v.Int64(); err == nil {
			return i, nil
		}
		f, err := v.Float64()
		if err != nil {
			return fail("%s is no number that fits", show(v.String()))
		}
		return f, nil
	case time.Time:
		// YAML makes a date of an unquoted 2026-01-02.
		return fail("is a date; put it in quotes")
	}
	rv := reflect.ValueOf(doc)
	switch rv.Kind() {
	case reflect.String:
		if !utf8.ValidString(rv.String()) {
			return fail("is not UTF-8")
		}
		return rv.String(), nil
	case reflect.Bool:
		return rv.Bool(), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return rv.Int(), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return rv.Uint(), nil
	case reflect.Float32, reflect.Float64:
		if f := rv.Float(); math.IsNaN(f) || math.IsInf(f, 0) {
			return fail("%v is no number that can be compared", f)
		}
		return rv.Float(), nil
	case reflect.Slice, reflect.Array:
		out := make([]any, 0, rv.Len())
		var found []Violation
		for i := range rv.Len() {
			item, bad := plain(rv.Index(i).Interface(), path+"["+strconv.Itoa(i)+"]", depth+1)
			out, found = append(out, item), append(found, bad...)
		}
		return out, found
	case reflect.Map:
		out := make(map[string]any, rv.Len())
		var found []Violation
		for iter := rv.MapRange(); iter.Next(); {
			key, ok := keyText(iter.Key())
			if !ok {
				_, bad := fail("has the key %v, which is not text; put it in quotes", iter.Key())
				found = append(found, bad...)
				continue
			}
			item, bad := plain(iter.Value().Interface(), join(path, key), depth+1)
			out[key], found = item, append(found, bad...)
		}
		return out, found
	}
	return fail("holds a %T, which no document can", doc)
}

// keyText returns a map's key; ok is false when it is not text.
func keyText(key reflect.Value) (s string, ok bool) {
	if key.Kind() == reflect.Interface {
		key = key.Elem()
	}
	return key.String(), key.Kind() == reflect.String
}
