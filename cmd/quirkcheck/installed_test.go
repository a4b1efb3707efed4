package main

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// image is the start of an x86 kernel with a version text.
func image(version string) string {
	b := make([]byte, 0x4000)
	copy(b[bootMagic:], "HdrS")
	binary.LittleEndian.PutUint16(b[bootVersion:], 0x2f00)
	copy(b[bootTextAt+0x2f00:], version+"\x00")
	return string(b)
}

func TestInstalledKernels(t *testing.T) {
	const name = "6.1.0-54-amd64"
	debian := name + " (debian-kernel@lists.debian.org) #1 SMP PREEMPT_DYNAMIC Debian 6.1.190-1 (2026-10-16)"
	status := func(pkg, state, version string) string {
		return "Package: " + pkg + "\nStatus: install ok " + state + "\nVersion: " + version + "\n\n"
	}
	for _, c := range []struct {
		what  string
		files map[string]string
		want  []string // upstream release and source
	}{
		{"the image tells", map[string]string{"boot/vmlinuz-" + name: image(debian)}, []string{"6.1.190 boot/vmlinuz-" + name}},
		{"in the modules' folder", map[string]string{"usr/lib/modules/" + name + "/vmlinuz": image(debian)}, []string{"6.1.190 usr/lib/modules/" + name + "/vmlinuz"}},
		{"an image of another release", map[string]string{"boot/vmlinuz-" + name: image(strings.Replace(debian, "54", "53", 1))}, []string{"6.1.? boot/vmlinuz-" + name}},
		{"an image that is cut", map[string]string{"boot/vmlinuz-" + name: image(debian)[:0x208]}, []string{"6.1.? boot/vmlinuz-" + name}},
		{"an image whose text lies behind its end", map[string]string{"boot/vmlinuz-" + name: image(debian)[:0x3000]}, []string{"6.1.? boot/vmlinuz-" + name}},
		{"the package database tells", map[string]string{"lib/modules/" + name + "/modules.dep": "", "var/lib/dpkg/status": status("linux-image-amd64", "installed", "6.1.999-1") + status("linux-image-"+name, "installed", "6.1.185-1")},
			[]string{"6.1.185 var/lib/dpkg/status"}},
		{"of a package without signature", map[string]string{"lib/modules/" + name + "/modules.dep": "", "var/lib/dpkg/status": status("linux-image-"+name+"-unsigned", "installed", "6.1.185-1~bpo11+1")},
			[]string{"6.1.185 var/lib/dpkg/status"}},
		{"a package that is gone", map[string]string{"lib/modules/" + name + "/modules.dep": "", "var/lib/dpkg/status": status("linux-image-"+name, "config-files", "6.1.185-1")},
			[]string{"6.1.? lib/modules/" + name}},
		{"a package of another branch", map[string]string{"lib/modules/" + name + "/modules.dep": "", "var/lib/dpkg/status": status("linux-image-"+name, "installed", "6.2.1-1")},
			[]string{"6.1.? lib/modules/" + name}},
		{"a changelog that is no gzip", map[string]string{"lib/modules/" + name + "/modules.dep": "", "usr/share/doc/linux-image-" + name + "/changelog.gz": "linux (6.1.185-1)"},
			[]string{"6.1.? lib/modules/" + name}},
		{"oldest first, each once", map[string]string{"lib/modules/6.18.15/x": "", "boot/vmlinuz-6.18.15": "", "boot/vmlinuz-6.9.1": "", "usr/lib/modules/5.10.0-0.deb10.16-amd64/x": "", "boot/config-6.2.1": "", "boot/vmlinuz": ""},
			[]string{"5.10.? usr/lib/modules/5.10.0-0.deb10.16-amd64", "6.9.1 boot/vmlinuz-6.9.1", "6.18.15 lib/modules/6.18.15"}},
		{"none", map[string]string{"boot/vmlinuz-0-rescue-1": "", "lib/modules/kernel/x": ""}, nil},
	} {
		dir := t.TempDir()
		for file, text := range c.files {
			full := filepath.Join(dir, file)
			if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(full, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		list, err := installedKernels(dir)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, k := range list {
			got = append(got, k.Upstream()+" "+k.source)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.what, diff)
		}
	}
}

// A merged /usr shows a kernel twice, and a link that leaves the root is not followed.
func TestInstalledKernelsOfALinkedTree(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	for _, folder := range []string{filepath.Join(dir, "usr/lib/modules/6.18.15"), filepath.Join(out, "modules/6.1.190")} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("usr/lib", filepath.Join(dir, "lib")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(out+"/modules", filepath.Join(dir, "boot")); err != nil {
		t.Fatal(err)
	}
	list, err := installedKernels(dir)
	if err != nil || len(list) != 1 || list[0].Raw != "6.18.15" {
		t.Errorf("%+v, %v", list, err)
	}
}
