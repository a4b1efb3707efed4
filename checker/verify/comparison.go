package verify

import (
	"context"

	"github.com/quirkcheck/quirkcheck/checker/verify/pattern"
)

// A Comparer is a Device that can have the device itself compare its medium
// with data: no read brings the answer, so it tells a damaged medium from a
// damaged read. data is whole logical blocks. It is not called while commands
// are on their way.
type Comparer interface {
	Compare(sector uint64, data []byte) (same bool, err error)
}

// comparison is what is known of a device's compare.
type comparison struct {
	asked   bool
	trusted bool
	answers int
}

// maxAnswers bounds how often a device is asked in a run.
const maxAnswers = 2

// canary finds out whether the device compares at all: it must find equal what
// is equal and, above all, different what is different. sector's block must
// hold what the window says.
func (r *run) canary(c Comparer, w *window, sector uint64) bool {
	if r.compared.asked {
		return r.compared.trusted
	}
	r.compared.asked = true
	p, err := r.buffer("compare", r.align(), Contiguous)
	if err != nil {
		return false
	}
	r.fillKnown(w, p, sector)
	same, err := c.Compare(sector, p)
	if err != nil || !same {
		return false
	}
	r.session.Fill(p, sector, r.next())
	if same, err = c.Compare(sector, p); err != nil {
		return false
	}
	if same {
		r.report.addNote("the device's own compare (VERIFY with BYTCHK, Compare) calls wrong data right, so it was not used")
		return false
	}
	r.compared.trusted = true
	return true
}

// fillKnown fills p with what the window says that the sectors hold.
func (r *run) fillKnown(w *window, p []byte, sector uint64) {
	for i, g := range w.at(sector, len(p)/SectorBytes) {
		r.session.Fill(p[i*SectorBytes:(i+1)*SectorBytes], sector+uint64(i), g)
	}
}

// askDevice has the device say whether its medium differs where a small read
// did. It is asked only where a canary passed.
func (r *run) askDevice(ctx context.Context, w *window, bad []badSector, start uint64) {
	c, ok := r.dev.(Comparer)
	if !ok || r.dev.Reach(PathCommand, Contiguous).Sectors == 0 || ctx.Err() != nil || r.compared.answers >= maxAnswers {
		return
	}
	n := r.align()
	isBad := map[uint64]bool{}
	for _, b := range bad {
		isBad[uint64(start64(start)+b.index)/uint64(n)] = true
	}
	block := uint64(start64(start)+bad[0].index) / uint64(n) * uint64(n)
	if block < w.Sector || block+uint64(n) > w.End() || hasUnknown(w, block, n) {
		return
	}
	// The canary is a block that reads back as it should.
	for good := w.Sector - w.Sector%uint64(n) + uint64(n); good+uint64(n) <= w.End(); good += uint64(n) {
		if isBad[good/uint64(n)] || hasUnknown(w, good, n) {
			continue
		}
		if !r.canary(c, w, good) {
			return
		}
		break
	}
	if !r.compared.trusted {
		return
	}
	p, err := r.buffer("compare", n, Contiguous)
	if err != nil {
		return
	}
	r.fillKnown(w, p, block)
	r.compared.answers++
	switch same, err := c.Compare(block, p); {
	case err != nil:
	case same:
		r.report.addNote("the device itself says that sector %d is as it was written, while small reads return something else: suspect the read path", block)
	default:
		r.report.addNote("the device itself says that its medium differs at sector %d: the damage is not made by reading it back", block)
	}
}

func hasUnknown(w *window, sector uint64, n int) bool {
	for _, g := range w.at(sector, n) {
		if g == 0 || g > pattern.MaxGeneration {
			return true
		}
	}
	return false
}
