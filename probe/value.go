package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// State tells what is known about a fact; the four are never merged.
type State uint8

// The states. The zero State is NotAsked.
const (
	NotAsked   State = iota // nobody looked, or looking is forbidden
	Absent                  // looked for and not there
	Unreadable              // there, and could not be read or understood
	Known
)

func (s State) String() string {
	switch s {
	case Known:
		return "known"
	case Absent:
		return "absent"
	case Unreadable:
		return "unreadable"
	}
	return "not-asked"
}

// Value is a fact with its state and the file, relative to the machine's
// root, that it came from. Err says why it is not known, where there is more
// to say than the state does.
type Value[T any] struct {
	V      T
	State  State
	Source string
	Err    error
}

// Ok reports whether the value is known.
func (v Value[T]) Ok() bool { return v.State == Known }

func known[T any](v T, source string) Value[T] { return Value[T]{V: v, State: Known, Source: source} }

// stateOf sorts a read error: missing, there and unreadable, or of a recording
// that does not say.
func stateOf(err error) State {
	switch {
	case err == nil:
		return Known
	case errors.Is(err, ErrNotRecorded):
		return NotAsked
	case errors.Is(err, fs.ErrNotExist):
		return Absent
	}
	return Unreadable
}

func failed[T any](err error, source string) Value[T] {
	v := Value[T]{State: stateOf(err), Source: source}
	if v.State == Unreadable {
		v.Err = err
	}
	return v
}

// parseUint reads a decimal attribute. Its error quotes what was there.
func parseUint(text string) (uint64, error) {
	n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%.40q is not a whole number", text)
	}
	return n, nil
}
