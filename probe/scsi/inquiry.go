package scsi

// Byte offsets in standard INQUIRY data (SPC-5, Standard INQUIRY data).
const (
	inqPeripheral       = 0 // PERIPHERAL QUALIFIER, PERIPHERAL DEVICE TYPE
	inqRMB              = 1
	inqVersion          = 2
	inqAdditionalLength = 4
	inqVendor           = 8  // T10 VENDOR IDENTIFICATION
	inqProduct          = 16 // PRODUCT IDENTIFICATION
	inqRevision         = 32 // PRODUCT REVISION LEVEL
	inqRevisionEnd      = 36
)

// Inquiry holds standard INQUIRY data (SPC-5, Standard INQUIRY data).
type Inquiry struct {
	PeripheralQualifier  uint8 // 0: a device is connected to this logical unit
	PeripheralDeviceType uint8
	Removable            bool  // RMB: the medium is removable
	Version              uint8 // 05h is SPC-3, 06h SPC-4, 07h SPC-5

	// T10 VENDOR IDENTIFICATION, PRODUCT IDENTIFICATION and PRODUCT REVISION
	// LEVEL as sent: 8, 16 and 4 characters, padded right with blanks by
	// devices that keep to the standard. Shorter, or empty, only when the
	// response ends before the field does.
	Vendor, Product, Revision string

	AdditionalLength uint8 // bytes the device claims after byte 4

	// Truncated says that ADDITIONAL LENGTH claims more bytes than are
	// present, as it does whenever the allocation length was smaller.
	Truncated bool
}

// ParseInquiry decodes standard INQUIRY data. It needs the first 5 bytes and
// otherwise returns an error wrapping ErrShort.
//
// An ADDITIONAL LENGTH that ends the data before the strings end does not cut them
// when their bytes are present: such devices exist, and the kernel reads 36
// bytes from them all the same, so that its strings and these agree.
func ParseInquiry(b []byte) (Inquiry, error) {
	if err := need(b, "INQUIRY", "ADDITIONAL LENGTH", inqAdditionalLength, 1); err != nil {
		return Inquiry{}, err
	}
	return Inquiry{
		PeripheralQualifier:  b[inqPeripheral] >> 5,
		PeripheralDeviceType: b[inqPeripheral] & 0x1f,
		Removable:            b[inqRMB]&0x80 != 0,
		Version:              b[inqVersion],
		Vendor:               present(b, inqVendor, inqProduct),
		Product:              present(b, inqProduct, inqRevision),
		Revision:             present(b, inqRevision, inqRevisionEnd),
		AdditionalLength:     b[inqAdditionalLength],
		Truncated:            inqAdditionalLength+1+int(b[inqAdditionalLength]) > len(b),
	}, nil
}

// present returns the part of b[from:to] that exists.
func present(b []byte, from, to int) string {
	return string(b[min(from, len(b)):min(to, len(b))])
}
