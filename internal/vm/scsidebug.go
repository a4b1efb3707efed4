package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// ScsiDebug loads the scsi_debug driver with its parameters ("num_tgts=4",
// "inq_vendor=ACME") and returns its disks. One identity serves all disks of a
// load, and the store is theirs in common.
func (m *Machine) ScsiDebug(ctx context.Context, params ...string) ([]Found, error) {
	for _, mod := range []string{"sd_mod", "sg"} {
		if err := m.Modprobe(ctx, mod); err != nil {
			return nil, err
		}
	}
	targets := 1
	for _, p := range params {
		if v, ok := strings.CutPrefix(p, "num_tgts="); ok {
			n, err := strconv.Atoi(v)
			if err != nil {
				return nil, fmt.Errorf("scsi_debug %s: %w", p, err)
			}
			targets = n
		}
	}
	if err := m.Modprobe(ctx, "scsi_debug", params...); err != nil {
		return nil, err
	}
	var ds []Found
	err := m.Poll(ctx, fmt.Sprintf("%d disks of scsi_debug", targets), func() (bool, error) {
		all, err := m.AllDisks(ctx)
		if err != nil {
			return false, err
		}
		ds = nil
		for _, d := range all {
			if strings.Contains(d.Path, "/pseudo_") || strings.Contains(d.Path, "/adapter") {
				ds = append(ds, d)
			}
		}
		return len(ds) >= targets, nil
	})
	return ds, err
}

const scsiDebugDriver = "/sys/bus/pseudo/drivers/scsi_debug/"

// Values of the scsi_debug parameter opts (drivers/scsi/scsi_debug.c,
// SDEBUG_OPT_*), which apply to each every_nth command.
const (
	ScsiDebugMediumError  = 2
	ScsiDebugTimeout      = 4 // no answer: the kernel's own timeout ends it
	ScsiDebugRecovered    = 8
	ScsiDebugTransportErr = 16
	ScsiDebugShort        = 0x80
)

// ScsiDebugEvery has every nth command of every scsi_debug disk meet opts; both
// 0 end it. With 1 and ScsiDebugTimeout the disks hang.
func (m *Machine) ScsiDebugEvery(ctx context.Context, nth, opts int) error {
	err := m.WriteAttr(ctx, scsiDebugDriver+"opts", strconv.Itoa(opts))
	return errors.Join(err, m.WriteAttr(ctx, scsiDebugDriver+"every_nth", strconv.Itoa(nth)))
}

// ScsiDebugRules writes rules to a disk's debugfs file "error" (Linux 6.7 and
// newer; "0 -10 0x12" times out the next ten INQUIRYs). An older kernel is an
// error that is fs.ErrNotExist.
func (m *Machine) ScsiDebugRules(ctx context.Context, d Found, rules ...string) error {
	link, err := m.Output(ctx, "readlink", "-f", d.Sysfs("device"))
	if err != nil {
		return err
	}
	hctl := link[strings.LastIndexByte(link, '/')+1:]
	file := "/sys/kernel/debug/scsi_debug/" + hctl + "/error"
	found, err := m.Glob(ctx, file)
	if err != nil {
		return err
	}
	if len(found) == 0 {
		return fmt.Errorf("scsi_debug rules for %s: %s: %w", d.Name, file, fs.ErrNotExist)
	}
	for _, r := range rules {
		if err := m.WriteAttr(ctx, file, r+"\n"); err != nil {
			return err
		}
	}
	return nil
}
