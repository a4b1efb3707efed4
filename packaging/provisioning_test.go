package packaging

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/quirkcheck/quirkcheck/internal/sysfstree"
)

// installer is the machine on which the example of docs/provisioning.md runs:
// quirkcheck works on a tree, chroot only takes note.
type installer struct {
	tree, target, log, chroot string
	env                       []string
}

func newInstaller(t *testing.T, healthy bool, generator string) *installer {
	t.Helper()
	need(t, "jq", "jq")
	dir := t.TempDir()
	i := &installer{tree: machine(t, healthy), target: t.TempDir(), log: filepath.Join(dir, "log"), chroot: filepath.Join(dir, "chroot.log")}
	writeFile(t, i.chroot, "", 0o644)
	writeFile(t, filepath.Join(dir, "bin/quirkcheck"), `#!/bin/sh
case $1 in enforce) set -- "$@" --state "$STATE" ;; esac
exec "$PROGRAM" "$@" --sysroot "$TREE"
`, 0o755)
	writeFile(t, filepath.Join(dir, "bin/chroot"), "#!/bin/sh\necho \"$*\" >>\"$CHROOT_LOG\"\n", 0o755)
	if generator != "" {
		writeFile(t, filepath.Join(i.target, generator), "#!/bin/sh\n", 0o755)
	}
	i.env = []string{"PATH=" + filepath.Join(dir, "bin") + ":" + os.Getenv("PATH"), "PROGRAM=" + program(t), "TREE=" + i.tree,
		"STATE=" + filepath.Join(dir, "state.db"), "LIMITS_LOG=" + i.log, "CHROOT_LOG=" + i.chroot}
	return i
}

type enforced struct {
	Applied bool
	Result  struct {
		Steps []struct{ Device, From, To, After, Outcome string }
	}
	Persisted *struct{ File string }
}

func (i *installer) report(t *testing.T) (e enforced) {
	t.Helper()
	if err := json.Unmarshal([]byte(readFile(t, filepath.Join(i.log, "enforce.json"))), &e); err != nil {
		t.Fatal(err)
	}
	return e
}

// refusal is what enforce prints, with status 6, where a device was refused and
// another did not take its value.
const refusal = `{"plan": {"steps": [{"device": "sdb", "to": "512"}], "satisfied": [], "warnings": [],
	"refused": [{"device": "sdc", "why": "a path of mpatha", "instead": ["lower the map first"]}]},
	"result": {"steps": [{"device": "sdb", "outcome": "clamped", "error": "the kernel kept 1024"}]}, "persisted": null}`

// TestInstallImageExample runs the script of docs/provisioning.md.
func TestInstallImageExample(t *testing.T) {
	script := example(t)
	for _, tt := range []struct{ name, generator, rebuild string }{
		{"initramfs-tools", "usr/sbin/update-initramfs", "update-initramfs -u -k all"},
		{"dracut", "usr/bin/dracut", "dracut --regenerate-all --force"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			i := newInstaller(t, false, tt.generator)
			was := limits(t, i.tree)
			must(t, i.env, "sh", script, "before")
			e := i.report(t)
			if len(e.Result.Steps) != 1 || e.Result.Steps[0].Device != "sdb" || e.Result.Steps[0].From != "4096" ||
				e.Result.Steps[0].To != "512" || e.Result.Steps[0].Outcome != "written" || !e.Applied {
				t.Errorf("the report says %+v", e)
			}
			want := strings.Replace(was, "4096", "512", 1) // sdb is the first of two at 4096
			if got := limits(t, i.tree); got != want {
				t.Errorf("limits are %s, want %s; they were %s", got, want, was)
			}

			must(t, i.env, "sh", script, "after", i.target)
			rule := readFile(t, filepath.Join(i.target, ruleFile))
			if rule != readFile(t, filepath.Join(i.tree, ruleFile)) || !strings.Contains(rule, "ST380013AS") {
				t.Errorf("the target's rule is\n%s", rule)
			}
			if got, want := readFile(t, i.chroot), i.target+" "+tt.rebuild+"\n"; got != want {
				t.Errorf("chroot ran %q, want %q", got, want)
			}
			for _, f := range []string{"scan.json", "enforce.json"} {
				if readFile(t, filepath.Join(i.target, "var/log/quirkcheck", f)) != readFile(t, filepath.Join(i.log, f)) {
					t.Errorf("%s did not come along", f)
				}
			}

			// Once more, as after a failed installation: nothing to set, and
			// the rule is still handed on.
			must(t, i.env, "sh", script, "before")
			if e := i.report(t); len(e.Result.Steps) != 0 || e.Persisted == nil {
				t.Errorf("the second report says %+v", e)
			}
			must(t, i.env, "sh", script, "after", i.target)
		})
	}
	t.Run("healthy machine", func(t *testing.T) {
		i := newInstaller(t, true, "usr/sbin/update-initramfs")
		was := limits(t, i.tree)
		must(t, i.env, "sh", script, "before")
		must(t, i.env, "sh", script, "after", i.target)
		if got := limits(t, i.tree); got != was {
			t.Errorf("limits are %s, were %s", got, was)
		}
		if _, err := os.Stat(filepath.Join(i.target, ruleFile)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a rule in the target: %v", err)
		}
		if got := readFile(t, i.chroot); got != "" {
			t.Errorf("chroot ran %q", got)
		}
	})
	t.Run("a refusal", func(t *testing.T) {
		i := newInstaller(t, false, "")
		stub := writeFile(t, filepath.Join(t.TempDir(), "quirkcheck"), "#!/bin/sh\n[ $1 = scan ] && exit 1\ncat <<'END'\n"+refusal+"\nEND\nexit 6\n", 0o755)
		out, status := run(t, append(i.env, "PROGRAM="+stub), "sh", script, "before")
		if status != 6 || !strings.Contains(out, "sdc: a path of mpatha\n") || !strings.Contains(out, "sdb: clamped the kernel kept 1024\n") {
			t.Errorf("status %d\n%s", status, out)
		}
	})
	t.Run("no disk", func(t *testing.T) {
		i := newInstaller(t, true, "")
		if err := sysfstree.Write(i.tree+"/empty", sysfstree.Options{}); err != nil {
			t.Fatal(err)
		}
		i.env = append(i.env, "TREE="+i.tree+"/empty")
		must(t, i.env, "sh", script, "before")
		must(t, i.env, "sh", script, "after", i.target)
		if _, err := os.Stat(filepath.Join(i.log, "enforce.json")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("enforce ran without a disk: %v", err)
		}
	})
	t.Run("no machine", func(t *testing.T) {
		i := newInstaller(t, true, "")
		if out, status := run(t, append(i.env, "TREE=/nonexistent"), "sh", script, "before"); status != 8 && status != 2 || !strings.Contains(out, "/nonexistent") {
			t.Errorf("status %d\n%s", status, out)
		}
	})
}

var recap = regexp.MustCompile(`(?m)^localhost\s+: ok=\d+\s+changed=(\d+)\s+unreachable=0\s+failed=(\d+)`)

// play runs the example playbook on this machine, with program on a tree.
func play(t *testing.T, program, tree string, args ...string) (out, changed, failed string) {
	t.Helper()
	ansible := need(t, "ansible-playbook", "ansible-core")
	vars, err := json.Marshal(map[string]any{
		"ansible_become": false, "ansible_python_interpreter": "auto_silent",
		"quirkcheck_path": program, "quirkcheck_sysroot": tree, "quirkcheck_state": filepath.Join(tree, "state.db"),
		// Units and hooks go to this machine, so only to see what would be done.
		"quirkcheck_units": slices.Contains(args, "--check"), "quirkcheck_initramfs": slices.Contains(args, "--check"),
	})
	if err != nil {
		t.Fatal(err)
	}
	out, _ = run(t, []string{"ANSIBLE_LOCALHOST_WARNING=0", "ANSIBLE_NOCOLOR=1", "ANSIBLE_PIPELINING=1", "ANSIBLE_HOME=" + t.TempDir(), "ANSIBLE_LOCAL_TEMP=" + t.TempDir(),
		"ANSIBLE_REMOTE_TEMP=" + t.TempDir(), "LC_ALL=C.UTF-8"},
		append([]string{ansible, "-i", "localhost,", "-c", "local", "-e", string(vars), "ansible/playbook.yml"}, args...)...)
	m := recap.FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("ansible-playbook came to no end:\n%s", out)
	}
	return out, m[1], m[2]
}

func TestAnsibleSyntax(t *testing.T) {
	ansible := need(t, "ansible-playbook", "ansible-core")
	must(t, []string{"LC_ALL=C.UTF-8"}, ansible, "-i", "localhost,", "--syntax-check", "ansible/playbook.yml")
	// The tasks that the runs below, in check mode only, go through.
	out := must(t, []string{"LC_ALL=C.UTF-8"}, ansible, "-i", "localhost,", "--list-tasks", "ansible/playbook.yml")
	for _, want := range []string{"Install the units", "Install the hook for initramfs-tools", "Install the module for dracut"} {
		if !strings.Contains(out, want) {
			t.Errorf("no task %q in\n%s", want, out)
		}
	}
}

// TestAnsibleRole: check mode writes nothing and says what it would; the first
// run sets the limit, the second changes nothing.
func TestAnsibleRole(t *testing.T) {
	tree := machine(t, false)
	was := limits(t, tree)
	rule := filepath.Join(tree, ruleFile)

	const timer = "/etc/systemd/system/quirkcheck-enforce.timer" // of this machine
	_, err := os.Stat(timer)
	had := err == nil
	out, changed, failed := play(t, program(t), tree, "--check")
	shows := strings.Contains(out, `"to": "512"`) && (had || strings.Contains(out, "changed: [localhost] => (item=quirkcheck-enforce.timer)"))
	if changed == "0" || failed != "0" || !shows {
		t.Errorf("check mode: changed=%s failed=%s\n%s", changed, failed, out)
	}
	if _, err := os.Stat(timer); err == nil && !had {
		t.Error("check mode installed a unit")
	}
	if _, err := os.Stat(rule); limits(t, tree) != was || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("check mode wrote: limits %s, were %s; rule: %v", limits(t, tree), was, err)
	}

	out, changed, failed = play(t, program(t), tree)
	if changed != "1" || failed != "0" {
		t.Errorf("first run: changed=%s failed=%s\n%s", changed, failed, out)
	}
	if got, want := limits(t, tree), strings.Replace(was, "4096", "512", 1); got != want {
		t.Errorf("limits are %s, want %s", got, want)
	}
	text := readFile(t, rule)

	out, changed, failed = play(t, program(t), tree)
	if changed != "0" || failed != "0" {
		t.Errorf("second run: changed=%s failed=%s\n%s", changed, failed, out)
	}

	// The rule is gone, or of another version: put right, although no value is wrong.
	if err := os.Remove(rule); err != nil {
		t.Fatal(err)
	}
	if out, changed, failed = play(t, program(t), tree); changed != "1" || failed != "0" || readFile(t, rule) != text {
		t.Errorf("rule removed: changed=%s failed=%s\n%s", changed, failed, out)
	}
	writeFile(t, rule, text+"ENV{OLD}=\"1\"\n", 0o644)
	if out, changed, failed = play(t, program(t), tree); changed != "1" || failed != "0" || readFile(t, rule) != text {
		t.Errorf("old rule: changed=%s failed=%s\n%s", changed, failed, out)
	}
}

// TestAnsibleRoleFailsOnARefusal: a device that was refused, or did not take its
// value, fails the play with the reason, after everything else was done.
func TestAnsibleRoleFailsOnARefusal(t *testing.T) {
	stub := writeFile(t, filepath.Join(t.TempDir(), "quirkcheck"), "#!/bin/sh\ncat <<'END'\n"+refusal+"\nEND\nexit 6\n", 0o755)
	out, changed, failed := play(t, stub, t.TempDir())
	if changed != "1" || failed != "1" || !strings.Contains(out, "sdc: refused: a path of mpatha (lower the map first)") ||
		!strings.Contains(out, "sdb: clamped: the kernel kept 1024") {
		t.Errorf("changed=%s failed=%s\n%s", changed, failed, out)
	}
}
