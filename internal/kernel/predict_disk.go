package kernel

import "slices"

// unlimited is what a queue without a limit of its own has, in sectors
// (UINT_MAX).
const unlimited = 1<<32 - 1

// Limits of the standards and drivers, in 512-byte sectors or logical blocks.
const (
	ataMaxSectors      = 256   // ATA_MAX_SECTORS: 28-bit commands and bridges
	ataMaxSectorsLBA48 = 65535 // ATA_MAX_SECTORS_LBA48
	scsiDefaultMax     = 1024  // SCSI_DEFAULT_MAX_SECTORS
	sdDefXferBlocks    = 0xffff
	sdMaxXferBlocks    = unlimited
	usbMaxSectors      = 240
	usbSuperSpeedMax   = 2048
	nvmeMax4M          = 8192
	nvmeMax8M          = 16384
	dmaHintSectors     = 256 // dma_opt_mapping_size of a translating IOMMU with pages of 4 KiB
)

// Predict says what sysfs would show of a device under another release. It is
// pure. The rules it knows are those of [Newest] and before.
func Predict(to Release, in Inputs) Prediction {
	p := &predictor{to: to, in: in}
	p.out = Prediction{To: to, Certainty: High, LogicalBlockBytes: in.LogicalBlockBytes, PhysicalBlockBytes: in.PhysicalBlockBytes}
	if !to.Known() {
		p.out.Certainty = NoAnswer
		p.miss("the kernel's release", "everything")
		return p.out
	}
	if to.branch(Newest) > 0 {
		p.out.Beyond = true
		p.miss("the rules of "+to.Raw, "anything: those of "+Newest.Raw+", the newest that is known, were taken")
		p.to = Newest
	} else if !to.FollowsStable() {
		p.miss("the patches of this "+to.Vendor+" kernel", "any rule: those of mainline were taken")
	}
	if len(in.Members) > 0 {
		p.stack()
	} else {
		p.disk()
	}
	p.finish()
	return p.out
}

// A predictor is one prediction in the making. Sizes are in sectors.
type predictor struct {
	to  Release
	in  Inputs
	out Prediction

	lbs, pbs       uint64 // bytes
	hw, dev        uint64 // sectors; dev 0 = the device names none
	hwKnown        bool
	ioOpt, ioMin   uint64 // bytes
	ioOptKnown     bool
	def            uint64
	defKnown       bool
	user           uint64 // that a member or an admin set, 0 for none
	noRound        bool   // the default is not rounded to the logical block
	integrityLimit uint64 // sectors, 0 for none
}

func (p *predictor) blocks() {
	p.lbs, p.pbs = 512, 512
	if n := p.in.LogicalBlockBytes; n.Known && n.V >= 512 && n.V <= 1<<20 && n.V&(n.V-1) == 0 {
		p.lbs = n.V
	} else {
		p.miss("the logical block size", "the rounding of limits and the unit of Block Limits")
	}
	p.pbs = p.lbs
	if n := p.in.PhysicalBlockBytes; n.Known && n.V >= p.lbs && n.V <= 1<<30 && n.V&(n.V-1) == 0 {
		p.pbs = n.V
	}
}

// sd reports whether the disk driver of SCSI handles the device.
func (p *predictor) sd() bool {
	return p.in.Kind == "disk" && slices.Contains([]string{"libata", "sat-firmware", "scsi", "usb-storage", "uas", "sbp2"}, p.in.Path)
}

func (p *predictor) disk() {
	p.blocks()
	p.hardware()
	if p.sd() {
		p.sdDefault()
		return
	}
	p.otherDefault()
}

// roundDown cuts sectors to whole blocks of size bytes.
func roundDown(sectors, size uint64) uint64 { return sectors / (size / 512) * (size / 512) }

func minNotZero(a, b uint64) uint64 {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// hardware finds max_hw_sectors: what the model of the path gives, held to what
// was observed where that is less than the same model gives for From.
func (p *predictor) hardware() {
	obs := p.in.Observed.MaxHWSectorsKB
	model := func(to Release, listed Listing, quiet bool) (uint64, bool) {
		q := &predictor{to: to, in: p.in, lbs: p.lbs, pbs: p.pbs}
		q.out.Certainty = High
		n, ok := q.modelHW(listed)
		if !quiet {
			p.out.Rules = append(p.out.Rules, q.out.Rules...)
			p.out.Because = append(p.out.Because, q.out.Because...)
			p.out.Sources = append(p.out.Sources, q.out.Sources...)
			for _, m := range q.out.Missing {
				p.miss(m.Input, m.Could)
			}
			p.lower(q.out.Certainty)
		}
		return n, ok
	}
	n, ok := model(p.to, p.in.ListedTo, false)
	defer func() {
		if r := roundDown(p.hw, p.lbs); p.hwKnown && r != p.hw && p.apply(roundsHardware) {
			p.hw = r
		}
	}()
	if !obs.Known {
		p.hw, p.hwKnown = n, ok
		if !ok {
			p.miss("max_hw_sectors_kb under a known kernel", "every limit: it bounds them")
			return
		}
		p.miss("max_hw_sectors_kb under a known kernel", "the limits, where the adapter or its driver takes less than its kind does")
		return
	}
	seen := obs.V * 2
	if obs.V == unlimited/2 || roundDown(unlimited, p.lbs) == seen || roundDown(unlimited, p.lbs)/2*2 == seen {
		seen = unlimited
	} else if p.lbs > 512 && rowsIn(roundsHardware.rows, p.in.From) == True && rowsIn(roundsHardware.rows, p.to) == False {
		p.miss("the hardware limit before it was rounded to the logical block", "the limits, by less than a block")
	}
	from, okFrom := model(p.in.From, p.in.ListedFrom, true)
	switch {
	case !ok || !okFrom, !p.in.From.Known():
		p.hw, p.hwKnown = seen, true
		p.say("the adapter and its driver take %d KiB, as seen", obs.V)
	case roundDown(from, p.lbs)/2 == obs.V || from/2 == obs.V || from == unlimited && obs.V == unlimited/2:
		p.hw, p.hwKnown = n, true // the model made what was seen; no more is known of the adapter
		p.hidden(from)
	case seen < from:
		p.hw, p.hwKnown = min(n, seen), true
		if p.hw == seen {
			p.say("the adapter and its driver take %d KiB, as seen", obs.V)
		}
	default:
		p.hw, p.hwKnown = seen, true
		p.miss("why max_hw_sectors_kb is "+kib(seen)+" and not "+kib(from), "the hardware limit under another kernel")
	}
}

// hidden says what a row of the kernel's table under From may hide: an
// adapter's limit between it and what the path can do.
func (p *predictor) hidden(from uint64) {
	l := p.in.ListedFrom.MaxSectors
	if p.in.Path == "nvme-pci" && !p.in.MDTSSectors.Known && p.hw > from {
		p.miss("MDTS of the controller", "max_hw_sectors_kb, which shows no more than the driver's own limit here")
	}
	if !l.Known || l.V == 0 || l.V > from || p.hw <= from {
		return
	}
	host := p.in.HostMaxHWSectorsKB
	if host.Known && host.V*2 > from {
		p.hw = min(p.hw, host.V*2)
		return
	}
	if p.in.Path == "libata" && p.in.Driver == "ahci" { // whose template takes all of LBA48
		return
	}
	p.miss("the adapter's own limit, which a row of the kernel's list hid", "the limits, where it is below "+kib(p.hw))
}

func kib(sectors uint64) string { return itoa(sectors/2) + " KiB" }

func itoa(n uint64) string {
	if n == 0 {
		return "0"
	}
	var b [20]byte
	i := len(b)
	for ; n > 0; n /= 10 {
		i--
		b[i] = byte('0' + n%10)
	}
	return string(b[i:])
}

// modelHW is the hardware limit by the drivers' rules alone; !ok where the
// driver asks its adapter or is not known.
func (p *predictor) modelHW(listed Listing) (sectors uint64, ok bool) {
	limit := func(n uint64) (uint64, bool) {
		if l := listed.MaxSectors; l.Known && l.V != 0 && l.V < n {
			p.say("the kernel's list holds it at %d sectors (%s)", l.V, listed.Source)
			n = l.V
		}
		if listed.Low {
			p.miss("whether this release lists the device", "the hardware limit, by "+listed.Source)
		}
		return n, true
	}
	switch p.in.Path {
	case "libata":
		n := uint64(ataMaxSectorsLBA48)
		switch p.in.LBA48 {
		case False:
			n = ataMaxSectors
			p.say("28-bit commands carry 256 sectors")
		case Unknown:
			if !p.in.Observed.MaxHWSectorsKB.Known {
				p.miss("whether the disk takes 48-bit commands", "the limits: 128 KiB if not")
			}
		}
		bridged := p.in.Bridged
		if p.in.ForceNoBridge || listed.NoBridge == True {
			bridged = False
		}
		switch {
		case bridged == True && listed.NoBridge == Unknown:
			p.miss("whether this release lifts the limit of bridged disks for this one", "the limits: 32767 instead of 128 KiB")
			n = min(n, ataMaxSectors)
		case bridged == True:
			p.say("taken for a disk behind a bridge: 256 sectors")
			n = min(n, ataMaxSectors)
		}
		if f := p.in.ForceMaxSectors; f.Known && f.V != 0 {
			p.say("libata.force holds it at %d sectors", f.V)
			return min(n, f.V), true
		}
		if p.apply(libataHostSmall) {
			n = min(n, scsiDefaultMax)
		}
		return limit(n)
	case "usb-storage":
		n := uint64(usbMaxSectors)
		switch p.in.SuperSpeed {
		case True:
			n = usbSuperSpeedMax
		case Unknown:
			return 0, false
		}
		return limit(n)
	case "uas":
		return limit(scsiDefaultMax)
	case "nvme-pci":
		n := uint64(nvmeMax4M)
		if p.holds(nvme8M) {
			n = nvmeMax8M
			p.use(nvme8M)
		}
		switch p.in.IOMMU {
		case "translated":
			if p.apply(nvmeHint) {
				n = dmaHintSectors
			}
		case "":
			if p.holds(nvmeHint) {
				p.miss("the mode of the IOMMU", "the limits: 128 KiB where it translates")
			}
		}
		if m := p.in.MDTSSectors; m.Known && m.V != 0 {
			n = min(n, m.V)
		}
		return n, true
	case "virtio-blk":
		return 0, false
	case "scsi", "sat-firmware":
		for _, h := range hostLimits {
			if h.driver != p.in.Driver {
				continue
			}
			switch rowsIn(h.rows, p.to) {
			case True:
				p.say("the driver %s takes %d sectors", h.driver, h.sectors)
				p.out.Rules = append(p.out.Rules, "host-"+h.driver)
				p.out.Sources = append(p.out.Sources, h.source)
				p.lower(SourceOnly)
				return limit(h.sectors)
			case Unknown:
				p.miss("since when the driver "+h.driver+" takes "+itoa(h.sectors)+" sectors", "the hardware limit")
			}
		}
		return limit(hostMax(p.in.Driver))
	}
	if p.in.Kind == "loop" && p.apply(loop1280) {
		return 2560, true
	}
	return 0, false
}

// hostMax is the most that a SCSI host with such a driver can, for want of a
// better number: what the transport's fields hold.
func hostMax(driver string) uint64 {
	switch driver {
	case "virtio_scsi":
		return 0xffff // unless the hypervisor names another (virtio-v1.2, 5.6.4)
	case "aic94xx", "hisi_sas_v1_hw", "hisi_sas_v2_hw", "hisi_sas_v3_hw", "isci", "mvsas":
		return scsiDefaultMax // their templates name none, in 6.1.192 and 7.1.5
	}
	return unlimited
}

// blocksToSectors converts a field of the Block Limits page; 0 for none.
func (p *predictor) blocksToSectors(n Num) uint64 {
	if !n.Known || n.V > unlimited {
		return 0
	}
	return min(n.V*(p.lbs/512), unlimited)
}

// vpd is the Block Limits page in sectors, filled up with what From shows where
// it could not be read.
type vpd struct {
	max, opt, gran uint64 // sectors, 0 for none
	known          bool
}

// blockLimits returns what the disk says of itself.
func (p *predictor) blockLimits() vpd {
	switch p.in.Path {
	case "libata": // libata makes the page (ata_scsiop_inq_b0): no maximum, no optimum
		return vpd{gran: p.pbs / 512, known: true}
	case "usb-storage": // sd is told not to ask (slave_configure of scsiglue.c)
		return vpd{known: true}
	}
	if m := p.in.VPDMaxTransferBlocks; m.Known {
		return vpd{max: p.blocksToSectors(m), opt: p.blocksToSectors(p.in.VPDOptimalTransferBlocks),
			gran: p.blocksToSectors(p.in.VPDOptimalGranularityBlocks), known: true}
	}
	v := vpd{}
	p.miss("the Block Limits VPD page", "the default and the optimal size: a MAXIMUM TRANSFER LENGTH would hold the limit, an OPTIMAL TRANSFER LENGTH would make another")
	o := p.in.Observed
	if o.OptimalIOSize.Known {
		v.opt = o.OptimalIOSize.V / 512
	}
	if m, hw := o.MaxSectorsKB, o.MaxHWSectorsKB; m.Known && hw.Known && v.opt == 0 && m.V < min(hw.V, 1280) {
		v.max = m.V * 2
	}
	return v
}

// longCDB reports whether sd uses 16-byte commands: by capacity, or with
// protection (sd_read_capacity).
func (p *predictor) longCDB() bool {
	return p.in.CapacityBytes.Known && p.in.CapacityBytes.V/p.lbs > 1<<32-1
}

// optimalOK is sd_validate_opt_xfer_size: whether the release takes OPTIMAL
// TRANSFER LENGTH for a size. devBlocks is in logical blocks.
func (p *predictor) optimalOK(v vpd, devBlocks uint64) bool {
	unit := p.lbs / 512
	page := uint64(4096)
	if p.in.PageBytes.Known && p.in.PageBytes.V >= 4096 {
		page = p.in.PageBytes.V
	}
	gran := v.gran
	if gran*512%p.pbs != 0 { // sd_validate_min_xfer_size then forgets it
		gran = 0
	}
	switch {
	case v.opt == 0, v.opt/unit > devBlocks, v.opt/unit > sdDefXferBlocks:
		return false
	case v.opt*512 < page && p.holds(sdChecksPage):
		p.use(sdChecksPage)
		return false
	case v.opt*512%p.pbs != 0 && p.holds(sdChecksPhysical):
		p.use(sdChecksPhysical)
		return false
	case gran != 0 && v.opt%gran != 0 && p.holds(sdChecksGranularity):
		p.use(sdChecksGranularity)
		return false
	}
	return true
}

// hostHint is the host's opt_sectors: 0 for none.
func (p *predictor) hostHint() uint64 {
	if p.in.SASHost == False || !p.holds(sdHostHint) {
		return 0
	}
	if p.in.SASHost == Unknown {
		if p.in.Path != "scsi" && p.in.Path != "sat-firmware" {
			return 0
		}
		p.miss("whether the host has a SAS transport", "the default and the optimal size, by a hint of the DMA layer")
		return 0
	}
	always := p.holds(sasHintAlways)
	switch p.in.IOMMU {
	case "translated":
		p.use(sdHostHint)
		p.say("a translating IOMMU prefers 128 KiB")
		return dmaHintSectors
	case "":
		p.miss("the mode of the IOMMU", "the default and the optimal size of a disk behind a SAS host")
	}
	if !always {
		return 0
	}
	p.use(sdHostHint)
	p.use(sasHintAlways)
	return p.hw
}

// sdDefault is sd_revalidate_disk and what the block layer makes of it.
func (p *predictor) sdDefault() {
	v := p.blockLimits()
	unit := p.lbs / 512
	devBlocks := uint64(sdDefXferBlocks)
	if p.longCDB() {
		devBlocks = sdMaxXferBlocks
	}
	if !p.in.CapacityBytes.Known {
		p.miss("the capacity", "limits above 65535 blocks, for disks of more than 2^32 blocks")
	}
	if v.max != 0 {
		devBlocks = min(devBlocks, v.max/unit)
	}
	p.dev = min(devBlocks*unit, unlimited)
	valid := p.optimalOK(v, devBlocks)
	p.ioOptKnown = true
	if valid {
		p.ioOpt = v.opt * 512
	}
	p.ioMin = p.pbs
	if g := v.gran * 512; g != 0 && g%p.pbs == 0 {
		p.ioMin = max(p.ioMin, g)
	}
	switch {
	case p.holds(optimalRaises):
		p.ioOpt = minNotZero(p.hostHint()*512, p.ioOpt)
		p.ioOpt = p.ioOpt / p.pbs * p.pbs
		p.validated()
		return
	case p.holds(sdOptimal):
		p.sdRWMax(v, valid)
		return
	}
	// Before 4.4 the page's optimum was shown and not used.
	p.dev = 0
	if v.opt != 0 {
		p.ioOpt = v.opt * 512
	}
	max := v.max
	if p.hwKnown && max != 0 && p.apply(sdHWReduced) {
		p.hw = min(p.hw, max)
	}
	if !p.hwKnown {
		return
	}
	p.defKnown = true
	switch {
	case p.apply(sdUncapped):
		p.def, p.out.Rule = minNotZero(p.hw, max), sdUncapped.id
	default:
		p.capDefault(p.hw)
	}
}

// sdRWMax is the default of 4.4 to 6.10.
func (p *predictor) sdRWMax(v vpd, valid bool) {
	if !p.hwKnown {
		return
	}
	p.defKnown, p.noRound = true, true
	switch {
	case valid:
		p.use(sdOptimal)
		p.def, p.out.Rule = v.opt, sdOptimal.id
	case p.apply(sdFallback):
		p.def, p.out.Rule = min(p.dev, 2560), sdFallback.id
		if p.dev < 2560 {
			p.say("MAXIMUM TRANSFER LENGTH is %s", kib(p.dev))
		}
	default:
		p.use(cap1280)
		p.def, p.out.Rule = 2560, cap1280.id
	}
	if p.holds(sdHostCeiling) {
		if h := p.hostHint(); h != 0 && h < p.def {
			p.use(sdHostCeiling)
			p.def, p.out.Rule = h, sdHostCeiling.id
		}
	}
	if p.hw < p.def {
		p.def, p.out.Rule = p.hw, "hardware"
	}
}

// otherDefault is the default of a device that is not sd's.
func (p *predictor) otherDefault() {
	o := p.in.Observed
	p.ioOpt, p.ioOptKnown = o.OptimalIOSize.V, o.OptimalIOSize.Known
	p.ioMin = max(o.MinimumIOSize.V, p.pbs)
	if p.in.Path == "nvme-pci" && p.ioOptKnown {
		p.nvmeOptimal()
	}
	if !p.ioOptKnown {
		p.miss("optimal_io_size", "the default, where it is above the cap")
	}
	p.validated()
}

// nvmeOptimal corrects the optimal size of a namespace whose NOWS is 0.
func (p *predictor) nvmeOptimal() {
	now, before := p.holds(nvmeNoZeroOptimal), nvmeNoZeroOptimal.in(p.in.From) == True
	switch {
	case now && !before && p.ioOpt == p.lbs:
		p.use(nvmeNoZeroOptimal)
		p.ioOpt = 0
	case !now && before && p.ioOpt == 0:
		p.miss("whether the namespace names optimal sizes", "optimal_io_size: one block if it does")
	}
}

// validated is blk_validate_limits, or for older releases what came before it:
// the same without optimal sizes.
func (p *predictor) validated() {
	if !p.hwKnown {
		return
	}
	p.defKnown = true
	hw := p.hw
	if p.dev != 0 && p.dev < hw {
		hw = p.dev
	}
	if p.holds(optimalRaises) {
		c := p.cap()
		switch {
		case p.ioOpt > c.sectors*512:
			p.use(optimalRaises)
			p.def, p.out.Rule = min(hw, p.ioOpt/512), optimalRaises.id
		case p.ioMin > c.sectors*512:
			p.use(optimalRaises)
			p.say("minimum_io_size is %d bytes", p.ioMin)
			p.def, p.out.Rule = min(hw, p.ioMin/512), optimalRaises.id
		default:
			p.capDefault(hw)
		}
		p.round()
		return
	}
	p.capDefault(hw)
	p.round()
}

func (p *predictor) round() {
	rounds := roundsHardware
	if len(p.in.Members) > 0 {
		rounds = roundsToBlock
	}
	if p.holds(rounds) {
		p.def = roundDown(p.def, p.lbs)
	}
}

type defaultCap struct {
	rule    *rule
	sectors uint64
}

// cap is the block layer's cap.
func (p *predictor) cap() defaultCap {
	switch {
	case p.holds(cap4096):
		return defaultCap{cap4096, 8192}
	case p.holds(cap1280):
		return defaultCap{cap1280, 2560}
	case p.holds(capNone):
		return defaultCap{capNone, unlimited}
	}
	return defaultCap{cap512, 1024}
}

// capDefault is the default that hw and the cap leave.
func (p *predictor) capDefault(hw uint64) {
	c := p.cap()
	if hw < c.sectors || c.rule == capNone {
		p.def, p.out.Rule = hw, "hardware"
		if p.dev != 0 && p.dev == hw && p.dev < p.hw {
			p.out.Rule = "device"
			p.say("MAXIMUM TRANSFER LENGTH is %s", kib(p.dev))
		} else if c.rule != capNone {
			p.say("the hardware's limit is below the cap of %s", kib(c.sectors))
		}
		if c.rule == capNone {
			p.use(capNone)
			p.out.Rule = capNone.id
		}
		if !c.rule.booted {
			p.lower(SourceOnly)
		}
		return
	}
	p.use(c.rule)
	p.def, p.out.Rule = c.sectors, c.rule.id
}

// finish turns sectors into what sysfs shows, and lays a user's value over it.
func (p *predictor) finish() {
	o := &p.out
	if p.hwKnown {
		o.MaxHWSectors, o.MaxHWSectorsKB = N(p.hw), N(p.hw/2)
	}
	if p.ioOptKnown {
		o.OptimalIOSize = N(p.ioOpt)
		o.MinimumIOSize = N(p.ioMin)
	}
	o.MaxDevSectors = N(p.dev)
	if !p.defKnown {
		o.Certainty = NoAnswer
		return
	}
	if p.in.Protection.Registered == True && p.holds(integrityCap) {
		p.integrity()
	}
	o.DefaultKB = N(p.def / 2)
	if u := p.in.UserMaxSectorsKB; u.Known && u.V != 0 {
		p.user = minNotZero(p.user, u.V*2)
		p.userValue(u.V * 2)
	}
	o.MaxSectors, o.MaxSectorsKB = N(p.def), N(p.def/2)
	o.UserMaxSectors = N(p.user)
}

// userValue is the default with a value over it that somebody writes at boot.
func (p *predictor) userValue(want uint64) {
	limit := p.hw
	if p.dev != 0 {
		limit = min(limit, p.dev)
	}
	if p.lbs > 1024 && userKept.in(p.in.From) == True && userKept.in(p.to) == False {
		p.miss("what was written, before it was rounded to the logical block", "max_sectors_kb, by less than a block")
	}
	switch {
	case want <= limit:
		p.def = want
		if p.holds(userKept) {
			p.def = roundDown(want, p.lbs)
		}
		p.say("somebody sets %s", kib(want))
		p.out.Rule = "user"
	case p.apply(userKept):
		p.def = limit
		p.out.Rule = "user"
	default:
		p.say("the value of %s that somebody sets is refused: it is above the limit", kib(want))
	}
	if p.integrityLimit != 0 && p.holds(integrityCap) {
		p.def = min(p.def, p.integrityLimit)
	}
}

// integrity is blk_validate_integrity_limits.
func (p *predictor) integrity() {
	i, seg := p.in.Protection, p.in.MaxSegmentBytes
	if !i.TupleBytes.Known || i.TupleBytes.V == 0 || !i.IntervalBytes.Known || !seg.Known {
		p.miss("the format of the protection information or max_segment_size", "the limit, which it caps")
		return
	}
	p.integrityLimit = min(seg.V, (2<<20)/i.TupleBytes.V*i.IntervalBytes.V) / 512
	if p.integrityLimit < p.def {
		p.use(integrityCap)
		p.def, p.out.Rule = p.integrityLimit, integrityCap.id
	}
}
