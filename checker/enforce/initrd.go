package enforce

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// initrdPatterns are where distributions keep the images of early user space,
// those of kdump among them, relative to the root.
var initrdPatterns = []string{"boot/initrd.img-*", "boot/initramfs-*.img", "boot/initrd-*", "boot/*kdump*.img", "var/lib/kdump/initrd.img-*", "var/lib/kdump/initramfs-*.img"}

// Initrds returns the images on disk, sorted.
func Initrds(root string) []string {
	var out []string
	for _, p := range initrdPatterns {
		files, _ := filepath.Glob(filepath.Join(root, p))
		for _, f := range files {
			info, err := os.Lstat(f)
			if err == nil && info.Mode().IsRegular() && !slices.Contains(out, f) && !strings.HasSuffix(f, ".old") && !strings.HasSuffix(f, ".bak") {
				out = append(out, f)
			}
		}
	}
	slices.Sort(out)
	return out
}

// InitrdsWithoutRule returns one line for each image that does not carry the
// rule, or of which that could not be read: until the real root is mounted, its
// disks then run at the kernel's default. list shows the names in an image,
// nil for the installed lsinitramfs or lsinitrd.
func InitrdsWithoutRule(ctx context.Context, images []string, list func(context.Context, string) (string, error)) []string {
	if list == nil {
		list = listInitrd
	}
	var out []string
	for _, image := range images {
		names, err := list(ctx, image)
		switch {
		case err != nil:
			out = append(out, fmt.Sprintf("%s could not be looked into: %v", image, err))
		case !strings.Contains(names, RuleFile):
			out = append(out, fmt.Sprintf("%s does not carry %s; install the hook (packaging/) and build it again", image, RuleFile))
		}
	}
	return out
}

func listInitrd(ctx context.Context, image string) (string, error) {
	for _, tool := range []string{"lsinitramfs", "lsinitrd"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			continue
		}
		out, err := exec.CommandContext(ctx, path, image).Output()
		if err != nil {
			return "", fmt.Errorf("%s: %w", tool, err)
		}
		return string(out), nil
	}
	return "", errors.New("neither lsinitramfs (initramfs-tools-core) nor lsinitrd (dracut) is installed")
}

// CrashKernelLoaded reports whether a kdump kernel is loaded: it boots with an
// image of its own.
func CrashKernelLoaded(a Attrs) bool {
	v, err := a.Read("sys/kernel/kexec_crash_loaded")
	return err == nil && v == "1"
}
