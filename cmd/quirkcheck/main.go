// Quirkcheck finds storage devices that silently corrupt data, hang or crawl
// above a certain transfer size, and says what is safe, with its evidence.
//
// Usage:
//
//	quirkcheck scan              every block device of this machine: what is known, what to set
//	quirkcheck scan --log FILE   ties the failures in a kernel log to the devices
//	quirkcheck explain DEV       each bound and each predicate behind it, with value and file
//	quirkcheck recommend         where to put the limit: udev, multipath.conf, kernel parameters, ...
//	quirkcheck audit             what another kernel changes, before the upgrade
//	quirkcheck enforce           lower the limit; --apply, --persist, revert
//	quirkcheck verify DEV        prove a disk by test, and find the size that breaks it
//	quirkcheck decode KIND FILE  what a dump of sg_vpd, hdparm or nvme says
//	quirkcheck capture -o FILE   record what a scan reads, without serial numbers; --input reads it
//	quirkcheck db lint FILE      check a new entry
//
// Exit status, the same in every format:
//
//	0    nothing at or above the threshold (--fail-on, default medium)
//	1    affected devices; audit: a new risk (--inhibit-on); db lint: faults
//	2    wrong usage or configuration
//	3    undecided, and --fail-on-unknown was given; verify: too little could be tested
//	4    the database is unusable
//	5    nothing to examine
//	6    enforcement refused, a value that did not read back as written, or a restore incomplete
//	7    verify met a fault: damaged data, a timeout, an error
//	8    the work as a whole could not be done
//	130  interrupted
//
// Only enforce --apply and verify --destroy, --file and --raise write, and say
// what first. Scan reads sysfs, /proc and the udev database. It needs no privilege, no
// network and no configuration, sends no command to a device and writes
// nothing. A device without a finding has no known quirk; it is never called
// safe.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	status := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}
