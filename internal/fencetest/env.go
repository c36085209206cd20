package fencetest

import (
	"math/rand/v2"
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

// seeded returns random numbers of a new seed, or of the one in the environment, and the seed.
func seeded(t *testing.T) (random *rand.Rand, seed uint64) {
	t.Helper()
	seed = fromEnv(t, seedEnv, rand.Uint64()>>1)
	t.Logf("to repeat it: %s=%d", seedEnv, seed)
	return rand.New(rand.NewPCG(seed, 0)), seed
}

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
