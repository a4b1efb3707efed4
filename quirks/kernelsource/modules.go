package kernelsource

import (
	"path"
	"strings"
)

// modules reads off a Makefile of the kernel which module each object file goes
// into, "" for one that goes into several. Conditions are not looked at.
func modules(makefile string) map[string]string {
	out := map[string]string{}
	put := func(object, module string) {
		if old, ok := out[object]; ok && old != module {
			module = ""
		}
		out[object] = module
	}
	own := map[string]bool{} // modules of one file, or the names of composites
	for _, line := range strings.Split(strings.ReplaceAll(makefile, "\\\n", " "), "\n") {
		line, _, _ = strings.Cut(line, "#")
		target, list, ok := strings.Cut(line, "=")
		if !ok {
			continue
		}
		target = strings.TrimSpace(strings.TrimRight(target, ":+? \t"))
		name, kind, ok := cutLast(target)
		if !ok || len(target) > 200 || strings.ContainsAny(name, "$() \t") {
			continue
		}
		for _, object := range strings.Fields(list) {
			stem, isObject := strings.CutSuffix(object, ".o")
			switch {
			case !isObject || strings.ContainsAny(object, "$()"):
			case name == "obj":
				own[stem] = true
			case kind == "y" || kind == "m" || kind == "objs" || strings.HasPrefix(kind, "$("):
				put(stem, name)
			}
		}
	}
	for stem := range own {
		if _, ok := out[stem]; !ok {
			out[stem] = path.Base(stem)
		}
	}
	return out
}

// cutLast splits NAME-KIND, where KIND can be $(CONFIG_...).
func cutLast(target string) (name, kind string, ok bool) {
	i := strings.Index(target, "-$(")
	if i < 0 {
		i = strings.LastIndexByte(target, '-')
	}
	if i <= 0 {
		return "", "", false
	}
	return target[:i], target[i+1:], true
}

// module says what module a file of the tree goes into, "" where the Makefiles
// of its folder and the one above do not say it.
func (r *limitReader) module(file string) string {
	stem, ok := strings.CutSuffix(file, ".c")
	if !ok {
		return ""
	}
	for dir := path.Dir(file); strings.Count(dir, "/") > 0; dir = path.Dir(dir) {
		m, ok := r.makefiles[dir]
		if !ok {
			if text, found := r.take(dir + "/Makefile"); found {
				m = modules(text)
			}
			r.makefiles[dir] = m
		}
		if name, ok := m[strings.TrimPrefix(stem, dir+"/")]; ok {
			return name
		}
	}
	return ""
}
