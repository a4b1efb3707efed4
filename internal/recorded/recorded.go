// Package recorded holds the recorded machines that tests read: sysfs trees of
// real hosts with what lsblk, lsscsi and lspci say about them, two trees of one
// emulated machine under different kernels, and the field reports written down
// as checks. testdata/README.md says where each came from. Only tests use it.
package recorded

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

//go:embed testdata/sysfs testdata/kernels testdata/checks.jsonl
var files embed.FS

const suffix = ".tar.gz"

// maxFile bounds one file of an archive; sysfs has none of a megabyte.
const maxFile = 1 << 20

// Names returns the names of the recorded machines in order: those of
// testdata/sysfs, which have an Expected, and those of testdata/kernels.
func Names() []string {
	var names []string
	for _, folder := range []string{"testdata/sysfs", "testdata/kernels"} {
		entries, err := files.ReadDir(folder)
		if err != nil {
			panic(err) // embedded: cannot fail
		}
		for _, e := range entries {
			if name, ok := strings.CutSuffix(e.Name(), suffix); ok {
				names = append(names, name)
			}
		}
	}
	return names
}

// Trees returns Names and fails the test where there are none.
func Trees(t testing.TB) []string {
	t.Helper()
	names := Names()
	if len(names) == 0 {
		t.Fatal("no recorded machine")
	}
	return names
}

// Tree unpacks a machine into a folder that lasts as long as the test and
// returns its sysroot. It costs up to a second; a test that needs no folder is
// better served by FS.
func Tree(t testing.TB, name string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unpack(folder(dir), bytes.NewReader(archive(t, name))); err != nil {
		t.Fatalf("unpack %s: %v", name, err)
	}
	root, err := sysroot(dir)
	if err != nil {
		t.Fatalf("unpack %s: %v", name, err)
	}
	return root
}

// FS unpacks a machine into memory and returns its sysroot, links included.
// The caller may change it.
func FS(t testing.TB, name string) fstest.MapFS {
	t.Helper()
	all := memory{}
	if err := unpack(all, bytes.NewReader(archive(t, name))); err != nil {
		t.Fatalf("unpack %s: %v", name, err)
	}
	top := ""
	if all["sys"] == nil {
		top = name + "/"
	}
	machine := fstest.MapFS{}
	for name, f := range all {
		if below, ok := strings.CutPrefix(name, top); ok {
			machine[below] = f
		}
	}
	if f := machine["sys"]; f == nil || !f.Mode.IsDir() {
		t.Fatalf("unpack %s: no sys folder at the top", name)
	}
	return machine
}

func archive(t testing.TB, name string) []byte {
	t.Helper()
	for _, folder := range []string{"testdata/sysfs", "testdata/kernels"} {
		if b, err := files.ReadFile(path.Join(folder, name+suffix)); err == nil {
			return b
		}
	}
	t.Fatalf("recorded machine %q: want one of %s", name, strings.Join(Names(), ", "))
	return nil
}

// sysroot returns dir, or the single folder in it that holds sys.
func sysroot(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	root := dir
	if len(entries) == 1 && entries[0].IsDir() && entries[0].Name() != "sys" {
		root = filepath.Join(dir, entries[0].Name())
	}
	if info, err := os.Stat(filepath.Join(root, "sys")); err != nil || !info.IsDir() {
		return "", errors.New("no sys folder at the top")
	}
	return root, nil
}

// place is where an archive is unpacked to.
type place interface {
	mkdir(name string) error
	write(name string, r io.Reader) error
	symlink(target, name string) error
}

// unpack writes an archive of files, folders and symbolic links. Other kinds,
// and names that leave the place, are errors; the links come last, so that no
// name can lead through one.
func unpack(to place, r io.Reader) error {
	z, err := gzip.NewReader(r)
	if err != nil {
		return err
	}
	links := map[string]string{}
	for tr := tar.NewReader(z); ; {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(strings.TrimPrefix(h.Name, "./"), "/")
		if name == "" {
			continue
		}
		if !fs.ValidPath(name) {
			return fmt.Errorf("%q leaves the archive", h.Name)
		}
		switch h.Typeflag {
		case tar.TypeDir:
			err = to.mkdir(name)
		case tar.TypeSymlink:
			links[name] = h.Linkname
		case tar.TypeReg:
			if h.Size > maxFile {
				return fmt.Errorf("%q holds %d bytes", h.Name, h.Size)
			}
			err = to.write(name, tr)
		default:
			err = fmt.Errorf("%q is of type %q", h.Name, h.Typeflag)
		}
		if err != nil {
			return err
		}
	}
	for name, target := range links {
		if err := to.symlink(target, name); err != nil {
			return err
		}
	}
	return nil
}

// folder is a place on disk.
type folder string

func (f folder) at(name string) string { return filepath.Join(string(f), filepath.FromSlash(name)) }

func (f folder) mkdir(name string) error { return os.MkdirAll(f.at(name), 0o755) }

func (f folder) write(name string, r io.Reader) error {
	w, err := os.OpenFile(f.at(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrNotExist) {
		if err = f.mkdir(path.Dir(name)); err == nil {
			w, err = os.OpenFile(f.at(name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		}
	}
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, r); err != nil {
		w.Close()
		return err
	}
	return w.Close()
}

func (f folder) symlink(target, name string) error {
	if err := f.mkdir(path.Dir(name)); err != nil {
		return err
	}
	return os.Symlink(target, f.at(name))
}

// memory is a place in memory.
type memory fstest.MapFS

func (m memory) mkdir(name string) error {
	for ; name != "."; name = path.Dir(name) {
		switch f := m[name]; {
		case f == nil:
			m[name] = &fstest.MapFile{Mode: fs.ModeDir | 0o755}
		case !f.Mode.IsDir():
			return &fs.PathError{Op: "mkdir", Path: name, Err: fs.ErrExist}
		}
	}
	return nil
}

func (m memory) add(name string, f *fstest.MapFile) error {
	if m[name] != nil {
		return &fs.PathError{Op: "create", Path: name, Err: fs.ErrExist}
	}
	m[name] = f
	return m.mkdir(path.Dir(name))
}

func (m memory) write(name string, r io.Reader) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	return m.add(name, &fstest.MapFile{Data: b, Mode: 0o644})
}

func (m memory) symlink(target, name string) error {
	return m.add(name, &fstest.MapFile{Data: []byte(target), Mode: fs.ModeSymlink | 0o777})
}

// Peers is what established tools answer about a machine.
type Peers struct {
	Source  string `json:"source"`
	License string `json:"license"`
	Note    string `json:"note"`
	// SysfsOnly and WithUdev are lsblk's answer without and with the udev
	// database; WithUdev is nil where none was recorded.
	SysfsOnly []BlockDevice `json:"lsblk_2_38_1_sysfs_only"`
	WithUdev  []BlockDevice `json:"lsblk_2_38_1_with_udev_data"`
	// Newer is what lsblk 2.43's own test expects: vendor, model, rev by name.
	Newer map[string]map[string]string `json:"lsblk_2_43_devel_upstream_expected"`
	// LSSCSI, LSSCSIHosts and LSSCSILong are the lines of lsscsi, -H and -L.
	LSSCSI      []string `json:"lsscsi_0_31"`
	LSSCSIHosts []string `json:"lsscsi_0_31_hosts"`
	LSSCSILong  []string `json:"lsscsi_0_31_L"`
	// LSPCI holds the storage and USB functions.
	LSPCI []PCIFunction `json:"lspci_3_9_storage_and_usb"`
	// Attributes holds, by device, the plain contents of sysfs files by name
	// below the block device, and devpath and pci_parent.
	Attributes map[string]map[string]string `json:"attributes"`
}

// LSBLK returns every answer of lsblk about the whole machine, by its key in
// the file.
func (p Peers) LSBLK() map[string][]BlockDevice {
	all := map[string][]BlockDevice{"lsblk_2_38_1_sysfs_only": p.SysfsOnly}
	if p.WithUdev != nil {
		all["lsblk_2_38_1_with_udev_data"] = p.WithUdev
	}
	return all
}

// BlockDevice is one row of lsblk -O -J -b. A nil pointer is lsblk's null.
type BlockDevice struct {
	Name         string        `json:"name"`
	KName        string        `json:"kname"`
	MajMin       string        `json:"maj:min"`
	Removable    bool          `json:"rm"`
	ReadOnly     bool          `json:"ro"`
	Size         *uint64       `json:"size"`
	Type         string        `json:"type"`
	Vendor       *string       `json:"vendor"`
	Model        *string       `json:"model"`
	Rev          *string       `json:"rev"`
	Transport    *string       `json:"tran"`
	HCTL         *string       `json:"hctl"`
	Rotational   bool          `json:"rota"`
	Scheduler    *string       `json:"sched"`
	NrRequests   *uint64       `json:"rq-size"`
	ReadAheadKiB *uint64       `json:"ra"`
	MinIO        *uint64       `json:"min-io"`
	OptIO        *uint64       `json:"opt-io"`
	PhySec       *uint64       `json:"phy-sec"`
	LogSec       *uint64       `json:"log-sec"`
	DiscGran     *uint64       `json:"disc-gran"`
	DiscMax      *uint64       `json:"disc-max"`
	WSame        *uint64       `json:"wsame"`
	Zoned        *string       `json:"zoned"`
	Children     []BlockDevice `json:"children"`
}

// PCIFunction is one row of lspci -nn. Class has four digits; Rev is "" where
// lspci prints none, which it does for 00.
type PCIFunction struct {
	Slot      string `json:"slot"`
	Class     string `json:"cls"`
	ID        string `json:"id"`
	Rev       string `json:"rev"`
	Subsystem string `json:"subsys"`
	Driver    string `json:"driver"`
}

// Expected returns the peers' answers about a machine; ok is false for the
// trees of testdata/kernels, which have none.
func Expected(t testing.TB, name string) (p Peers, ok bool) {
	t.Helper()
	text, err := files.ReadFile(path.Join("testdata/sysfs", name+".expected.json"))
	if err != nil {
		if !slices.Contains(Names(), name) {
			t.Fatalf("recorded machine %q: want one of %s", name, strings.Join(Names(), ", "))
		}
		return Peers{}, false
	}
	if err := json.Unmarshal(text, &p); err != nil {
		t.Fatalf("%s.expected.json: %v", name, err)
	}
	return p, true
}

// Check is one line of checks.jsonl: a field report as a question with its
// right answer. The parts that differ from line to line are left as JSON, for
// the test that knows them to decode.
type Check struct {
	ID       string          `json:"id"`
	Title    string          `json:"title"`
	Subject  json.RawMessage `json:"subject"`
	Limits   json.RawMessage `json:"limits"`   // nil where none are reported
	Settings json.RawMessage `json:"settings"` // nil where none are reported
	ToKernel string          `json:"to_kernel"`
	Expect   CheckExpect     `json:"expect"`
	Why      string          `json:"why"`
	Needs    string          `json:"needs"` // entry, builtin-check, parser, audit, verify or enforce
	Derived  []string        `json:"derived"`
	Doubt    string          `json:"doubt"`
}

// CheckExpect is the right answer; what is empty or nil is not asserted.
type CheckExpect struct {
	Check                   string          `json:"check"`
	Verdict                 string          `json:"verdict"`
	Effect                  string          `json:"effect"`
	SeverityAtLeast         string          `json:"severity_at_least"`
	SeverityAtMost          string          `json:"severity_at_most"`
	SafeMaxSectors          *uint64         `json:"safe_max_sectors"` // 512-byte sectors
	RecommendedMaxSectorsKB *uint64         `json:"recommended_max_sectors_kb"`
	MustNot                 []string        `json:"must_not"`
	Note                    string          `json:"note"`
	Identity                json.RawMessage `json:"identity"`
	Plan                    json.RawMessage `json:"plan"`
	Predicted               json.RawMessage `json:"predicted"`
	Emit                    json.RawMessage `json:"emit"`
	Values                  json.RawMessage `json:"values"`
}

// Checks returns the lines of checks.jsonl in order. It fails on a line that
// does not decode and where there are none.
func Checks(t testing.TB) []Check {
	t.Helper()
	text, err := files.ReadFile("testdata/checks.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	checks, err := decodeChecks(text)
	if err != nil {
		t.Fatalf("checks.jsonl: %v", err)
	}
	if len(checks) == 0 {
		t.Fatal("checks.jsonl: no line")
	}
	return checks
}

func decodeChecks(text []byte) ([]Check, error) {
	var checks []Check
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		dec := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		dec.DisallowUnknownFields()
		var c Check
		if err := dec.Decode(&c); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		checks = append(checks, c)
	}
	return checks, lines.Err()
}
