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
)

// MaxName is the longest name, in bytes.
const MaxName = 1024

// Entry is one place in the queue of one name.
type Entry struct {
	Prefix string           // of the queue: the name and "/"
	Key    string           // of the contender; see Enter
	Lease  clientv3.LeaseID // to which the key is attached
	After  int64            // a revision that the cluster had reached when the entry was made: its key is created later
	Rev    int64            // the key's create revision; 0 before it has entered
	Shared bool             // of a reader: only writers exclude it
}

// readers is the class of readers. The classes before it, and keys without one, exclude readers; those after it never do.
const readers = "r"

// NewEntry is a place for name that has not entered yet. No two entries may share lease and suffix.
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
	var room [128]byte // mostly enough
	b := append(append(append(room[:0], name...), '/'), class...)
	b = append(strconv.AppendInt(b, int64(lease), 16), '-')
	key := string(append(b, suffix...))
	return Entry{Prefix: key[:len(name)+1], Key: key, Lease: lease}
}

// Held compares true while the entry stands in the queue.
func (e Entry) Held() clientv3.Cmp {
	cmp := clientv3.CreateRevision(e.Key)
	cmp.GetCompare().TargetUnion = &etcdserverpb.Compare_CreateRevision{CreateRevision: e.Rev}
	return cmp
}

// Contends reports whether kv, found below prefix, stands in its queue.
func Contends(prefix string, kv *mvccpb.KeyValue) bool {
	id, ok := leaseIn(prefix, kv.Key)
	return ok && id == kv.Lease
}

// hasForm reports whether a key below prefix is a contender's if it is attached to the lease in its name.
func hasForm(prefix string, key []byte) bool {
	_, ok := leaseIn(prefix, key)
	return ok
}

// leaseIn is the lease that the name of a contender's key tells; false if the key, found below prefix, is none's. After
// the prefix comes a class, a letter from g to z, or none for an exclusive lock; then the lease in hex, and perhaps "-" and
// a suffix. A class that is not known excludes everybody.
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

// Form is what a contender's key tells by its name.
type Form struct {
	Class  string // a letter, or none
	Lease  clientv3.LeaseID
	Suffix string
	Bare   bool // there is no suffix, as in etcd's own keys
	Slot   bool // of a slot of a semaphore, or of one who waits for a permit
}

// FormOf is the form of a key, false if that is none's.
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

// Excludes reports whether contenders of the class make readers wait that come after them.
func (f Form) Excludes() bool { return f.Class < readers }

// notContenders begins what is below a queue's prefix and not for contenders.
const notContenders = "~"

// endOf is where the range of a queue ends.
func endOf(prefix string) string { return prefix + notContenders }

// end is where the range of those ends who exclude e if they are older. For a reader that is before the first reader: hex digits
// and the classes that exclude readers sort before theirs.
func (e Entry) end() string { return e.Prefix + e.last() }

func (e Entry) last() string {
	if e.Shared {
		return readers
	}
	return notContenders
}

// endKey is end in bytes of their own.
func (e Entry) endKey() []byte {
	return append(append(make([]byte, 0, len(e.Prefix)+1), e.Prefix...), e.last()...)
}

// rivals names the queue and who excludes e in it.
func (e Entry) rivals() string {
	if e.Shared {
		return e.end()
	}
	return e.Prefix
}

// outside is any contender of e's kind that does not stand in e's queue.
func (e Entry) outside() Entry { return Entry{Prefix: e.Prefix, Shared: e.Shared} }

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
	case HasReserved(name):
		return fmt.Errorf("%q has a part that begins with \"~\"", name)
	}
	return nil
}

// HasReserved reports whether a part of a name begins with "~": below a name, such keys are for structures of our own.
func HasReserved(name string) bool {
	return strings.HasPrefix(name, "~") || strings.Contains(name, "/~")
}
