package main

import (
	"fmt"
	"net"
	"os"
	"strconv"
)

// hostPort returns --listen as HOST:PORT. A port alone means 127.0.0.1:PORT.
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

// tokenFromEnv returns the value of the variable that --token-env names, or "" without the flag.
func tokenFromEnv(variable string) (string, error) {
	if variable == "" {
		return "", nil
	}
	token := os.Getenv(variable)
	if token == "" {
		return "", fmt.Errorf("--token-env: the environment variable %s is not set", variable)
	}
	return token, nil
}
