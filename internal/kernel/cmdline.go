package kernel

import "strings"

// Parameters splits a kernel command line as the kernel does: at blanks outside
// double quotes (lib/cmdline.c, next_arg). Each is a name and a value, without
// quotes around it; "" without one.
func Parameters(cmdline string) [][2]string {
	var args [][2]string
	quoted := false
	for field := range strings.FieldsFuncSeq(cmdline, func(r rune) bool {
		if r == '"' {
			quoted = !quoted
		}
		return !quoted && (r == ' ' || r == '\t' || r == '\n')
	}) {
		name, value, _ := strings.Cut(strings.TrimPrefix(field, `"`), "=")
		args = append(args, [2]string{name, strings.Trim(value, `"`)})
	}
	return args
}

// Parameter returns the value that a module's parameter has on the command
// line: the last one counts, and - and _ in names are the same. What modprobe's
// configuration says is not there.
func Parameter(cmdline, module, name string) (value string, ok bool) {
	norm := func(s string) string { return strings.ReplaceAll(s, "-", "_") }
	want := norm(module + "." + name)
	for _, a := range Parameters(cmdline) {
		if norm(a[0]) == want {
			value, ok = a[1], true
		}
	}
	return value, ok
}
