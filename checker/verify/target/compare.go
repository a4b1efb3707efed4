package target

import (
	"errors"
	"fmt"

	"github.com/quirkcheck/quirkcheck/checker/verify"
	"github.com/quirkcheck/quirkcheck/internal/ioctl"
)

var _ verify.Comparer = (*Disk)(nil)

// Compare implements verify.Comparer: VERIFY(16) with BYTCHK 01b (SBC-4), or NVMe
// Compare. Whether the answer means anything the caller has to find out: libata
// says that all is equal without looking.
func (d *Disk) Compare(sector uint64, data []byte) (same bool, err error) {
	c := verify.Command{Op: verify.Read, Sector: sector, Data: data, Path: verify.PathCommand}
	if err := d.check(c); err != nil {
		return false, err
	}
	lba, blocks := d.lba(c)
	var outcome ioctl.Outcome
	var said string
	if d.o.PassThrough == NVMePassThrough {
		if blocks > ioctl.MaxNVMeBlocks {
			return false, fmt.Errorf("compare %d blocks: too many", blocks)
		}
		status, err := ioctl.NVMe(int(d.node.Fd()), ioctl.NVMeCommand{Opcode: ioctl.NVMeCompare, Namespace: d.namespace, LBA: lba, Blocks: blocks, Data: data, Timeout: d.commandTimeout})
		if err != nil {
			return false, err
		}
		outcome, said = status.Outcome(), status.String()
	} else {
		r, err := ioctl.SCSI(int(d.node.Fd()), ioctl.Verify16(lba, blocks), ioctl.ToDevice, data, d.commandTimeout)
		if err != nil {
			return false, err
		}
		outcome, said = r.Outcome(), r.String()
	}
	switch outcome {
	case ioctl.OutcomeOK:
		return true, nil
	case ioctl.OutcomeMiscompare:
		return false, nil
	}
	return false, errors.New(said)
}
