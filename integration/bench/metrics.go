package main

import (
	"context"
	"fmt"
	"io"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// counters are what the servers have counted since they started. What is told of a cluster is the sum over its members,
// but for commits and fsyncs, which are those of the first member: all members commit and sync the same log.
type counters struct {
	unary      float64 // unary requests begun
	watches    float64 // messages on watch streams from clients: each asks to begin a watch or to end one
	keepAlives float64 // messages on keep-alive streams from clients, a renewal each
	commits    float64 // entries of the log
	fsyncs     float64 // of the log
	watchers   float64 // watches open now
}

func (c counters) requests() float64 { return c.unary + c.watches }

func (c counters) combine(other counters, factor float64) counters {
	return counters{
		unary:      c.unary + factor*other.unary,
		watches:    c.watches + factor*other.watches,
		keepAlives: c.keepAlives + factor*other.keepAlives,
		commits:    c.commits + factor*other.commits,
		fsyncs:     c.fsyncs + factor*other.fsyncs,
		watchers:   c.watchers + factor*other.watchers,
	}
}

func (c counters) plus(other counters) counters  { return c.combine(other, 1) }
func (c counters) minus(other counters) counters { return c.combine(other, -1) }

// readCounters asks all members, over HTTP, which is none of the requests that they count.
func readCounters(ctx context.Context, endpoints []string) (counters, error) {
	var sum counters
	for i, endpoint := range endpoints {
		c, err := readMember(ctx, endpoint)
		if err != nil {
			return counters{}, fmt.Errorf("read the metrics of %s: %w", endpoint, err)
		}
		if i > 0 {
			c.commits, c.fsyncs = 0, 0
		}
		sum = sum.plus(c)
	}
	return sum, nil
}

func readMember(ctx context.Context, endpoint string) (_ counters, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+endpoint+"/metrics", http.NoBody)
	if err != nil {
		return counters{}, err
	}
	req.Close = true // leaves no connection behind
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return counters{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return counters{}, fmt.Errorf("status %s", resp.Status)
	}
	return parseCounters(resp.Body)
}

// parseCounters reads the text format of Prometheus.
func parseCounters(text io.Reader) (counters, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		return counters{}, err
	}
	c := counters{
		unary:      total(families["grpc_server_started_total"], "grpc_type", "unary"),
		watches:    received(families, "Watch"),
		keepAlives: received(families, "LeaseKeepAlive"),
	}
	for name, field := range map[string]*float64{
		"etcd_server_proposals_committed_total": &c.commits,
		"etcd_debugging_mvcc_watcher_total":     &c.watchers,
		"etcd_disk_wal_fsync_duration_seconds":  &c.fsyncs,
	} {
		metrics := families[name].GetMetric()
		if len(metrics) != 1 {
			return counters{}, fmt.Errorf("%d metrics %s, want 1", len(metrics), name)
		}
		*field = metrics[0].GetGauge().GetValue() + metrics[0].GetCounter().GetValue() +
			float64(metrics[0].GetHistogram().GetSampleCount())
	}
	return c, nil
}

// received counts the messages on streams of a method. What the server calls that counts each call of Recv, and the last
// one of each stream returns its end instead of a message.
func received(families map[string]*dto.MetricFamily, method string) float64 {
	return total(families["grpc_server_msg_received_total"], "grpc_method", method) -
		total(families["grpc_server_handled_total"], "grpc_method", method)
}

// total adds up the counters that have a label with the value.
func total(family *dto.MetricFamily, label, value string) float64 {
	sum := 0.0
	for _, m := range family.GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetName() == label && l.GetValue() == value {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}
