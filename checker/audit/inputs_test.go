package audit

import (
	"strings"
	"testing"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

func TestForced(t *testing.T) {
	for _, c := range []struct {
		cmdline, port, release string
		noBridge               bool
		sectors                uint64 // 0: none
	}{
		{"quiet libata.force=80c", "1", "6.1.190", true, 0},
		{"libata.force=2:80c", "1", "6.1.190", false, 0},
		{"libata.force=1.00:80c,max_sec_1024", "1", "6.1.190", true, 1024},
		{"libata.force=01:max_sec_128,2:max_sec_1024", "1", "6.1.190", false, 128},
		{"libata.force=max_sec_128,max_sec_lba48", "1", "6.1.190", false, 65535}, // the last
		{"libata.force=max_sec_128,max_sec_lba48", "1", "7.3.4", false, 128},     // the first
		{"libata.force=max_sec=8191", "1", "7.3.4", false, 8191},
		{"libata.force=max_sec=0", "1", "7.3.4", false, 0},
		{"libata.force=max_sec=99999", "1", "7.3.4", false, 0},
		{"libata.force=max_sec_128 libata.force=80c", "1", "6.1.190", true, 0}, // given again
		{"libata.force=1:max_sec_128", "", "6.1.190", false, 0},
		{"notlibata.force=80c", "1", "6.1.190", false, 0},
		{"libata.force=,:,:80c,", "1", "6.1.190", true, 0},
	} {
		r, err := kernel.Parse(c.release)
		if err != nil {
			t.Fatal(err)
		}
		noBridge, sectors := forced(c.cmdline, c.port, r)
		want := kernel.Num{V: c.sectors, Known: c.sectors != 0}
		if noBridge != c.noBridge || sectors != want {
			t.Errorf("%q on port %q of %s: %v, %+v; want %v, %+v", c.cmdline, c.port, c.release, noBridge, sectors, c.noBridge, want)
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
