//go:build unix && !linux

package stage

import "syscall"

// attributes puts a process into a group of its own, so that Ctrl-C reaches only the demo.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
