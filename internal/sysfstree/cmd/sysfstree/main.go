// Command sysfstree writes the sysfs tree of package sysfstree into a folder,
// for benchmarks:
//
//	sysfstree -disks 1000 -adapters 42 DIR
//
// Files of equal content are hard links of one another unless -share=false.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/quirkcheck/quirkcheck/internal/sysfstree"
)

func main() { os.Exit(run(os.Args[1:], os.Stderr)) }

func run(args []string, stderr io.Writer) int {
	flags := flag.NewFlagSet("sysfstree", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: sysfstree [flags] DIR")
		flags.PrintDefaults()
	}
	var o sysfstree.Options
	flags.IntVar(&o.Disks, "disks", 1000, "number of disks")
	flags.IntVar(&o.Adapters, "adapters", 42, "number of adapters they are spread over")
	flags.BoolVar(&o.Healthy, "healthy", false, "leave out the disks with a known quirk")
	flags.BoolVar(&o.Share, "share", true, "make files of equal content hard links")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() != 1 {
		flags.Usage()
		return 2
	}
	if err := sysfstree.Write(flags.Arg(0), o); err != nil {
		fmt.Fprintln(stderr, "sysfstree:", err)
		return 1
	}
	return 0
}
