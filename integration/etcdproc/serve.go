package etcdproc

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/leasefence/leasefence/integration/child"
)

const (
	// processEnv is set for the process of a server and holds its order.
	processEnv = "ETCDPROC_ORDER"
	// readyLine is printed by that process once it serves clients.
	readyLine = "etcdproc: ready"
	// takenLine is printed instead when somebody else listens at one of the server's ports.
	takenLine = "etcdproc: port taken"
	// readyTimeout bounds the wait for a started server to serve clients. It takes a second or two; the rest is for a
	// loaded machine.
	readyTimeout = 60 * time.Second
)

// order is what the process of a server is told.
type order struct {
	Member   Member
	Settings Settings
}

// Serve runs a server if this process was started by [Start], and exits then. Call it first in main or TestMain.
func Serve() { child.Play(processEnv, serve) }

// serve returns when the program closes the server's standard input, or ends. The data needs no shutdown.
func serve(o order) error {
	// Not to be ended by the Ctrl-C that ends the program: the server would be gone while the program still cleans up.
	signal.Ignore(syscall.SIGINT)
	cfg := o.Member.Config()
	o.Settings.apply(cfg)
	server, err := embed.StartEtcd(cfg)
	if errors.Is(err, syscall.EADDRINUSE) {
		fmt.Println(takenLine)
	}
	if err != nil {
		return fmt.Errorf("etcdproc: start server %s: %w", o.Member.Name, err)
	}
	select {
	case <-server.Server.ReadyNotify():
	case err := <-server.Err():
		return fmt.Errorf("etcdproc: server %s ended before it was ready: %w", o.Member.Name, err)
	case <-time.After(readyTimeout):
		return fmt.Errorf("etcdproc: server %s is not ready in %s; it needs a majority to start", o.Member.Name, readyTimeout)
	}
	fmt.Println(readyLine)
	return obey(server, os.Stdin)
}
