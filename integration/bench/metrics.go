package main

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/leasefence/leasefence/integration/etcdproc"
)

// cost is what the server and the clients have used since they started, or between two readings.
type cost [costs]float64

const (
	requests  = iota // unary requests, and messages on watch streams, each of which begins or ends a watch
	renewals         // messages on keep-alive streams
	commits          // entries of the server's log
	fsyncs           // syncs of that log
	serverCPU        // seconds
	clientCPU        // seconds, of this process
	allocs           // of this process
	costs
)

func (c cost) plus(other cost) cost {
	for i := range c {
		c[i] += other[i]
	}
	return c
}

func (c cost) minus(other cost) cost {
	for i := range c {
		c[i] -= other[i]
	}
	return c
}

func readClient() cost {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // fails only for bad arguments
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return cost{
		clientCPU: time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds(),
		allocs:    float64(memory.Mallocs),
	}
}

// readServer returns what the server has used.
func readServer(ctx context.Context, endpoint string) (c cost, err error) {
	all, err := etcdproc.Metrics(ctx, http.DefaultClient, "http://"+endpoint)
	if err != nil {
		return cost{}, err
	}
	for _, m := range metrics {
		found := m.label != "" // there may be none yet
		for name, value := range all {
			if name == m.name || strings.HasPrefix(name, m.name+"{") && strings.Contains(name, m.label) {
				c[m.field] += m.factor * value
				found = true
			}
		}
		if !found {
			return cost{}, fmt.Errorf("read the server's metrics: no %s", m.name)
		}
	}
	return c, nil
}

// awaitNoStream waits until the server has noticed that all streams of earlier rounds have ended: it counts their ends,
// and the next round would pay for them.
func awaitNoStream(ctx context.Context, endpoint string) error {
	for {
		all, err := etcdproc.Metrics(ctx, http.DefaultClient, "http://"+endpoint)
		if err != nil {
			return err
		}
		open := 0.0
		for name, value := range all {
			switch {
			case !strings.Contains(name, `grpc_type="bidi_stream"`):
			case strings.HasPrefix(name, "grpc_server_started_total{"):
				open += value
			case strings.HasPrefix(name, "grpc_server_handled_total{"):
				open -= value
			}
		}
		if open == 0 {
			return nil
		}
		if err := sleep(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
}

// metrics are what is added to a field. The server counts messages on a stream by calls of Recv, and the last call of
// each stream returns its end instead of a message.
var metrics = []struct {
	name, label string
	field       int
	factor      float64
}{
	{"grpc_server_started_total", `grpc_type="unary"`, requests, 1},
	{"grpc_server_msg_received_total", `grpc_method="Watch"`, requests, 1},
	{"grpc_server_handled_total", `grpc_method="Watch"`, requests, -1},
	{"grpc_server_msg_received_total", `grpc_method="LeaseKeepAlive"`, renewals, 1},
	{"grpc_server_handled_total", `grpc_method="LeaseKeepAlive"`, renewals, -1},
	{"etcd_server_proposals_committed_total", "", commits, 1},
	{"etcd_disk_wal_fsync_duration_seconds_count", "", fsyncs, 1},
	{"process_cpu_seconds_total", "", serverCPU, 1},
}
