package verify

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quirkcheck/quirkcheck/internal/vm/faultdisk"
)

func disk(size int64, seed int, faults ...faultdisk.Fault) (*faultdisk.Disk, *fakeDevice) {
	d := faultdisk.New(size, faultdisk.Options{Seed: uint64(seed) + 1, Faults: faults})
	d.KeepNoLog()
	return d, newFake(d)
}

// verifyFake is a run on the fake device itself.
func verifyFake(t *testing.T, f *fakeDevice, o Options) *Report {
	t.Helper()
	return verifyDevice(t, f, f, o)
}

// TestHealthyDisks: no alarm, on devices of all shapes; in 1,000 runs where CI asks
// for 20 seeds.
func TestHealthyDisks(t *testing.T) {
	n := 50 * min(seeds(t), 20)
	for seed := range n {
		rng := rand.New(rand.NewPCG(uint64(seed), 7))
		_, f := disk(8<<20+int64(rng.IntN(64))*4096, seed)
		f.command, f.block, f.fragmented = 64+rng.IntN(700), 64+rng.IntN(300)*8, 32+rng.IntN(200)
		f.info.LogicalBlock, f.info.PhysicalBlock = 1, 1
		switch rng.IntN(4) {
		case 0:
			f.info.LogicalBlock, f.info.PhysicalBlock = 8, 8
			f.command = f.command / 8 * 8
		case 1:
			f.info.PhysicalBlock = 8
		case 2:
			f.command = 0 // virtio-blk, NBD: no pass-through
		}
		o := Options{Mode: []Mode{ModeDestroy, ModeReadOnly, ModeFile}[rng.IntN(3)], Seed: uint64(seed) * 31, Repeats: 2}
		if rng.IntN(5) == 0 {
			f.info.Usable = []Extent{{1000, 4096}, {6000, 3000}}
		}
		r := verifyFake(t, f, o)
		if r.Verdict != VerdictClean || len(r.Findings) > 0 {
			t.Fatalf("seed %d: %s: %s %+v", seed, r.Verdict, r.Sentence, r.Findings)
		}
		if r.SafeMaxSectors == nil || *r.SafeMaxSectors > f.largestSent {
			t.Fatalf("seed %d: safe %v, but nothing above %d was sent", seed, *r.SafeMaxSectors, f.largestSent)
		}
	}
}

// TestRareFaults: below a rate of 0.2 the truth lies in the interval printed, in
// 19 of 20 runs.
func TestRareFaults(t *testing.T) {
	for _, p := range []float64{0.005, 0.05, 0.1} {
		n, right, found, missed := seeds(t), 0, 0, 0
		for seed := range n {
			rng := rand.New(rand.NewPCG(uint64(seed), 5))
			at := 130 + rng.IntN(600)
			d, f := disk(16<<20, seed)
			d.SetFaults(faultdisk.Fault{Name: "rare", When: faultdisk.All(longer(faultdisk.Write, at), faultdisk.Probability(p)), Do: faultdisk.Truncate(at * SectorBytes)})
			f.command, f.block = 1024, 1024
			r := verifyFake(t, f, Options{Level: Default, Seed: uint64(seed)})
			if r.Verdict == VerdictClean && !slices.ContainsFunc(r.Sizes, func(w *Row) bool { return w.Sectors > at && w.Clean() && w.Bound95 < p }) {
				t.Logf("p %v, seed %d, at %d: not met, and no size claims that it was ruled out", p, seed, at)
				missed++
				continue
			}
			if r.Verdict != VerdictFaulty {
				t.Errorf("p %v, seed %d, at %d: %s", p, seed, at, r.Sentence)
				continue
			}
			found++
			g := r.Findings[0]
			if g.Good <= at && at < g.Bad[0].From && g.Class == ClassTruncated {
				right++
			} else {
				t.Logf("p %v, seed %d, at %d: %s", p, seed, at, r.Sentence)
			}
			if g.RateLow > p || g.RateHigh < p {
				t.Logf("p %v, seed %d: rate %.3f to %.3f of %d in %d", p, seed, g.RateLow, g.RateHigh, g.Fails, g.Tries)
			}
		}
		if p >= 0.05 && missed > 0 || missed*2 > n {
			t.Errorf("p %v: not met in %d of %d", p, missed, n)
		}
		if right*20 < found*19 {
			t.Errorf("p %v: the truth lies in the interval in %d of %d", p, right, found)
		}
	}
}

// TestAddressesThatWrap: data behind 2^28 or 2^32 sectors lands at the start.
func TestAddressesThatWrap(t *testing.T) {
	for _, bits := range []int{28, 32} {
		for _, ops := range [][]faultdisk.Op{{faultdisk.Write, faultdisk.Read}, {faultdisk.Write}} {
			for seed := range min(seeds(t), 20) {
				edge := int64(1) << bits * SectorBytes
				_, f := disk(edge+1<<30, seed, faultdisk.Fault{Name: "address", When: faultdisk.All(faultdisk.Is(ops...), func(r faultdisk.Request, _ *rand.Rand) bool { return r.Offset >= edge }), Do: func(t *faultdisk.Transfer) error {
					t.At %= edge
					return nil
				}})
				f.command, f.block = 512, 512
				r := verifyFake(t, f, Options{Seed: uint64(seed), RegionSectors: 16384})
				if r.Verdict != VerdictFaulty || len(r.Findings) != 1 || r.Findings[0].Class != ClassAddress || r.Findings[0].AddressBits != bits {
					t.Fatalf("%d bits, %v, seed %d: %s %+v", bits, ops, seed, r.Sentence, r.Findings)
				}
				if r.RecommendedMaxSectorsKB != nil {
					t.Errorf("a limit of %d KiB is recommended against addresses that wrap", *r.RecommendedMaxSectorsKB)
				}
			}
		}
	}
	// Only commands that reach over the edge.
	const edge = 1 << 28
	_, f := disk(edge*SectorBytes+1<<30, 1, faultdisk.Fault{Name: "straddle", When: func(r faultdisk.Request, _ *rand.Rand) bool {
		return r.Op == faultdisk.Write && r.Offset < edge*SectorBytes && r.Offset+int64(r.Length) > edge*SectorBytes
	}, Do: faultdisk.Truncate(4096)})
	f.command, f.block = 512, 512
	r := verifyFake(t, f, Options{RegionSectors: 16384})
	if r.Verdict != VerdictFaulty || r.Findings[0].Class != ClassAddress || r.Findings[0].AddressBits != 28 {
		t.Errorf("straddling: %s", r.Sentence)
	}
}

func TestReadOnly(t *testing.T) {
	for _, c := range []struct {
		name  string
		do    faultdisk.Action
		class Class
	}{
		{"flipped", faultdisk.Flip(70000), ClassFlipped},
		{"truncated", faultdisk.Truncate(300 * SectorBytes), ClassZeroed},
		{"wrapped", faultdisk.Wrap(256), ClassWrapped},
		{"misplaced", faultdisk.Misplace(8 * SectorBytes), ClassDiffers},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := range seeds(t) {
				rng := rand.New(rand.NewPCG(uint64(seed), 3))
				at := 256 + rng.IntN(900)
				if c.class == ClassWrapped {
					at = 256
				}
				d, f := disk(16<<20, seed)
				content := make([]byte, 16<<20)
				for i := range content {
					content[i] = byte(rng.Uint32())
				}
				if _, err := d.WriteAt(content, 0); err != nil {
					t.Fatal(err)
				}
				d.SetFaults(faultdisk.Fault{Name: "read", When: longer(faultdisk.Read, at), Do: c.do})
				f.command, f.block = 2048, 2048
				r := verifyFake(t, f, Options{Mode: ModeReadOnly, Seed: uint64(seed)})
				if r.Written != 0 {
					t.Fatalf("%d bytes were written", r.Written)
				}
				g := Finding{}
				if len(r.Findings) > 0 {
					g = r.Findings[0]
				}
				class := g.Class
				if c.class == ClassDiffers && (class == ClassMisplaced || class == ClassMixed || class == ClassShifted) {
					class = ClassDiffers // the edge of the range shows what no small read of it did
				}
				if r.Verdict != VerdictFaulty || g.Op != "read" || class != c.class || g.Good != at || !g.Exact {
					t.Errorf("seed %d, at %d: %s", seed, at, r.Sentence)
				}
				if !slices.ContainsFunc(r.NotTested, func(s string) bool { return strings.HasPrefix(s, "writes") }) {
					t.Error("it does not say that writes were not tested")
				}
			}
		})
	}
}

// TestReadOnlyInUse: what others write meanwhile is no fault.
func TestReadOnlyInUse(t *testing.T) {
	d, f := disk(8<<20, 1)
	f.command, f.block = 1024, 1024
	rng := rand.New(rand.NewPCG(1, 1))
	f.stop = func(int) {
		p := make([]byte, 4096)
		rng.Uint64()
		for i := range p {
			p[i] = byte(rng.Uint32())
		}
		if rng.IntN(3) == 0 {
			d.WriteAt(p, int64(rng.IntN(2047))*4096)
		}
	}
	r := verifyFake(t, f, Options{Mode: ModeReadOnly})
	if r.Verdict == VerdictFaulty || r.Verdict == VerdictBroken {
		t.Errorf("%s: %s", r.Verdict, r.Sentence)
	}
	if r.Unsettled == 0 {
		t.Error("nothing was given up: the test shows nothing")
	}
}

func TestNotAQuestionOfSize(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault faultdisk.Fault
		class Class
	}{
		{"every write is lost", faultdisk.Fault{When: faultdisk.Is(faultdisk.Write), Do: faultdisk.Drop()}, ClassForeign},
		{"every tenth write flips", faultdisk.Fault{When: faultdisk.All(faultdisk.Is(faultdisk.Write), faultdisk.Every(10)), Do: faultdisk.Flip(5)}, ClassFlipped},
		{"every tenth read fails", faultdisk.Fault{When: faultdisk.All(faultdisk.Is(faultdisk.Read), faultdisk.Every(10)), Do: hang}, ClassTimeout},
	} {
		_, f := disk(16<<20, 1, c.fault)
		r := verifyFake(t, f, Options{})
		if r.Verdict != VerdictBroken || len(r.Findings) != 1 || r.RecommendedMaxSectorsKB != nil {
			t.Errorf("%s: %s: %s", c.name, r.Verdict, r.Sentence)
			continue
		}
		if got := r.Findings[0].Class; got != c.class && !(c.class == ClassForeign && got == ClassZeroed) {
			t.Errorf("%s: %s, want %s", c.name, got, c.class)
		}
	}
}

// TestSmallThreshold: where 64 KiB already fail, smaller commands set up.
func TestSmallThreshold(t *testing.T) {
	for _, at := range []int{20, 64, 100} {
		_, f := disk(16<<20, 1, faultdisk.Fault{When: longer(faultdisk.Write, at), Do: faultdisk.Truncate(at * SectorBytes)})
		r := verifyFake(t, f, Options{})
		if r.Verdict != VerdictFaulty || *r.SafeMaxSectors != at || r.Findings[0].Class != ClassTruncated {
			t.Errorf("at %d: %s", at, r.Sentence)
		}
	}
}

// TestNoProofNoVerdict: sizes that the block layer splits are not tested.
func TestNoProofNoVerdict(t *testing.T) {
	_, f := disk(32<<20, 1, faultdisk.Fault{When: longer(faultdisk.Write, 600), Do: faultdisk.Truncate(512)})
	f.command, f.block = 0, 8192
	f.info.Usable[0].Sectors = 65536
	f.info.PhysicalBlock = 1
	split := &splitting{fakeDevice: f, at: 500}
	r, err := Run(context.Background(), split, Options{Mode: ModeDestroy, Level: Quick, Now: f.clock, Wait: 1, SelfTest: 1})
	if err != nil {
		t.Fatal(err)
	}
	if r.Verdict != VerdictClean || *r.SafeMaxSectors > 500 {
		t.Fatalf("%s: %s", r.Verdict, r.Sentence)
	}
	if !strings.Contains(r.Sentence, "not reached") {
		t.Errorf("it does not say what was not reached: %s", r.Sentence)
	}
	split.at = 4
	if r, _ = Run(context.Background(), split, Options{Mode: ModeDestroy, Level: Quick, Now: f.clock, Wait: 1, SelfTest: 1}); r.Verdict != VerdictInconclusive {
		t.Errorf("nothing was proved, and the verdict is %s: %s", r.Verdict, r.Sentence)
	}
}

// splitting claims a larger reach than it has.
type splitting struct {
	*fakeDevice
	at int
}

func (s *splitting) Do(ctx context.Context, cmds []Command) []Completion {
	claimed := s.block
	s.block = s.at
	defer func() { s.block = claimed }()
	return s.fakeDevice.Do(ctx, cmds)
}

func TestTwoResetsEndTheSweep(t *testing.T) {
	d, f := disk(48<<20, 1, faultdisk.Fault{Name: "hang", When: longer(faultdisk.Write, 700), Do: hang})
	_ = d
	f.command, f.block = 2560, 2560
	r := verifyFake(t, f, Options{})
	if r.Verdict != VerdictFaulty || r.Findings[0].Class != ClassTimeout || r.Findings[0].Exact {
		t.Errorf("%s", r.Sentence)
	}
	if f.recovered != 2 {
		t.Errorf("the device was recovered %d times, want 2", f.recovered)
	}
	if *r.SafeMaxSectors > 700 || r.Findings[0].Bad[0].From <= 700 {
		t.Errorf("safe %d, bad %v", *r.SafeMaxSectors, r.Findings[0].Bad)
	}
	// With leave, it is narrowed down.
	_, f = disk(48<<20, 1, faultdisk.Fault{Name: "hang", When: longer(faultdisk.Write, 700), Do: hang})
	f.command, f.block = 2560, 2560
	r = verifyFake(t, f, Options{RetryTimeouts: true})
	if *r.SafeMaxSectors != 700 || !r.Findings[0].Exact {
		t.Errorf("with retries: %s", r.Sentence)
	}
	// Another device answers after the reset.
	_, f = disk(48<<20, 1, faultdisk.Fault{Name: "hang", When: longer(faultdisk.Write, 700), Do: hang})
	f.afterHang = errors.New("serial differs")
	if r = verifyFake(t, f, Options{}); !strings.Contains(r.Stopped, "serial differs") {
		t.Errorf("stopped %q", r.Stopped)
	}
}

// TestKernelEvents: commands that succeed while the kernel resets the link.
func TestKernelEvents(t *testing.T) {
	_, f := disk(48<<20, 1)
	f.command, f.block = 1024, 1024
	f.stop = func(int) {
		if f.commandsOf[700] == 0 && f.commandsOf[768] > 0 {
			f.events = []Event{{KindReset, "ata1: hard resetting link"}}
		}
	}
	f.commandsOf[768] = 0
	r := verifyFake(t, f, Options{Sizes: []int{512, 768, 1024}})
	if r.Verdict != VerdictFaulty || r.Findings[0].Class != ClassReset || len(r.Events) == 0 {
		t.Errorf("%s: %s %v", r.Verdict, r.Sentence, r.Events)
	}
}

// TestPageCache: damage that only commands of the page cache meet.
func TestPageCache(t *testing.T) {
	d, f := disk(48<<20, 1)
	var path Path
	d.SetFaults(faultdisk.Fault{Name: "cache", When: and(longer(faultdisk.Read, 300), func() bool { return path == PathCache }), Do: faultdisk.Flip(100)})
	spy := &pathSpy{f, &path}
	r, err := Run(context.Background(), spy, Options{Mode: ModeDestroy, Level: Quick, Now: f.clock, Wait: 1, SelfTest: 1})
	if err != nil {
		t.Fatal(err)
	}
	if r.Verdict != VerdictFaulty || !strings.Contains(r.Findings[0].When, "page cache") {
		t.Errorf("%s", r.Sentence)
	}
}

type pathSpy struct {
	*fakeDevice
	path *Path
}

func (s *pathSpy) Do(ctx context.Context, cmds []Command) []Completion {
	*s.path = cmds[0].Path
	return s.fakeDevice.Do(ctx, cmds)
}

// TestMixedLoad: sizes that pass alone fail beside others.
func TestMixedLoad(t *testing.T) {
	d, f := disk(48<<20, 1)
	sizes := map[int]bool{}
	spy := &batchSpy{f, sizes}
	d.SetFaults(faultdisk.Fault{When: and(longer(faultdisk.Read, 1000), func() bool { return len(sizes) > 2 }), Do: faultdisk.Flip(100)})
	r, err := Run(context.Background(), spy, Options{Mode: ModeDestroy, Level: Default, Now: f.clock, Wait: 1, SelfTest: 1})
	if err != nil {
		t.Fatal(err)
	}
	if r.Verdict != VerdictFaulty || !strings.Contains(r.Sentence, "mixed load") || r.Confirmed.Failures == 0 {
		t.Errorf("%s", r.Sentence)
	}
}

type batchSpy struct {
	*fakeDevice
	sizes map[int]bool
}

func (s *batchSpy) Do(ctx context.Context, cmds []Command) []Completion {
	clear(s.sizes)
	for _, c := range cmds {
		s.sizes[len(c.Data)] = true
	}
	return s.fakeDevice.Do(ctx, cmds)
}

func TestInterrupt(t *testing.T) {
	_, f := disk(16<<20, 1)
	ctx, cancel := context.WithCancel(context.Background())
	f.stop = func(n int) {
		if n == 500 {
			cancel()
		}
	}
	r, err := Run(ctx, f, Options{Mode: ModeDestroy, Level: Quick, Now: f.clock, Wait: 1, SelfTest: 1})
	if !errors.Is(err, context.Canceled) || r.Verdict != VerdictInconclusive {
		t.Errorf("%v, %s", err, r.Verdict)
	}
	if f.batches > 501 {
		t.Errorf("%d batches were sent after the interrupt", f.batches-500)
	}
}

// TestResume: what an earlier run found clean is not sent again.
func TestResume(t *testing.T) {
	fault := faultdisk.Fault{When: longer(faultdisk.Write, 900), Do: faultdisk.Truncate(900 * SectorBytes)}
	_, f := disk(48<<20, 1, fault)
	var kept []Record
	o := Options{Record: func(r Record) error {
		if kept = append(kept, r); len(kept) == 6 {
			return errors.New("the power went")
		}
		return nil
	}}
	r := verifyFake(t, f, o)
	if r.Verdict != VerdictInconclusive || !strings.Contains(r.Stopped, "the power went") {
		t.Fatalf("%s: %s", r.Verdict, r.Stopped)
	}
	_, f = disk(48<<20, 1, fault)
	r = verifyFake(t, f, Options{Prior: kept})
	if r.Verdict != VerdictFaulty || *r.SafeMaxSectors != 900 {
		t.Errorf("%s", r.Sentence)
	}
	for _, k := range kept {
		i := slices.IndexFunc(r.Sizes, func(w *Row) bool { return w.Sectors == k.Sectors && w.Setup == k.Setup })
		if i < 0 || !r.Sizes[i].Earlier {
			t.Errorf("%d sectors were tried again", k.Sectors)
		}
	}
}

func TestSurface(t *testing.T) {
	_, f := disk(32<<20, 1)
	r := verifyFake(t, f, Options{Surface: 1024})
	if r.Verdict != VerdictClean || r.Written < 32<<20 || r.Read < 32<<20 {
		t.Errorf("%s: %s, %d written", r.Verdict, r.Sentence, r.Written)
	}
	_, f = disk(32<<20, 1, faultdisk.Fault{When: faultdisk.All(faultdisk.Is(faultdisk.Read), faultdisk.Touches(20<<20, 1)), Do: faultdisk.Flip(10)})
	r = verifyFake(t, f, Options{Surface: 1024, RegionSectors: 8192})
	if r.Verdict != VerdictFaulty || r.Findings[0].Class != ClassFlipped {
		t.Errorf("%s: %s", r.Verdict, r.Sentence)
	}
}

// TestPlanIsWhatRunDoes: the bytes that a plan promises are about those moved.
func TestPlanIsWhatRunDoes(t *testing.T) {
	for _, m := range []Mode{ModeDestroy, ModeReadOnly} {
		_, f := disk(48<<20, 1)
		p := MakePlan(f, Options{Mode: m, Level: Quick})
		if f.batches != 0 {
			t.Fatal("planning sends commands")
		}
		r := verifyFake(t, f, Options{Mode: m})
		if ratio := float64(r.Written+r.Read) / float64(p.Bytes()); ratio < 0.7 || ratio > 1.4 {
			t.Errorf("%s: planned %d, moved %d", m, p.Bytes(), r.Written+r.Read)
		}
	}
}

// TestSameSeedSameRun: the report says how to do it again.
func TestSameSeedSameRun(t *testing.T) {
	run := func() *Report {
		_, f := disk(24<<20, 3, faultdisk.Fault{When: longer(faultdisk.Write, 900), Do: faultdisk.Truncate(900 * SectorBytes)})
		return verifyFake(t, f, Options{Seed: 77})
	}
	a, b := run(), run()
	if a.Commands != b.Commands || a.Sentence != b.Sentence || a.Findings[0].Examples[0] != b.Findings[0].Examples[0] {
		t.Errorf("%d commands and %d:\n%s\n%s", a.Commands, b.Commands, a.Sentence, b.Sentence)
	}
}

func TestStatistics(t *testing.T) {
	near := func(got, want float64) bool { return math.Abs(got-want) < 0.0005 }
	// Textbook values: 3 in 20 at 95 %, and the ends.
	low, high := rateBounds(3, 20, 0.95)
	if !near(low, 0.0321) || !near(high, 0.3789) {
		t.Errorf("3 of 20: %.4f to %.4f", low, high)
	}
	if low, high = rateBounds(0, 10, 0.95); low != 0 || !near(high, 0.3085) {
		t.Errorf("0 of 10: %.4f to %.4f", low, high)
	}
	if low, high = rateBounds(10, 10, 0.95); !near(low, 0.6915) || high != 1 {
		t.Errorf("10 of 10: %.4f to %.4f", low, high)
	}
	if got := zeroFailuresBound(300, 0.95); !near(got, 0.00994) {
		t.Errorf("300 without a failure: %.5f", got)
	}
	// Section 4.5's table of repeats.
	for _, c := range []struct {
		rate float64
		n    int
	}{{0.5, 5}, {0.2, 14}, {0.1, 29}, {0.05, 59}, {0.01, 299}} {
		if got := repeatsFor(c.rate, 0.05); got != c.n {
			t.Errorf("rate %v: %d repeats, want %d", c.rate, got, c.n)
		}
	}
}

func TestSweepSizes(t *testing.T) {
	got := sweepSizes(128, 65535, 1, 8)
	for _, want := range []int{255, 256, 257, 1016, 1023, 1024, 1025, 1032, 2047, 2049, 8184, 8191, 8192, 8193, 8200, 65534, 65535} {
		if !slices.Contains(got, want) {
			t.Errorf("%d is not in %v", want, got)
		}
	}
	if !slices.IsSorted(got) || got[0] < 128 {
		t.Errorf("%v", got)
	}
	for _, n := range sweepSizes(128, 2560, 8, 8) {
		if n%8 != 0 || n > 2560 {
			t.Errorf("%d in steps of 8 up to 2560", n)
		}
	}
}

func TestSlowCommandsAreNoted(t *testing.T) {
	_, f := disk(16<<20, 1)
	f.command, f.block = 1024, 1024
	slow := &slowDevice{f, 0}
	r, err := Run(context.Background(), slow, Options{Mode: ModeDestroy, Level: Quick, Now: f.clock, Wait: 1, SelfTest: 1, Sizes: []int{512, 1024}})
	if err != nil || r.Verdict != VerdictClean {
		t.Fatalf("%v, %s", err, r.Sentence)
	}
	if !slices.ContainsFunc(r.Sizes, func(w *Row) bool { return w.Slow && w.Sectors == 1024 }) {
		t.Error("33 s are not noted")
	}
}

type slowDevice struct {
	*fakeDevice
	n int
}

func (s *slowDevice) Do(ctx context.Context, cmds []Command) []Completion {
	out := s.fakeDevice.Do(ctx, cmds)
	if cmds[0].Sectors() == 1024 {
		if s.n++; s.n == 5 {
			out[0].Latency = 33 * time.Second
		}
	}
	return out
}

// comparing is a device that compares by itself, or only says so.
type comparing struct {
	*fakeDevice
	honest bool
	asked  int
}

func (c *comparing) Compare(sector uint64, data []byte) (bool, error) {
	c.asked++
	if !c.honest {
		return true, nil
	}
	p := make([]byte, len(data))
	_, err := c.disk.ReadAt(p, int64(sector)*SectorBytes)
	return slices.Equal(p, data), err
}

// TestDeviceCompare: the device's own compare is believed after a canary, and
// libata's, which finds everything equal, is not.
func TestDeviceCompare(t *testing.T) {
	for _, honest := range []bool{true, false} {
		_, f := disk(24<<20, 1, faultdisk.Fault{Name: "tail", When: longer(faultdisk.Write, 900), Do: faultdisk.Truncate(900 * SectorBytes)})
		f.command, f.block = 1024, 1024
		c := &comparing{f, honest, 0}
		r, err := Run(context.Background(), c, Options{Mode: ModeDestroy, Level: Quick, Now: f.clock, Wait: 1, SelfTest: 1, PlainOnly: true})
		if err != nil || r.Verdict != VerdictFaulty || c.asked == 0 {
			t.Fatalf("%v, %s, asked %d times", err, r.Sentence, c.asked)
		}
		notes := strings.Join(r.Notes, "\n")
		if honest != strings.Contains(notes, "its medium differs") || !honest != strings.Contains(notes, "calls wrong data right") {
			t.Errorf("honest %v: %s", honest, notes)
		}
	}
}
