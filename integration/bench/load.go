package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// load is somebody else's work on the same server: small writes to other keys, at a steady rate.
type load struct {
	client *clientv3.Client
	prefix string
	every  time.Duration
	done   atomic.Int64 // writes that the server has confirmed
}

const (
	loadKeys    = 1000
	loadWorkers = 64 // writes under way at the same time, at most
)

// run writes until ctx ends. Writes that are late are made up for, as far as loadWorkers can.
func (l *load) run(ctx context.Context) error {
	var (
		wg    sync.WaitGroup
		once  sync.Once
		first error
		due   = make(chan int)
	)
	for range loadWorkers {
		wg.Go(func() {
			for i := range due {
				if _, err := l.client.Put(ctx, fmt.Sprint(l.prefix, i%loadKeys), "other work"); err != nil {
					if ctx.Err() == nil {
						once.Do(func() { first = fmt.Errorf("load: %w", err) })
					}
					continue
				}
				l.done.Add(1)
			}
		})
	}
	pace(ctx, l.every, func(i int, _ time.Time) bool {
		select {
		case due <- i:
			return true
		case <-ctx.Done():
			return false
		}
	})
	close(due)
	wg.Wait()
	return first
}

// pace calls do at a steady rate until ctx ends or do says so, with a number from 0 on and the time at which that call is
// due. Calls that are late follow each other at once.
func pace(ctx context.Context, every time.Duration, do func(i int, due time.Time) bool) {
	start := time.Now()
	for i := 0; ; i++ {
		due := start.Add(time.Duration(i) * every)
		if sleep(ctx, time.Until(due)) != nil || !do(i, due) {
			return
		}
	}
}

// underLoad measures while a client of its own writes at the given rate. The writes are not counted as requests and
// commits of the locks; fsyncs cannot be told apart.
func underLoad(perSecond int, m measurement) measurement {
	return func(ctx context.Context, t *trial) ([]sample, error) {
		client, err := t.client()
		if err != nil {
			return nil, err
		}
		t.load = &load{client: client, prefix: t.name("other"), every: time.Second / time.Duration(perSecond)}
		loading, stop := context.WithCancel(ctx)
		defer stop()
		result := make(chan error, 1)
		go func() { result <- t.load.run(loading) }()
		samples, err := m(ctx, t)
		stop()
		if loadErr := <-result; err == nil {
			err = loadErr
		}
		return samples, err
	}
}
