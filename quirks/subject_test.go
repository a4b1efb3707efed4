package quirks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

func decodeJSON(text string) (Subject, error) {
	var m map[string]any
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return Subject{}, err
	}
	sub, _, err := DecodeSubject(m)
	return sub, err
}

func TestDecodeSubject(t *testing.T) {
	release := func(s string) kernel.Release {
		r, err := kernel.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	cmdline := "quiet"
	for _, tt := range []struct {
		name, json string
		want       Subject
		ignored    []string
	}{
		{"nothing", `{}`, Subject{}, nil},
		{"null is unknown", `{"device": null, "adapter": null, "kernel": null, "path": null, "limits": null, "stack": null, "cmdline": null}`, Subject{}, nil},
		{"ata", `{"device": {"space": "ata", "model": "M ", "firmware": ""}}`,
			Subject{Device: Identity{Space: "ata", Model: KnownText("M "), Firmware: KnownText("")}}, nil},
		{"a field that is null is unknown", `{"device": {"space": "ata", "model": null}, "adapter": {"pci": null, "class": ""}}`,
			Subject{Device: Identity{Space: "ata"}, Adapter: map[string]string{"class": ""}}, nil},
		{"nvme ids in lower case", `{"device": {"space": "nvme", "vid": "144D", "ssvid": "144D"}}`,
			Subject{Device: Identity{Space: "nvme", VID: "144d", SSVID: "144d"}}, nil},
		{"INQUIRY strings need no space", `{"scsi": {"vendor": "ATA", "product": "P", "revision": "R"}}`,
			Subject{SCSI: Identity{Space: "scsi", Vendor: KnownText("ATA"), Product: KnownText("P"), Revision: KnownText("R")}}, nil},
		{"space usb", `{"device": {"space": "usb", "vid": "174c", "pid": "55aa"}, "usb": {"bcd": "1.00"}}`,
			Subject{Device: Identity{Space: "usb", VID: "174c"}, USB: map[string]string{"vid": "174c", "pid": "55aa", "bcd": "1.00"}}, nil},
		{"aliases", `{"machine": {"sys_vendor": "V", "product_name": "P", "board_name": "B", "bios": "1"}}`,
			Subject{Machine: map[string]string{"vendor": "V", "product": "P", "board": "B", "bios": "1"}}, nil},
		{"ignored keys are sorted", `{"zzz": 1, "device": {"space": "ata", "wwn": "1"}, "adapter": {"irq": "9"}, "aaa": {}, "stack": {"height": 1}}`,
			Subject{Device: Identity{Space: "ata"}, Adapter: map[string]string{}, Stack: Stack{Known: true, RequestBased: Unknown}},
			[]string{"aaa", "adapter.irq", "device.wwn", "stack.height", "zzz"}},
		{"max_sectors becomes KiB, rounded down as sysfs does", `{"max_sectors": 8191}`, Subject{Limits: map[string]Value{"max_sectors": Number(8191), "max_sectors_kb": Number(4095)}}, nil},
		{"max_sectors inside limits too", `{"limits": {"max_sectors": 8192, "max_hw_sectors": 65535}}`,
			Subject{Limits: map[string]Value{"max_sectors": Number(8192), "max_hw_sectors": Number(65535), "max_sectors_kb": Number(4096), "max_hw_sectors_kb": Number(32767)}}, nil},
		{"max_sectors beside limits", `{"max_sectors": 2, "limits": {"queue_depth": 31}}`,
			Subject{Limits: map[string]Value{"max_sectors": Number(2), "max_sectors_kb": Number(1), "queue_depth": Number(31)}}, nil},
		{"limits keep 0 and drop null", `{"limits": {"optimal_io_size": 0, "mdts_sectors": null, "write_cache": "write back"}}`,
			Subject{Limits: map[string]Value{"optimal_io_size": Number(0), "write_cache": TextValue("write back")}}, nil},
		{"settings", `{"settings": {"fua": 1, "rotational": true, "provisioning_mode": "full"}}`,
			Subject{Settings: map[string]Value{"fua": Number(1), "rotational": TextValue("true"), "provisioning_mode": TextValue("full")}}, nil},
		{"kernel", `{"kernel": "6.18.44", "cmdline": "quiet", "transport": "sata"}`, Subject{Kernel: release("6.18.44"), Cmdline: &cmdline, Transport: "sata"}, nil},
		{"stack", `{"stack": {"kind": "dm", "target": "multipath", "role": "top", "request_based": true, "members": [{"kind": "disk", "max_sectors_kb": 512, "x": true}, "sda"], "above": null}}`,
			Subject{Stack: Stack{Known: true, Kind: "dm", Target: "multipath", Role: "top", RequestBased: True,
				Members: []StackPeer{{Kind: "disk", Limits: map[string]Value{"max_sectors_kb": Number(512)}}, {Name: "sda"}}}}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var m map[string]any
			if err := json.Unmarshal([]byte(tt.json), &m); err != nil {
				t.Fatal(err)
			}
			got, ignored, err := DecodeSubject(m)
			if err != nil {
				t.Fatalf("%s: %v", tt.json, err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.json, diff)
			}
			if !slices.Equal(ignored, tt.ignored) {
				t.Errorf("%s: ignored %q, want %q", tt.json, ignored, tt.ignored)
			}
		})
	}
}

func TestDecodeSubjectErrorsNameTheKey(t *testing.T) {
	for text, want := range map[string]string{
		`{"device": "sda"}`:                              "device: want an object",
		`{"device": {"space": "sata"}}`:                  `device.space "sata": want ata, scsi, nvme or usb`,
		`{"device": {"space": "ata", "firmware": 68}}`:   "device.firmware: want a quoted string, got 68",
		`{"scsi": {"vendor": ["ATA"]}}`:                  "scsi.vendor: want a quoted string, got [ATA]",
		`{"adapter": {"pci": 1}}`:                        "adapter.pci: want a quoted string, got 1",
		`{"usb": {"vid": true}}`:                         "usb.vid: want a quoted string, got true",
		`{"machine": []}`:                                "machine: want an object",
		`{"kernel": 6.1}`:                                "kernel: want a quoted string, got 6.1",
		`{"kernel": "six"}`:                              `kernel: kernel release "six"`,
		`{"cmdline": {}}`:                                "cmdline: want a quoted string",
		`{"path": 1}`:                                    "path: want a quoted string, got 1",
		`{"max_sectors": -1}`:                            "max_sectors: want a whole number of 0 or more, got -1",
		`{"max_sectors": 1.5}`:                           "max_sectors: want a whole number of 0 or more, got 1.5",
		`{"max_sectors": "8192"}`:                        "max_sectors: want a whole number of 0 or more, got 8192",
		`{"limits": {"queue_depth": -1}}`:                "limits.queue_depth: want a whole number of 0 or more, got -1",
		`{"limits": {"queue_depth": {}}}`:                "limits.queue_depth: want a whole number",
		`{"settings": [1]}`:                              "settings: want an object",
		`{"stack": {"request_based": "yes"}}`:            "stack.request_based: want true or false, got yes",
		`{"stack": {"members": {}}}`:                     "stack.members: want a list",
		`{"stack": {"members": [1]}}`:                    "stack.members[0]: want an object",
		`{"stack": {"above": [{"kind": 1}]}}`:            "stack.above[0].kind: want a quoted string, got 1",
		`{"stack": {"above": [{"max_sectors_kb": -1}]}}`: "stack.above[0].max_sectors_kb: want a whole number",
		`{"device": {"space": "ata", "model": "` + strings.Repeat("x", 5000) + `"}}`: "device.model: 5000 characters is too long",
	} {
		if _, err := decodeJSON(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.80s: got %v, want %s", text, err, want)
		}
	}
	// Of two faults always the same one is told, though a map has no order.
	var told []string
	for range 50 {
		_, err := decodeJSON(`{"device": {"space": "x", "model": 1, "firmware": 2}, "usb": {"vid": 1, "pid": 2, "bcd": 3}}`)
		told = append(told, err.Error())
	}
	if told = slices.Compact(told); len(told) != 1 {
		t.Errorf("two faults are told in changing order: %q", told)
	}
}

func TestDecodeSubjectNumberForms(t *testing.T) {
	for _, tt := range []struct {
		v    any
		want uint64
		ok   bool
	}{
		{8192, 8192, true}, {int64(8192), 8192, true}, {uint64(1<<64 - 1), 1<<64 - 1, true}, {8192.0, 8192, true}, {json.Number("8192"), 8192, true},
		{0, 0, true}, {-1, 0, false}, {int64(-1), 0, false}, {-0.5, 0, false}, {1e30, 0, false}, {json.Number("-1"), 0, false}, {json.Number("1.5"), 0, false},
		{"8192", 0, false}, {true, 0, false}, {[]any{}, 0, false},
	} {
		sub, _, err := DecodeSubject(map[string]any{"max_sectors": tt.v})
		got, _ := sub.MaxSectorsKiB()
		if (err == nil) != tt.ok || got != tt.want/2 {
			t.Errorf("max_sectors %v (%T): got %d KiB, error %v; want %d, ok %t", tt.v, tt.v, got, err, tt.want/2, tt.ok)
		}
	}
}

func TestDecodeSubjectPath(t *testing.T) {
	for _, tt := range []struct{ path, extra, want string }{
		{"libata", "", "libata"},
		{"nvme", "", "nvme"}, // nvme-pci and nvme-fabrics not told apart
		{"nvme-fabrics", "", "nvme-fabrics"},
		{"virtio_blk", "", "virtio-blk"},
		{"usb", "", "usb-storage"},
		{"dm", "", "other"}, {"md", "", "other"}, {"zvol", "", "other"}, {"brd", "", "other"},
		{"floppy", "", "other"},
		{"scsi", "", "scsi"},
		{"scsi", `, scsi: {vendor: "ATA     "}`, "sat-firmware"},
		{"scsi", `, device: {space: scsi, vendor: "ATA"}`, "sat-firmware"},
		{"scsi", `, device: {space: ata, model: "M"}`, "sat-firmware"},
		{"scsi", `, scsi: {vendor: "HGST"}`, "scsi"},
		{"uas", `, scsi: {vendor: "ATA"}`, "uas"},
		{"", `, scsi: {vendor: "ATA"}`, ""},
	} {
		if got := subjectOf(t, "path: "+fmt.Sprintf("%q", tt.path)+tt.extra).Path; got != tt.want {
			t.Errorf("path %q%s: got %q, want %q", tt.path, tt.extra, got, tt.want)
		}
	}
	for _, p := range Paths {
		if got := normalPath(p, Text{}); got != p {
			t.Errorf("path %q becomes %q", p, got)
		}
	}
}

func TestSubjectInYAML(t *testing.T) {
	for text, want := range map[string]string{
		`{device: {space: ata, firmware: 0104}}`: "line 1: subject: device.firmware: want a quoted string, got 68",
		`{device: {space: ata, firmware: 1E10}}`: "line 1: subject: device.firmware: want a quoted string, got 1e+10",
		`{devise: {space: ata}}`:                 "line 1: field devise not found in subject",
		"device: {space: ata}\nusb: {wid: a}":    "line 1: field usb.wid not found in subject",
		`[1]`:                                    "cannot unmarshal",
	} {
		var sub Subject
		if err := yaml.Unmarshal([]byte(text), &sub); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s", text, err, want)
		}
	}
}

func FuzzSubject(f *testing.F) {
	f.Add([]byte(`{"device": {"space": "ata", "model": "M", "firmware": "1"}, "max_sectors": 8192, "kernel": "6.18.44", "path": "libata"}`))
	f.Add([]byte(`{"scsi": {"vendor": "ATA"}, "path": "scsi", "stack": {"members": [{"kind": "md", "level": "raid5"}], "request_based": true}}`))
	f.Add([]byte(`{"usb": {"vid": "174c", "bcd": "1.00"}, "limits": {"max_sectors": 3, "write_cache": "x"}, "zzz": null}`))
	entries := propertyEntries(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		var m, n map[string]any
		if json.Unmarshal(text, &m) != nil {
			return
		}
		sub, ignored, err := DecodeSubject(m)
		if err != nil {
			if !strings.Contains(err.Error(), ": ") {
				t.Errorf("error without a key: %v", err)
			}
			return
		}
		if !slices.IsSorted(ignored) {
			t.Errorf("ignored keys are not sorted: %q", ignored)
		}
		if normalPath(sub.Path, sub.scsiView().Vendor) != sub.Path {
			t.Errorf("path %q is not in its normal form", sub.Path)
		}
		// With exact numbers the answer is the same, as far as they are read.
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.UseNumber()
		if dec.Decode(&n) == nil {
			if again, more, err := DecodeSubject(n); err == nil && sub.Path != again.Path || err == nil && !slices.Equal(more, ignored) {
				t.Errorf("decoded twice: %+v and %+v", sub, again)
			}
		}
		for _, e := range entries {
			checkMatch(t, e, &sub)
		}
	})
}
