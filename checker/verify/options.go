package verify

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Mode is what a run may do to the target.
type Mode string

// The modes, safest first.
const (
	ModeReadOnly Mode = "read-only" // reads only; cannot see faults of writes
	ModeFile     Mode = "file"      // writes to a file of its own
	ModeDestroy  Mode = "destroy"   // writes to the target
)

// Writes reports whether the mode writes.
func (m Mode) Writes() bool { return m != ModeReadOnly }

// Level is how often each size is tried.
type Level string

// The levels.
const (
	Quick    Level = "quick"    // 8 commands a size
	Default  Level = "default"  // 32
	Thorough Level = "thorough" // 300
)

// Repeats is how many commands a level sends of each size.
func (l Level) Repeats() int {
	switch l {
	case Quick:
		return 8
	case Thorough:
		return 300
	}
	return 32
}

// A Setup is how commands of a sweep are sent.
type Setup struct {
	Path  Path  `json:"path"`
	Shape Shape `json:"shape"`
	Depth int   `json:"depth"` // commands at a time
	// Misaligned is how many sectors behind a multiple of the physical block
	// each command starts; -1 takes 1, 7 and the block less one in turn.
	Misaligned int `json:"misaligned"`
}

// String names what sets the setup apart from the plain one; empty for that.
func (s Setup) String() string {
	var parts []string
	if s.Misaligned != 0 {
		parts = append(parts, "from starts inside a physical block")
	}
	if s.Shape == Fragmented {
		parts = append(parts, "with fragmented memory")
	}
	if s.Depth > 1 {
		parts = append(parts, fmt.Sprintf("with %d commands at a time", s.Depth))
	}
	switch s.Path {
	case PathBlock:
		parts = append(parts, "through the block layer")
	case PathCache:
		parts = append(parts, "through the page cache")
	}
	return strings.Join(parts, ", ")
}

// Options are what a run is told.
type Options struct {
	Mode  Mode
	Level Level
	// Sizes replaces the sweep's own, in sectors.
	Sizes []int
	// Repeats replaces the level's; 0 leaves it.
	Repeats int
	// RegionSectors is how much of the target random places come from; 0
	// takes 256 MiB, or what four of the largest commands need.
	RegionSectors uint64
	// Surface writes and reads all usable sectors once at this size instead
	// of sweeping; 0 sweeps.
	Surface int
	// Path is the way that the sweep takes; empty is pass-through where it can
	// be had, else the block layer.
	Path Path
	// PlainOnly leaves out the other setups: misaligned, fragmented, several
	// at a time.
	PlainOnly bool
	// RetryTimeouts sends a size again that timed out.
	RetryTimeouts bool
	// ConfirmTime is how long the confirmation goes on at least.
	ConfirmTime time.Duration
	// SlowAfter is the latency from which a command counts as an outlier; 0
	// takes one second.
	SlowAfter time.Duration
	// Seed decides the places, and Session the data; both are in the report. A
	// session must never be used twice on a device: its data of the first run
	// would pass for that of the second. 0 takes Seed, for tests.
	Seed, Session uint64
	// Wait is how long the last re-read of damaged sectors waits; 0 takes a
	// second.
	Wait time.Duration
	// SelfTest is how long the host's memory is tested where reads are
	// unstable; 0 takes five seconds.
	SelfTest time.Duration
	// LargestSectors bounds the sweep; 0 leaves it at what can be sent.
	LargestSectors int
	// Target is what the report says of the target; the run adds its size and
	// what it used of it.
	Target Target
	// Now is the clock.
	Now func() time.Time
	// Progress is called after each command or so; nil for none.
	Progress func(Progress)
	// Record is called when a size has been tried, with what is to be kept
	// for Prior; an error of it ends the run. nil for none.
	Record func(Record) error
	// Prior are the records of an earlier run with the same plan: its clean
	// sizes are not tried again.
	Prior []Record
}

// Progress is how far a run has come.
type Progress struct {
	Phase   string
	Sectors int    // size under test, 0 where there is none
	Done    uint64 // bytes moved
	Planned uint64 // bytes that the plan expects; a fault makes it more
}

// A Record is the result of one size in one setup.
type Record struct {
	Setup   Setup `json:"setup"`
	Sectors int   `json:"sectors"`
	Write   Count `json:"write"`
	Read    Count `json:"read"`
	// Faults are what the size showed, one a direction at most.
	Faults  []RecordFault `json:"faults,omitempty"`
	Proof   Proof         `json:"proof"`
	Latency Latency       `json:"latency"`
}

// RecordFault is a fault that a run met before it was interrupted.
type RecordFault struct {
	Op      string   `json:"op"`
	Class   Class    `json:"class"`
	Proved  bool     `json:"proved"`
	Failure *Failure `json:"failure,omitempty"`
}

// Latency of the commands of one size.
type Latency struct {
	P50 time.Duration `json:"p50_ns"`
	P99 time.Duration `json:"p99_ns"`
	Max time.Duration `json:"max_ns"`
}

func latencyOf(d []time.Duration) Latency {
	if len(d) == 0 {
		return Latency{}
	}
	d = slices.Sorted(slices.Values(d))
	return Latency{P50: d[(len(d)-1)/2], P99: d[(len(d)*99-1)/100], Max: d[len(d)-1]}
}

// famousKiB are the sizes of the sweep: powers of two, defaults of kernels and
// limits that drivers and segments lead to (672, 1016, 10752 KiB, 16256 KiB).
var famousKiB = []int{64, 128, 256, 512, 672, 1016, 1024, 1280, 2048, 4096, 8192, 10752, 16256, 16384, 32764}

// famousSectors are edges that devices are known or suspected to break at.
var famousSectors = []int{255, 256, 257, 1023, 1025, 2047, 2049, 8191, 8193, 65535}

// sweepSizes returns the sizes to try in ascending order: the famous ones, a
// physical block to each side of the edges, and the largest; all multiples of
// step and from smallest to largest.
func sweepSizes(smallest, largest, step, physical int) []int {
	var out []int
	add := func(n int) {
		if n = n / step * step; n >= smallest && n <= largest {
			out = append(out, n)
		}
	}
	for _, k := range famousKiB {
		add(2 * k)
	}
	for _, n := range famousSectors {
		add(n)
		if edge := (n + 1) / 2 * 2; physical > 1 && edge%256 == 0 {
			add(edge - physical)
			add(edge + physical)
		}
	}
	for n := 8; n < 128; n *= 2 {
		add(n)
	}
	add(largest - step)
	add(largest)
	slices.Sort(out)
	return slices.Compact(out)
}
