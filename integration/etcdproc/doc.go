// Package etcdproc runs etcd servers in separate processes, with fsync on and etcd's default timing, for tests and
// benchmarks.
//
// The process of a server runs the calling program once more: a program that uses [Start] must call [Serve] before it
// does anything else. A server ends when the program ends for any reason, because its standard input is closed then.
//
// Ports come from 20000-31999, below the range that the kernel uses for outgoing connections: no such connection can
// take the port of a stopped server before it restarts.
package etcdproc
