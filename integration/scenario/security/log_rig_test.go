package security_test

import (
	"bytes"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/leasefence/leasefence/integration/rig"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

// written collects a log. It is safe for concurrent use.
type written struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (w *written) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(p)
}

// Sync does nothing; zap requires it.
func (w *written) Sync() error { return nil }

func (w *written) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

// await waits until the log contains what.
func (w *written) await(t *testing.T, what string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(w.String(), what) }, rig.Patience, time.Millisecond, what)
}

// secrets are the texts that must not be logged, and what each of them is.
type secrets struct {
	mu  sync.Mutex // guards all
	all map[string]string
}

func (s *secrets) add(what, secret string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.all[secret] = what
	return secret
}

func (s *secrets) addLease(id int64) {
	s.add("a lease ID", strconv.FormatInt(id, 10))
	s.add("a lease ID in hex", strconv.FormatInt(id, 16))
}

// learn adds the lease IDs and tokens in a server's answer.
func (s *secrets) learn(_ string, _, reply any) {
	switch reply := reply.(type) {
	case *etcdserverpb.LeaseGrantResponse:
		s.addLease(reply.ID)
	case *etcdserverpb.AuthenticateResponse:
		s.add("a token", reply.Token)
	}
}
