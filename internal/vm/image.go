package vm

import (
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Peers are the host programs that tests compare with.
var Peers = []string{
	"lsblk", "blkid", "lsscsi", "sg_inq", "sg_vpd", "sg_readcap", "sg_turs", "sg_raw", "hdparm", "nvme",
}

// Stackers are the host programs that build device mapper, multipath and md
// stacks.
var Stackers = []string{"dmsetup", "cryptsetup", "mdadm", "multipath", "multipathd"}

// toolPackage names the Debian package of the programs that tests use, for
// the message that one is missing.
var toolPackage = map[string]string{
	"busybox": "busybox-static", "kmod": "kmod", "depmod": "kmod", "udevadm": "udev", "qemu-system-x86_64": "qemu-system-x86",
	"lsblk": "util-linux", "blkid": "util-linux", "blockdev": "util-linux", "lsscsi": "lsscsi",
	"sg_inq": "sg3-utils", "sg_vpd": "sg3-utils", "sg_readcap": "sg3-utils", "sg_turs": "sg3-utils", "sg_raw": "sg3-utils",
	"hdparm": "hdparm", "nvme": "nvme-cli", "dmsetup": "dmsetup", "cryptsetup": "cryptsetup-bin", "mdadm": "mdadm",
	"multipath": "multipath-tools", "multipathd": "multipath-tools", "fio": "fio",
	"xz": "xz-utils", "zstd": "zstd", "lz4": "lz4", "apt-get": "apt", "apt-cache": "apt", "dpkg": "dpkg",
}

// findTool is exec.LookPath that also looks where an ordinary user's PATH does
// not, and says which package is missing.
func findTool(name string) (string, error) {
	p, err := exec.LookPath(name)
	if err == nil {
		return filepath.Abs(p)
	}
	for _, d := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin"} {
		p = filepath.Join(d, name)
		if st, err := os.Stat(p); err == nil && st.Mode().IsRegular() {
			return p, nil
		}
	}
	return "", &MissingError{What: name, Package: toolPackage[name]}
}

// inUsr is where a host path goes in the guest, which has a merged /usr.
func inUsr(path string) string {
	path = strings.TrimPrefix(filepath.Clean(path), "/")
	return "usr/" + strings.TrimPrefix(path, "usr/")
}

// layerCache makes layers in dir.
type layerCache struct{ dir string }

func (c layerCache) make(kind string, k *key, fill func(a archive) error) (string, error) {
	return cachedFile(c.dir, kind+"-"+k.String()+".cpio", func(w io.Writer) error {
		a := archive{}
		if err := fill(a); err != nil {
			return err
		}
		return a.writeTo(w)
	})
}

// base is the layer with busybox and the folders a system has.
func (c layerCache) base() (string, error) {
	busybox, err := findTool("busybox")
	if err != nil {
		return "", err
	}
	if f, err := elf.Open(busybox); err == nil {
		libs, _ := f.ImportedLibraries()
		f.Close()
		if len(libs) > 0 {
			return "", &MissingError{What: "static busybox", Package: "busybox-static"}
		}
	}
	k := newKey("base")
	if err := k.file(busybox); err != nil {
		return "", err
	}
	return c.make("base", k, func(a archive) error {
		for _, d := range []string{
			"proc", "sys", "dev", "run", "tmp", "mnt", "root", "var/lib", "usr/bin", "usr/sbin", "usr/lib", "usr/lib64",
			"etc/udev/rules.d",
		} {
			a.dir(d)
		}
		for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
			a.symlink(d, "usr/"+d)
		}
		a.symlink("var/run", "/run")
		applets, err := exec.Command(busybox, "--list").Output()
		if err != nil {
			return fmt.Errorf("list applets of busybox: %w", err)
		}
		// Everything in usr/bin: tools of the next layer win over an applet in
		// sbin as PATH has sbin first, and over one in bin by its name.
		for _, n := range strings.Fields(string(applets)) {
			a.symlink("usr/bin/"+n, "busybox")
		}
		a.copy("usr/bin/busybox", busybox)
		a.file("etc/passwd", 0o644, []byte("root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n"))
		// The groups that Debian's udev rules name.
		var group bytes.Buffer
		group.WriteString("root:x:0:\nnogroup:x:65534:\n")
		for i, g := range []string{"disk", "tty", "kmem", "dialout", "cdrom", "tape", "audio", "video", "input", "kvm", "render", "sgx", "lp"} {
			fmt.Fprintf(&group, "%s:x:%d:\n", g, 100+i)
		}
		a.file("etc/group", 0o644, group.Bytes())
		return nil
	})
}

// plugins are folders that a program loads from by name, which no DT_NEEDED
// entry tells.
var plugins = map[string][]string{
	"multipath":  {"/lib/multipath"},
	"multipathd": {"/lib/multipath"},
}

// tools is the layer with host programs and their libraries.
func (c layerCache) tools(names []string) (string, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	files, err := toolFiles(names)
	if err != nil {
		return "", err
	}
	k := newKey("tools")
	for _, to := range slices.Sorted(maps.Keys(files)) {
		k.add(to)
		if err := k.file(files[to]); err != nil {
			return "", err
		}
	}
	return c.make("tools", k, func(a archive) error {
		for to, from := range files {
			a.copy(to, from)
		}
		if slices.Contains(names, "kmod") {
			for _, n := range []string{"modprobe", "insmod", "rmmod", "lsmod", "modinfo", "depmod"} {
				a.symlink("usr/sbin/"+n, "../bin/kmod")
			}
		}
		return nil
	})
}

// toolFiles maps guest paths to the host files of programs, by name or path.
func toolFiles(names []string) (map[string]string, error) {
	files := map[string]string{}
	dirs := libraryDirs()
	add := func(path string) error {
		real, err := filepath.EvalSymlinks(path)
		if err != nil {
			return err
		}
		files[inUsr(path)] = real
		libs, err := needed(real, dirs)
		if err != nil {
			return err
		}
		for _, l := range libs {
			files[inUsr(l)] = l
		}
		return nil
	}
	for _, n := range names {
		path := n
		if !filepath.IsAbs(n) {
			var err error
			if path, err = findTool(n); err != nil {
				return nil, err
			}
		}
		if err := add(path); err != nil {
			return nil, err
		}
		for _, dir := range plugins[n] {
			more, _ := filepath.Glob(dir + "/*.so")
			for _, p := range more {
				if err := add(p); err != nil {
					return nil, err
				}
			}
		}
	}
	// pthread_cancel and pthread_exit load it by name.
	if l, ok := findLibrary("libgcc_s.so.1", dirs, elf.EM_X86_64); ok && len(names) > 0 {
		files[inUsr(l)] = l
	}
	return files, nil
}

// udevRules are the rules of block devices; those a system lacks are left out.
var udevRules = []string{
	"50-udev-default", "55-dm", "60-block", "60-persistent-storage", "60-persistent-storage-dm", "60-multipath",
	"63-md-raid-arrays", "64-md-raid-assembly", "80-drivers", "95-dm-notify",
}

// udev is the layer with the device manager, its helpers and rules.
func (c layerCache) udev() (string, error) {
	names := []string{"udevadm"}
	for _, p := range []string{"/usr/lib/udev/*_id", "/lib/udev/*_id"} {
		more, _ := filepath.Glob(p)
		names = append(names, more...)
		if len(more) > 0 {
			break
		}
	}
	files, err := toolFiles(names)
	if err != nil {
		return "", err
	}
	for _, r := range udevRules {
		for _, d := range []string{"/usr/lib/udev/rules.d/", "/lib/udev/rules.d/"} {
			if _, err := os.Stat(d + r + ".rules"); err == nil {
				files["usr/lib/udev/rules.d/"+r+".rules"] = d + r + ".rules"
				break
			}
		}
	}
	k := newKey("udev")
	for _, to := range slices.Sorted(maps.Keys(files)) {
		k.add(to)
		if err := k.file(files[to]); err != nil {
			return "", err
		}
	}
	return c.make("udev", k, func(a archive) error {
		for to, from := range files {
			a.copy(to, from)
		}
		a.symlink("usr/lib/systemd-udevd", "../bin/udevadm") // the daemon is udevadm by another name
		return nil
	})
}

// modules is the layer with kernel modules and what they depend on, unpacked
// because unpacking in the guest is slow. Names the kernel does not have are
// left out: they differ between kernels, and a missing one shows when it is
// loaded.
func (c layerCache) modules(ctx context.Context, kern Kernel, names []string) (string, error) {
	names = slices.Compact(slices.Sorted(slices.Values(names)))
	k := newKey("modules", kern.Release, strings.Join(names, " "))
	if err := k.file(filepath.Join(kern.Modules, "modules.dep")); err != nil {
		return "", err
	}
	return c.make("modules", k, func(a archive) error {
		root, err := os.MkdirTemp(c.dir, ".modules-*")
		if err != nil {
			return err
		}
		defer os.RemoveAll(root)
		dst := filepath.Join(root, "lib", "modules", kern.Release)
		files, err := moduleFiles(kern.Modules, names)
		if err != nil {
			return err
		}
		for _, f := range files {
			if err := unpackModule(ctx, filepath.Join(kern.Modules, f), dst, f); err != nil {
				return err
			}
		}
		// Kernels of 7.2 and newer come without some of these.
		for _, n := range []string{"modules.order", "modules.builtin", "modules.builtin.modinfo"} {
			b, err := os.ReadFile(filepath.Join(kern.Modules, n))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(dst, n), b, 0o644)
			}
			if err != nil {
				return err
			}
		}
		if err := depmod(ctx, root, kern.Release); err != nil {
			return err
		}
		if err := a.addTree("usr/lib/modules", filepath.Join(root, "lib", "modules")); err != nil {
			return err
		}
		// The files must be read before root goes away.
		for p, e := range a {
			if e.from == "" {
				continue
			}
			if e.data, err = os.ReadFile(e.from); err != nil {
				return err
			}
			e.from, e.mode = "", 0o644
			a[p] = e
		}
		return nil
	})
}

// moduleFiles resolves names to files below dir by modules.dep.
func moduleFiles(dir string, names []string) ([]string, error) {
	b, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, err
	}
	deps := map[string][]string{} // name -> its file and those it needs
	for line := range strings.Lines(string(b)) {
		file, rest, ok := strings.Cut(line, ":")
		if ok {
			deps[moduleName(file)] = append([]string{file}, strings.Fields(rest)...)
		}
	}
	if len(deps) == 0 {
		return nil, fmt.Errorf("%s/modules.dep lists no module", dir)
	}
	set := map[string]bool{}
	for _, n := range names {
		for _, f := range deps[moduleName(n)] {
			set[f] = true
		}
	}
	return slices.Sorted(maps.Keys(set)), nil
}

// moduleName is a module's name as the kernel shows it, from its file or from
// how people write it.
func moduleName(file string) string {
	n := filepath.Base(file)
	if i := strings.Index(n, ".ko"); i >= 0 {
		n = n[:i]
	}
	return strings.ReplaceAll(n, "-", "_")
}

func unpackModule(ctx context.Context, from, dir, rel string) error {
	to := filepath.Join(dir, rel)
	packing := ""
	if ext := filepath.Ext(rel); ext != ".ko" {
		packing = ext
		to = strings.TrimSuffix(to, ext)
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	switch packing {
	case "":
	case ".xz":
		b, err = filter(ctx, b, "xz", "-dc")
	case ".zst":
		b, err = filter(ctx, b, "zstd", "-dcq")
	case ".gz":
		b, err = gunzip(b)
	default:
		err = errors.New("unknown packing")
	}
	if err != nil {
		return fmt.Errorf("unpack %s: %w", from, err)
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o644)
}

// filter runs a program over b.
func filter(ctx context.Context, b []byte, name string, args ...string) ([]byte, error) {
	tool, err := findTool(name)
	if err != nil {
		return nil, err
	}
	c := exec.CommandContext(ctx, tool, args...)
	c.Stdin = bytes.NewReader(b)
	return c.Output()
}

func gunzip(b []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	r.Multistream(false) // what follows in a vmlinuz is no gzip
	return io.ReadAll(r)
}

func depmod(ctx context.Context, root, release string) error {
	tool, err := findTool("depmod")
	if err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, tool, "-b", root, release).CombinedOutput(); err != nil {
		return fmt.Errorf("depmod %s: %w: %s", release, err, bytes.TrimSpace(out))
	}
	return nil
}

// initrd joins layers into one file without a name; later layers win.
func initrd(dir string, layers []string, last archive) (*os.File, int64, error) {
	f, err := os.CreateTemp(dir, ".initrd-*")
	if err != nil {
		return nil, 0, err
	}
	os.Remove(f.Name())
	fail := func(err error) (*os.File, int64, error) {
		f.Close()
		return nil, 0, fmt.Errorf("write initramfs: %w", err)
	}
	for _, l := range layers {
		in, err := os.Open(l)
		if err != nil {
			return fail(err)
		}
		_, err = io.Copy(f, in)
		in.Close()
		if err != nil {
			return fail(err)
		}
	}
	if err := last.writeTo(f); err != nil {
		return fail(err)
	}
	size, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return fail(err)
	}
	return f, size, nil
}
