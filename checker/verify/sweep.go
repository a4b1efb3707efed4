package verify

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// What the search for a threshold may cost and miss.
const (
	// missChance is the chance that a size is called clean though a fault of
	// the rate seen strikes there. A search takes about twenty decisions, so
	// that fewer than one in a hundred thresholds is wrong.
	missChance = 0.01 / 20
	// wantedFailures are collected to know a fault's rate.
	wantedFailures = 10
	maxRateTries   = 400
	// maxRepeats bounds the commands of one decision; where it is too few the
	// threshold is printed as an interval.
	maxRepeats = 600
	// maxEdges bounds the edges of a set of bad sizes that are narrowed down.
	maxEdges = 12
	// maxMemory bounds the commands that are on their way at once, in bytes.
	maxMemory = 64 << 20
)

// A fault is what was found in one direction with one setup.
type fault struct {
	op Op
	su Setup
	result
	good int // the largest size below all bad ones that was tried and is clean
	bad  int // the smallest size that failed
	// ranges are the sizes that failed, in ascending order; between the last
	// size tried of one and the first of the next all sizes tried are clean.
	ranges  []Range
	modulus int // all sizes above good that are no multiple of it are bad, the others not
	exact   bool
	fails   int // of tries, where the rate was measured
	tries   int
	repeats int // commands without a failure behind good
	note    string

	conditional bool   // it takes the setup; the plain one is clean at these sizes
	place       string // where it was met, in words
	edge        uint64 // ClassAddress: the first sector that cannot be addressed
	tested      int    // the largest size tried
	openEnd     bool   // the last range goes on beyond what was tried
}

// A Range is sizes in sectors, both ends included.
type Range struct {
	From int `json:"from"`
	To   int `json:"to"`
}

// step is the granularity of sizes on a path.
func (r *run) step(p Path) int {
	if p == PathCommand {
		return r.info.LogicalBlock
	}
	return max(r.info.PhysicalBlock, r.info.LogicalBlock)
}

// depthFor reduces a depth to what memory and the target allow for a size.
func (r *run) depthFor(size, depth int) int {
	stride := max(4096, (size+4095)/4096*4096)
	return max(1, min(depth, maxMemory/SectorBytes/stride))
}

// largest is the largest command to be tried in a setup, and what bounds it:
// what can be sent, the options, the target's room, and on a device that others
// use its present limit.
func (r *run) largest(su Setup) (int, string) {
	reach := r.dev.Reach(su.Path, su.Shape)
	n, why := reach.Sectors, reach.Why
	if present := r.dev.Reach(PathBlock, Contiguous).Sectors; r.info.Shared && r.o.LargestSectors == 0 && present > 0 && n > present {
		n, why = present, "the device is in use, and its present limit is no larger; --largest says otherwise"
	}
	if r.o.LargestSectors > 0 && n > r.o.LargestSectors {
		n, why = r.o.LargestSectors, "--largest"
	}
	if room := int(min(r.space.largest()/4, 1<<30)); n > room {
		n, why = room, "a quarter of the region used"
	}
	return n / r.step(su.Path) * r.step(su.Path), why
}

// Tries for a size that was not reached, which may be somebody else's doing, and
// how many such sizes one after the other end a sweep.
const (
	reachTries = 3
	maxMisses  = 3
)

// sweep tries sizes in ascending order, and looks into each direction that
// fails. below bounds a direction's sizes (exclusive); 0 leaves it open.
func (r *run) sweep(ctx context.Context, su Setup, sizes []int, repeats int, below map[Op]int) (faults []*fault, err error) {
	active := dirs{write: r.o.Mode.Writes(), read: true}
	last := map[Op]int{}
	misses := 0
	for _, size := range sizes {
		do := active
		if b := below[Write]; b > 0 && size >= b {
			do.write = false
		}
		if b := below[Read]; b > 0 && size >= b {
			do.read = false
		}
		if !do.any() || r.stopped || misses == maxMisses {
			break
		}
		row := r.row(su, size)
		asked := do
		r.latency, r.proof = [2][]time.Duration{}, unset
		record := Record{Setup: su, Sectors: size}
		met := func(op Op, res result) error {
			record.Faults = append(record.Faults, RecordFault{op.String(), res.damage.class, res.proved, res.failure})
			if op == Write {
				active.write, do.write = false, false
			} else {
				active.read, do.read = false, false
			}
			f, err := r.analyse(ctx, su, op, sizes, last[op], size, res)
			if f != nil {
				faults = append(faults, f)
			}
			return err
		}
		skip, err := r.prior(row, asked, repeats, met)
		if err != nil {
			return faults, err
		}
		if skip {
			last[Write], last[Read] = size, size
			continue
		}
		latency, proof := r.latency, r.proof
		tries := 0
		for i := 0; i < repeats && do.any() && !r.stopped; i++ {
			with := su
			if with.Depth = r.depthFor(size, su.Depth); with.Depth < su.Depth && with.Depth == 1 {
				row.NotReached = "no memory for several at a time"
				break
			}
			r.latency, r.proof = latency, proof
			asking := do
			o, err := r.trial(ctx, size, with, do)
			latency, proof = r.latency, r.proof
			if err != nil {
				return faults, err
			}
			r.tick(size)
			if o.notReached != "" {
				if tries++; tries < reachTries {
					i--
					continue
				}
				row.NotReached = o.notReached
				break
			}
			row.count(asking, o)
			for _, op := range []Op{Write, Read} {
				if res := o.of(op); res != nil {
					if !res.proved && res.failure == nil {
						row.Note = "data was damaged, but nothing proves the size that did it"
					}
					if err := met(op, *res); err != nil {
						return faults, err
					}
				}
			}
			// A write that had looked right was found to have reached further.
			if f, err := r.strayed(ctx, su, sizes); f != nil || err != nil {
				if f != nil {
					faults = append(faults, f)
				}
				if err != nil {
					return faults, err
				}
				active.write, do.write = false, false
			}
		}
		r.latency, r.proof = latency, proof
		row.finish(r, asked)
		misses++
		if row.NotReached == "" {
			misses = 0
			for _, op := range []Op{Write, Read} {
				n, was := row.Write, asked.write
				if op == Read {
					n, was = row.Read, asked.read
				}
				if !was || n.Failed > 0 {
					continue
				}
				if f := r.slow(su, op, size, last[op]); f != nil {
					faults = append(faults, f)
					if op == Write {
						active.write = false
					} else {
						active.read = false
					}
					continue
				}
				last[op] = size
			}
		}
		if r.o.Record != nil {
			record.Write, record.Read, record.Latency, record.Proof = row.Write, row.Read, row.Latency, row.Proof
			if row.NotReached != "" {
				continue // another run may reach it
			}
			if err := r.o.Record(record); err != nil {
				return faults, r.stop("keep the result of %d sectors: %v", size, err)
			}
		}
	}
	return faults, nil
}

// strayed looks into the first write that had looked right and was found to
// have overwritten other sectors.
func (r *run) strayed(ctx context.Context, su Setup, sizes []int) (*fault, error) {
	if len(r.strays) == 0 {
		return nil, nil
	}
	s := r.strays[0]
	size := r.sent[s.Generation]
	r.strays = nil
	if r.lookedStray {
		return nil, nil // looked into already
	}
	r.lookedStray, r.lookAll = true, true
	defer func() { r.lookAll, r.strays = false, nil }()
	good := 0
	for _, g := range sizes {
		if g < size {
			good = g
		}
	}
	return r.analyse(ctx, su, Write, sizes, good, size, result{damage: strayDamage(s, 1), proved: true})
}

// slowFactor is how many times longer than its size explains a command must
// take to be called slow.
const slowFactor = 10

// slow makes a fault of a size whose commands, half of them at least, take a
// second and far more than smaller ones of the same direction do for their
// size. Single outliers are noted.
func (r *run) slow(su Setup, op Op, size, good int) *fault {
	l := latencyOf(r.latency[op])
	after := r.slowAfter()
	if l.Max >= after && (l.Max > slowFactor*max(l.P50, time.Millisecond) || l.P50 >= after) {
		r.row(su, size).Slow = true
		r.report.addNote("%d sectors (%s): the slowest of %d %ss took %s, half of them at most %s", size, kib(size), len(r.latency[op]), op, l.Max.Round(time.Millisecond), l.P50.Round(10*time.Microsecond))
	}
	best := time.Duration(0) // for a sector, the fastest size before
	for _, w := range r.report.Sizes {
		if w.Setup == su && w.Sectors < size {
			m := w.WriteP50
			if op == Read {
				m = w.ReadP50
			}
			if m > 0 && (best == 0 || m/time.Duration(w.Sectors) < best) {
				best = max(1, m/time.Duration(w.Sectors))
			}
		}
	}
	if l.P50 < after || best == 0 || l.P50 < slowFactor*best*time.Duration(size) {
		return nil
	}
	return &fault{op: op, su: su, good: good, bad: size, ranges: []Range{{size, size}}, fails: 1, tries: 1,
		result: result{damage: damage{class: ClassSlow}, proved: true}, note: fmt.Sprintf("half of them take %s and more; larger ones were not tried", l.P50.Round(time.Millisecond))}
}

func (r *run) slowAfter() time.Duration {
	if r.o.SlowAfter > 0 {
		return r.o.SlowAfter
	}
	return time.Second
}

// prior takes a size from the records of an earlier run: a clean one as it
// stands, a fault to be looked into once more. A size that timed out is not sent
// again.
func (r *run) prior(row *Row, asked dirs, repeats int, met func(Op, result) error) (skip bool, err error) {
	for _, p := range r.o.Prior {
		if p.Setup != row.Setup || p.Sectors != row.Sectors {
			continue
		}
		for _, f := range p.Faults {
			op := Read
			if f.Op == Write.String() {
				op = Write
			}
			if err := met(op, result{damage: damage{class: f.Class}, failure: f.Failure, proved: f.Proved}); err != nil {
				return false, err
			}
		}
		enough := func(n Count, asked bool) bool { return !asked || n.Tried >= repeats && n.Failed == 0 }
		if len(p.Faults) == 0 && enough(p.Write, asked.write) && enough(p.Read, asked.read) {
			row.Earlier, row.Latency, row.Write, row.Read, row.Proof = true, p.Latency, p.Write, p.Read, p.Proof
			row.bound(asked)
			return true, nil
		}
	}
	return false, nil
}

// fails sends up to n commands of a size and tells whether one failed.
func (r *run) fails(ctx context.Context, size, n int, su Setup, op Op) (*result, int, error) {
	su.Depth = r.depthFor(size, su.Depth)
	for i := range n {
		o, err := r.trial(ctx, size, su, only(op))
		if err != nil {
			return nil, i, err
		}
		r.tick(size)
		if o.notReached != "" {
			return nil, i, nil
		}
		if res := o.of(op); res != nil {
			return res, i + 1, nil
		}
	}
	return nil, n, nil
}

// analyse finds the sizes at which a direction fails. good is the largest
// size tried before, bad the one that failed.
func (r *run) analyse(ctx context.Context, su Setup, op Op, sizes []int, good, bad int, first result) (*fault, error) {
	if good >= bad {
		good = 0
	}
	f := &fault{op: op, su: su, result: first, good: good, bad: bad, fails: 1, tries: 1, repeats: r.repeats()}
	f.ranges = []Range{{bad, bad}}
	r.looked = 0
	before := r.phase
	defer func() { r.phase = before }()
	r.phase = "search"
	if first.failure != nil && (first.failure.Kind == KindTimeout || first.failure.Kind == KindReset) && !r.o.RetryTimeouts {
		// Never sent again.
		f.exact = bad-good <= r.step(su.Path)
		if !f.exact {
			f.note = "a size that timed out is not sent again; --retry-timeouts narrows the gap"
		}
		return f, r.above(ctx, f, sizes, max(4, r.repeats()/4))
	}
	tries, fails := 0, 0
	for tries < maxRateTries && fails < wantedFailures {
		res, sent, err := r.fails(ctx, bad, 1, su, op)
		if err != nil {
			return f, err
		}
		if sent == 0 {
			break
		}
		tries++
		if res != nil {
			fails++
			f.damage.merge(res.damage)
			f.proved = f.proved || res.proved
		}
		if res != nil && res.failure != nil && r.stopped {
			return f, nil
		}
		if r.o.Level != Thorough && fails == 0 && tries >= 150 {
			break
		}
	}
	f.tries, f.fails = tries, fails
	if fails == 0 {
		f.tries, f.fails = tries+1, 1
		f.note = fmt.Sprintf("it failed once and not again in %d tries, so nothing is known of smaller sizes; %s passed its tries", tries, kib(f.good))
		f.good = 0
		return f, nil
	}
	low, _ := rateBounds(fails, tries, 0.95)
	n := max(4, repeatsFor(low, missChance))
	capped := n > maxRepeats
	n = min(n, maxRepeats)
	f.repeats = n

	if f.good == 0 {
		f.good = r.belowSmallest(bad)
	}
	// What passed before may have passed by luck, or before the fault set in.
	for f.good > 0 {
		res, sent, err := r.fails(ctx, f.good, n, su, op)
		if err != nil {
			return f, err
		}
		if res == nil && sent == n {
			break
		}
		if res == nil { // not reached: nothing is known of it
			res = &result{damage: f.damage}
		}
		f.bad = f.good
		f.damage.merge(res.damage)
		lower := slices.IndexFunc(sizes, func(s int) bool { return s >= f.good }) - 1
		switch {
		case lower >= 0:
			f.good = sizes[lower]
		case f.good > r.small:
			f.good = r.small
		default:
			f.good = 0
		}
	}
	step := r.step(su.Path)
	for f.good > 0 && f.bad-f.good > step && !r.stopped {
		mid := (f.good + f.bad) / 2 / step * step
		if mid <= f.good {
			mid = f.good + step
		}
		res, sent, err := r.fails(ctx, mid, n, su, op)
		if err != nil {
			return f, err
		}
		if sent < n && res == nil {
			break // not reached
		}
		if res != nil {
			f.bad = mid
			f.damage.merge(res.damage)
		} else {
			f.good = mid
		}
	}
	f.exact = f.bad-f.good <= step && !capped && f.good > 0 && f.proved
	f.ranges = []Range{{f.bad, max(f.bad, bad)}}
	if capped {
		// So rare that the commands sent do not rule it out below.
		f.note = fmt.Sprintf("too rare to call any size clean: %s passed %d commands, which a fault of this rate may do by chance", kib(f.good), n)
		f.good = 0
	}
	return f, r.above(ctx, f, sizes, n)
}

// belowSmallest is a size to begin with where none was tried below bad.
func (r *run) belowSmallest(bad int) int {
	if r.small < bad {
		return r.small
	}
	return 0
}

// above tells a threshold from a set of bad sizes: it tries the sizes above
// the first bad one.
func (r *run) above(ctx context.Context, f *fault, sizes []int, n int) error {
	type tried struct {
		size int
		bad  bool
	}
	step := r.step(f.su.Path)
	limit, _ := r.largest(f.su)
	list := []int{f.bad + step, f.bad + 2*step, 2 * f.bad}
	for _, s := range sizes {
		if s > f.bad {
			list = append(list, s)
		}
	}
	p := 1
	for p <= f.bad {
		p *= 2
	}
	list = append(list, p, limit)
	for range 3 {
		if limit > f.bad+step {
			list = append(list, (f.bad+1+r.rng.IntN(limit-f.bad))/step*step)
		}
	}
	slices.Sort(list)
	list = slices.Compact(slices.DeleteFunc(list, func(s int) bool { return s <= f.bad || s > limit || s%step != 0 }))
	seen := []tried{{f.bad, true}}
	test := func(size int) (bad, known bool, err error) {
		if r.stopped {
			return false, false, nil
		}
		res, sent, err := r.fails(ctx, size, n, f.su, f.op)
		if err != nil {
			return false, false, err
		}
		if res == nil && sent < n {
			return false, false, nil
		}
		if res != nil {
			f.proved = f.proved || res.proved
		}
		return res != nil, true, nil
	}
	for _, size := range list {
		bad, known, err := test(size)
		if err != nil {
			return err
		}
		if known {
			seen = append(seen, tried{size, bad})
		}
	}
	if slices.ContainsFunc(seen, func(t tried) bool { return !t.bad }) && f.failure == nil {
		// Are the bad sizes those that are no multiple of something?
		base := (f.bad/128 + 1) * 128
		for m := step; m <= 64 && base+128 <= limit; m *= 2 {
			bad, known, err := test(base + m)
			if err != nil {
				return err
			}
			if known && !slices.ContainsFunc(seen, func(t tried) bool { return t.size == base+m }) {
				seen = append(seen, tried{base + m, bad})
			}
		}
		slices.SortFunc(seen, func(a, b tried) int { return a.size - b.size })
	}
	if m := modulus(len(seen), func(i int) (int, bool) { return seen[i].size, seen[i].bad }); m > 0 {
		f.modulus = m
		f.ranges = nil
		for _, t := range seen {
			if t.bad {
				f.ranges = append(f.ranges, Range{t.size, t.size})
			}
		}
		return nil
	}
	edges := 0
	for i := 0; i+1 < len(seen); i++ {
		a, b := seen[i], seen[i+1]
		if a.bad == b.bad || b.size-a.size <= step {
			continue
		}
		if edges++; edges > maxEdges {
			f.note = "there are more edges among the bad sizes than were narrowed down"
			f.exact = false
			break
		}
		for b.size-a.size > step {
			mid := (a.size + b.size) / 2 / step * step
			if mid <= a.size {
				mid = a.size + step
			}
			bad, known, err := test(mid)
			if err != nil {
				return err
			}
			if !known {
				f.exact = false
				break
			}
			if bad == a.bad {
				a.size = mid
			} else {
				b.size = mid
			}
		}
		seen = slices.Insert(seen, i+1, a, b)
		i += 2
	}
	f.ranges = nil
	for _, t := range seen {
		switch {
		case !t.bad:
			continue
		case len(f.ranges) > 0 && !slices.ContainsFunc(seen, func(o tried) bool { return !o.bad && o.size > f.ranges[len(f.ranges)-1].To && o.size < t.size }):
			f.ranges[len(f.ranges)-1].To = t.size
		default:
			f.ranges = append(f.ranges, Range{t.size, t.size})
		}
	}
	return nil
}

// modulus returns m where the bad sizes are just those that are no multiple
// of m, and both kinds are there often enough to say so; else 0.
func modulus(n int, at func(i int) (size int, bad bool)) int {
	for _, m := range []int{2, 4, 8, 16, 32, 64, 128} {
		bad, good := 0, 0
		for i := range n {
			size, isBad := at(i)
			if isBad == (size%m == 0) {
				bad = -1
				break
			}
			if isBad {
				bad++
			} else {
				good++
			}
		}
		if bad >= 3 && good >= 3 {
			return m
		}
	}
	return 0
}

func (r *run) repeats() int {
	if r.o.Repeats > 0 {
		return r.o.Repeats
	}
	return r.o.Level.Repeats()
}
