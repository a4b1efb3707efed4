package pattern

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

var lim = Limits{Sectors: 1 << 34, Generation: 1000}

func sector(s *Session, lba uint64, generation uint32) []byte {
	p := make([]byte, SectorBytes)
	s.Fill(p, lba, generation)
	return p
}

func TestMixIsABijection(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 100_000 {
		x := rng.Uint64()
		if got := unmix(mix(x)); got != x {
			t.Fatalf("unmix(mix(%#x)) = %#x", x, got)
		}
	}
}

func TestFillAndCheck(t *testing.T) {
	s := New(1)
	const n = 100
	p := make([]byte, n*SectorBytes)
	gens := make([]uint32, n)
	for i := range gens {
		gens[i] = uint32(1 + i%3)
		s.Fill(p[i*SectorBytes:(i+1)*SectorBytes], 5000+uint64(i), gens[i])
	}
	if at := s.Check(p, 5000, gens); at != -1 {
		t.Fatalf("Check found sector %d of its own data", at)
	}
	// Each single bit matters.
	for bit := range SectorBytes * 8 {
		at := 37*SectorBytes + bit/8
		p[at] ^= 1 << (bit % 8)
		if got := s.Check(p, 5000, gens); got != 37 {
			t.Fatalf("bit %d: Check = %d, want 37", bit, got)
		}
		p[at] ^= 1 << (bit % 8)
	}
	if got := s.Check(p, 5001, gens); got != 0 {
		t.Errorf("Check a sector further on = %d, want 0", got)
	}
	if got := New(2).Check(p, 5000, gens); got != 0 {
		t.Errorf("another session's Check = %d, want 0", got)
	}
}

func TestNothingRepeats(t *testing.T) {
	s := New(3)
	seen := map[[8]byte]bool{}
	for lba := range uint64(64) {
		for g := range uint32(16) {
			p := sector(s, lba, g+1)
			for i := range Words {
				w := [8]byte(p[i*8:])
				if seen[w] {
					t.Fatalf("word %d of sector %d generation %d is there twice", i, lba, g)
				}
				seen[w] = true
			}
		}
	}
}

func TestDecode(t *testing.T) {
	s := New(4)
	const lba, generation = 123_456_789, 77
	good := func() []byte { return sector(s, lba, generation) }
	for _, c := range []struct {
		name string
		make func() []byte
		want Sector
	}{
		{"in place", good, Sector{Class: InPlace, LBA: lba, Generation: generation, Intact: 64}},
		{"one bit", func() []byte { p := good(); p[100] ^= 4; return p },
			Sector{Class: Flipped, LBA: lba, Generation: generation, Intact: 63, Flips: 1}},
		{"seven bits in seven words", func() []byte {
			p := good()
			for i := range 7 {
				p[i*8] ^= 1
			}
			return p
		}, Sector{Class: Flipped, LBA: lba, Generation: generation, Intact: 57, Flips: 7}},
		{"twenty bytes", func() []byte { p := good(); copy(p[80:100], bytes.Repeat([]byte{0x3c}, 20)); return p },
			Sector{Class: Damaged, LBA: lba, Generation: generation, Intact: 61}},
		{"stale", func() []byte { return sector(s, lba, generation-5) },
			Sector{Class: Stale, LBA: lba, Generation: generation - 5, Intact: 64}},
		{"from the future", func() []byte { return sector(s, lba, generation+1) },
			Sector{Class: Stale, LBA: lba, Generation: generation + 1, Intact: 64}},
		{"misdirected", func() []byte { return sector(s, lba+8, generation) },
			Sector{Class: Misdirected, LBA: lba + 8, Generation: generation, Intact: 64}},
		{"stale with a flipped bit", func() []byte { p := sector(s, lba, 3); p[9] ^= 1; return p },
			Sector{Class: Stale, LBA: lba, Generation: 3, Intact: 63}},
		{"torn at word 20", func() []byte {
			return append(sector(s, lba, generation)[:160], sector(s, lba, generation-1)[160:]...)
		}, Sector{Class: Torn, LBA: lba, Generation: generation, Intact: 20, Boundary: 20, LBA2: lba, Generation2: generation - 1}},
		{"shifted by two words", func() []byte { p := good(); return append(p[16:], p[:16]...) },
			Sector{Class: Shifted, LBA: lba, Generation: generation, Intact: 64, Boundary: 2}},
		{"shifted down, tail lost", func() []byte { return append(good()[8:], make([]byte, 8)...) },
			Sector{Class: Shifted, LBA: lba, Generation: generation, Intact: 63, Boundary: 1}},
		{"zeros", func() []byte { return make([]byte, SectorBytes) }, Sector{Class: Zeros}},
		{"ones", func() []byte { return bytes.Repeat([]byte{0xff}, SectorBytes) }, Sector{Class: Ones}},
		{"aa", func() []byte { return bytes.Repeat([]byte{0xaa}, SectorBytes) }, Sector{Class: Foreign}},
		{"unfilled", func() []byte { p := make([]byte, SectorBytes); s.Poison(p); return p }, Sector{Class: Unfilled}},
		{"another session", func() []byte { return sector(New(5), lba, generation) }, Sector{Class: Foreign}},
		{"behind the end of the disk", func() []byte { return sector(s, 1<<40, generation) }, Sector{Class: Foreign}},
		{"a generation not given out", func() []byte { return sector(s, lba, 1001) }, Sector{Class: Foreign}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := s.Decode(c.make(), lba, generation, lim); got != c.want {
				t.Errorf("got  %+v\nwant %+v", got, c.want)
			}
			if got := s.Decode(c.make(), lba, generation, lim).Describe(lba, generation); got == "" {
				t.Error("nothing to say")
			}
		})
	}
}

func TestPoisonFillsAll(t *testing.T) {
	s := New(6)
	p := make([]byte, 5*SectorBytes)
	s.Poison(p)
	for i := range 5 {
		if d := s.Decode(p[i*SectorBytes:(i+1)*SectorBytes], 9, 9, lim); d.Class != Unfilled {
			t.Errorf("sector %d: %s", i, d.Class)
		}
	}
	s.Poison(nil)
}

func TestSpoilLeavesNoSectorWhole(t *testing.T) {
	s := New(6)
	gens := []uint32{1, 2, 3}
	p := append(append(sector(s, 9, 1), sector(s, 10, 2)...), sector(s, 11, 3)...)
	if s.Check(p, 9, gens) != -1 {
		t.Fatal("not whole before")
	}
	s.Spoil(p)
	for i := range gens {
		if s.Check(p[i*SectorBytes:(i+1)*SectorBytes], 9+uint64(i), gens[i:i+1]) != 0 {
			t.Errorf("sector %d is still whole", i)
		}
	}
}

// FuzzDecode: never a panic, and nothing that is not ours passes for whole.
func FuzzDecode(f *testing.F) {
	s := New(7)
	f.Add(sector(s, 1, 1), uint64(1), uint32(1))
	f.Add(append(sector(s, 1, 1)[:256], sector(s, 2, 1)[256:]...), uint64(1), uint32(1))
	f.Add(make([]byte, SectorBytes), uint64(0), uint32(5))
	f.Fuzz(func(t *testing.T, p []byte, lba uint64, generation uint32) {
		if len(p) < SectorBytes {
			return
		}
		p = p[:SectorBytes]
		lba, generation = lba%lim.Sectors, 1+generation%lim.Generation
		d := s.Decode(p, lba, generation, lim)
		if (d.Class == InPlace) != bytes.Equal(p, sector(s, lba, generation)) {
			t.Errorf("%s for data that is not", d.Class)
		}
		d.Describe(lba, generation)
	})
}

// The peer of these two is memmove in the same run: see docs/performance.md.
const benchBytes = 4 << 20

func BenchmarkMemmove(b *testing.B) {
	src, dst := make([]byte, benchBytes), make([]byte, benchBytes)
	b.SetBytes(benchBytes)
	for b.Loop() {
		copy(dst, src)
	}
}

func BenchmarkFill(b *testing.B) {
	s, p := New(1), make([]byte, benchBytes)
	b.SetBytes(benchBytes)
	for b.Loop() {
		s.Fill(p, 1000, 3)
	}
}

func BenchmarkCheck(b *testing.B) {
	s, p := New(1), make([]byte, benchBytes)
	gens := make([]uint32, benchBytes/SectorBytes)
	for i := range gens {
		gens[i] = 3
	}
	s.Fill(p, 1000, 3)
	b.SetBytes(benchBytes)
	for b.Loop() {
		if s.Check(p, 1000, gens) != -1 {
			b.Fatal("differs")
		}
	}
}
