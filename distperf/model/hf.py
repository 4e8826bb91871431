"""Models of transformers, from a folder with a config.json and perhaps safetensors: any causal language model.

Nothing is fetched, and no code is taken from the folder. Parameters have transformers' names, so that what is saved
is what its tools expect. The loss is distperf's: auxiliary losses of a model (of a router's balance) are not added.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from distperf.errors import ModelError
from distperf.model.init import Fill
from distperf.model.stored import stored_fill
from distperf.recipe.runspec import HfSpec


def made_by_transformers(spec: HfSpec, seed: int) -> tuple[nn.Module, Fill, int]:
    """The model with parameters on the meta device, their initial values, and its vocabulary.

    The values are those of the folder's safetensors, else made by the architecture's own rules from `seed`.

    Raises:
        ModelError: transformers is not installed, or the folder holds no model that it knows.
    """
    where = f"model.hf {spec.path}"
    folder = Path(spec.path)
    config = _config(folder, where)
    model = _build(config, where)
    model.register_forward_hook(lambda _module, _inputs, output: output.logits)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    fill = stored_fill(folder, shapes, _aliases(model))
    vocab = int(config.get_text_config().vocab_size)
    return model, fill or _Initial(_build(config, where), seed, where), vocab


def _config(folder: Path, where: str) -> Any:
    try:
        transformers = importlib.import_module("transformers")
    except ModuleNotFoundError as error:
        raise ModelError(
            f"{where}: {error.name} is not installed; pip install 'distperf[hf]' on every node"
        ) from error
    path = folder / "config.json"
    try:
        kind = json.loads(path.read_bytes())["model_type"]
    except FileNotFoundError:
        raise ModelError(
            f"{where}: {path.absolute()} is not there (a path is relative to launch.workdir)"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{where}: {path} is no config.json of transformers: {error!r}") from error
    transformers.logging.set_verbosity_error()
    if kind not in transformers.CONFIG_MAPPING:
        raise ModelError(
            f"{where}: transformers {transformers.__version__} has no architecture {kind}; code in a folder is not run"
        )
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    config.use_cache = False
    return config


def _build(config: Any, where: str) -> nn.Module:
    transformers = importlib.import_module("transformers")
    try:
        with _parameters_on_meta():
            model = transformers.AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, trust_remote_code=False
            )
    except ValueError as error:
        reason = str(error).partition("\n")[0]
        raise ModelError(f"{where}: no causal language model can be made of it: {reason}") from error
    assert isinstance(model, nn.Module), type(model)
    return model.train()


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Inside, parameters of new modules have no memory, while buffers are made as always.

    torch.device("meta") would leave buffers, such as rotary frequencies, without values too.
    """

    def to_meta(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> nn.Parameter | None:
        if parameter is None or parameter.is_meta:
            return None
        return nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)

    handle = register_module_parameter_registration_hook(to_meta)  # type: ignore[arg-type]  # it may return one
    try:
        yield
    finally:
        handle.remove()


def _aliases(model: Any) -> dict[str, str]:
    """Other names that files may use: of tied parameters, and without the inner model's prefix."""
    tied = {kept: other for other, kept in model.all_tied_weights_keys.items()}
    return {**tied, f"{model.base_model_prefix}.": ""}


class _Initial:
    """Initial values by the architecture's own rules, one module at a time, each from a seed of its own.

    So any rank can make any part, and never holds more than one module (a matrix, the experts of a layer).
    """

    def __init__(self, model: nn.Module, seed: int, where: str) -> None:
        self._model = model  # on the meta device; never trained
        self._seed = seed
        self._where = where
        self._made: tuple[str, dict[str, Tensor]] = ("", {})

    def __call__(self, fqn: str, shape: Sequence[int], start: int, stop: int) -> Tensor:
        path, _, name = fqn.rpartition(".")
        if self._made[0] != path or name not in self._made[1]:
            self._made = (path, self._make(path))
        values = self._made[1][name]
        assert tuple(values.shape) == tuple(shape), (fqn, shape)
        return values.flatten()[start:stop]

    @torch.no_grad()
    def _make(self, path: str) -> dict[str, Tensor]:
        """Values of the parameters that a module itself has.

        Modules around it have their say after it, as in transformers: GPT-2's attention narrows its projection.
        """
        owner = self._model.get_submodule(path)
        empty = dict(owner.named_parameters(recurse=False, remove_duplicate=False))
        for name, parameter in empty.items():
            owner.register_parameter(name, nn.Parameter(torch.full(parameter.shape, torch.nan)))
        with torch.random.fork_rng(devices=[]):
            for around in _outwards(path):
                torch.manual_seed(_seed_of(self._seed, path, around))
                self._initialise(around)
        made = {name: parameter.detach() for name, parameter in owner.named_parameters(recurse=False)}
        for name, parameter in empty.items():
            owner.register_parameter(name, parameter)
        for name, values in made.items():
            if values.isnan().any():
                raise ModelError(
                    f"{self._where}: transformers does not say what {path}.{name} starts from; put safetensors beside "
                    "config.json"
                )
        return made

    def _initialise(self, path: str) -> None:
        """Apply the rules of the innermost model that a module belongs to."""
        models = [self._model.get_submodule(around) for around in _outwards(path)]
        rules: Any = next(model for model in models if hasattr(model, "_init_weights"))
        rules._init_weights(models[0])


def _outwards(path: str) -> list[str]:
    """a.b.c -> a.b.c, a.b, a and the whole."""
    steps = path.split(".") if path else []
    return [".".join(steps[:count]) for count in range(len(steps), -1, -1)]


def _seed_of(seed: int, *names: str) -> int:
    digest = hashlib.blake2b("/".join((str(seed), *names)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
