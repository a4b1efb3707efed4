package probe_test

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/quirkcheck/quirkcheck/probe"
)

const pciFunction = "sys/devices/pci0000:00/0000:00:1f.2"

func readOne(t *testing.T, m fs.FS, name string) *probe.Device {
	t.Helper()
	inv, err := read(t, m, probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d, ok := inv.Device(name)
	if !ok {
		t.Fatalf("%s is missing: %+v", name, inv.Notes)
	}
	return d
}

// The files of libata's link and device, in a port multiplier's place too.
func TestATAAttributes(t *testing.T) {
	m := newMachine()
	link1 := pciFunction + "/ata1/link1"
	file(m, link1+"/dev1.0/ata_device/dev1.0/trim", "forced_unqueued\n")
	file(m, link1+"/dev1.0/ata_device/dev1.0/spdn_cnt", "2\n")
	file(m, link1+"/dev1.0/ata_device/dev1.0/xfer_mode", "XFER_UDMA_6\n")
	file(m, link1+"/ata_link/link1/sata_spd", "6.0 Gbps\n")
	d := readOne(t, m, "sda")
	for name, want := range map[string]string{"ata_device/trim": "forced_unqueued", "ata_device/spdn_cnt": "2", "ata_device/xfer_mode": "XFER_UDMA_6", "ata_link/sata_spd": "6.0 Gbps"} {
		if v := d.Attr(name); v.V != want || !v.Ok() || !strings.HasPrefix(v.Source, link1+"/") {
			t.Errorf("%s: %+v, want %q below %s", name, v, want, link1)
		}
		if v := d.Attr(name); m[v.Source] == nil {
			t.Errorf("%s: no file is at its source %s", name, v.Source)
		}
	}
	if v := d.Attr("ata_link/sata_spd_limit"); v.State != probe.Absent {
		t.Errorf("an attribute that is not there: %+v", v)
	}
	if v := readOne(t, m, "sdb").Attr("ata_device/trim"); v.State != probe.Absent {
		t.Errorf("a port without a link in this tree: %+v", v)
	}

	// Behind a multiplier the SCSI channel is the link.
	m = newMachine()
	scsi := strings.Replace(sdaSCSI, "0:0:0:0", "0:3:0:0", 1)
	for name, f := range m {
		if rest, ok := strings.CutPrefix(name, sdaSCSI); ok {
			delete(m, name)
			m[scsi+strings.ReplaceAll(rest, "0:0:0:0", "0:3:0:0")] = f
		}
	}
	link(m, "sys/block/sda", "../"+strings.TrimPrefix(scsi, "sys/")+"/block/sda")
	link(m, scsi+"/block/sda/device", "../../../0:3:0:0")
	file(m, pciFunction+"/ata1/link1.3/dev1.3.0/ata_device/dev1.3.0/trim", "queued\n")
	file(m, pciFunction+"/ata1/link1.3/ata_link/link1.3/sata_spd", "3.0 Gbps\n")
	d = readOne(t, m, "sda")
	if trim, spd := d.Attr("ata_device/trim"), d.Attr("ata_link/sata_spd"); trim.V != "queued" || spd.V != "3.0 Gbps" {
		t.Errorf("behind a multiplier: trim %+v, speed %+v", trim, spd)
	}
}

func TestATAIdentifyIsKept(t *testing.T) {
	d := readOne(t, newMachine(), "sda")
	if id := d.ATAIdentify; !id.Ok() || id.V.Model != "ACME DISK 9000" || id.Source != sdaID || id.V.LBA48 || id.V.NativeSATA {
		t.Errorf("%+v", id)
	}
	if id := readOne(t, newMachine(), "sdb").ATAIdentify; id.State != probe.NotAsked {
		t.Errorf("a disk without it: %+v", id)
	}
}

// A disk that is parallel itself, on a link that shows what it is or not.
func TestBridged(t *testing.T) {
	for _, c := range []struct {
		name, driver, spd string
		native, want      bool
		state             probe.State
	}{
		{"Serial ATA behind AHCI", "ahci", "6.0 Gbps", true, false, probe.Known},
		{"a bridge behind AHCI", "ahci", "1.5 Gbps", false, true, probe.Known},
		{"a bridge behind AHCI, speed not shown", "ahci", "", false, true, probe.Known},
		{"a bridge behind ata_piix", "ata_piix", "1.5 Gbps", false, true, probe.Known},
		{"a parallel disk", "pata_amd", "<unknown>", false, false, probe.Known},
		{"a link of ata_piix that shows no speed", "ata_piix", "<unknown>", false, false, probe.NotAsked},
		{"a link that says nothing", "ata_piix", "", false, false, probe.NotAsked},
	} {
		m := newMachine()
		link(m, pciFunction+"/driver", "../../../bus/pci/drivers/"+c.driver)
		words := strings.Fields(identify("ACME DISK 9000", "FW 1.0"))
		if words[80] = "01f0"; !c.native {
			words[93] = "6003"
		}
		file(m, sdaID, strings.Join(words, " "))
		if c.spd != "" {
			file(m, pciFunction+"/ata1/link1/ata_link/link1/sata_spd", c.spd+"\n")
		}
		if v := readOne(t, m, "sda").Bridged(); v.V != c.want || v.State != c.state {
			t.Errorf("%s: %+v, want %t %v", c.name, v, c.want, c.state)
		}
	}
	if v := readOne(t, newMachine(), "sdb").Bridged(); v.Ok() {
		t.Errorf("without IDENTIFY data: %+v", v)
	}
}

func TestNVMeQuirks(t *testing.T) {
	m := fstest.MapFS{}
	at := "sys/devices/pci0000:00/0000:00:02.0/nvme/nvme0"
	link(m, "sys/block/nvme0n1", "../"+strings.TrimPrefix(at, "sys/")+"/nvme0n1")
	link(m, at+"/nvme0n1/device", "../../nvme0")
	for name, content := range map[string]string{"model": "ACME", "transport": "pcie", "nvme0n1/size": "8", "nvme0n1/metadata_bytes": "8"} {
		file(m, at+"/"+name, content+"\n")
	}
	if v := readOne(t, m, "nvme0n1").NVMeQuirks; v.State != probe.Absent {
		t.Errorf("before 7.x: %+v", v)
	}
	file(m, at+"/quirks", "none\n")
	if v := readOne(t, m, "nvme0n1").NVMeQuirks; !v.Ok() || len(v.V) != 0 {
		t.Errorf("none: %+v", v)
	}
	file(m, at+"/quirks", "no_deepest_ps\nbogus_nid\n")
	d := readOne(t, m, "nvme0n1")
	if v := d.NVMeQuirks; !slices.Equal(v.V, []string{"no_deepest_ps", "bogus_nid"}) || v.Source != at+"/quirks" {
		t.Errorf("two: %+v", v)
	}
	if v := d.Uint("metadata_bytes"); v.V != 8 {
		t.Errorf("metadata_bytes %+v", v)
	}
}

func TestIOMMU(t *testing.T) {
	group := func(kind string) func(fstest.MapFS) {
		return func(m fstest.MapFS) {
			link(m, pciFunction+"/iommu_group", "../../../kernel/iommu_groups/7")
			if kind != "" {
				file(m, "sys/kernel/iommu_groups/7/type", kind+"\n")
			}
		}
	}
	virtio := func(bit33 string, more func(fstest.MapFS)) func(fstest.MapFS) {
		return func(m fstest.MapFS) {
			at := pciFunction + "/virtio0"
			file(m, at+"/features", strings.Repeat("1", 33)+bit33+strings.Repeat("0", 30)+"\n")
			link(m, at+"/driver", "../../../../bus/virtio/drivers/virtio_blk")
			link(m, "sys/block/vda", "../devices/pci0000:00/0000:00:1f.2/virtio0/block/vda")
			link(m, at+"/block/vda/device", "../../../virtio0")
			file(m, at+"/block/vda/size", "8\n")
			more(m)
		}
	}
	for _, c := range []struct {
		name   string
		device string
		change func(fstest.MapFS)
		want   string
		state  probe.State
		source string
	}{
		{"DMA", "sda", group("DMA"), probe.IOMMUTranslated, probe.Known, "sys/kernel/iommu_groups/7/type"},
		{"DMA with a flush queue", "sda", group("DMA-FQ"), probe.IOMMUTranslated, probe.Known, "sys/kernel/iommu_groups/7/type"},
		{"identity", "sda", group("identity"), probe.IOMMUPassthrough, probe.Known, "sys/kernel/iommu_groups/7/type"},
		{"a type that says nothing", "sda", group("unknown"), "", probe.Unreadable, "sys/kernel/iommu_groups/7/type"},
		{"a domain of user space", "sda", group("unmanaged"), "", probe.Unreadable, "sys/kernel/iommu_groups/7/type"},
		{"no type, as before 4.18", "sda", group(""), "", probe.Absent, "sys/kernel/iommu_groups/7/type"},
		{"no group and no IOMMU", "sda", func(m fstest.MapFS) { folder(m, "sys/class/iommu") }, probe.IOMMUOff, probe.Known, "sys/class/iommu"},
		{"a kernel without IOMMUs", "sda", func(m fstest.MapFS) { folder(m, "sys/class/mem") }, probe.IOMMUOff, probe.Known, "sys/class/iommu"},
		{"part of a tree", "sda", func(fstest.MapFS) {}, "", probe.NotAsked, "sys/class/iommu"},
		{"no group, and an IOMMU", "sda", func(m fstest.MapFS) {
			link(m, "sys/class/iommu/dmar0", "../../devices/virtual/iommu/dmar0")
		}, "", probe.Unreadable, pciFunction + "/iommu_group"},
		{"a link that leaves the tree", "sda", func(m fstest.MapFS) { link(m, pciFunction+"/iommu_group", "/etc") }, "", probe.Unreadable, pciFunction + "/iommu_group"},
		{"virtio with physical addresses", "vda", virtio("0", group("DMA")), probe.IOMMUPassthrough, probe.Known, pciFunction + "/virtio0/features"},
		{"virtio through the platform", "vda", virtio("1", group("DMA")), probe.IOMMUTranslated, probe.Known, "sys/kernel/iommu_groups/7/type"},
		{"virtio of no features", "vda", virtio("x", group("identity")), probe.IOMMUPassthrough, probe.Known, "sys/kernel/iommu_groups/7/type"},
	} {
		m := newMachine()
		c.change(m)
		v := readOne(t, m, c.device).IOMMU
		if v.V != c.want || v.State != c.state || v.Source != c.source || (v.State == probe.Unreadable) != (v.Err != nil) {
			t.Errorf("%s: %+v, want %q, %v of %s", c.name, v, c.want, c.state, c.source)
		}
	}
}

// An adapter that is no PCI function may be in a group all the same.
func TestIOMMUOfAPlatformDevice(t *testing.T) {
	m := fstest.MapFS{}
	at := "sys/devices/platform/3500000.sata"
	link(m, at+"/iommu_group", "../../../kernel/iommu_groups/2")
	file(m, "sys/kernel/iommu_groups/2/type", "DMA\n")
	scsi := at + "/ata1/host0/target0:0:0/0:0:0:0"
	link(m, "sys/block/sda", "../"+strings.TrimPrefix(scsi, "sys/")+"/block/sda")
	link(m, scsi+"/block/sda/device", "../../../0:0:0:0")
	file(m, scsi+"/block/sda/size", "8\n")
	if v := readOne(t, m, "sda").IOMMU; v.V != probe.IOMMUTranslated {
		t.Errorf("%+v", v)
	}
}

func TestHostFacts(t *testing.T) {
	m := newMachine()
	host := pciFunction + "/ata1/host0"
	file(m, host+"/scsi_host/host0/sg_tablesize", "168\n")
	file(m, host+"/scsi_host/host0/prot_capabilities", "0\n")
	file(m, host+"/scsi_host/host0/sg_prot_tablesize", "128\n")
	d := readOne(t, m, "sda")
	if v := d.SASHost; !v.Ok() || v.V || v.Source != host+"/sas_host" {
		t.Errorf("a SATA host is of the SAS class: %+v", v)
	}
	if v := d.Uint("sg_tablesize"); v.V != 168 {
		t.Errorf("sg_tablesize %+v", v)
	}
	if v := d.Attr("sg_prot_tablesize"); v.State != probe.NotAsked {
		t.Errorf("of a host that protects nothing it was read: %+v", v)
	}
	folder(m, host+"/sas_host/host0")
	file(m, host+"/scsi_host/host0/prot_capabilities", "119\n")
	d = readOne(t, m, "sda")
	if v := d.SASHost; !v.Ok() || !v.V || d.Transport != "sas" {
		t.Errorf("a SAS host: %+v, transport %s", v, d.Transport)
	}
	if v := d.Uint("sg_prot_tablesize"); v.V != 128 {
		t.Errorf("sg_prot_tablesize %+v", v)
	}
	for _, name := range probe.HostAttributes() {
		if v := d.Attr(name); v.State == probe.NotAsked {
			t.Errorf("%s is not read", name)
		}
	}
	delete(m, host+"/scsi_host/host0/proc_name")
	delete(m, host+"/sas_host/host0")
	delete(m, host+"/sas_host")
	if v := readOne(t, m, "sda").SASHost; v.Ok() {
		t.Errorf("a tree without the host's files: %+v", v)
	}
}

func TestProtectionInformation(t *testing.T) {
	m := newMachine()
	file(m, sdaBlock+"/integrity/format", "none\n")
	file(m, sdaBlock+"/integrity/tag_size", "0\n")
	file(m, sdbBlock+"/integrity/format", "T10-DIF-TYPE1-CRC\n")
	file(m, sdbBlock+"/integrity/tag_size", "0\n")
	file(m, sdbBlock+"/integrity/protection_interval_bytes", "512\n")
	file(m, sdbBlock+"/queue/max_integrity_segments", "65535\n")
	a, b := readOne(t, m, "sda"), readOne(t, m, "sdb")
	if v := a.Attr("integrity/tag_size"); v.State != probe.NotAsked || a.Attr("integrity/format").V != "none" {
		t.Errorf("a disk without protection information: %+v", v)
	}
	if v := b.Uint("integrity/protection_interval_bytes"); v.V != 512 || b.Uint("queue/max_integrity_segments").V != 65535 || !b.Attr("integrity/tag_size").Ok() {
		t.Errorf("a disk with it: %+v", v)
	}
	if v := b.Attr("metadata_bytes"); v.State != probe.Absent {
		t.Errorf("of a namespace, on a SCSI disk: %+v", v)
	}
}

func TestMDMembers(t *testing.T) {
	m := newMachine()
	at := "sys/devices/virtual/block/md0"
	link(m, "sys/block/md0", "../devices/virtual/block/md0")
	for name, content := range map[string]string{"size": "8", "md/level": "raid1", "md/layout": "0", "md/degraded": "1", "md/metadata_version": "1.2", "md/array_state": "clean",
		"md/dev-sda1/state": "in_sync,write_mostly", "md/dev-sdb1/state": "faulty"} {
		file(m, at+"/"+name, content+"\n")
	}
	folder(m, at+"/md/dev-sdc1")
	d := readOne(t, m, "md0")
	want := []string{"sda1 in_sync,write_mostly known", "sdb1 faulty known", "sdc1  absent"}
	var got []string
	for _, x := range d.MDMembers {
		got = append(got, x.Name+" "+x.State.V+" "+x.State.State.String())
		if x.State.Source != at+"/md/dev-"+x.Name+"/state" {
			t.Errorf("%s: source %s", x.Name, x.State.Source)
		}
	}
	if !slices.Equal(got, want) || d.Uint("md/degraded").V != 1 || d.Attr("md/array_state").V != "clean" {
		t.Errorf("%q, degraded %+v, want %q", got, d.Uint("md/degraded"), want)
	}
	if d := readOne(t, m, "sda"); d.MDMembers != nil || d.Attr("md/degraded").State != probe.Absent {
		t.Errorf("a disk: %+v %+v", d.MDMembers, d.Attr("md/degraded"))
	}
}

func TestModuleParameters(t *testing.T) {
	m := newMachine()
	file(m, "sys/module/usb_storage/parameters/quirks", "152d:0578:u\n")
	file(m, "sys/module/libata/parameters/fua", "1\n")
	inv, err := read(t, m, probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if v := inv.Param("usb-storage.quirks"); v.V != "152d:0578:u" || v.Source != "sys/module/usb_storage/parameters/quirks" {
		t.Errorf("%+v", v)
	}
	if v := inv.Param("libata.fua"); v.V != "1" {
		t.Errorf("%+v", v)
	}
	if v := inv.Param("mpt3sas.max_sectors"); v.State != probe.Absent {
		t.Errorf("a module that is not there: %+v", v)
	}
	if v := inv.Param("libata.force"); v.State != probe.NotAsked {
		t.Errorf("no kernel shows it: %+v", v)
	}
	names := probe.ModuleParams()
	if len(names) == 0 || !slices.IsSorted(names) {
		t.Errorf("parameters without order: %q", names)
	}
	for _, n := range names {
		if strings.Count(n, ".") != 1 || strings.Contains(n, "-") || path.Clean(n) != n || inv.Params[n].State == probe.NotAsked {
			t.Errorf("%s: %+v", n, inv.Params[n])
		}
	}
}

// A recording by a version that did not ask says so, of each of these facts.
func TestFactsOfAnOldRecordingAreNotAsked(t *testing.T) {
	m := newMachine()
	d := readOne(t, forgetful{m}, "sda")
	for name, state := range map[string]probe.State{"iommu": d.IOMMU.State, "sas": d.SASHost.State, "trim": d.Attr("ata_device/trim").State, "format": d.Attr("integrity/format").State,
		"sg_tablesize": d.Attr("sg_tablesize").State} {
		if state != probe.NotAsked {
			t.Errorf("%s is %v, want not asked", name, state)
		}
	}
	if d.Product.V == "" || d.Attr("proc_name").V != "ahci" {
		t.Errorf("what it has is not read: %+v", d)
	}
	inv, err := read(t, forgetful{m}, probe.Options{})
	if v := inv.Param("libata.fua"); err != nil || v.State != probe.NotAsked {
		t.Errorf("%+v, %v", v, err)
	}
}

// forgetful is a recording that holds nothing beside its files.
type forgetful struct{ fstest.MapFS }

func (f forgetful) Open(name string) (fs.File, error) {
	file, err := f.MapFS.Open(name)
	return file, unrecorded(err)
}

func (f forgetful) Lstat(name string) (fs.FileInfo, error) {
	info, err := f.MapFS.Lstat(name)
	return info, unrecorded(err)
}

func (f forgetful) Stat(name string) (fs.FileInfo, error) {
	info, err := f.MapFS.Stat(name)
	return info, unrecorded(err)
}

func (f forgetful) ReadLink(name string) (string, error) {
	target, err := f.MapFS.ReadLink(name)
	return target, unrecorded(err)
}

func (f forgetful) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := f.MapFS.ReadDir(name)
	return entries, unrecorded(err)
}

func unrecorded(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return &fs.PathError{Op: "open", Path: "", Err: probe.ErrNotRecorded}
	}
	return err
}
