package redisfence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Finding is a server setting with which marks can be lost or writes refused.
type Finding struct {
	Server  string // the address that the client uses
	Setting string // for instance "maxmemory_policy"
	Value   string // "unknown" if the server does not report it
	Effect  string // what can happen, and what to set
}

// String is one line for a log.
func (f Finding) String() string {
	return fmt.Sprintf("%s: %s is %s: %s", f.Server, f.Setting, f.Value, f.Effect)
}

// Probe reads the settings of the server, or of every primary of a cluster, and returns those that are unsafe for
// marks, sorted. Call it at start, and log the findings or refuse to start. It sends INFO and CONFIG GET. If the server
// forbids CONFIG, one finding is that appendfsync is unknown. On any other error Probe returns no findings.
//
// No findings do not mean that marks cannot be lost: settings change, and an operator can delete a mark.
func (m *Marks) Probe(ctx context.Context) ([]Finding, error) {
	if m == nil || m.client == nil {
		return nil, errors.New("redisfence: Marks is nil or zero, want one created by New")
	}
	var (
		mu  sync.Mutex // guards all: the client asks the servers of a cluster concurrently
		all []Finding
	)
	each := func(ctx context.Context, c *redis.Client) error {
		found, err := probe(ctx, c)
		if err != nil {
			return fmt.Errorf("redisfence: probe %s: %w", c.Options().Addr, err)
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, found...)
		return nil
	}
	var err error
	if c, ok := m.client.(*redis.ClusterClient); ok {
		err = c.ForEachMaster(ctx, each)
	} else {
		err = each(ctx, m.client.(*redis.Client))
	}
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Server, b.Server), cmp.Compare(a.Setting, b.Setting))
	})
	return all, nil
}

func probe(ctx context.Context, c *redis.Client) ([]Finding, error) {
	sections, err := c.InfoMap(ctx).Result()
	if err != nil {
		return nil, err
	}
	config, err := c.ConfigGet(ctx, "*appendfsync*").Result()
	if _, refused := errors.AsType[redis.Error](err); err != nil && !refused {
		return nil, err
	}
	info := map[string]string{}
	for _, section := range sections {
		maps.Copy(info, section)
	}
	maps.Copy(info, config)
	return judge(c.Options().Addr, info), nil
}

// judge gets the fields of INFO and the settings of CONFIG GET.
func judge(server string, info map[string]string) []Finding {
	var found []Finding
	add := func(setting, effect string) {
		value := cmp.Or(info[setting], "unknown")
		found = append(found, Finding{Server: server, Setting: setting, Value: value, Effect: effect})
	}
	if p := info["maxmemory_policy"]; p == "" || strings.HasPrefix(p, "allkeys-") {
		add("maxmemory_policy", "marks are evicted when maxmemory is reached: set noeviction")
	}
	if info["role"] != "master" {
		add("role", "a replica refuses writes, and lags behind: connect to the primary")
	}
	if info["aof_enabled"] != "1" {
		add("aof_enabled", "a restart restores the marks of the last snapshot or loses them: set appendonly yes")
	} else if info["appendfsync"] != "always" {
		add("appendfsync", "a crash of the machine loses the last marks and writes: set always")
	} else if info["no-appendfsync-on-rewrite"] == "yes" {
		add("no-appendfsync-on-rewrite", "while the server saves, a crash of the machine loses marks and writes: set no")
	}
	replicas, err := strconv.Atoi(info["connected_slaves"])
	if err != nil || replicas > 0 {
		add("connected_slaves", "a fail-over loses the marks that the promoted replica did not receive")
	}
	return found
}
