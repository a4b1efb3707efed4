package checker_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/internal/sysfstree"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/quirks"
	"github.com/quirkcheck/quirkcheck/schema"
)

// obj and list spell subjects shorter.
type obj = map[string]any
type list = []any

func mpath(requestBased any, limit int, paths ...int) obj {
	members := list{}
	for _, p := range paths {
		members = append(members, obj{"max_sectors_kb": p})
	}
	return obj{"path": "dm", "kernel": "6.12.90", "stack": obj{"kind": "dm", "target": "multipath", "request_based": requestBased, "members": members}, "limits": obj{"max_sectors_kb": limit}}
}

func bioOver(kernel string, limit, memberHW int) obj {
	m := obj{"path": "md", "stack": obj{"kind": "md", "level": "raid1", "members": list{obj{"max_sectors_kb": 512, "max_hw_sectors_kb": memberHW}}}, "limits": obj{"max_sectors_kb": limit}}
	if kernel != "" {
		m["kernel"] = kernel
	}
	return m
}

func below(kernel string, sectors int, above ...any) obj {
	m := obj{"path": "brd", "stack": obj{"role": "member", "above": list(above)}, "limits": obj{"max_sectors": sectors, "logical_block_size": 512}}
	if kernel != "" {
		m["kernel"] = kernel
	}
	return m
}

func overOptimal(opt int, readAhead int, members ...int) obj {
	l := list{}
	for _, m := range members {
		l = append(l, obj{"optimal_io_size": m})
	}
	return obj{"path": "dm", "stack": obj{"kind": "dm", "members": l}, "limits": obj{"optimal_io_size": opt}, "settings": obj{"read_ahead_kb": readAhead}}
}

func striped(kernel string, chunk, kib int) obj {
	m := obj{"path": "dm", "stack": obj{"kind": "dm", "target": "striped"}, "limits": obj{"chunk_bytes": chunk, "max_sectors_kb": kib}}
	if kernel != "" {
		m["kernel"] = kernel
	}
	return m
}

func array(level string, chunk, disks, kib int) obj {
	return obj{"path": "md", "stack": obj{"kind": "md", "level": level}, "limits": obj{"chunk_bytes": chunk, "raid_disks": disks, "max_sectors_kb": kib}}
}

// TestStackChecks has for each check what it fires for, and its near misses.
func TestStackChecks(t *testing.T) {
	block4k := obj{"kind": "dm", "target": "integrity", "logical_block_size": 4096}
	serial := func(space, serial string) obj {
		return obj{"device": obj{"space": space, "model": "ACME", "firmware": "1", "serial": serial}}
	}
	fired := map[string]bool{}
	silent := map[string]bool{}
	for _, c := range []struct {
		check   string
		name    string
		subject obj
		want    checker.Verdict // "" for silent
		wanted  string
	}{
		{"stack-exceeds-member", "a map above a path", mpath(true, 1280, 512, 512), checker.Affected, "max_sectors_kb 512"},
		{"stack-exceeds-member", "by one KiB", mpath(true, 513, 512, 1024), checker.Affected, "max_sectors_kb 512"},
		{"stack-exceeds-member", "not known whether it clones", mpath(nil, 1280, 512), checker.Unknown, "max_sectors_kb 512"},
		{"stack-exceeds-member", "at its lowest path", mpath(true, 512, 512, 1024), "", ""},
		{"stack-exceeds-member", "a map that resubmits bios", mpath(false, 1280, 512, 512), "", ""},
		{"stack-exceeds-member", "no path's limit is known", mpath(true, 1280), "", ""},
		{"stack-exceeds-member", "md before 4.3 above what a member can transfer", bioOver("4.2.0", 1024, 128), checker.Affected, "max_sectors_kb 128"},
		{"stack-exceeds-member", "md before 4.3 above a member's soft limit only", bioOver("4.2.0", 1024, 1024), "", ""},
		{"stack-exceeds-member", "md from 4.3 on: the member splits", bioOver("4.3.0", 1024, 128), "", ""},
		{"stack-exceeds-member", "md on an unknown kernel", bioOver("", 1024, 128), "", ""},

		{"multipath-paths-differ", "a path came back with the default", mpath(true, 4096, 4096, 1280), checker.Affected, "max_sectors_kb 1280 on all of them and on the map"},
		{"multipath-paths-differ", "the map is within the lowest", mpath(true, 1280, 4096, 1280), checker.Mitigated, "max_sectors_kb 1280 on all of them and on the map"},
		{"multipath-paths-differ", "not known whether it clones", mpath(nil, 4096, 4096, 1280), checker.Unknown, "max_sectors_kb 1280 on all of them and on the map"},
		{"multipath-paths-differ", "all the same", mpath(true, 1280, 1280, 1280), "", ""},
		{"multipath-paths-differ", "a map that resubmits bios", mpath(false, 4096, 4096, 1280), "", ""},
		{"multipath-paths-differ", "one path", mpath(true, 4096, 1280), "", ""},

		{"limit-misaligned-for-stack", "255 sectors below 4 KiB blocks", below("5.10.0", 255, block4k), checker.Affected, "max_sectors_kb 124"},
		{"limit-misaligned-for-stack", "the largest block above decides", below("5.10.0", 254, obj{"kind": "md", "logical_block_size": 1024}, block4k), checker.Affected, "max_sectors_kb 124"},
		{"limit-misaligned-for-stack", "a multiple", below("5.10.0", 248, block4k), "", ""},
		{"limit-misaligned-for-stack", "blocks of its own size above", below("5.10.0", 255, obj{"kind": "md", "logical_block_size": 512}), "", ""},
		{"limit-misaligned-for-stack", "a kernel that rounds", below("5.10.20", 255, block4k), "", ""},
		{"limit-misaligned-for-stack", "a newer kernel", below("6.1.0", 255, block4k), "", ""},
		{"limit-misaligned-for-stack", "a kernel that may round", below("5.4.100", 255, block4k), checker.Unknown, "max_sectors_kb 124"},
		{"limit-misaligned-for-stack", "the device above has an aligned limit", below("5.10.0", 255, obj{"kind": "dm", "logical_block_size": 4096, "max_sectors_kb": 124}), "", ""},

		{"dm-io-opt", "4 GiB", overOptimal(4293918720, 0, 16773120), checker.Affected, ""},
		{"dm-io-opt", "1 GiB of members that say nothing", overOptimal(1<<30, 0, 0, 0), checker.Affected, ""},
		{"dm-io-opt", "inherited from a USB bridge", overOptimal(33553920, 0, 33553920), checker.Affected, ""},
		{"dm-io-opt", "a stripe of the array's own", overOptimal(1<<20, 0, 0, 0), "", ""},
		{"dm-io-opt", "a real preference below", overOptimal(1<<20, 0, 1<<19), "", ""},
		{"dm-io-opt", "a bogus one below that it did not take over", overOptimal(1<<20, 0, 33553920), "", ""},
		{"dm-io-opt", "none", overOptimal(0, 0, 33553920), "", ""},
		{"dm-io-opt", "a disk, which has no members", obj{"path": "scsi", "limits": obj{"optimal_io_size": 4293918720}}, "", ""},

		{"read-ahead-from-io-opt", "twice 16 MiB", obj{"path": "scsi", "limits": obj{"optimal_io_size": 16773120}, "settings": obj{"read_ahead_kb": 32760}}, checker.Affected, "read_ahead_kb 128, the kernel's default"},
		{"read-ahead-from-io-opt", "twice 4 GiB, cut to 32 bits", overOptimal(4293918720, 4192256, 16773120), checker.Affected, "read_ahead_kb 128, the kernel's default"},
		{"read-ahead-from-io-opt", "set by hand to something else", obj{"path": "scsi", "limits": obj{"optimal_io_size": 16773120}, "settings": obj{"read_ahead_kb": 8192}}, "", ""},
		{"read-ahead-from-io-opt", "the kernel's default", obj{"path": "uas", "limits": obj{"optimal_io_size": 33553920}, "settings": obj{"read_ahead_kb": 128}}, "", ""},
		{"read-ahead-from-io-opt", "twice a real stripe", obj{"path": "scsi", "limits": obj{"optimal_io_size": 1 << 20}, "settings": obj{"read_ahead_kb": 2048}}, "", ""},
		{"read-ahead-from-io-opt", "no optimal size", obj{"path": "libata", "limits": obj{"optimal_io_size": 0}, "settings": obj{"read_ahead_kb": 8192}}, "", ""},

		{"striped-chunk-below-limit", "64 KiB chunks on 5.8", striped("5.8", 65536, 1280), checker.Affected, ""},
		{"striped-chunk-below-limit", "on 5.5.16, which took the change", striped("5.5.16", 65536, 1280), checker.Affected, ""},
		{"striped-chunk-below-limit", "somewhere in 5.4.y", striped("5.4.150", 65536, 1280), checker.Unknown, ""},
		{"striped-chunk-below-limit", "kernel not known", striped("", 65536, 1280), checker.Unknown, ""},
		{"striped-chunk-below-limit", "on 5.5.15", striped("5.5.15", 65536, 1280), "", ""},
		{"striped-chunk-below-limit", "on 5.10", striped("5.10", 65536, 1280), "", ""},
		{"striped-chunk-below-limit", "on 6.12", striped("6.12.90", 65536, 1280), "", ""},
		{"striped-chunk-below-limit", "a chunk as large as the limit", striped("5.8", 1280<<10, 1280), "", ""},

		{"raid-stripe-above-limit", "RAID 6 of 10 disks", array("raid6", 512<<10, 10, 1024), checker.Affected, "max_sectors_kb 4096, a full stripe"},
		{"raid-stripe-above-limit", "at the stripe", array("raid5", 512<<10, 3, 1024), "", ""},
		{"raid-stripe-above-limit", "one KiB below", array("raid5", 512<<10, 3, 1023), checker.Affected, "max_sectors_kb 1024, a full stripe"},
		{"raid-stripe-above-limit", "RAID 10 has no parity", array("raid10", 512<<10, 10, 1024), "", ""},
		{"raid-stripe-above-limit", "disks not known", array("raid5", 512<<10, 0, 1024), "", ""},
		{"raid-stripe-above-limit", "as many disks as parity", array("raid6", 512<<10, 2, 1), "", ""},

		{"serial-fault-code", "Intel 320", serial("ata", "BAD_CTX 00000150"), checker.Affected, ""},
		{"serial-fault-code", "the code alone", serial("ata", "  BAD_CTX"), checker.Affected, ""},
		{"serial-fault-code", "through SCSI", obj{"scsi": obj{"vendor": "ATA", "product": "INTEL", "serial": "BAD_CTX 1"}}, checker.Affected, ""},
		{"serial-fault-code", "a serial number that starts like it", serial("ata", "BAD_CTX150"), "", ""},
		{"serial-fault-code", "a serial number", serial("ata", "CVPR1234BAD_CTX"), "", ""},
		{"serial-fault-code", "none", obj{"device": obj{"space": "ata", "model": "ACME", "firmware": "1"}}, "", ""},
	} {
		t.Run(c.check+"/"+c.name, func(t *testing.T) {
			j := checker.Judge(subject(t, c.subject), builtin(t), checker.Policy{})
			i := slices.IndexFunc(j.Findings, func(f checker.Finding) bool { return f.Quirk == c.check })
			if i < 0 {
				if c.want != "" {
					t.Fatalf("silent, want %s; findings %+v", c.want, j.Findings)
				}
				silent[c.check] = true
				return
			}
			fired[c.check] = true
			f := j.Findings[i]
			wanted := ""
			if f.Wanted != nil {
				wanted = *f.Wanted
			}
			if f.Verdict != c.want || wanted != c.wanted {
				t.Errorf("%s, wants %q; want %q, %q (%+v)", f.Verdict, wanted, c.want, c.wanted, f)
			}
			b, ok := checker.BuiltinOf(c.check)
			if !ok || f.Observed == nil || len(f.References) == 0 || f.Severity != b.Severity || f.Effect != b.Effect || b.About == "" || f.Title == "" {
				t.Errorf("finding %+v of check %+v", f, b)
			}
			if k, ok := subject(t, c.subject).MaxSectorsKiB(); ok && (c.check == "dm-io-opt" || c.check == "read-ahead-from-io-opt") && j.Recommended.MaxSectorsKB != nil && *j.Recommended.MaxSectorsKB < k {
				t.Error("lowers max_sectors, which is no cure here")
			}
		})
	}
	// A check without both is not tested.
	for _, id := range []string{"stack-exceeds-member", "multipath-paths-differ", "limit-misaligned-for-stack", "dm-io-opt", "read-ahead-from-io-opt",
		"striped-chunk-below-limit", "raid-stripe-above-limit", "serial-fault-code"} {
		if !fired[id] || !silent[id] {
			t.Errorf("%s: fired %v, silent %v", id, fired[id], silent[id])
		}
	}
}

func TestStackBoundsTheMapAlone(t *testing.T) {
	for _, c := range []struct {
		name            string
		subject         obj
		safe, recommend uint64
	}{
		{"a map that clones", mpath(true, 4096, 4096, 1280), 2560, 1280},
		{"at its paths", mpath(true, 1280, 1280), 2560, 1280},
		{"a map that resubmits bios is bound by nothing below", mpath(false, 4096, 1280), 0, 4096},
		{"md", bioOver("6.1.0", 1024, 128), 0, 1024},
		{"misaligned", below("5.10.0", 255, obj{"kind": "dm", "logical_block_size": 4096}), 248, 124},
		{"misaligned, on a kernel of which that is not known", below("5.4.100", 255, obj{"kind": "dm", "logical_block_size": 4096}), 0, 127},
	} {
		j := checker.Judge(subject(t, c.subject), builtin(t), checker.Policy{})
		if got := deref(j.Safe.MaxSectors); got != c.safe {
			t.Errorf("%s: safe %d sectors, want %d", c.name, got, c.safe)
		}
		if got := deref(j.Recommended.MaxSectorsKB); got != c.recommend {
			t.Errorf("%s: recommended %d KiB, want %d", c.name, got, c.recommend)
		}
	}
}

// TestStacksOfAMachine reads a whole machine: what stands on what, and which
// findings come of it, each the device's own.
func TestStacksOfAMachine(t *testing.T) {
	r := scan(t, sysfstree.Stacks(), checker.Policy{})
	got := map[string]string{}
	for _, f := range r.Findings {
		if f.Device == nil { // what the kernel may do
			continue
		}
		got[*f.Device] = strings.TrimSpace(got[*f.Device] + " " + f.Quirk + ":" + string(f.Verdict))
	}
	disk := "kernel-sas-io-opt-performance:affected read-ahead-from-io-opt:affected" // which takes the place of bogus-optimal-io-size
	want := map[string]string{
		"sda": disk, "sdb": disk, "sdc": disk,
		"md0":  "dm-io-opt:affected read-ahead-from-io-opt:affected",
		"dm-0": "dm-io-opt:affected",
		"dm-1": "multipath-paths-differ:affected stack-exceeds-member:affected",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	type stack struct{ target, level, below, above string }
	describe := func(levels []checker.Level) string {
		var out []string
		for _, l := range levels {
			s := l.Name
			if l.Via != "" {
				s += "(" + l.Via + ")"
			}
			out = append(out, s)
		}
		return strings.Join(out, " ")
	}
	stacks := map[string]stack{}
	for _, d := range r.Devices {
		s := stack{below: describe(d.Below), above: describe(d.Above)}
		if d.Stack != nil && d.Stack.Target != nil {
			s.target = *d.Stack.Target
		}
		if d.Stack != nil && d.Stack.Level != nil {
			s.level = *d.Stack.Level
		}
		stacks[d.Name] = s
	}
	for name, want := range map[string]stack{
		"sda":  {above: "md0(sda1)"},
		"md0":  {level: "raid5", below: "sda(sda1) sdb(sdb1) sdc(sdc1)", above: "dm-0"},
		"dm-0": {target: "crypt", below: "md0"},
		"dm-1": {target: "multipath", below: "sdd sde"},
		"dm-3": {target: "striped", below: "sdh sdi"},
		"sdi":  {above: "dm-3"},
	} {
		if stacks[name] != want {
			t.Errorf("%s: %+v, want %+v", name, stacks[name], want)
		}
	}
	for _, d := range r.Devices {
		if d.Name == "sde" && (d.Target == nil || d.Target.Name != "0x5000000000000010" || d.Target.HostPort != "0x2100000000000001") {
			t.Errorf("sde's FC target: %+v", d.Target)
		}
		if d.Name == "dm-3" && (deref(d.Stack.ChunkBytes) != 65536 || *d.Stack.Disks != 2) {
			t.Errorf("dm-3: %+v", d.Stack)
		}
	}
}

// TestPartOfAMachineIsJudgedLikeTheWhole reads one device at a time, with its
// stack as peers.
func TestPartOfAMachineIsJudgedLikeTheWhole(t *testing.T) {
	m := sysfstree.Stacks()
	whole := scan(t, m, checker.Policy{})
	db := builtin(t)
	for i, d := range whole.Devices {
		inv, err := probe.Read(t.Context(), m, probe.Options{Only: []string{d.Name}, Related: true})
		if err != nil {
			t.Fatal(err)
		}
		part := checker.Check(inv, db, checker.Policy{Now: now})
		if len(part.Devices) != 1 {
			t.Fatalf("%s: %d devices", d.Name, len(part.Devices))
		}
		if diff := cmp.Diff(whole.Devices[i], part.Devices[0]); diff != "" {
			t.Errorf("%s (-whole +part)\n%s", d.Name, diff)
		}
		var of []checker.Finding
		for _, f := range whole.Findings {
			if f.Device != nil && *f.Device == d.Name {
				of = append(of, f)
			}
		}
		own := slices.DeleteFunc(slices.Clone(part.Findings), func(f checker.Finding) bool { return f.Device == nil })
		if diff := cmp.Diff(of, own, cmp.Transformer("nil", func(f []checker.Finding) int { return len(f) })); diff != "" {
			t.Errorf("%s: findings (-whole +part)\n%s", d.Name, diff)
		}
	}
}

// TestKindsInTheReport: what kinds of devices have of their own reaches the
// JSON, which follows its schema.
func TestKindsInTheReport(t *testing.T) {
	m := sysfstree.Stacks()
	const card = "platform/mmc/mmc_host/mmc0/mmc0:0001"
	m.Block(card+"/block/mmcblk0", map[string]string{"queue/zoned": "host-managed"})
	m.Link("sys/devices/"+card+"/block/mmcblk0/device", "../../../mmc0:0001")
	m.Files("sys/devices/"+card, map[string]string{"name": "DG4016", "manfid": "0x000045", "oemid": "0x0100", "fwrev": "0x36"})
	m.PCI("0000:00:09.0", "hpsa")
	m.SCSI("pci0000:00/0000:00:09.0/host9", "9:1:0:0", "sdz", map[string]string{"raid_level": "RAID 5"}, nil)
	subsys, ctrl := "virtual/nvme-subsystem/nvme-subsys3", "virtual/nvme-fabrics/ctl/nvme3"
	m.Block(subsys+"/nvme3n1", nil)
	m.Link("sys/devices/"+subsys+"/nvme3n1/device", "../../nvme-subsys3")
	m.Files("sys/devices/"+subsys, map[string]string{"model": "ACME ARRAY", "subsysnqn": "nqn.2014-08.org.example:array"})
	m.Link("sys/devices/"+subsys+"/nvme3", "../../nvme-fabrics/ctl/nvme3")
	m.Block(ctrl+"/nvme3c3n1", map[string]string{"hidden": "1", "ana_state": "optimized", "queue/max_sectors_kb": "512"})
	m.Link("sys/devices/"+ctrl+"/nvme3c3n1/device", "../../nvme3")
	m.Files("sys/devices/"+ctrl, map[string]string{"state": "live", "transport": "tcp", "address": "traddr=192.0.2.1", "model": "ACME ARRAY", "subsysnqn": "nqn.2014-08.org.example:array"})
	m.Virtual("bcache0", nil)
	m.Over("bcache0", "sdi")

	r := scan(t, m, checker.Policy{})
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
		t.Error(v)
	}
	devices := map[string]*checker.Device{}
	for _, d := range r.Devices {
		devices[d.Name] = d
	}
	if d := devices["mmcblk0"]; d.Identity.MMC == nil || d.Identity.MMC.Name != "DG4016" || d.Zoned == nil || *d.Zoned != "host-managed" || d.Verdict != checker.NoKnownQuirk {
		t.Errorf("card: %+v", d)
	}
	if d := devices["sdz"]; d.Volume == nil || d.Volume.Level != "RAID 5" || d.Zoned != nil {
		t.Errorf("volume: %+v", d)
	}
	head, path := devices["nvme3n1"], devices["nvme3c3n1"]
	if diff := cmp.Diff([]checker.Path{{Name: "nvme3c3n1", Controller: "nvme3", State: "live", Transport: "tcp", ANAState: "optimized"}}, head.Paths); diff != "" {
		t.Errorf("paths (-want +got)\n%s", diff)
	}
	if head.Hidden || !path.Hidden || len(head.Below) != 1 || len(path.Above) != 1 || path.Above[0].Name != "nvme3n1" || head.Stack == nil || *head.Stack.Target != "nvme-multipath" {
		t.Errorf("head %+v\npath %+v", head, path)
	}
	// A head resubmits bios, so a path with a lower limit is no fault of it.
	if len(findings(r, "nvme3n1")) != 0 || deref(head.Safe.MaxSectors) != 65534 {
		t.Errorf("head: %v, safe %d", findings(r, "nvme3n1"), deref(head.Safe.MaxSectors))
	}
	if s := devices["bcache0"].Stack; s == nil || s.Kind != "bcache" {
		t.Errorf("bcache: %+v", s)
	}
}

func TestTargetsOfMaps(t *testing.T) {
	uuid := "LVM-" + strings.Repeat("v", 32) + strings.Repeat("l", 32)
	for _, c := range []struct {
		name, uuid, dmName string
		below              map[string]string // attributes of the device below, a dm device where it has a uuid
		attrs              map[string]string
		want               string
	}{
		{"crypt", "CRYPT-LUKS2-0123-home", "", nil, nil, "crypt"},
		{"integrity", "CRYPT-INTEGRITY-home", "", nil, nil, "integrity"},
		{"verity", "CRYPT-VERITY-0123-usr", "", nil, nil, "verity"},
		{"multipath", "mpath-3600", "", nil, nil, "multipath"},
		{"partition of a map", "part1-mpath-3600", "", nil, nil, "linear"},
		{"fakeraid", "DMRAID-isw_1", "", nil, nil, "raid"},
		{"LVM, no more is known", uuid, "", nil, nil, "lvm"},
		{"LVM pool layer", uuid + "-tpool", "", nil, nil, "thin-pool"},
		{"LVM thin volume", uuid, "", map[string]string{"dm/uuid": uuid + "-tpool"}, nil, "thin"},
		{"LVM pool seen from above", uuid + "-pool", "", map[string]string{"dm/uuid": uuid + "-tpool"}, nil, "lvm"},
		{"LVM snapshot", uuid, "", map[string]string{"dm/uuid": uuid + "-cow"}, nil, "snapshot"},
		{"LVM RAID", uuid, "", map[string]string{"dm/uuid": uuid, "dm/name": "vg-lv_rimage_0"}, nil, "raid"},
		{"made by hand", "", "test", nil, nil, ""},
		{"one stripe is none", "", "test", nil, map[string]string{"queue/minimum_io_size": "65536", "queue/optimal_io_size": "131072"}, ""},
	} {
		m := sysfstree.NewSmall("6.1.0")
		attrs := map[string]string{"dm/uuid": c.uuid, "dm/name": c.dmName}
		for k, v := range c.attrs {
			attrs[k] = v
		}
		m.Virtual("dm-1", attrs)
		lower := "sda"
		if c.below != nil {
			lower = "dm-0"
			m.Virtual("dm-0", c.below)
		} else {
			m.SCSI("pci0000:00/0000:00:05.0/host2", "2:0:0:0", "sda", nil, nil)
		}
		m.Over("dm-1", lower)
		r := scan(t, m, checker.Policy{})
		i := slices.IndexFunc(r.Devices, func(d *checker.Device) bool { return d.Name == "dm-1" })
		got := ""
		if s := r.Devices[i].Stack; s.Target != nil {
			got = *s.Target
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestSoftBlockSizeIsNoted(t *testing.T) {
	for release, want := range map[string]bool{"5.10.0": true, "5.10.12": true, "5.10.13": false, "5.9.0": true, "5.8.0": false, "5.11.0": false, "6.1.0": false, "4.19.0": false, "": false} {
		m := sysfstree.NewSmall(release)
		m.SCSI("pci0000:00/0000:00:05.0/host2", "2:0:0:0", "sda", nil, nil)
		r := scan(t, m, checker.Policy{})
		i := slices.IndexFunc(r.Notes, func(n checker.Note) bool { return n.What == "soft-block-size" })
		if (i >= 0) != want || want && (r.Notes[i].State != "not-asked" || !strings.Contains(r.Notes[i].Why, "blockdev --getbsz")) {
			t.Errorf("%s: notes %+v, want one: %v", release, r.Notes, want)
		}
	}
}

// TestSoftBlockSizeIsToldOnce: where a disk has the finding, the note is silent.
func TestSoftBlockSizeIsToldOnce(t *testing.T) {
	m := sysfstree.NewSmall("5.10.12")
	m.SCSI("pci0000:00/0000:00:1f.2/ata1/host0", "0:0:0:0", "sda",
		map[string]string{"vendor": "ATA     ", "model": "WDC WD8003FFBX-6", "rev": "0A83"}, map[string]string{"queue/logical_block_size": "512"})
	r := scan(t, m, checker.Policy{})
	if f, ok := findings(r, "sda")["kernel-block-size-512-performance"]; !ok || f.Verdict != checker.Affected {
		t.Errorf("findings %+v", r.Findings)
	}
	if i := slices.IndexFunc(r.Notes, func(n checker.Note) bool { return n.What == "soft-block-size" }); i >= 0 {
		t.Errorf("noted as well: %+v", r.Notes[i])
	}
}

func TestSerialNumbersAreNeverReported(t *testing.T) {
	m := sysfstree.NewSmall("6.1.0")
	page := string([]byte{0, 0x80, 0, 16}) + "BAD_CTX 00000150"
	m.SCSI("pci0000:00/0000:00:05.0/host2", "2:0:0:0", "sda", nil, nil)
	m.File("sys/devices/pci0000:00/0000:00:05.0/host2/target2:0:0/2:0:0:0/vpd_pg80", page)
	r := scan(t, m, checker.Policy{})
	f, ok := findings(r, "sda")["serial-fault-code"]
	if !ok || f.Severity != quirks.Critical {
		t.Fatalf("findings %+v", r.Findings)
	}
	if text := cmp.Diff(r, &checker.Report{}); strings.Contains(text, "00000150") {
		t.Errorf("the report holds the rest of the serial number:\n%s", text)
	}
}

func TestStripesAreReadFromHints(t *testing.T) {
	for _, c := range []struct {
		name           string
		ioMin, ioOpt   string
		member         map[string]string
		chunk, stripes uint64
	}{
		{"two stripes of 64 KiB", "65536", "131072", nil, 65536, 2},
		{"the same and no hint to take", "65536", "65536", nil, 0, 0},
		{"more stripes than members", "65536", "262144", nil, 0, 0},
		{"no multiple", "65536", "100000", nil, 0, 0},
		{"members of such hints, as over two arrays", "65536", "131072", map[string]string{"queue/minimum_io_size": "65536"}, 0, 0},
		{"members with a preference", "65536", "131072", map[string]string{"queue/optimal_io_size": "131072"}, 0, 0},
		{"blocks, not chunks", "2048", "4096", nil, 0, 0},
	} {
		m := sysfstree.NewSmall("6.1.0")
		m.SCSI("pci0000:00/0000:00:05.0/host2", "2:0:0:0", "sda", nil, c.member)
		m.SCSI("pci0000:00/0000:00:05.0/host2", "2:0:1:0", "sdb", nil, c.member)
		m.Virtual("dm-0", map[string]string{"dm/name": "v", "dm/uuid": "", "queue/minimum_io_size": c.ioMin, "queue/optimal_io_size": c.ioOpt})
		m.Over("dm-0", "sda", "sdb")
		s := scan(t, m, checker.Policy{}).Devices[0].Stack
		n := 0
		if s.Disks != nil {
			n = *s.Disks
		}
		if deref(s.ChunkBytes) != c.chunk || uint64(n) != c.stripes {
			t.Errorf("%s: chunk %d, %d stripes; want %d, %d", c.name, deref(s.ChunkBytes), n, c.chunk, c.stripes)
		}
	}
}

func TestTreeIsBounded(t *testing.T) {
	m := sysfstree.NewSmall("6.1.0")
	names := []string{"dm-0", "dm-1", "dm-2", "dm-3", "dm-4", "dm-5", "dm-6", "dm-7", "dm-8", "dm-9"}
	for _, n := range names {
		m.Virtual(n, map[string]string{"dm/name": n, "dm/uuid": ""})
	}
	for _, n := range names { // everything on everything: ten factorial ways
		m.Over(n, names...)
	}
	inv, err := probe.Read(t.Context(), m, probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if up, down := checker.Tree(inv, "dm-0"); len(up) > 300 || len(down) > 300 {
		t.Errorf("%d lines above, %d below", len(up), len(down))
	}
}

func TestEveryCheckIsDocumented(t *testing.T) {
	b, err := os.ReadFile("../docs/checks.md")
	if err != nil {
		t.Fatal(err)
	}
	if len(checker.Builtins()) < 12 {
		t.Fatalf("only %d checks", len(checker.Builtins()))
	}
	for _, id := range checker.Builtins() {
		c, _ := checker.BuiltinOf(id)
		if row := "| `" + id + "` | " + string(c.Severity) + " | " + effectText(string(c.Effect)) + " |"; !strings.Contains(string(b), row) {
			t.Errorf("docs/checks.md has no row %s", row)
		}
		for _, r := range c.References {
			if !strings.HasPrefix(r.URL, "https://") {
				t.Errorf("%s: reference %+v", id, r)
			}
		}
	}
}

// effectText is an effect as the table writes it.
func effectText(effect string) string {
	if effect == "" {
		return "the entry's"
	}
	return effect
}

func TestWhatStandsAboveIsCountedOnce(t *testing.T) {
	m := sysfstree.NewSmall("6.1.0")
	m.SCSI("pci0000:00/0000:00:05.0/host2", "2:0:0:0", "sda", nil, nil)
	for _, p := range []string{"sda1", "sda2"} {
		m.Partition("sda", p)
	}
	for _, n := range []string{"dm-0", "dm-1", "dm-2"} {
		m.Virtual(n, map[string]string{"dm/name": n, "dm/uuid": ""})
	}
	m.Over("dm-0", "sda1", "sda2")
	m.Over("dm-1", "sda2")
	m.Over("dm-2", "dm-0", "dm-1")
	m.Over("dm-0", "dm-2") // a loop, which no kernel makes
	inv, err := probe.Read(t.Context(), m, probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	sda, _ := inv.Device("sda")
	var above []string
	for _, a := range checker.SubjectOf(inv, sda).Stack.Above {
		above = append(above, a.Name)
	}
	if diff := cmp.Diff([]string{"dm-0", "dm-1", "dm-2"}, above); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	up, down := checker.Tree(inv, "sda")
	if len(up) == 0 || len(up) > 20 || len(down) != 0 {
		t.Errorf("%d lines above, %d below", len(up), len(down))
	}
}
