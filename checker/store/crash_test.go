package store

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestKilledAtAnyPoint kills a process that plans and settles writes, again and
// again on the same file. What the store promised before must be there.
func TestKilledAtAnyPoint(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	planned := map[int64]bool{}
	promised := map[int64]State{}
	deadline := time.Now().Add(5 * time.Second)
	rounds, hotJournals := 0, 0
	if testing.Short() {
		deadline = time.Now().Add(time.Second)
	}
	for ; time.Now().Before(deadline); rounds++ {
		var out bytes.Buffer
		cmd := child(t, "crash", path)
		cmd.Stdout = &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.IntN(60_000)) * time.Microsecond)
		cmd.Process.Kill()
		cmd.Wait()
		if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || status.Signal() != syscall.SIGKILL {
			t.Fatalf("round %d: the child ended by itself: %s", rounds, cmd.ProcessState)
		}
		for line := range strings.Lines(out.String()) {
			f := strings.Fields(line)
			if !strings.HasSuffix(line, "\n") || len(f) < 2 {
				continue
			}
			id, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			if f[0] == "p" {
				planned[id] = true
			} else {
				promised[id] = State(f[2])
			}
		}
		if j, err := os.ReadFile(path + "-journal"); err == nil && len(j) > 0 && j[0] != 0 {
			hotJournals++
		}
		if rounds%2 == 0 { // recovery by the reader and by the next writer
			r, err := OpenReadOnly(path)
			if err != nil {
				if errors.Is(err, fs.ErrNotExist) && len(planned) == 0 {
					continue // killed before it had created the tables
				}
				t.Fatalf("round %d: %v", rounds, err)
			}
			invariants(t, r, planned, promised)
			r.Close()
		}
		s, err := Open(path)
		if err != nil {
			t.Fatalf("round %d: %v", rounds, err)
		}
		invariants(t, s, planned, promised)
		s.Close()
		if t.Failed() {
			t.Fatalf("round %d", rounds)
		}
	}
	t.Logf("%d rounds, %d with a transaction under way, %d writes planned, %d settled", rounds, hotJournals, len(planned), len(promised))
	if rounds < 5 || len(promised) == 0 {
		t.Errorf("%d rounds, %d writes settled: too few to show anything", rounds, len(promised))
	}
}

func invariants(t *testing.T, s *Store, planned map[int64]bool, promised map[int64]State) {
	t.Helper()
	all, err := s.History(t.Context(), 0) // compares each row's checksum
	if err != nil {
		t.Fatal(err)
	}
	byID := map[int64]Write{}
	for _, w := range all {
		byID[w.ID] = w
		i, err := strconv.Atoi(strings.TrimPrefix(w.Device, "sd"))
		if err != nil {
			t.Fatal(err)
		}
		want := numbered(i)
		want.ID, want.State, want.ReadBack = w.ID, w.State, w.ReadBack
		if w != want {
			t.Errorf("torn row:\ngot  %+v\nwant %+v", w, want)
		}
		if (w.State == Planned) != (w.ReadBack == "") {
			t.Errorf("torn row: write %d is %s with %q read back", w.ID, w.State, w.ReadBack)
		}
	}
	// IDs are given without gaps, so a row that was lost shows.
	for id := int64(1); id <= int64(len(all)); id++ {
		if _, ok := byID[id]; !ok {
			t.Errorf("write %d of %d is not there", id, len(all))
		}
	}
	for id := range planned {
		if _, ok := byID[id]; !ok {
			t.Errorf("write %d was planned and is not there", id)
		}
	}
	for id, state := range promised {
		got := byID[id].State
		// The child may have gone one step further and died before it said so.
		if got != state && !(state == Written && got == Reverted) {
			t.Errorf("write %d was settled as %s and is %q", id, state, got)
		}
	}
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "state.db")
	start := func() (kill func(), end func()) {
		t.Helper()
		cmd := child(t, "hold", path)
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "held\n" {
			t.Fatalf("child: %q, %v", line, err)
		}
		var held *HeldError
		_, err = Lock(path, "second")
		if !errors.As(err, &held) {
			t.Fatalf("Lock while another process has it: %v, want *HeldError", err)
		}
		if held.PID != cmd.Process.Pid || held.Command != "quirkcheck enforce --apply\x1b[2J" || time.Since(held.Since) > time.Minute || time.Since(held.Since) < 0 {
			t.Errorf("holder: %+v, want process %d", held, cmd.Process.Pid)
		}
		if want := fmt.Sprintf("process %d", cmd.Process.Pid); !strings.Contains(err.Error(), want) || !strings.Contains(Hint(err), want) {
			t.Errorf("error %q, hint %q: want %q in both", err, Hint(err), want)
		}
		return func() { cmd.Process.Kill(); cmd.Wait() }, func() { in.Close(); cmd.Wait() }
	}
	_, end := start()
	end()
	kill, _ := start()
	kill()
	// The dead one's name is still in the file and must not be believed.
	l, err := Lock(path, "third")
	if err != nil {
		t.Fatalf("Lock after its holder was killed: %v", err)
	}
	var held *HeldError
	if _, err := Lock(path, "fourth"); !errors.As(err, &held) || held.PID != os.Getpid() || held.Command != "third" {
		t.Errorf("a second Lock in one process: %v, want this process as the holder", err)
	}
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	if l, err = Lock(path, strings.Repeat("ü\xff", 10000)); err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(path, ""); !errors.As(err, &held) || len(held.Command) > maxCommand || held.PID == 0 {
		t.Errorf("long command: %v", err)
	}
	// A holder that has not said who it is.
	if err := os.WriteFile(path+".lock", []byte(`{"pid":`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(path, ""); !errors.As(err, &held) || held.PID != 0 || Hint(err) == "" {
		t.Errorf("unnamed holder: %v", err)
	}
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
}

func TestLockRefusesWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo.lock"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("elsewhere", filepath.Join(dir, "link.lock")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"fifo", "link"} {
		if _, err := Lock(filepath.Join(dir, name), ""); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
