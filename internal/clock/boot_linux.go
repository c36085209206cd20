package clock

import (
	"syscall"
	"time"
	"unsafe"
)

// clockBoottime is CLOCK_BOOTTIME of clock_gettime(2): monotonic, and running while the host is suspended.
const clockBoottime = 7

// boot returns a reader of CLOCK_BOOTTIME, or nil if the kernel refuses it (before 2.6.39, or a seccomp filter).
func boot() func() time.Duration {
	if _, ok := readBoot(); !ok {
		return nil
	}
	return func() time.Duration {
		d, _ := readBoot()
		return d
	}
}

func readBoot() (time.Duration, bool) {
	var ts syscall.Timespec
	// It never blocks, so the scheduler need not know of it.
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano()), errno == 0
}
