package main

import (
	"bufio"
	"cmp"
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/checker/verify"
	"github.com/quirkcheck/quirkcheck/checker/verify/target"
	"github.com/quirkcheck/quirkcheck/probe"
)

type verifyFlags struct {
	destroy, readOnly, quick, thorough bool
	file, fileSize, serial             string
	sizes, region, largest, surface    string
	path                               string
	repeats                            int
	seed                               uint64
	confirm                            time.Duration
	retryTimeouts, raise, plain        bool
	removable, shared                  bool
	dryRun, resume                     bool
	state, format, output              string
}

func (a *app) verifyCommand() *cobra.Command {
	var o verifyFlags
	cmd := &cobra.Command{
		Use:   "verify {TARGET | --file PATH}",
		Short: "Prove a disk by test, and find the transfer size that breaks it",
		Long: `Verify sends single commands of a known size, shows that each reached the device
as one command, and compares what comes back. It says whether the device lied, on
reads or on writes, above which size, and what limit makes it safe.

Three ways, safest first:
  (default)     reads only: large reads against small ones. Works on a disk in use.
                It cannot see faults of writes, and says so.
  --file PATH   writes to a file of its own on a mounted file system. PATH must not
                be there yet; it is removed afterwards.
  --destroy     writes to the disk, and overwrites what is on it. Asks for the
                serial number. Refuses what is mounted, held or shared in any way.

Sizes are in sectors of 512 bytes, or with a unit: 8192, 4M, 512K. SCSI and ATA
disks are tested with SG_IO, exact to the sector and without touching
max_sectors_kb. Where only the block layer leads to the disk (virtio-blk, NBD,
loop) sizes end at max_sectors_kb; --raise lifts it for the run.

A clean run does not clear a known quirk: a disk has passed such a test at every
size and failed in use.
Exit status 7 means that a fault was found, 3 that too little could be tested, 6
that the target was refused or a setting could not be put back.`,
		Example: `  quirkcheck verify sdb                          # reads only, in a few minutes
  quirkcheck verify --destroy sdb --dry-run      # what would be written, and how long it takes
  quirkcheck verify --destroy sdb --serial WD-WCC4N1234567 --output sdb.json
  quirkcheck verify --file /mnt/data/quirkcheck.tmp
  quirkcheck db new --from-verify sdb.json --reference https://... --dir ./my-entries`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case o.file != "" && len(args) > 0:
				return fail(statusUsage, "", "give a device or --file, not both")
			case o.file == "" && len(args) != 1:
				return fail(statusUsage, "quirkcheck scan lists the devices", "want one device, or --file PATH")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return a.runVerify(cmd.Context(), args, o) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.readOnly, "read-only", false, "only read (the default)")
	f.BoolVar(&o.destroy, "destroy", false, "overwrite the device")
	f.StringVar(&o.serial, "serial", "", "with --destroy: the device's serial `number`, typed out; asked for on a terminal")
	f.StringVar(&o.file, "file", "", "test through a new file at `path`")
	f.StringVar(&o.fileSize, "file-size", "512M", "with --file: its `size`")
	f.BoolVar(&o.quick, "quick", false, "8 commands of each size instead of 32")
	f.BoolVar(&o.thorough, "thorough", false, "300 commands of each size")
	f.StringVar(&o.sizes, "sizes", "", "only these sizes: a comma separated `list`")
	f.IntVar(&o.repeats, "repeats", 0, "commands of each size, instead of what the level says")
	f.StringVar(&o.largest, "largest", "", "no command above this `size`")
	f.StringVar(&o.path, "path", "", "how commands go: `command` (pass-through) or block (as a file system's do, up to max_sectors_kb); default: the first where it can be had")
	f.StringVar(&o.region, "region", "", "with --destroy: how much of the disk to use, a `size` (default 256M)")
	f.StringVar(&o.surface, "surface", "", "instead of a sweep, write and read everything once in commands of this `size`")
	f.DurationVar(&o.confirm, "confirm-time", time.Minute, "how long the limit found is tried under mixed load; --quick takes as long as it takes")
	f.BoolVar(&o.plain, "plain", false, "only aligned commands of contiguous memory, one at a time: quicker, and blind to what takes more")
	f.BoolVar(&o.retryTimeouts, "retry-timeouts", false, "send a size that timed out again, and go on after two resets")
	f.BoolVar(&o.raise, "raise", false, "raise max_sectors_kb to what the hardware allows for the run; journaled, and put back")
	f.BoolVar(&o.removable, "removable", false, "with --destroy: also a removable device")
	f.BoolVar(&o.shared, "shared", false, "with --destroy: also a LUN that other hosts can reach, over FC, iSCSI or a fabric")
	f.BoolVar(&o.dryRun, "dry-run", false, "print the plan and send nothing")
	f.BoolVar(&o.resume, "resume", false, "go on with the run of this device that was interrupted")
	f.Uint64Var(&o.seed, "seed", 0, "seed of the places, from a report; 0 takes a new one")
	f.StringVar(&o.state, "state", defaultState, "journal `file`; runs to resume lie beside it")
	f.StringVar(&o.output, "output", "", "also write the JSON report to `file`")
	f.StringVar(&o.format, "format", "table", "output `format`: table, json, bug-report")
	completeDevices(cmd)
	cmd.AddCommand(a.verifyCompareCommand())
	return cmd
}

// parseSize reads a size in sectors, or in bytes with a unit.
func parseSize(flag, s string) (uint64, error) {
	num, mult := s, uint64(1)
	if s != "" {
		if i := strings.IndexByte("KMGT", s[len(s)-1]&^0x20); i >= 0 && s[len(s)-1] >= 'A' {
			num, mult = s[:len(s)-1], 2<<(10*i)
		}
	}
	n, err := strconv.ParseUint(num, 10, 63)
	if err != nil || n == 0 || n > 1<<63/mult {
		return 0, fail(statusUsage, "", "--%s %q: want sectors, or a number with K, M, G or T", flag, s)
	}
	return n * mult, nil
}

// verifyOptions makes the engine's options of the flags.
func (o verifyFlags) options() (v verify.Options, err error) {
	modes := 0
	for _, on := range []bool{o.destroy, o.file != "", o.readOnly} {
		if on {
			modes++
		}
	}
	v = verify.Options{Mode: verify.ModeReadOnly, Level: verify.Default, Repeats: o.repeats, RetryTimeouts: o.retryTimeouts, ConfirmTime: o.confirm, Seed: o.seed, Path: verify.Path(o.path), PlainOnly: o.plain}
	switch {
	case modes > 1:
		return v, fail(statusUsage, "", "give one of --read-only, --file and --destroy")
	case o.quick && o.thorough:
		return v, fail(statusUsage, "", "give --quick or --thorough, not both")
	case o.repeats < 0 || o.repeats > 100_000:
		return v, fail(statusUsage, "", "--repeats %d: want 1 to 100000", o.repeats)
	case !slices.Contains([]string{"table", "json", "bug-report"}, o.format):
		return v, fail(statusUsage, "", "format %q: want table, json or bug-report", o.format)
	case !slices.Contains([]string{"", "command", "block"}, o.path):
		return v, fail(statusUsage, "", "path %q: want command or block", o.path)
	case o.path == "command" && o.file != "":
		return v, fail(statusUsage, "", "a file is reached through the block layer only")
	case o.serial != "" && !o.destroy:
		return v, fail(statusUsage, "", "--serial goes with --destroy")
	case o.raise && !o.destroy:
		return v, fail(statusUsage, "", "--raise needs the disk for itself, so it goes with --destroy")
	case o.surface != "" && (o.region != "" || o.sizes != ""):
		return v, fail(statusUsage, "", "--surface goes over everything: leave --region and --sizes out")
	}
	switch {
	case o.destroy:
		v.Mode = verify.ModeDestroy
	case o.file != "":
		v.Mode = verify.ModeFile
	}
	switch {
	case o.quick:
		v.Level, v.ConfirmTime = verify.Quick, 0
	case o.thorough:
		v.Level = verify.Thorough
	}
	if o.sizes != "" {
		for _, s := range strings.Split(o.sizes, ",") {
			n, err := parseSize("sizes", strings.TrimSpace(s))
			if err != nil {
				return v, err
			}
			v.Sizes = append(v.Sizes, int(min(n, 1<<24)))
		}
	}
	for _, f := range []struct {
		name, text string
		to         func(uint64)
	}{
		{"largest", o.largest, func(n uint64) { v.LargestSectors = int(min(n, 1<<24)) }},
		{"region", o.region, func(n uint64) { v.RegionSectors = n }},
		{"surface", o.surface, func(n uint64) { v.Surface = int(min(n, 1<<17)) }},
	} {
		if f.text == "" {
			continue
		}
		n, err := parseSize(f.name, f.text)
		if err != nil {
			return v, err
		}
		f.to(n)
	}
	if v.Session, err = random(); err == nil && v.Seed == 0 {
		v.Seed, err = random()
	}
	return v, err
}

// random is a seed: not 0, and small enough for the numbers of JSON readers.
func random() (uint64, error) {
	var b [8]byte
	if _, err := crand.Read(b[:]); err != nil {
		return 0, fail(statusFailed, "", "%w", err)
	}
	return binary.LittleEndian.Uint64(b[:])>>12 | 1, nil
}

// opened is a target ready to be tested.
type opened struct {
	disk    *target.Disk
	target  target.Target // of a file, what it lies on
	facts   target.Facts
	refused []target.Refusal
	file    *target.File
	close   []func() error
}

func (t *opened) Close() (err error) {
	for _, f := range slices.Backward(t.close) {
		err = errors.Join(err, f())
	}
	t.close = nil
	return err
}

func (a *app) runVerify(ctx context.Context, args []string, o verifyFlags) (err error) {
	opts, err := o.options()
	if err != nil {
		return err
	}
	opts.Now = a.now
	t := &opened{}
	defer func() {
		if cerr := t.Close(); cerr != nil && err == nil {
			err = fail(statusFailed, "", "%w", cerr)
		}
	}()
	m := target.Live()
	if o.file != "" {
		err = a.openFile(ctx, m, t, o)
	} else {
		err = a.openDisk(ctx, m, t, args[0], opts.Mode, o)
	}
	if err != nil {
		return err
	}
	if opts.Target, err = a.identity(ctx, t.target); err != nil {
		return err
	}
	opts.Target.Name = cmp.Or(o.file, t.target.Node)
	opts.Target.Sectors, opts.Target.FirstSector = t.disk.Info().Sectors, t.disk.Info().First
	if opts.Surface > 0 {
		info, reach := t.disk.Info(), max(t.disk.Reach(verify.PathBlock, verify.Contiguous).Sectors, t.disk.Reach(verify.PathCommand, verify.Contiguous).Sectors)
		if opts.Surface%info.LogicalBlock != 0 || opts.Surface > reach {
			return fail(statusUsage, "--raise lifts max_sectors_kb where that is the bound", "--surface %d: want a multiple of %d sectors, up to %d", opts.Surface, info.LogicalBlock, reach)
		}
	}
	if o.dryRun {
		return a.printPlan(verify.MakePlan(t.disk, opts), t, opts, o)
	}
	restore := func() error { return nil }
	if opts.Mode != verify.ModeReadOnly || o.raise {
		if restore, err = a.verifyJournal(ctx, t, o); err != nil {
			return err
		}
	}
	resume, err := openResume(o, opts, t.facts.Serial)
	if err != nil {
		return errors.Join(err, restore())
	}
	defer resume.close()
	opts.Prior, opts.Record = resume.prior, resume.record
	if resume.seed != 0 && o.seed == 0 {
		opts.Seed = resume.seed
	}
	step, stop := a.verifyProgress()
	opts.Progress = step
	report, runErr := verify.Run(ctx, t.disk, opts)
	stop()
	report.Tool = "quirkcheck " + version()
	if t.file != nil {
		if err := t.file.Unmoved(); err != nil {
			report.Notes = append(report.Notes, "the file was moved while it was tested: "+err.Error())
		}
	}
	restoreErr := restore()
	if report.Stopped == "" {
		resume.done()
	}
	if o.output != "" {
		if err := writeReportFile(o.output, report); err != nil {
			return errors.Join(fail(statusFailed, "the report follows on standard output", "%w", err), a.printVerify(report, o), restoreErr)
		}
	}
	if err := a.printVerify(report, o); err != nil {
		return errors.Join(err, restoreErr)
	}
	switch {
	case restoreErr != nil:
		return fail(statusRefused, "quirkcheck history shows what was set, quirkcheck revert takes it back", "%w", restoreErr)
	case ctx.Err() != nil:
		return ctx.Err()
	case runErr != nil:
		return fail(statusFailed, "", "verify %s: %w", opts.Target.Name, runErr)
	case report.Verdict == verify.VerdictFaulty || report.Verdict == verify.VerdictBroken:
		return silent(statusFault)
	case report.Verdict == verify.VerdictInconclusive:
		return silent(statusUndecided)
	}
	return nil
}

func (a *app) openDisk(ctx context.Context, m target.Machine, t *opened, arg string, mode verify.Mode, o verifyFlags) error {
	tg, err := target.Resolve(m, arg)
	if err != nil {
		return fail(statusUsage, "quirkcheck scan lists the devices of this machine", "%w", err)
	}
	t.target = tg
	write := mode.Writes() && !o.dryRun
	// Read-only first: closing what was open for writing makes udev look at
	// the disk again, and it may yet be refused.
	node, err := os.Open(tg.Node)
	if err != nil {
		return fail(statusFailed, "verify needs root", "%w", err)
	}
	defer func() {
		if node != nil {
			node.Close()
		}
	}()
	if err := tg.Same(int(node.Fd())); err != nil {
		return fail(statusFailed, "run this again", "%w", err)
	}
	g := target.Gathering{StateDir: filepath.Dir(o.state), ReadKeys: target.ReadKeys(int(node.Fd()))}
	t.facts = target.Gather(ctx, m, tg, g)
	consent := target.Consent{Removable: o.removable, Shared: o.shared, Serial: o.serial != "" && target.CheckSerial(o.serial, t.facts.Serial) == nil}
	if mode == verify.ModeDestroy && (o.dryRun || o.serial == "") {
		consent.Serial = true // what else stands against it is said before the serial is asked for
	}
	if t.refused = target.Decide(t.facts, mode, consent); len(t.refused) > 0 && !o.dryRun {
		return a.refuse(tg.Node, t.refused)
	}
	if mode == verify.ModeDestroy && !o.dryRun {
		if err := a.askSerial(ctx, tg, t.facts, o.serial); err != nil {
			return err
		}
	}
	if write {
		claimed, err := target.Claim(tg)
		if errors.Is(err, target.ErrClaimed) {
			return fail(statusRefused, "lsblk and fuser -v "+tg.Node+" show what", "%w", err)
		}
		if err != nil {
			return fail(statusFailed, "run this again", "%w", err)
		}
		node.Close()
		node = claimed
		g.ReadKeys = target.ReadKeys(int(node.Fd()))
		facts, refused := target.Recheck(ctx, m, t.facts, int(node.Fd()), g, mode, target.Consent{Removable: o.removable, Shared: o.shared, Serial: true})
		if len(refused) > 0 {
			return a.refuse(tg.Node, refused)
		}
		t.facts = facts
	}
	d, err := target.NewDisk(node, target.DiskOptions{
		Name: tg.Node, SysBlock: "/" + tg.DiskDir, First: tg.First, Sectors: tg.Sectors, PassThrough: passThrough(tg), ReadOnly: !write,
		Shared: !write && !o.dryRun && (len(t.facts.Mounts) > 0 || len(t.facts.Openers) > 0 || len(t.facts.Layers) > 1),
	})
	if err != nil {
		return fail(statusFailed, "", "%w", err)
	}
	t.disk = d
	t.close = append(t.close, node.Close, d.Close)
	node = nil
	return nil
}

// passThrough is the kind of commands that a disk takes, from the driver that
// made it.
func passThrough(t target.Target) target.PassThrough {
	switch {
	case strings.HasPrefix(t.Disk, "sd"):
		return target.SCSIPassThrough
	case strings.HasPrefix(t.Disk, "nvme"):
		return target.NVMePassThrough
	}
	return target.NoPassThrough
}

func (a *app) openFile(ctx context.Context, m target.Machine, t *opened, o verifyFlags) error {
	bytes, err := parseSize("file-size", o.fileSize)
	if err != nil {
		return err
	}
	if o.dryRun {
		return fail(statusUsage, "", "--dry-run with --file: where the file will lie is known when it is there")
	}
	f, err := target.CreateFile(ctx, m, o.file, target.FileOptions{Bytes: bytes * verify.SectorBytes})
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		status := statusFailed
		if errors.Is(err, target.ErrNotInPlace) {
			status = statusRefused
		} else if errors.Is(err, fs.ErrExist) {
			status = statusUsage
		}
		return fail(status, "give a path on a file system that writes in place, ext4 or xfs, on one disk", "%w", err)
	}
	t.file, t.target = f, f.Target
	t.close = append(t.close, f.Close)
	extents, err := f.Pick(4096)
	if err != nil {
		return fail(statusFailed, "take a larger --file-size, or a file system with more free space in one piece", "%w", err)
	}
	var usable []verify.Extent
	for _, e := range extents {
		usable = append(usable, verify.Extent{Sector: e.Offset, Sectors: e.Sectors})
	}
	slices.SortFunc(usable, func(a, b verify.Extent) int { return cmp.Compare(a.Sector, b.Sector) })
	node := os.NewFile(uintptr(f.Fd()), o.file)
	d, err := target.NewDisk(node, target.DiskOptions{
		Name: o.file, SysBlock: "/" + f.Target.DiskDir, Sectors: f.Sectors, Usable: usable, Shared: true,
		Physical: func(sector uint64) (uint64, bool) {
			for _, e := range extents {
				if sector >= e.Offset && sector < e.Offset+e.Sectors {
					return e.Physical + sector - e.Offset, true
				}
			}
			return 0, false
		},
	})
	if err != nil {
		return fail(statusFailed, "", "%w", err)
	}
	t.disk = d
	t.close = append(t.close, d.Close)
	return nil
}

// refuse prints what stands against the run.
func (a *app) refuse(node string, refused []target.Refusal) error {
	for _, r := range refused {
		fmt.Fprintf(a.stderr, "refused [%s]: %s: %s\n", r.Code, clean(r.What), clean(r.Why))
		if r.Hint != "" {
			fmt.Fprintln(a.stderr, "    hint:", clean(r.Hint))
		}
	}
	return fail(statusRefused, "without --destroy, verify only reads and works on disks in use", "%s is not touched", node)
}

// askSerial makes sure that the user means this disk.
func (a *app) askSerial(ctx context.Context, tg target.Target, f target.Facts, typed string) error {
	if typed == "" {
		if !isTerminal(a.stdin) {
			return fail(statusUsage, "give --serial "+f.Serial, "--destroy overwrites %s: its serial number must be typed out", tg.Node)
		}
		for _, n := range f.Notes() {
			fmt.Fprintln(a.stderr, clean(n))
		}
		fmt.Fprintf(a.stderr, "This overwrites %s (%.1f GB). Type its serial number, %s, to go on: ", clean(tg.Node), float64(tg.Sectors)*verify.SectorBytes/1e9, clean(f.Serial))
		line := make(chan string, 1)
		go func() {
			s, _ := bufio.NewReader(a.stdin).ReadString('\n')
			line <- s
		}()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case typed = <-line:
		}
	}
	if err := target.CheckSerial(typed, f.Serial); err != nil {
		return fail(statusRefused, "the serial number is on the label, and lsblk -o NAME,SERIAL shows it", "%w", err)
	}
	return nil
}

// identity is what the report says of the disk.
func (a *app) identity(ctx context.Context, t target.Target) (verify.Target, error) {
	out := verify.Target{Device: t.Disk, Identity: map[string]string{}}
	db, err := a.database(nil)
	if err != nil {
		return out, err
	}
	src, err := a.open("", "")
	if err != nil {
		return out, err
	}
	defer src.close()
	inv, err := probe.Read(ctx, src.sys, probe.Options{Avoid: checker.AvoidFrom(db), Only: []string{t.Disk}, Workers: 1})
	if err != nil || len(inv.Devices) == 0 {
		return out, ctx.Err() // the report goes without
	}
	sub := checker.SubjectOf(inv, inv.Devices[0])
	set := func(key string, known bool, s string) {
		if s = strings.Trim(s, " \x00"); known && s != "" {
			out.Identity[key] = s
		}
	}
	if d := sub.Device; d.Space != "" {
		set(d.Space+"_model", d.Model.Known, d.Model.S)
		set(d.Space+"_firmware", d.Firmware.Known, d.Firmware.S)
	}
	set("scsi_vendor", sub.SCSI.Vendor.Known, sub.SCSI.Vendor.S)
	set("scsi_product", sub.SCSI.Product.Known, sub.SCSI.Product.S)
	set("scsi_revision", sub.SCSI.Revision.Known, sub.SCSI.Revision.S)
	set("path", true, sub.Path)
	out.Adapter, out.Driver = sub.Adapter["pci"], sub.Adapter["driver"]
	if inv.Kernel.Ok() {
		out.Kernel = inv.Kernel.V.String()
	}
	if v, ok := sub.Limits["max_sectors_kb"]; ok {
		out.MaxSectorsKB = int(min(v.Num, 1<<30))
	}
	return out, nil
}

func writeReportFile(name string, r *verify.Report) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(name), ".quirkcheck-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(append(escapeJSON(b), '\n'))
	if err = errors.Join(err, tmp.Chmod(0o644), tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), name)
}
