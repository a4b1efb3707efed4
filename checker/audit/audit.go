package audit

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/checker/enforce"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// Options of an audit.
type Options struct {
	// Predict is kernel.Predict, or a stand-in of a test.
	Predict func(to kernel.Release, in kernel.Inputs) kernel.Prediction
	// From is the release that the limits were read under; the zero one is what
	// the inventory says.
	From kernel.Release
	// Setters are those who set max_sectors_kb at boot, as far as they are known.
	Setters []enforce.Setter
}

// Host is a machine under the kernel that it runs.
type Host struct {
	db      *quirks.Set
	policy  checker.Policy
	options Options
	from    kernel.Release
	now     *checker.Report
	bare    bool               // made of a subject alone
	devices []*device          // as in the report
	byName  map[string]*device // peers too
}

// device is one device of a machine.
type device struct {
	name   string
	listed bool // in the report; else it only stands above or below one that is
	report *checker.Device
	sub    *quirks.Subject
	inputs kernel.Inputs

	findings []checker.Finding // now
	from     kernel.Prediction // what the running kernel chooses by itself
	now      kernel.Prediction // the same with what was observed on top
	user     userValue
	readAhead
}

// New examines the present. It is Check, and for each device what the running
// kernel would choose by itself.
func New(inv *probe.Inventory, db *quirks.Set, p checker.Policy, o Options) *Host {
	if o.From.Known() {
		with := *inv
		with.Kernel = probe.Value[kernel.Release]{V: o.From, State: probe.Known, Source: "--from-kernel"}
		inv = &with
	}
	h := &Host{db: db, policy: p, options: o, now: checker.Check(inv, db, p), byName: map[string]*device{}}
	if inv.Kernel.Ok() {
		h.from = inv.Kernel.V
	}
	subjects := checker.SubjectsOf(inv)
	for _, list := range [][]*probe.Device{inv.Devices, inv.Peers} {
		for _, pd := range list {
			if h.byName[pd.Name] == nil {
				h.byName[pd.Name] = &device{name: pd.Name, sub: subjects[pd.Name], inputs: h.inputs(subjects[pd.Name], pd)}
			}
		}
	}
	h.hosts(inv)
	for _, rep := range h.now.Devices {
		d := h.byName[rep.Name]
		d.report, d.listed = rep, true
		h.devices = append(h.devices, d)
	}
	for _, f := range h.now.Findings {
		if f.Device != nil && h.byName[*f.Device] != nil {
			d := h.byName[*f.Device]
			d.findings = append(d.findings, f)
		}
	}
	h.examine()
	return h
}

// hosts tells each device the most that any on the same SCSI host can.
func (h *Host) hosts(inv *probe.Inventory) {
	most := map[string]kernel.Num{}
	for pass := range 2 {
		for _, list := range [][]*probe.Device{inv.Devices, inv.Peers} {
			for _, pd := range list {
				host, d := pd.Adapter.Host, h.byName[pd.Name]
				if host == "" {
					continue
				}
				if hw := d.inputs.Observed.MaxHWSectorsKB; pass == 0 && hw.Known && hw.V > most[host].V {
					most[host] = hw
				}
				d.inputs.HostMaxHWSectorsKB = most[host]
			}
		}
	}
}

// OfSubject is a machine of one device, of which no more is known than the
// subject holds.
func OfSubject(sub *quirks.Subject, db *quirks.Set, p checker.Policy, o Options) *Host {
	j := checker.Judge(sub, db, p)
	h := &Host{db: db, policy: p, options: o, from: sub.Kernel, now: &checker.Report{}, bare: true}
	d := &device{name: "device", listed: true, sub: sub, inputs: h.inputs(sub, nil), findings: j.Findings,
		report: &checker.Device{Name: "device", Kind: kindOf(sub), Verdict: h.verdict(j), Safe: j.Safe, Recommended: j.Recommended}}
	h.devices, h.byName = []*device{d}, map[string]*device{d.name: d}
	h.examine()
	return h
}

// verdict is the device's. A bare subject is what somebody asked about, and not
// a device that shows no name.
func (h *Host) verdict(j checker.Judgement) checker.Verdict {
	if h.bare {
		return j.Verdict
	}
	return j.OfDevice()
}

// From is the release that the machine's limits were read under.
func (h *Host) From() kernel.Release { return h.from }

// examine predicts every device under the running kernel, which shows what
// somebody set.
func (h *Host) examine() {
	seen := map[string]kernel.Prediction{}
	for _, name := range slices.Sorted(maps.Keys(h.byName)) {
		h.climb(name, seen, map[string]bool{}, func(d *device, members []kernel.Prediction) kernel.Prediction {
			in := d.inputs
			in.ListedTo, in.Members = in.ListedFrom, members
			d.inputs.MembersFrom = seenOf(members)
			in.MembersFrom = d.inputs.MembersFrom
			d.from = h.options.Predict(h.from, in)
			d.user = h.userValue(d)
			in.UserMaxSectorsKB = d.user.kib
			d.now = observed(h.options.Predict(h.from, in), in.Observed)
			d.readAhead = h.readAheadNow(d)
			return d.now
		})
	}
}

// climb visits what a device is made of before the device itself, each once.
// Names that lead back to one on the way, which only a damaged tree has, are
// left out.
func (h *Host) climb(name string, seen map[string]kernel.Prediction, way map[string]bool,
	visit func(*device, []kernel.Prediction) kernel.Prediction) (kernel.Prediction, bool) {
	if p, ok := seen[name]; ok {
		return p, true
	}
	d := h.byName[name]
	if d == nil || way[name] {
		return kernel.Prediction{}, false
	}
	way[name] = true
	var members []kernel.Prediction
	for _, m := range d.sub.Stack.Members {
		p, ok := h.climb(m.Name, seen, way, visit)
		if !ok && d.sub.Stack.Kind == "nvme" { // its paths are hidden, and the head has limits of its own
			members = nil
			break
		}
		if !ok {
			p = strange(m, h.from)
		}
		members = append(members, p)
	}
	delete(way, name)
	p := visit(d, members)
	seen[name] = p
	return p, true
}

// seenOf is what the running kernel shows of members.
func seenOf(members []kernel.Prediction) []kernel.Observed {
	if members == nil {
		return nil
	}
	out := make([]kernel.Observed, len(members))
	for i, m := range members {
		out[i] = kernel.Observed{MaxSectorsKB: m.MaxSectorsKB, MaxHWSectorsKB: m.MaxHWSectorsKB, OptimalIOSize: m.OptimalIOSize, MinimumIOSize: m.MinimumIOSize}
	}
	return out
}

// strange is a member of which nothing is known but its limits now.
func strange(m quirks.StackPeer, from kernel.Release) kernel.Prediction {
	limits := quirks.Subject{Limits: m.Limits}
	p := kernel.Prediction{To: from, Certainty: kernel.NoAnswer, LogicalBlockBytes: num(&limits, "logical_block_size"), PhysicalBlockBytes: num(&limits, "physical_block_size"),
		Missing: []kernel.Missing{{Input: "a member of it", Could: "every limit"}}}
	return observed(p, observedOf(&limits))
}

// observed puts what sysfs showed over a prediction.
func observed(p kernel.Prediction, o kernel.Observed) kernel.Prediction {
	over := func(n *kernel.Num, seen kernel.Num) {
		if seen.Known {
			*n = seen
		}
	}
	sectors := func(n *kernel.Num, kib kernel.Num) { // KiB may hide an odd sector
		if kib.Known && !(n.Known && n.V/2 == kib.V) {
			*n = kernel.N(kib.V * 2)
		}
	}
	over(&p.MaxSectorsKB, o.MaxSectorsKB)
	over(&p.MaxHWSectorsKB, o.MaxHWSectorsKB)
	over(&p.OptimalIOSize, o.OptimalIOSize)
	over(&p.MinimumIOSize, o.MinimumIOSize)
	sectors(&p.MaxSectors, o.MaxSectorsKB)
	sectors(&p.MaxHWSectors, o.MaxHWSectorsKB)
	return p
}

// then is a device under the release asked about.
type then struct {
	sub      *quirks.Subject
	judged   checker.Judgement
	verdict  checker.Verdict
	predict  kernel.Prediction
	ahead    kernel.Num // read_ahead_kb
	findings []checker.Finding
}

// To says what a release makes of the machine.
func (h *Host) To(to kernel.Release) *Report {
	r := &Report{Report: h.now, From: kernelOf(h.from), Target: kernelOf(to), Devices: []*Device{}, Regressions: []Regression{}, Questions: []Question{}, Deploy: []Step{}}
	if !to.FollowsStable() {
		r.note(probe.Known, "a "+to.Vendor+" kernel picks its own patches: what mainline does is taken for it with low certainty")
	}
	if Series(to) {
		r.note(probe.Known, to.Raw+" stands for its first release; for what later ones changed name one, as in 6.18.15")
	}
	all := h.at(to)
	var found []crossing
	var undecided []string
	for _, d := range h.devices {
		t := all[d.name]
		c := h.change(d, t, to)
		r.Devices = append(r.Devices, &Device{Device: d.report, Predicted: predictedOf(t), Change: c})
		r.Target.Beyond = r.Target.Beyond || t.predict.Beyond
		r.Outcome.count(c)
		if !empty(d.report) {
			here, open := h.crossings(d, t)
			found, undecided = append(found, here...), append(undecided, open...)
		}
	}
	if slices.Sort(undecided); len(undecided) > 0 {
		r.note(probe.NotAsked, "faults of kernels that may concern a device here and cannot be decided for this one: "+strings.Join(slices.Compact(undecided), ", "))
	}
	r.Regressions, r.Questions = regressions(found)
	r.Deploy = h.deploy(r, to)
	return r
}

// note adds what should be known of the target to the notes of the scan, which
// other targets share.
func (r *Report) note(state probe.State, why string) {
	own := *r.Report
	own.Notes = append(slices.Clone(own.Notes), checker.Note{What: "target", State: state.String(), Why: why})
	r.Report = &own
}

// empty tells a loop or ram device that holds nothing.
func empty(d *checker.Device) bool {
	return (d.Kind == "loop" || d.Kind == "ram") && d.SizeBytes != nil && *d.SizeBytes == 0
}

// at predicts every device under a release and judges those of the report.
func (h *Host) at(to kernel.Release) map[string]*then {
	all := make(map[string]*then, len(h.byName))
	seen := map[string]kernel.Prediction{}
	for name := range h.byName {
		h.climb(name, seen, map[string]bool{}, func(d *device, members []kernel.Prediction) kernel.Prediction {
			in := h.inputsAt(d, to)
			for i, p := range members {
				if p.To != to { // a member that is not among the devices
					members[i] = kernel.Prediction{To: to, Certainty: kernel.NoAnswer, Missing: p.Missing}
				}
			}
			in.Members = members
			in.UserMaxSectorsKB = d.user.kib
			t := &then{predict: h.options.Predict(to, in)}
			t.ahead = h.readAheadThen(d, t.predict, to)
			all[d.name] = t
			return t.predict
		})
	}
	for _, d := range h.devices {
		t := all[d.name]
		t.sub = subjectAt(d.sub, to, t, all)
		t.judged = checker.Judge(t.sub, h.db, h.policy)
		t.findings = t.judged.Findings
		h.judgeSettings(d, t)
		t.keepOpen(d)
		t.judged.Findings, t.judged.Verdict = t.findings, worst(t.findings)
		t.verdict = h.verdict(t.judged)
	}
	return all
}

// limits of a subject and of the devices around it that a release decides.
func replaced(limits map[string]quirks.Value, p kernel.Prediction) map[string]quirks.Value {
	out := maps.Clone(limits)
	if out == nil {
		out = map[string]quirks.Value{}
	}
	put := func(name string, n kernel.Num, keep bool) {
		switch {
		case n.Known:
			out[name] = quirks.Number(n.V)
		case !keep:
			delete(out, name)
		}
	}
	put("max_sectors_kb", p.MaxSectorsKB, false)
	put("max_hw_sectors_kb", p.MaxHWSectorsKB, false)
	put("optimal_io_size", p.OptimalIOSize, false)
	put("minimum_io_size", p.MinimumIOSize, true)
	return out
}

// subjectAt is a subject as the release will show it.
func subjectAt(sub *quirks.Subject, to kernel.Release, t *then, all map[string]*then) *quirks.Subject {
	s := *sub
	s.Kernel = to
	s.Limits = replaced(sub.Limits, t.predict)
	for name, n := range map[string]kernel.Num{"max_sectors": t.predict.MaxSectors, "max_hw_sectors": t.predict.MaxHWSectors} {
		delete(s.Limits, name)
		if n.Known {
			s.Limits[name] = quirks.Number(n.V)
		}
	}
	s.Settings = maps.Clone(sub.Settings)
	for _, m := range []map[string]quirks.Value{s.Limits, s.Settings} {
		switch {
		case m == nil:
		case t.ahead.Known:
			if _, had := m["read_ahead_kb"]; had {
				m["read_ahead_kb"] = quirks.Number(t.ahead.V)
			}
		default:
			delete(m, "read_ahead_kb")
		}
	}
	if linkPowerChanges(sub, to) {
		delete(s.Settings, "link_power_management_policy")
	}
	around := func(peers []quirks.StackPeer) []quirks.StackPeer {
		out := slices.Clone(peers)
		for i, p := range out {
			var predicted kernel.Prediction
			if o := all[p.Name]; o != nil {
				predicted = o.predict
			}
			out[i].Limits = replaced(p.Limits, predicted)
		}
		return out
	}
	s.Stack.Members, s.Stack.Above = around(sub.Stack.Members), around(sub.Stack.Above)
	return &s
}

// ownLinkPower: the kernels that leave link power management of a server's ports
// as the firmware set it (facts: the default of 6.9; no stable tree took it).
var ownLinkPower = []kernel.Row{{Tree: "mainline", Until: "6.9"}}

// linkPowerChanges reports whether the release brings the ports of AHCI another
// policy of link power management than the running kernel's, so that today's says
// nothing of then.
func linkPowerChanges(sub *quirks.Subject, to kernel.Release) bool {
	return sub.Path == "libata" && sub.Adapter["driver"] == "ahci" &&
		kernel.Carries(ownLinkPower, sub.Kernel).Truth == kernel.True && kernel.Carries(ownLinkPower, to).Truth == kernel.False
}

// keepOpen leaves a finding of today undecided where silence is no answer: a
// built-in check whose limit was read and could not be predicted, and a fault of
// the kernel of which it is not known whether the release has it.
func (t *then) keepOpen(d *device) {
	open := func(name string) bool {
		_, was := d.sub.Limit(name)
		_, is := t.sub.Limit(name)
		return was && !is
	}
	limits := open("max_sectors_kb") || open("max_hw_sectors_kb") || open("optimal_io_size")
	for _, f := range d.findings {
		if f.Verdict != checker.Affected && f.Verdict != checker.Unknown ||
			slices.ContainsFunc(t.findings, func(o checker.Finding) bool { return o.Quirk == f.Quirk }) {
			continue
		}
		why := ""
		switch _, isCheck := checker.BuiltinOf(f.Quirk); {
		case isCheck && limits:
			why = "the limit it looks at could not be predicted"
		case slices.Contains(t.judged.Open, f.Quirk):
			why = "whether that kernel has it is not known"
		default:
			continue
		}
		f.Verdict, f.Observed, f.MitigatedBy, f.Advice = checker.Unknown, nil, nil, []string{why}
		t.findings = append(t.findings, f)
	}
}

func worst(findings []checker.Finding) checker.Verdict {
	v := checker.NoKnownQuirk
	for _, f := range findings {
		if f.Verdict.Rank() > v.Rank() {
			v = f.Verdict
		}
	}
	return v
}

// judgeSettings judges findings about settings by the release alone where it
// protects another way than the running kernel: what is set today may be set by
// that kernel's own quirk.
func (h *Host) judgeSettings(d *device, t *then) {
	for i, f := range t.findings {
		e, ok := h.db.Entry(f.Quirk)
		if ok && len(f.Settings) > 0 && e.Protects(d.sub).Truth != e.Protects(t.sub).Truth {
			_, t.findings[i] = checker.Explain(checker.Unset(t.sub, e), e, h.policy)
		}
	}
}

func (o *Outcome) count(c Change) {
	switch c.Class {
	case NewRisk:
		o.NewRisk++
	case FixedByUpgrade:
		o.FixedByUpgrade++
	case Unknown:
		o.Unknown++
	default:
		o.Unchanged++
	}
	if len(c.Warnings) > 0 {
		o.Warned++
	}
}

func kernelOf(r kernel.Release) Kernel {
	if !r.Known() {
		return Kernel{}
	}
	up := r.Upstream()
	return Kernel{Release: &r.Raw, Upstream: &up}
}

func predictedOf(t *then) Predicted {
	p := t.predict
	out := Predicted{MaxSectorsKB: ptr(p.MaxSectorsKB), MaxHWSectorsKB: ptr(p.MaxHWSectorsKB), OptimalIOSize: ptr(p.OptimalIOSize), ReadAheadKB: ptr(t.ahead),
		Certainty: string(cmp.Or(p.Certainty, kernel.NoAnswer)), Because: orEmpty(p.Because), Sources: orEmpty(p.Sources), Missing: []Missing{}, Beyond: p.Beyond}
	if p.Rule != "" {
		out.Rule = &p.Rule
	}
	for _, m := range p.Missing {
		out.Missing = append(out.Missing, Missing(m))
	}
	return out
}

func ptr(n kernel.Num) *uint64 {
	if !n.Known {
		return nil
	}
	return &n.V
}

func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// sentence joins the parts that are not empty.
func sentence(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), "; ")
}
