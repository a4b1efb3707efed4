package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/viper"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/quirks"
	"github.com/quirkcheck/quirkcheck/schema"
)

// Exit statuses (the package comment says what they mean).
const (
	statusOK          = 0
	statusFindings    = 1
	statusUsage       = 2
	statusUndecided   = 3
	statusDatabase    = 4
	statusNothing     = 5
	statusRefused     = 6
	statusFault       = 7
	statusFailed      = 8
	statusInterrupted = 130
)

// statusError carries an exit status and a next step.
type statusError struct {
	status int
	err    error
	hint   string
}

func (e *statusError) Error() string { return e.err.Error() }
func (e *statusError) Unwrap() error { return e.err }

func fail(status int, hint, format string, a ...any) error {
	return &statusError{status: status, err: fmt.Errorf(format, a...), hint: hint}
}

// silent ends with a status whose reason is already printed.
func silent(status int) error {
	if status == statusOK {
		return nil
	}
	return &statusError{status: status}
}

// app is what a run of the command shares.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	viper          *viper.Viper
	configFile     string
	now            func() time.Time
}

// config is the decoded configuration: flag, environment, file, default.
type config struct {
	FailOn        string   `mapstructure:"fail_on"`
	FailOnUnknown bool     `mapstructure:"fail_on_unknown"`
	Format        string   `mapstructure:"format"`
	Show          string   `mapstructure:"show"`
	Overlay       []string `mapstructure:"overlay"`
	Quiet         bool     `mapstructure:"quiet"`
	Suppress      []struct {
		Quirk  string `mapstructure:"quirk"`
		Model  string `mapstructure:"model"`
		Reason string `mapstructure:"reason"`
		Until  string `mapstructure:"until"`
	} `mapstructure:"suppress"`
}

var configDefaults = map[string]any{
	"fail_on": "medium", "fail_on_unknown": false, "format": "table", "show": "findings", "overlay": []string{}, "quiet": false,
}

// run is the whole command as a function.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr, viper: viper.New(), now: time.Now}
	root := a.rootCommand()
	if args == nil {
		args = []string{} // cobra takes nil to mean the process's own
	}
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	return a.status(ctx, err)
}

// status maps an error to the exit status and prints it with its next step.
func (a *app) status(ctx context.Context, err error) int {
	var se *statusError
	switch {
	case err == nil:
		return statusOK
	case errors.Is(err, context.Canceled) && ctx.Err() != nil:
		fmt.Fprintln(a.stderr, "quirkcheck: interrupted")
		return statusInterrupted
	case errors.Is(err, syscall.EPIPE):
		return statusOK // the reader has seen enough: quirkcheck scan | head
	case errors.As(err, &se):
		if se.err != nil {
			fmt.Fprintln(a.stderr, "quirkcheck:", clean(se.err.Error()))
			if se.hint != "" {
				fmt.Fprintln(a.stderr, "hint:", clean(se.hint))
			}
		}
		return se.status
	}
	text := clean(strings.Join(strings.Fields(err.Error()), " "))
	var pe *fs.PathError
	if errors.As(err, &pe) && pe.Op == "write" { // the output could not be written
		fmt.Fprintln(a.stderr, "quirkcheck:", text)
		return statusFailed
	}
	fmt.Fprintln(a.stderr, "quirkcheck:", text)
	fmt.Fprintln(a.stderr, "hint: quirkcheck --help lists the commands, quirkcheck COMMAND --help its flags")
	return statusUsage
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "quirkcheck",
		Short: "Find storage devices with known quirks, and what is safe to set",
		Long: `quirkcheck tells which storage devices of a machine silently corrupt data,
hang or crawl above a certain transfer size, what is set now and what should
be set, each with its evidence. scan only reads; enforce sets what it shows, when
told to.

A device without a finding has no known quirk; it is never called safe.`,
		Example: `  quirkcheck scan                      # this machine
  quirkcheck scan --format json sdb    # one device, for programs
  quirkcheck explain sdb               # why`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cmd.Help(); err != nil {
				return err
			}
			return silent(statusUsage)
		},
	}
	root.PersistentFlags().StringVar(&a.configFile, "config", "", "configuration `file` (default /etc/quirkcheck/config.yaml, then the user's configuration folder)")
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fail(statusUsage, cmd.CommandPath()+" --help", "%w", err)
	})
	root.AddCommand(a.scanCommand(), a.explainCommand(), a.recommendCommand(), a.auditCommand(), a.captureCommand(), a.enforceCommand(), a.revertCommand(), a.unpersistCommand(), a.historyCommand(), a.verifyCommand(),
		a.decodeCommand(), a.dbCommand(), a.schemaCommand(), a.configCommand(), a.versionCommand(), a.manCommand())
	root.InitDefaultCompletionCmd()
	return root
}

// config reads the configuration for the flags of cmd.
func (a *app) config(cmd *cobra.Command) (config, error) {
	v := a.viper
	for k, d := range configDefaults {
		v.SetDefault(k, d)
		if f := cmd.Flags().Lookup(strings.ReplaceAll(k, "_", "-")); f != nil {
			if err := v.BindPFlag(k, f); err != nil {
				return config{}, fail(statusUsage, "", "%w", err)
			}
		}
		if err := v.BindEnv(k, "QUIRKCHECK_"+strings.ToUpper(k)); err != nil {
			return config{}, fail(statusUsage, "", "%w", err)
		}
	}
	file, err := a.findConfig()
	if err != nil {
		return config{}, err
	}
	if file != "" {
		v.SetConfigFile(file)
		v.SetConfigType("yaml")
		if err := v.ReadInConfig(); err != nil {
			return config{}, fail(statusUsage, "quirkcheck schema config describes every key", "read %s: %w", file, err)
		}
		only := viper.New()
		only.SetConfigFile(file)
		only.SetConfigType("yaml")
		if err := only.ReadInConfig(); err != nil {
			return config{}, fail(statusUsage, "", "read %s: %w", file, err)
		}
		if bad := schema.Validate("config.v1", only.AllSettings()); len(bad) > 0 {
			return config{}, fail(statusUsage, "quirkcheck schema config describes every key", "%s: %s: %s", file, bad[0].Path, bad[0].Message)
		}
	}
	for _, env := range os.Environ() {
		name, value, _ := strings.Cut(env, "=")
		if key, ok := strings.CutPrefix(name, "QUIRKCHECK_"); ok && value != "" && !knownEnv(key) {
			return config{}, fail(statusUsage, "quirkcheck config view lists the keys", "environment: unknown key %s", name)
		}
	}
	var c config
	if err := v.Unmarshal(&c); err != nil {
		return config{}, fail(statusUsage, "quirkcheck schema config describes every key", "configuration: %w", err)
	}
	if !slices.Contains([]string{"none", "info", "low", "medium", "high", "critical"}, c.FailOn) {
		return c, fail(statusUsage, "", "fail-on %q: want none, info, low, medium, high or critical", c.FailOn)
	}
	if !slices.Contains([]string{"findings", "all", "suppressed"}, c.Show) {
		return c, fail(statusUsage, "", "show %q: want findings, all or suppressed", c.Show)
	}
	return c, nil
}

// testEnv is what only the tests and the test bench read.
var testEnv = []string{"VERIFY_SEEDS", "KERNEL_TREE", "SOURCE_CACHE", "MATRIX_UPDATE"}

// knownEnv: configuration keys, and what only tests and the test bench use.
func knownEnv(key string) bool {
	_, ok := configDefaults[strings.ToLower(key)]
	return ok || key == "CONFIG" || strings.HasPrefix(key, "VM") || slices.Contains(testEnv, key)
}

// findConfig returns the file to read: --config, QUIRKCHECK_CONFIG, the
// system's, the user's; "" for none. Never the current directory.
func (a *app) findConfig() (string, error) {
	if f := a.configFile; f != "" {
		return f, nil
	}
	if f := os.Getenv("QUIRKCHECK_CONFIG"); f != "" {
		return f, nil
	}
	candidates := []string{"/etc/quirkcheck/config.yaml"}
	if dir, err := os.UserConfigDir(); err == nil {
		candidates = append(candidates, filepath.Join(dir, "quirkcheck", "config.yaml"))
	}
	for _, f := range candidates {
		if _, err := os.Stat(f); err == nil {
			return f, nil
		} else if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, os.ErrPermission) && !errors.Is(err, syscall.ENOTDIR) {
			return "", fail(statusUsage, "", "configuration: %w", err)
		}
	}
	return "", nil
}

// policy turns the configuration into the checker's.
func (a *app) policy(c config) (checker.Policy, error) {
	p := checker.Policy{FailOn: quirks.Severity(c.FailOn), FailOnUnknown: c.FailOnUnknown, Now: a.now()}
	for i, s := range c.Suppress {
		until, err := time.Parse(time.DateOnly, s.Until)
		if err != nil {
			return p, fail(statusUsage, "", "suppress[%d].until %q: want YYYY-MM-DD", i, s.Until)
		}
		if _, err := quirks.CompilePattern(s.Model); err != nil {
			return p, fail(statusUsage, "", "suppress[%d].model: %w", i, err)
		}
		p.Suppress = append(p.Suppress, checker.Suppression{Quirk: s.Quirk, Model: s.Model, Reason: s.Reason, Until: until})
	}
	return p, nil
}

// database is the embedded one with the overlays on top.
func (a *app) database(overlays []string) (*quirks.Set, error) {
	db, faults := quirks.Builtin()
	if db.Len() == 0 {
		why := "no entries"
		if len(faults) > 0 {
			why = faults[0].String()
		}
		return nil, fail(statusDatabase, "the binary is damaged; install it again", "database: %s", why)
	}
	for _, dir := range overlays {
		info, err := os.Stat(dir)
		if err != nil {
			return nil, fail(statusDatabase, "", "overlay: %w", err)
		}
		if !info.IsDir() {
			return nil, fail(statusDatabase, "give the folder that holds the entry files", "overlay %s: not a folder", dir)
		}
		over, faults := quirks.Load(os.DirFS(dir))
		if over.Len() == 0 && len(faults) == 0 {
			fmt.Fprintf(a.stderr, "quirkcheck: overlay %s: no entries; files end in .yaml and lie at most one folder deep\n", clean(dir))
		}
		for _, f := range faults {
			f.File = filepath.Join(dir, f.File)
			fmt.Fprintln(a.stderr, "quirkcheck: overlay entry not used:", clean(f.String()))
		}
		if len(faults) > 0 {
			fmt.Fprintln(a.stderr, "hint: quirkcheck db lint", clean(dir), "lists every fault")
		}
		merged, err := db.Merge(over)
		if err != nil {
			return nil, fail(statusDatabase, "", "overlay %s: %w", dir, err)
		}
		db = merged
	}
	return db, nil
}

// inventory reads the machine, or the devices named.
func (a *app) inventory(ctx context.Context, src source, db *quirks.Set, devs []string) (*probe.Inventory, error) {
	return a.inventoryWith(ctx, src, db, devs, probe.Options{})
}

// inventoryWith does so with further options.
func (a *app) inventoryWith(ctx context.Context, src source, db *quirks.Set, devs []string, o probe.Options) (*probe.Inventory, error) {
	step, stop := a.progress()
	defer stop()
	o.Progress = step
	return readInventory(ctx, src, db, devs, o)
}

// readInventory does so and draws nothing.
func readInventory(ctx context.Context, src source, db *quirks.Set, devs []string, o probe.Options) (*probe.Inventory, error) {
	only, err := names(src.sys, devs)
	if err != nil {
		return nil, err
	}
	o.Avoid, o.Only, o.Related = checker.AvoidFrom(db), only, true
	inv, err := probe.Read(ctx, src.sys, o)
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, fail(statusFailed, "is sysfs mounted? --sysroot takes the folder that holds sys/", "%w", err)
	}
	src.knows(inv)
	return inv, nil
}
