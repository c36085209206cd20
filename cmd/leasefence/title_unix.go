//go:build unix

package main

import (
	"strings"
	"unsafe"
)

// hidePasswords overwrites passwords in the process's arguments, which every user of the machine can read. Args are those of the
// system, which the caller has copied.
func hidePasswords(args []string) {
	for i, arg := range args {
		secret := ""
		switch {
		case arg == "--": // CMD's are its own
			return
		case strings.HasPrefix(arg, "--password="):
			secret = arg[len("--password="):]
		case i > 0 && args[i-1] == "--password":
			secret = arg
		case strings.HasPrefix(arg, "--user="), i > 0 && args[i-1] == "--user":
			_, secret, _ = strings.Cut(arg, ":")
		}
		if secret != "" {
			// On Unix an argument is the very memory that the system shows.
			bytes := unsafe.Slice(unsafe.StringData(secret), len(secret))
			for j := range bytes {
				bytes[j] = 'x'
			}
		}
	}
}
