package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// matchLine is the answer to one subject.
type matchLine struct {
	Verdict        checker.Verdict `json:"verdict"`
	SafeMaxSectors *uint64         `json:"safe_max_sectors"`
	Matches        []matchEntry    `json:"matches"`
	Ignored        []string        `json:"ignored,omitempty"`
	Error          string          `json:"error,omitempty"`
}

type matchEntry struct {
	Quirk       string          `json:"quirk"`
	Verdict     checker.Verdict `json:"verdict"`
	Effect      quirks.Effect   `json:"effect"`
	Severity    quirks.Severity `json:"severity"`
	KernelFlags []string        `json:"kernel_flags"`
}

func (a *app) dbMatchCommand() *cobra.Command {
	var space, model, firmware, vendor, product, revision, path, release, input, format string
	cmd := &cobra.Command{
		Use:   "match",
		Short: "Ask the database about an identity, without the device",
		Long: `Match answers what the database says about one identity given by flags, or
about every line of --input: one JSON object a line with the keys device, scsi,
adapter, usb, machine, stack, kernel, cmdline, path, limits and settings. What
is left out is unknown. With --format jsonl every input line gets one line of
answer, in order, an unreadable one with "error"; the exit status is then 0
whatever the verdicts.`,
		Example: `  quirkcheck db match --space ata --model ST380013AS --firmware 3.20 --kernel 6.18.15
  quirkcheck db match --space scsi --vendor ATA --product "INTEL SSDSC2KG48" --revision 0120
  quirkcheck db match --input subjects.jsonl --format jsonl`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			db, err := a.dbSet(cmd)
			if err != nil {
				return err
			}
			var rel kernel.Release
			if release != "" {
				if rel, err = kernel.Parse(release); err != nil {
					return fail(statusUsage, "", "%w", err)
				}
			}
			if format != "table" && format != "json" && format != "jsonl" {
				return fail(statusUsage, "", "format %q: want table, json or jsonl", format)
			}
			if input != "" {
				return a.matchLines(input, format, db, rel)
			}
			device := map[string]any{"space": space}
			for k, v := range map[string]string{"model": model, "firmware": firmware, "vendor": vendor, "product": product, "revision": revision} {
				if cmd.Flags().Changed(k) {
					device[k] = v
				}
			}
			if space == "" {
				return fail(statusUsage, "quirkcheck db match --help", "want --space with an identity, or --input")
			}
			m := map[string]any{"device": device}
			if path != "" {
				m["path"] = path
			}
			sub, _, err := quirks.DecodeSubject(m)
			if err != nil {
				return fail(statusUsage, "", "%w", err)
			}
			sub.Kernel = rel
			line := answer(&sub, db)
			if format != "table" {
				return writeJSON(a.stdout, line)
			}
			return a.matchTable(line)
		},
	}
	f := cmd.Flags()
	f.StringVar(&space, "space", "", "identity `space`: ata, scsi, nvme")
	f.StringVar(&model, "model", "", "ata, nvme: `model`")
	f.StringVar(&firmware, "firmware", "", "ata, nvme: `firmware` revision")
	f.StringVar(&vendor, "vendor", "", "scsi: T10 `vendor` identification")
	f.StringVar(&product, "product", "", "scsi: `product` identification, with its padding where known")
	f.StringVar(&revision, "revision", "", "scsi: product `revision` level")
	f.StringVar(&path, "path", "", "`path` to the device: libata, scsi, usb-storage, ...")
	f.StringVar(&release, "kernel", "", "kernel `release`, for subjects that name none")
	f.StringVar(&input, "input", "", "`file` of JSON lines, - for standard input")
	f.StringVar(&format, "format", "table", "output `format`: table, json, jsonl")
	return cmd
}

// answer is what Check would say of a subject.
func answer(sub *quirks.Subject, db *quirks.Set) matchLine {
	j := checker.Judge(sub, db, checker.Policy{})
	line := matchLine{Verdict: j.Verdict, SafeMaxSectors: j.Safe.MaxSectors, Matches: []matchEntry{}}
	verdicts := map[string]checker.Verdict{}
	for _, f := range j.Findings {
		verdicts[f.Quirk] = f.Verdict
		if _, isEntry := db.Entry(f.Quirk); !isEntry {
			line.Matches = append(line.Matches, matchEntry{f.Quirk, f.Verdict, f.Effect, f.Severity, []string{}})
		}
	}
	at := map[string]int{}
	for _, m := range j.Matches {
		v, ok := verdicts[m.Entry.ID]
		if !ok {
			if m.Truth != quirks.True || m.Entry.Change() {
				continue // nothing but a missing identity, or an answer about the host, keeps it open
			}
			v = checker.NotAffected // a capability is no finding
		}
		at[m.Entry.ID] = len(line.Matches)
		line.Matches = append(line.Matches, matchEntry{m.Entry.ID, v, m.Entry.Effect, m.Entry.Severity, []string{}})
	}
	// The kernel's tables look at the device alone: a rule that asks for an
	// adapter as well sets its flag whatever the adapter.
	for _, e := range db.Named(sub) {
		flags := e.KernelFlags(sub.Kernel)
		if len(flags) == 0 {
			continue
		}
		i, ok := at[e.ID]
		if !ok {
			i = len(line.Matches)
			line.Matches = append(line.Matches, matchEntry{e.ID, checker.NotAffected, e.Effect, e.Severity, nil})
		}
		line.Matches[i].KernelFlags = flags
	}
	slices.SortStableFunc(line.Matches, func(a, b matchEntry) int { return strings.Compare(a.Quirk, b.Quirk) })
	return line
}

const maxLine = 1 << 20

func (a *app) matchLines(input, format string, db *quirks.Set, rel kernel.Release) error {
	var in io.Reader = a.stdin
	if input != "-" {
		f, err := os.Open(input)
		if err != nil {
			return fail(statusUsage, "", "%w", err)
		}
		defer f.Close()
		in = f
	}
	br := bufio.NewReaderSize(in, 64<<10)
	out := bufio.NewWriter(a.stdout)
	lines := []matchLine{}
	for n := 0; ; {
		batch, more, err := readBatch(br)
		var re *readError
		if errors.As(err, &re) { // what came is answered below, and the rest is not passed over
			err = fail(statusFailed, "", "read %s after %d lines: %w", input, n+len(batch), re.err)
		}
		answers := matchBatch(batch, n, db, rel)
		n += len(batch)
		for _, line := range answers {
			if format != "jsonl" {
				lines = append(lines, line)
				continue
			}
			b, err := json.Marshal(line)
			if err != nil {
				return err
			}
			if _, err := out.Write(append(escapeJSON(b), '\n')); err != nil {
				return err
			}
		}
		if err != nil {
			return errors.Join(out.Flush(), err)
		}
		if !more {
			break
		}
	}
	if format == "json" {
		return writeJSON(a.stdout, lines)
	}
	if format == "table" {
		for _, l := range lines {
			if err := a.matchTable(l); err != nil {
				return err
			}
		}
	}
	return out.Flush()
}

// inputLine is one line of the input, or why it could not be had.
type inputLine struct {
	text []byte
	err  error
}

// batchLines is how many lines are answered at a time: enough to keep every
// processor busy.
const batchLines = 1024

// readBatch reads up to batchLines lines; more is false at the end.
func readBatch(br *bufio.Reader) (batch []inputLine, more bool, err error) {
	for len(batch) < batchLines {
		text, err := readLine(br)
		var re *readError
		switch {
		case errors.Is(err, io.EOF):
			return batch, false, nil
		case errors.As(err, &re):
			return batch, false, err
		}
		batch = append(batch, inputLine{text, err})
	}
	return batch, true, nil
}

// matchBatch answers lines, in order; before them stood n others.
func matchBatch(batch []inputLine, n int, db *quirks.Set, rel kernel.Release) []matchLine {
	answers := make([]matchLine, len(batch))
	one := func(i int) {
		err := batch[i].err
		if err == nil {
			answers[i], err = matchText(batch[i].text, db, rel)
		}
		if err != nil {
			answers[i] = matchLine{Verdict: checker.Unknown, Matches: []matchEntry{}, Error: fmt.Sprintf("line %d: %v", n+i+1, err)}
		}
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(batch); i = int(next.Add(1)) - 1 {
				one(i)
			}
		})
	}
	wg.Wait()
	return answers
}

// readError is an input that broke off.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }

// readLine returns the next line; one over the bound is an error and skipped.
func readLine(br *bufio.Reader) ([]byte, error) {
	var text []byte
	long := false
	for {
		part, err := br.ReadSlice('\n')
		if len(text)+len(part) <= maxLine {
			text = append(text, part...)
		} else {
			long = true
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case err != nil && !errors.Is(err, io.EOF):
			return nil, &readError{err}
		case err != nil && len(text) == 0 && !long:
			return nil, io.EOF
		case long:
			return nil, fmt.Errorf("longer than %d bytes", maxLine)
		}
		return bytes.TrimSpace(text), nil
	}
}

func matchText(text []byte, db *quirks.Set, rel kernel.Release) (matchLine, error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var m map[string]any
	if err := dec.Decode(&m); err != nil {
		return matchLine{}, fmt.Errorf("no JSON object: %w", err)
	}
	if _, err := dec.Token(); m == nil || !errors.Is(err, io.EOF) {
		return matchLine{}, errors.New("want one JSON object on the line and nothing behind it")
	}
	sub, ignored, err := quirks.DecodeSubject(m)
	if err != nil {
		return matchLine{}, err
	}
	if !sub.Kernel.Known() {
		sub.Kernel = rel
	}
	line := answer(&sub, db)
	line.Ignored = ignored
	return line, nil
}

func (a *app) matchTable(l matchLine) error {
	if l.Error != "" {
		_, err := fmt.Fprintln(a.stdout, clean(l.Error))
		return err
	}
	tw := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	for _, m := range l.Matches {
		flags := ""
		for _, f := range m.KernelFlags {
			flags += " " + f
		}
		fmt.Fprintf(tw, "%s\t%s\t%s (%s)\t%s\n", clean(m.Quirk), m.Verdict, clean(string(m.Effect)), m.Severity, clean(flags))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	safe := "no bound known"
	if l.SafeMaxSectors != nil {
		safe = fmt.Sprintf("safe up to %d sectors", *l.SafeMaxSectors)
	}
	_, err := fmt.Fprintf(a.stdout, "%s; %s\n", l.Verdict, safe)
	return err
}
