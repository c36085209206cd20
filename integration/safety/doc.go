// Safety runs the safety suite, and checks the histories that it leaves.
//
//	go -C integration run ./safety run
//	go -C integration run ./safety check FILE
//	go -C integration run ./safety trace FILE > trace.json
//
// Run runs the random mix of package mix, for minutes or for hours, and keeps the histories with violations. It exits
// with 1 if there are any, or if it has not reached its floors.
//
// Check runs all checkers on a history and prints what they have compared and found. It exits with 1 if an invariant is
// violated, and with 2 if the file is no history. Trace turns a history into a file that ui.perfetto.dev and other
// viewers of Chrome's traces draw.
//
// Paths are relative to the folder integration.
package main
