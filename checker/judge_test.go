package checker_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/internal/recorded"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/quirks"
)

func subject(t testing.TB, m map[string]any) *quirks.Subject {
	t.Helper()
	sub, ignored, err := quirks.DecodeSubject(m)
	if err != nil || len(ignored) > 0 {
		t.Fatalf("subject: %v, ignored %v", err, ignored)
	}
	return &sub
}

// dueLater are cases of checks.jsonl whose entry or check comes with a later
// step, so that only what this step owes is asserted, and all of it.
var dueLater = map[string]string{
	"RC-008": "mpt3sas NVMe", "RC-008b": "mpt3sas NVMe", "RC-008c": "mpt3sas NVMe",
	"RC-010": "pata_macio", "RC-010b": "pata_macio", "RC-010c": "pata_macio",
	"RC-023": "hv_storvsc",
	"RC-047": "Realtek bridge", "RC-049": "bridge identities", "RC-050c": "USB rows",
	"RC-057": "megaraid write same", "RC-057b": "megaraid write same",
	"RC-068": "USB rows", "RC-068b": "USB rows", "RC-070": "USB rows", "RC-070b": "USB rows", "RC-073": "port multiplier entry",
	"RC-075b": "board entry", "RC-075c": "board entry", "RC-079b": "USB rows", "RC-081": "NVMe entries", "RC-087": "USB hosts",
	"RC-103b": "USB rows", "RC-107": "NVMe entries", "RC-108": "zvol entry", "RC-110": "ASMedia rule",
	"RC-110b": "ASMedia rule", "RC-110c": "ASMedia rule", "RC-091": "probe/decode asserts it", "RC-102": "sg_vpd text is no input",
}

func TestRecordedCases(t *testing.T) {
	db := builtin(t)
	asserted := 0
	for _, line := range recorded.Checks(t) {
		id, needs := line.ID, line.Needs
		if needs != "entry" && needs != "parser" && needs != "builtin-check" {
			continue
		}
		if _, later := dueLater[id]; later {
			if needs == "builtin-check" {
				t.Errorf("%s asks for a built-in check, and all of these are there", id)
			}
			continue
		}
		if check := line.Expect.Check; needs == "builtin-check" && check != "any" && !slices.Contains(checker.Builtins(), check) {
			t.Errorf("%s: no check %q", id, check)
		}
		asserted++
		t.Run(id, func(t *testing.T) {
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
			j := checker.Judge(&sub, db, checker.Policy{})
			want := line.Expect
			some := func(ok func(checker.Finding) bool) bool { return slices.ContainsFunc(j.Findings, ok) }
			if string(j.Verdict) != want.Verdict {
				t.Errorf("verdict %s, want %s (%s)", j.Verdict, want.Verdict, line.Why)
			}
			if want.SafeMaxSectors != nil && deref(j.Safe.MaxSectors) != *want.SafeMaxSectors {
				t.Errorf("safe %d sectors, want %d", deref(j.Safe.MaxSectors), *want.SafeMaxSectors)
			}
			if want.RecommendedMaxSectorsKB != nil && deref(j.Recommended.MaxSectorsKB) != *want.RecommendedMaxSectorsKB {
				t.Errorf("recommended %d KiB, want %d", deref(j.Recommended.MaxSectorsKB), *want.RecommendedMaxSectorsKB)
			}
			if want.Effect != "" && !some(func(f checker.Finding) bool { return string(f.Effect) == want.Effect }) {
				t.Errorf("no finding of effect %s", want.Effect)
			}
			if want.SeverityAtLeast != "" && !some(func(f checker.Finding) bool {
				return f.Severity.Rank() >= quirks.Severity(want.SeverityAtLeast).Rank()
			}) {
				t.Errorf("no finding of severity %s or more", want.SeverityAtLeast)
			}
			if want.SeverityAtMost != "" && some(func(f checker.Finding) bool {
				return f.Severity.Rank() > quirks.Severity(want.SeverityAtMost).Rank()
			}) {
				t.Errorf("a finding above severity %s", want.SeverityAtMost)
			}
			if slices.Contains(checker.Builtins(), want.Check) && !some(func(f checker.Finding) bool { return f.Quirk == want.Check }) {
				t.Errorf("check %s has no finding", want.Check)
			}
			if slices.Contains(want.MustNot, "lower max_sectors") {
				if k, ok := sub.MaxSectorsKiB(); ok && j.Recommended.MaxSectorsKB != nil && *j.Recommended.MaxSectorsKB < k {
					t.Errorf("lowers max_sectors_kb from %d to %d", k, *j.Recommended.MaxSectorsKB)
				}
			}
		})
	}
	if asserted < 40 {
		t.Fatalf("only %d cases asserted", asserted)
	}
	t.Logf("%d cases asserted, %d due with later steps", asserted, len(dueLater))
}

// TestEveryPredicateDecides flips one fact of an affected subject at a time;
// each must change the answer.
func TestEveryPredicateDecides(t *testing.T) {
	entry := load(t, `
schema: 0
id: ata-test-io-timeout
title: Test disk times out on large commands
effect: io-timeout
severity: high
confidence: confirmed
match:
  any:
    - device: {space: ata, model: "ACME 1", firmware: "1.0"}
      adapter: {pci: "1b4b:9230:*:*", class: "0106??", driver: ahci}
      machine: {vendor: "Dell*", product: "R1", board: "B1"}
      stack: {over: [md]}
      path: [libata]
      kernel: {since: "6.17", until: "7.0"}
limits: {max_sectors: 1024}
references: [{type: report, url: "https://example.org/1"}]
examples: {match: [], no_match: []}
`)
	base := func() map[string]any {
		return map[string]any{
			"device":  map[string]any{"space": "ata", "model": "ACME 1", "firmware": "1.0"},
			"adapter": map[string]any{"pci": "1b4b:9230:1028:1fd6", "class": "010601", "driver": "ahci"},
			"machine": map[string]any{"vendor": "Dell Inc.", "product": "R1", "board": "B1"},
			"stack":   map[string]any{"above": []any{map[string]any{"kind": "md"}}},
			"path":    "libata", "kernel": "6.18.3", "max_sectors": 8192,
		}
	}
	verdict := func(t *testing.T, m map[string]any) checker.Verdict {
		return checker.VerdictOf(subject(t, m), entry)
	}
	if got := verdict(t, base()); got != checker.Affected {
		t.Fatalf("base: %s", got)
	}
	set := func(block, key string, v any) func(map[string]any) {
		return func(m map[string]any) {
			if key == "" {
				m[block] = v
				return
			}
			m[block].(map[string]any)[key] = v
		}
	}
	drop := func(block, key string) func(map[string]any) {
		return func(m map[string]any) {
			if key == "" {
				delete(m, block)
				return
			}
			delete(m[block].(map[string]any), key)
		}
	}
	for _, c := range []struct {
		name string
		edit func(map[string]any)
		want checker.Verdict
	}{
		{"other space", func(m map[string]any) {
			m["device"] = map[string]any{"space": "nvme", "model": "ACME 1", "firmware": "1.0"}
		}, checker.NotAffected},
		{"other model", set("device", "model", "ACME 2"), checker.NotAffected},
		{"other firmware", set("device", "firmware", "1.1"), checker.NotAffected},
		{"other PCI device", set("adapter", "pci", "1b4b:9235:1028:1fd6"), checker.NotAffected},
		{"other class", set("adapter", "class", "010802"), checker.NotAffected},
		{"other driver", set("adapter", "driver", "mpt3sas"), checker.NotAffected},
		{"other maker", set("machine", "vendor", "HP"), checker.NotAffected},
		{"other machine", set("machine", "product", "R2"), checker.NotAffected},
		{"other board", set("machine", "board", "B2"), checker.NotAffected},
		{"nothing above", set("stack", "above", []any{}), checker.NotAffected},
		{"other path", set("path", "", "scsi"), checker.NotAffected},
		{"older mainline kernel", set("kernel", "", "6.16"), checker.NotAffected},
		{"older stable kernel: a backport may be in it", set("kernel", "", "6.16.1"), checker.Unknown},
		{"newer kernel", set("kernel", "", "7.0.1"), checker.NotAffected},
		{"limit within", set("max_sectors", "", 1024), checker.Mitigated},
		{"an exact number just above", set("max_sectors", "", 1025), checker.Affected},
		{"the KiB that hide an odd sector", func(m map[string]any) {
			delete(m, "max_sectors")
			m["limits"] = map[string]any{"max_sectors_kb": 512}
		}, checker.Mitigated},
		{"KiB just above", func(m map[string]any) {
			delete(m, "max_sectors")
			m["limits"] = map[string]any{"max_sectors_kb": 513}
		}, checker.Affected},
		{"no model", drop("device", "model"), checker.Unknown},
		{"no firmware", drop("device", "firmware"), checker.Unknown},
		{"no adapter", drop("adapter", ""), checker.Unknown},
		{"no machine", drop("machine", ""), checker.Unknown},
		{"no stack", drop("stack", ""), checker.Unknown},
		{"no path", drop("path", ""), checker.Unknown},
		{"no kernel", drop("kernel", ""), checker.Unknown},
		{"no limit", drop("max_sectors", ""), checker.Unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := base()
			c.edit(m)
			if got := verdict(t, m); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}

func load(t *testing.T, text string) *quirks.Entry {
	t.Helper()
	id := ""
	for line := range strings.Lines(text) {
		if n, _ := fmt.Sscanf(line, "id: %s", &id); n == 1 {
			break
		}
	}
	set, faults := quirks.Load(fstest.MapFS{id + ".yaml": {Data: []byte(text)}})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	e, ok := set.Entry(id)
	if !ok {
		t.Fatalf("no entry %s", id)
	}
	return e
}

func TestMitigationSaysWhatProtects(t *testing.T) {
	db := builtin(t)
	for _, c := range []struct {
		name    string
		subject map[string]any
		quirk   string
		want    *checker.MitigatedBy // Text is not compared
	}{
		{"the kernel's own quirk shows in max_hw_sectors_kb",
			map[string]any{"device": map[string]any{"space": "ata", "model": "ST380013AS", "firmware": "3.20"}, "path": "libata", "kernel": "6.1.190",
				"limits": map[string]any{"max_sectors_kb": 512, "max_hw_sectors_kb": 512}},
			"ata-seagate-st380013as-silent-corruption", &checker.MitigatedBy{Kind: "kernel", Scope: "all-commands", Pinned: true}},
		{"a satisfying default is luck",
			map[string]any{"device": map[string]any{"space": "ata", "model": "DELLBOSS VD", "firmware": "MV.R00-0"}, "path": "libata", "kernel": "6.1.190",
				"limits": map[string]any{"max_sectors_kb": 1280, "max_hw_sectors_kb": 32767}},
			"ata-dellboss-vd-io-timeout", &checker.MitigatedBy{Kind: "limit", Scope: "block-layer", Pinned: false}},
		{"8191 sectors show as 4095 KiB on a kernel with the row",
			map[string]any{"device": map[string]any{"space": "ata", "model": "DELLBOSS VD", "firmware": "MV.R00-0"}, "path": "libata", "kernel": "7.3.4",
				"limits": map[string]any{"max_sectors_kb": 4095, "max_hw_sectors_kb": 4095}},
			"ata-dellboss-vd-io-timeout", &checker.MitigatedBy{Kind: "kernel", Scope: "all-commands", Pinned: true}},
		{"the same value without the row is the adapter's",
			map[string]any{"device": map[string]any{"space": "ata", "model": "DELLBOSS VD", "firmware": "MV.R00-0"}, "path": "libata", "kernel": "6.1.190",
				"limits": map[string]any{"max_sectors_kb": 128, "max_hw_sectors_kb": 128}},
			"ata-dellboss-vd-io-timeout", &checker.MitigatedBy{Kind: "limit", Scope: "all-commands", Pinned: true}},
		{"the list that keeps VPD from being asked",
			map[string]any{"scsi": map[string]any{"vendor": "SEAGATE ", "product": "ST900MM0006     ", "revision": "LS08"}, "path": "scsi", "kernel": "6.1.190"},
			"scsi-seagate-st900mm0006-misreport", &checker.MitigatedBy{Kind: "kernel", Scope: "all-commands", Pinned: true}},
		{"without that list the probe itself",
			map[string]any{"scsi": map[string]any{"vendor": "SEAGATE ", "product": "ST900MM0006     ", "revision": "LS08"}, "path": "scsi", "kernel": "2.6.32"},
			"scsi-seagate-st900mm0006-misreport", &checker.MitigatedBy{Kind: "probe", Scope: "all-commands", Pinned: false}},
		{"a row that is listed and not applied protects nobody",
			map[string]any{"scsi": map[string]any{"vendor": "SYNOLOGY", "product": "iSCSI Storage   ", "revision": "4.0 "}, "path": "scsi", "kernel": "7.3.4",
				"limits": map[string]any{"max_sectors_kb": 4096, "max_hw_sectors_kb": 32767}},
			"scsi-synology-iscsi-storage-misreport", nil},
		{"and protects where it is applied",
			map[string]any{"scsi": map[string]any{"vendor": "SYNOLOGY", "product": "iSCSI Storage   ", "revision": "4.0 "}, "path": "scsi", "kernel": "6.1.190",
				"limits": map[string]any{"max_sectors_kb": 512, "max_hw_sectors_kb": 512}},
			"scsi-synology-iscsi-storage-misreport", &checker.MitigatedBy{Kind: "kernel", Scope: "all-commands", Pinned: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := checker.Judge(subject(t, c.subject), db, checker.Policy{})
			i := slices.IndexFunc(j.Findings, func(f checker.Finding) bool { return f.Quirk == c.quirk })
			if i < 0 {
				t.Fatalf("no finding %s in %+v", c.quirk, j.Findings)
			}
			got := j.Findings[i].MitigatedBy
			if (got == nil) != (c.want == nil) {
				t.Fatalf("got %+v, want %+v", got, c.want)
			}
			if got == nil {
				if j.Findings[i].Verdict != checker.Affected {
					t.Errorf("verdict %s", j.Findings[i].Verdict)
				}
				return
			}
			if got.Text == "" {
				t.Error("the protection has no name")
			}
			c.want.Text = got.Text
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestRecommendedValueStandsAfterWriting(t *testing.T) {
	sil := map[string]any{"space": "ata", "model": "ST380023AS", "firmware": "3.20"}
	boss := map[string]any{"space": "ata", "model": "DELLBOSS VD", "firmware": "MV.R00-0"}
	for _, c := range []struct {
		name    string
		device  map[string]any
		adapter string
		limits  map[string]any
		machine map[string]any
		kernel  string
		want    any // KiB, or nil
	}{
		{"8191 sectors become 4095 KiB", boss, "", map[string]any{"max_sectors_kb": 32767, "logical_block_size": 512}, nil, "6.18.3", 4095},
		{"rounded to a logical block of 4 KiB", boss, "", map[string]any{"max_sectors_kb": 32767, "logical_block_size": 4096}, nil, "6.18.3", 4092},
		{"a satisfying value is left alone", boss, "", map[string]any{"max_sectors_kb": 1279, "logical_block_size": 512}, nil, "6.18.3", 1279},
		{"a satisfying value that no write could give is left alone", boss, "", map[string]any{"max_sectors_kb": 4095, "logical_block_size": 4096}, nil, "6.18.3", 4095},
		{"15 sectors become 7 KiB", sil, "1095:3112", map[string]any{"max_sectors_kb": 1280, "logical_block_size": 512}, nil, "6.18.3", 7},
		{"below a page of 64 KiB nothing can be set", sil, "1095:3112", map[string]any{"max_sectors_kb": 1280, "logical_block_size": 512}, map[string]any{"page_size": "65536"}, "6.12.3", nil},
		{"from 6.18 the floor is 4 KiB", sil, "1095:3112", map[string]any{"max_sectors_kb": 1280, "logical_block_size": 512}, map[string]any{"page_size": "65536"}, "6.18.3", 7},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := map[string]any{"device": c.device, "path": "libata", "kernel": c.kernel, "limits": c.limits}
			if c.adapter != "" {
				m["adapter"] = map[string]any{"pci": c.adapter, "driver": "sata_sil"}
			}
			if c.machine != nil {
				m["machine"] = c.machine
			}
			r := checker.Judge(subject(t, m), builtin(t), checker.Policy{}).Recommended
			if len(r.Because) == 0 {
				t.Error("no reason given")
			}
			switch want := c.want.(type) {
			case nil:
				if r.MaxSectorsKB != nil || r.MaxSectors != nil {
					t.Errorf("got %d KiB, want none", *r.MaxSectorsKB)
				}
			case int:
				if deref(r.MaxSectorsKB) != uint64(want) || deref(r.MaxSectors) != uint64(2*want) {
					t.Errorf("got %d KiB, %d sectors; want %d KiB", deref(r.MaxSectorsKB), deref(r.MaxSectors), want)
				}
			}
		})
	}
}

func TestPhysicalBlockShortensWhatIsSent(t *testing.T) {
	m := map[string]any{"device": map[string]any{"space": "ata", "model": "DELLBOSS VD", "firmware": "MV.R00-0"}, "path": "libata", "kernel": "6.18.3",
		"limits": map[string]any{"max_sectors_kb": 32767, "logical_block_size": 512, "physical_block_size": 4096}}
	r := checker.Judge(subject(t, m), builtin(t), checker.Policy{}).Recommended
	if deref(r.MaxSectorsKB) != 4095 || len(r.Because) < 2 || !strings.Contains(r.Because[1], "4092") {
		t.Errorf("%d KiB because %q; want 4095, and that 4092 KiB is really sent", deref(r.MaxSectorsKB), r.Because)
	}
}

func TestMaxSecLBA48OnTheCommandLine(t *testing.T) {
	base := func(cmdline string, kib, hw int) map[string]any {
		return map[string]any{"device": map[string]any{"space": "ata", "model": "ST380013AS", "firmware": "3.20"}, "path": "libata", "kernel": "6.1.190",
			"cmdline": cmdline, "limits": map[string]any{"max_sectors_kb": kib, "max_hw_sectors_kb": hw}}
	}
	for _, c := range []struct {
		name    string
		cmdline string
		port    string
		kib     int
		want    checker.Verdict // "" for no finding
	}{
		{"over a protected disk", "quiet libata.force=max_sec_lba48", "1", 1280, checker.Affected},
		{"with the limit set by hand", "libata.force=max_sec_lba48", "1", 512, checker.Mitigated},
		{"on its port", "libata.force=2:80c,3:max_sec_lba48", "3", 1280, checker.Affected},
		{"on another port", "libata.force=3:max_sec_lba48", "1", 1280, ""},
		{"a value without a port takes the port before", "libata.force=3:80c,max_sec_lba48", "1", 1280, ""},
		{"the last word wins", "libata.force=max_sec_lba48 libata.force=max_sec_1024", "1", 1280, ""},
		{"up to 6.19 an earlier item for all ports does not stop it", "libata.force=80c,max_sec_lba48", "1", 1280, checker.Affected},
		{"up to 6.19 it wins over a limit for the port", "libata.force=max_sec_lba48,1:max_sec_1024", "1", 1280, checker.Affected},
		{"abbreviated, in another case", "libata.force=1:MAX_SEC_L", "1", 1280, checker.Affected},
		{"another parameter", "foo=max_sec_lba48", "1", 1280, ""},
		{"another value", "libata.force=80c", "1", 1280, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			sub := subject(t, base(c.cmdline, c.kib, 32767))
			sub.Adapter = map[string]string{"ata_port": c.port}
			j := checker.Judge(sub, builtin(t), checker.Policy{})
			i := slices.IndexFunc(j.Findings, func(f checker.Finding) bool { return f.Quirk == "cmdline-max-sec-lba48" })
			if i < 0 {
				if c.want != "" {
					t.Fatal("no finding")
				}
				return
			}
			if f := j.Findings[i]; f.Verdict != c.want || f.Severity != quirks.Critical || f.Effect != "silent-corruption" {
				t.Errorf("%s %s %s, want %s critical silent-corruption", f.Verdict, f.Severity, f.Effect, c.want)
			}
		})
	}
	// From 7.0 on only the first item that fits counts.
	for cmdline, want := range map[string]bool{"libata.force=80c,max_sec_lba48": false, "libata.force=max_sec_lba48,80c": true, "libata.force=2:80c,1:max_sec_lba48": true} {
		m := base(cmdline, 1280, 32767)
		m["kernel"] = "7.3.4"
		sub := subject(t, m)
		sub.Adapter = map[string]string{"ata_port": "1"}
		j := checker.Judge(sub, builtin(t), checker.Policy{})
		if got := slices.ContainsFunc(j.Findings, func(f checker.Finding) bool { return f.Quirk == "cmdline-max-sec-lba48" }); got != want {
			t.Errorf("7.3.4, %s: finding %v, want %v", cmdline, got, want)
		}
	}
	// A disk the table does not name loses nothing by it.
	m := base("libata.force=max_sec_lba48", 1280, 32767)
	m["device"] = map[string]any{"space": "ata", "model": "ST380014AS", "firmware": "3.20"}
	if j := checker.Judge(subject(t, m), builtin(t), checker.Policy{}); len(j.Findings) != 0 {
		t.Errorf("an unlisted disk: %+v", j.Findings)
	}
}

func TestSegmentsBoundWhatIsSent(t *testing.T) {
	for _, c := range []struct {
		name   string
		limits map[string]any
		want   bool
	}{
		{"above", map[string]any{"max_sectors_kb": 1280, "max_segments": 64, "max_segment_size": 4096}, true},
		{"at the bound", map[string]any{"max_sectors_kb": 256, "max_segments": 64, "max_segment_size": 4096}, false},
		{"size not known", map[string]any{"max_sectors_kb": 1280, "max_segments": 64}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := checker.Judge(subject(t, map[string]any{"scsi": map[string]any{"vendor": "ACME", "product": "DISK"}, "path": "scsi", "limits": c.limits}), builtin(t), checker.Policy{})
			got := slices.ContainsFunc(j.Findings, func(f checker.Finding) bool { return f.Quirk == "limit-above-segments" && f.Severity == quirks.Info })
			if got != c.want {
				t.Errorf("finding %v, want %v: %+v", got, c.want, j.Findings)
			}
			if j.Recommended.MaxSectorsKB == nil || *j.Recommended.MaxSectorsKB != uint64(c.limits["max_sectors_kb"].(int)) {
				t.Error("segments protect nothing; the limit must stay")
			}
		})
	}
}

func TestOptimalIOSize(t *testing.T) {
	for _, c := range []struct {
		name   string
		limits map[string]any
		want   bool
	}{
		{"a field of ones", map[string]any{"optimal_io_size": 33553920}, true},
		{"a field of ones in 4 KiB blocks", map[string]any{"optimal_io_size": 0xffff * 4096, "logical_block_size": 4096, "physical_block_size": 4096}, true},
		{"a SAS host's maximum, rounded", map[string]any{"optimal_io_size": 16773120, "physical_block_size": 4096}, true},
		{"no multiple of the physical block", map[string]any{"optimal_io_size": 66048, "physical_block_size": 4096}, true},
		{"above the device's maximum", map[string]any{"optimal_io_size": 1 << 20, "logical_block_size": 512, "vpd_max_transfer_blocks": 1024}, true},
		{"at the device's maximum", map[string]any{"optimal_io_size": 1 << 19, "logical_block_size": 512, "vpd_max_transfer_blocks": 1024}, false},
		{"a RAID stripe", map[string]any{"optimal_io_size": 1 << 20, "physical_block_size": 4096}, false},
		{"none", map[string]any{"optimal_io_size": 0, "vpd_optimal_transfer_blocks": 65535}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := checker.Judge(subject(t, map[string]any{"scsi": map[string]any{"vendor": "ACME", "product": "DISK"}, "path": "scsi", "limits": c.limits}), builtin(t), checker.Policy{})
			got := slices.ContainsFunc(j.Findings, func(f checker.Finding) bool { return f.Quirk == "bogus-optimal-io-size" })
			if got != c.want {
				t.Errorf("finding %v, want %v", got, c.want)
			}
		})
	}
}

func TestEmbeddedExamplesGetTheirVerdicts(t *testing.T) {
	entries := builtin(t).Entries()
	expect := 0
	for _, e := range entries {
		for _, ex := range slices.Concat(e.Examples.Match, e.Examples.NoMatch) {
			if ex.Expect != "" {
				expect++
			}
		}
	}
	if expect < 20 {
		t.Fatalf("only %d examples expect a verdict", expect)
	}
	for _, f := range checker.LintExamples(entries) {
		t.Error(f)
	}
}

func TestLintExamplesNotices(t *testing.T) {
	db, _ := quirks.Load(os.DirFS("testdata/lint"))
	faults := checker.LintExamples(db.Entries())
	if len(faults) != 1 || faults[0].Code != "example-verdict" {
		t.Errorf("%v, want one example-verdict", faults)
	}
}

func TestVPDCountsLogicalBlocks(t *testing.T) {
	for lbs, want := range map[int]uint64{512: 512, 4096: 4096} {
		j := checker.Judge(subject(t, map[string]any{"scsi": map[string]any{"vendor": "ACME", "product": "DISK"}, "path": "scsi",
			"limits": map[string]any{"max_sectors_kb": 4096, "logical_block_size": lbs, "vpd_max_transfer_blocks": 512}}), builtin(t), checker.Policy{})
		if got := deref(j.Safe.MaxSectors); got != want {
			t.Errorf("512 blocks of %d bytes are %d sectors, want %d", lbs, got, want)
		}
	}
}

func TestSubjectOfAnNVMeDeviceCarriesItsPCIVendors(t *testing.T) {
	sys := recorded.FS(t, "7.3.4-debian13-backports")
	inv, err := probe.Read(t.Context(), sys, probe.Options{Only: []string{"nvme0n1"}})
	if err != nil || len(inv.Devices) != 1 {
		t.Fatal(err, inv)
	}
	// QEMU's NVMe controller is 1b36:0010, subsystem 1af4:1100.
	if id := checker.SubjectOf(inv, inv.Devices[0]).Device; id.Space != "nvme" || id.VID != "1b36" || id.SSVID != "1af4" {
		t.Errorf("%+v, want nvme 1b36 1af4", id)
	}
}

func TestSettingsBesideTheSize(t *testing.T) {
	entry := load(t, `
schema: 0
id: ata-test-link-power-link-reset
title: Test disk loses its link with link power management
effect: link-reset
severity: medium
confidence: confirmed
match:
  any:
    - device: {space: ata, model: "ACME 1", firmware: {any: "test"}}
want:
  - {knob: link_power, equal: max_performance}
  - {knob: queue_depth, at_most: 16}
kernel:
  mitigated:
    - path: [libata]
      flag: [{name: ATA_QUIRK_NOLPM}]
      trees: [{tree: mainline, since: "6.12"}]
references: [{type: report, url: "https://example.org/1"}]
examples: {match: [], no_match: []}
`)
	for _, c := range []struct {
		name     string
		settings map[string]any
		kernel   string
		want     checker.Verdict
	}{
		{"one outside its bound is enough", map[string]any{"link_power_management_policy": "min_power", "queue_depth": 1}, "6.18", checker.Affected},
		{"the number above its bound", map[string]any{"link_power_management_policy": "max_performance", "queue_depth": 17}, "6.18", checker.Affected},
		{"all within", map[string]any{"link_power_management_policy": "max_performance", "queue_depth": 16}, "6.1", checker.Mitigated},
		{"not read, judged by the kernel: has it", nil, "6.18", checker.Mitigated},
		{"not read, judged by the kernel: has it not", nil, "6.11", checker.Affected},
		{"half read is not read", map[string]any{"queue_depth": 1}, "6.11", checker.Affected},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := map[string]any{"device": map[string]any{"space": "ata", "model": "ACME 1", "firmware": "1"}, "path": "libata", "kernel": c.kernel}
			if c.settings != nil {
				m["settings"] = c.settings
			}
			if got := checker.VerdictOf(subject(t, m), entry); got != c.want {
				t.Errorf("%s, want %s", got, c.want)
			}
		})
	}
}
