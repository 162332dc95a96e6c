// A gRPC server that sends responses built beforehand, for emulator.py to compare with.
//
// Its argument is a file of responses in their wire form, each behind its length in four bytes, the
// highest first; each has 100 events. They are sent again and again, one whenever 100 events are
// wanted: at most 100 may be, as with the service. Requests are read only for how many they ask for.
//
// It prints its address and ends with its standard input.
package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
)

const events = 100 // in a response, and wanted at most

const numRequested = 4 // field of FetchRequest

// wire passes messages on as bytes, so that nothing is built while it is measured.
type wire struct{}

func (wire) Name() string { return "proto" }

func (wire) Marshal(message any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(message.([]byte))}, nil
}

func (wire) Unmarshal(data mem.BufferSlice, message any) error {
	*message.(*[]byte) = data.Materialize()
	return nil
}

// wanted is how many events a FetchRequest asks for.
func wanted(request []byte) (uint64, error) {
	var found uint64
	for len(request) > 0 {
		field, kind, size := protowire.ConsumeTag(request)
		if size < 0 {
			return 0, protowire.ParseError(size)
		}
		request = request[size:]
		if field == numRequested && kind == protowire.VarintType {
			found, size = protowire.ConsumeVarint(request)
		} else {
			size = protowire.ConsumeFieldValue(field, kind, request)
		}
		if size < 0 {
			return 0, protowire.ParseError(size)
		}
		request = request[size:]
	}
	return found, nil
}

func subscribe(responses [][]byte) grpc.StreamHandler {
	return func(_ any, stream grpc.ServerStream) error {
		var credit uint64
		for next := 0; ; next = (next + 1) % len(responses) {
			for credit < events {
				var request []byte
				if err := stream.RecvMsg(&request); errors.Is(err, io.EOF) {
					return nil
				} else if err != nil {
					return err
				}
				more, err := wanted(request)
				if err != nil {
					return err
				}
				credit = min(events, credit+more)
			}
			credit -= events
			if err := stream.SendMsg(responses[next]); err != nil {
				return err
			}
		}
	}
}

func read(path string) ([][]byte, error) {
	rest, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var responses [][]byte
	for len(rest) >= 4 {
		end := 4 + int(binary.BigEndian.Uint32(rest))
		responses = append(responses, rest[4:end])
		rest = rest[end:]
	}
	return responses, nil
}

func main() {
	responses, err := read(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.ForceServerCodecV2(wire{}), grpc.UnknownServiceHandler(subscribe(responses)),
	)
	fmt.Println(listener.Addr())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	log.Fatal(server.Serve(listener))
}
