package quirks

import "github.com/quirkcheck/quirkcheck/internal/kernel"

// Truth is the three-valued answer of a predicate: False, Unknown or True.
type Truth = kernel.Truth

// The answers. Their order makes min a conjunction and max a disjunction.
const (
	False   = kernel.False
	Unknown = kernel.Unknown
	True    = kernel.True
)

func truthOf(b bool) Truth {
	if b {
		return True
	}
	return False
}
