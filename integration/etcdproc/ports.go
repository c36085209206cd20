package etcdproc

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
)

// The ports below are registered to nobody in particular and lie under the ranges that Linux (32768-60999) and others
// (49152-65535) use for outgoing connections. A port from those ranges could be lost while its server is stopped, even
// to a client of ours: a connection attempt to a port of that range may get the very same port at its own end.
const (
	firstPort = 20000
	lastPort  = 31999
)

// pickAddr returns a loopback address, other than those that are taken, at which nobody listens. Somebody may do so by
// the time it is used, so the caller picks another one then.
func pickAddr(taken map[string]bool) (string, error) {
	for range 100 {
		// Random, so that test binaries that run at the same time seldom pick the same one.
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		if taken[addr] {
			continue
		}
		l, err := net.Listen("tcp", addr)
		if err == nil {
			taken[addr] = true
			return addr, l.Close()
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return "", fmt.Errorf("etcdproc: look for a free port: %w", err)
		}
	}
	return "", fmt.Errorf("etcdproc: 100 ports of %d-%d tried, all in use", firstPort, lastPort)
}
