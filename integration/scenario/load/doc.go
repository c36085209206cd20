// Package load proves what leasefence promises under load: thousands of waiters and storms of cancellations.
package load
