package probe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxAttribute bounds one attribute: a sysfs attribute is at most a page, the
// binary VPD files at most 64 KiB with their header. Anything longer is not
// sysfs, and an endless file must not be read to its end.
const maxAttribute = 64<<10 + 4

// maxLinks bounds a chain of symbolic links, as the kernel does.
const maxLinks = 40

// errTooLong marks an attribute over maxAttribute.
var errTooLong = fmt.Errorf("longer than %d bytes", maxAttribute)

// dir is an open directory of the machine's tree; names are relative to it and
// are never followed through a symbolic link. It serves one goroutine.
type dir interface {
	// readFile returns the content; it holds until the next readFile.
	readFile(name string) ([]byte, error)
	readLink(name string) (string, error)
	list(name string) ([]string, error)
	close()
}

// dirOpener is what a tree offers beyond fs.FS when it can hand out directory
// handles, which cost a sixth of a path walk on every read.
type dirOpener interface {
	openDir(name string) (dir, error)
}

// Root is a machine's tree on disk: "/" live, or a copy. It implements
// fs.FS and fs.ReadLinkFS. Names never leave the tree: an absolute link or one
// that climbs out is an error.
type Root struct {
	fd   int
	path string
	// beneath: openat2 is there (Linux 5.6). Without it every component is
	// opened by itself.
	beneath bool
	// regular: only regular files are opened. A copy of a tree may hold device
	// nodes, of which some act when opened; sysfs itself has none.
	regular bool
}

// OpenRoot opens the tree at name. It needs no privilege beyond reading it.
func OpenRoot(name string) (*Root, error) {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	r := &Root{fd: fd, path: path.Clean(name)}
	r.regular = r.path != "/"
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH}
	if probe, err := unix.Openat2(fd, ".", &how); err == nil {
		r.beneath = true
		unix.Close(probe)
	}
	return r, nil
}

// Close closes the tree.
func (r *Root) Close() error { return unix.Close(r.fd) }

// open opens name below at without following links in any component.
func (r *Root) open(at int, name string, flags int) (int, error) {
	flags |= unix.O_CLOEXEC | unix.O_NOFOLLOW
	if r.beneath {
		how := unix.OpenHow{Flags: uint64(flags), Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS}
		for {
			fd, err := unix.Openat2(at, name, &how)
			if err != unix.EINTR && err != unix.EAGAIN {
				return fd, err
			}
		}
	}
	parent, owned := at, false
	for {
		head, rest, more := strings.Cut(name, "/")
		f := flags
		if more {
			f = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
		}
		fd, err := unix.Openat(parent, head, f, 0)
		if owned {
			unix.Close(parent)
		}
		if err != nil || !more {
			return fd, err
		}
		parent, owned, name = fd, true, rest
	}
}

// Open opens a file or directory for reading; symbolic links are an error.
func (r *Root) Open(name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	if err := r.refuse(r.fd, name, true); err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	fd, err := r.open(r.fd, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

var errNotRegular = errors.New("not a regular file")

// refuse keeps a copied tree's device nodes, sockets and pipes closed.
func (r *Root) refuse(at int, name string, dirs bool) error {
	if !r.regular {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstatat(at, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFLNK: // a link then fails to open
		return nil
	case unix.S_IFDIR:
		if dirs {
			return nil
		}
	}
	return errNotRegular
}

// ReadLink returns the target of a symbolic link.
func (r *Root) ReadLink(name string) (string, error) {
	s, err := (&rootDir{root: r, fd: r.fd}).readLink(name)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: err}
	}
	return s, nil
}

// Lstat describes a file without following a link.
func (r *Root) Lstat(name string) (fs.FileInfo, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "lstat", Path: name, Err: fs.ErrInvalid}
	}
	fd, err := r.open(r.fd, name, unix.O_PATH)
	if err != nil {
		return nil, &fs.PathError{Op: "lstat", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return f.Stat()
}

func (r *Root) openDir(name string) (dir, error) {
	fd, err := r.open(r.fd, name, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return &rootDir{root: r, fd: fd, owned: true}, nil
}

// rootDir is a directory handle.
type rootDir struct {
	root  *Root
	fd    int
	owned bool
	buf   []byte
	seen  []listing
}

// listing holds what of one folder is not to be opened.
type listing struct {
	folder  string
	special []string // names that are no regular file, folder or link
	ask     bool     // the file system does not tell types: ask for each name
}

// refuse is Root.refuse for many files of few folders: a folder is listed
// once, which tells the types of all its files.
func (d *rootDir) refuse(name string) error {
	folder, base := path.Split(name)
	for _, l := range d.seen {
		if l.folder != folder {
			continue
		}
		if l.ask {
			return d.root.refuse(d.fd, name, false)
		}
		if slices.Contains(l.special, base) {
			return errNotRegular
		}
		return nil
	}
	l, err := d.types(folder)
	if err != nil {
		return err
	}
	if len(d.seen) > 16 { // a root handle, asked for files all over the tree
		d.seen = d.seen[:0]
	}
	d.seen = append(d.seen, l)
	return d.refuse(name)
}

func (d *rootDir) types(folder string) (listing, error) {
	l := listing{folder: folder}
	name := "."
	if folder != "" {
		name = strings.TrimSuffix(folder, "/")
	}
	fd, err := d.root.open(d.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if err != nil {
		return l, err
	}
	defer unix.Close(fd)
	if d.buf == nil {
		d.buf = make([]byte, 4096)
	}
	// linux/dirent.h, struct linux_dirent64: ino 8, off 8, reclen 2, type 1, name.
	const reclenAt, typeAt, nameAt = 16, 18, 19
	for {
		n, err := unix.Getdents(fd, d.buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return l, err
		}
		for rest := d.buf[:n]; len(rest) > nameAt; {
			reclen := int(binary.NativeEndian.Uint16(rest[reclenAt:]))
			if reclen <= nameAt || reclen > len(rest) {
				break
			}
			switch rest[typeAt] {
			case unix.DT_REG, unix.DT_DIR, unix.DT_LNK:
			case unix.DT_UNKNOWN:
				l.ask = true
			default:
				entry, _, _ := bytes.Cut(rest[nameAt:reclen], []byte{0})
				l.special = append(l.special, string(entry))
			}
			rest = rest[reclen:]
		}
	}
}

func (d *rootDir) close() {
	if d.owned {
		unix.Close(d.fd)
	}
}

func (d *rootDir) readFile(name string) ([]byte, error) {
	if d.root.regular {
		if err := d.refuse(name); err != nil {
			return nil, err
		}
	}
	fd, err := d.root.open(d.fd, name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if d.buf == nil {
		d.buf = make([]byte, 4096)
	}
	n := 0
	for {
		if n == len(d.buf) {
			if n > maxAttribute {
				return nil, errTooLong
			}
			d.buf = append(d.buf, make([]byte, len(d.buf))...)
		}
		m, err := unix.Read(fd, d.buf[n:])
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return nil, err
		// A short first read is the end; later ones may be short because sysfs
		// gives a page at most of a binary attribute.
		case m == 0 || n == 0 && m < len(d.buf):
			if n += m; n > maxAttribute {
				return nil, errTooLong
			}
			return d.buf[:n], nil
		}
		n += m
	}
}

func (d *rootDir) readLink(name string) (string, error) {
	var buf [4096]byte
	n, err := unix.Readlinkat(d.fd, name, buf[:])
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

func (d *rootDir) list(name string) ([]string, error) {
	fd, err := d.root.open(d.fd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return boundedNames(f.Readdirnames(maxNames + 1))
}

// maxNames bounds a directory listing: a machine of 100,000 disks is not met.
const maxNames = 200_000

func boundedNames(names []string, err error) ([]string, error) {
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if len(names) > maxNames {
		return nil, fmt.Errorf("more than %d names", maxNames)
	}
	slices.Sort(names) // a folder has no order of its own
	return names, nil
}

// fsDir is a directory of any other fs.FS. Its errors are bare, as those of a
// handle are.
type fsDir struct {
	fsys fs.FS
	path string
}

func (d fsDir) close() {}

func (d fsDir) readFile(name string) ([]byte, error) {
	full := path.Join(d.path, name)
	// As Root does: no link is followed, and a pipe would block the open.
	if info, err := fs.Lstat(d.fsys, full); err != nil {
		return nil, bare(err)
	} else if info.Mode()&fs.ModeSymlink != 0 {
		return nil, unix.ELOOP
	} else if !info.Mode().IsRegular() {
		return nil, errNotRegular
	}
	f, err := d.fsys.Open(full)
	if err != nil {
		return nil, bare(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxAttribute+1))
	if err == nil && len(b) > maxAttribute {
		return nil, errTooLong
	}
	return b, bare(err)
}

func (d fsDir) readLink(name string) (string, error) {
	target, err := fs.ReadLink(d.fsys, path.Join(d.path, name))
	return target, bare(err)
}

func (d fsDir) list(name string) ([]string, error) {
	entries, err := fs.ReadDir(d.fsys, path.Join(d.path, name))
	if err != nil {
		return nil, bare(err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return boundedNames(names, nil)
}

// openDir opens a directory of the tree, by handle where the tree offers it.
// As with a handle, no link is followed.
func openDir(fsys fs.FS, name string) (dir, error) {
	if o, ok := fsys.(dirOpener); ok {
		return o.openDir(name)
	}
	failed := func(err error) (dir, error) { return nil, &fs.PathError{Op: "open", Path: name, Err: bare(err)} }
	switch real, err := resolve(fsys, name); {
	case errors.Is(err, fs.ErrNotExist):
		return failed(err)
	case err != nil || real != path.Clean(name):
		return failed(unix.ELOOP)
	}
	info, err := fs.Stat(fsys, name)
	if err != nil {
		return failed(err)
	}
	if !info.IsDir() {
		return failed(unix.ENOTDIR)
	}
	return fsDir{fsys, name}, nil
}

// resolve follows the symbolic links of name, a path inside the tree, and
// returns the path without any. An absolute target, one that climbs out of the
// tree, or more than 40 links are errors. sysfs links a device once, so the
// common case is one readlink.
func resolve(fsys fs.FS, name string) (string, error) {
	links := 0
	done := "."
	rest := name
	for rest != "" {
		var head string
		head, rest, _ = strings.Cut(rest, "/")
		switch head {
		case "", ".":
			continue
		case "..":
			if done == "." {
				return "", fmt.Errorf("resolve %s: link leaves the tree", name)
			}
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, head)
		target, err := fs.ReadLink(fsys, next)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				why := fs.ErrNotExist
				if errors.Is(err, ErrNotRecorded) {
					why = ErrNotRecorded
				}
				return "", fmt.Errorf("resolve %s: %s: %w", name, next, why)
			}
			done = next // not a link
			continue
		}
		if links++; links > maxLinks {
			return "", fmt.Errorf("resolve %s: more than %d links", name, maxLinks)
		}
		if path.IsAbs(target) {
			return "", fmt.Errorf("resolve %s: absolute link to %s", name, target)
		}
		if rest != "" {
			target += "/" + rest
		}
		rest = target
	}
	return done, nil
}

// linkTo resolves the one link at name lexically: what it points at, taken as
// a path inside the tree. The caller's open then refuses links on the way.
func linkTo(base, target string) (string, error) {
	if path.IsAbs(target) {
		return "", fmt.Errorf("absolute link to %s", target)
	}
	p := path.Join(base, target)
	if p == ".." || strings.HasPrefix(p, "../") {
		return "", fmt.Errorf("link to %s leaves the tree", target)
	}
	return p, nil
}
