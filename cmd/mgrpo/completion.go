package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"
)

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh" help:"The shell: bash or zsh."`
}

func (completionCmd) Help() string {
	return `Prints a script that completes commands, options and file names:

    eval "$(mgrpo completion bash)"     in ~/.bashrc
    eval "$(mgrpo completion zsh)"      in ~/.zshrc`
}

func (c *completionCmd) Run(parsed *kong.Context) error {
	writeCompletion(os.Stdout, c.Shell, parsed.Model.Node)
	return nil
}

// writeCompletion writes the script. It has the words that may follow each command; the longest command that the line begins with counts.
// zsh runs bash's script.
func writeCompletion(w io.Writer, shell string, root *kong.Node) {
	if shell == "zsh" {
		fmt.Fprintln(w, "autoload -U +X compinit bashcompinit && compinit && bashcompinit")
	}
	fmt.Fprintln(w, "_mgrpo() {\n  local words='' line=\"${COMP_WORDS[*]:1:COMP_CWORD-1} \"\n  case $line in")
	writeCases(w, root, "")
	fmt.Fprintln(w, `  esac
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _mgrpo mgrpo`)
}

// writeCases writes the cases of the commands below a node and then its own, so that the longest comes first.
func writeCases(w io.Writer, node *kong.Node, path string) {
	var words []string
	for _, child := range node.Children {
		if !child.Hidden {
			writeCases(w, child, path+child.Name+" ")
			words = append(words, child.Name)
		}
	}
	for _, flags := range node.AllFlags(true) {
		for _, flag := range flags {
			words = append(words, "--"+flag.Name)
		}
	}
	pattern := "*"
	if path != "" {
		pattern = "'" + path + "'*"
	}
	fmt.Fprintf(w, "    %s) words='%s' ;;\n", pattern, strings.Join(words, " "))
}
