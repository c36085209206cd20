// Package faultmatrix_test replays single faults against sessions, locks and elections: every fault at each of the
// first four requests of every kind that every scenario sends. One oracle checks all cases, see check.
package faultmatrix_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/leasefence/leasefence/internal/clock"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

func TestMain(m *testing.M) {
	// The host's boot clock runs on while a bubble's clock stands still, so deadlines would be early.
	clock.System = clock.Clock{}
	os.Exit(m.Run())
}

const (
	fewest = 11000 // the least number of cases
	kinds  = 13    // of requests
	most   = 4     // the most requests of one kind that faults hit in one scenario
)

// Whatever fault hits whatever request, there are never two holders, tokens grow, nothing is left behind, and losses
// are reported. To run one case alone, give its name to -run.
func TestMatrix(t *testing.T) {
	every, from := 1, 0
	if fakeetcd.RaceDetector && !strings.Contains(flag.Lookup("test.run").Value.String(), "/") {
		every = 9               // the detector is slow
		from = rand.IntN(every) // over many runs all cases are played; a failed one has a name that -run repeats
	}
	planned, chosen, cases, missed := 0, 0, 0, 0
	hits := make(map[string]int) // by kind
	for _, sc := range scenarios {
		seen := play(t, fault{}, sc.run, "", 0).seen // the requests of the scenario without a fault
		for _, kind := range slices.Sorted(maps.Keys(seen)) {
			for nth := 1; nth <= min(most, seen[kind]); nth++ {
				for _, f := range faults {
					if !f.applies(kind) {
						continue
					}
					if planned++; planned%every != from {
						continue
					}
					chosen++
					t.Run(fmt.Sprintf("%s/%s %d/%s", sc.name, kind, nth, f.name), func(t *testing.T) {
						cases++
						if play(t, f, sc.run, kind, nth).hit.IsZero() {
							missed++
						} else {
							hits[kind]++
						}
					})
				}
			}
		}
	}
	t.Logf("%d cases of %d; in %d of them the request was not sent that the fault is for; hits: %v", cases, planned, missed, hits)
	if planned < fewest {
		t.Errorf("%d cases are planned, want %d", planned, fewest)
	}
	if cases < chosen {
		return // -run has selected some
	}
	if missed > cases/10 {
		t.Errorf("%d of %d cases had no fault", missed, cases)
	}
	if len(hits) < kinds {
		t.Errorf("faults hit %d kinds of requests, want %d", len(hits), kinds)
	}
}

// play runs one case in a bubble of its own. A goroutine that is left behind or waits for ever ends the bubble with a
// panic, and the testing package prints the case's name below it.
func play(t *testing.T, f fault, scenario func(*world, *actor), kind string, nth int) (w *world) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w = newWorld(t, f)
		// Renewals keep the clock of the bubble running, so a case that hangs is not detected as a deadlock.
		defer time.AfterFunc(time.Hour, func() { panic("the case hangs: " + t.Name()) }).Stop()
		w.subject = w.actor()
		w.aim(kind, nth)
		if f.suspends {
			began := time.Now()
			clock.System = clock.Clock{Boot: func() time.Duration { return time.Since(began) + time.Duration(w.slept.Load()) }}
		}
		w.subject.join()
		clock.System = clock.Clock{} // the rivals' hosts are not suspended
		scenario(w, w.subject)
		w.tasks.Wait()
		if w.subject.s != nil {
			w.probe()
		}
		for _, a := range w.actors {
			a.close()
		}
		time.Sleep(30 * time.Second) // for late requests to arrive, and for the lease of a lost Grant to expire
		synctest.Wait()
		w.check()
		w.empty()
		for _, text := range w.wrong {
			t.Error(text)
		}
	})
	return w
}
