package verify

import (
	"fmt"
	"slices"

	"github.com/quirkcheck/quirkcheck/checker/verify/pattern"
)

// Class is what a command did to data, or in place of it.
type Class string

// The classes of faults. What a write leaves behind is named for the medium,
// what a read returns for the buffer.
const (
	ClassLost      Class = "lost"      // the whole write was acknowledged and is not there
	ClassTruncated Class = "truncated" // from some sector on old data stays; reading: the buffer is not filled
	ClassZeroed    Class = "zeroed"    // from some sector on, or throughout, there are zeros
	ClassOnes      Class = "ones"      // the same with ones
	ClassTorn      Class = "torn"      // some parts are new and some old
	ClassShifted   Class = "shifted"   // from some sector on the data is a few sectors off
	ClassMisplaced Class = "misplaced" // all of the data is somewhere else
	ClassWrapped   Class = "wrapped"   // the address counter within the command wraps
	ClassStray     Class = "stray"     // sectors outside the command were overwritten
	ClassFlipped   Class = "flipped"   // single bits
	ClassDamaged   Class = "damaged"   // more than single bits, in place
	ClassForeign   Class = "foreign"   // data that this run never wrote
	ClassStale     Class = "stale"     // a read returned older data than is on the medium
	ClassMixed     Class = "mixed"     // several of these at once
	ClassError     Class = "error"     // reported as an error
	ClassTimeout   Class = "timeout"   // no answer in time
	ClassReset     Class = "reset"     // answered after a reset
	ClassAddress   Class = "address"   // addresses wrap at a power of two
	ClassPlace     Class = "place"     // only at one end of the target
	ClassUnstable  Class = "unstable"  // the same sectors read differently each time
	ClassDiffers   Class = "differs"   // a large read and small reads disagree (reading only)
	ClassSlow      Class = "slow"      // far slower than the others
	ClassGone      Class = "gone"      // the device went away, or another answered
)

// An Example is one sector that is not as it should be.
type Example struct {
	Sector     uint64 `json:"sector"` // of the target
	InCommand  int64  `json:"in_command"`
	Found      string `json:"found"` // in words
	Class      string `json:"class"`
	SourceLBA  uint64 `json:"source_sector"`
	Generation uint32 `json:"generation"`
	Wanted     uint32 `json:"wanted_generation"`
	Boundary   int    `json:"boundary_word"`
	// The first 32 bytes, in hex.
	WantHex string `json:"want_hex"`
	GotHex  string `json:"got_hex"`
}

// damage is what one command did.
type damage struct {
	class    Class
	from     int   // first sector of the command that is wrong
	shift    int64 // ClassShifted, ClassMisplaced: sectors from where it belongs to where it is
	modulus  int   // ClassWrapped: sectors
	unit     int   // ClassTorn: sectors that all boundaries are multiples of
	wrong    int   // sectors of the command
	outside  int   // sectors outside it
	flips    int
	examples []Example
}

// badSector is a sector that is not as it should be; index counts from the
// start of the command and is negative before it.
type badSector struct {
	index int64
	pattern.Sector
}

// classify says what a command of size sectors at start did, from the sectors
// that are wrong. generation is that of the command's own data, for a read that
// of what the medium holds: in read the notions of moved and old data turn
// around.
func classify(start uint64, size int, generation uint32, bad []badSector, read bool) damage {
	d := damage{from: -1}
	count := map[pattern.Class]int{}
	var inside []badSector
	moved := map[int64]int{} // sector outside the command that hold its data, by distance
	for _, b := range bad {
		if b.index < 0 || b.index >= int64(size) {
			d.outside++
			if b.Class == pattern.Misdirected && b.Generation == generation {
				moved[start64(start)+b.index-start64(b.LBA)]++
			}
			continue
		}
		if d.from < 0 {
			d.from = int(b.index)
		}
		inside = append(inside, b)
		count[b.Class]++
		d.flips += b.Flips
	}
	d.wrong = len(inside)
	d.from = max(d.from, 0)
	suffix := len(inside) > 0 && d.from+len(inside) == size // one run up to the end
	only := func(classes ...pattern.Class) bool {
		n := 0
		for _, c := range classes {
			n += count[c]
		}
		return n == len(inside)
	}
	switch {
	case len(inside) == 0:
		d.class = ClassStray
	case only(pattern.Flipped):
		d.class = ClassFlipped
	case only(pattern.Flipped, pattern.Damaged, pattern.Shifted):
		d.class = ClassDamaged
	case only(pattern.Zeros):
		d.class = ClassZeroed
	case only(pattern.Ones):
		d.class = ClassOnes
	case only(pattern.Unfilled):
		d.class = ClassTruncated
	case only(pattern.Foreign):
		d.class = ClassForeign
	case read && count[pattern.Stale] > 0 && only(pattern.Stale, pattern.Torn, pattern.Zeros, pattern.Foreign):
		d.class = ClassStale // before the run there was something else, or nothing
	case only(pattern.Stale, pattern.Torn):
		shift, n := most(moved)
		switch {
		case n > 0:
			d.class, d.shift = ClassMisplaced, shift
			if d.from > 0 {
				d.class = ClassShifted
			}
		case suffix && d.from == 0 && count[pattern.Torn] == 0:
			d.class = ClassLost
		case suffix && count[pattern.Torn] == 0:
			d.class = ClassTruncated
		default:
			d.class, d.unit = ClassTorn, boundaryUnit(inside, size)
		}
	case count[pattern.Misdirected] > 0:
		classifyMoved(&d, start, size, generation, inside, moved, read)
	default:
		d.class = ClassMixed
	}
	return d
}

// strayDamage is that of a write which reached sectors outside it.
func strayDamage(s stray, n int) damage {
	return damage{class: ClassStray, outside: n, examples: []Example{{Sector: s.sector, Class: string(s.Class), Found: s.Describe(s.sector, 0),
		SourceLBA: s.LBA, Generation: s.Generation}}}
}

func start64(n uint64) int64 { return int64(n) }

// classifyMoved handles commands in which some sectors hold another's data.
func classifyMoved(d *damage, start uint64, size int, generation uint32, inside []badSector, outside map[int64]int, read bool) {
	d.class = ClassMixed
	by := map[int64]int{} // sectors by how far their data has moved
	firstMoved := -1
	other := 0
	tail := size // first sector of the run of old data at the end
	for _, b := range inside {
		if b.Class != pattern.Misdirected || !read && b.Generation != generation {
			other++
			continue
		}
		if firstMoved < 0 {
			firstMoved = int(b.index)
		}
		by[start64(start)+b.index-start64(b.LBA)]++
	}
	for i := len(inside) - 1; i >= 0 && inside[i].Class == pattern.Stale && int(inside[i].index) == tail-1; i-- {
		tail--
	}
	if firstMoved < 0 {
		return // old data that had moved before: no pattern of this command
	}
	// A counter that wraps at m puts sector m+i at i, and leaves old data from
	// m on; reading, sector i shows again at m+i.
	wraps := func(m int) bool {
		for dist := range by {
			if m <= 0 || dist%int64(m) != 0 || (dist > 0) != read {
				return false
			}
		}
		return true
	}
	switch {
	case read && d.from > 0 && d.from == firstMoved && other == 0 && by[int64(d.from)] > 0 && wraps(d.from):
		d.class, d.modulus = ClassWrapped, d.from
		return
	case !read && d.outside == 0 && tail < size && firstMoved < tail && wraps(tail):
		d.class, d.modulus = ClassWrapped, tail
		return
	}
	shift, n := most(by)
	if n+other < d.wrong || n*2 < d.wrong && other > int(abs(shift)) {
		return
	}
	// Sectors that the moved data left behind hold old data.
	d.shift = shift
	switch {
	case d.from > 0:
		d.class = ClassShifted
	default:
		d.class = ClassMisplaced
	}
}

func abs(n int64) int64 { return max(n, -n) }

// most returns the key with the highest count, the smallest of equals.
func most(m map[int64]int) (key int64, n int) {
	for k, c := range m {
		if c > n || c == n && k < key {
			key, n = k, c
		}
	}
	return key, n
}

// boundaryUnit is the largest number of sectors that all changes between good
// and bad are multiples of.
func boundaryUnit(bad []badSector, size int) int {
	unit := 0
	edge := func(n int) {
		for n != 0 {
			unit, n = n, unit%n
		}
	}
	for i, b := range bad {
		if i == 0 || bad[i-1].index != b.index-1 {
			edge(int(b.index))
		}
		if i == len(bad)-1 || bad[i+1].index != b.index+1 {
			if end := int(b.index) + 1; end != size {
				edge(end)
			}
		}
	}
	return unit
}

// words describes the damage in a sentence's second half.
func (d damage) words(op Op) string {
	if op == Read {
		switch d.class {
		case ClassTruncated:
			return fmt.Sprintf("each read leaves the buffer unfilled from sector %d on", d.from)
		case ClassZeroed:
			return fmt.Sprintf("each read returns zeros from sector %d on", d.from)
		case ClassOnes:
			return fmt.Sprintf("each read returns ones from sector %d on", d.from)
		case ClassShifted:
			return fmt.Sprintf("the data of each read, from sector %d on, is %d sectors off", d.from, abs(d.shift))
		case ClassMisplaced:
			return fmt.Sprintf("each read returns data from %d sectors off", abs(d.shift))
		case ClassWrapped:
			return fmt.Sprintf("each read starts over after %d sectors", d.modulus)
		case ClassFlipped:
			return "reads return flipped bits"
		case ClassStale:
			return "reads return older data than is on the medium"
		case ClassDamaged:
			return "reads return damaged data"
		case ClassForeign:
			return "reads return data that was never written"
		case ClassUnstable:
			return "the same sectors read differently each time"
		}
	}
	switch d.class {
	case ClassLost:
		return "writes are acknowledged and lost"
	case ClassTruncated:
		return fmt.Sprintf("the tail of each write, from sector %d on, keeps old data", d.from)
	case ClassZeroed:
		if d.from == 0 {
			return "writes leave zeros"
		}
		return fmt.Sprintf("the tail of each write, from sector %d on, is zeroed", d.from)
	case ClassOnes:
		return fmt.Sprintf("writes leave ones from sector %d on", d.from)
	case ClassTorn:
		return fmt.Sprintf("writes are torn: parts of them (of %d sectors) keep old data", d.unit)
	case ClassShifted:
		return fmt.Sprintf("the data of each write, from sector %d on, lands %+d sectors off", d.from, d.shift)
	case ClassMisplaced:
		return fmt.Sprintf("writes land %+d sectors off", d.shift)
	case ClassWrapped:
		return fmt.Sprintf("each write starts over after %d sectors and overwrites its own beginning", d.modulus)
	case ClassStray:
		return "writes also overwrite sectors outside them"
	case ClassFlipped:
		return "writes flip bits"
	case ClassDamaged:
		return "writes damage data"
	case ClassForeign:
		return "writes leave data that was never written"
	case ClassUnstable:
		return "the same sectors read differently each time"
	case ClassError:
		return op.String() + "s fail with an error"
	case ClassTimeout:
		return op.String() + "s time out"
	case ClassReset:
		return op.String() + "s end in a reset"
	case ClassDiffers:
		return "large reads differ from small ones"
	case ClassPlace:
		return op.String() + "s of this size fail in one place"
	case ClassGone:
		return "the device goes away on " + op.String() + "s"
	case ClassSlow:
		return op.String() + "s take far longer than their size explains"
	}
	return "the data is damaged in several ways"
}

// merge adds another command's damage: what both say stays.
func (d *damage) merge(o damage) {
	if d.class != o.class {
		d.class = mergedClass(d.class, o.class)
	}
	d.from = min(d.from, o.from)
	if d.shift != o.shift {
		d.shift = 0
	}
	if d.modulus != o.modulus {
		d.modulus = 0
	}
	for n, m := o.unit, d.unit; ; n, m = m%n, n {
		if n == 0 {
			d.unit = m
			break
		}
	}
	d.wrong, d.outside, d.flips = max(d.wrong, o.wrong), max(d.outside, o.outside), max(d.flips, o.flips)
	for _, e := range o.examples {
		if len(d.examples) < maxExamples {
			d.examples = append(d.examples, e)
		}
	}
}

// maxExamples are kept of a fault.
const maxExamples = 3

// mergedClass is the class of a fault whose commands differ in theirs. A
// write torn at random may look cut off, or lost, once.
func mergedClass(a, b Class) Class {
	in := func(set ...Class) bool { return slices.Contains(set, a) && slices.Contains(set, b) }
	switch {
	case in(ClassTorn, ClassTruncated, ClassLost):
		return ClassTorn
	case in(ClassFlipped, ClassDamaged):
		return ClassDamaged
	case in(ClassMisplaced, ClassLost): // where it fell outside
		return ClassMisplaced
	case in(ClassShifted, ClassTruncated):
		return ClassShifted
	case in(ClassStale, ClassZeroed, ClassForeign) && (a == ClassStale || b == ClassStale):
		return ClassStale
	}
	return ClassMixed
}
