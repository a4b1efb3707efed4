package verify

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/quirkcheck/quirkcheck/checker/verify/pattern"
)

// run is one verification on its way.
type run struct {
	dev  Device
	o    Options
	info Info

	session    *pattern.Session
	generation uint32
	space      *space
	rng        *rand.Rand
	small      int  // sectors of the commands that set up and read back
	smallPath  Path // how they go

	resets      int  // timeouts and resets so far
	stopped     bool // two of them: no more sizes
	planned     uint64
	phase       string
	report      *Report
	latency     [2][]time.Duration // of the size under test, by Op
	proof       Proof              // the weakest of the size under test
	sent        map[uint32]int     // size of the large writes, by generation
	faulty      map[uint32]bool    // generations of large writes that were found wrong
	strays      []stray            // left by large writes that had looked right
	compared    comparison
	looked      int    // searches of the whole region since the analysis began
	lookedStray bool   // one stray was looked into
	lookAll     bool   // every write is followed by such a search
	unequal     int    // small reads that disagreed, reading only
	died        *fault // the device did not come back
}

// dirs are the directions that a trial tests.
type dirs struct{ write, read bool }

func (d dirs) any() bool { return d.write || d.read }

func only(op Op) dirs { return dirs{write: op == Write, read: op == Read} }

// result is what one direction of a trial showed; nil is clean.
type result struct {
	damage  damage
	failure *Failure // the command did not succeed
	proved  bool     // the size was reached
	written bool     // met by a read, and done by a write
}

// outcome of a trial.
type outcome struct {
	notReached  string // why the size could not be sent; nothing is known then
	write, read *result
}

func (o outcome) of(op Op) *result {
	if op == Write {
		return o.write
	}
	return o.read
}

// errStop ends a run that cannot go on; the report says why.
var errStop = errors.New("the run cannot go on")

// stop ends the run with a reason for the report.
func (r *run) stop(format string, args ...any) error {
	r.report.Stopped = fmt.Sprintf(format, args...)
	return errStop
}

// next gives out a generation.
func (r *run) next() uint32 {
	r.generation++
	return r.generation
}

// reserved is more generations than any one step takes: a piece of the largest
// command and its guards each, several times over.
const reserved = 1 << 14

// reserve begins another session where the generations run out. It is called
// before a step, as what the sectors hold is unknown afterwards.
func (r *run) reserve() {
	if r.generation < pattern.MaxGeneration-reserved { // the last is the poison's
		return
	}
	r.session = pattern.New(r.session.Seed() + 1)
	r.report.Sessions = append(r.report.Sessions, r.session.Seed())
	r.space.forget()
	clear(r.sent)
	clear(r.faulty)
	r.generation = 0
}

func (r *run) buffer(role string, sectors int, shape Shape) ([]byte, error) {
	p, err := r.dev.Buffer(role, sectors, shape)
	if err != nil {
		return nil, r.stop("no memory for commands of %d sectors: %v", sectors, err)
	}
	return p[:sectors*SectorBytes], nil
}

// send is Device.Do with the accounts kept.
func (r *run) send(ctx context.Context, cmds []Command) ([]Completion, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	out := r.dev.Do(ctx, cmds)
	for i, c := range cmds {
		if out[i].Err != nil {
			continue
		}
		if c.Op == Write {
			r.report.Written += uint64(len(c.Data))
		} else {
			r.report.Read += uint64(len(c.Data))
		}
	}
	r.report.Commands += len(cmds)
	return out, ctx.Err()
}

// sendLarge is send for the commands under test: what the kernel said before is
// not theirs.
func (r *run) sendLarge(ctx context.Context, cmds []Command) ([]Completion, error) {
	for _, e := range r.dev.Events() {
		r.report.addEvent(e)
	}
	return r.send(ctx, cmds)
}

// pieces runs f over a range in pieces of small commands, none of which reaches
// over an address edge, where size is not the question.
func (r *run) pieces(from, to uint64, f func(sector uint64, n int) error) error {
	for at := from; at < to; {
		n := int(min(uint64(r.small), to-at))
		for _, edge := range r.edges() {
			if abs := at + r.info.First; abs < edge && abs+uint64(n) > edge {
				n = int(edge - abs)
			}
		}
		if err := f(at, n); err != nil {
			return err
		}
		at += uint64(n)
	}
	return nil
}

// errSmall is a small command that failed, which is nothing of size.
type errSmall struct {
	op     Op
	sector uint64
	err    error
}

func (e *errSmall) Error() string {
	return fmt.Sprintf("%s of a small command at sector %d: %v", e.op, e.sector, e.err)
}

func (r *run) smallDo(ctx context.Context, op Op, sector uint64, p []byte) error {
	out, err := r.send(ctx, []Command{{Op: op, Sector: sector, Data: p, Path: r.smallPath, Unproved: true}})
	if err != nil {
		return err
	}
	if out[0].Err != nil {
		return &errSmall{op, sector, out[0].Err}
	}
	return nil
}

// paint gives the sectors of a range that are unknown a known content.
func (r *run) paint(ctx context.Context, w *window, from, to uint64) error {
	g := w.at(from, int(to-from))
	if !slices.Contains(g, 0) {
		return nil
	}
	generation := r.next()
	p, err := r.buffer("small", r.small, Contiguous)
	if err != nil {
		return err
	}
	return r.pieces(from, to, func(sector uint64, n int) error {
		if !slices.Contains(w.at(sector, n), 0) {
			return nil
		}
		r.session.Fill(p[:n*SectorBytes], sector, generation)
		if err := r.smallDo(ctx, Write, sector, p[:n*SectorBytes]); err != nil {
			return err
		}
		w.set(sector, n, generation)
		return nil
	})
}

// readSmall reads a range in small commands into p.
func (r *run) readSmall(ctx context.Context, from, to uint64, p []byte) error {
	return r.pieces(from, to, func(sector uint64, n int) error {
		at := int(sector-from) * SectorBytes
		r.session.Spoil(p[at : at+n*SectorBytes])
		return r.smallDo(ctx, Read, sector, p[at:at+n*SectorBytes])
	})
}

// compare lists the sectors of p that are not what the window says, with
// their place relative to start.
func (r *run) compare(w *window, p []byte, from, start uint64) []badSector {
	var bad []badSector
	gens := w.at(from, len(p)/SectorBytes)
	lim := pattern.Limits{Sectors: r.info.Sectors, Generation: r.generation}
	for off := 0; ; {
		i := r.session.Check(p[off*SectorBytes:], from+uint64(off), gens[off:])
		if i < 0 {
			return bad
		}
		off += i
		sector := from + uint64(off)
		bad = append(bad, badSector{start64(sector) - start64(start), r.session.Decode(p[off*SectorBytes:(off+1)*SectorBytes], sector, gens[off], lim)})
		off++
		if off == len(gens) {
			return bad
		}
	}
}

// unspoiled leaves out the sectors that an earlier large write left its data in:
// that is not the doing of the command under test. They are painted when they
// are used next; where the write had looked right, it is kept for the sweep.
// Where a write should just have replaced such data, it is old data like any
// other.
func (r *run) unspoiled(w *window, bad []badSector, start uint64, own []uint32, replaced func(sector uint64) bool) (kept []badSector, spoiled int) {
	for _, b := range bad {
		sector := uint64(start64(start) + b.index)
		if b.Class != pattern.Misdirected || r.sent[b.Generation] == 0 || slices.Contains(own, b.Generation) {
			kept = append(kept, b)
			continue
		}
		if replaced(sector) {
			b.Class = pattern.Stale
			kept = append(kept, b)
			continue
		}
		spoiled++
		w.set(sector, 1, 0)
		r.astray(stray{sector, b.Sector})
	}
	return kept, spoiled
}

// astray keeps the first stray of each write that had looked right.
func (r *run) astray(s stray) {
	if r.sent[s.Generation] == 0 || r.faulty[s.Generation] {
		return
	}
	r.faulty[s.Generation] = true
	r.strays = append(r.strays, s)
}

// examples shows some of the sectors.
func (r *run) examples(w *window, bad []badSector, start uint64, sectorAt func(sector uint64) []byte) []Example {
	var out []Example
	want := make([]byte, SectorBytes)
	for i, b := range bad {
		if i != 0 && i != len(bad)/2 && i != len(bad)-1 {
			continue
		}
		sector := uint64(start64(start) + b.index)
		g := w.at(sector, 1)[0]
		r.session.Fill(want, sector, g)
		e := Example{Sector: sector, InCommand: b.index, Class: string(b.Class), Found: b.Describe(sector, g), SourceLBA: b.LBA, Generation: b.Generation, Wanted: g,
			WantHex: hex.EncodeToString(want[:32])}
		if got := sectorAt(sector); got != nil {
			at := firstDifference(want, got)
			e.Boundary = at / 8
			at = min(at/8*8, SectorBytes-32)
			e.WantHex, e.GotHex = hex.EncodeToString(want[at:at+32]), hex.EncodeToString(got[at:at+32])
		}
		out = append(out, e)
	}
	return out
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return 0
}

// guardSectors is the guard to each side of a command that is read back with
// it: as large as the command, up to 128 KiB. What lands further off is found
// when all sectors are looked at: after a write that is not where it belongs,
// and at the end.
func guardSectors(size int) int { return min(size, 256) }

// align is the multiple that aligned commands start at, and that small
// commands keep to.
func (r *run) align() int { return max(r.info.PhysicalBlock, r.info.LogicalBlock, 8) }

// places chooses starts for commands at random.
func (r *run) places(size, depth, off int) []uint64 {
	return r.space.places(r.rng, r.info.First%uint64(r.align()), size, depth, r.align(), off)
}

// misaligned is the offset of a trial's starts.
func (r *run) misaligned(su Setup) int {
	l := r.info.LogicalBlock
	switch {
	case su.Misaligned > 0:
		return su.Misaligned
	case su.Misaligned < 0:
		offs := []int{l, 7 * l, r.align() - l}
		offs = slices.DeleteFunc(offs, func(n int) bool { return n >= r.align() })
		return offs[r.rng.IntN(len(offs))]
	}
	return 0
}

// trial sends commands of one size once, at random places or at the start
// given, and looks at what they did. The error is the context's, or ends the
// run.
func (r *run) trial(ctx context.Context, size int, su Setup, do dirs, at ...uint64) (outcome, error) {
	var o outcome
	r.reserve()
	starts := at
	if len(at) == 0 {
		starts = r.places(size, su.Depth, r.misaligned(su))
	}
	if starts == nil {
		o.notReached = fmt.Sprintf("no place for %d commands of %d sectors", su.Depth, size)
		return o, nil
	}
	if !r.o.Mode.Writes() {
		return r.readTrial(ctx, size, su, starts)
	}
	first, last := slices.Min(starts), slices.Max(starts)
	w := r.space.of(first, int(last-first)+size)
	if w == nil {
		o.notReached = fmt.Sprintf("sectors %d to %d are not all usable", first, int(last)+size-1)
		return o, nil
	}
	from, to := w.guarded(first, int(last-first)+size, guardSectors(size), r.align())
	if err := r.paint(ctx, w, from, to); err != nil {
		return o, r.smallFailed(err)
	}
	if do.write {
		var err error
		if o.notReached, o.write, err = r.writeTrial(ctx, w, size, su, starts, from, to); err != nil || o.notReached != "" {
			return o, err
		}
		if o.write != nil && o.write.failure != nil {
			return o, nil // nothing is known of the sectors now
		}
	}
	if do.read {
		var err error
		if o.notReached, o.read, err = r.bigRead(ctx, w, size, su, starts); err != nil {
			return o, err
		}
	}
	return o, nil
}

// smallFailed turns the failure of a small command into the end of the run.
func (r *run) smallFailed(err error) error {
	var e *errSmall
	if !errors.As(err, &e) {
		return err
	}
	r.report.addNote("%v: not a question of size", e)
	r.report.smallFault = &fault{op: e.op, result: result{damage: damage{class: ClassError}, failure: asFailure(e.err)}}
	return r.stop("%v", e)
}

func asFailure(err error) *Failure {
	var f *Failure
	if errors.As(err, &f) {
		return f
	}
	return &Failure{Kind: KindIOError, Detail: err.Error()}
}

// big builds the commands of a trial in one buffer.
func (r *run) big(op Op, size int, su Setup, starts []uint64) ([]Command, error) {
	stride := (size + 4095) / 4096 * 4096 // each begins a 2 MiB page
	p, err := r.buffer(op.String(), stride*len(starts), su.Shape)
	if err != nil {
		return nil, err
	}
	cmds := make([]Command, len(starts))
	for i, s := range starts {
		cmds[i] = Command{Op: op, Sector: s, Data: p[i*stride*SectorBytes:][:size*SectorBytes], Path: su.Path}
	}
	return cmds, nil
}

// failed sorts what went wrong with commands: the worst failure of the device, or
// why they were not sent or not proved. Timeouts and resets are counted, and
// waited for. The error ends the run.
func (r *run) failed(ctx context.Context, cmds []Command, out []Completion, su Setup) (notReached string, f *Failure, proved bool, err error) {
	proved = true
	op, size := cmds[0].Op, cmds[0].Sectors()
	for i, c := range out {
		if c.Err == nil || c.Latency > 0 {
			r.latency[cmds[i].Op] = append(r.latency[cmds[i].Op], c.Latency)
		}
		if c.Err == nil {
			if r.proof = weaker(r.proof, c.Proof); c.Proof == "" {
				proved = false
				if notReached == "" && su.Path != PathCache {
					notReached = unproved(cmds[i], c)
				}
			}
			continue
		}
		if ctx.Err() != nil && errors.Is(c.Err, ctx.Err()) {
			return "", nil, false, ctx.Err()
		}
		switch e := asFailure(c.Err); {
		case e.Kind == KindNotSent:
			notReached, proved = e.Detail, false
		case f == nil || worse(e.Kind, f.Kind):
			f, op, size = e, cmds[i].Op, cmds[i].Sectors()
		}
	}
	for _, e := range r.dev.Events() {
		r.report.addEvent(e)
		// A command that succeeded although the link was reset: on a disk that
		// is in use it may have been another's.
		if f == nil && !r.info.Shared && (e.Kind == KindTimeout || e.Kind == KindReset) {
			f = &Failure{Kind: e.Kind, Detail: "the kernel's log, while every command succeeded: " + e.Text}
		}
	}
	if f == nil {
		return notReached, nil, proved, nil
	}
	died := func() {
		r.died = &fault{op: op, su: su, bad: size, result: result{failure: f, damage: damage{class: classOfFailure(f)}, proved: proved}}
	}
	switch f.Kind {
	case KindInternal:
		return "", f, false, fmt.Errorf("%s of %d sectors: %s", op, size, f.Detail)
	case KindGone, KindNotOurs:
		died()
		return "", f, false, r.stop("%v", f)
	case KindTimeout, KindReset:
		r.resets++
		r.stopped = r.resets >= 2 && !r.o.RetryTimeouts
		if err := r.dev.Recover(ctx); err != nil {
			if ctx.Err() != nil {
				return "", f, false, ctx.Err()
			}
			died()
			return "", f, false, r.stop("after %v: %v", f, err)
		}
		r.dev.Events() // of the recovery
		if err := r.afterReset(ctx); err != nil {
			died()
			return "", f, false, err
		}
	}
	return "", f, proved, ctx.Err()
}

// weaker returns the weaker of two proofs; before the first there is "unset".
func weaker(a, b Proof) Proof {
	rank := []Proof{"", ProofStat, ProofTrace, ProofCommand, unset}
	if slices.Index(rank, b) < slices.Index(rank, a) {
		return b
	}
	return a
}

// unset stands for no command yet.
const unset Proof = "unset"

// afterReset makes sure that small commands work again.
func (r *run) afterReset(ctx context.Context) error {
	for range 16 {
		f, err := r.baselineOnce(ctx, r.small)
		if err != nil {
			return err
		}
		if f != nil {
			r.report.addNote("after a reset small commands fail too: %s", f.damage.words(f.op))
			return r.stop("the device did not come back to its senses after a reset")
		}
	}
	return nil
}

func worse(a, b Kind) bool {
	rank := func(k Kind) int {
		return slices.Index([]Kind{KindInternal, KindShort, KindIOError, KindReset, KindTimeout, KindNotOurs, KindGone}, k)
	}
	return rank(a) > rank(b)
}

func unproved(c Command, out Completion) string {
	if out.Requests > 0 {
		return fmt.Sprintf("%d sectors were sent as %d requests, the largest of %d", c.Sectors(), out.Requests, out.Largest)
	}
	return fmt.Sprintf("nothing proves that %d sectors reached the device as one request", c.Sectors())
}

func classOfFailure(f *Failure) Class {
	switch f.Kind {
	case KindGone, KindNotOurs:
		return ClassGone
	case KindTimeout:
		return ClassTimeout
	case KindReset:
		return ClassReset
	}
	return ClassError
}

func (r *run) writeTrial(ctx context.Context, w *window, size int, su Setup, starts []uint64, from, to uint64) (string, *result, error) {
	cmds, err := r.big(Write, size, su, starts)
	if err != nil {
		return "", nil, err
	}
	gens := make([]uint32, len(cmds))
	for i, c := range cmds {
		gens[i] = r.next()
		r.sent[gens[i]] = size
		r.session.Fill(c.Data, c.Sector, gens[i])
	}
	out, sendErr := r.sendLarge(ctx, cmds)
	if out == nil {
		return "", nil, sendErr
	}
	notReached, f, proved, err := r.failed(ctx, cmds, out, su)
	sent := false
	for i, c := range cmds {
		switch {
		case out[i].Err == nil:
			w.set(c.Sector, size, gens[i])
			sent = true
		case asFailure(out[i].Err).Kind != KindNotSent:
			w.set(c.Sector, size, 0)
		}
	}
	if err != nil || f != nil {
		for _, c := range cmds {
			w.set(c.Sector, size, 0)
		}
		return "", &result{failure: f, damage: damage{class: classOfFailure2(f)}, proved: proved}, err
	}
	if sendErr != nil || !sent {
		return notReached, nil, sendErr
	}
	if su.Path == PathCache {
		if err := r.dev.Flush(ctx); err != nil {
			return "", nil, r.stop("flush: %v", err)
		}
	}
	p, err := r.buffer("check", int(to-from), Contiguous)
	if err != nil {
		return "", nil, err
	}
	if err := r.readSmall(ctx, from, to, p); err != nil {
		return "", nil, r.smallFailed(err)
	}
	bad, _ := r.unspoiled(w, r.compare(w, p, from, starts[0]), starts[0], gens, func(sector uint64) bool {
		return slices.ContainsFunc(starts, func(s uint64) bool { return sector >= s && sector < s+uint64(size) })
	})
	if len(bad) == 0 && r.lookAll {
		strays, err := r.checkAll(ctx)
		if err != nil {
			return "", nil, err
		}
		for _, s := range strays {
			if slices.Contains(gens, s.Generation) {
				return "", &result{damage: strayDamage(s, len(strays)), proved: proved && notReached == ""}, nil
			}
			r.astray(s)
		}
	}
	if len(bad) == 0 {
		return notReached, nil, nil
	}
	for _, g := range gens {
		r.faulty[g] = true
	}
	r.askDevice(ctx, w, bad, starts[0])
	// The same again, small: what the medium holds stays.
	stable, err := r.again(ctx, from, to, p)
	if err != nil {
		return "", nil, err
	}
	var d damage
	for i, s := range starts {
		mine := ofCommand(bad, starts, i, size)
		if len(mine) == 0 {
			continue
		}
		one := classify(s, size, gens[i], mine, false)
		one.examples = r.examples(w, mine, s, at(p, from))
		if stable && (one.class == ClassLost || one.class == ClassTruncated) && r.looked < maxLooks {
			if err := r.lookFor(ctx, &one, gens[i]); err != nil {
				return "", nil, err
			}
		}
		r.looked++
		if d.class == "" {
			d = one
		} else {
			d.merge(one)
		}
	}
	if !stable {
		d.class = ClassUnstable
		r.selfTest(ctx)
	}
	if err := r.repair(ctx, w, from, to, bad, starts[0]); err != nil {
		return "", nil, err
	}
	// Damage speaks also where the size has no proof.
	return "", &result{damage: d, proved: proved && notReached == ""}, nil
}

func classOfFailure2(f *Failure) Class {
	if f == nil {
		return ClassError
	}
	return classOfFailure(f)
}

// at gives the sector's bytes in a buffer that begins with sector from.
func at(p []byte, from uint64) func(uint64) []byte {
	return func(sector uint64) []byte {
		i := int(sector-from) * SectorBytes
		if sector < from || i+SectorBytes > len(p) {
			return nil
		}
		return p[i : i+SectorBytes]
	}
}

// ofCommand picks the bad sectors that belong to command i of several: those
// nearest to it. Their index comes relative to its start.
func ofCommand(bad []badSector, starts []uint64, i, size int) []badSector {
	if len(starts) == 1 {
		return bad
	}
	var out []badSector
	for _, b := range bad {
		sector := start64(starts[0]) + b.index
		best, dist := 0, int64(-1)
		for j, s := range starts {
			d := max(0, start64(s)-sector, sector-(start64(s)+int64(size)-1))
			if dist < 0 || d < dist {
				best, dist = j, d
			}
		}
		if best == i {
			b.index = sector - start64(starts[i])
			out = append(out, b)
		}
	}
	return out
}

// again reads a range twice more, from the medium where the device can be told
// to, and once after a while, and reports whether it stays the same. The wait
// is for the first fault of an analysis only.
func (r *run) again(ctx context.Context, from, to uint64, p []byte) (stable bool, err error) {
	q, err := r.buffer("again", int(to-from), Contiguous)
	if err != nil {
		return false, err
	}
	if err := r.readSmall(ctx, from, to, q); err != nil {
		return false, r.smallFailed(err)
	}
	if !slices.Equal(p, q) {
		return false, nil
	}
	if r.looked > 0 {
		return true, nil
	}
	if r.dev.Reach(PathCommand, Contiguous).Sectors >= r.small {
		same := true
		err := r.pieces(from, to, func(sector uint64, n int) error {
			part := q[int(sector-from)*SectorBytes:][:n*SectorBytes]
			r.session.Spoil(part)
			out, err := r.send(ctx, []Command{{Op: Read, Sector: sector, Data: part, Path: PathCommand, FUA: true}})
			if err != nil {
				return err
			}
			if out[0].Err == nil { // there are devices without FUA
				same = same && slices.Equal(part, p[int(sector-from)*SectorBytes:][:n*SectorBytes])
			}
			return nil
		})
		if err != nil || !same {
			return false, err
		}
	}
	wait := r.o.Wait
	if wait == 0 {
		wait = time.Second
	}
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-time.After(wait):
	}
	if err := r.readSmall(ctx, from, to, q); err != nil {
		return false, r.smallFailed(err)
	}
	return slices.Equal(p, q), nil
}

// selfTestBytes is how much memory the self-test goes over.
const selfTestBytes = 64 << 20

// selfTest fills and checks memory of the host for a while, once: reads that
// come and go may be its own.
func (r *run) selfTest(ctx context.Context) {
	if r.report.SelfTested {
		return
	}
	r.report.SelfTested = true
	limit := r.o.SelfTest
	if limit == 0 {
		limit = 5 * time.Second
	}
	p := make([]byte, selfTestBytes)
	gens := make([]uint32, selfTestBytes/SectorBytes)
	s := pattern.New(r.session.Seed() + 0x5e1f)
	rounds := uint32(0)
	for begin := time.Now(); time.Since(begin) < limit && ctx.Err() == nil; {
		rounds++
		s.Fill(p, 0, rounds)
		for i := range gens {
			gens[i] = rounds
		}
		if at := s.Check(p, 0, gens); at >= 0 {
			r.report.HostFaulty = true
			r.report.addNote("this host's own memory fails: round %d, offset %d; nothing here is about the disk", rounds, at*SectorBytes)
			return
		}
	}
	r.report.addNote("reads that come and go: %d rounds over %d MiB of this host's memory found no fault there", rounds, selfTestBytes>>20)
}

// maxLooks bounds the searches of the whole region in one analysis: the class
// of a fault does not change.
const maxLooks = 2

// lookFor searches all known sectors for data of a write that is not where it
// belongs.
func (r *run) lookFor(ctx context.Context, d *damage, generation uint32) error {
	strays, err := r.checkAll(ctx)
	if err != nil {
		return err
	}
	moved := map[int64]int{}
	for _, s := range strays {
		switch {
		case s.Class != pattern.Misdirected:
		case s.Generation == generation:
			moved[start64(s.sector)-start64(s.LBA)]++
		default:
			r.astray(s)
		}
	}
	if shift, n := most(moved); n > 0 {
		d.shift, d.outside = shift, d.outside+n
		if d.class == ClassLost {
			d.class = ClassMisplaced
		} else {
			d.class = ClassShifted
		}
	}
	return nil
}

// stray is a sector found changed that no command under test should have
// touched.
type stray struct {
	sector uint64
	pattern.Sector
}

// checkAll reads all sectors whose content is known, lists and repairs those
// that changed. Sectors known to be bad already are in it too.
func (r *run) checkAll(ctx context.Context) ([]stray, error) {
	var out []stray
	p, err := r.buffer("again", max(r.small, 1), Contiguous)
	if err != nil {
		return nil, err
	}
	for _, w := range r.space.windows {
		err := r.pieces(w.Sector, w.End(), func(sector uint64, n int) error {
			gens := w.at(sector, n)
			if slices.Contains(gens, 0) {
				if !slices.ContainsFunc(gens, func(g uint32) bool { return g != 0 }) {
					return nil
				}
				return r.knownRuns(ctx, w, sector, n, p, &out)
			}
			return r.checkPiece(ctx, w, sector, n, p, &out)
		})
		if err != nil {
			return out, r.smallFailed(err)
		}
	}
	return out, nil
}

// knownRuns checks the known runs of a piece, to whole blocks.
func (r *run) knownRuns(ctx context.Context, w *window, sector uint64, n int, p []byte, out *[]stray) error {
	step := r.align()
	for off := 0; off < n; off += step {
		m := min(step, n-off)
		if slices.Contains(w.at(sector+uint64(off), m), 0) {
			continue
		}
		if err := r.checkPiece(ctx, w, sector+uint64(off), m, p, out); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) checkPiece(ctx context.Context, w *window, sector uint64, n int, p []byte, out *[]stray) error {
	p = p[:n*SectorBytes]
	r.session.Spoil(p)
	if err := r.smallDo(ctx, Read, sector, p); err != nil {
		return err
	}
	bad := r.compare(w, p, sector, sector)
	if len(bad) == 0 {
		return nil
	}
	for _, b := range bad {
		*out = append(*out, stray{sector: sector + uint64(b.index), Sector: b.Sector})
	}
	w.set(sector, n, 0) // painted when it is used next
	return nil
}

// repair writes the pieces with bad sectors again, small, and makes sure that
// this helps. Where it does not, the medium is bad and sizes have nothing to
// do with it.
func (r *run) repair(ctx context.Context, w *window, from, to uint64, bad []badSector, start uint64) error {
	r.unknown(w, bad, start)
	p, err := r.buffer("again", r.small, Contiguous)
	if err != nil {
		return err
	}
	return r.pieces(from, to, func(sector uint64, n int) error {
		if !slices.Contains(w.at(sector, n), 0) {
			return nil
		}
		if err := r.paint(ctx, w, sector, sector+uint64(n)); err != nil {
			return r.smallFailed(err)
		}
		p := p[:n*SectorBytes]
		r.session.Spoil(p)
		if err := r.smallDo(ctx, Read, sector, p); err != nil {
			return r.smallFailed(err)
		}
		if left := r.compare(w, p, sector, sector); len(left) > 0 {
			d := classify(sector, n, r.generation, left, false)
			d.examples = r.examples(w, left, sector, at(p, sector))
			r.report.smallFault = &fault{op: Write, result: result{damage: d}}
			return r.stop("sectors that a large write damaged stay bad after small writes: the medium, or writes of any size")
		}
		return nil
	})
}

func (r *run) bigRead(ctx context.Context, w *window, size int, su Setup, starts []uint64) (string, *result, error) {
	notReached, res, spoiled, err := r.bigReadOnce(ctx, w, size, su, starts)
	for try := 0; spoiled > 0 && err == nil && try < 3; try++ {
		for _, s := range starts {
			from, to := w.guarded(s, size, 0, r.align())
			if err := r.paint(ctx, w, from, to); err != nil {
				return "", nil, r.smallFailed(err)
			}
		}
		notReached, res, spoiled, err = r.bigReadOnce(ctx, w, size, su, starts)
	}
	return notReached, res, err
}

// bigReadOnce also counts the sectors that an earlier write had spoiled: the
// read says nothing then.
func (r *run) bigReadOnce(ctx context.Context, w *window, size int, su Setup, starts []uint64) (notReached string, res *result, spoiled int, err error) {
	cmds, err := r.big(Read, size, su, starts)
	if err != nil {
		return "", nil, 0, err
	}
	for _, c := range cmds {
		r.session.Poison(c.Data)
	}
	out, err := r.sendLarge(ctx, cmds)
	if out == nil {
		return "", nil, 0, err
	}
	why, f, proved, err2 := r.failed(ctx, cmds, out, su)
	if err := errors.Join(err, err2); err != nil {
		return "", nil, 0, err
	}
	if f != nil {
		return "", &result{failure: f, damage: damage{class: classOfFailure(f)}, proved: proved}, 0, nil
	}
	var d damage
	for i, c := range cmds {
		if out[i].Err != nil {
			continue
		}
		bad := r.compare(w, c.Data, c.Sector, c.Sector)
		if len(bad) == 0 {
			continue
		}
		// The medium may be wrong: an earlier write can have left its data here.
		n, err := r.spoiledMedium(ctx, w, c)
		if err != nil {
			return "", nil, 0, err
		}
		if spoiled += n; n > 0 {
			continue
		}
		one := classify(starts[i], size, w.at(c.Sector, 1)[0], bad, true)
		one.examples = r.examples(w, bad, c.Sector, at(c.Data, c.Sector))
		// Is the medium right, and does the same read say the same again?
		ok, same, err := r.reread(ctx, w, c, bad)
		if err != nil {
			return "", nil, 0, err
		}
		if !ok || !same && one.class != ClassFlipped {
			one.class = ClassUnstable
			r.selfTest(ctx)
		}
		if d.class == "" {
			d = one
		} else {
			d.merge(one)
		}
	}
	if d.class == "" {
		return why, nil, spoiled, nil
	}
	return "", &result{damage: d, proved: proved && why == ""}, 0, nil
}

// spoiledMedium reads the sectors of a command small and counts those that an
// earlier large write left its data in.
func (r *run) spoiledMedium(ctx context.Context, w *window, c Command) (int, error) {
	a := uint64(r.align())
	from, to := max(w.Sector, c.Sector/a*a), min(w.End(), (c.Sector+uint64(c.Sectors())+a-1)/a*a)
	p, err := r.buffer("again", int(to-from), Contiguous)
	if err != nil {
		return 0, err
	}
	if err := r.readSmall(ctx, from, to, p); err != nil {
		return 0, r.smallFailed(err)
	}
	_, n := r.unspoiled(w, r.compare(w, p, from, c.Sector), c.Sector, nil, func(uint64) bool { return false })
	return n, nil
}

// reread reads the sectors of a command that came back wrong again: small, which
// must be right (ok), and as it was, once (same: wrong in the same way, or right,
// as a fault that comes and goes is).
func (r *run) reread(ctx context.Context, w *window, c Command, bad []badSector) (ok, same bool, err error) {
	a := uint64(r.align())
	from, to := c.Sector/a*a, (c.Sector+uint64(c.Sectors())+a-1)/a*a
	from, to = max(from, w.Sector), min(to, w.End())
	p, err := r.buffer("again", int(to-from), Contiguous)
	if err != nil {
		return false, false, err
	}
	if err := r.readSmall(ctx, from, to, p); err != nil {
		return false, false, r.smallFailed(err)
	}
	small := p[int(c.Sector-from)*SectorBytes:][:len(c.Data)]
	ok = len(r.compare(w, small, c.Sector, c.Sector)) == 0
	before := slices.Clone(c.Data)
	r.session.Poison(c.Data)
	out, err := r.send(ctx, []Command{c})
	if err != nil {
		return ok, false, err
	}
	if out[0].Err != nil {
		return ok, true, nil // another trial meets it again
	}
	same = slices.Equal(before, c.Data) || len(r.compare(w, c.Data, c.Sector, c.Sector)) == 0
	return ok, same, nil
}
