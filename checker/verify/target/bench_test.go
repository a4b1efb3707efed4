package target

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/quirkcheck/quirkcheck/checker/verify"
)

// BenchmarkSurface writes and reads all of a block device, as verify --destroy
// --surface 1M does, and checks each word. QUIRKCHECK_BENCH_NODE names the
// device, whose content is lost: .ci/bench-verify makes one for it. The
// interlocks are not asked. pass-s is the time of the surface passes alone,
// without the baseline of small commands before them.
func BenchmarkSurface(b *testing.B) {
	node := os.Getenv("QUIRKCHECK_BENCH_NODE")
	if node == "" {
		b.Skip("QUIRKCHECK_BENCH_NODE is not set")
	}
	f, err := os.OpenFile(node, os.O_RDWR|unix.O_EXCL, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	d, err := NewDisk(f, DiskOptions{Name: node, SysBlock: filepath.Join("/sys/block", filepath.Base(node))})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	bytes := int64(d.Info().Sectors) * verify.SectorBytes
	b.SetBytes(2 * bytes)
	var passes time.Duration
	n := 0
	for seed := uint64(1); b.Loop(); seed++ {
		var begin time.Time
		r, err := verify.Run(context.Background(), d, verify.Options{Mode: verify.ModeDestroy, Level: verify.Quick, Surface: 2048, Seed: seed,
			Progress: func(p verify.Progress) {
				if begin.IsZero() && strings.HasPrefix(p.Phase, "surface") {
					begin = time.Now()
				}
			}})
		passes += time.Since(begin)
		n++
		if err != nil {
			b.Fatal(err)
		}
		if r.Verdict != verify.VerdictClean || r.Written < uint64(bytes) || r.Read < uint64(bytes) {
			b.Fatalf("%s: %s", r.Verdict, r.Sentence)
		}
		for _, w := range r.Sizes {
			if !w.Clean() {
				b.Fatalf("%d sectors: %s", w.Sectors, w.NotReached)
			}
		}
	}
	b.ReportMetric(passes.Seconds()/float64(n), "pass-s/op")
}
