// Package load has scenarios of load, thousands of waiters and storms of cancellations, and benchmarks of the kinds of
// locks and of large sessions and queues.
package load
