mix = go -C integration test -count=1 -v -timeout 0 ./safety/mix -run '^TestSafety$$' $(if $(SEED),-seed $(SEED))

.PHONY: test safety soak release

# Tests all modules with the race detector. Stops at the first failure.
test:
	@bash .ci/test

# Tests every fault in fake time, and a random mix of faults on real servers for a few minutes. Fails on a violation, and if too
# little has happened. SEED=… repeats a plan.
safety:
	go test -count=1 ./internal/faultmatrix
	$(mix) -duration 140s

# Runs the random mix for as long as you like: make soak DURATION=8h
DURATION ?= 30m
soak:
	$(mix) -duration $(DURATION)

# Shows what a release needs: make release VERSION=v0.1.0. With WRITE=1 it writes the versions into the modules' go.mod.
release:
	@bash .ci/release "$(VERSION)" $(if $(WRITE),write)
