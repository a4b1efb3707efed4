package checker

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/probe/klog"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// What the machine itself shows of the kernel's quirks decides over what the
// kernel's version lets expect: a vendor's kernel has rows of its own, and a row
// can be listed and not applied. Each source is about the flags that it names
// and about no other:
//
//	device/blacklist        every flag of the SCSI device list in force
//	ata_device/*/trim       NO_NCQ_TRIM and NOTRIM
//	nvme/*/quirks           every flag of the NVMe driver in force (7.x)
//	the driver uas          IGNORE_UAS is not applied
//	libata.force=           what it sets or takes away on the disk's port
//	usb-storage.quirks=     the flags of the device that it replaces
//	the kernel's log        what libata and usb-storage say they apply

// Protection is one of the kernel's quirks that the machine shows to be applied
// to a device, or not to be.
type Protection struct {
	Flag    string `json:"flag"` // the kernel's name for it in this release
	Applied bool   `json:"applied"`
	By      string `json:"by"`     // kernel, setting
	Source  string `json:"source"` // file relative to the root, or the log and its line
	Text    string `json:"text"`
}

// liveOf is what the tree and the command line show of a device, and then what
// a log does.
func liveOf(inv *probe.Inventory, d *probe.Device, log *quirks.Live) *quirks.Live {
	l := &quirks.Live{}
	if inv.Kernel.Ok() {
		l.On = inv.Kernel.V
	}
	forced := forcedOf(inv, d)
	addTrim(l, d, forced)
	addBlacklist(l, inv, d)
	addNVMe(l, inv, d)
	addUSB(l, inv, d)
	for _, f := range forced {
		what := "sets it"
		if !f.On {
			what = "takes it away"
		}
		addFlag(l, "ATA_QUIRK_"+f.Flag, f.On, bySetting, inv.Cmdline.Source, "libata.force="+f.Item+" "+what)
	}
	if log != nil {
		l.Flags = append(l.Flags, log.Flags...)
		l.Whole = append(l.Whole, log.Whole...)
	}
	l.Settings = madeByKernel(d)
	if len(l.Flags)+len(l.Whole)+len(l.Settings) == 0 {
		return nil
	}
	return l
}

// madeByKernel are the settings of a libata disk that follow from the disk and
// from the kernel's quirks: a queue depth of 1 is without NCQ
// (drivers/ata/libata-sata.c, ata_change_queue_depth).
func madeByKernel(d *probe.Device) map[string]quirks.Value {
	if d.Path != "libata" {
		return nil
	}
	out := map[string]quirks.Value{}
	set := func(name string, on bool) {
		out[name] = quirks.TextValue("off")
		if on {
			out[name] = quirks.TextValue("on")
		}
	}
	if depth := d.Uint("device/queue_depth"); depth.Ok() {
		set("ncq", depth.V > 1)
	}
	if trim := d.Attr("ata_device/trim"); trim.Ok() {
		set("queued_trim", trim.V == "queued")
	}
	return out
}

// Who applies a quirk.
const (
	byKernelItself = "kernel"
	bySetting      = "setting"
)

func addFlag(l *quirks.Live, flag string, applied bool, by, source, text string) {
	l.Flags = append(l.Flags, quirks.LiveFlag{Flag: flag, Applied: applied, By: by, Source: source, Text: text})
}

// addTrim reads ata_device/*/trim (drivers/ata/libata-transport.c,
// show_ata_dev_trim), which asks NOTRIM before NO_NCQ_TRIM.
func addTrim(l *quirks.Live, d *probe.Device, forced []kernel.Forced) {
	const queued, all = "NO_NCQ_TRIM", "NOTRIM"
	v := d.Attr("ata_device/trim")
	if !v.Ok() {
		return
	}
	add := func(flag string, applied bool) {
		by := byKernelItself
		if applied && slices.ContainsFunc(forced, func(f kernel.Forced) bool { return f.Flag == flag && f.On }) {
			by = bySetting
		}
		addFlag(l, "ATA_QUIRK_"+flag, applied, by, v.Source, "trim is "+v.V)
	}
	switch v.V {
	case "queued", "unqueued":
		add(queued, false)
		add(all, false)
	case "forced_unqueued":
		add(queued, true)
		add(all, false)
	case "forced_unsupported": // and NO_NCQ_TRIM is hidden behind it
		add(all, true)
	}
}

// addBlacklist reads device/blacklist: the flags of the row that fits, else
// those that the host driver gave (drivers/scsi/scsi_devinfo.c,
// scsi_get_device_flags_keyed; scsi_sysfs.c, sdev_show_blacklist). A bit that
// the kernel has no name for may be any.
func addBlacklist(l *quirks.Live, inv *probe.Inventory, d *probe.Device) {
	list := d.Blacklist
	if !list.Ok() {
		return
	}
	by := byKernelItself
	if inv.Cmdline.Ok() && namedInDevFlags(inv.Cmdline.V, d) {
		by = bySetting
	}
	whole := true
	for _, name := range list.V {
		if strings.HasPrefix(name, "INVALID_BIT") {
			whole = false
			continue
		}
		addFlag(l, "BLIST_"+name, true, by, list.Source, "blacklist lists "+name)
	}
	if whole {
		l.Whole = append(l.Whole, quirks.LiveList{Prefix: "BLIST_", Source: list.Source, Text: "blacklist does not list it"})
	}
}

// namedInDevFlags reports whether scsi_mod.dev_flags= names a device: such an
// item stands before the kernel's own rows (scsi_init_devinfo), and fits the
// whole vendor and product.
func namedInDevFlags(cmdline string, d *probe.Device) bool {
	list, ok := kernel.Parameter(cmdline, "scsi_mod", "dev_flags")
	if !ok || !d.Vendor.Ok() || !d.Product.Ok() {
		return false
	}
	trim := func(s string) string { return strings.Trim(s, " \x00") }
	for item := range strings.SplitSeq(list, ",") {
		f := strings.SplitN(item, ":", 3)
		if len(f) == 3 && trim(f[0]) == trim(d.Vendor.V) && trim(f[1]) == trim(d.Product.V) {
			return true
		}
	}
	return false
}

// addNVMe reads the controller's quirks, and where the kernel does not show
// them, the parameter that sets them (7.0; drivers/nvme/host/pci.c,
// quirks_param_set).
func addNVMe(l *quirks.Live, inv *probe.Inventory, d *probe.Device) {
	param := inv.Param("nvme.quirks")
	set := map[string]bool{}
	if ids := strings.Split(d.Adapter.PCI, ":"); param.Ok() && strings.HasPrefix(d.Path, "nvme") && len(ids) >= 2 {
		set = nvmeQuirks(param.V, ids[0], ids[1])
	}
	if list := d.NVMeQuirks; list.Ok() {
		whole := true
		for _, name := range list.V {
			if name == "unknown" {
				whole = false
				continue
			}
			by := byKernelItself
			if set[name] {
				by = bySetting
			}
			addFlag(l, "NVME_QUIRK_"+strings.ToUpper(name), true, by, list.Source, "quirks lists "+name)
		}
		if whole {
			l.Whole = append(l.Whole, quirks.LiveList{Prefix: "NVME_QUIRK_", Source: list.Source, Text: "quirks does not list it"})
		}
		return
	}
	for _, name := range slices.Sorted(maps.Keys(set)) {
		verb := "sets"
		if !set[name] {
			verb = "takes away"
		}
		addFlag(l, "NVME_QUIRK_"+strings.ToUpper(name), set[name], bySetting, param.Source, fmt.Sprintf("nvme.quirks= %s %s", verb, name))
	}
}

// nvmeQuirks reads VID:DID:NAME,^NAME-... for a device: whether each name is
// set or, with ^, taken away. The first item of a device counts
// (detect_dynamic_quirks).
func nvmeQuirks(list, vid, did string) map[string]bool {
	out := map[string]bool{}
	hex := func(s string) (uint64, bool) { n, err := strconv.ParseUint(s, 16, 16); return n, err == nil }
	wantV, okV := hex(vid)
	wantD, okD := hex(did)
	for item := range strings.SplitSeq(strings.TrimSpace(list), "-") {
		f := strings.SplitN(item, ":", 4)
		if len(f) != 3 || !okV || !okD {
			continue
		}
		v, ok1 := hex(f[0])
		id, ok2 := hex(f[1])
		if !ok1 || !ok2 || v != wantV || id != wantD {
			continue
		}
		for name := range strings.SplitSeq(f[2], ",") {
			if rest, off := strings.CutPrefix(name, "^"); off {
				out[rest] = false
			} else if _, taken := out[name]; !taken && name != "" {
				out[name] = true
			}
		}
		return out
	}
	return out
}

// usbFlags are the flags of usb-storage by the letter of its parameter
// (drivers/usb/storage/usb.c, usb_stor_adjust_quirks) and by bit
// (include/linux/usb_usual.h).
var usbFlags = []struct {
	letter byte // 0: none
	bit    uint
	name   string
}{
	{'s', 0, "SINGLE_LUN"}, {0, 1, "NEED_OVERRIDE"}, {0, 2, "SCM_MULT_TARG"}, {0, 3, "FIX_INQUIRY"}, {'c', 4, "FIX_CAPACITY"}, {'r', 5, "IGNORE_RESIDUE"},
	{0, 6, "BULK32"}, {'l', 7, "NOT_LOCKABLE"}, {0, 8, "GO_SLOW"}, {'w', 9, "NO_WP_DETECT"}, {'m', 10, "MAX_SECTORS_64"}, {'i', 11, "IGNORE_DEVICE"},
	{'h', 12, "CAPACITY_HEURISTICS"}, {0, 13, "MAX_SECTORS_MIN"}, {0, 14, "BULK_IGNORE_TAG"}, {'a', 15, "SANE_SENSE"}, {'o', 16, "CAPACITY_OK"}, {'b', 17, "BAD_SENSE"},
	{'d', 18, "NO_READ_DISC_INFO"}, {'e', 19, "NO_READ_CAPACITY_16"}, {'n', 20, "INITIAL_READ10"}, {'p', 21, "WRITE_CACHE"}, {0, 22, "NEEDS_CAP16"}, {'u', 23, "IGNORE_UAS"},
	{0, 24, "BROKEN_FUA"}, {'t', 25, "NO_ATA_1X"}, {'f', 26, "NO_REPORT_OPCODES"}, {'g', 27, "MAX_SECTORS_240"}, {'j', 28, "NO_REPORT_LUNS"}, {'y', 29, "ALWAYS_SYNC"},
	{'k', 30, "NO_SAME"}, {0, 31, "SENSE_AFTER_SYNC"},
}

// addUSB reads which driver took a USB disk, and usb-storage.quirks=. That can be
// written at any time and holds for devices that are plugged in later, so only
// what the command line gave, and nothing has changed, is known to hold. Flags
// with a letter are replaced, the others stay.
func addUSB(l *quirks.Live, inv *probe.Inventory, d *probe.Device) {
	if d.Path != "uas" && d.Path != "usb-storage" {
		return
	}
	if d.Path == "uas" {
		addFlag(l, "US_FL_IGNORE_UAS", false, byKernelItself, d.DevicePath(), "the driver is uas")
	}
	if !inv.Cmdline.Ok() {
		return
	}
	list, ok := kernel.Parameter(inv.Cmdline.V, "usb-storage", "quirks")
	now := inv.Param("usb_storage.quirks")
	letters, named := usbLetters(list, d.USB["vid"], d.USB["pid"])
	if !ok || !named || now.Ok() && strings.TrimSpace(now.V) != list {
		return
	}
	for _, f := range usbFlags {
		if f.letter == 0 || f.name == "IGNORE_UAS" && d.Path == "uas" {
			continue
		}
		applied := strings.IndexByte(letters, f.letter) >= 0
		text := "usb-storage.quirks= gives the device " + strconv.Quote(letters)
		addFlag(l, "US_FL_"+f.name, applied, bySetting, inv.Cmdline.Source, text)
	}
}

// usbLetters are the flags that VID:PID:FLAGS,... gives a device, in lower case.
// The first item of a device counts.
func usbLetters(list, vid, pid string) (letters string, ok bool) {
	v, errV := strconv.ParseUint(vid, 16, 16)
	p, errP := strconv.ParseUint(pid, 16, 16)
	if errV != nil || errP != nil {
		return "", false
	}
	for item := range strings.SplitSeq(list, ",") {
		f := strings.SplitN(item, ":", 3)
		if len(f) != 3 {
			continue
		}
		iv, err1 := strconv.ParseUint(f[0], 16, 16)
		ip, err2 := strconv.ParseUint(f[1], 16, 16)
		if err1 == nil && err2 == nil && iv == v && ip == p {
			return strings.ToLower(f[2]), true
		}
	}
	return "", false
}

// forcedOf is what libata.force= on the command line does to a disk's flags.
func forcedOf(inv *probe.Inventory, d *probe.Device) []kernel.Forced {
	if !inv.Cmdline.Ok() || !inv.Kernel.Ok() || d.Path != "libata" {
		return nil
	}
	at, ok := kernel.AtOf(d.Adapter.ATAPort, d.HCTL())
	list, given := kernel.Parameter(inv.Cmdline.V, "libata", "force")
	if !ok || !given {
		return nil
	}
	return kernel.ForcedFlags(list, at, inv.Kernel.V)
}

// Proofs are what a log shows of the quirks that the running kernel applies, by
// the name of the device.
type Proofs map[string]*quirks.Live

// ataTokens are libata's words for its flags (drivers/ata/libata-core.c,
// ata_quirk_names, in 6.12 to 7.3).
var ataTokens = map[string]string{
	"diagnostic": "DIAGNOSTIC", "nodma": "NODMA", "noncq": "NONCQ", "brokenhpa": "BROKEN_HPA", "disable": "DISABLE", "hpasize": "HPA_SIZE", "ivb": "IVB",
	"stuckerr": "STUCK_ERR", "bridgeok": "BRIDGE_OK", "atapimod16dma": "ATAPI_MOD16_DMA", "firmwarewarn": "FIRMWARE_WARN", "1.5gbps": "1_5_GBPS", "nosetxfer": "NOSETXFER",
	"brokenfpdmaaa": "BROKEN_FPDMA_AA", "dumpid": "DUMP_ID", "maxseclba48": "MAX_SEC_LBA48", "atapidmadir": "ATAPI_DMADIR", "noncqtrim": "NO_NCQ_TRIM", "nolpm": "NOLPM",
	"wdbrokenlpm": "WD_BROKEN_LPM", "zeroaftertrim": "ZERO_AFTER_TRIM", "nodmalog": "NO_DMA_LOG", "notrim": "NOTRIM", "maxsec": "MAX_SEC", "maxsec128": "MAX_SEC_128",
	"maxsec1024": "MAX_SEC_1024", "maxsec8191": "MAX_SEC_8191", "maxtrim128m": "MAX_TRIM_128M", "noncqonati": "NO_NCQ_ON_ATI", "nolpmonati": "NO_LPM_ON_ATI",
	"nolpmonatiandamd": "NO_LPM_ON_ATI_AND_AMD", "noiddevlog": "NO_ID_DEV_LOG", "nologdir": "NO_LOG_DIR", "nofua": "NO_FUA",
}

// LogProofs reads from a log what the running kernel says it applies. all is the
// inventory of the whole machine. Lines of another kernel, and of a boot that
// cannot be told to be under this one, prove nothing.
//
// A line of libata's table is about every disk of that model and firmware. What
// is done to one place (libata.force=, usb-storage) counts where the log tells
// of one boot alone and which disk that was.
func LogProofs(all *probe.Inventory, in LogInput) Proofs {
	if !all.Kernel.Ok() || in.Log == nil {
		return nil
	}
	p := Proofs{}
	of := func(d *probe.Device) *quirks.Live {
		if p[d.Name] == nil {
			p[d.Name] = &quirks.Live{}
		}
		return p[d.Name]
	}
	thisBoot := in.Log.Boots == 1 && (in.Live && in.Log.Kernel == "" || underKernel(all, in.Log.Kernel))
	if thisBoot {
		t := newTier(all, in)
		for _, s := range in.Log.Symptoms {
			if s.Kind != klog.Quirk {
				continue
			}
			if d, tie := t.tie(s.Subject); d != nil && tie.certain {
				addLine(of(d), d, s, in.Source)
			}
		}
	}
	tells := map[int]bool{} // boots of which some line tells quirks
	for _, a := range in.Log.ATA {
		tells[a.Boot] = tells[a.Boot] || a.Listed
	}
	prints := kernel.Carries([]kernel.Row{{Tree: "mainline", Since: "6.12"}}, all.Kernel.V)
	for _, a := range in.Log.ATA {
		last := in.Live && a.Boot == in.Log.Boots && a.Kernel == ""
		silent := !a.Listed && (!a.Found || !a.Alone || !tells[a.Boot] && (prints.Truth != quirks.True || prints.Low))
		if !last && !underKernel(all, a.Kernel) || silent || a.Model == "" {
			continue
		}
		for _, d := range all.Devices {
			if d.Path == "libata" && sameNames(d, a) {
				addTable(of(d), a, in.Source)
			}
		}
	}
	return p
}

// underKernel reports whether a boot began with the line of the running kernel.
func underKernel(inv *probe.Inventory, banner string) bool {
	r, err := kernel.ParseProcVersion(banner)
	return err == nil && r.Raw == inv.Kernel.V.Raw && r.Upstream() == inv.Kernel.V.Upstream()
}

func sameNames(d *probe.Device, a klog.ATADevice) bool {
	trim := func(v probe.Value[string]) string { return strings.Trim(v.V, " \x00") }
	return d.ATAModel.Ok() && d.ATAFirmware.Ok() && trim(d.ATAModel) == a.Model && trim(d.ATAFirmware) == a.Firmware
}

func place(log string, at klog.Position) string { return fmt.Sprintf("%s, line %d", log, at.Line) }

// addTable takes libata's line about a model: the whole list of what the table
// has for it, as far as its words are known.
func addTable(l *quirks.Live, a klog.ATADevice, log string) {
	source := place(log, a.At)
	whole := !a.Cut
	for _, token := range a.Quirks {
		flag, ok := ataTokens[token]
		if whole = whole && ok; ok {
			addFlag(l, "ATA_QUIRK_"+flag, true, byKernelItself, source, a.Sample)
		}
	}
	text := "the kernel told no quirk of it: " + a.Sample
	if a.Listed {
		text = "not among what the kernel applies: " + a.Sample
	}
	if whole {
		l.Whole = append(l.Whole, quirks.LiveList{Prefix: "ATA_QUIRK_", Source: source, Text: text})
	}
}

// addLine takes a line about one place.
func addLine(l *quirks.Live, d *probe.Device, s klog.Symptom, log string) {
	source := place(log, s.Last)
	switch {
	case s.Layer == "libata" && d.Path == "libata":
		if value, ok := strings.CutPrefix(s.Detail, "libata.force="); ok {
			if flag, on, ok := kernel.ForceValue(value); ok {
				addFlag(l, "ATA_QUIRK_"+flag, on, bySetting, source, s.Sample)
			}
			return
		}
		switch s.Detail {
		case "nolpm":
			addFlag(l, "ATA_QUIRK_NOLPM", true, byKernelItself, source, s.Sample)
		case "bridge limits":
			addFlag(l, "ATA_QUIRK_BRIDGE_OK", false, byKernelItself, source, s.Sample)
		}
	case s.Layer == "usb-storage" && d.Path == "usb-storage":
		hex, ok := strings.CutPrefix(s.Detail, "usb-storage flags 0x")
		bits, err := strconv.ParseUint(hex, 16, 64)
		if !ok || err != nil {
			return
		}
		for _, f := range usbFlags {
			addFlag(l, "US_FL_"+f.name, bits&(1<<f.bit) != 0, byKernelItself, source, s.Sample)
		}
	}
}

// protection is the kernel's answer to an entry: the version's, unless the
// machine shows the entry's own flag to be applied or not to be. proof is then
// what shows it. All the flags of a line that covers the path must be shown not
// to be applied for that to count.
func protection(sub *quirks.Subject, e *quirks.Entry) (p quirks.Protection, proof *quirks.LiveFlag) {
	p = e.Protects(sub)
	var not *quirks.LiveFlag
	open := false
	for _, line := range e.FlagLines(sub.Path) {
		shown := false
		for _, name := range line.Names {
			f, ok := sub.Shows(name)
			switch {
			case !ok:
				open = true
			case f.Applied:
				p.Answer = kernel.Answer{Truth: quirks.True, Own: true, Why: proofText(f)}
				p.Flag, p.MaxSectors = spelt(f.Flag, sub.Kernel), line.MaxSectors
				return p, &f
			case !shown:
				shown, not = true, &f
			}
		}
	}
	if not == nil || open {
		return p, nil
	}
	p.Answer = kernel.Answer{Truth: quirks.False, Own: true, Why: "it does not apply " + spelt(not.Flag, sub.Kernel) + " to this device: " + proofText(*not)}
	return p, not
}

func proofText(f quirks.LiveFlag) string { return f.Text + " (" + f.Source + ")" }

// spelt is a flag's name in a release (6.12 renamed libata's).
func spelt(flag string, r kernel.Release) string {
	rest, ok := strings.CutPrefix(flag, "ATA_QUIRK_")
	before := r.Known() && (r.Major < 6 || r.Major == 6 && r.Minor < 12)
	if ok && before {
		return "ATA_HORKAGE_" + rest
	}
	return flag
}

// provedBy names a protection that the machine itself shows.
func provedBy(p quirks.Protection, proof *quirks.LiveFlag) *MitigatedBy {
	m := &MitigatedBy{Kind: proof.By, Scope: "all-commands", Pinned: true, Text: "the kernel applies its quirk " + p.Flag + ": " + proofText(*proof)}
	if proof.By == bySetting {
		m.Text = "a parameter makes the kernel apply " + p.Flag + ": " + proofText(*proof)
	}
	return m
}

// protections lists what is shown to be applied, and of the flags that the
// matching entries ask for what is shown not to be, by flag.
func protections(sub *quirks.Subject, matches []quirks.Match) []Protection {
	if sub.Live == nil || sub.Live.On != sub.Kernel {
		return nil
	}
	var out []Protection
	seen := map[string]bool{}
	add := func(f quirks.LiveFlag) {
		if !seen[f.Flag] {
			seen[f.Flag] = true
			out = append(out, Protection{Flag: spelt(f.Flag, sub.Kernel), Applied: f.Applied, By: f.By, Source: f.Source, Text: f.Text})
		}
	}
	for _, f := range sub.Live.Flags {
		if f, _ := sub.Shows(f.Flag); f.Applied || f.By == bySetting && !strings.HasPrefix(f.Flag, "US_FL_") { // the first that was taken down
			add(f)
		}
	}
	for _, m := range matches {
		for _, line := range m.Entry.FlagLines(sub.Path) {
			for _, name := range line.Names {
				if f, ok := sub.Shows(name); ok {
					add(f)
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b Protection) int { return cmp.Compare(a.Flag, b.Flag) })
	return out
}
