package main

import (
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

func (a *app) manCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "man FOLDER",
		Short:   "Write the manual pages into a folder",
		Example: "  quirkcheck man /usr/local/share/man/man1",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fail(statusFailed, "", "%w", err)
			}
			date := time.Unix(0, 0).UTC()
			header := &doc.GenManHeader{Title: "QUIRKCHECK", Section: "1", Source: "quirkcheck", Date: &date}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return fail(statusFailed, "", "%w", err)
			}
			return nil
		},
	}
}
