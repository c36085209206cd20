package mutants_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
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
	for _, at := range position.FindAllStringSubmatch(output, -1) {
		file := at[1]
		if !filepath.IsAbs(file) {
			file = filepath.Join(root, filepath.FromSlash(k.dir), file)
		}
		n, err := strconv.Atoi(at[2])
		if err != nil {
			return err
		}
		if strings.Contains(sourceLine(file, n), k.line) {
			return nil
		}
	}
	return fmt.Errorf("another assertion has failed, want %q", k.line)
}

// ended reports whether the test has ended with a result, PASS or FAIL.
func ended(output, result, test string) bool {
	return strings.Contains(output, "--- "+result+": "+test+" (")
}

// position matches the position of a failed assertion.
var position = regexp.MustCompile(`([\w./-]+_test\.go):(\d+)`)

// sourceLine returns the n-th line of a file, or "" if there is none.
func sourceLine(file string, n int) string {
	text, _ := os.ReadFile(file)
	lines := strings.Split(string(text), "\n")
	if n < 1 || n > len(lines) {
		return ""
	}
	return lines[n-1]
}
