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
	exists := func(p string) bool {
		d, err := openDir(r.fsys, p)
		if err != nil {
			return false
		}
		d.close()
		return true
	}
	procName, virtioDriver := "", ""
	hostPath := ""
	for p := from; p != "." && p != "sys/devices" && p != "/"; p = path.Dir(p) {
		switch name := path.Base(p); {
		case reHost.MatchString(name) && a.adapter.Host == "":
			a.adapter.Host, hostPath = name, p
			scsiHost := path.Join(p, "scsi_host", name)
			procName = read(scsiHost + "/proc_name")
			lpm := path.Join(scsiHost, "link_power_management_policy")
			if b, err := r.root.readFile(lpm); err != nil {
				a.hostAttrs["link_power_management_policy"] = failed[string](err, lpm)
			} else {
				a.hostAttrs["link_power_management_policy"] = known(strings.TrimSpace(string(b)), lpm)
			}
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
			virtioDriver = base(r.root, p+"/driver")
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
	a.transport = transportOf(a, procName, hostPath, from, exists)
	return a
}

// transportOf names the transport as lsblk's TRAN column does.
func transportOf(a *ancestor, procName, hostPath, from string, exists func(string) bool) string {
	if hostPath == "" {
		return ""
	}
	is := func(class string) bool { return exists(path.Join(hostPath, class+"_host")) }
	switch {
	case is("spi"):
		return "spi"
	case is("fc"):
		return "fc"
	case is("sas"):
		return "sas"
	case a.path == "sbp2":
		return "sbp"
	case is("iscsi"):
		return "iscsi"
	case strings.Contains(from, "/usb"):
		return "usb"
	case strings.HasPrefix(procName, "ahci"), strings.HasPrefix(procName, "sata"):
		return "sata"
	case strings.Contains(procName, "ata"):
		return "ata"
	}
	return ""
}
