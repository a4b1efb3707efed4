package target

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/quirkcheck/quirkcheck/internal/ioctl"
)

// ErrClaimed marks a device that something else holds.
var ErrClaimed = errors.New("something holds it")

// Claim opens the target for reading and writing, with O_EXCL, which the kernel
// refuses where a mount, a holder or another claim is (ErrClaimed), and locks
// it (flock), which keeps udev from probing half-written sectors. It needs
// root. The caller closes it.
func Claim(t Target) (*os.File, error) {
	f, err := os.OpenFile(t.Node, os.O_RDWR|os.O_EXCL, 0)
	if err != nil {
		return nil, fmt.Errorf("claim: %w: %w", ErrClaimed, err)
	}
	if err := ioctl.Lock(int(f.Fd())); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w: %w", t.Node, ErrClaimed, err)
	}
	if err := t.Same(int(f.Fd())); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// keysTimeout is long: a timeout that runs out has the kernel reset the link.
const keysTimeout = time.Minute

// illegalRequest is the sense key of a command that the device does not know
// (SPC-6, Sense key and sense code definitions).
const illegalRequest = 5

// ReadKeys returns Gathering.ReadKeys for an open SCSI device: PERSISTENT RESERVE
// IN, READ KEYS. It is not called for devices that only one host can reach.
func ReadKeys(fd int) func() (int, error) {
	return func() (int, error) {
		keys, res, err := ioctl.ReservationKeys(fd, keysTimeout)
		if err != nil {
			return 0, err
		}
		if res.OK() {
			return len(keys), nil
		}
		if s, err := ioctl.DecodeSense(res.Sense); err == nil && s.Key == illegalRequest {
			return 0, ErrNoReservations
		}
		return 0, errors.New(res.String())
	}
}
