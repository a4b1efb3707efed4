package ioctl

import (
	"encoding/binary"
	"fmt"
)

// Sense keys (SPC-5, Sense key descriptions).
const (
	KeyNoSense        = 0x0
	KeyRecoveredError = 0x1
	KeyNotReady       = 0x2
	KeyMediumError    = 0x3
	KeyHardwareError  = 0x4
	KeyIllegalRequest = 0x5
	KeyUnitAttention  = 0x6
	KeyDataProtect    = 0x7
	KeyBlankCheck     = 0x8
	KeyVendorSpecific = 0x9
	KeyCopyAborted    = 0xa
	KeyAbortedCommand = 0xb
	KeyVolumeOverflow = 0xd
	KeyMiscompare     = 0xe
	KeyCompleted      = 0xf
)

// ascReset is ADDITIONAL SENSE CODE 29h: POWER ON, RESET, OR BUS DEVICE RESET
// OCCURRED.
const ascReset = 0x29

var keyNames = [16]string{
	"NO SENSE", "RECOVERED ERROR", "NOT READY", "MEDIUM ERROR", "HARDWARE ERROR", "ILLEGAL REQUEST", "UNIT ATTENTION",
	"DATA PROTECT", "BLANK CHECK", "VENDOR SPECIFIC", "COPY ABORTED", "ABORTED COMMAND", "sense key Ch", "VOLUME OVERFLOW",
	"MISCOMPARE", "COMPLETED",
}

// Sense is decoded sense data (SPC-5, Sense data).
type Sense struct {
	Key, ASC, ASCQ uint8
	// Deferred says that the error is of an earlier command (response codes 71h
	// and 73h).
	Deferred bool
	// Descriptor says that the data came in descriptor format (72h, 73h).
	Descriptor bool
	// Information is the INFORMATION field where Valid: for a read, write or
	// verify the LBA, in logical blocks.
	Information uint64
	Valid       bool
}

// DecodeSense decodes sense data of fixed and descriptor format. Fields that lie
// behind the bytes present, or behind the device's own length, are zero. The
// error wraps ErrShort, or says that the response code is of neither format.
func DecodeSense(b []byte) (Sense, error) {
	if len(b) < 1 {
		return Sense{}, fmt.Errorf("sense data: %w: none", ErrShort)
	}
	code := b[0] & 0x7f
	switch code {
	case 0x70, 0x71:
		if len(b) < 3 {
			return Sense{}, fmt.Errorf("sense data: %w: %d bytes", ErrShort, len(b))
		}
		s := Sense{Key: b[2] & 0xf, Deferred: code == 0x71}
		if len(b) >= 7 && b[0]&0x80 != 0 {
			s.Valid, s.Information = true, uint64(binary.BigEndian.Uint32(b[3:]))
		}
		if len(b) >= 8 {
			b = b[:min(len(b), 8+int(b[7]))]
		}
		if len(b) > 12 {
			s.ASC = b[12]
		}
		if len(b) > 13 {
			s.ASCQ = b[13]
		}
		return s, nil
	case 0x72, 0x73:
		if len(b) < 4 {
			return Sense{}, fmt.Errorf("sense data: %w: %d bytes", ErrShort, len(b))
		}
		s := Sense{Key: b[1] & 0xf, ASC: b[2], ASCQ: b[3], Deferred: code == 0x73, Descriptor: true}
		if len(b) < 8 {
			return s, nil
		}
		// Each descriptor: type, additional length, then so many bytes.
		for d := b[8:min(len(b), 8+int(b[7]))]; len(d) >= 2; {
			n := 2 + int(d[1])
			if n > len(d) {
				break
			}
			// The information descriptor: type 00h, additional length 0Ah, VALID in
			// bit 7 of byte 2, INFORMATION in bytes 4 to 11.
			if d[0] == 0x00 && n >= 12 && d[2]&0x80 != 0 {
				s.Valid, s.Information = true, binary.BigEndian.Uint64(d[4:])
			}
			d = d[n:]
		}
		return s, nil
	}
	return Sense{}, fmt.Errorf("sense data: response code %02Xh is of no known format", code)
}

// String is the sense for people, as "ILLEGAL REQUEST 5h/24h/00h (invalid field
// in CDB)".
func (s Sense) String() string {
	text := fmt.Sprintf("%s %Xh/%02Xh/%02Xh", keyNames[s.Key&0xf], s.Key, s.ASC, s.ASCQ)
	if name := ascName(s.ASC, s.ASCQ); name != "" {
		text += " (" + name + ")"
	}
	if s.Valid {
		text += fmt.Sprintf(" at %d", s.Information)
	}
	if s.Deferred {
		text = "deferred " + text
	}
	return text
}

// ascName names the additional sense codes that transfers meet (SPC-5, ASC and
// ASCQ assignments).
func ascName(asc, ascq uint8) string {
	switch uint16(asc)<<8 | uint16(ascq) {
	case 0x0401:
		return "logical unit is in process of becoming ready"
	case 0x0800:
		return "logical unit communication failure"
	case 0x0801:
		return "logical unit communication time-out"
	case 0x0c00:
		return "write error"
	case 0x1100:
		return "unrecovered read error"
	case 0x1d00:
		return "miscompare during verify operation"
	case 0x1a00:
		return "parameter list length error"
	case 0x2000:
		return "invalid command operation code"
	case 0x2100:
		return "logical block address out of range"
	case 0x2400:
		return "invalid field in CDB"
	case 0x2500:
		return "logical unit not supported"
	case 0x2700:
		return "write protected"
	case 0x2900:
		return "power on, reset, or bus device reset occurred"
	case 0x2a09:
		return "capacity data has changed"
	case 0x3a00:
		return "medium not present"
	case 0x3f0e:
		return "reported LUNs data has changed"
	case 0x4400:
		return "internal target failure"
	case 0x4700:
		return "SCSI parity error"
	case 0x4b00:
		return "data phase error"
	case 0x4e00:
		return "overlapped commands attempted"
	}
	if asc == ascReset {
		return "reset occurred"
	}
	return ""
}
