package verify

import (
	"fmt"
	"slices"
)

// Check reports what makes r no report of a run: it may come from a file.
func (r *Report) Check() error {
	switch {
	case len(r.SchemaVersion) < 2 || r.SchemaVersion[:2] != SchemaVersion[:2]:
		return fmt.Errorf("schema_version %q: want %s", r.SchemaVersion, SchemaVersion)
	case !slices.Contains([]Verdict{VerdictClean, VerdictFaulty, VerdictBroken, VerdictInconclusive}, r.Verdict):
		return fmt.Errorf("verdict %q: want clean, faulty, broken or inconclusive", r.Verdict)
	case r.SafeMaxSectors != nil && (*r.SafeMaxSectors < 0 || *r.SafeMaxSectors > 1<<24):
		return fmt.Errorf("safe_max_sectors %d: want 0 to %d", *r.SafeMaxSectors, 1<<24)
	case r.Verdict == VerdictFaulty && len(r.Findings) == 0:
		return fmt.Errorf("verdict faulty without a finding")
	}
	for i, f := range r.Findings {
		if f.Good < 0 || f.Good > 1<<24 || f.Op != "read" && f.Op != "write" {
			return fmt.Errorf("findings[%d]: good %d, op %q", i, f.Good, f.Op)
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
	for _, x := range []struct{ what, a, b string }{
		{"disk", identity(a), identity(b)},
		{"adapter", a.Target.Adapter + " " + a.Target.Driver, b.Target.Adapter + " " + b.Target.Driver},
		{"kernel", a.Target.Kernel, b.Target.Kernel},
	} {
		same[x.what] = x.a == x.b
		if x.a != x.b {
			say("the %s differs: %s, and %s", x.what, x.a, x.b)
		}
	}
	bad := func(r *Report) bool { return r.Verdict == VerdictFaulty || r.Verdict == VerdictBroken }
	switch {
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
			say("the fault followed the disk %s to another adapter, with the same threshold: it is the disk's", name(a))
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
