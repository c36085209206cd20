// Package admission has what every store checks before it sends anything.
package admission

import (
	"context"
	"fmt"

	"github.com/leasefence/leasefence/fence"
)

// Token returns the token that ctx carries. The error matches [fence.ErrInvalidToken] if there is none, or if its era is above
// maxEra; see [fence.Token.CheckEra].
func Token(ctx context.Context, maxEra uint16) (fence.Token, error) {
	t, ok := fence.FromContext(ctx)
	if !ok {
		return 0, fmt.Errorf("%w: the context carries none, want the context of a lock, or one of fence.NewContext with a token of "+
			"1 to 9223372036854775807, low 48 bits not 0", fence.ErrInvalidToken)
	}
	return t, t.CheckEra(maxEra)
}
