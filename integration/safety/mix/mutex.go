package mix

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/safety/history"
)

// mutex is the handle of etcd's own mutex, as etcdctl lock uses it. It has no deadline: it is live if its key exists.
type mutex struct {
	*concurrency.Mutex
	session *concurrency.Session
	etcd    *clientv3.Client
	key     string // Mutex.Unlock forgets it
	token   fence.Token
}

// stock is etcd's own mutex, on a session of its own.
func stock(c *client, name string) locker {
	return locker{
		session: c.current(), enter: history.Event{Name: name, Verb: history.Mutex},
		lock: func(ctx context.Context) (unlocker, error) {
			s, err := concurrency.NewSession(c.etcd, concurrency.WithTTL(int(c.ttl/time.Second)), concurrency.WithContext(ctx))
			if err != nil {
				return nil, err
			}
			m := &mutex{Mutex: concurrency.NewMutex(s, name), session: s, etcd: c.etcd}
			if err = m.Lock(ctx); err == nil {
				m.key = m.Mutex.Key()
				m.token, err = m.created(ctx)
			}
			if err != nil {
				return nil, errors.Join(err, s.Close())
			}
			return m, nil
		},
	}
}

func (m *mutex) created(ctx context.Context) (fence.Token, error) {
	resp, err := m.etcd.Get(ctx, m.key)
	if err != nil || len(resp.Kvs) == 0 {
		return 0, errors.Join(err, errGone)
	}
	return fence.Token(resp.Kvs[0].CreateRevision), nil
}

var errGone = errors.New("the key is gone")

func (m *mutex) Key() string        { return m.key }
func (m *mutex) Token() fence.Token { return m.token }

// Context is never done: etcd's mutex does not report a loss.
func (m *mutex) Context() context.Context { return context.Background() }

func (m *mutex) Err() error {
	token, err := m.created(m.session.Ctx())
	if err == nil && token != m.token {
		err = errGone
	}
	return err
}

func (m *mutex) Unlock(ctx context.Context) error {
	return errors.Join(m.Mutex.Unlock(ctx), m.session.Close())
}
