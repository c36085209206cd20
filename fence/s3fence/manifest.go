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

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/leasefence/leasefence/fence"
)

const (
	manifestVersion = 1

	// A part's key is the manifest's, this, the token, a hyphen and an id.
	partsSuffix    = ".parts/"
	maxManifestKey = maxKey - len(partsSuffix) - tokenWidth - 1 - idSize

	maxName = 1024
)

// Manifest is many objects that change as one: the payload of one fenced object lists them, and replacing it is the
// swap point. The objects it lists, its parts, are written first, under keys that nothing else has, and never changed.
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

// Changes is what one commit makes of the names in a manifest. A name is 1 to 1,024 bytes of UTF-8.
type Changes struct {
	Put    map[string][]byte
	Delete []string // names that are not there do no harm
}

// Snapshot is what a manifest listed at one instant.
type Snapshot struct {
	Parts map[string]Part // by name
	Token fence.Token     // the mark
	ETag  string          // of the manifest

	bucket *Bucket
}

// document is the manifest's payload.
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

// Claim installs a tenure as [Bucket.Claim] does: nobody with an older token commits any more.
func (m *Manifest) Claim(ctx context.Context) error { return m.bucket.Claim(ctx, m.key) }

// Check looks whether the context's token would be accepted now, as [Bucket.Check] does.
func (m *Manifest) Check(ctx context.Context) error { return m.bucket.Check(ctx, m.key) }

// Read returns what the manifest lists now: nothing if it was never committed to.
func (m *Manifest) Read(ctx context.Context) (*Snapshot, error) {
	r, err := m.bucket.read(ctx, m.key)
	if err != nil {
		return nil, m.bucket.explain("read manifest", m.key, err)
	}
	s := &Snapshot{Parts: map[string]Part{}, Token: r.token, ETag: r.etag, bucket: m.bucket}
	if r.state == written {
		if s.Parts, err = parseManifest(r.payload); err != nil {
			return nil, m.bucket.explain("read manifest", m.key, err)
		}
	}
	return s, nil
}

// Commit applies all changes or none. It writes each new part, without a condition, and then the manifest as
// [Bucket.Update] does, with its errors; names that it does not mention stay as they are. A reader sees the manifest
// from before or from after.
//
// If it fails, parts that were written stay behind as garbage, which no reader sees: see [Manifest.Garbage]. After
// [ErrUnknown] they may be in use; read the manifest to learn it.
func (m *Manifest) Commit(ctx context.Context, changes Changes) error {
	token, err := m.bucket.admit(ctx, "commit", m.key)
	if err != nil {
		return err
	}
	if err := m.checkChanges(changes); err != nil {
		return err
	}
	// Early: what a stale holder uploads is garbage.
	if err := m.Check(ctx); err != nil {
		return err
	}
	parts := make(map[string]Part, len(changes.Put))
	for _, name := range slices.Sorted(maps.Keys(changes.Put)) {
		part, err := m.upload(ctx, token, changes.Put[name])
		if err != nil {
			return m.bucket.explain("commit: upload "+name, m.key, err)
		}
		parts[name] = part
	}
	return m.bucket.Update(ctx, m.key, func(old []byte) ([]byte, error) {
		doc := document{Version: manifestVersion, Parts: map[string]Part{}}
		if old != nil {
			listed, err := parseManifest(old)
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

// upload writes a part. It needs no condition: nothing else has its key, and what is not listed is not there.
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

// Get reads a part, by its name, and compares its size and sum with what the manifest says. It is what was committed,
// whatever has been committed since, until somebody deletes it. The error matches [ErrNoObject] if the snapshot does
// not list the name or the part is gone, and [ErrMalformed] if the part differs.
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
	out, err := b.client.GetObject(ctx, &s3.GetObjectInput{Bucket: &b.name, Key: &part.Key})
	if err != nil {
		if errorCode(err) == "NoSuchKey" {
			return nil, ErrNoObject
		}
		return nil, err
	}
	defer out.Body.Close() //nolint:errcheck // It was only read.
	payload, err := io.ReadAll(io.LimitReader(out.Body, part.Size+1))
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(payload); int64(len(payload)) != part.Size || hex.EncodeToString(sum[:]) != part.SHA256 {
		return nil, fmt.Errorf("%w: the part is not what was committed", ErrMalformed)
	}
	return payload, nil
}

// parseManifest reads a manifest's payload, strictly: what cannot be understood must not be committed over.
func parseManifest(payload []byte) (map[string]Part, error) {
	var doc document
	d := json.NewDecoder(bytes.NewReader(payload))
	d.DisallowUnknownFields()
	if err := d.Decode(&doc); err != nil {
		return nil, fmt.Errorf("%w: manifest: %w", ErrMalformed, err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: manifest: there is something after its end", ErrMalformed)
	}
	if doc.Version != manifestVersion || doc.Parts == nil {
		return nil, fmt.Errorf("%w: manifest: version %d, want %d, and parts", ErrMalformed, doc.Version, manifestVersion)
	}
	for name, p := range doc.Parts {
		sum, err := hex.DecodeString(p.SHA256)
		if err != nil || len(sum) != sha256.Size || p.Size < 0 || checkKey(p.Key) != nil || checkName("name", name) != nil {
			return nil, fmt.Errorf("%w: manifest: part %.64q is {%.64q, %d, %.64q}", ErrMalformed, name, p.Key, p.Size, p.SHA256)
		}
	}
	return doc.Parts, nil
}
