package fence_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

// Holders overlap in all verbs, and their waits are cancelled at random. Nothing else guards their writes, so the race
// detector sees two functions that run at once.
func TestGuard_random(t *testing.T) {
	var g fence.Guard
	var logs sync.Map // resource → *[]fencetest.Entry
	log := func(resource string) *[]fencetest.Entry {
		l, _ := logs.LoadOrStore(resource, new([]fencetest.Entry))
		return l.(*[]fencetest.Entry)
	}
	form := func(name string, do func(context.Context, string, fence.Token, func() error) error) fencetest.Form {
		return fencetest.Form{
			Name: name, Alone: "alone", Settles: true,
			Write: func(ctx context.Context, resource string, e fencetest.Entry, saw func([]fencetest.Entry)) error {
				return do(ctx, resource, e.Token, func() error {
					l := log(resource)
					seen := slices.Clone(*l)
					saw(seen)
					if err := ctx.Err(); err != nil {
						return err
					}
					*l = append(seen, e) // a function that ran meanwhile has written in vain
					return nil
				})
			},
		}
	}
	fencetest.Random(t, fencetest.Store{
		Forms: []fencetest.Form{
			form("DoContext", g.DoContext),
			form("Do", func(_ context.Context, resource string, token fence.Token, fn func() error) error {
				return g.Do(resource, token, fn)
			}),
		},
		Claims: []func(context.Context, string) error{
			writing(g.CheckContext),
			writing(bare(g.Claim)),
			writing(bare(func(resource string, token fence.Token) error {
				return g.Load(map[string]fence.Token{resource: token})
			})),
		},
		Entries: func(ctx context.Context, resource string) (all []fencetest.Entry, err error) {
			token, _ := fence.FromContext(ctx)
			err = g.Do(resource, token, func() error {
				all = slices.Clone(*log(resource))
				return nil
			})
			return all, err
		},
		Ordered: true,
		Again:   func(error) bool { return false },
	})
}
