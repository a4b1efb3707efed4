package emit

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

// setting is one kernel parameter that limits one device.
type setting struct {
	module, name string // libata, force
	item         string // 1:max_sec=1024
	since        string // first kernel with it
	notes        []string
	add          func(present string) (string, error) // merges the item into a value
}

func (s setting) assignment() string { return s.module + "." + s.name + "=" + quoteParam(s.item) }

// param returns the kernel parameter for one device on the plan's kernel.
func (p *Plan) param(a *Advice) (setting, error) {
	d := a.Device
	path := ""
	if d.Path != nil {
		path = *d.Path
	}
	switch path {
	case "libata":
		return p.libata(a)
	case "usb-storage", "uas":
		return p.usb(a, path)
	case "scsi":
		return p.scsi(a)
	case "sat-firmware":
		return setting{}, errors.New("no kernel parameter limits an ATA disk behind a SAS adapter by its firmware")
	case "nvme", "nvme-pci", "nvme-fabrics":
		return setting{}, errors.New("no kernel parameter limits the transfer size of an NVMe device")
	}
	return setting{}, errors.New("no kernel parameter limits a device on this path")
}

// has answers whether the plan's kernel has what came with a mainline release.
// The error says which one it needs.
func (p *Plan) has(what, since string) error {
	k := p.o.Kernel
	if !k.Known() {
		return fmt.Errorf("%s needs Linux %s, and the kernel here is not known", what, since)
	}
	// Parameters are no fixes: stable trees do not get them later.
	if first, err := kernel.Parse(since); err == nil && (k.Major > first.Major || k.Major == first.Major && k.Minor >= first.Minor) {
		return nil
	}
	return fmt.Errorf("%s needs Linux %s, and this is %s", what, since, p.o.Kernel.Upstream())
}

// libata chooses libata.force for a port. Linux 7.0 takes any number; 5.19
// (and nothing before) knows 1024 and 128.
func (p *Plan) libata(a *Advice) (setting, error) {
	port := ""
	if ad := a.Device.Adapter; ad != nil && ad.ATAPort != nil {
		port = *ad.ATAPort
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return setting{}, errors.New("the number of its ATA port is not known")
	}
	s := setting{module: "libata", name: "force", notes: []string{
		"ata" + port + " is how this boot counts its ports: check it after a change of hardware, kernel or driver order.",
		"It is for every disk on that port. Unlike a rule it binds pass-through commands too.",
	}}
	value := ""
	exact := p.has("libata.force=PORT:max_sec=N", "7.0")
	switch {
	case exact == nil:
		value, s.since = "max_sec="+number(a.MaxSectors), "7.0"
	case a.MaxSectors < 128:
		return s, exact
	default:
		value, s.since = "max_sec_1024", "5.19"
		if a.MaxSectors < 1024 {
			value = "max_sec_128"
		}
		if err := p.has("libata.force=PORT:"+value, s.since); err != nil {
			return s, fmt.Errorf("%w (PORT:max_sec=%d: 7.0)", err, a.MaxSectors)
		}
		if got, _ := forcedSectors(value); got != a.MaxSectors {
			s.notes = append(s.notes, fmt.Sprintf("%d sectors is less than the %d needed; exactly that needs Linux 7.0 (max_sec=%[2]d).", got, a.MaxSectors))
		}
	}
	s.item = port + ":" + value
	first := exact == nil
	s.add = func(present string) (string, error) { return mergeForce(present, port, value, first) }
	return s, nil
}

// forcedSectors reads the limit of a libata.force value; ok is false for other
// values. max_sec_lba48 is 65535.
func forcedSectors(value string) (n uint64, ok bool) {
	v := strings.ToLower(value)
	if s, ok := strings.CutPrefix(v, "max_sec="); ok {
		n, err := strconv.ParseUint(s, 10, 32)
		return n, err == nil && n > 0
	}
	// libata takes abbreviations as long as they are not ambiguous.
	for name, n := range map[string]uint64{"max_sec_128": 128, "max_sec_1024": 1024, "max_sec_lba48": 65535} {
		if v == name || strings.HasPrefix(name, v) && (len(v) > len("max_sec_1") || v == "max_sec_l") {
			return n, true
		}
	}
	return 0, false
}

// force is one item of libata.force with the ID it has in effect.
type force struct{ id, value string } // id "" = every port, else PORT or PORT.DEVICE

func (f force) port() string {
	port, _, _ := strings.Cut(f.id, ".")
	return strings.TrimLeft(port, "0")
}

func (f force) String() string {
	if f.id == "" {
		return f.value
	}
	return f.id + ":" + f.value
}

// parseForce reads a list [PORT[.DEVICE]:]VALUE by commas, in which a value
// without an ID takes the one before it (kernel-parameters, libata.force).
func parseForce(s string) []force {
	var out []force
	id := ""
	for item := range strings.SplitSeq(s, ",") {
		item = strings.TrimSpace(item)
		value := item
		if before, after, ok := strings.Cut(item, ":"); ok {
			id, value = strings.TrimSpace(before), strings.TrimSpace(after)
		}
		if value != "" {
			out = append(out, force{id, value})
		}
	}
	return out
}

// mergeForce adds a limit for a port. Other limits of that port go, and so does
// a max_sec_lba48 for all ports, which would override it. Linux 7.0 and later
// take quirks from the first item that fits a device, whatever it is about, so
// the limit goes to the front of the port's items; an item for all ports must
// stand before every ID and would hide it there.
func mergeForce(present, port, value string, first bool) (string, error) {
	want, _ := forcedSectors(value)
	var keep []force
	satisfied := false
	for _, f := range parseForce(present) {
		n, limit := forcedSectors(f.value)
		switch {
		case limit && f.id == port && n <= want:
			satisfied = true
			keep = append(keep, f)
		case limit && f.port() == port:
		case limit && f.id == "" && n > want:
		default:
			keep = append(keep, f)
		}
	}
	if !satisfied {
		at := slices.IndexFunc(keep, func(f force) bool { return f.id != "" })
		if at < 0 {
			at = len(keep)
		}
		keep = slices.Insert(keep, at, force{port, value})
	}
	if first {
		at := slices.IndexFunc(keep, func(f force) bool { _, ok := forcedSectors(f.value); return ok && f.id == port })
		for i, f := range keep {
			switch {
			case i < at && f.id == "":
				return "", fmt.Errorf("the present libata.force=%s is for all ports, and from Linux 7.0 on a port's limit behind it is ignored: write it port by port", f)
			case i != at && f.port() == port && isQuirk(f.value):
				return "", fmt.Errorf("the present libata.force=%s is for the same port, and Linux 7.0 and later take only one of the two", f)
			}
		}
		own := keep[at]
		keep = slices.Insert(slices.Delete(keep, at, at+1), 0, own)
	}
	parts := make([]string, len(keep))
	for i, f := range keep {
		parts[i] = f.String()
	}
	return strings.Join(parts, ","), nil
}

func lba48ForAll(value string) bool {
	return slices.ContainsFunc(parseForce(value), func(f force) bool {
		n, ok := forcedSectors(f.value)
		return ok && n == 65535 && f.id == ""
	})
}

// isQuirk tells the values that set a quirk of the device, of which only the
// first item counts from Linux 7.0 on, from those about cable, link and
// transfer mode.
func isQuirk(value string) bool {
	v := strings.ToLower(value)
	if slices.Contains([]string{"40c", "80c", "short40c", "unk", "ign", "sata", "norst", "nohrst", "nosrst", "rstonce", "dbdelay", "nodbdelay"}, v) {
		return false
	}
	return !(strings.HasPrefix(v, "pio") || strings.HasPrefix(v, "mwdma") || strings.HasPrefix(v, "udma") || strings.HasPrefix(v, "1.5") || strings.HasPrefix(v, "3.0"))
}

// usb chooses a flag of usb-storage.quirks: m is 64 sectors (usb-storage), g is
// 240 sectors (uas).
func (p *Plan) usb(a *Advice, path string) (setting, error) {
	u := a.Device.Identity.USB
	if u == nil || u.VID == nil || u.PID == nil || !reHex4.MatchString(strings.ToLower(*u.VID)) || !reHex4.MatchString(strings.ToLower(*u.PID)) {
		return setting{}, errors.New("its USB ids are not known")
	}
	id := strings.ToLower(*u.VID + ":" + *u.PID)
	s := setting{module: "usb-storage", name: "quirks"}
	flag, sectors := byte('m'), uint64(64)
	s.since = "2.6.29" // commit d4f373e57d39
	if path == "uas" {
		flag, sectors, s.since = 'g', 240, "4.1" // commit ee136af4a064
	}
	if a.MaxSectors < sectors {
		return s, fmt.Errorf("usb-storage.quirks=%s:%c is %d sectors, more than the limit of %d", id, flag, sectors, a.MaxSectors)
	}
	if err := p.has("usb-storage.quirks="+id+":"+string(flag), s.since); err != nil {
		return s, err
	}
	s.item = id + ":" + string(flag)
	if sectors != a.MaxSectors {
		s.notes = append(s.notes, fmt.Sprintf("%c is %d sectors, less than the %d needed.", flag, sectors, a.MaxSectors))
	}
	s.notes = append(s.notes,
		"It is for every device with these ids, and it replaces the flags the kernel itself has for them. Look for",
		"\"Quirks match for vid "+(*u.VID)+" pid "+(*u.PID)+"\" in the kernel's log: where that stands, add the letters of those flags too",
		"(kernel-parameters, usb-storage.quirks).")
	s.add = func(present string) (string, error) { return mergeUSB(present, id, flag) }
	return s, nil
}

// mergeUSB adds a flag to the first entry of an id, which is the one that
// counts, or a new entry.
func mergeUSB(present, id string, flag byte) (string, error) {
	var out []string
	found := false
	for item := range strings.SplitSeq(present, ",") {
		if item == "" {
			continue
		}
		f := strings.Split(item, ":")
		if len(f) == 3 && !found && strings.EqualFold(strings.TrimLeft(f[0], "0"), strings.TrimLeft(id[:4], "0")) &&
			strings.EqualFold(strings.TrimLeft(f[1], "0"), strings.TrimLeft(id[5:], "0")) {
			found = true
			if strings.IndexByte(strings.ToLower(f[2]), flag) < 0 {
				item += string(flag)
			}
		}
		out = append(out, item)
	}
	if !found {
		out = append(out, id+":"+string(flag))
	}
	v := strings.Join(out, ",")
	if len(v) > 127 { // drivers/usb/storage/usb.c, quirks[128]
		return "", errors.New("usb-storage.quirks= holds at most 127 characters")
	}
	return v, nil
}

// Flags of the kernel's SCSI device list (include/scsi/scsi_devinfo.h), by the
// names that device/blacklist shows. Bits keep their meaning over releases.
var blist = map[string]uint64{
	"NOLUN": 1 << 0, "FORCELUN": 1 << 1, "BORKEN": 1 << 2, "KEY": 1 << 3, "SINGLELUN": 1 << 4, "NOTQ": 1 << 5,
	"SPARSELUN": 1 << 6, "MAX5LUN": 1 << 7, "ISROM": 1 << 8, "LARGELUN": 1 << 9, "INQUIRY_36": 1 << 10,
	"IGN_MEDIA_CHANGE": 1 << 11, "NOSTARTONADD": 1 << 12, "NO_VPD_SIZE": 1 << 13, "REPORTLUN2": 1 << 17,
	"NOREPORTLUN": 1 << 18, "NOT_LOCKABLE": 1 << 19, "NO_ULD_ATTACH": 1 << 20, "SELECT_NO_ATN": 1 << 21,
	"RETRY_HWERROR": 1 << 22, "MAX_512": 1 << 23, "NO_DIF": 1 << 25, "SKIP_VPD_PAGES": 1 << 26, "TRY_VPD_PAGES": 1 << 28,
	"NO_RSOC": 1 << 29, "MAX_1024": 1 << 30, "UNMAP_LIMIT_WS": 1 << 31, "RETRY_ITF": 1 << 32, "RETRY_ASC_C1": 1 << 33,
	"SKIP_IO_HINTS": 1 << 34,
}

// scsi chooses scsi_mod.dev_flags, for the entry's limits it has: 512 and 1024
// sectors.
func (p *Plan) scsi(a *Advice) (setting, error) {
	id := a.Device.Identity.SCSI
	if id == nil || id.Vendor == nil || id.Product == nil || *id.Vendor == "" || *id.Product == "" {
		return setting{}, errors.New("its vendor and product are not known")
	}
	s := setting{module: "scsi_mod", name: "dev_flags"}
	var flag string
	switch a.MaxSectors {
	case 512:
		// 2006-04-13, "add SCSI_UNKNOWN and LUN transfer limit restrictions".
		flag, s.since = "MAX_512", "2.6.17"
	case 1024:
		// Commit 35e9a9f93994, made on 4.1-rc1: in 4.2 at the latest.
		flag, s.since = "MAX_1024", "4.2"
	default:
		return s, fmt.Errorf("scsi_mod.dev_flags= has limits of 512 and 1024 sectors, and this one is %d", a.MaxSectors)
	}
	if err := p.has("scsi_mod.dev_flags= with "+flag, s.since); err != nil {
		return s, err
	}
	name := *id.Vendor + ":" + *id.Product
	for _, part := range []string{*id.Vendor, *id.Product} {
		for _, c := range []byte(part) {
			if !isPlain(c) || c == ':' {
				return s, fmt.Errorf("the name %s holds %q, which scsi_mod.dev_flags= cannot", strconv.Quote(name), c)
			}
		}
	}
	flags := blist[flag]
	present, known := p.o.Blacklist[a.Device.Name]
	for _, w := range present {
		bit, ok := blist[w]
		if !ok {
			return s, fmt.Errorf("the kernel has the flag %s for this device, whose bit is not known here", strconv.Quote(w))
		}
		flags |= bit
	}
	s.item = fmt.Sprintf("%s:0x%x", name, flags)
	s.notes = []string{"It fits exactly this vendor and product, whatever the revision, and replaces the flags the kernel has for them."}
	switch {
	case !known:
		s.notes = append(s.notes, "Which flags the kernel has now could not be read (device/blacklist): add their bits where there are any.")
	case len(present) > 0:
		s.notes = append(s.notes, "The flags it has now are in it: "+strings.Join(present, " ")+".")
	}
	s.add = func(present string) (string, error) { return mergeDevFlags(present, name, flags) }
	return s, nil
}

// mergeDevFlags adds flags to the first entry of a name, which is the one that
// counts, or a new entry.
func mergeDevFlags(present, name string, flags uint64) (string, error) {
	var out []string
	found := false
	for item := range strings.SplitSeq(strings.Trim(present, `"`), ",") {
		if item == "" {
			continue
		}
		if i := strings.LastIndexByte(item, ':'); i >= 0 && item[:i] == name && !found {
			n, err := strconv.ParseUint(item[i+1:], 0, 64)
			if err != nil {
				return "", fmt.Errorf("the present entry %s: flags: %w", strconv.Quote(item), err)
			}
			found = true
			item = fmt.Sprintf("%s:0x%x", name, n|flags)
		}
		out = append(out, item)
	}
	if !found {
		out = append(out, fmt.Sprintf("%s:0x%x", name, flags))
	}
	v := strings.Join(out, ",")
	if len(v) > 255 { // drivers/scsi/scsi_devinfo.c, scsi_dev_flags[256]
		return "", errors.New("scsi_mod.dev_flags= holds at most 255 characters")
	}
	return v, nil
}

// quoteParam puts quotes around a value with blanks.
func quoteParam(v string) string {
	if strings.Contains(v, " ") {
		return `"` + v + `"`
	}
	return v
}

// parameters writes module options or kernel parameters.
func (p *Plan) parameters(k Kind) (Artefact, error) {
	type merged struct {
		setting
		value string
		had   string
		was   bool
		for_  []string
	}
	var params []*merged
	var why, warn []string
	for i := range p.Advices {
		a := &p.Advices[i]
		s, err := p.param(a)
		var m *merged
		if err == nil {
			if at := slices.IndexFunc(params, func(m *merged) bool { return m.module == s.module && m.name == s.name }); at >= 0 {
				m = params[at]
			} else {
				m = &merged{setting: setting{module: s.module, name: s.name}}
				m.had, m.was = kernel.Parameter(p.o.Cmdline, s.module, s.name)
				m.value = m.had
			}
			var v string
			if v, err = s.add(m.value); err == nil {
				m.value = v
			}
		}
		if err != nil {
			why = append(why, comment(fmt.Sprintf("%s (%s): %v; use --emit udev", a.Device.Name, a.Finding.Quirk, err)))
			continue
		}
		if !slices.Contains(params, m) {
			params = append(params, m)
		}
		m.for_ = append(m.for_, fmt.Sprintf("%s: %s: %s", a.Device.Name, a.Finding.Quirk, a.Finding.Title),
			fmt.Sprintf("  at most %d sectors: %s, from Linux %s on.", a.MaxSectors, s.item, s.since))
		for _, n := range s.notes {
			m.for_ = append(m.for_, "  "+n)
		}
	}
	if len(params) == 0 {
		return Artefact{}, &RefusedError{k, why}
	}
	var b strings.Builder
	a := Artefact{Kind: k}
	if k == KindModprobe {
		a.File = "/etc/modprobe.d/quirkcheck.conf"
		p.o.head(&b, "# ", "quirkcheck.conf", p.o.by("quirkcheck recommend --emit modprobe"), "",
			"Install: put it at "+a.File+" and rebuild the initramfs. It has no effect where",
			"the module is built into the kernel: use --emit cmdline there. A line for the same",
			"option in another file of modprobe.d is replaced or replaces this one: join them.",
			"Remove:  delete it, rebuild the initramfs, boot.")
	} else {
		p.o.head(&b, "# ", p.o.by("quirkcheck recommend --emit cmdline"), "",
			"Kernel parameters, one a line. Install: put them into the boot loader's configuration",
			"(GRUB_CMDLINE_LINUX and update-grub, grubby --args, kernel-install) in place of the",
			"present ones of the same name, and boot. Remove: the reverse.")
	}
	for _, m := range params {
		b.WriteString("#\n")
		p.o.head(&b, "# ", m.for_...)
		if m.was {
			now := "Merged with what the command line has now: " + m.module + "." + m.name + "=" + m.had
			if m.value == m.had {
				now = "The command line has it already."
			}
			p.o.head(&b, "# ", now)
			if m.module == "libata" && lba48ForAll(m.had) && !lba48ForAll(m.value) {
				w := "max_sec_lba48 for all ports is taken out, as it would override the limit; other ports lose it too"
				p.o.head(&b, "# ", "Warning: "+w+".")
				warn = append(warn, w)
			}
			if k == KindModprobe {
				w := "the command line's " + m.module + "." + m.name + "= wins over this file: change it there"
				p.o.head(&b, "# ", "Warning: "+w+".")
				warn = append(warn, w)
			}
		}
		if m.module == "libata" && slices.ContainsFunc(parseForce(m.value), func(f force) bool { return f.id == "" }) {
			w := "from Linux 7.0 on a port's limit behind an item for all ports is ignored: change this before such an upgrade"
			p.o.head(&b, "# ", "Warning: "+w+".")
			warn = append(warn, w)
		}
		if k == KindModprobe {
			fmt.Fprintf(&b, "options %s %s=%s\n", strings.ReplaceAll(m.module, "-", "_"), m.name, quoteParam(m.value))
		} else {
			fmt.Fprintf(&b, "%s.%s=%s\n", m.module, m.name, quoteParam(m.value))
		}
	}
	if len(why) > 0 {
		b.WriteString("#\n# Not covered:\n")
		for _, w := range why {
			p.o.head(&b, "#   ", w)
		}
	}
	a.Text, a.Warnings = b.String(), append(why, warn...)
	return a, nil
}
