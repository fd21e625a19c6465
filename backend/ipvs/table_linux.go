package ipvs

import (
	"errors"
	"fmt"
	"os"

	"github.com/switchyard-net/switchyard/backend/ipvs/internal/plan"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// kernelTables are the tables of the kernel. An nft.Conn is one.
type kernelTables interface {
	Commit(*nft.Batch) error
	Table(nft.Table) (nft.TableInfo, error)
	ReadSkeleton(nft.Table) (*nft.Skeleton, error)
	Elems(t nft.Table, set string) ([]nft.Elem, error)
	Has(nft.Feature) (bool, error)
	Close() error
}

// tables are the desired and the actual contents of our tables.
type tables struct {
	kernel kernelTables
	// around is Options.Commit.
	around func(func() error) error
	flags  nft.TableFlags
	rules  plan.Rules
	// wanted counts what needs an element.
	wanted map[plan.Element]int
	held   map[plan.Element]bool
	// dirty are the elements about which the two may differ.
	dirty map[plan.Element]bool
	// made are the tables that are there, and ruled those that have the rules they should have.
	made, ruled map[state.Family]bool
	written     int
}

func newTables(k kernelTables, around func(func() error) error) (*tables, error) {
	t := &tables{
		kernel: k, around: around, wanted: map[plan.Element]int{}, held: map[plan.Element]bool{}, dirty: map[plan.Element]bool{},
		made: map[state.Family]bool{}, ruled: map[state.Family]bool{},
	}
	persistent, err := k.Has(nft.PersistentTables)
	if err != nil {
		return nil, err
	}
	if persistent {
		t.flags = nft.Owned | nft.Persistent
	}
	return t, nil
}

func (t *tables) commit(b *nft.Batch) error {
	return t.around(func() error { return t.kernel.Commit(b) })
}

func (t *tables) add(e plan.Element) {
	if t.wanted[e]++; t.wanted[e] == 1 {
		t.dirty[e] = true
	}
	if plan.IsPing(e) && !t.rules.Ping {
		t.rules.Ping, t.ruled = true, map[state.Family]bool{} // as long as the process runs
	}
}

func (t *tables) remove(e plan.Element) {
	if t.wanted[e]--; t.wanted[e] == 0 {
		delete(t.wanted, e)
		t.dirty[e] = true
	}
}

// use changes what the rules are made of.
func (t *tables) use(r plan.Rules) {
	r.Ping = t.rules.Ping
	if !r.Equal(&t.rules) {
		t.rules, t.ruled = r, map[state.Family]bool{}
	}
}

// read takes down what the kernel holds. A table that is not as this version makes it counts as none, and is replaced.
func (t *tables) read() error {
	t.held, t.made, t.ruled = map[plan.Element]bool{}, map[state.Family]bool{}, map[state.Family]bool{}
	for _, f := range plan.Families {
		if err := t.readTable(f); err != nil {
			return fmt.Errorf("table %v: %w", plan.TableOf(f), err)
		}
	}
	for e := range t.held {
		if t.wanted[e] == 0 {
			t.dirty[e] = true
		}
	}
	for e := range t.wanted {
		if !t.held[e] {
			t.dirty[e] = true
		}
	}
	return nil
}

func (t *tables) readTable(f state.Family) error {
	table := plan.TableOf(f)
	info, err := t.kernel.Table(table)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Owner == 0 && info.Flags&nft.Persistent != 0 && t.flags != 0 {
		var b nft.Batch
		b.AddTableAs(table, t.flags)
		if err := t.commit(&b); err != nil {
			return fmt.Errorf("taking it over: %w", err)
		}
	}
	sk, err := t.kernel.ReadSkeleton(table)
	if err != nil {
		return err
	}
	rules := t.rules
	rules.Ping = rules.Ping || plan.AnswersPing(sk.Sets()) // of an earlier process
	chains, sets := rules.Chains(f), rules.Sets(f)
	if !sk.Fits(table, t.flags, sets, chains) || len(sk.Sets()) != len(sets) || len(sk.ChainNames()) != len(chains) {
		return nil
	}
	t.made[f], t.ruled[f] = true, true
	for i := range chains {
		if _, same := sk.HasChain(table, &chains[i]); !same {
			t.ruled[f] = false
		}
	}
	for i := range sets {
		elems, err := t.kernel.Elems(table, sets[i].Name)
		if err != nil {
			return err
		}
		for _, e := range elems {
			t.held[plan.Element{Family: f, Set: sets[i].Name, Key: string(e.Key)}] = true
		}
	}
	return nil
}

// addresses returns the addresses of virtual servers that the tables hold.
func (t *tables) addresses() (list map[string]bool) {
	list = map[string]bool{}
	for e := range t.held {
		if plan.IsAddress(e) {
			list[e.Key] = true
		}
	}
	return list
}

// rule gives a table that is there the rules that it should have, in one transaction.
func (t *tables) rule(f state.Family) error {
	var b nft.Batch
	table, sets, chains := plan.TableOf(f), t.rules.Sets(f), t.rules.Chains(f)
	for i := range sets {
		b.AddSet(table, &sets[i]) // the last one may be missing
	}
	for i := range chains {
		b.FlushChain(table, chains[i].Name)
	}
	addRules(&b, table, chains)
	if err := t.commit(&b); err != nil {
		return fmt.Errorf("rules of table %v: %w", table, err)
	}
	t.written += b.Len()
	t.ruled[f] = true
	return nil
}

func addRules(b *nft.Batch, table nft.Table, chains []nft.Chain) {
	for i := range chains {
		for _, r := range chains[i].Rules {
			b.AddRule(table, chains[i].Name, r)
		}
	}
}

// make makes the tables that are missing, with all that is wanted of them, in one transaction each.
func (t *tables) make() error {
	for _, f := range plan.Families {
		if t.made[f] && t.ruled[f] {
			continue
		}
		if t.made[f] {
			if err := t.rule(f); err != nil {
				return err
			}
			continue
		}
		var b nft.Batch
		table := plan.TableOf(f)
		// Replace an existing table.
		if info, err := t.kernel.Table(table); err == nil {
			b.AddTableAs(table, info.Flags)
			b.DeleteTable(table)
		} else if !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("table %v: %w", table, err)
		}
		b.AddTableAs(table, t.flags)
		sets, chains := t.rules.Sets(f), t.rules.Chains(f)
		for i := range sets {
			b.AddSet(table, &sets[i])
		}
		for i := range chains {
			b.AddChain(table, &chains[i])
		}
		addRules(&b, table, chains)
		for e := range t.wanted {
			if e.Family == f {
				b.AddElem(table, e.Set, nft.Elem{Key: []byte(e.Key)})
			}
		}
		if err := t.commit(&b); err != nil {
			return fmt.Errorf("making table %v: %w", table, err)
		}
		t.written += b.Len()
		t.made[f], t.ruled[f] = true, true
		for e := range t.wanted {
			if e.Family == f {
				t.held[e] = true
				delete(t.dirty, e)
			}
		}
	}
	return nil
}

// maxElements is how many elements are written in one transaction at most: sockets have buffers.
const maxElements = 4096

// flush writes missing elements. If all is set, it also deletes elements that are not desired.
func (t *tables) flush(all bool) error {
	if err := t.make(); err != nil {
		return err
	}
	var add, del []plan.Element
	for e := range t.dirty {
		switch wanted, held := t.wanted[e] > 0, t.held[e]; {
		case wanted == held:
			delete(t.dirty, e)
		case wanted:
			add = append(add, e)
		case all:
			del = append(del, e)
		}
	}
	if len(t.dirty) == 0 {
		t.dirty = map[plan.Element]bool{} // going through a map costs as much as it was ever large
	}
	for len(add)+len(del) > 0 {
		var b nft.Batch
		n := min(len(add), maxElements)
		m := min(len(del), maxElements-n)
		for _, e := range add[:n] {
			b.AddElem(plan.TableOf(e.Family), e.Set, nft.Elem{Key: []byte(e.Key)})
		}
		for _, e := range del[:m] {
			b.DeleteElem(plan.TableOf(e.Family), e.Set, nft.Elem{Key: []byte(e.Key)})
		}
		if err := t.commit(&b); err != nil {
			return fmt.Errorf("tables %s: %w", plan.TableName, err)
		}
		t.written += n + m
		for _, e := range add[:n] {
			t.held[e] = true
			delete(t.dirty, e)
		}
		for _, e := range del[:m] {
			delete(t.held, e)
			delete(t.dirty, e)
		}
		add, del = add[n:], del[m:]
	}
	return nil
}
