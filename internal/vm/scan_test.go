package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/quirkcheck/quirkcheck/checker"
)

// buildQuirkcheck builds the program under test, static, for the guest.
func buildQuirkcheck(t testing.TB) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "quirkcheck")
	if err := BuildStatic(context.Background(), "github.com/quirkcheck/quirkcheck/cmd/quirkcheck", out); err != nil {
		t.Fatal(err)
	}
	return out
}

// scanMachine runs quirkcheck scan in the guest. Status 0 and 1 are answers.
func scanMachine(ctx context.Context, m *Machine, c Cmd) (*checker.Report, Result, error) {
	if len(c.Args) == 0 {
		c.Args = []string{"quirkcheck", "scan", "--format", "json"}
	}
	r, err := m.RunCmd(ctx, c)
	if err != nil {
		return nil, r, err
	}
	if r.Exit != 0 && r.Exit != 1 {
		return nil, r, fmt.Errorf("scan: %w", r.Err())
	}
	var report checker.Report
	if err := json.Unmarshal(r.Stdout, &report); err != nil {
		return nil, r, fmt.Errorf("scan: %w", err)
	}
	return &report, r, nil
}

// agreement counts, field by field, how often scan and a peer said the same.
type agreement struct {
	t      *testing.T
	counts map[string]int
}

func (a *agreement) compare(peer, field, disk, scan, want string) {
	key := fmt.Sprintf("%-10s %s", peer, field)
	if scan != want {
		a.t.Errorf("%s of %s: scan says %q, %s %q", field, disk, scan, peer, want)
		return
	}
	a.counts[key]++
}

// print logs the table and fails where a field was never compared.
func (a *agreement) print(must ...string) {
	for _, k := range slices.Sorted(maps.Keys(a.counts)) {
		a.t.Logf("agreed: %-40s on %d disks", k, a.counts[k])
	}
	for _, k := range must {
		peer, field, _ := strings.Cut(k, " ")
		if a.counts[fmt.Sprintf("%-10s %s", peer, field)] == 0 {
			a.t.Errorf("%s was compared on no disk", k)
		}
	}
}

func str(s *string) string {
	if s == nil {
		return ""
	}
	return strings.TrimSpace(*s)
}

func num(n *uint64) string {
	if n == nil {
		return ""
	}
	return strconv.FormatUint(*n, 10)
}

// scanAgrees compares quirkcheck scan with the peers in the same guest, as
// root, as an ordinary user, and without device nodes.
func scanAgrees(ctx context.Context, t *testing.T, m *Machine) error {
	report, _, err := scanMachine(ctx, m, Cmd{})
	if err != nil {
		return err
	}
	devices := map[string]*checker.Device{}
	for _, d := range report.Devices {
		devices[d.Name] = d
	}
	a := &agreement{t: t, counts: map[string]int{}}
	if err := agreeLsblk(ctx, m, a, devices); err != nil {
		return err
	}
	if err := agreeLsscsi(ctx, m, a, devices); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(devices)) {
		d := devices[name]
		switch {
		case strings.HasPrefix(name, "sd"):
			err = agreeSG(ctx, m, a, d)
			if err == nil && d.Path != nil && *d.Path == "libata" {
				err = agreeHdparm(ctx, m, a, d)
			}
		case strings.HasPrefix(name, "nvme"):
			err = agreeNVMe(ctx, m, a, d)
		}
		if err != nil {
			return err
		}
	}
	must := []string{"lsblk vendor", "lsblk model", "lsblk revision", "lsblk size", "lsblk logical block", "lsblk physical block", "lsblk transport",
		"lsscsi vendor", "lsscsi product", "lsscsi revision", "sg_inq vendor", "sg_inq product", "sg_inq revision",
		"hdparm model", "hdparm firmware", "hdparm capacity", "hdparm logical block", "nvme model", "nvme firmware", "nvme MDTS"}
	if !strings.HasPrefix(m.Release(), "5.") { // no vpd_pgb0 file there
		must = append(must, "sg_vpd MAXIMUM TRANSFER LENGTH", "sg_vpd OPTIMAL TRANSFER LENGTH")
	}
	a.print(must...)

	root := normalized(report)
	for _, c := range []struct {
		name string
		cmd  Cmd
	}{
		{"an ordinary user", Cmd{UID: 65534, GID: 65534}},
		{"no device nodes", Cmd{Args: []string{"sh", "-c", "mkdir /hold && mv /dev/sd* /dev/nvme* /dev/vd* /hold && quirkcheck scan --format json; s=$?; mv /hold/* /dev && rmdir /hold; exit $s"}}},
	} {
		again, _, err := scanMachine(ctx, m, c.cmd)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		if got := normalized(again); got != root {
			t.Errorf("%s: another report than root's", c.name)
		}
		t.Logf("%s: the same report of %d devices", c.name, len(again.Devices))
	}
	return nil
}

// normalized is a report without what the clock or the guest changes.
func normalized(r *checker.Report) string {
	c := *r
	c.GeneratedAt = ""
	b, err := json.Marshal(c)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func agreeLsblk(ctx context.Context, m *Machine, a *agreement, devices map[string]*checker.Device) error {
	out, err := m.Output(ctx, "lsblk", "-J", "-b", "-d", "-o", "NAME,VENDOR,MODEL,REV,SIZE,LOG-SEC,PHY-SEC,MIN-IO,OPT-IO,TRAN")
	if err != nil {
		return err
	}
	var doc struct {
		Blockdevices []struct {
			Name, Vendor, Model, Rev, Tran *string
			Size                           *uint64
			Log                            *uint64 `json:"log-sec"`
			Phy                            *uint64 `json:"phy-sec"`
			Min                            *uint64 `json:"min-io"`
			Opt                            *uint64 `json:"opt-io"`
		}
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		return fmt.Errorf("lsblk: %w", err)
	}
	for _, b := range doc.Blockdevices {
		d, ok := devices[str(b.Name)]
		if !ok {
			a.t.Errorf("lsblk lists %s, scan does not", str(b.Name))
			continue
		}
		if d.Identity.SCSI != nil {
			a.compare("lsblk", "vendor", d.Name, str(d.Identity.SCSI.Vendor), str(b.Vendor))
			a.compare("lsblk", "model", d.Name, str(d.Identity.SCSI.Product), str(b.Model))
			a.compare("lsblk", "revision", d.Name, str(d.Identity.SCSI.Revision), str(b.Rev))
		}
		if d.Identity.NVMe != nil {
			a.compare("lsblk", "model", d.Name, str(d.Identity.NVMe.Model), str(b.Model))
		}
		a.compare("lsblk", "size", d.Name, num(d.SizeBytes), num(b.Size))
		a.compare("lsblk", "logical block", d.Name, num(d.Limits.LogicalBlockSize), num(b.Log))
		a.compare("lsblk", "physical block", d.Name, num(d.Limits.PhysicalBlockSize), num(b.Phy))
		a.compare("lsblk", "minimum I/O", d.Name, num(d.Limits.MinimumIOSize), num(b.Min))
		a.compare("lsblk", "optimal I/O", d.Name, num(d.Limits.OptimalIOSize), num(b.Opt))
		if b.Tran == nil && strings.HasPrefix(d.Name, "vd") {
			continue // lsblk of some versions has no word for virtio
		}
		a.compare("lsblk", "transport", d.Name, str(d.Transport), str(b.Tran))
	}
	return nil
}

// lsscsi prints [H:C:T:L] type vendor(8) product(16) revision(4) node.
var lsscsiLine = regexp.MustCompile(`^\[\d+:\d+:\d+:\d+\]\s+disk\s+(.{8}) (.{16}) (.{4})\s+/dev/(\S+)`)

func agreeLsscsi(ctx context.Context, m *Machine, a *agreement, devices map[string]*checker.Device) error {
	out, err := m.Output(ctx, "lsscsi")
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		f := lsscsiLine.FindStringSubmatch(line)
		if f == nil {
			continue
		}
		d, ok := devices[f[4]]
		if !ok || d.Identity.SCSI == nil {
			a.t.Errorf("lsscsi lists %s, scan shows no SCSI identity of it", f[4])
			continue
		}
		a.compare("lsscsi", "vendor", d.Name, str(d.Identity.SCSI.Vendor), strings.TrimSpace(f[1]))
		a.compare("lsscsi", "product", d.Name, str(d.Identity.SCSI.Product), strings.TrimSpace(f[2]))
		a.compare("lsscsi", "revision", d.Name, str(d.Identity.SCSI.Revision), strings.TrimSpace(f[3]))
	}
	return nil
}

// field finds "name: value" in what a program printed.
func field(out, name string) (string, bool) {
	for line := range strings.Lines(out) {
		if before, after, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && strings.Join(strings.Fields(before), " ") == name {
			return strings.TrimSpace(after), true
		}
	}
	return "", false
}

func agreeSG(ctx context.Context, m *Machine, a *agreement, d *checker.Device) error {
	if d.Identity.SCSI == nil {
		return fmt.Errorf("%s: scan shows no SCSI identity", d.Name)
	}
	out, err := m.Output(ctx, "sg_inq", "/dev/"+d.Name)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name, label string
		scan        *string
	}{{"vendor", "Vendor identification", d.Identity.SCSI.Vendor}, {"product", "Product identification", d.Identity.SCSI.Product},
		{"revision", "Product revision level", d.Identity.SCSI.Revision}} {
		want, _ := field(out, f.label)
		a.compare("sg_inq", f.name, d.Name, str(f.scan), want)
	}
	if _, err := m.ReadFile(ctx, "/sys/block/"+d.Name+"/device/vpd_pgb0"); err != nil {
		return nil // the kernel shows no page there
	}
	if out, err = m.Output(ctx, "sg_vpd", "-p", "bl", "/dev/"+d.Name); err != nil {
		return err
	}
	for _, f := range []struct {
		label string
		scan  *uint64
	}{{"Maximum transfer length", d.Limits.VPDMaxTransferBlocks}, {"Optimal transfer length", d.Limits.VPDOptimalTransferBlocks}} {
		text, ok := field(out, f.label)
		if !ok {
			continue
		}
		want, _, _ := strings.Cut(text, " ")
		if want == "0" { // no limit reported
			want = ""
		}
		a.compare("sg_vpd", strings.ToUpper(f.label), d.Name, num(f.scan), want)
	}
	return nil
}

func agreeHdparm(ctx context.Context, m *Machine, a *agreement, d *checker.Device) error {
	r, err := m.Run(ctx, "hdparm", "-I", "/dev/"+d.Name)
	if err != nil {
		return err
	}
	out := string(r.Stdout)
	if d.Identity.ATA == nil {
		return fmt.Errorf("%s: scan shows no ATA identity", d.Name)
	}
	model, _ := field(out, "Model Number")
	firmware, _ := field(out, "Firmware Revision")
	a.compare("hdparm", "model", d.Name, str(d.Identity.ATA.Model), model)
	a.compare("hdparm", "firmware", d.Name, str(d.Identity.ATA.Firmware), firmware)
	if sectors, ok := field(out, "LBA48 user addressable sectors"); ok {
		n, err := strconv.ParseUint(sectors, 10, 64)
		if err != nil {
			return fmt.Errorf("hdparm: %w", err)
		}
		a.compare("hdparm", "capacity", d.Name, num(d.SizeBytes), strconv.FormatUint(n*512, 10))
	}
	for _, label := range []string{"Logical Sector size", "Logical/Physical Sector size"} {
		if size, ok := field(out, label); ok {
			size, _, _ = strings.Cut(size, " ")
			a.compare("hdparm", "logical block", d.Name, num(d.Limits.LogicalBlockSize), size)
		}
	}
	return nil
}

func agreeNVMe(ctx context.Context, m *Machine, a *agreement, d *checker.Device) error {
	out, err := m.Output(ctx, "nvme", "id-ctrl", "-o", "json", "/dev/"+d.Name)
	if err != nil {
		return err
	}
	var id struct {
		MN, FR string
		MDTS   uint
	}
	if err := json.Unmarshal([]byte(out), &id); err != nil {
		return fmt.Errorf("nvme: %w", err)
	}
	if d.Identity.NVMe == nil {
		return fmt.Errorf("%s: scan shows no NVMe identity", d.Name)
	}
	a.compare("nvme", "model", d.Name, str(d.Identity.NVMe.Model), strings.TrimSpace(id.MN))
	a.compare("nvme", "firmware", d.Name, str(d.Identity.NVMe.Firmware), strings.TrimSpace(id.FR))
	// MDTS counts 4 KiB pages here; the driver's own ceiling is far above.
	a.compare("nvme", "MDTS", d.Name, num(d.Limits.MaxHWSectorsKB), strconv.FormatUint(4<<id.MDTS, 10))
	return nil
}

// wantVerdict is what scan must say of a disk on one series of kernels.
type wantVerdict struct {
	quirk         string
	kib           uint64 // max_sectors_kb
	verdict       checker.Verdict
	kind          string // of what mitigates it
	pinned        bool
	says          string // in its advice
	disk, release string
}

// wantVerdicts are the verdicts that hang on the kernel: which one protects
// which disk by itself.
var wantVerdicts = func() (all []wantVerdict) {
	const (
		st  = "ata-seagate-st380013as-silent-corruption"
		bos = "ata-dellboss-vd-io-timeout"
		syn = "scsi-synology-iscsi-storage-misreport"
	)
	for _, series := range []string{"5.10.", "6.1.", "6.12.", "6.16.", "6.18.", "7."} {
		all = append(all, wantVerdict{st, 512, checker.Mitigated, "kernel", true, "", "SATA1", series})
		boss := wantVerdict{bos, 1280, checker.Mitigated, "limit", false, "", "DELL1", series}
		syno := wantVerdict{syn, 512, checker.Mitigated, "kernel", true, "", "SYNO1", series}
		switch series {
		case "6.12.", "6.16.":
			syno = wantVerdict{syn, 1280, checker.Affected, "", false, "listed but not applied", "SYNO1", series}
		case "6.18.":
			boss = wantVerdict{bos, 4096, checker.Affected, "", false, "", "DELL1", series}
			syno = wantVerdict{syn, 4096, checker.Affected, "", false, "listed but not applied", "SYNO1", series}
		case "7.":
			boss = wantVerdict{bos, 4095, checker.Mitigated, "kernel", true, "", "DELL1", series}
			syno = wantVerdict{syn, 4096, checker.Affected, "", false, "listed but not applied", "SYNO1", series}
		}
		all = append(all, boss, syno)
	}
	return all
}()

// scanVerdicts checks them on the running kernel.
func scanVerdicts(ctx context.Context, t *testing.T, m *Machine) error {
	report, r, err := scanMachine(ctx, m, Cmd{})
	if err != nil {
		return err
	}
	want := 0
	if report.Fails(checker.Policy{}) {
		want = 1
	}
	if r.Exit != want {
		t.Errorf("exit status %d, want %d for %+v", r.Exit, want, report.Summary)
	}
	compared := 0
	for _, w := range wantVerdicts {
		if !strings.HasPrefix(m.Release(), w.release) {
			continue
		}
		compared++
		disk, err := m.Disk(ctx, w.disk)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(report.Findings, func(f checker.Finding) bool { return f.Device != nil && *f.Device == disk.Name && f.Quirk == w.quirk })
		if i < 0 {
			t.Errorf("%s: no finding %s", w.disk, w.quirk)
			continue
		}
		f := report.Findings[i]
		kind, pinned := "", false
		if f.MitigatedBy != nil {
			kind, pinned = f.MitigatedBy.Kind, f.MitigatedBy.Pinned
		}
		if f.Verdict != w.verdict || kind != w.kind || pinned != w.pinned {
			t.Errorf("%s on %s: %s by %q pinned %v, want %s by %q pinned %v", w.disk, m.Release(), f.Verdict, kind, pinned, w.verdict, w.kind, w.pinned)
		}
		if w.says != "" && !slices.ContainsFunc(f.Advice, func(s string) bool { return strings.Contains(s, w.says) }) {
			t.Errorf("%s on %s: advice %q does not say %q", w.disk, m.Release(), f.Advice, w.says)
		}
		d := report.Devices[slices.IndexFunc(report.Devices, func(d *checker.Device) bool { return d.Name == disk.Name })]
		if num(d.Limits.MaxSectorsKB) != strconv.FormatUint(w.kib, 10) {
			t.Errorf("%s on %s: max_sectors_kb %s, want %d", w.disk, m.Release(), num(d.Limits.MaxSectorsKB), w.kib)
		}
		t.Logf("%s on %s: %s KiB, %s %s", w.disk, m.Release(), num(d.Limits.MaxSectorsKB), f.Verdict, kind)
	}
	if compared == 0 {
		t.Errorf("no verdict is known for kernel %s", m.Release())
	}
	return nil
}
