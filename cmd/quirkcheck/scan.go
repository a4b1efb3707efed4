package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/quirks"
)

func (a *app) scanCommand() *cobra.Command {
	var sysroot, logName string
	var inputs []string
	cmd := &cobra.Command{
		Use:   "scan [DEV...]",
		Short: "Check every block device against the database",
		Long: `Scan reads identity and limits of every block device from sysfs, matches them
against the database and says what is set now, what should be set, and why.
It needs no root and no network, sends no command to a device and changes
nothing.

With --input it reads what quirkcheck capture wrote on another machine. Several
captures make a report each: the table under the name of its file, json a list,
jsonl a line each, with "capture" naming file, host id and label.

DEV is a name (sdb), a /dev path, a by-id link or a partition, which is taken
as its disk. CURRENT and ADVISED are queue/max_sectors_kb. Exit status 1 means
that a device is affected at or above --fail-on; quirkcheck explain says why.

--log ties a kernel log to the devices: which commands timed out or failed, how
large they were, and whether that fits the findings. It takes a file as dmesg,
journalctl, /dev/kmsg or syslog write it, - for standard input, or journal for
the log of the running kernel. With --sysroot or one --input it is the log of
that machine. It changes no verdict and no exit status.`,
		Example: `  quirkcheck scan
  quirkcheck scan /dev/disk/by-id/ata-ST380013AS_1ABC
  quirkcheck scan --format json > report.json
  quirkcheck scan --fail-on high -q || echo "look at this machine"
  quirkcheck scan --log journal
  zcat /var/log/kern.log.2.gz | quirkcheck scan --log -
  quirkcheck scan --sysroot /mnt/copied-tree --overlay ./my-entries
  quirkcheck scan --input web01.json.gz --log web01.log
  quirkcheck scan --input web01.json.gz --input web02.json.gz --format jsonl`,
		RunE: func(cmd *cobra.Command, devs []string) error {
			c, err := a.config(cmd)
			if err != nil {
				return err
			}
			if !slices.Contains([]string{"table", "json", "jsonl"}, c.Format) {
				return fail(statusUsage, "", "format %q: want table, json or jsonl", c.Format)
			}
			if stdins := slices.DeleteFunc(slices.Clone(inputs), func(s string) bool { return s != "-" }); len(stdins) > 1 {
				return fail(statusUsage, "", "--input - can be given once")
			}
			if len(inputs) > 1 && logName != "" {
				return fail(statusUsage, "give each machine its own: quirkcheck scan --input "+inputs[0]+" --log FILE",
					"--log is the log of one machine, and --input names %d", len(inputs))
			}
			p, err := a.policy(c)
			if err != nil {
				return err
			}
			db, err := a.database(c.Overlay)
			if err != nil {
				return err
			}
			if len(inputs) > 1 {
				return a.scanMany(cmd.Context(), inputs, db, devs, c, p)
			}
			input := strings.Join(inputs, "")
			log, err := a.logOf(cmd.Context(), logName, sysroot, input)
			if err != nil {
				return err
			}
			r, failed := a.scanOne(cmd.Context(), sysroot, input, db, devs, log, p)
			if failed != nil && (r == nil || c.Format == "table" || c.Quiet) {
				return failed
			}
			if !c.Quiet {
				switch c.Format {
				case "json":
					err = writeJSON(a.stdout, r)
				case "jsonl":
					err = writeLine(a.stdout, r)
				default:
					if err = a.table(r, c.Show); err == nil && r.Log != nil {
						err = a.symptoms(r, c.Show)
					}
				}
				if err != nil {
					return fail(statusFailed, "", "write the report: %w", err)
				}
			}
			if err := cmp.Or(failed, log.failed()); err != nil {
				return err
			}
			return silent(statusOf(r, p))
		},
	}
	f := cmd.Flags()
	f.StringVar(&sysroot, "sysroot", "", "read the machine's tree from `folder`, which holds sys/, instead of /")
	f.StringArrayVar(&inputs, "input", nil, "read the machine from a capture in `file`, - for standard input; may be repeated: a report for each")
	f.StringVar(&logName, "log", "", "tie the kernel log in `file` to the devices; - is standard input, journal the running kernel's")
	cmd.MarkFlagsMutuallyExclusive("input", "sysroot")
	f.StringSlice("overlay", nil, "add the entries in `folder` to the database; an entry of the same id replaces the built-in one")
	f.String("format", "table", "output `format`: table, json, jsonl (one line)")
	f.String("show", "findings", "what the table lists: findings (all but empty loop and ram devices), `all`, or suppressed too")
	f.String("fail-on", "medium", "exit with 1 from this `severity` on: none, info, low, medium, high, critical")
	f.Bool("fail-on-unknown", false, "exit with 3 when a device is undecided")
	f.BoolP("quiet", "q", false, "print nothing; the exit status is the answer")
	completeDevices(cmd)
	return cmd
}

// read opens a machine and makes its inventory.
func (a *app) read(ctx context.Context, sysroot, input string, db *quirks.Set, devs []string) (*probe.Inventory, error) {
	inv, _, err := a.readFor(ctx, sysroot, input, db, devs, nil)
	return inv, err
}

// readFor is read; with a log, all is the inventory of the whole machine, with
// the devices' counters: a name in a log is told from others by knowing them.
func (a *app) readFor(ctx context.Context, sysroot, input string, db *quirks.Set, devs []string, log *machineLog) (inv, all *probe.Inventory, err error) {
	src, err := a.open(sysroot, input)
	if err != nil {
		return nil, nil, err
	}
	defer src.close()
	if log != nil {
		if _, err := names(src.sys, devs); err != nil {
			return nil, nil, err
		}
		if all, err = a.inventoryWith(ctx, src, db, nil, probe.Options{Counters: true}); err != nil || len(devs) == 0 {
			return all, all, err
		}
	}
	inv, err = a.inventory(ctx, src, db, devs)
	return inv, all, err
}

// scanOne makes the report of a machine. Where the machine could not be read
// there is an error of statusFailed, and a report that says so for programs.
func (a *app) scanOne(ctx context.Context, sysroot, input string, db *quirks.Set, devs []string, log *machineLog, p checker.Policy) (*checker.Report, error) {
	inv, all, err := a.readFor(ctx, sysroot, input, db, devs, log)
	var se *statusError
	if err != nil && !(errors.As(err, &se) && se.status == statusFailed) {
		return nil, err
	}
	if err != nil {
		inv = &probe.Inventory{Notes: []probe.Note{{What: "scan", State: probe.Unreadable, Why: err.Error(), Source: cmp.Or(sysroot, input)}}}
	}
	if err == nil {
		p.Proofs = log.proofs(all)
	}
	r := checker.Check(inv, db, p)
	if err == nil {
		log.addTo(r, all, db)
	}
	r.Tool.Version = version()
	r.GeneratedAt = a.now().UTC().Format(time.RFC3339)
	return r, err
}

// captureReport is a report among several.
type captureReport struct {
	Capture captureRef `json:"capture"`
	*checker.Report
}

// captureRef says which capture a report is of.
type captureRef struct {
	Input  string `json:"input"`
	HostID string `json:"host_id,omitempty"`
	Label  string `json:"label,omitempty"`
}

// scanMany reports on captures one by one. One that cannot be read has a
// report that says so, and the others are not kept waiting.
func (a *app) scanMany(ctx context.Context, inputs []string, db *quirks.Set, devs []string, c config, p checker.Policy) error {
	out := &errWriter{w: a.stdout}
	worst := statusOK
	for i, input := range inputs {
		one := captureReport{Capture: captureRef{Input: input}}
		src, err := a.openCapture(input)
		var inv *probe.Inventory
		if err == nil {
			one.Capture.HostID, one.Capture.Label = src.capture.Host.ID, src.capture.Host.Label
			inv, err = a.inventory(ctx, src, db, devs)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			worst = worse(worst, a.status(ctx, err))
			inv = &probe.Inventory{Notes: []probe.Note{{What: "scan", State: probe.Unreadable, Why: err.Error(), Source: input}}}
		}
		one.Report = checker.Check(inv, db, p)
		one.Tool.Version = version()
		one.GeneratedAt = a.now().UTC().Format(time.RFC3339)
		if err == nil {
			worst = worse(worst, statusOf(one.Report, p))
		}
		if c.Quiet {
			continue
		}
		switch c.Format {
		case "json":
			b, err := json.MarshalIndent(one, "  ", "  ")
			if err != nil {
				return err
			}
			if i == 0 {
				out.line("[")
			}
			out.line("  %s%s", escapeJSON(b), strings.Repeat(",", min(1, len(inputs)-1-i)))
			if i == len(inputs)-1 {
				out.line("]")
			}
		case "jsonl":
			out.err = cmp.Or(out.err, writeLine(a.stdout, one))
		default:
			if i > 0 {
				out.line("")
			}
			name := clean(input)
			if l := one.Capture.Label; l != "" {
				name += " (" + clean(l) + ")"
			}
			out.line("%s", name)
			if err == nil && out.err == nil {
				out.err = a.table(one.Report, c.Show)
			} else {
				out.line("could not be read")
			}
		}
		if out.err != nil {
			return fail(statusFailed, "", "write the report: %w", out.err)
		}
	}
	return silent(worst)
}

// statusOrder is which status tells more, where several apply.
var statusOrder = []int{statusUsage, statusDatabase, statusFailed, statusRefused, statusFindings, statusUndecided, statusNothing}

func worse(a, b int) int {
	for _, s := range statusOrder {
		if a == s || b == s {
			return s
		}
	}
	return max(a, b)
}

// statusOf is the one place where a report becomes an exit status.
func statusOf(r *checker.Report, p checker.Policy) int {
	switch {
	case r.Fails(p):
		return statusFindings
	case p.FailOnUnknown && (r.Summary.Unknown > 0 || slices.ContainsFunc(r.Findings, func(f checker.Finding) bool { return f.Verdict == checker.Unknown })):
		return statusUndecided
	case len(r.Devices) == 0:
		return statusNothing
	}
	return statusOK
}

// writeLine writes v as JSON on one line.
func writeLine(w io.Writer, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	_, err = w.Write(append(escapeJSON(b), '\n'))
	return err
}

// writeJSON writes v indented by two blanks, with every rune a terminal could
// take for a command escaped.
func writeJSON(w io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = w.Write(append(escapeJSON(b), '\n'))
	return err
}

// table prints the report for people.
func (a *app) table(r *checker.Report, show string) error {
	byDevice := map[string][]checker.Finding{}
	for _, f := range r.Findings {
		if f.Device != nil {
			byDevice[*f.Device] = append(byDevice[*f.Device], f)
		}
	}
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "DEVICE\tIDENTITY\tVIA\tCURRENT\tADVISED\tVERDICT")
	hidden := 0
	color := a.color()
	for _, d := range r.Devices {
		if show != "all" && (d.Kind == "loop" || d.Kind == "ram") && d.SizeBytes != nil && *d.SizeBytes == 0 {
			hidden++
			continue
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t%s\n", clean(d.Name), clean(identityText(d)), clean(viaText(d)),
			kib(d.Limits.MaxSectorsKB), kib(d.Recommended.MaxSectorsKB), verdictText(d, byDevice[d.Name], show, color))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if len(r.Devices) > hidden {
		if _, err := io.WriteString(a.stdout, b.String()); err != nil {
			return err
		}
	}
	return a.footer(r, hidden, show)
}

func (a *app) footer(r *checker.Report, hidden int, show string) error {
	w := &errWriter{w: a.stdout}
	s := r.Summary
	if s.Devices == 0 {
		w.line("No block device found.")
		for _, n := range r.Notes {
			w.line("%s", clean(n.What+": "+n.Why))
		}
		return w.err
	}
	see := ""
	for _, want := range []checker.Verdict{checker.Affected, checker.Unknown, checker.Mitigated} {
		if i := slices.IndexFunc(r.Devices, func(d *checker.Device) bool { return d.Verdict == want }); i >= 0 && see == "" {
			see = " See: quirkcheck explain " + clean(r.Devices[i].Name)
		}
	}
	w.line("%d of %d devices affected.%s", s.Affected, s.Devices, see)
	for _, f := range r.Findings {
		if f.Device == nil && (f.Verdict != checker.Suppressed || show != "findings") {
			w.line("Host: %s, %s: %s. See: quirkcheck explain %s", clean(string(f.Verdict)), clean(string(f.Severity)), clean(f.Title), clean(f.Quirk))
			for _, a := range f.Why {
				if a.Truth == quirks.Unknown.String() {
					w.line("      %s", clean(a.Want))
				}
			}
		}
	}
	if s.Unknown > 0 {
		w.line("%d undecided: something could not be read; quirkcheck explain DEV says what, and how to find out.", s.Unknown)
	}
	partial := 0
	for _, d := range r.Devices {
		if d.Identity.Partial {
			partial++
		}
	}
	if partial > 0 {
		w.line("%d with a cut identity: the full model and firmware need root (hdparm -I DEV).", partial)
	}
	if s.Suppressed > 0 && show == "findings" {
		w.line("%d suppressed by configuration; --show suppressed says why.", s.Suppressed)
	}
	if hidden > 0 {
		w.line("%d empty loop and ram devices not listed; --show all lists them.", hidden)
	}
	for _, n := range groupNotes(r.Notes) {
		w.line("note: %s", clean(n))
	}
	if n := len(r.Faults); n > 0 {
		w.line("%d entries of an overlay are not used; see above.", n)
	}
	return w.err
}

// groupNotes joins notes of the same reason into one line.
func groupNotes(notes []checker.Note) []string {
	var whys []string
	whats := map[string][]string{}
	for _, n := range notes {
		why := cmp.Or(n.Why, n.State)
		if whats[why] == nil {
			whys = append(whys, why)
		}
		whats[why] = append(whats[why], n.What)
	}
	lines := make([]string, len(whys))
	for i, why := range whys {
		what := whats[why]
		if len(what) > 3 {
			what = append(what[:3:3], fmt.Sprintf("and %d more", len(what)-3))
		}
		lines[i] = strings.Join(what, ", ") + ": " + why
	}
	return lines
}

// errWriter writes lines until the first error.
type errWriter struct {
	w     io.Writer
	err   error
	short func(string) string // shortens a file name, nil: as it is
}

// file is a source as people read it.
func (e *errWriter) file(source string) string {
	if e.short != nil {
		source = e.short(source)
	}
	return clean(source)
}

func (e *errWriter) line(format string, args ...any) {
	if e.err == nil {
		_, e.err = fmt.Fprintf(e.w, format+"\n", args...)
	}
}

func kib(n *uint64) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprintf("%dK", *n)
}

// identityText is the fullest name a device has.
func identityText(d *checker.Device) string {
	join := func(parts ...*string) string {
		var out []string
		for _, p := range parts {
			if p != nil && *p != "" {
				out = append(out, *p)
			}
		}
		return strings.Join(out, " ")
	}
	id := d.Identity
	text := ""
	switch {
	case id.ATA != nil:
		text = join(id.ATA.Model, id.ATA.Firmware)
	case id.NVMe != nil:
		text = join(id.NVMe.Model, id.NVMe.Firmware)
	case id.SCSI != nil:
		text = join(id.SCSI.Vendor, id.SCSI.Product, id.SCSI.Revision)
	case id.MMC != nil:
		text = id.MMC.Name
	case len(d.Members) > 0:
		text = "over " + strings.Join(d.Members, " ")
	}
	return cmp.Or(text, "-")
}

func viaText(d *checker.Device) string {
	if d.Path != nil && (*d.Path == "uas" || *d.Path == "usb-storage") {
		return *d.Path
	}
	if d.Adapter != nil && d.Adapter.Driver != nil {
		return *d.Adapter.Driver
	}
	if d.Kind == "disk" && d.Path != nil {
		return *d.Path
	}
	return d.Kind
}

func verdictText(d *checker.Device, findings []checker.Finding, show string, color colorer) string {
	v := d.Verdict
	var of []checker.Finding
	for _, f := range findings {
		if f.Verdict == v {
			of = append(of, f)
		}
	}
	slices.SortStableFunc(of, func(a, b checker.Finding) int { return cmp.Compare(b.Severity.Rank(), a.Severity.Rank()) })
	detail := ""
	if len(of) > 0 {
		detail = fmt.Sprintf("  %s (%s)", clean(string(of[0].Effect)), of[0].Severity)
		if v == checker.Suppressed && show != "findings" && len(of[0].Advice) > 0 {
			detail += ", " + clean(of[0].Advice[0])
		}
		if of[0].MitigatedBy != nil {
			detail += ", by " + mitigationWord(of[0].MitigatedBy)
		}
		if len(of) > 1 {
			detail += fmt.Sprintf(" and %d more", len(of)-1)
		}
	}
	switch v {
	case checker.Affected:
		return color.red("AFFECTED") + detail
	case checker.Unknown:
		return color.yellow("unknown") + detail
	case checker.Mitigated:
		return "mitigated" + detail
	case checker.Suppressed:
		return "suppressed" + detail
	}
	return "no known quirk"
}

func mitigationWord(m *checker.MitigatedBy) string {
	switch m.Kind {
	case "limit":
		return "the present limit"
	case "kernel":
		return "the kernel"
	case "probe":
		return "not asking"
	}
	return m.Kind
}
