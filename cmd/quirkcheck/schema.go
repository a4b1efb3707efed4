package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quirkcheck/quirkcheck/schema"
)

func (a *app) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:       "schema [NAME]",
		Short:     "Print a schema: what an entry, a report or the configuration may hold",
		Long:      "Schema prints a JSON Schema (2020-12) with a description and unit of every field.\nWithout NAME it lists the names; a name without version is the newest.",
		Example:   "  quirkcheck schema\n  quirkcheck schema quirk\n  quirkcheck schema report > report.schema.json",
		Args:      cobra.MaximumNArgs(1),
		ValidArgs: schema.Names(),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				_, err := fmt.Fprintln(a.stdout, strings.Join(schema.Names(), "\n"))
				return err
			}
			text, err := schema.Text(args[0])
			if err != nil {
				return fail(statusUsage, "quirkcheck schema lists the names", "%w", err)
			}
			_, err = a.stdout.Write(text)
			return err
		},
	}
}
