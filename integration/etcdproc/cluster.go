//go:build unix

package etcdproc

import (
	"context"
	"errors"
)

// Cluster is a set of one or more members that form one cluster, each in a separate process.
type Cluster struct {
	// Members are all members, in a fixed order, running or not.
	Members []*Process
}

// Start runs a new cluster of n members with their data below dir. It returns when all members serve clients. On an
// error nothing is left running. The caller must call [Cluster.Kill].
func Start(ctx context.Context, dir string, n int, settings Settings) (*Cluster, error) {
	members, err := NewMembers(dir, n)
	if err != nil {
		return nil, err
	}
	c := &Cluster{}
	for _, m := range members {
		c.Members = append(c.Members, &Process{order: order{Member: m, Settings: settings}})
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
