package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) configCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Look at the configuration",
		Args:  cobra.NoArgs,
		RunE:  helpOnly,
	}
	view := &cobra.Command{
		Use:   "view",
		Short: "Print every key, its value and where the value comes from",
		Long: `View prints the configuration in force. A value comes, in this order, from a
flag, the environment (QUIRKCHECK_FAIL_ON for fail_on), the file (--config,
QUIRKCHECK_CONFIG, /etc/quirkcheck/config.yaml, the user's configuration
folder), or the default. quirkcheck schema config describes the keys.`,
		Example: "  quirkcheck config view\n  QUIRKCHECK_FAIL_ON=high quirkcheck config view --config ./config.yaml",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := a.config(cmd); err != nil {
				return err
			}
			w := &errWriter{w: a.stdout}
			file := a.viper.ConfigFileUsed()
			if file != "" {
				w.line("# file: %s", clean(file))
			} else {
				w.line("# file: none")
			}
			keys := slices.Sorted(maps.Keys(configDefaults))
			for _, k := range append(keys, "suppress") {
				if v := a.viper.Get(k); v != nil {
					w.line("%s: %s  # %s", k, clean(yamlValue(v)), a.origin(k))
				}
			}
			return w.err
		},
	}
	cmd.AddCommand(view)
	return cmd
}

func yamlValue(v any) string {
	switch t := v.(type) {
	case []string:
		return "[" + strings.Join(t, ", ") + "]"
	case []any:
		return fmt.Sprintf("%d rules", len(t))
	}
	return fmt.Sprint(v)
}

// origin names the source that viper took a key from.
func (a *app) origin(key string) string {
	env := "QUIRKCHECK_" + strings.ToUpper(key)
	switch {
	case os.Getenv(env) != "":
		return "environment " + env
	case a.viper.InConfig(key):
		return "file"
	}
	return "default"
}

// helpOnly is what a command that only groups others does.
func helpOnly(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fail(statusUsage, cmd.CommandPath()+" --help", "unknown command %q for %q", args[0], cmd.CommandPath())
	}
	if err := cmd.Help(); err != nil {
		return err
	}
	return silent(statusUsage)
}
