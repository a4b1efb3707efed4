package quirks

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

// TestGateReadsWhatItWrites: index.tsv holds the text, a set the rest.
func TestGateReadsWhatItWrites(t *testing.T) {
	for _, tt := range []struct{ entry, text string }{
		{`match: {any: [{machine: {vendor: "A"}}]}`, "*"},
		{`match: {any: [{path: [libata, scsi]}]}`, "path=libata|scsi"},
		{`match: {any: [{stack: {kind: [md], md_level: [5]}}]}`, "kind=md"},
		{`match: {any: [{adapter: {driver: ["mpt3sas", "mpi3*"]}, path: scsi}]}`, "path=scsi driver=mpt3sas|mpi3*"},
		{`match: {any: [{adapter: {driver: ["a b", "c"]}, path: scsi}]}`, "path=scsi"},
		{`match: {any: [{path: scsi}]}
avoid: [{command: "vpd:*", why: "w"}]`, "path=scsi avoid"},
		{`match: {any: [{path: scsi, kernel: {since: "6.1", until: "6.5"}}]}`, "path=scsi kernel=mainline>=6.1<6.5"},
		{`match: {any: [{path: scsi}]}
kernel: {range: [{tree: mainline, introduced: "6.17-rc1", fixed: "7.0"}, {tree: stable-6.12, introduced: "6.12.9", after: "6.12.5"}, {tree: stable-6.1, introduced: "6.1", through: "6.1.192"}, {tree: stable-5.10, introduced: unknown, fixed: "5.10.40"}]}`,
			"path=scsi fault=mainline>=6.17-rc1<7.0;stable-6.12>6.12.5^6.12.9;stable-6.1>=6.1~6.1.192;stable-5.10?<5.10.40"},
	} {
		e := entryOf(t, tt.entry)
		g := gateOf(e, &e.Where.Any[0])
		if got := g.String(); got != tt.text {
			t.Errorf("%s: got %q, want %q", tt.entry, got, tt.text)
		}
		again, err := parseGate(tt.text)
		if err != nil || again.String() != tt.text {
			t.Errorf("%q: read as %q, %v", tt.text, again, err)
		}
		if len(g.rows) > 0 && !slices.Equal(g.rows, again.rows) {
			t.Errorf("%q: rows %v, want %v", tt.text, again.rows, g.rows)
		}
	}
	for _, text := range []string{"", "path=", "what=x", "kernel=mainline", "kernel=>=6.1", "kernel=mainline>=x", "kernel=mainline=6.1", "path=scsi  avoid"} {
		if g, err := parseGate(text); err == nil {
			t.Errorf("%q: read as %+v", text, g)
		}
	}
}

// TestGatesTurnNothingAway that the entry would take: the built-in entries and
// those of the property tests, on subjects of every kind and release.
func TestGatesTurnNothingAway(t *testing.T) {
	var slots []slot
	rows := map[string][]indexRow{}
	for i, e := range append(propertyEntries(t), builtin(t).Entries()...) {
		if e.ID == "" || i < len(propertyEntries(t)) {
			e.ID = fmt.Sprintf("kernel-property-%02d-hang", i)
		}
		slots = append(slots, slot{id: e.ID, entry: e})
		rows[e.ID] = e.indexRows()
	}
	s, err := newSet(slots, rows)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(3, 4))
	kept := 0
	for range 600 {
		sub := randomSubject(r)
		switch r.IntN(4) {
		case 0:
			sub.Kernel = kernel.Release{}
		case 1:
			sub.Stack = Stack{}
		case 2:
			sub.Path = ""
		}
		var got, want []string
		for _, m := range s.Match(&sub) {
			got = append(got, m.Entry.ID)
		}
		for i := range s.slots {
			if e := s.slots[i].entry; e.Match(&sub).Truth != False {
				want = append(want, e.ID)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("subject %+v:\ngot  %v\nwant %v", sub, got, want)
		}
		kept += len(got)
	}
	if kept < 300 {
		t.Errorf("%d matches in 600 subjects: they show too little", kept)
	}
}

// kernelEntries are made-up faults of kernels, n of them, on disks, maps and
// arrays of releases 6.0 to 6.19; none names a device.
func kernelEntries(t testing.TB, n int) ([]slot, map[string][]indexRow) {
	var slots []slot
	rows := map[string][]indexRow{}
	arms := []string{"path: [libata]", "stack: {kind: [md], md_level: [5]}", "stack: {kind: [dm]}", "path: [scsi, sat-firmware], adapter: {driver: mpt3sas}", "path: [nvme-pci]"}
	for i := range n {
		from := i % 20
		e := entryOf(t, fmt.Sprintf(`match: {any: [{%s}]}
kernel: {range: [{tree: mainline, introduced: "6.%d", fixed: "6.%d"}, {tree: stable-6.%d, introduced: "6.%d.1", fixed: "6.%d.9"}]}
mitigations: [{type: kernel, tree: mainline, since: "7.0"}]`, arms[i%len(arms)], from, from+1, from, from, from))
		e.ID = fmt.Sprintf("kernel-synthetic-%04d-hang", i)
		slots = append(slots, slot{id: e.ID, entry: e})
		rows[e.ID] = e.indexRows()
	}
	return slots, rows
}

// TestOnlyEntriesOfTheKernelArePicked: of the entries that name no device a
// machine is asked those that its release may have; an unknown release, all.
func TestOnlyEntriesOfTheKernelArePicked(t *testing.T) {
	slots, rows := kernelEntries(t, 400)
	s, err := newSet(slots, rows)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		sub  string
		want int
	}{
		{`device: {space: ata, model: "A"}, path: libata, kernel: "6.5.3"`, 20}, // one of the five arms, one of twenty releases
		{`device: {space: ata, model: "A"}, path: libata, kernel: "6.5.20"`, 0},
		{`device: {space: ata, model: "A"}, path: libata, kernel: "5.10.5"`, 0},
		{`device: {space: ata, model: "A"}, path: libata`, 80},
		{`path: other, stack: {kind: dm}, kernel: "6.2.3"`, 20},
		{`path: other, stack: {kind: bcache}, kernel: "6.2.3"`, 0},
		{`scsi: {vendor: "A"}, path: scsi, adapter: {driver: ahci}, kernel: "6.3.3"`, 0},
		{`scsi: {vendor: "A"}, path: scsi, adapter: {driver: mpt3sas}, kernel: "6.3.3"`, 20},
		{`scsi: {vendor: "A"}, path: scsi, kernel: "6.3.3"`, 20},
		{``, 400},
	} {
		sub := subjectOf(t, tt.sub)
		if got := len(s.picked(sub, false)); got != tt.want {
			t.Errorf("%s: %d picked, want %d", tt.sub, got, tt.want)
		}
		if got := len(s.MatchAvoid(sub)); got != 0 {
			t.Errorf("%s: %d entries asked that name no command", tt.sub, got)
		}
	}
	for i := range 3 * maxPicks {
		sub := subjectOf(t, fmt.Sprintf(`path: libata, kernel: "6.1.%d"`, i))
		s.picked(sub, false)
	}
	if len(s.picks) > maxPicks {
		t.Errorf("%d answers are kept, at most %d are meant", len(s.picks), maxPicks)
	}
}

// BenchmarkMatchKernels is BenchmarkMatch1100 with 200 entries about kernels
// beside, on a release that one in twenty of them concerns.
func BenchmarkMatchKernels(b *testing.B) {
	slots, rows := kernelEntries(b, 200)
	made, err := newSet(slots, rows)
	if err != nil {
		b.Fatal(err)
	}
	db, err := synthetic(b, 1_100).Merge(made)
	if err != nil {
		b.Fatal(err)
	}
	for _, release := range []string{"6.5.3", "6.1.190", ""} {
		subs := inUse(b)
		for i := range subs {
			subs[i].Kernel, _ = kernel.Parse(release) // "" is no release
		}
		name := release
		if name == "" {
			name = "unknown"
		}
		b.Run(strings.ReplaceAll(name, ".", "_"), func(b *testing.B) {
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				db.Match(&subs[i%len(subs)])
				i++
			}
			b.ReportMetric(float64(i)/b.Elapsed().Seconds(), "identities/s")
		})
	}
}
