package queue

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/leasefence/leasefence/internal/etcd"
)

// MaxName is the longest name, in bytes; a session's prefix may be as long. MaxFullName is for both together, with what
// the names of slots and of a tree's nodes have in addition. It is fence.MaxLock.
const (
	MaxName     = 1024
	MaxFullName = 2304
)

// Entry is one place in the queue of one name.
type Entry struct {
	Prefix string           // of the queue: the name and "/"
	Key    string           // of the contender; see Enter
	Lease  clientv3.LeaseID // to which the key is attached
	After  int64            // a revision that the cluster had reached when the entry was made; the key is created later
	Rev    int64            // the key's create revision; 0 before the entry has entered
	Shared bool             // the entry is a reader's: only writers exclude it

	Disowned bool // an attempt that had entered has asked for the deletion of the key, which is not confirmed
}

// readers is the class of readers. Keys without a class and classes before r exclude readers; classes from r on never
// do.
const readers = "r"

// NewEntry returns an entry for name that has not entered yet. No two entries of a name may have the same lease and
// suffix.
func NewEntry(name string, lease clientv3.LeaseID, suffix string) Entry {
	return newEntry(name, "", lease, suffix)
}

// NewReader is NewEntry for a reader.
func NewReader(name string, lease clientv3.LeaseID, suffix string) Entry {
	e := newEntry(name, readers, lease, suffix)
	e.Shared = true
	return e
}

func newEntry(name, class string, lease clientv3.LeaseID, suffix string) Entry {
	var room [128]byte // enough for most keys
	b := append(append(append(room[:0], name...), '/'), class...)
	b = append(strconv.AppendInt(b, int64(lease), 16), '-')
	key := string(append(b, suffix...))
	return Entry{Prefix: key[:len(name)+1], Key: key, Lease: lease}
}

// Held compares true while the entry is in the queue.
func (e Entry) Held() clientv3.Cmp {
	cmp := clientv3.CreateRevision(e.Key)
	cmp.GetCompare().TargetUnion = &etcdserverpb.Compare_CreateRevision{CreateRevision: e.Rev}
	return cmp
}

// Contends reports whether kv, found below prefix, is a contender of that queue.
func Contends(prefix string, kv *mvccpb.KeyValue) bool {
	id, ok := leaseIn(prefix, kv.Key)
	return ok && id == kv.Lease
}

// hasForm reports whether a key below prefix has the form of a contender's, which it is if it is attached to the
// lease in it.
func hasForm(prefix string, key []byte) bool {
	_, ok := leaseIn(prefix, key)
	return ok
}

// leaseIn returns the lease in the name of a contender's key, or false if the key does not have the form of one; see
// the package's doc for the form. A class that is not known has the form too.
func leaseIn(prefix string, key []byte) (int64, bool) {
	if len(key) < len(prefix) || string(key[:len(prefix)]) != prefix || bytes.IndexByte(key[len(prefix):], '/') >= 0 {
		return 0, false
	}
	child := key[len(prefix):]
	if len(child) > 0 && 'g' <= child[0] && child[0] <= 'z' {
		child = child[1:]
	}
	if i := bytes.IndexByte(child[min(1, len(child)):], '-'); i >= 0 { // a lease may be negative
		child = child[:1+i]
	}
	const longest = "-7fffffffffffffff"
	if len(child) > len(longest) {
		return 0, false
	}
	id, err := strconv.ParseInt(string(child), 16, 64)
	var room [len(longest)]byte
	return id, err == nil && id != 0 && bytes.Equal(strconv.AppendInt(room[:0], id, 16), child)
}

// Form is a contender's key, taken apart.
type Form struct {
	Class  string // a letter, or none
	Lease  clientv3.LeaseID
	Suffix string
	Bare   bool // there is no suffix, as in etcd's own keys
	Slot   bool // the key is of a slot of a semaphore, or of a waiter for a permit
}

// FormOf returns the form of a key, or false if the key does not have a contender's.
func FormOf(key []byte) (f Form, ok bool) {
	prefix := Below(key)
	id, ok := leaseIn(prefix, key)
	if !ok {
		return f, false
	}
	child := string(key[len(prefix):])
	if child[0] > 'f' {
		f.Class, child = child[:1], child[1:]
	}
	f.Lease = clientv3.LeaseID(id)
	suffix, long := strings.CutPrefix(child[len(strconv.FormatInt(id, 16)):], "-")
	f.Suffix, f.Bare = suffix, !long
	mark, rest, _ := strings.Cut(suffix, "-")
	of, err := strconv.Atoi(strings.TrimPrefix(mark, "of"))
	f.Slot = f.Class == "" && err == nil && strings.HasPrefix(suffix, SlotMark(of)) && rest != ""
	return f, true
}

// Excludes reports whether readers wait for older contenders of this class.
func (f Form) Excludes() bool { return f.Class < readers }

// notContenders begins keys below a queue's prefix that are never contenders.
const notContenders = "~"

// endOf is the end of a queue's range.
func endOf(prefix string) string { return prefix + notContenders }

// end is the end of the range of the keys that exclude e if they are older. For a reader the range ends before the
// first reader: hex digits and the classes that exclude readers sort before the readers' class.
func (e Entry) end() string { return e.Prefix + e.last() }

func (e Entry) last() string {
	if e.Shared {
		return readers
	}
	return notContenders
}

// endKey is end as a new slice.
func (e Entry) endKey() []byte {
	return append(append(make([]byte, 0, len(e.Prefix)+1), e.Prefix...), e.last()...)
}

// rivals is the key under which contention keeps what is known of the keys that exclude e.
func (e Entry) rivals() string {
	if e.Shared {
		return e.end()
	}
	return e.Prefix
}

// outside stands for a contender of e's kind that has not entered e's queue.
func (e Entry) outside() Entry { return Entry{Prefix: e.Prefix, Shared: e.Shared} }

// Below returns the part of a key up to its last "/": for a contender's key the prefix of its queue.
func Below(key []byte) string { return string(key[:bytes.LastIndexByte(key, '/')+1]) }

// CheckName returns an error for a name that would leave its own key space or that people could not read. The error
// says what is wrong; the caller adds the field.
func CheckName(name string) error {
	if err := checkText(name, MaxName); err != nil {
		return err
	}
	switch {
	case strings.HasPrefix(name, "/"), strings.HasSuffix(name, "/"):
		return fmt.Errorf("%q begins or ends with \"/\"", name)
	case strings.Contains(name, "//"):
		return fmt.Errorf("%q contains \"//\"", name)
	}
	return checkReserved(name, name)
}

// CheckFullName is CheckName for a name behind a session's prefix, which may begin with "/" and contain "//".
func CheckFullName(name string) error {
	if err := CheckQueueName(name); err != nil {
		return err
	}
	return checkReserved(name, name)
}

// CheckQueueName is CheckFullName for a name as spelled in the keys: slots and nodes have parts that begin with "~".
func CheckQueueName(name string) error {
	if err := checkText(name, MaxFullName); err != nil {
		return err
	}
	if strings.HasSuffix(name, "/") {
		return fmt.Errorf("%q ends with \"/\"", name)
	}
	return checkReserved(name, strings.ReplaceAll(name, "/~", "/"))
}

// checkReserved refuses a name if the form of it has a reserved part.
func checkReserved(name, form string) error {
	if HasReserved(form) {
		return fmt.Errorf("%q has a part that begins with \"~\"", name)
	}
	return nil
}

func checkText(name string, most int) error {
	switch {
	case name == "":
		return fmt.Errorf("is empty, want 1 to %d bytes", most)
	case len(name) > most:
		return fmt.Errorf("has %d bytes, want 1 to %d", len(name), most)
	case !utf8.ValidString(name):
		return fmt.Errorf("%q is not valid UTF-8", name)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("%q contains NUL", name)
	}
	return nil
}

// HasReserved reports whether a part of a name begins with "~": such parts are reserved for this library's own keys.
func HasReserved(name string) bool {
	return strings.HasPrefix(name, "~") || strings.Contains(name, "/~")
}

// To ask a holder to release its lock, a line is appended to the text in the holder's key, which the holder watches
// anyway. The line has the key's create revision, so no text that the holder chose before can be mistaken for it.

func askedLine(rev int64) string { return "\n(asked to release " + strconv.FormatInt(rev, 10) + ")" }

// Asked reports whether a contender was asked to release.
func Asked(kv *mvccpb.KeyValue) bool {
	return strings.HasSuffix(string(kv.Value), askedLine(kv.CreateRevision))
}

// Text returns what a contender has put into its key, without the line that asks it to release.
func Text(kv *mvccpb.KeyValue) string {
	return strings.TrimSuffix(string(kv.Value), askedLine(kv.CreateRevision))
}

// Ask asks the contender with this key and create revision to release. It reports false if the key is gone or was
// taken off its lease. It is one attempt, and repeating it is safe: the line is appended once.
func Ask(a *etcd.Attempt, key string, rev int64) (there bool, err error) {
	resp, err := a.Get(key)
	if err != nil {
		return false, err
	}
	for kv := first(resp.Kvs); kv != nil && kv.CreateRevision == rev && Contends(Below(kv.Key), kv); {
		if Asked(kv) {
			return true, nil
		}
		// The comparison is for a leader that proclaims another value meanwhile, and for a key that another contender
		// uses by now.
		put, err := a.Txn([]clientv3.Cmp{clientv3.Compare(clientv3.ModRevision(key), "=", kv.ModRevision)},
			[]clientv3.Op{clientv3.OpPut(key, Text(kv)+askedLine(rev), clientv3.WithIgnoreLease())}, []clientv3.Op{clientv3.OpGet(key)})
		if err != nil || put.Succeeded {
			return err == nil, err
		}
		kv = first(put.Responses[0].GetResponseRange().Kvs)
	}
	return false, nil
}
