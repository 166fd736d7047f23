// Command forward listens on the address of its first argument and connects
// each client to the address of its second. The API server listens on the
// loopback address only; Pods reach it through this program.
package main

import (
	"io"
	"log"
	"net"
	"os"
)

func main() {
	listener, err := net.Listen("tcp", os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	for {
		client, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go forward(client, os.Args[2])
	}
}

// forward copies data in both directions until the server ends its direction. If the client
// ends its direction first, forward ends that direction at the server too.
func forward(client net.Conn, address string) {
	defer client.Close()
	server, err := net.Dial("tcp", address)
	if err != nil {
		log.Print(err)
		return
	}
	defer server.Close()
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.(*net.TCPConn).CloseWrite()
	}()
	_, _ = io.Copy(client, server)
}
