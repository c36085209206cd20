package integration_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/leasefence/leasefence/election"
	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/lease"
)

// candidateEnv is set for a process that is to be a candidate, and holds its candidacy.
const candidateEnv = "ELECTION_CANDIDATE"

// candidacy is what such a process is told. It prints a line when it leads, for each moment at which it was live, and when
// it is not any more; "resign" and a token on its standard input ends that leadership, the end of the input the process.
type candidacy struct{ Endpoint, Name, Value string }

// beCandidate makes this process a candidate if it was started to be one, and does not return then.
func beCandidate() {
	text, ok := os.LookupEnv(candidateEnv)
	if !ok {
		return
	}
	var c candidacy
	err := json.Unmarshal([]byte(text), &c)
	if err == nil {
		err = c.run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "candidate:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func (c candidacy) run() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{c.Endpoint}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	s, err := lease.NewSession(ctx, client, resolved(lease.Options{TTL: faultTTL}))
	if err != nil {
		return err
	}
	type office struct {
		token fence.Token
		leave func()
	}
	var present atomic.Pointer[office]
	go func() {
		defer cancel()
		for in := bufio.NewScanner(os.Stdin); in.Scan(); {
			var token fence.Token
			_, _ = fmt.Sscanf(in.Text(), "resign %d", &token)
			if o := present.Load(); o != nil && o.token == token { // it may have ended in the meantime
				o.leave()
			}
		}
	}()

	var mu sync.Mutex
	say := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Printf(format+"\n", args...)
	}
	var lives sync.WaitGroup
	err = election.Run(ctx, s, c.Name, election.Options{Value: c.Value, Rejoin: true},
		func(ctx context.Context, token fence.Token) error {
			l, _ := election.FromContext(ctx)
			asked := make(chan struct{})
			present.Store(&office{token, sync.OnceFunc(func() { close(asked) })})
			say("lead %d %s", token, l.Key())
			lives.Go(func() {
				watchLife(ctx, func(at int64) { say("live %d %d", token, at) })
				say("over %d %s", token, causeOf(ctx))
			})
			select {
			case <-asked:
			case <-ctx.Done():
			}
			return nil
		})
	lives.Wait()
	if ctx.Err() == nil {
		return err
	}
	closing, stop := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer stop()
	return s.Close(closing)
}

// inAnotherProcess adds a member in a process of its own, which can be killed.
func (p *party) inAnotherProcess(value string) {
	m := p.connected(value)
	text, err := json.Marshal(candidacy{m.proxy.Addr(), p.name, value})
	require.NoError(p.t, err)
	exe, err := os.Executable()
	require.NoError(p.t, err)
	cmd := exec.Command(exe, "-test.run=^$")
	cmd.Env = append(os.Environ(), candidateEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(p.t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(p.t, err)
	require.NoError(p.t, cmd.Start())

	wait := sync.OnceValue(func() error { return cmd.Wait() })
	read := make(chan struct{})
	go func() {
		defer close(read)
		p.read(m, stdin, stdout)
	}()
	m.kill = func() {
		_ = cmd.Process.Kill() // the error is that it has ended
		<-read
		_ = wait()
		p.members = slices.DeleteFunc(p.members, func(other *member) bool { return other == m })
	}
	m.leave = func() {
		_ = stdin.Close()
		<-read
		p.check(wait(), m)
	}
	p.members = append(p.members, m)
	p.t.Cleanup(m.kill)
}

// read takes in what a process says until its end.
func (p *party) read(m *member, stdin io.Writer, stdout io.Reader) {
	terms := map[fence.Token]*term{}
	for out := bufio.NewScanner(stdout); out.Scan(); {
		word, rest, _ := strings.Cut(out.Text(), " ")
		number, rest, _ := strings.Cut(rest, " ")
		var token fence.Token
		if _, err := fmt.Sscan(number, &token); err != nil {
			p.t.Errorf("%s said %q: %v", m.value, out.Text(), err)
			continue
		}
		switch tm := terms[token]; word {
		case "lead":
			tm = &term{
				member: m, token: token, lease: leaseOf(p.t, p.name, rest),
				resign: func() { _, _ = fmt.Fprintf(stdin, "resign %d\n", token) }, // it may have been killed
			}
			terms[token] = tm
			p.began(tm)
		case "live":
			var at int64
			if _, err := fmt.Sscan(rest, &at); err != nil {
				p.t.Errorf("%s said %q: %v", m.value, out.Text(), err)
			}
			p.live(tm, at)
		case "over":
			p.ended(tm, rest)
			delete(terms, token)
		}
	}
	for _, tm := range terms {
		p.ended(tm, "killed")
	}
}
