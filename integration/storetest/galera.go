//go:build unix

package storetest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"testing"

	"github.com/leasefence/leasefence/integration/etcdtest"
)

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
