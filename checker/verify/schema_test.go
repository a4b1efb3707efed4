package verify

import (
	"context"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quirkcheck/quirkcheck/internal/vm/faultdisk"
	"github.com/quirkcheck/quirkcheck/schema"
)

// asDocument is a value as a reader of its JSON meets it.
func asDocument(t *testing.T, v any) any {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var doc any
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

// TestReportsFollowTheirSchema: of each kind of fault, and of each way that a
// run can end.
func TestReportsFollowTheirSchema(t *testing.T) {
	follows := func(t *testing.T, r *Report, want Verdict) {
		t.Helper()
		if r.Verdict != want {
			t.Errorf("%s, want %s: %s", r.Verdict, want, r.Sentence)
		}
		for _, v := range schema.Validate("verify.v1.0", asDocument(t, r)) {
			t.Error(v)
		}
		if err := r.Check(); err != nil {
			t.Errorf("Check: %v", err)
		}
	}
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			r, _, _ := k.run(t, 0)
			follows(t, r, VerdictFaulty)
		})
	}
	lost := faultdisk.Fault{Name: "lost", When: faultdisk.Is(wr), Do: faultdisk.Drop()}
	for _, c := range []struct {
		name   string
		o      Options
		faults []faultdisk.Fault
		prep   func(*fakeDevice)
		want   Verdict
	}{
		{"clean", Options{Target: Target{Device: "sda", Identity: map[string]string{"ata_model": "ACME"}}}, nil, nil, VerdictClean},
		{"clean, read only", Options{Mode: ModeReadOnly, Level: Default}, nil, nil, VerdictClean},
		{"clean, a file", Options{Mode: ModeFile}, nil, func(f *fakeDevice) { f.command = 0 }, VerdictClean},
		{"surface", Options{Surface: 1024}, nil, nil, VerdictClean},
		{"broken", Options{}, []faultdisk.Fault{lost}, nil, VerdictBroken},
		{"broken, reads fail", Options{}, []faultdisk.Fault{{Name: "hang", When: faultdisk.All(faultdisk.Is(rd), faultdisk.Every(10)), Do: hang}}, nil, VerdictBroken},
		{"stray", Options{}, []faultdisk.Fault{{Name: "address", When: func(r faultdisk.Request, rng *rand.Rand) bool {
			return longer(wr, 700)(r, rng) && r.Offset >= 4<<20
		}, Do: faultdisk.Misplace(-512)}}, nil, VerdictFaulty},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, f := disk(16<<20, 1, c.faults...)
			f.command, f.block = 1024, 1024
			if c.prep != nil {
				c.prep(f)
			}
			follows(t, verifyFake(t, f, c.o), c.want)
		})
	}
	t.Run("nothing is proved", func(t *testing.T) {
		_, f := disk(16<<20, 1)
		f.command, f.block = 0, 1024
		r, err := Run(context.Background(), &splitting{fakeDevice: f, at: 4}, Options{Mode: ModeDestroy, Level: Quick, Now: f.clock})
		if err != nil {
			t.Fatal(err)
		}
		follows(t, r, VerdictInconclusive)
	})
	t.Run("interrupted", func(t *testing.T) {
		_, f := disk(16<<20, 1)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		f.stop = func(n int) {
			if n == 700 {
				cancel()
			}
		}
		r, err := Run(ctx, f, Options{Mode: ModeDestroy, Level: Quick, Now: f.clock})
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		follows(t, r, VerdictInconclusive)
	})
	t.Run("resumed", func(t *testing.T) {
		_, f := disk(16<<20, 1)
		f.command, f.block = 1024, 1024
		prior := []Record{{Setup: Setup{Path: PathCommand, Shape: Contiguous, Depth: 1}, Sectors: 256, Write: Count{Tried: 8}, Read: Count{Tried: 8}, Proof: ProofCommand}}
		r := verifyFake(t, f, Options{Prior: prior, PlainOnly: true})
		if !slices.ContainsFunc(r.Sizes, func(w *Row) bool { return w.Earlier }) {
			t.Error("nothing was taken from the earlier run")
		}
		follows(t, r, VerdictClean)
	})
}

// TestSchemaCatches: a report that is none does not pass.
func TestSchemaCatches(t *testing.T) {
	r, _, _ := kinds[0].run(t, 0)
	for _, spoil := range []func(doc map[string]any){
		func(doc map[string]any) { doc["verdict"] = "pass" },
		func(doc map[string]any) { doc["schema_version"] = "2.0" },
		func(doc map[string]any) { doc["findings"] = nil },
		func(doc map[string]any) { delete(doc, "not_tested") },
		func(doc map[string]any) { doc["findings"].([]any)[0].(map[string]any)["class"] = "strange" },
		func(doc map[string]any) { doc["sizes"].([]any)[0].(map[string]any)["sectors"] = 0.5 },
		func(doc map[string]any) { doc["target"].(map[string]any)["identity"] = nil },
	} {
		doc := asDocument(t, r).(map[string]any)
		if v := schema.Validate("verify.v1.0", doc); v != nil {
			t.Fatal(v)
		}
		spoil(doc)
		if len(schema.Validate("verify.v1.0", doc)) == 0 {
			t.Errorf("%v passes", doc["verdict"])
		}
	}
}

// TestPlansFollowTheirSchema: the plan that MakePlan gives, inside what verify
// --dry-run puts around it.
func TestPlansFollowTheirSchema(t *testing.T) {
	for _, o := range []Options{
		{Mode: ModeDestroy, Level: Default}, {Mode: ModeReadOnly, Level: Quick}, {Mode: ModeFile, Level: Thorough, PlainOnly: true},
		{Mode: ModeDestroy, Level: Default, Surface: 2048}, {Mode: ModeDestroy, Level: Default, Sizes: []int{8, 1024}},
	} {
		_, f := disk(48<<20, 1)
		target := Target{Identity: map[string]string{}, Extents: []Extent{}}
		doc := asDocument(t, map[string]any{"schema_version": "1.0", "tool": "quirkcheck", "target": target, "plan": MakePlan(f, o), "refused": []any{}, "notes": []any{}, "estimate_s": 1.5, "assumed_mb_s": 150})
		for _, v := range schema.Validate("verify-plan.v1.0", doc) {
			t.Errorf("%s, %s: %s", o.Mode, o.Level, v)
		}
	}
}

// TestSchemaEnums: the schemas list the constants of this package, all of them
// and no others.
func TestSchemaEnums(t *testing.T) {
	constants := constantsOf(t)
	for _, c := range []struct {
		kind, schema, place string
		also                []string
	}{
		{"Class", "verify", "$defs/class", nil},
		{"Verdict", "verify", "properties/verdict", nil},
		{"Mode", "verify", "$defs/mode", nil},
		{"Level", "verify", "$defs/level", nil},
		{"Path", "verify", "$defs/path", []string{""}},
		{"Shape", "verify", "$defs/shape", []string{""}},
		{"Proof", "verify", "$defs/row/properties/proof", []string{""}},
		{"Mode", "verify-plan", "$defs/mode", nil},
		{"Level", "verify-plan", "$defs/level", nil},
		{"Path", "verify-plan", "$defs/path", []string{""}},
		{"Shape", "verify-plan", "$defs/shape", []string{""}},
	} {
		text, err := schema.Text(c.schema)
		if err != nil {
			t.Fatal(err)
		}
		var node any
		if err := json.Unmarshal(text, &node); err != nil {
			t.Fatal(err)
		}
		for step := range strings.SplitSeq(c.place+"/enum", "/") {
			node = node.(map[string]any)[step]
		}
		var got []string
		for _, v := range node.([]any) {
			got = append(got, v.(string))
		}
		want := append(slices.Clone(constants[c.kind]), c.also...)
		if len(want) < 3 {
			t.Fatalf("found the constants %v of %s", want, c.kind)
		}
		slices.Sort(got)
		slices.Sort(want)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s in %s (-constants +schema)\n%s", c.kind, c.schema, diff)
		}
	}
}

// constantsOf reads the typed string constants that this package exports.
func constantsOf(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		p, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(p, func(n ast.Node) bool {
			v, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			kind, ok := v.Type.(*ast.Ident)
			if !ok {
				return true
			}
			for i, x := range v.Values {
				if lit, ok := x.(*ast.BasicLit); ok && lit.Kind == token.STRING && v.Names[i].IsExported() {
					s, err := strconv.Unquote(lit.Value)
					if err != nil {
						t.Fatal(err)
					}
					out[kind.Name] = append(out[kind.Name], s)
				}
			}
			return true
		})
	}
	return out
}
