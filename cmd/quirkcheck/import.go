package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/quirks/kernelsource"
)

func (a *app) dbImportKernelCommand() *cobra.Command {
	var format, drafts, release string
	var families []string
	cmd := &cobra.Command{
		Use:   "import-kernel TREE",
		Short: "Compare the device tables of a Linux source tree with the database",
		Long: `Import-kernel reads the device tables of the source tree in folder TREE and
reports, row by row, what is new (+), what the entries say otherwise (!) and what
is gone (-), for review. Nothing is changed. With --drafts it writes the start of
an entry for each new row, with the facts of the row and CHANGE-ME wherever a
person has to judge. Exit status 1 means that there is something to review.

With --family limits it lists what the drivers of the tree say about the size of
a transfer, one place a line; no entry is compared with that.`,
		Example: `  quirkcheck db import-kernel /usr/src/linux-source-6.1
  quirkcheck db import-kernel linux-7.3 --format json
  quirkcheck db import-kernel linux-7.3 --drafts ./my-entries
  quirkcheck db import-kernel linux-7.3 --family limits`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if format != "text" && format != "json" {
				return fail(statusUsage, "", "format %q: want text or json", format)
			}
			var asked []kernelsource.Family
			for _, f := range families {
				if known := append(kernelsource.Compared(), kernelsource.Limits); !slices.Contains(known, kernelsource.Family(f)) {
					return fail(statusUsage, "", "family %q: want one of %v", f, known)
				}
				asked = append(asked, kernelsource.Family(f))
			}
			if asked == nil {
				asked = kernelsource.Compared()
			}
			db, err := a.dbSet(cmd)
			if err != nil {
				return err
			}
			tree, err := kernelsource.Read(os.DirFS(args[0]))
			if errors.Is(err, kernelsource.ErrNoTree) {
				return fail(statusUsage, "give the top folder of the source, the one with drivers/ in it", "%s: %w", args[0], err)
			}
			if err != nil {
				return fail(statusFailed, "", "%s: %w", args[0], err)
			}
			if release != "" {
				if tree.Release, err = kernel.Parse(release); err != nil {
					return fail(statusUsage, "", "%w", err)
				}
			}
			if !tree.Release.Known() {
				return fail(statusUsage, "say it with --kernel", "%s: its Makefile names no release, and what a row should be hangs on it", args[0])
			}
			diff := kernelsource.Compare(tree, db, asked)
			if format == "json" {
				err = writeJSON(a.stdout, diff)
			} else {
				err = a.importText(diff, args[0])
			}
			if err != nil {
				return err
			}
			if drafts != "" {
				if err := a.writeDrafts(drafts, diff.Drafts(tree)); err != nil {
					return err
				}
			}
			if diff.Differs() {
				return silent(statusFindings)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&format, "format", "text", "output `format`: text, json")
	f.StringVar(&drafts, "drafts", "", "write a draft for each new row below `folder`")
	f.StringVar(&release, "kernel", "", "`release` of the tree, where its Makefile does not say")
	f.StringSliceVar(&families, "family", nil, "compare these `tables` only: libata, scsi, scsi-spi; limits lists what drivers say about the size of a transfer")
	return cmd
}

// importText prints a diff as one reads a diff: + is what the tree has more, -
// what it has no longer.
func (a *app) importText(d *kernelsource.Diff, name string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "--- database %s\n+++ linux %s (%s)\n", d.Database, d.Release, clean(name))
	at := func(x kernelsource.Difference) string {
		if x.File == "" {
			return ""
		}
		return fmt.Sprintf("  %s:%d", x.File, x.Line)
	}
	for _, c := range d.Counts {
		fmt.Fprintf(&b, "@@ %s: %d rows, %d as in the database, %d new, %d changed, %d vanished, %d without an entry for a reason @@\n", c.Family, c.Rows, c.Same, c.New, c.Changed, c.Vanished, c.Excepted)
		for _, x := range d.Differences {
			if x.Family != c.Family {
				continue
			}
			switch x.State {
			case kernelsource.New:
				fmt.Fprintf(&b, "+%s  %s%s\n", clean(x.Key), clean(strings.Join(x.Tree, "|")), at(x))
			case kernelsource.Changed:
				fmt.Fprintf(&b, "!%s%s\n", clean(x.Key), at(x))
				if !slices.Equal(x.Have, x.Tree) {
					fmt.Fprintf(&b, "-  %s\n+  %s\n", clean(strings.Join(x.Have, "|")), clean(strings.Join(x.Tree, "|")))
				}
			case kernelsource.Vanished:
				fmt.Fprintf(&b, "-%s  %s\n", clean(x.Key), clean(strings.Join(x.Have, "|")))
			case kernelsource.Excepted:
				fmt.Fprintf(&b, "#%s  %s\n", clean(x.Key), clean(strings.Join(x.Why, "; ")))
				continue
			}
			for _, w := range x.Why {
				fmt.Fprintf(&b, "   %s\n", clean(w))
			}
			if len(x.Entries) > 0 {
				fmt.Fprintf(&b, "   entries: %s\n", strings.Join(x.Entries, ", "))
			}
		}
	}
	for _, l := range d.Limits {
		fmt.Fprintf(&b, "=%s  %s %s  %s\n", clean(l.Driver), l.Field, clean(limitText(l)), clean(limitPlace(l)))
	}
	for _, c := range d.NotCompared {
		fmt.Fprintf(&b, "# %s: %d rows, not compared\n", c.Family, c.Rows)
	}
	for _, f := range d.Faults {
		fmt.Fprintf(&b, "? %s\n", clean(f.String()))
	}
	_, err := a.stdout.Write([]byte(b.String()))
	return err
}

// limitText is the value of a limit with what it was written as.
func limitText(l kernelsource.Limit) string {
	if l.Value == nil {
		return "computed: " + l.Expr
	}
	if v := strconv.FormatUint(*l.Value, 10); v != l.Expr {
		return v + " (" + l.Expr + ")"
	}
	return l.Expr
}

// limitPlace says where a limit stands.
func limitPlace(l kernelsource.Limit) string {
	s := fmt.Sprintf("%s:%d", l.File, l.Line)
	if l.In != "" {
		s += " in " + l.In
	}
	if l.If != "" {
		s += " #if " + l.If
	}
	return s
}

// writeDrafts writes each draft to a file of its own and replaces none.
func (a *app) writeDrafts(dir string, drafts []kernelsource.Draft) error {
	for _, d := range drafts {
		folder, _, _ := strings.Cut(d.ID, "-")
		file := filepath.Join(dir, folder, d.ID+".yaml")
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return fail(statusFailed, "", "%w", err)
		}
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if errors.Is(err, fs.ErrExist) {
			fmt.Fprintf(a.stderr, "%s is there already, and stays\n", clean(file))
			continue
		}
		if err != nil {
			return fail(statusFailed, "", "%w", err)
		}
		_, err = f.WriteString(d.Text)
		if err = errors.Join(err, f.Close()); err != nil {
			return fail(statusFailed, "", "%w", err)
		}
		fmt.Fprintf(a.stderr, "%s\n", clean(file))
	}
	fmt.Fprintf(a.stderr, "%d drafts; edit every CHANGE-ME, then: quirkcheck db lint %s\n", len(drafts), clean(dir))
	return nil
}
