package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/quirkcheck/quirkcheck/checker"
)

// symptomsShown bounds the table of symptoms.
const symptomsShown = 40

// symptoms prints what a log and the devices' counters tell.
func (a *app) symptoms(r *checker.Report, show string) error {
	w := &errWriter{w: a.stdout}
	w.line("")
	where := fmt.Sprintf("%s (%s, %s)", clean(r.Log.Source), plural(r.Log.Lines, "line"), plural(uint64(r.Log.Boots), "boot"))
	if r.Log.Counters {
		where += " and in the devices' counters"
	}
	if len(r.Symptoms) == 0 {
		w.line("Symptoms: none in %s. Damaged data leave no line there.", where)
	} else {
		w.line("Symptoms in %s", where)
		shown := r.Symptoms
		if show != "all" {
			shown = shown[:min(len(shown), symptomsShown)]
		}
		if w.err == nil {
			w.err = symptomTable(a.stdout, shown)
		}
		if n := len(r.Symptoms) - len(shown); n > 0 {
			w.line("and %d more; --show all lists them, and --format json", n)
		}
		symptomMeanings(w, shown)
	}
	if !r.Log.Counters {
		w.line("The devices' counters of errors are not in the capture.")
	}
	if r.Log.Other > 0 {
		w.line("%s about other devices not listed; quirkcheck scan without DEV lists them.", plural(r.Log.Other, "line"))
	}
	if r.Log.Dropped > 0 {
		w.line("%s not counted: too many different ones.", plural(r.Log.Dropped, "line"))
	}
	return w.err
}

func plural(n uint64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func symptomTable(out io.Writer, list []checker.Symptom) error {
	tw := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "DEVICE\tIN THE LOG\tKIND\tCOMMAND\tCOUNT\tLARGEST\tFROM\tLAST")
	for _, s := range list {
		name, last := s.Name, "-"
		if s.Last == nil {
			name = "-" // a counter
		} else {
			last = s.Last.Time
			if last == "" {
				last = fmt.Sprintf("line %d", s.Last.Line)
			}
		}
		op := "-"
		switch {
		case s.Op != nil && *s.Op != "":
			op = *s.Op
		case s.Detail != "":
			op = s.Detail
		}
		size := "-"
		if s.MaxSectors != nil {
			size = sectorsText(*s.MaxSectors)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", clean(symptomDevice(s)), clean(name), clean(s.Kind), clean(op), s.Count, size, clean(s.Source), clean(last))
	}
	return tw.Flush()
}

// symptomDevice is the device, with ? where it is not certain.
func symptomDevice(s checker.Symptom) string {
	switch {
	case s.Device == nil:
		return "none"
	case !s.Certain:
		return *s.Device + "?"
	}
	return *s.Device
}

func sectorsText(n uint64) string {
	if n%2 == 0 {
		return fmt.Sprintf("%d sectors (%dK)", n, n/2)
	}
	return fmt.Sprintf("%d sectors", n)
}

// symptomMeanings says once a device and meaning what the largest command
// means, and why a name is tied to no device or not for sure.
func symptomMeanings(w *errWriter, list []checker.Symptom) {
	said := map[string]bool{}
	say := func(format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		if !said[text] {
			w.line("%s", text)
		}
		said[text] = true
	}
	for _, s := range list {
		if s.Device != nil && s.MaxSectors != nil {
			say("%s: %s (%s): %s.", clean(*s.Device), commandText(s), clean(s.Source), clean(s.Meaning))
		}
	}
	for _, s := range list {
		switch {
		case s.Device == nil:
			was := ""
			if s.Was != nil {
				was = " (" + clean(*s.Was) + ")"
			}
			say("none: %s%s: %s.", clean(s.Name), was, clean(s.Why))
		case !s.Certain:
			say("%s?: %s: %s.", clean(*s.Device), clean(s.Name), clean(s.Why))
		}
	}
}

func commandText(s checker.Symptom) string {
	if s.Op == nil {
		return clean(s.Kind)
	}
	return clean(s.Kind + " of " + *s.Op)
}

// explainSymptoms prints the symptoms of the one device of a report.
func explainSymptoms(w *errWriter, r *checker.Report) {
	if r.Log == nil {
		return
	}
	w.line("")
	w.line("Symptoms (%s, %s, %s)", clean(r.Log.Source), plural(r.Log.Lines, "line"), plural(uint64(r.Log.Boots), "boot"))
	if len(r.Symptoms) == 0 {
		w.line("  none. Damaged data leave no line in a log.")
	}
	for i, s := range r.Symptoms {
		if i == symptomsShown {
			w.line("  and %d more; quirkcheck scan --log lists them", len(r.Symptoms)-i)
			break
		}
		text := fmt.Sprintf("%s, %s", commandText(s), plural(s.Count, "time"))
		if s.Detail != "" {
			text += ", " + clean(s.Detail)
		}
		w.line("  %s  (%s)", text, w.file(s.Source))
		if s.First != nil {
			sure := "certain"
			if !s.Certain {
				sure = "not certain"
			}
			w.line("    as %s: %s (%s)", clean(s.Name), clean(s.Why), sure)
			lines := fmt.Sprintf("line %d", s.First.Line)
			if s.Last.Line > s.First.Line {
				lines = fmt.Sprintf("lines %d to %d", s.First.Line, s.Last.Line)
			}
			w.line("    %s%s", lines, timesText(s))
		}
		if len(s.Sizes) > 0 {
			var sizes []string
			for _, c := range s.Sizes[:min(len(s.Sizes), 8)] {
				sizes = append(sizes, fmt.Sprintf("%d (%d)", c.Sectors, c.Count))
			}
			lba := ""
			if s.LBA != nil {
				lba = fmt.Sprintf("; the largest at LBA %d", *s.LBA)
			}
			w.line("    sectors (commands): %s%s", strings.Join(sizes, ", "), lba)
		}
		w.line("    means: %s", clean(s.Meaning))
		if s.Sample != "" {
			w.line("    %s", clean(s.Sample))
		}
	}
	if r.Log.Other > 0 {
		w.line("  %s about other devices or none", plural(r.Log.Other, "line"))
	}
}

func timesText(s checker.Symptom) string {
	switch {
	case s.First.Time == "":
		return ""
	case s.First.Time == s.Last.Time:
		return ", " + clean(s.First.Time)
	}
	return ", " + clean(s.First.Time) + " to " + clean(s.Last.Time)
}
