package etcdproc

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
)

// No common service uses these ports, and they lie below the ranges that Linux (32768-60999) and other systems
// (49152-65535) use for outgoing connections. A server with a port from those ranges could lose it while it is stopped,
// even to its own client: a client that tries to connect to such a port may get the very same port as its local one.
const (
	firstPort = 20000
	lastPort  = 31999
)

// pickAddr returns a free loopback address that is not in taken, and adds it to taken. Another process may still take
// the address before the caller does.
func pickAddr(taken map[string]bool) (string, error) {
	for range 100 {
		// Random, so that test binaries that run at the same time seldom pick the same port.
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
