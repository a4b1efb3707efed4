package kernel

// stack is what a map or array takes over from its members (blk_stack_limits)
// and what its target or level adds.
func (p *predictor) stack() {
	p.lbs, p.pbs = 512, 512
	s := stacked{max: unlimited, hw: unlimited, dev: unlimited}
	own := p.ownLimits()
	chunk := p.in.ChunkBytes.V / 512
	if own.first {
		s.hw, s.opt, s.min = own.hw, own.opt, own.min
		if own.hw != unlimited { // blk_queue_max_hw_sectors sets both
			s.max = min(own.hw, p.cap().sectors)
		}
	}
	for i := range p.in.Members {
		p.member(&s, &p.in.Members[i])
	}
	p.lbs, p.pbs = s.lbs, s.pbs
	p.out.LogicalBlockBytes, p.out.PhysicalBlockBytes = N(s.lbs), N(s.pbs)
	if s.unknown {
		p.lower(Low)
		if s.nothing {
			return
		}
	}
	if !own.first && own.opt != 0 {
		s.opt = own.opt
	}
	if !own.first && own.min != 0 {
		s.min = own.min
	}
	p.hw, p.hwKnown, p.dev = s.hw, true, s.dev
	p.ioOpt, p.ioOptKnown, p.ioMin = s.opt, true, max(s.min, s.pbs)
	if own.cut != 0 && own.cut < p.hw {
		p.hw = own.cut
		p.say("the map itself takes %s at most, as seen", kib(own.cut))
	}
	parity := isParity(p.in.Level)
	if parity {
		p.parityLimits(chunk)
	}
	validates := p.apply(stackValidates)
	if !validates {
		p.apply(stackCopies)
		p.copied(s, parity)
		return
	}
	p.user = s.user
	if !p.holds(optimalRaises) {
		p.lower(SourceOnly) // 6.9 and 6.10: neither read as a whole nor booted
	}
	p.ioOpt = p.ioOpt / p.pbs * p.pbs
	p.validated()
	if p.user != 0 {
		limit := p.hw
		if p.dev != 0 {
			limit = min(limit, p.dev)
		}
		p.def, p.out.Rule = roundDown(min(limit, p.user), p.lbs), "member"
		p.say("a member is held at %s by somebody, and the stack with it", kib(p.user))
	}
}

// copied is the default of a stack before 6.9.
func (p *predictor) copied(s stacked, parity bool) {
	p.defKnown = true
	p.def, p.out.Rule = s.max, stackCopies.id
	if parity { // blk_queue_max_hw_sectors comes last
		hw := p.hw
		if p.dev != 0 {
			hw = min(hw, p.dev)
		}
		p.capDefault(hw)
	}
	p.def = min(p.def, p.hw)
}

func (p *predictor) parityLimits(chunkSectors uint64) {
	p.hw = unlimited
	if p.apply(raid5Stripes) {
		p.hw = 2048
	}
	if full := chunkSectors * p.dataDisks(); full > p.hw && p.apply(raid5FullStripe) {
		p.hw = full
	}
}

func isParity(level string) bool { return level == "raid4" || level == "raid5" || level == "raid6" }

// dataDisks of an array with parity, 0 where it is not known.
func (p *predictor) dataDisks() uint64 {
	n := p.in.Disks.V
	parity := uint64(1)
	if p.in.Level == "raid6" {
		parity = 2
	}
	if !p.in.Disks.Known || n <= parity || n > 1<<16 {
		return 0
	}
	return n - parity
}

// stacked are limits in the making; sectors and bytes.
type stacked struct {
	max, hw, dev, user uint64
	opt, min           uint64
	lbs, pbs           uint64
	unknown, nothing   bool
}

// member is blk_stack_limits for one bottom device.
func (p *predictor) member(s *stacked, b *Prediction) {
	if s.lbs == 0 {
		s.lbs, s.pbs = 512, 512
	}
	p.lower(b.Certainty)
	for _, m := range b.Missing {
		p.miss(m.Input, m.Could)
	}
	if !b.MaxSectors.Known || !b.MaxHWSectors.Known {
		s.unknown, s.nothing = true, true
		p.miss("the limits of a member", "everything: the stack takes them over")
		return
	}
	s.max = minNotZero(s.max, b.MaxSectors.V)
	s.user = minNotZero(s.user, b.UserMaxSectors.V)
	s.hw = minNotZero(s.hw, b.MaxHWSectors.V)
	s.dev = minNotZero(s.dev, b.MaxDevSectors.V)
	s.lbs = max(s.lbs, b.LogicalBlockBytes.V)
	s.pbs = max(s.pbs, b.PhysicalBlockBytes.V)
	s.min = max(s.min, b.MinimumIOSize.V)
	if !b.OptimalIOSize.Known {
		p.miss("optimal_io_size of a member", "the optimal size of the stack")
	}
	s.opt = lcmNotZero(s.opt, b.OptimalIOSize.V)
	if s.min%s.pbs != 0 {
		s.min = s.pbs
	}
	if s.opt%s.pbs != 0 {
		s.opt = 0
	}
	for _, n := range []*uint64{&s.max, &s.hw, &s.dev} {
		if r := max(roundDown(*n, s.lbs), 8); r != *n && *n < unlimited && p.apply(roundsToBlock) {
			*n = r
		}
	}
}

// lcmNotZero is the kernel's, of unsigned int: it wraps.
func lcmNotZero(a, b uint64) uint64 {
	if a == 0 || b == 0 {
		return a + b
	}
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return uint64(uint32(a / x * b))
}

// own is what a target or level sets beside its members.
type own struct {
	hw, opt, min uint64 // sectors, bytes, bytes; 0 for none
	first        bool   // set before the members are stacked, else it replaces what they make
	cut          uint64 // a limit that was seen and that no member explains, sectors
}

// ownLimits are those of a known level or striped target, or, for any other
// map, what From showed of it and its members do not explain.
func (p *predictor) ownLimits() own {
	chunk := p.in.ChunkBytes.V
	if !p.in.ChunkBytes.Known {
		chunk = 0
	}
	n := p.in.Disks.V
	if !p.in.Disks.Known || n > 1<<16 {
		n = 0
	}
	striped := func(data uint64) own {
		if chunk == 0 || data == 0 {
			p.miss("chunk size and number of disks", "the optimal size")
			return own{hw: unlimited, first: true}
		}
		return own{hw: unlimited, opt: uint64(uint32(chunk * data)), min: chunk, first: true}
	}
	if p.in.Kind == "md" {
		switch {
		case p.in.Level == "raid0":
			o := striped(n)
			if chunk != 0 {
				o.hw = chunk / 512
				p.say("RAID 0 takes one chunk at most, %s", kib(o.hw))
			}
			return o
		case p.in.Level == "raid10":
			return striped(p.raid10Stripes(chunk, n))
		case isParity(p.in.Level):
			return striped(p.dataDisks())
		case p.in.Level == "linear":
			if chunk != 0 && p.apply(linearChunk) {
				return own{hw: chunk / 512, min: chunk, first: true}
			}
			return own{hw: unlimited, first: true}
		case p.in.Level == "raid1":
			return own{hw: unlimited, first: true}
		}
	}
	if p.in.Kind == "dm" && p.in.Target == "striped" && chunk != 0 && n != 0 {
		return own{hw: unlimited, opt: uint64(uint32(chunk * n)), min: chunk}
	}
	return p.seenOwn()
}

// raid10Stripes are the stripes of a RAID 10: half the disks with two near
// copies, all of them where the copies lie elsewhere or do not divide them
// (raid10_nr_stripes). sysfs does not tell the layout; From does, by the size.
func (p *predictor) raid10Stripes(chunk, disks uint64) uint64 {
	o := p.in.Observed.OptimalIOSize
	if !o.Known || chunk == 0 || disks == 0 {
		p.miss("the layout of the RAID 10", "the optimal size")
		return disks / 2
	}
	members := p.membersOptimal()
	for _, near := range []uint64{2, 1, 3, 4} {
		if disks%near == 0 && lcmNotZero(chunk*(disks/near), members) == o.V {
			return disks / near
		}
	}
	if disks%2 == 0 {
		return disks / 2
	}
	return disks
}

func (p *predictor) membersOptimal() uint64 {
	opt := uint64(0)
	for _, m := range p.in.MembersFrom {
		opt = lcmNotZero(opt, m.OptimalIOSize.V)
	}
	return opt
}

// membersDiffer reports whether it matters which of several members a map takes
// over.
func (p *predictor) membersDiffer() bool {
	if len(p.in.Members) < 2 {
		return false
	}
	a := &p.in.Members[0]
	for i := range p.in.Members {
		if b := &p.in.Members[i]; a.MaxSectorsKB != b.MaxSectorsKB || a.MaxHWSectorsKB != b.MaxHWSectorsKB || b.OptimalIOSize.V != 0 {
			return true
		}
	}
	return false
}

// seenOwn takes what From showed of a map for the map's own where the members
// do not explain it.
func (p *predictor) seenOwn() own {
	o := own{}
	seen := p.in.Observed
	hw := uint64(unlimited / 2)
	for _, m := range p.in.MembersFrom {
		if m.MaxHWSectorsKB.Known {
			hw = min(hw, m.MaxHWSectorsKB.V)
		}
	}
	if seen.MaxHWSectorsKB.Known && seen.MaxHWSectorsKB.V < hw {
		o.cut = seen.MaxHWSectorsKB.V * 2
	}
	passes := p.in.Target == "linear" || p.in.Target == "crypt" || p.in.Target == "multipath"
	if len(p.in.MembersFrom) == 0 || !seen.OptimalIOSize.Known {
		if !passes {
			p.miss("the target of the map", "the limits, where it is not one that passes them on")
		}
		return o
	}
	// A map may keep some of several devices for its own ends (thin pool, raid);
	// one with an optimal size may have it in some releases alone, or hold its
	// limit to it.
	hasOwn := seen.OptimalIOSize.V != p.membersOptimal() && seen.OptimalIOSize.V != 0
	if !passes && (p.membersDiffer() || hasOwn || p.membersOptimal() != 0) {
		p.miss("the target of the map", "the limits, where it does not take over all its members")
	}
	if hasOwn {
		o.opt, o.min = seen.OptimalIOSize.V, seen.MinimumIOSize.V
		p.say("the map names an optimal size of its own, %d bytes, as seen", o.opt)
	}
	return o
}
