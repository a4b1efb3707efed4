package probe

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/quirkcheck/quirkcheck/probe/ata"
	"github.com/quirkcheck/quirkcheck/probe/scsi"
)

// Device is one block device as the machine shows it.
type Device struct {
	Name      string // sysfs name: sda, nvme0n1
	SysPath   string // folder of the block device, relative to the root
	Kind      string // disk, optical, tape, loop, ram, dm, md, network, other
	Transport string // as lsblk's TRAN: sata, sas, usb, nvme, ...; "" unknown
	// Path is how commands reach it: libata, sat-firmware, scsi, usb-storage,
	// uas, sbp2, nvme-pci, nvme-fabrics, virtio-blk, mmc, other; "nvme" where
	// PCI and fabrics could not be told apart.
	Path string

	// INQUIRY strings with their padding; kernel-cleaned (SPC-6, standard
	// INQUIRY data).
	Vendor, Product, Revision Value[string]
	// ATA IDENTIFY DEVICE strings in full, trimmed (ACS-4).
	ATAModel, ATAFirmware Value[string]
	// ATAIdentify is the IDENTIFY DEVICE data they are from, where all of it
	// could be read: libata's own copy or VPD page 89h. The udev database has
	// the strings alone.
	ATAIdentify Value[ata.Identify]
	// NVMe Identify Controller MN and FR, trimmed, and the subsystem's NQN.
	NVMeModel, NVMeFirmware, NVMeNQN Value[string]
	// NVMeQuirks holds the quirks that the NVMe driver applies to the controller,
	// by the names that its parameter quirks= takes, empty for none (7.x,
	// drivers/nvme/host/sysfs.c, quirks_show). Absent on older kernels.
	NVMeQuirks Value[[]string]
	// USB is the nearest USB ancestor: vid, pid, bcd, manufacturer, product,
	// speed, max_power; nil where there is none.
	USB map[string]string
	// Adapter of the nearest PCI ancestor or SCSI host.
	Adapter Adapter

	// BlockLimits is VPD page B0h (SBC-4, Block Limits VPD page).
	BlockLimits Value[scsi.BlockLimits]
	// Pages holds the VPD pages sysfs keeps, raw, by page code.
	Pages map[byte]Value[[]byte]
	// Blacklist holds the flags the kernel's SCSI device list gives it.
	Blacklist Value[[]string]

	// Serial is the serial number of the disk itself, trimmed: IDENTIFY DEVICE,
	// VPD page 80h or Identify Controller. It is never reported; some drives
	// write a fault code there.
	Serial Value[string]
	// MMC holds an MMC or SD card's name, manfid, oemid and fwrev
	// (drivers/mmc/core/mmc.c, sd.c); nil where it is none.
	MMC map[string]string
	// Volume marks a volume of a RAID card; its text is the RAID level, "" where
	// the driver shows none.
	Volume Value[string]
	// Target is the far end of an iSCSI, FC or NVMe fabrics transport, nil for
	// none.
	Target *Target

	Members []string // slaves: what it is made of
	Holders []string // what is made of it
	// Partitions of the device, and what is made of them.
	Partitions []Partition
	// Paths of an NVMe multipath head; nil for anything else.
	Paths []NVMePath
	// MDMembers are the members of an md array as md names their state; nil for
	// anything else.
	MDMembers []MDMember
	// IOMMU says how the DMA of the function that the device hangs on reaches
	// memory: IOMMUTranslated, IOMMUPassthrough or IOMMUOff.
	IOMMU Value[string]
	// SASHost says whether the SCSI host belongs to the SAS transport class,
	// whose hosts bound the default transfer size by what the DMA layer prefers
	// (drivers/scsi/scsi_transport_sas.c, sas_host_setup). It is known for
	// devices below a SCSI host.
	SASHost Value[bool]
	// Counters of errors, where Options.Counters asks for them.
	Counters []Counter
	// Disagreements are facts of which two sources give different values.
	Disagreements []Disagreement
	// RequestBased tells a device-mapper device that clones requests
	// (multipath) from one that resubmits bios: only the former has hardware
	// queues of its own, mq/ (block/blk-mq-sysfs.c). Known for dm devices only.
	RequestBased Value[bool]
	Notes        []Note

	attrs     []attr
	devPath   string // folder of the device below the block device
	ataLink   string // folder of libata's link
	ataDevice string // name of libata's device on it
	hostAttrs map[string]Value[string]
}

// Adapter is where the device hangs.
type Adapter struct {
	PCI      string // vvvv:dddd:ssss:ssss, "" for none
	Class    string // six hex digits
	Revision string // two hex digits
	Driver   string // ahci, mpt3sas, virtio_scsi
	Host     string // SCSI host: host0
	ATAPort  string // number of the libata port, as the kernel's log counts them
	Known    bool   // an adapter was looked for; empty fields are then known to be empty
	SysPath  string // folder of the PCI function
}

// attr is one attribute, at its index in attributes.
type attr struct {
	text  string
	state State
	err   error
}

// attribute is one file read of a device. Its name is relative to the block
// device's folder; scsi_disk/ stands for device/scsi_disk/H:C:T:L/, ata_link/
// and ata_device/ for libata's own folders of the link and of the device.
type attribute struct {
	name string
	of   scope
	text bool // holds text, not a whole number
}

// scope is the kind of devices that have an attribute: a file that cannot be
// there need not be looked for.
type scope uint8

const (
	ofAll       scope = iota
	ofSCSI            // below a SCSI device
	ofSCSIDisk        // below the sd driver's
	ofUSB             // below a SCSI device of usb-storage or uas
	ofATALink         // below a link of libata's
	ofATADevice       // below its device
	ofNVMe
	ofDM
	ofMD
	ofFormat    // SCSI and NVMe disks, and what is made of disks: they may carry protection information
	ofProtected // those of them that do
)

// attributes are all knobs of schema/knobs.yaml that sysfs shows on a device
// (a test compares the two) and what identifies it.
var attributes = []attribute{
	{name: "dm/name", of: ofDM, text: true}, {name: "dm/uuid", of: ofDM, text: true},
	{name: "md/level", of: ofMD, text: true}, {name: "md/chunk_size", of: ofMD},
	{name: "md/raid_disks", of: ofMD, text: true}, {name: "md/layout", of: ofMD, text: true}, // "5 (4)" while it is reshaped
	{name: "md/metadata_version", of: ofMD, text: true}, {name: "md/component_size", of: ofMD}, {name: "md/degraded", of: ofMD},
	{name: "md/sync_action", of: ofMD, text: true}, {name: "md/array_state", of: ofMD, text: true},
	{name: "size"}, {name: "dev", text: true}, {name: "ro"}, {name: "removable"}, {name: "hidden"}, {name: "diskseq"},
	{name: "queue/atomic_write_max_bytes"},
	{name: "queue/chunk_sectors"},
	{name: "queue/discard_granularity"},
	{name: "queue/discard_max_bytes"},
	{name: "queue/discard_max_hw_bytes"},
	{name: "queue/dma_alignment"},
	{name: "queue/fua"},
	{name: "queue/io_timeout"},
	{name: "queue/logical_block_size"},
	{name: "queue/max_hw_sectors_kb"},
	{name: "queue/max_sectors_kb"},
	{name: "queue/max_segment_size"},
	{name: "queue/max_segments"},
	{name: "queue/minimum_io_size"},
	{name: "queue/nomerges"},
	{name: "queue/nr_requests"},
	{name: "queue/optimal_io_size"},
	{name: "queue/physical_block_size"},
	{name: "queue/read_ahead_kb"},
	{name: "queue/rotational"},
	{name: "queue/scheduler", text: true},
	{name: "queue/virt_boundary_mask"},
	{name: "queue/write_cache", text: true},
	{name: "queue/write_same_max_bytes"},
	{name: "queue/write_zeroes_max_bytes"},
	{name: "queue/zoned", text: true},
	// Before those that are only read where it names a format.
	{name: "integrity/format", of: ofFormat, text: true},
	{name: "integrity/device_is_integrity_capable", of: ofProtected},
	{name: "integrity/protection_interval_bytes", of: ofProtected},
	{name: "integrity/read_verify", of: ofProtected},
	{name: "integrity/tag_size", of: ofProtected},
	{name: "integrity/write_generate", of: ofProtected},
	{name: "queue/max_integrity_segments", of: ofProtected},
	{name: "metadata_bytes", of: ofNVMe},
	{name: "ata_device/spdn_cnt", of: ofATADevice},
	{name: "ata_device/trim", of: ofATADevice, text: true},
	{name: "ata_device/xfer_mode", of: ofATADevice, text: true},
	{name: "ata_link/sata_spd", of: ofATALink, text: true},
	{name: "ata_link/sata_spd_limit", of: ofATALink, text: true},
	{name: "device/eh_timeout", of: ofSCSI},
	{name: "device/max_sectors", of: ofUSB},
	{name: "device/power/control", of: ofSCSI, text: true},
	{name: "device/queue_depth", of: ofSCSI},
	{name: "device/timeout", of: ofSCSI},
	{name: "scsi_disk/FUA", of: ofSCSIDisk},
	{name: "scsi_disk/cache_type", of: ofSCSIDisk, text: true},
	{name: "scsi_disk/max_write_same_blocks", of: ofSCSIDisk},
	{name: "scsi_disk/protection_mode", of: ofSCSIDisk, text: true},
	{name: "scsi_disk/protection_type", of: ofSCSIDisk},
	{name: "scsi_disk/provisioning_mode", of: ofSCSIDisk, text: true},
	{name: "scsi_disk/zeroing_mode", of: ofSCSIDisk, text: true},
}

var attrIndex = func() map[string]int {
	m := make(map[string]int, len(attributes))
	for i, a := range attributes {
		m[a.name] = i
	}
	return m
}()

// Attributes lists the attribute files that are read of a device, relative to
// the block device's folder. ata_device/ and ata_link/ are libata's folders,
// scsi_disk/ is the sd driver's.
func Attributes() []string {
	names := make([]string, len(attributes))
	for i, a := range attributes {
		names[i] = a.name
	}
	return names
}

// Attr returns an attribute of the list Attributes, or of the SCSI host's
// (HostAttributes), as text without the final newline. One of a kind that the
// device is not is absent; one that says nothing here, since the device carries
// no protection information, is not asked.
func (d *Device) Attr(name string) Value[string] {
	if v, ok := d.hostAttrs[name]; ok {
		return v
	}
	i, ok := attrIndex[name]
	if !ok || i >= len(d.attrs) {
		return Value[string]{}
	}
	a := d.attrs[i]
	return Value[string]{V: a.text, State: a.state, Err: a.err, Source: d.source(name)}
}

// HCTL is the SCSI address, host:channel:target:lun; "" where it is no SCSI
// device.
func (d *Device) HCTL() string {
	if base := path.Base(d.devPath); reHCTL.MatchString(base) {
		return base
	}
	return ""
}

// DevicePath is the folder that the block device's "device" link leads to,
// relative to the root; "" where there is none.
func (d *Device) DevicePath() string { return d.devPath }

func (d *Device) source(name string) string {
	if rest, ok := strings.CutPrefix(name, "scsi_disk/"); ok {
		return d.devPath + "/scsi_disk/" + path.Base(d.devPath) + "/" + rest
	}
	if rest, ok := strings.CutPrefix(name, "device/"); ok && d.devPath != "" {
		return d.devPath + "/" + rest
	}
	if rest, ok := strings.CutPrefix(name, "ata_"); ok && d.ataLink != "" {
		folder, file, _ := strings.Cut(rest, "/")
		return d.ataLink + "/" + d.ataFile(folder == "device", file)
	}
	return d.SysPath + "/" + name
}

// Text returns an attribute's text where it is known. It is Attr for callers
// that do not ask where a value came from.
func (d *Device) Text(name string) (text string, ok bool) {
	if v, isHost := d.hostAttrs[name]; isHost {
		return v.V, v.Ok()
	}
	i, ok := attrIndex[name]
	if !ok || i >= len(d.attrs) || d.attrs[i].state != Known {
		return "", false
	}
	return d.attrs[i].text, true
}

// Uint returns an attribute as a number; text that is none is Unreadable.
func (d *Device) Uint(name string) Value[uint64] {
	s := d.Attr(name)
	v := Value[uint64]{State: s.State, Source: s.Source, Err: s.Err}
	if s.Ok() {
		if n, err := parseUint(s.V); err != nil {
			v.State, v.Err = Unreadable, err
		} else {
			v.V = n
		}
	}
	return v
}

// SizeBytes returns the capacity in bytes (sysfs counts 512-byte sectors
// whatever the block size).
func (d *Device) SizeBytes() Value[uint64] {
	v := d.Uint("size")
	if v.Ok() && v.V > 1<<55 {
		v.State, v.Err = Unreadable, fmt.Errorf("%d sectors is no capacity", v.V)
		return v
	}
	v.V *= 512
	return v
}

// faultCodes are what firmware writes for a serial number when it has lost the
// disk's contents; what follows is a code, not a serial number.
var faultCodes = []string{"BAD_CTX"}

// Bridged says whether the disk is a parallel one on a Serial ATA link, of which
// the kernel takes 256 sectors at most unless its list or a forced cable says
// otherwise (drivers/ata/libata-core.c, ata_dev_knobble). The link is Serial ATA
// where it shows a speed, and behind ahci and the sata_ drivers; a parallel one
// shows <unknown>. It is not asked where there is no IDENTIFY data, or no link.
func (d *Device) Bridged() Value[bool] {
	id, spd := d.ATAIdentify, d.Attr("ata_link/sata_spd")
	driver := d.Adapter.Driver
	serial := spd.Ok() && strings.HasSuffix(spd.V, "Gbps") || driver == "ahci" || strings.HasPrefix(driver, "sata_")
	switch {
	case !id.Ok() || d.Path != "libata" || id.V.ATAPI || !serial && !spd.Ok():
		return Value[bool]{Source: id.Source}
	case !serial && driver == "ata_piix": // shows no speed on Serial ATA either, without registers for it
		return Value[bool]{Source: spd.Source}
	case !serial:
		return known(false, spd.Source)
	}
	return known(!id.V.NativeSATA, id.Source)
}

// FaultCode returns the fault code that a serial number starts with, "" for
// none: BAD_CTX of "BAD_CTX 0000013x" (Intel 320). Blanks and NULs around it do
// not count.
func FaultCode(serial string) string {
	for _, code := range faultCodes {
		rest, ok := strings.CutPrefix(strings.Trim(serial, " \x00"), code)
		if ok && (rest == "" || rest[0] == ' ') {
			return code
		}
	}
	return ""
}

// IdentityPartial reports that an ATA device shows only its cut SCSI strings.
func (d *Device) IdentityPartial() bool {
	return d.vendorATA() && !(d.ATAModel.Ok() && d.ATAFirmware.Ok())
}

func (d *Device) vendorATA() bool {
	return d.Vendor.Ok() && strings.TrimRight(d.Vendor.V, " \x00") == "ATA"
}

func (d *Device) note(what string, state State, why, source string) {
	d.Notes = append(d.Notes, Note{What: what, State: state, Why: why, Source: source})
}

// readDevice fills d from its open folder.
func (r *reader) readDevice(d *Device, block dir) {
	var below dir // the SCSI device, NVMe controller or virtio device
	if target, err := block.readLink("device"); err == nil {
		at, p, err := r.follow(d.SysPath, "device", target)
		switch state := stateOf(err); state {
		case Known:
			below, d.devPath = at, p
			defer below.close()
		case Absent:
			d.note("device", state, "the link to "+target+" leads nowhere", d.SysPath+"/device")
		default:
			d.note("device", state, err.Error(), d.SysPath+"/device")
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		d.note("device", Unreadable, err.Error(), path.Join(d.SysPath, "device"))
	}
	isSCSI := below != nil && reHCTL.MatchString(path.Base(d.devPath))
	r.readAttributes(d, block, below, isSCSI)
	if d.Kind == "dm" {
		_, err := block.list("mq")
		switch state := stateOf(err); state {
		case Known, Absent:
			d.RequestBased = known(state == Known, d.SysPath+"/mq")
		default:
			d.RequestBased = failed[bool](err, d.SysPath+"/mq")
		}
	}
	d.Members = sortedNames(block, "slaves")
	d.Holders = sortedNames(block, "holders")
	d.readPartitions(block)
	if d.Kind == "md" {
		d.readMDMembers(block)
	}
	if r.counters {
		d.readCounters(block, below)
	}
	switch hardware := d.Kind == "disk" || d.Kind == "optical"; {
	case below != nil:
		d.hang(r.ancestry(d.devPath))
	case hardware && !strings.HasPrefix(d.SysPath, "sys/devices/virtual/"): // a partial tree
		d.hang(r.ancestry(path.Dir(d.SysPath)))
	}
	switch {
	case isSCSI:
		r.readSCSI(d, below)
	case strings.HasPrefix(d.Name, "nvme"):
		r.readNVMe(d, below)
	case strings.HasPrefix(d.Name, "vd"):
		d.Path, d.Transport = "virtio-blk", "virtio"
	case strings.HasPrefix(d.Name, "mmcblk"):
		d.Path, d.Transport = "mmc", "mmc"
		d.readMMC(below)
	case d.Kind != "disk" || strings.HasPrefix(d.Name, "xvd") || strings.HasPrefix(d.Name, "pmem") || strings.HasPrefix(d.Name, "dasd"):
		d.Path = "other" // neither SCSI nor ATA, whatever is behind a Xen or a channel device
	}
	if r.udev {
		r.readUdev(d)
	}
	// What the probe does not ask, since it sends no commands.
	if strings.HasPrefix(d.Path, "nvme") {
		d.note("mdts", NotAsked, "sysfs does not show MDTS; as root, nvme id-ctrl /dev/"+d.Name+" does; queue/max_hw_sectors_kb is within it", d.SysPath)
	}
	if (d.Path == "uas" || d.Path == "usb-storage") && !d.ATAModel.Ok() {
		d.note("identity.ata", NotAsked, "the disk behind the bridge was not asked for its own name; as root, hdparm -I /dev/"+d.Name+" does where the bridge lets it through", d.source("device/model"))
	}
	if d.IdentityPartial() && d.Path != "" {
		d.note("identity.ata", NotAsked,
			"sysfs shows 16 of the model's 40 characters and 4 of the firmware's 8; as root, hdparm -I /dev/"+d.Name+" shows them all", d.source("device/model"))
	}
	for i, a := range attributes {
		err := d.attrs[i].err
		if d.attrs[i].state == Known && !a.text {
			_, err = parseUint(d.attrs[i].text)
		}
		if err != nil {
			d.note(a.name, Unreadable, err.Error(), d.source(a.name))
		}
	}
}

// readAttributes fills d.attrs.
func (r *reader) readAttributes(d *Device, block, below dir, isSCSI bool) {
	d.attrs = make([]attr, len(attributes))
	var link dir // libata's
	if isSCSI {
		if d.ataLink, d.ataDevice = ataFolders(d.devPath); d.ataLink != "" {
			var err error
			if link, err = openDir(r.fsys, d.ataLink); err == nil {
				defer link.close()
			} else {
				link = missing{err}
			}
		}
	}
	usb := isSCSI && strings.Contains(d.devPath, "/usb")
	format := isSCSI && d.Kind == "disk" || strings.HasPrefix(d.Name, "nvme") || d.Kind == "dm" || d.Kind == "md"
	protected := false
	for i, a := range attributes {
		at, name := block, a.name
		switch a.of {
		case ofSCSI, ofUSB:
			if at = below; !isSCSI || a.of == ofUSB && !usb {
				at = nil
			}
			name = strings.TrimPrefix(name, "device/")
		case ofSCSIDisk:
			if at = below; !isSCSI || d.Kind != "disk" {
				at = nil
			}
			name = "scsi_disk/" + path.Base(d.devPath) + strings.TrimPrefix(name, "scsi_disk")
		case ofATALink, ofATADevice:
			at, name = link, d.ataFile(a.of == ofATADevice, path.Base(name))
		case ofNVMe:
			if !strings.HasPrefix(d.Name, "nvme") {
				at = nil
			}
		case ofDM, ofMD:
			if a.of == ofDM && d.Kind != "dm" || a.of == ofMD && d.Kind != "md" {
				at = nil
			}
		case ofFormat:
			if !format {
				at = nil
			}
		case ofProtected:
			if at = nil; protected {
				at = block
			} else if format {
				continue // not asked
			}
		}
		if at == nil {
			d.attrs[i].state = Absent
			continue
		}
		d.attrs[i] = readAttr(at, name)
		if a.of == ofFormat && d.attrs[i].state == Known {
			protected = d.attrs[i].text != "none"
		}
	}
}

// missing is a folder that could not be opened.
type missing struct{ err error }

func (m missing) readFile(string) ([]byte, error) { return nil, bare(m.err) }
func (m missing) readLink(string) (string, error) { return "", bare(m.err) }
func (m missing) list(string) ([]string, error)   { return nil, bare(m.err) }
func (missing) close()                            {}

func readAttr(at dir, name string) attr {
	b, err := at.readFile(name)
	if err != nil {
		a := attr{state: stateOf(err)}
		if a.state == Unreadable {
			a.err = err
		}
		return a
	}
	return attr{state: Known, text: strings.TrimSuffix(string(b), "\n")}
}

func sortedNames(at dir, name string) []string {
	names, err := at.list(name)
	if err != nil || len(names) == 0 {
		return nil
	}
	slices.SortFunc(names, compareNames)
	return names
}

var reHCTL = regexp.MustCompile(`^\d+:\d+:\d+:\d+$`)

// readText reads an identity attribute: the padding stays, the newline goes.
func (d *Device) readText(at dir, name string) Value[string] {
	b, err := at.readFile(name)
	if err != nil {
		return failed[string](err, d.devPath+"/"+name)
	}
	return known(strings.TrimSuffix(string(b), "\n"), d.devPath+"/"+name)
}

// vpdPages are the pages the kernel keeps in sysfs, by their file name there
// (page 00h is vpd_pg0; scsi_sysfs.c names the others by their code).
var vpdPages = []struct {
	code byte
	file string
}{{0x00, "vpd_pg0"}, {0x80, "vpd_pg80"}, {0x83, "vpd_pg83"}, {0x89, "vpd_pg89"}, {0xb0, "vpd_pgb0"}, {0xb1, "vpd_pgb1"}, {0xb2, "vpd_pgb2"}}

func (r *reader) readSCSI(d *Device, below dir) {
	d.Vendor, d.Product, d.Revision = d.readText(below, "vendor"), d.readText(below, "model"), d.readText(below, "rev")
	for _, v := range []struct {
		what string
		v    Value[string]
	}{{"vendor", d.Vendor}, {"model", d.Product}, {"rev", d.Revision}} {
		if v.v.State == Unreadable {
			d.note("identity.scsi."+v.what, Unreadable, v.v.Err.Error(), v.v.Source)
		}
	}
	if !d.Vendor.Ok() && !d.Product.Ok() {
		r.inquiry(d, below)
	}
	if d.Path == "" {
		switch {
		case !d.vendorATA():
			d.Path = "scsi"
		case slices.Contains(libsasDrivers, d.Adapter.Driver):
			d.Path = "libata"
		default:
			d.Path = "sat-firmware"
		}
	}
	list := d.readText(below, "blacklist")
	if list.State == Unreadable {
		d.note("blacklist", Unreadable, list.Err.Error(), list.Source)
	}
	d.Blacklist = Value[[]string]{State: list.State, Source: list.Source, Err: list.Err}
	if list.Ok() {
		d.Blacklist.V = strings.Fields(list.V)
	}
	d.readPages(below, r.avoid)
	r.ataIdentity(d)
	if p := d.Pages[0x80]; p.State == Known && !d.Serial.Ok() {
		if s, err := scsi.ParseUnitSerialNumber(p.V); err == nil && strings.Trim(s.ProductSerialNumber, " \x00") != "" {
			d.Serial = known(strings.Trim(s.ProductSerialNumber, " \x00"), p.Source)
		}
	}
	r.readTarget(d)
	d.readVolume(below)
}

// inquiry takes the strings from the standard INQUIRY data where the kernel
// shows those and not the single attributes.
func (r *reader) inquiry(d *Device, below dir) {
	b, err := below.readFile("inquiry")
	source := path.Join(d.devPath, "inquiry")
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			d.note("inquiry", Unreadable, err.Error(), source)
		}
		return
	}
	inq, err := scsi.ParseInquiry(b)
	if err != nil {
		d.note("inquiry", Unreadable, err.Error(), source)
		return
	}
	d.Vendor, d.Product, d.Revision = known(inq.Vendor, source), known(inq.Product, source), known(inq.Revision, source)
}

// readPages takes the VPD pages from sysfs. A page that is not there because
// the kernel's own list or the database forbids it is not asked, which is
// another fact than absent.
func (d *Device) readPages(below dir, avoid func(*Device) []Avoided) {
	d.Pages = make(map[byte]Value[[]byte], len(vpdPages))
	var forbidden *Avoided
	if d.Blacklist.Ok() && slices.Contains(d.Blacklist.V, "SKIP_VPD_PAGES") {
		forbidden = &Avoided{Command: "vpd:*", Why: "the kernel's SCSI device list forbids VPD pages for this name (SKIP_VPD_PAGES)", Source: d.Blacklist.Source}
	}
	if avoid != nil && forbidden == nil {
		for _, a := range avoid(d) {
			if a.Command == "vpd:*" || a.Command == "inquiry-evpd" {
				forbidden = &a
				break
			}
		}
	}
	for _, p := range vpdPages {
		source := d.devPath + "/" + p.file
		b, err := below.readFile(p.file)
		v := Value[[]byte]{V: bytes.Clone(b), State: stateOf(err), Source: source}
		switch {
		case v.State == Absent && forbidden != nil:
			v.State = NotAsked
		case v.State == Unreadable:
			v.Err = err
			d.note(fmt.Sprintf("vpd.%02x", p.code), Unreadable, err.Error(), source)
		}
		d.Pages[p.code] = v
	}
	if forbidden != nil && d.Pages[0xb0].State == NotAsked {
		d.note("vpd", NotAsked, forbidden.Why, forbidden.Source)
	}
	b0 := d.Pages[0xb0]
	d.BlockLimits = Value[scsi.BlockLimits]{State: b0.State, Source: b0.Source, Err: b0.Err}
	if b0.State != Known {
		return
	}
	lim, err := scsi.ParseBlockLimits(b0.V)
	if err != nil {
		d.BlockLimits.State, d.BlockLimits.Err = Unreadable, err
		d.note("vpd.b0", Unreadable, err.Error(), b0.Source)
		return
	}
	d.BlockLimits.V = lim
	if lim.Truncated {
		d.note("vpd.b0", Known, fmt.Sprintf("the page claims to be longer than the %d bytes that are there", len(b0.V)), b0.Source)
	}
}

// ataIdentity finds the full IDENTIFY DEVICE strings: libata's own copy, else
// the one inside VPD page 89h (SAT-4, ATA Information VPD page).
func (r *reader) ataIdentity(d *Device) {
	if !d.vendorATA() {
		return
	}
	if data, source, ok := r.libataIdentify(d); ok {
		d.identify(data, source)
	}
	page := d.Pages[0x89]
	if page.State == Known {
		if info, err := scsi.ParseATAInformation(page.V); err != nil {
			if !d.ATAModel.Ok() {
				d.note("vpd.89", Unreadable, err.Error(), page.Source)
			}
		} else if data, ok := info.Identify(); ok && d.ATAModel.Ok() {
			d.compareIdentify(data[:], page.Source)
		} else if ok {
			d.identify(data[:], page.Source)
		}
	}
	// INQUIRY shows the start of the model, whoever translates.
	if d.ATAModel.Ok() && d.Product.Ok() && strings.Trim(d.Product.V, " \x00") != "" && !cutAgrees(d.ATAModel.V, d.Product.V) {
		d.disagree("identity.ata.model", Source{d.ATAModel.V, d.ATAModel.Source}, Source{strings.TrimSpace(d.Product.V), d.Product.Source})
	}
}

// compareIdentify notes where a second copy of IDENTIFY DEVICE says otherwise.
func (d *Device) compareIdentify(data []byte, source string) {
	id, err := ata.ParseIdentify(data)
	if err != nil {
		return
	}
	if id.Model != d.ATAModel.V {
		d.disagree("identity.ata.model", Source{d.ATAModel.V, d.ATAModel.Source}, Source{id.Model, source})
	}
	if id.Firmware != d.ATAFirmware.V {
		d.disagree("identity.ata.firmware", Source{d.ATAFirmware.V, d.ATAFirmware.Source}, Source{id.Firmware, source})
	}
}

func (d *Device) identify(data []byte, source string) {
	id, err := ata.ParseIdentify(data)
	if err != nil {
		d.note("identity.ata", Unreadable, err.Error(), source)
		return
	}
	d.ATAModel, d.ATAFirmware, d.ATAIdentify = known(id.Model, source), known(id.Firmware, source), known(id, source)
	if id.Serial != "" {
		d.Serial = known(id.Serial, source)
	}
}

// readMMC reads a card's register CID as the MMC core prints it.
func (d *Device) readMMC(below dir) {
	if below == nil {
		return
	}
	d.MMC = map[string]string{}
	for _, name := range []string{"name", "manfid", "oemid", "fwrev"} {
		if s := text(below, name); s != "" {
			d.MMC[name] = s
		}
	}
	if d.MMC["name"] == "" { // a boot area hangs on its card's block device
		d.MMC = nil
	}
}

// ataFolders returns the folder of libata's link and the name of its device
// there. The SCSI channel is the port of a multiplier, the target the device on
// the link (drivers/ata/libata-transport.c, ata_tlink_add, ata_tdev_add).
func ataFolders(devPath string) (link, device string) {
	port, portPath := ataPort(devPath)
	if port == "" {
		return "", ""
	}
	hctl := strings.Split(path.Base(devPath), ":")
	if hctl[1] != "0" {
		return portPath + "/link" + port + "." + hctl[1], "dev" + port + "." + hctl[1] + ".0"
	}
	return portPath + "/link" + port, "dev" + port + "." + hctl[2]
}

// ataFile is the path of a libata attribute below the link's folder.
func (d *Device) ataFile(device bool, file string) string {
	if device {
		return d.ataDevice + "/ata_device/" + d.ataDevice + "/" + file
	}
	return "ata_link/" + path.Base(d.ataLink) + "/" + file
}

// libataIdentify reads ata_device's id attribute: 256 words in hex.
func (r *reader) libataIdentify(d *Device) (data []byte, source string, ok bool) {
	if d.ataLink == "" {
		return nil, "", false
	}
	source = d.ataLink + "/" + d.ataFile(true, "id")
	text, err := r.root.readFile(source)
	if err != nil {
		return nil, "", false
	}
	words := strings.Fields(string(text))
	if len(words) != 256 {
		d.note("identity.ata", Unreadable, fmt.Sprintf("%d words, want 256", len(words)), source)
		return nil, "", false
	}
	data = make([]byte, 512)
	for i, w := range words {
		b, err := hex.DecodeString(w)
		if err != nil || len(b) != 2 {
			d.note("identity.ata", Unreadable, fmt.Sprintf("word %d is %.10q", i, w), source)
			return nil, "", false
		}
		data[2*i], data[2*i+1] = b[1], b[0]
	}
	return data, source, true
}

func (r *reader) readNVMe(d *Device, below dir) {
	d.Transport, d.Path = "nvme", "nvme"
	if below == nil {
		if d.Adapter.PCI != "" {
			d.Path = "nvme-pci"
		}
		return
	}
	trim := func(v Value[string]) Value[string] {
		v.V = strings.Trim(v.V, " \x00")
		return v
	}
	d.NVMeModel, d.NVMeFirmware = trim(d.readText(below, "model")), trim(d.readText(below, "firmware_rev"))
	d.NVMeNQN = trim(d.readText(below, "subsysnqn"))
	if s := trim(d.readText(below, "serial")); s.Ok() && s.V != "" {
		d.Serial = s
	}
	for _, v := range []struct {
		what string
		v    Value[string]
	}{{"model", d.NVMeModel}, {"firmware", d.NVMeFirmware}} {
		if v.v.State == Unreadable {
			d.note("identity.nvme."+v.what, Unreadable, v.v.Err.Error(), v.v.Source)
		}
	}
	quirks := d.readText(below, "quirks")
	d.NVMeQuirks = Value[[]string]{State: quirks.State, Source: quirks.Source, Err: quirks.Err}
	if quirks.Ok() {
		d.NVMeQuirks.V = strings.Fields(quirks.V)
		if slices.Equal(d.NVMeQuirks.V, []string{"none"}) {
			d.NVMeQuirks.V = []string{}
		}
	}
	transport := d.readText(below, "transport")
	if transport.State == Absent { // a multipath head hangs on its subsystem
		transport = r.subsystemTransport(d, below)
		r.nvmePaths(d, below)
	}
	switch {
	case transport.Ok() && transport.V == "pcie":
		d.Path = "nvme-pci"
	case transport.Ok():
		d.Path = "nvme-fabrics"
		d.Target = &Target{Name: d.NVMeNQN.V, Portal: text(below, "address"), Source: d.devPath}
	case d.Adapter.PCI != "":
		d.Path = "nvme-pci"
	}
}

// subsystemTransport returns the transport that all controllers of a
// subsystem share.
func (r *reader) subsystemTransport(d *Device, below dir) Value[string] {
	names, err := below.list(".")
	if err != nil {
		return Value[string]{}
	}
	var out Value[string]
	for _, n := range names {
		if !reNVMeCtrl.MatchString(n) {
			continue
		}
		p, err := resolve(r.fsys, path.Join(d.devPath, n))
		if err != nil {
			continue
		}
		b, err := r.root.readFile(p + "/transport")
		if err != nil {
			return Value[string]{}
		}
		t := strings.TrimSpace(string(b))
		if out.Ok() && out.V != t {
			return Value[string]{}
		}
		out = known(t, p+"/transport")
	}
	return out
}

var reNVMeCtrl = regexp.MustCompile(`^nvme\d+$`)
