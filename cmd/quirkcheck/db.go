package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/quirks"
)

func (a *app) dbCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "db",
		Short: "Look at the database, check and write entries",
		Args:  cobra.ArbitraryArgs,
		RunE:  helpOnly,
	}
	cmd.PersistentFlags().StringSlice("overlay", nil, "add the entries in `folder` to the database")
	cmd.AddCommand(a.dbListCommand(), a.dbShowCommand(), a.dbMatchCommand(), a.dbLintCommand(), a.dbNewCommand(), a.dbImportKernelCommand(), a.dbStatsCommand())
	return cmd
}

// dbSet is the database for a db command.
func (a *app) dbSet(cmd *cobra.Command) (*quirks.Set, error) {
	c, err := a.config(cmd)
	if err != nil {
		return nil, err
	}
	return a.database(c.Overlay)
}

func (a *app) dbListCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List every entry: effect, severity, limit",
		Example: "  quirkcheck db list\n  quirkcheck db list --format json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			db, err := a.dbSet(cmd)
			if err != nil {
				return err
			}
			type row struct {
				ID         string          `json:"id"`
				Title      string          `json:"title"`
				Effect     quirks.Effect   `json:"effect"`
				Severity   quirks.Severity `json:"severity"`
				Confidence string          `json:"confidence"`
				MaxSectors *uint32         `json:"max_sectors"`
				Withdrawn  bool            `json:"withdrawn"`
			}
			rows := []row{}
			for _, e := range db.Entries() {
				r := row{e.ID, e.Title, e.Effect, e.Severity, e.Confidence, nil, e.Withdrawn != ""}
				if n, ok := e.MaxSectors(); ok {
					r.MaxSectors = &n
				}
				rows = append(rows, r)
			}
			switch format {
			case "json":
				return writeJSON(a.stdout, rows)
			case "table":
			default:
				return fail(statusUsage, "", "format %q: want table or json", format)
			}
			tw := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
			fmt.Fprintln(tw, "ID\tEFFECT\tSEVERITY\tCONFIDENCE\tSECTORS")
			for _, r := range rows {
				limit := "-"
				if r.MaxSectors != nil {
					limit = fmt.Sprint(*r.MaxSectors)
				}
				fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", clean(r.ID), clean(string(r.Effect)), r.Severity, clean(r.Confidence), limit)
			}
			if err := tw.Flush(); err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.stdout, "%d entries, database %s. See: quirkcheck explain ID\n", len(rows), db.Version.Version)
			return err
		},
	}
	cmd.Flags().StringVar(&format, "format", "table", "output `format`: table, json")
	return cmd
}

func (a *app) dbShowCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "show ID",
		Short:   "Print an entry as its file has it",
		Example: "  quirkcheck db show ata-seagate-st380013as-silent-corruption",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			db, err := a.dbSet(cmd)
			if err != nil {
				return err
			}
			text, err := db.Text(args[0])
			if err != nil {
				return fail(statusUsage, "quirkcheck db list lists the ids", "%w", err)
			}
			if isTerminal(a.stdout) { // a file of an overlay may hold anything
				lines := strings.Split(string(text), "\n")
				for i := range lines {
					lines[i] = clean(lines[i])
				}
				text = []byte(strings.Join(lines, "\n"))
			}
			_, err = a.stdout.Write(text)
			return err
		},
	}
}

func (a *app) dbLintCommand() *cobra.Command {
	var codes bool
	cmd := &cobra.Command{
		Use:   "lint [PATH...]",
		Short: "Check entries: schema, meaning, examples, and against all others",
		Long: `Lint checks entry files or folders and reports every fault at once as
file:line: field: message [code]. Examples are executed, and each is matched
against every other entry of the database. Without PATH the built-in database
is checked. Exit status 1 means faults.`,
		Example: "  quirkcheck db lint ata-acme-disk-io-timeout.yaml\n  quirkcheck db lint ./my-entries\n  quirkcheck db lint --codes",
		RunE: func(cmd *cobra.Command, paths []string) error {
			if codes {
				tw := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
				for _, c := range quirks.LintCodes() {
					fmt.Fprintf(tw, "%s\t%s\n", c[0], c[1])
				}
				return tw.Flush()
			}
			builtin, err := a.database(nil)
			if err != nil {
				return err
			}
			type tree struct {
				name string
				fsys fs.FS
			}
			trees := []tree{{"", quirks.Embedded()}}
			var against *quirks.Set
			if len(paths) > 0 {
				trees, against = nil, builtin
			}
			for _, p := range paths {
				info, err := os.Stat(p)
				switch {
				case err != nil:
					return fail(statusUsage, "", "%w", err)
				case info.IsDir():
					trees = append(trees, tree{p, os.DirFS(p)})
				default:
					trees = append(trees, tree{filepath.Dir(p), oneFile{os.DirFS(filepath.Dir(p)), filepath.Base(p)}})
				}
			}
			entries, faults := 0, 0
			for _, t := range trees {
				set, _ := quirks.Load(t.fsys)
				found := append(quirks.Lint(t.fsys, against), checker.LintExamples(set.Entries())...)
				entries += set.Len()
				faults += len(found)
				for _, f := range found {
					f.File = filepath.Join(t.name, f.File)
					if _, err := fmt.Fprintln(a.stdout, clean(f.String())); err != nil {
						return err
					}
				}
			}
			if faults > 0 {
				fmt.Fprintf(a.stderr, "%d faults\n", faults)
				return silent(statusFindings)
			}
			if entries == 0 {
				return fail(statusNothing, "entry files end in .yaml", "no entries found")
			}
			_, err = fmt.Fprintf(a.stdout, "%d entries, no faults\n", entries)
			return err
		},
	}
	cmd.Flags().BoolVar(&codes, "codes", false, "list the codes and what they mean")
	return cmd
}

// oneFile shows one file of a folder.
type oneFile struct {
	fs.FS
	name string
}

func (o oneFile) ReadDir(name string) ([]fs.DirEntry, error) {
	all, err := fs.ReadDir(o.FS, name)
	return slices.DeleteFunc(all, func(e fs.DirEntry) bool { return name != "." || e.Name() != o.name }), err
}

// completeDevices completes device names.
func completeDevices(cmd *cobra.Command) {
	cmd.ValidArgsFunction = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		entries, err := os.ReadDir("/sys/block")
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), "loop") && !strings.HasPrefix(e.Name(), "ram") {
				names = append(names, e.Name())
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
