package target

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/quirkcheck/quirkcheck/checker/verify"
)

func codes(refusals []Refusal) []string {
	got := []string{}
	for _, r := range refusals {
		got = append(got, r.Code)
	}
	slices.Sort(got)
	return got
}

func noKeys() (int, error) { return 0, ErrNoReservations }

func (k *made) gather(name string) Facts {
	k.t.Helper()
	return Gather(context.Background(), k.machine(), k.resolve(name), Gathering{ReadKeys: noKeys})
}

// image8M has bytes at places of an otherwise blank disk of the size of sdb.
func image8M(parts ...part) []byte { return imageOf(blankSectors*sysSectorBytes, parts...) }

type part struct {
	at   int64 // from the end where negative
	data string
}

func imageOf(size int, parts ...part) []byte {
	b := make([]byte, size)
	for _, p := range parts {
		if p.at < 0 {
			p.at += int64(size)
		}
		copy(b[p.at:], p.data)
	}
	return b
}

// TestDestroy has one change a case to a machine on which the target may be
// overwritten, so each refusal is seen to come from that change alone.
func TestDestroy(t *testing.T) {
	sdb := DevNo{8, 16}
	for _, c := range []struct {
		name   string
		change func(k *made)
		target string // sdb
		c      Consent
		want   []string
		says   string // in one of the refusals
	}{
		{name: "a blank disk", change: func(*made) {}},
		{name: "a size of 0", change: func(k *made) { k.put(k.dir("sdb")+"/size", "0\n") }, want: []string{"no-media"}},
		{name: "read-only", change: func(k *made) { k.put(k.dir("sdb")+"/ro", "1\n") }, want: []string{"read-only"}},
		{name: "a partition of a read-only disk", target: "sdb1", change: func(k *made) {
			k.partition("sdb", "sdb1", DevNo{8, 17}, 64, 1024)
			k.put(k.dir("sdb")+"/ro", "1\n")
		}, want: []string{"read-only"}},
		{name: "removable", change: func(k *made) { k.put(k.dir("sdb")+"/removable", "1\n") }, want: []string{"removable"}},
		{name: "removable, and allowed", c: Consent{Removable: true}, change: func(k *made) { k.put(k.dir("sdb")+"/removable", "1\n") }},
		{name: "host-managed zones", change: func(k *made) { k.put(k.dir("sdb")+"/queue/zoned", "host-managed\n") }, want: []string{"zoned"}},
		{name: "host-aware zones", change: func(k *made) { k.put(k.dir("sdb")+"/queue/zoned", "host-aware\n") }, want: []string{"zoned"}},
		{name: "zones of a kind to come", change: func(k *made) { k.put(k.dir("sdb")+"/queue/zoned", "next\n") }, want: []string{"zoned"}},
		{name: "zones that say nothing", change: func(k *made) { k.put(k.dir("sdb")+"/queue/zoned", "\n") }, want: []string{"unknown-zoned"}},
		{name: "a kernel before zones", change: func(k *made) { delete(k.tree, k.dir("sdb")+"/queue/zoned") }},

		{name: "mounted", change: func(k *made) { k.mount("50 27 8:16 / /data rw - xfs /dev/sdb rw") }, want: []string{"mounted"}, says: "sdb on /data"},
		{name: "mounted under another name", change: func(k *made) { k.mount("50 27 8:16 / /data rw - xfs /dev/root rw") }, want: []string{"mounted"}},
		{name: "a partition mounted", change: func(k *made) {
			k.partition("sdb", "sdb1", DevNo{8, 17}, 64, 1024)
			k.mount(`50 27 8:17 / /my\040data rw - ext4 /dev/sdb1 rw`)
		}, want: []string{"mounted"}, says: "sdb1 on /my data"},
		{name: "another partition mounted", target: "sdb1", change: func(k *made) {
			k.partition("sdb", "sdb1", DevNo{8, 17}, 64, 1024)
			k.partition("sdb", "sdb2", DevNo{259, 3}, 2048, 1024)
			k.mount("50 27 259:3 / /data rw - ext4 /dev/sdb2 rw")
		}, want: []string{"mounted"}, says: "sdb2 on /data"},
		{name: "a volume above a partition mounted", change: func(k *made) {
			k.partition("sdb", "sdb1", DevNo{8, 17}, 64, 1024)
			k.dm("dm-0", DevNo{253, 0}, "crypt", "CRYPT-LUKS2-1", "sdb1")
			k.dm("dm-1", DevNo{253, 1}, "vg-lv", "LVM-1", "dm-0")
			k.mount("50 27 253:1 / /data rw - ext4 /dev/mapper/vg-lv rw")
		}, want: []string{"holder", "mounted"}, says: "dm-1 on /data"},
		{name: "mounted as btrfs, whose device number is nobody's", change: func(k *made) {
			k.mount("50 27 0:44 /@home /data rw - btrfs /dev/sdb rw,subvol=/@home")
		}, want: []string{"mounted"}, says: "sdb on /data"},
		{name: "the second device of a mounted btrfs", change: func(k *made) {
			k.disk("sdc", DevNo{8, 32}, "c", 4096)
			k.mount("50 27 0:44 / /data rw - btrfs /dev/sdc rw")
			k.link("sys/fs/btrfs/6ea4/devices/sdb", up("sys/fs/btrfs/6ea4/devices")+k.dir("sdb"))
			k.link("sys/fs/btrfs/6ea4/devices/sdc", up("sys/fs/btrfs/6ea4/devices")+k.dir("sdc"))
		}, want: []string{"joined", "mounted"}, says: "btrfs 6ea4"},
		{name: "a device of a btrfs that is mounted elsewhere", change: func(k *made) {
			k.link("sys/fs/btrfs/6ea4/devices/sdb", up("sys/fs/btrfs/6ea4/devices")+k.dir("sdb"))
		}, want: []string{"joined"}},
		{name: "a device of a bcachefs", change: func(k *made) {
			k.link("sys/fs/bcachefs/6ea4/dev-0/block", up("sys/fs/bcachefs/6ea4/dev-0")+k.dir("sdb"))
		}, want: []string{"joined"}},
		{name: "mounted as bcachefs over several", change: func(k *made) {
			k.mount("50 27 0:44 / /data rw - bcachefs /dev/sda2:/dev/sdb rw")
		}, want: []string{"mounted"}},
		{name: "the log of a mounted XFS", change: func(k *made) {
			k.mount("50 27 8:1 / /data rw - xfs /dev/sda1 rw,logdev=/dev/sdb,noquota")
		}, want: []string{"mounted"}},
		{name: "mounted in a service's namespace alone", change: func(k *made) {
			k.process(77, "service")
			k.link("proc/77/ns/mnt", "mnt:[4026532999]")
			k.put("proc/77/mountinfo", "90 1 8:16 / /private rw - ext4 /dev/sdb rw\n")
		}, want: []string{"mounted"}, says: "process 77"},
		{name: "an overlay is no mount of what is below", change: func(k *made) {
			k.stats["/low"] = FileStat{Mode: unix.S_IFDIR, Dev: sdb}
			k.mount("50 27 0:44 / /merged rw - overlay overlay rw,lowerdir=/low")
		}},

		{name: "swapped to", change: func(k *made) { k.put("proc/swaps", "Filename Type\n/dev/sdb partition 1 0 -2\n") }, want: []string{"swap"}},
		{name: "swapped to by a link", change: func(k *made) {
			k.stats["/dev/disk/by-label/swap"] = k.stats["/dev/sdb"]
			k.put("proc/swaps", "Filename Type\n/dev/disk/by-label/swap\tpartition 1 0 -2\n")
		}, want: []string{"swap"}},
		{name: "a swap file on it", change: func(k *made) {
			k.stats["/data/my swap"] = FileStat{Mode: unix.S_IFREG, Dev: sdb}
			k.mount("50 27 8:16 / /data rw - ext4 /dev/sdb rw")
			k.put("proc/swaps", `Filename Type`+"\n"+`/data/my\040swap file 1 0 -2`+"\n")
		}, want: []string{"mounted", "swap"}},
		{name: "the resume device", change: func(k *made) { k.put("sys/power/resume", "8:16\n") }, want: []string{"resume-device"}},

		{name: "held by device-mapper", change: func(k *made) { k.dm("dm-0", DevNo{253, 0}, "vg-lv", "LVM-1", "sdb") }, want: []string{"holder"}, says: "logical volume"},
		{name: "a partition held by md", change: func(k *made) {
			k.partition("sdb", "sdb1", DevNo{8, 17}, 64, 1024)
			k.put(k.stacked("md127", DevNo{9, 127}, "sdb1")+"/md/level", "raid1\n")
		}, want: []string{"holder"}, says: "md127 raid1 holds sdb1"},
		{name: "a path of a multipath map", change: func(k *made) { k.dm("dm-0", DevNo{253, 0}, "mpatha", "mpath-3600", "sdb") }, want: []string{"multipath-path"}},
		{name: "a partition of a multipath map is a holder", change: func(k *made) {
			k.dm("dm-0", DevNo{253, 0}, "mpatha", "mpath-3600", "sdb")
			k.dm("dm-1", DevNo{253, 1}, "mpatha1", "part1-mpath-3600", "dm-0")
		}, want: []string{"holder", "multipath-path"}},
		{name: "held by bcache", change: func(k *made) { k.stacked("bcache0", DevNo{252, 0}, "sdb") }, want: []string{"holder"}},
		{name: "a registered bcache cache", change: func(k *made) { k.link(k.dir("sdb")+"/bcache/set", "../x") }, want: []string{"joined"}},
		{name: "a loop device over it", change: func(k *made) {
			k.put(k.disk("loop0", DevNo{7, 0}, "virtual", 64)+"/loop/backing_file", "/dev/sdb\n")
		}, want: []string{"holder"}, says: "loop0 /dev/sdb holds sdb"},
		{name: "a mount above a loop device over it", change: func(k *made) {
			k.put(k.disk("loop0", DevNo{7, 0}, "virtual", 64)+"/loop/backing_file", "/dev/sdb\n")
			k.mount("50 27 7:0 / /data rw - iso9660 /dev/loop0 ro")
		}, want: []string{"holder", "mounted"}},

		{name: "itself device-mapper", target: "dm-0", change: func(k *made) { k.dm("dm-0", DevNo{253, 0}, "vg-lv", "LVM-1", "sdb") }, want: []string{"stacked"}},
		{name: "itself md", target: "md0", change: func(k *made) { k.put(k.stacked("md0", DevNo{9, 0}, "sdb")+"/md/level", "raid1\n") }, want: []string{"stacked"}},

		{name: "a file system", change: func(k *made) { k.bytes[sdb] = image8M(part{0, "XFSB"}) }, want: []string{"signature"}, says: "xfs on sdb"},
		{name: "a file system, and the serial number typed", c: Consent{Serial: true}, change: func(k *made) { k.bytes[sdb] = image8M(part{0, "XFSB"}) }},
		{name: "a volume group's member, whatever is typed", c: Consent{Serial: true, Removable: true, Shared: true}, change: func(k *made) {
			k.bytes[sdb] = image8M(part{512, "LABELONE"}, part{512 + 24, "LVM2 001"})
		}, want: []string{"member"}},
		{name: "a partition's file system is the disk's", change: func(k *made) {
			k.partition("sdb", "sdb1", DevNo{8, 17}, 64, 1024)
			k.bytes[sdb] = image8M(part{64 * 512, "XFSB"})
		}, want: []string{"signature"}, says: "xfs on sdb1"},
		{name: "a member at the end of a partition", c: Consent{Serial: true}, change: func(k *made) {
			k.partition("sdb", "sdb1", DevNo{8, 17}, 64, 1024)
			k.bytes[sdb] = image8M(part{(64 + 1024 - 16) * 512, "\xfc\x4e\x2b\xa9\x01\x00\x00\x00"})
		}, want: []string{"member"}, says: "linux_raid_member on sdb1"},
		{name: "a disk's table does not stand against its blank partition", target: "sdb1", change: func(k *made) {
			k.partition("sdb", "sdb1", DevNo{8, 17}, 64, 1024)
			k.bytes[sdb] = image8M(part{512, "EFI PART"})
		}},

		{name: "the root disk", target: "sda", change: func(k *made) { k.put("sys/power/resume", "0:0\n") }, want: []string{"mounted", "swap", "system-disk"}},
		{name: "a spare partition of the root disk", target: "sda3", change: func(k *made) {
			k.partition("sda", "sda3", DevNo{8, 3}, 1<<20, 1024)
			k.put("proc/swaps", "Filename\n")
			k.put("sys/power/resume", "0:0\n")
		}, want: []string{"mounted", "system-disk"}},
		{name: "the disk under the root's volume", change: func(k *made) {
			k.dm("dm-0", DevNo{253, 0}, "vg-root", "LVM-1", "sdb")
			for _, pid := range []string{"self", "1"} {
				k.put("proc/"+pid+"/mountinfo", "27 1 253:0 / / rw - ext4 /dev/mapper/vg-root rw\n")
			}
		}, want: []string{"holder", "mounted", "system-disk"}},
		{name: "the disk of /boot in the namespace of init", change: func(k *made) {
			k.put("proc/1/mountinfo", "27 1 8:1 / / rw - ext4 /dev/sda1 rw\n28 27 8:16 / /boot rw - ext4 /dev/sdb rw\n")
			k.link("proc/1/ns/mnt", "mnt:[4026530000]")
		}, want: []string{"mounted", "system-disk"}},
		{name: "the disk of a live system's loop file", change: func(k *made) {
			k.put(k.disk("loop0", DevNo{7, 0}, "virtual", 64)+"/loop/backing_file", "/medium/root.squashfs\n")
			k.stats["/medium/root.squashfs"] = FileStat{Mode: unix.S_IFREG, Dev: sdb}
			k.stats["/low"] = FileStat{Mode: unix.S_IFDIR, Dev: DevNo{7, 0}}
			for _, pid := range []string{"self", "1"} {
				k.put("proc/"+pid+"/mountinfo", "27 1 0:40 / / rw - overlay overlay rw,lowerdir=/low,upperdir=/up\n")
			}
		}, want: []string{"system-disk"}},
		{name: "a live system on another disk", change: func(k *made) {
			for _, pid := range []string{"self", "1"} {
				k.put("proc/"+pid+"/mountinfo", "27 1 0:40 / / rw - overlay overlay rw,lowerdir=/low,upperdir=/up\n")
			}
		}},

		{name: "on battery", change: func(k *made) {
			k.put("sys/class/power_supply/AC/online", "0\n")
			k.put("sys/class/power_supply/BAT0/status", "Discharging\n")
		}, want: []string{"on-battery"}},
		{name: "on battery, without a mains entry", change: func(k *made) {
			delete(k.tree, "sys/class/power_supply/AC/online")
			delete(k.tree, "sys/class/power_supply/AC/type")
			k.put("sys/class/power_supply/BAT0/status", "Discharging\n")
		}, want: []string{"on-battery"}},
		{name: "a mouse's battery is not the machine's", change: func(k *made) {
			k.put("sys/class/power_supply/AC/online", "0\n")
			k.put("sys/class/power_supply/BAT0/scope", "Device\n")
			k.put("sys/class/power_supply/BAT0/status", "Discharging\n")
		}},
		{name: "no power supply at all", change: func(k *made) {
			for name := range k.tree {
				if strings.HasPrefix(name, "sys/class/power_supply") {
					delete(k.tree, name)
				}
			}
		}},

		{name: "open by another", change: func(k *made) { k.process(900, "dd", "/dev/sdb") }, want: []string{"open-by-others"}, says: "dd (900) has sdb open"},
		{name: "a partition open by another", change: func(k *made) {
			k.partition("sdb", "sdb1", DevNo{8, 17}, 64, 1024)
			k.process(900, "dd", "/dev/sdb1")
		}, want: []string{"open-by-others"}},
		{name: "open under another name, as in a container", change: func(k *made) {
			k.stats["/mnt/node"] = k.stats["/dev/sdb"]
			k.process(900, "dd", "/mnt/node")
		}, want: []string{"open-by-others"}},
		{name: "open by its pass-through node", change: func(k *made) {
			k.put(k.dir("sdb")+"/device/scsi_generic/sg1/dev", "21:1\n")
			k.stats["/dev/sg1"] = FileStat{Mode: unix.S_IFCHR, Rdev: DevNo{21, 1}}
			k.process(900, "sg_dd", "/dev/sg1")
		}, want: []string{"open-by-others"}},
		{name: "a character device of the same number is another", change: func(k *made) {
			k.stats["/dev/other"] = FileStat{Mode: unix.S_IFCHR, Rdev: sdb}
			k.process(900, "cat", "/dev/other")
		}},
		{name: "open by a virtual machine", change: func(k *made) { k.process(900, "qemu-system-x86", "/dev/sdb") }, want: []string{"guest-disk"}},
		{name: "open by this process", change: func(k *made) { k.process(os.Getpid(), "quirkcheck", "/dev/sdb") }},
		{name: "another disk open", change: func(k *made) { k.process(900, "dd", "/dev/sda") }},

		{name: "Fibre Channel", target: "sdf", change: func(k *made) {
			k.disk("sdf", DevNo{8, 80}, "pci0000:00/host3/rport-3:0-0/target3:0:0/3:0:0:0", 4096)
		}, want: []string{"shared-lun"}},
		{name: "Fibre Channel by its host", target: "sdf", change: func(k *made) {
			k.disk("sdf", DevNo{8, 80}, "pci0000:00/host3/target3:0:0/3:0:0:0", 4096)
			k.put("sys/class/fc_host/host3/port_name", "0x1\n")
		}, want: []string{"shared-lun"}},
		{name: "iSCSI", target: "sdf", change: func(k *made) {
			k.disk("sdf", DevNo{8, 80}, "platform/host4/session1/target4:0:0/4:0:0:0", 4096)
		}, want: []string{"shared-lun"}, says: "iscsi"},
		{name: "iSCSI, and allowed", target: "sdf", c: Consent{Shared: true}, change: func(k *made) {
			k.disk("sdf", DevNo{8, 80}, "platform/host4/session1/target4:0:0/4:0:0:0", 4096)
		}},
		{name: "NVMe over TCP", target: "nvme1n1", change: func(k *made) {
			dir := strings.TrimSuffix(k.disk("nvme1n1", DevNo{259, 9}, "virtual/nvme-fabrics/ctl/nvme1", 4096), "/nvme1n1")
			k.put(dir+"/transport", "tcp\n")
		}, want: []string{"shared-lun"}},
		{name: "NVMe on PCIe", target: "nvme0n1", change: func(k *made) {
			dir := strings.TrimSuffix(k.disk("nvme0n1", DevNo{259, 0}, "pci0000:00/0000:01:00.0/nvme/nvme0", 4096), "/nvme0n1")
			k.put(dir+"/transport", "pcie\n")
		}},
		{name: "NVMe of a subsystem with a path over TCP", target: "nvme0n1", change: func(k *made) {
			dir := strings.TrimSuffix(k.disk("nvme0n1", DevNo{259, 0}, "virtual/nvme-subsystem/nvme-subsys0", 4096), "/nvme0n1")
			k.put(dir+"/nvme2/transport", "pcie\n")
			k.put(dir+"/nvme3/transport", "tcp\n")
		}, want: []string{"shared-lun"}},
		{name: "an NVMe namespace without a controller", target: "nvme0n1", change: func(k *made) {
			k.disk("nvme0n1", DevNo{259, 0}, "virtual/nvme-subsystem/nvme-subsys0", 4096)
		}, want: []string{"unknown-shared"}},

		{name: "exported by the NVMe target", change: func(k *made) {
			k.put("sys/kernel/config/nvmet/subsystems/nqn/namespaces/1/device_path", "/dev/sdb\n")
		}, want: []string{"exported"}},
		{name: "exported by LIO", change: func(k *made) {
			k.put("sys/kernel/config/target/core/iblock_0/disk/udev_path", "/dev/sdb\n")
		}, want: []string{"exported"}},
		{name: "an export of another disk", change: func(k *made) {
			k.put("sys/kernel/config/target/core/iblock_0/disk/udev_path", "/dev/sda\n")
		}},
		{name: "a target whose configuration is hidden", change: func(k *made) { k.put("sys/module/nvmet/refcnt", "1\n") }, want: []string{"unknown-exports"}},

		{name: "a loop device over a file of the root disk", target: "loop0", change: func(k *made) {
			k.put(k.disk("loop0", DevNo{7, 0}, "virtual", 4096)+"/loop/backing_file", "/srv/x.img\n")
			k.stats["/srv/x.img"] = FileStat{Mode: unix.S_IFREG, Dev: DevNo{8, 1}, MountID: 27}
		}},
		{name: "a loop device over a disk", target: "loop0", change: func(k *made) {
			k.put(k.disk("loop0", DevNo{7, 0}, "virtual", 4096)+"/loop/backing_file", "/dev/sdb\n")
		}, want: []string{"loop-on-device"}},
		{name: "a loop device over a file that is nowhere to be seen", target: "loop0", change: func(k *made) {
			k.put(k.disk("loop0", DevNo{7, 0}, "virtual", 4096)+"/loop/backing_file", "/elsewhere/x.img\n")
		}, want: []string{"unknown-backing"}},
		{name: "a loop device over a file that was removed", target: "loop0", change: func(k *made) {
			k.put(k.disk("loop0", DevNo{7, 0}, "virtual", 4096)+"/loop/backing_file", "/srv/x.img (deleted)\n")
		}},
		{name: "nbd with a connection held by its client", target: "nbd0", change: func(k *made) {
			k.put(k.disk("nbd0", DevNo{43, 0}, "virtual", 4096)+"/pid", "901\n")
			k.put("proc/901/status", "Name:\tnbd\nTgid:\t900\n")
			k.process(900, "nbd-client", "/dev/nbd0")
		}},
		{name: "nbd without connection", target: "nbd0", change: func(k *made) {
			k.disk("nbd0", DevNo{43, 0}, "virtual", 4096)
		}, want: []string{"not-connected"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := newMade(t)
			c.change(k)
			if c.target == "" {
				c.target = "sdb"
			}
			f := k.gather(c.target)
			got := Decide(f, verify.ModeDestroy, c.c)
			if c.want == nil {
				c.want = []string{}
			}
			if diff := cmp.Diff(c.want, codes(got)); diff != "" {
				t.Errorf("refusals (-want +got):\n%s%+v", diff, got)
			}
			if !slices.ContainsFunc(got, func(r Refusal) bool { return strings.Contains(r.Error(), c.says) }) && c.says != "" {
				t.Errorf("no refusal says %q: %+v", c.says, got)
			}
			for _, r := range got {
				if r.What == "" || r.Why == "" {
					t.Errorf("a refusal without words: %+v", r)
				}
			}
		})
	}
}

// TestUnreadableRefuses takes away, one by one, what questions read.
func TestUnreadableRefuses(t *testing.T) {
	sdb := newMade(t).dir("sdb")
	for _, c := range []struct{ file, code string }{
		{sdb + "/ro", "unknown-read-only"},
		{sdb + "/removable", "unknown-removable"},
		{sdb + "/queue/zoned", "unknown-zoned"},
		{sdb + "/slaves", "unknown-members"},
		{sdb + "/holders", "unknown-holders"},
		{sdb + "/queue/logical_block_size", "unknown-signatures"},
		{"proc/self/mountinfo", "unknown-mounts"},
		{"proc/1/ns/mnt", "unknown-mounts"},
		{"dev/btrfs", "unknown-mounts"},
		{"proc/swaps", "unknown-swap"},
		{"dev/sda2", "unknown-swap"},
		{"sys/dev/block/8:1", "unknown-system"},
		{"sys/power/resume", "unknown-resume"},
		{"sys/class/power_supply", "unknown-power"},
		{"sys/class/power_supply/AC/online", "unknown-power"},
		{"proc/1/fd", "unknown-openers"},
		{"proc/900/fd/3", "unknown-openers"},
		{"proc", "unknown-openers"},
		{"sys/kernel/config/nvmet/subsystems", "unknown-exports"},
		{"sys/fs/btrfs", "unknown-holders"},
		{"sys/block", "unknown-holders"},
	} {
		k := newMade(t)
		k.put("sys/kernel/config/nvmet/subsystems/x/y", "")
		k.stats["/dev/btrfs"] = k.stats["/dev/sda2"]
		k.mount("60 27 0:50 / /b rw - btrfs /dev/btrfs rw")
		k.process(900, "dd", "/dev/null")
		k.stats["/proc/900/fd/3"] = FileStat{Mode: unix.S_IFCHR, Rdev: DevNo{1, 3}}
		if got := codes(Decide(k.gather("sdb"), verify.ModeDestroy, Consent{})); len(got) > 0 {
			t.Fatalf("with all readable: %v", got)
		}
		tgt := k.resolve("sdb")
		k.deny[c.file] = fs.ErrPermission
		f := Gather(context.Background(), k.machine(), tgt, Gathering{ReadKeys: noKeys})
		got := Decide(f, verify.ModeDestroy, Consent{Removable: true, Shared: true, Serial: true})
		i := slices.IndexFunc(got, func(r Refusal) bool { return r.Code == c.code })
		if i < 0 {
			t.Errorf("without %s: got %v, want %s", c.file, codes(got), c.code)
		} else if !strings.HasPrefix(got[i].Hint, "run as root") && c.file != "sys/block" {
			t.Errorf("without %s: hint %q, want one to run as root", c.file, got[i].Hint)
		}
	}
}

func TestUnknownRefuses(t *testing.T) {
	good := newMade(t).gather("sdb")
	if got := Decide(good, verify.ModeDestroy, Consent{}); len(got) > 0 {
		t.Fatalf("a blank disk: %+v", got)
	}
	if len(whether) != len(good.Asked) {
		t.Errorf("%d questions are asked, %d have words", len(good.Asked), len(whether))
	}
	for q := range good.Asked {
		for _, err := range []error{errors.New("torn"), nil} {
			f := good
			f.Asked = map[Question]error{}
			for k, v := range good.Asked {
				f.Asked[k] = v
			}
			if err == nil {
				delete(f.Asked, q)
			} else {
				f.Asked[q] = err
			}
			got := Decide(f, verify.ModeDestroy, Consent{Removable: true, Shared: true, Serial: true})
			if want := []string{"unknown-" + string(q)}; !slices.Equal(codes(got), want) {
				t.Errorf("%s with %v: got %v, want %v", q, err, codes(got), want)
			} else if !strings.Contains(got[0].Why, "could not tell ") {
				t.Errorf("%s: %q does not say that it could not tell", q, got[0].Why)
			}
		}
	}
	if got := Decide(Facts{Sectors: 8}, verify.ModeDestroy, Consent{Removable: true, Shared: true, Serial: true}); len(got) != len(whether) {
		t.Errorf("nothing asked: %d refusals, want %d", len(got), len(whether))
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	k := newMade(t)
	f := Gather(ctx, k.machine(), k.resolve("sdb"), Gathering{})
	if got := Decide(f, verify.ModeDestroy, Consent{}); len(got) != len(whether) {
		t.Errorf("cancelled: %d refusals, want %d", len(got), len(whether))
	}
}

func TestOtherModes(t *testing.T) {
	k := newMade(t)
	k.dm("dm-0", DevNo{253, 0}, "vg-lv", "LVM-1", "sdb")
	k.dm("dm-1", DevNo{253, 1}, "crypt", "CRYPT-1", "dm-0")
	k.disk("sr0", DevNo{11, 0}, "x/target5:0:0/5:0:0:0", 0)
	k.put(k.dir("sr0")+"/ro", "1\n")
	for _, c := range []struct {
		name, target string
		mode         verify.Mode
		want         []string
		hint         string
	}{
		{"a mounted root disk may be read", "sda", verify.ModeReadOnly, []string{}, ""},
		{"a file may lie on the root disk", "sda1", verify.ModeFile, []string{}, ""},
		{"nothing to read in an empty drive", "sr0", verify.ModeReadOnly, []string{"no-media"}, ""},
		{"no file in an empty drive", "sr0", verify.ModeFile, []string{"no-media", "read-only"}, ""},
		{"a stack is read at its disks, not at what lies between", "dm-1", verify.ModeReadOnly, []string{"stacked"}, "dm-0, sdb"},
		{"no file on a stack", "dm-1", verify.ModeFile, []string{"stacked"}, "dm-0, sdb"},
	} {
		got := Decide(k.gather(c.target), c.mode, Consent{})
		if !slices.Equal(codes(got), c.want) || c.hint != "" && !strings.Contains(got[0].Hint, c.hint) {
			t.Errorf("%s: got %+v, want %v naming %q", c.name, got, c.want, c.hint)
		}
	}
	// Without a size nothing can be read; without knowing the mounts it can.
	f := k.gather("sda")
	f.Asked[AskMounts] = errors.New("torn")
	if got := Decide(f, verify.ModeReadOnly, Consent{}); len(got) > 0 {
		t.Errorf("unknown mounts, read-only: %+v", got)
	}
	f.Asked[AskSize] = errors.New("torn")
	if got := codes(Decide(f, verify.ModeReadOnly, Consent{})); !slices.Equal(got, []string{"unknown-size"}) {
		t.Errorf("unknown size, read-only: %v", got)
	}
}

func TestReservationKeys(t *testing.T) {
	torn := errors.New("torn")
	const local, san = "pci0000:00/ata9/host3/target3:0:0/3:0:0:0", "pci0000:00/host3/target3:0:0/3:0:0:0"
	for _, c := range []struct {
		name, folder string
		keys         func() (int, error)
		c            Consent
		want         []string
	}{
		{"none", san, func() (int, error) { return 0, nil }, Consent{}, []string{}},
		{"no such command", san, noKeys, Consent{}, []string{}},
		{"two, whatever is allowed", san, func() (int, error) { return 2, nil }, Consent{Shared: true, Serial: true}, []string{"reservation-keys"}},
		{"could not be read", san, func() (int, error) { return 0, torn }, Consent{Shared: true}, []string{"unknown-reservation-keys"}},
		{"nobody to read them", san, nil, Consent{Shared: true}, []string{"unknown-reservation-keys"}},
		{"not asked of a SATA disk", local, func() (int, error) { panic("asked") }, Consent{}, []string{}},
		{"a SATA disk needs no reader", local, nil, Consent{}, []string{}},
	} {
		k := newMade(t)
		k.disk("sdk", DevNo{8, 160}, c.folder, 4096)
		f := Gather(context.Background(), k.machine(), k.resolve("sdk"), Gathering{ReadKeys: c.keys})
		if got := codes(Decide(f, verify.ModeDestroy, c.c)); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestStateFolder(t *testing.T) {
	for _, c := range []struct {
		name string
		st   FileStat
		line string
		want []string
	}{
		{"on the disk", FileStat{Dev: DevNo{8, 16}}, "", []string{"system-disk"}},
		{"on a btrfs of the disk", FileStat{Dev: DevNo{0, 99}, MountID: 50}, "50 27 0:44 / /srv rw - btrfs /dev/sdb rw", []string{"mounted", "system-disk"}},
		{"on a btrfs of the disk, on an old kernel", FileStat{Dev: DevNo{0, 99}}, "50 27 0:44 / /srv rw - btrfs /dev/sdb rw", []string{"mounted", "system-disk"}},
		{"elsewhere", FileStat{Dev: DevNo{8, 1}}, "", []string{}},
		{"on NFS", FileStat{Dev: DevNo{0, 60}, MountID: 50}, "50 27 0:60 / /srv rw - nfs4 host:/x rw", []string{}},
		{"on a mount that is not listed", FileStat{Dev: DevNo{0, 60}, MountID: 1234}, "", []string{"unknown-system"}},
	} {
		k := newMade(t)
		c.st.Mode = unix.S_IFDIR
		k.stats["/srv/state"] = c.st
		if c.line != "" {
			k.mount(c.line)
		}
		// The folder itself is not made yet.
		o := Gathering{StateDir: "/srv/state/new", ReadKeys: noKeys}
		if got := codes(Decide(Gather(context.Background(), k.machine(), k.resolve("sdb"), o), verify.ModeDestroy, Consent{})); !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}

func TestDisks(t *testing.T) {
	k := newMade(t)
	k.dm("dm-0", DevNo{253, 0}, "vg-lv", "LVM-1", "sdb", "sda2")
	k.stats["/srv/j"] = FileStat{Mode: unix.S_IFREG, Dev: DevNo{253, 0}}
	k.stats["/loop/j"] = FileStat{Mode: unix.S_IFREG, Dev: DevNo{7, 0}}
	k.put(k.disk("loop0", DevNo{7, 0}, "virtual", 4096)+"/loop/backing_file", "/srv/j\n")
	for _, c := range []struct {
		name string
		want []string
	}{
		{"/srv/j", []string{"dm-0", "sda", "sdb"}},
		{"/loop/j", []string{"dm-0", "loop0", "sda", "sdb"}},
		{"/tmp", []string{}},
		{"/", []string{"sda"}},
	} {
		got, err := Disks(k.machine(), c.name)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("Disks(%s) = %v, %v; want %v", c.name, got, err, c.want)
		}
	}
}

func TestRecheck(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(k *made)
		want   []string
	}{
		{"nothing changed", func(*made) {}, []string{}},
		{"mounted meanwhile", func(k *made) { k.mount("50 27 8:16 / /data rw - xfs /dev/sdb rw") }, []string{"mounted"}},
		{"another size", func(k *made) { k.put(k.dir("sdb")+"/size", "2048\n") }, []string{"changed"}},
		{"another disk under the name", func(k *made) { k.put(k.dir("sdb")+"/diskseq", "8\n") }, []string{"changed"}},
		{"another serial number", func(k *made) { k.put(k.dir("sdb")+"/device/serial", "OTHER") }, []string{"changed"}},
		{"the node is another disk's", func(k *made) {
			k.stats["/dev/sdb"] = k.stats["/dev/sda"]
			k.put("sys/power/resume", "0:0\n")
		}, []string{"changed", "mounted", "swap", "system-disk"}},
		{"the node is gone", func(k *made) { delete(k.stats, "/dev/sdb") }, []string{"changed"}},
	} {
		k := newMade(t)
		k.put(k.dir("sdb")+"/device/serial", "ONE") // else the size stands in its place
		before := k.gather("sdb")
		c.change(k)
		_, got := Recheck(context.Background(), k.machine(), before, -1, Gathering{ReadKeys: noKeys}, verify.ModeDestroy, Consent{})
		if !slices.Equal(codes(got), c.want) {
			t.Errorf("%s: got %+v, want %v", c.name, got, c.want)
		}
	}
	k := newMade(t)
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, got := Recheck(context.Background(), k.machine(), k.gather("sdb"), int(f.Fd()), Gathering{ReadKeys: noKeys}, verify.ModeDestroy, Consent{})
	if want := []string{"changed"}; !slices.Equal(codes(got), want) {
		t.Errorf("a claimed file that is another: got %+v, want %v", got, want)
	}
}

func TestNotes(t *testing.T) {
	k := newMade(t)
	k.put(k.disk("loop0", DevNo{7, 0}, "virtual", blankSectors)+"/loop/backing_file", "/srv/x.img\n")
	k.stats["/srv/x.img"] = FileStat{Mode: unix.S_IFREG, Dev: DevNo{8, 1}}
	k.bytes[DevNo{7, 0}] = image8M(part{0, "XFSB"})
	want := []string{
		"loop0 is the file /srv/x.img, which lies on sda: it is the file that is overwritten",
		"lost when overwritten: xfs on loop0",
	}
	if diff := cmp.Diff(want, k.gather("loop0").Notes()); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
}

// TestUnreadableHidesNothing: what can be read is told beside what cannot.
func TestUnreadableHidesNothing(t *testing.T) {
	k := newMade(t)
	k.process(900, "dd", "/dev/sdb")
	k.process(910, "service")
	k.link("proc/910/ns/mnt", "mnt:[4026532999]")
	k.put("proc/910/mountinfo", "90 1 8:16 / /private rw - ext4 /dev/sdb rw\n")
	k.put("proc/swaps", "Filename\n/dev/gone partition\n/dev/sdb partition\n")
	k.deny["proc/1/fd"] = fs.ErrPermission
	k.deny["proc/1/ns/mnt"] = fs.ErrPermission
	want := []string{"mounted", "open-by-others", "swap", "unknown-mounts", "unknown-openers", "unknown-swap"}
	if got := codes(Decide(k.gather("sdb"), verify.ModeDestroy, Consent{})); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestContainerCannotTell(t *testing.T) {
	k := newMade(t)
	k.link("proc/self/ns/pid", "pid:[4026532000]")
	if got := codes(Decide(k.gather("sdb"), verify.ModeDestroy, Consent{})); !slices.Equal(got, []string{"unknown-openers"}) {
		t.Errorf("in a PID namespace: got %v", got)
	}
}

func TestParseMountinfo(t *testing.T) {
	got, err := parseMountinfo([]byte(`36 35 98:0 /mnt1 /mnt\0402 rw,noatime master:1 shared:7 - ext3 /dev/ro\134ot rw,errors=continue
37 35 0:30 / /x rw - tmpfs  rw
38 35 0:31 / /gone//deleted rw - nfs host:/a\011b rw,addr=1
`))
	want := []mount{
		{id: 36, dev: DevNo{98, 0}, point: "/mnt 2", fstype: "ext3", source: `/dev/ro\ot`, super: "rw,errors=continue"},
		{id: 37, dev: DevNo{0, 30}, point: "/x", fstype: "tmpfs", super: "rw"},
		{id: 38, dev: DevNo{0, 31}, point: "/gone", fstype: "nfs", source: "host:/a\tb", super: "rw,addr=1", deleted: true},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(mount{})); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	for _, bad := range []string{"x", "36 35 98:0 / / rw", "36 35 98 / / rw - a b c", "x 35 98:0 / / rw - a b c", "36 35 98:0 / / rw - a"} {
		if got, err := parseMountinfo([]byte("27 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + bad + "\n")); err == nil {
			t.Errorf("%q: no error, %+v", bad, got)
		}
	}
}

func FuzzMountinfo(f *testing.F) {
	f.Add([]byte("36 35 98:0 /mnt1 /mnt\\0402 rw,noatime master:1 - ext3 /dev/root rw\n"))
	f.Add([]byte("37 35 0:30 / /x rw - tmpfs  rw"))
	f.Fuzz(func(t *testing.T, text []byte) {
		mnts, err := parseMountinfo(text)
		lines := 0
		for line := range bytes.Lines(text) {
			if len(bytes.TrimSuffix(line, []byte{'\n'})) > 0 {
				lines++
			}
		}
		// No line may be passed over in silence.
		if err == nil && len(mnts) != lines {
			t.Errorf("%d lines gave %d mounts", lines, len(mnts))
		}
	})
}

// ext builds an ext superblock.
func ext(compat, incompat, roCompat uint32) part {
	b := make([]byte, 0x68)
	copy(b[0x38:], "\x53\xef")
	binary.LittleEndian.PutUint32(b[0x5c:], compat)
	binary.LittleEndian.PutUint32(b[0x60:], incompat)
	binary.LittleEndian.PutUint32(b[0x64:], roCompat)
	return part{1024, string(b)}
}

func bootSector(b ...part) part {
	return part{0, string(imageOf(512, append(b, part{510, "\x55\xaa"})...))}
}

func TestSignatures(t *testing.T) {
	const mib8 = 8 << 20
	fat := []part{{0, "\xeb\x58\x90"}, {11, "\x00\x02\x08\x20\x00\x02"}, {21, "\xf8"}}
	md := "\xfc\x4e\x2b\xa9\x01\x00\x00\x00"
	nvlist := "\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\x24\x00\x00\x00\x20\x00\x00\x00\x07version\x00"
	uberblock := "\x0c\xb1\xba\x00\x00\x00\x00\x00"
	const jsb = "_BHRfS_M"
	for _, c := range []struct {
		kind  string
		class Class
		at    int64
		parts []part
		// near is like it and is not it.
		near []part
	}{
		{"dos", ClassTable, 0, []part{bootSector(part{446, "\x80"})}, []part{bootSector(part{446, "\x81"})}},
		{"dos", ClassTable, 0, []part{bootSector(part{446 + 48, "\x00\x01\x01\x00\xee"})}, []part{{446 + 48, "\x00\x01\x01\x00\xee"}}},
		{"gpt", ClassTable, 512, []part{{512, "EFI PART"}}, []part{{1024, "EFI PART"}}},
		{"gpt", ClassTable, 4096, []part{{4096, "EFI PART"}}, []part{{512, "EFI PARK"}}},
		{"gpt", ClassTable, mib8 - 512, []part{{-512, "EFI PART"}}, []part{{-1024, "EFI PART"}}},
		{"gpt", ClassTable, mib8 - 4096, []part{{-4096, "EFI PART"}}, []part{{-4096, "EFI"}}},
		{"sun", ClassTable, 508, []part{{508, "\xda\xbe"}}, []part{{508, "\xbe\xda"}}},
		{"sgi", ClassTable, 0, []part{{0, "\x0b\xe5\xa9\x41"}}, []part{{0, "\x41\xa9\xe5\x0b"}}},
		{"bsd", ClassTable, 512, []part{{512, "\x57\x45\x56\x82"}}, []part{{512, "\x82\x56\x45\x57"}}},
		{"mac", ClassTable, 512, []part{{512, "PM\x00\x00"}}, []part{{512, "PMxx"}}},
		{"ext2", ClassFileSystem, 1080, []part{ext(0, 2, 1)}, []part{{1080, "\xef\x53"}}},
		{"ext3", ClassFileSystem, 1080, []part{ext(4, 6, 3)}, nil},
		{"ext4", ClassFileSystem, 1080, []part{ext(4, 0x2c2, 0x46b)}, nil},
		{"ext4", ClassFileSystem, 1080, []part{ext(0, 2, 8)}, nil}, // ro_compat alone tells
		{"jbd", ClassMember, 1080, []part{ext(0, 8, 0)}, nil},
		{"xfs", ClassFileSystem, 0, []part{{0, "XFSB"}}, []part{{512, "XFSB"}}},
		{"btrfs", ClassFileSystem, 65600, []part{{65536 + 0x40, jsb}, {65536 + 0x88, "\x01"}}, []part{{65536, jsb}}},
		{"btrfs", ClassMember, 65600, []part{{65536 + 0x40, jsb}, {65536 + 0x88, "\x02"}}, nil},
		{"swap", ClassSwap, 4086, []part{{4086, "SWAPSPACE2"}}, []part{{4087, "SWAPSPACE2"}}},
		{"swap", ClassSwap, 65526, []part{{65526, "SWAPSPACE2"}}, []part{{4086, "SWAPSPACE3"}}},
		{"swap", ClassSwap, 8182, []part{{8182, "SWAP-SPACE"}}, []part{{6134, "SWAP-SPACE"}}},
		{"swsuspend", ClassSwap, 4086, []part{{4086, "S1SUSPEND"}}, []part{{4086, "S3SUSPEND"}}},
		{"swsuspend", ClassSwap, 4086, []part{{4086, "LINHIB0001"}}, []part{{4086, "LINHIB0000"}}},
		{"swsuspend", ClassSwap, 4086, []part{{4086, "ULSUSPEND"}}, []part{{4086, "ULSUSPENX"}}},
		{"swsuspend", ClassSwap, 0, []part{{0, "\xed\xc3\x02\xe9\x98\x56\xe5\x0c"}}, nil},
		{"LVM2_member", ClassMember, 0, []part{{0, "LABELONE"}, {24, "LVM2 001"}}, []part{{0, "LABELONE"}}},
		{"LVM2_member", ClassMember, 1536, []part{{1536, "LABELONE"}, {1560, "LVM2 001"}}, []part{{2048, "LABELONE"}, {2072, "LVM2 001"}}},
		{"linux_raid_member", ClassMember, 0, []part{{0, md}}, []part{{512, md}}},
		{"linux_raid_member", ClassMember, 4096, []part{{4096, md}}, []part{{4096, "\xfc\x4e\x2b\xa9\x02"}}},
		{"linux_raid_member", ClassMember, mib8 - 8192, []part{{-8192, md}}, []part{{-8192 + 512, md}}},
		{"linux_raid_member", ClassMember, mib8 - 65536, []part{{-65536, "\xfc\x4e\x2b\xa9\x00\x00\x00\x00\x5a"}}, []part{{-65536, md}}},
		{"linux_raid_member", ClassMember, mib8 - 65536, []part{{-65536, "\xa9\x2b\x4e\xfc\x00\x00\x00\x00"}}, []part{{-65536, "\xa9\x2b\x4e\xfc\x00\x00\x00\x01"}}},
		{"crypto_LUKS", ClassEncryption, 0, []part{{0, "LUKS\xba\xbe\x00\x01"}}, []part{{0, "LUKS\xba\xbe\x00\x03"}}},
		{"crypto_LUKS", ClassEncryption, 0, []part{{0, "LUKS\xba\xbe\x00\x02"}}, []part{{0, "LUKS\xbe\xba\x00\x02"}}},
		{"crypto_LUKS", ClassEncryption, 0x4000, []part{{0x4000, "SKUL\xba\xbe\x00\x02"}}, []part{{0x5000, "SKUL\xba\xbe\x00\x02"}}},
		{"crypto_LUKS", ClassEncryption, 0x400000, []part{{0x400000, "SKUL\xba\xbe\x00\x02"}}, nil},
		{"BitLocker", ClassEncryption, 3, []part{{0, "\xeb\x58\x90-FVE-FS-"}}, []part{{0, "-FVE-FS-"}}},
		{"bcache", ClassMember, 4120, []part{{4120, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"}}, []part{{4120, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x80"}}},
		{"bcachefs", ClassMember, 4120, []part{{4120, "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"}}, nil},
		{"zfs_member", ClassMember, 16 << 10, []part{{16 << 10, nvlist}}, []part{{16 << 10, "\x02" + nvlist[1:]}}},
		{"zfs_member", ClassMember, 256<<10 + 16<<10, []part{{256<<10 + 16<<10, nvlist}}, []part{{16 << 10, nvlist[:12]}}},
		{"zfs_member", ClassMember, 128<<10 + 5<<10, []part{{128<<10 + 5<<10, uberblock}}, []part{{128<<10 + 512, uberblock}}},
		{"zfs_member", ClassMember, mib8 - 512<<10 + 128<<10, []part{{-512<<10 + 128<<10, uberblock}}, []part{{-512<<10 + 127<<10, uberblock}}},
		{"zfs_member", ClassMember, mib8 - 1<<10, []part{{-1 << 10, "\x00\x00\x00\x00\x00\xba\xb1\x0c"}}, []part{{-1 << 10, "\x00\x00\x00\x00\x00\xba\xb1\x0d"}}},
		{"ntfs", ClassFileSystem, 3, []part{{0, "\xeb\x52\x90NTFS    "}, {510, "\x55\xaa"}}, []part{{0, "\xeb\x52\x90NTFT    "}}},
		{"exfat", ClassFileSystem, 3, []part{{0, "\xeb\x76\x90EXFAT   "}}, []part{{0, "EXFAT   "}}},
		{"ReFS", ClassFileSystem, 0, []part{{0, "\x00\x00\x00ReFS\x00"}}, []part{{0, "ReFS"}}},
		{"vfat", ClassFileSystem, 0x52, []part{{0x52, "FAT32   "}}, []part{{0x52, "FAT33   "}}},
		{"vfat", ClassFileSystem, 0x36, []part{{0x36, "FAT16   "}}, []part{{0x36, "FAT17   "}}},
		{"vfat", ClassFileSystem, 0x36, []part{{0x36, "FAT12   "}}, []part{{0x36, "FAT12"}}},
		{"vfat", ClassFileSystem, 0, []part{bootSector(fat...)}, fat}, // without name, and without its last two bytes
		{"iso9660", ClassFileSystem, 32769, []part{{32769, "CD001"}}, []part{{32768, "CD001"}}},
		{"udf", ClassFileSystem, 32769, []part{{32769, "BEA01"}}, []part{{32769, "BEA02"}}},
		{"f2fs", ClassFileSystem, 1024, []part{{1024, "\x10\x20\xf5\xf2"}}, []part{{1024, "\xf2\xf5\x20\x10"}}},
		{"f2fs", ClassFileSystem, 5120, []part{{5120, "\x10\x20\xf5\xf2"}}, []part{{4096, "\x10\x20\xf5\xf2"}}},
		{"squashfs", ClassFileSystem, 0, []part{{0, "hsqs"}}, []part{{0, "hsqt"}}},
		{"erofs", ClassFileSystem, 1024, []part{{1024, "\xe2\xe1\xf5\xe0"}}, []part{{1024, "\xe0\xf5\xe1\xe2"}}},
		{"jfs", ClassFileSystem, 32768, []part{{32768, "JFS1"}}, []part{{32768, "JFS2"}}},
		{"reiserfs", ClassFileSystem, 65588, []part{{65588, "ReIsEr2Fs"}}, []part{{65588, "ReIsEr4Fs"}}},
		{"apfs", ClassFileSystem, 32, []part{{32, "NXSB"}}, []part{{0, "NXSB"}}},
		{"hfsplus", ClassFileSystem, 1024, []part{{1024, "H+\x00\x04"}}, []part{{1024, "H+\x00\x05"}}},
		{"gfs2", ClassMember, 65536, []part{{65536, "\x01\x16\x19\x70"}}, []part{{65536, "\x70\x19\x16\x01"}}},
		{"ocfs2", ClassMember, 4096, []part{{4096, "OCFSV2"}}, []part{{4096, "OCFSV3"}}},
		{"oracleasm", ClassMember, 32, []part{{32, "ORCLDISK"}}, []part{{0, "ORCLDISK"}}},
		{"VMFS_volume_member", ClassMember, 1 << 20, []part{{1 << 20, "\x0d\xd0\x01\xc0"}}, []part{{1 << 20, "\xc0\x01\xd0\x0d"}}},
		{"VMFS", ClassMember, 2 << 20, []part{{2 << 20, "\x5e\xf1\xab\x2f"}}, []part{{1 << 20, "\x5e\xf1\xab\x2f"}}},
		{"ceph_bluestore", ClassMember, 0, []part{{0, "bluestore block device\n"}}, []part{{0, "bluestore block"}}},
		{"vdo", ClassMember, 0, []part{{0, "dmvdo001"}}, []part{{0, "dmvdo002"}}},
		{"stratis", ClassMember, 516, []part{{516, "!Stra0tis\x86\xff\x02^\x41rh"}}, []part{{512, "!Stra0tis\x86\xff\x02^\x41rh"}}},
		{"DM_integrity", ClassMember, 0, []part{{0, "integrt\x00"}}, []part{{0, "integrt1"}}},
		{"DM_verity_hash", ClassMember, 0, []part{{0, "verity\x00\x00"}}, []part{{0, "verity1"}}},
		{"ldm", ClassMember, 3072, []part{{3072, "PRIVHEAD"}}, []part{{3584, "PRIVHEAD"}}},
		{"ldm", ClassMember, mib8 - 512, []part{{-512, "PRIVHEAD"}}, []part{{-1024, "PRIVHEAD"}}},
		{"drbd", ClassMember, mib8 - 4096 + 60, []part{{-4096 + 60, "\x83\x74\x02\x6d"}}, []part{{-4096 + 60, "\x83\x74\x02\x6e"}}},
		{"drbd", ClassMember, mib8 - 4096 + 60, []part{{-4096 + 60, "\x83\x74\x02\x6b"}}, []part{{-4096, "\x83\x74\x02\x6b"}}},
		{"isw_raid_member", ClassMember, mib8 - 1024, []part{{-1024, "Intel Raid ISM Cfg Sig. 1.3.00"}}, []part{{-512, "Intel Raid ISM Cfg Sig. 1.3.00"}}},
		{"isw_raid_member", ClassMember, mib8 - 8192, []part{{-8192, "Intel Raid ISM Cfg Sig. 1.3.00"}}, []part{{-1024, "Intel Raid ISM Cfg Sag. "}}},
		{"ddf_raid_member", ClassMember, mib8 - 512, []part{{-512, "\xde\x11\xde\x11"}}, []part{{-512, "\x11\xde\x11\xde"}}},
		{"ddf_raid_member", ClassMember, mib8 - 257*512, []part{{-257 * 512, "\xde\x11\xde\x11"}}, []part{{-256 * 512, "\xde\x11\xde\x11"}}},
		{"nvidia_raid_member", ClassMember, mib8 - 1024, []part{{-1024, "NVIDIA  "}}, []part{{-512, "NVIDIA  "}}},
		{"lsi_mega_raid_member", ClassMember, mib8 - 512, []part{{-512, "$XIDE$"}}, []part{{-512, "$XIDEX"}}},
		{"silicon_medley_raid_member", ClassMember, mib8 - 512 + 0x60, []part{{-512 + 0x60, "\x00\x00\x00\x2f"}}, []part{{-512, "\x00\x00\x00\x2f"}}},
		{"promise_fasttrack_raid_member", ClassMember, mib8 - 399*512, []part{{-399 * 512, "Promise Technology, Inc."}}, []part{{-400 * 512, "Promise Technology, Inc."}}},
		{"hpt37x_raid_member", ClassMember, 4640, []part{{4640, "\xf0\x16\x78\x5a"}}, []part{{4640, "\xf1\x16\x78\x5a"}}},
	} {
		got, err := Signatures(bytes.NewReader(imageOf(mib8, c.parts...)), mib8, 512, "sdb")
		want := []Signature{{"sdb", c.kind, c.class, c.at}}
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s at %d: %v (-want +got):\n%s", c.kind, c.at, err, diff)
		}
		got, err = Signatures(bytes.NewReader(imageOf(mib8, c.near...)), mib8, 512, "sdb")
		if err != nil || slices.ContainsFunc(got, func(s Signature) bool { return s.Kind == c.kind }) {
			t.Errorf("near %s at %d: %v, got %v", c.kind, c.at, err, got)
		}
	}
}

// TestEverySignatureIsTested would notice a magic number without a case.
func TestEverySignatureIsTested(t *testing.T) {
	src, err := os.ReadFile("interlock_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(src), "func TestSignatures")
	for _, m := range magics {
		if !strings.Contains(table, `{"`+m.kind+`", `) {
			t.Errorf("%s has no case", m.kind)
		}
	}
}

func TestSeveralSignatures(t *testing.T) {
	// A GPT disk with its protective MBR, whose ends were once in an array.
	b := imageOf(8<<20, bootSector(part{446, "\x00\x00\x02\x00\xee"}), part{512, "EFI PART"}, part{-512, "EFI PART"}, part{-1024, "Intel Raid ISM Cfg Sig. "})
	got, err := Signatures(bytes.NewReader(b), int64(len(b)), 512, "sdb")
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, s := range got {
		kinds = append(kinds, s.Kind)
	}
	slices.Sort(kinds)
	if want := []string{"dos", "gpt", "isw_raid_member"}; !slices.Equal(kinds, want) {
		t.Errorf("got %v, want %v", kinds, want)
	}
}

// badAt is a disk with one unreadable sector.
type badAt struct {
	r  io.ReaderAt
	at int64
}

func (b badAt) ReadAt(p []byte, off int64) (int, error) {
	if off <= b.at && b.at < off+int64(len(p)) {
		n, _ := b.r.ReadAt(p[:b.at-off], off)
		return n, unix.EIO
	}
	return b.r.ReadAt(p, off)
}

func TestUnreadableSectorIsNotBlank(t *testing.T) {
	b := imageOf(8<<20, part{65536 + 0x40, "_BHRfS_M"})
	got, err := Signatures(badAt{bytes.NewReader(b), 512}, int64(len(b)), 512, "sdb")
	if !errors.Is(err, unix.EIO) {
		t.Errorf("a bad sector 1: error %v, want EIO", err)
	}
	if len(got) != 1 || got[0].Kind != "btrfs" {
		t.Errorf("a bad sector 1: got %v, want btrfs, which could be read", got)
	}
	// A device that is shorter than it says.
	if _, err := Signatures(bytes.NewReader(b[:6<<20]), int64(len(b)), 512, "sdb"); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a device without its end: error %v, want unexpected EOF", err)
	}
}

func FuzzSignatures(f *testing.F) {
	f.Add([]byte("XFSB"), int64(0), int64(8<<20), int64(512))
	f.Add([]byte("EFI PART"), int64(4096), int64(1<<20), int64(4096))
	f.Add([]byte("\xfc\x4e\x2b\xa9"), int64(100), int64(513), int64(0))
	f.Add([]byte("\x01\x01\x00\x00"), int64(16<<10), int64(2<<20+512), int64(-1))
	f.Fuzz(func(t *testing.T, data []byte, at, size, lbs int64) {
		if size < 0 || size > 16<<20 || at < 0 || at+int64(len(data)) > size {
			return
		}
		b := make([]byte, size)
		copy(b[at:], data)
		got, err := Signatures(bytes.NewReader(b), size, lbs, "x")
		if err != nil {
			t.Fatalf("size %d: %v", size, err)
		}
		for _, s := range got {
			if s.Offset < 0 || s.Offset >= size || s.Kind == "" || s.Class == "" {
				t.Errorf("size %d: %+v", size, s)
			}
		}
		// What a foreign byte elsewhere adds must not hide what is there.
		if len(got) > 0 && size > 3<<20 && at+int64(len(data)) < 2<<20 {
			b[3<<20] ^= 1
			again, err := Signatures(bytes.NewReader(b), size, lbs, "x")
			if err != nil || len(again) < len(got) {
				t.Errorf("with another byte: %v, %v; had %v", again, err, got)
			}
		}
	})
}

// TestSignaturesOfRealTools makes images with the tools that are here.
func TestSignaturesOfRealTools(t *testing.T) {
	made := 0
	for _, c := range []struct {
		want, tool string
		args       []string
	}{
		{"ext2", "mkfs.ext4", []string{"-q", "-F", "-t", "ext2"}},
		{"ext3", "mkfs.ext4", []string{"-q", "-F", "-t", "ext3"}},
		{"ext4", "mkfs.ext4", []string{"-q", "-F", "-t", "ext4"}},
		{"xfs", "mkfs.xfs", []string{"-q"}},
		{"btrfs", "mkfs.btrfs", []string{"-q"}},
		{"vfat", "mkfs.vfat", nil},
		{"f2fs", "mkfs.f2fs", []string{"-q"}},
		{"ntfs", "mkntfs", []string{"-q", "-F"}},
		{"swap", "mkswap", nil},
		{"gpt", "sfdisk", nil},
	} {
		tool, err := exec.LookPath(c.tool)
		if err != nil {
			continue
		}
		name := filepath.Join(t.TempDir(), "image")
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		const size = 512 << 20 // sparse; XFS wants 300 MiB
		if err := os.Truncate(name, size); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(tool, append(c.args, name)...)
		if c.tool == "sfdisk" {
			cmd.Stdin = strings.NewReader("label: gpt\n,,L\n")
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Logf("%s: %v\n%s", c.tool, err, out)
			continue
		}
		made++
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := Signatures(f, size, 512, "image")
		f.Close()
		if err != nil || !slices.ContainsFunc(got, func(s Signature) bool { return s.Kind == c.want }) {
			t.Errorf("%s: got %v, %v", c.want, got, err)
		}
	}
	if made == 0 {
		t.Skip("no tool here that makes a file system")
	}
}

// liveRefusals decides on a device of this machine. What the machine itself
// stands for (a laptop on battery, a container) is left out.
func liveRefusals(t *testing.T, name string, c Consent) []string {
	t.Helper()
	tgt, err := Resolve(Live(), name)
	if err != nil {
		t.Fatal(err)
	}
	f := Gather(context.Background(), Live(), tgt, Gathering{ReadKeys: noKeys})
	got := Decide(f, verify.ModeDestroy, c)
	for _, r := range got {
		t.Logf("%s: %s", r.Code, r.Error())
	}
	return slices.DeleteFunc(codes(got), func(code string) bool {
		q, unknown := strings.CutPrefix(code, "unknown-")
		contained := unknown && errors.Is(f.Asked[Question(q)], fs.ErrPermission) ||
			code == "unknown-openers" && strings.Contains(f.Asked[AskOpeners].Error(), "container")
		return code == "on-battery" || contained
	})
}

// TestLiveLoop takes a loop device of this machine through its states.
func TestLiveLoop(t *testing.T) {
	name := loopDisk(t, 64<<20)
	expect := func(what string, c Consent, want ...string) {
		t.Helper()
		if got := liveRefusals(t, name, c); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	expect("blank", Consent{})
	tool(t, "mkfs.ext4", "-q", "-F", "/dev/"+name)
	expect("with a file system", Consent{}, "signature")
	expect("with a file system, and the serial number", Consent{Serial: true})
	dir := t.TempDir()
	tool(t, "mount", "/dev/"+name, dir)
	mounted := true
	unmount := func() {
		if mounted {
			tool(t, "umount", dir)
			mounted = false
		}
	}
	defer unmount()
	expect("mounted", Consent{Serial: true}, "mounted")
	unmount()
	cmd := exec.Command("sleep", "60")
	f, err := os.Open("/dev/" + name)
	if err != nil {
		t.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{f}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	f.Close()
	expect("open in another process", Consent{Serial: true}, "open-by-others")

	// Above it, a loop device of its own.
	upper := tool(t, "losetup", "--find", "--show", "/dev/"+name)
	defer tool(t, "losetup", "--detach", upper)
	got := liveRefusals(t, name, Consent{Serial: true})
	if !slices.Contains(got, "holder") {
		t.Errorf("under another loop device: got %v, want a holder", got)
	}
	if got := liveRefusals(t, upper, Consent{Serial: true}); !slices.Contains(got, "loop-on-device") {
		t.Errorf("over another loop device: got %v, want loop-on-device", got)
	}
}
