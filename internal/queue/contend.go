package queue

import "go.etcd.io/etcd/api/v3/mvccpb"

// Contends reports whether kv, found below prefix, stands in its queue.
func Contends(prefix string, kv *mvccpb.KeyValue) bool { return contends(prefix, kv) }
