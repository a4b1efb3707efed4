package probe

import "strings"

// moduleParams are the parameters of modules that change the limits of a
// device or what protects it, as MODULE.PARAMETER. A parameter of a module that
// is not loaded, or that its kernel does not have, is absent.
//
// Not here, since no kernel shows them: libata.force and scsi_mod.dev_flags,
// whose mode is 0 (drivers/ata/libata-core.c, drivers/scsi/scsi_devinfo.c). The
// command line has them, unless modprobe's configuration gave them.
var moduleParams = []string{
	"ahci.mobile_lpm_policy", // link power of mobile chipsets
	"dm_crypt.max_read_size", // bytes at which reads are split; not in 6.1
	"dm_crypt.max_write_size",
	"dm_raid.devices_handle_discard_safely",
	"firewire_sbp2.workarounds", // bit 0: 128 KiB
	"ib_iser.max_sectors",
	"libata.atapi_enabled",
	"libata.dma", // bits: disks, ATAPI, CFA. Without DMA there is no NCQ
	"libata.fua",
	"libata.ignore_hpa", // capacity
	"megaraid_sas.max_sectors",
	"mpi3mr.max_sgl_entries",
	"mpt3sas.max_sectors",
	"mpt3sas.max_sgl_entries",
	"mpt3sas.prot_mask", // protection information
	"nvme.io_queue_depth",
	"nvme.max_host_mem_size_mb", // host memory buffer
	"nvme.noacpi",               // power states that the firmware asks for
	"nvme.quirks",               // from 7.0
	"nvme_core.default_ps_max_latency_us",
	"nvme_core.disable_pi_offsets", // protection information
	"nvme_core.force_apst",
	"nvme_core.multipath",   // which device the limits are on
	"qla2xxx.ql2xenabledif", // protection information
	"qla2xxx.ql2xprotmask",
	"raid0.default_layout", // which of two layouts an array of unequal members has
	"raid456.devices_handle_discard_safely",
	"scsi_mod.default_dev_flags", // flags of the SCSI device list for names it does not have
	"usb_storage.quirks",         // replaces the built-in flags of a device
	"usbcore.quirks",             // link power, reset on resume
	"xen_blkfront.max_indirect_segments",
}

// ModuleParams lists the module parameters that are read, as MODULE.PARAMETER.
func ModuleParams() []string { return append([]string{}, moduleParams...) }

// Param returns a module parameter of the list ModuleParams, by
// MODULE.PARAMETER; - and _ are the same in it. It is absent where the module
// is not loaded or has no such parameter, and not asked where it is not in the
// list.
func (inv *Inventory) Param(name string) Value[string] {
	return inv.Params[strings.ReplaceAll(name, "-", "_")]
}

func (inv *Inventory) readParams(root dir) {
	inv.Params = make(map[string]Value[string], len(moduleParams))
	for _, name := range moduleParams {
		module, param, _ := strings.Cut(name, ".")
		source := "sys/module/" + module + "/parameters/" + param
		b, err := root.readFile(source)
		if err != nil {
			inv.Params[name] = failed[string](err, source)
			continue
		}
		inv.Params[name] = known(strings.TrimSuffix(string(b), "\n"), source)
	}
}
