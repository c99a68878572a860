"""StreamingADMM on two ranks: the same steps as one process with all rows."""

import numpy as np
import pytest

import streaming_tasks as tasks
from distributed_pool import Pool


@pytest.fixture(scope="module")
def pool():
    pool = Pool(2)
    yield pool
    pool.close()


@pytest.fixture(scope="module")
def expected():
    return tasks.one_process()


def check(found, expected, tolerance=1e-9):
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("wrapped", [True, False])
def test_data_parallel_ranks_take_the_steps_of_one_process(pool, expected, wrapped):
    first, second = pool.run(tasks.parallel, 2, wrapped)
    check(first, expected)
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])


def test_ranks_that_see_different_weights_stay_together(pool):
    (first, seen), (second, also) = pool.run(tasks.uneven, 2)
    assert seen == also == [9]
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])


def test_sharded_parameters_take_the_steps_of_one_process(pool, expected):
    answers = pool.run(tasks.sharded, 2)
    assert sum(own for *_, own in answers) == 2 * 9 * 7
    for before, after, resumed, _ in answers:
        check(before, expected)
        for name, value in after.items():
            np.testing.assert_array_equal(value, resumed[name])
