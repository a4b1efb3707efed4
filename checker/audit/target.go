package audit

import (
	"fmt"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

// lastMinor is the last MINOR of each MAJOR that has ended.
var lastMinor = map[int]int{2: 6, 3: 19, 4: 20, 5: 19, 6: 19}

// ParseTarget reads a release to go to. The error of a text that is none, or of
// a version that never was, gives examples. A version newer than any that is
// known is none of them.
func ParseTarget(text string) (kernel.Release, error) {
	const examples = "; examples: 6.18.15, 6.1.0-54-amd64, 6.17.10-100.fc41.x86_64"
	r, err := kernel.Parse(text)
	if err != nil {
		return kernel.Release{}, fmt.Errorf("%w%s", err, examples)
	}
	last, ended := lastMinor[r.Major]
	switch {
	case r.Major < 2 || r.Major == 2 && r.Minor < 6:
		return kernel.Release{}, fmt.Errorf("kernel release %q: nothing is known of kernels before 2.6%s", text, examples)
	case ended && r.Minor > last:
		return kernel.Release{}, fmt.Errorf("kernel release %q: there was no Linux %d.%d, %d.%d was the last before %d.0%s", text, r.Major, r.Minor, r.Major, last, r.Major+1, examples)
	}
	return r, nil
}

// Series reports whether a release is given as a series alone, 6.1, which stands
// for its first release: what later points changed is not in it.
func Series(r kernel.Release) bool {
	return r.Raw == fmt.Sprintf("%d.%d", r.Major, r.Minor)
}
