package schema

import (
	"bytes"
	"fmt"
	"slices"
	"sync"

	"go.yaml.in/yaml/v3"
)

// Knob is one limit or setting that a quirk entry may bound. knobs.yaml says
// what each field means.
type Knob struct {
	Name        string      `yaml:"name"`
	About       string      `yaml:"about"`
	Value       string      `yaml:"value"` // what a bound compares with: integer, text or switch
	Unit        string      `yaml:"unit"`  // of the bound
	Values      []string    `yaml:"values"`
	Scope       string      `yaml:"scope"` // block-layer, all-commands, device, port, host or config
	Files       []KnobFile  `yaml:"files"` // empty when nothing in sysfs shows it
	Boot        []BootParam `yaml:"boot"`
	UndoneBy    []string    `yaml:"undone_by"`
	SideEffects []string    `yaml:"side_effects"`
	Safer       string      `yaml:"safer"` // lower, higher or none
	Permanent   bool        `yaml:"permanent"`
}

// KnobFile is a place where a knob shows. Path is relative to the folder of
// the block device in sysfs, or absolute; each * stands for one component.
type KnobFile struct {
	Path          string `yaml:"path"`
	Access        string `yaml:"access"` // ro or rw
	Unit          string `yaml:"unit"`   // of the file, which can differ from the knob's
	Since         string `yaml:"since"`  // first kernel release that has the file, empty where not checked
	WritableSince string `yaml:"writable_since"`
	Note          string `yaml:"note"`
}

// BootParam is a kernel or module parameter that sets a knob, with the words
// in capitals to be filled in.
type BootParam struct {
	Text  string `yaml:"text"`
	Since string `yaml:"since"` // first kernel release that knows it, empty where not checked
}

var readKnobs = sync.OnceValue(func() []Knob {
	text, err := Text("knobs")
	if err != nil {
		panic(err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	var knobs []Knob
	if err := dec.Decode(&knobs); err != nil {
		panic(fmt.Sprintf("knobs.yaml: %v", err))
	}
	return knobs
})

// Knobs returns the vocabulary in the order of the file, which is read on the
// first call. It panics only when the binary was built from a broken file. The
// slices inside a Knob are shared and must not be written to.
func Knobs() []Knob { return slices.Clone(readKnobs()) }

// KnobNamed returns the knob of that name; ok is false when there is none.
func KnobNamed(name string) (k Knob, ok bool) {
	i := slices.IndexFunc(readKnobs(), func(k Knob) bool { return k.Name == name })
	if i < 0 {
		return Knob{}, false
	}
	return readKnobs()[i], true
}
