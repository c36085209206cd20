//go:build !linux

package clock

import "time"

// boot is nil: on this system no clock that runs during suspension is read.
func boot() func() time.Duration { return nil }
