# Shell functions for the scripts beside this file: find Go, find or install
# Debian packages. POSIX sh; sourced from the top of the tree, with set -eu.

exec </dev/null
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
if [ -z "${HOME:-}" ]; then
	HOME=$(getent passwd "$(id -u)" | cut -d: -f6)
fi
export PATH HOME

# can_install tells whether packages may be installed here: as root, with apt.
can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; }

# have tells whether what a Debian package brings is there, whoever brought it.
have() {
	case $1 in
	gcc) set -- "${CC:-gcc}" ;;
	libc6-dev)
		echo 'int main(void) { return 0; }' | "${CC:-gcc}" -static -x c -o /dev/null - 2>/dev/null
		return
		;;
	ca-certificates)
		for f in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem; do
			if [ -e "$f" ]; then return 0; fi
		done
		return 1
		;;
	util-linux) set -- lsblk ;;
	sg3-utils) set -- sg_vpd ;;
	bsdextrautils) set -- hexdump ;;
	nvme-cli) set -- nvme ;;
	qemu-system-x86) set -- qemu-system-x86_64 ;;
	busybox-static) # the guest has no shared libraries
		command -v busybox >/dev/null 2>&1 && ! ldd "$(command -v busybox)" >/dev/null 2>&1
		return
		;;
	kmod) set -- modprobe ;;
	xz-utils) set -- xz ;;
	udev) set -- udevadm ;;
	cryptsetup-bin) set -- cryptsetup ;;
	multipath-tools) set -- multipath ;;
	initramfs-tools-core) set -- mkinitramfs ;;
	dracut-core) set -- dracut ;;
	systemd) set -- systemd-analyze ;;
	ansible-core) set -- ansible-playbook ;;
	e2fsprogs) set -- mkfs.ext4 ;;
	esac
	command -v "$1" >/dev/null 2>&1
}

# missing prints those of its arguments that are not there.
missing() {
	list=
	for p in "$@"; do
		have "$p" || list="$list $p"
	done
	echo "${list# }"
}

# provide installs those of its arguments that are not there, where it can,
# and leaves in $absent what is still not there.
provide() {
	absent=$(missing "$@")
	if [ -n "$absent" ] && can_install; then
		echo "installing Debian packages: $absent"
		apt_install $absent
		absent=$(missing "$@")
	fi
}

# apt_install ends 0 even where apt fails: what counts is what is there then.
apt_install() {
	if [ -z "${apt_updated:-}" ]; then
		apt-get update -qq || echo "apt-get update failed; trying with the package lists that are here" >&2
		apt_updated=1
	fi
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
		echo "apt-get could not install: $*" >&2
}

# go_minor prints N of the Go version 1.N in use, or 0. Go 1.21 and newer may
# fetch the version that go.mod asks for, and that is the one in use then.
go_minor() {
	v=$(go env GOVERSION 2>/dev/null) || v=
	case $v in
	go1.*)
		v=${v#go1.}
		echo "${v%%[!0-9]*}"
		;;
	*) echo 0 ;;
	esac
}

need_minor=25

# need_go ends the script where there is no Go 1.25 and none to install.
need_go() {
	if ! command -v go >/dev/null 2>&1 && [ -x /usr/local/go/bin/go ]; then
		PATH=$PATH:/usr/local/go/bin
	fi
	if [ "$(go_minor)" -lt $need_minor ] && can_install; then
		install_go
	fi
	if [ "$(go_minor)" -lt $need_minor ]; then
		if command -v go >/dev/null 2>&1; then
			echo "This needs Go 1.$need_minor or newer, and $(go version 2>/dev/null | cut -d' ' -f3) is installed."
		else
			echo "This needs Go 1.$need_minor or newer, and Go is not installed."
		fi
		can_install && echo "The package lists of this system hold none that is new enough."
		echo "Next step: install Go as https://go.dev/doc/install says, put it on PATH, and run this again."
		exit 1
	fi >&2
}

# install_go installs a Go from the package lists when one is new enough:
# golang-go, or golang-1.N-go, which lives beside another version.
install_go() {
	apt-get update -qq || true
	apt_updated=1
	v=$(apt-cache policy golang-go 2>/dev/null | sed -n 's/^ *Candidate: \([0-9]*:\)\{0,1\}1\.\([0-9]*\).*/\2/p')
	if [ "${v:-0}" -ge $need_minor ]; then
		echo "installing Debian package: golang-go"
		apt_install golang-go
		return
	fi
	v=$(apt-cache pkgnames golang-1. 2>/dev/null | sed -n 's/^golang-1\.\([0-9]*\)-go$/\1/p' | sort -n | tail -n 1)
	if [ "${v:-0}" -ge $need_minor ]; then
		echo "installing Debian package: golang-1.$v-go"
		apt_install "golang-1.$v-go"
		PATH=/usr/lib/go-1.$v/bin:$PATH
	fi
}

# build makes bin/quirkcheck, static.
build() {
	if [ ! -e bin/quirkcheck ]; then
		if go list -buildvcs=false -deps ./cmd/quirkcheck 2>/dev/null | grep -q go-sqlite3; then
			echo "building bin/quirkcheck; the first build compiles SQLite, which takes about a minute"
		else
			echo "building bin/quirkcheck; the first build takes about a minute"
		fi
	fi
	CGO_ENABLED=1 go build -buildvcs=false -trimpath -tags netgo,osusergo,sqlite_omit_load_extension \
		-ldflags '-s -w -linkmode external -extldflags "-static"' -o bin/quirkcheck ./cmd/quirkcheck
}

# need_compiler ends the script where the binary cannot be built.
need_compiler() {
	provide gcc libc6-dev ca-certificates git
	if [ -n "$absent" ]; then
		echo "Building needs what these Debian packages bring: $absent"
		if can_install; then
			echo "Next step: find out why apt-get did not install them (see above), and run this again."
		else
			echo "Next step: apt-get install $absent   (as root; then run this again)"
		fi
		exit 1
	fi >&2
}
