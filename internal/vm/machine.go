package vm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quirkcheck/quirkcheck/internal/vm/wire"
)

// Config is what a machine is made of.
type Config struct {
	Kernel Kernel
	// Binary is a static program under test, put at /usr/bin under its own
	// name; "" for none.
	Binary string
	// Tools are host programs to copy, by name or path: Peers, Stackers.
	Tools []string
	// Files are further files of the guest, by path; they are executable.
	Files map[string][]byte
	// Udev starts udevd, with Rules as files in /etc/udev/rules.d by name.
	Udev  bool
	Rules map[string]string
	// Modules are made available to modprobe, over the drivers of the disks,
	// which are loaded by themselves, and StandardModules.
	Modules []string
	Disks   []Disk
	// Append are further kernel parameters, "libata.force=80c".
	Append []string
	// MemoryMiB is the guest's memory without what the initramfs takes; 0 is
	// 256.
	MemoryMiB int
	// CPUs is 2 when 0.
	CPUs int
	// Hello is how long a boot may take until the agent answers; 0 is 60 s.
	Hello time.Duration
	// Reboots lets the guest boot again after a reset, where otherwise a reset
	// or reboot ends the machine.
	Reboots bool
	// QEMU are further arguments.
	QEMU []string
	// Logf gets the few things worth telling: a repeated boot. nil drops them.
	Logf func(format string, args ...any)
}

// StandardModules can be loaded in every guest.
var StandardModules = []string{
	"virtio_pci", "virtio_console", "virtio_scsi", "virtio_blk", "ahci", "sd_mod", "sr_mod", "sg", "scsi_debug", "nvme", "uas", "usb_storage",
	"xhci_pci", "ehci_pci", "megaraid_sas", "mptsas", "vmw_pvscsi", "loop", "null_blk", "ext4", "crc32c_generic",
	"dm_mod", "dm_multipath", "dm_round_robin", "dm_queue_length", "dm_service_time", "dm_crypt", "dm_flakey", "dm_delay", "scsi_dh_alua",
	"raid0", "raid1", "raid10", "raid456",
	"target_core_mod", "target_core_user", "tcm_loop", "uio",
	// What dm-crypt asks for by itself when a table is loaded.
	"xts", "ecb", "cbc", "essiv", "algif_skcipher", "aes_generic", "sha256_generic", "crct10dif_generic", "crc64_rocksoft_generic",
}

const (
	defaultMemoryMiB = 256
	defaultHello     = 60 * time.Second
	// diskTimeout is how long the disks may take to show after their drivers
	// are loaded.
	diskTimeout = 30 * time.Second
	// closeTimeout is how long a guest may take to power off before it is
	// killed.
	closeTimeout = 5 * time.Second
	consoleTail  = 25 // lines of the console in an error
)

// A Machine is a running guest. It is safe for concurrent use, so a load may
// run while another goroutine changes settings.
type Machine struct {
	cfg    Config
	qemu   *exec.Cmd
	ended  chan struct{} // closed when QEMU is gone; endErr then says how
	endErr error
	stderr *console
	con    *console
	qmp    *qmp
	ctl    net.Conn
	disks  map[string][]string // id -> properties for device_add
	cancel context.CancelFunc

	mu      sync.Mutex // guards the rest, and writing to ctl
	nextID  int
	waiting map[int]chan answer
	boots   int
	hello   chan wire.Guest
	sendErr error // of the first message that could not be sent
	ctlErr  error
	ctlGone chan struct{}
	guest   wire.Guest
}

// Start boots a machine, loads the drivers of its disks and waits until they
// are there. It ends with ctx at the latest. A boot that fails before the
// agent answers is repeated once.
//
// The error is a *MissingError when the host lacks something, *PanicError,
// *TimeoutError, *GoneError or *EmulatorError when the guest does not come up,
// *DiskError when one of the disks does not.
func Start(ctx context.Context, cfg Config) (*Machine, error) {
	if cfg.Logf == nil {
		cfg.Logf = func(string, ...any) {}
	}
	m, err := boot(ctx, cfg)
	if err != nil && ctx.Err() == nil && worthRetry(err) {
		cfg.Logf("vm: starting once more, as the guest did not come up: %v", err)
		m, err = boot(ctx, cfg)
	}
	if err != nil {
		return nil, err
	}
	if err := m.prepare(ctx); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

func worthRetry(err error) bool {
	var (
		pan *PanicError
		to  *TimeoutError
		emu *EmulatorError
	)
	return errors.As(err, &pan) || errors.As(err, &to) || errors.As(err, &emu)
}

// boot gets a guest as far as HELLO.
func boot(ctx context.Context, cfg Config) (*Machine, error) {
	image, size, err := buildImage(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("build initramfs: %w", err)
	}
	defer image.Close()
	bin, err := findTool("qemu-system-x86_64")
	if err != nil {
		return nil, err
	}
	ctl, ctlFile, err := socketPair()
	if err != nil {
		return nil, err
	}
	defer ctlFile.Close()
	mon, monFile, err := socketPair()
	if err != nil {
		ctl.Close()
		return nil, err
	}
	defer monFile.Close()

	// QEMU's descriptors: 3 control, 4 monitor, 5 initramfs, then images.
	files := []*os.File{ctlFile, monFile, image}
	h := newHardware(3 + len(files))
	m := &Machine{
		cfg: cfg, ended: make(chan struct{}), con: &console{}, stderr: &console{}, ctl: ctl,
		disks: map[string][]string{}, waiting: map[int]chan answer{}, hello: make(chan wire.Guest, 1), ctlGone: make(chan struct{}),
	}
	fail := func(err error) (*Machine, error) {
		ctl.Close()
		mon.Close()
		return nil, err
	}
	for _, d := range cfg.Disks {
		props, err := h.add(d)
		if err != nil {
			return fail(err)
		}
		m.disks[d.id()] = props
	}
	const mib = 1 << 20
	args := []string{
		"-M", "q35,hpet=off", "-accel", "tcg,thread=multi", "-cpu", "qemu64,+rdrand",
		"-m", fmt.Sprint(orInt(cfg.MemoryMiB, defaultMemoryMiB) + int((size+mib-1)/mib)), "-smp", fmt.Sprint(orInt(cfg.CPUs, 2)),
		"-display", "none", "-nodefaults", "-no-user-config", "-nic", "none",
		"-kernel", cfg.Kernel.Image, "-initrd", "/proc/self/fd/5",
		"-append", strings.Join(append([]string{"console=ttyS0 panic=-1 quiet tsc=reliable"}, cfg.Append...), " "),
		"-chardev", "stdio,id=con,signal=off", "-serial", "chardev:con",
		"-chardev", "socket,id=ctl,fd=3", "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=ctl,name=" + wire.PortName,
		"-chardev", "socket,id=mon,fd=4", "-mon", "chardev=mon,mode=control",
	}
	if !cfg.Reboots {
		args = append(args, "-no-reboot")
	}
	args = append(append(args, h.args...), cfg.QEMU...)
	runCtx, cancel := context.WithCancel(ctx)
	m.cancel = cancel
	m.qemu = exec.CommandContext(runCtx, bin, args...)
	m.qemu.Stdout, m.qemu.Stderr = m.con, m.stderr
	m.qemu.ExtraFiles = append(files, h.files...)
	m.qemu.WaitDelay = time.Second
	// Its own group, so that an interrupt at the terminal reaches the test
	// only, which then ends it in order; and never without its test.
	m.qemu.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		// The death signal is tied to the thread that started the process,
		// so that thread has to stay.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := m.qemu.Start()
		started <- err
		if err != nil {
			return
		}
		m.endErr = m.qemu.Wait()
		close(m.ended)
	}()
	if err := <-started; err != nil {
		cancel()
		return fail(fmt.Errorf("start QEMU: %w", err))
	}
	// QEMU's end of a socket must be its own, or its end would not show.
	ctlFile.Close()
	monFile.Close()
	m.qmp = newQMP(mon)
	go m.read()

	helloCtx, cancelHello := context.WithTimeout(ctx, orDuration(cfg.Hello, defaultHello))
	defer cancelHello()
	if err := m.waitHello(helloCtx, "boot"); err != nil {
		m.kill()
		return nil, err
	}
	return m, nil
}

// waitHello waits for the agent of a boot.
func (m *Machine) waitHello(ctx context.Context, doing string) error {
	begin := time.Now()
	_, err := m.qmp.do(ctx, "qmp_capabilities", nil)
	var refused *QMPError // it was negotiated before the reset
	if err == nil || errors.As(err, &refused) {
		select {
		case m.guest = <-m.hello:
			return nil
		case <-m.ended:
		case <-m.ctlGone:
		case <-ctx.Done():
		}
	}
	if ctx.Err() != nil {
		return m.late(doing, begin, ctx.Err())
	}
	return m.lost(doing, nil)
}

// late says why there was no answer in time.
func (m *Machine) late(doing string, begin time.Time, err error) error {
	log := m.con.lastWords()
	if m.con.emulatorFault() {
		return &EmulatorError{Doing: doing, Log: log}
	}
	if line := m.con.panicLine(); line != "" {
		return &PanicError{Doing: doing, Line: line, Log: log}
	}
	return &TimeoutError{Doing: doing, After: time.Since(begin), Log: log, Err: err}
}

// prepare loads drivers, starts udevd and waits for disks.
func (m *Machine) prepare(ctx context.Context) error {
	for _, mod := range diskModules(m.cfg.Disks) {
		// One that is built in may not be known as such; if it is not there at
		// all its disk will be missed below.
		if err := m.Modprobe(ctx, mod); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if m.cfg.Udev {
		if err := m.startUdev(ctx); err != nil {
			return err
		}
	}
	paths := map[string]int{}
	for _, d := range m.cfg.Disks {
		if !d.Later && !d.Mute {
			paths[d.Serial]++
		}
	}
	// One look at all, as a look takes long where disks are many, and a wait
	// for those that were missed then.
	all, err := m.AllDisks(ctx)
	if err != nil {
		return err
	}
	found := map[string]int{}
	for _, d := range all {
		found[d.Serial]++
	}
	for serial, n := range paths {
		if found[serial] >= n {
			continue
		}
		if _, err := m.Paths(ctx, serial, n); err != nil {
			return err
		}
	}
	return nil
}

func (m *Machine) startUdev(ctx context.Context) error {
	_, err := m.Output(ctx, "sh", "-c", `/usr/lib/systemd-udevd --daemon && udevadm trigger --action=add --type=subsystems &&
		udevadm trigger --action=add && udevadm settle --timeout=60`)
	if err != nil {
		return fmt.Errorf("start udevd: %w", err)
	}
	return nil
}

// Release returns the guest's kernel release (uname -r).
func (m *Machine) Release() string { return m.guest.Release }

// BootSeconds returns the guest's uptime when its agent answered, as text.
func (m *Machine) BootSeconds() string { return m.guest.Uptime }

// answer is what ends the wait for a request.
type answer struct {
	rep wire.Reply
	err error
}

// errRebooted is the cause of a GoneError whose guest is back.
var errRebooted = errors.New("the guest booted again")

// rebooted ends the waits for what was asked of the boot before, and has
// later errors look at the console from here on.
func (m *Machine) rebooted() {
	const doing = "wait for an answer"
	var err error = &GoneError{Doing: doing, Err: errRebooted, Log: m.con.lastWords()}
	if line := m.con.panicLine(); line != "" {
		err = &PanicError{Doing: doing, Line: line, Log: m.con.lastWords()}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, c := range m.waiting {
		c <- answer{err: err}
		delete(m.waiting, id)
	}
	if m.boots++; m.boots > 1 {
		m.con.restart()
	}
}

// read serves the control channel until it ends.
func (m *Machine) read() {
	r := bufio.NewReader(m.ctl)
	err := m.receive(r)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ctlErr = err
	close(m.ctlGone)
}

func (m *Machine) receive(r *bufio.Reader) error {
	for {
		kind, head, parts, err := wire.Read(r)
		if err != nil {
			return err
		}
		switch kind {
		case wire.Hello:
			var g wire.Guest
			if err := json.Unmarshal(head, &g); err != nil {
				return fmt.Errorf("decode HELLO: %w", err)
			}
			m.rebooted()
			select {
			case <-m.hello: // of a boot nobody waited for
			default:
			}
			m.hello <- g
		case wire.Result:
			var rep wire.Reply
			if err := json.Unmarshal(head, &rep); err != nil {
				return fmt.Errorf("decode result: %w", err)
			}
			rep.Parts = parts
			m.mu.Lock()
			c := m.waiting[rep.ID]
			delete(m.waiting, rep.ID)
			m.mu.Unlock()
			if c != nil {
				c <- answer{rep: rep}
			}
		case wire.Bye:
			// The answer to power-off came before; QEMU ends next.
		default:
			return fmt.Errorf("unexpected message %q", kind)
		}
	}
}

// call sends a request and waits for its answer, at most limit.
func (m *Machine) call(ctx context.Context, doing string, rq wire.Request, limit time.Duration) (wire.Reply, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	begin := time.Now()
	c := make(chan answer, 1)
	m.mu.Lock()
	m.nextID++
	rq.ID = m.nextID
	m.waiting[rq.ID] = c
	// A guest that does not read must not block us for good, as the port's
	// buffer is small. After half a message it cannot be talked to any more.
	err := m.sendErr
	if err == nil {
		deadline, _ := ctx.Deadline()
		_ = m.ctl.SetWriteDeadline(deadline)
		err = wire.Write(m.ctl, wire.Command, rq, rq.Parts...)
		m.sendErr = err
	}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		delete(m.waiting, rq.ID)
		m.mu.Unlock()
	}()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		cancel() // it will not answer what it has not got
	case err != nil:
		return wire.Reply{}, m.lost(doing, err)
	}
	select {
	case a := <-c:
		return a.rep, a.err
	case <-m.ctlGone:
	case <-m.ended:
	case <-ctx.Done():
		return wire.Reply{}, m.late(doing, begin, ctx.Err())
	}
	select {
	case a := <-c: // arrived together with the end
		return a.rep, a.err
	default:
	}
	return wire.Reply{}, m.lost(doing, nil)
}

// lost says why the guest is gone, once QEMU has had time to end.
func (m *Machine) lost(doing string, err error) error {
	select {
	case <-m.ended:
		err = m.endErr
	case <-time.After(2 * time.Second):
		if err == nil {
			m.mu.Lock()
			err = m.ctlErr
			m.mu.Unlock()
		}
	}
	log := m.con.lastWords()
	if line := m.con.panicLine(); line != "" {
		return &PanicError{Doing: doing, Line: line, Log: log}
	}
	if m.con.emulatorFault() {
		return &EmulatorError{Doing: doing, Log: log}
	}
	return &GoneError{Doing: doing, Err: err, QEMU: m.stderr.String(), Log: log}
}

// kill ends QEMU at once.
func (m *Machine) kill() {
	m.cancel()
	<-m.ended
	m.ctl.Close()
	m.qmp.conn.Close()
}

// PowerCut ends the machine as pulling its plug would: what it had not written
// to its disks is lost. The images can be given to a new machine.
func (m *Machine) PowerCut() { m.kill() }

// Close powers the guest off, and kills it when it does not answer. It does
// not write back the guest's caches: who wants them runs sync before.
func (m *Machine) Close() error {
	select {
	case <-m.ended:
	default:
		if _, err := m.call(context.Background(), "power off", wire.Request{Op: wire.OpPoweroff}, closeTimeout); err == nil {
			select {
			case <-m.ended:
			case <-time.After(closeTimeout):
			}
		}
	}
	m.kill()
	return nil
}

// Reset resets the guest by QMP and waits for the agent of the next boot. It
// needs Config.Reboots. Requests still running end with a *GoneError.
func (m *Machine) Reset(ctx context.Context) error {
	if !m.cfg.Reboots {
		return errors.New("reset: Config.Reboots is not set")
	}
	if _, err := m.QMP(ctx, "system_reset", nil); err != nil {
		return err
	}
	helloCtx, cancel := context.WithTimeout(ctx, orDuration(m.cfg.Hello, defaultHello))
	defer cancel()
	if err := m.waitHello(helloCtx, "reset"); err != nil {
		return err
	}
	return m.prepare(ctx)
}

// QMP sends a command to QEMU's monitor and returns its answer. QEMU's refusal
// is a *QMPError.
func (m *Machine) QMP(ctx context.Context, command string, args any) (json.RawMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	ret, err := m.qmp.do(ctx, command, args)
	if errors.Is(err, errMonitorGone) {
		return nil, m.lost("qmp "+command, err)
	}
	return ret, err
}

// Unplug removes a disk by its ID and waits until the guest has let go of it.
func (m *Machine) Unplug(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, diskTimeout)
	defer cancel()
	mark := m.qmp.mark()
	if _, err := m.QMP(ctx, "device_del", map[string]any{"id": id}); err != nil {
		return err
	}
	_, err := m.qmp.wait(ctx, mark, func(e qmpEvent) bool {
		var data struct{ Device string }
		return e.Name == "DEVICE_DELETED" && json.Unmarshal(e.Data, &data) == nil && data.Device == id
	})
	if errors.Is(err, errMonitorGone) {
		return m.lost("unplug "+id, err)
	}
	if err != nil {
		return fmt.Errorf("unplug %s: %w", id, err)
	}
	return nil
}

// Plug adds a disk of the configuration, one that was left for Later or was
// unplugged, and waits until the guest has it.
func (m *Machine) Plug(ctx context.Context, id string) (Found, error) {
	props, ok := m.disks[id]
	if !ok {
		return Found{}, fmt.Errorf("plug %s: no such disk in the configuration", id)
	}
	args := map[string]any{"driver": props[0]}
	serial := ""
	for _, p := range props[1:] {
		name, value, _ := strings.Cut(strings.ReplaceAll(p, ",,", ","), "=")
		switch name { // those that are not text
		case "share-rw":
			args[name] = value == "on"
		case "scsi-id", "lun", "max_io_size", "min_io_size", "opt_io_size", "mdts", "logical_block_size", "physical_block_size", "rotation_rate", "wwn":
			args[name] = json.Number(value)
		default:
			args[name] = value
		}
		if name == "serial" {
			serial = value
		}
	}
	if _, err := m.QMP(ctx, "device_add", args); err != nil {
		return Found{}, err
	}
	return m.Disk(ctx, serial)
}

// Console returns what the kernel wrote to its console so far, which is
// warnings, errors and its last words.
func (m *Machine) Console() string { return m.con.String() }

// KernelLog returns the kernel's log, or the console when the guest is gone.
func (m *Machine) KernelLog() string {
	r, err := m.RunCmd(context.Background(), Cmd{Args: []string{"dmesg"}, Timeout: 10 * time.Second})
	if err != nil || r.Exit != 0 {
		return m.Console()
	}
	return string(r.Stdout)
}

// A Cmd is a command to run in the guest.
type Cmd struct {
	Args     []string
	Stdin    []byte
	Env      []string // over PATH
	Dir      string
	UID, GID uint32
	// Timeout ends the command, with its process group, in the guest; 0 is
	// one minute.
	Timeout time.Duration
}

// A Result is how a command ended.
type Result struct {
	Args           []string
	Exit           int // status, or 128 and the signal's number
	Signal         syscall.Signal
	TimedOut       bool // it was killed, or could not even be killed (Stuck)
	Stuck          bool // it hangs in the kernel and lives on
	Stdout, Stderr []byte
}

// Err returns nil for a command that ended with status 0, else an error with
// the last thing it said.
func (r Result) Err() error {
	name := strings.Join(r.Args, " ")
	said := lastLines(string(r.Stderr), 5)
	if said == "" {
		said = lastLines(string(r.Stdout), 1)
	}
	switch {
	case r.Stuck:
		return fmt.Errorf("%s: hangs in the guest's kernel", name)
	case r.TimedOut:
		return fmt.Errorf("%s: timed out in the guest: %s", name, said)
	case r.Signal != 0:
		return fmt.Errorf("%s: %v: %s", name, r.Signal, said)
	case r.Exit != 0:
		return fmt.Errorf("%s: exit status %d: %s", name, r.Exit, said)
	}
	return nil
}

// callLimit is how long an answer may take that the guest has at once.
const callLimit = 30 * time.Second

// Run runs a command and waits for it. A command that ran and failed is a
// Result, not an error.
func (m *Machine) Run(ctx context.Context, args ...string) (Result, error) {
	return m.RunCmd(ctx, Cmd{Args: args})
}

// RunCmd is Run with more to say.
func (m *Machine) RunCmd(ctx context.Context, c Cmd) (Result, error) {
	timeout := orDuration(c.Timeout, time.Minute)
	doing := "run " + strings.Join(c.Args, " ")
	rep, err := m.call(ctx, doing, wire.Request{
		Op: wire.OpExec, Args: c.Args, Env: c.Env, Dir: c.Dir, UID: c.UID, GID: c.GID,
		TimeoutMS: timeout.Milliseconds(), Parts: [][]byte{c.Stdin},
	}, timeout+callLimit)
	if err != nil {
		return Result{}, err
	}
	if err := replyErr(doing, rep); err != nil {
		return Result{}, err
	}
	r := Result{Args: c.Args, Exit: rep.Exit, Signal: syscall.Signal(rep.Signal), TimedOut: rep.TimedOut, Stuck: rep.Stuck}
	if len(rep.Parts) == 2 {
		r.Stdout, r.Stderr = rep.Parts[0], rep.Parts[1]
	}
	return r, nil
}

// Output runs a command that must succeed and returns its standard output
// without white space at the ends.
func (m *Machine) Output(ctx context.Context, args ...string) (string, error) {
	r, err := m.Run(ctx, args...)
	if err != nil {
		return "", err
	}
	return string(bytes.TrimSpace(r.Stdout)), r.Err()
}

// remoteError is an error of the guest; it unwraps to the error number it had
// there, so errors.Is(err, fs.ErrNotExist) works.
type remoteError struct {
	text  string
	errno syscall.Errno
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error {
	if e.errno == 0 {
		return nil
	}
	return e.errno
}

func replyErr(doing string, rep wire.Reply) error {
	if rep.Error == "" {
		return nil
	}
	return &remoteError{fmt.Sprintf("%s: in the guest: %s", doing, rep.Error), syscall.Errno(rep.Errno)}
}

func (m *Machine) simple(ctx context.Context, doing string, rq wire.Request) (wire.Reply, error) {
	rep, err := m.call(ctx, doing, rq, callLimit)
	if err == nil {
		err = replyErr(doing, rep)
	}
	return rep, err
}

// ReadFile returns a file of the guest.
func (m *Machine) ReadFile(ctx context.Context, name string) ([]byte, error) {
	rep, err := m.simple(ctx, "read "+name, wire.Request{Op: wire.OpGet, Path: name})
	if err != nil {
		return nil, err
	}
	return rep.Parts[0], nil
}

// ReadAttr returns an attribute of sysfs without white space at the ends.
func (m *Machine) ReadAttr(ctx context.Context, name string) (string, error) {
	b, err := m.ReadFile(ctx, name)
	return string(bytes.TrimSpace(b)), err
}

// WriteFile writes a file of the guest whole, making the folders above it.
func (m *Machine) WriteFile(ctx context.Context, name string, content []byte, perm fs.FileMode) error {
	_, err := m.simple(ctx, "write "+name, wire.Request{Op: wire.OpPut, Path: name, Mode: uint32(perm.Perm()), Parts: [][]byte{content}})
	return err
}

// WriteAttr writes an attribute of sysfs, which must exist, in one call.
func (m *Machine) WriteAttr(ctx context.Context, name, value string) error {
	_, err := m.simple(ctx, fmt.Sprintf("write %q to %s", value, name), wire.Request{Op: wire.OpPut, Path: name, Parts: [][]byte{[]byte(value)}})
	return err
}

// A GuestFile is a file found by Glob.
type GuestFile struct {
	Path    string
	Content []byte
	Errno   syscall.Errno // why it could not be read, or 0
}

// Glob reads all files that match the patterns (path/filepath.Match) in one go.
func (m *Machine) Glob(ctx context.Context, patterns ...string) ([]GuestFile, error) {
	rep, err := m.simple(ctx, "glob "+strings.Join(patterns, " "), wire.Request{Op: wire.OpGlob, Args: patterns})
	if err != nil {
		return nil, err
	}
	out := make([]GuestFile, len(rep.Names))
	for i, f := range rep.Names {
		out[i] = GuestFile{f.Path, rep.Parts[i], syscall.Errno(f.Errno)}
	}
	return out, nil
}

// Tree returns folders of the guest as a tar archive, made file by file, which
// is the way to take sysfs: sizes there lie, reads hang, and some files refuse.
// A file that cannot be read is an empty one with its error number in the PAX
// record QUIRKCHECK.errno.
func (m *Machine) Tree(ctx context.Context, roots ...string) ([]byte, error) {
	doing := "copy " + strings.Join(roots, " ")
	rep, err := m.call(ctx, doing, wire.Request{Op: wire.OpTree, Args: roots}, 2*time.Minute)
	if err == nil {
		err = replyErr(doing, rep)
	}
	if err != nil {
		return nil, err
	}
	return rep.Parts[0], nil
}

// Modprobe loads a module of the image with the modules it needs. A module
// built into the kernel is no error, where the kernel shows that it is. One
// that is not there is fs.ErrNotExist.
func (m *Machine) Modprobe(ctx context.Context, name string, params ...string) error {
	_, err := m.simple(ctx, "modprobe "+name, wire.Request{Op: wire.OpModprobe, Args: append([]string{name}, params...)})
	return err
}

// Found is a disk as the guest has it.
type Found struct {
	wire.Disk
}

// Sysfs returns the disk's folder below /sys/block, joined with elem.
func (f Found) Sysfs(elem ...string) string {
	return path.Join(append([]string{"/sys/block", f.Name}, elem...)...)
}

// Dev returns the disk's device node.
func (f Found) Dev() string { return "/dev/" + f.Name }

// AllDisks returns the block devices of the guest.
func (m *Machine) AllDisks(ctx context.Context) ([]Found, error) {
	rep, err := m.simple(ctx, "list disks", wire.Request{Op: wire.OpDisks})
	if err != nil {
		return nil, err
	}
	out := make([]Found, len(rep.Disks))
	for i, d := range rep.Disks {
		out[i] = Found{d}
	}
	return out, nil
}

// Disk returns the disk with the given serial, waiting until it is there. When
// it does not come the error is a *DiskError.
func (m *Machine) Disk(ctx context.Context, serial string) (Found, error) {
	ds, err := m.Paths(ctx, serial, 1)
	if err != nil {
		return Found{}, err
	}
	return ds[0], nil
}

// Paths returns all disks with the given serial, once there are n of them.
func (m *Machine) Paths(ctx context.Context, serial string, n int) ([]Found, error) {
	end := time.Now().Add(diskTimeout)
	for {
		all, err := m.AllDisks(ctx)
		if err != nil {
			return nil, err
		}
		var out []Found
		var have []string
		for _, d := range all {
			if d.Serial == serial {
				out = append(out, d)
			}
			have = append(have, d.Name+"="+d.Serial)
		}
		if len(out) >= n {
			return out, nil
		}
		if time.Now().After(end) {
			return nil, &DiskError{Serial: serial, Have: have, Log: lastLines(m.KernelLog(), consoleTail)}
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for disk %s: %w", serial, ctx.Err())
		}
	}
}

// Direct is a series of O_DIRECT transfers, from one buffer of huge pages so
// that each can reach the driver as one request. Every sector written holds
// Seed and its own number.
type Direct = wire.Direct

// Compared is what reading a pattern back has shown.
type Compared struct {
	Mismatched int64           // bytes in all
	First      []wire.Mismatch // the first 64 of them
}

// DirectWrite writes the pattern.
func (m *Machine) DirectWrite(ctx context.Context, d Direct) error {
	d.Verify = false
	_, err := m.direct(ctx, "write", d)
	return err
}

// DirectCompare reads the pattern back.
func (m *Machine) DirectCompare(ctx context.Context, d Direct) (Compared, error) {
	d.Verify = true
	return m.direct(ctx, "read", d)
}

func (m *Machine) direct(ctx context.Context, what string, d Direct) (Compared, error) {
	doing := fmt.Sprintf("%s %d bytes at %d of %s", what, d.Bytes, d.Offset, d.Path)
	rep, err := m.call(ctx, doing, wire.Request{Op: wire.OpDirect, Direct: &d}, 2*time.Minute)
	if err == nil {
		err = replyErr(doing, rep)
	}
	return Compared{rep.Mismatched, rep.Mismatches}, err
}

// console keeps what a stream said, and knows a dying kernel.
type console struct {
	mu   sync.Mutex
	b    []byte
	from int // where the present boot begins, for what died and why
}

// restart forgets the deaths of boots before.
func (c *console) restart() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.from = len(c.b)
}

// maxConsole bounds what is kept; a kernel that repeats itself for minutes
// says nothing new.
const maxConsole = 8 << 20

func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.b = append(c.b, p...)
	if len(c.b) > maxConsole {
		cut := len(c.b) - maxConsole/2
		c.b = append([]byte{}, c.b[cut:]...)
		c.from = max(0, c.from-cut)
	}
	return len(p), nil
}

// String returns the stream with the carriage returns of a serial line, and
// the escape sequences of firmware, removed.
func (c *console) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return plainText(c.b)
}

// boot is String from the present boot on.
func (c *console) boot() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return plainText(c.b[c.from:])
}

func plainText(b []byte) string {
	return escapes.ReplaceAllString(strings.ReplaceAll(string(b), "\r", ""), "")
}

var escapes = regexp.MustCompile("\x1b(\\[[0-9;?=]*[A-Za-z]|c)")

// lastWords are the last lines, or those around a panic: what led to it is
// above it, and the trace below is longer than anyone reads.
func (c *console) lastWords() string {
	s := c.boot()
	lines := strings.Split(strings.TrimSpace(s), "\n")
	for i, l := range lines {
		if strings.Contains(l, "Kernel panic") {
			return strings.Join(lines[max(0, i-consoleTail/2):min(len(lines), i+consoleTail/2)], "\n")
		}
	}
	return lastLines(s, consoleTail)
}

func (c *console) panicLine() string {
	for line := range strings.Lines(c.boot()) {
		if i := strings.Index(line, "Kernel panic"); i >= 0 {
			return strings.TrimSpace(line[i:])
		}
	}
	return ""
}

func (c *console) emulatorFault() bool {
	s := c.boot()
	return strings.Contains(s, "rcu") && strings.Contains(s, "stall") && strings.Contains(s, "asm_exc_int3")
}

// socketPair returns a connection and the other end of it as a file for QEMU,
// so that no socket has a name that could be left behind.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "vm"), os.NewFile(uintptr(fds[1]), "qemu")
	defer ours.Close() // FileConn takes a copy
	c, err := net.FileConn(ours)
	if err != nil {
		theirs.Close()
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	return c, theirs, nil
}

// buildImage makes the initramfs of a configuration.
func buildImage(ctx context.Context, cfg Config) (*os.File, int64, error) {
	cache, err := cacheDir()
	if err != nil {
		return nil, 0, err
	}
	c := layerCache{filepath.Join(cache, "layers")}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return nil, 0, err
	}
	prune(c.dir)
	var layers []string
	add := func(l string, err error) error {
		layers = append(layers, l)
		return err
	}
	if err := add(c.base()); err != nil {
		return nil, 0, err
	}
	if err := add(c.modules(ctx, cfg.Kernel, slices.Concat(StandardModules, cfg.Modules))); err != nil {
		return nil, 0, err
	}
	// kmod serves the modules that the kernel asks for by itself.
	if err := add(c.tools(append([]string{"kmod"}, cfg.Tools...))); err != nil {
		return nil, 0, err
	}
	if cfg.Udev {
		if err := add(c.udev()); err != nil {
			return nil, 0, err
		}
	}
	agent, err := buildAgent(ctx)
	if err != nil {
		return nil, 0, err
	}
	last := archive{}
	last.file("init", 0o755, agent)
	if cfg.Binary != "" {
		last.copy("usr/bin/"+filepath.Base(cfg.Binary), cfg.Binary)
	}
	for name, content := range cfg.Files {
		last.file(strings.TrimPrefix(path.Clean(name), "/"), 0o755, content)
	}
	for name, content := range cfg.Rules {
		last.file("etc/udev/rules.d/"+name, 0o644, []byte(content))
	}
	return initrd(c.dir, layers, last)
}

// buildAgent compiles package vm/guest; Go's own cache makes that quick.
func buildAgent(ctx context.Context) ([]byte, error) {
	dir, err := os.MkdirTemp("", "quirkcheck-agent-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "init")
	if err := BuildStatic(ctx, "github.com/quirkcheck/quirkcheck/internal/vm/guest", out); err != nil {
		return nil, err
	}
	return os.ReadFile(out)
}

// staticTags and staticFlags are those of the release build (.ci/lib.sh).
const (
	staticTags  = "netgo,osusergo,sqlite_omit_load_extension"
	staticFlags = "-s -w -linkmode external -extldflags -static"
)

// BuildStatic compiles a main package of this module into a static binary, as
// guests need it: without cgo where the package does without, else linked as
// the release is.
func BuildStatic(ctx context.Context, pkg, out string) error {
	tool, err := exec.LookPath("go")
	if err != nil {
		return &MissingError{What: "go", Err: err}
	}
	run := func(cgo string, args ...string) ([]byte, error) {
		c := exec.CommandContext(ctx, tool, args...)
		c.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "GOOS=linux", "GOARCH=amd64")
		msg, err := c.CombinedOutput()
		if err != nil {
			return nil, fmt.Errorf("go %s %s: %w: %s", args[0], pkg, err, bytes.TrimSpace(msg))
		}
		return msg, nil
	}
	needs, err := run("1", "list", "-deps", "-buildvcs=false", "-tags", staticTags, "-f", "{{if and .CgoFiles (not .Standard)}}{{.ImportPath}}{{end}}", pkg)
	if err != nil {
		return err
	}
	cgo, flags := "0", "-s -w"
	if len(bytes.TrimSpace(needs)) > 0 {
		cgo, flags = "1", staticFlags
	}
	_, err = run(cgo, "build", "-trimpath", "-buildvcs=false", "-tags", staticTags, "-ldflags="+flags, "-o", out, pkg)
	return err
}

func orInt(n, other int) int {
	if n == 0 {
		return other
	}
	return n
}

func orDuration(d, other time.Duration) time.Duration {
	if d == 0 {
		return other
	}
	return d
}
