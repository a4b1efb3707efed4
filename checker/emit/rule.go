package emit

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// rule is one limit and the disks it is for, in the terms of udev.
type rule struct {
	id, title string
	facts     []string // further comment lines
	sectors   uint64
	kib       uint64
	arms      []arm // alternatives
	except    []arm
	err       error // why no rule can be written
	left      []string
}

// arm is a conjunction of lines.
type arm struct {
	lines []line
	scsi  []scsiName // the same for consumers that see INQUIRY strings only
	why   error      // why scsi is empty
}

// line holds conditions which one and the same parent must meet, as far as
// they are about parents. or holds further lines of which any will do as well. A
// veto fails the arm where the line holds.
type line struct {
	conds []cond
	or    []line
	veto  bool
}

// cond compares one key with patterns, any of which will do.
type cond struct {
	key   string // ATTRS{model}, ENV{ID_MODEL}, DRIVERS, ...
	globs []glob
	pats  []string // as written between double quotes, without `|`
	not   bool
}

// property reports a condition on what udev's helpers found out.
func (c cond) property() bool { return strings.HasPrefix(c.key, "ENV{") }

// scsiName is what multipath sees of a disk.
type scsiName struct{ vendor, product, revision []glob }

func texts(globs []glob) []string {
	out := make([]string, len(globs))
	for i, g := range globs {
		out[i] = g.text()
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func attrs(file string, globs []glob) cond {
	return cond{key: "ATTRS{" + file + "}", globs: globs, pats: texts(globs)}
}

func fixed(key string, pats ...string) cond { return cond{key: key, pats: pats} }

func env(name string, globs []glob) cond {
	pats := make([]string, len(globs))
	for i, g := range globs {
		pats[i] = g.env()
	}
	slices.Sort(pats)
	return cond{key: "ENV{" + name + "}", globs: globs, pats: slices.Compact(pats)}
}

// globsOf reads patterns; nil where they ask nothing.
func globsOf(what string, pats quirks.Patterns, atLeast int) ([]glob, error) {
	var out []glob
	for _, p := range pats {
		g := parseGlob(p.String())
		if err := g.check(what+" "+strconv.Quote(p.String()), atLeast); err != nil {
			return nil, err
		}
		if g.any() {
			return nil, nil
		}
		out = append(out, g)
	}
	return out, nil
}

// atLeast is how many letters and digits a name must keep where some of its
// characters cannot be written.
const (
	nameKeeps = 3
	partKeeps = 2 // vendor, firmware
)

// ruleOf translates an entry for the devices it was found on.
func ruleOf(e *quirks.Entry, devices []*checker.Device, rel kernel.Release) rule {
	n, _ := e.MaxSectors()
	r := newRule(e.ID, e.Title, uint64(n), devices)
	var refused []error
	for i := range e.Where.Any {
		a := &e.Where.Any[i]
		if a.Kernel != nil && kernel.Carries(kernelRows(a.Kernel), rel).Truth != kernel.True {
			r.left = append(r.left, fmt.Sprintf("alternative %d of the entry is for other kernels", i+1))
			continue
		}
		arms, err := armsOf(a, devices, false)
		if err != nil {
			refused = append(refused, err)
			r.left = append(r.left, fmt.Sprintf("alternative %d of the entry is left out: %v", i+1, err))
			continue
		}
		r.arms = append(r.arms, arms...)
	}
	for i := range e.Where.None {
		arms, err := armsOf(&e.Where.None[i], devices, true)
		if err != nil {
			refused = append(refused, err)
			r.arms = nil // without the exception the rule would be wider than the entry
			r.left = append(r.left, fmt.Sprintf("exception %d of the entry cannot be written: %v", i+1, err))
			break
		}
		r.except = append(r.except, arms...)
	}
	for _, c := range e.Conditions {
		if c.Value != nil {
			r.facts = append(r.facts, fmt.Sprintf("For machines where %s %s %s, as here.", c.Key, c.Op, c.Value))
		}
	}
	if len(r.arms) == 0 && r.err == nil {
		r.err = errors.Join(refused...)
		if r.err == nil {
			r.err = errors.New("no alternative of the entry is for this kernel")
		}
	}
	return r
}

func newRule(id, title string, sectors uint64, devices []*checker.Device) rule {
	r := rule{id: id, title: title, sectors: sectors, kib: checker.SettableKiB(sectors, 512)}
	if r.kib < minKiB {
		r.err = fmt.Errorf("the limit of %d sectors is below the %d KiB that the kernel takes", sectors, minKiB)
	}
	names := make([]string, len(devices))
	for i, d := range devices {
		names[i] = d.Name
	}
	r.facts = append(r.facts, "Found here on "+strings.Join(names, ", ")+".")
	return r
}

// minKiB is the smallest value any kernel accepts.
const minKiB = 4

func kernelRows(k *quirks.ArmKernel) []kernel.Row {
	if len(k.Range) == 0 {
		tree := k.Tree
		if tree == "" {
			tree = "mainline"
		}
		return []kernel.Row{{Tree: tree, Since: k.Since, Until: k.Until}}
	}
	rows := make([]kernel.Row, len(k.Range))
	for i, e := range k.Range {
		rows[i] = kernel.Row{Tree: e.Tree, Never: e.Introduced == nil}
		if e.Introduced != nil {
			rows[i].Since = *e.Introduced
		}
		if e.Fixed != nil {
			rows[i].Until = *e.Fixed
		}
	}
	return rows
}

// armsOf translates one arm. Lists that a line cannot hold multiply it. For an
// exception only what sysfs shows is asked, so that it rather takes away too
// much.
func armsOf(a *quirks.Arm, devices []*checker.Device, exception bool) ([]arm, error) {
	if a.Stack != nil {
		return nil, errors.New("what lies above a disk is not known when it appears")
	}
	var alternatives [][]arm
	add := func(arms []arm, err error) error {
		if err == nil && len(arms) > 0 {
			alternatives = append(alternatives, arms)
		}
		return err
	}
	if a.Device != nil {
		if err := add(deviceArms(a.Device, devices)); err != nil {
			return nil, err
		}
	}
	if a.Adapter != nil {
		if err := add(adapterArms(a.Adapter)); err != nil {
			return nil, err
		}
	}
	if a.USB != nil {
		if err := add(usbArms(a.USB)); err != nil {
			return nil, err
		}
	}
	if a.Machine != nil {
		if err := add(machineArms(a.Machine)); err != nil {
			return nil, err
		}
	}
	if len(a.Path) > 0 {
		if err := add(pathArms(a.Path)); err != nil {
			return nil, err
		}
	}
	out := []arm{{}}
	for i, alts := range alternatives {
		var next []arm
		for _, have := range out {
			for _, more := range alts {
				n := arm{lines: slices.Concat(have.lines, more.lines), scsi: have.scsi, why: have.why}
				switch {
				case i == 0 && a.Device != nil:
					n.scsi, n.why = more.scsi, more.why
				case n.why == nil:
					n.scsi, n.why = nil, errors.New("adapter, USB bridge, machine or path cannot be asked there")
				}
				next = append(next, n)
			}
		}
		out = next
	}
	if a.Device == nil {
		for i := range out {
			out[i].scsi, out[i].why = nil, errors.New("the entry names no disk")
		}
	}
	if len(out) > maxArms {
		return nil, fmt.Errorf("more than %d combinations", maxArms)
	}
	for i := range out {
		if exception {
			out[i].lines = slices.DeleteFunc(out[i].lines, func(l line) bool { return l.veto })
			for j := range out[i].lines {
				l := &out[i].lines[j]
				l.conds = slices.DeleteFunc(l.conds, cond.property)
			}
			out[i].lines = slices.DeleteFunc(out[i].lines, func(l line) bool { return len(l.conds) == 0 })
		}
		if len(out[i].lines) == 0 {
			return nil, errors.New("it asks nothing")
		}
	}
	return out, nil
}

const maxArms = 64

func deviceArms(d *quirks.DeviceSpec, devices []*checker.Device) ([]arm, error) {
	switch d.Space {
	case "ata":
		models, err := globsOf("model", d.Model, nameKeeps)
		if err != nil {
			return nil, err
		}
		fws, err := firmwareGlobs(d.Firmware, devices, func(x *checker.Device) *string {
			if x.Identity.ATA == nil {
				return nil
			}
			return x.Identity.ATA.Firmware
		})
		if err != nil {
			return nil, err
		}
		arms, err := ataArms(models, fws)
		if err == nil && slices.ContainsFunc(devices, bridged) {
			arms = append(arms, bridgeArm(models, fws))
		}
		return arms, err
	case "scsi":
		vendor, err := globsOf("vendor", d.Vendor, partKeeps)
		if err != nil {
			return nil, err
		}
		product := d.Product
		if d.ProductIs == "prefix" {
			product = nil
			for _, p := range d.Product {
				q, err := quirks.CompilePattern(p.String() + "*")
				if err != nil {
					return nil, err
				}
				product = append(product, q)
			}
		}
		products, err := globsOf("product", product, nameKeeps)
		if err != nil {
			return nil, err
		}
		revs, err := firmwareGlobs(d.Revision, devices, func(x *checker.Device) *string {
			if x.Identity.SCSI == nil {
				return nil
			}
			return x.Identity.SCSI.Revision
		})
		if err != nil {
			return nil, err
		}
		return scsiArms(vendor, products, revs)
	case "nvme":
		models, err := globsOf("model", d.Model, nameKeeps)
		if err != nil {
			return nil, err
		}
		fws, err := firmwareGlobs(d.Firmware, devices, func(x *checker.Device) *string {
			if x.Identity.NVMe == nil {
				return nil
			}
			return x.Identity.NVMe.Firmware
		})
		if err != nil {
			return nil, err
		}
		arms, err := nvmeArms(models, fws)
		if err != nil {
			return nil, err
		}
		if d.VID == "" && d.SSVID == "" {
			return arms, nil
		}
		pci, err := pciLine(d.VID, "*", d.SSVID, "*")
		if err != nil {
			return nil, err
		}
		arms[0].lines = append(arms[0].lines, pci)
		arms[0].scsi, arms[0].why = nil, errors.New("PCI ids cannot be asked there")
		return arms, nil
	}
	return nil, fmt.Errorf("names in the space %q cannot be written", d.Space)
}

// firmwareGlobs lists the revisions meant. An order of revisions is no glob:
// then those of the devices at hand are.
func firmwareGlobs(f quirks.Firmware, devices []*checker.Device, of func(*checker.Device) *string) ([]glob, error) {
	if f.IsZero() || f.Any != "" {
		return nil, nil
	}
	globs, err := globsOf("firmware", f.Patterns, partKeeps)
	if err != nil || f.Below == "" {
		return globs, err
	}
	for _, d := range devices {
		if s := of(d); s != nil && !slices.ContainsFunc(globs, func(g glob) bool { return g.text() == literalGlob(*s).text() }) {
			g := literalGlob(*s)
			if err := g.check("firmware "+strconv.Quote(*s), partKeeps); err != nil {
				return nil, err
			}
			globs = append(globs, g)
		}
	}
	if len(globs) == 0 {
		return nil, fmt.Errorf("firmware below %s is no pattern", f.Below)
	}
	return globs, nil
}

// byATAID says that the names udev knows are ata_id's and not scsi_id's, which
// are cut.
var byATAID = fixed("ENV{ID_ATA}", "1")

// bridged reports an ATA disk that SCSI shows under a bridge's name.
func bridged(d *checker.Device) bool {
	id := d.Identity
	return id.ATA != nil && id.SCSI != nil && id.SCSI.Vendor != nil && *id.SCSI.Vendor != "ATA"
}

// bridgeArm asks for a disk behind a bridge, where only ata_id sees its name.
func bridgeArm(models, fws []glob) arm {
	l := line{conds: []cond{byATAID, env("ID_MODEL", models)}}
	if len(fws) > 0 {
		l.conds = append(l.conds, env("ID_REVISION", fws))
	}
	return arm{lines: []line{l}, why: errors.New("a bridge gives the disk a name of its own")}
}

// ataArms asks for an ATA disk as SCSI shows it, and what SCSI cuts off in the
// names that ata_id reads.
func ataArms(models, fws []glob) ([]arm, error) {
	if len(models) == 0 {
		return nil, errors.New("it names no model")
	}
	mWhole, mCut := split(models, modelView)
	fWhole, fCut := split(fws, firmwareView)
	if len(fws) == 0 {
		fWhole = []glob{} // one round without a condition
	}
	var out []arm
	for _, m := range []struct {
		globs []glob
		cut   bool
	}{{mWhole, false}, {mCut, true}} {
		for _, f := range []struct {
			globs []glob
			cut   bool
		}{{fWhole, false}, {fCut, true}} {
			if len(m.globs) == 0 || len(f.globs) == 0 && (f.cut || len(fws) > 0) {
				continue
			}
			name := line{conds: []cond{fixed("ATTRS{vendor}", "ATA"), attrs("model", views(m.globs, modelView))}}
			if revs := views(f.globs, firmwareView); len(revs) > 0 && !slices.ContainsFunc(revs, glob.any) {
				name.conds = append(name.conds, attrs("rev", revs))
			}
			var a arm
			if m.cut || f.cut {
				name.conds = append(name.conds, byATAID)
				a.why = errors.New("the name is longer than what SCSI shows of it")
			}
			if m.cut {
				name.conds = append(name.conds, env("ID_MODEL", m.globs))
			}
			if f.cut {
				name.conds = append(name.conds, env("ID_REVISION", f.globs))
			}
			a.lines = []line{name}
			if a.why == nil {
				a.scsi = []scsiName{{vendor: []glob{literalGlob("ATA")}, product: m.globs, revision: f.globs}}
			}
			if len(f.globs) > 0 && !f.cut {
				// 3.20 is also how SCSI shows ABCD3.20.
				other := env("ID_REVISION", f.globs)
				other.not = true
				a.lines = append(a.lines, line{veto: true, conds: []cond{byATAID, other}})
			}
			out = append(out, a)
		}
	}
	return out, nil
}

func split(globs []glob, view func(glob) (glob, bool)) (whole, cut []glob) {
	for _, g := range globs {
		if _, is := view(g); is {
			cut = append(cut, g)
		} else {
			whole = append(whole, g)
		}
	}
	return whole, cut
}

func views(globs []glob, view func(glob) (glob, bool)) []glob {
	out := make([]glob, len(globs))
	for i, g := range globs {
		out[i], _ = view(g)
	}
	return out
}

func scsiArms(vendor, product, rev []glob) ([]arm, error) {
	if len(product) == 0 {
		return nil, errors.New("it names no product")
	}
	var l line
	if len(vendor) > 0 {
		l.conds = append(l.conds, attrs("vendor", vendor))
	}
	l.conds = append(l.conds, attrs("model", product))
	if len(rev) > 0 {
		l.conds = append(l.conds, attrs("rev", rev))
	}
	a := arm{lines: []line{l}, scsi: []scsiName{{vendor, product, rev}}}
	if len(vendor) == 0 {
		a.scsi, a.why = nil, errors.New("it names no vendor")
	}
	return []arm{a}, nil
}

// nvmeArms asks the controller, or the subsystem where the namespace has
// several (native multipath).
func nvmeArms(model, fw []glob) ([]arm, error) {
	if len(model) == 0 {
		return nil, errors.New("it names no model")
	}
	l := line{conds: []cond{onNVMe, fixed("SUBSYSTEMS", "nvme", "nvme-subsystem"), attrs("model", model)}}
	if len(fw) > 0 {
		l.conds = append(l.conds, attrs("firmware_rev", fw))
	}
	return []arm{{lines: []line{l}, scsi: []scsiName{{[]glob{literalGlob("NVME")}, model, fw}}}}, nil
}

var onNVMe = fixed("KERNEL", "nvme*")

var reHex4 = regexp.MustCompile(`^[0-9a-f]{4}$`)

// pciLine asks a PCI function for its ids, "" or * for any.
func pciLine(vendor, device, subvendor, subdevice string) (line, error) {
	l := line{conds: []cond{fixed("SUBSYSTEMS", "pci")}}
	for _, p := range []struct{ file, id string }{{"vendor", vendor}, {"device", device}, {"subsystem_vendor", subvendor}, {"subsystem_device", subdevice}} {
		if p.id == "" || p.id == "*" {
			continue
		}
		id := strings.ToLower(strings.TrimPrefix(p.id, "0x"))
		if !reHex4.MatchString(id) {
			return line{}, fmt.Errorf("PCI id %q: want four hexadecimal digits or *", p.id)
		}
		l.conds = append(l.conds, fixed("ATTRS{"+p.file+"}", "0x"+id))
	}
	if len(l.conds) == 1 {
		return line{}, errors.New("no PCI id")
	}
	return l, nil
}

var (
	reClass    = regexp.MustCompile(`^[0-9a-f?]{6}$`)
	reRevision = regexp.MustCompile(`^[0-9a-f?]{2}$`)
)

func adapterArms(a *quirks.AdapterSpec) ([]arm, error) {
	if len(a.Name) > 0 || !a.Firmware.IsZero() {
		return nil, errors.New("an adapter's name and firmware stand where rules cannot ask for them")
	}
	var more []cond
	if a.Class != "" {
		class := strings.ToLower(a.Class)
		if !reClass.MatchString(class) {
			return nil, fmt.Errorf("PCI class %q: want six hexadecimal digits or ?", a.Class)
		}
		more = append(more, fixed("ATTRS{class}", "0x"+class))
	}
	if len(a.Revision) > 0 {
		c := cond{key: "ATTRS{revision}"}
		for _, p := range a.Revision {
			rev := strings.ToLower(p.String())
			if !reRevision.MatchString(rev) {
				return nil, fmt.Errorf("PCI revision %q: want two hexadecimal digits", p)
			}
			c.pats = append(c.pats, "0x"+rev)
		}
		more = append(more, c)
	}
	var lines []line
	for _, quad := range a.PCI {
		p := append(strings.Split(quad, ":"), "*", "*", "*")
		l, err := pciLine(p[0], p[1], p[2], p[3])
		if err != nil {
			return nil, err
		}
		l.conds = append(l.conds, more...)
		lines = append(lines, l)
	}
	if len(lines) == 0 && len(more) > 0 {
		lines = []line{{conds: append([]cond{fixed("SUBSYSTEMS", "pci")}, more...)}}
	}
	driver, err := globsOf("driver", a.Driver, partKeeps)
	if err != nil {
		return nil, err
	}
	var drv []line
	if len(driver) > 0 { // may be another parent: virtio_scsi sits below the PCI function
		drv = []line{{conds: []cond{{key: "DRIVERS", globs: driver, pats: texts(driver)}}}}
	}
	if len(lines) == 0 {
		return []arm{{lines: drv}}, nil
	}
	return []arm{{lines: append([]line{anyOf(lines)}, drv...)}}, nil
}

// anyOf makes alternatives one line.
func anyOf(lines []line) line {
	l := lines[0]
	l.or = lines[1:]
	return l
}

var usbSpeeds = map[string][]string{"low": {"1.5"}, "full": {"12"}, "high": {"480"}, "super": {"5000"}, "super-plus": {"10000", "20000"}}

func usbArms(u *quirks.USBSpec) ([]arm, error) {
	var conds []cond
	if u.BCD != "" {
		lo, hi, ok := strings.Cut(strings.ToLower(strings.ReplaceAll(u.BCD, ".", "")), "-")
		if !ok {
			hi = lo
		}
		a, errA := strconv.ParseUint(lo, 16, 16)
		b, errB := strconv.ParseUint(hi, 16, 16)
		if err := errors.Join(errA, errB); err != nil || a > b {
			return nil, fmt.Errorf("bcdDevice %q is no range", u.BCD)
		}
		if a > 0 || b < 0x9999 {
			conds = append(conds, fixed("ATTRS{bcdDevice}", hexRange(uint16(a), uint16(b))...))
		}
	}
	for _, p := range []struct {
		file string
		pats quirks.Patterns
	}{{"manufacturer", u.Manufacturer}, {"product", u.Product}} {
		globs, err := globsOf(p.file, p.pats, partKeeps)
		if err != nil {
			return nil, err
		}
		if len(globs) > 0 {
			conds = append(conds, attrs(p.file, globs))
		}
	}
	if u.Speed != "" {
		speed, ok := usbSpeeds[u.Speed]
		if !ok {
			return nil, fmt.Errorf("USB speed %q is not known", u.Speed)
		}
		conds = append(conds, fixed("ATTRS{speed}", speed...))
	}
	if len(u.ID) == 0 {
		return []arm{{lines: []line{{conds: append([]cond{fixed("SUBSYSTEMS", "usb")}, conds...)}}}}, nil
	}
	var lines []line
	for _, id := range u.ID {
		vid, pid, _ := strings.Cut(strings.ToLower(id), ":")
		l := line{conds: []cond{fixed("SUBSYSTEMS", "usb")}}
		for _, p := range []struct{ file, id string }{{"idVendor", vid}, {"idProduct", pid}} {
			switch {
			case p.id == "*" || p.id == "":
			case reHex4.MatchString(p.id):
				l.conds = append(l.conds, fixed("ATTRS{"+p.file+"}", p.id))
			default:
				return nil, fmt.Errorf("USB id %q: want vvvv:pppp", id)
			}
		}
		l.conds = append(l.conds, conds...)
		lines = append(lines, l)
	}
	return []arm{{lines: []line{anyOf(lines)}}}, nil
}

// hexRange lists patterns for the four-digit hexadecimal numbers from lo to hi.
func hexRange(lo, hi uint16) []string {
	const digits = "0123456789abcdef"
	var out []string
	for n := uint32(lo); n <= uint32(hi); {
		// The largest aligned block that starts at n and ends within hi, a
		// power of 16, then as many of its neighbours as fit one class.
		size, free := uint32(1), 0
		for free < 4 && n%(size*16) == 0 && n+size*16-1 <= uint32(hi) {
			size, free = size*16, free+1
		}
		if free == 4 {
			return []string{"[0-9a-f][0-9a-f][0-9a-f][0-9a-f]"}
		}
		first := n / size % 16
		last := first
		for last < 15 && n+(last-first+2)*size-1 <= uint32(hi) {
			last++
		}
		p := fmt.Sprintf("%04x", n)[:3-free]
		if first == last {
			p += digits[first : first+1]
		} else {
			class := digits[first : last+1]
			p += "[" + class + "]"
		}
		out = append(out, p+strings.Repeat("[0-9a-f]", free))
		n += (last - first + 1) * size
	}
	return out
}

func machineArms(m *quirks.MachineSpec) ([]arm, error) {
	if m.BIOSBefore != "" {
		return nil, errors.New("BIOS versions have no order that a rule could ask for")
	}
	var l line
	for _, p := range []struct {
		file string
		pats quirks.Patterns
	}{{"sys_vendor", m.Vendor}, {"product_name", m.Product}, {"board_name", m.Board}} {
		globs, err := globsOf("machine "+p.file, p.pats, partKeeps)
		if err != nil {
			return nil, err
		}
		if len(globs) > 0 {
			l.conds = append(l.conds, cond{key: "ATTR{[dmi/id]" + p.file + "}", globs: globs, pats: texts(globs)})
		}
	}
	if len(l.conds) == 0 {
		return nil, errors.New("it names no machine")
	}
	return []arm{{lines: []line{l}}}, nil
}

var onATAPort = fixed("KERNELS", "ata[0-9]*")

func pathArms(paths []string) ([]arm, error) {
	var out []arm
	for _, p := range paths {
		var a arm
		switch p {
		case "libata":
			a.lines = []line{{conds: []cond{onATAPort}}}
		case "usb-storage", "uas":
			a.lines = []line{{conds: []cond{fixed("DRIVERS", p)}}}
		case "sat-firmware":
			a.lines = []line{{conds: []cond{fixed("ATTRS{vendor}", "ATA")}}, {veto: true, conds: []cond{onATAPort}}}
		case "scsi":
			a.lines = []line{{conds: []cond{fixed("SUBSYSTEMS", "scsi")}}, {veto: true, conds: []cond{onATAPort}},
				{veto: true, conds: []cond{fixed("DRIVERS", "usb-storage", "uas")}}, {veto: true, conds: []cond{fixed("ATTRS{vendor}", "ATA")}}}
		case "nvme", "nvme-pci", "nvme-fabrics":
			a.lines = []line{{conds: []cond{onNVMe}}}
			if p == "nvme-pci" {
				a.lines = append(a.lines, line{conds: []cond{fixed("SUBSYSTEMS", "pci")}})
			}
		default:
			return nil, fmt.Errorf("the path %q cannot be asked for", p)
		}
		out = append(out, a)
	}
	return out, nil
}

// deviceRule is a rule for one device's own name, where no entry gives a
// pattern.
func deviceRule(id, title string, sectors uint64, d *checker.Device) rule {
	r := newRule(id, title, sectors, []*checker.Device{d})
	if r.err != nil {
		return r
	}
	r.arms, r.err = nameArms(d)
	return r
}

// errNoName is the reason for a disk that does not show enough of itself.
var errNoName = errors.New("it does not show its full model and firmware")

// nameArms asks for exactly the names a device has in full.
func nameArms(d *checker.Device) ([]arm, error) {
	get := func(what string, s *string, atLeast int) (glob, error) {
		if s == nil || strings.Trim(*s, " \x00") == "" {
			return glob{}, errNoName
		}
		g := literalGlob(*s)
		return g, g.check(what+" "+strconv.Quote(*s), atLeast)
	}
	one := func(model, firmware *string) (m, f []glob, err error) {
		gm, errM := get("model", model, nameKeeps)
		gf, errF := get("firmware", firmware, partKeeps)
		if err := errors.Join(errM, errF); err != nil {
			return nil, nil, oneNoName(err)
		}
		return []glob{gm}, []glob{gf}, nil
	}
	switch id := d.Identity; {
	case id.ATA != nil:
		if id.Partial {
			return nil, errNoName
		}
		m, f, err := one(id.ATA.Model, id.ATA.Firmware)
		if err != nil {
			return nil, err
		}
		if bridged(d) {
			return []arm{bridgeArm(m, f)}, nil
		}
		return ataArms(m, f)
	case id.NVMe != nil:
		m, f, err := one(id.NVMe.Model, id.NVMe.Firmware)
		if err != nil {
			return nil, err
		}
		return nvmeArms(m, f)
	case id.SCSI != nil:
		if id.Partial || id.SCSI.Vendor != nil && *id.SCSI.Vendor == "ATA" {
			return nil, errNoName
		}
		m, f, err := one(id.SCSI.Product, id.SCSI.Revision)
		if err != nil {
			return nil, err
		}
		v, err := get("vendor", id.SCSI.Vendor, partKeeps)
		if err != nil {
			return nil, err
		}
		return scsiArms([]glob{v}, m, f)
	}
	return nil, errNoName
}

// oneNoName keeps one of two equal reasons.
func oneNoName(err error) error {
	if errors.Is(err, errNoName) {
		return errNoName
	}
	return err
}
