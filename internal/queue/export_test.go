package queue

import "github.com/leasefence/leasefence/internal/etcd"

// Ahead reads what is before e.
func (q *Queue) Ahead(a *etcd.Attempt, e Entry) (Ahead, error) { return q.look(a, e, Ahead{}) }
