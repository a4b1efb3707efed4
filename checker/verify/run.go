package verify

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/quirkcheck/quirkcheck/checker/verify/pattern"
)

// Regions, in sectors.
const (
	defaultRegion = 256 << 20 / SectorBytes
	edgeWindow    = 65536 // to each side of an address edge
	endWindow     = 1 << 20 / SectorBytes
)

// plain is the setup that the others are compared with: one command at a time,
// aligned, of contiguous memory, exact where pass-through commands can be sent.
func (r *run) plain() Setup {
	su := Setup{Path: PathBlock, Shape: Contiguous, Depth: 1}
	if r.o.Path == PathCommand || r.o.Path == "" && r.dev.Reach(PathCommand, Contiguous).Sectors > 0 {
		su.Path = PathCommand
	}
	return su
}

// others are the setups beside the plain one, each with one thing changed.
func (r *run) others() []Setup {
	p := r.plain()
	out := []Setup{}
	with := func(f func(*Setup)) { su := p; f(&su); out = append(out, su) }
	if r.align() > r.info.LogicalBlock && (p.Path == PathCommand || r.info.LogicalBlock < r.align()) {
		with(func(s *Setup) { s.Misaligned = -1 })
	}
	with(func(s *Setup) { s.Shape = Fragmented })
	with(func(s *Setup) { s.Depth = 8 })
	if r.o.Path == "" && p.Path == PathCommand && r.dev.Reach(PathBlock, Contiguous).Sectors > 0 {
		with(func(s *Setup) { s.Path = PathBlock })
	}
	return out
}

func newRun(dev Device, o Options) *run {
	info := dev.Info()
	info.LogicalBlock, info.PhysicalBlock = max(info.LogicalBlock, 1), max(info.PhysicalBlock, 1)
	if o.Now == nil {
		o.Now = time.Now
	}
	var key [32]byte
	for i := range 8 {
		key[i] = byte(o.Seed >> (8 * i))
	}
	r := &run{dev: dev, o: o, info: info, rng: rand.New(rand.NewChaCha8(key)), small: 128, sent: map[uint32]int{}, faulty: map[uint32]bool{}}
	if o.Session == 0 {
		o.Session = o.Seed
	}
	r.session = pattern.New(o.Session)
	r.smallPath = PathBlock
	if dev.Reach(PathBlock, Contiguous).Sectors == 0 {
		r.smallPath = PathCommand
	}
	r.space = r.layout()
	r.report = &Report{SchemaVersion: SchemaVersion, Mode: o.Mode, Level: o.Level, Seed: o.Seed, Sessions: []uint64{o.Session}, Started: o.Now().UTC(),
		Target: o.Target,
		Reach:  []ReachRow{}, Sizes: []*Row{}, Events: []string{}, Notes: []string{}, NotTested: []string{}, Next: []string{}, SmallSectors: r.small}
	t := &r.report.Target
	t.Sectors, t.FirstSector, t.Extents = info.Sectors, info.First, []Extent{}
	if t.Name == "" {
		t.Name = info.Name
	}
	if t.Identity == nil {
		t.Identity = map[string]string{}
	}
	if o.Surface > 0 {
		t.Extents = append(t.Extents, info.Usable...)
	}
	for _, w := range r.space.windows {
		if o.Surface > 0 {
			break
		}
		t.Extents = append(t.Extents, w.Extent)
	}
	for _, path := range []Path{PathCommand, PathBlock} {
		for _, shape := range []Shape{Contiguous, Fragmented} {
			reach := dev.Reach(path, shape)
			r.report.Reach = append(r.report.Reach, ReachRow{path, shape, reach.Sectors, reach.Why})
		}
	}
	return r
}

// layout chooses what the run uses of the target.
func (r *run) layout() *space {
	if !r.o.Mode.Writes() {
		s := &space{}
		for _, e := range r.info.Usable {
			s.windows = append(s.windows, &window{Extent: e, random: true})
		}
		return s
	}
	left := r.o.RegionSectors
	if left == 0 {
		left = defaultRegion
		for _, p := range []Path{PathCommand, PathBlock} {
			left = max(left, 4*uint64(r.dev.Reach(p, Contiguous).Sectors))
		}
	}
	var random, special []Extent
	for _, e := range r.info.Usable {
		if left == 0 {
			break
		}
		e.Sectors = min(e.Sectors, left)
		left -= e.Sectors
		random = append(random, e)
	}
	add := func(from, to uint64) {
		for _, u := range r.info.Usable {
			f, t := max(from, u.Sector), min(to, u.End())
			for _, e := range slices.Concat(random, special) {
				if f >= e.Sector && f < e.End() {
					f = e.End()
				}
				if t > e.Sector && t <= e.End() {
					t = e.Sector
				}
			}
			if f < t {
				special = append(special, Extent{f, t - f})
			}
		}
	}
	if r.o.Mode == ModeDestroy {
		for _, edge := range r.edges() {
			if edge > r.info.First {
				add(edge-r.info.First-min(edgeWindow, edge-r.info.First), edge-r.info.First+edgeWindow)
			}
		}
		if r.info.Sectors > endWindow {
			add(r.info.Sectors-endWindow, r.info.Sectors)
		}
	}
	return newSpace(random, special)
}

// sizes of the sweep for a setup.
func (r *run) sizes(su Setup) []int {
	largest, _ := r.largest(su)
	step := r.step(su.Path)
	if len(r.o.Sizes) > 0 {
		var out []int
		for _, s := range r.o.Sizes {
			if s = s / step * step; s > 0 && s <= largest {
				out = append(out, s)
			}
		}
		slices.Sort(out)
		return slices.Compact(out)
	}
	return sweepSizes(r.small, largest, step, r.info.PhysicalBlock)
}

// Run verifies a device. The report is whole, and says so where it is not,
// whatever the error: the context's, or one of this program's own doing. Nothing
// more is sent after it returned.
func Run(ctx context.Context, dev Device, o Options) (*Report, error) {
	r := newRun(dev, o)
	r.planned = r.plan().Bytes()
	faults, err := r.all(ctx)
	switch {
	case ctx.Err() != nil:
		r.report.Stopped = "interrupted"
		err = ctx.Err()
	case errors.Is(err, errStop):
		err = nil
	case err != nil:
		r.report.Stopped = err.Error()
	}
	if d := r.died; d != nil && !slices.ContainsFunc(faults, func(f *fault) bool { return f.op == d.op && f.failure != nil && f.bad <= d.bad }) {
		// The device did not come back, so this is the last that is known.
		for _, w := range r.report.Sizes {
			if w.Setup == d.su && w.Sectors < d.bad && w.Clean() {
				d.good = max(d.good, w.Sectors)
			}
		}
		d.ranges, d.fails, d.tries, d.tested = []Range{{d.bad, d.bad}}, 1, 1, d.bad
		faults = append(faults, d)
	}
	largest, _ := r.largest(r.plain())
	r.conclude(faults, largest)
	r.report.ElapsedSeconds = o.now().Sub(r.report.Started).Seconds()
	return r.report, err
}

func (o Options) now() time.Time {
	if o.Now == nil {
		return time.Now()
	}
	return o.Now()
}

// all runs the phases.
func (r *run) all(ctx context.Context) (faults []*fault, err error) {
	if err := r.baseline(ctx); err != nil {
		return nil, err
	}
	if r.o.Surface > 0 {
		f, err := r.surface(ctx, r.o.Surface)
		if f != nil {
			faults = append(faults, f)
		}
		return faults, err
	}
	plain := r.plain()
	sizes := r.sizes(plain)
	r.phase = "sweep"
	faults, err = r.sweep(ctx, plain, sizes, r.repeats(), nil)
	r.markTested(faults)
	if err != nil {
		return faults, err
	}
	below := map[Op]int{}
	for _, f := range faults {
		if b := below[f.op]; b == 0 || f.bad < b {
			below[f.op] = f.bad
		}
	}
	for _, su := range r.others() {
		if r.o.PlainOnly || r.stopped {
			break
		}
		r.phase = "sweep, " + su.String()
		found, err := r.sweep(ctx, su, r.sizes(su), r.repeatsOf(su), below)
		for _, f := range found {
			if err == nil {
				f, err = r.condition(ctx, f, sizes)
			} else {
				f.conditional = true
			}
			faults = append(faults, f)
			if !f.conditional && f.bad > 0 {
				below[f.op] = f.bad
			}
		}
		r.markTested(faults)
		if err != nil {
			return faults, err
		}
	}
	if r.o.Mode.Writes() && !r.stopped {
		// What lies where nothing under test should have written.
		strays, err := r.checkAll(ctx)
		if err != nil {
			return faults, err
		}
		if f := r.strayFault(strays, faults); f != nil {
			faults = append(faults, f)
		}
	}
	upTo := func() []int {
		return slices.DeleteFunc(slices.Clone(sizes), func(s int) bool {
			return slices.ContainsFunc(faults, func(f *fault) bool { return s > f.good })
		})
	}
	for _, phase := range []func(context.Context, []int) ([]*fault, error){r.addresses, r.ends, r.cached} {
		found, err := phase(ctx, upTo())
		faults = append(faults, found...)
		if err != nil {
			return faults, err
		}
	}
	limit := 0
	for _, w := range r.report.Sizes {
		if w.Setup == plain && w.Clean() {
			limit = max(limit, w.Sectors)
		}
	}
	limit = r.safe(faults, limit)
	f, err := r.confirm(ctx, limit)
	if f != nil {
		faults = append(faults, f)
	}
	return faults, err
}

// repeatsOf is how often another setup tries each size: a quarter of the plain
// one's, and fewer where each try sends several commands.
func (r *run) repeatsOf(su Setup) int {
	if su.Depth > 1 {
		return max(2, r.repeats()/16)
	}
	return max(4, r.repeats()/4)
}

// markTested notes up to where sizes were tried for faults, so that a range
// that reaches there is told from one that ends.
func (r *run) markTested(faults []*fault) {
	for _, f := range faults {
		if f.tested == 0 {
			f.tested, _ = r.largest(f.su)
		}
	}
}

// condition tells whether a fault takes its setup, or is one of the plain
// one's that was missed there.
func (r *run) condition(ctx context.Context, f *fault, sizes []int) (*fault, error) {
	if r.stopped || f.failure != nil && f.failure.Kind != KindIOError {
		f.conditional = true
		return f, nil
	}
	plain := r.plain()
	size := f.bad / r.step(plain.Path) * r.step(plain.Path)
	res, sent, err := r.fails(ctx, size, max(f.repeats, r.repeats()), plain, f.op)
	if err != nil || res == nil {
		f.conditional = true
		if sent == 0 && err == nil {
			f.note = "this size could not be sent in the plain way"
		}
		return f, err
	}
	return r.analyse(ctx, plain, f.op, sizes, max(f.good, r.small), size, *res)
}

// cached goes through the page cache: there is damage that only shows there,
// where readahead makes commands that nobody asked for.
func (r *run) cached(ctx context.Context, sizes []int) ([]*fault, error) {
	if !r.o.Mode.Writes() || r.dev.Reach(PathCache, Contiguous).Sectors == 0 {
		return nil, nil
	}
	r.phase = "page cache"
	su := Setup{Path: PathCache, Shape: Contiguous, Depth: 1}
	for _, size := range sizes {
		if size < 256 || size > 16384 || size%r.align() != 0 || r.stopped {
			continue
		}
		for range max(1, r.repeats()/16) {
			o, err := r.trial(ctx, size, su, dirs{write: true, read: true})
			if err != nil {
				return nil, err
			}
			r.tick(size)
			for _, op := range []Op{Write, Read} {
				if res := o.of(op); res != nil {
					f := &fault{op: op, su: su, result: *res, conditional: true, fails: 1, tries: 1, bad: size, ranges: []Range{{size, size}},
						note: "the sizes that the page cache sends are its own"}
					return []*fault{f}, nil
				}
			}
		}
	}
	return nil, nil
}

// tick reports progress.
func (r *run) tick(size int) {
	if r.o.Progress != nil {
		r.o.Progress(Progress{Phase: r.phase, Sectors: size, Done: r.report.Written + r.report.Read, Planned: r.planned})
	}
}
