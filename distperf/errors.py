"""What can go wrong in a recipe or in the runtime because of a user, a disk, a network or a peer.

DistperfError                      exit code
  RecipeError (ValueError)         2   the recipe or a --set flag; carries every problem found, with positions
    BatchError                     2   global batch, micro batch and ranks do not fit together
    MeshError                      2   the parallel axes do not multiply to the world size
  ModelError                       1   a model that cannot be had, or not be trained as the recipe asks
  DataError                        1   text or token shards missing, too small, or damaged
    DatasetFailed                  1   a dataset of the user's raised something; another attempt may do better
    WorkerFailed                   1   a process that reads ahead was lost, or hangs; another attempt may do better
  OffloadError                     1   a tier cannot hold, write or give back optimizer state
  CheckpointError                  1   could not be written or read
    CheckpointMissing              1   none there, or not complete
    CheckpointCorrupt              1   what is on disk is not what was written
    CheckpointSuperseded           1   a later attempt of the run has begun
"""

from __future__ import annotations


class DistperfError(Exception):
    """Root of the tree. Its text is shown to the user as it is, without a traceback."""

    exit_code = 1


class RecipeError(DistperfError, ValueError):
    """The recipe is wrong. `problems` holds one line per fault, each with file:line:column where known."""

    exit_code = 2

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class BatchError(RecipeError):
    """Global batch, micro batch, accumulation and data-parallel size do not fit together."""


class MeshError(RecipeError):
    """The sizes of the parallel axes do not fit the world size."""


class ModelError(DistperfError):
    """A model cannot be had, or cannot be trained as the recipe asks."""


class DataError(DistperfError):
    """Training data cannot be used."""


class DatasetFailed(DataError):
    """A dataset of the user's raised something, which its text shows with their own frames."""


class WorkerFailed(DataError):
    """A process that reads batches ahead was killed, ended, or owes a batch for too long."""


class OffloadError(DistperfError):
    """State cannot be kept on a drive, or be had back from it. Names the file or folder."""


class CheckpointError(DistperfError):
    """A checkpoint could not be written or read."""


class CheckpointMissing(CheckpointError):
    """No complete checkpoint where one was asked for."""


class CheckpointCorrupt(CheckpointError):
    """What is on disk is not what was written. `file` is its name in the checkpoint, `span` the bytes concerned."""

    def __init__(self, text: str, file: str = "", span: tuple[int, int] = (0, 0)) -> None:
        super().__init__(text)
        self.file = file
        self.span = span


class CheckpointSuperseded(CheckpointError):
    """A later attempt of the run has begun, so that this one may write no checkpoint any more."""
