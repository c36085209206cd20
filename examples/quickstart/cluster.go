package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasefence/leasefence/examples/internal/etcdserver"
	"github.com/leasefence/leasefence/examples/internal/timeline"
)

const (
	connectTimeout = 5 * time.Second
	cleanupTimeout = 3 * time.Second
)

// cluster is the etcd that the lock is in, and the parent's own view of the lock's queue.
type cluster struct {
	endpoints []string
	prefix    string
	client    *clientv3.Client
	server    *etcdserver.Server // nil if the cluster is somebody else's
	answers   bool               // the cluster is there
	changes   clientv3.WatchChan
	pending   []*clientv3.Event
}

// openCluster connects to the endpoints, or starts a server if there are none. The keys of this run have a prefix
// of their own.
func openCluster(ctx context.Context, tl *timeline.Timeline, opts options) (_ *cluster, err error) {
	c := &cluster{endpoints: opts.endpoints, prefix: "leasefence-quickstart-" + strings.ToLower(rand.Text()[:8]) + "/"}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close(ctx))
		}
	}()
	logger := zap.NewNop()
	if opts.verbose {
		if logger, err = zap.NewDevelopment(zap.AddStacktrace(zap.PanicLevel)); err != nil {
			return nil, err
		}
	}
	if len(c.endpoints) == 0 {
		if c.server, err = etcdserver.Start(ctx, "quickstart", logger); err != nil {
			return nil, fmt.Errorf("start etcd: %w", err)
		}
		c.endpoints = []string{c.server.Endpoint()}
		tl.Add(timeline.Etcd, 0, timeline.Plain, "runs inside this program, in "+c.server.Dir())
	}
	if c.client, err = clientv3.New(clientv3.Config{Endpoints: c.endpoints, Logger: logger}); err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	if err := c.watch(ctx); err != nil {
		return nil, fmt.Errorf("connect to etcd at %s: %w", strings.Join(c.endpoints, ","), err)
	}
	if c.server == nil {
		tl.Add(timeline.Etcd, 0, timeline.Plain, fmt.Sprintf("is at %s; the keys are below %s", strings.Join(c.endpoints, ","), c.prefix))
	}
	return c, nil
}

// watch sees to it that next returns every change from now on.
func (c *cluster) watch(ctx context.Context) error {
	// Is anybody there? A watch waits for its server however long that takes.
	short, cancel := context.WithTimeoutCause(ctx, connectTimeout, fmt.Errorf("no answer in %v", connectTimeout))
	defer cancel()
	if _, err := c.client.Get(short, c.prefix); err != nil {
		if short.Err() != nil {
			err = context.Cause(short)
		}
		return err
	}
	c.answers = true
	c.changes = c.client.Watch(clientv3.WithRequireLeader(ctx), c.prefix, clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	select {
	case resp, ok := <-c.changes:
		if !ok {
			return context.Cause(ctx)
		}
		return resp.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// next waits for the next change to the lock's queue.
func (c *cluster) next(ctx context.Context) (*clientv3.Event, error) {
	for len(c.pending) == 0 {
		select {
		case resp, ok := <-c.changes:
			switch {
			case ctx.Err() != nil:
				return nil, context.Cause(ctx)
			case !ok:
				return nil, errors.New("the watch has ended")
			case resp.Err() != nil:
				return nil, resp.Err()
			}
			c.pending = resp.Events
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	event := c.pending[0]
	c.pending = c.pending[1:]
	return event, nil
}

// entered waits until a worker stands in the lock's queue.
func (c *cluster) entered(ctx context.Context, name string) (*clientv3.Event, error) {
	event, err := c.next(ctx)
	if err != nil {
		return nil, fmt.Errorf("wait for %s's key in etcd: %w", name, err)
	}
	if !event.IsCreate() {
		return nil, fmt.Errorf("etcd: %v of %q instead of %s's new key", event.Type, event.Kv.Key, name)
	}
	return event, nil
}

// left waits until a worker's key has gone.
func (c *cluster) left(ctx context.Context, name string, key []byte) error {
	event, err := c.next(ctx)
	if err != nil {
		return fmt.Errorf("wait for the end of %s's key in etcd: %w", name, err)
	}
	if event.Type != clientv3.EventTypeDelete || string(event.Kv.Key) != string(key) {
		return fmt.Errorf("etcd: %v of %q instead of the end of %s's %q", event.Type, event.Kv.Key, name, key)
	}
	return nil
}

// close removes what the run has left in somebody else's cluster, or the server and its folder. The workers have
// ended. A lease that one of them left behind runs out by itself.
func (c *cluster) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	var errs []error
	if c.answers && c.server == nil {
		if _, err := c.client.Delete(ctx, c.prefix, clientv3.WithPrefix()); err != nil {
			errs = append(errs, fmt.Errorf("delete the keys below %s: %w", c.prefix, err))
		}
	}
	if c.client != nil {
		// The error says that the connection's context has ended.
		_ = c.client.Close()
	}
	if c.server != nil {
		errs = append(errs, c.server.Stop())
	}
	return errors.Join(errs...)
}
