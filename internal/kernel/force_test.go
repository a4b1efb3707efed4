package kernel

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

func TestParameters(t *testing.T) {
	line := "BOOT_IMAGE=/vmlinuz quiet \"dyndbg=file a +p\" root=\"/dev/sda 1\" scsi_mod.dev_flags=\"ACME:DISK 9:0x1,B:C:2\" usb_storage.quirks=1:2:u usb-storage.quirks=3:4:m\n"
	want := [][2]string{{"BOOT_IMAGE", "/vmlinuz"}, {"quiet", ""}, {"dyndbg", "file a +p"}, {"root", "/dev/sda 1"}, {"scsi_mod.dev_flags", "ACME:DISK 9:0x1,B:C:2"}, {"usb_storage.quirks", "1:2:u"}, {"usb-storage.quirks", "3:4:m"}}
	if got := Parameters(line); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if v, ok := Parameter(line, "usb-storage", "quirks"); !ok || v != "3:4:m" {
		t.Errorf("%q %t, want the last one", v, ok)
	}
	if _, ok := Parameter(line, "libata", "force"); ok {
		t.Error("a parameter that is not there")
	}
}

func TestParseForce(t *testing.T) {
	for _, c := range []struct{ list, want string }{
		{"noncq", "*.*:noncq"},
		{"1:noncq,nolpm", "1.*:noncq 1.*:nolpm"},
		{"1.00:noncq,lpm,2:80c", "1.0:noncq 1.0:lpm 2.*:80c"},
		{"03:max_sec=1024", "3.*:max_sec==1024"},
		{"max_sec_1024,1:MAX_SEC_LBA48", "*.*:max_sec_1024=1024 1.*:max_sec_lba48=65535"},
		{"1:max_sec_l", "1.*:max_sec_lba48=65535"},
		{"1.5", "*.*:1.5gbps"},
		{" 1 : noncqtrim , ncq", "1.*:noncqtrim 1.*:ncq"},
		// What the kernel does not take.
		{"", ""}, {"1:", ""}, {"x:noncq", ""}, {"1.x:noncq", ""}, {"max_sec", ""}, {"max_sec_1", ""}, {"max_sec=", ""}, {"max_sec=x", ""}, {"noncq=1", ""}, {"n", ""},
		{"-1:noncq", ""}, {"99999999999:noncq", ""},
		{"2:bogus,noncq", "*.*:noncq"}, // the item before was none
		{"1:noncq,2:bogus,lpm", "1.*:noncq 1.*:lpm"},
	} {
		var got []string
		for _, f := range ParseForce(c.list) {
			s := fmt.Sprintf("%d.%d:%s", f.Port, f.Device, f.Name)
			if f.Value > 0 {
				s += fmt.Sprintf("=%d", f.Value)
			}
			got = append(got, strings.ReplaceAll(s, "-1", "*"))
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%q: %q, want %q", c.list, s, c.want)
		}
	}
}

func TestForcedFlags(t *testing.T) {
	first, second, multiplied := At{Port: 1}, At{Port: 1, Device: 1}, At{Port: 1, Device: 2, Multiplied: true}
	for _, c := range []struct {
		list    string
		at      At
		release string
		want    string
	}{
		{"noncqtrim", first, "6.1.192", "+NO_NCQ_TRIM"},
		{"2:noncqtrim", first, "6.1.192", ""},
		{"1:noncqtrim,nolpm", first, "6.1.192", "+NO_NCQ_TRIM +NOLPM"},
		{"1:ncqtrim", first, "6.1.192", "-NO_NCQ_TRIM"},
		{"noncq,1:ncq", first, "6.1.192", "-NONCQ"},
		{"1.01:noncq", first, "6.1.192", ""},
		{"1.01:noncq", second, "6.1.192", "+NONCQ"},
		{"1.16:noncq", second, "6.1.192", "+NONCQ"},
		{"1.15:noncq", first, "6.1.192", "+NONCQ"},
		{"1.2:noncq", multiplied, "6.1.192", "+NONCQ"},
		{"1.17:noncq", multiplied, "6.1.192", ""},
		{"1:max_sec_1024", first, "6.1.192", "+MAX_SEC_1024=1024"},
		{"1:80c,nolpm", first, "6.18.3", "+NOLPM"},
		// From 7.0 on the first item alone.
		{"1:80c,nolpm", first, "7.3.4", ""},
		{"1:nolpm,noncq", first, "7.3.4", "+NOLPM"},
		{"2:noncq,1:nolpm", first, "7.3.4", "+NOLPM"},
		{"1:max_sec_1024", first, "7.3.4", "+MAX_SEC=1024"},
		{"1:max_sec=2048", first, "7.3.4", "+MAX_SEC=2048"},
		{"max_sec_lba48", first, "7.3.4", "+MAX_SEC_LBA48=65535"},
		// Newer than the kernel.
		{"1:max_sec=2048", first, "6.18.3", ""},
		{"nolpm", first, "5.10.223", ""},
		{"noncq", first, "5.10.223", "+NONCQ"},
		{"nofua", first, "6.1.192", ""}, // stable got it at a point nobody looked for
		{"noncq", first, "", ""},
	} {
		r := Release{}
		if c.release != "" {
			var err error
			if r, err = Parse(c.release); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		for _, f := range ForcedFlags(c.list, c.at, r) {
			s := map[bool]string{true: "+", false: "-"}[f.On] + f.Flag
			if f.MaxSectors > 0 {
				s += fmt.Sprintf("=%d", f.MaxSectors)
			}
			got = append(got, s)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%s on %s at %+v: %q, want %q", c.list, c.release, c.at, s, c.want)
		}
	}
}

func TestAtOf(t *testing.T) {
	for _, c := range []struct {
		port, hctl string
		want       At
		ok         bool
	}{
		{"3", "2:0:0:0", At{Port: 3}, true},
		{"3", "2:0:1:0", At{Port: 3, Device: 1}, true},
		{"3", "2:4:0:0", At{Port: 3, Device: 4, Multiplied: true}, true},
		{"", "2:0:0:0", At{}, false},
		{"3", "", At{}, false},
		{"3", "2:x:0:0", At{}, false},
		{"3", "2:0:-1:0", At{}, false},
	} {
		if at, ok := AtOf(c.port, c.hctl); at != c.want || ok != c.ok {
			t.Errorf("port %q, %q: %+v %t", c.port, c.hctl, at, ok)
		}
	}
}

func TestForcedCable(t *testing.T) {
	for list, want := range map[string]string{"80c": "80c", "1:80c": "80c", "2:80c": "", "noncq": "", "80c,1:sata": "sata", "2:80c,1:noncq": "", "": ""} {
		if got := ForcedCable(list, 1); got != want {
			t.Errorf("%q: %q, want %q", list, got, want)
		}
	}
}

// Every item the kernel takes says what it takes away or sets, whatever stands
// around it; nothing panics, and a list read twice is the same.
func FuzzForce(f *testing.F) {
	for _, s := range []string{"1.00:noncq,2:max_sec=8191", "80c,,x:y,1.5", "max_sec_lba48,nolpm", ":", "1:2:3", "\x00=,="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		items := ParseForce(list)
		if len(items) > strings.Count(list, ",")+1 {
			t.Fatalf("%d items in %q", len(items), list)
		}
		for _, i := range items {
			name, value, ok := forceName(i.Text)
			if !ok || name != i.Name || value != i.Value {
				t.Errorf("%q: %+v", list, i)
			}
		}
		for _, release := range []string{"6.1.192", "7.3.4"} {
			r, _ := Parse(release)
			seen := map[string]bool{}
			for _, forced := range ForcedFlags(list, At{Port: 1}, r) {
				if seen[forced.Flag] {
					t.Errorf("%q: %s twice", list, forced.Flag)
				}
				seen[forced.Flag] = true
			}
		}
		_ = Parameters(list)
	})
}
