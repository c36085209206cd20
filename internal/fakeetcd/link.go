package fakeetcd

import (
	_ "unsafe" // for go:linkname

	_ "go.etcd.io/etcd/client/v3" // has the variable, and sets it before init below
)

// valCtxCh is the Done channel of the context under every watch stream of the client; it is never closed. The client
// makes it when the program starts, outside any bubble. So a goroutine of the context package that waits on it is not
// durably blocked, and the bubble's clock would never move. A nil channel also means "never done" and needs no such
// goroutine.
//
//go:linkname valCtxCh go.etcd.io/etcd/client/v3.valCtxCh
var valCtxCh chan struct{}

func init() { valCtxCh = nil }
