package mix

import (
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// berth is the place of a client that is a process of its own. After a kill a new process with another name takes it.
type berth struct {
	round    *round
	name     string
	user     string
	link     *link
	holder   *holder // the present process
	launched int     // processes until now
}

// launch starts the first process, or the next one after a kill.
func (b *berth) launch() error {
	b.launched++
	number, r := b.launched, b.round
	o := order{
		Name: b.name + "." + strconv.Itoa(number), Endpoints: b.link.endpoints(), Resources: r.run.resources.addr(),
		User: b.user, Files: r.run.secured.holders,
		// Each process has its own range of numbers, above those of the tape.
		Clock: r.run.tape.Clock, First: r.run.tape.ID() << 32, Round: r.number, TTL: r.run.opts.TTL,
		Seed: r.run.opts.Seed ^ hash(b.name) + uint64(r.number*1000+number), Workers: 3,
	}
	h, err := startHolder(o, r.run.tape)
	if err != nil {
		return err
	}
	b.holder = h
	return nil
}

// leaseID parses the ID of a lease as keys contain it.
func leaseID(text string) (clientv3.LeaseID, bool) {
	id, err := strconv.ParseInt(text, 16, 64)
	return clientv3.LeaseID(id), err == nil && id != 0
}
