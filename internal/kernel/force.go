package kernel

import (
	"strconv"
	"strings"
)

// A Force is one item of libata.force=, [PORT[.DEVICE]:]VALUE, with the ID it
// has in effect: a value without one takes that of the item before
// (kernel-parameters, libata.force; drivers/ata/libata-core.c,
// ata_parse_force_param).
type Force struct {
	Port, Device int    // -1: every one
	Name         string // in full: an item may be abbreviated
	Value        uint64 // of max_sec=N, in 512-byte sectors
	Text         string // as it was written, without the ID
}

// forceNames are the values of libata.force= with the flag that they set, or
// with Off take away, and the first release that knows them. Those without a
// flag are about the cable, the link and the transfer mode; they count where
// only the first item does.
var forceNames = []struct {
	name  string
	flag  string // without its prefix
	off   bool
	since string // "": older than what is asked about
	max   uint64 // 512-byte sectors
}{
	{name: "40c"}, {name: "80c"}, {name: "short40c"}, {name: "unk"}, {name: "ign"}, {name: "sata"}, {name: "1.5gbps"}, {name: "3.0gbps"},
	{name: "pio0"}, {name: "pio1"}, {name: "pio2"}, {name: "pio3"}, {name: "pio4"}, {name: "pio5"}, {name: "pio6"},
	{name: "mwdma0"}, {name: "mwdma1"}, {name: "mwdma2"}, {name: "mwdma3"}, {name: "mwdma4"},
	{name: "udma0"}, {name: "udma16"}, {name: "udma/16"}, {name: "udma1"}, {name: "udma25"}, {name: "udma/25"}, {name: "udma2"}, {name: "udma33"}, {name: "udma/33"},
	{name: "udma3"}, {name: "udma44"}, {name: "udma/44"}, {name: "udma4"}, {name: "udma66"}, {name: "udma/66"}, {name: "udma5"}, {name: "udma100"}, {name: "udma/100"},
	{name: "udma6"}, {name: "udma133"}, {name: "udma/133"}, {name: "udma7"},
	{name: "nohrst"}, {name: "nosrst"}, {name: "norst"}, {name: "rstonce"}, {name: "nodbdelay"}, {name: "dbdelay"}, {name: "external"},
	{name: "noncq", flag: "NONCQ"}, {name: "ncq", flag: "NONCQ", off: true},
	{name: "noncqtrim", flag: "NO_NCQ_TRIM", since: "4.2"}, {name: "ncqtrim", flag: "NO_NCQ_TRIM", off: true, since: "4.2"},
	{name: "noncqati", flag: "NO_NCQ_ON_ATI", since: "5.15"}, {name: "ncqati", flag: "NO_NCQ_ON_ATI", off: true, since: "5.15"},
	{name: "notrim", flag: "NOTRIM", since: "5.19"}, {name: "trim", flag: "NOTRIM", off: true, since: "5.19"},
	{name: "trim_zero", flag: "ZERO_AFTER_TRIM", since: "5.19"}, {name: "max_trim_128m", flag: "MAX_TRIM_128M", since: "5.19"},
	{name: "nodma", flag: "NODMA", since: "5.19"}, {name: "dma", flag: "NODMA", off: true, since: "5.19"},
	{name: "atapi_dmadir", flag: "ATAPI_DMADIR"}, {name: "atapi_mod16_dma", flag: "ATAPI_MOD16_DMA", since: "5.19"},
	{name: "nodmalog", flag: "NO_DMA_LOG", since: "5.19"}, {name: "dmalog", flag: "NO_DMA_LOG", off: true, since: "5.19"},
	{name: "noiddevlog", flag: "NO_ID_DEV_LOG", since: "5.19"}, {name: "iddevlog", flag: "NO_ID_DEV_LOG", off: true, since: "5.19"},
	{name: "nologdir", flag: "NO_LOG_DIR", since: "5.19"}, {name: "logdir", flag: "NO_LOG_DIR", off: true, since: "5.19"},
	{name: "max_sec_128", flag: "MAX_SEC_128", since: "5.19", max: 128}, {name: "max_sec_1024", flag: "MAX_SEC_1024", since: "5.19", max: 1024},
	{name: "max_sec=", flag: "MAX_SEC", since: "7.0"}, {name: "max_sec_lba48", flag: "MAX_SEC_LBA48", since: "5.19", max: 65535},
	{name: "nolpm", flag: "NOLPM", since: "5.19"}, {name: "lpm", flag: "NOLPM", off: true, since: "5.19"},
	{name: "nosetxfer", flag: "NOSETXFER", since: "5.19"}, {name: "setxfer", flag: "NOSETXFER", off: true, since: "5.19"},
	{name: "dump_id", flag: "DUMP_ID"},
	{name: "nofua", flag: "NO_FUA", since: "6.3"}, {name: "fua", flag: "NO_FUA", off: true, since: "6.3"},
	{name: "disable", flag: "DISABLE"},
}

// forceName finds a value's whole name: any start of it that fits no other is
// enough, in any case; one with an equal sign must be written in full.
func forceName(text string) (name string, value uint64, ok bool) {
	lower := strings.ToLower(text)
	if head, number, found := strings.Cut(lower, "="); found {
		n, err := strconv.ParseUint(number, 10, 64)
		return head + "=", n, err == nil && head+"=" == "max_sec="
	}
	if lower == "" {
		return "", 0, false
	}
	fits := 0
	for _, f := range forceNames {
		switch {
		case f.name == lower:
			return f.name, f.max, true
		case strings.HasPrefix(f.name, lower):
			fits++
			name, value = f.name, f.max
		}
	}
	return name, value, fits == 1
}

// ParseForce reads the value of libata.force=. Items that the kernel does not
// take are left out, and do not count as the item before another one.
func ParseForce(list string) []Force {
	var out []Force
	port, device := -1, -1
	for item := range strings.SplitSeq(list, ",") {
		f := Force{Port: -1, Device: -1, Text: strings.TrimSpace(item)}
		if id, value, found := strings.Cut(item, ":"); found {
			f.Text = strings.TrimSpace(value)
			p, d, hasDevice := strings.Cut(strings.TrimSpace(id), ".")
			n, err := strconv.ParseUint(p, 10, 31)
			if err != nil {
				continue
			}
			f.Port = int(n)
			if hasDevice {
				if n, err = strconv.ParseUint(d, 10, 31); err != nil {
					continue
				}
				f.Device = int(n)
			}
		}
		var ok bool
		if f.Name, f.Value, ok = forceName(f.Text); !ok {
			continue
		}
		if f.Port < 0 {
			f.Port, f.Device = port, device
		}
		port, device = f.Port, f.Device
		out = append(out, f)
	}
	return out
}

// At is a device of libata as libata.force= counts: the port from 1, and on it
// the link of a multiplier or the device of a pair. Multiplied says that it is
// behind one; else 15 and 16 name the devices of the port too.
type At struct {
	Port, Device int
	Multiplied   bool
}

// AtOf is the place of a disk by the number of its port and its SCSI address
// H:C:T:L: there the channel is the link of a multiplier, else the target is the
// device (drivers/ata/libata-scsi.c, ata_scsi_scan_host). ok is false where
// either is not known.
func AtOf(port, hctl string) (at At, ok bool) {
	f := strings.Split(hctl, ":")
	n, err := strconv.ParseUint(port, 10, 31)
	if err != nil || len(f) != 4 {
		return At{}, false
	}
	channel, errC := strconv.ParseUint(f[1], 10, 16)
	target, errT := strconv.ParseUint(f[2], 10, 16)
	if errC != nil || errT != nil {
		return At{}, false
	}
	if channel > 0 {
		return At{Port: int(n), Device: int(channel), Multiplied: true}, true
	}
	return At{Port: int(n), Device: int(target)}, true
}

// Fits reports whether an item is for a device.
func (f Force) Fits(at At) bool {
	if f.Port >= 0 && f.Port != at.Port {
		return false
	}
	return f.Device < 0 || f.Device == at.Device || !at.Multiplied && f.Device == at.Device+15
}

// Forced is what libata.force= does to one flag of a device.
type Forced struct {
	Flag       string // without its prefix: NO_NCQ_TRIM
	On         bool   // it sets the flag; else it takes it away
	MaxSectors uint64 // of the MAX_SEC flags, 512-byte sectors
	Item       string // as it was written
}

// ForcedFlags returns what libata.force= does to the flags of a device under
// one release. Up to 6.19 every item that fits counts, the last one for the
// same flag; from 7.0 on only the first item that fits, whatever it is about
// (ata_force_quirks). An item that is newer than the release does nothing; on an
// unknown release nothing is known.
func ForcedFlags(list string, at At, r Release) []Forced {
	if !r.Known() {
		return nil
	}
	first := r.Major >= 7
	var out []Forced
	for _, f := range ParseForce(list) {
		if !f.Fits(at) {
			continue
		}
		for _, n := range forceNames {
			if n.name != f.Name || n.flag == "" || !r.has(n.since) {
				continue
			}
			forced := Forced{Flag: n.flag, On: !n.off, MaxSectors: f.Value, Item: f.Text}
			if first && forced.Flag != "MAX_SEC_LBA48" && forced.MaxSectors > 0 {
				forced.Flag = "MAX_SEC" // one flag with a value (ata_dev_get_quirk_value)
			}
			out = replaceForced(out, forced)
		}
		if first {
			break
		}
	}
	return out
}

func replaceForced(list []Forced, f Forced) []Forced {
	for i := range list {
		if list[i].Flag == f.Flag {
			list[i] = f
			return list
		}
	}
	return append(list, f)
}

// has answers whether a release has what came with a mainline release; ""
// came before all.
func (r Release) has(since string) bool {
	if since == "" {
		return true
	}
	b, err := ParseBound(since)
	return err == nil && b.reaches(r) == True
}

// ForcedCable returns the cable that libata.force= gives a port, "" for none:
// the last item that fits counts (ata_force_cbl). A cable that is not sata lifts
// the limit of bridged disks (ata_dev_knobble).
func ForcedCable(list string, port int) string {
	cable := ""
	for _, f := range ParseForce(list) {
		switch f.Name {
		case "40c", "80c", "short40c", "unk", "ign", "sata":
			if f.Port < 0 || f.Port == port {
				cable = f.Name
			}
		}
	}
	return cable
}

// ForceValue returns the flag, without its prefix, that a value of
// libata.force= is about, and whether it sets it; ok is false for one about
// cable, link or transfer mode, and for one that is not known. The name is in
// full, as the kernel's log has it.
func ForceValue(name string) (flag string, on, ok bool) {
	for _, n := range forceNames {
		if n.name == strings.ToLower(name) && n.flag != "" {
			return n.flag, !n.off, true
		}
	}
	return "", false, false
}
