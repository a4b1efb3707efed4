package verify

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// SchemaVersion is that of Report's JSON; within 1 it only grows.
const SchemaVersion = "1.0"

// Verdict of a run.
type Verdict string

// The verdicts.
const (
	VerdictClean        Verdict = "clean"        // every size that was reached came back as it should
	VerdictFaulty       Verdict = "faulty"       // a fault that depends on the size, or on how commands are sent
	VerdictBroken       Verdict = "broken"       // even the smallest commands fail: no question of size
	VerdictInconclusive Verdict = "inconclusive" // too little could be tested to say
)

// Report is what a run showed.
type Report struct {
	SchemaVersion string  `json:"schema_version"`
	Tool          string  `json:"tool"`
	Target        Target  `json:"target"`
	Mode          Mode    `json:"mode"`
	Level         Level   `json:"level"`
	Verdict       Verdict `json:"verdict"`
	Sentence      string  `json:"sentence"`
	// SafeMaxSectors is the largest size that is clean with all smaller ones,
	// and RecommendedMaxSectorsKB what to set; null where no limit is known to
	// help, or none is needed.
	SafeMaxSectors          *int       `json:"safe_max_sectors"`
	RecommendedMaxSectorsKB *int       `json:"recommended_max_sectors_kb"`
	Findings                []Finding  `json:"findings"`
	Reach                   []ReachRow `json:"reach"`
	Sizes                   []*Row     `json:"sizes"`
	SmallSectors            int        `json:"small_sectors"` // of the commands that set up and read back
	Confirmed               *Confirmed `json:"confirmed"`
	Events                  []string   `json:"events"` // what the kernel and the device's counters said
	Notes                   []string   `json:"notes"`
	NotTested               []string   `json:"not_tested"`
	Next                    []string   `json:"next"`
	Stopped                 string     `json:"stopped"`     // why the run ended before its plan, empty where it did not
	SelfTested              bool       `json:"self_tested"` // the host's memory was tested
	HostFaulty              bool       `json:"host_faulty"` // and failed
	Unsettled               int        `json:"unsettled"`   // places given up since somebody else wrote there
	Seed                    uint64     `json:"seed"`
	Sessions                []uint64   `json:"sessions"` // seeds of the data
	Started                 time.Time  `json:"started"`
	ElapsedSeconds          float64    `json:"elapsed_s"`
	Commands                int        `json:"commands"`
	Written                 uint64     `json:"written_bytes"`
	Read                    uint64     `json:"read_bytes"`

	smallFault *fault
}

// Target says what was tested.
type Target struct {
	Name         string            `json:"name"`
	Device       string            `json:"device"` // sysfs name of the whole disk
	Sectors      uint64            `json:"sectors"`
	FirstSector  uint64            `json:"first_sector"`
	Identity     map[string]string `json:"identity"`
	Adapter      string            `json:"adapter"`
	Driver       string            `json:"driver"`
	Kernel       string            `json:"kernel"`
	MaxSectorsKB int               `json:"max_sectors_kb"` // when the run began; 0 unknown
	Extents      []Extent          `json:"extents"`        // what was used
}

// ReachRow is the largest command that this host can send one way.
type ReachRow struct {
	Path    Path   `json:"path"`
	Shape   Shape  `json:"shape"`
	Sectors int    `json:"sectors"`
	Why     string `json:"why"`
}

// Row is one size in one setup.
type Row struct {
	Setup      Setup   `json:"setup"`
	Sectors    int     `json:"sectors"`
	NotReached string  `json:"not_reached"` // why; empty where the size was proved
	Write      Count   `json:"write"`
	Read       Count   `json:"read"`
	Bound95    float64 `json:"bound_95"` // failure rate ruled out at 95 % where nothing failed
	Latency    Latency `json:"latency"`
	// Proof is the weakest of the proofs that the size reached the device as
	// one command; empty where the page cache decides.
	Proof    Proof         `json:"proof"`
	WriteP50 time.Duration `json:"write_p50_ns"`
	ReadP50  time.Duration `json:"read_p50_ns"`
	Slow     bool          `json:"slow"`
	Earlier  bool          `json:"earlier"` // taken from the run that was resumed
	Note     string        `json:"note"`
}

// Count of commands.
type Count struct {
	Tried  int `json:"tried"`
	Failed int `json:"failed"`
}

func (w *Row) count(do dirs, o outcome) {
	if o.notReached != "" {
		return
	}
	if do.write {
		w.Write.Tried++
		if o.write != nil {
			w.Write.Failed++
		}
	}
	if do.read {
		w.Read.Tried++
		if o.read != nil {
			w.Read.Failed++
		}
	}
}

func (w *Row) finish(r *run, asked dirs) {
	w.Latency = latencyOf(slices.Concat(r.latency[Write], r.latency[Read]))
	w.WriteP50, w.ReadP50 = latencyOf(r.latency[Write]).P50, latencyOf(r.latency[Read]).P50
	if r.proof != unset {
		w.Proof = r.proof
	}
	w.bound(asked)
}

// bound notes the failure rate that is ruled out.
func (w *Row) bound(asked dirs) {
	n := w.Read.Tried
	if asked.write && (!asked.read || w.Write.Tried < n) {
		n = w.Write.Tried
	}
	if w.Write.Failed == 0 && w.Read.Failed == 0 {
		w.Bound95 = zeroFailuresBound(n, 0.95)
	}
}

// reached reports whether the size was proved at least once.
func (w *Row) reached() bool { return w.NotReached == "" && w.Write.Tried+w.Read.Tried > 0 }

// Clean reports whether the size was proved and came back as it should, always.
func (w *Row) Clean() bool { return w.reached() && w.Write.Failed == 0 && w.Read.Failed == 0 }

// Confirmed is the test of the recommended limit under mixed load.
type Confirmed struct {
	Sectors  int     `json:"sectors"` // the largest that was proved
	Path     Path    `json:"path"`
	Commands int     `json:"commands"` // proved
	Unproved int     `json:"unproved"` // sent, without a proof of their size
	Failures int     `json:"failures"`
	Bound95  float64 `json:"bound_95"`
}

// Finding is one fault.
type Finding struct {
	Op    string  `json:"op"`    // write or read
	Class Class   `json:"class"` // see the constants
	Setup Setup   `json:"setup"` // the plain one, or what it takes
	When  string  `json:"when"`  // the same in words, and the place; empty for any command of that size
	Bad   []Range `json:"bad"`   // sizes that fail, in sectors
	// Good is the largest size below that is clean, 0 where none is known.
	// Exact says that the next size already fails, with less than 1 in 100
	// thresholds wrong; else the truth lies between Good and the first of Bad.
	Good    int  `json:"good"`
	Exact   bool `json:"exact"`
	Modulus int  `json:"modulus"` // sizes above Good that are no multiple of it fail; 0 none
	// What is known of the damage; 0 where it does not apply.
	From        int    `json:"from_sector"`  // first sector of the command
	Shift       int64  `json:"shift"`        // sectors from where the data belongs
	WrapSectors int    `json:"wrap_sectors"` // the counter's period
	UnitSectors int    `json:"unit_sectors"` // of what is torn
	AddressBits int    `json:"address_bits"` // what is left of an address
	Failure     string `json:"failure"`      // sense data, errno, kernel line
	// Rate of the commands that fail, with its 95 % interval.
	Fails    int       `json:"fails"`
	Tries    int       `json:"tries"`
	RateLow  float64   `json:"rate_low"`
	RateHigh float64   `json:"rate_high"`
	Repeats  int       `json:"repeats"` // commands without a failure that Good rests on
	Proved   bool      `json:"proved"`  // the size reached the device as one command
	Examples []Example `json:"examples"`
	Note     string    `json:"note"`
	Words    string    `json:"words"`
}

func (r *Report) addNote(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(r.Notes, n) && len(r.Notes) < maxLines {
		r.Notes = append(r.Notes, n)
	}
}

// maxLines bounds notes and events.
const maxLines = 200

func (r *Report) addEvent(e Event) {
	if len(r.Events) < maxLines {
		r.Events = append(r.Events, string(e.Kind)+": "+e.Text)
	}
}

// row returns the row of a size, made when it is not there.
func (r *run) row(su Setup, size int) *Row {
	for _, w := range r.report.Sizes {
		if w.Setup == su && w.Sectors == size {
			return w
		}
	}
	w := &Row{Setup: su, Sectors: size}
	r.report.Sizes = append(r.report.Sizes, w)
	return w
}

// kib writes sectors as KiB.
func kib(sectors int) string {
	if sectors%2 != 0 {
		return fmt.Sprintf("%.1f KiB", float64(sectors)/2)
	}
	return fmt.Sprintf("%d KiB", sectors/2)
}

// finding is the fault for the report.
func (f *fault) finding() Finding {
	out := Finding{Op: f.op.String(), Class: f.damage.class, Setup: f.su, Bad: slices.Clone(f.ranges), Good: f.good, Exact: f.exact, Modulus: f.modulus,
		From: f.damage.from, Shift: f.damage.shift, WrapSectors: f.damage.modulus, UnitSectors: f.damage.unit,
		Fails: f.fails, Tries: f.tries, Repeats: f.repeats, Proved: f.proved, Examples: f.damage.examples, Note: f.note}
	out.RateLow, out.RateHigh = rateBounds(f.fails, f.tries, 0.95)
	if f.failure != nil {
		out.Failure = f.failure.Error()
	}
	for bits := 1; f.edge != 0 && bits < 64; bits++ {
		if f.edge == 1<<bits {
			out.AddressBits = bits
		}
	}
	if out.Bad == nil {
		out.Bad = []Range{}
	}
	if out.Examples == nil {
		out.Examples = []Example{}
	}
	out.When = f.when()
	out.Words = f.words()
	return out
}

// when says what it takes besides the size.
func (f *fault) when() string {
	parts := []string{}
	if f.conditional {
		parts = append(parts, "only "+f.su.String())
	}
	if f.place != "" {
		parts = append(parts, f.place)
	}
	if f.modulus > 0 {
		parts = append(parts, fmt.Sprintf("where the size is no multiple of %d sectors", f.modulus))
	}
	return strings.Join(parts, ", ")
}

// words is the fault as a clause: "from 1025 the tail of each write ...".
func (f *fault) words() string {
	what := f.damage.words(f.op)
	if f.edge != 0 {
		for bits := 1; bits < 64; bits++ {
			if f.edge == 1<<bits {
				what = fmt.Sprintf("addresses are cut to %d bits: data for sector %d and beyond lands at the start of the disk", bits, f.edge)
			}
		}
	}
	if n := f.tries; n > 0 && f.fails < n {
		low, high := rateBounds(f.fails, f.tries, 0.95)
		what += fmt.Sprintf(", in %d of %d commands (%.2g to %.2g %%)", f.fails, f.tries, 100*low, 100*high)
	}
	if w := f.when(); w != "" {
		what += ", " + w
	}
	if f.edge != 0 || len(f.ranges) == 0 {
		return what
	}
	return f.sizes() + " " + what
}

// sizes names the bad sizes.
func (f *fault) sizes() string {
	lowest := "from " + fmt.Sprint(f.bad)
	if !f.exact && f.good > 0 {
		lowest = fmt.Sprintf("from a size between %d and %d sectors on", f.good+1, f.bad)
	}
	switch {
	case f.modulus > 0:
		return lowest
	case len(f.ranges) == 1 && f.openEnd:
		return lowest
	}
	var parts []string
	for i, g := range f.ranges {
		s := fmt.Sprintf("%d to %d", g.From, g.To)
		if g.From == g.To {
			s = fmt.Sprint(g.From)
		}
		if i == len(f.ranges)-1 && f.openEnd {
			s = fmt.Sprintf("from %d on", g.From)
		}
		parts = append(parts, s)
	}
	return "at " + strings.Join(parts, ", ") + " sectors"
}

// conclude writes the verdict and the sentence from what was found.
func (r *run) conclude(faults []*fault, largest int) {
	p := r.report
	slices.SortStableFunc(faults, func(a, b *fault) int {
		if a.conditional != b.conditional {
			if a.conditional {
				return 1
			}
			return -1
		}
		if a.good != b.good {
			return a.good - b.good
		}
		return int(b.op) - int(a.op)
	})
	p.Findings = []Finding{}
	for _, f := range faults {
		f.openEnd = len(f.ranges) > 0 && (f.ranges[len(f.ranges)-1].To >= largest-largest%r.step(f.su.Path) || f.ranges[len(f.ranges)-1].To >= f.tested)
		p.Findings = append(p.Findings, f.finding())
	}
	reached := 0
	for _, w := range p.Sizes {
		if w.Clean() && (w.Setup == r.plain() || r.o.Surface > 0) {
			reached = max(reached, w.Sectors)
		}
	}
	safe := r.safe(faults, reached)
	switch {
	case p.HostFaulty:
		p.Verdict = VerdictInconclusive
		p.Sentence = "the memory of this host fails, so nothing can be said of the device"
	case p.smallFault != nil:
		p.Verdict = VerdictBroken
		p.Findings = append(p.Findings, p.smallFault.finding())
		p.Sentence = "even commands of " + kib(max(r.small, r.info.LogicalBlock)) + " fail: " + p.smallFault.damage.words(p.smallFault.op) + "; no limit of size helps; suspect the disk, the cable, the bridge or memory"
	case len(faults) > 0:
		p.Verdict = VerdictFaulty
		var parts []string
		if safe > 0 {
			p.SafeMaxSectors = &safe
			parts = append(parts, fmt.Sprintf("clean up to %d sectors (%s)", safe, kib(safe)))
		}
		for _, f := range faults {
			parts = append(parts, f.words())
		}
		if kb := r.recommend(safe); kb > 0 && r.limitHelps(faults) {
			p.RecommendedMaxSectorsKB = &kb
			parts = append(parts, fmt.Sprintf("set max_sectors_kb=%d", kb))
		} else {
			parts = append(parts, "no limit of size is known to help")
		}
		p.Sentence = strings.Join(parts, "; ")
	case p.Stopped != "":
		p.Verdict = VerdictInconclusive
		p.Sentence = "the run ended early: " + p.Stopped
	case reached == 0:
		p.Verdict = VerdictInconclusive
		p.Sentence = "no size was shown to reach the device, so nothing can be said"
		for _, w := range p.Sizes {
			if w.NotReached != "" {
				p.Sentence += ": " + w.NotReached
				break
			}
		}
	default:
		p.Verdict = VerdictClean
		p.SafeMaxSectors = &reached
		p.Sentence = fmt.Sprintf("clean up to %d sectors (%s)", reached, kib(reached))
		limit, why := r.largest(r.plain())
		switch reach := r.dev.Reach(r.plain().Path, Contiguous); {
		case reached < limit-r.step(r.plain().Path) && len(r.o.Sizes) == 0 && r.o.Surface == 0:
			p.Sentence += fmt.Sprintf("; larger ones, to %d, were not reached", limit)
		case reached+r.step(r.plain().Path) > reach.Sectors:
			p.Sentence += ", the largest command that can be sent here (" + reach.Why + ")"
		case limit < reach.Sectors && reached >= limit:
			p.Sentence += fmt.Sprintf("; larger ones, to %d, were not tried: %s", reach.Sectors, why)
		default:
			p.Sentence += fmt.Sprintf("; larger ones, to %d, were not tried", reach.Sectors)
		}
		if !r.o.Mode.Writes() {
			p.Sentence += "; only reads were tested, faults of writes cannot be seen this way"
		}
	}
	r.nextSteps(faults)
}

// missed names the sizes that were to be tried and did not reach the device.
func (r *run) missed() string {
	var sizes []string
	why := ""
	for _, w := range r.report.Sizes {
		if w.NotReached != "" && w.Setup == r.plain() {
			sizes, why = append(sizes, fmt.Sprint(w.Sectors)), w.NotReached
		}
	}
	if sizes == nil {
		return ""
	}
	return strings.Join(sizes, ", ") + " sectors: " + why
}

// safe is the largest size below all faults, 0 where none is known.
func (r *run) safe(faults []*fault, reached int) int {
	safe := reached
	for i, f := range faults {
		if i == 0 || f.good < safe {
			safe = f.good
		}
	}
	return safe
}

// limitHelps reports whether every fault has a size below which it is not.
func (r *run) limitHelps(faults []*fault) bool {
	return !slices.ContainsFunc(faults, func(f *fault) bool { return f.good == 0 || f.edge != 0 })
}

// recommend is the largest max_sectors_kb that sends nothing above safe
// sectors: in KiB, rounded to the physical block as the kernel's splits are. 0
// where that is below the kernel's floor of a page.
func (r *run) recommend(safe int) int {
	b := max(r.info.PhysicalBlock, 2)
	kb := safe / b * b / 2
	if kb < 4 {
		return 0
	}
	return kb
}

// nextSteps says what was left out and what to try.
func (r *run) nextSteps(faults []*fault) {
	p := r.report
	if !r.o.Mode.Writes() {
		p.NotTested = append(p.NotTested, "writes: --destroy, or --file on a mounted file system, tests them")
	}
	if r.o.Mode.Writes() {
		for _, e := range r.edges() {
			if at := e - r.info.First; e >= r.info.First && at < r.info.Sectors && (r.info.First != 0 || r.space.of(at, r.small) == nil) {
				p.NotTested = append(p.NotTested, fmt.Sprintf("addresses around sector %d of the disk, where short addresses end: that takes the whole disk", e))
			}
		}
	} else {
		p.NotTested = append(p.NotTested, "reads through the page cache, and addresses that wrap")
	}
	if missed := r.missed(); missed != "" {
		p.NotTested = append(p.NotTested, missed)
	}
	if r.o.PlainOnly {
		p.NotTested = append(p.NotTested, "misaligned starts, fragmented memory and several commands at a time: --plain left them out")
	}
	if r.o.Mode == ModeFile {
		p.NotTested = append(p.NotTested, "exact sector counts: a file is written through the block layer, in whole physical blocks")
	}
	p.NotTested = append(p.NotTested, "data on the medium after a power cut, and after more has been written than the drive's cache holds")
	if p.RecommendedMaxSectorsKB != nil {
		p.Next = append(p.Next, fmt.Sprintf("set it: echo %d > /sys/block/%s/queue/max_sectors_kb, and quirkcheck db new --from-verify drafts the entry that keeps it", *p.RecommendedMaxSectorsKB, p.Target.Device))
	}
	if len(faults) > 0 || p.smallFault != nil {
		p.Next = append(p.Next, "move the disk to another port, cable or adapter and run this again: quirkcheck verify compare A B tells the disk from the path")
	}
	if r.stopped {
		p.Next = append(p.Next, "two resets ended the sweep; power-cycle the device before more tests")
	}
	p.Next = append(p.Next, "a run without a fault does not clear a known quirk: quirkcheck scan "+p.Target.Device+" tells of those")
}
