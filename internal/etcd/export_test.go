package etcd

import (
	"context"
	"reflect"
)

// For the tests, which stand outside.

// Copies is how many requests the attempt sends for each one.
func (a *Attempt) Copies() int { return a.copies }

// WithCopies has it send n.
func (a *Attempt) WithCopies(n int) *Attempt {
	a.copies = n
	return a
}

// Registered counts what waits for the end of ctx, which is of [context.WithCancel], or of the present stream.
func (s *Streams) Registered(ctx context.Context) (n int) {
	for _, ctx := range []context.Context{ctx, s.stream.end} {
		n += reflect.ValueOf(ctx).Elem().FieldByName("children").Len()
	}
	return n
}

// Dialed reports whether the stream has had a connection of its own.
func (s *KeepAlive) Dialed() bool { return s.own != nil }
