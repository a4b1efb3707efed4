// Package probe reads what a machine says about its block devices: identity,
// queue limits, the adapter on the way, and the pages of SCSI Vital Product
// Data that the kernel keeps, all from sysfs, /proc and the udev database.
//
// The machine is an [fs.FS] rooted at "/": [OpenRoot] for a live machine or a
// copy of its tree, anything else for a recording. Reading needs no privilege,
// sends no command, opens no device node and writes nothing. Each device's
// link is resolved once and its attributes are read relative to a directory
// handle, since a path walk for every attribute costs many times the read.
//
// What is known, what is absent, what could not be read and what was not asked
// stay four different facts ([State]); a device that vanishes while it is read
// is a note, never an error of the whole.
package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

// Options of Read.
type Options struct {
	// Avoid names the commands a device must not be sent, each with its reason
	// (nil: none). It is asked with the identity filled in and keeps the
	// database out of this package.
	Avoid func(*Device) []Avoided
	// Only limits the reading to these names (nil: all).
	Only []string
	// Related reads the devices above and below those of Only too, into
	// Inventory.Peers: what stands on a device decides about it.
	Related bool
	// Progress is told how many devices are handed out for reading (nil: nobody
	// is told). It is called by the goroutine that called Read.
	Progress func(done, total int)
	// Counters reads the devices' own counts of errors too, into
	// Device.Counters: three more files a SCSI disk.
	Counters bool
	// Workers is the number of devices read at a time, 0 for one a processor.
	Workers int
}

// Avoided is a command that must not be sent to a device.
type Avoided struct {
	Command string // vpd:*, vpd:B0, inquiry-evpd, ...
	Why     string
	Source  string // the entry's id
}

// Inventory is what was read of one machine.
type Inventory struct {
	Kernel  Value[kernel.Release]
	Cmdline Value[string]
	// Machine holds DMI strings: vendor, product, board, bios. A missing key
	// was not readable.
	Machine map[string]string
	// Params are the module parameters of ModuleParams, by MODULE.PARAMETER.
	Params  map[string]Value[string]
	Devices []*Device // by name, natural order
	Peers   []*Device // read only because they stand above or below one of Devices
	Notes   []Note
}

// Note is something worth telling about a device or the host.
type Note struct {
	What   string // the fact it is about: identity.ata, vpd.b0, device
	State  State
	Why    string
	Source string
}

// Device looks a device up by its sysfs name.
func (inv *Inventory) Device(name string) (*Device, bool) {
	for _, d := range inv.Devices {
		if d.Name == name {
			return d, true
		}
	}
	return nil, false
}

// Read makes the inventory of the machine rooted at sys. Its error is about
// the whole: no sysfs there, or the context ended; what is wrong with one
// device is in its notes.
func Read(ctx context.Context, sys fs.FS, o Options) (*Inventory, error) {
	root, err := openDir(sys, ".")
	if err != nil {
		return nil, fmt.Errorf("open the machine's tree: %w", err)
	}
	defer root.close()
	names, err := root.list("sys/block")
	if err != nil {
		return nil, fmt.Errorf("read sys/block: %w", err)
	}
	slices.SortFunc(names, compareNames)
	if o.Only != nil {
		names = slices.DeleteFunc(names, func(n string) bool { return !slices.Contains(o.Only, n) })
	}
	inv := &Inventory{}
	inv.readHost(sys, root)

	r := reader{fsys: sys, shared: &shared{ancestors: map[string]*ancestor{}}, avoid: o.Avoid, counters: o.Counters}
	if d, err := openDir(sys, "run/udev/data"); err == nil {
		d.close()
		r.udev = true
	}
	devices := make([]*Device, len(names))
	notes := make([]Note, len(names))
	workers := o.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	next := make(chan int)
	var wg sync.WaitGroup
	for range min(workers, len(names)) {
		own := r // a handle serves one goroutine
		if own.root, err = openDir(sys, "."); err != nil {
			close(next)
			wg.Wait()
			return nil, fmt.Errorf("open the machine's tree: %w", err)
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			defer own.root.close()
			for i := range next {
				devices[i], notes[i] = own.device(names[i])
			}
		}()
	}
feed:
	for i := range names {
		select {
		case next <- i:
			if o.Progress != nil {
				o.Progress(i+1, len(names))
			}
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	for i, d := range devices {
		if d != nil {
			inv.Devices = append(inv.Devices, d)
		} else {
			inv.Notes = append(inv.Notes, notes[i])
		}
	}
	switch {
	case o.Only == nil:
		inv.readTapes(sys, root)
	case o.Related:
		r.root = root
		if err := inv.readPeers(ctx, &r); err != nil {
			return nil, err
		}
	}
	return inv, nil
}

func (inv *Inventory) readHost(sys fs.FS, root dir) {
	if b, err := root.readFile("proc/version"); err != nil {
		inv.Kernel = failed[kernel.Release](err, "proc/version")
	} else if r, err := kernel.ParseProcVersion(string(b)); err != nil {
		inv.Kernel = Value[kernel.Release]{State: Unreadable, Source: "proc/version", Err: err}
	} else {
		inv.Kernel = known(r, "proc/version")
	}
	if b, err := root.readFile("proc/cmdline"); err != nil {
		inv.Cmdline = failed[string](err, "proc/cmdline")
	} else {
		inv.Cmdline = known(strings.TrimSpace(string(b)), "proc/cmdline")
	}
	inv.readParams(root)
	inv.Machine = map[string]string{}
	dmi, err := resolve(sys, "sys/class/dmi/id")
	if err != nil {
		return
	}
	d, err := openDir(sys, dmi)
	if err != nil {
		return
	}
	defer d.close()
	for file, key := range map[string]string{"sys_vendor": "vendor", "product_name": "product", "board_name": "board", "bios_version": "bios"} {
		if b, err := d.readFile(file); err == nil {
			inv.Machine[key] = strings.TrimSpace(string(b))
		}
	}
}

// compareNames orders device names as people count them: sdb before sdaa,
// nvme2n10 before nvme10n1.
func compareNames(a, b string) int {
	whole := strings.Compare(a, b)
	for a != "" && b != "" {
		ta, ra := cutRun(a)
		tb, rb := cutRun(b)
		if c := compareRuns(ta, tb); c != 0 {
			return c
		}
		a, b = ra, rb
	}
	return cmp.Or(cmp.Compare(len(a), len(b)), whole)
}

// compareRuns compares numbers by value, the letters after one of the
// kernel's prefixes by how many there are, and other text as text.
func compareRuns(a, b string) int {
	if isDigit(a[0]) && isDigit(b[0]) {
		a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
		return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
	}
	for _, p := range []string{"sd", "vd", "xvd", "hd", "dasd"} {
		if strings.HasPrefix(a, p) && strings.HasPrefix(b, p) {
			return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b))
		}
	}
	return strings.Compare(a, b)
}

// cutRun cuts nvme10n1 into nvme and 10n1, 10n1 into 10 and n1.
func cutRun(s string) (run, rest string) {
	i := 1
	for i < len(s) && isDigit(s[i]) == isDigit(s[0]) {
		i++
	}
	return s[:i], s[i:]
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// reader reads devices for one goroutine.
type reader struct {
	fsys   fs.FS
	root   dir
	udev   bool
	avoid  func(*Device) []Avoided
	shared *shared

	counters bool
}

// shared is what the devices of one reading have in common.
type shared struct {
	mu        sync.Mutex
	ancestors map[string]*ancestor // by path
}

// device reads one device. On failure of the whole the device is nil and the
// note says why.
func (r *reader) device(name string) (*Device, Note) {
	gone := func(err error) (*Device, Note) {
		n := Note{What: "device " + name, State: Unreadable, Why: err.Error(), Source: "sys/block/" + name}
		if errors.Is(err, fs.ErrNotExist) {
			n.State, n.Why = Absent, "vanished while it was read"
		}
		return nil, n
	}
	if !fs.ValidPath(name) || strings.Contains(name, "/") {
		return gone(errors.New("not a device name"))
	}
	target, err := r.root.readLink("sys/block/" + name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return gone(err)
	case err != nil: // a folder
		target = name
	}
	block, sysPath, err := r.follow("sys/block", name, target)
	if err != nil {
		return gone(err)
	}
	defer block.close()
	d := &Device{Name: name, SysPath: sysPath, Kind: kindOf(name)}
	r.readDevice(d, block)
	// All attributes of a device that went away read as absent.
	if _, err := r.root.readLink("sys/block/" + name); errors.Is(err, fs.ErrNotExist) {
		return gone(err)
	}
	return d, Note{}
}

// follow opens the folder that the link name in folder, which has no link in
// its own path, points at, and returns its path without links.
func (r *reader) follow(folder, name, target string) (dir, string, error) {
	p, err := linkTo(folder, target)
	if err != nil {
		return nil, "", err
	}
	// Opening refuses further links, so where it works there are none.
	if d, err := openDir(r.fsys, p); err == nil || errors.Is(err, fs.ErrNotExist) {
		return d, p, err
	}
	if p, err = resolve(r.fsys, folder+"/"+name); err != nil {
		return nil, "", err
	}
	d, err := openDir(r.fsys, p)
	return d, p, err
}

// kindOf sorts by the kernel's name of the device.
func kindOf(name string) string {
	for _, k := range []struct{ prefix, kind string }{
		{"sr", "optical"}, {"st", "tape"}, {"loop", "loop"}, {"ram", "ram"}, {"zram", "ram"}, {"dm-", "dm"}, {"md", "md"},
		{"nbd", "network"}, {"rbd", "network"}, {"drbd", "network"}, {"sd", "disk"}, {"vd", "disk"}, {"nvme", "disk"},
		{"xvd", "disk"}, {"mmcblk", "disk"}, {"hd", "disk"}, {"dasd", "disk"}, {"pmem", "disk"},
	} {
		if rest, ok := strings.CutPrefix(name, k.prefix); ok && rest != "" {
			return k.kind
		}
	}
	return "other"
}

// base is the last element of a link's target, or "" where there is no link.
func base(d dir, name string) string {
	t, err := d.readLink(name)
	if err != nil {
		return ""
	}
	return path.Base(t)
}
