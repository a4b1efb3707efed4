package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// packings of a Linux image: the magic of the compressed kernel in it, and
// what unpacks it.
var packings = []struct {
	magic string
	cmd   []string
}{
	{"\xfd7zXZ\x00", []string{"xz", "-dc"}},
	{"\x28\xb5\x2f\xfd", []string{"zstd", "-dcq"}},
	{"\x1f\x8b\x08", nil}, // gzip, which we can
	{"\x02\x21\x4c\x18", []string{"lz4", "-dc"}},
}

// unpackKernel returns the ELF kernel inside a vmlinuz. QEMU starts it
// directly (PVH), which spares the guest its decompressor: about half of a
// boot under emulation.
func unpackKernel(ctx context.Context, image string) ([]byte, error) {
	b, err := os.ReadFile(image)
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(b, []byte("\x7fELF")) {
		return b, nil
	}
	var missing error
	for _, p := range packings {
		for at := 0; ; at++ {
			i := bytes.Index(b[at:], []byte(p.magic))
			if i < 0 {
				break
			}
			at += i
			var kern []byte
			if p.cmd == nil {
				kern, _ = gunzip(b[at:])
			} else if kern, err = filterLoose(ctx, b[at:], p.cmd); err != nil {
				missing = err
			}
			if bytes.HasPrefix(kern, []byte("\x7fELF")) {
				return kern, nil
			}
		}
	}
	if missing != nil {
		return nil, missing
	}
	return nil, fmt.Errorf("%s: no ELF kernel found inside", image)
}

// filterLoose returns what the program wrote even when it failed: it complains
// about what follows the compressed kernel, and the output is whole.
func filterLoose(ctx context.Context, b []byte, cmd []string) ([]byte, error) {
	out, err := filter(ctx, b, cmd[0], cmd[1:]...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = nil
	}
	return out, err
}
