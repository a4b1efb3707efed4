// Package scsi decodes what a SCSI device says about itself: standard INQUIRY
// data, vital product data (VPD) pages and READ CAPACITY(16) data.
//
// It is a leaf: pure functions from bytes to values, with no I/O. Whoever has
// the bytes (sysfs, SG_IO, a capture) passes exactly those the device
// sent; bytes beyond them would be read as the device's own.
//
// The bytes are not trusted. Every length that a device reports is bounded by
// the bytes present before it is used:
//
//   - When the bytes needed are missing, the parser returns an error that wraps
//     ErrShort and names the page, the field and its offset.
//   - When a length claims more than is present but the needed fields are
//     there, the parser returns them and sets Truncated.
//
// A field that a page is too short to hold, or that holds the standard's value
// for "not reported", answers ok == false. Zero is returned with ok == true only
// where zero means something, and the comment then says what.
//
// Strings are as sent, with their padding: whether PRODUCT IDENTIFICATION ends
// in a blank tells whether a SATL has cut an ATA model number. They may hold
// any byte.
package scsi

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrShort is wrapped by the error of a parser that got fewer bytes than its
// needed fields take.
var ErrShort = errors.New("too short")

// ErrPageCode is wrapped by the error of a VPD page parser when the PAGE CODE
// field names another page. Devices that ignore the EVPD bit answer with
// standard INQUIRY data, and some answer with the page asked for before.
var ErrPageCode = errors.New("wrong page code")

// need returns an error when b, which is all of the structure named what, does
// not hold the size bytes of field at offset.
func need(b []byte, what, field string, offset, size int) error {
	if len(b) >= offset+size {
		return nil
	}
	return fmt.Errorf("parse %s: %s at byte %d needs %d bytes, have %d: %w",
		what, field, offset, offset+size, len(b), ErrShort)
}

// Shorthands: all SCSI fields are big-endian (SPC-5, Data field requirements).
func be16(b []byte, offset int) uint16 { return binary.BigEndian.Uint16(b[offset:]) }
func be32(b []byte, offset int) uint32 { return binary.BigEndian.Uint32(b[offset:]) }
func be64(b []byte, offset int) uint64 { return binary.BigEndian.Uint64(b[offset:]) }
