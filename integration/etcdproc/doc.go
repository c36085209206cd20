// Package etcdproc runs etcd servers in processes of their own, with fsync on and etcd's default timing, for tests and
// for programs that measure.
//
// The process of a server is the program itself, started once more: a program that uses [Start] calls [Serve] before it
// does anything else. A server ends when the program does, however that ends, since its standard input is closed then.
//
// Ports are taken from 20000-31999, below the range that the kernel gives to outgoing connections: a port that is free
// while its server is stopped is then not taken by somebody's connection before the server comes back.
package etcdproc
