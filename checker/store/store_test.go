package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestPlanDonePendingHistory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lib", "quirkcheck", "state.db")
	s := opened(t, path)
	ctx := t.Context()

	var want []Write
	for i := range 6 {
		w := numbered(i)
		w.BootID = []string{"now", "before"}[i%2]
		if i == 0 {
			w.DiskSeq, w.HasDiskSeq = math.MaxUint64, true
		}
		given := w
		given.ID, given.State, given.ReadBack, given.Time = 99, Gone, "x", w.Time.In(time.FixedZone("east", 3600))
		id, err := s.Plan(ctx, given)
		if err != nil {
			t.Fatal(err)
		}
		w.ID, w.State = id, Planned
		want = append(want, w)
	}
	done := func(i int, state State, readBack string) {
		t.Helper()
		if err := s.Done(ctx, want[i].ID, state, readBack); err != nil {
			t.Fatal(err)
		}
		want[i].State = state
		if readBack != "" {
			want[i].ReadBack = readBack
		}
	}
	done(0, Written, "512")
	done(2, NotWritten, "")
	done(4, Written, "508")
	done(4, Written, "") // once more is no error and loses nothing
	done(4, Reverted, "")
	done(1, Written, strings.Repeat("long ", 200))

	check := func(s *Store) {
		t.Helper()
		got, err := s.Pending(ctx, "now")
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]Write{want[0]}, got); d != "" {
			t.Errorf("Pending(now) (-want +got):\n%s", d)
		}
		if got, err = s.Pending(ctx, "before"); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]Write{want[1], want[3], want[5]}, got); d != "" {
			t.Errorf("Pending(before) (-want +got):\n%s", d)
		}
		if got, err = s.Pending(ctx, "never"); err != nil || got != nil {
			t.Errorf("Pending(never) = %v, %v, want none", got, err)
		}
		if got, err = s.History(ctx, 0); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]Write{want[5], want[4], want[3], want[2], want[1], want[0]}, got); d != "" {
			t.Errorf("History(0) (-want +got):\n%s", d)
		}
		if got, err = s.History(ctx, 2); err != nil || len(got) != 2 || got[0].ID != want[5].ID {
			t.Errorf("History(2) = %v, %v, want the last two", got, err)
		}
	}
	check(s)
	ro, err := OpenReadOnly(path) // beside the open one
	if err != nil {
		t.Fatal(err)
	}
	check(ro)
	if _, err := ro.Plan(ctx, want[0]); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("Plan on a state opened read-only: %v, want fs.ErrPermission", err)
	}
	ro.Close()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	check(opened(t, path))
}

func TestModes(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o002))
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "b", "state.db")
	opened(t, path)
	l, err := Lock(path, "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Unlock()
	for name, want := range map[string]fs.FileMode{"a": 0o700, "a/b": 0o700, "a/b/state.db": 0o600, "a/b/state.db-journal": 0o600, "a/b/state.db.lock": 0o600} {
		fi, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		} else if fi.Mode().Perm() != want {
			t.Errorf("%s has mode %04o, want %04o", name, fi.Mode().Perm(), want)
		}
	}
}

func TestOddPaths(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a b", "100%", "q?mode=memory", "h#x", "%41", ":memory:", "file:x", "ü", "a&b=c"} {
		path := filepath.Join(dir, name)
		s, err := Open(path)
		if err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		if _, err := s.Plan(t.Context(), numbered(1)); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		s.Close()
		if fi, err := os.Stat(path); err != nil || fi.Size() == 0 {
			t.Errorf("%q: the database is not there: %v", name, err)
		}
	}
}

func TestSymlinksMeet(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link.db")
	if err := os.Symlink("state.db", link); err != nil {
		t.Fatal(err)
	}
	real := filepath.Join(dir, "state.db")
	opened(t, real)
	if got := opened(t, link).Path(); got != real {
		t.Errorf("Path of a link = %s, want %s", got, real)
	}
	l, err := Lock(real, "one")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Unlock()
	var held *HeldError
	if _, err := Lock(link, "two"); !errors.As(err, &held) {
		t.Errorf("Lock through a link: %v, want *HeldError", err)
	}
}

func TestPlanRefuses(t *testing.T) {
	s := opened(t, filepath.Join(t.TempDir(), "state.db"))
	for _, c := range []struct {
		name string
		edit func(*Write)
		want string
	}{
		{"no boot id", func(w *Write) { w.BootID = "" }, "boot id is missing"},
		{"no device", func(w *Write) { w.Device = "" }, "device is missing"},
		{"no identity", func(w *Write) { w.Identity = "" }, "identity is missing"},
		{"no attribute", func(w *Write) { w.Attr = "" }, "attribute is missing"},
		{"absolute attribute", func(w *Write) { w.Attr = "/sys/x" }, "not a path relative"},
		{"escaping attribute", func(w *Write) { w.Attr = "sys/../etc/passwd" }, "not a path relative"},
		{"root as attribute", func(w *Write) { w.Attr = "." }, "not a path relative"},
		{"no time", func(w *Write) { w.Time = time.Time{} }, "time is missing"},
		{"long identity", func(w *Write) { w.Identity = strings.Repeat("x", 1025) }, "1025 bytes, more than 1024"},
		{"long old value", func(w *Write) { w.Old = strings.Repeat("x", 4097) }, "4097 bytes"},
		{"NUL in old value", func(w *Write) { w.Old = "1\x002" }, "not plain text"},
		{"bad UTF-8", func(w *Write) { w.Identity = "\xff" }, "not plain text"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := numbered(1)
			c.edit(&w)
			_, err := s.PlanAll(t.Context(), []Write{numbered(0), w})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if got, err := s.History(t.Context(), 0); err != nil || len(got) != 0 {
		t.Errorf("after refused plans: %v, %v, want nothing", got, err)
	}
	w := numbered(1)
	w.Old = strings.Repeat("x", 4096)
	w.Quirk, w.Tool, w.Group, w.New = "", "", "", ""
	if _, err := s.Plan(t.Context(), w); err != nil {
		t.Errorf("longest old value: %v", err)
	}
}

func TestDoneTransitions(t *testing.T) {
	s := opened(t, filepath.Join(t.TempDir(), "state.db"))
	all := []State{Planned, Written, NotWritten, Reverted, Foreign, Gone}
	may := map[State][]State{
		Planned: {Written, NotWritten, Reverted, Foreign, Gone},
		Written: {Written, Reverted, Foreign, Gone},
		// These are ends.
		NotWritten: {NotWritten}, Reverted: {Reverted}, Foreign: {Foreign}, Gone: {Gone},
	}
	for _, from := range all {
		for _, to := range append(all, "", "nonsense") {
			id, err := s.Plan(t.Context(), numbered(1))
			if err != nil {
				t.Fatal(err)
			}
			if from != Planned {
				if err := s.Done(t.Context(), id, from, ""); err != nil {
					t.Fatal(err)
				}
			}
			err = s.Done(t.Context(), id, to, "")
			allowed := false
			for _, m := range may[from] {
				allowed = allowed || m == to
			}
			if allowed != (err == nil) {
				t.Errorf("%s to %q: %v", from, to, err)
			}
			if err != nil && to.valid() && to != Planned && !errors.Is(err, ErrSettled) {
				t.Errorf("%s to %s: %v, want ErrSettled", from, to, err)
			}
		}
	}
	if err := s.Done(t.Context(), 1<<40, Written, ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("unknown id: %v, want fs.ErrNotExist", err)
	}
}

// What a device answered must not keep the outcome from being noted.
func TestReadBackIsEvidence(t *testing.T) {
	s := opened(t, filepath.Join(t.TempDir(), "state.db"))
	for _, c := range []struct{ name, in, want string }{
		{"plain", "512", "512"},
		{"NUL", "5\x00", "5\uFFFD"},
		{"bad UTF-8", "5\xff\xfe2", "5\uFFFD2"},
		{"too long", strings.Repeat("x", 5000), strings.Repeat("x", 4096)},
		{"too long, cut in a character", "x" + strings.Repeat("ü", 3000), "x" + strings.Repeat("ü", 2047)},
	} {
		id, err := s.Plan(t.Context(), numbered(1))
		if err != nil {
			t.Fatal(err)
		}
		cancelled, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Done(cancelled, id, Written, c.in); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		got, err := s.History(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		if got[0].ReadBack != c.want {
			t.Errorf("%s: got %.20q, want %.20q", c.name, got[0].ReadBack, c.want)
		}
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Plan(cancelled, numbered(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("Plan with a cancelled context: %v", err)
	}
}

func TestPersisted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := opened(t, path)
	ctx := t.Context()
	a1, a2, b := note("/etc/udev/rules.d/65-a.rules", 'a'), note("/etc/udev/rules.d/65-a.rules", '1'), note("/run/b", 'b')
	a2.Time = a1.Time.Add(time.Second)
	b.Quirks = []string{}
	for _, p := range []Persist{a2, b, a1, a1} {
		if err := s.SetPersisted(ctx, p); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.Persisted(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]Persist{a1, a2, b}, got); d != "" {
		t.Errorf("Persisted (-want +got):\n%s", d)
	}
	for range 2 {
		if err := s.ForgetPersisted(ctx, a1.File); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := s.Persisted(ctx); err != nil || len(got) != 1 || got[0].File != b.File {
		t.Errorf("after ForgetPersisted: %v, %v, want %s alone", got, err, b.File)
	}
	for name, edit := range map[string]func(*Persist){
		"relative file":  func(p *Persist) { p.File = "etc/x" },
		"unclean file":   func(p *Persist) { p.File = "/etc/../x" },
		"short sum":      func(p *Persist) { p.SHA256 = "ab" },
		"upper-case sum": func(p *Persist) { p.SHA256 = strings.Repeat("A", 64) },
		"empty quirk":    func(p *Persist) { p.Quirks = []string{""} },
		"no time":        func(p *Persist) { p.Time = time.Time{} },
		"too many":       func(p *Persist) { p.Quirks = strings.Split(strings.Repeat("xxxxxxxx ", 200000), " ")[:200000] },
	} {
		p := note("/etc/x", 'a')
		edit(&p)
		if err := s.SetPersisted(ctx, p); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestOpenReadOnlyWithoutState(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "state.db"), filepath.Join(dir, "no", "state.db")} {
		if _, err := OpenReadOnly(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("OpenReadOnly(%s): %v, want fs.ErrNotExist", path, err)
		}
	}
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenReadOnly(empty); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("empty file: %v, want fs.ErrNotExist", err)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, "*")); len(names) != 1 {
		t.Errorf("OpenReadOnly made files: %v", names)
	}
}

func TestSettingsHold(t *testing.T) {
	s := opened(t, filepath.Join(t.TempDir(), "state.db"))
	for pragma, want := range map[string]string{"journal_mode": "persist", "synchronous": "2", "trusted_schema": "0",
		"cell_size_check": "1", "temp_store": "2", "busy_timeout": "5000", "user_version": "1"} {
		var got string
		if err := s.db.QueryRowContext(t.Context(), "PRAGMA "+pragma).Scan(&got); err != nil || got != want {
			t.Errorf("PRAGMA %s = %q, %v, want %q", pragma, got, err, want)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	const stores, goroutines, each = 2, 8, 5
	var wg sync.WaitGroup
	for range stores { // they also race to create the file
		wg.Go(func() {
			s, err := Open(path)
			if err != nil {
				t.Error(err)
				return
			}
			defer s.Close()
			var inner sync.WaitGroup
			for range goroutines {
				inner.Go(func() {
					for i := range each {
						id, err := s.Plan(t.Context(), numbered(i))
						if err == nil {
							err = s.Done(t.Context(), id, Written, "512")
						}
						if err == nil {
							_, err = s.Pending(t.Context(), "b1")
						}
						if err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			inner.Wait()
		})
	}
	wg.Wait()
	got, err := opened(t, path).History(t.Context(), 0)
	if err != nil || len(got) != stores*goroutines*each {
		t.Fatalf("%d writes, %v, want %d", len(got), err, stores*goroutines*each)
	}
	for _, w := range got {
		if w.State != Written {
			t.Errorf("write %d is %s", w.ID, w.State)
		}
	}
}

func TestMigration(t *testing.T) {
	one := migrations()[:1]
	two := append(migrations()[:1:1], `ALTER TABLE writes ADD COLUMN extra TEXT NOT NULL DEFAULT 'x'; CREATE TABLE more (a TEXT) STRICT;`)
	path := filled(t, 20)

	// An old file is read without being changed, and is brought forward to be written.
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	ro, err := openReadOnly(path, two)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := ro.History(t.Context(), 0); err != nil || len(got) != 20 {
		t.Errorf("old file read-only: %d writes, %v, want 20", len(got), err)
	}
	ro.Close()
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("OpenReadOnly changed the file: %v", err)
	}
	s, err := open(path, two)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.History(t.Context(), 0); err != nil || len(got) != 20 {
		t.Errorf("after the migration: %d writes, %v, want 20", len(got), err)
	}
	if _, err := s.Plan(t.Context(), numbered(1)); err != nil {
		t.Error(err)
	}
	if err := s.Done(t.Context(), 1, Written, ""); err != nil {
		t.Error(err)
	}
	s.Close()

	// There is no way back.
	for name, open := range map[string]func(string, []string) (*Store, error){"Open": open, "OpenReadOnly": openReadOnly} {
		_, err := open(path, one)
		var corrupt *CorruptError
		if !errors.As(err, &corrupt) || !corrupt.Newer || !strings.Contains(err.Error(), path) || !strings.Contains(Hint(err), "newer quirkcheck") {
			t.Errorf("%s of a newer file: %v, hint %q", name, err, Hint(err))
		}
	}

	// A step that fails changes nothing.
	path = filled(t, 3)
	if _, err := open(path, append(one[:1:1], `CREATE TABLE good (a TEXT) STRICT; CREATE TABLE bad (`)); err == nil {
		t.Fatal("a migration with a syntax error succeeded")
	}
	if got, err := opened(t, path).History(t.Context(), 0); err != nil || len(got) != 3 {
		t.Errorf("after a failed migration: %d writes, %v, want 3", len(got), err)
	}
}

func TestConcurrentMigration(t *testing.T) {
	two := append(migrations(), `CREATE TABLE more (a TEXT) STRICT`)
	path := filled(t, 3)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			s, err := open(path, two)
			if err != nil {
				t.Error(err)
				return
			}
			s.Close()
		})
	}
	wg.Wait()
}

// An interrupted transaction is rolled back, on a copy where only reading was asked.
func TestInterruptedTransaction(t *testing.T) {
	const n = 200
	whole := func(s *Store, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		got, err := s.History(t.Context(), 0)
		if err != nil || len(got) != n {
			t.Fatalf("%d writes, %v, want %d", len(got), err, n)
		}
		for _, w := range got {
			if w.Old == "torn" {
				t.Fatalf("write %d is torn", w.ID)
			}
		}
	}
	path := hot(t, n)
	before := snapshot(t, path)
	t.Setenv("TMPDIR", t.TempDir())
	whole(OpenReadOnly(path))
	if after := snapshot(t, path); after != before {
		t.Error("OpenReadOnly changed the file or its journal")
	}
	if left, _ := os.ReadDir(os.Getenv("TMPDIR")); len(left) != 0 {
		t.Errorf("OpenReadOnly left %v", left)
	}
	whole(Open(path))
	whole(OpenReadOnly(path))
}

func snapshot(t *testing.T, path string) string {
	t.Helper()
	var all string
	for _, suffix := range []string{"", "-journal"} {
		data, err := os.ReadFile(path + suffix)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		all += fmt.Sprint(len(data), ":") + string(data)
	}
	return all
}

func TestLoosePermissions(t *testing.T) {
	for _, mode := range []fs.FileMode{0o602, 0o620, 0o666} {
		path := filled(t, 1)
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "others may write") {
			t.Errorf("Open of a file with mode %04o: %v, want fs.ErrPermission", mode, err)
		}
		s, err := OpenReadOnly(path)
		if err != nil {
			t.Errorf("OpenReadOnly of a file with mode %04o: %v", mode, err)
			continue
		}
		s.Close()
	}
	if os.Geteuid() == 0 {
		path := filled(t, 1)
		if err := os.Chown(path, 12345, -1); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("Open of another user's file: %v, want fs.ErrPermission", err)
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	for _, n := range []int{0, 1000, 100000} {
		path := filled(b, 1)
		s := opened(b, path)
		ws := make([]Write, n)
		for i := range ws {
			ws[i] = numbered(i)
		}
		if _, err := s.PlanAll(b.Context(), ws); err != nil {
			b.Fatal(err)
		}
		s.Close()
		b.Run(fmt.Sprintf("rows=%d", n), func(b *testing.B) {
			for b.Loop() {
				s, err := Open(path)
				if err != nil {
					b.Fatal(err)
				}
				s.Close()
			}
		})
	}
}

// BenchmarkOpenPlanDone is what one write to one device costs.
func BenchmarkOpenPlanDone(b *testing.B) {
	path := filepath.Join(b.TempDir(), "state.db")
	opened(b, path).Close()
	for b.Loop() {
		s, err := Open(path)
		if err != nil {
			b.Fatal(err)
		}
		id, err := s.Plan(b.Context(), numbered(1))
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Done(b.Context(), id, Written, "512"); err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}

// BenchmarkPlanAll500 plans 500 writes at once and settles each by itself.
func BenchmarkPlanAll500(b *testing.B) {
	s := opened(b, filepath.Join(b.TempDir(), "state.db"))
	ws := make([]Write, 500)
	for i := range ws {
		ws[i] = numbered(i)
	}
	for b.Loop() {
		ids, err := s.PlanAll(b.Context(), ws)
		if err != nil {
			b.Fatal(err)
		}
		for _, id := range ids {
			if err := s.Done(b.Context(), id, Written, "512"); err != nil {
				b.Fatal(err)
			}
		}
	}
}
