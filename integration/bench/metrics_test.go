package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const metricsText = `# TYPE etcd_debugging_mvcc_watcher_total gauge
etcd_debugging_mvcc_watcher_total 7
# TYPE etcd_disk_wal_fsync_duration_seconds histogram
etcd_disk_wal_fsync_duration_seconds_bucket{le="0.001"} 40
etcd_disk_wal_fsync_duration_seconds_bucket{le="+Inf"} 42
etcd_disk_wal_fsync_duration_seconds_sum 0.5
etcd_disk_wal_fsync_duration_seconds_count 42
# TYPE etcd_server_proposals_committed_total gauge
etcd_server_proposals_committed_total 123
# TYPE grpc_server_handled_total counter
grpc_server_handled_total{grpc_code="Canceled",grpc_method="Watch",grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"} 2
grpc_server_handled_total{grpc_code="OK",grpc_method="LeaseKeepAlive",grpc_service="etcdserverpb.Lease",grpc_type="bidi_stream"} 3
grpc_server_handled_total{grpc_code="OK",grpc_method="Txn",grpc_service="etcdserverpb.KV",grpc_type="unary"} 10
# TYPE grpc_server_msg_received_total counter
grpc_server_msg_received_total{grpc_method="LeaseKeepAlive",grpc_service="etcdserverpb.Lease",grpc_type="bidi_stream"} 6
grpc_server_msg_received_total{grpc_method="Txn",grpc_service="etcdserverpb.KV",grpc_type="unary"} 10
grpc_server_msg_received_total{grpc_method="Watch",grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"} 9
# TYPE grpc_server_started_total counter
grpc_server_started_total{grpc_method="Range",grpc_service="etcdserverpb.KV",grpc_type="unary"} 5
grpc_server_started_total{grpc_method="Txn",grpc_service="etcdserverpb.KV",grpc_type="unary"} 10
grpc_server_started_total{grpc_method="Watch",grpc_service="etcdserverpb.Watch",grpc_type="bidi_stream"} 2
`

func TestParseCounters(t *testing.T) {
	c, err := parseCounters(strings.NewReader(metricsText))
	require.NoError(t, err)
	// Of the messages on streams, the end of each stream is none.
	require.Equal(t, counters{unary: 15, watches: 7, keepAlives: 3, commits: 123, fsyncs: 42, watchers: 7}, c)
	require.InDelta(t, 22.0, c.requests(), 0)
}

func TestParseCounters_saysWhatIsMissing(t *testing.T) {
	_, err := parseCounters(strings.NewReader("# TYPE other gauge\nother 1\n"))
	require.ErrorContains(t, err, "0 metrics etcd_")
}

func TestCounters_difference(t *testing.T) {
	a := counters{unary: 5, watches: 4, keepAlives: 3, commits: 2, fsyncs: 1, watchers: 6}
	require.Equal(t, counters{}, a.minus(a))
	require.Equal(t, a, a.plus(counters{}))
}
