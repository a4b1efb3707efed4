package checker_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/internal/sysfstree"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/probe/klog"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// flagEntry is an entry about a device of a name, whose protection is a flag of
// the kernel's since 6.12.
func flagEntry(id, match, flag, path, more string) string {
	return fmt.Sprintf(`schema: 0
id: %s
title: Acme device of %s fails under load
effect: io-error
severity: high
confidence: confirmed
match:
  any:
    - %s
%s
kernel:
  mitigated:
    - path: [%s]
      flag: [%s]
      trees:
        - {tree: mainline, since: "6.12"}
        - {tree: stable-6.1, absent_through: "6.1.192"}
references:
  - {type: report, url: "https://example.org/1"}
examples:
  match:
    - {subject: {path: %s}, source: "report 1"}
  no_match:
    - {subject: {path: other}, expect: not-affected, why: "another"}
`, id, id, match, more, path, flag, path)
}

const (
	ataDisk  = `device: {space: ata, model: "ACME DISK"}`
	scsiDisk = `device: {space: scsi, vendor: "ACME", product: "ARRAY"}`
	nothing  = "mitigations: [{type: replace, text: \"replace it\"}]"
)

func flagSet(t testing.TB) *quirks.Set {
	t.Helper()
	files := fstest.MapFS{}
	for _, e := range []struct{ id, match, flag, path, more string }{
		{"ata-acme-queued-trim-io-error", ataDisk, "{name: ATA_HORKAGE_NO_NCQ_TRIM, until: \"6.12\"}, {name: ATA_QUIRK_NO_NCQ_TRIM, since: \"6.12\"}", "libata", "want: [{knob: queued_trim, equal: \"off\"}]"},
		{"ata-acme-trim-io-error", ataDisk, "{name: ATA_QUIRK_NOTRIM}", "libata", nothing},
		{"ata-acme-setxfer-io-error", ataDisk, "{name: ATA_QUIRK_NOSETXFER}", "libata", nothing},
		{"ata-acme-either-io-error", ataDisk, "{name: ATA_QUIRK_NOTRIM}]\n      trees: [{tree: mainline, since: \"6.12\"}]\n    - path: [libata]\n      flag: [{name: ATA_QUIRK_NOSETXFER}", "libata", nothing},
		{"ata-acme-lpm-io-error", ataDisk, "{name: ATA_QUIRK_NO_LPM_ON_ATI, until: \"7.3\"}, {name: ATA_QUIRK_NO_LPM_ON_ATI_AND_AMD, since: \"7.3\"}", "libata", nothing},
		{"ata-acme-size-io-error", ataDisk, "{name: ATA_QUIRK_MAX_SEC_1024}", "libata", "limits: {max_sectors: 1024}"},
		{"scsi-acme-retry-io-error", scsiDisk, "{name: BLIST_RETRY_HWERROR}", "scsi", nothing},
		{"scsi-acme-vpd-io-error", scsiDisk, "{name: BLIST_SKIP_VPD_PAGES}", "scsi", "avoid: [{command: \"vpd:*\", why: \"hangs\"}]"},
		{"usb-acme-uas-io-error", `usb: {id: "152d:0578"}`, "{name: US_FL_IGNORE_UAS}", "uas, usb-storage", nothing},
		{"usb-acme-cap-io-error", `usb: {id: "152d:0578"}`, "{name: US_FL_FIX_CAPACITY}", "uas, usb-storage", nothing},
		{"usb-acme-fua-io-error", `usb: {id: "152d:0578"}`, "{name: US_FL_BROKEN_FUA}", "uas, usb-storage", nothing},
		{"nvme-acme-nid-io-error", `device: {space: nvme, model: "ACME NVME"}`, "{name: NVME_QUIRK_BOGUS_NID}", "nvme-pci", nothing},
	} {
		path := strings.Split(e.path, ",")[0]
		text := flagEntry(e.id, e.match, e.flag, e.path, e.more)
		text = strings.ReplaceAll(text, "{path: "+e.path+"}", "{path: "+path+"}")
		files[strings.Split(e.id, "-")[0]+"/"+e.id+".yaml"] = &fstest.MapFile{Data: []byte(text)}
	}
	set, faults := quirks.Load(files)
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	return set
}

const (
	ataPath  = "pci0000:00/0000:00:1f.2/ata1"
	ataDev   = "sys/devices/" + ataPath + "/link1/dev1.0/ata_device/dev1.0"
	backport = "5.14.0-503.11.1.el9_5.x86_64" // mainline would say no, and a vendor's kernel may say yes
)

// identifyText is ata_device's id with a model and a firmware.
func identifyText(model, firmware string) string {
	var words [256]uint16
	set := func(at int, s string, n int) {
		s = fmt.Sprintf("%-*s", n, s)
		for i := 0; i < n; i += 2 {
			words[at+i/2] = uint16(s[i])<<8 | uint16(s[i+1])
		}
	}
	set(23, firmware, 8)
	set(27, model, 40)
	var b strings.Builder
	for i, w := range words {
		fmt.Fprintf(&b, "%04x%c", w, " \n"[(i%8)/7])
	}
	return b.String()
}

// liveMachine has an ATA disk, a SCSI disk, a USB disk and an NVMe namespace.
func liveMachine(release, usbDriver string) *sysfstree.Small {
	m := sysfstree.NewSmall(release)
	m.File("proc/cmdline", "quiet\n")
	m.PCI("0000:00:1f.2", "ahci")
	m.SCSI(ataPath+"/host0", "0:0:0:0", "sda", map[string]string{"vendor": "ATA     ", "model": "ACME DISK       ", "rev": "1.0 ", "blacklist": ""}, nil)
	m.File(ataDev+"/id", identifyText("ACME DISK", "FW1.0"))
	m.PCI("0000:00:05.0", "acme")
	m.SCSI("pci0000:00/0000:00:05.0/host5", "5:0:0:0", "sdb", nil, nil)
	m.PCI("0000:00:14.0", "xhci_hcd")
	const usb = "pci0000:00/0000:00:14.0/usb2/2-1"
	m.Files("sys/devices/"+usb, map[string]string{"idVendor": "152d", "idProduct": "0578", "bcdDevice": "0100"})
	m.Link("sys/devices/"+usb+"/2-1:1.0/driver", "../../../../../../bus/usb/drivers/"+usbDriver)
	m.SCSI(usb+"/2-1:1.0/host6", "6:0:0:0", "sdc", map[string]string{"vendor": "Bridge  ", "model": "Box             "}, nil)
	m.PCI("0000:00:06.0", "nvme")
	const nvme = "pci0000:00/0000:00:06.0/nvme/nvme0"
	m.Files("sys/devices/"+nvme, map[string]string{"model": "ACME NVME", "firmware_rev": "1", "transport": "pcie"})
	m.Block(nvme+"/nvme0n1", nil)
	m.Link("sys/devices/"+nvme+"/nvme0n1/device", "../../nvme0")
	return m
}

func readLive(t *testing.T, m *sysfstree.Small) *probe.Inventory {
	t.Helper()
	inv, err := probe.Read(t.Context(), m, probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return inv
}

// said is a finding in one line: verdict, who mitigates.
func said(r *checker.Report, quirk string) string {
	for _, f := range r.Findings {
		if f.Quirk == quirk {
			s := string(f.Verdict)
			if f.MitigatedBy != nil {
				s += " by " + f.MitigatedBy.Kind
			}
			return s
		}
	}
	return "nothing"
}

func TestLiveProtections(t *testing.T) {
	set := flagSet(t)
	trim := func(v string) func(*sysfstree.Small) {
		return func(m *sysfstree.Small) { m.File(ataDev+"/trim", v+"\n") }
	}
	const sdb = "sys/devices/pci0000:00/0000:00:05.0/host5/target5:0:0/5:0:0:0"
	list := func(flags string) func(*sysfstree.Small) {
		return func(m *sysfstree.Small) { m.File(sdb+"/blacklist", flags) }
	}
	cmdline := func(s string, more ...func(*sysfstree.Small)) func(*sysfstree.Small) {
		return func(m *sysfstree.Small) {
			m.File("proc/cmdline", s+"\n")
			for _, f := range more {
				f(m)
			}
		}
	}
	file := func(name, content string) func(*sysfstree.Small) {
		return func(m *sysfstree.Small) { m.File(name, content+"\n") }
	}
	none := func(*sysfstree.Small) {}
	const nvmeQuirks = "sys/devices/pci0000:00/0000:00:06.0/nvme/nvme0/quirks"
	for _, c := range []struct {
		name, kernel, driver string
		change               func(*sysfstree.Small)
		quirk, want          string
		text                 string // in what mitigates, or in the advice
	}{
		// What the version says, where the machine shows nothing.
		{"a stable kernel that has it", "6.12.90", "uas", none, "ata-acme-trim-io-error", "mitigated by kernel", "ATA_QUIRK_NOTRIM"},
		{"a stable kernel without it", "6.1.190", "uas", none, "ata-acme-trim-io-error", "affected", "no protection"},
		{"a vendor's kernel", backport, "uas", none, "ata-acme-trim-io-error", "affected", "no protection"},

		{"a backport applies it", backport, "uas", trim("forced_unsupported"), "ata-acme-trim-io-error", "mitigated by kernel", ataDev + "/trim"},
		{"a backport does not", "6.12.90", "uas", trim("queued"), "ata-acme-trim-io-error", "affected", "trim is queued"},
		{"not forced, and so not applied", "6.12.90", "uas", trim("unqueued"), "ata-acme-trim-io-error", "affected", "trim is unqueued"},
		{"the other flag is applied", "6.12.90", "uas", trim("forced_unqueued"), "ata-acme-trim-io-error", "affected", "trim is forced_unqueued"},
		{"TRIM is not supported, which says nothing of the flag", "6.12.90", "uas", trim("unsupported"), "ata-acme-trim-io-error", "mitigated by kernel", "own quirk ATA_QUIRK_NOTRIM"},
		{"of a kernel that is not known", "", "uas", trim("forced_unsupported"), "ata-acme-trim-io-error", "mitigated by kernel", "ATA_QUIRK_NOTRIM"},
		{"one of two protections is not applied", "6.12.90", "uas", trim("queued"), "ata-acme-either-io-error", "mitigated by kernel", "own quirk"},
		{"one of two protections is applied", "6.1.190", "uas", trim("forced_unsupported"), "ata-acme-either-io-error", "mitigated by kernel", ataDev + "/trim"},
		{"neither of two protections is applied", "6.12.90", "uas", cmdline("libata.force=setxfer", trim("queued")), "ata-acme-either-io-error", "affected", "no protection"},
		{"a word of another kernel", "6.12.90", "uas", trim("sideways"), "ata-acme-trim-io-error", "mitigated by kernel", "own quirk ATA_QUIRK_NOTRIM"},

		{"queued TRIM in use, whatever the version says", "6.12.90", "uas", trim("queued"), "ata-acme-queued-trim-io-error", "affected", ""},
		{"queued TRIM forced off by a backport", backport, "uas", trim("forced_unqueued"), "ata-acme-queued-trim-io-error", "mitigated by kernel", "ATA_HORKAGE_NO_NCQ_TRIM"},
		{"not queued by chance", backport, "uas", trim("unqueued"), "ata-acme-queued-trim-io-error", "mitigated by setting", "nothing is known to keep it so"},
		{"no TRIM at all", "6.12.90", "uas", trim("forced_unsupported"), "ata-acme-queued-trim-io-error", "mitigated by kernel", "own quirk ATA_QUIRK_NO_NCQ_TRIM"},
		{"forced off by the admin", backport, "uas", cmdline("libata.force=1:noncqtrim", trim("forced_unqueued")), "ata-acme-queued-trim-io-error", "mitigated by setting", "a parameter"},

		// libata.force= where no file shows the flag.
		{"set by the admin", "6.1.190", "uas", cmdline("quiet libata.force=1:nosetxfer"), "ata-acme-setxfer-io-error", "mitigated by setting", "libata.force=nosetxfer sets it (proc/cmdline)"},
		{"taken away by the admin", "6.12.90", "uas", cmdline("libata.force=setxfer"), "ata-acme-setxfer-io-error", "affected", "takes it away"},
		{"for another port", "6.1.190", "uas", cmdline("libata.force=2:nosetxfer"), "ata-acme-setxfer-io-error", "affected", "stable-6.1"},
		{"another value", "6.1.190", "uas", cmdline("libata.force=1:nolpm"), "ata-acme-setxfer-io-error", "affected", "stable-6.1"},
		{"behind another item, up to 6.19", "6.1.190", "uas", cmdline("libata.force=80c,nosetxfer"), "ata-acme-setxfer-io-error", "mitigated by setting", ""},
		{"behind another item, from 7.0 on", "7.3.4", "uas", cmdline("libata.force=80c,setxfer"), "ata-acme-setxfer-io-error", "mitigated by kernel", "own quirk"},
		{"newer than the kernel", "5.10.223", "uas", cmdline("libata.force=nosetxfer"), "ata-acme-setxfer-io-error", "unknown", ""},
		{"another parameter of that name", "6.1.190", "uas", cmdline("foo.force=nosetxfer"), "ata-acme-setxfer-io-error", "affected", ""},

		// A size is judged by the limit observed.
		{"size flag set, and the limit above", "6.1.190", "uas", cmdline("libata.force=max_sec_1024"), "ata-acme-size-io-error", "affected", "above it all the same"},
		{"size flag set, and the limit holds", "6.1.190", "uas", cmdline("libata.force=max_sec_1024", file("sys/devices/"+ataPath+"/host0/target0:0:0/0:0:0:0/block/sda/queue/max_sectors_kb", "512"),
			file("sys/devices/"+ataPath+"/host0/target0:0:0/0:0:0:0/block/sda/queue/max_hw_sectors_kb", "512")), "ata-acme-size-io-error", "mitigated by setting", "max_hw_sectors_kb is 512"},
		{"no size flag, and the limit holds", "6.1.190", "uas", file("sys/devices/"+ataPath+"/host0/target0:0:0/0:0:0:0/block/sda/queue/max_sectors_kb", "512"), "ata-acme-size-io-error", "mitigated by limit", ""},

		// The SCSI device list.
		{"in the list", "6.1.190", "uas", list("RETRY_HWERROR\n"), "scsi-acme-retry-io-error", "mitigated by kernel", sdb + "/blacklist"},
		{"not in the list", "6.12.90", "uas", list("SPARSELUN\n"), "scsi-acme-retry-io-error", "affected", "blacklist does not list it"},
		{"an empty list", "6.12.90", "uas", list(""), "scsi-acme-retry-io-error", "affected", "blacklist does not list it"},
		{"no list", "6.12.90", "uas", none, "scsi-acme-retry-io-error", "mitigated by kernel", "own quirk BLIST_RETRY_HWERROR"},
		{"a bit without a name", "6.12.90", "uas", list("SPARSELUN INVALID_BIT(40)\n"), "scsi-acme-retry-io-error", "mitigated by kernel", "own quirk BLIST_RETRY_HWERROR"},
		{"listed beside a bit without a name", "6.1.190", "uas", list("RETRY_HWERROR INVALID_BIT(40)\n"), "scsi-acme-retry-io-error", "mitigated by kernel", "blacklist lists RETRY_HWERROR"},
		{"given by the admin", "6.1.190", "uas", cmdline(`"scsi_mod.dev_flags=ACME:ARRAY:0x400000"`, list("RETRY_HWERROR\n")), "scsi-acme-retry-io-error", "mitigated by setting", "a parameter"},
		{"given by the admin to another", "6.1.190", "uas", cmdline(`scsi_mod.dev_flags=ACME:ARR:0x400000`, list("RETRY_HWERROR\n")), "scsi-acme-retry-io-error", "mitigated by kernel", ""},
		{"commands are not sent, and by whom", "6.1.190", "uas", list("SKIP_VPD_PAGES\n"), "scsi-acme-vpd-io-error", "mitigated by kernel", "quirkcheck does not ask"},
		{"commands are not sent, by the probe alone", "6.12.90", "uas", list(""), "scsi-acme-vpd-io-error", "mitigated by probe", "other programs may"},

		// USB.
		{"the driver is uas", "6.12.90", "uas", none, "usb-acme-uas-io-error", "affected", "the driver is uas"},
		{"the driver is usb-storage, for whatever reason", "6.1.190", "usb-storage", none, "usb-acme-uas-io-error", "affected", "stable-6.1"},
		{"given by the admin, in either spelling", "6.1.190", "usb-storage", cmdline("usb_storage.quirks=152d:0578:uc"), "usb-acme-uas-io-error", "mitigated by setting", `"uc"`},
		{"the parameter replaces what the kernel has", "6.12.90", "usb-storage", cmdline("usb-storage.quirks=152D:578:u"), "usb-acme-cap-io-error", "affected", `"u"`},
		{"and leaves flags without a letter", "6.12.90", "usb-storage", cmdline("usb-storage.quirks=152d:0578:u"), "usb-acme-fua-io-error", "mitigated by kernel", "own quirk"},
		{"for another device", "6.1.190", "usb-storage", cmdline("usb-storage.quirks=152d:0579:c"), "usb-acme-cap-io-error", "affected", "stable-6.1"},
		{"the first item counts", "6.1.190", "usb-storage", cmdline("usb-storage.quirks=152d:0578:c,152d:0578:u"), "usb-acme-cap-io-error", "mitigated by setting", ""},
		{"written after it was plugged in, or not", "6.1.190", "usb-storage", file("sys/module/usb_storage/parameters/quirks", "152d:0578:c"), "usb-acme-cap-io-error", "affected", "stable-6.1"},
		{"changed since", "6.1.190", "usb-storage", cmdline("usb-storage.quirks=152d:0578:c", file("sys/module/usb_storage/parameters/quirks", "152d:0578:u")), "usb-acme-cap-io-error", "affected", "stable-6.1"},
		{"unchanged since", "6.1.190", "usb-storage", cmdline("usb-storage.quirks=152d:0578:c", file("sys/module/usb_storage/parameters/quirks", "152d:0578:c")), "usb-acme-cap-io-error", "mitigated by setting", ""},

		// NVMe.
		{"the controller's quirks have it", "6.1.190", "uas", file(nvmeQuirks, "no_apst\nbogus_nid"), "nvme-acme-nid-io-error", "mitigated by kernel", nvmeQuirks},
		{"the controller has none", "7.3.4", "uas", file(nvmeQuirks, "none"), "nvme-acme-nid-io-error", "affected", "quirks does not list it"},
		{"one that this kernel has no word for", "7.3.4", "uas", file(nvmeQuirks, "unknown"), "nvme-acme-nid-io-error", "mitigated by kernel", "own quirk"},
		{"given by the admin", "7.3.4", "uas", func(m *sysfstree.Small) {
			file(nvmeQuirks, "bogus_nid")(m)
			file("sys/module/nvme/parameters/quirks", "1000:0097:bogus_nid")(m)
		}, "nvme-acme-nid-io-error", "mitigated by setting", ""},
		{"given, and not shown", "7.0.4", "uas", file("sys/module/nvme/parameters/quirks", "1000:0097:bogus_nid,no_apst"), "nvme-acme-nid-io-error", "mitigated by setting", "nvme.quirks= sets bogus_nid"},
		{"taken away, and not shown", "7.0.4", "uas", file("sys/module/nvme/parameters/quirks", "144d:a808:no_apst-1000:0097:^bogus_nid"), "nvme-acme-nid-io-error", "affected", "takes away bogus_nid"},
		{"of another controller", "7.0.4", "uas", file("sys/module/nvme/parameters/quirks", "144d:a808:^bogus_nid"), "nvme-acme-nid-io-error", "mitigated by kernel", "own quirk"},
	} {
		m := liveMachine(c.kernel, c.driver)
		c.change(m)
		inv := readLive(t, m)
		r := checker.Check(inv, set, checker.Policy{})
		if got := said(r, c.quirk); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
			continue
		}
		text := ""
		for _, f := range r.Findings {
			if f.Quirk == c.quirk {
				if text = strings.Join(f.Advice, "; "); f.MitigatedBy != nil {
					text += f.MitigatedBy.Text
				}
			}
		}
		if !strings.Contains(text, c.text) {
			t.Errorf("%s: %q does not say %q", c.name, text, c.text)
		}
	}
}

// Under another release the machine shows nothing.
func TestLiveProtectionIsOfTheRunningKernel(t *testing.T) {
	set := flagSet(t)
	m := liveMachine("6.1.190", "uas")
	m.File(ataDev+"/trim", "forced_unsupported\n")
	inv := readLive(t, m)
	d, _ := inv.Device("sda")
	verdict := func(quirk, release string) string {
		sub := checker.SubjectOf(inv, d)
		var err error
		if sub.Kernel, err = kernel.Parse(release); err != nil {
			t.Fatal(err)
		}
		for _, f := range checker.Judge(sub, set, checker.Policy{}).Findings {
			if f.Quirk == quirk {
				return string(f.Verdict)
			}
		}
		return "nothing"
	}
	const trim, queued = "ata-acme-trim-io-error", "ata-acme-queued-trim-io-error"
	for _, c := range []struct{ quirk, release, want string }{
		{trim, inv.Kernel.V.Raw, "mitigated"},
		{trim, "6.1.191", "affected"},
		// Not queued, as there is no TRIM here: another kernel may send it.
		{queued, inv.Kernel.V.Raw, "mitigated"},
		{queued, "6.1.191", "affected"},
		{queued, "6.12.90", "mitigated"},
	} {
		if got := verdict(c.quirk, c.release); got != c.want {
			t.Errorf("%s under %s: %s, want %s", c.quirk, c.release, got, c.want)
		}
	}
}

func TestProtectionsInTheReport(t *testing.T) {
	m := liveMachine("6.1.190", "uas")
	m.File(ataDev+"/trim", "forced_unqueued\n")
	m.File("sys/devices/pci0000:00/0000:00:05.0/host5/target5:0:0/5:0:0:0/blacklist", "SPARSELUN LARGELUN\n")
	m.File("proc/cmdline", "libata.force=1:setxfer\n")
	r := checker.Check(readLive(t, m), flagSet(t), checker.Policy{})
	var got []string
	for _, d := range r.Devices {
		for _, p := range d.Protections {
			got = append(got, fmt.Sprintf("%s %s %t by %s: %s", d.Name, p.Flag, p.Applied, p.By, p.Text))
			if p.Source == "" {
				t.Errorf("%s: %s has no source", d.Name, p.Flag)
			}
		}
	}
	want := []string{
		"sda ATA_HORKAGE_NOSETXFER false by setting: libata.force=setxfer takes it away",
		"sda ATA_HORKAGE_NOTRIM false by kernel: trim is forced_unqueued",
		"sda ATA_HORKAGE_NO_NCQ_TRIM true by kernel: trim is forced_unqueued",
		"sdb BLIST_LARGELUN true by kernel: blacklist lists LARGELUN",
		"sdb BLIST_RETRY_HWERROR false by kernel: blacklist does not list it",
		"sdb BLIST_SKIP_VPD_PAGES false by kernel: blacklist does not list it",
		"sdb BLIST_SPARSELUN true by kernel: blacklist lists SPARSELUN",
		"sdc US_FL_IGNORE_UAS false by kernel: the driver is uas",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if r := checker.Check(readLive(t, sysfstree.NewSmall("6.1.190")), flagSet(t), checker.Policy{}); len(r.Devices) != 0 {
		t.Errorf("%+v", r.Devices)
	}
}

func TestLogProofs(t *testing.T) {
	set := flagSet(t)
	const (
		banner = "Linux version %s (test@example.org) (gcc) #1 SMP\n"
		found  = "ata1.00: ATA-10: ACME DISK, FW1.0, max UDMA/133\n"
		told   = "ata1.00: Model 'ACME DISK', rev 'FW1.0', applying quirks: "
	)
	of := func(release, lines string) string { return fmt.Sprintf(banner, release) + lines }
	const trimQ, lpmQ, usbQ = "ata-acme-trim-io-error", "ata-acme-lpm-io-error", "usb-acme-cap-io-error"
	for _, c := range []struct {
		name, kernel string
		log          string
		live         bool
		quirk, want  string
	}{
		{"a line of a vendor's kernel", backport, of(backport, told+"notrim\n"+found), false, trimQ, "mitigated by kernel"},
		{"the line does not name it", "6.12.90", of("6.12.90", told+"noncq zeroaftertrim\n"+found), false, trimQ, "affected"},
		{"either name of a flag", backport, of(backport, told+"nolpmonati\n"+found), false, lpmQ, "mitigated by kernel"},
		{"the other name of a flag", backport, of(backport, told+"nolpmonatiandamd\n"+found), false, lpmQ, "mitigated by kernel"},
		{"neither name of a flag", "6.18.3", of("6.18.3", told+"nolpm\n"+found), false, lpmQ, "affected"},
		{"a word that is not known", "6.12.90", of("6.12.90", told+"noncq somethingnew\n"+found), false, trimQ, "mitigated by kernel"},
		{"a word that is not known beside the flag", backport, of(backport, told+"notrim somethingnew\n"+found), false, trimQ, "mitigated by kernel"},
		{"no line, of a kernel that writes them", "6.12.90", of("6.12.90", found), false, trimQ, "affected"},
		{"no line, of a kernel that does not", "6.1.190", of("6.1.190", found), false, trimQ, "affected"}, // by its version
		{"no line, of a vendor's kernel that writes them for another", "6.19.0-5-generic", of("6.19.0-5-generic", "ata2.00: Model 'OTHER', rev '1', applying quirks: noncq\n"+found), false, trimQ, "affected"},
		{"no line, of a vendor's kernel", "6.19.0-5-generic", of("6.19.0-5-generic", found), false, trimQ, "mitigated by kernel"},
		{"no line, and another disk on the port", "6.12.90", of("6.12.90", found+"ata1.01: ATA-10: ANOTHER, 1, max UDMA/133\n"), false, trimQ, "mitigated by kernel"},
		{"no line, and the disk is not in the log", "6.12.90", of("6.12.90", "ata1: SATA link up 6.0 Gbps\n"), false, trimQ, "mitigated by kernel"},
		{"the disk has another place now", backport, of(backport, strings.ReplaceAll(told+"notrim\n"+found, "ata1.00", "ata7.00")), false, trimQ, "mitigated by kernel"},
		{"another firmware", backport, of(backport, strings.ReplaceAll(told+"notrim\n"+found, "FW1.0", "FW1.1")), false, trimQ, "affected"},
		{"another kernel", "6.12.90", of("6.12.91", found), false, trimQ, "mitigated by kernel"},
		{"an older boot of another kernel", "6.12.90", of("6.1.190", "[ 900.0] "+found) + "[ 0.0] " + of("6.12.90", "[ 1.0] "+told+"notrim\n"), false, trimQ, "mitigated by kernel"},
		{"which kernel is not known", backport, told + "notrim\n" + found, false, trimQ, "affected"},
		{"the running kernel's own log", backport, told + "notrim\n" + found, true, trimQ, "mitigated by kernel"},
		{"forced, as the log says", backport, of(backport, found+"ata1.00: FORCE: modified (notrim)\n"), false, trimQ, "mitigated by setting"},
		{"taken away, as the log says", "6.12.90", of("6.12.90", told+"notrim\n"+found+"ata1.00: FORCE: modified (trim)\n"), false, trimQ, "affected"},
		{"forced in another boot", backport, of(backport, "[ 900.0] "+found+"[ 901.0] ata1.00: FORCE: modified (notrim)\n") + "[ 0.0] " + of(backport, "[ 1.0] "+found), false, trimQ, "affected"},
		{"forced in a log of another kernel", backport, of("6.1.190", found+"ata1.00: FORCE: modified (notrim)\n"), false, trimQ, "affected"},
		{"usb-storage has the flag", "6.1.190", of("6.1.190", "usb 2-1: New USB device found, idVendor=152d, idProduct=0578, bcdDevice= 1.00\nusb-storage 2-1:1.0: Quirks match for vid 152d pid 0578: 800010\n"), false, usbQ, "mitigated by kernel"},
		{"usb-storage has others", "6.12.90", of("6.12.90", "usb 2-1: New USB device found, idVendor=152d, idProduct=0578, bcdDevice= 1.00\nusb-storage 2-1:1.0: Quirks match for vid 152d pid 0578: 800000\n"), false, usbQ, "affected"},
	} {
		m := liveMachine(c.kernel, "usb-storage")
		inv := readLive(t, m)
		log, err := klog.Read(strings.NewReader(c.log))
		if err != nil {
			t.Fatal(err)
		}
		p := checker.Policy{Proofs: checker.LogProofs(inv, checker.LogInput{Log: log, Source: "kern.log", Live: c.live})}
		r := checker.Check(inv, set, p)
		if got := said(r, c.quirk); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
	// The line is about disks that libata drives.
	m := liveMachine("6.12.90", "uas")
	behind := "sys/devices/pci0000:00/0000:00:05.0/host5/target5:0:0/5:0:0:0/"
	m.File(behind+"vendor", "ATA     \n")
	m.File(behind+"model", "ACME DISK       \n")
	m.File(behind+"block/sdb/dev", "8:16\n")
	m.File("run/udev/data/b8:16", "E:ID_ATA=1\nE:ID_BUS=ata\nE:ID_MODEL=ACME_DISK\nE:ID_MODEL_ENC=ACME\\x20DISK\nE:ID_REVISION=FW1.0\n")
	inv := readLive(t, m)
	log, err := klog.Read(strings.NewReader(of("6.12.90", told+"notrim\n"+found)))
	if err != nil {
		t.Fatal(err)
	}
	if d, _ := inv.Device("sdb"); d.ATAModel.V != "ACME DISK" || d.ATAFirmware.V != "FW1.0" || d.Path != "sat-firmware" {
		t.Fatalf("%+v %+v %s", d.ATAModel, d.ATAFirmware, d.Path)
	}
	if p := checker.LogProofs(inv, checker.LogInput{Log: log, Source: "kern.log"}); p["sda"] == nil || p["sdb"] != nil {
		t.Errorf("of a disk behind libata and of one behind an adapter: %+v", p)
	}
	// What stands in the tree counts before what stands in a log.
	m.File(ataDev+"/trim", "queued\n")
	inv = readLive(t, m)
	r := checker.Check(inv, set, checker.Policy{Proofs: checker.LogProofs(inv, checker.LogInput{Log: log, Source: "kern.log"})})
	if got := said(r, trimQ); got != "affected" {
		t.Errorf("the tree against the log: %s", got)
	}
	for _, d := range r.Devices {
		for _, p := range d.Protections {
			if p.Flag == "ATA_QUIRK_NOSETXFER" && (p.Source != "kern.log, line 2" || !strings.Contains(p.Text, "applying quirks: notrim")) {
				t.Errorf("%+v does not name its line", p)
			}
		}
	}
}

// Nothing that a command line, a parameter, a list or a log says brings the
// checker down or makes it contradict itself.
func FuzzLive(f *testing.F) {
	f.Add("libata.force=1:noncqtrim scsi_mod.dev_flags=ACME:ARRAY:1 usb-storage.quirks=152d:0578:u", "1000:0097:^bogus_nid,no_apst-::", "SPARSELUN INVALID_BIT(3)",
		"Linux version 6.12.90 (a@b) #1\nata1.00: Model 'ACME DISK', rev 'FW1.0', applying quirks: noncq\nata1.00: FORCE: modified (ncq)\nusb-storage 2-1:1.0: Quirks match for vid 152d pid 0578: ffffffffff\n")
	set := flagSet(f)
	release, err := kernel.ParseProcVersion("Linux version 6.12.90 (a@b) #1")
	if err != nil {
		f.Fatal(err)
	}
	text := func(s string) probe.Value[string] {
		return probe.Value[string]{V: s, State: probe.Known, Source: "here"}
	}
	f.Fuzz(func(t *testing.T, cmdline, param, list, log string) {
		words := probe.Value[[]string]{V: strings.Fields(list), State: probe.Known, Source: "there"}
		inv := &probe.Inventory{Kernel: probe.Value[kernel.Release]{V: release, State: probe.Known, Source: "proc/version"}, Cmdline: text(cmdline),
			Params: map[string]probe.Value[string]{"nvme.quirks": text(param)},
			Devices: []*probe.Device{
				{Name: "sda", Kind: "disk", Path: "libata", ATAModel: text("ACME DISK"), ATAFirmware: text("FW1.0"), Adapter: probe.Adapter{ATAPort: "1", Known: true}, Blacklist: words},
				{Name: "sdb", Kind: "disk", Path: "scsi", Vendor: text("ACME"), Product: text("ARRAY"), Blacklist: words},
				{Name: "sdc", Kind: "disk", Path: "usb-storage", USB: map[string]string{"vid": "152d", "pid": "0578"}, SysPath: "sys/devices/usb2/2-1/2-1:1.0"},
				{Name: "nvme0n1", Kind: "disk", Path: "nvme-pci", NVMeModel: text("ACME NVME"), Adapter: probe.Adapter{PCI: "1000:0097", Known: true}, NVMeQuirks: words},
			}}
		l, err := klog.Read(strings.NewReader(log))
		if err != nil {
			return
		}
		proofs := checker.LogProofs(inv, checker.LogInput{Log: l, Source: "fuzz", Live: true})
		for _, d := range inv.Devices {
			sub := checker.SubjectOf(inv, d)
			if more := proofs[d.Name]; more != nil && sub.Live != nil {
				sub.Live.Flags = append(sub.Live.Flags, more.Flags...)
				sub.Live.Whole = append(sub.Live.Whole, more.Whole...)
			}
			if sub.Live == nil {
				continue
			}
			for _, flag := range sub.Live.Flags {
				if flag.Source == "" || flag.By != "kernel" && flag.By != "setting" || quirks.NormalFlag(flag.Flag) != flag.Flag {
					t.Errorf("%s: %+v", d.Name, flag)
				}
			}
			for _, g := range checker.Judge(sub, set, checker.Policy{}).Findings {
				if g.MitigatedBy == nil || !strings.HasPrefix(g.MitigatedBy.Text, "the kernel applies its quirk ") {
					continue
				}
				flag, _, _ := strings.Cut(strings.TrimPrefix(g.MitigatedBy.Text, "the kernel applies its quirk "), ":")
				if shown, ok := sub.Live.Of(flag); !ok || !shown.Applied {
					t.Errorf("%s is mitigated by %s, which is not shown", g.Quirk, flag)
				}
			}
		}
	})
}
