package main

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// idle is how long a client may leave a TCP connection unused, or take for a message.
	idle = 10 * time.Second
	// maxConnections is how many TCP connections there may be at once; further ones wait.
	maxConnections = 100
)

// serveUDP answers queries until ctx ends.
func serveUDP(ctx context.Context, c net.PacketConn, z *zone) {
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	query := make([]byte, tcpSize)
	for {
		n, from, err := c.ReadFrom(query)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			continue // the error of an answer to a client that is gone
		}
		if answer := z.answer(query[:n], plainSize); answer != nil {
			_, _ = c.WriteTo(answer, from)
		}
	}
}

// serveTCP answers queries until ctx ends.
func serveTCP(ctx context.Context, l net.Listener, z *zone) {
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	var clients sync.WaitGroup
	defer clients.Wait()
	room := make(chan struct{}, maxConnections)
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = c.Close()
			}
			return
		}
		if err != nil {
			time.Sleep(100 * time.Millisecond) // too many open files, say
			continue
		}
		room <- struct{}{}
		clients.Go(func() {
			defer func() { <-room }()
			converse(ctx, c, z)
		})
	}
}

// converse answers the queries on a connection, each after its length in two bytes.
func converse(ctx context.Context, c net.Conn, z *zone) {
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	for {
		_ = c.SetDeadline(time.Now().Add(idle))
		var length [2]byte
		if _, err := io.ReadFull(c, length[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(length[:]))
		if _, err := io.ReadFull(c, query); err != nil {
			return
		}
		answer := z.answer(query, tcpSize)
		if answer == nil {
			return
		}
		if _, err := c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}
