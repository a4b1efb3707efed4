package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/probe/klog"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// journal is the word for --log that stands for the log of the running kernel.
const journal = "journal"

// machineLog is the log that goes with a machine.
type machineLog struct {
	checker.LogInput
	err error // why it could not be read to its end
}

// logOf reads the log that --log names, of the machine that --sysroot or
// --input does; nil for no name.
func (a *app) logOf(ctx context.Context, name, sysroot, input string) (*machineLog, error) {
	if name == "" {
		return nil, nil
	}
	if name == "-" && input == "-" {
		return nil, fail(statusUsage, "", "--log - and --input -: standard input can be read once")
	}
	other := ""
	switch {
	case input != "":
		other = "--input"
	case sysroot != "":
		other = "--sysroot"
	}
	in, err := a.readLog(ctx, name, other)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	var se *statusError
	if errors.As(err, &se) && se.status == statusUsage {
		return nil, err
	}
	return &machineLog{in, err}, nil
}

// proofs are what the log shows of the quirks that the kernel applies.
func (l *machineLog) proofs(all *probe.Inventory) checker.Proofs {
	if l == nil {
		return nil
	}
	return checker.LogProofs(all, l.LogInput)
}

// addTo ties the log to the devices of a report; all is the whole machine.
func (l *machineLog) addTo(r *checker.Report, all *probe.Inventory, db *quirks.Set) {
	if l == nil {
		return
	}
	r.AddSymptoms(all, db, l.LogInput)
	n := checker.Note{What: "log", State: probe.Unreadable.String(), Source: l.Source}
	switch {
	case l.err != nil:
		n.Why = l.err.Error()
	case l.Log.Known == 0:
		n.State, n.Why = probe.Known.String(), fmt.Sprintf("none of its %d lines says anything of a block device; is it a kernel log?", l.Log.Lines)
	default:
		return
	}
	r.Notes = append(r.Notes, n)
}

func (l *machineLog) failed() error {
	if l == nil {
		return nil
	}
	return l.err
}

// readLog reads the log that --log names; other is the option that says that
// the machine is not this one. An error that is no statusUsage comes with what
// could be read.
func (a *app) readLog(ctx context.Context, name, other string) (checker.LogInput, error) {
	in := checker.LogInput{Source: name, Log: &klog.Log{Boots: 1}}
	ofThis := func() error {
		return fail(statusUsage, "take the log of that machine: journalctl -k -b there, or its /var/log/kern.log",
			"--log %s is the log of this machine, and %s another one", name, other)
	}
	if other != "" && name == journal {
		return in, ofThis()
	}
	switch name {
	case journal:
		return a.readJournal(ctx)
	case "-":
		in.Source = "standard input"
	}
	r := a.stdin
	if name != "-" {
		f, live, err := openLog(name)
		if err != nil {
			return in, fail(statusUsage, "--log takes a file, - for standard input, or "+journal, "%w", err)
		}
		defer f.Close()
		if live && other != "" {
			return in, ofThis()
		}
		r, in.Live = f, live
	}
	log, err := parseLog(ctx, r)
	in.Log = log
	switch {
	case err == nil, ctx.Err() != nil:
		return in, ctx.Err()
	case errors.Is(err, klog.ErrCompressed):
		return in, fail(statusUsage, "zcat "+name+" | quirkcheck scan --log -", "read %s: %w", in.Source, err)
	}
	return in, fail(statusFailed, "", "read %s: %w", in.Source, err)
}

// openLog opens a file; live tells /dev/kmsg.
func openLog(name string) (io.ReadCloser, bool, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, false, err
	}
	if info.IsDir() {
		return nil, false, &os.PathError{Op: "read", Path: name, Err: syscall.EISDIR}
	}
	// Character device 1:11 (Documentation/admin-guide/devices.txt).
	if st, ok := info.Sys().(*syscall.Stat_t); ok && info.Mode()&os.ModeCharDevice != 0 && st.Rdev == 1<<8|11 {
		fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
		if err != nil {
			return nil, false, &os.PathError{Op: "open", Path: name, Err: err}
		}
		return &kmsgReader{fd: fd, buf: make([]byte, 16<<10)}, true, nil
	}
	f, err := os.Open(name)
	return f, false, err
}

// kmsgReader reads the records that /dev/kmsg holds now. A read gives one
// record and fails where that does not fit (Documentation/ABI/testing/dev-kmsg).
type kmsgReader struct {
	fd        int
	buf, rest []byte
}

func (k *kmsgReader) Read(b []byte) (int, error) {
	for len(k.rest) == 0 {
		n, err := syscall.Read(k.fd, k.buf)
		switch {
		case errors.Is(err, syscall.EPIPE), errors.Is(err, syscall.EINTR): // overwritten while it was read
		case errors.Is(err, syscall.EAGAIN), err == nil && n == 0:
			return 0, io.EOF
		case err != nil:
			return 0, os.NewSyscallError("read", err)
		default:
			k.rest = k.buf[:n]
		}
	}
	n := copy(b, k.rest)
	k.rest = k.rest[n:]
	return n, nil
}

func (k *kmsgReader) Close() error { return syscall.Close(k.fd) }

// parseLog reads a log. A pipe may never end, so that an interrupt does not
// wait for it.
func parseLog(ctx context.Context, r io.Reader) (*klog.Log, error) {
	type result struct {
		log *klog.Log
		err error
	}
	done := make(chan result, 1)
	go func() {
		log, err := klog.Read(r)
		done <- result{log, err}
	}()
	select {
	case <-ctx.Done():
		return &klog.Log{Boots: 1}, ctx.Err()
	case r := <-done:
		return r.log, r.err
	}
}

// readJournal reads the log of the running kernel from journald, and where that
// has none from dmesg.
func (a *app) readJournal(ctx context.Context) (checker.LogInput, error) {
	in := checker.LogInput{Source: journal, Log: &klog.Log{Boots: 1}, Live: true}
	var why []string
	for _, c := range [][]string{{"journalctl", "-k", "-o", "short-monotonic", "--no-pager"}, {"dmesg"}} {
		log, err := runLog(ctx, c)
		if ctx.Err() != nil {
			return in, ctx.Err()
		}
		if err == nil {
			in.Log = log
			if in.Source = strings.Join(c, " "); c[0] != "journalctl" {
				fmt.Fprintf(a.stderr, "quirkcheck: reading dmesg instead (%s)\n", clean(why[0]))
			}
			return in, nil
		}
		why = append(why, c[0]+": "+err.Error())
	}
	return in, fail(statusFailed, "run it as root or as a member of systemd-journal or adm, or give a file: --log /var/log/kern.log",
		"read the kernel's log: %s", strings.Join(why, "; "))
}

var errNoLines = errors.New("shows no line of the kernel")

func runLog(ctx context.Context, command []string) (*klog.Log, error) {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return nil, errors.New("not found")
	}
	cmd := exec.CommandContext(ctx, path, command[1:]...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "SYSTEMD_COLORS=0")
	var talk limitedBuffer
	cmd.Stderr = &talk
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	log, readErr := klog.Read(out)
	_, _ = io.Copy(io.Discard, out) // lest it waits for a reader
	switch err := cmd.Wait(); {
	case err != nil && talk.Len() > 0:
		return nil, errors.New(talk.line())
	case err != nil:
		return nil, err
	case readErr != nil:
		return nil, readErr
	// journalctl without the right to read says so on a line, with status 0.
	case log.Lines <= 1 && talk.Len() > 0:
		return nil, errors.New(talk.line())
	case log.Lines <= 1 && log.Known == 0:
		return nil, errNoLines
	}
	return log, nil
}

// limitedBuffer keeps the start of what a program says on stderr.
type limitedBuffer struct{ bytes.Buffer }

func (l *limitedBuffer) Write(b []byte) (int, error) {
	if room := 4096 - l.Len(); room > 0 {
		l.Buffer.Write(b[:min(len(b), room)])
	}
	return len(b), nil
}

func (l *limitedBuffer) line() string {
	return strings.Join(strings.Fields(string(l.Bytes()[:min(l.Len(), 300)])), " ")
}
