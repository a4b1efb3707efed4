package scsi

// Field says where a field lies: its name in the standard, the offset of its
// first byte and the number of bytes. Fields smaller than a byte have the byte that
// holds them.
type Field struct {
	Name         string
	Offset, Size int
}

// End returns the number of bytes that hold the field.
func (f Field) End() int { return f.Offset + f.Size }

// InquiryLayout returns the fields of standard INQUIRY data that ParseInquiry
// decodes, in the standard's order.
func InquiryLayout() []Field {
	return []Field{
		{"PERIPHERAL QUALIFIER", inqPeripheral, 1},
		{"PERIPHERAL DEVICE TYPE", inqPeripheral, 1},
		{"RMB", inqRMB, 1},
		{"VERSION", inqVersion, 1},
		{"ADDITIONAL LENGTH", inqAdditionalLength, 1},
		{"T10 VENDOR IDENTIFICATION", inqVendor, inqProduct - inqVendor},
		{"PRODUCT IDENTIFICATION", inqProduct, inqRevision - inqProduct},
		{"PRODUCT REVISION LEVEL", inqRevision, inqRevisionEnd - inqRevision},
	}
}

// Layout returns the fields of fixed place that the parser of a VPD page
// decodes, header apart, in the standard's order. It is nil for a page that has
// none or no parser.
func Layout(page uint8) []Field {
	switch page {
	case PageATAInformation:
		return []Field{
			{"SAT VENDOR IDENTIFICATION", ataSATVendor, ataSATProduct - ataSATVendor},
			{"SAT PRODUCT IDENTIFICATION", ataSATProduct, ataSATRevision - ataSATProduct},
			{"SAT PRODUCT REVISION LEVEL", ataSATRevision, ataDeviceSignature - ataSATRevision},
			{"ATA DEVICE SIGNATURE", ataDeviceSignature, ataCommandCode - ataDeviceSignature},
			{"COMMAND CODE", ataCommandCode, 1},
			{"ATA IDENTIFY DEVICE DATA", ataIdentify, ataIdentifyEnd - ataIdentify},
		}
	case PageBlockLimits:
		return []Field{
			{"WSNZ", blWSNZ, 1},
			{"MAXIMUM COMPARE AND WRITE LENGTH", blMaxCompareAndWrite, 1},
			{"OPTIMAL TRANSFER LENGTH GRANULARITY", blOptimalTransferGranularity, 2},
			{"MAXIMUM TRANSFER LENGTH", blMaxTransfer, 4},
			{"OPTIMAL TRANSFER LENGTH", blOptimalTransfer, 4},
			{"MAXIMUM PREFETCH LENGTH", blMaxPrefetch, 4},
			{"MAXIMUM UNMAP LBA COUNT", blMaxUnmapLBACount, 4},
			{"MAXIMUM UNMAP BLOCK DESCRIPTOR COUNT", blMaxUnmapDescriptorCount, 4},
			{"OPTIMAL UNMAP GRANULARITY", blOptimalUnmapGranularity, 4},
			{"UNMAP GRANULARITY ALIGNMENT", blUnmapGranularityAlignment, 4},
			{"MAXIMUM WRITE SAME LENGTH", blMaxWriteSame, 8},
			{"MAXIMUM ATOMIC TRANSFER LENGTH", blMaxAtomicTransfer, 4},
			{"ATOMIC ALIGNMENT", blAtomicAlignment, 4},
			{"ATOMIC TRANSFER LENGTH GRANULARITY", blAtomicGranularity, 4},
			{"MAXIMUM ATOMIC TRANSFER LENGTH WITH ATOMIC BOUNDARY", blMaxAtomicWithBoundary, 4},
			{"MAXIMUM ATOMIC BOUNDARY SIZE", blMaxAtomicBoundary, 4},
		}
	case PageBlockDeviceCharacteristics:
		return []Field{
			{"MEDIUM ROTATION RATE", bdcRotationRate, 2},
			{"NOMINAL FORM FACTOR", bdcFormFactor, 1},
			{"ZONED", bdcZoned, 1},
		}
	case PageLogicalBlockProvisioning:
		return []Field{
			{"THRESHOLD EXPONENT", lbpThresholdExponent, 1},
			{"LBPU", lbpFlags, 1},
			{"LBPWS", lbpFlags, 1},
			{"LBPWS10", lbpFlags, 1},
			{"LBPRZ", lbpFlags, 1},
			{"ANC_SUP", lbpFlags, 1},
			{"DP", lbpFlags, 1},
			{"MINIMUM PERCENTAGE", lbpProvisioningType, 1},
			{"PROVISIONING TYPE", lbpProvisioningType, 1},
			{"THRESHOLD PERCENTAGE", lbpThresholdPercentage, 1},
		}
	}
	return nil
}
