package enforce

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/quirkcheck/quirkcheck/checker/store"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

// Recover settles what a run that was killed left open: a suspended map is
// resumed, a planned write is looked at. It returns what it did, one line
// each.
func Recover(ctx context.Context, pending []store.Write, env Env, j Journal) (lines []string, err error) {
	for _, w := range pending {
		if w.State != store.Planned {
			continue
		}
		if name, ok := strings.CutPrefix(w.Attr, "dm-map/"); ok {
			if err := env.Maps.Resume(ctx, name); err != nil {
				// It may be gone; the others are settled all the same.
				lines = append(lines, fmt.Sprintf("map %s was left suspended by a run that was killed, and resuming it failed: %v; if it is there, run dmsetup resume %s", name, err, quoteShell(name)))
				continue
			}
			lines = append(lines, "map "+name+" was left suspended by a run that was killed; resumed")
			if err := j.Done(ctx, w.ID, store.Reverted, "active"); err != nil {
				return lines, err
			}
			continue
		}
		state := store.NotWritten
		now, err := env.Attrs.Read(w.Attr)
		if err == nil && now != w.Old && env.bears(ctx, w) { // as written, or as the kernel rounded it
			state = store.Written
			lines = append(lines, w.Attr+": a run that was killed had set "+w.New+", it is "+now)
		}
		if err := j.Done(ctx, w.ID, state, now); err != nil {
			return lines, err
		}
	}
	return lines, nil
}

// bears reports whether the device of a journal line is still the one that
// bears its name.
func (env Env) bears(ctx context.Context, w store.Write) bool {
	now, err := env.Identify(ctx, w.Device)
	if err != nil {
		return false
	}
	key := Key{Device: w.Device, Identity: w.Identity}
	if w.HasDiskSeq {
		key.DiskSeq = &w.DiskSeq
	}
	return key.same(now)
}

// Revert restores what is still ours of this boot, newest first: the value
// before our first write of each attribute. A value that somebody changed
// since is left alone and reported. release says what the kernel does with 0:
// from 6.3 on it means the default, before that it is EINVAL.
func Revert(ctx context.Context, writes []store.Write, env Env, j Journal, release kernel.Release) (Result, error) {
	var out Result
	byAttr := map[string][]store.Write{}
	var attrs []string
	for _, w := range writes { // oldest first
		if w.State != store.Written || w.BootID != env.BootID || strings.HasPrefix(w.Attr, "dm-map/") {
			continue
		}
		if byAttr[w.Attr] == nil {
			attrs = append(attrs, w.Attr)
		}
		byAttr[w.Attr] = append(byAttr[w.Attr], w)
	}
	slices.Reverse(attrs)
	for _, attr := range attrs {
		if err := ctx.Err(); err != nil {
			return out, err
		}
		out.Steps = append(out.Steps, revertAttr(ctx, byAttr[attr], env, j, release))
	}
	return out, nil
}

func revertAttr(ctx context.Context, writes []store.Write, env Env, j Journal, release kernel.Release) (r StepResult) {
	// Only an unbroken chain goes back: before it the name was another disk's,
	// or somebody else set a value that ours then replaced.
	last := writes[len(writes)-1]
	start := len(writes) - 1
	sameDevice := func(a, b store.Write) bool {
		if a.HasDiskSeq && b.HasDiskSeq {
			return a.DiskSeq == b.DiskSeq
		}
		return a.Identity == b.Identity
	}
	for start > 0 && sameDevice(writes[start-1], last) && writes[start].Old == writes[start-1].ReadBack {
		start--
	}
	older := writes[:start]
	writes = writes[start:]
	first := writes[0]
	r = StepResult{Step: Step{Key: Key{Device: first.Device, Identity: first.Identity}, Group: first.Device, Op: OpWrite, Attr: first.Attr,
		From: last.ReadBack, To: first.Old, Quirk: first.Quirk, Because: []string{"as before " + first.Time.UTC().Format("2006-01-02 15:04:05 MST")}}, Outcome: Failed}
	if first.HasDiskSeq {
		r.DiskSeq = &first.DiskSeq
	}
	done := func(state store.State, now string) {
		for _, w := range writes {
			if err := j.Done(ctx, w.ID, state, now); err != nil && r.Error == "" {
				r.Error = "journal: " + err.Error()
			}
		}
	}
	for _, w := range older {
		state := store.Foreign
		if !sameDevice(w, last) {
			state = store.Gone
		}
		if err := j.Done(ctx, w.ID, state, w.ReadBack); err != nil {
			r.Error = "journal: " + err.Error()
			return r
		}
	}
	now, err := env.Attrs.Read(r.Attr)
	switch {
	case err != nil && !env.bears(ctx, last), err == nil && !env.bears(ctx, last):
		r.Outcome, r.Error = Gone, "the device is not there any more; its value went with it"
		done(store.Gone, "")
		return r
	case err != nil:
		r.Error = "read " + r.Attr + ": " + err.Error()
		return r
	case now == first.Old: // it is back already, by a revert that was killed or by hand
		r.Outcome, r.After = Restored, now
		done(store.Reverted, now)
		return r
	case now != last.ReadBack && now != last.New:
		r.Outcome, r.After = Foreign, now
		r.Error = fmt.Sprintf("%s is %s now, ours was %s: somebody changed it since; left alone", r.Attr, now, last.ReadBack)
		done(store.Foreign, now)
		return r
	}
	if env.Lowest != nil {
		old, _ := strconv.ParseUint(first.Old, 10, 64)
		if lowest := env.Lowest(first.Device); lowest > 0 && old > lowest {
			r.After = now
			r.Error = fmt.Sprintf("a path below it is at %d KiB: the map at %s would fail its requests; revert the paths with it (--all)", lowest, first.Old)
			return r
		}
	}
	readAhead := strings.TrimSuffix(r.Attr, "max_sectors_kb") + "read_ahead_kb"
	raBefore, raErr := env.Attrs.Read(readAhead)
	defer func() {
		if raAfter, err := env.Attrs.Read(readAhead); raErr == nil && err == nil && raAfter != raBefore {
			r.Also = append(r.Also, putBack(env, readAhead, raBefore, raAfter))
		}
	}()
	// A default goes back as the default, so that the kernel forgets that a
	// user ever set it; it is read back, as the default may not be what it was.
	zero := first.WasDefault && kernel.Carries([]kernel.Row{{Tree: "mainline", Since: "6.3"}}, release).Truth == kernel.True
	values := []string{first.Old}
	if zero {
		values = []string{"0", first.Old}
	}
	for _, v := range values {
		if err := env.Attrs.Write(r.Attr, v); err != nil {
			r.Error = "write " + v + " to " + r.Attr + ": " + writeError(err)
			continue
		}
		if r.After, err = env.Attrs.Read(r.Attr); err != nil {
			r.Error = "read " + r.Attr + ": " + err.Error()
			continue
		}
		if r.After == first.Old {
			r.Outcome, r.Error = Restored, ""
			done(store.Reverted, r.After)
			return r
		}
		r.Error = fmt.Sprintf("%s is %s after writing %s, and was %s", r.Attr, r.After, v, first.Old)
	}
	return r
}
