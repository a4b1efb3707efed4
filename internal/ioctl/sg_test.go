package ioctl

import (
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestCommandDescriptorBlocks(t *testing.T) {
	for _, tt := range []struct {
		name string
		cdb  []byte
		want string
	}{
		{"READ(16)", Read16(0x0102030405060708, 0x1fff, 0), "8800" + "0102030405060708" + "00001fff" + "0000"},
		{"READ(16) from the medium", Read16(1, 1, FUA|DPO), "8818" + "0000000000000001" + "00000001" + "0000"},
		{"WRITE(16)", Write16(1<<32, 65536, 0), "8a00" + "0000000100000000" + "00010000" + "0000"},
		{"WRITE(16) to the medium", Write16(2, 8, FUA), "8a08" + "0000000000000002" + "00000008" + "0000"},
		{"VERIFY(16) with byte check", Verify16(7, 9), "8f02" + "0000000000000007" + "00000009" + "0000"},
		{"SYNCHRONIZE CACHE(16)", SynchronizeCache16(0, 0), "9100" + "0000000000000000" + "00000000" + "0000"},
		{"INQUIRY of a page", InquiryVPD(0x83, 0x1fc), "120183" + "01fc" + "00"},
		{"READ KEYS", PersistentReserveInReadKeys(0x208), "5e00" + "0000000000" + "0208" + "00"},
		{"READ RESERVATION", PersistentReserveInReadReservation(24), "5e01" + "0000000000" + "0018" + "00"},
	} {
		if got := hex.EncodeToString(tt.cdb); got != tt.want {
			t.Errorf("%s:\n got %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDecodeSense(t *testing.T) {
	for _, tt := range []struct {
		name, raw string
		want      Sense
		text      string
	}{
		{
			"fixed format", "70 00 05 00 00 00 00 0a 00 00 00 00 24 00 00 00 00 00",
			Sense{Key: KeyIllegalRequest, ASC: 0x24}, "ILLEGAL REQUEST 5h/24h/00h (invalid field in CDB)",
		},
		{
			"fixed format with the LBA", "f0 00 03 00 01 00 00 0a 00 00 00 00 11 00 00 00 00 00",
			Sense{Key: KeyMediumError, ASC: 0x11, Information: 65536, Valid: true},
			"MEDIUM ERROR 3h/11h/00h (unrecovered read error) at 65536",
		},
		{
			"descriptor format, libata's", "72 0b 47 00 00 00 00 0e 09 0c 00 00 00 00 00 00 00 00 00 00 00 00",
			Sense{Key: KeyAbortedCommand, ASC: 0x47, Descriptor: true}, "ABORTED COMMAND Bh/47h/00h (SCSI parity error)",
		},
		{
			"descriptor format with the LBA behind another descriptor",
			"72 0e 1d 00 00 00 00 14 03 06 00 00 00 00 00 00 00 0a 80 00 00 00 00 01 00 00 00 02",
			Sense{Key: KeyMiscompare, ASC: 0x1d, Descriptor: true, Information: 1<<32 | 2, Valid: true},
			"MISCOMPARE Eh/1Dh/00h (miscompare during verify operation) at 4294967298",
		},
		{
			"an earlier command's error", "71 00 04 00 00 00 00 0a 00 00 00 00 44 00 00 00 00 00",
			Sense{Key: KeyHardwareError, ASC: 0x44, Deferred: true}, "deferred HARDWARE ERROR 4h/44h/00h (internal target failure)",
		},
		{"fixed format cut behind the key", "70 00 06", Sense{Key: KeyUnitAttention}, "UNIT ATTENTION 6h/00h/00h"},
		{
			"additional length that ends before the codes", "70 00 06 00 00 00 00 02 00 00 00 00 29 01",
			Sense{Key: KeyUnitAttention}, "UNIT ATTENTION 6h/00h/00h",
		},
		{
			"additional length that claims more than is there", "70 00 06 00 00 00 00 ff 00 00 00 00 29 07",
			Sense{Key: KeyUnitAttention, ASC: 0x29, ASCQ: 7}, "UNIT ATTENTION 6h/29h/07h (reset occurred)",
		},
		{
			"a descriptor that claims more than is there", "72 03 11 00 00 00 00 0c 00 ff 80 00 00 00 00 00 00 00 00 01",
			Sense{Key: KeyMediumError, ASC: 0x11, Descriptor: true}, "MEDIUM ERROR 3h/11h/00h (unrecovered read error)",
		},
	} {
		got, err := DecodeSense(unhex(t, tt.raw))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if got.String() != tt.text {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.text)
		}
	}
	for _, raw := range []string{"", "70", "7000", "72", "720000"} {
		if _, err := DecodeSense(unhex(t, raw)); !errors.Is(err, ErrShort) {
			t.Errorf("sense %q: got %v, want an error of %v", raw, err, ErrShort)
		}
	}
	if s, err := DecodeSense(unhex(t, "7f0000000000000000")); err == nil {
		t.Errorf("vendor's response code: got %v, want an error", s)
	}
}

func TestOutcome(t *testing.T) {
	sense := func(s string) []byte { return unhex(t, s) }
	for _, tt := range []struct {
		name string
		r    SCSIResult
		want Outcome
	}{
		{"good", SCSIResult{}, OutcomeOK},
		{"recovered", SCSIResult{Status: StatusCheckCondition, Sense: sense("70000100000000000000000018000000")}, OutcomeOK},
		{"check condition without sense", SCSIResult{Status: StatusCheckCondition}, OutcomeError},
		{"medium error", SCSIResult{Status: StatusCheckCondition, Sense: sense("7203110000000000")}, OutcomeError},
		{"reset happened", SCSIResult{Status: StatusCheckCondition, Sense: sense("7206290000000000")}, OutcomeReset},
		{"mode parameters changed", SCSIResult{Status: StatusCheckCondition, Sense: sense("72062a0100000000")}, OutcomeRetry},
		{"miscompare", SCSIResult{Status: StatusCheckCondition, Sense: sense("720e1d0000000000")}, OutcomeMiscompare},
		{"busy", SCSIResult{Status: StatusBusy}, OutcomeError},
		{"task aborted", SCSIResult{Status: StatusTaskAborted}, OutcomeReset},
		{"time out wins over sense", SCSIResult{HostStatus: HostTimeOut, Status: StatusCheckCondition, Sense: sense("7203110000000000")}, OutcomeTimeout},
		{"reset", SCSIResult{HostStatus: HostReset}, OutcomeReset},
		{"abort", SCSIResult{HostStatus: HostAbort}, OutcomeReset},
		{"no connect", SCSIResult{HostStatus: HostNoConnect}, OutcomeGone},
		{"bad target", SCSIResult{HostStatus: HostBadTarget}, OutcomeGone},
		{"adapter error", SCSIResult{HostStatus: HostError}, OutcomeError},
	} {
		if got := tt.r.Outcome(); got != tt.want {
			t.Errorf("%s (%v): got %d, want %d", tt.name, tt.r, got, tt.want)
		}
	}
	r := SCSIResult{Status: StatusCheckCondition, HostStatus: HostTimeOut, DriverStatus: 0x0e, Resid: 512, Sense: sense("ff00")}
	if got, want := r.String(), "CHECK CONDITION, host DID_TIME_OUT, driver status 0x06, sense data ff 00, 512 bytes not transferred"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestParseReadKeys(t *testing.T) {
	for _, tt := range []struct {
		name, raw string
		keys      []uint64
		more      int
	}{
		{"none", "0000000100000000", nil, 0},
		{"two", "00000001 00000010 0000000000000abc 0000000000000001", []uint64{0xabc, 1}, 0},
		{"cut", "00000001 00000010 0000000000000abc 00000000", []uint64{0xabc}, 8},
		{"longer buffer", "00000001 00000008 0000000000000abc ffffffffffffffff", []uint64{0xabc}, 0},
	} {
		keys, more, err := ParseReadKeys(unhex(t, tt.raw))
		if err != nil || more != tt.more || !cmp.Equal(keys, tt.keys) {
			t.Errorf("%s: got %x, %d, %v; want %x, %d", tt.name, keys, more, err, tt.keys, tt.more)
		}
	}
	if _, _, err := ParseReadKeys(make([]byte, 7)); !errors.Is(err, ErrShort) {
		t.Errorf("seven bytes: %v", err)
	}
}

// TestRefusedIsAnError asks a plain file, which takes no commands.
func TestRefusedIsAnError(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd := int(f.Fd())
	if r, err := SCSI(fd, Read16(0, 1, 0), FromDevice, make([]byte, 512), time.Second); !errors.Is(err, unix.ENOTTY) {
		t.Errorf("SG_IO on a file: got %v, %v; want ENOTTY", r, err)
	}
	if s, err := NVMe(fd, NVMeCommand{Opcode: NVMeRead, Blocks: 1, Data: make([]byte, 512), Timeout: time.Second}); !errors.Is(err, unix.ENOTTY) {
		t.Errorf("NVMe on a file: got %v, %v; want ENOTTY", s, err)
	}
	if _, err := NVMeNamespace(fd); !errors.Is(err, unix.ENOTTY) {
		t.Errorf("NVME_IOCTL_ID on a file: %v", err)
	}
	if _, err := DeviceBytes(fd); !errors.Is(err, unix.ENOTTY) {
		t.Errorf("BLKGETSIZE64 on a file: %v", err)
	}
	for _, c := range []struct {
		cdb  []byte
		dir  Direction
		data []byte
	}{
		{nil, NoData, nil}, {make([]byte, 33), NoData, nil},
		{make([]byte, 6), NoData, make([]byte, 1)}, {make([]byte, 6), ToDevice, nil},
	} {
		if _, err := SCSI(fd, c.cdb, c.dir, c.data, 0); err == nil || errors.Is(err, unix.ENOTTY) {
			t.Errorf("%d bytes of CDB, %d of data, direction %d: %v", len(c.cdb), len(c.data), c.dir, err)
		}
	}
}

func TestNVMeEncode(t *testing.T) {
	data := make([]byte, 4096)
	got := NVMeCommand{
		Opcode: NVMeWrite, Namespace: 3, LBA: 0x0102030405060708, Blocks: 8, FUA: true, Data: data, Timeout: 2 * time.Second,
	}.encode()
	want := nvmePassthruCmd64{opcode: 1, nsid: 3, dataLen: 4096, cdw10: 0x05060708, cdw11: 0x01020304, cdw12: 1<<30 | 7, timeoutMS: 2000}
	if *got != want {
		t.Errorf("got %+v\nwant %+v", *got, want)
	}
	for _, c := range []NVMeCommand{
		{Opcode: NVMeRead}, {Opcode: NVMeRead, Blocks: 1}, {Opcode: NVMeFlush, Data: data},
		{Opcode: NVMeRead, Blocks: MaxNVMeBlocks + 1, Data: data},
	} {
		if _, err := NVMe(-1, c); err == nil || errors.Is(err, unix.EBADF) {
			t.Errorf("%d blocks in %d bytes: %v", c.Blocks, len(c.Data), err)
		}
	}
	for s, want := range map[NVMeStatus]Outcome{
		0: OutcomeOK, 0x4002: OutcomeError, 0x007: OutcomeTimeout, 0x4371: OutcomeTimeout, 0x285: OutcomeMiscompare, 0x281: OutcomeError,
	} {
		if got := s.Outcome(); got != want {
			t.Errorf("%v: got %d, want %d", s, got, want)
		}
	}
	if got, want := NVMeStatus(0x4281).String(), "status code type 2h, status code 81h (unrecovered read error)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// FuzzDecodeSense holds that what lies behind the device's own length changes
// nothing, and that decoding and naming never panic.
func FuzzDecodeSense(f *testing.F) {
	for _, s := range []string{
		"70000500000000 0a 00000000 2400 00000000", "f0000300010000 0a 00000000 1100 00000000",
		"720b4700000000 0e 090c00000000000000000000000000", "720e1d0000000014 030600000000 0000 000a80000000000100000002", "7f",
	} {
		f.Add(unhex(f, s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := DecodeSense(b)
		if err != nil {
			return
		}
		_ = s.String()
		_ = SCSIResult{Status: StatusCheckCondition, Sense: b}.String()
		if len(b) < 8 {
			return
		}
		end := 8 + int(b[7])
		if len(b) < end {
			return
		}
		more := append(append([]byte(nil), b[:end]...), 0xff, 0xff, 0xff)
		if again, err := DecodeSense(more); err != nil || again != s {
			t.Errorf("%x: got %+v; with other bytes behind its end %+v, %v", b, s, again, err)
		}
	})
}
