package ata

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
)

// values returns everything that an Identify tells, by the names of Layout.
func values(id Identify) map[string]string {
	pair := func(n any, ok bool) string { return fmt.Sprint(n, ok) }
	all := map[string]string{}
	v := reflect.ValueOf(id)
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.IsExported() {
			all[f.Name] = fmt.Sprint(v.Field(i).Interface())
		}
	}
	all["Sectors"] = pair(id.Sectors())
	all["LogicalSectorBytes"] = pair(id.LogicalSectorBytes())
	all["PhysicalSectorBytes"] = pair(id.PhysicalSectorBytes())
	all["Rotation"] = pair(id.Rotation())
	all["QueueDepth"] = pair(id.QueueDepth())
	all["WWN"] = pair(id.WWN())
	return all
}

// What lies behind the words that a value needs does not change it, and a word less
// is one too few for some dump.
func TestLayoutIsTheParsers(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	enough := map[string]bool{} // names for which one word less changed a value
	files := dumps(t)
	// No dump at hand has sectors of another size than 512 bytes.
	large := dump{File: "sectors of 4096 bytes", data: bytes.Clone(files[0].data)}
	binary.LittleEndian.PutUint16(large.data[2*wordSectorSize:], 0x5000)
	binary.LittleEndian.PutUint16(large.data[2*wordLogicalSector:], 2048)
	// Nor has one 48-bit addresses and no number of them.
	empty := dump{File: "LBA48 of no sectors", data: bytes.Clone(files[0].data)}
	for n, w := range map[int]uint16{wordCapabilities: 1 << 9, wordCommandSets2: 1<<14 | 1<<10, wordLBA48Sectors: 0, wordLBA48Sectors + 1: 0, wordLBA48Sectors + 2: 0, wordLBA48Sectors + 3: 0} {
		binary.LittleEndian.PutUint16(empty.data[2*n:], w)
	}
	files = append(files, large, empty)
	for _, d := range files {
		id, err := ParseIdentify(d.data)
		if err != nil {
			t.Fatal(err)
		}
		want := values(id)
		if len(Layout()) != len(want) {
			t.Fatalf("%d fields in the layout, %d values", len(Layout()), len(want))
		}
		for _, f := range Layout() {
			if _, ok := want[f.Name]; !ok || f.Words == "" {
				t.Fatalf("%+v: no such value, or no words", f)
			}
			for range 50 {
				b := bytes.Clone(d.data)
				change := func(from int) string {
					for i := 2 * from; i < len(b); i++ {
						b[i] = byte(rnd.Uint32())
					}
					id, err := ParseIdentify(b)
					if err != nil {
						t.Fatal(err)
					}
					return values(id)[f.Name]
				}
				if got := change(f.Need); got != want[f.Name] {
					t.Fatalf("%s: %s is %s with other words from %d on, was %s", d.File, f.Name, got, f.Need, want[f.Name])
				}
				if got := change(f.Need - 1); got != want[f.Name] {
					enough[f.Name] = true
				}
			}
		}
	}
	for _, f := range Layout() {
		if !enough[f.Name] {
			t.Errorf("%s: word %d makes no difference in %d dumps", f.Name, f.Need-1, len(files))
		}
	}
}
