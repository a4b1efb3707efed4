package kernelsource

// Exception is a row that has no entry, and why it needs none.
type Exception struct {
	Family Family
	Key    string // Row.Key
	Why    string
}

// Exceptions lists the rows without an entry. An entry must have an identity
// that matches, and these rows match no device.
func Exceptions() []Exception {
	return []Exception{
		{Libata, `"INTEL*SSDSC2CT*"`, "stands behind INTEL*SSD*, which takes every name that this one fits"},
		{Libata, `"WDC WD3200JD-00KLB0" firmware "WD-WCAMR1130137"`, "the firmware field has 8 characters, and this one has 15: it looks like a serial number"},
		{Libata, `"WDC WD2500JD-00HBB0" firmware "WD-WMAL71490727"`, "the firmware field has 8 characters, and this one has 15: it looks like a serial number"},
		{SCSI, `"COMPAQ" "MSA1000 VOLUME"`, "stands behind MSA1000, which is a prefix of it and has the same flags"},
		{SCSI, `"DELL" "PV660F   PSEUDO"`, "stands behind PV660F, which is a prefix of it and has the same flags"},
		{SCSI, `"NRC" "MBR-7.4"`, "stands behind MBR-7, which is a prefix of it and has the same flags"},
	}
}
