// Package security holds tests of what operators and attackers do to a running service: leases revoked, authentication
// and permissions that change while locks are held, certificates of every bad kind, and what leasefence writes to its
// log meanwhile. SECURITY.md, whose commands and limits are checked here, says what follows for those who run it.
package security
