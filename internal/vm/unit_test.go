package vm

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestCPIO has an independent program read what we write.
func TestCPIO(t *testing.T) {
	dir := t.TempDir()
	src := filepath.Join(dir, "src")
	if err := os.WriteFile(src, []byte("from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := archive{}
	for _, n := range []int{0, 1, 2, 3, 4, 5} { // every padding, of names and of data
		a.file("d/"+strings.Repeat("n", n+1), 0o644, bytes.Repeat([]byte("x"), n))
	}
	a.copy("usr/bin/prog", src)
	a.symlink("bin", "usr/bin")
	var out, again bytes.Buffer
	if err := a.writeTo(&out); err != nil {
		t.Fatal(err)
	}
	if err := a.writeTo(&again); err != nil || !bytes.Equal(out.Bytes(), again.Bytes()) {
		t.Errorf("the same archive was written differently, %v", err)
	}
	if out.Len()%cpioAlign != 0 {
		t.Errorf("archive has %d bytes, which the next layer could not follow", out.Len())
	}
	tool, err := findTool("cpio")
	if err != nil {
		if tool, err = findTool("busybox"); err != nil {
			skipMissing(t, err)
		}
	}
	args := []string{"-i", "-d", "-m"}
	if filepath.Base(tool) == "busybox" {
		args = append([]string{"cpio"}, args...)
	}
	c := exec.Command(tool, args...)
	c.Dir = filepath.Join(dir, "out")
	if err := os.Mkdir(c.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	c.Stdin = &out
	if msg, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", tool, err, msg)
	}
	for n := range 6 {
		got, err := os.ReadFile(filepath.Join(c.Dir, "d", strings.Repeat("n", n+1)))
		if err != nil || len(got) != n {
			t.Errorf("file of %d bytes came out with %d, %v", n, len(got), err)
		}
	}
	st, err := os.Stat(filepath.Join(c.Dir, "bin/prog")) // through the link
	if err != nil || st.Mode().Perm() != 0o755 || st.Size() != 11 {
		t.Errorf("program came out as %v, %v", st, err)
	}
}

func TestLibraries(t *testing.T) {
	dirs := libraryDirs()
	sh, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		skipMissing(t, err)
	}
	libs, err := needed(sh, dirs)
	if err != nil {
		t.Fatal(err)
	}
	has := func(part string) bool {
		return slices.ContainsFunc(libs, func(l string) bool { return strings.Contains(l, part) })
	}
	if !has("libc.so") || !has("ld-linux") {
		t.Errorf("%s needs %v, want the C library and the loader", sh, libs)
	}
	for _, l := range libs {
		if f, err := elf.Open(l); err != nil {
			t.Errorf("%s: %v", l, err)
		} else {
			f.Close()
		}
	}
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if libs, err := needed(script, dirs); err != nil || len(libs) != 0 {
		t.Errorf("a script needs %v, %v; want nothing", libs, err)
	}
	var missing *MissingError
	if _, err := needed(sh, []string{t.TempDir()}); !errors.As(err, &missing) {
		t.Errorf("without library folders: %v, want a *MissingError", err)
	}
	if _, err := findTool("no-such-program"); !errors.As(err, &missing) || missing.What != "no-such-program" {
		t.Errorf("a program that is not there: %v, want a *MissingError that names it", err)
	}
}

func TestModuleFiles(t *testing.T) {
	dir := t.TempDir()
	dep := `kernel/drivers/scsi/sd_mod.ko.xz: kernel/drivers/scsi/scsi_mod.ko.xz kernel/lib/t10-pi.ko.xz
kernel/drivers/scsi/scsi_mod.ko.xz:
kernel/lib/t10-pi.ko.xz:
kernel/drivers/usb/usb-storage.ko: kernel/drivers/scsi/scsi_mod.ko.xz
`
	if err := os.WriteFile(filepath.Join(dir, "modules.dep"), []byte(dep), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := moduleFiles(dir, []string{"sd_mod", "usb_storage", "not-in-this-kernel"})
	want := []string{
		"kernel/drivers/scsi/scsi_mod.ko.xz", "kernel/drivers/scsi/sd_mod.ko.xz", "kernel/drivers/usb/usb-storage.ko", "kernel/lib/t10-pi.ko.xz",
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
	if err := os.WriteFile(filepath.Join(dir, "modules.dep"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := moduleFiles(dir, nil); err == nil {
		t.Error("an empty modules.dep: no error")
	}
}

func TestUnpackKernel(t *testing.T) {
	elfKernel := append([]byte("\x7fELF"), bytes.Repeat([]byte("kernel"), 1000)...)
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, elfKernel, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"", "gzip", "xz", "zstd", "lz4"} {
		t.Run("packed by "+cmpOr(tool, "nothing"), func(t *testing.T) {
			image := plain
			if tool != "" {
				args := []string{"-c"}
				if tool == "lz4" {
					args = []string{"-l", "-c"} // the legacy format, as kernels use it
				}
				packed, err := filter(t.Context(), elfKernel, tool, args...)
				if err != nil {
					skipMissing(t, err)
				}
				// A boot sector with a false magic in front, junk behind.
				image = filepath.Join(t.TempDir(), "vmlinuz")
				b := slices.Concat([]byte("MZ\x1f\x8b\x08junk\xfd7zXZ\x00junk"), packed, []byte("trailing junk"))
				if err := os.WriteFile(image, b, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got, err := unpackKernel(t.Context(), image)
			if err != nil || !bytes.HasPrefix(got, elfKernel) {
				t.Errorf("got %d bytes, %v; want the %d of the kernel", len(got), err, len(elfKernel))
			}
		})
	}
	junk := filepath.Join(t.TempDir(), "junk")
	if err := os.WriteFile(junk, []byte("MZ nothing here"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := unpackKernel(t.Context(), junk); err == nil {
		t.Error("an image without a kernel: no error")
	}
}

func TestSources(t *testing.T) {
	list := parseList(`# a comment
deb [signed-by=/k.gpg arch=amd64] http://mirror.example/debian bookworm main contrib # behind
deb-src http://mirror.example/debian bookworm main
deb http://security.example/debian-security bookworm-security main
deb http://vendor.example/ bookworm stable
deb broken
`)
	stanzas := parseStanzas(`Types: deb deb-src
# http://not.example
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/k.gpg

Types: deb
URIs: http://off.example/
Suites: bookworm
Components: main
Enabled: no

Types: deb
URIs: http://inline.example/debian
Suites:
 sid
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
`)
	text := func(ss []source) (out []string) {
		for _, s := range ss {
			out = append(out, s.String())
		}
		return out
	}
	want := []string{
		"deb [signed-by=/k.gpg arch=amd64] http://mirror.example/debian bookworm main contrib",
		"deb http://security.example/debian-security bookworm-security main",
		"deb http://vendor.example/ bookworm stable",
	}
	if diff := cmp.Diff(want, text(list)); diff != "" {
		t.Errorf("one-line format (-want +got):\n%s", diff)
	}
	want = []string{
		"deb [signed-by=/usr/share/keyrings/k.gpg] http://mirror.example/debian bookworm main",
		"deb [signed-by=/usr/share/keyrings/k.gpg] http://mirror.example/debian bookworm-updates main",
		"deb http://inline.example/debian sid main",
	}
	if diff := cmp.Diff(want, text(stanzas)); diff != "" {
		t.Errorf("stanzas (-want +got):\n%s", diff)
	}
	if got, ok := mainSource(list, "bookworm"); !ok || got.uri != "http://mirror.example/debian" {
		t.Errorf("main source is %v, %v", got, ok)
	}
	if got, ok := mainSource(list, "trixie"); ok {
		t.Errorf("main source of another release is %v, want none", got)
	}
	if got := ofRelease(list, "bookworm"); len(got) != 2 {
		t.Errorf("sources of the release are %v, want the archive and security", got)
	}
}

func TestNaturalOrder(t *testing.T) {
	in := []string{"6.12.9+deb13", "6.12.107+deb13", "6.12.90+deb12", "6.1.0-9", "6.1.0-57", "7.2.13", "7.10.1"}
	want := []string{"6.1.0-9", "6.1.0-57", "6.12.9+deb13", "6.12.90+deb12", "6.12.107+deb13", "7.2.13", "7.10.1"}
	slices.SortFunc(in, compareNatural)
	if diff := cmp.Diff(want, in); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if compareNatural("6.1.0-9", "6.1.0-9") != 0 {
		t.Error("equal names compare as different")
	}
}

func TestCacheIsAtomicAndShared(t *testing.T) {
	dir := t.TempDir()
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			p, err := cachedFile(dir, "layer", func(w io.Writer) error {
				for range 100 {
					if _, err := io.WriteString(w, "x"); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
				return
			}
			if b, err := os.ReadFile(p); err != nil || len(b) != 100 {
				t.Errorf("read %d bytes, %v; want 100", len(b), err)
			}
		}()
	}
	wg.Wait()
	broken := errors.New("broken")
	if _, err := cachedFile(dir, "other", func(w io.Writer) error { _, _ = io.WriteString(w, "half"); return broken }); !errors.Is(err, broken) {
		t.Errorf("got %v, want the maker's error", err)
	}
	if _, err := cachedFile(dir, "layer", func(io.Writer) error { t.Error("made again"); return nil }); err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the cache holds %v, %v; want the one layer", entries, err)
	}
	old := time.Now().Add(-2 * layerAge)
	if err := os.Chtimes(filepath.Join(dir, "layer"), old, old); err != nil {
		t.Fatal(err)
	}
	prune(dir)
	if _, err := os.Stat(filepath.Join(dir, "layer")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an old layer after prune: %v, want it gone", err)
	}
}

func TestKeyDependsOnContent(t *testing.T) {
	f := filepath.Join(t.TempDir(), "f")
	sum := func(content string, extra ...string) string {
		if err := os.WriteFile(f, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		k := newKey(extra...)
		if err := k.file(f); err != nil {
			t.Fatal(err)
		}
		return k.String()
	}
	one := sum("one", "a", "b")
	for _, other := range []string{sum("three", "a", "b"), sum("one", "ab"), sum("one", "a", "b", "")} {
		if one == other {
			t.Error("different things have one key")
		}
	}
}

func TestDiskChecks(t *testing.T) {
	img := TestImage(t, 1<<20)
	ok := Disk{Serial: "S", Bus: VirtioSCSI, Image: img}
	for _, c := range []struct {
		name string
		edit func(d *Disk)
		want string
	}{
		{"nothing wrong", func(*Disk) {}, ""},
		{"no serial", func(d *Disk) { d.Serial = "" }, "serial must have"},
		{"long serial", func(d *Disk) { d.Serial = strings.Repeat("s", 21) }, "serial must have"},
		{"unknown bus", func(d *Disk) { d.Bus = "scuzzy" }, `unknown bus "scuzzy"`},
		{"no image", func(d *Disk) { d.Image = nil }, "no image"},
		{"model on SCSI", func(d *Disk) { d.Model = "M" }, "Model cannot be set on virtio-scsi"},
		{"vendor on ATA", func(d *Disk) { d.Bus, d.Vendor = AHCI, "V" }, "Vendor cannot be set on ahci"},
		{"long product", func(d *Disk) { d.Product = strings.Repeat("p", 17) }, "Product is longer than 16"},
		{"firmware on NVMe", func(d *Disk) { d.Bus, d.Firmware = NVMe, "F" }, "Firmware cannot be set on nvme"},
		{"MDTS on SCSI", func(d *Disk) { d.MDTS = 3 }, "MDTS cannot be set"},
		{"high speed on NVMe", func(d *Disk) { d.Bus, d.HighSpeed = NVMe, true }, "HighSpeed cannot be set on nvme"},
		{"namespace on SCSI", func(d *Disk) { d.Namespace = []string{"ms=8"} }, "Namespace cannot be set on virtio-scsi"},
		{"no controller to set", func(d *Disk) { d.Bus, d.ControllerProperties = NVMe, []string{"x=y"} }, "ControllerProperties cannot be set"},
		{"max_io_size on virtio-blk", func(d *Disk) { d.Bus, d.MaxIOBytes = VirtioBlk, 1 }, "MaxIOBytes cannot be set"},
	} {
		d := ok
		c.edit(&d)
		err := d.check()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	h := newHardware(6)
	for _, c := range []string{"", "second"} {
		for i := range maxSATA + 1 {
			_, err := h.add(Disk{Serial: fmt.Sprint("S", c, i), Bus: AHCI, Controller: c, Image: img})
			if (err != nil) != (i == maxSATA) {
				t.Errorf("SATA disk %d of controller %q: %v", i, c, err)
			}
		}
	}
	for _, c := range []struct {
		d    Disk
		want []string // arguments in this order
	}{
		{Disk{Serial: "A", Bus: AHCI, Controller: "x"}, []string{"ich9-ahci,id=ahcix", "ide-hd,id=A,drive=n0,serial=A,bus=ahcix.0"}},
		{Disk{Serial: "B", Bus: VirtioSCSI, Controller: "c", ControllerProperties: []string{"max_sectors=8"}}, []string{"virtio-scsi-pci,max_sectors=8,id=virtioscsic", "scsi-hd,id=B,"}},
		{Disk{Serial: "C", Bus: UAS, HighSpeed: true}, []string{"usb-ehci,id=ehci", "usb-uas,bus=ehci.0,id=usbuas-ehci", "scsi-hd,id=C,"}},
		{Disk{Serial: "D", Bus: UAS}, []string{"qemu-xhci,p2=8,p3=8,id=xhci", "usb-uas,bus=xhci.0,id=usbuas", "scsi-hd,id=D,"}},
		{
			Disk{Serial: "E", Bus: NVMe, MDTS: 3, LogicalBlockBytes: 4096, Namespace: []string{"ms=8"}},
			[]string{"nvme,id=E,serial=E,mdts=3", "nvme-ns,bus=E,ms=8,drive=n0,logical_block_size=4096"},
		},
	} {
		h := newHardware(6)
		c.d.Image = img
		if _, err := h.add(c.d); err != nil {
			t.Errorf("%s: %v", c.d.Serial, err)
		}
		var devices []string
		for i, a := range h.args {
			if i > 0 && h.args[i-1] == "-device" {
				devices = append(devices, a)
			}
		}
		for i, want := range c.want {
			if len(devices) != len(c.want) || !strings.HasPrefix(devices[i], want) {
				t.Errorf("%s: devices %q, want %q", c.d.Serial, devices, c.want)
				break
			}
		}
	}
	props, err := h.add(Disk{Serial: "A,B", Bus: PVSCSI, Image: img, Vendor: "x,y", Later: true})
	if err != nil || !slices.Contains(props, "vendor=x,,y") {
		t.Errorf("properties %q, %v; want commas escaped", props, err)
	}
}

func TestTraceParsing(t *testing.T) {
	cmds := parseCommands(`# tracer: nop
 sg_inq-200 [000] ..... 9.1: scsi_dispatch_cmd_start: host_no=14 channel=0 id=1 lun=0 data_sgl=1 prot_sgl=0 prot_op=SCSI_PROT_NORMAL cmnd=(INQUIRY evpd=0 page=0x00 raw=12 00 00 00 24 00)
 kworker-8  [001] d..1. 9.2: scsi_dispatch_cmd_start: host_no=2 channel=0 id=0 lun=3 data_sgl=8 prot_sgl=0 prot_op=SCSI_PROT_NORMAL driver_tag=76 scheduler_tag=0 cmnd=(WRITE_10 lba=0 txlen=2048 protect=0 raw=2a)
`)
	if diff := cmp.Diff([]SCSICommand{{"14:0:1:0", "INQUIRY"}, {"2:0:0:3", "WRITE_10"}}, cmds); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
	sizes := parseHist(`# event histogram
{ dev:    8388608, nr_sector:       1024 } hitcount:         64
{ dev:  266338304, nr_sector:          0 } hitcount:          1
`)
	if diff := cmp.Diff([]RequestSize{{"8:0", 1024, 64}, {"254:0", 0, 1}}, sizes); diff != "" {
		t.Errorf("histogram (-want +got):\n%s", diff)
	}
}

func TestConsole(t *testing.T) {
	var c console
	if c.panicLine() != "" || c.emulatorFault() {
		t.Error("an empty console has died")
	}
	fmt.Fprint(&c, "\x1bc\x1b[?7l\x1b[2Jboot\r\n[    1.0] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:\r\n  asm_exc_int3+0x35/0x40\r\n")
	if !c.emulatorFault() {
		t.Error("an RCU stall in asm_exc_int3 is not seen as the emulator's fault")
	}
	fmt.Fprint(&c, "[    9.0] Kernel panic - not syncing: why\r\n[ 9.1] more\r\n")
	if got := c.panicLine(); got != "Kernel panic - not syncing: why" {
		t.Errorf("panic line is %q", got)
	}
	if got := c.String(); !strings.HasPrefix(got, "boot\n") {
		t.Errorf("console begins with %q, want escapes and carriage returns gone", got[:10])
	}
	defer func() {
		c.restart()
		if c.panicLine() != "" || c.emulatorFault() || c.lastWords() != "" {
			t.Error("the deaths of a boot before are not forgotten")
		}
	}()
	fmt.Fprint(&c, strings.Repeat("trace\r\n", 100))
	if got := c.lastWords(); !strings.HasPrefix(got, "boot\n") || strings.Count(got, "trace") > consoleTail {
		t.Errorf("last words are %q, want those around the panic", got)
	}
}

func TestOnlyTheEmulatorsFaultIsRepeated(t *testing.T) {
	for _, c := range []struct {
		name  string
		errs  []error
		calls int
		fails bool
	}{
		{"all well", []error{nil}, 1, false},
		{"the emulator once", []error{&EmulatorError{}, nil}, 2, false},
		{"the emulator, wrapped", []error{fmt.Errorf("step: %w", &EmulatorError{}), nil}, 2, false},
		{"the emulator twice", []error{&EmulatorError{}, &EmulatorError{}}, 2, true},
		{"a panic", []error{&PanicError{}}, 1, true},
		{"a timeout", []error{&TimeoutError{}}, 1, true},
	} {
		calls, said := 0, 0
		err := twice(func(string, ...any) { said++ }, func() error { calls++; return c.errs[calls-1] })
		if calls != c.calls || said != calls-1 || (err != nil) != c.fails {
			t.Errorf("%s: %d calls, %d lines logged, %v; want %d calls, failure %v", c.name, calls, said, err, c.calls, c.fails)
		}
	}
}

// fakeMonitor answers as QEMU's monitor does.
func fakeMonitor(t *testing.T, lines ...string) *qmp {
	t.Helper()
	ours, theirs := net.Pipe()
	t.Cleanup(func() { ours.Close(); theirs.Close() })
	go func() {
		_, _ = io.WriteString(theirs, `{"QMP": {"version": {}}}`+"\n")
		b := make([]byte, 4096)
		for _, l := range lines {
			if _, err := theirs.Read(b); err != nil {
				return
			}
			_, _ = io.WriteString(theirs, l)
		}
		theirs.Close()
	}()
	return newQMP(ours)
}

func TestQMP(t *testing.T) {
	q := fakeMonitor(t,
		`{"event": "DEVICE_DELETED", "data": {"device": "d0"}}`+"\n"+`{"return": {}}`+"\n",
		`{"error": {"class": "DeviceNotFound", "desc": "Device 'x' not found"}}`+"\n")
	mark := q.mark()
	if _, err := q.do(t.Context(), "device_del", map[string]string{"id": "d0"}); err != nil {
		t.Fatal(err)
	}
	// The event came before the answer and must not be lost.
	e, err := q.wait(t.Context(), mark, func(e qmpEvent) bool { return e.Name == "DEVICE_DELETED" })
	if err != nil || !strings.Contains(string(e.Data), "d0") {
		t.Errorf("event %v, %v", e, err)
	}
	var refused *QMPError
	if _, err := q.do(t.Context(), "device_del", nil); !errors.As(err, &refused) || refused.Class != "DeviceNotFound" {
		t.Errorf("got %v, want a *QMPError", err)
	}
	if _, err := q.do(t.Context(), "stop", nil); !errors.Is(err, errMonitorGone) {
		t.Errorf("after the end: %v, want errMonitorGone", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	silent := fakeMonitor(t, "")
	if _, err := silent.wait(short, 0, func(qmpEvent) bool { return false }); err == nil {
		t.Error("waiting for an event that does not come: no error")
	}
}

// What QEMU says just before it closes its monitor is heard.
func TestQMPLastWords(t *testing.T) {
	for range 200 {
		q := fakeMonitor(t, `{"event": "SHUTDOWN"}`+"\n"+`{"return": {}}`+"\n")
		if _, err := q.do(t.Context(), "quit", nil); err != nil {
			t.Fatal(err)
		}
		<-q.gone
		if _, err := q.wait(t.Context(), 0, func(e qmpEvent) bool { return e.Name == "SHUTDOWN" }); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRequire(t *testing.T) {
	run := func(env map[string]string, tools ...string) (skipped, failed bool) {
		for _, k := range []string{"QUIRKCHECK_VM", "CI"} {
			t.Setenv(k, env[k])
		}
		r := &recorder{TB: t}
		done := make(chan struct{})
		go func() { // Skip and Fatal end their goroutine
			defer close(done)
			Require(r, tools...)
		}()
		<-done
		return r.skipped, r.failed
	}
	if skipped, failed := run(nil); !skipped || failed {
		t.Errorf("not asked for: skipped %v, failed %v; want a skip", skipped, failed)
	}
	on := map[string]string{"QUIRKCHECK_VM": "1"}
	if skipped, failed := run(on, "no-such-program"); !skipped || failed {
		t.Errorf("a program is missing: skipped %v, failed %v; want a skip", skipped, failed)
	}
	on["CI"] = "true"
	if skipped, failed := run(on, "no-such-program"); skipped || !failed {
		t.Errorf("a program is missing in CI: skipped %v, failed %v; want a failure", skipped, failed)
	}
}
