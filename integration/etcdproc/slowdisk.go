package etcdproc

import (
	"sync/atomic"
	"time"
	_ "unsafe" // for go:linkname

	"github.com/prometheus/client_golang/prometheus"
	_ "go.etcd.io/etcd/server/v3/storage/wal" // has the variable, and sets it before init below
)

// walFsyncSec is etcd's metric of the syncs of its log. Its log reports each sync to it before it goes on, so what the
// server confirms waits for Observe.
//
//go:linkname walFsyncSec go.etcd.io/etcd/server/v3/storage/wal.walFsyncSec
var walFsyncSec prometheus.Histogram

// slowness is how long each sync takes longer, in nanoseconds.
var slowness atomic.Int64

func init() { walFsyncSec = slowMetric{walFsyncSec} }

type slowMetric struct{ prometheus.Histogram }

func (m slowMetric) Observe(seconds float64) {
	time.Sleep(time.Duration(slowness.Load()))
	m.Histogram.Observe(seconds)
}
