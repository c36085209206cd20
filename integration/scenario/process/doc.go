// Package process has scenarios in which the holder is a separate process that is stopped or killed at the worst
// moment: after it has checked its handle and before its write arrives.
//
// The resource is an HTTP server in the test's process, with a fence. The same writes go to a twin without a fence. The
// twin shows that the write was stale: it accepts the write after those of the successor.
package process
