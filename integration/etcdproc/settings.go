package etcdproc

import "go.etcd.io/etcd/server/v3/embed"

// Settings are options of a server. The zero value of a field means etcd's default.
type Settings struct {
	MaxTxnOps     uint // --max-txn-ops
	UnsafeNoFsync bool // --unsafe-no-fsync

	AuthTokenTTL uint   // --auth-token-ttl, in seconds
	BcryptCost   uint   // --bcrypt-cost
	CertFile     string // --cert-file; with it clients must use TLS, while members talk to each other without
	KeyFile      string // --key-file
	ClientCAFile string // --trusted-ca-file, with --client-cert-auth
}

// Apply changes a configuration of [Member.Config].
func (s Settings) Apply(cfg *embed.Config) {
	if s.MaxTxnOps > 0 {
		cfg.MaxTxnOps = s.MaxTxnOps
	}
	cfg.UnsafeNoFsync = s.UnsafeNoFsync
	if s.AuthTokenTTL > 0 {
		cfg.AuthTokenTTL = s.AuthTokenTTL
	}
	if s.BcryptCost > 0 {
		cfg.BcryptCost = s.BcryptCost
	}
	if s.CertFile == "" {
		return
	}
	cfg.ClientTLSInfo.CertFile, cfg.ClientTLSInfo.KeyFile = s.CertFile, s.KeyFile
	cfg.ClientTLSInfo.TrustedCAFile, cfg.ClientTLSInfo.ClientCertAuth = s.ClientCAFile, s.ClientCAFile != ""
	cfg.ListenClientUrls[0].Scheme, cfg.AdvertiseClientUrls[0].Scheme = "https", "https"
}

// Settings returns the settings of the server's present or next run.
func (p *Process) Settings() Settings { return p.order.Settings }
