package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quirkcheck/quirkcheck/checker"
	"github.com/quirkcheck/quirkcheck/quirks"
)

func (a *app) dbNewCommand() *cobra.Command {
	var fromDevice, fromVerify, reference, sysroot, input, space, model, firmware, vendor, product, revision, effect, dir string
	cmd := &cobra.Command{
		Use:   "new",
		Short: "Start an entry: identity filled in, the rest marked",
		Long: `New writes a draft of an entry with the identity of a device, or the one given
by flags, and CHANGE-ME wherever a person has to say what is true. db lint
reports every mark that is left. From a report of verify (--from-verify) it takes
what was found as well; with --reference, where the report can be read, the
draft is whole.`,
		Example: `  quirkcheck db new --from-device sdb --effect io-timeout --dir ./my-entries
  quirkcheck db new --space ata --model "ACME DISK" --firmware 1.00
  quirkcheck db new --from-verify sdb.json --reference https://example.org/report --dir ./my-entries
  quirkcheck db lint ./my-entries && quirkcheck scan --overlay ./my-entries`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(quirks.Effects(), effect) {
				return fail(statusUsage, "", "effect %q: want one of %s", effect, strings.Join(quirks.Effects(), ", "))
			}
			sub := quirks.Subject{}
			var fault *verified
			switch {
			case fromVerify != "" && (fromDevice != "" || space != ""):
				return fail(statusUsage, "", "give --from-verify, --from-device or --space")
			case reference != "" && fromVerify == "":
				return fail(statusUsage, "", "--reference goes with --from-verify")
			case fromVerify != "":
				r, err := readReport(fromVerify)
				if err != nil {
					return err
				}
				if fault, err = verifiedFault(r, reference); err != nil {
					return fail(statusUsage, "", "%s: %w", fromVerify, err)
				}
				sub = fault.sub
				db, err := a.dbSet(cmd)
				if err != nil {
					return err
				}
				for _, m := range db.Match(&sub) {
					if m.Truth == quirks.True {
						fault.related = append(fault.related, m.Entry.ID)
					}
				}
				if !cmd.Flags().Changed("effect") {
					effect = fault.effect
				}
			case fromDevice != "" && space != "":
				return fail(statusUsage, "", "give --from-device or --space, not both")
			case fromDevice != "":
				db, err := a.dbSet(cmd)
				if err != nil {
					return err
				}
				inv, err := a.read(cmd.Context(), sysroot, input, db, []string{fromDevice})
				if err != nil {
					return err
				}
				if len(inv.Devices) == 0 {
					return fail(statusFailed, "", "%s vanished", fromDevice)
				}
				sub = *checker.SubjectOf(inv, inv.Devices[0])
			case space == "ata" || space == "nvme":
				if model == "" {
					return fail(statusUsage, "", "space %s wants --model", space)
				}
				sub.Device = quirks.Identity{Space: space, Model: quirks.KnownText(model), Firmware: quirks.Text{S: firmware, Known: firmware != ""}}
			case space == "scsi":
				if vendor == "" || product == "" {
					return fail(statusUsage, "", "space scsi wants --vendor and --product")
				}
				sub.SCSI = quirks.Identity{Space: "scsi", Vendor: quirks.KnownText(vendor), Product: quirks.KnownText(product), Revision: quirks.Text{S: revision, Known: revision != ""}}
			default:
				return fail(statusUsage, "quirkcheck db new --help", "want --from-device DEV, or --space ata, scsi or nvme")
			}
			id, text, err := draft(&sub, effect, fault)
			if err != nil {
				return fail(statusUsage, "give the full identity with --space", "%w", err)
			}
			if dir == "" {
				_, err = fmt.Fprint(a.stdout, text)
				return err
			}
			folder, _, _ := strings.Cut(id, "-")
			file := filepath.Join(dir, folder, id+".yaml")
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				return fail(statusFailed, "", "%w", err)
			}
			f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
			if errors.Is(err, fs.ErrExist) {
				return fail(statusUsage, "edit it, or remove it first", "%s is there already", file)
			}
			if err != nil {
				return fail(statusFailed, "", "%w", err)
			}
			_, err = f.WriteString(text)
			if err = errors.Join(err, f.Close()); err != nil {
				return fail(statusFailed, "", "%w", err)
			}
			next := "edit every CHANGE-ME, then "
			if !strings.Contains(text, "CHANGE-ME") {
				next = ""
			}
			_, err = fmt.Fprintf(a.stdout, "%s\nNext: %squirkcheck db lint %s\n", clean(file), next, clean(dir))
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&fromDevice, "from-device", "", "take the identity of `device`")
	f.StringVar(&fromVerify, "from-verify", "", "take identity and fault from the JSON report `file` of verify")
	f.StringVar(&reference, "reference", "", "with --from-verify: `URL` where the report can be read")
	f.StringVar(&sysroot, "sysroot", "", "with --from-device: read the tree in `folder` instead of /")
	inputFlag(cmd, &input)
	f.StringVar(&space, "space", "", "identity `space`: ata, scsi, nvme")
	f.StringVar(&model, "model", "", "ata, nvme: `model`")
	f.StringVar(&firmware, "firmware", "", "ata, nvme: `firmware` revision")
	f.StringVar(&vendor, "vendor", "", "scsi: T10 `vendor` identification")
	f.StringVar(&product, "product", "", "scsi: `product` identification")
	f.StringVar(&revision, "revision", "", "scsi: product `revision` level")
	f.StringVar(&effect, "effect", "io-timeout", "what goes wrong: an `effect` of quirkcheck schema quirk")
	f.StringVar(&dir, "dir", "", "write the file below `folder` instead of printing it")
	return cmd
}

var reNotID = regexp.MustCompile(`[^a-z0-9]+`)

// draft writes an entry about the identity of sub.
func draft(sub *quirks.Subject, effect string, fault *verified) (id, text string, err error) {
	var folder, what, device string
	// In match a device's own stars and brackets are literal, in an example they
	// are what it says.
	q := func(t quirks.Text) string {
		return fmt.Sprintf("%q", strings.Trim(t.S, " \x00"))
	}
	literal := func(s string) string {
		return strings.NewReplacer("*", "[*]", "?", "[?]", "[", "[[]").Replace(s)
	}
	near := ""
	switch d := sub.Device; {
	case d.Space == "ata" || d.Space == "nvme":
		folder, what = d.Space, d.Model.S
		fw := `{any: "CHANGE-ME: why every firmware, or name it"}`
		if d.Firmware.Known {
			fw = q(d.Firmware)
		}
		device = fmt.Sprintf("{space: %s, model: %s, firmware: %s}", d.Space, q(d.Model), fw)
		near = fmt.Sprintf("{space: %s, model: \"CHANGE-ME\", firmware: \"CHANGE-ME\"}", d.Space)
	case sub.SCSI.Vendor.Known && sub.SCSI.Product.Known:
		if strings.TrimSpace(sub.SCSI.Vendor.S) == "ATA" {
			return "", "", errors.New("only the cut SCSI strings of an ATA disk are known; an entry needs the whole model and firmware (hdparm -I)")
		}
		folder, what = "scsi", sub.SCSI.Vendor.S+" "+sub.SCSI.Product.S
		device = fmt.Sprintf("{space: scsi, vendor: %s, product: %s}", q(sub.SCSI.Vendor), q(sub.SCSI.Product))
		if sub.SCSI.Revision.Known {
			device = strings.TrimSuffix(device, "}") + ", revision: " + q(sub.SCSI.Revision) + "}"
		}
		near = "{space: scsi, vendor: \"CHANGE-ME\", product: \"CHANGE-ME\"}"
	default:
		return "", "", errors.New("the device shows no identity")
	}
	slug := strings.Trim(reNotID.ReplaceAllString(strings.ToLower(what), "-"), "-")
	if slug == "" {
		slug = "change-me"
	}
	id = fmt.Sprintf("%s-%s-%s", folder, slug, effect)
	path := ""
	if sub.Path != "" {
		path = ", path: " + sub.Path
	}
	subject := strings.Replace(device, `{any: "CHANGE-ME: why every firmware, or name it"}`, `"CHANGE-ME"`, 1)
	pattern := device
	for _, t := range []quirks.Text{sub.Device.Model, sub.Device.Firmware, sub.SCSI.Vendor, sub.SCSI.Product, sub.SCSI.Revision} {
		if s := strings.Trim(t.S, " \x00"); t.Known && literal(s) != s {
			pattern = strings.Replace(pattern, fmt.Sprintf("%q", s), fmt.Sprintf("%q", literal(s)), 1)
		}
	}
	severity, limits := "high", "limits:\n  max_sectors: 1024                     # CHANGE-ME: largest good transfer in 512-byte sectors\n"
	if effect == "capability" {
		severity, limits = "info", ""
	}
	if fault != nil {
		return id, fault.draft(id, effect, what, pattern, subject+path, folder), nil
	}
	text = fmt.Sprintf(`schema: 0
id: %s
title: "CHANGE-ME: device, condition and effect in one line, present tense"
effect: %s
severity: %s                          # CHANGE-ME: critical high medium low info
confidence: suspected                   # suspected: one report; probable: two; confirmed: reproduced or fixed
match:
  any:
    - device: %s
%sreferences:
  - {type: report, url: "https://CHANGE-ME"}
examples:
  match:
    - subject: {device: %s%s, max_sectors: 8192}
      expect: affected
      source: "CHANGE-ME: where this was seen"
  no_match:
    - subject: {device: %s}
      fails: device.%s
      why: "CHANGE-ME: a near miss that is not affected"
details: "CHANGE-ME: what happens, how to see it, what is not known"
`, id, effect, severity, pattern, limits, subject, path, near, map[bool]string{true: "vendor", false: "model"}[folder == "scsi"])
	return id, text, nil
}
