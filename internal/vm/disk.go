package vm

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"slices"
	"strconv"
	"strings"
)

// A Bus is how a disk is attached.
type Bus string

// The buses on the menu. Each disk of a bus shares one controller, except
// where Disk.Controller says otherwise, and NVMe and virtio-blk, which have none
// to share.
const (
	AHCI       Bus = "ahci"         // ide-hd; SATA, by libata
	VirtioSCSI Bus = "virtio-scsi"  // scsi-hd
	MegaSAS    Bus = "megasas"      // scsi-hd as a system PD
	MPTSAS     Bus = "mptsas1068"   // scsi-hd
	PVSCSI     Bus = "pvscsi"       // scsi-hd
	UAS        Bus = "usb-uas"      // scsi-hd behind a USB bridge that speaks UAS
	USBStorage Bus = "usb-storage"  // scsi-hd behind a bulk-only USB bridge
	NVMe       Bus = "nvme"         // a controller with one namespace
	VirtioBlk  Bus = "virtio-blk"   // no SCSI at all
	maxSATA        = 6              // ports of an AHCI
	hotplugged     = "hotplug-port" // prefix of the ids of root ports
)

// modulesOf are the drivers that a bus needs, in loading order.
var modulesOf = map[Bus][]string{
	AHCI:       {"ahci", "sd_mod", "sg"},
	VirtioSCSI: {"virtio_scsi", "sd_mod", "sg"},
	MegaSAS:    {"megaraid_sas", "sd_mod", "sg"},
	MPTSAS:     {"mptsas", "sd_mod", "sg"},
	PVSCSI:     {"vmw_pvscsi", "sd_mod", "sg"},
	UAS:        {"xhci_pci", "ehci_pci", "uas", "sd_mod", "sg"},
	USBStorage: {"xhci_pci", "ehci_pci", "usb_storage", "sd_mod", "sg"},
	NVMe:       {"nvme"},
	VirtioBlk:  {"virtio_blk"},
}

// A Disk is one disk of the guest. Fields that its bus cannot set are an
// error, not ignored. Zero values leave QEMU's own.
type Disk struct {
	// Serial finds the disk in the guest, where names change from boot to
	// boot. It is required and unique, except for two paths to one Image,
	// and at most 20 characters long, as ATA and NVMe allow no more.
	Serial string
	// ID is the device's id in QEMU, for Unplug and QMP; empty is Serial.
	ID string

	Bus Bus
	// Controller tells controllers of one bus apart; disks with the same name
	// share one. AHCI has that of the board for the empty name.
	Controller string
	// ControllerProperties are "name=value" properties of the controller, which
	// its first disk sets.
	ControllerProperties []string
	Image                *Image

	// INQUIRY, on SCSI buses: T10 VENDOR IDENTIFICATION (8), PRODUCT
	// IDENTIFICATION (16), PRODUCT REVISION LEVEL (4).
	Vendor, Product, Revision string
	// IDENTIFY DEVICE, on AHCI: model (40), firmware revision (8). QEMU has no
	// such knob for NVMe.
	Model, Firmware string
	WWN             uint64

	// MaxIOBytes and OptIOBytes become MAXIMUM and OPTIMAL TRANSFER LENGTH of
	// the Block Limits VPD page, on SCSI buses.
	MaxIOBytes, MinIOBytes, OptIOBytes int64
	// MDTS is the NVMe field, a power of two in pages of 4 KiB; 0 leaves
	// QEMU's 7.
	MDTS int

	LogicalBlockBytes, PhysicalBlockBytes int
	// RotationRate is that of the Block Device Characteristics VPD page: 1
	// for a solid-state disk, else revolutions per minute.
	RotationRate int

	// HighSpeed attaches a USB bridge at USB 2.0 speed, where the default is
	// SuperSpeed.
	HighSpeed bool

	// Namespace makes an NVMe disk of a controller and a namespace of its own,
	// which has these "name=value" properties of QEMU's nvme-ns ("ms=8").
	Namespace []string

	// Shared lets two disks use one Image: two paths to one disk. Give both
	// the same Serial and WWN, and different IDs.
	Shared bool
	// Hotplug puts an NVMe or virtio-blk disk behind a root port, so that it
	// can be unplugged; disks on SCSI and USB buses always can.
	Hotplug bool
	// Mute is a disk whose serial number the kernel does not ask for, by its
	// list of SCSI devices: Start does not wait for it, and nothing here finds it.
	Mute bool
	// Later leaves the disk out at start; Machine.Plug brings it.
	Later bool

	// Properties are further "name=value" properties of the QEMU device.
	Properties []string
}

func (d Disk) id() string { return cmpOr(d.ID, d.Serial) }

func (d Disk) scsi() bool {
	switch d.Bus {
	case VirtioSCSI, MegaSAS, MPTSAS, PVSCSI, UAS, USBStorage:
		return true
	}
	return false
}

func (d Disk) check() error {
	var faults []error
	bad := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("disk %q: "+format, append([]any{d.id()}, args...)...))
	}
	if _, ok := modulesOf[d.Bus]; !ok {
		bad("unknown bus %q", d.Bus)
	}
	if d.Serial == "" || len(d.Serial) > 20 {
		bad("serial must have 1 to 20 characters")
	}
	if d.Image == nil {
		bad("no image")
	}
	for _, f := range []struct {
		name, value string
		ok          bool
		long        int
	}{
		{"Vendor", d.Vendor, d.scsi(), 8}, {"Product", d.Product, d.scsi(), 16}, {"Revision", d.Revision, d.scsi(), 4},
		{"Model", d.Model, d.Bus == AHCI, 40}, {"Firmware", d.Firmware, d.Bus == AHCI, 8},
	} {
		if f.value != "" && !f.ok {
			bad("%s cannot be set on %s", f.name, d.Bus)
		}
		if len(f.value) > f.long {
			bad("%s is longer than %d", f.name, f.long)
		}
	}
	if (d.MaxIOBytes != 0) && !d.scsi() {
		bad("MaxIOBytes cannot be set on %s", d.Bus)
	}
	if d.MDTS != 0 && d.Bus != NVMe {
		bad("MDTS cannot be set on %s", d.Bus)
	}
	if d.RotationRate != 0 && !d.scsi() && d.Bus != AHCI {
		bad("RotationRate cannot be set on %s", d.Bus)
	}
	if d.HighSpeed && d.Bus != UAS && d.Bus != USBStorage {
		bad("HighSpeed cannot be set on %s", d.Bus)
	}
	if len(d.Namespace) > 0 && (d.Bus != NVMe || d.Hotplug || d.Later) {
		bad("Namespace cannot be set on %s, nor on a disk that is plugged", d.Bus)
	}
	if len(d.ControllerProperties) > 0 && (d.Bus == NVMe || d.Bus == VirtioBlk || d.Bus == AHCI && d.Controller == "") {
		bad("ControllerProperties cannot be set without a controller")
	}
	if d.WWN != 0 && !d.scsi() && d.Bus != AHCI {
		bad("WWN cannot be set on %s", d.Bus)
	}
	return errors.Join(faults...)
}

// An Image is what a disk stores its data in. It may serve several machines
// one after the other, as after a power cut.
type Image struct {
	file   *os.File
	socket string
}

// Sparse returns an image of that many zero bytes which take no space, in a
// file without a name. Close it, or use TestImage.
func Sparse(bytes int64) *Image {
	f, err := os.CreateTemp("", "quirkcheck-disk-*")
	if err == nil {
		os.Remove(f.Name())
		if err = f.Truncate(bytes); err != nil {
			f.Close()
		}
	}
	if err != nil {
		// Only a full or missing temporary folder gets us here; saying so at
		// Start keeps device lists plain literals.
		return &Image{socket: "", file: nil}
	}
	return &Image{file: f}
}

// NBD returns an image that an NBD server on a unix socket keeps. A name that
// begins with @ is in the abstract namespace, which leaves nothing behind. See
// ServeNBD.
func NBD(socket string) *Image { return &Image{socket: socket} }

// File returns the file behind a sparse image, to look at what the guest
// wrote, and nil for an NBD image.
func (i *Image) File() *os.File { return i.file }

// Close gives a sparse image's space back.
func (i *Image) Close() error {
	if i.file == nil {
		return nil
	}
	return i.file.Close()
}

// quote escapes a value in QEMU's comma separated options.
func quote(s string) string { return strings.ReplaceAll(s, ",", ",,") }

// hardware collects QEMU's arguments for disks, and the controllers they
// share.
type hardware struct {
	args        []string
	files       []*os.File // handed to QEMU, from firstFile on
	firstFile   int
	controllers map[string]bool
	nodes       map[*Image]string
	units       map[string]int // disks so far on a controller
	sata        map[string]int // ports taken of an AHCI
	ports       int            // root ports so far
}

// newHardware has images handed to QEMU from that descriptor on.
func newHardware(firstFile int) *hardware {
	return &hardware{firstFile: firstFile, controllers: map[string]bool{}, nodes: map[*Image]string{}, units: map[string]int{}, sata: map[string]int{}}
}

func (h *hardware) device(props ...string) {
	h.args = append(h.args, "-device", strings.Join(props, ","))
}

// node adds the block node of an image, once.
func (h *hardware) node(i *Image) (string, error) {
	if n, ok := h.nodes[i]; ok {
		return n, nil
	}
	n := "n" + strconv.Itoa(len(h.nodes))
	h.nodes[i] = n
	switch {
	case i.file != nil:
		h.files = append(h.files, i.file)
		fd := h.firstFile + len(h.files) - 1
		h.args = append(h.args, "-blockdev", fmt.Sprintf(
			"driver=raw,node-name=%s,discard=unmap,file.driver=file,file.locking=off,file.filename=/proc/self/fd/%d", n, fd))
	case i.socket != "":
		path, abstract := strings.CutPrefix(i.socket, "@")
		arg := fmt.Sprintf("driver=nbd,node-name=%s,discard=unmap,server.type=unix,server.path=%s", n, quote(path))
		if abstract {
			arg += ",server.abstract=on"
		}
		h.args = append(h.args, "-blockdev", arg)
	default:
		return "", errors.New("sparse image could not be created in the temporary folder")
	}
	return n, nil
}

// add puts a disk, or with Later only its controller and image, on the
// command line, and returns its properties for device_add.
func (h *hardware) add(d Disk) (props []string, err error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	node, err := h.node(d.Image)
	if err != nil {
		return nil, fmt.Errorf("disk %q: %w", d.id(), err)
	}
	bus, driver := h.controller(d)
	if d.Bus == AHCI && bus == "" {
		return nil, fmt.Errorf("disk %q: an AHCI has %d ports", d.id(), maxSATA)
	}
	props = []string{driver, "id=" + quote(d.id()), "drive=" + node, "serial=" + quote(d.Serial)}
	if bus != "" {
		props = append(props, "bus="+bus)
	}
	set := func(name, value string) {
		if value != "" && value != "0" {
			props = append(props, name+"="+quote(value))
		}
	}
	set("vendor", d.Vendor)
	set("product", d.Product)
	set("ver", d.Revision+d.Firmware) // only one of them passes check
	set("model", d.Model)
	if d.Bus == MPTSAS && d.WWN == 0 {
		d.WWN = madeUpWWN(d.Serial) // QEMU shows it as SAS address, and the driver skips a phy without
	}
	set("wwn", strconv.FormatUint(d.WWN, 10))
	set("max_io_size", strconv.FormatInt(d.MaxIOBytes, 10))
	set("min_io_size", strconv.FormatInt(d.MinIOBytes, 10))
	set("opt_io_size", strconv.FormatInt(d.OptIOBytes, 10))
	set("mdts", strconv.Itoa(d.MDTS))
	set("logical_block_size", strconv.Itoa(d.LogicalBlockBytes))
	set("physical_block_size", strconv.Itoa(d.PhysicalBlockBytes))
	set("rotation_rate", strconv.Itoa(d.RotationRate))
	if d.Shared {
		set("share-rw", "on")
	}
	if d.scsi() {
		// One target after the other; the identification descriptor is to be
		// that of the disk and not of the path.
		unit := "scsi-id"
		if d.Bus == UAS || d.Bus == USBStorage {
			unit = "lun" // a bridge has one target
		}
		props = append(props, fmt.Sprintf("%s=%d", unit, h.units[bus]), "device_id="+quote(d.Serial))
	}
	h.units[bus]++
	switch d.Bus {
	case NVMe:
	default:
		// The default for writes stops the machine when the backend is full.
		props = append(props, "werror=report", "rerror=report")
	}
	props = append(props, d.Properties...)
	if len(d.Namespace) > 0 {
		// What is the controller's stays, and the rest is the namespace's.
		ns := append([]string{"nvme-ns", "bus=" + quote(d.id())}, d.Namespace...)
		props = slices.DeleteFunc(props, func(p string) bool {
			name, _, _ := strings.Cut(p, "=")
			theirs := name == "drive" || strings.HasSuffix(name, "_block_size")
			if theirs {
				ns = append(ns, p)
			}
			return theirs
		})
		h.device(props...)
		h.device(ns...)
		return props, nil
	}
	if !d.Later {
		h.device(props...)
	}
	return props, nil
}

// controller makes sure of a disk's controller and returns the bus to name,
// and the device's driver.
func (h *hardware) controller(d Disk) (bus, driver string) {
	once := func(id string, props ...string) {
		if !h.controllers[id] {
			h.controllers[id] = true
			h.device(append(props, "id="+id)...)
		}
	}
	id := strings.ReplaceAll(string(d.Bus), "-", "") + d.Controller
	// The bridge of a USB disk, on a controller with enough ports of its speed.
	usb := func(bridge ...string) {
		hc := "xhci"
		if d.HighSpeed {
			hc = "ehci"
			id += "-" + hc
			once(hc, "usb-ehci")
		} else {
			once(hc, "qemu-xhci", "p2=8", "p3=8")
		}
		once(id, append(append(bridge, "bus="+hc+".0"), d.ControllerProperties...)...)
	}
	own := func(driver string) { once(id, append([]string{driver}, d.ControllerProperties...)...) }
	rootPort := func() string {
		if !d.Hotplug && !d.Later {
			return ""
		}
		h.ports++
		id := hotplugged + strconv.Itoa(h.ports)
		once(id, "pcie-root-port", "chassis="+strconv.Itoa(h.ports))
		return id
	}
	switch d.Bus {
	case AHCI:
		if d.Controller == "" {
			id = "ide" // the board's
		} else {
			own("ich9-ahci")
		}
		port := h.sata[id]
		if port == maxSATA {
			return "", "ide-hd"
		}
		h.sata[id]++
		return id + "." + strconv.Itoa(port), "ide-hd"
	case VirtioSCSI:
		own("virtio-scsi-pci")
	case MegaSAS:
		own("megasas")
	case MPTSAS:
		own("mptsas1068")
	case PVSCSI:
		own("pvscsi")
	case UAS:
		usb("usb-uas")
	case USBStorage:
		// usb-bot and not usb-storage, whose disk has no identity properties.
		// Its serial is the bridge's, which is how the guest finds the disk.
		id += "-" + strings.ToLower(slug(d.Serial))
		usb("usb-bot", "serial="+quote(d.Serial))
	case NVMe:
		return rootPort(), "nvme"
	case VirtioBlk:
		return rootPort(), "virtio-blk-pci"
	}
	return id + ".0", "scsi-hd"
}

// madeUpWWN is a NAA 3h (locally assigned) identifier.
func madeUpWWN(serial string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(serial))
	return 3<<60 | h.Sum64()>>4
}

// slug keeps what QEMU allows in an id.
func slug(s string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, s)
}

// modules returns the drivers of a list of disks, in loading order.
func diskModules(disks []Disk) []string {
	var out []string
	for _, d := range disks {
		for _, m := range modulesOf[d.Bus] {
			if !slices.Contains(out, m) {
				out = append(out, m)
			}
		}
	}
	return out
}
