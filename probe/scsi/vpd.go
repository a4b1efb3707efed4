package scsi

import (
	"bytes"
	"fmt"
	"slices"
)

// Page codes of the VPD pages decoded here (SPC-5, SBC-4 and SAT-4, Vital
// product data parameters).
const (
	PageSupportedPages             uint8 = 0x00
	PageUnitSerialNumber           uint8 = 0x80
	PageDeviceIdentification       uint8 = 0x83
	PageATAInformation             uint8 = 0x89
	PageBlockLimits                uint8 = 0xb0
	PageBlockDeviceCharacteristics uint8 = 0xb1
	PageLogicalBlockProvisioning   uint8 = 0xb2
)

// Byte offsets in every VPD page (SPC-5, VPD page format).
const (
	vpdPeripheral = 0
	vpdPageCode   = 1
	vpdPageLength = 2
	vpdBody       = 4
)

// PageHeader holds the first four bytes of a VPD page (SPC-5, VPD page format).
type PageHeader struct {
	PeripheralQualifier  uint8
	PeripheralDeviceType uint8
	PageCode             uint8
	PageLength           uint16 // bytes the device claims after byte 3

	// Truncated says that a length in the page, PAGE LENGTH or one inside,
	// claims more bytes than are present. What was there whole is in the page.
	Truncated bool
}

// ParsePageHeader decodes the header of any VPD page. It needs 4 bytes and
// otherwise returns an error wrapping ErrShort.
func ParsePageHeader(b []byte) (PageHeader, error) {
	return pageHeader(b, "VPD page")
}

func pageHeader(b []byte, what string) (PageHeader, error) {
	if err := need(b, what, "PAGE LENGTH", vpdPageLength, 2); err != nil {
		return PageHeader{}, err
	}
	h := PageHeader{
		PeripheralQualifier:  b[vpdPeripheral] >> 5,
		PeripheralDeviceType: b[vpdPeripheral] & 0x1f,
		PageCode:             b[vpdPageCode],
		PageLength:           be16(b, vpdPageLength),
	}
	h.Truncated = vpdBody+int(h.PageLength) > len(b)
	return h, nil
}

// page checks that b is the VPD page code and returns its header and its
// bytes, header included so that offsets are the standard's, bounded both by
// PAGE LENGTH and by what is present.
func page(b []byte, code uint8) (PageHeader, []byte, error) {
	what := fmt.Sprintf("VPD page %02xh", code)
	h, err := pageHeader(b, what)
	if err != nil {
		return PageHeader{}, nil, err
	}
	if h.PageCode != code {
		return PageHeader{}, nil, fmt.Errorf("parse %s: PAGE CODE at byte %d is %02xh: %w",
			what, vpdPageCode, h.PageCode, ErrPageCode)
	}
	return h, b[:min(len(b), vpdBody+int(h.PageLength))], nil
}

// SupportedPages holds the Supported VPD Pages page, 00h.
type SupportedPages struct {
	PageHeader
	Pages []uint8 // in the device's order, which should be ascending
}

// Supports reports whether the device lists the page. Ask before sending for a
// page: devices misbehave on pages that they do not list.
func (p SupportedPages) Supports(code uint8) bool {
	return slices.Contains(p.Pages, code)
}

// ParseSupportedPages decodes VPD page 00h (SPC-5, Supported VPD Pages VPD
// page). Errors wrap ErrShort or ErrPageCode.
func ParseSupportedPages(b []byte) (SupportedPages, error) {
	h, b, err := page(b, PageSupportedPages)
	if err != nil {
		return SupportedPages{}, err
	}
	return SupportedPages{PageHeader: h, Pages: bytes.Clone(b[vpdBody:])}, nil
}

// UnitSerialNumber holds the Unit Serial Number page, 80h.
type UnitSerialNumber struct {
	PageHeader
	// ProductSerialNumber is as sent. A device without one sends blanks
	// (SPC-5, Unit Serial Number VPD page), or nothing.
	ProductSerialNumber string
}

// ParseUnitSerialNumber decodes VPD page 80h (SPC-5, Unit Serial Number VPD
// page). Errors wrap ErrShort or ErrPageCode.
func ParseUnitSerialNumber(b []byte) (UnitSerialNumber, error) {
	h, b, err := page(b, PageUnitSerialNumber)
	if err != nil {
		return UnitSerialNumber{}, err
	}
	return UnitSerialNumber{PageHeader: h, ProductSerialNumber: string(b[vpdBody:])}, nil
}

// Byte offsets in the ATA Information VPD page (SAT-4, ATA Information VPD
// page).
const (
	ataSATVendor       = 8
	ataSATProduct      = 16
	ataSATRevision     = 32
	ataDeviceSignature = 36
	ataCommandCode     = 56
	ataIdentify        = 60 // ATA IDENTIFY DEVICE data
	ataIdentifyEnd     = 572
)

// COMMAND CODE values of the ATA Information VPD page: the ATA command whose
// data the page holds.
const (
	CommandIdentifyDevice       uint8 = 0xec
	CommandIdentifyPacketDevice uint8 = 0xa1
)

// ATAInformation holds the ATA Information page, 89h, by which a SATL shows
// the ATA device behind it.
type ATAInformation struct {
	PageHeader

	// SAT VENDOR IDENTIFICATION (8), SAT PRODUCT IDENTIFICATION (16) and SAT
	// PRODUCT REVISION LEVEL (4) as sent. They name the SATL, not the disk.
	SATVendor, SATProduct, SATRevision string

	// DeviceSignature is in the form of a Register Device to Host FIS; its
	// first byte is 34h for SATA and 00h for PATA.
	DeviceSignature [20]byte
	CommandCode     uint8

	identify   [ataIdentifyEnd - ataIdentify]byte
	identifyOK bool
}

// Identify returns the IDENTIFY DEVICE or IDENTIFY PACKET DEVICE data, 256
// little-endian words. ok is false when the page ends before they do, or when
// COMMAND CODE names neither command, which makes the bytes reserved (SAT-4,
// ATA Information VPD page).
func (p ATAInformation) Identify() (data [512]byte, ok bool) {
	return p.identify, p.identifyOK
}

// ParseATAInformation decodes VPD page 89h (SAT-4, ATA Information VPD page).
// It needs the bytes up to and including COMMAND CODE. Errors wrap ErrShort or
// ErrPageCode.
func ParseATAInformation(b []byte) (ATAInformation, error) {
	h, b, err := page(b, PageATAInformation)
	if err != nil {
		return ATAInformation{}, err
	}
	if err := need(b, "VPD page 89h", "COMMAND CODE", ataCommandCode, 1); err != nil {
		return ATAInformation{}, err
	}
	p := ATAInformation{
		PageHeader:      h,
		SATVendor:       string(b[ataSATVendor:ataSATProduct]),
		SATProduct:      string(b[ataSATProduct:ataSATRevision]),
		SATRevision:     string(b[ataSATRevision:ataDeviceSignature]),
		DeviceSignature: [20]byte(b[ataDeviceSignature:ataCommandCode]),
		CommandCode:     b[ataCommandCode],
	}
	known := p.CommandCode == CommandIdentifyDevice || p.CommandCode == CommandIdentifyPacketDevice
	if known && len(b) >= ataIdentifyEnd {
		p.identify = [512]byte(b[ataIdentify:ataIdentifyEnd])
		p.identifyOK = true
	}
	return p, nil
}
