//go:build !race

package fakeetcd

// RaceDetector reports whether a test runs under the race detector, which takes its time.
const RaceDetector = false
