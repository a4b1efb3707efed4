package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/checker/emit"
	"github.com/quirkcheck/quirkcheck/checker/enforce"
	"github.com/quirkcheck/quirkcheck/checker/store"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// defaultState is where the journal lives.
const defaultState = "/var/lib/quirkcheck/state.db"

// jsonVersion is that of the JSON of enforce, revert and history; within 1 it
// only grows.
const jsonVersion = "1.0"

// enforceReport is the JSON of enforce.
type enforceReport struct {
	SchemaVersion string           `json:"schema_version"`
	Tool          string           `json:"tool"`
	Applied       bool             `json:"applied"`
	Plan          enforce.Plan     `json:"plan"`
	Result        *enforce.Result  `json:"result"`
	Persisted     *persisted       `json:"persisted"`
	Setters       []enforce.Setter `json:"setters"` // who else sets the value
	Recovered     []string         `json:"recovered"`
}

// revertReport is the JSON of revert.
type revertReport struct {
	SchemaVersion string `json:"schema_version"`
	Tool          string `json:"tool"`
	enforce.Result
}

// historyReport is the JSON of history.
type historyReport struct {
	SchemaVersion string       `json:"schema_version"`
	Tool          string       `json:"tool"`
	Writes        []historyRow `json:"writes"` // newest first
}

type historyRow struct {
	store.Write
	DiskSeq *uint64 `json:"diskseq"` // null: the kernel gave none
}

// persisted is what --persist did.
type persisted struct {
	File    string   `json:"file"`
	Proved  []string `json:"proved"` // devices for which udev read it
	Entries []string `json:"entries"`
}

type enforceFlags struct {
	sysroot, input, state, format string
	include                       []string
	apply, raise, stacked, shared bool
	permanent                     bool
	persist, runtime, check       bool
}

func (a *app) enforceCommand() *cobra.Command {
	var o enforceFlags
	cmd := &cobra.Command{
		Use:   "enforce [DEV...]",
		Short: "Lower max_sectors_kb to what is safe; shows the plan unless told to apply",
		Long: `Enforce plans what has to be set so that no affected device gets a request
above its safe size: device, attribute, from, to, why and risk. --apply does it:
one write an attribute, journaled before, read back after. It only lowers, and
leaves a satisfying value alone. Paths of a request-based multipath map, and LUNs
other hosts may use, are refused with what to do instead.

--persist installs a udev rule that keeps the value across reboots and hot-plug.
--input shows the plan for a recorded machine. quirkcheck revert takes the values back, quirkcheck unpersist the rule.
Exit status 6 means refused, or a value that did not read back as written.`,
		Example: `  quirkcheck enforce
  quirkcheck enforce --apply --persist
  quirkcheck enforce sdb --apply --include probable,suspected
  quirkcheck enforce --check || echo "limits are not what they should be"`,
		RunE: func(cmd *cobra.Command, devs []string) error { return a.runEnforce(cmd, devs, o) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.apply, "apply", false, "do it; without it the plan is printed")
	f.BoolVar(&o.persist, "persist", false, "also install a udev rule under "+enforce.RulesPermanent+" (with --apply)")
	f.BoolVar(&o.runtime, "runtime", false, "with --persist: until the next boot only, under "+enforce.RulesRuntime)
	f.BoolVar(&o.check, "check", false, "write nothing; exit with 6 where a value or the installed rule is not what it should be")
	f.StringSliceVar(&o.include, "include", nil, "also enforce entries of these `confidences`: probable, suspected")
	f.BoolVar(&o.raise, "allow-raise", false, "also raise a value that is below what an entry allows")
	f.BoolVar(&o.permanent, "include-permanent", false, "also settings that the drive keeps across power cycles, such as its write cache")
	f.BoolVar(&o.stacked, "allow-stacked", false, "carry out the multipath sequence: map, flushing suspend, paths, resume")
	f.BoolVar(&o.shared, "shared", false, "also LUNs over FC or iSCSI, which other hosts may use")
	f.StringVar(&o.sysroot, "sysroot", "", "read and write the tree in `folder` instead of /")
	inputFlag(cmd, &o.input)
	f.StringVar(&o.state, "state", defaultState, "journal `file`")
	f.StringVar(&o.format, "format", "table", "output `format`: table, json")
	f.StringSlice("overlay", nil, "add the entries in `folder` to the database")
	completeDevices(cmd)
	return cmd
}

func (a *app) runEnforce(cmd *cobra.Command, devs []string, o enforceFlags) error {
	ctx := cmd.Context()
	c, err := a.config(cmd)
	if err != nil {
		return err
	}
	switch {
	case o.format != "table" && o.format != "json":
		return fail(statusUsage, "", "format %q: want table or json", o.format)
	case o.runtime && !o.persist:
		return fail(statusUsage, "", "--runtime goes with --persist")
	case o.persist && !o.apply:
		return fail(statusUsage, "quirkcheck recommend --emit udev prints the rule without installing it", "--persist goes with --apply")
	case o.check && o.apply:
		return fail(statusUsage, "", "give --check or --apply, not both")
	case o.input != "" && o.apply:
		return fail(statusUsage, "enforce --input shows the plan; run --apply on the machine itself", "a capture cannot be written to")
	case o.input != "" && o.check:
		return fail(statusUsage, "enforce --input shows the plan", "--check looks at this machine's rules and journal, which a capture does not hold")
	}
	for _, i := range o.include {
		if i != "probable" && i != "suspected" {
			return fail(statusUsage, "", "include %q: want probable, suspected", i)
		}
	}
	p, err := a.policy(c)
	if err != nil {
		return err
	}
	db, err := a.database(c.Overlay)
	if err != nil {
		return err
	}
	src, err := a.open(o.sysroot, o.input)
	if err != nil {
		return err
	}
	defer src.close()
	only, err := names(src.sys, devs)
	if err != nil {
		return err
	}
	inv, err := a.inventory(ctx, src, db, nil) // all: what lies above a device decides too
	if err != nil {
		return err
	}
	r := checker.Check(inv, db, p)
	r.Tool.Version = version()
	var release kernel.Release
	if inv.Kernel.Ok() {
		release = inv.Kernel.V
	}
	plan := enforce.MakePlan(r, enforce.Options{Include: o.include, AllowRaise: o.raise, Permanent: o.permanent, AllowStacked: o.stacked, Shared: o.shared,
		Only: only, Kernel: release, PageKiB: uint64(cmp.Or(src.pageSize, os.Getpagesize())) / 1024})
	report := enforceReport{SchemaVersion: jsonVersion, Tool: version(), Plan: plan, Setters: src.setters(cmp.Or(o.sysroot, "/")), Recovered: []string{}}
	if devices := stepsKeys(plan); o.sysroot == "" && o.input == "" && len(devices) > 0 {
		openers := enforce.Openers(devices)
		for _, dev := range devices {
			if guests := enforce.GuestUses(openers[dev]); len(guests) > 0 {
				report.Plan.Warnings = append(report.Plan.Warnings, dev+": a guest's disk, held by "+strings.Join(guests, ", ")+"; the value here limits what reaches the disk, the guest shows its own")
			}
		}
	}
	status := statusOK
	if len(plan.Refused) > 0 {
		status = statusRefused
	}
	if o.apply {
		s, err := a.apply(ctx, &report, r, db, src, release, o)
		status = max(status, s)
		if err != nil {
			return errors.Join(a.printEnforce(report, o), err)
		}
	} else if o.check {
		stale, err := a.staleRule(ctx, within(r, plan), db, release, o)
		if err != nil {
			return err
		}
		report.Plan.Warnings = append(report.Plan.Warnings, stale...)
		if len(plan.Steps) > 0 || len(stale) > 0 {
			status = statusRefused
		}
	}
	if err := a.printEnforce(report, o); err != nil {
		return err
	}
	return silent(status)
}

// names resolves the device arguments, nil for none.
func names(sys fs.FS, devs []string) ([]string, error) {
	var only []string
	for _, dev := range devs {
		name, err := probe.ResolveName(sys, dev)
		if err != nil {
			return nil, fail(statusUsage, "quirkcheck scan lists the devices of this machine", "%w", err)
		}
		if !slices.Contains(only, name) {
			only = append(only, name)
		}
	}
	return only, nil
}

// journal opens the state and takes its lock. A run that was killed is settled
// first.
func (a *app) journal(ctx context.Context, env enforce.Env, state, command string) (s *store.Store, unlock func(), recovered []string, err error) {
	lock, err := store.Lock(state, command)
	if err != nil {
		var held *store.HeldError
		if errors.As(err, &held) {
			return nil, nil, nil, fail(statusFailed, "wait for it to end", "%w", err)
		}
		return nil, nil, nil, fail(statusFailed, cmp.Or(store.Hint(err), "--state names another file"), "%w", err)
	}
	s, err = store.Open(state)
	if err != nil {
		lock.Unlock()
		return nil, nil, nil, fail(statusFailed, cmp.Or(store.Hint(err), "--state names another file")+"; nothing was written to any device", "%w", err)
	}
	unlock = func() { s.Close(); lock.Unlock() }
	pending, err := s.Pending(ctx, env.BootID)
	if err == nil {
		recovered, err = enforce.Recover(ctx, pending, env, s)
	}
	if err != nil {
		unlock()
		return nil, nil, recovered, fail(statusFailed, "quirkcheck history shows the journal", "%w", err)
	}
	return s, unlock, recovered, nil
}

// env is the machine for enforce.
func (a *app) env(sys fs.FS, sysroot string) (enforce.Env, error) {
	boot, err := enforce.SysAttrs(cmp.Or(sysroot, "/")).Read("proc/sys/kernel/random/boot_id")
	if err != nil {
		if sysroot == "" {
			return enforce.Env{}, fail(statusFailed, "", "read /proc/sys/kernel/random/boot_id: %w", err)
		}
		boot = "tree " + sysroot
	}
	var maps enforce.Maps = enforce.Dmsetup{}
	if sysroot != "" {
		maps = enforce.NoMaps{}
	}
	attrs := enforce.SysAttrs(cmp.Or(sysroot, "/"))
	return enforce.Env{
		Attrs: attrs, Maps: maps, Lowest: attrs.LowestBelow, BootID: boot, Tool: version(), Now: a.now,
		Run: fmt.Sprintf("%d-%d", a.now().Unix(), os.Getpid()),
		Identify: func(ctx context.Context, device string) (enforce.Key, error) {
			inv, err := probe.Read(ctx, sys, probe.Options{Only: []string{device}, Workers: 1})
			if err != nil {
				return enforce.Key{}, err
			}
			if len(inv.Devices) == 0 {
				return enforce.Key{}, errors.New("the device is gone")
			}
			d := checker.DeviceOf(inv, inv.Devices[0])
			return enforce.Key{Device: device, DiskSeq: d.Limits.DiskSeq, Identity: enforce.IdentityOf(d)}, nil
		},
	}, nil
}

func (a *app) apply(ctx context.Context, report *enforceReport, r *checker.Report, db *quirks.Set, src source, release kernel.Release, o enforceFlags) (status int, err error) {
	env, err := a.env(src.sys, o.sysroot)
	if err != nil {
		return statusFailed, err
	}
	report.Applied = true
	report.Result = &enforce.Result{Steps: []enforce.StepResult{}}
	if _, err := os.Stat(o.state); len(report.Plan.Steps) == 0 && !o.persist && errors.Is(err, fs.ErrNotExist) {
		return statusOK, nil // nothing to do, and no run before this one to settle
	}
	s, unlock, recovered, err := a.journal(ctx, env, o.state, "enforce --apply")
	report.Recovered = append(report.Recovered, recovered...)
	if err != nil {
		return statusFailed, err
	}
	defer unlock()
	if len(report.Plan.Steps) > 0 {
		res, err := enforce.Apply(ctx, report.Plan, env, s)
		report.Result = &res
		if err != nil {
			return statusInterrupted, err
		}
		if !res.Complete() {
			status = statusRefused
		}
	}
	if o.persist && enforce.CrashKernelLoaded(env.Attrs) {
		report.Plan.Warnings = append(report.Plan.Warnings, "a crash kernel is loaded: it boots from an initrd of its own, which must carry the rule too (reload kdump after building it)")
	}
	if o.persist {
		if err := a.persist(ctx, report, s, r, db, release, o); err != nil {
			return statusFailed, err
		}
	}
	return status, nil
}

// within is the report with the findings of the devices a plan sets or found
// satisfied: what was refused or not asked for gets no rule either.
func within(r *checker.Report, p enforce.Plan) *checker.Report {
	keep := slices.Concat(stepsKeys(p), satisfiedKeys(p))
	out := *r
	out.Findings = slices.DeleteFunc(slices.Clone(r.Findings), func(f checker.Finding) bool { return f.Device == nil || !slices.Contains(keep, *f.Device) })
	return &out
}

// rules are the udev rules for what enforce would hold.
func rules(r *checker.Report, db *quirks.Set, release kernel.Release, include []string) (text string, err error) {
	return emit.Udev(r, db, emit.Options{ToolVersion: version(), Kernel: release, Include: include})
}

func rulesDir(o enforceFlags) string {
	dir := enforce.RulesPermanent
	if o.runtime {
		dir = enforce.RulesRuntime
	}
	return absolute(o.sysroot, dir)
}

// absolute is a folder of the machine's tree as the journal names it.
func absolute(sysroot, dir string) string {
	path := filepath.Join(cmp.Or(sysroot, "/"), dir)
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

func (a *app) persist(ctx context.Context, report *enforceReport, s *store.Store, r *checker.Report, db *quirks.Set, release kernel.Release, o enforceFlags) error {
	text, err := rules(within(r, report.Plan), db, release, o.include)
	if err != nil {
		return fail(statusFailed, "", "udev rule: %w", err)
	}
	if text == "" {
		return nil // nothing to keep
	}
	// Noted before it is there: a file without a note would look like somebody
	// else's, a note without a file only says that it is missing.
	note := store.Persist{File: filepath.Join(rulesDir(o), enforce.RuleFile), SHA256: fmt.Sprintf("%x", sha256.Sum256([]byte(text))), Time: a.now(),
		Quirks: planQuirks(report.Plan, r), Tool: version()}
	if err := s.SetPersisted(ctx, note); err != nil {
		return fail(statusFailed, cmp.Or(store.Hint(err), "nothing was installed"), "%w", err)
	}
	path, err := enforce.InstallRule(rulesDir(o), text)
	if err != nil {
		return fail(statusFailed, "quirkcheck recommend --emit udev prints the rule", "install %s: %w", path, err)
	}
	p := &persisted{File: path, Proved: []string{}, Entries: note.Quirks}
	report.Persisted = p
	if o.sysroot == "" {
		if err := enforce.ReloadRules(ctx); err != nil {
			return fail(statusFailed, "the rule is installed; udevd reads it at its next start", "%w", err)
		}
	}
	if o.sysroot != "" {
		return nil // the udev of this machine proves nothing about a copied tree
	}
	for _, s := range slices.Concat(stepsKeys(report.Plan), satisfiedKeys(report.Plan)) {
		if err := enforce.ProveRule(ctx, s, path); err != nil {
			return fail(statusFailed, "udevadm test --action=add /sys/block/"+s+" shows what udev does", "%s: %w", s, err)
		}
		p.Proved = append(p.Proved, s)
	}
	return nil
}

// planQuirks lists the entries that a plan rests on.
func planQuirks(p enforce.Plan, r *checker.Report) []string {
	out := []string{}
	for _, f := range r.Findings {
		if f.Device == nil || f.Wanted == nil || slices.Contains(out, f.Quirk) {
			continue
		}
		if slices.Contains(stepsKeys(p), *f.Device) || slices.Contains(satisfiedKeys(p), *f.Device) {
			out = append(out, f.Quirk)
		}
	}
	slices.Sort(out)
	return out
}

func stepsKeys(p enforce.Plan) []string {
	var out []string
	for _, s := range p.Steps {
		if s.Op == enforce.OpWrite && !slices.Contains(out, s.Device) && !strings.HasPrefix(s.Device, "dm-") {
			out = append(out, s.Device)
		}
	}
	return out
}

func satisfiedKeys(p enforce.Plan) []string {
	var out []string
	for _, s := range p.Satisfied {
		out = append(out, s.Device)
	}
	return out
}

// staleRule compares the installed rule with what would be installed now, and
// looks for it in every initrd on disk.
func (a *app) staleRule(ctx context.Context, r *checker.Report, db *quirks.Set, release kernel.Release, o enforceFlags) ([]string, error) {
	want, err := rules(r, db, release, o.include)
	if err != nil {
		return nil, fail(statusFailed, "", "udev rule: %w", err)
	}
	path := filepath.Join(rulesDir(o), enforce.RuleFile)
	have, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return a.missingRule(ctx, path, o)
	case err != nil:
		return nil, fail(statusFailed, "", "%w", err)
	case want == "": // for disks that are not there now
	case !enforce.SameRules(string(have), want):
		return []string{path + " is not what this version and database would install; quirkcheck enforce --apply --persist renews it"}, nil
	}
	return enforce.InitrdsWithoutRule(ctx, enforce.Initrds(cmp.Or(o.sysroot, "/")), nil), ctx.Err()
}

// missingRule tells a rule that was removed from one that never was there.
func (a *app) missingRule(ctx context.Context, path string, o enforceFlags) ([]string, error) {
	s, err := store.OpenReadOnly(o.state)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return []string{"whether a rule was installed could not be read: " + err.Error()}, nil
	}
	defer s.Close()
	notes, err := s.Persisted(ctx)
	if err != nil {
		return []string{"whether a rule was installed could not be read: " + err.Error()}, nil
	}
	for _, n := range notes {
		if n.File == path {
			return []string{path + ", installed on " + n.Time.UTC().Format(time.DateOnly) + ", is not there any more; quirkcheck enforce --apply --persist installs it"}, nil
		}
	}
	return nil, nil
}

func (a *app) printEnforce(report enforceReport, o enforceFlags) error {
	if o.format == "json" {
		return writeJSON(a.stdout, report)
	}
	w := &errWriter{w: a.stdout}
	p := report.Plan
	for _, l := range report.Recovered {
		w.line("recovered: %s", clean(l))
	}
	if report.Result == nil {
		for _, s := range p.Steps {
			w.line("%s", clean(stepText(s)))
			for _, b := range s.Because {
				w.line("    because %s", clean(b))
			}
			if s.Risk != "" {
				w.line("    risk: %s", clean(s.Risk))
			}
		}
	} else {
		for _, s := range report.Result.Steps {
			line := stepText(s.Step) + ": " + string(s.Outcome)
			if s.After != "" && s.After != s.To {
				line += " " + s.After
			}
			w.line("%s", clean(line))
			if s.Error != "" {
				w.line("    %s", clean(s.Error))
			}
			for _, also := range s.Also {
				w.line("    %s", clean(also))
			}
		}
	}
	for _, s := range p.Satisfied {
		w.line("%s: %s KiB is within the bound already", clean(s.Device), clean(s.Value))
	}
	for _, r := range p.Refused {
		w.line("%s: refused: %s", clean(r.Device), clean(r.Why))
		for _, i := range r.Instead {
			w.line("    %s", clean(i))
		}
	}
	if report.Persisted != nil {
		w.line("installed %s", clean(report.Persisted.File))
	}
	for _, s := range report.Setters {
		when := "before ours"
		if s.After {
			when = "after ours, so it has the last word"
		}
		w.line("also set by %s:%d (%s): %s", clean(s.File), s.Line, when, clean(s.Text))
	}
	for _, s := range p.Warnings {
		w.line("warning: %s", clean(s))
	}
	switch {
	case len(p.Steps) == 0 && len(p.Refused) == 0:
		w.line("Nothing to set.")
	case report.Result == nil && len(p.Steps) > 0 && !o.check:
		w.line("Nothing was written. --apply does it, --apply --persist keeps it across reboots.")
	}
	return w.err
}

func stepText(s enforce.Step) string {
	switch s.Op {
	case enforce.OpSuspend:
		return "dmsetup suspend " + s.Map
	case enforce.OpResume:
		return "dmsetup resume " + s.Map
	}
	return fmt.Sprintf("%s: %s %s -> %s", s.Device, s.Attr[strings.LastIndexByte(s.Attr, '/')+1:], s.From, s.To)
}

func (a *app) revertCommand() *cobra.Command {
	var sysroot, state, format string
	var all bool
	cmd := &cobra.Command{
		Use:   "revert {DEV... | --all}",
		Short: "Take back what enforce set in this boot",
		Long: `Revert restores the values that enforce found, for what is still ours: a value
that somebody changed since is left alone and reported (exit status 6). What was
set before the last boot went with it. An installed rule stays: see unpersist.`,
		Example: "  quirkcheck revert sdb\n  quirkcheck revert --all",
		RunE: func(cmd *cobra.Command, devs []string) error {
			ctx := cmd.Context()
			if all == (len(devs) > 0) {
				return fail(statusUsage, "quirkcheck history shows what was set", "want devices or --all")
			}
			if format != "table" && format != "json" {
				return fail(statusUsage, "", "format %q: want table or json", format)
			}
			src, err := a.open(sysroot, "")
			if err != nil {
				return err
			}
			defer src.close()
			env, err := a.env(src.sys, sysroot)
			if err != nil {
				return err
			}
			if _, err := os.Stat(state); errors.Is(err, fs.ErrNotExist) {
				return fail(statusNothing, "", "%s is not there: enforce has set nothing", state)
			}
			s, unlock, recovered, err := a.journal(ctx, env, state, "revert")
			for _, l := range recovered {
				fmt.Fprintln(a.stderr, "recovered:", clean(l))
			}
			if err != nil {
				return err
			}
			defer unlock()
			pending, err := s.Pending(ctx, env.BootID)
			if err != nil {
				return fail(statusFailed, "", "%w", err)
			}
			if !all {
				only := make([]string, len(devs)) // a device that is gone has only its name
				for i, d := range devs {
					if only[i], err = probe.ResolveName(src.sys, d); err != nil {
						only[i] = filepath.Base(d)
					}
				}
				pending = slices.DeleteFunc(pending, func(w store.Write) bool { return !slices.Contains(only, w.Device) })
			}
			var release kernel.Release
			if v, err := enforce.SysAttrs(cmp.Or(sysroot, "/")).Read("proc/version"); err == nil {
				release, _ = kernel.ParseProcVersion(v)
			}
			res, err := enforce.Revert(ctx, pending, env, s, release)
			if err != nil {
				return err
			}
			if len(res.Steps) == 0 {
				return fail(statusNothing, "quirkcheck history shows what was set", "nothing of this boot to take back")
			}
			if format == "json" {
				if err := writeJSON(a.stdout, revertReport{jsonVersion, version(), res}); err != nil {
					return err
				}
			} else {
				w := &errWriter{w: a.stdout}
				for _, s := range res.Steps {
					w.line("%s: %s", clean(stepText(s.Step)), s.Outcome)
					if s.Error != "" {
						w.line("    %s", clean(s.Error))
					}
				}
				if w.err != nil {
					return w.err
				}
			}
			if !res.Complete() {
				return silent(statusRefused)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.BoolVar(&all, "all", false, "every device")
	f.StringVar(&sysroot, "sysroot", "", "read and write the tree in `folder` instead of /")
	f.StringVar(&state, "state", defaultState, "journal `file`")
	f.StringVar(&format, "format", "table", "output `format`: table, json")
	completeDevices(cmd)
	return cmd
}

func (a *app) unpersistCommand() *cobra.Command {
	var sysroot, state string
	cmd := &cobra.Command{
		Use:     "unpersist",
		Short:   "Remove the udev rule that enforce --persist installed",
		Long:    "Unpersist removes our rule file from " + enforce.RulesPermanent + " and " + enforce.RulesRuntime + " and makes udev read its rules\nagain. Present values stay: see revert.",
		Example: "  quirkcheck unpersist",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			n := 0
			var errs []error
			for _, dir := range []string{enforce.RulesPermanent, enforce.RulesRuntime} {
				path, removed, err := enforce.RemoveRule(absolute(sysroot, dir))
				errs = append(errs, err)
				if removed {
					n++
					fmt.Fprintln(a.stdout, "removed", clean(path))
				}
				if err == nil {
					errs = append(errs, forget(cmd.Context(), state, path))
				}
			}
			if n > 0 && sysroot == "" {
				errs = append(errs, enforce.ReloadRules(cmd.Context()))
			}
			if err := errors.Join(errs...); err != nil {
				return fail(statusFailed, cmp.Or(store.Hint(err), "look at the files named; run this again"), "%w", err)
			}
			if n == 0 {
				fmt.Fprintln(a.stdout, "There is no rule of ours.")
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&sysroot, "sysroot", "", "work in the tree in `folder` instead of /")
	cmd.Flags().StringVar(&state, "state", defaultState, "journal `file`")
	return cmd
}

// forget drops the note of an installed rule file; no journal is no error.
func forget(ctx context.Context, state, file string) error {
	if _, err := os.Stat(state); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := store.Lock(state, "unpersist")
	if err != nil {
		return err
	}
	defer lock.Unlock()
	s, err := store.Open(state)
	if err != nil {
		return err
	}
	defer s.Close()
	return s.ForgetPersisted(ctx, file)
}

func (a *app) historyCommand() *cobra.Command {
	var state, format string
	var limit int
	cmd := &cobra.Command{
		Use:     "history",
		Short:   "Show what enforce and revert did",
		Example: "  quirkcheck history\n  quirkcheck history --limit 20 --format json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if format != "table" && format != "json" {
				return fail(statusUsage, "", "format %q: want table or json", format)
			}
			s, err := store.OpenReadOnly(state)
			if errors.Is(err, fs.ErrNotExist) {
				return fail(statusNothing, "", "%s is not there: enforce has set nothing", state)
			}
			if err != nil {
				return fail(statusFailed, cmp.Or(store.Hint(err), "--state names another file"), "%w", err)
			}
			defer s.Close()
			writes, err := s.History(cmd.Context(), limit)
			if err != nil {
				return fail(statusFailed, "", "%w", err)
			}
			if format == "json" {
				report := historyReport{jsonVersion, version(), []historyRow{}}
				for _, w := range writes {
					row := historyRow{Write: w}
					if w.HasDiskSeq {
						row.DiskSeq = &w.DiskSeq
					}
					report.Writes = append(report.Writes, row)
				}
				return writeJSON(a.stdout, report)
			}
			w := &errWriter{w: a.stdout}
			for _, h := range writes {
				w.line("%s  %s  %s -> %s  %s  %s  %s", h.Time.UTC().Format(time.DateTime), clean(h.Device), clean(h.Old), clean(h.New), h.State, clean(h.Quirk), clean(h.Identity))
			}
			return w.err
		},
	}
	f := cmd.Flags()
	f.StringVar(&state, "state", defaultState, "journal `file`")
	f.StringVar(&format, "format", "table", "output `format`: table, json")
	f.IntVar(&limit, "limit", 100, "at most this many lines, newest first")
	return cmd
}
