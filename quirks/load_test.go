package quirks

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

func builtin(t testing.TB) *Set {
	t.Helper()
	s, faults := Builtin()
	if len(faults) > 0 {
		t.Fatalf("the embedded database has faults: %v", faults)
	}
	if s.Len() == 0 {
		t.Fatal("the embedded database is empty")
	}
	return s
}

func TestEmbeddedDatabaseLoads(t *testing.T) {
	s := builtin(t)
	entries := s.Entries()
	if faults := s.Faults(); len(faults) > 0 || len(entries) != s.Len() {
		t.Fatalf("%d of %d entries parse: %v", len(entries), s.Len(), faults)
	}
	if ids := s.IDs(); !slices.IsSorted(ids) {
		t.Errorf("ids are not sorted: %q", ids)
	}
	for _, e := range entries {
		got, ok := s.Entry(e.ID)
		text, err := s.Text(e.ID)
		if !ok || got != e || err != nil || !strings.Contains(string(text), "\nid: "+e.ID+"\n") {
			t.Errorf("entry %s: found %t, text %q, %v", e.ID, ok, text, err)
		}
		if e.File() != e.Folder()+"/"+e.ID+".yaml" {
			t.Errorf("entry %s lies in %s", e.ID, e.File())
		}
	}
	if e, ok := s.Entry("ata-nothing"); ok {
		t.Errorf("entry ata-nothing: %v, want none", e)
	}
	if text, err := s.Text("ata-nothing"); err == nil {
		t.Errorf("text of ata-nothing: %q, want an error", text)
	}
}

// TestEveryEntryIsEmbedded: a new folder needs a line in doc.go.
func TestEveryEntryIsEmbedded(t *testing.T) {
	onDisk, faults := entryFiles(os.DirFS("."))
	built, more := entryFiles(Embedded())
	if len(onDisk) == 0 || len(faults)+len(more) > 0 {
		t.Fatalf("%d entry files, faults %v %v", len(onDisk), faults, more)
	}
	if !slices.Equal(onDisk, built) {
		t.Errorf("files of the tree are not those embedded by doc.go:\n%q\n%q", onDisk, built)
	}
}

func TestIndexIsFresh(t *testing.T) {
	var b bytes.Buffer
	if err := WriteIndex(&b, Embedded()); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("index.tsv")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, b.Bytes()) {
		t.Error("index.tsv is stale; run: go generate ./quirks")
	}
	// With a fresh index nothing is parsed before it is asked for.
	s, _ := load(embedded, readIndex(embedded))
	for _, sl := range s.slots {
		if sl.entry != nil {
			t.Errorf("%s was parsed at load", sl.file)
		}
	}
}

func TestBuiltinVersion(t *testing.T) {
	v := BuiltinVersion()
	if !regexp.MustCompile(`^20\d\d\.(0[1-9]|1[0-2])\.(0[1-9]|[12]\d|3[01])\.[1-9]\d*$`).MatchString(v.Version) || v.Serial < 1 {
		t.Errorf("version %q, serial %d; want YYYY.MM.DD.N and a serial that grows", v.Version, v.Serial)
	}
	if got := builtin(t).Version; got != v {
		t.Errorf("the set's version is %v, want %v", got, v)
	}
	for _, text := range []string{"", "2026.01.01.1", "a b c"} {
		if v := readVersion(fstest.MapFS{"VERSION": {Data: []byte(text)}}); v != (Version{}) {
			t.Errorf("VERSION %q: got %v, want none", text, v)
		}
	}
}

// file makes an entry file with that model.
func file(id, model string) *fstest.MapFile {
	return &fstest.MapFile{Data: fmt.Appendf(nil, `schema: 0
id: %s
title: A test entry for %s
effect: hang
severity: high
confidence: confirmed
match:
  any:
    - device: {space: ata, model: %q, firmware: {any: "test"}}
limits: {max_sectors: 1024}
references: [{type: report, url: "https://example.org/%s"}]
examples:
  match:
    - {subject: {device: {space: ata, model: %q, firmware: "1"}}, source: "test"}
  no_match:
    - {subject: {device: {space: ata, model: "NONE"}}, fails: device.model, why: "test"}
`, id, id, model, id, model)}
}

// model is a disk on a kernel of which no fault is known that concerns every
// disk.
func model(s string) *Subject {
	release, _ := kernel.Parse("5.10.223")
	return &Subject{Device: Identity{Space: "ata", Model: KnownText(s), Firmware: KnownText("1")}, Path: "libata", Kernel: release}
}

func idsOf(matches []Match) string {
	var ids []string
	for _, m := range matches {
		ids = append(ids, m.Entry.ID)
	}
	return strings.Join(ids, " ")
}

func TestStaleIndexIsNeverAMiss(t *testing.T) {
	tree := fstest.MapFS{"ata/ata-a.yaml": file("ata-a", "A"), "ata/ata-b.yaml": file("ata-b", "B")}
	var b bytes.Buffer
	if err := WriteIndex(&b, tree); err != nil {
		t.Fatal(err)
	}
	index := b.String()
	tree["ata/ata-a.yaml"] = file("ata-a", "CHANGED")
	tree["ata/ata-new.yaml"] = file("ata-new", "NEW")
	for name, text := range map[string]string{
		"changed and new file":     index,
		"no index":                 "",
		"a line cut short":         index[:len(index)-4],
		"not a table":              "what is this\n",
		"a line longer than 64 KB": index + strings.Repeat("x", 70_000) + "\n",
		"binary":                   "\x00\xff\t\t\t\n",
	} {
		tree["index.tsv"] = &fstest.MapFile{Data: []byte(text)}
		s, faults := load(tree, readIndex(tree))
		if len(faults) > 0 {
			t.Errorf("%s: faults %v, want none", name, faults)
		}
		for m, want := range map[string]string{"CHANGED": "ata-a", "NEW": "ata-new", "B": "ata-b", "A": ""} {
			if got := idsOf(s.Match(model(m))); got != want {
				t.Errorf("%s: model %s matches %q, want %q", name, m, got, want)
			}
		}
	}
	// What is read of a broken index may be half of an entry's rows.
	two := fstest.MapFS{"ata/ata-two.yaml": file("ata-two", "B")}
	two["ata/ata-two.yaml"].Data = bytes.Replace(two["ata/ata-two.yaml"].Data, []byte(`model: "B", firmware: {`), []byte(`model: ["B", "B2"], firmware: {`), 1)
	b.Reset()
	if err := WriteIndex(&b, two); err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(b.String(), "\n")
	two["index.tsv"] = &fstest.MapFile{Data: []byte(lines[0] + lines[1] + "#" + strings.Repeat("x", 70_000) + "\n" + lines[2])}
	if s, _ := load(two, readIndex(two)); idsOf(s.Match(model("B2"))) != "ata-two" {
		t.Error("a long line between the rows of an entry hides the second")
	}
	// A row that does not compile costs the index, not the entries.
	bad := index + strings.Replace(strings.Split(index, "\n")[2], "\tB", "\t"+strings.Repeat("?", 100), 1) + "\n"
	tree["index.tsv"] = &fstest.MapFile{Data: []byte(bad)}
	s, faults := load(tree, readIndex(tree))
	if len(faults) != 1 || faults[0].Code != "index" || s.Len() != 3 || idsOf(s.Match(model("B"))) != "ata-b" {
		t.Errorf("row that does not compile: %d entries, faults %v; want 3 and one of code index", s.Len(), faults)
	}
}

func TestIndexedFileThatBreaksLater(t *testing.T) {
	tree := fstest.MapFS{"ata/ata-a.yaml": file("ata-a", "A"), "ata/ata-b.yaml": file("ata-b", "A")}
	var b bytes.Buffer
	if err := WriteIndex(&b, tree); err != nil {
		t.Fatal(err)
	}
	tree["index.tsv"] = &fstest.MapFile{Data: b.Bytes()}
	s, faults := load(tree, readIndex(tree))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	tree["ata/ata-a.yaml"] = &fstest.MapFile{Data: []byte("{")}
	if got := idsOf(s.Match(model("A"))); got != "ata-b" {
		t.Errorf("matches %q, want ata-b", got)
	}
	if f := s.Faults(); len(f) != 1 || f[0].File != "ata/ata-a.yaml" {
		t.Errorf("faults %v, want one of ata-a.yaml", f)
	}
	if _, ok := s.Entry("ata-a"); ok {
		t.Error("ata-a is there, want none")
	}
	s.Match(model("A"))
	if f := s.Faults(); len(f) != 1 {
		t.Errorf("asked again: faults %v, want the same one", f)
	}
}

func TestSetIsSafeForConcurrentUse(t *testing.T) {
	s, _ := load(embedded, readIndex(embedded))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for _, r := range []string{"ST380013AS", "DELLBOSS VD", "QEMU HARDDISK"} {
				s.Match(model(r))
			}
			s.Entries()
			s.Faults()
		})
	}
	wg.Wait()
}

func TestBrokenFileDisablesItselfAlone(t *testing.T) {
	good := func(id string) string { return string(file(id, "BAD").Data) }
	replace := func(old, new string) string {
		text := good("ata-bad")
		if strings.Count(text, old) != 1 {
			t.Fatalf("%q is not once in the entry", old)
		}
		return strings.Replace(text, old, new, 1)
	}
	deep := strings.Repeat("[", 5000) + strings.Repeat("]", 5000)
	for _, tt := range []struct{ name, text, want string }{
		{"no YAML", "{", `ata/ata-bad.yaml:1: did not find expected node content [yaml]`},
		{"empty", "", `ata/ata-bad.yaml: no YAML document [yaml]`},
		{"only a comment", "# nothing\n", `ata/ata-bad.yaml: no YAML document [yaml]`},
		{"null", "~\n", `ata/ata-bad.yaml: no YAML document [yaml]`},
		{"a list", "[1]\n", `ata/ata-bad.yaml:1: cannot unmarshal !!seq into quirks.Entry [yaml]`},
		{"two documents", good("ata-bad") + "---\n" + good("ata-bad"), `ata/ata-bad.yaml: more than one YAML document [yaml]`},
		{"a second document that is broken", good("ata-bad") + "---\n{\n", `ata/ata-bad.yaml: more than one YAML document [yaml]`},
		{"not UTF-8", replace(`model: "BAD", firmware: {`, "model: \"B\xff\", firmware: {"), `ata/ata-bad.yaml: invalid leading UTF-8 octet [yaml]`},
		{"control character", replace(`model: "BAD", firmware: {`, "model: \"B\x01\", firmware: {"), `ata/ata-bad.yaml: control characters are not allowed [yaml]`},
		{"unknown key", replace("title:", "titel:"), `ata/ata-bad.yaml:3: unknown key "titel" [unknown-key]`},
		{"unknown key in a match is never a wider match", replace("firmware: {any", "firmwear: {any"), `ata/ata-bad.yaml:9: unknown key "firmwear" [unknown-key]`},
		{"unknown key in a firmware", replace(`{any: "test"}`, `{bat: ["1"]}`), `ata/ata-bad.yaml:9: unknown key "bat" [unknown-key]`},
		{"unknown key in a subject", replace(`model: "NONE"`, `modell: "NONE"`), `ata/ata-bad.yaml:16: unknown key "device.modell" [unknown-key]`},
		{"unquoted 0104", replace(`{any: "test"}`, `0104`), `ata/ata-bad.yaml:9: want a quoted string, got int "0104" [yaml]`},
		{"unquoted 1E10", replace(`{any: "test"}`, `1E10`), `ata/ata-bad.yaml:9: want a quoted string, got float "1E10" [yaml]`},
		{"unquoted in a list", replace(`{any: "test"}`, `["1", 0104]`), `ata/ata-bad.yaml:9: want a quoted string, got "0104" [yaml]`},
		{"unquoted in a subject", replace(`firmware: "1"}`, `firmware: 0104}`), `ata/ata-bad.yaml:14: subject: device.firmware: want a quoted string, got 68 [yaml]`},
		{"firmware left empty", replace(`firmware: {any: "test"}`, `firmware: `), `ata/ata-bad.yaml:9: key "firmware" has no value [yaml]`},
		{"firmware that says nothing", replace(`{any: "test"}`, `{}`), `ata/ata-bad.yaml:9: firmware: want any, bad, fixed or below [yaml]`},
		{"firmware of an empty list", replace(`{any: "test"}`, `[]`), `ata/ata-bad.yaml:9: the list is empty [yaml]`},
		{"below that has no order", replace(`{any: "test"}`, `{below: "2"}`), `ata/ata-bad.yaml:9: below "2" does not parse under its order [yaml]`},
		{"below that its order cannot read", replace(`{any: "test"}`, `{below: "B", order: numeric}`), `ata/ata-bad.yaml:9: below "B" does not parse under its order [yaml]`},
		{"order nobody knows", replace(`{any: "test"}`, `{below: "2", order: natural}`), `ata/ata-bad.yaml:9: order "natural": want listed, lexical, numeric or {suffix_after: ..} [yaml]`},
		{"pattern too long", replace(`model: "BAD", firmware: {`, `model: "`+strings.Repeat("?", 64)+`", firmware: {`), `ata/ata-bad.yaml:9: pattern "` + strings.Repeat("?", 64) + `": more than 63 elements [yaml]`},
		{"no arm", replace("    - device: {space: ata, model: \"BAD\", firmware: {any: \"test\"}}\n", "    []\n"), `ata/ata-bad.yaml: match.any: no arm: the entry would match nothing [match-empty]`},
		{"empty arm", replace(`{space: ata, model: "BAD", firmware: {any: "test"}}`, `{space: ata, model: "BAD"}`+"\n    - {}"), `ata/ata-bad.yaml: match.any[1]: empty arm would match every device [match-too-wide]`},
		{"an arm that is null", replace(`{space: ata, model: "BAD", firmware: {any: "test"}}`, `{space: ata, model: "BAD"}`+"\n    - ~"), `ata/ata-bad.yaml:10: list item has no value [yaml]`},
		{"key twice", replace("effect: hang", "effect: hang\neffect: hang"), `ata/ata-bad.yaml:5: key "effect" is there already on line 4 [yaml]`},
		{"id of another file", good("ata-other"), `ata/ata-bad.yaml: id: "ata-other" is not the file name "ata-bad" [id-file]`},
		{"another version of the schema", replace("schema: 0", "schema: 1"), `ata/ata-bad.yaml: schema: version 1: this tool reads 0 [schema-version]`},
		{"no severity", replace("severity: high", "severity: awful"), `ata/ata-bad.yaml: severity: "awful": want critical, high, medium, low or info [schema]`},
		{"alias", replace("effect: hang", "effect: &a hang\ndetails: *a"), `ata/ata-bad.yaml:5: aliases (*a) are not read [yaml]`},
		{"merge key", replace("match:\n  any", "trigger: &a {rate: always}\nmatch:\n  <<: *a\n  any"), `ata/ata-bad.yaml:9: aliases (*a) are not read [yaml]`},
		{"deep nesting", replace("effect: hang", "effect: "+deep), `ata/ata-bad.yaml:4: cannot unmarshal !!seq into quirks.Effect [yaml]`},
		{"deeper nesting", replace("effect: hang", "effect: "+deep+deep+strings.Repeat("[", 50_000)), `ata/ata-bad.yaml`},
		{"too large", good("ata-bad") + "#" + strings.Repeat("x", maxFileBytes), `ata/ata-bad.yaml: longer than 262144 bytes [read]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tree := fstest.MapFS{"ata/ata-a.yaml": file("ata-a", "BAD"), "ata/ata-bad.yaml": {Data: []byte(tt.text)}, "ata/ata-c.yaml": file("ata-c", "BAD")}
			s, faults := Load(tree)
			if len(faults) != 1 || !strings.HasPrefix(faults[0].String(), tt.want) {
				t.Errorf("faults:\n%v\nwant\n%s", faults, tt.want)
			}
			if got := idsOf(s.Match(model("BAD"))); got != "ata-a ata-c" {
				t.Errorf("matches %q, want the two other entries", got)
			}
		})
	}
}

// bombs are documents whose naive reading takes very long or much memory.
func bombs() map[string]string {
	head := string(file("ata-bad", "BAD").Data)
	var laugh strings.Builder
	laugh.WriteString("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n")
	for i := 1; i < 30; i++ {
		fmt.Fprintf(&laugh, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	// Enough plain nodes to pass the library's own bound, and the expansion
	// once for each of many subjects.
	var subjects strings.Builder
	subjects.WriteString("x: &x {a: [" + strings.Repeat("1,", 30_000) + "]}\ny: &y [*x, *x, *x, *x, *x, *x, *x, *x]\nexamples:\n  match:\n")
	subjects.WriteString(strings.Repeat("    - subject: {settings: {a: *y}}\n", 5000))
	return map[string]string{
		"billion laughs":              laugh.String(),
		"billion laughs in an entry":  head + laugh.String(),
		"one for each subject":        subjects.String(),
		"an alias of what it is in":   "a: &a [*a]\n",
		"one key 80,000 times":        "{" + strings.Repeat("a,", 80_000) + "}",
		"80,000 keys without a value": "x: {" + keys(30_000) + "}",
		"a long key with many below":  "? " + strings.Repeat("k", 100_000) + "\n: {" + keys(10_000) + "}\n",
		"nested maps":                 strings.Repeat("{a: ", 9000) + "1" + strings.Repeat("}", 9000),
		"20,000 faults":               "match: {any: [" + strings.Repeat("1,", 20_000) + "]}",
		"a second document":           head + "---\n{" + strings.Repeat("a,", 80_000) + "}\n",
		"stars":                       strings.Replace(head, `"BAD"`, `"`+strings.Repeat("*?", 31)+`"`, 1),
	}
}

func keys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "k%d,", i)
	}
	return b.String()
}

func TestBombsAreReadInBoundedTime(t *testing.T) {
	for name, text := range bombs() {
		t.Run(name, func(t *testing.T) {
			if len(text) > maxFileBytes {
				t.Fatalf("%d bytes: refused for its size alone", len(text))
			}
			tree := fstest.MapFS{"ata/ata-bad.yaml": {Data: []byte(text)}}
			var n yaml.Node
			if yaml.Unmarshal([]byte(text), &n) == nil {
				lines, size := map[string]int{}, 0
				nodeLines(&n, "", lines, 0)
				for path := range lines {
					size += len(path)
				}
				if size > 10<<20 {
					t.Errorf("the paths of %d fields take %d bytes", len(lines), size)
				}
			}
			start := time.Now()
			s, faults := Load(tree)
			if name != "stars" && (len(faults) == 0 || s.Len() > 0) {
				t.Errorf("loads %d entries, faults %v", s.Len(), faults)
			}
			if found := Lint(tree, nil); len(found) == 0 {
				t.Error("Lint finds nothing")
			}
			if d := time.Since(start); d > 10*time.Second { // a second or less, on a quiet machine
				t.Errorf("took %v", d)
			}
		})
	}
}

func TestLoadFromDisk(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text := func(id string) string { return string(file(id, "M").Data) }
	put("ata-top.yaml", text("ata-top"))
	put("ata/ata-a.yaml", text("ata-a"))
	put("folder.yaml/ata-b.yaml", text("ata-b"))
	put("ata/deep/ata-c.yaml", text("ata-c"))      // two folders down: not read
	put(".git/ata-d.yaml", text("ata-d"))          // hidden
	put("testdata/ata-e.yaml", text("ata-e"))      // not entries
	put("ata/ata-f.yml", text("ata-f"))            // another ending
	put("scsi/ata-a.yaml", text("ata-a"))          // the same id again
	put("scsi/ata-g.yaml.bak", text("ata-g"))      // no entry
	put("scsi/README.md", "no entry")              // no entry
	put("elsewhere/here/ata-l.txt", text("ata-l")) // reached by a link
	for _, err := range []error{
		syscall.Mkfifo(filepath.Join(dir, "ata/ata-fifo.yaml"), 0o644),
		os.Symlink("../elsewhere/here/ata-l.txt", filepath.Join(dir, "ata/ata-l.yaml")),
		os.Symlink("nowhere", filepath.Join(dir, "ata/ata-lost.yaml")),
		os.Symlink("/dev/zero", filepath.Join(dir, "ata/ata-zero.yaml")),
		os.Symlink(".", filepath.Join(dir, "ata/ata-loop.yaml")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	type answer struct {
		set    *Set
		faults []Fault
	}
	done := make(chan answer, 1)
	go func() {
		s, faults := Load(os.DirFS(dir))
		done <- answer{s, faults}
	}()
	var a answer
	select {
	case a = <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("Load waits for a FIFO's writer or reads without end")
	}
	if got := strings.Join(a.set.IDs(), " "); got != "ata-a ata-b ata-l ata-top" {
		t.Errorf("entries %q, want ata-a ata-b ata-l ata-top", got)
	}
	var got []string
	for _, f := range a.faults {
		got = append(got, f.String())
	}
	slices.Sort(got)
	want := []string{
		"ata/ata-fifo.yaml: not a regular file [read]",
		"ata/ata-loop.yaml: not a regular file [read]",
		"ata/ata-lost.yaml: ",
		"ata/ata-zero.yaml: not a regular file [read]",
		"scsi/ata-a.yaml: id: same id as ata/ata-a.yaml [duplicate-id]",
	}
	if len(got) != len(want) {
		t.Fatalf("faults:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("fault %q, want %q", got[i], want[i])
		}
	}
}

func TestLoadOfNothing(t *testing.T) {
	if s, faults := Load(os.DirFS(filepath.Join(t.TempDir(), "absent"))); s.Len() != 0 || len(faults) != 1 || faults[0].Code != "read" {
		t.Errorf("absent folder: %d entries, faults %v; want one of code read", s.Len(), faults)
	}
	if s, faults := Load(fstest.MapFS{}); s.Len() != 0 || len(faults) != 0 {
		t.Errorf("empty folder: %d entries, faults %v", s.Len(), faults)
	}
	if s, faults := Load(unreadable{fstest.MapFS{"ata/ata-a.yaml": file("ata-a", "A"), "scsi/ata-b.yaml": file("ata-b", "A")}}); s.Len() != 1 || len(faults) != 1 || faults[0].File != "scsi" {
		t.Errorf("unreadable folder: entries %v, faults %v; want ata-a and a fault of scsi", s.IDs(), faults)
	}
}

// unreadable cannot list its folder scsi.
type unreadable struct{ fstest.MapFS }

func (u unreadable) ReadDir(name string) ([]fs.DirEntry, error) {
	if name == "scsi" {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrPermission}
	}
	return u.MapFS.ReadDir(name)
}

func TestMergeReplacesByID(t *testing.T) {
	base, faults := Load(fstest.MapFS{"ata/ata-a.yaml": file("ata-a", "A"), "ata/ata-b.yaml": file("ata-b", "B"), "ata/ata-bad.yaml": {Data: []byte("{")}})
	over, more := Load(fstest.MapFS{"ata-a.yaml": file("ata-a", "A2"), "ata/ata-c.yaml": file("ata-c", "C")})
	if len(faults) != 1 || len(more) != 0 {
		t.Fatal(faults, more)
	}
	base.Version = Version{"2026.01.01.1", 1}
	both, err := base.Merge(over)
	if err != nil {
		t.Fatal(err)
	}
	for m, want := range map[string]string{"A": "", "A2": "ata-a", "B": "ata-b", "C": "ata-c"} {
		if got := idsOf(both.Match(model(m))); got != want {
			t.Errorf("merged: model %s matches %q, want %q", m, got, want)
		}
	}
	if got := strings.Join(both.IDs(), " "); got != "ata-a ata-b ata-c" {
		t.Errorf("merged ids: %q", got)
	}
	if both.Version != base.Version || len(both.Faults()) != 1 {
		t.Errorf("merged: version %v and faults %v, want those of both", both.Version, both.Faults())
	}
	if got := idsOf(base.Match(model("A"))); got != "ata-a" || base.Len() != 2 || over.Len() != 2 {
		t.Errorf("merging changed the set below: %q, %d and %d entries", got, base.Len(), over.Len())
	}
	// Over the embedded database, of which nothing is parsed yet.
	fresh, _ := load(embedded, readIndex(embedded))
	over, _ = Load(fstest.MapFS{"ata-seagate-st380013as-silent-corruption.yaml": file("ata-seagate-st380013as-silent-corruption", "OTHER")})
	if both, err = fresh.Merge(over); err != nil {
		t.Fatal(err)
	}
	// Entries about kernels stay open for a subject without one.
	named := func(ms []Match) []Match {
		return slices.DeleteFunc(ms, func(m Match) bool { return m.Entry.Folder() == "kernel" })
	}
	if got := idsOf(named(both.Match(model("ST380013AS")))); got != "" {
		t.Errorf("replaced entry still matches: %q", got)
	}
	if got := idsOf(named(both.Match(model("OTHER")))); got != "ata-seagate-st380013as-silent-corruption" {
		t.Errorf("entry of the overlay: %q", got)
	}
	if both.Len() != fresh.Len() {
		t.Errorf("%d entries, want %d", both.Len(), fresh.Len())
	}
	text, err := both.Text("ata-seagate-st380013as-silent-corruption")
	if err != nil || !strings.Contains(string(text), "OTHER") {
		t.Errorf("text of the replaced entry: %q, %v", text, err)
	}
}

func TestEntryByAlias(t *testing.T) {
	f := file("ata-a", "A")
	f.Data = append(f.Data, "aliases: [\"bug 1\"]\n"...)
	s, faults := Load(fstest.MapFS{"ata/ata-a.yaml": f})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	e, ok := s.Entry("bug 1")
	text, err := s.Text("bug 1")
	if !ok || e.ID != "ata-a" || err != nil || !bytes.Equal(text, f.Data) {
		t.Errorf("by alias: %v, %t, %v", e, ok, err)
	}
}

// TestDecoderReadsWhatTheSchemaAllows: maximal.yaml uses every key and form of
// the schema, which a test of package schema holds.
func TestDecoderReadsWhatTheSchemaAllows(t *testing.T) {
	text, err := os.ReadFile("../schema/testdata/maximal.yaml")
	if err != nil {
		t.Fatal(err)
	}
	e, faults := parse("scsi/scsi-acme-raid8-io-timeout.yaml", text)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	var b strings.Builder
	for _, arm := range e.Where.Any {
		for _, p := range arm.predicates(&e.Examples.Match[1].Subject) {
			fmt.Fprintf(&b, "%s ", p.Key)
		}
	}
	for _, key := range []string{"device.space", "device.vendor", "device.product", "device.revision", "adapter.pci", "adapter.class", "adapter.driver", "adapter.firmware",
		"usb.id", "usb.bcd", "usb.manufacturer", "usb.product", "usb.speed", "machine.vendor", "machine.product", "machine.board", "machine.bios",
		"stack.over", "stack.md_level", "path", "kernel"} {
		if !strings.Contains(b.String(), key+" ") {
			t.Errorf("no predicate %s: %s", key, &b)
		}
	}
	if n, ok := e.MaxSectors(); !ok || n != 8191 {
		t.Errorf("MaxSectors() = %d, %t; want 8191, true", n, ok)
	}
	for _, m := range e.Mitigations {
		if m.Type == "param" && m.Until != "9.0" {
			t.Errorf("until of a mitigation: %q, want 9.0", m.Until)
		}
	}
}

func TestWriteIndexRefusesFaults(t *testing.T) {
	for name, f := range map[string]*fstest.MapFile{
		"broken file":          {Data: []byte("{")},
		"tab in a pattern":     file("ata-a", "A\tB"),
		"file that is no file": {Mode: fs.ModeNamedPipe},
	} {
		if err := WriteIndex(&bytes.Buffer{}, fstest.MapFS{"ata/ata-a.yaml": f}); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	slash := fstest.MapFS{"ata/ata-a.yaml": file("ata-a", `A\B`)}
	if err := WriteIndex(&bytes.Buffer{}, slash); err != nil {
		t.Errorf("backslash in a pattern: %v", err)
	}
}

func FuzzLoad(f *testing.F) {
	for _, text := range bombs() {
		if len(text) < 4096 {
			f.Add([]byte(text))
		}
	}
	f.Add(file("ata-bad", "BAD").Data)
	text, err := os.ReadFile("../schema/testdata/maximal.yaml")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(bytes.Replace(text, []byte("scsi-acme-raid8-io-timeout"), []byte("ata-bad"), 1))
	for _, e := range builtin(f).Entries()[:8] {
		text, err := builtin(f).Text(e.ID)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(bytes.ReplaceAll(text, []byte("id: "+e.ID), []byte("id: ata-bad")))
	}
	subjects := identities(f)[:20]
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 16<<10 {
			return
		}
		start := time.Now()
		tree := fstest.MapFS{"ata/ata-bad.yaml": {Data: text}}
		s, faults := Load(tree)
		if (s.Len() == 0) == (len(faults) == 0) {
			t.Errorf("%d entries and faults %v: a file loads or is at fault", s.Len(), faults)
		}
		found := Lint(tree, nil)
		if len(faults) > 0 && len(found) == 0 {
			t.Errorf("loading finds %v, Lint nothing", faults)
		}
		for _, f := range append(found, faults...) {
			if f.File != "ata/ata-bad.yaml" || f.Message == "" || lintRules[f.Code] == "" {
				t.Errorf("fault without file, message or known code: %+v", f)
			}
		}
		entries := s.Entries()
		for i := range subjects {
			checkIndex(t, s, entries, &subjects[i])
		}
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("%d bytes took %v", len(text), d)
		}
	})
}
