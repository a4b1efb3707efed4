package vm

import (
	"fmt"
	"strings"
	"time"
)

// MissingError says what the bench needs and does not have.
type MissingError struct {
	What    string // "qemu-system-x86_64", "Linux 6.16"
	Package string // the Debian package that brings it, or ""
	Err     error  // how it was found missing, or nil
}

func (e *MissingError) Error() string {
	s := e.What + " is missing"
	if e.Package != "" {
		s += " (package " + e.Package + ")"
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *MissingError) Unwrap() error { return e.Err }

// PanicError says that the guest's kernel died.
type PanicError struct {
	Doing string // what the test was waiting for
	Line  string // the kernel's own words
	Log   string // last lines of the console
}

func (e *PanicError) Error() string {
	return fmt.Sprintf("%s: guest panicked: %s%s", e.Doing, e.Line, indent(e.Log))
}

// TimeoutError says that the guest did not answer in time. It unwraps to
// context.DeadlineExceeded or context.Canceled where a context ended the wait.
type TimeoutError struct {
	Doing string
	After time.Duration
	Log   string
	Err   error
}

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("%s: no answer from the guest after %s%s", e.Doing, e.After.Round(time.Millisecond), indent(e.Log))
}

func (e *TimeoutError) Unwrap() error { return e.Err }

// GoneError says that QEMU or the agent ended without a panic in sight.
type GoneError struct {
	Doing string
	Err   error  // how QEMU ended, or what broke the channel
	QEMU  string // what QEMU said on its standard error
	Log   string
}

func (e *GoneError) Error() string {
	s := fmt.Sprintf("%s: the guest is gone", e.Doing)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.QEMU != "" {
		s += ": " + strings.TrimSpace(e.QEMU)
	}
	return s + indent(e.Log)
}

func (e *GoneError) Unwrap() error { return e.Err }

// EmulatorError says that the guest stopped through a fault of the emulator
// and not of the test: an RCU stall with asm_exc_int3 on the stack, which is a
// static key patched while the other emulated processor ran it.
type EmulatorError struct {
	Doing string
	Log   string
}

func (e *EmulatorError) Error() string {
	return fmt.Sprintf("%s: emulator fault: RCU stall in asm_exc_int3%s", e.Doing, indent(e.Log))
}

// DiskError says which of the configured disks did not come up.
type DiskError struct {
	Serial string
	Have   []string // what is there, as "name=serial"
	Log    string
}

func (e *DiskError) Error() string {
	return fmt.Sprintf("no disk with serial %q in the guest, which has %s%s", e.Serial, strings.Join(e.Have, " "), indent(e.Log))
}

func indent(log string) string {
	log = strings.TrimSpace(log)
	if log == "" {
		return ""
	}
	return "\n\t" + strings.ReplaceAll(log, "\n", "\n\t")
}
