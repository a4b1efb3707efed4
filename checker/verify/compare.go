package verify

import (
	"fmt"
	"slices"
	"strings"
)

// maxReported bounds sizes in a report that comes from a file.
const maxReported = 1 << 24

// Check reports what makes r no report of a run: it may come from a file.
func (r *Report) Check() error {
	size := func(n int) bool { return n >= 0 && n <= maxReported }
	switch {
	case len(r.SchemaVersion) < 2 || r.SchemaVersion[:2] != SchemaVersion[:2]:
		return fmt.Errorf("schema_version %q: want %s", r.SchemaVersion, SchemaVersion)
	case !slices.Contains([]Verdict{VerdictClean, VerdictFaulty, VerdictBroken, VerdictInconclusive}, r.Verdict):
		return fmt.Errorf("verdict %q: want clean, faulty, broken or inconclusive", r.Verdict)
	case !slices.Contains([]Mode{ModeReadOnly, ModeFile, ModeDestroy}, r.Mode):
		return fmt.Errorf("mode %q: want read-only, file or destroy", r.Mode)
	case r.SafeMaxSectors != nil && !size(*r.SafeMaxSectors):
		return fmt.Errorf("safe_max_sectors %d: want 0 to %d", *r.SafeMaxSectors, maxReported)
	case (r.Verdict == VerdictFaulty || r.Verdict == VerdictBroken) && len(r.Findings) == 0:
		return fmt.Errorf("verdict %s without a finding", r.Verdict)
	}
	for i, f := range r.Findings {
		switch {
		case f.Op != "read" && f.Op != "write":
			return fmt.Errorf("findings[%d].op %q: want read or write", i, f.Op)
		case !size(f.Good) || !size(f.From) || !size(f.Modulus) || !size(f.Tries) || !size(f.Fails) || !size(f.Repeats):
			return fmt.Errorf("findings[%d]: a number is not between 0 and %d", i, maxReported)
		}
		for j, b := range f.Bad {
			if !size(b.From) || !size(b.To) || b.To < b.From {
				return fmt.Errorf("findings[%d].bad[%d]: %d to %d", i, j, b.From, b.To)
			}
		}
	}
	return nil
}

// Compare says what two runs, with one thing changed between them, mean
// together: one sentence each.
func Compare(a, b *Report) []string {
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	name := func(r *Report) string {
		id := r.Target.Identity
		for _, k := range []string{"ata_model", "nvme_model", "scsi_product"} {
			if id[k] != "" {
				return id[k]
			}
		}
		return r.Target.Name
	}
	same := map[string]bool{}
	known := true
	for _, x := range []struct{ what, a, b string }{
		{"disk", identity(a), identity(b)},
		{"adapter", a.Target.Adapter + " " + a.Target.Driver, b.Target.Adapter + " " + b.Target.Driver},
		{"kernel", a.Target.Kernel, b.Target.Kernel},
	} {
		same[x.what] = x.a == x.b
		if strings.TrimSpace(x.a) == "" || strings.TrimSpace(x.b) == "" {
			say("the %s is not on record in both reports, so it may be the same or another", x.what)
			known = known && x.what == "kernel"
			continue
		}
		if x.a != x.b {
			say("the %s differs: %s, and %s", x.what, x.a, x.b)
		}
	}
	bad := func(r *Report) bool { return r.Verdict == VerdictFaulty || r.Verdict == VerdictBroken }
	switch {
	case !known:
		say("without disk and adapter on record nothing can be told from the two")
	case a.Verdict == VerdictInconclusive || b.Verdict == VerdictInconclusive:
		say("one of the runs says nothing by itself: there is nothing to compare")
	case a.Mode.Writes() != b.Mode.Writes():
		say("one run wrote and the other only read: only faults of reads can be compared")
	case !bad(a) && !bad(b):
		say("neither run met a fault")
	case bad(a) && bad(b):
		fa, fb := a.Findings[0], b.Findings[0]
		alike := fa.Op == fb.Op && fa.Class == fb.Class && fa.Good == fb.Good
		switch {
		case alike && same["disk"] && !same["adapter"]:
			say("the fault followed the disk (%s; by model and firmware, reports hold no serial number) to another adapter, with the same threshold: it is the disk's, or its model's", name(a))
		case alike && !same["disk"] && same["adapter"]:
			say("two different disks show the same fault behind the same adapter: it is the adapter's, bridge's or driver's")
		case alike && same["disk"] && same["adapter"]:
			say("the same fault again: it repeats; change one thing at a time to find out whose it is")
		case alike:
			say("the same fault though disk and adapter both differ: look at what they have in common")
		default:
			say("both are faulty, and not in the same way: %s %s above %d sectors, and %s %s above %d", fa.Op, fa.Class, fa.Good, fb.Op, fb.Class, fb.Good)
		}
	default:
		faulty, clean := "A", "B"
		f, c := a, b
		if bad(b) {
			faulty, clean, f, c = "B", "A", b, a
		}
		good := f.Findings[0].Good
		switch {
		case c.SafeMaxSectors == nil || *c.SafeMaxSectors <= good:
			say("%s is clean, but only to sizes at which %s is clean too: nothing can be told from it", clean, faulty)
		case same["disk"] && !same["adapter"]:
			say("the disk is clean behind the adapter of %s and faulty behind that of %s: it is the adapter, or the disk together with it", clean, faulty)
		case !same["disk"] && same["adapter"]:
			say("behind the same adapter the disk of %s is clean and that of %s faulty: it is the disk, or its pairing with this adapter", clean, faulty)
		case same["disk"] && !same["kernel"]:
			say("only the kernel differs: it, or its driver, is in the way of %s", faulty)
		case same["disk"]:
			say("nothing that is on record differs: the fault comes and goes, or the cable or port made the difference")
		default:
			say("disk and adapter both differ: change one thing at a time")
		}
	}
	return out
}

// identity is a disk's names, without its place.
func identity(r *Report) string {
	id := r.Target.Identity
	s := ""
	for _, k := range []string{"ata_model", "ata_firmware", "nvme_model", "nvme_firmware"} {
		if id[k] != "" {
			s += id[k] + " "
		}
	}
	if s == "" {
		s = id["scsi_vendor"] + " " + id["scsi_product"] + " " + id["scsi_revision"]
	}
	return s
}
