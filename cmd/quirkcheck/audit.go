package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/checker/audit"
	"github.com/quirkcheck/quirkcheck/checker/enforce"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// auditFlags are those of one run of audit.
type auditFlags struct {
	to, matrix, inputs              []string
	fromText, sysroot, format, show string
	inhibit                         string
	installed, quiet                bool
	devs                            []string

	from    kernel.Release
	targets []installed
	db      *quirks.Set
	policy  checker.Policy
}

func (a *app) auditCommand() *cobra.Command {
	var o auditFlags
	cmd := &cobra.Command{
		Use:   "audit --to-kernel VERSION [DEV...]",
		Short: "Say what another kernel changes, before the upgrade: limits, verdicts, what to deploy first",
		Long: `Audit predicts what another kernel makes of every block device: the transfer
size then and why, which known quirks bite then and which no longer, which
faults of the kernel itself enter or leave, and what to deploy first. It only
reads, like scan.

NOW is queue/max_sectors_kb, THEN what it will be. A value that is not the
running kernel's own choice was set by somebody and is carried over. ~ marks a
prediction that is not certain, - one that is not known. CLASS is

  new-risk          a device becomes affected, or an affected one gets a larger
                    limit
  fixed-by-upgrade  a device is affected now, and not then
  unchanged         neither; (warn) where the limit rises past what the disk
                    ever ran with, or something else should be known
  unknown           it cannot be told

--installed takes the kernels on disk (/lib/modules, /boot) for targets, the
point release that Debian's names hide from the image or the package database.
--matrix compares several kernels in one table. --from-kernel names the kernel
of a copied tree that lacks /proc, or whose limits another kernel made.

With several --input there is a report each, and last the order in which the
hosts should go: those first on which nothing changes. Nothing on the machine
is changed, and no exit status but 1 with --inhibit-on says stop.`,
		Example: `  quirkcheck audit --to-kernel 6.18.15
  quirkcheck audit --installed --inhibit-on high
  quirkcheck audit --matrix 5.10,6.1,6.12,6.18,7.3
  quirkcheck audit --to-kernel 6.12.48+deb13-amd64 --format json sdb
  quirkcheck audit --to-kernel 6.18.15 --input web01.json.gz --input web02.json.gz
  quirkcheck audit --to-kernel 7.3 --sysroot ./copied-tree --from-kernel 6.1.190`,
		RunE: func(cmd *cobra.Command, devs []string) error {
			o.devs = devs
			return a.runAudit(cmd, o)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.to, "to-kernel", nil, "kernel `version` to go to, as uname -r or kernel.org writes it; may be repeated")
	f.StringVar(&o.fromText, "from-kernel", "", "kernel `version` that the limits were read under, where the machine does not say it")
	f.BoolVar(&o.installed, "installed", false, "go to each kernel that is installed on disk")
	f.StringSliceVar(&o.matrix, "matrix", nil, "one table of every device under these `versions`")
	f.StringVar(&o.inhibit, "inhibit-on", "none", "exit with 1 where the upgrade brings a risk of this `severity` or more: none, info, low, medium, high, critical")
	f.StringVar(&o.sysroot, "sysroot", "", "read the machine's tree from `folder`, which holds sys/, instead of /")
	f.StringArrayVar(&o.inputs, "input", nil, "read the machine from a capture in `file`, - for standard input; may be repeated: a report for each")
	f.StringSlice("overlay", nil, "add the entries in `folder` to the database; an entry of the same id replaces the built-in one")
	f.String("format", "table", "output `format`: table, json, jsonl (one line), markdown")
	f.String("show", "findings", "what the table lists: findings (all but empty loop and ram devices), or `all`, with a reason for every device")
	f.BoolP("quiet", "q", false, "print nothing; the exit status is the answer")
	cmd.MarkFlagsMutuallyExclusive("input", "sysroot")
	cmd.MarkFlagsMutuallyExclusive("input", "installed")
	cmd.MarkFlagsMutuallyExclusive("matrix", "to-kernel")
	cmd.MarkFlagsMutuallyExclusive("matrix", "installed")
	completeDevices(cmd)
	return cmd
}

func (a *app) runAudit(cmd *cobra.Command, o auditFlags) error {
	const hint = "quirkcheck audit --to-kernel 6.18.15, or --installed for the kernels on disk"
	c, err := a.config(cmd)
	if err != nil {
		return err
	}
	o.format, o.show, o.quiet = c.Format, c.Show, c.Quiet
	if !slices.Contains([]string{"table", "json", "jsonl", "markdown"}, o.format) {
		return fail(statusUsage, "", "format %q: want table, json, jsonl or markdown", o.format)
	}
	if !slices.Contains([]string{"none", "info", "low", "medium", "high", "critical"}, o.inhibit) {
		return fail(statusUsage, "", "inhibit-on %q: want none, info, low, medium, high or critical", o.inhibit)
	}
	if stdins := slices.DeleteFunc(slices.Clone(o.inputs), func(s string) bool { return s != "-" }); len(stdins) > 1 {
		return fail(statusUsage, "", "--input - can be given once")
	}
	if len(o.to)+len(o.matrix) == 0 && !o.installed {
		return fail(statusUsage, hint, "which kernel to go to is missing: --to-kernel, --installed or --matrix")
	}
	for _, text := range slices.Concat(o.to, o.matrix) {
		r, err := audit.ParseTarget(text)
		if err != nil {
			return fail(statusUsage, "", "%w", err)
		}
		t := installed{Release: r}
		if len(o.inputs) == 0 {
			t = a.onDisk(o.sysroot, t)
		}
		o.targets = append(o.targets, t)
	}
	if o.fromText != "" {
		if o.from, err = audit.ParseTarget(o.fromText); err != nil {
			return fail(statusUsage, "", "from: %w", err)
		}
	}
	if o.installed {
		list, err := installedKernels(cmp.Or(o.sysroot, "/"))
		if err != nil {
			return fail(statusFailed, "--sysroot takes the folder that holds sys/", "%w", err)
		}
		if len(list) == 0 && len(o.targets) == 0 {
			return fail(statusNothing, "name one: --to-kernel 6.18.15", "no kernel is installed in lib/modules or boot")
		}
		o.targets = append(o.targets, list...)
	}
	if o.policy, err = a.policy(c); err != nil {
		return err
	}
	if o.db, err = a.database(c.Overlay); err != nil {
		return err
	}
	if len(o.inputs) > 1 {
		return a.auditMany(cmd.Context(), o)
	}
	return a.auditOne(cmd.Context(), o)
}

// onDisk finds the point release of a target that hides it, where the machine
// has that kernel.
func (a *app) onDisk(sysroot string, t installed) installed {
	if t.PointK {
		return t
	}
	list, err := installedKernels(cmp.Or(sysroot, "/"))
	if err != nil {
		return t
	}
	if i := slices.IndexFunc(list, func(k installed) bool { return k.Raw == t.Raw }); i >= 0 {
		return list[i]
	}
	return t
}

// auditOne audits one machine.
func (a *app) auditOne(ctx context.Context, o auditFlags) error {
	input := strings.Join(o.inputs, "")
	src, err := a.open(o.sysroot, input)
	var inv *probe.Inventory
	if err == nil {
		defer src.close()
		inv, err = a.inventory(ctx, src, o.db, o.devs)
	}
	var se *statusError
	if err != nil && !(errors.As(err, &se) && se.status == statusFailed) {
		return err
	}
	failed := err
	if failed != nil {
		if o.format == "table" || o.format == "markdown" || o.quiet {
			return failed
		}
		inv = unreadMachine(failed, cmp.Or(o.sysroot, input))
	}
	one := a.audited(inv, src.setters, o)
	if failed == nil && !one.host.From().Known() {
		fmt.Fprintln(a.stderr, "quirkcheck: the running kernel is not known, so neither is which limits somebody set; --from-kernel names it")
	}
	if !o.quiet {
		if err := a.writeAudit(a.stdout, one, o); err != nil {
			return fail(statusFailed, "", "write the report: %w", err)
		}
	}
	if failed != nil {
		return failed
	}
	return silent(one.status(o))
}

// unreadMachine stands for one that could not be read, so that programs get a
// report that says so.
func unreadMachine(err error, source string) *probe.Inventory {
	return &probe.Inventory{Notes: []probe.Note{{What: "audit", State: probe.Unreadable, Why: err.Error(), Source: source}}}
}

// audited is one machine with what every target makes of it.
type audited struct {
	ref     *captureRef // among several
	host    *audit.Host
	reports []*audit.Report
	matrix  *audit.Matrix
	err     error // it could not be read
}

func (a *app) audited(inv *probe.Inventory, setters func(root string) []enforce.Setter, o auditFlags) *audited {
	h := audit.New(inv, o.db, o.policy, audit.Options{Predict: kernel.Predict, From: o.from, Setters: setters(cmp.Or(o.sysroot, "/"))})
	one := &audited{host: h}
	stamp := func(r *checker.Report) {
		r.Tool.Version = version()
		r.GeneratedAt = a.now().UTC().Format(time.RFC3339)
	}
	if len(o.matrix) > 0 {
		releases := make([]kernel.Release, len(o.targets))
		for i, t := range o.targets {
			releases[i] = t.Release
		}
		one.matrix = h.Matrix(releases)
		stamp(one.matrix.Report)
		return one
	}
	for _, t := range o.targets {
		r := h.To(t.Release)
		r.Target.Source = t.source
		stamp(r.Report)
		one.reports = append(one.reports, r)
	}
	return one
}

// status is the one place where an audit becomes an exit status.
func (one *audited) status(o auditFlags) int {
	at := quirks.Severity(o.inhibit)
	if one.matrix != nil {
		switch {
		case one.matrix.Inhibits(at):
			return statusFindings
		case len(one.matrix.Matrix) == 0:
			return statusNothing
		}
		return statusOK
	}
	status := statusOK
	for _, r := range one.reports {
		switch {
		case r.Inhibits(at):
			return statusFindings
		case len(r.Devices) == 0:
			status = statusNothing
		}
	}
	return status
}

// auditRef is a report among several.
type auditRef struct {
	Capture *captureRef `json:"capture,omitempty"`
	*audit.Report
}

// matrixRef is a matrix among several.
type matrixRef struct {
	Capture *captureRef `json:"capture,omitempty"`
	*audit.Matrix
}

// values are what JSON has of a machine.
func (one *audited) values() []any {
	if one.matrix != nil {
		return []any{matrixRef{one.ref, one.matrix}}
	}
	list := make([]any, len(one.reports))
	for i, r := range one.reports {
		list[i] = auditRef{one.ref, r}
	}
	return list
}

// fleetHead starts the JSON of several reports.
type fleetHead struct {
	SchemaVersion string       `json:"schema_version"`
	Tool          checker.Tool `json:"tool"`
}

// writeAudit writes one machine alone.
func (a *app) writeAudit(w io.Writer, one *audited, o auditFlags) error {
	list := one.values()
	switch {
	case o.format == "jsonl":
		return writeLines(w, list)
	case o.format == "json" && len(list) == 1:
		return writeJSON(w, list[0])
	case o.format == "json":
		out := newFleetJSON(w, fleetHead{checker.SchemaVersion, checker.Tool{Name: "quirkcheck", Version: version()}})
		for _, v := range list {
			if err := out.add(v); err != nil {
				return err
			}
		}
		return out.end(nil)
	}
	return a.auditText(w, one, o)
}

func writeLines(w io.Writer, list []any) error {
	for _, v := range list {
		if err := writeLine(w, v); err != nil {
			return err
		}
	}
	return nil
}

// fleetJSON writes several reports as one object, each as it comes.
type fleetJSON struct {
	w io.Writer
	n int
}

func newFleetJSON(w io.Writer, head fleetHead) *fleetJSON {
	b, _ := json.MarshalIndent(head, "", "  ") // strings alone
	out := &errWriter{w: w}
	out.line("%s,\n  \"reports\": [", bytes.TrimSuffix(b, []byte("\n}")))
	return &fleetJSON{w: w}
}

func (f *fleetJSON) add(v any) error {
	b, err := json.MarshalIndent(v, "    ", "  ")
	if err != nil {
		return err
	}
	return f.addText(escapeJSON(b))
}

// addText adds a report that is marshalled already.
func (f *fleetJSON) addText(b []byte) error {
	sep := ",\n"
	if f.n == 0 {
		sep = ""
	}
	f.n++
	_, err := fmt.Fprintf(f.w, "%s    %s", sep, b)
	return err
}

// end writes the order of the hosts, nil for none.
func (f *fleetJSON) end(order []audit.Canary) error {
	if order == nil {
		_, err := fmt.Fprint(f.w, "\n  ]\n}\n")
		return err
	}
	b, err := json.MarshalIndent(order, "  ", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f.w, "\n  ],\n  \"canary\": %s\n}\n", escapeJSON(b))
	return err
}

// fleetOrder is the last line of jsonl with several hosts.
type fleetOrder struct {
	fleetHead
	Canary []audit.Canary `json:"canary"`
}

// finished is one machine of several, written down.
type finished struct {
	text    []byte // of the format
	canary  audit.Canary
	reports []*audit.Report // for the order of the fleet
	status  int
	err     error
}

// auditMany audits captures, several at a time, and writes them in order; only
// as many as there are processors are in memory. One that cannot be read has a
// report that says so, and the others are not kept waiting.
func (a *app) auditMany(ctx context.Context, o auditFlags) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	workers := runtime.GOMAXPROCS(0)
	queue := make(chan chan finished, workers) // in the order of the inputs
	go func() {
		defer close(queue)
		slots := make(chan struct{}, workers)
		for _, input := range o.inputs {
			done := make(chan finished, 1)
			select {
			case queue <- done:
			case <-ctx.Done():
				return
			}
			slots <- struct{}{}
			go func() {
				done <- a.auditCapture(ctx, input, o)
				<-slots
			}()
		}
	}()
	step, stop := a.progressOf("auditing captures ")
	defer stop()
	var fleet audit.Fleet
	var list *fleetJSON
	head := fleetHead{checker.SchemaVersion, checker.Tool{Name: "quirkcheck", Version: version()}}
	if o.format == "json" && !o.quiet {
		list = newFleetJSON(a.stdout, head)
	}
	worst, n := statusOK, 0
	var err error
	for done := range queue {
		f := <-done
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if n++; step != nil {
			step(n, len(o.inputs))
		}
		if f.err != nil {
			worst = worse(worst, a.status(ctx, f.err))
		} else {
			worst = worse(worst, f.status)
		}
		for _, r := range f.reports {
			fleet.Add(f.canary, r)
		}
		switch {
		case o.quiet:
		case o.format == "json":
			for _, b := range bytes.Split(f.text, []byte{0}) { // no JSON holds a NUL
				err = cmp.Or(err, list.addText(b))
			}
		case o.format == "jsonl":
			_, err = a.stdout.Write(f.text)
		default:
			if n > 1 {
				f.text = append([]byte("\n"), f.text...)
			}
			_, err = a.stdout.Write(f.text)
		}
		if err != nil {
			return fail(statusFailed, "", "write the report: %w", err)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	stop()
	order := fleet.Order()
	switch {
	case o.quiet:
	case o.format == "json":
		if len(o.matrix) > 0 {
			order = nil
		}
		err = list.end(order)
	case len(o.matrix) > 0:
	case o.format == "jsonl":
		err = writeLine(a.stdout, fleetOrder{head, order})
	default:
		err = canaryText(a.stdout, order, o)
	}
	if err != nil {
		return fail(statusFailed, "", "write the report: %w", err)
	}
	return silent(worst)
}

// auditCapture audits one capture of several.
func (a *app) auditCapture(ctx context.Context, input string, o auditFlags) finished {
	f := finished{canary: audit.Canary{Input: input}}
	src, err := a.openCapture(input)
	var inv *probe.Inventory
	ref := captureRef{Input: input}
	if err == nil {
		ref.HostID, ref.Label = src.capture.Host.ID, src.capture.Host.Label
		inv, err = readInventory(ctx, src, o.db, o.devs, probe.Options{Workers: 1})
	}
	f.canary.HostID, f.canary.Label = ref.HostID, ref.Label
	if err != nil {
		f.err = err
		inv = unreadMachine(err, input)
		src.capture = nil
	}
	one := a.audited(inv, src.setters, o)
	one.ref, one.err = &ref, err
	f.status = one.status(o)
	if err == nil {
		f.reports = one.reports
	}
	if o.quiet || ctx.Err() != nil {
		return f
	}
	var b bytes.Buffer
	switch o.format {
	case "json":
		for i, v := range one.values() {
			text, err := json.MarshalIndent(v, "    ", "  ")
			if err != nil {
				f.err = err
				return f
			}
			if i > 0 {
				b.WriteByte(0)
			}
			b.Write(escapeJSON(text))
		}
	case "jsonl":
		f.err = cmp.Or(f.err, writeLines(&b, one.values()))
	default:
		name := clean(input)
		if ref.Label != "" {
			name += " (" + clean(ref.Label) + ")"
		}
		if o.format == "markdown" {
			name = "# " + markdown(name) + "\n"
		}
		fmt.Fprintln(&b, name)
		if err != nil {
			fmt.Fprintln(&b, "could not be read")
		} else {
			f.err = cmp.Or(f.err, a.auditText(&b, one, o))
		}
	}
	f.text = b.Bytes()
	return f
}
