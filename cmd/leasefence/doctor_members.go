package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-semver/semver"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// member checks the endpoint. It reports whether the endpoint answers and, as far as it tells, serves locks.
func (d *doctor) member(ctx context.Context) bool {
	bounded, cancel := d.app.bounded(ctx)
	defer cancel()
	conn, err := d.client.Dial(d.endpoint)
	var answer *etcdserverpb.StatusResponse
	if err == nil {
		defer func() { _ = conn.Close() }()
		// The client's own Status would wait for a connection, and not say why there is none.
		answer, err = etcdserverpb.NewMaintenanceClient(conn).Status(bounded, &etcdserverpb.StatusRequest{})
		err = rpctypes.Error(err)
	}
	if conn != nil && denied(err) {
		d.add(d.unchecked("version, leader and size", err))
		d.check(ctx, "commits", func(ctx context.Context) error { return d.commits(ctx, conn) })
		return true
	}
	if err != nil {
		d.add(fail("answer", fmt.Sprintf("it has not answered (--command-timeout is %v): %s",
			d.app.etcd.commandTimeout, harmless(status.Convert(err).Message())),
			"Start it, check the network and TLS, or leave it out of --endpoints."))
		return false
	}
	// A proxy makes up its list of members, without a header.
	list, err := etcdserverpb.NewClusterClient(conn).MemberList(bounded, &etcdserverpb.MemberListRequest{})
	if err == nil && list.Header == nil {
		d.add(fail("proxy",
			"it is etcd's gRPC proxy, which may answer a renewal before etcd has renewed the lease: two processes may hold the same lock",
			"Give the addresses of etcd's members instead, here and to all processes that lock."))
	}
	return d.state(ctx, answer, conn)
}

// state makes the findings on a member's answer, and on its commits if it serves locks. It reports whether it does.
func (d *doctor) state(ctx context.Context, answer *etcdserverpb.StatusResponse, conn *grpc.ClientConn) (serves bool) {
	d.clusters[answer.Header.GetClusterId()] = append(d.clusters[answer.Header.GetClusterId()], d.endpoint)
	d.add(judge(answer.Version))
	switch {
	case answer.Leader == 0:
		d.add(fail("leader", "it knows no leader: it grants no locks and renews no leases",
			"Restore a majority of the members, and the network between them."))
		return false
	case answer.IsLearner:
		d.add(warn("member", "it is a learner, which serves no locks", "Leave it out of --endpoints, or promote it."))
		return false
	}
	d.add(size(answer.DbSize, answer.DbSizeInUse, answer.DbSizeQuota))
	d.check(ctx, "commits", func(ctx context.Context) error { return d.commits(ctx, conn) })
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
	d.add(fail("cluster",
		fmt.Sprintf("the endpoints belong to %d clusters, so two processes may hold the same lock: %s", len(parts), strings.Join(parts, "; ")),
		"Give only endpoints of one cluster, here and to all processes that lock."))
}

// size makes the finding on a member's database. Quota is 0 if the server does not report it, as before etcd 3.6.
func size(all, used, quota int64) finding {
	f := passed("size", "the database has %s, %s of them in use", amount(all), amount(used))
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

// commits measures the time of a commit through the endpoint: it puts and deletes a key five times.
func (d *doctor) commits(ctx context.Context, conn *grpc.ClientConn) error {
	kv := clientv3.NewKVFromKVClient(etcdserverpb.NewKVClient(conn), d.client)
	leases := clientv3.NewLeaseFromLeaseClient(etcdserverpb.NewLeaseClient(conn), d.client, time.Minute)
	granted, err := leases.Grant(ctx, int64(time.Minute/time.Second))
	if err != nil {
		return err
	}
	// Revoking the lease also deletes the key, if an error has left it.
	defer func() {
		ctx, cancel := d.app.bounded(context.WithoutCancel(ctx))
		defer cancel()
		_, _ = leases.Revoke(ctx, granted.ID)
	}()
	// The key does not have the form of a contender's key, so it is in no lock's way.
	key := fmt.Sprintf("%s~doctor/probe-%x", d.prefix, rand.Uint64()) //nolint:gosec // it only has to be unique
	var times []time.Duration
	for range 5 {
		began := time.Now()
		if _, err := kv.Put(ctx, key, "", clientv3.WithLease(granted.ID)); err != nil {
			return err
		}
		put := time.Now()
		if _, err := kv.Delete(ctx, key); err != nil {
			return err
		}
		times = append(times, put.Sub(began), time.Since(put))
	}
	d.add(speed(times, d.ttl))
	return nil
}

// speed makes the finding on the times of commits.
func speed(times []time.Duration, ttl time.Duration) finding {
	slices.Sort(times)
	median, most := times[len(times)/2], times[len(times)-1]
	f := passed("commits", "the median of %d is %v, the slowest %v; a tenth of the TTL is %v", len(times), round(median), round(most), ttl/10)
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

// bug is a known bug of etcd. TestBugs_areThoseOfTheDocuments holds the list to the one in SECURITY.md.
type bug struct {
	name  string
	what  string
	fixed []string // the first fixed release of each minor version
}

var bugs = []bug{
	{"CVE-2026-33343", "nested transactions bypass all permissions on keys", []string{"3.4.42", "3.5.28", "3.6.9"}},
	{"CVE-2026-33413", "lease calls, alarms, compaction and the member list without authentication", []string{"3.4.42", "3.5.28", "3.6.9"}},
	{"CVE-2026-44283", "previous values read, and leases attached, in transactions without permission", []string{"3.4.44", "3.5.30", "3.6.11"}},
	{"CVE-2026-73499", "whoever may read one key may watch all keys after it", []string{"3.5.33", "3.6.14", "3.7.1"}},
	{"CVE-2026-73500", "connections that never begin their TLS handshake exhaust memory", []string{"3.5.33", "3.6.14", "3.7.1"}},
	{"CVE-2023-32082", "names of keys on a lease shown without permission", []string{"3.4.26", "3.5.9"}},
	{"pull request 20590", "a renewal is acknowledged though the lease has just been revoked", []string{"3.4.38", "3.5.23", "3.6.5"}},
}

// The oldest version and the newest minor version that leasefence is tested with, as in docs/etcd.md.
const (
	oldestTested = "3.4.23"
	newestTested = 7
)

// sound are the first releases that have none of the bugs.
const sound = "3.5.33, 3.6.14 or 3.7.1"

// in reports whether v has the bug. A minor version after the last that was fixed never had it.
func (b bug) in(v semver.Version) bool {
	newest := int64(0)
	for _, text := range b.fixed {
		f := semver.New(text)
		newest = max(newest, f.Minor)
		if f.Minor == v.Minor {
			return v.LessThan(*f)
		}
	}
	return v.Minor < newest
}

// judge makes the finding on a server's version.
func judge(text string) finding {
	f := passed("version", "etcd %s", text)
	v, err := semver.NewVersion(text)
	switch {
	case err != nil || v.Major != 3:
		return warn("version", fmt.Sprintf("etcd %q: nothing is known about this version", text), "Use a release of etcd 3.7.")
	case v.LessThan(*semver.New(oldestTested)):
		return fail("version", f.Says+", older than all versions that leasefence is tested with", "Update to a release of etcd 3.7.")
	case v.Minor > newestTested:
		return warn("version", fmt.Sprintf("%s: leasefence is tested with releases up to 3.%d", f.Says, newestTested),
			"Look for a newer leasefence.")
	}
	var said []string
	for _, b := range bugs {
		if b.in(*v) {
			said = append(said, fmt.Sprintf("%s (%s)", b.what, b.name))
		}
	}
	if len(said) == 0 {
		f.Says += ", without any known bug that matters for locks"
		return f
	}
	return warn("version", f.Says+" has known bugs: "+strings.Join(said, "; "),
		"Update to "+sound+", or to a later release of one of these minor versions.")
}
