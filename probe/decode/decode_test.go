package decode

import (
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/quirkcheck/quirkcheck/probe/ata"
	"github.com/quirkcheck/quirkcheck/probe/nvme"
	"github.com/quirkcheck/quirkcheck/probe/scsi"
)

// A decoder is one of the functions under test.
type decoder func([]byte) (*Structure, error)

func controller(b []byte) (*Structure, error) { return IdentifyController(b, 4096, nil) }

// input is a recorded answer of a device with its decoder.
type input struct {
	name   string
	decode decoder
	least  int // bytes below which it may refuse
	data   []byte
}

// recorded returns every recorded dump that decode has a kind for.
func recorded(t testing.TB) []input {
	t.Helper()
	var all []input
	for _, dir := range []string{"scsi", "ata", "nvme"} {
		files, err := filepath.Glob("../" + dir + "/testdata/*.hex")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d dumps, %v", dir, len(files), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			in := input{filepath.Base(file), VPD, 4, b}
			switch {
			case dir == "ata":
				for i := 0; i < len(b); i += 2 {
					b[i], b[i+1] = b[i+1], b[i]
				}
				in.decode, in.least = Identify, 1
			case dir == "nvme":
				in.decode, in.least = controller, 1
			case strings.Contains(in.name, "inq"):
				in.decode, in.least = Inquiry, 1
			case in.name == "ml_toshiba_MK1059GSM_0.hex": // READ CAPACITY(16)
				continue
			}
			all = append(all, in)
		}
	}
	if len(all) < 80 {
		t.Fatalf("only %d dumps", len(all))
	}
	return all
}

// Whatever a cut dump still says is what the whole one said, whatever comes after
// the cut, and the rest is missing: nothing turns into zero.
func TestACutDumpSaysNothingElse(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for _, in := range recorded(t) {
		whole, err := in.decode(in.data)
		if err != nil {
			t.Fatalf("%s: %v", in.name, err)
		}
		if len(whole.Fields) < 4 {
			t.Errorf("%s: only %d fields", in.name, len(whole.Fields))
		}
		for n := in.least; n < len(in.data); n += 1 + rnd.IntN(1+len(in.data)/64) {
			cut, err := in.decode(in.data[:n:n])
			if err != nil {
				if errors.Is(err, ata.ErrNoData) || errors.Is(err, nvme.ErrNoData) {
					continue // it begins with zeros
				}
				t.Fatalf("%s cut to %d: %v", in.name, n, err)
			}
			if !cut.Truncated && n < whole.Claimed {
				t.Errorf("%s cut to %d of %d: not truncated", in.name, n, whole.Claimed)
			}
			for _, f := range cut.Fields {
				w, ok := whole.Field(f.Name)
				switch {
				case !ok:
					t.Errorf("%s cut to %d: a new field %s", in.name, n, f.Name)
				case f.State == Missing:
					if f.Value != nil {
						t.Errorf("%s cut to %d: %s is missing and %v", in.name, n, f.Name, f.Value)
					}
				case f.State != w.State || !prefix(f.Value, w.Value):
					t.Errorf("%s cut to %d: %s is %v (state %d), was %v (state %d)", in.name, n, f.Name, f.Value, f.State, w.Value, w.State)
				}
			}
			if len(cut.Fields) != len(whole.Fields) {
				t.Errorf("%s cut to %d: %d fields, were %d", in.name, n, len(cut.Fields), len(whole.Fields))
			}
		}
	}
}

// prefix reports whether a value is the whole's, or of a list its start.
func prefix(got, want any) bool {
	g, ok := got.([]string)
	w, _ := want.([]string)
	if ok && len(g) <= len(w) {
		return slices.Equal(g, w[:len(g)])
	}
	return reflect.DeepEqual(got, want)
}

func blockLimits(length byte, set func(b []byte)) []byte {
	b := make([]byte, 64)
	b[1], b[3] = 0xb0, length
	set(b)
	return b[:min(64, 4+int(length))]
}

func TestBlockLimitsStates(t *testing.T) {
	tests := []struct {
		name  string
		in    []byte
		field string
		value any
		state State
	}{
		{"zero is no limit", blockLimits(60, func([]byte) {}), "vpd_max_transfer_blocks", nil, NotReported},
		{"a limit", blockLimits(60, func(b []byte) { b[10], b[11] = 0xff, 0xff }), "vpd_max_transfer_blocks", uint64(65535), Known},
		{"the largest limit", blockLimits(60, func(b []byte) { copy(b[8:], "\xff\xff\xff\xff") }), "vpd_max_transfer_blocks", uint64(0xffffffff), Known},
		{"a limit behind the cut", blockLimits(60, func(b []byte) { b[11] = 1 })[:11], "vpd_max_transfer_blocks", nil, Missing},
		{"a limit before the cut", blockLimits(60, func(b []byte) { b[11] = 1 })[:12], "vpd_max_transfer_blocks", uint64(1), Known},
		{"behind the page of SBC-2", blockLimits(12, func([]byte) {}), "vpd_max_unmap_blocks", nil, Absent},
		{"behind the page, bytes after it", append(blockLimits(12, func([]byte) {}), make([]byte, 48)...), "vpd_max_unmap_blocks", nil, Absent},
		{"a page too short for its first limit", blockLimits(4, func([]byte) {}), "vpd_max_transfer_blocks", nil, Absent},
		{"in a page too short for its first limit", blockLimits(4, func(b []byte) { b[5] = 7 }), "vpd_max_compare_and_write_blocks", uint64(7), Known},
		{"UNMAP without limit", blockLimits(60, func(b []byte) { copy(b[20:], "\xff\xff\xff\xff") }), "vpd_max_unmap_blocks", nil, NotReported},
		{"no UNMAP", blockLimits(60, func([]byte) {}), "vpd_max_unmap_blocks", uint64(0), Known},
		{"alignment not valid", blockLimits(60, func(b []byte) { b[35] = 1 }), "vpd_unmap_alignment_blocks", nil, NotReported},
		{"alignment", blockLimits(60, func(b []byte) { b[32], b[35] = 0x80, 1 }), "vpd_unmap_alignment_blocks", uint64(1), Known},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := VPD(tt.in)
			if err != nil {
				t.Fatal(err)
			}
			f, ok := s.Field(tt.field)
			if !ok || f.Value != tt.value || f.State != tt.state {
				t.Errorf("got %+v, want %v in state %d", f, tt.value, tt.state)
			}
		})
	}
}

func TestDataOfAnotherKind(t *testing.T) {
	find := func(name string) []byte {
		for _, in := range recorded(t) {
			if in.name == name {
				return in.data
			}
		}
		t.Fatalf("no %s", name)
		return nil
	}
	tests := []struct {
		name   string
		decode decoder
		in     []byte
		want   string
	}{
		{"page b0h as INQUIRY", Inquiry, find("k617_scsi_debug_pgb0.hex"), "vpd"},
		{"page 80h as INQUIRY", Inquiry, find("k617_scsi_debug_pg80.hex"), "vpd"},
		{"page 00h as INQUIRY", Inquiry, find("k617_scsi_debug_pg0.hex"), "vpd"},
		{"INQUIRY as page", VPD, find("k617_scsi_debug_inquiry.hex"), "inquiry"},
		{"INQUIRY of a removable device as page", VPD, find("k617_GH82N_inquiry.hex"), "inquiry"},
		{"page 89h as IDENTIFY", Identify, find("asi_pg89_ata1.hex"), "vpd"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := tt.decode(tt.in)
			var other *OtherError
			if !errors.As(err, &other) || other.Kind != tt.want {
				t.Errorf("got %+v, %v, want kind %s", s, err, tt.want)
			}
		})
	}
}

func TestRefuses(t *testing.T) {
	tests := []struct {
		name   string
		decode decoder
		in     []byte
		want   error
	}{
		{"no INQUIRY", Inquiry, nil, scsi.ErrShort},
		{"a page without header", VPD, []byte{0, 0xb0, 0}, scsi.ErrShort},
		{"no IDENTIFY", Identify, nil, ata.ErrLength},
		{"IDENTIFY of zeros", Identify, make([]byte, 512), ata.ErrNoData},
		{"IDENTIFY and a byte", Identify, make([]byte, 513), ata.ErrLength},
		{"no Identify", controller, nil, nvme.ErrShort},
		{"Identify of zeros", controller, make([]byte, 4096), nvme.ErrNoData},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if s, err := tt.decode(tt.in); !errors.Is(err, tt.want) {
				t.Errorf("got %+v, %v, want %v", s, err, tt.want)
			}
		})
	}
	if s, err := controller(make([]byte, 4097)); err == nil {
		t.Errorf("Identify and a byte: got %+v", s)
	}
}

func TestMDTS(t *testing.T) {
	for _, tt := range []struct {
		mdts byte
		page uint64
		want any
	}{{0, 4096, nil}, {5, 4096, uint64(256)}, {5, 65536, uint64(4096)}, {255, 4096, nil}} {
		b := make([]byte, 4096)
		b[0], b[77] = 1, tt.mdts
		s, err := IdentifyController(b, tt.page, nil)
		if err != nil {
			t.Fatal(err)
		}
		if f, ok := s.Field("mdts_sectors"); !ok || f.Value != tt.want {
			t.Errorf("MDTS %d of %d bytes: got %+v, want %v", tt.mdts, tt.page, f, tt.want)
		}
	}
}

func TestFieldsNotPrintedAreMissing(t *testing.T) {
	data, printed, _, err := nvme.ParseText([]byte("vid : 0x144d\nmn : A DISK\nmdts : 0\n"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := IdentifyController(data, 4096, printed)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]State{"vid": Known, "model": Known, "mdts": NotReported, "mdts_sectors": NotReported, "firmware": Missing, "oncs": Missing,
		"subnqn": Missing, "volatile_write_cache": Missing} {
		if f, ok := s.Field(name); !ok || f.State != want {
			t.Errorf("%s: got %+v, want state %d", name, f, want)
		}
	}
	if !s.Truncated {
		t.Error("not truncated")
	}
}

func TestNotes(t *testing.T) {
	var whole []byte
	for _, in := range recorded(t) {
		if strings.HasPrefix(in.name, "KINGSTON_SH103S3240G") {
			whole = slices.Clone(in.data)
		}
	}
	swapped := slices.Clone(whole)
	for i := 0; i < len(swapped); i += 2 {
		swapped[i], swapped[i+1] = swapped[i+1], swapped[i]
	}
	page := func(size, at int, data []byte, command byte) []byte {
		b := make([]byte, size)
		b[1], b[2], b[3] = 0x89, byte((size-4)>>8), byte(size-4)
		b[56] = command
		copy(b[at:], data)
		return b
	}
	tests := []struct {
		name   string
		decode decoder
		in     []byte
		want   string // "" for no note
	}{
		{"IDENTIFY as it is", Identify, whole, ""},
		{"IDENTIFY swapped", Identify, swapped, "seem to be swapped"},
		{"page 89h", VPD, page(572, 60, whole, 0xec), ""},
		{"page 89h of zeros", VPD, page(572, 60, nil, 0xec), "no device answered"},
		{"page 89h of another command", VPD, page(572, 60, whole, 0x00), "neither IDENTIFY command"},
		{"a page not decoded", VPD, []byte{0, 0xb9, 0, 1, 0}, "not decoded"},
		{"bytes behind the page", VPD, []byte{0, 0x80, 0, 1, 'A', 0, 0}, "the 2 behind them"},
		{"pages out of order", VPD, []byte{0, 0x00, 0, 2, 0x80, 0x00}, "ascending"},
		{"pages cut", VPD, []byte{0, 0x00, 0, 4, 0x00, 0x80}, "2 of 4 pages are missing"},
		{"a designator too long", VPD, []byte{0, 0x83, 0, 5, 1, 3, 0, 8, 0x50}, "list of designators is cut"},
		{"INQUIRY of ATA", Inquiry, append([]byte{0, 0, 5, 2, 31, 0, 0, 0}, "ATA     ST380013AS      3.20"...), "half of the firmware"},
		{"INQUIRY of another vendor", Inquiry, append([]byte{0, 0, 5, 2, 31, 0, 0, 0}, "HGST    HUS726060AL5210 A519"...), ""},
		{"INQUIRY that ends early", Inquiry, append([]byte{0, 0, 5, 2, 0, 0, 0, 0}, "HGST    HUS726060AL5210 A519"...), "before the strings end"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := tt.decode(tt.in)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(s.Notes, "; "); (tt.want == "") != (got == "") || !strings.Contains(got, tt.want) {
				t.Errorf("got notes %q, want %q", got, tt.want)
			}
		})
	}
}

func TestWhatNamesOneDeviceIsPersonal(t *testing.T) {
	names := map[string]int{"serial": 0, "wwn": 0, "subnqn": 0, "designator_values": 0}
	for _, in := range recorded(t) {
		s, err := in.decode(in.data)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range s.Fields {
			if _, want := names[f.Name]; f.Personal != want {
				t.Errorf("%s: %s: personal %t, want %t", in.name, f.Name, f.Personal, want)
			} else if want {
				names[f.Name]++
			}
		}
	}
	for name, n := range names {
		if n == 0 {
			t.Errorf("no dump has %s", name)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, in := range recorded(f) {
		f.Add(in.data)
		f.Add(in.data[:len(in.data)/2])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, decode := range []decoder{Inquiry, VPD, Identify, controller} {
			s, err := decode(b)
			if err != nil {
				if s != nil {
					t.Fatalf("%v, and %+v", err, s)
				}
				continue
			}
			if s.Length != len(b) || len(s.Fields) == 0 || s.Title == "" {
				t.Fatalf("%+v", s)
			}
			seen := map[string]bool{}
			for _, f := range s.Fields {
				if seen[f.Name] || f.Where == "" || (f.Value != nil) != (f.State == Known) {
					t.Fatalf("%s twice, without a place, or with a value in state %d: %+v", f.Name, f.State, f)
				}
				seen[f.Name] = true
				switch f.Value.(type) {
				case nil, string, bool, uint64, []string:
				default:
					t.Fatalf("%s is a %T", f.Name, f.Value)
				}
			}
		}
	})
}
