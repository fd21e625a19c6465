package inputs

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/switchyard-net/switchyard/internal/manifest"
)

// identity is what two objects of a cluster cannot have in common.
type identity struct{ kind, namespace, name string }

func identityOf(o runtime.Object) identity {
	meta := o.(metav1.Object)
	id := identity{kind: o.GetObjectKind().GroupVersionKind().Kind, namespace: meta.GetNamespace(), name: meta.GetName()}
	if isNamespaced(o) {
		id.namespace = cmp.Or(id.namespace, metav1.NamespaceDefault)
	}
	return id
}

// isNamespaced reports whether objects of a kind are in namespaces.
func isNamespaced(o runtime.Object) bool {
	switch o.GetObjectKind().GroupVersionKind().Kind {
	case "Namespace", "Node", "ServiceCIDR":
		return false
	}
	return true
}

// add takes an object, unless it is there already. A Namespace may be given any number of times: people put it wherever it is needed.
func (l *Loaded) add(o manifest.Object) {
	if meta := o.Object.(metav1.Object); meta.GetNamespace() == "" && isNamespaced(o.Object) {
		meta.SetNamespace(l.namespace)
	}
	if _, ok := o.Object.(*corev1.Namespace); !ok {
		id := identityOf(o.Object)
		first, twice := l.first[id]
		switch {
		case !twice:
			l.first[id] = o
		case reflect.DeepEqual(first.Object, o.Object):
			l.skipped.same++
			return
		default:
			l.objects[o.Object] = o
			l.Errs = append(l.Errs, l.Error(o.Object, "", fmt.Errorf("is also at %s, which takes precedence: remove one of the two, or name only the files that belong together", l.place(first))))
			return
		}
	}
	l.objects[o.Object] = o
	l.Objects = append(l.Objects, o.Object)
}

// place is where an object is.
func (l *Loaded) place(o manifest.Object) string {
	if l.built[o.File] {
		return o.File
	}
	return fmt.Sprintf("%s:%d", o.File, o.Line)
}

// Error returns err with the place of a field of one of the objects: file, line and column. An object that is not of this set has
// no place.
func (l *Loaded) Error(o runtime.Object, field string, err error) error {
	in, ok := l.objects[o]
	if !ok {
		return err
	}
	e := l.places[in.File].Error(in, field, err)
	id := identityOf(o)
	if e.Name == "" || id.kind == "Node" {
		e.Name = id.name
	}
	return l.placed(e)
}

// Place returns the file, line and column of a field of one of the objects, or of the enclosing field. It is empty for
// other objects.
func (l *Loaded) Place(o runtime.Object, field string) (file string, line, column int) {
	e, ok := errors.AsType[*manifest.Error](l.Error(o, field, errors.New("")))
	if !ok {
		return "", 0, 0
	}
	return e.File, e.Line, e.Column
}

// placed leaves out lines that are in no file.
func (l *Loaded) placed(err error) error {
	if e, ok := errors.AsType[*manifest.Error](err); ok && l.built[e.File] {
		bare := *e
		bare.Line, bare.Column = 0, 0
		return &bare
	}
	return err
}
