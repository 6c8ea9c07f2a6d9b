package config

import (
	"fmt"
	"os"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/internal/secret"
	"github.com/mgrpo/mgrpo/trainer/internal/texts"
)

// Secrets are in environment variables or in files, never in the configuration.

// Password returns the store's password from the configured environment variable or file, or "" if neither is
// configured.
func (c *Config) Password() (string, error) {
	return c.secret("store.password_env", c.Store.PasswordEnv, "store.password_file", c.Store.PasswordFile)
}

// MachinesKey returns the key that an agent's machines use to recognise each other.
func (c *Config) MachinesKey(a *Agent) ([]byte, error) {
	const least = 16
	section := "agents." + a.Name + ".machines"
	key, err := c.secret(section+".key_env", a.Machines.KeyEnv, section+".key_file", a.Machines.KeyFile)
	if err == nil && len(key) < least {
		err = fmt.Errorf("config: %s: the key has %d bytes, but needs at least %d random bytes; make one with: head -c 32 /dev/urandom | base64", section,
			len(key), least)
	}
	return []byte(key), err
}

// secret returns the contents of an environment variable or a file, or "" if neither is configured.
func (c *Config) secret(envKey, env, fileKey string, file Path) (string, error) {
	switch {
	case env != "":
		return secret.FromEnv("config: "+envKey, env)
	case file != "":
		b, err := os.ReadFile(c.Resolve(file))
		if err != nil {
			return "", fmt.Errorf("config: %s: %w", fileKey, err)
		}
		p := strings.TrimSuffix(strings.TrimSuffix(string(texts.Normalize(b)), "\n"), "\r")
		if p == "" {
			return "", fmt.Errorf("config: %s: the file is empty", fileKey)
		}
		return p, nil
	}
	return "", nil
}
