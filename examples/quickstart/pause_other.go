//go:build !unix

package main

import (
	"errors"
	"syscall"
)

const canPause = false

func ownGroup() *syscall.SysProcAttr { return nil }

func pause(int) error { return errors.ErrUnsupported }

func resume(int) error { return errors.ErrUnsupported }
