package kernelsource

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Draft is the start of an entry about a new row.
type Draft struct {
	ID   string
	Text string // YAML, with CHANGE-ME wherever a person has to say what is true
}

var reNotSlug = regexp.MustCompile(`[^a-z0-9]+`)

// Drafts writes a draft for each new row of libata and of the SCSI lists, with
// facts only: what the row matches, the earlier rows it takes away, flags,
// release and source. What the fault is, a person must say.
func (d *Diff) Drafts(t *Tree) []Draft {
	var out []Draft
	ids := map[string]bool{}
	for _, x := range d.Differences {
		if x.State != New || x.Family != Libata && x.Family != SCSI && x.Family != SPI {
			continue
		}
		draft := draftOf(x, t)
		for id, n := draft.ID, 2; ids[draft.ID]; n++ { // rows that differ in signs only
			old := draft.ID
			draft.ID = id + "-" + strconv.Itoa(n)
			draft.Text = strings.Replace(draft.Text, "id: "+old+"\n", "id: "+draft.ID+"\n", 1)
		}
		ids[draft.ID] = true
		out = append(out, draft)
	}
	return out
}

// quote writes a string as YAML does in double quotes.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < 0x20 || c > 0x7e:
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// deviceOf is the device block that names a row.
func deviceOf(r Row) string {
	r = plain(r)
	if r.Family == Libata {
		if r.Firmware == "" {
			return fmt.Sprintf("{space: ata, model: %s}", quote(r.Model))
		}
		return fmt.Sprintf("{space: ata, model: %s, firmware: %s}", quote(r.Model), quote(r.Firmware))
	}
	if r.Product == "" {
		return fmt.Sprintf("{space: scsi, vendor: %s}", quote(r.Vendor))
	}
	return fmt.Sprintf("{space: scsi, vendor: %s, product: %s, product_is: prefix}", quote(r.Vendor), quote(r.Product))
}

func draftOf(x Difference, t *Tree) Draft {
	rows := t.Of(x.Family)
	m := newMatcher(x.Family, rows)
	folder, what, path, example := "ata", x.row.Model, "[libata]", fmt.Sprintf("{space: ata, model: %s, firmware: \"CHANGE-ME\"}", quote(strings.Trim(x.row.Model, " ")))
	if x.Family != Libata {
		folder, what, path = "scsi", x.row.Vendor+" "+x.row.Product, "[libata, scsi, usb-storage, uas, sbp2]"
		example = fmt.Sprintf("{space: scsi, vendor: %s, product: %s}", quote(x.row.Vendor), quote(x.row.Product))
	}
	id := folder + "-" + strings.Trim(reNotSlug.ReplaceAllString(strings.ToLower(what), "-"), "-") + "-change-me"
	var b strings.Builder
	p := func(format string, a ...any) { fmt.Fprintf(&b, format+"\n", a...) }
	p("schema: 0")
	p("id: %s", id)
	p(`title: "CHANGE-ME: device, condition and effect in one line, present tense"`)
	effect := "misreport"
	if x.row.MaxSectors > 0 {
		effect = "io-error "
	}
	p("effect: %s                       # CHANGE-ME: what a user suffers; capability for a trait that is no fault", effect)
	p("severity: low                           # CHANGE-ME: critical high medium low info")
	p("confidence: confirmed                   # the kernel has the row")
	p("match:\n  any:\n    - device: %s", deviceOf(x.row))
	for i, r := range rows {
		if plain(r).Key() != x.Key {
			continue
		}
		if earlier := m.earlier(i); len(earlier) > 0 {
			p("  none:                                 # earlier rows that overlap; the table stops at the first that fits")
			for _, e := range earlier {
				p("    - device: %s", deviceOf(rows[e]))
			}
		}
		break
	}
	if x.row.MaxSectors > 0 {
		p("limits:\n  max_sectors: %d", x.row.MaxSectors)
	}
	p("kernel:\n  mitigated:\n    - path: %s", path)
	if len(x.row.Flags) > 0 {
		flags := make([]string, len(x.row.Flags))
		for i, f := range x.row.Flags {
			flags[i] = "{name: " + f + "}"
		}
		p("      flag: [%s]", strings.Join(flags, ", "))
	}
	if x.row.MaxSectors > 0 {
		p("      limits: {max_sectors: %d}", x.row.MaxSectors)
	}
	tree := "mainline"
	if t.Release.Point > 0 {
		tree = fmt.Sprintf("stable-%d.%d", t.Release.Major, t.Release.Minor)
	}
	p("      trees:\n        - {tree: %s, by: %s}", tree, quote(t.Release.Upstream()))
	p("details: \"CHANGE-ME: what happens, how to see it, what is not known\"")
	p("references:\n  - {type: source, url: \"https://git.kernel.org/pub/scm/linux/kernel/git/stable/linux.git/tree/%s?h=v%s\"}", x.File, t.Release.Upstream())
	p("examples:\n  match:\n    - subject: {device: %s, kernel: %s}", example, quote(t.Release.Upstream()))
	p("      source: \"CHANGE-ME: where this identity was seen\"")
	p("  no_match:\n    - subject: {device: %s}", example)
	p("      fails: device.%s\n      why: \"CHANGE-ME: a near miss that is not affected\"", map[string]string{"ata": "model", "scsi": "product"}[folder])
	return Draft{id, b.String()}
}
