package etcdproc

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime/pprof"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
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
	Profile  string // where to write a CPU profile, if anywhere
}

// Serve runs a server if this process was started by [Start], and exits then. Call it first in main or TestMain.
func Serve() {
	text, ok := os.LookupEnv(processEnv)
	if !ok {
		return
	}
	// Not to be ended by the Ctrl-C that ends the program: the server would be gone while the program still cleans up.
	signal.Ignore(syscall.SIGINT)
	if err := serve(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// serve returns when the program closes the server's standard input, or ends. The data needs no shutdown.
func serve(text string) error {
	var o order
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return fmt.Errorf("etcdproc: read the order of a server: %w", err)
	}
	cfg := o.Member.Config(NewLogger())
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
	stopProfile, err := startProfile(o.Profile)
	if err != nil {
		return err
	}
	fmt.Println(readyLine)
	return errors.Join(obey(server, os.Stdin), stopProfile())
}

func startProfile(path string) (stop func() error, err error) {
	if path == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("etcdproc: profile: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(fmt.Errorf("etcdproc: profile: %w", err), f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}
