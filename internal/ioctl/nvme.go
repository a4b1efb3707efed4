package ioctl

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Numbers of <linux/nvme_ioctl.h>, and the sizes of their structures.
const (
	nvmeIoctlID      = 0x4e40     // NVME_IOCTL_ID: _IO('N', 0x40)
	nvmeIoctlIOCmd   = 0xc0484e43 // NVME_IOCTL_IO_CMD: _IOWR('N', 0x43, struct nvme_passthru_cmd)
	nvmeIoctlIO64Cmd = 0xc0504e48 // NVME_IOCTL_IO64_CMD: _IOWR('N', 0x48, struct nvme_passthru_cmd64)
)

// pointerPad fills a pointer up to the 64 bits that the kernel's structure has.
// (Big-endian machines with 32-bit pointers would need it in front.)
type pointerPad [8 - unsafe.Sizeof(uintptr(0))]byte

// nvmePassthruCmd64 is struct nvme_passthru_cmd64 of <linux/nvme_ioctl.h>. The
// older struct nvme_passthru_cmd is the same up to timeout_ms, and ends with a
// 32-bit result in the place of rsvd2.
type nvmePassthruCmd64 struct {
	opcode      uint8
	flags       uint8
	rsvd1       uint16
	nsid        uint32
	cdw2        uint32
	cdw3        uint32
	metadata    uint64
	addr        unsafe.Pointer
	_           pointerPad
	metadataLen uint32
	dataLen     uint32
	cdw10       uint32
	cdw11       uint32
	cdw12       uint32
	cdw13       uint32
	cdw14       uint32
	cdw15       uint32
	timeoutMS   uint32
	rsvd2       uint32
	result      uint64
}

// NVMeOpcode is an operation code of the NVM command set.
type NVMeOpcode uint8

// The operation codes.
const (
	NVMeFlush   NVMeOpcode = 0x00
	NVMeWrite   NVMeOpcode = 0x01
	NVMeRead    NVMeOpcode = 0x02
	NVMeCompare NVMeOpcode = 0x05
)

// MaxNVMeBlocks is the largest number of logical blocks one NVMe command can
// name: NLB is 16 bits, counted from zero.
const MaxNVMeBlocks = 1 << 16

// nvmeFUA is bit 30 of command dword 12.
const nvmeFUA = 1 << 30

// NVMeCommand is one command of the NVM command set.
type NVMeCommand struct {
	Opcode    NVMeOpcode
	Namespace uint32
	LBA       uint64 // logical blocks, on the whole namespace
	Blocks    uint32 // 1 to MaxNVMeBlocks; 0 for NVMeFlush
	FUA       bool
	Data      []byte        // Blocks logical blocks; nil for NVMeFlush
	Timeout   time.Duration // the kernel's for the command
}

// NVMeStatus is the status field of a completion, without the phase bit: bits 0
// to 7 the status code, 8 to 10 its type, 14 DNR. Zero is success.
type NVMeStatus uint16

// String names the status for people.
func (s NVMeStatus) String() string {
	name := ""
	switch s & 0x7ff {
	case 0x000:
		return "successful completion"
	case 0x001:
		name = " (invalid opcode)"
	case 0x002:
		name = " (invalid field in command)"
	case 0x004:
		name = " (data transfer error)"
	case 0x006:
		name = " (internal error)"
	case 0x007:
		name = " (command abort requested)"
	case 0x008:
		name = " (command aborted: SQ deletion)"
	case 0x00b:
		name = " (invalid namespace or format)"
	case 0x080:
		name = " (LBA out of range)"
	case 0x280:
		name = " (write fault)"
	case 0x281:
		name = " (unrecovered read error)"
	case 0x285:
		name = " (compare failure)"
	case 0x370:
		name = " (aborted by host)"
	case 0x371:
		name = " (host pathing error)"
	}
	return fmt.Sprintf("status code type %Xh, status code %02Xh%s", uint16(s>>8)&0x7, uint16(s)&0xff, name)
}

// Outcome classifies the status. A command that the host aborted has had its
// timeout.
func (s NVMeStatus) Outcome() Outcome {
	switch s & 0x7ff {
	case 0:
		return OutcomeOK
	case 0x007, 0x370, 0x371:
		return OutcomeTimeout
	case 0x008:
		return OutcomeReset
	case 0x285:
		return OutcomeMiscompare
	}
	return OutcomeError
}

// NVMeNamespace returns the namespace identifier of a block node (NVME_IOCTL_ID).
func NVMeNamespace(fd int) (uint32, error) {
	for {
		id, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), nvmeIoctlID, 0)
		switch errno {
		case 0:
			return uint32(id), nil
		case unix.EINTR:
		default:
			return 0, os.NewSyscallError("NVME_IOCTL_ID", errno)
		}
	}
}

// NVMe sends one command and waits for it, by NVME_IOCTL_IO64_CMD or, on a
// kernel before 5.4, by NVME_IOCTL_IO_CMD. On a partition's node the command
// addresses the whole namespace. EINTR is returned, never repeated: it is
// how the kernel says that it cancelled the command, after its timeout or a
// reset of the controller.
//
// Privilege: CAP_SYS_ADMIN (kernels from 6.2 on let others read and write too).
func NVMe(fd int, c NVMeCommand) (NVMeStatus, error) {
	if c.Blocks > MaxNVMeBlocks || (c.Opcode != NVMeFlush && c.Blocks == 0) || (c.Blocks == 0) != (len(c.Data) == 0) {
		return 0, fmt.Errorf("NVMe pass-through: %d blocks in %d bytes", c.Blocks, len(c.Data))
	}
	if uint64(len(c.Data)) > 1<<32-1 {
		return 0, fmt.Errorf("NVMe pass-through: %d bytes", len(c.Data))
	}
	h := c.encode()
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(h)
	if len(c.Data) > 0 {
		h.addr = unsafe.Pointer(unsafe.SliceData(c.Data))
		pin.Pin(unsafe.SliceData(c.Data))
	}
	status, err := nvmeIoctl(fd, nvmeIoctlIO64Cmd, unsafe.Pointer(h))
	if !errors.Is(err, unix.ENOTTY) {
		return status, os.NewSyscallError("NVME_IOCTL_IO64_CMD", err)
	}
	status, err = nvmeIoctl(fd, nvmeIoctlIOCmd, unsafe.Pointer(h))
	return status, os.NewSyscallError("NVME_IOCTL_IO_CMD", err)
}

func (c NVMeCommand) encode() *nvmePassthruCmd64 {
	h := &nvmePassthruCmd64{
		opcode:    uint8(c.Opcode),
		nsid:      c.Namespace,
		dataLen:   uint32(len(c.Data)),
		timeoutMS: milliseconds(c.Timeout),
	}
	if c.Opcode != NVMeFlush {
		h.cdw10, h.cdw11, h.cdw12 = uint32(c.LBA), uint32(c.LBA>>32), c.Blocks-1
		if c.FUA {
			h.cdw12 |= nvmeFUA
		}
	}
	return h
}

// nvmeIoctl keeps the status, which the ioctl returns as its value.
func nvmeIoctl(fd int, request uint, arg unsafe.Pointer) (NVMeStatus, error) {
	v, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), uintptr(request), uintptr(arg))
	if errno != 0 {
		return 0, errno
	}
	return NVMeStatus(v), nil
}
