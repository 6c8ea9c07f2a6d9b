package gateway

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"sync"

	"github.com/mgrpo/mgrpo/trainer/agent"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer/ordered"
)

// dialect is the chat template with a list of functions and with a request's variables.
type dialect struct {
	template     *agent.Template
	key          string // the list and the variables, which identify the dialect
	hasFunctions bool   // there are functions
	functions    *agent.Callables

	once sync.Once // creates it once, even if many requests need it at the same time
	err  error
}

// dialectOf returns the agent's chat template with a request's functions and variables.
func (a *AgentServer) dialectOf(r *chatRequest) (*dialect, error) {
	functions, err := r.functions()
	if err != nil {
		return nil, err
	}
	kwargs, err := r.kwargs()
	if err != nil {
		return nil, err
	}
	return a.dialect(functions, kwargs)
}

// dialect returns the agent's chat template with a list of functions and further variables; kwargs may be nil.
func (a *AgentServer) dialect(functions []json.RawMessage, kwargs *ordered.Object) (*dialect, error) {
	var key strings.Builder
	for _, f := range functions {
		key.Write(f)
		key.WriteByte('\n')
	}
	if kwargs != nil {
		text, err := ordered.Dumps(kwargs, ordered.Format{})
		if err != nil {
			return nil, invalid("chat_template_kwargs", "%v", err)
		}
		key.WriteString(text)
	}
	a.mu.Lock()
	d := a.templates[key.String()]
	if d == nil {
		if len(a.templates) >= maxTemplates {
			clear(a.templates)
		}
		d = &dialect{key: key.String(), hasFunctions: len(functions) > 0}
		a.templates[d.key] = d
	}
	a.mu.Unlock()
	d.once.Do(func() { d.err = a.probe(d, functions, kwargs) })
	return d, d.err
}

// probe creates the dialect's template.
func (a *AgentServer) probe(d *dialect, functions []json.RawMessage, kwargs *ordered.Object) (err error) {
	d.template, err = agent.NewTemplate(agent.TemplateOptions{Tokenizer: a.Tokenizer, Functions: functions, TemplateArgs: mergeArgs(a.Variables, kwargs),
		Date: a.Date})
	if errors.Is(err, tokenizer.ErrNoTemplate) {
		return refuse(400, "no_chat_template", "%s has no chat template: use /v1/completions, or add chat_template.jinja to its folder", a.Name)
	}
	if err != nil && kwargs != nil {
		return invalid("chat_template_kwargs", "%v", err)
	}
	if err == nil {
		d.functions, err = agent.CallablesOf(functions)
	}
	if err != nil {
		return invalid("tools", "%v", err)
	}
	return nil
}

// mergeArgs returns the template's variables of the agent and of a request. The request's values win.
func mergeArgs(own, requested *ordered.Object) *ordered.Object {
	if own == nil || requested == nil {
		return cmp.Or(own, requested)
	}
	out := own.Clone()
	for _, key := range requested.Keys() {
		v, _ := requested.Get(key)
		out.Set(key, v)
	}
	return out
}

// kwargs returns the request's variables of the template, or nil if there are none.
func (r *chatRequest) kwargs() (*ordered.Object, error) {
	if len(r.ChatTemplateKwargs) == 0 {
		return nil, nil
	}
	v, err := ordered.Parse(r.ChatTemplateKwargs)
	kwargs, ok := v.(*ordered.Object)
	if err != nil || !ok {
		return nil, invalid("chat_template_kwargs", "it must be an object with variables of the chat template")
	}
	for _, own := range []string{"messages", "tools", "documents", "add_generation_prompt"} {
		if slices.Contains(kwargs.Keys(), own) {
			return nil, invalid("chat_template_kwargs", "%s cannot be set, because it is made from the request", own)
		}
	}
	if len(kwargs.Keys()) == 0 {
		return nil, nil
	}
	return kwargs, nil
}

// checkKwargs refuses variables of the template that change the prompt of an agent in training. The agent would learn
// from a prompt that its own conversations do not have.
func (a *AgentServer) checkKwargs(r *chatRequest, d *dialect, rules Rules) error {
	kwargs, err := r.kwargs()
	if err != nil || kwargs == nil || rules.Free {
		return err
	}
	functions, err := r.functions()
	if err != nil {
		return err
	}
	plain, err := a.dialect(functions, nil)
	if err != nil {
		return err
	}
	_, want, err := plain.template.Prompt(templateMessages(r.Messages, plain.template.Neutral))
	if err != nil {
		return invalid("messages", "%v", err)
	}
	if _, text, err := d.template.Prompt(templateMessages(r.Messages, d.template.Neutral)); err != nil || text != want {
		return invalid("chat_template_kwargs", "they change the prompt, which must be the agent's own in training: leave them out")
	}
	return nil
}
