//go:build race

package fakeetcd

import "runtime"

// RaceDetector reports whether a test runs under the race detector, which takes its time.
const RaceDetector = true

// Bubbles of fake time and the race detector together need one processor. A bubble has one context of the detector for
// all its timers, and a goroutine that receives from a timer's channel runs the timer in it at once (runtime.maybeRunChan),
// while the bubble itself may be running others. Two threads in one context spoil it, and now and then the process dies in
// the detector; see also https://go.dev/issue/78156. What is a race is found all the same, since the detector goes by the
// order of events and not by what happens at a time.
func init() { runtime.GOMAXPROCS(1) }
