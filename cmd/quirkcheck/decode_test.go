package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/quirkcheck/quirkcheck/internal/recorded"
)

// A told is one line of the parsers' expected.jsonl: what other tools say of a
// dump.
type told struct {
	File     string
	Kind     string
	Expected struct {
		SgVPD                     []string `json:"sg_vpd_1_46"`
		Page                      string
		Vendor, Product, Revision string
		PDT, Version              float64
	}
	Hdparm struct {
		Model, Serial, Firmware, Logical, Physical, LBA28, LBA48, Rotation, WWN string
		SectorSize                                                              string `json:"sector_size"`
		QueueDepth                                                              string `json:"queue_depth"`
		NCQ, TRIM                                                               bool
	} `json:"hdparm_9_65"`
	Smartctl struct {
		Model    string                          `json:"model_name"`
		Serial   string                          `json:"serial_number"`
		Firmware string                          `json:"firmware_version"`
		Capacity struct{ Blocks, Bytes float64 } `json:"user_capacity"`
		Logical  float64                         `json:"logical_block_size"`
		Physical float64                         `json:"physical_block_size"`
		Rotation *float64                        `json:"rotation_rate"`
		TRIM     struct{ Supported, Deterministic, Zeroed bool }
	} `json:"smartctl_7_3"`
	NVMeCLI map[string]any `json:"nvme_cli_2_3"`
}

func readTold(t *testing.T, dir string) []told {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "expected.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []told
	sc := bufio.NewScanner(f)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		var d told
		if err := json.Unmarshal(sc.Bytes(), &d); err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.hex"))
	if err != nil || sc.Err() != nil || len(files) == 0 || len(files) != len(all) {
		t.Fatalf("%s: %d dumps, %d answers, %v, %v", dir, len(files), len(all), err, sc.Err())
	}
	return all
}

// decoded is the JSON of one dump, with a count of what was compared.
type decoded struct {
	t      *testing.T
	fields map[string]any
	n      *int
}

func decodeFile(t *testing.T, n *int, kind, file string) decoded {
	t.Helper()
	var out, talk strings.Builder
	if status := run(context.Background(), []string{"decode", kind, file, "--format", "json", "--include-serials"}, nil, &out, &talk); status != statusOK {
		t.Fatalf("exit status %d: %s", status, talk.String())
	}
	d := decoded{t: t, n: n}
	if err := json.Unmarshal([]byte(out.String()), &d.fields); err != nil {
		t.Fatal(err)
	}
	for name, v := range d.fields {
		if _, nested := v.(map[string]any); nested {
			t.Errorf("%s is an object: the answer is not flat", name)
		}
	}
	return d
}

func (d decoded) equal(name string, want any) {
	d.t.Helper()
	*d.n++
	got, ok := d.fields[name]
	if s, list := want.([]string); list {
		gotList := []string{}
		values, _ := got.([]any)
		for _, v := range values {
			gotList = append(gotList, fmt.Sprint(v))
		}
		if !slices.Equal(gotList, s) {
			d.t.Errorf("%s: got %q, want %q", name, gotList, s)
		}
		return
	}
	if !ok || got != want {
		d.t.Errorf("%s: got %v, want %v", name, got, want)
	}
}

// or0 gives nil for zero, where the standard's zero is no limit or not
// reported.
func or0(n float64) any {
	if n == 0 {
		return nil
	}
	return n
}

// Every dump of the parsers' test data, through the whole command, against what
// sg_inq, sg_vpd, hdparm, smartctl and nvme-cli say of it.
func TestDecodeSaysWhatOthersSay(t *testing.T) {
	compared := 0
	kinds := map[string]int{}
	for _, d := range readTold(t, "../../probe/scsi/testdata") {
		t.Run(d.File, func(t *testing.T) {
			file := filepath.Join("../../probe/scsi/testdata", d.File)
			before := compared
			switch d.Kind {
			case "inq":
				j := decodeFile(t, &compared, "inquiry", file)
				j.equal("vendor", strings.TrimSpace(d.Expected.Vendor))
				j.equal("product", strings.TrimSpace(d.Expected.Product))
				j.equal("revision", strings.TrimSpace(d.Expected.Revision))
				j.equal("peripheral_device_type", d.Expected.PDT)
				j.equal("version", d.Expected.Version)
				j.equal("truncated", false)
			case "vpd":
				j := decodeFile(t, &compared, "vpd", file)
				j.equal("page_code", d.Expected.Page)
				j.equal("truncated", d.File == "sg3_vpd_cpr.hex") // a sample that stops short
				comparePage(j, d)
			case "readcap16":
				return // no kind of decode
			default:
				t.Fatalf("kind %q", d.Kind)
			}
			if compared == before {
				t.Error("nothing was compared")
			}
			kinds[d.Kind]++
		})
	}
	for _, d := range readTold(t, "../../probe/ata/testdata") {
		t.Run(d.File, func(t *testing.T) {
			j := decodeFile(t, &compared, "identify", filepath.Join("../../probe/ata/testdata", d.File))
			compareIdentify(j, d)
			kinds["identify"]++
		})
	}
	for _, d := range readTold(t, "../../probe/nvme/testdata") {
		t.Run(d.File, func(t *testing.T) {
			j := decodeFile(t, &compared, "nvme-ctrl", filepath.Join("../../probe/nvme/testdata", d.File))
			compareController(j, d)
			kinds["nvme-ctrl"]++
		})
	}
	t.Logf("compared %d fields of %v", compared, kinds)
	for kind, least := range map[string]int{"inq": 5, "vpd": 40, "identify": 26, "nvme-ctrl": 8} {
		if kinds[kind] < least {
			t.Errorf("%d dumps of %s, want %d", kinds[kind], kind, least)
		}
	}
}

func compareIdentify(j decoded, d told) {
	j.t.Helper()
	h, s := d.Hdparm, d.Smartctl
	j.equal("model", s.Model)
	j.equal("model", h.Model)
	j.equal("firmware", s.Firmware)
	j.equal("firmware", h.Firmware)
	j.equal("serial", s.Serial)
	j.equal("serial", h.Serial)
	j.equal("logical_block_size", s.Logical)
	j.equal("physical_block_size", s.Physical)
	j.equal("physical_block_size_reported", h.SectorSize == "")
	j.equal("sectors", s.Capacity.Blocks)
	j.equal("size_bytes", s.Capacity.Bytes)
	rotation := any(nil)
	if s.Rotation != nil {
		rotation = *s.Rotation
	}
	j.equal("rotation_rpm", rotation)
	j.equal("trim", s.TRIM.Supported)
	j.equal("trim", h.TRIM)
	j.equal("trim_deterministic", s.TRIM.Deterministic)
	j.equal("trim_zeroed", s.TRIM.Zeroed)
	j.equal("ncq", h.NCQ)
	wwn := any(h.WWN)
	if h.WWN == "" || strings.Trim(h.WWN, "0") == "" {
		wwn = nil // a name of zeros is none
	}
	j.equal("wwn", wwn)
	j.equal("truncated", false)
}

func compareController(j decoded, d told) {
	j.t.Helper()
	number := func(name string) float64 { n, _ := d.NVMeCLI[name].(float64); return n }
	text := func(name string) string { s, _ := d.NVMeCLI[name].(string); return strings.TrimSpace(s) }
	j.equal("model", text("mn"))
	j.equal("firmware", text("fr"))
	j.equal("serial", text("sn"))
	j.equal("mdts_sectors", float64(uint64(4096)<<uint64(number("mdts"))/512))
	missing, _ := j.fields["missing"].([]any)
	for _, name := range []string{"vid", "ssvid", "rab", "ieee", "cmic", "mdts", "cntlid", "ver", "oaes", "ctratt", "oacs", "frmw", "apsta", "nn", "oncs", "vwc", "sgls"} {
		// nvme-cli saw the dump filled up with zeros; what is not in it is not known.
		if slices.Contains(missing, any(name)) {
			j.equal(name, nil)
			continue
		}
		j.equal(name, number(name))
	}
}

func comparePage(j decoded, d told) {
	j.t.Helper()
	printed := map[string]string{}
	for _, line := range d.Expected.SgVPD[1:] {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		printed[key] = strings.TrimSpace(value)
	}
	number := regexp.MustCompile(`^(0x[0-9a-f]+|\d+)`)
	num := func(key string) float64 {
		n, err := strconv.ParseUint(number.FindString(printed[key]), 0, 64)
		if err != nil {
			j.t.Fatalf("sg_vpd printed no number as %q", key)
		}
		return float64(n)
	}
	switch d.Expected.Page {
	case "00":
		short := regexp.MustCompile(`\[(\w+)\]$`)
		codes := map[string]string{"sv": "00", "sn": "80", "di": "83", "sii": "84", "mna": "85", "ei": "86", "mpp": "87", "sp": "88", "ai": "89",
			"bl": "b0", "bdc": "b1", "lbpv": "b2", "ble": "b7", "cpr": "b9"}
		var want []string
		for _, line := range d.Expected.SgVPD[1:] {
			want = append(want, codes[short.FindStringSubmatch(line)[1]])
		}
		j.equal("supported_pages", want)
	case "80":
		j.equal("serial", printed["Unit serial number"])
	case "83":
		values, _ := j.fields["designator_values"].([]any)
		for key := range printed {
			if strings.HasPrefix(key, "0x") {
				*j.n++
				if !slices.Contains(values, any(key[2:])) {
					j.t.Errorf("%s is not among %q", key, values)
				}
			}
		}
		n := 0
		for _, line := range d.Expected.SgVPD {
			if strings.Contains(line, "designator type:") {
				n++
			}
		}
		*j.n++
		if designators, _ := j.fields["designators"].([]any); len(designators) != n || n == 0 || len(values) != n {
			j.t.Errorf("%d designators, %d values, want %d", len(designators), len(values), n)
		}
		for key, name := range map[string]string{"Relative target port": "relative_target_port", "Target port group": "target_port_group"} {
			if _, ok := printed[key]; ok {
				j.equal(name, num(key))
			} else {
				j.equal(name, nil)
			}
		}
	case "89":
		of := func(key string) string { return printed[key] }
		j.equal("sat_vendor", of("SAT Vendor identification"))
		j.equal("sat_product", of("SAT Product identification"))
		j.equal("sat_revision", of("SAT Product revision level"))
		j.equal("model", of("model"))
		j.equal("firmware", of("firmware revision"))
		j.equal("serial", of("serial number"))
		j.equal("device_signature", "sata")
		j.equal("command_code", strings.TrimPrefix(of("Command code"), "0x"))
	case "b0":
		for key, name := range map[string]string{
			"Optimal transfer length granularity": "vpd_optimal_granularity_blocks", "Maximum transfer length": "vpd_max_transfer_blocks",
			"Optimal transfer length": "vpd_optimal_transfer_blocks", "Maximum prefetch transfer length": "vpd_max_prefetch_blocks",
			"Optimal unmap granularity": "vpd_optimal_unmap_granularity_blocks", "Maximum write same length": "vpd_max_write_same_blocks",
			"Maximum atomic transfer length":                      "vpd_max_atomic_transfer_blocks",
			"Maximum atomic transfer length with atomic boundary": "vpd_max_atomic_with_boundary_blocks",
		} {
			j.equal(name, or0(num(key)))
		}
		for key, name := range map[string]string{
			"Maximum compare and write length": "vpd_max_compare_and_write_blocks", "Maximum unmap LBA count": "vpd_max_unmap_blocks",
			"Maximum unmap block descriptor count": "vpd_max_unmap_descriptors", "Atomic alignment": "vpd_atomic_alignment_blocks",
			"Atomic transfer length granularity": "vpd_atomic_granularity_blocks", "Maximum atomic boundary size": "vpd_max_atomic_boundary_blocks",
		} {
			want := any(num(key))
			if want == float64(0xffffffff) {
				want = nil
			}
			j.equal(name, want)
		}
		j.equal("vpd_write_same_nonzero", printed["Write same non-zero (WSNZ)"] == "1")
		alignment := any(nil)
		if printed["Unmap granularity alignment valid"] == "true" {
			alignment = num("Unmap granularity alignment")
		}
		j.equal("vpd_unmap_alignment_blocks", alignment)
	case "b1":
		rotation := any(nil)
		if _, ok := printed["Non-rotating medium (e.g. solid state)"]; ok {
			rotation = 0.0
		} else if text, ok := printed["Nominal rotation rate"]; ok {
			n, err := strconv.ParseFloat(strings.TrimSuffix(text, " rpm"), 64)
			if err != nil {
				j.t.Fatal(err)
			}
			rotation = n
		}
		j.equal("rotation_rpm", rotation)
		form := any(nil)
		if text, ok := printed["Nominal form factor"]; ok {
			form = map[string]any{"5.25 inch": 1.0, "3.5 inch": 2.0, "2.5 inch": 3.0, "1.8 inch": 4.0, "less then 1.8 inch": 5.0}[text]
		}
		j.equal("form_factor", form)
		j.equal("zoned", nil)
	case "b2":
		for key, name := range map[string]string{"Unmap command supported (LBPU)": "lbpu", "Write same (16) with unmap bit supported (LBPWS)": "lbpws",
			"Write same (10) with unmap bit supported (LBPWS10)": "lbpws10", "Anchored LBAs supported (ANC_SUP)": "anc_sup", "Descriptor present (DP)": "descriptor_present"} {
			j.equal(name, num(key) == 1)
		}
		j.equal("lbprz", num("Logical block provisioning read zeros (LBPRZ)"))
		j.equal("provisioning_type", num("Provisioning type"))
		j.equal("threshold_exponent", or0(num("Threshold exponent")))
		j.equal("minimum_percentage", or0(num("Minimum percentage")))
		j.equal("threshold_percentage", or0(num("Threshold percentage")))
	}
}

// No serial number of any dump is in an answer without --include-serials.
func TestDecodeKeepsSerialsBack(t *testing.T) {
	n := 0
	for dir, kind := range map[string]string{"scsi": "vpd", "ata": "identify", "nvme": "nvme-ctrl"} {
		for _, d := range readTold(t, "../../probe/"+dir+"/testdata") {
			if d.Kind == "inq" || d.Kind == "readcap16" {
				continue
			}
			file := filepath.Join("../../probe", dir, "testdata", d.File)
			full := decodeFile(t, new(int), kind, file)
			var secrets []string
			for _, name := range []string{"serial", "wwn", "subnqn"} {
				if s, _ := full.fields[name].(string); s != "" {
					secrets = append(secrets, s)
				}
			}
			values, _ := full.fields["designator_values"].([]any)
			for i, v := range values {
				if kind := fmt.Sprint(full.fields["designators"].([]any)[i]); strings.Contains(kind, " naa ") || strings.Contains(kind, "t10-vendor-id") {
					secrets = append(secrets, fmt.Sprint(v))
				}
			}
			for _, format := range []string{"table", "json"} {
				var out, talk strings.Builder
				if status := run(context.Background(), []string{"decode", kind, file, "--format", format}, nil, &out, &talk); status != statusOK {
					t.Fatalf("%s: exit status %d: %s", d.File, status, talk.String())
				}
				for _, s := range secrets {
					n++
					if strings.Contains(strings.ToLower(out.String()), strings.ToLower(s)) {
						t.Errorf("%s: %s shows %q", d.File, format, s)
					}
				}
			}
		}
	}
	if n < 100 {
		t.Errorf("only %d names looked for", n)
	}
}

// The files of sysfs, as they are: bytes, and words as text.
func TestDecodeReadsSysfs(t *testing.T) {
	read := map[string]int{}
	for _, name := range recorded.Trees(t) {
		tree := recorded.FS(t, name)
		for path, f := range tree {
			base, kind := filepath.Base(path), "vpd"
			switch {
			case f.Mode.Type() != 0 || len(f.Data) == 0:
				continue
			case base == "inquiry":
				kind = "inquiry"
			case base == "id" && strings.Contains(path, "/ata_device/"):
				kind = "identify"
			case !strings.HasPrefix(base, "vpd_pg"):
				continue
			}
			var out, talk strings.Builder
			status := run(context.Background(), []string{"decode", kind, "-", "--format", "json"}, bytes.NewReader(f.Data), &out, &talk)
			if kind == "identify" && strings.Trim(string(f.Data), "0 \n") == "" { // no device answered
				if status != statusFailed || !strings.Contains(talk.String(), "all bytes are zero") {
					t.Errorf("%s: %s: exit status %d: %s", name, path, status, talk.String())
				}
				continue
			}
			if status != statusOK {
				t.Errorf("%s: %s: exit status %d: %s", name, path, status, talk.String())
				continue
			}
			read[kind]++
			var j map[string]any
			if err := json.Unmarshal([]byte(out.String()), &j); err != nil {
				t.Fatal(err)
			}
			if kind == "vpd" && j["page_code"] != fmt.Sprintf("%02s", strings.TrimPrefix(base, "vpd_pg")) {
				t.Errorf("%s: %s: page %v", name, path, j["page_code"])
			}
			if vendor := tree[filepath.Join(filepath.Dir(path), "vendor")]; kind == "inquiry" && vendor != nil && j["vendor"] != strings.TrimSpace(string(vendor.Data)) {
				t.Errorf("%s: %s: vendor %v, want %q", name, path, j["vendor"], vendor.Data)
			}
		}
	}
	t.Logf("read %v", read)
	if read["inquiry"] == 0 || read["vpd"] == 0 || read["identify"] == 0 {
		t.Errorf("read %v", read)
	}
}

func TestDecodeInterrupted(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out, talk strings.Builder
	if status := run(ctx, []string{"decode", "vpd", "-"}, r, &out, &talk); status != statusInterrupted {
		t.Errorf("exit status %d, want %d: %s", status, statusInterrupted, talk.String())
	}
}
