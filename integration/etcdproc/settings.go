package etcdproc

import "go.etcd.io/etcd/server/v3/embed"

// Settings are those of a server that are not as etcd has them by default. The zero value of a field is etcd's default.
type Settings struct {
	MaxTxnOps uint // --max-txn-ops
}

func (s Settings) apply(cfg *embed.Config) {
	if s.MaxTxnOps > 0 {
		cfg.MaxTxnOps = s.MaxTxnOps
	}
}

// Settings are those of the server's present or next run.
func (p *Process) Settings() Settings { return p.order.Settings }
