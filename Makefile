# The tests are run by .ci/run; these are the long runs of the safety suite.

DURATION ?= 30m

.PHONY: safety soak

# Every fault in fake time, and a random mix of faults on real servers for a few minutes. Fails on a violation, and if too
# little has happened: SEED=… repeats a plan.
safety:
	go test -count=1 ./internal/faultmatrix
	go -C integration run ./safety run $(if $(SEED),-seed $(SEED))

# The same for as long as you like: make soak DURATION=8h
soak:
	go -C integration run ./safety soak -duration $(DURATION) $(if $(SEED),-seed $(SEED))
