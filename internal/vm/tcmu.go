package vm

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/quirkcheck/quirkcheck/internal/vm/tcmu"
	"github.com/quirkcheck/quirkcheck/internal/vm/wire"
)

// A TCMUDisk is a SCSI disk that the guest's agent serves, with every answer
// open to choice; a TCMURule changes those to some commands.
type (
	TCMUDisk = tcmu.Disk
	TCMURule = tcmu.Rule
)

// tcmuLimit is how long a disk may take to come or go: the kernel asks it some
// thirty commands, each of which may be slow.
const tcmuLimit = 90 * time.Second

// TCMU makes a disk, waits until the kernel has attached it and asks it nothing
// more, and returns it. It lives until TCMURemove or the end of the boot. The
// error holds the end of the kernel's log when the disk does not come; it is
// fs.ErrNotExist when the kernel has no TCMU.
func (m *Machine) TCMU(ctx context.Context, d TCMUDisk) (Found, error) {
	rep, err := m.tcmu(ctx, wire.OpTCMUAdd, d.Name, &d)
	if err != nil {
		return Found{}, fmt.Errorf("%w\n%s", err, lastLines(m.KernelLog(), consoleTail))
	}
	return Found{rep.Disks[0]}, nil
}

// TCMUSet changes how a disk answers. What the kernel has asked it already it
// asks again when the disk is rescanned.
func (m *Machine) TCMUSet(ctx context.Context, d TCMUDisk) error {
	_, err := m.tcmu(ctx, wire.OpTCMUSet, d.Name, &d)
	return err
}

// TCMUCommands returns the CDBs that a disk received, in their order, from the
// first on, up to 65536. They are as the kernel's target core passes them on:
// without REPORT LUNS and reservations, and mostly without the upper three bits
// of byte 1.
func (m *Machine) TCMUCommands(ctx context.Context, name string) ([][]byte, error) {
	rep, err := m.tcmu(ctx, wire.OpTCMUCommands, name, nil)
	if err != nil {
		return nil, err
	}
	var log [][]byte
	if err := json.Unmarshal(rep.Parts[0], &log); err != nil {
		return nil, fmt.Errorf("decode commands of %s: %w", name, err)
	}
	return log, nil
}

// TCMURelease has a disk answer all commands that hang or are delayed.
func (m *Machine) TCMURelease(ctx context.Context, name string) error {
	_, err := m.tcmu(ctx, wire.OpTCMURelease, name, nil)
	return err
}

// TCMURemove takes a disk away.
func (m *Machine) TCMURemove(ctx context.Context, name string) error {
	_, err := m.tcmu(ctx, wire.OpTCMURemove, name, nil)
	return err
}

func (m *Machine) tcmu(ctx context.Context, op, name string, d *TCMUDisk) (wire.Reply, error) {
	rq := wire.Request{Op: op, Path: name}
	if d != nil {
		b, err := json.Marshal(d)
		if err != nil {
			return wire.Reply{}, fmt.Errorf("encode TCMU disk %s: %w", name, err)
		}
		rq.Parts = [][]byte{b}
	}
	doing := op + " " + name
	rep, err := m.call(ctx, doing, rq, tcmuLimit)
	if err == nil {
		err = replyErr(doing, rep)
	}
	return rep, err
}
