// Package slowdisk builds a server for package etcdproc whose disk can be made slow: before it syncs its log to the
// disk, it sleeps for a time that a file beside its data gives. Everything that the server confirms waits for that.
//
// The server is etcd's own code with one more line, in a copy that is kept beside Go's build cache.
package slowdisk
