package emit

import (
	"fmt"
	"slices"
	"strings"
)

// UdevFile is the name to install the rules under: after the rules that name
// the disk and its multipath map (60), before those that act on it (99).
const UdevFile = "90-quirkcheck.rules"

// marker is the property in which quirkcheck's files tell one another what
// they set in the same event.
const marker = "QUIRKCHECK_MAX_SECTORS_KB"

func (c cond) udev() string {
	op := "=="
	if c.not {
		op = "!="
	}
	return c.key + op + `"` + strings.Join(c.pats, "|") + `"`
}

func (l line) udev() string {
	parts := make([]string, len(l.conds))
	for i, c := range l.conds {
		parts[i] = c.udev()
	}
	return strings.Join(parts, ", ")
}

// label is the name of a place in the rules.
type labels struct{ prefix string }

func (l labels) rule(n int, what string) string { return fmt.Sprintf("%s_%d_%s", l.prefix, n, what) }

// udevRules writes the rules, the lowest limit first: the first that fits a
// disk is the last one looked at.
func udevRules(b *strings.Builder, rules []rule, prefix string) {
	l := labels{prefix}
	end := prefix + "_end"
	fmt.Fprintf(b, `
ACTION!="add", GOTO="%[1]s"
SUBSYSTEM!="block", GOTO="%[1]s"
ENV{DEVTYPE}!="disk", GOTO="%[1]s"
KERNEL=="dm-*|md*|loop*|ram*|zram*", GOTO="%[1]s"
ENV{DM_MULTIPATH_DEVICE_PATH}=="1", GOTO="%[1]s"
`, end)
	for i, r := range sortRules(rules) {
		n := i + 1
		b.WriteString("\n")
		r.comment(b, "# ")
		next, apply := l.rule(n, "next"), l.rule(n, "apply")
		for j, a := range r.except {
			a.udev(b, l.rule(n, fmt.Sprintf("except%d", j+1)), next)
		}
		for j, a := range r.arms {
			a.udev(b, l.rule(n, fmt.Sprintf("arm%d", j+1)), apply)
		}
		more := greater(r.kib)
		fmt.Fprintf(b, `GOTO="%s"
LABEL="%s"
ENV{%[3]s}=="?*", ENV{%[3]s}!="%[4]s", GOTO="%[5]s"
ATTR{queue/max_sectors_kb}=="%[4]s", ATTR{queue/max_sectors_kb}="%[6]d", ENV{%[3]s}="%[6]d"
GOTO="%[5]s"
LABEL="%[1]s"
`, next, apply, marker, more, end, r.kib)
	}
	fmt.Fprintf(b, "\nLABEL=\"%s\"\n", end)
}

// udev writes an arm that jumps to hit where all its lines hold.
func (a arm) udev(b *strings.Builder, name, hit string) {
	out := name + "_no"
	jumps := false
	for i, l := range a.lines {
		last := i == len(a.lines)-1
		if l.veto {
			jumps = true
			fmt.Fprintf(b, "%s, GOTO=\"%s\"\n", l.udev(), out)
			if last {
				fmt.Fprintf(b, "GOTO=\"%s\"\n", hit)
			}
			continue
		}
		to := fmt.Sprintf("%s_%d", name, i+1)
		if last {
			to = hit
		}
		for _, l := range append([]line{l}, l.or...) {
			fmt.Fprintf(b, "%s, GOTO=\"%s\"\n", l.udev(), to)
		}
		if !last {
			jumps = true
			fmt.Fprintf(b, "GOTO=\"%s\"\nLABEL=\"%s\"\n", out, to)
		}
	}
	if jumps {
		fmt.Fprintf(b, "LABEL=\"%s\"\n", out)
	}
}

func sortRules(rules []rule) []rule {
	out := slices.Clone(rules)
	slices.SortStableFunc(out, func(a, b rule) int {
		switch {
		case a.kib != b.kib && a.kib < b.kib:
			return -1
		case a.kib != b.kib:
			return 1
		}
		return strings.Compare(a.id, b.id)
	})
	return out
}

// comment writes what the rule is for.
func (r rule) comment(b *strings.Builder, prefix string) {
	line := func(s string) { b.WriteString(strings.TrimRight(prefix+comment(s), " ") + "\n") }
	line(r.id + ": " + r.title)
	line(fmt.Sprintf("At most %d KiB (%d sectors of 512 bytes).", r.kib, r.sectors))
	for _, f := range r.facts {
		line(f)
	}
	for _, f := range r.left {
		line("Note: " + f + ".")
	}
}

// asks reports whether a line of the rules compares this key; "ENV{" is any
// property.
func asks(rules []rule, key string) bool {
	for _, r := range rules {
		for _, a := range r.arms {
			for _, l := range a.lines {
				for _, l := range append([]line{l}, l.or...) {
					if slices.ContainsFunc(l.conds, func(c cond) bool { return c.key == key || key == "ENV{" && c.property() }) {
						return true
					}
				}
			}
		}
	}
	return false
}

// cutNames reports whether a name is longer than what sysfs shows, so that a
// line must ask udev's properties.
func cutNames(rules []rule) bool {
	for _, r := range rules {
		for _, a := range r.arms {
			for _, l := range a.lines {
				if !l.veto && slices.ContainsFunc(l.conds, cond.property) {
					return true
				}
			}
		}
	}
	return false
}

// udevNotes is what the reader of the rules should know of these ones.
func udevNotes(rules []rule) []string {
	var out []string
	if cutNames(rules) {
		out = append(out,
			"Some names are longer than what sysfs shows (16 characters of an ATA model, 4 of its firmware). For these",
			"ENV{ID_MODEL} and ENV{ID_REVISION} must hold too, which ata_id sets in 60-persistent-storage.rules. In an",
			"initramfs without ata_id such a line does not match, so that no other disk is limited by mistake: the limit",
			"then comes when the system's own udev replays the add events, after the root file system is mounted.")
	}
	if asks(rules, "KERNEL") {
		out = append(out,
			"NVMe: a controller reset or rescan on Linux 6.1 brings the default back and sends no event; check it from a timer.",
			"The hidden paths of a namespace with native multipath (nvme0c0n1) never reach udev; the namespace itself does.")
	}
	return out
}
