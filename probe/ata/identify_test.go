package ata

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	smart "github.com/dswarbrick/smart/ata"
	"github.com/google/go-cmp/cmp"
)

// A dump is one line of testdata/expected.jsonl with the words it is about.
type dump struct {
	File string
	Raw  struct {
		Model, Firmware, Serial string
		Signature               bool `json:"checksum_byte_a5"`
		SumOK                   bool `json:"sum_ok"`
	}
	Hdparm struct {
		Model, Serial, Firmware string
		Logical, Physical       string // bytes
		SectorSize              string `json:"sector_size"` // printed instead of Logical when word 106 is not valid
		LBA28, LBA48            string
		Rotation                string
		WWN                     string
		QueueDepth              string `json:"queue_depth"`
		Checksum                string
		NCQ, TRIM, RZAT         bool
	} `json:"hdparm_9_65"`
	Smartctl struct {
		Model    string `json:"model_name"`
		Serial   string `json:"serial_number"`
		Firmware string `json:"firmware_version"`
		WWN      *struct {
			NAA, OUI, ID uint64
		}
		Capacity struct{ Blocks, Bytes uint64 } `json:"user_capacity"`
		Logical  uint64                         `json:"logical_block_size"`
		Physical uint64                         `json:"physical_block_size"`
		Rotation *uint16                        `json:"rotation_rate"`
		TRIM     struct{ Supported, Deterministic, Zeroed bool }
	} `json:"smartctl_7_3"`
	data []byte
}

// dumps reads testdata and fails when a file has no answer or there is none.
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
		for _, word := range strings.Fields(string(text)) {
			n, err := strconv.ParseUint(word, 16, 16)
			if err != nil {
				t.Fatalf("%s: %v", d.File, err)
			}
			d.data = binary.LittleEndian.AppendUint16(d.data, uint16(n))
		}
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

func TestAgainstHdparmAndSmartctl(t *testing.T) {
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
			id, err := ParseIdentify(d.data)
			if err != nil {
				t.Fatal(err)
			}
			h, s := d.Hdparm, d.Smartctl
			equal("model, smartctl", id.Model, s.Model)
			equal("serial, smartctl", id.Serial, s.Serial)
			equal("firmware, smartctl", id.Firmware, s.Firmware)
			equal("model, hdparm", id.Model, h.Model)
			equal("serial, hdparm", id.Serial, h.Serial)
			equal("firmware, hdparm", id.Firmware, h.Firmware)
			equal("model, raw", id.Model, strings.Trim(d.Raw.Model, " \x00"))
			equal("ATAPI", id.ATAPI, false)

			sectors, ok := id.Sectors()
			equal("sectors ok", ok, true)
			equal("sectors, smartctl", sectors, s.Capacity.Blocks)
			lba := h.LBA48
			if lba == "" {
				lba = h.LBA28
			}
			equal("sectors, hdparm", fmt.Sprint(sectors), lba)

			logical, ok := id.LogicalSectorBytes()
			equal("logical ok", ok, true)
			equal("logical, smartctl", logical, s.Logical)
			equal("size", logical*sectors, s.Capacity.Bytes)
			// hdparm prints one size for both when word 106 is not valid.
			physical, ok := id.PhysicalSectorBytes()
			equal("physical ok", ok, h.SectorSize == "")
			if ok {
				equal("logical, hdparm", fmt.Sprint(logical), h.Logical)
				equal("physical, hdparm", fmt.Sprint(physical), h.Physical)
				equal("physical, smartctl", physical, s.Physical)
			} else {
				equal("logical, hdparm", fmt.Sprint(logical), h.SectorSize)
				equal("physical taken from logical, smartctl", logical, s.Physical)
			}

			rpm, ok := id.Rotation()
			equal("rotation ok", ok, s.Rotation != nil)
			if s.Rotation != nil {
				equal("rotation, smartctl", rpm, *s.Rotation)
			}
			rotation := ""
			if ok && rpm == 0 {
				rotation = "Solid State Device"
			} else if ok {
				rotation = fmt.Sprint(rpm)
			}
			equal("rotation, hdparm", rotation, h.Rotation)

			equal("TRIM, hdparm", id.TRIM, h.TRIM)
			equal("TRIM, smartctl", id.TRIM, s.TRIM.Supported)
			equal("DRAT, smartctl", id.DRAT, s.TRIM.Deterministic)
			equal("RZAT, smartctl", id.RZAT, s.TRIM.Zeroed)
			equal("RZAT, hdparm", id.RZAT, h.RZAT)
			equal("NCQ, hdparm", id.NCQ, h.NCQ)
			if depth, ok := id.QueueDepth(); ok {
				equal("queue depth, hdparm", fmt.Sprint(depth), h.QueueDepth)
			} else {
				equal("no queue depth without NCQ", id.NCQ, false)
			}

			// Both tools print a name of all zeros; here it is none.
			wwn, ok := id.WWN()
			if none := h.WWN == "" || h.WWN == "0000000000000000"; none {
				equal("WWN", ok, false)
				equal("WWN, smartctl", s.WWN == nil || s.WWN.NAA|s.WWN.OUI|s.WWN.ID == 0, true)
			} else {
				equal("WWN, hdparm", fmt.Sprintf("%016x", wwn), h.WWN)
				equal("WWN, smartctl", wwn, s.WWN.NAA<<60|s.WWN.OUI<<36|s.WWN.ID)
			}

			want := ChecksumBad
			if d.Raw.SumOK {
				want = ChecksumOK
			}
			equal("signature", d.Raw.Signature, true)
			equal("checksum", id.ChecksumState, want)
			equal("checksum, hdparm", id.ChecksumState == ChecksumOK, h.Checksum == "correct")
			files++
		})
	}
	t.Logf("compared %d fields in %d files", compared, files)
}

// words builds IDENTIFY DEVICE data from word numbers and values. Word 255 is
// left zero, and word 2 marks the data as not empty.
func words(w map[int]uint16) []byte {
	b := make([]byte, IdentifyBytes)
	binary.LittleEndian.PutUint16(b[2*2:], 0xc837)
	for n, v := range w {
		binary.LittleEndian.PutUint16(b[2*n:], v)
	}
	return b
}

func TestParseIdentifyRefuses(t *testing.T) {
	tests := []struct {
		name string
		in   []byte
		want error
	}{
		{"nothing", nil, ErrLength},
		{"one byte missing", words(nil)[:511], ErrLength},
		{"one byte too many", append(words(nil), 0), ErrLength},
		{"all zeros", make([]byte, IdentifyBytes), ErrNoData},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if id, err := ParseIdentify(tt.in); !errors.Is(err, tt.want) {
				t.Errorf("got %+v, %v, want %v", id, err, tt.want)
			}
		})
	}
}

func TestStringsAreSwappedAndTrimmed(t *testing.T) {
	text := func(b []byte, word int, s string) {
		for i := range s {
			b[2*word+i^1] = s[i]
		}
	}
	b := words(nil)
	text(b, 10, " \x00 SN  1\x00"+strings.Repeat(" ", 11))
	text(b, 23, "FW\x00\x1b[1m ")
	text(b, 27, "WDC  WUH721818ALN604"+strings.Repeat("\x00", 20))
	id, err := ParseIdentify(b)
	if err != nil {
		t.Fatal(err)
	}
	got := []string{id.Serial, id.Firmware, id.Model}
	want := []string{"SN  1", "FW\x00\x1b[1m", "WDC  WUH721818ALN604"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestNumbers checks the words that no dump varies.
func TestNumbers(t *testing.T) {
	type answer struct {
		N  uint64
		OK bool
	}
	sectors := func(id Identify) answer { n, ok := id.Sectors(); return answer{n, ok} }
	logical := func(id Identify) answer { n, ok := id.LogicalSectorBytes(); return answer{n, ok} }
	physical := func(id Identify) answer { n, ok := id.PhysicalSectorBytes(); return answer{n, ok} }
	rotation := func(id Identify) answer { n, ok := id.Rotation(); return answer{uint64(n), ok} }
	depth := func(id Identify) answer { n, ok := id.QueueDepth(); return answer{uint64(n), ok} }
	wwn := func(id Identify) answer { n, ok := id.WWN(); return answer{n, ok} }
	flag := func(get func(Identify) bool) func(Identify) answer {
		return func(id Identify) answer { return answer{OK: get(id)} }
	}
	atapi := flag(func(id Identify) bool { return id.ATAPI })
	trim := flag(func(id Identify) bool { return id.TRIM })
	ncq := flag(func(id Identify) bool { return id.NCQ })

	tests := []struct {
		name  string
		words map[int]uint16
		get   func(Identify) answer
		want  answer
	}{
		{"no LBA, no sectors", map[int]uint16{60: 1000}, sectors, answer{}},
		{"28-bit", map[int]uint16{49: 0x200, 60: 0x1234, 61: 0x0fff}, sectors, answer{0x0fff1234, true}},
		{"48-bit", map[int]uint16{49: 0x200, 60: 0xffff, 61: 0x0fff, 83: 0x4400, 100: 4, 101: 3, 102: 2, 103: 1}, sectors, answer{1<<48 | 2<<32 | 3<<16 | 4, true}},
		{"48-bit count of zero falls back", map[int]uint16{49: 0x200, 60: 9, 83: 0x4400}, sectors, answer{9, true}},
		{"word 83 not valid", map[int]uint16{49: 0x200, 60: 9, 83: 0x0400, 100: 5}, sectors, answer{9, true}},
		{"word 83 all ones", map[int]uint16{49: 0x200, 60: 9, 83: 0xffff, 100: 5}, sectors, answer{9, true}},
		{"packet device has no sectors", map[int]uint16{0: 0x85c0, 49: 0x200, 60: 9}, sectors, answer{}},

		{"no word 106, logical", nil, logical, answer{512, true}},
		{"no word 106, physical", nil, physical, answer{}},
		{"word 106 valid, logical", map[int]uint16{106: 0x4000}, logical, answer{512, true}},
		{"word 106 valid, physical", map[int]uint16{106: 0x4000}, physical, answer{512, true}},
		{"512e, logical", map[int]uint16{106: 0x6003}, logical, answer{512, true}},
		{"512e, physical", map[int]uint16{106: 0x6003}, physical, answer{4096, true}},
		{"4Kn, logical", map[int]uint16{106: 0x5000, 117: 2048}, logical, answer{4096, true}},
		{"4Kn, physical", map[int]uint16{106: 0x5000, 117: 2048}, physical, answer{4096, true}},
		{"exponent without its bit", map[int]uint16{106: 0x4003}, physical, answer{512, true}},
		{"largest sector does not overflow", map[int]uint16{106: 0x700f, 117: 0xffff, 118: 0xffff}, physical, answer{(1<<32 - 1) * 2 << 15, true}},
		{"too small a logical sector, logical", map[int]uint16{106: 0x5000, 117: 255}, logical, answer{}},
		{"too small a logical sector, physical", map[int]uint16{106: 0x7003, 117: 255}, physical, answer{}},
		{"word 106 all ones", map[int]uint16{106: 0xffff, 117: 0xffff}, logical, answer{512, true}},
		{"packet device has no sector size", map[int]uint16{0: 0x85c0, 106: 0x6003}, logical, answer{}},

		{"rotation not reported", nil, rotation, answer{}},
		{"non-rotating", map[int]uint16{217: 1}, rotation, answer{0, true}},
		{"reserved below", map[int]uint16{217: 0x400}, rotation, answer{}},
		{"lowest rpm", map[int]uint16{217: 0x401}, rotation, answer{0x401, true}},
		{"highest rpm", map[int]uint16{217: 0xfffe}, rotation, answer{0xfffe, true}},
		{"reserved above", map[int]uint16{217: 0xffff}, rotation, answer{}},

		{"NCQ", map[int]uint16{76: 0x0100}, ncq, answer{OK: true}},
		{"word 76 all ones is no NCQ", map[int]uint16{76: 0xffff}, ncq, answer{}},
		{"word 75 is not the SATA capabilities", map[int]uint16{75: 0x0100}, ncq, answer{}},
		{"depth is one more", map[int]uint16{75: 0xffe0, 76: 0x0100}, depth, answer{1, true}},
		{"full depth", map[int]uint16{75: 0x001f, 76: 0x0100}, depth, answer{32, true}},
		{"depth without NCQ", map[int]uint16{75: 0x001f}, depth, answer{}},

		{"WWN", map[int]uint16{87: 0x4100, 108: 0x5000, 109: 0xc500, 110: 1, 111: 2}, wwn, answer{0x5000c50000010002, true}},
		{"WWN without its bit", map[int]uint16{87: 0x4000, 108: 0x5000}, wwn, answer{}},
		{"WWN with word 87 not valid", map[int]uint16{87: 0xc100, 108: 0x5000}, wwn, answer{}},
		{"WWN of zeros", map[int]uint16{87: 0x4100}, wwn, answer{}},

		{"TRIM", map[int]uint16{80: 0x0080, 169: 1}, trim, answer{OK: true}},
		{"TRIM before ATA/ATAPI-7", map[int]uint16{80: 0x007f, 169: 1}, trim, answer{}},
		{"TRIM without a version", map[int]uint16{80: 0xffff, 169: 1}, trim, answer{}},

		{"ATA", map[int]uint16{0: 0x0040}, atapi, answer{}},
		{"ATAPI", map[int]uint16{0: 0x85c0}, atapi, answer{OK: true}},
		{"CompactFlash is no packet device", map[int]uint16{0: 0x848a}, atapi, answer{}},
		{"all ones is no packet device", map[int]uint16{0: 0xffff}, atapi, answer{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			id, err := ParseIdentify(words(tt.words))
			if err != nil {
				t.Fatal(err)
			}
			if got := tt.get(id); got != tt.want {
				t.Errorf("%#04x: got %v, want %v", tt.words, got, tt.want)
			}
		})
	}
}

func TestChecksumState(t *testing.T) {
	good := bytes.Clone(dumps(t)[0].data)
	bad := bytes.Clone(good)
	bad[100]++
	absent := bytes.Clone(good)
	absent[510] = 0
	for _, tt := range []struct {
		in   []byte
		want ChecksumState
	}{{good, ChecksumOK}, {bad, ChecksumBad}, {absent, ChecksumAbsent}} {
		id, err := ParseIdentify(tt.in)
		if err != nil {
			t.Fatal(err)
		}
		if id.ChecksumState != tt.want {
			t.Errorf("got %v, want %v", id.ChecksumState, tt.want)
		}
	}
}

// TestLibraryLayout holds what the package comment says of the library. When
// it fails, the library has changed: read its layout again.
func TestLibraryLayout(t *testing.T) {
	b := make([]byte, IdentifyBytes)
	for n := range 256 {
		binary.LittleEndian.PutUint16(b[2*n:], uint16(n))
	}
	var d smart.IdentifyDeviceData
	n, err := binary.Decode(b, binary.LittleEndian, &d)
	if err != nil || n != IdentifyBytes {
		t.Fatalf("decoded %d bytes, %v", n, err)
	}
	got := []uint16{d.GeneralConfig, d.MajorVersion, d.Word87, d.WWNRaw[0], d.RotationRate, d.SATACap}
	want := []uint16{0, 80, 87, 108, 217, 75} // the last should be 76
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("words (-want +got):\n%s", diff)
	}
}

func FuzzIdentify(f *testing.F) {
	for _, d := range dumps(f) {
		f.Add(d.data)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		id, err := ParseIdentify(b)
		if err != nil {
			if len(b) == IdentifyBytes && bytes.Count(b, []byte{0}) != len(b) {
				t.Fatalf("512 bytes that are not all zero: %v", err)
			}
			return
		}
		// A string, swapped back, is in the bytes it came from, and only blanks and
		// NULs are around it.
		for _, s := range []struct {
			name     string
			got      string
			from, to int
		}{{"serial", id.Serial, 10, 20}, {"firmware", id.Firmware, 23, 27}, {"model", id.Model, 27, 47}} {
			raw := bytes.Clone(b[2*s.from : 2*s.to])
			for i := 0; i < len(raw); i += 2 {
				raw[i], raw[i+1] = raw[i+1], raw[i]
			}
			before, after, ok := strings.Cut(string(raw), s.got)
			if !ok || strings.Trim(before+after, " \x00") != "" || strings.Trim(s.got, " \x00") != s.got {
				t.Fatalf("%s: %q from %q", s.name, s.got, raw)
			}
		}
		logical, lok := id.LogicalSectorBytes()
		physical, pok := id.PhysicalSectorBytes()
		if pok && (!lok || physical < logical || physical%logical != 0) || lok && (logical < 512 || logical%2 != 0) {
			t.Fatalf("sectors of %d, %t and %d, %t", logical, lok, physical, pok)
		}
		if n, ok := id.QueueDepth(); ok != id.NCQ || ok && (n < 1 || n > 32) {
			t.Fatalf("NCQ %t with depth %d, %t", id.NCQ, n, ok)
		}
		if n, ok := id.WWN(); ok {
			word := func(i int) uint64 { return uint64(binary.LittleEndian.Uint16(b[2*i:])) }
			if n != word(108)<<48|word(109)<<32|word(110)<<16|word(111) {
				t.Fatalf("WWN %016x", n)
			}
		}
		// A changed byte is noticed exactly when there is a sum to notice it.
		changed := bytes.Clone(b)
		changed[7]++
		again, err := ParseIdentify(changed)
		if err != nil && !errors.Is(err, ErrNoData) {
			t.Fatal(err)
		}
		if id.ChecksumState == ChecksumOK && again.ChecksumState != ChecksumBad ||
			id.ChecksumState == ChecksumAbsent && again.ChecksumState != ChecksumAbsent {
			t.Fatalf("checksum %v, after a change %v", id.ChecksumState, again.ChecksumState)
		}
	})
}

// parallel are the dumps of disks with a parallel bus, by their model names.
var parallel = []string{"IC25N020ATCS04_0__CA2OA71A.hex", "SAMSUNG_HS122JC__GQ100_01.hex", "ST320410A__3_39.hex", "WDC_WD2500JB_00REA0__20_00K20.hex"}

func TestNativeSATAAndLBA48(t *testing.T) {
	for _, d := range dumps(t) {
		id, err := ParseIdentify(d.data)
		if err != nil {
			t.Fatal(err)
		}
		if want := !slices.Contains(parallel, d.File); id.NativeSATA != want {
			t.Errorf("%s: native SATA %t, want %t", d.File, id.NativeSATA, want)
		}
		if want := d.Hdparm.LBA48 != ""; id.LBA48 != want {
			t.Errorf("%s: LBA48 %t, hdparm prints %q", d.File, id.LBA48, d.Hdparm.LBA48)
		}
	}
	set := func(words map[int]uint16) Identify {
		b := make([]byte, IdentifyBytes)
		for n, w := range words {
			binary.LittleEndian.PutUint16(b[2*n:], w)
		}
		id, err := ParseIdentify(b)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	for _, c := range []struct {
		name          string
		words         map[int]uint16
		sata, address bool
	}{
		{"ATA-8 without a reset result", map[int]uint16{80: 0x1f8}, true, false},
		{"ATA-5 is the first", map[int]uint16{80: 0x20}, true, false},
		{"ATA-4", map[int]uint16{80: 0x1e}, false, false},
		{"version not reported", map[int]uint16{80: 0xffff}, false, false},
		{"a reserved version", map[int]uint16{80: 0x8000}, false, false},
		{"a reset result", map[int]uint16{80: 0x1f8, 93: 0x6001}, false, false},
		{"48 bits", map[int]uint16{49: 1 << 9, 83: 0x4400, 100: 8}, false, true},
		{"48 bits, word 83 not valid", map[int]uint16{49: 1 << 9, 83: 0xc400, 100: 8}, false, false},
		{"48 bits of no sectors", map[int]uint16{49: 1 << 9, 83: 0x4400}, false, false},
		{"48 bits without LBA", map[int]uint16{83: 0x4400, 100: 8}, false, false},
		{"a packet device", map[int]uint16{0: 0x8580, 49: 1 << 9, 83: 0x4400, 100: 8}, false, false},
	} {
		if id := set(c.words); id.NativeSATA != c.sata || id.LBA48 != c.address {
			t.Errorf("%s: native SATA %t, LBA48 %t", c.name, id.NativeSATA, id.LBA48)
		}
	}
}
