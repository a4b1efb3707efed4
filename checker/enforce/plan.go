// Package enforce lowers queue/max_sectors_kb to what a report calls safe, and
// takes it back.
//
// Setting the value looks like one write; in the field it fails I/O on live
// multipath maps, is clamped or rounded without a word, raises read-ahead as a
// side effect and is gone after a reboot. So MakePlan, which does no I/O, says
// what would be done, what is refused and why; Apply does it, one write an
// attribute, reads back, and journals before each write; Revert restores what
// is still ours in this boot.
package enforce

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

// Options are what the owner allows beyond the safe default.
type Options struct {
	Include      []string // confidences beyond confirmed: probable, suspected
	AllowRaise   bool     // also raise a value that is below the bound of an entry
	Permanent    bool     // also settings that the drive keeps for good
	AllowStacked bool     // carry out the multipath sequence
	Shared       bool     // also LUNs that other hosts may use (FC, iSCSI)
	Only         []string // device names; nil is all
	Kernel       kernel.Release
	PageKiB      uint64 // page size of this machine in KiB, 0 for 4
}

// Op is what a step does.
type Op string

// The operations. Suspend and Resume are dmsetup's, around the paths of a map.
const (
	OpWrite   Op = "write"
	OpSuspend Op = "suspend"
	OpResume  Op = "resume"
)

// Key names a device beyond its name, which another may take.
type Key struct {
	Device   string  `json:"device"`
	DiskSeq  *uint64 `json:"diskseq"`  // null on kernels before 5.15
	Identity string  `json:"identity"` // see IdentityOf
}

// Step is one thing to do. Steps of a group run in order, groups side by side.
type Step struct {
	Key
	Group   string   `json:"group"`
	Op      Op       `json:"op"`
	Attr    string   `json:"attr,omitempty"` // relative to the root
	From    string   `json:"from,omitempty"`
	To      string   `json:"to,omitempty"`
	Map     string   `json:"map,omitempty"` // suspend, resume: name of the map
	Quirk   string   `json:"quirk,omitempty"`
	Because []string `json:"because"`
	Risk    string   `json:"risk,omitempty"`
	// Default: From is what the kernel chose by itself, as far as can be told,
	// so that undoing it means the default and not a number.
	Default bool `json:"was_default,omitempty"`
}

// Refusal is a device that is not touched, and what to do instead.
type Refusal struct {
	Key
	Why     string   `json:"why"`
	Instead []string `json:"instead"`
}

// Satisfied is a device whose value is within the bound already.
type Satisfied struct {
	Key
	Value   string   `json:"value"`
	Because []string `json:"because"`
}

// Plan is what Apply would do.
type Plan struct {
	Steps     []Step      `json:"steps"`
	Satisfied []Satisfied `json:"satisfied"`
	Refused   []Refusal   `json:"refused"`
	Warnings  []string    `json:"warnings"`
	// Serial: one write at a time. On Linux 6.9 to 6.13 a write that meets a
	// revalidate can deadlock (CVE-2025-21807).
	Serial bool `json:"serial"`
}

// IdentityOf is a stable text of a device's names, for comparing it with what
// bears the same name later.
func IdentityOf(d *checker.Device) string {
	join := func(space string, parts ...*string) string {
		for _, p := range parts {
			s := ""
			if p != nil {
				s = *p
			}
			space += "|" + s
		}
		return space
	}
	id := d.Identity
	text := d.Kind
	switch {
	case id.ATA != nil:
		text = join("ata", id.ATA.Model, id.ATA.Firmware)
	case id.NVMe != nil:
		text = join("nvme", id.NVMe.Model, id.NVMe.Firmware)
	case id.SCSI != nil:
		text = join("scsi", id.SCSI.Vendor, id.SCSI.Product, id.SCSI.Revision)
	case d.Stack != nil:
		text = join(d.Stack.Kind, d.Stack.Name)
	}
	if d.SizeBytes != nil {
		text += fmt.Sprintf("|%d", *d.SizeBytes)
	}
	return text
}

func keyOf(d *checker.Device) Key {
	return Key{Device: d.Name, DiskSeq: d.Limits.DiskSeq, Identity: IdentityOf(d)}
}

func attrOf(device string) string { return "sys/block/" + device + "/queue/max_sectors_kb" }

// deadlocks reports whether writing a queue limit may deadlock with a
// revalidate: from 6.9 until 6.14, in 6.12.y until 6.12.96.
func deadlocks(r kernel.Release) bool {
	fixed := r.Minor == 12 && r.PointK && r.Point >= 96
	return r.Major == 6 && r.Minor >= 9 && r.Minor <= 13 && !fixed
}

// MakePlan says what to do about a report. It does no I/O.
func MakePlan(r *checker.Report, o Options) Plan {
	p := Plan{Steps: []Step{}, Satisfied: []Satisfied{}, Refused: []Refusal{}, Warnings: []string{}}
	if deadlocks(o.Kernel) {
		p.Serial = true
		p.Warnings = append(p.Warnings, "on this kernel ("+o.Kernel.Raw+") a limit written while the disk is being revalidated can deadlock (CVE-2025-21807); "+
			"writes go one at a time; a udev rule at add (--persist, or recommend --emit udev) is the safer way")
	}
	if !o.Kernel.Known() {
		p.Warnings = append(p.Warnings, "the kernel's release is not known, so it is not known what it does with a written limit")
	}
	byName := map[string]*checker.Device{}
	for _, d := range r.Devices {
		byName[d.Name] = d
	}
	maps := map[string][]wish{} // request-based map -> its paths
	for _, d := range r.Devices {
		if o.Only != nil && !slices.Contains(o.Only, d.Name) {
			continue
		}
		w, ok := p.wish(r, d, o)
		if !ok {
			continue
		}
		mpath, unsure := multipathAbove(d, byName)
		switch {
		case unsure != "":
			p.refuse(d, "whether "+unsure+" above it clones requests could not be read; lowering a path of such a map fails its I/O",
				"look with dmsetup table "+unsure+"; then run this again as root")
		case mpath != nil:
			maps[mpath.Name] = append(maps[mpath.Name], w)
		default:
			p.Steps = append(p.Steps, w.step(d.Name))
		}
	}
	for _, d := range r.Devices {
		if d.Stack != nil && d.Stack.RequestBased != nil && *d.Stack.RequestBased && (o.Only == nil || slices.Contains(o.Only, d.Name) || maps[d.Name] != nil) {
			p.multipath(d, maps[d.Name], byName, o)
		}
	}
	// Settings come last and in groups of their own: one that fails must not
	// keep a size from being set.
	for _, d := range r.Devices {
		if o.Only == nil || slices.Contains(o.Only, d.Name) {
			p.settings(r, d, o)
		}
	}
	return p
}

// wish is a value a device should have.
type wish struct {
	d        *checker.Device
	from, to uint64 // KiB
	quirk    string
	because  []string
	risk     string
	standard bool
}

func (w wish) step(group string) Step {
	return Step{Key: keyOf(w.d), Group: group, Op: OpWrite, Attr: attrOf(w.d.Name), From: fmt.Sprint(w.from), To: fmt.Sprint(w.to),
		Quirk: w.quirk, Because: w.because, Risk: w.risk, Default: w.standard}
}

func (p *Plan) refuse(d *checker.Device, why string, instead ...string) {
	if instead == nil {
		instead = []string{}
	}
	p.Refused = append(p.Refused, Refusal{Key: keyOf(d), Why: why, Instead: instead})
}

// wish decides about one device: nothing to do (false), satisfied, refused, or
// a value to write.
func (p *Plan) wish(r *checker.Report, d *checker.Device, o Options) (wish, bool) {
	allowed, left := allowedQuirks(r, d, o)
	for _, q := range left {
		p.Warnings = append(p.Warnings, d.Name+": "+q+" is not confirmed; --include probable,suspected enforces it too")
	}
	if len(allowed) == 0 {
		return wish{}, false
	}
	if d.Limits.MaxSectorsKB == nil {
		p.refuse(d, "queue/max_sectors_kb could not be read", "quirkcheck explain "+d.Name)
		return wish{}, false
	}
	bound, ok := lowest(d.Safe.Bounds, allowed)
	if !ok {
		return wish{}, false
	}
	now := *d.Limits.MaxSectorsKB
	lbs := uint64(512)
	if n := d.Limits.LogicalBlockSize; n != nil && *n >= 512 && *n <= 1<<20 {
		lbs = *n
	}
	to := checker.SettableKiB(bound.MaxSectors, lbs)
	why := fmt.Sprintf("%s (%s): at most %d sectors", bound.Reason, bound.Source, bound.MaxSectors)
	w := wish{d: d, from: now, to: to, quirk: bound.Quirk, because: []string{why}, standard: isDefault(d, now, o.Kernel)}
	if now < to { // raising, also the bounds of entries that are not enforced count
		to = min(to, checker.SettableKiB(d.Safe.Bounds[0].MaxSectors, lbs))
		w.to = to
	}
	switch {
	case now <= bound.MaxSectors/2 && !(o.AllowRaise && now < to):
		p.Satisfied = append(p.Satisfied, Satisfied{Key: keyOf(d), Value: fmt.Sprint(now), Because: w.because})
		return wish{}, false
	case to < floorKiB(o):
		p.refuse(d, fmt.Sprintf("%s, and the kernel takes no value below %d KiB", why, floorKiB(o)), "use another adapter or path, or replace the device")
		return wish{}, false
	}
	if t := d.Transport; t != nil && (*t == "fc" || *t == "fcoe" || *t == "iscsi") && !o.Shared {
		p.refuse(d, "a LUN over "+*t+" may be used by other hosts, whose limits this does not change", "--shared, after the same is planned on every host")
		return wish{}, false
	}
	if tops := bioTops(d); len(tops) > 0 {
		w.because = append(w.because, "held by "+strings.Join(tops, ", ")+": requests are split again at this disk, so lowering it under load is safe; "+topsKeep(o.Kernel))
	}
	if ra := d.Limits.ReadAheadKB; ra != nil && sideEffect(o.Kernel) {
		w.risk = fmt.Sprintf("this kernel may raise read_ahead_kb with the write; it is put back to %d", *ra)
	}
	return w, true
}

// addSetting plans one write an attribute, also where several entries or, on a
// shared host, several disks want it: of bounds the strictest, of two different
// values neither.
func (p *Plan) addSetting(d *checker.Device, s Step, wanted string) {
	i := slices.IndexFunc(p.Steps, func(o Step) bool { return o.Attr == s.Attr })
	if i < 0 {
		p.Steps = append(p.Steps, s)
		return
	}
	have := &p.Steps[i]
	a, errA := strconv.ParseUint(have.To, 10, 64)
	b, errB := strconv.ParseUint(s.To, 10, 64)
	bothSay := func(word string) bool {
		return errA == nil && errB == nil && strings.Contains(wanted, word) && strings.Contains(have.Because[len(have.Because)-1], word)
	}
	switch {
	case have.To == s.To:
	case bothSay("at most"):
		have.To = strconv.FormatUint(min(a, b), 10)
	case bothSay("at least"):
		have.To = strconv.FormatUint(max(a, b), 10)
	default:
		p.refuse(d, fmt.Sprintf("%s: entries want different values, %s and %s", s.Attr, have.To, s.To), "decide by hand: quirkcheck explain "+s.Quirk)
		p.Steps = slices.Delete(p.Steps, i, i+1)
		return
	}
	have.Because = append(have.Because, s.Because...)
}

// isDefault reports whether a value is what the kernel chooses by itself
// (blk_validate_limits in block/blk-settings.c): the cap, or the optimal I/O
// size where that is above it (from 6.11), within what adapter and device
// take. Only asked of kernels that take 0 for the default, from 6.3 on.
func isDefault(d *checker.Device, kib uint64, r kernel.Release) bool {
	from := func(v string) bool {
		return kernel.Carries([]kernel.Row{{Tree: "mainline", Since: v}}, r).Truth == kernel.True
	}
	if !from("6.3") || d.Limits.MaxHWSectorsKB == nil {
		return false
	}
	standard := uint64(1280)
	if from("6.17") {
		standard = 4096
	}
	if opt := d.Limits.OptimalIOSize; from("6.11") && opt != nil && *opt/1024 > standard {
		standard = *opt / 1024
	}
	standard = min(standard, *d.Limits.MaxHWSectorsKB)
	if n, lbs := d.Limits.VPDMaxTransferBlocks, d.Limits.LogicalBlockSize; n != nil && lbs != nil && *n < 1<<32 && *lbs <= 1<<20 {
		standard = min(standard, *n**lbs/1024)
	}
	return kib == standard
}

// settings plans the knobs beside max_sectors that affected findings want.
func (p *Plan) settings(r *checker.Report, d *checker.Device, o Options) {
	for _, f := range r.Findings {
		if f.Device == nil || *f.Device != d.Name || f.Verdict != checker.Affected {
			continue
		}
		if f.Confidence != "confirmed" && !slices.Contains(o.Include, f.Confidence) {
			continue
		}
		for _, s := range f.Settings {
			why := fmt.Sprintf("%s (%s) wants %s", f.Title, f.Quirk, s.Wanted)
			switch {
			case s.Satisfied:
			case s.Observed == nil || s.Attr == "" || s.To == "":
				p.Warnings = append(p.Warnings, d.Name+": "+why+", which cannot be set at run time here: quirkcheck recommend, quirkcheck explain "+f.Quirk)
			case s.Permanent && !o.Permanent:
				p.refuse(d, why+", and the drive would keep that for good", "--include-permanent sets it all the same")
			default:
				p.addSetting(d, Step{Key: keyOf(d), Group: s.Attr, Op: OpWrite, Attr: s.Attr, From: *s.Observed, To: s.To, Quirk: f.Quirk, Because: []string{why}}, s.Wanted)
			}
		}
	}
}

func floorKiB(o Options) uint64 {
	page := cmp.Or(o.PageKiB, 4)
	if page > 4 && kernel.Carries([]kernel.Row{{Tree: "mainline", Since: "6.18"}}, o.Kernel).Truth != kernel.True {
		return page
	}
	return 4
}

// sideEffect: from 6.18 on a limit write raises read_ahead_kb.
func sideEffect(r kernel.Release) bool {
	return r.Major > 6 || r.Major == 6 && r.Minor >= 18
}

// topsKeep says what happens to the value that the device above shows.
func topsKeep(r kernel.Release) string {
	if kernel.Carries([]kernel.Row{{Tree: "mainline", Since: "4.3"}}, r).Truth == kernel.False {
		return "kernels before 4.3 do not split there: do not rely on it"
	}
	return "the device above keeps showing its own value until it is assembled again"
}

// allowedQuirks returns the ids whose size bound may be enforced, and those
// that only their confidence keeps out. The device's own limits (VPD) count as
// confirmed and have the id "".
func allowedQuirks(r *checker.Report, d *checker.Device, o Options) (allowed, left []string) {
	for _, f := range r.Findings {
		if f.Device == nil || *f.Device != d.Name {
			continue
		}
		sized := slices.ContainsFunc(d.Safe.Bounds, func(b checker.Bound) bool { return b.Quirk == f.Quirk })
		switch {
		case f.Quirk == "limit-above-vpd-max" && f.Verdict == checker.Affected:
			allowed = append(allowed, "")
		case !sized || f.Verdict != checker.Affected && f.Verdict != checker.Mitigated:
		case f.Confidence == "confirmed" || slices.Contains(o.Include, f.Confidence):
			allowed = append(allowed, f.Quirk)
		case f.Verdict == checker.Affected:
			left = append(left, f.Quirk)
		}
	}
	return allowed, left
}

// lowest is the lowest bound that counts: the device's and the adapter's own,
// and those of allowed entries.
func lowest(bounds []checker.Bound, allowed []string) (checker.Bound, bool) {
	for _, b := range bounds { // sorted, lowest first
		if b.Quirk == "" || slices.Contains(allowed, b.Quirk) {
			return b, true
		}
	}
	return checker.Bound{}, false
}

// multipathAbove finds the request-based map a path belongs to. unsure names a
// dm holder of which that could not be read.
func multipathAbove(d *checker.Device, byName map[string]*checker.Device) (mpath *checker.Device, unsure string) {
	for _, h := range d.Holders {
		if !strings.HasPrefix(h, "dm-") {
			continue
		}
		top, ok := byName[h]
		if !ok || top.Stack == nil || top.Stack.RequestBased == nil {
			return nil, h
		}
		if *top.Stack.RequestBased {
			return top, ""
		}
	}
	return nil, ""
}

// bioTops are the devices above that resubmit bios, those on partitions too.
func bioTops(d *checker.Device) []string {
	tops := slices.Clone(d.Holders)
	for _, l := range d.Above {
		if !slices.Contains(tops, l.Name) {
			tops = append(tops, l.Name)
		}
	}
	return tops
}

// multipath plans the paths of one request-based map. A cloned request is not
// split: a path below its map fails the map's requests. So the map comes first,
// a flushing suspend drains what was built for the old limit, then the paths.
//
// The map must not exceed its lowest path, so the paths that are low already
// count, and a map that stands above one is planned by itself.
func (p *Plan) multipath(m *checker.Device, paths []wish, byName map[string]*checker.Device, o Options) {
	to := uint64(0)
	lower := func(kib uint64) {
		if to == 0 || kib < to {
			to = kib
		}
	}
	for _, name := range m.Members {
		if d := byName[name]; d != nil && d.Limits.MaxSectorsKB != nil {
			lower(*d.Limits.MaxSectorsKB)
		}
	}
	for _, w := range paths {
		lower(w.to)
	}
	if to == 0 || len(paths) == 0 && (m.Limits.MaxSectorsKB == nil || *m.Limits.MaxSectorsKB <= to) {
		return
	}
	name := m.Name
	if m.Stack.Name != nil {
		name = *m.Stack.Name
	}
	sequence := []string{
		fmt.Sprintf("put max_sectors_kb %d into multipath.conf for maps and paths to come (quirkcheck recommend --emit multipath)", to),
		fmt.Sprintf("echo %d > /%s", to, attrOf(m.Name)),
		"dmsetup suspend " + quoteShell(name),
	}
	for _, w := range paths {
		sequence = append(sequence, fmt.Sprintf("echo %d > /%s", to, attrOf(w.d.Name)))
	}
	sequence = append(sequence, "dmsetup resume "+quoteShell(name))
	if !o.AllowStacked {
		if len(paths) == 0 {
			p.refuse(m, fmt.Sprintf("the map %s stands at %d KiB, above its lowest path at %d: requests in between fail (over max size limit)", name, *m.Limits.MaxSectorsKB, to),
				append([]string{"--allow-stacked carries out this sequence:"}, sequence...)...)
		}
		for _, w := range paths {
			p.refuse(w.d, "a path of the request-based multipath map "+name+" ("+m.Name+"): lowered alone it fails the map's I/O (over max size limit)",
				append([]string{"--allow-stacked carries out this sequence:"}, sequence...)...)
		}
		return
	}
	if m.Limits.MaxSectorsKB == nil {
		p.refuse(m, "the map's queue/max_sectors_kb could not be read")
		return
	}
	group := m.Name
	because := []string{"the map must not exceed its lowest path"}
	if *m.Limits.MaxSectorsKB > to {
		p.Steps = append(p.Steps, Step{Key: keyOf(m), Group: group, Op: OpWrite, Attr: attrOf(m.Name), From: fmt.Sprint(*m.Limits.MaxSectorsKB), To: fmt.Sprint(to), Because: because,
			Risk: "lost when the table is loaded again; multipath.conf keeps it"})
	}
	p.Steps = append(p.Steps, Step{Key: keyOf(m), Group: group, Op: OpSuspend, Map: name, Because: []string{"flushes requests built for the old limit; I/O waits meanwhile"}})
	for _, w := range paths {
		s := w.step(group)
		s.To = fmt.Sprint(to)
		p.Steps = append(p.Steps, s)
	}
	p.Steps = append(p.Steps, Step{Key: keyOf(m), Group: group, Op: OpResume, Map: name, Because: []string{"I/O goes on"}})
}

// quoteShell quotes a word for a shell where it needs quoting.
func quoteShell(s string) string {
	if s != "" && strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-+@:/") == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}
