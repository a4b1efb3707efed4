package kernel

import (
	"fmt"
	"strings"
)

// Newest is the newest release whose rules are known. A later one is predicted
// with the same rules and marked.
var Newest = Release{Raw: "7.3", Major: 7, Minor: 3, PointK: true}

// A rule is one thing that kernels do about limits, in some releases. The
// tables of rules below are all that Predict knows of versions.
type rule struct {
	id string
	// rows say which releases do it.
	rows []Row
	// booted says that a kernel on each side of every boundary was booted and
	// showed it, or that one was where there is a single side left in use; the
	// others were only read.
	booted bool
	does   string // in words, for Because
	source string // where it was read
}

// The default of max_sectors_kb: the most a disk starts with when it asks for
// nothing. One of the four holds.
var (
	cap512 = &rule{id: "cap-512", rows: []Row{{Tree: "mainline", Until: "3.19"}},
		does: "the block layer starts at 512 KiB at most", source: "block/blk-settings.c before commit 34b48db66e08"}
	capNone = &rule{id: "cap-none", rows: []Row{{Tree: "mainline", Since: "3.19", Until: "4.3"}},
		does: "no cap: the block layer starts at the hardware's limit", source: "commit 34b48db66e08"}
	cap1280 = &rule{id: "cap-1280", rows: []Row{{Tree: "mainline", Since: "4.3", Until: "6.17"}}, booted: true,
		does: "the block layer starts at 1280 KiB at most", source: "commit d2be537c3ba3; block/blk-settings.c of 6.1.192"}
	cap4096 = &rule{id: "cap-4096", rows: []Row{{Tree: "mainline", Since: "6.17"}}, booted: true,
		does: "the block layer starts at 4096 KiB at most", source: "commit 9b8b84879d4a; block/blk.h of 7.3.4"}
)

// How sd makes a default of what the disk and its host say.
var (
	sdHWReduced = &rule{id: "sd-hw-reduced", rows: []Row{{Tree: "mainline", After: "3.16", By: "3.17", Until: "4.2"}},
		does: "sd lowers max_hw_sectors to MAXIMUM TRANSFER LENGTH", source: "commit bcdb247c6b6a"}
	sdUncapped = &rule{id: "sd-uncapped", rows: []Row{{Tree: "mainline", Since: "4.2", Until: "4.4"}},
		does: "sd writes its own limit past the cap of the block layer", source: "commit 4f258a46346c"}
	sdOptimal = &rule{id: "sd-optimal", rows: []Row{{Tree: "mainline", Since: "4.4", Until: "6.11"}}, booted: true,
		does: "sd starts at a valid OPTIMAL TRANSFER LENGTH", source: "commit ca369d51b3e1; sd_revalidate_disk of 6.1.192"}
	sdFallback = &rule{id: "sd-fallback", rows: []Row{{Tree: "mainline", Since: "4.11", Until: "6.11"}}, booted: true,
		does: "without one sd starts at MAXIMUM TRANSFER LENGTH or 1280 KiB, what is less", source: "commit 6780414519f9"}
	sdChecksPage = &rule{id: "sd-checks-page", rows: []Row{{Tree: "mainline", Since: "4.11"}}, booted: true,
		does: "an OPTIMAL TRANSFER LENGTH below one page is ignored", source: "sd_validate_opt_xfer_size of 5.10.223"}
	sdChecksPhysical = &rule{id: "sd-checks-physical", rows: []Row{{Tree: "mainline", After: "4.14", By: "5.10"}}, booted: true,
		does: "an OPTIMAL TRANSFER LENGTH that is no multiple of the physical block is ignored", source: "sd_validate_opt_xfer_size of 5.10.223"}
	sdChecksGranularity = &rule{id: "sd-checks-granularity", rows: []Row{{Tree: "mainline", After: "5.10", By: "6.1"}}, booted: true,
		does: "an OPTIMAL TRANSFER LENGTH that is no multiple of its granularity is ignored", source: "sd_validate_opt_xfer_size of 6.1.192"}
	sdHostHint = &rule{id: "sd-host-hint", rows: []Row{{Tree: "mainline", Since: "6.0"}}, booted: true,
		does: "sd asks its host for a size that the DMA layer prefers", source: "commit 608128d391fa"}
	sdHostCeiling = &rule{id: "sd-host-ceiling", rows: []Row{{Tree: "mainline", Since: "6.0", Until: "6.11"}}, booted: true,
		does: "the DMA hint of a SAS host is the most that sd starts with", source: "commit 608128d391fa; sd_revalidate_disk of 6.1.192"}
	optimalRaises = &rule{id: "optimal-raises", rows: []Row{{Tree: "mainline", Since: "6.11"}}, booted: true,
		does:   "an optimal I/O size above the cap raises the default, and one below no longer lowers it",
		source: "commit a23634644afc; blk_validate_limits of 6.12.117"}
	sasHintAlways = &rule{id: "sas-hint-always", rows: []Row{{Tree: "mainline", Since: "6.0", Until: "7.2"}, {Tree: "stable-6.1", Since: "6.1.0", Until: "6.1.178"}, {Tree: "stable-6.12", Since: "6.12.0", Until: "6.12.97"}}, booted: true,
		does: "a SAS host takes its maximum for a DMA hint where the IOMMU gives none", source: "be8fcd4a8217 (fix); ChangeLog-6.1.178, ChangeLog-6.12.97"}
)

// What holds of every queue.
var (
	roundsToBlock = &rule{id: "rounds-to-block", rows: []Row{{Tree: "mainline", Since: "5.12"}, {Tree: "stable-5.10", Since: "5.10.20"}},
		does: "the limits of a map or array are rounded down to the logical block", source: "ChangeLog-5.10.20; blk_stack_limits of 5.10.223"}
	roundsHardware = &rule{id: "rounds-hardware", rows: []Row{{Tree: "mainline", After: "5.10", By: "6.1"}}, booted: true,
		does: "a hardware limit is rounded down to the logical block whatever was set first", source: "blk_queue_max_hw_sectors of 5.10.223 and 6.1.192"}
	userKept = &rule{id: "user-clamped", rows: []Row{{Tree: "mainline", Since: "6.11"}},
		does: "a value above the limit is cut to it", source: "blk_validate_limits of 6.12.117"}
	integrityCap = &rule{id: "integrity-cap", rows: []Row{{Tree: "mainline", Since: "6.19"}},
		does:   "with protection information a request is no larger than a segment and what 2 MiB of it can protect",
		source: "blk_validate_integrity_limits and max_integrity_io_size of 7.3.4"}
)

// Drivers.
var (
	libataHostSmall = &rule{id: "libata-host-1024", rows: []Row{{Tree: "mainline", Since: "6.0-rc1", Until: "6.0-rc2"}},
		does: "every SATA disk is held to the default of SCSI hosts, 1024 sectors", source: "commit 0568e6122574, repaired in 6.0-rc2"}
	nvme8M = &rule{id: "nvme-8m", rows: []Row{{Tree: "mainline", After: "6.1", By: "6.12"}}, booted: true,
		does: "the NVMe driver takes 8192 KiB at most, where it took 4096", source: "NVME_MAX_KB_SZ of 6.1.192 and 6.12.117"}
	nvmeHint = &rule{id: "nvme-dma-hint", rows: []Row{{Tree: "mainline", Since: "6.4"}, {Tree: "stable-6.3", After: "6.3.0"}}, booted: true,
		does: "with a translating IOMMU the NVMe driver takes 128 KiB at most", source: "commit 3710e2b056cb"}
	nvmeNoZeroOptimal = &rule{id: "nvme-no-zero-optimal", rows: []Row{{Tree: "mainline", After: "6.1", By: "6.12"}}, booted: true,
		does: "an NVMe optimal write size of 0 is none", source: "nvme_update_disk_info of 6.12.117"}
	loop1280 = &rule{id: "loop-1280", rows: []Row{{Tree: "mainline", Since: "4.3"}}, booted: true,
		does: "a loop device takes 1280 KiB at most", source: "drivers/block/loop.c of 6.1.192 and 7.3.4"}
)

// Stacks.
var (
	stackCopies = &rule{id: "stack-copies", rows: []Row{{Tree: "mainline", Until: "6.9"}}, booted: true,
		does: "a map or array takes the smallest present limit of its members", source: "blk_stack_limits of 6.1.192"}
	stackValidates = &rule{id: "stack-validates", rows: []Row{{Tree: "mainline", Since: "6.9"}}, booted: true,
		does: "a map or array makes its default anew from the hardware limits, values set by a user and optimal sizes of its members", source: "blk_validate_limits and blk_stack_limits of 6.12.117"}
	raid5Stripes = &rule{id: "raid5-256-stripes", rows: []Row{{Tree: "mainline", Since: "6.0"}}, booted: true,
		does: "RAID 4, 5 and 6 take 256 pages whatever their members say", source: "raid5_run of 6.1.192, raid5_set_limits of 6.12.117"}
	raid5FullStripe = &rule{id: "raid5-full-stripe", rows: []Row{{Tree: "mainline", Since: "7.0"}}, booted: true,
		does: "RAID 4, 5 and 6 take at least a full stripe", source: "commit 4ffe28ed0d7c; raid5_set_limits of 7.3.4"}
	linearChunk = &rule{id: "md-linear-chunk", rows: []Row{{Tree: "mainline", After: "6.1", By: "6.12"}},
		does: "a linear array takes one chunk at most", source: "linear_set_limits of 6.12.117"}
)

// rules are all of them.
var rules = []*rule{
	cap512, capNone, cap1280, cap4096,
	sdHWReduced, sdUncapped, sdOptimal, sdFallback, sdChecksPage, sdChecksPhysical, sdChecksGranularity, sdHostHint, sdHostCeiling, optimalRaises, sasHintAlways,
	roundsToBlock, roundsHardware, userKept, integrityCap,
	libataHostSmall, nvme8M, nvmeHint, nvmeNoZeroOptimal, loop1280,
	stackCopies, stackValidates, raid5Stripes, raid5FullStripe, linearChunk,
}

// A Rule is a rule of the prediction, for who wants to read or check them all.
type Rule struct {
	ID       string
	Releases string // in words
	Does     string
	Source   string
	Booted   bool // a booted kernel showed it
}

// Rules lists the rules that Predict goes by, also those about single drivers.
func Rules() []Rule {
	var out []Rule
	for _, r := range rules {
		out = append(out, Rule{ID: r.id, Releases: words(r.rows), Does: r.does, Source: r.source, Booted: r.booted})
	}
	for _, h := range hostLimits {
		out = append(out, Rule{ID: "host-" + h.driver, Releases: words(h.rows), Does: "the driver " + h.driver + " takes " + itoa(h.sectors) + " sectors", Source: h.source})
	}
	return out
}

func words(rows []Row) string {
	parts := make([]string, len(rows))
	for i, w := range rows {
		parts[i] = w.String()
	}
	return strings.Join(parts, "; ")
}

// hostLimit is what a SCSI host driver sets for its host, where it differs
// between releases; sectors.
type hostLimit struct {
	driver  string
	rows    []Row
	sectors uint64
	source  string
}

// hostLimits are the SCSI host drivers whose own limit is known to have
// changed. For all others what one kernel shows holds for the next.
var hostLimits = []hostLimit{
	{driver: "pm80xx", rows: []Row{{Tree: "mainline", Until: "6.13"}}, sectors: 1024, source: "host template of 6.1.192"},
	{driver: "pm80xx", rows: []Row{{Tree: "mainline", Since: "6.13"}}, sectors: 8192, source: "host template of 7.1.5"},
	{driver: "hisi_sas_v3_hw", rows: []Row{{Tree: "mainline", Since: "5.19", Until: "6.1"}, {Tree: "stable-5.10", After: "5.10.130", By: "5.10.140", Until: "5.10.147"}}, sectors: 256,
		source: "commit fce54ed02757, taken back by 245050af5d15; the same in stable 5.10, taken back in 5.10.147"},
	{driver: "ibmvfc", rows: []Row{{Tree: "mainline", After: "6.1", By: "7.1"}}, sectors: 2048, source: "host template of 7.1.5"},
}

// in reports whether a rule is in force under a release. Unlike a quirk's row a
// rule is not taken to be backported where no row of the stable series says so:
// limits are no fixes.
func (r *rule) in(to Release) Truth { return rowsIn(r.rows, to) }

func rowsIn(rows []Row, to Release) Truth {
	of := func(tree string) (t Truth, any bool) {
		for _, w := range rows {
			if w.Tree == tree {
				t, any = max(t, w.in(to, true)), true
			}
		}
		return t, any
	}
	if to.FollowsStable() {
		if t, ok := of(fmt.Sprintf("stable-%d.%d", to.Major, to.Minor)); ok {
			return t
		}
	}
	t, _ := of("mainline")
	return t
}

// holds reports whether a rule is in force under the release asked about, and
// keeps what that rests on.
func (p *predictor) holds(r *rule) bool {
	switch r.in(p.to) {
	case Unknown:
		p.miss("whether the rule "+r.id+" holds in this release", r.does)
		return p.guess(r)
	case False:
		return false
	}
	return true
}

// guess takes an open answer for yes where the release is nearer to the first
// one seen with the rule than to the last one without.
func (p *predictor) guess(r *rule) bool {
	for _, w := range r.rows {
		if w.Tree != "mainline" || w.By == "" {
			continue
		}
		by, err1 := ParseBound(w.By)
		after, err2 := ParseBound(w.After)
		if err1 == nil && err2 == nil && by.Major == p.to.Major && after.Major == p.to.Major {
			return 2*p.to.Minor >= by.Minor+after.Minor
		}
		if err1 == nil {
			return by.Major <= p.to.Major
		}
	}
	return false
}

// use notes that a rule took part.
func (p *predictor) use(r *rule) {
	p.out.Rules = append(p.out.Rules, r.id)
	p.out.Because = append(p.out.Because, r.does)
	p.out.Sources = append(p.out.Sources, r.source)
	if !r.booted {
		p.lower(SourceOnly)
	}
}

// apply is holds and use.
func (p *predictor) apply(r *rule) bool {
	ok := p.holds(r)
	if ok {
		p.use(r)
	}
	return ok
}

func (p *predictor) miss(input, could string) {
	for _, m := range p.out.Missing {
		if m.Input == input {
			return
		}
	}
	p.out.Missing = append(p.out.Missing, Missing{input, could})
	p.lower(Low)
}

func (p *predictor) say(format string, args ...any) {
	p.out.Because = append(p.out.Because, fmt.Sprintf(format, args...))
}

var certaintyRank = map[Certainty]int{High: 3, SourceOnly: 2, Low: 1, NoAnswer: 0}

func (p *predictor) lower(c Certainty) {
	if certaintyRank[c] < certaintyRank[p.out.Certainty] {
		p.out.Certainty = c
	}
}
