package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
)

// placesTried bounds the search for sectors that nobody else changes.
const placesTried = 16

// readTrial compares large reads with small ones of the same sectors. Where
// the small ones before and after disagree, somebody else writes there, and
// another place is taken.
func (r *run) readTrial(ctx context.Context, size int, su Setup, starts []uint64) (outcome, error) {
	var o outcome
	for range placesTried {
		notReached, res, stable, err := r.readOnce(ctx, size, su, starts)
		if err != nil || stable {
			o.notReached, o.read = notReached, res
			return o, err
		}
		r.report.Unsettled++
		if starts = r.places(size, su.Depth, r.misaligned(su)); starts == nil {
			break
		}
	}
	o.notReached = fmt.Sprintf("the sectors read changed meanwhile, at %d places: the device is in use", placesTried)
	return o, nil
}

func (r *run) readOnce(ctx context.Context, size int, su Setup, starts []uint64) (notReached string, res *result, stable bool, err error) {
	cmds, err := r.big(Read, size, su, starts)
	if err != nil {
		return "", nil, false, err
	}
	a := uint64(r.align())
	type around struct{ from, to uint64 }
	ranges := make([]around, len(starts))
	refs := make([][]byte, len(starts))
	for i, s := range starts {
		w := r.space.of(s, size)
		if w == nil {
			return fmt.Sprintf("sectors %d to %d are not all usable", s, int(s)+size-1), nil, true, nil
		}
		ranges[i] = around{max(w.Sector, s/a*a), min(w.End(), (s+uint64(size)+a-1)/a*a)}
		p, err := r.buffer(fmt.Sprintf("reference%d", i), int(ranges[i].to-ranges[i].from), Contiguous)
		if err != nil {
			return "", nil, false, err
		}
		if err := r.readSmall(ctx, ranges[i].from, ranges[i].to, p); err != nil {
			return "", nil, false, r.smallFailed(err)
		}
		refs[i] = p
	}
	for _, c := range cmds {
		r.session.Poison(c.Data)
	}
	out, err := r.sendLarge(ctx, cmds)
	if out == nil {
		return "", nil, false, err
	}
	notReached, f, proved, err2 := r.failed(ctx, cmds, out, su)
	if err := errors.Join(err, err2); err != nil {
		return "", nil, false, err
	}
	if notReached != "" && f == nil {
		return notReached, nil, true, nil
	}
	if f != nil {
		return "", &result{failure: f, damage: damage{class: classOfFailure(f)}, proved: proved}, true, nil
	}
	for i, c := range cmds {
		ref := refs[i][int(c.Sector-ranges[i].from)*SectorBytes:][:len(c.Data)]
		if bytes.Equal(ref, c.Data) {
			continue
		}
		again, err := r.buffer("again", int(ranges[i].to-ranges[i].from), Contiguous)
		if err != nil {
			return "", nil, false, err
		}
		if err := r.readSmall(ctx, ranges[i].from, ranges[i].to, again); err != nil {
			return "", nil, false, r.smallFailed(err)
		}
		if !bytes.Equal(refs[i], again) {
			return "", nil, false, nil
		}
		d := r.classifyRead(c, ref)
		if res == nil {
			res = &result{damage: d, proved: proved}
		} else {
			res.damage.merge(d)
		}
	}
	return "", res, true, nil
}

// classifyRead says how a large read differs from the small ones.
func (r *run) classifyRead(c Command, ref []byte) damage {
	d := damage{class: ClassDiffers, from: -1}
	kinds := map[Class]int{}
	shifts := map[int64]int{}
	n := c.Sectors()
	poison := make([]byte, SectorBytes)
	r.session.Poison(poison)
	index := map[string][]int{} // sector content -> where it is in the reference
	for i := range n {
		s := string(ref[i*SectorBytes : (i+1)*SectorBytes])
		index[s] = append(index[s], i)
	}
	var wrong []int
	for i := range n {
		got, want := c.Data[i*SectorBytes:(i+1)*SectorBytes], ref[i*SectorBytes:(i+1)*SectorBytes]
		if bytes.Equal(got, want) {
			continue
		}
		if d.from < 0 {
			d.from = i
		}
		wrong = append(wrong, i)
		flips := 0
		for j := range got {
			flips += bits.OnesCount8(got[j] ^ want[j])
		}
		switch {
		case flips <= 7:
			kinds[ClassFlipped]++
			d.flips += flips
		case bytes.Equal(got, poison):
			kinds[ClassTruncated]++
		case len(bytes.Trim(got, "\x00")) == 0:
			kinds[ClassZeroed]++
		case len(bytes.Trim(got, "\xff")) == 0:
			kinds[ClassOnes]++
		case len(index[string(got)]) == 1: // a content that is there once names its place
			kinds[ClassShifted]++
			shifts[int64(i-index[string(got)][0])]++
		default:
			kinds[ClassDiffers]++
		}
	}
	d.wrong = len(wrong)
	for class, k := range kinds {
		if k == len(wrong) {
			d.class = class
		}
	}
	if shift, k := most(shifts); d.class == ClassShifted {
		switch {
		case k == len(wrong) && d.from == 0:
			d.class, d.shift = ClassMisplaced, shift
		case k == len(wrong) && shift == int64(d.from):
			d.class, d.modulus = ClassWrapped, d.from
		case k == len(wrong):
			d.shift = shift
		default:
			d.class = ClassMixed
		}
	}
	for i, w := range wrong {
		if i == 0 || i == len(wrong)/2 || i == len(wrong)-1 {
			want, got := ref[w*SectorBytes:(w+1)*SectorBytes], c.Data[w*SectorBytes:(w+1)*SectorBytes]
			at := min(firstDifference(want, got)/8*8, SectorBytes-32)
			d.examples = append(d.examples, Example{Sector: c.Sector + uint64(w), InCommand: int64(w), Class: string(d.class), Found: "differs from what a small read returns",
				Boundary: at / 8, WantHex: fmt.Sprintf("%x", want[at:at+32]), GotHex: fmt.Sprintf("%x", got[at:at+32])})
		}
	}
	return d
}

// baselineCommands are sent small before any large one.
func (r *run) baselineCommands() int {
	if r.o.Level == Quick {
		return 64
	}
	return 256
}

// baseline shows that small commands do what they should, at random places.
// Where they do not, smaller ones are tried; without a size that works the run
// ends: the fault is not one of size.
func (r *run) baseline(ctx context.Context) error {
	r.phase = "baseline"
	sizes := []int{128, 8, r.info.LogicalBlock}
	reach, _ := r.largest(r.plain())
	if reach = min(reach, r.dev.Reach(r.smallPath, Contiguous).Sectors); reach < sizes[0] {
		sizes[0] = max(reach/r.align()*r.align(), r.info.LogicalBlock)
	}
	slices.Sort(sizes)
	sizes = slices.Compact(sizes)
	slices.Reverse(sizes)
	for i, size := range sizes {
		if size < r.info.LogicalBlock || size%r.info.LogicalBlock != 0 {
			continue
		}
		r.small = size
		r.report.SmallSectors = size
		f, err := r.baselineAt(ctx, size)
		if err != nil {
			return err
		}
		if f == nil {
			return nil
		}
		if i == len(sizes)-1 || sizes[i+1] < r.info.LogicalBlock {
			r.report.smallFault = f
			return r.stop("commands of %d sectors (%s) already fail: this is not a question of size; suspect the disk, the cable, the bridge or memory", size, kib(size))
		}
		r.report.addNote("commands of %d sectors already fail (%s); smaller ones are taken to set up and to read back", size, f.damage.words(f.op))
	}
	return r.stop("no size works at all")
}

func (r *run) baselineAt(ctx context.Context, size int) (*fault, error) {
	for range r.baselineCommands() {
		r.reserve()
		f, err := r.baselineOnce(ctx, size)
		if f != nil || err != nil {
			return f, err
		}
	}
	if !r.o.Mode.Writes() {
		return nil, nil
	}
	strays, err := r.checkAll(ctx)
	if err != nil {
		var small *errSmall
		if errors.As(err, &small) {
			return smallFault(err)
		}
		return nil, err
	}
	if len(strays) > 0 {
		d := damage{class: ClassStray, outside: len(strays)}
		s := strays[0]
		d.examples = []Example{{Sector: s.sector, Class: string(s.Class), SourceLBA: s.LBA, Generation: s.Generation, Found: s.Describe(s.sector, 0)}}
		return &fault{op: Write, result: result{damage: d}}, nil
	}
	return nil, nil
}

// baselineOnce writes and reads, or reads twice, one small command at a random
// place.
func (r *run) baselineOnce(ctx context.Context, size int) (*fault, error) {
	starts := r.places(size, 1, 0)
	if starts == nil {
		return nil, r.stop("the target is too small: no place for %d sectors", size)
	}
	from := starts[0]
	p, err := r.buffer("small", r.small, Contiguous)
	if err != nil {
		return nil, err
	}
	p = p[:size*SectorBytes]
	if !r.o.Mode.Writes() {
		q, err := r.buffer("again", size, Contiguous)
		if err != nil {
			return nil, err
		}
		for _, b := range [][]byte{p, q} {
			r.session.Poison(b)
			if err := r.smallDo(ctx, Read, from, b); err != nil {
				return smallFault(err)
			}
		}
		r.tick(2 * size)
		if bytes.Equal(p, q) {
			return nil, nil
		}
		if r.unequal++; r.info.Shared || r.unequal == 1 { // somebody writes there, or did just before
			r.report.Unsettled++
			return nil, nil
		}
		return &fault{op: Read, result: result{damage: damage{class: ClassUnstable}}}, nil
	}
	w := r.space.of(from, size)
	g := r.next()
	r.session.Fill(p, from, g)
	w.set(from, size, 0)
	if err := r.smallDo(ctx, Write, from, p); err != nil {
		return smallFault(err)
	}
	w.set(from, size, g)
	r.session.Poison(p)
	if err := r.smallDo(ctx, Read, from, p); err != nil {
		return smallFault(err)
	}
	r.tick(2 * size)
	if bad := r.compare(w, p, from, from); len(bad) > 0 {
		d := classify(from, size, g, bad, false)
		d.examples = r.examples(w, bad, from, at(p, from))
		w.set(from, size, 0)
		return &fault{op: Write, result: result{damage: d}}, nil
	}
	return nil, nil
}

// smallFault makes a fault of a small command's failure; other errors pass.
func smallFault(err error) (*fault, error) {
	var e *errSmall
	if !errors.As(err, &e) {
		return nil, err
	}
	f := asFailure(e.err)
	if f.Kind == KindGone || f.Kind == KindNotOurs {
		return nil, err
	}
	return &fault{op: e.op, result: result{damage: damage{class: classOfFailure(f)}, failure: f}}, nil
}
