package main

import (
	"slices"
	"strconv"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

// chat is the chat template of our models. It prints only the names of tools, because these models cannot read English.
const chat = `{% if tools %}<|tools|> {% for t in tools %}{{ t.function.name }} {% endfor %}<|end|> {% endif %}` +
	`{% for m in messages %}<|{{ m.role }}|> {{ m.content }} <|end|> {% endfor %}{% if add_generation_prompt %}<|assistant|> {% endif %}`

// words returns a tokenizer for models that begin as random weights. Every word of the task is a token, and so is every
// part of a call between two spaces. Pretrained models have their own tokenizer, so a task for them does not need this file.
func words() tokenizer.WordLevel {
	vocab := []string{"<|unknown|>", "<|tools|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>"}
	vocab = append(vocab, "<tool_call>", "</tool_call>", `{"name":"clerk","arguments":{"task":"`, `{"name":"measure","arguments":{"unit":"`, `"}}`)
	vocab = append(vocab, "clerk", "measure", "how", "many", "in", "one", "?", "none")
	vocab = slices.Concat(vocab, units)
	for n := range 26 {
		vocab = append(vocab, strconv.Itoa(n))
	}
	return tokenizer.WordLevel{Vocab: vocab, Unk: vocab[0], EOS: "<|end|>", Special: vocab[1:5], ChatTemplate: chat}
}
