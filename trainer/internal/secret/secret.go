// Package secret reads, hides and compares secrets, such as the keys and tokens of servers.
package secret

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"os"
	"slices"
	"strings"
)

// FromEnv returns the value of an environment variable that the setting key names. It returns "" if variable is "", and an
// error if the variable is not set or empty.
func FromEnv(key, variable string) (string, error) {
	if variable == "" {
		return "", nil
	}
	value := os.Getenv(variable)
	if value == "" {
		return "", fmt.Errorf("%s: the environment variable %s is not set", key, variable)
	}
	return value, nil
}

// Environ returns the environment of this process without some variables, for a child process that must not know their values.
func Environ(hidden []string) []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		name, _, _ := strings.Cut(v, "=")
		return slices.Contains(hidden, name)
	})
}

// Equal reports whether a text is the wanted secret. It compares in constant time, so that the time of an answer reveals
// neither the secret nor its length. It returns false if want is "".
func Equal(got, want string) bool {
	a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(want))
	return want != "" && subtle.ConstantTimeCompare(a[:], b[:]) == 1
}
