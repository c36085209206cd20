//go:build unix

package storetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

// startTimeout is far longer than a start takes.
const startTimeout = time.Minute

// server is a running database server.
type server struct {
	dir   string
	stdin io.Closer // closing it stops the server
	cmd   *exec.Cmd
}

// watch runs a server until the standard input of the shell ends: when the test closes it, or when the test's process
// ends in any way.
const watch = `signal=$1; shift; "$@" </dev/null & pid=$!; cat >/dev/null; kill -s "$signal" $pid; wait $pid`

// start makes a database cluster, runs the server and waits until it answers. On an error it removes everything.
func start(c command) (_ *server, err error) {
	// Not the test's temporary folder: the server outlives the test, and a socket's path has to be short.
	dir, err := os.MkdirTemp("", "storetest")
	if err != nil {
		return nil, err
	}
	s := &server{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	attr, err := unprivileged(c.user, dir)
	if err != nil {
		return nil, err
	}
	args := arguments(dir, c.init)
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	// MariaDB clears its folder of temporary tables when it starts.
	env := append(os.Environ(), "TMPDIR="+dir)
	initialize := exec.CommandContext(ctx, args[0], args[1:]...)
	initialize.Dir, initialize.Env, initialize.SysProcAttr = dir, env, attr
	if out, err := initialize.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("storetest: %s: %w: %s", args[0], err, tail(out))
	}
	run := exec.Command("/bin/sh", append([]string{"-c", watch, "sh", c.signal}, arguments(dir, c.run)...)...)
	run.Dir, run.Env, run.SysProcAttr = dir, env, attr
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close() //nolint:errcheck // The server has its own handle.
	run.Stdout, run.Stderr = log, log
	stdin, err := run.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := run.Start(); err != nil {
		return nil, err
	}
	s.stdin, s.cmd = stdin, run
	if err := await(ctx, c.driver, c.dsn(dir, ""), func(db *sql.DB) error { return db.PingContext(ctx) }); err != nil {
		out, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("storetest: %s does not answer: %w: %s", c.driver, err, tail(out))
	}
	return s, nil
}

// await returns when ready succeeds.
func await(ctx context.Context, driver, dsn string, ready func(*sql.DB) error) error {
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return err
	}
	defer db.Close() //nolint:errcheck // Nothing depends on it.
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := ready(db)
		if err == nil {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// stop ends the server and removes its data. When it returns, the processes have ended.
func (s *server) stop() error {
	var err error
	if s.cmd != nil {
		_ = s.stdin.Close()
		_ = s.cmd.Wait() // the status is that of the signal
	}
	// A server's helpers may still be writing their last file.
	for range 50 {
		if err = os.RemoveAll(s.dir); err == nil {
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return err
}

// unprivileged returns the attributes of the server's commands. If this process is root, they run as a user without
// rights, who gets dir.
func unprivileged(name, dir string) (*syscall.SysProcAttr, error) {
	// A separate process group: an interrupt from the keyboard reaches only the tests, which then stop the server.
	attr := &syscall.SysProcAttr{Setpgid: true}
	if os.Geteuid() != 0 {
		return attr, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return nil, fmt.Errorf("storetest: who to run a server as: %w", err)
		}
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	if err := os.Chown(dir, int(uid), int(gid)); err != nil {
		return nil, err
	}
	attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return attr, nil
}

func tail(out []byte) []byte { return out[max(0, len(out)-600):] }

// servers are the running servers.
var servers = struct {
	sync.Mutex // held during a start, so that each server starts once
	running    map[Kind]*server
	galera     []*server // the nodes
}{running: make(map[Kind]*server)}

func running(k Kind) (*server, error) {
	servers.Lock()
	defer servers.Unlock()
	if s := servers.running[k]; s != nil {
		return s, nil
	}
	s, err := start(commands[k])
	if err == nil {
		servers.running[k] = s
	}
	return s, err
}

func stopAll() error {
	servers.Lock()
	defer servers.Unlock()
	var errs []error
	for k, s := range servers.running {
		errs = append(errs, s.stop())
		delete(servers.running, k)
	}
	for _, s := range servers.galera {
		errs = append(errs, s.stop())
	}
	servers.galera = nil
	return errors.Join(errs...)
}

// Synced at the end of a node's DSN makes reads wait until the node has applied all earlier commits of other nodes.
const Synced = "?wsrep_sync_wait=15"

// NewGalera makes a database in a Galera cluster of two writable nodes of MariaDB. It returns the database as a store
// at each node.
func NewGalera(tb testing.TB) [2]*Store {
	tb.Helper()
	requireInstalled(tb, MariaDB)
	if provider() == "" {
		etcdtest.Skip(tb, "Galera is not installed: no libgalera_smm.so")
	}
	nodes, err := runningGalera()
	if err != nil {
		tb.Fatal(err)
	}
	name := fmt.Sprintf("test%d", databases.Add(1))
	var stores [2]*Store
	for i, node := range nodes {
		stores[i] = &Store{Kind: MariaDB, Driver: "mysql", DSN: commands[MariaDB].dsn(node.dir, "") + Synced}
	}
	for i, query := range []string{"CREATE DATABASE " + name, "SELECT 1"} {
		if _, err := stores[i].DB(tb).ExecContext(tb.Context(), query); err != nil {
			tb.Fatalf("storetest: %s: %v", query, err)
		}
	}
	for i, node := range nodes {
		stores[i].DSN = commands[MariaDB].dsn(node.dir, name)
	}
	return stores
}

// provider is the path of Galera's library, or "".
func provider() string {
	found, _ := filepath.Glob("/usr/lib*/galera*/libgalera_smm.so")
	if len(found) == 0 {
		return ""
	}
	return found[0]
}

func runningGalera() ([]*server, error) {
	servers.Lock()
	defer servers.Unlock()
	if servers.galera != nil {
		return servers.galera, nil
	}
	// Each node needs the other's ports before it listens.
	ports, err := freePorts(6)
	if err != nil {
		return nil, err
	}
	group := fmt.Sprintf("gcomm://127.0.0.1:%d,127.0.0.1:%d", ports[0], ports[3])
	for i := range 2 {
		c, own := commands[MariaDB], ports[3*i:]
		c.run += fmt.Sprintf(" --binlog-format=ROW --innodb-autoinc-lock-mode=2 --wsrep-on=ON --wsrep-provider=%s "+
			"--wsrep-cluster-address=%s --wsrep-sst-method=rsync --wsrep-node-address=127.0.0.1:%d "+
			"--wsrep-sst-receive-address=127.0.0.1:%d "+
			"--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:%[3]d;ist.recv_addr=127.0.0.1:%[5]d;gcache.size=16M",
			provider(), group, own[0], own[1], own[2])
		if i == 0 {
			c.run += " --wsrep-new-cluster"
		}
		node, err := start(c)
		if err == nil {
			servers.galera = append(servers.galera, node)
			err = awaitNodes(c.dsn(node.dir, ""), i+1)
		}
		if err != nil {
			for _, node := range servers.galera {
				err = errors.Join(err, node.stop())
			}
			servers.galera = nil
			return nil, err
		}
	}
	return servers.galera, nil
}

// awaitNodes returns when a node serves clients in a cluster of n.
func awaitNodes(dsn string, n int) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return await(ctx, "mysql", dsn, func(db *sql.DB) error {
		var ready, nodes int
		err := db.QueryRowContext(ctx, "SELECT SUM(VARIABLE_NAME = 'WSREP_READY' AND VARIABLE_VALUE = 'ON'), "+
			"SUM(VARIABLE_NAME = 'WSREP_CLUSTER_SIZE' AND VARIABLE_VALUE = ?) FROM information_schema.GLOBAL_STATUS", n).
			Scan(&ready, &nodes)
		if err == nil && (ready != 1 || nodes != 1) {
			err = fmt.Errorf("storetest: a Galera cluster of %d nodes does not get ready", n)
		}
		return err
	})
}

func freePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer l.Close() //nolint:errcheck // All stay open until the end, so that the ports differ.
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}
