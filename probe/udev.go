package probe

import (
	"errors"
	"io/fs"
	"strings"
)

// readUdev takes the full ATA strings from the udev database where ata_id put
// them (ID_ATA=1): also behind SAS HBAs and USB bridges. Where sysfs knows
// better, or contradicts, udev's record is left alone and the contradiction
// noted: a stale record belongs to another disk.
func (r *reader) readUdev(d *Device) {
	dev := d.Attr("dev")
	if !dev.Ok() || d.Kind != "disk" {
		return
	}
	source := "run/udev/data/b" + strings.TrimSpace(dev.V)
	b, err := r.root.readFile(source)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			d.note("udev", Unreadable, err.Error(), source)
		}
		return
	}
	props := udevProperties(string(b))
	if props["ID_ATA"] != "1" {
		return
	}
	model := strings.TrimSpace(unescapeUdev(props["ID_MODEL_ENC"]))
	if model == "" && !strings.Contains(props["ID_MODEL"], "_") {
		model = props["ID_MODEL"] // with a `_` nobody knows where blanks were
	}
	firmware := props["ID_REVISION"]
	switch {
	case d.ATAModel.Ok():
		if !sameUdev(d.ATAModel.V, model) {
			d.note("identity.ata", Known, "udev names the disk "+model+", the disk itself "+d.ATAModel.V+"; udev's record is not used", source)
			d.disagree("identity.ata.model", Source{d.ATAModel.V, d.ATAModel.Source}, Source{model, source})
		} else if d.ATAFirmware.Ok() && firmware != "" && !sameUdev(d.ATAFirmware.V, firmware) {
			d.disagree("identity.ata.firmware", Source{d.ATAFirmware.V, d.ATAFirmware.Source}, Source{firmware, source})
		}
		return
	case model == "":
		return
	case d.vendorATA() && !cutAgrees(model, d.Product.V):
		d.note("identity.ata", Known, "udev names the disk "+model+", sysfs "+strings.TrimSpace(d.Product.V)+"; udev's record is not used", source)
		d.disagree("identity.ata.model", Source{strings.TrimSpace(d.Product.V), d.Product.Source}, Source{model, source})
		return
	}
	// SCSI shows the last four characters of the firmware, or its first four. A
	// record that fits neither is of the time before an update, or of another
	// disk.
	if rev := strings.Trim(d.Revision.V, " \x00"); d.vendorATA() && d.Revision.Ok() && rev != "" && firmware != "" &&
		!strings.HasSuffix(firmware, udevName(rev)) && !strings.HasPrefix(firmware, udevName(rev)) {
		d.note("identity.ata", Known, "udev gives the disk firmware "+firmware+", sysfs shows "+rev+"; udev's record is not used", source)
		d.disagree("identity.ata.firmware", Source{rev, d.Revision.Source}, Source{firmware, source})
		return
	}
	d.ATAModel = known(model, source)
	if firmware != "" {
		d.ATAFirmware = known(firmware, source)
	}
	if s := props["ID_SERIAL_SHORT"]; s != "" && !d.Serial.Ok() {
		d.Serial = known(s, source)
	}
}

// udevProperties returns the E: lines of a record.
func udevProperties(text string) map[string]string {
	props := map[string]string{}
	for line := range strings.Lines(text) {
		if kv, ok := strings.CutPrefix(strings.TrimRight(line, "\n"), "E:"); ok {
			if k, v, ok := strings.Cut(kv, "="); ok {
				props[k] = v
			}
		}
	}
	return props
}

// unescapeUdev turns \x20 back into the byte it stands for.
func unescapeUdev(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) && s[i+1] == 'x' {
			if hi, lo := hexDigit(s[i+2]), hexDigit(s[i+3]); hi >= 0 && lo >= 0 {
				b.WriteByte(byte(hi<<4 | lo))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func lower(c byte) byte {
	if 'A' <= c && c <= 'F' {
		return c | 0x20
	}
	return c
}

func hexDigit(c byte) int {
	return strings.IndexByte("0123456789abcdef", lower(c))
}

// sameUdev compares with udev's rule that a run of blanks shows as one `_`.
func sameUdev(a, b string) bool { return udevName(a) == udevName(b) }

func udevName(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == ' ' || r == '_' || r == 0 }), "_")
}

// cutAgrees reports whether a cut PRODUCT IDENTIFICATION can be the start of
// the model.
func cutAgrees(model, product string) bool {
	cut := strings.Trim(product, " \x00")
	return strings.HasPrefix(udevName(model), udevName(cut))
}
