//go:build unix

package command_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/etcdtest"
	"github.com/leasefence/leasefence/integration/pki"
)

// User and password come from flags, the environment or a file. A flag wins over the environment.
func TestAuth_sources(t *testing.T) {
	t.Parallel()
	addr, client := etcd(t)
	enableAuth(t, client)
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("secret\n"), 0o600))
	for name, tt := range map[string]struct {
		env, args []string
		code      int
	}{
		"flags":         {nil, []string{"--user", "root", "--password", "secret"}, 0},
		"one flag":      {nil, []string{"--user=root:secret"}, 0},
		"file":          {nil, []string{"--user", "root", "--password-file", file}, 0},
		"environment":   {[]string{"ETCDCTL_USER=root", "ETCDCTL_PASSWORD=secret"}, nil, 0},
		"one variable":  {[]string{"ETCDCTL_USER=root:secret"}, nil, 0},
		"the flag wins": {[]string{"ETCDCTL_USER=root", "ETCDCTL_PASSWORD=swordfish"}, []string{"--password", "secret"}, 0},
		"and is wrong":  {[]string{"ETCDCTL_USER=root", "ETCDCTL_PASSWORD=secret"}, []string{"--password", "swordfish"}, 1},
		"nobody":        {nil, nil, 1},
		"file wins":     {[]string{"ETCDCTL_PASSWORD=swordfish"}, []string{"--user", "root", "--password-file", file}, 0},
		"and if wrong":  {[]string{"ETCDCTL_PASSWORD=secret"}, []string{"--user", "root:swordfish"}, 1},
		"one flag wins": {[]string{"ETCDCTL_PASSWORD=swordfish", "ETCDCTL_PASSWORD_FILE=/no/file"}, []string{"--user=root:secret"}, 0},
		"over the user": {[]string{"ETCDCTL_USER=root:swordfish"}, []string{"--password-file", file}, 0},
		"discovery":     {[]string{"ETCDCTL_USER=root:secret", "ETCDCTL_DISCOVERY_SRV=example.com"}, nil, 0}, // there are endpoints
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			env := append(at(addr), tt.env...)
			p := startWith(t, env, append([]string{"ls"}, tt.args...)...)
			require.Equal(t, tt.code, p.end(t))
			require.NotContains(t, p.stderr.String(), "secret")
			require.NotContains(t, p.stderr.String(), "swordfish")
			if tt.code == 1 {
				p = startWith(t, env, append([]string{"lock", "job"}, append(tt.args, "--", "true")...)...)
				require.Equal(t, 75, p.end(t))
			}
		})
	}
}

// Every user of a machine may read the command lines of all processes.
func TestAuth_noPasswordInTheTitle(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		return // other systems have no /proc/PID/cmdline
	}
	addr, client := etcd(t)
	enableAuth(t, client)
	for name, args := range map[string][]string{
		"password": {"--user", "root", "--password", "secret"},
		"with =":   {"--user=root", "--password=secret"},
		"user":     {"--user", "root:secret"},
		"user=":    {"--user=root:secret"},
	} {
		t.Run(name, func(t *testing.T) {
			p := lock(t, addr, append(append([]string{"job"}, args...), "--", "sh", "-c", `cat "/proc/$PPID/cmdline"`, "--password", "mine")...)
			require.Zero(t, p.end(t))
			require.NotContains(t, p.stdout.String(), "secret")
			require.Contains(t, p.stdout.String(), "root")
			require.Contains(t, p.stdout.String(), "mine", "the arguments of CMD stay")
		})
	}
}

// A server that requires client certificates, with etcdctl's three flags for files.
func TestAuth_tls(t *testing.T) {
	t.Parallel()
	authority := pki.NewAuthority(t, "authority")
	files, client := pki.NewFiles(t, authority, authority.Issue(t)), pki.NewFiles(t, authority, authority.Issue(t))
	srv := etcdtest.Start(t, etcdtest.Options{CertFile: files.Cert, KeyFile: files.Key, ClientCAFile: files.Authority})
	env := at(srv.Endpoint())
	pair := []string{"--cert", client.Cert, "--key", client.Key}
	for name, tt := range map[string]struct {
		args []string
		code int
	}{
		"all three":   {append(pair, "--cacert", client.Authority), 0},
		"unchecked":   {append(pair, "--insecure-skip-tls-verify"), 0},
		"no trust":    {append(pair, "--insecure-transport=false"), 1},
		"no identity": {[]string{"--cacert", client.Authority}, 1},
		"no TLS":      {nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"ls"}, tt.args...)
			if tt.code != 0 {
				args = append(args, "--command-timeout", "3s")
			}
			p := startWith(t, env, args...)
			require.Equal(t, tt.code, p.end(t))
		})
	}
	p := startWith(t, append(env, "ETCDCTL_CERT="+client.Cert, "ETCDCTL_KEY="+client.Key, "ETCDCTL_CACERT="+client.Authority), "ls")
	require.Zero(t, p.end(t))
}
