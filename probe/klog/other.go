package klog

import (
	"bytes"
	"strings"
)

// block reads what the block layer, the page cache and device mapper say.
func (p *parser) block(t []byte) bool {
	e := event{layer: "block", sample: t}
	if i := bytes.Index(t[:min(len(t), 80)], []byte(": over max size limit.")); i > 0 { // blk_insert_cloned_request
		p.flushOverMax()
		e.kind = OverMaxSize
		if _, nums, ok := bytes.Cut(t, []byte("limit. (")); ok {
			n, rest, ok := leading(nums)
			if ok && n > 0 && n < 1<<40 && bytes.HasPrefix(rest, []byte(" > ")) {
				e.bytes = n * 512
				e.limit, _, _ = leading(rest[3:])
			}
		}
		p.overMax = p.hold(e, "") // the next line names the path
		return true
	}
	if bytes.HasPrefix(t, []byte("device-mapper: multipath: ")) {
		return p.pathFailed(t, e)
	}
	if rest, ok := bytes.CutPrefix(t, []byte("Buffer I/O error on dev")); ok { // buffer_io_error, fs/buffer.c
		rest = bytes.TrimPrefix(bytes.TrimPrefix(rest, []byte("ice")), []byte(" "))
		name, _, _ := bytes.Cut(rest, []byte(","))
		if !isName(name) {
			return false
		}
		e.kind, e.layer = IOError, "page cache"
		switch {
		case bytes.Contains(t, []byte("write")):
			e.op = "write"
		case bytes.Contains(t, []byte("read")):
			e.op = "read"
		}
		e.subject = p.names.diskSubject(string(name))
		p.emit(e)
		return true
	}
	// blk_print_req_error; older kernels put the name of the function in front.
	for _, function := range []string{"blk_update_request: ", "print_req_error: ", "end_request: "} {
		t = bytes.TrimPrefix(t, []byte(function))
	}
	what, rest, ok := bytes.Cut(t[:min(len(t), 300)], []byte(" error, dev "))
	if !ok || len(what) > 40 {
		return false
	}
	name, rest, ok := bytes.Cut(rest, []byte(","))
	if !ok || !isName(name) {
		return false
	}
	if e.kind, ok = blockStatus(string(what)); !ok {
		return false
	}
	if after, ok := bytes.CutPrefix(rest, []byte(" sector ")); ok {
		e.lba, rest, e.hasLBA = leading(after)
	}
	if _, after, ok := bytes.Cut(rest, []byte(":(")); ok {
		op, _, _ := bytes.Cut(after, []byte(")"))
		e.op = strings.ReplaceAll(strings.ToLower(text(op)), "_", "-")
	}
	e.subject = p.names.diskSubject(string(name))
	p.emit(e)
	return true
}

// blockStatus sorts the words of blk_status_to_str (block/blk-core.c).
func blockStatus(what string) (Kind, bool) {
	switch what {
	case "I/O", "recoverable transport", "critical space allocation", "critical nexus", "kernel resource", "device resource",
		"nonblocking retry", "dm internal retry", "open zones exceeded", "active zones exceeded", "reservation conflict", "duration limit exceeded":
		return IOError, true
	case "timeout":
		return Timeout, true
	case "critical medium":
		return MediumError, true
	case "critical target", "operation not supported", "invalid":
		return Refused, true
	case "protection":
		return IOError, true
	case "device offline":
		return Gone, true
	}
	return "", false
}

// pathFailed reads "device-mapper: multipath: 254:3: Failing path 8:16."
// (fail_path, drivers/md/dm-mpath.c); without the map in older kernels.
func (p *parser) pathFailed(t []byte, e event) bool {
	head, path, ok := bytes.Cut(t, []byte("Failing path "))
	if !ok {
		return false
	}
	path = bytes.TrimRight(path[:min(len(path), 24)], ".")
	if !isDevno(path) {
		return false
	}
	s := Subject{Space: SpaceDevno, Name: string(path)}
	dm := bytes.TrimSuffix(bytes.TrimPrefix(head, []byte("device-mapper: multipath: ")), []byte(": "))
	if isDevno(dm) {
		s.Map = string(dm)
	}
	if w := p.overMax; w != nil {
		w.subject = s
		p.flushOverMax()
	}
	e.kind, e.layer, e.subject = PathFailed, "multipath", s
	p.emit(e)
	return true
}

func (p *parser) flushOverMax() {
	p.release(p.overMax)
	p.overMax = nil
}

func isDevno(b []byte) bool {
	major, minor, ok := bytes.Cut(b, []byte(":"))
	return ok && len(b) < 20 && allDigits(major) && allDigits(minor)
}

// md reads the lines of md that name the disk at fault: "md/raid1:md0: Disk
// failure on sdb1, disabling device." and "read error corrected (8 sectors at
// 1234 on sdb1)" (drivers/md/raid1.c, raid5.c, raid10.c).
func (p *parser) md(t []byte) bool {
	e := event{layer: "md", sample: t}
	var name []byte
	if _, after, ok := bytes.Cut(t, []byte("Disk failure on ")); ok {
		e.kind = Gone
		name, _, _ = bytes.Cut(after, []byte(","))
	} else if _, after, ok := bytes.Cut(t, []byte("read error ")); ok {
		e.kind, e.op = MediumError, "read"
		_, on, ok := bytes.Cut(after, []byte(" on "))
		if !ok {
			return false
		}
		name = bytes.TrimRight(on, ").!")
	} else {
		return false
	}
	if !isName(name) {
		return false
	}
	e.subject = p.names.diskSubject(string(name))
	p.emit(e)
	return true
}

// nvme reads "nvme nvme0: ..." and "nvme0n1: ..." (drivers/nvme/host).
func (p *parser) nvme(t []byte) bool {
	if !bytes.HasPrefix(t, []byte("nvme ")) {
		return p.nvmeCommand(t)
	}
	nameBytes, msg, ok := bytes.Cut(t[len("nvme "):], []byte(": "))
	if !ok || len(nameBytes) > 16 || !bytes.HasPrefix(nameBytes, []byte("nvme")) || !allDigits(nameBytes[4:]) {
		return false
	}
	name := string(nameBytes)
	e := event{layer: "nvme", sample: t}
	switch {
	case bytes.HasPrefix(msg, []byte("pci function ")): // nvme_probe
		keep(p.names.nvme, name, text(msg[len("pci function "):]))
		return true
	case bytes.HasPrefix(msg, []byte("I/O ")) && bytes.Contains(msg, []byte(" timeout, ")): // nvme_timeout
		_, what, _ := bytes.Cut(msg, []byte(" timeout, "))
		e.kind = Timeout
		switch {
		case bytes.HasPrefix(what, []byte("reset controller")):
			e.kind = Reset
		case bytes.HasPrefix(what, []byte("disable controller")):
			e.kind = Gone
		case bytes.HasPrefix(what, []byte("completion polled")):
			e.detail = "completion polled" // done, and the interrupt is missing
		}
		if _, op, ok := bytes.Cut(what, []byte("req_op:")); ok { // 6.12; 6.1 does not tell
			op, _, _ = bytes.Cut(op, []byte("("))
			e.op = strings.ReplaceAll(strings.ToLower(text(op)), "_", "-")
		}
		if _, size, ok := bytes.Cut(what, []byte(" size:")); ok && (e.op == "read" || e.op == "write") {
			e.bytes, _, _ = leading(size)
		}
	case bytes.HasPrefix(msg, []byte("controller is down; will reset")), bytes.HasPrefix(msg, []byte("resetting controller")),
		bytes.HasPrefix(msg, []byte("frozen state error detected, reset controller")):
		e.kind = Reset
	case bytes.HasPrefix(msg, []byte("Device not ready; aborting ")), bytes.HasPrefix(msg, []byte("Removing after probe failure")),
		bytes.HasPrefix(msg, []byte("Disabling device after reset failure")), bytes.HasPrefix(msg, []byte("failure state error detected")):
		e.kind = Gone
	default:
		return false
	}
	e.subject = p.names.nvmeSubject(name)
	p.emit(e)
	return true
}

// nvmeCommand reads "nvme0n1: I/O Cmd(0x2) @ LBA 454954056, 256 blocks, I/O
// Error (sct 0x3 / sc 0x71)"; with CONFIG_NVME_VERBOSE_ERRORS the command and
// the status have their names (nvme_log_error).
func (p *parser) nvmeCommand(t []byte) bool {
	name, msg, ok := bytes.Cut(t, []byte(": "))
	if !ok || !isName(name) {
		return false
	}
	_, code, ok := bytes.Cut(msg, []byte("(0x"))
	sct, found := hexAfter(msg, "(sct 0x")
	sc, _ := hexAfter(msg, "/ sc 0x")
	if !ok || !found {
		return false
	}
	e := event{kind: IOError, layer: "nvme", sample: t}
	switch {
	case sct == 2: // Media and Data Integrity Errors (NVMe base specification, Status Code Type)
		e.kind = MediumError
	case sct == 0 && (sc == 0x01 || sc == 0x02 || sc == 0x13): // invalid opcode, invalid field, PRP offset invalid
		e.kind = Refused
	}
	if _, at, ok := bytes.Cut(msg, []byte(" @ LBA ")); ok {
		switch {
		case bytes.HasPrefix(code, []byte("2)")):
			e.op = "read"
		case bytes.HasPrefix(code, []byte("1)")):
			e.op = "write"
		case bytes.HasPrefix(code, []byte("9)")):
			e.op = "discard"
		case bytes.HasPrefix(code, []byte("0)")):
			e.op = "flush"
		default:
			e.op = "other"
		}
		var rest []byte
		if e.lba, rest, e.hasLBA = leading(at); e.hasLBA && (e.op == "read" || e.op == "write") {
			if blocks, after, ok := leading(bytes.TrimPrefix(rest, []byte(", "))); ok && bytes.HasPrefix(after, []byte(" blocks")) {
				e.blocks = blocks
			}
		}
	} else {
		e.op = "admin"
	}
	if n := string(name); controllerOf(n) != "" {
		e.subject = p.names.diskSubject(n)
	} else {
		e.subject = p.names.nvmeSubject(n)
	}
	p.emit(e)
	return true
}

// usb reads "usb 2-1: ..." and "usb-storage 2-1:1.0: ..." (drivers/usb/core/hub.c,
// drivers/usb/storage/usb.c, uas-detect.h).
func (p *parser) usb(t []byte) bool {
	e := event{layer: "usb", sample: t}
	if rest, ok := bytes.CutPrefix(t, []byte("usb-storage ")); ok {
		name, msg, ok := bytes.Cut(rest, []byte(": "))
		path, _, isInterface := bytes.Cut(name, []byte(":"))
		if !ok || !isInterface || !isUSB(path) {
			return false
		}
		dev := string(path)
		u := p.names.usb[dev]
		u.storage = true
		keep(p.names.usb, dev, u)
		if bytes.HasPrefix(msg, []byte("Quirks match for vid ")) {
			_, flags, _ := bytes.Cut(msg[len("Quirks match for vid "):], []byte(": "))
			e.kind, e.layer, e.detail = Quirk, "usb-storage", "usb-storage flags 0x"+text(flags)
			e.subject = p.names.usbSubject(dev)
			p.emit(e)
		}
		return true
	}
	rest, ok := bytes.CutPrefix(t, []byte("usb "))
	if !ok {
		return false
	}
	name, msg, ok := bytes.Cut(rest, []byte(": "))
	if !ok || !isUSB(name) {
		return false
	}
	dev := string(name)
	switch {
	case bytes.HasPrefix(msg, []byte("New USB device found, idVendor=")):
		u := usbName{vid: wordAfter(msg, "idVendor="), pid: wordAfter(msg, "idProduct=")}
		keep(p.names.usb, dev, u)
		p.saw(Subject{VID: u.vid, PID: u.pid}.Identity(), dev)
		return true
	case bytes.HasPrefix(msg, []byte("reset ")) && bytes.Contains(msg, []byte(" USB device number ")): // hub_port_init
		e.kind = Reset
	case bytes.HasPrefix(msg, []byte("USB disconnect")):
		e.kind, e.detail = Gone, "disconnect"
	case bytes.HasPrefix(msg, []byte("UAS is ")) && bytes.Contains(msg, []byte("usb-storage instead")): // ignored, blacklisted
		e.kind, e.layer, e.detail = Quirk, "uas", "UAS ignored"
		u := p.names.usb[dev]
		u.storage = true
		keep(p.names.usb, dev, u)
	default:
		return false
	}
	e.subject = p.names.usbSubject(dev)
	p.emit(e)
	if e.kind == Gone {
		delete(p.names.usb, dev)
	}
	return true
}

// isUSB reports that b is a USB device as sysfs names it: bus-port.port
func isUSB(b []byte) bool {
	bus, ports, ok := bytes.Cut(b, []byte("-"))
	if !ok || len(b) > 32 || !allDigits(bus) {
		return false
	}
	for _, port := range bytes.Split(ports, []byte(".")) {
		if !allDigits(port) {
			return false
		}
	}
	return true
}

// wordAfter is what stands behind key, up to a comma or blank.
func wordAfter(b []byte, key string) string {
	_, rest, ok := bytes.Cut(b, []byte(key))
	if !ok {
		return ""
	}
	if i := bytes.IndexAny(rest, ", "); i >= 0 {
		rest = rest[:i]
	}
	return text(rest[:min(len(rest), 8)])
}

// adapter reads lines that a driver prints of its adapter: mpt3sas, megaraid_sas,
// hpsa, smartpqi.
func (p *parser) adapter(t []byte) bool {
	e := event{kind: Reset, sample: t}
	name, msg, ok := bytes.Cut(t[:min(len(t), 400)], []byte(": "))
	if !ok || len(name) > 40 {
		return false
	}
	driver, pci, hasPCI := bytes.Cut(name, []byte(" "))
	e.layer = text(driver)
	e.subject = Subject{Space: SpacePCI, Name: text(pci)}
	if !hasPCI { // mpt3sas_cm0
		e.subject = Subject{Space: SpaceNone, Name: text(driver)}
		e.layer, _, _ = strings.Cut(e.layer, "_cm")
	}
	atHCTL := func(b []byte) bool {
		b, ok := bytes.CutPrefix(b, []byte("scsi "))
		hctl, _, isHCTL := cutHCTL(b)
		if ok && isHCTL {
			e.subject = p.names.hctlSubject(string(hctl), "")
		}
		return ok && isHCTL
	}
	switch {
	case bytes.HasPrefix(msg, []byte("log_info(0x")): // _base_sas_log_info
		code, ok := hexAfter(msg, "log_info(0x")
		if !ok || code > 1<<32-1 {
			return false
		}
		e.kind, e.detail = Message, string(msg[len("log_info("):][:min(10, len(msg)-len("log_info("))])
	case bytes.HasPrefix(msg, []byte("attempting host reset!")): // scsih_host_reset
	case e.layer == "megaraid_sas" && bytes.HasPrefix(msg, []byte("resetting fusion adapter")): // megasas_reset_fusion
	case e.layer == "hpsa" && bytes.Contains(msg, []byte(": resetting ")): // hpsa_eh_device_reset_handler
		if !atHCTL(msg) {
			return false
		}
	case e.layer == "smartpqi" && bytes.HasPrefix(msg, []byte("resetting scsi ")): // pqi_device_reset_handler
		if !atHCTL(msg[len("resetting "):]) {
			return false
		}
	default:
		return false
	}
	p.emit(e)
	return true
}
