package stage

import "syscall"

// attributes puts a process into a group of its own, so that Ctrl-C reaches only the demo, and has the kernel kill the
// process if the demo is killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
