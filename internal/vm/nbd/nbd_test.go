package nbd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quirkcheck/quirkcheck/internal/vm/faultdisk"
)

// start serves d and returns the socket's path.
func start(t *testing.T, d *faultdisk.Disk) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "nbd") // a short name, as sockets need
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, ln, d) }()
	t.Cleanup(func() {
		d.Close()
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(5 * time.Second):
			t.Error("Serve did not end")
		}
		os.RemoveAll(dir)
	})
	return path
}

// client is as much of NBD as the test needs, written from the protocol and
// not from the server.
type client struct {
	t *testing.T
	net.Conn
}

func dial(t *testing.T, path string) *client {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return &client{t, c}
}

func (c *client) read(n int) []byte {
	c.t.Helper()
	p := make([]byte, n)
	if _, err := io.ReadFull(c, p); err != nil {
		c.t.Fatal(err)
	}
	return p
}

func (c *client) send(parts ...any) {
	c.t.Helper()
	var b bytes.Buffer
	for _, p := range parts {
		if err := binary.Write(&b, binary.BigEndian, p); err != nil {
			c.t.Fatal(err)
		}
	}
	if _, err := c.Write(b.Bytes()); err != nil {
		c.t.Fatal(err)
	}
}

func (c *client) greet(flags uint32) {
	c.t.Helper()
	if got := c.read(18); string(got[:16]) != "NBDMAGICIHAVEOPT" || got[17]&1 == 0 {
		c.t.Fatalf("greeting is %q", got)
	}
	c.send(flags)
}

// option sends an option and returns its replies up to the last.
func (c *client) option(opt uint32, data []byte) (kinds []uint32, bodies [][]byte) {
	c.t.Helper()
	c.send([]byte("IHAVEOPT"), opt, uint32(len(data)), data)
	for {
		h := c.read(20)
		if binary.BigEndian.Uint64(h) != 0x3e889045565a9 || binary.BigEndian.Uint32(h[8:]) != opt {
			c.t.Fatalf("reply header is %x", h)
		}
		kind := binary.BigEndian.Uint32(h[12:])
		kinds = append(kinds, kind)
		bodies = append(bodies, c.read(int(binary.BigEndian.Uint32(h[16:]))))
		if kind == 1 || kind >= 1<<31 {
			return kinds, bodies
		}
	}
}

// enter does the handshake that QEMU does.
func (c *client) enter() (size int64, flags uint16) {
	c.t.Helper()
	c.greet(3)
	for _, refused := range []uint32{8 /* structured reply */, 5 /* starttls */, 99} {
		if kinds, _ := c.option(refused, nil); len(kinds) != 1 || kinds[0] != 1<<31+1 {
			c.t.Errorf("option %d answered %x, want NBD_REP_ERR_UNSUP", refused, kinds)
		}
	}
	// NBD_OPT_GO with an empty name and one information request.
	kinds, bodies := c.option(7, []byte{0, 0, 0, 0, 0, 1, 0, 3})
	for i, k := range kinds {
		if k == 3 && binary.BigEndian.Uint16(bodies[i]) == 0 {
			size, flags = int64(binary.BigEndian.Uint64(bodies[i][2:])), binary.BigEndian.Uint16(bodies[i][10:])
		}
	}
	return size, flags
}

func (c *client) request(cmd uint16, cookie uint64, off int64, n int, data []byte) {
	c.t.Helper()
	c.send(uint32(0x25609513), uint16(0), cmd, cookie, off, uint32(n), data)
}

func (c *client) reply(n int) (cookie uint64, errno syscall.Errno, data []byte) {
	c.t.Helper()
	h := c.read(16)
	if binary.BigEndian.Uint32(h) != 0x67446698 {
		c.t.Fatalf("reply is %x", h)
	}
	errno = syscall.Errno(binary.BigEndian.Uint32(h[4:]))
	if errno == 0 {
		data = c.read(n)
	}
	return binary.BigEndian.Uint64(h[8:]), errno, data
}

func TestTransmission(t *testing.T) {
	d := faultdisk.New(1<<20, faultdisk.Options{})
	c := dial(t, start(t, d))
	size, flags := c.enter()
	if size != 1<<20 {
		t.Errorf("export has %d bytes, want 1 MiB", size)
	}
	if want := uint16(1 | 1<<2 | 1<<5 | 1<<6); flags&want != want {
		t.Errorf("transmission flags %#x, want flush, trim and write zeroes", flags)
	}
	data := bytes.Repeat([]byte("quirk..."), 1024)
	c.request(1, 11, 4096, len(data), data)
	if cookie, errno, _ := c.reply(0); cookie != 11 || errno != 0 {
		t.Errorf("write answered %d, %v", cookie, errno)
	}
	c.request(0, 12, 4096, len(data), nil)
	if cookie, errno, got := c.reply(len(data)); cookie != 12 || errno != 0 || !bytes.Equal(got, data) {
		t.Errorf("read answered %d, %v, same data %v", cookie, errno, bytes.Equal(got, data))
	}
	for _, r := range []struct {
		cmd uint16
		off int64
		n   int
	}{{3, 0, 0}, {4, 4096, 512}, {6, 4608, 512}} { // flush, trim, write zeroes
		c.request(r.cmd, uint64(20+r.cmd), r.off, r.n, nil)
		if cookie, errno, _ := c.reply(0); cookie != uint64(20+r.cmd) || errno != 0 {
			t.Errorf("command %d answered %d, %v", r.cmd, cookie, errno)
		}
	}
	c.request(0, 29, 4096, 1536, nil)
	if _, _, got := c.reply(1536); !bytes.Equal(got, append(make([]byte, 1024), data[1024:1536]...)) {
		t.Error("trim and write zeroes did not zero what they were told, and no more")
	}
	c.request(0, 30, 1<<20, 512, nil)
	if _, errno, _ := c.reply(512); errno == 0 {
		t.Error("reading past the end: no error")
	}
	c.request(77, 31, 0, 0, nil)
	if _, errno, _ := c.reply(0); errno != syscall.EINVAL {
		t.Errorf("unknown command: %v, want EINVAL", errno)
	}
	d.SetFaults(faultdisk.Fault{Name: "full", Do: faultdisk.Fail(syscall.ENOSPC)})
	c.request(1, 32, 0, 512, make([]byte, 512))
	if _, errno, _ := c.reply(0); errno != syscall.ENOSPC {
		t.Errorf("full disk: %v, want ENOSPC", errno)
	}
	d.SetFaults(faultdisk.Fault{Name: "odd", Do: func(*faultdisk.Transfer) error { return errors.New("odd") }})
	c.request(1, 33, 0, 512, make([]byte, 512))
	if _, errno, _ := c.reply(0); errno != syscall.EIO {
		t.Errorf("an error without a number: %v, want EIO", errno)
	}
	c.request(2, 0, 0, 0, nil)
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("after DISC: %v, want the connection closed", err)
	}
	var ops []string
	for _, r := range d.Log() {
		ops = append(ops, r.Op.String())
	}
	if got, want := strings.Join(ops, " "), "write read flush trim write-zeroes read write write"; got != want {
		t.Errorf("the disk saw %s, want %s", got, want)
	}
}

func TestRequestsOvertake(t *testing.T) {
	release := make(chan struct{})
	d := faultdisk.New(1<<20, faultdisk.Options{Faults: []faultdisk.Fault{
		{Name: "hang", When: faultdisk.Touches(0, 512), Do: faultdisk.Hang(5*time.Second, release)},
	}})
	c := dial(t, start(t, d))
	c.enter()
	c.request(0, 1, 0, 512, nil)
	c.request(0, 2, 4096, 512, nil)
	if cookie, _, _ := c.reply(512); cookie != 2 {
		t.Errorf("first answer is for %d, want 2, as 1 hangs", cookie)
	}
	close(release)
	if cookie, _, _ := c.reply(512); cookie != 1 {
		t.Errorf("second answer is for %d, want 1", cookie)
	}
}

func TestHandshakes(t *testing.T) {
	path := start(t, faultdisk.New(1<<20, faultdisk.Options{}))
	t.Run("export name", func(t *testing.T) {
		c := dial(t, path)
		c.greet(1) // wants the zeroes
		c.send([]byte("IHAVEOPT"), uint32(1), uint32(0))
		if got := c.read(10 + 124); binary.BigEndian.Uint64(got) != 1<<20 {
			t.Errorf("size is %d", binary.BigEndian.Uint64(got))
		}
		c.request(3, 5, 0, 0, nil)
		if cookie, errno, _ := c.reply(0); cookie != 5 || errno != 0 {
			t.Errorf("flush answered %d, %v", cookie, errno)
		}
	})
	t.Run("list", func(t *testing.T) {
		c := dial(t, path)
		c.greet(3)
		if kinds, _ := c.option(3, nil); len(kinds) != 2 || kinds[0] != 2 {
			t.Errorf("list answered %x, want one server and an acknowledgement", kinds)
		}
	})
	for name, data := range map[string][]byte{
		"no magic":    []byte("IHAVENOT\x00\x00\x00\x07\x00\x00\x00\x00"),
		"long option": []byte("IHAVEOPT\x00\x00\x00\x07\xff\xff\xff\xff"),
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, path)
			c.greet(3)
			c.send(data)
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Error("the server went on")
			}
		})
	}
	t.Run("long write", func(t *testing.T) {
		c := dial(t, path)
		c.enter()
		c.request(1, 1, 0, 1<<30, nil)
		if _, err := c.Read(make([]byte, 1)); err == nil {
			t.Error("the server went on")
		}
	})
}

// TestOthers has independent clients use the server.
func TestOthers(t *testing.T) {
	d := faultdisk.New(64<<20, faultdisk.Options{})
	path := start(t, d)
	uri := "nbd+unix:///?socket=" + path
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"nbdinfo", uri}, "export-size: 67108864"},
		{[]string{
			"qemu-io", "-f", "raw", "-c", "write -P 0x5a 1M 4M", "-c", "read -P 0x5a 1M 4M", "-c", "flush", "-c", "write -z 1M 64k",
			"-c", "read -P 0 1M 64k", "-c", "discard 2M 1M", uri,
		}, "read 4194304/4194304 bytes"},
	} {
		if _, err := exec.LookPath(c.args[0]); err != nil {
			t.Logf("not asked: %v", err)
			continue
		}
		out, err := exec.Command(c.args[0], c.args[1:]...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), c.want) || strings.Contains(string(out), "failed") {
			t.Errorf("%s: %v, want %q in:\n%s", c.args[0], err, c.want, out)
		}
	}
	if _, err := exec.LookPath("qemu-io"); err == nil {
		if n, _ := d.Largest(faultdisk.Write); n != 4<<20 {
			t.Errorf("largest write is %d bytes, want 4 MiB in one", n)
		}
	}
}
