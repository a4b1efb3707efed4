// Package audit says what an upgrade of the kernel does to the devices of a
// machine, before it is made: each limit now and then, and why; what bites and
// what stops biting; what should be deployed first; and with several machines
// which of them goes first.
//
//	h := audit.New(inv, db, policy, audit.Options{Predict: kernel.Predict})
//	r := h.To(release)
//
// The present is the report of a scan. The limits under another release are
// predicted, device by device from the bottom of each stack up, and the same
// subjects, with these limits and that release, are judged again by the same
// code. What cannot be predicted stays unknown, and so do the findings that hang
// on it. The package does no I/O.
package audit
