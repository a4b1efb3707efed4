package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	"github.com/quirkcheck/quirkcheck/checker/enforce"
	"github.com/quirkcheck/quirkcheck/checker/store"
	"github.com/quirkcheck/quirkcheck/checker/verify"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

// verifyQuirk stands in the journal where enforce puts an entry's id.
const verifyQuirk = "verify"

// verifyJournal takes the journal's lock, puts back what a verify that was
// killed had raised, and with --raise raises max_sectors_kb. restore puts it
// back and gives the lock up.
func (a *app) verifyJournal(ctx context.Context, t *opened, o verifyFlags) (restore func() error, err error) {
	src, err := a.open("", "")
	if err != nil {
		return nil, err
	}
	env, err := a.env(src.sys, "")
	if err != nil {
		src.close()
		return nil, err
	}
	s, unlock, recovered, err := a.journal(ctx, env, o.state, "verify")
	for _, l := range recovered {
		fmt.Fprintln(a.stderr, "recovered:", clean(l))
	}
	if err != nil {
		src.close()
		return nil, err
	}
	var release kernel.Release
	if v, err := env.Attrs.Read("proc/version"); err == nil {
		release, _ = kernel.ParseProcVersion(v)
	}
	putBack := func(what string) error {
		// Whatever the context: an interrupted run is put back too.
		ctx := context.WithoutCancel(ctx)
		pending, err := s.Pending(ctx, env.BootID)
		if err != nil {
			return err
		}
		pending = slices.DeleteFunc(pending, func(w store.Write) bool { return w.Quirk != verifyQuirk })
		res, err := enforce.Revert(ctx, pending, env, s, release)
		for _, st := range res.Steps {
			if !st.Outcome.Good() {
				err = errors.Join(err, fmt.Errorf("%s was not put back to %s: %s", st.Attr, st.To, cmp.Or(st.Error, string(st.Outcome))))
			} else if what != "" {
				fmt.Fprintf(a.stderr, "%s: %s is %s again\n", what, st.Attr, st.To)
			}
		}
		return err
	}
	done := func() error {
		err := putBack("")
		unlock()
		src.close()
		return err
	}
	if err := putBack("left by a verify that was killed"); err != nil {
		return nil, errors.Join(fail(statusRefused, "put it right by hand, or with quirkcheck revert", "%w", err), done())
	}
	if !o.raise {
		return done, nil
	}
	if err := a.raise(ctx, t, env, s); err != nil {
		return nil, errors.Join(err, done())
	}
	return done, nil
}

// raise lifts max_sectors_kb to max_hw_sectors_kb. Nobody else may have the disk
// open: their requests would grow too.
func (a *app) raise(ctx context.Context, t *opened, env enforce.Env, j enforce.Journal) error {
	disk := t.target.Disk
	self := fmt.Sprintf("(%d)", os.Getpid())
	others := slices.DeleteFunc(enforce.Openers([]string{disk})[disk], func(who string) bool { return strings.HasSuffix(who, self) })
	for _, l := range t.facts.Layers {
		if l.Below != "" && l.Kind != "partition" {
			others = append(others, l.Name)
		}
	}
	others = slices.Concat(others, t.facts.Swaps, t.facts.Joined)
	if len(others) > 0 || len(t.facts.Mounts) > 0 {
		return fail(statusRefused, "leave --raise out", "%s is in use (%s): a higher limit would be theirs too", disk, strings.Join(append(others, mountsOf(t)...), ", "))
	}
	attr := strings.TrimPrefix(t.target.DiskDir, "/") + "/queue/max_sectors_kb"
	from, err := env.Attrs.Read(attr)
	if err != nil {
		return fail(statusFailed, "", "%w", err)
	}
	to, err := env.Attrs.Read(strings.TrimSuffix(attr, "max_sectors_kb") + "max_hw_sectors_kb")
	if err != nil {
		return fail(statusFailed, "", "%w", err)
	}
	a1, err1 := strconv.ParseUint(from, 10, 31)
	b1, err2 := strconv.ParseUint(to, 10, 31)
	if err := errors.Join(err1, err2); err != nil || a1 >= b1 {
		return nil // nothing to raise
	}
	key, err := env.Identify(ctx, disk)
	if err != nil {
		return fail(statusFailed, "", "%w", err)
	}
	plan := enforce.Plan{Steps: []enforce.Step{{Key: key, Group: disk, Op: enforce.OpWrite, Attr: attr, From: from, To: to, Quirk: verifyQuirk,
		Because: []string{"verify --raise, put back at its end"}}}}
	res, err := enforce.Apply(ctx, plan, env, j)
	if err != nil {
		return err
	}
	if st := res.Steps[0]; !st.Outcome.Good() {
		return fail(statusFailed, "leave --raise out", "%s", cmp.Or(st.Error, string(st.Outcome)))
	}
	return nil
}

func mountsOf(t *opened) (out []string) {
	for _, m := range t.facts.Mounts {
		out = append(out, "mounted on "+m.Point)
	}
	return out
}

// resumption is a run's record of sizes, one JSON line each.
type resumption struct {
	prior []verify.Record
	seed  uint64
	f     *os.File
	path  string
}

// resumeHead is the first line: a run is only resumed by one with the same
// target, in the same place, and the same plan.
type resumeHead struct {
	Tool    string        `json:"tool"`
	Target  verify.Target `json:"target"`
	Options string        `json:"options"`
	Seed    uint64        `json:"seed"`
}

// maxResumeBytes bounds the file that is read.
const maxResumeBytes = 16 << 20

// openResume opens the record beside the journal. Where none can be kept, the
// run goes on without.
func openResume(o verifyFlags, v verify.Options, serial string) (*resumption, error) {
	r := &resumption{}
	if o.file != "" { // its extents are new each time
		if o.resume {
			return r, fail(statusUsage, "", "--resume: a file is made anew, so its run cannot go on")
		}
		return r, nil
	}
	key := sha256.Sum256([]byte(v.Target.Device + "\x00" + serial + "\x00" + v.Target.Name))
	r.path = filepath.Join(filepath.Dir(o.state), "verify", fmt.Sprintf("%x.jsonl", key[:8]))
	head := resumeHead{Tool: version(), Target: v.Target, Seed: v.Seed, Options: fmt.Sprintf("%s %s sizes %v repeats %d region %d surface %d largest %d path %q plain %v raise %v",
		v.Mode, v.Level, v.Sizes, v.Repeats, v.RegionSectors, v.Surface, v.LargestSectors, v.Path, v.PlainOnly, o.raise)}
	if o.resume {
		if err := r.read(head); err != nil {
			return r, err
		}
		head.Seed = r.seed
	}
	if err := os.MkdirAll(filepath.Dir(r.path), 0o700); err != nil {
		if o.resume {
			return r, fail(statusFailed, "--state names another place", "%w", err)
		}
		r.path = ""
		return r, nil // reading only, without root
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_APPEND
	if !o.resume {
		flags |= os.O_TRUNC
	}
	f, err := os.OpenFile(r.path, flags, 0o600)
	if err != nil {
		r.path = ""
		return r, nil
	}
	r.f = f
	if !o.resume {
		return r, r.line(head)
	}
	return r, nil
}

func (r *resumption) read(want resumeHead) error {
	f, err := os.Open(r.path)
	if errors.Is(err, fs.ErrNotExist) {
		return fail(statusUsage, "leave --resume out", "no interrupted run of %s is on record", want.Target.Name)
	}
	if err != nil {
		return fail(statusFailed, "", "%w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxResumeBytes))
	if err != nil {
		return fail(statusFailed, "", "%w", err)
	}
	sc := bufio.NewScanner(bytes.NewReader(b))
	sc.Buffer(nil, 1<<20)
	for n := 1; sc.Scan(); n++ {
		if n == 1 {
			var h resumeHead
			if err := json.Unmarshal(sc.Bytes(), &h); err != nil {
				return fail(statusFailed, "leave --resume out", "%s:1: %w", r.path, err)
			}
			if h.Options != want.Options || h.Tool != want.Tool {
				return fail(statusUsage, "give the flags of the run that was interrupted, or leave --resume out", "%s is of another run, with version %s and %s", r.path, h.Tool, h.Options)
			}
			if !maps.Equal(h.Target.Identity, want.Target.Identity) || h.Target.Adapter != want.Target.Adapter || h.Target.Driver != want.Target.Driver ||
				h.Target.Kernel != want.Target.Kernel || h.Target.Sectors != want.Target.Sectors || h.Target.FirstSector != want.Target.FirstSector {
				return fail(statusUsage, "leave --resume out", "%s is of a run with another disk, firmware, adapter or kernel", r.path)
			}
			r.seed = h.Seed
			continue
		}
		var rec verify.Record
		if err := json.Unmarshal(sc.Bytes(), &rec); err != nil {
			break // the line that was being written
		}
		r.prior = append(r.prior, rec)
	}
	return nil
}

// record keeps a size, on the disk when it returns.
func (r *resumption) record(rec verify.Record) error {
	if r.f == nil {
		return nil
	}
	return r.line(rec)
}

func (r *resumption) line(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if _, err := r.f.Write(append(b, '\n')); err != nil {
		return err
	}
	return r.f.Sync()
}

// done forgets the record of a run that came to its end.
func (r *resumption) done() {
	if r.path != "" {
		os.Remove(r.path)
	}
}

func (r *resumption) close() {
	if r.f != nil {
		r.f.Close()
	}
}

// verifyProgress draws a bar with rate and time left on a terminal.
func (a *app) verifyProgress() (step func(verify.Progress), stop func()) {
	f, ok := a.stderr.(*os.File)
	if !ok || !isTerminal(f) {
		return nil, func() {}
	}
	start := time.Now()
	var p *mpb.Progress
	var bar *mpb.Bar
	var now verify.Progress
	step = func(s verify.Progress) {
		if bar == nil {
			if time.Since(start) < progressAfter {
				return
			}
			p = mpb.New(mpb.WithOutput(f), mpb.WithWidth(30))
			bar = p.New(int64(max(s.Planned, 1)), mpb.BarStyle(), mpb.BarRemoveOnComplete(),
				mpb.PrependDecorators(decor.Any(func(decor.Statistics) string {
					if now.Sectors == 0 {
						return now.Phase + " "
					}
					return fmt.Sprintf("%s, %d sectors ", now.Phase, now.Sectors)
				})),
				mpb.AppendDecorators(decor.Any(func(st decor.Statistics) string {
					secs := time.Since(start).Seconds()
					rate := float64(st.Current) / secs
					left := "?"
					if rate > 0 && st.Total > st.Current {
						left = time.Duration(float64(st.Total-st.Current) / rate * 1e9).Round(time.Second).String()
					}
					return fmt.Sprintf(" %.0f MB/s, %s left", rate/1e6, left)
				})))
		}
		now = s
		if s.Done+1 >= s.Planned { // a fault makes it more
			bar.SetTotal(int64(s.Done+s.Done/10+1), false)
		}
		bar.SetCurrent(int64(s.Done))
	}
	stop = func() {
		if bar != nil {
			bar.Abort(true)
			p.Wait()
		}
	}
	return step, stop
}
