package scsi

import (
	"reflect"
	"testing"
)

// A byte changes what a parser returns if and only if a field of the layout holds
// it, so that neither can know of a field without the other.
func TestLayoutIsTheParsers(t *testing.T) {
	pages := map[uint8]struct {
		parse func([]byte) (any, error)
		size  int
	}{
		PageATAInformation:             {anyOf(ParseATAInformation), ataIdentifyEnd},
		PageBlockDeviceCharacteristics: {anyOf(ParseBlockDeviceCharacteristics), 64},
		PageLogicalBlockProvisioning:   {anyOf(ParseLogicalBlockProvisioning), 8},
	}
	for code, p := range pages {
		b := make([]byte, p.size)
		b[vpdPageCode] = code
		b[vpdPageLength], b[vpdPageLength+1] = byte((p.size-vpdBody)>>8), byte(p.size-vpdBody)
		if code == PageATAInformation {
			b[ataCommandCode] = CommandIdentifyDevice
		}
		compareLayout(t, Layout(code), p.parse, b, vpdBody)
	}
	compareLayout(t, InquiryLayout(), anyOf(ParseInquiry), make([]byte, 64), 0)

	// Block Limits keeps its bytes, and the methods tell.
	b := make([]byte, blEnd)
	b[vpdPageCode], b[vpdPageLength+1] = PageBlockLimits, blEnd-vpdBody
	b[blUnmapGranularityAlignment] = 0x80
	compareLayout(t, Layout(PageBlockLimits), func(b []byte) (any, error) {
		p, err := ParseBlockLimits(b)
		values := []any{p.WSNZ(), p.MaxCompareAndWriteBlocks()}
		add := func(n any, ok bool) { values = append(values, n, ok) }
		g, ok := p.OptimalTransferGranularityBlocks()
		add(g, ok)
		for _, f := range []func() (uint32, bool){p.MaxTransferBlocks, p.OptimalTransferBlocks, p.MaxPrefetchBlocks, p.MaxUnmapLBACount,
			p.MaxUnmapBlockDescriptorCount, p.OptimalUnmapGranularityBlocks, p.UnmapGranularityAlignmentBlocks, p.MaxAtomicTransferBlocks,
			p.AtomicAlignmentBlocks, p.AtomicTransferGranularityBlocks, p.MaxAtomicTransferWithBoundaryBlocks, p.MaxAtomicBoundaryBlocks} {
			n, ok := f()
			add(n, ok)
		}
		w, ok := p.MaxWriteSameBlocks()
		add(w, ok)
		return values, err
	}, b, vpdBody)

	if Layout(PageSupportedPages) != nil || Layout(0xde) != nil {
		t.Error("a layout of a page without fields of fixed place")
	}
}

func anyOf[T any](parse func([]byte) (T, error)) func([]byte) (any, error) {
	return func(b []byte) (any, error) { return parse(b) }
}

func compareLayout(t *testing.T, layout []Field, parse func([]byte) (any, error), b []byte, from int) {
	t.Helper()
	if len(layout) == 0 {
		t.Error("no field")
	}
	held, last := map[int]string{}, 0
	for _, f := range layout {
		if f.Offset < last || f.Size < 1 || f.Name == "" {
			t.Errorf("%+v: out of order, empty or without a name", f)
		}
		last = f.Offset
		for i := f.Offset; i < f.End(); i++ {
			held[i] = f.Name
		}
	}
	want, err := parse(b)
	if err != nil {
		t.Fatal(err)
	}
	for i := from; i < len(b); i++ {
		changed := false
		for bit := range 8 {
			b[i] ^= 1 << bit
			got, err := parse(b)
			changed = changed || err != nil || !reflect.DeepEqual(got, want)
			b[i] ^= 1 << bit
		}
		if name, ok := held[i]; ok != changed {
			t.Errorf("byte %d: in field %q, but it changes the result: %t", i, name, changed)
		}
	}
}
