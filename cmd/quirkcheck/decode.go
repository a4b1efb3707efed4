package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/quirkcheck/quirkcheck/probe/decode"
	"github.com/quirkcheck/quirkcheck/probe/dump"
	"github.com/quirkcheck/quirkcheck/probe/nvme"
)

// usualPage is CAP.MPSMIN of all but a few controllers, in bytes.
const usualPage = 4096

// dumpKinds are what decode knows, as cobra completes them.
func dumpKinds() []cobra.Completion {
	return []cobra.Completion{
		cobra.CompletionWithDesc("inquiry", "standard INQUIRY data: sg_inq -H"),
		cobra.CompletionWithDesc("vpd", "a VPD page: sg_vpd -H, /sys/block/sdb/device/vpd_pgb0"),
		cobra.CompletionWithDesc("identify", "ATA IDENTIFY DEVICE data: hdparm --Istdout, /sys/class/ata_device/*/id"),
		cobra.CompletionWithDesc("nvme-ctrl", "NVMe Identify Controller data: nvme id-ctrl"),
	}
}

func dumpKindNames() []string {
	var names []string
	for _, k := range dumpKinds() {
		name, _, _ := strings.Cut(k, "\t")
		names = append(names, name)
	}
	return names
}

// decoding is what the flags of decode ask for.
type decoding struct {
	kind, file     string
	page           string
	mpsMin         uint64
	assumed        bool // mpsMin is the default
	includeSerials bool
}

func (a *app) decodeCommand() *cobra.Command {
	o := decoding{}
	cmd := &cobra.Command{
		Use:   "decode KIND {FILE | -}",
		Short: "Say what a pasted dump of a device's answer says",
		Long: `Decode reads one answer of a device, as a tool has printed it or as bytes, and
shows its fields. It touches no device. KIND is inquiry, vpd, identify or
nvme-ctrl; - is standard input. It reads

  sg_inq, sg_vpd     -H, -HH, -HHH or --raw; of several pages --page takes one
  hdparm             --Istdout, --Iraw; also /sys/class/ata_device/*/id
  nvme               id-ctrl for people, -o binary; admin-passthru, raw or not
  xxd, hexdump, od   with offsets, which are checked, or xxd -p
  sysfs              device/inquiry, device/vpd_pgb0 and the like, as they are
  anything else      hex digits in groups of two, or 0x00, 0x80; # starts a comment

Groups of four digits without offsets are words to identify, as hdparm prints
them, and bytes in their order to the others.

Pages 00, 80, 83, 89, b0, b1 and b2 are decoded, of others the header. A cut dump
shows what is there; what is not is missing, never zero. In JSON, names are those
of scan's report; a limit of which the device says that there is none is null,
and so are fields listed under "missing", where the dump ends, and "absent", where
the device's data do. Serial numbers and what else names one device are left out
unless --include-serials is given.

MDTS counts pages of CAP.MPSMIN, which is not in Identify Controller data: 4096
bytes are taken for it, or what --mpsmin says.`,
		Example: `  sg_vpd -p bl -H /dev/sdb | quirkcheck decode vpd -
  quirkcheck decode vpd /sys/block/sdb/device/vpd_pgb0
  quirkcheck decode vpd --page b0 pasted.txt --format json
  hdparm --Istdout /dev/sda | quirkcheck decode identify -
  nvme id-ctrl -o binary /dev/nvme0 | quirkcheck decode nvme-ctrl - --format json | jq .mdts_sectors`,
		Args: cobra.ExactArgs(2),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return dumpKinds(), cobra.ShellCompDirectiveNoFileComp
			case 1:
				return nil, cobra.ShellCompDirectiveDefault
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.config(cmd)
			if err != nil {
				return err
			}
			if !slices.Contains([]string{"table", "json"}, c.Format) {
				return fail(statusUsage, "", "format %q: want table or json", c.Format)
			}
			o.kind, o.file, o.assumed = args[0], args[1], !cmd.Flags().Changed("mpsmin")
			if !slices.Contains(dumpKindNames(), o.kind) {
				return fail(statusUsage, "quirkcheck decode --help tells which is which", "kind %q: want %s", o.kind, strings.Join(dumpKindNames(), ", "))
			}
			if o.page != "" && o.kind != "vpd" {
				return fail(statusUsage, "", "--page goes with vpd")
			}
			if o.mpsMin < usualPage || o.mpsMin > 1<<27 || o.mpsMin&(o.mpsMin-1) != 0 { // NVMe, CAP.MPSMIN: 2^(12+0..15)
				return fail(statusUsage, "", "--mpsmin %d: want a power of two from 4096 to 134217728", o.mpsMin)
			}
			input, err := a.input(cmd.Context(), o.file)
			if err != nil {
				return err
			}
			s, format, err := o.decode(input)
			if err != nil {
				return err
			}
			if c.Format == "json" {
				err = writeJSON(a.stdout, o.object(s, format))
			} else {
				err = a.decodeTable(o, s, format)
			}
			if err != nil {
				return fail(statusFailed, "", "write: %w", err)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.page, "page", "", "vpd: the `page` to take out of several, as b0 or bl")
	f.Uint64Var(&o.mpsMin, "mpsmin", usualPage, "nvme-ctrl: `bytes` in the controller's smallest page, CAP.MPSMIN")
	f.BoolVar(&o.includeSerials, "include-serials", false, "show serial numbers, world wide names and qualified names too")
	f.String("format", "table", "output `format`: table, json")
	return cmd
}

// input reads a file, or standard input, up to one byte more than dump takes.
// A pipe may never end, so that an interrupt does not wait for it.
func (a *app) input(ctx context.Context, file string) ([]byte, error) {
	type result struct {
		b      []byte
		status int
		err    error
	}
	done := make(chan result, 1)
	go func() {
		in := a.stdin
		if file != "-" {
			f, err := os.Open(file)
			if err != nil {
				done <- result{status: statusUsage, err: err}
				return
			}
			defer f.Close()
			in = f
		}
		b, err := io.ReadAll(io.LimitReader(in, dump.MaxText+1))
		done <- result{b, statusFailed, err}
	}()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r := <-done:
		if r.err != nil {
			return nil, fail(r.status, "", "%w", r.err)
		}
		return r.b, nil
	}
}

// decode finds the dump in the input and its fields. Errors name the file and,
// of text, the line.
func (o decoding) decode(input []byte) (s *decode.Structure, format string, err error) {
	bad := func(line int, hint, form string, args ...any) error {
		where := o.file
		if where == "-" {
			where = "standard input"
		}
		if line > 0 {
			where += ":" + strconv.Itoa(line)
		}
		return fail(statusFailed, hint, "%s: "+form, append([]any{where}, args...)...)
	}
	if o.kind == "nvme-ctrl" && len(input) <= dump.MaxText && nvme.IsText(input) {
		b, printed, line, err := nvme.ParseText(input)
		if err == nil {
			s, err = decode.IdentifyController(b, o.mpsMin, printed)
		}
		if err != nil {
			return nil, "", bad(line, "", "%w", err)
		}
		return s, "nvme id-ctrl", nil
	}
	dumps, err := dump.Parse(input)
	var de *dump.Error
	if errors.As(err, &de) {
		return nil, "", bad(de.Line, "quirkcheck decode --help lists the forms it reads", "%s", de.Reason)
	} else if err != nil {
		return nil, "", bad(0, "", "%w", err)
	}
	d, err := o.pick(dumps, bad)
	if err != nil {
		return nil, "", err
	}
	switch o.kind {
	case "inquiry":
		s, err = decode.Inquiry(d.Data)
	case "vpd":
		if d.Words && len(d.Data) == 512 {
			err = &decode.OtherError{What: "IDENTIFY DEVICE data, which sg_vpd -HHH prints of page 89h", Kind: "identify"}
			break
		}
		s, err = decode.VPD(d.Data)
	case "identify":
		if d.Words {
			d.Data = d.SwapWords()
			d.Format = "words"
		}
		s, err = decode.Identify(d.Data)
	case "nvme-ctrl":
		s, err = decode.IdentifyController(d.Data, o.mpsMin, nil)
	}
	var other *decode.OtherError
	if errors.As(err, &other) {
		return nil, "", bad(d.Line, fmt.Sprintf("quirkcheck decode %s %s", other.Kind, o.file), "%w", err)
	} else if err != nil {
		return nil, "", bad(d.Line, "", "%w", err)
	}
	s.Notes = append(s.Notes, d.Notes...)
	return s, d.Format, nil
}

// pick returns the one dump to decode.
func (o decoding) pick(dumps []dump.Dump, bad func(int, string, string, ...any) error) (dump.Dump, error) {
	empty := func(d dump.Dump) bool { return len(d.Data) == 0 }
	if dumps = slices.DeleteFunc(dumps, empty); len(dumps) == 0 {
		err := bad(0, "quirkcheck decode --help lists the forms it reads; sg_vpd and sg_inq print hex with -H", "no dump in it")
		var se *statusError
		if errors.As(err, &se) {
			se.status = statusNothing
		}
		return dump.Dump{}, err
	}
	found := dumps
	if o.page != "" {
		code, err := pageCode(o.page)
		if err != nil {
			return dump.Dump{}, err
		}
		found = slices.DeleteFunc(slices.Clone(dumps), func(d dump.Dump) bool { return len(d.Data) < 2 || d.Data[1] != code })
		if len(found) == 0 {
			return dump.Dump{}, bad(0, "", "page %02xh is not in it; it holds %s", code, o.list(dumps))
		}
	}
	if len(found) > 1 {
		hint := "keep one of them"
		if o.kind == "vpd" && o.page == "" {
			hint = "--page takes one of them"
		}
		return dump.Dump{}, bad(0, hint, "%d dumps in it: %s", len(found), o.list(found))
	}
	return found[0], nil
}

// list names dumps by page and line.
func (o decoding) list(dumps []dump.Dump) string {
	var names []string
	for i, d := range dumps {
		if i == 10 {
			names = append(names, fmt.Sprintf("and %d more", len(dumps)-i))
			break
		}
		name := ""
		if o.kind == "vpd" && len(d.Data) > 1 {
			name = fmt.Sprintf("page %02xh ", d.Data[1])
		}
		if d.Line > 0 {
			name += fmt.Sprintf("at line %d", d.Line)
		}
		names = append(names, strings.TrimSpace(name))
	}
	return strings.Join(names, ", ")
}

// pageCode reads a page code in hex, with 0x or h, or sg_vpd's name of it.
func pageCode(s string) (uint8, error) {
	name := strings.ToLower(s)
	for i, short := range []string{"sv", "sn", "di", "ai", "bl", "bdc", "lbpv"} { // before hex: none of these is a number
		if name == short {
			return []uint8{0x00, 0x80, 0x83, 0x89, 0xb0, 0xb1, 0xb2}[i], nil
		}
	}
	n, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimPrefix(name, "0x"), "h"), 16, 8)
	if err != nil {
		return 0, fail(statusUsage, "", "--page %q: want a page code in hex, such as b0, or sg_vpd's name of it, such as bl", s)
	}
	return uint8(n), nil
}

// object is one flat JSON object with its keys in order.
type object []member

type member struct {
	key   string
	value any
}

func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		key, err := json.Marshal(m.key)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		b.Write(key)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func (o decoding) object(s *decode.Structure, format string) object {
	claimed, length := any(nil), any(nil)
	if s.Claimed > 0 {
		claimed = s.Claimed
	}
	if s.Length > 0 {
		length = s.Length
	}
	all := object{{"schema_version", "1.0"}, {"kind", o.kind}, {"format", format},
		{"length", length}, {"claimed_length", claimed}, {"truncated", s.Truncated}}
	if o.kind == "nvme-ctrl" {
		all = append(all, member{"mdts_page_bytes", o.mpsMin}, member{"mdts_page_assumed", o.assumed})
	}
	for _, f := range s.Fields {
		if o.includeSerials || !f.Personal {
			all = append(all, member{f.Name, f.Value})
		}
	}
	notes := s.Notes
	if notes == nil {
		notes = []string{}
	}
	return append(all, member{"missing", o.names(s, decode.Missing)}, member{"absent", o.names(s, decode.Absent)}, member{"notes", notes})
}

// names returns the names of the fields shown that are in a state.
func (o decoding) names(s *decode.Structure, state decode.State) []string {
	return slices.DeleteFunc(s.Names(state), func(name string) bool {
		f, _ := s.Field(name)
		return f.Personal && !o.includeSerials
	})
}

// decodeTable prints the fields for people.
func (a *app) decodeTable(o decoding, s *decode.Structure, format string) error {
	w := &errWriter{w: a.stdout}
	length := fmt.Sprintf(": %d bytes", s.Length)
	if s.Length == 0 {
		length = ""
	} else if s.Claimed > s.Length {
		length += fmt.Sprintf(" of %d", s.Claimed)
	}
	w.line("%s%s, read as %s", clean(s.Title), length, format)
	var b strings.Builder
	tw := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "FIELD\tVALUE\tIN THE STANDARD\tMEANING")
	var hidden []string
	for _, f := range s.Fields {
		if f.Personal && !o.includeSerials {
			hidden = append(hidden, f.Name)
			continue
		}
		values, meaning := []string{"-"}, f.Meaning
		switch f.State {
		case decode.Known:
			values = valueTexts(f.Value)
		case decode.NotReported:
			if meaning == "" {
				meaning = "not reported"
			}
		case decode.Missing:
			meaning = "missing: the dump ends before it"
			if format == "nvme id-ctrl" {
				meaning = "missing: not printed"
			}
		case decode.Absent:
			meaning = "absent: the device's data end before it"
		}
		meanings := strings.Split(meaning, "\n") // one for the whole, or one for each of a list
		name, where := f.Name, f.Where
		for i, v := range values {
			meaning := ""
			if i < len(meanings) {
				meaning = meanings[i]
			}
			fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", name, clean(v), where, clean(meaning))
			name, where = "", ""
		}
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if w.err == nil {
		_, w.err = io.WriteString(a.stdout, trimLines(b.String()))
	}
	if s.Truncated {
		w.line("The dump is cut: what is missing is not known.")
	}
	if o.kind == "nvme-ctrl" && o.assumed {
		w.line("mdts_sectors takes CAP.MPSMIN to be %d bytes, as on all but a few controllers; --mpsmin sets it.", o.mpsMin)
	}
	for _, n := range s.Notes {
		w.line("note: %s", clean(n))
	}
	if len(hidden) > 0 {
		w.line("Not shown without --include-serials: %s.", strings.Join(hidden, ", "))
	}
	return w.err
}

// trimLines takes away blanks at the end of lines, which an empty last cell
// leaves.
func trimLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	return strings.Join(lines, "\n")
}

// valueTexts is a value as people read it, one line for each of a list.
func valueTexts(v any) []string {
	switch v := v.(type) {
	case string:
		return []string{`"` + v + `"`}
	case bool:
		if v {
			return []string{"yes"}
		}
		return []string{"no"}
	case []string:
		if len(v) == 0 {
			return []string{"none"}
		}
		return v
	}
	return []string{fmt.Sprint(v)}
}
