package nvme

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A dump is one line of testdata/expected.jsonl with the bytes it is about.
type dump struct {
	File    string
	NVMeCLI struct {
		VID, SSVID   uint16
		SN, MN, FR   string
		RAB          uint8
		IEEE         uint32
		CMIC         uint8
		MDTS         uint8
		CNTLID       uint16
		VER          uint32
		OAES, CTRATT uint32
		OACS         uint16
		FRMW, APSTA  uint8
		NN           uint32
		ONCS         uint16
		VWC          uint8
		SGLS         uint32
	} `json:"nvme_cli_2_3"`
	data []byte
}

// dumps reads testdata, fills the dumps up as nvme-cli saw them, and fails when a file
// has no answer or there is none.
func dumps(t testing.TB) []dump {
	t.Helper()
	f, err := os.Open("testdata/expected.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []dump
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var d dump
		if err := json.Unmarshal(sc.Bytes(), &d); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join("testdata", d.File))
		if err != nil {
			t.Fatal(err)
		}
		b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
		if err != nil || len(b) > IdentifyBytes {
			t.Fatalf("%s: %d bytes, %v", d.File, len(b), err)
		}
		d.data = make([]byte, IdentifyBytes)
		copy(d.data, b)
		all = append(all, d)
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("testdata/*.hex")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) == 0 || len(files) != len(all) {
		t.Fatalf("%d dumps, %d answers in expected.jsonl", len(files), len(all))
	}
	return all
}

func TestAgainstNVMeCLI(t *testing.T) {
	files, compared := 0, 0
	for _, d := range dumps(t) {
		t.Run(d.File, func(t *testing.T) {
			equal := func(name string, got, want any) {
				t.Helper()
				compared++
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
			c, err := ParseIdentifyController(d.data)
			if err != nil {
				t.Fatal(err)
			}
			w := d.NVMeCLI
			equal("vid", c.VID, w.VID)
			equal("ssvid", c.SSVID, w.SSVID)
			equal("sn", c.SN, strings.TrimSpace(w.SN))
			equal("mn", c.MN, strings.TrimSpace(w.MN))
			equal("fr", c.FR, strings.TrimSpace(w.FR))
			equal("rab", c.RAB, w.RAB)
			equal("ieee", uint32(c.IEEE[0])|uint32(c.IEEE[1])<<8|uint32(c.IEEE[2])<<16, w.IEEE)
			equal("cmic", c.CMIC, w.CMIC)
			equal("mdts", c.MDTS, w.MDTS)
			equal("cntlid", c.CNTLID, w.CNTLID)
			equal("ver", c.VER, w.VER)
			equal("oaes", c.OAES, w.OAES)
			equal("ctratt", c.CTRATT, w.CTRATT)
			equal("oacs", c.OACS, w.OACS)
			equal("frmw", c.FRMW, w.FRMW)
			equal("apsta", c.APSTA, w.APSTA)
			equal("nn", c.NN, w.NN)
			equal("oncs", c.ONCS, w.ONCS)
			equal("vwc", c.VWC, w.VWC)
			equal("sgls", c.SGLS, w.SGLS)
			n, ok := c.MaxTransferBytes(4096)
			equal("mdts in bytes", n, uint64(4096)<<w.MDTS)
			equal("mdts ok", ok, true)
			files++
		})
	}
	t.Logf("compared %d fields in %d files", compared, files)
}

func TestMaxTransferBytes(t *testing.T) {
	tests := []struct {
		name string
		mdts uint8
		page uint64
		want uint64
		ok   bool
	}{
		{"zero means no limit", 0, 4096, 0, false},
		{"units of pages", 5, 4096, 128 << 10, true},
		{"larger pages", 5, 65536, 2 << 20, true},
		{"page size not known", 5, 0, 0, false},
		{"largest that fits", 51, 4096, 1 << 63, true},
		{"one more does not fit", 52, 4096, 0, false},
		{"page with more than one bit", 51, 4097, 4097 << 51, true},
		{"page with more than one bit does not fit", 52, 4097, 0, false},
		{"largest MDTS", 255, 1, 0, false},
		{"largest page", 1, math.MaxUint64, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := IdentifyController{MDTS: tt.mdts}
			if n, ok := c.MaxTransferBytes(tt.page); n != tt.want || ok != tt.ok {
				t.Errorf("MDTS %d of %d bytes: got %d, %t, want %d, %t", tt.mdts, tt.page, n, ok, tt.want, tt.ok)
			}
		})
	}
}

func TestParseIdentifyControllerRefuses(t *testing.T) {
	whole := dumps(t)[0].data
	tests := []struct {
		name string
		in   []byte
		want error
	}{
		{"nothing", nil, ErrShort},
		{"a capture of 512 bytes", whole[:512], ErrShort},
		{"SUBNQN cut", whole[:1023], ErrShort},
		{"all zeros", make([]byte, IdentifyBytes), ErrNoData},
		{"through SUBNQN", whole[:1024], nil},
		{"whole", whole, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if c, err := ParseIdentifyController(tt.in); !errors.Is(err, tt.want) {
				t.Errorf("got %+v, %v, want %v", c, err, tt.want)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	tests := []struct {
		name            string
		ver             uint32
		major           uint16
		minor, tertiary uint8
		ok              bool
	}{
		{"zero is before 1.2", 0, 0, 0, 0, false},
		{"1.2.1", 0x010201, 1, 2, 1, true},
		{"2.0", 0x020000, 2, 0, 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			major, minor, tertiary, ok := IdentifyController{VER: tt.ver}.Version()
			if major != tt.major || minor != tt.minor || tertiary != tt.tertiary || ok != tt.ok {
				t.Errorf("%#x: got %d.%d.%d, %t", tt.ver, major, minor, tertiary, ok)
			}
		})
	}
}

func TestSUBNQN(t *testing.T) {
	tests := []struct {
		name, in, want string
		ok             bool
	}{
		{"none", "", "", false},
		{"ends at the first NUL", "nqn.2014-08.org.example:a\x00junk", "nqn.2014-08.org.example:a", true},
		{"no NUL at all", strings.Repeat("n", 300), strings.Repeat("n", 256), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := make([]byte, IdentifyBytes)
			b[icVWC] = 1
			copy(b[icSUBNQN:], tt.in)
			c, err := ParseIdentifyController(b)
			if err != nil {
				t.Fatal(err)
			}
			if got, ok := c.SUBNQN(); got != tt.want || ok != tt.ok {
				t.Errorf("got %q, %t, want %q, %t", got, ok, tt.want, tt.ok)
			}
			if !c.VolatileWriteCache() {
				t.Error("no volatile write cache")
			}
		})
	}
}

func FuzzIdentifyController(f *testing.F) {
	for _, d := range dumps(f) {
		f.Add(d.data)
		f.Add(d.data[:icSUBNQNEnd])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ParseIdentifyController(b)
		if err != nil {
			if len(b) >= icSUBNQNEnd && !errors.Is(err, ErrNoData) {
				t.Fatal(err)
			}
			return
		}
		// The fields, encoded again, are the input's own bytes.
		out := bytes.Clone(b)
		le := binary.LittleEndian
		le.PutUint16(out[icVID:], c.VID)
		le.PutUint16(out[icSSVID:], c.SSVID)
		out[icRAB] = c.RAB
		copy(out[icIEEE:], c.IEEE[:])
		out[icCMIC], out[icMDTS] = c.CMIC, c.MDTS
		le.PutUint16(out[icCNTLID:], c.CNTLID)
		le.PutUint32(out[icVER:], c.VER)
		le.PutUint32(out[icOAES:], c.OAES)
		le.PutUint32(out[icCTRATT:], c.CTRATT)
		le.PutUint16(out[icOACS:], c.OACS)
		out[icFRMW], out[icAPSTA], out[icVWC] = c.FRMW, c.APSTA, c.VWC
		le.PutUint32(out[icNN:], c.NN)
		le.PutUint16(out[icONCS:], c.ONCS)
		le.PutUint32(out[icSGLS:], c.SGLS)
		if nqn, ok := c.SUBNQN(); ok {
			copy(out[icSUBNQN:icSUBNQNEnd], nqn+"\x00")
		}
		if !bytes.Equal(out, b) {
			t.Fatalf("encoded again:\n got % x\nwant % x", out, b)
		}
		for _, s := range []struct {
			got      string
			from, to int
		}{{c.SN, icSN, icMN}, {c.MN, icMN, icFR}, {c.FR, icFR, icRAB}} {
			before, after, ok := strings.Cut(string(b[s.from:s.to]), s.got)
			if !ok || strings.Trim(before+after, " \x00") != "" || strings.Trim(s.got, " \x00") != s.got {
				t.Fatalf("%q from %q", s.got, b[s.from:s.to])
			}
		}
		if n, ok := c.MaxTransferBytes(4096); ok != (c.MDTS > 0 && c.MDTS < 52) || ok && n>>c.MDTS != 4096 {
			t.Fatalf("MDTS %d is %d bytes, %t", c.MDTS, n, ok)
		}
	})
}
