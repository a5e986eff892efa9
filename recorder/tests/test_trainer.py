"""The callback under the real Trainer of Hugging Face, on a tiny model made from a configuration."""

from __future__ import annotations

import pytest

from .conftest import TORCH, Run
from .test_watch import births

pytest.importorskip("transformers")

SCRIPT = (
    TORCH
    + """
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
config = LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                     num_key_value_heads=2, max_position_embeddings=32)
class Model(LlamaForCausalLM):
    def forward(self, input_ids, labels=None, **others):
        output = super().forward(input_ids, labels=labels, **others)
        if {bad}:
            output.loss = output.loss + (output.logits - output.logits).log().mean() * 0
        return output
model = Model(config)
class Words(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, n):
        ids = torch.arange(16) * (n + 3) % 64
        return {{"input_ids": ids, "labels": ids}}
options = TrainingArguments(output_dir=OUT + "-hf", per_device_train_batch_size=4, max_steps=8, logging_steps=2,
                            save_strategy="no", report_to=[], use_cpu=True, seed=1, max_grad_norm=0.0)
callback = fr.ForensicsCallback(OUT)
trainer = Trainer(model=model, args=options, train_dataset=Words(), callbacks=[callback])
trainer.train()
"""
)


def test_steps_metrics_and_the_end_are_recorded(run: Run) -> None:
    left = run(SCRIPT.format(bad="False"), timeout=300)
    assert left.code == 0, left.stderr
    assert [line["step"] for line in left.lines("steps")] == list(range(1, 9))
    assert left.end()["how"] == "completed"
    logs = [line["logs"] for line in left.lines("events") if line["event"] == "log"]
    assert all("loss" in log or "train_loss" in log for log in logs)
    assert left.lines("gradients")
    assert all(line["loss"] > 0 for line in left.lines("steps"))


def test_the_operator_at_fault_is_found_although_the_trainer_hides_the_loss(run: Run) -> None:
    left = run(SCRIPT.format(bad="True"), timeout=300)
    events = [line for line in left.lines("events") if line["event"] == "nonfinite"]
    assert events[0]["step"] == 1, left.stderr
    assert births(left)[0]["op"] == "aten::log"
