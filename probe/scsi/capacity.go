package scsi

import "math/bits"

// Byte offsets in READ CAPACITY(16) parameter data (SBC-4, READ CAPACITY (16)
// parameter data).
const (
	rcLastLBA     = 0 // RETURNED LOGICAL BLOCK ADDRESS
	rcBlockLength = 8 // LOGICAL BLOCK LENGTH IN BYTES
	rcProtection  = 12
	rcExponents   = 13 // P_I_EXPONENT, LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT
	rcAligned     = 14 // LBPME, LBPRZ, LOWEST ALIGNED LOGICAL BLOCK ADDRESS
	rcEnd         = 32
)

// ReadCapacity16 holds READ CAPACITY(16) parameter data (SBC-4, READ CAPACITY
// (16) parameter data).
type ReadCapacity16 struct {
	LastLBA uint64 // RETURNED LOGICAL BLOCK ADDRESS: one less than the number of blocks

	ProtEn        bool  // PROT_EN: formatted with protection information
	PType         uint8 // P_TYPE: protection type less one, when ProtEn
	PIExponent    uint8 // P_I_EXPONENT
	LBPPBE        uint8 // LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT
	LBPME         bool  // logical block provisioning management is enabled
	LBPRZ         bool  // an unmapped block reads as zeros
	LowestAligned uint16

	// Truncated says that fewer than the 32 bytes of the standard are
	// present.
	Truncated bool

	logicalBlockBytes uint32
}

// Blocks returns the number of logical blocks. ok is false when it does not
// fit: the last LBA is then FFFF_FFFF_FFFF_FFFFh.
func (c ReadCapacity16) Blocks() (n uint64, ok bool) {
	n = c.LastLBA + 1
	return n, n != 0
}

// LogicalBlockBytes returns LOGICAL BLOCK LENGTH IN BYTES. ok is false when it
// is zero, which is no block length.
func (c ReadCapacity16) LogicalBlockBytes() (n uint32, ok bool) {
	return c.logicalBlockBytes, c.logicalBlockBytes != 0
}

// PhysicalBlockBytes returns the length of a physical block in bytes. ok is
// false when the length of a logical block is not known. An exponent of zero
// means one or more physical blocks per logical block, and the result is then
// the length of a logical block.
func (c ReadCapacity16) PhysicalBlockBytes() (n uint64, ok bool) {
	// At most 32 + 15 bits.
	return uint64(c.logicalBlockBytes) << c.LBPPBE, c.logicalBlockBytes != 0
}

// SizeBytes returns the capacity in bytes. ok is false when a factor is not
// known or the product does not fit in 64 bits.
func (c ReadCapacity16) SizeBytes() (n uint64, ok bool) {
	blocks, ok := c.Blocks()
	if !ok || c.logicalBlockBytes == 0 {
		return 0, false
	}
	hi, lo := bits.Mul64(blocks, uint64(c.logicalBlockBytes))
	if hi != 0 {
		return 0, false
	}
	return lo, true
}

// ParseReadCapacity16 decodes READ CAPACITY(16) parameter data. It needs the 16
// bytes through LOWEST ALIGNED LOGICAL BLOCK ADDRESS and otherwise returns an
// error wrapping ErrShort.
func ParseReadCapacity16(b []byte) (ReadCapacity16, error) {
	const what = "READ CAPACITY(16)"
	if err := need(b, what, "LOWEST ALIGNED LOGICAL BLOCK ADDRESS", rcAligned, 2); err != nil {
		return ReadCapacity16{}, err
	}
	return ReadCapacity16{
		LastLBA:           be64(b, rcLastLBA),
		ProtEn:            b[rcProtection]&0x01 != 0,
		PType:             b[rcProtection] >> 1 & 0x7,
		PIExponent:        b[rcExponents] >> 4,
		LBPPBE:            b[rcExponents] & 0xf,
		LBPME:             b[rcAligned]&0x80 != 0,
		LBPRZ:             b[rcAligned]&0x40 != 0,
		LowestAligned:     be16(b, rcAligned) & 0x3fff,
		Truncated:         len(b) < rcEnd,
		logicalBlockBytes: be32(b, rcBlockLength),
	}, nil
}
