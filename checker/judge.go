package checker

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// Judgement is what is decided about one subject.
type Judgement struct {
	Verdict     Verdict
	Findings    []Finding // worst first, then by id
	Safe        Safe
	Recommended Recommended
	Matches     []quirks.Match // all that match or may, capabilities too
	Blank       int            // entries left out because the subject shows no name at all
	Open        []string       // entries about kernels left out because too little is known of this one
	// Asked are faults of the kernel that hang on nothing but a person's answer.
	// The answer is about the host and its use, so it is asked once, and no
	// device is unknown for want of it.
	Asked []Finding
}

// OfDevice is the verdict on a device: one that shows no name at all may be
// anything, also something the database knows.
func (j Judgement) OfDevice() Verdict {
	if j.Blank > 0 && j.Verdict.Rank() < Unknown.Rank() {
		return Unknown
	}
	return j.Verdict
}

// Judge decides about one subject.
func Judge(sub *quirks.Subject, db *quirks.Set, p Policy) Judgement {
	j := Judgement{Matches: db.Match(sub)}
	for _, m := range j.Matches {
		if m.Entry.Effect == quirks.EffectCapability || m.Entry.Change() {
			continue
		}
		if m.Truth == quirks.Unknown && Nameless(m) {
			j.Blank++
			continue
		}
		question := false
		if m.Truth == quirks.Unknown && m.Entry.Folder() == "kernel" {
			var open bool
			if question, open = ofTheHost(m); open || m.Entry.OpenAbout(sub.Kernel) {
				if m.Entry.Confidence != "suspected" { // one report about another release is no reason to trouble this host
					j.Open = append(j.Open, m.Entry.ID) // for every device like it: the host is told once
				}
				continue
			}
		}
		f := finding(sub, m)
		p.suppress(sub, &f)
		if question && f.Verdict == Unknown {
			j.Asked = append(j.Asked, f)
			continue
		}
		j.Findings = append(j.Findings, f)
		if n, ok := m.Entry.MaxSectors(); ok && m.Truth == quirks.True {
			j.Safe.Bounds = append(j.Safe.Bounds, Bound{MaxSectors: uint64(n), Reason: m.Entry.Title, Source: m.Entry.ID, Quirk: m.Entry.ID})
		}
	}
	for _, c := range builtins {
		f, ok := c.run(sub, j.Matches)
		if !ok {
			continue
		}
		f.Quirk, f.Severity, f.Title = c.id, cmp.Or(f.Severity, c.severity), cmp.Or(f.Title, c.title)
		if f.Effect == "" {
			f.Effect = c.effect
		}
		f.References = c.references
		p.suppress(sub, &f)
		j.Findings = append(j.Findings, f)
	}
	slices.SortStableFunc(j.Findings, func(a, b Finding) int {
		if c := cmp.Compare(b.Verdict.Rank(), a.Verdict.Rank()); c != 0 {
			return c
		}
		if c := cmp.Compare(b.Severity.Rank(), a.Severity.Rank()); c != 0 {
			return c
		}
		return strings.Compare(a.Quirk, b.Quirk)
	})
	j.Verdict = NoKnownQuirk
	for _, f := range j.Findings {
		if f.Verdict.Rank() > j.Verdict.Rank() {
			j.Verdict = f.Verdict
		}
	}
	j.Safe.Bounds = append(j.Safe.Bounds, deviceBounds(sub)...)
	j.Safe.Bounds = append(j.Safe.Bounds, stackBounds(sub)...)
	if hw, ok := hardwareBound(sub, j.Safe.Bounds); ok {
		j.Safe.Bounds = append(j.Safe.Bounds, hw)
	}
	slices.SortStableFunc(j.Safe.Bounds, func(a, b Bound) int { return cmp.Compare(a.MaxSectors, b.MaxSectors) })
	if len(j.Safe.Bounds) > 0 {
		n := j.Safe.Bounds[0].MaxSectors
		j.Safe.MaxSectors = &n
	}
	j.Recommended = recommend(sub, j.Safe)
	return j
}

// Nameless reports whether an open match rests on nothing: the entry asks
// for a name, the subject shows none, and nothing else it asks held. Such a
// match would fit any device.
func Nameless(m quirks.Match) bool {
	blank := false
	for _, p := range m.Predicates {
		switch {
		case p.Key == "path" || p.Key == "device.space" || strings.HasPrefix(p.Key, "kernel"):
		case p.Truth == quirks.True:
			return false
		case p.Truth == quirks.Unknown && p.Why == quirks.WhyNoIdentity:
			blank = true
		}
	}
	return blank
}

// ofTheHost says where an open match of an entry about kernels belongs. Where
// nothing but a person's answer is missing it is a question to the host. Where
// it waits for a fact that was not read and names no device, or for what is not
// on record of this release and holds for no more than the way to the device,
// it would be open for every device there, and nobody can close it.
func ofTheHost(m quirks.Match) (question, open bool) {
	asked, fact, release, device, adapter := false, false, false, false, false
	for _, p := range m.Predicates {
		of := func(prefix string) bool { return strings.HasPrefix(p.Key, prefix) }
		switch {
		case p.Asks():
			asked = true
		case p.Truth == quirks.Unknown && of("kernel"):
			release = true
		case p.Truth == quirks.Unknown:
			fact = true
		case of("device."), of("usb."), of("machine."):
			device = true
		case of("adapter."):
			adapter = true
		}
	}
	return asked && !fact && !release, fact && !device || release && !device && !adapter
}

// finding turns a match into a verdict.
func finding(sub *quirks.Subject, m quirks.Match) Finding {
	e := m.Entry
	f := Finding{Quirk: e.ID, Severity: e.Severity, Effect: e.Effect, Title: e.Title, References: e.References,
		Inferred: m.Inferred, Confidence: e.Confidence, Why: whys(sub, m.Predicates)}
	if f.References == nil {
		f.References = []quirks.Reference{}
	}
	limit, sized := e.MaxSectors()
	k, observed := sub.MaxSectorsKiB()
	f.Settings = settings(sub, e)
	if !sized && len(f.Settings) > 0 {
		f.Wanted, f.Observed = &f.Settings[0].Wanted, f.Settings[0].Observed
	}
	if sized {
		want := fmt.Sprintf("max_sectors %d (max_sectors_kb %d)", limit, limit/2)
		f.Wanted = &want
		if observed {
			got := fmt.Sprintf("max_sectors_kb %d", k)
			f.Observed = &got
		}
	}
	if m.Truth == quirks.Unknown {
		f.Verdict = Unknown
		f.Advice = advice(m)
		return f
	}
	kernelSays, proof := protection(sub, e)
	switch {
	case sized && observed && satisfies(sub, k, limit):
		f.Verdict, f.MitigatedBy = Mitigated, limitProtection(sub, kernelSays, proof, limit)
	case sized && observed:
		f.Verdict = Affected
		f.Advice = append(f.Advice, "the kernel here: "+unprotected(kernelSays))
	case sized: // the kernel's version is all there is to go by
		if f.Verdict, f.MitigatedBy = byKernel(kernelSays, proof); f.Verdict != Mitigated {
			f.Verdict = Unknown
			f.Advice = []string{"queue/max_sectors_kb is not known, and without it nothing says whether a limit holds"}
		}
	case len(e.Avoid) > 0 && len(e.Want) == 0:
		f.Verdict, f.MitigatedBy = Mitigated, avoidProtection(e, kernelSays, proof)
	default:
		v, by, ok := bySettings(f.Settings)
		switch {
		case ok && v == Affected: // whatever the kernel applies, it is not set so
		case kernelSays.Truth == quirks.True && (proof != nil || !ok || !kernelSays.Low):
			v, by = byKernel(kernelSays, proof)
		case !ok: // what cannot be observed is judged by what the kernel does
			v, by = byKernel(kernelSays, proof)
		}
		f.Verdict, f.MitigatedBy = v, by
		switch {
		case f.Verdict == Unknown:
			f.Advice = []string{kernelSays.Why}
		case f.Verdict == Affected && !ok && e.Kernel != nil && len(e.Kernel.Mitigated) > 0:
			f.Advice = append(f.Advice, "the kernel here: "+unprotected(kernelSays))
		}
	}
	if e.Hidden != nil {
		f.judgeHidden(e)
	}
	return f
}

// satisfies compares the present limit with an entry's. KiB hide an odd sector,
// which is within; where the exact number is known it decides.
func satisfies(sub *quirks.Subject, kib uint64, limit uint32) bool {
	if n, ok := sub.Limit("max_sectors"); ok {
		return n <= uint64(limit)
	}
	return kib <= uint64(limit/2)
}

// unprotected says why the kernel's own protection does not hold an affected
// device.
func unprotected(p quirks.Protection) string {
	switch p.Truth {
	case quirks.True:
		return "has a quirk of its own for this (" + p.Flag + "), and the limit is above it all the same"
	case quirks.False:
		return "no protection: " + p.Why
	}
	return "whether it has a protection of its own is not known: " + p.Why
}

// limitProtection names what holds a size limit that is observed to hold: the
// kernel's own quirk where its value shows in max_hw_sectors_kb, else the
// limit that happens to be there.
func limitProtection(sub *quirks.Subject, kernelSays quirks.Protection, proof *quirks.LiveFlag, limit uint32) *MitigatedBy {
	hw, ok := sub.Limit("max_hw_sectors_kb")
	if proof != nil && proof.Applied && ok && hw <= uint64(limit/2) {
		m := provedBy(kernelSays, proof)
		m.Text += "; max_hw_sectors_kb is " + strconv.FormatUint(hw, 10)
		return m
	}
	if kernelSays.Truth == quirks.True && kernelSays.MaxSectors > 0 && ok && hw == uint64(kernelSays.MaxSectors/2) {
		return &MitigatedBy{Kind: "kernel", Scope: "all-commands", Pinned: true,
			Text: "the kernel's own quirk " + kernelSays.Flag + " holds max_hw_sectors_kb at " + strconv.FormatUint(hw, 10)}
	}
	m := &MitigatedBy{Kind: "limit", Scope: "block-layer", Text: "the present max_sectors_kb is within it, and nothing is known to keep it there"}
	if ok && hw <= uint64(limit/2) {
		m.Scope, m.Pinned = "all-commands", true
		m.Text = "the adapter or its driver holds max_hw_sectors_kb at " + strconv.FormatUint(hw, 10)
	}
	return m
}

func avoidProtection(e *quirks.Entry, kernelSays quirks.Protection, proof *quirks.LiveFlag) *MitigatedBy {
	if kernelSays.Truth == quirks.True {
		m := &MitigatedBy{Kind: "kernel", Scope: "all-commands", Pinned: true, Text: "the kernel's own list (" + kernelSays.Flag + ") keeps it from being asked"}
		if proof != nil {
			m = provedBy(kernelSays, proof)
		}
		m.Text += ", and quirkcheck does not ask"
		return m
	}
	cmds := make([]string, len(e.Avoid))
	for i, a := range e.Avoid {
		cmds[i] = a.Command
	}
	return &MitigatedBy{Kind: "probe", Scope: "all-commands", Text: "quirkcheck does not send " + strings.Join(cmds, ", ") + "; other programs may"}
}

// byKernel judges what cannot be observed by what the kernel does: by what the
// machine shows of it, else by its version.
func byKernel(p quirks.Protection, proof *quirks.LiveFlag) (Verdict, *MitigatedBy) {
	switch {
	case p.Truth == quirks.True && proof != nil:
		return Mitigated, provedBy(p, proof)
	case p.Truth == quirks.True:
		return Mitigated, &MitigatedBy{Kind: "kernel", Scope: "all-commands", Pinned: true, Text: "the kernel's own quirk " + p.Flag}
	case p.Truth == quirks.False:
		return Affected, nil
	}
	return Unknown, nil
}

func (f *Finding) judgeHidden(e *quirks.Entry) {
	if f.Verdict == Affected && e.Hidden.Unseen == "unknown" {
		f.Verdict = Unknown
	}
	if e.Hidden.Member != nil {
		s := "the fault is in a disk the system cannot see (" + e.Hidden.Member.Model.String() + "; firmware " + e.Hidden.Member.Firmware.String() + ")"
		if e.Hidden.SeeWith != "" {
			s += "; see it with " + e.Hidden.SeeWith
		}
		f.Advice = append(f.Advice, s)
	}
}

// advice says how to settle an unknown match.
func advice(m quirks.Match) []string {
	var out []string
	for _, p := range m.Predicates {
		if p.Truth != quirks.Unknown {
			continue
		}
		s := p.Key + ": " + p.Why
		switch p.Why {
		case quirks.WhyIdentityCut:
			s += "; hdparm -I as root shows them in full"
		case quirks.WhyNoIdentity:
			s += "; look it up with the vendor's tool"
		}
		out = append(out, s)
	}
	return out
}

func whys(sub *quirks.Subject, preds []quirks.Predicate) []Why {
	out := make([]Why, len(preds))
	for i, p := range preds {
		out[i] = Why{Key: p.Key, Want: p.Want, Truth: p.Truth.String(), Source: p.Source, Why: p.Why}
		if p.Got != "" || p.Truth != quirks.Unknown {
			got := p.Got
			out[i].Got = &got
		}
	}
	return out
}

// hardwareBound is max_hw_sectors_kb in sectors. KiB hide an odd sector: where
// another bound is the odd value that shows as the same KiB, the two are one.
func hardwareBound(sub *quirks.Subject, others []Bound) (Bound, bool) {
	hw, ok := sub.Limit("max_hw_sectors_kb")
	if !ok || hw == 0 || hw >= 1<<52 {
		return Bound{}, false
	}
	b := Bound{MaxSectors: hw * 2, Reason: "what the adapter and its driver can transfer", Source: "queue/max_hw_sectors_kb"}
	if slices.ContainsFunc(others, func(o Bound) bool { return o.MaxSectors == hw*2+1 }) {
		b.MaxSectors++
	}
	return b, true
}

// deviceBounds are what the device itself says. What the segments can carry
// bounds what can be sent and protects nothing, so it is not among them.
func deviceBounds(sub *quirks.Subject) []Bound {
	var out []Bound
	if n, ok := vpdMaxSectors(sub); ok {
		out = append(out, Bound{MaxSectors: n, Reason: "MAXIMUM TRANSFER LENGTH of the device", Source: "VPD page B0h"})
	}
	if n, ok := sub.Limit("mdts_sectors"); ok && n > 0 {
		out = append(out, Bound{MaxSectors: n, Reason: "MDTS of the controller", Source: "Identify Controller"})
	}
	return out
}

// vpdMaxSectors converts MAXIMUM TRANSFER LENGTH from logical blocks to
// 512-byte sectors. Without a block size it is unknown.
func vpdMaxSectors(sub *quirks.Subject) (uint64, bool) { return vpdMaxSectorsOf(sub.Limit) }

func vpdMaxSectorsOf(limit func(string) (uint64, bool)) (uint64, bool) {
	blocks, ok := limit("vpd_max_transfer_blocks")
	lbs, okB := limit("logical_block_size")
	if !ok || !okB || blocks == 0 || lbs < 512 || lbs%512 != 0 || lbs > 1<<20 || blocks > 1<<32 {
		return 0, false
	}
	return blocks * (lbs / 512), true
}

// recommend returns the value to have: the present one when it is within the
// bound, else the largest that stands after writing.
func recommend(sub *quirks.Subject, safe Safe) Recommended {
	r := Recommended{Because: []string{}}
	k, ok := sub.MaxSectorsKiB()
	if !ok {
		r.Because = append(r.Because, "queue/max_sectors_kb is not known")
		return r
	}
	if safe.MaxSectors == nil || k <= *safe.MaxSectors/2 {
		sectors := k * 2
		r.MaxSectors, r.MaxSectorsKB = &sectors, &k
		if safe.MaxSectors != nil {
			r.Because = append(r.Because, fmt.Sprintf("the present %d KiB is within the bound of %d sectors", k, *safe.MaxSectors))
		} else {
			r.Because = append(r.Because, "no bound is known; the present value stays")
		}
		return r
	}
	bound := safe.Bounds[0]
	lbs, known := sub.Limit("logical_block_size")
	if !known || lbs < 512 || lbs > 1<<20 {
		lbs = 512
	}
	kib := SettableKiB(*safe.MaxSectors, lbs)
	sectors := kib * 2
	if floor, why := writeFloorKiB(sub); kib < floor {
		r.Because = append(r.Because, fmt.Sprintf("%s (%s) asks for at most %d sectors, and the kernel takes no value below %d KiB (%s): the limit cannot be set, use another path or replace the device",
			bound.Reason, bound.Source, bound.MaxSectors, floor, why))
		return r
	}
	r.MaxSectors, r.MaxSectorsKB = &sectors, &kib
	because := fmt.Sprintf("%s (%s): at most %d sectors", bound.Reason, bound.Source, bound.MaxSectors)
	if sectors != bound.MaxSectors {
		because += fmt.Sprintf("; %d KiB is the largest value that stands after writing", kib)
	}
	r.Because = append(r.Because, because)
	if pbs, ok := sub.Limit("physical_block_size"); ok && pbs > lbs && pbs <= 1<<20 && kib*1024%pbs != 0 && kib*1024 > pbs {
		r.Because = append(r.Because, fmt.Sprintf("with its physical block of %d bytes the largest request really sent is %d KiB", pbs, kib*1024/pbs*pbs/1024))
	}
	return r
}

// SettableKiB is the largest value of queue/max_sectors_kb that lets no request
// above maxSectors (512-byte sectors) through and stands after writing: KiB
// hide an odd sector, and the kernel rounds to the logical block (bytes).
func SettableKiB(maxSectors, logicalBlockSize uint64) uint64 {
	unit := max(logicalBlockSize/512, 2)
	return maxSectors / unit * unit / 2
}

// writeFloorKiB is the smallest value a kernel accepts: one page, from 6.18 on
// 4 KiB whatever the page.
func writeFloorKiB(sub *quirks.Subject) (kib uint64, why string) {
	page := uint64(4096)
	if s, ok := sub.Machine["page_size"]; ok {
		if n, err := strconv.ParseUint(s, 10, 32); err == nil && n >= 4096 {
			page = n
		}
	}
	from618 := kernel.Carries([]kernel.Row{{Tree: "mainline", Since: "6.18"}}, sub.Kernel).Truth
	if page > 4096 && from618 != quirks.True {
		return page / 1024, "one page"
	}
	return 4, "4 KiB"
}
