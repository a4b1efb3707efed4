package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/quirkcheck/quirkcheck/quirks"
)

// familyStats counts the entries of one family: a table of the kernel, by the
// flags the entries name, or the field, for those that no table has.
type familyStats struct {
	Family   string         `json:"family"`
	Entries  int            `json:"entries"`
	Rows     int            `json:"rows"`  // identities that arms name
	Flags    int            `json:"flags"` // distinct flags of the kernel, old and new names
	Severity map[string]int `json:"severity"`
	Effect   map[string]int `json:"effect"`
}

// flagFamilies maps the start of a flag's name to the table it is from.
var flagFamilies = []struct{ prefix, family string }{
	{"ATA_", "libata"}, {"SPI_BLIST_", "scsi-spi"}, {"BLIST_", "scsi"}, {"US_FL_", "usb"}, {"NVME_QUIRK_", "nvme"}, {"SIL_QUIRK_", "sata_sil"},
}

func (a *app) dbStatsCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "stats",
		Short:   "Count the entries: by the kernel's tables, effect and severity",
		Example: "  quirkcheck db stats\n  quirkcheck db stats --format json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "table" && format != "json" {
				return fail(statusUsage, "", "format %q: want table or json", format)
			}
			db, err := a.dbSet(cmd)
			if err != nil {
				return err
			}
			rows := statsOf(db.Entries())
			if format == "json" {
				return writeJSON(a.stdout, rows)
			}
			tw := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', tabwriter.AlignRight)
			fmt.Fprintln(tw, "FAMILY\tENTRIES\tROWS\tFLAGS\tCRITICAL\tHIGH\tMEDIUM\tLOW\tINFO\t")
			for _, r := range rows {
				fmt.Fprintf(tw, "%s\t%d\t%d\t%d\t", r.Family, r.Entries, r.Rows, r.Flags)
				for _, s := range []quirks.Severity{quirks.Critical, quirks.High, quirks.Medium, quirks.Low, quirks.Info} {
					fmt.Fprintf(tw, "%d\t", r.Severity[string(s)])
				}
				fmt.Fprintln(tw)
			}
			return tw.Flush()
		},
	}
	cmd.Flags().StringVar(&format, "format", "table", "output `format`: table, json")
	return cmd
}

// familyOf is the kernel table that an entry's flags are from, "kernel" for an
// entry about kernels, else "field".
func familyOf(e *quirks.Entry) string {
	if e.Kernel != nil {
		for _, m := range e.Kernel.Mitigated {
			for _, f := range m.Flag {
				for _, p := range flagFamilies {
					if strings.HasPrefix(f.Name, p.prefix) {
						return p.family
					}
				}
			}
		}
		if len(e.Kernel.Range) > 0 {
			return "kernel"
		}
	}
	return "field"
}

func statsOf(entries []*quirks.Entry) []familyStats {
	by := map[string]*familyStats{}
	seen := map[string]bool{} // rows and flags counted already
	once := func(n *int, parts ...string) {
		if key := strings.Join(parts, "\x00"); !seen[key] {
			seen[key] = true
			*n++
		}
	}
	newStats := func(name string) *familyStats {
		return &familyStats{Family: name, Severity: map[string]int{}, Effect: map[string]int{}}
	}
	total := newStats("all")
	for _, e := range entries {
		if e.Withdrawn != "" {
			continue
		}
		name := familyOf(e)
		s := by[name]
		if s == nil {
			s = newStats(name)
			by[name] = s
		}
		for _, s := range []*familyStats{s, total} {
			s.Entries++
			s.Severity[string(e.Severity)]++
			s.Effect[string(e.Effect)]++
			for _, arm := range e.Where.Any {
				if d := arm.Device; d != nil {
					fw := d.Firmware.String() + d.Revision.String()
					for _, p := range slices.Concat(d.Model, d.Product) {
						once(&s.Rows, s.Family, "row", d.Space, d.Vendor.String(), p.String(), fw)
					}
					if len(d.Model)+len(d.Product) == 0 {
						once(&s.Rows, s.Family, "row", d.Space, d.Vendor.String(), "", fw)
					}
				}
			}
			if e.Kernel == nil {
				continue
			}
			for _, m := range e.Kernel.Mitigated {
				for _, f := range m.Flag {
					once(&s.Flags, s.Family, "flag", f.Name)
				}
			}
		}
	}
	var out []familyStats
	for _, s := range by {
		out = append(out, *s)
	}
	slices.SortFunc(out, func(a, b familyStats) int { return strings.Compare(a.Family, b.Family) })
	return append(out, *total)
}
