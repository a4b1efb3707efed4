package checker

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/quirkcheck/quirkcheck/quirks"
)

// Setting is one knob that an entry wants and what was found of it.
type Setting struct {
	Knob      string  `json:"knob"`           // a name of schema/knobs.yaml
	Wanted    string  `json:"wanted"`         // the bound in words
	Observed  *string `json:"observed"`       // null where it could not be read
	Satisfied bool    `json:"satisfied"`      // observed and within the bound
	Attr      string  `json:"attr,omitempty"` // file that sets it, relative to the root; "" where nothing does at run time
	To        string  `json:"to,omitempty"`   // what to write there; "" where the bound names no value
	Permanent bool    `json:"permanent"`      // the drive keeps it across power cycles
}

// knob says where a setting is seen and set on a device. The files are those
// of schema/knobs.yaml that can be written at run time.
type knob struct {
	setting   string // key of Subject.Settings, or of Limits
	file      string // below sys/block/NAME, or with HOST below sys/class/scsi_host
	permanent bool
}

var knobs = map[string]knob{
	"discard":     {setting: "discard_max_bytes", file: "queue/discard_max_bytes"},
	"eh_timeout":  {setting: "eh_timeout", file: "device/eh_timeout"},
	"fua":         {setting: "fua"}, // read only: libata.fua= decides
	"io_timeout":  {setting: "io_timeout", file: "queue/io_timeout"},
	"link_power":  {setting: "link_power_management_policy", file: "HOST/link_power_management_policy"},
	"ncq":         {setting: "ncq"}, // device/queue_depth 1 is off
	"nomerges":    {setting: "nomerges", file: "queue/nomerges"},
	"nr_requests": {setting: "nr_requests", file: "queue/nr_requests"},
	"queue_depth": {setting: "queue_depth", file: "device/queue_depth"},
	"queued_trim": {setting: "queued_trim"}, // read only: libata.force=noncqtrim decides
	"read_ahead":  {setting: "read_ahead_kb", file: "queue/read_ahead_kb"},
	"write_cache": {setting: "cache_type", file: "device/scsi_disk/HCTL/cache_type", permanent: true},
	"write_same":  {setting: "max_write_same_blocks", file: "device/scsi_disk/HCTL/max_write_same_blocks"},
}

// settings answers the wants of an entry other than max_sectors.
func settings(sub *quirks.Subject, e *quirks.Entry) []Setting {
	var out []Setting
	for _, w := range e.Want {
		if w.Knob == "max_sectors" {
			continue
		}
		s := Setting{Knob: w.Knob, Wanted: w.Knob + " " + boundText(w)}
		k, known := knobs[w.Knob]
		if known {
			s.Permanent = k.permanent
			s.Attr = k.attr(sub)
			v, ok := sub.Setting(k.setting)
			if !ok {
				v, ok = sub.Limits[k.setting]
			}
			if ok {
				text := v.String()
				s.Observed = &text
				s.Satisfied = within(w, text)
			}
		}
		s.To = target(w)
		out = append(out, s)
	}
	return out
}

// Unset returns the subject without the settings that an entry wants: another
// kernel may set them another way.
func Unset(sub *quirks.Subject, e *quirks.Entry) *quirks.Subject {
	s := *sub
	s.Settings, s.Limits = maps.Clone(sub.Settings), maps.Clone(sub.Limits)
	for _, w := range e.Want {
		if k, ok := knobs[w.Knob]; ok {
			delete(s.Settings, k.setting)
			delete(s.Limits, k.setting)
		}
	}
	return &s
}

// attr is the file of a knob of this device; name and address stand in the
// subject's adapter as the checker put them there.
func (k knob) attr(sub *quirks.Subject) string {
	if k.file == "" {
		return ""
	}
	name, host := sub.Adapter["device"], sub.Adapter["host"]
	file := strings.ReplaceAll(k.file, "HCTL", sub.Adapter["hctl"])
	switch {
	case strings.HasPrefix(file, "HOST/"):
		if host == "" {
			return ""
		}
		return "sys/class/scsi_host/" + host + strings.TrimPrefix(file, "HOST")
	case name == "" || strings.Contains(k.file, "HCTL") && sub.Adapter["hctl"] == "":
		return ""
	}
	return "sys/block/" + name + "/" + file
}

func boundText(w quirks.Want) string {
	switch {
	case w.AtMost != nil:
		return fmt.Sprintf("at most %d", *w.AtMost)
	case w.AtLeast != nil:
		return fmt.Sprintf("at least %d", *w.AtLeast)
	case w.Equal != nil:
		return w.Equal.Text
	case w.Not != nil:
		return "not " + w.Not.Text
	}
	return ""
}

// target is the value that satisfies a bound with the least change, "" where
// the bound does not say.
func target(w quirks.Want) string {
	switch {
	case w.AtMost != nil:
		return strconv.FormatUint(*w.AtMost, 10)
	case w.AtLeast != nil:
		return strconv.FormatUint(*w.AtLeast, 10)
	case w.Equal != nil:
		return w.Equal.Text
	}
	return ""
}

func within(w quirks.Want, text string) bool {
	n, err := strconv.ParseUint(text, 10, 64)
	switch {
	case w.AtMost != nil:
		return err == nil && n <= *w.AtMost
	case w.AtLeast != nil:
		return err == nil && n >= *w.AtLeast
	case w.Equal != nil:
		return text == w.Equal.Text
	case w.Not != nil:
		return text != w.Not.Text
	}
	return false
}

// bySettings judges a finding by the settings its entry wants: one outside its
// bound is enough to be affected; ok is false where none could be read.
func bySettings(list []Setting) (v Verdict, by *MitigatedBy, ok bool) {
	var held []string
	for _, s := range list {
		switch {
		case s.Observed == nil:
			continue
		case !s.Satisfied:
			return Affected, nil, true
		}
		held = append(held, s.Wanted)
	}
	if len(held) == 0 || len(held) < len(list) {
		return "", nil, false
	}
	return Mitigated, &MitigatedBy{Kind: "setting", Scope: "all-commands", Text: "set now: " + strings.Join(held, ", ") + "; nothing is known to keep it so"}, true
}
