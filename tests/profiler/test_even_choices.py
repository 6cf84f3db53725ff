"""Routers on the device meta: each expert gets as many tokens as any other, by whatever code.

The models have 8 experts of width 16 and inside 32, of which each of 64 tokens takes 2: 16 tokens
each. Their batch has two samples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch", reason="the profiler measures PyTorch models")

from perfmodel.base.errors import InputError  # noqa: E402
from perfmodel.cli import cli  # noqa: E402
from perfmodel.inputs.operator_shapes import Attention, Grouped, MemoryBound, Product  # noqa: E402
from perfmodel.inputs.profile import Profile  # noqa: E402
from perfmodel.profiler import describe, even_choices as even, record  # noqa: E402
from perfmodel.profiler.libraries import Built  # noqa: E402

nn = torch.nn
WIDTH, INSIDE, EXPERTS, ACTIVE, TOKENS = 16, 32, 8, 2, 64


def test_choices_go_round_all_candidates() -> None:
    assert even.even_indices((3, 2), 4, 1).tolist() == [[0, 1], [2, 3], [0, 1]]
    assert even.even_indices((2, 3), 4, 0).tolist() == [[0, 2, 0], [1, 3, 1]]


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, INSIDE), nn.Linear(INSIDE, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.down(nn.functional.silu(self.up(x)))


class Routed(nn.Module):
    """Experts, and a function of the experts, tokens, scores and indices of choices."""

    def __init__(self, run: Callable[..., Any], active: int = ACTIVE) -> None:
        super().__init__()
        self.run, self.active = run, active
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.experts = nn.ModuleList(Expert() for _ in range(EXPERTS))

    def forward(self, x: Any) -> Any:
        tokens = x.reshape(-1, WIDTH)
        scores = self.router(tokens).softmax(-1)
        weights, indices = torch.topk(scores, self.active)
        return self.run(self.experts, tokens, weights, indices).reshape(x.shape)


def by_where(experts: Any, x: Any, weights: Any, indices: Any) -> Any:
    """As Mixtral's first code did."""
    y = torch.zeros_like(x)
    mask = nn.functional.one_hot(indices, num_classes=EXPERTS).permute(2, 1, 0)
    for number, expert in enumerate(experts):
        place, token = torch.where(mask[number])
        y.index_add_(0, token, expert(x[token]) * weights[token, place, None])
    return y


def by_hit(experts: Any, x: Any, weights: Any, indices: Any) -> Any:
    """As Transformers does: only experts that were chosen."""
    y = torch.zeros_like(x)
    mask = nn.functional.one_hot(indices, num_classes=EXPERTS).permute(2, 1, 0)
    for (number,) in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
        place, token = torch.where(mask[number])
        y.index_add_(0, token, experts[int(number)](x[token]) * weights[token, place, None])
    return y


def by_mask(experts: Any, x: Any, weights: Any, indices: Any) -> Any:
    """As DeepSeek's first code did in training: rows of a mask."""
    x = x.repeat_interleave(ACTIVE, dim=0)
    y = torch.empty_like(x)
    flat = indices.view(-1)
    for number, expert in enumerate(experts):
        chosen = flat == number
        if chosen.any():
            y[chosen] = expert(x[chosen])
    return (y.view(*weights.shape, -1) * weights.unsqueeze(-1)).sum(dim=1)


def by_select(experts: Any, x: Any, weights: Any, indices: Any) -> Any:
    """The same with ``masked_select``."""
    y = torch.zeros_like(x)
    numbers = torch.arange(len(x), device=x.device)
    for number, expert in enumerate(experts):
        for place in range(ACTIVE):
            token = torch.masked_select(numbers, indices[:, place] == number)
            if len(token):
                out = expert(x.index_select(0, token)) * weights[token, place, None]
                y = y.index_add(0, token, out)
    return y


def by_order(experts: Any, x: Any, weights: Any, indices: Any) -> Any:
    """Sorted by expert, and divided by counts."""
    order = indices.view(-1).argsort()
    counts = torch.bincount(indices.view(-1), minlength=EXPERTS).tolist()
    parts = x[order // ACTIVE].split(counts)
    out = torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True)])
    weighted = out * weights.view(-1)[order, None]
    return torch.zeros_like(x).index_add_(0, order // ACTIVE, weighted)


def by_counts(experts: Any, x: Any, weights: Any, indices: Any) -> Any:
    """The same with counts that are added up in a tensor of the device's."""
    flat = indices.view(-1)
    counts = torch.zeros(EXPERTS, dtype=torch.int64, device=x.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    ends, order = counts.cumsum(0), flat.argsort()
    y = torch.zeros_like(x)
    for number, expert in enumerate(experts):
        end, count = int(ends[number]), int(counts[number])
        token = order[end - count : end] // ACTIVE
        y.index_add_(0, token, expert(x[token]))
    return y * weights.sum(dim=-1, keepdim=True)


class Grouping(nn.Module):
    """Experts as stacks of matrices, multiplied by PyTorch's product of groups."""

    def __init__(self, kind: Any = torch.float32) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS)
        self.up = nn.Parameter(torch.rand(EXPERTS, WIDTH, INSIDE))
        self.down = nn.Parameter(torch.rand(EXPERTS, INSIDE, WIDTH))
        self.kind = kind

    def forward(self, x: Any) -> Any:
        tokens = x.reshape(-1, WIDTH)
        weights, indices = torch.topk(self.router(tokens).softmax(-1), ACTIVE)
        flat = indices.view(-1)
        order = flat.argsort()
        counts = torch.histc(flat.float(), bins=EXPERTS, min=0, max=EXPERTS - 1)
        ends = counts.cumsum(0).to(torch.int32)
        rows = tokens[order // ACTIVE].to(self.kind)
        inside = nn.functional.silu(torch._grouped_mm(rows, self.up.to(self.kind), offs=ends))
        out = torch._grouped_mm(inside, self.down.to(self.kind), offs=ends).to(x.dtype)
        out = out * weights.view(-1)[order, None]
        return torch.zeros_like(tokens).index_add_(0, order // ACTIVE, out).reshape(x.shape).mean()


def described(model: Any, tokens: int = TOKENS) -> Profile:
    return describe(Built(model, "own", "own model"), input_shape=(tokens, WIDTH))


def products(profile: Profile) -> dict[str, tuple[Any, ...]]:
    """The products of each layer, by its name."""
    return {
        layer.name: tuple(one for one in layer.operators if not isinstance(one, MemoryBound))
        for layer in profile.layers
    }


@pytest.mark.parametrize("run", [by_where, by_hit, by_mask, by_order, by_counts])
def test_each_expert_gets_as_many_tokens(run: Any) -> None:
    profile = described(Routed(run))
    of_layer = products(profile)
    rows = TOKENS * ACTIVE // EXPERTS
    assert of_layer.pop("router") == (Product(TOKENS, EXPERTS, WIDTH),)
    assert len(of_layer) == 2 * EXPERTS
    for name, found in of_layer.items():
        columns, depth = (INSIDE, WIDTH) if name.endswith("up") else (WIDTH, INSIDE)
        assert found == (Product(rows, columns, depth),), name
    assert profile.parameter_bytes == 4 * (
        EXPERTS * (2 * WIDTH * INSIDE + WIDTH + INSIDE) + (WIDTH + 1) * EXPERTS
    )
    assert profile.source.text == f"own model; {EVEN_NOTE}"


EVEN_NOTE = "choices of the largest scores, such as a router's, are even"


def test_each_place_of_a_choice_is_even() -> None:
    # token t takes 2t and 2t + 1 modulo 8: expert 3 is only the second choice, of one in 4 tokens
    of_layer = products(described(Routed(by_select)))
    assert of_layer["experts.3.up"] == (Product(TOKENS // 4, INSIDE, WIDTH),)


def test_experts_without_tokens_are_noted() -> None:
    # 2 samples of one token take experts 0, 1 and 2, 3
    profile = described(Routed(by_hit), tokens=1)
    unused = 4 * 4
    assert f"{unused} parameters got no gradient and are left out: experts.4.up" in (
        profile.source.text
    )
    assert len(profile.layers) == 1 + 2 * 4


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16], ids=["float32", "bf16"])
def test_products_of_groups_are_as_measured(kind: Any) -> None:
    profile = described(Grouping(kind))
    rows = TOKENS * ACTIVE
    found = [one for of_layer in products(profile).values() for one in of_layer]
    assert found == [
        Product(TOKENS, EXPERTS, WIDTH),
        Grouped(rows, INSIDE, WIDTH, EXPERTS),
        Grouped(rows, WIDTH, INSIDE, EXPERTS),
    ]
    flop = 2 * TOKENS * EXPERTS * WIDTH + 4 * rows * INSIDE * WIDTH
    assert sum(layer.forward_flop for layer in profile.layers) == flop
    built = Built(Grouping(kind), "own", "own model")
    given = {"input_shape": (TOKENS, WIDTH), "batch_sizes": (2,), "steps": 2, "warmup": 1}
    measured = record(built, overhead_pairs=0, **given).profile
    without = msgspec.structs.replace(measured, timings=(), source=profile.source)
    assert profile == without


def test_stacks_of_equal_groups_are_products() -> None:
    class Stacks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.rand(4, WIDTH, INSIDE))

        def forward(self, x: Any) -> Any:
            groups = x.reshape(-1, 4, WIDTH).transpose(0, 1).to(torch.bfloat16)
            return torch._grouped_mm(groups, self.weight.to(torch.bfloat16))

    (layer,) = described(Stacks()).layers
    assert layer.operators[0] == Product(TOKENS // 4, INSIDE, WIDTH, count=4)
    assert layer.forward_flop == 2 * TOKENS * WIDTH * INSIDE


def test_values_may_be_narrower_than_keys() -> None:
    # as in multi-head latent attention
    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x: Any) -> Any:
            x = (x * self.weight)[:, None]
            attend = nn.functional.scaled_dot_product_attention
            return attend(x, x, x[..., :8], is_causal=True)

    (layer,) = described(Attend()).layers
    assert Attention(TOKENS, 1, 1, WIDTH, value_width=8) in layer.operators


def test_what_depends_on_values_that_do_not_exist_names_the_line() -> None:
    def by_threshold(experts: Any, x: Any, weights: Any, indices: Any) -> Any:
        return experts[0](x[weights[:, 0] > 0.5])

    with pytest.raises(InputError) as raised:
        described(Routed(by_threshold))
    text = str(raised.value)
    assert text.startswith("model: own needs values of tensors, which do not exist on the device ")
    assert "of test_even_choices.py)" in text
    assert text.endswith("are made there, evenly; profile it without --meta")
    assert "\n" not in text


def test_known_values_are_not_mixed_with_unknown_ones() -> None:
    def by_change(experts: Any, x: Any, weights: Any, indices: Any) -> Any:
        indices[weights > 0.5] = 0
        return experts[0](x[torch.where(indices == 0)[0]])

    def by_filling(experts: Any, x: Any, weights: Any, indices: Any) -> Any:
        indices.masked_fill_(weights > 0.5, 0)
        return experts[0](x[torch.where(indices == 0)[0]])

    for run in (by_change, by_filling):
        with pytest.raises(InputError, match=r"^model: own needs values .*without --meta$"):
            described(Routed(run))


@pytest.mark.parametrize(
    ("choose", "expected"),
    [
        (lambda s: s.max(dim=-1).indices, [0, 1, 2, 0]),
        (lambda s: s.max(dim=-1, keepdim=True).indices, [[0], [1], [2], [0]]),
        (lambda s: s.argmax(dim=1), [0, 1, 2, 0]),
        (lambda s: s.argmax(), 0),
        (lambda s: s.argsort(dim=-1, descending=True), [[0, 1, 2]] * 4),
        (lambda s: s.sort(dim=-1).indices[:, :1], [[0]] * 4),
        (lambda s: torch.multinomial(s, 2), [[0, 1], [2, 0], [1, 2], [0, 1]]),
        (lambda s: s.topk(2, dim=0).indices, [[0, 2, 0], [1, 3, 1]]),
        (lambda s: s.topk(2, dim=0, sorted=False)[1], [[0, 2, 0], [1, 3, 1]]),
    ],
)
def test_choices_by_hand(choose: Any, expected: Any) -> None:
    with even.even_choices(), torch.device("meta"):
        assert choose(torch.rand(4, 3)).tolist() == expected


def test_large_tensors_and_real_numbers_get_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(even, "MOST_VALUES", 10)
    with even.even_choices(), torch.device("meta"):
        assert torch.arange(10).device.type == "cpu"
        assert torch.arange(11).device.type == "meta"
        assert torch.arange(3.0).device.type == "meta"
        assert torch.zeros(3, device="cpu").device.type == "meta"
        assert torch.rand(2, 2).max().device.type == "meta"


def test_the_command_says_that_choices_are_even() -> None:
    model = "tests.profiler.test_even_choices:routed"
    given = ["--input-shape", f"{TOKENS},{WIDTH}", "--meta", "--output", "/dev/null"]
    done = CliRunner().invoke(cli, ["profile", "--model", model, *given])
    assert done.exit_code == 0, done.output
    assert f"\nnote: {EVEN_NOTE}\n" in done.output


def routed() -> Any:
    return Routed(by_where)
