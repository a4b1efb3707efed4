package vm

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"slices"
	"testing"

	"github.com/quirkcheck/quirkcheck/internal/vm/nbd"
)

// programs are what every machine needs from the host.
var programs = []string{"qemu-system-x86_64", "busybox", "kmod", "depmod", "xz", "go"}

// Require skips the test unless machines can run here: QUIRKCHECK_VM=1 asks for
// them, and the skip names what is missing. Further programs a test needs can
// be given. In CI, where CI is set, what is missing fails the test instead,
// once QUIRKCHECK_VM=1 is set.
func Require(t testing.TB, tools ...string) {
	t.Helper()
	if os.Getenv("QUIRKCHECK_VM") != "1" {
		t.Skip("QUIRKCHECK_VM=1 is not set")
	}
	var missing []error
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		missing = append(missing, &MissingError{What: "a linux/amd64 host"})
	}
	for _, p := range append(programs[:len(programs):len(programs)], tools...) {
		if _, err := findTool(p); err != nil {
			missing = append(missing, err)
		}
	}
	skipMissing(t, errors.Join(missing...))
}

// skipMissing ends a test for lack of something.
func skipMissing(t testing.TB, err error) {
	t.Helper()
	switch {
	case err == nil:
	case inCI():
		t.Fatal(err)
	default:
		t.Skip(err)
	}
}

func inCI() bool { v := os.Getenv("CI"); return v != "" && v != "false" && v != "0" }

// Stock returns the stock kernel of the running system's suite, fetched when it
// is not cached, or the one of the matrix that QUIRKCHECK_VM_KERNEL names
// ("6.18"). The test is skipped, and in CI failed, when it is not to be had.
func Stock(t testing.TB) Kernel {
	t.Helper()
	spec := StockKernel()
	if name := os.Getenv("QUIRKCHECK_VM_KERNEL"); name != "" {
		i := slices.IndexFunc(Kernels(), func(s KernelSpec) bool { return s.Name == name })
		if i < 0 {
			t.Fatalf("QUIRKCHECK_VM_KERNEL=%s is not in the matrix", name)
		}
		spec = Kernels()[i]
	}
	k, err := FetchKernel(t.Context(), spec)
	var missing *MissingError
	if errors.As(err, &missing) {
		skipMissing(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Test boots a machine for the length of a test function. When the guest stops
// by the emulator's own fault, which f reports by failing with Machine.Must or
// by returning the error, the whole is done once more and the log says so.
//
// The images of cfg.Disks are not closed, so that f's caller can look at them;
// those of TestImage are closed with the test.
func Test(t testing.TB, cfg Config, f func(ctx context.Context, m *Machine) error) {
	t.Helper()
	if cfg.Logf == nil {
		cfg.Logf = t.Logf
	}
	err := twice(t.Logf, func() error { return once(t, cfg, f) })
	if err != nil {
		t.Fatal(err)
	}
}

// twice calls f once more when it failed by the emulator's fault.
func twice(logf func(format string, args ...any), f func() error) error {
	err := f()
	var emu *EmulatorError
	if errors.As(err, &emu) {
		logf("vm: running once more: %v", err)
		err = f()
	}
	return err
}

func once(t testing.TB, cfg Config, f func(ctx context.Context, m *Machine) error) error {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	m, err := Start(ctx, cfg)
	if err != nil {
		return err
	}
	defer m.Close() // also when f calls t.FailNow
	return f(ctx, m)
}

// ServeNBD serves a device, as a faultdisk.Disk, over NBD for the length of the
// test and returns the image to attach. A device that is an io.Closer is closed
// first, which is to end requests that still hang.
func ServeNBD(t testing.TB, dev nbd.Device) *Image {
	t.Helper()
	ln, err := net.Listen("unix", "") // the kernel picks an abstract name
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- nbd.Serve(ctx, ln, dev) }()
	t.Cleanup(func() {
		if c, ok := dev.(io.Closer); ok {
			c.Close()
		}
		cancel()
		if err := <-done; err != nil {
			t.Errorf("nbd: %v", err)
		}
	})
	return NBD(ln.Addr().String())
}

// TestImage is Sparse with an image that is closed at the end of the test.
func TestImage(t testing.TB, bytes int64) *Image {
	t.Helper()
	i := Sparse(bytes)
	if i.file == nil {
		t.Fatal("cannot create a disk image in the temporary folder")
	}
	t.Cleanup(func() { i.Close() })
	return i
}
