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
	// Proofs are what a log shows of the kernel's own quirks (nil: no log).
	Proofs Proofs
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
		if !s.concerns(sub, f.Quirk) || s.expired(p.Now) {
			continue
		}
		f.Verdict = Suppressed
		f.Advice = []string{"suppressed until " + s.Until.Format(time.DateOnly) + ": " + s.Reason}
		return
	}
}

// concerns reports whether the rule is about this quirk on this device.
func (s Suppression) concerns(sub *quirks.Subject, quirk string) bool {
	if s.Quirk != quirk {
		return false
	}
	if s.Model == "" {
		return true
	}
	pat, err := quirks.CompilePattern(s.Model)
	return err == nil && pat.Match(modelOf(sub))
}

// expired reports whether the rule's last day is over.
func (s Suppression) expired(now time.Time) bool { return !now.Before(s.Until.AddDate(0, 0, 1)) }

// SuppressionOf is one rule about a quirk, as it stands for a device.
type SuppressionOf struct {
	Suppression
	Expired    bool
	OtherModel bool // the rule's model is not the device's
}

// Suppressions lists the rules about a quirk, also those that do not hold for
// the device or no longer.
func (p Policy) Suppressions(sub *quirks.Subject, quirk string) []SuppressionOf {
	var out []SuppressionOf
	for _, s := range p.Suppress {
		if s.Quirk == quirk {
			out = append(out, SuppressionOf{Suppression: s, Expired: s.expired(p.Now), OtherModel: !s.concerns(sub, quirk)})
		}
	}
	return out
}

func modelOf(sub *quirks.Subject) string {
	for _, t := range []quirks.Text{sub.Device.Model, sub.Device.Product, sub.SCSI.Product} {
		if t.Known {
			return strings.Trim(t.S, " \x00")
		}
	}
	return ""
}
