package vm

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/quirkcheck/quirkcheck/checker"
)

// TestVMListedAndNotApplied shows on booted kernels that a row of the SCSI list
// with an 8-character vendor holds on 6.1 and not on newer ones, and that scan
// says so of that disk alone. The peer is the kernel itself: device/blacklist.
// On the same machine libata applies a row of its own, which ata_device/*/trim
// shows on each kernel and the log from 6.12 on: scan says by which.
func TestVMListedAndNotApplied(t *testing.T) {
	Require(t)
	binary := buildQuirkcheck(t)
	const quirk = "kernel-scsi-devinfo-8char-vendor-misreport"
	booted := 0
	for _, spec := range Kernels() {
		if spec.Name != "6.1" && spec.Name != "6.12" && spec.Name != "7.x" {
			continue
		}
		t.Run(spec.Name, func(t *testing.T) {
			kern, err := FetchKernel(t.Context(), spec)
			var missing *MissingError
			if errors.As(err, &missing) {
				t.Skipf("not offered today: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			applied := spec.Name == "6.1"
			disks := []Disk{
				{Serial: "EIGHT1", Bus: VirtioSCSI, Image: TestImage(t, 64<<20), Vendor: "SYNOLOGY", Product: "iSCSI Storage", Revision: "4.0"},
				{Serial: "EIGHT2", Bus: VirtioSCSI, Image: TestImage(t, 64<<20), Vendor: "easyRAID", Product: "X6P", Revision: "1.0"},
				{Serial: "FOUR", Bus: VirtioSCSI, Image: TestImage(t, 64<<20), Vendor: "QNAP", Product: "iSCSI Storage", Revision: "4.0"},
				{Serial: "ROW", Bus: AHCI, Image: TestImage(t, 64<<20), Model: "Samsung SSD 850 EVO 1TB", Firmware: "EMT02B6Q"},
				{Serial: "NOROW", Bus: AHCI, Image: TestImage(t, 64<<20), Model: "ACME SSD", Firmware: "1.0"},
			}
			flags := map[string]string{"EIGHT1": "MAX_1024", "EIGHT2": "NOREPORTLUN", "FOUR": "MAX_1024"}
			Test(t, Config{Kernel: kern, Binary: binary, Disks: disks, MemoryMiB: 256}, func(ctx context.Context, m *Machine) error {
				booted++
				report, _, err := scanMachine(ctx, m, Cmd{})
				if err != nil {
					return err
				}
				for serial, flag := range flags {
					d, err := m.Disk(ctx, serial)
					if err != nil {
						return err
					}
					list, err := m.ReadAttr(ctx, d.Sysfs("device/blacklist"))
					if err != nil {
						return err
					}
					if has := slices.Contains(strings.Fields(list), flag); has != (applied || serial == "FOUR") {
						t.Errorf("%s on %s: device/blacklist %q", serial, m.Release(), list)
					}
					i := slices.IndexFunc(report.Findings, func(f checker.Finding) bool { return f.Device != nil && *f.Device == d.Name && f.Quirk == quirk })
					if found := i >= 0; found != (!applied && serial != "FOUR") {
						t.Errorf("%s on %s: finding %v", serial, m.Release(), found)
					} else if found && (report.Findings[i].Verdict != checker.Affected || !strings.Contains(report.Findings[i].Title, "does not apply")) {
						t.Errorf("%s on %s: %+v", serial, m.Release(), report.Findings[i])
					}
					t.Logf("%s on %s: device/blacklist %q", serial, m.Release(), strings.TrimSpace(list))
				}
				checkProven(ctx, t, m, report, spec.Name != "6.1")
				return nil
			})
		})
	}
	if booted == 0 {
		t.Error("no kernel booted")
	}
}

// checkProven compares what scan says of the quirks that the kernel applies with
// the kernel's own files and log.
func checkProven(ctx context.Context, t *testing.T, m *Machine, report *checker.Report, prints bool) {
	t.Helper()
	logged, _, err := scanMachine(ctx, m, Cmd{Args: []string{"quirkcheck", "scan", "--format", "json", "--log", "/dev/kmsg"}})
	if err != nil {
		t.Error(err)
		return
	}
	protection := func(r *checker.Report, device, flag string) (p checker.Protection, ok bool) {
		for _, d := range r.Devices {
			for _, p := range d.Protections {
				if d.Name == device && strings.TrimPrefix(strings.TrimPrefix(p.Flag, "ATA_HORKAGE_"), "ATA_QUIRK_") == flag {
					return p, true
				}
			}
		}
		return p, false
	}
	const quirk = "ata-samsung-ssd-850-queued-trim-io-error"
	row, err := m.Disk(ctx, "ROW")
	if err != nil {
		t.Error(err)
		return
	}
	noRow, err := m.Disk(ctx, "NOROW")
	if err != nil {
		t.Error(err)
		return
	}
	for _, r := range []*checker.Report{report, logged} {
		p, ok := protection(r, row.Name, "NO_NCQ_TRIM")
		if !ok || !p.Applied || p.By != "kernel" || !strings.HasSuffix(p.Source, "/trim") {
			t.Errorf("%s: the queued TRIM of a listed disk: %+v", m.Release(), p)
			continue
		}
		trim, err := m.ReadAttr(ctx, "/"+p.Source)
		if err != nil || strings.TrimSpace(trim) != "forced_unqueued" {
			t.Errorf("%s: %s is %q, %v", m.Release(), p.Source, trim, err)
		}
		i := slices.IndexFunc(r.Findings, func(f checker.Finding) bool { return f.Device != nil && *f.Device == row.Name && f.Quirk == quirk })
		if i < 0 || r.Findings[i].MitigatedBy == nil || r.Findings[i].MitigatedBy.Kind != "kernel" || !strings.Contains(r.Findings[i].MitigatedBy.Text, p.Source) {
			t.Errorf("%s: the finding of a listed disk does not name what proves it: %+v", m.Release(), r.Findings)
		}
		if p, ok := protection(r, noRow.Name, "NO_NCQ_TRIM"); ok && p.Applied {
			t.Errorf("%s: a disk without a row: %+v", m.Release(), p)
		}
	}
	if _, ok := protection(report, row.Name, "ZERO_AFTER_TRIM"); ok {
		t.Errorf("%s: no file shows ZERO_AFTER_TRIM", m.Release())
	}
	p, ok := protection(logged, row.Name, "ZERO_AFTER_TRIM")
	line := strings.Contains(m.KernelLog(), "applying quirks:")
	if line != prints || ok != prints || ok && (!p.Applied || !strings.Contains(p.Source, ", line ") || !strings.Contains(p.Text, "applying quirks: ")) {
		t.Errorf("%s: the log has a line: %t, want %t; of it scan says %t %+v", m.Release(), line, prints, ok, p)
	}
	if p, ok := protection(logged, noRow.Name, "ZERO_AFTER_TRIM"); ok && p.Applied {
		t.Errorf("%s: a disk without a row: %+v", m.Release(), p)
	}
	t.Logf("%s: trim of a listed disk by its file; ZERO_AFTER_TRIM by %q", m.Release(), p.Text)
}
