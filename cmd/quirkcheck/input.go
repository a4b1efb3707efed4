package main

import (
	"errors"
	"io/fs"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/quirkcheck/quirkcheck/checker/enforce"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/probe/capture"
)

// source is a machine to read: the live one, a copy of its tree, or a capture.
type source struct {
	sys      fs.FS
	close    func()
	pageSize int              // bytes; 0: not known
	arch     string           // as uname -m has it; "": not known
	capture  *capture.Capture // nil: it is no capture
}

// open opens what --sysroot or --input names, / without either.
func (a *app) open(sysroot, input string) (source, error) {
	switch {
	case sysroot != "" && input != "":
		return source{}, fail(statusUsage, "", "give --sysroot or --input, not both")
	case input != "":
		return a.openCapture(input)
	}
	s := source{}
	if sysroot == "" { // a copied tree says neither
		sysroot, s.pageSize = "/", os.Getpagesize()
		if m := capture.RunningKernel().Machine; m != nil {
			s.arch = *m
		}
	}
	root, err := probe.OpenRoot(sysroot)
	if err != nil {
		return source{}, fail(statusFailed, "--sysroot takes the folder that holds sys/", "%w", err)
	}
	s.sys, s.close = root, func() { root.Close() }
	return s, nil
}

func (a *app) openCapture(input string) (source, error) {
	var c *capture.Capture
	var err error
	if input == "-" {
		c, err = capture.Read(a.stdin)
	} else {
		c, err = capture.ReadFile(input)
	}
	var fault *capture.Fault
	switch {
	case errors.As(err, &fault):
		return source{}, fail(statusFailed, "quirkcheck schema capture describes the format, quirkcheck capture -o FILE makes one", "%s: %w", input, err)
	case err != nil:
		return source{}, fail(statusFailed, "--input takes a file that quirkcheck capture wrote, - for standard input", "%w", err)
	}
	s := source{sys: c.FS(), close: func() {}, capture: c}
	if p := c.Host.Kernel.PageSize; p != nil {
		s.pageSize = *p
	}
	if m := c.Host.Kernel.Machine; m != nil {
		s.arch = *m
	}
	return s, nil
}

// knows adds to an inventory what its tree does not tell.
func (s source) knows(inv *probe.Inventory) {
	if s.pageSize > 0 {
		inv.Machine["page_size"] = strconv.Itoa(s.pageSize)
	}
	if s.arch != "" {
		inv.Machine["arch"] = s.arch
	}
}

// setters are those that the machine's configuration holds.
func (s source) setters(root string) []enforce.Setter {
	if s.capture == nil {
		return enforce.OtherSetters(root)
	}
	out := []enforce.Setter{}
	for _, t := range s.capture.Setters {
		out = append(out, enforce.Setter{File: t.File, Line: t.Line, Text: t.Text, After: t.After})
	}
	return out
}

// inputFlag adds --input, and says that it and --sysroot exclude each other.
func inputFlag(cmd *cobra.Command, input *string) {
	cmd.Flags().StringVar(input, "input", "", "read the machine from a capture in `file`, - for standard input")
	cmd.MarkFlagsMutuallyExclusive("input", "sysroot")
}
