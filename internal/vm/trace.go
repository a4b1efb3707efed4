package vm

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"time"
)

const tracing = "/sys/kernel/tracing/"

// Poll asks done every 100 ms until it says yes. It gives up after 30 seconds,
// or with ctx, naming what it waited for.
func (m *Machine) Poll(ctx context.Context, what string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, diskTimeout)
	defer cancel()
	for {
		ok, err := done()
		if ok || err != nil {
			return err
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w", what, ctx.Err())
		}
	}
}

// A SCSICommand is one command that the SCSI midlayer sent to a driver.
type SCSICommand struct {
	HCTL string // "2:0:0:0"
	Name string // "INQUIRY", "WRITE_10", as the kernel spells it, or a number
}

// CountCommands clears the trace and has every SCSI command recorded from now
// on, of all disks, SG_IO included.
func (m *Machine) CountCommands(ctx context.Context) error {
	// Opening the trace with truncation clears it, which is the shell's way of
	// opening.
	if _, err := m.Output(ctx, "sh", "-c", ": >"+tracing+"trace"); err != nil {
		return err
	}
	return m.WriteAttr(ctx, tracing+"events/scsi/scsi_dispatch_cmd_start/enable", "1")
}

var commandLine = regexp.MustCompile(`scsi_dispatch_cmd_start: host_no=(\d+) channel=(\d+) id=(\d+) lun=(\d+).*?cmnd=\((\S+)`)

// Commands returns what was recorded since CountCommands.
func (m *Machine) Commands(ctx context.Context) ([]SCSICommand, error) {
	b, err := m.ReadFile(ctx, tracing+"trace")
	if err != nil {
		return nil, err
	}
	return parseCommands(string(b)), nil
}

func parseCommands(trace string) []SCSICommand {
	var out []SCSICommand
	for _, f := range commandLine.FindAllStringSubmatch(trace, -1) {
		out = append(out, SCSICommand{HCTL: fmt.Sprintf("%s:%s:%s:%s", f[1], f[2], f[3], f[4]), Name: f[5]})
	}
	return out
}

// RequestSizes starts a histogram of the requests that block drivers get.
func (m *Machine) RequestSizes(ctx context.Context) error {
	return m.WriteAttr(ctx, tracing+"events/block/block_rq_issue/trigger", "hist:keys=dev,nr_sector")
}

// A RequestSize is one line of that histogram.
type RequestSize struct {
	Dev     string // "8:0"
	Sectors int    // of 512 bytes; 0 for SG_IO
	Count   int
}

var histLine = regexp.MustCompile(`dev: *(\d+), nr_sector: *(\d+) *\} hitcount: *(\d+)`)

// TakeRequestSizes returns the histogram and empties it.
func (m *Machine) TakeRequestSizes(ctx context.Context) ([]RequestSize, error) {
	const dir = tracing + "events/block/block_rq_issue/"
	b, err := m.ReadFile(ctx, dir+"hist")
	if err != nil {
		return nil, err
	}
	return parseHist(string(b)), m.WriteAttr(ctx, dir+"trigger", "hist:keys=dev,nr_sector:clear")
}

func parseHist(text string) []RequestSize {
	var out []RequestSize
	for _, f := range histLine.FindAllStringSubmatch(text, -1) {
		dev, _ := strconv.Atoi(f[1])
		n, _ := strconv.Atoi(f[2])
		count, _ := strconv.Atoi(f[3])
		// The kernel's own dev_t: 12 bits of major over 20 of minor.
		out = append(out, RequestSize{fmt.Sprintf("%d:%d", dev>>20, dev&(1<<20-1)), n, count})
	}
	return out
}
