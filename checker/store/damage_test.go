package store

import (
	"bytes"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// damaged writes data as a state and opens it both ways. Each must give a Store
// or *CorruptError (read-only also fs.ErrNotExist for an empty file), and a file
// that is refused must not have changed. It reports whether Open refused.
func damaged(t *testing.T, path string, data []byte) (refused bool) {
	t.Helper()
	os.Remove(path + "-journal")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return openBoth(t, path, data)
}

func openBoth(t *testing.T, path string, data []byte) (refused bool) {
	t.Helper()
	for _, open := range []func(string) (*Store, error){OpenReadOnly, Open} {
		s, err := open(path)
		var corrupt *CorruptError
		refused = err != nil
		switch {
		case err == nil:
			use(t, s)
			s.Close()
		case errors.As(err, &corrupt):
			if !strings.Contains(err.Error(), path) || !strings.Contains(Hint(err), path) {
				t.Errorf("error %q, hint %q: want the path in both", err, Hint(err))
			}
			if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, data) {
				t.Errorf("the damaged file was changed (%v)", err)
			}
		case errors.Is(err, fs.ErrNotExist):
		default:
			t.Fatalf("%v (%T), want *CorruptError", err, err)
		}
	}
	return refused
}

// use calls everything; errors must be *CorruptError.
func use(t *testing.T, s *Store) {
	t.Helper()
	ctx := t.Context()
	check := func(what string, err error) {
		t.Helper()
		var corrupt *CorruptError
		if err != nil && !errors.As(err, &corrupt) && !(s.readOnly && errors.Is(err, fs.ErrPermission)) {
			t.Errorf("%s: %v, want *CorruptError", what, err)
		}
	}
	all, err := s.History(ctx, 0)
	check("History", err)
	for _, w := range all {
		if w.check() != nil {
			t.Errorf("History gives a write that Plan would refuse: %+v", w)
		}
	}
	_, err = s.Pending(ctx, "b1")
	check("Pending", err)
	_, err = s.Persisted(ctx)
	check("Persisted", err)
	id, err := s.Plan(ctx, numbered(1))
	check("Plan", err)
	if err == nil {
		check("Done", s.Done(ctx, id, Written, "512"))
	}
	check("SetPersisted", s.SetPersisted(ctx, note("/etc/x", 'c')))
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestDamagedFiles(t *testing.T) {
	whole := read(t, filled(t, 40))
	with := func(at int, b ...byte) []byte {
		d := slices.Clone(whole)
		copy(d[at:], b)
		return d
	}
	for _, c := range []struct {
		name string
		data []byte
		want string // in the error; "": opens
	}{
		{"zero length counts as none", nil, ""},
		{"whole", whole, ""},
		{"one byte", whole[:1], "damaged"},
		{"half a header", whole[:50], "damaged"},
		{"header alone", whole[:100], "damaged"},
		{"first page alone", whole[:4096], "damaged"},
		{"last page gone", whole[:len(whole)-4096], "damaged"},
		{"half of the last page gone", whole[:len(whole)-2048], "damaged"},
		{"text", []byte("# state of quirkcheck\n"), "not an SQLite database"},
		{"zeros", make([]byte, 8192), "not an SQLite database"},
		{"garbage of the right size", bytes.Repeat([]byte{0xa5, 0x13}, len(whole)/2), "not an SQLite database"},
		{"magic", with(3, 'X'), "not an SQLite database"},
		{"page size", with(16, 0xff, 0xff), "not an SQLite database"},
		{"write-ahead log in the header", with(18, 2, 2), "not an SQLite database"},
		{"newer schema", with(60, 0, 0, 0, 2), "newer quirkcheck"},
		{"negative schema", with(60, 0xff, 0xff, 0xff, 0xff), "version -1"},
		{"no schema version", with(60, 0, 0, 0, 0), "version 0"},
		{"another application", with(68, 1, 2, 3, 4), "not quirkcheck's"},
		{"first page's b-tree", with(100, 0xee), "damaged"},
		{"table's root page", with(4096, 0xee), "damaged"},
		{"pages of zeros", with(4096, make([]byte, 4096)...), "damaged"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.db")
			damaged(t, path, c.data)
			os.WriteFile(path, c.data, 0o600)
			os.Remove(path + "-journal")
			s, err := Open(path)
			if err == nil {
				s.Close()
			}
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("Open: %v, want %q", err, c.want)
			}
		})
	}
}

// TestEveryTruncation cuts the file at many lengths; none may pass as whole.
func TestEveryTruncation(t *testing.T) {
	whole := read(t, filled(t, 40))
	path := filepath.Join(t.TempDir(), "state.db")
	for n := 1; n < len(whole); n += 61 {
		if !damaged(t, path, whole[:n]) {
			t.Errorf("cut at %d of %d bytes: opened", n, len(whole))
		}
	}
}

// TestEveryFlippedByte flips bytes all over the file. A flip that nothing
// notices must not change what is read.
func TestEveryFlippedByte(t *testing.T) {
	source := filled(t, 20)
	whole := read(t, source)
	want := fmt.Sprint(opened(t, source).History(t.Context(), 0))
	path := filepath.Join(memory(t), "state.db")
	refused, noticed, harmless := 0, 0, 0
	for at := 0; at < len(whole); at++ {
		if at >= 200 && at%13 != 0 { // each byte of the header, one in thirteen of the pages
			continue
		}
		d := slices.Clone(whole)
		d[at] ^= 1 << (at % 8)
		if err := os.WriteFile(path, d, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := OpenReadOnly(path)
		var corrupt *CorruptError
		if err != nil {
			if !errors.As(err, &corrupt) {
				t.Fatalf("byte %d: %v, want *CorruptError", at, err)
			}
			refused++
			continue
		}
		got, err := s.History(t.Context(), 0)
		s.Close()
		switch {
		case errors.As(err, &corrupt):
			noticed++
		case err != nil:
			t.Fatalf("byte %d: %v, want *CorruptError", at, err)
		case fmt.Sprint(got, err) != want:
			t.Errorf("byte %d flipped: rows changed and nothing noticed", at)
		default:
			harmless++ // unused space, counters
		}
	}
	t.Logf("%d refused by Open, %d found by a row's checksum, %d harmless", refused, noticed, harmless)
	if refused == 0 || noticed == 0 {
		t.Error("one of the two checks found nothing")
	}
}

// memory returns a folder where a sync costs nothing, if there is one.
func memory(t testing.TB) string {
	t.Helper()
	if dir, err := os.MkdirTemp("/dev/shm", "quirkcheck-store-"); err == nil {
		t.Cleanup(func() { os.RemoveAll(dir) })
		return dir
	}
	return t.TempDir()
}

func TestDamagedRowLeavesTheOthers(t *testing.T) {
	path := filled(t, 9)
	s := opened(t, path)
	for _, change := range []string{
		`UPDATE writes SET old = '4096' WHERE id = 5`,
		`UPDATE persisted SET sha256 = replace(sha256, 'a', 'b')`,
	} {
		if _, err := s.db.ExecContext(t.Context(), change); err != nil {
			t.Fatal(err)
		}
	}
	var corrupt *CorruptError
	all, err := s.History(t.Context(), 0)
	if !errors.As(err, &corrupt) || len(all) != 8 || !strings.Contains(err.Error(), "write 5") {
		t.Errorf("History: %d writes, %v, want 8 and the number of the damaged one", len(all), err)
	}
	some, err := s.Pending(t.Context(), "b1") // 1, 4 and 7 of 0 to 8
	if !errors.As(err, &corrupt) || len(some) != 2 {
		t.Errorf("Pending: %d writes, %v, want 2 and *CorruptError", len(some), err)
	}
	if err := s.Done(t.Context(), 5, Reverted, ""); !errors.As(err, &corrupt) {
		t.Errorf("Done on a damaged row: %v, want *CorruptError", err)
	}
	if got, err := s.Persisted(t.Context()); !errors.As(err, &corrupt) || len(got) != 0 {
		t.Errorf("Persisted: %v, %v, want *CorruptError", got, err)
	}
}

func TestForeignDatabase(t *testing.T) {
	header := fmt.Sprintf(`; PRAGMA user_version = 1; PRAGMA application_id = %d; `, applicationID)
	for name, make := range map[string]string{
		"another program's":    `CREATE TABLE t (a)`,
		"ours with a trigger":  migrations()[0] + header + `CREATE TRIGGER x AFTER INSERT ON writes BEGIN DELETE FROM writes; END`,
		"ours without a table": `CREATE TABLE writes (id INTEGER PRIMARY KEY)` + header,
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "state.db")
			db := sql.OpenDB(&connector{dsn: path})
			if _, err := db.ExecContext(t.Context(), make); err != nil {
				t.Fatal(err)
			}
			db.Close()
			data := read(t, path)
			if !openBoth(t, path, data) {
				t.Error("opened")
			}
		})
	}
}

func TestNotAFile(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fifo", "folder"} {
		for _, open := range []func(string) (*Store, error){Open, OpenReadOnly} {
			var corrupt *CorruptError
			if _, err := open(filepath.Join(dir, name)); !errors.As(err, &corrupt) {
				t.Errorf("%s: %v, want *CorruptError", name, err)
			}
		}
	}
	if _, err := Open(filepath.Join(dir, "file", "state.db")); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("a file for a folder: %v, want ENOTDIR", err)
	}
}

// TestFullDisk opens, plans and settles with so many pages free that each step
// comes to its turn to fail.
func TestFullDisk(t *testing.T) {
	if !mounted(t) {
		return
	}
	var opens, plans int
	for pages := range 16 {
		dir := tmpfs(t, "size=256k")
		path := filepath.Join(dir, "state.db")
		free := fill(t, dir, pages)
		s, err := Open(path)
		if err != nil {
			opens++
			full(t, "Open", err)
			free()
			opened(t, path)
			continue
		}
		var ids []int64
		var failed error
		for i := 0; failed == nil; i++ {
			var id int64
			if id, failed = s.Plan(t.Context(), numbered(i)); failed == nil {
				ids = append(ids, id)
			}
		}
		plans++
		full(t, "Plan", failed)
		// Nothing is left, and still all that was planned can be settled.
		fill(t, dir, 0)
		for _, id := range ids {
			for _, state := range []State{Written, Written, Reverted} {
				if err := s.Done(t.Context(), id, state, strings.Repeat("5", 48)); err != nil {
					t.Fatalf("%d pages: Done(%d, %s) on a full disk: %v", pages, id, state, err)
				}
			}
		}
		s.Close()
		s, err = Open(path)
		if err != nil {
			t.Fatalf("Open of a whole state on a full disk: %v", err)
		}
		got, err := s.History(t.Context(), 0)
		if err != nil || len(got) != len(ids) {
			t.Errorf("%d writes, %v, want the %d that were planned", len(got), err, len(ids))
		}
		free()
		if _, err := s.Plan(t.Context(), numbered(1)); err != nil {
			t.Errorf("Plan after space was freed: %v", err)
		}
		s.Close()
	}
	if opens == 0 || plans == 0 {
		t.Errorf("the disk was full %d times in Open and %d times in Plan; want both", opens, plans)
	}
}

// A disk that fills up between Plan and Done.
func TestDiskFullAfterPlan(t *testing.T) {
	if !mounted(t) {
		return
	}
	for _, n := range []int{1, 2, 8, 100, 500} {
		dir := tmpfs(t, "size=2m")
		s := opened(t, filepath.Join(dir, "state.db"))
		ws := make([]Write, n)
		for i := range ws {
			ws[i] = numbered(i)
		}
		ids, err := s.PlanAll(t.Context(), ws)
		if err != nil {
			t.Fatal(err)
		}
		fill(t, dir, 0)
		for _, id := range ids {
			if err := s.Done(t.Context(), id, Written, "512"); err != nil {
				t.Fatalf("%d planned, Done(%d): %v", n, id, err)
			}
		}
		_, err = s.PlanAll(t.Context(), slices.Repeat(ws, 500/n))
		full(t, "PlanAll", err)
		s.Close()
	}
}

func full(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "no space left") || !strings.Contains(Hint(err), "free some space") {
		t.Errorf("%s on a full disk: %v, hint %q, want ENOSPC", what, err, Hint(err))
	}
}

func TestReadOnlyFileSystem(t *testing.T) {
	if !mounted(t) {
		return
	}
	dir := tmpfs(t, "")
	for name, from := range map[string]string{"whole": filled(t, 200), "hot": hot(t, 200)} {
		for _, suffix := range []string{"", "-journal"} {
			if err := copyFile(filepath.Join(dir, name+suffix), from+suffix); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		noMounts(t, err)
	}
	for _, name := range []string{"whole", "hot", "new", "folder/new"} {
		_, err := Open(filepath.Join(dir, name))
		if !errors.Is(err, syscall.EROFS) || !strings.Contains(Hint(err), "writable file system") {
			t.Errorf("Open of %s: %v, hint %q, want EROFS", name, err, Hint(err))
		}
		if _, err := Lock(filepath.Join(dir, name), ""); !errors.Is(err, syscall.EROFS) {
			t.Errorf("Lock of %s: %v, want EROFS", name, err)
		}
	}
	for _, name := range []string{"whole", "hot"} {
		s, err := OpenReadOnly(filepath.Join(dir, name))
		if err != nil {
			t.Errorf("OpenReadOnly of %s: %v", name, err)
			continue
		}
		if got, err := s.History(t.Context(), 0); err != nil || len(got) != 200 {
			t.Errorf("%s: %d writes, %v, want 200", name, len(got), err)
		}
		s.Close()
	}
}

// TestPermissionDenied runs as nobody where it is root.
func TestPermissionDenied(t *testing.T) {
	const at = "QUIRKCHECK_STORE_DENIED"
	if dir := os.Getenv(at); dir != "" {
		for _, name := range []string{"closed/state.db", "closed/new.db", "open/secret.db", "open/readable.db", "open/new.db", "open/new/state.db"} {
			_, err := Open(filepath.Join(dir, name))
			if !errors.Is(err, fs.ErrPermission) || Hint(err) == "" {
				t.Errorf("Open of %s: %v, want fs.ErrPermission", name, err)
			}
			if _, err := Lock(filepath.Join(dir, name), ""); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("Lock of %s: %v, want fs.ErrPermission", name, err)
			}
		}
		for _, name := range []string{"closed/state.db", "closed/new.db", "open/secret.db"} {
			if _, err := OpenReadOnly(filepath.Join(dir, name)); !errors.Is(err, fs.ErrPermission) {
				t.Errorf("OpenReadOnly of %s: %v, want fs.ErrPermission", name, err)
			}
		}
		s, err := OpenReadOnly(filepath.Join(dir, "open/readable.db"))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if got, err := s.History(t.Context(), 0); err != nil || len(got) != 10 {
			t.Errorf("readable: %d writes, %v, want 10", len(got), err)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make files that another user may not read")
	}
	dir, err := os.MkdirTemp("", "quirkcheck-denied-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	from, self := filled(t, 10), filepath.Join(dir, "self.test")
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []error{
		os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "closed"), 0o700), os.Mkdir(filepath.Join(dir, "open"), 0o755),
		copyFile(filepath.Join(dir, "closed/state.db"), from), copyFile(filepath.Join(dir, "open/secret.db"), from),
		copyFile(filepath.Join(dir, "open/readable.db"), from), os.Chmod(filepath.Join(dir, "open/readable.db"), 0o644),
		copyFile(self, exe), os.Chmod(self, 0o755), // the folder go test builds in is root's own
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
	cmd := exec.Command(self, "-test.run=^TestPermissionDenied$", "-test.v")
	cmd.Dir = dir
	cmd.Env = []string{at + "=" + dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS")) {
		t.Errorf("as nobody: %v\n%s", err, out)
	}
}

// FuzzOpen damages a valid file and its journal: cut at size, patched at one
// place, and whatever journal beside it.
func FuzzOpen(f *testing.F) {
	whole := read(f, filled(f, 12))
	journal := read(f, filled(f, 3)+"-journal")
	f.Add(uint16(len(whole)), uint16(0), []byte{}, []byte{})
	f.Add(uint16(len(whole)), uint16(60), []byte{0, 0, 0, 2}, []byte{})
	f.Add(uint16(len(whole)), uint16(4096), []byte{13, 0, 0, 0, 1}, []byte{})
	f.Add(uint16(len(whole)), uint16(100), []byte{5}, journal)
	f.Add(uint16(4096), uint16(18), []byte{2, 2}, []byte{0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7})
	f.Add(uint16(0), uint16(0), []byte("text"), []byte{1})
	dir := memory(f)
	f.Fuzz(func(t *testing.T, size, at uint16, patch, journal []byte) {
		data := slices.Clone(whole[:min(int(size), len(whole))])
		if end := int(at) + len(patch); end > len(data) {
			data = append(data, make([]byte, end-len(data))...)
		}
		copy(data[at:], patch)
		path := filepath.Join(dir, fmt.Sprint(os.Getpid(), ".db"))
		defer os.Remove(path)
		defer os.Remove(path + "-journal")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path+"-journal", journal, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, open := range []func(string) (*Store, error){OpenReadOnly, Open} {
			s, err := open(path)
			var corrupt *CorruptError
			if err == nil {
				use(t, s)
				s.Close()
			} else if !errors.As(err, &corrupt) && !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%v (%T), want *CorruptError", err, err)
			}
		}
	})
}
