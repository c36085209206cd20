package fencetest

import (
	"os"
	"strconv"
	"sync/atomic"
	"testing"
)

// The environment sets the number of rounds and the seed of a random test.
const (
	roundsEnv = "LEASEFENCE_FENCE_ROUNDS"
	seedEnv   = "LEASEFENCE_FENCE_SEED"
)

// resources numbers the resources, so that each name is new in this process.
var resources atomic.Int64

// fromEnv returns the number in an environment variable, or otherwise if it is not set.
func fromEnv(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}
