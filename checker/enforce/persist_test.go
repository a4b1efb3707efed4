package enforce

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const ruleText = "# 90-quirkcheck.rules\n# Written by quirkcheck test\nACTION==\"add\"\n"

func TestInstallRule(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "etc/udev/rules.d")
	path, err := InstallRule(dir, ruleText)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != ruleText {
		t.Errorf("%q", got)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v", info.Mode())
	}
	if _, err := InstallRule(dir, ruleText+"# more\n"); err != nil {
		t.Errorf("our own file is not replaced: %v", err)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, ".*")); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
	if _, err := InstallRule(dir, "ACTION==\"add\"\n"); err == nil {
		t.Error("rules without our mark were installed")
	}
	if _, removed, err := RemoveRule(dir); err != nil || !removed {
		t.Errorf("removed %v, %v", removed, err)
	}
	if _, removed, err := RemoveRule(dir); err != nil || removed {
		t.Errorf("a second time: removed %v, %v", removed, err)
	}
}

func TestAForeignRuleFileIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, RuleFile)
	if err := os.WriteFile(path, []byte("# theirs\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := InstallRule(dir, ruleText); !errors.Is(err, ErrForeignRule) {
		t.Errorf("install: %v", err)
	}
	if _, _, err := RemoveRule(dir); !errors.Is(err, ErrForeignRule) {
		t.Errorf("remove: %v", err)
	}
	if got, _ := os.ReadFile(path); string(got) != "# theirs\n" {
		t.Errorf("changed to %q", got)
	}
}

func TestReadRule(t *testing.T) {
	const path = "/etc/udev/rules.d/90-quirkcheck.rules"
	for name, c := range map[string]struct {
		out string
		ok  bool
	}{
		"read":            {"Reading rules file: /etc/udev/rules.d/90-quirkcheck.rules\n", true},
		"read by a link":  {"Reading rules file: /p/rules/90-quirkcheck.rules\n", true},
		"applied":         {"sda: /etc/udev/rules.d/90-quirkcheck.rules:30 ATTR writing '512'\n", true},
		"not read":        {"Reading rules file: /etc/udev/rules.d/60-block.rules\n", false},
		"complained of":   {"Reading rules file: /etc/udev/rules.d/90-quirkcheck.rules\n/etc/udev/rules.d/90-quirkcheck.rules:3 Invalid key 'ATTRX'\n", false},
		"nothing at all":  {"", false},
		"others complain": {"Reading rules file: /etc/udev/rules.d/90-quirkcheck.rules\n/etc/udev/rules.d/80-x.rules:3 Invalid key\n", true},
	} {
		if err := readRule(c.out, path); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSameRules(t *testing.T) {
	if !SameRules(ruleText, "# other version, other disk\n\nACTION==\"add\"") {
		t.Error("comments count")
	}
	if SameRules(ruleText, ruleText+"ATTR{x}=\"1\"\n") {
		t.Error("another rule is the same")
	}
}

func TestOtherSetters(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"etc/udev/rules.d/60-vendor.rules":     "# max_sectors_kb\nACTION==\"add\", ATTR{queue/max_sectors_kb}=\"1024\"\n",
		"usr/lib/udev/rules.d/99-late.rules":   "\nATTR{queue/max_sectors_kb}=\"4096\"\n",
		"etc/udev/rules.d/" + RuleFile:         "ATTR{queue/max_sectors_kb}=\"512\"\n",
		"etc/multipath.conf":                   "devices {\n device {\n  max_sectors_kb 1024\n }\n}\n",
		"etc/tuned/mine/tuned.conf":            "[disk]\nmax_sectors_kb=2048\n",
		"etc/udev/rules.d/70-unrelated.rules":  "ATTR{queue/scheduler}=\"none\"\n",
		"etc/udev/rules.d/95-nothing.disabled": "max_sectors_kb\n",
	} {
		p := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	for _, s := range OtherSetters(root) {
		when := "before"
		if s.After {
			when = "after"
		}
		got = append(got, s.File+" "+when)
	}
	want := []string{"/etc/udev/rules.d/60-vendor.rules before", "/usr/lib/udev/rules.d/99-late.rules after", "/etc/multipath.conf after", "/etc/tuned/mine/tuned.conf after"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestInitrds(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"boot/initrd.img-6.1", "boot/initrd.img-6.12", "boot/initrd.img-6.1.old", "boot/vmlinuz-6.1", "var/lib/kdump/initrd.img-6.1"} {
		p := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	images := Initrds(root)
	if len(images) != 3 {
		t.Fatalf("%v", images)
	}
	lines := InitrdsWithoutRule(t.Context(), images, func(_ context.Context, image string) (string, error) {
		switch filepath.Base(image) {
		case "initrd.img-6.12":
			return "etc/udev/rules.d/" + RuleFile + "\n", nil
		case "initrd.img-6.1":
			if strings.Contains(image, "kdump") {
				return "", errors.New("broken")
			}
		}
		return "etc/udev/rules.d/60-block.rules\n", nil
	})
	if len(lines) != 2 || !strings.Contains(lines[0], "does not carry") || !strings.Contains(lines[1], "could not be looked into") {
		t.Errorf("%q", lines)
	}
}
