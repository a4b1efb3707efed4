package target

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Class sorts signatures by what their loss means.
type Class string

// The classes.
const (
	ClassTable      Class = "partition-table"
	ClassFileSystem Class = "filesystem"
	ClassSwap       Class = "swap"
	ClassEncryption Class = "encryption"
	// ClassMember is a part of something that other devices may hold too: RAID,
	// volume group, pool, cluster. A typed serial number does not cover it.
	ClassMember Class = "member"
)

// Signature is a magic number found on a device.
type Signature struct {
	Where  string `json:"where"` // sysfs name of disk or partition
	Kind   string `json:"kind"`  // as blkid names it: ext4, LVM2_member, gpt
	Class  Class  `json:"class"`
	Offset int64  `json:"offset"` // bytes from the start of Where
}

func (s Signature) String() string { return fmt.Sprintf("%s on %s", s.Kind, s.Where) }

// image is a device as the signature reader sees it: it keeps what it read and
// the first error.
type image struct {
	r    io.ReaderAt
	size int64
	lbs  int64
	seen map[int64][]byte
	err  error
}

const imageChunk = 64 << 10

// at returns n bytes at off, or nil where the device has none or cannot be
// read.
func (im *image) at(off int64, n int) []byte {
	if off < 0 || off > im.size-int64(n) {
		return nil
	}
	out := make([]byte, 0, n)
	for len(out) < n {
		at := off + int64(len(out))
		base := at - at%imageChunk
		chunk, ok := im.seen[base]
		if !ok {
			chunk = make([]byte, min(imageChunk, im.size-base))
			if m, err := im.r.ReadAt(chunk, base); m < len(chunk) {
				if err == nil || err == io.EOF {
					err = io.ErrUnexpectedEOF
				}
				if im.err == nil {
					im.err = fmt.Errorf("read %d bytes at %d: %w", len(chunk), base, err)
				}
				chunk = nil
			}
			im.seen[base] = chunk
		}
		if chunk == nil {
			return nil
		}
		out = append(out, chunk[at-base:min(int64(len(chunk)), at-base+int64(n-len(out)))]...)
	}
	return out
}

func (im *image) is(off int64, magic string) bool {
	b := im.at(off, len(magic))
	return b != nil && string(b) == magic
}

func (im *image) le32(off int64) (uint32, bool) {
	b := im.at(off, 4)
	if b == nil {
		return 0, false
	}
	return binary.LittleEndian.Uint32(b), true
}

func (im *image) le64(off int64) uint64 {
	b := im.at(off, 8)
	if b == nil {
		return 0
	}
	return binary.LittleEndian.Uint64(b)
}

// magics are signatures that are nothing but bytes at a place. Offsets below
// zero count from the end, in whole sectors of 512 bytes. Places and names are
// those of libblkid (libblkid/src/superblocks), the sources of which were read.
var magics = []struct {
	kind   string
	class  Class
	offset int64
	magic  string
}{
	{"xfs", ClassFileSystem, 0, "XFSB"},
	{"ntfs", ClassFileSystem, 3, "NTFS    "},
	{"exfat", ClassFileSystem, 3, "EXFAT   "},
	{"BitLocker", ClassEncryption, 3, "-FVE-FS-"},
	{"ReFS", ClassFileSystem, 0, "\x00\x00\x00ReFS\x00"},
	{"vfat", ClassFileSystem, 0x52, "FAT32   "},
	{"vfat", ClassFileSystem, 0x52, "MSWIN"},
	{"vfat", ClassFileSystem, 0x36, "FAT16   "},
	{"vfat", ClassFileSystem, 0x36, "FAT12   "},
	{"vfat", ClassFileSystem, 0x36, "FAT     "},
	{"vfat", ClassFileSystem, 0x36, "MSDOS"},
	{"apfs", ClassFileSystem, 32, "NXSB"},
	{"hfsplus", ClassFileSystem, 1024, "H+\x00\x04"},
	{"hfsplus", ClassFileSystem, 1024, "HX\x00\x05"},
	{"squashfs", ClassFileSystem, 0, "hsqs"},
	{"erofs", ClassFileSystem, 1024, "\xe2\xe1\xf5\xe0"},
	{"f2fs", ClassFileSystem, 1024, "\x10\x20\xf5\xf2"},
	{"f2fs", ClassFileSystem, 5120, "\x10\x20\xf5\xf2"}, // the second superblock
	{"jfs", ClassFileSystem, 32768, "JFS1"},
	{"reiserfs", ClassFileSystem, 65536 + 52, "ReIsEr2Fs"},
	{"reiserfs", ClassFileSystem, 65536 + 52, "ReIsEr3Fs"},
	{"reiserfs", ClassFileSystem, 65536 + 52, "ReIsErFs"},
	{"iso9660", ClassFileSystem, 32769, "CD001"},
	{"udf", ClassFileSystem, 32769, "BEA01"},
	// Cluster file systems are in use from elsewhere as a rule.
	{"gfs2", ClassMember, 65536, "\x01\x16\x19\x70"},
	{"ocfs2", ClassMember, 1024, "OCFSV2"},
	{"ocfs2", ClassMember, 2048, "OCFSV2"},
	{"ocfs2", ClassMember, 4096, "OCFSV2"},
	{"ocfs2", ClassMember, 8192, "OCFSV2"},
	{"oracleasm", ClassMember, 32, "ORCLDISK"},
	{"VMFS_volume_member", ClassMember, 1 << 20, "\x0d\xd0\x01\xc0"},
	{"VMFS", ClassMember, 2 << 20, "\x5e\xf1\xab\x2f"},
	{"bcache", ClassMember, 4096 + 24, "\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"},
	{"bcachefs", ClassMember, 4096 + 24, "\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef"},
	{"ceph_bluestore", ClassMember, 0, "bluestore block device"},
	{"vdo", ClassMember, 0, "dmvdo001"},
	{"stratis", ClassMember, 512 + 4, "!Stra0tis\x86\xff\x02^\x41rh"},
	{"stratis", ClassMember, 9*512 + 4, "!Stra0tis\x86\xff\x02^\x41rh"},
	{"DM_integrity", ClassMember, 0, "integrt\x00"},
	{"DM_verity_hash", ClassMember, 0, "verity\x00\x00"},
	{"ldm", ClassMember, 6 * 512, "PRIVHEAD"}, // Windows dynamic disk
	{"ldm", ClassMember, -1 * 512, "PRIVHEAD"},
	{"hpt37x_raid_member", ClassMember, 9*512 + 32, "\xf0\x16\x78\x5a"},
	{"hpt37x_raid_member", ClassMember, 9*512 + 32, "\xfd\x16\x78\x5a"},
	{"nvidia_raid_member", ClassMember, -2 * 512, "NVIDIA  "},
	{"lsi_mega_raid_member", ClassMember, -1 * 512, "$XIDE$"},
	{"silicon_medley_raid_member", ClassMember, -1*512 + 0x60, "\x00\x00\x00\x2f"},
	{"ddf_raid_member", ClassMember, -1 * 512, "\xde\x11\xde\x11"},
	{"ddf_raid_member", ClassMember, -257 * 512, "\xde\x11\xde\x11"},
	{"sun", ClassTable, 508, "\xda\xbe"},
	{"sgi", ClassTable, 0, "\x0b\xe5\xa9\x41"},
	{"bsd", ClassTable, 512, "\x57\x45\x56\x82"},
	{"mac", ClassTable, 512, "PM\x00\x00"},
}

// promiseSectors count from the end (libblkid, promise_raid.c).
var promiseSectors = []int64{63, 255, 256, 16, 399, 591, 675, 735, 911, 974, 991, 951, 3087}

// Signatures finds the magic numbers of partition tables, file systems, swap,
// encryption, RAID and volume managers on a device of sizeBytes. It verifies
// no checksum: a torn superblock is still somebody's. What was found before an
// error is returned with it.
func Signatures(r io.ReaderAt, sizeBytes, logicalBlockBytes int64, where string) ([]Signature, error) {
	im := &image{r: r, size: sizeBytes, lbs: logicalBlockBytes, seen: map[int64][]byte{}}
	if im.lbs < sysSectorBytes {
		im.lbs = sysSectorBytes
	}
	var found []Signature
	add := func(kind string, class Class, offset int64) {
		if !slices.ContainsFunc(found, func(s Signature) bool { return s.Kind == kind }) {
			found = append(found, Signature{Where: where, Kind: kind, Class: class, Offset: offset})
		}
	}
	sectors := im.size / sysSectorBytes
	for _, m := range magics {
		offset := m.offset
		if offset < 0 {
			offset += sectors * sysSectorBytes
		}
		if im.is(offset, m.magic) {
			add(m.kind, m.class, offset)
		}
	}
	for _, probe := range []func(*image, func(string, Class, int64)){
		probeGPT, probeExt, probeBtrfs, probeSwap, probeLVM, probeMD, probeLUKS, probeZFS, probeDRBD, probeIMSM, probePromise, probeFAT,
		probeDOS, // after those whose boot sector looks like one
	} {
		probe(im, add)
	}
	if im.err != nil {
		return found, fmt.Errorf("signatures of %s: %w", where, im.err)
	}
	return found, nil
}

// probeGPT looks at both ends, and with both usual block sizes: the disk may
// have been partitioned behind another bridge.
func probeGPT(im *image, add func(string, Class, int64)) {
	for _, lbs := range []int64{im.lbs, 512, 4096} {
		for _, offset := range []int64{lbs, (im.size/lbs - 1) * lbs} {
			if im.is(offset, "EFI PART") {
				add("gpt", ClassTable, offset)
			}
		}
	}
}

// bootSector tells what of its 512 bytes are a partition table.
const (
	bootEntriesAt = 446
	bootEntry     = 16
	bootMagicAt   = 510
)

func probeDOS(im *image, add func(string, Class, int64)) {
	b := im.at(0, 512)
	if b == nil || b[bootMagicAt] != 0x55 || b[bootMagicAt+1] != 0xaa || fatParameters(b) {
		return
	}
	for _, other := range []string{"NTFS    ", "EXFAT   ", "-FVE-FS-"} {
		if string(b[3:11]) == other {
			return
		}
	}
	for at := bootEntriesAt; at < bootMagicAt; at += bootEntry {
		if b[at] != 0 && b[at] != 0x80 { // boot indicator
			return
		}
	}
	add("dos", ClassTable, 0)
}

// probeFAT knows one without its name by its BIOS parameter block.
func probeFAT(im *image, add func(string, Class, int64)) {
	if b := im.at(0, 512); b != nil && b[bootMagicAt] == 0x55 && b[bootMagicAt+1] == 0xaa && fatParameters(b) {
		add("vfat", ClassFileSystem, 0)
	}
}

// fatParameters checks the fields that libblkid and the kernel check.
func fatParameters(b []byte) bool {
	const sectorAt, clusterAt, reservedAt, fatsAt, mediaAt, nameAt = 11, 13, 14, 16, 21, 0x36
	if b[0] != 0xeb && b[0] != 0xe9 {
		return false
	}
	if n := string(b[nameAt : nameAt+8]); n == "JFS     " || n == "HPFS    " {
		return false
	}
	sector := binary.LittleEndian.Uint16(b[sectorAt:])
	cluster := b[clusterAt]
	return sector >= 512 && sector <= 4096 && sector&(sector-1) == 0 &&
		cluster != 0 && cluster&(cluster-1) == 0 &&
		binary.LittleEndian.Uint16(b[reservedAt:]) != 0 && b[fatsAt] != 0 &&
		(b[mediaAt] == 0xf0 || b[mediaAt] >= 0xf8)
}

// probeExt reads struct ext4_super_block (fs/ext4/ext4.h) at 1024.
func probeExt(im *image, add func(string, Class, int64)) {
	const at, magicAt, compatAt, incompatAt, roCompatAt = 1024, 0x38, 0x5c, 0x60, 0x64
	if !im.is(at+magicAt, "\x53\xef") {
		return
	}
	compat, _ := im.le32(at + compatAt)
	incompat, _ := im.le32(at + incompatAt)
	roCompat, _ := im.le32(at + roCompatAt)
	const hasJournal, journalDev = 0x4, 0x8
	// Everything that ext2 and ext3 do not know: incompat beyond filetype,
	// recover, journal_dev, meta_bg; ro_compat beyond sparse_super, large_file,
	// btree_dir.
	switch {
	case incompat&journalDev != 0:
		add("jbd", ClassMember, at+magicAt) // the journal of another disk's file system
	case incompat&^0x1e != 0 || roCompat&^0x7 != 0:
		add("ext4", ClassFileSystem, at+magicAt)
	case compat&hasJournal != 0:
		add("ext3", ClassFileSystem, at+magicAt)
	default:
		add("ext2", ClassFileSystem, at+magicAt)
	}
}

// probeBtrfs reads struct btrfs_super_block (fs/btrfs/fs.h) at 64 KiB, and the
// copies at 64 MiB and 256 GiB. One of several devices is a member.
func probeBtrfs(im *image, add func(string, Class, int64)) {
	const magicAt, devicesAt = 0x40, 0x88
	for _, at := range []int64{64 << 10, 64 << 20, 256 << 30} {
		if !im.is(at+magicAt, "_BHRfS_M") {
			continue
		}
		class := ClassFileSystem
		if im.le64(at+devicesAt) > 1 {
			class = ClassMember
		}
		add("btrfs", class, at+magicAt)
	}
}

// probeSwap looks at the end of the first page, of any page size.
func probeSwap(im *image, add func(string, Class, int64)) {
	for page := int64(4 << 10); page <= 64<<10; page *= 2 {
		at := page - 10
		switch b := string(im.at(at, 10)); {
		case b == "SWAPSPACE2", b == "SWAP-SPACE":
			add("swap", ClassSwap, at)
		case strings.HasPrefix(b, "S1SUSPEND"), strings.HasPrefix(b, "S2SUSPEND"), strings.HasPrefix(b, "ULSUSPEND"), b == "LINHIB0001":
			add("swsuspend", ClassSwap, at) // the memory of a system that sleeps
		}
	}
	if im.is(0, "\xed\xc3\x02\xe9\x98\x56\xe5\x0c") {
		add("swsuspend", ClassSwap, 0)
	}
}

// probeLVM: the label is in one of the first four sectors (lvm2,
// lib/format_text/layout.h and lib/label/label.h).
func probeLVM(im *image, add func(string, Class, int64)) {
	const typeAt = 24
	for at := int64(0); at < 4*512; at += 512 {
		if im.is(at, "LABELONE") && im.is(at+typeAt, "LVM2 001") {
			add("LVM2_member", ClassMember, at)
		}
	}
}

// probeMD reads the superblocks of linux/raid/md_p.h: 1.0 near the end, 1.1
// at the start, 1.2 at 4 KiB, and 0.90, which has the byte order of its
// machine, at the last 64 KiB boundary but one.
func probeMD(im *image, add func(string, Class, int64)) {
	const magic, majorAt = 0xa92b4efc, 4
	for _, at := range []int64{0, 4096, im.size&^4095 - 8192} {
		if m, ok := im.le32(at); !ok || m != magic {
			continue
		}
		if v, _ := im.le32(at + majorAt); v == 1 {
			add("linux_raid_member", ClassMember, at)
		}
	}
	at := im.size&^(64<<10-1) - 64<<10
	b := im.at(at, 8)
	if b == nil {
		return
	}
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		if order.Uint32(b) == magic && order.Uint32(b[majorAt:]) == 0 {
			add("linux_raid_member", ClassMember, at)
		}
	}
}

// probeLUKS looks at the header and at the places of LUKS2's second one
// (LUKS2 On-Disk Format Specification, binary header).
func probeLUKS(im *image, add func(string, Class, int64)) {
	const versionAt = 6
	if b := im.at(0, 8); b != nil && string(b[:6]) == "LUKS\xba\xbe" {
		if v := binary.BigEndian.Uint16(b[versionAt:]); v == 1 || v == 2 {
			add("crypto_LUKS", ClassEncryption, 0)
		}
	}
	for at := int64(0x4000); at <= 0x400000; at *= 2 {
		if im.is(at, "SKUL\xba\xbe") {
			add("crypto_LUKS", ClassEncryption, at)
		}
	}
}

// probeZFS looks at the four vdev labels: two at the start, two at the end,
// each with a list of names and values at 16 KiB and uberblocks at 128 KiB
// (OpenZFS, include/sys/vdev_impl.h and uberblock_impl.h). A spare and a
// cache device have no uberblock.
func probeZFS(im *image, add func(string, Class, int64)) {
	const label, listAt, ringAt, slot = 256 << 10, 16 << 10, 128 << 10, 1 << 10
	end := im.size &^ (label - 1)
	for _, at := range []int64{0, label, end - 2*label, end - label} {
		if at < 0 || end < 4*label {
			continue
		}
		// XDR: encoding 1, byte order, two reserved; version 0, flags 1; the
		// first pair's size, decoded size, and its name's length.
		if b := im.at(at+listAt, 32); b != nil && b[0] == 1 && b[1] <= 1 && b[2] == 0 && b[3] == 0 &&
			binary.BigEndian.Uint32(b[4:]) == 0 && binary.BigEndian.Uint32(b[8:]) <= 2 {
			if size, name := binary.BigEndian.Uint32(b[12:]), binary.BigEndian.Uint32(b[20:]); size > 12 && size < 112<<10 && name > 0 && name < 256 {
				add("zfs_member", ClassMember, at+listAt)
			}
		}
		ring := im.at(at+ringAt, label-ringAt)
		for i := 0; i+8 <= len(ring); i += slot {
			const magic = 0x00bab10c
			if binary.LittleEndian.Uint64(ring[i:]) == magic || binary.BigEndian.Uint64(ring[i:]) == magic {
				add("zfs_member", ClassMember, at+ringAt+int64(i))
				break
			}
		}
	}
}

// probeDRBD reads the magic of internal meta data in the last 4 KiB block
// (drbd, struct md_on_disk_08 and meta_data_on_disk_9).
func probeDRBD(im *image, add func(string, Class, int64)) {
	const magicAt = 60
	at := im.size&^4095 - 4096 + magicAt
	for _, magic := range []string{"\x83\x74\x02\x6b", "\x83\x74\x02\x6c", "\x83\x74\x02\x6d"} {
		if im.is(at, magic) {
			add("drbd", ClassMember, at)
		}
	}
}

// probeIMSM: Intel's anchor is in the last block but one (mdadm,
// super-intel.c).
func probeIMSM(im *image, add func(string, Class, int64)) {
	for _, block := range []int64{512, 4096} {
		at := (im.size/block - 2) * block
		if im.is(at, "Intel Raid ISM Cfg Sig. ") {
			add("isw_raid_member", ClassMember, at)
		}
	}
}

func probePromise(im *image, add func(string, Class, int64)) {
	for _, n := range promiseSectors {
		at := (im.size/sysSectorBytes - n) * sysSectorBytes
		if im.is(at, "Promise Technology, Inc.") {
			add("promise_fasttrack_raid_member", ClassMember, at)
		}
	}
}
