// Package kernelsource reads the device tables of a Linux source tree and
// compares them with the database: libata's quirks with their size limits, the
// SCSI device list, the rows of usb-storage and uas, and NVMe's quirks by name
// and by PCI id. It knows the tables of 2.6 to 7.3; the names of the flags are
// those of the tree.
//
// The reader takes C apart as far as a table needs it and no further: comments,
// strings in pieces, object-like macros and #if lines. A row that it cannot
// read is a [Fault] with file and line, never left out in silence.
package kernelsource

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

// Family names a table.
type Family string

// The tables.
const (
	Libata   Family = "libata"    // drivers/ata/libata-core.c
	SCSI     Family = "scsi"      // drivers/scsi/scsi_devinfo.c
	SPI      Family = "scsi-spi"  // drivers/scsi/scsi_transport_spi.c, the parallel bus
	USB      Family = "usb"       // drivers/usb/storage/unusual_*.h
	UAS      Family = "uas"       // drivers/usb/storage/unusual_uas.h
	NVMeCore Family = "nvme-core" // drivers/nvme/host/core.c, by name
	NVMePCI  Family = "nvme-pci"  // drivers/nvme/host/pci.c, by PCI id
)

// Families lists the tables in the order they are read.
func Families() []Family { return []Family{Libata, SCSI, SPI, USB, UAS, NVMeCore, NVMePCI} }

// Row is one row of a table, with the fields that its family has. Strings are
// the table's own, blanks included.
type Row struct {
	Family Family `json:"family"`
	File   string `json:"file"`
	Line   int    `json:"line"`
	If     string `json:"if,omitempty"` // the #if lines around it

	Model    string `json:"model,omitempty"`    // libata, nvme-core: glob, or name
	Firmware string `json:"firmware,omitempty"` // libata, nvme-core: "" for every one
	Vendor   string `json:"vendor,omitempty"`   // scsi: equal; usb: what the table calls it
	Product  string `json:"product,omitempty"`  // scsi: prefix; usb: what the table calls it
	Revision string `json:"revision,omitempty"` // scsi: the kernel does not compare it
	ID       string `json:"id,omitempty"`       // usb, nvme: vvvv:dddd in hex, nvme-core: vvvv; a symbol where its value is not known
	BCD      string `json:"bcd,omitempty"`      // usb: first and last bcdDevice, hex

	Flags      []string `json:"flags"`
	MaxSectors uint32   `json:"max_sectors,omitempty"` // 512-byte sectors; 0 for none
}

// Key is what a row matches, in one line.
func (r Row) Key() string {
	switch r.Family {
	case Libata:
		if r.Firmware == "" {
			return strconv.Quote(r.Model)
		}
		return strconv.Quote(r.Model) + " firmware " + strconv.Quote(r.Firmware)
	case SCSI, SPI:
		return strconv.Quote(r.Vendor) + " " + strconv.Quote(r.Product)
	case USB, UAS:
		return r.ID + " " + r.BCD
	case NVMeCore:
		key := r.ID
		if r.Model != "" {
			key += " " + strconv.Quote(r.Model)
		}
		if r.Firmware != "" {
			key += " firmware " + strconv.Quote(r.Firmware)
		}
		return key
	}
	return r.ID
}

// Fault is a row or a file that could not be read.
type Fault struct {
	File    string `json:"file"`
	Line    int    `json:"line"` // 0 for the file as a whole
	Message string `json:"message"`
}

func (f Fault) String() string {
	if f.Line == 0 {
		return f.File + ": " + f.Message
	}
	return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.Message)
}

// Tree is what a source tree says.
type Tree struct {
	Release kernel.Release
	Rows    []Row // by family, then in the order of the table, which counts
	Limits  []Limit
	Faults  []Fault
	Absent  []string // files that this tree does not have
}

// Of returns the rows of one family.
func (t *Tree) Of(f Family) []Row {
	return slices.DeleteFunc(slices.Clone(t.Rows), func(r Row) bool { return r.Family != f })
}

// ErrNoTree says that a folder holds none of the tables.
var ErrNoTree = errors.New("no Linux source tree: none of the device tables is there")

// Read reads a source tree. What cannot be read is among the tree's faults;
// the error is for a folder that is no source tree at all.
func Read(tree fs.FS) (*Tree, error) {
	t := &Tree{}
	if text, ok := t.open(tree, "Makefile"); ok {
		t.Release = releaseOf(text)
		if !t.Release.Known() {
			t.fault("Makefile", 0, "no VERSION and PATCHLEVEL: the release is not known")
		}
	}
	t.libata(tree)
	t.scsi(tree)
	t.usb(tree)
	t.nvme(tree)
	t.limits(tree)
	if len(t.Rows) == 0 && len(t.Limits) == 0 {
		return nil, ErrNoTree
	}
	return t, nil
}

func (t *Tree) fault(file string, line int, format string, a ...any) {
	if len(t.Faults) < 1000 {
		t.Faults = append(t.Faults, Fault{file, line, fmt.Sprintf(format, a...)})
	}
}

func (t *Tree) add(r Row) {
	if r.Flags == nil {
		r.Flags = []string{}
	}
	t.Rows = append(t.Rows, r)
}

// open reads a file of the tree, at most maxSource bytes of it.
func (t *Tree) open(tree fs.FS, name string) (string, bool) {
	f, err := tree.Open(name)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			t.fault(name, 0, "%v", err)
		}
		t.Absent = append(t.Absent, name)
		return "", false
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && !info.Mode().IsRegular() {
		t.fault(name, 0, "not a regular file")
		return "", false
	}
	text, err := io.ReadAll(io.LimitReader(f, maxSource+1))
	if err != nil {
		t.fault(name, 0, "%v", err)
		return "", false
	}
	return string(text), true
}

// source opens and scans a C file.
func (t *Tree) source(tree fs.FS, name string) *source {
	text, ok := t.open(tree, name)
	if !ok {
		return nil
	}
	s, err := scanC(text)
	if err != nil {
		t.fault(name, 0, "%v", err)
		return nil
	}
	return s
}

// table returns the rows of the first of the named arrays that is there, each
// a list in braces. The closing row of an array, {} or {NULL, ...}, is left
// out.
func (t *Tree) table(s *source, file string, names ...string) []cell {
	for _, name := range names {
		rows, found, err := s.table(name)
		if err != nil {
			t.fault(file, 0, "%s: %v", name, err)
			return nil
		}
		if !found {
			continue
		}
		return slices.DeleteFunc(rows, func(c cell) bool {
			if !c.brace {
				t.fault(file, c.line, "%s where a row belongs", textOf(c.toks))
				return true
			}
			if len(c.list) == 0 {
				return true
			}
			first := c.list[0]
			return first.field == "" && len(first.toks) == 1 && first.toks[0].kind != tokString && (first.toks[0].text == "NULL" || first.toks[0].text == "0")
		})
	}
	t.fault(file, 0, "no table %s", strings.Join(names, " or "))
	return nil
}

var reMakefile = regexp.MustCompile(`(?m)^(VERSION|PATCHLEVEL|SUBLEVEL|EXTRAVERSION)[ \t]*=[ \t]*([0-9A-Za-z.+~_-]*)[ \t]*$`)

// releaseOf reads the release off the top Makefile.
func releaseOf(makefile string) kernel.Release {
	v := map[string]string{}
	for _, m := range reMakefile.FindAllStringSubmatch(makefile, 4) {
		v[m[1]] = m[2]
	}
	if v["VERSION"] == "" || v["PATCHLEVEL"] == "" {
		return kernel.Release{}
	}
	text := v["VERSION"] + "." + v["PATCHLEVEL"]
	if s := v["SUBLEVEL"]; s != "" && s != "0" {
		text += "." + s
	}
	r, err := kernel.Parse(text + v["EXTRAVERSION"])
	if err != nil {
		return kernel.Release{}
	}
	return r
}

// libata reads the table of devices and, from 7.0 on, the one of sizes.
func (t *Tree) libata(tree fs.FS) {
	const file = "drivers/ata/libata-core.c"
	s := t.source(tree, file)
	if s == nil {
		return
	}
	sizes := map[[2]string]uint32{}
	if _, found, _ := s.table("__ata_dev_max_sec_quirks"); found {
		for _, c := range t.table(s, file, "__ata_dev_max_sec_quirks") {
			model, fw, ok := t.pair(s, file, c)
			n, err := s.number(c.list[len(c.list)-1])
			switch {
			case !ok:
			case err != nil || n > 1<<32-1:
				t.fault(file, c.line, "limit of %q: %v", model, err)
			default:
				if _, dup := sizes[[2]string{model, fw}]; !dup {
					sizes[[2]string{model, fw}] = uint32(n)
				}
			}
		}
	}
	for _, c := range t.table(s, file, "__ata_dev_quirks", "ata_device_blacklist", "ata_device_black_list") {
		model, fw, ok := t.pair(s, file, c)
		if !ok {
			continue
		}
		flags, err := s.flags(c.list[2])
		if err != nil {
			t.fault(file, c.line, "flags of %q: %v", model, err)
			continue
		}
		r := Row{Family: Libata, File: file, Line: c.line, If: c.cond, Model: model, Firmware: fw, Flags: flags}
		for _, f := range flags {
			switch _, name, _ := strings.Cut(strings.TrimPrefix(f, "ATA_"), "_"); name {
			case "MAX_SEC":
				if r.MaxSectors = sizes[[2]string{model, fw}]; r.MaxSectors == 0 {
					t.fault(file, c.line, "%q has %s and no row in the table of sizes", model, f)
				}
			case "MAX_SEC_LBA48":
				r.MaxSectors = 65535
			default:
				if n, ok := strings.CutPrefix(name, "MAX_SEC_"); ok {
					v, _ := strconv.ParseUint(n, 10, 32)
					r.MaxSectors = uint32(v)
				}
			}
		}
		t.add(r)
	}
}

// pair reads the two strings that begin a row of three.
func (t *Tree) pair(s *source, file string, c cell) (model, firmware string, ok bool) {
	if len(c.list) != 3 || slices.ContainsFunc(c.list, func(e cell) bool { return e.field != "" || e.brace }) {
		t.fault(file, c.line, "a row of %d cells, want model, revision and a value", len(c.list))
		return "", "", false
	}
	model, ok, err := s.text(c.list[0])
	if err != nil || !ok {
		t.fault(file, c.line, "model: %v", errors.Join(err, missing(ok)))
		return "", "", false
	}
	firmware, _, err = s.text(c.list[1])
	if err != nil {
		t.fault(file, c.line, "revision of %q: %v", model, err)
		return "", "", false
	}
	return model, firmware, true
}

func missing(ok bool) error {
	if ok {
		return nil
	}
	return errors.New("NULL")
}

// scsi reads the static list, and the one of the parallel bus.
func (t *Tree) scsi(tree fs.FS) {
	for _, l := range []struct {
		family      Family
		file, table string
		cells       int
	}{{SCSI, "drivers/scsi/scsi_devinfo.c", "scsi_static_device_list", 4}, {SPI, "drivers/scsi/scsi_transport_spi.c", "spi_static_device_list", 3}} {
		s := t.source(tree, l.file)
		if s == nil {
			continue
		}
		for _, c := range t.table(s, l.file, l.table) {
			if len(c.list) != l.cells || slices.ContainsFunc(c.list, func(e cell) bool { return e.field != "" || e.brace }) {
				t.fault(l.file, c.line, "a row of %d cells, want %d", len(c.list), l.cells)
				continue
			}
			r := Row{Family: l.family, File: l.file, Line: c.line, If: c.cond}
			var err, e error
			var ok bool
			if r.Vendor, ok, err = s.text(c.list[0]); !ok && err == nil {
				err = missing(false)
			}
			if r.Product, _, e = s.text(c.list[1]); e != nil {
				err = errors.Join(err, e)
			}
			if l.cells == 4 {
				if r.Revision, _, e = s.text(c.list[2]); e != nil {
					err = errors.Join(err, e)
				}
			}
			if r.Flags, e = s.flags(c.list[l.cells-1]); e != nil {
				err = errors.Join(err, e)
			}
			if err != nil {
				t.fault(l.file, c.line, "%v", err)
				continue
			}
			for _, f := range r.Flags {
				if n, ok := strings.CutPrefix(f, "BLIST_MAX_"); ok {
					v, _ := strconv.ParseUint(n, 10, 32)
					r.MaxSectors = uint32(v)
				}
			}
			t.add(r)
		}
	}
}

// usb reads the rows of usb-storage and of uas, each of them a macro.
func (t *Tree) usb(tree fs.FS) {
	const dir = "drivers/usb/storage"
	files, err := fs.ReadDir(tree, dir)
	if err != nil {
		t.Absent = append(t.Absent, dir)
		return
	}
	for _, f := range files {
		if ok, _ := path.Match("unusual_*.h", f.Name()); !ok {
			continue
		}
		file := dir + "/" + f.Name()
		s := t.source(tree, file)
		if s == nil {
			continue
		}
		family := USB
		if f.Name() == "unusual_uas.h" {
			family = UAS
		}
		calls, err := s.calls("UNUSUAL_DEV", "COMPLIANT_DEV")
		if err != nil {
			t.fault(file, 0, "%v", err)
		}
		for _, c := range calls {
			if len(c.args) != 10 {
				t.fault(file, c.line, "%s of %d arguments, want 10", c.name, len(c.args))
				continue
			}
			r := Row{Family: family, File: file, Line: c.line, If: c.cond}
			var num [4]uint64
			var err, e error
			for i := range num {
				if num[i], e = s.number(c.args[i]); e == nil && num[i] > 0xffff {
					e = fmt.Errorf("%#x has more than 16 bits", num[i])
				}
				err = errors.Join(err, e)
			}
			r.ID = fmt.Sprintf("%04x:%04x", num[0], num[1])
			r.BCD = fmt.Sprintf("%04x-%04x", num[2], num[3])
			if r.Vendor, _, e = s.text(c.args[4]); e != nil {
				err = errors.Join(err, e)
			}
			if r.Product, _, e = s.text(c.args[5]); e != nil {
				err = errors.Join(err, e)
			}
			if r.Flags, e = s.flags(c.args[9]); e != nil {
				err = errors.Join(err, e)
			}
			if err != nil {
				t.fault(file, c.line, "%v", strings.ReplaceAll(err.Error(), "\n", "; "))
				continue
			}
			if slices.Contains(r.Flags, "US_FL_MAX_SECTORS_64") {
				r.MaxSectors = 64
			}
			if slices.Contains(r.Flags, "US_FL_MAX_SECTORS_240") {
				r.MaxSectors = 240
			}
			t.add(r)
		}
	}
}

// nvme reads the quirks by name and those by PCI id.
func (t *Tree) nvme(tree fs.FS) {
	const core, pci = "drivers/nvme/host/core.c", "drivers/nvme/host/pci.c"
	if s := t.source(tree, core); s != nil {
		for _, c := range t.table(s, core, "core_quirks") {
			r := Row{Family: NVMeCore, File: core, Line: c.line, If: c.cond}
			var err error
			for _, e := range c.list {
				var more error
				switch e.field {
				case "vid":
					var n uint64
					n, more = s.number(e)
					r.ID = fmt.Sprintf("%04x", n)
				case "mn":
					r.Model, _, more = s.text(e)
				case "fr":
					r.Firmware, _, more = s.text(e)
				case "quirks":
					r.Flags, more = s.flags(e)
				default:
					more = fmt.Errorf("field %q", e.field)
				}
				err = errors.Join(err, more)
			}
			if err == nil && r.ID == "" {
				err = errors.New("a row without a vid")
			}
			if err != nil {
				t.fault(core, c.line, "%v", strings.ReplaceAll(err.Error(), "\n", "; "))
				continue
			}
			t.add(r)
		}
	}
	s := t.source(tree, pci)
	if s == nil {
		return
	}
	vendors := map[string]uint64{}
	if ids := t.source(tree, "include/linux/pci_ids.h"); ids != nil {
		for name, body := range ids.defines {
			if strings.HasPrefix(name, "PCI_VENDOR_ID_") {
				if n, err := ids.number(cell{toks: body}); err == nil && n <= 0xffff {
					vendors[name] = n
				}
			}
		}
	}
	for _, c := range t.table(s, pci, "nvme_id_table") {
		r := Row{Family: NVMePCI, File: pci, Line: c.line, If: c.cond}
		id, err := pciID(s, c, vendors)
		if err == nil && id == "" {
			continue // by class: every other NVMe device, no quirk of its own
		}
		r.ID = id
		for _, e := range c.list {
			if e.field == "driver_data" {
				var more error
				r.Flags, more = s.flags(e)
				err = errors.Join(err, more)
			}
		}
		if err != nil {
			t.fault(pci, c.line, "%v", strings.ReplaceAll(err.Error(), "\n", "; "))
			continue
		}
		t.add(r)
	}
}

// pciID reads PCI_DEVICE(v, d) or PCI_VDEVICE(NAME, d) at the start of a row.
func pciID(s *source, c cell, vendors map[string]uint64) (string, error) {
	toks := c.list[0].toks
	if len(toks) < 2 || toks[1].text != "(" {
		return "", fmt.Errorf("%s where PCI_DEVICE belongs", textOf(toks))
	}
	args, _, err := splitArgs(toks, 1)
	if err != nil {
		return "", err
	}
	macro := toks[0].text
	if macro == "PCI_DEVICE_CLASS" {
		return "", nil
	}
	if macro != "PCI_DEVICE" && macro != "PCI_VDEVICE" || len(args) != 2 {
		return "", fmt.Errorf("%s of %d arguments", macro, len(args))
	}
	device, err := s.number(args[1])
	if err != nil || device > 0xffff {
		return "", errors.Join(errors.New("PCI device"), err)
	}
	if len(args[0].toks) == 1 && args[0].toks[0].kind == tokIdent {
		name := args[0].toks[0].text
		if macro == "PCI_VDEVICE" {
			name = "PCI_VENDOR_ID_" + name
		}
		if v, ok := vendors[name]; ok {
			return fmt.Sprintf("%04x:%04x", v, device), nil
		}
		return fmt.Sprintf("%s:%04x", name, device), nil
	}
	vendor, err := s.number(args[0])
	if err != nil || vendor > 0xffff {
		return "", errors.Join(errors.New("PCI vendor"), err)
	}
	return fmt.Sprintf("%04x:%04x", vendor, device), nil
}
