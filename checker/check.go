package checker

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// Check decides about every device of an inventory.
func Check(inv *probe.Inventory, db *quirks.Set, p Policy) *Report {
	r := &Report{SchemaVersion: SchemaVersion, Devices: []*Device{}, Findings: []Finding{}, Notes: []Note{}, Faults: []Fault{}, Symptoms: []Symptom{}}
	r.Tool.Name = "quirkcheck"
	r.Database = databaseOf(db, p.Now)
	if inv.Kernel.Ok() {
		rel := inv.Kernel.V
		up := rel.Upstream()
		r.Host.Kernel.Release, r.Host.Kernel.Upstream = &rel.Raw, &up
		if !rel.FollowsStable() {
			r.Notes = append(r.Notes, Note{What: "kernel", State: "known", Source: inv.Kernel.Source,
				Why: "a " + rel.Vendor + " kernel picks its own patches: what mainline does is taken for it with low certainty"})
		}
	} else {
		why := "the release is not known, so what the kernel itself protects is not known either"
		if inv.Kernel.Err != nil {
			why += ": " + inv.Kernel.Err.Error()
		}
		r.Notes = append(r.Notes, Note{What: "kernel", State: inv.Kernel.State.String(), Why: why, Source: inv.Kernel.Source})
	}
	for _, n := range inv.Notes {
		r.Notes = append(r.Notes, noteOf(n))
	}
	r.Notes = append(r.Notes, softBlockSize(inv)...)
	t := topologyOf(inv)
	out := make([]*Device, len(inv.Devices))
	findings := make([][]Finding, len(inv.Devices))
	asked := make([][]Finding, len(inv.Devices))
	open := make([][]string, len(inv.Devices))
	var wg sync.WaitGroup
	const chunk = 64
	for lo := 0; lo < len(inv.Devices); lo += chunk {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := lo; i < min(lo+chunk, len(inv.Devices)); i++ {
				out[i], findings[i], asked[i], open[i] = checkDevice(inv, t, inv.Devices[i], db, p)
			}
		}()
	}
	wg.Wait()
	for i, d := range out {
		r.Devices = append(r.Devices, d)
		slices.SortStableFunc(findings[i], func(a, b Finding) int { return strings.Compare(a.Quirk, b.Quirk) })
		r.Findings = append(r.Findings, findings[i]...)
		r.count(d.Verdict)
	}
	r.Findings = append(r.Findings, ofHost(asked)...)
	if slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Quirk == blockSizeEntry }) {
		r.Notes = slices.DeleteFunc(r.Notes, func(n Note) bool { return n.What == softBlockSizeNote })
	}
	if ids := slices.Compact(slices.Sorted(slices.Values(slices.Concat(open...)))); len(ids) > 0 {
		r.Notes = append(r.Notes, Note{What: "kernel", State: probe.NotAsked.String(), Source: inv.Kernel.Source,
			Why: fmt.Sprintf("faults of kernels that may concern a device here and cannot be decided for this one: %s", strings.Join(ids, ", "))})
	}
	// Only now: entries load on first use, and a broken one shows then.
	for _, f := range db.Faults() {
		r.Faults = append(r.Faults, Fault(f))
	}
	return r
}

func (r *Report) count(v Verdict) {
	s := &r.Summary
	s.Devices++
	switch v {
	case Affected:
		s.Affected++
	case Unknown:
		s.Unknown++
	case Mitigated:
		s.Mitigated++
	case Suppressed:
		s.Suppressed++
	default:
		s.NoKnownQuirk++
	}
}

// Fails reports whether an affected finding reaches the policy's threshold.
func (r *Report) Fails(p Policy) bool {
	if p.FailOn == "none" {
		return false
	}
	at := cmp.Or(p.FailOn, quirks.Medium).Rank()
	return slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Verdict == Affected && f.Severity.Rank() >= at })
}

func databaseOf(db *quirks.Set, now time.Time) Database {
	d := Database{Version: db.Version.Version, Serial: db.Version.Serial}
	day, _, _ := cutLast(d.Version, ".")
	if t, err := time.Parse("2006.01.02", day); err == nil && !now.IsZero() {
		age := max(int(now.Sub(t).Hours()/24), 0)
		d.AgeDays = &age
	}
	return d
}

func cutLast(s, sep string) (before, after string, ok bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

func noteOf(n probe.Note) Note {
	return Note{What: n.What, State: n.State.String(), Why: n.Why, Source: n.Source}
}

// DeviceOf describes a device without judging it: identity, limits, stack.
func DeviceOf(inv *probe.Inventory, pd *probe.Device) *Device {
	t := topologyOf(inv)
	return describe(subjectOf(inv, t, pd), t, pd)
}

func checkDevice(inv *probe.Inventory, t *topology, pd *probe.Device, db *quirks.Set, p Policy) (d *Device, own, asked []Finding, open []string) {
	sub := subjectOf(inv, t, pd)
	if log := p.Proofs[pd.Name]; log != nil {
		sub.Live = liveOf(inv, pd, log)
	}
	j := Judge(sub, db, p)
	asked = j.Asked
	d = describe(sub, t, pd)
	d.Protections = protections(sub, j.Matches)
	d.Safe, d.Recommended, d.Verdict = j.Safe, j.Recommended, j.OfDevice()
	if d.Safe.Bounds == nil {
		d.Safe.Bounds = []Bound{}
	}
	for _, n := range pd.Notes {
		d.Notes = append(d.Notes, noteOf(n))
	}
	if j.Blank > 0 {
		d.Notes = append(d.Notes, Note{What: "identity", State: probe.Unreadable.String(), Source: pd.SysPath,
			Why: fmt.Sprintf("the device shows no name, so %d entries could not be asked", j.Blank)})
	}
	for _, list := range [][]Finding{j.Findings, asked} {
		for i := range list {
			f := &list[i]
			f.Device = &d.Name
			for k := range f.Why {
				f.Why[k].Source = cmp.Or(f.Why[k].Source, SourceOf(inv, pd, f.Why[k].Key))
			}
		}
	}
	return d, j.Findings, asked, j.Open
}

// ofHost makes one finding of the host of those that devices have in common, by
// id, each with the devices it is about.
func ofHost(asked [][]Finding) []Finding {
	var out []Finding
	devices := map[string][]string{}
	for _, list := range asked {
		for _, f := range list {
			if devices[f.Quirk] = append(devices[f.Quirk], *f.Device); len(devices[f.Quirk]) == 1 {
				f.Device = nil
				f.Why = slices.DeleteFunc(f.Why, func(w Why) bool { return !strings.HasPrefix(w.Key, "condition.") && w.Key != "kernel.range" })
				out = append(out, f)
			}
		}
	}
	slices.SortFunc(out, func(a, b Finding) int { return strings.Compare(a.Quirk, b.Quirk) })
	for i := range out {
		observed := "concerns " + strings.Join(devices[out[i].Quirk], ", ")
		out[i].Observed = &observed
	}
	return out
}

func describe(sub *quirks.Subject, t *topology, pd *probe.Device) *Device {
	d := &Device{Name: pd.Name, Kind: pd.Kind, Transport: strOrNil(pd.Transport), Path: strOrNil(pd.Path),
		Identity: identityOf(pd), Limits: limitsOf(sub),
		Members: orEmpty(pd.Members), Holders: orEmpty(pd.Holders), Notes: []Note{}}
	d.Stack, d.Below, d.Above = t.stackOf(pd), t.below(pd), t.above(pd)
	for _, p := range pd.Paths {
		d.Paths = append(d.Paths, Path(p))
	}
	hidden, _ := pd.Text("hidden")
	d.Hidden = hidden == "1"
	if zoned, ok := pd.Text("queue/zoned"); ok && zoned != "none" {
		d.Zoned = &zoned
	}
	if t := pd.Target; t != nil {
		d.Target = &Target{Name: t.Name, Portal: t.Portal, HostPort: t.HostPort}
	}
	if pd.Volume.Ok() {
		d.Volume = &Volume{Level: pd.Volume.V}
	}
	for _, dis := range pd.Disagreements {
		out := Disagreement{What: dis.What}
		for _, v := range dis.Values {
			out.Values = append(out.Values, SourceValue(v))
		}
		d.Disagreements = append(d.Disagreements, out)
	}
	if s := pd.SizeBytes(); s.Ok() {
		d.SizeBytes = &s.V
	}
	if a := pd.Adapter; a.PCI != "" || a.Driver != "" || a.Host != "" {
		d.Adapter = &Adapter{PCI: strOrNil(a.PCI), Driver: strOrNil(a.Driver), Host: strOrNil(a.Host), Class: strOrNil(a.Class), ATAPort: strOrNil(a.ATAPort)}
	}
	return d
}

// SourceOf names the file a predicate's value came from.
func SourceOf(inv *probe.Inventory, d *probe.Device, key string) string {
	first := func(vs ...probe.Value[string]) string {
		for _, v := range vs {
			if v.Ok() {
				return v.Source
			}
		}
		return ""
	}
	switch key {
	case "device.space":
		return first(d.ATAModel, d.NVMeModel, d.Vendor)
	case "device.model":
		return first(d.ATAModel, d.NVMeModel, d.Product)
	case "device.firmware":
		return first(d.ATAFirmware, d.NVMeFirmware, d.Revision)
	case "device.vendor":
		return first(d.Vendor)
	case "device.product":
		return first(d.Product)
	case "device.revision":
		return first(d.Revision)
	case "kernel", "kernel.range":
		return inv.Kernel.Source
	case "path":
		return d.SysPath
	}
	if strings.HasPrefix(key, "adapter.") {
		return d.Adapter.SysPath
	}
	if key, ok := strings.CutPrefix(key, "condition."); ok {
		return factSource(inv, d, key)
	}
	return ""
}

// factFiles are the attributes that conditions of entries ask about.
var factFiles = map[string]string{
	"md_level": "md/level", "md_degraded": "md/degraded", "md_layout": "md/layout", "rotational": "queue/rotational", "scheduler": "queue/scheduler",
	"io_kib": "queue/max_sectors_kb", "capacity": "size", "lpm": "link_power_management_policy", "wcache": "queue/write_cache", "ncq": "device/queue_depth",
	"logical_block_size": "queue/logical_block_size", "physical_block_size": "queue/physical_block_size", "max_hw_sectors_kb": "queue/max_hw_sectors_kb",
	"minimum_io_size": "queue/minimum_io_size", "optimal_io_size": "queue/optimal_io_size",
}

// factSource names the file that a condition's value came from, "" where it was
// not known.
func factSource(inv *probe.Inventory, d *probe.Device, key string) string {
	if name, ok := strings.CutPrefix(key, "module_param:"); ok {
		if v := inv.Param(name); v.Ok() {
			return v.Source
		}
		return ""
	}
	switch key {
	case "iommu":
		if d.IOMMU.Ok() {
			return d.IOMMU.Source
		}
	case "cmdline":
		return inv.Cmdline.Source
	case "link_speed":
		if v := d.Attr("ata_link/sata_spd"); v.Ok() {
			return v.Source
		}
	case "vpd_max_transfer_blocks", "vpd_optimal_transfer_blocks":
		if d.BlockLimits.Ok() {
			return d.BlockLimits.Source
		}
	case "path", "transport", "driver":
		return d.SysPath
	}
	if file := factFiles[key]; file != "" {
		if v := d.Attr(file); v.Ok() {
			return v.Source
		}
	}
	return ""
}

func identityOf(d *probe.Device) Identity {
	id := Identity{Partial: d.IdentityPartial(), Sources: map[string]string{}}
	take := func(part string, v probe.Value[string]) *string {
		if !v.Ok() {
			return nil
		}
		id.Sources[part] = v.Source
		s := strings.Trim(v.V, " \x00")
		return &s
	}
	if d.ATAModel.Ok() {
		id.ATA = &ModelFirmware{Model: take("ata.model", d.ATAModel), Firmware: take("ata.firmware", d.ATAFirmware)}
	}
	if d.Vendor.Ok() || d.Product.Ok() {
		id.SCSI = &SCSIIdentity{Vendor: take("scsi.vendor", d.Vendor), Product: take("scsi.product", d.Product), Revision: take("scsi.revision", d.Revision)}
	}
	if d.NVMeModel.Ok() {
		id.NVMe = &ModelFirmware{Model: take("nvme.model", d.NVMeModel), Firmware: take("nvme.firmware", d.NVMeFirmware)}
	}
	if d.USB != nil {
		get := func(k string) *string {
			if s, ok := d.USB[k]; ok {
				return &s
			}
			return nil
		}
		id.USB = &USBIdentity{VID: get("vid"), PID: get("pid"), BCD: get("bcd"), Manufacturer: get("manufacturer"), Product: get("product")}
	}
	if d.MMC != nil {
		id.MMC = &MMCIdentity{Name: d.MMC["name"], ManfID: d.MMC["manfid"], OEMID: d.MMC["oemid"], Firmware: d.MMC["fwrev"]}
	}
	return id
}

func limitsOf(sub *quirks.Subject) Limits {
	get := func(name string) *uint64 {
		if n, ok := sub.Limit(name); ok {
			return &n
		}
		return nil
	}
	l := Limits{
		MaxSectorsKB: get("max_sectors_kb"), MaxHWSectorsKB: get("max_hw_sectors_kb"),
		LogicalBlockSize: get("logical_block_size"), PhysicalBlockSize: get("physical_block_size"),
		MaxSegments: get("max_segments"), MaxSegmentSize: get("max_segment_size"), VirtBoundaryMask: get("virt_boundary_mask"),
		MinimumIOSize: get("minimum_io_size"), OptimalIOSize: get("optimal_io_size"),
		VPDMaxTransferBlocks: get("vpd_max_transfer_blocks"), VPDOptimalTransferBlocks: get("vpd_optimal_transfer_blocks"),
		VPDOptimalGranularity: get("vpd_optimal_granularity_blocks"), VPDMaxWriteSameBlocks: get("vpd_max_write_same_blocks"),
		MDTSSectors: get("mdts_sectors"), DiscardMaxBytes: get("discard_max_bytes"), WriteZeroesMaxBytes: get("write_zeroes_max_bytes"),
		AtomicWriteMaxBytes: get("atomic_write_max_bytes"), IOTimeoutMS: get("io_timeout_ms"), QueueDepth: get("queue_depth"),
		ReadAheadKB: get("read_ahead_kb"), DiskSeq: get("diskseq"),
	}
	if v, ok := sub.Settings["write_cache"]; ok && v.IsText {
		l.WriteCache = &v.Text
	}
	return l
}

func strOrNil(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
