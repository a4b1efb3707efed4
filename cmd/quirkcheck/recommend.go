package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/checker/emit"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/quirks"
)

func (a *app) recommendCommand() *cobra.Command {
	var sysroot, input, form string
	var include, except []string
	var pin bool
	cmd := &cobra.Command{
		Use:   "recommend [DEV...]",
		Short: "Say which limit a device should have, and write it for udev and others",
		Long: `Recommend lists the devices whose transfer size should be limited, with the
value and with the form of least effort that is correct on this path and
kernel. With --emit it writes the limits as text for another program; it
changes nothing itself.

  udev       rules that lower the limit when a disk appears (the usual choice)
  cmdline    kernel parameters, merged with the present ones
  modprobe   the same as module options
  multipath  a fragment of multipath.conf, for paths of multipath maps
  ansible    a play that installs the udev rules
  shell      a POSIX script for an install image, which lowers limits once

Only entries whose confidence is confirmed are acted on, and others with
--include. --pin-present writes udev rules that hold every SCSI, SATA and NVMe
disk at the limit it has now, for a fleet that is about to go to Linux 6.17 or
later, where the default rises to 4096 KiB; --except releases a model.

What could not be written is named on standard error and in the text's
comments. Exit status 6 means that nothing could be.`,
		Example: `  quirkcheck recommend
  quirkcheck recommend --emit udev > /etc/udev/rules.d/90-quirkcheck.rules
  quirkcheck recommend sdb --emit cmdline
  quirkcheck recommend --pin-present --except 'ST8000NM*' > 89-quirkcheck-pin.rules`,
		RunE: func(cmd *cobra.Command, devs []string) error {
			if form != "" && !slices.Contains(emit.Kinds(), emit.Kind(form)) {
				return fail(statusUsage, "", "emit %q: want %s", form, kinds())
			}
			for _, c := range include {
				if c != "probable" && c != "suspected" {
					return fail(statusUsage, "", "include %q: want probable or suspected", c)
				}
			}
			if pin && form != "" && form != string(emit.KindUdev) {
				return fail(statusUsage, "", "--pin-present writes udev rules, not %s", form)
			}
			if len(except) > 0 && !pin {
				return fail(statusUsage, "", "--except goes with --pin-present")
			}
			var released []quirks.Pattern
			for _, text := range except {
				p, err := quirks.CompilePattern(text)
				if err != nil {
					return fail(statusUsage, "", "except: %w", err)
				}
				released = append(released, p)
			}
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
			inv, err := a.read(cmd.Context(), sysroot, input, db, devs)
			if err != nil {
				return err
			}
			r := checker.Check(inv, db, p)
			r.Tool.Version = version()
			if len(r.Devices) == 0 {
				return fail(statusNothing, "", "no block device found")
			}
			o := emitOptions(inv, include)
			if pin {
				art, err := emit.PinPresent(r, released, o)
				return a.artefact(art, err)
			}
			plan := emit.New(r, db, o)
			for _, l := range plan.Left {
				fmt.Fprintln(a.stderr, "quirkcheck: not acted on:", clean(l.Device+": "+l.Quirk+": "+l.Why))
			}
			if form == "" {
				return a.recommendTable(plan)
			}
			art, err := plan.Emit(emit.Kind(form))
			return a.artefact(art, err)
		},
	}
	f := cmd.Flags()
	f.StringVar(&sysroot, "sysroot", "", "read the machine's tree from `folder`, which holds sys/, instead of /")
	inputFlag(cmd, &input)
	f.StringSlice("overlay", nil, "add the entries in `folder` to the database; an entry of the same id replaces the built-in one")
	f.StringVar(&form, "emit", "", "write the limits in this `form`: "+kinds())
	f.StringSliceVar(&include, "include", nil, "act on entries of this `confidence` too: probable, suspected")
	f.BoolVar(&pin, "pin-present", false, "write udev rules that hold every disk at its present limit")
	f.StringArrayVar(&except, "except", nil, "with --pin-present: leave out disks of this `model` (a glob); may be repeated")
	completeDevices(cmd)
	return cmd
}

func kinds() string {
	names := make([]string, len(emit.Kinds()))
	for i, k := range emit.Kinds() {
		names[i] = string(k)
	}
	return strings.Join(names, ", ")
}

// emitOptions is what the text depends on besides the report.
func emitOptions(inv *probe.Inventory, include []string) emit.Options {
	o := emit.Options{ToolVersion: version(), Include: include, Blacklist: map[string][]string{}}
	if inv.Kernel.Ok() {
		o.Kernel = inv.Kernel.V
	}
	if inv.Cmdline.Ok() {
		o.Cmdline = inv.Cmdline.V
	}
	for _, d := range inv.Devices {
		if d.Blacklist.Ok() {
			o.Blacklist[d.Name] = d.Blacklist.V
		}
	}
	return o
}

// artefact prints a text, and what it lacks on standard error.
func (a *app) artefact(art emit.Artefact, err error) error {
	var refused *emit.RefusedError
	switch {
	case errors.Is(err, emit.ErrNothing):
		fmt.Fprintln(a.stderr, "quirkcheck: nothing to write:", err)
		return nil
	case errors.As(err, &refused):
		for _, w := range refused.Why {
			fmt.Fprintln(a.stderr, "quirkcheck:", clean(w))
		}
		return fail(statusRefused, "quirkcheck recommend without --emit names a form that can", "no limit can be written as %s", refused.Kind)
	case err != nil:
		return fail(statusFailed, "", "%w", err)
	}
	for _, w := range art.Warnings {
		fmt.Fprintln(a.stderr, "quirkcheck: warning:", clean(w))
	}
	if _, err := io.WriteString(a.stdout, art.Text); err != nil {
		return fail(statusFailed, "", "write the text: %w", err)
	}
	return nil
}

func (a *app) recommendTable(plan *emit.Plan) error {
	w := &errWriter{w: a.stdout}
	if len(plan.Advices) == 0 {
		w.line("No limit is advised for any device.")
		return w.err
	}
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "DEVICE\tPRESENT\tADVISED\tHOW\tWHY")
	best := map[emit.Kind]bool{}
	for _, ad := range plan.Advices {
		best[ad.Best] = true
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s (%s)\n", clean(ad.Device.Name), kib(ad.Device.Limits.MaxSectorsKB), kib(&ad.MaxSectorsKB), ad.Best,
			clean(ad.Finding.Title), clean(ad.Finding.Quirk))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if _, err := io.WriteString(a.stdout, b.String()); err != nil {
		return err
	}
	for _, ad := range plan.Advices {
		w.line("%s: %s: %s", clean(ad.Device.Name), ad.Best, clean(ad.BestWhy))
	}
	for _, k := range emit.Kinds() {
		if best[k] {
			w.line("See: quirkcheck recommend --emit %s", k)
		}
	}
	return w.err
}
