package capture

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// RunningKernel is what the running kernel says of itself.
func RunningKernel() Kernel {
	page := os.Getpagesize()
	k := Kernel{PageSize: &page}
	var u syscall.Utsname
	if syscall.Uname(&u) == nil {
		release, machine := cString(u.Release[:]), cString(u.Machine[:])
		k.Release, k.Machine = &release, &machine
	}
	return k
}

// cString takes the characters of C, which are signed on some machines.
func cString[T int8 | uint8](chars []T) string {
	var b strings.Builder
	for _, c := range chars {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

// HostKey returns the key in a file, which is made where it is missing, for
// its owner only. Errors say why there is none: fs.ErrPermission for who may
// neither read nor make it.
func HostKey(name string) ([]byte, error) {
	key, err := readKey(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	key = make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, err
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), ".host.key.*") // 0600
	if err != nil {
		return nil, err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(key)
	if err := errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return nil, err
	}
	if err := os.Link(tmp.Name(), name); err != nil && !errors.Is(err, fs.ErrExist) { // another run was first
		return nil, err
	}
	return readKey(name)
}

func readKey(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s: want a file that only its owner may read", name)
	}
	key, err := io.ReadAll(io.LimitReader(f, 64))
	if err == nil && len(key) < 32 {
		return nil, fmt.Errorf("%s: %d bytes are no key", name, len(key))
	}
	return key, err
}
