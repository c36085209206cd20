// Package storetest runs the databases that tests of the SQL adapters write to: PostgreSQL and MariaDB from the
// installed packages, each as a private server with its data in a temporary folder and a Unix socket for clients, and
// SQLite in the process. [NewGalera] is a cluster of two nodes of MariaDB.
//
// A server starts with the first test that needs it, serves all tests of the package, each in a separate database, and
// ends in [Main]. It also ends if the process does. If a server's programs are not installed, [etcdtest.Skip] skips the
// test unless LEASEFENCE_NO_SKIP is set. A server that refuses to run as root runs as the user that its package has
// made, or as nobody.
package storetest
