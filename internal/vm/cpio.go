package vm

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// archive is one layer of an initramfs: paths below the root, without a
// leading slash, to entries. Parents need not be given.
type archive map[string]entry

type entry struct {
	mode fs.FileMode // type and permissions: regular, directory or link
	link string      // target of a link
	data []byte      // content, when not from a file
	from string      // host file holding the content
}

func (a archive) file(path string, perm fs.FileMode, data []byte) {
	a[path] = entry{mode: perm, data: data}
}
func (a archive) copy(path, from string)  { a[path] = entry{mode: 0o755, from: from} }
func (a archive) symlink(path, to string) { a[path] = entry{mode: fs.ModeSymlink | 0o777, link: to} }
func (a archive) dir(path string)         { a[path] = entry{mode: fs.ModeDir | 0o755} }
func (a archive) has(path string) bool    { _, ok := a[path]; return ok }
func (a archive) addTree(to, from string) error {
	return filepath.WalkDir(from, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, p)
		if err != nil {
			return err
		}
		name := filepath.Join(to, rel)
		switch {
		case e.IsDir():
			a.dir(name)
		case e.Type() == fs.ModeSymlink:
			l, err := os.Readlink(p)
			if err != nil {
				return err
			}
			a.symlink(name, l)
		case e.Type().IsRegular():
			a.copy(name, p)
		}
		return nil
	})
}

// parents adds the folders that entries lie in.
func (a archive) parents() {
	for p := range a {
		for d := filepath.Dir(p); d != "." && !a.has(d); d = filepath.Dir(d) {
			a.dir(d)
		}
	}
}

const cpioAlign = 4

// writeTo writes the archive in cpio "newc" format (Linux,
// Documentation/driver-api/early-userspace/buffer-format.rst), everything
// owned by root and without time stamps, so that equal layers are equal bytes.
func (a archive) writeTo(w io.Writer) error {
	a.parents()
	names := make([]string, 0, len(a))
	for n := range a {
		names = append(names, n)
	}
	sort.Strings(names) // folders come before what is in them
	c := &cpioWriter{w: w}
	for _, n := range names {
		e := a[n]
		mode := uint32(e.mode.Perm())
		data := e.data
		switch {
		case e.mode.IsDir():
			mode |= 0o040000
		case e.mode&fs.ModeSymlink != 0:
			mode |= 0o120000
			data = []byte(e.link)
		default:
			mode |= 0o100000
			if e.from != "" {
				b, err := os.ReadFile(e.from)
				if err != nil {
					return err
				}
				data = b
			}
		}
		c.entry(n, mode, data)
	}
	c.entry("TRAILER!!!", 0, nil)
	return c.err
}

type cpioWriter struct {
	w   io.Writer
	ino int
	err error
}

func (c *cpioWriter) entry(name string, mode uint32, data []byte) {
	c.ino++
	nlink := 1
	// magic ino mode uid gid nlink mtime filesize devmajor devminor
	// rdevmajor rdevminor namesize check
	head := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		c.ino, mode, 0, 0, nlink, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
	c.put([]byte(head + name + "\x00"))
	c.put(data)
}

// put writes b padded to the alignment of the format. The header is 110 bytes
// long and padded together with the name.
func (c *cpioWriter) put(b []byte) {
	if c.err != nil || len(b) == 0 {
		return
	}
	if _, c.err = c.w.Write(b); c.err != nil {
		return
	}
	if n := len(b) % cpioAlign; n != 0 {
		_, c.err = io.WriteString(c.w, strings.Repeat("\x00", cpioAlign-n))
	}
}
