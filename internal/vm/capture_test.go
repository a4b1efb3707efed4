package vm

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestVMCapture takes captures in a guest with a disk on each bus and maps on
// top, and replays them outside: the report is that of the guest byte for
// byte, for root and for an ordinary user, with serial numbers and without.
func TestVMCapture(t *testing.T) {
	Require(t, "dmsetup")
	binary := buildQuirkcheck(t)
	disk := func(bus Bus, serial string, wwn uint64) Disk {
		return Disk{Serial: serial, Bus: bus, Image: TestImage(t, 64<<20), WWN: wwn}
	}
	sata := disk(AHCI, "WD-WCC4E1234567", 0x50014ee2b1234567)
	sata.Model, sata.Firmware = "ST380013AS", "3.20"
	sas := disk(VirtioSCSI, "Z5JV1ABCD", 0x5000c50012345678)
	sas.Vendor, sas.Product, sas.Revision = "ATA", "ST380013AS", "3.20"
	raid := disk(MegaSAS, "R0A1B2C3D4E5F60718", 0x600605b00a1b2c3d)
	uas := disk(UAS, "DD56419883B8E", 0)
	nvme := disk(NVMe, "S64ENX0R123456", 0)
	virtio := disk(VirtioBlk, "BHTZ2000123456789AB", 0)
	secrets := []string{"zaphod", "5f0a7b1c2d3e4f5061728394a5b6c7d8"}
	disks := []Disk{sata, sas, raid, uas, nvme, virtio, disk(VirtioSCSI, "M1XXY7734A", 0), disk(VirtioSCSI, "M2XXY7734B", 0)}
	for _, d := range disks {
		secrets = append(secrets, d.Serial)
		if d.WWN != 0 {
			secrets = append(secrets, fmt.Sprintf("%016x", d.WWN))
		}
	}
	Test(t, Config{
		Kernel: Stock(t), Binary: binary, Tools: []string{"dmsetup"}, Disks: disks, Udev: true,
		Append: append([]string{"root=UUID=3e6be9de-8139-11d1-9106-a43f08d823a6", "systemd.hostname=zaphod"}, menuParameters...),
		Files:  map[string][]byte{"/etc/machine-id": []byte("5f0a7b1c2d3e4f5061728394a5b6c7d8\n")},
	}, func(ctx context.Context, m *Machine) error {
		if _, err := m.Output(ctx, "hostname", "zaphod"); err != nil {
			return err
		}
		if _, err := m.Output(ctx, "udevadm", "settle"); err != nil {
			return err
		}
		a, err := m.Disk(ctx, "M1XXY7734A")
		if err != nil {
			return err
		}
		b, err := m.Disk(ctx, "M2XXY7734B")
		if err != nil {
			return err
		}
		_, err = m.DMLinear(ctx, "lin", a)
		if err != nil {
			return err
		}
		if _, err := m.DMCrypt(ctx, "cryptroot", b); err != nil {
			return err
		}
		if _, err := m.Output(ctx, "udevadm", "settle"); err != nil {
			return err
		}
		secrets := append([]string{"3e6be9de-8139-11d1-9106-a43f08d823a6"}, secrets...)
		for _, c := range []struct {
			name string
			uid  uint32
			args []string
		}{
			{"root", 0, nil},
			{"an ordinary user", 65534, nil},
			{"root, serial numbers included", 0, []string{"--include-serials"}},
		} {
			r, err := m.RunCmd(ctx, Cmd{Args: []string{"quirkcheck", "scan", "--format", "json"}, UID: c.uid, GID: c.uid})
			if err != nil {
				return err
			}
			if r.Exit != 1 {
				return fmt.Errorf("scan: %w", r.Err())
			}
			live := r.Stdout
			args := append([]string{"quirkcheck", "capture", "-o", "-", "--host-key", fmt.Sprintf("/run/key%d/host.key", c.uid)}, c.args...)
			if r, err = m.RunCmd(ctx, Cmd{Args: args, UID: c.uid, GID: c.uid}); err == nil {
				err = r.Err()
			}
			if err != nil {
				return fmt.Errorf("capture: %w", err)
			}
			text := r.Stdout
			t.Logf("%s: %d bytes; stderr:\n%s", c.name, len(text), r.Stderr)
			file := filepath.Join(t.TempDir(), "guest.json")
			if err := os.WriteFile(file, text, 0o644); err != nil {
				return err
			}
			replayed, err := exec.CommandContext(ctx, binary, "scan", "--format", "json", "--input", file).Output()
			var ee *exec.ExitError
			if !errors.As(err, &ee) || ee.ExitCode() != 1 {
				return fmt.Errorf("replay: %w", err)
			}
			when := regexp.MustCompile(`"generated_at": "[^"]*"`)
			if got, want := when.ReplaceAll(replayed, nil), when.ReplaceAll(live, nil); !bytes.Equal(got, want) {
				for i, line := range strings.Split(string(want), "\n") {
					if l := strings.Split(string(got), "\n"); i >= len(l) || l[i] != line {
						t.Errorf("%s: line %d of the report is %q in the guest, %q replayed", c.name, i+1, line, l[min(i, len(l)-1)])
						break
					}
				}
			}
			if n := bytes.Count(live, []byte(`"name": "`)); n < len(disks) {
				t.Errorf("%s: %d names in the report of %d disks", c.name, n, len(disks))
			}
			found := leaked(text, secrets)
			if kept := c.args != nil; kept && len(found) < len(secrets)/2 {
				t.Errorf("%s: only %v found: the search finds nothing", c.name, found)
			} else if !kept && len(found) > 0 {
				t.Errorf("%s: left in the capture: %v", c.name, found)
			}
		}
		return nil
	})
}

// leaked lists what of secrets is in a capture: in its bytes, in what its
// base64 holds, and in both with the bytes of each word swapped; upper and
// lower case; hexadecimal ones as bytes too.
func leaked(text []byte, secrets []string) []string {
	swap := func(b []byte, from int) []byte {
		out := bytes.Clone(b)
		for i := from; i+1 < len(b); i += 2 {
			out[i], out[i+1] = b[i+1], b[i]
		}
		return out
	}
	all := [][]byte{text}
	for _, quoted := range regexp.MustCompile(`"[A-Za-z0-9+/]+={0,2}"`).FindAll(text, -1) {
		if b, err := base64.StdEncoding.DecodeString(string(quoted[1 : len(quoted)-1])); err == nil {
			all = append(all, b)
		}
	}
	for _, b := range all {
		all = append(all, swap(b, 0), swap(b, 1))
	}
	var found []string
	for _, s := range secrets {
		forms := [][]byte{[]byte(s), bytes.ToLower([]byte(s)), bytes.ToUpper([]byte(s)), []byte(hex.EncodeToString([]byte(s)))}
		if b, err := hex.DecodeString(s); err == nil && len(b) >= 8 {
			forms = append(forms, b)
		}
	search:
		for _, b := range all {
			for _, f := range forms {
				if bytes.Contains(b, f) {
					found = append(found, s)
					break search
				}
			}
		}
	}
	return found
}
