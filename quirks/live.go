package quirks

import (
	"strings"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

// Live is what a machine itself shows of the quirks that its running kernel
// applies to a device. It says nothing about another kernel: whoever asks a
// subject under another release takes it off, or finds On to differ.
type Live struct {
	On    kernel.Release
	Flags []LiveFlag
	// Whole are the sources that list every flag of a kind: one that is not
	// listed is not applied.
	Whole []LiveList
	// Settings are those that the kernel made of its own quirks and of the device,
	// ncq and queued_trim: another kernel may make others.
	Settings map[string]Value
}

// live is what is shown of the kernel that the subject is asked under.
func (s *Subject) live() *Live {
	if s.Live == nil || s.Live.On != s.Kernel {
		return nil
	}
	return s.Live
}

// Setting returns a setting as it was observed, or as the subject's kernel is
// shown to have made it.
func (s *Subject) Setting(name string) (v Value, ok bool) {
	if v, ok = s.Settings[name]; !ok && s.live() != nil {
		v, ok = s.live().Settings[name]
	}
	return v, ok
}

// LiveFlag is one flag of the kernel's, shown to be applied or not to be.
type LiveFlag struct {
	Flag    string // as NormalFlag has it
	Applied bool
	By      string // kernel, or setting: somebody set it by a parameter
	Source  string // file relative to the machine's root, or place in a log
	Text    string // what stands there, in words
}

// LiveList is a source that lists all flags whose name starts with Prefix.
type LiveList struct{ Prefix, Source, Text string }

// NormalFlag is a flag's name without the change of 6.12, when libata's
// ATA_HORKAGE_ became ATA_QUIRK_.
func NormalFlag(name string) string {
	if rest, ok := strings.CutPrefix(name, "ATA_HORKAGE_"); ok {
		return "ATA_QUIRK_" + rest
	}
	return name
}

// Shows answers for one flag of the subject's kernel; ok is false where nothing
// shows it.
func (s *Subject) Shows(flag string) (f LiveFlag, ok bool) { return s.live().Of(flag) }

// Of answers for one flag; ok is false where nothing shows it. What was taken
// down first counts.
func (l *Live) Of(flag string) (f LiveFlag, ok bool) {
	if l == nil {
		return f, false
	}
	flag = NormalFlag(flag)
	for _, f := range l.Flags {
		if f.Flag == flag {
			return f, true
		}
	}
	for _, w := range l.Whole {
		if strings.HasPrefix(flag, w.Prefix) {
			return LiveFlag{Flag: flag, By: "kernel", Source: w.Source, Text: w.Text}, true
		}
	}
	return f, false
}

// FlagLine is one protection of the kernel's: the names that its flag has had,
// and the limit it sets, 512-byte sectors, 0 for none.
type FlagLine struct {
	Names      []string
	MaxSectors uint32
}

// FlagLines returns the protections that an entry knows on a path, of whatever
// release. A line without a name is not among them.
func (e *Entry) FlagLines(path string) []FlagLine {
	if e.Kernel == nil {
		return nil
	}
	var out []FlagLine
	for i := range e.Kernel.Mitigated {
		m := &e.Kernel.Mitigated[i]
		if len(m.Flag) == 0 || m.Path.matchPath(path) != True {
			continue
		}
		line := FlagLine{}
		for _, f := range m.Flag {
			line.Names = append(line.Names, f.Name)
		}
		if m.Limits != nil {
			line.MaxSectors = m.Limits.MaxSectors
		}
		out = append(out, line)
	}
	return out
}
