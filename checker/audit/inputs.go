package audit

import (
	"slices"
	"strconv"
	"strings"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// This file is the one place where kernel.Inputs are filled in.

// inputs are what the limits of a device are made of, under the running kernel.
// pd is nil where no more is known than the subject.
func (h *Host) inputs(sub *quirks.Subject, pd *probe.Device) kernel.Inputs {
	in := ofSubjectAlone(sub)
	in.From = h.from
	if pd != nil {
		ofDevice(&in, pd)
	}
	in.ListedFrom = listing(sub, h.db, h.from)
	return in
}

// inputsAt are the inputs for another release.
func (h *Host) inputsAt(d *device, to kernel.Release) kernel.Inputs {
	in := d.inputs
	in.ListedTo = listing(d.sub, h.db, to)
	// A disk that shows the 128 KiB of a bridge, and for which a kernel lifts
	// that limit, is taken for a bridged one where nothing else tells.
	if in.Path == "libata" && in.Bridged == kernel.Unknown && in.LBA48 != kernel.False && in.Observed.MaxHWSectorsKB == kernel.N(128) &&
		in.ListedFrom.NoBridge == kernel.False && in.ListedTo.NoBridge != kernel.False {
		in.Bridged = kernel.True
	}
	return in
}

// ofSubjectAlone takes what a subject holds, so that an example, a line of db
// match and a device are predicted by the same code.
func ofSubjectAlone(sub *quirks.Subject) kernel.Inputs {
	in := kernel.Inputs{
		Observed: observedOf(sub), Kind: kindOf(sub), Path: sub.Path, Driver: sub.Adapter["driver"],
		LogicalBlockBytes: num(sub, "logical_block_size"), PhysicalBlockBytes: num(sub, "physical_block_size"),
		VPDMaxTransferBlocks: num(sub, "vpd_max_transfer_blocks"), VPDOptimalTransferBlocks: num(sub, "vpd_optimal_transfer_blocks"),
		VPDOptimalGranularityBlocks: num(sub, "vpd_optimal_granularity_blocks"),
		MDTSSectors:                 num(sub, "mdts_sectors"),
		LBA48:                       kernel.Unknown, Bridged: kernel.Unknown, SASHost: kernel.Unknown, SuperSpeed: superSpeed(sub.USB),
		Protection: kernel.Integrity{Registered: kernel.Unknown}, MaxSegmentBytes: num(sub, "max_segment_size"),
		Target: sub.Stack.Target, Level: sub.Stack.Level, ChunkBytes: num(sub, "chunk_bytes"), Disks: num(sub, "raid_disks"),
	}
	if in.Path == "nvme" && (in.Driver == "nvme" || in.Driver == "") { // fabrics have drivers of their own
		in.Path = "nvme-pci"
	}
	if n, err := strconv.ParseUint(sub.Machine["page_size"], 10, 32); err == nil {
		in.PageBytes = kernel.N(n)
	}
	if sub.Transport == "sas" {
		in.SASHost = kernel.True
	}
	if v, ok := sub.Settings["iommu"]; ok && v.IsText {
		in.IOMMU = v.Text
	}
	if sub.Cmdline != nil && sub.Path == "libata" {
		in.ForceNoBridge, in.ForceMaxSectors = forced(*sub.Cmdline, atOf(sub), sub.Kernel)
	}
	return in
}

// ofDevice adds what only the probe knows.
func ofDevice(in *kernel.Inputs, d *probe.Device) {
	in.Kind = d.Kind
	if s := d.SizeBytes(); s.Ok() {
		in.CapacityBytes = kernel.N(s.V)
	}
	if d.IOMMU.Ok() {
		in.IOMMU = d.IOMMU.V
	}
	if d.SASHost.Ok() {
		in.SASHost = truth(d.SASHost.V)
	}
	if id := d.ATAIdentify; id.Ok() {
		in.LBA48 = truth(id.V.LBA48)
	}
	if b := d.Bridged(); b.Ok() {
		in.Bridged = truth(b.V)
	}
	in.Protection = integrityOf(d)
	if limitsTold(d, in.From) {
		for _, n := range []*kernel.Num{&in.VPDMaxTransferBlocks, &in.VPDOptimalTransferBlocks, &in.VPDOptimalGranularityBlocks} {
			if !n.Known {
				*n = kernel.N(0)
			}
		}
	}
}

func truth(b bool) kernel.Truth {
	if b {
		return kernel.True
	}
	return kernel.False
}

// integrityOf reads the block device's protection information. Where its folder
// is missing it keeps none.
func integrityOf(d *probe.Device) kernel.Integrity {
	i := kernel.Integrity{Registered: kernel.Unknown}
	format := d.Attr("integrity/format")
	switch {
	case format.State == probe.Absent, format.Ok() && format.V == "none":
		i.Registered = kernel.False
		return i
	case !format.Ok():
		return i
	}
	i.Registered = kernel.True
	if n := d.Uint("integrity/protection_interval_bytes"); n.Ok() {
		i.IntervalBytes = kernel.N(n.V)
	}
	switch n := d.Uint("metadata_bytes"); {
	case n.Ok() && n.V > 0: // NVMe: all of a block's metadata
		i.TupleBytes = kernel.N(n.V)
	case strings.HasPrefix(format.V, "T10-DIF"): // struct t10_pi_tuple
		i.TupleBytes = kernel.N(8)
	case strings.HasPrefix(format.V, "EXT-DIF"): // struct crc64_pi_tuple
		i.TupleBytes = kernel.N(16)
	}
	return i
}

// keepsLimitsPage: the kernel shows the Block Limits page of a disk in sysfs
// (booted: 5.10.223 does not, 6.1.176 does).
var keepsLimitsPage = []kernel.Row{{Tree: "mainline", After: "5.10", By: "6.1"}}

// limitsTold reports whether a length that the Block Limits page does not name
// is known to be none: the page was read, or the kernel asks for none, or would
// show it.
func limitsTold(d *probe.Device, r kernel.Release) bool {
	switch {
	case d.BlockLimits.Ok(), d.Path == "libata", d.Path == "usb-storage", slices.Contains(d.Blacklist.V, "SKIP_VPD_PAGES"):
		return true
	}
	return d.BlockLimits.State == probe.Absent && kernel.Carries(keepsLimitsPage, r).Truth == kernel.True
}

// kindOf is the kind of a device of which only the subject is known.
func kindOf(sub *quirks.Subject) string {
	switch {
	case sub.Stack.Kind == "dm" || sub.Stack.Kind == "md":
		return sub.Stack.Kind
	case sub.Path == "other":
		return "other"
	}
	return "disk"
}

func observedOf(sub *quirks.Subject) kernel.Observed {
	return kernel.Observed{MaxSectorsKB: num(sub, "max_sectors_kb"), MaxHWSectorsKB: num(sub, "max_hw_sectors_kb"),
		OptimalIOSize: num(sub, "optimal_io_size"), MinimumIOSize: num(sub, "minimum_io_size")}
}

func num(sub *quirks.Subject, name string) kernel.Num {
	v, ok := sub.Limit(name)
	return kernel.Num{V: v, Known: ok}
}

// superSpeed reads the speed of a USB device in Mb/s.
func superSpeed(usb map[string]string) kernel.Truth {
	text, ok := usb["speed"]
	if !ok {
		return kernel.Unknown
	}
	switch {
	case strings.HasPrefix(text, "super"):
		return kernel.True
	case text == "low" || text == "full" || text == "high":
		return kernel.False
	}
	n, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil:
		return kernel.Unknown
	case n >= 5000:
		return kernel.True
	}
	return kernel.False
}

// listing is what the kernel's own tables do to the device under a release: the
// entries that name the device on this path, and their rows.
func listing(sub *quirks.Subject, db *quirks.Set, r kernel.Release) kernel.Listing {
	at := *sub
	at.Kernel = r
	l := kernel.Listing{MaxSectors: kernel.N(0), NoBridge: kernel.False}
	if blank(sub) {
		l.Low = true
		return l
	}
	var ids []string
	lowest := func(n uint64) {
		if l.MaxSectors.V == 0 || n < l.MaxSectors.V {
			l.MaxSectors.V = n
		}
	}
	seen := map[*quirks.Entry]bool{}
	ask := func(e *quirks.Entry, named kernel.Truth) {
		if seen[e] || named == kernel.False || e.Kernel == nil || len(e.Kernel.Mitigated) == 0 {
			return
		}
		seen[e] = true
		took := false
		if p := e.Protects(&at); p.MaxSectors > 0 {
			switch min(p.Truth, named) {
			case kernel.True:
				lowest(uint64(p.MaxSectors))
				took = true
			case kernel.Unknown:
				l.MaxSectors.Known = false
				took = true
			}
			l.Low = l.Low || took && p.Low
		}
		if a := e.SetsFlag(&at, "_BRIDGE_OK"); a.Truth != kernel.False {
			l.NoBridge = max(l.NoBridge, min(a.Truth, named))
			l.Low = l.Low || a.Low
			took = true
		}
		if took {
			ids = append(ids, e.ID)
		}
	}
	for _, e := range db.Named(&at) {
		ask(e, kernel.True)
	}
	for _, m := range db.Match(&at) { // names that are cut or not known, and USB ids
		named := m.Entry.NamesDevice(&at)
		if m.Entry.Folder() == "usb" {
			named = max(named, m.Truth)
		}
		ask(m.Entry, named)
	}
	if !l.MaxSectors.Known {
		l.MaxSectors.V = 0
	}
	l.Source = strings.Join(ids, ", ")
	return l
}

// blank tells a device that shows no name: any row may be its own.
func blank(sub *quirks.Subject) bool {
	return !sub.Device.Model.Known && !sub.Device.Vendor.Known && !sub.Device.Product.Known && !sub.SCSI.Vendor.Known && !sub.SCSI.Product.Known && sub.USB["vid"] == ""
}

// forced reads libata.force of a command line for a disk: whether it gives the
// port a cable that lifts the limit of bridged disks, and the size that it sets,
// in sectors. max_sec_lba48 wins, and of the others the smallest
// (drivers/ata/libata-core.c, ata_dev_configure).
func forced(cmdline string, at kernel.At, r kernel.Release) (noBridge bool, sectors kernel.Num) {
	list, ok := kernel.Parameter(cmdline, "libata", "force")
	if !ok {
		return false, sectors
	}
	if cable := kernel.ForcedCable(list, at.Port); cable != "" && cable != "sata" {
		noBridge = true
	}
	for _, f := range kernel.ForcedFlags(list, at, r) {
		switch {
		case !f.On || f.MaxSectors == 0:
		case f.Flag == "MAX_SEC_LBA48":
			return noBridge, kernel.N(f.MaxSectors)
		case !sectors.Known || f.MaxSectors < sectors.V:
			sectors = kernel.N(f.MaxSectors)
		}
	}
	return noBridge, sectors
}

// atOf is the disk as libata.force counts: its port, and on it the device of a
// pair or the link of a multiplier, which are its SCSI target and channel. A
// port that is not known is 0, which only items without a port are for.
func atOf(sub *quirks.Subject) kernel.At {
	at := kernel.At{}
	at.Port, _ = strconv.Atoi(sub.Adapter["ata_port"])
	if hctl := strings.Split(sub.Adapter["hctl"], ":"); len(hctl) == 4 {
		if channel, err := strconv.Atoi(hctl[1]); err == nil && channel > 0 {
			at.Device, at.Multiplied = channel, true
		} else {
			at.Device, _ = strconv.Atoi(hctl[2])
		}
	}
	return at
}
