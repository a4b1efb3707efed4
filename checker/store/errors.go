package store

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/mattn/go-sqlite3"
)

// CorruptError says that a file is not a state that this quirkcheck can read:
// no database, another program's, a damaged one, or a newer one. The file is
// left as it is.
type CorruptError struct {
	Path  string
	Why   string
	Newer bool  // whole, but its schema is of a newer quirkcheck
	Err   error // what SQLite said, or nil
}

func (e *CorruptError) Error() string { return fmt.Sprintf("state %s: %s", e.Path, e.Why) }

func (e *CorruptError) Unwrap() error { return e.Err }

// Hint says what to do next.
func (e *CorruptError) Hint() string {
	if e.Newer {
		return fmt.Sprintf("use the newer quirkcheck that wrote %s, or name another file with --state", e.Path)
	}
	return fmt.Sprintf("move %s and %s-journal to another folder (they hold what enforce changed in this boot, "+
		"and may be worth a look with sqlite3) and run again; until a reboot, revert cannot undo what only they name", e.Path, e.Path)
}

// ErrBusy says that another process was writing to the state for longer than
// this one was willing to wait.
var ErrBusy = errors.New("another process is writing to the state")

// ErrSettled says that a write was already brought to an end in another way.
var ErrSettled = errors.New("already settled")

// HeldError says that another process holds the lock, and which.
type HeldError struct {
	Path    string
	PID     int       // 0: it did not say
	Since   time.Time // zero: it did not say
	Command string    // as it was given to Lock; "": it did not say
}

func (e *HeldError) Error() string {
	if e.PID == 0 {
		return fmt.Sprintf("%s is locked by another process", e.Path)
	}
	return fmt.Sprintf("%s is locked by process %d (%s) since %s", e.Path, e.PID, e.Command, e.Since.UTC().Format(time.RFC3339))
}

// Hint returns the next step after an error of this package, or "".
func Hint(err error) string {
	var corrupt *CorruptError
	var held *HeldError
	switch {
	case errors.As(err, &corrupt):
		return corrupt.Hint()
	case errors.As(err, &held):
		if held.PID == 0 {
			return "wait until the other quirkcheck has ended, and run again"
		}
		return fmt.Sprintf("wait until process %d has ended, and run again", held.PID)
	case errors.Is(err, ErrBusy):
		return "wait until the other quirkcheck has ended, and run again"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "free some space, or name a file on another disk with --state"
	case errors.Is(err, syscall.EROFS):
		return "name a file on a writable file system with --state (/run/quirkcheck/state.db lasts as long as the boot, as the limits do)"
	case errors.Is(err, fs.ErrPermission):
		return "run as root, or name another file with --state"
	}
	return ""
}

// explain turns what SQLite said while doing op into an error of this package:
// one that errors.Is finds to be ENOSPC, EROFS, fs.ErrPermission or ErrBusy, or
// a *CorruptError. Every statement here is a constant that works on a whole
// file, so one that SQLite cannot make sense of means damage.
func explain(op, path string, err error) error {
	var lite sqlite3.Error
	var corrupt *CorruptError
	if err == nil || errors.As(err, &corrupt) {
		return err
	}
	if !errors.As(err, &lite) {
		return fmt.Errorf("%s state %s: %w", op, path, err)
	}
	as := func(kind error) error {
		return fmt.Errorf("%s state %s: %w (SQLite: %s)", op, path, kind, lite.Error())
	}
	switch lite.Code {
	case sqlite3.ErrFull:
		return as(syscall.ENOSPC)
	case sqlite3.ErrBusy, sqlite3.ErrLocked:
		return as(ErrBusy)
	case sqlite3.ErrReadonly, sqlite3.ErrPerm:
		if access(path, nil) == nil && foreignFormat(path) {
			return &CorruptError{Path: path, Why: "damaged: its header names a format that SQLite only reads", Err: err}
		}
		return as(access(path, syscall.EROFS))
	case sqlite3.ErrCantOpen:
		if lite.SystemErrno != 0 {
			return as(lite.SystemErrno)
		}
		if err := access(path, nil); err != nil {
			return as(err)
		}
		return &CorruptError{Path: path, Why: "SQLite cannot open it", Err: err}
	case sqlite3.ErrIoErr:
		if lite.ExtendedCode == sqlite3.ErrIoErrShortRead {
			return &CorruptError{Path: path, Why: "damaged: shorter than it was", Err: err}
		}
		if lite.SystemErrno != 0 {
			return as(lite.SystemErrno)
		}
	case sqlite3.ErrNotADB:
		return &CorruptError{Path: path, Why: "not an SQLite database, or its first page is damaged", Err: err}
	case sqlite3.ErrCorrupt, sqlite3.ErrFormat, sqlite3.ErrError, sqlite3.ErrSchema, sqlite3.ErrTooBig,
		sqlite3.ErrMismatch, sqlite3.ErrConstraint:
		return &CorruptError{Path: path, Why: "damaged: SQLite says: " + lite.Error(), Err: err}
	}
	return fmt.Errorf("%s state %s: %w", op, path, err)
}

// foreignFormat reports a file whose header asks for a newer SQLite to write it
// (SQLite, Database File Format, 1.3.3: the file format write version at offset
// 18 is 1 or 2). This package never writes one.
func foreignFormat(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var version [1]byte
	_, err = f.ReadAt(version[:], 18)
	return err == nil && version[0] > 2
}

// Bits of access(2).
const (
	canRead   = 4
	canWrite  = 2
	canSearch = 1
)

// access returns why path cannot be written (EROFS, EACCES, EPERM), else
// otherwise.
func access(path string, otherwise error) error {
	if err := syscall.Access(path, canRead|canWrite); err != nil {
		return err
	}
	if err := syscall.Access(filepath.Dir(path), canWrite|canSearch); err != nil {
		return err
	}
	return otherwise
}
