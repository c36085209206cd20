package mix

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/safety/history"
)

func TestPulse_aSlowClusterExcusesComplaints(t *testing.T) {
	server := etcdtest.Start(t, etcdtest.Options{})
	proxy := faults.NewProxy(t, server.Endpoint())
	r := soonOver(t)
	r.members = []*clientv3.Client{etcdtest.NewClient(t, []string{proxy.Addr()})}
	r.tape.begin(t, r.number)
	asked := r.tape.Now()
	r.pulse = r.startPulse(t.Context())
	defer r.pulse.end()
	proxy.Answers.Hold()
	require.Eventually(t, func() bool { return r.pulse.wasSlow(asked) }, time.Minute, time.Millisecond)
	r.complainUnserved(r.tape.Now(), "asked while the cluster is slow")
	require.Empty(t, r.report.Violations)
	proxy.Answers.Pass()
	r.pulse.end()
	r.complainUnserved(asked, "asked before the cluster was slow")
	require.Empty(t, r.report.Violations)
	r.complainUnserved(r.tape.Now()+ttl+1, "asked when the cluster is fast again")
	requireComplaint(t, r, "I7", "fast again")

	r.report.Violations = nil
	require.True(t, r.excused.Load())
	require.Equal(t, 2, r.report.Counts[excused])
	r.tape.Clock -= history.Clock(time.Minute) // a minute later
	r.pulse.last.Store(int64(r.tape.Now() - served - 1))
	r.complainUnserved(asked, "excused for as long as a caller may wait")
	requireComplaint(t, r, "I7", "excused for as long")

	events := r.tape.end(t)
	require.NotEmpty(t, events)
	begun := map[int64]history.Event{}
	for _, e := range events {
		require.Equal(t, "cluster", e.Target, "the fault affects all clients")
		if e.Kind == history.Fault {
			begun[e.Fault] = e
			continue
		}
		require.Equal(t, history.Heal, e.Kind)
		require.Contains(t, begun, e.Fault)
		require.GreaterOrEqual(t, e.At-begun[e.Fault].At, slowCommit)
		delete(begun, e.Fault)
	}
	require.Empty(t, begun, "a fault that is never healed would excuse everything after it")
}
