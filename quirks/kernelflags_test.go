package quirks

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

// TestFlagsAreThoseOfTheKernel compares with what the tables of two kernels
// gave to identities in use, when their own match functions were run on them:
// no flag missed, none too many.
func TestFlagsAreThoseOfTheKernel(t *testing.T) {
	db := builtin(t)
	for _, table := range []struct {
		file    string
		flagged int // identities with flags on either kernel, at least
		column  string
		subject func(map[string]string) *Subject
		short   func(string) string
	}{
		{"testdata/kernel/models.tsv", 500, "quirks linux-", func(r map[string]string) *Subject {
			// An unknown firmware was given to the kernel as an empty one.
			return &Subject{Device: Identity{Space: "ata", Model: KnownText(r["model"]), Firmware: KnownText(r["firmware"])}}
		}, func(flag string) string {
			_, name, _ := strings.Cut(strings.TrimPrefix(flag, "ATA_"), "_")
			return strings.ReplaceAll(strings.ToLower(name), "_", "")
		}},
		{"testdata/kernel/inquiry.tsv", 3, "BLIST linux-", func(r map[string]string) *Subject {
			return &Subject{SCSI: Identity{Space: "scsi", Vendor: KnownText(r["vendor"]), Product: KnownText(r["model"]), Revision: KnownText(r["rev"])}}
		}, func(flag string) string { return strings.TrimPrefix(flag, "BLIST_") }},
	} {
		rows := readRows(t, table.file)
		for _, release := range []string{"6.12.117", "6.1.192"} {
			r, err := kernel.Parse(release)
			if err != nil {
				t.Fatal(err)
			}
			flagged := 0
			for _, row := range rows {
				sub := table.subject(row)
				sub.Kernel = r
				var got []string
				for _, e := range db.Named(sub) {
					for _, f := range e.KernelFlags(r) {
						got = append(got, table.short(f))
					}
				}
				slices.Sort(got)
				want := strings.Fields(row[table.column+release])
				slices.Sort(want)
				if fmt.Sprint(slices.Compact(got)) != fmt.Sprint(want) {
					t.Errorf("%s: %v\n got %v\nwant %v", release, row, got, want)
				}
				if len(want) > 0 {
					flagged++
				}
			}
			if flagged < table.flagged-100 || flagged == 0 {
				t.Errorf("%s: %d identities with flags on %s", table.file, flagged, release)
			}
		}
	}
}

// TestNamesDeviceIgnoresEverythingElse: a rule for one adapter sets the flag of
// the kernel's table whatever the adapter is.
func TestNamesDeviceIgnoresEverythingElse(t *testing.T) {
	e := entryOf(t, `match: {any: [{device: {space: ata, model: "A*"}, adapter: {pci: "1002:*"}, path: [libata]}], none: [{device: {space: ata, model: "AB*"}}, {device: {space: ata, model: "AC*"}, path: [libata]}]}`)
	for text, want := range map[string]Truth{
		`device: {space: ata, model: "AX"}`:                                               True,
		`device: {space: ata, model: "AX"}, path: scsi, adapter: {pci: "1022:1:1:1"}`:     True,
		`device: {space: ata, model: "ABX"}`:                                              False,
		`device: {space: ata, model: "ACX"}, path: libata`:                                True,
		`device: {space: ata, model: "B"}`:                                                False,
		`device: {space: ata}`:                                                            Unknown,
		`device: {space: nvme, model: "AX"}`:                                              False,
		`scsi: {vendor: "ATA", product: "AX Y Z 0123456789"}`:                             False,
		`scsi: {vendor: "ATA", product: "AX Y Z 0123456789"}, path: libata`:               True,
		`scsi: {vendor: "ACME", product: "AX"}, path: scsi, adapter: {pci: "1002:1:1:1"}`: False,
		`path: libata, adapter: {pci: "1002:4391"}`:                                       Unknown,
	} {
		if got := e.NamesDevice(subjectOf(t, text)); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	if got := entryOf(t, `match: {any: [{adapter: {pci: "1002:*"}}]}`).NamesDevice(subjectOf(t, `adapter: {pci: "1002:1:1:1"}`)); got != False {
		t.Errorf("an arm without a device: %s, want false", got)
	}
}

// TestADriversTableAsksForTheAdapter: sata_sil looks its disks up itself.
func TestADriversTableAsksForTheAdapter(t *testing.T) {
	e, ok := builtin(t).Entry("adapter-sil3112-mod15write-hang")
	if !ok {
		t.Fatal("no entry")
	}
	for pci, want := range map[string]Truth{`adapter: {pci: "1095:3112:1095:3112"}`: True, `adapter: {pci: "8086:a353:1028:0924"}`: False, `path: libata`: Unknown} {
		if got := e.NamesDevice(subjectOf(t, `device: {space: ata, model: "ST380023AS"}, `+pci)); got != want {
			t.Errorf("%s: %s, want %s", pci, got, want)
		}
	}
}

func TestARangeThatIsBracketed(t *testing.T) {
	e := entryOf(t, `match: {any: [{device: {space: ata, model: "A"}}]}
kernel: {range: [{tree: mainline, introduced: "6.12", after: "6.7", fixed: "7.5"}, {tree: stable-6.1, introduced: null}]}`)
	for release, want := range map[string]Truth{"6.7": False, "6.8": Unknown, "6.11.3": Unknown, "6.12": True, "7.3": True,
		"6.12.117": Unknown, "7.3.4": Unknown, // may have taken the fix
		"7.5": False, "6.1.192": False,
		"6.6.30": False, // began before it, and no row says that it came
	} {
		if got := e.Match(subjectOf(t, `device: {space: ata, model: "A"}, kernel: "`+release+`"`)).Truth; got != want {
			t.Errorf("%s: %s, want %s", release, got, want)
		}
	}
}

func TestARangeOfWhichOnlyTheEndIsKnown(t *testing.T) {
	e := entryOf(t, `match: {any: [{device: {space: ata, model: "A"}}]}
kernel: {range: [{tree: mainline, introduced: unknown, fixed: "6.8"}, {tree: stable-6.1, introduced: unknown, after: "6.1.20", fixed: "6.1.77"}]}`)
	for release, want := range map[string]Truth{"6.7": Unknown, "6.6.30": Unknown, "6.8": False, "6.8.3": False, "6.1.20": False, "6.1.21": Unknown, "6.1.76": Unknown, "6.1.77": False} {
		if got := e.Match(subjectOf(t, `device: {space: ata, model: "A"}, kernel: "`+release+`"`)).Truth; got != want {
			t.Errorf("%s: %s, want %s", release, got, want)
		}
	}
}

func TestWhichKernelsStayOpen(t *testing.T) {
	e := entryOf(t, `match: {any: [{path: [libata]}]}
kernel: {range: [{tree: mainline, introduced: "6.9", fixed: "6.12"}, {tree: stable-6.1, introduced: "6.1.20", fixed: "6.1.77"}, {tree: proxmox, introduced: "6.8"}]}`)
	for release, want := range map[string]bool{
		"6.10": false, "6.10.3": false, "6.1.50": false, "6.1.0-54-amd64": true, "6.12.0-1-amd64": false,
		"6.8.0-45-generic": true, "5.14.0-427.13.1.el9_4.x86_64": true, "6.8.4-2-pve": false,
	} {
		if got := e.OpenAbout(subjectOf(t, `kernel: "`+release+`"`).Kernel); got != want {
			t.Errorf("%s: %v, want %v", release, got, want)
		}
	}
	if !e.OpenAbout(subjectOf(t, `path: libata`).Kernel) {
		t.Error("an unknown release is not open")
	}
	if e := armEntry(t, `path: [libata]`); e.OpenAbout(subjectOf(t, `path: libata`).Kernel) {
		t.Error("an entry that asks no kernel is open about one")
	}
}

func TestAnAdapterOfWhichOnlyTheVendorIsKnown(t *testing.T) {
	sub := subjectOf(t, `adapter: {pci_vendor: "1002"}`)
	for pci, want := range map[string]Truth{"1002:*:*:*": True, "1022:*:*:*": False, "1002:4391:*:*": Unknown} {
		if got := armEntry(t, `adapter: {pci: "`+pci+`"}`).Match(sub).Truth; got != want {
			t.Errorf("%s: %s, want %s", pci, got, want)
		}
	}
	if sub := subjectOf(t, `adapter: {pci_vendor: "1002", pci: "1022:1:1:1"}`); sub.Adapter["pci"] != "1022:1:1:1" {
		t.Errorf("the quad does not win: %v", sub.Adapter)
	}
}
