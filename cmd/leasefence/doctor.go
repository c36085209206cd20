package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

func (a *app) doctorCommand() *cobra.Command {
	d := doctor{app: a}
	cmd := &cobra.Command{
		Use:   "doctor [PREFIX]",
		Short: "Check etcd, and what is below a prefix, for what is bad for locks",
		Long: `doctor looks at etcd, and at the keys whose names begin with PREFIX, and says what it has found and what to do about it: versions
and their known bugs, the time of a commit by each endpoint against a tenth of --ttl, alarms, the size of the database and its
quota, whether the endpoints are of one cluster, the smallest TTL that is granted, leases and their keys, stray keys, and what this
user may do. What it is not allowed to check it says, and goes on. To measure commits it puts a key below PREFIX~doctor/, on a lease, and deletes it.

The exit code is 1 if something has been found to FAIL.`,
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
	cmd.Flags().DurationVar(&d.ttl, "ttl", 10*time.Second, "the TTL that your locks have")
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
	Run      []string `json:"run,omitempty"` // commands that do it, for a POSIX shell
}

// doctor is one examination.
type doctor struct {
	app    *app
	client *clientv3.Client
	prefix string
	ttl    time.Duration

	findings []finding
	clusters map[uint64][]string // the endpoints that have answered, by the cluster that they are of
}

func (d *doctor) add(f finding) { d.findings = append(d.findings, f) }

func (d *doctor) run(ctx context.Context) error {
	answers := false
	for _, endpoint := range d.app.etcd.endpoints {
		answers = d.member(ctx, endpoint) || answers
	}
	d.oneCluster()
	if !answers {
		d.add(finding{
			Level: levelWarn, Check: "all else", Says: "NOT CHECKED: no endpoint answers",
			Do: "Run doctor again when one does.",
		})
		return d.report()
	}
	for _, check := range []func(context.Context){d.alarms, d.smallestTTL, d.authentication, d.keys} {
		bounded, cancel := d.app.bounded(ctx)
		check(bounded)
		cancel()
	}
	return d.report()
}

func (d *doctor) report() error {
	count := map[string]int{}
	for _, f := range d.findings {
		count[f.Level]++
	}
	if d.app.output == outputJSON {
		if err := printJSON(d.app.out, map[string]any{
			"findings": d.findings, "ok": count[levelOK], "warn": count[levelWarn], "fail": count[levelFail],
		}); err != nil {
			return err
		}
	} else if err := d.print(count); err != nil {
		return err
	}
	if count[levelFail] > 0 {
		return &exitError{code: exitFailed}
	}
	return nil
}

func (d *doctor) print(count map[string]int) error {
	var text strings.Builder
	for _, f := range d.findings {
		check := f.Check
		if f.Endpoint != "" {
			check += " of " + f.Endpoint
		}
		text.WriteString(wrap(fmt.Sprintf("%-5s %s: %s", f.Level, check, f.Says), d.app.width))
		if f.Do != "" {
			text.WriteString(wrap("      -> "+f.Do, d.app.width))
		}
		for _, command := range f.Run { // not broken: what comes after a break would be a command
			text.WriteString("         " + command + "\n")
		}
	}
	_, err := fmt.Fprintf(d.app.out, "%s%d OK, %d WARN, %d FAIL\n", &text, count[levelOK], count[levelWarn], count[levelFail])
	return err
}

// shell is a command line for a POSIX shell that ends with a name, which others may have chosen. Where that does not show as it
// is, there is no command.
func shell(command, name string) string {
	if harmless(name) != name {
		return fmt.Sprintf("(no command is given for %s: it has characters that do not show)", harmless(name))
	}
	return command + " -- '" + strings.ReplaceAll(name, "'", `'\''`) + "'"
}

// wrap breaks a line between words where it does not fit a terminal.
func wrap(line string, width int) string {
	const indent = "         "
	if width < 4*len(indent) {
		return line + "\n"
	}
	var text strings.Builder
	for len([]rune(line)) > width {
		at := strings.LastIndexByte(string([]rune(line)[:width+1]), ' ')
		if at <= len(indent) {
			break
		}
		text.WriteString(line[:at] + "\n")
		line = indent + line[at+1:]
	}
	return text.String() + line + "\n"
}

// unchecked is the finding where a check could not be made.
func (d *doctor) unchecked(check, endpoint string, err error) finding {
	f := finding{
		Level: levelWarn, Check: check, Endpoint: endpoint, Says: "NOT CHECKED: " + harmless(err.Error()),
		Do: "See what that error is about, and run doctor again.",
	}
	switch {
	case nobody(err):
		f.Says, f.Do = "NOT CHECKED: etcd does not answer who does not say who asks", sayWho
	case denied(err):
		f.Says = "NOT CHECKED: " + d.user() + " is not allowed to"
		f.Do = "Run doctor as a user with the role root, or with permission on the prefix, to have it checked."
	case errors.Is(err, context.DeadlineExceeded):
		f.Do = "Raise --command-timeout, or find out why etcd is slow."
	}
	return f
}

// sayWho is what to do where etcd wants a user, and there is none.
const sayWho = "Give doctor a --user, or a --cert that names one, and those that lock too."

func nobody(err error) bool {
	return errors.Is(err, rpctypes.ErrUserEmpty) || errors.Is(rpctypes.Error(err), rpctypes.ErrUserEmpty)
}

func denied(err error) bool {
	for _, refusal := range []error{
		rpctypes.ErrPermissionDenied, rpctypes.ErrPermissionNotGranted, rpctypes.ErrUserEmpty, rpctypes.ErrAuthFailed,
		rpctypes.ErrInvalidAuthToken, rpctypes.ErrRootRoleNotExist,
	} {
		if errors.Is(err, refusal) || errors.Is(rpctypes.Error(err), refusal) {
			return true
		}
	}
	return false
}

// user is who asks, for people.
func (d *doctor) user() string {
	name, _, _ := strings.Cut(d.app.etcd.user, ":")
	if name == "" {
		return "this user"
	}
	return "user " + harmless(name)
}

// below is the range that is looked at, for people.
func (d *doctor) below() string {
	if d.prefix == "" {
		return "all keys"
	}
	return "keys that begin with " + harmless(d.prefix)
}
