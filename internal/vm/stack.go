package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// SizeSectors returns the size of a disk or partition in 512-byte sectors.
func (m *Machine) SizeSectors(ctx context.Context, name string) (int64, error) {
	s, err := m.ReadAttr(ctx, "/sys/class/block/"+name+"/size")
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(s, 10, 64)
}

// DMCreate makes a device mapper device from a table (dmsetup(8)) and returns
// it. It needs dmsetup in Config.Tools, as do the functions below.
func (m *Machine) DMCreate(ctx context.Context, name, table string) (Found, error) {
	if err := m.Modprobe(ctx, "dm_mod"); err != nil {
		return Found{}, err
	}
	c := Cmd{Args: []string{"dmsetup", "create", name}, Stdin: []byte(table)}
	if !m.cfg.Udev {
		c.Env = []string{"DM_DISABLE_UDEV=1"} // it makes the node itself (dmsetup(8))
	}
	r, err := m.RunCmd(ctx, c)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		return Found{}, err
	}
	if m.cfg.Udev {
		if _, err := m.Output(ctx, "dmsetup", "mknodes", name); err != nil {
			return Found{}, err
		}
	}
	names, err := m.Glob(ctx, "/sys/block/dm-*/dm/name")
	if err != nil {
		return Found{}, err
	}
	for _, f := range names {
		if strings.TrimSpace(string(f.Content)) == name {
			dev := strings.Split(f.Path, "/")[3]
			var d Found
			d.Name = dev
			return d, nil
		}
	}
	return Found{}, fmt.Errorf("dmsetup create %s: no such device afterwards", name)
}

// DMRemove takes a device mapper device down.
func (m *Machine) DMRemove(ctx context.Context, name string) error {
	_, err := m.Output(ctx, "dmsetup", "remove", name)
	return err
}

// DMLinear makes a linear map over the whole of a disk.
func (m *Machine) DMLinear(ctx context.Context, name string, d Found) (Found, error) {
	n, err := m.SizeSectors(ctx, d.Name)
	if err != nil {
		return Found{}, err
	}
	return m.DMCreate(ctx, name, fmt.Sprintf("0 %d linear %s 0", n, d.Dev()))
}

// DMStriped makes a striped map over disks of one size.
func (m *Machine) DMStriped(ctx context.Context, name string, chunkSectors int64, ds ...Found) (Found, error) {
	table := ""
	var sectors int64
	for _, d := range ds {
		n, err := m.SizeSectors(ctx, d.Name)
		if err != nil {
			return Found{}, err
		}
		sectors += n / chunkSectors * chunkSectors
		table += " " + d.Dev() + " 0"
	}
	return m.DMCreate(ctx, name, fmt.Sprintf("0 %d striped %d %d%s", sectors, len(ds), chunkSectors, table))
}

// DMCrypt makes an aes-xts map over the whole of a disk, with a key of zeros:
// it is about requests, not secrets.
func (m *Machine) DMCrypt(ctx context.Context, name string, d Found) (Found, error) {
	if err := m.Modprobe(ctx, "dm_crypt"); err != nil {
		return Found{}, err
	}
	// The kernel asks for these itself, but not for all it needs on 6.1; on
	// newer ones they are built in.
	for _, mod := range []string{"xts", "ecb"} {
		if err := m.Modprobe(ctx, mod); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return Found{}, err
		}
	}
	n, err := m.SizeSectors(ctx, d.Name)
	if err != nil {
		return Found{}, err
	}
	return m.DMCreate(ctx, name, fmt.Sprintf("0 %d crypt aes-xts-plain64 %s 0 %s 0", n, strings.Repeat("0", 128), d.Dev()))
}

// DMMultipath makes a request-based multipath map over paths to one disk, all
// in one round-robin group. queueMode is "mq" or "bio".
func (m *Machine) DMMultipath(ctx context.Context, name, queueMode string, paths ...Found) (Found, error) {
	for _, mod := range []string{"dm_multipath", "dm_round_robin"} {
		if err := m.Modprobe(ctx, mod); err != nil {
			return Found{}, err
		}
	}
	n, err := m.SizeSectors(ctx, paths[0].Name)
	if err != nil {
		return Found{}, err
	}
	table := fmt.Sprintf("0 %d multipath 2 queue_mode %s 0 1 1 round-robin 0 %d 1", n, queueMode, len(paths))
	for _, p := range paths {
		table += " " + p.Dev() + " 1"
	}
	return m.DMCreate(ctx, name, table)
}

// MDCreate makes an md array of a RAID level (0, 1, 5, 10) without an initial
// resync. It needs mdadm in Config.Tools.
func (m *Machine) MDCreate(ctx context.Context, name string, level int, ds ...Found) (Found, error) {
	return m.MDCreateWith(ctx, name, strconv.Itoa(level), nil, ds...)
}

// MDCreateWith is MDCreate for any level that mdadm(8) names, with further
// arguments ("--chunk=8M"). A kernel without the level is an fs.ErrNotExist.
func (m *Machine) MDCreateWith(ctx context.Context, name, level string, more []string, ds ...Found) (Found, error) {
	driver := map[string]string{"linear": "linear", "0": "raid0", "1": "raid1", "4": "raid456", "5": "raid456", "6": "raid456", "10": "raid10"}[level]
	if driver == "" {
		return Found{}, fmt.Errorf("create md %s: unknown level %s", name, level)
	}
	if err := m.Modprobe(ctx, driver); err != nil {
		return Found{}, err
	}
	args := []string{"mdadm", "--create", "/dev/" + name, "--run", "--assume-clean", "--level", level, "--raid-devices", strconv.Itoa(len(ds))}
	if level != "0" && level != "linear" {
		args = append(args, "--bitmap=none")
	}
	args = append(args, more...)
	for _, d := range ds {
		args = append(args, d.Dev())
	}
	if _, err := m.Output(ctx, args...); err != nil {
		return Found{}, err
	}
	var d Found
	d.Name = name
	return d, nil
}

// MDStop stops an array and wipes its members' superblocks.
func (m *Machine) MDStop(ctx context.Context, name string, ds ...Found) error {
	if _, err := m.Output(ctx, "mdadm", "--stop", "/dev/"+name); err != nil {
		return err
	}
	args := []string{"mdadm", "--zero-superblock"}
	for _, d := range ds {
		args = append(args, d.Dev())
	}
	_, err := m.Output(ctx, args...)
	return err
}
