package sysfstree

import (
	"fmt"
	"strings"
)

const (
	procVersion = "Linux version 7.3.4+deb13-amd64 (debian-kernel@lists.debian.org) " +
		"(x86_64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0, GNU ld (GNU Binutils for Debian) 2.44) " +
		"#1 SMP PREEMPT_DYNAMIC Debian 7.3.4-1~bpo13+1 (2026-11-15)\n"
	procCmdline = "BOOT_IMAGE=/boot/vmlinuz-7.3.4+deb13-amd64 root=LABEL=root ro quiet\n"
	procMounts  = "sysfs /sys sysfs rw,nosuid,nodev,noexec,relatime 0 0\nproc /proc proc rw,relatime 0 0\n"
)

// system writes what exists once.
func (w *writer) system() {
	for _, dir := range []string{
		"dev", "proc", "sys/block", "sys/dev/block", "sys/class/block", "sys/class/sas_host",
		"sys/class/scsi_device", "sys/class/scsi_disk", "sys/class/scsi_host",
		"sys/bus/pci/devices", "sys/bus/pci/drivers/mpt3sas", "sys/bus/pci/drivers/pcieport",
		"sys/bus/scsi/devices", "sys/bus/scsi/drivers/sd",
		"sys/module/mpt3sas/parameters", "sys/module/scsi_mod/parameters",
	} {
		w.dir(dir)
	}
	w.file("proc/version", procVersion)
	w.file("proc/cmdline", procCmdline)
	w.file("proc/mounts", procMounts)
	w.files("sys/module/mpt3sas/parameters", []string{"max_sectors=65535", "max_queue_depth=-1", "max_sgl_entries=-1"})
	w.files("sys/module/scsi_mod/parameters", []string{"default_dev_flags=0", "dev_flags=", "inq_timeout=20",
		"max_luns=512", "scan=async"})
}

// adapter writes the PCI functions and SCSI host of an adapter, and its disks.
func (w *writer) adapter(a adapter) {
	// Several adapters share a host bridge; nothing but the folder is common.
	bridge := w.dir("sys/devices", a.root)

	port := w.dir(bridge, a.port)
	w.pci(port, a.port, "pcieport", pciIDs{vendor: 0x8086, device: 0x2030, class: 0x060400, revision: 0x07})

	dev := w.dir(port, a.pci)
	w.pci(dev, a.pci, "mpt3sas", pciIDs{
		vendor: 0x1000, device: 0x00af, subvendor: 0x1000, subdevice: 0x3010, class: 0x010700, revision: 0x01})

	name := fmt.Sprintf("host%d", a.host)
	host := w.dir(dev, name)
	w.file(host+"/uevent", "DEVTYPE=scsi_host\n")
	w.link(host+"/subsystem", "sys/bus/scsi")
	w.link("sys/bus/scsi/devices/"+name, host)

	class := w.dir(host, "scsi_host", name)
	w.files(class, hostAttributes)
	w.files(class, []string{fmt.Sprintf("unique_id=%d", a.host), fmt.Sprintf("host_sas_address=%#016x", a.sasAddress())})
	w.link(class+"/device", host)
	w.link(class+"/subsystem", "sys/class/scsi_host")
	w.link("sys/class/scsi_host/"+name, class)

	sas := w.dir(host, "sas_host", name)
	w.file(sas+"/uevent", "")
	w.link(sas+"/device", host)
	w.link(sas+"/subsystem", "sys/class/sas_host")
	w.link("sys/class/sas_host/"+name, sas)

	for _, d := range a.disks {
		w.disk(host, d)
	}
}

func (a adapter) sasAddress() uint64 { return 0x500605b0_00000000 + uint64(a.host)<<8 }

type pciIDs struct {
	vendor, device, subvendor, subdevice uint16
	class                                uint32 // class, subclass, programming interface
	revision                             uint8
}

func (w *writer) pci(dir, address, driver string, id pciIDs) {
	modalias := fmt.Sprintf("pci:v%08Xd%08Xsv%08Xsd%08Xbc%02Xsc%02Xi%02X", id.vendor, id.device, id.subvendor, id.subdevice,
		id.class>>16, id.class>>8&0xff, id.class&0xff)
	w.files(dir, []string{
		fmt.Sprintf("vendor=%#04x", id.vendor),
		fmt.Sprintf("device=%#04x", id.device),
		fmt.Sprintf("subsystem_vendor=%#04x", id.subvendor),
		fmt.Sprintf("subsystem_device=%#04x", id.subdevice),
		fmt.Sprintf("class=0x%06x", id.class),
		fmt.Sprintf("revision=%#02x", id.revision),
		"modalias=" + modalias,
		"enable=1", "numa_node=0", "power_state=D0", "dma_mask_bits=63", "consistent_dma_mask_bits=63",
		"current_link_speed=8.0 GT/s PCIe", "current_link_width=8", "max_link_speed=8.0 GT/s PCIe", "max_link_width=8",
		fmt.Sprintf("uevent=DRIVER=%s\nPCI_CLASS=%X\nPCI_ID=%04X:%04X\nPCI_SUBSYS_ID=%04X:%04X\nPCI_SLOT_NAME=%s\nMODALIAS=%s",
			driver, id.class, id.vendor, id.device, id.subvendor, id.subdevice, address, modalias),
	})
	w.link(dir+"/driver", "sys/bus/pci/drivers/"+driver)
	w.link(dir+"/subsystem", "sys/bus/pci")
	w.link("sys/bus/pci/devices/"+address, dir)
	w.link("sys/bus/pci/drivers/"+driver+"/"+address, dir)
}

// disk writes the SAS end device, the SCSI device and the block device.
func (w *writer) disk(host string, d Disk) {
	hctl := d.HCTL()
	portName := fmt.Sprintf("port-%d:%d", d.Adapter, d.Target)
	endName := fmt.Sprintf("end_device-%d:%d", d.Adapter, d.Target)
	w.dir(host, portName)
	end := w.dir(host, portName, endName)
	w.file(end+"/uevent", "DEVTYPE=sas_end_device\n")

	targetName := fmt.Sprintf("target%d:0:%d", d.Adapter, d.Target)
	target := w.dir(end, targetName)
	w.file(target+"/uevent", "DEVTYPE=scsi_target\n")
	w.link(target+"/subsystem", "sys/bus/scsi")

	dev := w.dir(target, hctl)
	w.files(dev, deviceAttributes)
	queueDepth := 254
	if d.ATA() {
		queueDepth = 32
	}
	w.files(dev, []string{
		fmt.Sprintf("vendor=%-8s", d.Vendor), fmt.Sprintf("model=%-16s", d.Model), fmt.Sprintf("rev=%-4s", d.Revision),
		"wwid=" + d.wwid(), "serial=" + d.Serial, fmt.Sprintf("queue_depth=%d", queueDepth),
	})
	for _, p := range d.pages() {
		w.file(dev+"/"+p.name, string(p.data))
	}
	w.link(dev+"/driver", "sys/bus/scsi/drivers/sd")
	w.link(dev+"/subsystem", "sys/bus/scsi")
	w.link("sys/bus/scsi/devices/"+hctl, dev)

	w.dir(dev, "scsi_device")
	scsi := w.dir(dev, "scsi_device", hctl)
	w.link(scsi+"/device", dev)
	w.link("sys/class/scsi_device/"+hctl, scsi)

	w.dir(dev, "scsi_disk")
	sd := w.dir(dev, "scsi_disk", hctl)
	w.files(sd, scsiDiskAttributes)
	w.link(sd+"/device", dev)
	w.link("sys/class/scsi_disk/"+hctl, sd)

	w.block(dev, d)
}

func (w *writer) block(dev string, d Disk) {
	w.dir(dev, "block")
	block := w.dir(dev, "block", d.Name)
	w.dir(block, "holders")
	w.dir(block, "slaves")
	number := devNumber(d.index)
	major, minor, _ := strings.Cut(number, ":")
	w.files(block, blockAttributes)
	w.files(block, []string{
		"dev=" + number, fmt.Sprintf("size=%d", d.Sectors), fmt.Sprintf("diskseq=%d", d.index+1),
		fmt.Sprintf("uevent=MAJOR=%s\nMINOR=%s\nDEVNAME=%s\nDEVTYPE=disk\nDISKSEQ=%d", major, minor, d.Name, d.index+1),
	})
	w.link(block+"/device", dev)
	w.link(block+"/subsystem", "sys/class/block")

	queue := w.dir(block, "queue")
	w.files(queue, queueAttributes)
	optimal := int64(d.optimalBlocks) * 512
	w.files(queue, []string{
		fmt.Sprintf("physical_block_size=%d", d.PhysicalBlock),
		fmt.Sprintf("minimum_io_size=%d", d.PhysicalBlock),
		fmt.Sprintf("optimal_io_size=%d", optimal),
		fmt.Sprintf("max_sectors_kb=%d", d.MaxSectorsKB),
		// The kernel raises the read-ahead to twice the optimal size.
		fmt.Sprintf("read_ahead_kb=%d", max(128, 2*optimal/1024)),
	})

	w.link("sys/block/"+d.Name, block)
	w.link("sys/class/block/"+d.Name, block)
	w.link("sys/dev/block/"+number, block)
	w.file("dev/"+d.Name, "")
}

// Attributes that are the same for every adapter and disk, as "name=content".
var (
	hostAttributes = []string{
		"active_mode=Initiator", "board_assembly=03-50008-02004", "board_name=HBA 9400-8i", "can_queue=7680",
		"cmd_per_lun=128", "eh_deadline=off", "host_busy=0", "nr_hw_queues=1", "proc_name=mpt3sas",
		"prot_capabilities=7", "prot_guard_type=0", "sg_prot_tablesize=0", "sg_tablesize=128", "state=running",
		"supported_mode=Initiator", "uevent=", "use_blk_mq=1", "version_bios=09.47.00.00", "version_fw=24.00.00.00",
		"version_mpi=206.00", "version_product=SAS3408",
	}

	deviceAttributes = []string{
		"blacklist=", "device_blocked=0", "eh_timeout=10", "iodone_cnt=0x25", "ioerr_cnt=0x0", "iorequest_cnt=0x25",
		"iotmo_cnt=0x0", "modalias=scsi:t-0x00", "queue_type=simple", "scsi_level=7", "state=running", "timeout=30",
		"type=0", "uevent=DEVTYPE=scsi_device\nDRIVER=sd\nMODALIAS=scsi:t-0x00",
	}

	scsiDiskAttributes = []string{
		"FUA=0", "allow_restart=1", "cache_type=write back", "manage_start_stop=0", "max_retries=5",
		"max_write_same_blocks=0", "protection_type=0", "provisioning_mode=full", "thin_provisioning=0",
		"zeroing_mode=write",
	}

	blockAttributes = []string{
		"alignment_offset=0", "capability=0", "discard_alignment=0", "ext_range=256", "hidden=0",
		"inflight=       0        0", "range=16", "removable=0", "ro=0",
		"stat=       3        0       24        6        0        0        0        0" +
			"        0        4        6        0        0        0        0        0        0",
	}

	queueAttributes = []string{
		"add_random=1", "async_depth=254", "atomic_write_boundary_bytes=0", "atomic_write_max_bytes=0",
		"atomic_write_unit_max_bytes=0", "atomic_write_unit_min_bytes=0", "chunk_sectors=0", "dax=0",
		"discard_granularity=0", "discard_max_bytes=0", "discard_max_hw_bytes=0", "discard_zeroes_data=0",
		"dma_alignment=3", "fua=0", "hw_sector_size=512", "io_poll=0", "io_poll_delay=-1", "io_timeout=30000",
		"iostats=1", "iostats_passthrough=0", "logical_block_size=512", "max_discard_segments=1",
		"max_hw_sectors_kb=16383", "max_integrity_segments=0", "max_segment_size=65536", "max_segments=128",
		"max_write_streams=0", "nomerges=0", "nr_requests=254", "nr_zones=0", "rotational=1", "rq_affinity=1",
		"scheduler=none [mq-deadline] ", "stable_writes=0", "virt_boundary_mask=0", "wbt_lat_usec=75000",
		"write_cache=write back", "write_same_max_bytes=0", "write_stream_granularity=0", "write_zeroes_max_bytes=0",
		"write_zeroes_unmap_max_bytes=0", "write_zeroes_unmap_max_hw_bytes=0", "zone_append_max_bytes=0",
		"zone_write_granularity=0", "zoned=none",
	}
)
