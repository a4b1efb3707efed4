package emit_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/checker/emit"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/internal/vm"
	"github.com/quirkcheck/quirkcheck/quirks"
)

func ptr[T any](v T) *T { return &v }

// testDB is the built-in database with this test's own entries.
func testDB(t testing.TB) *quirks.Set {
	t.Helper()
	db, faults := quirks.Builtin()
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	over, faults := quirks.Load(os.DirFS("testdata/entries"))
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	db, err := db.Merge(over)
	if err != nil {
		t.Fatal(err)
	}
	return db
}

// found makes a report in which each entry was found on one device.
func found(ids ...string) *checker.Report {
	r := &checker.Report{}
	for i, id := range ids {
		d := &checker.Device{Name: fmt.Sprintf("sd%c", 'a'+i), Kind: "disk", Limits: checker.Limits{MaxSectorsKB: ptr[uint64](1280)}}
		r.Devices = append(r.Devices, d)
		r.Findings = append(r.Findings, checker.Finding{Device: &d.Name, Quirk: id, Verdict: checker.Affected, Confidence: "confirmed", Title: id})
	}
	return r
}

const st380013as = "ata-seagate-st380013as-silent-corruption"

// TestVMEmit lets udevd and multipath read what is written.
//
//	HIT     ATA ST380013AS 3.20 on virtio-scsi       to 512
//	FW      the same with firmware 3.21              stays
//	LOW     as HIT, another rule has set 256         stays
//	PATH    as HIT, a path of a multipath map        stays
//	LONG    AHCI, name in full only by ata_id        to 512
//	NEAR    AHCI, SCSI shows the same of its name    stays
//	ADAPT   ACME Adapter Disk on virtio-scsi         to 256
//	OTHER   ACME Other Disk, entry names mpt3sas     stays
//	NVME    QEMU NVMe Ctrl                           to 128
//	USB     QEMU's bridge                            to 32
func TestVMEmit(t *testing.T) {
	vm.Require(t, "multipath")
	img := func() *vm.Image { return vm.TestImage(t, 8<<20) }
	report := found(st380013as, "ata-acme-long-io-timeout", "scsi-acme-adapter-io-timeout", "scsi-acme-other-io-timeout", "nvme-acme-io-timeout", "usb-acme-bridge-hang")
	plan := emit.New(report, testDB(t), emit.Options{ToolVersion: "test"})
	rules, err := plan.Emit(emit.KindUdev)
	if err != nil {
		t.Fatal(err)
	}
	if len(rules.Warnings) > 0 {
		t.Errorf("warnings: %q", rules.Warnings)
	}
	conf, err := plan.Emit(emit.KindMultipath)
	if err != nil {
		t.Fatal(err)
	}
	st := func(serial, firmware string) vm.Disk {
		return vm.Disk{Serial: serial, Bus: vm.VirtioSCSI, Image: img(), Vendor: "ATA", Product: "ST380013AS", Revision: firmware}
	}
	kern := vm.Stock(t)
	cfg := vm.Config{
		Kernel: kern, Udev: true, Tools: []string{"multipath"}, Append: []string{"libata.force=80c"},
		Files: map[string][]byte{"/etc/multipath/conf.d/quirkcheck.conf": []byte(conf.Text)},
		Rules: map[string]string{
			emit.UdevFile:   rules.Text,
			"61-test.rules": `ENV{ID_SCSI_SERIAL}=="PATH", ENV{DM_MULTIPATH_DEVICE_PATH}="1"` + "\n",
			"70-test.rules": `ACTION=="add", ENV{DEVTYPE}=="disk", ENV{ID_SCSI_SERIAL}=="LOW", ATTR{queue/max_sectors_kb}="256"` + "\n",
		},
		Disks: []vm.Disk{
			st("HIT", "3.20"), st("FW", "3.21"), st("LOW", "3.20"), st("PATH", "3.20"),
			{Serial: "LONG", Bus: vm.AHCI, Image: img(), Model: "ACME LONG DISK NAME 9000", Firmware: "ABCDEFGH"},
			{Serial: "NEAR", Bus: vm.AHCI, Image: img(), Model: "ACME LONG DISK NAME 8000", Firmware: "ABCDEFGH"},
			{Serial: "ADAPT", Bus: vm.VirtioSCSI, Image: img(), Vendor: "ACME", Product: "Adapter Disk"},
			{Serial: "OTHER", Bus: vm.VirtioSCSI, Image: img(), Vendor: "ACME", Product: "Other Disk"},
			{Serial: "NVME", Bus: vm.NVMe, Image: img()},
			{Serial: "USB", Bus: vm.USBStorage, Image: img()},
		},
	}
	vm.Test(t, cfg, func(ctx context.Context, m *vm.Machine) error {
		rel, err := kernel.Parse(m.Release())
		if err != nil {
			return err
		}
		def := "1280"
		if rel.Major > 6 || rel.Major == 6 && rel.Minor >= 17 {
			def = "4096"
		}
		get := func(serial string) (string, vm.Found) {
			t.Helper()
			d, err := m.Disk(ctx, serial)
			if err != nil {
				t.Fatal(err)
			}
			v, err := m.ReadAttr(ctx, d.Sysfs("queue/max_sectors_kb"))
			if err != nil {
				t.Fatal(err)
			}
			return v, d
		}
		after := map[string]string{"HIT": "512", "FW": def, "LOW": "256", "PATH": def, "LONG": "512", "NEAR": def, "ADAPT": "256",
			"OTHER": def, "NVME": "128", "USB": "32"}
		check := func(when string) {
			t.Helper()
			for serial, want := range after {
				if got, d := get(serial); got != want {
					t.Errorf("%s: %s (%s): max_sectors_kb %s, want %s", when, serial, d.Name, got, want)
				}
			}
		}
		check("cold plug")

		// Hot plug.
		if err := m.Unplug(ctx, "HIT"); err != nil {
			return err
		}
		if _, err := m.Plug(ctx, "HIT"); err != nil {
			return err
		}
		for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
			if got, _ := get("HIT"); got == "512" {
				break
			}
		}
		check("hot plug")

		// Only add acts: a change event does not undo what somebody set.
		_, hit := get("HIT")
		attr := hit.Sysfs("queue/max_sectors_kb")
		if err := m.WriteAttr(ctx, attr, "1024"); err != nil {
			return err
		}
		settle := func(args string) error {
			_, err := m.Output(ctx, "sh", "-c", args+" && udevadm settle --timeout=60")
			return err
		}
		if err := settle("udevadm trigger --action=change " + hit.Sysfs()); err != nil {
			return err
		}
		if got, _ := get("HIT"); got != "1024" {
			t.Errorf("after a change event: %s, want 1024", got)
		}
		out, err := m.Output(ctx, "sh", "-c", "udevadm test --action=add "+hit.Sysfs()+" 2>&1")
		if err != nil {
			return err
		}
		for _, bad := range []string{"Invalid", "Unknown", "Failed to parse", "has no effect", "ignoring"} {
			for l := range strings.Lines(out) {
				if strings.Contains(l, bad) && strings.Contains(l, "quirkcheck.rules") {
					t.Errorf("udevadm test: %s", l)
				}
			}
		}
		if !strings.Contains(out, "quirkcheck.rules") || !strings.Contains(out, "512") {
			t.Errorf("udevadm test does not name the rule:\n%s", out)
		}
		if got, _ := get("HIT"); got != "512" {
			t.Errorf("after udevadm test: %s, want 512", got)
		}

		// Held at what is there now, by name: the two files together, each value
		// above and below the other's.
		report := &checker.Report{Devices: []*checker.Device{
			disk("sda", "libata", 600, ata("ACME LONG DISK NAME 8000", "ABCDEFGH")),
			disk("sdb", "libata", 256, ata("ACME LONG DISK NAME 9000", "ABCDEFGH")),
			disk("sdc", "scsi", 800, scsi("ACME", "Adapter Disk", "2.5+")),
			disk("sdd", "scsi", 700, scsi("ACME", "Other Disk", "2.5+")),
		}}
		pin, err := emit.PinPresent(report, nil, emit.Options{})
		if err != nil {
			return err
		}
		if err := m.WriteFile(ctx, "/etc/udev/rules.d/"+emit.PinFile, []byte(pin.Text), 0o644); err != nil {
			return err
		}
		raise := func() error {
			for _, serial := range []string{"HIT", "LONG", "NEAR", "ADAPT", "OTHER"} {
				_, d := get(serial)
				if err := m.WriteAttr(ctx, d.Sysfs("queue/max_sectors_kb"), def); err != nil {
					return err
				}
			}
			return settle("udevadm control --reload && udevadm trigger --action=add --subsystem-match=block")
		}
		if err := raise(); err != nil {
			return err
		}
		after["NEAR"], after["LONG"], after["OTHER"] = "600", "256", "700"
		check("with pins")

		out, err = m.Output(ctx, "sh", "-c", "multipath -t 2>&1")
		if err != nil {
			return err
		}
		for _, l := range strings.Split(out, "\n") {
			if strings.Contains(l, "quirkcheck.conf") || strings.Contains(l, "invalid") {
				t.Errorf("multipath -t: %s", l)
			}
		}
		section := "device {\n\t\tvendor \"^ATA$\"\n\t\tproduct \"^ST380013AS$\"\n\t\trevision \"^3[.]20$\"\n"
		_, rest, ok := strings.Cut(out, section)
		own, _, _ := strings.Cut(rest, "}")
		if !ok || !strings.Contains(own, "max_sectors_kb 512") {
			t.Errorf("multipath -t does not show the section and its value:\n%s", out)
		}
		return nil
	})
}

func disk(name, path string, kib uint64, id checker.Identity) *checker.Device {
	return &checker.Device{Name: name, Kind: "disk", Path: &path, Identity: id, Limits: checker.Limits{MaxSectorsKB: &kib}}
}

func ata(model, firmware string) checker.Identity {
	return checker.Identity{ATA: &checker.ModelFirmware{Model: &model, Firmware: &firmware}, SCSI: &checker.SCSIIdentity{Vendor: ptr("ATA")}}
}

func nvme(model, firmware string) checker.Identity {
	return checker.Identity{NVMe: &checker.ModelFirmware{Model: &model, Firmware: &firmware}}
}

func scsi(vendor, product, revision string) checker.Identity {
	return checker.Identity{SCSI: &checker.SCSIIdentity{Vendor: &vendor, Product: &product, Revision: &revision}}
}

// TestVMEmitParameters boots with the kernel parameters that are written, merged
// with those of the bench.
func TestVMEmitParameters(t *testing.T) {
	vm.Require(t)
	kern := vm.Stock(t)
	rel, err := kernel.Parse(kern.Release)
	if err != nil {
		t.Fatal(err)
	}
	report := found(st380013as, "scsi-acme-array-io-error")
	report.Devices[0].Path, report.Devices[0].Adapter = ptr("libata"), &checker.Adapter{ATAPort: ptr("1")}
	report.Devices[1].Path, report.Devices[1].Identity = ptr("scsi"), scsi("ACME", "Array of Disks", "1.00")
	a, err := emit.New(report, testDB(t), emit.Options{Kernel: rel, Blacklist: map[string][]string{"sdb": {"RETRY_HWERROR"}},
		Cmdline: "libata.force=1:80c,2:80c"}).Emit(emit.KindCmdline)
	if err != nil {
		t.Fatal(err)
	}
	var params []string
	for l := range strings.Lines(a.Text) {
		if !strings.HasPrefix(l, "#") {
			params = append(params, strings.TrimSpace(l))
		}
	}
	t.Logf("%s: %q", kern.Release, params)
	if len(params) != 2 {
		t.Fatalf("parameters %q, want two", params)
	}
	img := func() *vm.Image { return vm.TestImage(t, 8<<20) }
	vm.Test(t, vm.Config{Kernel: kern, Append: params, Disks: []vm.Disk{
		{Serial: "PORT1", Bus: vm.AHCI, Image: img(), Model: "ACME DISK"},
		{Serial: "PORT2", Bus: vm.AHCI, Image: img(), Model: "ACME DISK"},
		{Serial: "ARRAY", Bus: vm.VirtioSCSI, Image: img(), Vendor: "ACME", Product: "Array of Disks"},
	}}, func(ctx context.Context, m *vm.Machine) error {
		for serial, limited := range map[string]bool{"PORT1": true, "PORT2": false, "ARRAY": true} {
			d, err := m.Disk(ctx, serial)
			if err != nil {
				return err
			}
			got, err := m.ReadAttr(ctx, d.Sysfs("queue/max_hw_sectors_kb"))
			if err != nil {
				return err
			}
			if (got == "512") != limited {
				t.Errorf("%s: max_hw_sectors_kb %s, want 512: %v", serial, got, limited)
			}
			if serial == "ARRAY" {
				if flags, err := m.ReadAttr(ctx, d.Sysfs("device/blacklist")); err != nil || flags != "RETRY_HWERROR MAX_1024" {
					t.Errorf("ARRAY: blacklist %q, %v", flags, err)
				}
			}
		}
		return nil
	})
}
