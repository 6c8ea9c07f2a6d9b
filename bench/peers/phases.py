"""The peers of a step's phases: transformers' generate, its forward and backward on a padded batch, and TRL's GRPOTrainer, on the weights,
prompts and completions that the case names. The latter two also run with PEFT's adapters. For two agents on these weights, also CoMLRL's
MAGRPOTrainer.

A case is {"suite", "folder", "dtype": "float32" or "bfloat16", "prompts": [[id]], "rollouts": K, "new_tokens", "completions": [[id]],
"advantages": [float], "checked": C, "log_probs": [[float]], "lr", "rank"}. Completion i belongs to prompt i // K. "log_probs" has the
first completion of each of the first C prompts in float64, from the provider "float64", or is absent.
"""

import importlib.metadata
import queue
import resource
import threading

import torch
import transformers

import inputs


def load(folder, dtype=torch.float32):
    # Its grouped products of experts do not support float64.
    experts = {"experts_implementation": "eager"} if dtype == torch.float64 else {}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True, **experts).to(inputs.device)


def log_probs(model, prompt, completion):
    """Returns the log-probs of a completion's tokens, one row."""
    ids = torch.tensor([prompt + completion], device=inputs.device)
    with torch.no_grad():
        logits = model(ids, use_cache=False).logits[0, len(prompt) - 1:-1]
    wide = torch.promote_types(logits.dtype, torch.float32)  # like generate's sampling
    return logits.to(wide).log_softmax(-1).gather(-1, ids[0, len(prompt):, None])[:, 0]


class Phase:
    """A provider in the form that serve.py needs."""

    version = f"transformers {transformers.__version__}, torch {torch.__version__}"
    checks_alone = True

    def __init__(self, case):
        self.case = case
        self.model = load(case["folder"], getattr(torch, case["dtype"]))
        self.settings = {"device": inputs.device, "dtype": case["dtype"], "attention": self.model.config._attn_implementation,
                         "threads": torch.get_num_threads(), "peak": "memory of the process, on a GPU that of tensors"}

    def peak(self):
        """Returns the memory of the process, or on a GPU the memory of tensors."""
        if inputs.device != "cpu":
            return torch.cuda.max_memory_allocated()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def check(self):
        """Returns the error of this model's log-probs compared with float64, relative to the largest."""
        worst = scale = 0.0
        for i, want in enumerate(self.case.get("log_probs") or []):
            completion = self.case["completions"][i * self.case["rollouts"]]
            want = torch.tensor(want, dtype=torch.float64)
            got = log_probs(self.model, self.case["prompts"][i], completion).double().cpu()
            worst, scale = max(worst, (got - want).abs().max().item()), max(scale, want.abs().max().item())
        return worst / scale if scale else 0.0


class Generate(Phase):
    """model.generate, every sequence its own row, eos disabled."""

    def __init__(self, case):
        super().__init__(case)
        self.model.eval()
        rows = [p for p in case["prompts"] for _ in range(case["rollouts"])]
        self.ids = torch.tensor(rows, device=inputs.device)
        n = case["new_tokens"]
        self.generation = transformers.GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=n, min_new_tokens=n,
            eos_token_id=None, pad_token_id=0, use_cache=True)
        self.settings |= {"generate": self.generation.to_diff_dict(), "rows": len(rows)}

    def run(self):
        out = self.model.generate(self.ids, attention_mask=torch.ones_like(self.ids), generation_config=self.generation)
        assert out.shape[1] == self.ids.shape[1] + self.case["new_tokens"], out.shape


class ForwardBackward(Phase):
    """Policy gradient of all rows at once: logits only of the completions, no gradient checkpointing."""

    def __init__(self, case):
        super().__init__(case)
        self.model.train()
        prompts = [p for p in case["prompts"] for _ in range(case["rollouts"])]
        self.ids = torch.tensor([p + c for p, c in zip(prompts, case["completions"], strict=True)], device=inputs.device)
        self.advantages = torch.tensor(case["advantages"], device=inputs.device)[:, None]
        self.settings |= {"batch": list(self.ids.shape), "padding": "all rows have one length",
                          "gradient_checkpointing": False, "optimizer": "not included", "logits_to_keep": "completions"}

    def run(self):
        n = self.case["new_tokens"]
        self.model.zero_grad(set_to_none=True)
        logits = self.model(self.ids, attention_mask=torch.ones_like(self.ids), use_cache=False,
                            logits_to_keep=n + 1).logits[:, :-1]
        new = logits.log_softmax(-1).gather(-1, self.ids[:, -n:, None])[..., 0]
        ratio = torch.exp(new - new.detach())
        loss = -torch.min(ratio * self.advantages, ratio.clamp(0.8, 1.2) * self.advantages).mean()
        loss.backward()


class Liger(Phase):
    """An update with Liger's kernels in transformers: supervised on the completions, in our micro-batches, with the optimizer's step. A
    policy gradient has the same products."""

    def __init__(self, case):
        if inputs.device != "cpu":  # its kernels are Triton's
            import liger_kernel.transformers
            liger_kernel.transformers.apply_liger_kernel_to_qwen3()
            self.version = f"liger-kernel {importlib.metadata.version('liger-kernel')}, {self.version}"
        super().__init__(case)
        self.model.train()
        rows = torch.tensor([p + c for p, c in zip(case["prompts"], case["completions"], strict=True)], device=inputs.device)
        labels = rows.clone()
        labels[:, :len(case["prompts"][0])] = -100
        size = max(1, case["micro_batch"] // rows.shape[1])
        self.parts = list(zip(rows.split(size), labels.split(size)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.0, betas=(0.9, 0.98), weight_decay=0.1, fused=True)
        self.settings |= {"batch": list(rows.shape), "micro_batches": len(self.parts), "optimizer": "AdamW in the weights' type, clip 1, part of what is timed",
                          "loss": "cross-entropy, linear and fused", "gradient_checkpointing": False}

    def run(self):
        self.model.zero_grad(set_to_none=True)
        for ids, labels in self.parts:
            (self.model(input_ids=ids, labels=labels, use_cache=False, return_dict=True).loss / len(self.parts)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


def adapters(case):
    """Adds new adapters to every linear map of the layers."""
    import peft
    return peft.LoraConfig(r=case["rank"], lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")


def described(config):
    import peft
    return {"lora": {"r": config.r, "alpha": config.lora_alpha, "targets": "all-linear"}, "peft": peft.__version__}


class AdapterUpdate(ForwardBackward):
    """The same with PEFT's adapters, and with the optimizer's step."""

    def __init__(self, case):
        super().__init__(case)
        import peft
        config = adapters(case)
        self.model = peft.get_peft_model(self.model, config)
        self.trained = [p for p in self.model.parameters() if p.requires_grad]
        # Rate 0: each run computes the same.
        self.optimizer = torch.optim.AdamW(self.trained, lr=0.0, betas=(0.9, 0.98), weight_decay=0.1, fused=True)
        self.settings |= {**described(config), "trained": sum(p.numel() for p in self.trained), "optimizer": "AdamW, clip 1, part of what is timed"}

    def run(self):
        super().run()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()


class Gate(transformers.TrainerCallback):
    """Stops the trainer before each step until a step is requested."""

    def __init__(self):
        self.go, self.did = queue.Queue(), queue.Queue()

    def on_step_begin(self, *_, **__):
        self.go.get()

    def on_step_end(self, *_, **__):
        self.did.put(None)


class GRPO(Phase):
    """One step of trl.GRPOTrainer: generate, reward, loss, backward, clip, AdamW. With a rank in the case, of PEFT's adapters."""

    def __init__(self, case):
        super().__init__(case)
        self.error = super().check()  # before the first step, because it changes the weights
        self.gate = Gate()
        trainer = self.trainer()
        threading.Thread(target=self.train, args=[trainer], daemon=True).start()

    def trainer(self):
        case = self.case
        import datasets
        import trl
        self.version = f"trl {trl.__version__}, {self.version}"
        rows, n = len(case["prompts"]) * case["rollouts"], case["new_tokens"]
        chosen = dict(
            per_device_train_batch_size=rows, gradient_accumulation_steps=1, num_generations=case["rollouts"],
            max_completion_length=n, generation_kwargs={"min_new_tokens": n}, temperature=1.0, top_p=1.0, top_k=0,
            learning_rate=case["lr"], lr_scheduler_type="constant", optim="adamw_torch_fused", weight_decay=0.1,
            adam_beta1=0.9, adam_beta2=0.98, max_grad_norm=1.0, beta=0.0, loss_type="grpo", scale_rewards="group",
            num_iterations=1, bf16=False, gradient_checkpointing=False, use_vllm=False, use_cpu=inputs.device == "cpu",
            pad_to_multiple_of=None, max_steps=1_000_000, logging_steps=1_000_000, save_strategy="no", report_to=[],
            disable_tqdm=True, seed=0)
        self.settings |= chosen
        config = None
        if case["rank"]:
            config = adapters(case)
            self.settings |= described(config)
        # The fingerprint is given, because otherwise datasets would pickle the whole of pyarrow, which is not under site-packages here.
        prompts = datasets.Dataset(datasets.table.InMemoryTable.from_pydict(
            {"prompt": [spelled(p) for p in case["prompts"]]}), fingerprint="prompts")
        return trl.GRPOTrainer(
            model=self.model, reward_funcs=even, args=trl.GRPOConfig(output_dir=f"{case['folder']}-trl", **chosen),
            train_dataset=prompts, callbacks=[self.gate], peft_config=config,
            processing_class=numerals(self.model.config.vocab_size, case["prompts"]))

    def check(self):
        return self.error

    def train(self, trainer):
        try:
            trainer.train()
        except Exception as e:  # passed to the thread that waits for the step
            self.gate.did.put(e)

    def run(self):
        self.gate.go.put(None)
        if error := self.gate.did.get():
            raise error


def even(completion_ids, **_):
    """Returns the reward: the fraction of even ids."""
    for ids in completion_ids:
        assert len(ids) == len(completion_ids[0]), "completions differ in length"
    return [sum(i % 2 == 0 for i in ids) / len(ids) for ids in completion_ids]


def numerals(vocab, prompts):
    """A tokenizer whose words are the ids themselves, so that prompts are exactly the case's tokens. The padding is an id that no prompt
    has. It is not written as a numeral, because a numeral could be found within others."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    used, pad = {i for p in prompts for i in p}, "<pad>"
    spare = next(i for i in reversed(range(vocab)) if i not in used)
    t = Tokenizer(models.WordLevel({str(i): i for i in range(vocab) if i != spare} | {pad: spare}, unk_token=pad))
    t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=t, eos_token=pad, pad_token=pad, padding_side="left")
    for p in prompts:
        got = words(spelled(p)).input_ids
        assert got == p, f"a prompt of {len(p)} tokens is read as {len(got)}"
    return words


def spelled(prompt):
    return " ".join(map(str, prompt))


class MAGRPO(Phase):
    """One step of comlrl.MAGRPOTrainer for a team of two agents with a model each. For each prompt the agents sample in turn.
    Then each agent is updated on all prompts. Its loss takes one row at a time, and leaves out the last token of each completion."""

    def __init__(self, case):
        super().__init__(case)
        self.error = super().check()  # before the first step, because it changes the weights
        from comlrl.trainers.reinforce.magrpo import MAGRPOConfig, MAGRPOTrainer
        self.version = f"comlrl {importlib.metadata.version('comlrl')}, {self.version}"
        chosen = dict(
            num_agents=2, num_generations=case["rollouts"], max_new_tokens=case["new_tokens"], temperature=1.0, top_p=1.0, top_k=0,
            num_turns=1, joint_mode="aligned", early_termination_threshold=None, eval_interval=0, agent_learning_rate=case["lr"],
            rollout_buffer_size=len(case["prompts"]), train_batch_size=len(case["prompts"]), agent_devices=inputs.device)
        self.settings |= chosen
        self.prompts = [{"prompt": spelled(p)} for p in case["prompts"]]
        agents = [self.model, load(case["folder"], getattr(torch, case["dtype"]))]
        words = numerals(self.model.config.vocab_size, case["prompts"])
        for agent in agents:
            agent.generation_config.eos_token_id = words.pad_token_id  # min_new_tokens prevents it from being sampled
        self.trainer = MAGRPOTrainer(
            agents=agents, num_agents=2, args=MAGRPOConfig(**chosen),
            tokenizer=words, formatters=lambda item: item["prompt"], reward_func=self.reward)

    def reward(self, *completions):
        """Returns the mean of the fractions of even ids. Each agent gives one completion, as text."""
        ids = [[int(i) for i in texts[0].split()] for texts in completions]
        assert all(len(i) == self.case["new_tokens"] for i in ids), [len(i) for i in ids]
        return [sum(even(ids)) / len(ids)]

    def check(self):
        return self.error

    def run(self):
        norms = [list(a.parameters())[-1] for a in self.trainer.agents]
        before = [w.detach().clone() for w in norms]
        for prompt in self.prompts:
            self.trainer._train_step_returns(prompt, min_new_tokens=self.case["new_tokens"])
        assert not any(torch.equal(w, b) for w, b in zip(norms, before)), "an agent was not updated"


class Float64:
    """Not measured: its settings are the log-probs of the first completion of each prompt in float64."""

    version = Phase.version

    def __init__(self, case):
        model = load(case["folder"], torch.float64).eval()
        self.settings = {"log_probs": [
            log_probs(model, p, case["completions"][i * case["rollouts"]]).tolist() for i, p in enumerate(case["prompts"][:case["checked"]])]}


def prepare(case, provider):
    return PROVIDERS[provider](case)


PROVIDERS = {"hf-generate": Generate, "hf-forward-backward": ForwardBackward, "hf-liger": Liger, "peft": AdapterUpdate,
             "trl": GRPO, "trl-peft": GRPO, "comlrl": MAGRPO, "float64": Float64}
