package checker

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// stackChecks compare a stacked device with what it is made of, and a member
// with what stands above it. A finding is the device's own it is about; a map
// or an array inherits nothing from its members.
var stackChecks = []check{
	{
		id: "stack-exceeds-member", severity: quirks.High, effect: "io-error",
		title: "Requests of this device are larger than a device below it takes",
		about: "A request-based multipath map hands whole requests to a path, which refuses one above its own queue/max_sectors_kb (\"over max size limit\"): the path fails, and then the next. Before Linux 4.3 a device that resubmits bios was refused the same above a member's max_hw_sectors_kb (\"bio too big device\"). Silent for anything that resubmits bios from 4.3 on: the device below splits them again.",
		references: []quirks.Reference{
			kernelSource("block/blk-mq.c", "blk_insert_cloned_request"),
			{Type: "commit", URL: "https://git.kernel.org/linus/54efd50bfd87", Note: "4.3: the device that gets a bio splits it"},
		},
		run: stackExceedsMember,
	},
	{
		id: "multipath-paths-differ", severity: quirks.High, effect: "io-error",
		title:      "The paths of one multipath map differ in queue/max_sectors_kb",
		about:      "A path that went away and came back has the default limit, while the map keeps the one it was made with. Where the map is within the lowest path it is only luck, and mitigated. Silent for maps that resubmit bios.",
		references: []quirks.Reference{{Type: "report", URL: "https://github.com/opensvc/multipath-tools/pull/69", Note: "libmultipath sets max_sectors_kb on a path that is added"}, kernelSource("block/blk-mq.c", "blk_insert_cloned_request")},
		run:        multipathPathsDiffer,
	},
	{
		id: "limit-misaligned-for-stack", severity: quirks.Medium, effect: "io-error",
		title:      "The limit is no multiple of the logical block of a device above",
		about:      "Until about Linux 5.12 (5.10.20 in 5.10.y) a device above took over a limit that is no multiple of its own logical block, and split requests at places that it then refused. Silent on kernels that round the limit, and where the device above has an aligned limit.",
		references: []quirks.Reference{{Type: "commit", URL: "https://git.kernel.org/linus/97f433c3601a", Note: "a 255-sector ramdisk below dm-integrity below md; in 5.12 and 5.10.20, and sent to 4.4.y, 4.19.y and 5.11.y"}, kernelSource("block/blk-settings.c", "blk_stack_limits, blk_round_down_sectors")},
		run:        limitMisalignedForStack,
	},
	{
		id: "dm-io-opt", severity: quirks.Medium, effect: "performance",
		title:      "The optimal I/O size of a stacked device comes from a bogus one below",
		about:      "A stacked device takes the least common multiple of its members' optimal sizes, so one that nobody chose (16 MiB behind SAS hosts, 0xffff blocks behind USB bridges) becomes a larger one, up to 4 GiB. Fires at 1 GiB and more, and where a member's is bogus and this one is a multiple of it. Silent for a stripe of the array's own.",
		references: []quirks.Reference{{Type: "report", URL: "https://bugs.debian.org/1121006", Note: "pvcreate aligns at about 4 GiB"}, kernelSource("block/blk-settings.c", "blk_stack_limits, lcm_not_zero")},
		run:        dmIOOpt,
	},
	{
		id: "read-ahead-from-io-opt", severity: quirks.Medium, effect: "performance",
		title:      "Read-ahead was set from an optimal I/O size that is no real one",
		about:      "The kernel reads ahead twice the optimal I/O size. Fires where that size is bogus and queue/read_ahead_kb is what the kernel makes of it. Silent where somebody set another value.",
		references: []quirks.Reference{kernelSource("block/blk-settings.c", "disk_update_readahead")},
		run:        readAheadFromIOOpt,
	},
	{
		id: "striped-chunk-below-limit", severity: quirks.Low, effect: "performance",
		title:      "Requests are cut at a chunk smaller than the limit",
		about:      "From Linux 5.7 until 5.10 (5.5.16; somewhere in 5.4.y) device-mapper no longer split at max_sectors before it split at a target's chunk; a database lost 17 to 19 % on LVM. Silent on other kernels, for which this splitting is as ever, and where the chunk is not below the limit.",
		references: []quirks.Reference{{Type: "commit", URL: "https://git.kernel.org/linus/120c9257f5f1", Note: "in 5.4.y 2892100bc85a"}, {Type: "commit", URL: "https://git.kernel.org/linus/ee1dfad5325f", Note: "order of splitting, 5.9 and 5.8.13"}},
		run:        stripedChunkBelowLimit,
	},
	{
		id: "raid-stripe-above-limit", severity: quirks.Info, effect: "performance",
		title:      "A full stripe of the array does not fit into one request",
		about:      "RAID 4, 5 and 6 need not read back before a write of a whole stripe (chunk times data disks). Fires where queue/max_sectors_kb of the array is below it. Silent at the stripe, for other levels, and where chunk or number of disks is not known.",
		references: []quirks.Reference{{Type: "commit", URL: "https://git.kernel.org/linus/4ffe28ed0d7c", Note: "7.0 raises max_hw_sectors to the stripe: 12.8 % on 24 disks, the author's number"}, kernelSource("drivers/md/raid5.c", "raid5_set_io_opt")},
		run:        raidStripeAboveLimit,
	},
}

// peerLimit returns a limit of a device above or below as Subject.Limit does.
func peerLimit(p quirks.StackPeer) func(string) (uint64, bool) {
	return func(name string) (uint64, bool) {
		v, ok := p.Limits[name]
		return v.Num, ok && !v.IsText
	}
}

// peerName is the name of a peer, or what to call it without one.
func peerName(p quirks.StackPeer, i int) string {
	if p.Name != "" {
		return p.Name
	}
	return fmt.Sprintf("member %d", i+1)
}

// clones reports whether a device hands on whole requests, which the device
// below does not split: a multipath map, unless it is of the bio-based kind.
func clones(sub *quirks.Subject) quirks.Truth {
	switch {
	case sub.Stack.Kind != "dm":
		return quirks.False
	case sub.Stack.RequestBased != quirks.Unknown:
		return sub.Stack.RequestBased
	case sub.Stack.Target == "multipath":
		return quirks.Unknown
	}
	return quirks.False
}

// lowestMember returns the member of the smallest limit of a name.
func lowestMember(sub *quirks.Subject, limit string) (name string, n uint64, ok bool) {
	for i, m := range sub.Stack.Members {
		if v, known := peerLimit(m)(limit); known && (!ok || v < n) {
			name, n, ok = peerName(m, i), v, true
		}
	}
	return name, n, ok
}

// stackBounds are what the devices around one ask of it.
func stackBounds(sub *quirks.Subject) []Bound {
	var out []Bound
	if clones(sub) != quirks.False {
		if name, n, ok := lowestMember(sub, "max_sectors_kb"); ok && n < 1<<52 {
			out = append(out, Bound{MaxSectors: n * 2, Reason: "the lowest path, " + name + ": a path refuses a request above its own limit", Source: "queue/max_sectors_kb of " + name})
		}
	}
	if _, aligned, above, truth := misaligned(sub); truth == quirks.True {
		out = append(out, Bound{MaxSectors: aligned, Reason: "the logical block of " + above.Name + " above: the limit must be a multiple of it", Source: "queue/logical_block_size of " + above.Name})
	}
	return out
}

const multipathCure = "set the map and all its paths to the lowest value, the map first, and keep it with max_sectors_kb in multipath.conf (quirkcheck enforce shows the sequence)"

func stackExceedsMember(sub *quirks.Subject, _ []quirks.Match) (Finding, bool) {
	k, ok := sub.MaxSectorsKiB()
	if !ok || len(sub.Stack.Members) == 0 {
		return Finding{}, false
	}
	limit, cloned := "max_hw_sectors_kb", clones(sub)
	if cloned != quirks.False {
		limit = "max_sectors_kb"
	} else if !sub.Kernel.Known() || !before(sub.Kernel, 4, 3) {
		return Finding{}, false
	}
	name, n, ok := lowestMember(sub, limit)
	if !ok || k <= n {
		return Finding{}, false
	}
	f := affected(fmt.Sprintf("max_sectors_kb %d over %s with %s %d", k, name, limit, n), fmt.Sprintf("max_sectors_kb %d", n))
	f.Why = append(f.Why, known("stack.members."+limit, ">= the limit", strconv.FormatUint(n, 10), name))
	switch cloned {
	case quirks.True:
		f.Advice = []string{multipathCure}
	case quirks.Unknown:
		f.Verdict = Unknown
		f.Advice = []string{"whether the map clones requests could not be read: dmsetup table shows queue_mode bio for one that does not", multipathCure}
	default:
		f.Advice = []string{"kernels before 4.3 do not split at the device below: lower this device's max_sectors_kb, or assemble it again"}
	}
	return f, true
}

// before reports whether a release is older than major.minor. No stable tree
// took the change that this is asked about.
func before(r kernel.Release, major, minor int) bool {
	return r.Major < major || r.Major == major && r.Minor < minor
}

func multipathPathsDiffer(sub *quirks.Subject, _ []quirks.Match) (Finding, bool) {
	cloned := clones(sub)
	if cloned == quirks.False {
		return Finding{}, false
	}
	var parts []string
	values := map[uint64]bool{}
	for i, m := range sub.Stack.Members {
		if n, ok := peerLimit(m)("max_sectors_kb"); ok {
			values[n] = true
			parts = append(parts, fmt.Sprintf("%s %d", peerName(m, i), n))
		}
	}
	if len(values) < 2 {
		return Finding{}, false
	}
	_, low, _ := lowestMember(sub, "max_sectors_kb")
	f := affected("max_sectors_kb of the paths: "+strings.Join(parts, ", "), fmt.Sprintf("max_sectors_kb %d on all of them and on the map", low))
	f.Advice = []string{multipathCure}
	switch k, ok := sub.MaxSectorsKiB(); {
	case !ok:
		f.Verdict = Unknown
		f.Advice = append(f.Advice, "queue/max_sectors_kb of the map is not known")
	case k <= low:
		f.Verdict = Mitigated
		f.MitigatedBy = &MitigatedBy{Kind: "limit", Scope: "block-layer", Text: "the map's own max_sectors_kb is within its lowest path, and nothing is known to keep it there"}
	case cloned == quirks.Unknown:
		f.Verdict = Unknown
		f.Advice = append(f.Advice, "whether the map clones requests could not be read: dmsetup table shows queue_mode bio for one that does not")
	}
	return f, true
}

// roundsLimits: blk_stack_limits rounds a stacked limit to the logical block
// (97f433c3601a of 5.12; 5.10.20 carries it, other stable trees took it at
// points that were not looked up).
var roundsLimits = []kernel.Row{{Tree: "mainline", Since: "5.12"}, {Tree: "stable-5.10", Since: "5.10.20"}}

// misaligned finds a device above whose logical block (bytes) does not divide
// the limit, and the largest limit in sectors that it divides.
func misaligned(sub *quirks.Subject) (sectors, aligned uint64, above quirks.StackPeer, truth quirks.Truth) {
	k, ok := sub.MaxSectorsKiB()
	if !ok || k >= 1<<52 {
		return 0, 0, above, quirks.False
	}
	sectors = k * 2
	if n, ok := sub.Limit("max_sectors"); ok {
		sectors = n
	}
	own, ok := sub.Limit("logical_block_size")
	if !ok {
		own = 512
	}
	unit := uint64(0)
	for _, a := range sub.Stack.Above {
		lbs, ok := peerLimit(a)("logical_block_size")
		if !ok || lbs <= own || lbs > 1<<20 || lbs%512 != 0 || sectors%(lbs/512) == 0 {
			continue
		}
		if up, ok := peerLimit(a)("max_sectors_kb"); ok && up*1024%lbs == 0 {
			continue
		}
		if lbs/512 > unit {
			unit, above = lbs/512, a
			if above.Name == "" {
				above.Name = above.Kind + " " + above.Target + above.Level
			}
		}
	}
	if unit == 0 {
		return 0, 0, above, quirks.False
	}
	switch a := kernel.Carries(roundsLimits, sub.Kernel); {
	case a.Truth == quirks.Unknown || a.Low:
		truth = quirks.Unknown
	default:
		truth = a.Truth.Not()
	}
	return sectors, sectors / unit * unit, above, truth
}

func limitMisalignedForStack(sub *quirks.Subject, _ []quirks.Match) (Finding, bool) {
	sectors, aligned, above, truth := misaligned(sub)
	if truth == quirks.False {
		return Finding{}, false
	}
	lbs, _ := peerLimit(above)("logical_block_size")
	f := affected(fmt.Sprintf("%d sectors (max_sectors_kb %d) below %s with a logical block of %d bytes", sectors, sectors/2, above.Name, lbs), fmt.Sprintf("max_sectors_kb %d", aligned/2))
	f.Advice = []string{"set it before the device above is assembled: that takes the limit over once, and keeps it"}
	if truth == quirks.Unknown {
		f.Verdict = Unknown
		f.Advice = append(f.Advice, "whether this kernel rounds the limit of a device above is not known")
	}
	return f, true
}

// hugeOptimal is more than any array means: a thousand disks of 1 MiB chunks.
const hugeOptimal = 1 << 30

// bogusStackedOptimal says what is wrong with the optimal I/O size of a stacked
// device, "" for nothing.
func bogusStackedOptimal(sub *quirks.Subject) (opt uint64, why string) {
	opt, ok := sub.Limit("optimal_io_size")
	if !ok || opt == 0 || len(sub.Stack.Members) == 0 {
		return 0, ""
	}
	for i, m := range sub.Stack.Members {
		own, ok := peerLimit(m)("optimal_io_size")
		if !ok || own == 0 || opt%own != 0 && opt < hugeOptimal {
			continue
		}
		if bogus := bogusOptimal(peerLimit(m), own); bogus != "" {
			return opt, fmt.Sprintf("%s has %d (%s)", peerName(m, i), own, bogus)
		}
		if own >= hugeOptimal {
			return opt, fmt.Sprintf("%s has %d", peerName(m, i), own)
		}
	}
	if opt >= hugeOptimal {
		return opt, "a least common multiple of sizes that do not fit together"
	}
	return 0, ""
}

func dmIOOpt(sub *quirks.Subject, _ []quirks.Match) (Finding, bool) {
	opt, why := bogusStackedOptimal(sub)
	if why == "" {
		return Finding{}, false
	}
	f := affected(fmt.Sprintf("optimal_io_size %d: %s", opt, why), "")
	if stripe, ok := stripeBytes(sub); ok {
		want := fmt.Sprintf("optimal_io_size %d, a stripe of this array", stripe)
		f.Wanted = &want
	}
	f.Advice = []string{
		"it cannot be set: give LVM (data_alignment_detection=0), mkfs.xfs (-d noalign) and partition tools (1 MiB) an alignment of your own",
		"leave max_sectors_kb alone; a kernel that no longer publishes the adapter's maximum (6.1.178, 6.12.97, 7.2) cures it at the next assembly",
	}
	return f, true
}

// readAheadKiB is what the kernel makes of an optimal I/O size in bytes: twice
// that in whole pages, in 32 bits (disk_update_readahead).
func readAheadKiB(opt, page uint64) uint64 { return uint64(uint32(opt*2)) / page * page / 1024 }

func readAheadFromIOOpt(sub *quirks.Subject, _ []quirks.Match) (Finding, bool) {
	opt, why := bogusStackedOptimal(sub)
	if why == "" && sub.Path != "other" {
		if own, ok := sub.Limit("optimal_io_size"); ok && own > 0 {
			opt, why = own, bogusOptimal(sub.Limit, own)
		}
	}
	kib, ok := sub.Limit("read_ahead_kb")
	if v, isSetting := sub.Settings["read_ahead_kb"]; !ok && isSetting && !v.IsText {
		kib, ok = v.Num, true
	}
	if why == "" || !ok {
		return Finding{}, false
	}
	page := uint64(4096)
	if n, err := strconv.ParseUint(sub.Machine["page_size"], 10, 32); err == nil && n >= 4096 {
		page = n
	}
	// Every device reads ahead 128 KiB.
	if kib <= 128 || kib != readAheadKiB(opt, page) {
		return Finding{}, false
	}
	wanted := "read_ahead_kb 128, the kernel's default"
	if stripe, ok := stripeBytes(sub); ok {
		wanted = fmt.Sprintf("read_ahead_kb %d, two stripes of this array", max(128, stripe*2/1024))
	}
	f := affected(fmt.Sprintf("read_ahead_kb %d, twice an optimal_io_size of %d (%s)", kib, opt, why), wanted)
	f.Advice = []string{"write it to queue/read_ahead_kb, or blockdev --setra; a rule of udev keeps it, and leave max_sectors_kb alone"}
	return f, true
}

// splitOrder: the kernels in which dm_process_bio split only at the target's
// boundary (facts: dm-split-revert-perf; the start in 5.4.y is not known).
var splitOrder = []kernel.Row{{Tree: "mainline", Since: "5.7", Until: "5.10"}, {Tree: "stable-5.5", Since: "5.5.16"}, {Tree: "stable-5.4", After: "5.4.0"}}

func stripedChunkBelowLimit(sub *quirks.Subject, _ []quirks.Match) (Finding, bool) {
	chunk, ok := sub.Limit("chunk_bytes")
	k, okK := sub.MaxSectorsKiB()
	if !ok || !okK || sub.Stack.Kind != "dm" || sub.Stack.Target != "striped" || chunk/1024 >= k {
		return Finding{}, false
	}
	a := kernel.Carries(splitOrder, sub.Kernel)
	if a.Truth == quirks.False && !a.Low {
		return Finding{}, false
	}
	f := affected(fmt.Sprintf("chunk of %d KiB, max_sectors_kb %d", chunk/1024, k), "")
	f.Advice = []string{"measure with the load that matters; Linux 5.10 and later split another way, and a larger chunk is cut less often"}
	if a.Truth != quirks.True || a.Low {
		f.Verdict = Unknown
		f.Advice = append(f.Advice, "whether this kernel splits in that order is not known")
	}
	return f, true
}

// parity is the number of disks of an md level that hold no data.
var parity = map[string]uint64{"raid4": 1, "raid5": 1, "raid6": 2}

// stripeBytes is a full stripe of an md RAID 4, 5 or 6: chunk times data disks.
func stripeBytes(sub *quirks.Subject) (uint64, bool) {
	chunk, ok := sub.Limit("chunk_bytes")
	disks, okD := sub.Limit("raid_disks")
	p, isParity := parity[sub.Stack.Level]
	if !ok || !okD || !isParity || sub.Stack.Kind != "md" || disks <= p || disks > 1<<16 || chunk == 0 || chunk > 1<<31 {
		return 0, false
	}
	return chunk * (disks - p), true
}

func raidStripeAboveLimit(sub *quirks.Subject, _ []quirks.Match) (Finding, bool) {
	stripe, ok := stripeBytes(sub)
	k, okK := sub.MaxSectorsKiB()
	if !ok || !okK || k >= stripe/1024 {
		return Finding{}, false
	}
	f := affected(fmt.Sprintf("max_sectors_kb %d", k), fmt.Sprintf("max_sectors_kb %d, a full stripe", stripe/1024))
	if hw, ok := sub.Limit("max_hw_sectors_kb"); ok && hw < stripe/1024 {
		f.Advice = []string{fmt.Sprintf("this kernel takes at most %d here (max_hw_sectors_kb); from 7.0 on the array's limit is at least a stripe", hw)}
	} else {
		f.Advice = []string{"raise it where large sequential writes matter, and measure before and after; no data is at risk either way"}
	}
	return f, true
}

// blockSizeBug: set_init_blocksize left block devices at 512-byte blocks, so
// that buffered writes to them crawl. 5.9.y ended with it.
var blockSizeBug = []kernel.Row{{Tree: "mainline", Since: "5.9", Until: "5.11"}, {Tree: "stable-5.10", Until: "5.10.13"}}

// blockSizeEntry is found on the disks and arrays of such a kernel that it was
// measured on; the note is for the others.
const (
	blockSizeEntry    = "kernel-block-size-512-performance"
	softBlockSizeNote = "soft-block-size"
)

// softBlockSize notes, on the kernels where it matters, that nobody asked for
// the soft block size of the devices: only an ioctl tells it.
func softBlockSize(inv *probe.Inventory) []Note {
	if !inv.Kernel.Ok() || len(inv.Devices) == 0 || kernel.Carries(blockSizeBug, inv.Kernel.V).Truth == quirks.False {
		return nil
	}
	return []Note{{What: softBlockSizeNote, State: probe.NotAsked.String(), Source: inv.Kernel.Source,
		Why: "this kernel may leave a disk at 512-byte blocks, and buffered writes to the bare device then crawl (fixed in 5.10.13 and 5.11); sysfs does not show it: blockdev --getbsz DEV does, 4096 is right"}}
}
