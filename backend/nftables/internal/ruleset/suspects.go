package ruleset

import (
	"net/netip"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// SuspectsName is the name of the table, in each family, whose rules notice endpoints that do not answer. A table exists only while a port of the family
// has Ejection, because without the table, packets pass no further hook.
const SuspectsName = "switchyard-suspects"

// SuspectTables returns the tables of suspects, for IPv4 and for IPv6.
func SuspectTables() []nft.Table {
	return []nft.Table{suspectTable(state.IPv4), suspectTable(state.IPv6)}
}

func suspectTable(f state.Family) nft.Table { return nft.Table{Family: family(f), Name: SuspectsName} }

// setSuspects is the set in the tables of suspects: address . port of endpoints that have left a repeated SYN without an answer.
const setSuspects = "suspects"

const (
	// SuspectTimeout is how long an endpoint is suspected after the SYN for which it was added.
	SuspectTimeout = 30 * time.Second
	// MaxSuspects is how many endpoints of a family are suspected at a time. If there are more, they are not noticed.
	MaxSuspects = 4096
)

// Suspect is an endpoint that has left a repeated SYN without an answer.
type Suspect struct {
	Endpoint netip.AddrPort
	// Age is the time since that SYN. Repetitions of it do not count.
	Age time.Duration
}

// SuspectSet is the name of the set of suspects.
func SuspectSet() string { return setSuspects }

// SuspectOf returns the suspect of an element. ok is false if there is none, or if it is about to time out.
func SuspectOf(f state.Family, e nft.Elem) (s Suspect, ok bool) {
	k, ok := endpointOf(f, e.Key)
	left := time.Duration(e.Expires) * time.Millisecond
	return Suspect{k.addrPort(), max(SuspectTimeout-left, 0)}, ok && left > 0
}

// DeleteSuspects puts into a batch that endpoints of a family are no longer suspected. All must be in the set.
func DeleteSuspects(b *nft.Batch, f state.Family, endpoints ...netip.AddrPort) {
	for _, e := range endpoints {
		b.DeleteElem(suspectTable(f), setSuspects, nft.Elem{Key: appendAddrPort(nil, e)})
	}
}

// SuspectsAre reports whether a table of suspects is as this version makes it.
func SuspectsAre(f state.Family, found *nft.Skeleton, flags nft.TableFlags) bool {
	t := suspectPlan(f)
	return t.isIn(found, flags)
}

// AddSuspects puts a table of suspects into a batch. It replaces the table that was found, unless that is nil.
func AddSuspects(b *nft.Batch, f state.Family, found *nft.Skeleton, flags nft.TableFlags) {
	t := suspectPlan(f)
	t.replace = found
	t.write(b, flags)
}

// suspectPlan returns the table of suspects of a family.
func suspectPlan(f state.Family) tablePlan {
	suspects := nft.Set{Name: setSuspects, Key: []nft.Type{addrType(f), nft.TypePort}, Dynamic: true, MaxSize: MaxSuspects}
	return tablePlan{table: suspectTable(f), sets: []nft.Set{suspects}, chains: suspectChains(f)}
}

// The flags of TCP.
const (
	tcpSyn   = 1 << 1
	tcpReset = 1 << 2
	tcpAck   = 1 << 4
)

// lacksFlags matches packets of TCP without any of these flags.
func lacksFlags(flags byte) []nft.Expr {
	return one(nft.Payload(nft.Reg0, nft.TransportHeader, 13, 1), nft.MaskBytes(nft.Reg0, []byte{flags}), nft.Equal(nft.Reg0, []byte{0}))
}

// priorityMangle is before the translation of destinations, and behind connection tracking (NF_IP_PRI_MANGLE).
const priorityMangle = -150

const chainLook = "look"

// suspectChains returns the chains of a table of suspects.
//
// The first SYN of a connection adds nothing, because it is not confirmed yet. An answer of an endpoint in any translated or direct connection, so also to
// a probe, takes the suspicion away.
func suspectChains(f state.Family) []nft.Chain {
	sk := skeleton{f: f}
	flags := func(mask byte, compare func(uint32, []byte) nft.Expr, v byte) []nft.Expr {
		return one(nft.Payload(nft.Reg0, nft.TransportHeader, 13, 1), nft.MaskBytes(nft.Reg0, []byte{mask}), compare(nft.Reg0, []byte{v}))
	}
	// nft: tcp flags syn,rst jump look
	look := join(sk.isProto(state.TCP), flags(tcpSyn|tcpReset, nft.NotEqual, 0), one(nft.Jump(chainLook)))
	answered := func(mask byte) rule {
		return join(flags(mask, nft.Equal, mask), one(nft.Ct(nft.Reg0, nft.CtDirection), nft.Equal(nft.Reg0, nft.ReplyDirection())),
			sk.load(nft.Reg0, srcAddr, srcPort), one(nft.DeleteFromSet(setSuspects, nft.Reg0), nft.Return()))
	}
	addr := nft.CtSrcIP
	if f == state.IPv6 {
		addr = nft.CtSrcIP6
	}
	repeated := join(
		flags(tcpSyn|tcpAck, nft.Equal, tcpSyn),
		one(nft.Ct(nft.Reg0, nft.CtState), nft.Mask(nft.Reg0, nft.CtStateNew, 0), nft.NotEqual(nft.Reg0, []byte{0, 0, 0, 0})),
		one(nft.Ct(nft.Reg0, nft.CtStatus)), nft.EqualBits(nft.Reg0, nft.CtStatusConfirmed|nft.CtStatusDNAT),
		one(nft.CtReply(nft.Reg0, addr), nft.CtReply(nft.Reg0+sk.addrRegs(), nft.CtProtoSrc)),
		one(nft.AddToSet(setSuspects, nft.Reg0, millis(SuspectTimeout))),
	)
	hook := func(name string, number uint32) nft.Chain {
		return nft.Chain{Name: name, Hook: &nft.Hook{Type: "filter", Number: number, Priority: priorityMangle}, Rules: []rule{look}}
	}
	return []nft.Chain{
		{Name: chainLook, Rules: []rule{
			// nft: @th,104,8 & 0x12 == 0x12 ct direction reply delete @suspects { ip saddr . th sport } return
			answered(tcpSyn | tcpAck),
			// nft: @th,104,8 & 0x4 == 0x4 ct direction reply delete @suspects { ip saddr . th sport } return
			answered(tcpReset),
			// nft: @th,104,8 & 0x12 == 0x2 ct state new ct status confirmed,dnat / confirmed,dnat add @suspects { ct reply ip saddr . ct reply proto-src timeout 30s }
			repeated,
		}},
		hook("output", nft.Output), hook("prerouting", nft.Prerouting),
	}
}
