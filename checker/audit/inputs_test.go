package audit

import (
	"strings"
	"testing"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/quirks"
)

func TestForced(t *testing.T) {
	for _, c := range []struct {
		cmdline, port, hctl, release string
		noBridge                     bool
		sectors                      uint64 // 0: none
	}{
		{"quiet libata.force=80c", "1", "0:0:0:0", "6.1.190", true, 0},
		{"libata.force=2:80c", "1", "0:0:0:0", "6.1.190", false, 0},
		{"libata.force=80c,sata", "1", "0:0:0:0", "6.1.190", false, 0}, // the last cable
		{"libata.force=1.00:max_sec_1024", "1", "0:0:0:0", "6.1.190", false, 1024},
		{"libata.force=1.01:max_sec_1024", "1", "0:0:0:0", "6.1.190", false, 0},
		{"libata.force=1.01:max_sec_1024", "1", "0:0:1:0", "6.1.190", false, 1024},
		{"libata.force=1.02:max_sec_1024", "1", "0:2:0:0", "6.1.190", false, 1024}, // behind a port multiplier
		{"libata.force=max_sec_128,max_sec_1024", "1", "0:0:0:0", "6.1.190", false, 128},
		{"libata.force=max_sec_lba48,max_sec_128", "1", "0:0:0:0", "6.1.190", false, 65535},
		{"libata.force=max_sec_128,max_sec_lba48", "1", "0:0:0:0", "7.3.4", false, 128}, // the first
		{"libata.force=max_sec=8191", "1", "0:0:0:0", "7.3.4", false, 8191},
		{"libata.force=max_sec_128", "1", "0:0:0:0", "5.10.223", false, 0}, // not known there
		{"libata.force=max_sec_128", "", "", "6.1.190", false, 128},
		{"libata.force=1:max_sec_128", "", "", "6.1.190", false, 0},
		{"quiet", "1", "0:0:0:0", "6.1.190", false, 0},
	} {
		r, err := kernel.Parse(c.release)
		if err != nil {
			t.Fatal(err)
		}
		sub := &quirks.Subject{Adapter: map[string]string{"ata_port": c.port, "hctl": c.hctl}}
		noBridge, sectors := forced(c.cmdline, atOf(sub), r)
		want := kernel.Num{V: c.sectors, Known: c.sectors != 0}
		if noBridge != c.noBridge || sectors != want {
			t.Errorf("%q on port %q, %q, of %s: %v, %+v; want %v, %+v", c.cmdline, c.port, c.hctl, c.release, noBridge, sectors, c.noBridge, want)
		}
	}
}

func FuzzParseTarget(f *testing.F) {
	for _, s := range []string{"6.18.15", "6.1.0-54-amd64", "7.3", "2.6.32-754.el6", "9.9-rc1", "6.99"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseTarget(s)
		if err != nil {
			if !strings.Contains(err.Error(), "examples") {
				t.Errorf("%q: %v", s, err)
			}
			return
		}
		if r.Major < 2 || !r.Known() {
			t.Errorf("%q: %+v", s, r)
		}
		if again, err := ParseTarget(r.Raw); err != nil || again != r {
			t.Errorf("%q: %+v, then %+v, %v", s, r, again, err)
		}
	})
}
