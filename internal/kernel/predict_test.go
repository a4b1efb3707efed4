package kernel_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

// sata is a SATA disk of 512-byte blocks on AHCI.
func sata() kernel.Inputs {
	return kernel.Inputs{
		From: parsed("6.1.192"), Observed: kernel.Observed{MaxSectorsKB: kernel.N(1280), MaxHWSectorsKB: kernel.N(32767), OptimalIOSize: kernel.N(0), MinimumIOSize: kernel.N(512)},
		Kind: "disk", Path: "libata", Driver: "ahci", LogicalBlockBytes: kernel.N(512), PhysicalBlockBytes: kernel.N(512),
		CapacityBytes: kernel.N(1 << 40), LBA48: kernel.True, Bridged: kernel.False, IOMMU: "off", SASHost: kernel.False,
		ListedFrom: unlisted, ListedTo: unlisted,
	}
}

var unlisted = kernel.Listing{MaxSectors: kernel.N(0)}

func parsed(text string) kernel.Release {
	r, err := kernel.Parse(text)
	if err != nil {
		panic(err)
	}
	return r
}

// scsiDisk is a disk behind a SCSI host, with what its Block Limits page says in
// blocks of 512 bytes.
func scsiDisk(driver string, hwKB, maxBlocks, optBlocks uint64) kernel.Inputs {
	in := sata()
	in.Path, in.Driver = "scsi", driver
	in.Observed = kernel.Observed{MaxHWSectorsKB: kernel.N(hwKB), OptimalIOSize: kernel.N(0)}
	in.VPDMaxTransferBlocks, in.VPDOptimalTransferBlocks, in.VPDOptimalGranularityBlocks = kernel.N(maxBlocks), kernel.N(optBlocks), kernel.N(0)
	return in
}

// TestPredictByEra holds the rules against the worked examples of the facts
// that they were made from: one device, the releases that mark an era.
func TestPredictByEra(t *testing.T) {
	eras := []string{"3.16.0", "3.19.0", "4.2.0", "4.4.0", "4.12.0", "6.1.100", "6.12.50", "6.18.15"}
	limited := func(n uint64) kernel.Listing { return kernel.Listing{MaxSectors: kernel.N(n), Source: "an entry"} }
	listed := sata()
	listed.ListedFrom, listed.ListedTo, listed.Observed.MaxHWSectorsKB = limited(1024), limited(1024), kernel.N(512)
	sas := scsiDisk("mpt3sas", 16383, 0, 0)
	sas.PhysicalBlockBytes, sas.SASHost = kernel.N(4096), kernel.True
	translated := sas
	translated.IOMMU = "translated"
	bot := scsiDisk("usb-storage", 1024, 0, 0)
	bot.Path, bot.SuperSpeed = "usb-storage", kernel.True
	uas := scsiDisk("uas", 512, 0, 0)
	uas.Path = "uas"
	nvme := sata()
	nvme.Path, nvme.Driver, nvme.MDTSSectors, nvme.Observed.MaxHWSectorsKB = "nvme-pci", "nvme", kernel.N(4096), kernel.N(2048)
	virtio := sata()
	virtio.Path, virtio.Driver, virtio.Observed.MaxHWSectorsKB = "virtio-blk", "virtio_blk", kernel.N(1<<31-1)
	for _, c := range []struct {
		name string
		in   kernel.Inputs
		want []uint64 // KiB, by era
	}{
		{"SATA on AHCI", sata(), []uint64{512, 32767, 32767, 1280, 1280, 1280, 1280, 4096}},
		{"SATA that the kernel's table holds at 1024 sectors", listed, []uint64{512, 512, 512, 512, 512, 512, 512, 512}},
		{"SAS disk, the IOMMU gives no hint", sas, []uint64{512, 16383, 16383, 1280, 1280, 1280, 16380, 16380}},
		{"SAS disk, translating IOMMU", translated, []uint64{512, 16383, 16383, 1280, 1280, 128, 1280, 4096}},
		{"MAXIMUM TRANSFER LENGTH of 512 KiB", scsiDisk("qla2xxx", 16383, 1024, 0), []uint64{512, 512, 512, 1280, 512, 512, 512, 512}},
		{"OPTIMAL TRANSFER LENGTH of 64 KiB", scsiDisk("qla2xxx", 16383, 0, 128), []uint64{512, 16383, 16383, 64, 64, 64, 1280, 4096}},
		{"OPTIMAL 8 MiB, MAXIMUM 16 MiB", scsiDisk("qla2xxx", 16384, 32768, 16384), []uint64{512, 16384, 16384, 8192, 8192, 8192, 8192, 8192}},
		{"USB 3, bulk only", bot, []uint64{512, 1024, 1024, 1024, 1024, 1024, 1024, 1024}},
		{"UAS", uas, []uint64{512, 512, 512, 512, 512, 512, 512, 512}},
		{"NVMe, MDTS 2 MiB", nvme, []uint64{512, 2048, 2048, 1280, 1280, 1280, 1280, 2048}},
		{"virtio-blk", virtio, []uint64{512, 1<<31 - 1, 1<<31 - 1, 1280, 1280, 1280, 1280, 4096}},
	} {
		for i, era := range eras {
			got := kernel.Predict(parsed(era), c.in)
			if got.MaxSectorsKB != kernel.N(c.want[i]) {
				t.Errorf("%s on %s: %+v by %s, want %d KiB; because %q", c.name, era, got.MaxSectorsKB, got.Rule, c.want[i], got.Because)
			}
			if got.Rule == "" || len(got.Because) == 0 {
				t.Errorf("%s on %s: no rule or reason: %+v", c.name, era, got)
			}
		}
	}
}

// TestPredictMarks shows what lowers the certainty, and that it is said.
func TestPredictMarks(t *testing.T) {
	with := func(f func(*kernel.Inputs)) kernel.Inputs { in := sata(); f(&in); return in }
	for _, c := range []struct {
		name, to string
		in       kernel.Inputs
		want     kernel.Certainty
		missing  string // part of what is said to be missing
	}{
		{"all known, booted rules", "6.18.15", sata(), kernel.High, ""},
		{"an era that nobody booted", "3.19.0", sata(), kernel.SourceOnly, ""},
		{"newer than the newest", "7.9.1", sata(), kernel.Low, "rules of 7.9.1"},
		{"a vendor's kernel", "5.14.0-427.13.1.el9_4.x86_64", sata(), kernel.Low, "rhel"},
		{"no release", "", sata(), kernel.NoAnswer, "release"},
		{"no Block Limits page", "6.18.15", with(func(in *kernel.Inputs) { in.Path = "scsi"; in.Driver = "qla2xxx" }), kernel.Low, "Block Limits"},
		{"no logical block size", "6.18.15", with(func(in *kernel.Inputs) { in.LogicalBlockBytes = kernel.Num{} }), kernel.Low, "logical block size"},
		{"a list that may or may not hold it", "6.18.15", with(func(in *kernel.Inputs) { in.ListedTo.Low = true }), kernel.Low, "lists the device"},
		{"nothing observed of an adapter that decides", "6.18.15", with(func(in *kernel.Inputs) {
			in.Path, in.Driver, in.Observed = "virtio-blk", "virtio_blk", kernel.Observed{}
		}), kernel.NoAnswer, "max_hw_sectors_kb"},
		{"a SAS host and an unknown IOMMU", "6.12.50", with(func(in *kernel.Inputs) {
			*in = scsiDisk("mpt3sas", 16383, 0, 0)
			in.SASHost, in.IOMMU = kernel.True, ""
		}), kernel.Low, "IOMMU"},
	} {
		to := kernel.Release{}
		if c.to != "" {
			to = parsed(c.to)
		}
		got := kernel.Predict(to, c.in)
		said := fmt.Sprint(got.Missing)
		if got.Certainty != c.want || c.missing == "" && len(got.Missing) > 0 || !strings.Contains(said, c.missing) {
			t.Errorf("%s: certainty %q, missing %q; want %q, %q", c.name, got.Certainty, said, c.want, c.missing)
		}
		if got.Beyond != (c.to == "7.9.1") {
			t.Errorf("%s: beyond %v", c.name, got.Beyond)
		}
	}
	if got := kernel.Predict(parsed("7.9.1"), sata()).MaxSectorsKB; got != kernel.N(4096) {
		t.Errorf("a newer kernel: %+v, want the newest rule's 4096", got)
	}
}

// TestPredictUser lays an admin's value over the default.
func TestPredictUser(t *testing.T) {
	for _, c := range []struct {
		name, to       string
		user, hw, want uint64 // KiB
		rule           string
	}{
		{"lower", "6.18.15", 512, 32767, 512, "user"},
		{"higher than the default", "6.18.15", 16384, 32767, 16384, "user"},
		{"above the hardware, cut", "6.18.15", 16384, 2048, 2048, "user"},
		{"above the hardware, refused", "6.1.192", 16384, 2048, 1280, "sd-fallback"},
		{"odd KiB on 4 KiB blocks", "6.18.15", 513, 32767, 512, "user"},
	} {
		in := scsiDisk("qla2xxx", c.hw, 0, 0)
		in.UserMaxSectorsKB = kernel.N(c.user)
		if strings.Contains(c.name, "4 KiB") {
			in.LogicalBlockBytes, in.PhysicalBlockBytes = kernel.N(4096), kernel.N(4096)
		}
		got := kernel.Predict(parsed(c.to), in)
		if got.MaxSectorsKB != kernel.N(c.want) || got.Rule != c.rule {
			t.Errorf("%s: %+v by %s, want %d by %s", c.name, got.MaxSectorsKB, got.Rule, c.want, c.rule)
		}
		if d := got.DefaultKB.V; d != min(c.hw, 4096) && c.to == "6.18.15" {
			t.Errorf("%s: default %d", c.name, d)
		}
	}
}

// TestPredictListed follows the kernel's own tables from one release to
// another: a row that comes, one that goes, and what it hid.
func TestPredictListed(t *testing.T) {
	held := kernel.Listing{MaxSectors: kernel.N(1024), Source: "an entry"}
	synology := scsiDisk("virtio_scsi", 512, 0, 0) // as 6.1 shows it
	synology.ListedFrom = held
	if got := kernel.Predict(parsed("6.12.117"), synology); got.MaxSectorsKB != kernel.N(1280) || got.MaxHWSectorsKB != kernel.N(32767) || got.Certainty != kernel.Low {
		t.Errorf("a row that goes, alone on its host: %+v", got)
	}
	synology.HostMaxHWSectorsKB = kernel.N(32767)
	if got := kernel.Predict(parsed("6.12.117"), synology); got.MaxHWSectorsKB != kernel.N(32767) || got.Certainty != kernel.High {
		t.Errorf("a row that goes, with another disk on the host: %+v", got)
	}
	dell := sata()
	dell.ListedTo = kernel.Listing{MaxSectors: kernel.N(8191), Source: "an entry"}
	if got := kernel.Predict(parsed("7.3.4"), dell); got.MaxSectorsKB != kernel.N(4095) || got.MaxHWSectorsKB != kernel.N(4095) || got.MaxSectors != kernel.N(8191) {
		t.Errorf("a row that comes: %+v", got)
	}
	bridge := sata()
	bridge.Bridged, bridge.Observed.MaxHWSectorsKB = kernel.True, kernel.N(128)
	if got := kernel.Predict(parsed("7.3.4"), bridge).MaxSectorsKB; got != kernel.N(128) {
		t.Errorf("behind a bridge: %+v", got)
	}
	bridge.ListedTo.NoBridge = kernel.True
	if got := kernel.Predict(parsed("7.3.4"), bridge).MaxSectorsKB; got != kernel.N(4096) {
		t.Errorf("behind a bridge that the table knows: %+v", got)
	}
}

// TestPredictHosts follows the limits that drivers set for their hosts.
func TestPredictHosts(t *testing.T) {
	for _, c := range []struct {
		driver, from, to string
		seen, want       uint64 // max_hw_sectors_kb
	}{
		{"hisi_sas_v3_hw", "5.19.0", "6.1.0", 128, 512},
		{"hisi_sas_v3_hw", "6.1.0", "5.19.0", 512, 128},
		{"pm80xx", "6.12.0", "6.13.0", 512, 4096},
		{"qla2xxx", "6.12.0", "6.13.0", 512, 512},
	} {
		in := scsiDisk(c.driver, c.seen, 0, 0)
		in.From = parsed(c.from)
		if got := kernel.Predict(parsed(c.to), in).MaxHWSectorsKB; got != kernel.N(c.want) {
			t.Errorf("%s from %s to %s: %+v, want %d", c.driver, c.from, c.to, got, c.want)
		}
	}
}

func TestPredictStack(t *testing.T) {
	member := func(to string, in kernel.Inputs) kernel.Prediction { return kernel.Predict(parsed(to), in) }
	plain := sata()
	low := sata()
	low.UserMaxSectorsKB = kernel.N(256)
	big := scsiDisk("qla2xxx", 32767, 0, 16384) // OPTIMAL TRANSFER LENGTH 8 MiB
	for _, c := range []struct {
		name        string
		kind, level string
		target      string
		chunk, n    uint64
		members     []kernel.Inputs
		want        map[string][3]uint64 // by release: max_sectors_kb, max_hw_sectors_kb, optimal_io_size
	}{
		{"linear map", "dm", "", "linear", 0, 0, []kernel.Inputs{plain}, map[string][3]uint64{"6.1.192": {1280, 32767, 0}, "6.18.15": {4096, 32767, 0}}},
		{"map over a member held by an admin", "dm", "", "linear", 0, 0, []kernel.Inputs{low}, map[string][3]uint64{"6.1.192": {256, 32767, 0}, "6.18.15": {256, 32767, 0}}},
		{"map over an optimum above the cap", "dm", "", "linear", 0, 0, []kernel.Inputs{big}, map[string][3]uint64{"6.1.192": {8192, 32767, 8 << 20}, "6.18.15": {8192, 32767, 8 << 20}}},
		{"striped map", "dm", "", "striped", 64 << 10, 2, []kernel.Inputs{plain, plain}, map[string][3]uint64{"6.1.192": {1280, 32767, 128 << 10}, "6.18.15": {4096, 32767, 128 << 10}}},
		{"RAID 0", "md", "raid0", "", 512 << 10, 2, []kernel.Inputs{plain, plain}, map[string][3]uint64{"6.1.192": {512, 512, 1 << 20}, "6.18.15": {512, 512, 1 << 20}}},
		{"RAID 1", "md", "raid1", "", 0, 2, []kernel.Inputs{plain, big}, map[string][3]uint64{"6.1.192": {1280, 32767, 8 << 20}, "6.18.15": {8192, 32767, 8 << 20}}},
		{"RAID 5 over a member held by an admin", "md", "raid5", "", 512 << 10, 3, []kernel.Inputs{plain, plain, low},
			map[string][3]uint64{"5.10.223": {1280, 1<<31 - 1, 1 << 20}, "6.1.192": {1024, 1024, 1 << 20}, "7.3.4": {256, 1024, 1 << 20}}},
		{"RAID 6 of wide stripes", "md", "raid6", "", 512 << 10, 10, []kernel.Inputs{plain, plain}, map[string][3]uint64{"6.1.192": {1024, 1024, 4 << 20}, "7.3.4": {4096, 4096, 4 << 20}}},
		{"RAID 10", "md", "raid10", "", 512 << 10, 4, []kernel.Inputs{plain, plain}, map[string][3]uint64{"6.1.192": {1280, 32767, 1 << 20}}},
	} {
		for to, want := range c.want {
			in := kernel.Inputs{From: parsed("6.1.192"), Kind: c.kind, Path: "other", Level: c.level, Target: c.target,
				Observed: kernel.Observed{OptimalIOSize: kernel.N(c.want["6.1.192"][2]), MaxHWSectorsKB: kernel.N(c.want["6.1.192"][1])}}
			if c.chunk != 0 {
				in.ChunkBytes, in.Disks = kernel.N(c.chunk), kernel.N(c.n)
			}
			for _, m := range c.members {
				in.Members = append(in.Members, member(to, m))
				from := member("6.1.192", m)
				in.MembersFrom = append(in.MembersFrom, kernel.Observed{MaxSectorsKB: from.MaxSectorsKB, MaxHWSectorsKB: from.MaxHWSectorsKB, OptimalIOSize: from.OptimalIOSize})
			}
			got := kernel.Predict(parsed(to), in)
			if g := [3]uint64{got.MaxSectorsKB.V, got.MaxHWSectorsKB.V, got.OptimalIOSize.V}; g != want {
				t.Errorf("%s on %s: %v, want %v; because %q, missing %v", c.name, to, g, want, got.Because, got.Missing)
			}
		}
	}
}

// Whatever the inputs, a prediction is no larger than the hardware, and the
// same twice.
func FuzzPredict(f *testing.F) {
	f.Add("6.18.15", "libata", uint64(32767), uint64(0), uint64(0), uint64(0), uint64(512), uint64(4096), uint64(1<<40), uint64(0), byte(0))
	f.Add("6.1.192", "scsi", uint64(16383), uint64(65535), uint64(128), uint64(8), uint64(4096), uint64(4096), uint64(3<<40), uint64(4095), byte(0xff))
	f.Add("4.2.0", "nvme-pci", uint64(4096), uint64(1<<40), uint64(1<<63), uint64(7), uint64(3), uint64(0), uint64(1<<63), uint64(1<<62), byte(9))
	f.Fuzz(func(t *testing.T, to, path string, hw, vmax, vopt, vgran, lbs, pbs, capacity, user uint64, bits byte) {
		r, err := kernel.Parse(to)
		if err != nil {
			return
		}
		in := kernel.Inputs{From: parsed("6.1.192"), Kind: []string{"disk", "loop", "dm", "md"}[bits&3], Path: path, LogicalBlockBytes: kernel.N(lbs), PhysicalBlockBytes: kernel.N(pbs),
			CapacityBytes: kernel.N(capacity), VPDMaxTransferBlocks: kernel.N(vmax), VPDOptimalTransferBlocks: kernel.N(vopt), VPDOptimalGranularityBlocks: kernel.N(vgran),
			SASHost: kernel.Truth(bits >> 2 & 3 % 3), IOMMU: []string{"", "off", "translated", "passthrough"}[bits>>4&3], ListedFrom: unlisted, ListedTo: unlisted,
			ChunkBytes: kernel.N(vgran), Disks: kernel.N(vopt), Level: []string{"raid0", "raid10", "raid5", "linear"}[bits>>6], MaxSegmentBytes: kernel.N(vmax),
			Protection: kernel.Integrity{Registered: kernel.True, TupleBytes: kernel.N(vopt), IntervalBytes: kernel.N(lbs)}}
		if hw != 0 {
			in.Observed = kernel.Observed{MaxHWSectorsKB: kernel.N(hw & (1<<52 - 1)), OptimalIOSize: kernel.N(vopt)}
		}
		if user != 0 {
			in.UserMaxSectorsKB = kernel.N(user & (1<<52 - 1))
		}
		if in.Kind == "dm" || in.Kind == "md" {
			m := in
			m.Kind, m.Path = "disk", "scsi"
			p := kernel.Predict(r, m)
			in.Members = []kernel.Prediction{p, p}
			in.MembersFrom = []kernel.Observed{m.Observed, m.Observed}
		}
		a, b := kernel.Predict(r, in), kernel.Predict(r, in)
		if fmt.Sprint(a) != fmt.Sprint(b) {
			t.Errorf("twice: %+v and %+v", a, b)
		}
		if a.MaxSectors.Known && a.MaxHWSectors.Known && a.MaxSectors.V > a.MaxHWSectors.V && a.MaxHWSectors.V != 0 {
			t.Errorf("max_sectors %d above the hardware's %d by %s", a.MaxSectors.V, a.MaxHWSectors.V, a.Rule)
		}
		if a.Certainty == kernel.High && len(a.Missing) > 0 || a.MaxSectors.Known != a.MaxSectorsKB.Known {
			t.Errorf("%+v", a)
		}
		if slices.Contains(a.Because, "") {
			t.Error("an empty reason")
		}
	})
}
