"""Builds the decoder as one ONNX graph, for the Llama, Mistral, Qwen2 and Qwen3 families.

Its rows are consecutive tokens of one sequence, or of several one after another: each of the
`num_seqs` sequences has an attention node of its own in every layer, while all rows go through the
same products.

A sequence's keys and values come in as one pair of buffers a layer, `[1, kv_heads, capacity,
head_dim]`, and go out as the same buffers: bound to one address, GroupQueryAttention writes the new
rows in place at the end that `total` names, and reads no further. Cutting a sequence back is
therefore running it with a smaller total. An attention in use has at least two rows, an unused one
a single row, with buffers for one token.

Attention reads the rows selected by `ATTENDED` and returns those selected by `KEPT`: its kernel for
a single row adds in another order than the one for several, so that a single token goes in twice.
The LM head is computed for `SAMPLED` rows alone, which may be none. Kernels of 4-bit blocks of 64
and 128 add in another order for a last row without a pair (ONNX Runtime 1.31 on AVX-512), those of
32 and of 8 bits do not: the former are given an even number of rows (`in_pairs`). Running the whole
model on pairs instead would cost a third of a step where its other matrices have 8 bits.

Some matrices of 4 bits take the sums of their blocks of inputs as more inputs (`onnx_int4`).

Weights stay in their file (ONNX external data): the session maps it, and of the matrices their
packed bytes, where the file has them (`onnx_packing`); otherwise it packs into its own memory.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper

from llm_engine.checkpoints.packed_cache import Array, StoredArray, WeightFile
from llm_engine.config import ModelConfig

from .onnx_attention import norm_factor, num_hidden_keys, stored_size

TOKENS = "tokens"
"""Token ids, int64 `[1, T]`."""
ATTENDED = "attended"
"""Rows that attention reads, int64, sequence by sequence, in order of position."""
SEQ_SIZES = "seq_sizes"
"""Attended rows of each sequence, int64 `[num_seqs]`. Only with several sequences."""
KEPT = "kept"
"""Rows of the attention's output that are kept, int64 `[T]`."""
SAMPLED = "sampled"
"""Rows whose logits are wanted, int64 `[S]`."""
PAIRED, UNPAIRED = "paired", "unpaired"
"""Rows that matrices `in_pairs` multiply, int64, an even number: all, and of an odd number the last
one twice; and of these the rows that go on, int64 `[T]`. Only with such a matrix in a layer."""
PAIRED_SAMPLED, UNPAIRED_SAMPLED = "paired_sampled", "unpaired_sampled"
"""The same of the sampled rows. Only with such a head."""
LOGITS = "logits"
"""Logits, float32 `[1, S, vocab]`."""

COSINES, SINES = "cosines", "sines"
"""Rotary tables, float32, from `onnx_attention.rotary_tables`. Initializers like the weights, but
the session is given their memory: they depend on the context's length."""

_OPSET = 21
_IR_VERSION = 10
"""Versions of the format, no newer than needed: the oldest supported onnxruntime reads them."""
_CONTRIBUTED = "com.microsoft"
_CONTRIBUTED_OPS = frozenset(
    {"GroupQueryAttention", "MatMulNBits", "QuickGelu", "SkipSimplifiedLayerNormalization"}
)
INT8_ACTIVATIONS = 4
"""MatMulNBits' accuracy level: each block of an activation row is rounded to 8 bits of its own
scale, and products are summed in integers. Level 1, float32, takes three times as long."""

PREPACKED = "prepacked_0"
"""Entry of a matrix's external data that says where its packed bytes lie: `KEY|FIRST;LENGTH;0`."""
_PACKED = ".packed."

_ELEMENT_TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "uint8": TensorProto.UINT8,
}


def last_position(seq: int) -> str:
    """Name of the input with the position of the last attended row, int32 `[1]`."""
    return f"last_position.{seq}"


def total(seq: int) -> str:
    """Name of the input with the tokens in the sequence after this run, one more than the last
    position, int32 scalar."""
    return f"total.{seq}"


def hidden_keys(seq: int) -> str:
    """Name of the input with the mask added to scores, float32 `[1, 1, attended rows, total]`. Only
    for head sizes with hidden keys (`onnx_attention`), which count as positions here."""
    return f"hidden_keys.{seq}"


def caches(layer: int, seq: int) -> tuple[tuple[str, str], tuple[str, str]]:
    """Names of a layer's buffers, keys and values: each as input and as output."""
    place = f"{layer}.{seq}"
    return (f"past_keys.{place}", f"keys.{place}"), (f"past_values.{place}", f"values.{place}")


def packed_name(matrix: str, key: str) -> str:
    """Name under which the packed bytes of a matrix are stored; `key`: ONNX Runtime's hash."""
    return f"{matrix}{_PACKED}{key}"


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """Format of a matrix's blocks."""

    bits: int
    block: int
    """Inputs that share a scale."""

    @property
    def in_pairs(self) -> bool:
        """True if a row's product depends on whether it has a pair."""
        return self.bits == 4 and self.block > 32


def block_format(kind: str, shape: tuple[int, ...]) -> BlockFormat:
    """Format of `codes` (8 bits) or `nibbles` (4 bits) of this shape, `[out, blocks, bytes]`."""
    return BlockFormat(4, 2 * shape[2]) if kind == "nibbles" else BlockFormat(8, shape[2])


def matrix_format(arrays: Mapping[str, StoredArray], matrix: str) -> BlockFormat:
    """Format of a stored matrix."""
    kind = "nibbles" if f"{matrix}.nibbles" in arrays else "codes"
    return block_format(kind, arrays[f"{matrix}.{kind}"].shape)


def takes_block_sums(arrays: Mapping[str, StoredArray], matrix: str, num_inputs: int) -> bool:
    """True if a stored matrix has more weights than inputs: for the sums of their blocks."""
    form = matrix_format(arrays, matrix)
    return form.bits == 4 and arrays[f"{matrix}.nibbles"].shape[1] > -(-num_inputs // form.block)


def paired_inputs(arrays: Mapping[str, StoredArray]) -> list[tuple[str, str]]:
    """Names of the pairs of inputs that a graph with these matrices has: of layers, of the head."""
    matrices = [name.rpartition(".")[0] for name in arrays if name.endswith(".nibbles")]
    in_pairs = {each == "head" for each in matrices if matrix_format(arrays, each).in_pairs}
    layers, head = (PAIRED, UNPAIRED), (PAIRED_SAMPLED, UNPAIRED_SAMPLED)
    return [names for is_head, names in ((False, layers), (True, head)) if is_head in in_pairs]


def linear_attributes(num_inputs: int, num_outputs: int, form: BlockFormat) -> dict[str, Any]:
    """Attributes of a linear layer's MatMulNBits node."""
    return {
        "K": num_inputs,
        "N": num_outputs,
        "bits": form.bits,
        "block_size": form.block,
        "accuracy_level": INT8_ACTIVATIONS,
    }


def decoder_graph(
    config: ModelConfig, weights: WeightFile, num_positions: int, num_seqs: int = 1
) -> bytes:
    """Serialize the decoder's graph, with the weights of `onnx_weights.convert` in a file."""
    build = _Builder(config, weights.arrays, num_seqs)
    rows = build.embedded()
    delta = None
    for index in range(config.num_layers):
        rows, delta = build.layer(index, rows, delta)
    assert delta is not None
    build.head(rows, delta)
    num_positions += num_hidden_keys(config.head_dim)
    rotary = StoredArray("float32", (num_positions, stored_size(config.head_dim) // 2), 0, 0)
    stored = {**weights.arrays, COSINES: rotary, SINES: rotary}
    packed: dict[str, str] = {}
    for name in [name for name in stored if _PACKED in name]:
        matrix, _, key = name.partition(_PACKED)
        place = stored.pop(name)
        packed[matrix] = f"{key}|{place.first_byte};{place.num_bytes};0"
    initializers = [
        _initializer(name, array, weights.path.name, packed.get(name))
        for name, array in stored.items()
    ]
    return make_model(
        build.nodes,
        _inputs(config, weights.arrays, num_seqs),
        _outputs(config, num_seqs),
        initializers,
    )


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[TensorProto],
) -> bytes:
    """Serialize a model of these nodes."""
    model = helper.make_model(
        helper.make_graph(nodes, "graph", inputs, outputs, initializers),
        opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid(_CONTRIBUTED, 1)],
        ir_version=_IR_VERSION,
    )
    serialized: bytes = model.SerializeToString()
    return serialized


def product_model(codes: Array, scales: Array, zeros: Array | None, form: BlockFormat) -> bytes:
    """Serialize a model of one linear layer, from `rows` `[M, in]` to `products` `[M, out]`: codes
    `[out, blocks, bytes of a block]`, scales `[out, blocks]`, and zero points as packed."""
    num_outputs, num_inputs = len(codes), codes.shape[1] * form.block
    stored = {"codes": codes, "scales": scales} | ({} if zeros is None else {"zeros": zeros})
    node = helper.make_node(
        "MatMulNBits",
        ["rows", *stored],
        ["products"],
        domain=_CONTRIBUTED,
        **linear_attributes(num_inputs, num_outputs, form),
    )
    info = helper.make_tensor_value_info
    return make_model(
        [node],
        [info("rows", TensorProto.FLOAT, ["M", num_inputs])],
        [info("products", TensorProto.FLOAT, ["M", num_outputs])],
        [numpy_helper.from_array(array, name) for name, array in stored.items()],
    )


class _Builder:
    """Collects nodes. A value has the name of the node that makes it."""

    def __init__(
        self, config: ModelConfig, arrays: Mapping[str, StoredArray], num_seqs: int
    ) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._config = config
        self._arrays = arrays
        self._num_seqs = num_seqs
        self._head_size = stored_size(config.head_dim)
        self._width = config.num_heads * self._head_size
        self._kv_width = config.num_kv_heads * self._head_size
        self._sink = ""
        if num_hidden_keys(config.head_dim):
            weightless = [-inf] * config.num_heads
            self._sink = self._constant("sink", weightless, TensorProto.FLOAT)

    def embedded(self) -> str:
        """Embedded tokens, float32 `[1, T, hidden]`."""
        stored = self._add("Gather", ["embedding", TOKENS])
        return self._add("Cast", [stored], to=TensorProto.FLOAT)

    def layer(self, index: int, rows: str, delta: str | None) -> tuple[str, str]:
        """Add a layer. Takes and returns the residual rows and the delta still to be added."""
        prefix = f"layers.{index}."
        hidden, inner = self._config.hidden_size, self._config.intermediate_size
        normed, rows = self._norm(f"{prefix}input_layernorm", rows, delta)
        attended = self._attention(index, normed)
        delta = self._linear(f"{prefix}out", attended, self._width, hidden)
        normed, rows = self._norm(f"{prefix}post_attention_layernorm", rows, delta)
        gate_up = self._linear(f"{prefix}gate_up", normed, hidden, 2 * inner)
        gate, up = self._split(gate_up, [inner] * 2)
        # x * sigmoid(1.0 * x) is SiLU.
        gated = self._add("Mul", [self._add("QuickGelu", [gate], alpha=1.0), up])
        return rows, self._linear(f"{prefix}down", gated, inner, hidden)

    def head(self, rows: str, delta: str) -> None:
        rows, delta = (self._add("Gather", [value, SAMPLED], axis=1) for value in (rows, delta))
        normed, _ = self._norm("norm", rows, delta)
        hidden, vocabulary = self._config.hidden_size, self._config.vocab_size
        self._linear("head", normed, hidden, vocabulary, output=LOGITS)

    def _attention(self, index: int, normed: str) -> str:
        config = self._config
        qkv_width = self._width + 2 * self._kv_width
        qkv = self._linear(f"layers.{index}.qkv", normed, config.hidden_size, qkv_width)
        qkv = self._add("Gather", [qkv, ATTENDED], axis=1)
        # One packed input, or three.
        inputs = self._normed_heads(index, qkv) if config.has_qk_norm else [qkv, "", ""]
        attentions = [self._sequence_attention(index, seq, inputs) for seq in range(self._num_seqs)]
        attended = attentions[0] if self._num_seqs == 1 else self._add("Concat", attentions, axis=1)
        return self._add("Gather", [attended, KEPT], axis=1)

    def _sequence_attention(self, index: int, seq: int, inputs: list[str]) -> str:
        (past_keys, keys), (past_values, values) = caches(index, seq)
        attended = f"layers.{index}.attended.{seq}"
        own = [self._of_sequence(name, seq) if name else "" for name in inputs]
        place = [past_keys, past_values, last_position(seq), total(seq), COSINES, SINES]
        mask = ["", hidden_keys(seq), self._sink] if self._sink else []
        window = self._config.sliding_window(index)
        self._node(
            "GroupQueryAttention",
            [*own, *place, *mask],
            [attended, keys, values],
            num_heads=self._config.num_heads,
            kv_num_heads=self._config.num_kv_heads,
            do_rotary=1,
            scale=self._config.head_dim**-0.5,
            # In keys, the row's own included; negative: all.
            local_window_size=window or -1,
        )
        return attended

    def _of_sequence(self, rows: str, seq: int) -> str:
        """The rows of one sequence."""
        if self._num_seqs == 1:
            return rows
        outputs = [f"{rows}.seq.{seq}" for seq in range(self._num_seqs)]
        if seq == 0:
            self._node("Split", [rows, SEQ_SIZES], outputs, axis=1)
        return outputs[seq]

    def _normed_heads(self, index: int, qkv: str) -> list[str]:
        config = self._config
        widths = [self._width, self._kv_width, self._kv_width]
        queries, keys, values = self._split(qkv, widths)
        prefix = f"layers.{index}."
        return [
            self._normed_head(queries, f"{prefix}q_norm", config.num_heads),
            self._normed_head(keys, f"{prefix}k_norm", config.num_kv_heads),
            values,
        ]

    def _linear(
        self, name: str, rows: str, num_inputs: int, num_outputs: int, output: str | None = None
    ) -> str:
        form = matrix_format(self._arrays, name)
        kind = "nibbles" if form.bits == 4 else "codes"
        zeros = f"{name}.zeros" if f"{name}.zeros" in self._arrays else ""
        inputs = [rows, f"{name}.{kind}", f"{name}.scales", zeros]
        if f"{name}.bias" in self._arrays:
            inputs += ["", f"{name}.bias"]
        if takes_block_sums(self._arrays, name, num_inputs):
            num_blocks = num_inputs // form.block
            inputs[0] = self._with_block_sums(name, rows, num_blocks, form.block)
            num_inputs += num_blocks
        attributes = linear_attributes(num_inputs, num_outputs, form)
        if not form.in_pairs:
            return self._add("MatMulNBits", inputs, output=output, **attributes)
        is_head = output == LOGITS
        paired, unpaired = (PAIRED_SAMPLED, UNPAIRED_SAMPLED) if is_head else (PAIRED, UNPAIRED)
        inputs[0] = self._add("Gather", [inputs[0], paired], axis=1)
        products = self._add("MatMulNBits", inputs, **attributes)
        return self._add("Gather", [products, unpaired], output=output, axis=1)

    def _with_block_sums(self, name: str, rows: str, num_blocks: int, block: int) -> str:
        """Rows `[1, T, inputs]`, and behind each the sums of its blocks. T may be 0, of which a
        size left open cannot be told."""
        shape = self._constant(f"{name}.blocks", (0, 0, num_blocks, block))
        last = self._constant(f"{name}.last", (-1,))
        blocks = self._add("Reshape", [rows, shape])
        sums = self._add("ReduceSum", [blocks, last], keepdims=0)
        return self._add("Concat", [rows, sums], axis=-1)

    def _norm(self, name: str, rows: str, delta: str | None) -> tuple[str, str]:
        """RMS norm of `rows` + `delta`, and that sum."""
        epsilon = self._config.norm_eps
        if delta is None:
            return self._add("SimplifiedLayerNormalization", [rows, name], epsilon=epsilon), rows
        total = f"{name}.sum"
        self._node(
            "SkipSimplifiedLayerNormalization",
            [rows, delta, name],
            [f"{name}.rows", "", "", total],
            epsilon=epsilon,
        )
        return f"{name}.rows", total

    def _normed_head(self, rows: str, name: str, num_heads: int) -> str:
        """Normalize each head of `[1, T, num_heads * head_dim]` by itself."""
        size = self._head_size
        to_heads = self._constant(f"{name}.heads", (0, 0, num_heads, size))
        to_flat = self._constant(f"{name}.flat", (0, 0, num_heads * size))
        heads = self._add("Reshape", [rows, to_heads])
        epsilon = self._config.norm_eps * norm_factor(self._config.head_dim) ** 2
        normed = self._add("SimplifiedLayerNormalization", [heads, name], epsilon=epsilon)
        return self._add("Reshape", [normed, to_flat])

    def _split(self, rows: str, sizes: list[int]) -> list[str]:
        outputs = [f"{rows}.{part}" for part in range(len(sizes))]
        self._node("Split", [rows, self._constant(f"{rows}.sizes", sizes)], outputs, axis=-1)
        return outputs

    def _constant(
        self, name: str, values: Sequence[float], element_type: int = TensorProto.INT64
    ) -> str:
        tensor = helper.make_tensor(name, element_type, [len(values)], values)
        self._node("Constant", [], [name], value=tensor)
        return name

    def _add(
        self, op_type: str, inputs: list[str], *, output: str | None = None, **attributes: Any
    ) -> str:
        """Add a node with one output; returns its name."""
        name = output or f"{op_type}.{len(self.nodes)}"
        self._node(op_type, inputs, [name], **attributes)
        return name

    def _node(self, op_type: str, inputs: list[str], outputs: list[str], **attributes: Any) -> None:
        domain = _CONTRIBUTED if op_type in _CONTRIBUTED_OPS else ""
        node = helper.make_node(op_type, inputs, outputs, name=outputs[0], domain=domain)
        node.attribute.extend(
            helper.make_attribute(key, value) for key, value in sorted(attributes.items())
        )
        self.nodes.append(node)


def _inputs(
    config: ModelConfig, arrays: Mapping[str, StoredArray], num_seqs: int
) -> list[onnx.ValueInfoProto]:
    int32, int64 = TensorProto.INT32, TensorProto.INT64
    info = helper.make_tensor_value_info
    sizes = [info(SEQ_SIZES, int64, [num_seqs])] if num_seqs > 1 else []
    return [
        info(TOKENS, int64, [1, "T"]),
        info(ATTENDED, int64, ["A"]),
        *sizes,
        info(KEPT, int64, ["T"]),
        info(SAMPLED, int64, ["S"]),
        *(info(name, int64, [f"{name} rows"]) for each in paired_inputs(arrays) for name in each),
        *(info(last_position(seq), int32, [1]) for seq in range(num_seqs)),
        *(info(total(seq), int32, []) for seq in range(num_seqs)),
        *_masks(config, num_seqs),
        *_buffers(config, num_seqs, which=0),
    ]


def _masks(config: ModelConfig, num_seqs: int) -> list[onnx.ValueInfoProto]:
    if not num_hidden_keys(config.head_dim):
        return []
    info = helper.make_tensor_value_info
    return [
        info(hidden_keys(seq), TensorProto.FLOAT, [1, 1, f"rows.{seq}", f"total.{seq}"])
        for seq in range(num_seqs)
    ]


def _outputs(config: ModelConfig, num_seqs: int) -> list[onnx.ValueInfoProto]:
    logits: list[int | str] = [1, "S", config.vocab_size]
    return [
        helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, logits),
        *_buffers(config, num_seqs, which=1),
    ]


def _buffers(config: ModelConfig, num_seqs: int, which: int) -> list[onnx.ValueInfoProto]:
    return [
        helper.make_tensor_value_info(
            names[which],
            TensorProto.FLOAT,
            [1, config.num_kv_heads, f"capacity.{seq}", stored_size(config.head_dim)],
        )
        for seq in range(num_seqs)
        for layer in range(config.num_layers)
        for names in caches(layer, seq)
    ]


def _initializer(name: str, array: StoredArray, file_name: str, packed: str | None) -> TensorProto:
    tensor = TensorProto(
        name=name,
        data_type=_ELEMENT_TYPES[array.dtype],
        dims=array.shape,
        data_location=TensorProto.EXTERNAL,
    )
    tensor.external_data.add(key="location", value=file_name)
    tensor.external_data.add(key="offset", value=str(array.first_byte))
    tensor.external_data.add(key="length", value=str(array.num_bytes))
    if packed is not None:
        tensor.external_data.add(key=PREPACKED, value=packed)
    return tensor
