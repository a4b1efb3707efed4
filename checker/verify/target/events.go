package target

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quirkcheck/quirkcheck/checker/verify"
)

// Bounds of what Events returns and of how much of the log one call reads.
const (
	maxEvents    = 64
	maxEventText = 400
	maxRecords   = 20000
)

// Events implements verify.Device: lines of the kernel log that name the device,
// its port, host or USB device and speak of an error, timeout or reset, and
// steps of the SCSI counters device/ioerr_cnt and iotmo_cnt. At most 64; a last
// one says how many were left out. Reading the log needs root, or
// kernel.dmesg_restrict 0.
//
// ioerr_cnt also counts commands that others send and the device refuses, as
// smartd's, so it is a KindCounter.
func (d *Disk) Events() []verify.Event {
	events := d.log.events()
	now := d.readCounts()
	for _, c := range []struct {
		name string
		kind verify.Kind
	}{{"device/iotmo_cnt", verify.KindTimeout}, {"device/ioerr_cnt", verify.KindCounter}} {
		was, had := d.counts[c.name]
		is, has := now[c.name]
		if had && has && is > was {
			events = append(events, verify.Event{Kind: c.kind, Text: fmt.Sprintf("%s went from %d to %d", c.name, was, is)})
		}
	}
	d.counts = now
	return events
}

func (d *Disk) readCounts() map[string]uint64 {
	counts := map[string]uint64{}
	if d.o.SysBlock == "" {
		return counts
	}
	for _, name := range []string{"device/iotmo_cnt", "device/ioerr_cnt"} {
		if n, err := readUint(filepath.Join(d.o.SysBlock, name)); err == nil {
			counts[name] = n
		}
	}
	return counts
}

// kernelLog reads /dev/kmsg from where it stood at the start
// (Documentation/ABI/testing/dev-kmsg).
type kernelLog struct {
	fd   int // -1: none
	mine *regexp.Regexp
}

func openKernelLog(sysBlock string) *kernelLog {
	l := &kernelLog{fd: -1}
	if sysBlock == "" {
		return l
	}
	real, err := filepath.EvalSymlinks(sysBlock)
	if err != nil {
		return l
	}
	dev, _ := readAttr(filepath.Join(sysBlock, "dev"))
	l.mine = namesOf(real, dev)
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return l
	}
	if _, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil {
		unix.Close(fd)
		return l
	}
	l.fd = fd
	return l
}

func (l *kernelLog) close() error {
	if l == nil || l.fd < 0 {
		return nil
	}
	fd := l.fd
	l.fd = -1
	return os.NewSyscallError("close", unix.Close(fd))
}

// Folders of a device's path in sysfs that the kernel names in its log.
var (
	ataFolder  = regexp.MustCompile(`^ata[0-9]+$`)
	hostFolder = regexp.MustCompile(`^host[0-9]+$`)
	lunFolder  = regexp.MustCompile(`^[0-9]+:[0-9]+:[0-9]+:[0-9]+$`)
	nvmeFolder = regexp.MustCompile(`^nvme[0-9]+$`)
	usbFolder  = regexp.MustCompile(`^[0-9]+-[0-9]+(\.[0-9]+)*$`)
	mmcFolder  = regexp.MustCompile(`^(mmc[0-9]+(:[0-9a-f]+)?|virtio[0-9]+)$`)
)

// namesOf makes the pattern of the names that a disk goes by in the log: its
// own and its partitions', ataN and ataN.NN, hostN, H:C:T:L, nvmeN, usb N-N. path is
// the folder of the whole disk below /sys/devices, dev its device number as
// sysfs has it, which a record's DEVICE has with a b in front.
func namesOf(path, dev string) *regexp.Regexp {
	name := filepath.Base(path)
	partition := `[0-9]*`
	if name != "" && name[len(name)-1] >= '0' && name[len(name)-1] <= '9' {
		partition = `(?:p[0-9]+)?`
	}
	names := []string{regexp.QuoteMeta(name) + partition}
	if dev != "" {
		names = append(names, "b"+regexp.QuoteMeta(dev))
	}
	for _, folder := range strings.Split(path, "/") {
		switch {
		case ataFolder.MatchString(folder):
			names = append(names, folder+`(?:\.[0-9]+)?`)
		case usbFolder.MatchString(folder):
			names = append(names, `usb `+regexp.QuoteMeta(folder), `\+usb:`+regexp.QuoteMeta(folder))
		case hostFolder.MatchString(folder), lunFolder.MatchString(folder), nvmeFolder.MatchString(folder), mmcFolder.MatchString(folder):
			names = append(names, regexp.QuoteMeta(folder))
		}
	}
	// A dot ends a name unless a digit follows: usb 1-2 is not usb 1-2.3.
	return regexp.MustCompile(`(?:^|[^A-Za-z0-9_.-])(?:` + strings.Join(names, "|") + `)(?:$|[^A-Za-z0-9_.]|\.(?:$|[^0-9]))`)
}

// events reads what was logged since the last call.
func (l *kernelLog) events() []verify.Event {
	if l.fd < 0 {
		return nil
	}
	var events []verify.Event
	more := 0
	buf := make([]byte, 16<<10) // CONSOLE_EXT_LOG_MAX is 8 KiB at most
	for range maxRecords {
		n, err := unix.Read(l.fd, buf)
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.EINTR) {
			continue // overwritten records: the next read goes on behind them
		}
		if err != nil || n <= 0 {
			break
		}
		e, ok := l.event(string(buf[:n]))
		switch {
		case !ok:
		case len(events) < maxEvents:
			events = append(events, e)
		default:
			more++
		}
	}
	if more > 0 {
		events = append(events, verify.Event{Kind: verify.KindIOError, Text: fmt.Sprintf("%d more lines of the kernel log", more)})
	}
	return events
}

// event judges one record: "prefix;text\n KEY=value\n...".
func (l *kernelLog) event(record string) (verify.Event, bool) {
	head, rest, _ := strings.Cut(record, "\n")
	_, text, ok := strings.Cut(head, ";")
	if !ok {
		return verify.Event{}, false
	}
	device := ""
	for line := range strings.Lines(rest) {
		if v, ok := strings.CutPrefix(line, " DEVICE="); ok {
			device = strings.TrimSpace(v)
		}
	}
	if !l.mine.MatchString(text) && (device == "" || !l.mine.MatchString(device)) {
		return verify.Event{}, false
	}
	kind, ok := classifyLine(text)
	if !ok {
		return verify.Event{}, false
	}
	if len(text) > maxEventText {
		text = text[:maxEventText]
	}
	return verify.Event{Kind: kind, Text: strings.ToValidUTF8(text, "?")}, true
}

// What lines say. The first list with a phrase in the line decides: a timeout is
// followed by resets, and both by I/O errors, so each line keeps the
// strongest word it has.
var linePhrases = []struct {
	kind    verify.Kind
	phrases []string
}{
	{verify.KindGone, []string{
		"rejecting i/o to offline device", "rejecting i/o to dead device", "device offlined", "removing after probe failure",
		"disabling device after reset failure", "device not ready; aborting reset", "usb disconnect",
	}},
	{verify.KindTimeout, []string{"timeout", "timed out", "timing out", "did_time_out", "task abort", "link is slow to respond"}},
	{verify.KindReset, []string{"did_reset", "resetting", "reset ", "reset:", "reset controller", "bus reset", "device reset", "did_abort", "link down"}},
	{verify.KindIOError, []string{
		"i/o error", "critical ", "result: hostbyte", "sense key", "add. sense", "failed command", "exception emask", "medium error",
		"unrecovered", "uncorrectable", "protocol error", "error", "over max size limit", "failed",
	}},
}

var ataDisabled = regexp.MustCompile(`^ata[0-9.]+: disabled`)

// classifyLine sorts a line of the log; ok is false when it reports no fault.
func classifyLine(text string) (kind verify.Kind, ok bool) {
	low := strings.ToLower(text) + " "
	// "[sda] Write cache: disabled" is no fault, "ata1.00: disabled" is the end.
	if ataDisabled.MatchString(low) {
		return verify.KindGone, true
	}
	for _, p := range linePhrases {
		for _, phrase := range p.phrases {
			if strings.Contains(low, phrase) {
				return p.kind, true
			}
		}
	}
	return "", false
}
