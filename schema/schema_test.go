package schema

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v5"
)

// schemaNames are the texts that are schemas.
func schemaNames(t *testing.T) []string {
	t.Helper()
	names := slices.DeleteFunc(Names(), func(n string) bool { return n == "knobs" })
	if len(names) < 3 {
		t.Fatalf("only %d schemas: %v", len(names), names)
	}
	return names
}

func schemaText(t *testing.T, name string) map[string]any {
	t.Helper()
	text, err := Text(name)
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return doc
}

// walk calls visit for every object of a schema's text, with its place.
func walk(place string, v any, visit func(place string, node map[string]any)) {
	switch v := v.(type) {
	case map[string]any:
		visit(place, v)
		for _, k := range sortedKeys(v) {
			walk(place+"/"+k, v[k], visit)
		}
	case []any:
		for i, x := range v {
			walk(place+"/"+strconv.Itoa(i), x, visit)
		}
	}
}

func TestNamesAndText(t *testing.T) {
	for _, n := range []string{"config.v1", "knobs", "quirk.v0", "report.v1.0", "verify-plan.v1.0", "verify.v1.0"} {
		if !slices.Contains(Names(), n) {
			t.Errorf("Names() = %v, lacks %s", Names(), n)
		}
	}
	for _, name := range Names() {
		if text, err := Text(name); err != nil || len(text) == 0 {
			t.Errorf("Text(%q) = %d bytes, %v", name, len(text), err)
		}
	}
	for short, full := range map[string]string{"quirk": "quirk.v0", "report": "report.v1.0", "config": "config.v1", "verify": "verify.v1.0", "verify-plan": "verify-plan.v1.0"} {
		got, err := Text(short)
		want, _ := Text(full)
		if err != nil || string(got) != string(want) {
			t.Errorf("Text(%q) is not Text(%q): %v", short, full, err)
		}
	}
	for _, bad := range []string{"", "quirk.", "quirk.v", "quirk.v9", "knobs.yaml", "schema.go", "../go"} {
		if _, err := Text(bad); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Text(%q) error = %v, want fs.ErrNotExist", bad, err)
		}
	}
}

func TestNewerComparesNumbers(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"report.v1.10", "report.v1.9", true},
		{"report.v1.9", "report.v1.10", false},
		{"quirk.v1", "quirk.v0", true},
		{"quirk.v0", "quirk.v0", false},
		{"report.v2", "report.v1.10", true},
	} {
		if got := newer(c.a, c.b); got != c.want {
			t.Errorf("newer(%s, %s) = %v", c.a, c.b, got)
		}
	}
}

func TestSchemasFollowTheMetaSchema(t *testing.T) {
	meta, err := jsonschema.Compile("https://json-schema.org/draft/2020-12/schema")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range schemaNames(t) {
		doc := schemaText(t, name)
		if doc["$schema"] != "https://json-schema.org/draft/2020-12/schema" {
			t.Errorf("%s: $schema = %v", name, doc["$schema"])
		}
		if id, _ := doc["$id"].(string); !strings.HasSuffix(id, "/"+name+".json") {
			t.Errorf("%s: $id = %v", name, id)
		}
		if err := meta.Validate(doc); err != nil {
			t.Errorf("%s: %#v", name, err)
		}
		compiled(name) // panics when broken
	}
}

// Keywords that are misspelt are no keywords and check nothing.
func TestSchemasUseKnownKeywordsOnly(t *testing.T) {
	known := strings.Fields(`$schema $id $ref $defs title description default type enum const pattern minLength maxLength
		minimum maximum minItems maxItems uniqueItems items required properties additionalProperties propertyNames
		minProperties maxProperties dependentRequired dependentSchemas allOf anyOf oneOf not if then`)
	for _, name := range schemaNames(t) {
		var check func(place string, v any)
		check = func(place string, v any) {
			node, ok := v.(map[string]any)
			if !ok {
				return
			}
			for k, below := range node {
				if !slices.Contains(known, k) {
					t.Errorf("%s%s: unknown keyword %q", name, place, k)
				}
				switch k {
				case "properties", "$defs", "dependentSchemas":
					for p, s := range mapOf(below) {
						check(place+"/"+k+"/"+p, s)
					}
				case "allOf", "anyOf", "oneOf":
					for _, s := range below.([]any) {
						check(place+"/"+k, s)
					}
				case "items", "additionalProperties", "propertyNames", "not", "if", "then":
					check(place+"/"+k, below)
				}
			}
		}
		check("", schemaText(t, name))
	}
}

// Every property says what it is, and every number in which unit. Properties
// inside if, then and not are conditions on fields described elsewhere.
func TestPropertiesAreDescribed(t *testing.T) {
	unit := regexp.MustCompile(`sector|KiB|byte|block|\bms\b|nanosecond|day|[Nn]umber|in the unit of`)
	for _, name := range schemaNames(t) {
		properties := 0
		walk("", schemaText(t, name), func(place string, node map[string]any) {
			if regexp.MustCompile(`/(if|then|not)(/|$)`).MatchString(place) {
				return
			}
			for p, s := range mapOf(node["properties"]) {
				sub := mapOf(s)
				if sub == nil {
					continue // a field called properties
				}
				properties++
				about, _ := sub["description"].(string)
				if about == "" || !strings.HasSuffix(about, ".") {
					t.Errorf("%s%s/%s: description %q", name, place, p, about)
				}
				kinds := append(stringsOf(sub["type"]), stringsOf([]any{sub["type"]})...)
				if (slices.Contains(kinds, "integer") || sub["$ref"] == "#/$defs/max_sectors") && !unit.MatchString(about) {
					t.Errorf("%s%s/%s: a number without a unit: %q", name, place, p, about)
				}
			}
		})
		if properties < 5 {
			t.Errorf("%s: only %d properties seen", name, properties)
		}
	}
}

// What people and strangers write is closed and bounded; what we write is open.
func TestClosedAndBounded(t *testing.T) {
	for _, name := range schemaNames(t) {
		closed := strings.HasPrefix(name, "quirk.") || strings.HasPrefix(name, "config.")
		walk("", schemaText(t, name), func(place string, node map[string]any) {
			kinds := append(stringsOf(node["type"]), stringsOf([]any{node["type"]})...)
			is := func(k string) bool { return slices.Contains(kinds, k) }
			if strings.Contains(place, "/if") || strings.HasSuffix(place, "/properties") {
				return
			}
			if !closed {
				if node["additionalProperties"] == false {
					t.Errorf("%s%s: closed, want open", name, place)
				}
				return
			}
			if is("object") && node["additionalProperties"] != false && (node["maxProperties"] == nil || node["propertyNames"] == nil) {
				t.Errorf("%s%s: open, want closed", name, place)
			}
			if is("string") && node["maxLength"] == nil && node["enum"] == nil && node["then"] == nil {
				t.Errorf("%s%s: text without maxLength", name, place)
			}
			if is("array") && node["maxItems"] == nil {
				t.Errorf("%s%s: list without maxItems", name, place)
			}
		})
	}
}

func TestReferencesResolve(t *testing.T) {
	for _, name := range schemaNames(t) {
		doc := schemaText(t, name)
		used := map[string]bool{}
		walk("", doc, func(place string, node map[string]any) {
			if r, ok := node["$ref"].(string); ok {
				if _, v := locate(doc, tokens(r)); v == nil {
					t.Errorf("%s%s: $ref %s leads nowhere", name, place, r)
				}
				used[r] = true
			}
		})
		for d := range mapOf(doc["$defs"]) {
			if !used["#/$defs/"+d] {
				t.Errorf("%s: $defs/%s is not used", name, d)
			}
		}
	}
}

func TestKnobsEqualTheEnum(t *testing.T) {
	var names []string
	for _, k := range Knobs() {
		names = append(names, k.Name)
	}
	if len(names) < 30 {
		t.Fatalf("only %d knobs", len(names))
	}
	_, enum := locate(schemaText(t, "quirk"), []string{"$defs", "knob", "enum"})
	if diff := cmp.Diff(stringsOf(enum), names); diff != "" {
		t.Errorf("quirk.v0 enum against knobs.yaml (-enum +knobs)\n%s", diff)
	}
}

func TestKnobsAreComplete(t *testing.T) {
	name := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	release := regexp.MustCompile(`^([0-9]+\.[0-9]+(\.[0-9]+)?)?$`)
	path := regexp.MustCompile(`^(/sys/(class|bus|module)/|queue/|device/)[A-Za-z0-9_*/]+[A-Za-z0-9_]$`)
	seen := map[string]bool{}
	for _, k := range Knobs() {
		if !name.MatchString(k.Name) || seen[k.Name] {
			t.Errorf("%q: name is no word or is there twice", k.Name)
		}
		seen[k.Name] = true
		if k.About == "" || k.Unit == "" {
			t.Errorf("%s: about %q, unit %q", k.Name, k.About, k.Unit)
		}
		for field, ok := range map[string]bool{
			"value": slices.Contains([]string{"integer", "text", "switch"}, k.Value),
			"scope": slices.Contains([]string{"block-layer", "all-commands", "device", "port", "host", "config"}, k.Scope),
			"safer": slices.Contains([]string{"lower", "higher", "none"}, k.Safer),
		} {
			if !ok {
				t.Errorf("%s: %s is not of its list", k.Name, field)
			}
		}
		for _, f := range k.Files {
			if !path.MatchString(f.Path) || f.Unit == "" || f.Access != "ro" && f.Access != "rw" ||
				!release.MatchString(f.Since) || !release.MatchString(f.WritableSince) {
				t.Errorf("%s: file %+v", k.Name, f)
			}
			// Writing it would only stop flushes (design, "Touching a machine").
			if f.Path == "queue/write_cache" && f.Access == "rw" {
				t.Errorf("%s: queue/write_cache must not be offered for writing", k.Name)
			}
		}
		for _, b := range k.Boot {
			if b.Text == "" || !release.MatchString(b.Since) {
				t.Errorf("%s: boot %+v", k.Name, b)
			}
		}
		if k.Permanent != (k.Name == "write_cache") {
			t.Errorf("%s: permanent = %v", k.Name, k.Permanent)
		}
	}
}

func TestKnobNamed(t *testing.T) {
	k, ok := KnobNamed("max_sectors")
	if !ok || k.Unit != "512-byte sectors" || k.Files[0].Path != "queue/max_sectors_kb" || k.Files[0].Unit != "KiB" {
		t.Errorf("KnobNamed(max_sectors) = %+v, %v", k, ok)
	}
	if k, ok := KnobNamed("max_sector"); ok {
		t.Errorf("KnobNamed(max_sector) = %+v", k)
	}
	Knobs()[0].Name = "changed"
	if Knobs()[0].Name == "changed" {
		t.Error("a caller can change the vocabulary")
	}
}

func readTestdata(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}
