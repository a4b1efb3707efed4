// Command guest is the init process of a test guest: it mounts the kernel's
// file systems, opens the virtio-serial port of package wire and does what the
// test on the other side asks, each request in its own goroutine, until told
// to power off. It must never wait for a process or a file by itself: one that
// hangs is reported and left behind.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quirkcheck/quirkcheck/internal/vm/wire"
)

func main() {
	// Whatever goes wrong here ends init, which makes the kernel panic with
	// this text above it on the console: the test then shows it.
	if err := run(); err != nil {
		fmt.Println("agent:", err)
		os.Exit(1)
	}
}

func run() error {
	if err := mountAll(); err != nil {
		return err
	}
	os.Setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
	mods, err := readModules()
	if err != nil {
		return err
	}
	for _, m := range []string{"virtio_pci", "virtio_console"} {
		// A kernel that has it built in may not say so; without the port we
		// shall notice.
		if err := mods.load(m, ""); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	port, err := openPort()
	if err != nil {
		return err
	}
	a := &agent{port: port, mods: mods, children: map[int]bool{}}
	return a.serve()
}

type agent struct {
	port     *port
	mods     *modules
	send     sync.Mutex
	mu       sync.Mutex   // guards children
	children map[int]bool // processes that have a goroutine waiting for them
	targets  targets
}

func (a *agent) serve() error {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return fmt.Errorf("uname: %w", err)
	}
	up, _ := os.ReadFile("/proc/uptime")
	uptime, _, _ := strings.Cut(string(up), " ")
	hello := wire.Guest{Release: unix.ByteSliceToString(uts.Release[:]), Uptime: uptime}
	if err := wire.Write(a.port, wire.Hello, hello); err != nil {
		return fmt.Errorf("send HELLO: %w", err)
	}
	r := bufio.NewReader(a.port)
	for {
		kind, head, parts, err := wire.Read(r)
		if err != nil {
			return fmt.Errorf("read command: %w", err)
		}
		if kind != wire.Command {
			return fmt.Errorf("unexpected message %q", kind)
		}
		var rq wire.Request
		if err := json.Unmarshal(head, &rq); err != nil {
			return fmt.Errorf("decode command: %w", err)
		}
		rq.Parts = parts
		if rq.Op == wire.OpPoweroff {
			return a.poweroff(rq.ID)
		}
		go func() {
			rep := a.do(rq)
			rep.ID = rq.ID
			a.reply(rep)
		}()
	}
}

func (a *agent) reply(rep wire.Reply) {
	a.send.Lock()
	defer a.send.Unlock()
	if err := wire.Write(a.port, wire.Result, rep, rep.Parts...); err != nil {
		fmt.Println("agent: send result:", err)
	}
}

func (a *agent) poweroff(id int) error {
	a.targets.releaseAll() // the kernel shuts disks down, and waits for them
	a.reply(wire.Reply{ID: id})
	a.send.Lock() // for good: nothing may follow BYE
	if err := wire.Write(a.port, wire.Bye, struct{}{}); err != nil {
		return fmt.Errorf("send BYE: %w", err)
	}
	time.Sleep(100 * time.Millisecond) // a virtio port cannot be drained
	// No sync: with a hanging disk it would never return. Who wants the data
	// on the disk syncs before.
	return unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

func failed(err error) wire.Reply {
	rep := wire.Reply{Error: err.Error()}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		rep.Errno = int(errno)
	} else if errors.Is(err, fs.ErrNotExist) {
		rep.Errno = int(syscall.ENOENT)
	}
	return rep
}

func (a *agent) do(rq wire.Request) wire.Reply {
	switch rq.Op {
	case wire.OpExec:
		return a.exec(rq)
	case wire.OpGet:
		b, err := os.ReadFile(rq.Path)
		if err != nil {
			return failed(err)
		}
		return wire.Reply{Parts: [][]byte{b}}
	case wire.OpPut:
		if err := put(rq); err != nil {
			return failed(err)
		}
		return wire.Reply{}
	case wire.OpGlob:
		return glob(rq.Args)
	case wire.OpTree:
		b, err := tree(rq.Args)
		if err != nil {
			return failed(err)
		}
		return wire.Reply{Parts: [][]byte{b}}
	case wire.OpDisks:
		d, err := disks()
		if err != nil {
			return failed(err)
		}
		return wire.Reply{Disks: d}
	case wire.OpModprobe:
		if err := a.mods.load(rq.Args[0], parameters(rq.Args[1:])); err != nil {
			return failed(err)
		}
		return wire.Reply{}
	case wire.OpDirect:
		return direct(*rq.Direct)
	case wire.OpTCMUAdd, wire.OpTCMUSet, wire.OpTCMUCommands, wire.OpTCMURelease, wire.OpTCMURemove:
		return a.targets.do(rq, a.mods)
	}
	return failed(fmt.Errorf("unknown operation %q", rq.Op))
}

// put writes a file whole. Without permission bits the file must be there, as
// an attribute of sysfs is, and gets exactly one write call.
func put(rq wire.Request) error {
	if rq.Mode == 0 {
		f, err := os.OpenFile(rq.Path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.Write(rq.Parts[0])
		return errors.Join(err, f.Close())
	}
	if err := os.MkdirAll(filepath.Dir(rq.Path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(rq.Path, rq.Parts[0], os.FileMode(rq.Mode)); err != nil {
		return err
	}
	return os.Chmod(rq.Path, os.FileMode(rq.Mode))
}

// maxOutput bounds what is kept of one output stream.
const maxOutput = 64 << 20

type output struct{ b []byte }

func (o *output) Write(p []byte) (int, error) {
	o.b = append(o.b, p[:min(len(p), maxOutput-len(o.b))]...)
	return len(p), nil
}

// exec runs a command in a session of its own. After the timeout the whole
// process group is killed; a process that survives that, in D state, is left.
func (a *agent) exec(rq wire.Request) wire.Reply {
	if len(rq.Args) == 0 {
		return failed(errors.New("exec: no command"))
	}
	timeout := time.Duration(rq.TimeoutMS) * time.Millisecond
	stdout, stderr := &output{}, &output{}
	c := exec.Command(rq.Args[0], rq.Args[1:]...)
	c.Env = append(os.Environ(), rq.Env...)
	c.Dir = rq.Dir
	c.Stdout, c.Stderr = stdout, stderr
	if len(rq.Parts) > 0 && len(rq.Parts[0]) > 0 {
		c.Stdin = strings.NewReader(string(rq.Parts[0]))
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if rq.UID != 0 || rq.GID != 0 {
		c.SysProcAttr.Credential = &syscall.Credential{Uid: rq.UID, Gid: rq.GID}
	}
	// A daemon that keeps our pipes open must not keep us.
	c.WaitDelay = 500 * time.Millisecond
	a.mu.Lock()
	err := c.Start()
	if err == nil {
		a.children[c.Process.Pid] = true
	}
	a.mu.Unlock()
	if err != nil {
		return failed(fmt.Errorf("exec %s: %w", rq.Args[0], err))
	}
	done := make(chan error, 1)
	go func() {
		err := c.Wait()
		a.mu.Lock()
		delete(a.children, c.Process.Pid)
		a.mu.Unlock()
		a.reap()
		done <- err
	}()
	rep := wire.Reply{}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case err = <-done:
	case <-timer.C:
		rep.TimedOut = true
		_ = unix.Kill(-c.Process.Pid, unix.SIGKILL)
		select {
		case err = <-done:
		case <-time.After(2 * time.Second):
			// Still writing into its buffers, for all we know: say nothing of them.
			rep.Stuck = true
			rep.Parts = [][]byte{nil, nil}
			return rep
		}
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		rep.Error = fmt.Sprintf("exec %s: %v", rq.Args[0], err)
	}
	if ws, ok := c.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		rep.Signal = int(ws.Signal())
		rep.Exit = 128 + rep.Signal
	} else {
		rep.Exit = c.ProcessState.ExitCode()
	}
	rep.Parts = [][]byte{stdout.b, stderr.b}
	return rep
}

// reap collects zombies that were orphaned to init and that nobody waits for.
// It asks the kernel for init's children (proc(5)): going through all processes
// takes longer than most commands where every disk has its threads.
func (a *agent) reap() {
	a.mu.Lock()
	defer a.mu.Unlock()
	lists, _ := filepath.Glob("/proc/1/task/[0-9]*/children")
	for _, l := range lists {
		b, err := os.ReadFile(l)
		if err != nil {
			continue
		}
		for _, word := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(word); err == nil && !a.children[pid] {
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
			}
		}
	}
}

// port is the virtio-serial port, used without Go's poller: while the other
// side is away a read returns 0 bytes, which is no end of file.
type port struct{ fd int }

func openPort() (*port, error) {
	for range 600 {
		names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, n := range names {
			b, err := os.ReadFile(n)
			if err != nil || strings.TrimSpace(string(b)) != wire.PortName {
				continue
			}
			dev := "/dev/" + filepath.Base(filepath.Dir(n))
			fd, err := unix.Open(dev, unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err == nil {
				return &port{fd}, nil
			}
			if !errors.Is(err, unix.ENOENT) {
				return nil, fmt.Errorf("open %s: %w", dev, err)
			}
		}
		time.Sleep(50 * time.Millisecond)
	}
	return nil, errors.New("no virtio-serial port named " + wire.PortName)
}

func (p *port) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(p.fd, b)
		switch {
		case n > 0:
			return n, nil
		case err == nil, err == unix.EAGAIN:
			time.Sleep(20 * time.Millisecond)
		case err != unix.EINTR:
			return 0, err
		}
	}
}

func (p *port) Write(b []byte) (int, error) {
	sent := 0
	for sent < len(b) {
		n, err := unix.Write(p.fd, b[sent:])
		switch {
		case n > 0:
			sent += n
		case err == nil, err == unix.EAGAIN:
			time.Sleep(20 * time.Millisecond)
		case err != unix.EINTR:
			return sent, err
		}
	}
	return sent, nil
}

var _ io.ReadWriter = (*port)(nil)
