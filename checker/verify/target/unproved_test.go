package target

import (
	"context"
	"testing"
	"time"

	"github.com/quirkcheck/quirkcheck/checker/verify"
)

// TestUnprovedCommandsBesideProvedOnes: the counters of the former, which may
// lag, are not taken for the latter's.
func TestUnprovedCommandsBesideProvedOnes(t *testing.T) {
	name := loopDisk(t, 16<<20)
	d := newDisk(t, openNode(t, name), DiskOptions{Name: name, SysBlock: "/sys/block/" + name})
	small := buffer(t, d, "small", 128, verify.Contiguous, 1)
	large := buffer(t, d, "large", 1024, verify.Contiguous, 2)
	ctx := context.Background()
	for i := range 50 {
		for j := range 5 {
			c := verify.Command{Op: verify.Op(j % 2), Sector: uint64(i*256 + j*128), Data: small, Path: verify.PathBlock, Unproved: true}
			if o := d.Do(ctx, []verify.Command{c})[0]; o.Err != nil || o.Proof != "" {
				t.Fatalf("unproved: %+v", o)
			}
		}
		o := d.Do(ctx, []verify.Command{{Op: verify.Op(i % 2), Sector: 8192, Data: large, Path: verify.PathBlock}})[0]
		if o.Err != nil || o.Proof == "" || o.Largest != 1024 {
			t.Fatalf("%d: %+v; %s", i, o, d.ProofSource())
		}
	}
	// One that fails leaves nothing to wait for long.
	bad := verify.Command{Op: verify.Read, Sector: 1 << 40, Data: small, Path: verify.PathBlock, Unproved: true}
	d.Do(ctx, []verify.Command{bad})
	begin := time.Now()
	if o := d.Do(ctx, []verify.Command{{Op: verify.Read, Sector: 0, Data: large, Path: verify.PathBlock}})[0]; o.Proof == "" {
		t.Errorf("after a failure: %+v", o)
	}
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("it took %s", took)
	}
}
