package mix

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/safety/check"
	"github.com/leasefence/leasefence/integration/safety/history"
	"github.com/leasefence/leasefence/lease"
)

// A session adopts a lease by a renewal. If the first renewals are not answered in time, a TTL may have passed since
// the grant by then. A lock on the lease is live all the same.
func TestRenewals_leaseAdoptedAfterTheGrantHasRunOut(t *testing.T) {
	const ttl = 3 * time.Second
	tape := newTape(t.TempDir())
	require.NoError(t, tape.begin(1))
	tape.Record(history.Event{Kind: history.Note, Name: history.NoteTTL, Value: ttl.String()})
	srv, in := etcdtest.Start(t, etcdtest.Options{}), faults.NewInterceptor(t)
	client := srv.Client(t, etcdtest.Dial(renewals{tape}.options()...), etcdtest.Dial(in.DialOptions()...))
	// Two renewals are given up, after a quarter and up to a half of the TTL. The server never waits longer than three
	// fifths of the TTL for the next renewal.
	in.Inject(t, faults.Rule{Fault: faults.DelayAnswer, Method: faults.LeaseGrant, Delay: ttl * 3 / 5, Times: 1})
	in.Inject(t, faults.Rule{Fault: faults.DelayAnswer, Method: faults.LeaseKeepAlive, Delay: ttl, Times: 2})
	asked := tape.Now()
	session, err := adopt(t.Context(), client, lease.Options{TTL: ttl})
	require.NoError(t, err)
	l, err := session.Lock(t.Context(), "a")
	require.NoError(t, err)
	tape.Record(history.Event{Kind: history.Enter, Op: 1, Actor: "c/w", Name: "a"})
	tape.Record(history.Event{Kind: history.Put, Key: l.Key(), Revision: int64(l.Token()), Created: int64(l.Token()), Lease: int64(session.Status().LeaseID)})
	tape.Record(history.Event{Kind: history.Grant, Op: 1, Actor: "c/w", Name: "a", Token: l.Token(), Key: l.Key()})
	at := tape.Now()
	require.Greater(t, at-asked, ttl-ttl/10, "the grant has not run out, so this proves nothing")
	require.NoError(t, l.Err())
	tape.Record(history.Event{At: at, Kind: history.Live, Op: 1})
	require.NoError(t, l.Unlock(t.Context()))
	require.NoError(t, session.Close(t.Context()))

	events, err := tape.end()
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(events, func(e history.Event) bool { return e.Kind == history.Renewed }))
	report := check.Check(events)
	require.Equal(t, 1, report.Count("handles compared with the deadlines of their leases"))
	require.Empty(t, report.Violations)
}
