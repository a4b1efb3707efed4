package probe_test

import (
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/schema"
)

// notRead are files of knobs that the probe leaves alone.
var notRead = map[string]string{
	"/sys/class/scsi_host/*/cmd_per_lun":                  "of the host and read-only; device/queue_depth shows what holds for the device",
	"/sys/class/scsi_host/*/can_queue":                    "of the host and read-only; device/queue_depth shows what holds for the device",
	"/sys/class/fc_remote_ports/*/dev_loss_tmo":           "of a remote port: the stack's business, not the device's",
	"/sys/class/fc_remote_ports/*/fast_io_fail_tmo":       "of a remote port: the stack's business, not the device's",
	"/sys/class/iscsi_session/*/recovery_tmo":             "of a session: the stack's business, not the device's",
	"/sys/class/nvme/*/power/pm_qos_latency_tolerance_us": "of the controller, only where it supports APST",
	"/sys/bus/usb/devices/*/power/usb2_hardware_lpm":      "of the USB device, of which the probe takes the identity alone",
	"/sys/bus/usb/devices/*/power/usb3_hardware_lpm_u1":   "of the USB device, of which the probe takes the identity alone",
	"/sys/bus/usb/devices/*/power/usb3_hardware_lpm_u2":   "of the USB device, of which the probe takes the identity alone",
}

// noKnob are attributes read for another reason than a knob.
var noKnob = map[string]string{
	"size":                                  "capacity",
	"dev":                                   "key of the udev database",
	"dm/name":                               "names the map, for dmsetup",
	"dm/uuid":                               "tells who made the map",
	"md/level":                              "shown",
	"md/chunk_size":                         "shown; full stripe",
	"md/raid_disks":                         "shown; full stripe",
	"md/layout":                             "which blocks lie together; of raid0 one of two",
	"md/metadata_version":                   "who keeps the array: md or a firmware",
	"md/component_size":                     "shown",
	"md/degraded":                           "condition of entries",
	"md/sync_action":                        "an array that is being checked or rebuilt",
	"md/array_state":                        "an array that takes no writes",
	"integrity/format":                      "bound of max_sectors from 6.19",
	"queue/max_integrity_segments":          "bound of requests with protection information",
	"integrity/device_is_integrity_capable": "who keeps protection information",
	"integrity/protection_interval_bytes":   "bound of max_sectors from 6.19",
	"integrity/read_verify":                 "who checks protection information",
	"integrity/tag_size":                    "format of protection information",
	"integrity/write_generate":              "who makes protection information",
	"metadata_bytes":                        "bound of max_sectors from 6.19",
	"ata_device/spdn_cnt":                   "a link that was slowed down",
	"ata_device/xfer_mode":                  "whether DMA is in use",
	"ata_link/sata_spd":                     "condition of entries; whether the link is Serial ATA",
	"ata_link/sata_spd_limit":               "a link that was slowed down",
	"ro":                                    "shown",
	"removable":                             "shown",
	"hidden":                                "tells the paths of an NVMe multipath head",
	"diskseq":                               "names the disk when the name is given anew",
	"queue/logical_block_size":              "unit of VPD limits",
	"queue/physical_block_size":             "judges OPTIMAL TRANSFER LENGTH",
	"queue/max_hw_sectors_kb":               "bound of max_sectors",
	"queue/write_same_max_bytes":            "effect of write_same on old kernels",
}

func TestAttributesCoverTheKnobs(t *testing.T) {
	attributes := append(probe.Attributes(), probe.ModuleParams()...)
	if len(attributes) == 0 {
		t.Fatal("the probe reads nothing")
	}
	for i, name := range attributes {
		if slices.Contains(attributes[:i], name) {
			t.Errorf("%s is read twice", name)
		}
	}
	knobs := map[string]bool{}
	used := map[string]bool{}
	files := 0
	for _, k := range schema.Knobs() {
		for _, f := range k.Files {
			files++
			name := strings.Replace(f.Path, "device/scsi_disk/*/", "scsi_disk/", 1)
			name = strings.Replace(name, "/sys/class/ata_device/*/", "ata_device/", 1)
			if rest, ok := strings.CutPrefix(name, "/sys/module/"); ok {
				name = strings.Replace(rest, "/parameters/", ".", 1)
			}
			if strings.HasPrefix(name, "/sys/class/scsi_host/*/link_power") {
				// Read once a host; TestRecordedKernels sees it through Attr.
				name = path.Base(name)
				knobs[name] = true
				continue
			}
			knobs[name] = true
			_, excepted := notRead[name]
			used[name] = true
			switch read := slices.Contains(attributes, name); {
			case !read && !excepted:
				t.Errorf("knob %s: the probe does not read %s, and no exception says why", k.Name, f.Path)
			case read && excepted:
				t.Errorf("knob %s: %s is read, yet an exception says that it is not", k.Name, f.Path)
			}
		}
	}
	if files == 0 {
		t.Fatal("no knob names a file")
	}
	for name := range notRead {
		if !used[name] {
			t.Errorf("exception %s: no knob names it", name)
		}
	}
	for _, name := range probe.Attributes() {
		_, excepted := noKnob[name]
		switch {
		case !knobs[name] && !excepted:
			t.Errorf("the probe reads %s, which no knob names, and no exception says why", name)
		case knobs[name] && excepted:
			t.Errorf("%s is a knob's file, yet an exception says that it is not", name)
		}
	}
	for name := range noKnob {
		if !slices.Contains(attributes, name) {
			t.Errorf("exception %s: the probe does not read it", name)
		}
	}
}
