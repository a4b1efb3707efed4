package emit

import (
	"errors"
	"fmt"
	"strings"
)

// scsiNames returns the names multipath can compare, of all arms; none where
// one of them needs more, since the section would then be wider than the rule.
func scsiNames(r rule) []scsiName {
	if r.err != nil || len(r.except) > 0 {
		return nil
	}
	var out []scsiName
	for _, a := range r.arms {
		if a.scsi == nil {
			return nil
		}
		out = append(out, a.scsi...)
	}
	return out
}

// multipath writes device sections for multipath.conf (multipath.conf(5)):
// vendor, product and revision are POSIX extended regular expressions.
func (p *Plan) multipath() (Artefact, error) {
	var good []rule
	var why []string
	for _, r := range p.rules {
		err := r.err
		if err == nil && len(scsiNames(r)) == 0 {
			err = errors.New("there is an exception to it")
			for _, a := range r.arms {
				if a.why != nil {
					err = a.why
				}
			}
		}
		if err != nil {
			why = append(why, comment(r.id+": "+err.Error()))
			continue
		}
		good = append(good, r)
	}
	if len(good) == 0 {
		return Artefact{}, &RefusedError{KindMultipath, why}
	}
	maps := map[string]bool{}
	for _, a := range p.Advices {
		if a.Map != "" {
			maps[a.Map] = true
		}
	}
	var b strings.Builder
	a := Artefact{Kind: KindMultipath, File: "/etc/multipath/conf.d/quirkcheck.conf"}
	p.o.head(&b, "# ", "quirkcheck.conf", p.o.by("quirkcheck recommend --emit multipath"), "",
		"Sets max_sectors_kb of the paths below before a map is made of them. It is set",
		"as it stands here, also where the present value is lower.", "",
		"Install: put it at "+a.File+", check with multipath -t, and rebuild the",
		"initramfs where that starts multipath.",
		"Remove:  delete it there and rebuild the initramfs.", "",
		"WARNING: multipathd reconfigure alone changes nothing on a live map. And never lower",
		"a path of a live map alone: requests above its limit are already on their way, and",
		"the path fails (\"over max size limit\"). For a live map, with a path that works:",
		"  1. the map:    echo KIB > /sys/block/DM/queue/max_sectors_kb",
		"  2. suspend:    dmsetup suspend MAP      (flushing, never --noflush)",
		"  3. each path:  echo KIB > /sys/block/PATH/queue/max_sectors_kb",
		"  4. resume:     dmsetup resume MAP",
		"where KIB is the value below, and each file only where it holds more.")
	if len(why) > 0 {
		b.WriteString("#\n# Not covered:\n")
		for _, w := range why {
			p.o.head(&b, "#   ", w)
		}
	}
	b.WriteString("devices {\n")
	for _, r := range sortRules(good) {
		r.comment(&b, "\t# ")
		for _, n := range scsiNames(r) {
			b.WriteString("\tdevice {\n")
			for _, f := range []struct {
				key   string
				globs []glob
			}{{"vendor", n.vendor}, {"product", n.product}, {"revision", n.revision}} {
				if len(f.globs) > 0 {
					fmt.Fprintf(&b, "\t\t%s \"%s\"\n", f.key, ere(f.globs))
				}
			}
			fmt.Fprintf(&b, "\t\tmax_sectors_kb %d\n\t}\n", r.kib)
		}
	}
	b.WriteString("}\n")
	a.Text, a.Warnings = b.String(), why
	return a, nil
}
