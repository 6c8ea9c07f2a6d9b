package gateway

import (
	"encoding/json"

	"github.com/mgrpo/mgrpo/trainer/agent/gateway/constrained"
	"github.com/mgrpo/mgrpo/trainer/engine/policy"
	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

// constraint returns the constraint on a request's reply, or nil if the request does not ask for a form. In training it
// always returns nil, because the policy must learn to produce the requested form.
func (a *AgentServer) constraint(r *chatRequest, d *dialect, rules Rules) (policy.Constraint, error) {
	if !rules.Free {
		return nil, nil
	}
	tag, err := r.structuralTag(d, a.Tokenizer)
	if tag == nil || err != nil {
		return nil, err
	}
	if !policy.Constrains(a.Policy) {
		return nil, refuse(400, "invalid_request", "response_format and tool_choice: mgrpo cannot constrain the engine that samples for %s: leave "+
			"them out and check the reply", a.Name)
	}
	c, err := a.grammars.Constraint(tag, r.template(d))
	switch {
	case err != nil && r.ToolChoice.mode == "required":
		return nil, invalid("tools", "the functions' parameters: %v", err)
	case err != nil:
		return nil, invalid("response_format", "%v", err)
	}
	return c, nil
}

// structuralTag returns the structural tag of the replies that a request asks for, or nil if any reply is allowed. If a
// request cannot be enforced, the error names its field.
func (r *chatRequest) structuralTag(d *dialect, tok *tokenizer.Tokenizer) (json.RawMessage, error) {
	field, form := "tool_choice", constrained.Form{Several: !r.oneCall() && r.ToolChoice.name == ""}
	if r.ToolChoice.mode != "required" {
		if form.Schema = r.ResponseFormat.schema(); form.Schema == nil {
			return nil, nil
		}
		field = "response_format"
	}
	for _, raw := range r.Tools {
		f := functionOf(raw).Function
		if r.ToolChoice.mode == "none" || r.ToolChoice.name != "" && r.ToolChoice.name != f.Name {
			continue
		}
		call, err := d.template.CallForm(f.Name)
		if err != nil {
			return nil, invalid(field, "%v; leave it out", err)
		}
		form.Functions = append(form.Functions, constrained.Function{Name: f.Name, Parameters: f.Parameters, Call: call})
	}
	tag, err := form.StructuralTag(r.template(d), tok)
	if err != nil {
		return nil, invalid(field, "%v; leave it out", err)
	}
	return tag, nil
}
