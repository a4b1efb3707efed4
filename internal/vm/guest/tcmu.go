package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/quirkcheck/quirkcheck/internal/vm/tcmu"
	"github.com/quirkcheck/quirkcheck/internal/vm/wire"
)

// targets are the disks of package tcmu that this agent serves.
type targets struct {
	mu     sync.Mutex // guards byName, and is not held while disks come and go
	byName map[string]*tcmu.Target
}

// errBusy is the entry of a disk that comes or goes.
var errBusy = errors.New("comes or goes")

func (ts *targets) find(name string) (*tcmu.Target, error) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t, ok := ts.byName[name]
	switch {
	case !ok:
		return nil, fmt.Errorf("TCMU disk %s: %w", name, fs.ErrNotExist)
	case t == nil:
		return nil, fmt.Errorf("TCMU disk %s: %w", name, errBusy)
	}
	return t, nil
}

func (ts *targets) do(rq wire.Request, mods *modules) wire.Reply {
	rep, err := ts.try(rq, mods)
	if err != nil {
		return failed(err)
	}
	return rep
}

func (ts *targets) try(rq wire.Request, mods *modules) (wire.Reply, error) {
	var d tcmu.Disk
	switch rq.Op {
	case wire.OpTCMUAdd, wire.OpTCMUSet:
		if err := json.Unmarshal(rq.Parts[0], &d); err != nil {
			return wire.Reply{}, fmt.Errorf("decode TCMU disk: %w", err)
		}
	}
	if rq.Op == wire.OpTCMUAdd {
		for _, m := range tcmu.Modules {
			if err := mods.load(m, ""); err != nil {
				return wire.Reply{}, err
			}
		}
		return ts.add(d)
	}
	t, err := ts.find(rq.Path)
	if err != nil {
		return wire.Reply{}, err
	}
	switch rq.Op {
	case wire.OpTCMUSet:
		return wire.Reply{}, t.Set(d)
	case wire.OpTCMUCommands:
		log, err := t.Commands()
		if err != nil {
			return wire.Reply{}, err
		}
		b, err := json.Marshal(log)
		return wire.Reply{Parts: [][]byte{b}}, err
	case wire.OpTCMURelease:
		t.Release()
		return wire.Reply{}, nil
	case wire.OpTCMURemove:
		ts.put(rq.Path, nil)
		err := t.Remove()
		ts.mu.Lock()
		delete(ts.byName, rq.Path)
		ts.mu.Unlock()
		return wire.Reply{}, err
	}
	return wire.Reply{}, fmt.Errorf("unknown operation %q", rq.Op)
}

func (ts *targets) put(name string, t *tcmu.Target) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.byName[name] = t
}

// add makes a disk and returns it as a block device.
func (ts *targets) add(d tcmu.Disk) (wire.Reply, error) {
	ts.mu.Lock()
	if ts.byName == nil {
		ts.byName = map[string]*tcmu.Target{}
	}
	_, there := ts.byName[d.Name]
	if !there {
		ts.byName[d.Name] = nil
	}
	ts.mu.Unlock()
	if there {
		return wire.Reply{}, fmt.Errorf("TCMU disk %s: %w", d.Name, syscall.EEXIST)
	}
	t, hctl, err := tcmu.Create(d)
	if err != nil {
		ts.mu.Lock()
		delete(ts.byName, d.Name)
		ts.mu.Unlock()
		return wire.Reply{}, err
	}
	ts.put(d.Name, t)
	all, err := disks()
	if err != nil {
		return wire.Reply{}, err
	}
	for _, disk := range all {
		if strings.Contains(disk.Path, "/"+hctl+"/") {
			return wire.Reply{Disks: []wire.Disk{disk}}, nil
		}
	}
	return wire.Reply{}, fmt.Errorf("TCMU disk %s: no block device of %s", d.Name, hctl)
}

func (ts *targets) releaseAll() {
	ts.mu.Lock()
	all := slices.Collect(maps.Values(ts.byName))
	ts.mu.Unlock()
	for _, t := range all {
		if t != nil {
			t.Release()
		}
	}
}
