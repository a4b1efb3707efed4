package ioctl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Numbers of <scsi/sg.h>.
const (
	sgIO          = 0x2285 // SG_IO
	sgInterfaceID = 'S'

	sgDxferNone    = -1 // SG_DXFER_NONE
	sgDxferToDev   = -2 // SG_DXFER_TO_DEV
	sgDxferFromDev = -3 // SG_DXFER_FROM_DEV
)

// sgIOHdr is struct sg_io_hdr of <scsi/sg.h>.
type sgIOHdr struct {
	interfaceID    int32
	dxferDirection int32
	cmdLen         uint8
	mxSBLen        uint8
	iovecCount     uint16
	dxferLen       uint32
	dxferp         unsafe.Pointer
	cmdp           unsafe.Pointer
	sbp            unsafe.Pointer
	timeout        uint32 // ms
	flags          uint32
	packID         int32
	usrPtr         unsafe.Pointer
	status         uint8
	maskedStatus   uint8
	msgStatus      uint8
	sbLenWr        uint8
	hostStatus     uint16
	driverStatus   uint16
	resid          int32
	duration       uint32 // ms
	info           uint32
}

// maxSense is the room for sense data: all that mx_sb_len, one byte, and SPC's
// own limit of 252 allow.
const maxSense = 252

// Direction is where the data of a command go.
type Direction uint8

// The directions.
const (
	NoData     Direction = iota
	FromDevice           // the device's data-in
	ToDevice             // the device's data-out
)

// SCSIResult is what became of a SCSI command that the kernel accepted.
type SCSIResult struct {
	Status       uint8         // SAM status code: 00h GOOD, 02h CHECK CONDITION, ...
	HostStatus   uint16        // the host byte, see HostStatusName
	DriverStatus uint16        // the driver byte: 0, or 8 when there is sense data (always 0 on recent kernels)
	Resid        int           // bytes of the data that were not transferred
	Sense        []byte        // raw sense data, empty when there is none
	Duration     time.Duration // as the kernel counts it, in whole milliseconds
}

// SAM status codes (SAM-5, Status codes).
const (
	StatusGood                = 0x00
	StatusCheckCondition      = 0x02
	StatusConditionMet        = 0x04
	StatusBusy                = 0x08
	StatusReservationConflict = 0x18
	StatusTaskSetFull         = 0x28
	StatusACAActive           = 0x30
	StatusTaskAborted         = 0x40
)

// OK says that the command ended with GOOD, or with CHECK CONDITION whose sense
// data say NO SENSE or RECOVERED ERROR, and that neither the host adapter nor
// the transport reported anything. Resid may still not be zero.
func (r SCSIResult) OK() bool {
	if r.HostStatus != HostOK {
		return false
	}
	switch r.Status {
	case StatusGood, StatusConditionMet:
		// Old libata ends a command with GOOD and sense data; no error then.
		return true
	case StatusCheckCondition:
		s, err := DecodeSense(r.Sense)
		return err == nil && !s.Deferred && (s.Key == KeyNoSense || s.Key == KeyRecoveredError)
	}
	return false
}

// String describes the result for people: the parts that are not zero.
func (r SCSIResult) String() string {
	text := StatusName(r.Status)
	if r.HostStatus != HostOK {
		text += ", host " + HostStatusName(r.HostStatus)
	}
	if d := r.DriverStatus &^ driverSense; d != 0 {
		text += fmt.Sprintf(", driver status %#02x", d)
	}
	if len(r.Sense) > 0 {
		if s, err := DecodeSense(r.Sense); err == nil {
			text += ", " + s.String()
		} else {
			text += fmt.Sprintf(", sense data % x", r.Sense[:min(len(r.Sense), 32)])
		}
	}
	if r.Resid != 0 {
		text += fmt.Sprintf(", %d bytes not transferred", r.Resid)
	}
	return text
}

// driverSense is DRIVER_SENSE of <scsi/scsi.h>: there is sense data.
const driverSense = 0x08

// StatusName names a SAM status code.
func StatusName(status uint8) string {
	switch status {
	case StatusGood:
		return "GOOD"
	case StatusCheckCondition:
		return "CHECK CONDITION"
	case StatusConditionMet:
		return "CONDITION MET"
	case StatusBusy:
		return "BUSY"
	case StatusReservationConflict:
		return "RESERVATION CONFLICT"
	case StatusTaskSetFull:
		return "TASK SET FULL"
	case StatusACAActive:
		return "ACA ACTIVE"
	case StatusTaskAborted:
		return "TASK ABORTED"
	}
	return fmt.Sprintf("status %02Xh", status)
}

// The host byte (include/scsi/scsi_status.h, enum scsi_host_status).
const (
	HostOK                 = 0x00 // DID_OK
	HostNoConnect          = 0x01 // DID_NO_CONNECT: the device could not be reached
	HostBusBusy            = 0x02 // DID_BUS_BUSY
	HostTimeOut            = 0x03 // DID_TIME_OUT
	HostBadTarget          = 0x04 // DID_BAD_TARGET
	HostAbort              = 0x05 // DID_ABORT
	HostParity             = 0x06 // DID_PARITY
	HostError              = 0x07 // DID_ERROR: internal error of the adapter
	HostReset              = 0x08 // DID_RESET
	HostBadIntr            = 0x09 // DID_BAD_INTR
	HostPassthrough        = 0x0a // DID_PASSTHROUGH
	HostSoftError          = 0x0b // DID_SOFT_ERROR
	HostImmRetry           = 0x0c // DID_IMM_RETRY
	HostRequeue            = 0x0d // DID_REQUEUE
	HostTransportDisrupted = 0x0e // DID_TRANSPORT_DISRUPTED
	HostTransportFailfast  = 0x0f // DID_TRANSPORT_FAILFAST
	HostTargetFailure      = 0x10 // DID_TARGET_FAILURE
	HostNexusFailure       = 0x11 // DID_NEXUS_FAILURE
	HostAllocFailure       = 0x12 // DID_ALLOC_FAILURE
	HostMediumError        = 0x13 // DID_MEDIUM_ERROR
	HostTransportMarginal  = 0x14 // DID_TRANSPORT_MARGINAL
)

var hostStatusNames = [...]string{
	"DID_OK", "DID_NO_CONNECT", "DID_BUS_BUSY", "DID_TIME_OUT", "DID_BAD_TARGET", "DID_ABORT", "DID_PARITY",
	"DID_ERROR", "DID_RESET", "DID_BAD_INTR", "DID_PASSTHROUGH", "DID_SOFT_ERROR", "DID_IMM_RETRY", "DID_REQUEUE",
	"DID_TRANSPORT_DISRUPTED", "DID_TRANSPORT_FAILFAST", "DID_TARGET_FAILURE", "DID_NEXUS_FAILURE",
	"DID_ALLOC_FAILURE", "DID_MEDIUM_ERROR", "DID_TRANSPORT_MARGINAL",
}

// HostStatusName is the kernel's name of a host byte.
func HostStatusName(host uint16) string {
	if int(host) < len(hostStatusNames) {
		return hostStatusNames[host]
	}
	return fmt.Sprintf("%#02x", host)
}

// Outcome sorts what a device, its transport or the kernel did with a command.
type Outcome uint8

// The outcomes.
const (
	OutcomeOK         Outcome = iota
	OutcomeError              // the device or the transport reported an error
	OutcomeTimeout            // no answer in the command's time
	OutcomeReset              // the device, the link or the adapter was reset
	OutcomeGone               // the device cannot be reached
	OutcomeRetry              // not executed, to be sent again: a unit attention other than a reset
	OutcomeMiscompare         // a comparison by the device found other data
)

// Outcome classifies the result; a residual is not looked at.
func (r SCSIResult) Outcome() Outcome {
	switch r.HostStatus {
	case HostOK:
	case HostTimeOut:
		return OutcomeTimeout
	case HostReset, HostAbort, HostTransportDisrupted:
		return OutcomeReset
	case HostNoConnect, HostBadTarget, HostTransportFailfast:
		return OutcomeGone
	default:
		return OutcomeError
	}
	if r.OK() {
		return OutcomeOK
	}
	if r.Status == StatusTaskAborted {
		return OutcomeReset
	}
	if s, err := DecodeSense(r.Sense); err == nil && r.Status == StatusCheckCondition && !s.Deferred {
		switch {
		case s.Key == KeyUnitAttention && s.ASC == ascReset:
			return OutcomeReset
		case s.Key == KeyUnitAttention:
			return OutcomeRetry
		case s.Key == KeyMiscompare:
			return OutcomeMiscompare
		}
	}
	return OutcomeError
}

// SCSI sends one command with SG_IO and waits for it. fd is a block node
// (or an sg or bsg node) of a SCSI or libata disk. On a partition's node the
// command addresses the whole disk, and mounts are not looked at.
//
// cdb is 1 to 32 bytes, data the whole data buffer (nil for NoData), and
// timeout the kernel's for the command, at least 1 ms. See the package comment
// for how long the call may take.
//
// Privilege: CAP_SYS_RAWIO for commands other than a few reads; the open mode is
// not looked at with it.
func SCSI(fd int, cdb []byte, dir Direction, data []byte, timeout time.Duration) (SCSIResult, error) {
	if len(cdb) == 0 || len(cdb) > 32 {
		return SCSIResult{}, fmt.Errorf("SG_IO: a command descriptor block of %d bytes", len(cdb))
	}
	if (dir == NoData) != (len(data) == 0) || uint64(len(data)) > 1<<31-1 {
		return SCSIResult{}, fmt.Errorf("SG_IO: %d bytes of data do not fit the command", len(data))
	}
	sense := new([maxSense]byte)
	cmd := new([32]byte)
	copy(cmd[:], cdb)
	h := &sgIOHdr{
		interfaceID: sgInterfaceID,
		cmdLen:      uint8(len(cdb)),
		mxSBLen:     maxSense,
		dxferLen:    uint32(len(data)),
		cmdp:        unsafe.Pointer(cmd),
		sbp:         unsafe.Pointer(sense),
		timeout:     milliseconds(timeout),
	}
	switch dir {
	case FromDevice:
		h.dxferDirection = sgDxferFromDev
	case ToDevice:
		h.dxferDirection = sgDxferToDev
	default:
		h.dxferDirection = sgDxferNone
	}
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(h)
	pin.Pin(cmd)
	pin.Pin(sense)
	if len(data) > 0 {
		h.dxferp = unsafe.Pointer(unsafe.SliceData(data))
		pin.Pin(unsafe.SliceData(data))
	}
	if err := call(fd, sgIO, unsafe.Pointer(h)); err != nil {
		return SCSIResult{}, os.NewSyscallError("SG_IO", err)
	}
	r := SCSIResult{
		Status:       h.status,
		HostStatus:   h.hostStatus,
		DriverStatus: h.driverStatus,
		Resid:        int(h.resid),
		Duration:     time.Duration(h.duration) * time.Millisecond,
	}
	if n := min(int(h.sbLenWr), maxSense); n > 0 {
		r.Sense = sense[:n]
	}
	return r, nil
}

// milliseconds is a timeout as the kernel takes it; 0 would mean its default.
func milliseconds(d time.Duration) uint32 {
	return uint32(min(max(d.Milliseconds(), 1), 1<<31-1))
}

// call is ioctl(2) with a pointer. Go's own signals interrupt system calls, so
// EINTR is repeated; a command on its way is never interrupted.
func call(fd int, request uint, arg unsafe.Pointer) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg))
		if errno == 0 {
			return nil
		}
		if errno != unix.EINTR {
			return errno
		}
	}
}

// Operation codes (SBC-4, SPC-5).
const (
	opInquiry            = 0x12
	opPersistentReserve  = 0x5e
	opRead16             = 0x88
	opWrite16            = 0x8a
	opVerify16           = 0x8f
	opSynchronizeCache16 = 0x91
)

// Bits of byte 1 of READ(16), WRITE(16) and VERIFY(16).
const (
	bitDPO     = 0x10
	bitFUA     = 0x08
	bitBYTCHK1 = 0x02 // BYTCHK = 01b
)

// Cache are the cache bits of a read or write.
type Cache uint8

// The cache bits. FUA makes the device go to the medium, DPO asks it not to keep
// the data.
const (
	FUA Cache = bitFUA
	DPO Cache = bitDPO
)

// Read16 is the command descriptor block of READ(16). lba and blocks count
// logical blocks (SBC-4, READ (16) command).
func Read16(lba uint64, blocks uint32, c Cache) []byte { return rw16(opRead16, uint8(c), lba, blocks) }

// Write16 is the command descriptor block of WRITE(16). lba and blocks count
// logical blocks (SBC-4, WRITE (16) command).
func Write16(lba uint64, blocks uint32, c Cache) []byte {
	return rw16(opWrite16, uint8(c), lba, blocks)
}

// Verify16 is the command descriptor block of VERIFY(16) with BYTCHK 01b: the
// device compares its data with those sent, and ends with MISCOMPARE where they
// differ. lba and blocks count logical blocks (SBC-4, VERIFY (16) command).
//
// libata answers GOOD without comparing, so a caller first sends data that are
// known to differ.
func Verify16(lba uint64, blocks uint32) []byte { return rw16(opVerify16, bitBYTCHK1, lba, blocks) }

// SynchronizeCache16 is the command descriptor block of SYNCHRONIZE CACHE(16);
// zero blocks means to the end of the medium (SBC-4).
func SynchronizeCache16(lba uint64, blocks uint32) []byte {
	return rw16(opSynchronizeCache16, 0, lba, blocks)
}

func rw16(op, bits uint8, lba uint64, blocks uint32) []byte {
	cdb := make([]byte, 16)
	cdb[0], cdb[1] = op, bits
	binary.BigEndian.PutUint64(cdb[2:], lba)
	binary.BigEndian.PutUint32(cdb[10:], blocks)
	return cdb
}

// InquiryVPD is the command descriptor block of INQUIRY for a vital product
// data page, with an allocation length in bytes (SPC-5, INQUIRY command).
// Some devices hang on pages they do not list: ask only for pages that sysfs
// shows the kernel to have got.
func InquiryVPD(page uint8, allocation uint16) []byte {
	return []byte{opInquiry, 0x01, page, byte(allocation >> 8), byte(allocation), 0}
}

// PersistentReserveInReadKeys is the command descriptor block of PERSISTENT
// RESERVE IN, service action READ KEYS, with an allocation length in bytes
// (SPC-5).
func PersistentReserveInReadKeys(allocation uint16) []byte {
	return persistentReserveIn(0x00, allocation)
}

// PersistentReserveInReadReservation is the same for READ RESERVATION.
func PersistentReserveInReadReservation(allocation uint16) []byte {
	return persistentReserveIn(0x01, allocation)
}

func persistentReserveIn(action uint8, allocation uint16) []byte {
	cdb := make([]byte, 10)
	cdb[0], cdb[1] = opPersistentReserve, action
	binary.BigEndian.PutUint16(cdb[7:], allocation)
	return cdb
}

// ErrShort means that a device sent less than its own header says it should.
var ErrShort = errors.New("too short")

// ParseReadKeys returns the reservation keys of READ KEYS parameter data, which
// may have been cut by the allocation length: more says how many bytes of keys
// are missing then (SPC-5, PERSISTENT RESERVE IN, READ KEYS).
func ParseReadKeys(b []byte) (keys []uint64, more int, err error) {
	if len(b) < 8 {
		return nil, 0, fmt.Errorf("READ KEYS parameter data: %w: %d bytes", ErrShort, len(b))
	}
	additional := binary.BigEndian.Uint32(b[4:])
	rest := b[8:]
	if uint64(additional) < uint64(len(rest)) {
		rest = rest[:additional]
	}
	for ; len(rest) >= 8; rest = rest[8:] {
		keys = append(keys, binary.BigEndian.Uint64(rest))
	}
	return keys, int(min(uint64(additional), 1<<30)) - 8*len(keys), nil
}

// ReservationKeys sends PERSISTENT RESERVE IN, READ KEYS. A device without
// persistent reservations ends it with ILLEGAL REQUEST, which is a result with
// no keys.
func ReservationKeys(fd int, timeout time.Duration) ([]uint64, SCSIResult, error) {
	data := make([]byte, 8+8*64)
	r, err := SCSI(fd, PersistentReserveInReadKeys(uint16(len(data))), FromDevice, data, timeout)
	if err != nil || !r.OK() {
		return nil, r, err
	}
	keys, _, err := ParseReadKeys(data[:len(data)-min(max(r.Resid, 0), len(data))])
	return keys, r, err
}

// VPD sends INQUIRY for a vital product data page and returns what the device
// sent, cut to the page's own length. See InquiryVPD for when not to.
func VPD(fd int, page uint8, timeout time.Duration) ([]byte, SCSIResult, error) {
	data := make([]byte, 252)
	r, err := SCSI(fd, InquiryVPD(page, uint16(len(data))), FromDevice, data, timeout)
	if err != nil || !r.OK() {
		return nil, r, err
	}
	data = data[:len(data)-min(max(r.Resid, 0), len(data))]
	if len(data) < 4 {
		return nil, r, fmt.Errorf("VPD page %02Xh: %w: %d bytes", page, ErrShort, len(data))
	}
	return data[:min(len(data), 4+int(binary.BigEndian.Uint16(data[2:])))], r, nil
}
