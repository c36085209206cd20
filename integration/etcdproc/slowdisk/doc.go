// Package slowdisk builds a server for package etcdproc whose disk can be made slow: before its log is synced to the disk
// it sleeps, for as long as a file beside its data says. Everything that the server confirms waits for that.
//
// The server is etcd's own code, but for one line, which is put into a copy that is kept beside Go's build cache.
package slowdisk
