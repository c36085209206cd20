package k8slock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/leasefence/leasefence/election/k8slock"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fakeetcd"
)

func TestLock_createsRenewsAndReleases(t *testing.T) {
	bubble(t, func(t *testing.T, a *candidate) {
		_, _, err := a.Get(t.Context())
		require.True(t, apierrors.IsNotFound(err), "%v", err)
		a.requireNoTenure(t)

		require.NoError(t, a.Create(t.Context(), a.leaderRecord()))
		require.Equal(t, fence.Token(a.srv.Rev()), a.token(t), "the token is the revision of the write")
		record, raw, err := a.Get(t.Context())
		require.NoError(t, err)
		require.Equal(t, a.Identity(), record.HolderIdentity)
		var same resourcelock.LeaderElectionRecord
		require.NoError(t, json.Unmarshal(raw, &same))
		require.Equal(t, *record, same)
		require.Equal(t, leaseDuration, a.srv.Leases()[0].TTL)
		require.Equal(t, []string{key}, a.srv.Leases()[0].Keys)

		first := a.token(t)
		work := a.context(t)
		for range 10 { // several in one second, and without a Get in between, as client-go renews
			time.Sleep(50 * time.Millisecond)
			require.NoError(t, a.Update(t.Context(), a.leaderRecord()))
		}
		_, renewed, err := a.Get(t.Context())
		require.NoError(t, err)
		require.NotEqual(t, string(raw), string(renewed), "a renewal is a change")
		require.Equal(t, first, a.token(t), "renewals keep the token")
		require.Equal(t, time.Now().Add(leaseDuration), a.srv.Leases()[0].Expiry, "renewals renew the lease")
		require.NoError(t, work.Err())

		require.NoError(t, a.Update(t.Context(), released()))
		require.Empty(t, a.get(t).HolderIdentity)
		<-work.Done()
		a.requireNoTenure(t)
		require.Error(t, a.Update(t.Context(), released()), "there is nothing to release")

		a.update(t)
		require.Greater(t, a.token(t), first, "a new tenure has a larger token")
		for range 4 {
			time.Sleep(leaseDuration / 3)
			require.NoError(t, a.Update(t.Context(), a.leaderRecord()))
		}
		require.Len(t, a.srv.Leases(), 1, "the lease of the last tenure has expired")
	})
}

func TestLock_errorsOfTheAPI(t *testing.T) {
	bubble(t, func(t *testing.T, a *candidate) {
		b := newCandidate(t, a.srv, k8slock.Options{})
		require.NotEqual(t, a.Identity(), b.Identity())
		require.True(t, apierrors.IsNotFound(b.Update(t.Context(), b.leaderRecord())), "b has seen no record")
		a.create(t)
		require.True(t, apierrors.IsAlreadyExists(b.Create(t.Context(), b.leaderRecord())))
		b.get(t)
		require.NoError(t, a.Update(t.Context(), a.leaderRecord()))
		require.True(t, apierrors.IsConflict(b.Update(t.Context(), b.leaderRecord())), "b has seen the record before the renewal")
		synctest.Wait() // for the revocation
		require.Len(t, a.srv.Leases(), 1, "b's acquisition leaves no lease")
		b.requireNoTenure(t)
		a.token(t)
	})
}

// A record that is taken over moves to the new holder's lease, so the end of the old lease does not delete it.
func TestLock_takesOver(t *testing.T) {
	bubble(t, func(t *testing.T, a *candidate) {
		b := newCandidate(t, a.srv, k8slock.Options{})
		first := a.create(t)
		work := a.context(t)
		old := leaseOfRecord(a.srv)
		time.Sleep(5 * time.Second)
		b.update(t)
		require.Greater(t, b.token(t), first)
		require.NotEqual(t, old, leaseOfRecord(a.srv))

		require.True(t, apierrors.IsConflict(a.Update(t.Context(), a.leaderRecord())))
		require.Equal(t, b.Identity(), a.get(t).HolderIdentity)
		requireLost(work, t)
		a.requireNoTenure(t)
		time.Sleep(3 * time.Second) // a's attempt has renewed its lease, which expires nevertheless
		require.NoError(t, b.Update(t.Context(), b.leaderRecord()))
		time.Sleep(leaseDuration - 2*time.Second)
		require.Len(t, a.srv.Leases(), 1)
		require.Equal(t, b.Identity(), a.get(t).HolderIdentity)
	})
}

// client-go releases without checking whose record it is. A release leaves the successor's record alone, also while the
// lease of the lost tenure lives.
func TestLock_releaseLeavesTheSuccessorAlone(t *testing.T) {
	bubble(t, func(t *testing.T, a *candidate) {
		b := newCandidate(t, a.srv, k8slock.Options{})
		a.create(t)
		successor, err := json.Marshal(b.leaderRecord())
		require.NoError(t, err)
		a.srv.Put(key, string(successor))
		rev := a.srv.Rev()
		require.True(t, apierrors.IsConflict(a.Update(t.Context(), released())))
		require.Equal(t, b.Identity(), a.get(t).HolderIdentity)
		err = a.Update(t.Context(), released())
		require.Error(t, err)
		require.False(t, apierrors.IsConflict(err), "client-go would repeat the release for ever after a conflict: %v", err)
		require.Equal(t, rev, a.srv.Rev(), "nothing is written")
		require.NotEmpty(t, a.srv.Leases())
		a.requireNoTenure(t)
	})
}

// A process that comes back with a stable identity takes over the record of its earlier start, but only the record that
// its first Get finds.
func TestLock_stableIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		srv := newServer(t)
		opts := k8slock.Options{Identity: "pod-0", StableIdentity: true}
		before, after, other := newCandidate(t, srv, opts), newCandidate(t, srv, opts), newCandidate(t, srv, k8slock.Options{})
		first := before.create(t)
		work := before.context(t)
		require.Equal(t, "pod-0", other.get(t).HolderIdentity, "to others the record is not released")

		require.Empty(t, after.get(t).HolderIdentity)
		require.Empty(t, after.get(t).HolderIdentity, "the record has not changed since")
		require.NoError(t, after.Update(t.Context(), after.leaderRecord()))
		require.Greater(t, after.token(t), first)

		require.Equal(t, "pod-0 (another process)", before.get(t).HolderIdentity, "the two do not take turns")
		requireLost(work, t)

		// A record that was written after the first Get is not taken over.
		require.NoError(t, after.Update(t.Context(), released()))
		late := newCandidate(t, srv, opts)
		require.Empty(t, late.get(t).HolderIdentity)
		after.update(t)
		require.Equal(t, "pod-0 (another process)", late.get(t).HolderIdentity)
	})
}

// Between "became leader" and "stopped leading" there is one tenure.
func TestLock_noSecondTenureWhileTheElectorLeads(t *testing.T) {
	bubble(t, func(t *testing.T, a *candidate) {
		first := a.create(t)
		a.RecordEvent("became leader")
		work := a.context(t)
		a.srv.Delete(key)

		require.True(t, apierrors.IsConflict(a.Update(t.Context(), a.leaderRecord())))
		_, _, err := a.Get(t.Context())
		require.True(t, apierrors.IsNotFound(err))
		requireLost(work, t)
		require.True(t, apierrors.IsNotFound(a.Update(t.Context(), a.leaderRecord())))
		require.ErrorIs(t, a.Create(t.Context(), a.leaderRecord()), k8slock.ErrLost)
		a.requireNoTenure(t)

		a.RecordEvent("stopped leading")
		require.Greater(t, a.create(t), first)
	})
}

func TestLock_refusesWhatItCannotKeep(t *testing.T) {
	bubble(t, func(t *testing.T, a *candidate) {
		short, long, others := a.leaderRecord(), a.leaderRecord(), a.leaderRecord()
		short.LeaseDurationSeconds, long.LeaseDurationSeconds, others.HolderIdentity = 0, 1e9+1, "other"
		for _, record := range []resourcelock.LeaderElectionRecord{short, long, others, released()} {
			require.Error(t, a.Create(t.Context(), record))
		}
		require.Empty(t, a.c.Calls(fakeetcd.Any), "nothing is sent")

		a.create(t)
		sent := len(a.c.Calls(fakeetcd.Any))
		other := a.leaderRecord()
		other.LeaseDurationSeconds = 5
		require.EqualError(t, a.Update(t.Context(), other), "k8slock: LeaseDurationSeconds is 5, want the tenure's, 15")
		for _, record := range []resourcelock.LeaderElectionRecord{short, long, others} {
			require.Error(t, a.Update(t.Context(), record))
		}
		require.Len(t, a.c.Calls(fakeetcd.Any), sent)
	})
}

func TestLock_keyIsNotARecord(t *testing.T) {
	bubble(t, func(t *testing.T, a *candidate) {
		work := a.begins(t)
		a.srv.Put(key, "hello")
		_, _, err := a.Get(t.Context())
		require.ErrorContains(t, err, key)
		require.False(t, apierrors.IsNotFound(err))
		requireLost(work, t)

		for _, foreign := range []string{
			strings.Repeat("9", 1<<20), `{"leaseDurationSeconds":` + strings.Repeat("9", 10000) + `}`,
		} {
			a.srv.Put(key, foreign)
			_, _, err = a.Get(t.Context())
			require.ErrorContains(t, err, "holds no record of an election")
			require.Less(t, len(err.Error()), 300)
		}
	})
}

// etcd's own elections and mutexes of the same name, and of names around it, do not see the record.
func TestLock_isInNobodysQueue(t *testing.T) {
	bubble(t, func(t *testing.T, a *candidate) {
		a.create(t)
		session, err := concurrency.NewSession(a.c.Client)
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		for _, other := range []string{name, "jobs", "k8slock", "k8slock/jobs", "k8slock/" + name} {
			election := concurrency.NewElection(session, other)
			require.NoError(t, election.Campaign(ctx, "x"), other)
			require.NoError(t, election.Resign(ctx)) // or else the nested names would block each other
		}
		require.NoError(t, session.Close())
		require.NoError(t, a.Update(t.Context(), a.leaderRecord()))
	})
}

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

func TestOptions_Logger_mayBlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		unread, log := io.Pipe()
		defer unread.Close() //nolint:errcheck // never fails
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
