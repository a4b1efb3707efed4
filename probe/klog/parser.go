package klog

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// parser is the state of one reading.
type parser struct {
	log   Log
	names names
	rec   record
	last  float64 // the kernel's clock of the last line that had one
	fresh bool    // nothing was learned of this boot yet

	pendingATA  *pending
	pendingSCSI []*pending
	overMax     *pending
	incidents   map[string]*incident  // by ATA name
	devices     map[string]*ATADevice // of this boot, by ATA name
	found       []*ATADevice          // the same in the order of the log

	bySubject map[key]*Symptom
	order     []*Symptom
	sizes     int // entries of all lists of sizes
	addresses int // and of all twins
	twins     map[string]*twin
}

// key is what one symptom has in common.
type key struct {
	kind    Kind
	layer   string
	op      string
	detail  string
	subject Subject
}

// incident is one failure that several lines tell about.
type incident struct{ size Size }

// twin counts the addresses of an identity in one boot.
type twin struct {
	boot, n, most int
	addresses     map[string]bool
}

// event is what one line, or a few that belong together, say.
type event struct {
	kind     Kind
	layer    string
	op       string
	subject  Subject
	bytes    uint64 // size of the command
	blocks   uint64 // the same in logical blocks, where bytes are not known
	lba      uint64
	hasLBA   bool
	limit    uint64
	detail   string
	incident *incident
	sample   []byte
}

// pending is an event whose further lines have not come yet.
type pending struct {
	event
	key    string // whose lines they are
	line   uint64
	time   string
	sample string
}

func newParser() *parser {
	return &parser{names: newNames(), fresh: true, log: Log{Boots: 1}, incidents: map[string]*incident{}, devices: map[string]*ATADevice{}, bySubject: map[key]*Symptom{}, twins: map[string]*twin{}}
}

// line reads one line.
func (p *parser) line(line []byte) {
	p.log.Lines++
	p.rec = cut(line)
	if p.rec.timed {
		// A clock that starts again is another boot; loggers may swap lines.
		if p.rec.seconds+60 < p.last {
			p.newBoot()
		}
		p.last = p.rec.seconds
	}
	t := p.rec.text
	if len(t) > maxLine {
		t = t[:maxLine]
	}
	if p.pendingATA != nil && p.log.Lines-p.pendingATA.line > staleLines {
		p.flushATA()
	}
	if p.overMax != nil && p.log.Lines-p.overMax.line > 4 {
		p.flushOverMax()
	}
	if len(t) < 4 {
		return
	}
	if p.parse(t) {
		p.log.Known++
		p.fresh = p.fresh && t[0] == 'L'
	}
}

// parse sorts a line by its first word.
func (p *parser) parse(t []byte) bool {
	switch t[0] {
	case 'a':
		if bytes.HasPrefix(t, []byte("ata")) {
			return p.ata(t)
		}
		return p.block(t)
	case 's':
		switch {
		case bytes.HasPrefix(t, []byte("sd ")), bytes.HasPrefix(t, []byte("sr ")):
			return p.scsi(t[3:])
		case bytes.HasPrefix(t, []byte("scsi ")):
			return p.scsi(t[5:])
		case bytes.HasPrefix(t, []byte("smartpqi ")):
			return p.adapter(t)
		}
	case ' ', '\t':
		return p.continued(t)
	case 'r':
		return p.continued(t) || p.block(t)
	case 'I', 'B', 'b', 'c', 'd', 'e', 'i', 'k', 'o', 'p', 't':
		return p.block(t)
	case 'n':
		if bytes.HasPrefix(t, []byte("nvme")) {
			return p.nvme(t)
		}
		if bytes.HasPrefix(t, []byte("nonblocking retry error")) {
			return p.block(t)
		}
	case 'u':
		if bytes.HasPrefix(t, []byte("usb")) {
			return p.usb(t)
		}
	case 'm':
		switch {
		case bytes.HasPrefix(t, []byte("md/")):
			return p.md(t)
		case bytes.HasPrefix(t, []byte("mpt")), bytes.HasPrefix(t, []byte("megaraid_sas ")):
			return p.adapter(t)
		}
	case 'h':
		if bytes.HasPrefix(t, []byte("hpsa ")) {
			return p.adapter(t)
		}
	case 'L':
		if bytes.HasPrefix(t, []byte("Linux version ")) { // linux_banner, init/version.c
			p.newBoot()
			p.log.Kernel = strings.ToValidUTF8(string(t[:min(len(t), maxBanner)]), "?")
			return true
		}
	case '-':
		// journalctl, between the boots that it shows
		if bytes.HasPrefix(t, []byte("-- Boot ")) || bytes.HasPrefix(t, []byte("-- Reboot --")) {
			p.newBoot()
		}
	}
	return false
}

// newBoot forgets the names. The line that starts a kernel often follows the
// jump of its clock, which is one start.
func (p *parser) newBoot() {
	p.flush()
	if p.fresh {
		return
	}
	p.endBoot()
	p.log.Kernel = ""
	p.log.Boots++
	p.fresh = true
	p.names = newNames()
	p.incidents = map[string]*incident{}
	p.last = 0
}

// endBoot takes down the devices of a boot.
func (p *parser) endBoot() {
	ports := map[string]int{}
	port := func(name string) string { before, _, _ := strings.Cut(name, "."); return before }
	for _, d := range p.found {
		ports[port(d.Name)]++
	}
	for _, d := range p.found {
		if len(p.log.ATA) < maxDevices {
			d.Boot, d.Kernel, d.Alone = p.log.Boots, p.log.Kernel, ports[port(d.Name)] == 1
			p.log.ATA = append(p.log.ATA, *d)
		}
	}
	p.devices, p.found = map[string]*ATADevice{}, nil
}

// ataDevice is the device of a name in this boot; nil where there are too many.
// Another disk at the same place is another device.
func (p *parser) ataDevice(name, model, firmware string) *ATADevice {
	d := p.devices[name]
	if d != nil && d.Model == model && d.Firmware == firmware {
		return d
	}
	if len(p.log.ATA)+len(p.found) >= maxDevices {
		return nil
	}
	d = &ATADevice{Name: "ata" + name, Model: model, Firmware: firmware}
	p.devices[name] = d
	p.found = append(p.found, d)
	return d
}

// saw counts the addresses of an identity.
func (p *parser) saw(identity, address string) {
	if identity == "" {
		return
	}
	w := p.twins[identity]
	switch {
	case w == nil && len(p.twins) >= maxNames:
		return
	case w == nil:
		w = &twin{}
		p.twins[identity] = w
		fallthrough
	case w.boot != p.log.Boots:
		w.boot, w.n, w.addresses = p.log.Boots, 0, map[string]bool{}
	}
	if !w.addresses[address] && p.addresses < maxAllSizes {
		p.addresses++
		w.addresses[address] = true
		w.n++
		w.most = max(w.most, w.n)
	}
}

// now is the position of the present line.
func (p *parser) now() Position {
	t := strings.ToValidUTF8(string(p.rec.time[:min(len(p.rec.time), maxName)]), "?")
	if p.rec.timed && !strings.ContainsAny(t, ".:") { // /dev/kmsg
		t = fmt.Sprintf("%.6f", p.rec.seconds)
	}
	return Position{Line: p.log.Lines, Time: t}
}

func sampleOf(b []byte) string {
	b = b[:min(len(b), maxSample)]
	s := strings.ToValidUTF8(string(b), "?")
	// /dev/kmsg escapes the line break inside a message.
	s = strings.ReplaceAll(s, `\x0a`, " ")
	return strings.Join(strings.Fields(s), " ")
}

// emit counts an event at the present line.
func (p *parser) emit(e event) { p.count(e, p.now(), "") }

// hold makes an event wait for its further lines.
func (p *parser) hold(e event, key string) *pending {
	at := p.now()
	w := &pending{event: e, key: key, line: at.Line, time: at.Time, sample: sampleOf(e.sample)}
	w.event.sample = nil
	return w
}

func (p *parser) release(w *pending) {
	if w != nil {
		p.count(w.event, Position{Line: w.line, Time: w.time}, w.sample)
	}
}

func (p *parser) count(e event, at Position, sample string) {
	k := key{kind: e.kind, layer: e.layer, op: e.op, detail: e.detail, subject: e.subject}
	s := p.bySubject[k]
	if s == nil {
		if len(p.order) >= maxSymptoms {
			p.log.Dropped++
			return
		}
		s = &Symptom{Kind: e.kind, Layer: e.layer, Op: e.op, Detail: e.detail, Subject: e.subject, First: at}
		p.bySubject[k] = s
		p.order = append(p.order, s)
	}
	s.Count++
	if at.Line >= s.Last.Line {
		s.Last = at
	}
	size := Size{Bytes: e.bytes, Blocks: e.blocks, Count: 1}
	if size.Bytes == 0 && size.Blocks > 0 {
		if bs := p.names.blockSize(e.subject); bs > 0 && size.Blocks < 1<<40 {
			size.Bytes, size.Blocks = size.Blocks*bs, 0
		}
	}
	sized := size.Bytes > 0 || size.Blocks > 0
	if s.Sample == "" || sized && compareSizes(size, s.Largest) > 0 {
		if sample == "" {
			sample = sampleOf(e.sample)
		}
		s.Sample, s.LBA, s.HasLBA, s.Limit = sample, e.lba, e.hasLBA, e.limit
	}
	if !sized {
		return
	}
	if compareSizes(size, s.Largest) > 0 {
		s.Largest = Size{Bytes: size.Bytes, Blocks: size.Blocks}
	}
	if s.Smallest == (Size{}) || compareSizes(size, s.Smallest) < 0 {
		s.Smallest = Size{Bytes: size.Bytes, Blocks: size.Blocks}
	}
	if !p.addSize(&s.Sizes, size) {
		s.Unlisted++
	}
	switch i := e.incident; {
	case i == nil:
		p.addSize(&s.Incidents, size)
	default:
		if compareSizes(size, i.size) > 0 {
			i.size = size
		}
		if s.open != i {
			p.close(s)
			s.open = i
		}
	}
}

// close counts the incident that a symptom had part in.
func (p *parser) close(s *Symptom) {
	if s.open != nil {
		p.addSize(&s.Incidents, s.open.size)
		s.open = nil
	}
}

// compareSizes orders sizes; blocks of unknown size come before bytes.
func compareSizes(a, b Size) int {
	return cmp.Or(cmp.Compare(a.Bytes, b.Bytes), cmp.Compare(a.Blocks, b.Blocks))
}

// addSize counts a size in a sorted list; false says that there are too many
// different ones.
func (p *parser) addSize(sizes *[]Size, add Size) bool {
	i, found := slices.BinarySearchFunc(*sizes, add, compareSizes)
	switch {
	case found:
		(*sizes)[i].Count++
	case len(*sizes) < maxSizes && p.sizes < maxAllSizes:
		add.Count = 1
		*sizes = slices.Insert(*sizes, i, add)
		p.sizes++
	default:
		return false
	}
	return true
}

// flush gives out what still waits for lines.
func (p *parser) flush() {
	p.flushATA()
	p.flushOverMax()
	for _, w := range p.pendingSCSI {
		p.release(w)
	}
	p.pendingSCSI = nil
}

func (p *parser) finish() {
	p.flush()
	p.endBoot()
	for _, s := range p.order {
		p.close(s)
		slices.Reverse(s.Sizes)
		slices.Reverse(s.Incidents)
		p.log.Symptoms = append(p.log.Symptoms, *s)
	}
	p.log.Twins = map[string]int{}
	for id, w := range p.twins {
		if w.most > 1 {
			p.log.Twins[id] = w.most
		}
	}
}
