package verify

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/quirkcheck/quirkcheck/internal/vm/faultdisk"
)

const (
	wr = faultdisk.Write
	rd = faultdisk.Read
)

// kind is one kind of fault: how it is made for a threshold, and what the
// report must say of it.
type kind struct {
	name string
	// at chooses the threshold: commands of more sectors are damaged.
	at     func(rng *rand.Rand) int
	faults func(f *fakeDevice, t int) []faultdisk.Fault
	op     Op
	class  Class
	when   string // what the finding's condition contains
	check  func(t int, f Finding) string
	ranges func(t int) []Range // nil: one, open
	opts   func(*Options)
	prep   func(*fakeDevice)
	stale  bool // the disk keeps previous content
	size   int64
}

func anywhere(rng *rand.Rand) int { return 130 + rng.IntN(1400) }

func one(w faultdisk.When, do faultdisk.Action) []faultdisk.Fault {
	return []faultdisk.Fault{{Name: "fault", When: w, Do: do}}
}

// tail applies do to what lies behind the first t sectors of a write: the
// first part is written as it should be.
func shiftedTail(t int, by int64) faultdisk.Action {
	return func(tr *faultdisk.Transfer) error {
		data := tr.Data
		n := t * SectorBytes
		return faultdisk.Split(tr, []faultdisk.Part{{Data: data[:n], At: tr.Offset}, {Data: data[n:], At: tr.Offset + int64(n) + by*SectorBytes}})
	}
}

var kinds = []kind{
	{name: "tail dropped", at: anywhere, op: Write, class: ClassTruncated,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault {
			return one(longer(wr, t), faultdisk.Truncate(t*SectorBytes))
		},
		check: func(t int, f Finding) string { return wants("from", f.From, t) }},
	{name: "cut to half", at: anywhere, op: Write, class: ClassTruncated,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault {
			return one(longer(wr, t), faultdisk.Truncate(t/2*SectorBytes))
		},
		check: func(t int, f Finding) string { return wants("from", f.From, t/2) }},
	{name: "tail zeroed", at: anywhere, op: Write, class: ClassZeroed,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault {
			return one(longer(wr, t), faultdisk.ZeroTail(t*SectorBytes))
		},
		check: func(t int, f Finding) string { return wants("from", f.From, t) }},
	{name: "wrapped at 256", at: func(*rand.Rand) int { return 256 }, op: Write, class: ClassWrapped,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault { return one(longer(wr, t), faultdisk.Wrap(t)) },
		check:  func(t int, f Finding) string { return wants("period", f.WrapSectors, 256) }},
	{name: "wrapped", at: anywhere, op: Write, class: ClassWrapped,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault { return one(longer(wr, t), faultdisk.Wrap(t)) },
		check:  func(t int, f Finding) string { return wants("period", f.WrapSectors, t) }},
	{name: "reads wrapped", at: anywhere, op: Read, class: ClassWrapped,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault { return one(longer(rd, t), faultdisk.Wrap(t)) },
		check:  func(t int, f Finding) string { return wants("period", f.WrapSectors, t) }},
	{name: "tail shifted", at: anywhere, op: Write, class: ClassShifted,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault { return one(longer(wr, t), shiftedTail(t, 1)) },
		check:  func(t int, f Finding) string { return wants("shift", int(f.Shift), 1) }},
	{name: "misplaced", at: anywhere, op: Write, class: ClassMisplaced,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault {
			return one(longer(wr, t), faultdisk.Misplace(int64(1+t%700)*SectorBytes))
		},
		check: func(t int, f Finding) string { return wants("shift", int(f.Shift), 1+t%700) }},
	{name: "misplaced backwards", at: anywhere, op: Write, class: ClassMisplaced,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault {
			return one(longer(wr, t), faultdisk.Misplace(-int64(1+t%700)*SectorBytes))
		},
		check: func(t int, f Finding) string { return wants("shift", int(f.Shift), -(1 + t%700)) }},
	{name: "misplaced far away", at: anywhere, op: Write, class: ClassMisplaced,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault {
			return []faultdisk.Fault{{Name: "far", When: longer(wr, t), Do: func(tr *faultdisk.Transfer) error {
				tr.At = (tr.At + 12<<20) % (24 << 20)
				return nil
			}}}
		}},
	{name: "lost", at: anywhere, op: Write, class: ClassLost,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault { return one(longer(wr, t), faultdisk.Drop()) }},
	{name: "torn at segments", at: anywhere, op: Write, class: ClassTorn,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault {
			return one(longer(wr, t), faultdisk.Torn(16*SectorBytes))
		},
		check: func(_ int, f Finding) string {
			if f.UnitSectors == 0 || f.UnitSectors%16 != 0 {
				return fmt.Sprintf("unit %d, want a multiple of 16", f.UnitSectors)
			}
			return ""
		}},
	{name: "bit flipped in writes", at: anywhere, op: Write, class: ClassFlipped,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault { return one(longer(wr, t), faultdisk.Flip(t*SectorBytes)) }},
	{name: "bit flipped in reads", at: anywhere, op: Read, class: ClassFlipped,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault {
			return one(longer(rd, t), faultdisk.Flip(t*SectorBytes-1))
		}},
	{name: "stale reads", at: anywhere, op: Read, class: ClassStale, stale: true,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault { return one(longer(rd, t), faultdisk.Stale()) }},
	{name: "reads zeroed", at: anywhere, op: Read, class: ClassZeroed,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault {
			return one(longer(rd, t), faultdisk.Truncate(t*SectorBytes))
		}},
	{name: "only unaligned", at: anywhere, op: Write, class: ClassTruncated, when: "inside a physical block",
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault {
			return one(func(r faultdisk.Request, rng *rand.Rand) bool {
				return longer(wr, t)(r, rng) && r.Offset%4096 != 0
			}, faultdisk.Truncate(t*SectorBytes))
		}},
	{name: "only at depth", at: func(rng *rand.Rand) int { return 130 + rng.IntN(1100) }, op: Write, class: ClassTruncated, when: "at a time",
		faults: func(f *fakeDevice, t int) []faultdisk.Fault {
			return one(and(longer(wr, t), func() bool { return f.depth > 1 }), faultdisk.Truncate(t*SectorBytes))
		}},
	{name: "only fragmented", at: func(rng *rand.Rand) int { return 130 + rng.IntN(1100) }, op: Read, class: ClassFlipped, when: "fragmented",
		faults: func(f *fakeDevice, t int) []faultdisk.Fault {
			return one(and(longer(rd, t), func() bool { return f.shape == Fragmented }), faultdisk.Flip(5000))
		}},
	{name: "after the 20th command", at: anywhere, op: Write, class: ClassTruncated,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault {
			large := 0
			return one(func(r faultdisk.Request, rng *rand.Rand) bool {
				if !longer(wr, t)(r, rng) {
					return false
				}
				large++
				return large > 20
			}, faultdisk.Truncate(t*SectorBytes))
		}},
	{name: "hang at exactly 8192", at: func(*rand.Rand) int { return 8191 }, op: Write, class: ClassTimeout, prep: func(f *fakeDevice) { f.command, f.block = 9000, 2560 },
		faults: func(_ *fakeDevice, _ int) []faultdisk.Fault {
			return one(faultdisk.All(faultdisk.Is(wr), faultdisk.Exactly(8192*SectorBytes)), hang)
		},
		ranges: func(int) []Range { return []Range{{8192, 8192}} }},
	{name: "error instead of corruption", at: anywhere, op: Write, class: ClassError,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault { return one(longer(wr, t), faultdisk.Fail(syscall.EIO)) }},
	{name: "error in reads", at: anywhere, op: Read, class: ClassError,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault { return one(longer(rd, t), faultdisk.Fail(syscall.EIO)) }},
	{name: "a set of sizes", at: func(rng *rand.Rand) int { return 1400 + rng.IntN(500) }, op: Write, class: ClassTruncated,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault {
			return one(func(r faultdisk.Request, _ *rand.Rand) bool {
				n := r.Length / SectorBytes
				return r.Op == wr && (n == 1024 || n >= 1344 && n <= t || n > 2048 && n < 2300)
			}, faultdisk.Truncate(1000*SectorBytes))
		},
		ranges: func(t int) []Range { return []Range{{1024, 1024}, {1344, t}, {2049, 2299}} }},
	{name: "odd sizes", at: func(rng *rand.Rand) int { return 256 }, op: Write, class: ClassTruncated, when: "no multiple of 8",
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault {
			return one(func(r faultdisk.Request, rng *rand.Rand) bool {
				return longer(wr, t)(r, rng) && r.Length%4096 != 0
			}, faultdisk.Truncate(t*SectorBytes))
		},
		ranges: func(int) []Range { return nil }},
	{name: "p = 0.2", at: anywhere, op: Write, class: ClassTruncated,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault {
			return one(faultdisk.All(longer(wr, t), faultdisk.Probability(0.2)), faultdisk.Truncate(t*SectorBytes))
		}},
	{name: "p = 0.2 in reads", at: anywhere, op: Read, class: ClassFlipped,
		faults: func(_ *fakeDevice, t int) []faultdisk.Fault {
			return one(faultdisk.All(longer(rd, t), faultdisk.Probability(0.2)), faultdisk.Flip(100))
		}},
}

func wants(what string, got, want int) string {
	if got != want {
		return fmt.Sprintf("%s %d, want %d", what, got, want)
	}
	return ""
}

// seeds is how many of each kind are tried: what QUIRKCHECK_VERIFY_SEEDS says (20 in
// CI), else 5; fewer in short mode.
func seeds(t testing.TB) int {
	if s, err := strconv.Atoi(os.Getenv("QUIRKCHECK_VERIFY_SEEDS")); err == nil && s > 0 {
		return s
	}
	if testing.Short() {
		return 2
	}
	return 5
}

func (k kind) run(t *testing.T, seed int) (*Report, int, *fakeDevice) {
	t.Helper()
	rng := rand.New(rand.NewPCG(uint64(seed), 99))
	at := k.at(rng)
	size := k.size
	if size == 0 {
		size = 48 << 20
	}
	d := faultdisk.New(size, faultdisk.Options{Seed: uint64(seed) + 1, KeepPrevious: k.stale})
	f := newFake(d)
	f.info.Sectors = uint64(size) / SectorBytes
	if k.prep != nil {
		k.prep(f)
	}
	d.SetFaults(k.faults(f, at)...)
	d.KeepNoLog()
	o := Options{Mode: ModeDestroy, Level: Quick, Seed: uint64(seed)*7919 + 1, Now: f.clock, Wait: 1, SelfTest: 1, RegionSectors: 24 << 20 / SectorBytes}
	if k.opts != nil {
		k.opts(&o)
	}
	r, err := Run(context.Background(), f, o)
	if err != nil {
		t.Fatal(err)
	}
	return r, at, f
}

func TestEveryKindOfFault(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			for seed := range seeds(t) {
				r, at, _ := k.run(t, seed)
				if r.Verdict != VerdictFaulty || len(r.Findings) == 0 {
					t.Errorf("seed %d, at %d: %s: %s", seed, at, r.Verdict, r.Sentence)
					continue
				}
				f := r.Findings[0]
				bad := ""
				switch {
				case f.Op != k.op.String() || f.Class != k.class:
					bad = fmt.Sprintf("%s %s, want %s %s", f.Op, f.Class, k.op, k.class)
				case len(r.Findings) > 1:
					bad = fmt.Sprintf("%d findings", len(r.Findings))
				case k.ranges == nil && (f.Good != at || !f.Exact || len(f.Bad) != 1 || f.Bad[0].From != at+1):
					bad = fmt.Sprintf("good up to %d, bad %v, exact %v, want %d", f.Good, f.Bad, f.Exact, at)
				case k.ranges != nil && k.ranges(at) != nil && fmt.Sprint(f.Bad) != fmt.Sprint(k.ranges(at)):
					bad = fmt.Sprintf("bad sizes %v, want %v", f.Bad, k.ranges(at))
				case k.when == "" && f.When != "", !contains(f.When, k.when):
					bad = fmt.Sprintf("condition %q, want one with %q", f.When, k.when)
				case len(f.Examples) == 0 && f.Failure == "":
					bad = "no example"
				case k.check != nil:
					bad = k.check(at, f)
				}
				if bad != "" {
					t.Errorf("seed %d, at %d: %s\n%s", seed, at, bad, r.Sentence)
				}
				if seed == 0 {
					t.Logf("at %d: %s", at, r.Sentence)
				}
			}
		})
	}
}

func contains(s, part string) bool { return strings.Contains(s, part) }
