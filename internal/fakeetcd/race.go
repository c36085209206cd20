//go:build race

package fakeetcd

import "runtime"

// RaceDetector reports whether a test runs under the race detector, which takes its time.
const RaceDetector = true

// With the race detector, bubbles of fake time run on one processor. A bubble has one context of the detector for all
// its timers, and a goroutine that receives from a timer's channel runs the timer in that context at once
// (runtime.maybeRunChan), while the bubble itself may be running others. Two threads in one context corrupt it, and
// sometimes the process crashes in the detector; see also https://go.dev/issue/78156. Races are still found, since
// the detector goes by the order of events and not by simultaneity.
func init() { runtime.GOMAXPROCS(1) }
