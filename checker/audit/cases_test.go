package audit_test

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/checker/audit"
	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/internal/recorded"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// dueLater are cases whose entry comes with a later step, so that only what is
// there is asserted, and all of it.
var dueLater = map[string]string{
	"RC-017b": "USB rows; and the speed of the port, which the case does not state",
}

func TestRecordedCases(t *testing.T) {
	db := builtin(t)
	asserted := 0
	for _, line := range recorded.Checks(t) {
		if line.Needs != "audit" {
			continue
		}
		if _, later := dueLater[line.ID]; later {
			continue
		}
		asserted++
		t.Run(line.ID, func(t *testing.T) {
			m := map[string]any{}
			for key, text := range map[string]json.RawMessage{"": line.Subject, "limits": line.Limits, "settings": line.Settings} {
				if text == nil {
					continue
				}
				var v map[string]any
				if err := json.Unmarshal(text, &v); err != nil {
					t.Fatal(err)
				}
				if key == "" {
					maps.Copy(m, v)
				} else {
					m[key] = v
				}
			}
			sub, _, err := quirks.DecodeSubject(m)
			if err != nil {
				t.Fatal(err)
			}
			to, err := audit.ParseTarget(line.ToKernel)
			if err != nil {
				t.Fatal(err)
			}
			r := audit.OfSubject(&sub, db, checker.Policy{}, audit.Options{Predict: kernel.Predict}).To(to)
			d := r.Devices[0]
			want := line.Expect
			if string(d.Change.VerdictThen) != want.Verdict {
				t.Errorf("verdict then %s, want %s (%s)", d.Change.VerdictThen, want.Verdict, line.Why)
			}
			predicted := map[string]uint64{}
			if want.Predicted != nil {
				if err := json.Unmarshal(want.Predicted, &predicted); err != nil {
					t.Fatal(err)
				}
			}
			for name, n := range predicted {
				got := map[string]*uint64{"max_sectors_kb": d.Predicted.MaxSectorsKB, "max_hw_sectors_kb": d.Predicted.MaxHWSectorsKB,
					"max_hw_sectors_kb_above": d.Predicted.MaxHWSectorsKB}
				p, known := got[name]
				switch {
				case !known:
					t.Logf("%s is not predicted", name)
				case p == nil:
					t.Errorf("%s is not known, want %d: %+v", name, n, d.Predicted.Missing)
				case strings.HasSuffix(name, "_above") && *p <= n, !strings.HasSuffix(name, "_above") && *p != n:
					t.Errorf("%s %d, want %d (%s)", name, *p, n, line.Why)
				}
			}
			some := func(ok func(audit.QuirkChange) bool) bool { return slices.ContainsFunc(d.Change.Quirks, ok) }
			if want.Effect != "" && !some(func(q audit.QuirkChange) bool { return string(q.Effect) == want.Effect && q.Then == checker.Affected }) {
				t.Errorf("nothing of effect %s then", want.Effect)
			}
			if want.SeverityAtLeast != "" && !some(func(q audit.QuirkChange) bool {
				return q.Severity.Rank() >= quirks.Severity(want.SeverityAtLeast).Rank()
			}) {
				t.Errorf("nothing of severity %s or more", want.SeverityAtLeast)
			}
			if want.SafeMaxSectors != nil && !some(func(q audit.QuirkChange) bool {
				return q.SafeMaxSectors != nil && *q.SafeMaxSectors == *want.SafeMaxSectors
			}) {
				t.Errorf("no bound of %d sectors: %+v", *want.SafeMaxSectors, d.Change.Quirks)
			}
			t.Logf("%s: %s, certainty %s", d.Change.Class, d.Change.Reason, d.Predicted.Certainty)
		})
	}
	if asserted+len(dueLater) < 15 {
		t.Errorf("%d cases asserted, and %d due with later steps", asserted, len(dueLater))
	}
	t.Logf("%d cases asserted, %d due with later steps", asserted, len(dueLater))
}
