//go:build unix

package main

import (
	"errors"
	"fmt"
	"syscall"
)

const canPause = true

// ownGroup puts a worker into a process group of its own. Ctrl-C then reaches the parent alone, which ends the
// workers in order. And if the parent dies while a worker is stopped, the kernel wakes and ends the worker: an
// orphaned group with a stopped process gets SIGHUP and SIGCONT.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// pause stops a child with SIGSTOP and returns when it has stopped.
func pause(pid int) error {
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(pid, &status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil:
			return err
		case !status.Stopped():
			return fmt.Errorf("the process has ended: wait status %#x", status)
		}
		return nil
	}
}

// resume lets a paused child go on.
func resume(pid int) error { return syscall.Kill(pid, syscall.SIGCONT) }
