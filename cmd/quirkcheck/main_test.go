package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/quirkcheck/quirkcheck/checker/store"
	"github.com/quirkcheck/quirkcheck/internal/recorded"
	"github.com/quirkcheck/quirkcheck/internal/sysfstree"
	"github.com/quirkcheck/quirkcheck/schema"
)

var update = flag.Bool("update", false, "rewrite the golden files of the scripts")

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"quirkcheck": func() { os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) },
	})
}

// TestScripts runs the transcripts in testdata. Beside testscript's commands
// they know:
//
//	exits N command...        the command ends with exactly this status
//	machine [-healthy] N DIR  writes the tree of a machine with N SCSI disks, of which sdb is affected
//	stacks DIR, kinds DIR     writes the tree of sysfstree.Stacks, or Kinds
//	recorded NAME DIR         writes a tree of internal/recorded
//	poke FILE TEXT            writes TEXT, with Go escapes, to a file
//	same DIR CAPTURE args...  a command says the same of the tree and of its capture
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:           "testdata",
		UpdateScripts: *update,
		Setup: func(env *testscript.Env) error {
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("XDG_CONFIG_HOME", filepath.Join(env.WorkDir, "xdg"))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":   exits,
			"machine": machine,
			"stacks":  byHand("stacks", sysfstree.Stacks),
			"kinds":   byHand("kinds", sysfstree.Kinds),
			"recorded": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) != 2 {
					ts.Fatalf("usage: recorded NAME DIR")
				}
				ts.Check((&sysfstree.Small{MapFS: recorded.FS(t, args[0])}).Write(ts.MkAbs(args[1])))
			},
			"poke": poke,
			"same": same,
		},
	})
}

// byHand writes a machine made by hand to a folder.
func byHand(name string, m func() *sysfstree.Small) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		if neg || len(args) != 1 {
			ts.Fatalf("usage: %s DIR", name)
		}
		ts.Check(m().Write(ts.MkAbs(args[0])))
	}
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits N command...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var ee *exec.ExitError
	switch {
	case errors.As(err, &ee):
		got = ee.ExitCode()
	case err != nil:
		ts.Fatalf("%v", err)
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

func machine(ts *testscript.TestScript, neg bool, args []string) {
	healthy := len(args) > 0 && args[0] == "-healthy"
	if healthy {
		args = args[1:]
	}
	if neg || len(args) != 2 {
		ts.Fatalf("usage: machine [-healthy] N DIR")
	}
	n, err := strconv.Atoi(args[0])
	ts.Check(err)
	ts.Check(sysfstree.Write(ts.MkAbs(args[1]), sysfstree.Options{Disks: n, Adapters: 1, Healthy: healthy}))
}

func poke(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: poke FILE TEXT")
	}
	text, err := strconv.Unquote(`"` + args[1] + `"`)
	ts.Check(err)
	matches, err := filepath.Glob(ts.MkAbs(args[0]))
	ts.Check(err)
	if len(matches) != 1 {
		ts.Fatalf("%s: %d files", args[0], len(matches))
	}
	ts.Check(os.WriteFile(matches[0], []byte(text), 0o644))
}

// same runs a command on a tree and on its capture and compares all that it
// says, but for the time and the names of the two.
func same(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: same DIR CAPTURE command...")
	}
	answer := func(flag, value string) string {
		var out, talk strings.Builder
		status := run(context.Background(), append(slices.Clone(args[2:]), flag, ts.MkAbs(value)), strings.NewReader(""), &out, &talk)
		text := fmt.Sprintf("exit status %d\n%s\n%s", status, out.String(), talk.String())
		return regexp.MustCompile(`"generated_at": *"[^"]*"`).ReplaceAllString(strings.ReplaceAll(text, ts.MkAbs(value), "MACHINE"), `"generated_at": ""`)
	}
	tree, replay := answer("--sysroot", args[0]), answer("--input", args[1])
	if len(tree) < 30 {
		ts.Fatalf("said next to nothing: %s", tree)
	}
	if tree != replay {
		ts.Fatalf("of the tree and of its capture:\n%s", cmp.Diff(tree, replay))
	}
}

func TestEveryCommandHasHelpAndExamples(t *testing.T) {
	root := (&app{}).rootCommand()
	n := 0
	for _, c := range root.Commands() {
		for _, c := range append(c.Commands(), c) {
			if c.Hidden || c.Name() == "completion" || c.Parent().Name() == "completion" || c.HasSubCommands() {
				continue
			}
			n++
			if c.Short == "" || c.Example == "" {
				t.Errorf("%s: no short help or no example", c.CommandPath())
			}
			if strings.HasSuffix(c.Short, ".") {
				t.Errorf("%s: short help ends with a full stop", c.CommandPath())
			}
		}
	}
	if n < 10 {
		t.Fatalf("only %d commands", n)
	}
}

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain":           "plain",
		"\x1b[31mred":     `\x1b[31mred`,
		"tab\tnew\nline":  `tab\x09new\x0aline`,
		"caf\u00e9":       "caf\u00e9",
		"\xff\xfe":        `\xff\xfe`,
		"\u202etxt":       `\u202etxt`,
		"\u009b31m":       `\u009b31m`,
		"del\x7f":         `del\x7f`,
		"nul\x00":         `nul\x00`,
		"zero\u200bwidth": `zero\u200bwidth`,
	} {
		if got := clean(in); got != want {
			t.Errorf("clean(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestEscapeJSON(t *testing.T) {
	in := "{\"a\":\"\u202e\u009b caf\u00e9 \x7f \U000e0001\"}"
	want := `{"a":"\u202e\u009b caf` + "\u00e9" + ` \u007f \udb40\udc01"}`
	if got := string(escapeJSON([]byte(in))); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func BenchmarkScan1000(b *testing.B)  { benchmarkScan(b, 1000) }
func BenchmarkScan10000(b *testing.B) { benchmarkScan(b, 10000) }

func benchmarkScan(b *testing.B, disks int) {
	dir := b.TempDir()
	if err := sysfstree.Write(dir, sysfstree.Options{Disks: disks, Adapters: 42, Share: true}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if status := run(context.Background(), []string{"scan", "--format", "json", "--sysroot", dir}, nil, io.Discard, os.Stderr); status != statusFindings {
			b.Fatal(fmt.Errorf("exit status %d", status))
		}
	}
}

func TestInterrupted(t *testing.T) {
	dir := t.TempDir()
	if err := sysfstree.Write(dir, sysfstree.Options{Disks: 20, Adapters: 1}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out, talk strings.Builder
	if status := run(ctx, []string{"scan", "--sysroot", dir}, nil, &out, &talk); status != statusInterrupted {
		t.Errorf("exit status %d, want %d", status, statusInterrupted)
	}
	if out.Len() > 0 || !strings.Contains(talk.String(), "interrupted") {
		t.Errorf("stdout %q, stderr %q", out.String(), talk.String())
	}
}

func TestConcurrentRunsNameTheHolder(t *testing.T) {
	dir := t.TempDir()
	if err := sysfstree.Write(dir, sysfstree.Options{Disks: 2, Adapters: 1}); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(t.TempDir(), "state.db")
	lock, err := store.Lock(state, "enforce --apply")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Unlock()
	var out, talk strings.Builder
	status := run(context.Background(), []string{"enforce", "--sysroot", dir, "--state", state, "--apply"}, nil, &out, &talk)
	if status != statusFailed || !strings.Contains(talk.String(), fmt.Sprint(os.Getpid())) || !strings.Contains(talk.String(), "enforce --apply") {
		t.Errorf("exit status %d, want %d and the holder named:\n%s", status, statusFailed, talk.String())
	}
	b, err := os.ReadFile(filepath.Join(dir, "sys/block/sdb/queue/max_sectors_kb"))
	if err != nil || strings.TrimSpace(string(b)) != "4096" {
		t.Errorf("max_sectors_kb %q, %v: something was written", b, err)
	}
}

// BenchmarkAudit1000 audits a thousand captures of a machine of 12 disks.
func BenchmarkAudit1000(b *testing.B) {
	dir := b.TempDir()
	if err := sysfstree.Write(dir, sysfstree.Options{Disks: 12, Adapters: 2}); err != nil {
		b.Fatal(err)
	}
	file := filepath.Join(b.TempDir(), "host.json.gz")
	if status := run(context.Background(), []string{"capture", "--sysroot", dir, "-o", file, "--host-key", filepath.Join(b.TempDir(), "key")}, nil, io.Discard, io.Discard); status != statusOK {
		b.Fatal(fmt.Errorf("exit status %d", status))
	}
	args := []string{"audit", "--to-kernel", "6.18.15", "--format", "jsonl"}
	for range 1000 {
		args = append(args, "--input", file)
	}
	for b.Loop() {
		if status := run(context.Background(), args, nil, io.Discard, os.Stderr); status != statusOK {
			b.Fatal(fmt.Errorf("exit status %d", status))
		}
	}
}

// TestAuditFollowsItsSchema holds every shape of the JSON against the schemas.
func TestAuditFollowsItsSchema(t *testing.T) {
	dir := t.TempDir()
	if err := sysfstree.Write(filepath.Join(dir, "m"), sysfstree.Options{Disks: 3, Adapters: 1}); err != nil {
		t.Fatal(err)
	}
	var inputs []string
	for _, name := range []string{"a.json", "b.json"} {
		file := filepath.Join(dir, name)
		if status := run(context.Background(), []string{"capture", "--sysroot", filepath.Join(dir, "m"), "-o", file, "--host-key", filepath.Join(dir, "key")}, nil, io.Discard, io.Discard); status != statusOK {
			t.Fatalf("capture: exit status %d", status)
		}
		inputs = append(inputs, "--input", file)
	}
	one, missing := []string{"--sysroot", filepath.Join(dir, "m")}, append(slices.Clone(inputs), "--input", filepath.Join(dir, "nowhere"))
	for _, c := range []struct {
		name string
		args []string
		docs int // of JSON lines
	}{
		{"one", append([]string{"--to-kernel", "6.18.15"}, one...), 1},
		{"two targets", append([]string{"--to-kernel", "6.18.15,6.12.90"}, one...), 2},
		{"two hosts", append([]string{"--to-kernel", "6.18.15"}, inputs...), 3},
		{"two hosts, two targets", append([]string{"--to-kernel", "6.18.15,6.12.90"}, inputs...), 5},
		{"a host that cannot be read", append([]string{"--to-kernel", "6.18.15"}, missing...), 4},
		{"matrix", append([]string{"--matrix", "6.18.15,6.12.90"}, one...), 1},
		{"matrix of two hosts", append([]string{"--matrix", "6.18.15,6.12.90"}, inputs...), 2},
		{"nothing", []string{"--to-kernel", "6.18", "--sysroot", filepath.Join(dir, "nowhere")}, 1},
	} {
		for _, format := range []string{"json", "jsonl"} {
			var out strings.Builder
			run(context.Background(), append([]string{"audit", "--format", format}, c.args...), nil, &out, io.Discard)
			dec, n := json.NewDecoder(strings.NewReader(out.String())), 0
			for ; dec.More(); n++ {
				var doc map[string]any
				if err := dec.Decode(&doc); err != nil {
					t.Fatalf("%s, %s: %v\n%s", c.name, format, err, out.String())
				}
				for _, v := range schema.Validate("audit.v1.0", doc) {
					t.Errorf("%s, %s: %s", c.name, format, v)
				}
				reports := []any{doc}
				if list, ok := doc["reports"].([]any); ok {
					reports = list
				}
				for _, r := range reports {
					if _, order := r.(map[string]any)["canary"]; order {
						continue
					}
					for _, v := range schema.Validate("report.v1.0", r) {
						t.Errorf("%s, %s: as a report: %s", c.name, format, v)
					}
				}
			}
			if want := map[string]int{"json": 1, "jsonl": c.docs}[format]; n != want {
				t.Errorf("%s, %s: %d documents, want %d", c.name, format, n, want)
			}
		}
	}
}
