package vm

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// source is one line of an apt sources.list(5).
type source struct {
	options    []string // "signed-by=/usr/share/keyrings/..."
	uri, suite string
	components []string
}

func (s source) String() string {
	opt := ""
	if len(s.options) > 0 {
		opt = "[" + strings.Join(s.options, " ") + "] "
	}
	return "deb " + opt + s.uri + " " + s.suite + " " + strings.Join(s.components, " ")
}

// systemSources reads the system's own apt sources, in both formats.
func systemSources() ([]source, error) {
	lists, err := filepath.Glob("/etc/apt/sources.list.d/*.list")
	if err != nil {
		return nil, err
	}
	var out []source
	for _, f := range append([]string{"/etc/apt/sources.list"}, lists...) {
		if b, err := os.ReadFile(f); err == nil {
			out = append(out, parseList(string(b))...)
		}
	}
	stanzas, err := filepath.Glob("/etc/apt/sources.list.d/*.sources")
	if err != nil {
		return nil, err
	}
	for _, f := range stanzas {
		if b, err := os.ReadFile(f); err == nil {
			out = append(out, parseStanzas(string(b))...)
		}
	}
	if len(out) == 0 {
		return nil, &MissingError{What: "an apt source"}
	}
	return out, nil
}

// parseList reads the one-line format.
func parseList(text string) []source {
	var out []source
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		line, ok := strings.CutPrefix(strings.TrimSpace(line), "deb ")
		if !ok {
			continue
		}
		var s source
		line = strings.TrimSpace(line)
		if rest, ok := strings.CutPrefix(line, "["); ok {
			opt, after, ok := strings.Cut(rest, "]")
			if !ok {
				continue
			}
			s.options, line = strings.Fields(opt), after
		}
		f := strings.Fields(line)
		if len(f) < 3 {
			continue
		}
		s.uri, s.suite, s.components = f[0], f[1], f[2:]
		out = append(out, s)
	}
	return out
}

// parseStanzas reads the deb822 format. A key given inline, rather than as a
// file's name, cannot be said on one line and is left to the system's keys.
func parseStanzas(text string) []source {
	var out []source
	for stanza := range strings.SplitSeq(text, "\n\n") {
		field := map[string]string{}
		name := ""
		for line := range strings.Lines(stanza) {
			switch {
			case strings.HasPrefix(line, "#"):
			case strings.HasPrefix(line, " "), strings.HasPrefix(line, "\t"):
				field[name] += " " + strings.TrimSpace(line)
			default:
				n, v, ok := strings.Cut(line, ":")
				if ok {
					name = strings.ToLower(strings.TrimSpace(n))
					field[name] = strings.TrimSpace(v)
				}
			}
		}
		if !slices.Contains(strings.Fields(field["types"]), "deb") || strings.EqualFold(field["enabled"], "no") {
			continue
		}
		var options []string
		if k := field["signed-by"]; filepath.IsAbs(k) {
			options = append(options, "signed-by="+strings.Join(strings.Fields(k), ","))
		}
		for _, u := range strings.Fields(field["uris"]) {
			for _, s := range strings.Fields(field["suites"]) {
				out = append(out, source{options, u, s, strings.Fields(field["components"])})
			}
		}
	}
	return out
}

// codename is that of the running release, "bookworm", or "".
func codename() string {
	b, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME="); ok {
			return strings.Trim(v, `"`)
		}
	}
	return ""
}

// ofRelease keeps the sources of a release and its security and update suites.
// A vendor's own archive has no kernels, and may be broken today.
func ofRelease(all []source, codename string) []source {
	return slices.DeleteFunc(slices.Clone(all), func(s source) bool {
		return s.suite != codename && !strings.HasPrefix(s.suite, codename+"-") || !slices.Contains(s.components, "main")
	})
}

// mainSource returns the source of the Debian archive itself: not the security
// archive, nor a vendor's.
func mainSource(all []source, codename string) (source, bool) {
	for _, suite := range []string{codename, "stable", "testing", "unstable", "sid"} {
		for _, s := range all {
			if s.suite == suite && slices.Contains(s.components, "main") {
				return s, true
			}
		}
	}
	return source{}, false
}
