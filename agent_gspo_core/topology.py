"""Who hears whom, in which round: communication graphs over the discussion agents 0 … n−1.

Two kinds of edge per round, as in the graph view of agent teams (AgentPrune, arXiv 2410.02506): a *spatial* edge u → v
means that v speaks after u in the same round and hears it; a *temporal* edge u → v means that v hears in this round
what u said in earlier ones. A decider is outside the graph; `decider_hears` says whom it listens to.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import networkx as nx

Edge = tuple[int, int]


class Said(Protocol):
    """What a topology reads of a message (`episode.Message` has it)."""

    @property
    def agent(self) -> int:
        """Its author."""

    @property
    def round(self) -> int:
        """The round it was said in, counted from 0."""

    @property
    def silent(self) -> bool:
        """Relayed to nobody."""


@dataclass(frozen=True, eq=False)
class Topology:
    """A team's graphs, one spatial and one temporal per round, over the nodes 0 … `agents` − 1.

    The graphs are frozen. An agent always remembers what it said itself in earlier rounds, within `memory`.
    """

    name: str
    agents: int
    spatial: tuple[nx.DiGraph, ...]
    """Edges within each round; acyclic, because somebody has to speak first."""
    temporal: tuple[nx.DiGraph, ...]
    """Edges from all earlier rounds into each round; in round 0 they carry nothing."""
    memory: Literal["all", "last"] = "all"
    """Which earlier rounds are heard: all of them, or only the previous one (for the decider: the last)."""
    decider_hears: frozenset[int] = frozenset()
    """Agents whose messages a decider hears."""

    def __post_init__(self) -> None:
        if self.agents < 1:
            raise ValueError(f"topology {self.name!r} has {self.agents} agents; a team needs at least one")
        if len(self.spatial) != len(self.temporal):
            raise ValueError(
                f"topology {self.name!r} has {len(self.spatial)} spatial and {len(self.temporal)} temporal graphs; "
                "it needs one of each per round"
            )
        if self.memory not in ("all", "last"):
            raise ValueError(f"topology {self.name!r}: memory is {self.memory!r}; it must be 'all' or 'last'")
        for kind, graphs in (("spatial", self.spatial), ("temporal", self.temporal)):
            for index, graph in enumerate(graphs):
                if set(graph) != set(range(self.agents)):
                    raise ValueError(
                        f"topology {self.name!r}: the {kind} graph of round {index} has nodes {sorted(graph)}; "
                        f"it needs exactly 0 … {self.agents - 1}"
                    )
        for index, graph in enumerate(self.spatial):
            if not nx.is_directed_acyclic_graph(graph):
                raise ValueError(
                    f"topology {self.name!r}: the spatial graph of round {index} has a cycle "
                    f"{nx.find_cycle(graph)}; an agent hears only those who spoke before it, move one edge to temporal"
                )
        if not self.decider_hears <= set(range(self.agents)):
            raise ValueError(
                f"topology {self.name!r}: decider_hears is {sorted(self.decider_hears)}; "
                f"agents are 0 … {self.agents - 1}"
            )
        for graph in (*self.spatial, *self.temporal):
            nx.freeze(graph)

    @property
    def rounds(self) -> int:
        """Number of discussion rounds; 0 means that a decider answers alone."""
        return len(self.spatial)

    def stages(self, round: int) -> tuple[tuple[int, ...], ...]:
        """Agents in speaking order: those of one stage hear nothing of each other and are sampled in one batch."""
        graph = self.spatial[self._checked(round)]
        return tuple(tuple(sorted(stage)) for stage in nx.topological_generations(graph))

    def hears(self, agent: int, round: int, messages: Sequence[Said]) -> tuple[int, ...]:
        """Indices in `messages` of what `agent` hears before it speaks in `round`, in the order said.

        Silent messages are heard by nobody, not even remembered by their author.
        """
        self._checked(round)
        if not 0 <= agent < self.agents:
            raise ValueError(f"agent {agent} is not in topology {self.name!r}, whose agents are 0 … {self.agents - 1}")
        now, before = self.spatial[round], self.temporal[round]

        def audible(message: Said) -> bool:
            if message.silent:
                return False
            if message.round == round:
                return bool(now.has_edge(message.agent, agent))
            if message.round > round or (self.memory == "last" and message.round < round - 1):
                return False
            return message.agent == agent or bool(before.has_edge(message.agent, agent))

        return tuple(index for index, message in enumerate(messages) if audible(message))

    def decider_ears(self, messages: Sequence[Said]) -> tuple[int, ...]:
        """Indices in `messages` of what a decider hears at the end: all rounds, or the last with memory "last"."""
        first = self.rounds - 1 if self.memory == "last" else 0
        return tuple(
            index
            for index, message in enumerate(messages)
            if not message.silent and message.agent in self.decider_hears and message.round >= first
        )

    def check_decider(self) -> None:
        """ValueError when agents talk but a decider would hear none of them."""
        if self.rounds and not self.decider_hears:
            raise ValueError(
                f"topology {self.name!r}: {self.agents} agents talk for {self.rounds} rounds but the decider hears "
                "nobody; let the agents vote, choose a topology whose decider hears someone "
                f"({', '.join(name for name in TOPOLOGIES if name != 'none')}), or set 0 rounds"
            )

    def _checked(self, round: int) -> int:
        if not 0 <= round < self.rounds:
            raise ValueError(f"round {round} is not in topology {self.name!r}, which has {self.rounds} rounds")
        return round


@dataclass(frozen=True)
class _Plan:
    """Edges of a fixed topology: the same in every round."""

    spatial: Iterable[Edge] = ()
    temporal: Iterable[Edge] = ()
    decider_hears: Iterable[int] = ()
    memory: Literal["all", "last"] = "all"


def _complete(agents: int) -> list[Edge]:
    return [(u, v) for u in range(agents) for v in range(agents) if u != v]


def _free_for_all(agents: int, _: int) -> _Plan:
    """All speak at once and hear everything of earlier rounds; the paper's starting point, its layout ours."""
    return _Plan(temporal=_complete(agents), decider_hears=range(agents))


def _debate(agents: int, _: int) -> _Plan:
    """As free-for-all, but only the previous round is heard (Du et al., arXiv 2305.14325)."""
    return _Plan(temporal=_complete(agents), decider_hears=range(agents), memory="last")


def _layered(agents: int, width: int) -> _Plan:
    """Layers of `width`: each hears the one before, the first hears the last of earlier rounds (ours)."""
    layers = [range(start, min(start + width, agents)) for start in range(0, agents, width)]
    return _Plan(
        spatial=[(u, v) for above, below in itertools.pairwise(layers) for u in above for v in below],
        temporal=[(u, v) for u in layers[-1] for v in layers[0] if u != v],
        decider_hears=layers[-1],
    )


def _chain(agents: int, _: int) -> _Plan:
    """0 → 1 → …, and the last reports to the first of the next round: layers of width 1."""
    return _layered(agents, 1)


def _star(agents: int, _: int) -> _Plan:
    """Spokes report to hub 0, which answers them in the next round."""
    spokes = range(1, agents)
    return _Plan([(spoke, 0) for spoke in spokes], [(0, spoke) for spoke in spokes], [0])


def _tree(agents: int, _: int) -> _Plan:
    """Binary tree in heap order: children report to parents, parents answer in the next round; root 0."""
    up = [(child, (child - 1) // 2) for child in range(1, agents)]
    return _Plan(up, [(parent, child) for child, parent in up], [0])


def _none(_: int, __: int) -> _Plan:
    """Nobody hears anybody: for votes, and as the arm without communication."""
    return _Plan()


_FIXED: dict[str, Callable[[int, int], _Plan]] = {
    "free_for_all": _free_for_all,
    "debate": _debate,
    "chain": _chain,
    "star": _star,
    "tree": _tree,
    "layered": _layered,
    "none": _none,
}

TOPOLOGIES: tuple[str, ...] = (*(name for name in _FIXED if name != "none"), "random", "none")
"""Names that `build_topology` knows."""


def build_topology(
    name: str, agents: int, rounds: int, *, seed: int = 0, edge_probability: float = 0.5, layer_width: int = 2
) -> Topology:
    """Build a named topology for `agents` agents and `rounds` discussion rounds.

    `seed` and `edge_probability` matter to "random" only, `layer_width` to "layered" only. The decider hears everybody
    in free_for_all, debate and random, the last agent or layer in chain and layered, agent 0 in star and tree, nobody
    in none. ValueError on an unknown name, fewer than 1 agent, a negative number of rounds, a probability outside
    [0, 1] or a layer without agents.
    """
    if name not in TOPOLOGIES:
        raise ValueError(f"unknown topology {name!r}; known are {', '.join(TOPOLOGIES)}")
    if agents < 1:
        raise ValueError(f"agents is {agents}; a team needs at least one")
    if rounds < 0:
        raise ValueError(f"rounds is {rounds}; it must be 0 (a decider answers alone) or more")
    if not 0 <= edge_probability <= 1:
        raise ValueError(f"edge_probability is {edge_probability}; a probability lies in [0, 1]")
    if layer_width < 1:
        raise ValueError(f"layer_width is {layer_width}; a layer needs at least one agent")
    if name == "random":
        return _random(agents, rounds, seed, edge_probability)
    plan = _FIXED[name](agents, layer_width)
    return Topology(
        name=name,
        agents=agents,
        spatial=(_graph(agents, plan.spatial),) * rounds,
        temporal=(_graph(agents, plan.temporal),) * rounds,
        memory=plan.memory,
        decider_hears=frozenset(plan.decider_hears),
    )


def _random(agents: int, rounds: int, seed: int, probability: float) -> Topology:
    """Each edge with `probability`, anew in every round; spatial ones only along one drawn order, so without cycles.

    No repair is needed for a message to count: the decider hears all agents whatever was drawn.
    """
    draw = random.Random(seed)
    order = sorted(range(agents), key=lambda _: draw.random())  # random() alone is the same in every Python
    forward = [(u, v) for place, u in enumerate(order) for v in order[place + 1 :]]
    spatial, temporal = [], []
    for _ in range(rounds):
        spatial.append(_graph(agents, [edge for edge in forward if draw.random() < probability]))
        temporal.append(_graph(agents, [edge for edge in _complete(agents) if draw.random() < probability]))
    return Topology("random", agents, tuple(spatial), tuple(temporal), "all", frozenset(range(agents)))


def _graph(agents: int, edges: Iterable[Edge]) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(range(agents))
    graph.add_edges_from(edges)
    return graph
