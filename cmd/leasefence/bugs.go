package main

import (
	"fmt"
	"strings"

	"github.com/coreos/go-semver/semver"
)

// bug is a known bug of etcd. TestBugs_areThoseOfTheDocuments holds the list to the one in SECURITY.md.
type bug struct {
	name  string
	what  string
	fixed []string // the first fixed release of each minor version
}

var bugs = []bug{
	{"CVE-2026-33343", "nested transactions bypass all permissions on keys", []string{"3.4.42", "3.5.28", "3.6.9"}},
	{"CVE-2026-33413", "lease calls, alarms, compaction and the member list without authentication", []string{"3.4.42", "3.5.28", "3.6.9"}},
	{"CVE-2026-44283", "previous values read, and leases attached, in transactions without permission", []string{"3.4.44", "3.5.30", "3.6.11"}},
	{"CVE-2026-73499", "whoever may read one key may watch all keys after it", []string{"3.5.33", "3.6.14", "3.7.1"}},
	{"CVE-2026-73500", "connections that never begin their TLS handshake exhaust memory", []string{"3.5.33", "3.6.14", "3.7.1"}},
	{"CVE-2023-32082", "names of keys on a lease shown without permission", []string{"3.4.26", "3.5.9"}},
	{"pull request 20590", "a renewal is acknowledged though the lease has just been revoked", []string{"3.4.38", "3.5.23", "3.6.5"}},
}

// The oldest version and the newest minor version that leasefence is tested with, as in docs/etcd.md.
const (
	oldestTested = "3.4.23"
	newestTested = 7
)

// sound are the first releases that have none of the bugs.
const sound = "3.5.33, 3.6.14 or 3.7.1"

// in reports whether v has the bug. A minor version after the last that was fixed never had it.
func (b bug) in(v semver.Version) bool {
	newest := int64(0)
	for _, text := range b.fixed {
		f := semver.New(text)
		newest = max(newest, f.Minor)
		if f.Minor == v.Minor {
			return v.LessThan(*f)
		}
	}
	return v.Minor < newest
}

// judge makes the finding on a server's version.
func judge(text string) finding {
	f := passed("version", "etcd %s", text)
	v, err := semver.NewVersion(text)
	switch {
	case err != nil || v.Major != 3:
		return warn("version", fmt.Sprintf("etcd %q: nothing is known about this version", text), "Use a release of etcd 3.7.")
	case v.LessThan(*semver.New(oldestTested)):
		return fail("version", f.Says+", older than all versions that leasefence is tested with", "Update to a release of etcd 3.7.")
	case v.Minor > newestTested:
		return warn("version", fmt.Sprintf("%s: leasefence is tested with releases up to 3.%d", f.Says, newestTested),
			"Look for a newer leasefence.")
	}
	var said []string
	for _, b := range bugs {
		if b.in(*v) {
			said = append(said, fmt.Sprintf("%s (%s)", b.what, b.name))
		}
	}
	if len(said) == 0 {
		f.Says += ", without any known bug that matters for locks"
		return f
	}
	return warn("version", f.Says+" has known bugs: "+strings.Join(said, "; "),
		"Update to "+sound+", or to a later release of one of these minor versions.")
}
