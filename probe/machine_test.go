package probe_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quirkcheck/quirkcheck/probe"
)

// A made-up machine with two SATA disks, as small as the probe accepts.
const (
	sdaSCSI  = "sys/devices/pci0000:00/0000:00:1f.2/ata1/host0/target0:0:0/0:0:0:0"
	sdaBlock = sdaSCSI + "/block/sda"
	sdaID    = "sys/devices/pci0000:00/0000:00:1f.2/ata1/link1/dev1.0/ata_device/dev1.0/id"
	sdbSCSI  = "sys/devices/pci0000:00/0000:00:1f.2/ata2/host1/target1:0:0/1:0:0:0"
	sdbBlock = sdbSCSI + "/block/sdb"
)

func file(m fstest.MapFS, name, content string) {
	m[name] = &fstest.MapFile{Data: []byte(content), Mode: 0o444}
}

func link(m fstest.MapFS, name, target string) {
	m[name] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
}

func folder(m fstest.MapFS, name string) {
	m[name] = &fstest.MapFile{Mode: fs.ModeDir | 0o555}
}

// vpdPage puts the header of a VPD page before a body.
func vpdPage(code byte, length int, body []byte) string {
	return string(append([]byte{0, code, byte(length >> 8), byte(length)}, body...))
}

// blockLimits is page B0h with a maximum and an optimum in blocks.
func blockLimits(maximum, optimum uint16) string {
	body := make([]byte, 0x3c)
	body[6], body[7] = byte(maximum>>8), byte(maximum)
	body[10], body[11] = byte(optimum>>8), byte(optimum)
	return vpdPage(0xb0, len(body), body)
}

// identify is ata_device's id attribute with a model and a firmware.
func identify(model, firmware string) string {
	var words [256]uint16
	set := func(at int, s string, n int) {
		s = fmt.Sprintf("%-*s", n, s)
		for i := 0; i < n; i += 2 {
			words[at+i/2] = uint16(s[i])<<8 | uint16(s[i+1])
		}
	}
	set(23, firmware, 8)
	set(27, model, 40)
	var b strings.Builder
	for i, w := range words {
		fmt.Fprintf(&b, "%04x%c", w, " \n"[(i%8)/7])
	}
	return b.String()
}

func newMachine() fstest.MapFS {
	m := fstest.MapFS{}
	file(m, "proc/version", "Linux version 6.12.94+deb13-amd64 (debian-kernel@lists.debian.org)\n")
	file(m, "proc/cmdline", "quiet\n")
	pci := "sys/devices/pci0000:00/0000:00:1f.2"
	for name, content := range map[string]string{"vendor": "0x8086", "device": "0x2922", "subsystem_vendor": "0x1af4", "subsystem_device": "0x1100", "class": "0x010601", "revision": "0x02"} {
		file(m, pci+"/"+name, content+"\n")
	}
	link(m, pci+"/driver", "../../../bus/pci/drivers/ahci")
	folder(m, "sys/bus/pci/drivers/ahci")
	for i, d := range []struct{ name, scsi, block string }{{"sda", sdaSCSI, sdaBlock}, {"sdb", sdbSCSI, sdbBlock}} {
		link(m, "sys/block/"+d.name, "../"+strings.TrimPrefix(d.block, "sys/"))
		link(m, "sys/class/block/"+d.name, "../../"+strings.TrimPrefix(d.block, "sys/"))
		link(m, "sys/class/block/"+d.name+"1", "../../"+strings.TrimPrefix(d.block, "sys/")+"/"+d.name+"1")
		link(m, d.block+"/device", "../../../"+path.Base(d.scsi))
		host := path.Dir(path.Dir(d.scsi))
		file(m, fmt.Sprintf("%s/scsi_host/host%d/proc_name", host, i), "ahci\n")
		file(m, fmt.Sprintf("%s/scsi_host/host%d/link_power_management_policy", host, i), "max_performance\n")
		for name, content := range map[string]string{
			"vendor": "ATA     ", "model": "ACME DISK 9000  ", "rev": "1.0 ", "timeout": "30", "eh_timeout": "10", "queue_depth": "32", "blacklist": "",
		} {
			file(m, d.scsi+"/"+name, content+"\n")
		}
		file(m, d.scsi+"/vpd_pgb0", blockLimits(8192, 2048))
		file(m, d.scsi+"/scsi_disk/"+path.Base(d.scsi)+"/cache_type", "write back\n")
		for name, content := range map[string]string{
			"size": "1953525168", "dev": fmt.Sprintf("8:%d", 16*i), "ro": "0", "removable": "0",
			"queue/max_sectors_kb": "1280", "queue/max_hw_sectors_kb": "32767", "queue/logical_block_size": "512", "queue/scheduler": "[none]",
		} {
			file(m, d.block+"/"+name, content+"\n")
		}
		folder(m, d.block+"/holders")
		folder(m, d.block+"/slaves")
		file(m, d.block+"/"+d.name+"1/partition", "1\n")
	}
	file(m, sdaID, identify("ACME DISK 9000", "FW 1.0"))
	return m
}

// onDisk writes a tree to a temporary folder.
func onDisk(t testing.TB, m fstest.MapFS) string {
	t.Helper()
	dir := t.TempDir()
	for name, f := range m {
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		switch {
		case f.Mode.IsDir():
			err = os.MkdirAll(full, 0o755)
		case f.Mode&fs.ModeSymlink != 0:
			err = os.Symlink(string(f.Data), full)
		default:
			err = os.WriteFile(full, f.Data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func openRoot(t testing.TB, dir string) *probe.Root {
	t.Helper()
	root, err := probe.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	return root
}

// read fails the test when the probe does not come back.
func read(t testing.TB, sys fs.FS, o probe.Options) (*probe.Inventory, error) {
	t.Helper()
	type answer struct {
		inv *probe.Inventory
		err error
	}
	done := make(chan answer, 1)
	go func() {
		inv, err := probe.Read(context.Background(), sys, o)
		done <- answer{inv, err}
	}()
	select {
	case a := <-done:
		return a.inv, a.err
	case <-time.After(20 * time.Second):
		t.Fatal("the probe hangs")
		return nil, nil
	}
}

// whole checks that a disk of newMachine was read as if nothing were wrong.
func whole(t *testing.T, inv *probe.Inventory, name string) {
	t.Helper()
	d, ok := inv.Device(name)
	if !ok {
		t.Errorf("%s is missing; notes: %+v", name, inv.Notes)
		return
	}
	n, limit := d.BlockLimits.V.MaxTransferBlocks()
	if d.Product.V != "ACME DISK 9000  " || d.Attr("queue/max_sectors_kb").V != "1280" || d.Adapter.Driver != "ahci" || !limit || n != 8192 || d.Transport != "sata" {
		t.Errorf("%s: %+v", name, d)
	}
	for _, n := range d.Notes {
		if n.State == probe.Unreadable {
			t.Errorf("%s: %+v", name, n)
		}
	}
}

func noted(notes []probe.Note, what, why string) bool {
	return slices.ContainsFunc(notes, func(n probe.Note) bool { return n.What == what && strings.Contains(n.Why, why) })
}

func TestMadeUpMachineIsRead(t *testing.T) {
	m := newMachine()
	for name, sys := range map[string]fs.FS{"MapFS": m, "Root": openRoot(t, onDisk(t, m))} {
		inv, err := read(t, sys, probe.Options{})
		if err != nil || len(inv.Devices) != 2 || len(inv.Notes) != 0 {
			t.Fatalf("%s: %+v, %v", name, inv, err)
		}
		whole(t, inv, "sda")
		whole(t, inv, "sdb")
		a := inv.Devices[0]
		if a.ATAModel.V != "ACME DISK 9000" || a.ATAFirmware.V != "FW 1.0" || a.ATAModel.Source != sdaID || a.IdentityPartial() {
			t.Errorf("%s: sda's ATA identity %+v %+v", name, a.ATAModel, a.ATAFirmware)
		}
		if b := inv.Devices[1]; b.ATAModel.Ok() || !b.IdentityPartial() || note(b.Notes, "identity.ata", probe.NotAsked) == nil {
			t.Errorf("%s: sdb's ATA identity %+v, notes %+v", name, b.ATAModel, b.Notes)
		}
		if size := a.SizeBytes(); size.V != 1953525168*512 {
			t.Errorf("%s: size %+v", name, size)
		}
	}
}

func TestHostileTrees(t *testing.T) {
	unreadable := func(d *probe.Device, t *testing.T, file, why string) {
		t.Helper()
		v := d.Uint(file)
		if v.State != probe.Unreadable || v.Err == nil || !strings.Contains(v.Err.Error(), why) || !noted(d.Notes, file, why) {
			t.Errorf("%s: %+v, notes %+v, want unreadable and a note: %s", file, v, d.Notes, why)
		}
	}
	gone := func(state probe.State, why string) func(*testing.T, *probe.Inventory) {
		return func(t *testing.T, inv *probe.Inventory) {
			t.Helper()
			n := note(inv.Notes, "device sda", state)
			if _, ok := inv.Device("sda"); ok || n == nil || !strings.Contains(n.Why, why) {
				t.Errorf("notes %+v, want one that sda is %v: %s", inv.Notes, state, why)
			}
		}
	}
	sda := func(check func(*testing.T, *probe.Device)) func(*testing.T, *probe.Inventory) {
		return func(t *testing.T, inv *probe.Inventory) {
			t.Helper()
			if d, ok := inv.Device("sda"); ok {
				check(t, d)
			} else {
				t.Errorf("sda is missing; notes %+v", inv.Notes)
			}
		}
	}
	malformed := func(content string) func(fstest.MapFS) {
		return func(m fstest.MapFS) { file(m, sdaBlock+"/queue/max_sectors_kb", content) }
	}
	noNumber := sda(func(t *testing.T, d *probe.Device) { unreadable(d, t, "queue/max_sectors_kb", "is not a whole number") })
	page := func(name, content string) func(fstest.MapFS) {
		return func(m fstest.MapFS) { file(m, sdaSCSI+"/"+name, content) }
	}
	noLimits := sda(func(t *testing.T, d *probe.Device) {
		if d.BlockLimits.State != probe.Unreadable || d.BlockLimits.Err == nil || note(d.Notes, "vpd.b0", probe.Unreadable) == nil {
			t.Errorf("block limits %+v, notes %+v", d.BlockLimits, d.Notes)
		}
	})
	badID := func(content string) func(fstest.MapFS) { return func(m fstest.MapFS) { file(m, sdaID, content) } }
	noIdentity := sda(func(t *testing.T, d *probe.Device) {
		if d.ATAModel.Ok() || note(d.Notes, "identity.ata", probe.Unreadable) == nil || !d.IdentityPartial() {
			t.Errorf("ATA model %+v, notes %+v", d.ATAModel, d.Notes)
		}
	})
	chain := func(n int) func(fstest.MapFS) {
		return func(m fstest.MapFS) {
			for i := range n - 1 {
				link(m, fmt.Sprintf("sys/l%d", i), fmt.Sprintf("l%d", i+1))
			}
			link(m, fmt.Sprintf("sys/l%d", n-2), strings.TrimPrefix(sdaBlock, "sys/"))
			link(m, "sys/block/sda", "../l0")
		}
	}
	for _, c := range []struct {
		name  string
		spoil func(fstest.MapFS)
		check func(*testing.T, *probe.Inventory)
	}{
		{"number with a letter", malformed("12x\n"), noNumber},
		{"negative number", malformed("-1\n"), noNumber},
		{"empty number", malformed(""), noNumber},
		{"number with an exponent", malformed("1e3\n"), noNumber},
		{"hexadecimal number", malformed("0x500\n"), noNumber},
		{"number of 20 digits", malformed("99999999999999999999\n"), noNumber},
		{"number that is no text", malformed("\xff\xfe\x00\n"), noNumber},
		{"two lines", malformed("1280\n1280\n"), noNumber},
		{"blanks around a number", malformed(" 1280 \n"), sda(func(t *testing.T, d *probe.Device) {
			if v := d.Uint("queue/max_sectors_kb"); v.V != 1280 || !v.Ok() {
				t.Errorf("%+v", v)
			}
		})},
		{"capacity that overflows in bytes", func(m fstest.MapFS) { file(m, sdaBlock+"/size", "72057594037927936\n") },
			sda(func(t *testing.T, d *probe.Device) {
				if v := d.SizeBytes(); v.Ok() || v.Err == nil {
					t.Errorf("%+v", v)
				}
			})},
		{"attribute is a folder", func(m fstest.MapFS) {
			delete(m, sdaBlock+"/queue/max_sectors_kb")
			folder(m, sdaBlock+"/queue/max_sectors_kb")
		}, sda(func(t *testing.T, d *probe.Device) { unreadable(d, t, "queue/max_sectors_kb", "") })},
		{"attribute is a link to a good file", func(m fstest.MapFS) { link(m, sdaBlock+"/queue/max_sectors_kb", "max_hw_sectors_kb") },
			sda(func(t *testing.T, d *probe.Device) { unreadable(d, t, "queue/max_sectors_kb", "") })},
		{"attribute of 64 KiB and more", malformed(strings.Repeat("1", 64<<10+5)),
			sda(func(t *testing.T, d *probe.Device) { unreadable(d, t, "queue/max_sectors_kb", "longer than") })},
		{"folder of attributes is a file", func(m fstest.MapFS) {
			for name := range m {
				if strings.HasPrefix(name, sdaBlock+"/queue/") {
					delete(m, name)
				}
			}
			file(m, sdaBlock+"/queue", "x")
		}, sda(func(t *testing.T, d *probe.Device) {
			if v := d.Uint("queue/max_sectors_kb"); v.Ok() {
				t.Errorf("%+v", v)
			}
		})},

		{"page B0h is empty", page("vpd_pgb0", ""), noLimits},
		{"page B0h is a header", page("vpd_pgb0", vpdPage(0xb0, 0x3c, nil)), noLimits},
		{"page B0h has another code", page("vpd_pgb0", vpdPage(0xb1, 0x3c, make([]byte, 0x3c))), noLimits},
		{"page B0h is endless", page("vpd_pgb0", strings.Repeat("\xb0", 1<<20)), noLimits},
		{"page B0h claims more than there is", page("vpd_pgb0", vpdPage(0xb0, 0xffff, []byte(blockLimits(8192, 2048))[4:])),
			sda(func(t *testing.T, d *probe.Device) {
				n, ok := d.BlockLimits.V.MaxTransferBlocks()
				if !d.BlockLimits.Ok() || !ok || n != 8192 || !noted(d.Notes, "vpd.b0", "claims to be longer") {
					t.Errorf("block limits %+v, maximum %d, notes %+v", d.BlockLimits, n, d.Notes)
				}
			})},
		{"page B0h is longer than it claims", page("vpd_pgb0", blockLimits(8192, 2048)+strings.Repeat("\xff", 100)),
			sda(func(t *testing.T, d *probe.Device) {
				if n, ok := d.BlockLimits.V.MaxTransferBlocks(); !ok || n != 8192 {
					t.Errorf("maximum %d, %v", n, ok)
				}
			})},
		{"page 89h is short", func(m fstest.MapFS) {
			delete(m, sdaID)
			file(m, sdaSCSI+"/vpd_pg89", vpdPage(0x89, 0x238, make([]byte, 20)))
		}, sda(func(t *testing.T, d *probe.Device) {
			if d.ATAModel.Ok() || !d.IdentityPartial() || note(d.Notes, "identity.ata", probe.NotAsked) == nil {
				t.Errorf("ATA model %+v, notes %+v", d.ATAModel, d.Notes)
			}
		})},

		{"id of 255 words", badID(strings.Repeat("0000 ", 255)), noIdentity},
		{"id of no words", badID(""), noIdentity},
		{"id of other digits", badID(strings.Repeat("zzzz ", 256)), noIdentity},
		{"id of long words", badID(strings.Repeat("00000 ", 256)), noIdentity},

		{"vendor is no text", page("vendor", "\xff\xfe\x1b[31m\n"), sda(func(t *testing.T, d *probe.Device) {
			if d.Vendor.V != "\xff\xfe\x1b[31m" {
				t.Errorf("vendor %q, want it as it is", d.Vendor.V)
			}
		})},
		{"model of several lines", page("model", "a\nb\n"), sda(func(t *testing.T, d *probe.Device) {
			if d.Product.V != "a\nb" {
				t.Errorf("model %q", d.Product.V)
			}
		})},
		{"vendor is a folder", func(m fstest.MapFS) { delete(m, sdaSCSI+"/vendor"); folder(m, sdaSCSI+"/vendor") },
			sda(func(t *testing.T, d *probe.Device) {
				if d.Vendor.State != probe.Unreadable || note(d.Notes, "identity.scsi.vendor", probe.Unreadable) == nil {
					t.Errorf("vendor %+v, notes %+v", d.Vendor, d.Notes)
				}
			})},
		{"blacklist is endless", page("blacklist", strings.Repeat("X ", 1<<16)), sda(func(t *testing.T, d *probe.Device) {
			if d.Blacklist.State != probe.Unreadable || note(d.Notes, "blacklist", probe.Unreadable) == nil {
				t.Errorf("blacklist %v, notes %+v", d.Blacklist.State, d.Notes)
			}
		})},
		{"no vendor, no model, INQUIRY too short", func(m fstest.MapFS) {
			delete(m, sdaSCSI+"/vendor")
			delete(m, sdaSCSI+"/model")
			file(m, sdaSCSI+"/inquiry", "\x00\x00")
		}, sda(func(t *testing.T, d *probe.Device) {
			if d.Vendor.Ok() || note(d.Notes, "inquiry", probe.Unreadable) == nil {
				t.Errorf("vendor %+v, notes %+v", d.Vendor, d.Notes)
			}
		})},

		{"device's name is a link to itself", func(m fstest.MapFS) { link(m, "sys/block/sda", "sda") }, gone(probe.Unreadable, "more than 40 links")},
		{"device is a link to sys/block", func(m fstest.MapFS) { link(m, "sys/block/sda", ".") }, sda(func(t *testing.T, d *probe.Device) {
			if d.Vendor.Ok() || d.Attr("size").Ok() {
				t.Errorf("%+v", d)
			}
		})},
		{"two links in a ring", func(m fstest.MapFS) { link(m, "sys/block/sda", "../l0"); link(m, "sys/l0", "block/sda") }, gone(probe.Unreadable, "more than 40 links")},
		{"absolute link", func(m fstest.MapFS) { link(m, "sys/block/sda", "/"+sdaBlock) }, gone(probe.Unreadable, "absolute link")},
		{"absolute link behind a link", func(m fstest.MapFS) { link(m, "sys/block/sda", "../l0"); link(m, "sys/l0", "/"+sdaBlock) }, gone(probe.Unreadable, "absolute link")},
		{"link that climbs out", func(m fstest.MapFS) { link(m, "sys/block/sda", "../../../etc") }, gone(probe.Unreadable, "leaves the tree")},
		{"link behind a link that climbs out", func(m fstest.MapFS) { link(m, "sys/block/sda", "../l0"); link(m, "sys/l0", "../../x") }, gone(probe.Unreadable, "leaves the tree")},
		{"dangling link", func(m fstest.MapFS) { link(m, "sys/block/sda", "../nowhere") }, gone(probe.Absent, "vanished")},
		{"link to a file", func(m fstest.MapFS) { link(m, "sys/block/sda", "../../proc/version") }, gone(probe.Unreadable, "")},
		{"device is a file", func(m fstest.MapFS) { file(m, "sys/block/sda", "x") }, gone(probe.Unreadable, "")},
		{"chain of 40 links", chain(40), func(t *testing.T, inv *probe.Inventory) {
			whole(t, inv, "sda")
			if d, ok := inv.Device("sda"); ok && d.SysPath != sdaBlock {
				t.Errorf("path %q, want the one without links", d.SysPath)
			}
		}},
		{"link on the way", func(m fstest.MapFS) {
			link(m, "sys/d", "devices")
			link(m, "sys/block/sda", "../d/"+strings.TrimPrefix(sdaBlock, "sys/devices/"))
		}, func(t *testing.T, inv *probe.Inventory) {
			whole(t, inv, "sda")
			if d, ok := inv.Device("sda"); ok && d.SysPath != sdaBlock {
				t.Errorf("path %q, want the one without links", d.SysPath)
			}
		}},
		{"chain of 41 links", chain(41), gone(probe.Unreadable, "more than 40 links")},

		{"link to the SCSI device is absolute", func(m fstest.MapFS) { link(m, sdaBlock+"/device", "/etc") },
			sda(func(t *testing.T, d *probe.Device) {
				if d.Vendor.Ok() || note(d.Notes, "device", probe.Unreadable) == nil {
					t.Errorf("vendor %+v, notes %+v", d.Vendor, d.Notes)
				}
			})},
		{"link to the SCSI device climbs out", func(m fstest.MapFS) { link(m, sdaBlock+"/device", strings.Repeat("../", 20)+"etc") },
			sda(func(t *testing.T, d *probe.Device) {
				if d.Vendor.Ok() || !noted(d.Notes, "device", "leaves the tree") {
					t.Errorf("vendor %+v, notes %+v", d.Vendor, d.Notes)
				}
			})},
		{"link to the SCSI device dangles", func(m fstest.MapFS) { link(m, sdaBlock+"/device", "../../../9:0:0:0") },
			sda(func(t *testing.T, d *probe.Device) {
				if d.Vendor.Ok() || note(d.Notes, "device", probe.Absent) == nil || d.Attr("device/timeout").State != probe.Absent || d.Attr("size").V != "1953525168" {
					t.Errorf("vendor %+v, notes %+v", d.Vendor, d.Notes)
				}
			})},
		{"link to the SCSI device is a loop", func(m fstest.MapFS) { link(m, sdaBlock+"/device", "device") },
			sda(func(t *testing.T, d *probe.Device) {
				if d.Vendor.Ok() || note(d.Notes, "device", probe.Unreadable) == nil {
					t.Errorf("vendor %+v, notes %+v", d.Vendor, d.Notes)
				}
			})},
		{"the SCSI device is a folder, not a link", func(m fstest.MapFS) { delete(m, sdaBlock+"/device"); folder(m, sdaBlock+"/device") },
			sda(func(t *testing.T, d *probe.Device) {
				if d.Vendor.Ok() || note(d.Notes, "device", probe.Unreadable) == nil {
					t.Errorf("vendor %+v, notes %+v", d.Vendor, d.Notes)
				}
			})},
		{"no link to the SCSI device", func(m fstest.MapFS) { delete(m, sdaBlock+"/device") },
			sda(func(t *testing.T, d *probe.Device) {
				if d.Vendor.State != probe.NotAsked || d.Adapter.PCI != "8086:2922:1af4:1100" || d.Path != "libata" {
					t.Errorf("vendor %+v, adapter %+v, path %q", d.Vendor, d.Adapter, d.Path)
				}
			})},

		{"device name with a newline and an escape", func(m fstest.MapFS) {
			link(m, "sys/block/sd\nx\x1b[31m", "../"+strings.TrimPrefix(sdbBlock, "sys/"))
		}, func(t *testing.T, inv *probe.Inventory) {
			whole(t, inv, "sda")
			whole(t, inv, "sd\nx\x1b[31m")
		}},
		{"PCI function that tells no ids", func(m fstest.MapFS) {
			delete(m, "sys/devices/pci0000:00/0000:00:1f.2/vendor")
			delete(m, sdbBlock+"/device")
		},
			sda(func(t *testing.T, d *probe.Device) {
				if d.Adapter.Known || d.Adapter.PCI != "" || d.Adapter.SysPath != "sys/devices/pci0000:00/0000:00:1f.2" {
					t.Errorf("adapter %+v, want its place and that it is not known", d.Adapter)
				}
			})},
		{"driver link of a PCI function is a file", func(m fstest.MapFS) { file(m, "sys/devices/pci0000:00/0000:00:1f.2/driver", "x") },
			sda(func(t *testing.T, d *probe.Device) {
				if d.Adapter.Driver != "ahci" { // the SCSI host's word
					t.Errorf("driver %q", d.Adapter.Driver)
				}
			})},

		{"kernel release is hostile", func(m fstest.MapFS) { file(m, "proc/version", "Linux version \x1b[31m\n") },
			func(t *testing.T, inv *probe.Inventory) {
				if inv.Kernel.State != probe.Unreadable || inv.Kernel.Err == nil || strings.Contains(inv.Kernel.Err.Error(), "\x1b") {
					t.Errorf("kernel %+v", inv.Kernel)
				}
			}},
		{"no kernel release", func(m fstest.MapFS) { delete(m, "proc/version"); delete(m, "proc/cmdline") },
			func(t *testing.T, inv *probe.Inventory) {
				if inv.Kernel.State != probe.Absent || inv.Kernel.Err != nil || inv.Cmdline.State != probe.Absent || inv.Cmdline.Err != nil {
					t.Errorf("kernel %+v, command line %+v", inv.Kernel, inv.Cmdline)
				}
			}},
		{"command line is endless", func(m fstest.MapFS) { file(m, "proc/cmdline", strings.Repeat("x", 1<<20)) },
			func(t *testing.T, inv *probe.Inventory) {
				if inv.Cmdline.State != probe.Unreadable || inv.Cmdline.Err == nil {
					t.Errorf("command line %v %v", inv.Cmdline.State, inv.Cmdline.Err)
				}
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMachine()
			c.spoil(m)
			for name, sys := range map[string]fs.FS{"MapFS": m, "Root": openRoot(t, onDisk(t, m))} {
				t.Run(name, func(t *testing.T) {
					inv, err := read(t, sys, probe.Options{})
					if err != nil {
						t.Fatal(err)
					}
					c.check(t, inv)
					if c.name != "PCI function that tells no ids" {
						whole(t, inv, "sdb")
					}
				})
			}
		})
	}
}

func TestNoSysfsIsAnError(t *testing.T) {
	sysBlockIsAFile, sysBlockIsALink := fstest.MapFS{}, newMachine()
	file(sysBlockIsAFile, "sys/block", "x")
	for name := range sysBlockIsALink {
		if strings.HasPrefix(name, "sys/block/") {
			delete(sysBlockIsALink, name)
		}
	}
	link(sysBlockIsALink, "sys/block", "/etc")
	for name, m := range map[string]fstest.MapFS{"empty tree": {}, "sys/block is a file": sysBlockIsAFile, "sys/block is a link out": sysBlockIsALink} {
		for kind, sys := range map[string]fs.FS{"MapFS": m, "Root": openRoot(t, onDisk(t, m))} {
			if inv, err := read(t, sys, probe.Options{}); err == nil || !strings.Contains(err.Error(), "sys/block") {
				t.Errorf("%s, %s: %+v, %v, want an error that names sys/block", name, kind, inv, err)
			}
		}
	}
	if _, err := probe.OpenRoot(filepath.Join(t.TempDir(), "x")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("OpenRoot of nothing: %v", err)
	}
}

func TestEndedContextIsAnError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if inv, err := probe.Read(ctx, newMachine(), probe.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v, want the context's error", inv, err)
	}
}

func TestOnlyLimitsTheReading(t *testing.T) {
	inv, err := read(t, newMachine(), probe.Options{Only: []string{"sdb", "sdz"}})
	if err != nil || len(inv.Devices) != 1 || len(inv.Notes) != 0 {
		t.Fatalf("%+v, %v, want sdb alone", inv, err)
	}
	whole(t, inv, "sdb")
}

// What a copied tree can hold beside files, folders and links: opened, these
// block, never end or act.
func TestSpecialFilesStayClosed(t *testing.T) {
	dir := onDisk(t, newMachine())
	replace := func(name string, put func(full string) error) {
		full := filepath.Join(dir, name)
		os.Remove(full)
		if err := put(full); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	replace(sdaBlock+"/queue/max_sectors_kb", func(p string) error { return unix.Mkfifo(p, 0o644) })
	replace(sdaBlock+"/queue/scheduler", func(p string) error { return os.Symlink("/dev/zero", p) })
	replace(sdaSCSI+"/vendor", func(p string) error { return unix.Mkfifo(p, 0o644) })
	replace(sdaSCSI+"/vpd_pgb0", func(p string) error { return os.Symlink("/dev/zero", p) })
	replace("proc/cmdline", func(p string) error { return unix.Mkfifo(p, 0o644) })
	for name, sys := range map[string]fs.FS{"Root": openRoot(t, dir), "os.DirFS": os.DirFS(dir)} {
		t.Run(name, func(t *testing.T) {
			inv, err := read(t, sys, probe.Options{})
			if err != nil {
				t.Fatal(err)
			}
			whole(t, inv, "sdb")
			d, ok := inv.Device("sda")
			if !ok {
				t.Fatalf("no sda: %+v", inv.Notes)
			}
			for _, what := range []string{"queue/max_sectors_kb", "queue/scheduler", "identity.scsi.vendor", "vpd.b0"} {
				if note(d.Notes, what, probe.Unreadable) == nil {
					t.Errorf("no note about %s: %+v", what, d.Notes)
				}
			}
			if inv.Cmdline.State != probe.Unreadable {
				t.Errorf("command line %+v", inv.Cmdline)
			}
		})
	}
}

func TestDeviceNodesStayClosed(t *testing.T) {
	dir := onDisk(t, newMachine())
	for _, name := range []string{sdaBlock + "/queue/max_sectors_kb", sdaSCSI + "/model", sdaSCSI + "/vpd_pgb0"} {
		full := filepath.Join(dir, name)
		os.Remove(full)
		if err := unix.Mknod(full, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); errors.Is(err, unix.EPERM) {
			t.Skip("needs the right to make device nodes (CAP_MKNOD)")
		} else if err != nil {
			t.Fatal(err)
		}
	}
	inv, err := read(t, openRoot(t, dir), probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	whole(t, inv, "sdb")
	d, ok := inv.Device("sda")
	if !ok {
		t.Fatalf("no sda: %+v", inv.Notes)
	}
	for _, what := range []string{"queue/max_sectors_kb", "identity.scsi.model", "vpd.b0"} {
		// Read, the node would be endless.
		if n := note(d.Notes, what, probe.Unreadable); n == nil || strings.Contains(n.Why, "longer than") {
			t.Errorf("%s: notes %+v, want one that it was not opened", what, d.Notes)
		}
	}
}

func TestNamesThatAreNoText(t *testing.T) {
	dir := onDisk(t, newMachine())
	if err := os.Symlink("../"+strings.TrimPrefix(sdaBlock, "sys/"), filepath.Join(dir, "sys/block/sd\xff")); err != nil {
		t.Fatal(err)
	}
	for name, sys := range map[string]fs.FS{"Root": openRoot(t, dir), "os.DirFS": os.DirFS(dir)} {
		inv, err := read(t, sys, probe.Options{})
		if err != nil {
			t.Fatal(err)
		}
		whole(t, inv, "sda")
		whole(t, inv, "sdb")
		if len(inv.Devices) != 2 || note(inv.Notes, "device sd\xff", probe.Unreadable) == nil {
			t.Errorf("%s: %d devices, notes %+q", name, len(inv.Devices), inv.Notes)
		}
	}
}

// faultFS is a tree whose files fail in a way no file on disk does for root.
type faultFS struct {
	fstest.MapFS
	fault func(name string) error
}

func (f faultFS) Open(name string) (fs.File, error) {
	if err := f.fault(name); err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return f.MapFS.Open(name)
}

func (f faultFS) Lstat(name string) (fs.FileInfo, error) {
	if err := f.fault(name); errors.Is(err, fs.ErrNotExist) {
		return nil, &fs.PathError{Op: "lstat", Path: name, Err: err}
	}
	return f.MapFS.Lstat(name)
}

func (f faultFS) Stat(name string) (fs.FileInfo, error) {
	if err := f.fault(name); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: name, Err: err}
	}
	return f.MapFS.Stat(name)
}

func (f faultFS) ReadDir(name string) ([]fs.DirEntry, error) {
	if err := f.fault(name); err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return f.MapFS.ReadDir(name)
}

func (f faultFS) ReadLink(name string) (string, error) {
	if err := f.fault(name); err != nil {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: err}
	}
	return f.MapFS.ReadLink(name)
}

func TestUnreadableAttributes(t *testing.T) {
	for _, c := range []struct {
		what, name string
	}{
		{"queue/max_sectors_kb", sdaBlock + "/queue/max_sectors_kb"},
		{"identity.scsi.vendor", sdaSCSI + "/vendor"},
		{"identity.scsi.model", sdaSCSI + "/model"},
		{"identity.scsi.rev", sdaSCSI + "/rev"},
		{"vpd.b0", sdaSCSI + "/vpd_pgb0"},
		{"blacklist", sdaSCSI + "/blacklist"},
		{"udev", "run/udev/data/b8:0"},
	} {
		for _, fault := range []error{unix.EIO, fs.ErrPermission, unix.ENODEV} {
			m := newMachine()
			file(m, "run/udev/data/b8:0", "E:ID_ATA=1\n")
			inv, err := read(t, faultFS{m, func(name string) error {
				if name == c.name {
					return fault
				}
				return nil
			}}, probe.Options{})
			if err != nil {
				t.Fatal(err)
			}
			whole(t, inv, "sdb")
			d, ok := inv.Device("sda")
			if !ok {
				t.Fatalf("%s: no sda: %+v", c.what, inv.Notes)
			}
			if !noted(d.Notes, c.what, fault.Error()) {
				t.Errorf("%s, %v: notes %+v", c.what, fault, d.Notes)
			}
		}
	}
}

// A disk is pulled after each number of accesses there is: either it was read
// whole before, or a note says that it is gone.
func TestDeviceThatVanishesIsANote(t *testing.T) {
	count := func(limit int) (inv *probe.Inventory, accesses int) {
		inv, err := read(t, faultFS{newMachine(), func(name string) error {
			if name == "sys/block/sda" || name == sdaSCSI || strings.HasPrefix(name, sdaSCSI+"/") {
				if accesses++; accesses > limit {
					return fs.ErrNotExist
				}
			}
			return nil
		}}, probe.Options{Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		return inv, accesses
	}
	_, all := count(1 << 30)
	if all < 20 {
		t.Fatalf("only %d accesses", all)
	}
	vanished := 0
	for limit := range all {
		inv, _ := count(limit)
		whole(t, inv, "sdb")
		if _, ok := inv.Device("sda"); !ok {
			vanished++
			if note(inv.Notes, "device sda", probe.Absent) == nil {
				t.Errorf("pulled after %d accesses: no note: %+v", limit, inv.Notes)
			}
			continue
		}
		whole(t, inv, "sda")
	}
	if vanished != all {
		t.Errorf("%d of %d times sda was listed though it was gone before the end", all-vanished, all)
	}
}

// lsblk's rules for its TRAN column, in its order.
func TestTransport(t *testing.T) {
	host := path.Dir(path.Dir(sdaSCSI))
	class := func(name string) func(fstest.MapFS) {
		return func(m fstest.MapFS) { folder(m, host+"/"+name+"_host/host0") }
	}
	driver := func(name string) func(fstest.MapFS) {
		return func(m fstest.MapFS) { file(m, host+"/scsi_host/host0/proc_name", name+"\n") }
	}
	both := func(a, b func(fstest.MapFS)) func(fstest.MapFS) { return func(m fstest.MapFS) { a(m); b(m) } }
	for _, c := range []struct {
		name string
		set  func(fstest.MapFS)
		want string
	}{
		{"AHCI", driver("ahci"), "sata"},
		{"AHCI of a platform", driver("ahci_platform"), "sata"},
		{"SATA driver", driver("sata_sil"), "sata"},
		{"parallel ATA driver", driver("ata_piix"), "ata"},
		{"no name", driver("(null)"), ""},
		{"other driver", driver("megaraid_sas"), ""},
		{"SAS", class("sas"), "sas"},
		{"Fibre Channel", class("fc"), "fc"},
		{"parallel SCSI", class("spi"), "spi"},
		{"iSCSI", class("iscsi"), "iscsi"},
		{"SAS comes before iSCSI", both(class("sas"), class("iscsi")), "sas"},
		{"Fibre Channel comes before SAS", both(class("fc"), class("sas")), "fc"},
	} {
		m := newMachine()
		c.set(m)
		inv, err := read(t, m, probe.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if d, _ := inv.Device("sda"); d.Transport != c.want {
			t.Errorf("%s: transport %q, want %q", c.name, d.Transport, c.want)
		}
	}
}
