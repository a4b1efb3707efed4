package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/quirkcheck/quirkcheck/checker/verify"
)

// planReport is the JSON of verify --dry-run: the schema verify-plan.v1.0.
type planReport struct {
	SchemaVersion string        `json:"schema_version"`
	Tool          string        `json:"tool"`
	Target        verify.Target `json:"target"`
	Plan          verify.Plan   `json:"plan"`
	Refused       []refusal     `json:"refused"`
	Notes         []string      `json:"notes"`
	EstimateS     float64       `json:"estimate_s"` // at AssumedMBs
	AssumedMBs    float64       `json:"assumed_mb_s"`
}

type refusal struct {
	Code string `json:"code"`
	What string `json:"what"`
	Why  string `json:"why"`
	Hint string `json:"hint"`
}

// assumedRate is what a plan counts with, in MB/s: a hard disk's outer tracks.
// The run's own bar measures.
const assumedRate = 150

func (a *app) printPlan(p verify.Plan, t *opened, opts verify.Options, o verifyFlags) error {
	r := planReport{SchemaVersion: jsonVersion, Tool: "quirkcheck " + version(), Plan: p, Refused: []refusal{}, Notes: append([]string{}, t.facts.Notes()...), AssumedMBs: assumedRate}
	r.Target = opts.Target
	r.Target.Extents = p.Extents
	for _, x := range t.refused {
		r.Refused = append(r.Refused, refusal{x.Code, x.What, x.Why, x.Hint})
	}
	r.EstimateS = float64(p.Bytes()) / assumedRate / 1e6
	status := statusOK
	if len(r.Refused) > 0 {
		status = statusRefused
	}
	if o.format == "json" {
		if err := writeJSON(a.stdout, r); err != nil {
			return err
		}
		return silent(status)
	}
	w := &errWriter{w: a.stdout}
	for _, x := range r.Refused {
		w.line("would be refused [%s]: %s: %s", x.Code, clean(x.What), clean(x.Why))
		if x.Hint != "" {
			w.line("    %s", clean(x.Hint))
		}
	}
	for _, n := range r.Notes {
		w.line("%s", clean(n))
	}
	for _, reach := range p.Reach {
		if reach.Sectors == 0 {
			w.line("%-8s %-10s  not to be had: %s", reach.Path, reach.Shape, clean(reach.Why))
			continue
		}
		w.line("%-8s %-10s  up to %d sectors (%s)", reach.Path, reach.Shape, reach.Sectors, clean(reach.Why))
	}
	for _, s := range p.Steps {
		w.line("%-32s %3d sizes x %d commands%s", s.What, len(s.Sizes), s.Repeats, sizeSpan(s.Sizes))
	}
	for _, e := range p.Extents {
		if p.Mode.Writes() {
			w.line("uses %s", e)
		}
	}
	w.line("writes %.1f GiB (%.2g times the target), reads %.1f GiB; about %s at %d MB/s", gib(p.WrittenBytes), p.DriveWrites, gib(p.ReadBytes),
		time.Duration(r.EstimateS*1e9).Round(time.Second), assumedRate)
	if opts.ConfirmTime > 0 {
		w.line("and then, for %s, mixed commands at the limit found, as fast as the device takes them", opts.ConfirmTime)
	}
	if o.raise {
		w.line("--raise: larger ones than these, up to max_hw_sectors_kb, will be tried")
	}
	w.line("A clean run rules out a failure rate above %.2g %% at each size (95 %%).", 100*p.Bound95)
	w.line("Nothing was written, and no command under test was sent.")
	if w.err != nil {
		return w.err
	}
	return silent(status)
}

func gib(n uint64) float64 { return float64(n) / (1 << 30) }

func sizeSpan(sizes []int) string {
	if len(sizes) == 0 {
		return ""
	}
	return fmt.Sprintf(", %d to %d sectors", sizes[0], sizes[len(sizes)-1])
}

func (a *app) printVerify(r *verify.Report, o verifyFlags) error {
	switch o.format {
	case "json":
		return writeJSON(a.stdout, r)
	case "bug-report":
		_, err := io.WriteString(a.stdout, bugReport(r))
		return err
	}
	c := a.color()
	w := &errWriter{w: a.stdout}
	sentence := clean(r.Sentence)
	switch r.Verdict {
	case verify.VerdictFaulty, verify.VerdictBroken:
		sentence = c.red(sentence)
	case verify.VerdictInconclusive:
		sentence = c.yellow(sentence)
	}
	w.line("%s: %s", clean(r.Target.Name), sentence)
	w.line("")
	if len(r.Sizes) > 0 {
		w.line("%s", sizeTable(r))
	}
	for _, f := range r.Findings {
		w.line("%s", c.red(clean(f.Op+" "+string(f.Class)))+": "+clean(f.Words))
		if f.Failure != "" {
			w.line("    %s", clean(f.Failure))
		}
		if f.Note != "" {
			w.line("    note: %s", clean(f.Note))
		}
		for _, e := range f.Examples {
			w.line("    sector %d (%d of the command): %s", e.Sector, e.InCommand, clean(e.Found))
			if e.GotHex != "" {
				w.line("        byte %3d  want %s", e.Boundary*8, e.WantHex)
				w.line("                 got  %s", e.GotHex)
			}
		}
	}
	if k := r.Confirmed; k != nil && k.Commands > 0 && k.Failures == 0 {
		w.line("confirmed: %d commands of mixed sizes up to %d sectors, %s, without a fault (rate below %.2g %% at 95 %%)", k.Commands, k.Sectors, k.Path, 100*k.Bound95)
	}
	if r.Unsettled > 0 {
		w.line("note: %d places were given up, since small reads of them disagreed: somebody else writes there", r.Unsettled)
	}
	for _, e := range r.Events {
		w.line("kernel: %s", clean(e))
	}
	for _, n := range r.Notes {
		w.line("note: %s", clean(n))
	}
	for _, n := range r.NotTested {
		w.line("not tested: %s", clean(n))
	}
	for _, n := range r.Next {
		w.line("next: %s", clean(n))
	}
	w.line("%d commands, %.1f GiB written, %.1f GiB read in %s; seed %d", r.Commands, gib(r.Written), gib(r.Read),
		time.Duration(r.ElapsedSeconds*1e9).Round(time.Second), r.Seed)
	return w.err
}

// sizeTable shows the plain setup size by size, with a bar of the median
// latency to look at; of the others only what is not clean, and how much was.
// The JSON report has every row.
func sizeTable(r *verify.Report) string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "SECTORS\tKIB\tWRITE\tREAD\tRATE BELOW\tP50\tP99\tMAX\t")
	var slowest time.Duration
	for _, s := range r.Sizes {
		slowest = max(slowest, s.Latency.P50)
	}
	groups := map[verify.Setup][]*verify.Row{}
	var order []verify.Setup
	for _, s := range r.Sizes {
		if groups[s.Setup] == nil {
			order = append(order, s.Setup)
		}
		groups[s.Setup] = append(groups[s.Setup], s)
	}
	var rest []string
	for i, su := range order {
		var clean []*verify.Row
		for _, s := range groups[su] {
			if i > 0 && s.Clean() {
				clean = append(clean, s)
				continue
			}
			sizeRow(t, s, slowest, i > 0)
		}
		if len(clean) > 0 {
			rest = append(rest, fmt.Sprintf("%s: %d sizes from %d to %d sectors clean, %d commands or batches each", su, len(clean), clean[0].Sectors, clean[len(clean)-1].Sectors,
				max(clean[0].Write.Tried, clean[0].Read.Tried)))
		}
	}
	t.Flush() // into a builder
	return strings.TrimRight(b.String()+strings.Join(rest, "\n"), "\n")
}

func sizeRow(t io.Writer, s *verify.Row, slowest time.Duration, named bool) {
	cell := func(n verify.Count) string {
		switch {
		case n.Tried == 0:
			return "-"
		case n.Failed > 0:
			return fmt.Sprintf("%d of %d BAD", n.Failed, n.Tried)
		}
		return fmt.Sprintf("%d ok", n.Tried)
	}
	how := ""
	if named {
		how = s.Setup.String()
	}
	kib := fmt.Sprint(s.Sectors / 2)
	if s.Sectors%2 != 0 {
		kib += ".5"
	}
	if s.NotReached != "" {
		fmt.Fprintf(t, "%d\t%s\tnot reached\t\t\t\t\t\t%s %s\n", s.Sectors, kib, clean(s.NotReached), how)
		return
	}
	bound := "-"
	if s.Bound95 > 0 && s.Bound95 < 1 {
		bound = fmt.Sprintf("%.2g %%", 100*s.Bound95)
	}
	if slowest > 0 && !named {
		how = strings.Repeat("#", int(20*s.Latency.P50/slowest))
	}
	if s.Slow {
		how += " (outliers)"
	}
	if s.Earlier {
		how += " (before the interruption)"
	}
	fmt.Fprintf(t, "%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Sectors, kib, cell(s.Write), cell(s.Read), bound, short(s.Latency.P50), short(s.Latency.P99), short(s.Latency.Max), how)
}

func short(d time.Duration) string {
	switch {
	case d == 0:
		return ""
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(time.Millisecond).String()
}

// bugReport is the text for a mailing list or tracker.
func bugReport(r *verify.Report) string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("Subject: %s", clean(subjectLine(r)))
	line("")
	line("%s", clean(r.Sentence))
	line("")
	for _, k := range slices.Sorted(maps.Keys(r.Target.Identity)) {
		line("%-14s %s", k, clean(r.Target.Identity[k]))
	}
	line("%-14s %s, %s", "adapter", clean(r.Target.Adapter), clean(r.Target.Driver))
	line("%-14s %s", "kernel", clean(r.Target.Kernel))
	line("%-14s %d", "max_sectors_kb", r.Target.MaxSectorsKB)
	line("%-14s %s, %s, seed %d, %d commands", "test", r.Mode, r.Level, r.Seed, r.Commands)
	line("")
	for _, f := range r.Findings {
		line("* %s %s: %s", f.Op, f.Class, clean(f.Words))
		line("  %d of %d commands failed; each size below rests on %d commands without a failure", f.Fails, f.Tries, f.Repeats)
		if f.Failure != "" {
			line("  %s", clean(f.Failure))
		}
		for _, e := range f.Examples {
			line("  sector %d, %d of the command: %s", e.Sector, e.InCommand, clean(e.Found))
			line("    want %s", e.WantHex)
			line("    got  %s", e.GotHex)
		}
	}
	line("")
	line("Sizes that reached the device as one command:")
	for _, s := range r.Sizes {
		if s.NotReached == "" && s.Write.Tried+s.Read.Tried > 0 {
			line("  %6d sectors  %-28s write %d/%d  read %d/%d failed  max %s", s.Sectors, s.Setup, s.Write.Failed, s.Write.Tried, s.Read.Failed, s.Read.Tried, short(s.Latency.Max))
		}
	}
	for _, e := range r.Events {
		line("kernel: %s", clean(e))
	}
	for _, n := range r.NotTested {
		line("Not tested: %s", clean(n))
	}
	line("Found with %s.", r.Tool)
	return b.String()
}

func subjectLine(r *verify.Report) string {
	id := r.Target.Identity
	name := strings.TrimSpace(id["ata_model"] + id["nvme_model"] + " " + id["ata_firmware"] + id["nvme_firmware"])
	if name == "" {
		name = strings.TrimSpace(id["scsi_vendor"] + " " + id["scsi_product"] + " " + id["scsi_revision"])
	}
	if name == "" {
		name = r.Target.Name
	}
	if r.SafeMaxSectors != nil && r.Verdict == verify.VerdictFaulty {
		return fmt.Sprintf("%s: faults above %d sectors", name, *r.SafeMaxSectors)
	}
	return name + ": " + string(r.Verdict)
}

func (a *app) verifyCompareCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "compare A B",
		Short: "Compare two reports: is it the disk, or the way to it",
		Long: `Compare reads two JSON reports of verify. Run one with the disk as it was, and one
with one thing changed: the port, the cable, the adapter, the kernel, or another
disk in the same place. A fault that stays with the disk is the disk's; one that
stays with the place is the adapter's, bridge's or driver's.`,
		Example: `  quirkcheck verify compare port1.json port2.json`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return fail(statusUsage, "quirkcheck verify DEV --output FILE writes one", "want two reports")
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			var r [2]*verify.Report
			for i, name := range args {
				var err error
				if r[i], err = readReport(name); err != nil {
					return err
				}
			}
			w := &errWriter{w: a.stdout}
			for i, x := range r {
				w.line("%s: %s: %s", string("AB"[i]), clean(args[i]), clean(x.Sentence))
			}
			for _, d := range verify.Compare(r[0], r[1]) {
				w.line("%s", clean(d))
			}
			return w.err
		},
	}
}

// maxReportBytes bounds the reports that are read.
const maxReportBytes = 64 << 20

// readReport reads a JSON report of verify, which may come from anywhere.
func readReport(name string) (*verify.Report, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fail(statusUsage, "", "%w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxReportBytes+1))
	if err != nil {
		return nil, fail(statusFailed, "", "%w", err)
	}
	if len(b) > maxReportBytes {
		return nil, fail(statusUsage, "", "%s: larger than %d MiB", name, maxReportBytes>>20)
	}
	var r verify.Report
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fail(statusUsage, "verify --output FILE writes a report", "%s: %w", name, err)
	}
	if err := r.Check(); err != nil {
		return nil, fail(statusUsage, "verify --output FILE writes a report", "%s: %w", name, err)
	}
	return &r, nil
}
