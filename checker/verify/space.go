package verify

import (
	"fmt"
	"math/rand/v2"
)

// space is the part of the target that a run uses, and what each of its
// sectors should hold.
type space struct {
	windows []*window
}

// A window is a run of sectors; generations[i] is what sector first+i holds,
// 0 for unknown.
type window struct {
	Extent
	generations []uint32
	// random windows are where random places come from; the others are for
	// places chosen on purpose.
	random bool
}

func newSpace(random, special []Extent) *space {
	s := &space{}
	for _, e := range random {
		s.windows = append(s.windows, &window{Extent: e, generations: make([]uint32, e.Sectors), random: true})
	}
	for _, e := range special {
		s.windows = append(s.windows, &window{Extent: e, generations: make([]uint32, e.Sectors)})
	}
	return s
}

// of returns the window that holds all of a range, nil where none does.
func (s *space) of(sector uint64, n int) *window {
	for _, w := range s.windows {
		if sector >= w.Sector && sector+uint64(n) <= w.End() {
			return w
		}
	}
	return nil
}

// at returns the generations of a range inside the window.
func (w *window) at(sector uint64, n int) []uint32 {
	i := sector - w.Sector
	return w.generations[i : i+uint64(n)]
}

func (w *window) set(sector uint64, n int, generation uint32) {
	g := w.at(sector, n)
	for i := range g {
		g[i] = generation
	}
}

// forget makes all unknown: another session begins.
func (s *space) forget() {
	for _, w := range s.windows {
		clear(w.generations)
	}
}

// guarded widens a range by n sectors to each side within its window, to
// whole blocks of align sectors.
func (w *window) guarded(sector uint64, size, n, align int) (from uint64, to uint64) {
	a := uint64(align)
	from = w.Sector
	if sector > w.Sector+uint64(n) {
		from = max(w.Sector, (sector-uint64(n))/a*a)
	}
	to = min(w.End(), (sector+uint64(size)+uint64(n)+a-1)/a*a)
	return from, to
}

// places returns depth starts for commands of size sectors, a guard apart, in
// one random window; all at a multiple of align plus off, counted from base
// sectors before the target's start. The ranges do not overlap. nil where no
// window is large enough.
func (s *space) places(rng *rand.Rand, base uint64, size, depth, align, off int) []uint64 {
	stride := (uint64(size)+uint64(off)+uint64(align)-1)/uint64(align)*uint64(align) + uint64(align)
	need := stride * uint64(depth)
	var fit []*window
	var total uint64
	for _, w := range s.windows {
		if w.random && w.Sectors >= need {
			fit = append(fit, w)
			total += w.Sectors
		}
	}
	if len(fit) == 0 {
		return nil
	}
	at := rng.Uint64N(total)
	w := fit[0]
	for _, f := range fit {
		if w = f; at < f.Sectors {
			break
		}
		at -= f.Sectors
	}
	first := (w.Sector+base+uint64(align)-1)/uint64(align)*uint64(align) - base
	if first+need > w.End() {
		return nil
	}
	slots := (w.End()-first-need)/uint64(align) + 1
	start := first + rng.Uint64N(slots)*uint64(align)
	out := make([]uint64, depth)
	for i := range out {
		out[i] = start + uint64(i)*stride + uint64(off)
	}
	rng.Shuffle(depth, func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// largest is the size of the largest random window.
func (s *space) largest() (n uint64) {
	for _, w := range s.windows {
		if w.random {
			n = max(n, w.Sectors)
		}
	}
	return n
}

func (e Extent) String() string { return fmt.Sprintf("sectors %d to %d", e.Sector, e.End()-1) }
