package report

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/mgrpo/mgrpo/trainer/agent"
)

// line is a line of trajectories/PHASE/AGENT.jsonl, as package archive writes it.
type line struct {
	agent.Trajectory
	Task      string   `json:"task"`
	Expert    *float64 `json:"expert"`
	Reward    *float64 `json:"reward"`
	Weight    float64  `json:"weight"`
	Advantage float64  `json:"advantage"`
	RowOf     string   `json:"row_of"`
}

// trajectoryFile is one agent's file of one phase.
type trajectoryFile struct {
	path  string
	phase phase
	agent string
}

// phase is a folder of trajectories. step-N holds trajectories that version N of the policy sampled, the data of training
// step N+1. eval-N is the evaluation after step N.
type phase struct {
	eval bool
	n    int64
}

// sortKey orders phases as a run has them: the evaluation of version n comes before the step that trains version n.
func (p phase) sortKey() int64 {
	if p.eval {
		return 2 * p.n
	}
	return 2*p.n + 1
}

func (p phase) label() string {
	switch {
	case !p.eval:
		return fmt.Sprintf("step %d", p.n+1)
	case p.n == 0:
		return "held out, before step 1"
	}
	return fmt.Sprintf("held out, after step %d", p.n)
}

var phaseName = regexp.MustCompile(`^(step|eval)-([0-9]{1,15})$`)

func (r *run) trajectoryFiles() ([]trajectoryFile, error) {
	var out []trajectoryFile
	for _, dir := range r.dirs {
		root := filepath.Join(dir, "trajectories")
		phases, err := os.ReadDir(root)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, p := range phases {
			match := phaseName.FindStringSubmatch(p.Name())
			if match == nil {
				continue
			}
			n, _ := strconv.ParseInt(match[2], 10, 64) // at most 15 digits
			files, err := os.ReadDir(filepath.Join(root, p.Name()))
			if err != nil {
				return nil, err
			}
			for _, f := range files {
				if name, ok := strings.CutSuffix(f.Name(), ".jsonl"); ok {
					out = append(out, trajectoryFile{filepath.Join(root, p.Name(), f.Name()), phase{match[1] == "eval", n}, name})
				}
			}
		}
	}
	return out, nil
}

// maxTrajectoryBytes is the size of the longest line; a trajectory of 100,000 tokens has about 3 MB.
const maxTrajectoryBytes = 32 << 20

// readLines calls f for each line of a file and returns the number of lines for which f failed.
func readLines(path string, f func(text []byte) error) (damaged int, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	in := bufio.NewScanner(file)
	in.Buffer(make([]byte, 0, 1<<16), maxTrajectoryBytes)
	for in.Scan() {
		if len(in.Bytes()) > 0 && f(in.Bytes()) != nil {
			damaged++
		}
	}
	if errors.Is(in.Err(), bufio.ErrTooLong) {
		return damaged + 1, nil // the rest of the file is not read
	}
	return damaged, in.Err()
}

// queriesIn returns the queries of a file.
func queriesIn(path string) (map[string]bool, error) {
	seen := map[string]bool{}
	_, err := readLines(path, func(text []byte) error {
		var l struct {
			Query string `json:"query"`
		}
		err := json.Unmarshal(text, &l)
		if err == nil {
			seen[l.Query] = true
		}
		return err
	})
	return seen, err
}

// trajectoriesOf reads and checks the trajectories of the given queries.
func trajectoriesOf(f trajectoryFile, queries []string) (out []line, damaged int, err error) {
	damaged, err = readLines(f.path, func(text []byte) error {
		var l line
		if err := json.Unmarshal(text, &l); err != nil {
			return err
		}
		if !slices.Contains(queries, l.Query) {
			return nil
		}
		if err := l.Check(); err != nil {
			return err
		}
		l.Agent = f.agent
		out = append(out, l)
		return nil
	})
	return joinRows(out), damaged, err
}

// joinRows adds further rows to the trajectories to which they belong. It omits rows whose trajectory is not in lines.
func joinRows(lines []line) (out []line) {
	rows := map[string][]agent.Row{}
	for _, l := range lines {
		if l.RowOf != "" {
			rows[l.RowOf] = append(rows[l.RowOf], l.Row)
		}
	}
	for _, l := range lines {
		if l.RowOf != "" {
			continue
		}
		l.More = slices.SortedFunc(slices.Values(rows[l.ID]), func(a, b agent.Row) int {
			return cmp.Or(cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID)) // +2 comes before +10
		})
		out = append(out, l)
	}
	return out
}

// isMain reports whether a trajectory belongs to the main agent: its id then has no invocation.
func (l *line) isMain() bool { return l.ID == l.Query+"/"+strconv.Itoa(l.Rollout) }
