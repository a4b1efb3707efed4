package vm

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	tib = int64(1) << 40
)

// A matrixDisk is a disk of the matrix. Its serial number is its key, but for
// two paths to one disk.
type matrixDisk struct {
	Disk
	key        string
	bytes      int64  // of the image
	partitions int    // of equal size
	user       string // written to max_sectors_kb before anything is built on it
	what       string
}

// admin says of a device what an administrator set on it.
func admin(user string) string {
	if user == "" {
		return ""
	}
	return "; max_sectors_kb " + user + " set"
}

// matrixDisks are the disks QEMU has, without images.
func matrixDisks() []matrixDisk {
	var all []matrixDisk
	disk := func(what, user string, d Disk) *matrixDisk {
		all = append(all, matrixDisk{Disk: d, key: d.Serial, bytes: 64 * mib, user: user, what: what + admin(user)})
		return &all[len(all)-1]
	}

	// SATA: five disks on the board's controller, the others on a second one.
	sata := func(what, user string, d Disk) *matrixDisk {
		d.Bus = AHCI
		if len(all) >= 5 {
			d.Controller = "second"
		}
		return disk("SATA, "+d.Model+" "+d.Firmware+what, user, d)
	}
	sata("", "", Disk{Serial: "SATA-ST380013AS", Model: "ST380013AS", Firmware: "3.20"})
	sata("", "", Disk{Serial: "SATA-DELLBOSS", Model: "DELLBOSS VD", Firmware: "MV.R00-0"})
	sata("", "", Disk{Serial: "SATA-S4610", Model: "INTEL SSDSC2KG480G8", Firmware: "XCV10120", RotationRate: 1})
	sata("", "", Disk{Serial: "SATA-QEMU", Model: "QEMU HARDDISK", Firmware: "2.5+"})
	sata("", "", Disk{Serial: "SATA-LITEON", Model: "LITEON CX1-JB256-HP", Firmware: "7E1B"})
	sata("", "", Disk{Serial: "SATA-MTRON", Model: "MTRON MSP-SATA7525", Firmware: "0.19R1"})
	sata(", in no table", "", Disk{Serial: "SATA-ACME", Model: "ACME MODEL 1", Firmware: "1.0"})
	sata(", 512e", "", Disk{Serial: "SATA-512E", Model: "ACME MODEL 2", Firmware: "1.0", PhysicalBlockBytes: 4096})
	sata(", no TRIM", "", Disk{Serial: "SATA-NOTRIM", Model: "ACME MODEL 3", Firmware: "1.0", Properties: []string{"discard_granularity=0"}})
	sata(", 3 TiB", "", Disk{Serial: "SATA-3T", Model: "ACME MODEL 4", Firmware: "1.0"}).bytes = 3 * tib
	sata("", "64", Disk{Serial: "USER-SATA", Model: "ACME MODEL 1", Firmware: "1.0"})

	// Identities that the kernel's SCSI device list or libata's table has.
	scsi := func(what, user string, bus Bus, serial, vendor, product, rev string, set ...func(*Disk)) *matrixDisk {
		d := Disk{Serial: serial, Bus: bus, Vendor: vendor, Product: product, Revision: rev}
		for _, s := range set {
			s(&d)
		}
		if d.MaxIOBytes == 0 {
			d.Properties = append(d.Properties, "max_io_size=0") // QEMU's own is that of B0-QEMU
		}
		return disk(fmt.Sprintf("%s, %s %s%s%s", bus, vendor, product, b0(d), what), user, d)
	}
	limits := func(max, opt int64) func(*Disk) {
		return func(d *Disk) { d.MaxIOBytes, d.OptIOBytes = max, opt }
	}
	scsi("", "", VirtioSCSI, "VS-ATA", "ATA", "ST380013AS", "3.20")
	scsi("", "", VirtioSCSI, "VS-HGST", "HGST", "HUS726060AL5210", "A519", limits(2*mib, mib), func(d *Disk) { d.PhysicalBlockBytes = 4096 })
	scsi("", "", VirtioSCSI, "VS-SYNOLOGY", "SYNOLOGY", "iSCSI Storage", "4.0")
	scsi("", "", VirtioSCSI, "VS-QNAP", "QNAP", "iSCSI Storage", "4.0")
	scsi("", "", VirtioSCSI, "VS-EASYRAID", "easyRAID", "X6P", "1.0")
	scsi("", "", VirtioSCSI, "VS-MSFT", "MSFT", "Virtual HD", "1.0")
	scsi("", "", VirtioSCSI, "VS-COMPAQ", "COMPAQ", "LOGICAL VOLUME", "1.0")
	scsi("", "", VirtioSCSI, "VS-SEAGATE", "SEAGATE", "ST900MM0006", "LS08", limits(2*mib, mib), func(d *Disk) { d.Mute = true })

	// The Block Limits VPD page in odd combinations: MAXIMUM TRANSFER LENGTH,
	// OPTIMAL TRANSFER LENGTH and its GRANULARITY in bytes; logical and
	// physical block.
	block := func(serial string, max, opt, gran int64, lbs, pbs int, user string) *matrixDisk {
		return scsi("", user, VirtioSCSI, serial, "ACME", "BLOCK LIMITS", "1.0", func(d *Disk) {
			d.MaxIOBytes, d.OptIOBytes, d.MinIOBytes, d.LogicalBlockBytes, d.PhysicalBlockBytes = max, opt, gran, lbs, pbs
		})
	}
	block("B0-NONE", 0, 0, 0, 0, 0, "")
	block("B0-QEMU", 1<<31-512, 0, 0, 0, 0, "")
	block("B0-MAX256K", 256*kib, 0, 0, 0, 0, "")
	block("B0-MAX2M", 2*mib, 0, 0, 0, 0, "")
	block("B0-MAX1025", 1025*512, 0, 0, 0, 0, "")
	block("B0-MAX1025-512E", 1025*512, 0, 0, 0, 4096, "")
	block("B0-MAX70000", 70000*512, 0, 0, 0, 0, "")
	block("B0-OPT2K", 0, 2*kib, 0, 0, 0, "")
	block("B0-OPT4K", 0, 4*kib, 0, 0, 0, "")
	block("B0-OPT64K", 0, 64*kib, 0, 0, 0, "")
	block("B0-OPT512K", 0, 512*kib, 0, 0, 0, "")
	block("B0-OPT1280K", 0, 1280*kib, 0, 0, 0, "")
	block("B0-OPT2M", 0, 2*mib, 0, 0, 0, "")
	block("B0-OPT4M", 0, 4*mib, 0, 0, 0, "")
	block("B0-OPT8M", 0, 8*mib, 0, 0, 0, "")
	block("B0-OPT65535", 0, 65535*512, 0, 0, 0, "")
	block("B0-OPT65536", 0, 65536*512, 0, 0, 0, "")
	block("B0-OPT8M-MAX16M", 16*mib, 8*mib, 0, 0, 0, "")
	block("B0-OPT8M-MAX8M", 8*mib, 8*mib, 0, 0, 0, "")
	block("B0-OPT8M-MAX6M", 6*mib, 8*mib, 0, 0, 0, "")
	block("B0-OPT2M-MAX1M", mib, 2*mib, 0, 0, 0, "")
	block("B0-OPT64K-MAX256K", 256*kib, 64*kib, 0, 0, 0, "")
	block("B0-OPT8M-MAX70000", 70000*512, 8*mib, 0, 0, 0, "")
	block("B0-OPT-PBS", 0, 2*mib+512, 0, 0, 4096, "")
	block("B0-OPT8M-PBS", 0, 8*mib+512, 0, 0, 4096, "")
	block("B0-OPT-GRAN", 0, 96*kib, 64*kib, 0, 0, "")
	block("B0-OPT8M-GRAN", 0, 8*mib+32*kib, 64*kib, 0, 0, "")
	block("B0-OPT8M-GRAN64K", 0, 8*mib, 64*kib, 0, 0, "")
	block("B0-GRAN512K", 0, 0, 512*kib, 0, 0, "")
	block("B0-GRAN2M", 0, 0, 2*mib, 0, 0, "")
	block("B0-GRAN5M", 0, 0, 5*mib, 0, 0, "")
	block("B0-GRAN5M-MAX4M", 4*mib, 0, 5*mib, 0, 0, "")
	block("B0-GRAN5M-OPT10M", 0, 10*mib, 5*mib, 0, 0, "")
	block("B0-GRAN5M-OPT64K", 0, 64*kib, 5*mib, 0, 0, "")
	block("B0-GRAN-PBS", 0, 0, 5*mib+512, 0, 4096, "")
	block("B0-4KN", 0, 0, 0, 4096, 4096, "")
	block("B0-4KN-MAX129", 129*4096, 0, 0, 4096, 4096, "")
	block("B0-4KN-MAX2M-OPT1M", 2*mib, mib, 0, 4096, 4096, "")
	block("B0-4KN-OPT8M", 0, 8*mib, 0, 4096, 4096, "")
	block("B0-4KN-OPT65535", 0, 65535*4096, 0, 4096, 4096, "")
	// More than 2^32 blocks: READ(16) and WRITE(16), whose length has 32 bits.
	large := func(serial string, max, opt int64) {
		m := block(serial, max, opt, 0, 0, 0, "")
		m.bytes, m.what = 3*tib, m.what+", 3 TiB"
	}
	large("B0-3T", 0, 0)
	large("B0-3T-MAX70000", 70000*512, 0)
	large("B0-3T-OPT8M", 70000*512, 8*mib)
	large("B0-3T-OPT65536", 70000*512, 65536*512)
	block("USER-VS", 0, 0, 0, 0, 0, "256")
	block("USER-VS-2M", 0, 0, 0, 0, 0, "2048")
	block("USER-VS-8M", 0, 0, 0, 0, 0, "8192")
	block("USER-VS-MAX2M", 2*mib, 0, 0, 0, 0, "2048")
	block("USER-VS-OPT8M", 0, 8*mib, 0, 0, 0, "256")
	block("USER-VS-OPT64K", 0, 64*kib, 0, 0, 0, "1024")
	block("USER-VS-ODD", 0, 0, 0, 0, 4096, "513")
	block("USER-VS-4KN", 0, 0, 0, 4096, 4096, "258")
	host := func(serial string, sectors int, opt int64) {
		scsi(fmt.Sprintf(", host adapter's max_sectors %d", sectors), "", VirtioSCSI, serial, "ACME", "HOST LIMIT", "1.0", limits(0, opt), func(d *Disk) {
			d.Controller, d.ControllerProperties = fmt.Sprint("max", sectors), []string{fmt.Sprint("max_sectors=", sectors)}
		})
	}
	host("VS-HOST512K", 1024, 0)
	host("VS-HOST512K-OPT8M", 1024, 8*mib)
	host("VS-HOST3M", 6144, 0)
	host("VS-HOST3M-OPT8M", 6144, 8*mib)

	// Other host adapters.
	for _, b := range []struct {
		bus       Bus
		name      string
		highSpeed bool
	}{
		{MegaSAS, "MEGA", false}, {MPTSAS, "MPT", false}, {PVSCSI, "PV", false},
		{UAS, "UAS", false}, {UAS, "UAS2", true}, {USBStorage, "BOT", false}, {USBStorage, "BOT2", true},
	} {
		what := ""
		switch {
		case b.highSpeed:
			what = ", high speed"
		case b.bus == UAS || b.bus == USBStorage:
			what = ", SuperSpeed"
		}
		speed := func(d *Disk) { d.HighSpeed = b.highSpeed }
		scsi(what, "", b.bus, b.name, "ACME", "PLAIN", "1.0", speed)
		if !b.highSpeed {
			scsi(what, "", b.bus, b.name+"-OPT8M", "ACME", "OPT", "1.0", speed, limits(16*mib, 8*mib))
			scsi(what, "64", b.bus, "USER-"+b.name, "ACME", "PLAIN", "1.0", speed)
		}
		if b.bus == MegaSAS || b.bus == MPTSAS {
			scsi(what, "", b.bus, b.name+"-OPT64K", "ACME", "OPT", "1.0", limits(0, 64*kib))
			scsi(what, "", b.bus, b.name+"-MAX512K", "ACME", "MAX", "1.0", limits(512*kib, 0))
		}
	}
	nvme := func(what, user string, d Disk) {
		d.Bus = NVMe
		disk("nvme, "+what, user, d)
	}
	nvme("MDTS 0 (no limit)", "", Disk{Serial: "NVME-MDTS0", Properties: []string{"mdts=0"}})
	for _, mdts := range []int{4, 7, 9, 10, 11} {
		nvme(fmt.Sprintf("MDTS %d (%s)", mdts, size(4096<<mdts)), "", Disk{Serial: fmt.Sprint("NVME-MDTS", mdts), MDTS: mdts})
	}
	nvme("MDTS 10 (4 MiB), blocks of 4096/4096", "", Disk{Serial: "NVME-4KN", MDTS: 10, LogicalBlockBytes: 4096, PhysicalBlockBytes: 4096})
	nvme("MDTS 11 (8 MiB), protection information", "", Disk{Serial: "NVME-PI", MDTS: 11, Namespace: []string{"ms=8", "pi=1"}})
	nvme("MDTS 7 (512 KiB)", "64", Disk{Serial: "USER-NVME", MDTS: 7})
	disk("virtio-blk", "", Disk{Serial: "VBLK", Bus: VirtioBlk})
	disk("virtio-blk, blocks of 4096/4096", "", Disk{Serial: "VBLK-4KN", Bus: VirtioBlk, LogicalBlockBytes: 4096, PhysicalBlockBytes: 4096})
	disk("virtio-blk, topology: opt 8 MiB", "", Disk{Serial: "VBLK-OPT8M", Bus: VirtioBlk, OptIOBytes: 8 * mib})
	disk("virtio-blk, topology: min 5 MiB", "", Disk{Serial: "VBLK-MIN5M", Bus: VirtioBlk, MinIOBytes: 5 * mib})
	disk("virtio-blk", "64", Disk{Serial: "USER-VBLK", Bus: VirtioBlk})

	// What stacks are built on.
	member := func(serial string, max, opt int64, user string) *matrixDisk {
		return scsi("", user, VirtioSCSI, serial, "ACME", "MEMBER", "1.0", limits(max, opt))
	}
	for i := range 8 {
		m := member(fmt.Sprint("P", i+1), 0, 0, "")
		m.partitions, m.bytes, m.what = 4, 257*mib, m.what+", 4 partitions"
	}
	for i := range 3 {
		member(fmt.Sprint("M", i+1), 0, 0, "")
		member(fmt.Sprint("USER-M", i+1), 0, 0, "256")
		member(fmt.Sprint("M-OPT8M-", i+1), 0, 8*mib, "")
	}
	member("M4", 0, 0, "")
	member("M5", 0, 0, "")
	member("M6", 0, 0, "")
	member("M-OPT512K", 0, 512*kib, "")
	member("M-OPT768K", 0, 768*kib, "")
	member("M-OPT2M", 0, 2*mib, "")
	member("M-OPT3M", 0, 3*mib, "")
	member("M-OPT3M-2", 0, 3*mib, "")
	member("M-MAX256K", 256*kib, 0, "")
	member("M-MAX2M", 2*mib, 0, "")
	member("M-MAX1025", 1025*512, 0, "")
	// Two host adapters, and from each a path to every one of these.
	for _, lun := range []struct {
		serial string
		opt    int64
		user   string // on the second path
	}{{"MP1", 0, ""}, {"MP2", 0, "256"}, {"MP3", 8 * mib, ""}} {
		for i, user := range []string{"", lun.user} {
			c := fmt.Sprint("path", i+1)
			m := scsi(fmt.Sprintf(", path %d of 2", i+1), user, VirtioSCSI, lun.serial, "ACME", "TWO PATHS", "1.0", limits(0, lun.opt), func(d *Disk) {
				d.ID, d.Controller, d.Shared, d.WWN = lun.serial+c, c, true, madeUpWWN(lun.serial)
			})
			m.key = fmt.Sprint(lun.serial, "#", i+1)
		}
	}
	return all
}

// b0 says what a disk's Block Limits page does, and its blocks.
func b0(d Disk) string {
	lbs := max(d.LogicalBlockBytes, 512)
	what := ""
	for _, f := range []struct {
		name  string
		bytes int64
	}{{"max", d.MaxIOBytes}, {"opt", d.OptIOBytes}, {"granularity", d.MinIOBytes}} {
		if f.bytes != 0 {
			what += fmt.Sprintf(", %s %s", f.name, size(f.bytes))
			if f.bytes%mib != 0 {
				what += fmt.Sprintf(" (%d blocks)", f.bytes/int64(lbs))
			}
		}
	}
	if pbs := max(d.PhysicalBlockBytes, lbs); pbs != 512 {
		what += fmt.Sprintf(", blocks of %d/%d", lbs, pbs)
	}
	return what
}

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
	const first = 2048
	each := (bytes/512 - first) / int64(n) / 2048 * 2048
	mbr := make([]byte, 512)
	for i := range n {
		entry := mbr[446+16*i:]
		entry[4] = 0x83 // Linux
		for j := range 4 {
			entry[8+j] = byte((first + int64(i)*each) >> (8 * j))
			entry[12+j] = byte(each >> (8 * j))
		}
	}
	mbr[510], mbr[511] = 0x55, 0xaa
	if _, err := img.File().WriteAt(mbr, 0); err != nil {
		t.Fatal(err)
	}
}

// matrixDebug are the disks of scsi_debug, in the order of their targets. The
// module knows one identity and one set of limits for all.
var matrixDebug = []struct{ key, user string }{{"DIF1DIX1", ""}, {"USER-DIF1DIX1", "256"}}

var matrixDebugParameters = []string{"num_tgts=2", "dev_size_mb=8", "delay=0", "dif=1", "dix=1", "inq_vendor=ACME", "inq_product=PROTECTED"}

// A matrixStack is what is built in the guest, on what has a key already.
// DISK/N is a partition.
type matrixStack struct {
	key, what string
	over      []string // keys
	user      string   // written to its max_sectors_kb
	optional  bool     // left out where the kernel lacks the module
	build     func(ctx context.Context, m *Machine, on func(key string) Found) (Found, error)
}

func matrixStacks() []matrixStack {
	var all []matrixStack
	add := func(key, what, user string, over []string, build func(ctx context.Context, m *Machine, ds []Found) (Found, error)) *matrixStack {
		if len(over) > 0 {
			what += " over " + strings.Join(over, ", ")
		}
		all = append(all, matrixStack{key: key, what: what + admin(user), over: over, user: user, build: func(ctx context.Context, m *Machine, on func(string) Found) (Found, error) {
			var ds []Found
			for _, k := range over {
				ds = append(ds, on(k))
			}
			return build(ctx, m, ds)
		}})
		return &all[len(all)-1]
	}

	number := 0
	md := func(level, chunk, user string, over ...string) *matrixStack {
		name := fmt.Sprint("md", number)
		number++
		what, more := "md raid"+level, []string(nil)
		if level == "linear" {
			what = "md linear"
		}
		if chunk != "" {
			what, more = what+", chunks of "+chunk, []string{"--chunk=" + chunk}
		}
		return add(name, what, user, over, func(ctx context.Context, m *Machine, ds []Found) (Found, error) {
			return m.MDCreateWith(ctx, name, level, more, ds...)
		})
	}
	md("0", "512K", "", "P1/1", "P2/1")
	md("0", "8M", "", "P1/2", "P2/2")
	md("1", "", "", "P1/3", "P2/3")
	md("5", "512K", "", "P1/4", "P2/4", "P3/4")
	md("10", "512K", "", "P3/1", "P4/1", "P3/2", "P4/2")
	md("linear", "", "", "P3/3", "P4/3").optional = true
	md("1", "", "", "M-OPT512K", "M-OPT768K")
	md("0", "512K", "", "M-OPT8M-1", "M-OPT8M-2")
	md("1", "", "", "USER-M1", "M1")
	md("5", "64K", "", "M2", "M3", "USER-M2")
	md("1", "", "", "M-MAX256K", "M-MAX2M")
	md("1", "", "512", "M-OPT3M", "M-OPT2M")
	md("0", "64K", "", "M-MAX1025", "P4/4")
	md("1", "", "", "NVME-MDTS7", "NVME-MDTS10")
	md("5", "4M", "", "P5/1", "P6/1", "P7/1")
	md("6", "512K", "", "P5/2", "P6/2", "P7/2", "P8/2")
	md("10", "4M", "", "P5/3", "P6/3", "P7/3", "P8/3")
	md("0", "1M", "", "P5/4", "P6/4", "P7/4", "P8/4")
	md("0", "100K", "", "M4", "M5")
	md("0", "512K", "", "M-OPT3M-2", "M6")

	linear := func(name, user string, over ...string) {
		add("dm-"+name, "dm-linear", user, over, func(ctx context.Context, m *Machine, ds []Found) (Found, error) {
			table, at := "", int64(0)
			for _, d := range ds {
				n, err := m.SizeSectors(ctx, d.Name)
				if err != nil {
					return Found{}, err
				}
				n = min(n, 65536)
				table += fmt.Sprintf("%d %d linear %s 0\n", at, n, d.Dev())
				at += n
			}
			return m.DMCreate(ctx, name, table)
		})
	}
	linear("lin", "", "B0-NONE")
	linear("lin-part", "", "P8/1")
	linear("lin-sata", "", "SATA-ACME")
	linear("lin-st380013as", "", "SATA-ST380013AS")
	linear("lin-opt8m", "", "B0-OPT8M-MAX16M")
	linear("lin-gran5m", "", "B0-GRAN5M")
	linear("lin-user-below", "", "USER-VS")
	linear("lin-user-top", "256", "B0-NONE")
	linear("lin-user-both", "128", "USER-VS-2M")
	linear("lin-lcm", "", "B0-OPT512K", "B0-OPT1280K")
	linear("lin-differ", "", "B0-MAX256K", "B0-OPT8M-MAX16M")
	linear("lin-nvme", "", "NVME-MDTS9")
	linear("lin-vblk", "", "VBLK")
	linear("lin-uas", "", "UAS")
	linear("lin-4kn", "", "B0-4KN-MAX129")
	linear("lin-md0", "", "md0")
	linear("lin-md3", "", "md3")
	striped := func(name string, chunk int64, over ...string) {
		add("dm-"+name, "dm-striped, chunks of "+size(chunk*512), "", over, func(ctx context.Context, m *Machine, ds []Found) (Found, error) {
			return m.DMStriped(ctx, name, chunk, ds...)
		})
	}
	striped("striped-64k", 128, "B0-NONE", "B0-QEMU")
	striped("striped-1m", 2048, "B0-NONE", "B0-QEMU")
	striped("striped-4m", 8192, "B0-NONE", "B0-QEMU")
	striped("striped-opt", 128, "B0-OPT512K", "B0-OPT1280K")
	crypt := func(name, over string) {
		add("dm-"+name, "dm-crypt", "", []string{over}, func(ctx context.Context, m *Machine, ds []Found) (Found, error) {
			return m.DMCrypt(ctx, name, ds[0])
		})
	}
	crypt("crypt", "B0-MAX2M")
	crypt("crypt-opt8m", "M-OPT8M-3")
	crypt("crypt-user", "USER-M3")
	crypt("crypt-md3", "md3")
	linear("lin-crypt", "", "dm-crypt-opt8m")
	multipath := func(name, mode, user, serial string) {
		over := []string{serial + "#1", serial + "#2"}
		add("dm-"+name, "dm-multipath, queue_mode "+mode, user, over, func(ctx context.Context, m *Machine, ds []Found) (Found, error) {
			return m.DMMultipath(ctx, name, mode, ds...)
		})
	}
	multipath("mp", "mq", "", "MP1")
	multipath("mp-bio", "bio", "", "MP1")
	multipath("mp-user-top", "mq", "256", "MP1")
	multipath("mp-user-below", "mq", "", "MP2")
	multipath("mp-opt8m", "mq", "", "MP3")
	linear("lin-mp", "", "dm-mp")
	md("1", "", "", "dm-lin-user-below", "dm-lin-nvme")

	// target makes a map of one target; %s are what it is over.
	target := func(name, what string, modules []string, table string, over ...string) {
		add("dm-"+name, what, "", over, func(ctx context.Context, m *Machine, ds []Found) (Found, error) {
			for _, mod := range modules {
				if err := m.Modprobe(ctx, mod); err != nil {
					return Found{}, err
				}
			}
			var devs []any
			for _, d := range ds {
				devs = append(devs, d.Dev())
			}
			return m.DMCreate(ctx, name, fmt.Sprintf(table, devs...))
		})
	}
	thin := func(pool string) {
		add("dm-"+pool+"-vol", "dm-thin", "", []string{"dm-" + pool}, func(ctx context.Context, m *Machine, ds []Found) (Found, error) {
			if _, err := m.Output(ctx, "dmsetup", "message", pool, "0", "create_thin 0"); err != nil {
				return Found{}, err
			}
			return m.DMCreate(ctx, pool+"-vol", fmt.Sprintf("0 65536 thin %s 0", ds[0].Dev()))
		})
	}
	target("thin-64k", "dm-thin-pool, blocks of 64 KiB", []string{"dm_thin_pool"}, "0 131072 thin-pool %s %s 128 0", "B0-OPT2K", "B0-QEMU")
	thin("thin-64k")
	target("thin-2m", "dm-thin-pool, blocks of 2 MiB", []string{"dm_thin_pool"}, "0 131072 thin-pool %s %s 4096 0", "B0-OPT-PBS", "B0-QEMU")
	thin("thin-2m")
	target("thin-opt4m", "dm-thin-pool, blocks of 64 KiB", []string{"dm_thin_pool"}, "0 131072 thin-pool %s %s 128 0", "B0-OPT-GRAN", "B0-OPT4M")
	thin("thin-opt4m")
	target("lvcache", "dm-cache, blocks of 64 KiB", []string{"dm_cache", "dm_cache_smq"}, "0 131072 cache %s %s %s 128 1 writethrough default 0",
		"B0-OPT8M-PBS", "B0-OPT65536", "B0-MAX70000")
	target("lvraid1", "dm-raid raid1", []string{"raid1", "dm_raid"}, "0 65536 raid raid1 3 0 region_size 1024 2 - %s - %s", "B0-OPT8M-MAX8M", "B0-MAX70000")
	target("lvraid5", "dm-raid raid5, chunks of 64 KiB", []string{"raid456", "dm_raid"}, "0 65536 raid raid5_ls 3 128 region_size 1024 3 - %s - %s - %s",
		"B0-NONE", "B0-QEMU", "B0-MAX70000")
	target("lvmirror", "dm-mirror", []string{"dm_mirror"}, "0 65536 mirror core 1 1024 2 %s 0 %s 0", "B0-NONE", "B0-MAX2M")
	target("snapshot", "dm-snapshot", []string{"dm_snapshot"}, "0 65536 snapshot %s %s N 8", "B0-NONE", "B0-OPT-GRAN")

	loop := func(n int, user string, over ...string) {
		what := "loop"
		if len(over) == 0 {
			what += " over a file"
		}
		add(fmt.Sprint("loop", n), what, user, over, func(ctx context.Context, m *Machine, ds []Found) (Found, error) {
			var f Found
			f.Name = fmt.Sprint("loop", n)
			if err := m.Modprobe(ctx, "loop"); err != nil {
				return f, err
			}
			backing := "/tmp/" + f.Name
			if len(ds) > 0 {
				backing = ds[0].Dev()
			} else if _, err := m.Output(ctx, "truncate", "-s", "64M", backing); err != nil {
				return f, err
			}
			_, err := m.Output(ctx, "losetup", f.Dev(), backing)
			return f, err
		})
	}
	loop(0, "")
	loop(1, "", "B0-OPT8M")
	loop(2, "64")
	add("zram0", "zram", "", nil, func(ctx context.Context, m *Machine, _ []Found) (Found, error) {
		var f Found
		f.Name = "zram0"
		if err := m.Modprobe(ctx, "zram"); err != nil {
			return f, err
		}
		return f, m.WriteAttr(ctx, f.Sysfs("disksize"), "64M")
	})
	add("nullb0", "null_blk", "", nil, func(ctx context.Context, m *Machine, _ []Found) (Found, error) {
		var f Found
		f.Name = "nullb0"
		return f, m.Modprobe(ctx, "null_blk", "gb=1", "nr_devices=1")
	})
	return all
}

// matrixModules are those that the stacks need beyond StandardModules.
var matrixModules = []string{"zram", "lzo", "lzo_rle", "linear", "dm_thin_pool", "dm_raid", "dm_cache", "dm_cache_smq", "dm_mirror", "dm_snapshot"}
