//go:build unix

package process_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/rig"
	"github.com/leasefence/leasefence/lease"
)

// scene is a holder in a separate process, which has checked its handle and is about to write, and a successor in the
// test's process, which waits for the name.
type scene struct {
	t        *testing.T
	client   *clientv3.Client
	etcd     *faults.Proxy // between the holder and etcd
	web      *faults.Proxy // between the holder and the resource
	resource *resource
	holder   *holder
	next     <-chan *rig.Hold
	writer   *writer // the successor's
	size     int64   // of the holder's writes, in bytes
}

// play runs a scene for each way to hold a name.
func play(t *testing.T, ttl time.Duration, act func(*scene)) {
	t.Helper()
	srv := etcdtest.Start(t, etcdtest.Options{})
	for _, way := range rig.Ways {
		t.Run(way.Name, func(t *testing.T) {
			t.Parallel()
			s := &scene{t: t, client: srv.Client(t), resource: newResource(t)}
			s.etcd = faults.NewProxy(t, srv.Endpoint())
			s.web = faults.NewProxy(t, s.resource.Listener.Addr().String())
			s.holder = startHolder(t, order{
				Etcd: s.etcd.Addr(), Resource: "http://" + s.web.Addr(), Way: way.Name, Name: way.Name, TTL: ttl,
			})
			var err error
			s.writer, err = newWriter(s.resource.URL)
			require.NoError(t, err)
			s.next = way.Wait(t, rig.NewSession(t, s.client, lease.Options{}), way.Name)
			rig.AwaitQueue(t, s.client, way.Name, 2)

			s.holder.ask("write") // claims the resource, before the pause
			require.Equal(t, map[string]int{fenced: http.StatusOK, plain: http.StatusOK}, s.holder.next().Wrote)
			s.size = s.web.Requests.Traffic().Received
			s.holder.ask("check")
			require.Empty(t, s.holder.next().Err)
			act(s)
			s.resource.check(rig.Bounded(t), t, s.holder.Token)
		})
	}
}

// succeed waits until the holder's lease has expired and the successor holds the name, and lets the successor write.
func (s *scene) succeed() {
	s.t.Helper()
	h := rig.Await(s.t, s.next, "the successor was not served")
	require.Greater(s.t, h.Token(), s.holder.Token)
	wrote, err := s.writer.write(rig.Bounded(s.t), h.Token())
	require.NoError(s.t, err)
	require.Equal(s.t, map[string]int{fenced: http.StatusOK, plain: http.StatusOK}, wrote)
}

// goOn resumes the holder, which sends its stale write and then checks its handle.
func (s *scene) goOn() {
	s.t.Helper()
	s.holder.ask("write")
	s.holder.ask("check")
	s.holder.resume()
	s.requireRefused()
	s.requireLost()
}

// requireRefused checks that the fence has refused the holder's write.
func (s *scene) requireRefused() {
	s.t.Helper()
	r := s.holder.next()
	require.Empty(s.t, r.Err)
	require.Equal(s.t, map[string]int{fenced: http.StatusPreconditionFailed, plain: http.StatusOK}, r.Wrote)
}

// requireLost checks that the holder's handle has ended.
func (s *scene) requireLost() {
	s.t.Helper()
	r := s.holder.next()
	require.NotEmpty(s.t, r.Err, "the handle is live after a pause that was longer than its TTL")
	require.Contains(s.t, []lease.Reason{lease.ReasonDeadlinePassed, lease.ReasonLeaseGone}, r.Lost, r.Err)
}

// A holder is stopped between its check and its write, for longer than its TTL.
func TestStop_betweenCheckAndWrite(t *testing.T) {
	t.Parallel()
	play(t, rig.MinTTL, func(s *scene) {
		s.holder.stop()
		s.succeed()
		s.goOn()
	})
}

// While the holder is stopped, the answer to its last renewal waits in its socket. The holder reads that old answer
// first when it wakes up.
func TestStop_withAnAnswerInTheSocket(t *testing.T) {
	t.Parallel()
	play(t, 3*rig.MinTTL, func(s *scene) {
		left := func() int64 {
			resp, err := s.client.TimeToLive(rig.Bounded(s.t), s.holder.Lease)
			require.NoError(s.t, err)
			return resp.TTL
		}
		s.etcd.Answers.Hold()
		before := left()
		rig.Eventually(s.t, func() bool {
			last := before
			before = left()
			return before > last // the server has renewed the lease, and the answer is on its way
		}, func() string { return "no renewal" })
		require.NoError(s.t, s.etcd.Answers.Await(rig.Bounded(s.t), func(tr faults.Traffic) bool { return tr.Waiting() > 0 }))
		s.holder.ask("check")
		require.Empty(s.t, s.holder.next().Err)
		s.holder.stop()
		s.etcd.Answers.Pass()
		require.NoError(s.t, s.etcd.Answers.Await(rig.Bounded(s.t), func(tr faults.Traffic) bool { return tr.Waiting() == 0 }))
		s.succeed()
		s.goOn()
	})
}

// When the holder wakes up, it cannot reach etcd. It ends its handle by its own clock.
func TestStop_withTheNetworkCutOnResume(t *testing.T) {
	t.Parallel()
	play(t, rig.MinTTL, func(s *scene) {
		s.holder.stop()
		s.etcd.BlackHole()
		s.succeed()
		s.goOn()
		s.holder.ask("check")
		require.Equal(s.t, lease.ReasonDeadlinePassed, s.holder.next().Lost)
	})
}

// The network holds up a write that was sent in time until the holder has lost the name. No check at the holder's side
// can help.
func TestStop_withTheWriteUnderWay(t *testing.T) {
	t.Parallel()
	play(t, rig.MinTTL, func(s *scene) {
		s.send()
		s.holder.stop()
		s.succeed()
		s.web.Restore()
		s.resource.check(rig.Bounded(s.t), s.t, s.holder.Token) // the holder is still stopped
		s.holder.ask("check")
		s.holder.resume()
		s.requireRefused()
		s.requireLost()
	})
}

// A holder is killed, and its last write arrives after its successor's.
func TestKill_withTheWriteUnderWay(t *testing.T) {
	t.Parallel()
	play(t, rig.MinTTL, func(s *scene) {
		s.send()
		s.holder.kill()
		s.succeed()
		s.web.Restore()
	})
}

// send makes the holder send its writes, which do not arrive.
func (s *scene) send() {
	s.t.Helper()
	s.web.Requests.Hold()
	s.holder.ask("write")
	// They are as large as the holder's first writes, the only traffic until now.
	require.NoError(s.t, s.web.Requests.Await(rig.Bounded(s.t), func(tr faults.Traffic) bool { return tr.Received == 2*s.size }))
}
