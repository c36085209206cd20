package redisfence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Finding is a setting of a server under which marks can be lost, or writes refused.
type Finding struct {
	Server  string // its address, as the client has it
	Setting string // for instance "maxmemory_policy"
	Value   string // "unknown" if the server does not tell
	Effect  string // what becomes of it, and what to set
}

// String is one line for a log.
func (f Finding) String() string {
	return fmt.Sprintf("%s: %s is %s: %s", f.Server, f.Setting, f.Value, f.Effect)
}

// Probe asks the server, or every primary of a cluster, for the settings that the marks depend on, and returns what
// speaks against them, sorted: call it at start, and log or refuse. It sends INFO and CONFIG GET. A server that forbids
// CONFIG has the finding that appendfsync is unknown; any other error is returned, with no findings.
//
// No findings do not mean that nothing can be lost: settings change, and an operator can delete a mark.
func (f *Fence) Probe(ctx context.Context) ([]Finding, error) {
	if f == nil || f.client == nil {
		return nil, errors.New("redisfence: Fence is nil or zero, want one that New has made")
	}
	var (
		mu  sync.Mutex // guards all: a cluster's servers are asked at the same time
		all []Finding
	)
	probe := func(ctx context.Context, c *redis.Client) error {
		found, err := f.probe(ctx, c)
		if err != nil {
			return fmt.Errorf("redisfence: probe %s: %w", c.Options().Addr, err)
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, found...)
		return nil
	}
	var err error
	if c, ok := f.client.(*redis.ClusterClient); ok {
		err = c.ForEachMaster(ctx, probe)
	} else {
		err = probe(ctx, f.client.(*redis.Client))
	}
	if err != nil {
		return nil, err
	}
	slices.SortFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Server, b.Server), cmp.Compare(a.Setting, b.Setting))
	})
	return all, nil
}

func (f *Fence) probe(ctx context.Context, c *redis.Client) ([]Finding, error) {
	text, err := c.Info(ctx).Result()
	if err != nil {
		return nil, err
	}
	fsync := "unknown"
	config, err := c.ConfigGet(ctx, "appendfsync").Result()
	if _, refused := errors.AsType[redis.Error](err); err != nil && !refused {
		return nil, err
	}
	if v, ok := config["appendfsync"]; ok && err == nil {
		fsync = v
	}
	return f.judge(c.Options().Addr, parseInfo(text), fsync), nil
}

func (f *Fence) judge(server string, info map[string]string, fsync string) []Finding {
	var found []Finding
	add := func(setting, effect string) {
		value := cmp.Or(info[setting], "unknown")
		found = append(found, Finding{Server: server, Setting: setting, Value: value, Effect: effect})
	}
	if p := info["maxmemory_policy"]; p == "" || strings.HasPrefix(p, "allkeys-") {
		add("maxmemory_policy", "marks are evicted once maxmemory is reached: set noeviction")
	}
	if info["role"] != "master" {
		add("role", "a replica refuses writes, and lags behind: connect to the primary")
	}
	if info["aof_enabled"] != "1" {
		add("aof_enabled", "a restart takes marks back to the last snapshot, or loses them: set appendonly yes")
	} else if fsync != "always" {
		info["appendfsync"] = fsync
		add("appendfsync", "a crash of the machine loses the last marks and writes: set always")
	}
	replicas, err := strconv.Atoi(info["connected_slaves"])
	switch {
	case err != nil || replicas < f.opts.WaitReplicas:
		add("connected_slaves", fmt.Sprintf("fewer replicas than Options.WaitReplicas, %d", f.opts.WaitReplicas))
	case replicas > 0:
		add("connected_slaves", "a fail-over loses the marks that have not reached the replica that is promoted")
	}
	return found
}

// parseInfo reads lines "name:value" and leaves out the others, which are headings.
func parseInfo(text string) map[string]string {
	info := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && !strings.HasPrefix(name, "#") {
			info[name] = value
		}
	}
	return info
}
