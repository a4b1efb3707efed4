package probe

import (
	"errors"
	"io/fs"
	"path"
	"slices"
)

// ErrNotRecorded marks a question that a recording has no answer to, since
// nobody asked it when the recording was made. It is an fs.ErrNotExist to
// whoever does not look closer; the probe calls the fact not asked.
var ErrNotRecorded error = notRecorded{}

type notRecorded struct{}

func (notRecorded) Error() string        { return "not in the recording" }
func (notRecorded) Is(target error) bool { return target == fs.ErrNotExist }

// MaxAttribute is the length in bytes from which on a file is not read.
const MaxAttribute = maxAttribute

// A Recorder is told every question that is put to a tree, by its name in the
// tree, and the answer. Errors are bare: without operation and name. Several
// goroutines call it at a time.
type Recorder interface {
	// File: the content is read, and the recorder's only during the call.
	File(name string, content []byte, err error)
	Link(name, target string, err error)
	// Folder: it is listed.
	Folder(name string, names []string, err error)
	// Opened: a folder is opened, which may be to see whether it is there.
	Opened(name string, err error)
}

// Record returns sys as Read and ResolveName see it, with every question and
// answer told to the recorder. What it returns answers those two only.
func Record(sys fs.FS, to Recorder) fs.FS { return &recording{sys, to} }

type recording struct {
	sys fs.FS
	to  Recorder
}

// Open would go unrecorded.
func (r *recording) Open(name string) (fs.File, error) {
	return nil, &fs.PathError{Op: "open", Path: name, Err: errors.ErrUnsupported}
}

// Lstat would go unrecorded.
func (r *recording) Lstat(name string) (fs.FileInfo, error) {
	return nil, &fs.PathError{Op: "lstat", Path: name, Err: errors.ErrUnsupported}
}

func (r *recording) ReadLink(name string) (string, error) {
	target, err := fs.ReadLink(r.sys, name)
	r.to.Link(name, target, bare(err))
	return target, err
}

func (r *recording) openDir(name string) (dir, error) {
	d, err := openDir(r.sys, name)
	r.to.Opened(name, bare(err))
	if err != nil {
		return nil, err
	}
	return &recordedDir{d, name, r.to}, nil
}

type recordedDir struct {
	dir  dir
	path string
	to   Recorder
}

func (d *recordedDir) close() { d.dir.close() }

func (d *recordedDir) readFile(name string) ([]byte, error) {
	b, err := d.dir.readFile(name)
	d.to.File(path.Join(d.path, name), b, err)
	return b, err
}

func (d *recordedDir) readLink(name string) (string, error) {
	target, err := d.dir.readLink(name)
	d.to.Link(path.Join(d.path, name), target, err)
	return target, err
}

func (d *recordedDir) list(name string) ([]string, error) {
	names, err := d.dir.list(name)
	d.to.Folder(path.Join(d.path, name), slices.Clone(names), err)
	return names, err
}

// bare takes operation and name off an error, which the handles of a Root do
// not give: what is said about a file does not depend on how the tree is held.
func bare(err error) error {
	for {
		pe, ok := err.(*fs.PathError)
		if !ok {
			return err
		}
		err = pe.Err
	}
}
