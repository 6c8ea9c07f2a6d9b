package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/config"
	"github.com/mgrpo/mgrpo/trainer/team/store"
)

type storeCmd struct {
	ACL storeACLCmd `cmd:"" name:"acl" help:"Print the Redis ACL rules of a run, with a user for each worker."`
}

type storeACLCmd struct {
	requiredConfig
	Agent string `placeholder:"NAME" help:"Print only the user of this agent's worker."`
	File  bool   `help:"Print the lines of an ACL file, with the hash of the configuration's password."`
}

func (storeACLCmd) Help() string {
	return `Prints a line for each user of the run. RUN is the user for mgrpo train, which runs all agents; RUN-AGENT for the worker
of an agent; RUN-status for mgrpo status. A user may execute only the commands that the protocol needs,
on the keys that they need. The rules need Redis 7.0 or newer.

The lines are ACL SETUSER commands. They do not change passwords: set a user's password with ACL SETUSER NAME
'>PASSWORD'. With --file they are lines of an ACL file, with the password of store.password_env or
store.password_file.

  mgrpo store acl team.yaml | redis-cli --user admin`
}

// Run prints the rules; it sends nothing.
func (c *storeACLCmd) Run() error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	if cfg.Store.URL == "" {
		return errors.New("store.url is not set: an embedded store has no users")
	}
	users, err := c.users(cfg)
	if err != nil {
		return err
	}
	begin, hash := "ACL SETUSER", ""
	if c.File {
		password, err := cfg.Password()
		if err != nil {
			return err
		}
		if password == "" {
			return errors.New("--file: users of an ACL file need a password, and neither store.password_env nor store.password_file names one")
		}
		begin, hash = "user", fmt.Sprintf("#%x ", sha256.Sum256([]byte(password)))
		fmt.Println("user default reset off ~* &* +@all") // Redis loads its append-only file with the permissions of this user
	}
	for _, u := range users {
		rules, err := store.ACLRules(cfg.Run.Name, cfg.Store.URL, u)
		if err != nil {
			return err
		}
		fmt.Printf("%s %s %s%s\n", begin, u.Name, hash, strings.Join(rules, " "))
	}
	return nil
}

func (c *storeACLCmd) users(cfg *config.Config) ([]store.User, error) {
	agents := []string{cfg.Main().Name}
	for _, a := range cfg.Subs() {
		agents = append(agents, a.Name)
	}
	users := store.Users(cfg.Run.Name, agents)
	if c.Agent == "" {
		return users, nil
	}
	i := slices.IndexFunc(users, func(u store.User) bool { return slices.Equal(u.Agents, []string{c.Agent}) && u.Name != cfg.Run.Name })
	if i < 0 {
		return nil, fmt.Errorf("--agent %s: the team is %s", c.Agent, strings.Join(agents, ", "))
	}
	return users[i : i+1], nil
}
