package tcmu

import (
	"encoding/binary"
	"fmt"
	"sync"
)

// Offsets in struct tcmu_mailbox (include/uapi/linux/target_core_user.h).
const (
	mailboxVersion  = 0  // version
	mailboxFlags    = 2  // flags
	mailboxCmdrOff  = 4  // cmdr_off
	mailboxCmdrSize = 8  // cmdr_size
	mailboxCmdHead  = 12 // cmd_head
	mailboxCmdTail  = 64 // cmd_tail

	ringVersion = 2      // TCMU_MAILBOX_VERSION
	outOfOrder  = 1 << 0 // TCMU_MAILBOX_FLAG_CAP_OOOC
	hasReadLen  = 1 << 1 // TCMU_MAILBOX_FLAG_CAP_READ_LEN
)

// Offsets in struct tcmu_cmd_entry (the same header): its hdr, then req as the
// kernel writes it, and rsp as we do, in the same place.
const (
	entryLenOp     = 0   // hdr.len_op
	entryCmdID     = 4   // hdr.cmd_id
	entryUflags    = 7   // hdr.uflags
	entryIovCnt    = 8   // req.iov_cnt
	entryCdbOff    = 24  // req.cdb_off
	entryIov       = 48  // req.iov, of struct iovec
	entryStatus    = 8   // rsp.scsi_status
	entryReadLen   = 12  // rsp.read_len
	entrySense     = 16  // rsp.sense_buffer
	entryBytes     = 112 // sizeof(struct tcmu_cmd_entry)
	iovecBytes     = 16  // sizeof(struct iovec): base, which is an offset, and len
	entryAlign     = 8   // TCMU_OP_ALIGN_SIZE
	opMask         = 0x7 // TCMU_OP_MASK
	opCmd          = 1   // TCMU_OP_CMD
	readLenIsValid = 2   // TCMU_UFLAG_READ_LEN
)

// cdbBytes is the length of a CDB by the group of its operation code, as the
// kernel counts (drivers/scsi/scsi_common.c, scsi_command_size_tbl).
var cdbBytes = [8]int{6, 10, 10, 12, 16, 12, 10, 10}

const variableLength = 0x7f // operation code of a CDB that says its length

// A command is one entry of the ring.
type command struct {
	id  uint16
	cdb []byte
	// buffer is the memory shared with the kernel for the data, in pieces.
	buffer [][]byte
}

func (c command) room() int {
	n := 0
	for _, p := range c.buffer {
		n += len(p)
	}
	return n
}

// out returns a copy of the data that came with the command.
func (c command) out() []byte {
	b := make([]byte, 0, c.room())
	for _, p := range c.buffer {
		b = append(b, p...)
	}
	return b
}

// fill writes data for the initiator and zeroes the rest, where the kernel
// left what was there before.
func (c command) fill(data []byte) {
	for _, p := range c.buffer {
		n := copy(p, data)
		data = data[n:]
		clear(p[n:])
	}
}

// A ring is the memory shared with the kernel. The numbers in it are native to
// the processor, and reading or writing an aligned one is one instruction on
// amd64, the only architecture of our guests. The kernel looks at the tail when
// it is told to, by a write to the UIO device.
type ring struct {
	mem    []byte
	off    uint32 // of the command ring
	size   uint32
	next   uint32 // entry to take next, relative to off
	mu     sync.Mutex
	notify func() error
}

var native = binary.NativeEndian

func newRing(mem []byte, notify func() error) (*ring, error) {
	if len(mem) < mailboxCmdTail+4 {
		return nil, fmt.Errorf("ring of %d bytes", len(mem))
	}
	r := &ring{mem: mem, notify: notify, off: native.Uint32(mem[mailboxCmdrOff:]), size: native.Uint32(mem[mailboxCmdrSize:])}
	if v := native.Uint16(mem[mailboxVersion:]); v != ringVersion {
		return nil, fmt.Errorf("ring of version %d, want %d", v, ringVersion)
	}
	if f := native.Uint16(mem[mailboxFlags:]); f&outOfOrder == 0 || f&hasReadLen == 0 {
		return nil, fmt.Errorf("ring with capabilities %#x, want %#x among them", f, outOfOrder|hasReadLen)
	}
	if uint64(r.off)+uint64(r.size) > uint64(len(mem)) {
		return nil, fmt.Errorf("command ring of %d bytes at %d in %d bytes", r.size, r.off, len(mem))
	}
	r.next = r.tail()
	return r, nil
}

func (r *ring) tail() uint32 { return native.Uint32(r.mem[mailboxCmdTail:]) }

// entry returns an entry, from its header on, and how long it is.
func (r *ring) entry(at uint32) (e []byte, op, n uint32, err error) {
	if at >= r.size || at%entryAlign != 0 {
		return nil, 0, 0, fmt.Errorf("entry at %d of a ring of %d bytes", at, r.size)
	}
	e = r.mem[r.off+at : r.off+r.size]
	lenOp := native.Uint32(e[entryLenOp:])
	op, n = lenOp&opMask, lenOp&^uint32(opMask)
	if n == 0 || n > uint32(len(e)) || op == opCmd && n < entryBytes {
		return nil, 0, 0, fmt.Errorf("entry of %d bytes at %d", n, at)
	}
	return e[:n], op, n, nil
}

// take returns the next command, and false when there is none. It is for one
// goroutine, beside those that complete commands.
func (r *ring) take() (c command, ok bool, err error) {
	for {
		head := native.Uint32(r.mem[mailboxCmdHead:])
		if r.next == head {
			return command{}, false, nil
		}
		e, op, n, err := r.entry(r.next)
		if err != nil {
			return command{}, false, err
		}
		r.next = (r.next + n) % r.size
		if op != opCmd { // padding, or a notice of task management
			continue
		}
		c, err = r.parse(e)
		return c, err == nil, err
	}
}

func (r *ring) parse(e []byte) (command, error) {
	c := command{id: native.Uint16(e[entryCmdID:])}
	off := native.Uint64(e[entryCdbOff:])
	if off+8 > uint64(len(r.mem)) || off > uint64(len(r.mem)) {
		return c, fmt.Errorf("CDB at %d in %d bytes", off, len(r.mem))
	}
	cdb := r.mem[off:]
	n := cdbBytes[cdb[0]>>5]
	if cdb[0] == variableLength {
		n = 8 + int(cdb[7])
	}
	c.cdb = append(c.cdb, cdb[:min(n, len(cdb))]...)
	count := native.Uint32(e[entryIovCnt:])
	if uint64(entryIov)+uint64(count)*iovecBytes > uint64(len(e)) {
		return c, fmt.Errorf("%d pieces in an entry of %d bytes", count, len(e))
	}
	for i := range int(count) {
		v := e[entryIov+i*iovecBytes:]
		base, length := native.Uint64(v), native.Uint64(v[8:])
		if base > uint64(len(r.mem)) || length > uint64(len(r.mem))-base {
			return c, fmt.Errorf("%d bytes at %d in %d bytes", length, base, len(r.mem))
		}
		c.buffer = append(c.buffer, r.mem[base:base+length])
	}
	return c, nil
}

// complete answers a command. Answers may come in any order: each takes the
// oldest entry that is not answered, whose request was copied long since, and
// puts its own id there.
func (r *ring) complete(c command, rsp response) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	tail := r.tail()
	e, op, n, err := r.entry(tail)
	for err == nil && op != opCmd {
		tail = (tail + n) % r.size
		e, op, n, err = r.entry(tail)
	}
	if err != nil {
		return err
	}
	native.PutUint16(e[entryCmdID:], c.id)
	e[entryUflags] = 0
	clear(e[entryStatus:entryBytes])
	e[entryStatus] = rsp.status
	copy(e[entrySense:entryBytes], rsp.sense)
	// A length of 0 is taken as none, so an answer without data to a command
	// that wants some is one of zeros.
	if len(rsp.data) > 0 {
		e[entryUflags] = readLenIsValid
		native.PutUint32(e[entryReadLen:], uint32(len(rsp.data)))
	}
	native.PutUint32(r.mem[mailboxCmdTail:], (tail+n)%r.size)
	return r.notify()
}
