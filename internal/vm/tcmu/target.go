package tcmu

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Modules are the kernel modules a target needs.
var Modules = []string{"target_core_mod", "target_core_user", "tcm_loop", "sd_mod", "sg"}

const (
	configfs   = "/sys/kernel/config"
	targetRoot = configfs + "/target"
	hba        = targetRoot + "/core/user_0"
	loopback   = targetRoot + "/loopback"

	scsiDevices = "/sys/bus/scsi/devices/"
	// dataAreaMiB bounds the memory for data on their way, in pages that are
	// used when needed.
	dataAreaMiB = 64
	// settleTime is how long a new disk has to be quiet to be taken as
	// attached, and attachTimeout how long that may take.
	settleTime    = 500 * time.Millisecond
	attachTimeout = 60 * time.Second
	pollTime      = 200 // ms
)

// A Target is a disk being served.
type Target struct {
	name   string
	server *server
	ring   *ring
	fd     int
	mem    []byte
	stop   chan struct{}
	ended  chan struct{} // closed when the ring is served no longer
	mu     sync.Mutex    // guards err
	err    error
	undo   []func() error // what takes it down, in reverse
}

// Create makes a disk and waits until the kernel has attached it. The kernel
// modules must be loaded. The disk of a SCSI device that comes and gets no
// driver is an error that names it.
func Create(d Disk) (t *Target, hctl string, err error) {
	t = &Target{name: d.Name, fd: -1, stop: make(chan struct{}), ended: make(chan struct{})}
	if t.server, err = newServer(d); err != nil {
		return nil, "", err
	}
	if hctl, err = t.create(t.server.disk); err != nil {
		return nil, "", errors.Join(fmt.Errorf("create TCMU disk %s: %w", d.Name, err), t.Remove())
	}
	return t, hctl, nil
}

func (t *Target) create(d Disk) (hctl string, err error) {
	if err := mountConfigfs(); err != nil {
		return "", err
	}
	if err := os.Mkdir(hba, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	device := hba + "/" + d.Name
	if err := t.mkdir(device); err != nil {
		return "", err
	}
	config := "quirkcheck/" + d.Name
	control := fmt.Sprintf("dev_config=%s,dev_size=%d,hw_block_size=%d,max_data_area_mb=%d,nl_reply_supported=-1",
		config, d.SizeBytes, d.BlockBytes, dataAreaMiB)
	for _, a := range []struct{ file, value string }{
		{"control", control},
		// Its own timeout would answer for us.
		{"attrib/cmd_time_out", "0"},
		{"enable", "1"},
	} {
		if err := write(device+"/"+a.file, a.value); err != nil {
			return "", err
		}
	}
	if err := t.attach("/" + d.Name + "/" + config); err != nil {
		return "", err
	}
	go t.serve()
	t.undo = append(t.undo, t.detach)

	port := loopback + "/" + wwn(d.Name)
	if err := os.Mkdir(loopback, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	group := port + "/tpgt_1"
	lun := group + "/lun/lun_0"
	if err := t.mkdir(port); err != nil {
		return "", err
	}
	if err := t.mkdir(group); err != nil {
		return "", err
	}
	if err := write(group+"/nexus", wwn(d.Name)); err != nil {
		return "", err
	}
	if err := t.mkdir(lun); err != nil {
		return "", err
	}
	// The kernel scans the disk in this call, and we answer it meanwhile.
	link := lun + "/" + d.Name
	if err := os.Symlink(device, link); err != nil {
		return "", err
	}
	t.undo = append(t.undo, func() error { return os.Remove(link) })
	address, err := os.ReadFile(group + "/address") // host:channel:target
	if err != nil {
		return "", err
	}
	hctl = strings.TrimSpace(string(address)) + ":0"
	if _, err := os.Stat(scsiDevices + hctl); err != nil {
		return "", fmt.Errorf("the kernel took no SCSI device %s after %d commands", hctl, len(t.server.commands()))
	}
	return hctl, t.attached(hctl)
}

func mountConfigfs() error {
	if _, err := os.Stat(targetRoot); err == nil {
		return nil
	}
	if err := unix.Mount("configfs", configfs, "configfs", 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("mount %s: %w", configfs, err)
	}
	_, err := os.Stat(targetRoot)
	return err
}

func (t *Target) mkdir(name string) error {
	if err := os.Mkdir(name, 0o755); err != nil {
		return err
	}
	t.undo = append(t.undo, func() error { return unix.Rmdir(name) })
	return nil
}

// write writes an attribute in one call, into a file that must be there.
func write(name, value string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// wwn is the name of a disk's port, an NAA identifier with the kernel target's
// own company id and a number made from the name (FNV-1a).
func wwn(name string) string {
	h := uint64(14695981039346656037)
	for _, c := range []byte(name) {
		h = (h ^ uint64(c)) * 1099511628211
	}
	return fmt.Sprintf("naa.5001405%09x", h&(1<<36-1))
}

// attach maps the ring of the UIO device that has suffix in its name.
func (t *Target) attach(suffix string) error {
	names, err := filepath.Glob("/sys/class/uio/uio*/name")
	if err != nil {
		return err
	}
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil || !strings.HasPrefix(string(b), "tcm-user/") || !strings.HasSuffix(strings.TrimSpace(string(b)), suffix) {
			continue
		}
		dir := filepath.Dir(n)
		if b, err = os.ReadFile(dir + "/maps/map0/size"); err != nil {
			return err
		}
		size, err := strconv.ParseInt(strings.TrimSpace(string(b)), 0, 64)
		if err != nil {
			return fmt.Errorf("size of the ring: %w", err)
		}
		dev := "/dev/" + filepath.Base(dir)
		if t.fd, err = unix.Open(dev, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
			return fmt.Errorf("open %s: %w", dev, err)
		}
		if t.mem, err = unix.Mmap(t.fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
			return errors.Join(fmt.Errorf("map %s: %w", dev, err), t.unmap())
		}
		if t.ring, err = newRing(t.mem, t.kick); err != nil {
			return errors.Join(fmt.Errorf("%s: %w", dev, err), t.unmap())
		}
		return nil
	}
	return fmt.Errorf("no UIO device tcm-user/*%s: %w", suffix, fs.ErrNotExist)
}

// kick has the kernel look at the ring.
func (t *Target) kick() error {
	_, err := unix.Write(t.fd, []byte{0, 0, 0, 0})
	return err
}

func (t *Target) unmap() error {
	var err error
	if t.mem != nil {
		err = unix.Munmap(t.mem)
	}
	return errors.Join(err, unix.Close(t.fd))
}

// serve answers the ring until stop. Each command has a goroutine, so that one
// that hangs does not keep the others.
func (t *Target) serve() {
	defer close(t.ended)
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case <-t.stop:
			return
		default:
		}
		for {
			c, ok, err := t.ring.take()
			if err != nil {
				t.fail(err)
				return
			}
			if !ok {
				break
			}
			rule, release := t.server.accept(c.cdb)
			running.Go(func() {
				rsp := t.server.serve(c.cdb, rule, release, c.room(), c.out)
				if len(rsp.data) > 0 || rsp.status == Good && !writes(c.cdb) {
					c.fill(rsp.data)
				}
				if err := t.ring.complete(c, rsp); err != nil {
					t.fail(err)
				}
				t.server.done()
			})
		}
		// Polled with an end, so that stop is seen; then the count is read,
		// which clears it.
		p := []unix.PollFd{{Fd: int32(t.fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(p, pollTime); err != nil && err != unix.EINTR {
			t.fail(fmt.Errorf("wait for commands: %w", err))
			return
		} else if n > 0 {
			var count [4]byte
			if _, err := unix.Read(t.fd, count[:]); err != nil && err != unix.EINTR && err != unix.EAGAIN {
				t.fail(fmt.Errorf("wait for commands: %w", err))
				return
			}
		}
	}
}

// writes tells the commands whose buffer is the initiator's.
func writes(cdb []byte) bool {
	switch cdb[0] {
	case opWrite6, opWrite10, opWrite12, opWrite16:
		return true
	}
	return false
}

func (t *Target) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.err = errors.Join(t.err, err)
}

// Err returns what went wrong while serving.
func (t *Target) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// attached waits until the disk of a SCSI device is there and nobody asks it
// anything any more.
func (t *Target) attached(hctl string) error {
	for end := time.Now().Add(attachTimeout); ; time.Sleep(20 * time.Millisecond) {
		if err := t.Err(); err != nil {
			return err
		}
		block, _ := filepath.Glob(scsiDevices + hctl + "/block/*")
		if len(block) > 0 && t.server.quiet(settleTime) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("SCSI device %s has %d disks after %s and %d commands", hctl, len(block), attachTimeout, len(t.server.commands()))
		}
	}
}

// Set changes the answers; the capacity is read again when the disk is
// rescanned. Counts of rules start anew.
func (t *Target) Set(d Disk) error { return t.server.set(d) }

// Commands returns the CDBs received, in their order, up to 65536.
func (t *Target) Commands() ([][]byte, error) { return t.server.commands(), t.Err() }

// Release has all commands answered that hang or wait.
func (t *Target) Release() { t.server.releaseAll() }

// Remove takes the disk down. Commands that hang are released.
func (t *Target) Remove() error {
	t.Release()
	var errs []error
	for len(t.undo) > 0 {
		last := len(t.undo) - 1
		if err := t.undo[last](); err != nil {
			errs = append(errs, fmt.Errorf("remove TCMU disk %s: %w", t.name, err))
		}
		t.undo = t.undo[:last]
	}
	return errors.Join(errs...)
}

// detach stops serving.
func (t *Target) detach() error {
	close(t.stop)
	<-t.ended
	return errors.Join(t.Err(), t.unmap())
}
