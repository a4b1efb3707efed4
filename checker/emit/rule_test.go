package emit

import (
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// fnmatch is an independent matcher for an alternation of patterns.
func fnmatch(t testing.TB, pats, s string) bool {
	t.Helper()
	return oneOf(t, strings.Split(strings.ReplaceAll(pats, "[!", "[^"), "|"), s)
}

func oneOf(t testing.TB, pats []string, s string) bool {
	t.Helper()
	for _, p := range pats {
		ok, err := path.Match(p, s)
		if err != nil {
			t.Fatalf("%s: %v", p, err)
		}
		if ok {
			return true
		}
	}
	return false
}

// TestGreater: the guard holds for exactly the numbers above the limit, for
// every limit at all boundaries and a sample, and for some limits everywhere.
func TestGreater(t *testing.T) {
	check := func(pats []string, limit, n uint64) {
		if oneOf(t, pats, number(n)) != (n > limit) {
			t.Fatalf("greater(%d) = %s: wrong for %d", limit, greater(limit), n)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for limit := uint64(4); limit <= 32767; limit++ {
		if strings.Trim(greater(limit), "0123456789[-]*|") != "" {
			t.Fatalf("greater(%d) = %s", limit, greater(limit))
		}
		pats := strings.Split(greater(limit), "|")
		for _, n := range []uint64{0, 1, limit, limit + 1, limit - 1, limit * 10, limit / 10, 32767, 65535, 1<<31 - 1, 1<<32 - 1, rng.Uint64N(70000), rng.Uint64N(70000)} {
			check(pats, limit, n)
		}
		for p := uint64(10); p <= 100000; p *= 10 {
			for _, n := range []uint64{p - 1, p, limit / p * p, limit/p*p + p, limit/p*p + p - 1, limit/p*p + limit%10} {
				check(pats, limit, n)
			}
		}
	}
	for _, limit := range []uint64{4, 7, 9, 10, 11, 15, 32, 64, 89, 98, 99, 100, 101, 120, 127, 128, 199, 240, 255, 256, 499, 500, 511, 512, 513, 899, 998, 999, 1000,
		1001, 1023, 1024, 1279, 1280, 1999, 2047, 2048, 4092, 4095, 4096, 7999, 8191, 9998, 9999, 10000, 10001, 16380, 19999, 32766, 32767} {
		pats := strings.Split(greater(limit), "|")
		for n := range uint64(33000) {
			check(pats, limit, n)
		}
	}
}

func TestHexRange(t *testing.T) {
	for _, r := range [][2]uint16{{0, 0}, {0, 0x100}, {0x100, 0x100}, {0, 0xffff}, {0x452, 0x9999}, {0x742, 0x742}, {0x592, 0x610}, {1, 0xfffe}, {0xff0, 0x1010}} {
		pats := strings.Join(hexRange(r[0], r[1]), "|")
		for n := range uint32(1 << 16) {
			if got := fnmatch(t, pats, fmt.Sprintf("%04x", n)); got != (uint16(n) >= r[0] && uint16(n) <= r[1]) {
				t.Fatalf("%04x-%04x: %s: %04x: %v", r[0], r[1], pats, n, got)
			}
		}
	}
}

func TestGlob(t *testing.T) {
	for _, c := range []struct {
		in, text, env, ere, view string
		cut                      bool
	}{
		{"ST380013AS", "ST380013AS", "ST380013AS", "^ST380013AS$", "ST380013AS", false},
		{"INTEL SSDSC2KG480G8", "INTEL SSDSC2KG480G8", "INTEL_SSDSC2KG480G8", "^INTEL SSDSC2KG480G8$", "INTEL SSDSC2KG48", true},
		{"SIXTEEN CHARS 16", "SIXTEEN CHARS 16", "SIXTEEN_CHARS_16", "^SIXTEEN CHARS 16$", "SIXTEEN CHARS 16", true},
		{"FIFTEEN CHAR 15", "FIFTEEN CHAR 15", "FIFTEEN_CHAR_15", "^FIFTEEN CHAR 15$", "FIFTEEN CHAR 15", false},
		{"CUT AT A BLANK  AND MORE", "CUT AT A BLANK  AND MORE", "CUT_AT_A_BLANK_AND_MORE", "^CUT AT A BLANK  AND MORE$", "CUT AT A BLANK", true},
		{"LITEON CX1-JB*-HP", "LITEON CX1-JB*-HP", "LITEON_CX1-JB*-HP", "^LITEON CX1-JB.*-HP$", "LITEON CX1-JB*", true},
		{"LITEON EP1-*", "LITEON EP1-*", "LITEON_EP1-*", "^LITEON EP1-.*$", "LITEON EP1-*", false},
		{"BUFFALO HD-QSU2/R5", "BUFFALO HD-QSU2/R5", "BUFFALO_HD-QSU2_R5", "^BUFFALO HD-QSU2/R5$", "BUFFALO HD-QSU2/", true},
		{"SanDisk SD[789]*", "SanDisk SD[789]*", "SanDisk_SD[789]*", "^SanDisk SD[789].*$", "SanDisk SD[789]*", false},
		{"A[!0-9]B", "A[!0123456789]B", "A[!0123456789]B", "^A[^0123456789]B$", "A[!0123456789]B", false},
		{"A[!a-c]B", "A[!abc]B", "A[!abc]B", "^A[^abc]B$", "A[!abc]B", false},
		{"A[a$]B", "A?B", "A?B", "^A.B$", "A?B", false},
		{"A[^a]B", "A?B", "A?B", "^A.B$", "A?B", false}, // `^` is a literal member here
		{"A[B", "A?B", "A?B", "^A.B$", "A?B", false},
		{`A\*B\`, "A?B", "A?B", "^A.B$", "A?B", false},
		{"  pad ", "pad", "pad", "^pad$", "pad", false},
		{"3.20", "3.20", "3.20", "^3[.]20$", "3.20", false},
		{"a\"b|c$d%e{f}g'h`i\nj\x00k\xffl", "a?b?c?d?e?f?g?h?i?j?k?l", "a?b?c?d?e?f?g?h?i?j?k?l", "^a.b.c.d.e.f.g.h.i.j.k.l$", "a?b?c?d?e?f?g?h?", true},
	} {
		g := parseGlob(c.in)
		view, cut := modelView(g)
		if g.text() != c.text || g.env() != c.env || ere([]glob{g}) != c.ere || view.text() != c.view || cut != c.cut {
			t.Errorf("%q: %q %q %q %q %v, want %q %q %q %q %v", c.in, g.text(), g.env(), ere([]glob{g}), view.text(), cut, c.text, c.env, c.ere, c.view, c.cut)
		}
	}
	for in, want := range map[string]struct {
		view string
		cut  bool
	}{"3.20": {"3.20", false}, "MV.R00-0": {"00-0", true}, "ABCDEF": {"EF", true}, "1": {"1", false}, "MV*": {"*", true}, "*": {"*", false}, "12345": {"5", true}} {
		if v, cut := firmwareView(parseGlob(in)); v.text() != want.view || cut != want.cut {
			t.Errorf("firmware %q: %q %v, want %q %v", in, v.text(), cut, want.view, want.cut)
		}
	}
}

// TestGlobAgreesWithTheMatcher: what an entry matches its rule matches, and
// without specials nothing more.
func TestGlobAgreesWithTheMatcher(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const alphabet = "AB1 -*?[]!"
	random := func(n int, set string) string {
		b := make([]byte, rng.IntN(n))
		for i := range b {
			b[i] = set[rng.IntN(len(set))]
		}
		return strings.TrimSpace(string(b))
	}
	hits := 0
	for range 200000 {
		pat, s := random(7, alphabet), random(7, "AB1 -")
		p, err := quirks.CompilePattern(pat)
		if err != nil {
			t.Fatal(err)
		}
		g := parseGlob(pat)
		got, want := fnmatch(t, g.text(), s), p.Match(s)
		if want {
			hits++
		}
		if got != want && (want || g.lost == 0) {
			t.Fatalf("%q as %q: %q: %v, entry %v", pat, g.text(), s, got, want)
		}
	}
	if hits < 1000 {
		t.Fatalf("only %d matches tried", hits)
	}
}

func TestSpecific(t *testing.T) {
	for in, ok := range map[string]bool{"VD": true, "ABC": true, "AB$": false, "ABC$": true, "\"\n$": false, "": false, "?*": false, "***": true, "$A": false} {
		if err := parseGlob(in).check("model", nameKeeps); (err == nil) != ok {
			t.Errorf("%q: %v, want specific %v", in, err, ok)
		}
	}
}

func TestComment(t *testing.T) {
	for in, want := range map[string]string{"plain": "plain", "a\nb\r\x00\x7f": `a\x0ab\x0d\x00\x7f`, "joins \\": "joins", "\u2028\u202e\xff": `\u2028\u202e\ufffd`} {
		if got := comment(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestHas(t *testing.T) {
	for rel, want := range map[string]string{"5.10.223": "", "5.18.19": "", "5.19.0": "max_sec_1024", "6.1.0-57-amd64": "max_sec_1024", "6.19.9": "max_sec_1024",
		"7.0-rc1": "max_sec=2048", "7.0.0": "max_sec=2048", "7.3.4": "max_sec=2048", "8.0.1": "max_sec=2048"} {
		p := &Plan{o: Options{Kernel: parse(t, rel)}}
		port, path := "1", "libata"
		s, err := p.param(&Advice{Device: &checker.Device{Path: &path, Adapter: &checker.Adapter{ATAPort: &port}}, MaxSectors: 2048})
		if want == "" && err == nil || want != "" && (err != nil || s.item != "1:"+want) {
			t.Errorf("%s: %q, %v; want %q", rel, s.item, err, want)
		}
	}
}

func TestMergeForce(t *testing.T) {
	for _, c := range []struct {
		present, port, value string
		first                bool
		want, err            string
	}{
		{"", "3", "max_sec=1024", true, "3:max_sec=1024", ""},
		{"1:noncq,udma4", "3", "max_sec=1024", true, "3:max_sec=1024,1:noncq,1:udma4", ""},
		{"3:80c", "3", "max_sec=1024", true, "3:max_sec=1024,3:80c", ""},
		{"3.00:80c", "3", "max_sec=1024", true, "3:max_sec=1024,3.00:80c", ""},
		{"3:noncq", "3", "max_sec=1024", true, "", "same port"},
		{"80c", "3", "max_sec=1024", true, "", "for all ports"},
		{"80c", "3", "max_sec_1024", false, "80c,3:max_sec_1024", ""},
		{"80c,1:noncq", "3", "max_sec_1024", false, "80c,3:max_sec_1024,1:noncq", ""},
		{"max_sec_lba48", "3", "max_sec=1024", true, "3:max_sec=1024", ""},
		{"1:max_sec_lba48,noncq,3:max_sec_l", "3", "max_sec=1024", true, "3:max_sec=1024,1:max_sec_lba48,1:noncq", ""},
		{"3:max_sec=512", "3", "max_sec=1024", true, "3:max_sec=512", ""},
		{"1:80c,3:max_sec=512", "3", "max_sec=1024", true, "3:max_sec=512,1:80c", ""},
		{"03:max_sec=4096,3.00:max_sec_1024", "3", "max_sec=256", true, "3:max_sec=256", ""},
		{"max_sec=64", "3", "max_sec=1024", true, "", "for all ports"},
	} {
		got, err := mergeForce(c.present, c.port, c.value, c.first)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%q + %s:%s: %q, %v; want %q, %q", c.present, c.port, c.value, got, err, c.want, c.err)
		}
	}
}

func TestMergeOthers(t *testing.T) {
	usb := func(present, want string) {
		t.Helper()
		if got, err := mergeUSB(present, "174c:55aa", 'g'); got != want || (err != nil) != (want == "") {
			t.Errorf("usb %q: %q, %v; want %q", present, got, err, want)
		}
	}
	usb("", "174c:55aa:g")
	usb("0419:aaf5:rl", "0419:aaf5:rl,174c:55aa:g")
	usb("174C:55AA:u,174c:55aa:k", "174C:55AA:ug,174c:55aa:k")
	usb("174c:55aa:gu", "174c:55aa:gu")
	usb(strings.Repeat("0419:aaf5:rl,", 9), "")
	flags := func(present, want string) {
		t.Helper()
		if got, err := mergeDevFlags(present, "A:B C", 1<<30); got != want || (err != nil) != (want == "") {
			t.Errorf("dev_flags %q: %q, %v; want %q", present, got, err, want)
		}
	}
	flags("", "A:B C:0x40000000")
	flags("X:Y:32", "X:Y:32,A:B C:0x40000000")
	flags("A:B C:0x20,X:Y:1", "A:B C:0x40000020,X:Y:1")
	flags("A:B C:junk", "")
	flags(strings.Repeat("VENDOR:PRODUCT:0x1,", 14), "")
}

// load makes an entry of a match block.
func load(t *testing.T, match string) *quirks.Entry {
	t.Helper()
	db, faults := quirks.Load(entryFS(match))
	if len(faults) > 0 {
		t.Fatalf("%s: %v", match, faults)
	}
	return db.Entries()[0]
}

func TestWhatCannotBeWritten(t *testing.T) {
	dev := &checker.Device{Name: "sda"}
	for _, c := range []struct{ match, want string }{
		{`any: [{device: {space: scsi, vendor: "A", product: "Some"}, stack: {over: [md]}}]`, "above a disk"},
		{`any: [{device: {space: scsi, vendor: "A", product: "Some"}, machine: {vendor: "D", bios_before: "2.1"}}]`, "BIOS"},
		{`any: [{device: {space: scsi, vendor: "A", product: "$$"}}]`, "nothing specific"},
		{`any: [{device: {space: scsi, vendor: "%%", product: "Some"}}]`, "nothing specific"},
		{`any: [{device: {space: ata, model: "Some", firmware: {bad: ["1"], below: "HPD8", order: {suffix_after: "HPD"}}}}]`, ""},
		{`any: [{device: {space: scsi, vendor: "A", product: "Some"}}]
  none: [{stack: {over: [md]}}]`, "above a disk"},
		{`any: [{device: {space: scsi, vendor: "A", product: "Some"}, kernel: {until: "5.0"}}]`, "no alternative"},
		{`any: [{device: {space: scsi, vendor: "A", product: "Some"}, path: [sbp2]}]`, "path"},
		{`any: [{device: {space: scsi, vendor: "A", product: "Some"}, adapter: {firmware: "1.0"}}]`, "adapter's"},
		{`any: [{device: {space: scsi, vendor: "A", product: "Some"}, stack: {over: [md]}}, {device: {space: scsi, vendor: "A", product: "Good"}}]`, ""},
	} {
		r := ruleOf(load(t, c.match), []*checker.Device{dev}, parse(t, "6.1.190"))
		if (r.err == nil) != (c.want == "") || r.err != nil && !strings.Contains(r.err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.match, r.err, c.want)
		}
	}
}

func TestConditions(t *testing.T) {
	for _, c := range []struct{ match, want string }{
		{`any: [{device: {space: ata, model: "Some"}, path: [libata]}]`, `KERNELS=="ata[0-9]*"`},
		{`any: [{device: {space: scsi, product: "Some"}, path: [uas]}]`, `DRIVERS=="uas"`},
		{`any: [{device: {space: scsi, product: "Some"}, machine: {vendor: "Dell*", board: "0X1"}}]`, `ATTR{[dmi/id]sys_vendor}=="Dell*", ATTR{[dmi/id]board_name}=="0X1"`},
		{`any: [{device: {space: scsi, product: "Some"}, adapter: {pci: ["1095:3112", "1002:436e:*:*"]}}]`, `SUBSYSTEMS=="pci", ATTRS{vendor}=="0x1002", ATTRS{device}=="0x436e"`},
		{`any: [{device: {space: nvme, model: "Some Disk", vid: "144d"}}]`, `SUBSYSTEMS=="pci", ATTRS{vendor}=="0x144d"`},
		{`any: [{usb: {id: "174c:55aa", bcd: "0100", speed: super-plus}}]`, `SUBSYSTEMS=="usb", ATTRS{idVendor}=="174c", ATTRS{idProduct}=="55aa", ATTRS{bcdDevice}=="0100", ATTRS{speed}=="10000|20000"`},
		{`any: [{device: {space: scsi, product: "Some*"}}]
  none: [{device: {space: scsi, product: "Some Good"}}]`, "ATTRS{model}==\"Some Good\", GOTO=\"quirkcheck_1_next\"\nATTRS{model}==\"Some*\", GOTO=\"quirkcheck_1_apply\""},
		// An exception rather takes away too much: only what sysfs shows is asked.
		{`any: [{device: {space: ata, model: "Some*"}}]
  none: [{device: {space: ata, model: "Some", firmware: "12345678"}}]`, "ATTRS{vendor}==\"ATA\", ATTRS{model}==\"Some\", ATTRS{rev}==\"5678\", GOTO=\"quirkcheck_1_next\""},
	} {
		r := ruleOf(load(t, c.match), nil, parse(t, "6.1.190"))
		if r.err != nil {
			t.Errorf("%s: %v", c.match, r.err)
			continue
		}
		var b strings.Builder
		udevRules(&b, []rule{r}, "quirkcheck")
		if !strings.Contains(b.String(), c.want) {
			t.Errorf("%s: no %s in\n%s", c.match, c.want, b.String())
		}
	}
}

// TestOrder: udev reads an attribute once per event, so the lowest limit must
// be the first and the last one looked at.
func TestOrder(t *testing.T) {
	a := newRule("a", "", 8191, nil)
	b := newRule("b", "", 512, nil)
	for _, r := range []*rule{&a, &b} {
		r.arms = []arm{{lines: []line{{conds: []cond{fixed("ATTRS{model}", "X")}}}}}
	}
	var out strings.Builder
	udevRules(&out, []rule{a, b}, "q")
	text := out.String()
	first, second := strings.Index(text, `max_sectors_kb}="256"`), strings.Index(text, `max_sectors_kb}="4095"`)
	if first < 0 || second < first || !strings.Contains(text[first:second], "\nGOTO=\"q_end\"\n") {
		t.Errorf("want 256, GOTO q_end, 4095 in\n%s", text)
	}
}

// FuzzRule: whatever a device calls itself, its rule has the lines and quotes
// it would have anyway, and holds for the device.
func FuzzRule(f *testing.F) {
	f.Add("ACME", "Disk", "1.0", 0)
	f.Add("A\"\nRUN+=\"/bin/sh", "$env{X}%k|*", "[!ab]\\", 1)
	f.Add("", "ATA|*", "\x00\xff", 2)
	f.Add("V", "ABCDEFGHIJKLMNOPQRST", "12345678", 1)
	f.Fuzz(func(t *testing.T, vendor, model, firmware string, space int) {
		d := &checker.Device{Name: "sda", Kind: "disk"}
		switch space % 3 {
		case 0:
			d.Identity.SCSI = &checker.SCSIIdentity{Vendor: &vendor, Product: &model, Revision: &firmware}
		case 1:
			d.Identity.ATA = &checker.ModelFirmware{Model: &model, Firmware: &firmware}
		default:
			d.Identity.NVMe = &checker.ModelFirmware{Model: &model, Firmware: &firmware}
		}
		write := func(d *checker.Device) (string, rule) {
			r := deviceRule("id", vendor+model+firmware, 1024, d)
			if r.err != nil {
				return "", r
			}
			var b strings.Builder
			udevRules(&b, []rule{r}, "q")
			return b.String(), r
		}
		text, r := write(d)
		if r.err != nil {
			return
		}
		for _, c := range []byte(text) {
			if c != '\n' && (c < 0x20 || c >= 0x7f) {
				t.Fatalf("control character %#x in\n%s", c, text)
			}
		}
		lines := strings.Split(text, "\n")
		quotes := 0
		for _, l := range lines {
			if strings.HasPrefix(l, "#") {
				continue
			}
			quotes += strings.Count(l, `"`)
			for pair := range strings.SplitSeq(l, `", `) { // each key has one value, which ends where it should
				if l != "" && strings.Count(strings.TrimSuffix(pair, `"`), `"`) != 1 {
					t.Fatalf("line %q", l)
				}
			}
		}
		// The same shape as the rule of a plain name as long.
		plainName := func(s string, n int) *string {
			g := literalGlob(s)
			out := strings.Repeat("A", max(len(g.toks), 1))
			return &out
		}
		p := &checker.Device{Name: "sda", Kind: "disk"}
		switch {
		case d.Identity.SCSI != nil:
			p.Identity.SCSI = &checker.SCSIIdentity{Vendor: plainName(vendor, 8), Product: plainName(model, 16), Revision: plainName(firmware, 4)}
		case d.Identity.ATA != nil:
			p.Identity.ATA = &checker.ModelFirmware{Model: plainName(model, 40), Firmware: plainName(firmware, 8)}
		default:
			p.Identity.NVMe = &checker.ModelFirmware{Model: plainName(model, 40), Firmware: plainName(firmware, 8)}
		}
		want, _ := write(p)
		if n := strings.Count(want, "\n"); n != len(lines)-1 {
			t.Fatalf("%d lines, want %d:\n%s", len(lines)-1, n, text)
		}
		wantQuotes := 0
		for l := range strings.Lines(want) {
			if !strings.HasPrefix(l, "#") {
				wantQuotes += strings.Count(l, `"`)
			}
		}
		if quotes != wantQuotes {
			t.Fatalf("%d quotes, want %d:\n%s", quotes, wantQuotes, text)
		}
		for _, a := range r.arms {
			for _, l := range a.lines {
				for _, c := range l.conds {
					if c.key != "ATTRS{model}" {
						continue
					}
					if slices.ContainsFunc(c.pats, func(p string) bool { return strings.ContainsAny(p, "*|[]\\") }) {
						t.Fatalf("%s is wider than one name", c.udev())
					}
					// Every byte of the name is itself or a `?`.
					got := c.pats[0]
					name := strings.Trim(model, " \x00")
					for i := range min(len(got), len(name)) {
						if got[i] != name[i] && got[i] != '?' {
							t.Fatalf("%q for %q", got, name)
						}
					}
				}
			}
		}
		for _, form := range []string{ere(r.arms[0].lines[0].conds[len(r.arms[0].lines[0].conds)-1].globs), shellPattern(r.arms[0].lines[0].conds[0].pats[0])} {
			if strings.ContainsAny(form, "\"\n\\$`") && strings.Count(form, "$") > 1 {
				t.Fatalf("%q", form)
			}
		}
		if strconv.Quote(comment(vendor)) == "" || strings.ContainsAny(comment(vendor), "\n\r") {
			t.Fatal("a comment is one line")
		}
	})
}
