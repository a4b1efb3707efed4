package target

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/quirkcheck/quirkcheck/checker/enforce"
	"github.com/quirkcheck/quirkcheck/checker/verify"
)

// A Question is one thing that must be known before a disk is overwritten.
type Question string

// The questions. A destructive run needs an answer to every one.
const (
	AskSize       Question = "size"
	AskReadOnly   Question = "read-only"
	AskRemovable  Question = "removable"
	AskZoned      Question = "zoned"
	AskMembers    Question = "members" // is the target made of other devices
	AskHolders    Question = "holders" // what is made of it
	AskMounts     Question = "mounts"
	AskSwap       Question = "swap"
	AskSignatures Question = "signatures"
	AskSystem     Question = "system" // does it carry the running system
	AskResume     Question = "resume"
	AskPower      Question = "power"
	AskOpeners    Question = "openers"
	AskExports    Question = "exports"
	AskShared     Question = "shared"
	AskKeys       Question = "reservation-keys"
	AskBacking    Question = "backing" // what a loop or nbd device stands on
)

// whether says what is not known when a question has no answer.
var whether = []struct {
	q    Question
	what string
}{
	{AskSize, "how large it is"},
	{AskReadOnly, "it is read-only"},
	{AskRemovable, "it is removable"},
	{AskZoned, "it is a zoned disk"},
	{AskMembers, "it is made of other devices"},
	{AskHolders, "other devices are made of it"},
	{AskMounts, "it is mounted"},
	{AskSwap, "it is swapped to"},
	{AskSignatures, "there is data on it"},
	{AskSystem, "the running system is on it"},
	{AskResume, "the system resumes from it"},
	{AskPower, "this machine runs on battery"},
	{AskOpeners, "another process has it open"},
	{AskExports, "this machine exports it to others"},
	{AskShared, "other hosts reach it"},
	{AskKeys, "another host has reserved it"},
	{AskBacking, "what it stands on"},
}

// Facts is what Gather found out about a target. The zero Facts has asked
// nothing, which Decide takes for not known.
type Facts struct {
	Target Target
	Serial string
	// Asked holds the questions that were asked: with nil where there is an
	// answer, with the error where there is none.
	Asked map[Question]error

	Sectors   uint64 // of the target, 512 bytes each
	ReadOnly  bool
	Removable bool   // of the disk
	Zoned     string // queue/zoned: none, host-aware, host-managed
	// Kind and Members: the target is itself made of other devices ("dm", "md",
	// "bcache"; "" where not), in the end of these whole disks.
	Kind    string
	Members []string
	// Layers is the disk, its partitions and everything made of these.
	Layers []Layer
	// Mounts and Swaps lie on one of the layers.
	Mounts []Mounted
	Swaps  []string
	// Joined names what the kernel made the layers part of without holders:
	// a file system over several devices, a bcache set.
	Joined     []string
	Signatures []Signature
	// Carries names what of the running system lies on the disk: "/",
	// "/boot", the state folder.
	Carries []string
	// Resume is the layer that /sys/power/resume names.
	Resume string
	// OnBattery says that the machine has no mains now.
	OnBattery bool
	Openers   []Opener
	// Exports are paths below configfs that give the disk to other hosts.
	Exports []string
	// Transport is fc, iscsi, srp, nvme-tcp, nvme-rdma, nvme-fc where other
	// hosts may reach the disk the same way; "" where not.
	Transport string
	// ReservationKeys is the number of registered keys (SPC-6, PERSISTENT
	// RESERVE IN, READ KEYS).
	ReservationKeys int
	Backing         Backing
}

// Layer is a device at or above the disk.
type Layer struct {
	DevNo
	Name   string // sysfs name
	Kind   string // disk, partition, dm, md, bcache, loop, other
	Detail string // dm name and uuid, md level, loop file
	Below  string // the layer it is made of; "" for the disk
	// Multipath marks a map of paths to one disk.
	Multipath bool
	dir       string
}

// Mounted is a mount of a layer.
type Mounted struct {
	Layer, Point, FSType string
	Namespace            string // pid in whose mount namespace; "" in this one
}

// Opener is a process that has a layer open.
type Opener struct {
	PID         int
	Comm, Layer string
	Guest       bool // a virtual machine monitor
}

func (o Opener) String() string { return fmt.Sprintf("%s (%d)", clean(o.Comm), o.PID) }

// Backing is what a loop or nbd device stands on.
type Backing struct {
	File  string   // loop: the file
	Disks []string // loop: the disks that the file lies on
	Block bool     // loop: the file is a block device
	// Unconnected marks an nbd device without a server.
	Unconnected bool
}

// Gathering is what Gather needs beyond the machine.
type Gathering struct {
	// StateDir is the folder of journals and state; its disk is never
	// overwritten. "" for none.
	StateDir string
	// Self are the pids that may hold the device: this process and workers of
	// its own. Empty: this process.
	Self []int
	// ReadKeys counts the registered reservation keys. It returns
	// ErrNoReservations where the device has no such command. It is asked only
	// where the transport can be shared; nil there means not known.
	ReadKeys func() (n int, err error)
}

// ErrNoReservations is what ReadKeys returns for a device that does not know
// persistent reservations.
var ErrNoReservations = errors.New("no persistent reservations")

// Gather asks every question. It never fails as a whole: what could not be
// answered is in Asked. It sends no command but what ReadKeys sends, and reads at most
// a few MiB of the disk. Without root much stays unanswered.
func Gather(ctx context.Context, m Machine, t Target, o Gathering) Facts {
	g := gatherer{ctx: ctx, m: m, o: o, f: Facts{Target: t, Asked: map[Question]error{}}}
	if len(g.o.Self) == 0 {
		g.o.Self = []int{os.Getpid()}
	}
	g.f.Serial, _ = Serial(m, t)
	g.mnts, g.mntsErr = m.mountinfo("self")
	if g.mntsErr == nil && len(g.mnts) == 0 {
		g.mntsErr = errors.New("proc/self/mountinfo lists no mount")
	}
	for _, step := range []struct {
		q   Question
		ask func() error
	}{
		{AskSize, g.size},
		{AskReadOnly, g.readOnly},
		{AskRemovable, g.removable},
		{AskZoned, g.zoned},
		{AskMembers, g.members},
		{AskHolders, g.holders}, // before all that compare with layers
		{AskMounts, g.mounts},
		{AskSwap, g.swap},
		{AskSignatures, g.signatures},
		{AskSystem, g.system},
		{AskResume, g.resume},
		{AskPower, g.power},
		{AskOpeners, g.openers},
		{AskExports, g.exports},
		{AskShared, g.shared},
		{AskKeys, g.keys},
		{AskBacking, g.backing},
	} {
		err := ctx.Err()
		if err == nil {
			err = step.ask()
		}
		g.f.Asked[step.q] = err
	}
	return g.f
}

type gatherer struct {
	ctx  context.Context
	m    Machine
	o    Gathering
	f    Facts
	mnts []mount // of this namespace
	// mntsErr says that mnts is not all.
	mntsErr error
}

func (g *gatherer) size() error {
	n, err := g.m.needNumber(g.f.Target.SysDir, "size")
	g.f.Sectors = n
	return err
}

// flag reads an attribute that is 0 or 1.
func (m Machine) flag(folder, name string) (bool, error) {
	n, err := m.needNumber(folder, name)
	return n != 0, err
}

func (g *gatherer) readOnly() error {
	for _, dir := range []string{g.f.Target.SysDir, g.f.Target.DiskDir} {
		ro, err := g.m.flag(dir, "ro")
		if err != nil {
			return err
		}
		g.f.ReadOnly = g.f.ReadOnly || ro
	}
	return nil
}

func (g *gatherer) removable() (err error) {
	g.f.Removable, err = g.m.flag(g.f.Target.DiskDir, "removable")
	return err
}

func (g *gatherer) zoned() error {
	s, ok, err := g.m.text(g.f.Target.DiskDir, "queue/zoned")
	if err != nil {
		return err
	}
	if !ok {
		// Kernels before 4.10 have no attribute and show no host-managed disk. A
		// queue folder must be there, or nothing was looked at.
		if !g.m.exists(g.f.Target.DiskDir + "/queue") {
			return fmt.Errorf("%s/queue: %w", g.f.Target.DiskDir, fs.ErrNotExist)
		}
		s = "none"
	}
	if g.f.Zoned = strings.TrimSpace(s); g.f.Zoned == "" {
		return fmt.Errorf("%s/queue/zoned is empty", g.f.Target.DiskDir)
	}
	return nil
}

// kindOf tells a device by the folders only its driver makes.
func (m Machine) kindOf(dir string) string {
	for _, kind := range []string{"partition", "dm", "md", "loop"} {
		if m.exists(dir + "/" + kind) {
			return kind
		}
	}
	name := path.Base(dir)
	switch {
	case strings.HasPrefix(name, "bcache"):
		return "bcache"
	case strings.HasPrefix(name, "dm-"):
		return "dm"
	case strings.HasPrefix(name, "md"):
		return "md"
	case strings.HasPrefix(name, "loop"):
		return "loop"
	}
	return "disk"
}

func (g *gatherer) members() error {
	dir := g.f.Target.DiskDir
	slaves, err := g.m.links(dir + "/slaves")
	if err != nil {
		return err
	}
	switch kind := g.m.kindOf(dir); {
	case kind == "dm" || kind == "md" || kind == "bcache":
		g.f.Kind = kind
	case len(slaves) > 0:
		g.f.Kind = "stacked"
	default:
		return nil
	}
	disks, err := g.below(g.f.Target.DiskDev, 0)
	delete(disks, g.f.Target.Disk)
	g.f.Members = slices.Sorted(maps.Keys(disks))
	return err
}

// maxDepth bounds a stack of devices: loops in sysfs are not met, but would
// not end.
const maxDepth = 32

// below returns the whole disks that a device stands on, itself and what lies
// between included by name, through partitions, slaves and loop files.
func (g *gatherer) below(dev DevNo, depth int) (map[string]bool, error) {
	set := map[string]bool{}
	if depth > maxDepth {
		return set, fmt.Errorf("block device %s: more than %d devices on one another", dev, maxDepth)
	}
	dir, err := g.m.devDir(dev)
	if err != nil {
		return set, err
	}
	if g.m.exists(dir + "/partition") {
		dir = path.Dir(dir)
	}
	set[path.Base(dir)] = true
	slaves, err := g.m.links(dir + "/slaves")
	if err != nil {
		return set, err
	}
	var next []DevNo
	for _, slave := range slaves {
		text, _, err := g.m.text(slave, "dev")
		if err != nil {
			return set, err
		}
		dev, err := parseDevNo(text)
		if err != nil {
			return set, fmt.Errorf("read %s/dev: %w", slave, err)
		}
		next = append(next, dev)
	}
	if file, ok, err := g.m.text(dir, "loop/backing_file"); err != nil {
		return set, err
	} else if ok {
		devs, err := g.m.carriers(file, g.mnts)
		if err != nil {
			return set, err
		}
		next = append(next, devs...)
	}
	for _, dev := range next {
		more, err := g.below(dev, depth+1)
		maps.Copy(set, more)
		if err != nil {
			return set, err
		}
	}
	return set, nil
}

// carriers returns the block devices that a file lies on: none on tmpfs, NFS
// and their like. For a block device it is the device.
func (m Machine) carriers(name string, mnts []mount) ([]DevNo, error) {
	st, err := m.Stat(name)
	if err != nil {
		return nil, err
	}
	if st.block() {
		return []DevNo{st.Rdev}, nil
	}
	if !st.Dev.anonymous() {
		return []DevNo{st.Dev}, nil
	}
	// A btrfs subvolume has a device number of its own, which mountinfo does
	// not show: go by the mount.
	mnt, ok := mountOf(st, name, mnts)
	if !ok {
		return nil, fmt.Errorf("%s: no mount of it is listed", clean(name))
	}
	return m.sources(mnt, mnts, 0)
}

// mountOf finds the mount that a file lies on.
func mountOf(st FileStat, name string, mnts []mount) (mount, bool) {
	best, ok := mount{}, false
	for _, mnt := range mnts {
		if st.MountID != 0 {
			if mnt.id == st.MountID {
				return mnt, true
			}
			continue
		}
		// The later of two mounts at one point covers the earlier.
		if under(name, mnt.point) && (!ok || len(mnt.point) >= len(best.point)) {
			best, ok = mnt, true
		}
	}
	return best, ok
}

func under(name, folder string) bool {
	rest, ok := strings.CutPrefix(name, strings.TrimSuffix(folder, "/"))
	return ok && (rest == "" || rest[0] == '/')
}

// sources returns the block devices under a mount.
func (m Machine) sources(mnt mount, mnts []mount, depth int) ([]DevNo, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("%s: more than %d mounts on one another", clean(mnt.point), maxDepth)
	}
	if !mnt.dev.anonymous() {
		return append([]DevNo{mnt.dev}, m.optionDevices(mnt)...), nil
	}
	switch mnt.fstype {
	case "btrfs", "bcachefs":
		return m.multiDevices(mnt)
	case "overlay":
		return m.overlaid(mnt, mnts, depth)
	}
	devs, err := m.sourceNodes(mnt)
	return append(devs, m.optionDevices(mnt)...), err
}

// overlaid returns the devices under the folders that an overlay shows. Folders
// that cannot be seen from here (a container's) tell nothing.
func (m Machine) overlaid(mnt mount, mnts []mount, depth int) ([]DevNo, error) {
	var devs []DevNo
	for option := range strings.SplitSeq(mnt.super, ",") {
		key, value, _ := strings.Cut(option, "=")
		if key != "lowerdir" && key != "lowerdir+" && key != "upperdir" && key != "workdir" {
			continue
		}
		for dir := range strings.SplitSeq(value, ":") {
			if !path.IsAbs(dir) {
				continue
			}
			st, err := m.Stat(dir)
			if err != nil {
				continue
			}
			if !st.Dev.anonymous() {
				devs = append(devs, st.Dev)
				continue
			}
			if under, ok := mountOf(st, dir, mnts); ok && under.id != mnt.id {
				more, err := m.sources(under, mnts, depth+1)
				if err != nil {
					return devs, err
				}
				devs = append(devs, more...)
			}
		}
	}
	return devs, nil
}

// sourceNodes takes a mount's source for the device nodes it names: one, or
// several with colons between (bcachefs).
func (m Machine) sourceNodes(mnt mount) ([]DevNo, error) {
	if !strings.HasPrefix(mnt.source, "/dev/") {
		return nil, nil // a pool, a host, a word
	}
	var devs []DevNo
	for node := range strings.SplitSeq(mnt.source, ":") {
		st, err := m.Stat(node)
		if err != nil {
			return devs, fmt.Errorf("source of %s: %w", clean(mnt.point), err)
		}
		if st.block() {
			devs = append(devs, st.Rdev)
		}
	}
	return devs, nil
}

// multiDevices finds all devices of the btrfs or bcachefs that a mount shows;
// mountinfo names but one.
func (m Machine) multiDevices(mnt mount) ([]DevNo, error) {
	devs, nodeErr := m.sourceNodes(mnt)
	sets, err := m.deviceSets()
	if err != nil {
		return devs, err
	}
	for _, set := range sets {
		if slices.ContainsFunc(devs, func(d DevNo) bool { _, ok := set.devs[d]; return ok }) {
			for dev := range set.devs {
				if !slices.Contains(devs, dev) {
					devs = append(devs, dev)
				}
			}
		}
	}
	if nodeErr != nil && len(sets) == 0 {
		return devs, nodeErr
	}
	return devs, nil
}

// deviceSet is a mounted file system over one or more devices.
type deviceSet struct {
	name string // as btrfs 0a1b...
	devs map[DevNo]string
}

// deviceSets lists mounted btrfs (sys/fs/btrfs/UUID/devices/NAME, links) and
// bcachefs (sys/fs/bcachefs/UUID/dev-N/block, a link).
func (m Machine) deviceSets() ([]deviceSet, error) {
	var sets []deviceSet
	for _, fstype := range []string{"btrfs", "bcachefs"} {
		root := "sys/fs/" + fstype
		uuids, err := m.names(root)
		if err != nil {
			return sets, err
		}
		for _, uuid := range uuids {
			set := deviceSet{name: fstype + " " + uuid, devs: map[DevNo]string{}}
			var dirs []string
			if fstype == "btrfs" {
				if dirs, err = m.links(root + "/" + uuid + "/devices"); err != nil {
					return sets, err
				}
			} else {
				members, err := m.names(root + "/" + uuid)
				if err != nil {
					return sets, err
				}
				for _, member := range members {
					folder := root + "/" + uuid + "/" + member
					if to, err := fs.ReadLink(m.FS, folder+"/block"); strings.HasPrefix(member, "dev-") && err == nil {
						dir, err := linked(folder, to)
						if err != nil {
							return sets, err
						}
						dirs = append(dirs, dir)
					}
				}
			}
			for _, dir := range dirs {
				text, ok, err := m.text(dir, "dev")
				if err != nil {
					return sets, err
				}
				if !ok {
					continue // a device that is gone
				}
				dev, err := parseDevNo(text)
				if err != nil {
					return sets, fmt.Errorf("read %s/dev: %w", dir, err)
				}
				set.devs[dev] = path.Base(dir)
			}
			if len(set.devs) > 0 {
				sets = append(sets, set)
			}
		}
	}
	return sets, nil
}

// optionDevices are further devices in a mount's options: logdev= and rtdev=
// of XFS, journal_path= of ext4. One that cannot be found tells nothing: the
// kernel has claimed it, so the exclusive open will fail.
func (m Machine) optionDevices(mnt mount) []DevNo {
	var devs []DevNo
	for option := range strings.SplitSeq(mnt.super, ",") {
		if _, node, ok := strings.Cut(option, "="); ok && strings.HasPrefix(node, "/dev/") {
			if st, err := m.Stat(node); err == nil && st.block() {
				devs = append(devs, st.Rdev)
			}
		}
	}
	return devs
}

// holders fills Layers and Joined.
func (g *gatherer) holders() error {
	type todo struct{ dir, below string }
	queue := []todo{{g.f.Target.DiskDir, ""}}
	loops, err := g.m.loopsOnDevices()
	if err != nil {
		return err
	}
	sets, err := g.m.deviceSets()
	if err != nil {
		return err
	}
	seen := map[DevNo]bool{}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		text, ok, err := g.m.text(at.dir, "dev")
		if err == nil && !ok {
			err = fmt.Errorf("read %s/dev: %w", at.dir, fs.ErrNotExist)
		}
		if err != nil {
			return err
		}
		dev, err := parseDevNo(text)
		if err != nil {
			return fmt.Errorf("read %s/dev: %w", at.dir, err)
		}
		if seen[dev] {
			continue
		}
		seen[dev] = true
		layer := Layer{DevNo: dev, Name: path.Base(at.dir), Kind: g.m.kindOf(at.dir), Below: at.below, dir: at.dir}
		if err := g.m.describe(&layer); err != nil {
			return err
		}
		g.f.Layers = append(g.f.Layers, layer)
		if layer.Kind != "bcache" && g.m.exists(at.dir+"/bcache") {
			g.f.Joined = append(g.f.Joined, layer.Name+" is part of a bcache set")
		}
		for _, set := range sets {
			if _, ok := set.devs[dev]; ok {
				g.f.Joined = append(g.f.Joined, fmt.Sprintf("%s is part of the mounted %s", layer.Name, clean(set.name)))
			}
		}
		above, err := g.m.links(at.dir + "/holders")
		if err != nil {
			return err
		}
		above = append(above, loops[dev]...)
		names, err := g.m.names(at.dir)
		if err != nil {
			return err
		}
		for _, name := range names {
			if g.m.exists(at.dir + "/" + name + "/partition") {
				above = append(above, at.dir+"/"+name)
			}
		}
		for _, dir := range above {
			queue = append(queue, todo{dir, layer.Name})
		}
	}
	return nil
}

// describe adds what people know the layer by.
func (m Machine) describe(l *Layer) error {
	switch l.Kind {
	case "dm":
		name, _, err := m.text(l.dir, "dm/name")
		if err != nil {
			return err
		}
		uuid, _, err := m.text(l.dir, "dm/uuid")
		if err != nil {
			return err
		}
		l.Multipath = strings.HasPrefix(uuid, "mpath-")
		l.Detail = clean(strings.TrimSpace(name + " " + dmUse(uuid)))
	case "md":
		level, _, err := m.text(l.dir, "md/level")
		if err != nil {
			return err
		}
		l.Detail = clean(level)
	case "loop":
		file, _, err := m.text(l.dir, "loop/backing_file")
		if err != nil {
			return err
		}
		l.Detail = clean(file)
	}
	return nil
}

// dmUse reads the prefix that the makers of maps put before their uuids.
func dmUse(uuid string) string {
	for _, u := range []struct{ prefix, use string }{
		{"mpath-", "(multipath map)"}, {"LVM-", "(logical volume)"}, {"CRYPT-", "(opened encryption)"},
		{"DMRAID-", "(firmware RAID)"}, {"VDO-", "(VDO)"}, {"stratis-", "(Stratis)"},
	} {
		if strings.HasPrefix(uuid, u.prefix) || strings.Contains(uuid, "-"+u.prefix) {
			return u.use
		}
	}
	return ""
}

// loopsOnDevices finds loop devices over block devices, which do not show in
// holders.
func (m Machine) loopsOnDevices() (map[DevNo][]string, error) {
	on := map[DevNo][]string{}
	names, err := m.names("sys/block")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, "loop") {
			continue
		}
		dir := "sys/block/" + name
		if to, err := fs.ReadLink(m.FS, dir); err == nil {
			if dir, err = linked("sys/block", to); err != nil {
				return nil, err
			}
		}
		file, ok, err := m.text(dir, "loop/backing_file")
		if err != nil {
			return nil, err
		}
		if !ok || !strings.HasPrefix(file, "/dev/") {
			continue // a plain file's file system is mounted, and seen there
		}
		st, err := m.Stat(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // the name is of another time or namespace
		}
		if err != nil {
			return nil, err
		}
		if st.block() {
			on[st.Rdev] = append(on[st.Rdev], dir)
		}
	}
	return on, nil
}

func (g *gatherer) layer(dev DevNo) (Layer, bool) {
	for _, l := range g.f.Layers {
		if l.DevNo == dev {
			return l, true
		}
	}
	return Layer{}, false
}

// mount is one line of mountinfo (proc(5)).
type mount struct {
	id                           uint64
	dev                          DevNo
	point, fstype, source, super string
	deleted                      bool // the mount point is gone
}

// parseMountinfo reads /proc/PID/mountinfo. A line it does not understand is an
// error: a mount must not be overlooked.
func parseMountinfo(text []byte) ([]mount, error) {
	var mnts []mount
	for line := range bytes.Lines(text) {
		line = bytes.TrimSuffix(line, []byte{'\n'})
		if len(line) == 0 {
			continue
		}
		// id parent major:minor root point options [tag...] - type source super
		fields := strings.Split(string(line), " ")
		const devAt, pointAt, tagsAt = 2, 4, 6
		dash := -1
		for i := tagsAt; i < len(fields); i++ {
			if fields[i] == "-" {
				dash = i
				break
			}
		}
		// An empty source leaves an empty field, and old kernels no field.
		if dash < 0 || len(fields) < dash+3 {
			return mnts, fmt.Errorf("mountinfo line not understood: %.80q", line)
		}
		id, err := strconv.ParseUint(fields[0], 10, 64)
		if err != nil {
			return mnts, fmt.Errorf("mountinfo line not understood: %.80q", line)
		}
		dev, err := parseDevNo(fields[devAt])
		if err != nil {
			return mnts, fmt.Errorf("mountinfo line not understood: %.80q", line)
		}
		mnt := mount{id: id, dev: dev, point: unescapeMount(fields[pointAt]), fstype: unescapeMount(fields[dash+1]), source: unescapeMount(fields[dash+2])}
		if len(fields) > dash+3 {
			mnt.super = unescapeMount(strings.Join(fields[dash+3:], " "))
		}
		mnt.point, mnt.deleted = strings.CutSuffix(mnt.point, "//deleted")
		mnts = append(mnts, mnt)
	}
	return mnts, nil
}

// unescapeMount turns \040 back into the byte it stands for (kernel,
// mangle_path).
func unescapeMount(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func (m Machine) mountinfo(pid string) ([]mount, error) {
	b, err := fs.ReadFile(m.FS, "proc/"+pid+"/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMountinfo(b)
}

// mounts compares every mount of every mount namespace with the layers: a
// service or a container may have mounted what this process does not see.
func (g *gatherer) mounts() error {
	if err := g.f.Asked[AskHolders]; err != nil {
		return errors.New("what is made of the device is not known")
	}
	if g.mntsErr != nil {
		return g.mntsErr
	}
	own := g.mountsOn(g.mnts, "")
	seen := map[string]bool{}
	if ns, err := fs.ReadLink(g.m.FS, "proc/self/ns/mnt"); err == nil {
		seen[ns] = true
	}
	pids, err := g.m.pids()
	if err != nil {
		return err
	}
	// One that cannot be read must not hide what another shows.
	first := own
	keep := func(err error) {
		if first == nil {
			first = err
		}
	}
	for _, pid := range pids {
		ns, err := fs.ReadLink(g.m.FS, "proc/"+pid+"/ns/mnt")
		if gone(err) {
			continue
		}
		if err != nil {
			keep(fmt.Errorf("mount namespace of process %s: %w", pid, err))
			continue
		}
		if seen[ns] {
			continue
		}
		mnts, err := g.m.mountinfo(pid)
		if gone(err) {
			continue // another process may be in it still
		}
		seen[ns] = true
		if err == nil {
			err = g.mountsOn(mnts, pid)
		}
		if err != nil {
			keep(err)
		}
	}
	return first
}

// gone tells a process that ended while it was looked at.
func gone(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

func (m Machine) pids() ([]string, error) {
	names, err := m.names("proc")
	if err != nil {
		return nil, err
	}
	pids := slices.DeleteFunc(names, func(s string) bool { return strings.Trim(s, "0123456789") != "" })
	if len(pids) == 0 {
		return nil, errors.New("proc lists no process")
	}
	return pids, nil
}

func (g *gatherer) mountsOn(mnts []mount, namespace string) error {
	var first error
	for _, mnt := range mnts {
		if mnt.fstype == "overlay" {
			continue // the file systems below are mounts of their own
		}
		devs, err := g.m.sources(mnt, mnts, 0)
		// Another namespace has its own /dev; there the kernel's claim on the
		// device must do where the node is not found.
		if err != nil && namespace == "" && first == nil {
			first = err
		}
		for _, dev := range devs {
			l, ok := g.layer(dev)
			if !ok {
				continue
			}
			at := Mounted{Layer: l.Name, Point: mnt.point, FSType: mnt.fstype, Namespace: namespace}
			if !slices.ContainsFunc(g.f.Mounts, func(o Mounted) bool { return o.Layer == at.Layer && o.Point == at.Point }) {
				g.f.Mounts = append(g.f.Mounts, at)
			}
		}
	}
	return first
}

// swap reads /proc/swaps: partitions by their device number, files by that of
// their file system.
func (g *gatherer) swap() error {
	if err := g.f.Asked[AskHolders]; err != nil {
		return errors.New("what is made of the device is not known")
	}
	b, err := fs.ReadFile(g.m.FS, "proc/swaps")
	if errors.Is(err, fs.ErrNotExist) && g.m.exists("proc/mounts") {
		return nil // a kernel without swap
	}
	if err != nil {
		return err
	}
	names, err := parseSwaps(b)
	if err != nil {
		return err
	}
	var first error
	for _, name := range names {
		devs, err := g.m.carriers(name, g.mnts)
		if err != nil && first == nil {
			first = fmt.Errorf("swap %s: %w", clean(name), err)
		}
		for _, dev := range devs {
			if l, ok := g.layer(dev); ok {
				g.f.Swaps = append(g.f.Swaps, fmt.Sprintf("%s (%s)", l.Name, clean(name)))
			}
		}
	}
	return first
}

func parseSwaps(text []byte) ([]string, error) {
	var names []string
	for line := range strings.Lines(string(text)) {
		name, _, ok := strings.Cut(strings.TrimSpace(line), " ")
		if tab, _, cut := strings.Cut(name, "\t"); cut {
			name, ok = tab, true
		}
		switch {
		case name == "" && strings.TrimSpace(line) == "", name == "Filename":
			continue
		case !ok:
			return names, fmt.Errorf("swaps line not understood: %.80q", line)
		}
		name = unescapeMount(name)
		if n, cut := strings.CutSuffix(name, " (deleted)"); cut {
			name = n
		}
		names = append(names, name)
	}
	return names, nil
}

// signatures reads what lies on the target; on a whole disk, on each of its
// partitions too.
func (g *gatherer) signatures() error {
	t := g.f.Target
	if g.f.Sectors == 0 || g.m.Open == nil {
		if g.m.Open == nil {
			return errors.New("nothing to read the device with")
		}
		return nil
	}
	lbs, ok, err := g.m.number(t.DiskDir, "queue/logical_block_size")
	if err != nil {
		return err
	}
	if !ok || lbs == 0 {
		lbs = sysSectorBytes
	}
	r, err := g.m.Open(t.Node, t.DevNo)
	if err != nil {
		return err
	}
	defer r.Close()
	g.f.Signatures, err = Signatures(r, int64(g.f.Sectors)*sysSectorBytes, int64(lbs), t.Name)
	if err != nil || t.Partition {
		return err
	}
	names, err := g.m.names(t.DiskDir)
	if err != nil {
		return err
	}
	for _, name := range names {
		dir := t.DiskDir + "/" + name
		if !g.m.exists(dir + "/partition") {
			continue
		}
		start, err := g.m.needNumber(dir, "start")
		if err != nil {
			return err
		}
		size, err := g.m.needNumber(dir, "size")
		if err != nil {
			return err
		}
		bytes := int64(size) * sysSectorBytes
		found, err := Signatures(io.NewSectionReader(r, int64(start)*sysSectorBytes, bytes), bytes, int64(lbs), name)
		g.f.Signatures = append(g.f.Signatures, found...)
		if err != nil {
			return err
		}
	}
	return nil
}

// systemPoints are mounts that the running machine needs.
var systemPoints = []string{"/", "/boot", "/boot/efi", "/efi", "/usr"}

// system finds the disks under the running system and the state folder, by
// going down from there, where mounts goes up from the disk.
func (g *gatherer) system() error {
	if g.mntsErr != nil {
		return g.mntsErr
	}
	all := g.mnts
	if init, err := g.m.mountinfo("1"); err == nil {
		all = append(slices.Clone(all), init...)
	} else if !gone(err) && !errors.Is(err, fs.ErrPermission) {
		return err
	}
	carried := func(what string, devs []DevNo) error {
		for _, dev := range devs {
			disks, err := g.below(dev, 0)
			if disks[g.f.Target.Disk] && !slices.Contains(g.f.Carries, what) {
				g.f.Carries = append(g.f.Carries, what)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		}
		return nil
	}
	for _, mnt := range all {
		if !slices.Contains(systemPoints, mnt.point) {
			continue
		}
		devs, err := g.m.sources(mnt, g.mnts, 0)
		if err := errors.Join(carried(mnt.point, devs), err); err != nil {
			return err
		}
	}
	if g.o.StateDir == "" {
		return nil
	}
	devs, err := g.m.carriers(g.m.existing(g.o.StateDir), g.mnts)
	return errors.Join(carried("the state folder "+clean(g.o.StateDir), devs), err)
}

// existing is the folder itself, or the nearest above it that is there.
func (m Machine) existing(dir string) string {
	if abs, err := filepath.Abs(dir); err == nil {
		dir = abs
	}
	for dir != "/" {
		if _, err := m.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return dir
		}
		dir = path.Dir(dir)
	}
	return dir
}

// Disks returns the whole disks that a file or folder lies on, and what lies
// between, by sysfs name; none for tmpfs, NFS and their like. A journal must not share
// one with the target.
func Disks(m Machine, name string) ([]string, error) {
	mnts, err := m.mountinfo("self")
	if err != nil {
		return nil, err
	}
	g := gatherer{m: m, mnts: mnts}
	devs, err := m.carriers(m.existing(name), mnts)
	if err != nil {
		return nil, fmt.Errorf("disks under %s: %w", clean(name), err)
	}
	set := map[string]bool{}
	for _, dev := range devs {
		disks, err := g.below(dev, 0)
		if err != nil {
			return nil, fmt.Errorf("disks under %s: %w", clean(name), err)
		}
		maps.Copy(set, disks)
	}
	return slices.Sorted(maps.Keys(set)), nil
}

func (g *gatherer) resume() error {
	text, ok, err := g.m.text("sys/power", "resume")
	if err != nil || !ok {
		return err // without it the kernel cannot hibernate
	}
	dev, err := parseDevNo(text)
	if err != nil {
		return fmt.Errorf("read sys/power/resume: %w", err)
	}
	if l, ok := g.layer(dev); ok {
		g.f.Resume = l.Name
	}
	return nil
}

// power follows systemd's rule: on battery is who has a battery and no mains.
func (g *gatherer) power() error {
	const root = "sys/class/power_supply"
	names, err := g.m.names(root)
	if err != nil {
		return err
	}
	mains, online, battery, discharging := false, false, false, false
	for _, name := range names {
		dir := root + "/" + name
		kind, _, err := g.m.text(dir, "type")
		if err != nil {
			return err
		}
		if scope, _, _ := g.m.text(dir, "scope"); scope == "Device" {
			continue // of a mouse
		}
		switch {
		case kind == "Battery" || kind == "UPS":
			if present, ok, err := g.m.number(dir, "present"); err == nil && ok && present == 0 {
				continue
			}
			status, _, err := g.m.text(dir, "status")
			if err != nil {
				return err
			}
			battery = true
			discharging = discharging || status == "Discharging"
		case kind == "Mains" || strings.HasPrefix(kind, "USB") || kind == "Wireless":
			n, ok, err := g.m.number(dir, "online")
			if err != nil {
				return err
			}
			mains = mains || ok
			online = online || n != 0
		}
	}
	g.f.OnBattery = battery && !online && (mains || discharging)
	return nil
}

// initPIDNamespace is the inode of the first PID namespace (kernel,
// PROC_PID_INIT_INO).
const initPIDNamespace = "pid:[4026531836]"

// openers looks through every process's descriptors for the layers, and for the
// pass-through nodes of the disk. enforce.Openers is not enough here: it
// passes over what it cannot read, and over nodes outside /dev.
func (g *gatherer) openers() error {
	if err := g.f.Asked[AskHolders]; err != nil {
		return errors.New("what is made of the device is not known")
	}
	if ns, err := fs.ReadLink(g.m.FS, "proc/self/ns/pid"); err == nil && ns != initPIDNamespace {
		return errors.New("this process runs in a container and sees only its processes")
	}
	chars, err := g.passThrough()
	if err != nil {
		return err
	}
	self := slices.Clone(g.o.Self)
	// An nbd device is held open by whoever keeps its connection.
	if tid, ok, err := g.m.number(g.f.Target.DiskDir, "pid"); err == nil && ok && strings.HasPrefix(g.f.Target.Disk, "nbd") {
		self = append(self, g.leader(int(tid)))
	}
	pids, err := g.m.pids()
	if err != nil {
		return err
	}
	// One that cannot be read must not hide another that has it open.
	var first error
	keep := func(pid string, err error) {
		if first == nil {
			first = fmt.Errorf("descriptors of process %s: %w", pid, err)
		}
	}
	for _, pid := range pids {
		if err := g.ctx.Err(); err != nil {
			return err
		}
		n, _ := strconv.Atoi(pid)
		if slices.Contains(self, n) {
			continue
		}
		entries, err := fs.ReadDir(g.m.FS, "proc/"+pid+"/fd")
		if err != nil && !gone(err) {
			keep(pid, err)
		}
		for _, e := range entries {
			fd := "proc/" + pid + "/fd/" + e.Name()
			to, err := fs.ReadLink(g.m.FS, fd)
			if err == nil && !strings.HasPrefix(to, "/") {
				continue // a socket, a pipe
			}
			var st FileStat
			if err == nil {
				st, err = g.m.Stat("/" + fd)
			}
			if gone(err) {
				continue // closed since
			}
			if err != nil {
				keep(pid, err)
				continue
			}
			name := ""
			switch st.Mode & unix.S_IFMT {
			case unix.S_IFBLK:
				if l, ok := g.layer(st.Rdev); ok {
					name = l.Name
				}
			case unix.S_IFCHR:
				name = chars[st.Rdev]
			}
			if name == "" {
				continue
			}
			comm, _, _ := g.m.text("proc/"+pid, "comm")
			o := Opener{PID: n, Comm: comm, Layer: name}
			o.Guest = len(enforce.GuestUses([]string{comm})) > 0
			if !slices.Contains(g.f.Openers, o) {
				g.f.Openers = append(g.f.Openers, o)
			}
		}
	}
	return first
}

// leader returns the process of a thread.
func (g *gatherer) leader(tid int) int {
	status, _, _ := g.m.text("proc/"+strconv.Itoa(tid), "status")
	for line := range strings.Lines(status) {
		if s, ok := strings.CutPrefix(line, "Tgid:"); ok {
			if n, err := strconv.Atoi(strings.TrimSpace(s)); err == nil {
				return n
			}
		}
	}
	return tid
}

// passThrough returns the character devices that reach the same disk: sg, bsg
// and the NVMe generic node.
func (g *gatherer) passThrough() (map[DevNo]string, error) {
	chars := map[DevNo]string{}
	dir := g.f.Target.DiskDir
	for _, folder := range []string{dir + "/device/scsi_generic", dir + "/device/bsg", dir + "/device"} {
		names, err := g.m.names(folder)
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			// device of an NVMe namespace is its controller, with more namespaces.
			if folder == dir+"/device" && "nvme"+strings.TrimPrefix(name, "ng") != g.f.Target.Disk {
				continue
			}
			text, ok, err := g.m.text(folder+"/"+name, "dev")
			if err != nil {
				return nil, err
			}
			if !ok || !strings.HasPrefix(name, "ng") && folder == dir+"/device" {
				continue
			}
			dev, err := parseDevNo(text)
			if err != nil {
				return nil, err
			}
			chars[dev] = name
		}
	}
	return chars, nil
}

// exports looks for the disk in the kernel's target and NVMe target, which
// hold no descriptor; the latter does not even claim the device.
func (g *gatherer) exports() error {
	if err := g.f.Asked[AskHolders]; err != nil {
		return errors.New("what is made of the device is not known")
	}
	const config = "sys/kernel/config"
	for _, where := range []struct {
		module, root string
		below        []string // folders; * is every one
		attr         string
	}{
		{"nvmet", config + "/nvmet", []string{"subsystems", "*", "namespaces", "*"}, "device_path"},
		{"target_core_mod", config + "/target", []string{"core", "*", "*"}, "udev_path"},
	} {
		root := where.root
		if !g.m.exists(root) {
			if g.m.exists("sys/module/"+where.module+"/initstate") || g.m.exists("sys/module/"+where.module+"/refcnt") {
				return fmt.Errorf("%s is loaded and %s is not there: mount configfs", where.module, root)
			}
			continue
		}
		dirs := []string{root}
		for _, part := range where.below {
			var next []string
			for _, dir := range dirs {
				if part != "*" {
					next = append(next, dir+"/"+part)
					continue
				}
				names, err := g.m.names(dir)
				if err != nil {
					return err
				}
				for _, name := range names {
					next = append(next, dir+"/"+name)
				}
			}
			dirs = next
		}
		for _, dir := range dirs {
			node, ok, err := g.m.text(dir, where.attr)
			if err != nil {
				return err
			}
			node = strings.TrimSpace(node)
			if !ok || !path.IsAbs(node) {
				continue // "(null)", or nothing
			}
			st, err := g.m.Stat(node)
			if gone(err) {
				continue
			}
			if err != nil {
				return err
			}
			if _, on := g.layer(st.Rdev); on && st.block() {
				g.f.Exports = append(g.f.Exports, dir)
			}
		}
	}
	return nil
}

// shared finds a transport over which other hosts can reach the disk.
func (g *gatherer) shared() error {
	dir := g.f.Target.DiskDir
	for part := range strings.SplitSeq(dir, "/") {
		switch {
		case isNumbered(part, "session"):
			g.f.Transport = "iscsi"
			return nil
		case strings.HasPrefix(part, "rport-"):
			g.f.Transport = "fc"
		case isNumbered(part, "host"):
			if g.m.exists("sys/class/fc_host/" + part) {
				g.f.Transport = "fc"
			}
			if g.m.exists("sys/class/srp_host/"+part) || g.m.exists("sys/class/infiniband_srp/srp-"+part) {
				g.f.Transport = "srp"
			}
			if g.m.exists("sys/class/iscsi_host/" + part) {
				g.f.Transport = "iscsi"
			}
		}
	}
	if !strings.HasPrefix(g.f.Target.Disk, "nvme") {
		return nil
	}
	// A namespace lies below its controller, or, with native multipath, below
	// its subsystem, whose folder links the controllers.
	controllers := []string{path.Dir(dir)}
	if names, err := g.m.names(path.Dir(dir)); err != nil {
		return err
	} else if strings.Contains(dir, "/nvme-subsystem/") {
		controllers = nil
		for _, name := range names {
			if isNumbered(name, "nvme") {
				controllers = append(controllers, path.Dir(dir)+"/"+name)
			}
		}
	}
	if len(controllers) == 0 {
		return fmt.Errorf("%s: no controller of the namespace", path.Dir(dir))
	}
	for _, c := range controllers {
		transport, ok, err := g.m.text(c, "transport")
		if err != nil {
			return err
		}
		switch {
		case ok && transport != "pcie" && transport != "loop":
			g.f.Transport = "nvme-" + clean(transport)
		case !ok && !strings.Contains(dir, "/pci"):
			return fmt.Errorf("%s/transport: %w", c, fs.ErrNotExist)
		}
	}
	return nil
}

func isNumbered(s, prefix string) bool {
	n, ok := strings.CutPrefix(s, prefix)
	return ok && n != "" && strings.Trim(n, "0123456789") == ""
}

// keys asks for reservation keys where the disk can have some: SCSI that is
// neither libata's nor USB, and NVMe over fabrics.
func (g *gatherer) keys() error {
	dir := g.f.Target.DiskDir
	can := strings.HasPrefix(g.f.Transport, "nvme-")
	scsi, local := false, false
	for part := range strings.SplitSeq(dir, "/") {
		scsi = scsi || strings.HasPrefix(part, "target") && strings.Contains(part, ":")
		local = local || isNumbered(part, "ata") || isNumbered(part, "usb")
	}
	can = can || scsi && !local
	if g.o.ReadKeys == nil {
		if can {
			return errors.New("reservation keys were not read")
		}
		return nil
	}
	if !can && g.f.Asked[AskShared] == nil {
		return nil
	}
	n, err := g.o.ReadKeys()
	if errors.Is(err, ErrNoReservations) {
		return nil
	}
	g.f.ReservationKeys = n
	return err
}

func (g *gatherer) backing() error {
	dir := g.f.Target.DiskDir
	switch g.m.kindOf(dir) {
	case "loop":
		file, ok, err := g.m.text(dir, "loop/backing_file")
		if err != nil || !ok {
			return err // not bound: its size is 0
		}
		g.f.Backing.File = file
		name, deleted := strings.CutSuffix(file, " (deleted)")
		st, err := g.m.Stat(name)
		if deleted && gone(err) {
			return nil
		}
		if err != nil {
			return err
		}
		g.f.Backing.Block = st.block()
		g.f.Backing.Disks, err = Disks(g.m, name)
		return err
	default:
		if isNumbered(g.f.Target.Disk, "nbd") {
			_, connected, err := g.m.text(dir, "pid")
			g.f.Backing.Unconnected = !connected && err == nil
			return err
		}
	}
	return nil
}

// Notes are sentences for the plan: what is lost, and what a loop device is.
func (f Facts) Notes() []string {
	var notes []string
	if f.Backing.File != "" && !f.Backing.Block {
		on := ""
		if len(f.Backing.Disks) > 0 {
			on = ", which lies on " + strings.Join(f.Backing.Disks, ", ")
		}
		notes = append(notes, fmt.Sprintf("%s is the file %s%s: it is the file that is overwritten", f.Target.Disk, clean(f.Backing.File), on))
	}
	for _, s := range f.Signatures {
		notes = append(notes, "lost when overwritten: "+s.String())
	}
	return notes
}

// Consent is what the user allowed by name.
type Consent struct {
	Removable bool // --removable
	Shared    bool // --shared
	// Serial: CheckSerial was content with what the user typed.
	Serial bool
}

// A Refusal is one reason not to run.
type Refusal struct {
	Code string `json:"code"` // stable, kebab-case
	What string `json:"what"` // what was found
	Why  string `json:"why"`  // why that stands against the run
	Hint string `json:"hint,omitempty"`
}

func (r Refusal) Error() string { return r.What + ": " + r.Why }

// Decide says what stands against a run: nothing where the list is empty. A run
// that overwrites a region and restores it is verify.ModeDestroy here.
func Decide(f Facts, mode verify.Mode, c Consent) []Refusal {
	var out []Refusal
	add := func(code, what, why, hint string) {
		out = append(out, Refusal{Code: code, What: what, Why: why, Hint: hint})
	}
	name, disk := f.Target.Name, f.Target.Disk
	for _, w := range whether {
		err, asked := f.Asked[w.q]
		// Without a size, or inside a stack, reading proves nothing either.
		if asked && err == nil || mode != verify.ModeDestroy && w.q != AskSize && w.q != AskMembers {
			continue
		}
		if !asked {
			err = errors.New("not asked")
		}
		why := fmt.Sprintf("could not tell whether %s: %v", w.what, err)
		if w.q == AskSize || w.q == AskBacking {
			why = fmt.Sprintf("could not tell %s: %v", w.what, err)
		}
		hint := ""
		if errors.Is(err, fs.ErrPermission) {
			hint = "run as root, with all capabilities"
		}
		add("unknown-"+string(w.q), name, why, hint)
	}
	if err, asked := f.Asked[AskSize]; asked && err == nil && f.Sectors == 0 {
		add("no-media", name+" has size 0", "there is no medium, or nothing is attached", "")
	}
	if f.Backing.Unconnected {
		add("not-connected", name+" has no server", "an nbd device without connection answers nothing", "connect it first")
	}
	if f.Kind != "" {
		add("stacked", fmt.Sprintf("%s is made of other devices (%s)", disk, f.Kind),
			"what reaches its disks is not what is sent to it, so no size can be proved", members(f.Members, mode))
	}
	if mode == verify.ModeReadOnly {
		return out
	}
	if f.ReadOnly {
		add("read-only", name+" is read-only", "it cannot be written", "")
	}
	if mode != verify.ModeDestroy {
		return out
	}
	if len(f.Carries) > 0 {
		add("system-disk", fmt.Sprintf("%s carries %s", disk, list(f.Carries)), "the running system is never overwritten", "start from another system, or test read-only")
	}
	if len(f.Mounts) > 0 {
		var at []string
		for _, mnt := range f.Mounts {
			s := fmt.Sprintf("%s on %s", mnt.Layer, clean(mnt.Point))
			if mnt.Namespace != "" {
				s += " (mount namespace of process " + mnt.Namespace + ")"
			}
			at = append(at, s)
		}
		add("mounted", "mounted: "+list(at), "a mounted file system is destroyed by writes behind it", "unmount it, or use --file or --read-only")
	}
	if len(f.Swaps) > 0 {
		add("swap", "swapped to: "+list(f.Swaps), "memory of running programs lies on it", "swapoff it first")
	}
	if f.Resume != "" {
		add("resume-device", f.Resume+" is where the system resumes from", "an image of a hibernated system may lie on it", "set another device in /sys/power/resume")
	}
	var held, paths []string
	for _, l := range f.Layers {
		what := fmt.Sprintf("%s holds %s", strings.TrimSpace(l.Name+" "+l.Detail), l.Below)
		switch {
		case l.Below == "" || l.Kind == "partition":
		case l.Multipath:
			paths = append(paths, what)
		default:
			held = append(held, what)
		}
	}
	if len(paths) > 0 {
		add("multipath-path", list(paths), "the disk is a path of a multipath map, which sends commands on it at any time", "flush the map (multipath -f) and keep multipathd from making it again")
	}
	if len(held) > 0 {
		add("holder", list(held), "another device is made of it", "take that device apart first")
	}
	if len(f.Joined) > 0 {
		add("joined", list(f.Joined), "the kernel uses it", "unmount or stop that first")
	}
	var member, data []string
	for _, s := range f.Signatures {
		if s.Class == ClassMember {
			member = append(member, s.String())
		} else {
			data = append(data, s.String())
		}
	}
	if len(member) > 0 {
		add("member", "part of something larger: "+list(member), "overwriting it harms what other disks hold too", "remove it there first, then its signature (wipefs)")
	}
	if len(data) > 0 && !c.Serial {
		add("signature", "data found: "+list(data), "it will be lost", "give the disk's serial number with --destroy if that is meant")
	}
	if f.Zoned != "none" && f.Zoned != "" { // host-managed, host-aware, and kinds to come
		add("zoned", fmt.Sprintf("%s is a zoned disk (%s)", disk, clean(f.Zoned)), "writes must follow its zones, which this test does not", "")
	}
	if f.Removable && !c.Removable {
		add("removable", disk+" is removable", "a stick with somebody's data looks just like one to test", "give --removable if it is meant")
	}
	if f.Transport != "" && !c.Shared {
		add("shared-lun", disk+" is reached over "+f.Transport, "other hosts may be using it, which cannot be seen from here", "give --shared if no other host uses it")
	}
	if f.ReservationKeys > 0 {
		add("reservation-keys", fmt.Sprintf("%s has %d reservation keys registered", disk, f.ReservationKeys), "a host or a cluster uses it", "take it out of the cluster, then clear the keys (sg_persist)")
	}
	if len(f.Exports) > 0 {
		add("exported", "exported: "+list(f.Exports), "other hosts may be using it", "remove it from that target first")
	}
	var guests, others []string
	for _, o := range f.Openers {
		who := fmt.Sprintf("%s has %s open", o, o.Layer)
		if o.Guest {
			guests = append(guests, who)
		} else {
			others = append(others, who)
		}
	}
	if len(guests) > 0 {
		add("guest-disk", list(guests), "a virtual machine uses it", "take it from the guest first")
	}
	if len(others) > 0 {
		add("open-by-others", list(others), "another program uses it", "end it, or wait until it has finished")
	}
	if f.Backing.Block {
		add("loop-on-device", fmt.Sprintf("%s is %s by another name", disk, clean(f.Backing.File)), "what is known of one is not known of the other", "test that device itself")
	}
	if f.OnBattery {
		add("on-battery", "this machine runs on battery", "it may go out in the middle, with data not restored", "connect it to the mains")
	}
	return out
}

func members(names []string, mode verify.Mode) string {
	if len(names) == 0 {
		return "test the disks it is made of"
	}
	if mode == verify.ModeFile {
		return "choose a file system that lies on a disk directly, or test the disks read-only: " + list(names)
	}
	return "test the disks it is made of: " + list(names)
}

// list joins names, some of many.
func list(names []string) string {
	const most = 8
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// Recheck gathers the facts again, under the exclusive claim on the device,
// and decides on them. It adds a refusal "changed" where the target is no
// longer what before describes. fd is the claimed file; negative where there is
// none.
func Recheck(ctx context.Context, m Machine, before Facts, fd int, o Gathering, mode verify.Mode, c Consent) (Facts, []Refusal) {
	was := before.Target
	var changed []string
	now, err := Resolve(m, was.Arg)
	if err != nil {
		changed = append(changed, err.Error())
		now = was
	}
	for _, d := range []struct {
		what     string
		was, now any
	}{
		{"device number", was.DevNo, now.DevNo},
		{"sysfs folder", was.SysDir, now.SysDir},
		{"start", was.First, now.First},
		{"size in sectors", was.Sectors, now.Sectors},
		{"diskseq", was.DiskSeq, now.DiskSeq},
	} {
		if d.was != d.now {
			changed = append(changed, fmt.Sprintf("%s was %v and is %v", d.what, d.was, d.now))
		}
	}
	if fd >= 0 {
		if err := was.Same(fd); err != nil {
			changed = append(changed, err.Error())
		}
	}
	f := Gather(ctx, m, now, o)
	if f.Serial != before.Serial {
		changed = append(changed, fmt.Sprintf("serial number was %s and is %s", clean(before.Serial), clean(f.Serial)))
	}
	var out []Refusal
	if len(changed) > 0 {
		out = append(out, Refusal{Code: "changed", What: list(changed), Why: "the device is not the one that was looked at", Hint: "start again"})
	}
	return f, append(out, Decide(f, mode, c)...)
}
