"""What drafts tokens for a model, on the GPUs of its last pipeline stage: a layer behind it, or a smaller model.

*Multi-token prediction* (DeepSeek-V3 report, arXiv 2412.19437, section 2.2): the layer joins the last hidden state with
the embedding of the newest token: two norms, a projection of ``[2h]`` to ``[h]``, one decoder layer as the last of the
model. Embedding and LM head are the model's own; the final norm is not.

*EAGLE* (arXiv 2401.15077, as ``vllm/model_executor/models/llama_eagle.py`` of vLLM 0.24 runs it): the same without
norms of its inputs, and without the layer's first and the final norm; bf16, as heads are published. What follows its
layer is an addition of the residual, which is priced as the final norm. EAGLE-3 is not modelled: it joins the states of
three layers once per step, and its LM head is of a reduced vocabulary.

*A draft model* shares nothing, and has the number formats that it was published in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from aicb.model.architecture import GatedDeltaNet, Model
from aicb.model.partition import Partition
from aicb.model.precision import Precision
from aicb.operators.build import ACTIVATION_BYTES, RankShape, elementwise, gemm, quant
from aicb.operators.lists import token_operators
from aicb.operators.operator import Operator
from boundary.errors import InputError

NORMS_OF_LAYERS = frozenset({"input_norm", "final_norm"})
"""That EAGLE's layer goes without."""


@dataclass(frozen=True, slots=True)
class Drafter:
    """What drafts, as a model of its own: of a layer behind the target with the target's embedding and head."""

    method: Literal["mtp", "eagle", "draft_model"]
    model: Model
    partition: Partition
    """On one stage."""
    precision: Precision

    @classmethod
    def mtp(cls, target: Model, partition: Partition, precision: Precision) -> Drafter:
        """The multi-token-prediction layer of a model."""
        return cls("mtp", draft_layer(target), replace(partition, pp=1), precision)

    @classmethod
    def eagle(cls, target: Model, partition: Partition, precision: Precision) -> Drafter:
        """An EAGLE head in the shape of a model."""
        return cls("eagle", draft_layer(target), replace(partition, pp=1), replace(precision, weights="bf16"))

    @classmethod
    def of_model(
        cls, model: Model, target: Model, partition: Partition, precision: Precision, *, tp: int | None = None
    ) -> Drafter:
        """A smaller model next to the target, by default with the target's tensor parallelism.

        Raises:
            InputError: its vocabulary is another one, it has a state besides a KV cache, or it cannot be divided so.
        """
        if model.vocab != target.vocab:
            raise InputError(
                f"draft_model: found {model.name} with a vocabulary of {model.vocab}, "
                f"expected the {target.vocab} tokens of {target.name}"
            )
        if any(isinstance(kind.attention, GatedDeltaNet) for kind in model.kinds):
            raise InputError(f"draft_model: found {model.name}, expected a model with a KV cache in every layer")
        if tp not in (None, 1, partition.tp):
            raise InputError(f"draft_tp: found {tp}, expected 1 or the tp {partition.tp} of the target")
        own = Partition(tp=tp or partition.tp, dp=partition.dp)
        return cls("draft_model", model, own, Precision(model.published_weights, precision.kv))

    @property
    def is_layer(self) -> bool:
        """It stands behind the target and shares its embedding and head."""
        return self.method != "draft_model"

    def token_operators(self, tokens: int) -> list[Operator]:
        """Operators of a pass that depend on its tokens alone."""
        listed = token_operators(self.model, self.partition, self.precision, tokens=tokens)
        if not self.is_layer or not tokens:
            return listed
        if self.method == "eagle":
            listed = [operator for operator in listed if operator.name not in NORMS_OF_LAYERS]
        return [*listed, *self.joining_operators(tokens)]

    def joining_operators(self, tokens: int) -> list[Operator]:
        """Projection of hidden state and embedding, and the norms of both, replicated on every rank."""
        if not self.is_layer:
            return []
        shape = RankShape(self.model.hidden, self.partition, self.precision, 1)
        hidden = shape.hidden
        names = ("draft_hidden_norm", "draft_embedding_norm") if self.method == "mtp" else ()
        listed = [
            elementwise(name, "rms_norm", (tokens, hidden), 2 * ACTIVATION_BYTES, weights=hidden) for name in names
        ]
        if shape.is_fp8:
            listed.append(quant("draft_quant", tokens, 2 * hidden, count=1))
        return [*listed, gemm("draft_projection", (tokens, hidden, 2 * hidden), shape.precision.dense)]


def draft_layer(model: Model) -> Model:
    """The draft layer as a model of its own: embedding, one layer of the model's last kind, norm and head."""
    return replace(model, name=f"{model.name} draft layer", kinds=(model.layers[-1],), pattern=(0,))


def draft_parameters(model: Model) -> int:
    """Weights of a multi-token-prediction layer; embedding and head, which it shares, not counted again."""
    layer = model.layers[-1]
    norms = 5 * model.hidden
    projection = 2 * model.hidden**2
    return layer.attention.parameters(model.hidden) + layer.ffn.parameters(model.hidden) + norms + projection
