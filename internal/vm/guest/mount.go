package main

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mountAll mounts what every guest has. Those that a kernel may lack are
// tried and not missed.
func mountAll() error {
	for _, m := range []struct {
		kind, on string
		optional bool
	}{
		{"proc", "/proc", false},
		{"sysfs", "/sys", false},
		{"devtmpfs", "/dev", false},
		{"tmpfs", "/run", false},
		{"tmpfs", "/tmp", false},
		{"devpts", "/dev/pts", true},
		{"tracefs", "/sys/kernel/tracing", true},
		{"debugfs", "/sys/kernel/debug", true},
		{"configfs", "/sys/kernel/config", true},
	} {
		err := os.MkdirAll(m.on, 0o755)
		if err == nil {
			err = unix.Mount(m.kind, m.on, m.kind, 0, "")
		}
		if err != nil && err != unix.EBUSY && !m.optional {
			return fmt.Errorf("mount %s: %w", m.on, err)
		}
	}
	return os.Chmod("/tmp", 0o1777|os.ModeSticky)
}
