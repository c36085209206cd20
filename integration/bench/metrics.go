package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
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

// readServer returns what the server has used. It asks over HTTP, and the server's metrics do not count that request.
func readServer(ctx context.Context, endpoint string) (cost, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+endpoint+"/metrics", http.NoBody)
	if err != nil {
		return cost{}, err
	}
	req.Close = true // leave no connection behind
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return cost{}, fmt.Errorf("read the server's metrics: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return cost{}, fmt.Errorf("read the server's metrics: status %s", resp.Status)
	}
	return parseMetrics(resp.Body)
}

// parseMetrics reads the text format of Prometheus: a line for each metric, with its value after the last space.
func parseMetrics(text io.Reader) (c cost, err error) {
	found := map[string]bool{}
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		line := lines.Text()
		value := line[strings.LastIndexByte(line, ' ')+1:]
		for _, m := range metrics {
			if !strings.HasPrefix(line, m.name) || !strings.Contains(line, m.label) {
				continue
			}
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				return cost{}, fmt.Errorf("read the server's metrics: %q: %w", line, err)
			}
			c[m.field] += m.factor * v
			found[m.name] = true
		}
	}
	for _, m := range metrics {
		if m.label == "" && !found[m.name] {
			return cost{}, errors.Join(lines.Err(), fmt.Errorf("read the server's metrics: no %s", m.name))
		}
	}
	return c, lines.Err()
}

// metrics are the lines that add to a field. The server counts messages on a stream by calls of Recv, and the last call
// of each stream returns its end instead of a message.
var metrics = []struct {
	name, label string
	field       int
	factor      float64
}{
	{"grpc_server_started_total{", `grpc_type="unary"`, requests, 1},
	{"grpc_server_msg_received_total{", `grpc_method="Watch"`, requests, 1},
	{"grpc_server_handled_total{", `grpc_method="Watch"`, requests, -1},
	{"grpc_server_msg_received_total{", `grpc_method="LeaseKeepAlive"`, renewals, 1},
	{"grpc_server_handled_total{", `grpc_method="LeaseKeepAlive"`, renewals, -1},
	{"etcd_server_proposals_committed_total ", "", commits, 1},
	{"etcd_disk_wal_fsync_duration_seconds_count ", "", fsyncs, 1},
	{"process_cpu_seconds_total ", "", serverCPU, 1},
}
