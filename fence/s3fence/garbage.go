package s3fence

import (
	"context"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/leasefence/leasefence/fence"
)

// Garbage lists the keys below the manifest's prefix that no manifest will ever list again: parts that a commit has
// replaced or deleted and parts of commits that failed, each written under a token older than the mark. Parts under
// the mark's own token are left out, since a commit may be about to list them: they turn up once the next tenure has
// claimed.
//
// So no clock is needed to know that no commit wants them, but a reader may: one with an older [Snapshot]. Delete them
// when no reader can have one any more. Nothing is deleted here.
func (m *Manifest) Garbage(ctx context.Context) ([]string, error) {
	// Any order would do: once the mark is above a part's token, the part is listed now or never.
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

// partToken returns the token in the last part of a part's key; anything else below the prefix is not ours.
func partToken(s string) (fence.Token, bool) {
	digits, id, found := strings.Cut(s, "-")
	if !found || len(digits) != tokenWidth || !validID(id) {
		return 0, false
	}
	token, err := fence.Parse(strings.TrimLeft(digits, "0"))
	return token, err == nil
}

func checkName(field, name string) error {
	if len(name) == 0 || len(name) > maxName || !utf8.ValidString(name) {
		return fmt.Errorf("s3fence: %s has the name %.64q of %d bytes, want 1 to %d bytes of UTF-8",
			field, name, len(name), maxName)
	}
	return nil
}
