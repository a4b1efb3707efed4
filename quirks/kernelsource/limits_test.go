package kernelsource

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

// limitFiles are drivers in the kernel's style; devices and numbers are made up.
func limitFiles() fstest.MapFS {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	return fstest.MapFS{
		"include/linux/libata.h": file(`#define __ATA_BASE_SHT(drv_name) \
	.module = THIS_MODULE, \
	.name = drv_name, \
	.max_sectors = ATA_MAX_SECTORS_LBA48
#define ATA_BASE_SHT(drv_name) __ATA_BASE_SHT(drv_name), .sdev_groups = groups
enum { LIBATA_MAX_PRD = ATA_MAX_PRD / 2, };
`),
		"include/linux/ata.h": file("enum ata {\n\tATA_NONE,\n\tATA_MAX_PRD = 256, /* a table */\n\tATA_MAX_SECTORS_LBA48 = 65535,\n};\n"),
		"drivers/ata/acme.h":  file("#define ACME_SG 168\n#define ACME_SHT(n) ATA_BASE_SHT(n), .sg_tablesize = ACME_SG, .dma_boundary = 0xffffffff\n"),
		"drivers/ata/acme.c": file(`#include <linux/libata.h>
#include <linux/ata.h>
#include "acme.h"
static const struct scsi_host_template acme_sht = {
	ACME_SHT("acme"),
	.sg_tablesize	= LIBATA_MAX_PRD, /* the last counts */
};
static void acme_dev_config(struct ata_device *dev)
{
	if (dev->flags & OLD)
		dev->max_sectors = 15;
}
`),
		"drivers/scsi/acme/Makefile": file("obj-$(CONFIG_ACME) += acme_mod.o\nacme_mod-y := \\\n\tacme.o\n"),
		"drivers/scsi/acme/acme.h": file(`struct acme { struct Scsi_Host *h; struct acme_cfg cfg; };
#ifdef CONFIG_BIG
#define ACME_BUILD 64
#else
#define ACME_BUILD 32
#endif
`),
		"drivers/scsi/acme/acme.c": file(`#include "acme.h"
#define ACME_KB(n) ((n) * 2)
#define ACME_BYTES (64 * 1024)
static struct scsi_host_template acme_template __ro_after_init = {
	.name = "acme .max_sectors = 1",
	.max_sectors = ACME_BYTES / 512,
	.sg_tablesize = ACME_BUILD,
	.dma_boundary = PAGE_SIZE - 1,
	.max_segment_size = -1U,
#ifdef CONFIG_BIG
	.virt_boundary_mask = (1 << 12) - 1,
#endif
};
static int acme_probe(struct acme *a, struct acme_cfg *cfg)
{
	cfg->max_sectors = 7; /* its own field */
	a->cfg.max_sectors = 8;
	a->h->sg_tablesize = min(a->sgs, 255);
	if (a->h->max_sectors == 9)
		sdev->host->max_sectors = ACME_KB(128);
	return 0;
}
static int acme_configure(struct scsi_device *sdev, struct queue_limits *lim)
{
	lim->max_hw_sectors = 0x800;
	blk_queue_max_hw_sectors(sdev->request_queue, 1024);
	return 0;
}
#if 0
It's text that isn't C. shost->max_sectors = 1;
#endif
`),
		"drivers/block/loop.c": file("static void f(void)\n{\n\tstruct queue_limits lim = {\n\t\t.max_hw_sectors = UINT_MAX,\n\t\t.max_segments = 70000,\n\t};\n\tlim.max_segments = 1 / 0;\n}\n"),
		"drivers/block/rbd.c":  file("static void f(struct queue_limits *lim)\n{\n\tlim->max_hw_sectors = 8;\n}\n"),
	}
}

func showLimit(l Limit) string {
	v := "computed"
	if l.Value != nil {
		v = fmt.Sprint(*l.Value)
	}
	s := fmt.Sprintf("%s:%d %s %s.%s = %s (%s) in %s", l.Driver, l.Line, l.Kind, l.Of, l.Field, v, l.Expr, l.In)
	if l.If != "" {
		s += " if " + l.If
	}
	return s
}

func TestReadsTheLimitsOfDrivers(t *testing.T) {
	tree, err := Read(limitFiles())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, l := range tree.Limits {
		got = append(got, showLimit(l))
	}
	want := []string{
		`acme:5 template host.max_sectors = 65535 (ATA_MAX_SECTORS_LBA48) in acme_sht`,
		`acme:5 template host.dma_boundary = 4294967295 (0xffffffff) in acme_sht`,
		`acme:6 template host.sg_tablesize = 128 (LIBATA_MAX_PRD) in acme_sht`,
		`acme:11 assignment device.max_sectors = 15 (15) in acme_dev_config`,
		`acme_mod:6 template host.max_sectors = 128 (ACME_BYTES / 512) in acme_template`,
		`acme_mod:7 template host.sg_tablesize = computed (ACME_BUILD) in acme_template`,
		`acme_mod:8 template host.dma_boundary = computed (PAGE_SIZE - 1) in acme_template`,
		`acme_mod:9 template host.max_segment_size = 4294967295 (-1U) in acme_template`,
		`acme_mod:11 template host.virt_boundary_mask = 4095 ((1 << 12) - 1) in acme_template if defined CONFIG_BIG`,
		`acme_mod:18 assignment host.sg_tablesize = computed (min(a->sgs, 255)) in acme_probe`,
		`acme_mod:20 assignment host.max_sectors = computed (ACME_KB(128)) in acme_probe`,
		`acme_mod:25 assignment limits.max_hw_sectors = 2048 (0x800) in acme_configure`,
		`acme_mod:26 call limits.max_hw_sectors = 1024 (1024) in acme_configure`,
		`loop:4 template limits.max_hw_sectors = 4294967295 (UINT_MAX) in lim`,
		`loop:5 template limits.max_segments = computed (70000) in lim`,
		`loop:7 assignment limits.max_segments = computed (1 / 0) in f`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, f := range tree.Faults {
		t.Error(f)
	}
	d := Compare(tree, database(t, nil), []Family{Limits})
	if len(d.Limits) != len(want) || len(d.Counts) > 0 || d.Differs() {
		t.Errorf("%d limits, counts %v, differs %v; want %d, and nothing to review", len(d.Limits), d.Counts, d.Differs(), len(want))
	}
}

// TestHostileDrivers: what never ends, ends.
func TestHostileDrivers(t *testing.T) {
	deep := strings.Repeat("(", 1<<16)
	for name, c := range map[string]struct{ text, fault string }{
		"macros that name each other":      {"#define A B + B\n#define B A + A\nvoid f(struct Scsi_Host *h)\n{\n\th->max_sectors = A;\n}\n", ""},
		"a template macro that has itself": {"#define T(x) T(x), T(x)\nstruct scsi_host_template t = { T(1), .max_sectors = 1 };\n", ""},
		"a deep expression":                {"void f(struct Scsi_Host *h)\n{\n\th->max_sectors = " + deep + "1;\n}\n", ""},
		"a template that never closes":     {"struct scsi_host_template t = { .max_sectors = 1,", "never closes"},
		"calls that never close":           {"void f(void)\n{\n" + strings.Repeat("blk_queue_max_segments(", 1<<16), "never closes"},
		"a long template":                  {"struct scsi_host_template t = {" + strings.Repeat(".a = 1,", 10000) + "};", "too long"},
		"a file that includes itself":      {"#include \"x.c\"\n#include \"../../../x.h\"\nvoid f(struct Scsi_Host *h)\n{\n\th->max_sectors = X;\n}\n", ""},
		"a struct at the end":              {"max_sectors struct", ""},
		"bytes that are no text":           {"void f(struct Scsi_Host *h)\n{\n\th->max_sectors = \xff\x00 \x1b[2J;\n}\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			files := limitFiles()
			files["drivers/scsi/x.c"] = &fstest.MapFile{Data: []byte(c.text)}
			tree, err := Read(files)
			if err != nil {
				t.Fatal(err)
			}
			told := false
			for _, f := range tree.Faults {
				told = told || c.fault != "" && strings.Contains(f.Message, c.fault)
			}
			if told != (c.fault != "") || c.fault == "" && len(tree.Faults) > 0 {
				t.Errorf("faults %v, want %q", tree.Faults, c.fault)
			}
			for _, l := range tree.Limits {
				if l.Driver == "x" && l.Expr != "1" && l.Value != nil {
					t.Errorf("a value out of nothing: %s = %d", l.Expr, *l.Value)
				}
			}
		})
	}
}

// TestLimitsOfRealTrees compares with testdata/limits.tsv, which was made by
// hand and by another program.
func TestLimitsOfRealTrees(t *testing.T) {
	data, err := os.ReadFile("testdata/limits.tsv")
	if err != nil {
		t.Fatal(err)
	}
	var facts [][]string
	for _, line := range strings.Split(strings.TrimSpace(string(data)), "\n") {
		if !strings.HasPrefix(line, "#") {
			facts = append(facts, strings.Split(line, "\t"))
		}
	}
	for _, dir := range trees(t) {
		tree, err := Read(os.DirFS(dir))
		if err != nil {
			t.Errorf("%s: %v", dir, err)
			continue
		}
		series := fmt.Sprintf("%d.%d", tree.Release.Major, tree.Release.Minor)
		checked, values := 0, 0
		for _, f := range facts {
			file, field, want := f[0], f[1], f[2]
			if f[3] != "-" && f[3] != series {
				continue
			}
			checked++
			if !slices.ContainsFunc(tree.Limits, func(l Limit) bool {
				return l.File == file && l.Field == field && (l.Value != nil && fmt.Sprint(*l.Value) == want || l.Computed && l.Expr == want)
			}) {
				t.Errorf("%s: %s has no %s = %s", series, file, field, want)
			}
		}
		for _, l := range tree.Limits {
			if l.Value != nil {
				values++
			}
		}
		if checked < 10 {
			t.Errorf("%s: %d facts checked", series, checked)
		}
		t.Logf("%s: %d limits, %d with a value; %d facts checked", series, len(tree.Limits), values, checked)
	}
}
