package probe

import (
	"errors"
	"fmt"
	"path"
	"strings"
)

// How DMA reaches memory (Device.IOMMU). A translating IOMMU bounds what the
// DMA layer calls the largest and the best mapping, and drivers cut their
// transfer sizes by these (drivers/iommu/dma-iommu.c, iommu_dma_opt_mapping_size).
const (
	IOMMUTranslated  = "translated"  // addresses are mapped for each transfer
	IOMMUPassthrough = "passthrough" // an IOMMU is there and not in the way
	IOMMUOff         = "off"         // the machine has none, or it is not in use
)

// readIOMMU reads what the IOMMU does for the PCI function at pci, or where
// there is none, for the nearest folder above from that is in a group. Its type
// is that of the group's default domain (sysfs-kernel-iommu_groups ABI, type).
// A virtio device is past the IOMMU unless it was told to use it.
func (r *reader) readIOMMU(pci, from, virtio string) Value[string] {
	if virtio != "" {
		if v, ok := r.virtioPast(virtio); ok {
			return v
		}
	}
	at := pci
	if at == "" {
		if at = r.grouped(from); at == "" {
			return Value[string]{}
		}
	}
	link := at + "/iommu_group"
	target, err := r.root.readLink(link)
	switch state := stateOf(err); state {
	case Known:
	case Absent:
		return r.noGroup(link)
	default:
		return failed[string](err, link)
	}
	group, err := linkTo(at, target)
	if err != nil {
		return Value[string]{State: Unreadable, Source: link, Err: err}
	}
	source := group + "/type"
	b, err := r.root.readFile(source)
	if err != nil {
		return failed[string](err, source)
	}
	switch kind := strings.TrimSpace(string(b)); kind {
	case "DMA", "DMA-FQ":
		return known(IOMMUTranslated, source)
	case "identity":
		return known(IOMMUPassthrough, source)
	default: // blocked, unmanaged, unknown: no driver of a disk works so
		return Value[string]{State: Unreadable, Source: source, Err: fmt.Errorf("%.20q does not say whether addresses are translated", kind)}
	}
}

// grouped is the nearest folder above from that is in an IOMMU group, "" for
// none: an adapter that is no PCI function.
func (r *reader) grouped(from string) string {
	for p := from; p != "." && p != "sys/devices" && p != "/"; p = path.Dir(p) {
		if _, err := r.root.readLink(p + "/iommu_group"); err == nil {
			return p
		}
	}
	return ""
}

// noGroup answers for a function that is in no group: nothing translates where
// the machine has no IOMMU (sysfs-class-iommu ABI). A kernel built without them
// has no such class, which a copy of a part of a tree has not either; that one
// lacks the class of /dev/mem too, which every kernel has.
func (r *reader) noGroup(link string) Value[string] {
	const class = "sys/class/iommu"
	names, err := r.root.list(class)
	switch state := stateOf(err); {
	case state == Known && len(names) == 0:
		return known(IOMMUOff, class)
	case state == Known:
		return Value[string]{State: Unreadable, Source: link, Err: errors.New("the machine has an IOMMU, and the adapter is in none of its groups")}
	case state == Absent:
		d, err := openDir(r.fsys, "sys/class/mem")
		if err != nil {
			return Value[string]{Source: class}
		}
		d.close()
		return known(IOMMUOff, class)
	}
	return failed[string](err, class)
}

// virtioAccessPlatform is the feature bit by which a virtio device takes
// addresses of the platform's DMA layer (VIRTIO 1.2, Reserved Feature Bits,
// VIRTIO_F_ACCESS_PLATFORM). Without it the kernel hands it physical ones.
const virtioAccessPlatform = 33

// virtioPast answers for a virtio device that takes physical addresses, by its
// features, a digit for each bit (drivers/virtio/virtio.c, features_show).
func (r *reader) virtioPast(at string) (Value[string], bool) {
	source := at + "/features"
	b, err := r.root.readFile(source)
	bits := strings.TrimSpace(string(b))
	if err != nil || len(bits) <= virtioAccessPlatform || strings.Trim(bits, "01") != "" || bits[virtioAccessPlatform] != '0' {
		return Value[string]{}, false
	}
	return known(IOMMUPassthrough, source), true
}
