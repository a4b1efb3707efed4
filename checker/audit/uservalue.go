package audit

import (
	"fmt"
	"regexp"

	"github.com/quirkcheck/quirkcheck/checker/enforce"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

// userValue is a max_sectors_kb that is not what the running kernel chooses.
type userValue struct {
	kib kernel.Num // set by somebody, and carried over; unknown for none
	// why says what the value rests on, or why one that differs is not called
	// somebody's; "" where the value is the kernel's own.
	why     string
	differs bool
}

// userValue compares what was observed with what the running kernel chooses.
// They differ because somebody set the limit, or because the prediction is
// wrong, or because a member of a stack changed after it was assembled: only
// where the last two are out is it called somebody's.
func (h *Host) userValue(d *device) userValue {
	seen, own := d.inputs.Observed.MaxSectorsKB, d.from.DefaultKB
	if !own.Known {
		own = d.from.MaxSectorsKB
	}
	switch {
	case !seen.Known:
		return userValue{}
	case !own.Known:
		return userValue{why: fmt.Sprintf("what the running kernel chooses by itself is not known, so neither is whether somebody set the present %d KiB", seen.V)}
	case seen.V == own.V:
		return userValue{}
	}
	u := userValue{differs: true}
	setter := setterOf(h.options.Setters, seen.V)
	by := ""
	if setter != "" {
		by = " (" + setter + ")"
	}
	sure := certain(d.from, seen) || h.unexplained(d, seen)
	switch {
	case setter == "" && len(d.sub.Stack.Members) > 0 && !sure:
		u.why = fmt.Sprintf("the running kernel would choose %d KiB and %d is set; a member may have changed after it was assembled, so it is not taken for somebody's choice", own.V, seen.V)
	case setter == "" && !sure:
		u.why = fmt.Sprintf("the running kernel should choose %d KiB and %d is set, but that prediction is not certain%s, so it is not taken for somebody's choice", own.V, seen.V, missing(d.from))
	case len(d.sub.Stack.Members) > 0:
		u.kib = seen
		u.why = fmt.Sprintf("%d KiB was set%s, or is left from before a member changed; the running kernel would choose %d; it is carried over", seen.V, by, own.V)
	default:
		u.kib = seen
		u.why = fmt.Sprintf("%d KiB was set by an administrator or a rule%s, since the running kernel chooses %d by itself; it is carried over", seen.V, by, own.V)
	}
	return u
}

// certain reports whether a prediction that differs from what was seen is sure
// enough to make that somebody's choice.
func certain(p kernel.Prediction, seen kernel.Num) bool {
	return p.Certainty == kernel.High || p.Certainty == kernel.SourceOnly && plausible(seen.V)
}

// unexplained reports whether no value of the inputs that are not known makes
// the running kernel choose what was seen: with each the prediction is sure, and
// another.
func (h *Host) unexplained(d *device, seen kernel.Num) bool {
	in := d.inputs
	if len(d.sub.Stack.Members) > 0 {
		return false
	}
	modes, hosts := []string{in.IOMMU}, []kernel.Truth{in.SASHost}
	if in.IOMMU == "" {
		modes = []string{"translated", "passthrough", "off"}
	}
	if in.SASHost == kernel.Unknown {
		hosts = []kernel.Truth{kernel.True, kernel.False}
	}
	for _, mode := range modes {
		for _, sas := range hosts {
			in.IOMMU, in.SASHost, in.ListedTo = mode, sas, in.ListedFrom
			if p := h.options.Predict(h.from, in); !certain(p, seen) || p.DefaultKB == seen {
				return false
			}
		}
	}
	return true
}

func missing(p kernel.Prediction) string {
	if len(p.Missing) == 0 {
		return ""
	}
	return " (not known: " + p.Missing[0].Input + ")"
}

// plausible reports whether a limit in KiB is one that people set: a power of
// two, one below for a limit of an odd sector, or a former default.
func plausible(kib uint64) bool {
	return kib >= 4 && (kib&(kib-1) == 0 || kib&(kib+1) == 0 || kib == 1280)
}

// setterOf names the file that sets a value.
func setterOf(list []enforce.Setter, kib uint64) string {
	re := regexp.MustCompile(fmt.Sprintf(`max_sectors_kb\}?\s*"?\s*:?=?\s*"?%d\b`, kib))
	for _, s := range list {
		if re.MatchString(s.Text) {
			return fmt.Sprintf("%s:%d", s.File, s.Line)
		}
	}
	return ""
}
