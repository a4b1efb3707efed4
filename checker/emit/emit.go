package emit

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// Kind is a form in which a limit can be written down.
type Kind string

// The forms.
const (
	KindUdev      Kind = "udev"
	KindModprobe  Kind = "modprobe"
	KindCmdline   Kind = "cmdline"
	KindMultipath Kind = "multipath"
	KindAnsible   Kind = "ansible"
	KindShell     Kind = "shell"
	KindNone      Kind = "none" // Advice.Best where nothing sets the limit
)

// Kinds lists the forms Emit writes.
func Kinds() []Kind {
	return []Kind{KindUdev, KindModprobe, KindCmdline, KindMultipath, KindAnsible, KindShell}
}

// Options are what the text depends on besides the report.
type Options struct {
	ToolVersion string
	// Kernel is the release the parameters are for; the zero one is unknown.
	Kernel kernel.Release
	// Cmdline is the present kernel command line, whose parameters are merged.
	Cmdline string
	// Include are confidences to act on besides confirmed.
	Include []string
	// Blacklist holds the flags of device/blacklist by device; a device that
	// is not in it shows none that could be read.
	Blacklist map[string][]string
}

// Advice is one limit for one device.
type Advice struct {
	Device  *checker.Device
	Finding *checker.Finding
	// MaxSectors is the entry's limit in 512-byte sectors, MaxSectorsKB what
	// to have in queue/max_sectors_kb of this device for it.
	MaxSectors, MaxSectorsKB uint64
	// Best is the form of least effort that is correct on this path and
	// kernel, and BestWhy says why.
	Best    Kind
	BestWhy string
	// Map is the request-based multipath map the device is a path of, "" for
	// none.
	Map string

	rule int // index in Plan.rules
}

// Left is a finding that is not acted on.
type Left struct{ Device, Quirk, Why string }

// Plan is what is advised for a report.
type Plan struct {
	Advices []Advice
	Left    []Left

	rules []rule
	o     Options
}

// Artefact is a text for another program.
type Artefact struct {
	Kind Kind
	// File is where the text goes, "" for none.
	File string
	Text string
	// Warnings are what the text does not do; they stand in its comments too.
	Warnings []string
}

// ErrNothing is the reason where no device needs a limit.
var ErrNothing = errors.New("no limit is advised for any device")

// RefusedError says that none of the limits can be written in a form.
type RefusedError struct {
	Kind Kind
	Why  []string // one for each limit
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("no limit can be written as %s: %s", e.Kind, strings.Join(e.Why, "; "))
}

// New makes the plan: a limit for every finding that bounds max_sectors and is
// affected, or mitigated by something that may go away.
func New(r *checker.Report, db *quirks.Set, o Options) *Plan {
	p := &Plan{o: o}
	byName := make(map[string]*checker.Device, len(r.Devices))
	for _, d := range r.Devices {
		byName[d.Name] = d
	}
	maps := multipathMaps(r)
	type key struct{ quirk, device string } // device only where there is no entry
	devices := map[key][]*checker.Device{}
	var order []key
	for i := range r.Findings {
		f := &r.Findings[i]
		if f.Device == nil || byName[*f.Device] == nil {
			continue
		}
		d := byName[*f.Device]
		n, entry, ok := bound(f, d, db)
		if !ok {
			continue
		}
		switch {
		case f.Verdict == checker.Affected:
		case f.Verdict == checker.Mitigated && f.MitigatedBy != nil && !f.MitigatedBy.Pinned:
		default:
			continue
		}
		if c := cmp.Or(f.Confidence, "confirmed"); c != "confirmed" && !slices.Contains(o.Include, c) {
			p.Left = append(p.Left, Left{d.Name, f.Quirk, "the entry is only " + c + "; --include " + c + " acts on it"})
			continue
		}
		k := key{quirk: f.Quirk}
		if entry == nil {
			k.device = d.Name
		}
		if devices[k] == nil {
			order = append(order, k)
		}
		devices[k] = append(devices[k], d)
		lbs := uint64(512)
		if b := d.Limits.LogicalBlockSize; b != nil && *b >= 512 && *b <= 1<<20 {
			lbs = *b
		}
		p.Advices = append(p.Advices, Advice{Device: d, Finding: f, MaxSectors: n, MaxSectorsKB: checker.SettableKiB(n, lbs), Map: maps[d.Name],
			rule: slices.Index(order, k)})
	}
	for _, k := range order {
		if e, ok := db.Entry(k.quirk); ok && k.device == "" {
			p.rules = append(p.rules, ruleOf(e, devices[k], o.Kernel))
			continue
		}
		i := slices.IndexFunc(p.Advices, func(a Advice) bool { return a.Finding.Quirk == k.quirk && a.Device.Name == k.device })
		a := p.Advices[i]
		p.rules = append(p.rules, deviceRule(a.Finding.Quirk, a.Finding.Title, a.MaxSectors, a.Device))
	}
	for i := range p.Advices {
		a := &p.Advices[i]
		a.Best, a.BestWhy = p.best(a)
	}
	return p
}

// bound returns the limit a finding asks for in 512-byte sectors.
func bound(f *checker.Finding, d *checker.Device, db *quirks.Set) (n uint64, e *quirks.Entry, ok bool) {
	if e, ok := db.Entry(f.Quirk); ok {
		n, ok := e.MaxSectors()
		return uint64(n), e, ok
	}
	if f.Quirk != "limit-above-vpd-max" {
		return 0, nil, false
	}
	for _, b := range d.Safe.Bounds {
		if b.Source == "VPD page B0h" {
			return b.MaxSectors, nil, true
		}
	}
	return 0, nil, false
}

// multipathMaps names the request-based map above each path.
func multipathMaps(r *checker.Report) map[string]string {
	out := map[string]string{}
	for _, d := range r.Devices {
		for _, up := range d.Above { // of a map that was not asked for
			if up.Target != nil && *up.Target == "multipath" && out[d.Name] == "" {
				out[d.Name] = up.Name
			}
		}
	}
	for _, d := range r.Devices {
		s := d.Stack
		if s == nil || !(s.Target != nil && *s.Target == "multipath" || s.RequestBased != nil && *s.RequestBased) {
			continue
		}
		name := d.Name
		if s.Name != nil {
			name = *s.Name
		}
		for _, m := range d.Members {
			out[m] = name
		}
	}
	return out
}

// best picks the form: a path takes its limit from multipath.conf, anything
// else from a udev rule, which needs no reboot and follows the disk; a kernel
// parameter only where no rule can name the disk.
func (p *Plan) best(a *Advice) (Kind, string) {
	r := &p.rules[a.rule]
	param, errParam := p.param(a)
	also := ""
	if errParam == nil {
		also = "; " + param.assignment() + " would bind pass-through commands too, from the next boot on"
	}
	switch {
	case a.Map != "" && len(scsiNames(*r)) > 0:
		return KindMultipath, "a path of the map " + a.Map + ": a rule must not lower it alone"
	case a.Map != "":
		return KindNone, "a path of the map " + a.Map + ", and multipath.conf cannot name it"
	case r.err == nil:
		return KindUdev, "no reboot, follows the disk to any port" + also
	case errParam == nil:
		return KindCmdline, "no udev rule can name it (" + r.err.Error() + ")"
	}
	return KindNone, r.err.Error() + "; " + errParam.Error()
}

// Emit writes the plan in one form. The error is ErrNothing where nothing is
// advised and a *RefusedError where none of it can be written so.
func (p *Plan) Emit(k Kind) (Artefact, error) {
	if len(p.Advices) == 0 {
		return Artefact{}, ErrNothing
	}
	switch k {
	case KindUdev:
		return p.udev()
	case KindModprobe, KindCmdline:
		return p.parameters(k)
	case KindMultipath:
		return p.multipath()
	case KindAnsible:
		return p.ansible()
	case KindShell:
		return p.shell()
	}
	return Artefact{}, fmt.Errorf("%q is no form: want one of %v", k, Kinds())
}

// writable returns the rules that can be written, and why the others cannot.
func (p *Plan) writable(k Kind) (good []rule, why []string, err error) {
	for _, r := range p.rules {
		if r.err != nil {
			why = append(why, comment(r.id+": "+r.err.Error()))
			continue
		}
		good = append(good, r)
		for _, l := range r.left {
			why = append(why, comment(r.id+": "+l))
		}
	}
	if len(good) == 0 {
		return nil, nil, &RefusedError{k, why}
	}
	return good, why, nil
}

// head is the start of every text.
func (o Options) head(b *strings.Builder, prefix string, lines ...string) {
	for _, l := range lines {
		b.WriteString(strings.TrimRight(prefix+comment(l), " ") + "\n")
	}
}

func (o Options) by(command string) string {
	return "Written by quirkcheck " + cmp.Or(o.ToolVersion, "(unknown version)") + ": " + command + "."
}

func (p *Plan) udev() (Artefact, error) {
	rules, why, err := p.writable(KindUdev)
	if err != nil {
		return Artefact{}, err
	}
	for _, a := range p.Advices {
		if a.Map != "" {
			why = append(why, comment(a.Device.Name+" is a path of the multipath map "+a.Map+" and is skipped: use --emit multipath"))
		}
	}
	var b strings.Builder
	p.o.udevHead(&b, "quirkcheck recommend --emit udev", UdevFile, rules, why)
	udevRules(&b, rules, "quirkcheck")
	return Artefact{Kind: KindUdev, File: "/etc/udev/rules.d/" + UdevFile, Text: b.String(), Warnings: why}, nil
}

// Udev returns the udev rules for a report, "" where nothing needs one.
func Udev(r *checker.Report, db *quirks.Set, o Options) (text string, err error) {
	a, err := New(r, db, o).Emit(KindUdev)
	if errors.Is(err, ErrNothing) {
		return "", nil
	}
	return a.Text, err
}

func (o Options) udevHead(b *strings.Builder, command, file string, rules []rule, why []string) {
	o.head(b, "# ", file, o.by(command), "",
		"Lowers queue/max_sectors_kb of the disks named below when they appear. It never",
		"raises it: where the value is already as low or lower, nothing is written. Paths",
		"of multipath maps are left alone.", "",
		"Install: put it at /etc/udev/rules.d/"+file+", run udevadm control --reload, and",
		"rebuild the initramfs (update-initramfs -u, dracut -f). Do not trigger: it acts",
		"at the next boot or when the disk is plugged in.",
		"Remove:  delete it there, reload, rebuild the initramfs. A limit that is set stays",
		"until the disk or the machine restarts.")
	if notes := udevNotes(rules); len(notes) > 0 {
		o.head(b, "# ", append([]string{""}, notes...)...)
	}
	if len(why) > 0 {
		b.WriteString("#\n# Not covered:\n")
		for _, w := range why {
			o.head(b, "#   ", w)
		}
	}
}
