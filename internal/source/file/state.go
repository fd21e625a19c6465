package file

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-net/switchyard/client/regularfile"
	"github.com/switchyard-net/switchyard/internal/apirules"
	"github.com/switchyard-net/switchyard/internal/manifest"
	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
)

// state is the content of the files, and the delivered objects.
type state struct {
	log *slog.Logger
	// grace is how long a file that has shrunk in place must be left alone before that counts.
	grace time.Duration
	// due is when the next of these times is over, zero if none is running.
	due   time.Time
	files map[string]*content
	// claims has, for every object, the files that contain it, in the order of their names. The first one counts.
	claims map[model.Ref][]claim
	// touched are the objects whose claims have changed since the last call of changes, with what counted then, if any.
	touched map[model.Ref]model.Object
	// shared are the objects with more than one claim.
	shared map[model.Ref]bool
	// hinted are the services whose lack of an address has been logged.
	hinted map[model.Ref]bool
	// hintedEndpoints are the services for which a log message has said that their Endpoints have no effect.
	hintedEndpoints map[string]bool
	// gone is why the path cannot be read, and unreadable why directories below it cannot.
	gone       error
	unreadable []error
}

// content is the content of one file.
type content struct {
	// sum is of the text that was read last, broken or not. It is not valid if the file could not be read.
	sum   [sha256.Size]byte
	valid bool
	// info is the file that was read last: another one has been put in its place, this one has been written. Nil if none was.
	info fs.FileInfo
	// shrunk is when the text read last was first seen, if it does not count yet because the file has shrunk in place.
	shrunk time.Time
	// whole is set if the last line of the text that counts has an end.
	whole bool
	// refs are the objects that the file contains.
	refs []model.Ref
	// endpoints are its objects of kind Endpoints.
	endpoints []endpoints
	// problems are the faults of the text that was read last.
	problems []error
}

// claim is one file's version of an object.
type claim struct {
	file   string
	line   int
	object model.Object
}

func newState(log *slog.Logger, grace time.Duration) *state {
	return &state{
		log: log, grace: grace, files: map[string]*content{}, claims: map[model.Ref][]claim{}, touched: map[model.Ref]model.Object{},
		shared: map[model.Ref]bool{}, hinted: map[model.Ref]bool{}, hintedEndpoints: map[string]bool{},
	}
}

// pathGone records that nothing at the path can be read now. All objects stay.
func (s *state) pathGone(err error) {
	s.gone, s.due = fmt.Errorf("%w; keeping last known good configuration until it is back", err), time.Time{}
	_, replaced := errors.AsType[*regularfile.NotRegularError](err)
	if replaced || errors.Is(err, fs.ErrNotExist) {
		for _, c := range s.files {
			c.info = nil // the next file at this path is another file
		}
	}
}

// update reads the changed files of the tree.
func (s *state) update(tree *manifest.Tree, now time.Time) {
	s.gone, s.unreadable, s.due = nil, tree.Errs(), time.Time{}
	seen := map[string]bool{}
	for _, file := range tree.Files {
		data, info, err := tree.Read(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue // it vanished after the tree was listed
		}
		seen[file] = true
		c := s.files[file]
		if c == nil {
			c = &content{}
			s.files[file] = c
		}
		if err != nil {
			c.fail(err)
			continue
		}
		s.look(file, c, data, info, now)
	}
	for file, c := range s.files {
		if seen[file] || isBelow(file, tree.Unreadable) {
			continue
		}
		if err := tree.Occupied(file); err != nil {
			c.fail(err)
			continue
		}
		s.claim(file, c, nil)
		delete(s.files, file)
	}
}

// fail notes that a file cannot be read. Its last objects stay.
func (c *content) fail(err error) {
	c.valid, c.shrunk, c.problems = false, time.Time{}, []error{err}
	if _, ok := errors.AsType[*regularfile.NotRegularError](err); ok {
		c.info = nil // the next file is another file, even if it has the same inode
	}
}

// look reads the current content of a file, if that is new.
func (s *state) look(file string, c *content, data []byte, info fs.FileInfo, now time.Time) {
	sum := sha256.Sum256(data)
	inPlace := c.info != nil && os.SameFile(c.info, info)
	same := c.valid && c.sum == sum
	c.sum, c.valid, c.info = sum, true, info
	switch {
	case same && c.shrunk.IsZero():
	case same && inPlace && now.Before(c.shrunk.Add(s.grace)):
		s.wait(c)
	default:
		mayWait := inPlace && !same
		c.shrunk = time.Time{}
		s.take(file, c, data, mayWait, now)
	}
}

// wait has the files read again when the time for one is over.
func (s *state) wait(c *content) {
	if at := c.shrunk.Add(s.grace); s.due.IsZero() || at.Before(s.due) {
		s.due = at
	}
}

// broken returns the first file or directory from which something may be missing, empty if there is none.
func (s *state) broken() string {
	for _, err := range s.unreadable {
		return cmp.Or(fileOf(err), err.Error())
	}
	for _, file := range slices.Sorted(maps.Keys(s.files)) {
		if len(s.files[file].problems) > 0 {
			return file
		}
	}
	return ""
}

// isBelow reports whether file is in or below one of dirs.
func isBelow(file string, dirs map[string]error) bool {
	for dir := range dirs {
		if strings.HasPrefix(file, dir+string(filepath.Separator)) {
			return true
		}
	}
	return false
}

// take makes data the content of the file. It keeps the previous content if data is broken and the previous content is
// valid, or if the file may wait and has shrunk.
func (s *state) take(file string, c *content, data []byte, mayWait bool, now time.Time) {
	claims, unused, problems := read(file, data)
	c.problems = problems
	if len(problems) > 0 && len(c.refs) > 0 {
		return
	}
	whole := len(data) == 0 || data[len(data)-1] == '\n'
	if what := c.lost(claims, whole); mayWait && what != "" && s.grace > 0 {
		c.shrunk = now
		c.problems = []error{&manifest.Error{File: file, Err: fmt.Errorf("%s in place, as after an unfinished write: keeping its last known "+
			"good configuration until it has not changed for %v; finish the write, or replace or delete the file, which takes effect at once", what, s.grace)}}
		s.wait(c)
		return
	}
	c.whole, c.endpoints = whole, unused
	s.claim(file, c, claims)
}

// lost describes which part of the file's content a text with these objects lacks, nothing if it lacks none.
func (c *content) lost(claims []claim, whole bool) string {
	there := make(map[model.Ref]bool, len(claims))
	for _, claim := range claims {
		there[claim.object.Ref()] = true
	}
	missing := slices.DeleteFunc(slices.Clone(c.refs), func(ref model.Ref) bool { return there[ref] })
	switch {
	case len(missing) > 0 && len(claims) == 0:
		return "has lost all objects"
	case len(missing) > 0:
		return fmt.Sprintf("has lost %d of %d objects, such as %v,", len(missing), len(c.refs), missing[0])
	case c.whole && !whole && len(c.refs) > 0:
		return "has lost the end of its last line"
	}
	return ""
}

// maxProblems is how many faults of one file are kept, and thus logged.
const maxProblems = 100

// read returns the objects in data that count, Endpoints that do not count, and the faults of data.
func read(file string, data []byte) (claims []claim, unused []endpoints, problems []error) {
	defer func() {
		if more := len(problems) - maxProblems; more > 1 {
			problems = append(problems[:maxProblems:maxProblems], &manifest.Error{
				File: file, Err: fmt.Errorf("has %d more errors: fix those listed first", more),
			})
		}
	}()
	var locator *manifest.Locator
	for o, err := range manifest.Each(file, data) {
		if err != nil {
			problems = append(problems, err)
			continue
		}
		setDefaults(o.Object)
		object, ok, err := kubeconv.Object(o.Object)
		if err == nil {
			err = refused(o.Object)
		}
		if err != nil {
			if locator == nil {
				locator = manifest.NewLocator(file, data)
			}
			problems = append(problems, located(locator, o, err)...)
		} else if ok {
			claims = append(claims, claim{file, o.Line, object})
		} else if e, ok := endpointsOf(o.Object, o.Line); ok {
			unused = append(unused, e)
		}
	}
	return claims, unused, problems
}

// located returns the faults of an object with their positions in the file.
func located(l *manifest.Locator, o manifest.Object, err error) []error {
	errs := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		errs = joined.Unwrap()
	}
	for i, err := range errs {
		if field, ok := errors.AsType[*kubeconv.FieldError](err); ok {
			errs[i] = l.Error(o, field.Path, errors.New(field.Fault()))
		} else if fault, ok := errors.AsType[*apirules.Fault](err); ok {
			errs[i] = l.Error(o, fault.Field, fault.Err)
		} else {
			errs[i] = l.Error(o, "", err)
		}
	}
	return errs
}

// refused returns why an API server would not have taken an object, nil if it would.
func refused(object any) error {
	var faults []*apirules.Fault
	switch o := object.(type) {
	case *corev1.Service:
		faults = apirules.ValidateService(o)
	case *discoveryv1.EndpointSlice:
		faults = apirules.ValidateEndpointSlice(o)
	}
	var errs []error
	for _, f := range faults {
		errs = append(errs, f)
	}
	return errors.Join(errs...)
}

// setDefaults does to an object of a manifest what kubectl and the API server would have done.
func setDefaults(object any) {
	switch o := object.(type) {
	case *corev1.Service:
		defaultNamespace(&o.ObjectMeta)
		apirules.DefaultService(o)
	case *discoveryv1.EndpointSlice:
		defaultNamespace(&o.ObjectMeta)
		apirules.DefaultEndpointSlice(o)
	}
}

func defaultNamespace(meta *metav1.ObjectMeta) {
	meta.Namespace = cmp.Or(meta.Namespace, metav1.NamespaceDefault)
}

// claim makes claims, in the order of the file, all objects of the file.
func (s *state) claim(file string, c *content, claims []claim) {
	for _, ref := range c.refs {
		s.touch(ref)
		rest := slices.DeleteFunc(s.claims[ref], func(c claim) bool { return c.file == file })
		s.setClaims(ref, rest)
	}
	c.refs = make([]model.Ref, 0, len(claims))
	for _, new := range claims {
		ref := new.object.Ref()
		s.touch(ref)
		all := s.claims[ref]
		at := len(all)
		for at > 0 && all[at-1].file > file {
			at--
		}
		s.setClaims(ref, slices.Insert(all, at, new))
		c.refs = append(c.refs, ref)
		s.hint(new)
	}
}

func (s *state) setClaims(ref model.Ref, claims []claim) {
	if len(claims) == 0 {
		delete(s.claims, ref)
	} else {
		s.claims[ref] = claims
	}
	if len(claims) > 1 {
		s.shared[ref] = true
	} else {
		delete(s.shared, ref)
	}
}

// touch notes what counts for ref now, before it changes.
func (s *state) touch(ref model.Ref) {
	if _, noted := s.touched[ref]; !noted {
		s.touched[ref] = s.winner(ref)
	}
}

// winner returns the object that counts for ref, or nil.
func (s *state) winner(ref model.Ref) model.Object {
	if all := s.claims[ref]; len(all) > 0 {
		return all[0].object
	}
	return nil
}

// changes returns the difference from its last result.
func (s *state) changes() (set []model.Object, deleted []model.Ref) {
	for ref, before := range s.touched {
		now := s.winner(ref)
		switch {
		case now == nil && before != nil:
			deleted = append(deleted, ref)
			delete(s.hinted, ref)
		case now != nil && !reflect.DeepEqual(before, now):
			set = append(set, now)
		}
	}
	clear(s.touched)
	return set, deleted
}

// hint logs once that a service has no address. Ordinary application manifests have none; a cluster would give it one.
func (s *state) hint(c claim) {
	service, ok := c.object.(*model.Service)
	if !ok || len(service.ClusterIPs) > 0 || service.Headless || service.Type == model.TypeExternalName {
		return
	}
	if ref := service.Ref(); !s.hinted[ref] {
		s.hinted[ref] = true
		s.log.Warn("service has no spec.clusterIP: it gets no address outside a cluster; add one or use switchyard lab",
			"service", ref.Namespace+"/"+ref.Name, "file", c.file, "line", c.line)
	}
}

// problems returns all that is wrong, sorted by file.
func (s *state) problems() []error {
	var problems []error
	if s.gone != nil {
		problems = append(problems, s.gone)
	}
	problems = append(problems, s.unreadable...)
	for _, file := range slices.Sorted(maps.Keys(s.files)) {
		problems = append(problems, s.files[file].problems...)
	}
	for ref := range s.shared {
		first := s.claims[ref][0]
		for _, c := range s.claims[ref][1:] {
			problems = append(problems, &manifest.Error{
				File: c.file, Line: c.line, Kind: ref.Kind.String(), Name: strings.TrimPrefix(ref.String(), ref.Kind.String()+" "),
				Err: fmt.Errorf("is also at %s:%d, which takes precedence: remove one of the two", first.file, first.line),
			})
		}
	}
	slices.SortFunc(problems, func(a, b error) int {
		return cmp.Or(cmp.Compare(fileOf(a), fileOf(b)), cmp.Compare(lineOf(a), lineOf(b)), cmp.Compare(a.Error(), b.Error()))
	})
	return problems
}
