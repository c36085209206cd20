//go:build linux

package child_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/leasefence/leasefence/integration/child"
)

const part = "LEASEFENCE_TEST_COUNTER"

func TestMain(m *testing.M) {
	child.Play(part, func(threads int) error {
		fmt.Println(os.Getpid())
		for range threads {
			go func() {
				for {
					fmt.Println("on")
				}
			}()
		}
		_, err := io.Copy(io.Discard, os.Stdin)
		return err
	})
	os.Exit(m.Run())
}

// No thread runs once Pause has returned, Resume continues the process, and Kill ends it while it is paused.
func TestProcess(t *testing.T) {
	p, err := child.Start(part, 4)
	require.NoError(t, err)
	said := make(chan string)
	go func() {
		defer close(said)
		for lines := bufio.NewScanner(p.Stdout); lines.Scan(); {
			said <- lines.Text()
		}
	}()
	pid := <-said
	for range 20 {
		require.NoError(t, p.Pause(t.Context()))
		threads, err := filepath.Glob("/proc/" + pid + "/task/*/stat")
		require.NoError(t, err)
		require.NotEmpty(t, threads)
		for _, thread := range threads {
			stat, err := os.ReadFile(thread)
			require.NoError(t, err)
			require.Contains(t, string(stat), ") T ", "a thread runs after Pause")
		}
		require.NoError(t, p.Resume())
		for range 10 {
			<-said
		}
	}
	require.NoError(t, p.Pause(t.Context()))
	require.NoError(t, p.Kill())
	for range said { // until its end
		continue
	}
	require.ErrorContains(t, p.Wait(), "killed")
	require.NoError(t, p.Wait())
	require.NoError(t, p.Kill())
	require.ErrorIs(t, p.Pause(t.Context()), os.ErrProcessDone)
}
