package scsi

import "bytes"

// Association tells what a designator names (SPC-5, Designation descriptor,
// ASSOCIATION field).
type Association uint8

// The values of ASSOCIATION; 3 is reserved.
const (
	AssociationLogicalUnit  Association = 0
	AssociationTargetPort   Association = 1
	AssociationTargetDevice Association = 2
)

// DesignatorType tells the format of a designator (SPC-5, Designation
// descriptor, DESIGNATOR TYPE field).
type DesignatorType uint8

// The values of DESIGNATOR TYPE; 0Bh to 0Fh are reserved.
const (
	DesignatorVendorSpecific       DesignatorType = 0x0
	DesignatorT10VendorID          DesignatorType = 0x1
	DesignatorEUI64                DesignatorType = 0x2
	DesignatorNAA                  DesignatorType = 0x3
	DesignatorRelativeTargetPort   DesignatorType = 0x4
	DesignatorTargetPortGroup      DesignatorType = 0x5
	DesignatorLogicalUnitGroup     DesignatorType = 0x6
	DesignatorMD5LogicalUnit       DesignatorType = 0x7
	DesignatorSCSIName             DesignatorType = 0x8
	DesignatorProtocolSpecificPort DesignatorType = 0x9
	DesignatorUUID                 DesignatorType = 0xa
)

// CodeSet tells how the bytes of a designator are written (SPC-5, Designation
// descriptor, CODE SET field).
type CodeSet uint8

// The values of CODE SET; others are reserved.
const (
	CodeSetBinary CodeSet = 1
	CodeSetASCII  CodeSet = 2
	CodeSetUTF8   CodeSet = 3
)

// Byte offsets in a designation descriptor (SPC-5, Designation descriptor).
const (
	desProtocolCodeSet = 0 // PROTOCOL IDENTIFIER, CODE SET
	desType            = 1 // PIV, ASSOCIATION, DESIGNATOR TYPE
	desLength          = 3 // DESIGNATOR LENGTH
	desDesignator      = 4
)

// Designator is one designation descriptor of the Device Identification VPD
// page. Its fields are the device's own, reserved values included.
type Designator struct {
	Association Association
	Type        DesignatorType
	CodeSet     CodeSet
	PIV         bool  // ProtocolID is valid
	ProtocolID  uint8 // PROTOCOL IDENTIFIER; 6h is SAS, 0h Fibre Channel
	Designator  []byte
}

// DeviceIdentification holds the Device Identification page, 83h.
type DeviceIdentification struct {
	PageHeader
	Designators []Designator // in the device's order
}

// ParseDeviceIdentification decodes VPD page 83h (SPC-5, Device Identification
// VPD page). A descriptor that reaches beyond the end of the page ends the
// list and sets Truncated; the ones before it are kept. Errors wrap ErrShort
// or ErrPageCode.
func ParseDeviceIdentification(b []byte) (DeviceIdentification, error) {
	h, b, err := page(b, PageDeviceIdentification)
	if err != nil {
		return DeviceIdentification{}, err
	}
	p := DeviceIdentification{PageHeader: h}
	// Each turn takes at least the four bytes of a descriptor header, so a
	// DESIGNATOR LENGTH of zero cannot hold the loop.
	for d := b[vpdBody:]; len(d) > 0; {
		if len(d) < desDesignator {
			p.Truncated = true
			break
		}
		end := desDesignator + int(d[desLength])
		if end > len(d) {
			p.Truncated = true
			break
		}
		p.Designators = append(p.Designators, Designator{
			Association: Association(d[desType] >> 4 & 0x3),
			Type:        DesignatorType(d[desType] & 0xf),
			CodeSet:     CodeSet(d[desProtocolCodeSet] & 0xf),
			PIV:         d[desType]&0x80 != 0,
			ProtocolID:  d[desProtocolCodeSet] >> 4,
			Designator:  bytes.Clone(d[desDesignator:end]),
		})
		d = d[end:]
	}
	return p, nil
}
