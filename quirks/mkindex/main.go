// Command mkindex writes index.tsv of the database in the folder given; go
// generate ./quirks runs it.
package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/quirkcheck/quirkcheck/quirks"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: mkindex FOLDER")
		os.Exit(2)
	}
	var b bytes.Buffer
	err := quirks.WriteIndex(&b, os.DirFS(os.Args[1]))
	if err == nil {
		err = os.WriteFile(filepath.Join(os.Args[1], "index.tsv"), b.Bytes(), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mkindex:", err)
		os.Exit(1)
	}
}
