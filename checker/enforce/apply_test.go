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
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quirkcheck/quirkcheck/checker/store"
)

// machine is a fake: attributes, maps and a journal that remember.
type machine struct {
	mu        sync.Mutex
	attrs     map[string]string
	log       []string // writes, suspends and resumes in order
	kernel    func(m *machine, name, value string) error
	keys      map[string]Key
	suspend   error
	journal   []store.Write
	jErr      error
	inside    int // writes going on at this moment
	most      int
	asleep    bool // a map is suspended
	inSuspend int  // journal calls meanwhile
}

// takes is a kernel that takes every value.
func takes(m *machine, name, value string) error { m.attrs[name] = value; return nil }

func (m *machine) Read(name string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.attrs[name]
	if !ok {
		return "", fs.ErrNotExist
	}
	return v, nil
}

func (m *machine) Write(name, value string) error {
	m.mu.Lock()
	m.inside++
	m.most = max(m.most, m.inside)
	m.mu.Unlock()
	time.Sleep(time.Millisecond)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inside--
	if _, ok := m.attrs[name]; !ok {
		return fs.ErrNotExist
	}
	m.log = append(m.log, name+"="+value)
	return m.kernel(m, name, value)
}

func (m *machine) Suspend(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log = append(m.log, "suspend "+name)
	m.asleep = true
	return m.suspend
}

func (m *machine) Resume(_ context.Context, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log = append(m.log, "resume "+name)
	m.asleep = false
	return nil
}

func (m *machine) Plan(_ context.Context, w store.Write) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asleep {
		m.inSuspend++
	}
	if m.jErr != nil {
		return 0, m.jErr
	}
	w.ID, w.State = int64(len(m.journal)+1), store.Planned
	m.journal = append(m.journal, w)
	return w.ID, nil
}

func (m *machine) Done(_ context.Context, id int64, state store.State, readBack string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asleep {
		m.inSuspend++
	}
	m.journal[id-1].State, m.journal[id-1].ReadBack = state, readBack
	return nil
}

func (m *machine) states() []string {
	var out []string
	for _, w := range m.journal {
		out = append(out, fmt.Sprintf("%s %s>%s %v %s", w.Attr[strings.LastIndexByte(w.Attr, '/')+1:], w.Old, w.New, w.State, w.ReadBack))
	}
	return out
}

const attr = "sys/block/sda/queue/max_sectors_kb"

func fake(kernel func(*machine, string, string) error) *machine {
	return &machine{attrs: map[string]string{attr: "4096", "sys/block/sda/queue/read_ahead_kb": "128"}, kernel: kernel,
		keys: map[string]Key{"sda": {Device: "sda", DiskSeq: u(7), Identity: "scsi|ATA|ST380013AS|3.20"}}}
}

func (m *machine) env() Env {
	return Env{Attrs: m, Maps: m, BootID: "boot-1", Tool: "test", Run: "r", Now: func() time.Time { return time.Unix(1, 0) },
		Identify: func(_ context.Context, device string) (Key, error) {
			k, ok := m.keys[device]
			if !ok {
				return Key{}, errors.New("the device is gone")
			}
			return k, nil
		}}
}

func onePlan(t *testing.T) Plan {
	t.Helper()
	p := MakePlan(report("confirmed", disk("sda", 4096, 1024)), Options{})
	if len(p.Steps) != 1 {
		t.Fatal(brief(p))
	}
	return p
}

func TestApplyReportsWhatTheKernelDid(t *testing.T) {
	for _, c := range []struct {
		name    string
		kernel  func(*machine, string, string) error
		before  func(*machine)
		outcome Outcome
		after   string
		says    string
		writes  int
		journal []string
	}{
		{"as written", takes, nil, Written, "512", "", 1, []string{"max_sectors_kb 4096>512 written 512"}},
		{"rounded down", func(m *machine, n, v string) error { m.attrs[n] = "508"; return nil }, nil, Rounded, "508", "", 1, []string{"max_sectors_kb 4096>512 written 508"}},
		{"clamped to a higher value", func(m *machine, n, v string) error { m.attrs[n] = "1024"; return nil }, nil, Clamped, "1024", "kept 1024", 1, []string{"max_sectors_kb 4096>512 written 1024"}},
		{"accepted and ignored", func(m *machine, n, v string) error { return nil }, nil, Clamped, "4096", "kept 4096", 1, []string{"max_sectors_kb 4096>512 written 4096"}},
		{"refused", func(m *machine, n, v string) error { return syscall.EINVAL }, nil, Failed, "", "EINVAL", 1, []string{"max_sectors_kb 4096>512 not-written 4096"}},
		{"read-only sysfs", func(m *machine, n, v string) error { return syscall.EROFS }, nil, Failed, "", "read-only", 1, []string{"max_sectors_kb 4096>512 not-written 4096"}},
		{"not root", func(m *machine, n, v string) error { return fs.ErrPermission }, nil, Failed, "", "needs root", 1, []string{"max_sectors_kb 4096>512 not-written 4096"}},
		{"unplugged between plan and write", takes, func(m *machine) { delete(m.keys, "sda") }, Failed, "", "gone", 0, nil},
		{"another disk bears the name", takes, func(m *machine) { m.keys["sda"] = Key{Identity: "scsi|ACME|X|1"} }, Failed, "", "another device", 0, nil},
		{"the same model plugged in again", takes, func(m *machine) { k := m.keys["sda"]; k.DiskSeq = u(8); m.keys["sda"] = k }, Failed, "", "another device", 0, nil},
		{"a kernel without diskseq", takes, func(m *machine) { k := m.keys["sda"]; k.DiskSeq = nil; m.keys["sda"] = k }, Written, "512", "", 1, []string{"max_sectors_kb 4096>512 written 512"}},
		{"changed in between to a satisfying value", takes, func(m *machine) { m.attrs[attr] = "256" }, Already, "256", "", 0, nil},
		{"changed in between to another", takes, func(m *machine) { m.attrs[attr] = "2048" }, Failed, "", "changed from 4096 to 2048", 0, nil},
		{"the journal is full", takes, func(m *machine) { m.jErr = syscall.ENOSPC }, Failed, "", "nothing was written", 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := fake(c.kernel)
			if c.before != nil {
				c.before(m)
			}
			res, err := Apply(t.Context(), onePlan(t), m.env(), m)
			if err != nil {
				t.Fatal(err)
			}
			s := res.Steps[0]
			if s.Outcome != c.outcome || s.After != c.after || !strings.Contains(s.Error, c.says) || (c.says == "") != (s.Error == "") {
				t.Errorf("%s after %q error %q; want %s after %q saying %q", s.Outcome, s.After, s.Error, c.outcome, c.after, c.says)
			}
			if len(m.log) != c.writes {
				t.Errorf("%d writes, want %d: %v", len(m.log), c.writes, m.log)
			}
			if diff := cmp.Diff(c.journal, m.states()); diff != "" {
				t.Errorf("journal (-want +got)\n%s", diff)
			}
			if res.Complete() != c.outcome.Good() {
				t.Errorf("complete %v for %s", res.Complete(), c.outcome)
			}
		})
	}
}

func TestSideEffectOnReadAheadIsPutBack(t *testing.T) {
	m := fake(func(m *machine, n, v string) error {
		m.attrs[n] = v
		if n == attr {
			m.attrs["sys/block/sda/queue/read_ahead_kb"] = "1024"
		}
		return nil
	})
	res, err := Apply(t.Context(), onePlan(t), m.env(), m)
	if err != nil || !res.Complete() {
		t.Fatal(err, res)
	}
	if got := m.attrs["sys/block/sda/queue/read_ahead_kb"]; got != "128" {
		t.Errorf("read_ahead_kb %s, want 128 again", got)
	}
	if len(res.Steps[0].Also) != 1 || !strings.Contains(res.Steps[0].Also[0], "from 128 to 1024; put back") {
		t.Errorf("said %q", res.Steps[0].Also)
	}
}

func mpathMachine() (*machine, Plan) {
	a, b := disk("sda", 1280, 1024), disk("sdb", 1280, 1024)
	b.Limits.DiskSeq = u(8)
	a.Holders, b.Holders = []string{"dm-0"}, []string{"dm-0"}
	m0 := mapDevice()
	m := &machine{attrs: map[string]string{attr: "1280", "sys/block/sdb/queue/max_sectors_kb": "1280", "sys/block/dm-0/queue/max_sectors_kb": "1280"}, kernel: takes,
		keys: map[string]Key{"sda": keyOf(a), "sdb": keyOf(b), "dm-0": keyOf(m0)}}
	return m, MakePlan(report("confirmed", a, b, m0), Options{AllowStacked: true})
}

func TestMultipathSequence(t *testing.T) {
	want := []string{"sys/block/dm-0/queue/max_sectors_kb=512", "suspend mp", attr + "=512", "sys/block/sdb/queue/max_sectors_kb=512", "resume mp"}
	m, p := mpathMachine()
	res, err := Apply(t.Context(), p, m.env(), m)
	if err != nil || !res.Complete() {
		t.Fatalf("%v %+v", err, res)
	}
	if diff := cmp.Diff(want, m.log); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	i := slices.IndexFunc(m.journal, func(w store.Write) bool { return w.Attr == "dm-map/mp" })
	if i < 0 || m.journal[i].State != store.Reverted {
		t.Errorf("the suspend stands in the journal as %+v", m.journal)
	}
	// Between suspend and resume nothing may touch the journal: it may lie on
	// the map.
	if m.inSuspend != 0 {
		t.Errorf("%d journal calls while the map was suspended", m.inSuspend)
	}
}

func TestASuspendedMapIsAlwaysResumed(t *testing.T) {
	for name, edit := range map[string]func(*machine, context.CancelFunc){
		"a path refuses": func(m *machine, _ context.CancelFunc) {
			m.kernel = func(m *machine, n, v string) error {
				if n == attr {
					return syscall.EINVAL
				}
				return takes(m, n, v)
			}
		},
		"a path is gone": func(m *machine, _ context.CancelFunc) { delete(m.keys, "sda") },
		"interrupted": func(m *machine, cancel context.CancelFunc) {
			m.kernel = func(m *machine, n, v string) error {
				if n == attr {
					cancel()
				}
				return takes(m, n, v)
			}
		},
		"the suspend fails half-way": func(m *machine, _ context.CancelFunc) { m.suspend = errors.New("device busy") },
	} {
		t.Run(name, func(t *testing.T) {
			m, p := mpathMachine()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			edit(m, cancel)
			res, _ := Apply(ctx, p, m.env(), m)
			if last := m.log[len(m.log)-1]; last != "resume mp" {
				t.Errorf("ended with %q: %v", last, m.log)
			}
			if res.Complete() {
				t.Error("called complete")
			}
		})
	}
}

func TestManyDisksAreWrittenOnceSideBySide(t *testing.T) {
	m := &machine{attrs: map[string]string{}, kernel: takes, keys: map[string]Key{}}
	r := report("confirmed")
	for i := range 200 {
		d := disk("sd"+strconv.Itoa(i), 4096, 1024)
		d.Limits.DiskSeq = u(uint64(i))
		r.Devices = append(r.Devices, d)
		r.Findings = append(r.Findings, finding(d, "confirmed"))
		m.attrs[attrOf(d.Name)] = "4096"
		m.keys[d.Name] = keyOf(d)
	}
	res, err := Apply(t.Context(), MakePlan(r, Options{}), m.env(), m)
	if err != nil || !res.Complete() {
		t.Fatal(err)
	}
	if len(m.log) != 200 {
		t.Errorf("%d writes for 200 disks", len(m.log))
	}
	if m.most < 2 || m.most > 16 {
		t.Errorf("%d writes at a time, want 2 to 16", m.most)
	}
	m.most = 0
	for n := range m.attrs {
		m.attrs[n] = "4096"
	}
	if _, err := Apply(t.Context(), MakePlan(r, Options{Kernel: release(t, "6.13.1")}), m.env(), m); err != nil {
		t.Fatal(err)
	}
	if m.most != 1 {
		t.Errorf("%d writes at a time on a kernel that deadlocks, want 1", m.most)
	}
}

func TestRevert(t *testing.T) {
	for _, c := range []struct {
		name    string
		release string
		edit    func(*machine)
		outcome Outcome
		value   string
		wrote   []string
		state   store.State
	}{
		{"a number goes back as the number", "6.1.190", nil, Restored, "4096", []string{attr + "=4096"}, store.Reverted},
		{"a default goes back as the default", "6.12.117", func(m *machine) { m.journal[0].WasDefault = true }, Restored, "4096", []string{attr + "=0"}, store.Reverted},
		{"before 6.3 a default goes back as a number", "6.1.190", func(m *machine) { m.journal[0].WasDefault = true }, Restored, "4096", []string{attr + "=4096"}, store.Reverted},
		{"a default that is another now goes back as the number", "6.18.15", func(m *machine) { m.journal[0].WasDefault, m.journal[0].Old = true, "1280" }, Restored, "1280", []string{attr + "=0", attr + "=1280"}, store.Reverted},
		{"a foreign change is left alone", "6.1.190", func(m *machine) { m.attrs[attr] = "256" }, Foreign, "256", nil, store.Foreign},
		{"another disk bears the name", "6.1.190", func(m *machine) { m.keys["sda"] = Key{Identity: "x"} }, Gone, "512", nil, store.Gone},
		{"back at the old value already", "6.1.190", func(m *machine) { m.attrs[attr] = "4096" }, Restored, "4096", nil, store.Reverted},
		{"the device is gone", "6.1.190", func(m *machine) { delete(m.keys, "sda"); delete(m.attrs, attr) }, Gone, "", nil, store.Gone},
		{"the kernel refuses", "6.1.190", func(m *machine) { m.kernel = func(*machine, string, string) error { return syscall.EINVAL } }, Failed, "512", []string{attr + "=4096"}, store.Written},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := fake(takes)
			if res, err := Apply(t.Context(), onePlan(t), m.env(), m); err != nil || !res.Complete() {
				t.Fatal(err, res)
			}
			m.log = nil
			m.kernel = func(m *machine, n, v string) error {
				if v == "0" {
					v = "4096" // the default
				}
				return takes(m, n, v)
			}
			if c.edit != nil {
				c.edit(m)
			}
			res, err := Revert(t.Context(), slices.Clone(m.journal), m.env(), m, release(t, c.release))
			if err != nil {
				t.Fatal(err)
			}
			if len(res.Steps) != 1 || res.Steps[0].Outcome != c.outcome {
				t.Fatalf("%+v, want %s", res.Steps, c.outcome)
			}
			if m.attrs[attr] != c.value || m.journal[0].State != c.state {
				t.Errorf("value %q state %v, want %q %v", m.attrs[attr], m.journal[0].State, c.value, c.state)
			}
			if diff := cmp.Diff(c.wrote, m.log); diff != "" {
				t.Errorf("writes (-want +got)\n%s", diff)
			}
		})
	}
}

func TestRevertGoesBackToBeforeTheFirstWrite(t *testing.T) {
	m := fake(takes)
	if _, err := Apply(t.Context(), onePlan(t), m.env(), m); err != nil {
		t.Fatal(err)
	}
	again := MakePlan(report("confirmed", disk("sda", 512, 512)), Options{})
	if res, err := Apply(t.Context(), again, m.env(), m); err != nil || !res.Complete() {
		t.Fatal(err, res)
	}
	res, err := Revert(t.Context(), slices.Clone(m.journal), m.env(), m, release(t, "6.1.190"))
	if err != nil || !res.Complete() || m.attrs[attr] != "4096" {
		t.Errorf("%v %+v, value %s, want 4096", err, res, m.attrs[attr])
	}
	if res, err = Revert(t.Context(), slices.Clone(m.journal), m.env(), m, release(t, "6.1.190")); err != nil || len(res.Steps) != 0 {
		t.Errorf("a second revert did %+v", res.Steps)
	}
}

func TestRevertFollowsAnUnbrokenChain(t *testing.T) {
	for name, c := range map[string]struct {
		edit  func(*machine)
		value string
		older store.State
	}{
		"somebody set a value in between": {func(m *machine) { m.attrs[attr] = "1024" }, "1024", store.Foreign},
		"another disk got the name": {func(m *machine) {
			m.attrs[attr] = "1024"
			m.keys["sda"] = Key{Device: "sda", DiskSeq: u(99), Identity: "scsi|ATA|ST380013AS|3.20"}
		}, "1024", store.Gone},
	} {
		t.Run(name, func(t *testing.T) {
			m := fake(takes)
			if res, err := Apply(t.Context(), onePlan(t), m.env(), m); err != nil || !res.Complete() {
				t.Fatal(err, res)
			}
			c.edit(m)
			d := disk("sda", 1024, 1024)
			d.Limits.DiskSeq = m.keys["sda"].DiskSeq
			if res, err := Apply(t.Context(), MakePlan(report("confirmed", d), Options{}), m.env(), m); err != nil || !res.Complete() {
				t.Fatal(err, res)
			}
			res, err := Revert(t.Context(), slices.Clone(m.journal), m.env(), m, release(t, "6.1.190"))
			if err != nil || !res.Complete() || m.attrs[attr] != c.value || m.journal[0].State != c.older {
				t.Errorf("%v %+v: value %s, first line %s; want %s, %s", err, res.Steps, m.attrs[attr], m.journal[0].State, c.value, c.older)
			}
		})
	}
}

func TestRevertKeepsAMapBelowItsPaths(t *testing.T) {
	m, p := mpathMachine()
	if res, err := Apply(t.Context(), p, m.env(), m); err != nil || !res.Complete() {
		t.Fatal(err, res)
	}
	env := m.env()
	env.Lowest = func(device string) uint64 {
		if device != "dm-0" {
			return 0
		}
		a, _ := strconv.ParseUint(m.attrs[attr], 10, 64)
		b, _ := strconv.ParseUint(m.attrs["sys/block/sdb/queue/max_sectors_kb"], 10, 64)
		return min(a, b)
	}
	onlyMap := slices.DeleteFunc(slices.Clone(m.journal), func(w store.Write) bool { return w.Device != "dm-0" })
	res, err := Revert(t.Context(), onlyMap, env, m, release(t, "6.1.190"))
	if err != nil || res.Complete() || m.attrs["sys/block/dm-0/queue/max_sectors_kb"] != "512" {
		t.Errorf("the map alone: %v %+v, map at %s", err, res.Steps, m.attrs["sys/block/dm-0/queue/max_sectors_kb"])
	}
	res, err = Revert(t.Context(), slices.Clone(m.journal), env, m, release(t, "6.1.190"))
	if err != nil || !res.Complete() || m.attrs["sys/block/dm-0/queue/max_sectors_kb"] != "1280" {
		t.Errorf("all: %v %+v, map at %s", err, res.Steps, m.attrs["sys/block/dm-0/queue/max_sectors_kb"])
	}
}

func TestRecoverTakesARoundedWriteForOurs(t *testing.T) {
	m := fake(takes)
	if _, err := m.Plan(t.Context(), m.env().write(onePlan(t).Steps[0], attr, "4096", "512")); err != nil {
		t.Fatal(err)
	}
	m.attrs[attr] = "508" // killed after the write, which the kernel rounded
	if _, err := Recover(t.Context(), slices.Clone(m.journal), m.env(), m); err != nil {
		t.Fatal(err)
	}
	if w := m.journal[0]; w.State != store.Written || w.ReadBack != "508" {
		t.Errorf("settled as %s %s", w.State, w.ReadBack)
	}
}

func TestNothingOfAnotherBootIsWrittenBack(t *testing.T) {
	m := fake(takes)
	if _, err := Apply(t.Context(), onePlan(t), m.env(), m); err != nil {
		t.Fatal(err)
	}
	env := m.env()
	env.BootID = "boot-2"
	res, err := Revert(t.Context(), slices.Clone(m.journal), env, m, release(t, "6.1.190"))
	if err != nil || len(res.Steps) != 0 || m.attrs[attr] != "512" {
		t.Errorf("%v %+v, value %s", err, res, m.attrs[attr])
	}
}

// TestKilledAtAnyPoint ends a run before each of its calls to the outside; the
// next one must settle it: the map active, the journal without open lines, and
// a revert that takes back exactly what was written.
func TestKilledAtAnyPoint(t *testing.T) {
	for n := 1; ; n++ {
		m, p := mpathMachine()
		k := &killer{machine: m, left: n}
		env := m.env()
		env.Attrs, env.Maps = k, k
		done := make(chan bool, 1)
		go func() {
			defer func() { done <- recover() == nil }()
			for _, i := range []int{0} {
				_ = i
				steps := make([]int, len(p.Steps))
				for j := range steps {
					steps[j] = j
				}
				applyGroup(t.Context(), p, steps, env, k, make([]StepResult, len(p.Steps)))
			}
		}()
		finished := <-done
		if _, err := Recover(t.Context(), slices.Clone(m.journal), m.env(), m); err != nil {
			t.Fatalf("killed at call %d: %v", n, err)
		}
		for _, w := range m.journal {
			if w.State == store.Planned {
				t.Fatalf("killed at call %d: %s is open still", n, w.Attr)
			}
		}
		suspends, resumes := 0, 0
		for _, l := range m.log {
			if l == "suspend mp" {
				suspends++
			} else if l == "resume mp" {
				resumes++
			}
		}
		if suspends > resumes {
			t.Fatalf("killed at call %d: the map is suspended: %v", n, m.log)
		}
		if _, err := Revert(t.Context(), slices.Clone(m.journal), m.env(), m, release(t, "6.1.190")); err != nil {
			t.Fatal(err)
		}
		for name, v := range m.attrs {
			if strings.HasSuffix(name, "max_sectors_kb") && v != "1280" {
				t.Fatalf("killed at call %d: %s is %s after revert", n, name, v)
			}
		}
		if finished {
			if n < 10 {
				t.Fatalf("finished after %d calls", n)
			}
			return
		}
	}
}

// killer panics before the n-th call, as a SIGKILL would end the process; the
// call itself is not made.
type killer struct {
	*machine
	left int
}

func (k *killer) tick() {
	if k.left--; k.left == 0 {
		panic("killed")
	}
}
func (k *killer) Read(n string) (string, error) { k.tick(); return k.machine.Read(n) }
func (k *killer) Write(n, v string) error       { k.tick(); return k.machine.Write(n, v) }
func (k *killer) Suspend(ctx context.Context, n string) error {
	k.tick()
	return k.machine.Suspend(ctx, n)
}
func (k *killer) Resume(ctx context.Context, n string) error {
	k.tick()
	return k.machine.Resume(ctx, n)
}
func (k *killer) Plan(ctx context.Context, w store.Write) (int64, error) {
	k.tick()
	return k.machine.Plan(ctx, w)
}
func (k *killer) Done(ctx context.Context, id int64, s store.State, r string) error {
	k.tick()
	return k.machine.Done(ctx, id, s, r)
}
