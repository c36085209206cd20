package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func (a *app) doctorCommand() *cobra.Command {
	d := doctor{app: a, clusters: map[uint64][]string{}}
	cmd := &cobra.Command{
		Use:   "doctor [PREFIX]",
		Short: "Check etcd, and the keys below a prefix, for problems that affect locks",
		Long: `doctor checks etcd and the keys whose names begin with PREFIX, and reports its findings and what to do about them: versions with
known bugs, the time of a commit through each endpoint against a tenth of --ttl, alarms, the size of the database and its quota,
whether all endpoints belong to one cluster, the smallest TTL that etcd grants, leases and their keys, stray keys, and what this
user may do. Checks that it has no permission for are reported as NOT CHECKED. To measure commits it puts a key below
PREFIX~doctor/, on a lease, and deletes it.

The exit code is 1 if a check FAILs.`,
		Example: `  leasefence doctor
  leasefence doctor jobs/ --ttl 30s --endpoints 10.0.0.1:2379,10.0.0.2:2379,10.0.0.3:2379
  leasefence doctor jobs/ -o json | jq '.findings[] | select(.level != "OK")'`,
		Args: thenPrefix(0),
		RunE: func(cmd *cobra.Command, args []string) error {
			d.prefix = prefixIn(args, 0)
			if d.ttl < time.Second {
				return usageError("--ttl is %v, want 1s or more", d.ttl)
			}
			return a.use(func(client *clientv3.Client) error {
				d.client = client
				return d.run(cmd.Context())
			})
		},
	}
	cmd.Flags().DurationVar(&d.ttl, "ttl", 10*time.Second, "the TTL of your locks")
	return cmd
}

// The levels of findings.
const (
	levelOK   = "OK"
	levelWarn = "WARN"
	levelFail = "FAIL"
)

type finding struct {
	Level    string   `json:"level"`
	Check    string   `json:"check"`
	Endpoint string   `json:"endpoint,omitempty"`
	Says     string   `json:"says"`
	Do       string   `json:"do,omitempty"`
	Run      []string `json:"run,omitempty"` // commands for it, for a POSIX shell
}

func passed(check, format string, args ...any) finding {
	return finding{Level: levelOK, Check: check, Says: fmt.Sprintf(format, args...)}
}

func warn(check, says, do string, run ...string) finding {
	return finding{Level: levelWarn, Check: check, Says: says, Do: do, Run: run}
}

func fail(check, says, do string, run ...string) finding {
	return finding{Level: levelFail, Check: check, Says: says, Do: do, Run: run}
}

// doctor is one run of the checks.
type doctor struct {
	app    *app
	client *clientv3.Client
	prefix string
	ttl    time.Duration

	endpoint string // that is being checked; empty for checks of the cluster
	findings []finding
	clusters map[uint64][]string // the endpoints that have answered, by the ID of their cluster
}

func (d *doctor) add(f finding) {
	f.Endpoint = d.endpoint
	d.findings = append(d.findings, f)
}

// check does one check, which ends after --command-timeout.
func (d *doctor) check(ctx context.Context, name string, do func(context.Context) error) {
	ctx, cancel := d.app.bounded(ctx)
	defer cancel()
	if err := do(ctx); err != nil {
		d.add(d.unchecked(name, err))
	}
}

func (d *doctor) run(ctx context.Context) error {
	serves := false
	for _, d.endpoint = range d.app.etcd.endpoints {
		serves = d.member(ctx) || serves
	}
	d.endpoint = ""
	d.oneCluster()
	if !serves {
		d.add(warn("everything else", "NOT CHECKED: no endpoint serves locks", "Run doctor again when an endpoint does."))
		return d.report()
	}
	d.check(ctx, "alarms", d.alarms)
	d.check(ctx, "smallest TTL", d.smallestTTL)
	d.check(ctx, "authentication", d.authentication)
	d.check(ctx, "permissions", d.mayRead)
	d.check(ctx, "permissions", d.mayWrite)
	d.keys(ctx)
	return d.report()
}

func (d *doctor) report() error {
	count := map[string]int{}
	for _, f := range d.findings {
		count[f.Level]++
	}
	all := map[string]any{"findings": d.findings, "ok": count[levelOK], "warn": count[levelWarn], "fail": count[levelFail]}
	if err := d.app.print(all, d.text(count)); err != nil {
		return err
	}
	if count[levelFail] > 0 {
		return &exitError{code: exitFailed}
	}
	return nil
}

func (d *doctor) text(count map[string]int) string {
	var text strings.Builder
	for _, f := range d.findings {
		check := f.Check
		if f.Endpoint != "" {
			check += " of " + f.Endpoint
		}
		fmt.Fprintf(&text, "%-5s %s: %s\n", f.Level, check, f.Says)
		if f.Do != "" {
			fmt.Fprintf(&text, "      -> %s\n", f.Do)
		}
		for _, command := range f.Run {
			fmt.Fprintf(&text, "         %s\n", command)
		}
	}
	fmt.Fprintf(&text, "%d OK, %d WARN, %d FAIL\n", count[levelOK], count[levelWarn], count[levelFail])
	return text.String()
}

// shell is a command line for a POSIX shell with name as its last argument. Somebody else may have chosen the name, so
// it is quoted; if it has invisible characters, shell gives no command, since people could not see what they paste.
func shell(command, name string) string {
	if harmless(name) != name {
		return fmt.Sprintf("(no command is given for %s: it has invisible characters)", harmless(name))
	}
	return command + " -- '" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}

// unchecked makes the finding for a check that failed with err.
func (d *doctor) unchecked(check string, err error) finding {
	says, do := "NOT CHECKED: "+harmless(err.Error()), "Look into that error, and run doctor again."
	switch {
	case nobody(err):
		says, do = "NOT CHECKED: etcd answers only users, and no user is given", giveUser
	case denied(err):
		says = "NOT CHECKED: " + d.user() + " has no permission for this check"
		do = "Run doctor as a user with the role root, or with permission on the prefix."
	case errors.Is(err, context.DeadlineExceeded):
		do = "Raise --command-timeout, or find out why etcd is slow."
	}
	return warn(check, says, do)
}

// giveUser is what to do if etcd wants a user and none is given.
const giveUser = "Give doctor a --user, or a --cert that names one, and the same to the processes that lock."

// nobody reports whether etcd has refused a request because no user is given.
func nobody(err error) bool { return errors.Is(err, rpctypes.ErrUserEmpty) }

// denied reports whether etcd has refused a request for want of permission or of a valid user.
func denied(err error) bool {
	return slices.ContainsFunc([]error{
		rpctypes.ErrPermissionDenied, rpctypes.ErrPermissionNotGranted, rpctypes.ErrUserEmpty, rpctypes.ErrAuthFailed,
		rpctypes.ErrInvalidAuthToken, rpctypes.ErrRootRoleNotExist,
	}, func(refusal error) bool { return errors.Is(err, refusal) })
}

// user names the user in a finding.
func (d *doctor) user() string {
	name, _, _ := strings.Cut(d.app.etcd.user, ":")
	if name == "" {
		return "this user"
	}
	return "user " + harmless(name)
}

// below names the checked range of keys in a finding.
func (d *doctor) below() string {
	if d.prefix == "" {
		return "all keys"
	}
	return "keys that begin with " + harmless(d.prefix)
}
