package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quirkcheck/quirkcheck/quirks"
)

// release is set by the release build: -ldflags "-X main.release=v1.2.3".
var release string

// version is the release, or what the Go tool recorded of the source.
func version() string {
	if release != "" {
		return release
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	rev, dirty := "", ""
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			rev = s.Value[:min(12, len(s.Value))]
		case "vcs.modified":
			if s.Value == "true" {
				dirty = "+changes"
			}
		}
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	if rev == "" {
		return "devel"
	}
	return "devel-" + rev + dirty
}

func (a *app) versionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version of the tool and of its database",
		Example: "  quirkcheck version\n  quirkcheck version --json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := quirks.BuiltinVersion()
			if asJSON {
				return writeJSON(a.stdout, map[string]any{"version": version(), "go": runtime.Version(),
					"database": map[string]any{"version": v.Version, "serial": v.Serial}})
			}
			_, err := fmt.Fprintf(a.stdout, "quirkcheck %s, database %s (serial %d), %s\n", version(), v.Version, v.Serial, strings.TrimPrefix(runtime.Version(), "go "))
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
