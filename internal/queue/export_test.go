package queue

import "github.com/leasefence/leasefence/internal/etcd"

// Ahead reads what is ahead of e, as Await does.
func (q *Queue) Ahead(a *etcd.Attempt, e Entry) (Ahead, error) {
	ahead, err := q.look(a, e, Ahead{}, false)
	if err != nil || ahead.None {
		return ahead, err
	}
	return q.look(a, e, ahead, true)
}
