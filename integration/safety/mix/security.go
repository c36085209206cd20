package mix

import (
	"context"
	"errors"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/leasefence/leasefence/integration/faults"
	"github.com/leasefence/leasefence/integration/pki"
)

// securityFaults take from a client its password, certificate or permission.
func securityFaults() []kind {
	return []kind{
		{"password changed", onClient(changePassword)},
		{"permission revoked", onClient(revokePermission)},
		{"certificate replaced", onClient(replaceCertificate)},
		{"certificate refused", onClient(refuseCertificate)},
	}
}

// forbidden reports whether etcd has refused because the client lacks the permission or is not authenticated.
func forbidden(err error) bool {
	return errors.Is(err, rpctypes.ErrPermissionDenied) || errors.Is(err, rpctypes.ErrAuthFailed)
}

// changePassword leaves a client with an old password and with auth tokens that no longer work.
func changePassword(s *strike, c *client) bool {
	change := func(ctx context.Context, user, password string) error {
		_, err := s.etcd.UserChangePassword(ctx, user, password)
		return err
	}
	return s.dispossess(c, rpctypes.ErrAuthFailed,
		func(ctx context.Context, user string) error { return change(ctx, user, "another password") },
		func(ctx context.Context, user string) error { return change(ctx, user, passwordOf(user)) })
}

// revokePermission takes the only permission from a client's role.
func revokePermission(s *strike, c *client) bool {
	return s.dispossess(c, rpctypes.ErrPermissionDenied,
		func(ctx context.Context, user string) error { return forbid(ctx, s.etcd, user) },
		func(ctx context.Context, user string) error { return permit(ctx, s.etcd, user) })
}

// dispossess takes something from a client's user for a while. The fault has met something if the client got the error
// refused meanwhile.
func (s *strike) dispossess(c *client, refused error, take, giveBack func(ctx context.Context, user string) error) bool {
	before := c.in.Failed(refused)
	taken := s.meanwhile(
		func(ctx context.Context) error { return take(ctx, c.id.user) },
		func(ctx context.Context) error { return giveBack(ctx, c.id.user) }, s.lastAny)
	return taken && c.in.Failed(refused) > before
}

// awaitAgreement waits until all members run and follow the same leader, and then for requests that they still forward.
func (s *strike) awaitAgreement() {
	_ = insist(s.life, func(ctx context.Context) error {
		leaders := map[uint64]bool{}
		for _, m := range s.cluster.Members {
			status, err := s.etcd.Status(ctx, m.Endpoint())
			if err != nil {
				return err
			}
			leaders[status.Leader] = true
		}
		if len(leaders) > 1 || leaders[0] {
			return errors.New("no agreement yet")
		}
		return nil
	})
	sleep(s.life, 300*time.Millisecond)
}

// replaceCertificate makes a client reconnect with a new certificate. The fault has met something if a renewal is
// answered after that.
func replaceCertificate(s *strike, c *client) bool {
	cert := s.secured.authority.Issue(s.tb)
	_, shown := c.id.offer(&cert)
	c.each((*faults.Proxy).Cut)
	ctx, cancel := context.WithTimeout(s.ctx, 2*ttl)
	defer cancel()
	select {
	case <-shown:
	case <-ctx.Done():
		return false
	}
	answered := c.in.Answered(faults.LeaseKeepAlive) // all connections are new ones
	return c.in.AwaitAnswered(ctx, faults.LeaseKeepAlive, answered+1) == nil
}

// refuseCertificate makes a client reconnect with a certificate that no member accepts.
func refuseCertificate(s *strike, c *client) bool {
	by, flaws := s.secured.authority, []pki.Flaw{pki.Expired}
	if s.rng.IntN(2) == 0 {
		by, flaws = s.secured.stranger, nil
	}
	cert := by.Issue(s.tb, flaws...)
	good, shown := c.id.offer(&cert)
	c.each((*faults.Proxy).Cut)
	s.lastAny()
	c.id.offer(good)
	return closed(shown)
}
