package k8slock

import (
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// The outcomes that callers tell apart with errors.Is. The methods of [resourcelock.Interface] also return errors of
// k8s.io/apimachinery/pkg/api/errors, which client-go looks for.
var (
	// ErrNotLeading says that this Lock has no tenure now: it never had one, or it has ended.
	ErrNotLeading = errors.New("k8slock: not leading")
	// ErrLost says that a tenure has ended although the elector did not stop.
	ErrLost = errors.New("k8slock: leadership lost")
	// ErrStopped says that the elector gave up its tenure, with or without a release.
	ErrStopped = errors.New("k8slock: leadership given up")
)

// resource names the records in errors of the API.
var resource = schema.GroupResource{Group: "leasefence", Resource: "k8slock"}

func (l *Lock) notFound() error      { return apierrors.NewNotFound(resource, l.name) }
func (l *Lock) alreadyExists() error { return apierrors.NewAlreadyExists(resource, l.name) }
func (l *Lock) conflict() error      { return apierrors.NewConflict(resource, l.name, errConflict) }

var errConflict = errors.New("the record has changed since it was read")
