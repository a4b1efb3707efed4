package emit

import (
	"fmt"
	"slices"
	"strings"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// PinFile is the name to install the rules of PinPresent under: just before
// those for known quirks.
const PinFile = "89-quirkcheck-pin.rules"

// PinPresent writes udev rules that hold every SCSI, SATA and NVMe disk at the
// max_sectors_kb it has now, by model and firmware: before a fleet goes to a
// kernel with a larger default (Linux 6.17). Disks whose model a pattern of
// except fits are left out. Where disks of one name differ the lowest value
// counts, so that none goes above what it has now, and a warning says so.
func PinPresent(r *checker.Report, except []quirks.Pattern, o Options) (Artefact, error) {
	maps := multipathMaps(r)
	type pin struct {
		rule
		low, high uint64
		names     []string
	}
	var pins []*pin
	byName := map[string]*pin{}
	var why []string
	skip := func(d *checker.Device, format string, a ...any) {
		why = append(why, comment(d.Name+": "+fmt.Sprintf(format, a...)))
	}
	for _, d := range r.Devices {
		path := ""
		if d.Path != nil {
			path = *d.Path
		}
		if d.Kind != "disk" || !slices.Contains([]string{"libata", "sat-firmware", "scsi", "nvme", "nvme-pci", "nvme-fabrics"}, path) {
			continue
		}
		model, full := nameOf(d)
		if slices.ContainsFunc(except, func(p quirks.Pattern) bool { return p.Match(model) }) {
			continue
		}
		k := d.Limits.MaxSectorsKB
		switch {
		case maps[d.Name] != "":
			skip(d, "a path of the multipath map %s, not held: put max_sectors_kb into multipath.conf", maps[d.Name])
			continue
		case k == nil || *k < minKiB:
			skip(d, "not held: its max_sectors_kb is not known")
			continue
		}
		arms, err := nameArms(d)
		if err != nil {
			skip(d, "not held: %v", err)
			continue
		}
		if bridged(d) {
			full += " behind a bridge"
		}
		p := byName[full]
		if p == nil {
			p = &pin{low: *k, high: *k}
			p.rule = rule{id: "pin", arms: arms, title: full}
			byName[full] = p
			pins = append(pins, p)
		}
		p.low, p.high = min(p.low, *k), max(p.high, *k)
		p.names = append(p.names, d.Name)
	}
	if len(pins) == 0 {
		if len(why) > 0 {
			return Artefact{}, &RefusedError{KindUdev, why}
		}
		return Artefact{}, ErrNothing
	}
	rules := make([]rule, len(pins))
	for i, p := range pins {
		p.kib, p.sectors = p.low, p.low*2
		p.facts = []string{"The present value on " + strings.Join(short(p.names), ", ") + "."}
		if p.low != p.high {
			w := fmt.Sprintf("%s: disks of this name have %d to %d KiB now; all are held at the lowest", comment(p.title), p.low, p.high)
			p.left = append(p.left, w)
			why = append(why, w)
		}
		rules[i] = p.rule
	}
	var b strings.Builder
	o.udevHead(&b, "quirkcheck recommend --pin-present", PinFile, rules, why)
	o.head(&b, "# ", "", "It holds what is there now, be it good or bad: quirkcheck scan says which disks need less.")
	udevRules(&b, rules, "quirkcheck_pin")
	return Artefact{Kind: KindUdev, File: "/etc/udev/rules.d/" + PinFile, Text: b.String(), Warnings: why}, nil
}

// short keeps a list of names readable.
func short(names []string) []string {
	if len(names) > 8 {
		return append(slices.Clone(names[:8]), fmt.Sprintf("and %d more", len(names)-8))
	}
	return names
}

// nameOf returns a device's model and all of its name.
func nameOf(d *checker.Device) (model, full string) {
	str := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	switch id := d.Identity; {
	case id.ATA != nil:
		return str(id.ATA.Model), "ATA " + str(id.ATA.Model) + " " + str(id.ATA.Firmware)
	case id.NVMe != nil:
		return str(id.NVMe.Model), "NVMe " + str(id.NVMe.Model) + " " + str(id.NVMe.Firmware)
	case id.SCSI != nil:
		return str(id.SCSI.Product), str(id.SCSI.Vendor) + " " + str(id.SCSI.Product) + " " + str(id.SCSI.Revision)
	}
	return "", ""
}
