// Package child runs this program once more, in a process that plays a part of a test. The test can pause and kill that
// process.
//
// An environment variable names the part and holds its orders. A part that ends when its standard input is closed ends
// with its parent, however the parent ends.
package child

import (
	"encoding/json"
	"fmt"
	"os"
)

// Play plays a part and exits if this process was started for that part by [Start]; otherwise it does nothing. It
// prints an error and exits with status 1. Call it first in main or TestMain.
func Play[T any](part string, play func(order T) error) {
	text, ok := os.LookupEnv(part)
	if !ok {
		return
	}
	var order T
	err := json.Unmarshal([]byte(text), &order)
	if err == nil {
		err = play(order)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", part, err)
		os.Exit(1)
	}
	os.Exit(0)
}
