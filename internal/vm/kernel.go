package vm

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Kernel is an unpacked kernel package.
type Kernel struct {
	Release string // uname -r, "6.1.0-50-amd64"
	Package string // version of the package, "6.1.176-1", which holds the upstream point release
	Image   string // ELF kernel
	Modules string // folder with modules.dep
}

// A KernelSpec says which kernel to fetch.
type KernelSpec struct {
	// Name names it in tests and in the cache.
	Name string
	// Series selects the newest release that starts so, "6.12."; empty
	// follows the package linux-image-amd64.
	Series string
	// Suites are the Debian suites to look in, the first that has one wins;
	// none means those the system itself uses.
	Suites []string
}

// StockKernel is the kernel of the running system's suite.
func StockKernel() KernelSpec { return KernelSpec{Name: "stock"} }

// Kernels is the matrix of series that tests run on, oldest first. What the
// suites no longer offer is reported by FetchKernel as missing.
func Kernels() []KernelSpec {
	return []KernelSpec{
		{"5.10", "5.10.", []string{"bullseye"}},
		{"6.1", "6.1.", []string{"bookworm"}},
		{"6.12", "6.12.", []string{"trixie", "bookworm-backports"}},
		{"6.16", "6.16.", []string{"trixie-backports"}},
		{"6.18", "6.18.", []string{"trixie-backports", "sid"}},
		{"7.x", "7.", []string{"trixie-backports", "sid"}},
	}
}

// kernelAge is how long a fetched kernel is used before the suite is asked
// again for a newer one.
const kernelAge = 14 * 24 * time.Hour

// FetchKernel returns a kernel from the cache, or downloads it with apt and
// unpacks it there; nothing is installed. It takes minutes the first time. A
// kernel that no suite offers is a *MissingError, as are the host's missing
// programs.
//
// QUIRKCHECK_VM_REFRESH=1 asks the suites again even when one is cached.
func FetchKernel(ctx context.Context, spec KernelSpec) (Kernel, error) {
	cache, err := cacheDir()
	if err != nil {
		return Kernel{}, err
	}
	dir := filepath.Join(cache, "kernels")
	unlock, err := lock(dir, spec.Name)
	if err != nil {
		return Kernel{}, err
	}
	defer unlock()
	old, age, oldErr := readKernel(dir, spec)
	if oldErr == nil && age < kernelAge && os.Getenv("QUIRKCHECK_VM_REFRESH") != "1" {
		return old, nil
	}
	k, err := fetchKernel(ctx, dir, spec)
	var missing *MissingError
	if err != nil && oldErr == nil && !errors.As(err, &missing) && ctx.Err() == nil {
		return old, nil // the mirror is away; what we have is still good
	}
	if err != nil {
		return Kernel{}, fmt.Errorf("fetch kernel %s: %w", spec.Name, err)
	}
	b, err := json.Marshal(k)
	if err != nil {
		return Kernel{}, err
	}
	tmp := filepath.Join(dir, "."+spec.Name+".json")
	if err := os.WriteFile(tmp, b, 0o644); err != nil {
		return Kernel{}, err
	}
	if err := os.Rename(tmp, filepath.Join(dir, spec.Name+".json")); err != nil {
		return Kernel{}, err
	}
	pruneKernels(dir)
	return k, nil
}

// pruneKernels removes the kernels that a newer one replaced a while ago. Half
// a gigabyte each, they are not kept for long; one that a test of another
// process just boots is read by then.
func pruneKernels(dir string) {
	records, _ := filepath.Glob(filepath.Join(dir, "*.json"))
	used := ""
	for _, r := range records {
		b, err := os.ReadFile(r)
		if err != nil {
			return
		}
		used += string(b)
	}
	halves, _ := filepath.Glob(filepath.Join(dir, ".new-*")) // of runs that were killed
	for _, h := range halves {
		if st, err := os.Stat(h); err == nil && time.Since(st.ModTime()) > 24*time.Hour {
			os.RemoveAll(h)
		}
	}
	trees, _ := filepath.Glob(filepath.Join(dir, "*", "vmlinux"))
	for _, t := range trees {
		st, err := os.Stat(t)
		if err == nil && !strings.Contains(used, strconv.Quote(t)) && time.Since(st.ModTime()) > kernelAge {
			os.RemoveAll(filepath.Dir(t))
		}
	}
}

func readKernel(dir string, spec KernelSpec) (Kernel, time.Duration, error) {
	var k Kernel
	path := filepath.Join(dir, spec.Name+".json")
	st, err := os.Stat(path)
	if err != nil {
		return k, 0, err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return k, 0, err
	}
	if err := json.Unmarshal(b, &k); err != nil {
		return k, 0, err
	}
	for _, p := range []string{k.Image, filepath.Join(k.Modules, "modules.dep")} {
		if _, err := os.Stat(p); err != nil {
			return k, 0, err
		}
	}
	return k, time.Since(st.ModTime()), nil
}

// parts are the packages a kernel may be split into; from 7.2 on the
// linux-image package only depends on the others.
var parts = regexp.MustCompile(`^linux-(image|binary|modules)-`)

func fetchKernel(ctx context.Context, dir string, spec KernelSpec) (Kernel, error) {
	suites := spec.Suites
	if len(suites) == 0 {
		suites = []string{""}
	}
	var why error
	for _, s := range suites {
		a, err := newApt(ctx, dir, s)
		if err != nil {
			why = errors.Join(why, err)
			continue
		}
		pkg, err := a.newest(ctx, spec.Series)
		if err != nil {
			why = errors.Join(why, err)
			continue
		}
		return a.unpack(ctx, dir, pkg)
	}
	// A suite that went away is as good as a kernel that did; a mirror that
	// does not answer at all is not.
	var missing *MissingError
	if why == nil || errors.As(why, &missing) {
		return Kernel{}, &MissingError{What: "Linux " + strings.TrimSuffix(spec.Series, "."), Err: why}
	}
	return Kernel{}, why
}

// apt is a private configuration of apt: own lists and cache, no locks of the
// system's, and sources with the system's own mirror.
type apt struct {
	dir  string
	name string // suite, for messages
}

// listAge is how long the lists of a suite are good.
const listAge = 12 * time.Hour

func newApt(ctx context.Context, cache, suite string) (*apt, error) {
	for _, t := range []string{"apt-get", "apt-cache", "dpkg"} {
		if _, err := findTool(t); err != nil {
			return nil, err
		}
	}
	a := &apt{dir: filepath.Join(cache, "apt", cmpOr(suite, "system")), name: cmpOr(suite, "the system's suites")}
	sources, err := systemSources()
	if err != nil {
		return nil, err
	}
	text := ""
	if suite == "" {
		for _, s := range ofRelease(sources, codename()) {
			text += s.String() + "\n"
		}
	} else {
		main, ok := mainSource(sources, codename())
		if !ok {
			return nil, &MissingError{What: "a Debian archive in the system's apt sources"}
		}
		main.suite, main.components = suite, []string{"main"}
		text = main.String() + "\n"
	}
	for _, d := range []string{"lists/partial", "cache/archives/partial", "empty.d"} {
		if err := os.MkdirAll(filepath.Join(a.dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	unlock, err := lock(a.dir, "apt")
	if err != nil {
		return nil, err
	}
	defer unlock()
	stamp := filepath.Join(a.dir, "sources.list")
	if st, err := os.Stat(filepath.Join(a.dir, "updated")); err == nil && time.Since(st.ModTime()) < listAge && os.Getenv("QUIRKCHECK_VM_REFRESH") != "1" {
		if b, err := os.ReadFile(stamp); err == nil && string(b) == text {
			return a, nil
		}
	}
	if err := os.WriteFile(stamp, []byte(text), 0o644); err != nil {
		return nil, err
	}
	if out, err := a.cmd(ctx, "apt-get", "update").CombinedOutput(); err != nil {
		if gone.Match(out) {
			err = &MissingError{What: "Debian suite " + a.name, Err: err}
		}
		return nil, fmt.Errorf("apt-get update for %s: %w: %s", a.name, err, lastLines(string(out), 3))
	}
	return a, os.WriteFile(filepath.Join(a.dir, "updated"), nil, 0o644)
}

// gone is how apt says that a mirror answered and has no such suite.
var gone = regexp.MustCompile(`404 +Not Found|does not have a Release file|is no longer signed`)

func cmpOr(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func (a *apt) cmd(ctx context.Context, tool string, args ...string) *exec.Cmd {
	opt := []string{
		"-q",
		"-o", "Dir::State::lists=" + filepath.Join(a.dir, "lists"),
		"-o", "Dir::Cache=" + filepath.Join(a.dir, "cache"),
		"-o", "Dir::Etc::sourcelist=" + filepath.Join(a.dir, "sources.list"),
		"-o", "Dir::Etc::sourceparts=" + filepath.Join(a.dir, "empty.d"),
		"-o", "Dir::Etc::preferences=/dev/null", "-o", "Dir::Etc::preferencesparts=" + filepath.Join(a.dir, "empty.d"),
		"-o", "Dir::State::status=/dev/null",
		"-o", "Debug::NoLocking=1",
		"-o", "APT::Sandbox::User=", // the cache need not be open to user _apt
		"-o", "APT::Architecture=amd64", "-o", "APT::Architectures::=amd64",
		"-o", "Acquire::Languages=none",
		"-o", "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
		"-o", "Acquire::IndexTargets::deb::DEP-11-icons::DefaultEnabled=false",
		"-o", "Acquire::IndexTargets::deb::DEP-11-icons-small::DefaultEnabled=false",
		"-o", "Acquire::Check-Valid-Until=false", // old suites are frozen
		"-o", "Acquire::Retries=2",
	}
	c := exec.CommandContext(ctx, tool, append(opt, args...)...)
	c.Env = append(os.Environ(), "LC_ALL=C")
	return c
}

// newest returns the name of the newest image package of a series, or of what
// linux-image-amd64 depends on.
func (a *apt) newest(ctx context.Context, series string) (string, error) {
	if series == "" {
		p, err := a.show(ctx, "linux-image-amd64")
		if err != nil {
			return "", err
		}
		for _, d := range p.depends {
			if strings.HasPrefix(d, "linux-image-") {
				return d, nil
			}
		}
		return "", &MissingError{What: "a dependency of linux-image-amd64 in " + a.name}
	}
	out, err := a.cmd(ctx, "apt-cache", "pkgnames", "linux-image-"+series).Output()
	if err != nil {
		return "", fmt.Errorf("apt-cache pkgnames: %w", err)
	}
	// Not the cloud and rt flavours, nor the unsigned twins.
	plain := regexp.MustCompile(`^linux-image-` + regexp.QuoteMeta(series) + `[0-9.]*(-[0-9]+|\+[a-z0-9.]+)?-amd64$`)
	names := slices.DeleteFunc(strings.Fields(string(out)), func(n string) bool { return !plain.MatchString(n) })
	if len(names) == 0 {
		return "", &MissingError{What: "linux-image-" + series + "* in " + a.name}
	}
	return slices.MaxFunc(names, compareNatural), nil
}

// compareNatural orders names with numbers in them by the numbers.
func compareNatural(a, b string) int {
	digits := func(s string) int {
		i := 0
		for i < len(s) && s[i] >= '0' && s[i] <= '9' {
			i++
		}
		return i
	}
	for a != "" && b != "" {
		if m, n := digits(a), digits(b); m > 0 && n > 0 {
			x, y := strings.TrimLeft(a[:m], "0"), strings.TrimLeft(b[:n], "0")
			if len(x) != len(y) {
				return len(x) - len(y)
			}
			if c := strings.Compare(x, y); c != 0 {
				return c
			}
			a, b = a[m:], b[n:]
			continue
		}
		if a[0] != b[0] {
			return int(a[0]) - int(b[0])
		}
		a, b = a[1:], b[1:]
	}
	return len(a) - len(b)
}

type debianPackage struct {
	version string
	depends []string // names only
}

func (a *apt) show(ctx context.Context, name string) (debianPackage, error) {
	out, err := a.cmd(ctx, "apt-cache", "show", "--no-all-versions", name).Output()
	if err != nil {
		return debianPackage{}, &MissingError{What: "package " + name + " in " + a.name, Err: err}
	}
	var p debianPackage
	for line := range strings.Lines(string(out)) {
		field, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		switch field {
		case "Version":
			p.version = value
		case "Depends":
			for d := range strings.SplitSeq(value, ", ") {
				d, _, _ = strings.Cut(d, " ")
				p.depends = append(p.depends, d)
			}
		}
	}
	return p, nil
}

// unpack downloads an image package, with the parts it is split into, and
// unpacks them below dir.
func (a *apt) unpack(ctx context.Context, dir, pkg string) (Kernel, error) {
	p, err := a.show(ctx, pkg)
	if err != nil {
		return Kernel{}, err
	}
	k := Kernel{Release: strings.TrimPrefix(pkg, "linux-image-"), Package: p.version}
	final := filepath.Join(dir, strings.NewReplacer("/", "_", ":", "_").Replace(k.Release+"_"+k.Package))
	at := func(root string) Kernel {
		k := k
		k.Image = filepath.Join(root, "vmlinux")
		k.Modules = filepath.Join(root, "lib", "modules", k.Release)
		return k
	}
	if _, err := os.Stat(at(final).Image); err == nil {
		return at(final), nil // another spec fetched it
	}
	root, err := os.MkdirTemp(dir, ".new-*")
	if err != nil {
		return Kernel{}, err
	}
	defer os.RemoveAll(root)
	names := []string{pkg}
	for _, d := range p.depends {
		if parts.MatchString(d) && !slices.Contains(names, d) {
			names = append(names, d)
		}
	}
	c := a.cmd(ctx, "apt-get", append([]string{"download"}, names...)...)
	c.Dir = root
	if out, err := c.CombinedOutput(); err != nil {
		return Kernel{}, fmt.Errorf("apt-get download %s: %w: %s", pkg, err, lastLines(string(out), 3))
	}
	debs, err := filepath.Glob(filepath.Join(root, "*.deb"))
	if err != nil || len(debs) == 0 {
		return Kernel{}, fmt.Errorf("apt-get download %s: no package came", pkg)
	}
	for _, d := range debs {
		if out, err := exec.CommandContext(ctx, "dpkg", "-x", d, root).CombinedOutput(); err != nil {
			return Kernel{}, fmt.Errorf("dpkg -x %s: %w: %s", filepath.Base(d), err, bytes.TrimSpace(out))
		}
		if err := os.Remove(d); err != nil {
			return Kernel{}, err
		}
	}
	if err := settle(ctx, root, k.Release); err != nil {
		return Kernel{}, err
	}
	if err := os.Rename(root, final); err != nil {
		if _, e := os.Stat(at(final).Image); e != nil { // not another run that was faster
			return Kernel{}, err
		}
	}
	return at(final), os.Chmod(final, 0o755)
}

// settle brings an unpacked tree into one form: vmlinux at the top, modules
// with modules.dep under lib/modules.
func settle(ctx context.Context, root, release string) error {
	// From 6.12 on modules are under usr/lib only.
	if _, err := os.Lstat(filepath.Join(root, "lib")); errors.Is(err, fs.ErrNotExist) {
		if err := os.Symlink("usr/lib", filepath.Join(root, "lib")); err != nil {
			return err
		}
	}
	var kern []byte
	err := error(&MissingError{What: "an image in the package of " + release})
	for _, image := range []string{"boot/vmlinuz-" + release, "usr/lib/modules/" + release + "/vmlinuz"} {
		image = filepath.Join(root, image)
		if _, e := os.Stat(image); e == nil {
			kern, err = unpackKernel(ctx, image)
			break
		}
	}
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "vmlinux"), kern, 0o644); err != nil {
		return err
	}
	// The package's own script would run it at installation.
	return depmod(ctx, root, release)
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
