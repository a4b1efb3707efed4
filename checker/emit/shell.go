package emit

import (
	"fmt"
	"strings"
)

const shellLibrary = `set -u
LC_ALL=C
export LC_ALL
SYS=${LIMIT_SYS:-/sys}
RUN=${LIMIT_RUN:-/run}
dry=
case ${1-} in
'') ;;
-n) dry=1 ;;
*)
	echo "usage: $0 [-n]" >&2
	exit 2
	;;
esac
status=0

# attr FOLDER FILE: puts the first line of a file into v, without blanks at its
# end; fails where it cannot be read.
attr() {
	v=
	[ -f "$1/$2" ] && [ -r "$1/$2" ] || return 1
	IFS= read -r v <"$1/$2" || [ -n "$v" ] || v=
	while :; do
		case $v in
		*' ') v=${v% } ;;
		*) return 0 ;;
		esac
	done
}

# path_of_multipath: whether a multipath map is made of the disk.
path_of_multipath() {
	for h in "$dev"/holders/*; do
		attr "$SYS/block/${h##*/}/dm" uuid || continue
		case $v in mpath-*) return 0 ;; esac
	done
	return 1
}

# limit KIB ENTRY: lowers the disk's limit where it is above, and reads it back.
limit() {
	if ! attr "$dev/queue" max_sectors_kb; then
		echo "$name: queue/max_sectors_kb cannot be read ($2)" >&2
		status=1
		return
	fi
	was=$v
	if [ "$was" -le "$1" ]; then
		echo "$name: $was KiB is within $1 KiB ($2)"
		return
	fi
	if path_of_multipath; then
		echo "$name: $was KiB, wants $1 KiB ($2), but is a path of a multipath map: left alone" >&2
		status=1
		return
	fi
	if [ -n "$dry" ]; then
		echo "$name: would lower $was KiB to $1 KiB ($2)"
		return
	fi
	if ! { printf '%s\n' "$1" >"$dev/queue/max_sectors_kb"; } 2>/dev/null; then
		echo "$name: cannot write queue/max_sectors_kb ($2)" >&2
		status=1
		return
	fi
	if ! attr "$dev/queue" max_sectors_kb || [ "$v" -gt "$1" ]; then
		echo "$name: wrote $1 KiB and read back ${v:-nothing} ($2)" >&2
		status=1
		return
	fi
	echo "$name: lowered $was KiB to $v KiB ($2)"
}
`

// shellLink and shellKnown are written where a rule needs them.
const (
	shellLink = `
# link FOLDER NAME: puts the last part of where a link leads into v.
link() {
	v=$(cd -P "$1/$2" 2>/dev/null && pwd -P) || return 1
	v=${v##*/}
}
`
	shellKnown = `
# known NAME: puts what udev knows about the disk into v, '' for nothing.
known() {
	v=
	attr "$dev" dev || return 0
	db=$RUN/udev/data/b$v
	v=
	[ -r "$db" ] || return 0
	while IFS= read -r l; do
		case $l in "E:$1="*) v=${l#*=} ;; esac
	done <"$db"
}
`
)

// shellPattern writes a pattern of udev for case: everything but wildcards is
// quoted.
func shellPattern(pat string) string {
	var b strings.Builder
	quoted := false
	quote := func(on bool) {
		if quoted != on {
			b.WriteByte('\'')
			quoted = on
		}
	}
	for i := 0; i < len(pat); i++ {
		switch c := pat[i]; c {
		case '*', '?':
			quote(false)
			b.WriteByte(c)
		case '[':
			quote(false)
			n := strings.IndexByte(pat[i:], ']') + i
			b.WriteString(pat[i : n+1])
			i = n
		default:
			quote(true)
			b.WriteByte(c)
		}
	}
	quote(false)
	if b.Len() == 0 {
		return "''"
	}
	return b.String()
}

func (c cond) shell() string {
	alts := make([]string, len(c.pats))
	for i, p := range c.pats {
		alts[i] = shellPattern(p)
	}
	file, _ := strings.CutSuffix(c.key[strings.IndexByte(c.key, '{')+1:], "}")
	get := ""
	switch {
	case strings.HasPrefix(c.key, "ATTRS{"):
		get = `attr "$d" ` + file
	case strings.HasPrefix(c.key, "ATTR{[dmi/id]"):
		get = `attr "$SYS/class/dmi/id" ` + strings.TrimPrefix(file, "[dmi/id]")
	case strings.HasPrefix(c.key, "ENV{"):
		get = "known " + file
	case c.key == "DRIVERS":
		get = `link "$d" driver`
	case c.key == "SUBSYSTEMS":
		get = `link "$d" subsystem`
	case c.key == "KERNELS":
		get = "v=${d##*/}"
	case c.key == "KERNEL":
		get = "v=$name"
	}
	yes, no := ";;", "false ;;"
	if c.not {
		yes, no = "false ;;", ";;"
	}
	return fmt.Sprintf("%s && case $v in %s) %s *) %s esac", get, strings.Join(alts, " | "), yes, no)
}

func (l line) shell(b *strings.Builder, name string) {
	parents := false
	conds := make([]string, len(l.conds))
	for i, c := range l.conds {
		conds[i] = c.shell()
		parents = parents || strings.HasPrefix(c.key, "ATTRS{") || c.key == "DRIVERS" || c.key == "SUBSYSTEMS" || c.key == "KERNELS"
	}
	if !parents {
		fmt.Fprintf(b, "%s() {\n\t%s\n}\n", name, strings.Join(conds, " &&\n\t\t"))
		return
	}
	fmt.Fprintf(b, "%s() {\n\td=$dev\n\twhile [ -n \"$d\" ]; do\n\t\tif %s; then\n\t\t\treturn 0\n\t\tfi\n\t\td=${d%%/*}\n\tdone\n\treturn 1\n}\n",
		name, strings.Join(conds, " &&\n\t\t\t"))
}

func (a arm) shell(b *strings.Builder, name string) (call string) {
	calls := make([]string, len(a.lines))
	for i, l := range a.lines {
		calls[i] = fmt.Sprintf("%s_%d", name, i+1)
		l.shell(b, calls[i])
		any := []string{calls[i]}
		for j, o := range l.or {
			any = append(any, fmt.Sprintf("%s_%d_%d", name, i+1, j+2))
			o.shell(b, any[j+1])
		}
		switch {
		case l.veto:
			calls[i] = "! " + calls[i]
		case len(any) > 1:
			calls[i] = "{ " + strings.Join(any, " || ") + "; }"
		}
	}
	return strings.Join(calls, " && ")
}

// shell writes a POSIX script for an install image.
func (p *Plan) shell() (Artefact, error) {
	rules, why, err := p.writable(KindShell)
	if err != nil {
		return Artefact{}, err
	}
	var b strings.Builder
	b.WriteString("#!/bin/sh\n")
	p.o.head(&b, "# ", p.o.by("quirkcheck recommend --emit shell"), "",
		"Lowers queue/max_sectors_kb of the disks named below, once, now; with -n it only",
		"says what it would do. It never raises a value, leaves paths of multipath maps alone",
		"and may run any number of times. Nothing of it outlives a reboot or a replug: the",
		"udev rule (--emit udev) does. To undo it, write the old value, or 0 from Linux 6.3 on.", "",
		"Exit status: 0 every such disk is within its limit, 1 one is not, 2 usage.")
	if cutNames(rules) {
		p.o.head(&b, "# ", "", "Some names are longer than what sysfs shows; for these the names in udev's database",
			"(/run/udev/data) decide, and a disk that udev does not know is left alone.")
	}
	if len(why) > 0 {
		b.WriteString("#\n# Not covered:\n")
		for _, w := range why {
			p.o.head(&b, "#   ", w)
		}
	}
	b.WriteString(shellLibrary)
	if asks(rules, "DRIVERS") || asks(rules, "SUBSYSTEMS") {
		b.WriteString(shellLink)
	}
	if asks(rules, "ENV{") {
		b.WriteString(shellKnown)
	}
	rules = sortRules(rules)
	for i, r := range rules {
		b.WriteString("\n")
		r.comment(&b, "# ")
		var except, hit []string
		for j, a := range r.except {
			except = append(except, a.shell(&b, fmt.Sprintf("rule_%d_except_%d", i+1, j+1)))
		}
		for j, a := range r.arms {
			hit = append(hit, a.shell(&b, fmt.Sprintf("rule_%d_arm_%d", i+1, j+1)))
		}
		fmt.Fprintf(&b, "rule_%d() {\n", i+1)
		for _, c := range except {
			fmt.Fprintf(&b, "\tif %s; then return 1; fi\n", c)
		}
		for _, c := range hit {
			fmt.Fprintf(&b, "\tif %s; then return 0; fi\n", c)
		}
		b.WriteString("\treturn 1\n}\n")
	}
	b.WriteString(`
for b in "$SYS"/block/*; do
	name=${b##*/}
	case $name in dm-* | md* | loop* | ram* | zram*) continue ;; esac
	[ -e "$b/queue/max_sectors_kb" ] || continue
	dev=$(cd -P "$b" && pwd -P) || continue
`)
	for i, r := range rules {
		word := "elif"
		if i == 0 {
			word = "if"
		}
		fmt.Fprintf(&b, "\t%s rule_%d; then\n\t\tlimit %d %s\n", word, i+1, r.kib, shellPattern(shellWord(r.id)))
	}
	b.WriteString("\tfi\ndone\nexit $status\n")
	return Artefact{Kind: KindShell, File: "quirkcheck-limit.sh", Text: b.String(), Warnings: why}, nil
}

// shellWord keeps of an id what may stand in a word.
func shellWord(id string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x80 && (alnum(byte(r)) || strings.ContainsRune("-._", r)) {
			return r
		}
		return '_'
	}, id)
}
