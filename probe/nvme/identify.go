// Package nvme decodes NVMe Identify Controller data.
//
// It is a leaf: a pure function from bytes to a value, with no I/O. The bytes
// come from a device and are not trusted.
package nvme

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"strings"
)

// IdentifyBytes is the length of an Identify data structure.
const IdentifyBytes = 4096

// ErrShort is wrapped by the error for data that ends before a field decoded
// here.
var ErrShort = errors.New("too short")

// ErrNoData is wrapped by the error for data that is all zeros, as a command
// that transferred nothing leaves its buffer.
var ErrNoData = errors.New("no identify data")

// Byte offsets in the Identify Controller data structure (NVM Express Base
// Specification 2.0, Identify Controller data structure).
const (
	icVID       = 0
	icSSVID     = 2
	icSN        = 4
	icMN        = 24
	icFR        = 64
	icRAB       = 72
	icIEEE      = 73
	icCMIC      = 76
	icMDTS      = 77
	icCNTLID    = 78
	icVER       = 80
	icOAES      = 92
	icCTRATT    = 96
	icOACS      = 256
	icFRMW      = 260
	icAPSTA     = 265
	icNN        = 516
	icONCS      = 520
	icVWC       = 525
	icSGLS      = 536
	icSUBNQN    = 768
	icSUBNQNEnd = 1024
)

// IdentifyController holds the Identify Controller data structure (NVM Express
// Base Specification 2.0, Identify Controller data structure).
type IdentifyController struct {
	VID   uint16 // PCI Vendor ID
	SSVID uint16 // PCI Subsystem Vendor ID

	// Serial Number (20), Model Number (40) and Firmware Revision (8), without
	// blanks and NULs at both ends. They may hold any other byte.
	SN, MN, FR string

	RAB    uint8   // Recommended Arbitration Burst
	IEEE   [3]byte // IEEE OUI Identifier, least significant byte first
	CMIC   uint8   // Controller Multi-Path I/O and Namespace Sharing Capabilities
	MDTS   uint8   // Maximum Data Transfer Size, as sent; see MaxTransferBytes
	CNTLID uint16  // Controller ID
	VER    uint32  // Version, as sent; see Version
	OAES   uint32  // Optional Asynchronous Events Supported
	CTRATT uint32  // Controller Attributes
	OACS   uint16  // Optional Admin Command Support
	FRMW   uint8   // Firmware Updates
	APSTA  uint8   // Autonomous Power State Transition Attributes
	NN     uint32  // Number of Namespaces
	ONCS   uint16  // Optional NVM Command Support
	VWC    uint8   // Volatile Write Cache; see VolatileWriteCache
	SGLS   uint32  // SGL Support

	subnqn string
}

// MaxTransferBytes returns MDTS in bytes, given the bytes of the controller's
// smallest page, CAP.MPSMIN (4096 on all but a few). MDTS is a power of
// two in units of that page. ok is false when MDTS is zero, which is no limit,
// when the result is beyond 64 bits, which limits nobody either, and when
// mpsMinBytes is zero, that is, not known.
func (c IdentifyController) MaxTransferBytes(mpsMinBytes uint64) (n uint64, ok bool) {
	if c.MDTS == 0 || mpsMinBytes == 0 || int(c.MDTS) > bits.LeadingZeros64(mpsMinBytes) {
		return 0, false
	}
	return mpsMinBytes << c.MDTS, true
}

// Version returns the version of the specification that the controller
// implements. ok is false before NVMe 1.2, whose controllers leave VER zero.
func (c IdentifyController) Version() (major uint16, minor, tertiary uint8, ok bool) {
	return uint16(c.VER >> 16), uint8(c.VER >> 8), uint8(c.VER), c.VER != 0
}

// VolatileWriteCache reports whether a volatile write cache is present (VWC bit
// 0). Whether it is enabled is a feature, not in this data.
func (c IdentifyController) VolatileWriteCache() bool { return c.VWC&1 != 0 }

// SUBNQN returns the NVM Subsystem NVMe Qualified Name, up to its first NUL. ok
// is false when there is none, as before NVMe 1.2.1; the kernel then makes
// one up.
func (c IdentifyController) SUBNQN() (nqn string, ok bool) { return c.subnqn, c.subnqn != "" }

// ParseIdentifyController decodes Identify Controller data. The structure has
// 4096 bytes, of which the first 1024, through SUBNQN, are needed; less is
// refused with an error that wraps ErrShort, because a field that is not there
// would be read as zero, and zero means no limit or no support. For the same
// reason, do not fill up a cut capture with zeros. Data that is all zeros is
// refused with ErrNoData.
func ParseIdentifyController(b []byte) (IdentifyController, error) {
	if len(b) < icSUBNQNEnd {
		return IdentifyController{}, fmt.Errorf("parse Identify Controller: SUBNQN at byte %d needs %d bytes, have %d: %w",
			icSUBNQN, icSUBNQNEnd, len(b), ErrShort)
	}
	b = b[:icSUBNQNEnd]
	if bytes.Count(b, []byte{0}) == len(b) {
		return IdentifyController{}, fmt.Errorf("parse Identify Controller: all bytes are zero: %w", ErrNoData)
	}
	le := binary.LittleEndian
	nqn, _, _ := bytes.Cut(b[icSUBNQN:icSUBNQNEnd], []byte{0})
	return IdentifyController{
		VID:    le.Uint16(b[icVID:]),
		SSVID:  le.Uint16(b[icSSVID:]),
		SN:     trim(b[icSN:icMN]),
		MN:     trim(b[icMN:icFR]),
		FR:     trim(b[icFR:icRAB]),
		RAB:    b[icRAB],
		IEEE:   [3]byte(b[icIEEE:icCMIC]),
		CMIC:   b[icCMIC],
		MDTS:   b[icMDTS],
		CNTLID: le.Uint16(b[icCNTLID:]),
		VER:    le.Uint32(b[icVER:]),
		OAES:   le.Uint32(b[icOAES:]),
		CTRATT: le.Uint32(b[icCTRATT:]),
		OACS:   le.Uint16(b[icOACS:]),
		FRMW:   b[icFRMW],
		APSTA:  b[icAPSTA],
		NN:     le.Uint32(b[icNN:]),
		ONCS:   le.Uint16(b[icONCS:]),
		VWC:    b[icVWC],
		SGLS:   le.Uint32(b[icSGLS:]),
		subnqn: string(nqn),
	}, nil
}

func trim(b []byte) string { return strings.Trim(string(b), " \x00") }
