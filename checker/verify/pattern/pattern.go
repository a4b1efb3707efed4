// Package pattern makes and reads test data in which every word says where and
// when it belongs.
//
// A sector of 512 bytes holds 64 little-endian words. Word i is
//
//	table[i] XOR mix(generation<<44 | LBA)
//
// with a table of random words, new for each session, and mix a bijection of
// 64 bits. So any intact word names its sector and its generation, data of an
// older session is foreign, no two sectors are equal (nothing to deduplicate)
// and no sector compresses. A generation is never used twice in a session,
// which is what makes a lost write visible: what lies there is another
// generation's.
package pattern

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// The layout.
const (
	SectorBytes = 512
	Words       = SectorBytes / 8
	lbaBits     = 44 // 8 PiB of sectors
	// MaxLBA is the last sector that a tag can name, and MaxGeneration the
	// last generation; then a new session must begin.
	MaxLBA        = 1<<lbaBits - 1
	MaxGeneration = 1<<(64-lbaBits) - 1
)

// A Session is one table. It is not changed after New and safe for use by
// many goroutines.
type Session struct {
	seed  uint64
	table [Words]uint64
}

// New returns the session of a seed. The same seed gives the same data, which
// is for reports to be repeated by; a run takes a fresh one.
func New(seed uint64) *Session {
	s := &Session{seed: seed}
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	copy(key[8:], "quirkcheck verify words")
	rng := rand.NewChaCha8(key)
	for i := range s.table {
		s.table[i] = rng.Uint64()
	}
	return s
}

// Seed returns what New was given.
func (s *Session) Seed() uint64 { return s.seed }

// mix is the finaliser of splitmix64, a bijection (Steele, Lea and Flood, "Fast
// Splittable Pseudorandom Number Generators", 2014).
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}

// unmix is its inverse: the multipliers are those of mix, inverted modulo
// 2^64.
func unmix(x uint64) uint64 {
	x ^= x>>31 ^ x>>62
	x *= 0x319642b2d24d8ec3
	x ^= x>>27 ^ x>>54
	x *= 0x96de1b173f119089
	return x ^ x>>30 ^ x>>60
}

func tag(lba uint64, generation uint32) uint64 {
	return mix(uint64(generation)<<lbaBits | lba)
}

// Fill fills p, whole sectors, with the data of a generation; its first
// sector is lba. It panics where p is not whole sectors, or lba or generation
// too large: the caller counts them.
func (s *Session) Fill(p []byte, lba uint64, generation uint32) {
	s.bound(p, lba, generation)
	for ; len(p) > 0; p, lba = p[SectorBytes:], lba+1 {
		s.fillSector((*[SectorBytes]byte)(p), tag(lba, generation))
	}
}

func (s *Session) fillSector(p *[SectorBytes]byte, m uint64) {
	for i := 0; i < Words; i += 8 {
		t, q := (*[8]uint64)(s.table[i:]), (*[64]byte)(p[i*8:])
		binary.LittleEndian.PutUint64(q[0:], t[0]^m)
		binary.LittleEndian.PutUint64(q[8:], t[1]^m)
		binary.LittleEndian.PutUint64(q[16:], t[2]^m)
		binary.LittleEndian.PutUint64(q[24:], t[3]^m)
		binary.LittleEndian.PutUint64(q[32:], t[4]^m)
		binary.LittleEndian.PutUint64(q[40:], t[5]^m)
		binary.LittleEndian.PutUint64(q[48:], t[6]^m)
		binary.LittleEndian.PutUint64(q[56:], t[7]^m)
	}
}

// Check returns the index of the first sector of p that does not hold the data
// of the generation in generations with its index, and -1 where all do. The
// first sector is lba.
func (s *Session) Check(p []byte, lba uint64, generations []uint32) int {
	if len(generations)*SectorBytes != len(p) {
		panic(fmt.Sprintf("pattern: %d bytes with %d generations", len(p), len(generations)))
	}
	for i, g := range generations {
		if s.differs((*[SectorBytes]byte)(p[i*SectorBytes:]), tag(lba+uint64(i), g)) != 0 {
			return i
		}
	}
	return -1
}

// differs is 0 where the sector holds the tag's data.
func (s *Session) differs(p *[SectorBytes]byte, m uint64) uint64 {
	var a, b uint64
	for i := 0; i < Words; i += 8 {
		t, q := (*[8]uint64)(s.table[i:]), (*[64]byte)(p[i*8:])
		a |= binary.LittleEndian.Uint64(q[0:]) ^ t[0] ^ m
		b |= binary.LittleEndian.Uint64(q[8:]) ^ t[1] ^ m
		a |= binary.LittleEndian.Uint64(q[16:]) ^ t[2] ^ m
		b |= binary.LittleEndian.Uint64(q[24:]) ^ t[3] ^ m
		a |= binary.LittleEndian.Uint64(q[32:]) ^ t[4] ^ m
		b |= binary.LittleEndian.Uint64(q[40:]) ^ t[5] ^ m
		a |= binary.LittleEndian.Uint64(q[48:]) ^ t[6] ^ m
		b |= binary.LittleEndian.Uint64(q[56:]) ^ t[7] ^ m
	}
	return a | b
}

func (s *Session) bound(p []byte, lba uint64, generation uint32) {
	if len(p)%SectorBytes != 0 || generation > MaxGeneration || lba+uint64(len(p)/SectorBytes) > MaxLBA {
		panic(fmt.Sprintf("pattern: %d bytes at sector %d of generation %d", len(p), lba, generation))
	}
}

// Poison fills a buffer before a read with bytes that no device holds, so that
// what the read left untouched shows as Unfilled. It is the same in each
// sector.
func (s *Session) Poison(p []byte) {
	if len(p) == 0 {
		return
	}
	m := s.poison()
	n := min(len(p), SectorBytes)
	var one [SectorBytes]byte
	s.fillSector(&one, m)
	copy(p, one[:n])
	for n < len(p) {
		n += copy(p[n:], p[:n])
	}
}

// Spoil is a cheap Poison: it changes a word in each sector of p, so that what a
// read leaves untouched is not taken for its answer.
func (s *Session) Spoil(p []byte) {
	word := s.table[0] ^ s.poison()
	for ; len(p) >= SectorBytes; p = p[SectorBytes:] {
		binary.LittleEndian.PutUint64(p, word)
	}
}

// poison is the tag of the sector that MaxLBA would have in the last
// generation, which no command is given.
func (s *Session) poison() uint64 { return tag(MaxLBA, MaxGeneration) }
