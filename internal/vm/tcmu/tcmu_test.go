package tcmu

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestDescriptionIsChecked(t *testing.T) {
	for _, c := range []struct {
		disk Disk
		want string
	}{
		{Disk{Name: "a b"}, "a name has letters"},
		{Disk{Name: "../x"}, "a name has letters"},
		{Disk{Name: "x", BlockBytes: 513}, "blocks of 513 bytes"},
		{Disk{Name: "x", SizeBytes: 1000}, "1000 bytes are not whole blocks"},
		{Disk{Name: "x", Identify: make([]byte, 511)}, "IDENTIFY DEVICE data of 511 bytes"},
		{Disk{Name: "x", Rules: []Rule{{Status: Busy}}}, "rule 0 matches everything"},
		{Disk{Name: "x", Rules: []Rule{{Prefix: []byte{0}, Delay: time.Hour}}}, "rule 0 delays by 1h"},
		{Disk{Name: "x", Rules: []Rule{{Prefix: []byte{0}, Sense: Sense(3, 0x11, 0)}}}, "18 bytes of sense data for status 00h"},
	} {
		if _, err := newServer(c.disk); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.disk, err, c.want)
		}
	}
}

func TestDescriptionSurvivesJSON(t *testing.T) {
	d := Disk{
		Name: "x", Inquiry: Inquiry("\xff\x00", "\x1b", ""), VPD: map[byte][]byte{0xb0: {1, 2}, 0x83: nil},
		Rules: []Rule{{Prefix: []byte{0x12, 1}, Delay: time.Second, Status: CheckCondition, Sense: MediumError()}},
	}
	b, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var got Disk
	if err := json.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got.Inquiry, d.Inquiry) || !bytes.Equal(got.VPD[0xb0], d.VPD[0xb0]) || got.Rules[0].Delay != time.Second {
		t.Errorf("got %+v, want %+v", got, d)
	}
	if p, there := got.VPD[0x83]; !there || p != nil {
		t.Errorf("a page that is not there came back as %v, %v", p, there)
	}
}

// ask has a server carry out a command with a buffer of room bytes.
func ask(s *server, room int, cdb ...byte) response {
	r, release := s.accept(cdb)
	defer s.done()
	return s.serve(cdb, r, release, room, func() []byte { return make([]byte, room) })
}

func TestAnswers(t *testing.T) {
	lying := BlockLimits(65535, 7)
	lying[2] = 0xff
	s, err := newServer(Disk{
		Name: "x", Inquiry: Inquiry("ACME", "DISK", "1"), Serial: "S1", BlockBytes: 4096, SizeBytes: 4096 * 100,
		VPD: map[byte][]byte{0xb0: lying, 0x83: nil}, Identify: IdentifyDevice("MODEL", "FW", "SER", 800),
	})
	if err != nil {
		t.Fatal(err)
	}
	illegal := string(Sense(5, 0x24, 0))
	for _, c := range []struct {
		name  string
		cdb   []byte
		want  string // data
		sense string
	}{
		{"standard INQUIRY", []byte{0x12, 0, 0, 0, 36, 0}, "\x00\x00\x06\x02\x1f\x00\x00\x02ACME    DISK            1   ", ""},
		{"allocation length", []byte{0x12, 0, 0, 0, 5, 0}, "\x00\x00\x06\x02\x1f", ""},
		{"supported pages", []byte{0x12, 1, 0, 0, 64, 0}, "\x00\x00\x00\x04\x00\x80\x89\xb0", ""},
		{"serial number", []byte{0x12, 1, 0x80, 0, 64, 0}, "\x00\x80\x00\x02S1", ""},
		{"a page taken away", []byte{0x12, 1, 0x83, 0, 64, 0}, "", illegal},
		{"a page as given", []byte{0x12, 1, 0xb0, 0, 255, 0}, string(lying), ""},
		{"READ CAPACITY(10)", []byte{0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0}, "\x00\x00\x00\x63\x00\x00\x10\x00", ""},
		{"MODE SENSE(6)", []byte{0x1a, 0, 0x0a, 0, 255, 0}, "\x0f\x00\x00\x00\x0a\x0a" + strings.Repeat("\x00", 10), ""},
		{"MODE SENSE of a page it lacks", []byte{0x1a, 0, 0x1c, 0, 255, 0}, "", illegal},
		{"behind the end", []byte{0x28, 0, 0, 0, 0, 99, 0, 0, 2, 0}, "", string(Sense(5, 0x21, 0))},
		{"unknown command", []byte{0x93, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, "", string(Sense(5, 0x20, 0))},
		{"IDENTIFY DEVICE", []byte{0xa1, 8, 0x0e, 0, 1, 0, 0, 0, 0, 0xec, 0, 0}, string(s.disk.Identify), ""},
	} {
		got := ask(s, 4096, c.cdb...)
		if string(got.data) != c.want || string(got.sense) != c.sense || (got.status == Good) != (c.sense == "") {
			t.Errorf("%s: % x, status %d, sense % x; want % x, sense % x", c.name, got.data, got.status, got.sense, c.want, c.sense)
		}
	}
	if got := ask(s, 4096, 0x85, 8, 0x2e, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0xec, 0); got.status != CheckCondition || len(got.data) != 512 || got.sense[8] != 0x09 {
		t.Errorf("CK_COND: status %d, %d bytes, sense % x; want the data and the registers", got.status, len(got.data), got.sense)
	}
	if id := s.disk.Identify; string(id[54:60]) != "OMED L" {
		t.Errorf("model number begins %q, want bytes swapped in each word", id[54:60])
	}
	if n := len(s.commands()); n != 13 {
		t.Errorf("%d commands in the log, want 13", n)
	}
}

func TestRules(t *testing.T) {
	d := Disk{Name: "x", Rules: []Rule{
		{Prefix: []byte{0x12, 1, 0xb0}, Times: 2, Data: []byte("lie")},
		{Prefix: []byte{0x12, 1}, Status: Busy},
		{Prefix: []byte{0x00}, Hang: true},
		{Prefix: []byte{0x28}, Delay: 50 * time.Millisecond},
	}}
	s, err := newServer(d)
	if err != nil {
		t.Fatal(err)
	}
	b0 := []byte{0x12, 1, 0xb0, 0, 1, 0}
	for i, want := range []response{{data: []byte("lie")}, {data: []byte("lie")}, {status: Busy}} {
		if got := ask(s, 64, b0...); got.status != want.status || !bytes.Equal(got.data, want.data) {
			t.Errorf("time %d: %+v, want %+v", i, got, want)
		}
	}
	if got := ask(s, 2, b0...); len(got.data) > 2 {
		t.Errorf("%d bytes for a buffer of 2", len(got.data))
	}
	begin := time.Now()
	if got := ask(s, 512, 0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0); len(got.data) != 512 || time.Since(begin) < 50*time.Millisecond {
		t.Errorf("a READ with a delay: %d bytes after %s", len(got.data), time.Since(begin))
	}
	done := make(chan response)
	go func() { done <- ask(s, 0, 0, 0, 0, 0, 0, 0) }()
	for s.quiet(0) { // until it is under way
		time.Sleep(time.Millisecond)
	}
	select {
	case <-done:
		t.Error("a command that hangs was answered")
	case <-time.After(50 * time.Millisecond):
	}
	s.releaseAll()
	if got := <-done; got.status != Good {
		t.Errorf("released: status %d", got.status)
	}
	// New rules count anew.
	if err := s.set(d); err != nil {
		t.Fatal(err)
	}
	if got := ask(s, 64, b0...); string(got.data) != "lie" {
		t.Errorf("after set: %+v", got)
	}
}

func TestAnyCommandIsAnswered(t *testing.T) {
	s, err := newServer(Disk{Name: "x", Serial: "S", Identify: IdentifyDevice("M", "F", "S", 1)})
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for op := range 256 {
		for range 50 {
			cdb := make([]byte, cdbBytes[op>>5])
			for i := range cdb {
				cdb[i] = byte(r.Uint32())
			}
			cdb[0] = byte(op)
			if got := ask(s, 100, cdb...); len(got.data) > 100 || (got.status == CheckCondition) != (len(got.sense) > 0) {
				t.Fatalf("% x: %+v", cdb, got)
			}
		}
	}
}

func TestStoreKeepsWhatIsWritten(t *testing.T) {
	var s store
	want := make([]byte, 5*chunkBytes)
	r := rand.New(rand.NewPCG(3, 4))
	for range 200 {
		off := r.IntN(len(want))
		p := make([]byte, r.IntN(len(want)-off))
		for i := range p {
			p[i] = byte(r.Uint32())
		}
		copy(want[off:], p)
		s.writeAt(p, int64(off))
	}
	got := make([]byte, len(want))
	s.readAt(got, 0)
	if !bytes.Equal(got, want) {
		t.Error("the content differs")
	}
}

// fakeKernel is the other side of a ring.
type fakeKernel struct {
	t       *testing.T
	mem     []byte
	head    uint32
	cleaned uint32
	nextID  uint16
	pending map[uint16]string // id -> what was asked
	answers map[string]string // what was asked -> status, read length and data
}

const (
	fakeOff, fakeSize = 128, 1024
	fakeData          = fakeOff + fakeSize
)

func newFakeKernel(t *testing.T) *fakeKernel {
	k := &fakeKernel{t: t, mem: make([]byte, fakeData+64*256), pending: map[uint16]string{}, answers: map[string]string{}}
	native.PutUint16(k.mem[mailboxVersion:], ringVersion)
	native.PutUint16(k.mem[mailboxFlags:], outOfOrder|hasReadLen)
	native.PutUint32(k.mem[mailboxCmdrOff:], fakeOff)
	native.PutUint32(k.mem[mailboxCmdrSize:], fakeSize)
	return k
}

// put queues a command with two pieces of buffer; the CDB is behind them.
func (k *fakeKernel) put(cdb []byte) {
	const n = entryBytes + 16
	if fakeSize-k.head < n { // padding to the end
		native.PutUint32(k.mem[fakeOff+k.head:], fakeSize-k.head)
		k.head = 0
	}
	e := k.mem[fakeOff+k.head:]
	clear(e[:n])
	id := k.nextID
	k.nextID++
	native.PutUint32(e[entryLenOp:], n|opCmd)
	native.PutUint16(e[entryCmdID:], id)
	native.PutUint32(e[entryIovCnt:], 2)
	native.PutUint64(e[entryCdbOff:], uint64(fakeOff+k.head)+entryIov+2*iovecBytes)
	data := fakeData + uint64(id%64)*256
	for i, v := range []uint64{data, 10, data + 100, 30} {
		native.PutUint64(e[entryIov+8*i:], v)
	}
	copy(e[entryIov+2*iovecBytes:], cdb)
	copy(k.mem[data:], bytes.Repeat([]byte{0xee}, 256))
	k.pending[id] = string(cdb)
	k.head = (k.head + n) % fakeSize
	native.PutUint32(k.mem[mailboxCmdHead:], k.head)
}

// notify reads the answers up to the tail.
func (k *fakeKernel) notify() error {
	for tail := native.Uint32(k.mem[mailboxCmdTail:]); k.cleaned != tail; {
		e := k.mem[fakeOff+k.cleaned:]
		lenOp := native.Uint32(e)
		k.cleaned = (k.cleaned + lenOp&^opMask) % fakeSize
		if lenOp&opMask != opCmd {
			continue
		}
		id := native.Uint16(e[entryCmdID:])
		what, ok := k.pending[id]
		if !ok {
			return fmt.Errorf("answer to %d, which was not asked", id)
		}
		delete(k.pending, id)
		data := fakeData + uint64(id%64)*256
		k.answers[what] = fmt.Sprintf("%d %d %d %q %q", e[entryStatus], e[entryUflags], native.Uint32(e[entryReadLen:]),
			k.mem[data:data+12], k.mem[data+100:data+131])
	}
	return nil
}

func TestRingInAnyOrder(t *testing.T) {
	k := newFakeKernel(t)
	r, err := newRing(k.mem, k.notify)
	if err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(5, 6))
	var open []command
	asked := 0
	for step := range 2000 {
		if len(k.pending) < 5 && rnd.IntN(2) == 0 {
			k.put([]byte{0x28, 0, 0, 0, byte(asked >> 8), byte(asked), 0, 0, 1, 0})
			asked++
		}
		c, ok, err := r.take()
		if err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		if ok {
			if len(c.cdb) != 10 || c.room() != 40 {
				t.Fatalf("step %d: command %+v, want a CDB of 10 bytes and 40 of buffer", step, c)
			}
			open = append(open, c)
		}
		if len(open) > 0 && rnd.IntN(3) == 0 {
			i := rnd.IntN(len(open))
			c := open[i]
			open = slices.Delete(open, i, i+1)
			c.fill([]byte("0123456789abc"))
			if err := r.complete(c, response{data: c.cdb}); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
		}
	}
	want := fmt.Sprintf("0 2 10 %q %q", "0123456789\xee\xee", "abc"+strings.Repeat("\x00", 27)+"\xee")
	for what, got := range k.answers {
		if got != want {
			t.Fatalf("% x: %s, want %s", what, got, want)
		}
	}
	if len(k.answers) < 300 || len(k.answers)+len(k.pending) != asked {
		t.Errorf("%d asked, %d answered, %d pending", asked, len(k.answers), len(k.pending))
	}
}

func TestRingRefusesWhatItCannotServe(t *testing.T) {
	for name, spoil := range map[string]func(m []byte){
		"version":      func(m []byte) { m[mailboxVersion] = 3 },
		"capabilities": func(m []byte) { m[mailboxFlags] = 1 },
		"size":         func(m []byte) { native.PutUint32(m[mailboxCmdrSize:], 1<<31) },
	} {
		k := newFakeKernel(t)
		spoil(k.mem)
		if _, err := newRing(k.mem, k.notify); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for name, spoil := range map[string]func(e []byte){
		"no length":           func(e []byte) { native.PutUint32(e, opCmd) },
		"behind the end":      func(e []byte) { native.PutUint32(e, fakeSize+8|opCmd) },
		"CDB elsewhere":       func(e []byte) { native.PutUint64(e[entryCdbOff:], 1<<40) },
		"CDB far away":        func(e []byte) { native.PutUint64(e[entryCdbOff:], 1<<64-1) },
		"more pieces":         func(e []byte) { native.PutUint32(e[entryIovCnt:], 100) },
		"a piece elsewhere":   func(e []byte) { native.PutUint64(e[entryIov:], 1<<40) },
		"a piece of any size": func(e []byte) { native.PutUint64(e[entryIov+8:], 1<<64-1) },
	} {
		k := newFakeKernel(t)
		r, err := newRing(k.mem, k.notify)
		if err != nil {
			t.Fatal(err)
		}
		k.put([]byte{0, 0, 0, 0, 0, 0})
		spoil(k.mem[fakeOff:])
		if _, ok, err := r.take(); err == nil || ok {
			t.Errorf("%s: %v, %v, want an error", name, ok, err)
		}
	}
}

// lack ends a test for lack of something; in CI, where CI is set, it fails.
func lack(t *testing.T, what string) {
	t.Helper()
	if ci := os.Getenv("CI"); ci != "" && ci != "false" && ci != "0" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// TestOffsets compares the offsets with the system's C header.
func TestOffsets(t *testing.T) {
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		lack(t, "gcc is missing")
	}
	const header = "/usr/include/linux/target_core_user.h"
	if _, err := os.Stat(header); err != nil {
		lack(t, header+" (package linux-libc-dev) is missing")
	}
	dir := t.TempDir()
	var lines strings.Builder
	for _, c := range []struct {
		c    string
		goes int
	}{
		{"offsetof(struct tcmu_mailbox, version)", mailboxVersion},
		{"offsetof(struct tcmu_mailbox, flags)", mailboxFlags},
		{"offsetof(struct tcmu_mailbox, cmdr_off)", mailboxCmdrOff},
		{"offsetof(struct tcmu_mailbox, cmdr_size)", mailboxCmdrSize},
		{"offsetof(struct tcmu_mailbox, cmd_head)", mailboxCmdHead},
		{"offsetof(struct tcmu_mailbox, cmd_tail)", mailboxCmdTail},
		{"offsetof(struct tcmu_cmd_entry, hdr.len_op)", entryLenOp},
		{"offsetof(struct tcmu_cmd_entry, hdr.cmd_id)", entryCmdID},
		{"offsetof(struct tcmu_cmd_entry, hdr.uflags)", entryUflags},
		{"offsetof(struct tcmu_cmd_entry, req.iov_cnt)", entryIovCnt},
		{"offsetof(struct tcmu_cmd_entry, req.cdb_off)", entryCdbOff},
		{"offsetof(struct tcmu_cmd_entry, req.iov)", entryIov},
		{"offsetof(struct tcmu_cmd_entry, rsp.scsi_status)", entryStatus},
		{"offsetof(struct tcmu_cmd_entry, rsp.read_len)", entryReadLen},
		{"offsetof(struct tcmu_cmd_entry, rsp.sense_buffer)", entrySense},
		{"sizeof(struct tcmu_cmd_entry)", entryBytes},
		{"sizeof(struct iovec)", iovecBytes},
		{"TCMU_MAILBOX_VERSION", ringVersion},
		{"TCMU_MAILBOX_FLAG_CAP_OOOC", outOfOrder},
		{"TCMU_MAILBOX_FLAG_CAP_READ_LEN", hasReadLen},
		{"TCMU_OP_MASK", opMask},
		{"TCMU_OP_CMD", opCmd},
		{"TCMU_OP_ALIGN_SIZE", entryAlign},
		{"TCMU_UFLAG_READ_LEN", readLenIsValid},
		{"TCMU_SENSE_BUFFERSIZE", maxSenseBytes},
	} {
		fmt.Fprintf(&lines, "_Static_assert(%s == %d, %q);\n", c.c, c.goes, c.c)
	}
	src := filepath.Join(dir, "x.c")
	text := "#include <stddef.h>\n#include <linux/target_core_user.h>\n" + lines.String()
	if err := os.WriteFile(src, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if out, err := exec.Command(gcc, "-fsyntax-only", src).CombinedOutput(); errors.As(err, &exit) {
		t.Errorf("the header says otherwise:\n%s", out)
	} else if err != nil {
		t.Fatal(err)
	}
}
