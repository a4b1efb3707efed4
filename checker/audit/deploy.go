package audit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/checker/enforce"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// PinFile is where the rules of recommend --pin-present go.
const PinFile = "/etc/udev/rules.d/89-quirkcheck-pin.rules"

// limits are the steps that put a limit on the devices at risk.
type limits struct {
	udev, multipath, pin Step
	texts                map[string][]string // by step's Do
	include              []string            // confidences beyond confirmed that the rules need
	done                 map[string]bool     // devices
}

var limitWords = map[string]string{"udev": "a rule of udev limits transfers", "multipath": "multipath.conf limits transfers", "pin": "a rule of udev holds what is safe"}

// deploy lists what to do before the upgrade: first the limits for the devices
// at risk, then what their entries name as cures; then, for who needs it, what
// holds the others at what they have, and what goes with faults that depend on
// an answer and with changes that are none.
func (h *Host) deploy(r *Report, to kernel.Release) []Step {
	l := limits{udev: Step{Do: "udev", Devices: []string{}}, multipath: Step{Do: "multipath", Devices: []string{}}, pin: Step{Do: "pin", Devices: []string{}},
		texts: map[string][]string{}, done: map[string]bool{}}
	for _, d := range r.Devices {
		if d.Change.Class != NewRisk {
			continue
		}
		for _, q := range d.Change.Quirks {
			if q.Then == checker.Affected {
				h.limit(&l, d, q)
			}
		}
	}
	steps := []Step{}
	for _, s := range []Step{l.udev, l.multipath, l.pin} {
		if len(s.Devices) == 0 {
			continue
		}
		s.Text = limitWords[s.Do] + ": " + strings.Join(l.texts[s.Do], "; ")
		switch s.Do {
		case "udev":
			s.Command = "quirkcheck recommend --emit udev" + l.included() + " > " + enforce.RulesPermanent + "/" + enforce.RuleFile
		case "multipath":
			s.Command = "quirkcheck recommend --emit multipath" + l.included()
		case "pin":
			s.Command = pinCommand(s.Devices)
		}
		steps = append(steps, s)
	}
	add := func(s Step, device string) {
		i := slices.IndexFunc(steps, func(o Step) bool { return o.Do == s.Do && o.Quirk == s.Quirk && o.Text == s.Text })
		if i < 0 {
			i = len(steps)
			steps = append(steps, s)
		}
		steps[i].Devices = appendNew(steps[i].Devices, device)
	}
	cures := func(id string, devices []string, optional bool) {
		e, ok := h.db.Entry(id)
		if !ok {
			return
		}
		for _, m := range e.Mitigations {
			for _, name := range devices {
				if m.Type == "set" && m.Knob == "max_sectors" && l.done[name] {
					continue
				}
				if text := mitigationText(e, m, to); text != "" {
					add(Step{Do: doing(m.Type), Quirk: id, Text: h.withPort(text, name), Optional: optional}, name)
				}
			}
		}
	}
	for _, d := range r.Devices {
		if d.Change.Class != NewRisk {
			continue
		}
		for _, q := range d.Change.Quirks {
			if q.Then == checker.Affected {
				cures(q.Quirk, []string{d.Name}, false)
			}
		}
	}
	// A change of behaviour is advice, unless it stops the machine.
	sure := func(g Regression) bool {
		return g.Verdict == checker.Affected && (!g.Change || g.Severity.Rank() >= quirks.High.Rank())
	}
	for _, g := range r.Regressions {
		if g.Direction == Enters && sure(g) {
			cures(g.Quirk, g.Devices, false)
		}
	}
	hold := Step{Do: "pin", Optional: true, Text: "holds these disks at the limit they have now, until the first hosts have run with the larger one", Devices: []string{}}
	for _, d := range r.Devices {
		if d.Change.rises && pinnable(d) && !l.done[d.Name] {
			hold.Devices = append(hold.Devices, d.Name)
		}
	}
	if len(hold.Devices) > 0 { // the file is one: what must be held stays in it
		hold.Command = pinCommand(slices.Concat(l.pin.Devices, hold.Devices))
		steps = append(steps, hold)
	}
	for _, g := range r.Regressions { // if need be
		if g.Direction == Enters && !sure(g) {
			cures(g.Quirk, g.Devices, true)
		}
	}
	return steps
}

// limit adds the limit that a finding asks for. What the running kernel holds by
// itself recommend has no rule for; there the present value is the safe one.
func (h *Host) limit(l *limits, d *Device, q QuirkChange) {
	bound := "the device's own limit"
	switch {
	case q.SafeMaxSectors != nil:
		bound = fmt.Sprintf("%d sectors", *q.SafeMaxSectors)
	case q.Quirk != "limit-above-vpd-max":
		return
	}
	now := h.byName[d.Name].findings
	i := slices.IndexFunc(now, func(f checker.Finding) bool { return f.Quirk == q.Quirk })
	ruled := i >= 0 && (now[i].Verdict == checker.Affected || now[i].MitigatedBy != nil && !now[i].MitigatedBy.Pinned)
	s, text := &l.udev, d.Name+" to "+bound+" ("+q.Quirk+")"
	switch {
	case ruled && pathOfMap(d):
		s = &l.multipath
	case ruled:
	case pinnable(d) && d.Change.FromKB != nil && q.SafeMaxSectors != nil && *d.Change.FromKB <= *q.SafeMaxSectors/2:
		s, text = &l.pin, fmt.Sprintf("%s at the %d KiB it has now (%s)", d.Name, *d.Change.FromKB, q.Quirk)
	default:
		return
	}
	if e, ok := h.db.Entry(q.Quirk); ok && e.Confidence != "confirmed" && ruled {
		l.include = appendNew(l.include, e.Confidence)
	}
	s.Devices = appendNew(s.Devices, d.Name)
	l.texts[s.Do] = append(l.texts[s.Do], text)
	l.done[d.Name] = true
}

func (l *limits) included() string {
	if len(l.include) == 0 {
		return ""
	}
	slices.Sort(l.include)
	return " --include " + strings.Join(l.include, ",")
}

func pinCommand(devices []string) string {
	return "quirkcheck recommend --pin-present " + strings.Join(devices, " ") + " > " + PinFile
}

func pathOfMap(d *Device) bool {
	return slices.ContainsFunc(d.Above, func(l checker.Level) bool { return l.Target != nil && *l.Target == "multipath" })
}

// pinnable reports whether recommend --pin-present writes a rule for a disk.
func pinnable(d *Device) bool {
	return d.Kind == "disk" && d.Path != nil && slices.Contains([]string{"libata", "sat-firmware", "scsi", "nvme", "nvme-pci", "nvme-fabrics"}, *d.Path) &&
		!pathOfMap(d)
}

// doing names the kind of step that a mitigation is.
func doing(kind string) string {
	switch kind {
	case "kernel":
		return "wait"
	case "param":
		return "boot"
	}
	return kind
}

// wanted is the bound that an entry has for a knob, in words; "" for none.
func wanted(e *quirks.Entry, knob string) string {
	i := slices.IndexFunc(e.Want, func(w quirks.Want) bool { return w.Knob == knob })
	if i < 0 {
		return ""
	}
	switch w := e.Want[i]; {
	case w.AtMost != nil:
		return fmt.Sprintf(" to at most %d", *w.AtMost)
	case w.AtLeast != nil:
		return fmt.Sprintf(" to at least %d", *w.AtLeast)
	case w.Equal != nil:
		return " to " + w.Equal.Text
	case w.Not != nil:
		return " to anything but " + w.Not.Text
	}
	return ""
}

// mitigationText puts a mitigation of an entry into words for who goes to a
// release, "" where it is none for it. The zero release leaves none out.
func mitigationText(e *quirks.Entry, m quirks.Mitigation, to kernel.Release) string {
	reached := func(tree, version string) kernel.Truth {
		if tree == "" {
			tree = "mainline"
		}
		return kernel.Carries([]kernel.Row{{Tree: tree, Since: version}}, to).Truth
	}
	text := ""
	switch m.Type {
	case "kernel":
		switch {
		case to.Known() && m.Tree != "" && m.Tree != "mainline" && m.Tree != to.Vendor && m.Tree != fmt.Sprintf("stable-%d.%d", to.Major, to.Minor):
			return "" // another tree's
		case m.Since == "" || to.Known() && reached(m.Tree, m.Since) == kernel.True:
			return ""
		case m.Tree == "" || m.Tree == "mainline":
			text = "wait for Linux " + m.Since
		default:
			text = "wait for " + m.Since + " of " + m.Tree
		}
	case "param":
		if since, err := kernel.Parse(m.Since); err == nil && to.Known() {
			if c, ok := kernel.Compare(to, since); ok && c < 0 {
				return ""
			}
		}
		text = "boot with " + m.Text
		if m.Since != "" {
			text += " (known since " + m.Since + ")"
		}
	case "firmware":
		text = "update the firmware"
		if m.Target != "" && m.Target != "device" {
			text += " of the " + m.Target
		}
		if len(m.Fixed) > 0 {
			text += " to " + strings.Join(m.Fixed, " or ")
		}
	case "set":
		text = "set " + m.Knob + wanted(e, m.Knob)
		if m.Text != "" {
			text += ": " + m.Text
		}
	default:
		text = m.Text
	}
	if text == "" {
		return ""
	}
	if m.URL != "" {
		text += " (" + m.URL + ")"
	}
	if m.Cost != "" {
		text += "; cost: " + m.Cost
	}
	return text
}

// withPort puts the number of a device's libata port into a parameter.
func (h *Host) withPort(text, name string) string {
	d := h.byName[name]
	if d == nil || d.report == nil || d.report.Adapter == nil || d.report.Adapter.ATAPort == nil {
		return text
	}
	return strings.ReplaceAll(text, "libata.force=PORT:", "libata.force="+*d.report.Adapter.ATAPort+":")
}
