package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/quirks"
)

func (a *app) explainCommand() *cobra.Command {
	var sysroot, input, logName string
	var near bool
	cmd := &cobra.Command{
		Use:   "explain {DEV | ID [DEV]}",
		Short: "Say why: every bound and every predicate, with value and file",
		Long: `Explain DEV shows what is known of a device and where it was read, what stands
above and below it, every bound on its transfer size, and every entry that
matches or may, predicate by predicate; then which sources disagree, and what
was not asked and why. --near adds the entries that came close, and on which
predicate they failed, --log what a kernel log tells of the device, line by
line, as scan --log does.

Explain ID shows an entry of the database or a built-in check; with DEV, how
each of its predicates came out on that device, also where it does not match,
and whether the configuration suppresses it there.`,
		Example: `  quirkcheck explain sdb
  quirkcheck explain --near sdb
  quirkcheck explain --log journal sdb
  quirkcheck explain ata-seagate-st380013as-silent-corruption
  quirkcheck explain stack-exceeds-member dm-1
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
			check, isCheck := checker.BuiltinOf(args[0])
			if e, ok := db.Entry(args[0]); ok {
				entry = e
				if len(args) == 1 {
					return a.explainEntry(e)
				}
				dev = args[1]
			} else if isCheck {
				if len(args) == 1 {
					return a.explainCheck(check)
				}
				dev = args[1]
			} else if len(args) == 2 {
				return fail(statusUsage, "quirkcheck db list lists the ids", "no entry %q", args[0])
			}
			if logName != "" && (entry != nil || isCheck) {
				return fail(statusUsage, "quirkcheck explain --log "+logName+" "+dev, "--log goes with explain DEV")
			}
			log, err := a.logOf(cmd.Context(), logName, sysroot, input)
			if err != nil {
				return err
			}
			inv, all, err := a.readFor(cmd.Context(), sysroot, input, db, []string{dev}, log)
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
			switch {
			case entry != nil:
				return a.explainMatch(entry, inv, d, p)
			case isCheck:
				return a.explainCheckOn(check, inv, d, db, p)
			}
			p.Proofs = log.proofs(all)
			r := checker.Check(inv, db, p)
			log.addTo(r, all, db)
			misses := checker.Near(checker.SubjectOf(inv, d), db)
			if err := a.explainDevice(r, inv, d, misses, near); err != nil {
				return err
			}
			return log.failed()
		},
	}
	f := cmd.Flags()
	f.StringVar(&sysroot, "sysroot", "", "read the machine's tree from `folder`, which holds sys/, instead of /")
	inputFlag(cmd, &input)
	f.StringSlice("overlay", nil, "add the entries in `folder` to the database")
	f.StringVar(&logName, "log", "", "show what the kernel log in `file` tells of the device; - is standard input, journal the running kernel's")
	f.BoolVar(&near, "near", false, "show the entries that nearly match, and on which predicate they fail")
	completeDevices(cmd)
	return cmd
}

func (a *app) explainDevice(r *checker.Report, inv *probe.Inventory, pd *probe.Device, misses []checker.NearMiss, near bool) error {
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
	if m := d.Identity.MMC; m != nil {
		w.line("  %-16s %s, manfid %s, oemid %s, fwrev %s", "mmc", clean(m.Name), clean(m.ManfID), clean(m.OEMID), clean(m.Firmware))
	}
	if t := pd.Target; t != nil {
		w.line("  %-16s %-42s %s", "target", clean(t.Name), w.file(t.Source))
		if t.Portal != "" {
			w.line("  %-16s %s", "portal", clean(t.Portal))
		}
		if t.HostPort != "" {
			w.line("  %-16s %s", "host port", clean(t.HostPort))
		}
	}
	if v := d.Volume; v != nil {
		w.line("  %-16s %-42s %s", "RAID volume", clean(cmp.Or(v.Level, "level not shown")), w.file(pd.Volume.Source))
	}
	if d.Zoned != nil {
		w.line("  %-16s %-42s %s", "zoned", clean(*d.Zoned), "queue/zoned")
	}
	if d.Hidden {
		w.line("  %-16s a path of a multipath head, without a device node", "hidden")
	}
	if r.Host.Kernel.Upstream != nil {
		w.line("  %-16s %s (%s)", "kernel", clean(*r.Host.Kernel.Release), clean(*r.Host.Kernel.Upstream))
	} else {
		w.line("  %-16s not known", "kernel")
	}
	explainStack(w, inv, d)
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
	explainProtections(w, d)
	w.line("")
	w.line("Verdict: %s", d.Verdict)
	if len(r.Findings) == 0 {
		w.line("  No entry matches. That is no promise: it says that nothing is known.")
	}
	for _, f := range r.Findings {
		w.line("")
		explainFinding(w, f)
	}
	explainSymptoms(w, r)
	explainNear(w, misses, near)
	if len(d.Disagreements) > 0 {
		w.line("")
		w.line("Sources that disagree")
		for _, dis := range d.Disagreements {
			for i, v := range dis.Values {
				used := ""
				if i == 0 {
					used = ", used"
				}
				w.line("  %-22s %-30s (%s%s)", clean(dis.What), "\""+clean(v.Value)+"\"", w.file(v.Source), used)
			}
		}
	}
	notes := slices.Concat(d.Notes, r.Notes)
	section := func(title string, notAsked bool, more ...string) {
		lines := more
		for _, n := range notes {
			if (n.State == probe.NotAsked.String()) != notAsked {
				continue
			}
			what := clean(n.What)
			if !notAsked {
				what += " (" + n.State + ")"
			}
			lines = append(lines, fmt.Sprintf("  %s: %s  (%s)", what, clean(n.Why), w.file(n.Source)))
		}
		if len(lines) > 0 {
			w.line("")
			w.line("%s", title)
			for _, l := range lines {
				w.line("%s", l)
			}
		}
	}
	section("Not asked", true)
	section("Notes", false)
	return w.err
}

// explainProtections shows what the machine itself shows of the kernel's quirks.
func explainProtections(w *errWriter, d *checker.Device) {
	if len(d.Protections) == 0 {
		return
	}
	w.line("")
	w.line("The kernel's own quirks, as far as the machine shows them")
	for _, p := range d.Protections {
		is := "not applied"
		switch {
		case p.Applied && p.By == "setting":
			is = "applied, by a setting"
		case p.Applied:
			is = "applied"
		case p.By == "setting":
			is = "not applied, by a setting"
		}
		w.line("  %-28s %-12s %s  (%s)", clean(p.Flag), is, clean(p.Text), w.file(p.Source))
	}
}

// explainStack shows what stands above and below, nearest next to the device.
func explainStack(w *errWriter, inv *probe.Inventory, d *checker.Device) {
	above, below := checker.Tree(inv, d.Name)
	s := d.Stack
	if len(above)+len(below) == 0 && s == nil {
		return
	}
	w.line("")
	w.line("Stack")
	show := func(title string, lines []checker.TreeLine) {
		if len(lines) > 0 {
			w.line("  %s", title)
		}
		for _, l := range lines {
			w.line("    %s", strings.Repeat("  ", l.Depth)+levelText(l.Level))
		}
	}
	show("above", above)
	if s != nil {
		text := s.Kind
		add := func(format string, args ...any) { text += ", " + fmt.Sprintf(format, args...) }
		if s.Name != nil {
			add("name %s", clean(*s.Name))
		}
		if s.Target != nil {
			add("target %s", *s.Target)
		}
		if s.Level != nil {
			add("level %s", clean(*s.Level))
		}
		if s.Disks != nil && s.ChunkBytes != nil {
			add("%d in chunks of %d KiB", *s.Disks, *s.ChunkBytes/1024)
		}
		if s.RequestBased != nil && *s.RequestBased {
			add("request-based: no path may have a lower limit")
		}
		w.line("  %s is %s", clean(d.Name), text)
	}
	show("below", below)
	for _, p := range d.Paths {
		w.line("  path %s over %s (%s): %s, %s", clean(p.Name), clean(p.Controller), clean(cmp.Or(p.Transport, "transport not known")),
			clean(cmp.Or(p.State, "state not known")), clean(cmp.Or(p.ANAState, "access state not known")))
	}
}

func levelText(l checker.Level) string {
	text := clean(l.Name)
	if l.Via != "" {
		text += " by " + clean(l.Via)
	}
	text += "  " + clean(l.Kind)
	if l.Target != nil {
		text += " " + clean(*l.Target)
	}
	if l.Level != nil {
		text += " " + clean(*l.Level)
	}
	if l.MaxSectorsKB != nil {
		return fmt.Sprintf("%s, max_sectors_kb %d", text, *l.MaxSectorsKB)
	}
	return text + ", max_sectors_kb not known"
}

// nearShown bounds the list of entries that nearly match.
const nearShown = 10

func explainNear(w *errWriter, misses []checker.NearMiss, near bool) {
	switch {
	case !near && len(misses) > 0:
		w.line("")
		w.line("Nearly matched: %d; --near says which, and what failed", len(misses))
		return
	case !near:
		return
	}
	w.line("")
	w.line("Nearly matched")
	if len(misses) == 0 {
		w.line("  no entry came close")
	}
	for i, n := range misses {
		if i == nearShown {
			w.line("  and %d more: quirkcheck db match", len(misses)-nearShown)
			break
		}
		w.line("  %s: %s", n.Match.Entry.ID, clean(n.Match.Entry.Title))
		for _, p := range n.Failed {
			w.line("    failed on %s: wants %s, is %s", clean(p.Key), clean(p.Want), gotText(p))
		}
	}
}

func gotText(p quirks.Predicate) string {
	if p.Got == "" && p.Truth == quirks.Unknown {
		return "unknown"
	}
	return "\"" + clean(p.Got) + "\""
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
	explainWhy(w, f)
	explainOutcome(w, f)
	for _, r := range f.References {
		w.line("  %s: %s", clean(r.Type), clean(r.URL))
	}
}

// explainWhy shows a finding's predicates.
func explainWhy(w *errWriter, f checker.Finding) {
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
}

// explainOutcome shows what was found and wanted, and what protects.
func explainOutcome(w *errWriter, f checker.Finding) {
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
	for _, s := range f.Evidence {
		w.line("  evidence: %s", clean(s))
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

func (a *app) explainMatch(e *quirks.Entry, inv *probe.Inventory, d *probe.Device, p checker.Policy) error {
	w := &errWriter{w: a.stdout, short: shortener(d)}
	sub := checker.SubjectOf(inv, d)
	m, f := checker.Explain(sub, e, p)
	w.line("%s on %s: %s", e.ID, clean(d.Name), f.Verdict)
	for _, p := range m.Predicates {
		line := fmt.Sprintf("  [%-7s] %-18s wants %s, is %s", p.Truth, clean(p.Key), clean(p.Want), gotText(p))
		if source := checker.SourceOf(inv, d, p.Key); source != "" {
			line += "  (" + w.file(source) + ")"
		}
		w.line("%s", line)
		if p.Why != "" {
			w.line("            %s", clean(p.Why))
		}
	}
	if f.Verdict == checker.Suppressed {
		f.Advice = nil // told below
	}
	if f.Verdict != checker.NotAffected {
		explainOutcome(w, f)
	}
	explainSuppression(w, p.Suppressions(sub, e.ID))
	return w.err
}

// explainSuppression lists the configuration's rules about a quirk, with why
// one does not hold.
func explainSuppression(w *errWriter, rules []checker.SuppressionOf) {
	for _, s := range rules {
		until := s.Until.Format(time.DateOnly)
		switch {
		case s.OtherModel:
			w.line("  the suppression of model %s does not concern this device: %s", clean(s.Model), clean(s.Reason))
		case s.Expired:
			w.line("  a suppression held until %s and has expired: %s", until, clean(s.Reason))
		default:
			w.line("  suppressed by the configuration until %s: %s", until, clean(s.Reason))
		}
	}
}

func (a *app) explainCheck(c checker.Builtin) error {
	w := &errWriter{w: a.stdout}
	w.line("%s: %s", c.ID, c.Title)
	w.line("  built-in check, %s, %s", cmp.Or(string(c.Effect), "effect of the entry concerned"), c.Severity)
	w.line("")
	w.line("%s", wrap(c.About, 78))
	w.line("")
	for _, r := range c.References {
		w.line("  %s: %s (%s)", r.Type, r.URL, r.Note)
	}
	w.line("See: quirkcheck explain %s DEV (on a device)", c.ID)
	return w.err
}

func (a *app) explainCheckOn(c checker.Builtin, inv *probe.Inventory, d *probe.Device, db *quirks.Set, p checker.Policy) error {
	w := &errWriter{w: a.stdout, short: shortener(d)}
	sub := checker.SubjectOf(inv, d)
	f, fires := checker.JudgeCheck(sub, db, p, c.ID)
	if !fires {
		w.line("%s on %s: %s", c.ID, clean(d.Name), checker.NotAffected)
		w.line("%s", wrap(c.About, 78))
	} else {
		w.line("%s on %s: %s", c.ID, clean(d.Name), f.Verdict)
		explainWhy(w, f)
		if f.Verdict == checker.Suppressed {
			f.Advice = nil // told below
		}
		explainOutcome(w, f)
	}
	explainSuppression(w, p.Suppressions(sub, c.ID))
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
