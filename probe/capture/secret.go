package capture

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/quirkcheck/quirkcheck/probe"
)

// Kind sorts secrets for people.
type Kind string

// The kinds of secrets.
const (
	KindSerial Kind = "serial number"
	KindWWN    Kind = "world wide name" // NAA, EUI-64, NGUID, SAS address
	KindUUID   Kind = "UUID"
	KindMAC    Kind = "MAC address"
	KindNet    Kind = "network address"
	KindHost   Kind = "host name"
	KindTarget Kind = "target name" // iSCSI, NVMe
	KindName   Kind = "volume name" // dm, md, file system label
	KindOther  Kind = "other value"
)

var kinds = []Kind{KindSerial, KindWWN, KindUUID, KindMAC, KindNet, KindHost, KindTarget, KindName, KindOther}

// secret is one thing that must not be told, in all its spellings.
type secret struct {
	kind      Kind
	plain     string // as met first
	pseudonym string
	digits    bool // hex digits, found by their look wherever they stand
	local     bool // stands in fields of its own only: what follows a fault code is short, and all digits
}

// Summary is what was replaced.
type Summary struct {
	Kinds []Replaced
	// Fields is the number of binary fields of unknown meaning that were
	// cleared: vendor-specific bytes.
	Fields int
}

// Replaced are the secrets of one kind.
type Replaced struct {
	Kind       Kind
	Pseudonyms []string // in order of appearance
}

func (s Summary) counts() map[string]int {
	m := map[string]int{}
	for _, k := range s.Kinds {
		m[string(k.Kind)] = len(k.Pseudonyms)
	}
	if s.Fields > 0 {
		m["cleared field"] = s.Fields
	}
	return m
}

func (r *redactor) summary() Summary {
	s := Summary{Fields: r.cleared}
	for _, k := range kinds {
		one := Replaced{Kind: k}
		for _, sec := range r.order {
			if sec.kind == k {
				one.Pseudonyms = append(one.Pseudonyms, sec.pseudonym)
			}
		}
		if len(one.Pseudonyms) > 0 {
			s.Kinds = append(s.Kinds, one)
		}
	}
	return s
}

// hardware lists the serial numbers and world wide names, sorted.
func (r *redactor) hardware() []string {
	var out []string
	for _, s := range r.order {
		if s.kind == KindSerial || s.kind == KindWWN {
			out = append(out, strings.ToLower(s.plain))
		}
	}
	slices.Sort(out)
	return out
}

var (
	reUUID   = regexp.MustCompile(`(?i)[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	reMAC    = regexp.MustCompile(`(?i)[0-9a-f]{2}(?::[0-9a-f]{2}){5}(?:(?::[0-9a-f]{2}){2})?`)
	reTarget = regexp.MustCompile(`(?i)\b(?:iqn|nqn)\.\d{4}[-.]\d{2}\.[^\s,"';]+`)
	// The kernel's name for a namespace without one (nvme wwid attribute).
	reNVMeHex = regexp.MustCompile(`(?i)(nvme\.[0-9a-f]{4}-)([0-9a-f]+)(-[0-9a-f]+-[0-9a-f]{8})`)
	reAddress = regexp.MustCompile(`\bip-(\S+?)-iscsi\b`)
	// The LUN behind a target in a link of by-path.
	reLUN = regexp.MustCompile(`-lun-(?:\d+|0x[0-9a-f]+)(?:-part\d+)?$`)
	// Pseudonyms of network addresses.
	reNetPseudonym = regexp.MustCompile(`(?i)198\.1[89]\.\d+\.\d+|2001:db8::[0-9a-f]+`)
)

// of returns the pseudonym of a secret, a new one where it was not met
// before. Blanks and NULs around it stay, and so does a fault code that a
// serial number starts with: checks read it.
func (r *redactor) of(kind Kind, text string) string {
	plain := strings.Trim(text, " \t\n\x00")
	if plain == "" {
		return text
	}
	at := strings.Index(text, plain)
	if n := faultCode(plain); kind == KindSerial && n > 0 {
		rest := text[at+n:]
		if s := strings.Trim(rest, " \t\n\x00"); s != "" && r.secrets[strings.ToLower(s)] == nil {
			r.secret(kind, s).local = true
		}
		return text[:at+n] + r.of(kind, rest)
	}
	return text[:at] + r.secret(kind, plain).spelt(plain) + text[at+len(plain):]
}

// faultCode is the length of the fault code at the start of a serial number
// and of the blank after it, which udev writes as an underscore; 0 for none.
func faultCode(serial string) int {
	for i := range len(serial) {
		if (serial[i] == ' ' || serial[i] == '_') && probe.FaultCode(serial[:i]) == serial[:i] {
			return i + 1
		}
	}
	return len(probe.FaultCode(serial))
}

func (r *redactor) secret(kind Kind, plain string) *secret {
	key := strings.ToLower(plain)
	digits := isHexID(key) && (kind == KindWWN || kind == KindUUID || strings.ContainsAny(key, "abcdef"))
	if s, ok := r.secrets[key]; ok {
		return s
	}
	s := &secret{kind: kind, plain: plain, digits: digits}
	switch {
	case kind == KindNet:
		s.pseudonym = r.numbered(kind, func(n int) string {
			if strings.Contains(key, ":") {
				return fmt.Sprintf("2001:db8::%x", n) // for documentation (RFC 3849)
			}
			return fmt.Sprintf("198.%d.%d.%d", 18+n>>16&1, n>>8&255, n&255) // for benchmarks (RFC 2544), of which there are 131072
		})
	case digits:
		if kind == KindSerial || kind == KindOther {
			s.kind = KindWWN
		}
		s.pseudonym = r.numbered(s.kind, func(n int) string {
			keep := keptDigits(key)
			if kind != KindWWN && key[0] != '5' && key[0] != '6' {
				keep = 0 // a serial number that happens to look like one
			}
			return key[:keep] + fmt.Sprintf("%0*x", len(key)-keep, n)
		})
	case reUUID.FindString(key) == key:
		s.kind = KindUUID
		s.pseudonym = r.numbered(s.kind, func(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012x", n) })
	case reMAC.FindString(key) == key:
		s.kind = KindMAC
		s.pseudonym = r.numbered(s.kind, func(n int) string {
			m := fmt.Sprintf("%0*x", (len(key)+1)/3*2, n)
			var parts []string
			for ; m != ""; m = m[2:] {
				parts = append(parts, m[:2])
			}
			parts[0] = "02" // locally administered
			return strings.Join(parts, ":")
		})
	case kind == KindHost:
		s.pseudonym = r.numbered(kind, func(n int) string { return fmt.Sprintf("host%d", n) })
	case kind == KindName:
		s.pseudonym = r.numbered(kind, func(n int) string { return fmt.Sprintf("name%d", n) })
	case kind == KindTarget:
		s.pseudonym = r.numbered(kind, func(n int) string { return fmt.Sprintf("target%d", n) })
	default: // as long as it was
		s.pseudonym = r.numbered(kind, func(n int) string { return padded(len(plain), n) })
	}
	r.secrets[key] = s
	r.order = append(r.order, s)
	return s
}

// numbered returns the next pseudonym of a kind that is not taken. Where a
// field of a character or two has none left, two secrets share the last.
func (r *redactor) numbered(kind Kind, name func(n int) string) string {
	for try := 0; ; try++ {
		r.next[kind]++
		p := name(r.next[kind])
		if !r.taken[p] && !r.present[strings.ToLower(p)] || try > 2000 {
			r.taken[p] = true
			return p
		}
	}
}

// padded returns REDACTED0001 for the number 1 in 12 characters.
func padded(length, n int) string {
	word := "REDACTED"[:max(0, min(8, length-4))]
	digits := strings.ToUpper(strconv.FormatInt(int64(n), 36))
	width := length - len(word)
	if len(digits) < width {
		digits = strings.Repeat("0", width-len(digits)) + digits
	}
	return word + digits[len(digits)-width:]
}

// isHexID: as long as an EUI-64, NAA or SAS address, or one of 128 bits.
func isHexID(lower string) bool {
	return (len(lower) == 16 || len(lower) == 32) && isHex(lower)
}

func isHex(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return false
		}
	}
	return s != ""
}

// keptDigits is how many of the first digits tell the format and the company,
// and stay (SPC-5, NAA designator formats; RFC 8126-style OUI of EUI-64).
func keptDigits(hexID string) int {
	switch hexID[0] {
	case '5', '6': // NAA 5h and 6h: the company id follows
		return 7
	case '3': // locally assigned
		return 1
	}
	return 6
}

// spelt writes the pseudonym in the case of the secret.
func (s *secret) spelt(as string) string {
	switch {
	case as == strings.ToLower(as) && as != strings.ToUpper(as):
		return strings.ToLower(s.pseudonym)
	case as == strings.ToUpper(as):
		return strings.ToUpper(s.pseudonym)
	}
	return s.pseudonym
}

// bytes replaces a number of 8 or 16 bytes.
func (r *redactor) bytes(b []byte) {
	if len(b) != 8 && len(b) != 16 {
		r.clear(b)
		return
	}
	if allZero(b) {
		return
	}
	p, err := hex.DecodeString(r.secret(KindWWN, hex.EncodeToString(b)).pseudonym)
	if err != nil || len(p) != len(b) { // met before as something else
		r.clear(b)
		return
	}
	copy(b, p)
}

// clear zeroes a field that nobody knows the meaning of.
func (r *redactor) clear(b []byte) {
	if !allZero(b) {
		clear(b)
		r.cleared++
	}
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// chars replaces what a fixed field of characters holds, in place.
func (r *redactor) chars(kind Kind, b []byte) {
	blank := true
	for _, c := range b {
		if c >= 0x7f || c < ' ' && c != 0 {
			r.clear(b)
			return
		}
		blank = blank && (c == 0 || c == ' ')
	}
	if blank {
		return
	}
	fit(b, r.of(kind, string(b)))
}

// fit writes text into a field, cut or filled up with NULs.
func fit(b []byte, text string) {
	clear(b[copy(b, text):])
}

// swapped swaps the bytes of each word, as ATA strings are.
func swapped(b []byte) []byte {
	out := make([]byte, len(b))
	copy(out, b)
	for i := 0; i+1 < len(b); i += 2 {
		out[i], out[i+1] = b[i+1], b[i]
	}
	return out
}

// dictionary finds secrets wherever they stand in text.
type dictionary struct {
	replacer *strings.Replacer
	words    *regexp.Regexp // found only as whole words
	of       map[string]*secret
}

// dictionary of the secrets met so far. What is part of an identity that stays
// (a disk called after its serial number) would be found there, so it is left
// to the fields that hold nothing else; the same goes for what is too short
// to be told from other text.
func (r *redactor) dictionary(identities []string) *dictionary {
	d := &dictionary{of: map[string]*secret{}}
	all := strings.ToLower(strings.Join(identities, "\n"))
	var pairs []string
	var words []string
	longest := slices.Clone(r.order)
	slices.SortStableFunc(longest, func(a, b *secret) int { return len(b.plain) - len(a.plain) })
	seen := map[string]bool{}
	add := func(old, new string) {
		if old != new && !seen[old] {
			seen[old] = true
			pairs = append(pairs, old, new)
		}
	}
	for _, s := range longest {
		p := s.plain
		switch {
		case s.digits, s.local, strings.Contains(all, strings.ToLower(p)):
		case s.kind == KindHost, s.kind == KindName, s.kind == KindNet:
			if len(p) >= 3 && len(p) <= 253 && utf8.ValidString(p) {
				words = append(words, regexp.QuoteMeta(p))
				d.of[strings.ToLower(p)] = s
			}
		case len(p) >= 6 && strings.ContainsAny(p, "0123456789"):
			for _, as := range []string{p, strings.ToLower(p), strings.ToUpper(p)} {
				to := s.spelt(as)
				add(as, to)
				if len(to) == len(as) {
					add(string(swapped([]byte(as))), string(swapped([]byte(to))))
				}
				r.taken[hex.EncodeToString([]byte(to))] = true
				add(hex.EncodeToString([]byte(as)), hex.EncodeToString([]byte(to)))
				add(strings.ToUpper(hex.EncodeToString([]byte(as))), strings.ToUpper(hex.EncodeToString([]byte(to))))
			}
		}
	}
	d.replacer = strings.NewReplacer(pairs...)
	if len(words) > 0 {
		d.words = regexp.MustCompile(`(?i)` + strings.Join(words, "|"))
	}
	return d
}

// replace takes the dictionary's secrets out of a text.
func (d *dictionary) replace(text string) string {
	if d == nil {
		return text
	}
	text = d.replacer.Replace(text)
	if d.words == nil {
		return text
	}
	var b strings.Builder
	last := 0
	for _, at := range d.words.FindAllStringIndex(text, -1) {
		if at[0] > 0 && isWord(text[at[0]-1]) || at[1] < len(text) && isWord(text[at[1]]) {
			continue
		}
		b.WriteString(text[last:at[0]])
		b.WriteString(d.of[strings.ToLower(text[at[0]:at[1]])].pseudonym)
		last = at[1]
	}
	b.WriteString(text[last:])
	return b.String()
}

func isWord(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// generic replaces what can be told for a secret by its look, and all that the
// dictionary knows.
func (r *redactor) generic(text string) string {
	if !suspicious(text) {
		return r.dict.replace(text)
	}
	text = reAddress.ReplaceAllStringFunc(text, func(s string) string {
		at := reAddress.FindStringSubmatch(s)[1]
		if at == "*" { // in a rule
			return s
		}
		return "ip-" + r.portal(at) + "-iscsi"
	})
	text = reTarget.ReplaceAllStringFunc(text, r.target)
	text = reNVMeHex.ReplaceAllStringFunc(text, func(s string) string {
		m := reNVMeHex.FindStringSubmatch(s)
		b, err := hex.DecodeString(m[2])
		if err != nil {
			return m[1] + r.of(KindSerial, m[2]) + m[3]
		}
		r.chars(KindSerial, b)
		to := hex.EncodeToString(b)
		r.taken[to], r.taken[strings.ToLower(strings.Split(m[3], "-")[1])] = true, true // the serial number, and the model that stays
		return m[1] + to + m[3]
	})
	text = reUUID.ReplaceAllStringFunc(text, func(s string) string { return r.of(KindUUID, s) })
	text = reMAC.ReplaceAllStringFunc(text, func(s string) string {
		if len(s) == 8*3-1 { // a world wide name with colons
			plain := r.of(KindWWN, strings.ReplaceAll(s, ":", ""))
			var parts []string
			for ; len(plain) >= 2; plain = plain[2:] {
				parts = append(parts, plain[:2])
			}
			return strings.Join(parts, ":")
		}
		return r.of(KindMAC, s)
	})
	return r.dict.replace(r.runs(r.dict.replace(text)))
}

// runs replaces hexadecimal numbers as long as a name, and longer ones.
func (r *redactor) runs(text string) string {
	var b strings.Builder
	for i := 0; i < len(text); {
		j := i
		for j < len(text) && isWord(text[j]) {
			j++
		}
		if j == i {
			b.WriteByte(text[i])
			i++
			continue
		}
		b.WriteString(r.run(text[i:j]))
		i = j
	}
	return b.String()
}

func (r *redactor) run(s string) string {
	lower := strings.ToLower(s)
	if r.taken[lower] {
		return s // a pseudonym already
	}
	if rest, ok := strings.CutPrefix(lower, "0x"); ok && isHexID(rest) {
		return s[:2] + r.run(s[2:])
	}
	switch n := len(s); {
	case !isHex(s):
		return r.decoded(s)
	case n == 16 || n == 32:
		return r.of(KindWWN, s)
	case (n == 17 || n == 33) && (s[0] == '2' || s[0] == '3'): // scsi_id puts the designator's type before it
		return s[:1] + r.run(s[1:])
	case n >= 24:
		return r.of(KindOther, s)
	}
	return s
}

// decoded replaces base64 of something that holds a known secret.
func (r *redactor) decoded(s string) string {
	if r.dict == nil || len(s) < 8 || len(s)%4 != 0 {
		return s
	}
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return s
	}
	if to := r.dict.replacer.Replace(string(b)); to != string(b) {
		return base64.StdEncoding.EncodeToString([]byte(to))
	}
	return s
}

// suspicious is a quick look: what it lets through has none of the forms that
// generic knows.
func suspicious(text string) bool {
	if len(text) < 8 {
		return false
	}
	run, digits, colons := 0, 0, 0
	for i := 0; i < len(text); i++ {
		c := text[i]
		if isWord(c) {
			if c <= '9' {
				digits++
			}
			if run++; run >= 8 && digits > 0 || run >= 16 {
				return true
			}
			continue
		}
		run, digits = 0, 0
		if c == ':' {
			colons++
		}
	}
	return colons >= 5 || strings.Contains(text, "qn.") || strings.Contains(text, "ip-") || strings.Contains(text, "nvme.")
}

// vendorDomains are those that NVMe disks carry in their own NQN; others name
// an owner.
var vendorDomains = []string{"org.nvmexpress", "org.qemu", "org.linux-nvme", "com.samsung", "com.intel", "com.solidigm", "com.wdc", "com.sandisk", "com.hgst", "com.kioxia",
	"com.toshiba", "com.micron", "com.seagate", "com.skhynix", "com.sk.hynix", "com.kingston", "com.dell", "com.hpe", "com.hp", "com.lenovo", "com.netapp", "com.emc",
	"com.purestorage", "com.marvell", "com.pmc", "com.microsemi", "com.broadcom", "com.amazon.aws", "com.google", "com.microsoft", "com.phison", "com.siliconmotion", "com.memblaze", "com.dapustor", "com.ymtc", "com.union"}

// target replaces an iSCSI or NVMe qualified name. The kind and, for a disk
// maker's, the domain stay.
func (r *redactor) target(name string) string {
	if lun := reLUN.FindString(name); lun != "" {
		return r.target(strings.TrimSuffix(name, lun)) + lun
	}
	if strings.HasPrefix(strings.ToLower(name), "iqn.") {
		return "iqn.2000-01.redacted:" + r.of(KindTarget, name)
	}
	head, tail, ok := strings.Cut(name, ":")
	domain := head[min(len(head), len("nqn.2014-08.")):]
	if !slices.Contains(vendorDomains, strings.TrimSuffix(domain, ".discovery")) {
		return "nqn.2000-01.redacted:" + r.of(KindTarget, name)
	}
	if !ok {
		return name
	}
	if rest, isUUID := strings.CutPrefix(tail, "uuid:"); isUUID {
		return head + ":uuid:" + r.of(KindUUID, rest)
	}
	// The kernel's own: vid and ssvid in hex, serial number (20), model (40).
	if len(tail) > 28 && isHex(tail[:8]) {
		return head + ":" + tail[:8] + r.of(KindSerial, tail[8:28]) + tail[28:]
	}
	// Words of the maker, then the serial number.
	cut := strings.LastIndexAny(tail, ":")
	const sn = "nvm-subsystem-sn-"
	if at := strings.Index(tail, sn); at >= 0 {
		cut = at + len(sn) - 1
	}
	return head + ":" + reNQNWord.ReplaceAllStringFunc(tail[:cut+1], func(w string) string {
		if strings.ContainsAny(w, "0123456789") {
			return r.of(KindSerial, w) // an array's own, before the name of a subsystem in it
		}
		return w
	}) + r.of(KindSerial, tail[cut+1:])
}

var (
	reNQNWord = regexp.MustCompile(`[^:.]{8,}`)
	reIface   = regexp.MustCompile(`^(?:lo|(?:eth|eno|ens|enp|enP|ib|ibs|ibp|bond|team|br|vlan)\d[a-z0-9.]{0,11})$`)
)

// portal redacts a network address or a host's name, with or without a port,
// which stays.
func (r *redactor) portal(s string) string {
	if a, err := netip.ParseAddr(s); err == nil {
		return r.ip(a)
	}
	host, port := s, ""
	if m := rePort.FindStringIndex(s); m != nil {
		host, port = s[:m[0]], s[m[0]:]
	}
	if in, ok := strings.CutPrefix(host, "["); ok && strings.HasSuffix(in, "]") {
		return "[" + r.portal(strings.TrimSuffix(in, "]")) + "]" + port
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return r.ip(a) + port
	}
	return r.of(KindHost, host) + port
}

var rePort = regexp.MustCompile(`:\d{1,5}$`)

// ip redacts an address. Those that every host has stay, and so does the
// interface of a link-local one where its name is the kernel's.
func (r *redactor) ip(a netip.Addr) string {
	zone := ""
	if a.Zone() != "" {
		zone = "%" + r.iface(a.Zone())
	}
	if a = a.WithZone(""); a.IsLoopback() || a.IsUnspecified() {
		return a.String() + zone
	}
	return r.secret(KindNet, a.String()).pseudonym + zone
}

func (r *redactor) iface(name string) string {
	if reIface.MatchString(name) {
		return name
	}
	return r.of(KindName, name)
}

// nvmeAddress redacts the address of a controller: a PCI function's, which
// stays, or a list of KEY=VALUE of a fabric (drivers/nvme/host/fabrics.c,
// nvmf_get_address). Other files of that name hold a MAC or SAS address.
func (r *redactor) nvmeAddress(s string) string {
	switch {
	case rePCI.MatchString(s):
		return s
	case !strings.Contains(s, "="):
		return r.wwid(s)
	}
	fields := strings.Split(s, ",")
	for i, f := range fields {
		key, v, valued := strings.Cut(f, "=")
		switch {
		case !valued || !reKey.MatchString(key):
			fields[i] = r.plain(KindOther, f)
			continue
		case key == "trsvcid" && reNumber.MatchString(v):
		case key == "host_iface":
			v = r.iface(v)
		case strings.HasPrefix(v, "nn-0x"): // FC: node and port name
			v = r.generic(v)
		case strings.HasSuffix(key, "addr"):
			v = r.portal(v)
		default:
			v = r.of(KindOther, v)
		}
		fields[i] = key + "=" + v
	}
	return strings.Join(fields, ",")
}

var reKey = regexp.MustCompile(`^[a-z_]{1,16}$`)

var rePCI = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// usualNames are words of which installers make names of volumes.
var usualNames = func() map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(`root swap home var tmp usr opt srv boot data log logs vg lv pv pool thin thinpool tpool tdata tmeta pmspare meta crypt
		cryptroot cryptswap crypthome luks dm cache raid rimage rmeta mpath mpatha mirror stripe striped linear lin concat snap snapshot real cow origin test
		fedora rhel centos rocky almalinux debian ubuntu vgubuntu opensuse suse system rootvg volgroup logvol lvol pve vm disk docker lvroot vgroot
		lvswap lvhome lvvar ol cl cs sd vd nvme part p n zero error delay flakey era writecache vdo stratis mq bio path multi multipath d s m`) {
		m[w] = true
	}
	return m
}()

// volume replaces the name of a volume, unless it is one that installers give
// or multipath's own.
func (r *redactor) volume(name string) string {
	plain := strings.Trim(name, " \n")
	if plain == "" {
		return name
	}
	g := r.generic(plain) // luks-UUID, or a map called after its disk's WWN
	usual := true
	for _, w := range strings.FieldsFunc(strings.ToLower(reUUID.ReplaceAllString(g, "")), func(c rune) bool { return strings.ContainsRune("-_.:/ ", c) }) {
		bare := strings.Trim(w, "0123456789")
		usual = usual && (bare == "" && len(w) <= 4 || usualNames[bare] || reMpath.MatchString(bare) || r.taken[w] || r.taken[w[1:]])
	}
	if usual {
		return strings.Replace(name, plain, g, 1)
	}
	return strings.Replace(name, plain, r.of(KindName, plain), 1)
}

var reMpath = regexp.MustCompile(`^mpath[a-z]{1,3}$`)

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
