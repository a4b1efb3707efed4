# The two commands to know are "make scan" and "make test"; "make help" lists
# the rest. The work is done by the scripts in .ci.

FUZZTIME ?= 60s
export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false)

.PHONY: help scan build test lint fuzz vm test-kernels soak bench generate clean

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS="$$(printf '\t')" read -r target what; do \
		printf '  make %-13s %s\n' "$$target" "$$what"; done

scan: ## build bin/quirkcheck and scan this machine
	@.ci/scan

build: ## build bin/quirkcheck, static
	@.ci/build

test: ## everything a change must pass: lint, tests, 5 s of each fuzz target, VM bench
	@FUZZTIME=5s .ci/steps

lint: ## gofmt, go vet, staticcheck, go mod tidy
	@.ci/steps lint

fuzz: ## each fuzz target for FUZZTIME (60s)
	@FUZZTIME=$(FUZZTIME) .ci/steps fuzz

vm: ## tests on emulated machines, one kernel
	@.ci/steps vm

test-kernels: ## tests on emulated machines, every kernel; takes over an hour
	QUIRKCHECK_VM=1 QUIRKCHECK_VM_KERNELS=all go test -count=1 -timeout 120m -run '^TestVM' ./internal/vm/...
	@for k in 6.12 7.x; do QUIRKCHECK_VM=1 QUIRKCHECK_VM_KERNEL=$$k go test -count=1 -timeout 30m -run '^TestVMStory' ./checker/enforce || exit; done

soak: ## verify against simulated faults at length (SEEDS=200, VM=1); log in docs/soak.log
	@.ci/soak

bench: ## Go benchmarks, verify against fio, a scan of 1,000 disks against lsblk
	@.ci/bench

generate: ## rewrite generated files
	go generate ./...

clean: ## remove what was built
	rm -rf bin
