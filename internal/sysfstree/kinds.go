package sysfstree

import "fmt"

// Kinds is a machine with one of every kind of device whose files name a
// target, a card or a level, on Linux 6.12:
//
//	sda sdb        two LUNs of one iSCSI target, over IPv6 and IPv4
//	sdc            a LUN behind an FC port
//	sdd sde sdf    volumes of hpsa, smartpqi and aacraid, whose levels are
//	               written each in its own way
//	sdg            a volume of mpt3sas, whose level the RAID class shows
//	sdh            an ATA disk with a fault code for a serial number
//	sdi            an ATA disk with a serial number
//	mmcblk0        an eMMC chip, of which a partition carries
//	dm-0           a volume with its owner's name (betelgeuse)
//	md1            an array that is reshaped from 4 disks to 5
//	nvme3n1        a multipath head over two TCP controllers
//	nvme5n1        a namespace over FC
//	st0            a tape drive
func Kinds() *Small {
	m := NewSmall("6.12.90-test")
	// drivers/scsi/scsi_transport_iscsi.c
	for i, c := range []struct{ hctl, name, address string }{{"3:0:0:1", "sda", "2001:db8::1"}, {"4:0:0:1", "sdb", "192.0.2.17"}} {
		host := "platform/host" + c.hctl[:1]
		session, conn := fmt.Sprintf("session%d", i+7), fmt.Sprintf("connection%d:0", i+7)
		m.SCSI(host+"/"+session, c.hctl, c.name, nil, nil)
		m.Folder("sys/devices/" + host + "/iscsi_host/host" + c.hctl[:1])
		at := "sys/devices/" + host + "/" + session
		m.Files(at+"/iscsi_session/"+session, map[string]string{"targetname": "iqn.2001-04.org.example:lun77"})
		m.Files(at+"/"+conn+"/iscsi_connection/"+conn, map[string]string{"persistent_address": c.address, "persistent_port": "3260"})
	}
	// drivers/scsi/scsi_transport_fc.c
	m.PCI("0000:00:05.0", "qla2xxx")
	const fc = "pci0000:00/0000:00:05.0/host5"
	m.SCSI(fc+"/rport-5:0-2", "5:0:2:0", "sdc", nil, nil)
	m.Files("sys/devices/"+fc+"/rport-5:0-2/fc_remote_ports/rport-5:0-2", map[string]string{"port_name": "0x500a09832b1c4d5e"})
	m.Files("sys/devices/"+fc+"/fc_host/host5", map[string]string{"port_name": "0x21000024ff6a7b8c"})

	for i, v := range []struct{ driver, hctl, file, level string }{
		{"hpsa", "6:1:0:0", "raid_level", "RAID 1(+0)ADM"},
		{"smartpqi", "7:1:0:0", "raid_level", "RAID-1(Triple)"},
		{"aacraid", "8:0:0:0", "level", "PSEUDO R4"},
		{"mpt3sas", "9:1:0:0", "raid_devices/9:1:0:0/level", "raid1e"},
	} {
		address := fmt.Sprintf("0000:00:1%d.0", i)
		m.PCI(address, v.driver)
		m.SCSI("pci0000:00/"+address+"/host"+v.hctl[:1], v.hctl, "sd"+string(rune('d'+i)), map[string]string{v.file: v.level}, nil)
	}

	for i, serial := range []string{"BAD_CTX 00000150", "CVPR1234567890XYZQ"} {
		host, hctl := fmt.Sprintf("pci0000:00/0000:00:1f.%d/host1%d", i, i), fmt.Sprintf("1%d:0:0:0", i)
		m.SCSI(host, hctl, "sd"+string(rune('h'+i)), map[string]string{"vendor": "ATA     ", "model": "INTEL SSDSA2CW08", "rev": "0302"}, nil)
		for _, p := range (Disk{Vendor: "ATA", Model: "INTEL SSDSA2CW080G3", Revision: "4PC10302", Serial: serial}).pages() {
			m.File("sys/devices/"+host+"/target"+hctl[:6]+"/"+hctl+"/"+p.name, string(p.data))
		}
	}

	// drivers/mmc/core/mmc.c
	const card = "platform/mmc/mmc_host/mmc0/mmc0:0001"
	m.Block(card+"/block/mmcblk0", nil)
	m.Link("sys/devices/"+card+"/block/mmcblk0/device", "../../../mmc0:0001")
	m.Files("sys/devices/"+card, map[string]string{"name": "DG4016", "manfid": "0x000045", "oemid": "0x0100", "fwrev": "0x3630303030353035", "serial": "0x1b2c3d4e"})
	m.Partition("mmcblk0", "mmcblk0p2")
	m.Virtual("dm-0", map[string]string{"dm/name": "betelgeuse", "dm/uuid": "CRYPT-LUKS2-0f1e2d3c4b5a69788796a5b4c3d2e1f0-betelgeuse"})
	m.Over("dm-0", "mmcblk0p2")
	m.Virtual("md1", map[string]string{"md/level": "raid6", "md/chunk_size": "524288", "md/raid_disks": "5 (4)"})

	// drivers/nvme/host: sysfs.c, multipath.c, fabrics.c, tcp.c, fc.c
	const array, subsys = "nqn.2019-06.com.example.storage:array77", "virtual/nvme-subsystem/nvme-subsys3"
	m.Block(subsys+"/nvme3n1", nil)
	m.Link("sys/devices/"+subsys+"/nvme3n1/device", "../../nvme-subsys3")
	m.Files("sys/devices/"+subsys, map[string]string{"model": "ACME ARRAY", "subsysnqn": array})
	for i, state := range []string{"non-optimized", "inaccessible"} {
		ctrl := fmt.Sprintf("virtual/nvme-fabrics/ctl/nvme%d", 3+i)
		path := fmt.Sprintf("nvme3c%dn1", 3+i)
		m.Block(ctrl+"/"+path, map[string]string{"hidden": "1", "ana_state": state})
		m.Link("sys/devices/"+ctrl+"/"+path+"/device", fmt.Sprintf("../../nvme%d", 3+i))
		m.Files("sys/devices/"+ctrl, map[string]string{"state": "live", "transport": "tcp", "model": "ACME ARRAY", "subsysnqn": array, "serial": "d5e6f7a8b9c0d1e2f3a4",
			"address": fmt.Sprintf("traddr=192.0.2.%d,trsvcid=4420,host_traddr=198.51.100.9,host_iface=enp3s0f1,src_addr=198.51.100.9", 17+i)})
		m.Link(fmt.Sprintf("sys/devices/%s/nvme%d", subsys, 3+i), fmt.Sprintf("../../nvme-fabrics/ctl/nvme%d", 3+i))
	}
	const ctrl = "virtual/nvme-fabrics/ctl/nvme5"
	m.Block(ctrl+"/nvme5n1", nil)
	m.Link("sys/devices/"+ctrl+"/nvme5n1/device", "../../nvme5")
	m.Files("sys/devices/"+ctrl, map[string]string{"state": "deleting (no IO)", "transport": "fc", "model": "ACME ARRAY", "firmware_rev": "9.1", "serial": "XNV7734QWERTY12",
		"subsysnqn": "nqn.1992-08.com.netapp:sn.d646dc63336511e995cb00a0988fb732:subsystem.payroll7",
		"address":   "traddr=nn-0x200140e2b3c4d5f6:pn-0x500a09832b1c4d5e,host_traddr=nn-0x20000024ff6a7b8c:pn-0x21000024ff6a7b8c"})

	// drivers/scsi/st.c
	const tape = "devices/pci0000:00/0000:00:06.0/host20/target20:0:0/20:0:0:0"
	m.Files("sys/"+tape, map[string]string{"vendor": "IBM     ", "model": "ULTRIUM-HH8     "})
	m.Link("sys/class/scsi_tape/st0", "../../"+tape+"/scsi_tape/st0")
	m.Link("sys/"+tape+"/scsi_tape/st0/device", "../../../20:0:0:0")
	return m
}
