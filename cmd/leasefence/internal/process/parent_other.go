//go:build unix && !linux

package process

import "syscall"

// endWithParent does nothing: only Linux has Pdeathsig.
func endWithParent(*syscall.SysProcAttr) {}
