package main

import (
	"runtime"
	"syscall"
)

// The signal below comes when the thread ends that has started the command, so that must be the main one.
func init() { runtime.LockOSThread() }

// endWithParent has the command killed should leasefence be killed: nobody would end it when the lock is lost then.
func endWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
