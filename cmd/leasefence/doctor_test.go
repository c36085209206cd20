package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/leasefence/leasefence/internal/fakeetcd"
)

// The list of known bugs equals that of SECURITY.md, and the tested versions equal those of docs/etcd.md.
func TestBugs_areThoseOfTheDocuments(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../SECURITY.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## Versions of etcd\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	var documented []bug
	row := regexp.MustCompile(`(?m)^\| \[([^\]]+)\]\([^)]+\)[^|]*\| ([^|]+) \| ([^|]+) \|$`)
	for _, m := range row.FindAllStringSubmatch(section, -1) {
		documented = append(documented, bug{m[1], m[2], strings.Split(m[3], ", ")})
	}
	require.Equal(t, documented, bugs)

	text, err = os.ReadFile("../../docs/etcd.md")
	require.NoError(t, err)
	require.Contains(t, string(text), "\n| "+oldestTested+" and later, ")
	require.Contains(t, string(text), "\n| 3.7 | ")
	require.Equal(t, 7, newestTested)
}

func TestJudge(t *testing.T) {
	t.Parallel()
	const update = "Update to 3.5.33, 3.6.14 or 3.7.1, or to a later release of one of these minor versions."
	for version, want := range map[string]struct{ level, says, do string }{
		"3.7.3":        {levelOK, "without any known bug", ""},
		"3.7.1":        {levelOK, "without any known bug", ""},
		"3.7.0":        {levelWarn, "CVE-2026-73499", update},
		"3.6.14":       {levelOK, "without any known bug", ""},
		"3.6.13":       {levelWarn, "CVE-2026-73499", update},
		"3.6.9":        {levelWarn, "CVE-2026-44283", update},
		"3.5.22":       {levelWarn, "pull request 20590", update},
		"3.5.33":       {levelOK, "without any known bug", ""},
		"3.5.32":       {levelWarn, "CVE-2026-73499", update},
		"3.4.44":       {levelWarn, "CVE-2026-73500", update},
		"3.4.22":       {levelFail, "older than all", "Update to a release of etcd 3.7."},
		"3.8.0":        {levelWarn, "tested with releases up to 3.7", "Look for a newer leasefence."},
		"3.7.0-rc.1":   {levelWarn, "CVE-2026-73499", update},
		"4.0.0":        {levelWarn, "nothing is known", "Use a release of etcd 3.7."},
		"cluster\x1bx": {levelWarn, `"cluster\x1bx"`, "Use a release of etcd 3.7."},
	} {
		f := judge(version)
		require.Equal(t, want.level, f.Level, version)
		require.Contains(t, f.Says, want.says, version)
		require.Equal(t, want.do, f.Do, version)
	}
	require.NotContains(t, judge("3.5.23").Says, "20590")
	require.NotContains(t, judge("3.6.9").Says, "33343")
}

func TestSpeed(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	times := func(d ...time.Duration) []time.Duration { return d }
	require.Equal(t, levelOK, speed(times(ms, 2*ms, 100*ms), time.Second).Level)
	f := speed(times(5000*ms, 101*ms, ms), time.Second)
	require.Equal(t, levelWarn, f.Level)
	require.Contains(t, f.Says, "the median of 3 is 101ms, the slowest 5s")
	require.Contains(t, f.Do, "raise the TTL to 2s or more")
	require.Equal(t, levelOK, speed(times(5000*ms, 101*ms, ms), 2*time.Second).Level, "the advice helps")
	f = speed(times(700*ms, 400*ms, 300*ms), time.Second)
	require.Equal(t, levelFail, f.Level)
	require.Contains(t, f.Do, "raise the TTL to 4s or more")
	require.Equal(t, levelOK, speed(times(700*ms, 400*ms, 300*ms), 4*time.Second).Level)
	require.Contains(t, speed(times(1040*ms), 10*time.Second).Do, "raise the TTL to 11s or more")
}

func TestSize(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	require.Equal(t, levelOK, size(50*mib, mib, 100*mib).Level)
	require.Equal(t, levelWarn, size(61*mib, mib, 100*mib).Level)
	require.Equal(t, levelFail, size(91*mib, mib, 100*mib).Level)
	require.Equal(t, "the database has 50.0 MiB, 1.0 MiB of them in use, of a quota of 100.0 MiB", size(50*mib, mib, 100*mib).Says)
	require.Contains(t, size(50*mib, mib, 0).Says, "does not report its quota")
	require.Equal(t, levelOK, size(50*mib, mib, 0).Level)
	require.Equal(t, levelWarn, size(1300*mib, mib, 0).Level)
	require.Contains(t, size(1300*mib, mib, 0).Says, "1.3 GiB, 1.0 MiB of them in use")
}

// A member without a leader, and a learner, serve no locks: doctor measures no commits of theirs, and asks no further. If
// a commit takes too long, doctor names the flag.
func TestState(t *testing.T) {
	t.Parallel()
	nowhere, err := grpc.NewClient("127.0.0.1:1", grpc.WithTransportCredentials(insecure.NewCredentials()))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, nowhere.Close()) })
	for _, tt := range []struct {
		answer *etcdserverpb.StatusResponse
		level  string
		checks []string
	}{
		{&etcdserverpb.StatusResponse{IsLearner: true}, levelFail, []string{"version", "leader"}},
		{&etcdserverpb.StatusResponse{IsLearner: true, Leader: 1}, levelWarn, []string{"version", "member"}},
		{&etcdserverpb.StatusResponse{Leader: 1}, levelOK, []string{"version", "size", "commits"}},
	} {
		d := doctor{app: newApp(), clusters: map[uint64][]string{}}
		serves := len(tt.checks) == 3
		require.Equal(t, serves, d.state(t.Context(), tt.answer, nowhere)) // the timeout is 0
		require.Equal(t, tt.checks, checks(d.findings))
		require.Equal(t, tt.level, d.findings[1].Level)
		require.Equal(t, serves, strings.Contains(d.findings[len(d.findings)-1].Do, "Raise --command-timeout"))
	}
}

// oblivious answers as a server that has lost its leases, but not the keys on them.
type oblivious struct{ clientv3.Lease }

func (oblivious) TimeToLive(_ context.Context, id clientv3.LeaseID, _ ...clientv3.LeaseOption) (*clientv3.LeaseTimeToLiveResponse, error) {
	return &clientv3.LeaseTimeToLiveResponse{ID: id, TTL: -1}, nil
}

// A key whose own record names a lease that does not list the key holds or waits forever: doctor reports it.
func TestDoctor_keptKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		srv := fakeetcd.New()
		client := srv.NewClient(t.Context())
		granted, err := client.Grant(t.Context(), 60)
		require.NoError(t, err)
		key := fmt.Sprintf("jobs/it's/~doctor/%x-", int64(granted.ID)) // a node of a tree; doctor's own keys begin like it
		holder, err := client.Put(t.Context(), key+"a", "", clientv3.WithLease(granted.ID))
		require.NoError(t, err)
		_, err = client.Put(t.Context(), key+"b", "", clientv3.WithLease(granted.ID))
		require.NoError(t, err)

		a := newApp()
		a.etcd.commandTimeout = time.Minute
		d := doctor{app: a, client: client.Client, prefix: "jobs/"}
		d.keys(t.Context())
		require.Equal(t, []string{"leases", "stray keys"}, checks(d.findings), "the lease has both keys")

		client.Lease = oblivious{client.Lease}
		d.findings = nil
		d.keys(t.Context())
		require.Equal(t, []string{"leases", "keys of leases", "keys of leases", "stray keys"}, checks(d.findings))
		holds, waits := d.findings[1], d.findings[2]
		require.Equal(t, levelFail, holds.Level)
		require.Contains(t, holds.Says, "etcd has kept the key "+key+"a without its lease: nothing will end that hold")
		require.Equal(t, []string{fmt.Sprintf(`leasefence release --mode wait --yes --token %d -- 'jobs/it'\''s/~doctor'`, holder.Header.Revision)}, holds.Run)
		require.Equal(t, levelFail, waits.Level)
		require.Contains(t, waits.Says, "nothing will end that wait")
		require.Equal(t, []string{`etcdctl del -- 'jobs/it'\''s/` + key[len("jobs/it's/"):] + `b'`}, waits.Run)
		require.Equal(t, levelOK, d.findings[3].Level)
	})
}

func checks(all []finding) (names []string) {
	for _, f := range all {
		names = append(names, f.Check)
	}
	return names
}
