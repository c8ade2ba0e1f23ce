"""A protocol that a task does not take: what ships may stand beside it, what was set for it is refused."""

import pytest

from sawbench.config import choices, compose
from sawbench.core.errors import UserError
from sawbench.verbs.job import Job

TAKE_NONE = ("passkey", "ruler", "fidelity", "keys")


def words(task: str, *given: str) -> list[str]:
    lengths = ["task.lengths=[1024]"] if task in ("passkey", "ruler") else []
    return ["model=tiny", "device=cpu", f"task={task}", *lengths, *given]


@pytest.mark.parametrize("task", TAKE_NONE)
@pytest.mark.parametrize(
    "given",
    ["items=8", "temperature=0.6", "repeats=5", "max_new_tokens=9", "chat=false", "thinking=true", "temperature=nan"],
)
def test_an_option_that_would_change_nothing_is_refused(task: str, given: str) -> None:
    option = given.partition("=")[0]
    with pytest.raises(UserError, match=rf"protocol\.{option} is set, but task={task} takes no .*task\.\w+") as caught:
        Job.of(compose("run", words(task, f"protocol.{given}")))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("task", TAKE_NONE)
def test_what_ships_is_not_refused_and_is_no_part_of_the_cell(task: str) -> None:
    found = [Job.of(compose("run", words(task, f"protocol={name}"))).identity() for name in choices("protocol")]
    assert all(identity == found[0] for identity in found)
    assert "protocol" not in found[0]["task"]


def test_a_task_that_takes_one_takes_its_options() -> None:
    config = compose("run", ["model=tiny", "task=lm_eval", "task.name=any", "protocol.items=8"])
    assert config.task.protocol["items"] == 8


@pytest.mark.parametrize("given", ["temperature=nan", "temperature=inf", "temperature=-1", "top_p=nan", "top_p=inf",
                                   "top_p=0", "top_k=-1"])  # fmt: skip
def test_sampling_that_is_no_distribution_is_one_line(given: str) -> None:
    with pytest.raises(UserError, match=rf"protocol\.{given}") as caught:
        Job.of(compose("run", ["model=tiny", "task=math500", f"protocol.{given}"]))
    assert "\n" not in str(caught.value)
