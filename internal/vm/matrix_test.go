package vm

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/probe/capture"
)

// The captures of the matrix are RELEASE-BOOT.json.gz in matrixDir. Below
// /dev/disk/by-id of each machine a link with this prefix and a device's key
// leads to the device: kernel names differ from boot to boot, and not every
// device has a serial number that a capture holds.
const (
	matrixDir    = "../../checker/audit/testdata/matrix"
	matrixSuffix = ".json.gz"
	matrixLinks  = "matrix-"
)

// matrixBoots are the ways each kernel is booted.
var matrixBoots = []matrixBoot{
	{
		name: "80c", what: "`libata.force=80c` lifts the limit of bridged SATA disks and leaves libata's quirk table in force",
		params: menuParameters,
	},
	{name: "plain", what: "libata takes QEMU's SATA disks for bridged ones where no row of its table says otherwise"},
	{
		name: "iommu", what: "as 80c, behind an IOMMU that translates (`intel_iommu=on`); only the devices it changes anything for: " +
			"no virtio, which is not behind it, no pvscsi, which in QEMU does not know of it, and nothing that is built on these",
		params: append([]string{"intel_iommu=on"}, menuParameters...), qemu: []string{"-device", "intel-iommu"},
		without: []Bus{VirtioSCSI, VirtioBlk, PVSCSI},
	},
}

type matrixBoot struct {
	name, what   string
	params, qemu []string
	without      []Bus // left out, with what is built on their disks
}

func (b matrixBoot) disks() []matrixDisk {
	return slices.DeleteFunc(matrixDisks(), func(d matrixDisk) bool { return slices.Contains(b.without, d.Bus) })
}

func (b matrixBoot) stacks() []matrixStack {
	there := map[string]bool{}
	for _, d := range b.disks() {
		there[d.key] = true
	}
	var all []matrixStack
	for _, s := range matrixStacks() {
		if !slices.ContainsFunc(s.over, func(key string) bool { disk, _, _ := strings.Cut(key, "/"); return !there[disk] }) {
			there[s.key] = true
			all = append(all, s)
		}
	}
	return all
}

// devices are those of the boot, and whether each may be missing.
func (b matrixBoot) devices() map[string]bool {
	all := map[string]bool{}
	for _, d := range b.disks() {
		all[d.key] = false
	}
	for _, d := range matrixDebug {
		all[d.key] = false
	}
	for _, s := range b.stacks() {
		all[s.key] = s.optional
	}
	return all
}

// TestVMMatrix boots a kernel with all devices of the matrix, takes a capture
// and compares the limits in it with those of the stored one, so that what
// tests of audit predict against is what kernels do. QUIRKCHECK_VM_KERNELS=all
// takes all kernels and boots, else it is the stock kernel and the first boot;
// QUIRKCHECK_MATRIX_UPDATE=1 stores the captures instead.
func TestVMMatrix(t *testing.T) {
	Require(t, "dmsetup", "mdadm")
	binary := buildQuirkcheck(t)
	update := os.Getenv("QUIRKCHECK_MATRIX_UPDATE") == "1"
	kernels, whole := []Kernel{Stock(t)}, false
	boots := matrixBoots[:1]
	if os.Getenv("QUIRKCHECK_VM_KERNELS") == "all" {
		boots, whole = matrixBoots, true
		for _, spec := range Kernels() {
			kern, err := FetchKernel(t.Context(), spec)
			var missing *MissingError
			if errors.As(err, &missing) {
				t.Logf("not offered today: %v", err)
				whole = false
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(kernels, func(k Kernel) bool { return pointRelease(k) == pointRelease(kern) }) {
				kernels = append(kernels, kern)
			}
		}
		slices.SortFunc(kernels, func(a, b Kernel) int { return compareNatural(pointRelease(a), pointRelease(b)) })
	}
	seen := map[string]map[string]matrixValues{} // by boot
	for _, b := range boots {
		for _, kern := range kernels {
			name := pointRelease(kern) + "-" + b.name
			t.Run(name, func(t *testing.T) {
				text := matrixCapture(t, kern, binary, name, b)
				c, err := capture.Read(bytes.NewReader(text))
				if err != nil {
					t.Fatal(err)
				}
				values, err := matrixRead(t.Context(), c)
				if err != nil {
					t.Fatal(err)
				}
				seen[name] = values
				if update {
					if err := matrixWrite(name, text); err != nil {
						t.Fatal(err)
					}
					return
				}
				stored, err := capture.ReadFile(filepath.Join(matrixDir, name+matrixSuffix))
				if errors.Is(err, fs.ErrNotExist) {
					t.Logf("no capture of Linux %s is stored, so nothing is compared", pointRelease(kern))
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				want, err := matrixRead(t.Context(), stored)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, values); diff != "" {
					t.Errorf("%s is not what the kernel shows (-stored +booted):\n%s", name, diff)
				}
			})
		}
	}
	if len(seen) > 0 {
		t.Logf("max_sectors_kb/max_hw_sectors_kb/optimal_io_size\n%s", matrixTable(seen))
	}
	if update && whole && len(seen) == len(boots)*len(kernels) && !t.Failed() {
		stored, err := filepath.Glob(filepath.Join(matrixDir, "*"+matrixSuffix))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range stored { // of releases that were followed by others
			if seen[strings.TrimSuffix(filepath.Base(f), matrixSuffix)] == nil {
				t.Logf("removing %s", filepath.Base(f))
				if err := os.Remove(f); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// TestMatrixIsWhole holds the stored captures against the lists of devices, and
// the README, which QUIRKCHECK_MATRIX_UPDATE=1 writes.
func TestMatrixIsWhole(t *testing.T) {
	if err := matrixReadme(os.Getenv("QUIRKCHECK_MATRIX_UPDATE") == "1"); err != nil {
		t.Error(err)
	}
	stored, err := filepath.Glob(filepath.Join(matrixDir, "*"+matrixSuffix))
	if err != nil || len(stored) == 0 {
		t.Fatalf("no capture: %v", err)
	}
	boots, there := map[string]int{}, map[string]bool{}
	for _, f := range stored {
		name := strings.TrimSuffix(filepath.Base(f), matrixSuffix)
		release, boot, _ := strings.Cut(name, "-")
		i := slices.IndexFunc(matrixBoots, func(b matrixBoot) bool { return b.name == boot })
		if i < 0 {
			t.Errorf("%s: no such boot", name)
			continue
		}
		boots[release]++
		c, err := capture.ReadFile(f)
		if err != nil {
			t.Error(err)
			continue
		}
		values, err := matrixRead(t.Context(), c)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		want := matrixBoots[i].devices()
		for key, v := range values {
			there[key] = true
			if _, ok := want[key]; !ok {
				t.Errorf("%s holds %s, which is not on the list", name, key)
			}
			if v.MaxSectorsKB == "-" || v.MaxHWSectorsKB == "-" || v.OptimalIOSize == "-" {
				t.Errorf("%s: %s is %s", name, key, v.text())
			}
		}
		for key, optional := range want {
			if _, ok := values[key]; !ok && !optional {
				t.Errorf("%s does not hold %s", name, key)
			}
		}
	}
	for release, n := range boots {
		if n != len(matrixBoots) {
			t.Errorf("%d captures of Linux %s, want %d", n, release, len(matrixBoots))
		}
	}
	rows := map[string]bool{}
	for _, r := range matrixRows() {
		if rows[r.key] {
			t.Errorf("%s is two devices", r.key)
		}
		rows[r.key] = true
		if !there[r.key] {
			t.Errorf("no capture holds %s", r.key)
		}
	}
}

// A matrixRow is a device of any kind, for readers.
type matrixRow struct {
	key, what string
}

func matrixRows() []matrixRow {
	var rows []matrixRow
	for _, d := range matrixDisks() {
		rows = append(rows, matrixRow{d.key, d.what})
	}
	for _, d := range matrixDebug {
		rows = append(rows, matrixRow{d.key, "scsi_debug " + strings.Join(matrixDebugParameters, " ") + admin(d.user)})
	}
	for _, s := range matrixStacks() {
		what := s.what
		if s.optional {
			what += "; not on every kernel"
		}
		rows = append(rows, matrixRow{s.key, what})
	}
	return rows
}

// matrixReadme compares what follows the first table's heading in the README
// with the lists, or writes it.
func matrixReadme(write bool) error {
	file := filepath.Join(matrixDir, "README.md")
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	const heading = "\n## Boots\n"
	text, _, ok := strings.Cut(string(b), heading)
	if !ok {
		return fmt.Errorf("%s: no heading %q", file, strings.TrimSpace(heading))
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%s%s\n| boot | |\n| --- | --- |\n", text, heading)
	for _, b := range matrixBoots {
		fmt.Fprintf(&out, "| %s | %s |\n", b.name, b.what)
	}
	rows := matrixRows()
	fmt.Fprintf(&out, "\n## Devices\n\n%d of them.\n\n| key | what it is |\n| --- | --- |\n", len(rows))
	for _, r := range rows {
		fmt.Fprintf(&out, "| %s | %s |\n", r.key, r.what)
	}
	switch {
	case out.String() == string(b):
		return nil
	case write:
		return os.WriteFile(file, []byte(out.String()), 0o644)
	}
	return fmt.Errorf("%s is not what the lists say (-file +lists):\n%s", file, cmp.Diff(string(b), out.String()))
}

// pointRelease is the upstream release of a package's version, "6.12.117" of
// 6.12.117-1.
func pointRelease(k Kernel) string {
	v, _, _ := strings.Cut(k.Package, "-")
	return v
}

// matrixCapture boots a kernel with all devices of the matrix and takes a
// capture.
func matrixCapture(t *testing.T, kern Kernel, binary, name string, b matrixBoot) []byte {
	disks := b.disks()
	images := map[string]*Image{}
	var attach []Disk
	for _, d := range disks {
		if images[d.Serial] == nil {
			images[d.Serial] = TestImage(t, d.bytes)
			if d.partitions > 0 {
				partitioned(t, images[d.Serial], d.bytes, d.partitions)
			}
		}
		d.Image = images[d.Serial]
		attach = append(attach, d.Disk)
	}
	var text []byte
	start := time.Now()
	Test(t, Config{
		Kernel: kern, Binary: binary, Tools: []string{"dmsetup", "mdadm"}, Modules: matrixModules, Disks: attach, MemoryMiB: 640,
		Append: b.params, QEMU: b.qemu, Hello: 2 * time.Minute,
	}, func(ctx context.Context, m *Machine) error {
		begin := time.Now()
		found, err := matrixFound(ctx, m, disks)
		if err != nil {
			return err
		}
		if found, err = matrixBuild(ctx, t, m, b.stacks(), found); err != nil {
			return err
		}
		links := "mkdir -p /dev/disk/by-id && cd /dev/disk/by-id"
		for key, f := range found {
			links += fmt.Sprintf(" && ln -s ../../%s '%s%s'", f.Name, matrixLinks, key)
		}
		if _, err := m.Output(ctx, "sh", "-c", links); err != nil {
			return err
		}
		built := time.Since(begin)
		r, err := m.RunCmd(ctx, Cmd{Args: []string{
			"quirkcheck", "capture", "-o", "-", "--include-serials", "--host-label", "kernel matrix, Linux " + name,
		}, Timeout: 2 * time.Minute})
		if err == nil {
			err = r.Err()
		}
		if err != nil {
			return fmt.Errorf("capture: %w", err)
		}
		text = r.Stdout
		t.Logf("%s: disks there after %.1f s, %d devices in %.1f s, captured %d bytes in %.1f s", name, begin.Sub(start).Seconds(),
			len(found), built.Seconds(), len(text), (time.Since(begin) - built).Seconds())
		return nil
	})
	return text
}

// matrixFound returns the disks by key, those of scsi_debug too, with the
// values of the administrator written.
func matrixFound(ctx context.Context, m *Machine, disks []matrixDisk) (map[string]Found, error) {
	debug, err := m.ScsiDebug(ctx, matrixDebugParameters...)
	if err != nil {
		return nil, err
	}
	all, err := m.AllDisks(ctx)
	if err != nil {
		return nil, err
	}
	// Two paths to one disk come in the order of their controllers, and the
	// disks of scsi_debug in that of their targets.
	byPath := func(a, b Found) int { return compareNatural(a.Path, b.Path) }
	slices.SortFunc(all, byPath)
	slices.SortFunc(debug, byPath)
	models, err := m.Glob(ctx, "/sys/block/*/device/model")
	if err != nil {
		return nil, err
	}
	product := map[string]string{}
	for _, f := range models {
		product[strings.Split(f.Path, "/")[3]] = strings.TrimSpace(string(f.Content))
	}
	found := map[string]Found{}
	for _, d := range disks {
		i := slices.IndexFunc(all, func(f Found) bool {
			return f.Serial == d.Serial || d.Mute && f.Serial == "" && product[f.Name] == d.Product
		})
		if i < 0 {
			return nil, fmt.Errorf("no disk %s", d.key)
		}
		found[d.key] = all[i]
		all = slices.Delete(all, i, i+1)
	}
	if len(debug) != len(matrixDebug) {
		return nil, fmt.Errorf("%d disks of scsi_debug, want %d", len(debug), len(matrixDebug))
	}
	user := map[string]string{}
	for i, d := range matrixDebug {
		found[d.key], user[d.key] = debug[i], d.user
	}
	for _, d := range disks {
		user[d.key] = d.user
	}
	for key, value := range user {
		if value == "" {
			continue
		}
		if err := m.WriteAttr(ctx, found[key].Sysfs("queue/max_sectors_kb"), value); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// matrixBuild builds the stacks, a few at a time as each waits for programs
// most of its time, and returns them beside the disks.
func matrixBuild(ctx context.Context, t *testing.T, m *Machine, stacks []matrixStack, disks map[string]Found) (map[string]Found, error) {
	var mu sync.Mutex // guards found
	found := maps.Clone(disks)
	done := map[string]chan struct{}{}
	for _, s := range stacks {
		done[s.key] = make(chan struct{})
	}
	on := func(key string) Found {
		if c := done[key]; c != nil {
			<-c // it is before this one in the list
		}
		mu.Lock()
		defer mu.Unlock()
		if f, ok := found[key]; ok {
			return f
		}
		disk, part, _ := strings.Cut(key, "/")
		f, ok := found[disk]
		if !ok || part == "" {
			t.Errorf("no %s to build on", key)
		}
		f.Name += part
		return f
	}
	build := func(s matrixStack) error {
		defer close(done[s.key])
		f, err := s.build(ctx, m, on)
		if errors.Is(err, fs.ErrNotExist) && s.optional {
			t.Logf("%s: left out on Linux %s: %v", s.key, m.Release(), err)
			return nil
		}
		if err == nil && s.user != "" {
			err = m.WriteAttr(ctx, f.Sysfs("queue/max_sectors_kb"), s.user)
		}
		if err != nil {
			return fmt.Errorf("build %s: %w", s.key, err)
		}
		mu.Lock()
		defer mu.Unlock()
		found[s.key] = f
		return nil
	}
	const workers = 3
	next, errs := make(chan matrixStack), make(chan error)
	for range workers {
		go func() {
			var err error
			for s := range next {
				err = errors.Join(err, build(s))
			}
			errs <- err
		}()
	}
	for _, s := range stacks {
		next <- s
	}
	close(next)
	var err error
	for range workers {
		err = errors.Join(err, <-errs)
	}
	return found, err
}

// matrixValues are the limits of a device that kernels choose differently, as
// sysfs shows them; "-" is a file that was not there.
type matrixValues struct{ MaxSectorsKB, MaxHWSectorsKB, OptimalIOSize string }

func (v matrixValues) text() string {
	return v.MaxSectorsKB + "/" + v.MaxHWSectorsKB + "/" + v.OptimalIOSize
}

// matrixRead returns the limits of a capture's devices by key.
func matrixRead(ctx context.Context, c *capture.Capture) (map[string]matrixValues, error) {
	sys := c.FS()
	inv, err := probe.Read(ctx, sys, probe.Options{})
	if err != nil {
		return nil, err
	}
	values := map[string]matrixValues{}
	for link := range c.Links {
		key, ok := strings.CutPrefix(link, "dev/disk/by-id/"+matrixLinks)
		if !ok {
			continue
		}
		name, err := probe.ResolveName(sys, "/"+link)
		if err != nil {
			return nil, err
		}
		d, ok := inv.Device(name)
		if !ok {
			return nil, fmt.Errorf("%s: no device %s", link, name)
		}
		attr := func(name string) string {
			if text, ok := d.Text(name); ok {
				return text
			}
			return "-"
		}
		values[key] = matrixValues{attr("queue/max_sectors_kb"), attr("queue/max_hw_sectors_kb"), attr("queue/optimal_io_size")}
	}
	return values, nil
}

// matrixTable is a text table, device by boot.
func matrixTable(seen map[string]map[string]matrixValues) string {
	boots := slices.SortedFunc(maps.Keys(seen), func(a, b string) int {
		ra, ba, _ := strings.Cut(a, "-")
		rb, bb, _ := strings.Cut(b, "-")
		if ba != bb {
			return strings.Compare(ba, bb)
		}
		return compareNatural(ra, rb)
	})
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\t"+strings.Join(boots, "\t"))
	for _, r := range matrixRows() {
		fmt.Fprint(w, r.key)
		for _, boot := range boots {
			v, ok := seen[boot][r.key]
			if !ok {
				fmt.Fprint(w, "\tnot there")
				continue
			}
			fmt.Fprint(w, "\t", v.text())
		}
		fmt.Fprintln(w)
	}
	w.Flush()
	return b.String()
}

func matrixWrite(name string, text []byte) error {
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(text); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(matrixDir, name+matrixSuffix), b.Bytes(), 0o644)
}
