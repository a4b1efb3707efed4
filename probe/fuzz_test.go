package probe_test

import (
	"maps"
	"reflect"
	"testing"

	"github.com/quirkcheck/quirkcheck/internal/sysfstree"
	"github.com/quirkcheck/quirkcheck/probe"
)

// consistent checks every Value of a device: what is known has no error, what
// is not readable has one, and where nothing is known nothing is said.
func consistent(t *testing.T, d *probe.Device) {
	t.Helper()
	check := func(name string, v reflect.Value) {
		state, err := v.FieldByName("State").Interface().(probe.State), v.FieldByName("Err")
		content := v.FieldByName("V")
		switch {
		case (state == probe.Unreadable) == err.IsNil():
			t.Errorf("%s is %v with error %v", name, state, err)
		case state != probe.Known && content.Kind() == reflect.String && content.Len() > 0:
			t.Errorf("%s is %v and holds %q", name, state, content)
		case state == probe.Known && v.FieldByName("Source").Len() == 0:
			t.Errorf("%s is known and has no source", name)
		}
	}
	values := 0
	s := reflect.ValueOf(d).Elem()
	for i := range s.NumField() {
		f, field := s.Type().Field(i), s.Field(i)
		if f.IsExported() && field.Kind() == reflect.Struct && field.FieldByName("State").IsValid() {
			check(f.Name, field)
			values++
		}
	}
	if values == 0 {
		t.Fatal("a device has no value")
	}
	for code, page := range d.Pages {
		check(string(rune('0'+code>>4))+string(rune('0'+code&15)), reflect.ValueOf(page))
	}
	for _, name := range append(probe.Attributes(), "link_power_management_policy") {
		check(name, reflect.ValueOf(d.Attr(name)))
		check(name+" as a number", reflect.ValueOf(d.Uint(name)))
		text, ok := d.Text(name)
		if v := d.Attr(name); ok != v.Ok() || text != v.V {
			t.Errorf("%s: Text says %q, %v, Attr %+v", name, text, ok, v)
		}
	}
	check("SizeBytes", reflect.ValueOf(d.SizeBytes()))
	for _, n := range d.Notes {
		if n.What == "" || n.Why == "" || n.Source == "" {
			t.Errorf("note %+v lacks something", n)
		}
	}
	if d.IdentityPartial() && d.ATAModel.Ok() && d.ATAFirmware.Ok() {
		t.Error("identity is partial though both strings are known")
	}
}

// spoil cuts a file's good content to the share that the first byte names and
// writes the rest over its start, so that a short input reaches deep.
func spoil(good string, b []byte) string {
	if len(b) == 0 {
		return good
	}
	cut := []byte(good[:len(good)*int(b[0])/255])
	return string(append(b[1:len(b):len(b)], cut[min(len(b)-1, len(cut)):]...))
}

func FuzzTree(f *testing.F) {
	f.Add("ATA     ", "ACME DISK 9000  ", "1.0 ", []byte{}, []byte{}, []byte{}, "E:ID_ATA=1\nE:ID_MODEL_ENC=ACME\\x20DISK\n", "1280\n")
	f.Add("SEAGATE ", "ST900MM0006     ", "SKIP_VPD_PAGES", []byte("\xff\x00\xb0\xff\xff"), []byte{10}, []byte("\xffzz"), "E:ID_ATA=1\nE:ID_MODEL=x", "-1")
	b0, p89, id := blockLimits(8192, 2048), vpdPage(0x89, 0x238, make([]byte, 0x238)), identify("ACME DISK 9000", "FW 1.0")
	machine := newMachine()
	f.Fuzz(func(t *testing.T, vendor, model, rev string, spoilB0, spoil89, spoilID []byte, udev, number string) {
		m := maps.Clone(machine)
		for name, content := range map[string]string{
			sdaSCSI + "/vendor": vendor + "\n", sdaSCSI + "/model": model + "\n", sdaSCSI + "/rev": rev + "\n", sdaSCSI + "/blacklist": rev,
			sdaSCSI + "/vpd_pgb0": spoil(b0, spoilB0), sdaSCSI + "/vpd_pg89": spoil(p89, spoil89), sdaID: spoil(id, spoilID),
			"run/udev/data/b8:0": udev, sdaBlock + "/queue/max_sectors_kb": number, sdaBlock + "/size": number, "proc/version": model,
		} {
			file(m, name, content)
		}
		inv, err := probe.Read(t.Context(), m, probe.Options{Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		whole(t, inv, "sdb")
		d, ok := inv.Device("sda")
		if !ok {
			t.Fatalf("sda is missing: %+v", inv.Notes)
		}
		consistent(t, d)
		if k := inv.Kernel; k.Ok() != (k.Err == nil) {
			t.Errorf("kernel %+v", k)
		}
	})
}

// BenchmarkRead reads a machine of 1,000 SAS and SATA disks on 42 adapters.
func BenchmarkRead(b *testing.B) {
	const disks = 1000
	dir := b.TempDir()
	if err := sysfstree.Write(dir, sysfstree.Options{Disks: disks, Adapters: 42, Share: true}); err != nil {
		b.Fatal(err)
	}
	root := openRoot(b, dir)
	b.ReportAllocs()
	for b.Loop() {
		inv, err := probe.Read(b.Context(), root, probe.Options{})
		if err != nil {
			b.Fatal(err)
		}
		if len(inv.Devices) != disks || len(inv.Notes) != 0 {
			b.Fatalf("%d devices, %v", len(inv.Devices), inv.Notes)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/disks, "µs/disk")
}
