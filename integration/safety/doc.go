// Safety checks the histories that the random mix of package mix leaves, and draws them.
//
//	go -C integration run ./safety check FILE
//	go -C integration run ./safety trace FILE > trace.json
//
// Check runs all checkers on a history and prints what they have compared and found. It exits with 1 if an invariant is
// violated or no run can have written the history, and with 2 if the file is no history. Trace turns a history into a
// file that ui.perfetto.dev and other viewers of Chrome's traces draw.
//
// Paths are relative to the folder integration.
package main
