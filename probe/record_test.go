package probe_test

import (
	"errors"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quirkcheck/quirkcheck/probe"
)

// notes takes down the questions put to a tree, each with the kind of answer.
type notes struct {
	mu  sync.Mutex
	got map[string]bool
}

func (n *notes) add(what, name string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	answer := "ok"
	if err != nil {
		answer = err.Error()
	}
	if errors.Is(err, fs.ErrNotExist) {
		answer = "absent"
	}
	n.got[what+" "+name+": "+answer] = true
}

func (n *notes) File(name string, _ []byte, err error)     { n.add("file", name, err) }
func (n *notes) Link(name, _ string, err error)            { n.add("link", name, err) }
func (n *notes) Folder(name string, _ []string, err error) { n.add("folder", name, err) }
func (n *notes) Opened(name string, err error)             { n.add("open", name, err) }

// TestRecordIsTheSameOnDiskAndInMemory: one code path asks the same of a
// folder and of any other fs.FS, and gets the same answers in the same words.
func TestRecordIsTheSameOnDiskAndInMemory(t *testing.T) {
	m := newMachine()
	link(m, sdbBlock+"/queue/max_sectors_kb", "scheduler")
	file(m, sdbBlock+"/queue/read_ahead_kb", strings.Repeat("1", 100_000))
	link(m, "sys/block/sdc", "../devices/nowhere")
	questions := func(sys fs.FS) []string {
		n := &notes{got: map[string]bool{}}
		plain, err := read(t, sys, probe.Options{})
		if err != nil {
			t.Fatal(err)
		}
		inv, err := read(t, probe.Record(sys, n), probe.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(inv.Devices) != 2 || !slices.EqualFunc(inv.Devices[1].Notes, plain.Devices[1].Notes, func(a, b probe.Note) bool { return a == b }) {
			t.Errorf("recording changes what is read: %+v, %+v", inv.Devices[1].Notes, plain.Devices[1].Notes)
		}
		return slices.Sorted(maps.Keys(n.got))
	}
	disk, memory := questions(openRoot(t, onDisk(t, m))), questions(m)
	if len(disk) < 100 {
		t.Errorf("only %d questions", len(disk))
	}
	if diff := cmp.Diff(disk, memory); diff != "" {
		t.Errorf("(-on disk +in memory)\n%s", diff)
	}
}

func TestRecordAnswersNothingUnrecorded(t *testing.T) {
	rec := probe.Record(newMachine(), &notes{got: map[string]bool{}})
	if _, err := rec.Open("proc/version"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Open: %v", err)
	}
	if _, err := fs.Stat(rec, "proc/version"); err == nil {
		t.Error("Stat answers")
	}
	if !errors.Is(probe.ErrNotRecorded, fs.ErrNotExist) {
		t.Error("ErrNotRecorded is not an fs.ErrNotExist")
	}
}
