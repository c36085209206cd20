//go:build unix

package main

import (
	"strings"
	"unsafe"
)

// hidePasswords overwrites passwords in the process's arguments, which every user of the machine can read. Args is
// os.Args itself; the caller has copied the strings that it still needs.
func hidePasswords(args []string) {
	for i, arg := range args {
		secret := ""
		switch {
		case arg == "--": // the arguments of CMD follow
			return
		case strings.HasPrefix(arg, "--password="):
			secret = arg[len("--password="):]
		case i > 0 && args[i-1] == "--password":
			secret = arg
		case strings.HasPrefix(arg, "--user="), i > 0 && args[i-1] == "--user":
			_, secret, _ = strings.Cut(arg, ":")
		}
		if secret != "" {
			// On Unix the strings of os.Args share memory with what ps shows.
			bytes := unsafe.Slice(unsafe.StringData(secret), len(secret))
			for j := range bytes {
				bytes[j] = 'x'
			}
		}
	}
}
