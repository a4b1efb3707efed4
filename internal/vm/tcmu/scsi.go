package tcmu

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync"
	"time"
)

// Status codes (SAM-5, Status).
const (
	Good           byte = 0x00
	CheckCondition byte = 0x02
	Busy           byte = 0x08
)

// Sense keys, and additional sense codes with their qualifiers (SPC-4, Sense
// data).
const (
	keyMediumError    = 0x3
	keyIllegalRequest = 0x5
	ascUnrecovered    = 0x1100 // UNRECOVERED READ ERROR
	ascOpcode         = 0x2000 // INVALID COMMAND OPERATION CODE
	ascRange          = 0x2100 // LOGICAL BLOCK ADDRESS OUT OF RANGE
	ascCDB            = 0x2400 // INVALID FIELD IN CDB
)

// Sense returns 18 bytes of fixed format sense data (SPC-4, Fixed format sense
// data) for a current error.
func Sense(key, asc, ascq byte) []byte {
	s := make([]byte, 18)
	s[0], s[2], s[7], s[12], s[13] = 0x70, key, 10, asc, ascq
	return s
}

// MediumError is the sense data of a block that cannot be read.
func MediumError() []byte { return Sense(keyMediumError, ascUnrecovered>>8, ascUnrecovered&0xff) }

// Inquiry returns 36 bytes of standard INQUIRY data (SPC-4, Standard INQUIRY
// data) of a disk. The strings may hold any byte. They are cut to their fields
// or padded with blanks.
func Inquiry(vendor, product, revision string) []byte {
	// SPC-4, response data format 2, additional length, CMDQUE.
	b := append([]byte{0, 0, 6, 2, 31, 0, 0, 2}, bytes.Repeat([]byte{' '}, 28)...)
	copy(b[8:16], vendor)
	copy(b[16:32], product)
	copy(b[32:36], revision)
	return b
}

// Page returns a VPD page: its header, with the length of the body, and the
// body.
func Page(code byte, body []byte) []byte {
	return append([]byte{0, code, byte(len(body) >> 8), byte(len(body))}, body...)
}

// BlockLimits returns VPD page B0h (SBC-3, Block Limits VPD page) with MAXIMUM
// and OPTIMAL TRANSFER LENGTH, in logical blocks.
func BlockLimits(maxTransferBlocks, optimalTransferBlocks uint32) []byte {
	p := Page(0xb0, make([]byte, 60))
	binary.BigEndian.PutUint32(p[8:], maxTransferBlocks)
	binary.BigEndian.PutUint32(p[12:], optimalTransferBlocks)
	return p
}

// ataInformation returns VPD page 89h (SAT-3, ATA Information VPD page).
func ataInformation(identify []byte) []byte {
	body := make([]byte, 56+identifyBytes)
	copy(body[4:12], "QUIRK   ")
	copy(body[12:28], "TCMU SATL       ")
	copy(body[28:32], "0001")
	body[32] = 0x34           // signature: a device to host register FIS
	body[52] = ataIdentify    // COMMAND CODE
	copy(body[56:], identify) // IDENTIFY DEVICE data
	return Page(0x89, body)
}

// IdentifyDevice returns 512 bytes of IDENTIFY DEVICE data (ACS-3, IDENTIFY
// DEVICE) of a disk with 48-bit addresses.
func IdentifyDevice(model, firmware, serial string, sectors uint64) []byte {
	b := make([]byte, identifyBytes)
	word := func(n int, v uint16) { binary.LittleEndian.PutUint16(b[2*n:], v) }
	// Two characters a word, the first in the upper byte.
	text := func(from, to int, s string) {
		for i := range 2 * (to + 1 - from) {
			c := byte(' ')
			if i < len(s) {
				c = s[i]
			}
			b[(2*from+i)^1] = c
		}
	}
	word(0, 0x0040)
	text(10, 19, serial)
	text(23, 26, firmware)
	text(27, 46, model)
	word(49, 0x0200) // LBA
	binary.LittleEndian.PutUint32(b[2*60:], uint32(min(sectors, 1<<28-1)))
	word(80, 0x01f0) // ATA8-ACS and before
	word(83, 0x4400) // 48-bit addresses
	word(86, 0x0400) // and these enabled
	word(87, 0x4000)
	binary.LittleEndian.PutUint64(b[2*100:], sectors)
	return b
}

// pages returns the VPD pages that a disk has.
func (d Disk) pages() map[byte][]byte {
	p := map[byte][]byte{}
	if d.Serial != "" {
		p[0x80] = Page(0x80, []byte(d.Serial))
		// One designator: ASCII, T10 vendor ID based, of the logical unit.
		id := "QUIRK   " + d.Serial
		p[0x83] = Page(0x83, append([]byte{0x02, 0x01, 0, byte(len(id))}, id...))
	}
	if d.Identify != nil {
		p[0x89] = ataInformation(d.Identify)
	}
	for code, page := range d.VPD {
		p[code] = page
		if page == nil {
			delete(p, code)
		}
	}
	if _, given := d.VPD[0]; !given {
		list := []byte{0}
		for code := range p {
			list = append(list, code)
		}
		slices.Sort(list)
		p[0] = Page(0, list)
	}
	return p
}

// A response ends a command. data are those for the initiator.
type response struct {
	status byte
	sense  []byte
	data   []byte
}

func refuse(code uint16) response {
	return response{status: CheckCondition, sense: Sense(keyIllegalRequest, byte(code>>8), byte(code))}
}

const maxLog = 1 << 16 // commands kept

// A server answers the commands of one disk. It knows nothing of the ring they
// come from.
type server struct {
	mu      sync.Mutex
	disk    Disk
	vpd     map[byte][]byte
	left    []int // of the rules, -1 for no end
	log     [][]byte
	last    time.Time // of the last command or answer
	busy    int       // commands without an answer
	release chan struct{}
	store   store
}

func newServer(d Disk) (*server, error) {
	s := &server{release: make(chan struct{}), last: time.Now()}
	return s, s.set(d)
}

// set changes the answers. Content, and commands that already wait, stay.
func (s *server) set(d Disk) error {
	d, err := d.complete()
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.disk, s.vpd = d, d.pages()
	s.left = make([]int, len(d.Rules))
	for i, r := range d.Rules {
		s.left[i] = r.Times
		if r.Times == 0 {
			s.left[i] = -1
		}
	}
	return nil
}

// releaseAll has all answered that hang.
func (s *server) releaseAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.release)
	s.release = make(chan struct{})
}

// commands returns the CDBs received so far, in their order.
func (s *server) commands() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.log)
}

// quiet says whether the last command ended a while ago.
func (s *server) quiet(d time.Duration) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.busy == 0 && time.Since(s.last) > d
}

// accept takes note of a command and finds its rule.
func (s *server) accept(cdb []byte) (Rule, chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy++
	s.last = time.Now()
	if len(s.log) < maxLog {
		s.log = append(s.log, cdb)
	}
	for i, r := range s.disk.Rules {
		if s.left[i] == 0 || !bytes.HasPrefix(cdb, r.Prefix) {
			continue
		}
		if s.left[i] > 0 {
			s.left[i]--
		}
		return r, s.release
	}
	return Rule{}, s.release
}

// done takes note that a command was answered.
func (s *server) done() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy--
	s.last = time.Now()
}

// serve carries out a command by its rule. room is the size of its buffer and
// out fetches what was sent with it.
func (s *server) serve(cdb []byte, r Rule, release <-chan struct{}, room int, out func() []byte) response {
	wait := r.Delay
	if r.Hang {
		wait = MaxHang
	}
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		select {
		case <-t.C:
		case <-release:
		}
	}
	rsp := response{status: r.Status, sense: r.Sense, data: r.Data}
	if r.Status == Good && r.Data == nil {
		s.mu.Lock()
		d, vpd := s.disk, s.vpd
		s.mu.Unlock()
		rsp = s.answer(d, vpd, cdb, room, out)
	}
	rsp.data = rsp.data[:min(len(rsp.data), room)]
	return rsp
}

// Operation codes (SPC-4, SBC-3, SAT-3) and the ATA command behind them.
const (
	opTestUnitReady    = 0x00
	opRequestSense     = 0x03
	opRead6            = 0x08
	opWrite6           = 0x0a
	opInquiry          = 0x12
	opModeSense6       = 0x1a
	opStartStopUnit    = 0x1b
	opPreventAllow     = 0x1e
	opReadCapacity10   = 0x25
	opRead10           = 0x28
	opWrite10          = 0x2a
	opVerify10         = 0x2f
	opSyncCache10      = 0x35
	opModeSense10      = 0x5a
	opATAPassThrough16 = 0x85
	opRead16           = 0x88
	opWrite16          = 0x8a
	opVerify16         = 0x8f
	opSyncCache16      = 0x91
	opServiceActionIn  = 0x9e
	opATAPassThrough12 = 0xa1
	opRead12           = 0xa8
	opWrite12          = 0xaa

	saReadCapacity16 = 0x10
	ataIdentify      = 0xec // IDENTIFY DEVICE
)

// answer is what the disk does by itself.
func (s *server) answer(d Disk, vpd map[byte][]byte, cdb []byte, room int, out func() []byte) response {
	be := binary.BigEndian
	switch cdb[0] {
	case opTestUnitReady, opStartStopUnit, opPreventAllow, opVerify10, opVerify16, opSyncCache10, opSyncCache16:
		return response{}
	case opRequestSense:
		return response{data: upTo(Sense(0, 0, 0), int(cdb[4]))}
	case opInquiry:
		return inquiry(d, vpd, cdb)
	case opModeSense6:
		return modeSense(cdb, 4, int(cdb[4]))
	case opModeSense10:
		return modeSense(cdb, 8, int(be.Uint16(cdb[7:])))
	case opReadCapacity10:
		b := make([]byte, 8)
		be.PutUint32(b, uint32(min(d.lastBlock(), 0xffffffff)))
		be.PutUint32(b[4:], uint32(d.BlockBytes))
		return response{data: b}
	case opServiceActionIn:
		if cdb[1]&0x1f != saReadCapacity16 {
			return refuse(ascCDB)
		}
		b := make([]byte, 32)
		be.PutUint64(b, d.lastBlock())
		be.PutUint32(b[8:], uint32(d.BlockBytes))
		return response{data: upTo(b, int(be.Uint32(cdb[10:])))}
	case opRead6, opWrite6:
		blocks := uint64(cdb[4])
		if blocks == 0 {
			blocks = 256
		}
		return s.transfer(d, cdb[0] == opWrite6, uint64(be.Uint32(cdb)&0x1fffff), blocks, room, out)
	case opRead10, opWrite10:
		return s.transfer(d, cdb[0] == opWrite10, uint64(be.Uint32(cdb[2:])), uint64(be.Uint16(cdb[7:])), room, out)
	case opRead12, opWrite12:
		return s.transfer(d, cdb[0] == opWrite12, uint64(be.Uint32(cdb[2:])), uint64(be.Uint32(cdb[6:])), room, out)
	case opRead16, opWrite16:
		return s.transfer(d, cdb[0] == opWrite16, be.Uint64(cdb[2:]), uint64(be.Uint32(cdb[10:])), room, out)
	case opATAPassThrough12:
		return identify(d, cdb, cdb[9])
	case opATAPassThrough16:
		return identify(d, cdb, cdb[14])
	}
	return refuse(ascOpcode)
}

func (d Disk) lastBlock() uint64 { return uint64(d.SizeBytes)/uint64(d.BlockBytes) - 1 }

func upTo(b []byte, n int) []byte { return b[:min(len(b), n)] }

func inquiry(d Disk, vpd map[byte][]byte, cdb []byte) response {
	const evpd = 0x01
	allocation := int(binary.BigEndian.Uint16(cdb[3:]))
	if cdb[1]&evpd == 0 {
		if cdb[2] != 0 {
			return refuse(ascCDB)
		}
		return response{data: upTo(d.Inquiry, allocation)}
	}
	page, ok := vpd[cdb[2]]
	if !ok {
		return refuse(ascCDB)
	}
	return response{data: upTo(page, allocation)}
}

// modeSense answers with a header and the Caching (no write cache) and Control
// mode pages.
func modeSense(cdb []byte, header, allocation int) response {
	caching := append([]byte{0x08, 18}, make([]byte, 18)...)
	control := append([]byte{0x0a, 10}, make([]byte, 10)...)
	b := make([]byte, header)
	switch cdb[2] & 0x3f {
	case 0x08:
		b = append(b, caching...)
	case 0x0a:
		b = append(b, control...)
	case 0x3f: // all
		b = append(append(b, caching...), control...)
	default:
		return refuse(ascCDB)
	}
	// MODE DATA LENGTH does not count itself.
	if header == 4 {
		b[0] = byte(len(b) - 1)
	} else {
		b[1] = byte(len(b) - 2)
	}
	return response{data: upTo(b, allocation)}
}

func (s *server) transfer(d Disk, write bool, lba, blocks uint64, room int, out func() []byte) response {
	if lba > d.lastBlock() || blocks > d.lastBlock()+1-lba {
		return refuse(ascRange)
	}
	at, n := int64(lba)*int64(d.BlockBytes), int(blocks)*d.BlockBytes
	if write {
		s.store.writeAt(upTo(out(), n), at)
		return response{}
	}
	b := make([]byte, min(n, room))
	s.store.readAt(b, at)
	return response{data: b}
}

// identify answers ATA PASS-THROUGH. A command that asks for the ATA registers
// gets them as a CHECK CONDITION (SAT-3, ATA Status Return sense data
// descriptor).
func identify(d Disk, cdb []byte, command byte) response {
	if d.Identify == nil {
		return refuse(ascOpcode)
	}
	if command != ataIdentify {
		return refuse(ascCDB)
	}
	rsp := response{data: d.Identify}
	const ckCond = 0x20
	if cdb[2]&ckCond != 0 {
		rsp.status = CheckCondition
		rsp.sense = make([]byte, 22)
		// Descriptor format, recovered error, ATA PASS THROUGH INFORMATION
		// AVAILABLE; status DRDY.
		rsp.sense[0], rsp.sense[1], rsp.sense[3], rsp.sense[7] = 0x72, 0x01, 0x1d, 14
		rsp.sense[8], rsp.sense[9], rsp.sense[21] = 0x09, 12, 0x50
	}
	return rsp
}

const chunkBytes = 64 << 10

// A store keeps what was written, in pieces.
type store struct {
	mu     sync.Mutex
	chunks map[int64]*[chunkBytes]byte
}

// each calls f for the pieces that n bytes at off fall into.
func each(off int64, n int, f func(chunk int64, from, to, at int)) {
	for at := 0; at < n; {
		chunk, from := (off+int64(at))/chunkBytes, int((off+int64(at))%chunkBytes)
		to := min(chunkBytes, from+n-at)
		f(chunk, from, to, at)
		at += to - from
	}
}

func (s *store) readAt(p []byte, off int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	each(off, len(p), func(chunk int64, from, to, at int) {
		if c := s.chunks[chunk]; c != nil {
			copy(p[at:], c[from:to])
		}
	})
}

func (s *store) writeAt(p []byte, off int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.chunks == nil {
		s.chunks = map[int64]*[chunkBytes]byte{}
	}
	each(off, len(p), func(chunk int64, from, to, at int) {
		c := s.chunks[chunk]
		if c == nil {
			c = new([chunkBytes]byte)
			s.chunks[chunk] = c
		}
		copy(c[from:to], p[at:])
	})
}
