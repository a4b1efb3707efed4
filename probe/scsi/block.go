package scsi

// Byte offsets in the Block Limits VPD page (SBC-4, Block Limits VPD page).
const (
	blWSNZ                       = 4
	blMaxCompareAndWrite         = 5
	blOptimalTransferGranularity = 6
	blMaxTransfer                = 8
	blOptimalTransfer            = 12
	blMaxPrefetch                = 16
	blMaxUnmapLBACount           = 20
	blMaxUnmapDescriptorCount    = 24
	blOptimalUnmapGranularity    = 28
	blUnmapGranularityAlignment  = 32 // with UGAVALID in the top bit
	blMaxWriteSame               = 36
	blMaxAtomicTransfer          = 44
	blAtomicAlignment            = 48
	blAtomicGranularity          = 52
	blMaxAtomicWithBoundary      = 56
	blMaxAtomicBoundary          = 60
	blEnd                        = 64
)

const ugavalid = 1 << 31

// BlockLimits holds the Block Limits page, B0h. All lengths are in logical
// blocks. The page grew: SBC-2 has a PAGE LENGTH of 0Ch, which ends after
// OPTIMAL TRANSFER LENGTH, later drafts 10h and 3Ch. A method for a field beyond
// the end of the page answers ok == false.
type BlockLimits struct {
	PageHeader
	raw [blEnd]byte
	n   int // bytes of raw that the page holds
}

// ParseBlockLimits decodes VPD page B0h (SBC-4, Block Limits VPD page). It
// needs the 16 bytes of the SBC-2 page. Errors wrap ErrShort or ErrPageCode.
func ParseBlockLimits(b []byte) (BlockLimits, error) {
	h, b, err := page(b, PageBlockLimits)
	if err != nil {
		return BlockLimits{}, err
	}
	if err := need(b, "VPD page b0h", "OPTIMAL TRANSFER LENGTH", blOptimalTransfer, 4); err != nil {
		return BlockLimits{}, err
	}
	p := BlockLimits{PageHeader: h}
	p.n = copy(p.raw[:], b)
	return p, nil
}

// at returns the four-byte field at offset; ok is false when the page ends
// before it does.
func (p BlockLimits) at(offset int) (n uint32, ok bool) {
	if p.n < offset+4 {
		return 0, false
	}
	return be32(p.raw[:], offset), true
}

// nonzero is at for fields in which zero means not reported.
func (p BlockLimits) nonzero(offset int) (n uint32, ok bool) {
	n, _ = p.at(offset)
	return n, n != 0
}

// WSNZ reports whether WRITE SAME with a zero NUMBER OF LOGICAL BLOCKS, which
// means up to the end of the medium, is refused.
func (p BlockLimits) WSNZ() bool { return p.raw[blWSNZ]&1 != 0 }

// MaxCompareAndWriteBlocks returns MAXIMUM COMPARE AND WRITE LENGTH in logical
// blocks. Zero means that COMPARE AND WRITE is not implemented.
func (p BlockLimits) MaxCompareAndWriteBlocks() uint8 { return p.raw[blMaxCompareAndWrite] }

// OptimalTransferGranularityBlocks returns OPTIMAL TRANSFER LENGTH GRANULARITY
// in logical blocks. ok is false when the device reports none, which it writes
// as zero.
func (p BlockLimits) OptimalTransferGranularityBlocks() (n uint16, ok bool) {
	n = be16(p.raw[:], blOptimalTransferGranularity)
	return n, n != 0
}

// MaxTransferBlocks returns MAXIMUM TRANSFER LENGTH in logical blocks. ok is
// false when the device reports no limit, which it writes as zero.
func (p BlockLimits) MaxTransferBlocks() (n uint32, ok bool) { return p.nonzero(blMaxTransfer) }

// OptimalTransferBlocks returns OPTIMAL TRANSFER LENGTH in logical blocks. ok
// is false when the device reports none, which it writes as zero.
func (p BlockLimits) OptimalTransferBlocks() (n uint32, ok bool) {
	return p.nonzero(blOptimalTransfer)
}

// MaxPrefetchBlocks returns MAXIMUM PREFETCH LENGTH in logical blocks. ok is
// false when the page does not hold the field or holds zero.
func (p BlockLimits) MaxPrefetchBlocks() (n uint32, ok bool) { return p.nonzero(blMaxPrefetch) }

// MaxUnmapLBACount returns MAXIMUM UNMAP LBA COUNT in logical blocks. ok is
// false when the page does not hold the field. Zero means that UNMAP is not
// implemented, FFFF_FFFFh that there is no limit.
func (p BlockLimits) MaxUnmapLBACount() (n uint32, ok bool) { return p.at(blMaxUnmapLBACount) }

// MaxUnmapBlockDescriptorCount returns MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT. ok
// is false when the page does not hold the field. Zero means that UNMAP is not
// implemented, FFFF_FFFFh that there is no limit.
func (p BlockLimits) MaxUnmapBlockDescriptorCount() (n uint32, ok bool) {
	return p.at(blMaxUnmapDescriptorCount)
}

// OptimalUnmapGranularityBlocks returns OPTIMAL UNMAP GRANULARITY in logical
// blocks. ok is false when the device reports none, which it writes as zero,
// or the page does not hold the field.
func (p BlockLimits) OptimalUnmapGranularityBlocks() (n uint32, ok bool) {
	return p.nonzero(blOptimalUnmapGranularity)
}

// UnmapGranularityAlignmentBlocks returns UNMAP GRANULARITY ALIGNMENT, the first
// LBA to which the optimal unmap granularity applies. ok is false when UGAVALID
// is zero or the page does not hold the field.
func (p BlockLimits) UnmapGranularityAlignmentBlocks() (n uint32, ok bool) {
	n, _ = p.at(blUnmapGranularityAlignment)
	return n &^ ugavalid, n&ugavalid != 0
}

// MaxWriteSameBlocks returns MAXIMUM WRITE SAME LENGTH in logical blocks. ok is
// false when the device reports no limit, which it writes as zero, or the page
// does not hold the field.
func (p BlockLimits) MaxWriteSameBlocks() (n uint64, ok bool) {
	if p.n < blMaxAtomicTransfer {
		return 0, false
	}
	n = be64(p.raw[:], blMaxWriteSame)
	return n, n != 0
}

// MaxAtomicTransferBlocks returns MAXIMUM ATOMIC TRANSFER LENGTH in logical
// blocks. ok is false when the device reports none, which it writes as zero, or
// the page does not hold the field.
func (p BlockLimits) MaxAtomicTransferBlocks() (n uint32, ok bool) {
	return p.nonzero(blMaxAtomicTransfer)
}

// AtomicAlignmentBlocks returns ATOMIC ALIGNMENT in logical blocks. ok is false
// when the page does not hold the field. Zero means that no alignment is
// required.
func (p BlockLimits) AtomicAlignmentBlocks() (n uint32, ok bool) { return p.at(blAtomicAlignment) }

// AtomicTransferGranularityBlocks returns ATOMIC TRANSFER LENGTH GRANULARITY in
// logical blocks. ok is false when the page does not hold the field. Zero means
// that no granularity is required.
func (p BlockLimits) AtomicTransferGranularityBlocks() (n uint32, ok bool) {
	return p.at(blAtomicGranularity)
}

// MaxAtomicTransferWithBoundaryBlocks returns MAXIMUM ATOMIC TRANSFER LENGTH
// WITH ATOMIC BOUNDARY in logical blocks. ok is false when the device reports
// none, which it writes as zero, or the page does not hold the field.
func (p BlockLimits) MaxAtomicTransferWithBoundaryBlocks() (n uint32, ok bool) {
	return p.nonzero(blMaxAtomicWithBoundary)
}

// MaxAtomicBoundaryBlocks returns MAXIMUM ATOMIC BOUNDARY SIZE in logical
// blocks. ok is false when the page does not hold the field. Zero means that
// writes with an atomic boundary are limited to one block.
func (p BlockLimits) MaxAtomicBoundaryBlocks() (n uint32, ok bool) {
	return p.at(blMaxAtomicBoundary)
}

// Byte offsets in the Block Device Characteristics VPD page (SBC-4, Block
// Device Characteristics VPD page).
const (
	bdcRotationRate = 4
	bdcFormFactor   = 7 // WABEREQ, WACEREQ, NOMINAL FORM FACTOR
	bdcZoned        = 8 // ZONED, RBWZ, BOCS, FUAB, VBULS
)

// Values of MEDIUM ROTATION RATE. Those not named and not within the two limits
// are reserved.
const (
	rotationNonRotating = 0x0001
	rotationMinRPM      = 0x0401
	rotationMaxRPM      = 0xfffe
)

// Zoned tells what a device says of its zones (SBC-4, Block Device
// Characteristics VPD page, ZONED field).
type Zoned uint8

// The values of ZONED besides zero, which is not reported; 3 is reserved.
const (
	ZonedHostAware     Zoned = 1
	ZonedDeviceManaged Zoned = 2
)

// BlockDeviceCharacteristics holds the Block Device Characteristics page, B1h.
type BlockDeviceCharacteristics struct {
	PageHeader
	MediumRotationRate uint16 // as sent; see Rotation
	formFactor         uint8
	zoned              Zoned
}

// Rotation returns MEDIUM ROTATION RATE in revolutions per minute, which is 0
// for a medium that does not rotate. ok is false when the device does not
// report it or sends a reserved value.
func (p BlockDeviceCharacteristics) Rotation() (rpm uint16, ok bool) {
	switch r := p.MediumRotationRate; {
	case r == rotationNonRotating:
		return 0, true
	case r >= rotationMinRPM && r <= rotationMaxRPM:
		return r, true
	}
	return 0, false
}

// NominalFormFactor returns the code in NOMINAL FORM FACTOR: 1 is 5.25 inch, 2
// is 3.5, 3 is 2.5, 4 is 1.8 and 5 is less than 1.8 inch. ok is false when the
// device does not report it, which it writes as zero.
func (p BlockDeviceCharacteristics) NominalFormFactor() (code uint8, ok bool) {
	return p.formFactor, p.formFactor != 0
}

// Zoned returns the ZONED field. ok is false when the device does not report
// it, which it writes as zero, or the page does not hold the field. A
// host-managed zoned device reports nothing here: its PERIPHERAL DEVICE TYPE
// is 14h.
func (p BlockDeviceCharacteristics) Zoned() (z Zoned, ok bool) {
	return p.zoned, p.zoned != 0
}

// ParseBlockDeviceCharacteristics decodes VPD page B1h (SBC-4, Block Device
// Characteristics VPD page). It needs the 8 bytes through NOMINAL FORM FACTOR.
// Errors wrap ErrShort or ErrPageCode.
func ParseBlockDeviceCharacteristics(b []byte) (BlockDeviceCharacteristics, error) {
	h, b, err := page(b, PageBlockDeviceCharacteristics)
	if err != nil {
		return BlockDeviceCharacteristics{}, err
	}
	if err := need(b, "VPD page b1h", "NOMINAL FORM FACTOR", bdcFormFactor, 1); err != nil {
		return BlockDeviceCharacteristics{}, err
	}
	p := BlockDeviceCharacteristics{
		PageHeader:         h,
		MediumRotationRate: be16(b, bdcRotationRate),
		formFactor:         b[bdcFormFactor] & 0xf,
	}
	if len(b) > bdcZoned {
		p.zoned = Zoned(b[bdcZoned] >> 4 & 0x3)
	}
	return p, nil
}

// Byte offsets in the Logical Block Provisioning VPD page (SBC-4, Logical Block
// Provisioning VPD page).
const (
	lbpThresholdExponent   = 4
	lbpFlags               = 5 // LBPU, LBPWS, LBPWS10, LBPRZ, ANC_SUP, DP
	lbpProvisioningType    = 6 // MINIMUM PERCENTAGE, PROVISIONING TYPE
	lbpThresholdPercentage = 7
)

// ProvisioningType tells how a logical unit is provisioned (SBC-4, Logical
// Block Provisioning VPD page, PROVISIONING TYPE field).
type ProvisioningType uint8

// The values of PROVISIONING TYPE; others are reserved.
const (
	ProvisioningFull     ProvisioningType = 0 // fully provisioned, or not reported
	ProvisioningResource ProvisioningType = 1
	ProvisioningThin     ProvisioningType = 2
)

// LogicalBlockProvisioning holds the Logical Block Provisioning page, B2h,
// without its PROVISIONING GROUP DESCRIPTOR.
type LogicalBlockProvisioning struct {
	PageHeader
	LBPU    bool  // UNMAP is supported
	LBPWS   bool  // WRITE SAME(16) with the UNMAP bit is supported
	LBPWS10 bool  // WRITE SAME(10) with the UNMAP bit is supported
	LBPRZ   uint8 // what an unmapped block reads as; 1: zeros
	ANCSup  bool  // ANC_SUP: anchored LBAs are supported
	DP      bool  // a PROVISIONING GROUP DESCRIPTOR follows

	ThresholdExponent   uint8 // 0: no logical block provisioning thresholds
	ProvisioningType    ProvisioningType
	MinimumPercentage   uint8 // 0: not reported
	ThresholdPercentage uint8 // 0: not supported
}

// ParseLogicalBlockProvisioning decodes VPD page B2h (SBC-4, Logical Block
// Provisioning VPD page). It needs 8 bytes. Errors wrap ErrShort or
// ErrPageCode.
func ParseLogicalBlockProvisioning(b []byte) (LogicalBlockProvisioning, error) {
	h, b, err := page(b, PageLogicalBlockProvisioning)
	if err != nil {
		return LogicalBlockProvisioning{}, err
	}
	if err := need(b, "VPD page b2h", "THRESHOLD PERCENTAGE", lbpThresholdPercentage, 1); err != nil {
		return LogicalBlockProvisioning{}, err
	}
	f := b[lbpFlags]
	return LogicalBlockProvisioning{
		PageHeader:          h,
		LBPU:                f&0x80 != 0,
		LBPWS:               f&0x40 != 0,
		LBPWS10:             f&0x20 != 0,
		LBPRZ:               f >> 2 & 0x7,
		ANCSup:              f&0x02 != 0,
		DP:                  f&0x01 != 0,
		ThresholdExponent:   b[lbpThresholdExponent],
		ProvisioningType:    ProvisioningType(b[lbpProvisioningType] & 0x7),
		MinimumPercentage:   b[lbpProvisioningType] >> 3,
		ThresholdPercentage: b[lbpThresholdPercentage],
	}, nil
}
