// Package process has the scenarios of holders that are processes of their own and are stopped, or killed, at the worst
// moment: between a check of their handle and the write it was for. Each is a test.
//
// The resource is an HTTP server in the test's process, with a fence. Beside it is a twin without one, which is written
// by the same requests: it shows that the moment was bad.
package process
