package pattern

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// Class is what a sector holds in place of what it should.
type Class string

// The classes.
const (
	InPlace     Class = "in-place"    // as it should be
	Flipped     Class = "flipped"     // at most seven bits differ
	Damaged     Class = "damaged"     // in place, but some words are not ours
	Stale       Class = "stale"       // this sector, of another generation
	Misdirected Class = "misdirected" // another sector's data
	Torn        Class = "torn"        // two tags, one before and one behind a word
	Shifted     Class = "shifted"     // our data, moved by words inside the sector
	Zeros       Class = "zeros"
	Ones        Class = "ones"
	Unfilled    Class = "unfilled" // the read left the buffer as it was
	Foreign     Class = "foreign"  // nothing of this session
)

// maxFlips is up to how many differing bits a sector counts as flipped.
const maxFlips = 7

// A Sector is a decoded sector.
type Sector struct {
	Class Class
	// LBA and Generation are those of the data found: of most words, and for
	// Torn of those before the boundary.
	LBA        uint64
	Generation uint32
	Intact     int // words that bear LBA and Generation, of 64
	// Boundary is the first word of the second tag (Torn), which is
	// LBA2, Generation2; or by how many words the data is shifted (Shifted).
	Boundary    int
	LBA2        uint64
	Generation2 uint32
	Flips       int // bits that differ from what should be there (Flipped)
}

// Limits bound what a tag may say, so that foreign data is not taken for ours
// by chance: the first sector that does not exist, and the last generation
// given out.
type Limits struct {
	Sectors    uint64
	Generation uint32
}

// Decode says what a sector holds that should hold the data of lba in
// generation. p has 512 bytes.
func (s *Session) Decode(p []byte, lba uint64, generation uint32, lim Limits) Sector {
	sector := (*[SectorBytes]byte)(p)
	if s.differs(sector, tag(lba, generation)) == 0 {
		return Sector{Class: InPlace, LBA: lba, Generation: generation, Intact: Words}
	}
	if n := s.flips(sector, tag(lba, generation)); n <= maxFlips {
		return Sector{Class: Flipped, LBA: lba, Generation: generation, Intact: s.intact(sector, lba, generation), Flips: n}
	}
	switch uniform(sector) {
	case 0:
		return Sector{Class: Zeros}
	case 0xff:
		return Sector{Class: Ones}
	}
	if s.differs(sector, s.poison()) == 0 {
		return Sector{Class: Unfilled}
	}
	var tags [Words]uint64
	for i := range tags {
		tags[i] = unmix(binary.LittleEndian.Uint64(sector[i*8:]) ^ s.table[i])
	}
	best, n := majority(tags[:], lim)
	if n >= 2 {
		d := Sector{LBA: best & MaxLBA, Generation: uint32(best >> lbaBits), Intact: n}
		switch {
		case torn(tags[:], lim, &d):
		case d.LBA != lba:
			d.Class = Misdirected
		case d.Generation != generation:
			d.Class = Stale
		default:
			d.Class = Damaged
		}
		return d
	}
	for shift := 1; shift < Words; shift++ {
		for i := range tags {
			tags[i] = unmix(binary.LittleEndian.Uint64(sector[i*8:]) ^ s.table[(i+shift)%Words])
		}
		// Half of the words, as there are 63 chances.
		if best, n := majority(tags[:], lim); n >= Words/2 {
			return Sector{Class: Shifted, LBA: best & MaxLBA, Generation: uint32(best >> lbaBits), Intact: n, Boundary: shift}
		}
	}
	return Sector{Class: Foreign}
}

// plausible bounds a tag.
func plausible(t uint64, lim Limits) bool {
	return t&MaxLBA < lim.Sectors && uint32(t>>lbaBits) <= lim.Generation && t>>lbaBits != 0
}

// majority returns the plausible tag that most words bear, and how many do.
func majority(tags []uint64, lim Limits) (best uint64, n int) {
	count := map[uint64]int{}
	for _, t := range tags {
		if !plausible(t, lim) {
			continue
		}
		count[t]++
		if c := count[t]; c > n {
			best, n = t, c
		}
	}
	return best, n
}

// torn looks for one boundary with one tag before and another behind it, both
// ours, at least two words each.
func torn(tags []uint64, lim Limits, d *Sector) bool {
	first, last := tags[0], tags[len(tags)-1]
	if first == last || !plausible(first, lim) || !plausible(last, lim) {
		return false
	}
	at := 0
	for at < len(tags) && tags[at] == first {
		at++
	}
	for _, t := range tags[at:] {
		if t != last {
			return false
		}
	}
	if at < 2 || len(tags)-at < 2 {
		return false
	}
	*d = Sector{Class: Torn, LBA: first & MaxLBA, Generation: uint32(first >> lbaBits), Intact: at, Boundary: at,
		LBA2: last & MaxLBA, Generation2: uint32(last >> lbaBits)}
	return true
}

func (s *Session) flips(p *[SectorBytes]byte, m uint64) (n int) {
	for i := range s.table {
		n += bits.OnesCount64(binary.LittleEndian.Uint64(p[i*8:]) ^ s.table[i] ^ m)
	}
	return n
}

func (s *Session) intact(p *[SectorBytes]byte, lba uint64, generation uint32) (n int) {
	m := tag(lba, generation)
	for i := range s.table {
		if binary.LittleEndian.Uint64(p[i*8:])^s.table[i] == m {
			n++
		}
	}
	return n
}

// uniform returns the byte that fills p, and -1 where several do.
func uniform(p *[SectorBytes]byte) int {
	for _, b := range p[1:] {
		if b != p[0] {
			return -1
		}
	}
	return int(p[0])
}

// Describe says it in words, for a sector that should have held lba in
// generation.
func (d Sector) Describe(lba uint64, generation uint32) string {
	switch d.Class {
	case InPlace:
		return "as written"
	case Flipped:
		return fmt.Sprintf("%d bits flipped", d.Flips)
	case Damaged:
		return fmt.Sprintf("in place, %d of %d words intact", d.Intact, Words)
	case Stale:
		return fmt.Sprintf("old data of this sector, %d generations back", int64(generation)-int64(d.Generation))
	case Misdirected:
		return fmt.Sprintf("the data of sector %d (%+d)", d.LBA, int64(d.LBA-lba))
	case Torn:
		return fmt.Sprintf("torn at byte %d: before it sector %d of generation %d, behind it sector %d of generation %d", d.Boundary*8, d.LBA, d.Generation, d.LBA2, d.Generation2)
	case Shifted:
		return fmt.Sprintf("shifted by %d bytes, of sector %d", d.Boundary*8, d.LBA)
	case Unfilled:
		return "the read left the buffer as it was"
	case Foreign:
		return "nothing that this run wrote"
	}
	return "all " + string(d.Class)
}
