package integration_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
	"go.uber.org/goleak"
)

const (
	serveEnv = "S3FENCE_SERVE" // the folder that a process started by launch serves

	access, secret = "access", "secretsecret"
	region         = "us-east-1"

	// patience bounds the wait for an event; it is far longer than any event takes.
	patience = time.Minute
)

// server is shared by all tests.
var server *gateway

func TestMain(m *testing.M) {
	if dir := os.Getenv(serveEnv); dir != "" {
		if err := serve(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	server, err = launch()
	if err != nil {
		return 1, err
	}
	code = m.Run()
	if err := server.stop(); err != nil {
		return 1, err
	}
	if code == 0 {
		err = goleak.Find()
	}
	return code, err
}

// gateway is a versitygw in a separate process.
type gateway struct {
	dir    string
	stdin  io.Closer // closing it stops the process
	cmd    *exec.Cmd
	output bytes.Buffer
}

// launch starts a gateway and waits until it answers.
func launch() (_ *gateway, err error) {
	// Not a test's folder: the server outlives the tests, and a socket's path has to be short.
	dir, err := os.MkdirTemp("", "s3fence")
	if err != nil {
		return nil, err
	}
	g := &gateway{dir: dir}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.stop())
		}
	}()
	g.cmd = exec.Command(os.Args[0]) //nolint:gosec // this program
	g.cmd.Env = append(os.Environ(), serveEnv+"="+dir)
	g.cmd.Stdout, g.cmd.Stderr = &g.output, &g.output
	if g.stdin, err = g.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := g.cmd.Start(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		conn, err := g.dial(ctx)
		if err == nil {
			return g, conn.Close()
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("the server does not answer: %w", err)
		}
	}
}

func (g *gateway) socket() string { return filepath.Join(g.dir, "s3") }

func (g *gateway) dial(ctx context.Context) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", g.socket())
}

// transport returns a transport that connects to the gateway, whatever the address.
func (g *gateway) transport() *http.Transport {
	return &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return g.dial(ctx) },
		MaxIdleConnsPerHost: 64,
	}
}

func (g *gateway) stop() error {
	var err error
	if g.cmd != nil && g.cmd.Process != nil {
		_ = g.stdin.Close()
		if err = g.cmd.Wait(); err != nil {
			err = fmt.Errorf("%w: %.500s", err, g.output.String())
		}
	}
	return errors.Join(err, os.RemoveAll(g.dir))
}

// serve runs a gateway until standard input ends, at the latest with the process that started it.
func serve(dir string) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0) // the gateway's own shutdown would wait for connections
	}()
	data := filepath.Join(dir, "data")
	if err := os.MkdirAll(data, 0o700); err != nil {
		return err
	}
	if err := new(meta.XattrMeta).Test(data); err != nil {
		return fmt.Errorf("the folder for temporary files has no extended attributes: %w", err)
	}
	backend, err := posix.New(data, meta.XattrMeta{}, posix.PosixOpts{Concurrency: 256})
	if err != nil {
		return err
	}
	return embedgw.RunVersityGW(ctx, backend, &embedgw.Config{
		RootUserAccess: access, RootUserSecret: secret, Region: region,
		Ports: []string{filepath.Join(dir, "s3")}, MaxConnections: 4096, MaxRequests: 4096, MultipartMaxParts: 10000,
		Quiet: true, KeepAlive: true,
	})
}
