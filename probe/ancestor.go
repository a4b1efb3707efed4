package probe

import (
	"path"
	"regexp"
	"strings"
)

// ancestor is what the folders above a device tell; devices of one host share
// it. The fields are set before it is published and never change.
type ancestor struct {
	adapter   Adapter
	usb       map[string]string
	path      string // libata, usb-storage, uas, sbp2, "" for plain SCSI or unknown
	transport string
	hostAttrs map[string]Value[string]
	sas       Value[bool]
	iommu     Value[string]
}

// hostAttributes are files of the SCSI host, read once a host and by the name
// they have there (drivers/scsi/scsi_sysfs.c; libata-sata.c for the policy).
// Those behind prot_capabilities are read where it names any.
var hostAttributes = []struct {
	name      string
	protected bool
}{{"link_power_management_policy", false}, {"proc_name", false}, {"sg_tablesize", false}, {"prot_capabilities", false}, {"prot_guard_type", true}, {"sg_prot_tablesize", true}}

// HostAttributes lists the files read of a SCSI host, which Attr takes by these
// names: sg_tablesize is the adapter's bound of segments, prot_capabilities its
// T10 protection types as bits (include/scsi/scsi_host.h, enum
// scsi_host_prot_capabilities), 0 for none.
func HostAttributes() []string {
	names := make([]string, len(hostAttributes))
	for i, a := range hostAttributes {
		names[i] = a.name
	}
	return names
}

var (
	rePCI    = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)
	reATA    = regexp.MustCompile(`^ata(\d+)$`)
	reHost   = regexp.MustCompile(`^host\d+$`)
	reUSB    = regexp.MustCompile(`^\d+-\d+(\.\d+)*$`)
	reUSBIf  = regexp.MustCompile(`^\d+-\d+(\.\d+)*:\d+\.\d+$`)
	reVirtio = regexp.MustCompile(`^virtio\d+$`)
	reFW     = regexp.MustCompile(`^fw\d+(\.\d+)?$`)
)

// ataPort returns the libata port number above a device and its folder.
func ataPort(devPath string) (port, folder string) {
	for p := devPath; p != "." && p != "/"; p = path.Dir(p) {
		if m := reATA.FindStringSubmatch(path.Base(p)); m != nil {
			return m[1], p
		}
	}
	return "", ""
}

// libsas drivers run ATA commands through libata, so its tables apply though
// no ata port lies above the SCSI device.
var libsasDrivers = []string{"aic94xx", "hisi_sas_v1_hw", "hisi_sas_v2_hw", "hisi_sas_v3_hw", "isci", "mvsas", "pm80xx"}

func (d *Device) hang(a *ancestor) {
	d.Adapter, d.USB, d.Path, d.Transport, d.hostAttrs = a.adapter, a.usb, a.path, a.transport, a.hostAttrs
	d.SASHost, d.IOMMU = a.sas, a.iommu
}

// ancestry reads the folders above a device once per parent folder: for SCSI
// the host, for others the device's own folder.
func (r *reader) ancestry(devPath string) *ancestor {
	key := devPath
	for p := devPath; p != "." && p != "/"; p = path.Dir(p) {
		if reHost.MatchString(path.Base(p)) {
			key = p
			break
		}
	}
	r.shared.mu.Lock()
	defer r.shared.mu.Unlock()
	if a, ok := r.shared.ancestors[key]; ok {
		return a
	}
	a := r.readAncestry(key)
	r.shared.ancestors[key] = a
	return a
}

func (r *reader) readAncestry(from string) *ancestor {
	a := &ancestor{adapter: Adapter{Known: true}, hostAttrs: map[string]Value[string]{}}
	read := func(p string) string {
		b, err := r.root.readFile(p)
		if err != nil {
			return ""
		}
		return strings.TrimSpace(string(b))
	}
	exists := func(p string) (State, error) {
		d, err := openDir(r.fsys, p)
		if err == nil {
			d.close()
		}
		return stateOf(err), err
	}
	procName, virtioDriver, virtioPath := "", "", ""
	hostPath := ""
	for p := from; p != "." && p != "sys/devices" && p != "/"; p = path.Dir(p) {
		switch name := path.Base(p); {
		case reHost.MatchString(name) && a.adapter.Host == "":
			a.adapter.Host, hostPath = name, p
			a.hostAttrs = r.readHostAttributes(path.Join(p, "scsi_host", name))
			procName = a.hostAttrs["proc_name"].V
		case reATA.MatchString(name):
			a.path, a.adapter.ATAPort = "libata", strings.TrimPrefix(name, "ata")
		case reUSBIf.MatchString(name) && a.path == "":
			switch base(r.root, p+"/driver") {
			case "uas":
				a.path = "uas"
			case "usb-storage":
				a.path = "usb-storage"
			}
		case reUSB.MatchString(name) && a.usb == nil:
			a.usb = map[string]string{}
			for file, key := range map[string]string{"idVendor": "vid", "idProduct": "pid", "bcdDevice": "bcd",
				"manufacturer": "manufacturer", "product": "product", "speed": "speed", "bMaxPower": "max_power"} {
				if b, err := r.root.readFile(p + "/" + file); err == nil {
					a.usb[key] = strings.TrimRight(string(b), "\n")
				}
			}
		case reFW.MatchString(name) && a.path == "":
			a.path = "sbp2"
		case reVirtio.MatchString(name) && virtioDriver == "":
			virtioDriver, virtioPath = base(r.root, p+"/driver"), p
		case rePCI.MatchString(name) && a.adapter.SysPath == "":
			hex := func(file string) string { return strings.TrimPrefix(read(p+"/"+file), "0x") }
			if v, dev := hex("vendor"), hex("device"); v != "" && dev != "" {
				a.adapter.PCI = strings.TrimRight(strings.Join([]string{v, dev, hex("subsystem_vendor"), hex("subsystem_device")}, ":"), ":")
			} else {
				a.adapter.Known = false // there, and the tree does not say which
			}
			a.adapter.Class, a.adapter.Revision = hex("class"), hex("revision")
			a.adapter.Driver = base(r.root, p+"/driver")
			a.adapter.SysPath = p
		}
	}
	switch {
	case virtioDriver != "":
		a.adapter.Driver = virtioDriver
	case procName != "" && procName != "(null)" && a.adapter.Driver == "":
		a.adapter.Driver = procName
	}
	a.transport, a.sas = transportOf(a, procName, hostPath, from, exists)
	a.iommu = r.readIOMMU(a.adapter.SysPath, from, virtioPath)
	return a
}

// readHostAttributes reads those of a SCSI host's folder.
func (r *reader) readHostAttributes(folder string) map[string]Value[string] {
	out := make(map[string]Value[string], len(hostAttributes))
	protected := false
	for _, h := range hostAttributes {
		if h.protected && !protected {
			continue
		}
		source := folder + "/" + h.name
		b, err := r.root.readFile(source)
		if err != nil {
			out[h.name] = failed[string](err, source)
			continue
		}
		out[h.name] = known(strings.TrimSpace(string(b)), source)
		if h.name == "prot_capabilities" {
			protected = out[h.name].V != "0"
		}
	}
	return out
}

// transportOf names the transport as lsblk's TRAN column does, and tells whether
// the host is of the SAS class.
func transportOf(a *ancestor, procName, hostPath, from string, exists func(string) (State, error)) (string, Value[bool]) {
	if hostPath == "" {
		return "", Value[bool]{}
	}
	is := func(class string) bool {
		state, _ := exists(path.Join(hostPath, class+"_host"))
		return state == Known
	}
	source := path.Join(hostPath, "sas_host")
	switch { // a host has one transport class
	case is("spi"):
		return "spi", known(false, source)
	case is("fc"):
		return "fc", known(false, source)
	}
	state, err := exists(source)
	sas := Value[bool]{State: state, Source: source}
	switch state {
	case Known:
		sas.V = true
		return "sas", sas
	case Absent:
		if sas.State = Known; !a.hostAttrs["proc_name"].Ok() {
			sas.State = NotAsked // the tree lacks more than that
		}
	case Unreadable:
		sas.Err = err
	}
	switch {
	case a.path == "sbp2":
		return "sbp", sas
	case is("iscsi"):
		return "iscsi", sas
	case strings.Contains(from, "/usb"):
		return "usb", sas
	case strings.HasPrefix(procName, "ahci"), strings.HasPrefix(procName, "sata"):
		return "sata", sas
	case strings.Contains(procName, "ata"):
		return "ata", sas
	}
	return "", sas
}
