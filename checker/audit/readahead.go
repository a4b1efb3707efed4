package audit

import (
	"github.com/quirkcheck/quirkcheck/internal/kernel"
)

// readAhead is read_ahead_kb now, and whether somebody set it.
type readAhead struct {
	seen, own kernel.Num // own: as the running kernel makes it
	user      bool       // it is not what the running kernel makes of the limits
}

// The kernel reads ahead twice the optimal I/O size since 5.10 (c2e4cd57cfa1),
// and where a rotational disk names none twice max_sectors_kb since 6.17
// (459779d04ae8; recorded on 6.17.10 and 7.3.4). From 6.18 on a write of a queue
// limit raises it, and never lowers it (recorded on 7.3.4).
var (
	aheadFromOptimal  = []kernel.Row{{Tree: "mainline", Since: "5.10"}}
	aheadNotFromLimit = []kernel.Row{{Tree: "mainline", Until: "6.17"}} // no stable tree took it
	aheadOnWrite      = []kernel.Row{{Tree: "mainline", Since: "6.18"}}
)

// defaultReadAhead is read_ahead_kb as a release makes it of limits.
func defaultReadAhead(r kernel.Release, limitKB, optimal, page kernel.Num, rotational kernel.Truth) kernel.Num {
	const least = 128 // VM_READAHEAD_PAGES
	ask := func(rows []kernel.Row) kernel.Truth {
		a := kernel.Carries(rows, r)
		if a.Low {
			return kernel.Unknown
		}
		return a.Truth
	}
	if !optimal.Known {
		return kernel.Num{}
	}
	pageBytes := uint64(4096)
	if page.Known && page.V >= 4096 {
		pageBytes = page.V
	}
	if optimal.V > 0 {
		twice := uint64(uint32(optimal.V*2)) / pageBytes * pageBytes / 1024
		switch ask(aheadFromOptimal) {
		case kernel.True:
			return kernel.N(max(least, twice))
		case kernel.False:
			return kernel.Num{} // each driver for itself
		}
		return kernel.Num{}
	}
	switch min(ask(aheadNotFromLimit).Not(), rotational) {
	case kernel.True:
		if !limitKB.Known {
			return kernel.Num{}
		}
		return kernel.N(max(least, limitKB.V*2*1024/pageBytes*pageBytes/1024))
	case kernel.Unknown:
		return kernel.Num{}
	}
	return kernel.N(least)
}

func (d *device) rotational() kernel.Truth {
	v, ok := d.sub.Settings["rotational"]
	switch {
	case !ok || v.IsText:
		return kernel.Unknown
	case v.Num == 0:
		return kernel.False
	}
	return kernel.True
}

// ownReadAhead is read_ahead_kb as a release makes it of a device: of the limit
// that it chooses, and where somebody then sets another one, of the larger, as a
// write never lowers it. Before 6.18 a write may; which of the two stays then is
// not known.
func ownReadAhead(d *device, r kernel.Release, p kernel.Prediction) kernel.Num {
	if d.inputs.Kind == "loop" { // newer kernels take rotational over from what is behind it
		return kernel.Num{}
	}
	of := func(limit kernel.Num) kernel.Num {
		return defaultReadAhead(r, limit, p.OptimalIOSize, d.inputs.PageBytes, d.rotational())
	}
	set, own := of(p.MaxSectorsKB), of(p.DefaultKB)
	switch {
	case set == own || !set.Known || !own.Known || set.V > own.V:
		return set
	case kernel.Carries(aheadOnWrite, r).Truth == kernel.True:
		return own
	}
	return kernel.Num{}
}

func (h *Host) readAheadNow(d *device) readAhead {
	a := readAhead{seen: num(d.sub, "read_ahead_kb")}
	if v, ok := d.sub.Settings["read_ahead_kb"]; ok && !v.IsText && !a.seen.Known {
		a.seen = kernel.N(v.Num)
	}
	a.own = ownReadAhead(d, h.from, d.now)
	a.user = a.seen.Known && a.own.Known && a.seen != a.own
	return a
}

// readAheadThen is read_ahead_kb under a release: what somebody set is carried
// over, what the kernel made is made anew.
func (h *Host) readAheadThen(d *device, p kernel.Prediction, to kernel.Release) kernel.Num {
	switch a := d.readAhead; {
	case a.user:
		return a.seen
	case a.seen.Known && !a.own.Known:
		return kernel.Num{} // somebody's or the kernel's: not known
	}
	return ownReadAhead(d, to, p)
}

// readAheadAfterWrite is what a write of max_sectors_kb makes of read_ahead_kb;
// ok is false where the release leaves it alone, or that is not known.
func readAheadAfterWrite(d *device, t *then, to kernel.Release, limitKB kernel.Num) (kib uint64, ok bool) {
	if kernel.Carries(aheadOnWrite, to).Truth != kernel.True {
		return 0, false
	}
	own := defaultReadAhead(to, limitKB, t.predict.OptimalIOSize, d.inputs.PageBytes, d.rotational())
	if !own.Known || t.ahead.Known && own.V <= t.ahead.V {
		return 0, false
	}
	return own.V, true
}
