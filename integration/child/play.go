// Package child runs this program, or another, in a process that plays a part for its parent, which can pause and kill it.
//
// A process is told its part by its environment and what it is to do by its standard input. It ends when its parent does,
// however that ends, if it ends with its standard input.
package child

import (
	"encoding/json"
	"fmt"
	"os"
)

// Play plays a part if this process was started for it by [Start], and does not return then. Call it first in main or
// TestMain. An error is printed, and the status is 1.
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
