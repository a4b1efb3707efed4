package checker

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/probe/klog"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// LogSummary says what was read of a log.
type LogSummary struct {
	Source  string `json:"source"`
	Lines   uint64 `json:"lines"`
	Known   uint64 `json:"known"` // lines that were understood
	Boots   int    `json:"boots"`
	Dropped uint64 `json:"dropped"` // understood, and too many different ones to keep
	Other   uint64 `json:"other"`   // of symptoms of devices that were not asked for, which are not listed
	// Counters says that the devices' own counters could be asked for: an early
	// capture has none.
	Counters bool `json:"counters"`
}

// Symptom is what the kernel's log or a counter tells of one device, of one
// kind.
type Symptom struct {
	Device  *string `json:"device"`  // null: no device here, or which one is not certain enough
	Name    string  `json:"name"`    // as the log has it
	Was     *string `json:"was"`     // its identity, where the log of that boot tells
	Certain bool    `json:"certain"` // that the log's name is this device
	Why     string  `json:"why"`     // what ties it, or why nothing does
	Kind    string  `json:"kind"`
	Source  string  `json:"source"` // libata, scsi, block, nvme, ...; of a counter its file
	Op      *string `json:"op"`
	Detail  string  `json:"detail,omitempty"`
	Count   uint64  `json:"count"`
	// Sized counts the commands of which the log tells the size. Sizes are in
	// 512-byte sectors.
	Sized      uint64         `json:"sized"`
	MinSectors *uint64        `json:"min_sectors"`
	MaxSectors *uint64        `json:"max_sectors"`
	Sizes      []SizeCount    `json:"sizes"`     // the largest first, sizesShown at most
	Incidents  []SizeCount    `json:"incidents"` // likewise, the largest command of each incident
	LBA        *uint64        `json:"lba"`       // of the largest
	Limit      *uint64        `json:"limit_sectors,omitempty"`
	First      *Place         `json:"first"`
	Last       *Place         `json:"last"`
	Sample     string         `json:"sample"`
	Findings   []SizeJudgment `json:"findings"`
	Meaning    string         `json:"meaning"` // one sentence for people

	incidents []SizeCount // all
}

// SizeCount is a size in 512-byte sectors and how often it was.
type SizeCount struct {
	Sectors uint64 `json:"sectors"`
	Count   uint64 `json:"count"`
}

// Place is where in the log.
type Place struct {
	Line uint64 `json:"line"`
	Time string `json:"time"`
}

// SizeJudgment compares a symptom with one finding of the device.
type SizeJudgment struct {
	Quirk        string  `json:"quirk"`
	Device       string  `json:"device"`        // of the finding: the symptom's, or a map above it
	BoundSectors *uint64 `json:"bound_sectors"` // null: the finding is not about size
	Above        uint64  `json:"above"`         // incidents whose largest command is above the bound
	Within       uint64  `json:"within"`        // incidents of which no command is
	Strengthens  bool    `json:"strengthens"`

	// effect of the finding where it shows otherwise than this symptom.
	elsewise quirks.Effect
}

// sizesShown bounds the lists of sizes in a report.
const sizesShown = 16

// LogInput is a log with what is known about it.
type LogInput struct {
	Log    *klog.Log
	Source string // file, journal, dmesg
	// Live: it is of the running kernel and the machine is this one, so that
	// addresses mean what they mean now.
	Live bool
}

// AddSymptoms ties a log, and the counters that all holds, to the devices of
// the report. all is the inventory of the whole machine, also where the report
// is about some of its devices: only then a name can be told from a twin's. A
// finding that a symptom speaks for or against gets a line of evidence; no
// verdict changes by it. What a log proves of the kernel's own quirks is for
// LogProofs.
func (r *Report) AddSymptoms(all *probe.Inventory, db *quirks.Set, in LogInput) {
	t := newTier(all, in)
	r.Log = &LogSummary{Source: in.Source, Lines: in.Log.Lines, Known: in.Log.Known, Boots: in.Log.Boots, Dropped: in.Log.Dropped, Counters: true}
	reported := map[string]*Device{}
	for _, d := range r.Devices {
		reported[d.Name] = d
	}
	whole := len(r.Devices) == len(all.Devices)
	for _, s := range in.Log.Symptoms {
		pd, tie := t.tie(s.Subject)
		if pd == nil && s.Subject.Space == klog.SpaceUSB && !s.Subject.Storage {
			continue // a webcam
		}
		if pd != nil && reported[pd.Name] == nil || pd == nil && !whole {
			r.Log.Other += s.Count
			continue
		}
		out := symptomOf(s, pd, tie)
		r.Symptoms = append(r.Symptoms, out)
	}
	for _, pd := range all.Devices {
		d := reported[pd.Name]
		if d == nil {
			continue
		}
		r.Symptoms = append(r.Symptoms, countersOf(pd)...)
		for _, n := range pd.Notes {
			if n.What == probe.CountersNote {
				r.Log.Counters = false
			}
			// What is wrong with a counter the report's own inventory may not know.
			if n := noteOf(n); !slices.Contains(d.Notes, n) {
				d.Notes = append(d.Notes, n)
			}
		}
	}
	order := map[string]int{}
	for i, d := range r.Devices {
		order[d.Name] = i
	}
	place := func(s Symptom) int {
		if s.Device == nil {
			return len(order)
		}
		return order[*s.Device]
	}
	slices.SortStableFunc(r.Symptoms, func(a, b Symptom) int {
		return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(kindRank(a.Kind), kindRank(b.Kind)))
	})
	for i := range r.Symptoms {
		r.judge(&r.Symptoms[i], reported, db)
	}
	r.evidence()
}

// kindRank orders symptoms: what a device did before what followed of it.
func kindRank(kind string) int {
	return slices.Index([]string{string(klog.Timeout), string(klog.OverMaxSize), string(klog.IOError), string(klog.Refused), string(klog.MediumError),
		string(klog.LinkError), string(klog.Reset), string(klog.PathFailed), string(klog.Gone), string(klog.Message), string(klog.Quirk)}, kind)
}

// tier finds the device that a log speaks of.
type tier struct {
	in      LogInput
	devices []*probe.Device
	byATA   map[string][]*probe.Device // by port
	byHCTL  map[string][]*probe.Device
	byName  map[string][]*probe.Device
	byDevno map[string][]*probe.Device
	byPart  map[string][]*probe.Device // by folder of the path: host6, 2-1.3, nvme0, a PCI address
}

func newTier(inv *probe.Inventory, in LogInput) *tier {
	t := &tier{in: in, devices: inv.Devices, byATA: map[string][]*probe.Device{}, byHCTL: map[string][]*probe.Device{},
		byName: map[string][]*probe.Device{}, byDevno: map[string][]*probe.Device{}, byPart: map[string][]*probe.Device{}}
	for _, d := range inv.Devices {
		t.byName[d.Name] = append(t.byName[d.Name], d)
		if p := d.Adapter.ATAPort; p != "" {
			t.byATA[p] = append(t.byATA[p], d)
		}
		if h := d.HCTL(); h != "" {
			t.byHCTL[h] = append(t.byHCTL[h], d)
		}
		if n, ok := d.Text("dev"); ok {
			n = strings.TrimSpace(n)
			t.byDevno[n] = append(t.byDevno[n], d)
		}
		for part := range strings.SplitSeq(d.SysPath, "/") {
			t.byPart[part] = append(t.byPart[part], d)
		}
		if pci := path.Base(d.Adapter.SysPath); d.Adapter.SysPath != "" && !slices.Contains(t.byPart[pci], d) {
			t.byPart[pci] = append(t.byPart[pci], d)
		}
	}
	return t
}

// tied says what ties a log's name to a device.
type tied struct {
	certain bool
	why     string
}

// tie finds the device. The identity that the log gives comes first: a name is
// only a name, and an address only means the same on the same boot or with the
// same disk at it.
func (t *tier) tie(s klog.Subject) (*probe.Device, tied) {
	at, address := t.at(s)
	id := s.Identity()
	if id == "" || s.Space == klog.SpaceUSB {
		return t.byAddress(s, at, address)
	}
	var same []*probe.Device
	for _, d := range t.devices {
		if sameIdentity(d, s) {
			same = append(same, d)
		}
	}
	var both []*probe.Device
	for _, d := range at {
		if slices.Contains(same, d) {
			both = append(both, d)
		}
	}
	switch {
	case len(both) == 1 && (address != "name" || len(same) == 1 && t.in.Log.Twins[id] < 2):
		return both[0], tied{true, "the log names its model, and " + address + " agrees"}
	case len(both) == 1:
		return both[0], tied{false, fmt.Sprintf("by name alone: %d disks here are of the model that the log names", len(same))}
	case len(same) == 1 && t.in.Log.Twins[id] < 2:
		return same[0], tied{true, "the one disk of the model that the log names; it had another place then"}
	case len(same) == 1:
		return same[0], tied{false, fmt.Sprintf("one disk here is of the model that the log names; it saw %d of them", t.in.Log.Twins[id])}
	case len(same) > 1:
		return nil, tied{false, fmt.Sprintf("%d disks here are of the model that the log names, none at its place", len(same))}
	case len(at) == 1 && !hasIdentity(at[0]):
		return at[0], tied{false, "by " + address + ": the disk there does not show its name"}
	case len(at) == 1:
		return nil, tied{false, "no disk here is of the model that the log names; by " + address + " it would be " + at[0].Name + ", another model"}
	}
	return nil, tied{false, "no disk here is of the model that the log names"}
}

func (t *tier) byAddress(s klog.Subject, at []*probe.Device, address string) (*probe.Device, tied) {
	switch {
	case s.Space == klog.SpaceNone:
		return nil, tied{false, "the line names no device"}
	case len(at) == 0:
		return nil, tied{false, "no such device here"}
	case len(at) > 1:
		return nil, tied{false, fmt.Sprintf("%d devices here are behind it", len(at))}
	case s.VID != "" && (at[0].USB["vid"] != s.VID || at[0].USB["pid"] != s.PID):
		return nil, tied{false, "another USB device is there now"}
	case s.VID != "":
		return at[0], tied{true, "the log names its USB ids, and the port agrees"}
	case t.in.Live:
		return at[0], tied{true, "by " + address + ", in the log of the running kernel"}
	}
	return at[0], tied{false, "by " + address + " alone: the log does not say which disk that was"}
}

// at lists the devices that are now where the log says, and by what.
func (t *tier) at(s klog.Subject) ([]*probe.Device, string) {
	switch s.Space {
	case klog.SpaceATA:
		port, unit, isDevice := strings.Cut(strings.TrimPrefix(s.Name, "ata"), ".")
		list := t.byATA[port]
		if isDevice && len(list) > 1 { // a port multiplier, or master and slave: ata1.MM is channel plus target
			list = slices.DeleteFunc(slices.Clone(list), func(d *probe.Device) bool { return unitOf(d.HCTL()) != strings.TrimLeft(unit, "0") })
		}
		return list, "its ATA port"
	case klog.SpaceDisk:
		if s.HCTL != "" {
			return t.byHCTL[s.HCTL], "its SCSI address"
		}
		if s.PCI != "" {
			var list []*probe.Device
			for _, d := range t.byName[s.Name] {
				if slices.Contains(t.byPart[s.PCI], d) {
					list = append(list, d)
				} else if strings.Contains(d.SysPath, "/virtual/") { // a multipath head has no address
					return []*probe.Device{d}, "name"
				}
			}
			return list, "its PCI address"
		}
		return t.byName[s.Name], "name"
	case klog.SpaceNVMe:
		if s.PCI != "" {
			return t.byPart[s.PCI], "its PCI address"
		}
		return t.byPart[s.Name], "name"
	case klog.SpaceUSB:
		return t.byPart[s.Name], "its USB port"
	case klog.SpaceDevno:
		return t.byDevno[s.Name], "its device number"
	case klog.SpaceHost:
		return t.byPart[s.Name], "its SCSI host"
	case klog.SpacePCI:
		return t.byPart[s.Name], "its adapter"
	}
	return nil, ""
}

// unitOf is MM of ata1.MM by a SCSI address: the link of a port multiplier is
// the channel, master and slave are the targets (ata_scsi_scan_host); "" for 0.
func unitOf(hctl string) string {
	f := strings.Split(hctl, ":")
	if len(f) != 4 {
		return "?"
	}
	if f[1] != "0" {
		return f[1]
	}
	return strings.TrimLeft(f[2], "0")
}

func hasIdentity(d *probe.Device) bool {
	return d.ATAModel.Ok() || d.Product.Ok() || d.NVMeModel.Ok()
}

// sameIdentity compares what the log says of a disk with a device. An ATA disk
// of which only the cut INQUIRY strings are known is the same where those are
// (libata: 16 characters of the model, the last 4 of the firmware).
func sameIdentity(d *probe.Device, s klog.Subject) bool {
	trim := func(v probe.Value[string]) string { return strings.Trim(v.V, " \x00") }
	if s.Model != "" {
		if d.ATAModel.Ok() {
			return trim(d.ATAModel) == s.Model && (!d.ATAFirmware.Ok() || trim(d.ATAFirmware) == s.Firmware)
		}
		model := strings.TrimRight(s.Model[:min(len(s.Model), 16)], " ")
		return d.Product.Ok() && trim(d.Vendor) == "ATA" && trim(d.Product) == model && strings.HasSuffix(s.Firmware, trim(d.Revision))
	}
	return d.Product.Ok() && trim(d.Vendor) == s.Vendor && trim(d.Product) == s.Product && trim(d.Revision) == s.Revision
}

func symptomOf(s klog.Symptom, pd *probe.Device, tie tied) Symptom {
	out := Symptom{Name: s.Subject.Name, Was: strOrNil(s.Subject.Identity()), Certain: pd != nil && tie.certain, Why: tie.why, Kind: string(s.Kind), Source: s.Layer,
		Op: strOrNil(s.Op), Detail: s.Detail, Count: s.Count, Sizes: []SizeCount{}, Incidents: []SizeCount{}, Sample: s.Sample, Findings: []SizeJudgment{},
		First: &Place{s.First.Line, s.First.Time}, Last: &Place{s.Last.Line, s.Last.Time}}
	blockSize := uint64(0)
	if pd != nil {
		out.Device = &pd.Name
		if n := pd.Uint("queue/logical_block_size"); n.Ok() && n.V >= 512 && n.V <= 1<<20 {
			blockSize = n.V
		}
	}
	sectors := func(z klog.Size) (uint64, bool) {
		switch {
		case z.Bytes > 0:
			return (z.Bytes + 511) / 512, true
		case z.Blocks > 0 && z.Blocks <= 1<<40 && blockSize > 0:
			return z.Blocks * (blockSize / 512), true
		}
		return 0, false
	}
	counts := func(sizes []klog.Size) []SizeCount {
		list := []SizeCount{}
		for _, z := range sizes {
			if n, ok := sectors(z); ok {
				if i := slices.IndexFunc(list, func(c SizeCount) bool { return c.Sectors == n }); i >= 0 {
					list[i].Count += z.Count
				} else {
					list = append(list, SizeCount{n, z.Count})
				}
			}
		}
		slices.SortFunc(list, func(a, b SizeCount) int { return cmp.Compare(b.Sectors, a.Sectors) })
		return list
	}
	sizes := counts(s.Sizes)
	out.incidents = counts(s.Incidents)
	for _, c := range sizes {
		out.Sized += c.Count
	}
	if len(sizes) > 0 {
		out.Sized += s.Unlisted
		if n, ok := sectors(s.Largest); ok {
			out.MaxSectors = &n
		}
		if n, ok := sectors(s.Smallest); ok {
			out.MinSectors = &n
		}
	}
	out.Sizes, out.Incidents = sizes[:min(len(sizes), sizesShown)], out.incidents[:min(len(out.incidents), sizesShown)]
	if s.HasLBA {
		out.LBA = &s.LBA
	}
	if s.Limit > 0 {
		out.Limit = &s.Limit
	}
	return out
}

// countersOf makes symptoms of a device's own counters that are not zero.
func countersOf(d *probe.Device) []Symptom {
	var out []Symptom
	done := uint64(0)
	for _, c := range d.Counters {
		if c.Name == "device/iodone_cnt" {
			done = c.V
		}
	}
	for _, c := range d.Counters {
		if c.V == 0 || c.Name == "device/iodone_cnt" {
			continue
		}
		s := Symptom{Device: &d.Name, Name: d.Name, Certain: true, Why: "the device's own counter", Source: c.Name, Count: c.V,
			Sizes: []SizeCount{}, Incidents: []SizeCount{}, Findings: []SizeJudgment{}}
		switch {
		case c.Member != "":
			s.Kind, s.Meaning = string(klog.MediumError), fmt.Sprintf("read errors of %s that the array corrected", c.Member)
			s.Detail = c.Member
		case c.Name == "device/iotmo_cnt":
			s.Kind, s.Meaning = string(klog.Timeout), fmt.Sprintf("commands that timed out since the device was found, of %d done", done)
		default:
			s.Kind, s.Meaning = string(klog.IOError), fmt.Sprintf("commands that failed since the device was found, of %d done; refused commands of other programs count too", done)
		}
		out = append(out, s)
	}
	return out
}

// ofSize are the kinds of symptoms that too large a command shows. A medium or
// a link that fails does so whatever the size.
func ofSize(kind string) bool {
	switch klog.Kind(kind) {
	case klog.Timeout, klog.IOError, klog.Refused, klog.OverMaxSize:
		return true
	}
	return false
}

// bringsAbout says whether an effect shows as a kind of symptom.
func bringsAbout(effect quirks.Effect, kind string) bool {
	k := klog.Kind(kind)
	switch effect {
	case "io-timeout", "hang":
		return k == klog.Timeout
	case "link-reset":
		return k == klog.Reset || k == klog.LinkError
	case "io-error":
		return k == klog.IOError || k == klog.Refused
	}
	return false
}

// judge compares a symptom with the findings of its device and says what it
// means.
func (r *Report) judge(s *Symptom, reported map[string]*Device, db *quirks.Set) {
	if s.Device == nil || s.First == nil {
		if s.Meaning == "" {
			s.Meaning = meaningOf(s, nil)
		}
		return
	}
	d := reported[*s.Device]
	for i := range r.Findings {
		f := &r.Findings[i]
		if f.Device == nil {
			continue
		}
		// That a path refused a request is the fault of the map above it.
		ofMap := s.Kind == string(klog.OverMaxSize) && slices.ContainsFunc(d.Above, func(l Level) bool { return l.Name == *f.Device })
		if *f.Device != d.Name && !ofMap {
			continue
		}
		j := SizeJudgment{Quirk: f.Quirk, Device: *f.Device}
		bound, sized := r.boundOf(f, d, db)
		switch {
		case s.Kind == string(klog.OverMaxSize):
			if f.Quirk != "stack-exceeds-member" && f.Quirk != "multipath-paths-differ" {
				continue
			}
			j.BoundSectors, j.Above, j.Strengthens = s.Limit, s.Count, true
		case sized && ofSize(s.Kind) && len(s.incidents) > 0:
			j.BoundSectors = &bound
			for _, c := range s.incidents {
				if c.Sectors > bound {
					j.Above += c.Count
				} else {
					j.Within += c.Count
				}
			}
			j.Strengthens = j.Above > 0
			if !bringsAbout(f.Effect, s.Kind) {
				j.elsewise = f.Effect
			}
		case !sized && bringsAbout(f.Effect, s.Kind):
			j.Strengthens = true
		default:
			continue
		}
		s.Findings = append(s.Findings, j)
	}
	s.Meaning = meaningOf(s, d)
}

// boundOf is the transfer size, in 512-byte sectors, that a finding is about.
func (r *Report) boundOf(f *Finding, d *Device, db *quirks.Set) (uint64, bool) {
	if f.Quirk == "limit-above-vpd-max" {
		for _, b := range d.Safe.Bounds {
			if b.Source == "VPD page B0h" {
				return b.MaxSectors, true
			}
		}
		return 0, false
	}
	e, ok := db.Entry(f.Quirk)
	if !ok {
		return 0, false
	}
	n, ok := e.MaxSectors()
	return uint64(n), ok
}

// evidenceLines bounds the lines that one finding gets.
const evidenceLines = 4

// evidence writes what symptoms say about each finding into it, what speaks
// most for it first.
func (r *Report) evidence() {
	cut := map[string]bool{}
	for _, d := range r.Devices {
		cut[d.Name] = d.Identity.Partial
	}
	for i := range r.Findings {
		f := &r.Findings[i]
		// libata prints what sysfs cuts.
		if f.Verdict == Unknown && f.Device != nil && cut[*f.Device] {
			at := slices.IndexFunc(r.Symptoms, func(s Symptom) bool {
				return s.Certain && s.Source == "libata" && s.Was != nil && *s.Device == *f.Device
			})
			if at >= 0 {
				f.Evidence = append(f.Evidence, "the log names the disk in full: "+*r.Symptoms[at].Was)
			}
		}
		type line struct {
			above uint64
			text  string
		}
		var lines []line
		for k := range r.Symptoms {
			s := &r.Symptoms[k]
			for _, j := range s.Findings {
				if j.Quirk == f.Quirk && f.Device != nil && j.Device == *f.Device {
					lines = append(lines, line{j.Above, evidenceText(s, j)})
				}
			}
		}
		slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(b.above, a.above) })
		for _, l := range lines[:min(len(lines), evidenceLines)] {
			f.Evidence = append(f.Evidence, l.text)
		}
	}
}

// foretold ends a sentence about commands above a bound.
func (j SizeJudgment) foretold(it string) string {
	if j.elsewise != "" {
		return "which speaks for " + it + ", though its effect is " + string(j.elsewise)
	}
	return "as " + it + " foretells"
}

// evidenceText says what one symptom tells about one finding.
func evidenceText(s *Symptom, j SizeJudgment) string {
	what := s.Kind
	if s.Op != nil {
		what += " of " + *s.Op
	}
	what += " (" + s.Source + ")"
	where := "in the log: "
	if !s.Certain {
		where = "in the log, if " + s.Name + " was this disk: "
	}
	switch {
	case s.Kind == string(klog.OverMaxSize):
		return fmt.Sprintf("%s%d requests were above what path %s takes", where, s.Count, *s.Device)
	case j.BoundSectors == nil:
		return fmt.Sprintf("%s%s, %d times, as this quirk foretells", where, what, s.Count)
	case j.Above > 0 && j.Within == 0:
		return fmt.Sprintf("%s%s in %d incidents, each with a command above the bound of %d sectors (largest %d), %s",
			where, what, j.Above, *j.BoundSectors, s.incidents[0].Sectors, j.foretold("this quirk"))
	case j.Above > 0:
		return fmt.Sprintf("%s%s in %d incidents above the bound of %d sectors (largest %d), and in %d within it, which the bound does not explain",
			where, what, j.Above, *j.BoundSectors, s.incidents[0].Sectors, j.Within)
	}
	return fmt.Sprintf("%s%s in %d incidents, all within the bound of %d sectors (largest %d): this quirk does not explain them",
		where, what, j.Within, *j.BoundSectors, s.incidents[0].Sectors)
}

// meaningOf says in one sentence what a symptom means for the size of commands.
func meaningOf(s *Symptom, d *Device) string {
	switch klog.Kind(s.Kind) {
	case klog.MediumError:
		return "the medium: a smaller limit does not help"
	case klog.LinkError:
		return "the link, a cable, a backplane or power: a smaller limit does not help"
	case klog.Reset:
		return "what the kernel does after a failure"
	case klog.Gone:
		return "the kernel gave the device up, or it was unplugged"
	case klog.PathFailed:
		return "a multipath map gave up this path"
	case klog.Quirk:
		return "the kernel knows this device and does this for it"
	case klog.Message:
		return "a code of the adapter's firmware"
	case klog.OverMaxSize:
		return "a multipath map sends more than its path takes: see stack-exceeds-member"
	}
	if s.MaxSectors == nil || len(s.incidents) == 0 {
		return "the log does not tell the size"
	}
	largest := s.incidents[0].Sectors // of the incident, also where another command of it was the largest
	size := fmt.Sprintf("largest %d sectors", largest)
	if *s.MaxSectors < largest {
		size = fmt.Sprintf("failed along with a command of %d sectors", largest)
	}
	for _, j := range s.Findings {
		if j.BoundSectors == nil {
			continue
		}
		switch {
		case j.Above > 0 && j.Within == 0:
			return fmt.Sprintf("%s: above the bound of %d of %s, %s", size, *j.BoundSectors, j.Quirk, j.foretold("it"))
		case j.Above > 0:
			return fmt.Sprintf("%s: above the bound of %d of %s; %d of %d incidents are within it", size, *j.BoundSectors, j.Quirk, j.Within, j.Above+j.Within)
		default:
			return fmt.Sprintf("%s: within the bound of %d of %s, which does not explain it", size, *j.BoundSectors, j.Quirk)
		}
	}
	if d == nil {
		return size
	}
	for _, b := range d.Safe.Bounds {
		if largest > b.MaxSectors {
			return fmt.Sprintf("%s: above a bound of %d (%s)", size, b.MaxSectors, b.Reason)
		}
	}
	smallest := s.incidents[len(s.incidents)-1].Sectors
	switch {
	case smallest <= smallSectors:
		return fmt.Sprintf("%s, but also with no command above %d: a smaller limit does not help", size, smallest)
	case largest > oldDefaultSectors:
		return fmt.Sprintf("%s: above the default before Linux 6.17 (%d); no entry has a bound for this device, quirkcheck verify can find one", size, oldDefaultSectors)
	}
	return size + ": no entry has a bound for this device"
}

const (
	// smallSectors is a size that every device must take: 64 KiB.
	smallSectors = 128
	// oldDefaultSectors is BLK_DEF_MAX_SECTORS of Linux 4.3 to 6.16.
	oldDefaultSectors = 2560
)
