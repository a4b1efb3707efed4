package enforce

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// SysAttrs are the attributes of the machine whose root is the string, "/" for
// the live one.
type SysAttrs string

// Read returns an attribute without the final newline.
func (r SysAttrs) Read(name string) (string, error) {
	f, err := os.Open(filepath.Join(string(r), name))
	if err != nil {
		return "", pathless(err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return "", pathless(err)
	}
	return strings.TrimSuffix(string(b), "\n"), nil
}

// LowestBelow is the lowest max_sectors_kb of the devices below one, 0 where
// there is none or one cannot be read.
func (r SysAttrs) LowestBelow(device string) uint64 {
	slaves, err := os.ReadDir(filepath.Join(string(r), "sys/block", device, "slaves"))
	if err != nil {
		return 0
	}
	lowest := uint64(0)
	for _, s := range slaves {
		v, err := r.Read(attrOf(s.Name()))
		n, errN := strconv.ParseUint(v, 10, 64)
		if err != nil || errN != nil {
			continue // a partition below has no queue of its own
		}
		if lowest == 0 || n < lowest {
			lowest = n
		}
	}
	return lowest
}

// Write writes an attribute in one call; it never creates one. Truncating means
// nothing to sysfs and makes a copied tree's file hold the value alone.
func (r SysAttrs) Write(name, value string) error {
	f, err := os.OpenFile(filepath.Join(string(r), name), os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return pathless(err)
	}
	_, err = f.Write([]byte(value))
	return pathless(errors.Join(err, f.Close()))
}

// pathless drops the path, which callers name themselves.
func pathless(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// Dmsetup is Maps by the program of that name.
type Dmsetup struct{}

// A path of a multipath map in dmsetup status: MAJOR:MINOR and A for active or
// F for failed (kernel document device-mapper/dm-queue-length, status).
var reUsablePath = regexp.MustCompile(`\b\d+:\d+ A\b`)

// Suspend flushes and suspends a map that has a usable path; without one the
// flush would wait for ever.
func (Dmsetup) Suspend(ctx context.Context, name string) error {
	status, err := dmsetup(ctx, "status", name)
	if err != nil {
		return err
	}
	if !reUsablePath.MatchString(status) {
		return errors.New("the map has no usable path; a flush would never end")
	}
	_, err = dmsetup(ctx, "suspend", name)
	return err
}

// Resume resumes a map; one that is not suspended stays as it is.
func (Dmsetup) Resume(ctx context.Context, name string) error {
	_, err := dmsetup(ctx, "resume", name)
	return err
}

// NoMaps refuses: the maps of a copied tree are not this machine's.
type NoMaps struct{}

var errCopiedTree = errors.New("maps of a copied tree cannot be suspended or resumed")

// Suspend always fails.
func (NoMaps) Suspend(context.Context, string) error { return errCopiedTree }

// Resume always fails.
func (NoMaps) Resume(context.Context, string) error { return errCopiedTree }

func dmsetup(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "dmsetup", args...)
	// Its own group: an interrupt at the terminal is ours to handle, and must
	// not end a resume half-way.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return "", errors.New("dmsetup is not installed (Debian package dmsetup)")
	}
	if err != nil {
		return "", fmt.Errorf("dmsetup %s: %w: %.200s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}
