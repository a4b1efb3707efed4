package target

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/quirkcheck/quirkcheck/checker/verify"
)

// prover finds out what requests reached a disk. Two sources serve:
//
// The stat file of the whole disk counts requests and sectors. That is proof
// only when nobody else uses the disk, when all commands of a batch went the
// block path, and when no two of them can have been merged.
//
// The trace event block_rq_issue names sector and size of each request, in an
// instance of tracefs of our own, whose ring buffer is read after each batch.
// (A hist trigger would count the same, but many kernels are built without.)
// It is set up when the disk is shared, when there is no stat, or once stat
// did not explain a batch, as when somebody else has read in between.
type prover struct {
	sysBlock string
	shared   bool
	major    uint64
	minor    uint64
	hasDev   bool
	trace    *tracer
	// traceErr is why there is no trace, once it was tried.
	traceErr error
	// aside is what commands without proof have made of the counters since
	// before, which is read when the first of them is sent. The counters must
	// hold it before another command can be proved.
	aside  diskStat
	before diskStat
}

func newProver(sysBlock string, shared bool) prover {
	p := prover{sysBlock: sysBlock, shared: shared}
	if sysBlock == "" {
		return p
	}
	if dev, err := readAttr(filepath.Join(sysBlock, "dev")); err == nil {
		if n, err := parseDevNo(dev); err == nil {
			p.major, p.minor, p.hasDev = uint64(n.Major), uint64(n.Minor), true
		}
	}
	if _, err := p.stat(); shared || err != nil {
		p.startTrace()
	}
	return p
}

func (p *prover) startTrace() {
	if p.trace != nil || p.traceErr != nil {
		return
	}
	if !p.hasDev {
		p.traceErr = errors.New("the disk's device number is not known")
		return
	}
	p.trace, p.traceErr = newTracer(p.major, p.minor)
}

func (p *prover) close() error {
	if p.trace == nil {
		return nil
	}
	t := p.trace
	p.trace, p.traceErr = nil, os.ErrClosed
	return t.close()
}

// ProofSource says how block path commands are proven now, or why they cannot
// be: for people.
func (d *Disk) ProofSource() string {
	p := &d.prover
	if p.trace != nil {
		return "trace event block_rq_issue"
	}
	_, err := p.stat()
	switch {
	case p.sysBlock == "":
		return "none: there is no single disk below"
	case err == nil && !p.shared && p.traceErr == nil:
		return "stat file"
	case err == nil && !p.shared:
		return fmt.Sprintf("stat file; no trace: %v", p.traceErr)
	case err != nil:
		return fmt.Sprintf("none: %v; no trace: %v", err, p.traceErr)
	}
	return fmt.Sprintf("none: the disk is shared; no trace: %v", p.traceErr)
}

// diskStat are counters of a disk's stat file (Documentation/block/stat.rst),
// by operation.
type diskStat struct{ requests, merges, sectors [2]uint64 }

// stat reads the counters; it is an error when the kernel does not count.
func (p *prover) stat() (diskStat, error) {
	var s diskStat
	if p.sysBlock == "" {
		return s, fs.ErrNotExist
	}
	if on, err := readUint(filepath.Join(p.sysBlock, "queue/iostats")); err == nil && on == 0 {
		return s, errors.New("queue/iostats is 0")
	}
	text, err := readAttr(filepath.Join(p.sysBlock, "stat"))
	if err != nil {
		return s, err
	}
	return parseStat(text)
}

func parseStat(text string) (s diskStat, err error) {
	f := strings.Fields(text)
	if len(f) < 7 {
		return s, fmt.Errorf("stat: %d fields", len(f))
	}
	for i, to := range []*uint64{
		&s.requests[verify.Read], &s.merges[verify.Read], &s.sectors[verify.Read], nil,
		&s.requests[verify.Write], &s.merges[verify.Write], &s.sectors[verify.Write],
	} {
		if to == nil {
			continue
		}
		if *to, err = strconv.ParseUint(f[i], 10, 64); err != nil {
			return s, fmt.Errorf("stat: %.40q is not a number", f[i])
		}
	}
	return s, nil
}

func (s diskStat) since(before diskStat) (d diskStat) {
	for op := range s.requests {
		d.requests[op] = s.requests[op] - before.requests[op]
		d.merges[op] = s.merges[op] - before.merges[op]
		d.sectors[op] = s.sectors[op] - before.sectors[op]
	}
	return d
}

// evidence is what was set up before a batch.
type evidence struct {
	byTrace bool
	byStat  bool
	before  diskStat
}

func (p *prover) begin(cmds []verify.Command, sent []int) (e evidence) {
	if len(sent) == 0 {
		return e
	}
	block, other, wanted := false, false, false
	for _, i := range sent {
		wanted = wanted || !cmds[i].Unproved
		block = block || cmds[i].Path == verify.PathBlock
		other = other || cmds[i].Path != verify.PathBlock
	}
	if !wanted {
		p.putAside(cmds, sent)
		return e
	}
	if p.trace != nil && (block || anyCached(cmds, sent)) {
		e.byTrace = p.trace.clear() == nil
		return e
	}
	if block && !other && !p.shared {
		p.takeUp()
		var err error
		e.before, err = p.stat()
		e.byStat = err == nil
	}
	return e
}

// putAside counts commands whose proof nobody wants.
func (p *prover) putAside(cmds []verify.Command, sent []int) {
	if p.trace != nil || p.shared {
		return
	}
	if p.aside == (diskStat{}) {
		var err error
		if p.before, err = p.stat(); err != nil {
			return
		}
	}
	for _, i := range sent {
		if cmds[i].Path == verify.PathBlock {
			p.aside.requests[cmds[i].Op]++
			p.aside.sectors[cmds[i].Op] += uint64(cmds[i].Sectors())
		}
	}
}

// takeUp waits until the counters hold what was put aside.
func (p *prover) takeUp() {
	if p.aside != (diskStat{}) {
		p.settle(p.before, p.aside)
		p.aside = diskStat{}
	}
}

func anyCached(cmds []verify.Command, sent []int) bool {
	for _, i := range sent {
		if cmds[i].Path == verify.PathCache {
			return true
		}
	}
	return false
}

// prove fills in Proof, Requests and Largest of what went the block path.
func (p *prover) prove(e evidence, cmds []verify.Command, sent []int, done []verify.Completion, physical func(uint64) (uint64, bool)) {
	switch {
	case e.byTrace:
		requests, lost, err := p.trace.read()
		if err != nil {
			return
		}
		for _, i := range sent {
			if cmds[i].Path == verify.PathCommand {
				continue
			}
			at, ok := physical(cmds[i].Sector)
			last, all := physical(cmds[i].Sector + uint64(cmds[i].Sectors()) - 1)
			if !ok || !all || last-at != uint64(cmds[i].Sectors())-1 {
				continue // a file in pieces: never one request
			}
			proveByTrace(&done[i], cmds[i], at, requests, lost)
		}
	case e.byStat:
		after := p.settle(e.before, expected(cmds, sent))
		if !proveByStat(after.since(e.before), cmds, sent, done) {
			p.startTrace()
		}
	}
}

// proveByTrace looks for the one request of a command. at is its first sector
// on the disk.
func proveByTrace(done *verify.Completion, c verify.Command, at uint64, requests []request, lost bool) {
	n := uint64(c.Sectors())
	seen := map[request]bool{} // a request that was put back is issued again
	exact := false
	for _, r := range requests {
		if r.op != c.Op || r.sector+r.sectors <= at || r.sector >= at+n || seen[r] {
			continue
		}
		seen[r] = true
		done.Requests++
		done.Largest = max(done.Largest, int(r.sectors))
		exact = exact || r.sector == at && r.sectors == n
	}
	if lost {
		done.Requests, done.Largest = 0, 0
	}
	if exact && c.Path == verify.PathBlock && done.Err == nil {
		done.Proof, done.Requests, done.Largest = verify.ProofTrace, 1, int(n)
	}
}

// expected is what the counters show when each command was one request.
func expected(cmds []verify.Command, sent []int) (s diskStat) {
	for _, i := range sent {
		s.requests[cmds[i].Op]++
		s.sectors[cmds[i].Op] += uint64(cmds[i].Sectors())
	}
	return s
}

// settle reads the counters until they hold what was sent: they follow the
// completion that the caller saw. They are read once more then, since the
// sectors of a second request may be counted before the request is.
func (p *prover) settle(before, want diskStat) diskStat {
	end := time.Now().Add(20 * time.Millisecond)
	for {
		now, err := p.stat()
		if err != nil {
			return before
		}
		d := now.since(before)
		whole := d.requests[0] >= want.requests[0] && d.requests[1] >= want.requests[1] &&
			d.sectors[0] >= want.sectors[0] && d.sectors[1] >= want.sectors[1]
		if whole || time.Now().After(end) {
			time.Sleep(2 * time.Millisecond)
			if again, err := p.stat(); err == nil {
				return again
			}
			return before
		}
		time.Sleep(200 * time.Microsecond)
	}
}

// proveByStat says whether the counters explain the batch. Each command makes
// at least one request. So when as many requests and sectors were counted as
// there are commands, and no two can have become one, each was exactly one.
func proveByStat(got diskStat, cmds []verify.Command, sent []int, done []verify.Completion) bool {
	want := expected(cmds, sent)
	merged := got.merges[0]+got.merges[1] != 0 && neighbours(cmds, sent)
	if got.requests != want.requests || got.sectors != want.sectors || merged {
		if len(sent) == 1 {
			// Bounded by the command's own: the rest is others'.
			i := sent[0]
			done[i].Requests = int(min(got.requests[cmds[i].Op], uint64(cmds[i].Sectors())))
		}
		return false
	}
	for _, i := range sent {
		if done[i].Err == nil {
			done[i].Proof, done[i].Requests, done[i].Largest = verify.ProofStat, 1, cmds[i].Sectors()
		}
	}
	return true
}

// neighbours says whether two commands could be merged.
func neighbours(cmds []verify.Command, sent []int) bool {
	type end struct {
		op     verify.Op
		sector uint64
	}
	ends := map[end]bool{}
	for _, i := range sent {
		ends[end{cmds[i].Op, cmds[i].Sector + uint64(cmds[i].Sectors())}] = true
	}
	for _, i := range sent {
		if ends[end{cmds[i].Op, cmds[i].Sector}] {
			return true
		}
	}
	return false
}

// request is one block_rq_issue event.
type request struct {
	op              verify.Op
	sector, sectors uint64 // of the whole disk
}

// tracer is an instance of tracefs with the event block_rq_issue of one disk.
type tracer struct {
	dir          string
	major, minor uint64
}

// instancePrefix begins the name of our instances; the process id follows.
const instancePrefix = "quirkcheck-"

// newTracer sets up an instance (Documentation/trace/ftrace.rst, Instances).
// Instances of our own that a killed process left are removed. Needs root and a
// mounted tracefs, which is not mounted here.
func newTracer(major, minor uint64) (*tracer, error) {
	var base string
	for _, b := range []string{"/sys/kernel/tracing", "/sys/kernel/debug/tracing"} {
		if _, err := os.Stat(filepath.Join(b, "instances")); err == nil {
			base = filepath.Join(b, "instances")
			break
		}
	}
	if base == "" {
		return nil, errors.New("tracefs is not mounted")
	}
	removeStale(base)
	t := &tracer{dir: filepath.Join(base, fmt.Sprintf("%s%d-%08x", instancePrefix, os.Getpid(), rand.Uint32())), major: major, minor: minor}
	if err := os.Mkdir(t.dir, 0o700); err != nil {
		return nil, err
	}
	for _, w := range []struct{ name, value string }{
		{"tracing_on", "0"},
		{"buffer_size_kb", "256"}, // for each processor
		// The event's dev is the kernel's dev_t: 12 bits of major, 20 of minor.
		{"events/block/block_rq_issue/filter", fmt.Sprintf("dev == %d", major<<20|minor)},
		{"events/block/block_rq_issue/enable", "1"},
		{"tracing_on", "1"},
	} {
		if err := writeAttr(filepath.Join(t.dir, w.name), w.value); err != nil {
			return nil, errors.Join(err, t.close())
		}
	}
	return t, nil
}

func removeStale(base string) {
	entries, err := os.ReadDir(base)
	if err != nil {
		return
	}
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), instancePrefix)
		pid, _, ok := strings.Cut(rest, "-")
		if !ours || !ok {
			continue
		}
		if n, err := strconv.Atoi(pid); err != nil || n <= 0 {
			continue
		}
		if _, err := os.Stat("/proc/" + pid); errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(filepath.Join(base, e.Name()))
		}
	}
}

// writeAttr writes an attribute with one call, and never creates it.
func writeAttr(name, value string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// clear empties the ring buffer: opening trace with O_TRUNC does.
func (t *tracer) clear() error {
	f, err := os.OpenFile(filepath.Join(t.dir, "trace"), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	return f.Close()
}

// maxTrace bounds what is read of one batch's events.
const maxTrace = 16 << 20

// read returns the requests since clear. lost says that there were more.
func (t *tracer) read() (requests []request, lost bool, err error) {
	f, err := os.Open(filepath.Join(t.dir, "trace"))
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxTrace))
	if err != nil {
		return nil, false, err
	}
	requests, lost = parseTrace(text, t.major, t.minor)
	return requests, lost || len(text) == maxTrace, nil
}

// Lines of the trace file: its header, and the event, whose cmd in parentheses is
// empty for reads and writes. Kernels since 6.6 have the I/O priority behind
// the size.
var (
	traceEntries = regexp.MustCompile(`^# entries-in-buffer/entries-written: (\d+)/(\d+)`)
	traceIssue   = regexp.MustCompile(` block_rq_issue: (\d+),(\d+) ([A-Z]+) \d+ \(.*?\) (\d+) \+ (\d+) `)
)

func parseTrace(text []byte, major, minor uint64) (requests []request, lost bool) {
	for line := range bytes.Lines(text) {
		if m := traceEntries.FindSubmatch(line); m != nil {
			lost = lost || !bytes.Equal(m[1], m[2])
			continue
		}
		if bytes.Contains(line, []byte("LOST")) && bytes.Contains(line, []byte("EVENTS")) {
			lost = true
			continue
		}
		m := traceIssue.FindSubmatch(line)
		if m == nil {
			continue
		}
		number := func(i int) uint64 {
			n, err := strconv.ParseUint(string(m[i]), 10, 64)
			if err != nil {
				return 1<<64 - 1
			}
			return n
		}
		// rwbs: F for a flush before, then the operation (blk_fill_rwbs).
		op := strings.TrimPrefix(string(m[3]), "F")
		r := request{sector: number(4), sectors: number(5)}
		switch {
		case strings.HasPrefix(op, "R"):
			r.op = verify.Read
		case strings.HasPrefix(op, "W"):
			r.op = verify.Write
		default:
			continue
		}
		if number(1) == major && number(2) == minor && r.sectors != 0 && r.sectors < 1<<32 && r.sector < 1<<56 {
			requests = append(requests, r)
		}
	}
	return requests, lost
}

// close takes the instance away.
func (t *tracer) close() error {
	err := os.Remove(t.dir)
	// An instance is busy for a moment after its last reader.
	for range 50 {
		if err == nil || errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
		err = os.Remove(t.dir)
	}
	return err
}
