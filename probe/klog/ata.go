package klog

import (
	"bytes"
	"strings"
)

// ata reads "ataN: ..." and "ataN.NN: ..." (include/linux/libata.h,
// ata_port_printk, ata_dev_printk).
func (p *parser) ata(t []byte) bool {
	_, rest, ok := leading(t[3:])
	if !ok || len(rest) == 0 {
		return false
	}
	if rest[0] == '.' {
		if _, rest, ok = leading(rest[1:]); !ok || len(rest) == 0 {
			return false
		}
	}
	nameBytes := t[3 : len(t)-len(rest)]
	if rest[0] != ':' || len(nameBytes) > 16 {
		return false
	}
	msg := bytes.TrimLeft(rest[1:], " ")
	name := string(nameBytes)
	e := event{layer: "libata", sample: t}
	switch {
	case bytes.HasPrefix(msg, []byte("exception Emask ")): // ata_eh_link_report
		p.flushATA()
		p.newIncident(name)
		serr, _ := hexAfter(msg, "SErr 0x")
		if serr == 0 {
			return true
		}
		e.kind = LinkError
	case bytes.HasPrefix(msg, []byte("failed command: ")): // the command itself follows
		p.flushATA()
		e.kind, e.op = IOError, ataOpName(msg[len("failed command: "):])
		e.subject, e.incident = p.names.ataSubject(name), p.incidents[name]
		p.pendingATA = p.hold(e, name)
		return true
	case bytes.HasPrefix(msg, []byte("cmd ")):
		return p.ataCommand(name, t, msg)
	case bytes.HasPrefix(msg, []byte("hard resetting link")), bytes.HasPrefix(msg, []byte("soft resetting link")), // ata_eh_reset
		bytes.HasPrefix(msg, []byte("hard resetting port")), bytes.HasPrefix(msg, []byte("soft resetting port")): // older kernels
		p.flushATA()
		e.kind = Reset
	case bytes.HasPrefix(msg, []byte("reset failed")), bytes.Contains(msg, []byte("COMRESET failed")), bytes.Contains(msg, []byte("SRST failed")),
		bytes.HasPrefix(msg, []byte("softreset failed")):
		e.kind, e.detail = Reset, "failed"
	case bytes.HasPrefix(msg, []byte("limiting SATA link speed to ")): // sata_down_spd_limit
		e.kind, e.detail = LinkError, "slowed down"
	case bytes.HasPrefix(msg, []byte("qc timeout ")): // ata_exec_internal_sg
		e.kind, e.op = Timeout, "internal"
	case bytes.HasPrefix(msg, []byte("failed to IDENTIFY")), bytes.HasPrefix(msg, []byte("revalidation failed")):
		e.kind, e.op = IOError, "identify"
	case bytes.Equal(msg, []byte("disabled")), bytes.HasPrefix(msg, []byte("disable device")): // ata_dev_disable
		e.kind = Gone
	case bytes.HasPrefix(msg, []byte("EH complete")):
		p.flushATA()
		return true
	case bytes.HasPrefix(msg, []byte("Model '")): // ata_dev_print_quirks, 6.12
		model, firmware, quirks, whole, ok := quirkLine(msg)
		if !ok {
			return false
		}
		if strings.Contains(name, ".") {
			p.ataIdentity(name, model, firmware)
			if d := p.ataDevice(name, model, firmware); d != nil {
				d.Listed, d.Cut, d.Quirks = true, !whole, strings.Fields(quirks)
				d.At, d.Sample = p.now(), sampleOf(t)
			}
		}
		e.kind, e.detail = Quirk, quirks
	case bytes.HasPrefix(msg, []byte("FORCE: ")): // ata_force_horkage, ata_force_quirks
		_, what, found := bytes.Cut(msg, []byte("modified ("))
		if !found {
			return false
		}
		e.kind, e.detail = Quirk, "libata.force="+text(bytes.TrimRight(what, ")"))
	case bytes.HasPrefix(msg, []byte("applying bridge limits")): // ata_dev_configure
		e.kind, e.detail = Quirk, "bridge limits"
	case bytes.HasPrefix(msg, []byte("LPM support broken")):
		e.kind, e.detail = Quirk, "nolpm"
	case bytes.HasPrefix(msg, []byte("ATA-")), bytes.HasPrefix(msg, []byte("CFA: ")), bytes.HasPrefix(msg, []byte("ATAPI: ")): // ata_dev_configure
		return p.ataFound(name, msg)
	default:
		return bytes.HasPrefix(msg, []byte("SError: ")) || bytes.HasPrefix(msg, []byte("status: {")) || bytes.HasPrefix(msg, []byte("error: {"))
	}
	e.subject, e.incident = p.names.ataSubject(name), p.incidents[name]
	p.emit(e)
	return true
}

// newIncident starts one for a device, or for all of a port.
func (p *parser) newIncident(name string) {
	if len(p.incidents) >= maxNames {
		p.incidents = map[string]*incident{}
	}
	p.incidents[name] = &incident{}
	if port, _, isDevice := strings.Cut(name, "."); isDevice {
		delete(p.incidents, port)
	}
}

func (p *parser) incidentOf(name string) *incident {
	if i := p.incidents[name]; i != nil {
		return i
	}
	port, _, _ := strings.Cut(name, ".")
	return p.incidents[port]
}

// ataCommand reads "cmd 61/00:08:... tag 1 ncq dma 4096 out", with the result
// "res 40/00:... Emask 0x4 (timeout)" on the same line or the next one
// (ata_eh_link_report).
func (p *parser) ataCommand(name string, t, msg []byte) bool {
	tf, rest, ok := taskfile(msg[len("cmd "):])
	if !ok {
		return false
	}
	e := event{kind: IOError, layer: "libata", subject: p.names.ataSubject(name), incident: p.incidentOf(name), sample: t}
	var blocks uint64
	e.op, blocks, e.lba, e.hasLBA = tf.decode()
	res := bytes.Index(rest, []byte("res "))
	data := rest
	if res >= 0 {
		data = rest[:res]
	}
	data, _, _ = bytes.Cut(data, []byte(`\x0a`)) // the line break, as /dev/kmsg has it
	switch n, found := transferred(data); {
	case e.op != "read" && e.op != "write": // the data are not what the medium is asked for
	case found && n > 0:
		e.bytes = n
	default:
		e.blocks = blocks
	}
	if w := p.pendingATA; w != nil && (w.key != name || w.event.bytes > 0 || w.event.hasLBA) {
		p.flushATA()
	}
	p.pendingATA = p.hold(e, name) // of its own "failed command" line
	if res >= 0 {
		p.ataResult(rest[res:])
	}
	return true
}

// continued reads the second line of a message of libata.
func (p *parser) continued(t []byte) bool {
	t = bytes.TrimLeft(t, " \t")
	// Of an ATAPI device the command's name and bytes come before it.
	i := bytes.Index(t[:min(len(t), 120)], []byte("res "))
	if p.pendingATA == nil || i < 0 {
		return false
	}
	return p.ataResult(t[i:])
}

// ataResult ends the command that waits by what became of it (ata_err_string).
func (p *parser) ataResult(res []byte) bool {
	i := bytes.Index(res, []byte("Emask 0x"))
	if i < 0 {
		return false
	}
	w := p.pendingATA
	switch _, why, _ := bytes.Cut(res[i:], []byte("(")); {
	case bytes.HasPrefix(why, []byte("timeout)")):
		w.kind = Timeout
	case bytes.HasPrefix(why, []byte("media error)")):
		w.kind = MediumError
	case bytes.HasPrefix(why, []byte("ATA bus error)")), bytes.HasPrefix(why, []byte("host bus error)")):
		w.kind = LinkError
	}
	w.sample = sampleOf([]byte(w.sample + " " + string(res[i:min(len(res), i+40)])))
	if strings.Count(w.sample, "Emask 0x") > 1 { // it was on the same line
		w.sample = w.sample[:strings.LastIndex(w.sample, " Emask 0x")]
	}
	p.flushATA()
	return true
}

func (p *parser) flushATA() {
	p.release(p.pendingATA)
	p.pendingATA = nil
}

// registers are an ATA taskfile as libata prints it.
type registers struct {
	command, feature, nsect, lbal, lbam, lbah            byte
	hobFeature, hobNsect, hobLbal, hobLbam, hobLbah, dev byte
}

// taskfile reads cc/ff:nn:ll:mm:hh/ff:nn:ll:mm:hh/dd.
func taskfile(b []byte) (r registers, rest []byte, ok bool) {
	const form = "xx/xx:xx:xx:xx:xx/xx:xx:xx:xx:xx/xx"
	if len(b) < len(form) {
		return r, b, false
	}
	var v [12]byte
	for i, n := 0, 0; i < len(form); {
		if form[i] != 'x' {
			if b[i] != form[i] {
				return r, b, false
			}
			i++
			continue
		}
		if v[n], ok = hexByte(b[i:]); !ok {
			return r, b, false
		}
		n++
		i += 2
	}
	return registers{v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10], v[11]}, b[len(form):], true
}

// decode tells what the command is and of which blocks (ACS-4, the commands of
// these names). ATA commands of 28 bits keep four bits of the LBA in the device
// register; a count of 0 is the largest.
func (r registers) decode() (op string, blocks, lba uint64, hasLBA bool) {
	lba48 := uint64(r.hobLbah)<<40 | uint64(r.hobLbam)<<32 | uint64(r.hobLbal)<<24 | uint64(r.lbah)<<16 | uint64(r.lbam)<<8 | uint64(r.lbal)
	lba28 := uint64(r.dev&0xf)<<24 | uint64(r.lbah)<<16 | uint64(r.lbam)<<8 | uint64(r.lbal)
	count := func(hob, low byte) uint64 {
		if n := uint64(hob)<<8 | uint64(low); n > 0 {
			return n
		}
		return 1 << 16
	}
	count28 := uint64(r.nsect)
	if count28 == 0 {
		count28 = 256
	}
	switch r.command {
	case 0x60: // READ FPDMA QUEUED: the count is in FEATURE, COUNT holds the tag
		return "read", count(r.hobFeature, r.feature), lba48, true
	case 0x61: // WRITE FPDMA QUEUED
		return "write", count(r.hobFeature, r.feature), lba48, true
	case 0x24, 0x25, 0x29: // READ SECTORS EXT, READ DMA EXT, READ MULTIPLE EXT
		return "read", count(r.hobNsect, r.nsect), lba48, true
	case 0x34, 0x35, 0x39, 0x3d, 0xce: // WRITE SECTORS, DMA, MULTIPLE EXT, with FUA
		return "write", count(r.hobNsect, r.nsect), lba48, true
	case 0x20, 0xc4, 0xc8: // READ SECTORS, READ MULTIPLE, READ DMA
		return "read", count28, lba28, true
	case 0x30, 0xc5, 0xca: // WRITE SECTORS, WRITE MULTIPLE, WRITE DMA
		return "write", count28, lba28, true
	case 0xe7, 0xea: // FLUSH CACHE, FLUSH CACHE EXT
		return "flush", 0, 0, false
	case 0x06: // DATA SET MANAGEMENT
		return "discard", 0, 0, false
	case 0x64: // SEND FPDMA QUEUED; subcommand 0 is DATA SET MANAGEMENT
		if r.hobNsect&0x1f == 0 {
			return "discard", 0, 0, false
		}
	case 0xb0:
		return "smart", 0, 0, false
	case 0xa0:
		return "packet", 0, 0, false
	case 0xec, 0xa1:
		return "identify", 0, 0, false
	}
	return "other", 0, 0, false
}

// transferred reads the bytes in " tag 3 ncq dma 4194304 in". Older
// kernels print "ncq 4096 in", the oldest "cdb 0x0 data 4096 in".
func transferred(b []byte) (uint64, bool) {
	fields := bytes.Fields(b[:min(len(b), 120)])
	for i := 1; i < len(fields); i++ {
		if w := string(fields[i]); w == "in" || w == "out" || w == "ou" || w == "bidi" {
			return number(fields[i-1])
		}
	}
	return 0, false
}

// ataOpName sorts the name of a command (ata_get_cmd_name).
func ataOpName(b []byte) string {
	switch name := string(bytes.TrimSpace(b[:min(len(b), 40)])); {
	case strings.HasPrefix(name, "READ LOG"):
		return "other"
	case strings.HasPrefix(name, "READ "):
		return "read"
	case strings.HasPrefix(name, "WRITE LOG"):
		return "other"
	case strings.HasPrefix(name, "WRITE "):
		return "write"
	case strings.HasPrefix(name, "FLUSH"):
		return "flush"
	case name == "DATA SET MANAGEMENT", name == "SEND FPDMA QUEUED":
		return "discard"
	case strings.HasPrefix(name, "IDENTIFY"):
		return "identify"
	case name == "SMART":
		return "smart"
	}
	return "other"
}

// ataFound reads "ATA-10: MODEL, FIRMWARE, max UDMA/133". A model may hold a
// comma, so it is read from the end.
func (p *parser) ataFound(name string, msg []byte) bool {
	_, rest, ok := bytes.Cut(msg, []byte(": "))
	end := bytes.LastIndex(rest, []byte(", max "))
	if !ok || end < 0 || !strings.Contains(name, ".") {
		return false
	}
	comma := bytes.LastIndexByte(rest[:end], ',')
	if comma < 0 {
		return false
	}
	model, firmware := text(rest[:comma]), text(rest[comma+1:end])
	p.ataIdentity(name, model, firmware)
	if d := p.ataDevice(name, model, firmware); d != nil && !d.Found {
		d.Found = true
		if !d.Listed {
			d.At, d.Sample = p.now(), sampleOf(p.rec.text)
		}
	}
	return true
}

func (p *parser) ataIdentity(name, model, firmware string) {
	keep(p.names.ata, name, ataName{model, firmware})
	p.saw(Subject{Model: model, Firmware: firmware}.Identity(), name)
}

// quirkLine reads "Model 'M', rev 'F', applying quirks: a b". whole says that
// the list is not cut.
func quirkLine(msg []byte) (model, firmware, quirks string, whole, ok bool) {
	rest := msg[len("Model '"):]
	i := bytes.LastIndex(rest, []byte("', applying quirks:"))
	if i < 0 {
		return "", "", "", false, false
	}
	words := rest[i+len("', applying quirks:"):]
	m, f, ok := bytes.Cut(rest[:i], []byte("', rev '"))
	return text(m), text(f), list(words), len(words) <= maxList, ok
}

// hexAfter reads the hex number behind a word.
func hexAfter(b []byte, word string) (uint64, bool) {
	i := bytes.Index(b, []byte(word))
	if i < 0 {
		return 0, false
	}
	n, digits := uint64(0), 0
	for _, c := range b[i+len(word):] {
		d, ok := hexDigit(c)
		if !ok || digits == 16 {
			break
		}
		n, digits = n<<4|uint64(d), digits+1
	}
	return n, digits > 0
}
