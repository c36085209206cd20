package queue

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// MaxName is the longest name, in bytes.
const MaxName = 1024

// Entry is one place in the queue of one name.
type Entry struct {
	Prefix string           // of the queue: the name and "/"
	Key    string           // of the contender; see Enter
	Lease  clientv3.LeaseID // to which the key is attached
	Rev    int64            // the key's create revision; 0 before it has entered
}

// NewEntry is a place for name that has not entered yet. No two entries may share lease and suffix.
func NewEntry(name string, lease clientv3.LeaseID, suffix string) Entry {
	key := name + "/" + strconv.FormatInt(int64(lease), 16) + "-" + suffix
	return Entry{Prefix: key[:len(name)+1], Key: key, Lease: lease}
}

// Held compares true while the entry stands in the queue.
func (e Entry) Held() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(e.Key), "=", e.Rev)
}

// Contends reports whether kv, found below prefix, stands in its queue.
func Contends(prefix string, kv *mvccpb.KeyValue) bool {
	child := strings.TrimPrefix(string(kv.Key), prefix)
	return kv.Lease != 0 && !strings.Contains(child, "/") &&
		strings.HasPrefix(child, strconv.FormatInt(kv.Lease, 16))
}

// stray reports whether kv, no contender, is a direct child of prefix: not the key of a nested name.
func stray(prefix string, kv *mvccpb.KeyValue) bool {
	return !strings.Contains(strings.TrimPrefix(string(kv.Key), prefix), "/")
}

// Below is the part of a key that says whose queue it stands in. What comes after it is most often the ID of a lease.
func Below(key []byte) string { return string(key[:bytes.LastIndexByte(key, '/')+1]) }

// CheckName refuses a name that would not stay inside its own key space or that people could not read.
// The error says what is wrong; the caller adds the field.
func CheckName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("is empty, want 1 to %d bytes", MaxName)
	case len(name) > MaxName:
		return fmt.Errorf("has %d bytes, want 1 to %d", len(name), MaxName)
	case !utf8.ValidString(name):
		return fmt.Errorf("%q is not valid UTF-8", name)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("%q contains NUL", name)
	case strings.HasPrefix(name, "/"), strings.HasSuffix(name, "/"):
		return fmt.Errorf("%q begins or ends with \"/\"", name)
	case strings.Contains(name, "//"):
		return fmt.Errorf("%q contains \"//\"", name)
	}
	return nil
}
