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
	"testing"
	"text/tabwriter"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/probe/capture"
)

// matrixDir is where the captures of the matrix are kept.
const matrixDir = "../../checker/audit/testdata/matrix"

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	tib = int64(1) << 40
)

// A matrixDisk is a disk of the matrix.
type matrixDisk struct {
	Disk
	bytes int64  // of the image; 0 is 64 MiB
	of    string // serial whose image it shares
	user  string // written to max_sectors_kb before anything is built on it
	mbr   int    // partitions of equal size
	what  string
}

// matrixDisks are the disks with a serial number of their own.
func matrixDisks() []matrixDisk {
	var all []matrixDisk
	add := func(what string, d Disk, set ...func(*matrixDisk)) {
		m := matrixDisk{Disk: d, what: what}
		for _, s := range set {
			s(&m)
		}
		all = append(all, m)
	}
	user := func(kib string) func(*matrixDisk) { return func(m *matrixDisk) { m.user = kib } }
	big := func(bytes int64) func(*matrixDisk) { return func(m *matrixDisk) { m.bytes = bytes } }

	// SATA.
	sata := func(serial, model, firmware string) Disk {
		return Disk{Serial: serial, Bus: AHCI, Model: model, Firmware: firmware}
	}
	add("quirk MAX_SEC_1024", sata("SATA-ST380013AS", "ST380013AS", "3.20"))
	add("quirk of 8191 sectors in 7.x", sata("SATA-DELLBOSS", "DELLBOSS VD", "MV.R00-0"))
	add("4 MiB commands fail", sata("SATA-S4610", "INTEL SSDSC2KG480G8", "XCV10120"))
	add("QEMU's own identity", sata("SATA-QEMU", "QEMU HARDDISK", "2.5+"))
	add("quirk MAX_SEC_1024", sata("SATA-LITEON", "LITEON CX1-JB256-HP", "7E1B"))
	add("quirk BRIDGE_OK: no limit of bridges", sata("SATA-MTRON", "MTRON MSP-SATA7525", "0.19R1"))
	second := func(d Disk) Disk { d.Controller = "ahcib"; return d }
	add("no row anywhere", second(sata("SATA-ACME", "ACME MODEL 1", "1.0")))
	d := second(sata("SATA-512E", "ACME MODEL 512E", "1.0"))
	d.PhysicalBlockBytes = 4096
	add("512e", d)
	d = second(sata("SATA-TRIM", "ACME MODEL TRIM", "1.0"))
	d.RotationRate = 1
	add("solid state", d)
	add("max_sectors_kb 64 by the admin", second(sata("USER-SATA", "ACME MODEL 1", "1.0")), user("64"))
	add("3 TiB", second(sata("SATA-3T", "ACME MODEL 3T", "1.0")), big(3*tib))

	// SCSI identities.
	scsi := func(bus Bus, serial, vendor, product, rev string) Disk {
		return Disk{Serial: serial, Bus: bus, Vendor: vendor, Product: product, Revision: rev}
	}
	vs := func(serial, vendor, product, rev string) Disk { return scsi(VirtioSCSI, serial, vendor, product, rev) }
	add("a SATA disk's strings, and no libata", vs("VS-ATA", "ATA", "ST380013AS", "3.20"))
	d = vs("VS-HGST", "HGST", "HUS726060AL5210", "A519")
	d.MaxIOBytes, d.OptIOBytes, d.PhysicalBlockBytes = 2*mib, mib, 4096
	add("B0h max 2 MiB, opt 1 MiB, 512e", d)
	add("row of the SCSI device list", vs("VS-SYNOLOGY", "SYNOLOGY", "iSCSI Storage", "4.0"))
	add("row of the SCSI device list", vs("VS-QNAP", "QNAP", "iSCSI Storage", "4.0"))
	add("row of the SCSI device list", vs("VS-EASYRAID", "easyRAID", "X6P", "1.0"))
	add("row of the SCSI device list", vs("VS-MSFT", "MSFT", "Virtual HD", "1.0"))
	add("row of the SCSI device list", vs("VS-COMPAQ", "COMPAQ", "LOGICAL VOLUME", "1.0"))

	// The Block Limits VPD page in all odd combinations.
	b0 := func(serial string, max, opt, gran int64, lbs, pbs int, set ...func(*matrixDisk)) {
		d := vs(serial, "ACME", "B0", "1.0")
		d.MaxIOBytes, d.OptIOBytes, d.MinIOBytes = max, opt, gran
		d.LogicalBlockBytes, d.PhysicalBlockBytes = lbs, pbs
		if max == 0 {
			d.Properties = append(d.Properties, "max_io_size=0")
		}
		what := "B0h"
		for _, f := range []struct {
			name  string
			bytes int64
		}{{"max", max}, {"opt", opt}, {"gran", gran}} {
			if f.bytes != 0 {
				what += fmt.Sprintf(" %s %d blocks (%s)", f.name, f.bytes/int64(max64(lbs, 512)), size(f.bytes))
			}
		}
		if what == "B0h" {
			what += " all zero"
		}
		if lbs != 0 || pbs != 0 {
			what += fmt.Sprintf("; blocks of %d/%d", max64(lbs, 512), max64(pbs, max64(lbs, 512)))
		}
		add(what, d, set...)
	}
	b0("B0-NONE", 0, 0, 0, 0, 0)
	b0("B0-QEMU", 2147483136, 0, 0, 0, 0)
	b0("B0-MAX256K", 256*kib, 0, 0, 0, 0)
	b0("B0-MAX2M", 2*mib, 0, 0, 0, 0)
	b0("B0-OPT64K", 0, 64*kib, 0, 0, 0)
	b0("B0-OPT512K", 0, 512*kib, 0, 0, 0)
	b0("B0-OPT1280K", 0, 1280*kib, 0, 0, 0)
	b0("B0-OPT2M", 0, 2*mib, 0, 0, 0)
	b0("B0-OPT4M", 0, 4*mib, 0, 0, 0)
	b0("B0-OPT8M", 0, 8*mib, 0, 0, 0)
	b0("B0-OPT8M-MAX16M", 16*mib, 8*mib, 0, 0, 0)
	b0("B0-OPT8M-MAX8M", 8*mib, 8*mib, 0, 0, 0)
	b0("B0-OPT2M-MAX1M", mib, 2*mib, 0, 0, 0)
	b0("B0-OPT8M-MAX6M", 6*mib, 8*mib, 0, 0, 0)
	b0("B0-OPT-PBS", 0, 2*mib+512, 0, 0, 4096)
	b0("B0-OPT8M-PBS", 0, 8*mib+512, 0, 0, 4096)
	b0("B0-OPT-GRAN", 0, 96*kib, 64*kib, 0, 0)
	b0("B0-OPT8M-GRAN", 0, 8*mib+32*kib, 64*kib, 0, 0)
	b0("B0-OPT8M-GRANOK", 0, 8*mib, 64*kib, 0, 0)
	b0("B0-OPT2K", 0, 2*kib, 0, 0, 0)
	b0("B0-OPT4K", 0, 4*kib, 0, 0, 0)
	b0("B0-OPT65535", 0, 65535*512, 0, 0, 0)
	b0("B0-OPT65536", 0, 65536*512, 0, 0, 0)
	b0("B0-MAX1025", 1025*512, 0, 0, 0, 0)
	b0("B0-MAX1025-512E", 1025*512, 0, 0, 0, 4096)
	b0("B0-MAX70000", 70000*512, 0, 0, 0, 0)
	b0("B0-MAX70000-OPT8M", 70000*512, 8*mib, 0, 0, 0)
	b0("B0-GRAN512K", 0, 0, 512*kib, 0, 0)
	b0("B0-GRAN2M", 0, 0, 2*mib, 0, 0)
	b0("B0-GRAN5M", 0, 0, 5*mib, 0, 0)
	b0("B0-GRAN5M-MAX4M", 4*mib, 0, 5*mib, 0, 0)
	b0("B0-GRAN5M-OPT10M", 0, 10*mib, 5*mib, 0, 0)
	b0("B0-GRAN-PBS", 0, 0, 5*mib+512, 0, 4096)
	b0("B0-4KN", 0, 0, 0, 4096, 4096)
	b0("B0-4KN-MAX2M-OPT1M", 2*mib, mib, 0, 4096, 4096)
	b0("B0-4KN-OPT8M", 0, 8*mib, 0, 4096, 4096)
	b0("B0-4KN-MAX129", 129*4096, 0, 0, 4096, 4096)
	b0("B0-4KN-OPT65535", 0, 65535*4096, 0, 4096, 4096)
	b0("B0-16B", 0, 0, 0, 0, 0, big(3*tib))
	b0("B0-16B-MAX70000", 70000*512, 0, 0, 0, 0, big(3*tib))
	b0("B0-16B-OPT8M", 70000*512, 8*mib, 0, 0, 0, big(3*tib))
	b0("B0-16B-OPT65536", 70000*512, 65536*512, 0, 0, 0, big(3*tib))
	b0("USER-VS", 0, 0, 0, 0, 0, user("256"))
	b0("USER-VS-OPT8M", 0, 8*mib, 0, 0, 0, user("256"))
	b0("USER-VS-2M", 0, 0, 0, 0, 0, user("2048"))
	b0("USER-VS-MAX2M", 2*mib, 0, 0, 0, 0, user("2048"))
	b0("USER-VS-ODD", 0, 0, 0, 0, 4096, user("513"))
	d = vs("VS-HOST512K", "ACME", "HOST", "1.0")
	d.Controller, d.ControllerProperties = "small", []string{"max_sectors=1024"}
	add("a host adapter of 1024 sectors", d)
	d = vs("VS-HOST512K-OPT8M", "ACME", "HOST", "1.0")
	d.Controller, d.OptIOBytes = "small", 8*mib
	add("a host adapter of 1024 sectors; B0h opt 8 MiB", d)

	// Other buses.
	for _, bus := range []struct {
		bus       Bus
		name      string
		highSpeed bool
	}{
		{MegaSAS, "MEGA", false}, {MPTSAS, "MPT", false}, {PVSCSI, "PV", false},
		{UAS, "UAS", false}, {UAS, "UAS2", true}, {USBStorage, "BOT", false}, {USBStorage, "BOT2", true},
	} {
		speed := ""
		if bus.bus == UAS || bus.bus == USBStorage {
			speed = ", SuperSpeed"
			if bus.highSpeed {
				speed = ", high speed"
			}
		}
		d := scsi(bus.bus, bus.name, "ACME", bus.name, "1.0")
		d.HighSpeed = bus.highSpeed
		add("plain"+speed, d)
		if !bus.highSpeed {
			d.Serial, d.Product = bus.name+"-OPT8M", bus.name+"-OPT8M"
			d.OptIOBytes = 8 * mib
			add("B0h opt 8 MiB"+speed, d)
			d.Serial, d.Product = "USER-"+bus.name, "USER-"+bus.name
			d.OptIOBytes = 0
			add("max_sectors_kb 64 by the admin"+speed, d, user("64"))
		}
	}
	for _, mdts := range []int{0, 4, 7, 9, 10, 11} {
		d := Disk{Serial: fmt.Sprint("NVME-MDTS", mdts), Bus: NVMe, MDTS: mdts}
		what := fmt.Sprintf("MDTS %d (%s)", mdts, size(int64(4096)<<mdts))
		if mdts == 0 {
			d.Properties, what = []string{"mdts=0"}, "MDTS 0 (no limit)"
		}
		add(what, d)
	}
	add("MDTS 7, max_sectors_kb 64 by the admin", Disk{Serial: "USER-NVME", Bus: NVMe}, user("64"))
	add("MDTS 10, blocks of 4096/4096", Disk{Serial: "NVME-4KN", Bus: NVMe, MDTS: 10, LogicalBlockBytes: 4096, PhysicalBlockBytes: 4096})
	add("plain", Disk{Serial: "VBLK", Bus: VirtioBlk}, big(65*mib))
	add("blocks of 4096/4096", Disk{Serial: "VBLK-4KN", Bus: VirtioBlk, LogicalBlockBytes: 4096, PhysicalBlockBytes: 4096})
	add("topology: opt 8 MiB", Disk{Serial: "VBLK-OPT8M", Bus: VirtioBlk, OptIOBytes: 8 * mib})
	add("max_sectors_kb 64 by the admin", Disk{Serial: "USER-VBLK", Bus: VirtioBlk}, user("64"))

	// What stacks are built on.
	part := func(serial string, n int) {
		add(fmt.Sprintf("member, %d partitions", n), vs(serial, "ACME", "MEMBER", "1.0"), func(m *matrixDisk) { m.mbr, m.bytes = n, 257*mib })
	}
	part("P1", 4)
	part("P2", 4)
	part("P3", 4)
	part("P4", 4)
	member := func(serial string, max, opt int64, kib string) {
		d := vs(serial, "ACME", "MEMBER", "1.0")
		d.MaxIOBytes, d.OptIOBytes = max, opt
		what := "member"
		if max != 0 {
			what += ", B0h max " + size(max)
		}
		if opt != 0 {
			what += ", B0h opt " + size(opt)
		}
		if kib != "" {
			what += ", max_sectors_kb " + kib + " before assembly"
		}
		add(what, d, user(kib))
	}
	for i := range 3 {
		member(fmt.Sprint("M", i+1), 0, 0, "")
		member(fmt.Sprint("USER-M", i+1), 0, 0, "256")
		member(fmt.Sprint("M-OPT8M-", i+1), 0, 8*mib, "")
	}
	member("M-OPT512K", 0, 512*kib, "")
	member("M-OPT768K", 0, 768*kib, "")
	member("M-OPT3M", 0, 3*mib, "")
	member("M-OPT2M", 0, 2*mib, "")
	member("M-MAX256K", 256*kib, 0, "")
	member("M-MAX2M", 2*mib, 0, "")
	member("M-MAX1025", 1025*512, 0, "")
	for _, lun := range []struct{ serial, user string }{{"MP1", ""}, {"MP2", "256"}} {
		for i, c := range []string{"mpa", "mpb"} {
			d := vs(lun.serial, "ACME", "PATH", "1.0")
			d.ID, d.Controller, d.Shared, d.WWN = lun.serial+c, c, true, madeUpWWN(lun.serial)
			add("path", d, func(m *matrixDisk) {
				m.of = lun.serial
				if i == 1 {
					m.user = lun.user
				}
			})
		}
	}
	return all
}

func max64(a, b int) int { return max(a, b) }

// size is a number of bytes for readers.
func size(bytes int64) string {
	switch {
	case bytes%mib == 0:
		return fmt.Sprint(bytes/mib, " MiB")
	case bytes%kib == 0:
		return fmt.Sprint(bytes/kib, " KiB")
	}
	return fmt.Sprint(bytes, " bytes")
}

// partitioned writes a table of n primary partitions of equal size.
func partitioned(t testing.TB, img *Image, bytes int64, n int) {
	t.Helper()
	b := make([]byte, 512)
	const first = 2048
	each := (bytes/512 - first) / int64(n) / 2048 * 2048
	for i := range n {
		e := b[446+16*i:]
		e[4] = 0x83
		for j := range 4 {
			e[8+j] = byte((first + int64(i)*each) >> (8 * j))
			e[12+j] = byte(each >> (8 * j))
		}
	}
	b[510], b[511] = 0x55, 0xaa
	if _, err := img.File().WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
}

// A matrixStack is what is built on disks in the guest.
type matrixStack struct {
	key, what string
	user      string // written to its max_sectors_kb
	build     func(ctx context.Context, m *Machine, on func(key string) Found) error
}

func matrixStacks() []matrixStack {
	var all []matrixStack
	add := func(key, what, user string, build func(ctx context.Context, m *Machine, on func(string) Found) error) {
		if user != "" {
			what += ", max_sectors_kb " + user + " by the admin"
		}
		all = append(all, matrixStack{key, what, user, build})
	}
	founds := func(on func(string) Found, keys []string) []Found {
		var ds []Found
		for _, k := range keys {
			ds = append(ds, on(k))
		}
		return ds
	}
	md := func(n int, level, user string, more []string, keys ...string) {
		name := fmt.Sprint("md", n)
		what := "raid" + level
		if level == "linear" {
			what = level
		}
		add(name, "md "+strings.Join(append([]string{what}, more...), " ")+" over "+strings.Join(keys, ", "), user, func(ctx context.Context, m *Machine, on func(string) Found) error {
			_, err := m.MDCreateWith(ctx, name, level, more, founds(on, keys)...)
			return err
		})
	}
	chunk := func(c string) []string { return []string{"--chunk=" + c} }
	md(0, "0", "", chunk("512K"), "P1/1", "P2/1")
	md(1, "0", "", chunk("8M"), "P1/2", "P2/2")
	md(2, "1", "", nil, "P1/3", "P2/3")
	md(3, "5", "", chunk("512K"), "P1/4", "P2/4", "P3/4")
	md(4, "10", "", chunk("512K"), "P3/1", "P4/1", "P3/2", "P4/2")
	md(5, "linear", "", nil, "P3/3", "P4/3")
	md(6, "1", "", nil, "M-OPT512K", "M-OPT768K")
	md(7, "0", "", chunk("512K"), "M-OPT8M-1", "M-OPT8M-2")
	md(8, "1", "", nil, "USER-M1", "M1")
	md(9, "5", "", chunk("64K"), "M2", "M3", "USER-M2")
	md(10, "1", "", nil, "M-MAX256K", "M-MAX2M")
	md(11, "1", "512", nil, "M-OPT3M", "M-OPT2M")
	md(12, "0", "", chunk("64K"), "M-MAX1025", "P4/4")
	md(13, "1", "", nil, "NVME-MDTS7", "NVME-MDTS10")

	dm := func(name, what, user string, build func(ctx context.Context, m *Machine, on func(string) Found) error) {
		add("dm-"+name, what, user, build)
	}
	linear := func(name, user string, keys ...string) {
		dm(name, "dm-linear over "+strings.Join(keys, ", "), user, func(ctx context.Context, m *Machine, on func(string) Found) error {
			table, at := "", int64(0)
			for _, d := range founds(on, keys) {
				n, err := m.SizeSectors(ctx, d.Name)
				if err != nil {
					return err
				}
				n = min(n/2048*2048, 65536)
				table += fmt.Sprintf("%d %d linear %s 0\n", at, n, d.Dev())
				at += n
			}
			_, err := m.DMCreate(ctx, name, table)
			return err
		})
	}
	linear("lin", "", "B0-NONE")
	linear("lin-sata", "", "SATA-ACME")
	linear("lin-st380013as", "", "SATA-ST380013AS")
	linear("lin-opt8m", "", "B0-OPT8M-MAX16M")
	linear("lin-gran5m", "", "B0-GRAN5M")
	linear("lin-user-below", "", "USER-VS")
	linear("lin-user-top", "256", "B0-NONE")
	linear("lin-lcm", "", "B0-OPT512K", "B0-OPT1280K")
	linear("lin-differ", "", "B0-MAX256K", "B0-OPT8M-MAX16M")
	linear("lin-md5", "", "md3")
	linear("lin-md0", "", "md0")
	linear("lin-nvme", "", "NVME-MDTS9")
	linear("lin-4kn", "", "B0-4KN-MAX129")
	striped := func(name string, chunk int64, keys ...string) {
		dm(name, "dm-striped, chunks of "+size(chunk*512)+", over "+strings.Join(keys, ", "), "", func(ctx context.Context, m *Machine, on func(string) Found) error {
			_, err := m.DMStriped(ctx, name, chunk, founds(on, keys)...)
			return err
		})
	}
	striped("striped-64k", 128, "B0-NONE", "B0-QEMU")
	striped("striped-1m", 2048, "B0-NONE", "B0-QEMU")
	striped("striped-4m", 8192, "B0-NONE", "B0-QEMU")
	crypt := func(name, key string) {
		dm(name, "dm-crypt over "+key, "", func(ctx context.Context, m *Machine, on func(string) Found) error {
			_, err := m.DMCrypt(ctx, name, on(key))
			return err
		})
	}
	crypt("crypt", "B0-MAX2M")
	crypt("crypt-opt8m", "M-OPT8M-3")
	crypt("crypt-user", "USER-M3")
	multipath := func(name, mode, serial string) {
		dm(name, "dm-multipath, queue_mode "+mode+", over both paths of "+serial, "", func(ctx context.Context, m *Machine, on func(string) Found) error {
			_, err := m.DMMultipath(ctx, name, mode, on(serial+"#1"), on(serial+"#2"))
			return err
		})
	}
	multipath("mp", "mq", "MP1")
	multipath("mp-bio", "bio", "MP1")
	multipath("mp-user", "mq", "MP2")
	linear("lin-mp", "", "dm-mp")
	dm("thinpool", "dm-thin pool, metadata on B0-OPT2M, data on B0-OPT4M", "", func(ctx context.Context, m *Machine, on func(string) Found) error {
		if err := m.Modprobe(ctx, "dm_thin_pool"); err != nil {
			return err
		}
		n, err := m.SizeSectors(ctx, on("B0-OPT4M").Name)
		if err != nil {
			return err
		}
		_, err = m.DMCreate(ctx, "thinpool", fmt.Sprintf("0 %d thin-pool %s %s 128 0", n, on("B0-OPT2M").Dev(), on("B0-OPT4M").Dev()))
		return err
	})
	dm("thin", "dm-thin volume on thinpool", "", func(ctx context.Context, m *Machine, on func(string) Found) error {
		if _, err := m.Output(ctx, "dmsetup", "message", "thinpool", "0", "create_thin 0"); err != nil {
			return err
		}
		_, err := m.DMCreate(ctx, "thin", fmt.Sprintf("0 65536 thin %s 0", on("dm-thinpool").Dev()))
		return err
	})
	dm("lvraid1", "dm-raid raid1 over B0-OPT8M-MAX8M, B0-MAX70000", "", func(ctx context.Context, m *Machine, on func(string) Found) error {
		for _, mod := range []string{"raid1", "dm_raid"} {
			if err := m.Modprobe(ctx, mod); err != nil {
				return err
			}
		}
		_, err := m.DMCreate(ctx, "lvraid1", fmt.Sprintf("0 65536 raid raid1 3 0 region_size 1024 2 - %s - %s", on("B0-OPT8M-MAX8M").Dev(), on("B0-MAX70000").Dev()))
		return err
	})
	add("loop0", "loop over a file", "", func(ctx context.Context, m *Machine, _ func(string) Found) error {
		if err := m.Modprobe(ctx, "loop"); err != nil {
			return err
		}
		_, err := m.Output(ctx, "sh", "-c", "truncate -s 64M /tmp/loop0 && losetup /dev/loop0 /tmp/loop0")
		return err
	})
	add("loop1", "loop over B0-OPT512K", "", func(ctx context.Context, m *Machine, on func(string) Found) error {
		_, err := m.Output(ctx, "losetup", "/dev/loop1", on("B0-OPT512K").Dev())
		return err
	})
	add("loop2", "loop over a file", "64", func(ctx context.Context, m *Machine, _ func(string) Found) error {
		_, err := m.Output(ctx, "sh", "-c", "truncate -s 64M /tmp/loop2 && losetup /dev/loop2 /tmp/loop2")
		return err
	})
	add("zram0", "zram", "", func(ctx context.Context, m *Machine, _ func(string) Found) error {
		if err := m.Modprobe(ctx, "zram"); err != nil {
			return err
		}
		return m.WriteAttr(ctx, "/sys/block/zram0/disksize", "64M")
	})
	add("nullb0", "null_blk", "", func(ctx context.Context, m *Machine, _ func(string) Found) error {
		return m.Modprobe(ctx, "null_blk", "gb=1", "nr_devices=1")
	})
	return all
}

// matrixBoots are the ways each kernel is booted.
var matrixBoots = []struct {
	name   string
	append []string
}{
	{"80c", menuParameters},
	{"plain", nil},
}

// pointRelease is the upstream release of a package's version, "6.12.117" of
// 6.12.117-1.
func pointRelease(k Kernel) string {
	v, _, _ := strings.Cut(k.Package, "-")
	return v
}

// matrixCapture boots a kernel with all devices of the matrix and takes a
// capture.
func matrixCapture(t *testing.T, kern Kernel, binary, label string, params []string) []byte {
	disks := matrixDisks()
	images := map[string]*Image{}
	var attach []Disk
	for i, d := range disks {
		n := d.bytes
		if n == 0 {
			n = 64 * mib
		}
		key := d.of
		if key == "" {
			key = d.Serial
		}
		if images[key] == nil {
			images[key] = TestImage(t, n)
			if d.mbr > 0 {
				partitioned(t, images[key], n, d.mbr)
			}
		}
		disks[i].Image = images[key]
		attach = append(attach, disks[i].Disk)
	}
	var text []byte
	begin := time.Now()
	lap := func(what string) { t.Logf("%s: %s after %.1f s", label, what, time.Since(begin).Seconds()) }
	Test(t, Config{
		Kernel: kern, Binary: binary, Tools: []string{"dmsetup", "mdadm"}, Disks: attach, MemoryMiB: 640, Append: params,
		Modules: []string{"zram", "lzo", "lzo_rle", "dm_thin_pool", "dm_raid", "linear"},
	}, func(ctx context.Context, m *Machine) error {
		lap("up")
		found, err := matrixFound(ctx, m)
		if err != nil {
			return err
		}
		for _, d := range disks {
			if d.user == "" {
				continue
			}
			key := d.Serial
			if d.of != "" {
				key += "#2"
			}
			if err := m.WriteAttr(ctx, found[key].Sysfs("queue/max_sectors_kb"), d.user); err != nil {
				return err
			}
		}
		debug, err := m.ScsiDebug(ctx, "num_tgts=3", "dev_size_mb=8", "delay=0", "dif=1", "dix=1", "inq_product=DIF1DIX1")
		if err != nil {
			return err
		}
		slices.SortFunc(debug, func(a, b Found) int { return compareNatural(a.Path, b.Path) })
		for i, d := range debug {
			delete(found, d.Serial)
			key := fmt.Sprint("DIF1DIX1#", i+1)
			if i == len(debug)-1 {
				key = "USER-DIF1DIX1"
				if err := m.WriteAttr(ctx, d.Sysfs("queue/max_sectors_kb"), "256"); err != nil {
					return err
				}
			}
			found[key] = d
		}
		lap("disks set")
		for _, s := range matrixStacks() {
			on := func(key string) Found {
				base, part, ok := strings.Cut(key, "/")
				if f, all := found[key]; all || !ok {
					if !all {
						t.Errorf("%s: no %s to build it on", s.key, key)
					}
					return f
				}
				f := found[base]
				f.Name += part
				return f
			}
			err := s.build(ctx, m, on)
			if errors.Is(err, fs.ErrNotExist) {
				t.Logf("%s: left out on Linux %s: %v", s.key, m.Release(), err)
				continue
			}
			if err != nil {
				return fmt.Errorf("build %s: %w", s.key, err)
			}
			f := Found{}
			f.Name = s.key
			if name, ok := strings.CutPrefix(s.key, "dm-"); ok {
				if f.Name, err = m.Output(ctx, "sh", "-c", "basename $(dirname $(dirname $(grep -lx '"+name+"' /sys/block/dm-*/dm/name)))"); err != nil {
					return err
				}
			}
			found[s.key] = f
			if s.user != "" {
				if err := m.WriteAttr(ctx, f.Sysfs("queue/max_sectors_kb"), s.user); err != nil {
					return err
				}
			}
		}
		lap("stacks built")
		links := "mkdir -p /dev/disk/by-id && cd /dev/disk/by-id"
		for key, f := range found {
			links += fmt.Sprintf(" && ln -s ../../%s '%s%s'", f.Name, matrixLinks, key)
		}
		if _, err := m.Output(ctx, "sh", "-c", links); err != nil {
			return err
		}
		r, err := m.RunCmd(ctx, Cmd{Args: []string{"quirkcheck", "capture", "-o", "-", "--include-serials", "--host-label", label}})
		if err == nil {
			err = r.Err()
		}
		if err != nil {
			return fmt.Errorf("capture: %w", err)
		}
		text = r.Stdout
		lap(fmt.Sprintf("captured %d bytes", len(text)))
		return nil
	})
	return text
}

// matrixFound returns the guest's disks by serial. Two paths to one are
// SERIAL#1 and SERIAL#2 in the order of their controllers.
func matrixFound(ctx context.Context, m *Machine) (map[string]Found, error) {
	all, err := m.AllDisks(ctx)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b Found) int { return strings.Compare(a.Path, b.Path) })
	bySerial := map[string][]Found{}
	for _, d := range all {
		if d.Serial != "" {
			bySerial[d.Serial] = append(bySerial[d.Serial], d)
		}
	}
	found := map[string]Found{}
	for serial, ds := range bySerial {
		if len(ds) == 1 {
			found[serial] = ds[0]
			continue
		}
		for i, d := range ds {
			found[fmt.Sprint(serial, "#", i+1)] = d
		}
	}
	return found, nil
}

// matrixLinks prefixes the links below /dev/disk/by-id that name each device of
// the matrix by its key: kernel names and even serial numbers are no names here.
const matrixLinks = "matrix-"

// matrixValues are the values of a device that kernels choose differently, as
// sysfs shows them; "-" is a file that was not there.
type matrixValues struct{ MaxSectorsKB, MaxHWSectorsKB, OptimalIOSize string }

func (v matrixValues) String() string {
	return v.MaxSectorsKB + "/" + v.MaxHWSectorsKB + "/" + v.OptimalIOSize
}

// matrixRead returns the values of a capture by key.
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

// TestVMMatrix boots a kernel with all devices of the matrix, takes captures
// and compares the limits in them with those of the stored captures, so that
// what tests of audit predict against is what kernels do.
// QUIRKCHECK_VM_KERNELS=all takes all kernels, and QUIRKCHECK_MATRIX_UPDATE=1
// stores the captures.
func TestVMMatrix(t *testing.T) {
	Require(t, "dmsetup", "mdadm")
	binary := buildQuirkcheck(t)
	update := os.Getenv("QUIRKCHECK_MATRIX_UPDATE") == "1"
	kernels := []Kernel{Stock(t)}
	boots := matrixBoots[:1]
	if os.Getenv("QUIRKCHECK_VM_KERNELS") == "all" {
		boots = matrixBoots
		for _, spec := range Kernels() {
			kern, err := FetchKernel(t.Context(), spec)
			var missing *MissingError
			if errors.As(err, &missing) {
				t.Logf("not offered today: %v", err)
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
				text := matrixCapture(t, kern, binary, "quirkcheck matrix "+name, b.append)
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
				stored, err := capture.ReadFile(filepath.Join(matrixDir, name+".json.gz"))
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
	t.Logf("max_sectors_kb/max_hw_sectors_kb/optimal_io_size\n%s", matrixTable(seen))
}

// matrixTable is a text table, device by boot.
func matrixTable(seen map[string]map[string]matrixValues) string {
	boots := slices.SortedFunc(maps.Keys(seen), compareNatural)
	keys := map[string]bool{}
	for _, values := range seen {
		for k := range values {
			keys[k] = true
		}
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\t"+strings.Join(boots, "\t"))
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		fmt.Fprint(w, k)
		for _, boot := range boots {
			v, ok := seen[boot][k]
			if !ok {
				fmt.Fprint(w, "\tnot there")
				continue
			}
			fmt.Fprint(w, "\t", v)
		}
		fmt.Fprintln(w)
	}
	w.Flush()
	return b.String()
}

func matrixWrite(name string, text []byte) error {
	if err := os.MkdirAll(matrixDir, 0o755); err != nil {
		return err
	}
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
	return os.WriteFile(filepath.Join(matrixDir, name+".json.gz"), b.Bytes(), 0o644)
}
