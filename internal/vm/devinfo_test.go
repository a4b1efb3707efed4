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
				return nil
			})
		})
	}
	if booted == 0 {
		t.Error("no kernel booted")
	}
}
