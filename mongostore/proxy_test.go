package mongostore_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"
)

// A proxy stands between client and server and tampers with answers.
type proxy struct {
	URI string

	// replicaSet has the server pass for a replica set's primary, with what
	// the driver then does: sessions, writes that it repeats by itself, read
	// preferences.
	replicaSet bool

	mu      sync.Mutex
	command string // the command whose next answer is tampered with; empty: none
	tamper  tamper
	count   int // of answers that were
}

// A tamper answers what the client gets instead of the server's answer; false:
// nothing.
type tamper func(answer bson.Raw, client net.Conn) (bson.Raw, bool)

// lose ends the connection.
func lose(bson.Raw, net.Conn) (bson.Raw, bool) { return nil, false }

// hang lets the client wait until it gives up.
func hang(_ bson.Raw, client net.Conn) (bson.Raw, bool) {
	io.Copy(io.Discard, client)
	return nil, false
}

// newProxy starts a proxy to the server, which is stopped when the test ends.
func newProxy(t *testing.T, uri string) *proxy {
	t.Helper()
	server := strings.TrimPrefix(uri, "mongodb://")
	if _, _, err := net.SplitHostPort(server); err != nil {
		t.Skipf("no proxy to %s", uri)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{URI: "mongodb://" + listener.Addr().String()}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			group.Go(func() { p.serve(client, server) })
		}
	})
	t.Cleanup(func() { // after the clients have disconnected
		listener.Close()
		group.Wait()
	})
	return p
}

// next has the next such command's answer tampered with, once the server has
// carried the command out.
func (p *proxy) next(command string, t tamper) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.command, p.tamper = command, t
}

func (p *proxy) tampered() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count
}

// serve passes one connection's messages on, each with its answer.
func (p *proxy) serve(client net.Conn, address string) {
	defer client.Close()
	server, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer server.Close()
	for {
		request, err := message(client)
		if err != nil {
			return
		}
		if _, err := server.Write(request); err != nil {
			return
		}
		answer, err := message(server)
		if err != nil {
			return
		}
		if t := p.tampers(request); t != nil {
			at := documentAt(answer)
			doc, ok := t(answer[at:], client)
			if !ok {
				return
			}
			answer = append(answer[:at:at], doc...)
			binary.LittleEndian.PutUint32(answer, uint32(len(answer)))
		}
		if _, err := client.Write(answer); err != nil {
			return
		}
	}
}

func (p *proxy) tampers(request []byte) tamper {
	// The command is the name of the document's first element.
	command, _, _ := bytes.Cut(request[documentAt(request)+5:], []byte{0})
	if p.replicaSet && strings.EqualFold(string(command), "isMaster") {
		address := strings.TrimPrefix(p.URI, "mongodb://")
		return withFields(bson.E{Key: "setName", Value: "rs"}, bson.E{Key: "setVersion", Value: 1}, bson.E{Key: "me", Value: address},
			bson.E{Key: "hosts", Value: bson.A{address}}, bson.E{Key: "primary", Value: address},
			bson.E{Key: "logicalSessionTimeoutMinutes", Value: 30})
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.command == "" || p.command != string(command) {
		return nil
	}
	p.command = ""
	p.count++
	return p.tamper
}

// withFields answers a tamper that adds the fields to the answer.
func withFields(fields ...bson.E) tamper {
	return func(answer bson.Raw, _ net.Conn) (bson.Raw, bool) {
		var doc bson.D
		if err := bson.Unmarshal(answer, &doc); err != nil {
			return nil, false
		}
		raw, err := bson.Marshal(append(doc, fields...))
		return raw, err == nil
	}
}

// documentAt answers where the document of a message begins.
func documentAt(message []byte) int {
	switch binary.LittleEndian.Uint32(message[12:]) {
	case 1: // OP_REPLY: flags, cursor, from, number
		return 16 + 4 + 8 + 4 + 4
	case 2004: // OP_QUERY: flags, a name, skip, number
		return 16 + 4 + bytes.IndexByte(message[20:], 0) + 1 + 4 + 4
	}
	return 16 + 4 + 1 // OP_MSG: flags, the section's kind
}

// message reads one message of MongoDB's wire protocol.
func message(from io.Reader) ([]byte, error) {
	head := make([]byte, 16)
	if _, err := io.ReadFull(from, head); err != nil {
		return nil, err
	}
	whole := make([]byte, binary.LittleEndian.Uint32(head))
	copy(whole, head)
	_, err := io.ReadFull(from, whole[16:])
	return whole, err
}
