package sysfstree

import (
	"encoding/binary"
	"fmt"
)

// A page is a binary attribute of a SCSI device.
type page struct {
	name string
	data []byte
}

// pages returns the standard INQUIRY data and the VPD pages, each as the
// device sends it.
func (d Disk) pages() []page {
	codes := []byte{0x00, 0x80, 0x83}
	if d.ATA() {
		codes = append(codes, 0x89)
	}
	codes = append(codes, 0xb0, 0xb1, 0xb2)
	list := []page{{"inquiry", d.inquiry()}, {"vpd_pg0", vpd(0x00, codes)},
		{"vpd_pg80", vpd(0x80, fmt.Appendf(nil, "%-20s", d.Serial))}, {"vpd_pg83", vpd(0x83, d.designators())}}
	if d.ATA() {
		list = append(list, page{"vpd_pg89", vpd(0x89, d.ataInformation())})
	}

	limits := make([]byte, 0x3c) // Block Limits
	binary.BigEndian.PutUint32(limits[4:], d.transferBlocks)
	binary.BigEndian.PutUint32(limits[8:], d.optimalBlocks)
	characteristics := make([]byte, 0x3c) // Block Device Characteristics
	binary.BigEndian.PutUint16(characteristics[0:], d.rpm)
	characteristics[3] = 2                   // 3.5 inch
	provisioning := []byte{0x00, 0, 0x00, 0} // Logical Block Provisioning: none
	return append(list, page{"vpd_pgb0", vpd(0xb0, limits)}, page{"vpd_pgb1", vpd(0xb1, characteristics)},
		page{"vpd_pgb2", vpd(0xb2, provisioning)})
}

// vpd puts the header of a VPD page before its payload (SPC-4, Vital product
// data parameters).
func vpd(code byte, payload []byte) []byte {
	b := []byte{0, code, 0, 0}
	binary.BigEndian.PutUint16(b[2:], uint16(len(payload)))
	return append(b, payload...)
}

// inquiry returns standard INQUIRY data of 96 bytes (SPC-4, Standard INQUIRY
// data).
func (d Disk) inquiry() []byte {
	b := make([]byte, 96)
	b[2] = 0x06 // SPC-4
	b[3] = 0x02 // response data format
	b[4] = byte(len(b) - 5)
	b[7] = 0x02 // CMDQUE
	copy(b[8:], fmt.Sprintf("%-8s%-16s%-4s", d.Vendor, d.Model, d.Revision))
	for i, v := range []uint16{0x00a0, 0x0460, 0x04c0} { // SAM-5, SPC-4, SBC-3
		binary.BigEndian.PutUint16(b[58+2*i:], v)
	}
	return b
}

// portAddress returns the SAS address of the port the disk answers on. An ATA
// disk has none, so its adapter makes one up.
func (d Disk) portAddress() uint64 {
	if d.wwn == 0 {
		return 0x44332211_00000000 + uint64(d.index)<<4
	}
	return d.wwn + 1
}

func (d Disk) t10() string {
	return fmt.Sprintf("%-8s%-40s%20s", d.Vendor, d.Model, d.Serial)
}

// wwid returns what the kernel makes of Device Identification.
func (d Disk) wwid() string {
	if d.wwn == 0 {
		return "t10." + d.t10()
	}
	return fmt.Sprintf("naa.%016x", d.wwn)
}

// designators returns the payload of Device Identification (SPC-4, Device
// Identification VPD page).
func (d Disk) designators() []byte {
	if d.wwn == 0 {
		// The form a SCSI/ATA translation layer gives a disk without a name.
		return append([]byte{0x02, 0x01, 0, 68}, d.t10()...)
	}
	b := binary.BigEndian.AppendUint64([]byte{0x01, 0x03, 0, 8}, d.wwn) // logical unit, NAA
	b = append(b, 0x61, 0x93, 0, 8)                                     // SAS target port, NAA
	b = binary.BigEndian.AppendUint64(b, d.portAddress())
	return append(b, 0x61, 0x94, 0, 4, 0, 0, 0, 1) // relative target port 1
}

// ataInformation returns the payload of ATA Information (SAT, ATA Information
// VPD page): who translates, the signature, and the disk's IDENTIFY DEVICE.
func (d Disk) ataInformation() []byte {
	b := make([]byte, 0x238)
	copy(b[4:], fmt.Sprintf("%-8s%-16s%-4s", "LSI", "LSI SATL", "0008"))
	copy(b[32:], []byte{0x34, 0x00, 0x50, 0x00, 0x01}) // device to host FIS, signature of an ATA disk
	b[52] = 0xec                                       // IDENTIFY DEVICE

	id := b[56:]
	word := func(n int, v uint16) { binary.LittleEndian.PutUint16(id[2*n:], v) }
	text := func(first, words int, s string) {
		for i := range words {
			pair := fmt.Sprintf("%-*s", 2*words, s)[2*i:]
			word(first+i, uint16(pair[0])<<8|uint16(pair[1]))
		}
	}
	text(10, 10, fmt.Sprintf("%20s", d.Serial))
	text(23, 4, d.Revision)
	text(27, 20, d.Model)
	word(49, 0x2f00) // LBA, DMA
	word(60, uint16(d.Sectors))
	word(61, uint16(d.Sectors>>16))
	word(76, 0x0202) // NCQ off, SATA 1.5 Gb/s
	word(80, 0x007e) // up to ATA/ATAPI-6
	word(83, 0x7c00) // 48-bit addresses
	word(84, 0x4003)
	word(86, 0x3c00)
	word(87, 0x4003)
	for i := range 4 {
		word(100+i, uint16(d.Sectors>>(16*i)))
	}
	id[510] = 0xa5
	var sum byte
	for _, v := range id[:511] {
		sum += v
	}
	id[511] = -sum
	return b
}
