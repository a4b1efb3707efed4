package enforce

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Openers says which processes hold block devices or partitions of them open,
// as "comm (pid)" by device. Only root sees those of others. A virtual machine
// monitor among them means that the disk is a guest's: the guest builds its own
// requests, and this host's value limits what reaches the disk all the same.
func Openers(devices []string) map[string][]string {
	of := map[uint64]string{}
	for _, device := range devices {
		for _, p := range append([]string{"/sys/block/" + device + "/dev"}, partitions(device)...) {
			b, err := os.ReadFile(p)
			if err != nil {
				continue
			}
			var major, minor uint32
			if _, err := fmt.Sscanf(string(b), "%d:%d", &major, &minor); err == nil {
				of[unix.Mkdev(major, minor)] = device
			}
		}
	}
	out := map[string][]string{}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		target, err := os.Readlink(fd)
		if err != nil || !strings.HasPrefix(target, "/dev/") {
			continue // most are files, sockets and pipes
		}
		var st unix.Stat_t
		if unix.Stat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK || of[st.Rdev] == "" {
			continue
		}
		device := of[st.Rdev]
		pid := strings.Split(fd, "/")[2]
		comm, _ := os.ReadFile("/proc/" + pid + "/comm")
		who := strings.TrimSpace(string(comm)) + " (" + pid + ")"
		if !slices.Contains(out[device], who) {
			out[device] = append(out[device], who)
		}
	}
	for _, who := range out {
		slices.Sort(who)
	}
	return out
}

func partitions(device string) []string {
	files, _ := filepath.Glob("/sys/block/" + device + "/" + device + "*/dev")
	return files
}

// guestMonitors are programs that give a disk to a virtual machine.
var guestMonitors = []string{"qemu", "kvm", "cloud-hyperviso", "firecracker", "crosvm", "xl", "vhost"}

// GuestUses picks the openers that run virtual machines.
func GuestUses(openers []string) []string {
	return slices.DeleteFunc(slices.Clone(openers), func(o string) bool {
		return !slices.ContainsFunc(guestMonitors, func(g string) bool { return strings.HasPrefix(o, g) })
	})
}
