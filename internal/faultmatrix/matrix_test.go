// Package faultmatrix_test replays single faults against sessions, locks and elections: every fault at each of the
// first four requests of every kind that every scenario sends. One oracle checks all cases, see check.
package faultmatrix_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
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
	fewest = 2000 // the least number of cases
	most   = 4    // the most requests of one kind that faults hit in one scenario
)

// Whatever fault hits whatever request, there are never two holders, tokens grow, nothing is left behind, and losses
// are reported. To run one case alone, give its name to -run.
func TestMatrix(t *testing.T) {
	planned, cases, hits := 0, 0, 0
	for _, sc := range scenarios {
		seen := play(t, fault{}, sc.run, "", 0).seen // the requests of the scenario without a fault
		for _, kind := range slices.Sorted(maps.Keys(seen)) {
			for nth := 1; nth <= min(most, seen[kind]); nth++ {
				for _, f := range faults {
					if !f.applies(kind) {
						continue
					}
					planned++
					if fakeetcd.RaceDetector && planned%9 != 0 {
						continue // the detector is slow, and runs without it play all cases
					}
					t.Run(fmt.Sprintf("%s/%s %d/%s", sc.name, kind, nth, f.name), func(t *testing.T) {
						cases++
						if w := play(t, f, sc.run, kind, nth); !w.hit.IsZero() {
							hits++
						}
					})
				}
			}
		}
	}
	t.Logf("%d cases, and in %d of them the request was sent that the fault is for", cases, hits)
	if hits < fewest && cases == planned { // otherwise -run has selected some
		t.Errorf("want %d cases", fewest)
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
			w.probe("a")
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
