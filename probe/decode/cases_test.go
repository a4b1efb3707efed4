package decode_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/quirkcheck/quirkcheck/internal/recorded"
	"github.com/quirkcheck/quirkcheck/probe/decode"
)

// TestSwappedIdentify is case RC-091: within page 89h the strings of IDENTIFY
// DEVICE are swapped pairwise, and the page's own name the translation layer.
func TestSwappedIdentify(t *testing.T) {
	all := recorded.Checks(t)
	i := slices.IndexFunc(all, func(c recorded.Check) bool { return c.ID == "RC-091" })
	if i < 0 {
		t.Fatal("no such case")
	}
	var sub struct {
		Raw struct {
			SATVendor   string `json:"sat_vendor"`
			SATProduct  string `json:"sat_product"`
			SATRevision string `json:"sat_revision"`
			Model       string `json:"identify_model"`
			Firmware    string `json:"identify_firmware"`
		} `json:"raw"`
	}
	var want struct{ Model, Firmware string }
	for _, d := range []struct {
		from json.RawMessage
		to   any
	}{{all[i].Subject, &sub}, {all[i].Expect.Identity, &want}} {
		if err := json.Unmarshal(d.from, d.to); err != nil {
			t.Fatal(err)
		}
	}
	page := make([]byte, 4+0x238)
	page[1], page[2], page[3] = 0x89, 0x02, 0x38
	copy(page[8:], sub.Raw.SATVendor)
	copy(page[16:], sub.Raw.SATProduct)
	copy(page[32:], sub.Raw.SATRevision)
	page[56] = 0xec // IDENTIFY DEVICE
	// Words 23 to 26 and 27 to 46 (ACS-4), padded with blanks.
	data := page[60:]
	for at, s := range map[int]string{23 * 2: sub.Raw.Firmware, 27 * 2: sub.Raw.Model} {
		n := map[int]int{23 * 2: 8, 27 * 2: 40}[at]
		for j := range n {
			data[at+j] = ' '
		}
		copy(data[at:at+n], s)
	}
	got, err := decode.VPD(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range got.Fields {
		switch f.Name {
		case "model":
			if f.Value != want.Model {
				t.Errorf("model %q, want %q", f.Value, want.Model)
			}
			want.Model = ""
		case "firmware":
			if f.Value != want.Firmware {
				t.Errorf("firmware %q, want %q", f.Value, want.Firmware)
			}
			want.Firmware = ""
		}
	}
	if want.Model+want.Firmware != "" {
		t.Errorf("missing: %+v in %+v", want, got.Fields)
	}
}
