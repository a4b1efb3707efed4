package kernel

// A Num is a number that may be unknown. Zero is a value like any other: what a
// standard or the kernel writes as 0 for "none" is 0 here.
type Num struct {
	V     uint64
	Known bool
}

// N is a known number.
func N(v uint64) Num { return Num{V: v, Known: true} }

// Observed are the limits of a device as sysfs showed them, in sysfs's units.
type Observed struct {
	MaxSectorsKB, MaxHWSectorsKB Num // KiB
	OptimalIOSize, MinimumIOSize Num // bytes
}

// A Listing is what the kernel's own tables do to the size of a device's
// transfers under one release.
type Listing struct {
	MaxSectors Num   // 512-byte sectors; Known and 0 = no row limits it
	NoBridge   Truth // libata: the row lifts the limit of bridged disks
	// Low marks an answer that rests on no row of the release's own tree.
	Low    bool
	Source string // ids of the entries behind it
}

// Inputs are what the limits of one device are made of, as far as a machine
// shows it. Sizes are in the unit of the name; a sector has 512 bytes.
type Inputs struct {
	From     Release  // the release that Observed was read under
	Observed Observed // there
	// ListedFrom and ListedTo are the tables of From and of the release asked
	// about.
	ListedFrom, ListedTo Listing

	Kind   string // disk, optical, loop, ram, dm, md, network, other
	Path   string // libata, sat-firmware, scsi, usb-storage, uas, sbp2, nvme-pci, nvme-fabrics, virtio-blk, mmc, other; "" unknown
	Driver string // of the host adapter; "" unknown

	LogicalBlockBytes, PhysicalBlockBytes Num
	CapacityBytes                         Num
	PageBytes                             Num // of the processor; unknown is taken for 4096
	// Block Limits VPD page, in logical blocks; Known and 0 = the device reports
	// none, also where it has no such page.
	VPDMaxTransferBlocks, VPDOptimalTransferBlocks, VPDOptimalGranularityBlocks Num
	// ATA: IDENTIFY DEVICE word 83 bit 10, and a disk behind a bridge as
	// ata_dev_knobble tells it.
	LBA48, Bridged Truth
	// libata.force on the command line of From: 80c lifts the bridge limit;
	// max_sec=N, max_sec_128, max_sec_1024, max_sec_lba48 as sectors.
	ForceNoBridge   bool
	ForceMaxSectors Num
	MDTSSectors     Num // NVMe
	// HostMaxHWSectorsKB is the largest max_hw_sectors_kb under From among the
	// disks of the same SCSI host: what the host can where a table holds this
	// disk below it.
	HostMaxHWSectorsKB Num
	MaxSegmentBytes    Num
	SuperSpeed         Truth     // USB 3 or faster
	IOMMU              string    // translated, passthrough, off; "" unknown
	SASHost            Truth     // the host has a SAS transport
	Protection         Integrity // of the device

	// A stacked device: dm with its target, md with its level.
	Target     string // linear, striped, crypt, multipath, ...; "" unknown
	Level      string // raid0, raid1, raid10, raid4, raid5, raid6, linear; "" unknown
	ChunkBytes Num
	Disks      Num // md: raid disks; striped: stripes
	// UserMaxSectorsKB is a value of max_sectors_kb that somebody sets at every
	// boot; unknown for nobody.
	UserMaxSectorsKB Num
	// Members are the predictions for what it is made of, under the release
	// asked about, and MembersFrom what From showed of the same; both nil for a
	// plain disk.
	Members     []Prediction
	MembersFrom []Observed
}

// Integrity is protection information as the block layer keeps it.
type Integrity struct {
	Registered    Truth // the block device keeps protection information
	TupleBytes    Num   // per interval
	IntervalBytes Num
}

// Certainty says how far a prediction can be trusted.
type Certainty string

// Certainties, best first.
const (
	High       Certainty = "high"        // the rule was seen to hold on booted kernels
	SourceOnly Certainty = "source-only" // read in the source of the release's series or beside it; no boot exercised it
	Low        Certainty = "low"         // an input is missing or the rule's start is not certain: see Missing
	NoAnswer   Certainty = "unknown"     // nothing to go by
)

// A Missing input, and what it could change.
type Missing struct {
	Input string // as named in Inputs, in words
	Could string // what it could change
}

// Prediction is what sysfs would show of a device under a release. Each number
// may be unknown.
type Prediction struct {
	To             Release
	MaxSectorsKB   Num // queue/max_sectors_kb, KiB, with UserMaxSectorsKB where one is given
	DefaultKB      Num // queue/max_sectors_kb without it
	MaxHWSectorsKB Num // queue/max_hw_sectors_kb, KiB
	OptimalIOSize  Num // queue/optimal_io_size, bytes
	MinimumIOSize  Num // queue/minimum_io_size, bytes
	// The same in sectors, which KiB may hide, and what a stack above is made
	// of: the device's own limit (0 for none) and the value that a user set.
	MaxSectors, MaxHWSectors, MaxDevSectors, UserMaxSectors Num
	LogicalBlockBytes, PhysicalBlockBytes                   Num

	Rule      string    // id of the rule that set MaxSectorsKB, or hardware, device, member, user
	Rules     []string  // ids of all that took part
	Because   []string  // the rules that took part and what each did, in words
	Sources   []string  // where the rules are from
	Certainty Certainty // of the three values together
	Missing   []Missing
	Beyond    bool // the release is newer than the newest that is known
}
