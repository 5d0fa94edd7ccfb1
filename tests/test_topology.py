"""Who hears whom: exactly those whom the edges name, in an order that exists."""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_gspo_core.topology import TOPOLOGIES, Topology, build_topology


@dataclass(frozen=True)
class Said:
    agent: int
    round: int
    silent: bool = False


def everything(topology: Topology) -> list[Said]:
    """What is said when everybody speaks in every round, in speaking order."""
    return [
        Said(agent, index) for index in range(topology.rounds) for stage in topology.stages(index) for agent in stage
    ]


def heard(topology: Topology, agent: int, index: int) -> set[tuple[int, int]]:
    """(author, round) of all that `agent` hears in round `index` when everybody speaks."""
    messages = everything(topology)
    return {(messages[place].agent, messages[place].round) for place in topology.hears(agent, index, messages)}


def decided_on(topology: Topology) -> set[tuple[int, int]]:
    messages = everything(topology)
    return {(messages[place].agent, messages[place].round) for place in topology.decider_ears(messages)}


topologies = st.builds(
    build_topology,
    st.sampled_from(TOPOLOGIES),
    st.integers(1, 7),
    st.integers(0, 3),
    seed=st.integers(0, 50),
    edge_probability=st.floats(0, 1),
    layer_width=st.integers(1, 4),
)


# --- what holds for all of them


@given(topologies)
def test_every_agent_speaks_once_a_round_after_all_it_hears_in_that_round(topology: Topology):
    for index in range(topology.rounds):
        assert nx.is_directed_acyclic_graph(topology.spatial[index])
        stages = topology.stages(index)
        assert sorted(agent for stage in stages for agent in stage) == list(range(topology.agents))
        stage_of = {agent: place for place, stage in enumerate(stages) for agent in stage}
        assert all(stage_of[u] < stage_of[v] for u, v in topology.spatial[index].edges)


@given(topologies)
def test_messages_are_heard_only_along_edges(topology: Topology):
    for index in range(topology.rounds):
        for agent in range(topology.agents):
            for author, said_in in heard(topology, agent, index):
                if said_in == index:
                    assert topology.spatial[index].has_edge(author, agent)
                else:
                    assert said_in < index
                    assert author == agent or topology.temporal[index].has_edge(author, agent)


@given(topologies)
def test_every_edge_and_an_agents_own_past_is_heard(topology: Topology):
    for index in range(topology.rounds):
        past = range(index) if topology.memory == "all" else range(max(0, index - 1), index)
        expected = {(u, index, v) for u, v in topology.spatial[index].edges}
        expected |= {(u, earlier, v) for u, v in topology.temporal[index].edges for earlier in past}
        expected |= {(agent, earlier, agent) for agent in range(topology.agents) for earlier in past}
        got = {(author, said, v) for v in range(topology.agents) for author, said in heard(topology, v, index)}
        assert got == expected


@given(topologies, st.data())
def test_silence_is_relayed_to_nobody(topology: Topology, data: st.DataObject):
    spoken = everything(topology)
    messages = [Said(one.agent, one.round, data.draw(st.booleans())) for one in spoken]
    for index in range(topology.rounds):
        for agent in range(topology.agents):
            full, quiet = topology.hears(agent, index, spoken), topology.hears(agent, index, messages)
            assert quiet == tuple(place for place in full if not messages[place].silent)
    assert not any(messages[place].silent for place in topology.decider_ears(messages))


@given(topologies)
def test_no_agent_has_an_edge_to_itself(topology: Topology):
    assert all(nx.number_of_selfloops(graph) == 0 for graph in (*topology.spatial, *topology.temporal))


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_single_agent_remembers_itself_and_its_decider_hears_it(name: str):
    topology = build_topology(name, 1, 2)
    assert topology.stages(0) == ((0,),)
    assert heard(topology, 0, 0) == set()
    assert heard(topology, 0, 1) == {(0, 0)}
    assert topology.decider_hears == (frozenset() if name == "none" else {0})


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_no_rounds_means_a_decider_alone(name: str):
    topology = build_topology(name, 3, 0)
    assert topology.rounds == 0
    assert topology.decider_ears([]) == ()
    topology.check_decider()


@pytest.mark.parametrize("name", [name for name in TOPOLOGIES if name != "none"])
def test_a_note_of_any_agent_can_reach_the_decider_in_fixed_topologies(name: str):
    """Relay included: otherwise a team could not answer a question that needs that note."""
    topology = build_topology(name, 6, 1)
    reached = set(topology.decider_hears)
    for agent in topology.decider_hears:
        reached |= nx.ancestors(topology.spatial[0], agent)
    assert reached == set(range(6))


# --- each by itself


def test_free_for_all_hears_all_earlier_rounds():
    topology = build_topology("free_for_all", 3, 3)
    assert topology.stages(1) == ((0, 1, 2),)
    assert heard(topology, 1, 0) == set()
    assert heard(topology, 1, 2) == {(agent, index) for agent in range(3) for index in range(2)}
    assert decided_on(topology) == {(agent, index) for agent in range(3) for index in range(3)}


def test_debate_hears_the_previous_round_only():
    topology = build_topology("debate", 3, 3)
    assert heard(topology, 1, 2) == {(0, 1), (1, 1), (2, 1)}
    assert decided_on(topology) == {(0, 2), (1, 2), (2, 2)}


def test_chain_passes_on_and_reports_back_to_its_start():
    topology = build_topology("chain", 3, 2)
    assert topology.stages(0) == ((0,), (1,), (2,))
    assert heard(topology, 2, 0) == {(1, 0)}
    assert heard(topology, 0, 1) == {(0, 0), (2, 0)}
    assert heard(topology, 1, 1) == {(1, 0), (0, 1)}
    assert decided_on(topology) == {(2, 0), (2, 1)}


def test_star_reports_to_its_hub_and_is_answered_in_the_next_round():
    topology = build_topology("star", 4, 2)
    assert topology.stages(0) == ((1, 2, 3), (0,))
    assert heard(topology, 0, 0) == {(1, 0), (2, 0), (3, 0)}
    assert heard(topology, 2, 1) == {(2, 0), (0, 0)}
    assert decided_on(topology) == {(0, 0), (0, 1)}


def test_tree_reports_upwards_and_is_answered_downwards():
    topology = build_topology("tree", 6, 2)
    assert topology.stages(0) == ((3, 4, 5), (1, 2), (0,))
    assert heard(topology, 1, 0) == {(3, 0), (4, 0)}
    assert heard(topology, 2, 0) == {(5, 0)}
    assert heard(topology, 4, 1) == {(4, 0), (1, 0)}
    assert topology.decider_hears == {0}


def test_layers_are_complete_from_one_to_the_next():
    topology = build_topology("layered", 5, 2, layer_width=2)
    assert topology.stages(0) == ((0, 1), (2, 3), (4,))
    assert heard(topology, 3, 0) == {(0, 0), (1, 0)}
    assert heard(topology, 0, 1) == {(0, 0), (4, 0)}
    assert topology.decider_hears == {4}


def test_layers_of_one_agent_are_a_chain():
    chain, layered = build_topology("chain", 4, 2), build_topology("layered", 4, 2, layer_width=1)
    assert set(chain.spatial[0].edges) == set(layered.spatial[0].edges)
    assert set(chain.temporal[0].edges) == set(layered.temporal[0].edges)


def test_random_graph_is_the_same_for_the_same_seed_and_differs_between_rounds_and_seeds():
    def edges(seed: int, rounds: int = 2) -> list[set[tuple[int, int]]]:
        topology = build_topology("random", 6, rounds, seed=seed)
        return [set(graph.edges) for graph in (*topology.spatial, *topology.temporal)]

    assert edges(3) == edges(3)
    assert edges(3) != edges(4)
    assert edges(3)[0] != edges(3)[1]


def test_random_graph_is_empty_or_complete_at_the_ends_of_its_probability():
    empty = build_topology("random", 5, 1, edge_probability=0.0)
    full = build_topology("random", 5, 1, edge_probability=1.0)
    assert (empty.spatial[0].size(), empty.temporal[0].size()) == (0, 0)
    assert (full.spatial[0].size(), full.temporal[0].size()) == (10, 20)
    assert len(full.stages(0)) == 5


def test_decider_hears_everybody_in_a_random_graph_whatever_was_drawn():
    assert build_topology("random", 5, 2, edge_probability=0.0).decider_hears == set(range(5))


# --- bad input


def test_decider_that_hears_nobody_is_refused_with_the_ways_out():
    with pytest.raises(
        ValueError, match=r"'none': 3 agents talk for 2 rounds but the decider hears nobody; let .* vote"
    ):
        build_topology("none", 3, 2).check_decider()


@pytest.mark.parametrize("name", [name for name in TOPOLOGIES if name != "none"])
def test_decider_hears_somebody_in_all_other_topologies(name: str):
    build_topology(name, 4, 2).check_decider()


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("ring", 3, 1), {}, r"unknown topology 'ring'; known are free_for_all, debate, .*none"),
        (("chain", 0, 1), {}, "agents is 0"),
        (("chain", 3, -1), {}, "rounds is -1"),
        (("random", 3, 1), {"edge_probability": 1.5}, "edge_probability is 1.5"),
        (("layered", 3, 1), {"layer_width": 0}, "layer_width is 0"),
    ],
)
def test_build_names_what_is_wrong(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        build_topology(*arguments, **options)


def test_rounds_and_agents_outside_the_team_are_named():
    topology = build_topology("chain", 3, 2)
    with pytest.raises(ValueError, match="round 2 is not in topology 'chain', which has 2 rounds"):
        topology.stages(2)
    with pytest.raises(ValueError, match="round -1"):
        topology.hears(0, -1, [])
    with pytest.raises(ValueError, match="agent 3 is not in topology"):
        topology.hears(3, 0, [])


def graph(nodes: int, *edges: tuple[int, int]) -> nx.DiGraph:
    made = nx.DiGraph()
    made.add_nodes_from(range(nodes))
    made.add_edges_from(edges)
    return made


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"spatial": (graph(2, (0, 1), (1, 0)),)}, "spatial graph of round 0 has a cycle"),
        ({"temporal": ()}, "1 spatial and 0 temporal graphs"),
        ({"spatial": (graph(3),)}, r"spatial graph of round 0 has nodes \[0, 1, 2\]"),
        ({"memory": "some"}, "memory is 'some'"),
        ({"decider_hears": frozenset({2})}, r"decider_hears is \[2\]"),
        ({"agents": 0}, "0 agents"),
    ],
)
def test_hand_made_topology_is_checked(parts, message):
    whole = {"name": "mine", "agents": 2, "spatial": (graph(2),), "temporal": (graph(2),)}
    with pytest.raises(ValueError, match=message):
        Topology(**{**whole, **parts})


def test_graphs_of_a_topology_cannot_be_changed():
    with pytest.raises(nx.NetworkXError, match="Frozen graph"):
        build_topology("chain", 3, 1).spatial[0].add_edge(2, 0)
