package metrics

import "fmt"

// Note is a message for people. No program reads its text: severity and topic say what a program needs to know.
type Note struct {
	Agent    string // "": the process, or the run as a whole
	Severity Severity
	Topic    Topic
	Text     string // without the severity's name, which whoever shows the note adds
}

// Severity says whether somebody should look into a note.
type Severity string

// The severities. Notes of runs that did not record one yet have none.
const (
	Info    Severity = "info"
	Warning Severity = "warning"
)

// Topic is what a note is about.
type Topic string

// The topics.
const (
	TopicStart      Topic = "start"      // where the run begins, resumes, or goes back to
	TopicStop       Topic = "stop"       // why it ends before its last step
	TopicWaiting    Topic = "waiting"    // somebody is waited for longer than usual
	TopicSettings   Topic = "settings"   // a setting that does not do what it seems to
	TopicCheckpoint Topic = "checkpoint" // a checkpoint was written
	TopicFiles      Topic = "files"      // another file could not be written
	TopicUpdate     Topic = "update"     // an update of the weights was refused
	TopicGap        Topic = "gap"        // sampler and trainer disagree about log-probs
	TopicVerifier   Topic = "verifier"   // answers could not be scored
	TopicTask       Topic = "task"       // a query that cannot be played as it is
	TopicTools      Topic = "tools"      // a tool fails
	TopicHealth     Topic = "health"     // where the process answers questions about itself
)

// Infof is a note that nobody has to act on.
func Infof(agent string, topic Topic, format string, args ...any) Note {
	return Note{agent, Info, topic, fmt.Sprintf(format, args...)}
}

// Warnf is a note that somebody should look into.
func Warnf(agent string, topic Topic, format string, args ...any) Note {
	return Note{agent, Warning, topic, fmt.Sprintf(format, args...)}
}
