package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// childVar names what this binary does instead of testing: see TestMain.
const childVar = "QUIRKCHECK_STORE_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childVar) {
	case "crash":
		crashChild(os.Args[1])
	case "hold":
		holdChild(os.Args[1])
	default:
		os.Exit(m.Run())
	}
}

// child returns this binary as a command that does what.
func child(t *testing.T, what string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), childVar+"="+what)
	cmd.Stderr = os.Stderr
	return cmd
}

// crashChild plans and settles writes until it is killed. It says "p ID" and
// "d ID STATE" after the store promised to remember.
func crashChild(path string) {
	check := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
	}
	s, err := Open(path)
	check(err)
	ctx := context.Background()
	for i := 0; ; i++ {
		ids, err := s.PlanAll(ctx, []Write{numbered(i), numbered(i + 1)}[:1+i%2])
		check(err)
		for _, id := range ids {
			fmt.Printf("p %d\n", id)
		}
		for _, id := range ids {
			// The tail of some stays planned, and some are settled twice.
			if rand.IntN(4) == 0 {
				continue
			}
			state := []State{Written, NotWritten, Foreign, Gone}[rand.IntN(4)]
			check(s.Done(ctx, id, state, "512"))
			fmt.Printf("d %d %s\n", id, state)
			if state == Written && rand.IntN(2) == 0 {
				check(s.Done(ctx, id, Reverted, strings.Repeat("1280 ", rand.IntN(30))))
				fmt.Printf("d %d %s\n", id, Reverted)
			}
		}
	}
}

// holdChild holds the lock until its standard input ends.
func holdChild(path string) {
	l, err := Lock(path, "quirkcheck enforce --apply\x1b[2J")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("held")
	io.Copy(io.Discard, os.Stdin)
	if err := l.Unlock(); err != nil {
		os.Exit(1)
	}
}

var noon = time.Date(2026, 3, 1, 12, 0, 0, 123456000, time.UTC)

// numbered returns a write whose texts say which it is.
func numbered(i int) Write {
	w := Write{
		BootID: "b" + strconv.Itoa(i%3), Device: "sd" + strconv.Itoa(i), Identity: "ata ST380013AS 3.20 " + strings.Repeat("S", i%200),
		HasDiskSeq: i%5 != 0, Attr: fmt.Sprintf("sys/block/sd%d/queue/max_sectors_kb", i),
		Old: strconv.Itoa(1280 + i), New: "512", WasDefault: i%2 == 0, Quirk: "ata-st380013as-corruption", Tool: "1.0",
		Time: noon.Add(time.Duration(i) * time.Second), Group: "run-" + strconv.Itoa(i/7),
	}
	if w.HasDiskSeq {
		w.DiskSeq = uint64(i)
	}
	return w
}

func opened(t testing.TB, path string) *Store {
	t.Helper()
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// filled returns the path of a closed state with n writes and a note.
func filled(t testing.TB, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state.db")
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	var ws []Write
	for i := range n {
		ws = append(ws, numbered(i))
	}
	ids, err := s.PlanAll(t.Context(), ws)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids[n/2:] {
		if err := s.Done(t.Context(), id, Written, "512"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.SetPersisted(t.Context(), note("/etc/udev/rules.d/65-quirkcheck.rules", 'a')); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func note(file string, digit byte) Persist {
	return Persist{File: file, SHA256: strings.Repeat(string(digit), 64), Time: noon, Quirks: []string{"a", "b"}, Tool: "1.0"}
}

// mounted runs body of the test once more in a mount namespace of its own and
// reports whether this is that run. Without the right to make one the test is
// skipped, unless it is root in CI that has no such right.
func mounted(t *testing.T) bool {
	t.Helper()
	const inside = "QUIRKCHECK_STORE_MOUNTS"
	if os.Getenv(inside) != "" {
		return true
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"-test.run=^" + t.Name() + "$", "-test.v"}
	if f := os.Getenv("GOCOVERDIR"); f != "" {
		args = append(args, "-test.gocoverdir="+f)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	if os.Geteuid() != 0 {
		// Mounts of its own are a user's right where user namespaces are.
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
		}
	}
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err != nil && !errors.As(err, &exit):
		noMounts(t, err)
	case strings.Contains(string(out), "--- SKIP"):
		noMounts(t, errors.New(string(out)))
	case err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()):
		t.Fatalf("in a mount namespace: %v\n%s", err, out)
	}
	return false
}

func noMounts(t *testing.T, err error) {
	t.Helper()
	if os.Getenv("CI") == "true" && os.Geteuid() == 0 {
		t.Fatalf("needs the right to mount a tmpfs, which root in CI should have: %v", err)
	}
	t.Skipf("needs the right to mount a tmpfs: %v", err)
}

// tmpfs mounts one of its own at a new folder.
func tmpfs(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		noMounts(t, err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill leaves the file system of dir with pages pages of 4 KiB free, and returns
// what gives the rest back.
func fill(t *testing.T, dir string, pages int) (free func()) {
	t.Helper()
	name := filepath.Join(dir, "ballast")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, 4096)
	n := int64(0)
	for {
		if _, err := f.WriteAt(page, n*4096); errors.Is(err, syscall.ENOSPC) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		n++
	}
	if err := f.Truncate(max(0, n-int64(pages)) * 4096); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
}

// hot returns the path of a state whose last transaction was interrupted after
// it had begun to overwrite the file, as a power cut leaves it.
func hot(t *testing.T, n int) string {
	t.Helper()
	from := filled(t, n)
	s := opened(t, from)
	conn, err := s.db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	// With a cache of one page SQLite writes changed pages before the commit.
	if _, err := conn.ExecContext(t.Context(), `PRAGMA cache_size = 1; PRAGMA cache_spill = 1; BEGIN IMMEDIATE;
		UPDATE writes SET old = 'torn', crc = x'00000000'`); err != nil {
		t.Fatal(err)
	}
	to := filepath.Join(t.TempDir(), "state.db")
	for _, suffix := range []string{"", "-journal"} {
		data, err := os.ReadFile(from + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if suffix == "" && !strings.Contains(string(data), "torn") {
			t.Fatal("the transaction has not reached the file; the test proves nothing")
		}
		if err := os.WriteFile(to+suffix, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.ExecContext(t.Context(), `ROLLBACK`); err != nil {
		t.Fatal(err)
	}
	return to
}
