// Package emit writes what a report advises as text that other programs read:
// udev rules, module options, kernel parameters, a multipath.conf fragment, an
// Ansible play, a shell script. It writes files nowhere and runs nothing.
//
//	plan := emit.New(report, db, emit.Options{ToolVersion: "1.2.0", Kernel: release})
//	a, err := plan.Emit(emit.KindUdev)
//	os.Stdout.WriteString(a.Text)
//
// What is written names the entry's own model and firmware patterns, so it
// holds for every such disk and on every machine it is copied to, and never the
// device's sdX. It must not hold for more than the entry does: what a consumer
// cannot express (a stack, a firmware order, a name longer than it can see) is
// refused with a reason and not approximated.
//
// # What udev rules can see
//
// A rule line's parent keys (ATTRS, DRIVERS, SUBSYSTEMS, KERNELS) must all hold
// on one and the same parent, so the disk's name and its adapter stand in two
// lines with a GOTO between them. sysfs shows an ATA disk as SCSI: vendor ATA,
// the first 16 characters of the model, the last 4 of the firmware (its first 4
// where those are blank). Where that is not all of the name, a further line
// asks ENV{ID_MODEL} or ENV{ID_REVISION}, which ata_id reads from the drive for
// 60-persistent-storage.rules. Where ata_id did not run that line does not
// match: better no limit than one on other disks whose names begin alike.
//
// udev reads an attribute once per event. A rule of somebody else that first
// compares and then assigns queue/max_sectors_kb in the same event leaves the
// old value in that memory, and a later guard looks at it. quirkcheck's own files
// therefore tell each other what they set in QUIRKCHECK_MAX_SECTORS_KB.
package emit
