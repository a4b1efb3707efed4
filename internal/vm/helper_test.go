package vm

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"runtime"
	"testing"
)

type tarFile struct{ content, link, errno string }

func untar(b []byte) (map[string]tarFile, error) {
	out := map[string]tarFile{}
	r := tar.NewReader(bytes.NewReader(b))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		c, err := io.ReadAll(r)
		if err != nil {
			return nil, err
		}
		out[h.Name] = tarFile{string(c), h.Linkname, h.PAXRecords["QUIRKCHECK.errno"]}
	}
}

// recorder is a test that takes note of how it ended.
type recorder struct {
	testing.TB
	skipped, failed bool
}

func (r *recorder) Skip(...any)  { r.skipped = true; runtime.Goexit() }
func (r *recorder) Fatal(...any) { r.failed = true; runtime.Goexit() }
func (r *recorder) Helper()      {}
