package capture

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/quirkcheck/quirkcheck/probe"
)

// Options of Take.
type Options struct {
	Probe probe.Options
	// IncludeSerials keeps everything as it is.
	IncludeSerials bool
	// Label is the user's name for the host.
	Label       string
	ToolVersion string
	Now         time.Time
	// Key makes the host's ID; empty: a random one, for this capture only.
	Key    []byte
	Kernel Kernel
	// HostNames are names of the machine beside those its own files tell.
	HostNames []string
	Setters   []Setter
}

// Take reads the machine rooted at sys and returns its capture, and what was
// replaced in it. Beside what a scan reads it asks for the devices' own counters
// of errors, which a scan with a log reads, and for the names a device can be
// called by: partitions, and the links in dev/disk/by-id. Errors are those of
// probe.Read.
func Take(ctx context.Context, sys fs.FS, o Options) (*Capture, Summary, error) {
	rec := newRecorder()
	seen := probe.Record(sys, rec)
	o.Probe.Counters = true
	if _, err := probe.Read(ctx, seen, o.Probe); err != nil {
		return nil, Summary{}, err
	}
	for _, n := range rec.list(sys, "sys/class/block") {
		_, _ = probe.ResolveName(seen, n) // a name that leads nowhere is an answer too
	}
	for _, n := range rec.list(sys, "dev/disk/by-id") {
		_, _ = probe.ResolveName(seen, "/dev/disk/by-id/"+n)
	}
	c := rec.capture()
	c.SchemaVersion = SchemaVersion
	c.Tool = Tool{Name: "quirkcheck", Version: o.ToolVersion}
	c.GeneratedAt = o.Now.UTC().Format(time.RFC3339)
	c.Host = Host{Label: o.Label, Kernel: o.Kernel}
	c.Setters = o.Setters

	r := newRedactor(append(hostNames(sys), o.HostNames...))
	redacted := r.redact(c)
	var err error
	if c.Host.ID, c.Host.IDStable, err = hostID(sys, o.Key, r); err != nil {
		return nil, Summary{}, err
	}
	redacted.Host.ID, redacted.Host.IDStable = c.Host.ID, c.Host.IDStable
	if o.IncludeSerials {
		c.Redaction = Redaction{Serials: "included", Counts: map[string]int{}, Note: "Nothing was replaced."}
		return c, Summary{}, nil
	}
	if r.collision != "" {
		return nil, Summary{}, fmt.Errorf("redact the capture: two names became one: %s", r.collision)
	}
	sum := r.summary()
	redacted.Redaction = Redaction{Serials: "replaced", Counts: sum.counts(),
		Note: "Serial numbers, world wide names, UUIDs, network addresses, names of targets, of the host and of its volumes are pseudonyms, each the same throughout this capture and without meaning outside it."}
	return redacted, sum, nil
}

// list lists a folder that the probe does not.
func (r *recorder) list(sys fs.FS, name string) []string {
	entries, err := fs.ReadDir(sys, name)
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	r.Folder(name, names, err)
	return names
}

// short returns the first word of a small file, "" where it cannot be read.
func short(sys fs.FS, name string) string {
	f, err := sys.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return ""
	}
	first, _, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	return strings.TrimSpace(first)
}

func hostNames(sys fs.FS) []string {
	return []string{short(sys, "proc/sys/kernel/hostname"), short(sys, "etc/hostname")}
}

// hostID is the HMAC of the machine-id, or where a tree has none, of the
// serial numbers and names of its disks.
func hostID(sys fs.FS, key []byte, r *redactor) (id string, stable bool, err error) {
	what := short(sys, "etc/machine-id")
	if what == "" || what == "uninitialized" {
		what = strings.Join(r.hardware(), "\n")
	}
	if stable = len(key) > 0 && what != ""; !stable {
		key = make([]byte, 32)
		if _, err := rand.Read(key); err != nil {
			return "", false, fmt.Errorf("make the host's id: %w", err)
		}
	}
	mac := hmac.New(sha256.New, key)
	fmt.Fprintf(mac, "quirkcheck host id\n%s", what)
	return hex.EncodeToString(mac.Sum(nil)[:16]), stable, nil
}

// recorder takes down what the probe asks. Where it asks twice, the last
// answer counts: a device that vanished meanwhile is gone.
type recorder struct {
	mu     sync.Mutex
	c      *Capture
	opened map[string]bool
	exists map[string]bool
	absent map[string]bool
}

func newRecorder() *recorder {
	return &recorder{
		c: &Capture{Files: map[string]Content{}, Links: map[string]string{}, Directories: map[string][]string{},
			Absent: map[string][]string{}, Errors: map[string]map[string]string{}, Commands: []Command{}},
		opened: map[string]bool{}, exists: map[string]bool{}, absent: map[string]bool{},
	}
}

// failed takes down an error and reports whether there was one.
func (r *recorder) failed(tried, name string, err error) bool {
	switch {
	case err == nil:
		delete(r.absent, name)
		return false
	case errors.Is(err, fs.ErrNotExist):
		r.absent[name] = true
		delete(r.c.Files, name)
		delete(r.c.Links, name)
		delete(r.c.Directories, name)
		return true
	}
	if r.c.Errors[name] == nil {
		r.c.Errors[name] = map[string]string{}
	}
	r.c.Errors[name][tried] = err.Error()
	return true
}

func (r *recorder) File(name string, content []byte, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if recordable(name) && !r.failed("read", name, err) {
		r.c.Files[name] = append(Content{}, content...)
	}
}

func (r *recorder) Link(name, target string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !recordable(name) || len(target) > maxName || !utf8.ValidString(target):
	case errors.Is(err, fs.ErrInvalid), errors.Is(err, syscall.EINVAL):
		r.exists[name] = true // something else than a link
		delete(r.absent, name)
	case r.failed("link", name, err):
	case !below(name, target):
		// A reader of captures takes no such link, and no machine has one.
		r.failed("link", name, errors.New("link leaves the tree"))
	default:
		r.c.Links[name] = target
	}
}

func (r *recorder) Folder(name string, names []string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if recordable(name) && !r.failed("list", name, err) {
		r.c.Directories[name] = slices.DeleteFunc(append([]string{}, names...), func(n string) bool { return !recordable(name + "/" + n) })
	}
}

func (r *recorder) Opened(name string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if recordable(name) && !r.failed("open", name, err) {
		r.opened[name] = true
	}
}

// capture puts together what was taken down.
func (r *recorder) capture() *Capture {
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.c.FS() // what is seen to be there by what lies in it
	for name := range r.opened {
		if name != "." && !known.there[name] && !r.absent[name] {
			r.c.Directories[name] = nil
		}
	}
	known = r.c.FS()
	for name := range r.exists {
		_, file := r.c.Files[name]
		_, link := r.c.Links[name]
		if name != "." && !file && !link && !known.there[name] && !r.absent[name] {
			r.c.Files[name] = nil
		}
	}
	for name := range r.absent {
		dir := path.Dir(name)
		// A listing says it already.
		if names := r.c.Directories[dir]; names == nil || slices.Contains(names, path.Base(name)) {
			r.c.Absent[dir] = append(r.c.Absent[dir], path.Base(name))
		}
	}
	for _, names := range r.c.Absent {
		slices.Sort(names)
	}
	return r.c
}

func readSome(entries *[]fs.DirEntry, n int) ([]fs.DirEntry, error) {
	if n <= 0 {
		all := *entries
		*entries = nil
		return all, nil
	}
	if len(*entries) == 0 {
		return nil, io.EOF
	}
	n = min(n, len(*entries))
	some := (*entries)[:n]
	*entries = (*entries)[n:]
	return some, nil
}
