// Package storetest runs the databases that tests of the SQL adapters write to: PostgreSQL and MariaDB from the
// installed packages, each as a private server with its data in a temporary folder and a Unix socket for clients, and
// SQLite in the process. [NewGalera] is a cluster of two nodes of MariaDB.
//
// A server starts with the first test that asks for it, serves all tests of the package, each in a database of its own,
// and ends in [Main]. It also ends if the process does. Where a server's programs are not installed the test is
// skipped through the helper that honours LEASEFENCE_NO_SKIP. A server that refuses to run as root is given to the user
// that its package has made, or to nobody.
package storetest
