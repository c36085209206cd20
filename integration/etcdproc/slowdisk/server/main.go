// Command server is a server of package etcdproc, and nothing else.
package main

import (
	"fmt"
	"os"

	"github.com/leasefence/leasefence/integration/etcdproc"
)

func main() {
	etcdproc.Serve()
	fmt.Fprintln(os.Stderr, "server: started by hand, want etcdproc.Start")
	os.Exit(2)
}
