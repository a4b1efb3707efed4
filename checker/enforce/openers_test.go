package enforce

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestGuestUses(t *testing.T) {
	got := GuestUses([]string{"bash (1)", "qemu-system-x86 (22)", "kvm (3)", "mdadm (4)"})
	if diff := cmp.Diff([]string{"qemu-system-x86 (22)", "kvm (3)"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestOpenersSeesThisProcess opens a block device of this machine, where there
// is one that may be read.
func TestOpenersSeesThisProcess(t *testing.T) {
	disks, _ := filepath.Glob("/sys/block/*")
	for _, d := range disks {
		name := filepath.Base(d)
		f, err := os.Open("/dev/" + name)
		if err != nil {
			continue
		}
		defer f.Close()
		got := Openers([]string{name})[name]
		if !slices.ContainsFunc(got, func(o string) bool { return strings.HasSuffix(o, fmt.Sprintf("(%d)", os.Getpid())) }) {
			t.Errorf("%s is open in this process, and openers are %q", name, got)
		}
		return
	}
	t.Skip("no block device can be opened here (needs root and a device node)")
}
