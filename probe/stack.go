package probe

import (
	"context"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"
)

// Partition is a part of a device, and what is made of it.
type Partition struct {
	Name    string
	Holders []string
}

// NVMePath is one way to a namespace with native multipath: the hidden disk
// nvmeXcYnZ below a controller (drivers/nvme/host/multipath.c). "" where sysfs
// does not say.
type NVMePath struct {
	Name       string // nvme1c2n1
	Controller string // nvme2
	State      string // of the controller: live, connecting, ...
	Transport  string // of the controller: pcie, tcp, rdma, fc, loop
	ANAState   string // optimized, non-optimized, inaccessible, ...
}

// Target is the far end of a network transport, as the transport class names it.
type Target struct {
	Name     string // iSCSI target name, port name of an FC target port, NVMe subsystem
	Portal   string // iSCSI ADDRESS:PORT, NVMe controller address
	HostPort string // port name of this machine's FC port
	Source   string // folder it was read in
}

// Disagreement is a fact of which two sources give different values.
type Disagreement struct {
	What   string   // identity.ata.model, ...
	Values []Source // the one that is used first
}

// Source is a value and where it stands.
type Source struct {
	Value, Source string
}

func (d *Device) disagree(what string, values ...Source) {
	d.Disagreements = append(d.Disagreements, Disagreement{What: what, Values: values})
}

// Lookup returns the device of a name, also a partition's disk (via is then
// the partition), among the devices asked for and those read beside them.
func (inv *Inventory) Lookup(name string) (d *Device, via string, ok bool) {
	for _, list := range [][]*Device{inv.Devices, inv.Peers} {
		for _, d := range list {
			if d.Name == name {
				return d, "", true
			}
			for _, p := range d.Partitions {
				if p.Name == name {
					return d, name, true
				}
			}
		}
	}
	return nil, "", false
}

// readPartitions lists the partitions: folders of the disk's that hold a file
// partition (block/partitions/core.c, add_partition). Their names start with
// the disk's, but so do those of an MMC card's boot areas.
func (d *Device) readPartitions(block dir) {
	names, err := block.list(".")
	if err != nil {
		return
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasPrefix(n, d.Name) || n == d.Name })
	slices.SortFunc(names, compareNames)
	for _, n := range names {
		if _, err := block.readFile(n + "/partition"); err == nil {
			d.Partitions = append(d.Partitions, Partition{Name: n, Holders: sortedNames(block, n+"/holders")})
		}
	}
}

// MDMember is a member of an md array.
type MDMember struct {
	Name string // of the disk or partition: sda1
	// State is in_sync, faulty, spare, write_mostly, ... by commas
	// (Documentation/admin-guide/md.rst, md/dev-XXX/state).
	State Value[string]
}

// readMDMembers lists the members of an array and their states.
func (d *Device) readMDMembers(block dir) {
	names, err := block.list("md")
	if err != nil {
		if stateOf(err) == Unreadable {
			d.note("md", Unreadable, err.Error(), d.SysPath+"/md")
		}
		return
	}
	slices.SortFunc(names, compareNames)
	d.MDMembers = []MDMember{}
	for _, name := range names {
		member, ok := strings.CutPrefix(name, "dev-")
		if !ok || len(d.MDMembers) >= maxMembers {
			continue
		}
		file := "md/" + name + "/state"
		source := d.SysPath + "/" + file
		m := MDMember{Name: member}
		if b, err := block.readFile(file); err != nil {
			m.State = failed[string](err, source)
		} else {
			m.State = known(strings.TrimSpace(string(b)), source)
		}
		d.MDMembers = append(d.MDMembers, m)
	}
}

var (
	reNVMeHead = regexp.MustCompile(`^nvme\d+n(\d+)$`)
	reNVMePath = regexp.MustCompile(`^nvme\d+c\d+n(\d+)$`)
	reSession  = regexp.MustCompile(`^session\d+$`)
	reConn     = regexp.MustCompile(`^connection\d+:\d+$`)
	reRport    = regexp.MustCompile(`^rport-\d+:\d+-\d+$`)
)

// nvmePaths finds the paths of a multipath head, which hangs on its subsystem,
// below the controllers that the subsystem links to.
func (r *reader) nvmePaths(d *Device, below dir) {
	head := reNVMeHead.FindStringSubmatch(d.Name)
	names, err := below.list(".")
	if head == nil || err != nil {
		return
	}
	slices.SortFunc(names, compareNames)
	for _, ctrl := range names {
		if !reNVMeCtrl.MatchString(ctrl) {
			continue
		}
		p, err := resolve(r.fsys, path.Join(d.devPath, ctrl))
		if err != nil {
			continue
		}
		at, err := openDir(r.fsys, p)
		if err != nil {
			continue
		}
		disks, err := at.list(".")
		for _, n := range disks {
			m := reNVMePath.FindStringSubmatch(n)
			if err != nil || m == nil || m[1] != head[1] { // another namespace
				continue
			}
			d.Paths = append(d.Paths, NVMePath{Name: n, Controller: ctrl, State: text(at, "state"), Transport: text(at, "transport"), ANAState: text(at, n+"/ana_state")})
		}
		at.close()
	}
}

// text reads an attribute that may be missing.
func text(at dir, name string) string {
	b, err := at.readFile(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// readTarget reads where a LUN over iSCSI or FC lives: the session or the
// remote port among the folders above it (drivers/scsi/scsi_transport_iscsi.c:
// targetname, persistent_address, persistent_port; scsi_transport_fc.c:
// port_name of fc_remote_ports and fc_host).
func (r *reader) readTarget(d *Device) {
	for p := d.devPath; p != "." && p != "/"; p = path.Dir(p) {
		name := path.Base(p)
		read := func(file string) string { return text(r.root, path.Join(p, file)) }
		switch {
		case reHost.MatchString(name):
			return
		case reSession.MatchString(name):
			class := path.Join("iscsi_session", name)
			d.Target = &Target{Name: read(class + "/targetname"), Source: path.Join(p, class)}
			conns, _ := r.root.list(p)
			slices.Sort(conns)
			for _, c := range conns {
				if !reConn.MatchString(c) {
					continue
				}
				at := c + "/iscsi_connection/" + c
				if a := read(at + "/persistent_address"); a != "" {
					if strings.Contains(a, ":") {
						a = "[" + a + "]"
					}
					d.Target.Portal = a + ":" + read(at+"/persistent_port")
					break
				}
			}
			return
		case reRport.MatchString(name):
			class := path.Join("fc_remote_ports", name)
			d.Target = &Target{Name: read(class + "/port_name"), Source: path.Join(p, class)}
			host := path.Dir(p)
			d.Target.HostPort = text(r.root, path.Join(host, "fc_host", path.Base(host), "port_name"))
			return
		}
	}
}

// volumeDrivers are RAID cards, by how a volume shows on their SCSI devices.
// level is the file below the SCSI device that tells a volume and its level;
// channel is the first (or only) SCSI channel of volumes.
var volumeDrivers = map[string]struct {
	level   string
	channel int
	only    bool // the channel alone, none above it
}{
	"hpsa":         {level: "raid_level", channel: -1},                         // drivers/scsi/hpsa.c, raid_level_show
	"smartpqi":     {level: "raid_level", channel: -1},                         // drivers/scsi/smartpqi/smartpqi_init.c
	"aacraid":      {level: "level", channel: -1},                              // drivers/scsi/aacraid/linit.c, aac_show_raid_level
	"megaraid_sas": {channel: 2},                                               // megaraid_sas.h, MEGASAS_IS_LOGICAL
	"mpt2sas":      {level: "raid_devices/HCTL/level", channel: 1, only: true}, // mpt3sas_scsih.c, RAID_CHANNEL; raid_class.c
	"mpt3sas":      {level: "raid_devices/HCTL/level", channel: 1, only: true},
	"3w-xxxx":      {channel: 0}, // units only
	"3w-9xxx":      {channel: 0},
	"3w-sas":       {channel: 0},
}

// readVolume tells a volume of a RAID card from a disk that the card passes
// through.
func (d *Device) readVolume(below dir) {
	rule, ok := volumeDrivers[d.Adapter.Driver]
	if !ok || d.Kind != "disk" || d.vendorATA() {
		return
	}
	hctl := d.HCTL()
	if rule.channel >= 0 {
		var host, channel int
		if n, _ := fmt.Sscanf(hctl, "%d:%d:", &host, &channel); n != 2 || channel < rule.channel || rule.only && channel != rule.channel {
			return
		}
	}
	level, source := "", d.devPath
	if rule.level != "" {
		file := strings.ReplaceAll(rule.level, "HCTL", hctl)
		level, source = text(below, file), d.devPath+"/"+file
	}
	if rule.channel < 0 {
		switch level { // what the drivers write for disks behind the card
		case "", "N/A", "JBOD", "Hidden":
			return
		}
	}
	d.Volume = known(level, source)
	d.note("members", NotAsked, "a volume of the RAID card ("+d.Adapter.Driver+"): its limits are the card's, and the disks behind it, their models and firmware, are not seen here; the card's own tool shows them", source)
}

var reTape = regexp.MustCompile(`^st\d+$`)

// readTapes notes the tape drives, which are no block devices.
func (inv *Inventory) readTapes(fsys fs.FS, root dir) {
	names, err := root.list("sys/class/scsi_tape")
	if err != nil {
		return
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !reTape.MatchString(n) })
	slices.SortFunc(names, compareNames)
	for _, n := range names {
		source := "sys/class/scsi_tape/" + n
		what := "a tape drive"
		if p, err := resolve(fsys, source+"/device"); err == nil {
			if s := strings.Join(strings.Fields(text(root, p+"/vendor")+" "+text(root, p+"/model")), " "); s != "" {
				what += " (" + s + ")"
			}
		}
		inv.Notes = append(inv.Notes, Note{What: n, State: NotAsked, Source: source,
			Why: what + ": no block device, so no entry is asked about it; its block size is the application's and the st driver's choice"})
	}
}

// readPeers reads the devices above and below those asked for, and above and
// below these, so that a part of the machine is judged like the whole.
func (inv *Inventory) readPeers(ctx context.Context, r *reader) error {
	have := map[string]bool{}
	for _, d := range inv.Devices {
		have[d.Name] = true
	}
	for queue := slices.Clone(inv.Devices); len(queue) > 0; queue = queue[1:] {
		d := queue[0]
		names := slices.Concat(d.Members, d.Holders)
		for _, p := range d.Partitions {
			names = append(names, p.Holders...)
		}
		for _, p := range d.Paths {
			names = append(names, p.Name)
		}
		for _, n := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			disk, err := ResolveName(r.fsys, n)
			if err != nil || have[disk] {
				continue
			}
			have[disk] = true
			if peer, _ := r.device(disk); peer != nil {
				inv.Peers = append(inv.Peers, peer)
				queue = append(queue, peer)
			}
		}
	}
	slices.SortFunc(inv.Peers, func(a, b *Device) int { return compareNames(a.Name, b.Name) })
	return nil
}
