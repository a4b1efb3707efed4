package enforce

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// RuleFile is the name of the udev rule file that --persist installs. It sorts
// behind the rules that name disks and multipath paths (60) and before those
// an administrator puts last (99).
const RuleFile = "90-quirkcheck.rules"

// Folders of udev's rules.
const (
	RulesPermanent = "/etc/udev/rules.d"
	RulesRuntime   = "/run/udev/rules.d"
)

// ownMark stands at the head of a rule file that is ours to replace or remove.
const ownMark = "# Written by quirkcheck "

// ownHead is how far into a file the mark may stand.
const ownHead = 512

// ErrForeignRule marks a rule file of our name that we did not write.
var ErrForeignRule = errors.New("there is a file of that name which quirkcheck did not write")

// InstallRule writes the rule file into dir, whole or not at all: a power cut
// leaves the old one or the new one.
func InstallRule(dir, text string) (path string, err error) {
	path = filepath.Join(dir, RuleFile)
	if !strings.Contains(text[:min(len(text), ownHead)], ownMark) {
		return path, fmt.Errorf("the rules do not say %q at their head", ownMark)
	}
	if err := ours(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return path, err
	}
	tmp, err := os.CreateTemp(dir, "."+RuleFile+".*") // not *.rules: udev does not read it
	if err != nil {
		return path, err
	}
	defer os.Remove(tmp.Name()) // gone already when the rename worked
	_, err = tmp.WriteString(text)
	err = errors.Join(err, tmp.Chmod(0o644), tmp.Sync(), tmp.Close())
	if err != nil {
		return path, err
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return path, err
	}
	return path, syncDir(dir)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func ours(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	head, err := io.ReadAll(io.LimitReader(f, ownHead))
	if err != nil {
		return err
	}
	if !strings.Contains(string(head), ownMark) {
		return fmt.Errorf("%s: %w", path, ErrForeignRule)
	}
	return nil
}

// RemoveRule removes our rule file from dir; none there is no error.
func RemoveRule(dir string) (path string, removed bool, err error) {
	path = filepath.Join(dir, RuleFile)
	switch err := ours(path); {
	case errors.Is(err, fs.ErrNotExist):
		return path, false, nil
	case err != nil:
		return path, false, err
	}
	if err := os.Remove(path); err != nil {
		return path, false, err
	}
	return path, true, syncDir(dir)
}

// ReloadRules makes udevd read the rules again. It triggers nothing: a trigger
// would run the rules of LVM, md and multipath on every disk.
func ReloadRules(ctx context.Context) error {
	_, err := udevadm(ctx, "control", "--reload")
	return err
}

// ProveRule lets udev read the rules for a device and reports whether it read
// our file without complaint (udevadm test, which triggers nothing).
func ProveRule(ctx context.Context, device, path string) error {
	out, err := udevadm(ctx, "test", "--action=add", "/sys/block/"+device)
	if out == "" && err != nil {
		return err
	}
	return readRule(out, path)
}

var reComplaint = regexp.MustCompile(`(?i)invalid|unknown|failed|ignoring|unexpected`)

// readRule looks at what udevadm test says.
func readRule(out, path string) error {
	read := false
	name := filepath.Base(path) // the folder may be a link, which udev resolves
	for line := range strings.Lines(out) {
		if !strings.Contains(line, name) {
			continue
		}
		if strings.Contains(line, "Reading rules file") {
			read = true
		} else if reComplaint.MatchString(line) {
			return fmt.Errorf("udev complains about the rule: %s", strings.TrimSpace(line))
		}
	}
	if !read && !strings.Contains(out, name+":") {
		return fmt.Errorf("udev did not read %s", path)
	}
	return nil
}

func udevadm(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "udevadm", args...)
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return "", errors.New("udevadm is not installed (Debian package udev)")
	}
	if err != nil {
		err = fmt.Errorf("udevadm %s: %w", args[0], err)
	}
	return string(out), err
}

// SameRules reports whether two rule files do the same: comments name the
// version and the devices of the day and do not count.
func SameRules(a, b string) bool {
	strip := func(text string) string {
		var out strings.Builder
		for line := range strings.Lines(text) {
			if t := strings.TrimSpace(line); t != "" && !strings.HasPrefix(t, "#") {
				out.WriteString(t + "\n")
			}
		}
		return out.String()
	}
	return strip(a) == strip(b)
}

// Setter is somebody else who sets max_sectors_kb.
type Setter struct {
	File string `json:"file"`
	Line int    `json:"line"`
	Text string `json:"text"`
	// After: udev runs it after our rule, so it has the last word.
	After bool `json:"after"`
}

// OtherSetters searches the rules of udev, multipath.conf and tuned's profiles
// below root for lines that set max_sectors_kb.
func OtherSetters(root string) []Setter {
	out := []Setter{}
	root = filepath.Clean(root)
	look := func(file string, after bool) {
		f, err := os.Open(file)
		if err != nil {
			return
		}
		defer f.Close()
		text, err := io.ReadAll(io.LimitReader(f, 1<<20))
		if err != nil {
			return
		}
		n := 0
		for line := range strings.Lines(string(text)) {
			n++
			t := strings.TrimSpace(line)
			if strings.HasPrefix(t, "#") || !strings.Contains(t, "max_sectors_kb") || len(t) > 1000 {
				continue
			}
			out = append(out, Setter{File: "/" + strings.TrimPrefix(strings.TrimPrefix(file, root), "/"), Line: n, Text: t, After: after})
		}
	}
	for _, dir := range []string{"etc/udev/rules.d", "run/udev/rules.d", "usr/local/lib/udev/rules.d", "usr/lib/udev/rules.d", "lib/udev/rules.d"} {
		if dir == "lib/udev/rules.d" {
			if info, err := os.Lstat(filepath.Join(root, "lib")); err == nil && info.Mode()&fs.ModeSymlink != 0 {
				continue // merged /usr: the same files again
			}
		}
		files, _ := filepath.Glob(filepath.Join(root, dir, "*.rules"))
		for _, f := range files {
			if name := filepath.Base(f); name != RuleFile {
				look(f, name > RuleFile)
			}
		}
	}
	for _, pattern := range []string{"etc/multipath.conf", "etc/multipath/conf.d/*.conf", "etc/tuned/*/tuned.conf", "etc/tuned/profiles/*/tuned.conf", "usr/lib/tuned/*/tuned.conf", "usr/lib/tuned/profiles/*/tuned.conf"} {
		files, _ := filepath.Glob(filepath.Join(root, pattern))
		for _, f := range files {
			look(f, true)
		}
	}
	return out
}
