package store

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	shared "github.com/mgrpo/mgrpo/trainer/team/store"
	"github.com/mgrpo/mgrpo/trainer/team/store/redisserver"
)

// server is a redis-server on the loopback that writes every change to disk before it answers.
type server struct {
	*redisserver.Server
	admin   *redis.Client
	options shared.Options // of a store on it
}

func startServer(withTLS bool) (*server, error) {
	start := redisserver.Start
	if withTLS {
		start = redisserver.StartTLS
	}
	s, err := start(redisserver.Durable...)
	if err != nil {
		return nil, err
	}
	return &server{s, s.Client(), shared.Options{Run: "bench", URL: s.URL(), TLS: shared.TLSOptions{CAFile: s.CertFile}, Timeout: time.Minute}}, nil
}

func (s *server) stop() {
	s.admin.Close()
	s.Remove()
}

// info returns the fields of INFO.
func (s *server) info(ctx context.Context) (map[string]string, error) {
	text, err := s.admin.Info(ctx, "server", "memory", "stats", "cpu", "persistence").Result()
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	for line := range strings.Lines(text) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			out[key] = value
		}
	}
	return out, nil
}

// number returns a field of INFO as a number, or 0 if it is not a number.
func number(info map[string]string, key string) float64 {
	x, _ := strconv.ParseFloat(info[key], 64)
	return x
}
