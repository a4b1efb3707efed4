package capture_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/quirkcheck/quirkcheck/internal/recorded"
	"github.com/quirkcheck/quirkcheck/probe/capture"
)

// treeSecrets reads a tree on its own and simple terms: it knows file names
// and byte offsets, and nothing of the redactor.
func treeSecrets(t testing.TB, tree fstest.MapFS) []string {
	t.Helper()
	found := map[string]bool{}
	add := func(s string) {
		if s = strings.Trim(s, " \x00\n\t"); len(s) >= 5 {
			found[s] = true
		}
	}
	hexID := func(b []byte) {
		if strings.Trim(string(b), "\x00") != "" {
			add(hex.EncodeToString(b))
		}
	}
	words := func(b []byte) { // IDENTIFY DEVICE
		text := func(from, to int) string {
			var s []byte
			for i := 2 * from; i < 2*to; i += 2 {
				s = append(s, b[i+1], b[i])
			}
			return string(s)
		}
		add(strings.TrimPrefix(strings.Trim(text(10, 20), " "), "BAD_CTX "))
		hexID([]byte(text(108, 112)))
	}
	uuid := regexp.MustCompile(`(?i)[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}`)
	for name, f := range tree {
		if !f.Mode.IsRegular() {
			continue
		}
		b, base := f.Data, path.Base(name)
		switch {
		case base == "persistent_address":
			add(string(b))
		case base == "address" && strings.Contains(string(b), "addr="):
			for _, f := range strings.FieldsFunc(string(b), func(r rune) bool { return strings.ContainsRune(",=\n", r) }) {
				if strings.Contains(f, ".") || strings.Contains(f, "::") {
					add(f)
				}
				for _, wwn := range regexp.MustCompile(`0x([0-9a-f]{16})`).FindAllStringSubmatch(f, -1) {
					add(wwn[1])
				}
			}
		case base == "port_name":
			add(strings.TrimPrefix(string(b), "0x"))
		case slices.Contains([]string{"serial", "nguid", "uuid", "eui", "sas_address", "node_name", "targetname", "initiatorname"}, base) && strings.Contains(name, "/devices/"):
			if !regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.\d`).Match(b) { // a USB host's serial is its PCI address
				add(strings.TrimPrefix(string(b), "BAD_CTX "))
			}
		case base == "wwid":
			s := strings.TrimSpace(string(b))
			for _, p := range []string{"naa.", "eui.", "uuid."} {
				if rest, ok := strings.CutPrefix(s, p); ok {
					add(rest)
				}
			}
			if strings.HasPrefix(s, "t10.") {
				f := strings.Fields(s)
				add(f[len(f)-1])
			}
		case base == "subsysnqn":
			s := strings.TrimSpace(string(b))
			if i := strings.LastIndex(s, ":"); i >= 0 && strings.HasPrefix(s, "nqn.2014.08.org.nvmexpress:") {
				add(s[i+9 : i+9+20])
			} else if i >= 0 {
				for _, part := range strings.Split(s, ":") {
					if sn, ok := strings.CutPrefix(part, "sn."); ok {
						add(sn)
					}
				}
				add(strings.TrimPrefix(s[i+1:], "nvm-subsystem-sn-"))
			}
		case base == "vpd_pg80" && len(b) > 4:
			add(strings.TrimPrefix(strings.Trim(string(b[4:]), " "), "BAD_CTX "))
		case base == "vpd_pg83":
			for i := 4; i+4 < len(b) && i+4+int(b[i+3]) <= len(b); i += 4 + int(b[i+3]) {
				d := b[i+4 : i+4+int(b[i+3])]
				switch b[i+1] & 15 {
				case 2, 3:
					hexID(d)
				case 8:
					add(strings.TrimPrefix(strings.ToLower(string(d)), "naa."))
				case 1:
					if f := strings.Fields(string(d)); len(f) > 2 {
						add(f[len(f)-1])
					}
				}
			}
		case base == "vpd_pg89" && len(b) >= 572:
			words(b[60:572])
		case base == "id" && strings.Contains(name, "ata_device"):
			var data []byte
			for _, w := range strings.Fields(string(b)) {
				v, err := hex.DecodeString(w)
				if err == nil && len(v) == 2 {
					data = append(data, v[1], v[0])
				}
			}
			if len(data) == 512 {
				words(data)
			}
		case strings.HasPrefix(name, "run/udev/data/"):
			for line := range strings.Lines(string(b)) {
				k, v, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, "E:")), "=")
				for _, part := range []string{"SERIAL_SHORT", "WWN", "_UUID", "LABEL", "DM_NAME"} {
					if strings.Contains(k, part) {
						add(strings.TrimPrefix(strings.TrimPrefix(v, "0x"), "eui."))
					}
				}
			}
		case strings.HasSuffix(name, "/dm/uuid"), name == "proc/cmdline":
			for _, u := range uuid.FindAllString(string(b), -1) {
				add(u)
			}
		case name == "etc/hostname", name == "proc/sys/kernel/hostname":
			add(string(b))
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// spellings of a secret that must not be found.
func spellings(secret string) map[string][]byte {
	swap := func(b []byte) []byte {
		out := bytes.Clone(b)
		for i := 0; i+1 < len(b); i += 2 {
			out[i], out[i+1] = b[i+1], b[i]
		}
		return out
	}
	all := map[string][]byte{"as it is": []byte(secret), "lower case": []byte(strings.ToLower(secret)), "upper case": []byte(strings.ToUpper(secret)),
		"word-swapped": swap([]byte(secret)), "in hex": []byte(hex.EncodeToString([]byte(secret)))}
	plain := strings.NewReplacer("-", "", ":", "").Replace(strings.ToLower(secret))
	if b, err := hex.DecodeString(plain); err == nil && len(b) >= 8 {
		all["in bytes"], all["in swapped bytes"] = b, swap(b)
	}
	return all
}

// everything a capture holds: its own text, and every string in it, those in
// base64 decoded too.
func everything(t testing.TB, text []byte) map[string][]byte {
	t.Helper()
	all := map[string][]byte{"the JSON": text, "the JSON swapped": nil}
	var doc any
	if err := json.Unmarshal(text, &doc); err != nil {
		t.Fatal(err)
	}
	var walk func(place string, v any)
	walk = func(place string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				all[place+"."+k+" (the key)"] = []byte(k)
				walk(place+"."+k, x)
			}
		case []any:
			for i, x := range v {
				walk(fmt.Sprintf("%s[%d]", place, i), x)
			}
		case string:
			all[place] = []byte(v)
			if b, err := base64.StdEncoding.DecodeString(v); err == nil {
				all[place+" (decoded)"] = b
			}
		}
	}
	walk("", doc)
	return all
}

// leaks lists the secrets that a capture holds in some spelling.
func leaks(t testing.TB, text []byte, secrets []string) []string {
	t.Helper()
	all := everything(t, text)
	var out []string
	for _, s := range secrets {
		for how, b := range spellings(s) {
			for place, content := range all {
				// A run of equal characters is everywhere.
				if len(b) >= 5 && len(bytes.Trim(b, string(b[:1]))) > 0 && bytes.Contains(content, b) {
					out = append(out, fmt.Sprintf("%q, %s, in %.200s", s, how, place))
				}
			}
		}
	}
	return out
}

// TestNoSecretIsLeftInRecordedTrees: and the same search finds them in captures
// that keep them.
func TestNoSecretIsLeftInRecordedTrees(t *testing.T) {
	total, held := 0, 0
	for _, name := range recorded.Trees(t) {
		tree := recorded.FS(t, name)
		secrets := treeSecrets(t, tree)
		total += len(secrets)
		text, _, _ := take(t, tree, capture.Options{})
		for _, l := range leaks(t, text, secrets) {
			t.Errorf("%s: %s", name, l)
		}
		kept, _, _ := take(t, tree, capture.Options{IncludeSerials: true})
		n := len(leaks(t, kept, secrets))
		held += n
		t.Logf("%s: %d secrets, %d finds with --include-serials", name, len(secrets), n)
	}
	if total < 30 || held < 20 {
		t.Errorf("%d secrets, of which %d places were found in captures that keep them: the search finds nothing", total, held)
	}
}

// TestNoSecretIsLeftInStacks: the same for the machines made by hand.
func TestNoSecretIsLeftInStacks(t *testing.T) {
	for name, want := range map[string]int{"stacks": 5, "kinds": 18} {
		m := stacked()[name]
		secrets := append(treeSecrets(t, m.MapFS), "betelgeuse", "0f1e2d3c4b5a69788796a5b4c3d2e1f0", "org.example", "com.example", "payroll7")
		text, _, _ := take(t, m, capture.Options{})
		for _, l := range leaks(t, text, secrets) {
			t.Errorf("%s: %s", name, l)
		}
		kept, _, _ := take(t, m, capture.Options{IncludeSerials: true})
		found := map[string]bool{}
		for _, l := range leaks(t, kept, secrets) {
			s, _, _ := strings.Cut(l, ", ")
			found[s] = true
		}
		if len(found) < want {
			t.Errorf("%s: of %d secrets %d were found in a capture that keeps them, want %d: %v", name, len(secrets), len(found), want, secrets)
		}
		t.Logf("%s: %d secrets, %d found with --include-serials", name, len(secrets), len(found))
	}
}

// planted is a recorded machine with a secret in every place that the probe
// reads, and the list of them.
func planted(t testing.TB) (fstest.MapFS, []string) {
	t.Helper()
	tree := recorded.FS(t, "7.3.4-debian13-backports")
	file := func(name, content string) { tree[name] = &fstest.MapFile{Data: []byte(content), Mode: 0o444} }
	link := func(name, target string) {
		tree[name] = &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777}
	}
	file("proc/sys/kernel/hostname", "zaphod\n")
	file("etc/hostname", "zaphod.acme.example\n")
	file("proc/version", "Linux version 6.18.3-zaphod (trillian@heartofgold) (gcc 15.1.0) #1 SMP\n")
	file("proc/cmdline", "root=UUID=3e6be9de-8139-11d1-9106-a43f08d823a6 rd.luks.name=4e6be9de-8139-11d1-9106-a43f08d823a6=krikkit BOOTIF=01-52-54-00-ab-cd-ef ip=192.168.7.9::192.168.7.1:255.255.255.0:zaphod:eth0:none mac=52:54:00:ab:cd:ef quiet libata.force=1.00:noncq rd.lvm.lv=vgmagrathea/lvdeep\n")
	var scsi []string
	for name := range tree {
		if path.Base(name) == "vpd_pg83" {
			scsi = append(scsi, path.Dir(name))
		}
	}
	slices.Sort(scsi)
	if len(scsi) < 3 {
		t.Fatal("few SCSI devices")
	}
	secrets := []string{"zaphod", "acme.example", "trillian", "heartofgold", "3e6be9de-8139-11d1-9106-a43f08d823a6", "4e6be9de-8139-11d1-9106-a43f08d823a6", "krikkit",
		"52:54:00:ab:cd:ef", "52-54-00-ab-cd-ef", "192.168.7.9", "vgmagrathea", "lvdeep"}
	add := func(s string) string { secrets = append(secrets, s); return s }
	page := func(code byte, body string) string {
		return string([]byte{0, code, byte(len(body) >> 8), byte(len(body))}) + body
	}
	for i, dir := range scsi {
		serial := add(fmt.Sprintf("ZX81%04dQWERTY", i))
		wwn := fmt.Sprintf("5000c5%010x", 0x7a3b00000+i*0x11111)
		add(wwn)
		raw, _ := hex.DecodeString(wwn)
		t10 := fmt.Sprintf("ACME    %-40s%-20s", "ROCKET", serial)
		file(dir+"/vpd_pg80", page(0x80, fmt.Sprintf("%-20s", serial)))
		file(dir+"/vpd_pg83", page(0x83, "\x02\x01\x00"+string(rune(len(t10)))+t10+"\x01\x03\x00\x08"+string(raw)+"\x03\x08\x00\x14naa."+strings.ToUpper(wwn)))
		// Page 89h: IDENTIFY DEVICE with the same serial number and name.
		words := make([]byte, 512)
		put := func(at int, s string) {
			for i := 0; i+1 < len(s); i += 2 {
				words[2*at+i], words[2*at+i+1] = s[i+1], s[i]
			}
		}
		put(10, fmt.Sprintf("%20s", serial))
		put(23, "FW 1.0  ")
		put(27, fmt.Sprintf("%-40s", "ACME ROCKET"))
		put(108, string(raw))
		put(129, fmt.Sprintf("%-20s", add(fmt.Sprintf("VENDORX%05dY", i))))
		body := make([]byte, 56)
		body[52] = 0xec
		file(dir+"/vpd_pg89", page(0x89, string(body)+string(words)))
		inquiry := make([]byte, 160)
		copy(inquiry[8:], "ACME    ROCKET          1.0 ")
		copy(inquiry[36:], add(fmt.Sprintf("INQVENDOR%05d", i)))
		copy(inquiry[100:], add(fmt.Sprintf("INQTAIL%05d", i)))
		file(dir+"/inquiry", string(inquiry))
		if i%2 == 0 { // then the probe reads INQUIRY
			delete(tree, dir+"/vendor")
			delete(tree, dir+"/model")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		if path.Base(name) != "dev" || !strings.Contains(name, "/block/") {
			continue
		}
		dev := strings.TrimSpace(string(tree[name].Data))
		disk := path.Base(path.Dir(name))
		short := add("UDEV" + strings.ToUpper(disk) + "7734X")
		file("run/udev/data/b"+dev, "S:disk/by-id/ata-ACME_ROCKET_"+short+"\nS:disk/by-uuid/5e6be9de-8139-11d1-9106-a43f08d823a6\nS:disk/by-label/slartibartfast\nS:disk/by-path/ip-10.9.8.7:3260-iscsi-iqn.2004-04.com.sirius:disk1-lun-1\n"+
			"E:ID_ATA=1\nE:ID_MODEL=ACME_ROCKET\nE:ID_MODEL_ENC=ACME\\x20ROCKET\nE:ID_REVISION=FW_1.0\nE:ID_SERIAL=ACME_ROCKET_"+short+"\nE:ID_SERIAL_SHORT="+short+
			"\nE:ID_WWN=0x5000cca2deadbe01\nE:ID_FS_LABEL=slartibartfast\nE:ID_FS_UUID=5e6be9de-8139-11d1-9106-a43f08d823a6\nE:ID_PART_TABLE_UUID=0badf00d\nE:DM_NAME=marvin\nE:DM_UUID=LVM-Zq3ZQ0k2wVvVb1vTQqDqkV3pXlZ0gWqKq3ZQ0k2wVvVb1vTQqDqkV3pXlZ0gWqa\n"+
			"E:ID_PATH=pci-0000:03:00.0-sas-0x5000cca2deadbe02-lun-0\nE:ID_FS_LABEL_ENC=slartibartfast\nE:ACME_CONTACT=ford prefect\n")
		link("dev/disk/by-id/ata-ACME_ROCKET_"+short, "../../"+disk)
		file("dev/"+disk, "")
		link("dev/disk/by-id/wwn-0x5000cca2deadbe01-"+disk, "../../"+disk)
	}
	secrets = append(secrets, "5e6be9de-8139-11d1-9106-a43f08d823a6", "slartibartfast", "10.9.8.7", "com.sirius", "5000cca2deadbe01", "5000cca2deadbe02", "0badf00d", "marvin", "Zq3ZQ0k2wVvVb1vTQqDqkV3pXlZ0gWq", "ford prefect", "betelgeuse")
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		if path.Base(name) == "subsysnqn" {
			file(name, "nqn.2014.08.org.nvmexpress:19871987"+fmt.Sprintf("%-20s%-40s", add("NVMESERIAL7734Q"), "ACME NVME")+"\n")
		}
	}
	// A volume, whose names are its owner's.
	dm := "sys/devices/virtual/block/dm-7"
	link("sys/block/dm-7", "../devices/virtual/block/dm-7")
	for n, c := range map[string]string{"dm/name": "betelgeuse", "dm/uuid": "CRYPT-LUKS2-0f1e2d3c4b5a69788796a5b4c3d2e1f0-betelgeuse", "size": "2048", "dev": "253:7", "queue/max_sectors_kb": "1280"} {
		file(dm+"/"+n, c+"\n")
	}
	add("0f1e2d3c4b5a69788796a5b4c3d2e1f0")
	return tree, secrets
}

func TestNoSecretIsLeftInAPlantedMachine(t *testing.T) {
	tree, secrets := planted(t)
	setters := []capture.Setter{{File: "/etc/udev/rules.d/99-zaphod.rules", Line: 3, Text: `ENV{ID_SERIAL_SHORT}=="UDEVSDA7734X", ATTR{queue/max_sectors_kb}="512"`}}
	o := capture.Options{HostNames: []string{"zaphod"}, Setters: setters}
	text, c, sum := take(t, tree, o)
	for _, l := range leaks(t, text, secrets) {
		t.Error(l)
	}
	o.IncludeSerials = true
	kept, _, _ := take(t, tree, o)
	found := map[string]bool{}
	for _, l := range leaks(t, kept, secrets) {
		s, _, _ := strings.Cut(l, ", ")
		found[s] = true
	}
	var unseen []string
	for _, s := range secrets {
		if !found[fmt.Sprintf("%q", s)] {
			unseen = append(unseen, s)
		}
	}
	// Page 89h and INQUIRY are read of some devices only, and of two spellings
	// of an address the machine has one.
	if len(unseen) > len(secrets)/3 {
		t.Errorf("%d of %d planted secrets are in nothing the probe reads: %v", len(unseen), len(secrets), unseen)
	}
	for _, stays := range []string{"ACME", "ROCKET", "FW_1.0", "libata.force=1.00:noncq"} {
		if !bytes.Contains(text, []byte(stays)) {
			t.Errorf("%s is lost", stays)
		}
	}
	got, want := report(t, readBack(t, text).FS()), report(t, tree)
	for from, to := range map[string]string{"6.18.3-zaphod": "6.18.3-host2", `"name": "betelgeuse"`: `"name": "` + "NAME" + `"`} {
		want = strings.ReplaceAll(want, from, to)
	}
	got = regexp.MustCompile(`"name": "name\d+"`).ReplaceAllString(got, `"name": "NAME"`)
	got = regexp.MustCompile(`6\.18\.3-host\d+`).ReplaceAllString(got, `6.18.3-host2`)
	if got != want {
		t.Errorf("the report of the redacted capture differs in more than names:\n%s", firstDifference(want, got))
	}
	total := 0
	for _, k := range sum.Kinds {
		total += len(k.Pseudonyms)
		if c.Redaction.Counts[string(k.Kind)] != len(k.Pseudonyms) {
			t.Errorf("counts %v, summary %d %s", c.Redaction.Counts, len(k.Pseudonyms), k.Kind)
		}
		for _, p := range k.Pseudonyms {
			if slices.Contains(secrets, p) {
				t.Errorf("%q is a secret, not a pseudonym", p)
			}
		}
	}
	t.Logf("%d secrets planted, %d replaced: %v", len(secrets), total, c.Redaction.Counts)
}

func firstDifference(a, b string) string {
	la, lb := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(la), len(lb)) {
		if la[i] != lb[i] {
			return fmt.Sprintf("line %d: live %s, replayed %s", i, la[i], lb[i])
		}
	}
	return fmt.Sprintf("%d and %d lines", len(la), len(lb))
}
