package capture

import (
	"encoding/hex"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/probe/ata"
	"github.com/quirkcheck/quirkcheck/probe/scsi"
)

// redactor replaces secrets. It goes through a capture twice: the first time
// it learns the secrets from the fields that hold them, the second time it
// finds them wherever else they stand.
type redactor struct {
	secrets map[string]*secret
	order   []*secret // as they were met
	next    map[Kind]int
	taken   map[string]bool // pseudonyms given
	present map[string]bool // words of the machine, lower case: none becomes a pseudonym
	dict    *dictionary     // nil the first time
	cleared int
	// collision names two files of one name, which cannot be.
	collision string
	paths     map[string]string
}

// usualHosts are names that say nothing about whose machine it is.
var usualHosts = []string{"localhost", "debian", "ubuntu", "fedora", "raspberrypi", "linux", "host", "server", "archlinux", "arch", "centos", "rocky", "almalinux", "opensuse",
	"kali", "nixos", "alpine", "gentoo", "pve", "proxmox", "truenas", "unraid", "(none)", "none", "vm", "guest", "rescue", "live", "test", "buildroot", "localdomain", "local", "lan", "amd64", "x86_64"}

func newRedactor(hosts []string) *redactor {
	r := &redactor{secrets: map[string]*secret{}, next: map[Kind]int{}, taken: map[string]bool{}, present: map[string]bool{}, paths: map[string]string{}}
	for _, h := range hosts {
		if h == "" || len(h) > 253 {
			continue
		}
		label, domain, _ := strings.Cut(h, ".")
		for _, name := range []string{h, label, domain} {
			if len(name) >= 2 && !slices.Contains(usualHosts, strings.ToLower(name)) {
				r.secret(KindHost, name)
			}
		}
	}
	return r
}

// redact returns the capture without its secrets.
func (r *redactor) redact(c *Capture) *Capture {
	r.look(c)
	r.pass(c)
	r.dict = r.dictionary(identities(c))
	r.cleared, r.collision = 0, ""
	clear(r.paths)
	return r.pass(c)
}

// look takes down what looks like a name in the machine, so that no pseudonym
// is by chance what another disk is called.
func (r *redactor) look(c *Capture) {
	words := func(text string) {
		for _, a := range reNetPseudonym.FindAllString(text, -1) {
			r.present[strings.ToLower(a)] = true
		}
		for i := 0; i < len(text); {
			j := i
			for j < len(text) && isWord(text[j]) {
				j++
			}
			if j-i >= 8 {
				w := strings.ToLower(text[i:j])
				r.present[w] = true
				if n := len(w); n == 17 || n == 18 || n == 33 || n == 34 { // with a digit or 0x before it
					r.present[w[1:]], r.present[w[2:]] = true, true
				}
			}
			i = max(j, i+1)
		}
	}
	numbers := func(b []byte) {
		for i := range b {
			for _, n := range []int{8, 16} {
				if i+n <= len(b) && b[i] != 0 {
					r.present[hex.EncodeToString(b[i:i+n])] = true
				}
			}
		}
	}
	for name, b := range c.Files {
		switch sortOf(name) {
		case pageDesignators:
			numbers(b)
			words(string(b))
		case pageATA:
			if len(b) >= ataIdentifyAt+ata.IdentifyBytes {
				id := swapped(b[ataIdentifyAt : ataIdentifyAt+ata.IdentifyBytes])
				numbers(id[2*wordWWN : 2*wordWWNEnd])
				words(string(id[2*wordSerial : 2*wordSerialEnd]))
			}
		default:
			words(string(b))
		}
		words(path.Base(name))
	}
	for name := range c.Links {
		words(path.Base(name))
	}
}

// identities are the texts that stay as they are.
func identities(c *Capture) []string {
	seen := map[string]bool{}
	for name, content := range c.Files {
		if sortOf(name) == keepText {
			seen[string(content)] = true
		}
	}
	return sortedKeys(seen)
}

func (r *redactor) pass(c *Capture) *Capture {
	out := *c
	out.Files = map[string]Content{}
	for _, name := range c.names() {
		to := r.path(name)
		if _, twice := out.Files[to]; twice {
			r.collision = to
		}
		if c.Files[name] == nil {
			out.Files[to] = nil
		} else {
			out.Files[to] = r.content(c, name)
		}
	}
	out.Links = map[string]string{}
	for _, name := range sortedKeys(c.Links) {
		to := r.path(name)
		if _, twice := out.Links[to]; twice {
			r.collision = to
		}
		out.Links[to] = r.path(c.Links[name])
	}
	folders := func(m map[string][]string) map[string][]string {
		to := map[string][]string{}
		for _, dir := range sortedKeys(m) {
			at := r.path(dir)
			if m[dir] == nil {
				to[at] = nil
				continue
			}
			names := []string{}
			for _, n := range m[dir] {
				names = append(names, path.Base(r.path(path.Join(dir, n))))
			}
			slices.Sort(names)
			if len(slices.Compact(slices.Clone(names))) != len(names) {
				r.collision = at
			}
			to[at] = append(to[at], names...)
			if to[at] == nil {
				to[at] = []string{}
			}
		}
		return to
	}
	out.Directories, out.Absent = folders(c.Directories), folders(c.Absent)
	out.Errors = map[string]map[string]string{}
	for _, name := range sortedKeys(c.Errors) {
		texts := map[string]string{}
		for _, tried := range sortedKeys(c.Errors[name]) {
			texts[tried] = r.generic(c.Errors[name][tried])
		}
		out.Errors[r.path(name)] = texts
	}
	if c.Setters != nil {
		out.Setters = make([]Setter, len(c.Setters))
		for i, s := range c.Setters {
			s.File, s.Text = r.generic(s.File), r.generic(s.Text)
			out.Setters[i] = s
		}
	}
	if c.Host.Kernel.Release != nil {
		release := r.dict.replace(*c.Host.Kernel.Release)
		out.Host.Kernel.Release = &release
	}
	return &out
}

// path redacts a name or a link's target.
func (r *redactor) path(name string) string {
	if !suspicious(name) && !strings.Contains(name, "dev/") {
		return name
	}
	if to, ok := r.paths[name]; ok {
		return to
	}
	dir, base := path.Split(name)
	to := base
	switch {
	case dir == "dev/disk/by-id/":
		to = r.byID(base, nil)
	case dir == "dev/disk/by-path/":
		to = r.generic(base)
	case strings.HasPrefix(dir, "dev/disk/by-"), dir == "dev/mapper/":
		to = r.volume(base)
	case suspicious(base):
		to = r.generic(base)
	}
	if dir != "" {
		d := strings.TrimSuffix(dir, "/")
		to = r.path(d) + dir[len(d):] + to
	}
	r.paths[name] = to
	return to
}

// What a file holds, as far as redaction goes.
type contents int

const (
	unknown   contents = iota // kept where it is a number or plain words
	plainText                 // the same, of a file known to hold nothing else
	keepText                  // an identity of a kind, or the kernel's words
	keepData                  // a page without anything of one device
	raidLevel
	counter
	linkSpeed
	featureBits
	memberState
	integrityFormat
	metadataVersion
	groupType
	moduleNumber
	moduleQuirks
	driverQuirks
	serialNumber
	wwn
	uuidText
	hostText
	targetText
	networkAddress // with or without its port
	nvmeAddress
	volumeName
	volumeUUID
	udevRecord
	commandLine
	procVersion
	inquiryData
	pageSerial
	pageDesignators
	pageATA
	pageVendor
	identifyWords
)

// byBase sorts files by the last element of their name.
var byBase = map[string]contents{
	"vendor": keepText, "model": keepText, "rev": keepText, "firmware_rev": keepText, "product": keepText, "manufacturer": keepText,
	"sys_vendor": keepText, "product_name": keepText, "board_name": keepText, "bios_version": keepText, "board_vendor": keepText,
	"idVendor": keepText, "idProduct": keepText, "bcdDevice": keepText, "proc_name": keepText, "blacklist": keepText, "scheduler": keepText,
	"inquiry": inquiryData, "vpd_pg0": keepData, "vpd_pg80": pageSerial, "vpd_pg83": pageDesignators, "vpd_pg89": pageATA,
	"vpd_pgb0": keepData, "vpd_pgb1": keepData, "vpd_pgb2": keepData, "vpd_pgb5": keepData, "vpd_pgb6": keepData, "vpd_pgb7": keepData, "vpd_pgb8": keepData, "vpd_pgb9": keepData,
	"serial": serialNumber, "serial_number": serialNumber, "product_serial": serialNumber, "board_serial": serialNumber, "chassis_serial": serialNumber,
	"chassis_asset_tag": serialNumber, "board_asset_tag": serialNumber, "unique_id": serialNumber, "vpd": serialNumber, "board_tracer": serialNumber, "host_serial_number": serialNumber,
	"wwid": wwn, "eui": wwn, "nguid": wwn, "sas_address": wwn, "port_name": wwn, "node_name": wwn, "fabric_name": wwn, "permanent_port_name": wwn, "port_id": wwn,
	"enclosure_identifier": wwn, "symbolic_name": hostText, "gid": wwn, "node_guid": wwn, "sys_image_guid": wwn,
	"uuid": uuidText, "product_uuid": uuidText, "hostid": uuidText, "guid": uuidText, "backing_dev_uuid": uuidText, "cset_uuid": uuidText, "array_state_uuid": uuidText,
	"address": nvmeAddress, "state": plainText, "transport": plainText, "ana_state": plainText, "hostname": hostText, "system_hostname": hostText,
	"targetname": targetText, "initiatorname": targetText, "iname": targetText, "subsysnqn": targetText, "hostnqn": targetText, "targetalias": volumeName,
	"persistent_address": networkAddress, "persistent_port": plainText, "ipaddress": networkAddress, "portal": networkAddress, "username": hostText, "password": hostText, "username_in": hostText, "password_in": hostText,
	"dhchap_secret": hostText, "dhchap_ctrl_secret": hostText, "partname": volumeName, "backing_file": volumeName, "backing_dev_name": volumeName, "backing_dev_cache_label": volumeName,
	"manfid": keepText, "oemid": keepText, "fwrev": keepText, "hwrev": keepText, // of an MMC card; its name is in sortOf
	"raid_level": raidLevel, "level": raidLevel, "chunk_size": plainText, "raid_disks": plainText, "partition": plainText,
	"layout": plainText, "component_size": plainText, "degraded": plainText, "sync_action": plainText, "array_state": plainText, "metadata_version": metadataVersion,
	"trim": plainText, "spdn_cnt": plainText, "xfer_mode": plainText, "sata_spd": linkSpeed, "sata_spd_limit": linkSpeed,
	"iodone_cnt": counter, "ioerr_cnt": counter, "iotmo_cnt": counter, "errors": counter,
}

var reMMCName = regexp.MustCompile(`/mmc\d+:[0-9a-f]{4}/name$`)

var reATAID = regexp.MustCompile(`/ata_device/[^/]+/id$`)

var (
	reMDMember   = regexp.MustCompile(`/md/dev-[^/]+/state$`)
	reFeatures   = regexp.MustCompile(`/virtio\d+/features$`)
	reGroupType  = regexp.MustCompile(`^sys/kernel/iommu_groups/\d+/type$`)
	reNVMeQuirks = regexp.MustCompile(`/nvme\d+/quirks$`)
	reModule     = regexp.MustCompile(`^sys/module/[a-z0-9_]+/parameters/[a-z0-9_]+$`)
	moduleLists  = []string{"sys/module/usb_storage/parameters/quirks", "sys/module/usbcore/parameters/quirks", "sys/module/nvme/parameters/quirks"}
	quirkPattern = `[0-9a-fA-F]{1,4}:[0-9a-fA-F]{1,4}:[a-z_^,]*`
)

// reKept is what files of a sort hold; that stays, and anything else is
// replaced unless it is harmless anyway.
var reKept = map[contents]*regexp.Regexp{
	counter:         reCounter,
	linkSpeed:       regexp.MustCompile(`^(?:<unknown>|\d{1,2}\.\d Gbps)\n?$`),                                    // libata-core.c, sata_spd_string
	featureBits:     regexp.MustCompile(`^[01]{1,128}\n?$`),                                                       // drivers/virtio/virtio.c, features_show
	memberState:     regexp.MustCompile(`^[a-z_]{1,24}(?:,[a-z_]{1,24}){0,15}\n?$`),                               // drivers/md/md.c, state_show
	metadataVersion: regexp.MustCompile(`^(?:none|\d\.\d{1,3}|external:(?:imsm|ddf|[/-]md\d{1,3}/\d{1,3})?)\n?$`), // metadata_show
	integrityFormat: regexp.MustCompile(`^(?:none|nop|unknown|(?:T10|EXT)-DIF-TYPE[1-3]-(?:CRC|CRC64|IP))\n?$`),   // block/blk-integrity.c
	groupType:       regexp.MustCompile(`^(?:DMA|DMA-FQ|identity|blocked|unmanaged|unknown)\n?$`),                 // drivers/iommu/iommu.c
	moduleNumber:    regexp.MustCompile(`^(?:-?\d{1,20}|0x[0-9a-f]{1,16}|[YN])\n?$`),
	driverQuirks:    regexp.MustCompile(`^[0-9a-z_\n]*$`), // drivers/nvme/host/nvme.h, nvme_quirk_name
	// VID:PID:FLAGS by commas; of nvme names, by commas, and - between devices.
	moduleQuirks: regexp.MustCompile(`^(?:` + quirkPattern + `(?:[,-]` + quirkPattern + `)*)?\n?$`),
}

func sortOf(name string) contents {
	base := path.Base(name)
	switch {
	case name == "proc/version":
		return procVersion
	case name == "proc/cmdline":
		return commandLine
	case strings.HasPrefix(name, "run/udev/data/"):
		return udevRecord
	case strings.HasSuffix(name, "/dm/name"):
		return volumeName
	case strings.HasSuffix(name, "/dm/uuid"):
		return volumeUUID
	case base == "state" && reMDMember.MatchString(name):
		return memberState
	case base == "quirks" && reNVMeQuirks.MatchString(name):
		return driverQuirks
	case base == "features" && reFeatures.MatchString(name):
		return featureBits
	case base == "type" && reGroupType.MatchString(name):
		return groupType
	case base == "format" && strings.HasSuffix(name, "/integrity/format"):
		return integrityFormat
	case slices.Contains(moduleLists, name):
		return moduleQuirks
	case reModule.MatchString(name):
		return moduleNumber
	case base == "id" && reATAID.MatchString(name):
		return identifyWords
	case base == "name" && strings.Contains(name, "/rbd"):
		return volumeName
	case base == "name" && reMMCName.MatchString(name):
		return keepText // the product's
	}
	if c, ok := byBase[base]; ok {
		return c
	}
	if strings.HasPrefix(base, "vpd_pg") {
		return pageVendor
	}
	return unknown
}

// content redacts one file.
func (r *redactor) content(c *Capture, name string) Content {
	b := append(Content{}, c.Files[name]...)
	text := string(b)
	sort := sortOf(name)
	if re := reKept[sort]; re != nil && re.MatchString(text) {
		return b
	}
	switch sort {
	case keepText, keepData:
		return b
	case serialNumber:
		return Content(r.of(KindSerial, text))
	case wwn:
		return Content(r.wwid(text))
	case uuidText:
		return Content(r.of(KindUUID, text))
	case hostText:
		return Content(r.of(KindHost, text))
	case targetText:
		if g := r.trimmed(text, r.qualified); g != text {
			return Content(g)
		}
		if s := strings.ToLower(text); strings.HasPrefix(s, "naa.") || strings.HasPrefix(s, "eui.") {
			return Content(r.wwid(text))
		}
		return Content(r.of(KindTarget, text))
	case networkAddress:
		return Content(r.trimmed(text, r.portal))
	case nvmeAddress:
		return Content(r.trimmed(text, r.nvmeAddress))
	case raidLevel:
		if isLevel(text) {
			return b
		}
		return Content(r.of(KindOther, text))
	case volumeName:
		return Content(r.volume(text))
	case volumeUUID:
		return Content(r.trimmed(text, r.volumeUUID))
	case udevRecord:
		return Content(r.udev(text))
	case commandLine:
		return Content(r.commandLine(text))
	case procVersion:
		return Content(r.procVersion(text))
	case inquiryData:
		r.inquiry(b)
		return b
	case pageSerial:
		if len(b) > pageHeader {
			r.chars(KindSerial, b[pageHeader:])
		}
		return b
	case pageDesignators:
		r.designators(b, r.words(c, name))
		return b
	case pageATA:
		r.ataInformation(b)
		return b
	case pageVendor:
		if len(b) > pageHeader {
			r.clear(b[pageHeader:])
		}
		return b
	case identifyWords:
		return Content(r.identifyWords(text))
	}
	if !isText(b) {
		r.clear(b)
		return b
	}
	return Content(r.plain(KindOther, text))
}

// reLevel are the words that drivers make RAID levels of (hpsa.c, raid_label;
// smartpqi_init.c, raid_levels; aacraid/aachba.c, container_types), beside
// those that are harmless anyway.
var reLevel = regexp.MustCompile(`^(?:(?i:RAID-?)?(?:\d{1,2}(?:[DE]\d?)?)?(?:\+\d)?(?:\((?:1?\+0|ADM|ADG|Triple)\))?(?:-?AD[MG])?|N/A|None|Volume|Mirror|Stripe|Morph|Legacy|V-MIRRORS|PSEUDO|R4|Unknown|Hidden|Absent)$`)

func isLevel(text string) bool {
	for _, w := range strings.Fields(text) {
		if !reLevel.MatchString(w) && !harmless(w) {
			return false
		}
	}
	return len(text) <= 32
}

// reCounter is a number as the kernel counts: a SCSI device's has up to 16
// digits, as its sign is widened (scsi_sysfs.c, show_sdev_iostat).
var reCounter = regexp.MustCompile(`^(?:0x[0-9a-f]{1,16}|[0-9]{1,20})\n?$`)

func (r *redactor) trimmed(text string, f func(string) string) string {
	plain := strings.Trim(text, " \t\n\x00")
	if plain == "" {
		return text
	}
	return strings.Replace(text, plain, f(plain), 1)
}

// qualified is a name that is nothing else: it may hold blanks.
func (r *redactor) qualified(name string) string {
	lower := strings.ToLower(name)
	if len(name) > len("nqn.2014-08.") && (strings.HasPrefix(lower, "nqn.") || strings.HasPrefix(lower, "iqn.")) {
		// A port is the node's name, ",t,0x" and a tag (SPC-5, SCSI name string).
		if at := strings.Index(lower, ",t,0x"); at > 0 {
			return r.target(name[:at]) + name[at:]
		}
		return r.target(name)
	}
	return name
}

// wwid redacts the kernel's wwid attribute and whatever is a name in digits.
func (r *redactor) wwid(text string) string {
	return r.trimmed(text, func(s string) string {
		prefix := ""
		for _, p := range []string{"t10.", "naa.", "eui.", "uuid.", "0x", "scsi."} {
			if rest, ok := strings.CutPrefix(s, p); ok {
				prefix, s = p, rest
			}
		}
		switch {
		case prefix == "t10." && len(s) > 8:
			return prefix + s[:8] + r.lastWord(KindSerial, s[8:])
		case prefix == "" && strings.HasPrefix(s, "nvme."):
			return r.generic(s)
		case isHexID(strings.ToLower(s)) || reUUID.FindString(s) == s || reMAC.FindString(s) == s:
			return prefix + r.generic(s)
		case len(s) < 5 && isHex(s): // a short number is no name: an address on a bus, a port
			return prefix + s
		}
		return prefix + r.of(KindWWN, s)
	})
}

// lastWord replaces the last word of a text: the serial number behind the
// model, or all where there is one word.
func (r *redactor) lastWord(kind Kind, s string) string {
	trimmed := strings.TrimRight(s, " \x00")
	at := strings.LastIndexAny(trimmed, " _") + 1
	return trimmed[:at] + r.of(kind, trimmed[at:]) + s[len(trimmed):]
}

// reHarmless are words of the kernel: a number, an address on a bus, a plain
// word, each perhaps in brackets.
var reHarmless = regexp.MustCompile(`^[\[(]?(?:-?\d{1,20}|\d{1,10}(?:\.\d{1,6})?[A-Za-z/%]{0,4}|0x[0-9a-fA-F]{1,8}|[0-9a-fA-F]{1,8}|\d+:\d+(?::\d+:\d+)?|[a-z][a-z_+-]{0,24}|[a-z][a-z_-]{0,20}\d{1,3}[a-z_-]{0,8}\d{0,2}|[A-Z][A-Z_]{0,24}\d{0,3})[\])]?,?$`)

func harmless(text string) bool {
	for _, w := range strings.Fields(text) {
		if !reHarmless.MatchString(w) {
			return false
		}
	}
	return true
}

// plain keeps what is harmless and replaces the rest as a whole.
func (r *redactor) plain(kind Kind, text string) string {
	if harmless(text) {
		return text
	}
	return r.of(kind, text)
}

// volumeUUID redacts a dm device's UUID: who made it stays.
func (r *redactor) volumeUUID(uuid string) string {
	m := reDMUUID.FindStringSubmatch(uuid)
	if m == nil {
		return r.of(KindUUID, uuid)
	}
	prefix, rest, suffix := m[1], m[2], m[3]
	switch {
	case strings.HasSuffix(prefix, "mpath-"):
		if g := r.generic(rest); g != rest {
			return prefix + g + suffix
		}
		return prefix + r.of(KindWWN, rest) + suffix
	case strings.HasPrefix(prefix, "CRYPT-"):
		id, name, named := strings.Cut(rest, "-")
		if !named {
			return prefix + r.volume(rest+suffix)
		}
		return prefix + r.of(KindUUID, id) + "-" + r.volume(name+suffix)
	}
	return prefix + r.of(KindUUID, rest) + suffix
}

var reDMUUID = regexp.MustCompile(`^((?:part\d+-)?(?:LVM-|CRYPT-[A-Z0-9]+-|mpath-|DMRAID-|VDO-|stratis-\d-private-|Stratis-))(.+?)(-(?:pool|tpool|tdata|tmeta|real|cow|cdata|cmeta|cvol|vdata|vpool|imeta|rimage_\d+|rmeta_\d+))?$`)

// udevKept are the properties that say nothing of one device in particular.
var udevKept = regexp.MustCompile(`^(?:ID_ATA(?:_[A-Z0-9_]+)?|ID_BUS|ID_CDROM(?:_[A-Z0-9_]+)?|ID_DRIVE_[A-Z0-9_]+|ID_MODEL(?:_ENC|_ID|_FROM_DATABASE)?|ID_REVISION|ID_VENDOR(?:_ENC|_ID|_FROM_DATABASE)?|` +
	`ID_TYPE|ID_INSTANCE|ID_SCSI|ID_SCSI_INQUIRY|ID_USB_(?:DRIVER|INTERFACES|INTERFACE_NUM|MODEL(?:_ENC|_ID)?|VENDOR(?:_ENC|_ID)?|REVISION|TYPE|INSTANCE)|` +
	`ID_FS_(?:TYPE|USAGE|VERSION|BLOCKSIZE|SIZE|LASTBLOCK)|ID_PART_TABLE_TYPE|ID_PART_ENTRY_(?:SCHEME|NUMBER|OFFSET|SIZE|DISK|FLAGS)|` +
	`DM_ACTIVATION|DM_SUBSYSTEM_UDEV_FLAG\d|DM_UDEV_[A-Z0-9_]+|DM_SUSPENDED|MD_LEVEL|MD_DEVICES|MD_METADATA|SYSTEMD_READY|NVME_TRTYPE|SCSI_(?:TPGS|TYPE|VENDOR|VENDOR_ENC|MODEL|MODEL_ENC|REVISION)|UDISKS_[A-Z_]+|DEVTYPE|MAJOR|MINOR|SUBSYSTEM)$`)

// udevKind is the kind of the others, by a part of the key.
var udevKind = []struct {
	part string
	kind Kind
}{{"SERIAL", KindSerial}, {"WWN", KindWWN}, {"IDENT_", KindSerial}, {"UUID", KindUUID}, {"GUID", KindUUID}, {"LABEL", KindName}, {"NAME", KindName}, {"WWID", KindWWN}}

// udev redacts a record of the udev database: lines of a letter, a colon and a
// value (systemd, sd-device).
func (r *redactor) udev(text string) string {
	props := map[string]string{}
	for line := range strings.Lines(text) {
		if kv, ok := strings.CutPrefix(line, "E:"); ok {
			k, v, _ := strings.Cut(strings.TrimSuffix(kv, "\n"), "=")
			props[k] = v
		}
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		body, end := line, ""
		if s, ok := strings.CutSuffix(line, "\n"); ok {
			body, end = s, "\n"
		}
		kind, value, _ := strings.Cut(body, ":")
		switch kind {
		case "E":
			k, v, _ := strings.Cut(value, "=")
			b.WriteString("E:" + k + "=" + r.property(k, v, props))
		case "S":
			b.WriteString("S:" + r.symlink(value, props))
		case "L", "W", "I", "V", "N", "P", "M":
			b.WriteString(r.dict.replace(body))
		case "G", "Q", "Z":
			b.WriteString(kind + ":" + r.plain(KindOther, value))
		default:
			b.WriteString(r.plain(KindOther, body))
		}
		b.WriteString(end)
	}
	return b.String()
}

func (r *redactor) property(key, v string, props map[string]string) string {
	switch {
	case v == "":
		return v
	case udevKept.MatchString(key):
		return v
	case key == "ID_SERIAL" || key == "ID_USB_SERIAL" || key == "SCSI_IDENT_SERIAL":
		for _, k := range []string{"ID_SERIAL_SHORT", "ID_USB_SERIAL_SHORT"} {
			if short := props[k]; short != "" && strings.Contains(v, short) {
				at := strings.LastIndex(v, short)
				return v[:at] + r.of(KindSerial, short) + v[at+len(short):]
			}
		}
		if g := r.runs(v); g != v {
			return g
		}
		return r.of(KindSerial, v)
	case key == "ID_PATH_TAG":
		if p := props["ID_PATH"]; p != "" && pathTag(p) == v {
			return pathTag(r.generic(p))
		}
		if reTag.MatchString(v) {
			return r.of(KindOther, v)
		}
		return r.generic(v)
	case strings.HasPrefix(key, "ID_PATH") || key == "ID_SAS_PATH" || key == "ID_FOR_SEAT":
		return r.generic(v)
	case key == "DM_NAME" || key == "MD_NAME" || key == "MD_DEVNAME":
		return r.volume(v)
	case key == "DM_UUID":
		return r.volumeUUID(v)
	case key == "DEVLINKS":
		links := strings.Fields(v)
		for i, l := range links {
			links[i] = "/dev/" + r.symlink(strings.TrimPrefix(l, "/dev/"), props)
		}
		return strings.Join(links, " ")
	}
	for _, k := range udevKind {
		if strings.Contains(key, k.part) {
			if g := r.runs(v); k.kind == KindWWN && g != v {
				return g
			}
			if g := r.qualified(v); g != v {
				return g
			}
			if k.kind == KindName {
				return r.volume(v)
			}
			return r.of(k.kind, v)
		}
	}
	if reNumber.MatchString(v) {
		return v
	}
	return r.of(KindOther, v)
}

// reTag finds what generic cannot: an address or a name without its colons.
var reTag = regexp.MustCompile(`\bip-|iqn_|nqn_`)

// pathTag is ID_PATH_TAG of ID_PATH: letters, digits and hyphens, and single
// underscores for the rest (systemd, udev-builtin-path_id.c).
func pathTag(p string) string {
	var b strings.Builder
	for i := 0; i < len(p); i++ {
		switch tag := b.String(); {
		case isWord(p[i]) || p[i] == '-':
			b.WriteByte(p[i])
		case tag != "" && tag[len(tag)-1] != '_':
			b.WriteByte('_')
		}
	}
	return strings.TrimRight(b.String(), "_")
}

var reNumber = regexp.MustCompile(`^(?:\d{1,9}|0x[0-9a-f]{1,4}|yes|no)$`)

// symlink redacts a link below /dev that a udev record asks for.
func (r *redactor) symlink(name string, props map[string]string) string {
	dir, base := path.Split(name)
	switch {
	case dir == "disk/by-id/":
		return dir + r.byID(base, props)
	case dir == "disk/by-path/":
		return dir + r.generic(base)
	case dir == "disk/by-diskseq/":
		return dir + r.plain(KindOther, base)
	case dir == "disk/by-uuid/", dir == "disk/by-partuuid/":
		return dir + r.of(KindUUID, base)
	case dir == "mapper/":
		return dir + r.volume(base)
	case strings.HasPrefix(dir, "disk/by-"), dir == "md/":
		return dir + r.volume(base)
	}
	return r.of(KindName, name)
}

var (
	reByID     = regexp.MustCompile(`^(ata|scsi|nvme|usb|wwn|mmc|virtio|memstick|ieee1394|dm-name|dm-uuid|lvm-pv-uuid|md-name|md-uuid|raid|nbd|cciss|bcache|edd)-`)
	reByIDTail = regexp.MustCompile(`(?:-\d+:\d+)?(?:-part\d+)?$`)
)

// byID redacts a name in dev/disk/by-id: what kind it is and the model stay.
func (r *redactor) byID(name string, props map[string]string) string {
	prefix := reByID.FindString(name)
	rest := name[len(prefix):]
	tail := reByIDTail.FindString(rest)
	rest = rest[:len(rest)-len(tail)]
	switch prefix {
	case "dm-name-", "md-name-":
		return prefix + r.volume(rest) + tail
	case "dm-uuid-":
		return prefix + r.volumeUUID(rest) + tail
	case "lvm-pv-uuid-", "md-uuid-":
		return prefix + r.of(KindUUID, rest) + tail
	case "":
		return r.of(KindName, rest) + tail
	}
	for _, k := range []string{"ID_SERIAL_SHORT", "ID_SCSI_SERIAL", "ID_USB_SERIAL_SHORT"} {
		if short := props[k]; short != "" && strings.Contains(rest, short) {
			at := strings.LastIndex(rest, short)
			return prefix + rest[:at] + r.of(KindSerial, short) + rest[at+len(short):] + tail
		}
	}
	if g := r.generic(rest); g != rest {
		// What is left may be the serial number still.
		if at := strings.LastIndexByte(g, '_') + 1; at > 0 && len(g)-at >= 4 && strings.HasSuffix(rest, g[at-1:]) {
			g = g[:at] + r.of(KindSerial, g[at:])
		}
		return prefix + g + tail
	}
	// MODEL_SERIAL, and MODEL_SERIAL_1 for the first namespace.
	if m := reNamespace.FindStringSubmatch(rest); m != nil && prefix == "nvme-" {
		rest, tail = m[1], m[2]+tail
	}
	return prefix + r.lastWord(KindSerial, rest) + tail
}

var reNamespace = regexp.MustCompile(`^(.+_.+)(_\d{1,3})$`)

// Parameters whose values stay: the kernel's and its storage drivers'.
var (
	reKeptParam = regexp.MustCompile(`^(?:(?:libata|ahci|ata_[a-z]+|usb[-_]storage|usbcore|uas|scsi_mod|sd_mod|nvme|nvme_core|mpt[23]sas|megaraid_sas|smartpqi|hpsa|lpfc|qla2xxx|virtio_[a-z]+|dm_mod|dm_multipath|` +
		`mmc_core|pcie_[a-z]+|xen_[a-z]+|loop|nbd|zram|blk_[a-z]+|acpi|net|processor|intel_idle|cpuidle|printk|workqueue|rcutree|sysrq)\.[A-Za-z0-9_.-]+|` +
		`console|iommu|intel_iommu|amd_iommu|iommu\.[a-z_]+|swiotlb|pci|pcie_aspm|pcie_port_pm|elevator|mitigations|crashkernel|isolcpus|nohz|nohz_full|rcu_nocbs|hugepages|hugepagesz|` +
		`default_hugepagesz|transparent_hugepage|selinux|apparmor|security|lsm|audit|rootfstype|rootdelay|panic|loglevel|biosdevname|acpi|acpi_[a-z_]+|maxcpus|nr_cpus|mem|memmap|` +
		`intel_pstate|amd_pstate|cpufreq\.[a-z_]+|clocksource|tsc|nmi_watchdog|watchdog_[a-z]+|consoleblank|fsck\.[a-z]+|earlyprintk|efi|lockdown|numa_balancing|preempt|threadirqs|idle|noresume|max_loop)$`)
	reParamValue = regexp.MustCompile(`^(?:\d{1,10}[KMGkmg%]?|0x[0-9a-f]{1,8}|on|off|yes|no|true|false|auto|none|force|default|enabled?|disabled?|[a-z])$`)
	reParamLabel = regexp.MustCompile(`^(?:UUID=|PARTUUID=|LABEL=|PARTLABEL=|ID=|/dev/disk/by-[a-z]+/|/dev/mapper/|/dev/|ZFS=|zfs:|nfs:|iscsi:|nbd:|block:|live:)`)
	reDisk       = regexp.MustCompile(`^/dev/(?:[shv]d[a-z]{1,3}\d{0,3}|xvd[a-z]\d{0,3}|nvme\d+n\d+(?:p\d+)?|md\d+(?:p\d+)?|mmcblk\d+(?:p\d+)?|dm-\d+|ram\d+|loop\d+|nfs)$`)
	reFlag       = regexp.MustCompile(`^[A-Za-z-][A-Za-z0-9_.-]{0,31}$`)
	reImage      = regexp.MustCompile(`^[A-Za-z0-9_(),./+~-]*(?:vmlinu[xz]|bzImage|kernel|linux|Image)[A-Za-z0-9_.+~-]*$`)
)

// commandLine redacts the kernel's command line. What concerns the kernel and
// its drivers stays; what names a volume, a host or an address goes.
func (r *redactor) commandLine(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		if c := text[i]; c == ' ' || c == '\t' || c == '\n' {
			b.WriteByte(c)
			i++
			continue
		}
		j, quoted := i, false
		for j < len(text) && (quoted || text[j] != ' ' && text[j] != '\t' && text[j] != '\n') {
			if text[j] == '"' {
				quoted = !quoted
			}
			j++
		}
		b.WriteString(r.parameter(text[i:j]))
		i = j
	}
	return b.String()
}

func (r *redactor) parameter(p string) string {
	key, v, valued := strings.Cut(p, "=")
	switch {
	case !valued && (reFlag.MatchString(p) || reParamValue.MatchString(p)):
		return r.generic(p)
	case !valued:
		return r.of(KindOther, p)
	case reKeptParam.MatchString(strings.ReplaceAll(key, "-", "_")), reKeptParam.MatchString(key), reParamValue.MatchString(v), reDisk.MatchString(v):
		return key + "=" + r.generic(v)
	case key == "BOOT_IMAGE" && reImage.MatchString(v):
		return key + "=" + r.generic(v)
	case v == "":
		return p
	}
	label := ""
	for {
		l := reParamLabel.FindString(v[len(label):])
		if label += l; l == "" {
			break
		}
	}
	rest := v[len(label):]
	switch {
	case rest == "":
		return p
	case strings.HasSuffix(label, "/mapper/"):
		return key + "=" + label + r.volume(rest)
	case strings.Contains(label, "UUID=") || strings.HasSuffix(label, "uuid/") || strings.HasSuffix(key, "uuid"):
		return key + "=" + label + r.trimmed(rest, func(s string) string {
			if strings.HasPrefix(s, "luks-") {
				return "luks-" + r.of(KindUUID, s[5:])
			}
			return r.of(KindUUID, s)
		})
	case strings.HasSuffix(label, "by-id/"):
		return key + "=" + label + r.byID(rest, nil)
	case label != "" || strings.HasPrefix(key, "rd.lvm"):
		return key + "=" + label + r.volume(rest)
	case strings.Contains(key, "host"):
		return key + "=" + r.of(KindHost, rest)
	}
	return key + "=" + r.of(KindOther, rest)
}

var (
	reBuilder  = regexp.MustCompile(`\(([^\s()@]+)@([^\s()@]+)\)`)
	reBuilders = regexp.MustCompile(`^(?:debian-kernel|buildd|mockbuild|builduser|build|builder|geeko|abuild|nixbld|linux|arch|kbuild|gitlab-runner|root@buildkitsandbox|void|alpine|buildozer)$`)
)

// procVersion redacts who built the kernel and where, unless that is a
// distribution.
func (r *redactor) procVersion(text string) string {
	at := reBuilder.FindStringSubmatchIndex(text)
	if at == nil || reBuilders.MatchString(text[at[2]:at[3]]) {
		return r.dict.replace(text)
	}
	user, host := text[at[2]:at[3]], text[at[4]:at[5]]
	if user != "root" && !slices.Contains(usualHosts, user) {
		user = r.of(KindHost, user)
	}
	if !slices.Contains(usualHosts, host) {
		host = r.of(KindHost, host)
	}
	return r.dict.replace(text[:at[2]]) + user + "@" + host + r.dict.replace(text[at[5]:])
}

// Byte offsets (SPC-5, Standard INQUIRY data; Vital product data pages).
const (
	inquiryVendorSpecific    = 36 // to 55
	inquiryVendorSpecificEnd = 56
	inquiryVendorParameters  = 96 // to the end
	pageHeader               = 4
	ataIdentifyAt            = 60 // in page 89h
)

func (r *redactor) inquiry(b []byte) {
	if len(b) > inquiryVendorSpecific {
		r.chars(KindSerial, b[inquiryVendorSpecific:min(len(b), inquiryVendorSpecificEnd)])
	}
	if len(b) > inquiryVendorParameters {
		r.clear(b[inquiryVendorParameters:])
	}
}

// words are those of the identity of the device that a page is of.
func (r *redactor) words(c *Capture, page string) map[string]bool {
	known := map[string]bool{}
	dir := path.Dir(page)
	add := func(s string) {
		for _, w := range strings.FieldsFunc(s, func(c rune) bool { return c == ' ' || c == '_' || c == 0 || c == '\n' }) {
			known[w] = true
		}
	}
	for _, n := range []string{"vendor", "model", "rev"} {
		add(string(c.Files[dir+"/"+n]))
	}
	if info, err := scsi.ParseATAInformation(c.Files[dir+"/vpd_pg89"]); err == nil {
		if data, ok := info.Identify(); ok {
			if id, err := ata.ParseIdentify(data[:]); err == nil {
				add(id.Model)
			}
		}
	}
	return known
}

// designators redacts page 83h in place. What makes and formats a designator
// stays; what makes it the only one in the world goes.
func (r *redactor) designators(b []byte, identity map[string]bool) {
	p, err := scsi.ParseDeviceIdentification(b)
	if err != nil {
		if len(b) > pageHeader {
			r.clear(b[pageHeader:])
		}
		return
	}
	at := pageHeader
	for _, d := range p.Designators {
		field := b[at+4 : at+4+len(d.Designator)] // behind the descriptor's header
		at += 4 + len(d.Designator)
		switch d.Type {
		case scsi.DesignatorT10VendorID:
			if len(field) > 8 {
				r.t10(field[8:], identity)
			}
		case scsi.DesignatorEUI64, scsi.DesignatorNAA:
			if len(field) == 12 { // EUI-64 and 4 bytes before or after it
				r.clear(field[3:])
			} else {
				r.bytes(field)
			}
		case scsi.DesignatorRelativeTargetPort, scsi.DesignatorTargetPortGroup, scsi.DesignatorLogicalUnitGroup, scsi.DesignatorProtocolSpecificPort:
		case scsi.DesignatorSCSIName:
			r.scsiName(field)
		case scsi.DesignatorUUID:
			if len(field) == 18 {
				text := fmt.Sprintf("%x-%x-%x-%x-%x", field[2:6], field[6:8], field[8:10], field[10:12], field[12:])
				if u, err := hex.DecodeString(strings.ReplaceAll(r.of(KindUUID, text), "-", "")); err == nil {
					copy(field[2:], u)
				}
			} else {
				r.clear(field)
			}
		case scsi.DesignatorVendorSpecific:
			r.chars(KindSerial, field)
		default:
			r.clear(field)
		}
	}
	r.clear(b[min(at, len(b)):])
}

// t10 redacts what follows the vendor: words that are not of the identity.
func (r *redactor) t10(b []byte, identity map[string]bool) {
	if !isText(b) && strings.Trim(string(b), "\x00") != "" && strings.ContainsFunc(string(b), func(c rune) bool { return c != 0 && (c < ' ' || c > '~') }) {
		r.clear(b)
		return
	}
	for i := 0; i < len(b); {
		if b[i] == ' ' || b[i] == 0 || b[i] == '_' {
			i++
			continue
		}
		if code := probe.FaultCode(string(b[i:])); code != "" {
			i += len(code)
			continue
		}
		j := i
		for j < len(b) && b[j] != ' ' && b[j] != 0 && b[j] != '_' {
			j++
		}
		if !identity[string(b[i:j])] {
			fit(b[i:j], r.of(KindSerial, string(b[i:j])))
		}
		i = j
	}
}

// scsiName redacts naa.5000..., eui., iqn. and the like (SPC-5, SCSI name
// string designator format), padded with NULs.
func (r *redactor) scsiName(b []byte) {
	text := strings.TrimRight(string(b), "\x00")
	if text == "" {
		return
	}
	to := r.qualified(text)
	if to == text {
		to = r.wwid(text)
	}
	fit(b, to)
}

func (r *redactor) ataInformation(b []byte) {
	if len(b) >= ataIdentifyAt+ata.IdentifyBytes {
		r.identify(b[ataIdentifyAt : ataIdentifyAt+ata.IdentifyBytes])
		r.clear(b[ataIdentifyAt+ata.IdentifyBytes:])
	} else if len(b) > ataIdentifyAt {
		r.clear(b[ataIdentifyAt:]) // cut: nobody reads it either
	}
}

// Words of IDENTIFY DEVICE data (ACS-4, IDENTIFY DEVICE data).
const (
	wordSerial      = 10 // 10 words
	wordSerialEnd   = 20
	wordWWN         = 108 // 4 words, then 4 reserved for a longer one
	wordWWNEnd      = 112
	wordWWNLongEnd  = 116
	wordVendor      = 129 // 31 words, vendor specific
	wordVendorEnd   = 160
	wordMediaSerial = 176 // 30 words, of the medium
	wordMediaEnd    = 206
	wordIntegrity   = 255
)

// identify redacts IDENTIFY DEVICE data in place. Its checksum is right
// afterwards where it was before.
func (r *redactor) identify(b []byte) {
	sum := func() (n byte) {
		for _, c := range b {
			n += c
		}
		return n
	}
	before := sum()
	text := func(from, to int, f func([]byte)) {
		plain := swapped(b[2*from : 2*to])
		f(plain)
		copy(b[2*from:], swapped(plain))
	}
	text(wordSerial, wordSerialEnd, func(b []byte) { r.chars(KindSerial, b) })
	text(wordWWN, wordWWNEnd, r.bytes) // the words of a number are big-endian, as characters are
	r.clear(b[2*wordWWNEnd : 2*wordWWNLongEnd])
	r.clear(b[2*wordVendor : 2*wordVendorEnd])
	text(wordMediaSerial, wordMediaEnd, func(b []byte) { r.chars(KindSerial, b) })
	if b[2*wordIntegrity] == 0xa5 {
		b[2*wordIntegrity+1] += before - sum()
	}
}

// identifyWords redacts libata's id attribute: 256 words in hex.
func (r *redactor) identifyWords(text string) string {
	data := make([]byte, 0, ata.IdentifyBytes)
	var places []int // of each word in the text
	for i := 0; i < len(text); {
		if text[i] == ' ' || text[i] == '\n' {
			i++
			continue
		}
		j := i
		for j < len(text) && text[j] != ' ' && text[j] != '\n' {
			j++
		}
		w, err := hex.DecodeString(text[i:j])
		if err != nil || len(w) != 2 {
			return r.of(KindOther, text)
		}
		data = append(data, w[1], w[0])
		places = append(places, i)
		i = j
	}
	if len(data) != ata.IdentifyBytes {
		return r.of(KindOther, text)
	}
	r.identify(data)
	out := []byte(text)
	for i, at := range places {
		hex.Encode(out[at:], []byte{data[2*i+1], data[2*i]})
	}
	return string(out)
}
