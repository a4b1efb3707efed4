package probe

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

// ErrNoDevice marks a name that no block device of the machine has.
var ErrNoDevice = errors.New("no such block device")

// ResolveName returns the sysfs name of the whole disk that dev means: a sysfs
// name, a /dev path, a link below /dev (by-id) or a partition, which is taken
// as its disk. It reads only sys and dev of the tree.
func ResolveName(sys fs.FS, dev string) (string, error) {
	name := dev
	if strings.Contains(dev, "/") {
		p := strings.TrimPrefix(path.Clean(dev), "/")
		if !fs.ValidPath(p) || !strings.HasPrefix(p, "dev/") {
			return "", fmt.Errorf("%s: %w: give a name (sda), a path below /dev, or a link there", dev, ErrNoDevice)
		}
		if real, err := resolve(sys, p); err == nil && strings.HasPrefix(real, "dev/") {
			p = real
		}
		// /dev/cciss/c0d0 is sys/block/cciss!c0d0.
		name = strings.ReplaceAll(strings.TrimPrefix(p, "dev/"), "/", "!")
	}
	if !fs.ValidPath(name) || strings.Contains(name, "/") || name == "." {
		return "", fmt.Errorf("%s: %w", dev, ErrNoDevice)
	}
	if exists(sys, "sys/block/"+name) {
		return name, nil
	}
	if p, err := resolve(sys, "sys/class/block/"+name); err == nil {
		if disk := path.Base(path.Dir(p)); exists(sys, "sys/block/"+disk) {
			return disk, nil
		}
	}
	// Without class/block a partition is still a folder of its disk.
	if disk := strings.TrimRight(name, "0123456789"); disk != name {
		for _, d := range []string{disk, strings.TrimSuffix(disk, "p")} {
			if p, err := resolve(sys, "sys/block/"+d); d != "" && err == nil && exists(sys, p+"/"+name) {
				return d, nil
			}
		}
	}
	return "", fmt.Errorf("%s: %w", dev, ErrNoDevice)
}

func exists(sys fs.FS, name string) bool {
	p, err := resolve(sys, name)
	if err != nil {
		return false
	}
	d, err := openDir(sys, p)
	if err != nil {
		return false
	}
	d.close()
	return true
}
