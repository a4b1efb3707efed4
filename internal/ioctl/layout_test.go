package ioctl

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestLayoutMatchesHeaders compares sizes, offsets and request numbers with what
// the C compiler makes of the system's headers. gcc is a stated requirement of
// the module, so its lack is a failure.
func TestLayoutMatchesHeaders(t *testing.T) {
	var sg sgIOHdr
	var nv64 nvmePassthruCmd64
	var fm fiemapHeader
	var fe fiemapExtent
	want := []struct {
		expr string // C
		got  uintptr
	}{
		{"sizeof(struct sg_io_hdr)", unsafe.Sizeof(sg)},
		{"offsetof(struct sg_io_hdr, interface_id)", unsafe.Offsetof(sg.interfaceID)},
		{"offsetof(struct sg_io_hdr, dxfer_direction)", unsafe.Offsetof(sg.dxferDirection)},
		{"offsetof(struct sg_io_hdr, cmd_len)", unsafe.Offsetof(sg.cmdLen)},
		{"offsetof(struct sg_io_hdr, mx_sb_len)", unsafe.Offsetof(sg.mxSBLen)},
		{"offsetof(struct sg_io_hdr, iovec_count)", unsafe.Offsetof(sg.iovecCount)},
		{"offsetof(struct sg_io_hdr, dxfer_len)", unsafe.Offsetof(sg.dxferLen)},
		{"offsetof(struct sg_io_hdr, dxferp)", unsafe.Offsetof(sg.dxferp)},
		{"offsetof(struct sg_io_hdr, cmdp)", unsafe.Offsetof(sg.cmdp)},
		{"offsetof(struct sg_io_hdr, sbp)", unsafe.Offsetof(sg.sbp)},
		{"offsetof(struct sg_io_hdr, timeout)", unsafe.Offsetof(sg.timeout)},
		{"offsetof(struct sg_io_hdr, flags)", unsafe.Offsetof(sg.flags)},
		{"offsetof(struct sg_io_hdr, pack_id)", unsafe.Offsetof(sg.packID)},
		{"offsetof(struct sg_io_hdr, usr_ptr)", unsafe.Offsetof(sg.usrPtr)},
		{"offsetof(struct sg_io_hdr, status)", unsafe.Offsetof(sg.status)},
		{"offsetof(struct sg_io_hdr, masked_status)", unsafe.Offsetof(sg.maskedStatus)},
		{"offsetof(struct sg_io_hdr, msg_status)", unsafe.Offsetof(sg.msgStatus)},
		{"offsetof(struct sg_io_hdr, sb_len_wr)", unsafe.Offsetof(sg.sbLenWr)},
		{"offsetof(struct sg_io_hdr, host_status)", unsafe.Offsetof(sg.hostStatus)},
		{"offsetof(struct sg_io_hdr, driver_status)", unsafe.Offsetof(sg.driverStatus)},
		{"offsetof(struct sg_io_hdr, resid)", unsafe.Offsetof(sg.resid)},
		{"offsetof(struct sg_io_hdr, duration)", unsafe.Offsetof(sg.duration)},
		{"offsetof(struct sg_io_hdr, info)", unsafe.Offsetof(sg.info)},
		{"SG_IO", sgIO},
		{"-(SG_DXFER_NONE)", -sgDxferNone},
		{"-(SG_DXFER_TO_DEV)", -sgDxferToDev},
		{"-(SG_DXFER_FROM_DEV)", -sgDxferFromDev},

		{"sizeof(struct nvme_passthru_cmd)", unsafe.Offsetof(nv64.rsvd2) + 4},
		{"offsetof(struct nvme_passthru_cmd, nsid)", unsafe.Offsetof(nv64.nsid)},
		{"offsetof(struct nvme_passthru_cmd, metadata)", unsafe.Offsetof(nv64.metadata)},
		{"offsetof(struct nvme_passthru_cmd, addr)", unsafe.Offsetof(nv64.addr)},
		{"offsetof(struct nvme_passthru_cmd, metadata_len)", unsafe.Offsetof(nv64.metadataLen)},
		{"offsetof(struct nvme_passthru_cmd, data_len)", unsafe.Offsetof(nv64.dataLen)},
		{"offsetof(struct nvme_passthru_cmd, cdw10)", unsafe.Offsetof(nv64.cdw10)},
		{"offsetof(struct nvme_passthru_cmd, cdw15)", unsafe.Offsetof(nv64.cdw15)},
		{"offsetof(struct nvme_passthru_cmd, timeout_ms)", unsafe.Offsetof(nv64.timeoutMS)},
		{"offsetof(struct nvme_passthru_cmd, result)", unsafe.Offsetof(nv64.rsvd2)},
		{"sizeof(struct nvme_passthru_cmd64)", unsafe.Sizeof(nv64)},
		{"offsetof(struct nvme_passthru_cmd64, opcode)", unsafe.Offsetof(nv64.opcode)},
		{"offsetof(struct nvme_passthru_cmd64, nsid)", unsafe.Offsetof(nv64.nsid)},
		{"offsetof(struct nvme_passthru_cmd64, addr)", unsafe.Offsetof(nv64.addr)},
		{"offsetof(struct nvme_passthru_cmd64, metadata_len)", unsafe.Offsetof(nv64.metadataLen)},
		{"offsetof(struct nvme_passthru_cmd64, data_len)", unsafe.Offsetof(nv64.dataLen)},
		{"offsetof(struct nvme_passthru_cmd64, cdw10)", unsafe.Offsetof(nv64.cdw10)},
		{"offsetof(struct nvme_passthru_cmd64, cdw11)", unsafe.Offsetof(nv64.cdw11)},
		{"offsetof(struct nvme_passthru_cmd64, cdw12)", unsafe.Offsetof(nv64.cdw12)},
		{"offsetof(struct nvme_passthru_cmd64, timeout_ms)", unsafe.Offsetof(nv64.timeoutMS)},
		{"offsetof(struct nvme_passthru_cmd64, result)", unsafe.Offsetof(nv64.result)},
		{"NVME_IOCTL_ID", nvmeIoctlID},
		{"NVME_IOCTL_IO_CMD", nvmeIoctlIOCmd},
		{"NVME_IOCTL_IO64_CMD", nvmeIoctlIO64Cmd},

		{"sizeof(struct fiemap)", unsafe.Sizeof(fm)},
		{"offsetof(struct fiemap, fm_start)", unsafe.Offsetof(fm.start)},
		{"offsetof(struct fiemap, fm_length)", unsafe.Offsetof(fm.length)},
		{"offsetof(struct fiemap, fm_flags)", unsafe.Offsetof(fm.flags)},
		{"offsetof(struct fiemap, fm_mapped_extents)", unsafe.Offsetof(fm.mappedExtents)},
		{"offsetof(struct fiemap, fm_extent_count)", unsafe.Offsetof(fm.extentCount)},
		{"offsetof(struct fiemap, fm_extents)", unsafe.Offsetof(fiemap{}.extents)},
		{"sizeof(struct fiemap_extent)", unsafe.Sizeof(fe)},
		{"offsetof(struct fiemap_extent, fe_logical)", unsafe.Offsetof(fe.logical)},
		{"offsetof(struct fiemap_extent, fe_physical)", unsafe.Offsetof(fe.physical)},
		{"offsetof(struct fiemap_extent, fe_length)", unsafe.Offsetof(fe.length)},
		{"offsetof(struct fiemap_extent, fe_flags)", unsafe.Offsetof(fe.flags)},
		{"FS_IOC_FIEMAP", fiemapRequest},
		{"FIEMAP_FLAG_SYNC", fiemapSync},
		{"FIEMAP_EXTENT_LAST", uintptr(ExtentLast)},
		{"FIEMAP_EXTENT_UNKNOWN", uintptr(ExtentUnknown)},
		{"FIEMAP_EXTENT_DELALLOC", uintptr(ExtentDelalloc)},
		{"FIEMAP_EXTENT_ENCODED", uintptr(ExtentEncoded)},
		{"FIEMAP_EXTENT_DATA_ENCRYPTED", uintptr(ExtentDataEncrypted)},
		{"FIEMAP_EXTENT_NOT_ALIGNED", uintptr(ExtentNotAligned)},
		{"FIEMAP_EXTENT_DATA_INLINE", uintptr(ExtentDataInline)},
		{"FIEMAP_EXTENT_DATA_TAIL", uintptr(ExtentDataTail)},
		{"FIEMAP_EXTENT_UNWRITTEN", uintptr(ExtentUnwritten)},
		{"FIEMAP_EXTENT_MERGED", uintptr(ExtentMerged)},
		{"FIEMAP_EXTENT_SHARED", uintptr(ExtentShared)},

		{"BLKGETZONESZ", blkGetZoneSz},
		{"BLKGETSIZE64", unix.BLKGETSIZE64},
		{"BLKSSZGET", unix.BLKSSZGET},
		{"BLKPBSZGET", unix.BLKPBSZGET},
		{"BLKROGET", unix.BLKROGET},
		{"BLKFLSBUF", unix.BLKFLSBUF},
		{"FS_IOC_GETFLAGS", unix.FS_IOC_GETFLAGS},
		{"FS_COMPR_FL", FlagCompressed},
		{"FS_IMMUTABLE_FL", FlagImmutable},
		{"FS_APPEND_FL", FlagAppend},
		{"FS_ENCRYPT_FL", FlagEncrypted},
		{"FS_NOCOW_FL", FlagNoCOW},
		{"FS_INLINE_DATA_FL", FlagInline},
	}
	var src strings.Builder
	src.WriteString(`#include <stddef.h>
#include <stdio.h>
#include <scsi/sg.h>
#include <linux/blkzoned.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/nvme_ioctl.h>
int main(void) {
`)
	for _, w := range want {
		fmt.Fprintf(&src, "\tprintf(\"%%lu\\n\", (unsigned long)(%s));\n", w.expr)
	}
	src.WriteString("\treturn 0;\n}\n")
	dir := t.TempDir()
	file, prog := filepath.Join(dir, "layout.c"), filepath.Join(dir, "layout")
	if err := os.WriteFile(file, []byte(src.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-o", prog, file).CombinedOutput(); err != nil {
		t.Fatalf("gcc, which the tests need: %v\n%s", err, out)
	}
	out, err := exec.Command(prog).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(out))
	if len(lines) != len(want) {
		t.Fatalf("%d lines for %d expressions", len(lines), len(want))
	}
	for i, w := range want {
		if got := fmt.Sprint(w.got); got != lines[i] {
			t.Errorf("%s: got %s, C says %s", w.expr, got, lines[i])
		}
	}
}
