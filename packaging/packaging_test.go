package packaging

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quirkcheck/quirkcheck/internal/sysfstree"
)

// scratch is removed when all tests are done.
var scratch string

func TestMain(m *testing.M) {
	var err error
	if scratch, err = os.MkdirTemp("", "quirkcheck-packaging-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	status := m.Run()
	os.RemoveAll(scratch)
	os.Exit(status)
}

// need skips a test for lack of a program, and fails it in CI.
func need(t *testing.T, program, debianPackage string) string {
	t.Helper()
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin") {
		path := filepath.Join(dir, program)
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path
		}
	}
	lack(t, fmt.Sprintf("%s is not installed (Debian package %s)", program, debianPackage))
	return ""
}

// lack ends a test for lack of something.
func lack(t *testing.T, what string) {
	t.Helper()
	if ci := os.Getenv("CI"); ci != "" && ci != "false" && ci != "0" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// run runs a program that may take a while, and returns what it printed.
func run(t *testing.T, env []string, args ...string) (out string, status int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = time.Second
	b, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, b)
	}
	return string(b), cmd.ProcessState.ExitCode()
}

// must is run for what has to end well.
func must(t *testing.T, env []string, args ...string) string {
	t.Helper()
	out, status := run(t, env, args...)
	if status != 0 {
		t.Fatalf("%s: status %d\n%s", strings.Join(args, " "), status, out)
	}
	return out
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func writeFile(t *testing.T, path, text string, perm fs.FileMode) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), perm); err != nil {
		t.Fatal(err)
	}
	return path
}

var build = sync.OnceValues(func() (string, error) {
	path := filepath.Join(scratch, "quirkcheck")
	out, err := exec.Command("go", "build", "-buildvcs=false", "-o", path, "github.com/quirkcheck/quirkcheck/cmd/quirkcheck").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build ./cmd/quirkcheck: %w\n%s", err, out)
	}
	return path, nil
})

// program builds quirkcheck, once for all tests.
func program(t *testing.T) string {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// machine makes the tree of a server with four disks. Unless healthy, sdb is an
// ST380013AS with firmware 3.20 at 4096 KiB.
func machine(t *testing.T, healthy bool) string {
	t.Helper()
	tree := t.TempDir()
	if err := sysfstree.Write(tree, sysfstree.Options{Disks: 4, Adapters: 1, Healthy: healthy}); err != nil {
		t.Fatal(err)
	}
	return tree
}

// limits are the values of max_sectors_kb of a tree's disks, in order.
func limits(t *testing.T, tree string) string {
	t.Helper()
	var all []string
	for _, name := range []string{"sda", "sdb", "sdc", "sdd"} {
		all = append(all, strings.TrimSpace(readFile(t, filepath.Join(tree, "sys/block", name, "queue/max_sectors_kb"))))
	}
	return strings.Join(all, " ")
}

// ruleFile is where --persist puts its rule, below the root.
const ruleFile = "etc/udev/rules.d/90-quirkcheck.rules"

// realRule lets quirkcheck make the rule for the tree's ST380013AS.
func realRule(t *testing.T) string {
	t.Helper()
	tree := machine(t, false)
	must(t, nil, program(t), "enforce", "--apply", "--persist", "--sysroot", tree, "--state", filepath.Join(t.TempDir(), "state.db"))
	return readFile(t, filepath.Join(tree, ruleFile))
}

var shellScripts = []string{"initramfs-tools/hooks/quirkcheck", "dracut/90quirkcheck/module-setup.sh"}

// example extracts the shell script of docs/provisioning.md.
func example(t *testing.T) string {
	t.Helper()
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(readFile(t, "../docs/provisioning.md"), -1)
	if len(blocks) != 1 {
		t.Fatalf("docs/provisioning.md has %d sh blocks, want the one example", len(blocks))
	}
	return writeFile(t, filepath.Join(t.TempDir(), "limits.sh"), blocks[0][1], 0o755)
}

func TestShellParses(t *testing.T) {
	for _, s := range append([]string{example(t)}, shellScripts...) {
		shell := "sh"
		if strings.HasPrefix(readFile(t, s), "#!/bin/bash") {
			shell = "bash"
		}
		must(t, nil, shell, "-n", s)
	}
}

func TestShellcheck(t *testing.T) {
	shellcheck := need(t, "shellcheck", "shellcheck")
	must(t, nil, append([]string{shellcheck, example(t)}, shellScripts...)...)
}

// TestHooksAreExecutable: initramfs-tools passes over a hook that is not.
func TestHooksAreExecutable(t *testing.T) {
	for _, s := range shellScripts {
		info, err := os.Stat(s)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o755 {
			t.Errorf("%s has mode %o, want 755", s, info.Mode().Perm())
		}
	}
}

// TestReadmeListsEveryFile: README.md says where each file goes.
func TestReadmeListsEveryFile(t *testing.T) {
	readme := readFile(t, "README.md")
	n := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == "ansible/roles/quirkcheck" {
			path = "ansible/roles/quirkcheck`" // listed as one
			n++
			if !strings.Contains(readme, path) {
				t.Errorf("README.md does not name %s", path)
			}
			return fs.SkipDir
		}
		if d.IsDir() || strings.HasSuffix(path, ".go") || path == "README.md" {
			return nil
		}
		n++
		if !strings.Contains(readme, "`"+path+"`") {
			t.Errorf("README.md does not name %s", path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n < 8 {
		t.Errorf("found %d files", n)
	}
}

func units(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("systemd/*")
	if err != nil || len(files) != 3 {
		t.Fatalf("systemd/ has %d files, want 3 (%v)", len(files), err)
	}
	return files
}

// unitsWithStub copies the units, with a stub for /usr/bin/quirkcheck, as
// systemd-analyze wants to see the programs it finds in them.
func unitsWithStub(t *testing.T, edit func(text string) string) (paths []string) {
	t.Helper()
	dir := t.TempDir()
	stub := writeFile(t, filepath.Join(dir, "quirkcheck"), "#!/bin/sh\n", 0o755)
	for _, u := range units(t) {
		text := strings.ReplaceAll(readFile(t, u), "/usr/bin/quirkcheck", stub)
		name := strings.Replace(filepath.Base(u), "@.", "@sdb.", 1)
		paths = append(paths, writeFile(t, filepath.Join(dir, name), edit(text), 0o644))
	}
	return paths
}

func TestUnitsVerify(t *testing.T) {
	analyze := need(t, "systemd-analyze", "systemd")
	need(t, "udevadm", "udev")
	verify := func(edit func(string) string) (string, int) {
		paths := unitsWithStub(t, edit)
		// Without the folder in the path the timer does not find its service.
		return run(t, []string{"SYSTEMD_UNIT_PATH=" + filepath.Dir(paths[0]) + ":"},
			append([]string{analyze, "verify", "--man=no", "--recursive-errors=no"}, paths...)...)
	}
	out, status := verify(func(s string) string { return s })
	if strings.Contains(out, "Failed to initialize manager") || strings.Contains(out, "Failed to setup") {
		lack(t, "systemd-analyze verify does not run here: "+out)
	}
	if status != 0 || strings.TrimSpace(out) != "" {
		t.Errorf("systemd-analyze verify: status %d\n%s", status, out)
	}
	// That it would say so: a misspelled key.
	out, _ = verify(func(s string) string { return strings.Replace(s, "RestrictRealtime=", "RestrictRealTimes=", 1) })
	if !strings.Contains(out, "RestrictRealTimes") {
		t.Errorf("systemd-analyze verify did not see a misspelled key:\n%s", out)
	}
}

// TestUnitsAreHardened holds the units at what systemd calls "OK".
func TestUnitsAreHardened(t *testing.T) {
	analyze := need(t, "systemd-analyze", "systemd")
	for _, p := range unitsWithStub(t, func(s string) string { return s }) {
		if !strings.HasSuffix(p, ".service") {
			continue
		}
		out, status := run(t, nil, analyze, "security", "--no-pager", "--offline=true", "--threshold=25", p)
		if strings.Contains(out, "nrecognized option") {
			lack(t, "systemd-analyze security --offline needs systemd 250")
		}
		if status != 0 || !strings.Contains(out, "Overall exposure level") {
			t.Errorf("%s: status %d\n%s", filepath.Base(p), status, out)
		}
	}
}

// TestUnitsSayWhatFailed runs the shell lines of ExecStopPost as systemd would.
func TestUnitsSayWhatFailed(t *testing.T) {
	re := regexp.MustCompile(`(?m)^ExecStopPost=/bin/sh -c '([^']*)'`)
	for _, tt := range []struct{ unit, result, status, want string }{
		{"quirkcheck-enforce.service", "success", "0", ""},
		{"quirkcheck-enforce.service", "success", "5", ""},
		{"quirkcheck-enforce.service", "exit-code", "6", "<1>quirkcheck: a transfer limit"},
		{"quirkcheck-enforce.service", "exit-code", "8", "<3>quirkcheck: transfer limits could not be checked (exit-code, status 8)"},
		{"quirkcheck-enforce.service", "timeout", "TERM", "<3>quirkcheck: transfer limits could not be checked (timeout, status TERM)"},
		{"quirkcheck-scan@.service", "success", "0", ""},
		{"quirkcheck-scan@.service", "exit-code", "1", "<1>quirkcheck: /dev/sdb has a known quirk"},
		{"quirkcheck-scan@.service", "exit-code", "2", "<3>quirkcheck: /dev/sdb could not be checked (exit-code, status 2)"},
	} {
		text := strings.ReplaceAll(readFile(t, "systemd/"+tt.unit), "\\\n", " ")
		m := re.FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("%s has no ExecStopPost", tt.unit)
		}
		script := strings.ReplaceAll(m[1], "$$", "$")
		out := must(t, []string{"SERVICE_RESULT=" + tt.result, "EXIT_STATUS=" + tt.status}, "/bin/sh", "-c", script, "sh", "sdb")
		if tt.want == "" && out != "" || !strings.HasPrefix(out, tt.want) {
			t.Errorf("%s after %s %s says %q, want %q", tt.unit, tt.result, tt.status, out, tt.want)
		}
	}
}

// inNamespace runs a script as root with mounts of its own, in which rules is
// /etc/udev/rules.d.
func inNamespace(t *testing.T, env []string, rules, script string) (out string, status int) {
	t.Helper()
	unshare := need(t, "unshare", "util-linux")
	if out, status := run(t, nil, unshare, "--mount", "true"); status != 0 {
		lack(t, "a mount namespace cannot be made here: "+strings.TrimSpace(out))
	}
	return run(t, append(env, "RULES="+rules), unshare, "--mount", "--propagation", "private", "sh", "-euc",
		`mkdir -p /etc/udev/rules.d; mount --bind "$RULES" /etc/udev/rules.d; `+script)
}

// TestScanRuleStartsTheUnit asks udev what it makes of the rule.
func TestScanRuleStartsTheUnit(t *testing.T) {
	udevadm := need(t, "udevadm", "udev")
	var disks []string
	for _, pattern := range []string{"sd*", "vd*", "xvd*", "nvme*"} {
		found, _ := filepath.Glob("/sys/block/" + pattern)
		disks = append(disks, found...)
	}
	if len(disks) == 0 {
		t.Skip("this machine has no disk to ask udev about")
	}
	disk := disks[0]
	rules := t.TempDir()
	writeFile(t, filepath.Join(rules, "91-quirkcheck-scan.rules"), readFile(t, "udev/91-quirkcheck-scan.rules"), 0o644)
	ask := func(action, device, flag string) string {
		// What udevadm test leaves in /run and /dev goes with the namespace.
		out, status := inNamespace(t, []string{"UDEVADM=" + udevadm, "ACTION=" + action, "DEVICE=" + device, "FLAG=" + flag},
			rules, `mount -t tmpfs none /run; mount -t tmpfs none /dev; [ -z "$FLAG" ] || mkdir "$FLAG"; "$UDEVADM" test --action="$ACTION" "$DEVICE" 2>&1`)
		if status != 0 || strings.Contains(out, "91-quirkcheck-scan.rules:") {
			t.Errorf("udevadm test: status %d\n%s", status, out)
		}
		for line := range strings.Lines(out) {
			if wants, ok := strings.CutPrefix(line, "SYSTEMD_WANTS="); ok {
				return strings.TrimSpace(wants)
			}
		}
		return ""
	}
	const flag = "/run/quirkcheck"
	if got, want := ask("add", disk, flag), "quirkcheck-scan@"+filepath.Base(disk)+".service"; got != want {
		t.Errorf("a disk plugged in wants %q, not %q", got, want)
	}
	if got := ask("add", disk, ""); got != "" {
		t.Errorf("a disk of the boot wants %q", got)
	}
	if got := ask("change", disk, flag); got != "" {
		t.Errorf("a change wants %q", got)
	}
	if parts, _ := filepath.Glob(disk + "/" + filepath.Base(disk) + "*"); len(parts) > 0 {
		if got := ask("add", parts[0], flag); got != "" {
			t.Errorf("a partition wants %q", got)
		}
	}
	if _, err := os.Stat("/sys/block/loop0"); err == nil {
		if got := ask("add", "/sys/block/loop0", flag); got != "" {
			t.Errorf("a loop device wants %q", got)
		}
	}
}
