package k8slock_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election/k8slock"
	"github.com/leasefence/leasefence/fence"
)

func TestNew_refusesBadInput(t *testing.T) {
	client := clientv3.NewCtxClient(t.Context())
	long := strings.Repeat("x", 5000)
	for _, c := range []struct {
		client *clientv3.Client
		name   string
		opts   k8slock.Options
		want   string
	}{
		{nil, "a", k8slock.Options{}, "client is nil"},
		{client, "", k8slock.Options{}, "name is empty, want 1 to 1024 bytes"},
		{client, "/a", k8slock.Options{}, `name "/a" begins or ends with "/"`},
		{client, "a", k8slock.Options{Identity: long}, "Options.Identity has 5000 bytes, want 0 to 4096"},
		{client, "a", k8slock.Options{Identity: "\xff"}, `Options.Identity is "\xff", want UTF-8`},
		{client, "a", k8slock.Options{StableIdentity: true}, "Options.StableIdentity is set and Options.Identity is empty"},
		{client, "a", k8slock.Options{Prefix: long}, "Options.Prefix has 5000 bytes, want 0 to 1024"},
		{client, "a", k8slock.Options{Prefix: "\x00"}, `Options.Prefix is "\x00", want UTF-8 without NUL`},
		{client, "a", k8slock.Options{Prefix: "\xff"}, `Options.Prefix is "\xff", want UTF-8 without NUL`},
		{client, "a", k8slock.Options{Era: 40000}, "Options.Era is 40000, want 0 to 32767"},
		{client, "a", k8slock.Options{Timeout: -1}, "Options.Timeout is -1ns, want 0 (2s) to 1m0s"},
		{client, "a", k8slock.Options{Timeout: time.Hour}, "Options.Timeout is 1h0m0s, want 0 (2s) to 1m0s"},
	} {
		l, err := k8slock.New(c.client, c.name, c.opts)
		require.ErrorContains(t, err, c.want)
		require.Nil(t, l)
	}
}

func TestOptions_takeEffect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		var log bytes.Buffer
		a := newCandidate(t, srv, k8slock.Options{
			Identity: "me", Prefix: "team/", Era: 3, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		require.Equal(t, fence.Token(3<<48|srv.Rev()+1), a.create(t))
		require.Equal(t, "me", a.Identity())
		require.Equal(t, "team/"+key, string(srv.Keys("")[0].Key))
		require.Equal(t, "team/"+key, a.Describe())

		a.RecordEvent("became leader")
		synctest.Wait() // for the log's goroutine
		require.Contains(t, log.String(), "became leader")
		work := a.context(t)
		name, _ := fence.LockFromContext(work)
		require.Equal(t, "team/"+key, name, "the key is the lock's name, which no other lock has")
		srv.Delete("team/" + key)
		_, _, err := a.Get(t.Context())
		require.Error(t, err)
		requireLost(work, t)
		synctest.Wait()
		require.Contains(t, log.String(), "k8slock: leadership lost: the record is gone")
	})
}

// stuck is a writer whose Write blocks until the channel is closed.
type stuck chan struct{}

func (s stuck) Write(line []byte) (int, error) {
	<-s
	return len(line), nil
}

func TestOptions_Logger_mayBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := make(stuck)
		defer close(log)
		a := newCandidate(t, newServer(t), k8slock.Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
		a.create(t)
		a.RecordEvent("became leader")
		work := a.context(t)
		a.RecordEvent("stopped leading")
		<-work.Done()
	})
}

// A foreign identity is clipped in errors and log lines.
func TestLock_othersIdentityIsClipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		var log bytes.Buffer
		a := newCandidate(t, srv, k8slock.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		work := a.begins(t)
		srv.Put(key, `{"holderIdentity":"`+strings.Repeat(`\u0007`, 5000)+`"}`)
		a.get(t)
		requireLost(work, t)
		synctest.Wait()
		require.Less(t, len(context.Cause(work).Error()), 500)
		require.Less(t, log.Len(), 1000)
	})
}
