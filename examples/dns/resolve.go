package main

import (
	"strings"

	"golang.org/x/net/dns/dnsmessage"
)

const (
	plainSize = 512  // bytes that any client takes over UDP
	maxSize   = 1232 // bytes that are not fragmented anywhere
	tcpSize   = 65535
)

// answer returns the answer to a query, with at most size bytes unless the client takes more; nil if query is none.
func (z *zone) answer(query []byte, size int) []byte {
	var p dnsmessage.Parser
	header, err := p.Start(query)
	if err != nil || header.Response {
		return nil // an answer to an answer may come back for ever
	}
	r := reply{Message: dnsmessage.Message{Header: dnsmessage.Header{
		ID: header.ID, OpCode: header.OpCode, Response: true, RecursionDesired: header.RecursionDesired,
	}}}
	questions, err := p.AllQuestions()
	switch {
	case header.OpCode != 0:
		r.RCode = dnsmessage.RCodeNotImplemented
	case err != nil || len(questions) != 1:
		r.RCode = dnsmessage.RCodeFormatError
	default:
		r.Questions = questions
		r.readEDNS(&p)
		if r.RCode == dnsmessage.RCodeSuccess {
			z.resolve(&r, questions[0])
		}
	}
	if size == plainSize {
		size = r.udpSize()
	}
	return r.pack(size)
}

// resolve puts the answer to a question into r.
func (z *zone) resolve(r *reply, q dnsmessage.Question) {
	name := strings.ToLower(q.Name.String())
	reverse := strings.HasSuffix(name, ".in-addr.arpa.") || strings.HasSuffix(name, ".ip6.arpa.")
	if q.Class != dnsmessage.ClassINET || !reverse && name != z.domain && !strings.HasSuffix(name, "."+z.domain) {
		r.RCode = dnsmessage.RCodeRefused
		return
	}
	z.mu.RLock()
	defer z.mu.RUnlock()
	if !z.known {
		r.RCode = dnsmessage.RCodeServerFailure // "there is no such name" would be remembered
		return
	}
	var records []dnsmessage.ResourceBody
	exists := true
	if reverse {
		if records, exists = z.reverse(name, q.Type); !exists {
			r.RCode = dnsmessage.RCodeRefused // perhaps somebody else knows the address
			return
		}
	} else {
		records, exists = z.find(name, q.Type)
	}
	r.Authoritative = true
	if !exists {
		r.RCode = dnsmessage.RCodeNameError
	}
	seen := make(map[dnsmessage.Name]bool)
	for _, body := range records {
		// With the name as it was asked for: clients compare its case.
		r.Answers = append(r.Answers, resource(q.Name, body))
		if srv, ok := body.(*dnsmessage.SRVResource); ok && !seen[srv.Target] {
			seen[srv.Target] = true
			found, _ := z.find(srv.Target.String(), dnsmessage.TypeALL)
			for _, body := range found {
				r.Additionals = append(r.Additionals, resource(srv.Target, body))
			}
		}
	}
	if len(records) == 0 && !reverse {
		domain, _ := dnsmessage.NewName(z.domain) // newZone has made longer ones
		soa := z.soa
		r.Authorities = append(r.Authorities, resource(domain, &soa))
	}
}

func resource(name dnsmessage.Name, body dnsmessage.ResourceBody) dnsmessage.Resource {
	return dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET, TTL: ttl}, Body: body}
}

// reply is a message on its way to the client.
type reply struct {
	dnsmessage.Message
	edns   int // 1 if the first additional record is an EDNS record
	client int // how many bytes the client takes over UDP by EDNS
}

// readEDNS reads what the client says about itself, and answers in kind.
func (r *reply) readEDNS(p *dnsmessage.Parser) {
	if p.SkipAllAnswers() != nil || p.SkipAllAuthorities() != nil {
		r.RCode = dnsmessage.RCodeFormatError
		return
	}
	for {
		h, err := p.AdditionalHeader()
		if err != nil {
			if err != dnsmessage.ErrSectionDone {
				r.RCode = dnsmessage.RCodeFormatError
			}
			return
		}
		if h.Type == dnsmessage.TypeOPT && r.edns == 0 {
			r.edns, r.client = 1, int(h.Class)
			var own dnsmessage.ResourceHeader
			rcode := dnsmessage.RCodeSuccess
			if version := h.TTL >> 16 & 0xff; version != 0 {
				rcode = 16 // BADVERS
			}
			if err := own.SetEDNS0(maxSize, rcode, false); err == nil {
				r.Additionals = append(r.Additionals, dnsmessage.Resource{Header: own, Body: &dnsmessage.OPTResource{}})
				r.RCode = rcode & 0xf
			}
		}
		if err := p.SkipAdditional(); err != nil {
			r.RCode = dnsmessage.RCodeFormatError
			return
		}
	}
}

// udpSize is how large an answer over UDP may be.
func (r *reply) udpSize() int { return max(plainSize, min(r.client, maxSize)) }

// pack returns the message. If it is larger than size, it has no records and says so: the client comes back over TCP.
func (r *reply) pack(size int) []byte {
	message, err := r.Pack()
	if err == nil && len(message) > size {
		r.Truncated, r.Answers, r.Authorities, r.Additionals = true, nil, nil, r.Additionals[:r.edns]
		message, err = r.Pack()
	}
	if err != nil {
		return nil
	}
	return message
}
