package etcdproc

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"syscall"
)

// No common service uses these ports, and they lie below the ranges that Linux (32768-60999) and other systems
// (49152-65535) use for outgoing connections. A server with a port from those ranges could lose it while it is stopped,
// even to its own client: a client that tries to connect to such a port may get the very same port as its local one.
const (
	firstPort = 20000
	lastPort  = 31999
)

// reserved are UDP sockets at the ports that this process has picked. They keep other processes from picking these ports,
// also while a server does not run.
var reserved struct {
	sync.Mutex
	all []net.PacketConn
}

// pickAddr returns a free loopback address, and reserves it until this process ends.
func pickAddr() (string, error) {
	for range 100 {
		// Random, so that test binaries that run at the same time seldom try the same port.
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(firstPort+rand.IntN(lastPort-firstPort+1)))
		own, err := net.ListenPacket("udp", addr)
		if err == nil {
			var l net.Listener
			if l, err = net.Listen("tcp", addr); err == nil {
				reserved.Lock()
				defer reserved.Unlock()
				reserved.all = append(reserved.all, own)
				return addr, l.Close()
			}
			_ = own.Close()
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return "", fmt.Errorf("etcdproc: look for a free port: %w", err)
		}
	}
	return "", fmt.Errorf("etcdproc: 100 ports of %d-%d tried, all in use", firstPort, lastPort)
}
