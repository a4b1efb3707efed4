package emit

import (
	"fmt"
	"testing"
	"testing/fstest"

	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

func parse(t testing.TB, s string) kernel.Release {
	t.Helper()
	r, err := kernel.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// entryFS holds one entry with the given match block.
func entryFS(match string) fstest.MapFS {
	const id = "scsi-test-entry-io-error"
	return fstest.MapFS{"scsi/" + id + ".yaml": {Data: fmt.Appendf(nil, `schema: 0
id: %s
title: Test entry
effect: io-error
severity: high
confidence: confirmed
match:
  %s
limits:
  max_sectors: 1024
references:
  - {type: report, url: "https://example.org/"}
examples:
  match: []
  no_match: []
`, id, match)}}
}
