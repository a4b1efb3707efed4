package probe_test

import (
	"context"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quirkcheck/quirkcheck/internal/sysfstree"
	"github.com/quirkcheck/quirkcheck/probe"
)

func TestCounters(t *testing.T) {
	m := sysfstree.NewSmall("6.12.90-test")
	m.SCSI("pci0000:00/0000:00:03.0/host0", "0:0:0:0", "sda", map[string]string{"iodone_cnt": "0x1a2b", "ioerr_cnt": "0xffffffffffffffff", "iotmo_cnt": "many"}, nil)
	m.SCSI("pci0000:00/0000:00:03.0/host0", "0:0:1:0", "sdb", map[string]string{"iodone_cnt": "0x0", "ioerr_cnt": "0x0"}, nil)
	m.Virtual("md0", map[string]string{"md/level": "raid1", "md/dev-sda1/errors": "17", "md/dev-sdb1/errors": "0"})
	read := func(counters bool) map[string][]probe.Counter {
		inv, err := probe.Read(context.Background(), m, probe.Options{Counters: counters})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string][]probe.Counter{}
		for _, d := range inv.Devices {
			for _, c := range d.Counters {
				c.Source = ""
				got[d.Name] = append(got[d.Name], c)
			}
			if counters && d.Name == "sda" {
				if !slices.ContainsFunc(d.Notes, func(n probe.Note) bool { return n.What == "iotmo_cnt" && n.State == probe.Unreadable }) {
					t.Errorf("no note about iotmo_cnt: %+v", d.Notes)
				}
			}
		}
		return got
	}
	want := map[string][]probe.Counter{
		"sda": {{Name: "device/iodone_cnt", V: 0x1a2b}, {Name: "device/ioerr_cnt", V: 1<<32 - 1}},
		"sdb": {{Name: "device/iodone_cnt"}, {Name: "device/ioerr_cnt"}},
		"md0": {{Name: "md/dev-sda1/errors", Member: "sda1", V: 17}, {Name: "md/dev-sdb1/errors", Member: "sdb1"}},
	}
	if d := cmp.Diff(want, read(true)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if got := read(false); len(got) != 0 {
		t.Errorf("counters that nobody asked for: %v", got)
	}
}
