package etcdproc

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Metrics returns what a server counts, by the name of each metric with its labels, as in the text format of Prometheus:
// a line for each, with its value after the last space. The server's metrics of requests do not count this one.
func Metrics(ctx context.Context, client *http.Client, server string) (map[string]float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	req.Close = true // leave no connection behind
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("etcdproc: read metrics: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("etcdproc: read metrics: status %s", resp.Status)
	}
	all, lines := map[string]float64{}, bufio.NewScanner(resp.Body)
	for lines.Scan() {
		line := lines.Text()
		if end := strings.LastIndexByte(line, ' '); end >= 0 && line[0] != '#' {
			if all[line[:end]], err = strconv.ParseFloat(line[end+1:], 64); err != nil {
				return nil, fmt.Errorf("etcdproc: read metrics: %q: %w", line, err)
			}
		}
	}
	return all, lines.Err()
}
