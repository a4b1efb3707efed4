package checker

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// check is a built-in check: it needs no entry. run returns a finding without
// id and title where it has something to say.
type check struct {
	id         string
	title      string
	about      string // what it compares, and when it stays silent
	severity   quirks.Severity
	effect     quirks.Effect
	references []quirks.Reference
	run        func(*quirks.Subject, []quirks.Match) (Finding, bool)
}

// kernelSource refers to the file of the kernel that a check's rule was read
// in.
func kernelSource(file, note string) quirks.Reference {
	return quirks.Reference{Type: "source", URL: "https://git.kernel.org/pub/scm/linux/kernel/git/torvalds/linux.git/tree/" + file + "?h=v6.1", Note: note}
}

var builtins = slices.Concat(deviceChecks, stackChecks)

var deviceChecks = []check{
	{
		id: "limit-above-vpd-max", severity: quirks.High, effect: "io-error",
		title:      "Requests may be larger than the device's MAXIMUM TRANSFER LENGTH",
		about:      "Compares queue/max_sectors_kb with the device's Block Limits page, counted in its logical blocks. Silent at the limit, and where the page names none.",
		references: []quirks.Reference{{Type: "standard", URL: "https://www.t10.org/", Note: "SBC-4, Block Limits VPD page, MAXIMUM TRANSFER LENGTH"}},
		run:        limitAboveVPDMax,
	},
	{
		id: "bogus-optimal-io-size", severity: quirks.Medium, effect: "misreport",
		title:      "The optimal I/O size is no real preference of the device",
		about:      "Looks for sizes that nobody chose: 0xffff blocks, a field filled with ones that USB bridges report; 0x7fff blocks, an adapter's maximum; no multiple of the physical block; more than the device takes. Silent where the kernel shows 0, also when the page is bogus, and where the entry kernel-sas-io-opt-performance names the kernel that does it.",
		references: []quirks.Reference{{Type: "standard", URL: "https://www.t10.org/", Note: "SBC-4, Block Limits VPD page, OPTIMAL TRANSFER LENGTH"}},
		run:        bogusOptimalIOSize,
	},
	{
		id: "cmdline-max-sec-lba48", severity: quirks.Critical,
		title:      "libata.force=max_sec_lba48 takes away the kernel's own limit for this disk",
		about:      "Fires for a disk that libata's own table limits where the kernel command line lifts that on its port. Silent for disks the table does not name.",
		references: []quirks.Reference{{Type: "documentation", URL: "https://docs.kernel.org/admin-guide/kernel-parameters.html", Note: "libata.force"}},
		run:        cmdlineMaxSecLBA48,
	},
	{
		id: "limit-above-segments", severity: quirks.Info, effect: "misreport",
		title:      "The limit is above what the adapter's segments can carry",
		about:      "Compares queue/max_sectors_kb with max_segments times max_segment_size. Nothing needs changing; the number shown is not reached.",
		references: []quirks.Reference{{Type: "documentation", URL: "https://docs.kernel.org/admin-guide/abi-stable.html", Note: "queue/max_segments, queue/max_segment_size"}},
		run:        limitAboveSegments,
	},
	{
		id: "serial-fault-code", severity: quirks.Critical, effect: "data-loss",
		title:      "The drive writes a fault code where its serial number should be",
		about:      "Looks for BAD_CTX at the start of the serial number: the firmware has lost its mapping (Intel 320, \"Bad Context 13x Error\"). A serial number is never shown.",
		references: []quirks.Reference{{Type: "report", URL: "https://weekly-geekly.imtqy.com/articles/133915/index.html", Note: "hdparm of such a drive"}, {Type: "vendor", URL: "https://community.solidigm.com/t5/archive/firmware-update-now-available-addresses-bad-context-13x-error/m-p/13869/highlight/true", Note: "firmware 4PC10362; data is not recovered"}},
		run:        serialFaultCode,
	},
}

// Builtin describes a built-in check.
type Builtin struct {
	ID, Title, About string
	Severity         quirks.Severity
	Effect           quirks.Effect // "" where it is that of the entry concerned
	References       []quirks.Reference
}

// BuiltinOf returns the built-in check of an id.
func BuiltinOf(id string) (Builtin, bool) {
	i := slices.IndexFunc(builtins, func(c check) bool { return c.id == id })
	if i < 0 {
		return Builtin{}, false
	}
	c := builtins[i]
	return Builtin{ID: c.id, Title: c.title, About: c.about, Severity: c.severity, Effect: c.effect, References: c.references}, true
}

// Builtins lists the ids of the built-in checks.
func Builtins() []string {
	ids := make([]string, len(builtins))
	for i, c := range builtins {
		ids[i] = c.id
	}
	return ids
}

func affected(observed, wanted string) Finding {
	f := Finding{Verdict: Affected, Observed: &observed, Why: []Why{}}
	if wanted != "" {
		f.Wanted = &wanted
	}
	return f
}

// limitAboveVPDMax: Linux honours the page where it reads it, so a larger
// limit means that it was not read (USB) or was overridden.
func limitAboveVPDMax(sub *quirks.Subject, _ []quirks.Match) (Finding, bool) {
	k, ok := sub.MaxSectorsKiB()
	n, okMax := vpdMaxSectors(sub)
	if !ok || !okMax || k <= n/2 {
		return Finding{}, false
	}
	f := affected(fmt.Sprintf("max_sectors_kb %d", k), fmt.Sprintf("max_sectors %d (max_sectors_kb %d)", n, n/2))
	blocks, _ := sub.Limit("vpd_max_transfer_blocks")
	f.Why = append(f.Why, known("vpd_max_transfer_blocks", ">= the limit", fmt.Sprint(blocks), "VPD page B0h"))
	return f, true
}

func known(key, want, got, source string) Why {
	return Why{Key: key, Want: want, Got: &got, Truth: "false", Source: source}
}

// bogusOptimalIOSize looks at the value the kernel publishes, since a bogus
// page that the kernel ignores does no harm.
func bogusOptimalIOSize(sub *quirks.Subject, matches []quirks.Match) (Finding, bool) {
	opt, ok := sub.Limit("optimal_io_size")
	if !ok || opt == 0 || sub.Path == "other" { // stacked devices: dm-io-opt
		return Finding{}, false
	}
	if slices.ContainsFunc(matches, func(m quirks.Match) bool { return m.Entry.ID == ioOptOfHost && m.Truth == quirks.True }) {
		return Finding{}, false
	}
	why := bogusOptimal(sub.Limit, opt)
	if why == "" {
		return Finding{}, false
	}
	f := affected(fmt.Sprintf("optimal_io_size %d: %s", opt, why), "")
	f.Advice = []string{"partitions and file systems that align to it are laid out for a size the device never meant; give them an alignment of your own (1 MiB)"}
	return f, true
}

// ioOptOfHost is the entry about the kernels that take an adapter's maximum for
// an optimal size: it says the same as the check, and which kernel cures it.
const ioOptOfHost = "kernel-sas-io-opt-performance"

// bogusOptimal says what is wrong with an optimal I/O size in bytes, "" for
// nothing. 0xffff blocks is a field filled with ones; 0x7fff sectors is an
// adapter's maximum handed on as a wish (SAS hosts, Linux 6.0 and later).
func bogusOptimal(limit func(string) (uint64, bool), opt uint64) string {
	lbs, ok := limit("logical_block_size")
	if !ok || lbs < 512 || lbs > 1<<20 {
		lbs = 512
	}
	pbs, ok := limit("physical_block_size")
	if !ok || pbs < lbs || pbs > 1<<20 {
		pbs = lbs
	}
	for _, n := range []struct {
		bytes uint64
		what  string
	}{{0xffff * lbs, "0xffff blocks, a field filled with ones"}, {0xffff * 512, "0xffff sectors, a field filled with ones"},
		{0x7fff * lbs, "0x7fff blocks, an adapter's maximum"}, {0x7fff * 512, "0x7fff sectors, an adapter's maximum"}} {
		for _, unit := range []uint64{1, pbs, 4096} {
			if opt == n.bytes/unit*unit {
				return n.what
			}
		}
	}
	if opt%pbs != 0 {
		return fmt.Sprintf("no multiple of the physical block of %d bytes", pbs)
	}
	if n, ok := vpdMaxSectorsOf(limit); ok && opt/512 > n {
		return fmt.Sprintf("above the device's maximum of %d sectors", n)
	}
	return ""
}

func serialFaultCode(sub *quirks.Subject, _ []quirks.Match) (Finding, bool) {
	for _, serial := range []quirks.Text{sub.Device.Serial, sub.SCSI.Serial} {
		code := probe.FaultCode(serial.S)
		if !serial.Known || code == "" {
			continue
		}
		f := affected("serial number starts with "+code, "")
		f.Advice = []string{
			"the mapping is lost: do not write to it, and run no test on it; recovery of what was there comes first",
			"a secure erase makes such a drive usable again, empty, and newer firmware keeps it from happening again",
		}
		return f, true
	}
	return Finding{}, false
}

func limitAboveSegments(sub *quirks.Subject, _ []quirks.Match) (Finding, bool) {
	k, ok := sub.MaxSectorsKiB()
	segs, okS := sub.Limit("max_segments")
	size, okZ := sub.Limit("max_segment_size")
	if !ok || !okS || !okZ || segs == 0 || size == 0 || segs > 1<<20 || size > 1<<40 || k*1024 <= segs*size {
		return Finding{}, false
	}
	f := affected(fmt.Sprintf("max_sectors_kb %d", k), fmt.Sprintf("max_sectors_kb %d (%d segments of %d bytes)", segs*size/1024, segs, size))
	f.Advice = []string{"nothing needs changing: the kernel splits at the segments, and the limit is never reached"}
	return f, true
}

// cmdlineMaxSecLBA48 fires for a disk that the kernel's own table would limit
// and whose port the parameter covers: the parameter wins over the table.
func cmdlineMaxSecLBA48(sub *quirks.Subject, matches []quirks.Match) (Finding, bool) {
	if sub.Cmdline == nil || sub.Path != "libata" || !forcesLBA48(*sub.Cmdline, sub.Adapter["ata_port"], sub.Kernel) {
		return Finding{}, false
	}
	for _, m := range matches {
		limit, sized := m.Entry.MaxSectors()
		if m.Truth != quirks.True || !sized {
			continue
		}
		if p := m.Entry.Protects(sub); p.MaxSectors == 0 || p.Truth == quirks.False {
			continue
		}
		f := affected("libata.force=max_sec_lba48", fmt.Sprintf("the parameter removed, or max_sectors_kb %d", limit/2))
		f.Effect = m.Entry.Effect
		f.Title = "libata.force=max_sec_lba48 takes away the kernel's own limit of " + fmt.Sprint(limit) + " sectors (" + m.Entry.ID + ")"
		if k, ok := sub.MaxSectorsKiB(); ok && k <= uint64(limit/2) {
			f.Verdict = Mitigated
			f.MitigatedBy = &MitigatedBy{Kind: "limit", Scope: "block-layer", Text: "the present max_sectors_kb is within it, and nothing is known to keep it there"}
		}
		return f, true
	}
	return Finding{}, false
}

// forcesLBA48 reports whether libata.force= gives max_sec_lba48 to a port. Up to
// 6.19 that wins over any other limit there, whatever stands before or behind it
// (drivers/ata/libata-core.c, ata_dev_configure); from 7.0 on only the first
// item that fits a device sets its quirks (tried on 7.3.4). An unknown port
// counts as covered, and on an unknown kernel either rule is enough.
func forcesLBA48(cmdline, port string, r kernel.Release) bool {
	list, ok := kernel.Parameter(cmdline, "libata", "force")
	if !ok {
		return false
	}
	n, err := strconv.Atoi(port)
	first, some, decided := false, false, false
	for _, f := range kernel.ParseForce(list) {
		if f.Port >= 0 && err == nil && f.Port != n {
			continue
		}
		lifts := f.Name == "max_sec_lba48"
		if !decided {
			first, decided = lifts, true
		}
		some = some || lifts
	}
	if r.Known() && r.Major >= 7 {
		return first
	}
	return some
}
