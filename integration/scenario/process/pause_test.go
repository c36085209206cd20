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

// scene is a holder in a process of its own, which has checked its handle and is about to write, and a successor in the
// test's, which waits.
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

			s.holder.ask("write") // its claim, and what comes before the pause
			require.Equal(t, map[string]int{fenced: http.StatusOK, plain: http.StatusOK}, s.holder.next().Wrote)
			s.size = s.web.Requests.Traffic().Received
			s.holder.ask("check")
			require.Empty(t, s.holder.next().Err)
			act(s)
			s.resource.check(rig.Bounded(t), t, s.holder.Token)
		})
	}
}

// succeed waits until the holder's lease has expired and the successor has its place, and lets that write.
func (s *scene) succeed() {
	s.t.Helper()
	h := rig.Await(s.t, s.next, "the successor was not served")
	require.Greater(s.t, h.Token(), s.holder.Token)
	wrote, err := s.writer.write(rig.Bounded(s.t), h.Token())
	require.NoError(s.t, err)
	require.Equal(s.t, map[string]int{fenced: http.StatusOK, plain: http.StatusOK}, wrote)
}

// goOn resumes the holder, which writes what it was about to, and then looks at its handle.
func (s *scene) goOn() {
	s.t.Helper()
	s.holder.ask("write")
	s.holder.ask("check")
	s.holder.resume()
	s.late()
	s.over()
}

// late checks that the holder's write was refused by the fence.
func (s *scene) late() {
	s.t.Helper()
	r := s.holder.next()
	require.Empty(s.t, r.Err)
	require.Equal(s.t, map[string]int{fenced: http.StatusPreconditionFailed, plain: http.StatusOK}, r.Wrote)
}

// over checks that the holder's handle has ended.
func (s *scene) over() {
	s.t.Helper()
	r := s.holder.next()
	require.NotEmpty(s.t, r.Err, "the handle of a holder that was stopped for longer than its TTL")
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

// While the holder is stopped, the answer to its last renewal waits in its socket. It is the first thing that it reads, and
// it is good news, but old.
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
			return before > last // it was renewed, and the answer is on its way
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

// When the holder goes on there is no network to ask etcd by. Its own clock tells.
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

// The write was sent in time, and is held up in the network until the holder has lost what it was for. No check at the
// holder's side can help.
func TestStop_withTheWriteUnderWay(t *testing.T) {
	t.Parallel()
	play(t, rig.MinTTL, func(s *scene) {
		s.send()
		s.holder.stop()
		s.succeed()
		s.web.Restore()
		s.resource.check(rig.Bounded(s.t), s.t, s.holder.Token) // it has not even gone on
		s.holder.ask("check")
		s.holder.resume()
		s.late()
		s.over()
	})
}

// A holder is killed, and its last write arrives when there is a successor.
func TestKill_withTheWriteUnderWay(t *testing.T) {
	t.Parallel()
	play(t, rig.MinTTL, func(s *scene) {
		s.send()
		s.holder.kill()
		s.succeed()
		s.web.Restore()
	})
}

// send has the holder send its writes, which do not arrive.
func (s *scene) send() {
	s.t.Helper()
	s.web.Requests.Hold()
	s.holder.ask("write")
	// They are as large as those before, with which the resource has got all there was until now.
	require.NoError(s.t, s.web.Requests.Await(rig.Bounded(s.t), func(tr faults.Traffic) bool { return tr.Received == 2*s.size }))
}
