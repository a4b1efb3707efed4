package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/quirkcheck/quirkcheck/checker/verify"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// verified is what a report of verify says for an entry.
type verified struct {
	sub       quirks.Subject
	effect    string
	report    *verify.Report
	finding   verify.Finding
	reference string
	related   []string // entries that match the device already
}

// verifiedFault takes the first fault of a report, which is the one with the
// lowest limit.
func verifiedFault(r *verify.Report, reference string) (*verified, error) {
	switch {
	case r.Verdict != verify.VerdictFaulty || len(r.Findings) == 0:
		return nil, fmt.Errorf("the verdict is %s: there is no fault of size to write down", r.Verdict)
	case r.SafeMaxSectors == nil || *r.SafeMaxSectors == 0:
		return nil, errors.New("no size is known to be safe, so there is no limit to write down")
	}
	v := &verified{report: r, finding: r.Findings[0], reference: reference}
	id := r.Target.Identity
	text := func(key string) quirks.Text { return quirks.Text{S: id[key], Known: id[key] != ""} }
	for _, space := range []string{"ata", "nvme"} {
		if m := text(space + "_model"); m.Known {
			v.sub.Device = quirks.Identity{Space: space, Model: m, Firmware: text(space + "_firmware")}
		}
	}
	v.sub.SCSI = quirks.Identity{Space: "scsi", Vendor: text("scsi_vendor"), Product: text("scsi_product"), Revision: text("scsi_revision")}
	if v.sub.SCSI.Revision.S == "" {
		v.sub.SCSI.Revision = quirks.Text{}
	}
	// Behind an adapter an ATA disk shows 16 characters of its model, and the
	// last 4 of its firmware: a shorter model is whole.
	if s := v.sub.SCSI; v.sub.Device.Space == "" && s.Vendor.S == "ATA" && s.Product.Known && len(s.Product.S) < 16 && s.Revision.Known {
		v.sub.Device = quirks.Identity{Space: "ata", Model: s.Product, Firmware: s.Revision}
	}
	// The one name that a draft holds without quotes.
	if v.sub.Path = id["path"]; !rePath.MatchString(v.sub.Path) {
		return nil, fmt.Errorf("target.identity.path: %.40q is no path of an entry", v.sub.Path)
	}
	switch v.finding.Class {
	case verify.ClassTimeout:
		v.effect = "io-timeout"
	case verify.ClassReset:
		v.effect = "link-reset"
	case verify.ClassError:
		v.effect = "io-error"
	default:
		v.effect = "silent-corruption"
	}
	return v, nil
}

var rePath = regexp.MustCompile(`^[a-z0-9-]*$`)

// severityOf is that of an effect of size.
func severityOf(effect string) string {
	if effect == "silent-corruption" || effect == "data-loss" {
		return "critical"
	}
	return "high"
}

// draft writes the entry. Only what the report shows is in it.
func (v *verified) draft(id, effect, what, device, subject, folder string) string {
	f, r := v.finding, v.report
	short := map[string]string{"silent-corruption": "silently damages data", "io-timeout": "times out", "link-reset": "resets", "io-error": "fails"}[effect]
	if short == "" {
		short = "misbehaves"
	}
	title := fmt.Sprintf("%s %s on %ss above %d sectors", strings.TrimSpace(what), short, f.Op, *r.SafeMaxSectors)
	if f.When != "" {
		title += ", " + f.When
	}
	url := v.reference
	if url == "" {
		url = "https://CHANGE-ME"
	}
	near, field := strings.Replace(subject, "model: \"", "model: \"NOT ", 1), "model"
	if folder == "scsi" {
		near, field = strings.Replace(subject, "product: \"", "product: \"NOT ", 1), "product"
	}
	var details strings.Builder
	fmt.Fprintf(&details, "Found by quirkcheck verify, not by a vendor. %s. %d of %d commands of the failing size failed; each size called clean rests on %d commands.",
		sentenceCase(f.Words), f.Fails, f.Tries, f.Repeats)
	if !f.Exact && len(f.Bad) > 0 {
		fmt.Fprintf(&details, " The first bad size lies between %d and %d sectors.", f.Good+1, f.Bad[0].From)
	}
	if r.Target.Driver != "" {
		fmt.Fprintf(&details, " The disk was driven by %s.", r.Target.Driver)
	}
	if v.sub.SCSI.Vendor.S == "ATA" && folder == "ata" && r.Target.Identity["ata_model"] == "" {
		details.WriteString(" Model and firmware were seen through SCSI, which shows the last four characters of the firmware.")
	}
	details.WriteString(" What other firmware does is not known.")
	related := ""
	if len(v.related) > 0 {
		related = "related: [" + strings.Join(v.related, ", ") + "]\n"
	}
	return fmt.Sprintf(`schema: 0
id: %s
title: %q
effect: %s
severity: %s
confidence: suspected                   # one report: yours
match:
  any:
    - device: %s
limits:
  max_sectors: %d
%sdetails: %q
references:
  - {type: report, url: %q, note: %q}
examples:
  match:
    - subject: {device: %s, max_sectors: %d}
      expect: affected
      source: %q
  no_match:
    - subject: {device: %s, max_sectors: %d}
      fails: device.%s
      why: "another name; the test was of this one only"
`, id, title, effect, severityOf(effect), device, *r.SafeMaxSectors, related, details.String(), url, "report of quirkcheck verify, seed "+fmt.Sprint(r.Seed),
		subject, aboveLimit(f), "quirkcheck verify, "+r.Started.UTC().Format("2006-01-02"), near, aboveLimit(f), field)
}

// aboveLimit is a size at which the fault was seen, for the example.
func aboveLimit(f verify.Finding) int {
	if len(f.Bad) > 0 {
		return max(f.Bad[len(f.Bad)-1].To/2*2, f.Good+2)
	}
	return f.Good + 2
}

func sentenceCase(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
