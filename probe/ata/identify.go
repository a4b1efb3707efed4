// Package ata decodes ATA IDENTIFY DEVICE and IDENTIFY PACKET DEVICE data.
//
// It is a leaf: a pure function from 512 bytes to a value, with no I/O. The
// bytes come from a device and are not trusted: a word is used only where the
// standard's validity bits say that the device means it, and what a device does
// not report answers ok == false.
//
// github.com/dswarbrick/smart/ata lays out the words it knows and swaps the
// bytes of its strings: SERIAL NUMBER, FIRMWARE REVISION and MODEL NUMBER,
// the general configuration, words 80, 87 and 217, and the world wide name come
// from its IdentifyDeviceData. That type lacks the number of sectors (words 60-61,
// 83, 100-103), sector sizes (106, 117-118), queue depth (75), TRIM (69, 169),
// and the integrity word (255), does not say whether the world wide name is valid,
// and does not trim. Its SATACap, documented as word 76, is laid over word 75, so
// that NCQ cannot be read from it. Those words are read here. None of its types
// is in this package's API, and its code that opens devices is not used.
package ata

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"strings"

	smart "github.com/dswarbrick/smart/ata"
)

// IdentifyBytes is the length of IDENTIFY DEVICE data.
const IdentifyBytes = 512

// ErrLength is wrapped by the error for data that is not IdentifyBytes long.
var ErrLength = errors.New("wrong length")

// ErrNoData is wrapped by the error for data that is all zeros, as sysfs shows it
// (sysfs-ata ABI, ata_device id) where no device answered. No device sends
// it: a valid identity has a model number.
var ErrNoData = errors.New("no identify data")

// Words of IDENTIFY DEVICE data (ACS-4, IDENTIFY DEVICE data) that
// IdentifyDeviceData does not have.
const (
	wordCapabilities  = 49  // bit 9: LBA
	wordLBA28Sectors  = 60  // 2 words, low word first
	wordAdditional    = 69  // bit 5: RZAT, bit 14: DRAT
	wordQueueDepth    = 75  // bits 4:0, maximum depth minus one
	wordSATA          = 76  // SATA capabilities; bit 8: NCQ
	wordMajorVersion  = 80  // bit N: version N; 0 and ffffh not reported
	wordCommandSets2  = 83  // bit 10: 48-bit address, valid when bits 15:14 are 01b
	wordHardwareReset = 93  // of a parallel device
	wordLBA48Sectors  = 100 // 4 words, low word first
	wordSectorSize    = 106 // valid when bits 15:14 are 01b
	wordLogicalSector = 117 // 2 words, low word first: logical sector size in words
	wordDataSetManage = 169 // bit 0: TRIM
	wordIntegrity     = 255 // low byte: A5h signature, high byte: checksum
)

// Values in those words.
const (
	integritySignature  = 0xa5
	compactFlashConfig  = 0x848a // general configuration of a CFA device, not ATAPI
	minLogicalWords     = 256    // words in a 512-byte sector
	rotationNonRotating = 0x0001
	rotationMinRPM      = 0x0401
	rotationMaxRPM      = 0xfffe
)

// ChecksumState tells what the integrity word says of the data (ACS-4, IDENTIFY
// DEVICE data, Integrity word).
type ChecksumState uint8

// The outcomes of the checksum. Data with a bad checksum is often good all the
// same: firmware and bridges change a word and forget the sum.
const (
	ChecksumAbsent ChecksumState = iota // no A5h signature
	ChecksumOK
	ChecksumBad
)

// String returns absent, ok or bad.
func (s ChecksumState) String() string {
	switch s {
	case ChecksumAbsent:
		return "absent"
	case ChecksumOK:
		return "ok"
	case ChecksumBad:
		return "bad"
	}
	return fmt.Sprintf("ChecksumState(%d)", uint8(s))
}

// Identify holds IDENTIFY DEVICE or IDENTIFY PACKET DEVICE data (ACS-4,
// IDENTIFY DEVICE data; ATA8-ACS, IDENTIFY PACKET DEVICE data).
type Identify struct {
	// MODEL NUMBER (40), FIRMWARE REVISION (8) and SERIAL NUMBER (20) in reading
	// order, without blanks and NULs at both ends. They may hold any other
	// byte. Empty means that the device wrote nothing else.
	Model, Firmware, Serial string

	ATAPI bool // a packet device: optical drive, tape

	// TRIM says that DATA SET MANAGEMENT with the TRIM bit is supported. DRAT and
	// RZAT say that trimmed sectors read the same every time, and as zeros.
	TRIM, DRAT, RZAT bool

	// NCQ says that the native command queuing feature set is supported.
	NCQ bool

	// LBA48 says that the 48-bit Address feature set is supported and names a
	// capacity (words 83 and 100-103): without it a command carries at most 256
	// sectors, with it 65536. It is what the kernel's ata_id_has_lba48 answers
	// (include/linux/ata.h).
	LBA48 bool

	// NativeSATA says that the device itself is Serial ATA: HARDWARE RESET
	// RESULT (word 93) is zero, as it is for a device without a parallel bus
	// (ACS-4, IDENTIFY DEVICE data, words 76-79 and 93), and MAJOR VERSION NUMBER
	// (word 80) names ATA/ATAPI-5 or later (the kernel's ata_id_is_sata). Where
	// it is false on a Serial ATA link, the kernel takes it for a parallel disk
	// behind a bridge and sends at most 256 sectors (drivers/ata/libata-core.c,
	// ata_dev_knobble), unless its quirk BRIDGE_OK says otherwise.
	NativeSATA bool

	ChecksumState ChecksumState

	rotationRate uint16
	queueDepth   uint8
	logical      uint64 // bytes, 0 when not known
	physical     uint64 // bytes, 0 when not known
	sectors      uint64 // 0 when not known
	wwn          uint64 // 0 when not known
}

// Sectors returns the number of logical sectors that can be addressed: the
// 48-bit one (words 100-103) where that feature set is supported, else the 28-bit
// one (words 60-61), as the kernel takes it. ok is false when the device
// reports neither, as a packet device does.
func (id Identify) Sectors() (n uint64, ok bool) { return id.sectors, id.sectors != 0 }

// LogicalSectorBytes returns the logical sector size. It is 512 unless words 106
// and 117-118 say otherwise, for the standard gives no other size to a device
// that does not report one. ok is false for a packet device and when those
// words hold less than 256 words, the standard's minimum.
func (id Identify) LogicalSectorBytes() (n uint64, ok bool) { return id.logical, id.logical != 0 }

// PhysicalSectorBytes returns the physical sector size. ok is false when the
// logical one is not known or word 106 is not valid, as on devices before
// ATA/ATAPI-7. The kernel, hdparm and smartctl then take the logical sector
// size.
func (id Identify) PhysicalSectorBytes() (n uint64, ok bool) { return id.physical, id.physical != 0 }

// Rotation returns NOMINAL MEDIA ROTATION RATE in revolutions per minute, which
// is 0 for media that do not rotate. ok is false when the device does not
// report it or sends a reserved value.
func (id Identify) Rotation() (rpm uint16, ok bool) {
	switch r := id.rotationRate; {
	case r == rotationNonRotating:
		return 0, true
	case r >= rotationMinRPM && r <= rotationMaxRPM:
		return r, true
	}
	return 0, false
}

// QueueDepth returns the maximum queue depth, 1 to 32 commands. ok is false
// without NCQ.
func (id Identify) QueueDepth() (n uint8, ok bool) { return id.queueDepth, id.queueDepth != 0 }

// WWN returns the WORLD WIDE NAME, whose top four bits are the NAA. ok is
// false when word 87 does not say that it is supported, and when it is all
// zeros, which names nothing: some devices set the bit and write no name.
func (id Identify) WWN() (wwn uint64, ok bool) { return id.wwn, id.wwn != 0 }

// ParseIdentify decodes IDENTIFY DEVICE data: 256 little-endian words, as the
// ATA Information VPD page, SG_IO and ata_device/*/id (there as text) have
// them. The error wraps ErrLength or ErrNoData.
func ParseIdentify(b []byte) (Identify, error) {
	if len(b) != IdentifyBytes {
		return Identify{}, fmt.Errorf("parse IDENTIFY DEVICE: %d bytes, want %d: %w", len(b), IdentifyBytes, ErrLength)
	}
	if bytes.Count(b, []byte{0}) == len(b) {
		return Identify{}, fmt.Errorf("parse IDENTIFY DEVICE: all bytes are zero: %w", ErrNoData)
	}
	var d smart.IdentifyDeviceData
	if _, err := binary.Decode(b, binary.LittleEndian, &d); err != nil {
		return Identify{}, fmt.Errorf("parse IDENTIFY DEVICE: %w", err)
	}
	w := func(n int) uint16 { return binary.LittleEndian.Uint16(b[2*n:]) }
	w32 := func(n int) uint64 { return uint64(binary.LittleEndian.Uint32(b[2*n:])) }

	id := Identify{
		Model:         trim(d.ModelNumber()),
		Firmware:      trim(d.FirmwareRevision()),
		Serial:        trim(d.SerialNumber()),
		ATAPI:         d.GeneralConfig>>14 == 0b10 && d.GeneralConfig != compactFlashConfig,
		ChecksumState: checksum(b),
		rotationRate:  d.RotationRate,
	}
	if v := w(wordMajorVersion); w(wordHardwareReset) == 0 && v >= 1<<5 && v < 1<<15 {
		id.NativeSATA = true
	}
	// The kernel does not believe TRIM before ATA/ATAPI-7 either: word 169 was
	// reserved, and old devices leave anything in reserved words.
	if majorVersion(d.MajorVersion) >= 7 && w(wordDataSetManage)&1 != 0 {
		id.TRIM = true
		id.DRAT = w(wordAdditional)&(1<<14) != 0
		id.RZAT = w(wordAdditional)&(1<<5) != 0
	}
	// All zeros and all ones both mean no Serial ATA.
	if sata := w(wordSATA); sata != 0xffff && sata&(1<<8) != 0 {
		id.NCQ = true
		id.queueDepth = uint8(w(wordQueueDepth)&0x1f) + 1
	}
	if valid(d.Word87) && d.Word87&(1<<8) != 0 {
		for _, word := range d.WWNRaw {
			id.wwn = id.wwn<<16 | uint64(word)
		}
	}
	if id.ATAPI {
		return id, nil // the words below are not of a packet device
	}

	if w(wordCapabilities)&(1<<9) != 0 {
		id.sectors = w32(wordLBA28Sectors)
		lba48 := w32(wordLBA48Sectors) | w32(wordLBA48Sectors+2)<<32
		if s := w(wordCommandSets2); valid(s) && s&(1<<10) != 0 && lba48 != 0 {
			id.LBA48, id.sectors = true, lba48
		}
	}
	id.logical = 2 * minLogicalWords
	if s := w(wordSectorSize); valid(s) {
		if s&(1<<12) != 0 {
			id.logical = 2 * w32(wordLogicalSector)
			if id.logical < 2*minLogicalWords {
				id.logical = 0
			}
		}
		id.physical = id.logical
		if s&(1<<13) != 0 {
			id.physical <<= s & 0xf // at most 33 + 15 bits
		}
	}
	return id, nil
}

// valid reports whether bits 15:14 are 01b, by which a device marks some words
// as meant.
func valid(word uint16) bool { return word>>14 == 0b01 }

// majorVersion returns the number of the highest bit in MAJOR VERSION NUMBER; 7
// is ATA/ATAPI-7 and 8 ATA8-ACS. Zero is returned when it is not reported.
func majorVersion(word uint16) int {
	if word == 0xffff {
		return 0
	}
	return max(0, bits.Len16(word)-1)
}

func trim(b []byte) string { return strings.Trim(string(b), " \x00") }

// checksum checks the integrity word: with it, all bytes sum up to zero.
func checksum(b []byte) ChecksumState {
	if b[2*wordIntegrity] != integritySignature {
		return ChecksumAbsent
	}
	var sum uint8
	for _, c := range b {
		sum += c
	}
	if sum != 0 {
		return ChecksumBad
	}
	return ChecksumOK
}
