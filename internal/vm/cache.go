package vm

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// cacheFormat goes into every key: raise it when what a layer holds changes.
const cacheFormat = "1"

// layerAge is how long an unused layer is kept.
const layerAge = 30 * 24 * time.Hour

// cacheDir returns the folder of everything that outlives a run.
func cacheDir() (string, error) {
	dir := os.Getenv("QUIRKCHECK_VM_CACHE")
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", fmt.Errorf("find cache folder: %w", err)
		}
		dir = filepath.Join(user, "quirkcheck", "vm")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// key names a cached thing by what it is made from.
type key struct{ b strings.Builder }

func newKey(what ...string) *key {
	k := &key{}
	k.add(cacheFormat)
	k.add(what...)
	return k
}

func (k *key) add(parts ...string) {
	for _, p := range parts {
		fmt.Fprintf(&k.b, "%d:%s\n", len(p), p)
	}
}

// file adds a file's path, size and time of change.
func (k *key) file(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	k.add(path, fmt.Sprint(st.Size(), st.ModTime().UnixNano()))
	return nil
}

func (k *key) String() string {
	sum := sha256.Sum256([]byte(k.b.String()))
	return hex.EncodeToString(sum[:12])
}

// cachedFile returns dir/name, made by fill when it is not there. Concurrent
// makers do the work twice and agree on the result, as rename is atomic.
func cachedFile(dir, name string, fill func(w io.Writer) error) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(dir, name)
	now := time.Now()
	if err := os.Chtimes(path, now, now); err == nil { // there, and in use
		return path, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	f, err := os.CreateTemp(dir, ".new-*")
	if err != nil {
		return "", err
	}
	defer os.Remove(f.Name()) // gone already when all went well
	err = fill(f)
	if err == nil {
		err = f.Chmod(0o755)
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return "", fmt.Errorf("make %s: %w", name, err)
	}
	return path, os.Rename(f.Name(), path)
}

// prune removes the layers that nobody used for layerAge, and leftovers of
// runs that were killed while writing.
func prune(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if st, err := e.Info(); err == nil && time.Since(st.ModTime()) > layerAge {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// lock takes an exclusive lock on dir/name.lock and returns what releases it.
// The lock goes with the process too.
func lock(dir, name string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, name+".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err != unix.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	return func() { f.Close() }, nil
}
