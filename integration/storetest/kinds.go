//go:build unix

package storetest

import (
	"cmp"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Kind is a database.
type Kind string

// The databases.
const (
	PostgreSQL Kind = "PostgreSQL"
	MariaDB    Kind = "MariaDB"
	SQLite     Kind = "SQLite"

	// DurablePostgreSQL flushes its log at each commit, as in production. The others do not, which is faster and makes
	// no difference to clients.
	DurablePostgreSQL Kind = "durable PostgreSQL"
)

// command is what differs between the servers. DIR stands for the folder of the server's data.
type command struct {
	init, run string // the commands
	user      string // to run as if the test is root
	signal    string // ends the server at once
	driver    string
	socket    string // a DSN without the database
	admin     string // the database that there is at first
}

func postgreSQL(settings string) command {
	return command{
		init: "initdb -D DIR/data -U postgres -A trust -E UTF8 --locale=C -N",
		run: "postgres -D DIR/data -k DIR -c listen_addresses= -c max_connections=120 -c deadlock_timeout=100ms" +
			settings,
		user:   "postgres",
		signal: "QUIT",
		driver: "pgx", socket: "host=DIR user=postgres dbname=", admin: "postgres",
	}
}

var commands = map[Kind]command{
	PostgreSQL:        postgreSQL(" -c fsync=off -c synchronous_commit=off -c full_page_writes=off"),
	DurablePostgreSQL: postgreSQL(""),
	MariaDB: {
		init: "mariadb-install-db --no-defaults --datadir=DIR/data --auth-root-authentication-method=normal --skip-test-db",
		run: "mariadbd --no-defaults --datadir=DIR/data --socket=DIR/sock --pid-file=DIR/pid --skip-networking " +
			"--innodb-buffer-pool-size=64M --innodb-flush-log-at-trx-commit=0",
		user:   "mysql",
		signal: "KILL",
		driver: "mysql", socket: "root@unix(DIR/sock)/",
	},
}

// dsn returns the DSN of a database, by default of the one that there is at first.
func (c command) dsn(dir, database string) string {
	return strings.ReplaceAll(c.socket, "DIR", dir) + cmp.Or(database, c.admin)
}

// arguments returns the path of the program and its arguments. The folder's name may contain spaces.
func arguments(dir, line string) []string {
	args := strings.Fields(line)
	args[0] = program(args[0])
	for i := range args[1:] {
		args[i+1] = strings.ReplaceAll(args[i+1], "DIR", dir)
	}
	return args
}

// missing returns a program of the kind that is not installed, or "".
func (k Kind) missing() string {
	for _, line := range []string{commands[k].init, commands[k].run} {
		if name, _, _ := strings.Cut(line, " "); program(name) == "" {
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
