// Package command tests the command leasefence, cmd/leasefence, built as a user would build it, against a real etcd.
package command
