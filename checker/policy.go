package checker

import (
	"strings"
	"time"

	"github.com/quirkcheck/quirkcheck/quirks"
)

// Policy is what the owner of the machine decides.
type Policy struct {
	FailOn        quirks.Severity // affected findings at or above it fail; "" is medium, "none" never
	FailOnUnknown bool
	Suppress      []Suppression
	Now           time.Time // for the expiry of suppressions and the database's age
}

// Suppression sets a finding aside, for a reason and until a day.
type Suppression struct {
	Quirk  string    // id of the entry or check
	Model  string    // glob over the device's model, "" for all
	Reason string    // shown with the finding
	Until  time.Time // the day after which it holds no longer
}

// suppress applies the first suppression in force to an affected, unknown or
// mitigated finding.
func (p Policy) suppress(sub *quirks.Subject, f *Finding) {
	for _, s := range p.Suppress {
		if s.Quirk != f.Quirk || !p.Now.Before(s.Until.AddDate(0, 0, 1)) {
			continue
		}
		if s.Model != "" {
			pat, err := quirks.CompilePattern(s.Model)
			if err != nil || !pat.Match(modelOf(sub)) {
				continue
			}
		}
		f.Verdict = Suppressed
		f.Advice = []string{"suppressed until " + s.Until.Format(time.DateOnly) + ": " + s.Reason}
		return
	}
}

func modelOf(sub *quirks.Subject) string {
	for _, t := range []quirks.Text{sub.Device.Model, sub.Device.Product, sub.SCSI.Product} {
		if t.Known {
			return strings.Trim(t.S, " \x00")
		}
	}
	return ""
}
