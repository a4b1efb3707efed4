package klog

import (
	"bytes"
	"strings"
)

// scsi reads what follows "sd ", "sr " or "scsi " (drivers/scsi/scsi_logging.c;
// dev_printk puts the device in front).
func (p *parser) scsi(t []byte) bool {
	if bytes.HasPrefix(t, []byte("host")) || bytes.HasPrefix(t, []byte("target")) {
		return p.scsiHost(t)
	}
	hctlBytes, rest, ok := cutHCTL(t)
	if !ok || !bytes.HasPrefix(rest, []byte(":")) {
		return false
	}
	hctl := string(hctlBytes)
	msg := bytes.TrimLeft(rest[1:], " ")
	disk := ""
	if bytes.HasPrefix(msg, []byte("[")) {
		i := bytes.IndexByte(msg, ']')
		if i < 2 || !isName(msg[1:i]) {
			return false
		}
		disk = string(msg[1:i])
		msg = bytes.TrimLeft(msg[i+1:], " ")
		keep(p.names.disks, disk, hctl)
		keep(p.names.at, hctl, disk)
	}
	tagged := hctl
	if bytes.HasPrefix(msg, []byte("tag#")) {
		n, after, _ := bytes.Cut(msg, []byte(" "))
		if len(n) > 16 {
			return false
		}
		tagged += " " + string(n)
		msg = bytes.TrimLeft(after, " ")
	}
	e := event{layer: "scsi", sample: p.rec.text}
	subject := func() Subject { return p.names.hctlSubject(hctl, disk) }
	switch {
	case bytes.HasPrefix(msg, []byte("CDB: ")) || bytes.HasPrefix(msg, []byte("CDB:")): // scsi_print_command
		return p.cdb(hctl, tagged, msg[len("CDB:"):])
	case bytes.Contains(msg, []byte("Result: hostbyte=")): // scsi_print_result
		_, host, _ := bytes.Cut(msg, []byte("hostbyte="))
		e.kind = hostByte(host)
		return p.holdSCSI(e, subject(), tagged)
	case bytes.HasPrefix(msg, []byte("Sense Key : ")): // scsi_print_sense
		w := p.waiting(tagged)
		if w == nil {
			return true
		}
		if k, known := senseKey(msg[len("Sense Key : "):]); known {
			w.kind = k
		}
		w.sample = sampleOf([]byte(w.sample + " " + string(msg)))
		return true
	case bytes.HasPrefix(msg, []byte("Add. Sense: ")):
		if w := p.waiting(tagged); w != nil {
			w.sample = sampleOf([]byte(w.sample + " " + string(msg)))
		}
		return true
	case bytes.HasPrefix(msg, []byte("uas_eh_abort_handler ")): // drivers/usb/storage/uas.c
		e.kind, e.layer = Timeout, "uas"
		return p.holdSCSI(e, subject(), tagged)
	case bytes.HasPrefix(msg, []byte("data cmplt err ")), bytes.HasPrefix(msg, []byte("sense cmplt err ")), bytes.HasPrefix(msg, []byte("uas_zap_pending ")):
		e.kind, e.layer = IOError, "uas"
		return p.holdSCSI(e, subject(), tagged)
	case bytes.HasPrefix(msg, []byte("attempting task abort!")): // mpt3sas, scsih_abort; the CDB has the tag, this has not
		e.kind, e.layer = Timeout, "mpt3sas"
		return p.holdSCSI(e, subject(), tagged)
	case bytes.HasPrefix(msg, []byte("attempting device reset!")): // mpt3sas, scsih_dev_reset
		e.kind, e.layer = Reset, "mpt3sas"
	case bytes.HasPrefix(msg, []byte("OCR is requested due to IO timeout")): // megaraid_sas, megasas_reset_bus_host
		e.kind, e.layer = Timeout, "megaraid_sas"
		return p.holdSCSI(e, subject(), tagged)
	case bytes.HasPrefix(msg, []byte("megasas: RESET cmd=")): // megasas_generic_reset
		e.kind, e.layer = Reset, "megaraid_sas"
	case bytes.HasPrefix(msg, []byte("timing out command, waited ")): // scsi_cmd_runtime_exceeced
		e.kind = Timeout
		return p.holdSCSI(e, subject(), tagged)
	case bytes.HasPrefix(msg, []byte("Device offlined - ")), bytes.HasPrefix(msg, []byte("rejecting I/O to offline device")),
		bytes.HasPrefix(msg, []byte("rejecting I/O to dead device")):
		e.kind = Gone
	case bytes.HasPrefix(msg, []byte("Unaligned partial completion ")): // sd_done
		e.kind = IOError
	default:
		return p.scsiFound(hctl, disk, msg)
	}
	e.subject = subject()
	p.emit(e)
	return true
}

// scsiFound reads what the kernel says when it finds a device: its INQUIRY
// strings in fixed columns (scsi_add_lun) and its block size (sd_print_capacity).
func (p *parser) scsiFound(hctl, disk string, msg []byte) bool {
	if i := bytes.Index(msg, []byte(" PQ: ")); i >= 30 {
		// "%s %.8s %.16s %.4s PQ: %d", each padded to its length
		col := msg[i-30 : i]
		if col[8] != ' ' || col[25] != ' ' {
			return false
		}
		id := scsiName{vendor: text(col[:8]), product: text(col[9:25]), revision: text(col[26:])}
		keep(p.names.scsi, hctl, id)
		delete(p.names.at, hctl) // another disk, whose name is to come
		p.saw(Subject{Vendor: id.vendor, Product: id.product, Revision: id.revision}.Identity(), hctl)
		return true
	}
	if disk == "" {
		return false
	}
	n, rest, ok := leading(msg)
	if !ok || n == 0 || !bytes.HasPrefix(rest, []byte(" ")) {
		return false
	}
	size, rest, ok := leading(rest[1:])
	if ok && (bytes.HasPrefix(rest, []byte("-byte logical blocks")) || bytes.HasPrefix(rest, []byte("-byte hardware sectors"))) &&
		size >= 512 && size <= 1<<20 && size&(size-1) == 0 {
		id := p.names.scsi[hctl]
		id.blockSize = size
		keep(p.names.scsi, hctl, id)
		return true
	}
	return false
}

// scsiHost reads "scsi host6: ..." and "scsi target9:0:2: ...".
func (p *parser) scsiHost(t []byte) bool {
	name, msg, ok := bytes.Cut(t, []byte(": "))
	if !ok || len(name) > 32 || bytes.ContainsAny(name, " \t") {
		return false
	}
	e := event{kind: Reset, layer: "scsi", sample: p.rec.text}
	switch {
	case bytes.HasPrefix(msg, []byte("uas_eh_device_reset_handler start")):
		e.layer = "uas"
	case bytes.HasPrefix(msg, []byte("attempting target reset!")): // mpt3sas, scsih_target_reset
		e.layer = "mpt3sas"
		hctl := strings.TrimPrefix(string(name), "target") + ":0"
		e.subject = p.names.hctlSubject(hctl, "")
		p.emit(e)
		return true
	default:
		return false
	}
	e.subject = Subject{Space: SpaceHost, Name: string(name)}
	p.emit(e)
	return true
}

func (p *parser) holdSCSI(e event, s Subject, tagged string) bool {
	e.subject = s
	// The lines of a command come together; old ones wait in vain.
	i := 0
	for i < len(p.pendingSCSI) && (p.log.Lines-p.pendingSCSI[i].line > staleLines || len(p.pendingSCSI)-i >= maxPending) {
		p.release(p.pendingSCSI[i])
		i++
	}
	p.pendingSCSI = append(p.pendingSCSI[:0], p.pendingSCSI[i:]...)
	if w := p.waiting(tagged); w != nil {
		p.done(w)
	}
	p.pendingSCSI = append(p.pendingSCSI, p.hold(e, tagged))
	return true
}

// waiting is the command that a line of this device and tag belongs to.
func (p *parser) waiting(tagged string) *pending {
	for i := len(p.pendingSCSI) - 1; i >= 0; i-- {
		if p.pendingSCSI[i].key == tagged {
			return p.pendingSCSI[i]
		}
	}
	return nil
}

func (p *parser) done(w *pending) {
	for i, x := range p.pendingSCSI {
		if x == w {
			p.pendingSCSI = append(p.pendingSCSI[:i], p.pendingSCSI[i+1:]...)
			break
		}
	}
	p.release(w)
}

// cdb ends the command that waits. mpt3sas tells of the abort without a tag.
func (p *parser) cdb(hctl, tagged string, b []byte) bool {
	w := p.waiting(tagged)
	if w == nil && tagged != hctl {
		w = p.waiting(hctl)
	}
	if w == nil {
		return true
	}
	command, ok := cdbBytes(b)
	if !ok {
		return false
	}
	w.op, w.blocks, w.lba, w.hasLBA = decodeCDB(command)
	w.sample = sampleOf([]byte(w.sample + " CDB:" + string(b[:min(len(b), 100)])))
	if disk := p.rec.diskName(); disk != "" {
		w.subject.Name = disk
	}
	p.done(w)
	return true
}

// diskName is the disk in "sd 9:0:2:0: [sdd] tag#840 ...".
func (r record) diskName() string {
	_, rest, ok := bytes.Cut(r.text[:min(len(r.text), 64)], []byte(": ["))
	name, _, end := bytes.Cut(rest, []byte("]"))
	if !ok || !end || !isName(name) {
		return ""
	}
	return string(name)
}

// cdbBytes reads the bytes at the end of "Write(16) 8a 00 ...", "Read(10): 28
// ..." or "opcode=0x28 28 ...".
func cdbBytes(b []byte) ([]byte, bool) {
	fields := bytes.Fields(b[:min(len(b), 160)])
	var out []byte
	for _, f := range fields {
		v, ok := hexByte(f)
		if len(f) != 2 || !ok {
			if len(out) > 0 {
				break
			}
			continue
		}
		out = append(out, v)
	}
	return out, len(out) >= 6
}

// decodeCDB tells what a command is and of which blocks (SBC-4, the commands of
// these names). Only reads and writes of data have a size.
func decodeCDB(c []byte) (op string, blocks, lba uint64, hasLBA bool) {
	be := func(at, n int) (v uint64) {
		if at+n > len(c) {
			return 0
		}
		for _, x := range c[at : at+n] {
			v = v<<8 | uint64(x)
		}
		return v
	}
	whole := func(n int) bool { return len(c) >= n }
	op = "read"
	switch c[0] {
	case 0x0a, 0x2a, 0xaa, 0x8a, 0x2e, 0xae, 0x8e, 0x9c: // WRITE, WRITE AND VERIFY, WRITE ATOMIC
		op = "write"
	}
	switch c[0] {
	case 0x08, 0x0a: // READ(6), WRITE(6): 21 bits, and 0 is 256 blocks
		n := be(4, 1)
		if n == 0 {
			n = 256
		}
		return op, n, be(1, 3) & 0x1fffff, true
	case 0x28, 0x2a, 0x2e:
		if whole(10) {
			return op, be(7, 2), be(2, 4), true
		}
		return op, 0, 0, false
	case 0xa8, 0xaa, 0xae:
		if whole(12) {
			return op, be(6, 4), be(2, 4), true
		}
		return op, 0, 0, false
	case 0x88, 0x8a, 0x8e:
		if whole(16) {
			return op, be(10, 4), be(2, 8), true
		}
		return op, 0, 0, false
	case 0x9c:
		if whole(16) {
			return op, be(12, 2), be(2, 8), true
		}
		return op, 0, 0, false
	case 0x35, 0x91:
		return "flush", 0, 0, false
	case 0x42:
		return "discard", 0, 0, false
	case 0x41, 0x93:
		return "write-same", 0, 0, false
	case 0x85, 0xa1: // ATA PASS-THROUGH (SAT)
		return "pass-through", 0, 0, false
	}
	return "other", 0, 0, false
}

// hostByte sorts a command by the host byte, by name or, of kernels without
// CONFIG_SCSI_CONSTANTS, by number (include/scsi/scsi_status.h).
func hostByte(b []byte) Kind {
	name, _, _ := bytes.Cut(b[:min(len(b), 40)], []byte(" "))
	switch string(name) {
	case "DID_TIME_OUT", "0x03":
		return Timeout
	case "DID_NO_CONNECT", "0x01", "DID_BAD_TARGET", "0x04":
		return Gone
	case "DID_RESET", "0x08":
		return Reset
	}
	return IOError
}

// senseKey sorts a command by its sense key (SPC-5, sense key; the names are
// the kernel's, drivers/scsi/constants.c).
func senseKey(b []byte) (Kind, bool) {
	switch {
	case bytes.HasPrefix(b, []byte("Medium Error")), bytes.HasPrefix(b, []byte("0x3 ")):
		return MediumError, true
	case bytes.HasPrefix(b, []byte("Illegal Request")), bytes.HasPrefix(b, []byte("0x5 ")):
		return Refused, true
	}
	return IOError, false
}
