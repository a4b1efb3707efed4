package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// modules is modules.dep of the running kernel. We load by ourselves because
// busybox modprobe fails on some dependencies, and kmod is not in every image.
type modules struct {
	dir  string
	mu   sync.Mutex
	line string              // the kernel's command line
	path map[string]string   // name -> file
	deps map[string][]string // name -> files it needs, nearest first
}

func moduleName(file string) string {
	return strings.ReplaceAll(strings.TrimSuffix(filepath.Base(file), ".ko"), "-", "_")
}

// parameters joins "name=value" parameters, with quotes around a value that has
// blanks, as the kernel wants them.
func parameters(list []string) string {
	var out []string
	for _, p := range list {
		if name, value, ok := strings.Cut(p, "="); ok && strings.ContainsAny(value, " \t") {
			p = name + `="` + value + `"`
		}
		out = append(out, p)
	}
	return strings.Join(out, " ")
}

// bootParameters returns what the kernel's command line has for a module, as
// "module.name=value". The kernel leaves these to whoever loads the module
// (modprobe(8)).
func bootParameters(line, module string) string {
	quoted := false
	words := strings.FieldsFunc(line, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return !quoted && strings.ContainsRune(" \t\n", r)
	})
	var out []string
	for _, w := range words {
		name, rest, ok := strings.Cut(w, ".")
		if ok && !strings.Contains(name, "=") && moduleName(name) == module {
			out = append(out, rest)
		}
	}
	return strings.Join(out, " ")
}

func readModules() (*modules, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return nil, fmt.Errorf("uname: %w", err)
	}
	m := &modules{
		dir:  "/lib/modules/" + unix.ByteSliceToString(uts.Release[:]),
		path: map[string]string{}, deps: map[string][]string{},
	}
	line, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return nil, err
	}
	m.line = string(line)
	b, err := os.ReadFile(m.dir + "/modules.dep")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(b)) {
		file, deps, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		m.path[moduleName(file)] = file
		m.deps[moduleName(file)] = strings.Fields(deps)
	}
	return m, nil
}

// load loads a module and what it needs. A module without a file is taken as
// built in when the kernel shows or lists it; the packages of 7.2 and newer
// have no list, so a built-in that shows nowhere is fs.ErrNotExist.
func (m *modules) load(name, params string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	name = moduleName(name)
	file, ok := m.path[name]
	if !ok {
		if m.builtin(name) {
			return nil
		}
		return fmt.Errorf("module %s: %w", name, fs.ErrNotExist)
	}
	deps := m.deps[name]
	for i := len(deps) - 1; i >= 0; i-- { // the farthest dependency is last
		if err := m.insert(deps[i], ""); err != nil {
			return err
		}
	}
	return m.insert(file, params)
}

func (m *modules) builtin(name string) bool {
	if _, err := os.Stat("/sys/module/" + name); err == nil {
		return true
	}
	for _, n := range []string{name, strings.ReplaceAll(name, "_", "-")} {
		if found, _ := filepath.Glob("/sys/bus/*/drivers/" + n); len(found) > 0 {
			return true
		}
	}
	b, _ := os.ReadFile(m.dir + "/modules.builtin")
	for line := range strings.Lines(string(b)) {
		if moduleName(strings.TrimSpace(line)) == name {
			return true
		}
	}
	return false
}

func (m *modules) insert(file, params string) error {
	f, err := os.Open(m.dir + "/" + file)
	if err != nil {
		return err
	}
	defer f.Close()
	params = strings.TrimSpace(bootParameters(m.line, moduleName(file)) + " " + params)
	if err := unix.FinitModule(int(f.Fd()), params, 0); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("load %s: %w", file, err)
	}
	return nil
}
