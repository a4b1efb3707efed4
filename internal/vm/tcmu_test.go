package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/internal/vm/tcmu"
)

// evpd returns the INQUIRYs that ask for a VPD page (SPC-4, INQUIRY command).
func evpd(log [][]byte) (pages []string) {
	for _, c := range log {
		if c[0] == 0x12 && c[1]&1 != 0 {
			pages = append(pages, fmt.Sprintf("%02x", c[2]))
		}
	}
	return pages
}

// withPageLength returns a VPD page that claims to be another length.
func withPageLength(page []byte, n uint16) []byte {
	page[2], page[3] = byte(n>>8), byte(n)
	return page
}

// tcmuDisks has disks answer what no disk should: pages that lie, names that
// command terminals, sense data. Scan must report them, without asking them
// anything.
func tcmuDisks(ctx context.Context, t *testing.T, m *Machine) error {
	begin := time.Now()
	liar := TCMUDisk{
		Name: "liar", Serial: "LIAR1", Inquiry: tcmu.Inquiry("ACME", "LIAR", "1.00"),
		VPD: map[byte][]byte{0xb0: withPageLength(tcmu.BlockLimits(65535, 0), 1024)},
	}
	disks := []TCMUDisk{
		liar,
		{
			Name: "hostile", Serial: "\x1b[2J",
			Inquiry: tcmu.Inquiry("\x1b[2J\x00\xff", "A\x1b]0;x\x07\x00B\xff\x9b31m", "\x1bc\x7f\xfe"),
		},
		{
			// The kernel cleans the strings of INQUIRY, and not these.
			Name: "hostile-ata", Serial: "\x1b[2J", Inquiry: tcmu.Inquiry("ATA", "HOSTILE", "1"),
			Identify: tcmu.IdentifyDevice("\x1b[31mA\x07\x00B\xff\x9b31m", "\x1bc\x7f", "\x1b]0;x", 131072),
		},
		{
			Name: "seagate", Serial: "SEA1", Inquiry: tcmu.Inquiry("SEAGATE", "ST900MM0006", "LS08"),
			VPD: map[byte][]byte{0xb0: tcmu.BlockLimits(1024, 0)},
		},
		{
			Name: "ata", Serial: "ATA1", Inquiry: tcmu.Inquiry("ATA", "ST380013AS", "3.20"),
			Identify: tcmu.IdentifyDevice("ST380013AS", "3.20", "ATA1", 131072),
		},
	}
	found := map[string]Found{}
	var (
		attaching sync.WaitGroup
		mu        sync.Mutex
		errs      []error
	)
	for _, d := range disks {
		attaching.Go(func() {
			f, err := m.TCMU(ctx, d)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			found[d.Name] = f
		})
	}
	attaching.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	t.Logf("%d disks attached after %.1f s", len(found), time.Since(begin).Seconds())
	report, err := scanAsksNothing(ctx, t, m, found)
	if err != nil {
		return err
	}
	device := func(name string) *checker.Device {
		i := slices.IndexFunc(report.Devices, func(d *checker.Device) bool { return d.Name == found[name].Name })
		if i < 0 {
			t.Fatalf("scan does not report %s", name)
		}
		return report.Devices[i]
	}
	scsi, ata := device("hostile").Identity.SCSI, device("hostile-ata").Identity.ATA
	if scsi == nil || ata == nil {
		t.Errorf("hostile: scan shows identities %+v, %+v", scsi, ata)
	} else {
		t.Logf("hostile: scan says vendor %q product %q revision %q; ATA model %q firmware %q",
			str(scsi.Vendor), str(scsi.Product), str(scsi.Revision), str(ata.Model), str(ata.Firmware))
	}

	log, err := m.TCMUCommands(ctx, "seagate")
	if err != nil {
		return err
	}
	if pages := evpd(log); len(log) == 0 || len(pages) > 0 {
		t.Errorf("ST900MM0006 got %d commands and was asked for VPD pages %v", len(log), pages)
	}
	t.Logf("seagate: %d commands, for VPD pages %d", len(log), len(evpd(log)))

	out, err := m.Output(ctx, "hdparm", "-I", found["ata"].Dev())
	if err != nil {
		return err
	}
	if model, _ := field(out, "Model Number"); model != "ST380013AS" {
		t.Errorf("hdparm -I says model %q, want ST380013AS:\n%s", model, out)
	}
	if d := device("ata"); d.Identity.ATA == nil || str(d.Identity.ATA.Model) != "ST380013AS" || str(d.Identity.ATA.Firmware) != "3.20" {
		t.Errorf("ata: scan says %+v of VPD page 89h, want ST380013AS, 3.20", d.Identity.ATA)
	}
	if err := pageLies(ctx, t, m, found["liar"], liar, report); err != nil {
		return err
	}
	if err := senseArrives(ctx, t, m, found["liar"], liar); err != nil {
		return err
	}
	for name, f := range found {
		if err := m.TCMURemove(ctx, name); err != nil {
			return err
		}
		if _, err := m.TCMUCommands(ctx, name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("commands of a disk removed: %v, want fs.ErrNotExist", err)
		}
		if _, err := m.ReadAttr(ctx, f.Sysfs("size")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("size of %s removed: %v, want fs.ErrNotExist", name, err)
		}
	}
	t.Logf("all of it took %.1f s", time.Since(begin).Seconds())
	return nil
}

// scanAsksNothing scans in both formats and proves twice, by the kernel's trace
// for all disks and by the logs of these, that no command was sent.
func scanAsksNothing(ctx context.Context, t *testing.T, m *Machine, found map[string]Found) (*checker.Report, error) {
	commands := func() (n int) {
		for name := range found {
			log, err := m.TCMUCommands(ctx, name)
			if err != nil {
				t.Error(err)
			}
			n += len(log)
		}
		return n
	}
	before := commands()
	if err := m.CountCommands(ctx); err != nil {
		return nil, err
	}
	report, asJSON, err := scanMachine(ctx, m, Cmd{})
	if err != nil {
		return nil, err
	}
	table, err := m.Run(ctx, "quirkcheck", "scan")
	if err != nil {
		return nil, err
	}
	if table.Exit > 1 {
		t.Error(table.Err())
	}
	sent, err := m.Commands(ctx)
	if err != nil {
		return nil, err
	}
	after := commands()
	if len(sent) > 0 || after != before || before == 0 {
		t.Errorf("during scan the kernel sent %v; the disks had %d commands before and %d after", sent, before, after)
	}
	t.Logf("two scans of %d devices: %d commands sent; the disks had got %d before and %d after", len(report.Devices), len(sent), before, after)
	for _, r := range []Result{asJSON, table} {
		out := slices.Concat(r.Stdout, r.Stderr)
		if i := bytes.IndexAny(out, "\x00\x07\x1b\x7f\u009b"); i >= 0 {
			t.Errorf("%v prints the control character %02x:\n%q", r.Args, out[i], out)
		}
		if !utf8.Valid(out) {
			t.Errorf("%v prints bytes that are no UTF-8:\n%q", r.Args, out)
		}
		if !bytes.Contains(out, []byte(found["hostile"].Name)) {
			t.Errorf("%v does not show %s:\n%s", r.Args, found["hostile"].Name, out)
		}
	}
	return report, nil
}

// pageLies has VPD page B0h claim lengths it does not have, first that of the
// report given: sysfs shows what is claimed, and scan takes what is there.
func pageLies(ctx context.Context, t *testing.T, m *Machine, f Found, d TCMUDisk, report *checker.Report) error {
	for i, c := range []struct {
		claimed uint16 // PAGE LENGTH, which leaves out the header of 4 bytes
		sent    int    // bytes of the page that get to the kernel
		want    string // MAXIMUM TRANSFER LENGTH
	}{
		{1024, 64, "65535"}, {8, 12, ""}, {0xfffb, 64, "65535"},
		// One more than an ALLOCATION LENGTH can say: the kernel asks for
		// 65539 bytes, which are 3 in the 16 bits of the field, and shows a
		// page of zeros behind these (drivers/scsi/scsi.c, scsi_vpd_inquiry;
		// 6.1 and 7.3). What scan makes of it is not compared.
		{0xffff, 3, "?"},
	} {
		page := withPageLength(tcmu.BlockLimits(65535, 0), c.claimed)
		if i > 0 { // the first is as it was attached
			d.VPD = map[byte][]byte{0xb0: page}
			if err := m.TCMUSet(ctx, d); err != nil {
				return err
			}
			if err := m.WriteAttr(ctx, f.Sysfs("device/rescan"), "1"); err != nil {
				return err
			}
			again, _, err := scanMachine(ctx, m, Cmd{})
			if err != nil {
				return fmt.Errorf("page B0h that claims %d bytes: %w", 4+int(c.claimed), err)
			}
			report = again
		}
		shown, err := m.ReadFile(ctx, f.Sysfs("device/vpd_pgb0"))
		if errors.Is(err, fs.ErrNotExist) {
			t.Logf("liar: Linux %s shows no vpd_pgb0", m.Release())
			return nil
		}
		if err != nil {
			return err
		}
		got := report.Devices[slices.IndexFunc(report.Devices, func(d *checker.Device) bool { return d.Name == f.Name })]
		stale := 0 // bytes that the disk never sent
		for _, b := range shown[min(len(shown), len(page)):] {
			if b != 0 {
				stale++
			}
		}
		t.Logf("liar: page of %d bytes claims %d; vpd_pgb0 has %d, %d of them not 0 and never sent; scan says MAXIMUM TRANSFER LENGTH %q, notes %+v",
			len(page), 4+int(c.claimed), len(shown), stale, num(got.Limits.VPDMaxTransferBlocks), got.Notes)
		if !bytes.HasPrefix(shown, page[:c.sent]) {
			t.Errorf("page that claims %d bytes: vpd_pgb0 has % x, want % x", 4+int(c.claimed), shown[:min(len(shown), c.sent)], page[:c.sent])
		}
		if c.want != "?" && num(got.Limits.VPDMaxTransferBlocks) != c.want {
			t.Errorf("page that claims %d bytes: scan says MAXIMUM TRANSFER LENGTH %q, want %q", c.claimed, num(got.Limits.VPDMaxTransferBlocks), c.want)
		}
	}
	return nil
}

// senseArrives has a disk refuse, and not answer at all for a while.
func senseArrives(ctx context.Context, t *testing.T, m *Machine, f Found, d TCMUDisk) error {
	d.Rules = []TCMURule{
		{Prefix: []byte{0x28}, Status: tcmu.CheckCondition, Sense: tcmu.MediumError()}, // READ(10)
		{Prefix: []byte{0x00}, Hang: true, Times: 1},                                   // TEST UNIT READY
	}
	if err := m.TCMUSet(ctx, d); err != nil {
		return err
	}
	read := strings.Fields("sg_raw -R -r 512 " + f.Dev() + " 28 00 00 00 00 08 00 00 01 00")
	r, err := m.Run(ctx, read...)
	if err != nil {
		return err
	}
	out := string(r.Stdout) + string(r.Stderr)
	if !strings.Contains(out, "Check Condition") || !strings.Contains(out, "Medium Error") || !strings.Contains(out, "Unrecovered read error") {
		t.Errorf("sg_raw of a READ(10) that fails: %v\n%s", r.Err(), out)
	}
	if r, err = m.Run(ctx, "dd", "if="+f.Dev(), "of=/dev/null", "bs=4k", "count=1", "skip=10", "iflag=direct"); err != nil {
		return err
	}
	log, err := m.TCMUCommands(ctx, d.Name)
	if err != nil {
		return err
	}
	// sg_raw of block 8, dd of blocks 80 to 87.
	for _, want := range [][]byte{{0x28, 0, 0, 0, 0, 8, 0, 0, 1, 0}, {0x28, 0, 0, 0, 0, 80, 0, 0, 8, 0}} {
		if !slices.ContainsFunc(log, func(c []byte) bool { return bytes.Equal(c, want) }) {
			t.Errorf("no % x among the commands received", want)
		}
	}
	klog := m.KernelLog()
	if r.Exit == 0 || !strings.Contains(klog, "["+f.Name+"]") || !strings.Contains(klog, "Medium Error") || !strings.Contains(klog, "Unrecovered read error") {
		t.Errorf("dd of a disk that fails: %v; the kernel says\n%s", r.Err(), lastLines(klog, 8))
	}
	done := make(chan error, 1)
	go func() {
		_, err := m.Output(ctx, "sg_turs", f.Dev())
		done <- err
	}()
	select {
	case err := <-done:
		t.Errorf("a disk that hangs answers TEST UNIT READY: %v", err)
	case <-time.After(500 * time.Millisecond):
	}
	if err := m.TCMURelease(ctx, d.Name); err != nil {
		return err
	}
	if err := <-done; err != nil {
		t.Errorf("TEST UNIT READY when released: %v", err)
	}
	// What is written comes back, from where it was written.
	d.Rules = nil
	if err := m.TCMUSet(ctx, d); err != nil {
		return err
	}
	work := Direct{Path: f.Dev(), Offset: 1 << 20, Bytes: 4 << 20, BlockBytes: 1 << 20, Seed: 11}
	if err := m.DirectWrite(ctx, work); err != nil {
		return err
	}
	if got, err := m.DirectCompare(ctx, work); err != nil || got.Mismatched != 0 {
		t.Errorf("%d bytes differ, %v", got.Mismatched, err)
	}
	return nil
}
