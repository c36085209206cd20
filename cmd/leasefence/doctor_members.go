package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// member checks one endpoint. It reports whether the endpoint answers and, as far as it tells, serves locks.
func (d *doctor) member(ctx context.Context, endpoint string) bool {
	bounded, cancel := d.app.bounded(ctx)
	defer cancel()
	conn, err := d.client.Dial(endpoint)
	var answer *etcdserverpb.StatusResponse
	if err == nil {
		defer func() { _ = conn.Close() }()
		// The client's own Status would wait for a connection, and not say why there is none.
		answer, err = etcdserverpb.NewMaintenanceClient(conn).Status(bounded, &etcdserverpb.StatusRequest{})
		err = rpctypes.Error(err)
	}
	if conn != nil && denied(err) {
		d.add(d.unchecked("version, leader and size", endpoint, err))
		d.commits(ctx, endpoint, conn)
		return true
	}
	if err != nil {
		d.add(finding{
			Level: levelFail, Check: "answer", Endpoint: endpoint,
			Says: fmt.Sprintf("it has not answered (--command-timeout is %v): %s", d.app.etcd.commandTimeout, harmless(status.Convert(err).Message())),
			Do:   "Start it, check the network and TLS, or leave it out of --endpoints.",
		})
		return false
	}
	// A proxy makes up its list of members, without a header.
	list, err := etcdserverpb.NewClusterClient(conn).MemberList(bounded, &etcdserverpb.MemberListRequest{})
	if err == nil && list.Header == nil {
		d.add(finding{
			Level: levelFail, Check: "proxy", Endpoint: endpoint,
			Says: "it is etcd's gRPC proxy, which may answer a renewal before etcd has renewed the lease: two processes may hold the same lock",
			Do:   "Give the addresses of etcd's members instead, here and to all processes that lock.",
		})
	}
	return d.state(ctx, endpoint, answer, conn)
}

// state makes the findings on a member's answer, and on its commits if it serves locks. It reports whether it does.
func (d *doctor) state(ctx context.Context, endpoint string, answer *etcdserverpb.StatusResponse, conn *grpc.ClientConn) (serves bool) {
	d.clusters[answer.Header.GetClusterId()] = append(d.clusters[answer.Header.GetClusterId()], endpoint)
	version := judge(answer.Version)
	version.Endpoint = endpoint
	d.add(version)
	switch {
	case answer.Leader == 0:
		d.add(finding{
			Level: levelFail, Check: "leader", Endpoint: endpoint, Says: "it knows no leader: it grants no locks and renews no leases",
			Do: "Restore a majority of the members, and the network between them.",
		})
		return false
	case answer.IsLearner:
		d.add(finding{
			Level: levelWarn, Check: "member", Endpoint: endpoint, Says: "it is a learner, which serves no locks",
			Do: "Leave it out of --endpoints, or promote it.",
		})
		return false
	}
	d.add(size(endpoint, answer.DbSize, answer.DbSizeInUse, answer.DbSizeQuota))
	d.commits(ctx, endpoint, conn)
	return true
}

// oneCluster checks that all endpoints belong to one cluster: a lock in one of two clusters excludes nobody in the
// other.
func (d *doctor) oneCluster() {
	if len(d.clusters) < 2 {
		return
	}
	var parts []string
	for id, endpoints := range d.clusters {
		parts = append(parts, fmt.Sprintf("%s of cluster %x", strings.Join(endpoints, ", "), id))
	}
	slices.Sort(parts)
	d.add(finding{
		Level: levelFail, Check: "cluster",
		Says: fmt.Sprintf("the endpoints belong to %d clusters, so two processes may hold the same lock: %s", len(parts), strings.Join(parts, "; ")),
		Do:   "Give only endpoints of one cluster, here and to all processes that lock.",
	})
}

// size makes the finding on a member's database. Quota is 0 if the server does not report it, as before etcd 3.6.
func size(endpoint string, all, used, quota int64) finding {
	f := finding{Level: levelOK, Check: "size", Endpoint: endpoint, Says: fmt.Sprintf("the database has %s, %s of them in use", amount(all), amount(used))}
	if quota <= 0 {
		const byDefault = 2 << 30
		if quota = byDefault; all < quota/2 {
			f.Says += "; this server does not report its quota"
			return f
		}
		f.Says += "; this server does not report its quota, which is 2.0 GiB by default"
	} else {
		f.Says += fmt.Sprintf(", of a quota of %s", amount(quota))
	}
	if all < quota/10*6 {
		return f
	}
	f.Level = levelWarn
	if all >= quota/10*9 {
		f.Level = levelFail
	}
	f.Says += ": when the quota is reached, etcd grants no locks any more"
	f.Do = "Turn on auto-compaction, then etcdctl defrag member by member; raise --quota-backend-bytes if the data in use needs it."
	return f
}

func amount(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
}

// commits measures the time of a commit through an endpoint.
func (d *doctor) commits(ctx context.Context, endpoint string, conn *grpc.ClientConn) {
	ctx, cancel := d.app.bounded(ctx)
	defer cancel()
	times, err := d.timeCommits(ctx, conn)
	if err != nil {
		d.add(d.unchecked("commits", endpoint, err))
		return
	}
	f := speed(times, d.ttl)
	f.Endpoint = endpoint
	d.add(f)
}

// rounds is how often timeCommits puts and deletes a key.
const rounds = 5

func (d *doctor) timeCommits(ctx context.Context, conn *grpc.ClientConn) (times []time.Duration, err error) {
	kv := clientv3.NewKVFromKVClient(etcdserverpb.NewKVClient(conn), d.client)
	leases := clientv3.NewLeaseFromLeaseClient(etcdserverpb.NewLeaseClient(conn), d.client, time.Minute)
	granted, err := leases.Grant(ctx, int64(time.Minute/time.Second))
	if err != nil {
		return nil, err
	}
	// Revoking the lease also deletes the key, if an error has left it.
	defer func() {
		ctx, cancel := d.app.bounded(context.WithoutCancel(ctx))
		defer cancel()
		_, _ = leases.Revoke(ctx, granted.ID)
	}()
	// The key does not have the form of a contender's key, so it is in no lock's way.
	key := fmt.Sprintf("%s~doctor/probe-%x", d.prefix, rand.Uint64()) //nolint:gosec // it only has to be unique
	for range rounds {
		began := time.Now()
		if _, err := kv.Put(ctx, key, "", clientv3.WithLease(granted.ID)); err != nil {
			return nil, err
		}
		put := time.Now()
		if _, err := kv.Delete(ctx, key); err != nil {
			return nil, err
		}
		times = append(times, put.Sub(began), time.Since(put))
	}
	return times, nil
}

// speed makes the finding on the times of commits.
func speed(times []time.Duration, ttl time.Duration) finding {
	slices.Sort(times)
	median, most := times[len(times)/2], times[len(times)-1]
	f := finding{
		Level: levelOK, Check: "commits",
		Says: fmt.Sprintf("the median of %d is %v, the slowest %v; a tenth of the TTL is %v", len(times), round(median), round(most), ttl/10),
	}
	if median <= ttl/10 {
		return f
	}
	f.Level = levelWarn
	if median > ttl/3 {
		f.Level = levelFail
	}
	f.Says += ": if a few commits are slower still, renewals come too late and locks are lost"
	f.Do = fmt.Sprintf("Give etcd a disk of its own, check the network to this member, or raise the TTL to %v or more.",
		(10*median + time.Second - 1).Truncate(time.Second))
	return f
}

func round(d time.Duration) time.Duration {
	if d > 10*time.Millisecond {
		return d.Round(time.Millisecond)
	}
	return d.Round(10 * time.Microsecond)
}
