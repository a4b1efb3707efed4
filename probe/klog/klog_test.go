package klog_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quirkcheck/quirkcheck/probe/klog"
)

// show writes a symptom in one line: kind, layer, op, name (identity), count,
// sizes, incidents, address and what else it has.
func show(s klog.Symptom) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", s.Kind, s.Layer)
	if s.Op != "" {
		fmt.Fprintf(&b, " %s", s.Op)
	}
	fmt.Fprintf(&b, " %s", s.Subject.Name)
	if id := s.Subject.Identity(); id != "" {
		fmt.Fprintf(&b, " (%s)", id)
	}
	for _, extra := range []string{s.Subject.HCTL, s.Subject.PCI, s.Subject.Map, s.Detail} {
		if extra != "" {
			fmt.Fprintf(&b, " %s", extra)
		}
	}
	fmt.Fprintf(&b, " n=%d", s.Count)
	list := func(name string, sizes []klog.Size) {
		for i, z := range sizes {
			if i == 0 {
				fmt.Fprintf(&b, " %s=", name)
			} else {
				b.WriteByte(',')
			}
			if z.Blocks > 0 {
				fmt.Fprintf(&b, "%dblocks*%d", z.Blocks, z.Count)
			} else {
				fmt.Fprintf(&b, "%d*%d", z.Bytes, z.Count)
			}
		}
	}
	list("bytes", s.Sizes)
	if !slices.Equal(s.Sizes, s.Incidents) {
		list("incidents", s.Incidents)
	}
	if s.HasLBA {
		fmt.Fprintf(&b, " lba=%d", s.LBA)
	}
	if s.Limit > 0 {
		fmt.Fprintf(&b, " limit=%d", s.Limit)
	}
	return b.String()
}

func read(t testing.TB, text string) *klog.Log {
	t.Helper()
	log, err := klog.Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func shown(log *klog.Log) []string {
	out := []string{}
	for _, s := range log.Symptoms {
		out = append(out, show(s))
	}
	return out
}

// The lines are as kernels printed them, unless said: most come from the mailing
// lists, bug trackers and forums that are named. Names of hosts are replaced.
var lines = []struct {
	name, text string
	want       []string
}{
	{"an NCQ write, the result on its own line (a mail with a trace of btrfs)", `
[686059.569331] ata6.00: exception Emask 0x0 SAct 0x79fe060 SErr 0x0 action 0x0
[686059.569338] ata6.00: irq_stat 0x40000008
[686059.569342] ata6.00: failed command: WRITE FPDMA QUEUED
[686059.569344] ata6.00: cmd 61/a8:c0:6b:fd:2d/00:00:7a:00:00/40 tag 24 ncq dma 688128 out
                         res 43/04:a8:6b:fd:2d/00:00:7a:00:00/00 Emask 0x400 (NCQ error) <F>
[686059.569351] ata6.00: status: { DRDY SENSE ERR }
[686059.569353] ata6.00: error: { ABRT }
[686059.611703] ata6.00: configured for UDMA/133
[686059.611800] sd 5:0:0:0: [sda] tag#24 FAILED Result: hostbyte=DID_OK driverbyte=DRIVER_OK cmd_age=0s
[686059.611805] sd 5:0:0:0: [sda] tag#24 Sense Key : Illegal Request [current]
[686059.611809] sd 5:0:0:0: [sda] tag#24 Add. Sense: Unaligned write command
[686059.611813] sd 5:0:0:0: [sda] tag#24 CDB: Write(16) 8a 00 00 00 00 00 7a 2d fd 6b 00 00 00 a8 00 00
[686059.611815] I/O error, dev sda, sector 16398674776 op 0x1:(WRITE) flags 0x104000 phys_seg 168 prio class 0
[686059.611827] ata6: EH complete`,
		[]string{
			"io-error libata write ata6.00 n=1 bytes=688128*1 lba=2049834347",
			"refused scsi write sda 5:0:0:0 n=1 bytes=168blocks*1 lba=2049834347",
			"io-error block write sda 5:0:0:0 n=1 lba=16398674776",
		}},
	{"one block of 4 KiB each: the same disk, once its block size is in the log (made of the lines above)", `
sd 5:0:0:0: [sda] 4883456 4096-byte logical blocks: (20.0 TB/18.2 TiB)
sd 5:0:0:0: [sda] tag#24 FAILED Result: hostbyte=DID_OK driverbyte=DRIVER_OK cmd_age=0s
sd 5:0:0:0: [sda] tag#24 CDB: Write(16) 8a 00 00 00 00 00 7a 2d fd 6b 00 00 00 a8 00 00`,
		[]string{"io-error scsi write sda 5:0:0:0 n=1 bytes=688128*1 lba=2049834347"}},
	{"READ DMA without NCQ, old kernel, no failed command line (ubuntuforums, 2.6.2x)", `
[  537.850006] ata1.00: exception Emask 0x0 SAct 0x0 SErr 0x0 action 0x0
[  537.850012] ata1.00: (BMDMA stat 0x64)
[  537.850020] ata1.00: cmd c8/00:08:17:49:fd/00:00:00:00:00/e0 tag 0 cdb 0x0 data 4096 in
[  537.850022]          res 51/40:00:18:49:fd/00:00:00:00:00/e0 Emask 0x9 (media error)`,
		[]string{"medium-error libata read ata1.00 n=1 bytes=4096*1 lba=16599319"}},
	{"READ DMA, LBA bits in the device register (ubuntuforums)", `
[ 1542.347038] ata1.00: cmd c8/00:40:dc:0a:d2/00:00:00:00:00/e3 tag 0 dma 32768 in
[ 1542.347040]          res 51/40:34:e8:0a:d2/00:00:00:00:00/e3 Emask 0x9 (media error)`,
		[]string{"medium-error libata read ata1.00 n=1 bytes=32768*1 lba=64096988"}},
	{"WRITE DMA EXT of 8192 sectors, short-iso without a host (linux-ide, ata timeout exceptions, RC-004)", `
2025-12-22T09:10:52+11:00 kernel: ata2.00: exception Emask 0x0 SAct 0x0 SErr 0x0 action 0x6 frozen
2025-12-22T09:10:52+11:00 kernel: ata2.00: failed command: WRITE DMA EXT
2025-12-22T09:10:52+11:00 kernel: ata2.00: cmd 35/00:00:00:c8:d0/00:20:af:00:00/e0 tag 1 dma 4194304 out
                                            res 40/00:01:00:4f:c2/00:00:00:00:00/00 Emask 0x4 (timeout)
2025-12-22T09:10:52+11:00 kernel: ata2.00: status: { DRDY }
2025-12-22T09:10:52+11:00 kernel: ata2: hard resetting link`,
		[]string{
			"timeout libata write ata2.00 n=1 bytes=4194304*1 lba=2949695488",
			"reset libata ata2 n=1",
		}},
	{"cut at the edge of a screen: the taskfile alone has the count (made of lines above)", `
ata1.00: cmd 60/00:18:50:4a:4c/20:00:0c:00:00/40 tag 3
ata2.00: cmd 61/a8:c0:6b:fd:2d/00:00:7a:00:00/40
ata3.00: cmd 35/00:00:00:c8:d0/00:20:af:00:00/e0 tag 1 dma
ata4.00: cmd 25/00:00:00:c8:d0/00:00:af:00:00/e0 tag 1
ata5.00: cmd c8/00:00:dc:0a:d2/00:00:00:00:00/e3 tag 0
ata6.00: cmd 64/01:00:00:00:00/00:00:00:00:00/a0 tag 0
ata7.00: cmd ea/00:00:00:00:00/00:00:00:00:00/a0 tag 0
ata8.00: cmd 06/01:01:00:00:00/00:00:00:00:00/a0 tag 9 dma 512 out`,
		[]string{
			"io-error libata read ata1.00 n=1 bytes=8192blocks*1 lba=206326352",
			"io-error libata write ata2.00 n=1 bytes=168blocks*1 lba=2049834347",
			"io-error libata write ata3.00 n=1 bytes=8192blocks*1 lba=2949695488",
			"io-error libata read ata4.00 n=1 bytes=65536blocks*1 lba=2949695488",
			"io-error libata read ata5.00 n=1 bytes=256blocks*1 lba=64096988",
			"io-error libata discard ata6.00 n=1",
			"io-error libata flush ata7.00 n=1",
			"io-error libata discard ata8.00 n=1",
		}},
	{"a cable: SError and bus error, no size to blame (a mail about an interface error; it folded the second line)", `
[  120.265268] ata7: limiting SATA link speed to 3.0 Gbps
[  120.265275] ata7.00: exception Emask 0x10 SAct 0x3f0 SErr 0x400000 action 0x6 frozen
[  120.265279] ata7.00: irq_stat 0x08000000, interface fatal error
[  120.265281] ata7: SError: { Handshk }
[  120.265285] ata7.00: failed command: WRITE FPDMA QUEUED
[  120.265287] ata7.00: cmd 61/00:20:a8:b9:50/0a:00:00:00:00/40 tag 4 ncq dma 1310720 ou
	res 40/00:ff:00:00:00/00:00:00:00:00/00 Emask 0x10 (ATA bus error)
[  120.265295] ata7.00: status: { DRDY }
[  120.265297] ata7.00: failed command: WRITE FPDMA QUEUED
[  120.265299] ata7.00: cmd 61/20:28:a8:c3:50/03:00:00:00:00/40 tag 5 ncq dma 409600 out
	res 40/00:ff:00:00:00/00:00:00:00:00/00 Emask 0x10 (ATA bus error)`,
		[]string{
			"link-error libata ata7 slowed down n=1",
			"link-error libata ata7.00 n=1",
			"link-error libata write ata7.00 n=2 bytes=1310720*1,409600*1 incidents=1310720*1 lba=5290408",
		}},
	{"a queue of commands dies with the large one: one incident (linux-block, RC-003)", `
[  248.985303] ata1.00: exception Emask 0x0 SAct 0x10001 SErr 0x0 action 0x6 frozen
[  248.992733] ata1.00: failed command: READ FPDMA QUEUED
[  248.997889] ata1.00: cmd 60/00:00:00:00:00/20:00:00:00:00/40 tag 0 ncq dma 4194304 in
                        res 40/00:00:00:00:00/00:00:00:00:00/00 Emask 0x4 (timeout)
[  249.013107] ata1.00: status: { DRDY }
[  249.016775] ata1.00: failed command: WRITE FPDMA QUEUED
[  249.022011] ata1.00: cmd 61/08:80:d0:85:12/00:00:00:00:00/40 tag 16 ncq dma 4096 out
                        res 40/00:00:00:00:00/00:00:00:00:00/00 Emask 0x4 (timeout)
[  191.191641] ata1: EH complete`,
		[]string{
			"timeout libata read ata1.00 n=1 bytes=4194304*1 lba=0",
			"timeout libata write ata1.00 n=1 bytes=4096*1 incidents=4194304*1 lba=1213904",
		}},
	{"syslog: the second line has a prefix of its own (TLP issue 130)", `
Mar  7 08:24:28 host kernel: [  375.143184] ata1.00: failed command: WRITE FPDMA QUEUED
Mar  7 08:24:28 host kernel: [  375.143186] ata1.00: cmd 61/08:88:90:89:4c/00:00:0e:00:00/40 tag 17 ncq 4096 out
Mar  7 08:24:28 host kernel: [  375.143186]          res 40/00:00:00:00:00/00:00:00:00:00/00 Emask 0x4 (timeout)
Mar  7 08:24:28 host kernel: [  375.143187] ata1.00: status: { DRDY }`,
		[]string{"timeout libata write ata1.00 n=1 bytes=4096*1 lba=239896976"}},
	{"/dev/kmsg: the line break is escaped (made of the line above after dev-kmsg)", `
3,812,375143186,-;ata1.00: cmd 61/08:88:90:89:4c/00:00:0e:00:00/40 tag 17 ncq 4096 out\x0a         res 40/00:00:00:00:00/00:00:00:00:00/00 Emask 0x4 (timeout)
 SUBSYSTEM=scsi
 DEVICE=+scsi:0:0:0:0`,
		[]string{"timeout libata write ata1.00 n=1 bytes=4096*1 lba=239896976"}},
	{"only the name of the failed command is left (grep)", `
ata6.00: failed command: FLUSH CACHE EXT
ata6.00: failed command: READ FPDMA QUEUED`,
		[]string{"io-error libata flush ata6.00 n=1", "io-error libata read ata6.00 n=1"}},
	{"quirks of libata (Debian bug 1120831; linux-ide)", `
ata1.00: Model 'INTEL SSDSC2KG480G8', rev 'XCV10120', applying quirks: zeroaftertrim
ata2.00: FORCE: horkage modified (noncq)
ata3.00: applying bridge limits
ata5.00: Model 'SAMSUNG MZ7TD256HAFV-000L9', rev 'DXT04L6Q', applying quirks: nolpm
ata5.00: LPM support broken, forcing max_power`,
		[]string{
			"quirk libata ata1.00 (INTEL SSDSC2KG480G8 XCV10120) zeroaftertrim n=1",
			"quirk libata ata2.00 libata.force=noncq n=1",
			"quirk libata ata3.00 bridge limits n=1",
			"quirk libata ata5.00 (SAMSUNG MZ7TD256HAFV-000L9 DXT04L6Q) nolpm n=2",
		}},
	{"libata gives a disk up; a firmware with a blank in front (drivers/ata/libata-core.c)", `
[    1.157147] ata2.00: ATA-10: Crucial_CT1050MX300SSD1,  M0CR040, max UDMA/133
[   15.000000] ata2.00: qc timeout after 5000 msecs (cmd 0xec)
[   15.100000] ata2.00: failed to IDENTIFY (I/O error, err_mask=0x4)
[   25.100000] ata2: COMRESET failed (errno=-16)
[   35.100000] ata2: reset failed, giving up
[   35.200000] ata2.00: disable device
[   36.200000] sd 1:0:0:0: [sdb] Write cache: disabled, read cache: enabled, doesn't support DPO or FUA`,
		[]string{
			"timeout libata internal ata2.00 (Crucial_CT1050MX300SSD1 M0CR040) n=1",
			"io-error libata identify ata2.00 (Crucial_CT1050MX300SSD1 M0CR040) n=1",
			"reset libata ata2 (Crucial_CT1050MX300SSD1 M0CR040) failed n=2",
			"gone libata ata2.00 (Crucial_CT1050MX300SSD1 M0CR040) n=1",
		}},
	{"medium error of a SCSI disk (linux-scsi, sd sense patches)", `
sd 8:0:0:0: [sdc] 16777216 512-byte logical blocks: (8.59 GB/8.00 GiB)
sd 8:0:0:0: [sdc] tag#255 FAILED Result: hostbyte=DID_OK driverbyte=DRIVER_SENSE cmd_age=0s
sd 8:0:0:0: [sdc] tag#255 Sense Key : Medium Error [current]
sd 8:0:0:0: [sdc] tag#255 Add. Sense: Unrecovered read error
sd 8:0:0:0: [sdc] tag#255 CDB: Read(10) 28 00 00 00 27 10 00 00 01 00
blk_update_request: critical medium error, dev sdc, sector 10000 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0`,
		[]string{
			"medium-error scsi read sdc 8:0:0:0 n=1 bytes=512*1 lba=10000",
			"medium-error block read sdc 8:0:0:0 n=1 lba=10000",
		}},
	{"the words of 2.6 and 3.x (ubuntuforums)", `
[19843.687192] sd 1:0:0:0: [sda] Result: hostbyte=DID_OK driverbyte=DRIVER_SENSE
[19843.687195] sd 1:0:0:0: [sda] Sense Key : Medium Error [current] [descriptor]
[19843.687199] Descriptor sense data with sense descriptors (in hex):
[19843.687201]         72 03 11 04 00 00 00 0c 00 0a 80 00 00 00 00 00
[19843.687210] sd 1:0:0:0: [sda] Add. Sense: Unrecovered read error - auto reallocate failed
[19843.687215] sd 1:0:0:0: [sda] CDB: Read(10): 28 00 18 49 8d b0 00 00 28 00
[19843.687222] end_request: I/O error, dev sda, sector 407473610
[ 6458.186116] Buffer I/O error on device sda3, logical block 0`,
		[]string{
			"medium-error scsi read sda 1:0:0:0 n=1 bytes=40blocks*1 lba=407473584",
			"io-error block sda 1:0:0:0 n=1 lba=407473610",
			"io-error page cache sda n=1",
		}},
	{"host bytes by number, CDB by opcode (an Unraid report; linux-usb, SuperSpeedPlus resets)", `
Jan 30 03:12:20 host kernel: sd 3:0:4:0: attempting task abort!scmd(0x00000000e6e7404d), outstanding for 30424 ms & timeout 30000 ms
Jan 30 03:12:20 host kernel: sd 3:0:4:0: [sdj] tag#7153 CDB: opcode=0x28 28 00 46 d1 e9 e8 00 00 08 00
Jan 30 03:12:20 host kernel: scsi target3:0:4: handle(0x000d), sas_address(0x4433221105000000), phy(5)
Jan 30 03:12:23 host kernel: sd 3:0:4:0: [sdj] tag#7129 UNKNOWN(0x2003) Result: hostbyte=0x0b driverbyte=DRIVER_OK cmd_age=23s
Jan 30 03:12:23 host kernel: sd 10:0:0:0: [sdd] tag#0 UNKNOWN(0x2003) Result: hostbyte=0x03 driverbyte=0x00 cmd_age=0s
Jan 30 03:12:23 host kernel: sd 10:0:0:0: [sdd] tag#0 CDB: opcode=0x2a 2a 00 23 1c 34 30 00 02 00 00`,
		[]string{
			"timeout mpt3sas read sdj 3:0:4:0 n=1 bytes=8blocks*1 lba=1188162024",
			"timeout scsi write sdd 10:0:0:0 n=1 bytes=512blocks*1 lba=589050928",
			"io-error scsi sdj 3:0:4:0 n=1",
		}},
	{"a SMART command that mpt3sas aborts is no transfer (linux-hwmon, drivetemp patch)", `
sd 11:0:1:0: attempting task abort!scmd(0x00000000ef8da38c), outstanding for 2098 ms & timeout 1000 ms
sd 11:0:1:0: [sdep] tag#4639 CDB: ATA command pass through(16) 85 08 0e 00 d5 00 01 00 e0 00 4f 00 c2 00 b0 00
sd 11:0:1:0: task abort: SUCCESS scmd(0x00000000ef8da38c)
sd 11:0:1:0: Power-on or device reset occurred`,
		[]string{"timeout mpt3sas pass-through sdep 11:0:1:0 n=1"}},
	{"UAS aborts and resets (linux-usb; a Raspberry Pi blog)", `
[ 573.203294] sd 6:0:0:0: [sda] tag#29 uas_eh_abort_handler 0 uas-tag 9 inflight: CMD OUT
[ 573.203302] sd 6:0:0:0: [sda] tag#29 CDB: Write(10) 2a 00 00 4f a0 00 00 04 00 00
[ 573.205063] sd 6:0:0:0: [sda] tag#28 uas_eh_abort_handler 0 uas-tag 10 inflight: CMD OUT
[ 573.205070] sd 6:0:0:0: [sda] tag#28 CDB: Write(10) 2a 00 00 4f a4 00 00 04 00 00
[ 1151.588594] scsi host14: uas_eh_device_reset_handler start
[ 1151.710482] usb 2-4: reset SuperSpeed Gen 1 USB device number 2 using xhci_hcd
[ 1151.741398] scsi host14: uas_eh_device_reset_handler success
[ 1160.741398] sd 3:0:0:0: [sda] tag#10 data cmplt err -75 uas-tag 1 inflight: CMD
[ 1160.741399] sd 3:0:0:0: [sda] tag#10 CDB: Read(10) 28 00 74 6f 6d 00 00 00 08 00`,
		[]string{
			"timeout uas write sda 6:0:0:0 n=2 bytes=1024blocks*2 lba=5218304",
			"reset uas host14 n=1",
			"reset usb 2-4 n=1",
			"io-error uas read sda 3:0:0:0 n=1 bytes=8blocks*1 lba=1953459456",
		}},
	{"USB quirks, a bridge that goes away (linux-usb)", `
usb 2-1: New USB device found, idVendor=152d, idProduct=0578, bcdDevice= 5.05
usb 2-1: UAS is ignored for this device, using usb-storage instead
usb-storage 2-1:1.0: USB Mass Storage device detected
usb-storage 2-1:1.0: Quirks match for vid 152d pid 0578: 1800000
usb 2-1: USB disconnect, device number 2`,
		[]string{
			"quirk uas 2-1 (152d:0578) UAS ignored n=1",
			"quirk usb-storage 2-1 (152d:0578) usb-storage flags 0x1800000 n=1",
			"gone usb 2-1 (152d:0578) disconnect n=1",
		}},
	{"a multipath map above its paths (dm-devel, May 2024)", `
[   74.872485] blk_insert_cloned_request: over max size limit. (2048 > 1024)
[   74.872505] device-mapper: multipath: 254:3: Failing path 8:16.
[   74.872620] blk_insert_cloned_request: over max size limit. (2048 > 1024)
[   74.872641] device-mapper: multipath: 254:3: Failing path 8:32.
[   75.872641] blk_cloned_rq_check_limits: over max size limit.`,
		[]string{
			"over-max-size block 8:16 254:3 n=1 bytes=1048576*1 limit=1024",
			"path-failed multipath 8:16 254:3 n=1",
			"over-max-size block 8:32 254:3 n=1 bytes=1048576*1 limit=1024",
			"path-failed multipath 8:32 254:3 n=1",
			"over-max-size block  n=1",
		}},
	{"NVMe of 6.12 (a lockup report)", `
nvme nvme0: pci function 0000:01:00.0
nvme nvme0: I/O tag 70 (e046) opcode 0x2 (I/O Cmd) QID 6 timeout, aborting req_op:READ(0) size:131072
nvme nvme0: I/O tag 70 (e046) opcode 0x2 (I/O Cmd) QID 6 timeout, reset controller
nvme nvme0: Device not ready; aborting reset, CSTS=0x1
nvme nvme0: Abort status: 0x371
nvme0n1: I/O Cmd(0x2) @ LBA 454954056, 256 blocks, I/O Error (sct 0x3 / sc 0x71)
I/O error, dev nvme0n1, sector 454953800 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2`,
		[]string{
			"timeout nvme read nvme0 0000:01:00.0 n=1 bytes=131072*1",
			"reset nvme nvme0 0000:01:00.0 n=1",
			"gone nvme nvme0 0000:01:00.0 n=1",
			"io-error nvme read nvme0n1 0000:01:00.0 n=1 bytes=256blocks*1 lba=454954056",
			"io-error block read nvme0n1 0000:01:00.0 n=1 lba=454953800",
		}},
	{"NVMe of 6.1, with the caller in brackets (a boot log)", `
[  193.547498][  T415] nvme nvme0: I/O 864 (I/O Cmd) QID 1 timeout, aborting
[  224.267492][  T415] nvme nvme0: I/O 864 QID 1 timeout, reset controller
[  224.307642][   C18] nvme0n1: I/O Cmd(0x2) @ LBA 95243456, 104 blocks, I/O Error (sct 0x3 / sc 0x71)
[  285.707542][  T415] nvme nvme0: I/O 87 QID 1 timeout, completion polled
[   48.108400] nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10
[   48.246914] nvme nvme0: Disabling device after reset failure: -19`,
		[]string{
			"timeout nvme nvme0 n=1",
			"reset nvme nvme0 n=2",
			"io-error nvme read nvme0n1 n=1 bytes=104blocks*1 lba=95243456",
			"timeout nvme nvme0 completion polled n=1",
			"gone nvme nvme0 n=1",
		}},
	{"NVMe status types (made after nvme_log_error)", `
nvme1n1: Read(0x2) @ LBA 8, 8 blocks, Unrecovered Read Error (sct 0x2 / sc 0x81) DNR
nvme1n1: Write(0x1) @ LBA 16, 4096 blocks, Invalid Field in Command (sct 0x0 / sc 0x2) DNR
nvme1: Identify(0x6), Invalid Field in Command (sct 0x0 / sc 0x2) MORE DNR`,
		[]string{
			"medium-error nvme read nvme1n1 n=1 bytes=8blocks*1 lba=8",
			"refused nvme write nvme1n1 n=1 bytes=4096blocks*1 lba=16",
			"refused nvme admin nvme1 n=1",
		}},
	{"megaraid_sas asks for a reset (a blog on 5.10)", `
[ 6907.615254] sd 1:0:1:0: [sdb] tag#1734 OCR is requested due to IO timeout!!
[ 6907.615718] sd 1:0:1:0: [sdb] tag#1734 SCSI host state: 5  FW outstanding: 0
[ 6907.616191] sd 1:0:1:0: [sdb] tag#1734 scmd: (0x00000000b095e7b3)  retries: 0x0  allowed: 0x5
[ 6907.616669] sd 1:0:1:0: [sdb] tag#1734 CDB: Write(10) 2a 00 0e dc 64 00 00 00 20 00
[ 6907.617142] megaraid_sas 0000:31:00.0: megasas_disable_intr_fusion is called outbound_intr_mask:0x40000009
[ 6907.617653] megaraid_sas 0000:31:00.0: resetting fusion adapter scsi1.`,
		[]string{
			"timeout megaraid_sas write sdb 1:0:1:0 n=1 bytes=32blocks*1 lba=249324544",
			"reset megaraid_sas 0000:31:00.0 n=1",
		}},
	{"hpsa and smartpqi reset a volume (linux-scsi; smartpqi_init.c of 6.1 and 6.12)", `
sd 0:1:0:0: [sdc] 4096 512-byte logical blocks: (2 MB/2 MiB)
[  906.666923] hpsa 0000:05:00.0: scsi 0:1:0:0: resetting logical  Direct-Access     HP       LOGICAL VOLUME   RAID-0 SSDSmartPathCap- En- Exp=1
[  906.670923] hpsa 0000:05:00.0: device is ready.
[  906.670923] hpsa 0000:05:00.0: scsi 0:1:0:0: reset logical  completed successfully Direct-Access     HP       LOGICAL VOLUME   RAID-0 SSDSmartPathCap- En- Exp=1
smartpqi 0000:5c:00.0: resetting scsi 2:1:0:0 due to cmd 0x2a
smartpqi 0000:5c:00.0: resetting scsi 2:1:0:0 SCSI cmd at 00000000b095e7b3 due to cmd opcode 0x2a
smartpqi 0000:5c:00.0: reset of scsi 2:1:0:0: SUCCESS`,
		[]string{"reset hpsa sdc 0:1:0:0 n=1", "reset smartpqi 2:1:0:0 2:1:0:0 n=2"}},
	{"codes of mpt3sas name no device", `
mpt3sas_cm0: log_info(0x3112043b): originator(PL), code(0x12), sub_code(0x043b)
mpt3sas_cm0: log_info(0x3112043b): originator(PL), code(0x12), sub_code(0x043b)`,
		[]string{"message mpt3sas mpt3sas_cm0 0x3112043b n=2"}},
	{"md gives up a disk (raid1.c, raid5.c)", `
md/raid1:md0: Disk failure on sdb1, disabling device.
md/raid:md1: read error corrected (8 sectors at 65536 on sdc2)`,
		[]string{"gone md sdb n=1", "medium-error md read sdc n=1"}},
	{"a disk that is gone", `
[1.0] sd 8:0:42:0: rejecting I/O to offline device
[2.0] sd 8:0:43:0: Device offlined - not ready after error recovery
[3.0] device offline error, dev sdh, sector 1024 op 0x1:(WRITE) flags 0x800 phys_seg 1 prio class 0
[4.0] critical target error, dev sdh, sector 0 op 0x3:(DISCARD) flags 0x0 phys_seg 1 prio class 0
[5.0] I/O error, dev sdh, sector 0 op 0x9:(WRITE_ZEROES) flags 0x0 phys_seg 1 prio class 0`,
		[]string{
			"gone scsi 8:0:42:0 8:0:42:0 n=1",
			"gone scsi 8:0:43:0 8:0:43:0 n=1",
			"gone block write sdh n=1 lba=1024",
			"refused block discard sdh n=1 lba=0",
			"io-error block write-zeroes sdh n=1 lba=0",
		}},
	{"what others say is not the kernel's word", `
Feb 16 15:21:30 host user[12]: ata1.00: qc timeout after 5000 msecs (cmd 0xec)
Feb 16 15:21:30 host user: kernel: ata1.00: qc timeout after 5000 msecs (cmd 0xec)
Feb 16 15:21:30 host user[12]: x kernel: ata1.00: qc timeout after 5000 msecs (cmd 0xec)
EXT4-fs (sda2): error: ata1.00: qc timeout`,
		[]string{}},
}

func TestLines(t *testing.T) {
	for _, c := range lines {
		t.Run(c.name, func(t *testing.T) {
			got := shown(read(t, c.text))
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

// TestPrefixes: whatever the logger puts in front, the same is read.
func TestPrefixes(t *testing.T) {
	const words = "nvme nvme0: I/O tag 70 (e046) opcode 0x2 (I/O Cmd) QID 6 timeout, aborting req_op:READ(0) size:131072"
	for _, c := range []struct{ prefix, time string }{
		{"", ""},
		{"[  191.641315] ", "191.641315"},
		{"[    5.140900][    T1] ", "5.140900"},
		{"[592.490369][ 1] ", "592.490369"},
		{"<3>[ 1634.000001] ", "1634.000001"},
		{"kern  :warn  : [ 1634.000001] ", "1634.000001"},
		{"[Wed Dec 10 18:58:49 2025] ", "Wed Dec 10 18:58:49 2025"},
		{"2025-12-10T18:58:49,641315+00:00 ", "2025-12-10T18:58:49,641315+00:00"},
		{"4,339,5140900,-;", "5.140900"},
		{"4,339,5140900,-,caller=T1;", "5.140900"},
		{"Dec 10 18:58:49 host kernel: ", "Dec 10 18:58:49"},
		{"Dec 10 18:58:49 kernel: ", "Dec 10 18:58:49"},
		{"Dec  1 18:58:49.123456 host kernel: ", "Dec  1 18:58:49.123456"},
		{"2025-12-10T18:58:49+0100 host kernel: ", "2025-12-10T18:58:49+0100"},
		{"2025-12-10T18:58:49+11:00 kernel: ", "2025-12-10T18:58:49+11:00"},
		{"2025-12-10T18:58:49.123456+01:00 host kernel: [  411.025255] ", "2025-12-10T18:58:49.123456+01:00"},
		{"[  411.025255] host kernel: ", "411.025255"},
		{"1634463961.255819 host kernel: ", "1634463961.255819"},
		{"Wed 2025-12-10 18:58:49 UTC host kernel: ", "Wed 2025-12-10 18:58:49 UTC"},
		{"Feb 16 15:21:30 host kernel: [  411.025255] ", "Feb 16 15:21:30"},
		{"Thu Feb 16 15:21:30 2023 kern.warn kernel: [  411.025255] ", "Thu Feb 16 15:21:30 2023"},
		{"Feb 16 15:21:30 OpenWrt kern.warn kernel: [  411.025255] ", "Feb 16 15:21:30 OpenWrt"},
		{"kernel: ", ""},
	} {
		log := read(t, c.prefix+words+"\r\n")
		if len(log.Symptoms) != 1 || log.Known != 1 {
			t.Errorf("%q: %d symptoms, %d lines known", c.prefix, len(log.Symptoms), log.Known)
			continue
		}
		s := log.Symptoms[0]
		if s.First != (klog.Position{Line: 1, Time: c.time}) || s.Sample != words {
			t.Errorf("%q: at %+v, want time %q; sample %q", c.prefix, s.First, c.time, s.Sample)
		}
	}
}

func TestRecordedLogs(t *testing.T) {
	for file, want := range map[string][]string{
		"testdata/intel-debian-1120831.log": {
			"quirk libata ata1.00 (INTEL SSDSC2KG480G8 XCV10120) zeroaftertrim n=1",
			"timeout libata read ata1.00 (INTEL SSDSC2KG480G8 XCV10120) n=4 bytes=4194304*3,65536*1 incidents=4194304*1 lba=206326352",
		},
		"testdata/dellboss-bugzilla-220693.log": {
			"io-error libata write ata1.00 (DELLBOSS VD MV.R00-0) n=1 bytes=4096*1 lba=1213904",
			"reset libata ata1 (DELLBOSS VD MV.R00-0) n=1",
			"timeout scsi read sda (ATA DELLBOSS VD 00-0) 0:0:0:0 n=1 bytes=8192*1 lba=5244928",
			"io-error block read sda (ATA DELLBOSS VD 00-0) 0:0:0:0 n=1 lba=5244928",
		},
	} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, shown(read(t, string(b)))); d != "" {
			t.Errorf("%s (-want +got)\n%s", file, d)
		}
	}
}

// TestNamesAreThoseOfTheBoot: after a restart, or when a disk took another's
// name, a name means another disk.
func TestNamesAreThoseOfTheBoot(t *testing.T) {
	const text = `[    0.000000] Linux version 6.1.0 (a@b) #1 SMP
[    1.000000] scsi 0:0:0:0: Direct-Access     HGST     HUS726060AL5210  A519 PQ: 0 ANSI: 6
[    1.100000] sd 0:0:0:0: [sda] Attached SCSI disk
[  100.000000] I/O error, dev sda, sector 8 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0
[    0.000000] Linux version 6.18.15 (a@b) #1 SMP
[    1.000000] scsi 1:0:0:0: Direct-Access     ATA      ST380013AS       3.20 PQ: 0 ANSI: 5
[    1.100000] sd 1:0:0:0: [sda] Attached SCSI disk
[    2.100000] I/O error, dev sda1, sector 8 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0
[   50.000000] scsi 2:0:0:0: Direct-Access     Generic  Flash Disk       8.07 PQ: 0 ANSI: 2
[   51.000000] sd 2:0:0:0: [sda] Attached SCSI removable disk
[   52.100000] I/O error, dev sda, sector 8 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 0
`
	log := read(t, text)
	want := []string{
		"io-error block read sda (HGST HUS726060AL5210 A519) 0:0:0:0 n=1 lba=8",
		"io-error block read sda (ATA ST380013AS 3.20) 1:0:0:0 n=1 lba=8",
		"io-error block read sda (Generic Flash Disk 8.07) 2:0:0:0 n=1 lba=8",
	}
	if d := cmp.Diff(want, shown(log)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if log.Boots != 2 {
		t.Errorf("%d boots, want 2", log.Boots)
	}
}

func TestTwins(t *testing.T) {
	log := read(t, `[1.0] ata1.00: ATA-9: WDC WD80EFAX, 83.H0A83, max UDMA/133
[1.1] ata2.00: ATA-9: WDC WD80EFAX, 83.H0A83, max UDMA/133
[1.2] ata3.00: ATA-9: OTHER, 1, max UDMA/133
[0.0] Linux version 6.1.0
[1.2] ata4.00: ATA-9: OTHER, 1, max UDMA/133
`)
	if d := cmp.Diff(map[string]int{"WDC WD80EFAX 83.H0A83": 2}, log.Twins); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// What libata says of its devices, boot by boot, and which kernel said it.
func TestATADevices(t *testing.T) {
	log := read(t, `
[    1.000000] ata9.00: ATA-10: BEFORE ANY START, 1, max UDMA/133
[    0.000000] Linux version 6.1.0-50-amd64 (debian-kernel@lists.debian.org) #1 SMP Debian 6.1.192-3
[    1.000000] ata1.00: ATA-10: ST380013AS, 3.20, max UDMA/133
[    0.000000] Linux version 6.12.94+deb13-amd64 (debian-kernel@lists.debian.org) #1 SMP
[    1.000000] ata1.00: Model 'ST380013AS', rev '3.20', applying quirks: maxsec1024
[    1.000001] ata1.00: ATA-7: ST380013AS, 3.20, max UDMA/133
[    1.000002] ata2.00: ATA-10: ACME DISK, 1.0, max UDMA/133
[    1.000003] ata3.00: Model 'ONE', rev '1', applying quirks: noncq nolpm
[    1.000004] ata3.01: ATA-10: TWO, 2, max UDMA/133
[    9.000000] ata2.00: exception Emask 0x0 SAct 0x0 SErr 0x0 action 0x6
[   20.000000] ata2.00: ATA-10: ACME DISK, 1.0, max UDMA/133
[   30.000000] ata2.00: ATA-10: ANOTHER, 1.0, max UDMA/133
[   40.000000] ata4.00: Model 'LONG', rev '1', applying quirks:`+strings.Repeat(" noncqtrim", 30)+`
[   50.000000] ata5: Model 'A PORT', rev '1', applying quirks: noncq`)
	var got []string
	for _, d := range log.ATA {
		words := strings.Fields(d.Kernel)
		if len(words) > 2 {
			words = words[2:3]
		}
		s := fmt.Sprintf("%d %s %s %s %s", d.Boot, strings.Join(words, ""), d.Name, d.Model, d.Firmware)
		for _, f := range []struct {
			is   bool
			word string
		}{{d.Found, "found"}, {d.Listed, "listed"}, {d.Cut, "cut"}, {d.Alone, "alone"}} {
			if f.is {
				s += " " + f.word
			}
		}
		if d.At.Line == 0 || d.Sample == "" {
			t.Errorf("%s: no place or sample: %+v", s, d)
		}
		if !d.Cut {
			s += " " + strings.Join(d.Quirks, ",")
		}
		got = append(got, strings.TrimSpace(s))
	}
	want := []string{
		"1  ata9.00 BEFORE ANY START 1 found alone",
		"2 6.1.0-50-amd64 ata1.00 ST380013AS 3.20 found alone",
		"3 6.12.94+deb13-amd64 ata1.00 ST380013AS 3.20 found listed alone maxsec1024",
		"3 6.12.94+deb13-amd64 ata2.00 ACME DISK 1.0 found",
		"3 6.12.94+deb13-amd64 ata3.00 ONE 1 listed noncq,nolpm",
		"3 6.12.94+deb13-amd64 ata3.01 TWO 2 found",
		"3 6.12.94+deb13-amd64 ata2.00 ANOTHER 1.0 found",
		"3 6.12.94+deb13-amd64 ata4.00 LONG 1 listed cut alone",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if log.Boots != 3 || !strings.HasPrefix(log.Kernel, "Linux version 6.12.94+deb13-amd64 ") {
		t.Errorf("%d boots, the last of %q", log.Boots, log.Kernel)
	}
	if log := read(t, "[ 100.0] ata1: SATA link up\n[   1.0] ata1.00: ATA-10: A, 1, max UDMA/133\n"); log.Kernel != "" {
		t.Errorf("a boot whose start is not in the log: %q", log.Kernel)
	}
}

func TestCompressedIsRefused(t *testing.T) {
	if _, err := klog.Read(strings.NewReader("\x1f\x8b\x08\x00\x00\x00\x00\x00")); !errors.Is(err, klog.ErrCompressed) {
		t.Errorf("got %v, want %v", err, klog.ErrCompressed)
	}
}

func TestLongLines(t *testing.T) {
	log := read(t, "[1.0] ata1.00: qc timeout after "+strings.Repeat("9", 1<<20)+"\n[2.0] ata1.00: disable device\n"+strings.Repeat("x", 200<<10))
	if d := cmp.Diff([]string{"timeout libata internal ata1.00 n=1", "gone libata ata1.00 n=1"}, shown(log)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if log.Lines != 3 || log.Cut != 2 {
		t.Errorf("%d lines, %d cut; want 3 and 2", log.Lines, log.Cut)
	}
}

// TestMemoryIsBounded reads a log in which every line is something new.
func TestMemoryIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("reads 16 MB")
	}
	const size = 16 << 20
	i := 0
	r := &generator{size: size, line: func(b []byte) []byte {
		i++
		switch i % 5 {
		case 0:
			return fmt.Appendf(b, "[%d.0] ata%d.00: ATA-9: MODEL %d, FW%d, max UDMA/133\n", i, i, i, i)
		case 1:
			return fmt.Appendf(b, "[%d.0] sd %d:0:0:0: [sd%c%c%c] tag#1 FAILED Result: hostbyte=DID_OK\n", i, i, 'a'+i%26, 'a'+i/26%26, 'a'+i/676%26)
		case 2:
			return fmt.Appendf(b, "[%d.0] ata%d.00: exception Emask 0x0 SAct 0x0 SErr 0x0\n", i, i)
		case 3:
			return fmt.Appendf(b, "[%d.0] usb %d-1: New USB device found, idVendor=%04x, idProduct=%04x, bcdDevice= 1.00\n", i, i, i%65536, i/65536)
		}
		return fmt.Appendf(b, "[%d.0] ata1.00: cmd 61/%02x:00:00:00:00/%02x:00:00:00:00/40 tag 1 ncq dma %d out\n", i, i%256, i/256%256, i*512)
	}}
	log, err := klog.Read(r)
	if err != nil {
		t.Fatal(err)
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	if len(log.Symptoms) > 4096 || log.Dropped == 0 || m.HeapAlloc > 64<<20 {
		t.Errorf("%d symptoms, %d dropped, heap of %d bytes", len(log.Symptoms), log.Dropped, m.HeapAlloc)
	}
	runtime.KeepAlive(log)
}

// generator is a log of any length.
type generator struct {
	size int
	line func([]byte) []byte
	buf  []byte
	at   int
}

func (g *generator) Read(b []byte) (int, error) {
	if g.at == len(g.buf) {
		if g.size <= 0 {
			return 0, io.EOF
		}
		g.buf, g.at = g.line(g.buf[:0]), 0
	}
	n := copy(b, g.buf[g.at:])
	g.at += n
	g.size -= n
	return n, nil
}

func FuzzRead(f *testing.F) {
	for _, c := range lines {
		f.Add([]byte(c.text))
	}
	for _, file := range []string{"testdata/intel-debian-1120831.log", "testdata/dellboss-bugzilla-220693.log"} {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("<3>[ 1.0] kernel: sd 0:0:0:0: [sda] tag#1 CDB: Write(6) 0a\nsd 0:0:0:0: [sda] tag#1 Result: hostbyte="))
	f.Fuzz(func(t *testing.T, b []byte) {
		log, err := klog.Read(strings.NewReader(string(b)))
		if err != nil {
			if !errors.Is(err, klog.ErrCompressed) {
				t.Fatal(err)
			}
			return
		}
		for _, d := range log.ATA {
			if d.Boot < 1 || d.Boot > log.Boots || d.At.Line == 0 || d.At.Line > log.Lines || !d.Found && !d.Listed || len(d.Kernel) > 2048 {
				t.Errorf("%+v of %d lines in %d boots", d, log.Lines, log.Boots)
			}
		}
		events := uint64(0)
		for _, s := range log.Symptoms {
			events += s.Count
			if s.Count == 0 || s.First.Line == 0 || s.First.Line > s.Last.Line || s.Last.Line > log.Lines {
				t.Errorf("%+v of %d lines", s, log.Lines)
			}
			sized, incidents := s.Unlisted, uint64(0)
			for _, z := range s.Sizes {
				sized += z.Count
				if (z.Bytes == 0) == (z.Blocks == 0) {
					t.Errorf("size %+v", z)
				}
			}
			for _, z := range s.Incidents {
				incidents += z.Count
			}
			if sized > s.Count || incidents > sized {
				t.Errorf("%d sized, %d incidents, of %d", sized, incidents, s.Count)
			}
			if len(s.Sample) > 1024 || strings.ContainsAny(s.Sample, "\n\r\t") {
				t.Errorf("sample %q", s.Sample)
			}
		}
		// No line is counted twice: a command has one event, whatever its lines.
		if events > log.Lines {
			t.Errorf("%d events of %d lines", events, log.Lines)
		}
		// The end of a line does not matter, nor that the log was cut in the middle.
		if again := read(t, strings.ReplaceAll(string(b), "\n", "\r\n")); len(again.Symptoms) != len(log.Symptoms) && !strings.Contains(string(b), "\r") {
			t.Errorf("with CR: %d symptoms, %d without", len(again.Symptoms), len(log.Symptoms))
		}
	})
}

// BenchmarkRead reads a syslog in which one line in four is of a failure; most
// of a real log is none of ours.
func BenchmarkRead(b *testing.B) {
	var text strings.Builder
	for i := 0; text.Len() < 8<<20; i++ {
		fmt.Fprintf(&text, "Feb 16 15:21:30 host kernel: [%5d.025255] audit: type=1400 audit(1676557290.1:%d): apparmor=\"STATUS\" operation=\"profile_load\"\n", i, i)
		fmt.Fprintf(&text, "Feb 16 15:21:30 host systemd[1]: Started session-%d.scope - Session %d of User root.\n", i, i)
		fmt.Fprintf(&text, "Feb 16 15:21:30 host kernel: [%5d.025256] EXT4-fs (sda2): mounted filesystem with ordered data mode. Quota mode: none.\n", i)
		fmt.Fprintf(&text, "Feb 16 15:21:30 host kernel: [%5d.025257] ata1.00: cmd 61/40:58:00:22:86/05:00:ae:00:00/40 tag 11 ncq 688128 out\n", i)
	}
	log := text.String()
	b.SetBytes(int64(len(log)))
	for b.Loop() {
		if _, err := klog.Read(strings.NewReader(log)); err != nil {
			b.Fatal(err)
		}
	}
}
