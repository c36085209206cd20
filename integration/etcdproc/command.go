package etcdproc

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"go.etcd.io/etcd/server/v3/embed"
)

// What a server is told by a line on its standard input, each of which it answers with doneLine or with why it failed.
const (
	cutCommand   = "cut"   // and the name of another member: nothing is sent to it nor taken from it
	mendCommand  = "mend"  // and that name
	stallCommand = "stall" // what is committed is not applied any more
	goOnCommand  = "go on" // ends that

	doneLine = "etcdproc: done"
)

// obey does what it is told until the program closes the server's standard input, or ends.
func obey(server *embed.Etcd, in io.Reader) error {
	var b backend
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		answer := doneLine
		if err := b.do(server, lines.Text()); err != nil {
			answer = err.Error()
		}
		fmt.Println(answer)
	}
	return lines.Err()
}

// backend is the server's, of which a transaction may be kept open.
type backend struct{ release func() }

func (b *backend) do(server *embed.Etcd, command string) error {
	verb, name, _ := strings.Cut(command, " ")
	switch {
	case command == stallCommand && b.release == nil:
		tx := server.Server.Backend().BatchTx()
		tx.Lock()
		b.release = tx.Unlock
		return nil
	case command == goOnCommand && b.release != nil:
		b.release()
		b.release = nil
		return nil
	case verb == cutCommand, verb == mendCommand:
		for _, m := range server.Server.Cluster().Members() {
			switch {
			case m.Name != name:
				continue
			case verb == cutCommand:
				server.Server.CutPeer(m.ID)
			default:
				server.Server.MendPeer(m.ID)
			}
			return nil
		}
	}
	return fmt.Errorf("etcdproc: server %s cannot %q now", server.Config().Name, command)
}
