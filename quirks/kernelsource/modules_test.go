package kernelsource

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestModules(t *testing.T) {
	got := modules(`# SPDX
ccflags-y := -I$(src)/x
obj-$(CONFIG_ACME)	+= acme.o
obj-$(CONFIG_BIG)	+= big.o big/
obj-y += twice.o
big-y := big_main.o \
	 big_os.o # and so on
big-$(CONFIG_BIG_DEBUG) += big_debug.o
other-objs := shared.o one/two.o
big-objs += shared.o
hostprogs-y := gen
twice-y	+= $(objs)
obj-$(CONFIG_ELX) += three/four.o
`)
	want := map[string]string{"acme": "acme", "big": "big", "twice": "twice", "big_main": "big", "big_os": "big", "big_debug": "big", "shared": "", "one/two": "other", "three/four": "four"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
