package metrics

import "fmt"

// Note is a message for people. Programs use its severity and topic and do not parse its text.
type Note struct {
	Agent    string // "": the process or the whole run
	Severity Severity
	Topic    Topic
	Text     string // without the name of the severity, which observers add
}

// Severity states whether a note needs attention.
type Severity string

// The severities.
const (
	Info    Severity = "info"
	Warning Severity = "warning"
)

// Topic is the subject of a note.
type Topic string

// The topics.
const (
	TopicStart      Topic = "start"      // the step from which the run starts, resumes, or continues after it went back
	TopicModel      Topic = "model"      // a part of a checkpoint that is not used
	TopicStop       Topic = "stop"       // reason why the run ends before its last step
	TopicEnd        Topic = "end"        // the run has made its last step and evaluation; only in the file
	TopicWaiting    Topic = "waiting"    // a wait for another agent takes longer than usual
	TopicSettings   Topic = "settings"   // a setting that does not have the effect a user may expect
	TopicCheckpoint Topic = "checkpoint" // a checkpoint was written
	TopicFiles      Topic = "files"      // a file other than a checkpoint could not be written
	TopicUpdate     Topic = "update"     // an update of the weights was refused
	TopicGap        Topic = "gap"        // sampler and trainer disagree about log-probs
	TopicVerifier   Topic = "verifier"   // answers could not be scored
	TopicTask       Topic = "task"       // a query or a demonstration cannot be used
	TopicTools      Topic = "tools"      // a tool fails
	TopicHealth     Topic = "health"     // address of the health endpoint
	TopicTracking   Topic = "tracking"   // an experiment tracker: the run's address, and why the tracker receives no further records
	TopicEngine     Topic = "engine"     // servers that sample: their programs and versions, and waits for them
)

// Steps formats a number of steps: 1 step, 2 steps.
func Steps(n int64) string {
	if n == 1 {
		return "1 step"
	}
	return fmt.Sprintf("%d steps", n)
}

// Infof returns a note that needs no action.
func Infof(agent string, topic Topic, format string, args ...any) Note {
	return Note{agent, Info, topic, fmt.Sprintf(format, args...)}
}

// Warnf returns a note that needs attention.
func Warnf(agent string, topic Topic, format string, args ...any) Note {
	return Note{agent, Warning, topic, fmt.Sprintf(format, args...)}
}
