package state

import (
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"time"
)

// kind is the kind of an entry, by the numbers of Pulumi's apitype.JournalEntryKind.
type kind int64

const (
	kindBegin          kind = 0
	kindSuccess        kind = 1
	kindFailure        kind = 2
	kindRefreshSuccess kind = 3
	kindOutputs        kind = 4
	kindWrite          kind = 5
	kindSecretsManager kind = 6
	kindRebuiltBase    kind = 7
	kindExtension      kind = 8
	kindSnippets       kind = 9
)

// Entry is an entry of a journal, whose form is valid. Whether it fits the entries before it, Check
// decides. "Old" resources are those of the base, by index. "New" resources are those that the update
// has made, by the ID of the operation that made them.
type Entry struct {
	text      []byte
	kind      kind
	sequence  int64 // unique within an update; 0 if unknown
	operation int64

	removeOld, removeNew          *int64
	deleteOld, deleteNew          *int64
	pendingOld, pendingNew        *int64
	state                         *resource
	pending                       *operation
	isRefresh, requiresByteString bool
	snapshot                      *Deployment
	extensionRef                  string
	provider, extension, snippets []byte // their form is valid, too
}

// Entries reads the body of a request: an object whose field entries is a list. It fails if an entry has
// another version than 1, an unknown kind, or lacks a field that its kind needs. The error contains no
// value of the text, except URNs and numbers. The entries contain parts of the body.
func Entries(body []byte) ([]Entry, error) {
	fields, err := parseText(body)
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	var entries []Entry
	err = fields.decode(map[string]func([]byte) error{"entries": parsed(&entries, listOf(parseEntry))})
	if err != nil {
		return nil, fmt.Errorf("journal: %w", err)
	}
	return entries, nil
}

func parseEntry(text []byte) (Entry, error) {
	fields, err := parseObject(text)
	if err != nil {
		return Entry{}, err
	}
	e := Entry{text: text}
	version, number := 0, int64(-1)
	err = fields.decode(map[string]func([]byte) error{
		"version":               into(&version),
		"kind":                  into(&number),
		"sequenceID":            into(&e.sequence),
		"operationID":           into(&e.operation),
		"removeOld":             into(&e.removeOld),
		"removeNew":             into(&e.removeNew),
		"deleteOld":             into(&e.deleteOld),
		"deleteNew":             into(&e.deleteNew),
		"pendingReplacementOld": into(&e.pendingOld),
		"pendingReplacementNew": into(&e.pendingNew),
		"state":                 parsed(&e.state, parseResource),
		"operation":             parsed(&e.pending, parseOperation),
		"isRefresh":             into(&e.isRefresh),
		"requiresByteString":    into(&e.requiresByteString),
		"secretsProvider":       parsed(new(object), parseProvider),
		"newSnapshot":           parsed(&e.snapshot, parseBody),
		"extensionRef":          into(&e.extensionRef),
		"extension":             parsed(new(object), parseObject),
		"snippets":              parsed(new([]snippet), listOf(parseSnippet)),
	})
	if err != nil {
		return Entry{}, err
	}
	if version != 1 {
		return Entry{}, fmt.Errorf("version %d is unknown: this service reads version 1", version)
	}
	e.kind = kind(number)
	e.provider, e.extension, e.snippets = fields.get("secretsProvider"), fields.get("extension"), fields.get("snippets")
	return e, e.complete()
}

// complete reports an unknown kind, and a missing field without which the entry would have no effect.
func (e *Entry) complete() error {
	place := e.removeOld != nil || e.removeNew != nil
	switch e.kind {
	case kindBegin, kindSuccess, kindFailure, kindRebuiltBase, kindSnippets:
	case kindRefreshSuccess:
		if e.state != nil && !place {
			return errors.New("a refresh with a state needs removeOld or removeNew")
		}
	case kindOutputs:
		if e.state == nil || !place {
			return errors.New("outputs need a state, and removeOld or removeNew")
		}
	case kindWrite:
		if e.snapshot == nil {
			return errors.New("a write needs newSnapshot")
		}
	case kindSecretsManager:
		if e.provider == nil {
			return errors.New("a secrets manager needs secretsProvider")
		}
	case kindExtension:
		if e.extensionRef == "" || e.extension == nil {
			return errors.New("an extension needs extensionRef and extension")
		}
	default:
		return fmt.Errorf("kind %d is unknown: use an older client, or a newer version of this service", e.kind)
	}
	return nil
}

// Check decides which entries fit a journal. It needs much less memory than a Journal, because it contains
// no resources. It is not safe for concurrent use.
type Check struct {
	base      int              // number of old resources
	made      map[int64]bool   // operations that made a resource
	removed   map[int64]bool   // old resources
	unmade    map[int64]bool   // operations whose resource was removed again
	indexed   bool             // an entry refers to an old resource
	sequences map[int64]uint64 // of all entries, with hashes of their texts
	seed      maphash.Seed
}

// NewCheck returns the check of a journal without entries, over a base of this number of resources.
func NewCheck(resources int) *Check {
	return &Check{
		base: resources,
		made: map[int64]bool{}, removed: map[int64]bool{}, unmade: map[int64]bool{},
		sequences: map[int64]uint64{}, seed: maphash.MakeSeed(),
	}
}

// Add adds the next entry. If the entry does not fit, Add returns an error and the check stays as it was.
// An entry that was added before, and is sent again, has no effect: a client that lost the response to a
// request repeats the request.
func (c *Check) Add(e Entry) error {
	_, err := c.add(e)
	return err
}

// add also reports whether the entry was added before.
func (c *Check) add(e Entry) (repeated bool, err error) {
	hash := maphash.Bytes(c.seed, e.text)
	if before, ok := c.sequences[e.sequence]; ok && e.sequence != 0 {
		if before != hash {
			return false, fmt.Errorf("two different journal entries have the sequence ID %d", e.sequence)
		}
		return true, nil
	}
	if err := c.fits(e); err != nil {
		return false, fmt.Errorf("journal entry with sequence ID %d: %w", e.sequence, err)
	}

	c.sequences[e.sequence] = hash
	c.indexed = c.indexed || e.removeOld != nil || e.deleteOld != nil || e.pendingOld != nil
	switch {
	case e.kind == kindWrite:
		c.base = len(e.snapshot.resources)
	case e.kind == kindRebuiltBase:
		c.base += len(c.made) - len(c.removed) - len(c.unmade)
		c.made, c.removed, c.unmade, c.indexed = map[int64]bool{}, map[int64]bool{}, map[int64]bool{}, false
	case e.kind == kindSuccess || e.kind == kindRefreshSuccess && e.state == nil:
		if e.kind == kindSuccess && e.state != nil {
			c.made[e.operation] = true
		}
		if e.removeOld != nil {
			c.removed[*e.removeOld] = true
		}
		if e.removeNew != nil {
			c.unmade[*e.removeNew] = true
		}
	}
	return false, nil
}

// fits reports a reference to a resource that does not exist, and what would make a reference ambiguous.
func (c *Check) fits(e Entry) error {
	if e.kind == kindBegin || e.kind == kindFailure {
		return nil // they open or close an operation, and Journal ignores their other fields
	}
	if e.kind == kindSuccess && e.state != nil && c.made[e.operation] {
		return fmt.Errorf("operation %d has made a resource before", e.operation)
	}
	if e.kind == kindWrite && (c.indexed || len(c.made) > 0) {
		return errors.New("a new base must come before entries that change resources")
	}
	for _, index := range []*int64{e.removeOld, e.deleteOld, e.pendingOld} {
		if index != nil && (*index < 0 || *index >= int64(c.base)) {
			return fmt.Errorf("the base has %d resources, but the entry refers to index %d", c.base, *index)
		}
	}
	for _, id := range []*int64{e.removeNew, e.deleteNew, e.pendingNew} {
		if id != nil && !c.made[*id] {
			return fmt.Errorf("operation %d has made no resource", *id)
		}
	}
	return nil
}

// Journal applies entries to a base. It is not safe for concurrent use.
type Journal struct {
	check *Check
	base  *Deployment
	old   map[int64]*oldResource // changes of the base by index

	made    []*newResource
	byMaker map[int64]*newResource // by operation
	open    map[int64]*operation

	refreshed  bool
	byteString bool
	extensions map[string][]byte
}

type oldResource struct {
	removed, delete, pendingReplacement bool
	replacement                         *resource
}

type newResource struct {
	resource *resource
	removed  bool
}

// NewJournal returns a journal without entries over the state with which the update has started.
func NewJournal(base *Deployment) *Journal {
	j := &Journal{check: NewCheck(base.Count())}
	j.rebase(base)
	return j
}

// rebase forgets everything that refers to resources or operations.
func (j *Journal) rebase(base *Deployment) {
	j.base, j.old = base, map[int64]*oldResource{}
	j.made, j.byMaker = nil, map[int64]*newResource{}
	j.open = map[int64]*operation{}
	j.extensions = map[string][]byte{}
}

// Add applies the next entry. It returns an error, and changes nothing, exactly if a Check would.
func (j *Journal) Add(e Entry) error {
	if repeated, err := j.check.add(e); err != nil || repeated {
		return err
	}
	j.byteString = j.byteString || e.requiresByteString
	switch e.kind {
	case kindBegin:
		j.open[e.operation] = e.pending
	case kindSuccess:
		j.succeed(e)
	case kindFailure:
		delete(j.open, e.operation)
	case kindRefreshSuccess:
		delete(j.open, e.operation)
		j.refreshed = true
		j.replace(e)
	case kindOutputs:
		j.replace(e)
	case kindWrite:
		j.write(e)
	case kindSecretsManager:
		j.base = j.base.with(field{"secrets_providers", e.provider})
	case kindRebuiltBase:
		j.rebase(j.merge())
	case kindExtension:
		j.extensions[e.extensionRef] = e.extension
	case kindSnippets:
		j.base = j.base.with(field{"snippets", e.snippets})
	}
	return nil
}

func (j *Journal) succeed(e Entry) {
	delete(j.open, e.operation)
	j.refreshed = j.refreshed || e.isRefresh
	if e.state != nil {
		made := &newResource{resource: e.state}
		j.made = append(j.made, made)
		j.byMaker[e.operation] = made
	}
	if e.removeOld != nil {
		j.oldResource(*e.removeOld).removed = true
	}
	if e.removeNew != nil {
		j.byMaker[*e.removeNew].removed = true
	}
	if e.deleteOld != nil {
		j.oldResource(*e.deleteOld).delete = true
	}
	if e.deleteNew != nil {
		j.byMaker[*e.deleteNew].mark("delete")
	}
	if e.pendingOld != nil {
		j.oldResource(*e.pendingOld).pendingReplacement = true
	}
	if e.pendingNew != nil {
		j.byMaker[*e.pendingNew].mark("pendingReplacement")
	}
}

// replace replaces the state of a resource in its place, or removes the resource if there is no new state.
func (j *Journal) replace(e Entry) {
	if e.removeOld != nil {
		old := j.oldResource(*e.removeOld)
		if e.state == nil {
			old.removed = true
		} else {
			old.replacement = e.state
		}
	}
	if e.removeNew != nil {
		made := j.byMaker[*e.removeNew]
		if e.state == nil {
			made.removed = true
		} else {
			made.resource = e.state
		}
	}
}

// write replaces the base. The new one may have no secrets provider, although the resources that follow
// contain ciphertexts of the old one.
func (j *Journal) write(e Entry) {
	provider := j.base.body.get("secrets_providers")
	j.base = e.snapshot
	if j.base.body.get("secrets_providers") == nil {
		j.base = j.base.with(field{"secrets_providers", provider})
	}
}

func (j *Journal) oldResource(index int64) *oldResource {
	if j.old[index] == nil {
		j.old[index] = &oldResource{}
	}
	return j.old[index]
}

func (n *newResource) mark(name string) {
	n.resource = n.resource.changed(field{name, []byte("true")})
}

// Deployment returns the state after all entries. The journal can be used afterwards. The time stands in the
// manifest, as does the version of the client, such as v3.259.0. An empty version keeps that of the base.
func (j *Journal) Deployment(at time.Time, version string) *Deployment {
	return j.merge().stamped(at, version)
}

// merge returns the state after all entries, with the manifest of the base:
//
//  1. New resources in the order of their operations, then old resources, each without removed ones.
//  2. Open operations, then those of the base that create a resource: only a person can resolve them.
//  3. Extensions of the base, and new ones.
//  4. Features: those of the resources, and those of the base that do not follow from resources.
//  5. After a refresh, no reference to a resource that is gone.
//  6. No reference to an alias.
func (j *Journal) merge() *Deployment {
	// 1. Resources.
	var resources []*resource
	for _, made := range j.made {
		if !made.removed {
			resources = append(resources, made.resource)
		}
	}
	for i, r := range j.base.resources {
		old := j.old[int64(i)]
		switch {
		case old == nil:
			resources = append(resources, r)
		case old.removed:
		case old.replacement != nil:
			resources = append(resources, old.replacement)
		default:
			resources = append(resources, old.marked(r))
		}
	}

	// 2. Operations.
	var operations []*operation
	for _, id := range slices.Sorted(maps.Keys(j.open)) {
		if o := j.open[id]; o != nil {
			operations = append(operations, o)
		}
	}
	for _, o := range j.base.operations {
		if o.kind == "creating" {
			operations = append(operations, o)
		}
	}

	// 3. Extensions.
	merged := *j.base
	if len(j.extensions) > 0 {
		merged.body = merged.body.with(field{"extensions", j.mergeExtensions()})
	}

	// 4. Features.
	features := map[string]bool{}
	if len(resources)+len(operations) > 0 {
		ofResources := new(resource).features()
		for _, name := range j.base.features {
			if _, ok := ofResources[name]; !ok {
				features[name] = true
			}
		}
		features[featureByteString] = features[featureByteString] || j.byteString
	}
	users := slices.Clone(resources)
	for _, o := range operations {
		users = append(users, o.resource)
	}
	for _, r := range users {
		for name, used := range r.features() {
			features[name] = features[name] || used
		}
	}
	if snippets, err := parseList(merged.body.get("snippets")); err == nil && len(snippets) > 0 {
		features[featureSnippets] = true
	}
	maps.DeleteFunc(features, func(_ string, used bool) bool { return !used })
	merged.features = slices.Sorted(maps.Keys(features))
	merged.version = minVersion
	if len(features) > 0 {
		merged.version = maxVersion
	}

	// 5. References after a refresh.
	if j.refreshed {
		removeDangling(resources)
	}

	// 6. References to aliases.
	names := newNames(resources)
	replaceAliases(resources, names)
	merged.body = replaceSnippetAliases(merged.body, names)

	return merged.withLists(resources, operations)
}

func (old *oldResource) marked(r *resource) *resource {
	var changes []field
	if old.pendingReplacement {
		changes = append(changes, field{"pendingReplacement", []byte("true")})
	}
	if old.delete {
		changes = append(changes, field{"delete", []byte("true")})
	}
	return r.changed(changes...)
}

func (j *Journal) mergeExtensions() []byte {
	extensions, err := parseObject(j.base.body.get("extensions"))
	if err != nil {
		panic(err) // parseBody has accepted it
	}
	for _, ref := range slices.Sorted(maps.Keys(j.extensions)) {
		if !slices.ContainsFunc(extensions, func(f field) bool { return f.name == ref }) {
			extensions = append(extensions, field{ref, j.extensions[ref]})
		}
	}
	return extensions.appendTo(nil)
}
