"""Silos that do not answer, come back, or send what they should not; a server that was killed."""

from __future__ import annotations

import json
import sys
import threading

import pytest
import torch
from test_same_network import digits
from torch import nn

from dladmm import mlp
from dladmm.base.errors import InputError
from dladmm.silos import Hub, Message, Silo, SiloError, run_silos, train_silo
from dladmm.silos.communicator import Stopped
from dladmm.silos.memory import Memory, Standing
from dladmm.silos.threads import Queues, attend

# Silos are threads, and filters of warnings are not theirs alone
pytestmark = pytest.mark.filterwarnings("ignore")


def total(number, *values, shape=None):
    tensor = torch.tensor(values, dtype=torch.float64)
    return Message.of("sum", number, [tensor if shape is None else tensor.reshape(shape)]).to_bytes()


def hello(version="1", precision="exact", name=""):
    said = {"versions": {"dladmm": version}, "precision": precision, "name": name}
    return Message("hello", text=json.dumps(said)).to_bytes()


def test_sums_are_the_same_bits_for_all():
    answers = Hub(3).answer({0: total(0, 1e16, 1.0), 1: total(0, 1.0, 2.0), 2: total(0, -1e16, 3.0)})
    assert len(set(answers.values())) == 1
    assert Message.from_bytes(answers[0]).tensors[0].tolist() == [0.0, 6.0]


@pytest.mark.parametrize(("wrong", "reason"), [
    ({1: total(4, float("nan"))}, "silo 1 sent NaN or infinity"),
    ({1: total(4, 1.0, 2.0)}, r"silo 1 sent tensors of other shapes: \[\[2\]\].*\[\[1\]\]"),
    ({1: total(5, 1.0)}, r"silo 1 asks for 'sum' \(message 5\), where the others ask for 'sum' \(4\)"),
    ({1: Message("texts", 4, "x").to_bytes()}, "silo 1 asks for 'texts'"),
    ({1: Message("failed", 4, "ValueError: no rows").to_bytes()}, "silo 1 failed: ValueError: no rows"),
    ({1: b"garbage"}, "silo 1 sent something else than a message"),
    ({1: hello()}, "silo 1 began anew while the others were training"),
    ({}, "silo 1 does not answer"),
])  # fmt: skip
def test_what_is_wrong_is_said_of_the_silo(wrong, reason):
    said = {0: total(4, 1.0), 2: total(4, 3.0)} | wrong
    with pytest.raises(SiloError, match=reason) as caught:
        Hub(3).answer(said)
    assert caught.value.silo == 1
    hub = Hub(3, on_silo_lost="go-on")
    if "anew" in reason:
        return
    answers = {k: Message.from_bytes(raw) for k, raw in hub.answer(said).items()}
    assert hub.silos == [0, 2]
    assert list(hub.lost) == [1]
    places = [json.loads(answers[k].text) for k in (0, 2)]
    assert [(place["rank"], place["size"]) for place in places] == [(0, 2), (1, 2)]
    assert {answers[k].kind for k in (0, 2)} == {"again"}
    if wrong:
        assert answers[1].kind == "stop"


def test_a_silo_of_another_version_is_named():
    with pytest.raises(SiloError, match=r"silo 1 \(Ulm\) has .*2.*where the others have .*1"):
        Hub(3).answer({0: hello(), 1: hello("2", name="Ulm"), 2: hello()})
    with pytest.raises(SiloError, match=r"silo 2 has .*bfloat16"):
        Hub(3).answer({0: hello(), 1: hello(), 2: hello(precision="bfloat16")})


def test_a_step_that_breaks_all_silos_is_theirs_to_refuse():
    answers = Hub(2).answer({0: total(0, float("inf")), 1: total(0, float("inf"))})
    assert Message.from_bytes(answers[0]).tensors[0].isinf().all()


def test_texts_come_in_the_order_of_the_silos_and_bytes_count_both_ways():
    hub, said = Hub(2), {1: Message("texts", 1, "a").to_bytes(), 0: Message("texts", 1, "z").to_bytes()}
    answers = hub.answer(said)
    assert json.loads(Message.from_bytes(answers[1]).text) == ["z", "a"]
    both_ways = sum(map(len, said.values())) + sum(map(len, answers.values()))
    assert (hub.traffic.calls, hub.traffic.bytes) == (1, both_ways)


def test_who_began_anew_takes_the_parameters_of_the_others():
    """Those of rank 0 are taken, so that newcomers come last."""
    hub = Hub(3, on_silo_lost="wait")
    answers = hub.answer({0: hello(), 1: total(4, 1.0), 2: total(4, 2.0)})
    told = {k: Message.from_bytes(raw) for k, raw in answers.items()}
    assert hub.silos == [1, 2, 0]
    assert {k: message.kind for k, message in told.items()} == {0: "hello", 1: "again", 2: "again"}
    assert [json.loads(told[k].text)["rank"] for k in (1, 2, 0)] == [0, 1, 2]


def test_bad_settings_are_refused():
    with pytest.raises(InputError, match="on_silo_lost must be one of stop, wait, go-on"):
        Hub(2, on_silo_lost="panic")
    with pytest.raises(InputError, match="at least one silo"):
        Hub(0)
    with pytest.raises(InputError, match="noise must be"):
        Silo(None, noise=-1.0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"noise": -1.0}, "noise must be a number >= 0, got -1.0"),
        ({"precision": "int8"}, "precision must be one of"),
        ({"secure": True}, r"secure=True needs .* pip install 'dladmm\[flower\]'"),
    ],
)
def test_settings_that_no_silo_can_have_are_refused_at_once(settings, said, monkeypatch):
    """The server waited for silos that never were, five minutes unless told otherwise."""
    monkeypatch.setitem(sys.modules, "flwr.common.secure_aggregation.crypto.symmetric_encryption", None)
    with pytest.raises(InputError, match=said):
        run_silos(tasks_of(2, max_iter=2), patience=20, **settings)


class Deaf(Queues):
    """A transport on which one silo's messages get lost from a certain round on, for so many rounds."""

    def __init__(self, size, silo, since, rounds):
        super().__init__(size)
        self.silo, self.since, self.rounds, self.asked = silo, since, rounds, 0

    def gather(self, awaited, patience):
        self.asked += 1
        deaf = self.since <= self.asked < self.since + self.rounds
        return super().gather([k for k in awaited if not (deaf and k == self.silo)], 30)  # others may be slow


def run_over(lines, tasks, hub, patience=5.0):
    found = [None] * len(tasks)

    def work(k):
        try:
            found[k] = attend(Silo(lines.link(k)), tasks[k])
        except Exception as error:
            found[k] = error

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(len(tasks))]
    for thread in threads:
        thread.start()
    try:
        said = hub.serve(lines, patience)
    finally:
        lines.end()
        for thread in threads:
            thread.join(60)
    return found, said


def tasks_of(n, max_iter=4, model=lambda k: mlp([64, 6, 10]), **settings):
    X, y = digits(90)
    settings = {"mode": "convergent", "dtype": "float64", "smallest": 1, "max_iter": max_iter} | settings

    def task(k):
        return lambda silo: train_silo(silo, model(k), X[k::n], y[k::n], **settings)

    return [task(k) for k in range(n)]


def same(one, other):
    return all(
        torch.equal(p, q) for p, q in zip(one.module.parameters(), other.module.parameters(), strict=True)
    )


def test_a_silo_that_comes_back_is_waited_for():
    quiet = run_silos(tasks_of(3))
    found, said = run_over(Deaf(3, 1, 20, 3), tasks_of(3), Hub(3, on_silo_lost="wait"), patience=0.2)
    assert same(found[0], quiet[0])
    assert sorted(said) == [0, 1, 2]


class LosesAnAnswer(Queues):
    """A transport that loses one answer to silo 1, as a client does that is killed while it has it: the silo repeats
    its message."""

    def __init__(self, size, at):
        super().__init__(size)
        self.at, self.sent = at, 0

    def send(self, answers):
        self.sent += 1
        super().send({k: raw for k, raw in answers.items() if k != 1 or self.sent != self.at})


@pytest.mark.parametrize("at", [1, 2, 20])
def test_an_answer_that_did_not_arrive_is_given_again(at):
    quiet = run_silos(tasks_of(3))
    found, said = run_over(LosesAnAnswer(3, at), tasks_of(3), Hub(3))
    assert same(found[0], quiet[0])
    assert same(found[1], quiet[0])
    assert sorted(said) == [0, 1, 2]


def test_an_order_to_begin_again_that_did_not_arrive_is_given_again():
    memory = Memory(None)
    again = Message("again", 7, "{}").to_bytes()
    memory.keep(Standing([0, 1], {}, {}), {0: again, 1: again})
    late = {0: total(6, 1.0), 1: total(8, 1.0)}
    assert list(memory.answers_to(late)) == [0]
    assert memory.answers_to({0: hello()}) == {}


def test_a_silo_that_is_gone_ends_the_run_on_all():
    lines = Deaf(3, 1, 20, 10**6)
    with pytest.raises(SiloError, match="silo 1 does not answer"):
        run_over(lines, tasks_of(3), hub := Hub(3), patience=0.5)
    assert hub.silos == [0, 1, 2]


def test_the_others_go_on_without_it_from_where_they_were():
    """What they reach is a network of their own rows, as good as one trained without the lost silo throughout."""
    hub = Hub(3, on_silo_lost="go-on")
    networks = [nn.Sequential(nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10)) for _ in range(3)]
    tasks = tasks_of(3, max_iter=8, model=networks.__getitem__)
    found, said = run_over(Deaf(3, 1, 28, 10**6), tasks, hub, patience=0.5)
    assert hub.lost == {1: "does not answer"}
    assert sorted(said) == [0, 2]
    assert same(found[0], found[2])
    assert 0 < len(found[0].history["lagrangian"]) < 8
    pairs = zip(networks[0].parameters(), found[0].module.parameters(), strict=True)
    assert all(torch.equal(p, q.to(p)) for p, q in pairs), (
        "the module that was given is the one that was trained"
    )


def test_a_silo_that_begins_anew_takes_part_again():
    """Its process died and was started again: all begin again from the parameters that the others have."""

    class Died(Exception):
        pass

    class Frail:
        """A link that breaks once."""

        def __init__(self, link, messages):
            self.link, self.left = link, messages

        def exchange(self, said):
            self.left -= 1
            if self.left == 0:
                raise Died
            return self.link.exchange(said)

    first, *rest = tasks_of(3, max_iter=6)

    def restarted(silo):
        silo._link = link = Frail(silo._link, 34)
        with pytest.raises(Died):
            first(silo)
        silo.__init__(link)
        return first(silo)

    hub = Hub(3, on_silo_lost="wait")
    found, said = run_over(Queues(3), [restarted, *rest], hub, patience=20)
    assert sorted(said) == [0, 1, 2]
    assert same(found[0], found[1])
    assert same(found[1], found[2])
    assert 0 < len(found[0].history["lagrangian"]) < 6


def test_a_server_that_was_killed_goes_on_where_it_stood(tmp_path):
    """Killed after it had told one silo the total and before it told the others: nobody is asked twice."""
    quiet = run_silos(tasks_of(2))

    class Killed(Exception):
        pass

    class Mortal(Queues):
        left = 25

        def send(self, answers):
            self.left -= 1
            if self.left == 0:
                super().send(dict(list(answers.items())[:1]))
                raise Killed
            super().send(answers)

    lines, memory = Mortal(2), tmp_path / "hub"
    found = [None, None]

    def work(k):
        silo = Silo(lines.link(k))
        found[k] = tasks_of(2)[k](silo)
        silo.done()

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(2)]
    for thread in threads:
        thread.start()
    with pytest.raises(Killed):
        Hub(2, memory=memory).serve(lines, 20)
    assert memory.exists()
    Hub(2, memory=memory).serve(lines, 60)
    lines.end()
    for thread in threads:
        thread.join(20)
    assert same(found[0], quiet[0])
    assert same(found[0], found[1])
    assert not memory.exists()
    memory.write_bytes(b"nonsense\n")
    with pytest.raises(InputError, match="is not the memory of a server"):
        Hub(2, memory=memory)


def test_a_stopped_silo_says_why():
    lines = Queues(2)
    hub = Hub(2)
    lines.up[0].put(hello())
    lines.up[1].put(b"garbage")
    with pytest.raises(SiloError):
        hub.serve(lines, 1.0)
    answer = Message.from_bytes(lines.down[0].get(timeout=1))
    assert (answer.kind, "silo 1 sent something else" in answer.text) == ("stop", True)
    assert issubclass(Stopped, RuntimeError)
