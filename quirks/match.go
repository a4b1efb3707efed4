package quirks

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

// Match is an entry's answer about a subject, with every predicate of the arm
// that decided.
type Match struct {
	Entry      *Entry
	Truth      Truth
	Predicates []Predicate
	Arm        int  // index in match.any of the arm the predicates are from
	Inferred   bool // a cut firmware was taken for the whole
}

// Predicate is one question and its answer.
type Predicate struct {
	Key    string // dotted: device.model, adapter.pci, path, kernel.range
	Want   string
	Got    string // "" where unknown
	Truth  Truth
	Why    string // why it is unknown, or what the answer rests on
	Source string // file the value came from, filled by the checker
}

// Reasons that recur; the checker keys advice on them.
const (
	WhyIdentityCut     = "identity cut: SCSI shows only part of the ATA strings"
	WhyNoIdentity      = "identity not read"
	WhyFirmwareUnnamed = "firmware in neither the bad nor the fixed list"
)

// Match answers whether the entry applies to the subject. Arms are or-ed,
// match.none takes away, and what could not be read leaves the answer unknown.
func (e *Entry) Match(sub *Subject) Match {
	m := Match{Entry: e, Truth: False, Arm: -1}
	if e.Withdrawn != "" {
		m.Predicates = []Predicate{{Key: "withdrawn", Want: "an entry in force", Got: "withdrawn: " + e.Withdrawn, Truth: False}}
		return m
	}
	score := -1
	for i := range e.Where.Any {
		preds := e.Where.Any[i].predicates(sub)
		t := conjunction(preds)
		// Of the arms with the same answer, show the one that came nearest.
		if s := int(t)*1000 + trueCount(preds); s > score {
			score = s
			m.Truth, m.Predicates, m.Arm = t, preds, i
		}
	}
	if m.Truth != False {
		for i := range e.Where.None {
			preds := e.Where.None[i].predicates(sub)
			t := conjunction(preds)
			if t == False {
				continue
			}
			m.Predicates = append(m.Predicates, Predicate{
				Key: fmt.Sprintf("none[%d]", i), Want: "not " + describe(preds), Got: gotOf(preds), Truth: t.Not(), Why: whyOf(preds),
			})
		}
		if e.Kernel != nil && len(e.Kernel.Range) > 0 {
			m.Predicates = append(m.Predicates, e.Kernel.predicate(sub.Kernel))
		}
		for i := range e.Conditions {
			m.Predicates = append(m.Predicates, e.Conditions[i].predicate(sub))
		}
		m.Truth = conjunction(m.Predicates)
	}
	for _, p := range m.Predicates {
		if p.Truth == True && p.Why == whyInferred {
			m.Inferred = true
		}
	}
	return m
}

// Asks reports whether the predicate waits for a person's answer.
func (p Predicate) Asks() bool { return p.Truth == Unknown && p.Why == whyAsk }

func conjunction(preds []Predicate) Truth {
	t := True
	for _, p := range preds {
		t = min(t, p.Truth)
	}
	return t
}

func trueCount(preds []Predicate) int {
	n := 0
	for _, p := range preds {
		if p.Truth == True {
			n += 2
		} else if p.Truth == Unknown {
			n++
		}
	}
	return n
}

func describe(preds []Predicate) string {
	parts := make([]string, len(preds))
	for i, p := range preds {
		parts[i] = p.Key + " " + p.Want
	}
	return strings.Join(parts, ", ")
}

func gotOf(preds []Predicate) string {
	parts := make([]string, 0, len(preds))
	for _, p := range preds {
		if p.Got != "" {
			parts = append(parts, p.Got)
		}
	}
	return strings.Join(parts, ", ")
}

func whyOf(preds []Predicate) string {
	for _, p := range preds {
		if p.Truth == Unknown {
			return p.Key + ": " + p.Why
		}
	}
	return ""
}

func (a *Arm) predicates(sub *Subject) []Predicate {
	preds := make([]Predicate, 0, max(4, a.room))
	if a.Device != nil {
		preds = a.Device.predicates(preds, sub)
	}
	if a.Adapter != nil {
		preds = a.Adapter.predicates(preds, sub)
	}
	if a.USB != nil {
		preds = a.USB.predicates(preds, sub)
	}
	if a.Machine != nil {
		preds = a.Machine.predicates(preds, sub)
	}
	if a.Stack != nil {
		preds = a.Stack.predicates(preds, sub)
	}
	if len(a.Path) > 0 {
		p := Predicate{Key: "path", Want: a.pathWant, Got: sub.Path, Truth: a.Path.matchPath(sub.Path)}
		if p.Want == "" {
			p.Want = strings.Join(a.Path, " | ")
		}
		if p.Truth == Unknown {
			p.Why = "path not known"
		}
		preds = append(preds, p)
	}
	if a.Kernel != nil {
		rows, want := a.Kernel.parsed, a.Kernel.want
		if rows == nil {
			rows = a.Kernel.rows()
			want = rowsText(rows)
		}
		preds = append(preds, rowsPredicate("kernel", rows, want, sub.Kernel))
	}
	return preds
}

// matchPath answers for a list of paths; an empty list is every path.
func (s Strings) matchPath(path string) Truth {
	switch {
	case len(s) == 0:
		return True
	case path == "":
		return Unknown
	case path == "nvme":
		pci, fabrics := slices.Contains(s, "nvme-pci"), slices.Contains(s, "nvme-fabrics")
		switch {
		case pci && fabrics:
			return True
		case pci || fabrics:
			return Unknown
		}
		return False
	}
	return truthOf(slices.Contains(s, path))
}

func rowsText(rows []kernel.Row) string {
	texts := make([]string, len(rows))
	for i, w := range rows {
		texts[i] = w.String()
	}
	return strings.Join(texts, "; ")
}

func rowsPredicate(key string, rows []kernel.Row, want string, r kernel.Release) Predicate {
	a := kernel.Carries(rows, r)
	p := Predicate{Key: key, Want: want, Got: r.Upstream(), Truth: a.Truth}
	if a.Low && a.Truth != Unknown {
		p.Truth, p.Why = Unknown, "a "+r.Vendor+" kernel picks its own patches; mainline would answer "+a.Truth.String()
	} else if a.Truth == Unknown {
		p.Why = a.Why
	}
	return p
}

// device predicates

const whyInferred = "the revision shows the last 4 characters of a longer firmware too"

func (d *DeviceSpec) predicates(preds []Predicate, sub *Subject) []Predicate {
	space := Predicate{Key: "device.space", Want: d.Space}
	switch d.Space {
	case "ata":
		v := sub.ataView()
		space.Truth, space.Got, space.Why = v.space, v.got, v.why
		preds = append(preds, space)
		if v.space == False {
			return preds
		}
		if len(d.Model) > 0 {
			preds = append(preds, v.model(d.Model))
		}
		if !d.Firmware.IsZero() {
			preds = append(preds, v.firmware(d.Firmware))
		}
	case "scsi":
		id := sub.scsiView()
		space.Truth, space.Got, space.Why = sub.spaceTruth("scsi", id.Vendor.Known || id.Product.Known)
		preds = append(preds, space)
		if space.Truth == False {
			return preds
		}
		preds = appendText(preds, "device.vendor", d.Vendor, id.Vendor, false)
		preds = appendText(preds, "device.product", d.Product, id.Product, d.ProductIs == "prefix")
		if !d.Revision.IsZero() {
			preds = append(preds, d.Revision.predicate("device.revision", id.Revision))
		}
	case "nvme":
		id := Identity{}
		if sub.Device.Space == "nvme" {
			id = sub.Device
		}
		space.Truth, space.Got, space.Why = sub.spaceTruth("nvme", id.Space == "nvme")
		preds = append(preds, space)
		if space.Truth == False {
			return preds
		}
		preds = appendText(preds, "device.model", d.Model, id.Model, false)
		if !d.Firmware.IsZero() {
			preds = append(preds, d.Firmware.predicate("device.firmware", id.Firmware))
		}
		preds = appendHex(preds, "device.vid", d.VID, id.VID)
		preds = appendHex(preds, "device.ssvid", d.SSVID, id.SSVID)
	default:
		space.Truth, space.Why = Unknown, "identity space not known to this version"
		preds = append(preds, space)
	}
	return preds
}

// spaceTruth answers whether the subject lives in an identity space of which
// it shows no strings.
func (s *Subject) spaceTruth(space string, present bool) (t Truth, got, why string) {
	if present {
		return True, space, ""
	}
	if s.Device.Space != "" && s.Device.Space != space && (s.Device.Space != "ata" || space != "scsi") {
		// NVMe behind a RAID HBA shows as SCSI, never the other way round. An
		// ATA disk has INQUIRY strings too.
		return False, s.Device.Space, ""
	}
	switch s.Path {
	case "virtio-blk", "mmc", "other":
		return False, s.Path, ""
	case "nvme", "nvme-pci", "nvme-fabrics":
		if space != "nvme" {
			return False, "nvme", ""
		}
	case "libata", "sat-firmware", "scsi", "usb-storage", "uas", "sbp2":
		if space == "nvme" {
			return False, s.Path, ""
		}
	}
	return Unknown, "", WhyNoIdentity
}

// scsiView is the subject's INQUIRY identity: what it shows, or what libata
// makes of an ATA one.
func (s *Subject) scsiView() Identity {
	switch {
	case s.SCSI.Space != "":
		return s.SCSI
	case s.Device.Space == "scsi":
		return s.Device
	case s.Device.Space == "ata" && s.Path != "usb-storage" && s.Path != "uas" && s.Path != "sbp2": // a bridge has strings of its own
		id := Identity{Space: "scsi", Vendor: KnownText("ATA")}
		if s.Device.Model.Known {
			m := s.Device.Model.trimmed()
			id.Product = KnownText(m[:min(16, len(m))])
		}
		return id
	}
	return Identity{}
}

// ataView is an ATA identity as far as it is known: whole strings, or the cut
// ones that SAT shows in INQUIRY.
type ataView struct {
	space            Truth
	got, why         string
	wholeModel       Text
	wholeFirmware    Text
	product          Text // PRODUCT IDENTIFICATION of a vendor ATA device
	revision         Text // its PRODUCT REVISION LEVEL
	modelCut, fwPart bool
	blanks           int // that end a product taken for the whole model
}

func (s *Subject) ataView() ataView {
	v := ataView{}
	inq := s.SCSI
	if inq.Space == "" && s.Device.Space == "scsi" {
		inq = s.Device
	}
	isATA := inq.Vendor.Known && inq.Vendor.trimmed() == "ATA"
	if isATA {
		v.product, v.revision = inq.Product, inq.Revision
	}
	switch {
	case s.Device.Space == "ata":
		v.space, v.got = True, "ata"
		v.wholeModel, v.wholeFirmware = s.Device.Model, s.Device.Firmware
	case isATA:
		v.space, v.got = True, "scsi vendor ATA"
	case inq.Vendor.Known:
		v.space, v.got = False, "scsi"
	default:
		v.space, v.got, v.why = s.spaceTruth("ata", false)
	}
	if !v.wholeModel.Known && v.product.Known {
		// Whole where padding shows the end, cut where all 16 are used.
		if p := v.product.S; len(p) < 16 || strings.HasSuffix(p, " ") || strings.HasSuffix(p, "\x00") {
			v.wholeModel = v.product
			if p = strings.TrimRight(p, " "); !strings.HasSuffix(p, "\x00") {
				v.blanks = max(0, 16-len(p))
			}
		} else {
			v.modelCut = true
		}
	}
	// libata writes n/a where the part it would show starts with a blank.
	if rev := v.revision.trimmed(); !v.wholeFirmware.Known && v.revision.Known && rev != "" && rev != "n/a" {
		v.fwPart = true
	}
	return v
}

// modelTruth asks one pattern about a model, whole or cut.
func (v ataView) modelTruth(pat Pattern) Truth {
	if !v.wholeModel.Known {
		return pat.matchPrefix(v.product.trimmed())
	}
	m := v.wholeModel.trimmed()
	t := truthOf(pat.Match(m))
	if t == False && v.blanks > 0 && pat.goesOn(m, v.blanks) {
		// "Samsung SSD 850 EVO" has a blank where the cut is.
		return Unknown
	}
	return t
}

func (v ataView) model(want Patterns) Predicate {
	p := Predicate{Key: "device.model", Want: want.String(), Truth: Unknown, Why: WhyNoIdentity}
	switch {
	case v.wholeModel.Known:
		p.Got = v.wholeModel.trimmed()
	case v.modelCut:
		p.Got = v.product.trimmed() + "..."
	default:
		return p
	}
	p.Truth, p.Why = False, ""
	for _, pat := range want {
		p.Truth = max(p.Truth, v.modelTruth(pat))
	}
	if p.Truth == Unknown {
		p.Why = WhyIdentityCut
	}
	return p
}

func (v ataView) firmware(want Firmware) Predicate {
	if v.wholeFirmware.Known || !v.fwPart {
		return want.predicate("device.firmware", v.wholeFirmware)
	}
	rev := v.revision.trimmed()
	tail := strings.TrimRight(v.revision.S, " \x00") // a blank in front stands inside the firmware
	p := Predicate{Key: "device.firmware", Want: want.String(), Got: "..." + rev, Truth: False}
	if want.Any != "" {
		p.Truth = True
		return p
	}
	for _, pat := range want.Patterns {
		switch lit, isLit := pat.Literal(); {
		case isLit && len(lit) <= 4:
			if lit == rev {
				p.Truth, p.Why = True, whyInferred
			}
		case pat.Match(rev):
			// A short firmware shows whole; a long one only its end.
			p.Truth = max(p.Truth, max(Unknown, pat.matchTail(4, tail)))
		default:
			p.Truth = max(p.Truth, pat.matchTail(4, tail))
		}
	}
	if want.listed && p.Truth == False {
		p.Truth = Unknown // in neither list, as far as it shows
	}
	if p.Truth == Unknown {
		p.Why = WhyIdentityCut
	}
	return p
}

func (p Patterns) match(s string) Truth {
	for _, pat := range p {
		if pat.Match(s) {
			return True
		}
	}
	return False
}

// predicate compares a whole firmware or revision.
func (f Firmware) predicate(key string, got Text) Predicate {
	p := Predicate{Key: key, Want: f.String()}
	if f.Any != "" {
		p.Truth, p.Got = True, got.trimmed()
		return p
	}
	if !got.Known {
		p.Truth, p.Why = Unknown, WhyNoIdentity
		return p
	}
	p.Got = got.trimmed()
	p.Truth, p.Why = f.answer(p.Got)
	return p
}

func appendText(preds []Predicate, key string, want Patterns, got Text, prefix bool) []Predicate {
	if len(want) == 0 {
		return preds
	}
	p := Predicate{Key: key, Want: want.String()}
	switch {
	case !got.Known:
		p.Truth, p.Why = Unknown, WhyNoIdentity
	case prefix:
		p.Want += "*"
		p.Got = got.trimmed()
		for _, pat := range want {
			if strings.HasPrefix(p.Got, strings.TrimSpace(pat.text)) {
				p.Truth = True
			}
		}
	default:
		p.Got = got.trimmed()
		p.Truth = want.match(p.Got)
	}
	return append(preds, p)
}

func appendHex(preds []Predicate, key, want, got string) []Predicate {
	if want == "" {
		return preds
	}
	p := Predicate{Key: key, Want: want, Got: got, Truth: truthOf(strings.EqualFold(want, got))}
	if got == "" {
		p.Truth, p.Why = Unknown, WhyNoIdentity
	}
	return append(preds, p)
}

// mapText looks a key up in a map where a missing key is unknown.
func mapText(m map[string]string, key string) Text {
	s, ok := m[key]
	return Text{S: s, Known: ok}
}

func (a *AdapterSpec) predicates(preds []Predicate, sub *Subject) []Predicate {
	if len(a.PCI) > 0 {
		got, known := sub.Adapter["pci"]
		p := Predicate{Key: "adapter.pci", Want: strings.Join(a.PCI, " | "), Got: got, Truth: False}
		if !known {
			p.Truth, p.Why = Unknown, "adapter not read"
		}
		for _, want := range a.PCI {
			if known {
				p.Truth = max(p.Truth, matchPCI(want, got))
			}
		}
		if known && p.Truth == Unknown {
			p.Why = "PCI subsystem not read"
		}
		preds = append(preds, p)
	}
	if a.Class != "" {
		p := Predicate{Key: "adapter.class", Want: a.Class, Truth: Unknown, Why: "adapter not read"}
		if got, ok := sub.Adapter["class"]; ok {
			p.Got = got
			if p.Truth = matchClass(a.Class, got); p.Truth == Unknown {
				p.Why = "PCI programming interface not read"
			} else {
				p.Why = ""
			}
		}
		preds = append(preds, p)
	}
	for _, f := range [...]struct {
		name, key, why string
		want           Patterns
	}{
		{"driver", "adapter.driver", "adapter driver not read", a.Driver},
		{"name", "adapter.name", "adapter name not read", a.Name},
		{"revision", "adapter.revision", "adapter revision not read", a.Revision},
	} {
		if len(f.want) == 0 {
			continue
		}
		preds = appendText(preds, f.key, f.want, mapText(sub.Adapter, f.name), false)
		if p := &preds[len(preds)-1]; p.Truth == Unknown {
			p.Why = f.why
		}
	}
	if !a.Firmware.IsZero() {
		preds = append(preds, a.Firmware.predicate("adapter.firmware", mapText(sub.Adapter, "firmware")))
	}
	return preds
}

// matchClass compares a PCI class, six hexadecimal digits with `?` for any one
// digit. got may have 0x in front, as sysfs writes it, and lack the last two
// digits, the programming interface, as lspci does.
func matchClass(want, got string) Truth {
	want, got = strings.ToLower(want), strings.TrimPrefix(strings.ToLower(got), "0x")
	pat, err := CompilePattern(want)
	switch {
	case err != nil:
		return False
	case len(got) == 4 && len(want) == 6 && want[4:] == "??":
		return truthOf(pat.Match(got + "00"))
	case len(got) == 4:
		return pat.matchPrefix(got)
	}
	return truthOf(pat.Match(got))
}

// matchPCI compares "vvvv:dddd[:ssss:ssss]", `*` for any part, parts left off
// at the end for any. A part the subject does not show is unknown.
func matchPCI(want, got string) Truth {
	w := strings.Split(strings.ToLower(want), ":")
	g := strings.Split(strings.ToLower(got), ":")
	t := True
	for i, part := range w {
		switch {
		case got == "": // known to have none
			return False
		case part == "*":
		case i >= len(g) || g[i] == "" || g[i] == "*":
			t = min(t, Unknown)
		case part != g[i]:
			return False
		}
	}
	return t
}

func (u *USBSpec) predicates(preds []Predicate, sub *Subject) []Predicate {
	first := len(preds)
	vid, okV := sub.USB["vid"]
	notUSB := okV && vid == "" || sub.USB == nil && (sub.Path == "libata" || sub.Path == "nvme-pci" || sub.Path == "virtio-blk" || sub.Path == "other")
	if len(u.ID) > 0 {
		p := Predicate{Key: "usb.id", Want: strings.Join(u.ID, " | "), Truth: False}
		pid, okP := sub.USB["pid"]
		switch {
		case notUSB:
		case !okV:
			p.Truth, p.Why = Unknown, "USB ids not read"
		default:
			p.Got = vid + ":" + pid
			if !okP {
				p.Got = vid + ":*"
			}
			for _, want := range u.ID {
				p.Truth = max(p.Truth, matchPCI(want, p.Got))
			}
			if p.Truth == Unknown {
				p.Why = "USB product id not read"
			}
		}
		preds = append(preds, p)
	}
	if u.BCD != "" {
		p := Predicate{Key: "usb.bcd", Want: u.BCD, Truth: Unknown, Why: "bcdDevice not read"}
		if got, ok := sub.USB["bcd"]; ok {
			p.Got = got
			lo, hi, err := parseBCDRange(u.BCD)
			n, err2 := parseBCD(got)
			if err == nil && err2 == nil {
				p.Truth, p.Why = truthOf(lo <= n && n <= hi), ""
			} else {
				p.Why = "bcdDevice is not four hexadecimal digits"
			}
		}
		preds = append(preds, p)
	}
	preds = appendText(preds, "usb.manufacturer", u.Manufacturer, mapText(sub.USB, "manufacturer"), false)
	preds = appendText(preds, "usb.product", u.Product, mapText(sub.USB, "product"), false)
	if u.Speed != "" {
		p := Predicate{Key: "usb.speed", Want: u.Speed, Truth: Unknown, Why: "USB speed not read"}
		if got, ok := sub.USB["speed"]; ok {
			p.Got = got
			p.Truth, p.Why = truthOf(got == u.Speed || usbSpeeds[got] == u.Speed), ""
		}
		preds = append(preds, p)
	}
	if notUSB {
		for i := first; i < len(preds); i++ {
			preds[i].Truth, preds[i].Got, preds[i].Why = False, sub.Path, ""
		}
	}
	return preds
}

// usbSpeeds names the speeds of the sysfs attribute, in Mb/s.
var usbSpeeds = map[string]string{"1.5": "low", "12": "full", "480": "high", "5000": "super", "10000": "super-plus", "20000": "super-plus"}

// parseBCD reads bcdDevice as "0100" or "1.00".
func parseBCD(s string) (uint16, error) {
	if major, minor, ok := strings.Cut(s, "."); ok {
		if len(major) > 2 || len(minor) != 2 {
			return 0, fmt.Errorf("bcdDevice %q: want four hexadecimal digits", s)
		}
		s = fmt.Sprintf("%02s%s", major, minor)
	}
	n, err := strconv.ParseUint(strings.TrimSpace(s), 16, 16)
	if err != nil {
		return 0, fmt.Errorf("bcdDevice %q: want four hexadecimal digits", s)
	}
	return uint16(n), nil
}

func parseBCDRange(s string) (lo, hi uint16, err error) {
	a, b, ok := strings.Cut(s, "-")
	if !ok {
		b = a
	}
	if lo, err = parseBCD(a); err != nil {
		return 0, 0, err
	}
	if hi, err = parseBCD(b); err != nil {
		return 0, 0, err
	}
	if lo > hi {
		return 0, 0, fmt.Errorf("bcd %q: empty range", s)
	}
	return lo, hi, nil
}

func (m *MachineSpec) predicates(preds []Predicate, sub *Subject) []Predicate {
	first := len(preds)
	preds = appendText(preds, "machine.vendor", m.Vendor, mapText(sub.Machine, "vendor"), false)
	preds = appendText(preds, "machine.product", m.Product, mapText(sub.Machine, "product"), false)
	preds = appendText(preds, "machine.board", m.Board, mapText(sub.Machine, "board"), false)
	for i := first; i < len(preds); i++ {
		if preds[i].Truth == Unknown {
			preds[i].Why = "machine not read" // says nothing of the device's own name
		}
	}
	if m.BIOSBefore != "" {
		preds = append(preds, Predicate{Key: "machine.bios", Want: "before " + m.BIOSBefore, Got: sub.Machine["bios"],
			Truth: Unknown, Why: "BIOS versions have no common order; compare by hand"})
	}
	return preds
}

func (s *StackSpec) predicates(preds []Predicate, sub *Subject) []Predicate {
	ask := func(key string, want []string, got []string) {
		if len(want) == 0 {
			return
		}
		p := Predicate{Key: "stack." + key, Want: strings.Join(want, " | "), Got: strings.Join(got, " ")}
		if !sub.Stack.Known {
			p.Truth, p.Why = Unknown, "stack not read"
		} else {
			p.Truth = truthOf(slices.ContainsFunc(want, func(w string) bool { return slices.Contains(got, w) }))
		}
		preds = append(preds, p)
	}
	stacked := sub.isStacked()
	own := func(key string, want []string, got string) {
		if len(want) == 0 {
			return
		}
		p := Predicate{Key: "stack." + key, Want: strings.Join(want, " | "), Got: got}
		switch {
		case stacked == False:
			p.Got = sub.Path
		case stacked == Unknown:
			p.Truth, p.Why = Unknown, "stack not read"
		case got == "" && key == "target" && sub.Stack.Kind == "dm":
			p.Truth, p.Why = Unknown, "sysfs does not name the target; dmsetup table does"
		default:
			p.Truth = truthOf(slices.Contains(want, got))
		}
		preds = append(preds, p)
	}
	own("kind", s.Kind, sub.Stack.Kind)
	own("target", s.Target, sub.Stack.Target)
	var above []string
	for _, a := range sub.Stack.Above {
		above = append(above, a.Kind)
		if a.Target != "" {
			above = append(above, a.Kind+"-"+a.Target)
		}
	}
	ask("over", s.Over, above)
	var levels []string
	for _, l := range s.MDLevel {
		levels = append(levels, "raid"+strconv.Itoa(l))
	}
	own("md_level", levels, sub.Stack.Level)
	return preds
}

// isStacked answers whether the device may be a map or an array of its own: one
// with a path of its own to a controller, or with a disk's name, is none, also
// where nobody read what lies around it.
func (s *Subject) isStacked() Truth {
	switch {
	case s.Stack.Known:
		return True // kind, target and level say what it is, or ""
	case s.Path != "" && s.Path != "other", s.Device.Space != "", s.SCSI.Space != "":
		return False
	}
	return Unknown
}

// kindTruth answers for the kinds of an arm; none are every kind.
func kindTruth(want Strings, sub *Subject) Truth {
	switch stacked := sub.isStacked(); {
	case len(want) == 0:
		return True
	case stacked != True:
		return stacked
	}
	return truthOf(slices.Contains(want, sub.Stack.Kind))
}

const whyAsk = "only you can answer this"

func (c *Condition) predicate(sub *Subject) Predicate {
	p := Predicate{Key: c.key, Want: c.want, Truth: Unknown, Why: "not read"}
	if p.Key == "" {
		p.Key, p.Want = c.texts()
	}
	if c.Ask != "" {
		p.Why = whyAsk
		return p
	}
	if c.How != "" {
		p.Why = "not read; " + c.How
	}
	got, ok := sub.fact(c.Key)
	if !ok {
		return p
	}
	p.Got = got
	if t, ok := c.compare(got); ok {
		p.Truth, p.Why = truthOf(t), ""
	}
	return p
}

// compareCmdline compares a pattern with every parameter of a command line: ==
// where one fits, != where none does.
func compareCmdline(got, op, want string) (holds, ok bool) {
	pat, err := CompilePattern(want)
	if err != nil || op != "==" && op != "!=" {
		return false, false
	}
	fits := slices.ContainsFunc(kernel.Parameters(got), func(arg [2]string) bool {
		return pat.Match(arg[0]) || arg[1] != "" && pat.Match(arg[0]+"="+arg[1])
	})
	return fits == (op == "=="), true
}

// moduleParam starts the key of a condition about a parameter of a module.
const moduleParam = "module_param:"

// factSettings are the keys of conditions whose value stands among settings
// under the name of its file.
var factSettings = map[string]string{"lpm": "link_power_management_policy", "wcache": "write_cache", "md_degraded": "degraded", "md_layout": "layout"}

// deniedBy reports whether a condition of the entry does not hold, which is
// known sooner than all that Match tells.
func (e *Entry) deniedBy(sub *Subject) bool {
	for i := range e.Conditions {
		c := &e.Conditions[i]
		if c.Ask != "" || c.Value == nil {
			continue
		}
		if got, ok := sub.fact(c.Key); ok {
			if holds, ok := c.compare(got); ok && !holds {
				return true
			}
		}
	}
	return false
}

// compare answers for a fact; ok is false where the two do not compare.
func (c *Condition) compare(got string) (holds, ok bool) {
	want := ""
	if c.Value != nil {
		want = c.Value.Text
	}
	if c.Key == "cmdline" {
		return compareCmdline(got, c.Op, want)
	}
	return compareFact(got, c.Op, want)
}

// fact looks up a condition key: where the subject has a place for it, else
// among settings and limits, which an example can always give.
func (s *Subject) fact(key string) (string, bool) {
	var own Text
	switch key {
	case "path":
		own = Text{S: s.Path, Known: s.Path != ""}
	case "transport":
		own = Text{S: s.Transport, Known: s.Transport != ""}
	case "driver":
		own = mapText(s.Adapter, "driver")
	case "md_level":
		own = Text{S: s.Stack.Level, Known: s.Stack.Level != ""}
	case "dm_target":
		own = Text{S: s.Stack.Target, Known: s.Stack.Target != ""}
	case "page_size", "arch":
		own = mapText(s.Machine, key)
	case "cmdline":
		if s.Cmdline != nil {
			own = KnownText(*s.Cmdline)
		}
	case "io_kib":
		if v, ok := s.Limits["max_sectors_kb"]; ok {
			own = KnownText(v.String())
		}
	case "scheduler": // the one in force stands in brackets
		if v, ok := s.Settings[key]; ok {
			own = KnownText(v.String())
			if _, rest, ok := strings.Cut(own.S, "["); ok {
				own.S, _, _ = strings.Cut(rest, "]")
			}
		}
	default:
		if name, ok := strings.CutPrefix(key, moduleParam); ok {
			own = mapText(s.Params, name)
		} else if v, ok := s.Settings[factSettings[key]]; ok {
			own = KnownText(v.String())
		}
	}
	if own.Known {
		return own.S, true
	}
	if v, ok := s.Setting(key); ok {
		return v.String(), true
	}
	if v, ok := s.Limits[key]; ok {
		return v.String(), true
	}
	return "", false
}

func compareFact(got, op, want string) (holds, ok bool) {
	g, errG := strconv.ParseFloat(got, 64)
	w, errW := strconv.ParseFloat(want, 64)
	numeric := errG == nil && errW == nil
	switch op {
	case "==":
		return got == want || numeric && g == w, true
	case "!=":
		return got != want && !(numeric && g == w), true
	case ">=":
		return g >= w, numeric
	case ">":
		return g > w, numeric
	case "<=":
		return g <= w, numeric
	case "<":
		return g < w, numeric
	}
	return false, false
}
