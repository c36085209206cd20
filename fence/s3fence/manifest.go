package s3fence

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/leasefence/leasefence/fence"
	"github.com/leasefence/leasefence/internal/clip"
)

const (
	manifestVersion = 1

	// The key of a part is the manifest's key, partsSuffix, the token, a hyphen and an id.
	partsSuffix    = ".parts/"
	maxManifestKey = maxKey - len(partsSuffix) - tokenWidth - 1 - idSize

	maxName = 1024
)

// Manifest is a set of objects that change as one. The payload of one fenced object lists them, and replacing that
// object commits a change. The listed objects, its parts, are written first, under unique keys, and never changed.
// Their keys lie below the manifest's own key. A manifest that lists any other key, for example because it was copied,
// is malformed.
//
// A Manifest is safe for concurrent use, by any number of processes.
type Manifest struct {
	bucket *Bucket
	key    string
}

// Part is one object that a manifest lists.
type Part struct {
	Key    string `json:"key"` // in the bucket
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // of the object, lower-case hex
}

// Changes are the changes of one commit. A name is 1 to 1,024 bytes of UTF-8.
type Changes struct {
	Put    map[string][]byte
	Delete []string // names that the manifest does not list are ignored
}

// Snapshot is the content of a manifest at one instant.
type Snapshot struct {
	Parts map[string]Part // by name
	Token fence.Token     // the mark of writers
	Lock  string          // the lock that the manifest follows, "" for none
	ETag  string          // of the manifest

	bucket *Bucket
}

// document is the payload of a manifest.
type document struct {
	Version int             `json:"version"`
	Parts   map[string]Part `json:"parts"`
}

// Manifest returns the manifest at a key, 1 to 971 bytes of UTF-8; its parts are below the key with ".parts/" after it.
// Nothing is sent.
func (b *Bucket) Manifest(key string) (*Manifest, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	if len(key) > maxManifestKey {
		return nil, fmt.Errorf("s3fence: key %.64q has %d bytes, want 1 to %d for a manifest", key, len(key), maxManifestKey)
	}
	return &Manifest{bucket: b, key: key}, nil
}

// Claim starts a tenure as [Bucket.Claim] does. On success no older token can commit.
func (m *Manifest) Claim(ctx context.Context) error { return m.bucket.Claim(ctx, m.key) }

// Move makes the manifest follow the lock that the context names, as [Bucket.Move] does. On success no token of the
// former lock can commit.
func (m *Manifest) Move(ctx context.Context) error { return m.bucket.Move(ctx, m.key) }

// Check reports whether the manifest would accept the context's token now, as [Bucket.Check] does.
func (m *Manifest) Check(ctx context.Context) error { return m.bucket.Check(ctx, m.key) }

// ClaimRead starts the tenure of a reader as [Bucket.ClaimRead] does. On success no older token of a writer can commit.
// A reader of one [Snapshot] needs no claim: the Snapshot has the mark, and its parts do not change.
func (m *Manifest) ClaimRead(ctx context.Context) error { return m.bucket.ClaimRead(ctx, m.key) }

// CheckRead reports whether the context's token of a read lock may still read, as [Bucket.CheckRead] does.
func (m *Manifest) CheckRead(ctx context.Context) error { return m.bucket.CheckRead(ctx, m.key) }

// Read returns the parts that the manifest lists now: none before the first commit.
func (m *Manifest) Read(ctx context.Context) (*Snapshot, error) {
	r, err := m.bucket.read(ctx, m.key)
	if err != nil {
		return nil, m.bucket.explain("read manifest", m.key, err)
	}
	s := &Snapshot{Parts: map[string]Part{}, Token: r.token, Lock: r.lock, ETag: r.etag, bucket: m.bucket}
	if r.state == written {
		if s.Parts, err = parseManifest(m.prefix(), r.payload); err != nil {
			return nil, m.bucket.explain("read manifest", m.key, err)
		}
	}
	return s, nil
}

// Commit applies all changes or none. It writes each new part, without a condition, and then the manifest as
// [Bucket.Update] does, with its errors. Other names in the manifest stay as they are. A reader sees the manifest
// before the commit or after it.
//
// If Commit fails, the parts that it wrote remain as garbage, which no reader sees; see [Manifest.Garbage]. After
// [ErrUnknown] they may be in use; see there how to settle that.
func (m *Manifest) Commit(ctx context.Context, changes Changes) error {
	by, err := m.bucket.admit(ctx, "commit", m.key)
	if err != nil {
		return err
	}
	if err := m.checkChanges(changes); err != nil {
		return err
	}
	// Check before the upload, so that a stale holder leaves no garbage. Update reports an accepted token to the hooks.
	if _, err := m.bucket.look(ctx, "commit", m.key, by); err != nil {
		return m.bucket.tell(ctx, m.key, by, err)
	}
	parts := make(map[string]Part, len(changes.Put))
	for _, name := range slices.Sorted(maps.Keys(changes.Put)) {
		part, err := m.upload(ctx, by.token, changes.Put[name])
		if err != nil {
			return m.bucket.explain(fmt.Sprintf("commit: upload %.64q to", name), m.key, err)
		}
		parts[name] = part
	}
	return m.bucket.Update(ctx, m.key, func(old []byte) ([]byte, error) {
		doc := document{Version: manifestVersion, Parts: map[string]Part{}}
		if old != nil {
			listed, err := parseManifest(m.prefix(), old)
			if err != nil {
				return nil, err
			}
			doc.Parts = listed
		}
		for _, name := range changes.Delete {
			delete(doc.Parts, name)
		}
		maps.Copy(doc.Parts, parts)
		return json.Marshal(doc)
	})
}

// upload writes a part. It needs no condition: the key is unique, and readers see only parts that are listed.
func (m *Manifest) upload(ctx context.Context, token fence.Token, payload []byte) (Part, error) {
	sum := sha256.Sum256(payload)
	part := Part{
		Key:    m.prefix() + digits(token) + "-" + newID(),
		Size:   int64(len(payload)),
		SHA256: hex.EncodeToString(sum[:]),
	}
	_, err := m.bucket.client.PutObject(ctx, &s3.PutObjectInput{
		Bucket: &m.bucket.name, Key: &part.Key, Body: bytes.NewReader(payload),
	})
	return part, err
}

func (m *Manifest) prefix() string { return m.key + partsSuffix }

func (m *Manifest) checkChanges(changes Changes) error {
	for _, name := range slices.Sorted(maps.Keys(changes.Put)) {
		if slices.Contains(changes.Delete, name) {
			return fmt.Errorf("s3fence: commit %q: Changes has %.64q in Put and in Delete, want one of them",
				m.bucket.resource(m.key), name)
		}
		if err := checkName("Changes.Put", name); err != nil {
			return err
		}
		if err := m.bucket.checkSize("commit", m.key, changes.Put[name]); err != nil {
			return err
		}
	}
	for _, name := range changes.Delete {
		if err := checkName("Changes.Delete", name); err != nil {
			return err
		}
	}
	return nil
}

// Get reads a part by its name and compares its size and checksum with the manifest's. Later commits do not change it;
// it stays readable until it is deleted. The error matches [ErrNoObject] if the snapshot does not list the name or the
// part is gone, and [ErrMalformed] if the part differs.
func (s *Snapshot) Get(ctx context.Context, name string) ([]byte, error) {
	part, ok := s.Parts[name]
	if !ok {
		return nil, fmt.Errorf("s3fence: get part %.64q: %w: the manifest does not list it", name, ErrNoObject)
	}
	payload, err := s.bucket.readPart(ctx, part)
	if err != nil {
		return nil, s.bucket.explain(fmt.Sprintf("get part %.64q", name), part.Key, err)
	}
	return payload, nil
}

func (b *Bucket) readPart(ctx context.Context, part Part) ([]byte, error) {
	if part.Size > b.opts.MaxSize {
		return nil, fmt.Errorf("part has %d bytes, want at most Options.MaxSize, %d", part.Size, b.opts.MaxSize)
	}
	payload, etag, err := b.fetch(ctx, part.Key, "", part.Size+1)
	if err != nil {
		return nil, err
	}
	if etag == "" {
		return nil, ErrNoObject
	}
	if sum := sha256.Sum256(payload); int64(len(payload)) != part.Size || hex.EncodeToString(sum[:]) != part.SHA256 {
		return nil, fmt.Errorf("%w: the part's size or checksum differs from the manifest's", ErrMalformed)
	}
	return payload, nil
}

// parseManifest parses a manifest's payload strictly: a commit must not replace what this version does not understand,
// and a manifest must not make its readers fetch keys that are not parts below the prefix.
func parseManifest(prefix string, payload []byte) (map[string]Part, error) {
	var doc document
	d := json.NewDecoder(bytes.NewReader(payload))
	d.DisallowUnknownFields()
	if err := d.Decode(&doc); err != nil {
		return nil, fmt.Errorf("%w: manifest: %s", ErrMalformed, clip.To(err.Error(), 128)) // the text quotes unknown fields
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: manifest: data after its end", ErrMalformed)
	}
	if doc.Version != manifestVersion || doc.Parts == nil {
		return nil, fmt.Errorf("%w: manifest: version %d, want %d, and parts", ErrMalformed, doc.Version, manifestVersion)
	}
	for name, p := range doc.Parts {
		sum, err := hex.DecodeString(p.SHA256)
		rest, below := strings.CutPrefix(p.Key, prefix)
		_, written := partToken(rest)
		if err != nil || len(sum) != sha256.Size || p.Size < 0 || !below || !written || checkName("name", name) != nil {
			return nil, fmt.Errorf("%w: manifest: part %.32q is {%.32q, %d, %.32q}, want a part's key below %.32q, "+
				"a size of 0 or more and 64 hex digits",
				ErrMalformed, name, p.Key, p.Size, p.SHA256, prefix)
		}
	}
	return doc.Parts, nil
}
