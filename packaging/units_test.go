package packaging

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/quirkcheck/quirkcheck/internal/vm"
)

// unitReporter runs as a unit of its own where systemd is process 1. The disk
// of the boot is not at its limit; it is unplugged and plugged in again, first
// without a rule, then with one. The drop-in is the one of the unit's comment.
const unitReporter = `#!/bin/sh
find() {
	n=0
	while [ $n -lt 60 ]; do
		for m in /sys/block/sd*/device/model; do
			if [ -e "$m" ]; then
				read -r model <$m
				if [ "$model" = ST380013AS ]; then break 2; fi
			fi
		done
		n=$((n + 1))
		sleep 1
	done
	name=${m#/sys/block/}
	name=${name%%/*}
	scan=quirkcheck-scan@$name.service
	udevadm settle
}
show() {
	echo "$1: $(systemctl show -P Result "$2") $(systemctl show -P ExecMainStatus "$2")"
}
limit() {
	read -r kb </sys/block/$name/queue/max_sectors_kb
	echo "$1: $kb"
}
replug() {
	echo 1 >/sys/block/$name/device/delete
	udevadm settle
	before=$(journalctl -o cat -u 'quirkcheck-scan@*' | grep -c -E 'Finished|Failed to start')
	echo "- - -" >/sys/class/scsi_host/host0/scan
	find
	n=0
	while [ $n -lt 60 ]; do
		now=$(journalctl -o cat -u 'quirkcheck-scan@*' | grep -c -E 'Finished|Failed to start')
		if [ "$now" != "$before" ]; then break; fi
		n=$((n + 1))
		sleep 1
	done
}
{
	find
	systemctl start quirkcheck-enforce.service
	show "enforce at boot" quirkcheck-enforce.service
	echo "scans at boot: $(journalctl -o cat -u 'quirkcheck-scan@*' | grep -c Starting)"
	limit "limit at boot"
	replug
	show "scan of a new disk" $scan
	limit "limit of a new disk"

	mkdir -p /run/systemd/system/quirkcheck-enforce.service.d
	printf '%s\n' '[Service]' ExecStart= 'ExecStart=/usr/bin/quirkcheck enforce --apply' >/run/systemd/system/quirkcheck-enforce.service.d/apply.conf
	systemctl daemon-reload
	systemctl start quirkcheck-enforce.service
	show "enforce with the drop-in" quirkcheck-enforce.service
	limit "limit with the drop-in"

	quirkcheck enforce --apply --persist
	echo "persist: $?"
	replug
	show "scan with the rule" $scan
	limit "limit with the rule"
	journalctl --no-pager -o cat -p alert -t quirkcheck | while read -r line; do echo "alert: $line"; done
	journalctl --no-pager -o cat -u 'quirkcheck-*' | while read -r line; do echo "log: $line"; done
	echo END
} >/dev/ttyS1 2>&1
sleep 3600
`

// TestVMUnits starts the units, as they are, under systemd: that the program
// can do its work within what the units allow is seen nowhere else.
func TestVMUnits(t *testing.T) {
	vm.Require(t)
	g := generators[1]
	for _, p := range append(g.programs, [2]string{"systemctl", "systemd"}) {
		need(t, p[0], p[1])
	}
	root := t.TempDir()
	if err := vm.BuildStatic(t.Context(), "github.com/quirkcheck/quirkcheck/cmd/quirkcheck", filepath.Join(root, "usr/bin/quirkcheck")); err != nil {
		t.Fatal(err)
	}
	for _, u := range units(t) {
		writeFile(t, filepath.Join(root, "usr/lib/systemd/system", filepath.Base(u)), readFile(t, u), 0o644)
	}
	writeFile(t, filepath.Join(root, "usr/lib/udev/rules.d/91-quirkcheck-scan.rules"), readFile(t, "udev/91-quirkcheck-scan.rules"), 0o644)
	writeFile(t, filepath.Join(root, "usr/bin/reporter"), unitReporter, 0o755)
	writeFile(t, filepath.Join(root, "usr/lib/systemd/system/reporter.service"), "[Service]\nType=oneshot\nExecStart=/usr/bin/reporter\n", 0o644)
	g.build = strings.NewReplacer("-m 'base ", "-m 'systemd systemd-initrd systemd-journald dracut-systemd base ",
		"--include $WORK/reporter.sh", "--install grep --include "+root+" / --include $WORK/reporter.sh").Replace(g.build)
	kernel := vm.Stock(t)
	image, _ := g.image(t, kernel, t.TempDir(), "")
	report := bootReport(t, kernel, image, "root=/dev/nonexist rd.systemd.unit=reporter.service")
	for _, want := range []string{
		`enforce at boot: exit-code 6`,
		`scans at boot: 0`,
		`limit at boot: \d{4}`,
		`scan of a new disk: exit-code 1`,
		`limit of a new disk: \d{4}`,
		`enforce with the drop-in: success 0`,
		`limit with the drop-in: 512`,
		`persist: 0`,
		`scan with the rule: success 0`,
		`limit with the rule: 512`,
		`alert: quirkcheck: a transfer limit, or the installed rule, is not what a known quirk needs; .*`,
		`alert: quirkcheck: /dev/sd[ab] has a known quirk that nothing on this machine protects it from; .*`,
	} {
		if !regexp.MustCompile("(?m)^" + want + "$").MatchString(report) {
			t.Errorf("no line %q", want)
		}
	}
	if n := strings.Count(report, "\nalert: "); n != 2 {
		t.Errorf("%d alerts, want 2", n)
	}
	if t.Failed() {
		t.Logf("the guest reports\n%s", report)
	}
}
