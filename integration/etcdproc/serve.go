package etcdproc

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/leasefence/leasefence/integration/child"
)

const (
	// processEnv is the environment variable that holds the order of a server's process.
	processEnv = "ETCDPROC_ORDER"
	// readyLine is printed by that process once it serves clients.
	readyLine = "etcdproc: ready"
	// readyTimeout bounds the wait until a started server serves clients. That takes a second or two; the rest is for a
	// loaded machine.
	readyTimeout = 60 * time.Second
)

// order describes the server that a process runs.
type order struct {
	Member   Member
	Settings Settings
}

// Serve runs a server and exits if this process was started by [Start]; otherwise it does nothing. Call it first in
// main or TestMain.
func Serve() { child.Play(processEnv, serve) }

// serve returns when the program closes the server's standard input, or ends. It does not shut the server down: etcd's
// data survives that.
func serve(o order) error {
	// The Ctrl-C that ends the program must not end the server: the program still needs it to clean up.
	signal.Ignore(syscall.SIGINT)
	cfg := o.Member.Config()
	o.Settings.Apply(cfg)
	server, err := embed.StartEtcd(cfg)
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
