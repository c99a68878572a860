"""Sums under masks: the same network, and a server that sees totals alone."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest
import torch
from test_faults import Deaf, run_over, same, tasks_of
from test_same_network import WIDTHS, by_class, digits, furthest, silos_of

pytest.importorskip("flwr", reason="flwr is not installed (dladmm[flower])")

from dladmm import mlp, train
from dladmm.base.errors import InputError
from dladmm.silos import Hub, Message, Silo, SiloError, run_silos
from dladmm.silos.communicator import Stopped
from dladmm.silos.secure import BROKEN, LARGEST, Masks, added, fixed, floating, negated
from dladmm.silos.threads import Queues

# Silos are threads, and filters of warnings are not theirs alone
pytestmark = pytest.mark.filterwarnings("ignore")


def test_fixed_point_numbers_add_as_whole_numbers_do():
    """Against Python's own numbers, of any size."""
    random = np.random.default_rng(0)
    x = random.normal(size=400) * 10.0 ** random.integers(-12, 15, 400)
    y = np.concatenate([-x[:5], np.zeros(5), random.normal(size=390) * 1e-9])

    def whole(words):
        return [(int(high) << 64 | int(low)) for low, high in words]

    for words, given in ((fixed(x), x), (fixed(y), y)):
        assert whole(words) == [int(np.ldexp(np.longdouble(v), 64)) % 2**128 for v in given]
    assert whole(added(fixed(x), fixed(y))) == [
        (a + b) % 2**128 for a, b in zip(whole(fixed(x)), whole(fixed(y)), strict=True)
    ]
    assert whole(negated(fixed(x))) == [-a % 2**128 for a in whole(fixed(x))]
    np.testing.assert_allclose(floating(fixed(x)), x, rtol=1e-15, atol=2.0**-64)
    np.testing.assert_allclose(floating(added(fixed(x), fixed(y))), x + y, rtol=1e-15, atol=2.0**-60)


def masks_of(size):
    """Masks of silos that exchange keys here."""
    said, meet = [None] * size, threading.Barrier(size)

    def exchange(k):
        def tell(own):
            said[k] = own
            meet.wait(20)
            return list(said)

        return tell

    found = [None] * size

    def make(k):
        found[k] = Masks(k, size, exchange(k))

    threads = [threading.Thread(target=make, args=(k,)) for k in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def test_a_masked_message_shows_nothing_and_the_masks_cancel():
    own = [torch.full((40, 40), float(k + 1), dtype=torch.float64) for k in range(3)]
    asked = [Message.of("sum", 5, [gram, torch.tensor([k])], [0]) for k, gram in enumerate(own)]
    sent = [masks.hide(m) for masks, m in zip(masks_of(3), asked, strict=True)]
    other = masks_of(3)[0].hide(asked[0])
    again = masks_of(3)
    words = sent[0].tensors[0].numpy().view(np.uint64)
    assert not (words == other.tensors[0].numpy().view(np.uint64)).any()  # other keys
    first, later = (again[0].hide(Message.of("sum", n, [own[0]])).tensors[0] for n in (5, 6))
    assert not torch.equal(first, later)  # another message
    bits = np.unpackbits(words.view(np.uint8))
    assert abs(bits.mean() - 0.5) < 4 * 0.5 / np.sqrt(len(bits))  # of a matrix of ones: as many as not
    assert len(np.unique(words)) == words.size
    answers = Hub(3).answer({k: m.to_bytes() for k, m in enumerate(sent)})
    total, counts = Message.from_bytes(answers[0]).tensors
    assert torch.equal(total, torch.full((40, 40), 6.0, dtype=torch.float64))
    assert counts.tolist() == [3]
    with pytest.raises(InputError, match="at least two silos"):
        Masks(0, 1, lambda own: [own])


def test_parts_of_a_message_have_masks_of_their_own():
    ones = torch.ones(3, dtype=torch.float64)
    first, second = masks_of(2)[0].hide(Message.of("sum", 1, [ones, ones])).tensors
    assert not (first == second).any()


def test_a_silo_has_its_share_of_the_range_of_a_sum():
    masks = masks_of(4)[1]
    for value, told in ((0.9 * LARGEST / 4, ""), (LARGEST / 4, BROKEN), (-LARGEST / 4, BROKEN)):
        sent = masks.hide(Message.of("sum", 1, [torch.tensor([value], dtype=torch.float64)]))
        assert sent.text == told


def test_the_network_is_that_of_unmasked_sums():
    X, y = digits(300)
    settings = {"mode": "accelerated", "dtype": "float64", "max_iter": 5}
    found = silos_of(by_class(X, y), {"secure": True}, **settings)
    assert furthest(found[0][0], train(mlp(WIDTHS), X, y, **settings)) < 1e-10
    assert found[0][1].secure


def test_what_cannot_be_masked_is_said():
    masks = masks_of(2)
    bad = masks[0].hide(Message.of("sum", 1, [torch.tensor([1.0, torch.nan])]))
    good = masks[1].hide(Message.of("sum", 1, [torch.tensor([1.0, 2.0])]))
    assert bad.text == BROKEN
    with pytest.raises(SiloError, match="silo 0 sent NaN or infinity"):
        Hub(2).answer({0: bad.to_bytes(), 1: good.to_bytes()})
    large = masks[1].hide(Message.of("sum", 1, [torch.tensor([1e19, 2.0])]))
    (total,) = Message.from_bytes(Hub(2).answer({0: bad.to_bytes(), 1: large.to_bytes()})[0]).tensors
    assert total.isnan().all()  # all are broken: all refuse the step


def over(lines, hub, monkeypatch, n=3):
    init = Silo.__init__
    monkeypatch.setattr(Silo, "__init__", lambda self, link: init(self, link, secure=True))
    return run_over(lines, tasks_of(n, max_iter=6), hub, patience=0.5)


def test_the_others_go_on_with_new_keys_when_a_silo_is_lost(monkeypatch):
    hub = Hub(3, on_silo_lost="go-on")
    found, said = over(Deaf(3, 1, 25, 10**6), hub, monkeypatch)
    assert hub.lost == {1: "does not answer"}
    assert sorted(said) == [0, 2]
    assert same(found[0], found[2])
    assert found[0].history.last("train_accuracy") > 0.5


def test_a_silo_that_comes_back_is_waited_for_with_masks_too(monkeypatch):
    quiet = run_silos(tasks_of(3, max_iter=6), secure=True)
    found, said = over(Deaf(3, 1, 20, 3), Hub(3, on_silo_lost="wait"), monkeypatch)
    assert sorted(said) == [0, 1, 2]
    assert same(found[0], quiet[0])


def test_a_single_silo_has_nobody_to_hide_among():
    with pytest.raises(SiloError, match="silo 0 failed: InputError: secure sums need at least two silos"):
        run_silos(tasks_of(1, max_iter=2), secure=True, patience=20)


def test_all_silos_mask_or_none():
    lines, hub = Queues(2), Hub(2)

    def work(k):
        with contextlib.suppress(Stopped):
            Silo(lines.link(k), secure=k == 1)

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(2)]
    for thread in threads:
        thread.start()
    with pytest.raises(SiloError, match=r"silo 1 has .*true\], where the others have .*false\]"):
        hub.serve(lines, 20)
    for thread in threads:
        thread.join(20)
