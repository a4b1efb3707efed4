package target

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/quirkcheck/quirkcheck/checker/verify"
	"github.com/quirkcheck/quirkcheck/internal/ioctl"
)

func TestParseTrace(t *testing.T) {
	const text = `# tracer: nop
#
# entries-in-buffer/entries-written: 7/7   #P:2
#
              dd-2345    [000] .....   100.000001: block_rq_issue: 8,0 WS 4194304 () 2048 + 8192 [dd]
     a [b] (c)-2346      [001] d..1.   100.000002: block_rq_issue: 8,0 R 512 () 4096 + 1 none,0,0 [a [b] (c)]
   kworker/0:1H-87       [000] .....   100.000003: block_rq_issue: 8,0 FWS 4096 () 8 + 8 be,0,4 [kworker/0:1H]
   kworker/0:1H-87       [000] .....   100.000004: block_rq_issue: 8,0 FF 0 () 0 + 0 none,0,0 [kworker/0:1H]
         sg_dd-99        [000] .....   100.000005: block_rq_issue: 8,0 N 4194304 (88 00) 0 + 0 [sg_dd]
          fio-12         [000] .....   100.000006: block_rq_issue: 8,0 DS 4096 () 64 + 8 none,0,0 [fio]
          fio-12         [000] .....   100.000007: block_rq_issue: 8,16 W 4096 () 64 + 8 none,0,0 [fio]
`
	got, lost := parseTrace([]byte(text), 8, 0)
	want := []request{{verify.Write, 2048, 8192}, {verify.Read, 4096, 1}, {verify.Write, 8, 8}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(request{})); diff != "" || lost {
		t.Errorf("lost %t (-want +got):\n%s", lost, diff)
	}
	for _, text := range []string{"# entries-in-buffer/entries-written: 7/8   #P:2\n", "CPU:1 [LOST 12 EVENTS]\n"} {
		if _, lost := parseTrace([]byte(text), 8, 0); !lost {
			t.Errorf("%q: nothing lost", text)
		}
	}
}

func TestProveByTrace(t *testing.T) {
	c := verify.Command{Op: verify.Write, Sector: 100, Data: make([]byte, 64*verify.SectorBytes), Path: verify.PathBlock}
	for _, tt := range []struct {
		name     string
		err      error
		path     verify.Path
		requests []request
		lost     bool
		want     verify.Completion
	}{
		{"exact", nil, verify.PathBlock, []request{{verify.Write, 1100, 64}}, false, verify.Completion{Proof: verify.ProofTrace, Requests: 1, Largest: 64}},
		{"issued again", nil, verify.PathBlock, []request{{verify.Write, 1100, 64}, {verify.Write, 1100, 64}}, false, verify.Completion{Proof: verify.ProofTrace, Requests: 1, Largest: 64}},
		{"split", nil, verify.PathBlock, []request{{verify.Write, 1100, 40}, {verify.Write, 1140, 24}}, false, verify.Completion{Requests: 2, Largest: 40}},
		{"larger by a merge", nil, verify.PathBlock, []request{{verify.Write, 1092, 72}}, false, verify.Completion{Requests: 1, Largest: 72}},
		{"a read of the same sectors", nil, verify.PathBlock, []request{{verify.Read, 1100, 64}}, false, verify.Completion{}},
		{"elsewhere", nil, verify.PathBlock, []request{{verify.Write, 1164, 64}, {verify.Write, 1036, 64}}, false, verify.Completion{}},
		{"events lost", nil, verify.PathBlock, []request{{verify.Write, 1100, 40}}, true, verify.Completion{}},
		{"exact though events were lost", nil, verify.PathBlock, []request{{verify.Write, 1100, 64}}, true, verify.Completion{Proof: verify.ProofTrace, Requests: 1, Largest: 64}},
		{"failed", unix.EIO, verify.PathBlock, []request{{verify.Write, 1100, 64}}, false, verify.Completion{Requests: 1, Largest: 64, Err: unix.EIO}},
		{"page cache", nil, verify.PathCache, []request{{verify.Write, 1100, 64}}, false, verify.Completion{Requests: 1, Largest: 64}},
	} {
		c.Path = tt.path
		got := verify.Completion{Err: tt.err}
		proveByTrace(&got, c, 1100, tt.requests, tt.lost)
		if got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestProveByStat(t *testing.T) {
	command := func(op verify.Op, sector uint64, n int) verify.Command {
		return verify.Command{Op: op, Sector: sector, Data: make([]byte, n*verify.SectorBytes), Path: verify.PathBlock}
	}
	one := []verify.Command{command(verify.Write, 0, 64)}
	apart := []verify.Command{command(verify.Write, 0, 64), command(verify.Write, 128, 64), command(verify.Read, 256, 8)}
	adjacent := []verify.Command{command(verify.Write, 0, 64), command(verify.Write, 64, 64)}
	for _, tt := range []struct {
		name string
		cmds []verify.Command
		got  diskStat
		want bool
	}{
		{"one request", one, diskStat{requests: [2]uint64{0, 1}, sectors: [2]uint64{0, 64}}, true},
		{"one request put together from bios", one, diskStat{requests: [2]uint64{0, 1}, merges: [2]uint64{0, 3}, sectors: [2]uint64{0, 64}}, true},
		{"split", one, diskStat{requests: [2]uint64{0, 2}, sectors: [2]uint64{0, 64}}, false},
		{"another's read beside", one, diskStat{requests: [2]uint64{1, 1}, sectors: [2]uint64{8, 64}}, false},
		{"nothing counted", one, diskStat{}, false},
		{"three", apart, diskStat{requests: [2]uint64{1, 2}, sectors: [2]uint64{8, 128}}, true},
		{"sectors of another", apart, diskStat{requests: [2]uint64{1, 2}, sectors: [2]uint64{8, 136}}, false},
		{"neighbours, not merged", adjacent, diskStat{requests: [2]uint64{0, 2}, sectors: [2]uint64{0, 128}}, true},
		{"neighbours, one split and the rest merged", adjacent, diskStat{requests: [2]uint64{0, 2}, merges: [2]uint64{0, 1}, sectors: [2]uint64{0, 128}}, false},
	} {
		sent := make([]int, len(tt.cmds))
		for i := range sent {
			sent[i] = i
		}
		done := make([]verify.Completion, len(tt.cmds))
		if got := proveByStat(tt.got, tt.cmds, sent, done); got != tt.want {
			t.Errorf("%s: got %t, want %t", tt.name, got, tt.want)
		}
		for i, c := range done {
			if (c.Proof == verify.ProofStat) != tt.want {
				t.Errorf("%s: command %d: %+v", tt.name, i, c)
			}
		}
	}
}

func TestParseStat(t *testing.T) {
	got, err := parseStat("   10  1  800  5   20  2  1600  7  0  12  13  0 0 0 0 3 4")
	want := diskStat{requests: [2]uint64{10, 20}, merges: [2]uint64{1, 2}, sectors: [2]uint64{800, 1600}}
	if err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	for _, text := range []string{"", "1 2 3", "1 2 x 4 5 6 7"} {
		if _, err := parseStat(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

func TestReachNamesItsBound(t *testing.T) {
	ahci := queueLimits{maxSectorsKiB: 32767, maxHWSectorsKiB: 32767, maxSegments: 168, maxSegmentBytes: 65536}
	nbd := queueLimits{maxSectorsKiB: 1280, maxHWSectorsKiB: 32768, maxSegments: 65535, maxSegmentBytes: 1<<32 - 1}
	with := func(l queueLimits, f func(*queueLimits)) queueLimits { f(&l); return l }
	for _, tt := range []struct {
		name     string
		l        queueLimits
		path     verify.Path
		shape    verify.Shape
		pass     PassThrough
		logical  int
		physical int
		want     verify.Reach
	}{
		{"AHCI: 10752 KiB", ahci, verify.PathBlock, verify.Contiguous, SCSIPassThrough, 1, 8, verify.Reach{Sectors: 21504, Why: "max_segments is 168, of 65536 bytes"}},
		{"AHCI, 4 KiB pages: 672 KiB", ahci, verify.PathBlock, verify.Fragmented, SCSIPassThrough, 1, 8, verify.Reach{Sectors: 1344, Why: "max_segments is 168, of 4 KiB"}},
		{
			"rounded down to the physical block", with(ahci, func(l *queueLimits) { l.maxSectorsKiB = 4095 }),
			verify.PathBlock, verify.Contiguous, SCSIPassThrough, 1, 8, verify.Reach{Sectors: 8184, Why: "max_sectors_kb is 4095"},
		},
		{
			"the command path knows no max_sectors_kb", with(ahci, func(l *queueLimits) { l.maxSectorsKiB = 4095 }),
			verify.PathCommand, verify.Contiguous, SCSIPassThrough, 1, 8, verify.Reach{Sectors: 21504, Why: "max_segments is 168, of 65536 bytes"},
		},
		{"no overflow", nbd, verify.PathCommand, verify.Contiguous, SCSIPassThrough, 1, 1, verify.Reach{Sectors: 65536, Why: "max_hw_sectors_kb is 32768"}},
		{
			"VPD in blocks of 4 KiB", with(ahci, func(l *queueLimits) { l.vpdBlocks = 128 }),
			verify.PathCommand, verify.Contiguous, SCSIPassThrough, 8, 8, verify.Reach{Sectors: 1024, Why: "VPD page B0h: MAXIMUM TRANSFER LENGTH is 128 blocks"},
		},
		{
			"NVMe counts 16 bits", with(nbd, func(l *queueLimits) { l.maxHWSectorsKiB = 1 << 20 }),
			verify.PathCommand, verify.Contiguous, NVMePassThrough, 1, 1, verify.Reach{Sectors: 65536, Why: "an NVMe command counts 65536 blocks"},
		},
		{"zones", with(nbd, func(l *queueLimits) { l.chunkSectors = 256 }), verify.PathBlock, verify.Contiguous, NoPassThrough, 1, 1, verify.Reach{Sectors: 256, Why: "chunk_sectors is 256"}},
		{
			"no merging", with(nbd, func(l *queueLimits) { l.nomerges, l.maxSectorsKiB = 2, 32764 }),
			verify.PathBlock, verify.Fragmented, NoPassThrough, 1, 1, verify.Reach{Sectors: 2048, Why: "a bio holds 256 pages, and nomerges is 2"},
		},
	} {
		if got := tt.l.reach(tt.path, tt.shape, tt.pass, tt.logical, tt.physical); got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestReadQueueLimits(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("queue/max_sectors_kb", "1280\n")
	write("queue/max_hw_sectors_kb", "32767\n")
	write("queue/max_segments", "168\n")
	if _, err := readQueueLimits(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without max_segment_size: %v", err)
	}
	write("queue/max_segment_size", "65536\n")
	page := make([]byte, 64)
	page[1], page[3], page[10] = 0xb0, 60, 0x20 // 0x2000 blocks
	write("device/vpd_pgb0", string(page))
	got, err := readQueueLimits(dir)
	want := queueLimits{maxSectorsKiB: 1280, maxHWSectorsKiB: 32767, maxSegments: 168, maxSegmentBytes: 65536, vpdBlocks: 0x2000}
	if err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	d := &Disk{o: DiskOptions{SysBlock: dir}, info: verify.Info{LogicalBlock: 1, PhysicalBlock: 1}}
	if got := d.Reach(verify.PathBlock, verify.Contiguous); got.Sectors != 2560 {
		t.Errorf("reach: %+v", got)
	}
	write("queue/max_sectors_kb", "512\n")
	if got := d.Reach(verify.PathBlock, verify.Contiguous); got.Sectors != 1024 {
		t.Errorf("reach after the limit changed: %+v", got)
	}
	write("queue/max_sectors_kb", "many\n")
	if got := d.Reach(verify.PathBlock, verify.Contiguous); got.Sectors != 0 || got.Why == "" {
		t.Errorf("reach of an unreadable limit: %+v", got)
	}
}

func TestKernelLogLines(t *testing.T) {
	ata := &kernelLog{fd: -1, mine: namesOf("/sys/devices/pci0000:00/0000:00:17.0/ata1/host0/target0:0:0/0:0:0:0/block/sda", "8:0")}
	usb := &kernelLog{fd: -1, mine: namesOf("/sys/devices/pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.0/host6/target6:0:0/6:0:0:0/block/sdb", "8:16")}
	nvme := &kernelLog{fd: -1, mine: namesOf("/sys/devices/pci0000:00/0000:04:00.0/nvme/nvme0/nvme0n1", "259:0")}
	for _, tt := range []struct {
		log    *kernelLog
		record string
		want   verify.Kind // "": no event
	}{
		{ata, "3,1,2,-;ata1.00: exception Emask 0x0 SAct 0x1000000 SErr 0x0 action 0x6 frozen\n", verify.KindIOError},
		{ata, "3,1,2,-;ata1.00: failed command: READ FPDMA QUEUED\n", verify.KindIOError},
		{ata, "3,1,2,-;ata1.00: cmd 60/00:c0:00:08:00/20:00:00:00:00/40 tag 24 ncq dma 4194304 in res 40/00:01:00:00:00/00:00:00:00:00/00 Emask 0x4 (timeout)\n", verify.KindTimeout},
		{ata, "6,1,2,-;ata1: hard resetting link\n", verify.KindReset},
		{ata, "4,1,2,-;ata1: SATA link down (SStatus 0 SControl 300)\n", verify.KindReset},
		{ata, "4,1,2,-;ata1.00: disabled\n", verify.KindGone},
		{ata, "6,1,2,-;ata11: hard resetting link\n", ""},
		{ata, "6,1,2,-;ata1.00: configured for UDMA/133\n", ""},
		{ata, "5,1,2,-;sd 0:0:0:0: [sda] Write cache: disabled, read cache: enabled, doesn't support DPO or FUA\n SUBSYSTEM=scsi\n DEVICE=+scsi:0:0:0:0\n", ""},
		{ata, "6,1,2,-;sd 0:0:0:0: [sda] tag#24 FAILED Result: hostbyte=DID_OK driverbyte=DRIVER_OK cmd_age=31s\n", verify.KindIOError},
		{ata, "6,1,2,-;sd 0:0:0:0: [sda] tag#24 FAILED Result: hostbyte=DID_TIME_OUT driverbyte=DRIVER_OK cmd_age=31s\n", verify.KindTimeout},
		{ata, "6,1,2,-;sd 0:0:0:0: Power-on or device reset occurred\n", verify.KindReset},
		{ata, "6,1,2,-;sd 10:0:0:0: Power-on or device reset occurred\n", ""},
		{ata, "6,1,2,-;sd 0:0:0:0: rejecting I/O to offline device\n", verify.KindGone},
		{ata, "3,1,2,-;blk_update_request: I/O error, dev sda, sector 2048 op 0x0:(READ)\n", verify.KindIOError},
		{ata, "3,1,2,-;Buffer I/O error on dev sda1, logical block 3, async page read\n", verify.KindIOError},
		{ata, "3,1,2,-;I/O error, dev sdaa, sector 2048\n", ""},
		{ata, "3,1,2,-;tag#0 timing out command, waited 180s\n SUBSYSTEM=scsi\n DEVICE=+scsi:0:0:0:0\n", verify.KindTimeout},
		{ata, "3,1,2,-;tag#0 timing out command, waited 180s\n SUBSYSTEM=scsi\n DEVICE=+scsi:1:0:0:0\n", ""},
		{ata, "3,1,2,-;something timed out\n SUBSYSTEM=block\n DEVICE=b8:0\n", verify.KindTimeout},
		{ata, "3,1,2,-;something timed out\n SUBSYSTEM=block\n DEVICE=b8:01\n", ""},
		{ata, "6,1,2,-;EXT4-fs (sda1): mounted filesystem\n", ""},
		{ata, "no semicolon", ""},
		{usb, "6,1,2,-;usb 1-2: reset SuperSpeed USB device number 2 using xhci_hcd\n", verify.KindReset},
		{usb, "6,1,2,-;usb 1-2.3: reset SuperSpeed USB device number 2 using xhci_hcd\n", ""},
		{usb, "6,1,2,-;usb 1-2: USB disconnect, device number 2\n", verify.KindGone},
		{usb, "6,1,2,-;sd 6:0:0:0: [sdb] tag#0 uas_eh_abort_handler 0 uas-tag 1 inflight: CMD IN\n", ""},
		{nvme, "4,1,2,-;nvme nvme0: I/O tag 5 (1005) opcode 0x2 (I/O Cmd) QID 1 timeout, aborting req_op:READ(0) size:4194304\n", verify.KindTimeout},
		{nvme, "4,1,2,-;nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10\n", verify.KindReset},
		{nvme, "4,1,2,-;nvme nvme0: Abort status: 0x0\n", ""},
		{nvme, "4,1,2,-;nvme0n1: I/O Cmd(0x2) @ LBA 2048, 8192 blocks, I/O Error (sct 0x2 / sc 0x81)\n", verify.KindIOError},
		{nvme, "4,1,2,-;nvme nvme0: Disabling device after reset failure: -19\n", verify.KindGone},
		{nvme, "4,1,2,-;nvme nvme01: I/O timeout\n", ""},
	} {
		got, ok := tt.log.event(tt.record)
		if ok != (tt.want != "") || got.Kind != tt.want {
			t.Errorf("%q: got %q, want %q", tt.record, got.Kind, tt.want)
		}
	}
}

func TestFailures(t *testing.T) {
	for _, tt := range []struct {
		name string
		err  error
		want verify.Kind
	}{
		{"too long a command", passFailure(os.NewSyscallError("SG_IO", unix.EIO)), verify.KindNotSent},
		{"too many segments", passFailure(os.NewSyscallError("SG_IO", unix.EINVAL)), verify.KindNotSent},
		{"no device for a command", passFailure(os.NewSyscallError("SG_IO", unix.ENODEV)), verify.KindGone},
		{"a command's bad address", passFailure(os.NewSyscallError("SG_IO", unix.EFAULT)), verify.KindInternal},
		{"unaligned", ioFailure("read", unix.EINVAL), verify.KindNotSent},
		{"I/O error", ioFailure("read", unix.EIO), verify.KindIOError},
		{"medium error", ioFailure("read", unix.ENODATA), verify.KindIOError},
		{"timeout", ioFailure("read", unix.ETIMEDOUT), verify.KindTimeout},
		{"no device", ioFailure("read", unix.ENXIO), verify.KindGone},
		{"closed", ioFailure("read", unix.EBADF), verify.KindInternal},
		{"sense", outcomeFailure(ioctl.OutcomeError, 0, ""), verify.KindIOError},
		{"host timeout", outcomeFailure(ioctl.OutcomeTimeout, 0, ""), verify.KindTimeout},
		{"reset", outcomeFailure(ioctl.OutcomeReset, 0, ""), verify.KindReset},
		{"no connect", outcomeFailure(ioctl.OutcomeGone, 0, ""), verify.KindGone},
		{"residual", outcomeFailure(ioctl.OutcomeOK, 512, ""), verify.KindShort},
		{"good, but late", overdue(verify.Command{}, time.Minute, time.Second, nil), verify.KindTimeout},
		{"I/O error, and late", overdue(verify.Command{}, time.Minute, time.Second, ioFailure("read", unix.EIO)), verify.KindTimeout},
		{"reset, and late", overdue(verify.Command{}, time.Minute, time.Second, outcomeFailure(ioctl.OutcomeReset, 0, "")), verify.KindReset},
	} {
		wantKind(t, tt.name, tt.err, tt.want)
	}
	if err := outcomeFailure(ioctl.OutcomeOK, 0, ""); err != nil {
		t.Errorf("good: %v", err)
	}
}

func TestCompareIdentity(t *testing.T) {
	d := &Disk{who: identity{attrs: map[string]string{"diskseq": "7", "device/wwid": "naa.1"}, bytes: 512, serial: "S1"}}
	now := func(f func(*identity)) identity {
		i := identity{attrs: map[string]string{"diskseq": "7", "device/wwid": "naa.1", "serial": "new"}, bytes: 512, serial: "S1"}
		f(&i)
		return i
	}
	if err := d.compareIdentity(now(func(*identity) {})); err != nil {
		t.Errorf("the same: %v", err)
	}
	if err := d.compareIdentity(now(func(i *identity) { i.serial = "" })); err != nil {
		t.Errorf("serial not asked: %v", err)
	}
	wantKind(t, "size", d.compareIdentity(now(func(i *identity) { i.bytes = 1024 })), verify.KindNotOurs)
	wantKind(t, "wwid", d.compareIdentity(now(func(i *identity) { i.attrs["device/wwid"] = "naa.2" })), verify.KindNotOurs)
	wantKind(t, "serial", d.compareIdentity(now(func(i *identity) { i.serial = "S2" })), verify.KindNotOurs)
	wantKind(t, "attribute gone", d.compareIdentity(now(func(i *identity) { delete(i.attrs, "diskseq") })), verify.KindGone)
	d.o.SysBlock = filepath.Join(t.TempDir(), "sdx")
	wantKind(t, "folder gone", d.compareIdentity(now(func(*identity) {})), verify.KindGone)
}

// TestCounterSteps reads the counters as sysfs has them.
func TestCounterSteps(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "device"), 0o755); err != nil {
		t.Fatal(err)
	}
	set := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, "device", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	set("ioerr_cnt", "0x9\n")
	d := &Disk{o: DiskOptions{SysBlock: dir}, log: &kernelLog{fd: -1}}
	d.counts = d.readCounts()
	set("ioerr_cnt", "0xb\n")
	set("iotmo_cnt", "0x1\n") // not there before
	want := []verify.Event{{Kind: verify.KindCounter, Text: "device/ioerr_cnt went from 9 to 11"}}
	if diff := cmp.Diff(want, d.Events()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	set("iotmo_cnt", "0x2\n")
	want = []verify.Event{{Kind: verify.KindTimeout, Text: "device/iotmo_cnt went from 1 to 2"}}
	if diff := cmp.Diff(want, d.Events()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
