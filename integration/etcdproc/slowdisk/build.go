package slowdisk

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Build builds the server in dir and returns the file, for etcdproc.Options.Program. It needs the go command, and must
// be called in a folder of this module, where tests run. The first build takes a minute or two; Go's build cache keeps
// the result.
func Build(ctx context.Context, dir string) (string, error) {
	program := filepath.Join(dir, "slowdisk")
	mod, err := modfile(ctx, dir)
	if err != nil {
		return "", fmt.Errorf("slowdisk: %w", err)
	}
	const server = "github.com/leasefence/leasefence/integration/etcdproc/slowdisk/server"
	if _, err := run(ctx, "build", "-modfile", mod, "-o", program, server); err != nil {
		return "", fmt.Errorf("slowdisk: %w", err)
	}
	return program, nil
}

// The code that is inserted into etcd's write-ahead log, and the line before which it is inserted.
const (
	syncCall = "\terr := fileutil.Fdatasync(w.tail().File)\n"
	sleep    = "\tsleepBeforeSync(w.dir)\n"
	sleeper  = `package wal

import (
	"os"
	"path/filepath"
	"time"
)

// sleepBeforeSync sleeps for the time in a file beside the data, if there is such a file.
func sleepBeforeSync(dir string) {
	text, err := os.ReadFile(filepath.Dir(filepath.Dir(dir)) + "` + suffix + `")
	if err != nil {
		return
	}
	d, err := time.ParseDuration(string(text))
	if err != nil {
		panic(err)
	}
	time.Sleep(d)
}
`
	suffix = ".fsync" // of the file, after the path of the member's data
)

const etcdServer = "go.etcd.io/etcd/server/v3"

// patched returns a folder with a copy of etcd's server that has the line. It is always the same folder, beside Go's
// build cache, since Go would compile a copy in another folder again.
func patched(ctx context.Context) (string, error) {
	out, err := run(ctx, "list", "-m", "-f", "{{.Dir}}", etcdServer)
	if err != nil {
		return "", err
	}
	original := strings.TrimSpace(string(out))
	if out, err = run(ctx, "env", "GOCACHE"); err != nil {
		return "", err
	}
	cache := filepath.Join(strings.TrimSpace(string(out)), "leasefence")
	name := fmt.Sprintf("%s-%x", filepath.Base(original), sha256.Sum256([]byte(original+sleep+sleeper)))
	copied := filepath.Join(cache, name)
	if _, err := os.Stat(copied); err == nil {
		return copied, nil
	}
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return "", err
	}
	temp, err := os.MkdirTemp(cache, "new-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(temp) }()
	if err := patch(original, temp); err != nil {
		return "", err
	}
	if err := os.Rename(temp, copied); err != nil && !errors.Is(err, fs.ErrExist) { // another process may have made it first
		return "", err
	}
	return copied, nil
}

// patch copies etcd's server and inserts the line into the copy.
func patch(original, etcd string) error {
	if err := os.CopyFS(etcd, os.DirFS(original)); err != nil {
		return err
	}
	wal := filepath.Join(etcd, "storage", "wal")
	source, err := os.ReadFile(filepath.Join(wal, "wal.go"))
	if err != nil {
		return err
	}
	if n := bytes.Count(source, []byte(syncCall)); n != 1 {
		return fmt.Errorf("etcd's wal.go syncs the log in %d places, want 1: it has changed", n)
	}
	slow := bytes.Replace(source, []byte(syncCall), []byte(sleep+syncCall), 1)
	return errors.Join(
		os.Remove(filepath.Join(wal, "wal.go")), // the copy may be as read-only as the original
		os.WriteFile(filepath.Join(wal, "wal.go"), slow, 0o600),
		os.WriteFile(filepath.Join(wal, "sleepbeforesync.go"), []byte(sleeper), 0o600),
	)
}

// modfile writes a go.mod that replaces etcd's server by the patched one.
func modfile(ctx context.Context, dir string) (string, error) {
	etcd, err := patched(ctx)
	if err != nil {
		return "", err
	}
	out, err := run(ctx, "list", "-m", "-f", "{{.GoMod}}")
	if err != nil {
		return "", err
	}
	mod := strings.TrimSpace(string(out))
	text, errMod := os.ReadFile(mod)
	sums, errSum := os.ReadFile(strings.TrimSuffix(mod, ".mod") + ".sum")
	text = fmt.Appendf(text, "\nreplace %s => %s\n", etcdServer, etcd)
	name := filepath.Join(dir, "go.mod")
	return name, errors.Join(errMod, errSum,
		os.WriteFile(name, text, 0o600), os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o600))
}

// run runs the go command and returns its standard output. A workspace, which .ci/test uses, excludes -modfile.
func run(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "GOWORK=off")
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w: %s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

// Set makes the server with this data folder sleep for d before each sync from now on.
func Set(data string, d time.Duration) error {
	// The rename is atomic, so the server never reads half a file.
	next := data + suffix + ".next"
	if err := os.WriteFile(next, []byte(d.String()), 0o600); err != nil {
		return fmt.Errorf("slowdisk: %w", err)
	}
	if err := os.Rename(next, data+suffix); err != nil {
		return fmt.Errorf("slowdisk: %w", err)
	}
	return nil
}
