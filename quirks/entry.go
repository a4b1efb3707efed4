package quirks

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"go.yaml.in/yaml/v3"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

// Entry is one quirk of the database, as its YAML file writes it. The schema
// quirk.v0 describes every key with its unit.
type Entry struct {
	Schema     int         `yaml:"schema"`
	ID         string      `yaml:"id"`
	Title      string      `yaml:"title"`
	Effect     Effect      `yaml:"effect"`
	Severity   Severity    `yaml:"severity"`
	Confidence string      `yaml:"confidence"` // confirmed, probable or suspected
	Where      MatchSpec   `yaml:"match"`
	Trigger    *Trigger    `yaml:"trigger,omitempty"`
	Limits     *Limits     `yaml:"limits,omitempty"`
	Want       []Want      `yaml:"want,omitempty"`
	Avoid      []Avoid     `yaml:"avoid,omitempty"`
	Kernel     *KernelSpec `yaml:"kernel,omitempty"`
	Hidden     *Hidden     `yaml:"hidden,omitempty"`
	Conditions []Condition `yaml:"conditions,omitempty"`

	Mitigations []Mitigation `yaml:"mitigations,omitempty"`
	References  []Reference  `yaml:"references"`
	Examples    Examples     `yaml:"examples"`
	Aliases     []string     `yaml:"aliases,omitempty"`
	Related     []string     `yaml:"related,omitempty"`
	Withdrawn   string       `yaml:"withdrawn,omitempty"` // why it is out of force
	Details     string       `yaml:"details,omitempty"`

	file string // path inside its file system, for faults
}

// Effect is what a user of the device suffers; EffectCapability is a trait
// that is no fault and never a finding.
type Effect string

// EffectCapability marks entries that only db match and the limit model read.
const EffectCapability Effect = "capability"

// Severity orders entries by what is at stake.
type Severity string

// Severities, worst first.
const (
	Critical Severity = "critical"
	High     Severity = "high"
	Medium   Severity = "medium"
	Low      Severity = "low"
	Info     Severity = "info"
)

// Rank orders severities: critical 5 to info 1, anything else 0.
func (s Severity) Rank() int {
	switch s {
	case Critical:
		return 5
	case High:
		return 4
	case Medium:
		return 3
	case Low:
		return 2
	case Info:
		return 1
	}
	return 0
}

// MatchSpec selects devices: Any is a disjunction of arms, None takes away.
type MatchSpec struct {
	Any  []Arm `yaml:"any"`
	None []Arm `yaml:"none,omitempty"`
}

// Arm is a conjunction. A nil block asks nothing.
type Arm struct {
	Device  *DeviceSpec  `yaml:"device,omitempty"`
	Adapter *AdapterSpec `yaml:"adapter,omitempty"`
	USB     *USBSpec     `yaml:"usb,omitempty"`
	Machine *MachineSpec `yaml:"machine,omitempty"`
	Stack   *StackSpec   `yaml:"stack,omitempty"`
	Kernel  *ArmKernel   `yaml:"kernel,omitempty"`
	Path    Strings      `yaml:"path,omitempty"`

	pathWant string // Path in words, once parsed
	room     int    // for its predicates, and those that the entry adds
}

func (a *Arm) empty() bool {
	return a.Device == nil && a.Adapter == nil && a.USB == nil && a.Machine == nil && a.Stack == nil && a.Kernel == nil && len(a.Path) == 0
}

// DeviceSpec names a device in one identity space: ata and nvme have model
// and firmware, scsi has vendor, product and revision (design, Identity).
type DeviceSpec struct {
	Space     string   `yaml:"space"`
	Model     Patterns `yaml:"model,omitempty"`
	Firmware  Firmware `yaml:"firmware,omitempty"`
	Vendor    Patterns `yaml:"vendor,omitempty"`
	Product   Patterns `yaml:"product,omitempty"`
	ProductIs string   `yaml:"product_is,omitempty"` // glob (default) or prefix, as the kernel's SCSI list compares
	Revision  Firmware `yaml:"revision,omitempty"`
	VID       string   `yaml:"vid,omitempty"`   // nvme: PCI vendor, hex
	SSVID     string   `yaml:"ssvid,omitempty"` // nvme: PCI subsystem vendor, hex
}

// AdapterSpec names the host adapter: PCI "vvvv:dddd:ssss:ssss" with `*` for a
// part, or less parts; class with `?`; the driver.
type AdapterSpec struct {
	PCI      Strings  `yaml:"pci,omitempty"`
	Class    string   `yaml:"class,omitempty"`
	Driver   Patterns `yaml:"driver,omitempty"`
	Name     Patterns `yaml:"name,omitempty"`
	Revision Patterns `yaml:"revision,omitempty"`
	Firmware Firmware `yaml:"firmware,omitempty"`
}

// USBSpec names a USB device: id "vvvv:pppp", bcd "0000-0100" inclusive hex.
type USBSpec struct {
	ID           Strings  `yaml:"id,omitempty"`
	BCD          string   `yaml:"bcd,omitempty"`
	Manufacturer Patterns `yaml:"manufacturer,omitempty"`
	Product      Patterns `yaml:"product,omitempty"`
	Speed        string   `yaml:"speed,omitempty"` // low, full, high, super, super-plus
}

// MachineSpec names a machine by DMI strings that need no root.
type MachineSpec struct {
	Vendor     Patterns `yaml:"vendor,omitempty"`
	Product    Patterns `yaml:"product,omitempty"`
	Board      Patterns `yaml:"board,omitempty"`
	BIOSBefore string   `yaml:"bios_before,omitempty"`
}

// StackSpec asks what lies above or below a stacked device.
type StackSpec struct {
	Kind    Strings `yaml:"kind,omitempty"`   // of the device itself: dm, md, bcache
	Target  Strings `yaml:"target,omitempty"` // of the device itself: its device-mapper target
	Over    Strings `yaml:"over,omitempty"`   // md, or dm- and the target's name
	MDLevel []int   `yaml:"md_level,omitempty"`
}

// ArmKernel restricts an arm to kernels: since inclusive, until exclusive.
type ArmKernel struct {
	Since string       `yaml:"since,omitempty"`
	Until string       `yaml:"until,omitempty"`
	Tree  string       `yaml:"tree,omitempty"` // default mainline
	Range []RangeEntry `yaml:"range,omitempty"`

	parsed []kernel.Row // what it says, once parsed
	want   string       // parsed in words
}

func (k *ArmKernel) rows() []kernel.Row {
	if len(k.Range) > 0 {
		return rangeRows(k.Range)
	}
	tree := k.Tree
	if tree == "" {
		tree = "mainline"
	}
	return []kernel.Row{{Tree: tree, Since: k.Since, Until: k.Until}}
}

func rangeRows(ranges []RangeEntry) []kernel.Row {
	rows := make([]kernel.Row, len(ranges))
	for i, e := range ranges {
		rows[i] = kernel.Row{Tree: e.Tree, Never: e.Introduced == nil, Fault: true}
		switch {
		case e.Introduced == nil:
		case *e.Introduced == StartUnknown:
			rows[i].StartUnknown, rows[i].After = true, e.After
		case e.After != "":
			rows[i].After, rows[i].By = e.After, *e.Introduced
		default:
			rows[i].Since = *e.Introduced
		}
		if e.Fixed != nil {
			rows[i].Until = *e.Fixed
		}
		rows[i].Through = e.Through
	}
	return rows
}

// Trigger says what provokes the fault, for verify.
type Trigger struct {
	Op      Strings `yaml:"op,omitempty"`
	Sectors *struct {
		AtLeast uint32 `yaml:"at_least,omitempty"` // 512-byte sectors
		AtMost  uint32 `yaml:"at_most,omitempty"`
	} `yaml:"sectors,omitempty"`
	Memory string `yaml:"memory,omitempty"`
	Depth  any    `yaml:"depth,omitempty"`
	Rate   string `yaml:"rate,omitempty"`
}

// Limits is the shorthand for the first line of Want.
type Limits struct {
	MaxSectors uint32 `yaml:"max_sectors"` // 512-byte sectors
}

// Want is one knob with its bound.
type Want struct {
	Knob    string   `yaml:"knob"`
	AtMost  *uint64  `yaml:"at_most,omitempty"`
	AtLeast *uint64  `yaml:"at_least,omitempty"`
	Equal   *Scalar  `yaml:"equal,omitempty"`
	Not     *Scalar  `yaml:"not,omitempty"`
	Ops     []string `yaml:"ops,omitempty"`
	When    string   `yaml:"when,omitempty"`
	Else    string   `yaml:"else,omitempty"`
}

// Avoid is a command the probe must not send.
type Avoid struct {
	Command string `yaml:"command"`
	Why     string `yaml:"why"`
	Scope   string `yaml:"scope,omitempty"` // probe, verify or both (default)
}

// KernelSpec says where the kernel itself protects, and for entries about a
// kernel which releases have the fault.
type KernelSpec struct {
	// Change marks a change of behaviour that came with Range and is no fault by
	// itself: it concerns who crosses it by an upgrade, and is never a finding.
	Change    bool         `yaml:"change,omitempty"`
	Mitigated []Mitigated  `yaml:"mitigated,omitempty"`
	Range     []RangeEntry `yaml:"range,omitempty"`

	rows []kernel.Row // Range, once parsed
	want string       // rows in words
	last atomic.Pointer[answered]
}

// answered is what Range says of a release; a machine has one.
type answered struct {
	release kernel.Release
	answer  Predicate
}

// predicate asks Range about a release.
func (k *KernelSpec) predicate(r kernel.Release) Predicate {
	if a := k.last.Load(); a != nil && a.release == r {
		return a.answer
	}
	rows, want := k.rows, k.want
	if rows == nil {
		rows = rangeRows(k.Range)
		want = rowsText(rows)
	}
	a := &answered{r, rowsPredicate("kernel.range", rows, want, r)}
	k.last.Store(a)
	return a.answer
}

// prepare keeps what every Match would make anew.
func (e *Entry) prepare() {
	if e.Kernel != nil && len(e.Kernel.Range) > 0 {
		e.Kernel.rows = rangeRows(e.Kernel.Range)
		e.Kernel.want = rowsText(e.Kernel.rows)
	}
	for i := range e.Conditions {
		e.Conditions[i].key, e.Conditions[i].want = e.Conditions[i].texts()
	}
	for _, arms := range [][]Arm{e.Where.Any, e.Where.None} {
		for i := range arms {
			a := &arms[i]
			a.pathWant = strings.Join(a.Path, " | ")
			a.room = len(e.Where.None) + 1 + len(e.Conditions) + 2 // path, kernel
			for _, some := range []bool{a.Device != nil, a.Adapter != nil, a.USB != nil, a.Machine != nil, a.Stack != nil} {
				if some {
					a.room += 2 // mostly; what is more grows it
				}
			}
			if a.Kernel != nil {
				a.Kernel.parsed = a.Kernel.rows()
				a.Kernel.want = rowsText(a.Kernel.parsed)
			}
		}
	}
}

// Change reports whether the entry tells of a change of behaviour, which only
// an upgrade across it makes a matter of concern.
func (e *Entry) Change() bool { return e.Kernel != nil && e.Kernel.Change }

// OpenAbout answers whether the entry's kernel.range must stay open for release
// r whatever the rows say: the release is not known, hides its point, or is
// built by somebody who picks patches and has no row here.
func (e *Entry) OpenAbout(r kernel.Release) bool {
	if e.Kernel == nil || len(e.Kernel.Range) == 0 {
		return false
	}
	a := kernel.Carries(rangeRows(e.Kernel.Range), r)
	return !r.Known() || a.Low || a.Truth == Unknown && !r.PointK
}

// Mitigated is one protection of the kernel, on the paths it covers.
type Mitigated struct {
	Path   Strings `yaml:"path,omitempty"`
	Flag   []Flag  `yaml:"flag,omitempty"`
	Limits *Limits `yaml:"limits,omitempty"`
	Trees  []Tree  `yaml:"trees"`
	Holes  []Hole  `yaml:"holes,omitempty"`
}

// Flag is the kernel's name for a quirk in a span of releases.
type Flag struct {
	Name  string `yaml:"name"`
	Since string `yaml:"since,omitempty"`
	Until string `yaml:"until,omitempty"` // exclusive
}

// Tree says since when one tree carries a protection (see kernel.Row).
type Tree struct {
	Tree          string `yaml:"tree"`
	Since         string `yaml:"since,omitempty"`
	Until         string `yaml:"until,omitempty"`
	Exact         bool   `yaml:"exact,omitempty"`
	After         string `yaml:"after,omitempty"`
	By            string `yaml:"by,omitempty"`
	AbsentThrough string `yaml:"absent_through,omitempty"`
}

// Hole is a stretch of releases that list the quirk and do not apply it.
type Hole struct {
	Tree  string  `yaml:"tree"`
	After string  `yaml:"after,omitempty"`
	By    string  `yaml:"by,omitempty"`
	To    *string `yaml:"to"`
	Why   string  `yaml:"why"`
}

// StartUnknown stands for introduced where only the end of a fault is known.
const StartUnknown = "unknown"

// RangeEntry says in which releases of a tree a kernel fault exists; a null
// introduced means never in this tree, a null fixed not yet.
type RangeEntry struct {
	Tree       string  `yaml:"tree"` // or stable: every stable series without a row, introduced null
	Introduced *string `yaml:"introduced"`
	Fixed      *string `yaml:"fixed,omitempty"`
	// After is the last release seen without the fault, where introduced is
	// only the first one seen with it, or unknown; between them the answer is
	// unknown.
	After string `yaml:"after,omitempty"`
	// Through is the last release seen with the fault; whether a later one has
	// it is unknown.
	Through string `yaml:"through,omitempty"`
}

// Hidden describes a fault or cure in a disk the system cannot see.
type Hidden struct {
	Member         *DeviceSpec `yaml:"member,omitempty"`
	Unseen         string      `yaml:"unseen,omitempty"`     // affected (default) or unknown
	SeenFixed      string      `yaml:"seen_fixed,omitempty"` // verdict once a fixed member was seen
	ViaVirtualDisk bool        `yaml:"via_virtual_disk,omitempty"`
	SeeWith        string      `yaml:"see_with,omitempty"`
}

// Condition is a fact beside the identity; Ask is one only a person knows.
type Condition struct {
	Key   string  `yaml:"key,omitempty"`
	Op    string  `yaml:"op,omitempty"`
	Value *Scalar `yaml:"value,omitempty"`
	From  string  `yaml:"from,omitempty"`
	How   string  `yaml:"how,omitempty"`
	Ask   string  `yaml:"ask,omitempty"`
	ID    string  `yaml:"id,omitempty"`

	key, want string // of its predicate, once parsed
}

// texts are what the predicate of the condition is called and what it wants.
func (c *Condition) texts() (key, want string) {
	if c.Ask != "" {
		return "condition." + c.ID, c.Ask
	}
	if c.Value != nil {
		want = c.Value.Text
	}
	return "condition." + c.Key, c.Op + " " + want
}

// Mitigation is one cure, best first.
type Mitigation struct {
	Type       string   `yaml:"type"`
	Target     string   `yaml:"target,omitempty"`
	Fixed      []string `yaml:"fixed,omitempty"`
	URL        string   `yaml:"url,omitempty"`
	Observable *bool    `yaml:"observable,omitempty"`
	Tree       string   `yaml:"tree,omitempty"`
	Since      string   `yaml:"since,omitempty"`
	Until      string   `yaml:"until,omitempty"`
	Knob       string   `yaml:"knob,omitempty"`
	Text       string   `yaml:"text,omitempty"`
	Scope      string   `yaml:"scope,omitempty"`
	Cost       string   `yaml:"cost,omitempty"`
	Detect     *struct {
		Cmdline string `yaml:"cmdline,omitempty"`
	} `yaml:"detect,omitempty"`
}

// Reference is a source somebody opened.
type Reference struct {
	Type string `yaml:"type" json:"type"`
	URL  string `yaml:"url" json:"url"`
	Note string `yaml:"note,omitempty" json:"note,omitempty"`
}

// Examples are executed by Lint, and their verdicts by checker.LintExamples.
type Examples struct {
	Match   []Example `yaml:"match"`
	NoMatch []Example `yaml:"no_match"`
}

// Example is one subject and what must be said about it.
type Example struct {
	Subject Subject `yaml:"subject"`
	Expect  string  `yaml:"expect,omitempty"` // a verdict
	Fails   string  `yaml:"fails,omitempty"`  // no_match: the predicate that must be false
	Source  string  `yaml:"source,omitempty"`
	Why     string  `yaml:"why,omitempty"`
}

// MaxSectors returns the largest transfer the entry calls good, in 512-byte
// sectors; ok is false when it bounds no size.
func (e *Entry) MaxSectors() (n uint32, ok bool) {
	if e.Limits != nil && e.Limits.MaxSectors > 0 {
		return e.Limits.MaxSectors, true
	}
	for _, w := range e.Want {
		if w.Knob == "max_sectors" && w.AtMost != nil && *w.AtMost > 0 && *w.AtMost <= 1<<32-1 {
			return uint32(*w.AtMost), true
		}
	}
	return 0, false
}

// Folder returns the first word of the id, which is also the folder.
func (e *Entry) Folder() string {
	f, _, _ := strings.Cut(e.ID, "-")
	return f
}

// File returns the path the entry was loaded from.
func (e *Entry) File() string { return e.file }

// KernelFlags returns the kernel's own names for the quirk in release r, for
// protections that r carries and applies; of a release whose answer is unknown
// none.
func (e *Entry) KernelFlags(r kernel.Release) []string {
	return e.flags(func(m *Mitigated) bool { return m.applies(r).Truth == True }, r)
}

// ListedFlags is KernelFlags with what release r lists and does not apply.
// known is false where r may list more than is known.
func (e *Entry) ListedFlags(r kernel.Release) (names []string, known bool) {
	known = true
	names = e.flags(func(m *Mitigated) bool {
		t := kernel.Carries(m.rows(), r).Truth
		known = known && t != Unknown
		return t == True
	}, r)
	return names, known
}

func (e *Entry) flags(in func(*Mitigated) bool, r kernel.Release) []string {
	if e.Kernel == nil {
		return nil
	}
	var names []string
	for i := range e.Kernel.Mitigated {
		m := &e.Kernel.Mitigated[i]
		if !in(m) {
			continue
		}
		for _, f := range m.Flag {
			row := kernel.Row{Tree: "mainline", Since: f.Since, Until: f.Until}
			if f.Since == "" && f.Until == "" || kernel.Carries([]kernel.Row{row}, r).Truth == True {
				names = append(names, f.Name)
			}
		}
	}
	return names
}

// NamesDevice answers whether the device predicates of the entry alone take the
// subject, as a table of the kernel does that looks at nothing else: adapter,
// path and machine stay out of it, and so does an arm without a device. The
// table of one driver (folder adapter) is asked about that driver's disks only,
// so there the adapter counts; and libata's table is asked with identify data,
// so the INQUIRY strings of a disk that may be behind any adapter are not
// enough.
func (e *Entry) NamesDevice(sub *Subject) Truth {
	t := False
	if e.Withdrawn != "" {
		return t
	}
	var buf [8]Predicate
	for i := range e.Where.Any {
		a := &e.Where.Any[i]
		if a.Device == nil || a.Device.Space == "ata" && sub.Device.Space != "ata" && sub.Path != "libata" {
			continue
		}
		preds := a.Device.predicates(buf[:0], sub)
		if a.Adapter != nil && e.Folder() == "adapter" {
			preds = a.Adapter.predicates(preds, sub)
		}
		t = max(t, conjunction(preds))
	}
	for i := range e.Where.None {
		a := &e.Where.None[i]
		if t == False {
			break
		}
		if a.Device != nil && a.Adapter == nil && a.USB == nil && a.Machine == nil && a.Stack == nil && len(a.Path) == 0 {
			t = min(t, conjunction(a.predicates(sub)).Not())
		}
	}
	return t
}

func (m *Mitigated) applies(r kernel.Release) kernel.Answer {
	return kernel.Applies(m.rows(), m.holeRows(), r)
}

func (m *Mitigated) rows() []kernel.Row {
	rows := make([]kernel.Row, len(m.Trees))
	for i, t := range m.Trees {
		rows[i] = kernel.Row{Tree: t.Tree, Since: t.Since, Until: t.Until, After: t.After, By: t.By, AbsentThrough: t.AbsentThrough}
	}
	return rows
}

func (m *Mitigated) holeRows() []kernel.Hole {
	holes := make([]kernel.Hole, len(m.Holes))
	for i, h := range m.Holes {
		holes[i] = kernel.Hole{Tree: h.Tree, After: h.After, By: h.By, Why: h.Why}
		if h.To != nil {
			holes[i].To = *h.To
		}
	}
	return holes
}

// Protection is the kernel's own answer to an entry on one path.
type Protection struct {
	kernel.Answer
	Flag       string // the kernel's name for it in that release
	MaxSectors uint32 // what its limit is there, 512-byte sectors, 0 for none
}

// Protects answers whether the kernel of the subject protects it against the
// entry by itself. A path that no line covers is exposed: False.
func (e *Entry) Protects(sub *Subject) Protection {
	best := Protection{Answer: kernel.Answer{Truth: False, Why: "the kernel has no protection of its own for this"}}
	if e.Kernel == nil {
		return best
	}
	some := false // a line covers the path
	for i := range e.Kernel.Mitigated {
		m := &e.Kernel.Mitigated[i]
		covered := m.Path.matchPath(sub.Path)
		if covered == False {
			if !some {
				best.Why = fmt.Sprintf("the kernel protects on %s only", strings.Join(m.Path, ", "))
			}
			continue
		}
		some = true
		a := m.applies(sub.Kernel)
		if covered == Unknown && a.Truth == True {
			a.Truth, a.Why = Unknown, "path not known"
		}
		if a.Truth < best.Truth || a.Truth == best.Truth && best.Flag != "" {
			continue
		}
		p := Protection{Answer: a}
		named := False
		for _, f := range m.Flag {
			t := True
			if f.Since != "" || f.Until != "" {
				t = kernel.Carries([]kernel.Row{{Tree: "mainline", Since: f.Since, Until: f.Until}}, sub.Kernel).Truth
			}
			// A later name may have come to an older stable tree, but the name
			// that is certain goes first.
			if t > named {
				p.Flag, named = f.Name, t
			}
		}
		if m.Limits != nil {
			p.MaxSectors = m.Limits.MaxSectors
		}
		best = p
	}
	return best
}

// SetsFlag answers whether the kernel of the subject sets a flag whose name ends
// in suffix for what the entry names, on the subject's path.
func (e *Entry) SetsFlag(sub *Subject, suffix string) kernel.Answer {
	best := kernel.Answer{Truth: False}
	if e.Kernel == nil {
		return best
	}
	for i := range e.Kernel.Mitigated {
		m := &e.Kernel.Mitigated[i]
		if !slices.ContainsFunc(m.Flag, func(f Flag) bool { return strings.HasSuffix(f.Name, suffix) }) {
			continue
		}
		a := m.applies(sub.Kernel)
		a.Truth = min(a.Truth, m.Path.matchPath(sub.Path))
		if a.Truth > best.Truth {
			best = a
		}
	}
	return best
}

// Strings is a YAML string or a list of them, meaning any of these.
type Strings []string

// UnmarshalYAML accepts a scalar or a list.
func (s *Strings) UnmarshalYAML(n *yaml.Node) error {
	list, err := stringList(n)
	if err != nil {
		return err
	}
	*s = list
	return nil
}

func stringList(n *yaml.Node) ([]string, error) {
	switch n.Kind {
	case yaml.ScalarNode:
		if n.Tag != "!!str" {
			return nil, fmt.Errorf("line %d: want a quoted string, got %s %q", n.Line, strings.TrimPrefix(n.Tag, "!!"), n.Value)
		}
		return []string{n.Value}, nil
	case yaml.SequenceNode:
		if len(n.Content) == 0 { // would ask nothing, and match all
			return nil, fmt.Errorf("line %d: the list is empty", n.Line)
		}
		list := make([]string, 0, len(n.Content))
		for _, c := range n.Content {
			if c.Kind != yaml.ScalarNode || c.Tag != "!!str" {
				return nil, fmt.Errorf("line %d: want a quoted string, got %q", c.Line, c.Value)
			}
			list = append(list, c.Value)
		}
		return list, nil
	}
	return nil, fmt.Errorf("line %d: want a string or a list of strings", n.Line)
}

// Patterns is a pattern or a list of them, meaning any of these. Empty asks
// nothing.
type Patterns []Pattern

// UnmarshalYAML accepts a scalar or a list and compiles it.
func (p *Patterns) UnmarshalYAML(n *yaml.Node) error {
	list, err := stringList(n)
	if err != nil {
		return err
	}
	*p = make(Patterns, len(list))
	for i, text := range list {
		if (*p)[i], err = CompilePattern(text); err != nil {
			return fmt.Errorf("line %d: %w", n.Line, err)
		}
	}
	return nil
}

// MarshalYAML writes one pattern as a scalar.
func (p Patterns) MarshalYAML() (any, error) {
	if len(p) == 1 {
		return quoted(p[0].text), nil
	}
	list := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, pat := range p {
		list.Content = append(list.Content, quoted(pat.text))
	}
	return list, nil
}

func quoted(s string) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Style: yaml.DoubleQuotedStyle, Value: s}
}

func (p Patterns) String() string {
	texts := make([]string, len(p))
	for i, pat := range p {
		texts[i] = pat.text
	}
	return strings.Join(texts, " | ")
}

// Scalar is a YAML string, number or boolean kept as text.
type Scalar struct{ Text string }

// UnmarshalYAML takes any scalar.
func (s *Scalar) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.ScalarNode {
		return fmt.Errorf("line %d: want a scalar", n.Line)
	}
	s.Text = n.Value
	return nil
}

func (s Scalar) String() string { return s.Text }
