package quirks

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

// entryOf makes an entry that says only what decides a match: the keys given,
// in YAML.
func entryOf(t testing.TB, body string) *Entry {
	t.Helper()
	head := "schema: 0\nid: ata-test\ntitle: a test\neffect: hang\nseverity: high\nconfidence: confirmed\n"
	e, faults := parse("ata/ata-test.yaml", []byte(head+body+"\n"))
	if len(faults) > 0 {
		t.Fatalf("entry:\n%s\n%v", body, faults)
	}
	return e
}

// armEntry makes an entry with one arm.
func armEntry(t testing.TB, arm string) *Entry {
	t.Helper()
	return entryOf(t, "match: {any: [{"+arm+"}]}")
}

// subjectOf decodes a subject from flow YAML.
func subjectOf(t testing.TB, text string) *Subject {
	t.Helper()
	var sub Subject
	if err := yaml.Unmarshal([]byte("{"+text+"}"), &sub); err != nil {
		t.Fatalf("subject {%s}: %v", text, err)
	}
	return &sub
}

// predicateOf finds a predicate by key.
func predicateOf(m Match, key string) (Predicate, bool) {
	for _, p := range m.Predicates {
		if p.Key == key {
			return p, true
		}
	}
	return Predicate{}, false
}

type matchCase struct {
	name    string
	subject string
	want    Truth
	key     string // the predicate that must have that truth, "" for any
}

func runMatch(t *testing.T, e *Entry, cases []matchCase) {
	t.Helper()
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			m := e.Match(subjectOf(t, tt.subject))
			if m.Truth != tt.want {
				t.Fatalf("subject {%s}: got %v, want %v\n%+v", tt.subject, m.Truth, tt.want, m.Predicates)
			}
			if tt.key == "" {
				return
			}
			p, ok := predicateOf(m, tt.key)
			if !ok || p.Truth != tt.want {
				t.Errorf("subject {%s}: predicate %s: got %+v, want truth %v", tt.subject, tt.key, p, tt.want)
			}
			if p.Truth == Unknown && p.Why == "" {
				t.Errorf("subject {%s}: predicate %s is unknown and does not say why", tt.subject, tt.key)
			}
		})
	}
}

const (
	ataSeagate = `device: {space: ata, model: "ST380013AS", firmware: "3.20"}`
	inqSeagate = `device: {space: scsi, vendor: "ATA     ", product: "ST380013AS      ", revision: "3.20"}`
)

func TestMatchATA(t *testing.T) {
	runMatch(t, armEntry(t, ataSeagate), []matchCase{
		{"whole strings", ataSeagate, True, ""},
		{"blanks and NULs at the ends do not count", `device: {space: ata, model: "  ST380013AS   \0", firmware: "3.20    "}`, True, ""},
		{"case counts", `device: {space: ata, model: "st380013as", firmware: "3.20"}`, False, "device.model"},
		{"other model", `device: {space: ata, model: "ST380013A", firmware: "3.20"}`, False, "device.model"},
		{"longer model", `device: {space: ata, model: "ST380013ASX", firmware: "3.20"}`, False, "device.model"},
		{"other firmware", `device: {space: ata, model: "ST380013AS", firmware: "3.18"}`, False, "device.firmware"},
		{"whole firmware is not inferred from its end", `device: {space: ata, model: "ST380013AS", firmware: "ABCD3.20"}`, False, "device.firmware"},
		{"model not read", `device: {space: ata, firmware: "3.20"}`, Unknown, "device.model"},
		{"firmware not read", `device: {space: ata, model: "ST380013AS"}`, Unknown, "device.firmware"},
		{"a disagreeing model decides without the firmware", `device: {space: ata, model: "X"}`, False, "device.model"},
		{"nothing known", ``, Unknown, "device.space"},
		{"nvme space", `device: {space: nvme, model: "ST380013AS", firmware: "3.20"}`, False, "device.space"},
		{"usb space alone", `device: {space: usb, vid: "152d", pid: "a562"}, path: usb-storage`, False, "device.space"},
		{"ata identity behind a bridge's own INQUIRY", ataSeagate + `, scsi: {vendor: "JMicron", product: "Generic"}, path: uas`, True, ""},
		{"SCSI disk", `device: {space: scsi, vendor: "HGST", product: "ST380013AS", revision: "3.20"}`, False, "device.space"},
		{"virtio-blk has no ATA identity", `path: virtio-blk`, False, "device.space"},
		{"nvme path", `path: nvme`, False, "device.space"},
		{"a stacked device", `path: dm`, False, "device.space"},
		{"a SCSI device of which nothing was read", `path: scsi`, Unknown, "device.space"},
	})
}

func TestMatchATAThroughSCSI(t *testing.T) {
	t.Run("whole model and short firmware", func(t *testing.T) {
		e := armEntry(t, ataSeagate)
		runMatch(t, e, []matchCase{
			{"plain match", inqSeagate, True, ""},
			{"strings trimmed by a tool", `device: {space: scsi, vendor: "ATA", product: "ST380013AS", revision: "3.20"}`, True, ""},
			{"beside the device", `scsi: {vendor: "ATA", product: "ST380013AS", revision: "3.20"}, path: sat-firmware`, True, ""},
			{"other revision", `scsi: {vendor: "ATA", product: "ST380013AS", revision: "3.18"}`, False, "device.firmware"},
			{"longer model", `scsi: {vendor: "ATA", product: "ST380013AS-RK", revision: "3.20"}`, False, "device.model"},
			{"other vendor", `scsi: {vendor: "ATAPI", product: "ST380013AS", revision: "3.20"}`, False, "device.space"},
			{"no revision", `scsi: {vendor: "ATA", product: "ST380013AS"}`, Unknown, "device.firmware"},
			{"no product", `scsi: {vendor: "ATA", revision: "3.20"}`, Unknown, "device.model"},
			{"libata decides the firmware", ataSeagate + `, scsi: {vendor: "ATA", product: "ST380013AS", revision: "9.99"}`, True, ""},
			{"a whole firmware beats the revision", `device: {space: ata, firmware: "ABCD3.20"}, scsi: {vendor: "ATA", product: "ST380013AS", revision: "3.20"}`, False, "device.firmware"},
			{"a model from INQUIRY, the firmware whole", `device: {space: ata, firmware: "3.20"}, scsi: {vendor: "ATA", product: "ST380013AS", revision: "3.20"}`, True, ""},
		})
		// ABCD3.20 shows as 3.20 too, which the finding states.
		if m := e.Match(subjectOf(t, inqSeagate)); !m.Inferred {
			t.Errorf("firmware from a revision: Inferred is false, want true: %+v", m.Predicates)
		}
		for _, sub := range []string{ataSeagate, `scsi: {vendor: "ATA", product: "ST380013AS", revision: "3.18"}`} {
			if m := e.Match(subjectOf(t, sub)); m.Inferred {
				t.Errorf("subject {%s}: Inferred is true, want false", sub)
			}
		}
	})
	t.Run("cut model and firmware", func(t *testing.T) {
		runMatch(t, armEntry(t, `device: {space: ata, model: "INTEL SSDSC2KG480G8", firmware: "XCV10120"}`), []matchCase{
			{"agreeing parts", `scsi: {vendor: "ATA", product: "INTEL SSDSC2KG48", revision: "0120"}`, Unknown, "device.model"},
			{"disagreeing model", `scsi: {vendor: "ATA", product: "INTEL SSDSC2KB48", revision: "0120"}`, False, "device.model"},
			{"disagreeing firmware", `scsi: {vendor: "ATA", product: "INTEL SSDSC2KG48", revision: "0121"}`, False, "device.firmware"},
			{"whole other model with the same beginning", `scsi: {vendor: "ATA", product: "INTEL SSDSC2KG  ", revision: "0120"}`, False, "device.model"},
			{"whole model, cut firmware", `device: {space: ata, model: "INTEL SSDSC2KG480G8"}, scsi: {vendor: "ATA", revision: "0120"}`, Unknown, "device.firmware"},
		})
	})
	t.Run("cut part that satisfies a star", func(t *testing.T) {
		runMatch(t, armEntry(t, `device: {space: ata, model: "INTEL SSDSC2KG*"}`), []matchCase{
			{"satisfied", `scsi: {vendor: "ATA", product: "INTEL SSDSC2KG48"}`, True, "device.model"},
			{"not", `scsi: {vendor: "ATA", product: "INTEL SSDSC2KB48"}`, False, "device.model"},
		})
	})
	t.Run("blank as the 16th character", func(t *testing.T) {
		runMatch(t, armEntry(t, `device: {space: ata, model: "Samsung SSD 850 EVO*"}`), []matchCase{
			{"may be cut at the blank", `scsi: {vendor: "ATA", product: "Samsung SSD 850 "}`, Unknown, "device.model"},
			{"trimmed by a tool", `scsi: {vendor: "ATA", product: "Samsung SSD 850"}`, Unknown, "device.model"},
			{"other model", `scsi: {vendor: "ATA", product: "Samsung SSD 860 "}`, False, "device.model"},
			{"two blanks that the pattern has not are padding", `scsi: {vendor: "ATA", product: "Samsung SSD 85  "}`, False, "device.model"},
			{"a NUL is the end", `scsi: {vendor: "ATA", product: "Samsung SSD 850\0"}`, False, "device.model"},
			{"libata knows", `device: {space: ata, model: "Samsung SSD 850"}, scsi: {vendor: "ATA", product: "Samsung SSD 850 "}`, False, "device.model"},
		})
		runMatch(t, armEntry(t, `device: {space: ata, model: "Samsung*EVO"}`), []matchCase{
			{"one blank may fall to a star", `scsi: {vendor: "ATA", product: "Samsung SSD 850 "}`, Unknown, "device.model"},
			{"two are padding", `scsi: {vendor: "ATA", product: "Samsung SSD 85  "}`, False, "device.model"},
		})
		runMatch(t, armEntry(t, `device: {space: ata, model: "SSDSC2KG480GZL       02JG594D7A44686LEN"}`), []matchCase{
			{"two that the pattern has", `scsi: {vendor: "ATA", product: "SSDSC2KG480GZL  "}`, Unknown, "device.model"},
			{"another model", `scsi: {vendor: "ATA", product: "SSDSC2KG480GZ   "}`, False, "device.model"},
		})
		runMatch(t, armEntry(t, `device: {space: ata, model: "Samsung SSD 850*"}`), []matchCase{
			{"star is satisfied", `scsi: {vendor: "ATA", product: "Samsung SSD 850 "}`, True, "device.model"},
		})
	})
	t.Run("firmware of 8 characters by its last 4", func(t *testing.T) {
		runMatch(t, armEntry(t, `device: {space: ata, model: "D", firmware: "MV.R00-0"}`), []matchCase{
			{"agreeing end", `scsi: {vendor: "ATA", product: "D", revision: "00-0"}`, Unknown, "device.firmware"},
			{"other end", `scsi: {vendor: "ATA", product: "D", revision: "00-1"}`, False, "device.firmware"},
			{"n/a says nothing", `scsi: {vendor: "ATA", product: "D", revision: "n/a "}`, Unknown, "device.firmware"},
			{"blank revision says nothing", `scsi: {vendor: "ATA", product: "D", revision: "    "}`, Unknown, "device.firmware"},
		})
		runMatch(t, armEntry(t, `device: {space: ata, model: "D", firmware: "ABCD 3.2"}`), []matchCase{
			{"blank inside", `scsi: {vendor: "ATA", product: "D", revision: " 3.2"}`, Unknown, "device.firmware"},
			{"no blank inside", `scsi: {vendor: "ATA", product: "D", revision: "3.2 "}`, False, "device.firmware"},
		})
	})
	t.Run("firmware whose last 4 are blank shows its first 4", func(t *testing.T) {
		runMatch(t, armEntry(t, `device: {space: ata, model: "D", firmware: "3.*"}`), []matchCase{
			{"pattern holds of the four", `scsi: {vendor: "ATA", product: "D", revision: "3.20"}`, Unknown, "device.firmware"},
			{"and of eight", `device: {space: ata, model: "D", firmware: "3.20BETA"}`, True, "device.firmware"},
			// As the last four of eight they say nothing of the first.
			{"pattern does not hold of the four", `scsi: {vendor: "ATA", product: "D", revision: "4.20"}`, Unknown, "device.firmware"},
		})
		runMatch(t, armEntry(t, `device: {space: ata, model: "D", firmware: "3.2?"}`), []matchCase{
			{"four characters, with a wildcard", `scsi: {vendor: "ATA", product: "D", revision: "3.20"}`, Unknown, "device.firmware"},
			{"other four", `scsi: {vendor: "ATA", product: "D", revision: "4.20"}`, False, "device.firmware"},
		})
		runMatch(t, armEntry(t, `device: {space: ata, model: "D", firmware: "ABCD3"}`), []matchCase{
			{"five characters", `scsi: {vendor: "ATA", product: "D", revision: "3   "}`, Unknown, "device.firmware"},
			{"other fifth", `scsi: {vendor: "ATA", product: "D", revision: "4   "}`, False, "device.firmware"},
		})
		runMatch(t, armEntry(t, `device: {space: ata, model: "D", firmware: "*"}`), []matchCase{
			{"star is every firmware", `scsi: {vendor: "ATA", product: "D", revision: "4.20"}`, True, "device.firmware"},
		})
	})
}

// What SCSI shows of an ATA identity must never contradict the identity: the
// models and firmware are from real drives, the entries name each of them and
// their neighbours.
func TestCutIdentityNeverContradictsWhole(t *testing.T) {
	rows := readRows(t, "testdata/models.tsv")
	var entries []*Entry
	var whole []*Subject
	quote := func(s string) string { return fmt.Sprintf("%q", s) }
	for i, r := range rows {
		if r["transport"] != "ata" || r["firmware"] == "" {
			continue
		}
		model, fw := r["model"], r["firmware"]
		whole = append(whole, &Subject{Device: Identity{Space: "ata", Model: KnownText(model), Firmware: KnownText(fw)}})
		if i%3 != 0 || strings.ContainsAny(model+fw, `*?[\`) {
			continue
		}
		for _, arm := range []string{
			"model: " + quote(model) + ", firmware: " + quote(fw),
			"model: " + quote(model+" X") + ", firmware: " + quote(fw),
			"model: " + quote(model[:len(model)/2]+"*") + ", firmware: " + quote(fw[:len(fw)/2]+"*"),
			"model: " + quote("*"+model[len(model)/2:]) + ", firmware: " + quote("?"+fw[1:]),
		} {
			entries = append(entries, armEntry(t, "device: {space: ata, "+arm+"}"))
		}
	}
	if len(whole) < 200 || len(entries) < 200 {
		t.Fatalf("%d identities and %d entries, want 200 of each", len(whole), len(entries))
	}
	cut, unknown := 0, 0
	for _, sub := range whole {
		shown := &Subject{SCSI: throughSAT(sub.Device), Path: "sat-firmware"}
		for _, e := range entries {
			w, c := e.Match(sub), e.Match(shown)
			if c.Truth != w.Truth {
				cut++
			}
			if c.Truth == Unknown {
				unknown++
			}
			if c.Truth == False && w.Truth == True || c.Truth == True && w.Truth == False && !c.Inferred {
				t.Errorf("entry %s %s on %q %q: whole %v, through SCSI (%q %q) %v",
					e.Where.Any[0].Device.Model, e.Where.Any[0].Device.Firmware, sub.Device.Model.S, sub.Device.Firmware.S, w.Truth,
					shown.SCSI.Product.S, shown.SCSI.Revision.S, c.Truth)
			}
		}
	}
	if cut == 0 || unknown == 0 {
		t.Errorf("%d answers cut, %d unknown: the sample shows nothing", cut, unknown)
	}
}

// throughSAT is the INQUIRY identity that libata makes of an ATA one.
func throughSAT(id Identity) Identity {
	pad := func(s string, n int) string { return (s + strings.Repeat(" ", n))[:n] }
	model, fw := pad(id.Model.trimmed(), 40), pad(id.Firmware.trimmed(), 8)
	rev := fw[4:]
	if strings.TrimSpace(rev) == "" {
		rev = fw[:4]
	}
	if rev[0] == ' ' {
		rev = "n/a "
	}
	return Identity{Space: "scsi", Vendor: KnownText("ATA     "), Product: KnownText(model[:16]), Revision: KnownText(rev)}
}

func TestMatchSCSI(t *testing.T) {
	runMatch(t, armEntry(t, `device: {space: scsi, vendor: "HP", product: "HSV4?0", revision: "10*"}`), []matchCase{
		{"all hold, padded", `scsi: {vendor: "HP      ", product: "HSV400          ", revision: "1020"}`, True, ""},
		{"as the device", `device: {space: scsi, vendor: "HP", product: "HSV400", revision: "1020"}`, True, ""},
		{"vendor is whole", `scsi: {vendor: "HPE", product: "HSV400", revision: "1020"}`, False, "device.vendor"},
		{"product is whole", `scsi: {vendor: "HP", product: "HSV400X", revision: "1020"}`, False, "device.product"},
		{"other revision", `scsi: {vendor: "HP", product: "HSV400", revision: "2020"}`, False, "device.revision"},
		{"no vendor", `scsi: {product: "HSV400", revision: "1020"}`, Unknown, "device.vendor"},
		{"no product", `scsi: {vendor: "HP", revision: "1020"}`, Unknown, "device.product"},
		{"no revision", `scsi: {vendor: "HP", product: "HSV400"}`, Unknown, "device.revision"},
		{"nothing known on a SCSI path", `path: scsi`, Unknown, "device.space"},
		{"NVMe", `device: {space: nvme, model: "HP"}`, False, "device.space"},
		{"libata, but a CD drive has strings of its own", `path: libata`, Unknown, "device.space"},
	})
	t.Run("product as prefix", func(t *testing.T) {
		runMatch(t, armEntry(t, `device: {space: scsi, vendor: "SYNOLOGY", product: "iSCSI St*", product_is: prefix}`), []matchCase{
			{"the star is no wildcard in a prefix", `scsi: {vendor: "SYNOLOGY", product: "iSCSI Storage"}`, False, "device.product"},
		})
		runMatch(t, armEntry(t, `device: {space: scsi, vendor: "SYNOLOGY", product: "iSCSI St", product_is: prefix}`), []matchCase{
			{"longer product", `scsi: {vendor: "SYNOLOGY", product: "iSCSI Storage"}`, True, "device.product"},
			{"the same product", `scsi: {vendor: "SYNOLOGY", product: "iSCSI St"}`, True, "device.product"},
			{"shorter product", `scsi: {vendor: "SYNOLOGY", product: "iSCSI"}`, False, "device.product"},
			{"the vendor is no prefix", `scsi: {vendor: "SYNOLOGYX", product: "iSCSI Storage"}`, False, "device.vendor"},
			{"prefix not at the beginning", `scsi: {vendor: "SYNOLOGY", product: "My iSCSI Storage"}`, False, "device.product"},
			{"product not read", `scsi: {vendor: "SYNOLOGY"}`, Unknown, "device.product"},
		})
	})
	t.Run("what libata makes of an ATA identity", func(t *testing.T) {
		e := armEntry(t, `device: {space: scsi, vendor: "ATA", product: "INTEL SSDSC2KG48"}`)
		runMatch(t, e, []matchCase{
			{"cut at 16", `device: {space: ata, model: "INTEL SSDSC2KG480G8"}, path: libata`, True, ""},
			{"INQUIRY itself goes first", `device: {space: ata, model: "INTEL SSDSC2KG480G8"}, scsi: {vendor: "JMicron", product: "x"}, path: uas`, False, "device.vendor"},
			{"a bridge has strings of its own", `device: {space: ata, model: "INTEL SSDSC2KG480G8"}, path: uas`, Unknown, "device.space"},
		})
	})
}

func TestMatchNVMe(t *testing.T) {
	runMatch(t, armEntry(t, `device: {space: nvme, model: "ACME N[12]", firmware: ["A", "B"]}`), []matchCase{
		{"model and firmware", `device: {space: nvme, model: "ACME N1   ", firmware: "B"}`, True, ""},
		{"other model", `device: {space: nvme, model: "ACME N3", firmware: "B"}`, False, "device.model"},
		{"other firmware", `device: {space: nvme, model: "ACME N1", firmware: "C"}`, False, "device.firmware"},
		{"no model", `device: {space: nvme, firmware: "B"}`, Unknown, "device.model"},
		{"no firmware", `device: {space: nvme, model: "ACME N1"}`, Unknown, "device.firmware"},
		{"an ATA disk of that name", `device: {space: ata, model: "ACME N1", firmware: "B"}`, False, "device.space"},
		{"nothing read on an NVMe path", `path: nvme`, Unknown, "device.space"},
		{"nothing read on a SCSI path", `path: scsi`, False, "device.space"},
	})
	runMatch(t, armEntry(t, `device: {space: nvme, vid: "144D", ssvid: "1028"}`), []matchCase{
		{"PCI ids, any case", `device: {space: nvme, vid: "144d", ssvid: "1028"}`, True, ""},
		{"other maker", `device: {space: nvme, vid: "144e", ssvid: "1028"}`, False, "device.vid"},
		{"other subsystem", `device: {space: nvme, vid: "144d", ssvid: "1029"}`, False, "device.ssvid"},
		{"no subsystem", `device: {space: nvme, vid: "144d"}`, Unknown, "device.ssvid"},
	})
}

func TestMatchUnknownSpace(t *testing.T) {
	runMatch(t, armEntry(t, `device: {space: zbc, model: "X"}`), []matchCase{
		{"a space of a later version is unknown, never wider", ataSeagate, Unknown, "device.space"},
	})
}

func TestMatchFirmwareForms(t *testing.T) {
	arm := func(fw string) *Entry { return armEntry(t, `device: {space: ata, model: "D", firmware: `+fw+`}`) }
	sub := func(fw string) string { return `device: {space: ata, model: "D", firmware: "` + fw + `"}` }
	for _, tt := range []struct {
		name, form string
		answers    map[string]Truth
	}{
		{"pattern", `"0[12]*"`, map[string]Truth{"01": True, "0299": True, "03": False}},
		{"list", `["01", "02"]`, map[string]Truth{"01": True, "02": True, "03": False}},
		{"any", `{any: "seen with all"}`, map[string]Truth{"01": True, "": True}},
		{"bad only", `{bad: ["01"]}`, map[string]Truth{"01": True, "02": Unknown}},
		{"bad and fixed", `{bad: ["01"], fixed: ["03"]}`, map[string]Truth{"01": True, "02": Unknown, "03": False}},
		{"bad goes before fixed", `{bad: ["0*"], fixed: ["03"]}`, map[string]Truth{"03": True, "1": Unknown}},
		{"listed", `{bad: ["01"], fixed: ["03"], order: listed}`, map[string]Truth{"00": Unknown, "02": Unknown}},
		{"below, numeric", `{below: "10", order: numeric}`, map[string]Truth{"9": True, "09": True, "10": False, "11": False, "100": False, "9a": Unknown, "": Unknown, "-1": Unknown}},
		{"below, numbers beyond 64 bits", `{below: "100000000000000000000", order: numeric}`, map[string]Truth{"99999999999999999999": True, "100000000000000000001": False}},
		{"below, lexical", `{below: "B0", order: lexical}`, map[string]Truth{"A9": True, "B0": False, "B1": False, "A": Unknown, "A99": Unknown}},
		{"below, suffix", `{below: "HPD8", order: {suffix_after: "HPD"}}`, map[string]Truth{"HPD7": True, "HPD8": False, "HPD10": False, "HPG1": Unknown, "HPD": Unknown, "HPDX": Unknown}},
		{"order before below", `{order: numeric, below: "10"}`, map[string]Truth{"9": True}},
		{"below with bad and fixed", `{bad: ["90"], fixed: ["5"], below: "10", order: numeric}`, map[string]Truth{"90": True, "5": False, "4": True, "50": False, "x": Unknown}},
		{"order alone compares nothing", `{bad: ["01"], order: numeric}`, map[string]Truth{"00": Unknown, "02": Unknown}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := arm(tt.form)
			for fw, want := range tt.answers {
				m := e.Match(subjectOf(t, sub(fw)))
				p, _ := predicateOf(m, "device.firmware")
				if m.Truth != want || p.Truth != want {
					t.Errorf("firmware %s on %q: got %v, want %v (%+v)", tt.form, fw, m.Truth, want, p)
				}
				if p.Want == "" || want == Unknown && p.Why != WhyFirmwareUnnamed {
					t.Errorf("firmware %s on %q: does not say what it wants or why: %+v", tt.form, fw, p)
				}
			}
			want := Unknown
			if strings.Contains(tt.form, "any:") {
				want = True
			}
			if m := e.Match(subjectOf(t, `device: {space: ata, model: "D"}`)); m.Truth != want {
				t.Errorf("firmware %s not read: got %v, want %v", tt.form, m.Truth, want)
			}
		})
	}
	t.Run("through SCSI", func(t *testing.T) {
		for _, tt := range []struct {
			form, rev string
			want      Truth
		}{
			{`{any: "all"}`, "0120", True},
			{`{bad: ["XCV10110"], fixed: ["XCV10120"]}`, "0110", Unknown},
			{`{bad: ["XCV10110"], fixed: ["XCV10120"]}`, "0120", Unknown}, // in neither list, as far as it shows
			{`{bad: ["3.20"], fixed: ["3.30"]}`, "3.20", True},
			{`{bad: ["3.20"], fixed: ["3.30"]}`, "3.30", Unknown}, // ABCD3.30 shows so too
			{`{below: "10", order: numeric}`, "9", Unknown},
			{`["XCV10110", "XCV10120"]`, "0120", Unknown},
			{`["XCV10110", "XCV10120"]`, "0130", False},
		} {
			m := arm(tt.form).Match(subjectOf(t, `scsi: {vendor: "ATA", product: "D", revision: "`+tt.rev+`"}`))
			if m.Truth != tt.want {
				t.Errorf("firmware %s on revision %q: got %v, want %v", tt.form, tt.rev, m.Truth, tt.want)
			}
		}
	})
	t.Run("adapter", func(t *testing.T) {
		runMatch(t, armEntry(t, `adapter: {firmware: {bad: ["0207"], fixed: ["0208"]}}`), []matchCase{
			{"bad", `adapter: {firmware: "0207"}`, True, "adapter.firmware"},
			{"fixed", `adapter: {firmware: "0208"}`, False, "adapter.firmware"},
			{"neither", `adapter: {firmware: "0209"}`, Unknown, "adapter.firmware"},
			{"not shown", `adapter: {pci: "1b4b:9230"}`, Unknown, "adapter.firmware"},
		})
	})
}

func TestMatchAdapter(t *testing.T) {
	for _, tt := range []struct {
		want, got string
		truth     Truth
	}{
		{"1b4b:9230:1028:1fd6", "1b4b:9230:1028:1fd6", True},
		{"1b4b:9230:1028:1fd6", "1B4B:9230:1028:1FD6", True},
		{"1b4b:9230:1028:1fd6", "1b4b:9230:1028:1fd7", False},
		{"1b4b:9230:1028:1fd6", "1b4b:9235:1028:1fd6", False},
		{"1b4b:9230:1028:1fd6", "1b4c:9230:1028:1fd6", False},
		{"1b4b:9230:1028:*", "1b4b:9230:1028:1fd6", True},
		{"1b4b:9230:*:*", "1b4b:9230", True},
		{"1b4b:9230", "1b4b:9230:1028:1fd6", True},
		{"*:*:1028:*", "1b4b:9230:1028:0000", True},
		{"1b4b:9230:1028:*", "1b4b:9230", Unknown}, // subsystem not shown
		{"1b4b:9230:1028:1fd6", "1b4b:9230:1028", Unknown},
		{"1b4b:9230:1028:1fd6", "1b4b:9230:1029", False},
		{"1b4b:9230:1028:*", "1b4b:9231", False},
		{"1b4b:9230:1028:*", "1b4b:9230::", Unknown},
		{"1b4b:9230:*:*", "", False}, // known to have none
		{"*:*:*:*", "", False},
	} {
		if got := matchPCI(tt.want, tt.got); got != tt.truth {
			t.Errorf("pci %q on %q: got %v, want %v", tt.want, tt.got, got, tt.truth)
		}
	}
	runMatch(t, armEntry(t, `adapter: {pci: ["1095:3112:*:*", "1002:436e:1028:*"]}`), []matchCase{
		{"the first", `adapter: {pci: "1095:3112:1095:3112"}`, True, "adapter.pci"},
		{"the second", `adapter: {pci: "1002:436e:1028:0001"}`, True, "adapter.pci"},
		{"neither", `adapter: {pci: "1095:3114:1095:3114"}`, False, "adapter.pci"},
		{"the second, without subsystem", `adapter: {pci: "1002:436e"}`, Unknown, "adapter.pci"},
		{"no ids", `adapter: {driver: ahci}`, Unknown, "adapter.pci"},
		{"no adapter read", ``, Unknown, "adapter.pci"},
	})
	runMatch(t, armEntry(t, `adapter: {class: "0106??"}`), []matchCase{
		{"six digits", `adapter: {class: "010601"}`, True, "adapter.class"},
		{"as sysfs writes it", `adapter: {class: "0x010601"}`, True, "adapter.class"},
		{"as lspci writes it", `adapter: {class: "0106"}`, True, "adapter.class"},
		{"other class", `adapter: {class: "010802"}`, False, "adapter.class"},
		{"other class in four digits", `adapter: {class: "0108"}`, False, "adapter.class"},
		{"not read", `adapter: {pci: "1b4b:9230"}`, Unknown, "adapter.class"},
	})
	runMatch(t, armEntry(t, `adapter: {class: "010601"}`), []matchCase{
		{"four digits leave the interface open", `adapter: {class: "0106"}`, Unknown, "adapter.class"},
		{"other interface", `adapter: {class: "010600"}`, False, "adapter.class"},
		{"known to have none", `adapter: {class: ""}`, False, "adapter.class"},
	})
	runMatch(t, armEntry(t, `adapter: {driver: ["ahci", "sata_*"], name: "88SE*", revision: "1?"}`), []matchCase{
		{"all", `adapter: {driver: sata_sil, name: "88SE9230", revision: "11"}`, True, ""},
		{"other driver", `adapter: {driver: mpt3sas, name: "88SE9230", revision: "11"}`, False, "adapter.driver"},
		{"other name", `adapter: {driver: ahci, name: "99", revision: "11"}`, False, "adapter.name"},
		{"other revision", `adapter: {driver: ahci, name: "88SE9230", revision: "21"}`, False, "adapter.revision"},
		{"no driver", `adapter: {name: "88SE9230", revision: "11"}`, Unknown, "adapter.driver"},
		{"no driver bound", `adapter: {driver: "", name: "88SE9230", revision: "11"}`, False, "adapter.driver"},
	})
}

func TestMatchUSB(t *testing.T) {
	runMatch(t, armEntry(t, `usb: {id: ["174c:55aa", "152d:*"]}`), []matchCase{
		{"id", `usb: {vid: "174c", pid: "55aa"}`, True, "usb.id"},
		{"id in the other case", `usb: {vid: "174C", pid: "55AA"}`, True, "usb.id"},
		{"any product", `usb: {vid: "152d", pid: "0578"}`, True, "usb.id"},
		{"other product", `usb: {vid: "174c", pid: "55ab"}`, False, "usb.id"},
		{"other vendor", `usb: {vid: "174d", pid: "55aa"}`, False, "usb.id"},
		{"no product", `usb: {vid: "174c"}`, Unknown, "usb.id"},
		{"no product where any does", `usb: {vid: "152d"}`, True, "usb.id"},
		{"as the device's space", `device: {space: usb, vid: "174c", pid: "55aa"}`, True, "usb.id"},
		{"no ids", ``, Unknown, "usb.id"},
		{"no ids on a SCSI path", `path: scsi`, Unknown, "usb.id"},
		{"no USB on libata", `path: libata`, False, "usb.id"},
		{"no USB on virtio-blk", `path: virtio-blk`, False, "usb.id"},
		{"known to have none", `usb: {vid: ""}`, False, "usb.id"},
	})
	runMatch(t, armEntry(t, `usb: {bcd: "0100-01ff"}`), []matchCase{
		{"first", `usb: {bcd: "0100"}`, True, "usb.bcd"},
		{"last", `usb: {bcd: "01FF"}`, True, "usb.bcd"},
		{"dotted", `usb: {bcd: "1.00"}`, True, "usb.bcd"},
		{"below", `usb: {bcd: "00ff"}`, False, "usb.bcd"},
		{"above", `usb: {bcd: "2.00"}`, False, "usb.bcd"},
		{"no number", `usb: {bcd: "xyz"}`, Unknown, "usb.bcd"},
		{"not read", `usb: {vid: "174c"}`, Unknown, "usb.bcd"},
		{"no USB device", `path: libata`, False, "usb.bcd"},
		{"known to have none", `usb: {vid: "", pid: ""}`, False, "usb.bcd"},
	})
	runMatch(t, armEntry(t, `usb: {bcd: "0100"}`), []matchCase{
		{"one value", `usb: {bcd: "0100"}`, True, "usb.bcd"},
		{"next value", `usb: {bcd: "0101"}`, False, "usb.bcd"},
	})
	runMatch(t, armEntry(t, `usb: {speed: super}`), []matchCase{
		{"by name", `usb: {speed: super}`, True, "usb.speed"},
		{"as sysfs writes it", `usb: {speed: "5000"}`, True, "usb.speed"},
		{"slower", `usb: {speed: "480"}`, False, "usb.speed"},
		{"faster", `usb: {speed: "10000"}`, False, "usb.speed"},
		{"not read", `usb: {vid: "174c"}`, Unknown, "usb.speed"},
	})
	for mbits, name := range map[string]string{"1.5": "low", "12": "full", "480": "high", "5000": "super", "10000": "super-plus", "20000": "super-plus"} {
		if m := armEntry(t, "usb: {speed: "+name+"}").Match(subjectOf(t, `usb: {speed: "`+mbits+`"}`)); m.Truth != True {
			t.Errorf("speed %s is not %s", mbits, name)
		}
	}
	runMatch(t, armEntry(t, `usb: {manufacturer: "Asm*", product: "ASM1351"}`), []matchCase{
		{"strings", `usb: {manufacturer: "Asmedia", product: "ASM1351"}`, True, ""},
		{"other maker", `usb: {manufacturer: "JMicron", product: "ASM1351"}`, False, "usb.manufacturer"},
		{"other product", `usb: {manufacturer: "Asmedia", product: "ASM1352"}`, False, "usb.product"},
		{"device without strings", `usb: {manufacturer: "", product: ""}`, False, "usb.product"},
		{"not read", `usb: {vid: "174c"}`, Unknown, "usb.manufacturer"},
		{"no USB device", `path: nvme-pci`, False, "usb.manufacturer"},
	})
}

func TestMatchMachine(t *testing.T) {
	runMatch(t, armEntry(t, `machine: {vendor: "Dell*", product: "PowerEdge R6525", board: "0*"}`), []matchCase{
		{"all", `machine: {vendor: "Dell Inc.", product: "PowerEdge R6525", board: "04F3CJ"}`, True, ""},
		{"by the names of the files", `machine: {sys_vendor: "Dell Inc.", product_name: "PowerEdge R6525", board_name: "04F3CJ"}`, True, ""},
		{"other maker", `machine: {vendor: "HPE", product: "PowerEdge R6525", board: "04F3CJ"}`, False, "machine.vendor"},
		{"other product", `machine: {vendor: "Dell Inc.", product: "PowerEdge R7525", board: "04F3CJ"}`, False, "machine.product"},
		{"other board", `machine: {vendor: "Dell Inc.", product: "PowerEdge R6525", board: "14F3CJ"}`, False, "machine.board"},
		{"not read", ``, Unknown, "machine.vendor"},
	})
	runMatch(t, armEntry(t, `machine: {bios_before: "2.1"}`), []matchCase{
		{"BIOS versions have no common order", `machine: {bios: "2.0"}`, Unknown, "machine.bios"},
	})
}

func TestMatchStack(t *testing.T) {
	runMatch(t, armEntry(t, `stack: {over: [dm-crypt, md]}`), []matchCase{
		{"target above", `stack: {above: [{kind: dm, target: crypt}]}`, True, "stack.over"},
		{"kind above", `stack: {above: [{kind: md, level: raid1}]}`, True, "stack.over"},
		{"another target", `stack: {above: [{kind: dm, target: linear}]}`, False, "stack.over"},
		{"nothing above", `stack: {above: []}`, False, "stack.over"},
		{"not read", ``, Unknown, "stack.over"},
	})
	runMatch(t, armEntry(t, `stack: {md_level: [4, 5, 6]}`), []matchCase{
		{"level", `stack: {kind: md, level: raid5}`, True, "stack.md_level"},
		{"other level", `stack: {kind: md, level: raid10}`, False, "stack.md_level"},
		{"not read", ``, Unknown, "stack.md_level"},
		{"not read, and a disk is no array", `path: libata`, False, "stack.md_level"},
		{"not read, and what has a disk's name is no array", `device: {space: ata, model: "A"}`, False, "stack.md_level"},
		{"not read, of a device without a path to a controller", `path: other`, Unknown, "stack.md_level"},
	})
	runMatch(t, armEntry(t, `stack: {kind: [md]}`), []matchCase{
		{"kind", `stack: {kind: md}`, True, "stack.kind"},
		{"other kind", `stack: {kind: dm}`, False, "stack.kind"},
		{"a disk", `stack: {above: [{kind: md}]}, path: libata`, False, "stack.kind"},
		{"not read, and a disk is no array", `path: scsi`, False, "stack.kind"},
		{"not read", ``, Unknown, "stack.kind"},
	})
}

func TestMatchPath(t *testing.T) {
	for _, tt := range []struct {
		want  []string
		got   string
		want3 Truth
	}{
		{nil, "", True},
		{nil, "scsi", True},
		{[]string{"libata"}, "libata", True},
		{[]string{"libata"}, "sat-firmware", False},
		{[]string{"libata", "scsi"}, "scsi", True},
		{[]string{"libata"}, "", Unknown},
		{[]string{"nvme-pci"}, "nvme", Unknown},
		{[]string{"nvme-fabrics"}, "nvme", Unknown},
		{[]string{"nvme-pci", "nvme-fabrics"}, "nvme", True},
		{[]string{"libata"}, "nvme", False},
		{[]string{"nvme-pci"}, "nvme-fabrics", False},
	} {
		if got := Strings(tt.want).matchPath(tt.got); got != tt.want3 {
			t.Errorf("path %v on %q: got %v, want %v", tt.want, tt.got, got, tt.want3)
		}
	}
	runMatch(t, armEntry(t, `path: [sat-firmware]`), []matchCase{
		{"the path", `path: sat-firmware`, True, "path"},
		{"vendor ATA on a SCSI path", `scsi: {vendor: "ATA"}, path: scsi`, True, "path"},
		{"another", `path: libata`, False, "path"},
		{"not known", ``, Unknown, "path"},
	})
}

func TestMatchKernel(t *testing.T) {
	t.Run("arm", func(t *testing.T) {
		runMatch(t, armEntry(t, `path: [scsi], kernel: {since: "6.17", until: "7.0"}`), []matchCase{
			{"since is inclusive", `path: scsi, kernel: "6.17"`, True, "kernel"},
			{"a later one", `path: scsi, kernel: "6.19"`, True, "kernel"},
			{"until is exclusive", `path: scsi, kernel: "7.0"`, False, "kernel"},
			{"before", `path: scsi, kernel: "6.16"`, False, "kernel"},
			{"a stable point before may hold a backport", `path: scsi, kernel: "6.16.4"`, Unknown, "kernel"},
			{"a stable point after", `path: scsi, kernel: "6.18.44"`, True, "kernel"},
			{"a vendor picks its patches", `path: scsi, kernel: "5.14.0-503.11.1.el9_5.x86_64"`, Unknown, "kernel"},
			{"a vendor's newer kernel too", `path: scsi, kernel: "6.17.0-5-generic"`, Unknown, "kernel"},
			{"not known", `path: scsi`, Unknown, "kernel"},
		})
		runMatch(t, armEntry(t, `path: [scsi], kernel: {tree: rhel, since: "5.14"}`), []matchCase{
			{"a row of the vendor's own", `path: scsi, kernel: "5.14.0-503.11.1.el9_5.x86_64"`, True, "kernel"},
			{"says nothing of others", `path: scsi, kernel: "6.12.9"`, Unknown, "kernel"},
		})
	})
	t.Run("range", func(t *testing.T) {
		runMatch(t, entryOf(t, `
match: {any: [{path: [libata]}]}
kernel: {range: [{tree: mainline, introduced: "6.17", fixed: "7.1"}, {tree: stable-6.12, introduced: null}, {tree: stable-6.18, introduced: "6.18", fixed: "6.18.20"}]}`), []matchCase{
			{"mainline", `path: libata, kernel: "6.19"`, True, "kernel.range"},
			{"fixed", `path: libata, kernel: "7.1"`, False, "kernel.range"},
			{"never in this tree", `path: libata, kernel: "6.12.50"`, False, "kernel.range"},
			{"its own tree, before the fix", `path: libata, kernel: "6.18.19"`, True, "kernel.range"},
			{"its own tree, at the fix", `path: libata, kernel: "6.18.20"`, False, "kernel.range"},
			{"Debian follows the stable tree", `path: libata, kernel: "6.12.50+deb13-amd64"`, False, "kernel.range"},
			{"Ubuntu does not", `path: libata, kernel: "6.19.0-5-generic"`, Unknown, "kernel.range"},
			{"not known", `path: libata`, Unknown, "kernel.range"},
			{"another path needs no kernel", `path: scsi`, False, "path"},
		})
	})
}

func TestMatchConditions(t *testing.T) {
	with := func(conditions string) *Entry {
		return entryOf(t, "match: {any: [{path: [scsi]}]}\nconditions: ["+conditions+"]")
	}
	for _, tt := range []struct {
		op               string
		less, same, more Truth
	}{
		{"==", False, True, False}, {"!=", True, False, True}, {"<", True, False, False},
		{"<=", True, True, False}, {">", False, False, True}, {">=", False, True, True},
	} {
		e := with(`{key: power_on_hours, op: "` + tt.op + `", value: 32768}`)
		for hours, want := range map[int]Truth{9000: tt.less, 32768: tt.same, 100000: tt.more} {
			if m := e.Match(subjectOf(t, fmt.Sprintf("path: scsi, settings: {power_on_hours: %d}", hours))); m.Truth != want {
				t.Errorf("power_on_hours %s 32768 on %d: got %v, want %v", tt.op, hours, m.Truth, want)
			}
		}
		if m := e.Match(subjectOf(t, "path: scsi")); m.Truth != Unknown {
			t.Errorf("power_on_hours %s 32768 not read: got %v, want unknown", tt.op, m.Truth)
		}
	}
	runMatch(t, with(`{key: power_on_hours, op: ">=", value: 1, from: smart, how: "smartctl -A"}`), []matchCase{
		{"not read", `path: scsi`, Unknown, "condition.power_on_hours"},
		{"no number", `path: scsi, settings: {power_on_hours: "many"}`, Unknown, "condition.power_on_hours"},
	})
	m := with(`{key: power_on_hours, op: ">=", value: 1, how: "smartctl -A"}`).Match(subjectOf(t, "path: scsi"))
	if p, _ := predicateOf(m, "condition.power_on_hours"); !strings.Contains(p.Why, "smartctl -A") {
		t.Errorf("condition not read: why %q, want how to read it", p.Why)
	}
	for key, subject := range map[string]string{
		"path": `path: scsi`, "transport": `path: scsi, transport: scsi`, "driver": `path: scsi, adapter: {driver: scsi}`,
		"md_level": `path: scsi, stack: {level: scsi}`, "dm_target": `path: scsi, stack: {target: scsi}`,
		"page_size": `path: scsi, machine: {page_size: scsi}`, "arch": `path: scsi, machine: {arch: scsi}`, "scheduler": `path: scsi, settings: {scheduler: scsi}`,
		"io_kib": `path: scsi, limits: {io_kib: "scsi"}`, "iommu": `path: scsi, settings: {iommu: scsi}`, "cmdline": `path: scsi, cmdline: "quiet scsi"`,
		"lpm": `path: scsi, settings: {link_power_management_policy: scsi}`, "wcache": `path: scsi, settings: {write_cache: scsi}`,
		"md_degraded": `path: scsi, settings: {degraded: scsi}`, "md_layout": `path: scsi, settings: {layout: scsi}`,
		`"module_param:raid0.default_layout"`: `path: scsi, settings: {"module_param:raid0.default_layout": scsi}`,
	} {
		key = strings.Trim(key, `"`)
		runMatch(t, with(`{key: "`+key+`", op: "==", value: scsi}`), []matchCase{{key, subject, True, "condition." + key}})
		runMatch(t, with(`{key: "`+key+`", op: "!=", value: scsi}`), []matchCase{{"not " + key, subject, False, "condition." + key}})
		runMatch(t, with(`{key: "`+key+`", op: "==", value: other}`), []matchCase{{"another " + key, subject, False, "condition." + key}})
	}
	runMatch(t, with(`{key: scheduler, op: "==", value: none}`), []matchCase{
		{"the scheduler in force", `path: scsi, settings: {scheduler: "[none] mq-deadline"}`, True, "condition.scheduler"},
		{"one that could be", `path: scsi, settings: {scheduler: "none [mq-deadline]"}`, False, "condition.scheduler"},
	})
	runMatch(t, with(`{key: io_kib, op: ">", value: 1280}`), []matchCase{
		{"max_sectors_kb", `path: scsi, limits: {max_sectors_kb: 4096}`, True, "condition.io_kib"},
		{"given in sectors", `path: scsi, max_sectors: 2560`, False, "condition.io_kib"},
		{"not read", `path: scsi`, Unknown, "condition.io_kib"},
	})
	runMatch(t, with(`{key: cmdline, op: "==", value: "libata.force=*noncq*"}`), []matchCase{
		{"a parameter fits", `path: scsi, cmdline: "quiet libata.force=1:noncq"`, True, "condition.cmdline"},
		{"none does", `path: scsi, cmdline: "quiet libata.force=1:nolpm noncq"`, False, "condition.cmdline"},
		{"empty", `path: scsi, cmdline: ""`, False, "condition.cmdline"},
		{"not read", `path: scsi`, Unknown, "condition.cmdline"},
	})
	runMatch(t, with(`{key: cmdline, op: "!=", value: "iommu=pt"}`), []matchCase{
		{"none fits", `path: scsi, cmdline: "quiet"`, True, "condition.cmdline"},
		{"one does", `path: scsi, cmdline: "iommu=pt quiet"`, False, "condition.cmdline"},
	})
	runMatch(t, with(`{key: cmdline, op: ">", value: "a"}`), []matchCase{{"an order over patterns", `path: scsi, cmdline: "b"`, Unknown, "condition.cmdline"}})
	runMatch(t, with(`{key: link_speed, op: "<", value: 3}`), []matchCase{
		{"half a gigabit", `path: scsi, settings: {link_speed: "1.5"}`, True, "condition.link_speed"},
		{"faster", `path: scsi, settings: {link_speed: 6}`, False, "condition.link_speed"},
	})
	e := with(`{key: "module_param:raid0.default_layout", op: "==", value: 2}`)
	for _, c := range []struct {
		params map[string]string
		want   Truth
	}{{map[string]string{"raid0.default_layout": "2"}, True}, {map[string]string{"raid0.default_layout": "1"}, False}, {map[string]string{"raid0.other": "2"}, Unknown}, {nil, Unknown}} {
		if m := e.Match(&Subject{Path: "scsi", Params: c.params}); m.Truth != c.want {
			t.Errorf("parameters %v: %v, want %v", c.params, m.Truth, c.want)
		}
	}
	runMatch(t, with(`{key: page_size, op: "==", value: 65536}`), []matchCase{
		{"a setting stands in for what the subject has no place for", `path: scsi, settings: {page_size: 65536}`, True, "condition.page_size"},
	})
	runMatch(t, with(`{key: scheduler, op: "==", value: none}`), []matchCase{
		{"the scheduler in brackets", `path: scsi, settings: {scheduler: "mq-deadline kyber [none]"}`, True, "condition.scheduler"},
		{"a scheduler that could be chosen", `path: scsi, settings: {scheduler: "[mq-deadline] kyber none"}`, False, "condition.scheduler"},
		{"a device that can have none shows no brackets", `path: scsi, settings: {scheduler: "none"}`, True, "condition.scheduler"},
	})
	runMatch(t, with(`{ask: "Is it written through ext4?", id: ext4}`), []matchCase{{"only a person knows", `path: scsi`, Unknown, "condition.ext4"}})
	runMatch(t, with(`{ask: "Is it?", id: it}, {key: io_kib, op: "==", value: 4}`), []matchCase{
		{"conditions are and-ed", `path: scsi, limits: {io_kib: 8}`, False, "condition.io_kib"},
		{"of a device that is not meant nothing is asked", `path: libata`, False, "path"},
	})
}

func TestMatchNone(t *testing.T) {
	e := entryOf(t, `
match:
  any: [{device: {space: ata, model: "D*"}}]
  none:
    - {device: {space: ata, firmware: "2"}}
    - {adapter: {pci: "1095:3114:*:*"}, machine: {vendor: "Dell"}}`)
	runMatch(t, e, []matchCase{
		{"neither takes away", `device: {space: ata, model: "D1", firmware: "1"}, adapter: {pci: "1095:3112"}`, True, ""},
		{"the first takes away", `device: {space: ata, model: "D1", firmware: "2"}, adapter: {pci: "1095:3112"}`, False, "none[0]"},
		{"the second takes away", `device: {space: ata, model: "D1", firmware: "1"}, adapter: {pci: "1095:3114"}, machine: {vendor: Dell}`, False, "none[1]"},
		{"half of an arm takes nothing away", `device: {space: ata, model: "D1", firmware: "1"}, adapter: {pci: "1095:3114"}, machine: {vendor: HP}`, True, ""},
		{"unknown keeps unknown", `device: {space: ata, model: "D1"}, adapter: {pci: "1095:3112"}`, Unknown, "none[0]"},
		{"unknown machine keeps unknown", `device: {space: ata, model: "D1", firmware: "1"}, adapter: {pci: "1095:3114"}`, Unknown, "none[1]"},
		{"unknown and taken away", `device: {space: ata, model: "D1", firmware: "2"}`, False, "none[0]"},
		{"no match is no match", `device: {space: ata, model: "E1"}`, False, "device.model"},
	})
}

func TestMatchArms(t *testing.T) {
	arms := []string{`{device: {space: ata, model: "A"}}`, `{device: {space: nvme, model: "A"}}`, `{device: {space: ata}, path: [libata], adapter: {driver: ahci}}`}
	subjects := []string{
		`device: {space: ata, model: "A"}`, `device: {space: nvme, model: "A"}`, `device: {space: ata, model: "B"}, path: libata, adapter: {driver: ahci}`,
		`device: {space: ata, model: "B"}, path: libata`, `device: {space: ata, model: "B"}, path: scsi`, `device: {space: ata}, path: scsi`, ``, `device: {space: nvme, model: "B"}`,
	}
	want := []Truth{True, True, True, Unknown, False, Unknown, Unknown, False}
	for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		var any []string
		for _, i := range order {
			any = append(any, arms[i])
		}
		e := entryOf(t, "match: {any: ["+strings.Join(any, ", ")+"]}")
		for i, sub := range subjects {
			m := e.Match(subjectOf(t, sub))
			if m.Truth != want[i] {
				t.Errorf("arms %v, subject {%s}: got %v, want %v", order, sub, m.Truth, want[i])
			}
			if m.Arm < 0 || m.Arm >= len(arms) || conjunction(e.Where.Any[m.Arm].predicates(subjectOf(t, sub))) != m.Truth {
				t.Errorf("arms %v, subject {%s}: arm %d is not the one that decided", order, sub, m.Arm)
			}
		}
	}
	t.Run("of false arms the nearest is shown", func(t *testing.T) {
		e := entryOf(t, `match: {any: [{device: {space: nvme, model: "A"}}, {device: {space: ata, model: "A", firmware: "1"}}]}`)
		if m := e.Match(subjectOf(t, `device: {space: ata, model: "A", firmware: "2"}`)); m.Arm != 1 {
			t.Errorf("arm %d is shown, want 1", m.Arm)
		}
	})
}

func TestMatchWithdrawn(t *testing.T) {
	e := armEntry(t, ataSeagate)
	e.Withdrawn = "counted twice"
	runMatch(t, e, []matchCase{{"never matches", ataSeagate, False, "withdrawn"}})
}

// Arms, patterns and predicates are also read by people: none of the keys may
// be empty, and an unknown one says why.
func checkMatch(t *testing.T, e *Entry, sub *Subject) Match {
	t.Helper()
	m := e.Match(sub)
	least := True
	for _, p := range m.Predicates {
		least = min(least, p.Truth)
		if p.Key == "" {
			t.Errorf("%s: predicate without a key: %+v", e.ID, p)
		}
		if p.Truth == Unknown && p.Why == "" {
			t.Errorf("%s: predicate is unknown without a reason: %+v", e.ID, p)
		}
	}
	if m.Truth != least {
		t.Errorf("%s: truth %v, but the predicates shown say %v: %+v", e.ID, m.Truth, least, m.Predicates)
	}
	return m
}

// propertyEntries ask every kind of predicate.
func propertyEntries(t testing.TB) []*Entry {
	bodies := []string{
		`match: {any: [{device: {space: ata, model: "A*", firmware: {bad: ["1"], fixed: ["2"]}}, adapter: {pci: "1b4b:9230:1028:*"}}]}`,
		`match: {any: [{device: {space: ata, model: "ABCDEFGHIJKLMNO*", firmware: "ABCD0001"}, path: [libata, sat-firmware]}]}`,
		`match: {any: [{device: {space: ata, model: "ABCDEFGHIJKLMNOPQR"}}, {device: {space: ata, model: "ABCDEFGHIJKLMNO QR"}}]}`,
		`match: {any: [{device: {space: ata, firmware: {below: "3", order: numeric}}, adapter: {driver: ahci, class: "0106??"}}]}`,
		`match: {any: [{device: {space: scsi, vendor: "V*", product: "P", product_is: prefix, revision: ["1", "2"]}}]}`,
		`match: {any: [{device: {space: scsi, vendor: "ATA"}}, {device: {space: nvme, model: "A"}, kernel: {since: "6.1", until: "6.12"}}]}`,
		`match: {any: [{usb: {id: "174c:55aa", bcd: "0000-0100", speed: super}}], none: [{usb: {manufacturer: "M"}}]}`,
		`match: {any: [{machine: {vendor: "Dell*", board: "0"}, stack: {over: [dm-crypt], md_level: [5]}}], none: [{path: [nvme-pci]}, {adapter: {revision: "1"}}]}`,
		`match: {any: [{stack: {kind: [md], md_level: [5]}}, {stack: {kind: [dm], target: [linear]}}]}
kernel: {range: [{tree: mainline, introduced: "6.1", fixed: "6.17"}]}`,
		`match: {any: [{path: [libata, scsi, uas, nvme-pci]}], none: [{device: {space: ata, firmware: "1"}}, {device: {space: scsi, product: "P"}}]}
kernel: {range: [{tree: mainline, introduced: "6.1", fixed: null}, {tree: stable-6.12, introduced: null}]}`,
		`match: {any: [{device: {space: ata, model: "*"}}, {device: {space: scsi, product: "*"}}, {device: {space: nvme, vid: "144d"}}]}
conditions: [{key: io_kib, op: ">=", value: 4}, {key: transport, op: "!=", value: sas}]`,
	}
	entries := make([]*Entry, len(bodies))
	for i, b := range bodies {
		entries[i] = entryOf(t, b)
	}
	return entries
}

// randomSubject makes a subject that a machine could show: the path, the
// spaces and the USB device fit each other.
func randomSubject(r *rand.Rand) Subject {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	some := func(m map[string]string) map[string]string {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if r.IntN(5) == 0 {
				delete(m, k)
			}
		}
		return m
	}
	text := func(list ...string) Text { return Text{S: pick(list...), Known: r.IntN(6) > 0} }
	sub := Subject{Path: pick(append([]string{"nvme"}, Paths...)...)}
	release := func(s string) kernel.Release { k, _ := kernel.Parse(s); return k }
	sub.Kernel = release(pick("6.1", "6.0", "6.12.9", "6.17.2", "6.1.0-54-amd64", "5.14.0-503.11.1.el9_5.x86_64"))
	ata := Identity{Space: "ata", Model: text("A", "AB", "ABCDEFGHIJKLMNOPQR", "ABCDEFGHIJKLMNO QR", "ABCDEFGHIJKLMNO", "ST"), Firmware: text("1", "2", "ABCD0001", "0001", "10", "ABCD    ")}
	scsi := Identity{Space: "scsi", Vendor: text("V", "V1", "W"), Product: text("P", "P1", "Q"), Revision: text("1", "2", "3")}
	switch sub.Path {
	case "libata", "sat-firmware":
		sub.Device = ata
		// The INQUIRY strings of the same disk.
		if ata.Model.Known && ata.Firmware.Known && r.IntN(2) == 0 {
			sub.SCSI = throughSAT(ata)
		}
	case "usb-storage", "uas", "sbp2":
		sub.SCSI = scsi
		if sub.Path != "sbp2" {
			sub.USB = some(map[string]string{"vid": pick("174c", "152d"), "pid": pick("55aa", "0578"), "bcd": pick("0100", "2.00"), "speed": pick("5000", "480"), "manufacturer": pick("M", "N")})
		}
	case "scsi":
		sub.SCSI = scsi
	case "nvme", "nvme-pci", "nvme-fabrics":
		sub.Device = Identity{Space: "nvme", Model: text("A", "B"), Firmware: text("1", "2"), VID: pick("144d", "8086", ""), SSVID: pick("144d", "")}
	}
	sub.Adapter = some(map[string]string{"pci": pick("1b4b:9230:1028:1fd6", "1b4b:9230", "1b4b:9231:1028:1fd6", ""), "driver": pick("ahci", "mpt3sas"), "class": pick("010601", "0106", "010400", "0x010601"), "revision": pick("1", "2")})
	sub.Machine = some(map[string]string{"vendor": pick("Dell Inc.", "HP"), "board": pick("0", "1")})
	if r.IntN(4) > 0 {
		sub.Stack = Stack{Known: true}
		if sub.Path == "other" { // a disk is no array
			sub.Stack.Kind = pick("md", "dm", "")
			sub.Stack.Level, sub.Stack.Target = pick("", "raid5", "raid1"), pick("", "linear")
		}
		if r.IntN(2) == 0 {
			sub.Stack.Above = []StackPeer{{Kind: "dm", Target: pick("crypt", "linear")}}
		}
	}
	sub.Limits = map[string]Value{"io_kib": Number(uint64(r.IntN(8)))}
	sub.Transport = pick("sas", "sata", "")
	return sub
}

// forget returns the subject with one known field made unknown, for each.
func forget(sub Subject) map[string]Subject {
	out := map[string]Subject{}
	add := func(name string, known bool, change func(*Subject)) {
		if known {
			s := sub
			change(&s)
			out[name] = s
		}
	}
	add("device.model", sub.Device.Model.Known, func(s *Subject) { s.Device.Model = Text{} })
	add("device.firmware", sub.Device.Firmware.Known, func(s *Subject) { s.Device.Firmware = Text{} })
	add("device.vid", sub.Device.VID != "", func(s *Subject) { s.Device.VID = "" })
	add("device.ssvid", sub.Device.SSVID != "", func(s *Subject) { s.Device.SSVID = "" })
	add("scsi.vendor", sub.SCSI.Vendor.Known, func(s *Subject) { s.SCSI.Vendor = Text{} })
	add("scsi.product", sub.SCSI.Product.Known, func(s *Subject) { s.SCSI.Product = Text{} })
	add("scsi.revision", sub.SCSI.Revision.Known, func(s *Subject) { s.SCSI.Revision = Text{} })
	add("device", sub.Device.Space != "", func(s *Subject) { s.Device = Identity{} })
	add("scsi", sub.SCSI.Space != "", func(s *Subject) { s.SCSI = Identity{} })
	add("stack", sub.Stack.Known, func(s *Subject) { s.Stack = Stack{} })
	add("kernel", sub.Kernel.Known(), func(s *Subject) { s.Kernel = kernel.Release{} })
	add("path", sub.Path != "", func(s *Subject) { s.Path = "" })
	add("transport", sub.Transport != "", func(s *Subject) { s.Transport = "" })
	add("limits", len(sub.Limits) > 0, func(s *Subject) { s.Limits = nil })
	add("kernel point", sub.Kernel.PointK && sub.Kernel.Point > 0, func(s *Subject) { s.Kernel.PointK = false })
	for _, m := range []struct {
		name string
		of   func(*Subject) *map[string]string
	}{
		{"adapter", func(s *Subject) *map[string]string { return &s.Adapter }},
		{"usb", func(s *Subject) *map[string]string { return &s.USB }},
		{"machine", func(s *Subject) *map[string]string { return &s.Machine }},
	} {
		for k := range *m.of(&sub) {
			add(m.name+"."+k, true, func(s *Subject) {
				less := maps.Clone(*m.of(s))
				delete(less, k)
				*m.of(s) = less
			})
		}
	}
	return out
}

// TestForgettingOnlyLeadsToUnknown: what is not read is never reported as
// healthy, nor as ill.
func TestForgettingOnlyLeadsToUnknown(t *testing.T) {
	entries := append(propertyEntries(t), builtin(t).Entries()...)
	r := rand.New(rand.NewPCG(1, 2))
	seen := map[Truth]int{}
	lost := 0
	for range 1500 {
		sub := randomSubject(r)
		less := forget(sub)
		for _, e := range entries {
			before := checkMatch(t, e, &sub)
			seen[before.Truth]++
			for name, s := range less {
				after := e.Match(&s)
				if after.Truth != before.Truth {
					lost++
				}
				if after.Truth == before.Truth || after.Truth == Unknown {
					continue
				}
				// A firmware is inferred from four characters, and says so.
				if name == "device.firmware" || name == "device" {
					if after.Inferred {
						continue
					}
				}
				t.Fatalf("entry %+v\nsubject %+v: %v\nwithout %s: %v\n%+v", e.Where, sub, before.Truth, name, after.Truth, after.Predicates)
			}
		}
	}
	if seen[True] < 100 || seen[False] < 100 || seen[Unknown] < 100 || lost < 100 {
		t.Errorf("answers %v, %d changed: the subjects show too little", seen, lost)
	}
}

// readRows reads a table with a header.
func readRows(t testing.TB, file string) []map[string]string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	names := strings.Split(strings.TrimPrefix(lines[0], "# "), "\t")
	var rows []map[string]string
	for _, l := range lines[1:] {
		row := map[string]string{}
		for i, f := range strings.Split(l, "\t") {
			row[names[i]] = f
		}
		rows = append(rows, row)
	}
	if len(rows) < 200 {
		t.Fatalf("%s: %d rows, want 200", file, len(rows))
	}
	return rows
}

// identities are the subjects of the tables, whole and as SCSI shows them.
func identities(t testing.TB) []Subject {
	known := func(s string) Text { return Text{S: s, Known: s != ""} }
	var subs []Subject
	for _, r := range readRows(t, "testdata/models.tsv") {
		switch id := (Identity{Space: r["transport"], Model: known(r["model"]), Firmware: known(r["firmware"])}); r["transport"] {
		case "ata":
			shown := throughSAT(id)
			if !id.Firmware.Known {
				shown.Revision = Text{}
			}
			subs = append(subs, Subject{Device: id, Path: "libata"}, Subject{Device: id}, Subject{SCSI: shown, Path: "sat-firmware"},
				Subject{Device: id, SCSI: Identity{Space: "scsi", Vendor: KnownText("SAMSUNG"), Product: KnownText("x")}, Path: "uas"})
		case "nvme":
			subs = append(subs, Subject{Device: id, Path: "nvme"}, Subject{Device: id})
		default:
			id = Identity{Space: "scsi", Vendor: known(r["vendor"]), Product: known(r["model"]), Revision: known(r["firmware"])}
			subs = append(subs, Subject{SCSI: id, Path: "scsi"})
		}
	}
	for _, r := range readRows(t, "testdata/inquiry.tsv") {
		id := Identity{Space: "scsi", Vendor: known(r["vendor"]), Product: known(r["model"]), Revision: known(r["rev"])}
		noVendor := id
		noVendor.Vendor = Text{}
		subs = append(subs, Subject{SCSI: id, Path: "scsi"}, Subject{Device: id}, Subject{SCSI: id, Path: "usb-storage"}, Subject{SCSI: noVendor}, Subject{SCSI: noVendor, Path: "libata"}, Subject{SCSI: noVendor, Path: "other"})
	}
	for _, p := range append([]string{"", "nvme"}, Paths...) {
		subs = append(subs, Subject{Path: p}, Subject{Path: p, Device: Identity{Space: "nvme"}}, Subject{Path: p, Device: Identity{Space: "usb"}})
	}
	return subs
}

func checkIndex(t *testing.T, s *Set, entries []*Entry, sub *Subject) int {
	t.Helper()
	var want, got []string
	for _, e := range entries {
		if m := e.Match(sub); m.Truth != False {
			want = append(want, fmt.Sprint(e.ID, " ", m.Truth))
		}
	}
	for _, m := range s.Match(sub) {
		got = append(got, fmt.Sprint(m.Entry.ID, " ", m.Truth))
	}
	if !slices.Equal(got, want) {
		t.Errorf("subject %+v:\n got %v\nwant %v", *sub, got, want)
	}
	return len(want)
}

// TestIndexNeverLosesAnEntry: asking the index and asking every entry is the
// same, in the same order.
func TestIndexNeverLosesAnEntry(t *testing.T) {
	db := builtin(t)
	extra := propertyEntries(t)
	slots := make([]slot, len(extra))
	rows := map[string][]indexRow{}
	for i, e := range extra {
		e.ID = fmt.Sprintf("ata-test-%02d", i)
		slots[i] = slot{id: e.ID, entry: e}
		rows[e.ID] = e.indexRows()
	}
	made, err := newSet(slots, rows)
	if err != nil {
		t.Fatal(err)
	}
	merged, err := db.Merge(made)
	if err != nil {
		t.Fatal(err)
	}
	subs := identities(t)
	r := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		sub := randomSubject(r)
		subs = append(subs, sub)
		for _, s := range forget(sub) {
			subs = append(subs, s)
		}
	}
	hits := 0
	for _, s := range []*Set{db, merged} {
		entries := s.Entries()
		for i := range subs {
			hits += checkIndex(t, s, entries, &subs[i])
		}
		if t.Failed() {
			return
		}
	}
	if hits < 1000 {
		t.Errorf("%d matches over %d subjects: the sample shows nothing", hits, len(subs))
	}
}

func FuzzMatch(f *testing.F) {
	f.Add(`device: {space: ata, model: "A*", firmware: {bad: ["1"], fixed: ["2"]}}`, `{"device": {"space": "ata", "model": "A1"}, "path": "libata"}`)
	f.Add(`usb: {id: "174c:55aa", bcd: "0000-0100"}`, `{"usb": {"vid": "174c", "bcd": "1.00"}}`)
	f.Add(`adapter: {pci: "1b4b:9230", class: "0106??"}, kernel: {since: "6.1"}`, `{"adapter": {"pci": "1b4b:9230", "class": "0106"}, "kernel": "6.1.0-54-amd64"}`)
	f.Add(`device: {space: scsi, vendor: "V", product: "P", product_is: prefix}, path: [scsi]`, `{"scsi": {"vendor": "V", "product": "P1"}, "path": "nvme"}`)
	head := "schema: 0\nid: ata-test\ntitle: a test\neffect: hang\nseverity: high\nconfidence: confirmed\n"
	f.Fuzz(func(t *testing.T, arm, subject string) {
		e, _ := parse("ata/ata-test.yaml", []byte(head+"match: {any: [{"+arm+"}]}"))
		sub, err := decodeJSON(subject)
		if e == nil || err != nil {
			return
		}
		m := checkMatch(t, e, &sub)
		s, err := newSet([]slot{{id: e.ID, entry: e}}, map[string][]indexRow{e.ID: e.indexRows()})
		if err != nil {
			t.Fatalf("index of an entry that parses: %v", err)
		}
		checkIndex(t, s, []*Entry{e}, &sub)
		twice := *e
		twice.Where.Any = []Arm{e.Where.Any[0], e.Where.Any[0]}
		if got := twice.Match(&sub).Truth; got != m.Truth {
			t.Errorf("arm twice: got %v, once %v", got, m.Truth)
		}
		// An arm that takes away what matches leaves nothing certain.
		twice.Where.None = e.Where.Any
		if got := twice.Match(&sub).Truth; got != min(m.Truth, m.Truth.Not()) {
			t.Errorf("arm and none: got %v, arm alone %v", got, m.Truth)
		}
	})
}
