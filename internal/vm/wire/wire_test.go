package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRoundTrip(t *testing.T) {
	var b bytes.Buffer
	rq := Request{ID: 7, Op: OpExec, Args: []string{"a b", "\n", "{}"}, UID: 5}
	rep := Reply{ID: 7, Exit: 3, Names: []File{{"/x", 2}}}
	for _, err := range []error{
		Write(&b, Hello, Guest{Release: "6.1", Uptime: "4.2"}),
		Write(&b, Command, rq, []byte("stdin\nCMD {}\n")),
		Write(&b, Result, rep, nil, []byte{0, 1, '\n'}),
		Write(&b, Bye, struct{}{}),
		Write(&b, Bye, struct{}{}, []byte("x")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	r := bufio.NewReader(&b)
	next := func(kind string, head any) [][]byte {
		t.Helper()
		k, h, parts, err := Read(r)
		if err != nil || k != kind {
			t.Fatalf("read %q, %v; want %q", k, err, kind)
		}
		if err := json.Unmarshal(h, head); err != nil {
			t.Fatal(err)
		}
		return parts
	}
	var g Guest
	next(Hello, &g)
	if g.Release != "6.1" || g.Uptime != "4.2" {
		t.Errorf("got %+v", g)
	}
	var gotRq Request
	parts := next(Command, &gotRq)
	if diff := cmp.Diff(rq, gotRq); diff != "" || string(parts[0]) != "stdin\nCMD {}\n" {
		t.Errorf("part %q, (-want +got):\n%s", parts, diff)
	}
	var gotRep Reply
	parts = next(Result, &gotRep)
	if diff := cmp.Diff(rep, gotRep); diff != "" || len(parts) != 2 || len(parts[0]) != 0 || string(parts[1]) != "\x00\x01\n" {
		t.Errorf("parts %q, (-want +got):\n%s", parts, diff)
	}
	next(Bye, &struct{}{})
	if parts := next(Bye, &struct{}{}); len(parts) != 1 || string(parts[0]) != "x" {
		t.Errorf("parts of an empty header: %q", parts)
	}
	if _, _, _, err := Read(r); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %v, want io.EOF", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("RES {\"id\":1,\"sizes\":[2,0]}\nab"))
	f.Add([]byte("BYE {}\n"))
	f.Add([]byte("RES {\"sizes\":[-1]}\n"))
	f.Add([]byte("RES {\"sizes\":[99999999999]}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if strings.Contains(string(b), "0000") {
			return // a large part costs memory, and is refused only above a bound
		}
		_, head, parts, err := Read(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			return
		}
		n := len(head)
		for _, p := range parts {
			n += len(p)
		}
		if n > len(b) {
			t.Errorf("%d bytes gave %d", len(b), n)
		}
	})
}
