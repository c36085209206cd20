//go:build unix

package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/examples/internal/ledger"
	"github.com/leasefence/leasefence/examples/internal/stage"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
	"github.com/leasefence/leasefence/lease/leasetest"
)

// run runs a process of the service. The channel gets what has ended it.
func run(ctx context.Context, t *testing.T, client *clientv3.Client, book string, era uint) (*service, <-chan error) {
	t.Helper()
	c, err := ledger.NewClient(book)
	require.NoError(t, err)
	s := &service{id: "one", election: "leader", address: "127.0.0.1:0", ttl: time.Minute, era: era, client: client, book: c}
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx) }()
	return s, ended
}

// A process whose work fails resigns and ends.
func TestService_endsWhenItsWorkFails(t *testing.T) {
	client := leasetest.New(t).Client(t).Client
	_, ended := run(t.Context(), t, client, "http://127.0.0.1:1", 0)
	require.ErrorContains(t, <-ended, "claim the ledger")
	left, err := client.Get(t.Context(), "", clientv3.WithPrefix())
	require.NoError(t, err)
	require.Empty(t, left.Kvs)
}

// A process ends and says so if the ledger has seen tokens that etcd has not granted yet. A higher era mends that.
func TestService_saysThatEtcdWasRestored(t *testing.T) {
	client := leasetest.New(t).Client(t).Client
	resource, err := ledger.Open(t.Context(), t.TempDir(), false, t.Logf)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, resource.Close()) })
	handler, err := resource.Handler()
	require.NoError(t, err)
	url, end, err := stage.Serve(handler)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, end()) })
	book, err := ledger.NewClient(url)
	require.NoError(t, err)
	require.NoError(t, book.Claim(fence.NewContext(t.Context(), 1_000_000)))
	_, ended := run(t.Context(), t, client, url, 0)
	require.ErrorIs(t, <-ended, lease.ErrRestored)

	ctx, stop := context.WithCancel(t.Context())
	s, ended := run(ctx, t, client, url, 1)
	require.Eventually(t, func() bool {
		last, err := book.Last(ctx)
		seen := s.seen.Load() // nobody, at first
		return err == nil && last.Writer == "one" && seen != nil && seen.Value == "one"
	}, time.Minute, 10*time.Millisecond)
	w := httptest.NewRecorder()
	s.getLeader(w, nil)
	require.Regexp(t, `^{"leader":"one","token":"28147497671\d{4}"}\n$`, w.Body)
	w = httptest.NewRecorder()
	s.postTransfer(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/transfer?to=nobody", nil))
	require.Equal(t, http.StatusNotFound, w.Code, "%s", w.Body)
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
	w = httptest.NewRecorder()
	s.postTransfer(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/transfer?to=nobody", nil))
	require.Equal(t, http.StatusConflict, w.Code, "it does not lead any more")
}
