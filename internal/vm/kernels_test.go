package vm

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
)

// TestVMKernels boots the matrix, with one disk on each bus, and compares scan
// with its peers on each; further disks lie. It reports the kernels that no suite offers today.
func TestVMKernels(t *testing.T) {
	if os.Getenv("QUIRKCHECK_VM_KERNELS") != "all" {
		t.Skip("QUIRKCHECK_VM_KERNELS=all is not set")
	}
	Require(t, Peers...)
	binary := buildQuirkcheck(t)
	booted := 0
	for _, spec := range Kernels() {
		t.Run(spec.Name, func(t *testing.T) {
			kern, err := FetchKernel(t.Context(), spec)
			var missing *MissingError
			if errors.As(err, &missing) {
				t.Skipf("not offered today: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			Test(t, Config{Kernel: kern, Binary: binary, Tools: Peers, Disks: menu(t), MemoryMiB: 320, Append: menuParameters}, func(ctx context.Context, m *Machine) error {
				booted++
				t.Logf("Linux %s (%s) up after %s s", m.Release(), kern.Package, m.BootSeconds())
				if !strings.HasPrefix(m.Release(), spec.Series) {
					t.Errorf("booted %s, want %s*", m.Release(), spec.Series)
				}
				return errors.Join(checkMenu(ctx, t, m), scanAgrees(ctx, t, m), scanVerdicts(ctx, t, m), tcmuDisks(ctx, t, m))
			})
		})
	}
	if booted == 0 {
		t.Error("no kernel of the matrix booted")
	}
}
