package klog

import (
	"bytes"
	"cmp"
	"strings"
)

// names is what the log of one boot says of the names in it.
type names struct {
	ata   map[string]ataName  // by N.NN
	scsi  map[string]scsiName // by H:C:T:L
	disks map[string]string   // disk to H:C:T:L
	at    map[string]string   // and back
	nvme  map[string]string   // controller to PCI address
	usb   map[string]usbName  // by bus-port.port
}

type ataName struct{ model, firmware string }

type scsiName struct {
	vendor, product, revision string
	blockSize                 uint64
}

type usbName struct {
	vid, pid string
	storage  bool
}

func newNames() names {
	return names{ata: map[string]ataName{}, scsi: map[string]scsiName{}, disks: map[string]string{}, at: map[string]string{}, nvme: map[string]string{}, usb: map[string]usbName{}}
}

// keep sets m[k], unless there are too many names already.
func keep[V any](m map[string]V, k string, v V) {
	if _, had := m[k]; had || len(m) < maxNames {
		m[k] = v
	}
}

// text copies a name or a string of a device out of the line.
func text(b []byte) string {
	b = bytes.TrimSpace(b)
	return strings.ToValidUTF8(string(b[:min(len(b), maxName)]), "?")
}

// maxList is the length of a list of words that is kept.
const maxList = 4 * maxName

// list copies a list of words out of the line.
func list(b []byte) string {
	return strings.ToValidUTF8(strings.Join(strings.Fields(string(b[:min(len(b), maxList)])), " "), "?")
}

// ataSubject is the device N.NN or the port N.
func (n *names) ataSubject(name string) Subject {
	s := Subject{Space: SpaceATA, Name: "ata" + name}
	id, ok := n.ata[name]
	if !ok && !strings.Contains(name, ".") {
		// A port of one device is that device.
		if _, second := n.ata[name+".01"]; !second {
			id = n.ata[name+".00"]
		}
	}
	s.Model, s.Firmware = id.model, id.firmware
	return s
}

// diskSubject is a disk, or the disk of a partition.
func (n *names) diskSubject(name string) Subject {
	s := Subject{Space: SpaceDisk, Name: diskOf(name)}
	if hctl, ok := n.disks[s.Name]; ok {
		n.fill(&s, hctl)
	} else if c := controllerOf(s.Name); c != "" {
		s.PCI = n.nvme[c]
	}
	return s
}

// hctlSubject is a SCSI device, by its disk's name where that is known.
func (n *names) hctlSubject(hctl, disk string) Subject {
	s := Subject{Space: SpaceDisk, Name: cmp.Or(disk, n.at[hctl], hctl)}
	n.fill(&s, hctl)
	return s
}

func (n *names) fill(s *Subject, hctl string) {
	id := n.scsi[hctl]
	s.HCTL, s.Vendor, s.Product, s.Revision = hctl, id.vendor, id.product, id.revision
}

func (n *names) blockSize(s Subject) uint64 { return n.scsi[s.HCTL].blockSize }

func (n *names) nvmeSubject(name string) Subject {
	return Subject{Space: SpaceNVMe, Name: name, PCI: n.nvme[name]}
}

func (n *names) usbSubject(name string) Subject {
	u := n.usb[name]
	return Subject{Space: SpaceUSB, Name: name, VID: u.vid, PID: u.pid, Storage: u.storage}
}

// diskOf is the disk of a partition's name: sda1, nvme0n1p2, mmcblk0p1, md0p1.
func diskOf(name string) string {
	end := strings.TrimRight(name, "0123456789")
	switch {
	case end == name:
		return name
	case strings.HasSuffix(end, "p") && len(end) > 1 && isDigit(end[len(end)-2]):
		return end[:len(end)-1]
	case strings.HasPrefix(name, "sd"), strings.HasPrefix(name, "vd"), strings.HasPrefix(name, "xvd"), strings.HasPrefix(name, "hd"):
		return end
	}
	return name
}

// controllerOf is nvme0 of nvme0n1 and of its path nvme0c1n1; "" of others.
func controllerOf(disk string) string {
	rest, ok := strings.CutPrefix(disk, "nvme")
	if !ok {
		return ""
	}
	i := 0
	for i < len(rest) && isDigit(rest[i]) {
		i++
	}
	if i == 0 || i == len(rest) {
		return ""
	}
	return "nvme" + rest[:i]
}

// isName reports that b can be the name of a block device.
func isName(b []byte) bool {
	if len(b) == 0 || len(b) > 32 {
		return false
	}
	for _, c := range b {
		if !isDigit(c) && !('a' <= c && c <= 'z') && !('A' <= c && c <= 'Z') && c != '-' && c != '_' && c != '!' && c != '/' {
			return false
		}
	}
	return true
}

// cutHCTL reads H:C:T:L off the start of b.
func cutHCTL(b []byte) (hctl, rest []byte, ok bool) {
	i, colons := 0, 0
	for i < len(b) && i < 40 {
		switch c := b[i]; {
		case isDigit(c):
		case c == ':' && i > 0 && b[i-1] != ':':
			if colons == 3 {
				return b[:i], b[i:], b[i-1] != ':'
			}
			colons++
		default:
			return b[:i], b[i:], colons == 3 && b[i-1] != ':'
		}
		i++
	}
	return b[:i], b[i:], colons == 3 && i > 0 && b[i-1] != ':'
}
