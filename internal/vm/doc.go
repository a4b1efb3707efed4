// Package vm is the test bench of quirkcheck: it boots a packaged kernel in
// QEMU, with disks of chosen identity, limits and faults, and drives the guest
// step by step from a Go test.
//
//	func TestScan(t *testing.T) {
//		vm.Require(t, vm.Peers...)
//		vm.Test(t, vm.Config{
//			Kernel: vm.Stock(t),
//			Binary: "/tmp/quirkcheck", // see BuildStatic
//			Tools:  vm.Peers,
//			Disks: []vm.Disk{{
//				Serial: "S1", Bus: vm.VirtioSCSI, Image: vm.TestImage(t, 64<<20),
//				Vendor: "ATA", Product: "ST380013AS", Revision: "3.20",
//			}},
//		}, func(ctx context.Context, m *vm.Machine) error {
//			r, err := m.Run(ctx, "quirkcheck", "scan", "--format", "json")
//			...
//		})
//	}
//
// There is no KVM where these tests run, so the processor is emulated: a boot
// takes 5 to 20 seconds, and times inside the guest mean nothing by
// themselves. One boot should carry many devices and many checks, and only
// one machine should run at a time.
//
// # What a guest is made of
//
// The kernel is a Debian package, unpacked and not installed (FetchKernel).
// Its initramfs is a few cpio archives behind each other: busybox, host
// programs with their libraries, the kernel's modules, and the test's own part
// with the agent of package vm/guest as init. All but the last are cached in
// QUIRKCHECK_VM_CACHE, by default quirkcheck/vm in the user's cache folder,
// keyed by what they are made from and written atomically, so several runs may
// share it.
//
// # How it is driven
//
// The agent serves requests over a virtio-serial port (package vm/wire), so
// the console is for the kernel's last words only. Every wait has an end, and
// the errors say which: PanicError, TimeoutError, GoneError, EmulatorError,
// each with the last lines of the console. A machine that does not come up is
// started once more; after that nothing is repeated in silence, except by
// Test when the console shows the emulator's own fault.
//
// QEMU ends with the test: with the context, at Close, and when the test
// process dies. Disk images and the initramfs are unlinked files, so nothing is
// left to clean up.
//
// # Where faults come from
//
// What QEMU's disks are set to say, Disk has. Data that are damaged, late or
// lost come from package vm/faultdisk over NBD (ServeNBD). Commands of one kind
// or every nth that fail or get no answer: ScsiDebugEvery, ScsiDebugRules.
// INQUIRY, VPD pages, IDENTIFY DEVICE and sense data, which none of these
// reach, are those of a TCMUDisk: the agent serves it through the kernel's
// target_core_user and tcm_loop, as package vm/tcmu has it, and keeps all CDBs
// that came for TCMUCommands.
//
//	f, err := m.TCMU(ctx, vm.TCMUDisk{
//		Name: "liar", Serial: "L1", Inquiry: tcmu.Inquiry("ACME", "LIAR", "1.00"),
//		VPD:   map[byte][]byte{0xb0: tcmu.BlockLimits(65535, 0)[:12]},
//		Rules: []vm.TCMURule{{Prefix: []byte{0x28}, Status: tcmu.CheckCondition, Sense: tcmu.MediumError()}},
//	})
//
// Each takes 8 MiB of the guest's memory for its ring, and what is written to
// it. An answer may be late by tcmu.MaxHang at most, since the target core
// cannot give up a command. It works on all kernels of the matrix.
//
// # When tests run
//
// Require skips a test unless QUIRKCHECK_VM=1, and names what is missing
// otherwise; with CI set, a missing program fails the test. Further variables:
//
//	QUIRKCHECK_VM_CACHE    folder of kernels and layers
//	QUIRKCHECK_VM_KERNEL   kernel of the matrix to use as stock kernel ("6.18")
//	QUIRKCHECK_VM_KERNELS  "all" runs TestVMKernels and TestVMMatrix on the whole matrix
//	QUIRKCHECK_VM_REFRESH  "1" asks the suites for newer kernels
//	QUIRKCHECK_MATRIX_UPDATE  "1" has TestVMMatrix store its captures
package vm
