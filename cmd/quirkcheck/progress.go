package main

import (
	"os"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// progressAfter is how long a reading may take before it shows how far it is.
const progressAfter = 2 * time.Second

// progress returns a function for probe.Options.Progress that draws a bar on
// stderr where that is a terminal, and one that takes the bar away.
func (a *app) progress() (step func(done, total int), stop func()) {
	return a.progressOf("reading devices ")
}

// progressOf is progress with another label.
func (a *app) progressOf(label string) (step func(done, total int), stop func()) {
	f, ok := a.stderr.(*os.File)
	if !ok || !isTerminal(f) {
		return nil, func() {}
	}
	start := time.Now()
	var p *mpb.Progress
	var bar *mpb.Bar
	step = func(done, total int) {
		if bar == nil {
			if time.Since(start) < progressAfter || done == total {
				return
			}
			p = mpb.New(mpb.WithOutput(f), mpb.WithWidth(40))
			bar = p.AddBar(int64(total), mpb.BarRemoveOnComplete(),
				mpb.PrependDecorators(decor.Name(label)), mpb.AppendDecorators(decor.CountersNoUnit("%d of %d")))
		}
		bar.SetCurrent(int64(done))
	}
	stop = func() {
		if bar != nil {
			bar.Abort(true)
			p.Wait()
		}
	}
	return step, stop
}

// isTerminal reports whether a reader or writer is a terminal.
func isTerminal(w any) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull) // a character device as well
	return err != nil || !os.SameFile(info, null)
}
