"""Where configurations lie, how a command line becomes one, and what is said when it cannot.

A configuration is composed by Hydra from ``configs/<verb>.yaml`` and the groups beside it. Hydra's errors, long and
about Hydra, become one line that names the option and what is legal.
"""

import itertools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from sawbench.core.errors import UserError, illegal

PACKAGE = Path(__file__).parent


def config_dir() -> Path:
    """The checkout's ``configs/`` where this package runs from one (an editable install too), else the wheel's copy."""
    checkout = PACKAGE.parents[1]
    if (checkout / "pyproject.toml").is_file() and (checkout / "configs").is_dir():
        return checkout / "configs"
    return PACKAGE / "_configs"


def choices(group: str) -> list[str]:
    """Names that ``group=`` takes, by file."""
    return sorted(path.stem for path in (config_dir() / group).glob("*.yaml"))


def group_config(group: str, name: str) -> DictConfig:
    """One file of a group, alone: ``group_config("method", "bf16")``. Raises UserError where there is none."""
    if name not in choices(group):
        raise illegal(group, name, choices(group))
    config = OmegaConf.load(config_dir() / group / f"{name}.yaml")
    assert isinstance(config, DictConfig)
    return config


def compose(verb: str, overrides: Sequence[str]) -> DictConfig:
    """The configuration of one run of ``verb``.

    Raises:
        UserError: an override that is no assignment, an unknown option, a value of another kind, an unknown name of a
            group, or an option without a value.
    """
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        for override in parsed:
            _require_assignment(verb, override)
        with hydra.initialize_config_dir(str(config_dir()), version_base="1.3"):
            config = hydra.compose(verb, list(overrides))
            shipped = hydra.compose(verb, [str(o.input_line) for o in parsed if _names_group(o)])
        _require_types(config, shipped, [o.key_or_group for o in parsed if not _names_group(o)])
        OmegaConf.resolve(config)
        if missing := sorted(OmegaConf.missing_keys(config)):
            raise UserError(f"{missing[0]} has no value and needs one: {missing[0]}=...")
        return config
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(verb, error) from None


def _require_assignment(verb: str, override: Override) -> None:
    """Hydra could also add and delete options, and its own are among them: each would go wrong in silence here."""
    key = override.key_or_group
    if key.partition(".")[0] == "hydra":
        raise UserError(f"{verb} has no option {key}: its folders and logs are not Hydra's")
    opened = key.startswith("model.config.")
    if override.is_delete() or ((override.is_add() or override.is_force_add()) and not opened):
        raise UserError(f"{override.input_line}: options are set, as {key}=value; only model.config takes new keys (+)")


def _names_group(override: Override) -> bool:
    return (config_dir() / override.key_or_group).is_dir()


NUMBERS = {bool: ((bool,), "true or false"), int: ((int,), "a whole number"), float: ((int, float), "a number")}
KINDS = {
    "allow_code_execution": bool,
    "calibration.tokens": int,
    "engine.chunk": int,
    "engine.graphs": bool,
    "engine.kv_bytes": float,
    "load.concurrency": int,
    "load.requests": int,
    "protocol.items": int,
    "protocol.max_new_tokens": int,
    "protocol.thinking": bool,
    "task.num_fewshot": int,
}
"""Of options that ship as null, as a word or, in a load, as a number here and a list there."""
LOAD_LISTS = ("load.concurrency", "load.requests")


def _require_types(config: DictConfig, shipped: DictConfig, keys: Sequence[str]) -> None:
    """An option that ships as a number, a truth value or a list of them takes no other kind. Null and words stay free
    where some file of the group ships them; what a word may be, the option's object says."""
    for key in keys:
        value, default = OmegaConf.select(config, key), OmegaConf.select(shipped, key)
        listed = isinstance(default, ListConfig) and len(default) > 0
        kind = KINDS.get(key, type(default[0] if listed else default))
        elsewhere = _kinds_shipped(key)
        if kind not in NUMBERS or (str in elsewhere and key not in KINDS):
            continue
        single, many = not listed or key in LOAD_LISTS, listed or key in LOAD_LISTS
        if _is_of(value, NUMBERS[kind][0], single, many) or (type(value) is type(default) and value == default):
            continue
        if value is None and type(None) in elsewhere:
            continue
        legal = [NUMBERS[kind][1]] if single else []
        legal += [f"a list such as [{','.join(map(str, default[:2]))}]"] if listed else []
        legal += ["null"] if type(None) in elsewhere else []
        legal += [default] if isinstance(default, str) else []
        raise UserError(f"{key}={'null' if value is None else value} is not {' or '.join(legal)}")


def _is_of(value: Any, kinds: tuple[type, ...], single: bool, many: bool) -> bool:
    if isinstance(value, ListConfig):
        return many and all(type(each) in kinds for each in value)
    return single and type(value) in kinds


def _kinds_shipped(key: str) -> set[type]:
    """Of an option, over the files of its group; where it is of no group, over the verbs'."""
    group, _, name = key.partition(".")
    files = (config_dir() / group).glob("*.yaml") if name else config_dir().glob("*.yaml")
    found = [OmegaConf.select(OmegaConf.load(path), name or key, default=_kinds_shipped) for path in files]
    return {type(value) for value in found if value is not _kinds_shipped}


def expand(verb: str, overrides: Sequence[str]) -> list[list[str]]:
    """Overrides of every cell of a sweep: the product of all ``key=a,b,c``, the last key varying fastest.

    Raises:
        UserError: an override cannot be parsed, or sweeps over a range without an end.
    """
    try:
        parsed = OverridesParser.create().parse_overrides(list(overrides))
        return [list(cell) for cell in itertools.product(*map(_values, parsed))]
    except HydraException as error:
        raise explain(verb, error) from None


def _values(override: Override) -> list[str]:
    key = override.get_key_element()
    if not override.is_sweep_override():
        return [str(override.input_line)]
    if not override.is_discrete_sweep():
        raise UserError(f"{override.input_line}: a sweep lists its values, as in {key}=a,b,c")
    return [f"{key}={value}" for value in override.sweep_string_iterator()]


def instantiate(node: DictConfig, option: str) -> Any:
    """The object that ``node._target_`` names.

    Raises:
        UserError: the object refused its options, or does not know one of them.
    """
    try:
        return hydra.utils.instantiate(node, _convert_="all")
    except InstantiationException as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        if isinstance(error.__cause__, TypeError):
            raise UserError(f"{option}: {error.__cause__}") from error
        raise


def explain(verb: str, error: Exception) -> UserError:
    """Hydra's or OmegaConf's complaint in one line."""
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return illegal(group, name, error.options)
    if isinstance(error, OverrideParseException):
        return UserError(f"cannot read {error.override!r}: write option=value")
    message = str(error)
    unknown = re.search(r"Could not override '([^']+)'", message)
    if unknown and isinstance(error, ConfigCompositionException):
        return _unknown(verb, unknown[1], error.__cause__)
    if "requires --multirun" in message or "Ambiguous value" in message:
        return UserError(f"several values for one option make a sweep: add -m ({message.splitlines()[0]})")
    first = next((line for line in message.splitlines() if line.strip()), type(error).__name__)
    return UserError(first.strip())


def _unknown(verb: str, key: str, cause: BaseException | None) -> UserError:
    parent = getattr(cause, "parent_node", None)
    legal = sorted(str(name) for name in parent if name != "hydra") if isinstance(parent, DictConfig) else []
    where = f"{verb} has no option {key}"
    return UserError(f"{where}; there are: {', '.join(legal)}" if legal else where)
