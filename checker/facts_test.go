package checker_test

import (
	"testing"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/internal/sysfstree"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/quirks"
)

func TestFactsOfADevice(t *testing.T) {
	m := sysfstree.NewSmall("6.12.90-test")
	m.PCI("0000:00:1f.2", "ahci")
	const port = "pci0000:00/0000:00:1f.2/ata1"
	m.SCSI(port+"/host0", "0:0:0:0", "sda", map[string]string{"vendor": "ATA     ", "queue_depth": "1"}, map[string]string{"queue/scheduler": "none [mq-deadline]", "queue/rotational": "1"})
	m.Files("sys/devices/"+port+"/link1", map[string]string{"ata_link/link1/sata_spd": "1.5 Gbps", "dev1.0/ata_device/dev1.0/trim": "unqueued"})
	m.Files("sys/devices/"+port+"/host0/scsi_host/host0", map[string]string{"link_power_management_policy": "med_power_with_dipm"})
	m.Link("sys/devices/pci0000:00/0000:00:1f.2/iommu_group", "../../../kernel/iommu_groups/3")
	m.File("sys/kernel/iommu_groups/3/type", "DMA-FQ\n")
	m.PCI("0000:00:14.0", "xhci_hcd")
	const usb = "pci0000:00/0000:00:14.0/usb2/2-1"
	m.Files("sys/devices/"+usb, map[string]string{"idVendor": "152d", "idProduct": "0578", "speed": "480"})
	m.SCSI(usb+"/2-1:1.0/host6", "6:0:0:0", "sdb", map[string]string{"max_sectors": "240"}, nil)
	m.Virtual("md0", map[string]string{"md/level": "raid1", "md/layout": "0", "md/degraded": "1", "md/dev-sda1/state": "in_sync,write_mostly", "md/dev-sdb1/state": "in_sync"})
	m.Virtual("md1", map[string]string{"md/level": "raid0", "md/layout": "2", "md/dev-sda2/state": "in_sync"})
	m.File("sys/module/raid0/parameters/default_layout", "2\n")
	m.File("proc/cmdline", "quiet iommu=pt\n")
	inv, err := probe.Read(t.Context(), m, probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ device, key, want, source string }{
		{"sda", "iommu", "translated", "sys/kernel/iommu_groups/3/type"},
		{"sda", "capacity", "1073741824", "sys/devices/" + port + "/host0/target0:0:0/0:0:0:0/block/sda/size"},
		{"sda", "link_speed", "1.5", "sys/devices/" + port + "/link1/ata_link/link1/sata_spd"},
		{"sda", "ncq", "off", "sys/devices/" + port + "/host0/target0:0:0/0:0:0:0/queue_depth"},
		{"sda", "scheduler", "mq-deadline", "sys/devices/" + port + "/host0/target0:0:0/0:0:0:0/block/sda/queue/scheduler"},
		{"sda", "rotational", "1", "sys/devices/" + port + "/host0/target0:0:0/0:0:0:0/block/sda/queue/rotational"},
		{"sda", "lpm", "med_power_with_dipm", "sys/devices/" + port + "/host0/scsi_host/host0/link_power_management_policy"},
		{"sda", "io_kib", "1280", "sys/devices/" + port + "/host0/target0:0:0/0:0:0:0/block/sda/queue/max_sectors_kb"},
		{"sda", "module_param:raid0.default_layout", "2", "sys/module/raid0/parameters/default_layout"},
		{"sdb", "link_speed", "0.48", ""},
		{"md0", "md_degraded", "1", "sys/devices/virtual/block/md0/md/degraded"},
		{"md0", "md_write_mostly", "1", ""},
		{"md1", "md_degraded", "0", ""}, // no such file
		{"md1", "md_layout", "2", "sys/devices/virtual/block/md1/md/layout"},
	} {
		d, ok := inv.Device(c.device)
		if !ok {
			t.Fatalf("no %s", c.device)
		}
		sub := checker.SubjectOf(inv, d)
		e := &quirks.Entry{Where: quirks.MatchSpec{Any: []quirks.Arm{{}}}, Conditions: []quirks.Condition{{Key: c.key, Op: "==", Value: &quirks.Scalar{Text: c.want}}}}
		m := e.Match(sub)
		if m.Truth != quirks.True {
			t.Errorf("%s: %s == %s: %+v", c.device, c.key, c.want, m.Predicates)
		}
		if got := checker.SourceOf(inv, d, "condition."+c.key); got != c.source {
			t.Errorf("%s: %s is from %q, want %q", c.device, c.key, got, c.source)
		}
	}
	for device, keys := range map[string][]string{"sda": {"md_degraded", "md_write_mostly", "wcache", "arch", "module_param:libata.fua"}, "sdb": {"ncq", "iommu"}, "md0": {"iommu", "ncq", "link_speed"}} {
		d, _ := inv.Device(device)
		for _, key := range keys {
			e := &quirks.Entry{Where: quirks.MatchSpec{Any: []quirks.Arm{{}}}, Conditions: []quirks.Condition{{Key: key, Op: "!=", Value: &quirks.Scalar{Text: "x"}}}}
			if m := e.Match(checker.SubjectOf(inv, d)); m.Truth != quirks.Unknown {
				t.Errorf("%s: %s is not known here, and the answer is %v", device, key, m.Truth)
			}
		}
	}
}
