package clock

import (
	"os"
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
	// The call never blocks, so the scheduler does not need to know of it.
	_, _, errno := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano()), errno == 0
}

// alarm is a kernel timer on CLOCK_BOOTTIME, see timerfd_create(2). If it comes due while the host is suspended, it
// goes off when the host wakes up.
type alarm struct {
	file *os.File
	done chan struct{} // closed when read has returned
}

// newAlarm makes an alarm that calls ring each time it goes off. It returns nil if the kernel refuses it.
func newAlarm(ring func()) Alarm {
	fd, _, errno := syscall.Syscall(syscall.SYS_TIMERFD_CREATE, clockBoottime, syscall.O_NONBLOCK|syscall.O_CLOEXEC, 0)
	if errno != 0 {
		return nil
	}
	a := &alarm{file: os.NewFile(fd, "timerfd"), done: make(chan struct{})}
	// Without the runtime's poller a read would fail at once or occupy a thread.
	if a.file.SetReadDeadline(time.Time{}) != nil {
		_ = a.file.Close() // nothing was written
		return nil
	}
	go a.read(ring)
	return a
}

func (a *alarm) read(ring func()) {
	defer close(a.done)
	var times [8]byte // how often it has gone off
	for {
		if _, err := a.file.Read(times[:]); err != nil {
			return // closed
		}
		ring()
	}
}

func (a *alarm) Set(d time.Duration) bool {
	conn, err := a.file.SyscallConn()
	if err != nil {
		return false
	}
	var spec struct{ interval, value syscall.Timespec }
	spec.value = syscall.NsecToTimespec(int64(max(d, 1))) // 0 would turn it off
	var errno syscall.Errno
	err = conn.Control(func(fd uintptr) {
		_, _, errno = syscall.Syscall6(syscall.SYS_TIMERFD_SETTIME, fd, 0, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	})
	return err == nil && errno == 0
}

func (a *alarm) Close() {
	_ = a.file.Close() // nothing was written
	<-a.done
}
