#!/bin/bash
# Copies the udev rule of "quirkcheck enforce --persist" into the initramfs, so
# that disks have their limit before the root file system is mounted. Without
# such a rule it does nothing; the program itself is not needed.
#
# dracut sources this file, calls the functions and sets dracutsysrootdir.

# called by dracut
check() {
	return 0
}

# called by dracut
depends() {
	echo udev-rules
}

# called by dracut
install() {
	local _rule=/etc/udev/rules.d/90-quirkcheck.rules

	if [[ -f "${dracutsysrootdir-}$_rule" ]]; then
		inst_simple "$_rule"
	fi
}
