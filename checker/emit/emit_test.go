package emit_test

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/checker/emit"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/quirks"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func release(t testing.TB, s string) kernel.Release {
	t.Helper()
	r, err := kernel.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// fleet is a report with one of everything that can be written.
func fleet() *checker.Report {
	r := found(st380013as, "ata-dellboss-vd-io-timeout", "ata-acme-glob-io-timeout", "scsi-acme-array-io-error", "scsi-acme-adapter-io-timeout",
		"nvme-acme-io-timeout", "usb-acme-bridge-hang", "adapter-sil3112-mod15write-hang")
	d := r.Devices
	d[0].Path, d[0].Adapter, d[0].Identity = ptr("libata"), &checker.Adapter{ATAPort: ptr("3")}, ata("ST380013AS", "3.20")
	d[1].Path, d[1].Adapter, d[1].Identity = ptr("libata"), &checker.Adapter{ATAPort: ptr("4")}, ata("DELLBOSS VD", "MV.R00-0")
	d[2].Path, d[2].Identity = ptr("sat-firmware"), ata("ACME G1", "1.00")
	d[3].Path, d[3].Identity = ptr("scsi"), scsi("ACME", "Array of Disks", "1.00")
	d[4].Path, d[4].Identity = ptr("scsi"), scsi("ACME", "Adapter Disk", "1.00")
	d[5].Path, d[5].Identity = ptr("nvme-pci"), nvme("QEMU NVMe Ctrl", "7.2.0")
	d[6].Path, d[6].Identity = ptr("usb-storage"), checker.Identity{USB: &checker.USBIdentity{VID: ptr("46f4"), PID: ptr("0001")}}
	d[7].Path, d[7].Adapter, d[7].Identity = ptr("libata"), &checker.Adapter{ATAPort: ptr("7")}, ata("ST380023AS", "3.01")
	return r
}

func options(t testing.TB, k string) emit.Options {
	return emit.Options{ToolVersion: "1.0", Kernel: release(t, k), Cmdline: `quiet libata.force=1:noncq,udma4 scsi_mod.dev_flags="ACME:Other Thing:0x20" usb-storage.quirks=46f4:1:u`,
		Blacklist: map[string][]string{"sdd": {"RETRY_HWERROR"}}}
}

func TestGolden(t *testing.T) {
	db := testDB(t)
	for _, k := range emit.Kinds() {
		for _, rel := range []string{"6.1.190", "7.3.4"} {
			if rel != "7.3.4" && k != emit.KindCmdline && k != emit.KindModprobe {
				continue
			}
			name := string(k) + "-" + rel + ".golden"
			t.Run(name, func(t *testing.T) {
				a, err := emit.New(fleet(), db, options(t, rel)).Emit(k)
				if err != nil {
					t.Fatal(err)
				}
				golden(t, name, a.Text)
				for _, id := range []string{st380013as, "Written by quirkcheck 1.0"} {
					if !strings.Contains(a.Text, id) {
						t.Errorf("the text does not name %s", id)
					}
				}
			})
		}
	}
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (-update rewrites it); got:\n%s", file, got)
	}
}

func TestNothingAndRefused(t *testing.T) {
	db := testDB(t)
	pinned := found(st380013as)
	pinned.Findings[0].Verdict = checker.Mitigated
	pinned.Findings[0].MitigatedBy = &checker.MitigatedBy{Pinned: true}
	suspected := found(st380013as)
	suspected.Findings[0].Confidence = "suspected"
	unsized := found("scsi-marvell-console-link-reset")
	unknown := found(st380013as)
	unknown.Findings[0].Verdict = checker.Unknown
	for name, r := range map[string]*checker.Report{"empty": {}, "pinned": pinned, "suspected": suspected, "no size": unsized, "unknown": unknown} {
		if _, err := emit.New(r, db, emit.Options{}).Emit(emit.KindUdev); !errors.Is(err, emit.ErrNothing) {
			t.Errorf("%s: %v, want ErrNothing", name, err)
		}
		if text, err := emit.Udev(r, db, emit.Options{}); text != "" || err != nil {
			t.Errorf("%s: Udev: %q, %v", name, text, err)
		}
	}
	if p := emit.New(suspected, db, emit.Options{}); len(p.Left) != 1 || !strings.Contains(p.Left[0].Why, "--include suspected") {
		t.Errorf("left %+v", p.Left)
	}
	if _, err := emit.New(suspected, db, emit.Options{Include: []string{"suspected"}}).Emit(emit.KindUdev); err != nil {
		t.Error(err)
	}
	luck := found(st380013as)
	luck.Findings[0].Verdict, luck.Findings[0].MitigatedBy = checker.Mitigated, &checker.MitigatedBy{}
	if _, err := emit.New(luck, db, emit.Options{}).Emit(emit.KindUdev); err != nil {
		t.Errorf("mitigated by luck: %v", err)
	}

	old := fleet()
	old.Findings, old.Devices = old.Findings[1:2], old.Devices[1:2]
	for rel, want := range map[string]string{"5.10.223": "needs Linux 5.19, and this is 5.10.223", "": "kernel here is not known"} {
		o := emit.Options{}
		if rel != "" {
			o.Kernel = release(t, rel)
		}
		_, err := emit.New(old, db, o).Emit(emit.KindCmdline)
		var refused *emit.RefusedError
		if !errors.As(err, &refused) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "7.0") || !strings.Contains(err.Error(), "--emit udev") {
			t.Errorf("on %q: %v, want %q, 7.0 and udev", rel, err, want)
		}
	}
}

func TestBest(t *testing.T) {
	db := testDB(t)
	r := fleet()
	r.Devices = append(r.Devices, &checker.Device{Name: "dm-0", Kind: "dm", Members: []string{"sda", "sdb"}, Stack: &checker.Stack{Kind: "dm", Name: ptr("mpatha"), RequestBased: ptr(true)}})
	p := emit.New(r, db, options(t, "7.3.4"))
	for name, want := range map[string]struct {
		best emit.Kind
		why  string
	}{
		"sda": {emit.KindMultipath, "a path of the map mpatha"},
		"sdb": {emit.KindNone, "multipath.conf cannot name it"}, // firmware is longer than SCSI shows
		"sdc": {emit.KindUdev, "no reboot"},
		"sdd": {emit.KindUdev, `scsi_mod.dev_flags="ACME:Array of Disks:0x40400000" would bind pass-through`},
		"sdh": {emit.KindUdev, "libata.force=7:max_sec=15"},
	} {
		i := slices.IndexFunc(p.Advices, func(a emit.Advice) bool { return a.Device.Name == name })
		if a := p.Advices[i]; a.Best != want.best || !strings.Contains(a.BestWhy, want.why) {
			t.Errorf("%s: %s, %q; want %s, %q", name, a.Best, a.BestWhy, want.best, want.why)
		}
	}
	a, err := p.Emit(emit.KindUdev)
	if err != nil {
		t.Fatal(err)
	}
	if w := strings.Join(a.Warnings, "\n"); !strings.Contains(w, "sda is a path of the multipath map mpatha and is skipped") {
		t.Errorf("warnings %q", w)
	}
	// recommend sda alone: the map is no device of the report, only above one.
	r = fleet()
	for _, d := range r.Devices {
		if d.Name == "sda" {
			d.Above = []checker.Level{{Name: "dm-0", Kind: "dm", Target: ptr("multipath")}}
		} else {
			d.Above = []checker.Level{{Name: "dm-1", Kind: "dm", Target: ptr("crypt")}}
		}
	}
	p = emit.New(r, db, options(t, "7.3.4"))
	for _, a := range p.Advices {
		if want := map[bool]string{true: "dm-0"}[a.Device.Name == "sda"]; a.Map != want {
			t.Errorf("%s: map %q, want %q", a.Device.Name, a.Map, want)
		}
	}
}

// TestLimitOfTheDevice: the built-in check has no entry, so the device's own
// name is used.
func TestLimitOfTheDevice(t *testing.T) {
	r := found("limit-above-vpd-max")
	r.Findings[0].Confidence = ""
	r.Devices[0].Identity = scsi("ACME", "LUN", "1.0")
	r.Devices[0].Safe.Bounds = []checker.Bound{{MaxSectors: 600, Source: "VPD page B0h"}}
	text, err := emit.Udev(r, testDB(t), emit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`ATTRS{vendor}=="ACME", ATTRS{model}=="LUN", ATTRS{rev}=="1.0"`, `ATTR{queue/max_sectors_kb}="300"`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	r.Devices[0].Safe.Bounds[0].MaxSectors = 7
	if _, err := emit.Udev(r, testDB(t), emit.Options{}); err == nil || !strings.Contains(err.Error(), "below the 4 KiB") {
		t.Errorf("7 sectors: %v", err)
	}
}

func TestPinPresent(t *testing.T) {
	partial := disk("sdg", "sat-firmware", 1280, scsi("ATA", "INTEL SSDSC2KG48", "0120"))
	partial.Identity.Partial = true
	long := disk("sdh", "libata", 1280, ata("INTEL SSDSC2KG480G8", "XCV10120"))
	mp := disk("sdi", "scsi", 1280, scsi("PURE", "FlashArray", "8888"))
	usb := disk("sdj", "uas", 512, scsi("ACME", "Stick", "1.00"))
	hostile := disk("sdk", "scsi", 1280, scsi("A\"B", "*\n%$\\", "1.00"))
	r := &checker.Report{Devices: []*checker.Device{
		disk("sda", "scsi", 1280, scsi("SEAGATE", "ST8000NM0075", "E004")),
		disk("sdb", "scsi", 1024, scsi("SEAGATE", "ST8000NM0075", "E004")),
		disk("sdc", "scsi", 1280, scsi("SEAGATE", "ST8000NM0075", "E005")),
		disk("sdd", "scsi", 1280, scsi("HGST", "HUS726060AL5210", "A519")),
		disk("nvme0n1", "nvme-pci", 128, nvme("ACME 980 PRO (2TB)", "5B2QGXA7")),
		partial, long, mp, usb, hostile,
		{Name: "dm-0", Kind: "dm", Members: []string{"sdi"}, Stack: &checker.Stack{Kind: "dm", Target: ptr("multipath")}},
		{Name: "vda", Kind: "disk", Path: ptr("virtio-blk")},
	}}
	p, err := quirks.CompilePattern("HUS7260*")
	if err != nil {
		t.Fatal(err)
	}
	a, err := emit.PinPresent(r, []quirks.Pattern{p}, emit.Options{ToolVersion: "1.0"})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "pin.golden", a.Text)
	w := strings.Join(a.Warnings, "\n")
	for _, want := range []string{"sdg: not held: it does not show its full model", "sdi: a path of the multipath map dm-0", "sdk: not held:", "1024 to 1280 KiB now; all are held at the lowest"} {
		if !strings.Contains(w, want) {
			t.Errorf("no warning %q in\n%s", want, w)
		}
	}
	if strings.Contains(a.Text, "HUS726060") || strings.Contains(a.Text, "Stick") {
		t.Error("holds what it should not")
	}
	if _, err := emit.PinPresent(&checker.Report{}, nil, emit.Options{}); !errors.Is(err, emit.ErrNothing) {
		t.Errorf("no disk: %v", err)
	}
	var refused *emit.RefusedError
	if _, err := emit.PinPresent(&checker.Report{Devices: []*checker.Device{partial}}, nil, emit.Options{}); !errors.As(err, &refused) {
		t.Errorf("only a cut name: %v", err)
	}
}

// lookup finds a consumer, or skips; with CI set it must be there.
func lookup(t *testing.T, tool, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(tool)
	if err != nil {
		if ci := os.Getenv("CI"); ci != "" && ci != "false" && ci != "0" {
			t.Fatalf("%s (package %s) is missing", tool, pkg)
		}
		t.Skipf("%s (package %s) is missing", tool, pkg)
	}
	return path
}

func run(t *testing.T, env []string, tool string, args ...string) string {
	t.Helper()
	c := exec.Command(tool, args...)
	c.Env = append(os.Environ(), env...)
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", tool, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func write(t *testing.T, k emit.Kind, name string) string {
	t.Helper()
	a, err := emit.New(fleet(), testDB(t), options(t, "7.3.4")).Emit(k)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(a.Text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestModprobeReadsIt(t *testing.T) {
	tool := lookup(t, "modprobe", "kmod")
	out := run(t, nil, tool, "-c", "-C", filepath.Dir(write(t, emit.KindModprobe, "quirkcheck.conf")))
	for _, want := range []string{
		"options libata force=7:max_sec=15,4:max_sec=8191,3:max_sec=1024,1:noncq,1:udma4\n",
		`options scsi_mod dev_flags="ACME:Other Thing:0x20,ACME:Array of Disks:0x40400000,ACME:Adapter Disk:0x800000"` + "\n",
		"options usb_storage quirks=46f4:1:um\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("modprobe -c does not show %q:\n%s", want, out)
		}
	}
}

func TestAnsibleReadsIt(t *testing.T) {
	t.Parallel() // a run takes seconds
	tool := lookup(t, "ansible-playbook", "ansible-core")
	file := write(t, emit.KindAnsible, "quirkcheck.yml")
	env := []string{"ANSIBLE_LOCALHOST_WARNING=false", "HOME=" + t.TempDir(), "ANSIBLE_NOCOWS=1", "ANSIBLE_FORCE_COLOR=0", "LC_ALL=C.UTF-8"}
	run(t, env, tool, "--syntax-check", "-i", "localhost,", file)
	dir := t.TempDir()
	play := func(args ...string) string {
		t.Helper()
		return run(t, env, tool, append([]string{"-i", "localhost,", "-c", "local", "-e", "ansible_become=false", "-e", "quirkcheck_rules_dir=" + dir,
			"-e", "quirkcheck_reload_command=true", "-e", "ansible_python_interpreter=/usr/bin/python3", file}, args...)...)
	}
	if out := play("--check", "--diff"); !strings.Contains(out, "changed=") || strings.Contains(out, "changed=0") {
		t.Errorf("check mode does not show a change:\n%s", out)
	}
	if left, _ := filepath.Glob(dir + "/*"); len(left) > 0 {
		t.Fatalf("check mode wrote %v", left)
	}
	play()
	want, err := os.ReadFile(write(t, emit.KindUdev, "rules"))
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, emit.UdevFile))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the rules installed differ from --emit udev:\n%s", got)
	}
	if out := play(); !strings.Contains(out, "changed=0") {
		t.Errorf("the second run changes something:\n%s", out)
	}
	play("-e", "quirkcheck_state=absent")
	if left, _ := filepath.Glob(dir + "/*"); len(left) > 0 {
		t.Errorf("absent left %v", left)
	}
}

func TestShellcheckReadsIt(t *testing.T) {
	tool := lookup(t, "shellcheck", "shellcheck")
	run(t, nil, tool, "--shell=sh", write(t, emit.KindShell, "limit.sh"))
	small, err := emit.New(found(st380013as), testDB(t), emit.Options{}).Emit(emit.KindShell)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "small.sh")
	if err := os.WriteFile(file, []byte(small.Text), 0o644); err != nil {
		t.Fatal(err)
	}
	run(t, nil, tool, "--shell=sh", file)
}

// TestShellRuns runs the script on a made-up sysfs.
func TestShellRuns(t *testing.T) {
	file := write(t, emit.KindShell, "limit.sh")
	root := t.TempDir()
	put := func(name, content string) {
		t.Helper()
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	link := func(name, to string) {
		t.Helper()
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(root, to), p); err != nil {
			t.Fatal(err)
		}
	}
	put("sys/bus/pci/x", "")
	put("sys/bus/pci/drivers/virtio_scsi/x", "")
	put("sys/bus/usb/x", "")
	add := func(name, parent, vendor, model, rev, kib string) {
		dev := "sys/devices/" + parent + "/0:0:0:0/block/" + name
		for f, v := range map[string]string{"vendor": vendor, "model": model, "rev": rev} {
			if v != "" {
				put("sys/devices/"+parent+"/0:0:0:0/"+f, v+"\n")
			}
		}
		put(dev+"/queue/max_sectors_kb", kib+"\n")
		put(dev+"/dev", "8:"+name+"\n")
		put(dev+"/holders/x", "")
		link("sys/block/"+name, dev)
	}
	add("sda", "pci0/1/ata1/host0", "ATA     ", "ST380013AS      ", "3.20", "1280")
	add("sdb", "pci0/1/ata2/host1", "ATA     ", "ST380013AS      ", "3.21", "1280")
	add("sdc", "pci0/1/ata3/host2", "ATA     ", "ST380013AS      ", "3.20", "256")
	add("sdd", "pci0/1/ata4/host3", "ATA     ", "DELLBOSS VD     ", "00-0", "32767")
	add("sde", "pci0/1/ata5/host4", "ATA     ", "DELLBOSS VD     ", "00-0", "32767")
	add("sdf", "pci0/1/ata6/host5", "ATA     ", "ST380013AS      ", "3.20", "1280") // ABCD3.20
	put("run/udev/data/b8:sdd", "S:disk\nE:ID_ATA=1\nE:ID_MODEL=DELLBOSS_VD\nE:ID_REVISION=MV.R00-0\n")
	put("run/udev/data/b8:sdf", "E:ID_ATA=1\nE:ID_REVISION=ABCD3.20\n")
	for _, d := range []string{"a", "v"} { // the same disk behind two adapters
		add("sd"+d+"a", "pci0/"+d+"/host6", "ACME", "Adapter Disk", "1.00", "1280")
		put("sys/devices/pci0/"+d+"/vendor", "0x1af4\n")
		put("sys/devices/pci0/"+d+"/class", "0x010000\n")
		link("sys/devices/pci0/"+d+"/subsystem", "sys/bus/pci")
	}
	link("sys/devices/pci0/v/host6/driver", "sys/bus/pci/drivers/virtio_scsi")
	add("sdg", "pci0/u/2-1/host7", "Any", "Stick", "1.00", "1024")
	for f, v := range map[string]string{"idVendor": "46f4", "idProduct": "0001", "bcdDevice": "0100"} {
		put("sys/devices/pci0/u/2-1/"+f, v+"\n")
	}
	link("sys/devices/pci0/u/2-1/subsystem", "sys/bus/usb")
	add("sdm", "pci0/1/ata8/host8", "ATA     ", "ST380013AS      ", "3.20", "1280")
	put("sys/block/dm-0/dm/uuid", "mpath-1\n")
	put("sys/devices/pci0/1/ata8/host8/0:0:0:0/block/sdm/holders/dm-0/x", "")

	env := []string{"LIMIT_SYS=" + root + "/sys", "LIMIT_RUN=" + root + "/run"}
	script := func(want int, args ...string) string {
		t.Helper()
		c := exec.Command("sh", append([]string{file}, args...)...)
		c.Env = append(os.Environ(), env...)
		out, err := c.CombinedOutput()
		var ee *exec.ExitError
		if err != nil && !errors.As(err, &ee) {
			t.Fatal(err)
		}
		if got := c.ProcessState.ExitCode(); got != want {
			t.Fatalf("exit status %d, want %d:\n%s", got, want, out)
		}
		return string(out)
	}
	values := func() string {
		var b strings.Builder
		files, err := filepath.Glob(root + "/sys/block/sd*/queue/max_sectors_kb")
		if err != nil || len(files) != 10 {
			t.Fatalf("%d disks, %v", len(files), err)
		}
		for _, f := range files {
			v, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			b.WriteString(filepath.Base(filepath.Dir(filepath.Dir(f))) + "=" + strings.TrimSpace(string(v)) + " ")
		}
		return b.String()
	}
	run(t, nil, "sh", "-n", file)
	before := values()
	if out := script(1, "-n"); !strings.Contains(out, "sda: would lower 1280 KiB to 512 KiB") || values() != before {
		t.Errorf("dry run: %s\n%s", out, values())
	}
	out := script(1)
	const want = "sda=512 sdaa=1280 sdb=1280 sdc=256 sdd=4095 sde=32767 sdf=1280 sdg=32 sdm=1280 sdva=256 "
	if got := values(); got != want {
		t.Errorf("got  %s\nwant %s\n%s", got, want, out)
	}
	if !strings.Contains(out, "sdm: 1280 KiB, wants 512 KiB") || !strings.Contains(out, "multipath") {
		t.Errorf("the path is not named:\n%s", out)
	}
	if out := script(1); strings.Contains(out, "lowered") || values() != want {
		t.Errorf("the second run changes something:\n%s", out)
	}
	script(2, "--nonsense")
	if err := os.Remove(filepath.Join(root, "sys/block/sdm")); err != nil {
		t.Fatal(err)
	}
	script(0)
}
