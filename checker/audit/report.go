package audit

import (
	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// Report is the report of a scan of the present, with what another kernel makes
// of it. Its JSON form is the schema report.v1.0 with the additions that the
// schema audit.v1.0 describes.
type Report struct {
	*checker.Report
	From        Kernel       `json:"from"`
	Target      Kernel       `json:"target"`
	Outcome     Outcome      `json:"outcome"`
	Devices     []*Device    `json:"devices"`
	Regressions []Regression `json:"regressions"`
	Questions   []Question   `json:"questions"`
	Deploy      []Step       `json:"deploy"`
}

// Kernel is a release; null where it is not known.
type Kernel struct {
	Release  *string `json:"release"`
	Upstream *string `json:"upstream"`
	// Beyond: newer than the newest release whose rules are known.
	Beyond bool `json:"beyond"`
	// Source of an installed kernel's release: the file or package that told it.
	Source string `json:"source,omitempty"`
}

// Outcome counts devices by the class of their change.
type Outcome struct {
	NewRisk        int `json:"new_risk"`
	FixedByUpgrade int `json:"fixed_by_upgrade"`
	Unchanged      int `json:"unchanged"`
	Unknown        int `json:"unknown"`
	Warned         int `json:"warned"` // devices with a warning, of whatever class
}

// Device is a device of the scan and what becomes of it.
type Device struct {
	*checker.Device
	Predicted Predicted `json:"predicted"`
	Change    Change    `json:"change"`
}

// Predicted is what the device will show; null where it is not known.
type Predicted struct {
	MaxSectorsKB   *uint64   `json:"max_sectors_kb"`
	MaxHWSectorsKB *uint64   `json:"max_hw_sectors_kb"`
	OptimalIOSize  *uint64   `json:"optimal_io_size"`
	ReadAheadKB    *uint64   `json:"read_ahead_kb"`
	Rule           *string   `json:"rule"`
	Certainty      string    `json:"certainty"`
	Because        []string  `json:"because"`
	Sources        []string  `json:"sources"`
	Missing        []Missing `json:"missing"`
	Beyond         bool      `json:"beyond"`
}

// Missing is an input that is not known, and what it could change.
type Missing struct {
	Input string `json:"input"`
	Could string `json:"could"`
}

// Class of a change.
type Class string

// The classes.
const (
	NewRisk        Class = "new-risk"
	FixedByUpgrade Class = "fixed-by-upgrade"
	Unchanged      Class = "unchanged"
	Unknown        Class = "unknown"
)

// Change compares a device now with what it will be.
type Change struct {
	Class    Class           `json:"class"`
	Severity quirks.Severity `json:"severity,omitempty"` // of a new risk
	FromKB   *uint64         `json:"from_kb"`            // as observed
	ToKB     *uint64         `json:"to_kb"`              // with the value that somebody set, where there is one
	// What the kernels choose by themselves.
	DefaultFromKB *uint64  `json:"default_from_kb"`
	DefaultToKB   *uint64  `json:"default_to_kb"`
	UserValueKB   *uint64  `json:"user_value_kb"` // set by an administrator or a rule, and carried over
	Factor        *float64 `json:"factor"`        // to_kb by from_kb
	Reason        string   `json:"reason"`

	VerdictNow  checker.Verdict `json:"verdict_now"`
	VerdictThen checker.Verdict `json:"verdict_then"`
	// Quirks are the findings whose verdict changes, and those affected then.
	Quirks []QuirkChange `json:"quirks"`

	ReadAheadFromKB *uint64  `json:"read_ahead_from_kb"`
	ReadAheadToKB   *uint64  `json:"read_ahead_to_kb"`
	Warnings        []string `json:"warnings"`

	rises bool // the default, past what the disk ever ran with
}

// QuirkChange is one finding now and then; not-affected where there is none.
type QuirkChange struct {
	Quirk    string          `json:"quirk"`
	Title    string          `json:"title"`
	Severity quirks.Severity `json:"severity"`
	Effect   quirks.Effect   `json:"effect"`
	Now      checker.Verdict `json:"verdict_now"`
	Then     checker.Verdict `json:"verdict_then"`
	// SafeMaxSectors is the entry's bound in 512-byte sectors; null where it
	// bounds no size.
	SafeMaxSectors *uint64 `json:"safe_max_sectors"`
	Why            string  `json:"why,omitempty"` // what changes it, or what keeps it open
}

// Direction says how an upgrade meets a regression.
type Direction string

// The directions.
const (
	Enters Direction = "enters"
	Leaves Direction = "leaves"
	Stays  Direction = "stays"
)

// Regression is a fault or a change of the kernel's own that concerns devices
// of this machine.
type Regression struct {
	Quirk     string          `json:"quirk"`
	Title     string          `json:"title"`
	Direction Direction       `json:"direction"`
	Severity  quirks.Severity `json:"severity"`
	Effect    quirks.Effect   `json:"effect"`
	// Change: it is no fault, but behaves differently from then on.
	Change bool `json:"change"`
	// Verdict then, where it leaves now.
	Verdict     checker.Verdict    `json:"verdict"`
	Devices     []string           `json:"devices"`   // of that verdict
	Possible    []string           `json:"possible"`  // of a better one: it may concern them too
	Why         []string           `json:"why"`       // what holds and what is open, in words
	Questions   []string           `json:"questions"` // what only a person can answer
	Mitigations []string           `json:"mitigations"`
	References  []quirks.Reference `json:"references"`
}

// Question is asked once a machine.
type Question struct {
	Text   string   `json:"text"`
	Quirks []string `json:"quirks"`
}

// Step is something to do before the upgrade.
type Step struct {
	Do      string   `json:"do"` // udev, multipath, pin, set, wait, boot, firmware, config, avoid-path, replace
	Devices []string `json:"devices"`
	Quirk   string   `json:"quirk,omitempty"`
	Command string   `json:"command,omitempty"` // to be run on the machine
	Text    string   `json:"text"`
	// Optional: nothing is known to be wrong; for those who want no change.
	Optional bool `json:"optional"`
}

// Inhibits reports whether the upgrade brings a risk of at least this severity:
// a device of class new-risk, a regression that enters and is known to bite, or,
// as severity low, a default that rises past what a disk ever ran with.
func (r *Report) Inhibits(at quirks.Severity) bool {
	if at == "" || at == "none" {
		return false
	}
	for _, d := range r.Devices {
		c := &d.Change
		if c.Class == NewRisk && c.Severity.Rank() >= at.Rank() || c.rises && quirks.Low.Rank() >= at.Rank() {
			return true
		}
	}
	for _, g := range r.Regressions {
		if g.Direction == Enters && g.Verdict == checker.Affected && g.Severity.Rank() >= at.Rank() {
			return true
		}
	}
	return false
}
