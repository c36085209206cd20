package load_test

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/integration/etcdtest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// ledger is a resource in memory, behind a fence.
type ledger struct {
	guard fence.Guard

	mu       sync.Mutex // guards the field below
	accepted []fence.Token
}

// write is a tenure: a claim and a write.
func (l *ledger) write(token fence.Token) error {
	if err := l.guard.Claim("r", token); err != nil {
		return err
	}
	return l.guard.Do("r", token, func() error {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.accepted = append(l.accepted, token)
		return nil
	})
}

// check checks that no lower token was accepted after a higher one. Nothing writes any more.
func (l *ledger) check(t *testing.T) {
	t.Helper()
	for i := 1; i < len(l.accepted); i++ {
		require.GreaterOrEqual(t, l.accepted[i], l.accepted[i-1], "a lower token was accepted, write %d", i)
	}
}
