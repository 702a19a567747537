"""model=gpt computes what GPT-2 and Llama compute in the package `transformers`, from the same weights."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from pipeline.models import Shapes
from pipeline.models.gpt import Gpt

pytestmark = pytest.mark.wide  # the import alone takes seconds

VOCABULARY, LENGTH, WIDTH, LAYERS, HEADS, INNER = 50, 16, 32, 2, 4, 88
SIZES: dict[str, Any] = {"layers": LAYERS, "heads": HEADS, "width": WIDTH}

# Their names by ours; * is the number of a block.
OF_GPT2 = {
    "tokens.weight": "transformer.wte.weight",
    "positions.embeddings": "transformer.wpe.weight",
    "norm": "transformer.ln_f",
    "logits.weight": "lm_head.weight",
    "blocks.*.attention_norm": "transformer.h.*.ln_1",
    "blocks.*.mlp_norm": "transformer.h.*.ln_2",
    "blocks.*.attention.output": "transformer.h.*.attn.c_proj",
    "blocks.*.mlp.inner": "transformer.h.*.mlp.c_fc",
    "blocks.*.mlp.outer": "transformer.h.*.mlp.c_proj",
}
OF_LLAMA = {
    "tokens.weight": "model.embed_tokens.weight",
    "norm": "model.norm",
    "logits.weight": "lm_head.weight",
    "blocks.*.attention_norm": "model.layers.*.input_layernorm",
    "blocks.*.mlp_norm": "model.layers.*.post_attention_layernorm",
    "blocks.*.attention.query": "model.layers.*.self_attn.q_proj",
    "blocks.*.attention.key": "model.layers.*.self_attn.k_proj",
    "blocks.*.attention.value": "model.layers.*.self_attn.v_proj",
    "blocks.*.attention.output": "model.layers.*.self_attn.o_proj",
    "blocks.*.mlp.inner": "model.layers.*.mlp.gate_proj",  # the one with the activation
    "blocks.*.mlp.gate": "model.layers.*.mlp.up_proj",
    "blocks.*.mlp.outer": "model.layers.*.mlp.down_proj",
}


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {"n_positions": LENGTH, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
    ends: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, activation_function="gelu", **sizes, **ends))


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {"hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS}
    heads: dict[str, Any] = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS // 2}
    settings = LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=LENGTH, rms_norm_eps=1e-5, **sizes, **heads)
    return LlamaForCausalLM(settings)


def renamed(theirs: dict[str, torch.Tensor], names: dict[str, str]) -> dict[str, torch.Tensor]:
    """Their weights by our names, of which one may be the beginning of several."""
    found = {}
    for ours, name in names.items():
        pattern = re.compile(re.escape(name).replace(r"\*", r"(\d+)") + r"(\.weight|\.bias)?")
        for key, value in theirs.items():
            match = pattern.fullmatch(key)
            if match is not None:
                number, end = (match[1], match[2]) if pattern.groups == 2 else ("", match[1])
                found[ours.replace("*", number) + (end or "")] = value
    return found


def of_gpt2(theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """GPT-2 keeps its kernels transposed, and those of queries, keys and values as one."""
    found = renamed(theirs, OF_GPT2)
    for name in found:
        if re.search(r"\.(output|inner|outer)\.weight$", name):
            found[name] = found[name].T
    for key, value in theirs.items():
        joined = re.fullmatch(r"transformer\.h\.(\d+)\.attn\.c_attn\.(weight|bias)", key)
        if joined is not None:
            parts = zip(("query", "key", "value"), (value.T if value.ndim == 2 else value).chunk(3), strict=True)
            found |= {f"blocks.{joined[1]}.attention.{part}.{joined[2]}": one for part, one in parts}
    return found


@pytest.mark.parametrize(("name", "apart"), [("gpt2", 1e-12), ("llama", 1e-5)])
def test_the_logits_are_the_same(name: str, apart: float) -> None:
    """In float64, in which their Llama is but for its norms and its rotations: those it computes in float32."""
    torch.manual_seed(0)
    if name == "gpt2":
        model, theirs = Gpt(**SIZES, bias=True, tied=True), gpt2()
    else:
        model = Gpt(**SIZES, key_heads=HEADS // 2, hidden=INNER, norm="rms", activation="swiglu", positions="rotary")
        theirs = llama()
    theirs = theirs.double().eval()
    with torch.no_grad():  # nothing stays at the ones and zeros of a fresh model
        for weight in theirs.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.3)
    ours = model.torch(Shapes((LENGTH,), (LENGTH, VOCABULARY), vocabulary=VOCABULARY)).double().eval()
    ours.load_state_dict((of_gpt2 if name == "gpt2" else lambda found: renamed(found, OF_LLAMA))(theirs.state_dict()))
    tokens = torch.randint(VOCABULARY, (3, LENGTH))
    with torch.no_grad():
        expected, found = theirs(tokens).logits, ours(tokens)
    assert expected.std() > 0.5
    torch.testing.assert_close(found, expected, rtol=0, atol=apart)
