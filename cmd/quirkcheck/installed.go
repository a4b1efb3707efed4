package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

// installed is a kernel on disk, or one that somebody named.
type installed struct {
	kernel.Release
	source string // what told the release, relative to the root; "" for one that was named
}

// moduleFolders hold a folder for each kernel. A merged /usr shows one twice.
var moduleFolders = []string{"lib/modules", "usr/lib/modules"}

// reImage tells a kernel's image in /boot from what package managers leave
// beside it.
var reImage = regexp.MustCompile(`^vmlinu[xz]-(.+)$`)

// installedKernels lists the kernels below a root, oldest first.
func installedKernels(root string) ([]installed, error) {
	r, err := os.OpenRoot(root)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	sys := r.FS()
	found := map[string]string{} // release: source
	for _, folder := range moduleFolders {
		entries, err := fs.ReadDir(sys, folder)
		if err != nil {
			continue
		}
		for _, e := range entries {
			if e.IsDir() && found[e.Name()] == "" {
				found[e.Name()] = folder + "/" + e.Name()
			}
		}
	}
	if entries, err := fs.ReadDir(sys, "boot"); err == nil {
		for _, e := range entries {
			m := reImage.FindStringSubmatch(e.Name())
			if m != nil && found[m[1]] == "" && !slices.Contains([]string{".old", ".bak", ".sig", ".hmac"}, path.Ext(m[1])) && !strings.Contains(m[1], ".dpkg-") {
				found[m[1]] = "boot/" + e.Name()
			}
		}
	}
	var list []installed
	for name, source := range found {
		k, err := kernel.Parse(name)
		if err != nil { // a rescue image
			continue
		}
		i := installed{k, source}
		i.unhide(sys)
		list = append(list, i)
	}
	slices.SortFunc(list, func(a, b installed) int {
		if c, ok := kernel.Compare(a.Release, b.Release); ok && c != 0 {
			return c
		}
		return strings.Compare(a.Raw, b.Raw)
	})
	return list, nil
}

// unhide finds the point release that a Debian kernel's name hides: its image
// has it, the package database, or the package's changelog. What none tells
// stays unknown.
func (k *installed) unhide(sys fs.FS) {
	if k.PointK {
		return
	}
	for _, ask := range []func(fs.FS, string) (version, source string){imageVersion, packageVersion, changelogVersion} {
		version, source := ask(sys, k.Raw)
		up, err := kernel.Parse(reUpstream.FindString(version))
		if err == nil && up.Major == k.Major && up.Minor == k.Minor {
			k.Point, k.PointK, k.RC, k.Vendor, k.source = up.Point, true, up.RC, "debian", source
			return
		}
	}
}

var reUpstream = regexp.MustCompile(`^\d+\.\d+(?:\.\d+)?`)

// Fields of the header of an x86 image (Documentation/arch/x86/boot.rst).
const (
	bootMagic      = 0x202 // "HdrS"
	bootVersion    = 0x20e // kernel_version: where its text is, counted from 0x200
	bootHeaderSize = 0x210
	bootTextAt     = 0x200
	bootTextMax    = 512
)

// imageVersion reads the version that an x86 kernel's image carries: Debian's
// names the upstream version, "6.1.0-54-amd64 (...) #1 SMP ... Debian 6.1.190-1".
func imageVersion(sys fs.FS, release string) (version, source string) {
	for _, name := range []string{"boot/vmlinuz-" + release, "usr/lib/modules/" + release + "/vmlinuz", "lib/modules/" + release + "/vmlinuz"} {
		f, err := sys.Open(name)
		if err != nil {
			continue
		}
		head, err := io.ReadAll(io.LimitReader(f, bootTextAt+1<<16+bootTextMax))
		f.Close()
		if err != nil || len(head) < bootHeaderSize || string(head[bootMagic:bootMagic+4]) != "HdrS" {
			continue
		}
		at := bootTextAt + int(binary.LittleEndian.Uint16(head[bootVersion:]))
		if at >= len(head) {
			continue
		}
		text, _, _ := bytes.Cut(head[at:min(len(head), at+bootTextMax)], []byte{0})
		if m := reDebianWord.FindSubmatch(text); m != nil && strings.HasPrefix(string(text), release+" ") {
			return string(m[1]), name
		}
	}
	return "", ""
}

var reDebianWord = regexp.MustCompile(`\bDebian (\d+\.\d+\.\d+)\S* `)

// packageVersion asks dpkg's database.
func packageVersion(sys fs.FS, release string) (version, source string) {
	const name = "var/lib/dpkg/status"
	f, err := sys.Open(name)
	if err != nil {
		return "", ""
	}
	defer f.Close()
	ours, installed := false, false
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		key, value, _ := strings.Cut(lines.Text(), ": ")
		switch key {
		case "":
			ours = false
		case "Package":
			ours = value == "linux-image-"+release || value == "linux-image-"+release+"-unsigned"
			installed = false
		case "Status":
			installed = strings.HasSuffix(value, " installed")
		case "Version":
			if ours && installed {
				return value, name
			}
		}
	}
	return "", ""
}

// changelogVersion reads the first line of the package's changelog.
func changelogVersion(sys fs.FS, release string) (version, source string) {
	for _, p := range []string{release, release + "-unsigned"} {
		for _, file := range []string{"changelog.Debian.gz", "changelog.gz"} {
			name := "usr/share/doc/linux-image-" + p + "/" + file
			if line, err := firstLine(sys, name); err == nil {
				if m := reChangelog.FindStringSubmatch(line); m != nil {
					return m[1], name
				}
			}
		}
	}
	return "", ""
}

// reChangelog: "linux (6.1.190-1) bookworm-security; urgency=high" (deb-changelog(5)).
var reChangelog = regexp.MustCompile(`^linux\S* \((?:\d+:)?(\d+\.\d+\.\d+)[^)]*\)`)

func firstLine(sys fs.FS, name string) (string, error) {
	f, err := sys.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return "", err
	}
	line, err := bufio.NewReader(io.LimitReader(z, 4096)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	return line, nil
}
