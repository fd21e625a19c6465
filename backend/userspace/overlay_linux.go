package userspace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// listenersOf returns the listeners for a base, those inside before those outside.
func listenersOf(l plan.Listeners) (all []backend.Listener) {
	for _, class := range []plan.Class{plan.Inside, plan.Outside} {
		for _, k := range kinds {
			if at, ok := l[k]; ok {
				all = append(all, backend.Listener{Family: k.Family, Protocol: k.Protocol, Outside: class == plan.Outside, At: at[class]})
			}
		}
	}
	return all
}

// overlay is a table of nf_tables in each family that brings connections to the relay. It belongs to this process, and
// vanishes with the process in any case. It sets a bit in the mark of packets ([backend.RelayMark]). The base, whose
// rules stay, leads packets with the bit to the relay. So the base alone serves as soon as no process listens.
type overlay struct {
	conn      *nft.Conn
	name      string
	listeners []backend.Listener
	// commit runs a change of tables, so that the base does not take it for another program's change.
	commit func(func() error) error
	// leads is set while the tables bring new connections. It may be asked at any time.
	leads atomic.Bool
}

// Priorities of hooks: before the base translates destinations, and before it keeps packets away from the listeners.
const (
	priorityOwn    = -102 // before any overlay marks foreign packets: another process may have one
	priorityLead   = -101
	priorityArrive = -1
)

// openOverlay makes an overlay in the calling thread's network namespace.
func openOverlay(commit func(func() error) error) (*overlay, error) {
	conn, err := nft.Dial()
	if err != nil {
		return nil, err
	}
	port, err := conn.Port()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	// A process that ends still has its own tables while the next one makes other tables.
	return &overlay{conn: conn, name: fmt.Sprintf("switchyard-relay-%d", port), commit: commit}, nil
}

// arrive lets packets to listeners reach them.
func (o *overlay) arrive(listeners []backend.Listener) error {
	if slices.Equal(o.listeners, listeners) {
		return nil
	}
	return o.write(listeners, false)
}

// lead brings new connections to the listeners, or has only those go on that are here.
func (o *overlay) lead(on bool) error {
	if o.leads.Load() == on {
		return nil
	}
	return o.write(o.listeners, on)
}

// write replaces the tables. It tries again, because the kernel may be short of buffers.
func (o *overlay) write(listeners []backend.Listener, leads bool) error {
	err := o.replace(listeners, leads)
	for pause := 5 * time.Millisecond; err != nil && pause < 50*time.Millisecond; pause *= 2 {
		time.Sleep(pause)
		err = o.replace(listeners, leads)
	}
	if err != nil {
		return fmt.Errorf("table %s, which brings connections to the relay: %w", o.name, err)
	}
	o.listeners = listeners
	o.leads.Store(leads)
	return nil
}

func (o *overlay) replace(listeners []backend.Listener, leads bool) error {
	var b nft.Batch
	for _, f := range []state.Family{state.IPv4, state.IPv6} {
		of := slices.DeleteFunc(slices.Clone(listeners), func(l backend.Listener) bool { return l.Family != f })
		if len(of) == 0 {
			continue
		}
		t := o.table(f)
		b.AddTableAs(t, nft.Owned) // it may be there, also after an attempt that failed
		b.DeleteTable(t)
		b.AddTableAs(t, nft.Owned)
		for _, c := range overlayChains(t.Family, of, leads) {
			b.AddChain(t, &c)
			for _, rule := range c.Rules {
				b.AddRule(t, c.Name, rule)
			}
		}
	}
	return o.commit(func() error { return o.conn.Commit(&b) })
}

func (o *overlay) table(f state.Family) nft.Table {
	if f == state.IPv6 {
		return nft.Table{Family: nft.IPv6, Name: o.name}
	}
	return nft.Table{Family: nft.IPv4, Name: o.name}
}

// close removes the tables.
func (o *overlay) close() error { return o.commit(o.conn.Close) }

// overlayChains returns the chains of a family.
func overlayChains(f nft.Family, listeners []backend.Listener, leads bool) []nft.Chain {
	addrOffset, addrLen, portReg := uint32(16), uint32(4), uint32(nft.Reg0+1)
	if f == nft.IPv6 {
		addrOffset, addrLen, portReg = 24, 16, nft.Reg0+4
	}
	dstAddr := nft.Payload(nft.Reg0, nft.NetworkHeader, addrOffset, addrLen)
	dstPort := func(reg uint32) nft.Expr { return nft.Payload(reg, nft.TransportHeader, 2, 2) }
	protocol := func(p state.Protocol) []nft.Expr {
		return []nft.Expr{nft.Meta(nft.Reg0, nft.MetaL4Proto), nft.Equal(nft.Reg0, []byte{byte(p)})}
	}
	mark := []nft.Expr{nft.Meta(nft.Reg0, nft.MetaMark), nft.Mask(nft.Reg0, ^uint32(backend.RelayMark), backend.RelayMark), nft.SetMeta(nft.Reg0, nft.MetaMark)}
	marked := []nft.Expr{
		nft.Meta(nft.Reg0, nft.MetaMark), nft.Mask(nft.Reg0, backend.RelayMark, 0), nft.NotEqual(nft.Reg0, []byte{0, 0, 0, 0}),
	}
	chain := func(name, typ string, hook uint32, priority int32) nft.Chain {
		return nft.Chain{Name: name, Hook: &nft.Hook{Type: typ, Number: hook, Priority: priority}}
	}
	in := chain("prerouting", "nat", nft.Prerouting, priorityLead)
	own := chain("own", "nat", nft.Output, priorityOwn)
	out := chain("output", "nat", nft.Output, priorityLead)
	arrive := chain("input", "filter", nft.Input, priorityArrive)
	var protocols []state.Protocol
	for _, l := range listeners {
		if !slices.Contains(protocols, l.Protocol) {
			protocols = append(protocols, l.Protocol)
		}
		arrive.Rules = append(arrive.Rules, slices.Concat(
			[]nft.Expr{dstAddr, nft.Equal(nft.Reg0, l.At.Addr().AsSlice())}, protocol(l.Protocol),
			[]nft.Expr{dstPort(nft.Reg0), nft.Equal(nft.Reg0, binary.BigEndian.AppendUint16(nil, l.At.Port()))}, mark))
	}
	for _, p := range protocols {
		// Packets of the relay itself have the mark from its socket. The rule translates their destination to itself, so that no other rule
		// translates it.
		own.Rules = append(own.Rules, slices.Concat(protocol(p), marked, []nft.Expr{dstAddr, dstPort(portReg), nft.DNAT(f, nft.Reg0, portReg)}))
		if leads {
			in.Rules = append(in.Rules, slices.Concat(protocol(p), mark))
			out.Rules = append(out.Rules, slices.Concat(protocol(p), mark))
		}
	}
	if !leads {
		return []nft.Chain{own, arrive}
	}
	return []nft.Chain{own, in, out, arrive}
}
