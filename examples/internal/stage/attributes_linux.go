package stage

import "syscall"

// attributes puts a process into a group of its own, so that Ctrl-C reaches the demo alone, and has it end with the
// demo even if that is killed.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
