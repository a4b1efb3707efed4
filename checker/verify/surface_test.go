package verify

import (
	"context"
	"slices"
	"testing"
)

// TestSurfaceBatches: each sector once, and no two in one batch that the kernel
// could merge.
func TestSurfaceBatches(t *testing.T) {
	for _, c := range []struct {
		name               string
		size, depth, reach int
		path               Path
		usable             []Extent
		batches            int
	}{
		{"two fit a request", 128, 4, 256, PathBlock, []Extent{{0, 128 * 16}}, 4},
		{"many fit a request", 8, 32, 2560, PathBlock, []Extent{{0, 8 * 70}}, 4},
		{"one fits a request", 2048, 4, 2560, PathBlock, []Extent{{0, 2048 * 8}}, 2},
		{"a short end fits beside another", 2048, 4, 2560, PathBlock, []Extent{{0, 2048*2 + 512}}, 2},
		{"a short end does not", 2048, 4, 2560, PathBlock, []Extent{{0, 2048*2 + 520}}, 1},
		{"one command at a time", 128, 1, 2560, PathBlock, []Extent{{0, 128 * 3}}, 3},
		{"pass-through is not merged", 128, 4, 2560, PathCommand, []Extent{{0, 128 * 8}}, 2},
		{"extents", 128, 4, 2560, PathBlock, []Extent{{8, 300}, {1000, 128}, {1128, 5}}, 4},
		{"smaller than a command", 2048, 4, 2560, PathBlock, []Extent{{0, 8}}, 1},
		{"nothing", 2048, 4, 2560, PathBlock, nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, f := disk(16<<20, 1)
			f.block, f.command, f.info.Usable = c.reach, c.reach, c.usable
			r := &run{dev: f, info: f.info}
			var all []Extent
			n := 0
			for b := range r.surfaceBatches(c.size, c.depth, c.path) {
				if n++; len(b) == 0 || len(b) > c.depth {
					t.Errorf("a batch of %d", len(b))
				}
				for i, x := range b {
					for _, y := range b[:i] {
						if (x.End() == y.Sector || y.End() == x.Sector) && c.path == PathBlock && int(x.Sectors+y.Sectors) <= c.reach {
							t.Errorf("%s and %s are in one batch", x, y)
						}
					}
				}
				all = append(all, b...)
			}
			if n != c.batches {
				t.Errorf("%d batches, want %d", n, c.batches)
			}
			slices.SortFunc(all, func(a, b Extent) int { return int(a.Sector) - int(b.Sector) })
			for _, e := range c.usable {
				for at := e.Sector; at < e.End(); {
					if len(all) == 0 || all[0].Sector != at || all[0].Sectors == 0 || int(all[0].Sectors) > c.size {
						t.Fatalf("at sector %d comes %v", at, all)
					}
					at = all[0].End()
					all = all[1:]
				}
			}
			if len(all) > 0 {
				t.Errorf("too many: %v", all)
			}
			for range r.surfaceBatches(c.size, c.depth, c.path) {
				break // must not go on
			}
		})
	}
}

// mergingDevice makes one request of neighbours that were sent together, as a
// scheduler of the block layer does.
type mergingDevice struct{ *fakeDevice }

func (m mergingDevice) Do(ctx context.Context, cmds []Command) []Completion {
	out := m.fakeDevice.Do(ctx, cmds)
	for i, a := range cmds {
		for j, b := range cmds {
			if a.Path == PathBlock && a.Sector+uint64(a.Sectors()) == b.Sector && a.Sectors()+b.Sectors() <= m.block {
				out[i].Proof, out[j].Proof = "", ""
			}
		}
	}
	return out
}

func TestSurfaceWhereNeighboursMerge(t *testing.T) {
	for _, size := range []int{64, 128, 1000, 1024} {
		_, f := disk(8<<20+4096, 1)
		f.block = 2048
		r, err := Run(context.Background(), mergingDevice{f}, Options{Mode: ModeDestroy, Level: Quick, Now: f.clock, Surface: size})
		if err != nil || r.Verdict != VerdictClean || *r.SafeMaxSectors != size {
			t.Errorf("%d sectors: %v, %s", size, err, r.Sentence)
		}
	}
}
