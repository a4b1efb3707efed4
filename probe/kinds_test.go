package probe_test

import (
	"fmt"
	"io/fs"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quirkcheck/quirkcheck/internal/recorded"
	"github.com/quirkcheck/quirkcheck/internal/sysfstree"
	"github.com/quirkcheck/quirkcheck/probe"
)

func device(t *testing.T, inv *probe.Inventory, name string) *probe.Device {
	t.Helper()
	d, ok := inv.Device(name)
	if !ok {
		t.Fatalf("%s is missing; notes %+v", name, inv.Notes)
	}
	return d
}

func inventory(t *testing.T, m fs.FS, o probe.Options) *probe.Inventory {
	t.Helper()
	inv, err := read(t, m, o)
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

func TestKinds(t *testing.T) {
	m := sysfstree.NewSmall("")
	for _, n := range []string{"loop0", "ram0", "zram0", "dm-0", "md127", "bcache0", "nbd0", "rbd0", "drbd0", "pmem0", "zd0", "nullb0"} {
		m.Virtual(n, nil)
	}
	m.Block("vbd-51712/block/xvda", nil) // drivers/block/xen-blkfront.c
	inv := inventory(t, m, probe.Options{})
	got := map[string]string{}
	for _, d := range inv.Devices {
		got[d.Name] = d.Kind + " " + d.Path
	}
	want := map[string]string{"loop0": "loop other", "ram0": "ram other", "zram0": "ram other", "dm-0": "dm other", "md127": "md other",
		"bcache0": "other other", "nbd0": "network other", "rbd0": "network other", "drbd0": "network other", "pmem0": "disk other",
		"zd0": "other other", "nullb0": "other other", "xvda": "disk other"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestPartitionsAndWhatIsMadeOfThem(t *testing.T) {
	m := sysfstree.NewSmall("")
	const card = "platform/mmc/mmc_host/mmc0/mmc0:0001"
	m.Block(card+"/block/mmcblk0", nil)
	m.Link("sys/devices/"+card+"/block/mmcblk0/device", "../../../mmc0:0001")
	for k, v := range map[string]string{"name": "DG4016", "manfid": "0x000045", "oemid": "0x0100", "fwrev": "0x3630303030353035"} {
		m.File("sys/devices/"+card+"/"+k, v+"\n")
	}
	m.Partition("mmcblk0", "mmcblk0p2")
	m.Partition("mmcblk0", "mmcblk0p10")
	// A boot area is a disk of its own below the card's (drivers/mmc/core/block.c).
	m.Block(card+"/block/mmcblk0/mmcblk0boot0", nil)
	m.Virtual("dm-0", nil)
	m.Virtual("dm-1", nil)
	m.Over("dm-0", "mmcblk0p10")
	m.Over("dm-1", "mmcblk0p2", "mmcblk0p10")

	onDisk, err := read(t, openRoot(t, onDisk(t, m.MapFS)), probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, inv := range map[string]*probe.Inventory{"MapFS": inventory(t, m, probe.Options{}), "Root": onDisk} {
		d := device(t, inv, "mmcblk0")
		want := []probe.Partition{{Name: "mmcblk0p2", Holders: []string{"dm-1"}}, {Name: "mmcblk0p10", Holders: []string{"dm-0", "dm-1"}}}
		if diff := cmp.Diff(want, d.Partitions); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
		if diff := cmp.Diff(map[string]string{"name": "DG4016", "manfid": "0x000045", "oemid": "0x0100", "fwrev": "0x3630303030353035"}, d.MMC); diff != "" {
			t.Errorf("%s: card (-want +got)\n%s", name, diff)
		}
		if b := device(t, inv, "mmcblk0boot0"); b.MMC != nil || len(b.Partitions) > 0 {
			t.Errorf("%s: the boot area: %+v", name, b)
		}
		disk, via, ok := inv.Lookup("mmcblk0p10")
		if !ok || disk != d || via != "mmcblk0p10" {
			t.Errorf("%s: mmcblk0p10 is %v via %q", name, disk, via)
		}
		if _, _, ok := inv.Lookup("mmcblk0p3"); ok {
			t.Errorf("%s: mmcblk0p3 is not there", name)
		}
	}
}

func TestPartitionsOfARecordedLaptop(t *testing.T) {
	inv, err := read(t, recorded.FS(t, "laptop_nvme_pm9b1"), probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, p := range device(t, inv, "nvme0n1").Partitions {
		got[p.Name] = strings.Join(p.Holders, " ")
	}
	if got["nvme0n1p2"] != "dm-0" || got["nvme0n1p3"] != "dm-1" {
		t.Errorf("partitions %v", got)
	}
}

func TestPeersAreTheWholeStack(t *testing.T) {
	m := sysfstree.NewSmall("")
	for i, n := range []string{"sda", "sdb", "sdc"} {
		host := fmt.Sprintf("pci0000:00/0000:00:0%d.0/host%d", i+1, i)
		m.SCSI(host, fmt.Sprintf("%d:0:0:0", i), n, nil, nil)
		if n != "sdc" {
			m.Partition(n, n+"1")
		}
	}
	m.Virtual("md0", nil)
	m.Over("md0", "sda1", "sdb1")
	m.Virtual("dm-0", nil)
	m.Over("dm-0", "md0")
	for _, c := range []struct{ only, peers string }{
		{"sda", "dm-0 md0 sdb"}, {"dm-0", "md0 sda sdb"}, {"md0", "dm-0 sda sdb"}, {"sdc", ""},
	} {
		inv := inventory(t, m, probe.Options{Only: []string{c.only}, Related: true})
		var peers []string
		for _, d := range inv.Peers {
			peers = append(peers, d.Name)
		}
		if len(inv.Devices) != 1 || inv.Devices[0].Name != c.only || strings.Join(peers, " ") != c.peers {
			t.Errorf("%s: %d devices, peers %v, want %s", c.only, len(inv.Devices), peers, c.peers)
		}
		if alone := inventory(t, m, probe.Options{Only: []string{c.only}}); len(alone.Peers) != 0 {
			t.Errorf("%s: peers that nobody asked for: %d", c.only, len(alone.Peers))
		}
	}
	// A loop in the links, which no kernel makes, ends.
	m.Over("md0", "dm-0")
	if inv := inventory(t, m, probe.Options{Only: []string{"sda"}, Related: true}); len(inv.Peers) != 3 {
		t.Errorf("%d peers of a looped stack", len(inv.Peers))
	}
}

func TestNVMePaths(t *testing.T) {
	inv, err := read(t, recorded.FS(t, "power_nvme_multipath"), probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	got := device(t, inv, "nvme1n1").Paths
	var names []string
	for _, p := range got {
		names = append(names, p.Name+" "+p.Controller+" "+p.Transport+" "+p.State)
	}
	want := []string{"nvme1c1n1 nvme1 pcie live", "nvme1c2n1 nvme2 pcie live"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if d := device(t, inv, "nvme0n1"); d.Paths != nil {
		t.Errorf("a namespace of one controller has paths: %+v", d.Paths)
	}
}

// fabrics is a head over two TCP controllers, one inaccessible.
func fabrics() *sysfstree.Small {
	m := sysfstree.NewSmall("")
	subsys := "virtual/nvme-subsystem/nvme-subsys3"
	m.Block(subsys+"/nvme3n1", nil)
	m.Link("sys/devices/"+subsys+"/nvme3n1/device", "../../nvme-subsys3")
	m.File("sys/devices/"+subsys+"/model", "ACME ARRAY\n")
	m.File("sys/devices/"+subsys+"/subsysnqn", "nqn.2014-08.org.example:array\n")
	for i, state := range []string{"optimized", "inaccessible"} {
		ctrl := fmt.Sprintf("virtual/nvme-fabrics/ctl/nvme%d", 3+i)
		m.Block(fmt.Sprintf("%s/nvme3c%dn2", ctrl, 3+i), map[string]string{"hidden": "1"}) // of another namespace
		m.Block(fmt.Sprintf("%s/nvme3c%dn1", ctrl, 3+i), map[string]string{"hidden": "1", "ana_state": state})
		m.Link(fmt.Sprintf("sys/devices/%s/nvme3c%dn1/device", ctrl, 3+i), fmt.Sprintf("../../nvme%d", 3+i))
		for k, v := range map[string]string{"state": "live", "transport": "tcp", "address": fmt.Sprintf("traddr=192.0.2.%d,trsvcid=4420", i+1), "model": "ACME ARRAY", "subsysnqn": "nqn.2014-08.org.example:array", "serial": "S1 "} {
			m.File("sys/devices/"+ctrl+"/"+k, v+"\n")
		}
		m.Link(fmt.Sprintf("sys/devices/%s/nvme%d", subsys, 3+i), fmt.Sprintf("../../nvme-fabrics/ctl/nvme%d", 3+i))
	}
	return m
}

func TestNVMeFabrics(t *testing.T) {
	inv := inventory(t, fabrics(), probe.Options{})
	head := device(t, inv, "nvme3n1")
	want := []probe.NVMePath{{Name: "nvme3c3n1", Controller: "nvme3", State: "live", Transport: "tcp", ANAState: "optimized"},
		{Name: "nvme3c4n1", Controller: "nvme4", State: "live", Transport: "tcp", ANAState: "inaccessible"}}
	if diff := cmp.Diff(want, head.Paths); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if head.Path != "nvme-fabrics" || head.Target == nil || head.Target.Name != "nqn.2014-08.org.example:array" {
		t.Errorf("head: path %s, target %+v", head.Path, head.Target)
	}
	hidden := device(t, inv, "nvme3c4n1")
	if h, _ := hidden.Text("hidden"); h != "1" || hidden.Target == nil || hidden.Target.Portal != "traddr=192.0.2.2,trsvcid=4420" || hidden.Serial.V != "S1" {
		t.Errorf("hidden path: hidden %q, target %+v, serial %+v", h, hidden.Target, hidden.Serial)
	}
}

func TestTargetsOfNetworkTransports(t *testing.T) {
	m := sysfstree.NewSmall("")
	// drivers/scsi/scsi_transport_iscsi.c
	host := "platform/host3"
	session := host + "/session7"
	m.SCSI(session, "3:0:0:1", "sda", nil, nil)
	m.Folder("sys/devices/" + host + "/iscsi_host/host3")
	m.File("sys/devices/"+session+"/iscsi_session/session7/targetname", "iqn.2001-04.org.example:lun\n")
	conn := "sys/devices/" + session + "/connection7:0/iscsi_connection/connection7:0"
	m.File(conn+"/persistent_address", "2001:db8::1\n")
	m.File(conn+"/persistent_port", "3260\n")
	// drivers/scsi/scsi_transport_fc.c
	m.PCI("0000:00:05.0", "qla2xxx")
	fc := "pci0000:00/0000:00:05.0/host4"
	m.SCSI(fc+"/rport-4:0-2", "4:0:2:0", "sdb", nil, nil)
	m.File("sys/devices/"+fc+"/rport-4:0-2/fc_remote_ports/rport-4:0-2/port_name", "0x500a098000000001\n")
	m.File("sys/devices/"+fc+"/fc_host/host4/port_name", "0x2100000000000001\n")
	// A plain disk has none.
	m.SCSI("pci0000:00/0000:00:06.0/host5", "5:0:0:0", "sdc", nil, nil)

	inv := inventory(t, m, probe.Options{})
	for name, want := range map[string]*probe.Target{
		"sda": {Name: "iqn.2001-04.org.example:lun", Portal: "[2001:db8::1]:3260", Source: "sys/devices/" + session + "/iscsi_session/session7"},
		"sdb": {Name: "0x500a098000000001", HostPort: "0x2100000000000001", Source: "sys/devices/" + fc + "/rport-4:0-2/fc_remote_ports/rport-4:0-2"},
		"sdc": nil,
	} {
		if diff := cmp.Diff(want, device(t, inv, name).Target); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
	if a, b := device(t, inv, "sda").Transport, device(t, inv, "sdb").Transport; a != "iscsi" || b != "fc" {
		t.Errorf("transports %q %q", a, b)
	}
}

func TestVolumesOfRAIDCards(t *testing.T) {
	for _, c := range []struct {
		driver, hctl string
		attrs        map[string]string
		level        string
		volume       bool
	}{
		{"hpsa", "0:1:0:0", map[string]string{"raid_level": "RAID 5"}, "RAID 5", true},
		{"hpsa", "0:0:1:0", map[string]string{"raid_level": "N/A"}, "", false},
		{"smartpqi", "0:1:0:0", map[string]string{"raid_level": "RAID-1(1+0)"}, "RAID-1(1+0)", true},
		{"smartpqi", "0:0:1:0", map[string]string{"raid_level": "N/A"}, "", false},
		{"smartpqi", "0:0:1:0", nil, "", false}, // a tree without the file
		{"aacraid", "0:0:0:0", map[string]string{"level": "RAID5"}, "RAID5", true},
		{"aacraid", "0:1:4:0", map[string]string{"level": "JBOD"}, "", false},
		{"megaraid_sas", "0:2:0:0", nil, "", true},
		{"megaraid_sas", "0:0:9:0", nil, "", false},
		{"mpt3sas", "0:1:0:0", map[string]string{"raid_devices/0:1:0:0/level": "raid1"}, "raid1", true},
		{"mpt3sas", "0:0:3:0", nil, "", false},
		{"mpt3sas", "0:2:3:0", nil, "", false}, // PCIE_CHANNEL: an NVMe disk
		{"3w-9xxx", "0:0:0:0", nil, "", true},
		{"ahci", "0:0:0:0", nil, "", false},
		{"megaraid_sas", "0:2:0:0", map[string]string{"vendor": "ATA     "}, "", false},
	} {
		m := sysfstree.NewSmall("")
		m.PCI("0000:00:05.0", c.driver)
		m.SCSI("pci0000:00/0000:00:05.0/host0", c.hctl, "sda", c.attrs, nil)
		d := device(t, inventory(t, m, probe.Options{}), "sda")
		if d.Volume.Ok() != c.volume || d.Volume.V != c.level {
			t.Errorf("%s %s %v: volume %+v, want %v %q", c.driver, c.hctl, c.attrs, d.Volume, c.volume, c.level)
		}
		if got := note(d.Notes, "members", probe.NotAsked) != nil; got != c.volume {
			t.Errorf("%s %s: note about the disks behind it: %v", c.driver, c.hctl, got)
		}
	}
	inv, err := read(t, recorded.FS(t, "dell_perc_h700"), probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if d := device(t, inv, "sda"); !d.Volume.Ok() {
		t.Errorf("PERC H700 volume: %+v", d.Volume)
	}
}

func TestTapesAreNoted(t *testing.T) {
	m := newMachine()
	scsi := "devices/pci0000:00/0000:00:05.0/host7/target7:0:0/7:0:0:0"
	file(m, "sys/"+scsi+"/vendor", "IBM     \n")
	file(m, "sys/"+scsi+"/model", "ULTRIUM-HH8     \n")
	for _, n := range []string{"st0", "nst0", "st0a", "nst0m"} { // drivers/scsi/st.c, create_one_cdev
		link(m, "sys/class/scsi_tape/"+n, "../../"+scsi+"/scsi_tape/"+n)
		link(m, "sys/"+scsi+"/scsi_tape/"+n+"/device", "../../../7:0:0:0")
	}
	inv := inventory(t, m, probe.Options{})
	n := note(inv.Notes, "st0", probe.NotAsked)
	if n == nil || !strings.Contains(n.Why, "IBM ULTRIUM-HH8") || len(inv.Notes) != 1 {
		t.Errorf("notes %+v", inv.Notes)
	}
	if inv := inventory(t, m, probe.Options{Only: []string{"sda"}}); len(inv.Notes) != 0 {
		t.Errorf("asked for sda alone: %+v", inv.Notes)
	}
}

func TestSerialAndDisagreements(t *testing.T) {
	m := newMachine()
	id := strings.Fields(identify("ACME DISK 9000", "FW 1.0"))
	for i, pair := range []string{"BA", "D_", "CT", "X "} { // words 10 to 19
		id[10+i] = fmt.Sprintf("%02x%02x", pair[0], pair[1])
	}
	file(m, sdaID, strings.Join(id, " "))
	// Page 89h of another disk, and a stale record of udev.
	other := identify("ACME DISK 9000", "FW 2.0")
	page := make([]byte, 0x238)
	page[52] = 0xec
	for i, w := range strings.Fields(other) {
		var v uint16
		fmt.Sscanf(w, "%04x", &v)
		page[56+2*i], page[57+2*i] = byte(v), byte(v>>8)
	}
	file(m, sdaSCSI+"/vpd_pg89", vpdPage(0x89, len(page), page))
	file(m, sdbSCSI+"/vpd_pg80", vpdPage(0x80, 8, []byte(" S0042  ")))
	file(m, "run/udev/data/b8:0", "E:ID_ATA=1\nE:ID_MODEL_ENC=ACME\\x20DISK\\x208000\n")
	file(m, "run/udev/data/b8:16", "E:ID_ATA=1\nE:ID_MODEL_ENC=ACME\\x20DISK\\x209000\\x20PRO\nE:ID_REVISION=FW9.9\n")
	inv := inventory(t, m, probe.Options{})
	a, b := device(t, inv, "sda"), device(t, inv, "sdb")
	if a.Serial.V != "BAD_CTX" || b.Serial.V != "S0042" {
		t.Errorf("serials %+v %+v", a.Serial, b.Serial)
	}
	short := func(d *probe.Device) (out []string) {
		for _, dis := range d.Disagreements {
			s := dis.What
			for _, v := range dis.Values {
				s += " | " + v.Value + " " + path.Base(v.Source)
			}
			out = append(out, s)
		}
		return out
	}
	if diff := cmp.Diff([]string{"identity.ata.firmware | FW 1.0 id | FW 2.0 vpd_pg89", "identity.ata.model | ACME DISK 9000 id | ACME DISK 8000 b8:0"}, short(a)); diff != "" {
		t.Errorf("sda (-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]string{"identity.ata.firmware | 1.0 rev | FW9.9 b8:16"}, short(b)); diff != "" {
		t.Errorf("sdb (-want +got)\n%s", diff)
	}
	// Near miss: nothing disagrees on a machine where nothing does.
	for _, d := range inventory(t, newMachine(), probe.Options{}).Devices {
		if len(d.Disagreements) != 0 {
			t.Errorf("%s: %+v", d.Name, d.Disagreements)
		}
	}
	// The recorded host whose sysfs side was edited (testdata README).
	rec, err := read(t, recorded.FS(t, "xeon_sata_micron"), probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if d := device(t, rec, "sda"); len(d.Disagreements) == 0 {
		t.Error("xeon_sata_micron: sysfs and udev name two disks, and no disagreement is told")
	}
}
