package process

import (
	"runtime"
	"syscall"
)

// Pdeathsig is sent when the thread that started the command ends, so the main thread has to start it.
func init() { runtime.LockOSThread() }

// endWithParent has the kernel kill the command if leasefence is killed: nobody else would stop it when the lock is
// lost.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
