package quirks

import (
	"fmt"
	"math/big"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Firmware is a pattern over firmware or revision strings in one of the
// entry forms: "GLOB", a list, {any: "reason"}, or {bad: [..], fixed: [..],
// below: "X", order: ..}. The zero Firmware asks nothing.
type Firmware struct {
	Patterns Patterns // bad ones
	Fixed    Patterns
	Any      string // the reason why any firmware is meant
	Below    string // with order: the first revision that is not bad
	order    firmwareOrder
	listed   bool // map form: a string in neither list and not below is unknown
}

// firmwareOrder says how revisions compare; the zero order compares none.
type firmwareOrder struct {
	kind   string // lexical, numeric, suffix
	prefix string // suffix: literal text before the number
}

// IsZero reports whether nothing is asked.
func (f Firmware) IsZero() bool {
	return len(f.Patterns) == 0 && len(f.Fixed) == 0 && f.Any == "" && f.Below == ""
}

// UnmarshalYAML accepts all forms.
func (f *Firmware) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind != yaml.MappingNode {
		return f.Patterns.UnmarshalYAML(n)
	}
	f.listed = true
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		var err error
		switch key.Value {
		case "any":
			f.listed = false
			err = value.Decode(&f.Any)
		case "bad":
			err = f.Patterns.UnmarshalYAML(value)
		case "fixed":
			err = f.Fixed.UnmarshalYAML(value)
		case "below":
			err = value.Decode(&f.Below)
		case "order":
			err = f.order.unmarshal(value)
		default:
			err = fmt.Errorf("line %d: field %s not found in firmware", key.Line, key.Value)
		}
		if err != nil {
			return err
		}
	}
	if f.IsZero() { // would ask nothing, and match all
		return fmt.Errorf("line %d: firmware: want any, bad, fixed or below", n.Line)
	}
	if f.Below != "" {
		if _, ok := f.order.compare(f.Below, f.Below); !ok {
			return fmt.Errorf("line %d: below %q does not parse under its order", n.Line, f.Below)
		}
	}
	return nil
}

func (o *firmwareOrder) unmarshal(n *yaml.Node) error {
	if n.Kind == yaml.MappingNode {
		var m struct {
			SuffixAfter string `yaml:"suffix_after"`
		}
		if err := n.Decode(&m); err != nil {
			return err
		}
		o.kind, o.prefix = "suffix", m.SuffixAfter
		return nil
	}
	switch n.Value {
	case "lexical", "numeric":
		o.kind = n.Value
	case "listed":
	default:
		return fmt.Errorf("line %d: order %q: want listed, lexical, numeric or {suffix_after: ..}", n.Line, n.Value)
	}
	return nil
}

// compare orders two revisions; ok is false where one does not parse.
func (o firmwareOrder) compare(a, b string) (c int, ok bool) {
	number := func(s string) (*big.Int, bool) {
		if s == "" || len(s) > 40 || strings.Trim(s, "0123456789") != "" {
			return nil, false
		}
		return new(big.Int).SetString(s, 10)
	}
	switch o.kind {
	case "lexical":
		return strings.Compare(a, b), len(a) == len(b)
	case "suffix":
		var okA, okB bool
		if a, okA = strings.CutPrefix(a, o.prefix); !okA {
			return 0, false
		}
		if b, okB = strings.CutPrefix(b, o.prefix); !okB {
			return 0, false
		}
		fallthrough
	case "numeric":
		x, okX := number(a)
		y, okY := number(b)
		if !okX || !okY {
			return 0, false
		}
		return x.Cmp(y), true
	}
	return 0, false
}

// answer judges a whole revision: True is bad.
func (f Firmware) answer(s string) (Truth, string) {
	switch {
	case f.Any != "", f.Patterns.match(s) == True:
		return True, ""
	case !f.listed, f.Fixed.match(s) == True:
		return False, ""
	}
	if f.Below != "" {
		if c, ok := f.order.compare(s, f.Below); ok {
			return truthOf(c < 0), ""
		}
	}
	return Unknown, WhyFirmwareUnnamed
}

func (f Firmware) String() string {
	if f.Any != "" {
		return "any"
	}
	var parts []string
	if len(f.Patterns) > 0 {
		bad := f.Patterns.String()
		if f.listed {
			bad = "bad " + bad
		}
		parts = append(parts, bad)
	}
	if f.Below != "" {
		parts = append(parts, "below "+f.Below)
	}
	if len(f.Fixed) > 0 {
		parts = append(parts, "fixed "+f.Fixed.String())
	}
	return strings.Join(parts, ", ")
}
