package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/quirkcheck/quirkcheck/internal/vm/wire"
)

// readLimit and readTimeout bound one file of a glob or tree: the trace pipe
// has no end, and reading a limit can hang while a queue cannot be frozen.
const (
	readLimit   = 4 << 20
	readTimeout = 2 * time.Second
)

// readSome reads up to readLimit bytes, giving up after readTimeout.
func readSome(path string) ([]byte, error) {
	type result struct {
		b   []byte
		err error
	}
	c := make(chan result, 1)
	go func() {
		f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			c <- result{nil, err}
			return
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, readLimit))
		c <- result{b, err}
	}()
	select {
	case r := <-c:
		return r.b, r.err
	case <-time.After(readTimeout):
		return nil, fmt.Errorf("read %s: %w", path, syscall.ETIMEDOUT)
	}
}

func errno(err error) int {
	var e syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return int(e)
	}
	return int(syscall.EIO)
}

func glob(patterns []string) wire.Reply {
	var rep wire.Reply
	for _, p := range patterns {
		names, err := filepath.Glob(p)
		if err != nil {
			return failed(fmt.Errorf("glob %s: %w", p, err))
		}
		for _, n := range names {
			if st, err := os.Stat(n); err == nil && st.IsDir() {
				continue
			}
			b, err := readSome(n)
			rep.Names = append(rep.Names, wire.File{Path: n, Errno: errno(err)})
			rep.Parts = append(rep.Parts, b)
		}
	}
	return rep
}

// errnoRecord is the PAX record of a file that is there and cannot be read.
const errnoRecord = "QUIRKCHECK.errno"

// tree copies directories file by file, as tar(1) cannot: sizes in sysfs lie.
func tree(roots []string) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, root := range roots {
		err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
			if err != nil {
				if path == root {
					return err
				}
				return nil // gone while we walked
			}
			h := &tar.Header{Name: strings.TrimPrefix(path, "/"), Mode: 0o755, Format: tar.FormatPAX}
			if st, err := e.Info(); err == nil {
				h.Mode = int64(st.Mode().Perm())
			}
			var content []byte
			switch {
			case e.IsDir():
				h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
			case e.Type() == fs.ModeSymlink:
				h.Typeflag = tar.TypeSymlink
				if h.Linkname, err = os.Readlink(path); err != nil {
					return nil
				}
			case e.Type().IsRegular():
				h.Typeflag = tar.TypeReg
				content, err = readSome(path)
				if err != nil {
					content = nil
					h.PAXRecords = map[string]string{errnoRecord: strconv.Itoa(errno(err))}
				}
				h.Size = int64(len(content))
			default:
				return nil
			}
			if err := w.WriteHeader(h); err != nil {
				return fmt.Errorf("archive %s: %w", path, err)
			}
			_, err = w.Write(content)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func disks() ([]wire.Disk, error) {
	entries, err := os.ReadDir("/sys/block")
	if err != nil {
		return nil, err
	}
	var out []wire.Disk
	for _, e := range entries {
		path, err := filepath.EvalSymlinks("/sys/block/" + e.Name())
		if err != nil {
			continue // unplugged meanwhile
		}
		out = append(out, wire.Disk{Name: e.Name(), Path: path, Serial: serial(path), Driver: driver(path)})
	}
	return out, nil
}

func serial(path string) string {
	text := func(name string) string {
		b, err := readSome(name)
		if err != nil {
			return ""
		}
		return strings.Trim(string(b), " \n\x00")
	}
	// SPC, Unit Serial Number VPD page: four bytes of header, then the text.
	if b, err := readSome(path + "/device/vpd_pg80"); err == nil && len(b) > 4 {
		return strings.Trim(string(b[4:]), " \x00")
	}
	for _, n := range []string{"/serial", "/device/serial"} { // virtio-blk, NVMe
		if s := text(path + n); s != "" {
			return s
		}
	}
	// usb-storage suppresses VPD pages; the USB device above has the serial.
	for dir := path; dir != "/sys/devices" && dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir + "/bDeviceClass"); err == nil {
			return text(dir + "/serial")
		}
	}
	return ""
}

func driver(path string) string {
	for dir := filepath.Dir(path); dir != "/sys/devices" && dir != "/"; dir = filepath.Dir(dir) {
		l, err := os.Readlink(dir + "/driver")
		if err == nil && filepath.Base(l) != "sd" {
			return filepath.Base(l)
		}
	}
	return ""
}
