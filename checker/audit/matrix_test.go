package audit_test

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/quirkcheck/quirkcheck/checker/audit"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/probe/capture"
)

// boot is one capture of the kernel matrix: the same emulated machine under each
// kernel (testdata/matrix/README.md, where it comes from).
type boot struct {
	name string
	host *audit.Host
	keys map[string][]string // of each device: the names that are the same in every boot
}

func matrixBoots(t *testing.T) []boot {
	t.Helper()
	const dir = "testdata/matrix"
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		t.Skipf("%s is not there: the captures of the kernel matrix", dir)
	}
	files, err := filepath.Glob(dir + "/*.json.gz")
	if err != nil || len(files) < 5 {
		t.Fatalf("%d captures in %s, %v", len(files), dir, err)
	}
	var list []boot
	for _, f := range files {
		c, err := capture.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		b, sys := boot{name: strings.TrimSuffix(filepath.Base(f), ".json.gz"), keys: map[string][]string{}}, c.FS()
		b.host = host(t, sys, audit.Options{})
		for link := range c.Links {
			if key, ok := strings.CutPrefix(link, "dev/disk/by-id/matrix-"); ok {
				name, err := probe.ResolveName(sys, "/"+link)
				if err != nil {
					t.Fatal(err)
				}
				b.keys[name] = append(b.keys[name], key)
				slices.Sort(b.keys[name])
			}
		}
		if len(b.keys) < 20 {
			t.Fatalf("%s: %d devices have a key", f, len(b.keys))
		}
		list = append(list, b)
	}
	return list
}

// unseen are devices of which a boot does not show what another one does by it.
var unseen = map[string]string{
	"dm-thin-2m":     "up to 6.8 a pool is held at its block, which sysfs does not show",
	"dm-thin-2m-vol": "up to 6.8 a pool is held at its block, which sysfs does not show",
	"USER-VS-4KN":    "258 was set, of which newer kernels show 256, a multiple of the logical block",
}

// TestMatrix predicts from each booted kernel what each other one showed. What
// calls itself certain must be right, but for a value that somebody set to what
// the kernel chooses anyway: nothing tells it.
func TestMatrix(t *testing.T) {
	boots := matrixBoots(t)
	kind := func(name string) string { _, k, _ := strings.Cut(name, "-"); return k } // of the boot: its command line
	count := map[string]int{}
	for _, from := range boots {
		for _, to := range boots {
			if from.name == to.name || kind(from.name) != kind(to.name) {
				continue
			}
			shown := map[string]*audit.Device{}
			for _, d := range to.host.To(to.host.From()).Devices {
				for _, key := range to.keys[d.Name] {
					shown[key] = d
				}
			}
			for _, d := range from.host.To(to.host.From()).Devices {
				keys := from.keys[d.Name]
				if len(keys) == 0 || shown[keys[0]] == nil {
					continue
				}
				want := shown[keys[0]].Limits
				var wrong []string
				for _, v := range []struct {
					name      string
					got, want *uint64
				}{{"max_sectors_kb", d.Predicted.MaxSectorsKB, want.MaxSectorsKB}, {"max_hw_sectors_kb", d.Predicted.MaxHWSectorsKB, want.MaxHWSectorsKB},
					{"optimal_io_size", d.Predicted.OptimalIOSize, want.OptimalIOSize}, {"read_ahead_kb", d.Predicted.ReadAheadKB, want.ReadAheadKB}} {
					if v.got != nil && deref(v.got) != deref(v.want) {
						wrong = append(wrong, fmt.Sprintf("%s %s, is %s", v.name, str(v.got), str(v.want)))
					}
				}
				count[fmt.Sprintf("%s right=%v", d.Predicted.Certainty, wrong == nil)]++
				same := strings.HasPrefix(keys[0], "USER") && deref(d.Change.FromKB) == deref(d.Change.DefaultFromKB)
				if wrong != nil && d.Predicted.Certainty != "low" && d.Predicted.Certainty != "unknown" && !same && unseen[keys[0]] == "" {
					t.Errorf("%s from %s to %s (%s): %s", keys[0], from.name, to.name, d.Predicted.Certainty, strings.Join(wrong, "; "))
				}
			}
		}
	}
	if count["high right=true"] < 500 {
		t.Errorf("only %v", count)
	}
	t.Log(count)
}
