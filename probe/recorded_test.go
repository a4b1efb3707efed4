package probe_test

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/quirkcheck/quirkcheck/internal/recorded"
	"github.com/quirkcheck/quirkcheck/probe"
)

func readTree(t testing.TB, name string) *probe.Inventory {
	t.Helper()
	inv, err := probe.Read(t.Context(), recorded.FS(t, name), probe.Options{})
	if err != nil {
		t.Fatalf("read %s: %v", name, err)
	}
	return inv
}

// agreement compares the probe's answers about one tree with a peer's and
// counts what it compared.
type agreement struct {
	t      *testing.T
	tree   string
	fields map[string]int // by peer
}

func (a *agreement) equal(peer, device, field string, got, want any) {
	a.t.Helper()
	a.fields[peer]++
	if got != want {
		a.t.Errorf("%s: %s: %s: got %#v, want %#v as %s says", a.tree, device, field, got, want, peer)
	}
}

// text compares an attribute with an answer of lsblk, whose null is absence.
func (a *agreement) text(peer string, d *probe.Device, field string, got probe.Value[string], want *string, same func(a, b string) bool) {
	a.t.Helper()
	a.fields[peer]++
	switch {
	case want == nil && (got.State == probe.Absent || got.State == probe.NotAsked):
	case want != nil && got.Ok() && same(got.V, *want):
	default:
		shown := "null"
		if want != nil {
			shown = strconv.Quote(*want)
		}
		a.t.Errorf("%s: %s: %s: got %q (%v), want %s as %s says", a.tree, d.Name, field, got.V, got.State, shown, peer)
	}
}

func (a *agreement) number(peer string, d *probe.Device, field string, got probe.Value[uint64], want *uint64) {
	a.t.Helper()
	a.fields[peer]++
	switch {
	case want == nil && got.State == probe.Absent:
	case want != nil && got.Ok() && got.V == *want:
	default:
		shown := "null"
		if want != nil {
			shown = fmt.Sprint(*want)
		}
		a.t.Errorf("%s: %s: %s: got %d (%v), want %s as %s says", a.tree, d.Name, field, got.V, got.State, shown, peer)
	}
}

func exact(a, b string) bool { return a == b }

// udevSame compares a string with the form udev gives it, each run of blanks
// as one `_` and none at the ends.
func udevSame(a, b string) bool {
	form := func(s string) string {
		return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == ' ' || r == '_' }), "_")
	}
	return form(a) == form(b)
}

func TestRecordedTreesAgreeWithPeers(t *testing.T) {
	total := map[string]int{}
	for _, name := range recorded.Trees(t) {
		peers, ok := recorded.Expected(t, name)
		if !ok {
			continue // testdata/kernels, see TestRecordedKernels
		}
		t.Run(name, func(t *testing.T) {
			inv := readTree(t, name)
			a := &agreement{t: t, tree: name, fields: map[string]int{}}
			for key, rows := range peers.LSBLK() {
				a.lsblk(inv, key, rows)
			}
			a.newerLSBLK(inv, peers.Newer)
			a.attributes(inv, peers.Attributes)
			a.lsscsi(inv, peers)
			a.lspci(inv, peers.LSPCI)
			sum := 0
			for peer, n := range a.fields {
				total[peer] += n
				sum += n
			}
			if sum == 0 || a.fields["attributes"] == 0 {
				t.Errorf("%s: nothing compared: %v", name, a.fields)
			}
			t.Logf("%d fields compared: %v", sum, a.fields)
		})
	}
	t.Logf("fields compared over all trees: %v", total)
	for _, peer := range []string{"lsblk_2_38_1_sysfs_only", "lsblk_2_38_1_with_udev_data", "lsblk_2_43", "attributes", "lsscsi", "lsscsi -H", "lsscsi -L", "lspci"} {
		if total[peer] == 0 {
			t.Errorf("no field was compared with %s", peer)
		}
	}
}

// lsblk compares a whole answer of lsblk.
func (a *agreement) lsblk(inv *probe.Inventory, peer string, rows []recorded.BlockDevice) {
	// A member of a map or an array may stand below each of its parts.
	disks := map[string]recorded.BlockDevice{}
	var walk func([]recorded.BlockDevice)
	walk = func(rows []recorded.BlockDevice) {
		for _, row := range rows {
			if row.Type != "part" {
				disks[row.KName] = row
			}
			walk(row.Children)
		}
	}
	walk(rows)
	for _, d := range inv.Devices {
		// lsblk leaves out devices of size 0 and RAM disks, and finds a mapping
		// only below its parts, whose folders the ghw trees lack.
		size := d.SizeBytes()
		if _, shown := disks[d.Name]; !shown && d.Kind != "ram" && d.Kind != "loop" && d.Kind != "dm" && size.Ok() && size.V > 0 {
			a.t.Errorf("%s: %s: the probe lists it, %s does not", a.tree, d.Name, peer)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(disks)) {
		row := disks[name]
		d, ok := inv.Device(name)
		if !ok {
			a.t.Errorf("%s: %s: not found, though %s lists it; notes: %v", a.tree, name, peer, inv.Notes)
			continue
		}
		a.lsblkRow(d, peer, row)
	}
}

func (a *agreement) lsblkRow(d *probe.Device, peer string, row recorded.BlockDevice) {
	a.text(peer, d, "dev", d.Attr("dev"), &row.MajMin, exact)
	a.equal(peer, d.Name, "removable", d.Attr("removable").V == "1", row.Removable)
	a.equal(peer, d.Name, "ro", d.Attr("ro").V == "1", row.ReadOnly)
	a.equal(peer, d.Name, "queue/rotational", d.Attr("queue/rotational").V == "1", row.Rotational)
	a.number(peer, d, "size", d.SizeBytes(), row.Size)
	a.number(peer, d, "queue/nr_requests", d.Uint("queue/nr_requests"), row.NrRequests)
	a.number(peer, d, "queue/minimum_io_size", d.Uint("queue/minimum_io_size"), row.MinIO)
	a.number(peer, d, "queue/optimal_io_size", d.Uint("queue/optimal_io_size"), row.OptIO)
	a.number(peer, d, "queue/physical_block_size", d.Uint("queue/physical_block_size"), row.PhySec)
	a.number(peer, d, "queue/logical_block_size", d.Uint("queue/logical_block_size"), row.LogSec)
	a.number(peer, d, "queue/discard_granularity", d.Uint("queue/discard_granularity"), row.DiscGran)
	a.number(peer, d, "queue/discard_max_bytes", d.Uint("queue/discard_max_bytes"), row.DiscMax)
	a.text(peer, d, "queue/zoned", d.Attr("queue/zoned"), row.Zoned, exact)
	// lsblk asks the node, or a default, where there is no file; it prints 0
	// for a WRITE SAME limit that is not there.
	if d.Attr("queue/read_ahead_kb").Ok() {
		a.number(peer, d, "queue/read_ahead_kb", d.Uint("queue/read_ahead_kb"), row.ReadAheadKiB)
	}
	if d.Attr("queue/write_same_max_bytes").Ok() {
		a.number(peer, d, "queue/write_same_max_bytes", d.Uint("queue/write_same_max_bytes"), row.WSame)
	}
	a.text(peer, d, "queue/scheduler", inForce(d.Attr("queue/scheduler")), row.Scheduler, exact)

	transport := ""
	if row.Transport != nil {
		transport = *row.Transport
	}
	// 2.38 has no name for virtio, later releases have.
	if d.Transport != "virtio" || row.Transport != nil {
		a.equal(peer, d.Name, "transport", d.Transport, transport)
	}
	if row.HCTL != nil {
		a.equal(peer, d.Name, "SCSI address", path.Base(path.Dir(path.Dir(d.SysPath))), *row.HCTL)
	}
	switch {
	case strings.HasPrefix(d.Name, "nvme"):
		// lsblk keeps the padding, or has udev's form.
		a.text(peer, d, "model", d.NVMeModel, row.Model, func(x, y string) bool { return x == strings.TrimRight(y, " ") })
	case d.Path == "virtio-blk":
		// lsblk takes the virtio device's PCI vendor number for a name.
		a.text(peer, d, "model", d.Product, row.Model, exact)
	default:
		a.text(peer, d, "vendor", d.Vendor, row.Vendor, exact)
		a.text(peer, d, "rev", d.Revision, row.Rev, exact)
		switch {
		case !strings.Contains(peer, "udev"):
			a.text(peer, d, "model", d.Product, row.Model, exact)
		case d.ATAModel.Ok():
			a.text(peer, d, "model", d.ATAModel, row.Model, udevSame)
		case d.Kind == "optical":
			// udev's model of a packet device is the 40 characters of IDENTIFY
			// PACKET DEVICE, vendor included, which sysfs does not show.
			a.text(peer, d, "model", d.Product, row.Model, func(x, y string) bool {
				return strings.HasPrefix(strings.ReplaceAll(y, "_", ""), strings.TrimSpace(d.Vendor.V)+"DVD+-RWGH82N")
			})
		default:
			a.text(peer, d, "model", d.Product, row.Model, udevSame)
		}
	}
}

// inForce returns the scheduler in brackets, or the only one.
func inForce(v probe.Value[string]) probe.Value[string] {
	if _, rest, ok := strings.Cut(v.V, "["); ok {
		v.V, _, _ = strings.Cut(rest, "]")
		return v
	}
	// Without brackets there is no elevator, which lsblk shows as null.
	if v.Ok() && strings.TrimSpace(v.V) == "none" {
		v.State, v.V = probe.Absent, ""
	}
	return v
}

// newerLSBLK compares with what lsblk 2.43 takes from udev: the full ATA
// strings.
func (a *agreement) newerLSBLK(inv *probe.Inventory, want map[string]map[string]string) {
	for name, w := range want {
		d, ok := inv.Device(name)
		if !ok {
			a.t.Errorf("%s: %s not found", a.tree, name)
			continue
		}
		model, rev, vendor := d.Product, d.Revision, d.Vendor
		switch {
		case d.ATAModel.Ok():
			model, rev = d.ATAModel, d.ATAFirmware
		case d.NVMeModel.Ok():
			model, rev, vendor = d.NVMeModel, d.NVMeFirmware, probe.Value[string]{State: probe.Known}
		case d.Kind == "optical":
			model.V = strings.TrimSpace(d.Vendor.V) + "_DVD+_-RW_GH82N" // see lsblkRow
		}
		const peer = "lsblk_2_43"
		a.equal(peer, name, "model", udevSame(model.V, w["model"]), true)
		a.equal(peer, name, "rev", rev.V, w["rev"])
		a.equal(peer, name, "vendor", strings.TrimSpace(vendor.V), w["vendor"])
	}
}

// attributes compares every attribute the probe reads with the file's plain
// content.
func (a *agreement) attributes(inv *probe.Inventory, want map[string]map[string]string) {
	const peer = "attributes"
	read := probe.Attributes()
	for name, files := range want {
		d, ok := inv.Device(name)
		if !ok {
			a.t.Errorf("%s: %s not found; notes: %v", a.tree, name, inv.Notes)
			continue
		}
		text := func(v probe.Value[string], file, content string) {
			a.text(peer, d, file, v, &content, exact)
		}
		for file, content := range files {
			content = strings.TrimSuffix(content, "\n")
			scsi := d.Path != "virtio-blk" && !strings.HasPrefix(name, "nvme")
			switch {
			case slices.Contains(read, file) && (scsi || !strings.HasPrefix(file, "device/")):
				text(d.Attr(file), file, content)
			case file == "devpath":
				a.equal(peer, name, file, "/"+strings.TrimPrefix(d.SysPath, "sys/"), content)
			case file == "pci_parent":
				a.equal(peer, name, file, path.Base(d.Adapter.SysPath), content)
			case file == "device/vendor" && scsi:
				text(d.Vendor, file, content)
			case file == "device/model" && scsi:
				text(d.Product, file, content)
			case file == "device/rev" && scsi:
				text(d.Revision, file, content)
			case file == "device/model":
				text(d.NVMeModel, file, strings.TrimRight(content, " "))
			case file == "device/firmware_rev":
				text(d.NVMeFirmware, file, strings.TrimRight(content, " "))
			case file == "device/transport":
				a.equal(peer, name, file, d.Path, map[string]string{"pcie": "nvme-pci"}[content])
			}
		}
		if _, has := files["pci_parent"]; !has {
			a.equal(peer, name, "no pci_parent", d.Adapter.SysPath, "")
		}
		// What is not in the tree is absent, and not a zero.
		for _, file := range []string{"queue/max_sectors_kb", "queue/logical_block_size", "queue/discard_max_bytes", "device/timeout"} {
			if _, has := files[file]; !has {
				a.equal(peer, name, "absent "+file, d.Attr(file).State, probe.Absent)
			}
		}
	}
}

// lsscsi compares the lines of lsscsi, lsscsi -H and lsscsi -L.
func (a *agreement) lsscsi(inv *probe.Inventory, p recorded.Peers) {
	byHCTL := map[string]*probe.Device{}
	for _, d := range inv.Devices {
		if d.Vendor.Ok() && d.Path != "virtio-blk" {
			byHCTL["["+path.Base(path.Dir(path.Dir(d.SysPath)))+"]"] = d
		}
	}
	for _, line := range p.LSSCSI {
		d := byHCTL[strings.Fields(line)[0]]
		if d == nil {
			continue // an NVMe disk, or a device that is no block device
		}
		want := fmt.Sprintf("%-8.8s %-16.16s %-4.4s", d.Vendor.V, d.Product.V, d.Revision.V)
		a.equal("lsscsi", d.Name, "INQUIRY strings", strings.Contains(line, want), true)
	}
	for _, line := range p.LSSCSIHosts {
		f := strings.Fields(line)
		host := strings.Trim(f[0], "[]")
		if n, ok := strings.CutPrefix(host, "N:"); ok {
			for _, d := range inv.Devices {
				if strings.Contains(d.SysPath, "/nvme/nvme"+n+"/") {
					a.equal("lsscsi -H", d.Name, "NVMe model", strings.HasPrefix(strings.Join(f[2:], " ")+" ", d.NVMeModel.V+" "), true)
					a.equal("lsscsi -H", d.Name, "NVMe firmware", d.NVMeFirmware.V, f[len(f)-1])
				}
			}
			continue
		}
		for _, d := range inv.Devices {
			if d.Adapter.Host == "host"+host && d.Adapter.Driver != "" {
				a.equal("lsscsi -H", d.Name, "driver", d.Adapter.Driver, f[1])
			}
		}
	}
	var d *probe.Device
	for _, line := range p.LSSCSILong {
		if strings.HasPrefix(line, "[") {
			d = byHCTL[strings.Fields(line)[0]]
			continue
		}
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if d != nil && (key == "queue_depth" || key == "timeout") {
			a.equal("lsscsi -L", d.Name, key, d.Attr("device/"+key).V, value)
		}
	}
}

func (a *agreement) lspci(inv *probe.Inventory, functions []recorded.PCIFunction) {
	const peer = "lspci"
	for _, d := range inv.Devices {
		i := slices.IndexFunc(functions, func(f recorded.PCIFunction) bool { return f.Slot == path.Base(d.Adapter.SysPath) })
		if i < 0 {
			continue
		}
		f, got := functions[i], d.Adapter
		if got.PCI == "" {
			// The ghw trees hold what lspci reads and not the single files.
			a.equal(peer, d.Name, "unknown PCI ids", got.Known, false)
			continue
		}
		ids := strings.Split(got.PCI, ":")
		a.equal(peer, d.Name, "PCI id", ids[0]+":"+ids[1], f.ID)
		a.equal(peer, d.Name, "PCI class", got.Class[:4], f.Class)
		if f.Subsystem != "" {
			a.equal(peer, d.Name, "PCI subsystem", ids[2]+":"+ids[3], f.Subsystem)
		}
		if f.Rev != "" && got.Revision != "" { // the file came with 4.10
			a.equal(peer, d.Name, "PCI revision", got.Revision, f.Rev)
		}
		// lspci names a virtio disk's PCI driver, the probe the one above it.
		if f.Driver != "" && got.Driver != "" && !strings.HasPrefix(f.Driver, "virtio") {
			a.equal(peer, d.Name, "driver", got.Driver, f.Driver)
		}
	}
}

func TestRecordedContradictionIsNoted(t *testing.T) {
	d, ok := readTree(t, "xeon_sata_micron").Device("sda")
	if !ok {
		t.Fatal("no sda")
	}
	if d.ATAModel.Ok() || d.ATAFirmware.Ok() || !d.IdentityPartial() {
		t.Errorf("ATA model %q, firmware %q: udev's record was used against sysfs", d.ATAModel.V, d.ATAFirmware.V)
	}
	n := note(d.Notes, "identity.ata", probe.Known)
	if n == nil || !strings.Contains(n.Why, "MTFDDAK256MAM-1K12") || !strings.Contains(n.Why, "ST9250610NS") || n.Source != "run/udev/data/b8:0" {
		t.Errorf("notes %+v: want one that names both models and the record", d.Notes)
	}
}

func TestRecordedMultipathHead(t *testing.T) {
	inv := readTree(t, "power_nvme_multipath")
	d, ok := inv.Device("nvme1n1")
	if !ok || d.Path != "nvme-pci" || d.Transport != "nvme" || d.NVMeModel.V != "3.2TB NVMe Gen4 U.2 SSD III" {
		t.Errorf("nvme1n1: %+v, want the transport its two controllers share", d)
	}
}

func TestRecordedDanglingDeviceLink(t *testing.T) {
	d, ok := readTree(t, "xeon_sata_micron").Device("nvme0n1")
	if !ok || d.Transport != "nvme" || d.NVMeModel.State != probe.NotAsked || note(d.Notes, "device", probe.Absent) == nil {
		t.Errorf("nvme0n1: %+v, want transport by name, no model and a note about the link", d)
	}
}

func note(notes []probe.Note, what string, state probe.State) *probe.Note {
	for _, n := range notes {
		if n.What == what && n.State == state {
			return &n
		}
	}
	return nil
}

// byProduct finds the one device that a driver reaches under a product name.
func byProduct(t *testing.T, inv *probe.Inventory, product, driver string) *probe.Device {
	t.Helper()
	var found *probe.Device
	for _, d := range inv.Devices {
		if strings.TrimSpace(d.Product.V) == product && d.Adapter.Driver == driver {
			if found != nil {
				t.Fatalf("two %s on %s", product, driver)
			}
			found = d
		}
	}
	if found == nil {
		t.Fatalf("no %s on %s", product, driver)
	}
	return found
}

func TestRecordedKernels(t *testing.T) {
	for name, want := range map[string]struct {
		upstream                string
		ahciKB, qemuKB, hgstKB  string // max_sectors_kb
		virtioKB, nvmeKB, vdaKB string
		usbFlags                string
	}{
		"6.1.190-debian12":         {"6.1.190", "128", "128", "1024", "1280", "1280", "1280", ""},
		"7.3.4-debian13-backports": {"7.3.4", "128", "4096", "2048", "4096", "2048", "4096", "SKIP_IO_HINTS"},
	} {
		usbFlags := want.usbFlags
		t.Run(name, func(t *testing.T) {
			inv := readTree(t, name)
			if r := inv.Kernel; !r.Ok() || r.V.Upstream() != want.upstream || r.V.Vendor != "debian" || !r.V.PointK {
				t.Errorf("kernel %+v, want Debian's %s", r, want.upstream)
			}
			if !inv.Cmdline.Ok() || !strings.Contains(inv.Cmdline.V, "quiet") {
				t.Errorf("command line %+v", inv.Cmdline)
			}
			if len(inv.Devices) != 13 || len(inv.Notes) != 0 {
				t.Errorf("%d devices, want 13; notes %v", len(inv.Devices), inv.Notes)
			}
			attr := func(d *probe.Device, file, want string) {
				t.Helper()
				if v := d.Attr(file); !v.Ok() || v.V != want {
					t.Errorf("%s (%s): %s = %q (%v), want %q", d.Name, d.Product.V, file, v.V, v.State, want)
				}
			}
			reached := func(d *probe.Device, path, transport string) {
				t.Helper()
				if d.Path != path || d.Transport != transport {
					t.Errorf("%s (%s): path %q transport %q, want %q %q", d.Name, d.Product.V, d.Path, d.Transport, path, transport)
				}
			}

			for product, full := range map[string][2]string{
				"QEMU HARDDISK":    {"QEMU HARDDISK", "2.5+"},
				"DELLBOSS VD":      {"DELLBOSS VD", "MV.R00-0"},
				"INTEL SSDSC2KG48": {"INTEL SSDSC2KG480G8", "XCV10120"},
				"ST380013AS":       {"ST380013AS", "3.20"},
			} {
				d := byProduct(t, inv, product, "ahci")
				reached(d, "libata", "sata")
				if d.ATAModel.V != full[0] || d.ATAFirmware.V != full[1] || !strings.HasSuffix(d.ATAModel.Source, "/id") || d.IdentityPartial() {
					t.Errorf("%s: ATA %q %q from %s, want %v from libata's own copy", d.Name, d.ATAModel.V, d.ATAFirmware.V, d.ATAModel.Source, full)
				}
				if d.Adapter.ATAPort == "" || d.Adapter.PCI != "8086:2922:1af4:1100" || d.Adapter.Class != "010601" {
					t.Errorf("%s: adapter %+v", d.Name, d.Adapter)
				}
				kb := want.ahciKB
				if product == "QEMU HARDDISK" {
					kb = want.qemuKB
				}
				attr(d, "queue/max_sectors_kb", kb)
				if lpm := d.Attr("link_power_management_policy"); !lpm.Ok() || lpm.V == "" {
					t.Errorf("%s: link power management %+v", d.Name, lpm)
				}
			}

			d := byProduct(t, inv, "ST380013AS", "virtio_scsi")
			reached(d, "sat-firmware", "")
			attr(d, "queue/max_sectors_kb", want.virtioKB)
			if d.Vendor.V != "ATA     " || d.Product.V != "ST380013AS      " || d.Revision.V != "3.20" || !d.IdentityPartial() || note(d.Notes, "identity.ata", probe.NotAsked) == nil {
				t.Errorf("%s: %q %q %q, partial %v, notes %v", d.Name, d.Vendor.V, d.Product.V, d.Revision.V, d.IdentityPartial(), d.Notes)
			}

			d = byProduct(t, inv, "HUS726060AL5210", "virtio_scsi")
			reached(d, "scsi", "")
			attr(d, "queue/max_sectors_kb", want.hgstKB)
			max, maxOK := d.BlockLimits.V.MaxTransferBlocks()
			opt, optOK := d.BlockLimits.V.OptimalTransferBlocks()
			block := d.Uint("queue/logical_block_size").V
			if !d.BlockLimits.Ok() || !maxOK || !optOK || uint64(max)*block != 2<<20 || uint64(opt)*block != 1<<20 {
				t.Errorf("%s: block limits %v: maximum %d, optimal %d blocks of %d, want 2 and 1 MiB", d.Name, d.BlockLimits.State, max, opt, block)
			}

			d = byProduct(t, inv, "ST900MM0006", "virtio_scsi")
			n := note(d.Notes, "vpd", probe.NotAsked)
			if d.BlockLimits.State != probe.NotAsked || d.Pages[0xb0].State != probe.NotAsked || n == nil || !strings.Contains(n.Why, "SKIP_VPD_PAGES") || !strings.HasSuffix(n.Source, "/blacklist") {
				t.Errorf("%s: block limits %v, notes %+v: want not asked, and why", d.Name, d.BlockLimits.State, d.Notes)
			}
			if !slices.Equal(d.Blacklist.V, []string{"SKIP_VPD_PAGES"}) {
				t.Errorf("%s: blacklist %v", d.Name, d.Blacklist)
			}

			d = byProduct(t, inv, "HSV400", "megaraid_sas")
			attr(d, "queue/max_sectors_kb", "128")
			if d.Vendor.V != "HP      " || d.Revision.V != "1234" {
				t.Errorf("%s: %q %q", d.Name, d.Vendor.V, d.Revision.V)
			}

			paths := map[string]*probe.Device{}
			for _, d := range inv.Devices {
				paths[d.Path] = d
			}
			for path, want := range map[string]struct{ kb, pid string }{"uas": {"512", "0003"}, "usb-storage": {"1024", "0001"}} {
				d, flags := paths[path], usbFlags
				if d == nil {
					d = &probe.Device{}
				}
				attr(d, "queue/max_sectors_kb", want.kb)
				if d.Transport != "usb" || d.USB["vid"] != "46f4" || d.USB["pid"] != want.pid || d.USB["bcd"] == "" || strings.Join(d.Blacklist.V, " ") != flags {
					t.Errorf("%s: %s: transport %q, USB %v, blacklist %v, want %v", path, d.Name, d.Transport, d.USB, d.Blacklist.V, flags)
				}
			}
			if d := paths["nvme-pci"]; d == nil || d.Name != "nvme0n1" || d.NVMeModel.V != "QEMU NVMe Ctrl" || !d.NVMeFirmware.Ok() || d.Adapter.Driver != "nvme" {
				t.Errorf("NVMe: %+v", d)
			} else {
				attr(d, "queue/max_sectors_kb", want.nvmeKB)
				attr(d, "queue/max_hw_sectors_kb", "2048")
			}
			if d := paths["virtio-blk"]; d == nil || d.Name != "vda" || d.Vendor.Ok() {
				t.Errorf("virtio-blk: %+v", d)
			} else {
				attr(d, "queue/max_sectors_kb", want.vdaKB)
			}
			for _, d := range inv.Devices {
				if d.Path == "" || d.Attr("size").State != probe.Known || d.Kind != "disk" {
					t.Errorf("%s: path %q, size %v, kind %q", d.Name, d.Path, d.Attr("size"), d.Kind)
				}
				if d.Transport == "" && d.Adapter.Driver != "virtio_scsi" && d.Adapter.Driver != "megaraid_sas" && !strings.Contains(d.SysPath, "pseudo") {
					t.Errorf("%s: no transport", d.Name)
				}
				for _, n := range d.Notes {
					if n.State == probe.Unreadable {
						t.Errorf("%s: %+v", d.Name, n)
					}
				}
			}
		})
	}
}

// The database can forbid VPD pages too; then the probe says so, with the
// entry's id.
func TestAvoidedCommandIsNotAsked(t *testing.T) {
	machine := recorded.FS(t, "6.1.190-debian12")
	asked := map[string]bool{}
	avoid := func(d *probe.Device) []probe.Avoided {
		asked[d.Name] = true
		if strings.HasPrefix(d.Product.V, "HUS726060AL5210") {
			return []probe.Avoided{{Command: "ata-identify", Why: "other"}, {Command: "vpd:*", Why: "hangs", Source: "scsi-test-hang"}}
		}
		return nil
	}
	d0 := byProduct(t, readTree(t, "6.1.190-debian12"), "HUS726060AL5210", "virtio_scsi")
	for name := range machine {
		if strings.HasPrefix(path.Base(name), "vpd_pg") {
			delete(machine, name)
		}
	}
	inv, err := probe.Read(context.Background(), machine, probe.Options{Avoid: avoid, Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	d, _ := inv.Device(d0.Name)
	if n := note(d.Notes, "vpd", probe.NotAsked); d.BlockLimits.State != probe.NotAsked || n == nil || n.Why != "hangs" || n.Source != "scsi-test-hang" {
		t.Errorf("block limits %v, notes %+v, want not asked, and the entry's reason", d.BlockLimits.State, d.Notes)
	}
	other := byProduct(t, inv, "HSV400", "megaraid_sas")
	if other.BlockLimits.State != probe.Absent || note(other.Notes, "vpd", probe.NotAsked) != nil {
		t.Errorf("%s: block limits %v, notes %+v, want absent without a note", other.Name, other.BlockLimits.State, other.Notes)
	}
	if asked["vda"] || !asked[d.Name] {
		t.Errorf("asked for %v, want the SCSI disks", asked)
	}
}
