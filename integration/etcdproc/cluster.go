// Package etcdproc runs etcd servers in separate processes, with fsync on and etcd's default timing, for tests and
// benchmarks.
//
// The process of a server runs the calling program once more: a program that uses [Start] must call [Serve] before it
// does anything else. A server ends when the program ends for any reason, because its standard input is closed then.
package etcdproc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"path/filepath"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/etcdutl/v3/snapshot"

	"github.com/leasefence/leasefence/integration/child"
)

// Cluster is a set of one or more members that form one cluster, each in a separate process.
type Cluster struct {
	// Members are all members, in a fixed order, running or not.
	Members []*Process
}

// Start runs a new cluster of n members with their data below dir. It returns when all members serve clients. On an
// error nothing is left running. The caller must call [Cluster.Kill].
func Start(ctx context.Context, dir string, n int, settings Settings) (*Cluster, error) {
	members, err := NewMembers(dir, n, settings)
	if err != nil {
		return nil, err
	}
	c := &Cluster{}
	for _, m := range members {
		c.Members = append(c.Members, &Process{Member: m})
	}
	if err := c.launch(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// launch starts all members and returns when all serve clients. On an error nothing is left running.
func (c *Cluster) launch(ctx context.Context) error {
	for _, p := range c.Members {
		if err := p.launch(); err != nil {
			return errors.Join(err, c.Kill())
		}
	}
	for _, p := range c.Members {
		if err := p.awaitReady(ctx); err != nil {
			return errors.Join(err, c.Kill())
		}
	}
	return nil
}

// Endpoints returns the addresses of all members, as host:port, running or not.
func (c *Cluster) Endpoints() []string {
	endpoints := make([]string, len(c.Members))
	for i, m := range c.Members {
		endpoints[i] = m.Endpoint()
	}
	return endpoints
}

// Kill ends all members at once, as [Process.Kill] does.
func (c *Cluster) Kill() error {
	errs := make([]error, len(c.Members))
	for i, m := range c.Members {
		errs[i] = m.Kill()
	}
	return errors.Join(errs...)
}

// Process is one etcd server in a separate process. It is not safe for concurrent use.
type Process struct {
	Member

	run   *child.Process // nil while it does not run
	calls *rpc.Client    // of its control
}

// Endpoint returns the address at which the server listens for clients, as host:port. It is the same after a restart.
func (p *Process) Endpoint() string { return p.ClientAddr }

// Restart starts the server with the same data and address, and with its present Settings, and waits until it serves
// clients. It kills a running server first. On an error nothing is left running.
func (p *Process) Restart(ctx context.Context) error {
	if err := p.Kill(); err != nil {
		return err
	}
	return (&Cluster{[]*Process{p}}).launch(ctx)
}

// launch starts the process without waiting until it is ready.
func (p *Process) launch() error {
	run, err := child.Start(processEnv, p.Member)
	if err != nil {
		return fmt.Errorf("etcdproc: start server %s: %w", p.Name, err)
	}
	p.run, p.calls = run, rpc.NewClient(pipes{run.Stdout, run.Stdin})
	return nil
}

// awaitReady returns when the server serves clients: before that it answers no call.
func (p *Process) awaitReady(ctx context.Context) error {
	select {
	case call := <-p.calls.Go("control.Slow", time.Duration(0), nil, nil).Done:
		if call.Error != nil {
			return fmt.Errorf("etcdproc: start server %s: %w; does main or TestMain call Serve first?", p.Name, call.Error)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("etcdproc: start server %s: %w", p.Name, context.Cause(ctx))
	}
}

// Kill ends the process with SIGKILL and waits until it is gone. What the server has confirmed is on the disk. On a
// process that does not run it does nothing.
func (p *Process) Kill() error {
	if p.run == nil {
		return nil
	}
	if err := p.run.Kill(); err != nil {
		return fmt.Errorf("etcdproc: kill server %s: %w", p.Name, err)
	}
	_ = p.run.Wait() // the error is the signal
	p.run = nil
	return nil
}

// Pause stops the process with SIGSTOP and returns when it has stopped. Its connections stay open and silent.
func (p *Process) Pause() error {
	return p.do(func() error { return p.run.Pause(context.Background()) })
}

// Resume continues a paused process.
func (p *Process) Resume() error { return p.do(func() error { return p.run.Resume() }) }

func (p *Process) do(what func() error) error {
	err := errors.New("it does not run")
	if p.run != nil {
		err = what()
	}
	if err != nil {
		return fmt.Errorf("etcdproc: server %s: %w", p.Name, err)
	}
	return nil
}

// call calls a method of the server's control.
func (p *Process) call(method string, arg any) error {
	return p.do(func() error { return p.calls.Call("control."+method, arg, nil) })
}

// Isolate drops all messages between a member and the other running members, in both directions, while clients still
// reach all of them. Links to members that do not run are not cut, even if these members start later.
func (c *Cluster) Isolate(p *Process) error { return c.eachLink(p, "Cut") }

// Rejoin undoes Isolate.
func (c *Cluster) Rejoin(p *Process) error { return c.eachLink(p, "Mend") }

func (c *Cluster) eachLink(p *Process, method string) error {
	var errs []error
	for _, other := range c.Members {
		if other != p && other.run != nil {
			errs = append(errs, p.call(method, other.Name), other.call(method, p.Name))
		}
	}
	return errors.Join(errs...)
}

// Stall makes the server stop applying committed entries, until GoOn. The server still votes, commits and, as a leader,
// proposes. Its clients' requests wait; once 5,000 entries wait to be applied, it refuses requests with "too many
// requests".
func (p *Process) Stall() error { return p.call("Stall", struct{}{}) }

// GoOn undoes Stall.
func (p *Process) GoOn() error { return p.call("GoOn", struct{}{}) }

// SlowDisk makes each sync of the server's log take longer by d, until the server restarts.
func (p *Process) SlowDisk(d time.Duration) error { return p.call("Slow", d) }

// Save saves the data of a client's server to a file, like etcdctl snapshot save.
func Save(ctx context.Context, client *clientv3.Client, file string) (err error) {
	in, err := client.Snapshot(ctx)
	if err != nil {
		return fmt.Errorf("etcdproc: save a snapshot: %w", err)
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	out, err := os.Create(filepath.Clean(file))
	if err != nil {
		return fmt.Errorf("etcdproc: save a snapshot: %w", err)
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// Restore kills all members, gives each the data of the same snapshot file, like etcdutl snapshot restore, and starts
// them at the same addresses as a new cluster. With a bump of 0 the revision goes back to that of the snapshot.
// Otherwise the revision is raised by bump and all earlier ones are marked as compacted, as with --bump-revision and
// --mark-compacted.
//
// Restore returns when all members serve clients; on an error nothing is left running.
func (c *Cluster) Restore(ctx context.Context, file string, bump uint64) error {
	if err := c.Kill(); err != nil {
		return err
	}
	for _, p := range c.Members {
		p.Dir += "-restored" // the old data stays where it is
		err := snapshot.NewV3(newLogger()).Restore(snapshot.RestoreConfig{
			SnapshotPath:        file,
			Name:                p.Name,
			OutputDataDir:       p.Dir,
			PeerURLs:            []string{"http://" + p.PeerAddr},
			InitialCluster:      p.Cluster,
			InitialClusterToken: p.Config().InitialClusterToken,
			RevisionBump:        bump,
			MarkCompacted:       bump > 0,
		})
		if err != nil {
			return fmt.Errorf("etcdproc: restore server %s: %w", p.Name, err)
		}
	}
	return c.launch(ctx)
}
