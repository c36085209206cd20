//go:build unix && !linux

package main

import "syscall"

// endWithParent does nothing: the system has no means for it.
func endWithParent(*syscall.SysProcAttr) {}
