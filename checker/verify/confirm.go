package verify

import (
	"context"
	"slices"

	"github.com/quirkcheck/quirkcheck/checker/verify/pattern"
)

// The powers of two at which the addresses of old commands end: 28 bits (ATA-5)
// and 32 bits (READ(10); ATA-6 has 48).
var addressEdges = []uint64{1 << 28, 1 << 32}

// addresses looks at commands that reach over the edges of addresses: where
// a bridge cuts the address, data of the sectors behind an edge lands at the
// beginning of the disk.
func (r *run) addresses(ctx context.Context, sizes []int) ([]*fault, error) {
	var out []*fault
	if !r.o.Mode.Writes() {
		return nil, nil
	}
	r.phase = "addresses"
	for _, edge := range addressEdges {
		first := edge - r.info.First // of the target
		w := r.space.of(first, r.small)
		home := r.space.of(0, r.small)
		if r.info.First != 0 || w == nil || home == nil {
			continue
		}
		// What the sectors at the beginning hold must be known and stay.
		n := int(min(w.End()-first, home.End(), 4096))
		if err := r.paint(ctx, home, 0, uint64(n)); err != nil {
			return out, r.smallFailed(err)
		}
		p, err := r.buffer("check", n, Contiguous)
		if err != nil {
			return out, err
		}
		w.set(first, n, 0)
		if err := r.paint(ctx, w, first, first+uint64(n)); err != nil {
			return out, r.smallFailed(err)
		}
		if err := r.readSmall(ctx, 0, uint64(n), p); err != nil {
			return out, r.smallFailed(err)
		}
		bad := r.compare(home, p, 0, 0)
		if len(bad) == 0 {
			if err := r.readSmall(ctx, first, first+uint64(n), p); err != nil {
				return out, r.smallFailed(err)
			}
			bad = r.compare(w, p, first, first)
			home = w
		}
		if len(bad) > 0 {
			d := damage{class: ClassAddress, wrong: len(bad), outside: len(bad)}
			base := uint64(0)
			if home == w {
				base = first
			}
			d.examples = r.examples(home, bad, base, at(p, base))
			f := &fault{op: Write, su: Setup{Path: r.smallPath, Shape: Contiguous, Depth: 1}, result: result{damage: d, proved: true}, exact: true, fails: 1, tries: 1}
			f.edge = edge
			for _, b := range bad {
				home.set(uint64(start64(base)+b.index), 1, 0)
			}
			out = append(out, f)
			return out, nil // a larger edge cannot be told from this one
		}
		// Commands of the sizes under test that straddle the edge.
		su := r.plain()
		for _, size := range sizes {
			start := first - uint64(size/2)/uint64(r.info.LogicalBlock)*uint64(r.info.LogicalBlock)
			if start < w.Sector || start+uint64(size) > w.End() || r.stopped {
				continue
			}
			f, err := r.placed(ctx, su, size, start, edge)
			if f != nil {
				out = append(out, f)
			}
			if err != nil || f != nil {
				return out, err
			}
		}
	}
	return out, nil
}

// placed tries one size at one place, and at a random one where it fails there,
// to tell a fault of the place from one of the size.
func (r *run) placed(ctx context.Context, su Setup, size int, start, edge uint64) (*fault, error) {
	o, err := r.trial(ctx, size, su, dirs{write: r.o.Mode.Writes(), read: true}, start)
	if err != nil {
		return nil, err
	}
	r.tick(size)
	for _, op := range []Op{Write, Read} {
		if res := o.of(op); res != nil {
			elsewhere, _, err := r.fails(ctx, size, r.repeats(), su, op)
			if err != nil || elsewhere != nil {
				return nil, err // the sweep's to find
			}
			res.damage.class = ClassAddress
			return &fault{op: op, su: su, result: *res, edge: edge, bad: size, ranges: []Range{{size, size}}, fails: 1, tries: 1}, nil
		}
	}
	return nil, nil
}

// ends tries sizes at the first and the last sectors of the target.
func (r *run) ends(ctx context.Context, sizes []int) ([]*fault, error) {
	r.phase = "first and last sectors"
	var out []*fault
	su := r.plain()
	for _, size := range sizes {
		for _, start := range []uint64{0, r.info.Sectors - uint64(size)} {
			start -= start % uint64(r.info.LogicalBlock)
			if uint64(size) > r.info.Sectors || r.space.of(start, size) == nil || r.stopped {
				continue
			}
			f, err := r.placed(ctx, su, size, start, 0)
			if err != nil {
				return out, err
			}
			if f != nil {
				f.place = "at the start of the target"
				if start > 0 {
					f.place = "at the end of the target"
				}
				f.damage.class = ClassMixed
				return append(out, f), nil
			}
		}
	}
	return out, nil
}

// confirmCommands are sent mixed at the recommended limit.
func (r *run) confirmCommands() int {
	switch r.o.Level {
	case Quick:
		return 64
	case Thorough:
		return 3000
	}
	return 400
}

// confirm sends mixed sizes up to limit, reads and writes, at depths from 1 to
// 32: small writes beside large reads broke a disk that had passed each size
// by itself.
func (r *run) confirm(ctx context.Context, limit int) (*fault, error) {
	r.phase = "confirmation"
	su := r.plain()
	if reach := r.dev.Reach(PathBlock, Contiguous).Sectors; r.o.Path != PathCommand && reach > r.small {
		su.Path = PathBlock
		limit = min(limit, reach)
	}
	step := r.step(su.Path)
	limit = limit / step * step
	if limit <= 0 {
		return nil, nil
	}
	r.report.Confirmed = &Confirmed{Sectors: limit, Path: su.Path}
	begin := r.o.Now()
	c := r.report.Confirmed
	for c.Commands < r.confirmCommands() || r.o.Now().Sub(begin) < r.o.ConfirmTime {
		if r.stopped {
			break
		}
		f, n, err := r.mixedBatch(ctx, su, limit, step)
		if err != nil {
			return f, err
		}
		c.Commands += n
		if f != nil {
			c.Failures++
			return f, nil
		}
	}
	c.Bound95 = zeroFailuresBound(c.Commands, 0.95)
	if !r.o.Mode.Writes() {
		return nil, nil
	}
	// What lies on the medium now, of everything that was written.
	strays, err := r.checkAll(ctx)
	if err != nil {
		return nil, err
	}
	return r.strayFault(strays, nil), nil
}

// mixedBatch sends one batch: several commands at a time, of several sizes and
// both directions.
func (r *run) mixedBatch(ctx context.Context, su Setup, limit, step int) (*fault, int, error) {
	depth := []int{1, 2, 4, 8, 32}[r.rng.IntN(5)]
	depth = r.depthFor(limit, depth)
	starts := r.space.places(r.rng, limit, depth, r.align(), 0)
	for starts == nil && depth > 1 {
		depth /= 2
		starts = r.space.places(r.rng, limit, depth, r.align(), 0)
	}
	if starts == nil {
		return nil, 1, nil
	}
	first, last := slices.Min(starts), slices.Max(starts)
	w := r.space.of(first, int(last-first)+limit)
	if w == nil {
		return nil, 1, nil
	}
	writes := r.o.Mode.Writes()
	if writes {
		from, to := w.guarded(first, int(last-first)+limit, 0, r.align())
		if err := r.paint(ctx, w, from, to); err != nil {
			return nil, 0, r.smallFailed(err)
		}
	}
	cmds, err := r.big(Write, limit, su, starts)
	if err != nil {
		return nil, 0, err
	}
	gens := make([]uint32, len(cmds))
	for i := range cmds {
		size := step * (1 + r.rng.IntN(limit/step))
		switch r.rng.IntN(4) {
		case 0:
			size = limit
		case 1:
			size = min(limit, max(step, 8/step*step))
		}
		cmds[i].Data = cmds[i].Data[:size*SectorBytes]
		if writes && r.rng.IntN(2) == 0 && r.generation < pattern.MaxGeneration-1 {
			gens[i] = r.next()
			r.session.Fill(cmds[i].Data, cmds[i].Sector, gens[i])
		} else {
			cmds[i].Op = Read
			r.session.Poison(cmds[i].Data)
		}
	}
	out, err := r.send(ctx, cmds)
	if out == nil {
		return nil, 0, err
	}
	_, failure, _, err2 := r.failed(ctx, cmds, out, Setup{Path: PathCache}) // the sizes were proved before
	for i, c := range cmds {
		if c.Op == Write {
			g := gens[i]
			if out[i].Err != nil || failure != nil {
				g = 0
			}
			w.set(c.Sector, c.Sectors(), g)
		}
	}
	if err == nil {
		err = err2
	}
	if err != nil {
		return nil, 0, err
	}
	r.tick(limit)
	if failure != nil {
		f := &fault{su: mixedSetup(su), result: result{failure: failure, damage: damage{class: classOfFailure(failure)}}, fails: 1, tries: 1, bad: limit, place: "under mixed load"}
		for i := range cmds {
			if out[i].Err != nil {
				f.op, f.bad = cmds[i].Op, cmds[i].Sectors()
			}
		}
		f.ranges = []Range{{f.bad, f.bad}}
		return f, len(cmds), nil
	}
	for i, c := range cmds {
		p, size := c.Data, c.Sectors()
		a := uint64(r.align())
		from, to := max(w.Sector, c.Sector/a*a), min(w.End(), (c.Sector+uint64(size)+a-1)/a*a)
		if c.Op == Write {
			if p, err = r.buffer("check", int(to-from), Contiguous); err != nil {
				return nil, 0, err
			}
			if err := r.readSmall(ctx, from, to, p); err != nil {
				return nil, 0, r.smallFailed(err)
			}
		} else {
			from = c.Sector
		}
		if !writes {
			ref, err := r.buffer("check", int(to-c.Sector/a*a), Contiguous)
			if err != nil {
				return nil, 0, err
			}
			if err := r.readSmall(ctx, max(w.Sector, c.Sector/a*a), to, ref); err != nil {
				return nil, 0, r.smallFailed(err)
			}
			if slices.Equal(ref[:len(p)], p) {
				continue
			}
			// Changed by somebody else, or wrong: a trial by itself tells.
			o, err := r.trial(ctx, size, su, only(Read))
			if err != nil || o.read == nil {
				r.report.Unsettled++
				if err != nil {
					return nil, 0, err
				}
				continue
			}
			return &fault{op: Read, su: mixedSetup(su), result: *o.read, fails: 1, tries: 1, bad: size, ranges: []Range{{size, size}}, place: "under mixed load"}, len(cmds), nil
		}
		bad := r.compare(w, p, from, c.Sector)
		if len(bad) == 0 {
			continue
		}
		d := classify(c.Sector, size, gens[i], bad, c.Op == Read)
		d.examples = r.examples(w, bad, c.Sector, at(p, from))
		if c.Op == Write {
			for _, b := range bad {
				w.set(uint64(start64(c.Sector)+b.index), 1, 0)
			}
		}
		return &fault{op: c.Op, su: mixedSetup(su), result: result{damage: d, proved: true}, fails: 1, tries: 1, bad: size, ranges: []Range{{size, size}}, place: "under mixed load"}, len(cmds), nil
	}
	return nil, len(cmds), nil
}

func mixedSetup(su Setup) Setup { su.Depth = 32; return su }

// strayFault is what changed though nothing under test should have touched it.
// The generation found there names the write that did; a write that is known to
// be faulty is no news.
func (r *run) strayFault(strays []stray, known []*fault) *fault {
	for _, s := range strays {
		size := r.sent[s.Generation]
		if r.faulty[s.Generation] || size > 0 && slices.ContainsFunc(known, func(f *fault) bool { return f.op == Write && f.bad > 0 && size >= f.bad }) {
			continue
		}
		d := damage{class: ClassStray, outside: len(strays)}
		d.examples = []Example{{Sector: s.sector, Class: string(s.Class), Found: s.Describe(s.sector, 0), SourceLBA: s.LBA, Generation: s.Generation}}
		f := &fault{op: Write, su: r.plain(), result: result{damage: d, proved: true}, fails: 1, tries: 1, note: "found when all sectors were read again"}
		if size > 0 {
			f.bad, f.ranges = size, []Range{{size, size}}
		}
		return f
	}
	return nil
}

// surface writes and reads all usable sectors once.
func (r *run) surface(ctx context.Context, size int) (*fault, error) {
	r.phase = "surface"
	su := r.plain()
	if reach := r.dev.Reach(PathBlock, Contiguous); reach.Sectors >= size {
		su.Path = PathBlock // as real I/O does it
	}
	generation := r.next()
	gens := make([]uint32, size)
	for i := range gens {
		gens[i] = generation
	}
	for _, op := range []Op{Write, Read} {
		if op == Write && !r.o.Mode.Writes() {
			continue
		}
		r.phase = "surface, " + op.String()
		if op == Read && r.o.Mode.Writes() {
			if err := r.dev.Flush(ctx); err != nil {
				return nil, r.stop("flush: %v", err)
			}
		}
		row := r.row(su, size)
		f, err := r.surfacePass(ctx, op, su, size, generation, gens, row)
		row.finish(r.latency, only(op))
		if f != nil || err != nil {
			return f, err
		}
	}
	return nil, nil
}

// batch is a piece of a surface pass: its commands and their data.
type batch struct {
	cmds []Command
	out  []Completion
}

// surfacePass goes over all usable sectors. Filling or checking a batch goes on
// while the one beside it is on its way.
func (r *run) surfacePass(ctx context.Context, op Op, su Setup, size int, generation uint32, gens []uint32, row *Row) (*fault, error) {
	r.latency = nil
	depth := r.depthFor(size, 4)
	stride := (size + 4095) / 4096 * 4096
	var bufs [2][]byte
	for i := range bufs {
		p, err := r.buffer([]string{"write", "read"}[i], stride*depth, su.Shape)
		if err != nil {
			return nil, err
		}
		bufs[i] = p
	}
	var pending chan batch
	wait := func() (*fault, error) {
		if pending == nil {
			return nil, nil
		}
		b := <-pending
		pending = nil
		return r.surfaceCheck(ctx, b, op, su, gens, row)
	}
	for _, e := range r.info.Usable {
		turn := 0
		for at := e.Sector; at < e.End(); {
			b := batch{}
			for i := 0; i < depth && at < e.End(); i++ {
				n := int(min(uint64(size), e.End()-at))
				b.cmds = append(b.cmds, Command{Op: op, Sector: at, Data: bufs[turn][i*stride*SectorBytes:][:n*SectorBytes], Path: su.Path})
				at += uint64(n)
			}
			if op == Write {
				for _, c := range b.cmds {
					r.session.Fill(c.Data, c.Sector, generation)
				}
			}
			sent := b
			ready := make(chan batch, 1)
			// The device takes one caller at a time: the batch before is
			// waited for first, but looked at while this one is on its way.
			var before batch
			if pending != nil {
				before = <-pending
			}
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			go func() {
				sent.out = r.dev.Do(ctx, sent.cmds)
				ready <- sent
			}()
			pending = ready
			if before.cmds != nil {
				f, err := r.surfaceCheck(ctx, before, op, su, gens, row)
				if f != nil || err != nil {
					<-pending
					return f, err
				}
			}
			turn = 1 - turn
		}
		if f, err := wait(); f != nil || err != nil {
			return f, err
		}
	}
	return nil, nil
}

func (r *run) surfaceCheck(ctx context.Context, b batch, op Op, su Setup, gens []uint32, row *Row) (*fault, error) {
	for i, c := range b.cmds {
		o := b.out[i]
		r.latency = append(r.latency, o.Latency)
		r.report.Commands++
		if op == Write {
			r.report.Written += uint64(len(c.Data))
			row.Write.Tried++
		} else {
			r.report.Read += uint64(len(c.Data))
			row.Read.Tried++
		}
		if o.Proof == "" && o.Err == nil {
			row.NotReached = unproved(c, o)
		}
		if o.Err != nil {
			e := asFailure(o.Err)
			if e.Kind == KindGone || e.Kind == KindNotOurs {
				return nil, r.stop("%v", e)
			}
			return &fault{op: op, su: su, result: result{failure: e, damage: damage{class: classOfFailure(e)}}, bad: c.Sectors(), ranges: []Range{{c.Sectors(), c.Sectors()}}, fails: 1, tries: 1, place: "on the surface"}, nil
		}
		if op == Read && r.o.Mode.Writes() {
			g := gens[:c.Sectors()]
			if r.session.Check(c.Data, c.Sector, g) >= 0 {
				w := &window{Extent: Extent{c.Sector, uint64(c.Sectors())}, generations: g}
				bad := r.compare(w, c.Data, c.Sector, c.Sector)
				d := classify(c.Sector, c.Sectors(), g[0], bad, true)
				d.examples = r.examples(w, bad, c.Sector, at(c.Data, c.Sector))
				return &fault{op: op, su: su, result: result{damage: d, proved: o.Proof != ""}, bad: c.Sectors(), ranges: []Range{{c.Sectors(), c.Sectors()}}, fails: 1, tries: 1, place: "on the surface",
					note: "written and read in commands of the same size: a run without --surface tells the directions apart"}, nil
			}
		}
		r.tick(c.Sectors())
	}
	return nil, ctx.Err()
}
