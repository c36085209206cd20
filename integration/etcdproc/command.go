package etcdproc

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// Commands to a server: each is one line on its standard input. The server answers with doneLine or with an error.
const (
	cutCommand   = "cut"   // and the name of another member: drop all messages to and from that member
	mendCommand  = "mend"  // and that name: undoes cut
	stallCommand = "stall" // stop applying committed entries
	goOnCommand  = "go on" // undoes stall
	slowCommand  = "slow"  // and a duration: each sync of the log takes that much longer

	doneLine = "etcdproc: done"
)

// obey executes commands until the program closes the server's standard input, or ends.
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

// backend holds the lock of the server's backend while the server is stalled.
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
	case verb == slowCommand:
		d, err := time.ParseDuration(name)
		slowness.Store(int64(d))
		return err
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
