package fence_test

import (
	"context"
	"testing"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/fencetest"
)

func TestGuard_grants(t *testing.T) {
	var g fence.Guard
	write := func(verb func(string, fence.Token) error) func(context.Context, string) error {
		return func(ctx context.Context, resource string) error {
			token, _ := fence.FromContext(ctx)
			return verb(resource, token)
		}
	}
	read := func(verb func(string, fence.ReadToken) error) func(context.Context, string) error {
		return func(ctx context.Context, resource string) error {
			token, _ := fence.ReadFromContext(ctx)
			return verb(resource, token)
		}
	}
	for name, check := range map[string]func(string, fence.Token) error{
		"Check": g.Check,
		"Do":    func(resource string, t fence.Token) error { return g.Do(resource, t, func() error { return nil }) },
	} {
		t.Run(name, func(t *testing.T) {
			fencetest.Grants(t, fencetest.Verbs{
				Claim: write(g.Claim), Check: write(check), ClaimRead: read(g.ClaimRead), CheckRead: read(g.CheckRead),
			})
		})
	}
}
