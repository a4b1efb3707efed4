// Package kernel knows Linux releases: how a release string splits, how two
// compare, and whether a statement of the form "this tree has it since then"
// answers yes, no or "that was never written down" for a given release.
//
// A release belongs to a line of development. 6.12.96 follows the tree
// stable-6.12, which took fixes out of order from mainline, so a mainline
// statement answers for a stable release only where the whole branch began
// after it. The package is a leaf: it imports nothing of ours.
package kernel

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Release is a kernel release split into its parts. The zero Release is
// "unknown".
type Release struct {
	Raw    string // as uname or /proc/version printed it
	Major  int
	Minor  int
	Point  int  // the stable point release; 0 for a mainline release
	PointK bool // Point is known; Debian's uname hides it (6.1.0-54-amd64)
	RC     int  // release candidate, 0 for none
	// Vendor is who built it where that changes which tree to follow: debian,
	// fedora, arch, rhel, sles, ubuntu, oracle, amazon, proxmox, raspberrypi;
	// "" for a plain build.
	Vendor string
}

var (
	reRelease = regexp.MustCompile(`^(\d{1,4})\.(\d{1,4})(?:\.(\d{1,5}))?(?:-rc(\d{1,3})\b)?(.*)$`)
	reLaterRC = regexp.MustCompile(`^-[0-9.]*rc(\d{1,3})\b`)
	// Debian's ABI number: 6.1.0-54-amd64, 5.10.0-0.deb10.16-amd64, where the
	// point release is always a literal 0.
	reDebianABI = regexp.MustCompile(`^-(?:\d+|0\.\w+\.\d+|0\.bpo\.\d+)-(?:[a-z]+-)*(?:amd64|686|686-pae|arm64|armmp|armmp-lpae|s390x|powerpc64le|mips64el|riscv64|loong64|4kc-malta|5kc-malta|octeon|loongson-3|marvell|rpi)\b`)
	// Debian's /proc/version ends "... Debian 6.1.190-1 (2026-10-16)", after the
	// same word with the compiler's version.
	reDebianVersion = regexp.MustCompile(`\bDebian (\d+\.\d+(?:\.\d+)?(?:~rc\d+)?)`)
	reProcVersion   = regexp.MustCompile(`^Linux version (\S+)`)
	reSUSE          = regexp.MustCompile(`^-\d{4,}\.\d+(\.\d+)*-|^-(?:lp)?\d+\.\d+(?:\.\d+)?-(?:default|preempt|azure|rt)\b|-default$`)
	reUbuntu        = regexp.MustCompile(`^-\d+-(?:generic|lowlatency|aws|azure|gcp|kvm|oracle|raspi|oem|nvidia)\b`)
	reRHEL          = regexp.MustCompile(`\.el\d+|^-\d{2,}(?:\.\d+)+$`)
)

// Parse splits a release as uname -r prints it, or a plain version such as
// "6.18.15" or "6.19-rc1". The error names the text.
func Parse(text string) (Release, error) {
	text = strings.TrimSpace(text)
	if len(text) > 256 {
		return Release{}, fmt.Errorf("kernel release: %d characters is too long", len(text))
	}
	m := reRelease.FindStringSubmatch(text)
	if m == nil || m[5] != "" && m[5][0] >= '0' && m[5][0] <= '9' { // a number longer than any
		return Release{}, fmt.Errorf("kernel release %q: want MAJOR.MINOR[.POINT][-rcN][-local]", text)
	}
	r := Release{Raw: text, PointK: true}
	r.Major, _ = strconv.Atoi(m[1])
	r.Minor, _ = strconv.Atoi(m[2])
	if m[3] != "" {
		r.Point, _ = strconv.Atoi(m[3])
	}
	if m[4] != "" {
		r.RC, _ = strconv.Atoi(m[4])
	}
	rest := m[5]
	if r.RC == 0 {
		if rc := reLaterRC.FindStringSubmatch(rest); rc != nil { // Fedora: 6.13.0-0.rc2
			r.RC, _ = strconv.Atoi(rc[1])
		}
	}
	r.Vendor = vendorOf(rest)
	if r.Vendor == "debian" && reDebianABI.MatchString(rest) && r.Point == 0 && r.RC == 0 {
		r.PointK = false
	}
	return r, nil
}

func vendorOf(rest string) string {
	switch {
	case rest == "":
		return ""
	case strings.Contains(rest, "uek"):
		return "oracle"
	case strings.Contains(rest, "amzn"):
		return "amazon"
	case strings.HasSuffix(rest, "-pve"):
		return "proxmox"
	case strings.Contains(rest, "+rpt"):
		return "raspberrypi"
	case strings.Contains(rest, ".fc"):
		return "fedora"
	case reRHEL.MatchString(rest):
		return "rhel"
	case reDebianABI.MatchString(rest), strings.Contains(rest, "+deb"), strings.Contains(rest, "+bpo"):
		return "debian"
	case reUbuntu.MatchString(rest):
		return "ubuntu"
	case reSUSE.MatchString(rest):
		return "sles"
	case strings.Contains(rest, "arch"):
		return "arch"
	}
	return ""
}

// ParseProcVersion reads /proc/version, where Debian writes the upstream
// point release that its uname hides.
func ParseProcVersion(text string) (Release, error) {
	m := reProcVersion.FindStringSubmatch(text)
	if m == nil {
		return Release{}, fmt.Errorf("/proc/version: want \"Linux version RELEASE ...\"")
	}
	r, err := Parse(m[1])
	if err != nil {
		return Release{}, fmt.Errorf("/proc/version: %w", err)
	}
	for _, d := range reDebianVersion.FindAllStringSubmatch(text, -1) {
		up, err := Parse(strings.Replace(d[1], "~", "-", 1))
		if err == nil && up.Major == r.Major && up.Minor == r.Minor {
			r.Point, r.PointK, r.RC, r.Vendor = up.Point, true, up.RC, "debian"
		}
	}
	return r, nil
}

// Known reports whether r names a release at all.
func (r Release) Known() bool { return r.Raw != "" }

// Upstream returns the upstream version, "6.1.190", or "6.1.?" where the
// point release is hidden, or "" for an unknown release.
func (r Release) Upstream() string {
	switch {
	case !r.Known():
		return ""
	case !r.PointK:
		return fmt.Sprintf("%d.%d.?", r.Major, r.Minor)
	case r.RC > 0:
		return fmt.Sprintf("%d.%d-rc%d", r.Major, r.Minor, r.RC)
	case r.Point > 0:
		return fmt.Sprintf("%d.%d.%d", r.Major, r.Minor, r.Point)
	}
	return fmt.Sprintf("%d.%d", r.Major, r.Minor)
}

// String returns the release as it was given.
func (r Release) String() string { return r.Raw }

// FollowsStable reports whether the builder ships the stable trees as they
// are. Others (RHEL, SLES, Ubuntu, Oracle, Amazon, Proxmox) pick patches on
// their own, and mainline answers for them with low certainty only.
func (r Release) FollowsStable() bool {
	switch r.Vendor {
	case "", "debian", "fedora", "arch", "raspberrypi":
		return true
	}
	return false
}

// branch orders by MAJOR.MINOR, a release candidate before its release.
func (r Release) branch(o Release) int {
	if c := cmp.Compare(r.Major, o.Major); c != 0 {
		return c
	}
	return cmp.Compare(r.Minor, o.Minor)
}

func rcRank(rc int) int {
	if rc == 0 {
		return 1 << 20
	}
	return rc
}

// Bound is a version inside a statement: "6.19" names the branch with all its
// points, "6.18.44" one point release.
type Bound struct {
	Release
	hasPoint bool
}

// ParseBound parses a version as entries write it. Bounds are read for every
// device that an entry about kernels may concern, so no expression is searched.
func ParseBound(text string) (Bound, error) {
	b := Bound{Release: Release{Raw: text, PointK: true}}
	rest := text
	number := func(digits int, to *int) bool {
		n := 0
		for n < len(rest) && '0' <= rest[n] && rest[n] <= '9' {
			n++
		}
		if n == 0 || n > digits {
			return false
		}
		*to, _ = strconv.Atoi(rest[:n])
		rest = rest[n:]
		return true
	}
	cut := func(prefix string) (ok bool) {
		rest, ok = strings.CutPrefix(rest, prefix)
		return ok
	}
	ok := number(4, &b.Major) && cut(".") && number(4, &b.Minor)
	if ok && cut(".") {
		b.hasPoint, ok = true, number(5, &b.Point)
	}
	if ok && cut("-rc") {
		ok = number(3, &b.RC)
	}
	if !ok || rest != "" {
		return Bound{}, fmt.Errorf("kernel version %.40q: want X.Y, X.Y.Z or X.Y-rcN", text)
	}
	return b, nil
}

// compare orders r against the bound. ok is false where the answer hangs on a
// point release that r does not show.
func (b Bound) compare(r Release) (c int, ok bool) {
	if c := r.branch(b.Release); c != 0 {
		return c, true
	}
	if !b.hasPoint && b.RC == 0 {
		if r.RC > 0 && r.Point == 0 {
			return -1, true
		}
		return 0, true
	}
	return Compare(r, b.Release)
}

// reaches reports whether r is at or past the bound.
func (b Bound) reaches(r Release) Truth {
	c, ok := b.compare(r)
	if !ok {
		return Unknown
	}
	return truthOf(c >= 0)
}

// Compare orders two releases; ok is false where it hangs on a hidden point
// release.
func Compare(a, b Release) (c int, ok bool) {
	if c := a.branch(b); c != 0 {
		return c, true
	}
	switch early := func(r Release) bool { return r.PointK && r.Point == 0 && r.RC > 0 }; {
	case a.PointK && b.PointK:
		return cmp.Or(cmp.Compare(a.Point, b.Point), cmp.Compare(rcRank(a.RC), rcRank(b.RC))), true
	case early(a): // before whatever point the other hides
		return -1, true
	case early(b):
		return 1, true
	}
	return 0, false
}
