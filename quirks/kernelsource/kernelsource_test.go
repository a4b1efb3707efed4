package kernelsource

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

// The excerpts below are made up in the shape of the kernel's tables; no
// device of them exists.

const makefile = "# SPDX\nVERSION = 7\nPATCHLEVEL = 3\nSUBLEVEL = 4\nEXTRAVERSION =\nNAME = x\n"

const libataNew = `
#define ACME_MODEL	"ACME " "DISK 9"
struct ata_dev_quirk_value { const char *model_num; const char *model_rev; u64 val; };
static const struct ata_dev_quirk_value __ata_dev_max_sec_quirks[] = {
	{ "ACME BIG*",	NULL,	1024 },
	{ "ACME ODD",	"1.0",	0x1fff },
	{ },
};
struct ata_dev_quirks_entry { const char *model_num; const char *model_rev; u64 quirks; };
static const struct ata_dev_quirks_entry __ata_dev_quirks[] = {
	/* a comment, with "quotes", { braces } and */
	{ "ACME 1",	NULL,		ATA_QUIRK_NODMA },	// and another
	{ "ACME*2",	"F[12]",	ATA_QUIRK_NONCQ |
					ATA_QUIRK_FIRMWARE_WARN },
	{ ACME_MODEL,	NULL,		ATA_QUIRK_NOLPM },
	{ "ACME BIG*",	NULL,		ATA_QUIRK_MAX_SEC | (ATA_QUIRK_NOTRIM) },
	{ "ACME ODD",	"1.0",		ATA_QUIRK_MAX_SEC },
	{ "ACME OPT*",	NULL,		ATA_QUIRK_MAX_SEC_LBA48 },
	{ " ACME \"quoted\" \x41\101",	NULL,	0, },
#if 0
	{ "ACME GONE",	NULL,		ATA_QUIRK_NODMA },
#else
	{ "ACME KEPT",	NULL,		ATA_QUIRK_NODMA },
#endif
#ifdef CONFIG_ACME
	{ "ACME IF",	NULL,		ATA_QUIRK_NODMA },
#endif
	/* End Marker */
	{ }
};
static u64 ata_dev_quirks(const struct ata_device *dev) { return __ata_dev_quirks[0].quirks; }
`

const libataOld = `
static const struct ata_blacklist_entry ata_device_blacklist [] = {
	{ "ACME 1",	NULL,		ATA_HORKAGE_NODMA },
	{ "ACME BIG*",	NULL,		ATA_HORKAGE_MAX_SEC_1024 },
	{ "ACME SMALL",	"3",		ATA_HORKAGE_MAX_SEC_128, },
	{ }
};`

const scsiList = `
static struct {
	char *vendor;
	char *model;
	char *revision;	/* unused */
	blist_flags_t flags;
} scsi_static_device_list[] __initdata = {
	{"ACME", "SCAN ONE", "1.0", BLIST_NOLUN},	/* locks up */
	{"", "Nameless", NULL, BLIST_NOLUN},
	{"ACMEACME", "BIG", "\004|j", BLIST_SPARSELUN |
	 BLIST_MAX_512},
	{"ACME", "", NULL, BLIST_MAX_1024},
	{ NULL, NULL, NULL, 0 },
};`

const spiList = `
static struct { char *vendor; char *model; unsigned flags; } spi_static_device_list[] __initdata = {
	{"ACME", "TAPE", SPI_BLIST_NOIUS },
	{NULL, NULL, 0}
};`

const unusual = `
#if !defined(CONFIG_A) && \
		!defined(CONFIG_A_MODULE)
#define NO_A
#endif
#define PAGE 0x0100
UNUSUAL_DEV(  0x1234, 0xABCD, 0x0000, 0x9999,
		"ACME, Inc.",
		"Stick (1)",
		USB_SC_DEVICE, USB_PR_DEVICE, NULL,
		US_FL_MAX_SECTORS_64 | US_FL_FIX_CAPACITY ),
COMPLIANT_DEV(0x1234, 0x0001, PAGE, PAGE, "ACME", "Card", USB_SC_DEVICE, USB_PR_DEVICE, NULL, US_FL_CAPACITY_OK),
#ifdef NO_A
UNUSUAL_DEV(0x1234, 0x0002, 0x0100, 0x0133, "ACME", "Dock", USB_SC_SCSI, USB_PR_BULK, acme_init(1, 2), 0),
#endif
`

const nvmeCore = `
static const struct nvme_core_quirk_entry core_quirks[] = {
	{
		/* why */
		.vid = 0x1abc,
		.mn = "ACME FAST",
		.quirks = NVME_QUIRK_NO_APST,
	},
	{ .vid = 0x1abd, .fr = "22", .quirks = NVME_QUIRK_SIMPLE_SUSPEND | NVME_QUIRK_NO_APST, }
};`

const nvmePCI = `
static const struct pci_device_id nvme_id_table[] = {
	{ PCI_VDEVICE(ACME, 0x0953),	/* one */
		.driver_data = NVME_QUIRK_STRIPE_SIZE |
				NVME_QUIRK_DEALLOCATE_ZEROES, },
	{ PCI_DEVICE(0x1217, 0x8760), .driver_data = NVME_QUIRK_BOGUS_NID, },
	{ PCI_DEVICE(PCI_VENDOR_ID_OTHER, 0x2001), .driver_data = 0 },
	{ PCI_DEVICE_CLASS(PCI_CLASS_STORAGE_EXPRESS, 0xffffff) },
	{ 0, }
};`

func excerpts() fstest.MapFS {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	return fstest.MapFS{
		"Makefile":                                file(makefile),
		"drivers/ata/libata-core.c":               file(libataNew),
		"drivers/scsi/scsi_devinfo.c":             file(scsiList),
		"drivers/scsi/scsi_transport_spi.c":       file(spiList),
		"drivers/usb/storage/unusual_devs.h":      file(unusual),
		"drivers/usb/storage/unusual_uas.h":       file(`UNUSUAL_DEV(0x1234, 0x0003, 0, 0x9999, "ACME", "U", A, B, NULL, US_FL_IGNORE_UAS),`),
		"drivers/usb/storage/usual-tables.c":      file("not read"),
		"drivers/nvme/host/core.c":                file(nvmeCore),
		"drivers/nvme/host/pci.c":                 file(nvmePCI),
		"include/linux/pci_ids.h":                 file("#define PCI_VENDOR_ID_ACME\t0x1ACE /* a */\n#define PCI_VENDOR_ID_LOOP PCI_VENDOR_ID_LOOP\n"),
		"drivers/ata/libata-core.c.orig/notafile": file(""),
	}
}

// show is what a row says, in one line.
func show(r Row) string {
	s := fmt.Sprintf("%s:%d %s %s", r.Family, r.Line, r.Key(), strings.Join(r.Flags, "|"))
	if r.MaxSectors > 0 {
		s += fmt.Sprint(" max ", r.MaxSectors)
	}
	if r.If != "" {
		s += " if " + r.If
	}
	return s
}

func read(t testing.TB, tree fstest.MapFS) (rows, faults []string) {
	t.Helper()
	got, err := Read(tree)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range got.Rows {
		rows = append(rows, show(r))
	}
	for _, f := range got.Faults {
		faults = append(faults, f.String())
	}
	return rows, faults
}

func TestReadsEveryTable(t *testing.T) {
	rows, faults := read(t, excerpts())
	want := []string{
		`libata:12 "ACME 1" ATA_QUIRK_NODMA`,
		`libata:13 "ACME*2" firmware "F[12]" ATA_QUIRK_NONCQ|ATA_QUIRK_FIRMWARE_WARN`,
		`libata:15 "ACME DISK 9" ATA_QUIRK_NOLPM`,
		`libata:16 "ACME BIG*" ATA_QUIRK_MAX_SEC|ATA_QUIRK_NOTRIM max 1024`,
		`libata:17 "ACME ODD" firmware "1.0" ATA_QUIRK_MAX_SEC max 8191`,
		`libata:18 "ACME OPT*" ATA_QUIRK_MAX_SEC_LBA48 max 65535`,
		`libata:19 " ACME \"quoted\" AA" `,
		`libata:23 "ACME KEPT" ATA_QUIRK_NODMA`,
		`libata:26 "ACME IF" ATA_QUIRK_NODMA if defined CONFIG_ACME`,
		`scsi:8 "ACME" "SCAN ONE" BLIST_NOLUN`,
		`scsi:9 "" "Nameless" BLIST_NOLUN`,
		`scsi:10 "ACMEACME" "BIG" BLIST_SPARSELUN|BLIST_MAX_512 max 512`,
		`scsi:12 "ACME" "" BLIST_MAX_1024 max 1024`,
		`scsi-spi:3 "ACME" "TAPE" SPI_BLIST_NOIUS`,
		`usb:7 1234:abcd 0000-9999 US_FL_MAX_SECTORS_64|US_FL_FIX_CAPACITY max 64`,
		`usb:12 1234:0001 0100-0100 US_FL_CAPACITY_OK`,
		`usb:14 1234:0002 0100-0133  if defined NO_A`,
		`uas:1 1234:0003 0000-9999 US_FL_IGNORE_UAS`,
		`nvme-core:3 1abc "ACME FAST" NVME_QUIRK_NO_APST`,
		`nvme-core:9 1abd firmware "22" NVME_QUIRK_SIMPLE_SUSPEND|NVME_QUIRK_NO_APST`,
		`nvme-pci:3 1ace:0953 NVME_QUIRK_STRIPE_SIZE|NVME_QUIRK_DEALLOCATE_ZEROES`,
		`nvme-pci:6 1217:8760 NVME_QUIRK_BOGUS_NID`,
		`nvme-pci:7 PCI_VENDOR_ID_OTHER:2001 `,
	}
	if diff := cmp.Diff(want, rows); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if len(faults) > 0 {
		t.Errorf("faults: %q", faults)
	}
	tree, err := Read(excerpts())
	if err != nil || tree.Release.Upstream() != "7.3.4" {
		t.Errorf("release %q, want 7.3.4 (%v)", tree.Release.Upstream(), err)
	}
	if got := tree.Of(SCSI)[2].Revision; got != "\x04|j" {
		t.Errorf("revision %q", got)
	}
}

func TestReadsTheOlderDialect(t *testing.T) {
	rows, faults := read(t, fstest.MapFS{"drivers/ata/libata-core.c": {Data: []byte(libataOld)}})
	want := []string{
		`libata:3 "ACME 1" ATA_HORKAGE_NODMA`,
		`libata:4 "ACME BIG*" ATA_HORKAGE_MAX_SEC_1024 max 1024`,
		`libata:5 "ACME SMALL" firmware "3" ATA_HORKAGE_MAX_SEC_128 max 128`,
	}
	if diff := cmp.Diff(want, rows); diff != "" || len(faults) > 0 {
		t.Errorf("(-want +got):\n%sfaults %q", diff, faults)
	}
}

func TestWhatCannotBeReadIsTold(t *testing.T) {
	for name, c := range map[string]struct {
		file, text, want string
	}{
		"a row short of a cell":        {"drivers/ata/libata-core.c", "x __ata_dev_quirks[] = {\n{ \"A\", NULL },\n};", "drivers/ata/libata-core.c:2: a row of 2 cells"},
		"a model that is no string":    {"drivers/ata/libata-core.c", "x __ata_dev_quirks[] = {\n{ ACME, NULL, F },\n};", `:2: model: "ACME" where a string belongs`},
		"a flag that is computed":      {"drivers/ata/libata-core.c", "x __ata_dev_quirks[] = {\n{ \"A\", NULL, F + 1 },\n};", `flags of "A": "+" among flags`},
		"a size that is not there":     {"drivers/ata/libata-core.c", "x __ata_dev_quirks[] = {\n{ \"A\", NULL, ATA_QUIRK_MAX_SEC },\n};", `no row in the table of sizes`},
		"a table that never closes":    {"drivers/ata/libata-core.c", "x __ata_dev_quirks[] = {\n{ \"A\", NULL, F },", "brace that never closes"},
		"a file without its table":     {"drivers/ata/libata-core.c", "int x;", "no table __ata_dev_quirks or"},
		"a string that never closes":   {"drivers/ata/libata-core.c", "x = \"abc\n;", "string that never closes"},
		"#endif alone":                 {"drivers/ata/libata-core.c", "#endif\n", "#endif without #if"},
		"a macro that names itself":    {"drivers/ata/libata-core.c", "#define A B\n#define B A A\nx __ata_dev_quirks[] = {\n{ A, NULL, F },\n};", "expand"},
		"an id of 17 bits":             {"drivers/usb/storage/unusual_devs.h", "UNUSUAL_DEV(0x12345, 0, 0, 0, \"\", \"\", A, B, NULL, 0)", "more than 16 bits"},
		"a macro short of an argument": {"drivers/usb/storage/unusual_devs.h", "UNUSUAL_DEV(1, 2)", "of 2 arguments"},
		"an unknown PCI macro":         {"drivers/nvme/host/pci.c", "x nvme_id_table[] = {\n{ PCI_SUB(1, 2) },\n};", "PCI_SUB of 2 arguments"},
		"an NVMe row without a vendor": {"drivers/nvme/host/core.c", "x core_quirks[] = {\n{ .quirks = 0 },\n};", "a row without a vid"},
		"an unknown NVMe field":        {"drivers/nvme/host/core.c", "x core_quirks[] = {\n{ .sn = \"1\" },\n};", `field "sn"`},
	} {
		t.Run(name, func(t *testing.T) {
			_, faults := read(t, fstest.MapFS{c.file: {Data: []byte(c.text)}, "drivers/scsi/scsi_devinfo.c": {Data: []byte(scsiList)}})
			if !slices.ContainsFunc(faults, func(f string) bool { return strings.Contains(f, c.want) }) {
				t.Errorf("faults %q, want one with %q", faults, c.want)
			}
		})
	}
}

func TestNoTree(t *testing.T) {
	if _, err := Read(fstest.MapFS{"Makefile": {Data: []byte(makefile)}}); !errors.Is(err, ErrNoTree) {
		t.Errorf("%v, want ErrNoTree", err)
	}
	tree, err := Read(fstest.MapFS{"drivers/scsi/scsi_devinfo.c": {Data: []byte(scsiList)}})
	if err != nil || len(tree.Rows) != 4 || !slices.Contains(tree.Absent, "drivers/ata/libata-core.c") || tree.Release.Known() {
		t.Errorf("%+v, %v", tree, err)
	}
}

// trees are the real source trees at hand: those QUIRKCHECK_KERNEL_TREE names.
func trees(t *testing.T) []string {
	t.Helper()
	list := filepath.SplitList(os.Getenv("QUIRKCHECK_KERNEL_TREE"))
	if len(list) == 0 {
		t.Skip("QUIRKCHECK_KERNEL_TREE names no Linux source tree; .ci/kernel-source fetches some")
	}
	return list
}

// TestRealTrees compares with counts made by another program on the same
// packages (facts of the project): 6.1.192 and 6.12.117.
func TestRealTrees(t *testing.T) {
	counts := map[string]map[Family]int{
		"6.1":  {Libata: 121, SCSI: 182, SPI: 2, USB: 370, UAS: 24, NVMeCore: 4, NVMePCI: 73},
		"6.12": {Libata: 138, SCSI: 182, SPI: 2, USB: 370, UAS: 24, NVMeCore: 4, NVMePCI: 80},
		"7.3":  {Libata: 140, SCSI: 183, SPI: 2, USB: 370, UAS: 24, NVMeCore: 4, NVMePCI: 81},
	}
	for _, dir := range trees(t) {
		tree, err := Read(os.DirFS(dir))
		if err != nil {
			t.Errorf("%s: %v", dir, err)
			continue
		}
		for _, f := range tree.Faults {
			t.Errorf("%s: %s", dir, f)
		}
		if !tree.Release.Known() || len(tree.Absent) > 0 {
			t.Errorf("%s: release %q, absent %q", dir, tree.Release.Upstream(), tree.Absent)
		}
		// 690 and 674 in the packages of 6.1 and 7.3, three of four with a value.
		if n := len(tree.Limits); n < 500 || n > 1000 {
			t.Errorf("%s: %d limits of drivers", dir, n)
		}
		for f, n := range counts[fmt.Sprintf("%d.%d", tree.Release.Major, tree.Release.Minor)] {
			// Point releases add rows, and take few away.
			if got := len(tree.Of(f)); got < n-2 || got > n+20 {
				t.Errorf("%s (%s): %d rows of %s, want about %d", dir, tree.Release.Upstream(), got, f, n)
			}
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, text := range []string{libataNew, libataOld, scsiList, spiList, unusual, nvmeCore, nvmePCI, "#define A A B\nx __ata_dev_quirks[]={{A,A,A}}", "/*", "\"\\", "#if 0\n#else"} {
		f.Add(text)
	}
	for _, file := range limitFiles() {
		f.Add(string(file.Data))
	}
	f.Fuzz(func(t *testing.T, text string) {
		file := &fstest.MapFile{Data: []byte(text)}
		tree, err := Read(fstest.MapFS{"Makefile": file, "drivers/ata/libata-core.c": file, "drivers/scsi/scsi_devinfo.c": file, "drivers/scsi/scsi_transport_spi.c": file,
			"drivers/usb/storage/unusual_devs.h": file, "drivers/nvme/host/core.c": file, "drivers/nvme/host/pci.c": file, "include/linux/pci_ids.h": file,
			"drivers/scsi/acme/acme.c": file, "drivers/scsi/acme/acme.h": file, "drivers/scsi/acme/Makefile": file})
		if err != nil {
			return
		}
		lines := strings.Count(text, "\n") + 1
		for _, r := range tree.Rows {
			if r.Line < 1 || r.Line > lines || r.Flags == nil || r.Key() == "" {
				t.Errorf("row %+v of a file of %d lines", r, lines)
			}
		}
		for _, l := range tree.Limits {
			if l.Line < 1 || l.Line > lines || (l.Value == nil) != l.Computed || l.Expr == "" || len(l.Expr) > maxExprText+8 || !utf8.ValidString(l.Expr) {
				t.Errorf("limit %+v of a file of %d lines", l, lines)
			}
		}
	})
}
