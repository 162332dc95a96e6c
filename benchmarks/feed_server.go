// A fast and minimal server of the Pub/Sub API, for the benchmarks of subscribers.
//
//	feed_server DIRECTORY ROUND_TRIP...
//
// DIRECTORY contains feed.json, written by feed.py: schemas, payloads, and the file names of a
// certificate and its key. For each ROUND_TRIP, in milliseconds, the server listens on a separate
// port whose connections delay each direction by half the round trip. The first line of output is a
// JSON object with the address for each round trip. For each line on standard input, the server
// prints a JSON line with its counts. It exits at the end of standard input.
//
// A topic is named /data/KIND_SIZE_RATE_NUMBER, a managed subscription KIND_SIZE_RATE_NUMBER. Both
// deliver events of that kind, up to SIZE per response and RATE responses per second; with RATE 0,
// only the credit limits the rate. NUMBER only makes names distinct. A feed never ends, and the
// requested start position is ignored. Flow control is as documented: requests add credit, up to
// 100 events, and each event sent uses one. Commits are confirmed immediately.
//
// The first eight bytes of a replay id are the publish time in nanoseconds since 1970, big-endian,
// so that a client can measure latency; two zero bytes follow. If RATE is not 0, an event that is
// sent late because the client granted credit late still has its scheduled time.
package main

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

const window = 100 // maximum number of requested events, as in the service

const rpcID = "8f2c1f2e-5f0f-4d43-9a31-5d7d0f6f2b6c" // the same for all responses

type kind struct {
	SchemaID string   `json:"schema_id"`
	Schema   string   `json:"schema"`
	Payloads [][]byte `json:"payloads"`
	events   []event
}

// event is an encoded ConsumerEvent, including its tag and length as a field of a FetchResponse.
type event struct {
	wire             []byte
	idAt, replayIDAt int // offsets of the last 12 digits of the event id and of the replay id
}

var feed struct {
	Certificate string           `json:"certificate"`
	Key         string           `json:"key"`
	Kinds       map[string]*kind `json:"kinds"`
}

var counts struct {
	requests, commits, responses, events atomic.Int64
}

func makeEvent(schemaID string, payload []byte) event {
	var inner []byte
	inner = protowire.AppendTag(inner, 1, protowire.BytesType)
	inner = protowire.AppendString(inner, "00000000-0000-4000-8000-000000000000")
	idAt := len(inner) - 12
	inner = protowire.AppendTag(inner, 2, protowire.BytesType)
	inner = protowire.AppendString(inner, schemaID)
	inner = protowire.AppendTag(inner, 3, protowire.BytesType)
	inner = protowire.AppendBytes(inner, payload)
	var outer []byte
	outer = protowire.AppendTag(outer, 1, protowire.BytesType)
	outer = protowire.AppendBytes(outer, inner)
	idAt += len(outer) - len(inner)
	outer = protowire.AppendTag(outer, 2, protowire.BytesType)
	outer = protowire.AppendBytes(outer, make([]byte, 10))
	var wire []byte
	wire = protowire.AppendTag(wire, 1, protowire.BytesType)
	wire = protowire.AppendBytes(wire, outer)
	return event{wire, idAt + len(wire) - len(outer), len(wire) - 10}
}

// wire is a gRPC codec that passes encoded messages through as bytes.
type wire struct{}

func (wire) Name() string { return "proto" }

func (wire) Marshal(message any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.NewBuffer(message.(*[]byte), mem.DefaultBufferPool())}, nil
}

func (wire) Unmarshal(data mem.BufferSlice, message any) error {
	*message.(*[]byte) = data.Materialize()
	return nil
}

// fields calls take for each field of a message, with the field's bytes or its integer value.
func fields(message []byte, take func(field protowire.Number, data []byte, number uint64)) error {
	for len(message) > 0 {
		field, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return protowire.ParseError(size)
		}
		message = message[size:]
		var data []byte
		var number uint64
		switch kind {
		case protowire.VarintType:
			number, size = protowire.ConsumeVarint(message)
		case protowire.BytesType:
			data, size = protowire.ConsumeBytes(message)
		default:
			size = protowire.ConsumeFieldValue(field, kind, message)
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		message = message[size:]
		take(field, data, number)
	}
	return nil
}

// request is a decoded FetchRequest or ManagedFetchRequest.
type request struct {
	name         string
	numRequested int
	commit       []byte // an encoded CommitReplayRequest, or nil
}

func parse(message []byte, isManaged bool) (request, error) {
	var found request
	name, numRequested := protowire.Number(1), protowire.Number(4)
	if isManaged {
		name, numRequested = 2, 3
	}
	err := fields(message, func(field protowire.Number, data []byte, number uint64) {
		switch {
		case field == name:
			found.name = string(data)
		case field == numRequested:
			found.numRequested = int(number)
		case isManaged && field == 5:
			found.commit = data
		}
	})
	return found, err
}

// stream is one call of Subscribe or ManagedSubscribe.
type stream struct {
	grpc.ServerStream
	isManaged bool
	requests  chan request
	failed    error // the error, such as io.EOF, that ended the requests
	kind      *kind
	size      int
	interval  time.Duration // between two responses
	credit    int
	sent      int
	last      int64 // the publish time of the last event, in nanoseconds since 1970
}

func (s *stream) read() {
	defer close(s.requests)
	for {
		var message []byte
		if s.failed = s.RecvMsg(&message); s.failed != nil {
			return
		}
		counts.requests.Add(1)
		found, err := parse(message, s.isManaged)
		if s.failed = err; err != nil {
			return
		}
		s.requests <- found
	}
}

// open sets the kind, response size and interval from the name of a topic or subscription.
func (s *stream) open(name string) error {
	parts := strings.Split(name[strings.LastIndex(name, "/")+1:], "_")
	if len(parts) != 4 || feed.Kinds[parts[0]] == nil {
		return fmt.Errorf("there is no feed named %q", name)
	}
	s.kind = feed.Kinds[parts[0]]
	size, err := strconv.Atoi(parts[1])
	if err != nil {
		return err
	}
	rate, err := strconv.Atoi(parts[2])
	if err != nil {
		return err
	}
	if s.size = size; rate > 0 {
		s.interval = time.Second / time.Duration(rate)
	}
	return nil
}

func (s *stream) take(found request) error {
	if s.kind == nil {
		if err := s.open(found.name); err != nil {
			return err
		}
	}
	s.credit = min(window, s.credit+found.numRequested)
	if found.commit != nil {
		return s.answer(found.commit)
	}
	return nil
}

// answer confirms a commit. Its id and position have the same field numbers in the request and in
// the response, so the encoded request is reused.
func (s *stream) answer(commit []byte) error {
	counts.commits.Add(1)
	commit = protowire.AppendTag(commit, 4, protowire.VarintType)
	commit = protowire.AppendVarint(commit, uint64(time.Now().UnixMilli()))
	var message []byte
	message = protowire.AppendTag(message, 4, protowire.VarintType)
	message = protowire.AppendVarint(message, uint64(s.credit))
	message = protowire.AppendTag(message, 5, protowire.BytesType)
	message = protowire.AppendBytes(message, commit)
	return s.SendMsg(&message)
}

// respond sends as many events as the size and the credit allow, with the given publish time.
func (s *stream) respond(published time.Time) error {
	count := min(s.size, s.credit)
	s.credit -= count
	at := max(published.UnixNano(), s.last+1)
	length := 128 // for the fields after the events
	for n := range count {
		length += len(s.kind.events[(s.sent+n)%len(s.kind.events)].wire)
	}
	buffer := mem.DefaultBufferPool().Get(length)
	message := (*buffer)[:0]
	var replayID [10]byte
	var number [6]byte
	for range count {
		next := s.kind.events[s.sent%len(s.kind.events)]
		start := len(message)
		message = append(message, next.wire...)
		binary.BigEndian.PutUint64(replayID[:], uint64(at))
		copy(message[start+next.replayIDAt:], replayID[:])
		unique := counts.events.Add(1)
		binary.BigEndian.PutUint32(number[2:], uint32(unique))
		hex.Encode(message[start+next.idAt:], number[:])
		s.last = at
		s.sent++
		at++
	}
	message = protowire.AppendTag(message, 2, protowire.BytesType)
	message = protowire.AppendBytes(message, replayID[:])
	message = protowire.AppendTag(message, 3, protowire.BytesType)
	message = protowire.AppendString(message, rpcID)
	if s.credit > 0 { // protobuf omits fields that are 0
		message = protowire.AppendTag(message, 4, protowire.VarintType)
		message = protowire.AppendVarint(message, uint64(s.credit))
	}
	counts.responses.Add(1)
	*buffer = message
	return s.SendMsg(buffer)
}

func (s *stream) serve() error {
	go s.read()
	var due time.Time
	for {
		for s.credit == 0 || len(s.requests) > 0 {
			found, isOpen := <-s.requests
			if !isOpen {
				return ended(s.failed)
			}
			if err := s.take(found); err != nil {
				return err
			}
		}
		published := time.Now()
		if s.interval > 0 {
			if due.IsZero() {
				due = published
			}
			if due = due.Add(s.interval); published.Before(due) {
				if err := s.wait(due); err != nil {
					return err
				}
				published = time.Now()
			} else {
				published = due
			}
		}
		if err := s.respond(published); err != nil {
			return err
		}
	}
}

// wait handles requests until the given time.
func (s *stream) wait(due time.Time) error {
	timer := time.NewTimer(time.Until(due))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			return nil
		case found, isOpen := <-s.requests:
			if !isOpen {
				return ended(s.failed)
			}
			if err := s.take(found); err != nil {
				return err
			}
		}
	}
}

var errEnded = errors.New("the client closed its side of the stream")

func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return errEnded
	}
	return err
}

// unary answers GetTopic and GetSchema.
func unary(method string, call grpc.ServerStream) error {
	var message, answer []byte
	if err := call.RecvMsg(&message); err != nil {
		return err
	}
	var asked string
	if err := fields(message, func(field protowire.Number, data []byte, _ uint64) {
		if field == 1 {
			asked = string(data)
		}
	}); err != nil {
		return err
	}
	put := func(field protowire.Number, text string) {
		answer = protowire.AppendTag(answer, field, protowire.BytesType)
		answer = protowire.AppendString(answer, text)
	}
	switch method {
	case "GetTopic":
		found := stream{}
		if err := found.open(asked); err != nil {
			return err
		}
		put(1, asked)
		put(2, "00D000000000001AAA")
		answer = protowire.AppendTag(answer, 4, protowire.VarintType)
		answer = protowire.AppendVarint(answer, 1)
		put(5, found.kind.SchemaID)
	case "GetSchema":
		for _, one := range feed.Kinds {
			if one.SchemaID == asked {
				put(1, one.Schema)
				put(2, one.SchemaID)
			}
		}
	default:
		return fmt.Errorf("there is no method %s", method)
	}
	return call.SendMsg(&answer)
}

func handle(_ any, call grpc.ServerStream) error {
	name, _ := grpc.MethodFromServerStream(call)
	method := name[strings.LastIndex(name, "/")+1:]
	if method != "Subscribe" && method != "ManagedSubscribe" {
		return unary(method, call)
	}
	one := stream{
		ServerStream: call, isManaged: method == "ManagedSubscribe", requests: make(chan request, window),
	}
	if err := one.serve(); err != errEnded {
		return err
	}
	return nil
}

// delayed is a connection that delays the data of each direction by a fixed time.
type delayed struct {
	net.Conn
	way       time.Duration
	in, out   chan parcel
	rest      []byte
	failed    error
	isClosed  chan struct{}
	closeOnce sync.Once
}

type parcel struct {
	data []byte
	due  time.Time
	err  error
}

func delay(connection net.Conn, way time.Duration) net.Conn {
	// The queues hold more chunks than the credit allows in transit, so that they never fill up.
	line := &delayed{
		Conn: connection, way: way, isClosed: make(chan struct{}),
		in: make(chan parcel, 1<<14), out: make(chan parcel, 1<<14),
	}
	go line.fetch()
	go line.deliver()
	return line
}

func (d *delayed) fetch() {
	for {
		data := make([]byte, 1<<15)
		size, err := d.Conn.Read(data)
		d.in <- parcel{data[:size], time.Now().Add(d.way), err}
		if err != nil {
			return
		}
	}
}

func (d *delayed) deliver() {
	for {
		select {
		case <-d.isClosed:
			return
		case next := <-d.out:
			time.Sleep(time.Until(next.due))
			d.Conn.Write(next.data) // fetch detects a broken connection
		}
	}
}

func (d *delayed) Read(data []byte) (int, error) {
	if len(d.rest) == 0 && d.failed == nil {
		next := <-d.in
		time.Sleep(time.Until(next.due))
		d.rest, d.failed = next.data, next.err
	}
	if len(d.rest) == 0 {
		return 0, d.failed
	}
	size := copy(data, d.rest)
	d.rest = d.rest[size:]
	return size, nil
}

func (d *delayed) Write(data []byte) (int, error) {
	select {
	case d.out <- parcel{append([]byte(nil), data...), time.Now().Add(d.way), nil}:
		return len(data), nil
	case <-d.isClosed:
		return 0, net.ErrClosed
	}
}

func (d *delayed) Close() error {
	d.closeOnce.Do(func() { close(d.isClosed) })
	return d.Conn.Close()
}

type longLine struct {
	net.Listener
	way time.Duration
}

func (l longLine) Accept() (net.Conn, error) {
	connection, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return delay(connection, l.way), nil
}

func load(directory string) (credentials.TransportCredentials, error) {
	text, err := os.ReadFile(filepath.Join(directory, "feed.json"))
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &feed); err != nil {
		return nil, err
	}
	for _, one := range feed.Kinds {
		for _, payload := range one.Payloads {
			one.events = append(one.events, makeEvent(one.SchemaID, payload))
		}
	}
	certificate, err := tls.LoadX509KeyPair(
		filepath.Join(directory, feed.Certificate), filepath.Join(directory, feed.Key),
	)
	if err != nil {
		return nil, err
	}
	return credentials.NewServerTLSFromCert(&certificate), nil
}

func listen(roundTrip string) (net.Listener, error) {
	milliseconds, err := strconv.ParseFloat(roundTrip, 64)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil || milliseconds == 0 {
		return listener, err
	}
	return longLine{listener, time.Duration(milliseconds * float64(time.Millisecond) / 2)}, nil
}

func main() {
	trusted, err := load(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.Creds(trusted), grpc.ForceServerCodecV2(wire{}), grpc.UnknownServiceHandler(handle),
		grpc.MaxConcurrentStreams(1000), // as the service allows
	)
	targets := map[string]string{}
	for _, roundTrip := range os.Args[2:] {
		listener, err := listen(roundTrip)
		if err != nil {
			log.Fatal(err)
		}
		targets[roundTrip] = listener.Addr().String()
		go server.Serve(listener)
	}
	say := json.NewEncoder(os.Stdout)
	say.Encode(targets)
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		say.Encode(map[string]int64{
			"requests": counts.requests.Load(), "commits": counts.commits.Load(),
			"responses": counts.responses.Load(), "events": counts.events.Load(),
		})
	}
}
