package main

import (
	"fmt"
	"unicode/utf8"

	"github.com/spf13/cobra"

	locks "github.com/leasefence/leasefence/internal/queue"
)

// oneName checks the arguments of a command that takes one NAME of an existing lock.
func oneName(cmd *cobra.Command, args []string) error {
	if err := cobra.ExactArgs(1)(cmd, args); err != nil {
		return err
	}
	if err := checkName(args[0]); err != nil {
		return usageError("%w", err)
	}
	return nil
}

// checkName checks a name as it stands in etcd. Unlike a name that a user may lock, it may have a session's prefix, and
// parts that begin with "~": those of slots and of nodes of a tree.
func checkName(name string) error {
	if err := locks.CheckQueueName(name); err != nil {
		return fmt.Errorf("NAME %w", err)
	}
	return nil
}

// prefixIn is the PREFIX after n other arguments, empty if none is given.
func prefixIn(args []string, n int) string {
	if len(args) == n {
		return ""
	}
	return args[n]
}

// thenPrefix accepts n arguments and an optional PREFIX after them.
func thenPrefix(n int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := cobra.RangeArgs(n, n+1)(cmd, args); err != nil || len(args) == n {
			return err
		}
		switch prefix := args[n]; {
		case len(prefix) > locks.MaxFullName:
			return usageError("PREFIX has %d bytes, want 0 to %d", len(prefix), locks.MaxFullName)
		case !utf8.ValidString(prefix):
			return usageError("PREFIX is %q, want UTF-8", prefix)
		}
		return nil
	}
}
