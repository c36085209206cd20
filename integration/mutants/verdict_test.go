package mutants_test

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// kills returns nil if the killer's test has failed at its assertion.
func kills(k killer, root, output string) error {
	switch {
	case strings.Contains(output, "\npanic: "), strings.Contains(output, "\nfatal error: "):
		return errors.New("it has panicked or timed out: that is no kill")
	case ended(output, "PASS", k.test):
		return fmt.Errorf("the mutant lives: %s does not notice it", k.test)
	case !ended(output, "FAIL", k.test):
		return fmt.Errorf("%s has neither passed nor failed", k.test)
	}
	failed := position.FindAllString(output, -1)
	files, err := k.tests(root)
	for file, text := range files {
		for n, line := range strings.Split(text, "\n") {
			if strings.Contains(line, k.line) && slices.Contains(failed, fmt.Sprint(file, ":", n+1)) {
				return nil
			}
		}
	}
	return errors.Join(err, fmt.Errorf("another assertion has failed, want %q", k.line))
}

// ended reports whether the test has ended with a result, PASS or FAIL.
func ended(output, result, test string) bool {
	return strings.Contains(output, "--- "+result+": "+test+" (")
}

// position matches the position of a failed assertion.
var position = regexp.MustCompile(`\w+_test\.go:\d+`)
