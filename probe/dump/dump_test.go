package dump

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestReadsWhatToolsPrint(t *testing.T) {
	want, err := os.ReadFile("testdata/vpd_pgb0.bin")
	if err != nil {
		t.Fatal(err)
	}
	formats := map[string]string{
		"vpd_pgb0.bin": FormatBytes, "hexdump-C.txt": FormatHexdump, "hexdump.txt": FormatOD, "od-tx1z.txt": FormatHexdump,
		"od-tx4.txt": FormatOD, "od-x.txt": FormatOD, "sg_inq-page-H.txt": FormatSG, "sg_vpd-H.txt": FormatSG, "sg_vpd-HH.txt": FormatHex,
		"sg_vpd-HHH.txt": FormatHex, "xxd-e.txt": FormatXXDE, "xxd-g1.txt": FormatXXD, "xxd-p.txt": FormatHex, "xxd-u-c8.txt": FormatXXD,
		"xxd.txt": FormatXXD,
	}
	headings := map[string]string{
		"sg_inq-page-H.txt": "VPD INQUIRY, page code=0xb0:", "sg_vpd-H.txt": "Block limits VPD page (SBC):", "sg_vpd-HH.txt": "Block limits VPD page (SBC):",
	}
	files, err := filepath.Glob("testdata/*.[tb]*")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(formats) {
		t.Fatalf("%d files, want %d", len(files), len(formats))
	}
	for _, file := range files {
		name := filepath.Base(file)
		input, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		// As a browser, a mail or an editor may change it.
		for how, in := range map[string][]byte{
			"as it is":              input,
			"with carriage returns": bytes.ReplaceAll(input, []byte("\n"), []byte("\r\n")),
			"in capitals":           bytes.ToUpper(input),
			"with NULs at the end":  append(bytes.Clone(input), 0, 0),
			"with a byte mark":      append([]byte("\ufeff"), input...),
			"with a comment":        append([]byte("# sg_vpd -H /dev/sdb\n\n"), input...),
			"without a last line":   bytes.TrimSuffix(input, []byte("\n")),
		} {
			if formats[name] == FormatBytes && how != "as it is" {
				continue
			}
			dumps, err := Parse(in)
			if err != nil || len(dumps) != 1 {
				t.Errorf("%s %s: %d dumps, %v", name, how, len(dumps), err)
				continue
			}
			d := dumps[0]
			if !bytes.Equal(d.Data, want) {
				t.Errorf("%s %s: got\n% x\nwant\n% x", name, how, d.Data, want)
			}
			if d.Format != formats[name] || len(d.Notes) > 0 || how == "as it is" && d.Heading != headings[name] {
				t.Errorf("%s %s: format %q, heading %q, notes %q; want %q, %q", name, how, d.Format, d.Heading, d.Notes, formats[name], headings[name])
			}
		}
	}
}

// recorded returns the bytes of every dump that the parsers are tested with.
func recorded(t testing.TB) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, dir := range []string{"scsi", "ata", "nvme"} {
		files, err := filepath.Glob("../" + dir + "/testdata/*.hex")
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d dumps, %v", dir, len(files), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			b, err := hex.DecodeString(strings.Join(strings.Fields(string(text)), ""))
			if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			all[filepath.Base(file)] = b
		}
	}
	if len(all) < 80 {
		t.Fatalf("only %d dumps", len(all))
	}
	return all
}

// peer returns the output of a tool, and skips the test where it is missing,
// unless that is an error.
func peer(t *testing.T, args ...string) string {
	t.Helper()
	path, err := exec.LookPath(args[0])
	if err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("%s is not installed, and CI=true", args[0])
		}
		t.Skipf("%s is not installed", args[0])
	}
	out, err := exec.Command(path, args[1:]...).Output()
	if err != nil {
		t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// Every recorded dump, printed by the tools that are here, reads as its bytes.
func TestReadsEveryDumpAsToolsPrintIt(t *testing.T) {
	all := recorded(t)
	for _, tool := range []string{"xxd", "xxd -g1", "xxd -p", "xxd -c 32 -g 8", "hexdump -C", "hexdump -vC", "hexdump -v", "od -v -x", "od -An -v -tx1",
		"od -Ax -tx1z", "od -tx1"} {
		t.Run(tool, func(t *testing.T) {
			n := 0
			for name, want := range all {
				file := filepath.Join(t.TempDir(), "b")
				if err := os.WriteFile(file, want, 0o644); err != nil {
					t.Fatal(err)
				}
				text := peer(t, append(strings.Fields(tool), file)...)
				dumps, err := Parse([]byte(text))
				if err != nil || len(dumps) != 1 || !bytes.Equal(dumps[0].Data, want) {
					t.Fatalf("%s: %d dumps, %v\n%s", name, len(dumps), err, text)
				}
				n++
			}
			t.Logf("%d dumps", n)
		})
	}
}

func TestReadsEveryPageAsSG3UtilsPrintIt(t *testing.T) {
	n := 0
	for name, want := range recorded(t) {
		file := "../scsi/testdata/" + name
		if _, err := os.Stat(file); err != nil || strings.HasPrefix(name, "ml_toshiba_MK1059GSM_0") { // READ CAPACITY
			continue
		}
		tool := "sg_vpd"
		if strings.Contains(name, "inq") {
			tool = "sg_inq"
		}
		for _, form := range []string{"-H", "-HH", "-HHH"} {
			if form != "-H" && tool == "sg_vpd" && want[1] != 0xb0 && want[1] != 0xb1 && want[1] != 0xb2 && want[1] != 0x80 {
				continue // some pages are then told in words, and 89h in words of IDENTIFY data
			}
			text := peer(t, tool, "--inhex="+file, form)
			dumps, err := Parse([]byte(text))
			if err != nil || len(dumps) != 1 || !bytes.HasPrefix(want, dumps[0].Data) || len(dumps[0].Data) < min(len(want), 36) {
				t.Fatalf("%s %s: %d dumps, %v\n%s", name, form, len(dumps), err, text)
			}
			n++
		}
	}
	if n < 60 {
		t.Errorf("only %d outputs", n)
	}
}

// printNVMe prints as d of nvme-print.c does.
func printNVMe(b []byte) string {
	var s strings.Builder
	s.WriteString("Admin Command Identify is Success and result: 0x00000000\n     ")
	for i := range 16 {
		fmt.Fprintf(&s, "%3x", i)
	}
	for i := 0; i < len(b); i += 16 {
		row := b[i:min(i+16, len(b))]
		fmt.Fprintf(&s, "\n%04x:", i)
		for _, c := range row {
			fmt.Fprintf(&s, " %02x", c)
		}
		s.WriteString(strings.Repeat("   ", 16-len(row)))
		s.WriteString(` "`)
		for _, c := range row {
			if c < '!' || c > '~' {
				c = '.'
			}
			s.WriteByte(c)
		}
		s.WriteByte('"')
	}
	return s.String() + "\n"
}

// printHdparm prints as hdparm --Istdout does: words, whose low byte is first in b.
func printHdparm(b []byte) string {
	s := "\n/dev/sda:\n"
	for i := 0; i+1 < len(b); i += 2 {
		end := " "
		if i%16 == 14 {
			end = "\n"
		}
		s += fmt.Sprintf("%02x%02x%s", b[i+1], b[i], end)
	}
	return s
}

func TestReadsEveryDumpOfNVMe(t *testing.T) {
	for name, want := range recorded(t) {
		dumps, err := Parse([]byte(printNVMe(want)))
		if err != nil || len(dumps) != 1 || !bytes.Equal(dumps[0].Data, want) || len(dumps[0].Notes) > 0 {
			t.Fatalf("%s: %d dumps, %v\n%s", name, len(dumps), err, printNVMe(want))
		}
	}
}

func TestWordsOfHdparm(t *testing.T) {
	want := []byte("Z\x0c\xff?a whole row of words, and so")
	dumps, err := Parse([]byte(printHdparm(want)))
	if err != nil || len(dumps) != 1 || !dumps[0].Words || !bytes.Equal(dumps[0].SwapWords(), want) || dumps[0].Heading != "/dev/sda:" {
		t.Errorf("got %+v, %v", dumps, err)
	}
	if got := (Dump{Data: []byte("abc")}).SwapWords(); string(got) != "bac" {
		t.Errorf("an odd last byte: %q", got)
	}
}

func TestSeveralDumps(t *testing.T) {
	dumps, err := Parse([]byte("Supported VPD pages VPD page:\n 00     00 00 00 01 00    .....\n\n[PQual=0  Peripheral device type: disk]\n" +
		"$ sg_vpd -p sn -HH /dev/sdb\n00 80 00 01 41\nUnit serial number VPD page:\n00 80 00 01 42\nthe end: of it\n"))
	if err != nil || len(dumps) != 3 {
		t.Fatalf("%d dumps, %v", len(dumps), err)
	}
	for i, want := range []struct {
		hex, heading string
		line         int
	}{{"0000000100", "Supported VPD pages VPD page:", 2}, {"0080000141", "$ sg_vpd -p sn -HH /dev/sdb", 6}, {"0080000142", "Unit serial number VPD page:", 8}} {
		if d := dumps[i]; hex.EncodeToString(d.Data) != want.hex || d.Heading != want.heading || d.Line != want.line {
			t.Errorf("dump %d: %+v, want %+v", i, d, want)
		}
	}
}

func TestForms(t *testing.T) {
	zeros := strings.Repeat("00", 16)
	tests := []struct{ name, in, want string }{
		{"nothing", "", ""},
		{"headings alone", "Block limits VPD page (SBC):\n  Maximum transfer length: 0xffff\n", ""},
		{"a C array's values", "0x00, 0xb0,\n0x00, 0x3c", "00b0003c"},
		{"one long word", "00b0003c00000001", "00b0003c00000001"},
		{"pairs and fours", "00 b0 003c", "00b0003c"},
		{"tabs", "00\tb0\t00\t3c", "00b0003c"},
		{"blank lines between", "00 b0\n\n00 3c\n", "00b0003c"},
		{"repeated lines", "00000000  " + strings.Repeat("00 ", 16) + " |................|\n*\n00000040\n", strings.Repeat(zeros, 4)},
		{"repeated lines, then others", "00000000  " + strings.Repeat("00 ", 16) + "\n*\n00000030  01 02\n00000032\n", strings.Repeat(zeros, 3) + "0102"},
		{"octal offsets", "0000000 0000 0000 0000 0000 0000 0000 0000 0000\n0000020 3412\n0000022\n", zeros + "1234"},
		{"od's odd last byte", "0000000 3412 0056\n0000003\n", "123456"},
		{"an indented paste", "    00000000  00 b0\n    00000002  00 3c\n", "00b0003c"},
		{"a bar in xxd's text", "00000000: 7c3e 2241  |>\"A\n", "7c3e2241"},
		{"xxd without text", "00000000: 00b0 003c\n00000004: 0001\n", "00b0003c0001"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dumps, err := Parse([]byte(tt.in))
			if err != nil || len(dumps) != min(1, len(tt.want)) {
				t.Fatalf("%d dumps, %v", len(dumps), err)
			}
			if len(dumps) > 0 && hex.EncodeToString(dumps[0].Data) != tt.want {
				t.Errorf("got %x, want %s", dumps[0].Data, tt.want)
			}
		})
	}
}

func TestRefuses(t *testing.T) {
	row := "00000000  " + strings.Repeat("00 ", 16) + " |................|\n"
	tests := []struct {
		name, in string
		line     int
		want     string
	}{
		{"a line of prose", "00 b0 00 3c\nthis is not it\n", 2, `not hex: "this is not it"`},
		{"a letter", "00 b0 00 3c\n00 0O 00 00\n", 2, `not hex: "0O"`},
		{"half a byte", "00 b0 00 3c\n00 0\n", 2, `"0" has an odd number of digits`},
		{"prose that starts with hex", "be careful\n", 1, `not hex: "careful"`},
		{"a line lost", row + "00000020  00\n", 2, "offset 00000020 after 16 bytes (10h)"},
		{"a line twice", row + row, 2, "offset 00000000 after 16 bytes"},
		{"the beginning lost", "00000010  00 00\n", 1, "starts at offset 00000010"},
		{"bytes lost in a line", "00000000: 00b0 00\n00000004: 0000\n", 2, "offset 00000004 after 3 bytes"},
		{"an end that differs", row + "00000011\n", 2, "offset 00000011 after 16 bytes"},
		{"bytes after the end", row + "00000010\n00000010  00\n", 3, "after the end"},
		{"repeated without a line", "*\n00000010\n", 1, "stands for the line above"},
		{"repeated without an end", row + "*\n", 2, "up to the next offset"},
		{"repeated without offsets", "00 00\n*\n00 00\n", 2, "up to the next offset"},
		{"repeated backwards", row + "*\n00000000\n", 3, "does not follow"},
		{"repeated not to a line", row + "*\n00000018  00\n", 3, "does not follow"},
		{"repeated without bound", row + "*\nfffffff0\n", 3, "more than 65536 bytes"},
		{"offsets of two readings", "0000000 0000 0000 0000 0000 0000 0000 0000 0000\n*\n0000100\n", 1, "hexadecimal (256 bytes) or octal (64 bytes)"},
		{"text cut", "00000000  00 b0  |..\n", 1, "column of text does not end"},
		{"a bar alone", "00000000  00 b0 |\n", 1, "column of text does not end"},
		{"bytes taken for text", "00000000: 00 b0 00 3c  00 00 00 01\n", 1, "4 bytes, and text of 11 characters"},
		{"another form below", "00000000: 00b0\n00 3c\n", 2, "want an offset and a colon"},
		{"another form below sg", " 00     00 b0    ..\n00000002: 003c\n", 2, "want an offset, blanks and bytes"},
		{"another form below hexdump", row + "00 3c\n", 2, "want an offset and bytes"},
		{"a damaged offset", row + "0000001o  00\n", 2, "not hex"},
		{"a damaged offset with a colon", "00000000: 00b0\n0000000z: " + strings.Repeat("0000 ", 8) + "\n", 2, "not hex"},
		{"control characters", "00 b0\n\x1b[31m\n", 2, `not hex: "\x1b[31m"`},
		{"other encodings", strings.Repeat("\xff", 100), 1, "not hex"},
		{"too much text", strings.Repeat("# no\n", MaxText/5+1), 0, "of text"},
		{"too many digits", strings.Repeat(strings.Repeat("00", 4096)+"\n", 17), 17, "more than 65536 bytes"},
		{"too many digits in two dumps", strings.Repeat("a page:\n"+strings.Repeat("00", 40000)+"\n", 2), 4, "more than"},
		{"too many bytes", strings.Repeat("\x00\x01", MaxBytes/2+1), 0, "more than 65536 bytes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dumps, err := Parse([]byte(tt.in))
			var de *Error
			if !errors.As(err, &de) {
				t.Fatalf("got %d dumps, %v", len(dumps), err)
			}
			if de.Line != tt.line || !strings.Contains(de.Reason, tt.want) {
				t.Errorf("got line %d, %q; want line %d, %q", de.Line, de.Reason, tt.line, tt.want)
			}
			if len(err.Error()) > 200 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
		})
	}
}

func TestNotesTextThatDisagrees(t *testing.T) {
	for in, want := range map[string]int{
		"00000000: 4142 4344  ABCD\n":                            0,
		"00000000: 4142 4344  ABXX\n":                            1,
		"00000000  41 42 43 44  |ABCD|\n":                        0,
		"00000000  41 42 43 44  |AXCD|\n":                        1,
		"0000: 41 42 20 00 \"AB..\"\n":                           0,
		"00000000: 4142 4344  ABCD\n00000004: 4142 4344  XXCD\n": 1,
		"00000000: 44434241 48474645  ABCDEFGH\n":                0, // xxd -e
	} {
		dumps, err := Parse([]byte(in))
		if err != nil || len(dumps) != 1 || len(dumps[0].Notes) != want {
			t.Errorf("%q: got %+v, %v, want %d notes", in, dumps, err, want)
		}
	}
}

// hexdumpC prints as hexdump -C does.
func hexdumpC(b []byte) string {
	return hex.Dump(b) + fmt.Sprintf("%08x\n", len(b))
}

func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.[tb]*")
	if err != nil || len(files) == 0 {
		f.Fatalf("%d seeds, %v", len(files), err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)/2])
	}
	for _, b := range recorded(f) {
		f.Add([]byte(printHdparm(b)))
		f.Add([]byte(printNVMe(b)))
	}
	f.Add([]byte("00000000  00 00\n*\n00000010\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		dumps, err := Parse(b)
		var de *Error
		if err != nil && (!errors.As(err, &de) || de.Reason == "" || de.Line < 0 || de.Line > bytes.Count(b, []byte("\n"))+bytes.Count(b, []byte("\r"))+1) {
			t.Fatalf("error %v", err)
		}
		total := 0
		for _, d := range dumps {
			total += len(d.Data)
		}
		if total > MaxBytes {
			t.Fatalf("%d bytes", total)
		}
		// Any bytes, printed, are read as they were.
		if b = b[:min(len(b), 4096)]; len(b) == 0 {
			return
		}
		for _, text := range []string{hexdumpC(b), printNVMe(b), hex.EncodeToString(b)} {
			again, err := Parse([]byte(text))
			if err != nil || len(again) != 1 || !bytes.Equal(again[0].Data, b) || len(again[0].Notes) > 0 {
				t.Fatalf("printed and read: %+v, %v\n%s", again, err, text)
			}
		}
	})
}
