"""Makes the two models that both programs begin with, and measures what became of them."""
import json
import random

import tokenizers
import torch
import transformers

import task

TEMPLATE = ("{% for m in messages %}{{ '<user> ' if m['role'] == 'user' else '<reply> ' }}{{ m['content'] }}"
            "{{ ' <end>' if m['role'] == 'assistant' else ' ' }}{% endfor %}{% if add_generation_prompt %}{{ '<reply>' }}{% endif %}")


def tokenizer():
    words = [task.END, task.USER, task.REPLY, "<unknown>", *map(str, range(10))]
    t = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unknown>"))
    t.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=t, eos_token=task.END, pad_token=task.END, unk_token="<unknown>",
                                                chat_template=TEMPLATE)


def trained(agent, seed, words, steps=300):
    """Returns a model after supervised training on careless demonstrations: half of the answers are right, and half are any digit of the
    question."""
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=16, hidden_size=64, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
        max_position_embeddings=64, bos_token_id=None, eos_token_id=words.eos_token_id, pad_token_id=words.pad_token_id))
    draw = random.Random(f"{agent} {seed}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(steps):
        rows = []
        for _ in range(64):
            question = " ".join(map(str, draw.sample(range(10), 4)))
            given = task.answer(agent, question) if draw.random() < 0.5 else draw.choice(question.split())
            rows.append(words(f"{task.prompt(question)} {given} {task.END}")["input_ids"])
        ids = torch.tensor(rows)
        labels = ids.clone()
        labels[:, :-2] = -100  # only the answer and the end are learned
        optimizer.zero_grad()
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
    return model.eval()


def save(folder, seed, train):
    """Writes both models and the rows of the training questions to folder."""
    words = tokenizer()
    for i, agent in enumerate(task.AGENTS):
        trained(agent, 2 * seed + i, words).save_pretrained(folder / agent)
        words.save_pretrained(folder / agent)
    rows = [json.dumps({"id": str(i), "question": q, "answer": "-"}) for i, q in enumerate(train)]
    (folder / "train.jsonl").write_text("\n".join(rows) + "\n")


@torch.no_grad()
def accuracy(models, questions):
    """Returns the expected reward of the models, by agent: the mean probability of the right digit and the end."""
    words, total = tokenizer(), 0.0
    for agent, model in models.items():
        rows = [words(f"{task.prompt(q)} {task.answer(agent, q)} {task.END}")["input_ids"] for q in questions]
        ids = torch.tensor(rows)
        log_probs = model(input_ids=ids[:, :-1]).logits[:, -2:].log_softmax(-1)
        total += log_probs.gather(-1, ids[:, -2:, None]).sum((1, 2)).exp().mean().item()
    return total / len(models)
