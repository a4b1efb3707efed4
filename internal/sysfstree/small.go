package sysfstree

import (
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing/fstest"
)

// Small is a machine made by hand, in memory, for tests of kinds of devices and
// stacks that no recorded machine has. Attribute names are those of Linux 6.1;
// whoever adds one cites the file of the kernel that makes it.
type Small struct {
	fstest.MapFS
	at map[string]string // folder of each block device and partition
}

// NewSmall returns a machine without devices. version is /proc/version's
// release, "" for none.
func NewSmall(release string) *Small {
	m := &Small{MapFS: fstest.MapFS{}, at: map[string]string{}}
	m.Folder("sys/block")
	if release != "" {
		m.File("proc/version", "Linux version "+release+" (test@example.org) (gcc) #1 SMP\n")
	}
	return m
}

// File adds a file.
func (m *Small) File(name, content string) {
	m.MapFS[name] = &fstest.MapFile{Data: []byte(content), Mode: 0o444}
}

// Link adds a symbolic link.
func (m *Small) Link(name, target string) {
	m.MapFS[name] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
}

// Folder adds an empty folder.
func (m *Small) Folder(name string) {
	m.MapFS[name] = &fstest.MapFile{Mode: fs.ModeDir | 0o555}
}

// Files adds attributes below a folder, each with a newline.
func (m *Small) Files(at string, attrs map[string]string) {
	for k, v := range attrs {
		m.File(at+"/"+k, v+"\n")
	}
}

// Block adds a block device at a path below sys/devices, with what the queue of
// any shows (block/blk-sysfs.c); attrs come on top.
func (m *Small) Block(at string, attrs map[string]string) {
	name := path.Base(at)
	m.Link("sys/block/"+name, "../devices/"+at)
	m.Link("sys/class/block/"+name, "../../devices/"+at)
	at = "sys/devices/" + at
	m.at[name] = at
	m.Folder(at + "/holders")
	m.Folder(at + "/slaves")
	m.Files(at, map[string]string{"size": "2097152", "queue/max_sectors_kb": "1280", "queue/max_hw_sectors_kb": "32767", "queue/logical_block_size": "512",
		"queue/physical_block_size": "512", "queue/minimum_io_size": "512", "queue/optimal_io_size": "0", "queue/read_ahead_kb": "128", "queue/zoned": "none"})
	m.Files(at, attrs)
}

// Virtual adds a block device without hardware: dm, md, loop, ...
func (m *Small) Virtual(name string, attrs map[string]string) {
	m.Block("virtual/block/"+name, attrs)
}

// SCSI adds a SCSI disk below a path of sys/devices that ends in hostN, or in
// what a transport puts below one. device holds attributes of the SCSI device,
// attrs of the block device.
func (m *Small) SCSI(host, hctl, name string, device, attrs map[string]string) {
	at := host + "/target" + hctl[:strings.LastIndexByte(hctl, ':')] + "/" + hctl
	m.Block(at+"/block/"+name, attrs)
	m.Link("sys/devices/"+at+"/block/"+name+"/device", "../../../"+hctl)
	m.Files("sys/devices/"+at, map[string]string{"vendor": "ACME    ", "model": "ARRAY           ", "rev": "1.0 "})
	m.Files("sys/devices/"+at, device)
}

// PCI adds a SAS adapter's PCI function on bus 0 with its driver.
func (m *Small) PCI(address, driver string) {
	at := "sys/devices/pci0000:00/" + address
	m.Files(at, map[string]string{"vendor": "0x1000", "device": "0x0097", "class": "0x010700"})
	m.Link(at+"/driver", "../../../bus/pci/drivers/"+driver)
}

// Partition adds a partition of a device (block/partitions/core.c).
func (m *Small) Partition(disk, name string) {
	at := m.at[disk] + "/" + name
	m.at[name] = at
	m.File(at+"/partition", "1\n")
	m.Link("sys/class/block/"+name, "../../"+strings.TrimPrefix(at, "sys/"))
	m.Folder(at + "/holders")
}

// Over makes a device stand on others, or on partitions, as bd_link_disk_holder
// does (block/holder.c). Nothing follows these links.
func (m *Small) Over(top string, lower ...string) {
	for _, l := range lower {
		m.Link(m.at[top]+"/slaves/"+l, "../../"+l)
		m.Link(m.at[l]+"/holders/"+top, "../../"+top)
	}
}

// Write makes the machine on disk.
func (m *Small) Write(dir string) error {
	for _, name := range slices.Sorted(maps.Keys(m.MapFS)) {
		f, full := m.MapFS[name], filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(full), 0o755)
		switch {
		case err != nil:
		case f.Mode.IsDir():
			err = os.MkdirAll(full, 0o755)
		case f.Mode&fs.ModeSymlink != 0:
			err = os.Symlink(string(f.Data), full)
		default:
			err = os.WriteFile(full, f.Data, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Stacks is a server with one of every stack that can go wrong, on Linux 6.12:
//
//	sda sdb sdc    SATA disks behind mpt3sas, which publishes its own maximum as
//	               their optimal size; their first partitions are
//	md0            a RAID 5 of 512 KiB chunks, whose optimal size is 4 GiB, under
//	dm-0           LUKS (home)
//	sdd sde        two FC paths of different limits to one LUN, under
//	dm-1           a multipath map (mpatha) above the lower one
//	sdf sdg        two FC paths of one limit, under
//	dm-2           a multipath map (mpathb) at it
//	sdh sdi        plain disks, under
//	dm-3           an LVM volume striped over both in 64 KiB chunks
func Stacks() *Small {
	m := NewSmall("6.12.90-test")
	m.PCI("0000:00:03.0", "mpt3sas")
	m.PCI("0000:00:04.0", "lpfc")
	opt := map[string]string{"queue/optimal_io_size": "16773120", "queue/read_ahead_kb": "32760", "queue/physical_block_size": "4096", "queue/minimum_io_size": "4096"}
	for i, n := range []string{"sda", "sdb", "sdc"} {
		m.SCSI("pci0000:00/0000:00:03.0/host0", "0:0:"+string(rune('0'+i))+":0", n, map[string]string{"vendor": "ATA     ", "model": "ACME DISK       "}, opt)
		m.Partition(n, n+"1")
	}
	m.Virtual("md0", map[string]string{"md/level": "raid5", "md/chunk_size": "524288", "md/raid_disks": "3", "queue/minimum_io_size": "524288",
		"queue/optimal_io_size": "4293918720", "queue/read_ahead_kb": "4192256", "queue/physical_block_size": "4096", "queue/max_sectors_kb": "1024", "queue/max_hw_sectors_kb": "1024"})
	m.Over("md0", "sda1", "sdb1", "sdc1")
	m.Virtual("dm-0", map[string]string{"dm/name": "home", "dm/uuid": "CRYPT-LUKS2-00000000000000000000000000000001-home", "queue/optimal_io_size": "4293918720", "queue/max_sectors_kb": "1024", "queue/minimum_io_size": "524288"})
	m.Over("dm-0", "md0")
	path := func(hctl, name, kib string) {
		rport := "rport-1:0-" + hctl[4:5]
		host := "pci0000:00/0000:00:04.0/host1"
		m.SCSI(host+"/"+rport, hctl, name, nil, map[string]string{"queue/max_sectors_kb": kib})
		m.File("sys/devices/"+host+"/"+rport+"/fc_remote_ports/"+rport+"/port_name", "0x50000000000000"+hctl[4:5]+"0\n")
		m.File("sys/devices/"+host+"/fc_host/host1/port_name", "0x2100000000000001\n")
	}
	path("1:0:0:0", "sdd", "4096")
	path("1:0:1:0", "sde", "1280")
	path("1:0:2:0", "sdf", "1280")
	path("1:0:3:0", "sdg", "1280")
	for _, mp := range []struct{ dm, name, kib, a, b string }{{"dm-1", "mpatha", "4096", "sdd", "sde"}, {"dm-2", "mpathb", "1280", "sdf", "sdg"}} {
		m.Virtual(mp.dm, map[string]string{"dm/name": mp.name, "dm/uuid": "mpath-3600000000000000000000000000000" + mp.dm[3:], "queue/max_sectors_kb": mp.kib})
		m.Folder("sys/devices/virtual/block/" + mp.dm + "/mq") // request-based (block/blk-mq-sysfs.c)
		m.Over(mp.dm, mp.a, mp.b)
	}
	for i, n := range []string{"sdh", "sdi"} {
		m.SCSI("pci0000:00/0000:00:05.0/host2", "2:0:"+string(rune('0'+i))+":0", n, nil, nil)
	}
	m.Virtual("dm-3", map[string]string{"dm/name": "vg-data", "dm/uuid": "LVM-" + strings.Repeat("a", 32) + strings.Repeat("b", 32), "queue/minimum_io_size": "65536", "queue/optimal_io_size": "131072"})
	m.Over("dm-3", "sdh", "sdi")
	return m
}
