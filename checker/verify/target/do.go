package target

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quirkcheck/quirkcheck/checker/verify"
	"github.com/quirkcheck/quirkcheck/internal/ioctl"
)

// Do implements verify.Device. Each command has its own thread in the kernel.
// A write outside the usable extents, or to a target opened read-only, is
// refused with KindInternal and not sent, and so is what lies outside the target
// or is no whole number of logical blocks.
//
// A command that the host refuses (too long, too many segments) is
// KindNotSent; one that took longer than the deadline is KindTimeout, whatever
// its end. SCSI's RECOVERED ERROR is no error.
func (d *Disk) Do(ctx context.Context, cmds []verify.Command) []verify.Completion {
	done := make([]verify.Completion, len(cmds))
	if err := ctx.Err(); err != nil {
		for i := range done {
			done[i].Err = err
		}
		return done
	}
	var sent []int
	for i, c := range cmds {
		if err := d.check(c); err != nil {
			done[i].Err = &verify.Failure{Kind: verify.KindInternal, Detail: err.Error()}
		} else {
			sent = append(sent, i)
		}
	}
	evidence := d.prover.begin(cmds, sent)
	var wait sync.WaitGroup
	start := make(chan struct{})
	for _, i := range sent {
		wait.Go(func() {
			<-start
			done[i] = d.one(cmds[i])
		})
	}
	close(start)
	wait.Wait()
	d.prover.prove(evidence, cmds, sent, done, d.physical)
	return done
}

// check refuses what must not be sent.
func (d *Disk) check(c verify.Command) error {
	n := uint64(len(c.Data))
	if n == 0 || n%uint64(d.logicalBytes) != 0 || c.Sector%uint64(d.info.LogicalBlock) != 0 {
		return fmt.Errorf("%s of %d bytes at sector %d: not whole blocks of %d bytes", c.Op, n, c.Sector, d.logicalBytes)
	}
	end := c.Sector + n/verify.SectorBytes
	if end < c.Sector || end > d.info.Sectors {
		return fmt.Errorf("%s of %d sectors at %d: outside the target of %d sectors", c.Op, n/verify.SectorBytes, c.Sector, d.info.Sectors)
	}
	switch c.Op {
	case verify.Read:
	case verify.Write:
		if d.o.ReadOnly {
			return errors.New("write: the target is read-only")
		}
		at := c.Sector
		for _, e := range d.info.Usable {
			if e.Sector <= at && at < e.End() {
				at = e.End()
			}
		}
		if at < end {
			return fmt.Errorf("write of %d sectors at %d: sector %d is not to be written", n/verify.SectorBytes, c.Sector, at)
		}
	default:
		return fmt.Errorf("unknown operation %d", c.Op)
	}
	switch c.Path {
	case verify.PathBlock, verify.PathCache:
	case verify.PathCommand:
		if d.o.PassThrough == NoPassThrough {
			return errors.New("the device takes no pass-through commands")
		}
		if (d.info.First+c.Sector)%uint64(d.info.LogicalBlock) != 0 {
			return fmt.Errorf("sector %d of the disk is no logical block", d.info.First+c.Sector)
		}
	default:
		return fmt.Errorf("unknown path %q", c.Path)
	}
	return nil
}

// physical is where a sector of the target lies on the whole disk.
func (d *Disk) physical(sector uint64) (uint64, bool) {
	if d.o.Physical != nil {
		return d.o.Physical(sector)
	}
	return d.info.First + sector, !d.file
}

// one sends one command and waits for its end.
func (d *Disk) one(c verify.Command) verify.Completion {
	var done verify.Completion
	begin := time.Now()
	switch {
	case c.Path == verify.PathBlock:
		done.Err = d.transfer(d.direct, c)
	case c.Path == verify.PathCache:
		done.Err = d.throughCache(c)
	case d.o.PassThrough == NVMePassThrough:
		done.Err = d.nvme(c)
	default:
		done.Err = d.scsi(c)
	}
	done.Latency = time.Since(begin)
	if c.Path == verify.PathCommand && done.Err == nil {
		done.Proof, done.Requests, done.Largest = verify.ProofCommand, 1, c.Sectors()
	}
	if done.Latency > d.deadline {
		done.Err = overdue(c, done.Latency, d.deadline, done.Err)
	}
	return done
}

// overdue makes a timeout of what took too long; a device that is gone, or was
// reset, or is another stays that.
func overdue(c verify.Command, took, deadline time.Duration, err error) error {
	var f *verify.Failure
	if !errors.As(err, &f) {
		return late(c.Op.String(), took, deadline)
	}
	switch f.Kind {
	case verify.KindIOError, verify.KindShort, verify.KindNotSent:
		return &verify.Failure{Kind: verify.KindTimeout, Detail: fmt.Sprintf("%s, after %.1f s", f.Detail, took.Seconds())}
	}
	return err
}

func late(what string, took, deadline time.Duration) error {
	return &verify.Failure{Kind: verify.KindTimeout, Detail: fmt.Sprintf("the %s took %.1f s, over %.1f s", what, took.Seconds(), deadline.Seconds())}
}

// transfer is one pread or pwrite.
func (d *Disk) transfer(f *os.File, c verify.Command) error {
	at := int64(c.Sector) * verify.SectorBytes
	for {
		var n int
		var err error
		if c.Op == verify.Write {
			n, err = unix.Pwrite(int(f.Fd()), c.Data, at)
		} else {
			n, err = unix.Pread(int(f.Fd()), c.Data, at)
		}
		switch {
		case err == unix.EINTR:
		case err != nil:
			return ioFailure(c.Op.String(), err)
		case n != len(c.Data):
			return &verify.Failure{Kind: verify.KindShort, Detail: fmt.Sprintf("%s: %d of %d bytes", c.Op, n, len(c.Data))}
		default:
			return nil
		}
	}
}

// throughCache reads or writes by the page cache, and leaves nothing of it
// there. A read drops first what is there, which pass-through writes do not.
func (d *Disk) throughCache(c verify.Command) error {
	drop := func() {
		_ = unix.Fadvise(int(d.cached.Fd()), int64(c.Sector)*verify.SectorBytes, int64(len(c.Data)), unix.FADV_DONTNEED)
	}
	if c.Op == verify.Read {
		drop()
		return d.transfer(d.cached, c)
	}
	if err := d.transfer(d.cached, c); err != nil {
		return err
	}
	if err := fsync(d.cached); err != nil {
		return ioFailure("sync", err)
	}
	drop()
	return nil
}

func fsync(f *os.File) error {
	for {
		if err := unix.Fsync(int(f.Fd())); err != unix.EINTR {
			return err
		}
	}
}

// lba is the command's place in logical blocks of the whole disk: a partition's
// node takes those too. check has held the bounds.
func (d *Disk) lba(c verify.Command) (lba uint64, blocks uint32) {
	return (d.info.First + c.Sector) / uint64(d.info.LogicalBlock), uint32(len(c.Data) / d.logicalBytes)
}

// scsi sends READ(16) or WRITE(16), again after a unit attention that only
// reported something.
func (d *Disk) scsi(c verify.Command) error {
	lba, blocks := d.lba(c)
	var cache ioctl.Cache
	if c.FUA {
		cache = ioctl.FUA | ioctl.DPO
	}
	cdb, dir := ioctl.Read16(lba, blocks, cache), ioctl.FromDevice
	if c.Op == verify.Write {
		cdb, dir = ioctl.Write16(lba, blocks, cache), ioctl.ToDevice
	}
	var r ioctl.SCSIResult
	for range 3 {
		var err error
		if r, err = ioctl.SCSI(int(d.node.Fd()), cdb, dir, c.Data, d.commandTimeout); err != nil {
			return passFailure(err)
		}
		if r.Outcome() != ioctl.OutcomeRetry {
			break
		}
	}
	return outcomeFailure(r.Outcome(), r.Resid, r.String())
}

// nvme sends Read or Write.
func (d *Disk) nvme(c verify.Command) error {
	lba, blocks := d.lba(c)
	if blocks > ioctl.MaxNVMeBlocks {
		return &verify.Failure{Kind: verify.KindNotSent, Detail: fmt.Sprintf("%d blocks do not fit an NVMe command", blocks)}
	}
	n := ioctl.NVMeCommand{
		Opcode: ioctl.NVMeRead, Namespace: d.namespace, LBA: lba, Blocks: blocks,
		FUA: c.FUA, Data: c.Data, Timeout: d.commandTimeout,
	}
	if c.Op == verify.Write {
		n.Opcode = ioctl.NVMeWrite
	}
	status, err := ioctl.NVMe(int(d.node.Fd()), n)
	if errors.Is(err, unix.EINTR) {
		return &verify.Failure{Kind: verify.KindTimeout, Detail: "the kernel cancelled the command"}
	}
	if err != nil {
		return passFailure(err)
	}
	return outcomeFailure(status.Outcome(), 0, status.String())
}

// outcomeFailure is the error of a command that the device, or the kernel in
// its place, has answered.
func outcomeFailure(o ioctl.Outcome, resid int, text string) error {
	kind := verify.KindIOError
	switch o {
	case ioctl.OutcomeOK:
		if resid == 0 {
			return nil
		}
		kind = verify.KindShort
	case ioctl.OutcomeTimeout:
		kind = verify.KindTimeout
	case ioctl.OutcomeReset:
		kind = verify.KindReset
	case ioctl.OutcomeGone:
		kind = verify.KindGone
	}
	return &verify.Failure{Kind: kind, Detail: text}
}

// passFailure is the error of a pass-through ioctl itself: the device has seen
// nothing. EIO is a command longer than max_hw_sectors, EINVAL one of more
// segments than the adapter takes.
func passFailure(err error) error {
	kind := verify.KindInternal
	switch {
	case isAny(err, unix.EINVAL, unix.EIO, unix.ENOMEM, unix.EPERM, unix.EACCES, unix.ENOTTY, unix.EOPNOTSUPP, unix.EAGAIN, unix.EBUSY):
		kind = verify.KindNotSent
	case isAny(err, unix.ENODEV, unix.ENXIO, unix.ENOMEDIUM):
		kind = verify.KindGone
	}
	return &verify.Failure{Kind: kind, Detail: err.Error()}
}

// ioFailure is the error of a read, write or fsync. Which errno stands for what
// the block layer's status was: blk_errors in block/blk-core.c.
func ioFailure(what string, err error) error {
	kind := verify.KindInternal
	switch {
	case isAny(err, unix.EINVAL, unix.ENOMEM, unix.EPERM, unix.EACCES, unix.EROFS, unix.EAGAIN, unix.EOPNOTSUPP):
		kind = verify.KindNotSent
	case isAny(err, unix.ETIMEDOUT, unix.ETIME):
		kind = verify.KindTimeout
	case isAny(err, unix.ENODEV, unix.ENXIO, unix.ENOMEDIUM):
		kind = verify.KindGone
	case isAny(err, unix.EIO, unix.EREMOTEIO, unix.ENODATA, unix.EILSEQ, unix.EBADE, unix.ENOLINK, unix.ENOSPC, unix.EBUSY, unix.EOVERFLOW, unix.EUCLEAN):
		kind = verify.KindIOError
	}
	return &verify.Failure{Kind: kind, Detail: what + ": " + err.Error()}
}

func isAny(err error, errnos ...unix.Errno) bool {
	for _, e := range errnos {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
