package nvme

import (
	"fmt"
	"strings"
	"testing"
)

// A byte changes what the parser returns if and only if a field of the layout
// holds it.
func TestLayoutIsTheParsers(t *testing.T) {
	b := make([]byte, icSUBNQNEnd)
	b[icVID] = 1
	for i := icSUBNQN; i < icSUBNQNEnd; i++ {
		b[i] = 'n'
	}
	for _, s := range [][2]int{{icSN, icMN}, {icMN, icFR}, {icFR, icRAB}} {
		for i := s[0]; i < s[1]; i++ {
			b[i] = 'x'
		}
	}
	want, err := ParseIdentifyController(b)
	if err != nil {
		t.Fatal(err)
	}
	held, last := map[int]string{}, -1
	for _, f := range Layout() {
		if f.Offset <= last || f.Size < 1 {
			t.Errorf("%+v: out of order, or empty", f)
		}
		last = f.Offset
		for i := f.Offset; i < f.End(); i++ {
			held[i] = f.Name
		}
	}
	for i := range b {
		b[i] ^= 2
		got, err := ParseIdentifyController(b)
		if changed := err != nil || got != want; changed != (held[i] != "") {
			t.Errorf("byte %d: in field %q, but it changes the result: %t", i, held[i], changed)
		}
		b[i] ^= 2
	}
}

// print writes what nvme id-ctrl prints for people.
func print(d dump) string {
	w := d.NVMeCLI
	return fmt.Sprintf(`NVME Identify Controller:
vid       : %#x
ssvid     : %#x
sn        : %s
mn        : %s
fr        : %s
rab       : %d
ieee      : %06x
cmic      : %#x
  [3:3] : 0	ANA not supported
mdts      : %d
cntlid    : %#x
ver       : %#x
oaes      : %#x
ctratt    : %#x
oacs      : %#x
frmw      : %#x
apsta     : %#x
nn        : %d
oncs      : %#x
vwc       : %#x
sgls      : %#x
ps      0 : mp:8.00W operational enlat:0 exlat:0 rrt:0 rrl:0
vs[]:
       0  1  2  3  4  5  6  7  8  9  a  b  c  d  e  f
0000: 4d 14 4d 14 4d 14 4d 14 4d 14 4d 14 4d 14 4d 14 "M.M.M.M.M.M.M.M."
`, w.VID, w.SSVID, w.SN, w.MN, w.FR, w.RAB, w.IEEE, w.CMIC, w.MDTS, w.CNTLID, w.VER, w.OAES, w.CTRATT, w.OACS, w.FRMW,
		w.APSTA, w.NN, w.ONCS, w.VWC, w.SGLS)
}

func TestParseTextReadsBackWhatNVMeCLIPrints(t *testing.T) {
	for _, d := range dumps(t) {
		text := print(d)
		if !IsText([]byte(text)) || IsText(d.data) {
			t.Fatalf("%s: text is not told from bytes", d.File)
		}
		data, printed, _, err := ParseText([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		want, err := ParseIdentifyController(d.data)
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseIdentifyController(data)
		got.subnqn = want.subnqn
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", d.File, got, err, want)
		}
		if len(printed) != len(Layout())-1 || printed["subnqn"] {
			t.Errorf("%s: printed %v", d.File, printed)
		}
	}
}

func TestParseTextNamesTheLine(t *testing.T) {
	for _, bad := range []string{"mdts      : many", "mdts      : 256", "mdts      : -1", "mdts      :", "mn        : " + strings.Repeat("x", 41),
		"ieee      : 0xfffffff", "subnqn    : " + strings.Repeat("x", 257)} {
		if _, _, line, err := ParseText([]byte("NVME Identify Controller:\nvid : 0x1\n" + bad + "\n")); err == nil || line != 3 {
			t.Errorf("%q: got line %d, %v, want line 3", bad, line, err)
		}
	}
}

func TestParseTextTakesTheFirstOfTwo(t *testing.T) {
	data, _, _, err := ParseText([]byte("vid : 1\nmdts : 5\nmdts : 9\n"))
	if err != nil || data[icMDTS] != 5 {
		t.Errorf("mdts %d, %v, want 5", data[icMDTS], err)
	}
}

func FuzzParseText(f *testing.F) {
	for _, d := range dumps(f) {
		f.Add([]byte(print(d)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		data, printed, _, err := ParseText(b)
		if err != nil {
			return
		}
		held := make([]byte, len(data))
		for _, field := range Layout() {
			if printed[field.Name] {
				copy(held[field.Offset:field.End()], data[field.Offset:field.End()])
			}
		}
		if string(held) != string(data) {
			t.Fatalf("bytes outside the fields %v", printed)
		}
	})
}
