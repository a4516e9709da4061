"""The networks: how far back they look, what they ignore, and that a stack of agents is so many single agents."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast, get_args

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from data.features import MASK, NormalizationStats, network_inputs
from models.ddpg_agent import DDPGAgent
from models.networks import (
    MARKET_CHANNELS,
    AgentNetworks,
    DayEncoding,
    MarketEncoder,
    _Saturating,
    causal_layers,
    gather_stocks,
)
from models.population import Population
from tests.market_cases import FloatArray, random_panel
from tests.small_market import TINY_NETWORK, loader_of
from utils.config.trader import CriticForm, LearningConfig, NetworkConfig, Precision, Representation

CONTEXT = 30
COLUMNS = 6
INVESTABLE = torch.tensor([0, 2, 5])
SLOTS = 4


def field_days(context_days: int) -> int:
    """Receptive field of the convolutions for a context."""
    return 1 + sum((taps - 1) * dilation for taps, dilation in causal_layers(context_days))


def networks_of(
    population: int = 1,
    *,
    representation: Representation = "independent",
    critic: CriticForm = "structured",
    context_days: int = CONTEXT,
    seed: int = 0,
) -> AgentNetworks:
    """Networks in float64 whose every parameter is random, biases too, and whose actions differ between stocks."""
    torch.manual_seed(seed)
    config = NetworkConfig(representation, TINY_NETWORK.encoder_channels, TINY_NETWORK.hidden_units, 2, critic)
    networks = AgentNetworks(population, config, context_days).double().requires_grad_(False)
    for name, parameter in networks.named_parameters():
        if "bias" in name:
            parameter.normal_(std=0.3)
    networks.actor.out.weight.mul_(10)
    return networks


def market_inputs(days: int, *, seed: int = 0, columns: int = COLUMNS) -> Tensor:
    """(columns, days, 10) float64 standard normal inputs, a tenth of the days without a bar."""
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(columns, days, MARKET_CHANNELS, generator=generator, dtype=torch.float64)
    traded = torch.rand(columns, days, generator=generator) > 0.1
    inputs[..., MASK] = 1.0
    return inputs * traded[..., None]


def random_state(agents: int, states: int, stocks: int = len(INVESTABLE), *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Positions (agents, states, stocks, 6), some rows empty, and accounts (agents, states, 3)."""
    generator = torch.Generator().manual_seed(seed)
    positions = torch.rand(agents, states, stocks, 6, generator=generator, dtype=torch.float64)
    is_held = torch.rand(agents, states, stocks, 1, generator=generator) < 0.5
    return positions * is_held, torch.rand(agents, states, 3, generator=generator, dtype=torch.float64)


def act(networks: AgentNetworks, inputs: Tensor, investable: Tensor = INVESTABLE) -> Tensor:
    """Actions (A, T, n, 2) of all agents on all T encoded days, each day in a state of its own."""
    encoding = networks.encode_distinct(inputs, investable)
    agents, days = networks.population, encoding.summary.shape[1]
    positions, account = random_state(1, days, len(investable))
    action: Tensor = networks.actor(
        encoding.stocks.expand(agents, -1, -1, -1),
        encoding.summary.expand(agents, -1, -1),
        positions.expand(agents, -1, -1, -1),
        account.expand(agents, -1, -1),
    )
    return action


def assert_close(found: DayEncoding, expected: DayEncoding, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(found.stocks, expected.stocks, rtol=0, atol=tolerance)
    torch.testing.assert_close(found.summary, expected.summary, rtol=0, atol=tolerance)


@given(st.integers(2, 1500))
@settings(max_examples=150, deadline=None)
def test_the_receptive_field_stays_within_the_context(context_days: int) -> None:
    layers = causal_layers(context_days)
    assert 0.89 * context_days <= field_days(context_days) <= context_days
    assert all(2 <= taps <= 16 for taps, _ in layers)
    seen = {0}
    for taps, dilation in layers:
        seen = {day + tap * dilation for day in seen for tap in range(taps)}
    assert seen == set(range(field_days(context_days))), "no day is skipped"


@pytest.mark.parametrize(
    ("context_days", "layers"),
    [
        (2, [(2, 1)]),
        (7, [(7, 1)]),
        (8, [(8, 1)]),
        (16, [(2, 8), (8, 1)]),
        (64, [(8, 8), (8, 1)]),
        (504, [(9, 55), (8, 8), (8, 1)]),
        (512, [(8, 64), (8, 8), (8, 1)]),
    ],
)
def test_layers_of_known_contexts(context_days: int, layers: list[tuple[int, int]]) -> None:
    assert causal_layers(context_days) == layers


@pytest.mark.parametrize("context_days", [2, 8, 64, 504, 512])
def test_the_usual_contexts_are_reached_exactly(context_days: int) -> None:
    assert MarketEncoder(1, TINY_NETWORK, context_days).context_days == context_days


def test_the_reached_field_gives_the_same_layers() -> None:
    """What an encoder reports as its context must build the same encoder: copies and files rely on it."""
    differing = [days for days in range(2, 2100) if causal_layers(field_days(days)) != causal_layers(days)]
    assert differing == []


def test_an_agent_of_any_context_can_be_copied_out_of_its_population() -> None:
    Population(2, TINY_NETWORK, LearningConfig(), context_days=257).agent(1)


@pytest.mark.parametrize("context_days", [2, 9, 25, 30, 64])
def test_an_encoding_sees_exactly_its_context(context_days: int) -> None:
    """The oldest day of the context changes the encoding, the day before it does not, bit for bit."""
    networks = networks_of(context_days=context_days)
    context = networks.context_days
    inputs = market_inputs(context + 1)
    expected = networks.encode_distinct(inputs[:, 1:], INVESTABLE)
    older, oldest = inputs.clone(), inputs.clone()
    older[:, 0] += 5.0
    oldest[:, 1] += 5.0
    with_older = networks.encode_distinct(older, INVESTABLE)
    assert torch.equal(with_older.stocks[:, 1:], networks.encode_distinct(inputs, INVESTABLE).stocks[:, 1:])
    assert torch.equal(networks.encode_distinct(older[:, 1:], INVESTABLE).summary, expected.summary)
    with_oldest = networks.encode_distinct(oldest[:, 1:], INVESTABLE)
    assert ((with_oldest.stocks - expected.stocks).abs().amax(-1) > 1e-9).all()
    assert ((with_oldest.summary - expected.summary).abs() > 1e-9).any()


def plain_encoding(encoder: MarketEncoder, agent: int, column: Tensor, day: int, layer: int) -> Tensor:
    """Channels of one (days, 10) column after layer `layer` (-1: the inputs) on one day, by the recursion itself."""
    if layer < 0:
        return column[day]
    taps, dilation = encoder.layers[layer]
    weight = encoder.weights[layer][agent, :, :, 0]
    total: Tensor = encoder.biases[layer][agent].clone()
    for tap in range(taps):
        ago = (taps - 1 - tap) * dilation
        total += weight[:, :, tap] @ plain_encoding(encoder, agent, column, day - ago, layer - 1)
    output = total.clamp(min=0)
    return output if layer == 0 else output + plain_encoding(encoder, agent, column, day, layer - 1)


@pytest.mark.parametrize("context_days", [9, 25, 30])
def test_encodings_agree_with_their_recursion(context_days: int) -> None:
    """Dilated convolutions with residuals, centred and scaled over the channels, then attention to what trades."""
    networks = networks_of(2, context_days=context_days)
    encoder, context = networks.encoder, networks.context_days
    inputs = market_inputs(context + 1)
    encoding = networks.encode_distinct(inputs, INVESTABLE)
    for agent in range(2):
        for place in range(2):
            day = context - 1 + place
            rows = [plain_encoding(encoder, agent, column, day, len(encoder.layers) - 1) for column in inputs]
            columns = torch.stack([(x - x.mean()) / (x.var(unbiased=False) + 1e-5).sqrt() for x in rows])
            torch.testing.assert_close(encoding.stocks[agent, place], columns[INVESTABLE])
            weight = torch.exp(columns @ encoder.queries[agent].T) * inputs[:, day, MASK, None]
            mixed = (weight / weight.sum(0)).T @ columns
            summary = mixed.flatten() @ encoder.summary.weight[agent] + encoder.summary.bias[agent, 0]
            torch.testing.assert_close(encoding.summary[agent, place], torch.nn.functional.relu(summary))


@pytest.mark.parametrize("representation", ["independent", "shared"])
def test_bfloat16_encodes_about_the_same_and_learns_in_single_precision(representation: Representation) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(COLUMNS, CONTEXT + 7, MARKET_CHANNELS)
    configs = [NetworkConfig(representation, 8, 8, 2, precision=precision) for precision in get_args(Precision)[1:]]
    weights = AgentNetworks(3, configs[0], CONTEXT).state_dict()
    encodings, gradients = [], []
    for config in configs:
        networks = AgentNetworks(3, config, CONTEXT)
        networks.load_state_dict(weights)
        encoding = networks.encode_distinct(inputs, INVESTABLE)
        encoding.stocks.square().mul(torch.linspace(-1, 1, 8)).sum().backward()
        encodings.append(encoding)
        gradients.append(torch.cat([p.grad.flatten() for p in networks.encoder.weights if p.grad is not None]))
    exact, low = encodings
    for found, expected in ((low.stocks, exact.stocks), (low.summary, exact.summary)):
        assert found.dtype == torch.float32
        assert not torch.equal(found, expected)
        error = (found - expected).detach().square().mean().sqrt()
        assert float(error) < 0.02 * float(expected.detach().square().mean().sqrt())
    assert gradients[1].dtype == torch.float32
    assert float(F.cosine_similarity(*gradients, dim=0)) > 0.99


def test_a_query_picks_out_columns_from_the_start() -> None:
    torch.manual_seed(0)
    networks = AgentNetworks(8, NetworkConfig(summary_queries=4), CONTEXT)
    columns = 200
    encoded = F.layer_norm(torch.randn(8, columns, 32), (32,))
    chances = torch.einsum("anc,aqc->aqn", encoded, networks.encoder.queries).softmax(-1)
    # An even mean would give each a two-hundredth.
    assert float(chances.detach().max(-1).values.mean()) > 20 / columns


def test_every_day_of_the_context_counts() -> None:
    networks = networks_of()
    inputs = market_inputs(CONTEXT).requires_grad_()
    own = networks.encode_distinct(inputs, INVESTABLE).stocks[0, 0, 1]
    (gradient,) = torch.autograd.grad(own.pow(2).sum(), inputs)
    assert gradient[INVESTABLE[1]].abs().sum(-1).gt(0).all()
    gradient[INVESTABLE[1]] = 0
    assert not gradient.any(), "a column is encoded alone; only the summary mixes columns"


@given(days=st.integers(1, 40), seed=st.integers(0, 1000))
@settings(max_examples=25, deadline=None)
def test_a_day_in_a_block_is_encoded_as_alone(days: int, seed: int) -> None:
    networks = networks_of(2, seed=seed)
    context = networks.context_days
    inputs = market_inputs(context - 1 + days, seed=seed)
    block = networks.encode_distinct(inputs, INVESTABLE)
    assert block.stocks.shape == (2, days, len(INVESTABLE), TINY_NETWORK.encoder_channels)
    assert block.summary.shape == (2, days, TINY_NETWORK.hidden_units)
    for day in {0, days // 2, days - 1}:
        alone = networks.encode_distinct(inputs[:, day : day + context], INVESTABLE)
        assert_close(alone, DayEncoding(block.stocks[:, day : day + 1], block.summary[:, day : day + 1]))


def test_a_day_in_a_block_is_encoded_as_alone_in_single_precision() -> None:
    networks = networks_of(2, context_days=504).float()
    inputs = market_inputs(networks.context_days + 63).float()
    block = networks.encode_distinct(inputs, INVESTABLE)
    for day in (0, 17, 63):
        alone = networks.encode_distinct(inputs[:, day : day + networks.context_days], INVESTABLE)
        assert_close(alone, DayEncoding(block.stocks[:, day : day + 1], block.summary[:, day : day + 1]), 1e-5)


@given(st.permutations(range(COLUMNS)), st.sampled_from(["independent", "shared"]), st.integers(0, 100))
@settings(max_examples=25, deadline=None)
def test_the_order_of_the_tickers_does_not_matter(order: list[int], representation: Representation, seed: int) -> None:
    """Columns permuted, and the investable ones at their new places: the same actions for the same stocks."""
    networks = networks_of(2, representation=representation, seed=seed)
    inputs = market_inputs(CONTEXT + 3, seed=seed)
    moved_to = torch.tensor(order).argsort()
    torch.testing.assert_close(
        act(networks, inputs[order], moved_to[INVESTABLE]), act(networks, inputs), rtol=0, atol=1e-9
    )


@given(st.permutations(range(len(INVESTABLE))))
@settings(max_examples=6, deadline=None)
def test_the_actor_permutes_with_its_stocks(order: list[int]) -> None:
    networks = networks_of()
    encoding = networks.encode_distinct(market_inputs(CONTEXT), INVESTABLE)
    positions, account = random_state(1, 1)
    expected = networks.actor(encoding.stocks, encoding.summary, positions, account)
    found = networks.actor(encoding.stocks[:, :, order], encoding.summary, positions[:, :, order], account)
    torch.testing.assert_close(found, expected[:, :, order], rtol=0, atol=1e-12)
    assert len(expected[0, 0, :, 0].unique()) == len(INVESTABLE)


def scaled_inputs(
    panel: FloatArray, stats: NormalizationStats | None, factor: float
) -> tuple[Tensor, NormalizationStats]:
    """(columns, days, 10) inputs of the panel with the prices of column 2 times `factor`, and their statistics."""
    scaled = panel.astype(np.float64)
    scaled[:, 2] *= factor
    loader = loader_of(scaled.astype(np.float32))
    found = stats or loader.compute_normalization_stats()
    inputs = network_inputs(loader.data_array, found, 8.0)
    return torch.from_numpy(np.ascontiguousarray(inputs.transpose(1, 0, 2))), found


@pytest.mark.parametrize("with_own_stats", [False, True])
def test_the_price_level_of_a_ticker_does_not_matter(with_own_stats: bool) -> None:
    """Times 8 changes nothing, bit for bit; times 10 rounds differently, and no more than that."""
    panel = random_panel(np.random.default_rng(3), 100, COLUMNS)
    inputs, stats = scaled_inputs(panel, None, 1.0)
    given_stats = None if with_own_stats else stats
    agent = networks_of(1).float()
    expected = act_in_single_precision(agent, inputs)
    eightfold, own = scaled_inputs(panel, given_stats, 8.0)
    assert torch.equal(eightfold, inputs)
    assert np.array_equal(own.mean, stats.mean) and np.array_equal(own.std, stats.std)
    assert torch.equal(act_in_single_precision(agent, eightfold), expected)
    tenfold, _ = scaled_inputs(panel, given_stats, 10.0)
    assert not torch.equal(tenfold, inputs)
    torch.testing.assert_close(act_in_single_precision(agent, tenfold), expected, rtol=0, atol=1e-4)
    assert expected[..., 0].std() > 0.1, "the actions do depend on the market"


def act_in_single_precision(networks: AgentNetworks, inputs: Tensor) -> Tensor:
    encoding = networks.encode_distinct(inputs, INVESTABLE)
    positions, account = random_state(1, encoding.summary.shape[1])
    action: Tensor = networks.actor(encoding.stocks, encoding.summary, positions.float(), account.float())
    return action


@pytest.mark.parametrize("representation", ["independent", "shared"])
def test_nothing_traded_gives_finite_encodings_and_actions(representation: Representation) -> None:
    """A column that never has a bar, a day on which no column has one, and a market without any."""
    networks = networks_of(2, representation=representation)
    some = market_inputs(CONTEXT + 4)
    some[3] = 0
    some[:, -2] = 0
    for inputs in (some, torch.zeros_like(some)):
        encoding = networks.encode_distinct(inputs, INVESTABLE)
        assert encoding.stocks.isfinite().all()
        assert encoding.summary.isfinite().all()
        action = act(networks, inputs)
        assert action.isfinite().all()
        assert ((action >= torch.tensor([0.0, 10.0])) & (action <= torch.tensor([10.0, 50.0]))).all()


def test_a_column_without_a_bar_is_no_part_of_the_summary() -> None:
    """What a column was before does not count on a day on which it does not trade; its own encoding does change."""
    networks = networks_of()
    inputs = market_inputs(CONTEXT)
    inputs[:, -1, MASK] = 1.0
    inputs[2, -1] = 0.0
    other = inputs.clone()
    other[2, :-1] += 1.0
    found, expected = networks.encode_distinct(other, INVESTABLE), networks.encode_distinct(inputs, INVESTABLE)
    assert torch.equal(found.summary, expected.summary)
    assert not torch.equal(found.stocks, expected.stocks)
    other[2, -1, MASK] = 1.0
    assert not torch.equal(networks.encode_distinct(other, INVESTABLE).summary, expected.summary)


def copy_of_agent(networks: AgentNetworks, index: int, config: NetworkConfig) -> AgentNetworks:
    """A population of one with the weights of agent `index`."""
    single = AgentNetworks(1, config, networks.context_days).to(next(networks.parameters())).requires_grad_(False)
    for name, parameter in networks.named_parameters():
        row = index if networks.is_stacked(name) else 0
        single.get_parameter(name).copy_(parameter[row : row + 1])
    return single


@pytest.mark.parametrize("representation", ["independent", "shared"])
@pytest.mark.parametrize("critic", ["structured", "plain"])
def test_a_stack_of_agents_is_so_many_single_agents(representation: Representation, critic: CriticForm) -> None:
    agents, days, orders = 3, 4, 2
    networks = networks_of(agents, representation=representation, critic=critic)
    config = NetworkConfig(representation, TINY_NETWORK.encoder_channels, TINY_NETWORK.hidden_units, 2, critic)
    inputs = market_inputs(CONTEXT - 1 + days)
    encoding = networks.encode_distinct(inputs, INVESTABLE)
    actions = act(networks, inputs)
    generator = torch.Generator().manual_seed(1)
    stock = torch.randint(0, len(INVESTABLE) + 1, (agents, days, orders), generator=generator)
    slot_stock = torch.randint(0, len(INVESTABLE) + 1, (agents, days, SLOTS), generator=generator)
    position = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0], [1, 1, 0, 2]])
    _, account = random_state(agents, days, seed=5)
    slots = torch.rand(agents, days, SLOTS, 6, generator=generator, dtype=torch.float64)
    size = torch.rand(agents, days, orders, generator=generator, dtype=torch.float64)

    def values(chosen: AgentNetworks, days_: DayEncoding, rows: slice) -> list[Tensor]:
        at = position[rows]
        _, summary = days_.at(at)
        ordered, held = (gather_stocks(days_, at, which[rows]) for which in (stock, slot_stock))
        return [
            value
            for one in chosen.each_critic()
            for value in (
                one.order_value(ordered, summary, account[rows], size[rows], 10 + 40 * size[rows]),
                one.state_value(held, slots[rows], summary, account[rows]),
            )
        ]

    together = values(networks, encoding, slice(None))
    assert len(together) == 4
    assert together[0].shape == (agents, days, orders)
    assert together[1].shape == (agents, days)
    for agent in range(agents):
        single = copy_of_agent(networks, agent, config)
        own = single.encode_distinct(inputs, INVESTABLE)
        shown = 0 if representation == "shared" else agent
        assert_close(own, DayEncoding(encoding.stocks[shown : shown + 1], encoding.summary[shown : shown + 1]))
        torch.testing.assert_close(act(single, inputs)[0], actions[agent], rtol=0, atol=1e-11)
        for one, all_ in zip(values(single, own, slice(agent, agent + 1)), together, strict=True):
            torch.testing.assert_close(one[0], all_[agent], rtol=0, atol=1e-11)
    assert not torch.allclose(actions[0], actions[1])


def test_agents_are_chosen_by_slice_and_by_index() -> None:
    networks = networks_of(4)
    inputs = market_inputs(CONTEXT + 1)
    everyone = networks.encode_distinct(inputs, INVESTABLE)
    assert_close(networks.encode_distinct(inputs, INVESTABLE, slice(1, 3)), everyone.of(slice(1, 3)), 0)
    positions, account = random_state(4, 2)
    actions = networks.actor(everyone.stocks, everyone.summary, positions, account)
    for chosen in (slice(1, 3), torch.tensor([3, 0, 3])):
        found = networks.actor(
            everyone.stocks[chosen], everyone.summary[chosen], positions[chosen], account[chosen], chosen
        )
        torch.testing.assert_close(found, actions[chosen], rtol=0, atol=1e-12)


def test_a_shared_encoder_gives_all_agents_one_encoding() -> None:
    networks = networks_of(3, representation="shared")
    inputs = market_inputs(CONTEXT + 2)
    encoding = networks.encode_distinct(inputs, INVESTABLE)
    assert len(encoding.stocks) == len(encoding.summary) == 1
    assert_close(networks.encode_distinct(inputs, INVESTABLE, slice(1, 2)), encoding, 0)
    assert encoding.of(slice(1, 3)) is encoding
    stocks, summary = encoding.at(torch.tensor([[2, 0]] * 3))
    assert stocks.shape[:2] == summary.shape[:2] == (3, 2)
    for agent in range(3):
        assert torch.equal(stocks[agent], encoding.stocks[0, [2, 0]])
        assert torch.equal(summary[agent], encoding.summary[0, [2, 0]])
    actions = act(networks, inputs)
    assert not torch.allclose(actions[0], actions[1]), "the heads are their own"
    stacked = {name.split(".")[0] for name, _ in networks.named_parameters() if networks.is_stacked(name)}
    assert stacked == {"actor", "critics"}


def test_a_structured_order_value_is_linear_in_its_size() -> None:
    networks = networks_of(critic="structured")
    encoding = networks.encode_distinct(market_inputs(CONTEXT), INVESTABLE)
    _, account = random_state(1, 1)
    target = torch.full((1, 1, 3), 20.0, dtype=torch.float64)
    size = torch.tensor([[[0.1, 0.5, 0.0]]], dtype=torch.float64)
    value = [
        networks.each_critic()[0].order_value(encoding.stocks, encoding.summary, account, times * size, target)
        for times in (1, 2)
    ]
    torch.testing.assert_close(value[1], 2 * value[0])
    assert value[0][..., 2].item() == 0.0


def test_an_empty_slot_counts_for_nothing() -> None:
    networks = networks_of()
    encoding = networks.encode_distinct(market_inputs(CONTEXT), INVESTABLE)
    position, empty = torch.zeros(1, 1, dtype=torch.int64), len(INVESTABLE)
    stock = torch.tensor([[[1, empty, 0]]])
    found = gather_stocks(encoding, position, stock)
    assert torch.equal(found[0, 0, 0], encoding.stocks[0, 0, 1])
    assert torch.equal(found[0, 0, 2], encoding.stocks[0, 0, 0])
    assert not found[0, 0, 1].any()
    _, account = random_state(1, 1)
    slots = torch.rand(1, 1, 3, 6, dtype=torch.float64)
    slots[:, :, 1] = 0.0
    critic = networks.each_critic()[0]
    full = critic.state_value(found, slots, encoding.summary, account)
    fewer = critic.state_value(found[:, :, [2, 0]], slots[:, :, [2, 0]], encoding.summary, account)
    torch.testing.assert_close(full, fewer)


X = torch.linspace(-20, 20, 401, dtype=torch.float64)


def saturating(x: Tensor) -> Tensor:
    """The output function of the actor."""
    return cast(Tensor, _Saturating.apply(x))  # type: ignore[no-untyped-call]


def gradient_of(function: Callable[[Tensor], Tensor], x: Tensor, grad: float) -> Tensor:
    """Gradient in x of `grad` times the function."""
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(grad * function(x).sum(), x)
    return gradient


def ascend(function: Callable[[Tensor], Tensor], start: float, direction: float, steps: int) -> float:
    """Where plain gradient steps take x when each asks for a larger (or smaller) output."""
    x = torch.tensor([start], dtype=torch.float64)
    for _ in range(steps):
        x = x - 0.2 * gradient_of(function, x, -direction)
    return x.item()


def test_the_output_is_a_sigmoid() -> None:
    assert torch.equal(saturating(X), X.sigmoid())


@pytest.mark.parametrize("grad", [1.0, -1.0])
def test_its_gradient_has_a_floor_and_is_blocked_only_outward(grad: float) -> None:
    """Descent with a positive gradient lowers x: only below the lower bound is there nothing left to do, and so on."""
    found = gradient_of(saturating, X, grad)
    slope = X.sigmoid() * (1 - X.sigmoid())
    outward = X < -7.0 if grad > 0 else X > 7.0
    torch.testing.assert_close(found, torch.where(outward, 0.0, grad * slope.clamp(min=0.05)))
    assert outward.any()
    assert (found[~outward].abs() >= 0.05).all()


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_an_ascent_reaches_the_bound_where_a_sigmoid_does_not(side: float) -> None:
    """From the middle, 400 steps outward; and back again when that is asked for."""
    for function, reaches in ((saturating, True), (torch.sigmoid, False)):
        x = torch.tensor(side * ascend(function, 0.0, side, 400))
        assert (x.sigmoid().item() > 0.99) is reaches
    far = ascend(saturating, side * 6.5, side, 200)
    assert 7.0 <= side * far < 7.1, "it does not run away"
    assert side * ascend(saturating, far, -side, 700) < 0


def test_actions_reach_their_bounds_but_keep_their_order() -> None:
    """Saturated coefficients still rank the stocks."""
    networks = networks_of().float()
    networks.actor.out.weight.zero_()
    networks.actor.out.bias.copy_(torch.tensor([6.9, -6.9]))
    networks.actor.out.weight[0, :, 0] = 0.01
    encoding = networks.encode_distinct(market_inputs(CONTEXT).float(), INVESTABLE)
    positions, account = random_state(1, 1)
    action = networks.actor(encoding.stocks, encoding.summary, positions.float(), account.float())[0, 0]
    assert (action[:, 0] > 9.9).all()
    assert (action[:, 1] < 10.1).all()
    assert len(action[:, 0].unique()) == len(INVESTABLE)


def test_a_new_agent_starts_away_from_the_bounds() -> None:
    """Else its gradients would start at their floor."""
    torch.manual_seed(0)
    agent = DDPGAgent(TINY_NETWORK, CONTEXT)
    encoding = agent.networks.encode_distinct(market_inputs(CONTEXT + 20).float(), INVESTABLE)
    days = encoding.summary.shape[1]
    positions, account = random_state(1, days)
    share = agent.networks.actor(encoding.stocks, encoding.summary, positions.float(), account.float())
    assert ((share[..., 0] > 2.0) & (share[..., 0] < 8.0)).all()
