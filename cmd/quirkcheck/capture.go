package main

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quirkcheck/quirkcheck/checker/enforce"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/probe/capture"
)

// defaultHostKey makes the host's id.
const defaultHostKey = "/var/lib/quirkcheck/host.key"

type captureFlags struct {
	output, sysroot, label, key string
	include, force, yes         bool
}

func (a *app) captureCommand() *cobra.Command {
	var o captureFlags
	cmd := &cobra.Command{
		Use:   "capture -o FILE",
		Short: "Record what a scan reads, without serial numbers, for another machine to read",
		Long: `Capture writes what a scan reads of this machine, and nothing else, as one JSON
object. Every command that reads a machine reads it with --input and gives the
same answer byte for byte: a bug report is a test, and a fleet can be looked at
from one desk. It needs no root and sends no command to a device.

Serial numbers, world wide names, UUIDs, network addresses, names of targets, of
the host and of its volumes are replaced by pseudonyms, in text and in binary
data; what was replaced is shown before it is written. --include-serials keeps them. Model and firmware stay:
they are what the capture is for. quirkcheck schema capture describes the format.

The host's id in it is an HMAC with a key that stays on this machine, so it
tells captures of one machine from others' and nothing else.`,
		Example: `  quirkcheck capture -o web01.json.gz
  quirkcheck scan --input web01.json.gz
  quirkcheck capture -o - | ssh desk quirkcheck scan --input -
  quirkcheck capture --sysroot ./copied-tree -o case.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.runCapture(cmd, o) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.output, "output", "o", "", "write to `file`, - for standard output; gzip where it ends in .gz")
	f.StringVar(&o.sysroot, "sysroot", "", "record the tree in `folder`, which holds sys/, instead of /")
	f.BoolVar(&o.include, "include-serials", false, "replace nothing")
	f.StringVar(&o.label, "host-label", "", "name the host in the capture with this `text`")
	f.BoolVar(&o.force, "force", false, "overwrite the file")
	f.BoolVarP(&o.yes, "yes", "y", false, "do not ask before writing; nothing is asked without a terminal")
	f.StringVar(&o.key, "host-key", defaultHostKey, "`file` of this host's key, made where it is missing")
	return cmd
}

func (a *app) runCapture(cmd *cobra.Command, o captureFlags) error {
	switch {
	case o.output == "":
		return fail(statusUsage, "-o - writes to standard output", "-o is missing: where to write the capture")
	case len(o.label) > 256 || clean(o.label) != o.label:
		return fail(statusUsage, "", "host-label: want at most 256 printable characters")
	}
	toFile := o.output != "-"
	if toFile {
		switch info, err := os.Lstat(o.output); {
		case err == nil && !info.Mode().IsRegular():
			return fail(statusUsage, "-o - writes to standard output", "%s is no file to write to", o.output)
		case err == nil && !o.force:
			return fail(statusUsage, "--force overwrites it", "%s is there already", o.output)
		}
	}
	src, err := a.open(o.sysroot, "")
	if err != nil {
		return err
	}
	defer src.close()
	step, stop := a.progress()
	take := capture.Options{
		Probe:          probe.Options{Progress: step},
		IncludeSerials: o.include, Label: o.label, ToolVersion: version(), Now: a.now(),
	}
	take.Setters = []capture.Setter{}
	for _, s := range enforce.OtherSetters(cmp.Or(o.sysroot, "/")) {
		take.Setters = append(take.Setters, capture.Setter{File: s.File, Line: s.Line, Text: s.Text, After: s.After})
	}
	if o.sysroot == "" {
		take.Kernel = capture.RunningKernel()
		if name, err := os.Hostname(); err == nil {
			take.HostNames = []string{name}
		}
	}
	key, keyErr := capture.HostKey(o.key)
	take.Key = key
	rec, sum, err := capture.Take(cmd.Context(), src.sys, take)
	stop()
	if err != nil {
		if cmd.Context().Err() != nil {
			return cmd.Context().Err()
		}
		return fail(statusFailed, "is sysfs mounted? --sysroot takes the folder that holds sys/", "%w", err)
	}
	text, err := rec.Encode()
	if err != nil {
		return fail(statusFailed, "quirkcheck scan --format json is smaller", "%w", err)
	}
	text = escapeJSON(text)
	a.redacted(rec, sum)
	switch {
	case rec.Host.IDStable:
	case keyErr != nil:
		fmt.Fprintln(a.stderr, "quirkcheck: the host's id is of this capture only: "+clean(keyErr.Error()))
	default:
		fmt.Fprintln(a.stderr, "quirkcheck: the host's id is of this capture only: nothing tells the machine from others")
	}
	if ok, err := a.agreed(o, toFile); !ok {
		return err
	}
	if strings.HasSuffix(o.output, ".gz") {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, err := z.Write(text)
		if err := errors.Join(err, z.Close()); err != nil {
			return fail(statusFailed, "", "pack the capture: %w", err)
		}
		text = b.Bytes()
	}
	if !toFile {
		if _, err := a.stdout.Write(text); err != nil {
			return fail(statusFailed, "", "write the capture: %w", err)
		}
		return nil
	}
	if err := writeWhole(o.output, text, o.force); err != nil {
		return fail(statusFailed, "", "write the capture: %w", err)
	}
	fmt.Fprintf(a.stderr, "wrote %s: %d files, %d links, %d bytes\n", clean(o.output), len(rec.Files), len(rec.Links), len(text))
	return nil
}

// redacted tells what was replaced, and by what: the pseudonyms, never what
// they stand for.
func (a *app) redacted(rec *capture.Capture, sum capture.Summary) {
	if rec.Redaction.Serials == "included" {
		fmt.Fprintln(a.stderr, "redacted: nothing; the capture holds serial numbers, names of the host and its kernel command line")
		return
	}
	if len(sum.Kinds) == 0 && sum.Fields == 0 {
		fmt.Fprintln(a.stderr, "redacted: nothing was found that needs it")
	}
	for _, k := range sum.Kinds {
		list := k.Pseudonyms
		if len(list) > 4 {
			list = append(append([]string{}, list[:3]...), "...", list[len(list)-1])
		}
		fmt.Fprintf(a.stderr, "redacted: %4d %-16s %s\n", len(k.Pseudonyms), k.Kind, clean(strings.Join(list, " ")))
	}
	if sum.Fields > 0 {
		fmt.Fprintf(a.stderr, "redacted: %4d %-16s\n", sum.Fields, "cleared fields of the makers' own")
	}
	fmt.Fprintln(a.stderr, "model, firmware, limits and settings stay as they are")
}

// agreed asks, where there is somebody to ask.
func (a *app) agreed(o captureFlags, toFile bool) (bool, error) {
	in, ok := a.stdin.(*os.File)
	if o.yes || !toFile || !ok || !isTerminal(in) || !isTerminal(a.stderr) {
		return true, nil
	}
	fmt.Fprintf(a.stderr, "write %s? [Y/n] ", clean(o.output))
	line, err := bufio.NewReader(in).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return false, fail(statusFailed, "--yes does not ask", "read the answer: %w", err)
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "", "y", "yes":
		if err == nil {
			return true, nil
		}
	}
	fmt.Fprintln(a.stderr, "nothing was written")
	return false, nil
}

// writeWhole writes a file whole or not at all.
func writeWhole(name string, content []byte, replace bool) error {
	tmp, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name()) // gone already when the rename worked
	_, err = tmp.Write(content)
	if err := errors.Join(err, tmp.Chmod(0o644), tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if !replace {
		// Unlike a rename a link never replaces; not every file system has them.
		if err := os.Link(tmp.Name(), name); err == nil || errors.Is(err, fs.ErrExist) {
			return err
		}
		if _, err := os.Lstat(name); err == nil {
			return &fs.PathError{Op: "create", Path: name, Err: fs.ErrExist}
		}
	}
	return os.Rename(tmp.Name(), name)
}
