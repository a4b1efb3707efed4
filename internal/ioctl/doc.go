// Package ioctl sends commands and control calls to block devices and files of
// Linux: SG_IO and NVMe pass-through, the block layer's ioctls, FIEMAP, and the
// memory whose physical shape decides how a transfer is cut. It holds all
// unsafe code of the module and imports none of ours.
//
// File descriptors are the caller's, and stay open while a call runs. Data
// may lie in Go memory or in a Memory: it is pinned for the length of a call,
// and pointers in kernel structures are pointers.
//
// # How long a call takes
//
// A pass-through command cannot be interrupted, not even by SIGKILL, and a
// command's timeout is not the time until the call returns: error handling
// follows it, and takes two to three times as long. Some drivers (virtio-scsi,
// megaraid) restart the timer, so their commands never time out. A caller
// that must go on waits in another process.
//
// # Errors
//
// An error of a pass-through function is the ioctl's own: the kernel refused
// the command before the device saw it (EINVAL and EIO: too long or too many
// segments) or the device is no longer there (ENODEV, ENXIO). What a device
// answered is a result, not an error. Errors wrap the errno, which errors.Is
// maps to fs.ErrPermission and fs.ErrNotExist.
package ioctl
