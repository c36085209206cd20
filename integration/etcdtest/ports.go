package etcdtest

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

// pickAddr returns a loopback address nobody listens at. Somebody may do so by the time it is used, so the caller
// picks another one then.
func pickAddr() (string, error) {
	for range 100 {
		// Random, so that test binaries that run at the same time seldom pick the same one.
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		l, err := net.Listen("tcp", addr)
		if err == nil {
			return addr, l.Close()
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return "", fmt.Errorf("etcdtest: look for a free port: %w", err)
		}
	}
	return "", fmt.Errorf("etcdtest: 100 ports of %d-%d tried, all in use", firstPort, lastPort)
}
