//go:build linux

package conntrack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/state"
)

// dnat is a flow of protocol to vip that endpoint answers.
func dnat(protocol state.Protocol, client, vip, endpoint string) Flow {
	return Flow{
		Family:   state.FamilyOf(ap(vip).Addr()),
		Protocol: protocol,
		Orig:     Tuple{Src: ap(client), Dst: ap(vip)},
		Reply:    Tuple{Src: ap(endpoint), Dst: ap(client)},
		// An entry made by netlink has no mark that a rule has translated it, like an entry that IPVS
		// translates.
		Scheduled: vip != endpoint,
	}
}

// encodeFlow is what the kernel would say about f. It also serves to create entries.
func encodeFlow(f Flow) []byte {
	b := appendGenmsg(nil, f.Family)
	b = appendTuple(b, ctaTupleOrig, f.Family, f.Protocol, f.Orig)
	b = appendTuple(b, ctaTupleReply, f.Family, f.Protocol, f.Reply)
	if f.Zone != 0 {
		b = appendAttr(b, ctaZone, binary.BigEndian.AppendUint16(nil, f.Zone))
	}
	if f.Unconnected {
		b = appendState(b, ctaProtoInfoTCP, tcpSynSent)
	}
	return b
}

// appendState says in which state an entry is; protocol is one of ctaProtoInfo.
func appendState(b []byte, protocol uint16, value byte) []byte {
	return appendNested(b, ctaProtoInfo, func(b []byte) []byte {
		return appendNested(b, protocol, func(b []byte) []byte { return appendAttr(b, ctaProtoState, []byte{value}) })
	})
}

// replyHeader is the head of a reply tuple that claims a length of n bytes.
func replyHeader(n uint16) []byte {
	return binary.NativeEndian.AppendUint16(binary.NativeEndian.AppendUint16(nil, n), ctaTupleReply)
}

func TestDecodeFlow(t *testing.T) {
	v4 := dnat(state.UDP, "10.0.0.1:1000", "10.96.0.10:53", "10.244.0.2:5353")
	v6 := dnat(state.TCP, "[fd00::1]:1000", "[fd00:96::10]:80", "[fd00:244::2]:8080")
	v6.Zone = 7
	syn := v6
	syn.Unconnected = true
	for _, want := range []Flow{v4, v6, syn} {
		got, err := decodeFlow(encodeFlow(want))
		if err != nil || got != want {
			t.Errorf("got  %+v, %v\nwant %+v", got, err, want)
		}
	}
	for status, want := range map[uint32]bool{0: true, statusAssured: true, statusDstNAT: false, statusDstNAT | statusAssured: false} {
		got, err := decodeFlow(appendAttr(encodeFlow(v4), ctaStatus, binary.BigEndian.AppendUint32(nil, status)))
		if err != nil || got.Scheduled != want {
			t.Errorf("status %#x: scheduled %v, %v; want %v", status, got.Scheduled, err, want)
		}
	}
	for value := range byte(9) { // SCTP may be missing in the kernel
		got, err := decodeFlow(appendState(encodeFlow(v4), ctaProtoInfoSCTP, value))
		if want := value == sctpClosed || value == sctpCookieWait; err != nil || got.Unconnected != want {
			t.Errorf("SCTP in state %d: unconnected %v, %v; want %v", value, got.Unconnected, err, want)
		}
	}
	noReply := appendTuple(appendGenmsg(nil, state.IPv4), ctaTupleOrig, state.IPv4, state.UDP, v4.Orig)
	mixed := v4
	mixed.Reply = v6.Reply
	for name, b := range map[string][]byte{
		"empty":          nil,
		"short":          {2, 0},
		"no attributes":  {2, 0, 0, 0},
		"no reply":       noReply,
		"length below 4": append(bytes.Clone(noReply), replyHeader(2)...),
		"length too big": append(bytes.Clone(noReply), replyHeader(200)...),
		"mixed families": append(bytes.Clone(noReply), appendTuple(nil, ctaTupleReply, state.IPv6, state.UDP, v6.Reply)...),
	} {
		if got, err := decodeFlow(b); err == nil {
			t.Errorf("%s: got %+v, want an error", name, got)
		}
	}
}

// TestDeleteIsNeverAFlush: without an original tuple the kernel empties its table.
func TestDeleteIsNeverAFlush(t *testing.T) {
	good := dnat(state.UDP, "10.0.0.1:1000", "10.96.0.10:53", "10.244.0.2:5353")
	noSource, otherFamily, noFamily := good, good, good
	noSource.Orig.Src = netip.AddrPort{}
	otherFamily.Family = state.IPv6
	noFamily.Family = 0
	for _, f := range []Flow{{}, {Family: state.IPv4}, noSource, otherFamily, noFamily} {
		if _, err := encodeDelete(f); err == nil {
			t.Errorf("%+v may be deleted, want an error", f)
		}
	}
	if _, err := encodeDelete(good); err != nil {
		t.Error(err)
	}
}

func TestParse(t *testing.T) {
	const seq = 5
	errno := func(e unix.Errno) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(-int32(e))) }
	object := appendMessage(nil, msgGet, unix.NLM_F_MULTI, seq, []byte("data"))
	torn := appendMessage(nil, msgGet, unix.NLM_F_MULTI|unix.NLM_F_DUMP_INTR, seq, []byte("data"))
	stale := appendMessage(nil, unix.NLMSG_ERROR, 0, seq-1, errno(unix.EBUSY))
	done := appendMessage(nil, unix.NLMSG_DONE, unix.NLM_F_MULTI, seq, errno(0))
	tooLong := appendMessage(nil, msgGet, 0, seq, nil)
	binary.NativeEndian.PutUint32(tooLong, 1<<20)
	tooShort := appendMessage(nil, msgGet, 0, seq, nil)
	binary.NativeEndian.PutUint32(tooShort, 3)

	for _, c := range []struct {
		name    string
		b       [][]byte
		objects int
		done    bool
		err     error
	}{
		{"nothing", nil, 0, false, nil},
		{"objects", [][]byte{object, object}, 2, false, nil},
		{"the end", [][]byte{object, done}, 1, true, nil},
		{"an end without a number", [][]byte{appendMessage(nil, unix.NLMSG_DONE, 0, seq, nil)}, 0, true, nil},
		{"an acknowledgement", [][]byte{appendMessage(nil, unix.NLMSG_ERROR, 0, seq, errno(0))}, 0, true, nil},
		{"a refusal", [][]byte{appendMessage(nil, unix.NLMSG_ERROR, 0, seq, errno(unix.ENOENT))}, 0, true, unix.ENOENT},
		{"a dump that fails", [][]byte{object, appendMessage(nil, unix.NLMSG_DONE, 0, seq, errno(unix.ENOMEM))}, 1, true, unix.ENOMEM},
		{"a dump that is interrupted", [][]byte{appendMessage(nil, unix.NLMSG_DONE, 0, seq, errno(unix.EINTR))}, 0, true, errIncomplete},
		{"a table that changes", [][]byte{torn, object, done}, 2, true, errIncomplete},
		{"the answer to an older request", [][]byte{stale, object}, 1, false, nil},
		{"half a header", [][]byte{object, object[:9]}, 1, false, errIncomplete},
		{"half a message", [][]byte{object, object[:17]}, 1, false, errIncomplete},
		{"a length beyond the end", [][]byte{tooLong}, 0, false, errIncomplete},
		{"a length without the header", [][]byte{tooShort}, 0, false, errIncomplete},
	} {
		objects := 0
		done, err := parse(bytes.Join(c.b, nil), seq, func([]byte) { objects++ })
		if objects != c.objects || done != c.done || !errors.Is(err, c.err) {
			t.Errorf("%s: %d objects, done %v, error %v; want %d, %v, %v", c.name, objects, done, err, c.objects, c.done, c.err)
		}
	}
}

func FuzzParse(f *testing.F) {
	flow := dnat(state.UDP, "10.0.0.1:1000", "10.96.0.10:53", "10.244.0.2:5353")
	flow.Zone = 3
	f.Add(appendMessage(nil, msgGet, unix.NLM_F_MULTI, 1, encodeFlow(flow)))
	flow.Unconnected = true
	f.Add(appendMessage(nil, msgGet, unix.NLM_F_MULTI, 1, encodeFlow(flow)))
	f.Add(appendMessage(nil, unix.NLMSG_DONE, unix.NLM_F_MULTI, 1, []byte{0, 0, 0, 0}))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = parse(b, 1, func(payload []byte) {
			flow, err := decodeFlow(payload)
			if err != nil {
				return
			}
			// A decoded flow can be sent back to the kernel, and means the same.
			if _, err := encodeDelete(flow); err != nil {
				t.Errorf("%+v: %v", flow, err)
			}
			if again, err := decodeFlow(encodeFlow(flow)); err != nil || again != flow {
				t.Errorf("decoded  %+v\nre-read  %+v, %v", flow, again, err)
			}
		})
	})
}
