package verify

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quirkcheck/quirkcheck/internal/vm/faultdisk"
)

// between stands between the engine and the fake device.
type between struct {
	*fakeDevice
	do func(cmds []Command) []Completion
}

func (b *between) Do(_ context.Context, cmds []Command) []Completion { return b.do(cmds) }

// pass does what the device does.
func (b *between) pass(cmds []Command) []Completion {
	return b.fakeDevice.Do(context.Background(), cmds)
}

func stand(f *fakeDevice, do func(b *between, cmds []Command) []Completion) *between {
	b := &between{fakeDevice: f}
	b.do = func(cmds []Command) []Completion { return do(b, cmds) }
	return b
}

func verifyDevice(t *testing.T, d Device, f *fakeDevice, o Options) *Report {
	t.Helper()
	o.Now, o.Wait, o.SelfTest = f.clock, 1, 1
	if o.Mode == "" {
		o.Mode = ModeDestroy
	}
	if o.Level == "" {
		o.Level = Quick
	}
	r, err := Run(context.Background(), d, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestOneRefusalHidesNothing: a command that could not be sent, or proved, once
// does not end the sweep below the sizes that are bad.
func TestOneRefusalHidesNothing(t *testing.T) {
	for _, path := range []Path{PathCommand, PathBlock} {
		_, f := disk(48<<20, 1, faultdisk.Fault{Name: "from 2048", When: longer(wr, 2047), Do: faultdisk.Truncate(1024 * SectorBytes)})
		f.command, f.block = 5376, 512
		if path == PathBlock {
			f.command, f.block = 0, 5376
		}
		done := false
		d := stand(f, func(b *between, c []Command) []Completion {
			if c[0].Path != path || c[0].Sectors() != 2048 || done {
				return b.pass(c)
			}
			done = true
			if path == PathCommand {
				return []Completion{{Err: &Failure{KindNotSent, "cannot allocate memory"}}}
			}
			out := b.pass(c)
			out[0].Proof, out[0].Requests = "", 2
			return out
		})
		if r := verifyDevice(t, d, f, Options{PlainOnly: true}); r.Verdict != VerdictFaulty || *r.SafeMaxSectors >= 2048 {
			t.Errorf("%s: %s: %s", path, r.Verdict, r.Sentence)
		}
	}
}

// TestWhatIsNeverReachedIsSaid: a size that cannot be sent is no clean size.
func TestWhatIsNeverReachedIsSaid(t *testing.T) {
	_, f := disk(48<<20, 1)
	f.command, f.block = 5376, 512
	d := stand(f, func(b *between, c []Command) []Completion {
		if c[0].Path == PathCommand && c[0].Sectors() > 3000 {
			return []Completion{{Err: &Failure{KindNotSent, "EINVAL"}}}
		}
		return b.pass(c)
	})
	r := verifyDevice(t, d, f, Options{PlainOnly: true})
	if *r.SafeMaxSectors > 3000 || strings.Contains(r.Sentence, "largest command that can be sent") || !strings.Contains(r.Sentence, "not reached") {
		t.Errorf("%s", r.Sentence)
	}
	if !slices.ContainsFunc(r.NotTested, func(s string) bool { return strings.Contains(s, "EINVAL") }) {
		t.Errorf("not tested: %q", r.NotTested)
	}
}

func TestDeviceThatDies(t *testing.T) {
	for _, kind := range []Kind{KindGone, KindTimeout} {
		_, f := disk(48<<20, 1)
		f.afterHang = &Failure{KindTimeout, "the device does not answer"}
		d := stand(f, func(b *between, c []Command) []Completion {
			out := b.pass(c)
			if c[0].Sectors() > 1024 {
				out[0].Err, out[0].Proof = &Failure{kind, "device offlined"}, ""
			}
			return out
		})
		r := verifyDevice(t, d, f, Options{})
		if r.Verdict != VerdictFaulty || r.Findings[0].Good != 1024 || r.Stopped == "" {
			t.Errorf("%s: %s: %s", kind, r.Verdict, r.Sentence)
		}
	}
}

// TestFaultThatSetsInLate: what is seen after the sweep counts as well.
func TestFaultThatSetsInLate(t *testing.T) {
	run := func(from int) (hits int, r *Report) {
		_, f := disk(48<<20, 1)
		f.command, f.block = 4096, 512
		n := 0
		d := stand(f, func(b *between, c []Command) []Completion {
			if c[0].Op != Write || c[0].Path != PathCommand || c[0].Sectors() <= 1024 {
				return b.pass(c)
			}
			if n++; n <= from {
				return b.pass(c)
			}
			hits++
			cut := c[0]
			cut.Data = cut.Data[:1024*SectorBytes]
			return b.pass([]Command{cut})
		})
		return hits, verifyDevice(t, d, f, Options{PlainOnly: true, Repeats: 2})
	}
	_, healthy := run(1 << 30)
	total := 0
	for _, w := range healthy.Sizes {
		if w.Sectors > 1024 {
			total += w.Write.Tried
		}
	}
	seen := 0
	for from := total - 2; from < total+12; from++ {
		hits, r := run(from)
		if hits > 0 {
			seen++
			if r.Verdict != VerdictFaulty {
				t.Errorf("after %d writes, %d damaged: %s: %s", from, hits, r.Verdict, r.Sentence)
			}
		}
	}
	if seen < 5 {
		t.Errorf("only %d runs met the fault", seen)
	}
}

// TestRefusalInABatch: one command of several that was not sent is neither
// corruption nor does it hide its neighbour's error.
func TestRefusalInABatch(t *testing.T) {
	_, f := disk(48<<20, 1)
	d := stand(f, func(b *between, c []Command) []Completion {
		if len(c) <= 8 {
			return b.pass(c)
		}
		return append(b.pass(c[:len(c)-1]), Completion{Err: &Failure{KindNotSent, "ENOMEM"}})
	})
	if r := verifyDevice(t, d, f, Options{}); r.Verdict != VerdictClean || r.Confirmed.Unproved == 0 {
		t.Errorf("%s: %s %+v", r.Verdict, r.Sentence, r.Confirmed)
	}
	_, f = disk(48<<20, 1)
	d = stand(f, func(b *between, c []Command) []Completion {
		out := b.pass(c)
		if len(c) == 8 && c[0].Sectors() > 256 {
			out[0].Err, out[0].Proof = &Failure{KindIOError, "HARDWARE ERROR"}, ""
			out[7].Err, out[7].Proof = &Failure{KindNotSent, "ENOMEM"}, ""
		}
		return out
	})
	if r := verifyDevice(t, d, f, Options{}); r.Verdict != VerdictFaulty || r.Findings[0].Class != ClassError {
		t.Errorf("%s: %s", r.Verdict, r.Sentence)
	}
}

// TestExamplesTellTheTruth: of the disk of 2015, what lies there and what should.
func TestExamplesTellTheTruth(t *testing.T) {
	_, f := disk(48<<20, 1, faultdisk.Fault{Name: "2015", When: longer(wr, 1024), Do: faultdisk.Truncate(1024 * SectorBytes)})
	r := verifyDevice(t, f, f, Options{PlainOnly: true})
	for _, e := range r.Findings[0].Examples {
		if e.Class != "stale" || e.Wanted <= e.Generation || e.Generation == 0 || e.InCommand < 1024 || e.WantHex == e.GotHex || !strings.Contains(e.Found, "old data") {
			t.Errorf("%+v", e)
		}
	}
	if len(r.Findings[0].Examples) == 0 {
		t.Error("no example")
	}
}

// TestStraysNameTheirWrite: data that lands far off is the doing of the write it
// came with, not of the command that meets it.
func TestStraysNameTheirWrite(t *testing.T) {
	for seed := range 10 {
		_, f := disk(8<<20, seed)
		f.command, f.block = 1100, 256
		d := stand(f, func(b *between, c []Command) []Completion {
			out := b.pass(c)
			if c[0].Op == Write && c[0].Path == PathCommand && c[0].Sectors() > 1000 {
				s := c[0]
				s.Sector = (s.Sector + 8000) % 16000 / 8 * 8
				s.Data = s.Data[:8*SectorBytes]
				s.Path = PathBlock
				b.pass([]Command{s})
			}
			return out
		})
		r := verifyDevice(t, d, f, Options{PlainOnly: true, Seed: uint64(seed + 1)})
		if r.Verdict != VerdictFaulty {
			t.Errorf("seed %d: %s: %s", seed, r.Verdict, r.Sentence)
			continue
		}
		for _, g := range r.Findings {
			if g.Op != "write" || g.Class != ClassStray && g.Class != ClassMixed || g.Good > 1000 {
				t.Errorf("seed %d: %s", seed, g.Words)
			}
		}
	}
}

// TestGenerationsRunOut: another session begins, and the run goes on writing.
func TestGenerationsRunOut(t *testing.T) {
	_, f := disk(8<<20, 1)
	f.command, f.block = 64, 64
	r := newRun(f, Options{Mode: ModeDestroy, Level: Quick, Now: f.clock, Seed: 1})
	ctx := context.Background()
	if err := r.baseline(ctx); err != nil {
		t.Fatal(err)
	}
	r.generation = 1<<20 - reserved - 50
	c := &Confirmed{}
	for range 300 {
		r.reserve()
		if fl, err := r.mixedBatch(ctx, r.plain(), 64, 1, c); err != nil || fl != nil {
			t.Fatal(err, fl)
		}
	}
	before := r.report.Written
	for range 100 {
		r.reserve()
		if fl, err := r.mixedBatch(ctx, r.plain(), 64, 1, c); err != nil || fl != nil {
			t.Fatal(err, fl)
		}
	}
	if len(r.report.Sessions) != 2 || r.report.Written == before {
		t.Errorf("%d sessions, %d bytes written since", len(r.report.Sessions), r.report.Written-before)
	}
}

// TestResumeForgetsNoFault: what an interrupted run met is there in the end, and
// a size counts as tried only as far as it was.
func TestResumeForgetsNoFault(t *testing.T) {
	met := 0
	for seed := range 10 {
		_, f := disk(48<<20, seed, faultdisk.Fault{Name: "sometimes", When: faultdisk.All(longer(wr, 1023), faultdisk.Probability(0.1)), Do: faultdisk.Truncate(512 * SectorBytes)})
		f.block = 512
		var kept []Record
		ctx, cancel := context.WithCancel(context.Background())
		o := Options{Mode: ModeDestroy, Level: Quick, Now: f.clock, Wait: 1, SelfTest: 1, Seed: uint64(seed) + 1, PlainOnly: true, Record: func(r Record) error {
			b, err := json.Marshal(r) // as it is kept
			var back Record
			if err == nil {
				err = json.Unmarshal(b, &back)
			}
			kept = append(kept, back)
			if r.Sectors >= 2559 {
				cancel()
			}
			return err
		}}
		first, _ := Run(ctx, f, o)
		cancel()
		if first.Verdict != VerdictFaulty {
			continue
		}
		met++
		o.Record, o.Prior, o.Session = nil, kept, uint64(seed)+1000
		r, err := Run(context.Background(), f, o)
		if err != nil || r.Verdict != VerdictFaulty {
			t.Errorf("seed %d: first %s\nresumed %s: %v", seed, first.Sentence, r.Sentence, err)
		}
		for _, w := range r.Sizes {
			i := slices.IndexFunc(kept, func(k Record) bool { return k.Setup == w.Setup && k.Sectors == w.Sectors })
			if w.Earlier && (kept[i].Write != w.Write || kept[i].Read != w.Read) {
				t.Errorf("seed %d: %d sectors: kept %+v, reported write %+v read %+v", seed, w.Sectors, kept[i], w.Write, w.Read)
			}
		}
	}
	if met < 3 {
		t.Errorf("only %d runs met the fault", met)
	}
}

// TestOthersKernelLines: what the kernel says of other commands is no limit.
func TestOthersKernelLines(t *testing.T) {
	_, f := disk(48<<20, 1)
	f.info.Shared = true
	once := false
	d := stand(f, func(b *between, c []Command) []Completion {
		out := b.pass(c)
		if c[0].Sectors() == 1024 && c[0].Path == PathCommand && !once {
			once = true
			f.events = append(f.events, Event{KindReset, "ata1: hard resetting link"}, Event{KindIOError, "I/O error, dev sda, sector 99999999 op 0x0:(READ)"})
		}
		return out
	})
	r := verifyDevice(t, d, f, Options{Mode: ModeReadOnly})
	if r.Verdict != VerdictClean || len(r.Events) != 2 {
		t.Errorf("%s: %s %q", r.Verdict, r.Sentence, r.Events)
	}
	// One that was there before the first large command.
	_, f = disk(48<<20, 1)
	f.events = append(f.events, Event{KindReset, "scsi host1: link reset during the baseline"})
	if r := verifyDevice(t, f, f, Options{PlainOnly: true}); r.Verdict != VerdictClean || len(r.Events) != 1 {
		t.Errorf("%s: %s %q", r.Verdict, r.Sentence, r.Events)
	}
}

// TestUnstableReads: small reads that disagree are no question of size, unless
// somebody else writes.
func TestUnstableReads(t *testing.T) {
	_, f := disk(48<<20, 1, faultdisk.Fault{Name: "noise", When: faultdisk.All(faultdisk.Is(rd), faultdisk.Probability(0.02)), Do: faultdisk.Flip(5)})
	if r := verifyDevice(t, f, f, Options{Mode: ModeReadOnly, Level: Default}); r.Verdict != VerdictBroken || r.RecommendedMaxSectorsKB != nil {
		t.Errorf("%s: %s", r.Verdict, r.Sentence)
	}
}

func TestSlowSizes(t *testing.T) {
	for _, ops := range [][]Op{{Write}, {Write, Read}} {
		_, f := disk(48<<20, 1)
		d := stand(f, func(b *between, c []Command) []Completion {
			out := b.pass(c)
			if slices.Contains(ops, c[0].Op) && c[0].Sectors() > 1024 {
				for i := range out {
					out[i].Latency = 25 * time.Second
				}
			}
			return out
		})
		r := verifyDevice(t, d, f, Options{})
		if r.Verdict != VerdictFaulty || r.Findings[0].Class != ClassSlow || r.Findings[0].Good != 1024 || *r.RecommendedMaxSectorsKB != 512 {
			t.Errorf("%v: %s: %s", ops, r.Verdict, r.Sentence)
		}
	}
}

// TestConfirmedMeansProved: what nothing shows to have been sent confirms
// nothing.
func TestConfirmedMeansProved(t *testing.T) {
	_, f := disk(48<<20, 1)
	d := stand(f, func(b *between, c []Command) []Completion {
		out := b.pass(c)
		for i := range c {
			if c[i].Path == PathBlock {
				out[i].Proof, out[i].Requests, out[i].Largest = "", 4, 64
			}
		}
		return out
	})
	if r := verifyDevice(t, d, f, Options{PlainOnly: true}); r.Confirmed.Commands != 0 || r.Confirmed.Sectors != 0 || r.Confirmed.Bound95 != 0 {
		t.Errorf("%+v", r.Confirmed)
	}
}

// TestSessionsAreNotReused: with data of an earlier run on the disk, a run that
// writes nothing is noticed.
func TestSessionsAreNotReused(t *testing.T) {
	_, f := disk(16<<20, 1)
	lose := false
	d := stand(f, func(b *between, c []Command) []Completion {
		if !lose || c[0].Op == Read {
			return b.pass(c)
		}
		return []Completion{{Proof: ProofCommand}}
	})
	o := Options{PlainOnly: true, Repeats: 1, Sizes: []int{128}, Seed: 77, Session: 1}
	if r := verifyDevice(t, d, f, o); r.Verdict != VerdictClean {
		t.Fatal(r.Sentence)
	}
	lose, o.Session = true, 2 // the same places
	if r := verifyDevice(t, d, f, o); r.Verdict != VerdictBroken {
		t.Errorf("every write was lost: %s", r.Sentence)
	}
}

// TestInUse: on a disk that others use no command is larger than its present
// limit, unless asked for.
func TestInUse(t *testing.T) {
	for _, largest := range []int{0, 2560} {
		_, f := disk(48<<20, 1)
		f.command, f.block, f.info.Shared = 5000, 1024, true
		verifyDevice(t, f, f, Options{Mode: ModeReadOnly, LargestSectors: largest})
		if want := max(largest, 1024); f.largestSent != want {
			t.Errorf("--largest %d: %d sectors were sent, want up to %d", largest, f.largestSent, want)
		}
	}
}

func TestCompare(t *testing.T) {
	report := func(change func(*Report)) *Report {
		safe := 1024
		r := &Report{SchemaVersion: SchemaVersion, Verdict: VerdictFaulty, Mode: ModeDestroy, SafeMaxSectors: &safe,
			Target:   Target{Identity: map[string]string{"ata_model": "ACME", "ata_firmware": "1"}, Adapter: "8086:2922", Driver: "ahci", Kernel: "6.1"},
			Findings: []Finding{{Op: "write", Class: ClassTruncated, Good: 1024}}}
		if change != nil {
			change(r)
		}
		if err := r.Check(); err != nil {
			t.Fatal(err)
		}
		return r
	}
	clean := func(r *Report) { safe := 8192; r.Verdict, r.Findings, r.SafeMaxSectors = VerdictClean, nil, &safe }
	other := func(r *Report) { r.Target.Adapter, r.Target.Driver = "1000:0097", "mpt3sas" }
	disk2 := func(r *Report) { r.Target.Identity = map[string]string{"ata_model": "OTHER", "ata_firmware": "2"} }
	for _, c := range []struct {
		name string
		b    func(*Report)
		want string
	}{
		{"same again", nil, "it repeats"},
		{"other adapter, same fault", other, "it is the disk's"},
		{"other adapter, clean", func(r *Report) { other(r); clean(r) }, "it is the adapter"},
		{"other disk, same fault", disk2, "adapter's, bridge's or driver's"},
		{"other disk, clean", func(r *Report) { disk2(r); clean(r) }, "it is the disk"},
		{"both differ", func(r *Report) { disk2(r); other(r); clean(r) }, "one thing at a time"},
		{"other kernel, clean", func(r *Report) { r.Target.Kernel = "6.18"; clean(r) }, "only the kernel differs"},
		{"clean only to small sizes", func(r *Report) { other(r); clean(r); safe := 1000; r.SafeMaxSectors = &safe }, "nothing can be told"},
		{"nothing on record", func(r *Report) { r.Target = Target{} }, "nothing can be told"},
		{"inconclusive", func(r *Report) { clean(r); r.Verdict = VerdictInconclusive }, "nothing to compare"},
		{"another fault", func(r *Report) { r.Findings[0].Class = ClassFlipped }, "not in the same way"},
	} {
		got := strings.Join(Compare(report(nil), report(c.b)), "\n")
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q in it", c.name, got, c.want)
		}
	}
	for name, text := range map[string]string{
		"no finding":   `{"schema_version":"1.0","verdict":"broken","mode":"destroy"}`,
		"no mode":      `{"schema_version":"1.0","verdict":"clean"}`,
		"huge":         `{"schema_version":"1.0","verdict":"faulty","mode":"destroy","findings":[{"op":"write","bad":[{"from":1,"to":9223372036854775806}]}]}`,
		"wrong way":    `{"schema_version":"1.0","verdict":"faulty","mode":"destroy","findings":[{"op":"write","bad":[{"from":9,"to":8}]}]}`,
		"other schema": `{"schema_version":"2.0","verdict":"clean","mode":"destroy"}`,
	} {
		var r Report
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			t.Fatal(err)
		}
		if r.Check() == nil {
			t.Errorf("%s: passes for a report", name)
		}
	}
}

// TestSurfaceSaysWhose: reading only, a surface pass compares as well; and it says
// whose fault it met.
func TestSurfaceSaysWhose(t *testing.T) {
	content := make([]byte, 8<<20)
	for i := range content {
		content[i] = byte(i >> 9 * 7)
	}
	d, f := disk(8<<20, 1)
	if _, err := d.WriteAt(content, 0); err != nil {
		t.Fatal(err)
	}
	d.SetFaults(faultdisk.Fault{Name: "read", When: longer(rd, 512), Do: faultdisk.Flip(700)})
	r := verifyDevice(t, f, f, Options{Surface: 1024, Mode: ModeReadOnly})
	if r.Verdict != VerdictFaulty || r.Findings[0].Op != "read" || r.Findings[0].Class != ClassFlipped {
		t.Errorf("%s: %s", r.Verdict, r.Sentence)
	}
	d.SetFaults()
	if r := verifyDevice(t, f, f, Options{Surface: 1024, Mode: ModeReadOnly}); r.Verdict != VerdictClean || r.Read < 16<<20 {
		t.Errorf("%s: %s, %d read", r.Verdict, r.Sentence, r.Read)
	}
	for _, op := range []faultdisk.Op{wr, rd} {
		_, f := disk(32<<20, 1, faultdisk.Fault{Name: "one place", When: faultdisk.All(longer(op, 512), faultdisk.Touches(20<<20, 1)), Do: faultdisk.Flip(100)})
		r := verifyDevice(t, f, f, Options{Surface: 1024})
		if r.Verdict != VerdictFaulty || r.Findings[0].Op != op.String() || r.Findings[0].Class != ClassFlipped {
			t.Errorf("%s: %s: %s", op, r.Verdict, r.Sentence)
		}
	}
	// A command that hangs: the device is waited for.
	_, f = disk(32<<20, 1, faultdisk.Fault{Name: "hang", When: faultdisk.All(longer(wr, 512), faultdisk.Touches(20<<20, 1)), Do: hang})
	if r := verifyDevice(t, f, f, Options{Surface: 1024}); r.Verdict != VerdictFaulty || r.Findings[0].Class != ClassTimeout || f.recovered != 1 {
		t.Errorf("%s: %s, recovered %d times", r.Verdict, r.Sentence, f.recovered)
	}
}

// TestNothingReaches: a device that nothing can be sent to in one piece is
// inconclusive, and planned for, without more ado.
func TestNothingReaches(t *testing.T) {
	_, f := disk(8<<20, 1)
	f.command, f.block, f.fragmented = 0, 0, 0
	MakePlan(f, Options{Mode: ModeFile, Level: Quick, Now: f.clock})
	if r := verifyDevice(t, f, f, Options{Mode: ModeFile}); r.Verdict == VerdictClean || r.SafeMaxSectors != nil {
		t.Errorf("%s: %s", r.Verdict, r.Sentence)
	}
}
