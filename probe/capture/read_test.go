package capture

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/quirkcheck/quirkcheck/probe"
)

// with is a capture with some members and all that is required.
func with(members string) string {
	doc := `{"schema_version":"1.0"`
	for _, m := range []string{"files", "links", "directories"} {
		if !strings.Contains(members, `"`+m+`"`) {
			doc += `,"` + m + `":{}`
		}
	}
	if members != "" {
		doc += "," + members
	}
	return doc + "}"
}

func TestReadTakes(t *testing.T) {
	c, err := Read(strings.NewReader(" " + with(`"files":{"a/b":"text\n\u00e9\ud83d\ude00","c":{"base64":"AAEC","more":[1,{"x":null}]},"d":null,"e":""},"links":{"l/m":"../a"},`+
		`"directories":{".":["a"],"a":null},"absent":{"a":["x","y"]},"errors":{"a/z":{"read":"permission denied"}},"commands":[{"device":"sda","sent":"12","data":null}],`+
		`"setters":[{"file":"/etc/x","line":3,"text":"t","after":true}],"host":{"id":"1","id_stable":true,"kernel":{"page_size":65536,"release":"6.1","machine":null}},"later":{"deep":[[1.5e-3,-0,true]]}`) + "\n\t "))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]Content{"a/b": Content("text\né😀"), "c": {0, 1, 2}, "d": nil, "e": {}}
	if diff := cmp.Diff(want, c.Files); diff != "" {
		t.Errorf("files (-want +got)\n%s", diff)
	}
	if c.Links["l/m"] != "../a" || c.Directories["a"] != nil || len(c.Directories["."]) != 1 || len(c.Absent["a"]) != 2 || c.Errors["a/z"]["read"] != "permission denied" ||
		*c.Host.Kernel.PageSize != 65536 || *c.Host.Kernel.Release != "6.1" || c.Host.Kernel.Machine != nil || len(c.Setters) != 1 || !c.Setters[0].After {
		t.Errorf("%+v", c)
	}
	if c, err := Read(strings.NewReader(with(""))); err != nil || c.Setters != nil {
		t.Errorf("the smallest one: %+v, %v", c, err)
	}
}

func TestReadRefuses(t *testing.T) {
	deep := func(n int, open, end string) string { return strings.Repeat(open, n) + strings.Repeat(end, n) }
	for _, c := range []struct{ name, in, path, message string }{
		{"nothing", "", "", "ends in the middle"},
		{"a list", "[]", "", "not a capture"},
		{"zeros", "\x00\x00\x00", "", "not a capture"},
		{"something else in JSON", `{"a":1}`, "", "no schema_version"},
		{"no files", `{"schema_version":"1.0","links":{},"directories":{}}`, "", "no files"},
		{"a later major version", `{"schema_version":"2.0"}`, "schema_version", "want 1.N"},
		{"another version", `{"schema_version":"1.x"}`, "schema_version", "want 1.N"},
		{"cut in a name", `{"schema_version":"1.0","files":{"sys/bl`, "files", "ends in the middle"},
		{"cut in a content", `{"schema_version":"1.0","files":{"sys/block/sda/size":"12`, `files["sys/block/sda/size"]`, "ends in the middle"},
		{"cut before the end", strings.TrimSuffix(with(""), "}"), "", "ends in the middle"},
		{"data after the end", with("") + "x", "", "data after the end"},
		{"another object after the end", with("") + "{}", "", "data after the end"},
		{"a NUL after the end", with("") + "\x00", "", "data after the end"},
		{"a name with dots", with(`"files":{"sys/../etc/shadow":"x"}`), `files["sys/../etc/shadow"]`, "canonical"},
		{"a name that climbs", with(`"files":{"../etc/shadow":"x"}`), `files["../etc/shadow"]`, "canonical"},
		{"a name with one dot", with(`"files":{"sys/./a":"x"}`), `files["sys/./a"]`, "canonical"},
		{"a doubled slash", with(`"links":{"sys//a":"x"}`), `links["sys//a"]`, "canonical"},
		{"a slash at the end", with(`"directories":{"sys/":[]}`), `directories["sys/"]`, "canonical"},
		{"an absolute name", with(`"files":{"/etc/shadow":"x"}`), `files["/etc/shadow"]`, "absolute"},
		{"an empty name", with(`"files":{"":"x"}`), `files[""]`, "canonical"},
		{"the root", with(`"files":{".":"x"}`), `files["."]`, "root"},
		{"a NUL in a name", with(`"files":{"a\u0000b":"x"}`), `files["a\x00b"]`, "NUL"},
		{"a long name", with(`"files":{"` + strings.Repeat("a", 1025) + `":"x"}`), "files", "more than 1024 bytes"},
		{"a deep name", with(`"files":{"` + strings.Repeat("a/", 64) + `a":"x"}`), `files["` + strings.Repeat("a/", 64) + `a"]`, "elements"},
		{"a key twice", with(`"files":{"a":"x","a":"x"}`), "files.a", "twice"},
		{"a key twice, spelt otherwise", with(`"files":{"a/b":"x","\u0061/b":"x"}`), `files["a/b"]`, "twice"},
		{"a key twice above", with(`"files":{},"files":{}`), "files", "twice"},
		{"a key twice in what nobody knows", with(`"later":{"a":1,"a":2}`), "later.a", "twice"},
		{"a file that is a link", with(`"files":{"a/b":"x"},"links":{"a/b":"c"}`), `links["a/b"]`, "twice"},
		{"a link that is a folder", with(`"links":{"a/b":"c"},"directories":{"a/b":[]}`), `directories["a/b"]`, "twice"},
		{"a link that escapes", with(`"links":{"sys/a":"../../etc"}`), `links["sys/a"]`, "leaves the tree"},
		{"a link that escapes slowly", with(`"links":{"sys/a":"b/c/../../../../../x"}`), `links["sys/a"]`, "leaves the tree"},
		{"an absolute link", with(`"links":{"sys/a":"/etc/shadow"}`), `links["sys/a"]`, "absolute"},
		{"an empty link", with(`"links":{"sys/a":""}`), `links["sys/a"]`, "no target"},
		{"a link that is no text", with(`"links":{"sys/a":{}}`), `links["sys/a"]`, "want a string"},
		{"a name in a folder with a slash", with(`"directories":{"sys/block":["a/b"]}`), `directories["sys/block"][0]`, "no name"},
		{"a name in a folder that climbs", with(`"directories":{"sys/block":["sda",".."]}`), `directories["sys/block"][1]`, "no name"},
		{"a name in a folder twice", with(`"directories":{"sys/block":["sda","sda"]}`), `directories["sys/block"][1]`, "twice"},
		{"a name absent that climbs", with(`"absent":{"sys":["../x"]}`), "absent.sys[0]", "no name"},
		{"an error of something nobody tries", with(`"errors":{"a/b":{"write":"x"}}`), `errors["a/b"].write`, "want read"},
		{"an error without a name", with(`"errors":{"../a":{"read":"x"}}`), `errors["../a"]`, "canonical"},
		{"a content that is a number", with(`"files":{"a/b":7}`), `files["a/b"]`, "want text"},
		{"a content that is an empty object", with(`"files":{"a/b":{}}`), `files["a/b"]`, "want text"},
		{"no base64", with(`"files":{"a/b":{"base64":"AAE"}}`), `files["a/b"].base64`, "not base64"},
		{"base64 with line ends", with(`"files":{"a/b":{"base64":"AA\nEC"}}`), `files["a/b"].base64`, "not base64"},
		{"base64 with stray bits", with(`"files":{"a/b":{"base64":"AB=="}}`), `files["a/b"].base64`, "not base64"},
		{"a long content", with(`"files":{"a/b":"` + strings.Repeat("x", maxContent+1) + `"}`), `files["a/b"]`, "more than 65540 bytes"},
		{"deep objects", with(`"later":` + deep(200_000, `{"a":`, "}")), "", "nested more than 32 deep"},
		{"deep lists", with(`"later":` + deep(200_000, `[`, "]")), "", "nested more than 32 deep"},
		{"deep commands", with(`"commands":[{"x":` + deep(100, `[`, "]") + `}]`), "", "nested more than 32 deep"},
		{"broken UTF-8", with(`"files":{"a/b":"` + "\xff" + `"}`), `files["a/b"]`, "not UTF-8"},
		{"half a surrogate pair", with(`"files":{"a/b":"\ud83d"}`), `files["a/b"]`, "surrogate"},
		{"a control character", with("\"files\":{\"a/b\":\"\x01\"}"), `files["a/b"]`, "control character"},
		{"no escape", with(`"files":{"a/b":"\q"}`), `files["a/b"]`, "no escape"},
		{"a comma at the end", with(`"files":{"a/b":"x",}`), "files", "want a key"},
		{"a comma at the end of a list", with(`"directories":{"a":["b",]}`), "directories.a[1]", "want a string"},
		{"no number", with(`"later":01`), "later", "no value"},
		{"no word", with(`"later":nul`), "later", "no value"},
		{"a long number", with(`"later":` + strings.Repeat("1", 100)), "later", "more than 32"},
		{"a page size that is none", with(`"host":{"kernel":{"page_size":-1}}`), "host.kernel.page_size", "whole number"},
		{"gzip cut", string(pack(t, with("")))[:20], "", "ends in the middle"},
		{"gzip of rubbish", "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff\xff\xff\xff", "", ""},
		{"gzip with something after it", string(pack(t, with(""))) + "x", "", ""},
		{"gzip in gzip", string(pack(t, string(pack(t, with(""))))), "", "not a capture"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Read(strings.NewReader(c.in))
			var f *Fault
			if !errors.As(err, &f) {
				t.Fatalf("error %v, want a fault", err)
			}
			if c.path != "" && f.Path != c.path || !strings.Contains(f.Message, c.message) {
				t.Errorf("%q: %q, want %q: %q", f.Path, f.Message, c.path, c.message)
			}
		})
	}
}

func pack(t testing.TB, s string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.WriteString(z, s); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// failing breaks off with an error that is no fault of the content.
type failing struct{ r io.Reader }

var errDisk = errors.New("input/output error")

func (f failing) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err == io.EOF {
		err = errDisk
	}
	return n, err
}

func TestReadErrorIsNoFault(t *testing.T) {
	_, err := Read(failing{strings.NewReader(with("")[:20])})
	var f *Fault
	if !errors.Is(err, errDisk) || errors.As(err, &f) {
		t.Errorf("error %v", err)
	}
}

// The bounds of issue S5: a capture that is refused takes at most 64 MiB of
// memory, the program included, and two seconds.
const (
	mostMemoryKiB = 64 << 10
	mostTime      = 2 * time.Second
)

// TestHelperRead is no test: it is the process whose memory is measured.
func TestHelperRead(t *testing.T) {
	file := os.Getenv("QUIRKCHECK_VM_READ_CAPTURE") // VM: the command knows no such key
	if file == "" {
		return // only TestHostileCapturesTakeLittle calls it
	}
	var err error
	start := cpu(t)
	if file == "-" {
		_, err = Read(os.Stdin)
	} else {
		_, err = ReadFile(file)
	}
	took := cpu(t) - start
	status, _ := os.ReadFile("/proc/self/status")
	hwm := ""
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			hwm = strings.Fields(rest)[0]
		}
	}
	fmt.Printf("RESULT %s %d %v\n", hwm, took.Milliseconds(), err)
}

// cpu is the time this process has computed: another that competes for the
// processor is no fault of the reader.
func cpu(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func TestHostileCapturesTakeLittle(t *testing.T) {
	if testing.Short() {
		t.Skip("writes files of 64 MiB")
	}
	dir := t.TempDir()
	write := func(name string, f func(w io.Writer)) string {
		full := filepath.Join(dir, name)
		out, err := os.Create(full)
		if err != nil {
			t.Fatal(err)
		}
		f(out)
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
		return full
	}
	big := func(w io.Writer, end string) {
		io.WriteString(w, `{"schema_version":"1.0","links":{},"directories":{},"files":{`)
		page := strings.Repeat("x", 4000)
		for i := range 15_000 {
			fmt.Fprintf(w, "\"sys/devices/%d\":\"%s\",\n", i, page)
		}
		io.WriteString(w, end)
	}
	gz := func(f func(io.Writer)) func(io.Writer) {
		return func(w io.Writer) {
			z, _ := gzip.NewWriterLevel(w, gzip.BestSpeed)
			f(z)
			z.Close()
		}
	}
	// Ten GiB in a few members of the same bytes: gzip is a sequence of them.
	bomb := func(head, fill string) func(io.Writer) {
		return func(w io.Writer) {
			gz(func(w io.Writer) { io.WriteString(w, head) })(w)
			var member bytes.Buffer
			gz(func(w io.Writer) {
				for range 1 << 10 {
					io.WriteString(w, strings.Repeat(fill, (64<<10)/len(fill)))
				}
			})(&member)
			for range 160 {
				w.Write(member.Bytes())
			}
		}
	}
	sparse := write("sparse", func(w io.Writer) {
		if err := w.(*os.File).Truncate(10 << 30); err != nil {
			t.Fatal(err)
		}
	})
	for _, c := range []struct {
		name, file string
		stdin      bool
		says       string
	}{
		{"60 MiB, cut", write("cut", func(w io.Writer) { big(w, `"a":"`) }), false, "ends in the middle"},
		{"60 MiB, a fault at the end", write("end", func(w io.Writer) { big(w, `"../a":""}}`) }), false, "canonical"},
		{"60 MiB, a key twice at the end", write("twice", func(w io.Writer) { big(w, `"sys/devices/7":""}}`) }), false, "twice"},
		{"60 MiB through a pipe", write("pipe", func(w io.Writer) { big(w, `"../a":""}}`) }), true, "canonical"},
		{"60 MiB packed through a pipe", write("pipe.gz", gz(func(w io.Writer) { big(w, `"../a":""}}`) })), true, "canonical"},
		{"10 GiB of nothing", sparse, false, "not a capture"},
		{"10 GiB of nothing on standard input", sparse, true, "not a capture"},
		{"10 GiB of blanks, packed", write("blanks.gz", bomb("", " ")), false, "more than 64 MiB"},
		{"10 GiB of blanks, packed, through a pipe", write("blanks2.gz", bomb(`{"schema_version":"1.0",`, " ")), true, "more than 64 MiB"},
		{"10 GiB in a string, packed", write("string.gz", bomb(`{"schema_version":"1.0","files":{"a":"`, "x")), true, "more than 65540 bytes"},
		{"10 GiB of small entries, packed", write("entries.gz", bomb(`{"schema_version":"1.0","later":[`, "0,")), false, "entries"},
		{"10 GiB of lists, packed", write("deep.gz", bomb(`{"schema_version":"1.0","later":`, "[")), true, "deep"},
		{"64 MiB of small files", write("small", func(w io.Writer) {
			io.WriteString(w, `{"schema_version":"1.0","links":{},"directories":{},"files":{`)
			for i := range 2_000_000 {
				fmt.Fprintf(w, "\"%x\":\"\",", i)
			}
		}), false, "more than 500000 entries"},
		{"64 MiB of names in a folder", write("names", func(w io.Writer) {
			io.WriteString(w, `{"schema_version":"1.0","links":{},"files":{},"directories":{"sys/block":[`)
			for i := range 2_000_000 {
				fmt.Fprintf(w, "\"%x\",", i)
			}
		}), false, "more than 500000 entries"},
		{"1 MiB of rubbish", write("rubbish", func(w io.Writer) {
			r := rand.New(rand.NewPCG(1, 2))
			b := make([]byte, 1<<20)
			for i := range b {
				b[i] = byte(r.Uint32())
			}
			w.Write(b)
		}), true, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command(os.Args[0], "-test.run=^TestHelperRead$", "-test.v")
			cmd.Env = append(os.Environ(), "QUIRKCHECK_VM_READ_CAPTURE="+c.file)
			if c.stdin {
				in, err := os.Open(c.file)
				if err != nil {
					t.Fatal(err)
				}
				defer in.Close()
				cmd.Stdin = io.MultiReader(in) // not a file: a pipe
				cmd.Env[len(cmd.Env)-1] = "QUIRKCHECK_VM_READ_CAPTURE=-"
			}
			out, _ := cmd.Output() // the pipe breaks when the reader has seen enough
			_, result, ok := strings.Cut(string(out), "RESULT ")
			fields := strings.SplitN(strings.SplitN(result, "\n", 2)[0], " ", 3)
			if !ok || len(fields) != 3 {
				t.Fatalf("the reader said %q", out)
			}
			kib, _ := strconv.Atoi(fields[0])
			ms, _ := strconv.Atoi(fields[1])
			t.Logf("%d MiB, %d ms: %s", kib>>10, ms, fields[2])
			if kib == 0 || kib > mostMemoryKiB || time.Duration(ms)*time.Millisecond > mostTime {
				t.Errorf("%d KiB, %d ms; at most %d KiB and %v", kib, ms, mostMemoryKiB, mostTime)
			}
			if fields[2] == "<nil>" || !strings.Contains(fields[2], c.says) {
				t.Errorf("says %q, want %q", fields[2], c.says)
			}
		})
	}
}

// FuzzRead: what is taken is JSON to others too and means the same to them, is
// the same after writing and reading it, and can be probed.
func FuzzRead(f *testing.F) {
	for _, s := range []string{
		with(""), with(`"files":{"sys/block/a":"x","b/c":{"base64":"AAEC"},"d":null}`),
		with(`"links":{"sys/block/sda":"../devices/virtual/block/sda"},"directories":{"sys/block":["sda"],"x":null},"files":{"sys/devices/virtual/block/sda/size":"8\n"}`),
		with(`"absent":{"sys":["x"]},"errors":{"sys/block":{"list":"permission denied"}},"setters":[],"commands":[]`),
		with(`"host":{"id":"a","id_stable":false,"label":"l","kernel":{"release":"6.1\ud83d\ude00","page_size":4096}}`),
		with(`"links":{"sys/block":"block","a":"a"},"directories":{"block":["sda"]}`),
		`{"schema_version":"1.0","files":{"../a":"b"}}`, "\x1f\x8b", "[[[[[[", `{"a":{"a":{"a":`, string(pack(f, with(""))), with("") + " x",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		c, err := Read(bytes.NewReader(in))
		if err != nil {
			var fault *Fault
			if !errors.As(err, &fault) {
				t.Errorf("%v is no fault", err)
			}
			return
		}
		plain := in
		if len(in) > 1 && in[0] == 0x1f {
			z, err := gzip.NewReader(bytes.NewReader(in))
			if err != nil {
				t.Fatal(err)
			}
			if plain, err = io.ReadAll(z); err != nil {
				t.Fatal(err)
			}
		}
		var peer struct {
			Files map[string]any    `json:"files"`
			Links map[string]string `json:"links"`
		}
		if err := json.Unmarshal(plain, &peer); err != nil {
			t.Fatalf("taken, and no JSON: %v", err)
		}
		// encoding/json takes keys of another case for the same; then the two
		// differ, and this one is right.
		if len(peer.Files) == len(c.Files) {
			for name, v := range peer.Files {
				if s, ok := v.(string); ok && string(c.Files[name]) != s {
					t.Errorf("%q is %q, to encoding/json %q", name, c.Files[name], s)
				}
			}
		}
		b, err := c.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Read(bytes.NewReader(b))
		if err != nil {
			t.Fatalf("what was written is refused: %v\n%s", err, b)
		}
		if diff := cmp.Diff(c, again); diff != "" {
			t.Errorf("(-read +read again)\n%s", diff)
		}
		_, _ = probe.Read(t.Context(), c.FS(), probe.Options{Workers: 1})
		_, _ = probe.ResolveName(c.FS(), "sda1")
	})
}
