package schema

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

func decode(t testing.TB, text string) any {
	t.Helper()
	var doc any
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestGoodDocuments(t *testing.T) {
	for file, name := range map[string]string{"dellboss.yaml": "quirk.v0", "maximal.yaml": "quirk", "report.json": "report"} {
		for _, v := range Validate(name, decode(t, string(readTestdata(t, file)))) {
			t.Errorf("%s: %v", file, v)
		}
	}
	for _, config := range []string{"{}", "fail_on: high\nfail_on_unknown: true\nformat: json\nshow: all\noverlay: [/etc/quirkcheck/quirks]\nquiet: true\n"} {
		for _, v := range Validate("config", decode(t, config)) {
			t.Errorf("%s: %v", config, v)
		}
	}
}

// The maximal entry keeps its name: it has every key of the schema.
func TestMaximalEntryUsesEveryKey(t *testing.T) {
	used := map[string]bool{}
	var collect func(v any)
	collect = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				used[k] = true
				collect(x)
			}
		case []any:
			for _, x := range v {
				collect(x)
			}
		}
	}
	collect(decode(t, string(readTestdata(t, "maximal.yaml"))))
	text := schemaText(t, "quirk")
	var missing []string
	walk("", text, func(place string, node map[string]any) {
		if strings.Contains(place, "subject_limits") {
			return
		}
		for p, s := range mapOf(node["properties"]) {
			if mapOf(s) != nil && !used[p] {
				missing = append(missing, place+"/"+p)
			}
		}
	})
	if len(missing) > 0 {
		t.Errorf("maximal.yaml does not use %v", missing)
	}
}

// small is the least valid entry; cases edit it.
const small = `
schema: 0
id: ata-acme-io-timeout
title: ACME disk times out on large commands
effect: io-timeout
severity: high
confidence: suspected
match: {any: [{device: {space: ata, model: "ACME"}}]}
limits: {max_sectors: 1024}
references: [{type: report, url: "https://example.org/1"}]
examples:
  match: [{subject: {device: {space: ata, model: "ACME"}}, source: "report"}]
  no_match: [{subject: {device: {space: ata, model: "ACME2"}}, fails: device.model, why: "other model"}]
`

func TestBadEntries(t *testing.T) {
	if v := Validate("quirk", decode(t, small)); v != nil {
		t.Fatalf("the base of the cases is not valid: %v", v)
	}
	for _, c := range []struct {
		name, old, new string
		want           []string
	}{
		{"unknown key at the top", "schema: 0", "schema: 0\nseverty: low", []string{
			`severty: unknown key "severty"; known: aliases, avoid, conditions, confidence, details, effect, examples, hidden, id, kernel, limits, match, mitigations, references, related, schema, severity, title, trigger, want, withdrawn`}},
		{"misspelt key in an arm", `{any: [{device: {space: ata, model: "ACME"}}]}`, `{any: [{device: {space: ata, modle: "ACME"}}]}`, []string{
			`match.any[0].device.modle: unknown key "modle"; known: firmware, model, product, product_is, revision, space, vendor`}},
		{"key of another space", `{any: [{device: {space: ata, model: "ACME"}}]}`, `{any: [{device: {space: scsi, model: "ACME"}}]}`, []string{
			`match.any[0].device.model: key not allowed here with space scsi; allowed: space, vendor, product, product_is, revision`}},
		{"unquoted number for a firmware", `[{device: {space: ata, model: "ACME"}}]}`, `[{device: {space: ata, model: "ACME", firmware: 0104}}]}`, []string{
			`match.any[0].device.firmware: must be text or a list or a map, not the number 68; put it in quotes`}},
		{"unquoted float for a model", `[{device: {space: ata, model: "ACME"}}]}`, `[{device: {space: ata, model: 1E10}}]}`, []string{
			`match.any[0].device.model: must be text or a list, not the number 10000000000; put it in quotes`}},
		{"unquoted number in a firmware list", `[{device: {space: ata, model: "ACME"}}]}`, `[{device: {space: ata, firmware: {bad: ["1", 2]}}}]}`, []string{
			`match.any[0].device.firmware.bad[1]: must be text, not the number 2; put it in quotes`}},
		{"unquoted boolean", "source: \"report\"", "source: true", []string{
			`examples.match[0].source: must be text, not true; put it in quotes`}},
		{"unquoted date", "source: \"report\"", "source: 2026-01-02", []string{
			`examples.match[0].source: is a date; put it in quotes`}},
		{"number as a key", "schema: 0", "schema: 0\n5: x", []string{
			`has the key 5, which is not text; put it in quotes`}},
		{"any beside bad", `model: "ACME"}}]}`, `firmware: {any: "all", bad: ["1"]}}}]}`, []string{
			`match.any[0].device.firmware: needs exactly one of any, or one of bad, fixed, below`}},
		{"below without order", `model: "ACME"}}]}`, `firmware: {below: "9"}}}]}`, []string{
			`match.any[0].device.firmware.order: missing, needed beside below`}},
		{"unknown order", `model: "ACME"}}]}`, `firmware: {bad: ["1"], order: semver}}}]}`, []string{
			`match.any[0].device.firmware.order: "semver" is not one of listed, lexical, numeric`}},
		{"empty arm", `{any: [{device: {space: ata, model: "ACME"}}]}`, `{any: [{}]}`, []string{
			`match.any[0]: says too little; add one of adapter, device, kernel, machine, path, stack, usb`}},
		{"no arm", `{any: [{device: {space: ata, model: "ACME"}}]}`, `{any: []}`, []string{
			`match.any: needs at least 1 items`}},
		{"space alone", `{any: [{device: {space: ata, model: "ACME"}}]}`, `{any: [{device: {space: nvme}}]}`, []string{
			`match.any[0].device: says too little; add one of firmware, model, product, product_is, revision, vendor`}},
		{"pci with three parts", `{any: [{device: {space: ata, model: "ACME"}}]}`, `{any: [{adapter: {pci: "1b4b:9230:1028"}}]}`, []string{
			`match.any[0].adapter.pci: "1b4b:9230:1028" does not fit: vendor:device:subvendor:subdevice, four parts, each 4 lower-case hex digits or *; or a list, any one of them.`}},
		{"id out of its form", "id: ata-acme-io-timeout", "id: ATA_acme", []string{
			`id: "ATA_acme" does not fit: Entry id, <space>-<what>-<effect>: lower-case words of letters and digits joined by hyphens.`}},
		{"newer schema", "schema: 0", "schema: 1", []string{`schema: must be 0, not 1`}},
		{"unknown effect", "effect: io-timeout", "effect: slow", []string{
			`effect: "slow" is not one of silent-corruption, data-loss, device-death, io-timeout, link-reset, io-error, hang, performance, misreport, capability`}},
		{"sectors below one", "max_sectors: 1024", "max_sectors: 0", []string{
			`limits.max_sectors: 0 is below the smallest value, 1`}},
		{"sectors above 32 bits", "max_sectors: 1024", "max_sectors: 4294967296", []string{
			`limits.max_sectors: 4294967296 is above the largest value, 4294967295`}},
		{"sectors with a fraction", "max_sectors: 1024", "max_sectors: 1024.5", []string{
			`limits.max_sectors: must be a whole number, not the number 1024.5`}},
		{"not a number", "max_sectors: 1024", "max_sectors: .nan", []string{
			`limits.max_sectors: NaN is no number that can be compared`}},
		{"quoted number for a limit", "max_sectors: 1024", `max_sectors: "1024"`, []string{
			`limits.max_sectors: must be a whole number, not the text "1024"`}},
		{"a fault without a remedy", "limits: {max_sectors: 1024}\n", "", []string{
			`needs one of limits, want, avoid`}},
		{"severity of a capability", "effect: io-timeout", "effect: capability", []string{
			`severity: must be "info", not "high"`}},
		{"unknown knob", "limits: {max_sectors: 1024}", "want: [{knob: queue_deph, at_most: 1}]", nil},
		{"two bounds", "limits: {max_sectors: 1024}", "want: [{knob: ncq, at_most: 1, equal: 1}]", []string{
			`want[0]: needs exactly one of at_most, at_least, equal, not`}},
		{"no bound", "limits: {max_sectors: 1024}", "want: [{knob: ncq}]", []string{
			`want[0]: needs exactly one of at_most, at_least, equal, not`}},
		{"unknown command to avoid", "limits: {max_sectors: 1024}", `avoid: [{command: "vpd:b0", why: "hangs"}]`, []string{
			`avoid[0].command: "vpd:b0" does not fit: inquiry-evpd, vpd:XX (page in upper-case hex), vpd:*, inquiry-long, read-capacity-16, report-opcodes, ata-pass-through, ata-log-dir, ata-id-dev-log, smart-read, nvme-identify-cns:>N, open or wake.`}},
		{"range beside since", `{any: [{device: {space: ata, model: "ACME"}}]}`, `{any: [{kernel: {since: "6.1", range: [{tree: mainline, introduced: "6.1"}]}}]}`, []string{
			`match.any[0].kernel.since: key not allowed here; allowed: range`}},
		{"after without by", "schema: 0", "schema: 0\nkernel: {mitigated: [{trees: [{tree: mainline, after: \"6.1\"}]}]}", []string{
			`kernel.mitigated[0].trees[0].by: missing, needed beside after`}},
		{"release without quotes", "schema: 0", "schema: 0\nkernel: {range: [{tree: mainline, introduced: 6.10}]}", []string{
			`kernel.range[0].introduced: must be text or null, not the number 6.1; put it in quotes`}},
		{"condition half said", "schema: 0", "schema: 0\nconditions: [{key: arch}]", []string{
			`conditions[0].op: missing, needed beside key`, `conditions[0].value: missing, needed beside key`}},
		{"mitigation without its field", "schema: 0", "schema: 0\nmitigations: [{type: kernel}]", []string{
			`mitigations[0].since: missing`, `mitigations[0].tree: missing`}},
		{"depth in words", "schema: 0", "schema: 0\ntrigger: {depth: deep}", []string{
			`trigger.depth: must be "any", not "deep"`}},
		{"no near miss", "  no_match: [{subject: {device: {space: ata, model: \"ACME2\"}}, fails: device.model, why: \"other model\"}]\n", "", []string{
			`examples.no_match: missing`}},
		{"near miss that fails nothing", "fails: device.model, ", "", []string{
			`examples.no_match[0]: needs one of fails, expect`}},
		{"example without a source", ", source: \"report\"", "", []string{
			`examples.match[0].source: missing`}},
		{"control character", `title: ACME disk`, `title: "ACME \e[31mdisk"` + "\ndetails: x # ", nil},
		{"hostile key", "schema: 0", "schema: 0\n\"a.b\\n\\e[2J\": 1", nil},
		{"text too long", "source: \"report\"", "source: \"" + strings.Repeat("x", 401) + "\"", []string{
			`examples.match[0].source: has 401 characters, at most 400 are allowed`}},
		{"all at once", "effect: io-timeout\nseverity: high", "effect: slow", []string{
			`effect: "slow" is not one of silent-corruption, data-loss, device-death, io-timeout, link-reset, io-error, hang, performance, misreport, capability`,
			`severity: missing`}},
		{"a list for a map", "limits: {max_sectors: 1024}", "limits: [1024]", []string{`limits: must be a map, not a list`}},
		{"a reference that is no link", "https://example.org/1", "file:///etc/passwd", []string{
			`references[0].url: "file:///etc/passwd" does not fit: Link, http or https.`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := strings.Replace(small, c.old, c.new, 1)
			if text == small {
				t.Fatalf("the case changes nothing: %q is not there", c.old)
			}
			var got []string
			for _, v := range Validate("quirk", decode(t, text)) {
				got = append(got, v.String())
				for _, r := range v.String() {
					if r < ' ' {
						t.Errorf("control character in %q", v)
					}
				}
			}
			if c.want == nil {
				if len(got) != 1 {
					t.Errorf("got %d violations, want 1: %q", len(got), got)
				}
				return
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s\n%s", diff, text)
			}
		})
	}
}

func TestMisreportNeedsNoLimit(t *testing.T) {
	for _, edit := range [][2]string{
		{"effect: io-timeout", "effect: misreport"},
		{"effect: io-timeout\nseverity: high", "effect: capability\nseverity: info"},
		{"schema: 0", "schema: 0\nmitigations: [{type: replace, text: \"take another\"}]"},
	} {
		text := strings.Replace(strings.Replace(small, "limits: {max_sectors: 1024}\n", "", 1), edit[0], edit[1], 1)
		if v := Validate("quirk", decode(t, text)); v != nil {
			t.Errorf("%s: %v", edit[1], v)
		}
	}
}

func TestBadConfig(t *testing.T) {
	got := Validate("config", decode(t, "fail_on: severe\noverlay: /etc\nfailon: x\n"))
	want := []Violation{
		{"fail_on", `"severe" is not one of none, info, low, medium, high, critical`},
		{"failon", `unknown key "failon"; known: fail_on, fail_on_unknown, format, overlay, quiet, show, suppress`},
		{"overlay", `must be a list, not the text "/etc"`},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestReportIsOpenButTyped(t *testing.T) {
	doc := decode(t, string(readTestdata(t, "report.json"))).(map[string]any)
	doc["added"] = "later"
	doc["schema_version"] = "1.7"
	device := doc["devices"].([]any)[0].(map[string]any)
	device["added"] = 1
	if v := Validate("report", doc); v != nil {
		t.Errorf("additions are refused: %v", v)
	}
	doc["schema_version"] = "2.0"
	device["verdict"] = "safe"
	delete(device["limits"].(map[string]any), "mdts_sectors")
	device["limits"].(map[string]any)["max_sectors_kb"] = "4096"
	want := []Violation{
		{"devices[0].limits.max_sectors_kb", `must be a whole number or null, not the text "4096"`},
		{"devices[0].limits.mdts_sectors", "missing"},
		{"devices[0].verdict", `"safe" is not one of affected, unknown, mitigated, suppressed, no-known-quirk`},
		{"schema_version", `"2.0" does not fit: Version of this format, 1.N.`},
	}
	if diff := cmp.Diff(want, Validate("report", doc)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestNoSuchSchema(t *testing.T) {
	for _, name := range []string{"", "knobs", "quirk.v9"} {
		if got := Validate(name, map[string]any{}); len(got) != 1 || !strings.Contains(got[0].Message, "no schema") {
			t.Errorf("Validate(%q) = %v", name, got)
		}
	}
}

// Every form a decoder may give a number in is one number.
func TestNumberForms(t *testing.T) {
	for _, good := range []any{1024, int8(100), int16(1024), int64(1024), uint(1024), uint16(1024), uint64(1024), float32(1024), 1024.0, json.Number("1024"), json.Number("1.024e3")} {
		doc := decode(t, small).(map[string]any)
		doc["limits"] = map[string]any{"max_sectors": good}
		if v := Validate("quirk", doc); v != nil {
			t.Errorf("%T %v: %v", good, good, v)
		}
	}
	for _, bad := range []any{json.Number("1e999999999"), json.Number("x"), math.Inf(1), math.NaN(), uint64(math.MaxUint64), -1, time.Now(), struct{}{}, func() {}, "\xff", nil} {
		doc := decode(t, small).(map[string]any)
		doc["limits"] = map[string]any{"max_sectors": bad}
		if v := Validate("quirk", doc); len(v) != 1 || v[0].Path != "limits.max_sectors" {
			t.Errorf("%T %v: %v", bad, bad, v)
		}
	}
}

func TestValidateLeavesTheDocumentAlone(t *testing.T) {
	doc := decode(t, small)
	before := fmt.Sprint(doc)
	Validate("quirk", doc)
	if after := fmt.Sprint(doc); after != before {
		t.Errorf("before %s\nafter  %s", before, after)
	}
}

func TestHostileDocumentsAreBounded(t *testing.T) {
	var deep any = "x"
	for range 100000 {
		deep = []any{deep}
	}
	got := Validate("quirk", deep)
	if len(got) != 2 || got[1].Message != "nested deeper than 64 levels" {
		t.Errorf("deep: %v", got)
	}
	wide := map[string]any{}
	for i := range 10000 {
		wide[fmt.Sprintf("k%d", i)] = i
	}
	got = Validate("config", wide)
	if len(got) != maxViolations+1 || got[maxViolations].Message != "9800 more faults" {
		t.Errorf("wide: %d violations, last %v", len(got), got[len(got)-1])
	}
}

func TestPathsSortByNumber(t *testing.T) {
	got := tidy([]Violation{{"any[10].x", ""}, {"any[2].x", ""}, {"any", ""}, {"any[2].x", ""}, {"a", ""}})
	want := []Violation{{"a", ""}, {"any", ""}, {"any[2].x", ""}, {"any[10].x", ""}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func FuzzValidate(f *testing.F) {
	f.Add([]byte(small))
	f.Add(readTestdata(f, "maximal.yaml"))
	f.Add(readTestdata(f, "report.json"))
	f.Add([]byte(`{"": {"a/b~c#%": [1]}, "settings": 1e400}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var doc any
		if yaml.Unmarshal(text, &doc) != nil {
			return
		}
		for _, name := range []string{"quirk", "report", "config"} {
			first := Validate(name, doc)
			if diff := cmp.Diff(first, Validate(name, doc)); diff != "" {
				t.Errorf("%s: twice is not the same\n%s", name, diff)
			}
			for _, v := range first {
				if v.Message == "" {
					t.Errorf("%s: no message for %q", name, v.Path)
				}
			}
		}
	})
}

func BenchmarkValidate(b *testing.B) {
	doc := decode(b, string(readTestdata(b, "dellboss.yaml")))
	for b.Loop() {
		Validate("quirk", doc)
	}
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		compile("quirk.v0")
	}
}
