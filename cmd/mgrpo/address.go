package main

import (
	"fmt"
	"net"
	"strconv"
)

// hostPort returns the address that --listen names, where a port alone is one of 127.0.0.1.
func hostPort(listen string) (string, error) {
	if _, err := strconv.ParseUint(listen, 10, 16); err == nil {
		return net.JoinHostPort("127.0.0.1", listen), nil
	}
	_, port, err := net.SplitHostPort(listen)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return "", fmt.Errorf("--listen %s: want [HOST:]PORT, such as 9464 or 127.0.0.1:9464", listen)
	}
	return listen, nil
}
