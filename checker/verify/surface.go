package verify

import (
	"context"
	"iter"
	"time"
)

// surface goes over all usable sectors once: writes all and reads all, or, reading
// only, compares large reads with small ones.
func (r *run) surface(ctx context.Context, size int) (*fault, error) {
	su := r.plain()
	if reach := r.dev.Reach(PathBlock, Contiguous); r.o.Path == "" && reach.Sectors >= size {
		su.Path = PathBlock // as real I/O does it
	}
	row := r.row(su, size)
	r.latency, r.proof = [2][]time.Duration{}, unset
	if !r.o.Mode.Writes() {
		r.phase = "surface, read"
		f, err := r.surfaceRead(ctx, su, size, row)
		row.finish(r, only(Read))
		return f, err
	}
	generation := r.next()
	gens := make([]uint32, size)
	for i := range gens {
		gens[i] = generation
	}
	for _, op := range []Op{Write, Read} {
		r.phase = "surface, " + op.String()
		if op == Read {
			if err := r.dev.Flush(ctx); err != nil {
				return nil, r.stop("flush: %v", err)
			}
		}
		f, err := r.surfacePass(ctx, op, su, size, generation, gens, row)
		row.finish(r, only(op))
		if f != nil || err != nil {
			return f, err
		}
	}
	return nil, nil
}

// surfaceRead compares, command by command.
func (r *run) surfaceRead(ctx context.Context, su Setup, size int, row *Row) (*fault, error) {
	for at := range r.surfaceBatches(size, 1, su.Path) {
		e := at[0]
		stable := false
		for try := 0; try < 3 && !stable; try++ {
			var notReached string
			var res *result
			var err error
			if notReached, res, stable, err = r.readOnce(ctx, int(e.Sectors), su, []uint64{e.Sector}); err != nil {
				return nil, err
			}
			switch {
			case !stable:
				r.report.Unsettled++
			case notReached != "":
				row.NotReached = notReached
			case res != nil:
				row.Read.Tried++
				row.Read.Failed++
				return r.surfaceFault(Read, su, int(e.Sectors), *res), nil
			default:
				row.Read.Tried++
			}
		}
		r.tick(int(e.Sectors))
	}
	return nil, nil
}

func (r *run) surfaceFault(op Op, su Setup, size int, res result) *fault {
	return &fault{op: op, su: su, result: res, bad: size, ranges: []Range{{size, size}}, fails: 1, tries: 1, place: "on the surface",
		note: "met in one pass at one size: a run without --surface finds out about sizes"}
}

// batch is a piece of a surface pass: its commands and their data.
type batch struct {
	cmds []Command
	out  []Completion
}

// A surface pass sends batches of up to surfaceBytes, in up to surfaceDepth
// commands: what a batch costs beside its data (its proof, waiting for the
// last of its commands) then weighs little. Disks take 31 or 32 at a time.
const (
	surfaceBytes = 32 << 20
	surfaceDepth = 32
)

// surfacePass goes over all usable sectors. Filling or checking a batch goes on
// while the one beside it is on its way.
func (r *run) surfacePass(ctx context.Context, op Op, su Setup, size int, generation uint32, gens []uint32, row *Row) (*fault, error) {
	depth := r.depthFor(size, max(1, min(surfaceDepth, surfaceBytes/SectorBytes/size)))
	stride := (size + 4095) / 4096 * 4096
	if 4096%size == 0 {
		stride = size // several in a 2 MiB page, each still in one piece
	}
	var bufs [2][]byte
	for i := range bufs {
		p, err := r.buffer([]string{"write", "read"}[i], stride*depth, su.Shape)
		if err != nil {
			return nil, err
		}
		bufs[i] = p
	}
	// The device takes one caller at a time: a batch is waited for, and what
	// went wrong with it seen to, before the next is sent. Its data is looked at
	// while that is on its way.
	var pending chan batch
	arrive := func() (b batch, f *fault, err error) {
		if pending == nil {
			return b, nil, nil
		}
		b = <-pending
		pending = nil
		f, err = r.surfaceArrived(ctx, b, op, su, row)
		return b, f, err
	}
	turn := 0
	for at := range r.surfaceBatches(size, depth, su.Path) {
		b := batch{cmds: make([]Command, len(at))}
		for i, e := range at {
			b.cmds[i] = Command{Op: op, Sector: e.Sector, Data: bufs[turn][i*stride*SectorBytes:][:e.Sectors*SectorBytes], Path: su.Path}
			if op == Write {
				r.session.Fill(b.cmds[i].Data, e.Sector, generation)
			}
		}
		before, f, err := arrive()
		if f != nil || err != nil {
			return f, err
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		ready := make(chan batch, 1)
		go func() {
			b.out = r.dev.Do(ctx, b.cmds)
			ready <- b
		}()
		pending = ready
		if bad := r.surfaceBad(before, op, gens); bad >= 0 {
			if _, f, err := arrive(); err != nil {
				return f, err
			}
			return r.surfaceDamage(ctx, before, bad, su, gens)
		}
		turn = 1 - turn
	}
	last, f, err := arrive()
	if f != nil || err != nil {
		return f, err
	}
	if bad := r.surfaceBad(last, op, gens); bad >= 0 {
		return r.surfaceDamage(ctx, last, bad, su, gens)
	}
	return nil, ctx.Err()
}

// surfaceArrived keeps the accounts of a batch and sees to what failed.
func (r *run) surfaceArrived(ctx context.Context, b batch, op Op, su Setup, row *Row) (*fault, error) {
	count := &row.Read
	if op == Write {
		count = &row.Write
	}
	r.report.Commands += len(b.cmds)
	for i, c := range b.cmds {
		if b.out[i].Err != nil {
			continue
		}
		count.Tried++
		if op == Write {
			r.report.Written += uint64(len(c.Data))
		} else {
			r.report.Read += uint64(len(c.Data))
		}
		r.tick(c.Sectors())
	}
	notReached, f, proved, err := r.failed(ctx, b.cmds, b.out, su)
	if err != nil {
		return nil, err
	}
	if notReached != "" {
		row.NotReached = notReached
	}
	if f != nil {
		count.Tried++
		count.Failed++
		return r.surfaceFault(op, su, b.cmds[0].Sectors(), result{failure: f, damage: damage{class: classOfFailure(f)}, proved: proved}), nil
	}
	return nil, nil
}

// surfaceBad returns the first command of a batch whose data is not right, -1 for
// none.
func (r *run) surfaceBad(b batch, op Op, gens []uint32) int {
	if op == Write {
		return -1
	}
	for i, c := range b.cmds {
		if b.out[i].Err == nil && r.session.Check(c.Data, c.Sector, gens[:c.Sectors()]) >= 0 {
			return i
		}
	}
	return -1
}

// surfaceDamage tells a damaged medium from a damaged read.
func (r *run) surfaceDamage(ctx context.Context, b batch, i int, su Setup, gens []uint32) (*fault, error) {
	c := b.cmds[i]
	w := &window{Extent: Extent{c.Sector, uint64(c.Sectors())}, generations: gens[:c.Sectors()]}
	p, err := r.buffer("check", c.Sectors(), Contiguous)
	if err != nil {
		return nil, err
	}
	if err := r.readSmall(ctx, c.Sector, c.Sector+uint64(c.Sectors()), p); err != nil {
		return nil, r.smallFailed(err)
	}
	op, data := Read, c.Data
	bad := r.compare(w, p, c.Sector, c.Sector)
	if len(bad) > 0 { // by the write, or the medium
		op, data = Write, p
	} else if bad = r.compare(w, c.Data, c.Sector, c.Sector); len(bad) == 0 {
		return nil, nil
	}
	d := classify(c.Sector, c.Sectors(), gens[0], bad, op == Read)
	d.examples = r.examples(w, bad, c.Sector, at(data, c.Sector))
	return r.surfaceFault(op, su, c.Sectors(), result{damage: d, proved: b.out[i].Proof != ""}), nil
}

// surfaceBatches cuts all usable sectors into commands of size sectors, the last
// of an extent may be shorter, and these into batches. Where the kernel could
// merge two neighbours into one request they are not in one batch: neither
// would have been sent as it is.
func (r *run) surfaceBatches(size, depth int, path Path) iter.Seq[[]Extent] {
	merges := 0 // up to how many sectors
	if path == PathBlock {
		merges = r.dev.Reach(path, Contiguous).Sectors
	}
	return func(yield func([]Extent) bool) {
		for _, e := range r.info.Usable {
			for at := e.Sector; at < e.End(); {
				// Every second one, and then those between: by two batches
				// at a time, so that a hard disk need not go far.
				lanes := [2][]Extent{}
				lane := 0
				for at < e.End() && len(lanes[lane]) < depth {
					n := min(uint64(size), e.End()-at)
					lanes[lane] = append(lanes[lane], Extent{at, n})
					at += n
					if uint64(size)+min(uint64(size), e.End()-at) <= uint64(merges) {
						lane = 1 - lane
					}
				}
				for _, l := range lanes {
					if len(l) > 0 && !yield(l) {
						return
					}
				}
			}
		}
	}
}
