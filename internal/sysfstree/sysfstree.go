// Package sysfstree writes the sysfs of a made-up server with any number of
// SCSI disks, for tests and benchmarks that need more disks than a recorded
// machine has.
//
// The machine is a Linux 7.3.4 host with SAS adapters driven by mpt3sas, each
// below its own PCI Express port, and disks attached to them directly. The
// names of the block and SCSI device attributes, and /proc/version, are those of
// a recorded 7.3.4 host. No recorded host has mpt3sas: what belongs to it (PCI
// functions, scsi_host, sas_host, end devices, queue limits) and the disks' pages
// are written after the drivers and standards. queue/ is complete. Left out, to
// keep a disk at about a hundred files, is what nothing that lists block devices
// reads: power/, trace/, integrity/, mq/, iosched/, bsg/, scsi_generic/, a third of
// the SCSI device's attributes, and the PCI functions other than the ports and
// the adapters. Every link resolves inside the tree. /dev holds one empty file a
// disk, which lsblk --sysroot wants to see.
//
// Nothing depends on the clock, on chance or on the machine: the same Options
// give the same names and the same bytes.
package sysfstree

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// Options say how large the machine is.
type Options struct {
	Disks    int // at least 0
	Adapters int // at least 1 where there are disks; disks are spread evenly
	// Healthy leaves out the disks with a known quirk. Otherwise the second
	// disk of each hundred (sdb, sdcx, ...) is a Seagate ST380013AS with
	// firmware 3.20 at a transfer limit of 4096 KiB, which damages data.
	Healthy bool
	// Share makes files of equal content hard links of one another. A large
	// tree then takes a quarter of the inodes, but must not be written to: a
	// change to one disk would change all.
	Share bool
}

// A Disk is one disk of the tree, as programs are expected to report it.
type Disk struct {
	Name                    string // sda
	Adapter, Target         int    // SCSI address Adapter:0:Target:0
	Vendor, Model, Revision string // without padding
	Sectors                 int64  // capacity in 512-byte sectors
	PhysicalBlock           int    // bytes
	MaxSectorsKB            int    // queue/max_sectors_kb
	Serial                  string
	Affected                bool // has a known quirk and nothing protects it

	index          int
	wwn            uint64 // NAA 5h identifier; 0 for ATA disks without one
	transferBlocks uint32 // Block Limits: MAXIMUM and
	optimalBlocks  uint32 // OPTIMAL TRANSFER LENGTH in logical blocks, 0 = no limit reported
	rpm            uint16
}

// HCTL returns the SCSI address, host:channel:target:lun.
func (d Disk) HCTL() string { return fmt.Sprintf("%d:0:%d:0", d.Adapter, d.Target) }

// ATA tells an ATA disk seen through SCSI/ATA translation from a SAS disk.
func (d Disk) ATA() bool { return d.Vendor == "ATA" }

var healthy = []Disk{
	{Vendor: "HGST", Model: "HUS726060AL5210", Revision: "A519", Sectors: 11721045168, PhysicalBlock: 4096,
		MaxSectorsKB: 2048, wwn: 0x5000cca2_00000000, transferBlocks: 4096, optimalBlocks: 2048, rpm: 7200},
	{Vendor: "HGST", Model: "HUS726040AL5210", Revision: "A519", Sectors: 7814037168, PhysicalBlock: 4096,
		MaxSectorsKB: 2048, wwn: 0x5000cca2_10000000, transferBlocks: 4096, optimalBlocks: 2048, rpm: 7200},
	{Vendor: "HGST", Model: "HUH728080AL5200", Revision: "A515", Sectors: 15628053168, PhysicalBlock: 4096,
		MaxSectorsKB: 4096, wwn: 0x5000cca2_20000000, rpm: 7200},
}

var affected = Disk{Vendor: "ATA", Model: "ST380013AS", Revision: "3.20", Sectors: 156301488, PhysicalBlock: 512,
	MaxSectorsKB: 4096, Affected: true, rpm: 7200}

// DiskList returns the disks that Write makes for o, in the order in which
// the kernel names them.
func DiskList(o Options) []Disk {
	disks := make([]Disk, o.Disks)
	for i := range disks {
		d := healthy[i%len(healthy)]
		if !o.Healthy && i%100 == 1 {
			d = affected
		}
		// The adapters are probed one after the other, and so named.
		d.Adapter = i * o.Adapters / o.Disks
		first := (d.Adapter*o.Disks + o.Adapters - 1) / o.Adapters
		d.Target = i - first
		d.index, d.Name = i, diskName(i)
		d.Serial = fmt.Sprintf("QC%06X", i)
		if d.wwn != 0 {
			d.wwn += uint64(i) << 4 // the low digit numbers the ports
		}
		disks[i] = d
	}
	return disks
}

// diskName returns sda for 0, sdz for 25, sdaa for 26 (drivers/scsi/sd.c,
// sd_format_disk_name).
func diskName(i int) string {
	var s []byte
	for ; i >= 0; i = i/26 - 1 {
		s = append(s, byte('a'+i%26))
	}
	slices.Reverse(s)
	return "sd" + string(s)
}

// devNumber returns the device number of the i-th disk: 16 majors of 16 disks
// each, then the same majors again with higher minors (drivers/scsi/sd.c,
// sd_major and sd_probe).
func devNumber(i int) string {
	major := 8
	switch block := i >> 4 & 0xf; {
	case block >= 8:
		major = 128 + block - 8
	case block >= 1:
		major = 65 + block - 1
	}
	return fmt.Sprintf("%d:%d", major, i&0xf<<4|i&0xfff00)
}

// An adapter is one SAS controller below its own PCI Express port.
type adapter struct {
	host      int
	root      string // name of the host bridge, pci0000:10
	port, pci string // PCI addresses
	disks     []Disk
}

func adapters(o Options, disks []Disk) []adapter {
	list := make([]adapter, o.Adapters)
	for i := range list {
		// Four ports to a host bridge, fifteen bridges to a PCI domain.
		domain, bridge, slot := i/60, i%60/4+1, i%4
		list[i] = adapter{
			host: i,
			root: fmt.Sprintf("pci%04x:%02x", domain, bridge<<4),
			port: fmt.Sprintf("%04x:%02x:%02x.0", domain, bridge<<4, slot),
			pci:  fmt.Sprintf("%04x:%02x:00.0", domain, bridge<<4+slot+1),
		}
	}
	for _, d := range disks {
		list[d.Adapter].disks = append(list[d.Adapter].disks, d)
	}
	return list
}

// Write makes the tree in dir, which is created where it is missing and
// should be empty: a file that is there already is an error.
func Write(dir string, o Options) error {
	if o.Disks < 0 || o.Adapters < 0 || o.Disks > 0 && o.Adapters == 0 {
		return fmt.Errorf("write sysfs tree: %d disks on %d adapters", o.Disks, o.Adapters)
	}
	common := newWriter(dir, o.Share)
	common.system()
	if common.err != nil {
		return fmt.Errorf("write sysfs tree: %w", common.err)
	}

	todo := make(chan adapter)
	writers := make([]*writer, runtime.GOMAXPROCS(0))
	var wg sync.WaitGroup
	for i := range writers {
		w := newWriter(dir, o.Share)
		writers[i] = w
		wg.Go(func() {
			for a := range todo {
				w.adapter(a)
			}
		})
	}
	for _, a := range adapters(o, DiskList(o)) {
		todo <- a
	}
	close(todo)
	wg.Wait()
	for _, w := range writers {
		if w.err != nil {
			return fmt.Errorf("write sysfs tree: %w", w.err)
		}
	}
	return nil
}

// A writer makes files below one folder. It keeps the first error and does
// nothing after it.
type writer struct {
	root   string
	share  bool
	shared map[string]*sharedFile // by content
	err    error
}

type sharedFile struct {
	path  string
	links int
}

// maxLinks is how many names one file gets: well below what ext4 (65000) and
// btrfs (65535) allow.
const maxLinks = 60000

func newWriter(dir string, share bool) *writer {
	return &writer{root: dir, share: share, shared: map[string]*sharedFile{}}
}

func (w *writer) try(f func() error) {
	if w.err == nil {
		w.err = f()
	}
}

// dir makes a folder and those above it.
func (w *writer) dir(elem ...string) string {
	name := filepath.Join(elem...)
	w.try(func() error {
		full := w.root + "/" + name
		// Nearly always the folder above is there.
		if err := os.Mkdir(full, 0o755); err == nil || os.IsExist(err) {
			return nil
		}
		return os.MkdirAll(full, 0o755)
	})
	return name
}

// file writes one attribute into a folder that exists.
func (w *writer) file(name, content string) {
	w.try(func() error {
		full := w.root + "/" + name
		s := w.shared[content]
		if w.share && s != nil && s.links < maxLinks {
			s.links++
			return os.Link(s.path, full)
		}
		w.shared[content] = &sharedFile{full, 1}
		f, err := os.OpenFile(full, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		if _, err := f.WriteString(content); err != nil {
			f.Close()
			return err
		}
		return f.Close()
	})
}

// files writes a list of "name=content" lines; a content ends in a newline
// unless it is empty.
func (w *writer) files(dir string, attrs []string) {
	for _, a := range attrs {
		name, content, _ := strings.Cut(a, "=")
		if content != "" {
			content += "\n"
		}
		w.file(dir+"/"+name, content)
	}
}

// link makes name point to target, both relative to the root.
func (w *writer) link(name, target string) {
	w.try(func() error {
		from, to := strings.Split(name, "/"), strings.Split(target, "/")
		common := 0
		for common < len(from)-1 && common < len(to)-1 && from[common] == to[common] {
			common++
		}
		rel := strings.Repeat("../", len(from)-1-common) + strings.Join(to[common:], "/")
		return os.Symlink(rel, w.root+"/"+name)
	})
}
