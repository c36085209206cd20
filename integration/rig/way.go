package rig

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

// Way is a way to hold a name.
type Way struct {
	Name string
	// Take waits until the caller holds the name.
	Take func(ctx context.Context, s *lease.Session, name string) (*Hold, error)
}

// Ways are all ways to hold a name.
var Ways = []Way{{"lock", lock}, {"election", lead}}

// Hold is a lock or a leadership.
type Hold struct {
	handle
	// Free releases the name.
	Free func(context.Context) error
}

type handle interface {
	Token() fence.Token
	Context() context.Context
	Err() error
	Key() string
	IsOwner() clientv3.Cmp
}

func lock(ctx context.Context, s *lease.Session, name string) (*Hold, error) {
	l, err := s.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	return &Hold{l, l.Unlock}, nil
}

func lead(ctx context.Context, s *lease.Session, name string) (*Hold, error) {
	l, err := election.Campaign(ctx, s, name, election.Options{})
	if err != nil {
		return nil, err
	}
	return &Hold{l, l.Resign}, nil
}
