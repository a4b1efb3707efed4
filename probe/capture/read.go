package capture

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/quirkcheck/quirkcheck/probe"
)

// maxContent bounds a file's content, maxContentText its base64.
const (
	maxContent     = probe.MaxAttribute
	maxContentText = (maxContent + 2) / 3 * 4
)

// inMemory is how much of an input that cannot be read twice is kept in
// memory; the rest goes to a temporary file.
const inMemory = 4 << 20

// Read reads a capture, gzip or not. A *Fault says where it is none, or not
// one that this version takes. It reads twice, and keeps nothing the first
// time: a faulty capture takes little memory however large it is. What cannot
// seek is put into a temporary file where it is longer than 4 MiB.
func Read(r io.Reader) (*Capture, error) {
	again := rewinder(r)
	defer again.close()
	if err := parse(again.first(), nil); err != nil {
		return nil, err
	}
	second, err := again.second()
	if err != nil {
		return nil, &readError{err}
	}
	c := &Capture{Files: map[string]Content{}, Links: map[string]string{}, Directories: map[string][]string{},
		Absent: map[string][]string{}, Errors: map[string]map[string]string{}, Commands: []Command{}}
	if err := parse(second, c); err != nil {
		return nil, err
	}
	return c, nil
}

// ReadFile is Read of a file.
func ReadFile(name string) (*Capture, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Read(f)
}

// bounded is an input of at most n bytes.
type bounded struct {
	r     io.Reader
	n     int64
	fault string
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.n < 0 {
		return 0, &Fault{"", b.fault}
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.n+1)])
	if b.n -= int64(n); b.n < 0 {
		return n + int(b.n), &Fault{"", b.fault}
	}
	return n, err
}

var tooLong = fmt.Sprintf("more than %d MiB", MaxBytes>>20)

// parse reads a capture; into may be nil.
func parse(r io.Reader, into *Capture) error {
	raw := bufio.NewReader(&bounded{r, MaxBytes, tooLong})
	var text io.Reader = raw
	if magic, err := raw.Peek(2); err == nil && magic[0] == 0x1f && magic[1] == 0x8b {
		z, err := gzip.NewReader(raw)
		if err != nil {
			return unzip(err)
		}
		text = &bounded{unzipper{z}, MaxBytes, tooLong + " unpacked"}
	}
	s := newScanner(text)
	if err := s.capture(into); err != nil {
		return err
	}
	return s.end()
}

// unzipper turns the errors of gzip into faults.
type unzipper struct{ r io.Reader }

func (u unzipper) Read(p []byte) (int, error) {
	n, err := u.r.Read(p)
	return n, unzip(err)
}

func unzip(err error) error {
	var f *Fault
	var corrupt interface{ Timeout() bool } // an error of the file system has it
	switch {
	case err == nil, err == io.EOF, errors.As(err, &f), errors.As(err, &corrupt):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return &Fault{"", "the gzip stream ends in the middle"}
	}
	return &Fault{"", err.Error()}
}

// capture reads the object. Everything is checked whether or not it is kept.
func (s *scanner) capture(into *Capture) error {
	c, err := s.peek()
	if err != nil {
		return err
	}
	if c != '{' {
		return s.fault("not a capture: byte 1 is %q, want an object", c)
	}
	if into == nil {
		into = &Capture{}
	}
	version, files, links, folders := false, false, false, false
	err = s.object(func(key string) (err error) {
		switch key {
		case "schema_version":
			version = true
			if into.SchemaVersion, err = s.string(16); err == nil {
				if major, minor, ok := strings.Cut(into.SchemaVersion, "."); !ok || major != "1" || !isNumber(minor) {
					return s.fault("version %q, want 1.N", into.SchemaVersion)
				}
			}
		case "tool":
			err = s.fields(map[string]func() error{"name": s.into(&into.Tool.Name), "version": s.into(&into.Tool.Version)})
		case "generated_at":
			into.GeneratedAt, err = s.string(64)
		case "host":
			err = s.host(&into.Host)
		case "redaction":
			err = s.fields(map[string]func() error{"serials": s.into(&into.Redaction.Serials), "note": s.into(&into.Redaction.Note)})
		case "files":
			files = true
			err = s.files(into.Files)
		case "links":
			links = true
			err = s.links(into.Links)
		case "directories":
			folders = true
			err = s.folders(into.Directories, "node", true)
		case "absent":
			err = s.folders(into.Absent, "absent", false)
		case "errors":
			err = s.errors(into.Errors)
		case "commands":
			err = s.array(func() error { return s.object(func(string) error { return s.skip() }) })
		case "setters":
			into.Setters, err = s.setters(into.Files != nil)
		default:
			err = s.skip()
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, need := range []struct {
		key string
		is  bool
	}{{"schema_version", version}, {"files", files}, {"links", links}, {"directories", folders}} {
		if !need.is {
			return s.fault("not a capture: no %s", need.key)
		}
	}
	return nil
}

// fields reads an object of known fields; others are skipped.
func (s *scanner) fields(known map[string]func() error) error {
	return s.object(func(key string) error {
		if read, ok := known[key]; ok {
			return read()
		}
		return s.skip()
	})
}

func (s *scanner) into(to *string) func() error {
	return func() (err error) {
		*to, err = s.string(maxText)
		return err
	}
}

// orNull reads null, or what read takes.
func (s *scanner) orNull(read func() error) func() error {
	return func() error {
		c, err := s.peek()
		if err != nil {
			return err
		}
		if c != 'n' {
			return read()
		}
		w, err := s.bare()
		if err == nil && w != "null" {
			err = s.fault("%q is no value", w)
		}
		return err
	}
}

func (s *scanner) bool(to *bool) func() error {
	return func() error {
		w, err := s.bare()
		if err == nil && w != "true" && w != "false" {
			return s.fault("%s, want true or false", w)
		}
		*to = w == "true"
		return err
	}
}

func (s *scanner) int(to *int) func() error {
	return func() error {
		w, err := s.bare()
		if err != nil {
			return err
		}
		if *to, err = strconv.Atoi(w); err != nil || *to < 0 || *to > 1<<30 {
			return s.fault("%s, want a whole number", w)
		}
		return nil
	}
}

func (s *scanner) host(h *Host) error {
	var release, machine string
	var page int
	kernel := map[string]func() error{
		"release":   s.orNull(func() error { h.Kernel.Release = &release; return s.into(&release)() }),
		"machine":   s.orNull(func() error { h.Kernel.Machine = &machine; return s.into(&machine)() }),
		"page_size": s.orNull(func() error { h.Kernel.PageSize = &page; return s.int(&page)() }),
	}
	return s.fields(map[string]func() error{
		"id": s.into(&h.ID), "id_stable": s.bool(&h.IDStable), "label": s.orNull(s.into(&h.Label)),
		"kernel": func() error { return s.fields(kernel) },
	})
}

// name checks a name of the tree.
func (s *scanner) name(name string) error {
	switch {
	case name == ".":
		return s.fault("the root has no entry of its own")
	case strings.HasPrefix(name, "/"):
		return s.fault("an absolute name; names are relative to the machine's root")
	case !fs.ValidPath(name):
		return s.fault("not a canonical name")
	case strings.ContainsRune(name, 0):
		return s.fault("a NUL in a name")
	case strings.Count(name, "/") >= maxElements:
		return s.fault("a name of more than %d elements", maxElements)
	}
	return nil
}

// node checks a name that is a file, a link or a folder, and only one of them.
func (s *scanner) node(name string) error {
	if err := s.name(name); err != nil {
		return err
	}
	if !s.once("node", []byte(name)) {
		return s.fault("occurs twice: a name is one file, link or folder")
	}
	return nil
}

func (s *scanner) files(into map[string]Content) error {
	return s.objectOf(s.node, func(name string) error {
		c, err := s.peek()
		if err != nil {
			return err
		}
		var content Content
		switch c {
		case '"':
			if _, err := s.next(); err != nil {
				return err
			}
			if err := s.text(maxContent); err != nil {
				return err
			}
			content = s.str
		case '{':
			found := false
			err := s.object(func(key string) error {
				if key != "base64" {
					return s.skip()
				}
				found = true
				content, err = s.base64()
				return err
			})
			if err != nil {
				return err
			}
			if !found {
				return s.fault("want text, {\"base64\": ...} or null")
			}
		default:
			if w, err := s.bare(); err != nil {
				return err
			} else if w != "null" {
				return s.fault("want text, {\"base64\": ...} or null")
			}
			if into != nil {
				into[name] = nil
			}
			return nil
		}
		if into != nil {
			into[name] = append(Content{}, content...)
		}
		return nil
	})
}

// base64 reads a content; it holds until the next string.
func (s *scanner) base64() ([]byte, error) {
	c, err := s.next()
	if err != nil {
		return nil, err
	}
	if c != '"' {
		return nil, s.unexpected(c, "a string")
	}
	if err := s.text(maxContentText); err != nil {
		return nil, err
	}
	// The decoder passes over line ends; nobody writes them here.
	s.raw, err = base64.StdEncoding.Strict().AppendDecode(s.raw[:0], s.str)
	if err != nil || bytes.ContainsAny(s.str, "\r\n") {
		return nil, s.fault("not base64")
	}
	if len(s.raw) > maxContent {
		return nil, s.fault("more than %d bytes", maxContent)
	}
	return s.raw, nil
}

func (s *scanner) links(into map[string]string) error {
	return s.objectOf(s.node, func(name string) error {
		target, err := s.string(maxName)
		if err != nil {
			return err
		}
		switch {
		case target == "" || strings.ContainsRune(target, 0):
			return s.fault("%q is no target", target)
		case path.IsAbs(target):
			return s.fault("an absolute link, to %s", target)
		case !below(name, target):
			return s.fault("the link to %s leaves the tree", target)
		}
		if into != nil {
			into[name] = target
		}
		return nil
	})
}

// folders reads names by folder. In the space of nodes a folder must be
// nothing else; where null is allowed it is a folder nobody listed.
func (s *scanner) folders(into map[string][]string, space string, null bool) error {
	check := func(dir string) error {
		if dir != "." {
			if err := s.name(dir); err != nil {
				return err
			}
		}
		if !s.once(space, []byte(dir)) {
			return s.fault("occurs twice: a name is one file, link or folder")
		}
		return nil
	}
	return s.objectOf(check, func(dir string) error {
		if null {
			if c, err := s.peek(); err != nil {
				return err
			} else if c == 'n' {
				err := s.orNull(nil)()
				if err == nil && into != nil {
					into[dir] = nil
				}
				return err
			}
		}
		names := []string{}
		err := s.array(func() error {
			n, err := s.string(maxName)
			if err != nil {
				return err
			}
			full := path.Join(dir, n)
			switch {
			case n == "" || n == "." || n == ".." || strings.ContainsAny(n, "/\x00"):
				return s.fault("%q is no name in a folder", n)
			case len(full) > maxName:
				return s.fault("a name of more than %d bytes", maxName)
			case !s.once(space+" in a folder", []byte(full)):
				return s.fault("%q occurs twice", n)
			}
			if into != nil {
				names = append(names, n)
			}
			return nil
		})
		if err == nil && into != nil {
			into[dir] = names
		}
		return err
	})
}

func (s *scanner) errors(into map[string]map[string]string) error {
	return s.object(func(name string) error {
		if err := s.name(name); err != nil {
			return err
		}
		texts := map[string]string{}
		err := s.object(func(tried string) error {
			switch tried {
			case "read", "list", "link", "open":
			default:
				return s.fault("want read, list, link or open")
			}
			text, err := s.string(maxText)
			if err == nil && text == "" {
				return s.fault("an error says something")
			}
			texts[tried] = text
			return err
		})
		if err == nil && into != nil {
			into[name] = texts
		}
		return err
	})
}

func (s *scanner) setters(keep bool) (all []Setter, err error) {
	err = s.orNull(func() error {
		all = []Setter{}
		return s.array(func() error {
			var one Setter
			err := s.fields(map[string]func() error{"file": s.into(&one.File), "line": s.int(&one.Line), "text": s.into(&one.Text), "after": s.bool(&one.After)})
			if err == nil && keep {
				all = append(all, one)
			}
			return err
		})
	})()
	return all, err
}

// rewind is an input that is read twice.
type rewind struct {
	seek io.ReadSeeker
	from int64
	once io.Reader
	kept bytes.Buffer
	file *os.File
}

func rewinder(r io.Reader) *rewind {
	w := &rewind{once: r}
	if s, ok := r.(io.ReadSeeker); ok {
		// A pipe that is an *os.File cannot seek.
		if at, err := s.Seek(0, io.SeekCurrent); err == nil {
			w.seek, w.from = s, at
		}
	}
	return w
}

func (w *rewind) first() io.Reader {
	if w.seek != nil {
		return w.seek
	}
	return io.TeeReader(w.once, w)
}

// Write keeps what was read.
func (w *rewind) Write(p []byte) (int, error) {
	if w.file == nil && w.kept.Len()+len(p) <= inMemory {
		return w.kept.Write(p)
	}
	if w.file == nil {
		f, err := os.CreateTemp("", "quirkcheck-capture-*")
		if err != nil {
			return 0, fmt.Errorf("keep the capture: %w", err)
		}
		os.Remove(f.Name()) // it lasts as long as it is open
		w.file = f
		if _, err := f.Write(w.kept.Bytes()); err != nil {
			return 0, fmt.Errorf("keep the capture: %w", err)
		}
		w.kept = bytes.Buffer{}
	}
	return w.file.Write(p)
}

func (w *rewind) second() (io.Reader, error) {
	switch {
	case w.seek != nil:
		_, err := w.seek.Seek(w.from, io.SeekStart)
		return w.seek, err
	case w.file != nil:
		_, err := w.file.Seek(0, io.SeekStart)
		return w.file, err
	}
	return &w.kept, nil
}

func (w *rewind) close() {
	if w.file != nil {
		w.file.Close()
	}
}

// recordable reports whether a capture can hold a name: what Read would refuse
// is not written.
func recordable(name string) bool {
	return utf8.ValidString(name) && len(name) <= maxName && strings.Count(name, "/") < maxElements && !strings.ContainsRune(name, 0)
}
