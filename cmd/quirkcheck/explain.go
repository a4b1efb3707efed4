package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/quirks"
)

func (a *app) explainCommand() *cobra.Command {
	var sysroot string
	cmd := &cobra.Command{
		Use:   "explain {DEV | ID [DEV]}",
		Short: "Say why: every bound and every predicate, with value and file",
		Long: `Explain DEV shows what is known of a device and where it was read, every bound
on its transfer size, and every entry that matches or may, predicate by
predicate. Explain ID shows an entry of the database; with DEV, how each of its
predicates came out on that device, also where it does not match.`,
		Example: `  quirkcheck explain sdb
  quirkcheck explain ata-seagate-st380013as-silent-corruption
  quirkcheck explain ata-seagate-st380013as-silent-corruption sdc`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.config(cmd)
			if err != nil {
				return err
			}
			p, err := a.policy(c)
			if err != nil {
				return err
			}
			db, err := a.database(c.Overlay)
			if err != nil {
				return err
			}
			var entry *quirks.Entry
			dev := args[0]
			if e, ok := db.Entry(args[0]); ok {
				entry = e
				if len(args) == 1 {
					return a.explainEntry(e)
				}
				dev = args[1]
			} else if len(args) == 2 {
				return fail(statusUsage, "quirkcheck db list lists the ids", "no entry %q", args[0])
			}
			inv, err := a.read(cmd.Context(), sysroot, db, []string{dev})
			if err != nil {
				return err
			}
			if len(inv.Devices) == 0 {
				why := "vanished"
				if len(inv.Notes) > 0 {
					why = inv.Notes[0].Why
				}
				return fail(statusFailed, "quirkcheck scan lists what is there now", "%s: %s", dev, why)
			}
			d := inv.Devices[0]
			if entry != nil {
				return a.explainMatch(entry, inv, d)
			}
			r := checker.Check(inv, db, p)
			return a.explainDevice(r, d)
		},
	}
	f := cmd.Flags()
	f.StringVar(&sysroot, "sysroot", "", "read the machine's tree from `folder`, which holds sys/, instead of /")
	f.StringSlice("overlay", nil, "add the entries in `folder` to the database")
	completeDevices(cmd)
	return cmd
}

func (a *app) explainDevice(r *checker.Report, pd *probe.Device) error {
	d := r.Devices[0]
	w := &errWriter{w: a.stdout, short: shortener(pd)}
	w.line("%s: %s, via %s", clean(d.Name), clean(identityText(d)), clean(viaText(d)))
	w.line("read below %s", clean(pd.SysPath))
	w.line("")
	w.line("Identity")
	part := func(name string, v probe.Value[string]) {
		switch v.State {
		case probe.Known:
			w.line("  %-16s %-42s %s", name, "\""+clean(v.V)+"\"", w.file(v.Source))
		case probe.Unreadable:
			w.line("  %-16s could not be read: %s  (%s)", name, clean(v.Err.Error()), w.file(v.Source))
		}
	}
	part("ata.model", pd.ATAModel)
	part("ata.firmware", pd.ATAFirmware)
	part("scsi.vendor", pd.Vendor)
	part("scsi.product", pd.Product)
	part("scsi.revision", pd.Revision)
	part("nvme.model", pd.NVMeModel)
	part("nvme.firmware", pd.NVMeFirmware)
	if d.Identity.USB != nil && d.Identity.USB.VID != nil && d.Identity.USB.PID != nil {
		w.line("  %-16s %s:%s", "usb", clean(*d.Identity.USB.VID), clean(*d.Identity.USB.PID))
	}
	if ad := pd.Adapter; ad.PCI != "" || ad.Driver != "" {
		w.line("  %-16s %-42s %s", "adapter", clean(strings.TrimSpace(ad.Driver+" "+ad.PCI+" "+ad.Host)), clean(ad.SysPath))
	}
	if pd.Path != "" {
		w.line("  %-16s %s", "path", pd.Path)
	}
	if r.Host.Kernel.Upstream != nil {
		w.line("  %-16s %s (%s)", "kernel", clean(*r.Host.Kernel.Release), clean(*r.Host.Kernel.Upstream))
	} else {
		w.line("  %-16s not known", "kernel")
	}
	w.line("")
	w.line("Limits")
	for _, name := range []string{"queue/max_sectors_kb", "queue/max_hw_sectors_kb", "queue/logical_block_size", "queue/physical_block_size",
		"queue/max_segments", "queue/max_segment_size", "queue/minimum_io_size", "queue/optimal_io_size", "queue/read_ahead_kb"} {
		v := pd.Attr(name)
		switch v.State {
		case probe.Known:
			w.line("  %-28s %-14s %s", name, clean(v.V), w.file(v.Source))
		case probe.Absent:
			w.line("  %-28s %-14s %s", name, "absent", w.file(v.Source))
		default:
			w.line("  %-28s %-14s %s", name, v.State, w.file(v.Source))
		}
	}
	a.explainBlockLimits(w, pd)
	w.line("")
	w.line("Bounds on one transfer (512-byte sectors)")
	if len(d.Safe.Bounds) == 0 {
		w.line("  none known")
	}
	for _, b := range d.Safe.Bounds {
		w.line("  %10d  %s  (%s)", b.MaxSectors, clean(b.Reason), w.file(b.Source))
	}
	advised := "none"
	if d.Recommended.MaxSectorsKB != nil {
		advised = fmt.Sprintf("max_sectors_kb %d", *d.Recommended.MaxSectorsKB)
	}
	w.line("  advised: %s", advised)
	for _, s := range d.Recommended.Because {
		w.line("    %s", clean(s))
	}
	w.line("")
	w.line("Verdict: %s", d.Verdict)
	if len(r.Findings) == 0 {
		w.line("  No entry matches. That is no promise: it says that nothing is known.")
	}
	for _, f := range r.Findings {
		w.line("")
		explainFinding(w, f)
	}
	if len(d.Notes) > 0 {
		w.line("")
		w.line("Notes")
		for _, n := range d.Notes {
			w.line("  %s (%s): %s  (%s)", clean(n.What), n.State, clean(n.Why), w.file(n.Source))
		}
	}
	return w.err
}

// shortener cuts the folders that all files of a device share: device/ stands
// for the one its link leads to.
func shortener(pd *probe.Device) func(string) string {
	device := pd.DevicePath()
	return func(source string) string {
		if rest, ok := strings.CutPrefix(source, pd.SysPath+"/"); ok {
			return rest
		}
		if rest, ok := strings.CutPrefix(source, device+"/"); ok && device != "" {
			return "device/" + rest
		}
		return source
	}
}

func (a *app) explainBlockLimits(w *errWriter, pd *probe.Device) {
	b := pd.BlockLimits
	if b.State != probe.Known {
		if pd.Vendor.Ok() {
			w.line("  %-28s %-14s %s", "VPD B0h", b.State, w.file(b.Source))
		}
		return
	}
	text := func(n uint32, ok bool) string {
		if !ok {
			return "no limit"
		}
		return fmt.Sprintf("%d blocks", n)
	}
	w.line("  %-28s %-14s %s", "MAXIMUM TRANSFER LENGTH", text(b.V.MaxTransferBlocks()), w.file(b.Source))
	w.line("  %-28s %-14s %s", "OPTIMAL TRANSFER LENGTH", text(b.V.OptimalTransferBlocks()), w.file(b.Source))
}

func explainFinding(w *errWriter, f checker.Finding) {
	w.line("%s: %s", clean(f.Quirk), clean(f.Title))
	conf := ""
	if f.Confidence != "" {
		conf = ", " + f.Confidence
	}
	w.line("  %s, %s, %s%s", f.Verdict, clean(string(f.Effect)), f.Severity, clean(conf))
	for _, y := range f.Why {
		got := "unknown"
		if y.Got != nil {
			got = "\"" + clean(*y.Got) + "\""
		}
		line := fmt.Sprintf("  [%-7s] %-18s wants %s, is %s", y.Truth, clean(y.Key), clean(y.Want), got)
		if y.Source != "" {
			line += "  (" + w.file(y.Source) + ")"
		}
		w.line("%s", line)
		if y.Why != "" {
			w.line("            %s", clean(y.Why))
		}
	}
	if f.Observed != nil {
		w.line("  observed: %s", clean(*f.Observed))
	}
	if f.Wanted != nil {
		w.line("  wanted:   %s", clean(*f.Wanted))
	}
	if m := f.MitigatedBy; m != nil {
		pinned := "not pinned: nothing keeps it so"
		if m.Pinned {
			pinned = "pinned"
		}
		w.line("  protected by: %s (%s, %s)", clean(m.Text), m.Scope, pinned)
	}
	for _, s := range f.Advice {
		w.line("  %s", clean(s))
	}
	for _, r := range f.References {
		w.line("  %s: %s", clean(r.Type), clean(r.URL))
	}
}

func (a *app) explainEntry(e *quirks.Entry) error {
	w := &errWriter{w: a.stdout}
	w.line("%s: %s", e.ID, clean(e.Title))
	w.line("  %s, %s, %s", clean(string(e.Effect)), e.Severity, clean(e.Confidence))
	if n, ok := e.MaxSectors(); ok {
		w.line("  limit: %d sectors of 512 bytes (max_sectors_kb %d)", n, n/2)
	}
	if e.Withdrawn != "" {
		w.line("  withdrawn: %s", clean(e.Withdrawn))
	}
	if e.Details != "" {
		w.line("")
		w.line("%s", wrap(clean(strings.TrimSpace(strings.ReplaceAll(e.Details, "\n", " "))), 78))
		w.line("")
	}
	for _, av := range e.Avoid {
		w.line("  never sent: %s (%s)", clean(av.Command), clean(av.Why))
	}
	for _, r := range e.References {
		w.line("  %s: %s", clean(r.Type), clean(r.URL))
	}
	w.line("See: quirkcheck db show %s (the whole entry), quirkcheck explain %s DEV (against a device)", e.ID, e.ID)
	return w.err
}

func (a *app) explainMatch(e *quirks.Entry, inv *probe.Inventory, d *probe.Device) error {
	w := &errWriter{w: a.stdout, short: shortener(d)}
	sub := checker.SubjectOf(inv, d)
	m := e.Match(sub)
	w.line("%s on %s: %s", e.ID, clean(d.Name), checker.VerdictOf(sub, e))
	for _, p := range m.Predicates {
		got := "unknown"
		if p.Got != "" || p.Truth != quirks.Unknown {
			got = "\"" + clean(p.Got) + "\""
		}
		line := fmt.Sprintf("  [%-7s] %-18s wants %s, is %s", p.Truth, clean(p.Key), clean(p.Want), got)
		if source := checker.SourceOf(inv, d, p.Key); source != "" {
			line += "  (" + w.file(source) + ")"
		}
		w.line("%s", line)
		if p.Why != "" {
			w.line("            %s", clean(p.Why))
		}
	}
	return w.err
}

// wrap breaks text at blanks into lines of at most width bytes.
func wrap(text string, width int) string {
	var b strings.Builder
	n := 0
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case n+1+len(word) > width:
			b.WriteByte('\n')
			n = 0
		default:
			b.WriteByte(' ')
			n++
		}
		b.WriteString(word)
		n += len(word)
	}
	return b.String()
}
