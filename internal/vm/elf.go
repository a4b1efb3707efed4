package vm

import (
	"bufio"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// libraryDirs are searched after a program's own DT_RUNPATH; those that
// /etc/ld.so.conf names come first (ld.so(8)).
func libraryDirs() []string {
	dirs := confDirs("/etc/ld.so.conf", 0)
	return append(dirs, "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
}

func confDirs(conf string, depth int) []string {
	b, err := os.ReadFile(conf)
	if err != nil || depth > 4 {
		return nil
	}
	var dirs []string
	s := bufio.NewScanner(bytes.NewReader(b))
	for s.Scan() {
		line, _, _ := strings.Cut(s.Text(), "#")
		line = strings.TrimSpace(line)
		if pattern, ok := strings.CutPrefix(line, "include "); ok {
			pattern = strings.TrimSpace(pattern)
			if !filepath.IsAbs(pattern) {
				pattern = filepath.Join(filepath.Dir(conf), pattern)
			}
			more, _ := filepath.Glob(pattern)
			for _, m := range more {
				dirs = append(dirs, confDirs(m, depth+1)...)
			}
		} else if filepath.IsAbs(line) {
			dirs = append(dirs, line)
		}
	}
	return dirs
}

// needed returns the shared libraries and the loader that a program asks for,
// and what those ask for, as paths where the loader will look for them. The
// DT_NEEDED entries are followed rather than ldd asked, which runs the program.
// A file that is not ELF, such as a script, needs nothing.
func needed(program string, dirs []string) ([]string, error) {
	var out []string
	todo := []string{program}
	for len(todo) > 0 {
		path := todo[0]
		todo = todo[1:]
		libs, err := neededBy(path, dirs)
		if err != nil {
			return nil, err
		}
		for _, l := range libs {
			if !slices.Contains(out, l) {
				out = append(out, l)
				todo = append(todo, l)
			}
		}
	}
	return out, nil
}

func neededBy(path string, dirs []string) ([]string, error) {
	f, err := elf.Open(path)
	if err != nil {
		var format *elf.FormatError
		if errors.As(err, &format) || isScript(path) {
			return nil, nil
		}
		return nil, err
	}
	defer f.Close()
	var out []string
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			b := make([]byte, p.Filesz)
			if _, err := p.ReadAt(b, 0); err != nil {
				return nil, fmt.Errorf("read interpreter of %s: %w", path, err)
			}
			out = append(out, string(bytes.TrimRight(b, "\x00")))
		}
	}
	names, err := f.ImportedLibraries()
	if err != nil {
		return nil, fmt.Errorf("read libraries of %s: %w", path, err)
	}
	var search []string
	for _, tag := range []elf.DynTag{elf.DT_RUNPATH, elf.DT_RPATH} {
		paths, _ := f.DynString(tag)
		for _, p := range paths {
			p = strings.ReplaceAll(p, "$ORIGIN", filepath.Dir(path))
			search = append(search, strings.Split(p, ":")...)
		}
	}
	search = append(search, dirs...)
	for _, n := range names {
		lib, ok := findLibrary(n, search, f.Machine)
		if !ok {
			return nil, &MissingError{What: "library " + n + " of " + path}
		}
		out = append(out, lib)
	}
	return out, nil
}

func findLibrary(name string, dirs []string, machine elf.Machine) (string, bool) {
	for _, d := range dirs {
		p := filepath.Join(d, name)
		f, err := elf.Open(p)
		if err != nil {
			continue
		}
		ok := f.Machine == machine
		f.Close()
		if ok {
			return p, true
		}
	}
	return "", false
}

func isScript(path string) bool {
	b := make([]byte, 2)
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	_, err = f.Read(b)
	return err == nil && string(b) == "#!"
}
