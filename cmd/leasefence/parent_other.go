//go:build unix && !linux

package main

import "syscall"

// endWithParent does nothing: only Linux has Pdeathsig.
func endWithParent(*syscall.SysProcAttr) {}
