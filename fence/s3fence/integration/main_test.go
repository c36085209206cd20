package integration_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
	"go.uber.org/goleak"
)

const (
	access, secret = "access", "secretsecret"
	region         = "us-east-1"

	// patience bounds the wait for the server; it is far longer than its start takes.
	patience = time.Minute
)

// socket is that of the gateway, which all tests share.
var socket string

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	// Not a test's folder: the server outlives the tests, and a socket's path has to be short.
	dir, err := os.MkdirTemp("", "s3fence")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	socket = filepath.Join(dir, "s3")
	stop, err := serve(filepath.Join(dir, "data"))
	if err != nil {
		return 1, err
	}
	code = m.Run()
	if err = stop(); err == nil && code == 0 {
		// The gateway's library never ends these.
		err = goleak.Find(goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"),
			goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"))
	}
	return code, err
}

func dial(ctx context.Context) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", socket)
}

// newTransport returns a transport that connects to the gateway, whatever the address.
func newTransport() *http.Transport {
	return &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		MaxIdleConnsPerHost: 64,
	}
}

// serve starts a versitygw. It returns when that answers.
func serve(data string) (stop func() error, err error) {
	if err := os.MkdirAll(data, 0o700); err != nil {
		return nil, err
	}
	if err := new(meta.XattrMeta).Test(data); err != nil {
		return nil, fmt.Errorf("the folder for temporary files has no extended attributes: %w", err)
	}
	backend, err := posix.New(data, meta.XattrMeta{}, posix.PosixOpts{Concurrency: 256})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- embedgw.RunVersityGW(ctx, backend, &embedgw.Config{
			RootUserAccess: access, RootUserSecret: secret, Region: region,
			Ports: []string{socket}, MaxConnections: 4096, MaxRequests: 4096, MultipartMaxParts: 10000,
			Quiet: true, KeepAlive: true,
		})
	}()
	stop = func() error { cancel(); return <-ended }
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for range patience / (10 * time.Millisecond) {
		select {
		case <-ticker.C:
		case err := <-ended:
			return nil, err
		}
		if conn, err := dial(ctx); err == nil {
			return stop, conn.Close()
		}
	}
	return nil, errors.Join(errors.New("the server does not answer"), stop())
}
