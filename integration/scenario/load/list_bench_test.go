package load_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/lease"
)

// BenchmarkList lists 50,000 locks: how long that takes, what it allocates in all, and how long a put of another client takes
// meanwhile, beside the longest in as much time without.
func BenchmarkList(b *testing.B) {
	srv := etcdtest.StartProcess(b) // so that only the client's memory counts
	client := srv.Client(b)
	granted, err := client.Grant(b.Context(), 3600)
	require.NoError(b, err)
	putJobs(b, client, granted.ID)
	other := srv.Client(b)
	list := func() {
		n := 0
		for q, err := range lease.List(b.Context(), client, "jobs/") {
			require.NoError(b, err)
			n += len(q.Holders)
		}
		require.Equal(b, manyKeys(), n)
	}

	var was, now runtime.MemStats
	runtime.ReadMemStats(&was)
	began := time.Now()
	list()
	alone := time.Since(began)
	runtime.ReadMemStats(&now)

	stop := worstPut(b, other)
	time.Sleep(alone)
	without := stop()
	stop = worstPut(b, other)
	var worst time.Duration
	for b.Loop() {
		began := time.Now()
		list()
		worst = max(worst, time.Since(began))
	}
	b.ReportMetric(stop().Seconds()*1e3, "ms/put-worst")
	b.ReportMetric(without.Seconds()*1e3, "ms/put-worst-without")
	b.ReportMetric(alone.Seconds()*1e3, "ms/alone")
	b.ReportMetric(float64(now.TotalAlloc-was.TotalAlloc)/1e6, "MB-allocated")
	b.ReportMetric(worst.Seconds()*1e3, "ms/worst")
}
