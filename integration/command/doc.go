// Package command tests the program leasefence, cmd/leasefence, against a real etcd.
package command
