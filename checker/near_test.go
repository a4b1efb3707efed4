package checker_test

import (
	"strings"
	"testing"

	"github.com/quirkcheck/quirkcheck/checker"
)

func TestNearMisses(t *testing.T) {
	db := builtin(t)
	ata := func(model, firmware string) obj {
		return obj{"device": obj{"space": "ata", "model": model, "firmware": firmware}, "path": "libata", "kernel": "6.18.3", "max_sectors": 8192}
	}
	for _, c := range []struct {
		name    string
		subject obj
		want    string // id and what failed, "" for none of that id
		none    string
	}{
		{"other firmware", ata("ST380013AS", "3.18"), "ata-seagate-st380013as-silent-corruption: device.firmware", ""},
		{"model and firmware glued together (RC-089)", ata("DELLBOSS VD MV.R00-0", "MV.R00-0"), "ata-dellboss-vd-io-timeout: device.model", ""},
		{"one character off", ata("ST380013A", "3.20"), "ata-seagate-st380013as-silent-corruption: device.model", ""},
		{"one character off and another firmware is another disk", ata("ST380013A", "9.99"), "", "ata-seagate-st380013as-silent-corruption"},
		{"a maker's prefix alone", ata("ST3120026AS", "3.20"), "", "ata-seagate-st380013as-silent-corruption"},
		{"a match is no near miss", ata("ST380013AS", "3.20"), "", "ata-seagate-st380013as-silent-corruption"},
		{"another space", obj{"device": obj{"space": "nvme", "model": "ST380013AS", "firmware": "3.20"}, "path": "nvme"}, "", "ata-seagate-st380013as-silent-corruption"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			for _, n := range checker.Near(subject(t, c.subject), db) {
				var keys []string
				for _, p := range n.Failed {
					keys = append(keys, p.Key)
				}
				if len(keys) == 0 {
					t.Errorf("%s failed on nothing", n.Match.Entry.ID)
				}
				got = append(got, n.Match.Entry.ID+": "+strings.Join(keys, " "))
			}
			all := "\n" + strings.Join(got, "\n") + "\n"
			if c.want != "" && !strings.Contains(all, "\n"+c.want+"\n") {
				t.Errorf("%q, want %s", got, c.want)
			}
			if c.none != "" && strings.Contains(all, "\n"+c.none+":") {
				t.Errorf("%q, want nothing of %s", got, c.none)
			}
		})
	}
}
