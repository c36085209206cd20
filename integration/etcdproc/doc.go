// Package etcdproc runs etcd servers in separate processes, with fsync on and etcd's default timing, for tests and
// benchmarks.
//
// The process of a server runs the calling program once more: a program that uses [Start] must call [Serve] before it
// does anything else. A server ends when the program ends for any reason, because its standard input is closed then.
package etcdproc
