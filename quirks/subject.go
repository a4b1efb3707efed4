package quirks

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

// Subject is what an entry may ask about: a device of a machine, an example in
// an entry, or a line of db match. What is absent is unknown.
type Subject struct {
	Device Identity // ata, scsi, nvme or usb
	SCSI   Identity // INQUIRY strings beside Device, or alone
	// Adapter, USB and Machine: a missing key is unknown, "" is known to be
	// empty. Adapter: pci, class, driver, name, revision, firmware, subsystem,
	// host. USB: vid, pid, bcd, manufacturer, product, speed, max_power,
	// streams. Machine: vendor, product, board, bios, page_size, arch (as uname
	// -m has it).
	Adapter, USB, Machine map[string]string
	// Params are module parameters, as MODULE.PARAMETER with _ for -.
	Params    map[string]string
	Stack     Stack
	Limits    map[string]Value // as the report names them; KiB, bytes or blocks as the name says
	Settings  map[string]Value // by sysfs file name, and facts by the keys of conditions
	Kernel    kernel.Release
	Cmdline   *string // kernel command line, nil unknown
	Path      string  // see Paths; "" unknown
	Transport string  // as lsblk's TRAN, "" unknown
	// Live is nil where nothing of it is shown, and of a subject that is no
	// machine\'s.
	Live *Live
}

// Paths are the ways by which commands reach a device: libata (an ATA port or
// device above the SCSI device), sat-firmware (vendor ATA without one: an HBA
// or hypervisor translates), and so on. "other" is every stacked or memory
// device.
var Paths = []string{"libata", "sat-firmware", "scsi", "usb-storage", "uas", "sbp2", "nvme-pci", "nvme-fabrics", "virtio-blk", "mmc", "other"}

// Text is a string that may be unknown.
type Text struct {
	S     string
	Known bool
}

// KnownText is a known string.
func KnownText(s string) Text { return Text{S: s, Known: true} }

// trimmed is what comparisons see: blanks and NULs off both ends.
func (t Text) trimmed() string { return strings.Trim(t.S, " \x00") }

// Identity is a device's name in one identity space.
type Identity struct {
	Space string // ata, scsi, nvme, usb; "" for none
	// Model and Firmware: ata (40 and 8 characters), nvme (40 and 8).
	Model, Firmware Text
	// Vendor, Product and Revision: scsi (8, 16 and 4 characters). Padding
	// matters: a PRODUCT IDENTIFICATION that ends in a blank is whole.
	Vendor, Product, Revision Text
	VID, SSVID                string // nvme: PCI ids, hex, "" unknown
	Serial                    Text   // of the disk; for faults that show in it, never printed
}

// Stack is where a device stands among stacked ones.
type Stack struct {
	Known        bool
	Kind         string // dm, md, bcache, ""
	Target       string // device-mapper target
	Level        string // md level, raid5
	Role         string // top, member
	RequestBased Truth
	Members      []StackPeer
	Above        []StackPeer
}

// StackPeer is a device above or below.
type StackPeer struct {
	Name, Kind, Target, Level string
	Limits                    map[string]Value
}

// Value is a number or a text, as sysfs or a subject gives it.
type Value struct {
	Num    uint64
	Text   string
	IsText bool
}

// Number is a numeric value.
func Number(n uint64) Value { return Value{Num: n} }

// TextValue is a textual one.
func TextValue(s string) Value { return Value{Text: s, IsText: true} }

func (v Value) String() string {
	if v.IsText {
		return v.Text
	}
	return strconv.FormatUint(v.Num, 10)
}

// Limit returns a numeric limit by its report name.
func (s *Subject) Limit(name string) (uint64, bool) {
	v, ok := s.Limits[name]
	if !ok || v.IsText {
		return 0, false
	}
	return v.Num, true
}

// MaxSectorsKiB returns the observed queue/max_sectors_kb.
func (s *Subject) MaxSectorsKiB() (uint64, bool) { return s.Limit("max_sectors_kb") }

// subjectKeys are the keys of a subject; anything else is reported as ignored.
var subjectKeys = map[string]bool{
	"device": true, "scsi": true, "adapter": true, "usb": true, "machine": true, "stack": true, "kernel": true,
	"cmdline": true, "path": true, "limits": true, "settings": true, "max_sectors": true, "transport": true,
}

// Paths known under other names.
var pathAlias = map[string]string{"virtio_blk": "virtio-blk", "usb": "usb-storage", "dm": "other", "md": "other", "zvol": "other", "brd": "other"}

// DecodeSubject builds a subject from a decoded JSON or YAML object. ignored
// lists the keys that mean nothing here, sorted; an error names the key.
func DecodeSubject(m map[string]any) (s Subject, ignored []string, err error) {
	d := decoder{ignored: map[string]bool{}}
	for k := range m {
		if !subjectKeys[k] {
			d.ignored[k] = true
		}
	}
	s.Device = d.identity("device", m["device"])
	s.SCSI = d.identity("scsi", m["scsi"])
	if m["scsi"] != nil {
		s.SCSI.Space = "scsi"
	}
	s.Adapter = d.strings("adapter", m["adapter"], []string{"pci", "pci_vendor", "class", "driver", "firmware", "name", "revision", "subsystem", "host"}, nil)
	if v, ok := s.Adapter["pci_vendor"]; ok { // of the quad, the first part alone
		if _, whole := s.Adapter["pci"]; !whole {
			s.Adapter["pci"] = v
		}
		delete(s.Adapter, "pci_vendor")
	}
	s.USB = d.strings("usb", m["usb"], []string{"vid", "pid", "bcd", "manufacturer", "product", "speed", "max_power", "streams"}, nil)
	s.Machine = d.strings("machine", m["machine"], []string{"vendor", "product", "board", "bios", "page_size", "arch"},
		map[string]string{"sys_vendor": "vendor", "product_name": "product", "board_name": "board"})
	if s.Device.Space == "usb" {
		usb, _ := m["device"].(map[string]any)
		more := d.strings("device", usb, []string{"vid", "pid", "bcd", "manufacturer", "product", "speed"}, nil)
		if s.USB == nil {
			s.USB = map[string]string{}
		}
		for k, v := range more {
			s.USB[k] = v
		}
	}
	s.Stack = d.stack(m["stack"])
	s.Limits = d.values("limits", m["limits"])
	for _, name := range []string{"max_sectors", "max_hw_sectors"} { // 512-byte sectors
		if n, ok := s.Limit(name); ok {
			s.Limits[name+"_kb"] = Number(n / 2) // as sysfs would show it; the exact number stays
		}
	}
	s.Settings = d.values("settings", m["settings"])
	if v, ok := m["max_sectors"]; ok {
		n, err := toUint(v)
		if err != nil {
			d.fail("max_sectors: %v", err)
		}
		if s.Limits == nil {
			s.Limits = map[string]Value{}
		}
		s.Limits["max_sectors"], s.Limits["max_sectors_kb"] = Number(n), Number(n/2)
	}
	if v, ok := d.text("kernel", m["kernel"]); ok {
		if s.Kernel, err = kernel.Parse(v); err != nil {
			d.fail("kernel: %v", err)
		}
	}
	if v, ok := d.text("cmdline", m["cmdline"]); ok {
		s.Cmdline = &v
	}
	s.Path, _ = d.text("path", m["path"])
	s.Transport, _ = d.text("transport", m["transport"])
	s.Path = normalPath(s.Path, s.scsiView().Vendor)
	if d.err != nil {
		return Subject{}, nil, d.err
	}
	return s, slices.Sorted(maps.Keys(d.ignored)), nil
}

// normalPath maps the spellings a subject may use to Paths; "nvme" stays, as
// nvme-pci and nvme-fabrics are not told apart there.
func normalPath(p string, vendor Text) string {
	if p == "" || p == "nvme" || slices.Contains(Paths, p) {
		if p == "scsi" && vendor.Known && vendor.trimmed() == "ATA" {
			return "sat-firmware"
		}
		return p
	}
	if a, ok := pathAlias[p]; ok {
		return a
	}
	return "other"
}

type decoder struct {
	ignored map[string]bool
	err     error
}

func (d *decoder) fail(format string, a ...any) {
	// Maps have no order: of several faults the first by text is told.
	if err := fmt.Errorf(format, a...); d.err == nil || err.Error() < d.err.Error() {
		d.err = err
	}
}

func (d *decoder) text(key string, v any) (string, bool) {
	switch t := v.(type) {
	case nil:
		return "", false
	case string:
		if len(t) > 4096 {
			d.fail("%s: %d characters is too long", key, len(t))
		}
		return t, true
	}
	d.fail("%s: want a quoted string, got %v", key, v)
	return "", false
}

func (d *decoder) object(key string, v any) (map[string]any, bool) {
	if v == nil {
		return nil, false
	}
	m, ok := v.(map[string]any)
	if !ok {
		d.fail("%s: want an object", key)
	}
	return m, ok
}

func (d *decoder) identity(key string, v any) (id Identity) {
	m, ok := d.object(key, v)
	if !ok {
		return id
	}
	for k, raw := range m {
		s, ok := d.text(key+"."+k, raw)
		if !ok {
			continue
		}
		t := KnownText(s)
		switch k {
		case "space":
			if !slices.Contains([]string{"ata", "scsi", "nvme", "usb"}, s) {
				d.fail("%s.space %q: want ata, scsi, nvme or usb", key, s)
			}
			id.Space = s
		case "model":
			id.Model = t
		case "firmware":
			id.Firmware = t
		case "vendor":
			id.Vendor = t
		case "product":
			id.Product = t
		case "revision":
			id.Revision = t
		case "vid":
			id.VID = strings.ToLower(s)
		case "ssvid":
			id.SSVID = strings.ToLower(s)
		case "serial":
			id.Serial = t
		case "pid", "bcd", "manufacturer", "speed", "nqn":
		default:
			d.ignored[key+"."+k] = true
		}
	}
	return id
}

func (d *decoder) strings(key string, v any, known []string, alias map[string]string) map[string]string {
	m, ok := d.object(key, v)
	if !ok || m == nil {
		return nil
	}
	out := map[string]string{}
	for k, raw := range m {
		name := k
		if a, ok := alias[k]; ok {
			name = a
		}
		if !slices.Contains(known, name) {
			if key != "device" {
				d.ignored[key+"."+k] = true
			}
			continue
		}
		if s, ok := d.text(key+"."+k, raw); ok {
			out[name] = s
		}
	}
	return out
}

func (d *decoder) values(key string, v any) map[string]Value {
	m, ok := d.object(key, v)
	if !ok || len(m) == 0 {
		return nil
	}
	out := map[string]Value{}
	for k, raw := range m {
		switch t := raw.(type) {
		case nil:
		case string:
			out[k] = TextValue(t)
		case bool:
			out[k] = TextValue(strconv.FormatBool(t))
		default:
			n, err := toUint(raw)
			if err != nil {
				d.fail("%s.%s: %v", key, k, err)
				continue
			}
			out[k] = Number(n)
		}
	}
	return out
}

func (d *decoder) stack(v any) (s Stack) {
	m, ok := d.object("stack", v)
	if !ok {
		return s
	}
	s.Known = true
	s.RequestBased = Unknown
	for k, raw := range m {
		switch k {
		case "kind":
			s.Kind, _ = d.text("stack.kind", raw)
		case "target":
			s.Target, _ = d.text("stack.target", raw)
		case "level":
			s.Level, _ = d.text("stack.level", raw)
		case "role":
			s.Role, _ = d.text("stack.role", raw)
		case "request_based":
			switch b := raw.(type) {
			case nil:
			case bool:
				s.RequestBased = truthOf(b)
			default:
				d.fail("stack.request_based: want true or false, got %v", raw)
			}
		case "members":
			s.Members = d.peers("stack.members", raw)
		case "above":
			s.Above = d.peers("stack.above", raw)
		default:
			d.ignored["stack."+k] = true
		}
	}
	return s
}

func (d *decoder) peers(key string, v any) []StackPeer {
	if v == nil {
		return nil
	}
	list, ok := v.([]any)
	if !ok {
		d.fail("%s: want a list", key)
		return nil
	}
	peers := make([]StackPeer, 0, len(list))
	for i, raw := range list {
		k := fmt.Sprintf("%s[%d]", key, i)
		if name, ok := raw.(string); ok {
			peers = append(peers, StackPeer{Name: name})
			continue
		}
		m, ok := d.object(k, raw)
		if !ok {
			continue
		}
		var p StackPeer
		rest := map[string]any{}
		for f, raw := range m {
			switch f {
			case "name":
				p.Name, _ = d.text(k+".name", raw)
			case "kind":
				p.Kind, _ = d.text(k+".kind", raw)
			case "target":
				p.Target, _ = d.text(k+".target", raw)
			case "level":
				p.Level, _ = d.text(k+".level", raw)
			default:
				if _, isBool := raw.(bool); !isBool {
					rest[f] = raw
				}
			}
		}
		p.Limits = d.values(k, rest)
		peers = append(peers, p)
	}
	return peers
}

func toUint(v any) (uint64, error) {
	switch n := v.(type) {
	case int:
		if n >= 0 {
			return uint64(n), nil
		}
	case int64:
		if n >= 0 {
			return uint64(n), nil
		}
	case uint64:
		return n, nil
	case float64:
		if n >= 0 && n < 1<<63 && n == math.Trunc(n) {
			return uint64(n), nil
		}
	case json.Number:
		if u, err := strconv.ParseUint(n.String(), 10, 64); err == nil {
			return u, nil
		}
	}
	return 0, fmt.Errorf("want a whole number of 0 or more, got %v", v)
}

// UnmarshalYAML decodes an example's subject; an unknown key is an error.
func (s *Subject) UnmarshalYAML(n *yaml.Node) error {
	var m map[string]any
	if err := n.Decode(&m); err != nil {
		return err
	}
	sub, ignored, err := DecodeSubject(m)
	if err != nil {
		return fmt.Errorf("line %d: subject: %w", n.Line, err)
	}
	if len(ignored) > 0 {
		return fmt.Errorf("line %d: field %s not found in subject", n.Line, ignored[0])
	}
	*s = sub
	return nil
}
