package enforce

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/internal/sysfstree"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// TestPlanForMapAboveItsPaths: the finding of a map is carried out by the safe
// sequence alone, and nothing else of such a machine is a matter of its limit.
func TestPlanForMapAboveItsPaths(t *testing.T) {
	db, faults := quirks.Builtin()
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	inv, err := probe.Read(t.Context(), sysfstree.Stacks(), probe.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := checker.Check(inv, db, checker.Policy{})
	p := MakePlan(r, Options{Kernel: inv.Kernel.V, AllowStacked: true})
	want := []string{"dm-1: sys/block/dm-1/queue/max_sectors_kb 4096 -> 1280", "dm-1: suspend mpatha", "dm-1: resume mpatha"}
	if diff := cmp.Diff(want, brief(p)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	p = MakePlan(r, Options{Kernel: inv.Kernel.V})
	if len(p.Steps) != 0 || len(p.Refused) != 1 || p.Refused[0].Device != "dm-1" || !strings.Contains(strings.Join(p.Refused[0].Instead, "\n"), "dmsetup suspend mpatha") {
		t.Errorf("without --allow-stacked: steps %v, refused %+v", brief(p), p.Refused)
	}
}

func TestPlanNamesWhatStandsOnPartitions(t *testing.T) {
	d := disk("sda", 4096, 1024)
	d.Holders = []string{"dm-5"}
	d.Above = []checker.Level{{Name: "dm-5", Kind: "dm"}, {Name: "md0", Via: "sda1", Kind: "md"}}
	top := &checker.Device{Name: "dm-5", Kind: "dm", Stack: &checker.Stack{Kind: "dm", RequestBased: yes(false)}}
	p := MakePlan(report("confirmed", d, top), Options{Kernel: release(t, "6.12.100")})
	if len(p.Steps) != 1 || !strings.Contains(strings.Join(p.Steps[0].Because, "\n"), "held by dm-5, md0:") {
		t.Errorf("%+v", p.Steps)
	}
}
