package packaging

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quirkcheck/quirkcheck/internal/vm"
)

// reporter runs in an initramfs, before a root is looked for. It waits for two
// disks and writes their models and limits to the second serial line. Shell
// builtins only, as far as may be: dracut's image has little else.
const reporter = `
n=0
while [ $n -lt 60 ]; do
	disks=0
	for m in /sys/block/sd*/device/model; do
		if [ -e "$m" ]; then disks=$((disks + 1)); fi
	done
	if [ $disks -ge 2 ]; then break; fi
	n=$((n + 1))
	sleep 1
done
sleep 1
udevadm settle
{
	for d in /sys/block/sd*; do
		read -r model <$d/device/model
		read -r kb <$d/queue/max_sectors_kb
		echo "DISK $model $kb"
	done
	while read -r dev dir rest; do
		case $dir in /root | /sysroot) echo "ROOT $dev $dir" ;; esac
	done </proc/mounts
	echo END
} >/dev/ttyS1
sleep 3600
`

// A generator builds an initramfs with our hook.
type generator struct {
	name     string
	programs [][2]string // and their Debian packages
	// build runs in a namespace where /usr/lib can be written to and
	// /lib/modules/$RELEASE holds the kernel's modules; $SOURCE is this folder,
	// $WORK an empty one, and $WORK/reporter.sh the reporter.
	build  string
	params string
	// counter also boots the image without the rule. Once is enough: that the
	// rule is not in the image is looked at for both.
	counter bool
}

var generators = []generator{{
	name:     "initramfs-tools",
	programs: [][2]string{{"mkinitramfs", "initramfs-tools-core"}, {"lsinitramfs", "initramfs-tools-core"}},
	build: `
		mount -t tmpfs none /boot
		echo CONFIG_RD_GZIP=y >/boot/config-$RELEASE
		cp -r /etc/initramfs-tools $WORK/conf
		mkdir -p $WORK/conf/hooks $WORK/conf/conf.d $WORK/conf/scripts/init-premount
		cp $SOURCE/initramfs-tools/hooks/quirkcheck $WORK/conf/hooks/
		{ printf '%s\n' '#!/bin/sh' 'if [ "$1" = prereqs ]; then exit 0; fi'; cat $WORK/reporter.sh; } >$WORK/conf/scripts/init-premount/reporter
		chmod 755 $WORK/conf/scripts/init-premount/reporter
		printf '%s\n' MODULES=list COMPRESS=gzip COMPRESSLEVEL=1 RESUME=none >$WORK/conf/conf.d/test
		printf '%s\n' virtio_pci virtio_scsi sd_mod >$WORK/conf/modules
		TMPDIR=$WORK mkinitramfs -d $WORK/conf -o $WORK/image $RELEASE
		lsinitramfs $WORK/image >$WORK/list`,
	params:  "root=/dev/nonexist",
	counter: true,
}, {
	name:     "dracut",
	programs: [][2]string{{"dracut", "dracut-core"}, {"lsinitrd", "dracut-core"}},
	build: `
		cp -r $SOURCE/dracut/90quirkcheck /usr/lib/dracut/modules.d/
		dracut --quiet --force --no-hostonly --no-compress --tmpdir $WORK -m 'base udev-rules kernel-modules rootfs-block quirkcheck' \
			--drivers 'virtio_pci virtio_scsi sd_mod' --force-drivers 'virtio_pci virtio_scsi sd_mod' \
			--include $WORK/reporter.sh /usr/lib/dracut/hooks/initqueue/settled/reporter.sh $WORK/image $RELEASE
		lsinitrd $WORK/image | awk '{ print $NF }' >$WORK/list`,
	params: "root=/dev/nonexist rd.retry=120 rd.shell=0",
}}

// image builds an initramfs with a reporter on a machine on which rules is
// /etc/udev/rules.d.
func (g generator) image(t *testing.T, k vm.Kernel, rules, reporter string) (path string, files []string) {
	t.Helper()
	work := t.TempDir()
	source, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(work, "reporter.sh"), reporter, 0o755)
	start := time.Now()
	out, status := inNamespace(t, []string{"RELEASE=" + k.Release, "MODULES_OF=" + k.Modules, "SOURCE=" + source, "WORK=" + work,
		"PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin"}, rules, `
		mkdir $WORK/over
		mount -t tmpfs none $WORK/over
		mkdir $WORK/over/upper $WORK/over/work
		mount -t overlay -o lowerdir=/usr/lib,upperdir=$WORK/over/upper,workdir=$WORK/over/work none /usr/lib
		mkdir -p /lib/modules/$RELEASE
		mount --bind $MODULES_OF /lib/modules/$RELEASE`+g.build)
	if status != 0 {
		t.Fatalf("%s: status %d\n%s", g.name, status, out)
	}
	t.Logf("built in %.0f s", time.Since(start).Seconds())
	return filepath.Join(work, "image"), strings.Fields(readFile(t, filepath.Join(work, "list")))
}

// bootReport boots an image with two disks of different models and returns what the
// reporter wrote. A guest that does not get there is started once more: see
// package vm on emulation.
func bootReport(t *testing.T, k vm.Kernel, image, params string) string {
	t.Helper()
	start := time.Now()
	report, err := bootOnce(t, k, image, params)
	if err != nil {
		t.Logf("starting once more: %v", err)
		report, err = bootOnce(t, k, image, params)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("reported after %.0f s", time.Since(start).Seconds())
	return report
}

func bootOnce(t *testing.T, k vm.Kernel, image, params string) (report string, err error) {
	t.Helper()
	dir := t.TempDir()
	console, serial := filepath.Join(dir, "console"), writeFile(t, filepath.Join(dir, "report"), "", 0o644)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	qemu := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-M", "q35,hpet=off", "-accel", "tcg,thread=multi", "-cpu", "qemu64,+rdrand", "-m", "512", "-smp", "2",
		"-display", "none", "-nodefaults", "-no-user-config", "-nic", "none", "-no-reboot",
		"-kernel", k.Image, "-initrd", image, "-append", "console=ttyS0 panic=-1 quiet tsc=reliable "+params,
		"-serial", "file:"+console, "-serial", "file:"+serial,
		"-device", "virtio-scsi-pci,id=vs",
		"-blockdev", "driver=null-co,node-name=n0,size=67108864,read-zeroes=on",
		"-device", "scsi-hd,bus=vs.0,drive=n0,vendor=ATA,product=ST380013AS,ver=3.20",
		"-blockdev", "driver=null-co,node-name=n1,size=67108864,read-zeroes=on",
		"-device", "scsi-hd,bus=vs.0,drive=n1,vendor=ATA,product=HARMLESS,ver=3.20")
	var stderr strings.Builder
	qemu.Stderr = &stderr
	if err := qemu.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- qemu.Wait() }()
	defer func() {
		cancel()
		if err == nil {
			<-ended
		}
	}()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			b, err := os.ReadFile(serial)
			if err != nil {
				return "", err
			}
			if report, _, ok := strings.Cut(strings.ReplaceAll(string(b), "\r", ""), "END\n"); ok {
				return report, nil
			}
		case err := <-ended:
			tail, _ := os.ReadFile(console)
			tail = tail[max(0, len(tail)-2000):]
			return "", fmt.Errorf("the guest ended without a report: %w\n%s%s", errors.Join(err, ctx.Err()), stderr.String(), tail)
		}
	}
}

// TestVMInitramfs builds an initramfs with the hook and boots it: the disk that
// the rule is about has its limit before a root is mounted, the other has the
// default. The counter-test is an image made where there is no rule.
func TestVMInitramfs(t *testing.T) {
	vm.Require(t)
	rule := realRule(t)
	kernel := vm.Stock(t)
	for _, g := range generators {
		t.Run(g.name, func(t *testing.T) {
			for _, p := range g.programs {
				need(t, p[0], p[1])
			}
			limit := map[bool]map[string]string{}
			for _, with := range []bool{true, false} {
				rules := t.TempDir()
				if with {
					writeFile(t, filepath.Join(rules, filepath.Base(ruleFile)), rule, 0o644)
				}
				image, files := g.image(t, kernel, rules, reporter)
				carried := slices.Contains(files, ruleFile)
				program := slices.ContainsFunc(files, func(f string) bool { return strings.HasSuffix(f, "bin/quirkcheck") })
				if carried != with || program {
					t.Errorf("with a rule %v: the image carries it %v, the program %v", with, carried, program)
				}
				if !with && !g.counter {
					continue
				}
				report := bootReport(t, kernel, image, g.params)
				limit[with] = map[string]string{}
				for line := range strings.Lines(report) {
					switch f := strings.Fields(line); {
					case len(f) == 3 && f[0] == "DISK":
						limit[with][f[1]] = f[2]
					case len(f) > 0 && f[0] == "ROOT":
						t.Errorf("a root was mounted: %s", line)
					}
				}
				t.Logf("with a rule %v: %v", with, limit[with])
			}
			if limit[true]["ST380013AS"] != "512" {
				t.Errorf("with the rule the disk is at %q", limit[true]["ST380013AS"])
			}
			other := limit[true]["HARMLESS"]
			if other == "" || other == "512" {
				t.Errorf("the other disk is at %q", other)
			}
			if g.counter && (limit[false]["HARMLESS"] != other || limit[false]["ST380013AS"] != other) {
				t.Errorf("the default is %s, and without the rule the disks are at %v", other, limit[false])
			}
		})
	}
}
