"""Composition: where configurations lie, what sweeps expand to, and one line for every mistake."""

from typing import Any, get_type_hints

import pytest
from hydra.utils import get_object
from omegaconf import OmegaConf

from sawbench.config import KINDS, choices, compose, config_dir, expand, group_config, instantiate
from sawbench.core.errors import UserError
from sawbench.methods.method import KVMethod

METHODS = choices("method")


def refused(*overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        compose("run", overrides)
    (line,) = str(caught.value).splitlines()
    return line


def test_a_checkout_reads_its_own_configs() -> None:
    assert config_dir().name == "configs"
    assert (config_dir().parent / "pyproject.toml").is_file()


@pytest.mark.parametrize("group", ["model", "method", "task", "engine", "calibration"])
def test_a_name_in_a_row_is_the_name_of_its_file(group: str) -> None:
    assert choices(group)
    for name in choices(group):
        config = group_config(group, name)
        assert OmegaConf.is_missing(config, "name") or config.get("name", name) == name


@pytest.mark.parametrize("name", METHODS)
def test_every_method_composes_and_is_built(name: str) -> None:
    method = instantiate(compose("run", [f"method={name}"]).method, "method")
    assert isinstance(method, KVMethod)
    assert method.name == name
    assert method.about


@pytest.mark.parametrize("group", ["model", "task", "engine", "calibration"])
def test_every_choice_composes(group: str) -> None:
    for name in choices(group):
        alone = group_config(group, name)
        wanted = [f"{group}.{key}=given" for key in alone if OmegaConf.is_missing(alone, key)]
        config = compose("run", [f"{group}={name}", *wanted])
        assert OmegaConf.to_container(config[group], resolve=True, throw_on_missing=True)


def test_an_option_without_a_value_is_asked_for() -> None:
    assert refused("calibration=text") == "calibration.text has no value and needs one: calibration.text=..."


def test_an_option_reaches_the_part_that_uses_it() -> None:
    method = instantiate(compose("run", ["method=bdr", "method.options.bits=3"]).method, "method")
    assert method.options["bits"] == method.key.quantizer.bits == method.value.quantizer.bits == 3


def test_unknown_name_of_a_group_lists_the_legal_ones() -> None:
    line = refused("method=int5")
    assert line == f"method=int5 is not one of: {', '.join(METHODS)}"


def test_unknown_option_lists_its_neighbours() -> None:
    assert refused("seeds=1").startswith("run has no option seeds; there are: ")
    line = refused("method.options.bitz=3")
    assert "method.options.bitz" in line
    assert "bits" in line
    assert "storage" in line


@pytest.mark.parametrize("override", ["method", "method=a b", "seed=[1", "seed.x=1", "load=x", "seed=1,2"])
def test_any_other_mistake_is_one_line_that_names_the_option(override: str) -> None:
    line = refused(override)
    assert override.strip("+~").split("=")[0].split(".")[0] in line


def test_a_list_without_m_is_told_of_sweeps() -> None:
    assert "-m" in refused("method=int4,bdr")


def test_a_sweep_is_the_product_with_the_last_key_fastest() -> None:
    cells = expand("run", ["method=int4,bdr", "model=tiny", "seed=0,1"])
    assert cells == [
        ["method=int4", "model=tiny", "seed=0"],
        ["method=int4", "model=tiny", "seed=1"],
        ["method=bdr", "model=tiny", "seed=0"],
        ["method=bdr", "model=tiny", "seed=1"],
    ]


def test_a_value_with_commas_in_quotes_is_one_value() -> None:
    assert expand("run", ["task.text='a,b.txt'"]) == [["task.text='a,b.txt'"]]


def test_a_sweep_lists_its_values() -> None:
    with pytest.raises(UserError, match=r"seed=interval\(0,1\): a sweep lists"):
        expand("run", ["seed=interval(0,1)"])


def test_a_refusal_of_the_object_itself_comes_through() -> None:
    node = OmegaConf.create({"_target_": "sawbench.scoring.sandbox.Sandbox", "mode": "none"})
    with pytest.raises(UserError, match=r"task\.sandbox=none is not one of: strict, weak"):
        instantiate(node, "task")


def test_an_option_that_the_object_does_not_know_is_named() -> None:
    node = OmegaConf.create({"_target_": "sawbench.methods.quantizers.AffineInt", "bit": 3})
    with pytest.raises(UserError, match=r"method: .*bit"):
        instantiate(node, "method")


@pytest.mark.parametrize(
    ("override", "kind"),
    [
        ("seed=one", "a whole number"),
        ("seed=1.5", "a whole number"),
        ("seed=null", "a whole number"),
        ("method.options.bits=four", "a whole number"),
        ("engine.kv_bytes=much", "a number or null"),
        ("engine.chunk=small", "a whole number or auto"),
        ("engine.graphs=some", "true or false or auto"),
        ("protocol.items=few", "a whole number or null"),
        ("protocol.max_new_tokens=long", "a whole number or null"),
        ("protocol.thinking=deep", "true or false or null"),
        ("calibration.tokens=many", "a whole number or null"),
        ("task.lengths=4096", "a list such as [1024,2048]"),
        ("task.lengths=[4096,long]", "a list such as [1024,2048]"),
    ],
)
def test_a_number_takes_no_word(override: str, kind: str) -> None:
    said = refused("engine=paged", "task=passkey", override)
    assert said.replace("[4096, 'long']", "[4096,long]") == f"{override} is not {kind}"


@pytest.mark.parametrize(
    ("override", "kind"),
    [
        ("load.concurrency=high", "a whole number or a list such as [8,16]"),
        ("load.concurrency=null", "a whole number or a list such as [8,16]"),
        ("load.requests=many", "a whole number or a list such as [64,64] or null"),
        ("load.input_tokens=null", "a whole number"),
    ],
)
def test_a_load_takes_numbers_and_lists_of_them(override: str, kind: str) -> None:
    with pytest.raises(UserError) as caught:
        compose("bench", [override])
    assert str(caught.value) == f"{override} is not {kind}"
    for legal in ("load.concurrency=8", "load.concurrency=[8,16]", "load.requests=null", "load.requests=[4]"):
        compose("bench", [legal])


def test_a_word_may_become_a_number_and_a_number_a_word_that_some_file_ships() -> None:
    assert compose("run", ["method=bdr", "method.options.order=16"]).method.options.order == 16
    assert compose("run", ["method=int4_g32", "method.options.group=head"]).method.options.group == "head"
    assert compose("run", ["engine=paged", "engine.chunk=auto"]).engine.chunk == "auto"
    assert compose("run", ["protocol=paper", "protocol.max_new_tokens=null"]).protocol.max_new_tokens is None


TEXTS = {
    *("calibration.artifact", "calibration.data", "calibration.text", "data", "model.config.bos_token_id", "run"),
    *("model.config_of", "model.fetch", "model.hub", "model.path", "model.revision", "sandbox", "task.data"),
    *("task.include_path", "task.text"),
}
"""Options that ship as null and stand for text (a tokenizer's id, which nobody types, apart)."""


def test_every_number_that_ships_as_null_has_its_kind_declared() -> None:
    found = set()
    for path in config_dir().rglob("*.yaml"):
        group = path.relative_to(config_dir()).parts[:-1]
        config = OmegaConf.to_container(OmegaConf.load(path))
        assert isinstance(config, dict)
        found |= {".".join((*group, key)) for key in nulls(config)}
    assert "engine.kv_bytes" in found
    assert found <= set(KINDS) | TEXTS


def nulls(config: dict[Any, Any], before: str = "") -> set[str]:
    nested = (nulls(value, f"{before}{key}.") for key, value in config.items() if isinstance(value, dict))
    return {f"{before}{key}" for key, value in config.items() if value is None}.union(*nested)


@pytest.mark.parametrize("override", ["+nothing=1", "~seed", "hydra.run.dir=x", "++seed=2"])
def test_options_are_neither_added_nor_deleted_nor_hydras(override: str) -> None:
    assert override.strip("+~").split("=")[0] in refused(override)


def test_the_shape_of_a_model_takes_new_keys() -> None:
    assert compose("run", ["model=tiny", "+model.config.rope_theta=5"]).model.config.rope_theta == 5


def test_fractions_ship_as_fractions() -> None:
    """``temperature: 0`` would make 0.6 a mistake, since an option's kind is that of its shipped value."""
    seen = 0
    for path in sorted(config_dir().rglob("*.yaml")):
        config = OmegaConf.to_container(OmegaConf.load(path))
        assert isinstance(config, dict)
        if "_target_" not in config:
            continue
        hints = get_type_hints(get_object(config["_target_"]))
        fractions = [name for name in config if hints.get(name) in (float, float | None)]
        assert all(config[name] is None or isinstance(config[name], float) for name in fractions), path
        seen += len(fractions)
    assert seen > 5
