//go:build unix

package storetest

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
)

// Kind is a database.
type Kind string

// The databases.
const (
	PostgreSQL Kind = "PostgreSQL"
	MariaDB    Kind = "MariaDB"
	SQLite     Kind = "SQLite"
)

var commands = map[Kind]command{
	PostgreSQL: {
		name: "postgres", user: "postgres", signal: "QUIT", driver: "pgx",
		initArgs: func(dir string) []string {
			return []string{
				program("initdb"), "-D", filepath.Join(dir, "data"), "-U", "postgres", "-A", "trust",
				"-E", "UTF8", "--locale=C", "-N",
			}
		},
		runArgs: func(dir string, durable bool) []string {
			args := []string{
				program("postgres"), "-D", filepath.Join(dir, "data"), "-k", dir, "-c", "listen_addresses=",
				"-c", "max_connections=120", "-c", "deadlock_timeout=100ms",
			}
			if !durable {
				args = append(args, "-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "full_page_writes=off")
			}
			return args
		},
		dsn: func(dir, database string) string {
			if database == "" {
				database = "postgres"
			}
			return fmt.Sprintf("host=%s user=postgres dbname=%s", dir, database)
		},
	},
	MariaDB: {
		name: "mariadbd", user: "mysql", signal: "KILL", driver: "mysql",
		initArgs: func(dir string) []string {
			return []string{
				program("mariadb-install-db"), "--no-defaults", "--datadir=" + filepath.Join(dir, "data"),
				"--auth-root-authentication-method=normal", "--skip-test-db",
			}
		},
		runArgs: func(dir string, durable bool) []string {
			flush := "0"
			if durable {
				flush = "1"
			}
			return []string{
				program("mariadbd"), "--no-defaults", "--datadir=" + filepath.Join(dir, "data"),
				"--socket=" + filepath.Join(dir, "sock"), "--pid-file=" + filepath.Join(dir, "pid"), "--skip-networking",
				"--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=" + flush,
			}
		},
		dsn: func(dir, database string) string {
			return fmt.Sprintf("root@unix(%s)/%s", filepath.Join(dir, "sock"), database)
		},
	},
}

// missing returns a program of the kind that is not installed, or "".
func (k Kind) missing() string {
	programs := map[Kind][]string{PostgreSQL: {"initdb", "postgres"}, MariaDB: {"mariadb-install-db", "mariadbd"}}
	for _, name := range programs[k] {
		if program(name) == "" {
			return name
		}
	}
	return ""
}

// program returns the path of a program, or "". On Debian the servers of PostgreSQL and MariaDB are not in a user's
// PATH.
func program(name string) string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/" + name)
	slices.Sort(found)
	slices.Reverse(found) // the newest first
	for _, path := range append(found, name, "/usr/sbin/"+name) {
		if path, err := exec.LookPath(path); err == nil {
			return path
		}
	}
	return ""
}
