package checker

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
	"github.com/quirkcheck/quirkcheck/probe"
	"github.com/quirkcheck/quirkcheck/quirks"
)

// topology finds the devices of an inventory by name, also by the name of a
// partition.
type topology struct {
	devices map[string]*probe.Device
	disk    map[string]*probe.Device // by partition
	params  map[string]string        // module parameters that are known
	release kernel.Release
}

func topologyOf(inv *probe.Inventory) *topology {
	t := &topology{devices: make(map[string]*probe.Device, len(inv.Devices)), disk: map[string]*probe.Device{}, params: map[string]string{}}
	if inv.Kernel.Ok() {
		t.release = inv.Kernel.V
	}
	for name, v := range inv.Params {
		if v.Ok() {
			t.params[name] = v.V
		}
	}
	for _, list := range [][]*probe.Device{inv.Peers, inv.Devices} {
		for _, d := range list {
			t.devices[d.Name] = d
			for _, p := range d.Partitions {
				t.disk[p.Name] = d
			}
		}
	}
	return t
}

// find returns the device of a name, or the disk of a partition, which via then
// names.
func (t *topology) find(name string) (d *probe.Device, via string) {
	if d, ok := t.devices[name]; ok {
		return d, ""
	}
	if d, ok := t.disk[name]; ok {
		return d, name
	}
	return nil, ""
}

// below are the devices that d is made of, its partitions taken as their
// disks: slaves, and the paths of an NVMe multipath head.
func (t *topology) below(d *probe.Device) []Level {
	var out []Level
	for _, name := range d.Members {
		out = append(out, t.level(name))
	}
	for _, p := range d.Paths {
		out = append(out, t.level(p.Name))
	}
	return out
}

// above are the devices made of d or of one of its partitions.
func (t *topology) above(d *probe.Device) []Level {
	var out []Level
	add := func(holders []string, via string) {
		for _, name := range holders {
			l := t.level(name)
			l.Via = via
			if !slices.ContainsFunc(out, func(o Level) bool { return o.Name == l.Name && o.Via == l.Via }) {
				out = append(out, l)
			}
		}
	}
	add(d.Holders, "")
	for _, p := range d.Partitions {
		add(p.Holders, p.Name)
	}
	if head := headOf(d); head != "" && t.devices[head] != nil {
		add([]string{head}, "")
	}
	return out
}

// headOf names the multipath head of a hidden NVMe path: nvme1n2 of nvme1c3n2
// (drivers/nvme/host/multipath.c).
func headOf(d *probe.Device) string {
	rest, isNVMe := strings.CutPrefix(d.Name, "nvme")
	subsystem, rest, isPath := strings.Cut(rest, "c")
	_, namespace, ok := strings.Cut(rest, "n")
	if !isNVMe || !isPath || !ok {
		return ""
	}
	return "nvme" + subsystem + "n" + namespace
}

func (t *topology) level(name string) Level {
	d, via := t.find(name)
	if d == nil {
		return Level{Name: name, Kind: stackKind(name)}
	}
	l := Level{Name: d.Name, Via: via, Kind: d.Kind}
	if s := t.stackOf(d); s != nil {
		l.Kind, l.Target, l.Level = s.Kind, s.Target, s.Level
	}
	if n := d.Uint("queue/max_sectors_kb"); n.Ok() {
		l.MaxSectorsKB = &n.V
	}
	return l
}

// peerLimits are the limits of a device above or below that checks compare.
var peerLimits = []string{"max_sectors_kb", "max_hw_sectors_kb", "logical_block_size", "physical_block_size", "max_segments", "minimum_io_size", "optimal_io_size"}

func (t *topology) peer(l Level) quirks.StackPeer {
	p := quirks.StackPeer{Name: l.Name, Kind: l.Kind}
	if l.Target != nil {
		p.Target = *l.Target
	}
	if l.Level != nil {
		p.Level = *l.Level
	}
	if d, _ := t.find(l.Name); d != nil {
		p.Limits = map[string]quirks.Value{}
		for _, name := range peerLimits {
			if n := d.Uint("queue/" + name); n.Ok() {
				p.Limits[name] = quirks.Number(n.V)
			}
		}
	}
	return p
}

// addStack puts the levels around a device into its subject: the members it is
// directly made of, and all that stands above it.
func (t *topology) addStack(sub *quirks.Subject, d *probe.Device) {
	sub.Stack = quirks.Stack{Known: true, RequestBased: quirks.Unknown}
	if s := t.stackOf(d); s != nil {
		sub.Stack.Kind = s.Kind
		if s.Target != nil {
			sub.Stack.Target = *s.Target
		}
		if s.Level != nil {
			sub.Stack.Level = *s.Level
		}
		if s.ChunkBytes != nil {
			sub.Limits["chunk_bytes"] = quirks.Number(*s.ChunkBytes)
		}
		if s.Disks != nil {
			sub.Limits["raid_disks"] = quirks.Number(uint64(*s.Disks))
		}
		switch {
		case s.RequestBased == nil:
		case *s.RequestBased:
			sub.Stack.RequestBased = quirks.True
		default:
			sub.Stack.RequestBased = quirks.False
		}
	}
	for _, l := range t.below(d) {
		sub.Stack.Members = append(sub.Stack.Members, t.peer(l))
	}
	seen := map[string]bool{d.Name: true}
	for queue := t.above(d); len(queue) > 0; queue = queue[1:] {
		l := queue[0]
		if seen[l.Name] {
			continue
		}
		seen[l.Name] = true
		sub.Stack.Above = append(sub.Stack.Above, t.peer(l))
		if up, _ := t.find(l.Name); up != nil {
			queue = append(queue, t.above(up)...)
		}
	}
	switch {
	case len(sub.Stack.Members) > 0:
		sub.Stack.Role = "top"
	case len(sub.Stack.Above) > 0:
		sub.Stack.Role = "member"
	}
}

func stackKind(name string) string {
	switch {
	case strings.HasPrefix(name, "dm-"):
		return "dm"
	case strings.HasPrefix(name, "md"):
		return "md"
	case strings.HasPrefix(name, "bcache"):
		return "bcache"
	}
	return "other"
}

// stackOf reads what a stacked device is from its own files.
func (t *topology) stackOf(d *probe.Device) *Stack {
	switch kind := stackKind(d.Name); {
	case d.Kind == "dm":
		return t.mapOf(d)
	case d.Kind == "md":
		s := &Stack{Kind: "md"}
		if level, ok := d.Text("md/level"); ok {
			s.Level = &level
		}
		if n := d.Uint("md/chunk_size"); n.Ok() && n.V > 0 {
			s.ChunkBytes = &n.V
		}
		if text, ok := d.Text("md/raid_disks"); ok {
			first, _, _ := strings.Cut(text, " ")
			if n, err := strconv.Atoi(first); err == nil && n > 0 {
				s.Disks = &n
			}
		}
		return s
	case kind == "bcache":
		return &Stack{Kind: kind}
	case len(d.Paths) > 0:
		target := "nvme-multipath"
		return &Stack{Kind: "nvme", Target: &target}
	}
	return nil
}

// mapOf tells the target of a device-mapper device as far as sysfs proves it.
// A map's UUID starts with the name of who made it (libdevmapper's convention),
// and LVM ends it with the name of a hidden layer; only multipath is
// request-based; a stripe shows in io_min and io_opt (drivers/md/dm-stripe.c,
// stripe_io_hints).
func (t *topology) mapOf(d *probe.Device) *Stack {
	s := &Stack{Kind: "dm"}
	if name, ok := d.Text("dm/name"); ok {
		s.Name = &name
	}
	if d.RequestBased.Ok() {
		s.RequestBased = &d.RequestBased.V
	}
	uuid, _ := d.Text("dm/uuid")
	target := ""
	for _, c := range []struct{ prefix, target string }{
		{"mpath-", "multipath"}, {"CRYPT-VERITY-", "verity"}, {"CRYPT-INTEGRITY-", "integrity"}, {"CRYPT-", "crypt"},
		{"DMRAID-", "raid"}, {"VDO-", "vdo"}, {"part", "linear"}, {"LVM-", "lvm"},
	} {
		if strings.HasPrefix(uuid, c.prefix) {
			target = c.target
			break
		}
	}
	if target == "lvm" {
		target = t.lvmTarget(d, uuid)
	}
	if target == "" && s.RequestBased != nil && *s.RequestBased {
		target = "multipath"
	}
	if chunk, n, ok := t.stripe(d); ok && (target == "" || target == "lvm") {
		target = "striped"
		s.ChunkBytes, s.Disks = &chunk, &n
	}
	if target != "" {
		s.Target = &target
	}
	return s
}

// lvmTarget reads the layer at the end of an LVM UUID: 64 characters of two
// identifiers, then -LAYER for hidden devices (LVM2, lib/activate).
func (t *topology) lvmTarget(d *probe.Device, uuid string) string {
	layer := ""
	if rest := strings.TrimPrefix(uuid, "LVM-"); len(rest) > 65 && rest[64] == '-' {
		layer = rest[65:]
	}
	switch layer {
	case "tpool":
		return "thin-pool"
	case "cow":
		return "linear"
	}
	for _, m := range d.Members {
		below, _ := t.find(m)
		if below == nil || below.Kind != "dm" {
			continue
		}
		if name, _ := below.Text("dm/name"); strings.Contains(name, "_rimage_") {
			return "raid"
		} else if strings.Contains(name, "_mimage_") {
			return "mirror"
		}
		switch u, _ := below.Text("dm/uuid"); {
		case strings.HasSuffix(u, "-tpool") && layer == "":
			return "thin"
		case strings.HasSuffix(u, "-cow"):
			return "snapshot"
		case strings.HasSuffix(u, "-vpool"):
			return "vdo"
		}
	}
	return "lvm"
}

// stripe reads chunk (bytes) and number of stripes from a map's hints: the
// striped target sets io_min to its chunk and io_opt to that times the stripes.
// Members that publish hints of their own above the chunk hide it.
func (t *topology) stripe(d *probe.Device) (chunk uint64, n int, ok bool) {
	ioMin, ioOpt := d.Uint("queue/minimum_io_size"), d.Uint("queue/optimal_io_size")
	for _, name := range d.Members {
		below, _ := t.find(name)
		if below == nil {
			return 0, 0, false
		}
		if m := below.Uint("queue/minimum_io_size"); !m.Ok() || m.V >= ioMin.V {
			return 0, 0, false
		}
		if m := below.Uint("queue/optimal_io_size"); m.Ok() && m.V > 0 {
			return 0, 0, false
		}
	}
	if !ioMin.Ok() || !ioOpt.Ok() || ioMin.V < 4096 || ioOpt.V%max(ioMin.V, 1) != 0 {
		return 0, 0, false
	}
	stripes := ioOpt.V / ioMin.V
	if stripes < 2 || stripes > uint64(len(d.Members)) || t.isPool(d, ioMin.V) {
		return 0, 0, false
	}
	return ioMin.V, int(stripes), true
}

// showsStripes: the striped target names its chunk in chunk_sectors
// (drivers/md/dm-stripe.c of 6.12.117; not in 6.1.192).
var showsStripes = []kernel.Row{{Tree: "mainline", After: "6.1", By: "6.12"}}

// isPool tells a pool of thin volumes, whose hints can be those of stripes: it
// has no chunk_sectors, and sets io_min to the largest request that divides its
// block (drivers/md/dm-thin.c, pool_io_hints).
func (t *topology) isPool(d *probe.Device, ioMin uint64) bool {
	switch chunk := d.Uint("queue/chunk_sectors"); {
	case !chunk.Ok():
		return false
	case chunk.V != 0:
		return chunk.V*512 != ioMin
	case kernel.Carries(showsStripes, t.release).Truth == kernel.True:
		return true
	}
	limit := d.Uint("queue/max_sectors_kb")
	return limit.Ok() && limit.V*1024 == ioMin
}

// Tree is the stack around a device for people: every level above and below,
// indented by its distance, each device once a branch, treeLines at most.
func Tree(inv *probe.Inventory, name string) (above, below []TreeLine) {
	t := topologyOf(inv)
	d, _ := t.find(name)
	if d == nil {
		return nil, nil
	}
	var walk func(d *probe.Device, next func(*probe.Device) []Level, depth int, seen map[string]bool, out *[]TreeLine)
	walk = func(d *probe.Device, next func(*probe.Device) []Level, depth int, seen map[string]bool, out *[]TreeLine) {
		for _, l := range next(d) {
			*out = append(*out, TreeLine{Depth: depth, Level: l})
			if len(*out) >= treeLines {
				return
			}
			if at, _ := t.find(l.Name); at != nil && !seen[l.Name] {
				seen := maps.Clone(seen)
				seen[l.Name] = true
				walk(at, next, depth+1, seen, out)
			}
		}
	}
	walk(d, t.above, 0, map[string]bool{d.Name: true}, &above)
	walk(d, t.below, 0, map[string]bool{d.Name: true}, &below)
	return above, below
}

const treeLines = 256

// TreeLine is one line of Tree.
type TreeLine struct {
	Depth int
	Level
}
