// Package wire is the protocol between a test and the agent in its guest.
//
// It runs over one virtio-serial port. A message is one line, a kind and a
// JSON header, followed by the bytes the header announces:
//
//	HELLO {"release":"6.1.0-50-amd64"}
//	CMD   {"id":1,"op":"exec","args":["lsblk"],"sizes":[0]}
//	RES   {"id":1,"exit":0,"sizes":[120,0]}<120 bytes>
//	BYE   {}
//
// The guest sends HELLO first, answers each CMD with one RES of the same id,
// in any order, and sends BYE before it powers off: without waiting for that
// the tail of the channel would be lost.
package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
)

// PortName is the name of the virtio-serial port.
const PortName = "quirkcheck.agent"

// Kinds of message.
const (
	Hello   = "HELLO"
	Command = "CMD"
	Result  = "RES"
	Bye     = "BYE"
)

// maxPart bounds one announced part, so that a guest gone mad cannot make the
// test allocate without end.
const maxPart = 256 << 20

// envelope is the part of every header that says which bytes follow.
type envelope struct {
	Sizes []int `json:"sizes,omitempty"`
}

// Guest is the header of HELLO.
type Guest struct {
	Release string `json:"release"` // uname -r
	Uptime  string `json:"uptime"`  // seconds since boot, as /proc/uptime has it
}

// A Request is the header of CMD. Which fields count depends on Op.
type Request struct {
	ID int    `json:"id"`
	Op string `json:"op"`

	Args      []string `json:"args,omitempty"` // exec: the command; glob: patterns; tree: roots; modprobe: name, parameters
	Env       []string `json:"env,omitempty"`
	Dir       string   `json:"dir,omitempty"`
	UID       uint32   `json:"uid,omitempty"`
	GID       uint32   `json:"gid,omitempty"`
	TimeoutMS int64    `json:"timeout_ms,omitempty"`

	Path string `json:"path,omitempty"`
	Mode uint32 `json:"mode,omitempty"` // put: permission bits; 0 means the file must exist (sysfs)

	Direct *Direct `json:"direct,omitempty"`

	Parts [][]byte `json:"-"` // exec: stdin; put: the content; tcmu: a description
}

// Ops of a Request.
const (
	OpExec     = "exec"
	OpGet      = "get"
	OpPut      = "put"
	OpGlob     = "glob"
	OpTree     = "tree"
	OpDisks    = "disks"
	OpModprobe = "modprobe"
	OpDirect   = "direct"
	OpPoweroff = "poweroff"

	// The disks of package tcmu. Path is a disk's name, and the first part the
	// JSON of a tcmu.Disk, or in the answer of the commands received.
	OpTCMUAdd      = "tcmu-add"
	OpTCMUSet      = "tcmu-set"
	OpTCMUCommands = "tcmu-commands"
	OpTCMURelease  = "tcmu-release"
	OpTCMURemove   = "tcmu-remove"
)

// Direct asks for O_DIRECT transfers of a pattern that names its own place:
// every 512-byte sector holds the seed and its sector number.
type Direct struct {
	Path       string `json:"path"`
	Offset     int64  `json:"offset"`
	Bytes      int64  `json:"bytes"` // in all
	BlockBytes int    `json:"block"` // of one call; at most 32 MiB
	Seed       uint64 `json:"seed"`
	Verify     bool   `json:"verify,omitempty"` // read and compare instead of writing
}

// A Mismatch is a byte that reads back differently.
type Mismatch struct {
	Offset    int64
	Want, Got byte
}

// A Disk is one whole block device of the guest.
type Disk struct {
	Name   string `json:"name"`   // sysfs name, "sda"
	Path   string `json:"path"`   // resolved path under /sys/devices
	Serial string `json:"serial"` // VPD page 80h, serial attribute or USB serial; "" when there is none
	Driver string `json:"driver"` // nearest driver above the disk that is not sd: the HBA's or transport's
}

// A Reply is the header of RES.
type Reply struct {
	ID    int    `json:"id"`
	Error string `json:"error,omitempty"` // why the operation could not be done
	Errno int    `json:"errno,omitempty"` // its error number, 0 when it has none

	Exit     int    `json:"exit,omitempty"`
	Signal   int    `json:"signal,omitempty"`
	TimedOut bool   `json:"timed_out,omitempty"`
	Stuck    bool   `json:"stuck,omitempty"` // not even SIGKILL ended it
	Names    []File `json:"names,omitempty"` // glob: one part each
	Disks    []Disk `json:"disks,omitempty"`

	Mismatched int64      `json:"mismatched,omitempty"` // bytes in all
	Mismatches []Mismatch `json:"mismatches,omitempty"` // the first of them

	Parts [][]byte `json:"-"` // exec: stdout, stderr; get: content; glob: contents; tree: a tar archive
}

// A File is a path that a glob found, with the error number its reading gave.
type File struct {
	Path  string `json:"path"`
	Errno int    `json:"errno,omitempty"`
}

// Write sends one message. head must marshal to a JSON object.
func Write(w io.Writer, kind string, head any, parts ...[]byte) error {
	obj, err := json.Marshal(head)
	if err != nil {
		return fmt.Errorf("encode %s: %w", kind, err)
	}
	var b bytes.Buffer
	b.WriteString(kind)
	b.WriteByte(' ')
	b.Write(obj)
	if len(parts) > 0 {
		var e envelope
		for _, p := range parts {
			e.Sizes = append(e.Sizes, len(p))
		}
		sizes, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("encode %s: %w", kind, err)
		}
		// Splice "sizes" into the object, so that the header stays one.
		b.Truncate(b.Len() - 1)
		if len(obj) > len("{}") {
			b.WriteByte(',')
		}
		b.Write(sizes[1:])
	}
	b.WriteByte('\n')
	for _, p := range parts {
		b.Write(p)
	}
	_, err = w.Write(b.Bytes())
	return err
}

// Read receives one message; head is its JSON object.
func Read(r *bufio.Reader) (kind string, head []byte, parts [][]byte, err error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return "", nil, nil, err
	}
	k, head, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
	if !ok {
		return "", nil, nil, fmt.Errorf("message without header: %.60q", line)
	}
	var e envelope
	if err := json.Unmarshal(head, &e); err != nil {
		return "", nil, nil, fmt.Errorf("header of %.20q: %w", k, err)
	}
	for _, n := range e.Sizes {
		if n < 0 || n > maxPart {
			return "", nil, nil, fmt.Errorf("%.20q announces a part of %d bytes", k, n)
		}
		p := make([]byte, n)
		if _, err := io.ReadFull(r, p); err != nil {
			return "", nil, nil, err
		}
		parts = append(parts, p)
	}
	return string(k), head, parts, nil
}
