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
	ACL storeACLCmd `cmd:"" name:"acl" help:"Print the rules of the server's users, one a worker."`
}

type storeACLCmd struct {
	requiredConfig
	Agent  string `placeholder:"NAME" help:"Only the user of this agent's worker."`
	File   bool   `help:"Lines of an ACL file, with the hash of the password that the configuration names."`
	Redis6 bool   `name:"redis6" help:"For Redis 6.2, which cannot bind commands to keys."`
}

func (storeACLCmd) Help() string {
	return `Prints a line for each user of the run: RUN for mgrpo train, which holds all agents, RUN-AGENT for the worker of
each, RUN-status for mgrpo status. A user may do what the protocol needs and nothing else.

The lines are ACL SETUSER commands that leave passwords as they are; a user needs one, by
ACL SETUSER NAME '>PASSWORD'. With --file they are those of an ACL file, and the password is that of
store.password_env or store.password_file.

  mgrpo store acl -c team.yaml | redis-cli --user admin`
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
		fmt.Println("user default reset off ~* &* +@all") // Redis loads its append-only file with the rights of this user
	}
	for _, u := range users {
		rules, err := store.ACLRules(cfg.Run.Name, cfg.Store.URL, u, c.Redis6)
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
