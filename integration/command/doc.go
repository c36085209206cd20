// Package command tests the command leasefence, cmd/leasefence, as a user would build it, with a real etcd.
package command
