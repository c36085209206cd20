package retry

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// KeepAlive renews a lease, in one attempt.
func KeepAlive(ctx context.Context, client *clientv3.Client, id clientv3.LeaseID) (*clientv3.LeaseKeepAliveResponse, error) {
	resp, err := client.KeepAliveOnce(once{ctx}, id) //nolint:contextcheck // once is ctx
	if errors.Is(err, rpctypes.ErrPermissionDenied) {
		return nil, fmt.Errorf("%w (to renew a lease takes permission to write every key of it)", err)
	}
	return resp, explain(err)
}

// once makes KeepAliveOnce live up to its name. After a failure that may pass (a server that is starting, a proxy
// that answers "unavailable") etcd's client 3.7 tries again as long as Err is nil, without a pause: a busy loop.
// The pause is ours to choose. Done is the context's, so that all contexts made of it work as ever.
type once struct {
	context.Context //nolint:containedctx // it is the context
}

func (c once) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	return errOnce
}

var errOnce = fmt.Errorf("lease: one attempt only: %w", context.Canceled)
