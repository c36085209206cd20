//go:build unix

package command_test

import (
	"encoding/json"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/proxy/grpcproxy"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/rig"
)

type finding struct {
	Level, Check, Endpoint, Says, Do string
	Run                              []string
}

// examine runs doctor and returns its findings. It checks that the counts and the exit code follow from them.
func examine(t *testing.T, endpoint string, args ...string) []finding {
	t.Helper()
	p := start(t, endpoint, append([]string{"doctor", "-o", "json"}, args...)...)
	code := p.end(t)
	var report struct {
		Findings       []finding
		OK, Warn, Fail int
	}
	require.NoError(t, json.Unmarshal([]byte(p.stdout.String()), &report))
	count := map[string]int{}
	for _, f := range report.Findings {
		count[f.Level]++
		require.NotEmpty(t, f.Says)
		require.Equal(t, f.Level == "OK", f.Do == "", "%+v: a finding says what to do unless it is OK", f)
	}
	require.Equal(t, []int{count["OK"], count["WARN"], count["FAIL"]}, []int{report.OK, report.Warn, report.Fail})
	require.Equal(t, min(report.Fail, 1), code)
	return report.Findings
}

func levels(all []finding) map[string][]string {
	m := map[string][]string{}
	for _, f := range all {
		m[f.Check] = append(m[f.Check], f.Level)
	}
	return m
}

// says is the text of all findings of a check.
func says(all []finding, check string) string {
	var text []string
	for _, f := range all {
		if f.Check == check {
			text = append(text, f.Says+" "+f.Do+" "+strings.Join(f.Run, "\n"))
		}
	}
	return strings.Join(text, "\n")
}

func TestDoctor_findsWhatIsWrong(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	ctx := rig.Bounded(t)
	lease, err := client.Grant(ctx, 3600)
	require.NoError(t, err)
	for key, on := range map[string]clientv3.LeaseID{
		"jobs/data": 0, "jobs/nightly/config": lease.ID, "jobs/exports/~slot/2/whatever": 0, "jobs/number/7": 0, "other": 0,
		"jobs/a/1234567890abcdef-x":      0,        // not attached; the lease in its name does not exist
		"jobs/b/" + hex(lease.ID) + "-x": 0,        // not attached, though the lease in its name exists
		"jobs/c/" + hex(lease.ID) + "-x": lease.ID, // a contender's key
	} {
		_, err := client.Put(ctx, key, "", clientv3.WithLease(on))
		require.NoError(t, err)
	}
	for _, alarm := range []etcdserverpb.AlarmType{etcdserverpb.AlarmType_NOSPACE, etcdserverpb.AlarmType_CORRUPT} {
		_, err = srv.Etcd.Server.Alarm(ctx, &etcdserverpb.AlarmRequest{
			Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: uint64(srv.Etcd.Server.MemberID()), Alarm: alarm,
		})
		require.NoError(t, err)
	}
	all := examine(t, srv.Endpoint()+",127.0.0.1:1", "jobs/", "--ttl", "1s")
	found := levels(all)
	require.Equal(t, []string{"FAIL"}, found["answer"])
	require.Equal(t, []string{"FAIL", "FAIL"}, found["alarms"])
	require.Contains(t, says(all, "alarms"), "NOSPACE: etcd grants no locks until it is disarmed Compact, etcdctl defrag")
	require.Contains(t, says(all, "alarms"), "CORRUPT: etcd grants no locks until it is disarmed Read etcd's documentation on corruption")
	require.Equal(t, []string{"WARN"}, found["smallest TTL"])
	require.Equal(t, []string{"FAIL"}, found["stray keys"])
	for _, key := range []string{"jobs/data", "jobs/nightly/config", "jobs/exports/~slot/2/whatever", "jobs/number/7"} {
		require.Contains(t, says(all, "stray keys"), key)
	}
	require.Contains(t, says(all, "stray keys"), "6 keys belong to no holder and no waiter")
	require.Contains(t, says(all, "stray keys"), "1 of them take permits")
	require.Empty(t, found["keys of leases"])
	require.Contains(t, says(all, "leases"), "2 hold or wait for something here, with 3 keys, at most 2 on one")
}

func TestDoctor_findsAProxy(t *testing.T) {
	t.Parallel()
	_, client := etcd(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	proxy := grpc.NewServer()
	t.Cleanup(proxy.Stop)
	members, _ := grpcproxy.NewClusterProxy(zap.NewNop(), client, l.Addr().String(), "")
	etcdserverpb.RegisterClusterServer(proxy, members)
	etcdserverpb.RegisterMaintenanceServer(proxy, grpcproxy.NewMaintenanceProxy(client))
	go func() { _ = proxy.Serve(l) }()
	found := levels(examine(t, l.Addr().String(), "jobs/"))
	require.Equal(t, []string{"FAIL"}, found["proxy"])
}

// A key that has the form of a contender's key, but was put without the lease, is a stray: get shows no holder, and
// doctor reports it. The commands that doctor gives are safe to paste, whatever the names are, and delete the key.
func TestDoctor_straysAreNoHolds(t *testing.T) {
	t.Parallel()
	srv := etcdtest.Start(t, etcdtest.Options{})
	client := srv.Client(t)
	pwned := filepath.Join(t.TempDir(), "pwned")
	const form = "/6a7c1dc4b33cbdeb-abc0"
	names := []string{"jobs/my lock", "jobs/x; touch " + pwned + " #", "jobs/$(touch " + pwned + ")`touch " + pwned + "`", "jobs/it's'; touch " + pwned + " '"}
	for _, name := range names {
		_, err := client.Put(rig.Bounded(t), name+form, "")
		require.NoError(t, err)
	}
	all := examine(t, srv.Endpoint(), "jobs/")
	require.Equal(t, []string{"WARN"}, levels(all)["stray keys"])
	require.Empty(t, levels(all)["keys of leases"])
	get := start(t, srv.Endpoint(), "get", names[0])
	require.Zero(t, get.end(t))
	require.Contains(t, get.stdout.String(), "nobody holds jobs/my lock, nobody waits")

	var commands []string
	for _, f := range all {
		commands = append(commands, f.Run...)
	}
	require.Len(t, commands, len(names))
	require.Contains(t, commands, `etcdctl del -- 'jobs/my lock`+form+`'`)
	for _, command := range commands {
		sh := exec.CommandContext(rig.Bounded(t), "sh", "-c", `etcdctl() { printf '%s\n' "$@"; }; `+command)
		out, err := sh.CombinedOutput()
		require.NoError(t, err)
		key := strings.TrimPrefix(strings.TrimSuffix(string(out), "\n"), "del\n--\n")
		resp, err := client.Delete(rig.Bounded(t), key)
		require.NoError(t, err)
		require.EqualValues(t, 1, resp.Deleted, "%s", out)
	}
	require.NoFileExists(t, pwned)
	all = examine(t, srv.Endpoint(), "jobs/", "--ttl", "1s")
	require.Equal(t, []string{"OK"}, levels(all)["stray keys"])
	require.Contains(t, says(all, "smallest TTL"), "its locks stay held for that long, not for 1s")
	requireNothingLeft(t, client)

	_, err := client.Put(rig.Bounded(t), "jobs/\nreboot\n", "")
	require.NoError(t, err)
	odd := start(t, srv.Endpoint(), "doctor", "jobs/")
	odd.end(t)
	require.Contains(t, odd.stdout.String(), `no command is given for "jobs/\nreboot\n"`)
	require.NotContains(t, odd.stdout.String(), "\nreboot")
}

// doctor reports the checks that it has no permission for, and goes on. ls and explain tell a user with permission on a
// prefix only to give that PREFIX.
func TestDoctor_withoutPermission(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	addUser(t, client, "worker", clientv3.PermissionType(clientv3.PermReadWrite))
	addUser(t, client, "viewer", clientv3.PermissionType(clientv3.PermRead))
	enableAuth(t, client)
	at := func(user, prefix string) []finding {
		return examine(t, addr, prefix, "--user", user, "--password", "secret")
	}
	all := at("worker", "jobs/")
	require.Equal(t, []string{"OK", "OK"}, levels(all)["permissions"])
	require.Equal(t, []string{"OK"}, levels(all)["commits"])

	all = at("viewer", "jobs/")
	require.Equal(t, []string{"OK", "FAIL"}, levels(all)["permissions"])
	require.Contains(t, says(all, "permissions"), `etcdctl role grant-permission --prefix ROLE readwrite -- 'jobs/'`)
	require.Equal(t, []string{"WARN"}, levels(all)["commits"])
	require.Contains(t, says(all, "commits"), "NOT CHECKED: user viewer has no permission")
	require.Equal(t, []string{"OK"}, levels(all)["stray keys"])

	all = at("worker", "other/")
	require.Equal(t, []string{"FAIL", "FAIL"}, levels(all)["permissions"])
	require.Contains(t, says(all, "stray keys"), "NOT CHECKED")
	require.Contains(t, says(all, "leases"), "NOT CHECKED")

	all = examine(t, addr, "jobs/") // without a user, whom no role would help
	require.Equal(t, []string{"FAIL", "FAIL"}, levels(all)["permissions"])
	for _, check := range []string{"permissions", "commits", "leases", "alarms"} {
		require.Contains(t, says(all, check), "Give doctor a --user")
	}

	for _, args := range [][]string{{"ls"}, {"explain", "1"}} {
		args = append(args, "--user", "viewer:secret")
		p := start(t, addr, args...)
		require.Equal(t, 1, p.end(t))
		require.Contains(t, p.stderr.String(), "permission denied: give a PREFIX that this user may read")
		require.Zero(t, start(t, addr, append(args, "jobs/")...).end(t))
	}

	root := start(t, addr, "doctor", "jobs/", "--user", "root:secret")
	require.Zero(t, root.end(t))
	require.Contains(t, root.stdout.String(), " 0 WARN, 0 FAIL\n")
}

func TestDoctor_twoClusters(t *testing.T) {
	t.Parallel()
	one, other := etcdtest.Start(t, etcdtest.Options{}), etcdtest.Start(t, etcdtest.Options{})
	all := examine(t, one.Endpoint()+","+other.Endpoint())
	require.Equal(t, []string{"FAIL"}, levels(all)["cluster"])
	require.Contains(t, says(all, "cluster"), "the endpoints belong to 2 clusters")
	require.Contains(t, says(all, "cluster"), one.Endpoint()+" of cluster ")
	require.Empty(t, levels(examine(t, one.Endpoint()+","+one.Endpoint()))["cluster"])
}

func TestDoctor_etcdDown(t *testing.T) {
	t.Parallel()
	p := startWith(t, nil, "doctor", "--endpoints", "127.0.0.1:1", "--command-timeout", "15s")
	require.Equal(t, 1, p.end(t))
	require.Regexp(t, `it has not answered \(--command-timeout is 15s\): .*connection refused`, p.stdout.String())
	require.Contains(t, p.stdout.String(), "NOT CHECKED: no endpoint serves locks")
	require.Contains(t, p.stdout.String(), "0 OK, 1 WARN, 1 FAIL\n")
}
