// Package faultmatrix_test replays one fault at a time, exactly, against sessions, locks and elections: each kind of
// request that each scenario sends, its first four occurrences, each fault. One oracle looks at all of them, see check.
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
	// The host's boot clock runs on while a bubble's stands still, by which deadlines would come out early.
	clock.System = clock.Clock{}
	os.Exit(m.Run())
}

// The cases, at least so many, and how many occurrences of a kind are hit in one scenario.
const (
	fewest = 2000
	most   = 4
)

// Whatever single fault hits whichever request, there are never two holders, tokens grow, nothing is left, and losses are
// told. A case is run alone by its name, with -run.
func TestMatrix(t *testing.T) {
	planned, cases, hits := 0, 0, 0
	for _, sc := range scenarios {
		seen := play(t, fault{}, sc.run, "", 0).seen // what there is to hit
		for _, kind := range slices.Sorted(maps.Keys(seen)) {
			for nth := 1; nth <= min(most, seen[kind]); nth++ {
				for _, f := range faults {
					if !f.applies(kind) {
						continue
					}
					planned++
					if fakeetcd.RaceDetector && planned%9 != 0 {
						continue // the detector takes its time, and all are played without it
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
	if hits < fewest && cases == planned { // or else only some were asked for
		t.Errorf("want %d cases", fewest)
	}
}

// play runs one case in a bubble of its own. A goroutine that is left, or that waits for ever, ends the bubble with a
// panic, beneath which the testing package prints the case's name.
func play(t *testing.T, f fault, scenario func(*world, *actor), kind string, nth int) (w *world) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w = newWorld(t, f)
		// Renewals keep the clock of a bubble going for ever, so a case that hangs would not be found to be deadlocked.
		defer time.AfterFunc(time.Hour, func() { panic("the case hangs: " + t.Name()) }).Stop()
		w.subject = w.actor()
		w.aim(kind, nth)
		if f.suspends {
			began := time.Now()
			clock.System = clock.Clock{Boot: func() time.Duration { return time.Since(began) + time.Duration(w.slept.Load()) }}
		}
		w.subject.join()
		clock.System = clock.Clock{} // the others' hosts are not suspended
		scenario(w, w.subject)
		w.tasks.Wait()
		if w.subject.s != nil {
			w.probe("a")
		}
		for _, a := range w.actors {
			a.close()
		}
		time.Sleep(30 * time.Second) // what is late has come, and the lease of a lost Grant has expired
		synctest.Wait()
		w.check()
		w.empty()
		for _, text := range w.wrong {
			t.Error(text)
		}
	})
	return w
}
