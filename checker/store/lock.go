package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// FileLock is held from Lock to Unlock or to the death of the process.
type FileLock struct{ f *os.File }

// holder is what the lock file says of the process that has it.
type holder struct {
	PID     int       `json:"pid"`
	Since   time.Time `json:"since"`
	Command string    `json:"command"`
}

const (
	maxHolderBytes = 4096
	maxCommand     = 512 // each byte may take six in JSON
	// A process that has just taken the lock needs a moment to say who it is.
	holderWait, holderPoll = 250 * time.Millisecond, 5 * time.Millisecond
)

// Lock takes the lock of the state at path, flock(2) on path.lock, so that one
// run at a time plans, writes and reverts; command is what others are told. It
// does not wait. The state itself need not exist; its folder is made.
//
// Errors: *HeldError, fs.ErrPermission, syscall.EROFS, syscall.ENOSPC.
func Lock(path, command string) (*FileLock, error) {
	path, err := resolve(path)
	if err != nil {
		return nil, err
	}
	if err := createFolder(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("create the folder of the state: %w", err)
	}
	path += ".lock"
	// The file stays after Unlock: to unlink it would let a second process lock
	// a new one while a third still waits for the old.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		f.Close()
		return nil, errors.Join(fmt.Errorf("lock %s: not a plain file", path), err)
	}
	for deadline := time.Now().Add(holderWait); ; time.Sleep(holderPoll) {
		err := flock(f)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		h, ok := readHolder(f)
		if ok || time.Now().After(deadline) {
			f.Close()
			return nil, &HeldError{Path: path, PID: h.PID, Since: h.Since, Command: h.Command}
		}
	}
	if err := writeHolder(f, command); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &FileLock{f}, nil
}

func flock(f *os.File) error {
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			return err
		}
	}
}

// readHolder says who has the lock. It is not ok where the file names nobody or
// a process that is dead: the one that has it now has not yet written.
func readHolder(f *os.File) (h holder, ok bool) {
	text, err := io.ReadAll(io.NewSectionReader(f, 0, maxHolderBytes))
	if err != nil || json.Unmarshal(text, &h) != nil || h.PID <= 0 {
		return holder{}, false
	}
	// In another PID namespace it may be alive and unknown here.
	return h, !errors.Is(syscall.Kill(h.PID, 0), syscall.ESRCH)
}

func writeHolder(f *os.File, command string) error {
	command = strings.ToValidUTF8(command, "?")
	if len(command) > maxCommand {
		command = strings.ToValidUTF8(command[:maxCommand], "")
	}
	text, err := json.Marshal(holder{PID: os.Getpid(), Since: time.Now().UTC().Truncate(time.Second), Command: command})
	if err != nil {
		return err
	}
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err = f.WriteAt(append(text, '\n'), 0)
	return err
}

// Unlock releases the lock.
func (l *FileLock) Unlock() error {
	err := l.f.Truncate(0) // the file names nobody while nobody has it
	return errors.Join(err, l.f.Close())
}
