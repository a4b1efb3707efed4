package kernelsource

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/quirkcheck/quirkcheck/quirks"
)

// entry is a made-up entry with the given match and kernel blocks.
func entry(id, match, kernel string) string {
	return fmt.Sprintf("schema: 0\nid: %s\ntitle: entry %s\neffect: misreport\nseverity: low\nconfidence: confirmed\nmatch: %s\nkernel: %s\nreferences: [{type: report, url: \"https://example.org/1\"}]\nexamples: {match: [], no_match: []}\n", id, id, match, kernel)
}

func database(t *testing.T, entries map[string][2]string) *quirks.Set {
	t.Helper()
	fsys := fstest.MapFS{}
	for id, e := range entries {
		fsys[id+".yaml"] = &fstest.MapFile{Data: []byte(entry(id, e[0], e[1]))}
	}
	db, faults := quirks.Load(fsys)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	return db
}

func ataTable(rows string) fstest.MapFS {
	return fstest.MapFS{
		"Makefile":                  {Data: []byte(makefile)},
		"drivers/ata/libata-core.c": {Data: []byte("x __ata_dev_quirks[] = {\n" + rows + "\n{ } };")},
	}
}

// since is the kernel block of an entry with one flag.
func since(flag, trees string) string {
	return fmt.Sprintf(`{mitigated: [{path: [libata], flag: [{name: %s}], trees: [%s]}]}`, flag, trees)
}

const always = `{tree: mainline, since: "3.0"}`

func TestCompare(t *testing.T) {
	nodma := since("ATA_QUIRK_NODMA", always)
	for _, c := range []struct {
		name    string
		rows    string
		entries map[string][2]string
		want    []string
	}{
		{"the same", `{ "A", NULL, ATA_QUIRK_NODMA },`, map[string][2]string{"ata-a": {`{any: [{device: {space: ata, model: "A"}}]}`, nodma}}, nil},
		{"a new row", `{ "A", "1", ATA_QUIRK_NODMA },`, map[string][2]string{"ata-a": {`{any: [{device: {space: ata, model: "A"}}]}`, nodma}},
			[]string{`new "A" firmware "1"`, `vanished "A"`}},
		{"other flags", `{ "A", NULL, ATA_QUIRK_NODMA | ATA_QUIRK_NONCQ },`, map[string][2]string{"ata-a": {`{any: [{device: {space: ata, model: "A"}}]}`, nodma}},
			[]string{`changed "A": flags differ`}},
		{"one flag each in two entries", `{ "A", NULL, ATA_QUIRK_NODMA | ATA_QUIRK_NONCQ },`, map[string][2]string{"ata-a": {`{any: [{device: {space: ata, model: "A"}}]}`, nodma}, "ata-b": {`{any: [{device: {space: ata, model: "A"}, adapter: {pci: "1002:*:*:*"}}]}`, since("ATA_QUIRK_NONCQ", always)}}, nil},
		{"a release nobody looked at", `{ "A", NULL, ATA_QUIRK_NODMA },`, map[string][2]string{"ata-a": {`{any: [{device: {space: ata, model: "A"}}]}`, since("ATA_QUIRK_NODMA", `{tree: stable-7.3, absent_through: "7.3.2"}`)}},
			[]string{`changed "A": flags differ, and an entry does not know this release`}},
		{"gone", `{ "B", NULL, ATA_QUIRK_NODMA },`, map[string][2]string{"ata-a": {`{any: [{device: {space: ata, model: ["A", "B"]}}]}`, nodma}}, []string{`vanished "A"`}},
		{"not gone where a wider row took over", `{ "A*", NULL, ATA_QUIRK_NODMA },`, map[string][2]string{"ata-a": {`{any: [{device: {space: ata, model: "A1"}}]}`, nodma}, "ata-b": {`{any: [{device: {space: ata, model: "A*"}}], none: [{device: {space: ata, model: "A1"}}]}`, nodma}}, nil},
		{"an earlier row that overlaps", `{ "A1*", NULL, ATA_QUIRK_NODMA }, { "A*", NULL, ATA_QUIRK_NONCQ },`,
			map[string][2]string{"ata-a": {`{any: [{device: {space: ata, model: "A1*"}}]}`, nodma}, "ata-b": {`{any: [{device: {space: ata, model: "A*"}}]}`, since("ATA_QUIRK_NONCQ", always)}},
			[]string{`changed "A*": ata-b does not take away the earlier row "A1*"`}},
		{"an earlier row without flags", `{ "A1*", NULL, 0 }, { "A*", NULL, ATA_QUIRK_NONCQ },`,
			map[string][2]string{"ata-b": {`{any: [{device: {space: ata, model: "A*"}}]}`, since("ATA_QUIRK_NONCQ", always)}},
			[]string{`new "A1*": the row has no flag and belongs into match.none of later ones: ata-b`, `changed "A*": ata-b does not take away the earlier row "A1*"`}},
		{"a limit", "{ \"A\", NULL, ATA_HORKAGE_MAX_SEC_128 },", map[string][2]string{"ata-a": {`{any: [{device: {space: ata, model: "A"}}]}`, since("ATA_HORKAGE_MAX_SEC_128", always)}},
			[]string{`changed "A": the tree's limit of 128 sectors is in no entry`}},
		{"a reason to have none", `{ "WDC WD3200JD-00KLB0", "WD-WCAMR1130137", ATA_QUIRK_BROKEN_HPA },`, nil,
			[]string{`excepted "WDC WD3200JD-00KLB0" firmware "WD-WCAMR1130137": the firmware field has 8 characters, and this one has 15: it looks like a serial number`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			tree, err := Read(ataTable(c.rows))
			if err != nil {
				t.Fatal(err)
			}
			d := Compare(tree, database(t, c.entries), []Family{Libata})
			var got []string
			for _, x := range d.Differences {
				s := fmt.Sprintf("%s %s", x.State, x.Key)
				if len(x.Why) > 0 {
					s += ": " + strings.Join(x.Why, "; ")
				}
				got = append(got, s)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestCompareSCSI(t *testing.T) {
	tree, err := Read(excerpts())
	if err != nil {
		t.Fatal(err)
	}
	blist := func(flags string) string {
		return `{mitigated: [{flag: [` + flags + `], limits: {max_sectors: 512}, trees: [{tree: mainline, since: "3.0"}], holes: [{tree: mainline, by: "6.12", to: null, why: x}]}]}`
	}
	db := database(t, map[string][2]string{
		// A row that the release lists and does not apply is listed all the same.
		"scsi-big":  {`{any: [{device: {space: scsi, vendor: "ACMEACME", product: "BIG", product_is: prefix}}]}`, blist("{name: BLIST_SPARSELUN}, {name: BLIST_MAX_512}")},
		"scsi-none": {`{any: [{device: {space: scsi, vendor: "", product: "Nameless", product_is: prefix}}]}`, blist("{name: BLIST_NOLUN}")},
		// Not the row: it compares the whole product.
		"scsi-glob": {`{any: [{device: {space: scsi, vendor: "ACME", product: "SCAN ONE"}}]}`, blist("{name: BLIST_NOLUN}")},
	})
	d := Compare(tree, db, []Family{SCSI})
	var got []string
	for _, x := range d.Differences {
		got = append(got, string(x.State)+" "+x.Key)
	}
	if diff := cmp.Diff([]string{`new "ACME" "SCAN ONE"`, `new "ACME" ""`}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if len(d.NotCompared) != len(Families()) || d.Limits != nil { // the limits of drivers with them
		t.Errorf("not compared: %v", d.NotCompared)
	}
}

// TestDraftsHoldTheFactsOfTheRow: a draft loads, has the row's match and flags
// and the earlier rows, and lint finds nothing but what a person has to say.
func TestDraftsHoldTheFactsOfTheRow(t *testing.T) {
	fsys := excerpts()
	tree, err := Read(fsys)
	if err != nil {
		t.Fatal(err)
	}
	drafts := Compare(tree, database(t, nil), Compared()).Drafts(tree)
	if len(drafts) < 10 {
		t.Fatalf("%d drafts", len(drafts))
	}
	files := fstest.MapFS{}
	for _, d := range drafts {
		folder, _, _ := strings.Cut(d.ID, "-")
		files[folder+"/"+d.ID+".yaml"] = &fstest.MapFile{Data: []byte(d.Text)}
	}
	set, faults := quirks.Load(files)
	if len(faults) > 0 || set.Len() != len(drafts) {
		t.Fatalf("%d of %d load: %v", set.Len(), len(drafts), faults)
	}
	for _, x := range Compare(tree, set, Compared()).Differences {
		t.Errorf("with its drafts as entries the tree still differs: %+v", x)
	}
	for _, f := range quirks.Lint(files, nil) {
		switch f.Code {
		case "unfinished", "example", "example-fails", "example-cross", "duplicate-title":
		default:
			t.Error(f)
		}
	}
}

// TestRealTreesAreInTheDatabase: no row without an entry, none changed, none
// vanished, and at most 20 exceptions, each with its reason.
func TestRealTreesAreInTheDatabase(t *testing.T) {
	db, faults := quirks.Builtin()
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	if ex := Exceptions(); len(ex) > 20 {
		t.Errorf("%d exceptions, want at most 20", len(ex))
	}
	for _, dir := range trees(t) {
		tree, err := Read(os.DirFS(dir))
		if err != nil {
			t.Errorf("%s: %v", dir, err)
			continue
		}
		d := Compare(tree, db, Compared())
		for _, x := range d.Differences {
			if x.State != Excepted {
				t.Errorf("%s: %s %s %s: tree %v, database %v %v %v", tree.Release.Upstream(), x.Family, x.State, x.Key, x.Tree, x.Have, x.Entries, x.Why)
			} else if len(x.Why) == 0 {
				t.Errorf("%s: no reason", x.Key)
			}
		}
		t.Logf("%s: %+v", tree.Release.Upstream(), d.Counts)
	}
}
