// Package security has scenarios of what operators and attackers do to a running service: they revoke leases, change
// authentication and permissions while locks are held, and install invalid certificates. It also checks what leasefence
// logs meanwhile, and the commands and limits in SECURITY.md.
package security
