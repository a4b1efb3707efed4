package kernel_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

func TestParse(t *testing.T) {
	release := func(major, minor, point, rc int, vendor string) kernel.Release {
		return kernel.Release{Major: major, Minor: minor, Point: point, PointK: true, RC: rc, Vendor: vendor}
	}
	hidden := kernel.Release{Major: 6, Minor: 1, Vendor: "debian"}
	for _, c := range []struct {
		name, text string
		want       kernel.Release // without Raw
		upstream   string
	}{
		{"plain stable release", "6.18.15", release(6, 18, 15, 0, ""), "6.18.15"},
		{"plain mainline release", "6.18", release(6, 18, 0, 0, ""), "6.18"},
		{"mainline build shows point zero", "6.18.0", release(6, 18, 0, 0, ""), "6.18"},
		{"mainline candidate", "6.10.0-rc1", release(6, 10, 0, 1, ""), "6.10-rc1"},
		{"mainline candidate without point", "6.19-rc7", release(6, 19, 0, 7, ""), "6.19-rc7"},
		{"dirty candidate", "6.19.0-rc5+", release(6, 19, 0, 5, ""), "6.19-rc5"},
		{"candidate of a stable release", "6.1.5-rc2", release(6, 1, 5, 2, ""), "6.1-rc2"},
		{"name that only starts like a candidate", "6.1.5-rc2x", release(6, 1, 5, 0, ""), "6.1.5"},
		{"blanks around", " 6.18.15\n", release(6, 18, 15, 0, ""), "6.18.15"},
		{"Debian 12 hides the point release", "6.1.0-54-amd64", hidden, "6.1.?"},
		{"Debian 12 flavour", "6.1.0-37-cloud-amd64", hidden, "6.1.?"},
		{"Debian 12 backported to 11", "6.1.0-0.deb11.21-amd64", hidden, "6.1.?"},
		{"Debian 12 realtime", "6.1.0-28-rt-amd64", hidden, "6.1.?"},
		{"a candidate hides nothing", "6.1.0-rc1-1-amd64", release(6, 1, 0, 1, "debian"), "6.1-rc1"},
		{"Debian 13 shows the point release", "6.12.94+deb13-amd64", release(6, 12, 94, 0, "debian"), "6.12.94"},
		{"Debian backport", "6.12.9+bpo-amd64", release(6, 12, 9, 0, "debian"), "6.12.9"},
		{"Debian 13 backport", "7.3.4+deb13-amd64", release(7, 3, 4, 0, "debian"), "7.3.4"},
		{"Fedora", "6.17.10-100.fc41.x86_64", release(6, 17, 10, 0, "fedora"), "6.17.10"},
		{"Fedora candidate", "6.13.0-0.rc2.20241213gitf932fb9b4074.22.fc42.x86_64", release(6, 13, 0, 2, "fedora"), "6.13-rc2"},
		{"Arch", "6.17.1-arch1-1", release(6, 17, 1, 0, "arch"), "6.17.1"},
		{"Ubuntu", "6.8.0-45-generic", release(6, 8, 0, 0, "ubuntu"), "6.8"},
		{"Ubuntu on AWS", "6.8.0-1021-aws", release(6, 8, 0, 0, "ubuntu"), "6.8"},
		{"RHEL 9", "5.14.0-427.13.1.el9_4.x86_64", release(5, 14, 0, 0, "rhel"), "5.14"},
		{"RHEL 7", "3.10.0-1160.71.1.el7.x86_64", release(3, 10, 0, 0, "rhel"), "3.10"},
		{"SLES 15 SP5", "5.14.21-150500.55.19-default", release(5, 14, 21, 0, "sles"), "5.14.21"},
		{"SLES 15 SP6", "6.4.0-150600.23.25-default", release(6, 4, 0, 0, "sles"), "6.4"},
		{"UEK is not RHEL", "5.15.0-200.131.27.el8uek.x86_64", release(5, 15, 0, 0, "oracle"), "5.15"},
		{"Amazon", "6.1.119-129.201.amzn2023.x86_64", release(6, 1, 119, 0, "amazon"), "6.1.119"},
		{"Proxmox", "6.8.12-4-pve", release(6, 8, 12, 0, "proxmox"), "6.8.12"},
		{"Raspberry Pi", "6.6.51+rpt-rpi-v8", release(6, 6, 51, 0, "raspberrypi"), "6.6.51"},
		{"four numbers", "6.6.87.2-microsoft-standard-WSL2", release(6, 6, 87, 0, ""), "6.6.87"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := kernel.Parse(c.text)
			if err != nil {
				t.Fatalf("Parse(%q): %v", c.text, err)
			}
			c.want.Raw = strings.TrimSpace(c.text)
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("Parse(%q) (-want +got):\n%s", c.text, diff)
			}
			if c.name == "candidate of a stable release" {
				return // no statement names one
			}
			if u := got.Upstream(); u != c.upstream {
				t.Errorf("Parse(%q).Upstream() = %q, want %q", c.text, u, c.upstream)
			}
		})
	}
}

func TestParseRefusesWhatIsNoRelease(t *testing.T) {
	for _, text := range []string{
		"", " ", "6", "6.", ".1", "v6.1", "linux-6.1", "-6.1", "6.-1", "6.1\x00\n6.2", "6.1\nsecond line", "99999.1", "6.99999",
		"６.１", "6..1", "\xff\xfe", "6.1" + strings.Repeat("9", 300),
	} {
		if r, err := kernel.Parse(text); err == nil {
			t.Errorf("Parse(%q) = %+v, want an error", text, r)
		} else if !utf8.ValidString(err.Error()) || strings.ContainsAny(err.Error(), "\x00\n") {
			t.Errorf("Parse(%q): error is not escaped: %q", text, err)
		}
	}
}

func TestParseProcVersion(t *testing.T) {
	for _, c := range []struct{ name, text, upstream, vendor string }{
		{"Debian 12 gives the point release, not the compiler's",
			"Linux version 6.1.0-54-amd64 (debian-kernel@lists.debian.org) (gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0, GNU ld (GNU Binutils for Debian) 2.40) #1 SMP PREEMPT_DYNAMIC Debian 6.1.190-1 (2026-10-16)\n",
			"6.1.190", "debian"},
		{"Debian 11 gives it too",
			"Linux version 5.10.0-32-amd64 (debian-kernel@lists.debian.org) (gcc-10 (Debian 10.2.1-6) 10.2.1 20210110, GNU ld (GNU Binutils for Debian) 2.35.2) #1 SMP Debian 5.10.223-1 (2024-08-10)",
			"5.10.223", "debian"},
		{"Debian 13 backport",
			"Linux version 7.3.4+deb13-amd64 (debian-kernel@lists.debian.org) (x86_64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0, GNU ld (GNU Binutils for Debian) 2.44) #1 SMP PREEMPT_DYNAMIC Debian 7.3.4-1~bpo13+1 (2026-11-15)",
			"7.3.4", "debian"},
		{"Debian candidate",
			"Linux version 6.10-rc6-amd64 (debian-kernel@lists.debian.org) (gcc) #1 SMP PREEMPT_DYNAMIC Debian 6.10~rc6-1~exp1 (2024-07-02)",
			"6.10-rc6", "debian"},
		{"own kernel on Debian keeps its release",
			"Linux version 6.12.1 (me@host) (gcc (Debian 12.2.0-14) 12.2.0, GNU ld (GNU Binutils for Debian) 2.40) #1 SMP",
			"6.12.1", ""},
		{"own kernel numbered like the compiler",
			"Linux version 6.1.7 (me@host) (gcc (Debian 6.3.0-18) 6.3.0) #1 SMP",
			"6.1.7", ""},
		{"Proxmox is not Debian",
			"Linux version 6.8.12-4-pve (build@proxmox) (gcc (Debian 12.2.0-14) 12.2.0, GNU ld (GNU Binutils for Debian) 2.40) #1 SMP PREEMPT_DYNAMIC PMX 6.8.12-4 (2024-11-06T15:04Z)",
			"6.8.12", "proxmox"},
		{"Raspberry Pi is not Debian",
			"Linux version 6.12.25+rpt-rpi-2712 (serge@raspberrypi.com) (aarch64-linux-gnu-gcc-12 (Debian 12.2.0-14) 12.2.0, GNU ld (GNU Binutils for Debian) 2.40) #1 SMP PREEMPT Debian 1:6.12.25-1+rpt1 (2025-04-30)",
			"6.12.25", "raspberrypi"},
		{"Ubuntu",
			"Linux version 6.8.0-45-generic (buildd@lcy02-amd64-115) (x86_64-linux-gnu-gcc-13 (Ubuntu 13.2.0-23ubuntu4) 13.2.0, GNU ld (GNU Binutils for Ubuntu) 2.42) #45-Ubuntu SMP PREEMPT_DYNAMIC Fri Aug 30 12:02:04 UTC 2024",
			"6.8", "ubuntu"},
		{"nothing after the release", "Linux version 4.16.15-200.fc27.x86_64", "4.16.15", "fedora"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := kernel.ParseProcVersion(c.text)
			if err != nil || got.Upstream() != c.upstream || got.Vendor != c.vendor || !got.PointK {
				t.Errorf("ParseProcVersion(%q) = %+v upstream %q vendor %q, %v, want %q %q", c.text, got, got.Upstream(), got.Vendor, err, c.upstream, c.vendor)
			}
		})
	}
	for _, text := range []string{"", "Linux", "Linux version ", "FreeBSD 14.0", "Linux version x.y", "\x00Linux version 6.1", " Linux version 6.1"} {
		if r, err := kernel.ParseProcVersion(text); err == nil || !strings.Contains(err.Error(), "/proc/version") {
			t.Errorf("ParseProcVersion(%q) = %+v, %v, want an error that names the file", text, r, err)
		}
	}
}

func TestParseBound(t *testing.T) {
	for _, text := range []string{"6.19", "6.18.44", "6.19-rc3", "2.6.24", "6.19.0"} {
		if b, err := kernel.ParseBound(text); err != nil || b.Raw != text {
			t.Errorf("ParseBound(%q) = %+v, %v", text, b, err)
		}
	}
	for _, text := range []string{"", "6", "6.1.0-54-amd64", "6.17.1-arch1-1", "6.12.94+deb13", "6.19-foo", " 6.19", "6.19\t", "6.1.2.3",
		"6.19-rc", "6.1~rc1", "v6.1", "6.1\x1b[31m", "99999.1"} {
		if b, err := kernel.ParseBound(text); err == nil {
			t.Errorf("ParseBound(%q) = %+v, want an error", text, b)
		}
	}
}

func mustParse(t testing.TB, text string) kernel.Release {
	t.Helper()
	r, err := kernel.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestCompare(t *testing.T) {
	// Each is before the next.
	order := []string{"2.6.24", "2.6.32", "4.9", "5.10.223", "6.1-rc1", "6.1.0-rc2", "6.1", "6.1.3", "6.1.5-rc1", "6.1.5", "6.1.190",
		"6.9.9", "6.10-rc1", "6.10.1", "7.0-rc1", "7.0", "10.0"}
	for i, a := range order {
		for j, b := range order {
			want := 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got, ok := kernel.Compare(mustParse(t, a), mustParse(t, b)); got != want || !ok {
				t.Errorf("Compare(%s, %s) = %d, %v, want %d", a, b, got, ok, want)
			}
		}
	}
	for _, c := range []struct {
		name, a, b string
		want       int
		ok         bool
	}{
		{"hidden point against another branch", "6.1.0-54-amd64", "6.2", -1, true},
		{"hidden point against a point", "6.1.0-54-amd64", "6.1.50", 0, false},
		{"hidden point against itself", "6.1.0-54-amd64", "6.1.0-54-amd64", 0, false},
		{"hidden point is past every candidate", "6.1.0-54-amd64", "6.1-rc8", 1, true},
		{"vendor does not count", "6.17.1-arch1-1", "6.17.1", 0, true},
		{"written point zero is the mainline release", "6.18.0", "6.18", 0, true},
	} {
		got, ok := kernel.Compare(mustParse(t, c.a), mustParse(t, c.b))
		back, _ := kernel.Compare(mustParse(t, c.b), mustParse(t, c.a))
		if got != c.want || ok != c.ok || back != -c.want {
			t.Errorf("%s: Compare(%s, %s) = %d, %v and back %d, want %d, %v", c.name, c.a, c.b, got, ok, back, c.want, c.ok)
		}
	}
}

func TestZeroReleaseIsUnknown(t *testing.T) {
	if r := (kernel.Release{}); r.Known() || r.Upstream() != "" || r.String() != "" {
		t.Errorf("zero Release: Known %v, Upstream %q, String %q", r.Known(), r.Upstream(), r)
	}
}

func TestFollowsStable(t *testing.T) {
	for text, want := range map[string]bool{
		"6.18.15": true, "6.1.0-54-amd64": true, "6.17.10-100.fc41.x86_64": true, "6.17.1-arch1-1": true, "6.6.51+rpt-rpi-v8": true,
		"6.8.0-45-generic": false, "5.14.0-427.13.1.el9_4.x86_64": false, "5.14.21-150500.55.19-default": false,
		"5.15.0-200.131.27.el8uek.x86_64": false, "6.1.119-129.201.amzn2023.x86_64": false, "6.8.12-4-pve": false,
	} {
		if got := mustParse(t, text).FollowsStable(); got != want {
			t.Errorf("%s: FollowsStable = %v, want %v", text, got, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"6.1.0-54-amd64", "6.13.0-0.rc2.2024.fc42.x86_64", "6.19-rc7", "6.12.94+deb13-amd64", "5.15.0-200.el8uek", "6.1.5-rc1"} {
		f.Add(s, "6.1.190")
	}
	f.Fuzz(func(t *testing.T, x, y string) {
		a, err := kernel.Parse(x)
		if err != nil {
			return
		}
		if again, err := kernel.Parse(a.String()); err != nil || again != a {
			t.Errorf("Parse(%q) = %+v, its String parses as %+v, %v", x, a, again, err)
		}
		if b, err := kernel.ParseBound(a.Upstream()); err == nil && a.PointK && a.Point == 0 && b.RC != a.RC {
			t.Errorf("%q: Upstream %q has another candidate number", x, a.Upstream())
		}
		if a.Major < 0 || a.Minor < 0 || a.Point < 0 || a.RC < 0 || !a.PointK && a.Point != 0 {
			t.Errorf("Parse(%q) = %+v", x, a)
		}
		b, err := kernel.Parse(y)
		if err != nil {
			return
		}
		c, ok := kernel.Compare(a, b)
		back, okBack := kernel.Compare(b, a)
		if c != -back || ok != okBack || !ok && c != 0 {
			t.Errorf("Compare(%q, %q) = %d, %v but back %d, %v", x, y, c, ok, back, okBack)
		}
		if self, ok := kernel.Compare(a, a); self != 0 || ok != a.PointK {
			t.Errorf("Compare(%q, itself) = %d, %v", x, self, ok)
		}
	})
}
