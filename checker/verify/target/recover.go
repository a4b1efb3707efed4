package target

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/quirkcheck/quirkcheck/checker/verify"
	"github.com/quirkcheck/quirkcheck/internal/ioctl"
)

// identity is what makes a device the one it was at the start.
type identity struct {
	attrs map[string]string // by the name below the whole disk's folder
	bytes uint64            // of the target
	// serial is VPD page 80h from the device itself, by INQUIRY; empty where the
	// kernel keeps none.
	serial string
}

// identityAttrs are what sysfs has of a device's identity, as kinds of devices
// have it. diskseq is a number that no other disk of this boot has.
var identityAttrs = []string{
	"diskseq", "size", "serial", "wwid", "device/serial", "device/wwid", "device/vpd_pg80", "device/vpd_pg83", "device/model",
}

func (d *Disk) identify() identity {
	who := identity{attrs: map[string]string{}}
	if d.o.SysBlock != "" {
		for _, name := range identityAttrs {
			if v, err := readAttr(filepath.Join(d.o.SysBlock, name)); err == nil && v != "" {
				who.attrs[name] = v
			}
		}
	}
	who.bytes, _ = d.bytes()
	// A page that the kernel has got does not hang the device.
	if d.o.PassThrough == SCSIPassThrough && who.attrs["device/vpd_pg80"] != "" {
		if page, r, err := ioctl.VPD(int(d.node.Fd()), 0x80, d.commandTimeout); err == nil && r.OK() {
			who.serial = string(page)
		}
	}
	return who
}

func (d *Disk) bytes() (uint64, error) {
	if !d.file {
		return ioctl.DeviceBytes(int(d.node.Fd()))
	}
	st, err := d.cached.Stat()
	if err != nil {
		return 0, err
	}
	return uint64(st.Size()), nil
}

// recoverLimit bounds Recover: error handling of the kernel takes minutes where
// it goes through aborts and all resets.
const recoverLimit = 5 * time.Minute

// Recover implements verify.Device: it reads the first usable block until the
// device answers, for five minutes at most or as long as ctx lives, then
// compares size and identity with those at the start. The failures are
// KindTimeout when there is no answer, KindGone when the device is no longer
// there, and KindNotOurs when another is.
func (d *Disk) Recover(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recoverLimit)
	defer cancel()
	for {
		var last error
		// The read and even sysfs may block as long as the device does, so they have
		// a goroutine of their own, which is left behind then.
		answer := make(chan error, 1)
		go func() { answer <- d.answers() }()
		select {
		case err := <-answer:
			var f *verify.Failure
			if err == nil || errors.As(err, &f) && (f.Kind == verify.KindGone || f.Kind == verify.KindNotOurs || f.Kind == verify.KindInternal) {
				return err
			}
			last = err
		case <-ctx.Done():
			d.stuck = true
			return &verify.Failure{Kind: verify.KindTimeout, Detail: fmt.Sprintf("the device does not answer: %v", ctx.Err())}
		}
		select {
		case <-ctx.Done():
			return &verify.Failure{Kind: verify.KindTimeout, Detail: fmt.Sprintf("the device does not recover: %v", last)}
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// answers reads one block and compares the identity.
func (d *Disk) answers() error {
	internal := func(err error) error { return &verify.Failure{Kind: verify.KindInternal, Detail: err.Error()} }
	if len(d.info.Usable) == 0 {
		return internal(errors.New("no usable sectors"))
	}
	// Its own memory: freed only when the read came back.
	m, err := ioctl.Fragmented(max(d.info.PhysicalBlock*verify.SectorBytes, 4096))
	if err != nil {
		return internal(err)
	}
	block := d.logicalBytes
	c := verify.Command{Op: verify.Read, Sector: d.info.Usable[0].Sector, Data: m.Bytes()[:block], Path: verify.PathBlock}
	if err := d.transfer(d.direct, c); err != nil {
		return errors.Join(err, m.Free())
	}
	if d.o.PassThrough != NoPassThrough {
		c.Path = verify.PathCommand
		if err := d.one(c).Err; err != nil {
			return errors.Join(err, m.Free())
		}
	}
	if err := m.Free(); err != nil {
		return internal(err)
	}
	return d.compareIdentity(d.identify())
}

// compareIdentity says whether now is what the device was. What was not known
// at the start is not compared; what is no longer there is a device that is no
// longer there.
func (d *Disk) compareIdentity(now identity) error {
	was := d.who
	if d.o.SysBlock != "" {
		if _, err := os.Stat(d.o.SysBlock); errors.Is(err, fs.ErrNotExist) {
			return &verify.Failure{Kind: verify.KindGone, Detail: d.o.SysBlock + " is no longer there"}
		}
	}
	if now.bytes != was.bytes {
		return &verify.Failure{Kind: verify.KindNotOurs, Detail: fmt.Sprintf("the size was %d bytes and is %d", was.bytes, now.bytes)}
	}
	for _, name := range slices.Sorted(maps.Keys(was.attrs)) {
		if is, ok := now.attrs[name]; !ok {
			return &verify.Failure{Kind: verify.KindGone, Detail: name + " can no longer be read"}
		} else if is != was.attrs[name] {
			return &verify.Failure{Kind: verify.KindNotOurs, Detail: name + " is not what it was"}
		}
	}
	if was.serial != "" && now.serial != "" && now.serial != was.serial {
		return &verify.Failure{Kind: verify.KindNotOurs, Detail: "the device's UNIT SERIAL NUMBER is not what it was"}
	}
	return nil
}
