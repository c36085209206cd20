package integration_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/lease"
)

// transfers is an election in which every change is a Transfer to somebody who is named.
type transfers struct {
	srv    *etcdtest.Server
	quit   context.Context //nolint:containedctx // of all who take part
	wg     sync.WaitGroup
	leader chan *election.Leadership // of each who leads, as it begins
}

// stand campaigns again and again, by Campaign or by Run.
func (x *transfers) stand(t *testing.T, value string, byRun bool) {
	t.Helper()
	s := newSession(t, x.srv.Client(t), lease.Options{})
	lead := func(l *election.Leadership) {
		select {
		case x.leader <- l:
		case <-x.quit.Done():
		}
		select {
		case <-l.Context().Done():
		case <-x.quit.Done():
		}
	}
	x.wg.Go(func() {
		if byRun {
			opts := election.Options{Value: value, Rejoin: true}
			err := election.Run(x.quit, s, "n", opts, func(ctx context.Context, _ fence.Token) error {
				l, _ := election.FromContext(ctx)
				lead(l)
				return nil
			})
			assert.ErrorIs(t, err, context.Canceled)
			return
		}
		for {
			l, err := election.Campaign(x.quit, s, "n", election.Options{Value: value})
			if err != nil {
				assert.ErrorIs(t, err, context.Canceled)
				return
			}
			lead(l)
			if x.quit.Err() != nil {
				assert.NoError(t, l.Resign(bounded(t)))
				return
			}
		}
	})
}

// disturb has somebody with a higher priority come and go at any moment. It never leads.
func (x *transfers) disturb(t *testing.T, seed uint64) (visits *int) {
	t.Helper()
	s := newSession(t, x.srv.Client(t), lease.Options{})
	random := rand.New(rand.NewPCG(seed, 1))
	visits = new(int)
	x.wg.Go(func() {
		for x.quit.Err() == nil {
			visit, cancel := context.WithTimeout(x.quit, time.Duration(random.IntN(60))*time.Millisecond)
			_, err := election.Campaign(visit, s, "n", election.Options{Value: "visitor", Priority: 7})
			cancel()
			expected := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
			if !assert.True(t, expected, "the visitor leads, or %v", err) {
				return
			}
			*visits++
			select {
			case <-time.After(time.Duration(random.IntN(200)) * time.Millisecond):
			case <-x.quit.Done():
			}
		}
	})
	return visits
}

// next waits for the next leader.
func (x *transfers) next(t *testing.T) *election.Leadership {
	t.Helper()
	select {
	case l := <-x.leader:
		return l
	case <-time.After(patience):
		require.FailNow(t, "nobody leads")
		return nil
	}
}

// awaitCandidate waits until somebody with the value stands in the queue.
func awaitCandidate(t *testing.T, srv *etcdtest.Server, name, value string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		for _, kv := range srv.KeyValues(t, name+"/") {
			if string(kv.Value) == value {
				return
			}
		}
		require.True(t, time.Now().Before(deadline), "%q does not come", value)
	}
}

// Five processes hand the leadership to one another, by name and at random, while somebody whom all would let pass comes and
// goes: nobody leads who was not named, not even for one revision.
func TestLeadership_Transfer_lettingNobodyBetween(t *testing.T) {
	t.Parallel()
	const processes, times = 5, 50
	srv := etcdtest.Start(t, etcdtest.Options{})
	quit, end := context.WithCancel(t.Context())
	defer end()
	x := &transfers{srv: srv, quit: quit, leader: make(chan *election.Leadership)}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))

	named := []string{"p0"}
	x.stand(t, named[0], false)
	leader := x.next(t)
	for i := range processes - 1 {
		x.stand(t, fmt.Sprint("p", i+1), i%2 == 0)
	}
	visits := x.disturb(t, seed)
	observed := goObserve(t, srv.Client(t), "n")

	longest := time.Duration(0)
	for range times {
		last := named[len(named)-1]
		to := last
		for to == last {
			to = fmt.Sprint("p", random.IntN(processes))
		}
		awaitCandidate(t, srv, "n", to) // it may have led until now
		began := time.Now()
		require.NoError(t, leader.Transfer(bounded(t), to))
		longest = max(longest, time.Since(began))
		require.ErrorIs(t, awaitOver(t, leader), election.ErrResigned)
		before := leader
		leader = x.next(t)
		require.Greater(t, leader.Token(), before.Token())
		named = append(named, to)
	}
	history := leadersOf(t, srv, "n")
	requireGrowing(t, history)
	require.Equal(t, slices.Concat([]string{""}, named), values(history))

	end()
	x.wg.Wait()
	awaitQueue(t, srv, "n", 0) // who gives up is cleared away in the background
	t.Logf("%d visits, %d revisions in all; the longest Transfer took %v", *visits, srv.Revision(t), longest)
	require.Greater(t, *visits, times/10, "the visitor hardly came")
	observed.requireEnd(t, leadersOf(t, srv, "n"))
}
