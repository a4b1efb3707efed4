package checker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/internal/recorded"
	"github.com/quirkcheck/quirkcheck/internal/sysfstree"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/probe/klog"
	"github.com/quirkcheck/quirkcheck/quirks"
	"github.com/quirkcheck/quirkcheck/schema"
)

// sataDisks makes a machine of AHCI ports, one disk each: name, model, firmware
// and limit. ata1 is host0, and so on.
type sataDisk struct{ name, model, firmware, kib string }

func sata(release string, disks ...sataDisk) *sysfstree.Small {
	m := sysfstree.NewSmall(release)
	m.PCI("0000:00:17.0", "ahci")
	for i, d := range disks {
		port := fmt.Sprintf("ata%d", i+1)
		host := fmt.Sprintf("pci0000:00/0000:00:17.0/%s/host%d", port, i)
		pad := func(s string, n int) string { return fmt.Sprintf("%-*.*s", n, n, s) }
		rev := d.firmware
		if len(rev) > 4 {
			rev = rev[len(rev)-4:]
		}
		m.SCSI(host, fmt.Sprintf("%d:0:0:0", i), d.name, map[string]string{"vendor": "ATA     ", "model": pad(d.model, 16), "rev": pad(rev, 4)},
			map[string]string{"queue/max_sectors_kb": d.kib, "queue/max_hw_sectors_kb": "32767", "dev": fmt.Sprintf("8:%d", 16*i)})
		udev := fmt.Sprintf("E:ID_MODEL_ENC=%s\nE:ID_REVISION=%s\nE:ID_ATA=1\nE:ID_BUS=ata\n", strings.ReplaceAll(d.model, " ", `\x20`), d.firmware)
		m.File("run/udev/data/b8:"+fmt.Sprint(16*i), udev)
	}
	return m
}

func withLog(t *testing.T, fsys fs.FS, log string, live bool, only ...string) *checker.Report {
	t.Helper()
	db := embedded(t)
	read := func(only []string) *probe.Inventory {
		inv, err := probe.Read(context.Background(), fsys, probe.Options{Avoid: checker.AvoidFrom(db), Only: only, Related: true, Counters: true})
		if err != nil {
			t.Fatal(err)
		}
		return inv
	}
	parsed, err := klog.Read(strings.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	all := read(nil)
	inv := all
	if only != nil {
		inv = read(only)
	}
	r := checker.Check(inv, db, checker.Policy{Now: now})
	before := verdicts(r)
	r.AddSymptoms(all, db, checker.LogInput{Log: parsed, Source: "test", Live: live})
	if d := cmp.Diff(before, verdicts(r)); d != "" {
		t.Errorf("a log changed a verdict (-before +after)\n%s", d)
	}
	r.Tool.Version, r.GeneratedAt = "test", now.Format(time.RFC3339)
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var doc any
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	for _, v := range schema.Validate("report.v1.0", doc) {
		t.Errorf("schema: %s", v)
	}
	return r
}

func verdicts(r *checker.Report) map[string]checker.Verdict {
	m := map[string]checker.Verdict{}
	for _, d := range r.Devices {
		m[d.Name] = d.Verdict
	}
	return m
}

func embedded(t *testing.T) *quirks.Set {
	t.Helper()
	db, faults := quirks.Builtin()
	if len(faults) > 0 || db.Len() == 0 {
		t.Fatalf("%d entries, %v", db.Len(), faults)
	}
	return db
}

// rows writes symptoms as "device certain name kind op count max: quirk above/within".
func rows(r *checker.Report) []string {
	out := []string{}
	for _, s := range r.Symptoms {
		dev, op, size := "none", "", ""
		if s.Device != nil {
			dev = *s.Device
		}
		if s.Op != nil {
			op = " " + *s.Op
		}
		if s.MaxSectors != nil {
			size = fmt.Sprintf(" max=%d", *s.MaxSectors)
		}
		sure := "?"
		if s.Certain {
			sure = "!"
		}
		line := fmt.Sprintf("%s%s %s %s %s%s n=%d%s", dev, sure, s.Name, s.Source, s.Kind, op, s.Count, size)
		for _, j := range s.Findings {
			line += fmt.Sprintf(" [%s of %s %d/%d %v]", j.Quirk, j.Device, j.Above, j.Within, j.Strengthens)
		}
		out = append(out, line)
	}
	return out
}

func file(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("../probe/klog/testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var intel = sataDisk{"sda", "INTEL SSDSC2KG480G8", "XCV10120", "4096"}

func TestSymptomsOfTheIntelSSD(t *testing.T) {
	log := file(t, "intel-debian-1120831.log")
	const quirk = "ata-intel-ssdsc2kg480g8-io-timeout"
	r := withLog(t, sata("6.18.15-test", intel), log, false)
	want := []string{
		"sda! ata1.00 libata timeout read n=4 max=8192 [" + quirk + " of sda 1/0 true]",
		"sda! ata1.00 libata quirk n=1",
	}
	if d := cmp.Diff(want, rows(r)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	i := slices.IndexFunc(r.Findings, func(f checker.Finding) bool { return f.Quirk == quirk })
	if i < 0 || r.Findings[i].Verdict != checker.Affected || len(r.Findings[i].Evidence) != 1 ||
		!strings.Contains(r.Findings[i].Evidence[0], "above the bound of 8191 sectors (largest 8192)") {
		t.Fatalf("findings %+v", r.Findings)
	}
	if s := r.Symptoms[0]; s.Meaning != "largest 8192 sectors: above the bound of 8191 of "+quirk+", as it foretells" || s.LBA == nil || *s.LBA != 206326352 {
		t.Errorf("meaning %q, LBA %v", s.Meaning, s.LBA)
	}
}

// TestTheLogNamesACutDisk: where sysfs shows 16 of 40 characters, the log has
// them all, which is worth a line; the verdict waits for somebody to look.
func TestTheLogNamesACutDisk(t *testing.T) {
	m := sata("6.18.15-test", intel)
	delete(m.MapFS, "run/udev/data/b8:0")
	r := withLog(t, m, file(t, "intel-debian-1120831.log"), false)
	f := r.Findings[0]
	if f.Verdict != checker.Unknown || len(f.Evidence) != 2 || f.Evidence[0] != "the log names the disk in full: INTEL SSDSC2KG480G8 XCV10120" {
		t.Errorf("%s, evidence %q", f.Verdict, f.Evidence)
	}
}

// TestSizesThatTheBoundAllows: the same disk, and commands that fail below the
// bound speak against the entry.
func TestSizesThatTheBoundAllows(t *testing.T) {
	const quirk = "ata-intel-ssdsc2kg480g8-io-timeout"
	small := `ata1.00: ATA-10: INTEL SSDSC2KG480G8, XCV10120, max UDMA/133
ata1.00: exception Emask 0x0 SAct 0x1 SErr 0x0 action 0x6 frozen
ata1.00: cmd 60/80:30:88:28:00/00:00:00:00:00/40 tag 6 ncq dma 65536 in
         res 40/00:00:00:00:00/00:00:00:00:00/00 Emask 0x4 (timeout)
`
	large := strings.NewReplacer("60/80:30:88:28:00/00", "60/00:30:88:28:00/20", "65536", "4194304").Replace(small)
	for _, c := range []struct{ name, log, row, evidence string }{
		{"within", small, "0/1 false", "all within the bound of 8191 sectors (largest 128): this quirk does not explain them"},
		{"both", small + large, "1/1 true", "in 1 incidents above the bound of 8191 sectors (largest 8192), and in 1 within it"},
		{"exactly the bound is within", strings.NewReplacer("60/80:30:88:28:00/00", "60/ff:30:88:28:00/1f", "65536", "4193792").Replace(small), "0/1 false", "(largest 8191)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := withLog(t, sata("6.18.15-test", intel), c.log, false)
			if got := rows(r); len(got) != 1 || !strings.Contains(got[0], "["+quirk+" of sda "+c.row+"]") {
				t.Errorf("rows %q, want %s", got, c.row)
			}
			if e := r.Findings[0].Evidence; len(e) != 1 || !strings.Contains(e[0], c.evidence) {
				t.Errorf("evidence %q, want %q", e, c.evidence)
			}
		})
	}
}

// TestWhichDisk: the same log on other machines.
func TestWhichDisk(t *testing.T) {
	log := file(t, "intel-debian-1120831.log")
	other := sataDisk{"sda", "WDC WD800JD-00MSA1", "10.01E01", "4096"}
	at := func(name string, d sataDisk) sataDisk { d.name = name; return d }
	anonymous := `ata2.00: exception Emask 0x0 SAct 0x1 SErr 0x0 action 0x6 frozen
ata2.00: cmd 60/00:30:88:28:00/20:00:00:00:00/40 tag 6 ncq dma 4194304 in
         res 40/00:00:00:00:00/00:00:00:00:00/00 Emask 0x4 (timeout)
I/O error, dev sda, sector 8 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0
I/O error, dev sdx, sector 8 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0
`
	for _, c := range []struct {
		name  string
		disks []sataDisk
		log   string
		live  bool
		want  []string // device and certainty, first symptoms
		why   string
	}{
		{"the disk is on another port now", []sataDisk{other, at("sdb", intel)}, log, false, []string{"sdb!"}, "it had another place then"},
		{"another model is there now", []sataDisk{other}, log, false, []string{"none?"}, "another model"},
		{"twins, one at the port", []sataDisk{intel, at("sdb", intel)}, log, false, []string{"sda!"}, "its ATA port agrees"},
		{"twins, none at the port", []sataDisk{other, at("sdb", intel), at("sdc", intel)}, log, false, []string{"none?"}, "2 disks here"},
		{"the same model with another firmware", []sataDisk{{"sda", "INTEL SSDSC2KG480G8", "XCV10132", "4096"}}, log, false, []string{"none?"}, "another model"},
		{"one here, the log saw two", []sataDisk{other, at("sdb", intel)}, log + "ata2.00: ATA-10: INTEL SSDSC2KG480G8, XCV10120, max UDMA/133\n", false, []string{"sdb?"}, "it saw 2 of them"},
		{"no identity in the log: by port, uncertain", []sataDisk{other, at("sdb", intel)}, anonymous, false, []string{"sda?", "sdb?", "none?"}, "by name alone"},
		{"the same, of the running kernel", []sataDisk{other, at("sdb", intel)}, anonymous, true, []string{"sda!", "sdb!", "none?"}, "running kernel"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := withLog(t, sata("6.18.15-test", c.disks...), c.log, c.live)
			got := rows(r)
			for i, want := range c.want {
				if i >= len(got) || !strings.HasPrefix(got[i], want+" ") {
					t.Fatalf("rows %q, want %q", got, c.want)
				}
			}
			if why := r.Symptoms[0].Why; !strings.Contains(why, c.why) {
				t.Errorf("why %q, want %q", why, c.why)
			}
		})
	}
}

// TestRecordedPorts: the ports and addresses that recorded machines show are
// those that their kernels' logs name.
func TestRecordedPorts(t *testing.T) {
	n := 0
	for _, name := range []string{"6.1.190-debian12", "7.3.4-debian13-backports"} {
		dir := recorded.FS(t, name)
		for _, d := range scan(t, dir, checker.Policy{}).Devices {
			var log string
			switch ata, scsi := d.Identity.ATA, d.Identity.SCSI; {
			case d.Kind != "disk":
				continue
			case ata != nil && d.Adapter.ATAPort != nil:
				log = fmt.Sprintf("ata%[1]s.00: ATA-7: %[2]s, %[3]s, max UDMA/100\nata%[1]s.00: qc timeout after 5000 msecs (cmd 0xec)\n", *d.Adapter.ATAPort, *ata.Model, *ata.Firmware)
			case scsi != nil:
				hctl := hctlOf(t, dir, d.Name)
				log = fmt.Sprintf("scsi %s: Direct-Access     %-8s %-16s %-4s PQ: 0 ANSI: 5\nsd %s: rejecting I/O to offline device\n", hctl, *scsi.Vendor, *scsi.Product, *scsi.Revision, hctl)
			default:
				continue
			}
			n++
			r := withLog(t, dir, log, false)
			found := slices.IndexFunc(r.Symptoms, func(s checker.Symptom) bool { return s.First != nil })
			if found < 0 || r.Symptoms[found].Device == nil || *r.Symptoms[found].Device != d.Name || !r.Symptoms[found].Certain {
				t.Errorf("%s %s: %q from\n%s", name, d.Name, rows(r), log)
			}
		}
	}
	if n < 10 {
		t.Fatalf("only %d disks", n)
	}
}

func hctlOf(t *testing.T, sys fs.FS, name string) string {
	t.Helper()
	inv, err := probe.Read(context.Background(), sys, probe.Options{Only: []string{name}})
	if err != nil || len(inv.Devices) != 1 {
		t.Fatalf("%s: %v", name, err)
	}
	return inv.Devices[0].HCTL()
}

// TestUncertainEvidenceSaysSo: what may be another disk's is told as such.
func TestUncertainEvidenceSaysSo(t *testing.T) {
	r := withLog(t, sata("6.18.15-test", intel), `ata1.00: exception Emask 0x0 SAct 0x1 SErr 0x0 action 0x6 frozen
ata1.00: cmd 60/00:30:88:28:00/20:00:00:00:00/40 tag 6 ncq dma 4194304 in
         res 40/00:00:00:00:00/00:00:00:00:00/00 Emask 0x4 (timeout)
`, false)
	if e := r.Findings[0].Evidence; len(e) != 1 || !strings.HasPrefix(e[0], "in the log, if ata1.00 was this disk: ") {
		t.Errorf("evidence %q", e)
	}
}

// TestOnlyTheDevicesAsked: symptoms of others are counted, and are not taken
// for those of a device asked for.
func TestOnlyTheDevicesAsked(t *testing.T) {
	twin := intel
	twin.name = "sdb"
	log := strings.ReplaceAll(file(t, "intel-debian-1120831.log"), "ata1", "ata2")
	r := withLog(t, sata("6.18.15-test", intel, twin), log, false, "sda")
	if len(r.Symptoms) != 0 || r.Log.Other != 5 {
		t.Errorf("rows %q, %d others; want those of sdb counted alone", rows(r), r.Log.Other)
	}
}

// TestNoSizeFault: what is no fault of size is not told as one (cases.md, rule 8).
func TestNoSizeFault(t *testing.T) {
	log := `ata1.00: ATA-10: INTEL SSDSC2KG480G8, XCV10120, max UDMA/133
ata1.00: exception Emask 0x10 SAct 0x1 SErr 0x400000 action 0x6 frozen
ata1.00: cmd 61/00:20:a8:b9:50/20:00:00:00:00/40 tag 4 ncq dma 4194304 out
         res 40/00:ff:00:00:00/00:00:00:00:00/00 Emask 0x10 (ATA bus error)
ata1.00: exception Emask 0x0 SAct 0x1 SErr 0x0 action 0x0
ata1.00: cmd 60/00:20:a8:b9:50/20:00:00:00:00/40 tag 4 ncq dma 4194304 in
         res 41/40:00:e2:2a:58/00:00:13:00:00/40 Emask 0x409 (media error) <F>
`
	r := withLog(t, sata("6.18.15-test", intel), log, false)
	for _, s := range r.Symptoms {
		if len(s.Findings) > 0 || !strings.Contains(s.Meaning, "a smaller limit does not help") {
			t.Errorf("%s: %+v, %q", s.Kind, s.Findings, s.Meaning)
		}
	}
	if len(r.Symptoms) != 3 || len(r.Findings[0].Evidence) != 0 {
		t.Errorf("rows %q, evidence %q", rows(r), r.Findings[0].Evidence)
	}
}

func TestSizesOfADiskWithoutAnEntry(t *testing.T) {
	other := sataDisk{"sda", "WDC WD800JD-00MSA1", "10.01E01", "4096"}
	line := func(sectors int) string {
		return fmt.Sprintf("ata1.00: ATA-10: WDC WD800JD-00MSA1, 10.01E01, max UDMA/133\nata1.00: cmd 35/%02x:%02x:00:c8:d0/00:%02x:af:00:00/e0 tag 1 dma %d out\n"+
			"         res 40/00:01:00:4f:c2/00:00:00:00:00/00 Emask 0x4 (timeout)\n", 0, sectors%256, sectors/256, sectors*512)
	}
	for _, c := range []struct {
		name string
		log  string
		want string
	}{
		{"large alone", line(8192), "quirkcheck verify can find one"},
		{"small alone", line(8), "but also with no command above 8: a smaller limit does not help"},
		{"large and small", line(8192) + line(8), "a smaller limit does not help"},
		{"middle", line(1024), "no entry has a bound for this device"},
	} {
		r := withLog(t, sata("6.18.15-test", other), c.log, false)
		if len(r.Symptoms) != 1 || !strings.Contains(r.Symptoms[0].Meaning, c.want) {
			t.Errorf("%s: %+v, want %q", c.name, r.Symptoms, c.want)
		}
	}
}

// TestOverMaxSizeSpeaksForTheMap: the log of vm-recipes section 4.
func TestOverMaxSizeSpeaksForTheMap(t *testing.T) {
	m := sysfstree.Stacks()
	for i, n := range []string{"sdd", "sde"} {
		m.File(blockPath(t, m, n)+"/dev", fmt.Sprintf("8:%d\n", 48+16*i))
	}
	r := withLog(t, m, `blk_insert_cloned_request: over max size limit. (8192 > 2560)
device-mapper: multipath: 253:1: Failing path 8:64.
`, true)
	got := rows(r)
	if len(got) != 2 || !strings.HasPrefix(got[0], "sde! 8:64 block over-max-size n=1 max=8192") || !strings.Contains(got[0], "[stack-exceeds-member of dm-1 1/0 true]") {
		t.Fatalf("rows %q", got)
	}
	for _, f := range r.Findings {
		if f.Quirk == "stack-exceeds-member" && *f.Device == "dm-1" && (len(f.Evidence) != 1 || !strings.Contains(f.Evidence[0], "path sde takes")) {
			t.Errorf("evidence %q", f.Evidence)
		}
	}
}

func blockPath(t *testing.T, m *sysfstree.Small, name string) string {
	t.Helper()
	for f := range m.MapFS {
		if dir, ok := strings.CutSuffix(f, "/block/"+name+"/queue/max_sectors_kb"); ok {
			return dir + "/block/" + name
		}
	}
	t.Fatalf("no %s in the tree", name)
	return ""
}

func TestNVMeAndUSBByAddress(t *testing.T) {
	m := sysfstree.NewSmall("6.18.15-test")
	m.Block("pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1", map[string]string{"queue/logical_block_size": "4096"})
	m.File("sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0/transport", "pcie\n")
	m.Link("sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1/device", "../../nvme0")
	m.SCSI("pci0000:00/0000:00:14.0/usb2/2-4/2-4:1.0/host6", "6:0:0:0", "sda", nil, nil)
	m.Files("sys/devices/pci0000:00/0000:00:14.0/usb2/2-4", map[string]string{"idVendor": "152d", "idProduct": "0578", "bcdDevice": "0505"})
	r := withLog(t, m, `nvme nvme1: pci function 0000:01:00.0
nvme nvme1: I/O 864 QID 1 timeout, reset controller
nvme1n1: I/O Cmd(0x2) @ LBA 95243456, 104 blocks, I/O Error (sct 0x3 / sc 0x71)
usb 2-4: New USB device found, idVendor=152d, idProduct=0578, bcdDevice= 5.05
usb 2-4: reset SuperSpeed USB device number 2 using xhci_hcd
usb 1-7: reset high-speed USB device number 3 using xhci_hcd
usb-storage 1-8:1.0: USB Mass Storage device detected
usb 1-8: reset high-speed USB device number 4 using xhci_hcd
`, false)
	want := []string{
		"nvme0n1? nvme1 nvme reset n=1",
		"sda! 2-4 usb reset n=1",
		"none? nvme1n1 nvme io-error read n=1",
		"none? 1-8 usb reset n=1",
	}
	if d := cmp.Diff(want, rows(r)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestCountersAreSymptoms(t *testing.T) {
	m := sysfstree.NewSmall("6.18.15-test")
	m.SCSI("pci0000:00/0000:00:03.0/host0", "0:0:0:0", "sda", map[string]string{"iodone_cnt": "0x100", "ioerr_cnt": "0x2", "iotmo_cnt": "0x1"}, nil)
	m.SCSI("pci0000:00/0000:00:03.0/host0", "0:0:1:0", "sdb", map[string]string{"iodone_cnt": "0x100", "ioerr_cnt": "0x0"}, nil)
	m.Virtual("md0", map[string]string{"md/level": "raid1", "md/dev-sda1/errors": "17"})
	want := []string{
		"md0! md0 md/dev-sda1/errors medium-error n=17",
		"sda! sda device/iotmo_cnt timeout n=1",
		"sda! sda device/ioerr_cnt io-error n=2",
	}
	if d := cmp.Diff(want, rows(withLog(t, m, "", false))); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestNoLogNoSymptoms: the key is there all the same, for programs.
func TestNoLogNoSymptoms(t *testing.T) {
	r := scan(t, sata("6.18.15-test", intel), checker.Policy{})
	b, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(b), `"symptoms":[]`) || strings.Contains(string(b), `"log"`) {
		t.Errorf("%v: %.200s", err, b)
	}
}
