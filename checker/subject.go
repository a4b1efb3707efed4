package checker

import (
	"slices"
	"strconv"
	"strings"

	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// settingFiles are the attributes a Subject's settings hold, by the file name
// they have there. Numbers become numbers.
var settingFiles = []string{
	"queue/fua", "queue/io_timeout", "queue/nomerges", "queue/nr_requests", "queue/read_ahead_kb", "queue/rotational",
	"queue/scheduler", "queue/write_cache", "queue/zoned", "device/eh_timeout", "device/queue_depth", "device/timeout",
	"scsi_disk/cache_type", "scsi_disk/max_write_same_blocks", "scsi_disk/protection_type", "scsi_disk/provisioning_mode",
	"scsi_disk/zeroing_mode", "link_power_management_policy", "md/degraded", "md/layout",
}

// limitFiles maps the report's limit names to attributes.
var limitFiles = []struct{ name, file string }{
	{"max_sectors_kb", "queue/max_sectors_kb"},
	{"max_hw_sectors_kb", "queue/max_hw_sectors_kb"},
	{"logical_block_size", "queue/logical_block_size"},
	{"physical_block_size", "queue/physical_block_size"},
	{"max_segments", "queue/max_segments"},
	{"max_segment_size", "queue/max_segment_size"},
	{"virt_boundary_mask", "queue/virt_boundary_mask"},
	{"minimum_io_size", "queue/minimum_io_size"},
	{"optimal_io_size", "queue/optimal_io_size"},
	{"discard_max_bytes", "queue/discard_max_bytes"},
	{"write_zeroes_max_bytes", "queue/write_zeroes_max_bytes"},
	{"atomic_write_max_bytes", "queue/atomic_write_max_bytes"},
	{"io_timeout_ms", "queue/io_timeout"},
	{"queue_depth", "device/queue_depth"},
	{"read_ahead_kb", "queue/read_ahead_kb"},
	{"diskseq", "diskseq"},
}

// SubjectOf makes the subject of a device of the inventory.
func SubjectOf(inv *probe.Inventory, d *probe.Device) *quirks.Subject {
	return subjectOf(inv, topologyOf(inv), d)
}

// SubjectsOf makes the subjects of all devices of the inventory, its peers too,
// by name.
func SubjectsOf(inv *probe.Inventory) map[string]*quirks.Subject {
	t := topologyOf(inv)
	out := make(map[string]*quirks.Subject, len(t.devices))
	for name, d := range t.devices {
		out[name] = subjectOf(inv, t, d)
	}
	return out
}

func subjectOf(inv *probe.Inventory, t *topology, d *probe.Device) *quirks.Subject {
	sub := namesOf(d)
	sub.Machine = inv.Machine
	if inv.Kernel.Ok() {
		sub.Kernel = inv.Kernel.V
	}
	if inv.Cmdline.Ok() {
		sub.Cmdline = &inv.Cmdline.V
	}
	sub.Params = t.params
	sub.Limits = make(map[string]quirks.Value, len(limitFiles)+4)
	sub.Settings = make(map[string]quirks.Value, len(settingFiles))
	addLimits(sub, d)
	addFacts(sub, d)
	sub.Live = liveOf(inv, d, nil)
	t.addStack(sub, d)
	return sub
}

// namesOf makes a subject of a device's names and way alone.
func namesOf(d *probe.Device) *quirks.Subject {
	sub := &quirks.Subject{Path: d.Path, Transport: d.Transport}
	text := func(v probe.Value[string]) quirks.Text { return quirks.Text{S: v.V, Known: v.Ok()} }
	switch {
	case d.ATAModel.Ok():
		sub.Device = quirks.Identity{Space: "ata", Model: text(d.ATAModel), Firmware: text(d.ATAFirmware)}
	case d.NVMeModel.Ok():
		sub.Device = quirks.Identity{Space: "nvme", Model: text(d.NVMeModel), Firmware: text(d.NVMeFirmware)}
		if ids := strings.Split(d.Adapter.PCI, ":"); len(ids) == 4 {
			sub.Device.VID, sub.Device.SSVID = ids[0], ids[2]
		}
	}
	if d.Vendor.Ok() || d.Product.Ok() {
		sub.SCSI = quirks.Identity{Space: "scsi", Vendor: text(d.Vendor), Product: text(d.Product), Revision: text(d.Revision)}
	}
	switch serial := text(d.Serial); {
	case !serial.Known:
	case sub.Device.Space != "":
		sub.Device.Serial = serial
	default:
		sub.SCSI.Serial = serial
	}
	if a := d.Adapter; a.Known {
		sub.Adapter = map[string]string{"pci": a.PCI, "class": a.Class, "revision": a.Revision, "driver": a.Driver, "host": a.Host, "ata_port": a.ATAPort,
			"device": d.Name, "hctl": d.HCTL()}
	}
	if sub.Adapter == nil && noHardware[d.Kind] {
		sub.Adapter = noAdapter
	}
	if sub.USB = d.USB; sub.USB == nil && d.Path != "" {
		sub.USB = noUSB
	}
	return sub
}

// noHardware are the kinds of devices that hang on no adapter.
var noHardware = map[string]bool{"loop": true, "ram": true, "dm": true, "md": true}

// noAdapter says that no adapter is on the way.
var noAdapter = map[string]string{"pci": "", "class": "", "driver": ""}

// noUSB says that no USB device is on the way.
var noUSB = map[string]string{"vid": "", "pid": ""}

func addLimits(sub *quirks.Subject, d *probe.Device) {
	for _, f := range limitFiles {
		if text, ok := d.Text(f.file); ok {
			if n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64); err == nil {
				sub.Limits[f.name] = quirks.Number(n)
			}
		}
	}
	if d.BlockLimits.Ok() {
		b := d.BlockLimits.V
		// Conditions ask 0 where the page names none; a limit there is absent then.
		for name, length := range map[string]func() (uint32, bool){"vpd_max_transfer_blocks": b.MaxTransferBlocks, "vpd_optimal_transfer_blocks": b.OptimalTransferBlocks} {
			if n, ok := length(); ok {
				sub.Limits[name] = quirks.Number(uint64(n))
			} else {
				sub.Settings[name] = quirks.Number(0)
			}
		}
		if n, ok := b.OptimalTransferGranularityBlocks(); ok {
			sub.Limits["vpd_optimal_granularity_blocks"] = quirks.Number(uint64(n))
		}
		if n, ok := b.MaxWriteSameBlocks(); ok {
			sub.Limits["vpd_max_write_same_blocks"] = quirks.Number(n)
		}
	}
	for _, file := range settingFiles {
		text, ok := d.Text(file)
		if !ok {
			continue
		}
		name := file[strings.LastIndexByte(file, '/')+1:]
		if text == "" || text[0] < '0' || text[0] > '9' {
			sub.Settings[name] = quirks.TextValue(text)
		} else if n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64); err == nil {
			sub.Settings[name] = quirks.Number(n)
		} else {
			sub.Settings[name] = quirks.TextValue(text)
		}
	}
}

// addFacts adds what conditions of entries ask beside limits and settings, by
// the keys they have there.
func addFacts(sub *quirks.Subject, d *probe.Device) {
	set := func(key string, v quirks.Value) { sub.Settings[key] = v }
	if d.IOMMU.Ok() {
		set("iommu", quirks.TextValue(d.IOMMU.V))
	}
	if n := d.SizeBytes(); n.Ok() {
		set("capacity", quirks.Number(n.V))
	}
	if s, ok := linkSpeed(d); ok {
		set("link_speed", quirks.TextValue(s))
	}
	if d.Kind != "md" {
		return
	}
	// An array without redundancy has no such file, and is never degraded.
	if level := d.Attr("md/level"); level.Ok() && level.V != "" && d.Attr("md/degraded").State == probe.Absent {
		set("degraded", quirks.Number(0))
	}
	n, known := uint64(0), d.MDMembers != nil
	for _, m := range d.MDMembers {
		known = known && m.State.Ok()
		if slices.Contains(strings.Split(m.State.V, ","), "write_mostly") {
			n++
		}
	}
	if known {
		set("md_write_mostly", quirks.Number(n))
	}
}

// linkSpeed is the speed of a SATA link or of a USB device in Gbit/s. libata
// writes "6.0 Gbps", USB the Mbit/s.
func linkSpeed(d *probe.Device) (string, bool) {
	if text, ok := d.Text("ata_link/sata_spd"); ok {
		number, ok := strings.CutSuffix(text, " Gbps")
		if n, err := strconv.ParseFloat(number, 64); ok && err == nil {
			return strconv.FormatFloat(n, 'f', -1, 64), true
		}
	}
	if n, err := strconv.ParseFloat(strings.TrimSpace(d.USB["speed"]), 64); err == nil && n > 0 && n < 1e6 {
		return strconv.FormatFloat(n/1000, 'f', -1, 64), true
	}
	return "", false
}

// AvoidFrom returns what the probe must not send, by the entries of db that
// match a device or may.
func AvoidFrom(db *quirks.Set) func(*probe.Device) []probe.Avoided {
	return func(d *probe.Device) []probe.Avoided {
		var out []probe.Avoided
		for _, m := range db.MatchAvoid(namesOf(d)) {
			if m.Truth == quirks.Unknown && Nameless(m) {
				continue
			}
			for _, a := range m.Entry.Avoid {
				if a.Scope != "verify" {
					out = append(out, probe.Avoided{Command: a.Command, Why: a.Why, Source: m.Entry.ID})
				}
			}
		}
		return out
	}
}
