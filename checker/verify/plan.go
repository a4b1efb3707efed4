package verify

import "fmt"

// Plan is what a run will do when it meets no fault.
type Plan struct {
	Mode         Mode       `json:"mode"`
	Level        Level      `json:"level"`
	Extents      []Extent   `json:"extents"`
	Reach        []ReachRow `json:"reach"`
	Steps        []PlanStep `json:"steps"`
	WrittenBytes uint64     `json:"written_bytes"`
	ReadBytes    uint64     `json:"read_bytes"`
	// DriveWrites is how often the target's capacity is written.
	DriveWrites float64 `json:"drive_writes"`
	// LargestSectors is the largest command that will be sent, and
	// LargestWhy what bounds it.
	LargestSectors int    `json:"largest_sectors"`
	LargestWhy     string `json:"largest_why"`
	// Bound95 is the failure rate at any one size that a clean run rules out
	// at 95 %.
	Bound95 float64 `json:"bound_95"`
}

// PlanStep is one phase.
type PlanStep struct {
	What    string `json:"what"`
	Setup   Setup  `json:"setup"`
	Sizes   []int  `json:"sizes"`
	Repeats int    `json:"repeats"`
}

// Bytes is all that is moved.
func (p Plan) Bytes() uint64 { return p.WrittenBytes + p.ReadBytes }

// MakePlan says what Run with the same arguments will do. It sends nothing.
func MakePlan(dev Device, o Options) Plan { return newRun(dev, o).plan() }

func (r *run) plan() Plan {
	p := Plan{Mode: r.o.Mode, Level: r.o.Level, Extents: r.report.Target.Extents, Reach: r.report.Reach, Steps: []PlanStep{}}
	writes := r.o.Mode.Writes()
	step := func(what string, su Setup, sizes []int, repeats int) {
		p.Steps = append(p.Steps, PlanStep{What: what, Setup: su, Sizes: sizes, Repeats: repeats})
		for _, s := range sizes {
			n := uint64(repeats) * uint64(r.depthFor(s, su.Depth)) * uint64(s) * SectorBytes
			if writes {
				g := uint64(repeats) * 2 * uint64(guardSectors(s)) * SectorBytes
				p.WrittenBytes += n
				p.ReadBytes += 2*n + g
			} else {
				p.ReadBytes += 2 * n
			}
		}
	}
	plain := r.plain()
	p.LargestSectors, p.LargestWhy = r.largest(plain)
	p.Bound95 = zeroFailuresBound(r.repeats(), 0.95)
	step("baseline", Setup{Path: r.smallPath, Shape: Contiguous, Depth: 1}, []int{r.small}, r.baselineCommands())
	if r.o.Surface > 0 {
		var all uint64
		for _, e := range r.info.Usable {
			all += e.Sectors
		}
		p.Extents = r.info.Usable
		p.Steps = append(p.Steps, PlanStep{What: "surface", Setup: plain, Sizes: []int{r.o.Surface}, Repeats: int(all / uint64(r.o.Surface))})
		p.ReadBytes += all * SectorBytes
		if writes {
			p.WrittenBytes += all * SectorBytes
		}
	} else {
		step("sweep", plain, r.sizes(plain), r.repeats())
		for _, su := range r.others() {
			if r.o.PlainOnly {
				break
			}
			step("sweep, "+su.String(), su, r.sizes(su), r.repeatsOf(su))
		}
		step("first and last sectors", plain, r.sizes(plain), 2)
		step("confirmation", plain, []int{p.LargestSectors}, r.confirmCommands()/2)
	}
	if writes {
		for _, w := range r.space.windows {
			if w.random {
				p.WrittenBytes += w.Sectors * SectorBytes  // painted
				p.ReadBytes += 2 * w.Sectors * SectorBytes // looked at as a whole
			}
		}
	}
	if r.info.Sectors > 0 {
		p.DriveWrites = float64(p.WrittenBytes) / float64(r.info.Sectors) / SectorBytes
	}
	return p
}

// String is the plan in one line.
func (p Plan) String() string {
	return fmt.Sprintf("%d sizes up to %d sectors (%s), %.1f GiB written, %.1f GiB read", len(p.Steps[len(p.Steps)-1].Sizes), p.LargestSectors, kib(p.LargestSectors),
		float64(p.WrittenBytes)/(1<<30), float64(p.ReadBytes)/(1<<30))
}
