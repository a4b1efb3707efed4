package capture

import (
	"encoding/hex"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quirkcheck/quirkcheck/internal/recorded"
	"github.com/quirkcheck/quirkcheck/internal/sysfstree"
)

// rewrite runs a text twice through f, as a capture goes.
func rewrite(r *redactor, f func(string) string, in string) string {
	f(in)
	r.dict = r.dictionary(nil)
	return f(in)
}

func TestRedactText(t *testing.T) {
	type f = func(*redactor) func(string) string
	line := func(r *redactor) func(string) string { return r.commandLine }
	udev := func(r *redactor) func(string) string { return r.udev }
	for _, c := range []struct {
		name     string
		of       f
		in, want string
	}{
		{"a root by UUID", line, "BOOT_IMAGE=(hd0,gpt2)/vmlinuz-6.12.0-1-amd64 root=UUID=3e6be9de-8139-11d1-9106-a43f08d823a6 ro quiet\n",
			"BOOT_IMAGE=(hd0,gpt2)/vmlinuz-6.12.0-1-amd64 root=UUID=00000000-0000-4000-8000-000000000001 ro quiet\n"},
		{"what concerns the storage drivers stays", line, "libata.force=1.00:noncq,2:max_sec_lba48 usb-storage.quirks=174c:55aa:u scsi_mod.dev_flags=ACME:DISK:0x200 nvme_core.default_ps_max_latency_us=0",
			"libata.force=1.00:noncq,2:max_sec_lba48 usb-storage.quirks=174c:55aa:u scsi_mod.dev_flags=ACME:DISK:0x200 nvme_core.default_ps_max_latency_us=0"},
		{"consoles and switches stay", line, "console=ttyS0,115200n8 intel_iommu=on mitigations=auto panic=-1 crashkernel=256M root=/dev/nvme0n1p2", "console=ttyS0,115200n8 intel_iommu=on mitigations=auto panic=-1 crashkernel=256M root=/dev/nvme0n1p2"},
		{"names and addresses go", line, "systemd.hostname=db-payroll ip=10.1.2.3::10.1.2.1:255.255.255.0:db-payroll:eth0:off rd.lvm.lv=vgpay/slash",
			"systemd.hostname=host1 ip=redacted00000000000000000000000000000000000000000001 rd.lvm.lv=name1"},
		{"volumes by installers stay", line, "root=/dev/mapper/fedora-root resume=/dev/mapper/ubuntu--vg-swap_1", "root=/dev/mapper/fedora-root resume=/dev/mapper/ubuntu--vg-swap_1"},
		{"volumes by their owner go", line, "root=/dev/mapper/acme-payroll", "root=/dev/mapper/name1"},
		{"quotes", line, `dyndbg="file drivers/x.c +p" quiet`, `dyndbg=redacted0000000000001 quiet`},
		{"iSCSI", line, "rd.iscsi.initiator=iqn.1993-08.org.debian:01:5f4dcc3b5aa netroot=iscsi:user:pw@10.0.0.1::3260::iqn.2004-04.com.acme:disk1",
			"rd.iscsi.initiator=redacted00000000000000000000000000001 netroot=iscsi:name1"},
		{"a word with blanks in its value", line, "secret=hunter2x", "secret=reda0001"},

		{"a disk", udev, "S:disk/by-id/ata-ST380013AS_5JV1ABCD\nS:disk/by-id/wwn-0x5000c50012345678\nS:disk/by-path/pci-0000:00:1f.2-ata-1\nI:123456\nE:ID_ATA=1\nE:ID_MODEL=ST380013AS\nE:ID_REVISION=3.20\nE:ID_SERIAL=ST380013AS_5JV1ABCD\nE:ID_SERIAL_SHORT=5JV1ABCD\nE:ID_WWN=0x5000c50012345678\nG:systemd\n",
			"S:disk/by-id/ata-ST380013AS_REDA0001\nS:disk/by-id/wwn-0x5000c50000000001\nS:disk/by-path/pci-0000:00:1f.2-ata-1\nI:123456\nE:ID_ATA=1\nE:ID_MODEL=ST380013AS\nE:ID_REVISION=3.20\nE:ID_SERIAL=ST380013AS_REDA0001\nE:ID_SERIAL_SHORT=REDA0001\nE:ID_WWN=0x5000c50000000001\nG:systemd\n"},
		{"a short serial number", udev, "S:disk/by-id/virtio-S1\nE:ID_SERIAL=S1\nE:ID_SERIAL_SHORT=S1\n", "S:disk/by-id/virtio-01\nE:ID_SERIAL=01\nE:ID_SERIAL_SHORT=01\n"},
		{"a file system", udev, "E:ID_FS_TYPE=ext4\nE:ID_FS_UUID=3e6be9de-8139-11d1-9106-a43f08d823a6\nE:ID_FS_UUID_ENC=3e6be9de-8139-11d1-9106-a43f08d823a6\nE:ID_FS_LABEL=payroll\nS:disk/by-label/payroll\nS:disk/by-uuid/3e6be9de-8139-11d1-9106-a43f08d823a6\nE:ID_PART_TABLE_UUID=1b2c3d4e\n",
			"E:ID_FS_TYPE=ext4\nE:ID_FS_UUID=00000000-0000-4000-8000-000000000001\nE:ID_FS_UUID_ENC=00000000-0000-4000-8000-000000000001\nE:ID_FS_LABEL=name1\nS:disk/by-label/name1\nS:disk/by-uuid/00000000-0000-4000-8000-000000000001\nE:ID_PART_TABLE_UUID=reda0002\n"},
		{"SAS, FC and iSCSI paths", udev, "E:ID_PATH=pci-0000:03:00.0-sas-0x5000c50012345679-lun-0\nE:ID_PATH_TAG=pci-fc-0x50060e8012345678-lun-1\nS:disk/by-path/ip-10.0.0.7:3260-iscsi-iqn.2004-04.com.acme:disk1-lun-1\n",
			"E:ID_PATH=pci-0000:03:00.0-sas-0x5000c50000000001-lun-0\nE:ID_PATH_TAG=pci-fc-0x50060e8000000002-lun-1\nS:disk/by-path/ip-198.18.0.1:3260-iscsi-iqn.2000-01.redacted:target1-lun-1\n"},
		{"a tag of a path", udev, "E:ID_PATH=ip-10.0.0.7:3260-iscsi-iqn.2004-04.com.acme:disk1-lun-1\nE:ID_PATH_TAG=ip-10_0_0_7_3260-iscsi-iqn_2004-04_com_acme_disk1-lun-1\n",
			"E:ID_PATH=ip-198.18.0.1:3260-iscsi-iqn.2000-01.redacted:target1-lun-1\nE:ID_PATH_TAG=ip-198_18_0_1_3260-iscsi-iqn_2000-01_redacted_target1-lun-1\n"},
		{"a tag alone", udev, "E:ID_PATH_TAG=ip-10_0_0_7_3260-iscsi-iqn_2004-04_com_acme_disk1-lun-1\n", "E:ID_PATH_TAG=" + strings.ToLower(padded(len("ip-10_0_0_7_3260-iscsi-iqn_2004-04_com_acme_disk1-lun-1"), 1)) + "\n"},
		{"a fault code for a serial number", udev, "S:disk/by-id/ata-INTEL_SSDSA2CW080G3_BAD_CTX_00000150\nE:ID_SERIAL=INTEL_SSDSA2CW080G3_BAD_CTX_00000150\nE:ID_SERIAL_SHORT=BAD_CTX_00000150\n",
			"S:disk/by-id/ata-INTEL_SSDSA2CW080G3_BAD_CTX_REDA0001\nE:ID_SERIAL=INTEL_SSDSA2CW080G3_BAD_CTX_REDA0001\nE:ID_SERIAL_SHORT=BAD_CTX_REDA0001\n"},
		{"what nobody knows goes", udev, "E:ACME_OWNER=alice\nE:ACME_N=12\nS:alices-disk\n", "E:ACME_OWNER=r0001\nE:ACME_N=12\nS:name1\n"},
		{"a map", udev, "E:DM_NAME=mpatha\nE:DM_UUID=mpath-3600508b400105e210000900000490000\nS:mapper/mpatha\nS:disk/by-id/dm-name-mpatha\nS:disk/by-id/dm-uuid-mpath-3600508b400105e210000900000490000\nE:DM_WWN=0x600508b400105e210000900000490000\n",
			"E:DM_NAME=mpatha\nE:DM_UUID=mpath-3600508b0000000000000000000000001\nS:mapper/mpatha\nS:disk/by-id/dm-name-mpatha\nS:disk/by-id/dm-uuid-mpath-3600508b0000000000000000000000001\nE:DM_WWN=0x600508b0000000000000000000000001\n"},
		{"an nvme disk", udev, "S:disk/by-id/nvme-Samsung_SSD_980_S64ENX0R123456\nS:disk/by-id/nvme-Samsung_SSD_980_S64ENX0R123456_1\nS:disk/by-id/nvme-eui.002538ba11b5a1f2\nE:ID_SERIAL_SHORT=S64ENX0R123456\nE:ID_WWN=eui.002538ba11b5a1f2\n",
			"S:disk/by-id/nvme-Samsung_SSD_980_REDACTED000001\nS:disk/by-id/nvme-Samsung_SSD_980_REDACTED000001_1\nS:disk/by-id/nvme-eui.0025380000000001\nE:ID_SERIAL_SHORT=REDACTED000001\nE:ID_WWN=eui.0025380000000001\n"},

		{"a distribution's kernel", func(r *redactor) func(string) string { return r.procVersion }, "Linux version 6.1.0-54-amd64 (debian-kernel@lists.debian.org) (gcc-12 (Debian 12.2.0-14) 12.2.0) #1 SMP Debian 6.1.190-1 (2026-10-16)\n",
			"Linux version 6.1.0-54-amd64 (debian-kernel@lists.debian.org) (gcc-12 (Debian 12.2.0-14) 12.2.0) #1 SMP Debian 6.1.190-1 (2026-10-16)\n"},
		{"a kernel built at home", func(r *redactor) func(string) string { return r.procVersion }, "Linux version 6.18.3 (alice@zaphod) (gcc 15.1.0) #1 SMP\n", "Linux version 6.18.3 (host1@host2) (gcc 15.1.0) #1 SMP\n"},

		{"LVM", func(r *redactor) func(string) string { return r.volumeUUID }, "LVM-9Vq3ZQ0k2wVvVb1vTQqDqkV3pXlZ0gWqKq3ZQ0k2wVvVb1vTQqDqkV3pXlZ0gWqa-tpool", "LVM-REDACTED00000000000000000000000000000000000000000000000000000001-tpool"},
		{"crypt", func(r *redactor) func(string) string { return r.volumeUUID }, "CRYPT-LUKS2-0f1e2d3c4b5a69788796a5b4c3d2e1f0-alice", "CRYPT-LUKS2-00000000000000000000000000000001-name1"},

		{"the kernel's own name of a subsystem", func(r *redactor) func(string) string { return r.qualified }, "nqn.2014.08.org.nvmexpress:1987198794182F144859480D    KINGSTON SKC1000240G                    ",
			"nqn.2014.08.org.nvmexpress:198719870000000000000001    KINGSTON SKC1000240G                    "},
		{"a maker's", func(r *redactor) func(string) string { return r.qualified }, "nqn.1994-11.com.samsung:nvme:PM9B1:M.2:Y78WUR5J361972      ", "nqn.1994-11.com.samsung:nvme:PM9B1:M.2:REDACTED000001      "},
		{"an owner's", func(r *redactor) func(string) string { return r.qualified }, "nqn.2020-01.com.acme:array7", "nqn.2000-01.redacted:target1"},
		{"an array's", func(r *redactor) func(string) string { return r.qualified }, "nqn.1992-08.com.netapp:sn.d646dc63336511e995cb00a0988fb732:subsystem.payroll", "nqn.1992-08.com.netapp:sn.00000000000000000000000000000001:redacted000000001"},
		{"a port of an iSCSI node", func(r *redactor) func(string) string { return r.qualified }, "iqn.2004-04.com.acme:disk1,t,0x0001", "iqn.2000-01.redacted:target1,t,0x0001"},
		{"a name cut short", func(r *redactor) func(string) string { return r.qualified }, "nqn.a:bbbbbbbbbbbb", "nqn.2000-01.redacted:target1"},
		{"by UUID", func(r *redactor) func(string) string { return r.qualified }, "nqn.2014-08.org.nvmexpress:uuid:3e6be9de-8139-11d1-9106-a43f08d823a6", "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-4000-8000-000000000001"},
		{"a namespace without a name", func(r *redactor) func(string) string { return r.wwid }, "nvme.1987-39343138324631343438353934383044-4b494e4753544f4e20534b433130303032343047-00000001\n",
			"nvme.1987-30303030303030303030303030303031-4b494e4753544f4e20534b433130303032343047-00000001\n"},
		{"a T10 name", func(r *redactor) func(string) string { return r.wwid }, "t10.ATA     ST380013AS                              S0000001            \n", "t10.ATA     ST380013AS                              REDA0001            \n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRedactor(nil)
			if got := rewrite(r, c.of(r), c.in); got != c.want {
				t.Errorf("in   %s\n(-want +got)\n%s", c.in, cmp.Diff(c.want, got))
			}
		})
	}
}

// TestRedactFiles: each file that names a target, a card or a level.
func TestRedactFiles(t *testing.T) {
	const scsi = "sys/devices/pci0000:00/0000:00:05.0/host0/target0:1:0/0:1:0:0/"
	for _, c := range []struct{ name, file, in, want string }{
		{"an iSCSI target", "s/iscsi_session/session7/targetname", "iqn.2001-04.org.example:lun77\n", "iqn.2000-01.redacted:target1\n"},
		{"a target by EUI", "s/iscsi_session/session7/targetname", "eui.02004567A425678D\n", "eui.0200450000000001\n"},
		{"a target by another name", "s/iscsi_session/session7/targetname", "payroll\n", "target1\n"},
		{"IPv4", "c/persistent_address", "192.0.2.17\n", "198.18.0.1\n"},
		{"IPv6", "c/persistent_address", "2001:db8::5\n", "2001:db8::1\n"},
		{"IPv6 in octets, which is no MAC address", "c/persistent_address", "20:01:0d:b8:aa:bb:cc:dd\n", "2001:db8::1\n"},
		{"a link-local address", "c/persistent_address", "fe80::1%enx525400abcdef\n", "2001:db8::1%name1\n"},
		{"a pseudonym that is an address here", "c/persistent_address", "198.18.0.1\n", "198.18.0.2\n"},
		{"a host's name", "c/persistent_address", "store.acme.example\n", "host1\n"},
		{"every host's own address", "c/persistent_address", "127.0.0.1\n", "127.0.0.1\n"},
		{"a port", "c/persistent_port", "3260\n", "3260\n"},
		{"a portal", "c/portal", "[2001:db8::77]:3260\n", "[2001:db8::1]:3260\n"},
		{"an FC port", "f/port_name", "0x500a09832b1c4d5e\n", "0x500a098000000001\n"},
		{"NVMe over PCI", "nvme0/address", "0000:01:00.0\n", "0000:01:00.0\n"},
		{"NVMe over TCP", "nvme0/address", "traddr=192.0.2.17,trsvcid=4420,host_traddr=198.51.100.9,host_iface=enp3s0f1,src_addr=198.51.100.9\n",
			"traddr=198.18.0.1,trsvcid=4420,host_traddr=198.18.0.2,host_iface=enp3s0f1,src_addr=198.18.0.2\n"},
		{"NVMe over TCP and IPv6", "nvme0/address", "traddr=fe80::7%storage,trsvcid=4420\n", "traddr=2001:db8::1%name1,trsvcid=4420\n"},
		{"NVMe over FC", "nvme0/address", "traddr=nn-0x200140e2b3c4d5f6:pn-0x500a09832b1c4d5e,host_traddr=nn-0x20000024ff6a7b8c:pn-0x21000024ff6a7b8c\n",
			"traddr=nn-0x2001400000000001:pn-0x500a098000000002,host_traddr=nn-0x2000000000000003:pn-0x2100000000000004\n"},
		{"an NVMe address of keys to come", "nvme0/address", "traddr=192.0.2.17,owner=alice,Zaphod Beeblebrox\n", "traddr=198.18.0.1,owner=r0001,REDACTED000000002\n"},
		{"a MAC address", "eth0/address", "52:54:00:ab:cd:ef\n", "02:00:00:00:00:01\n"},
		{"a controller's state", "nvme0/state", "deleting (no IO)\n", "deleting (no IO)\n"},
		{"a path's", "nvme0c1n1/ana_state", "persistent-loss\n", "persistent-loss\n"},
		{"no state", "nvme0/state", "S64ENX0R123456\n", "REDACTED000001\n"},
		{"a serial number", "nvme0/serial", "S64ENX0R123456      \n", "REDACTED000001      \n"},
		{"a fault code", scsi + "vpd_pg80", "\x00\x80\x00\x14    BAD_CTX 0000013F", "\x00\x80\x00\x14    BAD_CTX REDA0001"},
		{"a fault code alone", scsi + "vpd_pg80", "\x00\x80\x00\x08 BAD_CTX", "\x00\x80\x00\x08 BAD_CTX"},
		{"a serial number that starts like one", scsi + "vpd_pg80", "\x00\x80\x00\x0aBAD_CTX150", "\x00\x80\x00\x0aREDACT0001"},
		{"a fault code in a T10 name", scsi + "vpd_pg83", "\x00\x83\x00\x1f\x02\x01\x00\x1bATA     X1 BAD_CTX 0000013F", "\x00\x83\x00\x1f\x02\x01\x00\x1bATA     01 BAD_CTX REDA0002"},
		{"an MMC card's name", "mmc_host/mmc0/mmc0:0001/name", "DG4016\n", "DG4016\n"},
		{"its firmware", "mmc_host/mmc0/mmc0:0001/fwrev", "0x3630303030353035\n", "0x3630303030353035\n"},
		{"another name", "x/name", "DG4016\n", "RE0001\n"},
		{"hpsa", scsi + "raid_level", "RAID 1(+0)ADM\n", "RAID 1(+0)ADM\n"},
		{"hpsa, a disk", scsi + "raid_level", "N/A\n", "N/A\n"},
		{"smartpqi", scsi + "raid_level", "RAID-1(Triple)\n", "RAID-1(Triple)\n"},
		{"an older smartpqi", scsi + "raid_level", "RAID-ADG\n", "RAID-ADG\n"},
		{"aacraid", scsi + "level", "PSEUDO R4\n", "PSEUDO R4\n"},
		{"mpt3sas", scsi + "raid_devices/0:1:0:0/level", "raid1e\n", "raid1e\n"},
		{"md", "md0/md/level", "raid10\n", "raid10\n"},
		{"no level", scsi + "level", "Alice's 1st\n", "REDACTE0001\n"},
		{"an array that is reshaped", "md0/md/raid_disks", "5 (4)\n", "5 (4)\n"},
		{"a partition's number", "sda/sda1/partition", "1\n", "1\n"},
	} {
		if sortOf(c.file) == unknown && c.file != "x/name" {
			t.Errorf("%s: %s has no sort", c.name, c.file)
		}
		out := newRedactor(nil).redact(&Capture{Files: map[string]Content{c.file: Content(c.in)}})
		if got := string(out.Files[c.file]); got != c.want {
			t.Errorf("%s: %q\ngot  %q\nwant %q", c.name, c.in, got, c.want)
		}
	}
}

// TestOneSecretHasOnePseudonym in every spelling.
func TestOneSecretHasOnePseudonym(t *testing.T) {
	r := newRedactor([]string{"zaphod.acme.example"})
	serial := []byte("S64ENX0R123456      ")
	r.chars(KindSerial, serial)
	wwn, _ := hex.DecodeString("5000c50012345678")
	r.bytes(wwn)
	if string(serial) != "REDACTED000001      " || hex.EncodeToString(wwn) != "5000c50000000001" {
		t.Fatalf("%q %x", serial, wwn)
	}
	r.dict = r.dictionary(nil)
	for in, want := range map[string]string{
		"x S64ENX0R123456 y":             "x REDACTED000001 y",
		"s64enx0r123456":                 "redacted000001",
		"6SE4XNR0214365":                 "ERADTCDE000010", // words swapped
		"533634454e583052313233343536":   "5245444143544544303030303031",
		"wwn-0x5000C50012345678":         "wwn-0x5000C50000000001",
		"naa.5000c50012345678":           "naa.5000c50000000001",
		"35000c50012345678":              "35000c50000000001",
		"50:00:c5:00:12:34:56:78":        "50:00:c5:00:00:00:00:01",
		"UzY0RU5YMFIxMjM0NTY=":           "UzY0RU5YMFIxMjM0NTY=", // base64 with a fill: see below
		"on zaphod now":                  "on host2 now",
		"zaphod.acme.example:":           "host1:",
		"zaphods":                        "zaphods",
		"no secret, /dev/sda, 2048, 512": "no secret, /dev/sda, 2048, 512",
	} {
		got := r.generic(in)
		if strings.HasPrefix(in, "Uz") {
			continue
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	if got := r.generic("UzY0RU5YMFIxMjM0NTYgICAg"); got != "UkVEQUNURUQwMDAwMDEgICAg" {
		t.Errorf("base64: %q", got)
	}
}

// TestNoPseudonymIsAnotherDisk: where a machine has a disk that is called as
// the first pseudonym would be, another one is taken.
func TestNoPseudonymIsAnotherDisk(t *testing.T) {
	c := &Capture{Files: map[string]Content{
		"a/wwid": Content("naa.5000c50012345678\n"), "b/wwid": Content("naa.5000c50000000001\n"),
		"c/vpd_pg83": Content("\x00\x83\x00\x0c\x01\x03\x00\x08\x50\x00\xc5\x00\x00\x00\x00\x02"),
		"d/serial":   Content("S64ENX0R123456"), "e/serial": Content("REDACTED000001"),
	}}
	out := newRedactor(nil).redact(c)
	want := map[string]Content{
		"a/wwid": Content("naa.5000c50000000003\n"), "b/wwid": Content("naa.5000c50000000004\n"),
		"c/vpd_pg83": Content("\x00\x83\x00\x0c\x01\x03\x00\x08\x50\x00\xc5\x00\x00\x00\x00\x05"),
		"d/serial":   Content("REDACTED000002"), "e/serial": Content("REDACTED000003"),
	}
	if diff := cmp.Diff(want, out.Files); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestDesignatorsKeepTheirFormat(t *testing.T) {
	page := func(descriptors ...[]byte) []byte {
		body := []byte{}
		for _, d := range descriptors {
			body = append(body, d...)
		}
		return append([]byte{0, 0x83, byte(len(body) >> 8), byte(len(body))}, body...)
	}
	d := func(codeSet, kind byte, content string) []byte {
		return append([]byte{codeSet, kind, 0, byte(len(content))}, content...)
	}
	in := page(
		d(2, 1, "ATA     ST380013AS                              5JV1ABCD            "),
		d(1, 3, "\x50\x00\xc5\x00\x12\x34\x56\x78"),
		d(1, 3, "\x60\x05\x08\xb4\x00\x10\x5e\x21\x00\x00\x90\x00\x00\x49\x00\x00"),
		d(1, 2, "\x00\x25\x38\xba\x11\xb5\xa1\xf2"),
		d(1, 0x14, "\x00\x00\x00\x01"),
		d(3, 8, "naa.5000C50012345678"),
		d(3, 8, "iqn.2004-04.com.acme:disk1\x00\x00"),
		d(1, 7, "0123456789abcdef"),
		d(1, 0xa, "\x10\x00\x3e\x6b\xe9\xde\x81\x39\x11\xd1\x91\x06\xa4\x3f\x08\xd8\x23\xa6"),
		d(1, 0, "\x01\x02secret\x03"),
	)
	want := page(
		d(2, 1, "ATA     ST380013AS                              REDA0001            "),
		d(1, 3, "\x50\x00\xc5\x00\x00\x00\x00\x01"),
		d(1, 3, "\x60\x05\x08\xb0\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02"),
		d(1, 2, "\x00\x25\x38\x00\x00\x00\x00\x03"),
		d(1, 0x14, "\x00\x00\x00\x01"),
		d(3, 8, "naa.5000C50000000001"),
		d(3, 8, "iqn.2000-01.redacted:target1"),
		d(1, 7, strings.Repeat("\x00", 16)),
		d(1, 0xa, "\x10\x00\x00\x00\x00\x00\x00\x00\x40\x00\x80\x00\x00\x00\x00\x00\x00\x01"),
		d(1, 0, strings.Repeat("\x00", 9)),
	)
	r := newRedactor(nil)
	r.designators(in, map[string]bool{"ST380013AS": true})
	if diff := cmp.Diff(hex.Dump(want), hex.Dump(in)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestEveryFileHasASort: what the probe reads of the recorded machines is known
// to byBase, or made of numbers and the kernel's plain words. A file that fails
// here is read since lately, and redaction would replace all of it.
func TestEveryFileHasASort(t *testing.T) {
	sorted, plain := 0, 0
	machines := map[string]fs.FS{"stacks": sysfstree.Stacks(), "kinds": sysfstree.Kinds()}
	for _, name := range recorded.Trees(t) {
		machines[name] = recorded.FS(t, name)
	}
	for name, sys := range machines {
		c, _, err := Take(t.Context(), sys, Options{IncludeSerials: true})
		if err != nil {
			t.Fatal(err)
		}
		for file, content := range c.Files {
			switch sort := sortOf(file); {
			case sort == plainText && !harmless(string(content)), sort == raidLevel && !isLevel(string(content)),
				reKept[sort] != nil && !reKept[sort].Match(content):
				t.Errorf("%s: %s holds %.80q, which is no plain word", name, file, content)
			case sort != unknown:
				sorted++
			case isText(content) && harmless(string(content)):
				plain++
			default:
				t.Errorf("%s: %s holds %.80q: give it a sort", name, file, content)
			}
		}
	}
	if sorted < 300 || plain < 1000 {
		t.Errorf("%d files of a known sort, %d plain ones", sorted, plain)
	}
}

// TestKeptByPattern: files whose words are the kernel's keep those, and nothing
// else, wherever they come from.
func TestKeptByPattern(t *testing.T) {
	const owner = "zaphod's-laptop S64ENX0R123456"
	for name, kept := range map[string][]string{
		"sys/devices/pci0/ata1/link1/ata_link/link1/sata_spd":                   {"6.0 Gbps\n", "<unknown>\n"},
		"sys/devices/pci0/ata1/link1/dev1.0/ata_device/dev1.0/trim":             {"forced_unqueued\n"},
		"sys/devices/pci0/ata1/link1/dev1.0/ata_device/dev1.0/xfer_mode":        {"XFER_UDMA_6\n"},
		"sys/devices/pci0/virtio0/features":                                     {strings.Repeat("01", 40) + "\n"},
		"sys/devices/virtual/block/md0/md/dev-sda1/state":                       {"in_sync,write_mostly\n", "spare\n", "in_sync\n"},
		"sys/devices/virtual/block/md0/md/metadata_version":                     {"1.2\n", "external:imsm\n", "external:/md127/0\n", "none\n"},
		"sys/devices/virtual/block/md0/md/layout":                               {"2\n", "2 (3)\n"},
		"sys/devices/pci0/host0/target0:0:0/0:0:0:0/block/sda/integrity/format": {"T10-DIF-TYPE1-CRC\n", "EXT-DIF-TYPE3-CRC64\n", "none\n"},
		"sys/kernel/iommu_groups/7/type":                                        {"DMA-FQ\n", "identity\n"},
		"sys/module/libata/parameters/fua":                                      {"0\n"},
		"sys/module/ahci/parameters/mobile_lpm_policy":                          {"-1\n"},
		"sys/module/nvme_core/parameters/multipath":                             {"Y\n"},
		"sys/module/usb_storage/parameters/quirks":                              {"\n", "152d:0578:u\n", "152d:0578:u,0bc2:231a:gm\n"},
		"sys/module/nvme/parameters/quirks":                                     {"1e4b:1202:bogus_nid,^no_apst-144d:a808:no_deepest_ps\n"},
		"sys/devices/pci0/nvme/nvme0/quirks":                                    {"none\n", "128_bytes_sqes\nbogus_nid\n"},
	} {
		if sortOf(name) == unknown {
			t.Errorf("%s has no sort", name)
		}
		for _, content := range kept {
			r := newRedactor(nil)
			if got := r.redact(&Capture{Files: map[string]Content{name: Content(content)}}).Files[name]; string(got) != content {
				t.Errorf("%s: %q became %q", name, content, got)
			}
			for _, bad := range []string{owner, strings.TrimSuffix(content, "\n") + " " + owner + "\n", owner + "\n" + content} {
				r := newRedactor(nil)
				got := string(r.redact(&Capture{Files: map[string]Content{name: Content(bad)}}).Files[name])
				if strings.Contains(got, "zaphod") || strings.Contains(got, "S64ENX0R") {
					t.Errorf("%s: of %q this is left: %q", name, bad, got)
				}
			}
		}
	}
}

// FuzzRedact: whatever a file holds, redaction neither fails nor changes the
// length of what has a fixed one, and a second time finds nothing new to say.
func FuzzRedact(f *testing.F) {
	for _, name := range []string{"proc/cmdline", "proc/version", "run/udev/data/b8:0", "a/vpd_pg80", "a/vpd_pg83", "a/vpd_pg89", "a/inquiry", "a/ata_device/d/id", "a/wwid", "a/subsysnqn", "a/dm/uuid", "a/dm/name", "a/targetname", "a/persistent_address", "a/address", "a/raid_level", "a/serial", "a/other", "sys/module/usb_storage/parameters/quirks", "a/md/dev-sda1/state", "a/integrity/format"} {
		f.Add(name, []byte("\x00\x83\x00\x0cS64ENX0R123456"), []byte("E:ID_SERIAL=a_b\nS:disk/by-id/ata-x_y root=UUID=1 nqn.2014-08.org.nvmexpress:uuid:3e6be9de-8139-11d1-9106-a43f08d823a6"))
	}
	f.Fuzz(func(t *testing.T, name string, a, b []byte) {
		if !recordable(name) || len(a)+len(b) > 4096 {
			return
		}
		c := &Capture{Files: map[string]Content{name: a, "x/" + name: b}}
		out := newRedactor([]string{"zaphod"}).redact(c)
		if len(out.Files) != 2 {
			return // a collision, which Take refuses
		}
		for n, content := range out.Files {
			switch sortOf(n) {
			case pageSerial, pageDesignators, pageATA, inquiryData, pageVendor, identifyWords, keepData:
				from := c.Files[n]
				if from != nil && len(content) != len(from) {
					t.Errorf("%s: %d bytes of %d", n, len(content), len(from))
				}
			}
		}
	})
}
