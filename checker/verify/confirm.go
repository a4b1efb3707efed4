package verify

import (
	"context"
	"slices"
)

// The powers of two at which the addresses of old commands end: 28 bits (ATA-5)
// and 32 bits (READ(10); ATA-6 has 48). They count logical blocks, or in a bridge
// that emulates those, sectors.
var addressBits = []int{28, 32}

// edges are the sectors of the disk at which addresses may end.
func (r *run) edges() []uint64 {
	var out []uint64
	for _, bits := range addressBits {
		for _, e := range []uint64{1 << bits, uint64(r.info.LogicalBlock) << bits} {
			if !slices.Contains(out, e) {
				out = append(out, e)
			}
		}
	}
	slices.Sort(out)
	return out
}

// addresses looks at commands that reach over the edges of addresses: where
// a bridge cuts the address, data of the sectors behind an edge lands at the
// beginning of the disk.
func (r *run) addresses(ctx context.Context, sizes []int) ([]*fault, error) {
	var out []*fault
	if !r.o.Mode.Writes() {
		return nil, nil
	}
	r.phase = "addresses"
	for _, edge := range r.edges() {
		r.reserve()
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
			f, err := r.placed(ctx, su, sizes, size, start, edge)
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
func (r *run) placed(ctx context.Context, su Setup, sizes []int, size int, start, edge uint64) (*fault, error) {
	o, err := r.trial(ctx, size, su, dirs{write: r.o.Mode.Writes(), read: true}, start)
	if err != nil {
		return nil, err
	}
	r.tick(size)
	for _, op := range []Op{Write, Read} {
		if res := o.of(op); res != nil {
			f := &fault{op: op, su: su, result: *res, edge: edge, bad: size, ranges: []Range{{size, size}}, fails: 1, tries: 1}
			if r.stopped {
				return f, nil
			}
			elsewhere, _, err := r.fails(ctx, size, r.repeats(), su, op)
			if err != nil {
				return f, err
			}
			if elsewhere != nil { // the size's fault after all, which the sweep missed
				good := 0
				for _, s := range sizes {
					if s < size {
						good = s
					}
				}
				return r.analyse(ctx, su, op, sizes, good, size, *elsewhere)
			}
			f.damage.class = ClassPlace
			if edge != 0 {
				f.damage.class = ClassAddress
			}
			return f, nil
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
			f, err := r.placed(ctx, su, sizes, size, start, 0)
			if err != nil {
				if f != nil {
					out = append(out, f)
				}
				return out, err
			}
			if f != nil {
				if f.damage.class == ClassPlace {
					f.place = "at the start of the target"
					if start > 0 {
						f.place = "at the end of the target"
					}
				}
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
	c := &Confirmed{Path: su.Path}
	r.report.Confirmed = c
	begin := r.o.Now()
	for batches := 0; c.Commands < r.confirmCommands() || r.o.Now().Sub(begin) < r.o.ConfirmTime; batches++ {
		if r.stopped || batches >= 50 && c.Commands == 0 { // nothing can be proved here
			break
		}
		r.reserve()
		f, err := r.mixedBatch(ctx, su, limit, step, c)
		if f != nil {
			c.Failures++
		}
		if err != nil || f != nil {
			return f, err
		}
	}
	if c.Commands > 0 {
		c.Bound95 = zeroFailuresBound(c.Commands, 0.95)
	}
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
func (r *run) mixedBatch(ctx context.Context, su Setup, limit, step int, c *Confirmed) (*fault, error) {
	depth := r.depthFor(limit, []int{1, 2, 4, 8, 32}[r.rng.IntN(5)])
	starts := r.places(limit, depth, 0)
	for starts == nil && depth > 1 {
		depth /= 2
		starts = r.places(limit, depth, 0)
	}
	if starts == nil {
		return nil, nil
	}
	first, last := slices.Min(starts), slices.Max(starts)
	w := r.space.of(first, int(last-first)+limit)
	if w == nil {
		return nil, nil
	}
	writes := r.o.Mode.Writes()
	if writes {
		from, to := w.guarded(first, int(last-first)+limit, 0, r.align())
		if err := r.paint(ctx, w, from, to); err != nil {
			return nil, r.smallFailed(err)
		}
	}
	cmds, err := r.big(Write, limit, su, starts)
	if err != nil {
		return nil, err
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
		if writes && r.rng.IntN(2) == 0 {
			gens[i] = r.next()
			r.sent[gens[i]] = size
			r.session.Fill(cmds[i].Data, cmds[i].Sector, gens[i])
		} else {
			cmds[i].Op = Read
			r.session.Poison(cmds[i].Data)
		}
	}
	out, sendErr := r.sendLarge(ctx, cmds)
	if out == nil {
		return nil, sendErr
	}
	_, failure, _, err := r.failed(ctx, cmds, out, su)
	for i, cmd := range cmds {
		if cmd.Op == Write {
			g := gens[i]
			if out[i].Err != nil {
				g = 0
			}
			w.set(cmd.Sector, cmd.Sectors(), g)
		}
	}
	fail := func(i int, res result) *fault {
		size := cmds[i].Sectors()
		return &fault{op: cmds[i].Op, su: mixedSetup(su), result: res, fails: 1, tries: 1, bad: size, ranges: []Range{{size, size}}, place: "under mixed load"}
	}
	if err == nil {
		err = sendErr
	}
	r.tick(limit)
	if failure != nil {
		at := 0
		for i := range cmds {
			if out[i].Err != nil && asFailure(out[i].Err).Kind == failure.Kind {
				at = i
			}
		}
		return fail(at, result{failure: failure, damage: damage{class: classOfFailure(failure)}}), err
	}
	if err != nil {
		return nil, err
	}
	for i, cmd := range cmds {
		if out[i].Err != nil { // not sent
			c.Unproved++
			continue
		}
		res, err := r.mixedCheck(ctx, w, cmd, gens[i], su, gens)
		if err != nil {
			return nil, err
		}
		if res != nil {
			res.proved = out[i].Proof != ""
			f := fail(i, *res)
			if res.damage.class == ClassStray || res.written {
				f.op = Write
			}
			return f, nil
		}
		if out[i].Proof == "" {
			c.Unproved++
			continue
		}
		c.Commands++
		c.Sectors = max(c.Sectors, cmd.Sectors())
	}
	return nil, nil
}

// mixedCheck looks at what one command of a batch did.
func (r *run) mixedCheck(ctx context.Context, w *window, cmd Command, generation uint32, su Setup, own []uint32) (*result, error) {
	a := uint64(r.align())
	from, to := max(w.Sector, cmd.Sector/a*a), min(w.End(), (cmd.Sector+uint64(cmd.Sectors())+a-1)/a*a)
	if !r.o.Mode.Writes() {
		ref, err := r.buffer("check", int(to-from), Contiguous)
		if err != nil {
			return nil, err
		}
		if err := r.readSmall(ctx, from, to, ref); err != nil {
			return nil, r.smallFailed(err)
		}
		if slices.Equal(ref[int(cmd.Sector-from)*SectorBytes:][:len(cmd.Data)], cmd.Data) {
			return nil, nil
		}
		// Changed by somebody else, or wrong: a trial by itself tells.
		o, err := r.trial(ctx, cmd.Sectors(), su, only(Read))
		if err != nil || o.read != nil {
			return o.read, err
		}
		r.report.Unsettled++
		return nil, nil
	}
	inCommand := func(sector uint64) bool { return sector >= cmd.Sector && sector < cmd.Sector+uint64(cmd.Sectors()) }
	p := cmd.Data
	if cmd.Op == Write {
		var err error
		if p, err = r.buffer("check", int(to-from), Contiguous); err != nil {
			return nil, err
		}
		if err := r.readSmall(ctx, from, to, p); err != nil {
			return nil, r.smallFailed(err)
		}
	} else {
		from = cmd.Sector
	}
	bad, spoiled := r.compare(w, p, from, cmd.Sector), 0
	switch {
	case len(bad) == 0:
	case cmd.Op == Write:
		bad, spoiled = r.unspoiled(w, bad, cmd.Sector, own, inCommand)
	default:
		var err error
		if spoiled, err = r.spoiledMedium(ctx, w, cmd); err != nil {
			return nil, err
		}
		if spoiled > 0 {
			bad = nil
		}
	}
	if len(bad) == 0 {
		if spoiled > 0 && len(r.strays) > 0 {
			s := r.strays[0]
			r.strays = nil
			return &result{damage: strayDamage(s, spoiled), written: true}, nil
		}
		return nil, nil
	}
	read := cmd.Op == Read
	if read {
		// Is the medium right? Else a write has damaged it.
		ok, _, err := r.reread(ctx, w, cmd, bad)
		if err != nil {
			return nil, err
		}
		if !ok {
			d := classify(cmd.Sector, cmd.Sectors(), w.at(cmd.Sector, 1)[0], bad, false)
			d.examples = r.examples(w, bad, cmd.Sector, at(p, from))
			r.unknown(w, bad, cmd.Sector)
			return &result{damage: d, written: true}, nil
		}
		generation = w.at(cmd.Sector, 1)[0]
	}
	d := classify(cmd.Sector, cmd.Sectors(), generation, bad, read)
	d.examples = r.examples(w, bad, cmd.Sector, at(p, from))
	if !read {
		r.faulty[generation] = true
		r.unknown(w, bad, cmd.Sector)
	}
	return &result{damage: d}, nil
}

// unknown has the sectors painted when they are used next.
func (r *run) unknown(w *window, bad []badSector, start uint64) {
	for _, b := range bad {
		w.set(uint64(start64(start)+b.index), 1, 0)
	}
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
		f := &fault{op: Write, su: r.plain(), result: result{damage: strayDamage(s, len(strays)), proved: size > 0}, fails: 1, tries: 1, note: "found when all sectors were read again"}
		if size > 0 {
			f.bad, f.ranges = size, []Range{{size, size}}
		}
		return f
	}
	return nil
}
