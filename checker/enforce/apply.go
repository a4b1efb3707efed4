package enforce

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/quirkcheck/quirkcheck/checker/store"
)

// Attrs reads and writes attributes by their path below the machine's root. A
// write is one call to an existing file. It needs root.
type Attrs interface {
	Read(name string) (string, error)
	Write(name, value string) error
}

// Maps suspends and resumes device-mapper maps by name.
type Maps interface {
	Suspend(ctx context.Context, name string) error // flushing
	Resume(ctx context.Context, name string) error
}

// Journal keeps what is about to be written, durably, before it is written.
type Journal interface {
	Plan(ctx context.Context, w store.Write) (int64, error)
	Done(ctx context.Context, id int64, state store.State, readBack string) error
}

// Env is the machine and what identifies this run.
type Env struct {
	Attrs Attrs
	Maps  Maps
	// Lowest is the lowest max_sectors_kb of the devices below a map, 0 where
	// there is none or it cannot be read.
	Lowest func(device string) uint64
	// Identify says what bears a device's name now.
	Identify func(ctx context.Context, device string) (Key, error)
	BootID   string
	Tool     string
	Run      string // one word for this run
	Workers  int    // writes at a time, 0 for 16
	Now      func() time.Time
}

// Outcome of a step.
type Outcome string

// The outcomes. Written, Already and Rounded are good.
const (
	Written  Outcome = "written"  // and read back as written
	Already  Outcome = "already"  // somebody else set a satisfying value meanwhile
	Rounded  Outcome = "rounded"  // the kernel took a lower value than asked
	Clamped  Outcome = "clamped"  // the kernel took another value, above the one asked
	Failed   Outcome = "failed"   // see Error
	Skipped  Outcome = "skipped"  // an earlier step of the group failed, or the run was interrupted
	Restored Outcome = "restored" // by Revert
	Foreign  Outcome = "foreign"  // changed by somebody else since; left alone
	Gone     Outcome = "gone"     // the device or the boot is gone
)

// Good reports whether the outcome leaves the value as planned.
func (o Outcome) Good() bool {
	return o == Written || o == Already || o == Rounded || o == Restored || o == Gone
}

// StepResult is what became of a step.
type StepResult struct {
	Step
	Outcome Outcome  `json:"outcome"`
	After   string   `json:"after,omitempty"`
	Error   string   `json:"error,omitempty"`
	Also    []string `json:"also,omitempty"` // side effects put back
}

// Result is what Apply or Revert did.
type Result struct {
	Steps []StepResult `json:"steps"`
}

// Complete reports whether all went as planned.
func (r Result) Complete() bool {
	return !slices.ContainsFunc(r.Steps, func(s StepResult) bool { return !s.Outcome.Good() })
}

// Apply carries out a plan: groups side by side, each in order. It stops a
// group at the first surprise; a suspended map is always resumed. The error is
// the context's; what went wrong with a step is in its result.
func Apply(ctx context.Context, p Plan, env Env, j Journal) (Result, error) {
	groups := map[string][]int{}
	var order []string
	for i, s := range p.Steps {
		if groups[s.Group] == nil {
			order = append(order, s.Group)
		}
		groups[s.Group] = append(groups[s.Group], i)
	}
	out := Result{Steps: make([]StepResult, len(p.Steps))}
	workers := env.Workers
	if workers <= 0 {
		workers = 16
	}
	if p.Serial {
		workers = 1
	}
	sem := make(chan struct{}, workers)
	var wg sync.WaitGroup
	for _, g := range order {
		sem <- struct{}{}
		wg.Add(1)
		go func() {
			defer func() { <-sem; wg.Done() }()
			applyGroup(ctx, p, groups[g], env, j, out.Steps)
		}()
	}
	wg.Wait()
	return out, ctx.Err()
}

func applyGroup(ctx context.Context, p Plan, steps []int, env Env, j Journal, out []StepResult) {
	ok := true
	suspended := "" // map to resume whatever happens
	suspendID := int64(0)
	// The journal may lie on the very map that is suspended: what is written
	// meanwhile is planned before the suspend and noted after the resume.
	planned := map[int]int64{}
	var notes []func() error
	settle := func() {
		for _, note := range notes {
			if err := note(); err != nil {
				for _, i := range steps {
					if out[i].Op == OpResume && out[i].Error == "" {
						out[i].Error = "journal: " + err.Error()
					}
				}
			}
		}
		notes = nil
	}
	defer settle()
	for _, i := range steps {
		s := p.Steps[i]
		out[i] = StepResult{Step: s, Outcome: Skipped}
		switch {
		case s.Op == OpResume:
			if suspended == "" {
				continue
			}
			// Not with ctx: an interrupted run must not leave I/O waiting.
			err := env.Maps.Resume(context.WithoutCancel(ctx), s.Map)
			if err != nil {
				err = env.Maps.Resume(context.WithoutCancel(ctx), s.Map)
			}
			if err != nil {
				out[i].Outcome, out[i].Error = Failed, "resume "+s.Map+": "+err.Error()+"; run dmsetup resume "+quoteShell(s.Map)+" by hand"
				ok = false
				continue
			}
			out[i].Outcome = Written
			suspended = ""
			notes = append(notes, func() error {
				return j.Done(context.WithoutCancel(ctx), suspendID, store.Reverted, "active")
			})
			settle()
		case !ok || ctx.Err() != nil:
			ok = false
		case s.Op == OpSuspend:
			var err error
			for _, later := range steps {
				if w := p.Steps[later]; w.Op == OpWrite && w.Group == s.Group && out[later].Outcome == "" && err == nil {
					planned[later], err = j.Plan(ctx, env.write(w, w.Attr, w.From, w.To))
				}
			}
			if err == nil {
				suspendID, err = j.Plan(ctx, env.write(s, mapAttr(s.Map), "active", "suspended"))
			}
			if err == nil {
				suspended = s.Map
				err = env.Maps.Suspend(ctx, s.Map)
			}
			if err != nil {
				out[i].Outcome, out[i].Error = Failed, "suspend "+s.Map+": "+err.Error()
				ok = false
				continue
			}
			out[i].Outcome = Written
		default:
			var defers *[]func() error
			if suspended != "" {
				defers = &notes
			}
			out[i] = applyWrite(ctx, s, env, j, planned[i], defers)
			delete(planned, i)
			ok = out[i].Outcome.Good()
		}
	}
	for i, id := range planned { // never got to them
		if id != 0 {
			notes = append(notes, func() error {
				return j.Done(context.WithoutCancel(ctx), id, store.NotWritten, p.Steps[i].From)
			})
		}
	}
}

// mapAttr is how a suspended map stands in the journal.
func mapAttr(name string) string { return "dm-map/" + name }

func (env Env) write(s Step, attr, old, new string) store.Write {
	w := store.Write{BootID: env.BootID, Device: s.Device, Identity: s.Identity, Attr: attr, Old: old, New: new, Quirk: s.Quirk, Tool: env.Tool, Group: env.Run, Time: env.Now(), WasDefault: s.Default}
	if s.DiskSeq != nil {
		w.DiskSeq, w.HasDiskSeq = *s.DiskSeq, true
	}
	return w
}

// same compares what bears a name now with what was planned for.
// The sequence number decides where both have one: it is never given twice in a
// boot, while a firmware update or a resize changes the identity of one disk.
func (k Key) same(now Key) bool {
	if k.DiskSeq != nil && now.DiskSeq != nil {
		return *k.DiskSeq == *now.DiskSeq
	}
	return k.Identity == now.Identity
}

// applyWrite does one write. planned is its line in the journal when it has one
// already; notes take what is to be noted later, nil for at once.
func applyWrite(ctx context.Context, s Step, env Env, j Journal, planned int64, notes *[]func() error) StepResult {
	r := StepResult{Step: s, Outcome: Failed}
	id, noted := planned, false
	done := func(state store.State, readBack string) error {
		noted = true
		note := func() error { return j.Done(context.WithoutCancel(ctx), id, state, readBack) }
		if notes != nil {
			*notes = append(*notes, note)
			return nil
		}
		return note()
	}
	fail := func(format string, args ...any) StepResult {
		r.Error = fmt.Sprintf(format, args...)
		if id != 0 && !noted {
			if err := done(store.NotWritten, s.From); err != nil {
				r.Error += "; journal: " + err.Error()
			}
		}
		return r
	}
	now, err := env.Identify(ctx, s.Device)
	if err != nil {
		return fail("%s: %v", s.Device, err)
	}
	if !s.same(now) {
		return fail("another device bears the name %s now: planned for %s, there is %s", s.Device, s.Identity, now.Identity)
	}
	before, err := env.Attrs.Read(s.Attr)
	if err != nil {
		return fail("read %s: %v", s.Attr, err)
	}
	to, numErr := strconv.ParseUint(s.To, 10, 64)
	if before != s.From {
		v, err := strconv.ParseUint(before, 10, 64)
		from, _ := strconv.ParseUint(s.From, 10, 64)
		if before == s.To || err == nil && numErr == nil && v <= to && from > to { // a satisfying value is left alone
			fail("") // nothing to write: so it is noted
			r.Outcome, r.After, r.Error = Already, before, ""
			return r
		}
		return fail("%s changed from %s to %s since the plan; run this again", s.Attr, s.From, before)
	}
	readAhead := strings.TrimSuffix(s.Attr, "max_sectors_kb") + "read_ahead_kb"
	raBefore, raErr := env.Attrs.Read(readAhead)
	if id == 0 {
		if id, err = j.Plan(ctx, env.write(s, s.Attr, before, s.To)); err != nil {
			id = 0
			return fail("journal: %v; nothing was written", err)
		}
	}
	if err := env.Attrs.Write(s.Attr, s.To); err != nil {
		return fail("write %s to %s: %s", s.To, s.Attr, writeError(err))
	}
	r.After, err = env.Attrs.Read(s.Attr)
	if err != nil {
		err = errors.Join(err, done(store.Written, ""))
		return fail("written, but %s could not be read back: %v", s.Attr, err)
	}
	if err := done(store.Written, r.After); err != nil {
		return fail("written, but the journal did not take it: %v", err)
	}
	after, err := strconv.ParseUint(r.After, 10, 64)
	switch {
	case r.After == s.To:
		r.Outcome = Written
	case err != nil || numErr != nil:
		return fail("%s was asked for, %s reads back as %q", s.To, s.Attr, r.After)
	case after < to:
		r.Outcome = Rounded
	default:
		r.Outcome = Clamped
		r.Error = fmt.Sprintf("%s was asked for, the kernel kept %s", s.To, r.After)
	}
	if raAfter, err := env.Attrs.Read(readAhead); raErr == nil && err == nil && raAfter != raBefore {
		r.Also = append(r.Also, putBack(env, readAhead, raBefore, raAfter))
	}
	return r
}

// putBack undoes a side effect.
func putBack(env Env, attr, want, got string) string {
	name := attr[strings.LastIndexByte(attr, '/')+1:]
	if err := env.Attrs.Write(attr, want); err != nil {
		return fmt.Sprintf("the write changed %s from %s to %s, and putting it back failed: %s", name, want, got, writeError(err))
	}
	return fmt.Sprintf("the write changed %s from %s to %s; put back", name, want, got)
}

// writeError names what a refused write means.
func writeError(err error) string {
	switch {
	case errors.Is(err, syscall.EINVAL):
		return "the kernel refused the value (EINVAL)"
	case errors.Is(err, syscall.EROFS):
		return "sysfs is mounted read-only"
	case errors.Is(err, fs.ErrPermission):
		return "permission denied; this needs root"
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENODEV):
		return "the device is gone"
	}
	return err.Error()
}
