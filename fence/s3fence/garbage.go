package s3fence

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/leasefence/leasefence/fence"
)

// Garbage returns the keys of parts that no later commit can list: parts that a commit has replaced or deleted, and
// parts of failed commits. All of them were written under a token older than the mark. Parts under the mark's own token
// are left out, since a commit may be about to list them; Garbage returns them once the next tenure has claimed.
//
// A reader with an older [Snapshot] may still need these parts: delete them when no such reader is left. Garbage itself
// deletes nothing.
func (m *Manifest) Garbage(ctx context.Context) ([]string, error) {
	// The order does not matter: once the mark is above a part's token, no commit can add the part to the list.
	snapshot, err := m.Read(ctx)
	if err != nil {
		return nil, err
	}
	inUse := make(map[string]bool, len(snapshot.Parts))
	for _, part := range snapshot.Parts {
		inUse[part.Key] = true
	}
	prefix := m.prefix()
	var garbage []string
	pages := s3.NewListObjectsV2Paginator(m.bucket.client, &s3.ListObjectsV2Input{
		Bucket: &m.bucket.name, Prefix: &prefix,
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, m.bucket.explain("list parts of", m.key, err)
		}
		for _, object := range page.Contents {
			if object.Key == nil || inUse[*object.Key] {
				continue
			}
			if token, ok := partToken(strings.TrimPrefix(*object.Key, prefix)); ok && token < snapshot.Token {
				garbage = append(garbage, *object.Key)
			}
		}
	}
	return garbage, nil
}

// partKey matches the key of a part, without the manifest's prefix.
var partKey = regexp.MustCompile(`^([0-9]{19})-[A-Z2-7]{26}$`)

// partToken returns the token in the key of a part, given without the prefix. It returns false for a key of another
// form.
func partToken(s string) (fence.Token, bool) {
	f := partKey.FindStringSubmatch(s)
	if f == nil {
		return 0, false
	}
	token, err := fence.Parse(strings.TrimLeft(f[1], "0"))
	return token, err == nil
}

func checkName(field, name string) error {
	if len(name) == 0 || len(name) > maxName || !utf8.ValidString(name) {
		return fmt.Errorf("s3fence: %s has the name %.64q of %d bytes, want 1 to %d bytes of UTF-8",
			field, name, len(name), maxName)
	}
	return nil
}
