package etcd

import (
	"context"
	"reflect"
)

// For the tests in package etcd_test.

// Copies is the number of copies of each request.
func (a *Attempt) Copies() int { return a.copies }

// WithCopies makes the attempt send n copies.
func (a *Attempt) WithCopies(n int) *Attempt {
	a.copies = n
	return a
}

// Registered counts the contexts and functions that wait for the end of ctx, made by [context.WithCancel], or of the
// present stream.
func (s *Streams) Registered(ctx context.Context) (n int) {
	for _, ctx := range []context.Context{ctx, s.stream.life} {
		n += reflect.ValueOf(ctx).Elem().FieldByName("children").Len()
	}
	return n
}

// Dialed reports whether s has made a connection of its own.
func (s *KeepAlive) Dialed() bool { return s.own != nil }
