// Package load proves what leasefence promises under load: thousands of waiters, storms of cancellations, and processes that
// get no time to run.
package load
