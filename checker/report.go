package checker

import (
	"github.com/quirkcheck/quirkcheck/quirks"
)

// SchemaVersion is the version of the report's JSON; within 1 it only grows.
const SchemaVersion = "1.0"

// Verdict of a device or of one entry on it.
type Verdict string

// Verdicts, worst first; NotAffected and NoKnownQuirk end the order.
const (
	Affected     Verdict = "affected"
	Unknown      Verdict = "unknown"
	Mitigated    Verdict = "mitigated"
	Suppressed   Verdict = "suppressed"
	NoKnownQuirk Verdict = "no-known-quirk"
	NotAffected  Verdict = "not-affected" // explain and db match only
)

// Rank orders verdicts, worst highest.
func (v Verdict) Rank() int {
	switch v {
	case Affected:
		return 4
	case Unknown:
		return 3
	case Mitigated:
		return 2
	case Suppressed:
		return 1
	}
	return 0
}

// Report is what scan prints. Its JSON form is the schema report.v1.0; units
// are in the field names or there.
type Report struct {
	SchemaVersion string    `json:"schema_version"`
	Tool          Tool      `json:"tool"`
	GeneratedAt   string    `json:"generated_at,omitempty"` // RFC 3339, set by the caller
	Database      Database  `json:"database"`
	Host          Host      `json:"host"`
	Devices       []*Device `json:"devices"`
	Findings      []Finding `json:"findings"`
	Summary       Summary   `json:"summary"`
	Notes         []Note    `json:"notes"`
	Faults        []Fault   `json:"faults"`
	// Symptoms are what AddSymptoms found; Log is nil where no log was read.
	Symptoms []Symptom   `json:"symptoms"`
	Log      *LogSummary `json:"log,omitempty"`
}

// Tool names the program that made the report.
type Tool struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// Database names the entries used.
type Database struct {
	Version string `json:"version"`
	Serial  int    `json:"serial"`
	AgeDays *int   `json:"age_days"`
	Source  string `json:"source,omitempty"`
}

// Host is the machine.
type Host struct {
	Kernel Kernel `json:"kernel"`
}

// Kernel is the running release; null where it could not be read.
type Kernel struct {
	Release  *string `json:"release"`
	Upstream *string `json:"upstream"`
}

// Device is one block device.
type Device struct {
	Name        string      `json:"name"`
	Kind        string      `json:"kind"`
	Transport   *string     `json:"transport"`
	Path        *string     `json:"path"`
	SizeBytes   *uint64     `json:"size_bytes"`
	Identity    Identity    `json:"identity"`
	Adapter     *Adapter    `json:"adapter"`
	Limits      Limits      `json:"limits"`
	Safe        Safe        `json:"safe"`
	Recommended Recommended `json:"recommended"`
	Verdict     Verdict     `json:"verdict"`
	// Protections are the kernel's own quirks that the machine shows to be
	// applied to the device; and of those that matching entries ask for, what it
	// shows not to be.
	Protections []Protection `json:"protections,omitempty"`
	Members     []string     `json:"members"` // as slaves/ names them, partitions too
	Holders     []string     `json:"holders"` // of the whole device, as holders/ names them
	Stack       *Stack       `json:"stack,omitempty"`
	// Below and Above are the devices it is made of and those made of it, with
	// partitions taken as their disks.
	Below []Level `json:"below,omitempty"`
	Above []Level `json:"above,omitempty"`
	// Paths of an NVMe multipath head.
	Paths  []Path  `json:"paths,omitempty"`
	Hidden bool    `json:"hidden,omitempty"` // a path of an NVMe multipath head: no device node
	Zoned  *string `json:"zoned,omitempty"`  // host-managed, host-aware; absent where it is not zoned or not known
	Target *Target `json:"target,omitempty"`
	Volume *Volume `json:"volume,omitempty"`

	Disagreements []Disagreement `json:"disagreements,omitempty"`
	Notes         []Note         `json:"notes"`
}

// Stack says what a stacked device is.
type Stack struct {
	Kind         string  `json:"kind"`             // dm, md, bcache, nvme (a multipath head)
	Name         *string `json:"name,omitempty"`   // of the map
	Target       *string `json:"target,omitempty"` // multipath, crypt, lvm, striped, thin, ... as far as sysfs proves it; null unknown
	Level        *string `json:"level,omitempty"`  // md level
	RequestBased *bool   `json:"request_based,omitempty"`
	ChunkBytes   *uint64 `json:"chunk_bytes,omitempty"` // md, striped
	Disks        *int    `json:"disks,omitempty"`       // md raid disks, stripes
}

// Level is a device right above or below another.
type Level struct {
	Name         string  `json:"name"`
	Via          string  `json:"via,omitempty"`    // partition in between
	Kind         string  `json:"kind"`             // as a device's kind, or its stack's
	Target       *string `json:"target,omitempty"` // device-mapper target
	Level        *string `json:"level,omitempty"`  // md level
	MaxSectorsKB *uint64 `json:"max_sectors_kb"`
}

// Path is a path of an NVMe multipath head.
type Path struct {
	Name       string `json:"name"`
	Controller string `json:"controller"`
	State      string `json:"state,omitempty"`     // of the controller
	Transport  string `json:"transport,omitempty"` // of the controller
	ANAState   string `json:"ana_state,omitempty"` // of the namespace there
}

// Target is the far end of an iSCSI, FC or NVMe fabrics transport.
type Target struct {
	Name     string `json:"name"`                // iSCSI name, FC port name, NVMe subsystem
	Portal   string `json:"portal,omitempty"`    // address
	HostPort string `json:"host_port,omitempty"` // port name of this machine's FC port
}

// Volume marks a volume of a RAID card.
type Volume struct {
	Level string `json:"level"` // as the driver writes it, "" where it shows none
}

// Disagreement is a fact of which sources give different values; the first is
// the one that is used.
type Disagreement struct {
	What   string        `json:"what"`
	Values []SourceValue `json:"values"`
}

// SourceValue is a value and the file it stands in.
type SourceValue struct {
	Value  string `json:"value"`
	Source string `json:"source"`
}

// Identity holds a device's names in each space it shows; strings are trimmed.
type Identity struct {
	ATA     *ModelFirmware    `json:"ata"`
	SCSI    *SCSIIdentity     `json:"scsi"`
	NVMe    *ModelFirmware    `json:"nvme"`
	USB     *USBIdentity      `json:"usb"`
	MMC     *MMCIdentity      `json:"mmc,omitempty"`
	Partial bool              `json:"partial"`
	Sources map[string]string `json:"sources,omitempty"`
}

// ModelFirmware is an ATA or NVMe identity.
type ModelFirmware struct {
	Model    *string `json:"model"`
	Firmware *string `json:"firmware"`
}

// SCSIIdentity is INQUIRY's.
type SCSIIdentity struct {
	Vendor   *string `json:"vendor"`
	Product  *string `json:"product"`
	Revision *string `json:"revision"`
}

// USBIdentity is the nearest USB ancestor's.
type USBIdentity struct {
	VID          *string `json:"vid"`
	PID          *string `json:"pid"`
	BCD          *string `json:"bcd"`
	Manufacturer *string `json:"manufacturer,omitempty"`
	Product      *string `json:"product,omitempty"`
}

// MMCIdentity is an MMC or SD card's, from its CID register.
type MMCIdentity struct {
	Name     string `json:"name"`
	ManfID   string `json:"manfid,omitempty"`
	OEMID    string `json:"oemid,omitempty"`
	Firmware string `json:"firmware,omitempty"`
}

// Adapter is the host adapter.
type Adapter struct {
	PCI    *string `json:"pci"`
	Driver *string `json:"driver"`
	Host   *string `json:"host"`
	Class  *string `json:"class,omitempty"`
	// ATAPort is libata's number of the port, as its log and libata.force count.
	ATAPort *string `json:"ata_port,omitempty"`
}

// Limits are as read: numbers of sysfs files as they stand there, VPD fields
// null where the device reports no limit.
type Limits struct {
	MaxSectorsKB             *uint64 `json:"max_sectors_kb"`
	MaxHWSectorsKB           *uint64 `json:"max_hw_sectors_kb"`
	LogicalBlockSize         *uint64 `json:"logical_block_size"`
	PhysicalBlockSize        *uint64 `json:"physical_block_size"`
	MaxSegments              *uint64 `json:"max_segments"`
	MaxSegmentSize           *uint64 `json:"max_segment_size"`
	VirtBoundaryMask         *uint64 `json:"virt_boundary_mask"`
	MinimumIOSize            *uint64 `json:"minimum_io_size"`
	OptimalIOSize            *uint64 `json:"optimal_io_size"`
	VPDMaxTransferBlocks     *uint64 `json:"vpd_max_transfer_blocks"`
	VPDOptimalTransferBlocks *uint64 `json:"vpd_optimal_transfer_blocks"`
	VPDOptimalGranularity    *uint64 `json:"vpd_optimal_granularity_blocks"`
	VPDMaxWriteSameBlocks    *uint64 `json:"vpd_max_write_same_blocks"`
	MDTSSectors              *uint64 `json:"mdts_sectors"`
	DiscardMaxBytes          *uint64 `json:"discard_max_bytes"`
	WriteZeroesMaxBytes      *uint64 `json:"write_zeroes_max_bytes"`
	AtomicWriteMaxBytes      *uint64 `json:"atomic_write_max_bytes"`
	IOTimeoutMS              *uint64 `json:"io_timeout_ms"`
	QueueDepth               *uint64 `json:"queue_depth"`
	ReadAheadKB              *uint64 `json:"read_ahead_kb"`
	WriteCache               *string `json:"write_cache"`
	DiskSeq                  *uint64 `json:"diskseq"`
}

// Safe is the lowest known bound in 512-byte sectors, null where none is
// known, with every bound behind it.
type Safe struct {
	MaxSectors *uint64 `json:"max_sectors"`
	Bounds     []Bound `json:"bounds"`
}

// Bound is one reason why a transfer must not be larger.
type Bound struct {
	MaxSectors uint64 `json:"max_sectors"` // 512-byte sectors
	Reason     string `json:"reason"`
	Source     string `json:"source"`
	Quirk      string `json:"quirk,omitempty"`
}

// Recommended is the value to have in queue/max_sectors_kb.
type Recommended struct {
	MaxSectors   *uint64  `json:"max_sectors"`
	MaxSectorsKB *uint64  `json:"max_sectors_kb"`
	Because      []string `json:"because"`
}

// Note is a fact about a reading.
type Note struct {
	What   string `json:"what"`
	State  string `json:"state"`
	Why    string `json:"why"`
	Source string `json:"source"`
}

// Finding is one entry or built-in check that concerns a device or the host.
type Finding struct {
	Device      *string            `json:"device"`
	Quirk       string             `json:"quirk"`
	Verdict     Verdict            `json:"verdict"`
	Severity    quirks.Severity    `json:"severity"`
	Effect      quirks.Effect      `json:"effect"`
	Title       string             `json:"title"`
	Observed    *string            `json:"observed"`
	Wanted      *string            `json:"wanted"`
	References  []quirks.Reference `json:"references"`
	MitigatedBy *MitigatedBy       `json:"mitigated_by"`
	Inferred    bool               `json:"inferred"`
	Confidence  string             `json:"confidence,omitempty"`
	Why         []Why              `json:"why"`
	Advice      []string           `json:"advice,omitempty"`
	Settings    []Setting          `json:"settings,omitempty"` // knobs beside max_sectors
	Evidence    []string           `json:"evidence,omitempty"` // what symptoms say for and against it
}

// MitigatedBy names what protects a device that an entry matches.
type MitigatedBy struct {
	Kind   string `json:"kind"`  // limit, kernel, setting, firmware, probe
	Scope  string `json:"scope"` // block-layer, all-commands
	Pinned bool   `json:"pinned"`
	Text   string `json:"text"`
}

// Why is one predicate and its answer.
type Why struct {
	Key    string  `json:"key"`
	Want   string  `json:"want"`
	Got    *string `json:"got"`
	Truth  string  `json:"truth"`
	Source string  `json:"source,omitempty"`
	Why    string  `json:"why,omitempty"`
}

// Summary counts devices by verdict.
type Summary struct {
	Devices      int `json:"devices"`
	Affected     int `json:"affected"`
	Unknown      int `json:"unknown"`
	Mitigated    int `json:"mitigated"`
	Suppressed   int `json:"suppressed"`
	NoKnownQuirk int `json:"no_known_quirk"`
}

// Fault is an entry that could not be used.
type Fault struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Field   string `json:"field"`
	Message string `json:"message"`
	Code    string `json:"code"`
}
